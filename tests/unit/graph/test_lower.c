/* Lowering: every operator's kernels against onnxruntime, gradients through the lowered graphs against differences,
 * which kernels are chosen, and what is refused. The cases are in tests/data/onnx/lower*.onnx (make_lower_cases.py)
 * and ops*.onnx (make_op_cases.py). */
#include "tests/unit/graph/graph_make.h"
#include "tests/unit/graph/model_test.h"

static Graph *lower_file(Opened *o, Make *m, const char *file, const ModelOptions *more)
{
    char path[512];
    snprintf(path, sizeof(path), ROOT "data/onnx/%s", file);
    ModelOptions options = more != NULL ? *more : (ModelOptions){0};
    options.path = path;
    options.precision = FERRY_F64;
    *o = open_options(&options);
    if (o->status != ST_OK)
        fail_msg("%s", o->d.message);
    *m = (Make){.d = {.quiet = true}, .arena = o->arena, .random = 99};
    OK(graph_lower(&m->d, o->arena, o->m, &options, &m->g));
    OK(graph_check(&m->d, m->g));
    return m->g;
}

static void compare_outputs(const char *file, int at_least)
{
    Opened o;
    Make made, *m = &made;
    Graph *g = lower_file(&o, m, file, NULL);
    Exec e;
    int compared = 0;
    exec_open(&e, g);
    exec_run(&e, g->n_forward);
    for (int i = 0; i < o.m->n_output; i++) {
        const Value *out = &o.m->value.at[o.m->output[i]];
        char name[256];
        snprintf(name, sizeof(name), "%s", out->name);
        memcpy(strstr(name, "/out"), "/exp", 4);
        memmove(strstr(name, "/exp") + 7, strstr(name, "/exp") + 4, strlen(strstr(name, "/exp") + 4) + 1);
        memcpy(strstr(name, "/exp") + 4, "ect", 3);
        const Value *expected = value_named(o.m, name);
        int t = exec_tensor(&e, out->name);
        assert_non_null(expected);
        assert_int_equal(value_count(expected), g->tensor.at[t].count);
        assert_int_equal(expected->rank, g->tensor.at[t].rank);
        for (int k = 0; k < expected->rank; k++)
            assert_int_equal(expected->dim[k], g->tensor.at[t].dim[k]);
        for (int64_t k = 0; k < g->tensor.at[t].count; k++) {
            double is = ((const double *)e.at[t])[k], should = ((const float *)expected->data)[k];
            if (!(fabs(is - should) <= 2e-6 * (1 + fabs(should))))
                fail_msg("%s[%lld]: %.9g, onnxruntime %.9g", out->name, (long long)k, is, should);
        }
        compared++;
    }
    assert_true(compared >= at_least);
    exec_close(&e);
    graph_close(g);
    close_opened(&o);
}

static void test_values_17(void **state)
{
    (void)state;
    compare_outputs("lower17.onnx", 119);
}

static void test_values_11(void **state)
{
    (void)state;
    compare_outputs("lower11.onnx", 7);
}

static void test_values_of_compositions(void **state)
{
    (void)state;
    compare_outputs("ops14.onnx", 135);
    compare_outputs("ops18.onnx", 25);
    compare_outputs("ops11.onnx", 9);
}

static void test_gradients(void **state)
{
    (void)state;
    const char *const files[] = {"lower17.onnx", "lower11.onnx", "ops14.onnx", "ops18.onnx", "ops11.onnx"};
    const int n_param[] = {150, 6, 120, 15, 4};
    for (int f = 0; f < 5; f++) {
        Opened o;
        Make made, *m = &made;
        Graph *g = lower_file(&o, m, files[f], NULL);
        for (int i = 0; i < o.m->n_output; i++) {
            const char *name = o.m->value.at[o.m->output[i]].name;
            for (int t = 0; t < g->tensor.count; t++)
                if (strcmp(g->tensor.at[t].name, name) == 0) {
                    make_loss(m, t);
                    break;
                }
        }
        OK(graph_autodiff(&m->d, g));
        assert_true(g->n_param > n_param[f]);
        OK(graph_check(&m->d, g));
        Exec e;
        exec_open(&e, g);
        exec_run(&e, g->node.count);
        for (int p = 0; p < g->n_param; p++) {
            if (!g->param[p].trainable)
                continue;
            /* two elements of each: the loss sees all outputs at once */
            for (int64_t i = 0; i < g->param[p].count; i += 1 + g->param[p].count / 2) {
                double *at = (double *)e.at[g->param[p].tensor] + i, kept = *at, up, down;
                double grad = ((double *)e.at[g->param[p].grad])[i];
                *at = kept + 1e-5;
                exec_run(&e, g->n_forward);
                up = exec_loss(&e);
                *at = kept - 1e-5;
                exec_run(&e, g->n_forward);
                down = exec_loss(&e);
                *at = kept;
                double numeric = (up - down) / 2e-5;
                if (!(fabs(numeric - grad) <= 1e-5 * (1 + fabs(numeric))))
                    fail_msg("%s[%lld]: %.9g, by differences %.9g", g->param[p].name, (long long)i, grad, numeric);
            }
        }
        exec_close(&e);
        graph_close(g);
        close_opened(&o);
    }
}

/* How many kernels a case became, and the last of them. */
static int kernels_of(const Graph *g, const char *name, const Node **last)
{
    int count = 0;
    size_t length = strlen(name);
    for (int i = 0; i < g->node.count; i++)
        if (strncmp(g->node.at[i].name, name, length) == 0 && g->node.at[i].name[length] == '/') {
            *last = &g->node.at[i];
            count++;
        }
    return count;
}

