/* Checkpoints and the log. */
#include "scratch.h"

#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <sys/stat.h>

enum { COUNT = 3 };

typedef struct run {
    float w[6], wm[6], wv[6];
    double b[2], bm[2], bv[2];
    uint16_t h[3];
    float hm[3], hv[3];
    ferry_tensor p[COUNT], m[COUNT], v[COUNT];
} run;

static void fill(run *r, int seed)
{
    memset(r, 0, sizeof *r);
    for (int i = 0; i < 6; i++) {
        r->w[i] = (float)(seed + i) / 3;
        r->wm[i] = (float)(seed * i) / 7;
        r->wv[i] = (float)(seed + 2 * i);
    }
    for (int i = 0; i < 2; i++) {
        r->b[i] = seed / 3.0 + i;
        r->bm[i] = seed / 7.0 - i;
        r->bv[i] = seed;
    }
    for (int i = 0; i < 3; i++) {
        r->h[i] = (uint16_t)(seed * 100 + i);
        r->hm[i] = (float)seed;
        r->hv[i] = (float)i;
    }
    const ferry_tensor w = {"h.0.w", FERRY_F32, 2, {2, 3}, r->w}, b = {"bias", FERRY_F64, 1, {2}, r->b};
    const ferry_tensor h = {"half", FERRY_BF16, 1, {3}, r->h};
    r->p[0] = r->m[0] = r->v[0] = w;
    r->p[1] = r->m[1] = r->v[1] = b;
    r->p[2] = r->m[2] = r->v[2] = h;
    r->m[0].data = r->wm;
    r->v[0].data = r->wv;
    r->m[1].data = r->bm;
    r->v[1].data = r->bv;
    r->m[2].dtype = r->v[2].dtype = FERRY_F32; /* bf16 parameters have f32 state */
    r->m[2].data = r->hm;
    r->v[2].data = r->hv;
    r->m[1].name = NULL; /* not read */
}

/* The data alone, without the tensors that point to it. */
static bool same_data(const run *a, const run *b)
{
    return memcmp(a, b, offsetof(run, p)) == 0;
}

static void comes_back(void **state)
{
    (void)state;
    run a, b;
    fill(&a, 5);
    fill(&b, 9);
    const char *dir = scratch_path("new/folders/ckpt"); /* made with the folders above */
    expect_ok(ferry_checkpoint_save(dir, a.p, a.m, a.v, COUNT, 123456789012345));
    int64_t step = -1;
    expect_ok(ferry_checkpoint_load(dir, b.p, b.m, b.v, COUNT, &step));
    assert_int_equal(step, 123456789012345);
    assert_true(same_data(&a, &b));
    /* the names in the file */
    ferry_weights *w;
    char path[2048];
    snprintf(path, sizeof path, "%s/checkpoint.safetensors", dir);
    expect_ok(ferry_weights_open(path, &w));
    assert_int_equal(ferry_weights_count(w), 9);
    assert_memory_equal(ferry_weights_find(w, "h.0.w")->data, a.w, sizeof a.w);
    assert_memory_equal(ferry_weights_find(w, "optimizer.m.h.0.w")->data, a.wm, sizeof a.wm);
    assert_memory_equal(ferry_weights_find(w, "optimizer.v.half")->data, a.hv, sizeof a.hv);
    assert_string_equal(ferry_weights_meta(w, "schema"), "ferryc/checkpoint/1");
    assert_string_equal(ferry_weights_meta(w, "step"), "123456789012345");
    ferry_weights_close(w);
    /* over an older one; in the order of another program */
    fill(&a, 6);
    expect_ok(ferry_checkpoint_save(dir, a.p, a.m, a.v, COUNT, 7));
    ferry_tensor p[COUNT], m[COUNT], v[COUNT];
    for (int i = 0; i < COUNT; i++) {
        p[i] = b.p[COUNT - 1 - i];
        m[i] = b.m[COUNT - 1 - i];
        v[i] = b.v[COUNT - 1 - i];
    }
    expect_ok(ferry_checkpoint_load(dir, p, m, v, COUNT, &step));
    assert_true(same_data(&a, &b));
    assert_int_equal(step, 7);
}

