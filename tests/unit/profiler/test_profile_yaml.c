/* profile.yaml: what is written is read back, the same profile has the same bytes, and what is wrong is refused with
 * file and line. */
#include "profiler_test.h"

static Profile *full_profile(Arena *a, const char *model_path)
{
    static DimBinding dims[] = {{"batch", 4}, {"seq \"x\"", 32}};
    static ShapeBinding shapes[] = {{"input_ids", 2, {8, 512}}, {"scalar", 0, {0}}};
    static const char *train[] = {"*"}, *freeze[] = {"a.*", "b: [c]"}, *tie[] = {"wte=lm_head^T"};
    Graph *g = test_graph(a, test_shape);
    test_graph_model(a, g);
    Profile *p = test_profile(a, g, TEST_DEVICE);
    p->options = (ModelOptions){.path = model_path,
                                .n_dim = 2,
                                .dim = dims,
                                .n_shape = 2,
                                .shape = shapes,
                                .loss = "cross_entropy:logits,axis=1",
                                .n_train = 1,
                                .train = train,
                                .n_freeze = 2,
                                .freeze = freeze,
                                .n_tie = 1,
                                .tie = tie,
                                .precision = FERRY_F64};
    p->layer[0].fp[ON_HOST].spread_ns = 77;
    p->device.scratch_bytes = 77;
    p->device.record_ns = 1700;
    p->device.wait_update_ns = 900;
    p->device.signal_ns = 4100;
    p->device.signal_update_ns = 6000;
    int *together = p->device.rate_together[1 << LINK_H2D | 1 << LINK_D2H | 1 << LINK_UPDATE];
    together[LINK_H2D] = 610;
    together[LINK_D2H] = 870;
    together[LINK_UPDATE] = 620;
    p->layer[1].name = "back\\slash: \"quoted\" \xc3\xa9 # no comment";
    return p;
}

static char *text_of(Arena *a, const Profile *p)
{
    Text text = {0};
    profile_text(p, "model.onnx", &text);
    assert_false(text.failed);
    char *copy = arena_strdup(a, text.at);
    text_free(&text);
    return copy;
}

static char *content(Arena *a, const char *path)
{
    Diag d = {0};
    uint8_t *data;
    int64_t size;
    if (file_read(&d, path, 1 << 20, &data, &size) != ST_OK)
        fail_msg("%s", d.message);
    char *copy = arena_strdup(a, (const char *)data);
    base_free(data);
    return copy;
}

static void assert_timing(Timing a, Timing b)
{
    assert_int_equal(a.median_ns, b.median_ns);
    assert_int_equal(a.spread_ns, b.spread_ns);
}