static void test_choice_of_kernels(void **state)
{
    (void)state;
    Opened o;
    Make made, *m = &made;
    const Node *n = NULL;
    Graph *g = lower_file(&o, m, "lower17.onnx", NULL);
    const char *const views[] = {"Reshape",        "Flatten",     "Squeeze",        "Unsqueeze",
                                 "Identity",       "Expand_same", "Transpose_ones", "Slice_all",
                                 "ReduceSum_noop", "Concat_one",  "Min_1",          "ReduceMean_one"};
    for (size_t i = 0; i < sizeof(views) / sizeof(*views); i++)
        if (kernels_of(g, views[i], &n) != 0)
            fail_msg("%s is not a view", views[i]);
    assert_int_equal(kernels_of(g, "MatMul_bias", &n), 1);
    assert_int_equal(n->call.op, FERRY_OP_LINEAR);
    assert_int_equal(n->call.m, 10);
    assert_string_equal(g->tensor.at[n->arg[3]].name, "MatMul_bias/in2");
    assert_int_equal(kernels_of(g, "MatMul_bias_used_twice", &n), 3);
    assert_int_equal(kernels_of(g, "MatMul_transposed", &n), 2); /* the copy has no reader; pruning removes it */
    assert_int_equal(n->call.op, FERRY_OP_LINEAR);
    assert_true(n->call.trans_b);
    assert_string_equal(g->tensor.at[n->arg[2]].name, "MatMul_transposed/in1");
    assert_int_equal(kernels_of(g, "MatMul_reshaped", &n), 1);
    assert_int_equal(n->call.op, FERRY_OP_LINEAR);
    assert_int_equal(kernels_of(g, "MatMul_computed", &n), 2);
    assert_int_equal(n->call.op, FERRY_OP_MATMUL);
    assert_int_equal(n->call.rank, 0);
    assert_int_equal(n->call.m, 4);
    assert_int_equal(kernels_of(g, "Pow_2", &n), 1);
    assert_int_equal(n->call.fn, FERRY_SQUARE);
    assert_int_equal(kernels_of(g, "Add_0", &n), 1);
    assert_int_equal(n->call.rank, 1); /* equal shapes are walked as one */
    assert_int_equal(kernels_of(g, "Gather_range", &n), 1);
    assert_int_equal(n->call.op, FERRY_OP_COPY);
    assert_int_equal(kernels_of(g, "Gemm_1", &n), 1);
    assert_true(n->call.op == FERRY_OP_LINEAR && n->call.trans_b);
    graph_close(g);
    close_opened(&o);
}

/* --train and --freeze select by name; a pattern without a match is a mistake. */
static void test_train_freeze(void **state)
{
    (void)state;
    Opened o;
    Make made, *m = &made;
    const char *train[] = {"MatMul_*"}, *freeze[] = {"MatMul_bias/in2"};
    ModelOptions options = {.n_train = 1, .train = train, .n_freeze = 1, .freeze = freeze};
    Graph *g = lower_file(&o, m, "lower17.onnx", &options);
    for (int p = 0; p < g->n_param; p++) {
        const char *name = g->param[p].name;
        bool expected = strncmp(name, "MatMul_", 7) == 0 && strcmp(name, "MatMul_bias/in2") != 0;
        assert_int_equal(g->param[p].trainable, expected);
    }
    graph_close(g);
    freeze[0] = "Add_scalar/c0"; /* a constant is no parameter */
    assert_int_equal(graph_lower(&m->d, o.arena, o.m, &options, &g), ST_USAGE);
    assert_null(g);
    within(m->d.message, "--freeze 'Add_scalar/c0'");
    close_opened(&o);
}

static ModelNode *node_named(const Model *m, const char *name)
{
    for (int i = 0; i < m->node.count; i++)
        if (strcmp(m->node.at[i].name, name) == 0)
            return &m->node.at[i];
    return NULL;
}

/* What cannot be lowered names the node, the operator and the reason. */
static void not_lowered(const char *node, const char *part, void (*change)(Opened *o, ModelNode *n))
{
    Opened o;
    Make made, *m = &made;
    Graph *g = lower_file(&o, m, "lower17.onnx", NULL);
    graph_close(g);
    change(&o, node_named(o.m, node));
    ModelOptions options = {.precision = FERRY_F64};
    assert_int_equal(graph_lower(&m->d, o.arena, o.m, &options, &g), ST_MODEL);
    assert_null(g);
    within(m->d.message, part);
    within(m->d.message, strstr(node, "Add_scalar") ? "Add_scalar" : node);
    close_opened(&o);
}

static void range_instead(Opened *o, ModelNode *n)
{
    (void)o;
    n->op = "Range";
    n->row = op_find("", "Range", 17);
    assert_non_null(n->row);
}

static void forget_data(Opened *o, ModelNode *n)
{
    o->m->value.at[n->in[1]].data = NULL;
}

static void test_refused(void **state)
{
    (void)state;
    not_lowered("Tanh/0", "Range", range_instead);
    not_lowered("Add_scalar/0", "external data", forget_data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_17),
        cmocka_unit_test(test_values_11),
        cmocka_unit_test(test_values_of_compositions),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_choice_of_kernels),
        cmocka_unit_test(test_train_freeze),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
