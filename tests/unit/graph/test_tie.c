/* Ties: what is found, how readers are redirected (checked by differences on the one parameter that is left), what is
 * refused. */
#include "tests/unit/graph/graph_make.h"
#include "tests/unit/graph/model_test.h"

static int linear(Make *m, int x, int w, bool trans)
{
    const Tensor tx = m->g->tensor.at[x], tw = m->g->tensor.at[w];
    int64_t k = tx.dim[1], n = tw.dim[trans ? 0 : 1], dim[] = {tx.dim[0], n};
    int y = make_value(m, FERRY_F64, 2, dim);
    ferry_kernel call = call_linear(FERRY_F64, dim[0], k, n, trans);
    make_node(m, &call, (int[]){y, x, w, -1});
    return y;
}

static int embedding(Make *m, int table)
{
    static const int64_t ids[] = {1, 0, 1};
    const Tensor t = m->g->tensor.at[table];
    int64_t three = 3, dim[] = {3, t.dim[1]};
    int y = make_value(m, FERRY_F64, 2, dim);
    ferry_kernel call = call_new(FERRY_OP_EMBEDDING, FERRY_F64);
    call.dtype2 = FERRY_I64;
    call.m = 3;
    call.k = t.dim[0];
    call.n = t.dim[1];
    make_node(m, &call, (int[]){y, table, make_const(m, FERRY_I64, 1, &three, ids)});
    return y;
}

/* The second parameter gets the (transposed) values of the first. */
static void copy_values(Make *m, int from, int to, bool transposed)
{
    const Param *a = &m->g->param[from];
    Param *b = &m->g->param[to];
    const int64_t *dim = m->g->tensor.at[a->tensor].dim;
    double *data = make_data(m, a->count, 0, 1);
    for (int64_t i = 0; i < a->count; i++)
        data[transposed ? i % dim[1] * dim[0] + i / dim[1] : i] = ((const double *)a->data)[i];
    b->data = data;
}

static void tie(Make *m, const char *by_name)
{
    const char *list[] = {by_name};
    ModelOptions options = {.n_tie = by_name != NULL, .tie = list};
    OK(graph_tie(&m->d, m->g, &options));
    OK(graph_check(&m->d, m->g));
}

static const int64_t wide[] = {4, 3}, tall[] = {3, 4}, square[] = {3, 3};

/* An embedding and a head, in either order, found by value: the embedding's layout stays and the head reads it. */
static void test_embedding_and_head(void **state)
{
    (void)state;
    for (int head_first = 0; head_first < 2; head_first++) {
        Make made, *m = &made;
        make_open(m, 5);
        int a = make_param(m, 2, head_first ? tall : wide, -1, 1),
            b = make_param(m, 2, head_first ? wide : tall, -1, 1);
        copy_values(m, 0, 1, true);
        int table = head_first ? b : a, head = head_first ? a : b;
        make_loss(m, linear(m, make_unary(m, FERRY_TANH, embedding(m, table)), head, false));
        tie(m, NULL);
        assert_int_equal(m->g->n_param, 1);
        assert_int_equal(m->g->param[0].tensor, table);
        assert_int_equal(m->g->param[0].n_alias, 1);
        assert_string_equal(m->g->param[0].alias[0].name, head_first ? "p0" : "p1");
        assert_true(m->g->param[0].alias[0].transposed);
        for (int i = 0; i < m->g->node.count; i++) {
            assert_int_not_equal(m->g->node.at[i].call.op, FERRY_OP_COPY);
            if (m->g->node.at[i].call.op == FERRY_OP_LINEAR)
                assert_true(m->g->node.at[i].call.trans_b);
        }
        make_check_gradients(m);
        assert_int_equal(m->g->n_unit, 1);
        assert_int_equal(m->g->unit[0].n_use, 3);
        assert_int_equal(m->g->unit[0].use[2].phase, PHASE_BP); /* the head's; an embedding reads no table in BP */
        assert_int_equal(m->g->unit[0].use[2].layer, 1);
        make_close(m);
    }
}

/* Neither side can flip: the second reads a transposed copy. Three equal ones become one. */
static void test_copy_and_three(void **state)
{
    (void)state;
    Make made, *m = &made;
    make_open(m, 6);
    int a = make_param(m, 2, wide, -1, 1), b = make_param(m, 2, tall, -1, 1), c = make_param(m, 2, wide, -1, 1);
    copy_values(m, 0, 1, true);
    copy_values(m, 0, 2, false);
    make_loss(m, make_unary(m, FERRY_SIN, a));
    make_loss(m, make_unary(m, FERRY_TANH, b));
    make_loss(m, make_binary(m, FERRY_MUL, make_view(m, c, 2, tall), b));
    tie(m, NULL);
    assert_int_equal(m->g->n_param, 1);
    assert_int_equal(m->g->param[0].n_alias, 2);
    int copies = 0;
    for (int i = 0; i < m->g->node.count; i++)
        copies += m->g->node.at[i].call.op == FERRY_OP_COPY;
    assert_int_equal(copies, 1);
    make_check_gradients(m);
    make_close(m);
}

