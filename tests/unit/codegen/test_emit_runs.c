/* test_emit_runs.c - the emitted program computes what the graph says: a step of the trainer and the graph's kernels
 * launched one after the other give the same loss and the same gradient norm, to the bit. Over operators that no model
 * of the end-to-end tests has, so that every printer of calls is run. */
#include "tiny.h"

#include <math.h>

/* ---- the model
 * ------------------------------------------------------------------------------------------------------- */

static void node(Text *graph, const char *op, const char *const *in, int n_in, const char *const *out, int n_out,
                 Text *attributes)
{
    Text n = {0};
    for (int i = 0; i < n_in; i++)
        pb_text(&n, 1, in[i]);
    for (int i = 0; i < n_out; i++)
        pb_text(&n, 2, out[i]);
    pb_text(&n, 3, out[0]);
    pb_text(&n, 4, op);
    if (attributes) {
        text_add_bytes(&n, attributes->at, attributes->size);
        text_free(attributes);
    }
    pb_message(graph, 1, &n);
}
#define IN(...) (const char *[]){__VA_ARGS__}, (int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(char *))

static void attr_int(Text *to, const char *name, int64_t value)
{
    Text a = {0};
    pb_text(&a, 1, name);
    pb_int(&a, 3, (uint64_t)value);
    pb_int(&a, 20, 2);
    pb_message(to, 5, &a);
}

static void attr_ints(Text *to, const char *name, int count, const int64_t *value)
{
    Text a = {0};
    pb_text(&a, 1, name);
    for (int i = 0; i < count; i++)
        pb_int(&a, 8, (uint64_t)value[i]);
    pb_int(&a, 20, 7);
    pb_message(to, 5, &a);
}

static void ints(Text *graph, const char *name, int count, const int64_t *value)
{
    Text t = {0};
    pb_int(&t, 1, (uint64_t)count);
    pb_int(&t, 2, 7);
    pb_text(&t, 8, name);
    pb_bytes(&t, 9, value, (size_t)count * sizeof *value);
    pb_message(graph, 5, &t);
}

static void floats(Text *graph, const char *name, int rank, const int64_t *dim, int seed)
{
    Text t = tiny_tensor(name, rank, dim, seed);
    pb_message(graph, 5, &t);
}

static void number(Text *graph, const char *name, float value)
{
    Text t = {0};
    pb_int(&t, 2, 1);
    pb_text(&t, 8, name);
    pb_bytes(&t, 9, &value, sizeof value);
    pb_message(graph, 5, &t);
}

