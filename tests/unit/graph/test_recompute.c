/* Recomputation on whole models: the same bits in less memory; cuts; what cannot be a segment. Random graphs are in
 * test_autodiff.c. */
#include "tests/unit/graph/graph_exec.h"

#define MODELS FERRY_SOURCE_DIR "/tests/models/"

typedef struct Case {
    Diag d;
    Arena *arena;
    Model *model;
    Graph *g;
    const char *family;
} Case;

static Case open_case(const char *family, const char *file, const char *loss)
{
    static DimBinding dims[] = {{"batch", 4}, {"seq", 32}};
    Case c = {.d = {.quiet = true}, .arena = arena_open(), .family = family};
    bool text = strcmp(family, "resnet") != 0 && strcmp(family, "batchnorm") != 0;
    const ModelOptions options = {.path = arena_printf(c.arena, MODELS "%s/%s.onnx", family, file),
                                  .n_dim = text ? 2 : 1,
                                  .dim = dims,
                                  .loss = loss,
                                  .precision = FERRY_F64};
    if (graph_from_options(&c.d, c.arena, &options, &c.model, &c.g) != ST_OK)
        fail_msg("%s", c.d.message);
    return c;
}

static void close_case(Case *c)
{
    graph_close(c->g);
    model_close(c->model);
    arena_close(c->arena);
}

/* Inputs that need no file: small labels, other integers by place, reals between -1 and 1. */
static void feed(Exec *e)
{
    for (int i = 0; i < e->g->n_input; i++) {
        const Tensor *t = &e->g->tensor.at[e->g->input[i]];
        for (int64_t k = 0; k < t->count; k++)
            if (t->dtype == FERRY_I64)
                ((int64_t *)e->at[e->g->input[i]])[k] = (k * 7 + 3) % (t->rank == 1 ? 4 : 64);
            else
                ((double *)e->at[e->g->input[i]])[k] = (double)((k * 37 + 11) % 101) / 50 - 1;
    }
}

/* The most bytes of values that are live at once. */
static int64_t live_bytes(const Graph *g)
{
    int64_t most = 0;
    for (int i = 0; i < g->node.count; i++) {
        int64_t now = 0;
        for (int t = 0; t < g->tensor.count; t++) {
            const Tensor *x = &g->tensor.at[t];
            if (x->root == t && x->kind == TENSOR_VALUE && x->first_write >= 0 && x->first_write <= i && i <= x->last_use)
                now += x->bytes;
        }
        most = now > most ? now : most;
    }
    return most;
}

static int copies(const Graph *g)
{
    int n = 0;
    for (int i = 0; i < g->node.count; i++)
        n += g->node.at[i].phase == PHASE_RP;
    return n;
}

static void same_bits(const Graph *plain, const Graph *again)
{
    Exec a, b;
    exec_open(&a, plain);
    exec_open(&b, again);
    feed(&a);
    feed(&b);
    for (int p = 0; p < plain->n_param; p++)
        if (plain->param[p].state) {
            memset(a.at[plain->param[p].tensor], 0, (size_t)plain->param[p].bytes);
            memset(b.at[plain->param[p].tensor], 0, (size_t)plain->param[p].bytes);
        }
    exec_run(&a, plain->node.count);
    exec_run(&b, again->node.count);
    assert_true(exec_loss(&a) == exec_loss(&b));
    for (int p = 0; p < plain->n_param; p++) {
        int t = plain->param[p].state ? plain->param[p].tensor : plain->param[p].grad;
        if (t >= 0)
            assert_memory_equal(a.at[t], b.at[t], (size_t)plain->param[p].bytes);
    }
    exec_close(&a);
    exec_close(&b);
}