static void round_trip(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    char *folder = test_folder(a), *first = arena_printf(a, "%s/a.yaml", folder),
         *second = arena_printf(a, "%s/b.yaml", folder);
    Profile *p = full_profile(a, arena_printf(a, "%s/model.onnx", folder)), *q = NULL;
    if (profile_write(&d, p, first, false) != ST_OK || profile_read(&d, a, first, &q) != ST_OK ||
        profile_write(&d, q, second, false) != ST_OK)
        fail_msg("%s", d.message);
    assert_string_equal(content(a, first), content(a, second));
    assert_null(strstr(content(a, first), folder)); /* no absolute path */

    char hash[33];
    assert_int_equal(hash_file(&d, first, hash), ST_OK);
    assert_string_equal(q->hash, hash);
    assert_string_equal(q->path, first);
    assert_true(file_exists(q->options.path));
    assert_string_equal(q->model_hash, p->model_hash);
    assert_int_equal(q->n_layer, 2);
    assert_int_equal(q->n_unit, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(q->layer[i].name, p->layer[i].name);
        assert_int_equal(q->layer[i].fp_dha_bytes, p->layer[i].fp_dha_bytes);
        assert_int_equal(q->layer[i].bp_dha_bytes, p->layer[i].bp_dha_bytes);
        assert_int_equal(q->layer[i].grad_dha_bytes, p->layer[i].grad_dha_bytes);
        for (int k = 0; k < 2; k++)
            assert_timing(q->layer[i].fp[k], p->layer[i].fp[k]);
        for (int k = 0; k < 4; k++)
            assert_timing(q->layer[i].bp[k / 2][k % 2], p->layer[i].bp[k / 2][k % 2]);
        assert_string_equal(q->unit[i].name, p->unit[i].name);
        assert_timing(q->unit[i].load, p->unit[i].load);
        assert_timing(q->unit[i].store, p->unit[i].store);
        assert_timing(q->unit[i].norm, p->unit[i].norm);
        assert_timing(q->unit[i].update, p->unit[i].update);
    }
    for (int i = 0; i < 3; i++) {
        assert_timing(q->between[i].fp, p->between[i].fp);
        assert_timing(q->between[i].bp, p->between[i].bp);
    }
    assert_timing(q->input_load, p->input_load);
    assert_timing(q->loss_store, p->loss_store);
    assert_timing(q->clip, p->clip);
    assert_int_equal(q->options.n_dim, 2);
    assert_string_equal(q->options.dim[1].name, "seq \"x\"");
    assert_int_equal(q->options.dim[1].size, 32);
    assert_int_equal(q->options.n_shape, 2);
    assert_int_equal(q->options.shape[0].rank, 2);
    assert_int_equal(q->options.shape[0].dim[1], 512);
    assert_int_equal(q->options.shape[1].rank, 0);
    assert_string_equal(q->options.loss, "cross_entropy:logits,axis=1");
    assert_string_equal(q->options.train[0], "*");
    assert_string_equal(q->options.freeze[1], "b: [c]");
    assert_string_equal(q->options.tie[0], "wte=lm_head^T");
    assert_int_equal(q->options.precision, FERRY_F64);
    assert_int_equal(q->device.chunk_bytes, 4096);
    assert_int_equal(q->device.scratch_bytes, 77);
    assert_int_equal(q->device.record_ns, 1700);
    assert_int_equal(q->device.wait_ns, 0);
    assert_int_equal(q->device.wait_update_ns, 900);
    assert_int_equal(q->device.signal_ns, 4100);
    assert_int_equal(q->device.signal_update_ns, 6000);
    assert_memory_equal(q->device.rate_permille, p->device.rate_permille, sizeof p->device.rate_permille);
    assert_memory_equal(q->device.rate_together, p->device.rate_together, sizeof p->device.rate_together);
    test_folder_remove(a, folder);
    arena_close(a);
}

/* The path of the model is seen from the profile's folder, wherever the command runs. */
static void path_of_the_model(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    char *folder = test_folder(a), *sub = arena_printf(a, "%s/sub", folder),
         *path = arena_printf(a, "%s/sub/a.yaml", folder);
    assert_int_equal(mkdir(sub, 0700), 0);
    Profile *p = full_profile(a, arena_printf(a, "%s/model.onnx", folder)), *q;
    assert_int_equal(profile_write(&d, p, path, false), ST_OK);
    assert_non_null(strstr(content(a, path), "path: \"../model.onnx\""));
    assert_int_equal(profile_read(&d, a, path, &q), ST_OK);
    assert_true(file_exists(q->options.path));
    p->options.path = "no/such/model.onnx";
    assert_int_equal(profile_write(&d, p, arena_printf(a, "%s/b.yaml", folder), false), ST_USAGE);
    assert_false(file_exists(arena_printf(a, "%s/b.yaml", folder)));
    test_folder_remove(a, folder);
    arena_close(a);
}

static void overwriting(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0}, other = {0};
    char *folder = test_folder(a), *path = arena_printf(a, "%s/a.yaml", folder);
    Profile *p = full_profile(a, arena_printf(a, "%s/model.onnx", folder)), *q;
    assert_int_equal(profile_write(&d, p, path, false), ST_OK);
    assert_int_equal(profile_write(&d, p, path, false), ST_OK);
    /* an edited file is still read, and not replaced without force */
    char *text = content(a, path);
    test_write(path, arena_printf(a, "%s# a remark\n", text));
    assert_int_equal(profile_read(&d, a, path, &q), ST_OK);
    assert_int_equal(profile_write(&d, p, path, false), ST_USAGE);
    assert_int_equal(profile_write(&other, p, path, true), ST_OK);
    assert_string_equal(content(a, path), text);
    test_folder_remove(a, folder);
    arena_close(a);
}