static void write_model(const char *path)
{
    Text g = {0}, model = {0}, opset = {0}, a = {0};
    node(&g, "Gemm", IN("x", "w", "b"), IN("g"), NULL);
    node(&g, "Less", IN("g", "tenth"), IN("small"), NULL);
    node(&g, "Where", IN("small", "b", "g"), IN("chosen"), NULL); /* of a parameter: no part of a chain */
    a = (Text){0};
    attr_int(&a, "to", 1);
    node(&g, "Cast", IN("ids"), IN("as_float"), &a);
    a = (Text){0};
    attr_int(&a, "axis", 1);
    node(&g, "GatherElements", IN("g", "ids"), IN("gathered"), &a);
    node(&g, "Add", IN("as_float", "gathered"), IN("updates"), NULL);
    a = (Text){0};
    attr_int(&a, "axis", 1);
    node(&g, "ScatterElements", IN("chosen", "ids", "updates"), IN("scattered"), &a);
    node(&g, "TopK", IN("scattered", "three"), IN("largest", "places"), NULL);
    node(&g, "Reshape", IN("g", "image_shape"), IN("image"), NULL);
    a = (Text){0};
    attr_ints(&a, "kernel_shape", 2, (int64_t[]){2, 2});
    attr_ints(&a, "pads", 4, (int64_t[]){0, 1, 1, 1});
    attr_int(&a, "count_include_pad", 1);
    node(&g, "AveragePool", IN("image"), IN("pooled"), &a);
    a = (Text){0};
    attr_ints(&a, "pads", 4, (int64_t[]){0, 0, 1, 1});
    attr_ints(&a, "strides", 2, (int64_t[]){2, 1});
    node(&g, "ConvTranspose", IN("pooled", "kernel", "kernel_bias"), IN("spread"), &a);
    a = (Text){0};
    attr_ints(&a, "kernel_shape", 2, (int64_t[]){2, 3});
    attr_ints(&a, "dilations", 2, (int64_t[]){1, 2});
    node(&g, "MaxPool", IN("spread"), IN("most"), &a);
    node(&g, "Mul", IN("largest", "largest"), IN("squares"), NULL);
    static const char *const sums[][2] = {{"squares", "s1"}, {"most", "s2"}, {"scattered", "s3"}};
    for (int i = 0; i < 3; i++) {
        a = (Text){0};
        attr_int(&a, "keepdims", 0);
        node(&g, i == 2 ? "ReduceMean" : "ReduceSum", &sums[i][0], 1, &sums[i][1], 1, &a);
    }
    node(&g, "Sum", IN("s1", "s2", "s3"), IN("loss"), NULL);
    pb_text(&g, 2, "operators");
    floats(&g, "w", 2, (int64_t[]){6, 8}, 3);
    floats(&g, "b", 1, (int64_t[]){8}, 5);
    floats(&g, "kernel", 4, (int64_t[]){1, 2, 2, 2}, 7);
    floats(&g, "kernel_bias", 1, (int64_t[]){2}, 9);
    number(&g, "tenth", 0.1f);
    ints(&g, "three", 1, (int64_t[]){3});
    ints(&g, "image_shape", 4, (int64_t[]){1, 1, 4, 8});
    tiny_info(&g, 11, "x", 1, 2, (int64_t[]){4, 6});
    tiny_info(&g, 11, "ids", 7, 2, (int64_t[]){4, 2});
    tiny_info(&g, 12, "loss", 1, 0, NULL);
    pb_int(&opset, 2, 17);
    pb_int(&model, 1, 8);
    pb_message(&model, 7, &g);
    pb_message(&model, 8, &opset);
    Diag d = {0};
    assert_int_equal(file_write(&d, path, model.at, model.size), ST_OK);
    text_free(&model);
}

static float X[24];
static const int64_t IDS[8] = {0, 7, 3, 1, 6, 2, 5, 4};

/* ---- the graph, kernel by kernel --------------------------------------------------------------------------------- */

static void launch_all(const Graph *g, double *loss, double *norm)
{
    ferry_device *device;
    ferry_stream *stream;
    assert_int_equal(ferry_device_open("host", &device), FERRY_OK);
    assert_int_equal(ferry_stream_open(device, FERRY_STREAM_COMPUTE, &stream), FERRY_OK);
    void **at = calloc((size_t)g->tensor.count, sizeof *at);
    ferry_pool *pool;
    int64_t bytes = 0, offset = 0;
    for (int i = 0; i < g->tensor.count; i++)
        bytes += (g->tensor.at[i].bytes + 255) / 256 * 256;
    assert_int_equal(ferry_pool_open(device, bytes, &pool), FERRY_OK);
    for (int i = 0; i < g->tensor.count; i++)
        if (g->tensor.at[i].root == i) {
            at[i] = ferry_pool_at(pool, offset);
            offset += (g->tensor.at[i].bytes + 255) / 256 * 256;
        }
    for (int i = 0; i < g->tensor.count; i++) {
        const Tensor *t = &g->tensor.at[i];
        at[i] = at[t->root];
        const void *from = t->kind == TENSOR_CONST   ? t->data
                           : t->kind == TENSOR_PARAM ? g->param[t->param].data
                           : t->kind == TENSOR_INPUT ? (t->dtype == FERRY_I64 ? (const void *)IDS : X)
                                                     : NULL;
        if (from && t->root == i)
            memcpy(at[i], from, (size_t)t->bytes);
    }
    for (int i = 0; i < g->node.count; i++) {
        ferry_kernel call = node_call(g, &g->node.at[i], at);
        if (ferry_launch(stream, &call) != FERRY_OK)
            fail_msg("%s", ferry_error());
    }
    assert_int_equal(ferry_stream_sync(stream), FERRY_OK);
    assert_int_equal(ferry_device_status(device), FERRY_OK);
    *loss = (double)*(const float *)at[g->loss];
    double sum = 0;
    for (int p = 0; p < g->n_param; p++) {
        double part = 0;
        const float *grad = at[g->param[p].grad];
        for (int64_t i = 0; i < g->param[p].count; i++)
            part += (double)grad[i] * (double)grad[i];
        sum += part;
    }
    *norm = sqrt(sum);
    ferry_stream_close(stream);
    ferry_pool_close(pool);
    ferry_device_close(device);
    free(at);
}

