/* Training data: .npy batches and tokens.bin, right ones and wrong ones. */
#include "scratch.h"

#include <math.h>
#include <sys/stat.h>

static const ferry_tensor ids_input = {"input_ids", FERRY_I64, 2, {2, 3}, NULL};
static const ferry_tensor labels_input = {"labels", FERRY_I64, 2, {2, 3}, NULL};

/* An empty folder. */
static const char *folder(const char *name)
{
    const char *path = scratch_path(name);
    assert_int_equal(mkdir(path, 0700), 0);
    return path;
}

static void put_npy(const char *dir, const char *name, ferry_dtype t, int rank, const int64_t *dim, const void *data)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s.npy", dir, name);
    ferry_tensor tensor = {name, t, rank, {0}, (void *)(uintptr_t)data};
    for (int i = 0; i < rank; i++) {
        tensor.dim[i] = dim[i];
    }
    expect_ok(ferry_npy_write(path, &tensor));
}

/* tokens.bin with this header and these bytes after it. */
static void put_tokens(const char *dir, int32_t magic, int32_t version, int32_t count, const void *data, size_t bytes)
{
    static char text[1 << 16];
    const int32_t head[3] = {magic, version, count};
    char name[1024];
    memset(text, 0, 1024);
    memcpy(text, head, sizeof head);
    memcpy(text + 1024, data, bytes);
    snprintf(name, sizeof name, "%s/tokens.bin", strrchr(dir, '/') + 1);
    scratch_file(name, text, 1024 + bytes);
}

static void gives_slices_of_npy(void **state)
{
    (void)state;
    const char *dir = folder("npy");
    int64_t ids[3 * 6];
    float mask[3 * 2];
    for (int i = 0; i < 18; i++) {
        ids[i] = i * 10;
    }
    for (int i = 0; i < 6; i++) {
        mask[i] = (float)i / 2;
    }
    put_npy(dir, "input_ids", FERRY_I64, 3, (const int64_t[]){3, 2, 3}, ids);
    put_npy(dir, "mask", FERRY_F32, 2, (const int64_t[]){3, 2}, mask);
    const ferry_tensor inputs[2] = {{"mask", FERRY_F32, 1, {2}, NULL}, ids_input};
    ferry_data *d;
    const void *out[2];
    expect_ok(ferry_data_open(dir, inputs, 2, &d));
    static const int64_t steps[] = {0, 1, 2, 3, 7, 3000000000001};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        expect_ok(ferry_data_batch(d, steps[i], out));
        assert_memory_equal(out[0], mask + 2 * (steps[i] % 3), 2 * sizeof(float));
        assert_memory_equal(out[1], ids + 6 * (steps[i] % 3), 6 * sizeof(int64_t));
    }
    expect_failure(ferry_data_batch(d, -1, out), FERRY_USAGE, "step -1");
    ferry_data_close(d);
}

static void converts_types(void **state)
{
    (void)state;
    const char *dir = folder("convert");
    const int32_t i32[4] = {-100, 5, 7, 2147483647};
    const int64_t i64[4] = {1, 2, 3, 3000000000};
    const float f32[4] = {1.5F, 0.1F, -2, 1e-40F};
    put_npy(dir, "a", FERRY_I32, 2, (const int64_t[]){2, 2}, i32);
    put_npy(dir, "b", FERRY_I64, 2, (const int64_t[]){2, 2}, i64);
    put_npy(dir, "c", FERRY_F32, 2, (const int64_t[]){2, 2}, f32);
    put_npy(dir, "d", FERRY_F32, 2, (const int64_t[]){2, 2}, f32);
    const ferry_tensor inputs[4] = {{"a", FERRY_I64, 1, {2}, NULL},
                                    {"b", FERRY_I32, 1, {2}, NULL},
                                    {"c", FERRY_F64, 1, {2}, NULL},
                                    {"d", FERRY_BF16, 1, {2}, NULL}};
    ferry_data *d;
    const void *out[4];
    expect_ok(ferry_data_open(dir, inputs, 4, &d));
    expect_ok(ferry_data_batch(d, 0, out));
    assert_memory_equal(out[0], ((const int64_t[]){-100, 5}), 16);
    assert_memory_equal(out[1], ((const int32_t[]){1, 2}), 8);
    assert_memory_equal(out[2], ((const double[]){1.5, (double)0.1F}), 16);
    assert_memory_equal(out[3], ((const uint16_t[]){0x3fc0, 0x3dcd}), 4);
    expect_failure(ferry_data_batch(d, 1, out), FERRY_BAD_DATA,
                   "b.npy: step 1: element 1 is 3000000000, which i32 cannot hold");
    assert_null(out[0]);
    ferry_data_close(d);
}

