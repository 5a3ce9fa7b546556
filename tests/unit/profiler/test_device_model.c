/* The device model against numbers computed by hand from the definitions in schemas/device.md. */
#include "profiler_test.h"

#include "profiler/device_model.h"

/* embedding: y 8192, ids 256 and 32 rows of the table 8192 bytes = 16640 / 100 = 167, + 10. From host memory: 8192 * 2
 * + 7. */
static void embedding_forward(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Profile *p = test_profile(a, test_graph(a, test_shape), TEST_DEVICE);
    assert_int_equal(p->layer[0].fp[ON_GPU].median_ns, 177);
    assert_int_equal(p->layer[0].fp[ON_HOST].median_ns, 16391);
    assert_int_equal(p->layer[0].fp_dha_bytes, 8192);
    assert_int_equal(p->layer[0].bp_dha_bytes, 0);
    assert_int_equal(p->layer[0].bp[ON_GPU][ON_GPU].median_ns, p->layer[0].bp[ON_HOST][ON_GPU].median_ns);
    assert_int_equal(p->layer[0].fp[ON_GPU].spread_ns, 0);
    arena_close(a);
}

/* linear: 2 * 32 * 64 * 10 = 40960 operations / 500 = 82; y 1280, x 8192, w 2560, b 40 = 12072 bytes / 100 = 121.
 * dx: dx 8192, dy 1280, w 2560 = 121. dw: the same. db: 40 + 1280 = 14 against 320 operations / 100 = 4. */
static void linear_layer(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Profile *p = test_profile(a, test_graph(a, test_shape), TEST_DEVICE);
    const LayerProfile *l = &p->layer[1];
    assert_int_equal(l->fp[ON_GPU].median_ns, 10 + 121);
    assert_int_equal(l->fp[ON_HOST].median_ns, 7 + 2 * 2600);
    assert_int_equal(l->fp_dha_bytes, 2600);
    assert_int_equal(l->bp_dha_bytes, 2560);
    assert_int_equal(l->grad_dha_bytes, 2600);
    const int64_t dx = 131, dx_h = 7 + 2 * 2560, dw = 131, dw_h = 3 + 4 * 2560, db = 24, db_h = 3 + 4 * 40;
    assert_int_equal(l->bp[ON_GPU][ON_GPU].median_ns, dx + dw + db);
    assert_int_equal(l->bp[ON_HOST][ON_GPU].median_ns, dx_h + dw + db);
    assert_int_equal(l->bp[ON_GPU][ON_HOST].median_ns, dx + dw_h + db_h);
    assert_int_equal(l->bp[ON_HOST][ON_HOST].median_ns, dx_h + dw_h + db_h);
    arena_close(a);
}

/* tanh: 2 * 8192 bytes and 8 * 2048 operations, both 164. Its gradient reads y and dy, writes dx: 24576 bytes. Loss: 4
 * + 128
 * + 4 + 1280 + 256 bytes = 17 against 8 * 320 operations = 26; gradient 1280 + 1280 + 128 + 4 + 256 bytes = 30. */
static void between_layers(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Profile *p = test_profile(a, test_graph(a, test_shape), TEST_DEVICE);
    assert_int_equal(p->between[0].fp.median_ns, 0);
    assert_int_equal(p->between[0].bp.median_ns, 0);
    assert_int_equal(p->between[1].fp.median_ns, 174);
    assert_int_equal(p->between[1].bp.median_ns, 256);
    assert_int_equal(p->between[2].fp.median_ns, 36);
    assert_int_equal(p->between[2].bp.median_ns, 40);
    arena_close(a);
}

static void units_and_edges(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Profile *p = test_profile(a, test_graph(a, test_shape), TEST_DEVICE);
    /* table 256000 bytes, 64000 parameters */
    assert_int_equal(p->unit[0].load.median_ns, 5 + 128000);
    assert_int_equal(p->unit[0].store.median_ns, 4 + 256000);
    assert_int_equal(p->unit[0].norm.median_ns, 20 + 25600);
    assert_int_equal(p->unit[0].update.median_ns, 20 + 640000);
    /* weight 2560 bytes, bias 40: a copy and a call each */
    assert_int_equal(p->unit[1].load.median_ns, 5 + 1280 + 5 + 20);
    assert_int_equal(p->unit[1].store.median_ns, 4 + 2560 + 4 + 40);
    assert_int_equal(p->unit[1].norm.median_ns, 20 + 256 + 20 + 4);
    assert_int_equal(p->unit[1].update.median_ns, 20 + 6400 + 20 + 100);
    assert_int_equal(p->input_load.median_ns, 2 * (5 + 128));
    assert_int_equal(p->loss_store.median_ns, 4 + 4);
    assert_int_equal(p->clip.median_ns, 20 + 3); /* three sums of 8 bytes */
    assert_string_equal(p->device.name, "test");
    assert_int_equal(p->device.memory_bytes, 1000000);
    assert_int_equal(p->device.host_memory_bytes, 2000000);
    assert_int_equal(p->device.alloc_ns, 9);
    assert_int_equal(p->device.scratch_bytes, 0);
    assert_int_equal(p->device.rate_permille[LINK_H2D][LINK_DHA_READ], 90);
    assert_int_equal(p->device.rate_permille[LINK_DHA_READ][LINK_H2D], 910);
    assert_int_equal(p->device.rate_permille[LINK_UPDATE][LINK_D2H], 830);
    arena_close(a);
}

