/* test_emit.c - the folder that emit writes: what is in it (golden files), and when nothing may be written. */
#include "tiny.h"

static const char *const NAMES[] = {"ids",         "m.wte.weight", "e",       "scale",   "s",
                                    "m.fc.weight", "m.fc.bias",    "fc",      "fc_tanh", "m.out.weight",
                                    "m.out.bias",  "out",          "out_tanh"};

typedef struct World {
    Arena *a;
    char *dir, *out;
    Tiny t;
} World;

static World world_open(const EmitOptions *options, Status expected, Diag *d)
{
    World w = {.a = arena_open()};
    w.dir = tiny_dir(w.a);
    w.out = path_join(w.a, w.dir, "out");
    tiny_write(path_join(w.a, w.dir, "m.onnx"), NAMES, 2);
    *d = (Diag){.quiet = true};
    if (tiny_road(d, w.a, w.dir, "mse", "go-memferry", options, &w.t) != expected)
        fail_msg("status %d: %s", d->status, d->message);
    return w;
}

static void world_close(World *w)
{
    tiny_close(&w->t);
    tiny_remove(w->dir);
    arena_close(w->a);
}

static Status again(World *w, Diag *d, const char *out, bool force, bool random_init)
{
    *d = (Diag){.quiet = true};
    return emit(d, w->a, w->t.profile, w->t.steps,
                &(EmitOptions){.dir = out, .prefix = w->dir, .force = force, .random_init = random_init});
}

static char *content(Arena *a, const char *path, int64_t *size)
{
    Diag d = {0};
    uint8_t *bytes;
    if (file_read(&d, path, 1 << 24, &bytes, size) != ST_OK)
        fail_msg("%s", d.message);
    char *copy = arena_alloc(a, (size_t)*size + 1, 1);
    memcpy(copy, bytes, (size_t)*size);
    base_free(bytes);
    return copy;
}

/* FERRY_UPDATE_GOLDEN=1 writes the files anew; the difference is what to review. */
static void test_golden(void **state)
{
    (void)state;
    static const char *const files[][2] = {{"plan.yaml", "plan.yaml"},
                                           {"out/schedule.c", "schedule.c"},
                                           {"out/schedule.h", "schedule.h"},
                                           {"out/schedule.yaml", "schedule.yaml"}};
    Diag d;
    World w = world_open(&(EmitOptions){0}, ST_OK, &d);
    bool same = true;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int64_t size, golden_size = 0;
        char *text = content(w.a, path_join(w.a, w.dir, files[i][0]), &size);
        char *golden = path_join(w.a, FERRY_SOURCE_DIR "/tests/golden/tiny", files[i][1]);
        if (getenv("FERRY_UPDATE_GOLDEN"))
            assert_int_equal(file_write(&d, golden, text, (size_t)size), ST_OK);
        char *want = file_exists(golden) ? content(w.a, golden, &golden_size) : NULL;
        if (want && size == golden_size && memcmp(text, want, (size_t)size) == 0)
            continue;
        same = false;
        print_message("%s differs:\n", golden);
        (void)!tiny_shell("diff -u %s %s/%s | head -n 40", golden, w.dir, files[i][0]);
    }
    if (!same)
        fail_msg("if that is what was wanted: FERRY_UPDATE_GOLDEN=1 and review the difference");
    tiny_compile(w.dir);
    world_close(&w);
}

static int entries(const char *dir)
{
    assert_true(tiny_shell("ls -A %s | wc -l >%s.count", dir, dir));
    Arena *a = arena_open();
    int64_t size;
    int n = atoi(content(a, arena_printf(a, "%s.count", dir), &size));
    arena_close(a);
    return n;
}

