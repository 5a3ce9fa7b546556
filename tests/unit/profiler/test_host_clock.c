/* Measuring on the host: every quantity is there, larger work takes longer, contents are valid, devices are told apart.
 */
#include "profiler_test.h"

#include <math.h>

#include "profiler/bench.h"

static Profile *measure(Arena *a, TestShape shape, int repeats)
{
    Diag d = {0};
    Profile *p;
    Graph *g = test_graph(a, shape);
    test_graph_model(a, g);
    ModelOptions model = {.path = "model.onnx", .precision = shape.precision};
    ProfileOptions options = {.device = "host", .warmup = 1, .repeats = repeats};
    if (profile_make(&d, a, g, &model, &options, &p) != ST_OK)
        fail_msg("%s", d.message);
    return p;
}

static void every_quantity(void **state)
{
    (void)state;
    Arena *a = arena_open();
    for (int precision = 0; precision < 2; precision++) {
        TestShape shape = {32, 7, 64, 5, precision ? FERRY_F64 : FERRY_F32};
        Profile *p = measure(a, shape, 3);
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < 2; k++)
                assert_true(p->layer[i].fp[k].median_ns > 0);
            for (int k = 0; k < 4; k++)
                assert_true(p->layer[i].bp[k / 2][k % 2].median_ns > 0 && p->layer[i].bp[k / 2][k % 2].spread_ns >= 0);
            assert_true(p->unit[i].load.median_ns > 0);
            assert_true(p->unit[i].store.median_ns > 0);
            assert_true(p->unit[i].norm.median_ns > 0);
            assert_true(p->unit[i].update.median_ns > 0);
        }
        /* nothing before the first layer; an embedding reads no parameter in its backward */
        assert_int_equal(p->between[0].fp.median_ns, 0);
        assert_true(p->between[1].fp.median_ns > 0 && p->between[1].bp.median_ns > 0);
        assert_true(p->between[2].fp.median_ns > 0 && p->between[2].bp.median_ns > 0);
        assert_int_equal(p->layer[0].bp_dha_bytes, 0);
        assert_int_equal(p->layer[0].bp[ON_HOST][ON_HOST].median_ns, p->layer[0].bp[ON_GPU][ON_HOST].median_ns);
        int64_t size = precision ? 8 : 4;
        assert_int_equal(p->layer[1].fp_dha_bytes, (64 * 5 + 5) * size);
        assert_int_equal(p->layer[1].bp_dha_bytes, 64 * 5 * size);
        assert_int_equal(p->layer[1].grad_dha_bytes, (64 * 5 + 5) * size);
        assert_true(p->input_load.median_ns > 0 && p->loss_store.median_ns > 0 && p->clip.median_ns > 0);

        assert_string_equal(p->device.name, "host");
        assert_int_equal(p->device.chunk_bytes, 4096);
        assert_int_equal(p->device.alignment_bytes, 64);
        int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
        assert_true(p->device.memory_bytes > 0 && p->device.memory_bytes <= memory);
        assert_true(p->device.host_memory_bytes > 0 && p->device.host_memory_bytes <= memory);
        for (int i = 0; i < LINK_CLASS_COUNT; i++)
            for (int k = 0; k < LINK_CLASS_COUNT; k++)
                assert_in_range(p->device.rate_permille[i][k], 1, 1000);
        assert_int_equal(p->device.rate_permille[LINK_H2D][LINK_H2D], 1000);
        assert_int_equal(p->device.rate_permille[LINK_DHA_READ][LINK_DHA_WRITE], 1000);
    }
    arena_close(a);
}

/* Sixteen times the classes: sixteen times the work of the linear layer and of its unit. */
static void larger_takes_longer(void **state)
{
    (void)state;
    Arena *a = arena_open();
    const TestShape small = {64, 50, 128, 32, FERRY_F32}, large = {64, 50, 128, 512, FERRY_F32};
    Profile *p = measure(a, small, 5), *q = measure(a, large, 5);
    for (int i = 0; i < 2; i++)
        assert_true(q->layer[1].fp[i].median_ns > p->layer[1].fp[i].median_ns);
    for (int i = 0; i < 4; i++)
        assert_true(q->layer[1].bp[i / 2][i % 2].median_ns > p->layer[1].bp[i / 2][i % 2].median_ns);
    assert_true(q->unit[1].update.median_ns > p->unit[1].update.median_ns);
    assert_true(q->between[2].fp.median_ns > p->between[2].fp.median_ns);
    arena_close(a);
}

