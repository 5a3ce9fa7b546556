/* Fused kernels against the composition that they replace, in fp64: loss and gradients of the tiny models, in the spelling
 * of each exporter. */
#include <math.h>

#include "tests/unit/graph/graph_exec.h"

#define MODELS FERRY_SOURCE_DIR "/tests/models/"

typedef struct Run {
    Diag d;
    Arena *arena;
    Model *model;
    Graph *g;
    Exec e;
} Run;

static void feed(Run *r, const char *family)
{
    for (int i = 0; i < r->g->n_input; i++) {
        char path[512];
        int t = r->g->input[i];
        const Tensor *x = &r->g->tensor.at[t];
        snprintf(path, sizeof(path), MODELS "%s/data/%s.npy", family, x->name);
        ferry_npy *file;
        assert_int_equal(ferry_npy_open(path, &file), FERRY_OK);
        const ferry_tensor *from = ferry_npy_tensor(file);
        assert_int_equal(ferry_convert(r->e.at[t], x->dtype, from->data, from->dtype, x->count), FERRY_OK);
        ferry_npy_close(file);
    }
}

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

static int count_op(const Graph *g, ferry_op op, ferry_fn fn)
{
    int count = 0;
    for (int i = 0; i < g->node.count; i++)
        count += g->node.at[i].call.op == op && (fn == FERRY_FN_NONE || g->node.at[i].call.fn == fn);
    return count;
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
}

static void test_vit(void **state)
{
    (void)state;
    compare("vit", "loss-ts", NULL, FERRY_GELU, 1e-7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_bert),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_vit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