static void test_places_that_take_nothing(void **state)
{
    (void)state;
    Diag d;
    World w = world_open(&(EmitOptions){0}, ST_OK, &d);
    char *file = path_join(w.a, w.dir, "file"), *locked = path_join(w.a, w.dir, "locked");
    assert_int_equal(file_write(&d, file, "x", 1), ST_OK);
    /* a file where the folder should be, a folder in no folder, a file system that takes none */
    assert_int_not_equal(again(&w, &d, file, false, false), ST_OK);
    assert_non_null(strstr(d.message, "file"));
    assert_int_equal(again(&w, &d, path_join(w.a, w.dir, "no/where"), false, false), ST_USAGE);
    assert_non_null(strstr(d.message, "no/where"));
    assert_int_not_equal(again(&w, &d, "/proc/schedule", false, false), ST_OK);
    assert_non_null(strstr(d.message, "/proc/schedule"));
    /* the folder of libferry has to be there: the Makefile names it */
    char *gone = path_join(w.a, w.dir, "gone");
    d = (Diag){.quiet = true};
    assert_int_equal(emit(&d, w.a, w.t.profile, w.t.steps, &(EmitOptions){.dir = path_join(w.a, w.dir, "new"), .prefix = gone}),
                     ST_FAILED);
    assert_non_null(strstr(d.message, "gone"));
    /* a folder without the right to write; root has it anyway */
    assert_int_equal(mkdir(locked, 0555), 0);
    if (access(locked, W_OK) != 0) {
        assert_int_equal(again(&w, &d, locked, false, false), ST_FAILED);
        assert_non_null(strstr(d.message, "locked"));
        assert_int_equal(entries(locked), 0);
    }
    /* a folder that holds a folder under the name of a file */
    assert_true(tiny_shell("rm -r %s/schedule.c && mkdir %s/schedule.c", w.out, w.out));
    assert_int_not_equal(again(&w, &d, w.out, true, false), ST_OK);
    assert_non_null(strstr(d.message, "schedule.c"));
    world_close(&w);
}

/* Each file of somebody else stops everything, before anything is written. */
static void test_foreign_files(void **state)
{
    (void)state;
    static const char *const names[] = {"schedule.h",           "schedule.c", "Makefile",
                                        "schedule.yaml",        "trainer.c",  "weights.safetensors",
                                        "constants.safetensors"};
    Diag d;
    World w = world_open(&(EmitOptions){0}, ST_OK, &d);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *other = arena_printf(w.a, "%s/other%d", w.dir, (int)i);
        assert_int_equal(mkdir(other, 0777), 0);
        char *path = path_join(w.a, other, names[i]);
        assert_int_equal(file_write(&d, path, "mine\n", 5), ST_OK);
        assert_int_equal(again(&w, &d, other, false, false), ST_USAGE);
        assert_non_null(strstr(d.message, names[i]));
        assert_non_null(strstr(d.hint, "-f"));
        assert_int_equal(entries(other), 1);
        assert_int_equal(again(&w, &d, other, true, false), ST_OK);
        assert_int_equal(again(&w, &d, other, false, false), ST_OK);
        /* edited: refused as well, but for the trainer, which stays as it is */
        bool trainer = strcmp(names[i], "trainer.c") == 0;
        if (strstr(names[i], ".safetensors"))
            continue;
        assert_true(tiny_shell("echo '//' >>%s", path));
        int64_t before, after;
        content(w.a, path, &before);
        assert_int_equal(again(&w, &d, other, false, false), trainer ? ST_OK : ST_USAGE);
        content(w.a, path, &after);
        assert_int_equal(before, after);
    }
    world_close(&w);
}

static void test_missing_values(void **state)
{
    (void)state;
    Diag d;
    World w = world_open(&(EmitOptions){0}, ST_OK, &d);
    w.t.graph[1]->param[1].data = NULL; /* as when its external file is not there */
    char *other = path_join(w.a, w.dir, "other");
    assert_int_equal(again(&w, &d, other, false, false), ST_MODEL);
    assert_non_null(strstr(d.message, w.t.graph[1]->param[1].name));
    assert_non_null(strstr(d.hint, "--random-init"));
    assert_false(file_exists(other));
    assert_int_equal(again(&w, &d, other, false, true), ST_OK);
    assert_false(file_exists(path_join(w.a, other, "weights.safetensors")));
    world_close(&w);
}