/* Two segments with the same kernels and sizes are one measurement; another size is another. */
static void equal_work_once(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    Profile *p;
    Graph *g = test_graph(a, test_shape);
    g->unit[1].n_param = 1; /* a second unit like the first one, of the table's size */
    g->tensor.at[T_W] = g->tensor.at[T_TABLE];
    g->tensor.at[T_W].root = T_W;
    g->param[1].count = g->param[0].count;
    g->param[1].bytes = g->param[0].bytes;
    g->node.count = 2; /* embedding, tanh */
    g->node.at[1].segment = 0;
    g->node.at[2] = g->node.at[1];
    g->node.at[2].segment = 4;
    g->node.count = 3;
    ModelOptions model = {.path = "model.onnx"};
    ProfileOptions options = {.device = "host", .warmup = 0, .repeats = 2};
    if (profile_make(&d, a, g, &model, &options, &p) != ST_OK)
        fail_msg("%s", d.message);
    assert_int_equal(p->between[0].fp.median_ns, p->between[2].fp.median_ns);
    assert_true(p->between[0].fp.median_ns > 0);
    assert_int_equal(p->between[1].fp.median_ns, 0);
    assert_int_equal(p->unit[0].update.median_ns, p->unit[1].update.median_ns);
    assert_true(p->unit[0].update.median_ns > 0);
    arena_close(a);
}

/* A kernel that the device refuses is an error with its node, not a time. */
static void failing_kernel(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    Profile *p;
    Graph *g = test_graph(a, test_shape);
    g->node.at[1].call.fn = FERRY_FN_COUNT;
    ModelOptions model = {.path = "model.onnx"};
    ProfileOptions options = {.device = "host", .warmup = 1, .repeats = 1};
    assert_int_equal(profile_make(&d, a, g, &model, &options, &p), ST_FAILED);
    assert_null(p);
    assert_non_null(strstr(d.message, "tanh"));
    arena_close(a);
}

static void medians(void **state)
{
    (void)state;
    int64_t one[] = {5}, odd[] = {70, 10, 30, 20, 60, 50, 40}, even[] = {4, 1, 3, 10};
    Timing t = timing_of(one, 1);
    assert_int_equal(t.median_ns, 5);
    assert_int_equal(t.spread_ns, 0);
    t = timing_of(odd, 7); /* quartiles 20 and 60 */
    assert_int_equal(t.median_ns, 40);
    assert_int_equal(t.spread_ns, 20);
    t = timing_of(even, 4); /* 1 3 4 10 */
    assert_int_equal(t.median_ns, 3);
    assert_int_equal(t.spread_ns, 0);
}

/* Contents: no NaN, infinity, denormal or zero among floats; integers and truth values below their bound. */
static void contents(void **state)
{
    (void)state;
    enum { COUNT = 200000 }; /* more than a tile */
    Arena *a = arena_open();
    Diag d = {0};
    Bench b;
    ProfileOptions options = {.device = "host", .repeats = 1};
    Graph *g = test_graph(a, test_shape);
    void *p;
    assert_int_equal(bench_open(&d, g, &options, COUNT * 8, a, &b), ST_OK);
    assert_int_equal(bench_pinned(&b, COUNT * 8, &p), ST_OK);
    void *on_device = ferry_pool_at(b.pool, 0);

    assert_int_equal(bench_fill(&b, p, false, FERRY_F64, COUNT, 0), ST_OK);
    for (int i = 0; i < COUNT; i++)
        assert_true(((double *)p)[i] >= 0.02 && ((double *)p)[i] < 0.06);
    assert_int_equal(bench_fill(&b, on_device, true, FERRY_F32, COUNT, 0), ST_OK);
    assert_int_equal(ferry_copy_d2h(b.stream[FERRY_STREAM_STORE], p, on_device, COUNT * 4), FERRY_OK);
    assert_int_equal(ferry_stream_sync(b.stream[FERRY_STREAM_STORE]), FERRY_OK);
    for (int i = 0; i < COUNT; i++)
        assert_true(isnormal(((float *)p)[i]) && ((float *)p)[i] > 0.019f && ((float *)p)[i] < 0.061f);

    static const ferry_dtype integers[] = {FERRY_I64, FERRY_I32, FERRY_I16, FERRY_I8, FERRY_U8, FERRY_BOOL};
    for (size_t k = 0; k < sizeof integers / sizeof integers[0]; k++) {
        memset(p, 0xff, COUNT * 8);
        assert_int_equal(bench_fill(&b, p, false, integers[k], COUNT, 50257), ST_OK);
        int64_t most = 0, bound = integers[k] == FERRY_BOOL             ? 2
                                  : ferry_dtype_bytes(integers[k]) == 1 ? 127
                                  : ferry_dtype_bytes(integers[k]) == 2 ? 32767
                                                                        : 50257;
        for (int i = 0; i < COUNT; i++) {
            int64_t value = integers[k] == FERRY_I64   ? ((int64_t *)p)[i]
                            : integers[k] == FERRY_I32 ? ((int32_t *)p)[i]
                            : integers[k] == FERRY_I16 ? ((int16_t *)p)[i]
                            : integers[k] == FERRY_I8  ? ((int8_t *)p)[i]
                                                       : ((uint8_t *)p)[i];
            assert_true(value >= 0 && value < bound);
            most = value > most ? value : most;
        }
        assert_true(most >= bound * 9 / 10 || bound == 2); /* the whole range is drawn */
    }
    ferry_host_free(b.device, p);
    bench_close(&b);
    arena_close(a);
}