/* Saves `file` and loads it as `want`, which must fail with this text and change nothing. */
static void expect_refusal(const run *file, const run *want, int file_count, int want_count, const char *text)
{
    const char *dir = scratch_path("refused");
    run before = *want;
    int64_t step = -7;
    expect_ok(ferry_checkpoint_save(dir, file->p, file->m, file->v, file_count, 1));
    expect_failure(ferry_checkpoint_load(dir, want->p, want->m, want->v, want_count, &step), FERRY_BAD_DATA, text);
    assert_non_null(strstr(ferry_error(), "refused/checkpoint.safetensors"));
    assert_true(same_data(want, &before));
    assert_int_equal(step, -7);
}

static void refuses_other_tensors(void **state)
{
    (void)state;
    run a, b;
    fill(&a, 5);
    fill(&b, 9);
    expect_refusal(&a, &b, 2, 3, "tensor 'half' is missing");
    expect_refusal(&a, &b, 3, 2, "tensor 'optimizer.m.half' is not one of this model's");
    b.p[0].dim[0] = 3;
    b.p[0].dim[1] = 2;
    expect_refusal(&a, &b, 3, 3, "tensor 'h.0.w' is f32 [2, 3], expected f32 [3, 2]");
    fill(&b, 9);
    b.p[0].rank = 1;
    b.p[0].dim[0] = 6;
    expect_refusal(&a, &b, 3, 3, "tensor 'h.0.w' is f32 [2, 3], expected f32 [6]");
    fill(&b, 9);
    b.m[2].dtype = FERRY_BF16;
    expect_refusal(&a, &b, 3, 3, "tensor 'optimizer.m.half' is f32 [3], expected bf16 [3]");
    fill(&b, 9);
    b.p[1].name = "other";
    expect_refusal(&a, &b, 3, 3, "is missing");
}

static void refuses_what_is_no_checkpoint(void **state)
{
    (void)state;
    run a, before;
    fill(&a, 5);
    before = a;
    int64_t step = -7;
    const char *dir = scratch_path("none");
    expect_failure(ferry_checkpoint_load(dir, a.p, a.m, a.v, COUNT, &step), FERRY_USAGE, "none/checkpoint.safetensors");
    assert_int_equal(mkdir(dir, 0700), 0);
    expect_failure(ferry_checkpoint_load(dir, a.p, a.m, a.v, COUNT, &step), FERRY_USAGE, "none/checkpoint.safetensors");
    static const struct {
        const char *schema, *step, *text;
    } cases[] = {{"ferryc/checkpoint/2", "1", "its schema is ferryc/checkpoint/2, expected ferryc/checkpoint/1"},
                 {NULL, "1", "its schema is missing"},
                 {"ferryc/checkpoint/1", "", "the step '' is not"},
                 {"ferryc/checkpoint/1", "-1", "the step '-1' is not"},
                 {"ferryc/checkpoint/1", "1x", "the step '1x' is not"},
                 {"ferryc/checkpoint/1", "9223372036854775808", "the step '9223372036854775808' is not"}};
    char path[2048];
    snprintf(path, sizeof path, "%s/checkpoint.safetensors", dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ferry_meta meta[2] = {{"step", cases[i].step}, {"schema", cases[i].schema}};
        expect_ok(ferry_weights_write(path, NULL, 0, meta, cases[i].schema != NULL ? 2 : 1));
        expect_failure(ferry_checkpoint_load(dir, NULL, NULL, NULL, 0, &step), FERRY_BAD_DATA, cases[i].text);
    }
    /* every cut of a good file */
    expect_ok(ferry_checkpoint_save(dir, a.p, a.m, a.v, COUNT, 3));
    size_t n;
    char *whole = scratch_read(path, &n);
    for (size_t size = 0; size < n; size += 3) {
        scratch_file("none/checkpoint.safetensors", whole, size);
        expect_failure(ferry_checkpoint_load(dir, a.p, a.m, a.v, COUNT, &step), FERRY_BAD_DATA,
                       "checkpoint.safetensors");
    }
    free(whole);
    assert_true(same_data(&a, &before));
    assert_int_equal(step, -7);
}