/* Equal fresh biases are no tie, and neither are tensors that only look alike. */
static void test_not_tied(void **state)
{
    (void)state;
    Make made, *m = &made;
    make_open(m, 7);
    int64_t n = 4;
    int a = make_param(m, 1, &n, 1, 1), b = make_param(m, 1, &n, 1, 1), c = make_param(m, 2, wide, -1, 1);
    int d = make_param(m, 2, tall, -1, 1), e = make_param(m, 2, square, -1, 1), f = make_param(m, 2, square, -1, 1);
    copy_values(m, 2, 3, false); /* the same bytes in another shape */
    copy_values(m, 4, 5, true);
    make_loss(m, make_binary(m, FERRY_ADD, a, b));
    make_loss(m, make_binary(m, FERRY_ADD, make_view(m, c, 2, tall), d));
    make_loss(m, make_binary(m, FERRY_ADD, e, f));
    tie(m, NULL);
    assert_int_equal(m->g->n_param, 5); /* only the transposed squares are one */
    make_close(m);
}

/* --train and --freeze by one name of several mean the whole parameter. */
static void test_selected_by_any_name(void **state)
{
    (void)state;
    for (int freeze = 0; freeze < 2; freeze++) {
        Make made, *m = &made;
        make_open(m, 8);
        int a = make_param(m, 2, wide, -1, 1), b = make_param(m, 2, wide, -1, 1), c = make_param(m, 2, wide, -1, 1);
        copy_values(m, 0, 1, false);
        const char *list[] = {"p1"};
        ModelOptions options = {.n_train = !freeze, .train = list, .n_freeze = freeze, .freeze = list};
        for (int p = 0; p < 3; p++)
            m->g->param[p].trainable = (p == 1) != freeze; /* as graph_lower leaves it */
        make_loss(m, make_binary(m, FERRY_MUL, make_binary(m, FERRY_MUL, a, b), c));
        OK(graph_tie(&m->d, m->g, &options));
        assert_int_equal(m->g->n_param, 2);
        assert_int_equal(m->g->param[0].trainable, !freeze);
        assert_int_equal(m->g->param[1].trainable, freeze);
        make_check_gradients(m);
        make_close(m);
    }
}

static void refuse_tie(Make *m, const char *text, const char *part)
{
    const char *list[] = {text};
    ModelOptions options = {.n_tie = 1, .tie = list};
    Diag d = {.quiet = true};
    assert_int_equal(graph_tie(&d, m->g, &options), ST_USAGE);
    within(d.message, part);
}

static void test_by_name(void **state)
{
    (void)state;
    Make made, *m = &made;
    make_open(m, 9);
    int a = make_param(m, 2, wide, -1, 1), b = make_param(m, 2, tall, -1, 1), c = make_param(m, 2, wide, -1, 1);
    make_loss(m, linear(m, make_unary(m, FERRY_TANH, embedding(m, a)), b, false));
    make_loss(m, make_unary(m, FERRY_SIN, c));
    refuse_tie(m, "p0=p1", "4x3 and 3x4");
    refuse_tie(m, "p0=p2^T", "do not match");
    refuse_tie(m, "p0=p9", "does not name two");
    refuse_tie(m, "p0", "does not name two");
    refuse_tie(m, "p0^T=p1", "does not name two");
    m->g->param[2].name = "p0=p1";
    refuse_tie(m, "p0=p1=p0=p1", "does not name two");
    m->g->param[0].name = "x";
    m->g->param[1].name = "x=y";
    m->g->param[2].name = "y=x";
    refuse_tie(m, "x=y=x", "more than one way"); /* x = (y=x) or (x=y) = x */
    for (int p = 0; p < 3; p++)
        m->g->param[p].name = m->g->tensor.at[m->g->param[p].tensor].name;
    const void *kept = m->g->param[0].data;
    m->g->param[0].data = NULL; /* the values of one of the two are enough */
    m->g->param[1].data = NULL;
    copy_values(m, 2, 1, true);
    tie(m, "p1=p0^T");
    assert_ptr_not_equal(m->g->param[0].data, NULL);
    assert_ptr_not_equal(m->g->param[0].data, kept);
    tie(m, "p0=p1^T"); /* once more changes nothing */
    refuse_tie(m, "p0=p1", "the other way round");
    assert_int_equal(m->g->n_param, 1); /* p2 has the values that p1 brought: found by value in the second call */
    make_check_gradients(m);
    make_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding_and_head),
        cmocka_unit_test(test_copy_and_three),
        cmocka_unit_test(test_not_tied),
        cmocka_unit_test(test_selected_by_any_name),
        cmocka_unit_test(test_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