static void choice_of_device(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Graph *g = test_graph(a, test_shape);
    ModelOptions model = {.path = "model.onnx"};
    static const struct {
        const char *device;
        Status status;
        const char *message, *hint;
    } cases[] = {
        {"cuda:999", ST_FAILED, "cuda:999", "--device host"},
        {"cuda:999999999999999999999", ST_FAILED, "cuda:", "model:FILE"},
        {"cuda:", ST_USAGE, "cuda:", "cuda:N"},
        {"cuda:x", ST_USAGE, "cuda:x", "cuda:N"},
        {"gpu", ST_USAGE, "gpu", "'host', 'cuda:N'"},
        {"model:", ST_USAGE, "model:", "model:FILE.yaml"},
        {"model:/nowhere/d.yaml", ST_USAGE, "/nowhere/d.yaml", ""},
        {NULL, ST_USAGE, "unknown device", "host"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Diag d = {0};
        Profile *p;
        ProfileOptions options = {.device = cases[i].device, .warmup = 1, .repeats = 1};
        assert_int_equal(profile_make(&d, a, g, &model, &options, &p), cases[i].status);
        assert_null(p);
        if (!strstr(d.message, cases[i].message) || !strstr(d.hint, cases[i].hint))
            fail_msg("%s / %s", d.message, d.hint);
    }
    Diag d = {0};
    Profile *p;
    ProfileOptions options = {.device = "host", .warmup = 1, .repeats = 0};
    assert_int_equal(profile_make(&d, a, g, &model, &options, &p), ST_USAGE);
    arena_close(a);
}

/* The same device file and graph give the same bytes. */
static void model_is_deterministic(void **state)
{
    (void)state;
    Arena *a = arena_open();
    char *folder = test_folder(a), *file = arena_printf(a, "%s/device.yaml", folder);
    char *device = arena_printf(a, "model:%s", file);
    test_write(file, TEST_DEVICE);
    Text text[2] = {0};
    for (int i = 0; i < 2; i++) {
        Diag d = {0};
        Profile *p;
        Graph *g = test_graph(a, test_shape);
        test_graph_model(a, g);
        ModelOptions model = {.path = "model.onnx"};
        ProfileOptions options = {.device = device};
        if (profile_make(&d, a, g, &model, &options, &p) != ST_OK)
            fail_msg("%s", d.message);
        profile_text(p, "model.onnx", &text[i]);
    }
    assert_string_equal(text[0].at, text[1].at);
    text_free(&text[0]);
    text_free(&text[1]);
    test_folder_remove(a, folder);
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_quantity),   cmocka_unit_test(larger_takes_longer),
        cmocka_unit_test(equal_work_once),  cmocka_unit_test(failing_kernel),
        cmocka_unit_test(medians),          cmocka_unit_test(contents),
        cmocka_unit_test(choice_of_device), cmocka_unit_test(model_is_deterministic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
