/* Fused kernels against the composition that they replace, in fp64: loss and gradients of the tiny models, in the spelling
 * of each exporter. */
#include <math.h>

#include "tests/unit/graph/tiny_run.h"

static void run(Run *r, const char *family, const char *file, const char *loss, bool composed)
{
    DimBinding dims[] = {{"batch", 4}, {"seq", 32}};
    char path[512];
    snprintf(path, sizeof(path), MODELS "%s/%s.onnx", family, file);
    ModelOptions options = {.path = path,
                            .n_dim = strcmp(family, "vit") == 0 ? 1 : 2,
                            .dim = dims,
                            .loss = loss,
                            .precision = FERRY_F64,
                            .composed = composed};
    *r = (Run){.d = {.quiet = true}, .arena = arena_open()};
    if (graph_from_options(&r->d, r->arena, &options, &r->model, &r->g) != ST_OK) {
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

/* Kernels, and steps of programs. */
static int count_op(const Graph *g, ferry_op op, ferry_fn fn)
{
    int count = 0;
    for (int i = 0; i < g->node.count; i++) {
        const ferry_kernel *c = &g->node.at[i].call;
        count += c->op == op && (fn == FERRY_FN_NONE || c->fn == fn);
        for (int s = 0; c->op == FERRY_OP_FUSED && s < c->program.steps; s++)
            count += c->program.step[s].op == op && c->program.step[s].fn == fn;
    }
    return count;
}

/* Bytes of activations that the backward pass reads. */
static int64_t kept_bytes(const Graph *g)
{
    int64_t bytes = 0;
    for (int i = 0; i < g->tensor.count; i++) {
        const Tensor *t = &g->tensor.at[i];
        if (t->root == i && t->kind == TENSOR_VALUE && t->first_write < g->n_forward && t->last_use >= g->n_forward)
            bytes += t->bytes;
    }
    return bytes;
}

/* |a - b| / |b| over all gradients */
static double distance(const Run *a, const Run *b)
{
    double difference = 0, norm = 0;
    assert_int_equal(a->g->n_param, b->g->n_param);
    for (int p = 0; p < a->g->n_param; p++) {
        const double *x = a->e.at[a->g->param[p].grad], *y = b->e.at[b->g->param[p].grad];
        assert_string_equal(a->g->param[p].name, b->g->param[p].name);
        for (int64_t i = 0; i < a->g->param[p].count; i++) {
            difference += (x[i] - y[i]) * (x[i] - y[i]);
            norm += y[i] * y[i];
        }
    }
    return sqrt(difference / norm);
}

/* tolerance: older exporters round the activation's constants to single precision. */
static void compare(const char *family, const char *file, const char *loss, ferry_fn activation, double tolerance)
{
    Run fused, composed;
    run(&fused, family, file, loss, false);
    run(&composed, family, file, loss, true);
    double by_loss = fabs(exec_loss(&fused.e) / exec_loss(&composed.e) - 1), by_gradient = distance(&fused, &composed);
    print_message("%s %s: %d nodes for %d, loss %.2g, gradients %.2g\n", family, file, fused.g->node.count,
                  composed.g->node.count, by_loss, by_gradient);
    assert_true(by_loss <= tolerance && by_gradient <= tolerance);
    assert_true(kept_bytes(fused.g) < kept_bytes(composed.g) * 3 / 4);
    assert_true(count_op(fused.g, FERRY_OP_UNARY, activation) >= 2);
    assert_int_equal(count_op(composed.g, FERRY_OP_UNARY, activation), 0);
    assert_true(count_op(fused.g, FERRY_OP_LAYERNORM, FERRY_FN_NONE) >= 5);
    finish(&fused);
    finish(&composed);
}

static void test_gpt2(void **state)
{
    (void)state;
    compare("gpt2", "loss-ts", NULL, FERRY_GELU_TANH, 1e-7);
    compare("gpt2", "ts13", "cross_entropy", FERRY_GELU_TANH, 1e-7);
    compare("gpt2", "dynamo", "cross_entropy", FERRY_GELU_TANH, 1e-7);
}

static void test_bert(void **state)
{
    (void)state;
    compare("bert", "loss-ts", NULL, FERRY_GELU, 1e-7);
    compare("bert", "dynamo", "cross_entropy", FERRY_GELU, 1e-7);
    compare("bert", "dynamo23", "cross_entropy", FERRY_GELU, 1e-12);
}

static void test_llama(void **state)
{
    (void)state;
    compare("llama", "loss-ts", NULL, FERRY_SILU, 1e-12);
    compare("llama", "dynamo", "cross_entropy", FERRY_SILU, 1e-12);
    Run r;
    run(&r, "llama", "dynamo", "cross_entropy", false);
    assert_int_equal(count_op(r.g, FERRY_OP_ROTARY, FERRY_FN_NONE), 8); /* q and k of two layers, and their gradients */
    assert_int_equal(count_op(r.g, FERRY_OP_COPY, FERRY_FN_NONE), 0);
    finish(&r);
}

static void test_vit(void **state)
{
    (void)state;
    compare("vit", "loss-ts", NULL, FERRY_GELU, 1e-7);
}

/* GPT-2 of 124M parameters, batch 8 x 512: what is kept for the backward pass in fp32. */
static void test_memory(void **state)
{
    (void)state;
    DimBinding dims[] = {{"batch", 8}, {"seq", 512}};
    int64_t kept[2];
    for (int composed = 0; composed < 2; composed++) {
        Diag d = {.quiet = true};
        Arena *arena = arena_open();
        Model *model;
        Graph *g;
        ModelOptions options = {.path = MODELS "full/gpt2-ts.onnx", .n_dim = 2, .dim = dims, .loss = "cross_entropy",
                                .precision = FERRY_F32, .allow_missing_data = true, .composed = composed == 1};
        assert_int_equal(graph_from_options(&d, arena, &options, &model, &g), ST_OK);
        kept[composed] = kept_bytes(g);
        graph_close(g);
        model_close(model);
        arena_close(arena);
    }
    print_message("GPT-2, 8 x 512: %lld MiB are kept, composed %lld MiB\n", (long long)(kept[0] >> 20),
                  (long long)(kept[1] >> 20));
    assert_true(kept[0] < kept[1] / 10 * 6);
}

/* ---- what must stay apart --------------------------------------------------------------------------------------- */

static int number(Make *m, double value)
{
    return make_const(m, FERRY_F64, 0, NULL, memcpy(make_data(m, 1, 0, 0), &value, sizeof(value)));
}

static void test_activations(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        Make m;
        make_open(&m, 1);
        int x = make_param(&m, 2, (int64_t[]){3, 5}, -1, 1), y;
        if (kind == 0) { /* x / (1 + exp(-x)) */
            int e = make_unary(&m, FERRY_EXP, make_unary(&m, FERRY_NEG, x));
            y = make_binary(&m, FERRY_DIV, x, make_binary(&m, FERRY_ADD, number(&m, 1), e));
        } else { /* x * sigmoid(x); x * sigmoid(1.702 x), another function; of a sigmoid that is needed elsewhere */
            int s = make_unary(&m, FERRY_SIGMOID, kind == 2 ? make_binary(&m, FERRY_MUL, x, number(&m, 1.702)) : x);
            y = make_binary(&m, FERRY_MUL, s, x);
            y = kind == 3 ? make_binary(&m, FERRY_SUB, y, s) : y;
        }
        make_loss(&m, y);
        assert_int_equal(graph_fuse_activations(&m.d, m.g), ST_OK);
        assert_int_equal(count_op(m.g, FERRY_OP_UNARY, FERRY_SILU), kind < 2);
        make_check_gradients(&m);
        make_close(&m);
    }
}

static int make_mean(Make *m, int x, uint32_t axes)
{
    Tensor t = m->g->tensor.at[x];
    int64_t dim[] = {axes & 1 ? 1 : t.dim[0], axes & 2 ? 1 : t.dim[1]};
    int y = make_value(m, t.dtype, 2, dim);
    ferry_kernel mean = call_reduce(t.dtype, FERRY_MEAN, 2, t.dim, axes);
    make_node(m, &mean, (int[]){y, x});
    return y;
}

static void test_norms(void **state)
{
    (void)state;
    for (int kind = 0; kind < 5; kind++) {
        Make m;
        make_open(&m, 2);
        const int64_t n = 7;
        int x = make_param(&m, 2, (int64_t[]){4, n}, -1, 1), scale = make_param(&m, 1, &n, 0.5, 2);
        uint32_t axes = kind == 2 ? 1 : 2; /* over rows: no normalization of rows */
        int u = kind == 3 ? make_binary(&m, FERRY_SUB, x, make_mean(&m, x, 2)) : x;
        int square = kind == 1 ? make_binary(&m, FERRY_POW, u, number(&m, 2)) : make_unary(&m, FERRY_SQUARE, u);
        int v = make_binary(&m, FERRY_ADD, make_mean(&m, square, axes), number(&m, 1e-3));
        int root = make_unary(&m, FERRY_SQRT, v);
        int h = kind % 2 == 0 ? make_binary(&m, FERRY_DIV, u, root)
                              : make_binary(&m, FERRY_MUL, make_unary(&m, FERRY_RECIPROCAL, root), u);
        int y = make_binary(&m, FERRY_MUL, h, scale);
        y = kind == 4 ? make_binary(&m, FERRY_ADD, y, root) : y; /* the deviation is needed elsewhere */
        make_loss(&m, y);
        assert_int_equal(graph_fuse_norms(&m.d, m.g), ST_OK);
        assert_int_equal(count_op(m.g, FERRY_OP_LAYERNORM, FERRY_FN_NONE), kind != 2 && kind != 4);
        for (int i = 0; i < m.g->node.count; i++)
            if (m.g->node.at[i].call.op == FERRY_OP_LAYERNORM)
                assert_int_equal(m.g->node.at[i].arg[1] >= 0, kind == 3);
        make_check_gradients(&m);
        make_close(&m);
    }
}

static int make_matmul(Make *m, int a, int b, bool trans_b)
{
    Tensor ta = m->g->tensor.at[a], tb = m->g->tensor.at[b];
    ferry_kernel c = call_new(FERRY_OP_MATMUL, FERRY_F64);
    c.m = ta.dim[1];
    c.k = ta.dim[2];
    c.n = tb.dim[trans_b ? 1 : 2];
    c.trans_b = trans_b;
    c.rank = 1;
    c.dim[0] = ta.dim[0];
    c.stride[0][0] = c.m * c.n;
    c.stride[1][0] = c.m * c.k;
    c.stride[2][0] = c.k * c.n;
    int y = make_value(m, FERRY_F64, 3, (int64_t[]){ta.dim[0], c.m, c.n});
    make_node(m, &c, (int[]){y, a, b});
    return y;
}

static void test_attention(void **state)
{
    (void)state;
    enum { PLAIN, MASK, CAUSAL, TRAINED_MASK, SCALED_MASK, READ_TWICE, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        Make m;
        make_open(&m, 3);
        const int64_t rows = 4, size = 3, square[] = {rows, rows};
        int part[3];
        for (int i = 0; i < 3; i++) /* a parameter itself is no activation: something is computed from it */
            part[i] = make_unary(&m, FERRY_TANH, make_param(&m, 3, (int64_t[]){2, rows, size}, -1, 1));
        int s = make_binary(&m, FERRY_MUL, make_matmul(&m, part[0], part[1], true), number(&m, 0.7));
        double *mask = make_data(&m, rows * rows, -1, 1);
        for (int i = 0; i < rows * rows && kind == CAUSAL; i++)
            mask[i] = i % rows <= i / rows ? 0 : -3.4e38;
        if (kind == TRAINED_MASK)
            s = make_binary(&m, FERRY_ADD, s, make_param(&m, 2, square, -1, 1));
        else if (kind != PLAIN)
            s = make_binary(&m, FERRY_ADD, s, make_const(&m, FERRY_F64, 2, square, mask));
        if (kind == SCALED_MASK)
            s = make_binary(&m, FERRY_MUL, s, number(&m, 2));
        int p = make_value(&m, FERRY_F64, 3, (int64_t[]){2, rows, rows});
        ferry_kernel softmax = call_new(FERRY_OP_SOFTMAX, FERRY_F64);
        softmax.m = 2 * rows;
        softmax.n = rows;
        make_node(&m, &softmax, (int[]){p, s});
        int y = make_matmul(&m, p, part[2], false);
        if (kind == READ_TWICE)
            y = make_matmul(&m, p, y, false);
        make_loss(&m, y);
        assert_int_equal(graph_fuse_attention(&m.d, m.g), ST_OK);
        assert_int_equal(graph_prune(&m.d, m.g), ST_OK);
        assert_int_equal(count_op(m.g, FERRY_OP_ATTENTION, FERRY_FN_NONE), kind <= CAUSAL);
        for (int i = 0; i < m.g->node.count; i++)
            if (m.g->node.at[i].call.op == FERRY_OP_ATTENTION) {
                assert_int_equal(m.g->node.at[i].call.attention.causal, kind == CAUSAL);
                assert_int_equal(m.g->node.at[i].arg[5] >= 0, kind == MASK);
            }
        make_check_gradients(&m);
        make_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_bert),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_vit),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