/* Weights read 3 times for each of 2 tiles of 16 rows; the bias once. Writes that do not hide at all. */
static void dha_options(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Profile *p = test_profile(a, test_graph(a, test_shape),
                              TEST_DEVICE "  dha_linear_passes: 3\n"
                                          "  dha_tile_rows: 16\n"
                                          "  dha_write_overlap_permille: 0\n");
    const LayerProfile *l = &p->layer[1];
    assert_int_equal(l->fp_dha_bytes, 6 * 2560 + 40);
    assert_int_equal(l->bp_dha_bytes, 6 * 2560);
    assert_int_equal(l->fp[ON_HOST].median_ns, 7 + 2 * (6 * 2560 + 40));
    assert_int_equal(l->bp[ON_GPU][ON_HOST].median_ns, 131 + (3 + 4 * 2560 + 131) + (3 + 4 * 40 + 24));
    assert_int_equal(p->layer[0].fp_dha_bytes, 8192); /* a gather touches its rows once */
    /* half hides */
    p = test_profile(a, test_graph(a, test_shape), TEST_DEVICE "  dha_write_overlap_permille: 500\n");
    assert_int_equal(p->layer[1].bp[ON_GPU][ON_HOST].median_ns, 131 + (3 + 4 * 2560 + 66) + (3 + 4 * 40 + 12));
    arena_close(a);
}

/* An accumulated gradient is read before it is written: twice in memory, both ways over the link. */
static void accumulated_gradient(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Graph *g = test_graph(a, test_shape);
    for (int i = 0; i < g->node.count; i++)
        g->node.at[i].call.accumulate |= g->node.at[i].call.op == FERRY_OP_LINEAR_DW;
    Profile *p = test_profile(a, g, TEST_DEVICE);
    const LayerProfile *l = &p->layer[1];
    assert_int_equal(l->bp[ON_GPU][ON_GPU].median_ns, 131 + (10 + 146) + 24); /* 12032 + 2560 = 14592 bytes */
    assert_int_equal(l->bp[ON_GPU][ON_HOST].median_ns, 131 + (3 + 4 * 2560) + (3 + 4 * 40));
    assert_int_equal(l->grad_dha_bytes, 2600);
    arena_close(a);
}

static void frozen_parameters(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Graph *g = test_graph(a, test_shape);
    g->param[2].trainable = false;
    g->param[2].grad = -1;
    Profile *p = test_profile(a, g, TEST_DEVICE);
    assert_int_equal(p->unit[1].load.median_ns, 5 + 1280 + 5 + 20); /* loaded all the same */
    assert_int_equal(p->unit[1].update.median_ns, 20 + 6400);
    assert_int_equal(p->clip.median_ns, 20 + 2);
    arena_close(a);
}

/* Batched products have a class of their own: 2 * 6 * 4 * 5 * 7 operations / 250. */
static void batched_product(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    DeviceModel *m;
    Graph *g = test_graph(a, test_shape);
    assert_int_equal(device_model_parse(&d, a, "d", TEST_DEVICE, strlen(TEST_DEVICE), &m), ST_OK);
    m->memory_mb_per_s = DEVICE_MAX_RATE;
    Node n = {
        .call = {.op = FERRY_OP_MATMUL, .dtype = FERRY_F32, .m = 400, .k = 500, .n = 700, .rank = 2, .dim = {2, 3}},
        .arg = {T_H, T_X, T_DH, -1, -1, -1, -1, -1}};
    KernelTime t;
    assert_int_equal(device_kernel_time(&d, m, &m->precision[0], g, &n, &t), ST_OK);
    assert_int_equal(t.kernel_ns, 10 + INT64_C(2) * 6 * 400 * 500 * 700 / 250);
    arena_close(a);
}