/* Replaces the first `from` after `after`; the error must name the line on which `after` stands plus `lines`. */
static void refused(const char *after, const char *from, const char *to, const char *message)
{
    Arena *a = arena_open();
    Diag d = {0};
    Profile *q;
    char *text = text_of(a, full_profile(a, "model.onnx"));
    char *at = strstr(text, after);
    at = at ? strstr(at, from) : NULL;
    assert_non_null(at);
    int line = 1;
    for (char *p = text; p < at; p++)
        line += *p == '\n';
    char *wrong = arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    char *place = arena_printf(a, "profile.yaml:%d:", line);
    assert_int_equal(profile_parse(&d, a, "profile.yaml", wrong, strlen(wrong), &q), ST_MODEL);
    assert_null(q);
    if (!strstr(d.message, place) || !strstr(d.message, message))
        fail_msg("'%s' should name %s and '%s'", d.message, place, message);
    arena_close(a);
}

static void wrong_files(void **state)
{
    (void)state;
    refused("schema", "profile/1", "profile/9", "schema");
    refused("schema", "ferryc/profile/1", "ferryc/plan/1", "schema");
    refused("layers:", "median_ns: ", "median_ns: -", "median_ns");
    refused("layers:", "spread_ns: 0", "spread_ns: 0.5", "spread_ns");
    refused("layers:", "spread_ns: 0", "spread: 0", "unknown key");
    refused("layers:", "fp_dha_bytes", "fp_dha_byte", "unknown key");
    refused("layers:", "grad_dha_bytes: ", "grad_dha_bytes: 9999999999999", "grad_dha_bytes");
    refused("units:", "load: {", "load: [", "");
    refused("model:", "001122", "00112x", "hash");
    refused("model:", "fp64", "fp16", "precision");
    refused("model:", "size: 4", "size: 0", "size");
    refused("model:", "\"batch\"", "\"\"", "empty");
    refused("model:", "dim: [8, 512]", "dim: [8, 1, 1, 1, 1, 1, 1, 1, 512]", "dimensions");
    refused("model:", "dim: [8, 512]", "dim: [8, [512]]", "whole number");
    refused("device:", "chunk_bytes: 4096", "chunk_bytes: 4097", "chunk_bytes");
    refused("device:", "alignment_bytes: 64", "alignment_bytes: 0", "alignment_bytes");
    refused("    h2d:", "dha_read: 90", "dha_read: 1001", "dha_read");
    refused("rate_together:", "{h2d: 610, ", "{", "names 2 classes");
    refused("rate_together:", "d2h: 870", "d2h: 0", "d2h");
    refused("device:", "record_ns: 1700", "record_ns: -1", "record_ns");
    refused("rate_together:", "d2h: 870", "d3h: 870", "unknown key");
    refused("rate_together:", "\n    - {h2d: 610, d2h: 870, update: 620}",
            " [{h2d: 610, d2h: 870, update: 620}, {h2d: 1, d2h: 1, update: 1}]", "twice");
    refused("rate_together:", "- {h2d: 610, d2h: 870, update: 620}", "- 7", "");
    refused("clip:", "clip:", "clap:", "unknown key");
    refused("units:", "load: {", "name: \"emb\"\n    load: {", "name");
}

