/* Profiles of a real model's graph, the tiny GPT-2 of tests/models: written, loaded again with the model, measured. */
#include "profiler_test.h"

#define MODEL FERRY_SOURCE_DIR "/tests/models/gpt2/loss-ts.onnx"

static DimBinding dims[] = {{"batch", 4}, {"seq", 32}};
static const ModelOptions options = {.path = MODEL, .n_dim = 2, .dim = dims, .precision = FERRY_F32};

static void check(Status status, const Diag *d)
{
    if (status != ST_OK)
        fail_msg("%s", d->message);
}

/* Batch 4, sequence 32: 128 rows. Blocks of hidden size 64, vocabulary 512; rates as in profiler_test.h. */
static void written_and_loaded(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {.quiet = true};
    Model *m, *again;
    Graph *g, *graph;
    Profile *p, *q;
    char *folder = test_folder(a), *path = arena_printf(a, "%s/a.yaml", folder);
    char *device = arena_printf(a, "%s/device.yaml", folder);
    test_write(device, TEST_DEVICE);
    ProfileOptions how = {.device = arena_printf(a, "model:%s", device)};
    check(graph_from_options(&d, a, &options, &m, &g), &d);
    check(profile_make(&d, a, g, &options, &how, &p), &d);
    check(profile_write(&d, p, path, false), &d);
    check(profile_load(&d, a, path, false, NULL, &q, &again, &graph), &d);
    assert_int_equal(graph->node.count, g->node.count);
    assert_int_equal(q->n_layer, g->n_layer);
    assert_string_equal(q->model_hash, m->hash);

    bool seen = false;
    for (int i = 0; i < q->n_unit; i++) {
        if (!strstr(q->unit[i].name, "h.0.mlp.c_fc"))
            continue;
        /* weight [64, 256], bias [256] */
        assert_int_equal(q->unit[i].load.median_ns, 5 + 64 * 256 * 4 / 2 + 5 + 256 * 4 / 2);
        assert_int_equal(q->unit[i].store.median_ns, 4 + 64 * 256 * 4 + 4 + 256 * 4);
        assert_int_equal(q->unit[i].update.median_ns, 20 + 64 * 256 * 10 + 20 + 256 * 10);
        seen = true;
    }
    assert_true(seen);
    seen = false;
    for (int i = 0; i < q->n_layer; i++) {
        const LayerProfile *l = &q->layer[i];
        /* nothing is faster from host memory in this model */
        assert_true(l->fp[ON_HOST].median_ns >= l->fp[ON_GPU].median_ns);
        for (int k = 1; k < 4; k++)
            assert_true(l->bp[k / 2][k % 2].median_ns >= l->bp[0][0].median_ns);
        if (!strstr(l->name, "h.0.mlp.c_fc"))
            continue;
        assert_int_equal(l->fp_dha_bytes, (64 * 256 + 256) * 4);
        assert_int_equal(l->bp_dha_bytes, 64 * 256 * 4);
        assert_int_equal(l->grad_dha_bytes, (64 * 256 + 256) * 4);
        seen = true;
    }
    assert_true(seen);
    graph_close(graph);
    model_close(again);

    /* another content of the model */
    p->model_hash[0] = p->model_hash[0] == '0' ? '1' : '0';
    check(profile_write(&d, p, path, false), &d);
    assert_int_equal(profile_load(&d, a, path, false, NULL, &q, &again, &graph), ST_MODEL);
    assert_true(!q && !again && !graph);
    Diag forced = {.quiet = true};
    check(profile_load(&forced, a, path, true, NULL, &q, &again, &graph), &forced);
    graph_close(graph);
    model_close(again);
    graph_close(g);
    model_close(m);
    test_folder_remove(a, folder);
    arena_close(a);
}

/* Every kernel of a real graph accepts the contents that the bench makes up: ids, labels, masks, saved activations. */
static void measured_on_the_host(void **state)
{
    (void)state;
    static const ferry_dtype precision[] = {FERRY_F32, FERRY_F64};
    for (int k = 0; k < 2; k++) {
        Arena *a = arena_open();
        Diag d = {.quiet = true};
        Model *m;
        Graph *g;
        Profile *p;
        ModelOptions o = options;
        o.precision = precision[k];
        ProfileOptions how = {.device = "host", .warmup = 0, .repeats = 1};
        check(graph_from_options(&d, a, &o, &m, &g), &d);
        check(profile_make(&d, a, g, &o, &how, &p), &d);
        for (int i = 0; i < p->n_layer; i++)
            for (int c = 0; c < 4; c++)
                assert_true(p->layer[i].fp[c / 2].median_ns > 0 && p->layer[i].bp[c / 2][c % 2].median_ns > 0);
        for (int i = 0; i < p->n_unit; i++)
            assert_true(p->unit[i].load.median_ns > 0 && p->unit[i].update.median_ns > 0);
        assert_true(p->between[p->n_layer].fp.median_ns > 0); /* the loss */
        graph_close(g);
        model_close(m);
        arena_close(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_and_loaded),
        cmocka_unit_test(measured_on_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