static void times_beyond_a_profile(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    DeviceModel *m;
    Profile *p;
    ModelOptions options = {.path = "model.onnx"};
    Graph *g = test_graph(a, test_shape);
    g->node.at[2].call.m = INT64_C(1) << 50;
    assert_int_equal(device_model_parse(&d, a, "d", TEST_DEVICE, strlen(TEST_DEVICE), &m), ST_OK);
    assert_int_equal(profile_frame(&d, a, g, &options, &p), ST_OK);
    assert_int_equal(device_model_apply(&d, a, m, g, p), ST_MODEL);
    assert_non_null(strstr(d.message, "head"));
    arena_close(a);
}

/* Each wrong text has one error, at the line that is wrong. */
static void refused(const char *from, const char *to, const char *place, const char *message)
{
    Arena *a = arena_open();
    Diag d = {0};
    DeviceModel *m;
    const char *at = strstr(TEST_DEVICE, from);
    assert_non_null(at);
    char *text = arena_printf(a, "%.*s%s%s", (int)(at - TEST_DEVICE), TEST_DEVICE, to, at + strlen(from));
    assert_int_equal(device_model_parse(&d, a, "dev.yaml", text, strlen(text), &m), ST_MODEL);
    assert_null(m);
    if (!strstr(d.message, place) || !strstr(d.message, message))
        fail_msg("'%s' should name %s and '%s'", d.message, place, message);
    arena_close(a);
}

static void wrong_files(void **state)
{
    (void)state;
    refused("device/1", "device/2", "dev.yaml:1:", "schema");
    refused("alloc_ns: 9", "alloc_ns: -9", "dev.yaml:7:", "alloc_ns");
    refused("alloc_ns: 9", "alloc_ns: 9\nscratch_bytes: -1", "dev.yaml:8:", "scratch_bytes");
    refused("alloc_ns: 9", "alloc_us: 9", "dev.yaml:7:", "unknown key");
    refused("chunk_bytes: 4096", "chunk_bytes: 100", "dev.yaml:5:", "multiple");
    refused("alignment_bytes: 64", "alignment_bytes: 48", "dev.yaml:6:", "power of two");
    refused("product: 500", "product: 1001", "dev.yaml:10:", "1001");
    refused("product: 500", "product: 0", "dev.yaml:10:", "product");
    refused("memory_mb_per_s: 100000", "memory_mb_per_s: 1e5", "dev.yaml:12:", "whole number");
    refused("h2d: 910", "h2d: 0", "dev.yaml:15:", "h2d");
    refused("h2d: 910, ", "", "dev.yaml:15:", "h2d");
    refused("latency_ns: 5", "latency: 5", "dev.yaml:21:", "unknown key");
    refused("  fp32:", "  fp8:", "dev.yaml:9:", "unknown key");
    refused("memory_bytes: 1000000", "memory_bytes: 0", "dev.yaml:3:", "memory_bytes");
    refused("launch_ns: 10", "launch_ns: 99999999999999999", "dev.yaml:11:", "launch_ns");
}

static void precision_without_rates(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    DeviceModel *m;
    Profile *p;
    ModelOptions options = {.path = "model.onnx"};
    TestShape shape = test_shape;
    shape.precision = FERRY_F64;
    Graph *g = test_graph(a, shape);
    assert_int_equal(device_model_parse(&d, a, "dev.yaml", TEST_DEVICE, strlen(TEST_DEVICE), &m), ST_OK);
    assert_int_equal(profile_frame(&d, a, g, &options, &p), ST_OK);
    assert_int_equal(device_model_apply(&d, a, m, g, p), ST_USAGE);
    assert_non_null(strstr(d.message, "dev.yaml"));
    assert_non_null(strstr(d.message, "f64"));
    arena_close(a);
}

