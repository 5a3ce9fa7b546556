/* profiler_test.h - a training graph small enough to compute by hand: ids -> Embedding -> Tanh -> Linear -> cross
 * entropy.
 *
 *   segment 0 -                       segment 1 embedding (layer 0)     segment 2 tanh
 *   segment 3 linear (layer 1)        segment 4 cross entropy
 * Unit 0 is the table, unit 1 the weight and the bias. Everything lives in the arena: graph_close must not see it. */
#ifndef FERRY_PROFILER_TEST_H
#define FERRY_PROFILER_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "profiler/make.h"

typedef struct TestShape {
    int64_t rows, vocab, hidden, classes;
    ferry_dtype precision;
} TestShape;

static const TestShape test_shape = {32, 1000, 64, 10, FERRY_F32};

enum {
    T_IDS,
    T_TABLE,
    T_X,
    T_H,
    T_W,
    T_B,
    T_LOGITS,
    T_LABELS,
    T_LOSS,
    T_LSE,
    T_COUNT,
    T_DLOGITS,
    T_DH,
    T_DX,
    T_DTABLE,
    T_DW,
    T_DB,
    T_TOTAL
};

static inline void test_tensor(Graph *g, int index, const char *name, TensorKind kind, ferry_dtype t, int64_t rows,
                               int64_t columns, int param)
{
    Tensor *x = &g->tensor.at[index];
    *x = (Tensor){.name = name,
                  .kind = kind,
                  .dtype = t,
                  .rank = 2,
                  .dim = {rows, columns},
                  .count = rows * columns,
                  .root = index,
                  .param = param,
                  .producer = -1,
                  .first_write = -1,
                  .last_use = -1};
    x->bytes = x->count * (int64_t)ferry_dtype_bytes(t);
}

static inline void test_node(Graph *g, const char *name, ferry_kernel call, Phase phase, int segment, const int *arg,
                             int n_arg)
{
    Node *n = &g->node.at[g->node.count];
    *n = (Node){
        .name = name, .onnx_op = "Op", .call = call, .phase = phase, .segment = segment, .origin = g->node.count};
    for (int i = 0; i < FERRY_MAX_ARGS; i++)
        n->arg[i] = i < n_arg ? arg[i] : -1;
    g->node.count++;
}

#define TEST_NODE(g, name, call, phase, segment, ...)                                                                  \
    test_node(g, name, call, phase, segment, (const int[]){__VA_ARGS__},                                               \
              (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))

static inline void test_param(Graph *g, int index, const char *name, int tensor, int grad, int unit)
{
    const Tensor *t = &g->tensor.at[tensor];
    g->param[index] = (Param){.name = name,
                              .tensor = tensor,
                              .grad = grad,
                              .trainable = true,
                              .unit = unit,
                              .count = t->count,
                              .bytes = t->bytes,
                              .file_dtype = t->dtype};
}