/* ---- the test ---------------------------------------------------------------------------------------------------- */

static void test_step(void **state)
{
    (void)state;
    static const char *const algorithms[] = {"native-offload", "dha"}; /* arguments on the device, and on the host */
    for (int i = 0; i < 24; i++)
        X[i] = (float)((i * 53) % 37 - 18) / 16;
    for (int k = 0; k < 2; k++) {
        Arena *a = arena_open();
        char *dir = tiny_dir(a);
        Diag d = {.quiet = true};
        Tiny t;
        write_model(path_join(a, dir, "m.onnx"));
        if (tiny_road(&d, a, dir, NULL, algorithms[k], &(EmitOptions){0}, &t) != ST_OK)
            fail_msg("%s", d.message);
        bool seen[FERRY_OP_COUNT] = {false};
        for (int i = 0; i < t.graph[1]->node.count; i++)
            seen[t.graph[1]->node.at[i].call.op] = true;
        static const ferry_op wanted[] = {FERRY_OP_WHERE,   FERRY_OP_CAST,         FERRY_OP_RAVEL,
                                          FERRY_OP_SCATTER, FERRY_OP_SCATTER_GRAD, FERRY_OP_TOPK,
                                          FERRY_OP_AVGPOOL, FERRY_OP_AVGPOOL_GRAD, FERRY_OP_CONV_DX,
                                          FERRY_OP_CONV_DW, FERRY_OP_MAXPOOL,      FERRY_OP_MAXPOOL_GRAD,
                                          FERRY_OP_FUSED};
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            if (!seen[wanted[i]])
                fail_msg("the graph has no %s", ferry_op_get(wanted[i])->name);
        double loss, norm;
        launch_all(t.graph[1], &loss, &norm);
        tiny_close(&t);

        tiny_compile(dir);
        char *data = path_join(a, dir, "data");
        assert_int_equal(mkdir(data, 0777), 0);
        const ferry_tensor x = {"x", FERRY_F32, 3, {1, 4, 6}, X},
                           ids = {"ids", FERRY_I64, 3, {1, 4, 2}, (void *)(uintptr_t)IDS};
        assert_int_equal(ferry_npy_write(arena_printf(a, "%s/x.npy", data), &x), FERRY_OK);
        assert_int_equal(ferry_npy_write(arena_printf(a, "%s/ids.npy", data), &ids), FERRY_OK);
        assert_true(tiny_shell("make -s -C %s/out FERRY=%s CFLAGS='-O0 %s' LDFLAGS='%s'", dir, FERRY_BUILD_DIR,
                               FERRY_TEST_FLAGS, FERRY_TEST_FLAGS));
        assert_true(tiny_shell("%s/out/trainer --data %s --steps 1 --log %s/log >%s/said", dir, data, dir, dir));
        uint8_t *log;
        int64_t size;
        double got_loss = 0, got_norm = 0;
        assert_int_equal(file_read(&d, arena_printf(a, "%s/log", dir), 1 << 16, &log, &size), ST_OK);
        assert_int_equal(sscanf((char *)log, "{\"step\": 1, \"loss\": %lf, \"grad_norm\": %lf", &got_loss, &got_norm),
                         2);
        base_free(log);
        print_message("%s: loss %.17g, gradient norm %.17g\n", algorithms[k], got_loss, got_norm);
        assert_true(norm > 0.01);
        if (got_loss != loss || fabs(got_norm - norm) > 1e-12 * norm)
            fail_msg("the graph gives loss %.17g, gradient norm %.17g", loss, norm);
        tiny_remove(dir);
        arena_close(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
