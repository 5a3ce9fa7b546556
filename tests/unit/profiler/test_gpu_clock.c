/* Measuring on a GPU, where there is one: every quantity is there, and times agree with what is known of the work. */
#include "profiler_test.h"

#include "profiler/bench.h"

static bool has_gpu(void)
{
    ferry_device *device;
    if (ferry_device_open("cuda:0", &device) != FERRY_OK) {
        print_message("skipped: %s\n", ferry_error());
        return false;
    }
    ferry_device_close(device);
    return true;
}

static Profile *measure(Arena *a, TestShape shape)
{
    Diag d = {.quiet = true};
    Profile *p;
    Graph *g = test_graph(a, shape);
    test_graph_model(a, g);
    ModelOptions model = {.path = "model.onnx", .precision = shape.precision};
    ProfileOptions options = {.device = "cuda:0", .warmup = 1, .repeats = 5};
    if (profile_make(&d, a, g, &model, &options, &p) != ST_OK)
        fail_msg("%s", d.message);
    return p;
}

/* A product of 4096 x 1024 x 4096 takes four times one of 1024 columns, within a half; its weight of 16 MiB, loaded or
 * read by DHA, at least what a link of 256 GB/s would. */
static void known_work(void **state)
{
    (void)state;
    if (!has_gpu())
        skip();
    Arena *a = arena_open();
    Profile *small = measure(a, (TestShape){4096, 1000, 1024, 1024, FERRY_F32});
    Profile *large = measure(a, (TestShape){4096, 1000, 1024, 4096, FERRY_F32});
    const LayerProfile *l = &large->layer[1];
    assert_in_range(l->fp[ON_GPU].median_ns, small->layer[1].fp[ON_GPU].median_ns * 2,
                    small->layer[1].fp[ON_GPU].median_ns * 6);
    const int64_t least_ns = (INT64_C(16) << 20) / 256;
    assert_true(large->unit[1].load.median_ns > least_ns && large->unit[1].store.median_ns > least_ns);
    assert_true(l->fp[ON_HOST].median_ns > least_ns);
    assert_true(l->bp[ON_GPU][ON_HOST].median_ns > least_ns);
    assert_true(large->unit[1].update.median_ns > small->unit[1].update.median_ns);
    assert_true(large->unit[1].norm.median_ns > 0 && large->clip.median_ns > 0);
    assert_true(large->input_load.median_ns > 0 && large->loss_store.median_ns > 0);
    assert_int_equal(l->fp_dha_bytes, (1024 * 4096 + 4096) * 4);
    arena_close(a);
}

static void facts(void **state)
{
    (void)state;
    if (!has_gpu())
        skip();
    Arena *a = arena_open();
    const Profile *p = measure(a, (TestShape){32, 7, 64, 5, FERRY_F32});
    assert_true(strlen(p->device.name) > 0 && strcmp(p->device.name, "host") != 0);
    assert_int_equal(p->device.chunk_bytes, 2 << 20);
    assert_int_equal(p->device.alignment_bytes, 256);
    assert_int_equal(p->device.memory_bytes % p->device.chunk_bytes, 0);
    assert_true(p->device.memory_bytes > 1 << 30 && p->device.host_memory_bytes > 1 << 20);
    for (int i = 0; i < LINK_CLASS_COUNT; i++)
        for (int k = 0; k < LINK_CLASS_COUNT; k++)
            assert_in_range(p->device.rate_permille[i][k], 1, 1000);
    /* the two directions of the link are independent of each other for the most part */
    assert_true(p->device.rate_permille[LINK_H2D][LINK_D2H] > 500);
    arena_close(a);
}

/* Without a GPU profiling fails and says why; nothing is measured elsewhere instead. */
static void no_gpu(void **state)
{
    (void)state;
    if (has_gpu())
        skip();
    Arena *a = arena_open();
    Diag d = {0};
    Profile *p;
    Graph *g = test_graph(a, test_shape);
    test_graph_model(a, g);
    ModelOptions model = {.path = "model.onnx"};
    ProfileOptions options = {.device = "cuda:0", .warmup = 1, .repeats = 1};
    assert_int_equal(profile_make(&d, a, g, &model, &options, &p), ST_FAILED);
    assert_null(p);
    assert_non_null(strstr(d.message, "CUDA"));
    assert_non_null(strstr(d.hint, "--device host"));
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_work),
        cmocka_unit_test(facts),
        cmocka_unit_test(no_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