static inline Graph *test_graph(Arena *a, TestShape s)
{
    Graph *g = ARENA_NEW(a, Graph, 1);
    ferry_dtype t = s.precision;
    g->arena = a;
    g->precision = t;
    g->tensor.at = ARENA_NEW(a, Tensor, T_TOTAL);
    g->tensor.count = g->tensor.capacity = T_TOTAL;
    g->node.at = ARENA_NEW(a, Node, 16);
    g->node.capacity = 16;
    test_tensor(g, T_IDS, "ids", TENSOR_INPUT, FERRY_I64, s.rows, 1, -1);
    test_tensor(g, T_TABLE, "emb.weight", TENSOR_PARAM, t, s.vocab, s.hidden, 0);
    test_tensor(g, T_X, "x", TENSOR_VALUE, t, s.rows, s.hidden, -1);
    test_tensor(g, T_H, "h", TENSOR_VALUE, t, s.rows, s.hidden, -1);
    test_tensor(g, T_W, "head.weight", TENSOR_PARAM, t, s.hidden, s.classes, 1);
    test_tensor(g, T_B, "head.bias", TENSOR_PARAM, t, s.classes, 1, 2);
    test_tensor(g, T_LOGITS, "logits", TENSOR_VALUE, t, s.rows, s.classes, -1);
    test_tensor(g, T_LABELS, "labels", TENSOR_INPUT, FERRY_I64, s.rows, 1, -1);
    test_tensor(g, T_LOSS, "loss", TENSOR_VALUE, t, 1, 1, -1);
    test_tensor(g, T_LSE, "lse", TENSOR_VALUE, t, s.rows, 1, -1);
    test_tensor(g, T_COUNT, "count", TENSOR_VALUE, t, 1, 1, -1);
    test_tensor(g, T_DLOGITS, "grad.logits", TENSOR_VALUE, t, s.rows, s.classes, -1);
    test_tensor(g, T_DH, "grad.h", TENSOR_VALUE, t, s.rows, s.hidden, -1);
    test_tensor(g, T_DX, "grad.x", TENSOR_VALUE, t, s.rows, s.hidden, -1);
    test_tensor(g, T_DTABLE, "grad:emb.weight", TENSOR_GRADIENT, t, s.vocab, s.hidden, 0);
    test_tensor(g, T_DW, "grad:head.weight", TENSOR_GRADIENT, t, s.hidden, s.classes, 1);
    test_tensor(g, T_DB, "grad:head.bias", TENSOR_GRADIENT, t, s.classes, 1, 2);

    ferry_kernel rows = {.dtype = t, .dtype2 = FERRY_I64, .m = s.rows, .k = s.vocab, .n = s.hidden, .alpha = 1};
    ferry_kernel line = {.dtype = t, .dtype2 = t, .m = s.rows, .k = s.hidden, .n = s.classes, .alpha = 1};
    ferry_kernel loss = {
        .dtype = t, .dtype2 = FERRY_I64, .m = s.rows, .k = 1, .n = s.classes, .alpha = 1, .ignore_index = -100};
    ferry_kernel tanh_ = {.dtype = t, .dtype2 = t, .fn = FERRY_TANH, .n = s.rows * s.hidden, .alpha = 1};
    ferry_kernel sum = {.dtype = t,
                        .dtype2 = t,
                        .op = FERRY_OP_REDUCE,
                        .fn = FERRY_SUM,
                        .rank = 2,
                        .dim = {s.rows, s.classes},
                        .axes = 1,
                        .alpha = 1};
#define OP_OF(k, o) ((k).op = (o), (k))
    TEST_NODE(g, "emb", OP_OF(rows, FERRY_OP_EMBEDDING), PHASE_FP, 1, T_X, T_TABLE, T_IDS);
    TEST_NODE(g, "tanh", OP_OF(tanh_, FERRY_OP_UNARY), PHASE_FP, 2, T_H, T_X);
    TEST_NODE(g, "head", OP_OF(line, FERRY_OP_LINEAR), PHASE_FP, 3, T_LOGITS, T_H, T_W, T_B);
    TEST_NODE(g, "loss", OP_OF(loss, FERRY_OP_XENT), PHASE_FP, 4, T_LOSS, T_LSE, T_COUNT, T_LOGITS, T_LABELS);
    g->n_forward = g->node.count;
    TEST_NODE(g, "loss", OP_OF(loss, FERRY_OP_XENT_GRAD), PHASE_BP, 4, T_DLOGITS, T_LOGITS, T_LSE, T_COUNT, T_LABELS,
              -1);
    TEST_NODE(g, "head", OP_OF(line, FERRY_OP_LINEAR_DX), PHASE_BP, 3, T_DH, T_DLOGITS, T_W);
    TEST_NODE(g, "head", OP_OF(line, FERRY_OP_LINEAR_DW), PHASE_BP, 3, T_DW, T_H, T_DLOGITS);
    TEST_NODE(g, "head", sum, PHASE_BP, 3, T_DB, T_DLOGITS);
    TEST_NODE(g, "tanh", OP_OF(tanh_, FERRY_OP_UNARY_GRAD), PHASE_BP, 2, T_DX, T_DH, -1, T_H);
    TEST_NODE(g, "emb", OP_OF(rows, FERRY_OP_EMBEDDING_GRAD), PHASE_BP, 1, T_DTABLE, T_DX, T_IDS);
#undef OP_OF

    static int input[] = {T_IDS, T_LABELS}, unit_0[] = {0}, unit_1[] = {1, 2};
    g->n_input = 2;
    g->input = input;
    g->loss = T_LOSS;
    g->n_param = 3;
    g->param = ARENA_NEW(a, Param, 3);
    test_param(g, 0, "emb.weight", T_TABLE, T_DTABLE, 0);
    test_param(g, 1, "head.weight", T_W, T_DW, 1);
    test_param(g, 2, "head.bias", T_B, T_DB, 1);
    g->n_unit = 2;
    g->unit = ARENA_NEW(a, Unit, 2);
    g->unit[0] = (Unit){
        .name = "emb", .n_param = 1, .param = unit_0, .bytes = g->param[0].bytes, .grad_bytes = g->param[0].bytes};
    g->unit[1] = (Unit){.name = "head", .n_param = 2, .param = unit_1, .bytes = g->param[1].bytes + g->param[2].bytes};
    g->unit[1].grad_bytes = g->unit[1].bytes;
    g->n_layer = 2;
    g->n_segment = 5;
    g->layer = ARENA_NEW(a, Layer, 2);
    static int of_0[] = {0}, of_1[] = {1};
    g->layer[0] = (Layer){.name = "emb", .op = "Embedding", .node = 0, .n_unit = 1, .unit = of_0};
    g->layer[1] = (Layer){.name = "head", .op = "Linear", .node = 2, .n_unit = 1, .unit = of_1};
    return g;
}