/* A missing key names the map that lacks it; lists must have the right length. */
static void missing_parts(void **state)
{
    (void)state;
    Arena *a = arena_open();
    static const struct {
        const char *part, *message;
    } cases[] = {
        {"clip: {median_ns: 23, spread_ns: 0}\n", "clip"},
        {"    update: {median_ns: 640020, spread_ns: 0}\n", "update"},
        {"  - fp: {median_ns: 0, spread_ns: 0}\n    bp: {median_ns: 0, spread_ns: 0}\n", "needs 3"},
        {"  tie: [\"wte=lm_head^T\"]\n", "tie"},
        {"  memory_bytes: 1000000\n", "memory_bytes"},
    };
    char *text = text_of(a, full_profile(a, "model.onnx"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Diag d = {0};
        Profile *q;
        char *at = strstr(text, cases[i].part);
        assert_non_null(at);
        char *wrong = arena_printf(a, "%.*s%s", (int)(at - text), text, at + strlen(cases[i].part));
        assert_int_equal(profile_parse(&d, a, "profile.yaml", wrong, strlen(wrong), &q), ST_MODEL);
        if (!strstr(d.message, "profile.yaml:") || !strstr(d.message, cases[i].message))
            fail_msg("'%s' should name the file and '%s'", d.message, cases[i].message);
    }
    Diag d = {0};
    Profile *q;
    assert_int_equal(profile_read(&d, a, "/nowhere/profile.yaml", &q), ST_USAGE);
    arena_close(a);
}

/* Damaged texts are refused or, when the damage is in a number or a name, accepted; nothing else happens. */
static void damaged_texts(void **state)
{
    (void)state;
    static const char bytes[] = "\0 \n:-[]{}#\"'&*!|>%@`09aZ\t\xff\xc3,";
    Arena *keep = arena_open();
    char *text = text_of(keep, full_profile(keep, "model.onnx"));
    size_t size = strlen(text);
    char *copy = arena_alloc(keep, size, 1);
    uint64_t random = 1;
    int accepted = 0, rejected = 0;
    for (int round = 0; round < 400; round++) {
        memcpy(copy, text, size);
        size_t length = size;
        for (int k = 0; k <= round % 3; k++) {
            random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            copy[(random >> 33) % size] = bytes[(random >> 20) % (sizeof bytes - 1)];
        }
        if (round % 5 == 0)
            length = (random >> 30) % size;
        Arena *a = arena_open();
        Diag d = {0};
        Profile *q;
        Status status = profile_parse(&d, a, "p", copy, length, &q);
        assert_true(status == ST_OK ? q != NULL : status == ST_MODEL && q == NULL && d.message[0] != '\0');
        *(status == ST_OK ? &accepted : &rejected) += 1;
        arena_close(a);
    }
    assert_true(rejected > accepted);
    arena_close(keep);
}

/* The n-th allocation fails, for every n: an error, and nothing is lost or written by halves. */
static void allocations_fail(void **state)
{
    (void)state;
    Arena *keep = arena_open();
    char *folder = test_folder(keep), *path = arena_printf(keep, "%s/a.yaml", folder);
    Profile *p = full_profile(keep, arena_printf(keep, "%s/model.onnx", folder));
    bool done = false;
    for (long n = 1; !done; n++) {
        Diag d = {0};
        Profile *q = NULL;
        remove(path);
        base_fail_alloc(n);
        Arena *a = arena_open();
        Status status = a ? profile_write(&d, p, path, false) : ST_FAILED;
        if (status == ST_OK)
            status = profile_read(&d, a, path, &q);
        base_fail_alloc(0);
        done = status == ST_OK;
        assert_true(done ? q != NULL : status == ST_FAILED && q == NULL);
        if (a)
            arena_close(a);
        assert_true(n < 10000);
    }
    test_folder_remove(keep, folder);
    arena_close(keep);
}

static void matching(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Graph *g = test_graph(a, test_shape);
    test_graph_model(a, g);
    Profile *p = test_profile(a, g, TEST_DEVICE);
    Diag d = {0};
    assert_int_equal(profile_match(&d, p, g, false), ST_OK);
    p->model_hash[0] = 'f';
    assert_int_equal(profile_match(&d, p, g, false), ST_MODEL);
    d = (Diag){0};
    assert_int_equal(profile_match(&d, p, g, true), ST_OK);
    p->layer[1].name = "tail";
    assert_int_equal(profile_match(&d, p, g, true), ST_MODEL);
    assert_non_null(strstr(d.message, "tail"));
    d = (Diag){0};
    p->layer[1].name = "head";
    p->unit[0].name = "emd";
    assert_int_equal(profile_match(&d, p, g, true), ST_MODEL);
    assert_non_null(strstr(d.message, "emd"));
    d = (Diag){0};
    p->n_layer = 1;
    assert_int_equal(profile_match(&d, p, g, true), ST_MODEL);
    assert_non_null(strstr(d.message, "layers"));
    arena_close(a);
}

static void printing(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Profile *p = test_profile(a, test_graph(a, test_shape), TEST_DEVICE);
    Text text = {0};
    profile_print(p, &text);
    assert_false(text.failed);
    char buf[32];
    assert_non_null(strstr(text.at, "head"));
    assert_non_null(strstr(text.at, time_print(buf, p->layer[1].bp[ON_HOST][ON_HOST].median_ns)));
    int lines = 0;
    for (char *s = text.at; *s; s++)
        lines += *s == '\n';
    assert_int_equal(lines, 1 + 2 + 2 + 2 + 1 + 5 + 2);
    text_free(&text);
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),       cmocka_unit_test(path_of_the_model), cmocka_unit_test(overwriting),
        cmocka_unit_test(wrong_files),      cmocka_unit_test(missing_parts),     cmocka_unit_test(damaged_texts),
        cmocka_unit_test(allocations_fail), cmocka_unit_test(matching),          cmocka_unit_test(printing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
