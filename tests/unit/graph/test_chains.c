/* Chains of element-wise kernels as one kernel: the bits are those of the kernels one by one, for the tiny models spelled out
 * in every kernel, forward and backward, and for random graphs. */
#include "tests/unit/graph/tiny_run.h"

#define TRY_OK(call) assert_int_equal(call, ST_OK)

/* A graph in which nothing is fused, with chains or without. */
static void run(Run *r, const char *family, const char *file, const char *loss, bool chains)
{
    DimBinding dims[] = {{"batch", 4}, {"seq", 32}};
    char path[512];
    bool images = strcmp(family, "vit") == 0 || strcmp(family, "resnet") == 0;
    snprintf(path, sizeof(path), MODELS "%s/%s.onnx", family, file);
    ModelOptions options = {
        .path = path, .n_dim = images ? 1 : 2, .dim = dims, .loss = loss, .precision = FERRY_F32, .composed = true};
    *r = (Run){.d = {.quiet = true}, .arena = arena_open()};
    if (graph_from_options(&r->d, r->arena, &options, &r->model, &r->g) != ST_OK ||
        (chains && (graph_fuse_chains(&r->d, r->g) != ST_OK || graph_layers(&r->d, r->g) != ST_OK ||
                    graph_liveness(&r->d, r->g) != ST_OK || graph_check(&r->d, r->g) != ST_OK))) {
        diag_print(&r->d, stderr);
        fail();
    }
    exec_open(&r->e, r->g);
    feed(r, family);
    exec_run(&r->e, r->g->node.count);
}

static void finish(Run *r)
{
    exec_close(&r->e);
    graph_close(r->g);
    model_close(r->model);
    arena_close(r->arena);
}

static void same_bits(const char *family, const char *file, const char *loss)
{
    Run one, many;
    run(&one, family, file, loss, true);
    run(&many, family, file, loss, false);
    print_message("%s %s: %d nodes for %d\n", family, file, one.g->node.count, many.g->node.count);
    assert_true(one.g->node.count < many.g->node.count);
    assert_memory_equal(one.e.at[one.g->loss], many.e.at[many.g->loss], 4);
    assert_int_equal(one.g->n_param, many.g->n_param);
    for (int p = 0; p < one.g->n_param; p++)
        if (one.g->param[p].grad >= 0)
            assert_memory_equal(one.e.at[one.g->param[p].grad], many.e.at[many.g->param[p].grad], (size_t)one.g->param[p].bytes);
    finish(&one);
    finish(&many);
}

static void test_models(void **state)
{
    (void)state;
    same_bits("gpt2", "loss-ts", NULL);
    same_bits("gpt2", "ts13", "cross_entropy");
    same_bits("bert", "loss-ts", NULL);
    same_bits("bert", "dynamo", "cross_entropy");
    same_bits("llama", "loss-ts", NULL);
    same_bits("llama", "dynamo", "cross_entropy");
    same_bits("vit", "loss-ts", NULL);
    same_bits("resnet", "loss-ts", NULL);
}

/* ---- random graphs ---------------------------------------------------------------------------------------------- */

static uint64_t seed = 1;

static int below(int n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)(seed >> 33) % n;
}

enum { ROWS = 6, COLUMNS = 10, MOST_TENSORS = 64 };

/* Tensors of [ROWS, COLUMNS], [COLUMNS], [ROWS, 1] or one element. */
typedef struct Random {
    Make m;
    int count, tensor[MOST_TENSORS];
} Random;

static int random_operand(Random *r, int64_t *stride)
{
    int t = r->tensor[below(r->count)];
    const Tensor *x = &r->m.g->tensor.at[t];
    stride[0] = x->count == ROWS * COLUMNS ? COLUMNS : x->count == ROWS ? 1 : 0;
    stride[1] = x->count == ROWS * COLUMNS || x->count == COLUMNS ? 1 : 0;
    return t;
}