/* A model's stand-in, so that the graph has a hash. */
static inline void test_graph_model(Arena *a, Graph *g)
{
    Model *m = ARENA_NEW(a, Model, 1);
    m->path = "model.onnx";
    strcpy(m->hash, "00112233445566778899aabbccddeeff");
    g->model = m;
}

/* A device whose numbers are easy to divide by. Rates in bytes (operations, parameters) a nanosecond: product 1000 *
 * 0.5, batched 1000 * 0.25, vector 100, memory 100, h2d 2, d2h 1, DHA read 0.5, DHA write 0.25, CPU memory 10, update
 * 0.1. */
#define TEST_DEVICE_LINK                                                                                               \
    "link:\n"                                                                                                          \
    "  h2d: {latency_ns: 5, mb_per_s: 2000}\n"                                                                         \
    "  d2h: {latency_ns: 4, mb_per_s: 1000}\n"                                                                         \
    "  dha_read: {latency_ns: 7, mb_per_s: 500}\n"                                                                     \
    "  dha_write: {latency_ns: 3, mb_per_s: 250}\n"
#define TEST_DEVICE_HEAD                                                                                               \
    "schema: ferryc/device/1\n"                                                                                        \
    "name: \"test\"\n"                                                                                                 \
    "memory_bytes: 1000000\n"                                                                                          \
    "host_memory_bytes: 2000000\n"                                                                                     \
    "chunk_bytes: 4096\n"                                                                                              \
    "alignment_bytes: 64\n"                                                                                            \
    "alloc_ns: 9\n"                                                                                                    \
    "precision:\n"                                                                                                     \
    "  fp32: {product_gflop_per_s: 1000, vector_gflop_per_s: 100, update_mparam_per_s: 100}\n"                         \
    "efficiency_permille: {product: 500, batched: 250, elementwise: 1000}\n"                                           \
    "launch_ns: 10\n"                                                                                                  \
    "memory_mb_per_s: 100000\n"                                                                                        \
    "cpu: {launch_ns: 20, memory_mb_per_s: 10000}\n"                                                                   \
    "rate_permille:\n"                                                                                                 \
    "  dha_read: {dha_read: 1000, dha_write: 1000, h2d: 910, d2h: 1000, update: 700}\n"                                \
    "  dha_write: {dha_read: 1000, dha_write: 1000, h2d: 980, d2h: 1000, update: 710}\n"                               \
    "  h2d: {dha_read: 90, dha_write: 100, h2d: 1000, d2h: 900, update: 650}\n"                                        \
    "  d2h: {dha_read: 110, dha_write: 120, h2d: 901, d2h: 1000, update: 660}\n"                                       \
    "  update: {dha_read: 800, dha_write: 810, h2d: 820, d2h: 830, update: 1000}\n"
#define TEST_DEVICE TEST_DEVICE_HEAD TEST_DEVICE_LINK

/* The profile of the graph on the device text; fails the test when that fails. */
static inline Profile *test_profile(Arena *a, const Graph *g, const char *device)
{
    Diag d = {0};
    DeviceModel *m = NULL;
    Profile *p = NULL;
    ModelOptions options = {.path = "model.onnx", .precision = g->precision};
    if (device_model_parse(&d, a, "device.yaml", device, strlen(device), &m) != ST_OK ||
        profile_frame(&d, a, g, &options, &p) != ST_OK || device_model_apply(&d, a, m, g, p) != ST_OK)
        fail_msg("%s", d.message);
    return p;
}

/* A folder of its own, with an empty file model.onnx in it. */
static inline char *test_folder(Arena *a)
{
    const char *base = getenv("TMPDIR");
    char *folder = arena_printf(a, "%s/profiler-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(folder));
    FILE *f = fopen(arena_printf(a, "%s/model.onnx", folder), "w");
    assert_non_null(f);
    fclose(f);
    return folder;
}

static inline void test_folder_remove(Arena *a, const char *folder)
{
    static const char *const names[] = {"model.onnx", "a.yaml", "b.yaml", "device.yaml", "sub/a.yaml", "sub"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        remove(arena_printf(a, "%s/%s", folder, names[i]));
    assert_int_equal(rmdir(folder), 0);
}

static inline void test_write(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

#endif