/* What emit writes comes back; anything else is refused with its line. */
static void test_schedule_yaml(void **state)
{
    (void)state;
    Diag d;
    World w = world_open(&(EmitOptions){0}, ST_OK, &d);
    Graph *g = w.t.graph[1];
    g->param[0].alias = (ParamAlias[]){{"other \"name\"\n", true}, {"重み", false}};
    g->param[0].n_alias = 2;
    assert_int_equal(again(&w, &d, w.out, false, false), ST_OK);
    Schedule *s;
    assert_int_equal(schedule_read(&d, w.a, w.out, &s), ST_OK);
    assert_int_equal(s->n_param, g->n_param);
    assert_string_equal(s->model_hash, g->model->hash);
    assert_true(file_exists(s->model_path));
    for (int i = 0; i < g->n_param; i++) {
        assert_string_equal(s->param[i].name, g->param[i].name);
        assert_int_equal(s->param[i].n_alias, g->param[i].n_alias);
        for (int k = 0; k < g->param[i].n_alias; k++) {
            assert_string_equal(s->param[i].alias[k].name, g->param[i].alias[k].name);
            assert_int_equal(s->param[i].alias[k].transposed, g->param[i].alias[k].transposed);
        }
    }
    static const struct {
        const char *edit, *message;
    } wrong[] = {
        {"s/^schema:.*/schema: ferryc\\/schedule\\/2/", "schedule.yaml:2: schema"},
        {"s/^tool:.*/&\\nmore: 1/", "more"},
        {"/^tool:/d", "tool"},
        {"s/hash: .*/hash: \"12\"/", "hash is 32"},
        {"/^  path:/d", "path"},
        {"s/transposed: true/transposed: 1/", "transposed"},
        {"s/^    ties: \\[\\]/    ties: 3/", "ties"},
        {"s/^      - name: .*/      - nom: x/", "nom"},
        {"s/^  - name: .*/  - 7/;/ties:/,$d", "a parameter is a map"},
        {"/^parameters:/,$d", "parameters"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *other = arena_printf(w.a, "%s/wrong%d", w.dir, (int)i);
        assert_int_equal(mkdir(other, 0777), 0);
        assert_true(tiny_shell("sed -e '%s' %s/schedule.yaml >%s/schedule.yaml", wrong[i].edit, w.out, other));
        d = (Diag){.quiet = true};
        assert_int_equal(schedule_read(&d, w.a, other, &s), ST_MODEL);
        assert_null(s);
        if (!strstr(d.message, wrong[i].message))
            fail_msg("'%s' is not about '%s'", d.message, wrong[i].message);
    }
    d = (Diag){.quiet = true};
    assert_int_equal(schedule_read(&d, w.a, w.dir, &s), ST_USAGE);
    assert_non_null(strstr(d.hint, "ferryc emit"));
    world_close(&w);
}

static void string_is(const char *name, const char *literal)
{
    Text t = {0};
    c_text_string(&t, name);
    assert_string_equal(t.at, literal);
    text_free(&t);
}

static void comment_is(const char *name, const char *want)
{
    Text t = {0};
    text_add(&t, "|");
    c_text_comment(&t, name);
    assert_string_equal(t.at + 1, want);
    text_free(&t);
}

static void test_c_text(void **state)
{
    (void)state;
    string_is("", "\"\"");
    string_is("a\"b\\c", "\"a\\\"b\\\\c\"");
    string_is("\n1", "\"\\0121\"");
    string_is("?\?/", "\"?\\?/\"");
    string_is("é😀", "\"é😀\"");
    string_is("\xff"
              "a",
              "\"\\377a\"");
    string_is("\xe2\x80\xae", "\"\\342\\200\\256\"");
    comment_is("a*/b", "a./b");
    comment_is("/*/", "../");
    comment_is("a\nb\\", "a.b.");
    comment_is("é\xff", "é.");
    comment_is("\xe2\x81\xa6", "...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_places_that_take_nothing),
        cmocka_unit_test(test_foreign_files), cmocka_unit_test(test_missing_values),
        cmocka_unit_test(test_schedule_yaml), cmocka_unit_test(test_c_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