static void refuses_wrong_calls(void **state)
{
    (void)state;
    run a;
    fill(&a, 5);
    int64_t step;
    const char *dir = scratch_path("wrong");
    expect_failure(ferry_checkpoint_save(dir, a.p, a.m, a.v, COUNT, -1), FERRY_USAGE, "negative");
    expect_failure(ferry_checkpoint_save("", a.p, a.m, a.v, COUNT, 1), FERRY_USAGE, "folder");
    expect_failure(ferry_checkpoint_save(dir, a.p, NULL, a.v, COUNT, 1), FERRY_USAGE, "state");
    expect_failure(ferry_checkpoint_load(dir, a.p, a.m, a.v, COUNT, NULL), FERRY_USAGE, "step");
    a.p[1].name = "h.0.w";
    expect_failure(ferry_checkpoint_save(dir, a.p, a.m, a.v, COUNT, 1), FERRY_USAGE, "'h.0.w' stands twice");
    a.p[1].name = "optimizer.m.h.0.w";
    expect_failure(ferry_checkpoint_save(dir, a.p, a.m, a.v, COUNT, 1), FERRY_USAGE, "stands twice");
    a.p[1].name = NULL;
    expect_failure(ferry_checkpoint_save(dir, a.p, a.m, a.v, COUNT, 1), FERRY_USAGE, "no name");
    scratch_file("file", "x", 1);
    fill(&a, 5);
    expect_failure(ferry_checkpoint_save(scratch_path("file"), a.p, a.m, a.v, COUNT, 1), FERRY_USAGE, "not a folder");
    expect_failure(ferry_checkpoint_save(scratch_path("file/x"), a.p, a.m, a.v, COUNT, 1), FERRY_FAILED,
                   "cannot be made");
    expect_failure(ferry_checkpoint_load(scratch_path("file"), a.p, a.m, a.v, COUNT, &step), FERRY_USAGE, "file");
}

/* ---- the log --------------------------------------------------------------------------------------------------- */

static void logs_lines_of_json(void **state)
{
    (void)state;
    const char *path = scratch_path("run.jsonl");
    ferry_log *log;
    setlocale(LC_ALL, "de_DE.UTF-8"); /* a decimal comma, where the machine has it */
    expect_ok(ferry_log_open(path, false, &log));
    expect_ok(ferry_log_write(log, &(ferry_log_line){1, 0.1, 1e300, 2.5, 1LL << 40}));
    expect_ok(ferry_log_write(log, &(ferry_log_line){2, NAN, -INFINITY, 5e-324, 0}));
    expect_ok(ferry_log_close(log));
    expect_ok(ferry_log_open(path, true, &log));
    expect_ok(ferry_log_write(log, &(ferry_log_line){3, 1.0 / 3, NAN, 0, 7}));
    size_t n;
    char *text = scratch_read(path, &n); /* before the log is closed: nothing is held back */
    static const char want[] =
        "{\"step\": 1, \"loss\": 0.10000000000000001, \"grad_norm\": 1.0000000000000001e+300, \"ms\": 2.5, \"bytes\": "
        "1099511627776}\n"
        "{\"step\": 2, \"loss\": null, \"grad_norm\": null, \"ms\": 4.9406564584124654e-324, \"bytes\": 0}\n"
        "{\"step\": 3, \"loss\": 0.33333333333333331, \"grad_norm\": null, \"ms\": 0, \"bytes\": 7}\n";
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(text, want, n);
    expect_ok(ferry_log_close(log));
    setlocale(LC_ALL, "C");
    for (char *line = text; line < text + n; line = strchr(line, '\n') + 1) {
        json_t *value = json_loadb(line, (size_t)(strchr(line, '\n') - line), 0, NULL);
        assert_int_equal(json_object_size(value), 5);
        json_decref(value);
    }
    free(text);
    expect_ok(ferry_log_open(path, false, &log)); /* anew */
    expect_ok(ferry_log_close(log));
    text = scratch_read(path, &n);
    assert_int_equal(n, 0);
    free(text);
    expect_failure(ferry_log_open(scratch_path("no/x"), false, &log), FERRY_USAGE, "no/x");
    assert_null(log);
    expect_failure(ferry_log_open(scratch_dir, false, &log), FERRY_USAGE, "log");
    const char *fifo = scratch_path("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    expect_failure(ferry_log_open(fifo, false, &log), FERRY_FAILED, "fifo"); /* and does not wait for a reader */
    expect_ok(ferry_log_open("/dev/full", false, &log));
    expect_failure(ferry_log_write(log, &(ferry_log_line){1, 1, 1, 1, 1}), FERRY_FAILED, "/dev/full");
    expect_ok(ferry_log_close(log));
    expect_ok(ferry_log_close(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(refuses_other_tensors),
        cmocka_unit_test(refuses_what_is_no_checkpoint),
        cmocka_unit_test(refuses_wrong_calls),
        cmocka_unit_test(logs_lines_of_json),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