static void refuses_wrong_npy(void **state)
{
    (void)state;
    const char *dir = folder("wrong");
    int64_t ids[64] = {0};
    ferry_data *d = (ferry_data *)1;
    static const struct {
        ferry_dtype t;
        int rank;
        int64_t dim[4];
        const char *text;
    } cases[] = {
        {FERRY_I64, 3, {2, 2, 4}, "is i64 [2, 2, 4], expected one more axis in front of i64 [2, 3]"},
        {FERRY_I64, 3, {2, 3, 2}, "is i64 [2, 3, 2]"},
        {FERRY_I64, 2, {2, 3}, "is i64 [2, 3], expected"},
        {FERRY_I64, 4, {1, 2, 3, 1}, "is i64 [1, 2, 3, 1]"},
        {FERRY_F32, 3, {2, 2, 3}, "is f32 [2, 2, 3], expected one more axis in front of i64"},
        {FERRY_I64, 3, {0, 2, 3}, "holds no step"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_npy(dir, "input_ids", cases[i].t, cases[i].rank, cases[i].dim, ids);
        expect_failure(ferry_data_open(dir, &ids_input, 1, &d), FERRY_BAD_DATA, cases[i].text);
        assert_non_null(strstr(ferry_error(), "input_ids.npy"));
        assert_null(d);
    }
    const ferry_tensor real = {"x", FERRY_F32, 1, {2}, NULL};
    put_npy(dir, "x", FERRY_F64, 2, (const int64_t[]){1, 2}, ids);
    expect_failure(ferry_data_open(dir, &real, 1, &d), FERRY_BAD_DATA, "save it as float32");
    scratch_file("wrong/x.npy", "\x93NUMPY", 6);
    expect_failure(ferry_data_open(dir, &real, 1, &d), FERRY_BAD_DATA, "x.npy is not a .npy file");
    const ferry_tensor absent = {"y", FERRY_F32, 1, {2}, NULL};
    expect_failure(ferry_data_open(dir, &absent, 1, &d), FERRY_USAGE, "y.npy: no such file");
    char path[2048];
    snprintf(path, sizeof path, "%s/y.npy", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_failure(ferry_data_open(dir, &absent, 1, &d), FERRY_BAD_DATA, "y.npy is not a regular file but a fifo");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_failure(ferry_data_open(dir, &absent, 1, &d), FERRY_BAD_DATA, "a folder");
    expect_ok(ferry_data_open(path, NULL, 0, &d)); /* no inputs: nothing is needed */
    ferry_data_close(d);
    expect_failure(ferry_data_open(scratch_path("none"), &absent, 1, &d), FERRY_USAGE, "none");
    expect_failure(ferry_data_open(scratch_path("wrong/x.npy"), &absent, 1, &d), FERRY_USAGE, "not a folder");
    static const char *const names[] = {"../x", "/etc/x", "a/../../x", ""};
    for (int i = 0; i < 4; i++) {
        const ferry_tensor out = {names[i], FERRY_F32, 1, {2}, NULL};
        expect_failure(ferry_data_open(dir, &out, 1, &d), FERRY_USAGE, "impossible name");
    }
    const ferry_tensor huge = {"x", FERRY_F32, 2, {INT64_MAX, 2}, NULL};
    expect_failure(ferry_data_open(dir, &huge, 1, &d), FERRY_USAGE, "impossible");
}

/* Rows of seq + 1 = 4 tokens; 18 tokens make four whole rows, two tokens are left over. */
static void reads_tokens(void **state)
{
    (void)state;
    for (int version = 1; version <= 2; version++) {
        const char *dir = folder(version == 1 ? "tokens1" : "tokens2");
        uint16_t narrow[18];
        uint32_t wide[18];
        for (int i = 0; i < 18; i++) {
            narrow[i] = (uint16_t)(50000 + i);
            wide[i] = 70000U + (uint32_t)i;
        }
        int64_t base = version == 1 ? 50000 : 70000;
        put_tokens(dir, 20240520, version, 18, version == 1 ? (void *)narrow : (void *)wide, version == 1 ? 36 : 72);
        ferry_tensor inputs[2] = {labels_input, ids_input};
        inputs[1].dtype = version == 1 ? FERRY_I64 : FERRY_I32;
        ferry_data *d;
        const void *out[2];
        expect_ok(ferry_data_open(dir, inputs, 2, &d));
        for (int64_t step = 0; step < 5; step++) {
            expect_ok(ferry_data_batch(d, step, out));
            for (int64_t b = 0; b < 2; b++) {
                int64_t row = (step * 2 + b) % 4;
                for (int64_t i = 0; i < 3; i++) {
                    int64_t id =
                        version == 1 ? ((const int64_t *)out[1])[b * 3 + i] : ((const int32_t *)out[1])[b * 3 + i];
                    assert_int_equal(id, base + row * 4 + i);
                    assert_int_equal(((const int64_t *)out[0])[b * 3 + i], base + row * 4 + i + 1);
                }
            }
        }
        expect_ok(ferry_data_batch(d, INT64_MAX, out));
        ferry_data_close(d);
    }
}

static void takes_fewer_rows_than_a_batch(void **state)
{
    (void)state;
    const char *dir = folder("short");
    const uint16_t four[4] = {1, 2, 3, 4};
    put_tokens(dir, 20240520, 1, 4, four, 8);
    ferry_data *d;
    const void *out[1];
    expect_ok(ferry_data_open(dir, &ids_input, 1, &d));
    expect_ok(ferry_data_batch(d, 3, out));
    assert_memory_equal(out[0], ((const int64_t[]){1, 2, 3, 1, 2, 3}), 48);
    ferry_data_close(d);
}

static void refuses_wrong_tokens(void **state)
{
    (void)state;
    const char *dir = folder("badtokens");
    const uint32_t data[8] = {1, 2, 3, 0x80000000U, 5, 6, 7, 8};
    ferry_data *d;
    static const struct {
        int32_t magic, version, count;
        size_t bytes;
        const char *text;
    } cases[] = {
        {20240521, 1, 8, 16, "starts with 20240521, expected 20240520"},
        {20240520, 3, 8, 16, "version 3, expected 1 (uint16) or 2 (uint32)"},
        {20240520, 1, 8, 15, "8 tokens of 2 bytes do not match the 15 bytes"},
        {20240520, 1, 8, 17, "8 tokens of 2 bytes do not match the 17 bytes"},
        {20240520, 2, 8, 16, "8 tokens of 4 bytes do not match"},
        {20240520, 1, -8, 16, "-8 tokens"},
        {20240520, 1, 3, 6, "holds 3 tokens, input 'input_ids' i64 [2, 3] needs rows of seq + 1"},
        {20240520, 1, 0, 0, "holds 0 tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_tokens(dir, cases[i].magic, cases[i].version, cases[i].count, data, cases[i].bytes);
        expect_failure(ferry_data_open(dir, &ids_input, 1, &d), FERRY_BAD_DATA, cases[i].text);
        assert_non_null(strstr(ferry_error(), "tokens.bin"));
        assert_null(d);
    }
    scratch_file("badtokens/tokens.bin", data, 20);
    expect_failure(ferry_data_open(dir, &ids_input, 1, &d), FERRY_BAD_DATA, "has 20 bytes, expected a header of 1024");
    /* an id that the model's type cannot hold */
    put_tokens(dir, 20240520, 2, 8, data, 32);
    ferry_tensor narrow = ids_input;
    narrow.dtype = FERRY_I32;
    const void *out[1];
    expect_ok(ferry_data_open(dir, &narrow, 1, &d));
    expect_ok(ferry_data_batch(d, 0, out)); /* it is the last of its row: of the labels alone */
    ferry_data_close(d);
    narrow.name = "labels";
    expect_ok(ferry_data_open(dir, &narrow, 1, &d));
    expect_failure(ferry_data_batch(d, 0, out), FERRY_BAD_DATA, "tokens.bin: row 0: element 2 is 2147483648");
    ferry_data_close(d);
    /* inputs that tokens cannot give */
    ferry_tensor wrong = {"labels", FERRY_F32, 2, {2, 3}, NULL};
    expect_failure(ferry_data_open(dir, &wrong, 1, &d), FERRY_BAD_DATA, "input 'labels' is f32 [2, 3]");
    wrong = (ferry_tensor){"labels", FERRY_I64, 1, {2}, NULL};
    expect_failure(ferry_data_open(dir, &wrong, 1, &d), FERRY_BAD_DATA, "input 'labels' is i64 [2]");
    wrong = (ferry_tensor){"labels", FERRY_I64, 2, {0, INT64_MAX / 8}, NULL};
    expect_failure(ferry_data_open(dir, &wrong, 1, &d), FERRY_BAD_DATA, "needs rows");
    wrong = (ferry_tensor){"attention_mask", FERRY_I64, 2, {2, 3}, NULL};
    expect_failure(ferry_data_open(dir, &wrong, 1, &d), FERRY_USAGE, "input 'attention_mask' needs");
    /* two files for one input */
    put_npy(dir, "input_ids", FERRY_I64, 3, (const int64_t[]){0, 2, 3}, NULL);
    expect_failure(ferry_data_open(dir, &ids_input, 1, &d), FERRY_BAD_DATA, "remove one");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_slices_of_npy),
        cmocka_unit_test(converts_types),
        cmocka_unit_test(refuses_wrong_npy),
        cmocka_unit_test(reads_tokens),
        cmocka_unit_test(takes_fewer_rows_than_a_batch),
        cmocka_unit_test(refuses_wrong_tokens),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