/* Nodes that read and write tensors of [ROWS, COLUMNS], some of them in place, some no member of any chain. */
static void random_node(Random *r)
{
    const int64_t dim[] = {ROWS, COLUMNS}, dense[] = {COLUMNS, 1};
    int64_t a_stride[2], b_stride[2];
    int a = random_operand(r, a_stride), b = random_operand(r, b_stride), y, whole = -1;
    Graph *g = r->m.g;
    for (int i = r->count - 1; i >= 0 && whole < 0; i--)
        if (g->tensor.at[r->tensor[i]].count == ROWS * COLUMNS && below(2) == 0)
            whole = r->tensor[i];
    whole = whole < 0 ? r->tensor[0] : whole;
    static const ferry_fn unary[] = {FERRY_NEG, FERRY_TANH, FERRY_SQUARE, FERRY_SILU, FERRY_GELU, FERRY_SIGMOID};
    static const ferry_fn binary[] = {FERRY_ADD, FERRY_SUB, FERRY_MUL, FERRY_MAX, FERRY_MIN};
    ferry_kernel call;
    int arg[FERRY_MAX_ARGS] = {-1, a, b};
    switch (below(8)) {
    case 0:
        call = call_unary(FERRY_OP_UNARY, FERRY_F32, unary[below(6)], ROWS * COLUMNS);
        arg[1] = whole;
        break;
    case 1:
        call = call_unary(FERRY_OP_UNARY_GRAD, FERRY_F32, FERRY_SILU, ROWS * COLUMNS);
        arg[1] = whole;
        arg[2] = r->tensor[0];
        arg[3] = -1;
        break;
    case 2: /* a copy that repeats or moves */
        call = call_copy(FERRY_F32, 2, dim, 0, dense, 0, a_stride, below(2) == 0 ? 1 : 0.5);
        break;
    case 3: /* added to in place */
        call = call_copy(FERRY_F32, 2, dim, 0, dense, 0, a_stride, below(2) == 0 ? 1 : -0.25);
        call.accumulate = true;
        arg[0] = whole;
        if (whole == a || g->tensor.at[whole].kind != TENSOR_VALUE)
            return;
        TRY_OK(graph_add_node(&r->m.d, g, "add", "Add", PHASE_FP, -1, &call, arg));
        return;
    case 4: { /* no element-wise kernel */
        const int64_t columns = COLUMNS;
        call = call_reduce(FERRY_F32, FERRY_MEAN, 2, dim, 1);
        arg[1] = whole;
        TRY_OK(graph_add_tensor(&r->m.d, g, graph_made_up_name(g, "mean"), TENSOR_VALUE, FERRY_F32, 1, &columns, &y));
        arg[0] = y;
        TRY_OK(graph_add_node(&r->m.d, g, "mean", "Mean", PHASE_FP, -1, &call, arg));
        r->tensor[r->count++] = y;
        return;
    }
    case 5:
        call = call_binary(FERRY_OP_BINARY_GRAD_A, FERRY_F32, FERRY_MUL, 2, dim, dense, b_stride);
        arg[1] = whole;
        arg[2] = -1;
        arg[3] = b;
        break;
    default:
        call = call_binary(FERRY_OP_BINARY, FERRY_F32, binary[below(5)], 2, dim, a_stride, b_stride);
        break;
    }
    TRY_OK(graph_add_tensor(&r->m.d, g, graph_made_up_name(g, "t"), TENSOR_VALUE, FERRY_F32, 2, dim, &y));
    arg[0] = y;
    TRY_OK(graph_add_node(&r->m.d, g, "t", "T", PHASE_FP, -1, &call, arg));
    r->tensor[r->count++] = y;
}

static void random_graph(Random *r, uint64_t from)
{
    seed = from;
    *r = (Random){0};
    make_open(&r->m, from);
    Graph *g = r->m.g;
    g->precision = FERRY_F32;
    const int64_t whole[] = {ROWS, COLUMNS}, columns = COLUMNS, row[] = {ROWS, 1};
    TRY_OK(graph_add_tensor(&r->m.d, g, "x", TENSOR_INPUT, FERRY_F32, 2, whole, &r->tensor[r->count++]));
    TRY_OK(graph_add_tensor(&r->m.d, g, "columns", TENSOR_INPUT, FERRY_F32, 1, &columns, &r->tensor[r->count++]));
    TRY_OK(graph_add_tensor(&r->m.d, g, "rows", TENSOR_INPUT, FERRY_F32, 2, row, &r->tensor[r->count++]));
    for (int i = 0; i < 3; i++)
        g->input[g->n_input++] = r->tensor[i];
    TRY_OK(graph_add_number(&r->m.d, g, FERRY_F32, 0.75, &r->tensor[r->count++]));
    for (int i = 0; i < 24; i++)
        random_node(r);
    g->forward = true;
    g->output = ARENA_NEW(g->arena, int, r->count);
    for (int i = 0; i < r->count; i++) /* the last ones, and some of the others */
        if (g->tensor.at[r->tensor[i]].kind == TENSOR_VALUE && (i >= r->count - 2 || below(6) == 0))
            g->output[g->n_output++] = r->tensor[i];
}

static void run_random(Random *r, Exec *e)
{
    TRY_OK(graph_liveness(&r->m.d, r->m.g));
    exec_open(e, r->m.g);
    for (int i = 0; i < r->m.g->n_input; i++) {
        const Tensor *t = &r->m.g->tensor.at[r->m.g->input[i]];
        for (int64_t k = 0; k < t->count; k++)
            ((float *)e->at[r->m.g->input[i]])[k] = (float)((double)((k * 7919 + i * 31) % 97) / 48.5 - 1);
    }
    exec_run(e, r->m.g->node.count);
}

static void test_random(void **state)
{
    (void)state;
    int fewer = 0;
    for (uint64_t s = 1; s <= 300; s++) {
        Random one, many;
        Exec a, b;
        random_graph(&one, s);
        random_graph(&many, s);
        TRY_OK(graph_prune(&many.m.d, many.m.g));
        TRY_OK(graph_prune(&one.m.d, one.m.g));
        TRY_OK(graph_fuse_chains(&one.m.d, one.m.g));
        fewer += one.m.g->node.count < many.m.g->node.count;
        run_random(&one, &a);
        run_random(&many, &b);
        for (int i = 0; i < one.m.g->n_output; i++) {
            const Tensor *t = &one.m.g->tensor.at[one.m.g->output[i]];
            const float *x = a.at[one.m.g->output[i]], *y = b.at[many.m.g->output[i]];
            for (int64_t e = 0; e < t->count; e++)
                if (x[e] != y[e] && !(isnan(x[e]) && isnan(y[e]))) {
                    Text text = {0};
                    graph_print(many.m.g, &text);
                    graph_print(one.m.g, &text);
                    fprintf(stderr, "%s", text.at);
                    text_free(&text);
                    fail_msg("graph %d: output %s element %d is %.9g, not %.9g", (int)s, t->name, (int)e, (double)x[e], (double)y[e]);
                }
        }
        exec_close(&a);
        exec_close(&b);
        make_close(&one.m);
        make_close(&many.m);
    }
    assert_true(fewer > 250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