/* The files that are shipped, and what was measured on the machine that one of them describes: within a quarter. */
static void shipped_devices(void **state)
{
    (void)state;
    static const char *const files[] = {"h200-pcie5", "a100-pcie3", "a100-pcie4", "h100-pcie5", "rtx4090-pcie4", "v100-pcie3"};
    enum { FILES = sizeof files / sizeof files[0], V100 = FILES - 1, BF16 = 2 };
    Arena *a = arena_open();
    DeviceModel *m[FILES];
    for (int i = 0; i < FILES; i++) {
        Diag d = {0};
        if (device_model_read(&d, a, arena_printf(a, FERRY_SOURCE_DIR "/examples/devices/%s.yaml", files[i]), &m[i]) != ST_OK)
            fail_msg("%s", d.message);
        for (int k = 0; k < DEVICE_PRECISIONS; k++)
            assert_int_equal(m[i]->precision[k].known, i != V100 || k != BF16);
        assert_int_equal(m[i]->facts.chunk_bytes, 2 << 20);
        assert_int_equal(m[i]->facts.scratch_bytes, 96 << 20);
        assert_int_equal(m[i]->facts.alignment_bytes, 256);
    }
    /* Products of 4096 rows, k and 4096 columns. In fp32 with k = 1024: 0.70 ms in device memory, the weights by DHA
     * 0.88; its dW written to host memory 0.97. In 16 bits 57 us, dW written to host memory 208 us; k = 4096: 167 us,
     * 0.78 ms. */
    const struct {
        int64_t k;
        int precision;
        int64_t gpu_ns, host_ns, dw_host_ns;
    } measured[] = {{1024, 0, 700000, 880000, 970000}, {1024, 2, 57000, 0, 208000}, {4096, 2, 167000, 0, 780000}};
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++) {
        Diag d = {0};
        const PrecisionRates *r = &m[0]->precision[measured[i].precision];
        TestShape shape = {4096, 1000, measured[i].k, 4096, r->dtype};
        Graph *g = test_graph(a, shape);
        KernelTime t;
        Node *linear = &g->node.at[2], *dw = &g->node.at[6];
        assert_int_equal(device_kernel_time(&d, m[0], r, g, linear, &t), ST_OK);
        assert_in_range(device_placed_ns(m[0], &t, ON_GPU, ON_GPU), measured[i].gpu_ns * 3 / 4,
                        measured[i].gpu_ns * 5 / 4);
        if (measured[i].host_ns)
            assert_in_range(device_placed_ns(m[0], &t, ON_HOST, ON_GPU), measured[i].host_ns * 3 / 4,
                            measured[i].host_ns * 5 / 4);
        assert_int_equal(device_kernel_time(&d, m[0], r, g, dw, &t), ST_OK);
        assert_in_range(device_placed_ns(m[0], &t, ON_GPU, ON_HOST), measured[i].dw_host_ns * 3 / 4,
                        measured[i].dw_host_ns * 5 / 4);
    }
    arena_close(a);
}

/* What is written reads back to the same text, of all shipped files. */
static void written_again(void **state)
{
    (void)state;
    static const char *const files[] = {"h200-pcie5", "v100-pcie3"};
    Arena *a = arena_open();
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        Diag d = {0};
        DeviceModel *m, *again;
        Text one = {0}, two = {0};
        assert_int_equal(
            device_model_read(&d, a, arena_printf(a, FERRY_SOURCE_DIR "/examples/devices/%s.yaml", files[i]), &m), ST_OK);
        device_model_text(m, &one);
        if (device_model_parse(&d, a, "again", one.at, one.size, &again) != ST_OK)
            fail_msg("%s", d.message);
        device_model_text(again, &two);
        assert_string_equal(one.at, two.at);
        assert_memory_equal(&m->dha_write, &again->dha_write, sizeof m->dha_write);
        assert_int_equal(m->write_overlap_permille, again->write_overlap_permille);
        text_free(&one);
        text_free(&two);
    }
    arena_close(a);
}

/* Two points of latency + bytes / rate give both back; times that no line fits stay in range. */
static void fitted_path(void **state)
{
    (void)state;
    LinkPath p = device_fit_path(65536, 4000 + 65536 / 50, 64 << 20, 4000 + (64 << 20) / 50);
    assert_in_range(p.mb_per_s, 49990, 50010);
    assert_in_range(p.latency_ns, 3990, 4010);
    p = device_fit_path(65536, 5000, 1 << 20, 5000); /* as fast as can be said */
    assert_in_range(p.mb_per_s, 1, DEVICE_MAX_RATE);
    assert_in_range(p.latency_ns, 0, 5000);
    p = device_fit_path(65536, 9000, 1 << 20, 5000);
    assert_in_range(p.mb_per_s, 1, DEVICE_MAX_RATE);
    p = device_fit_path(65536, 1, 1 << 20, 1000000); /* a line that meets 0 below no bytes */
    assert_int_equal(p.latency_ns, 0);
    assert_int_equal(device_rate(0, 5), 1);
    assert_int_equal(device_rate(INT64_MAX, 0), DEVICE_MAX_RATE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_forward),
        cmocka_unit_test(linear_layer),
        cmocka_unit_test(between_layers),
        cmocka_unit_test(units_and_edges),
        cmocka_unit_test(dha_options),
        cmocka_unit_test(accumulated_gradient),
        cmocka_unit_test(frozen_parameters),
        cmocka_unit_test(batched_product),
        cmocka_unit_test(times_beyond_a_profile),
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(precision_without_rates),
        cmocka_unit_test(shipped_devices),
        cmocka_unit_test(written_again),
        cmocka_unit_test(fitted_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