/* All cuts as ends; `cuts` and `copied` are what is expected. */
static void check_model(const char *family, const char *file, const char *loss, int cuts, int copied)
{
    Case c = open_case(family, file, loss);
    Cut *cut;
    int n;
    int64_t total;
    const Graph *again;
    assert_int_equal(graph_cuts(&c.d, c.arena, c.g, &cut, &n, &total), ST_OK);
    const char **end = ARENA_NEW(c.arena, const char *, n);
    for (int i = 0; i < n; i++) {
        end[i] = cut[i].name;
        assert_int_equal(graph_end_node(c.g, end[i]), cut[i].node);
        assert_true(cut[i].saved_bytes <= total && (i == 0 || cut[i].saved_bytes >= cut[i - 1].saved_bytes));
    }
    if (graph_recompute(&c.d, c.arena, c.g, n, end, &again) != ST_OK || graph_check(&c.d, again) != ST_OK)
        fail_msg("%s", c.d.message);
    print_message("%s %s: %d cuts, %d nodes computed again, %lld bytes instead of %lld\n", family, file, n, copies(again),
                  (long long)live_bytes(again), (long long)live_bytes(c.g));
    assert_int_equal(n, cuts);
    assert_int_equal(copies(again), copied);
    assert_true(live_bytes(again) <= live_bytes(c.g));
    assert_int_equal(again->n_forward, c.g->n_forward);
    assert_int_equal(again->node.count, c.g->node.count + copied);
    assert_int_equal(again->n_unit, c.g->n_unit);
    /* uses as before, and among them those of the copies */
    for (int u = 0; u < c.g->n_unit; u++) {
        const Unit *x = &c.g->unit[u], *y = &again->unit[u];
        int k = 0;
        for (int i = 0; i < y->n_use; i++) {
            if (y->use[i].phase == PHASE_RP)
                continue;
            assert_true(k < x->n_use && x->use[k].layer == y->use[i].layer && x->use[k].phase == y->use[i].phase);
            k++;
        }
        assert_int_equal(k, x->n_use);
    }
    same_bits(c.g, again);
    close_case(&c);
}

static void test_models(void **state)
{
    (void)state;
    check_model("gpt2", "loss-ts", NULL, 6, 12);
    check_model("gpt2", "dropout-ts", NULL, 6, 35);
    check_model("bert", "loss-ts", NULL, 6, 16);
    check_model("llama", "loss-ts", NULL, 5, 22);
    check_model("resnet", "loss-ts", NULL, 2, 7);
    check_model("batchnorm", "ts", "cross_entropy", 1, 9);
}

static void expect_failure(Case *c, int n, const char *const *end, const char *part)
{
    const Graph *again;
    Diag d = {.quiet = true};
    assert_int_equal(graph_recompute(&d, c->arena, c->g, n, end, &again), ST_MODEL);
    assert_null(again);
    assert_non_null(strstr(d.message, part));
}

static void test_ends(void **state)
{
    (void)state;
    Case c = open_case("gpt2", "loss-ts", NULL);
    const Graph *g = c.g, *again;
    const char *first = g->tensor.at[g->node.at[3].arg[0]].name, *later = g->tensor.at[g->node.at[9].arg[0]].name;
    expect_failure(&c, 1, (const char *[]){"nobody"}, "nobody");
    expect_failure(&c, 1, (const char *[]){g->param[0].name}, g->param[0].name);
    expect_failure(&c, 1, (const char *[]){g->tensor.at[g->input[0]].name}, "no segment");
    expect_failure(&c, 2, (const char *[]){later, first}, "not computed after");
    expect_failure(&c, 2, (const char *[]){first, first}, "not computed after");
    for (int t = 0; t < g->tensor.count; t++)
        if (g->tensor.at[t].grad_of >= 0 && g->tensor.at[t].producer >= g->n_forward) {
            expect_failure(&c, 1, (const char *[]){g->tensor.at[t].name}, "no segment");
            break;
        }
    /* without a segment it is the same graph; everything in one segment changes nothing but the place of the work */
    assert_int_equal(graph_recompute(&c.d, c.arena, g, 0, NULL, &again), ST_OK);
    assert_int_equal(copies(again), 0);
    assert_int_equal(again->node.count, g->node.count);
    assert_int_equal(
        graph_recompute(&c.d, c.arena, g, 1, (const char *[]){g->tensor.at[g->node.at[g->n_forward - 1].arg[0]].name}, &again),
        ST_OK);
    assert_true(copies(again) > 0);
    same_bits(g, again);
    close_case(&c);
}

/* A graph whose copies are not those of the forward nodes does not pass the checker. */
static void test_checker(void **state)
{
    (void)state;
    Case c = open_case("gpt2", "dropout-ts", NULL);
    const Graph *made;
    const char *end = c.g->tensor.at[c.g->node.at[c.g->n_forward / 2].arg[0]].name;
    assert_int_equal(graph_recompute(&c.d, c.arena, c.g, 1, &end, &made), ST_OK);
    Graph *g = (Graph *)made;
    int tried = 0;
    for (int i = g->n_forward; i < g->node.count; i++) {
        Node *n = &g->node.at[i], kept = *n;
        Diag d = {.quiet = true};
        if (n->phase != PHASE_RP)
            continue;
        n->call.alpha += 1;
        assert_int_equal(graph_check(&d, g), ST_FAILED);
        *n = kept;
        n->phase = PHASE_BP;
        d = (Diag){.quiet = true};
        assert_int_equal(graph_check(&d, g), ST_FAILED);
        memcpy(n, &kept, sizeof kept);
        tried++;
    }
    assert_true(tried > 10);
    assert_int_equal(graph_check(&c.d, g), ST_OK);
    close_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_checker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
