/* safetensors files: one that the format's own library wrote, one of ours that it has read, and wrong ones. */
#include "scratch.h"

#include <math.h>

static const char reference[] = FERRY_SOURCE_DIR "/tests/data/reference.safetensors";
static const char written[] = FERRY_SOURCE_DIR "/tests/data/written.safetensors";

static void expect_tensor(const ferry_weights *w, const char *name, ferry_dtype dtype, int rank, const int64_t *dim,
                          const void *data, size_t bytes)
{
    const ferry_tensor *t = ferry_weights_find(w, name);
    assert_non_null(t);
    assert_string_equal(t->name, name);
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->rank, rank);
    for (int i = 0; i < rank; i++) {
        assert_int_equal(t->dim[i], dim[i]);
    }
    assert_int_equal(ferry_tensor_bytes(t), bytes);
    assert_int_equal((uintptr_t)t->data % ferry_dtype_bytes(dtype), 0);
    if (bytes > 0) {
        assert_memory_equal(t->data, data, bytes);
    }
}

#define EXPECT(name, dtype, T, rank, dims, ...)                                                                        \
    do {                                                                                                               \
        const T want[] = {__VA_ARGS__};                                                                                \
        expect_tensor(w, name, dtype, rank, (const int64_t[])dims, want, sizeof want);                                 \
    } while (0)
#define PASS(...) __VA_ARGS__

static void reads_the_reference(void **state)
{
    (void)state;
    ferry_weights *w;
    expect_ok(ferry_weights_open(reference, &w));
    assert_int_equal(ferry_weights_count(w), 15);
    EXPECT("wte.weight", FERRY_F32, float, 2, PASS({2, 3}), 1.5F, -2.25F, 3.0F, 0.1F, 1e-40F, INFINITY);
    EXPECT("a.f64", FERRY_F64, double, 1, PASS({2}), 0.1, -3.5);
    EXPECT("a.f16", FERRY_F16, uint16_t, 1, PASS({3}), 0x3c00, 0x7bff, 0xb800);
    EXPECT("a.bf16", FERRY_BF16, uint16_t, 1, PASS({3}), 0x3f80, 0xc040, 0x3eab);
    EXPECT("ids", FERRY_I64, int64_t, 2, PASS({2, 2}), -100, 5, 1LL << 40, 7);
    EXPECT("i32", FERRY_I32, int32_t, 1, PASS({2}), -7, 8);
    EXPECT("i16", FERRY_I16, int16_t, 1, PASS({1}), -300);
    EXPECT("i8", FERRY_I8, int8_t, 1, PASS({3}), -128, 127, 0);
    EXPECT("u8", FERRY_U8, uint8_t, 1, PASS({1}), 255);
    EXPECT("u16", FERRY_U16, uint16_t, 1, PASS({1}), 65535);
    EXPECT("u32", FERRY_U32, uint32_t, 1, PASS({1}), 4294967295U);
    EXPECT("u64", FERRY_U64, uint64_t, 1, PASS({1}), UINT64_MAX);
    EXPECT("flag", FERRY_BOOL, uint8_t, 1, PASS({3}), 1, 0, 1);
    EXPECT("scalar", FERRY_F32, float, 0, PASS({0}), 2.5F);
    expect_tensor(w, "empty", FERRY_F32, 2, (const int64_t[]){0, 4}, NULL, 0);
    assert_string_equal(ferry_weights_meta(w, "format"), "pt");
    assert_string_equal(ferry_weights_meta(w, "note"), "gr\xc3\xbc\xc3\x9f");
    assert_null(ferry_weights_meta(w, "other"));
    assert_null(ferry_weights_find(w, "wte"));
    assert_null(ferry_weights_find(w, "zzz"));
    assert_null(ferry_weights_find(w, ""));
    assert_null(ferry_weights_at(w, 15));
    assert_null(ferry_weights_at(w, -1));
    ferry_weights_close(w);
}

/* The committed file was read by the safetensors library for Python, which found these tensors in it. */
static void writes_the_committed_file(void **state)
{
    (void)state;
    uint8_t flag[3] = {1, 0, 1};
    float f32[4] = {1.5F, -2.0F, 0.25F, 1e-45F};
    double f64[2] = {0.1, -1e300};
    uint16_t bf16[3] = {0x3f80, 0xc040, 0x3eab};
    int64_t i64[2] = {-100, 1LL << 40};
    const ferry_tensor t[] = {{"flag", FERRY_BOOL, 1, {3}, flag},
                              {"h.0.weight", FERRY_F32, 2, {2, 2}, f32},
                              {"half \"x\"", FERRY_BF16, 1, {3}, bf16},
                              {"e", FERRY_F32, 3, {2, 0, 5}, NULL},
                              {"ids", FERRY_I64, 2, {1, 2}, i64},
                              {"gr\xc3\xbc\xc3\x9f", FERRY_F64, 1, {2}, f64},
                              {"s", FERRY_F32, 0, {0}, f32}};
    const ferry_meta meta[] = {{"step", "12"}, {"tool", "line\n\"quoted\""}};
    const char *path = scratch_path("w.safetensors");
    expect_ok(ferry_weights_write(path, t, 7, meta, 2));
    size_t n, m;
    char *have = scratch_read(path, &n), *want = scratch_read(written, &m);
    assert_int_equal(n, m);
    assert_memory_equal(have, want, n);
    free(have);
    free(want);
    ferry_weights *w;
    expect_ok(ferry_weights_open(path, &w));
    assert_int_equal(ferry_weights_count(w), 7);
    for (int i = 0; i < 7; i++) {
        expect_tensor(w, t[i].name, t[i].dtype, t[i].rank, t[i].dim, t[i].data, (size_t)ferry_tensor_bytes(&t[i]));
        /* the bytes are used where they lie in the map */
        assert_true(i == 3 || (uintptr_t)ferry_weights_find(w, t[i].name)->data % ferry_dtype_bytes(t[i].dtype) == 0);
    }
    assert_string_equal(ferry_weights_meta(w, "tool"), "line\n\"quoted\"");
    ferry_weights_close(w);
    unlink(path);
    assert_int_equal(scratch_count(), 0);
}

static void writes_and_reads_nothing(void **state)
{
    (void)state;
    ferry_weights *w;
    const char *path = scratch_path("nothing.safetensors");
    expect_ok(ferry_weights_write(path, NULL, 0, NULL, 0));
    expect_ok(ferry_weights_open(path, &w));
    assert_int_equal(ferry_weights_count(w), 0);
    assert_null(ferry_weights_find(w, "x"));
    assert_null(ferry_weights_meta(w, "x"));
    ferry_weights_close(w);
    unlink(path);
}

static void refuses_wrong_tensors_to_write(void **state)
{
    (void)state;
    float x[2] = {1, 2};
    const ferry_tensor good = {"a", FERRY_F32, 1, {2}, x};
    ferry_tensor t[2] = {good, good};
    const char *path = scratch_path("never.safetensors");
    expect_failure(ferry_weights_write(path, t, 2, NULL, 0), FERRY_USAGE, "tensor 'a' stands twice");
    t[1].name = "\xff";
    expect_failure(ferry_weights_write(path, t, 2, NULL, 0), FERRY_USAGE, "UTF-8");
    t[1].name = "__metadata__";
    expect_failure(ferry_weights_write(path, t, 2, NULL, 0), FERRY_USAGE, "reserved");
    t[1].name = NULL;
    expect_failure(ferry_weights_write(path, t, 2, NULL, 0), FERRY_USAGE, "no name");
    t[1] = good;
    t[1].name = "b";
    t[1].data = NULL;
    expect_failure(ferry_weights_write(path, t, 2, NULL, 0), FERRY_USAGE,
                   "'b' to write has an impossible shape or no data");
    t[1].dim[0] = -1;
    expect_failure(ferry_weights_write(path, t, 2, NULL, 0), FERRY_USAGE, "'b'");
    const ferry_meta twice[] = {{"k", "1"}, {"k", "2"}}, bad = {"k", "\xc3"}, none = {"k", NULL};
    expect_failure(ferry_weights_write(path, t, 1, twice, 2), FERRY_USAGE, "metadata 'k' stands twice");
    expect_failure(ferry_weights_write(path, t, 1, &bad, 1), FERRY_USAGE, "metadata 'k'");
    expect_failure(ferry_weights_write(path, t, 1, &none, 1), FERRY_USAGE, "metadata 'k'");
    expect_failure(ferry_weights_write(NULL, t, 1, NULL, 0), FERRY_USAGE, "no path");
    assert_int_equal(scratch_count(), 0);
}

/* A file with this header and `bytes` zero bytes behind it. */
static const char *made(const char *header, size_t bytes)
{
    static char text[300000];
    size_t n = strlen(header);
    assert_true(n + bytes + 8 <= sizeof text);
    memset(text, 0, sizeof text);
    for (int i = 0; i < 8; i++) {
        text[i] = (char)((uint64_t)n >> (8 * i));
    }
    memcpy(text + 8, header, n);
    return scratch_file("made.safetensors", text, 8 + n + bytes);
}

static void takes_other_spellings(void **state)
{
    (void)state;
    ferry_weights *w;
    /* blanks, another order of keys and of tensors, an element type at an address that does not suit it */
    expect_ok(ferry_weights_open(made("{ \"b\": {\"shape\": [2], \"data_offsets\": [1, 9], \"dtype\": \"F32\"},"
                                      "\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1]}, \"c\":"
                                      "{\"dtype\":\"F64\",\"data_offsets\":[9,9],\"shape\":[3,0]}}   \n",
                                      9),
                                 &w));
    assert_int_equal(ferry_weights_count(w), 3);
    assert_string_equal(ferry_weights_at(w, 0)->name, "a");
    assert_string_equal(ferry_weights_at(w, 1)->name, "b");
    assert_string_equal(ferry_weights_at(w, 2)->name, "c");
    expect_tensor(w, "b", FERRY_F32, 1, (const int64_t[]){2}, (const float[]){0, 0}, 8);
    expect_tensor(w, "c", FERRY_F64, 2, (const int64_t[]){3, 0}, NULL, 0);
    ferry_weights_close(w);
    expect_ok(ferry_weights_open(made("{\"__metadata__\":{}}", 0), &w));
    ferry_weights_close(w);
}

#define F32(name, shape, from, to)                                                                                     \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

static void refuses_hostile_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t bytes;
        const char *text;
    } cases[] = {
        {"{" F32("a", "[2]", 0, 8) "}", 4, "tensor 'a': bytes [0, 8) are not inside the file's 4"},
        {"{" F32("a", "[2]", 0, 8) "}", 9, "the last 1 bytes belong to no tensor"},
        {"{" F32("a", "[2]", 0, 8) "," F32("b", "[2]", 4, 12) "}", 12, "tensors 'a' and 'b' overlap"},
        {"{" F32("a", "[2]", 0, 8) "," F32("b", "[2]", 0, 8) "}", 8, "overlap"},
        {"{" F32("a", "[2]", 0, 8) "," F32("b", "[0]", 4, 4) "}", 8, "overlap"},
        {"{" F32("a", "[2]", 0, 8) "," F32("b", "[2]", 12, 20) "}", 20,
         "4 bytes before tensor 'b' belong to no tensor"},
        {"{" F32("a", "[2]", 4, 12) "}", 12, "4 bytes before tensor 'a'"},
        {"{" F32("a", "[3]", 0, 8) "}", 8, "tensor 'a': f32 [3] needs 12 bytes, data_offsets span 8"},
        {"{" F32("a", "[2]", 8, 0) "}", 8, "not inside"},
        {"{" F32("a", "[2]", -8, 0) "}", 8, "not inside"},
        {"{" F32("a", "[2]", 0, 9223372036854775807) "}", 8, "not inside"},
        {"{" F32("a", "[2]", 0, 9223372036854775808) "}", 8, "not valid JSON"},
        {"{" F32("a", "[-2]", 0, 8) "}", 8, "a dimension is not a non-negative whole number"},
        {"{" F32("a", "[2.0]", 0, 8) "}", 8, "a dimension is not"},
        {"{" F32("a", "[\"2\"]", 0, 8) "}", 8, "a dimension is not"},
        {"{" F32("a", "[4294967296,4294967296]", 0, 8) "}", 8, "overflows"},
        {"{" F32("a", "[4294967296,4294967296,0]", 0, 0) "}", 0, "overflows"},
        {"{" F32("a", "[1,1,1,1,1,1,1,1,2]", 0, 8) "}", 8, "more than 8 dimensions"},
        {"{" F32("a", "2", 0, 8) "}", 8, "not exactly"},
        {"{" F32("a", "[2]", 0, 8) "," F32("a", "[2]", 8, 16) "}", 16, "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
         "tensor 'a': the entry is not exactly"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4,8]}}", 8, "not two whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "not two whole numbers"},
        {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "'F8_E4M3' are not supported"},
        {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "not exactly"},
        {"{\"a\":[]}", 0, "tensor 'a': the entry is not exactly"},
        {"{\"a\":null}", 0, "not exactly"},
        {"{\"__metadata__\":[]}", 0, "not an object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "'k' in __metadata__ is not a string"},
        {"{\"\xff\":{}}", 0, "not valid JSON"},
        {"{\"a\xed\xa0\x80\":{}}", 0, "not valid JSON"},
        {"{\"a\\u0000b\":{}}", 0, "not valid JSON"},
        {"{\"a\\ud800\":{}}", 0, "not valid JSON"},
        {"{\"a\":{}", 0, "not valid JSON"},
        {"{} x", 0, "not valid JSON"},
        {"{}{}", 0, "not valid JSON"},
        {"[]", 0, "does not start with '{'"},
        {" {}", 0, "does not start with '{'"},
        {"", 8, "does not start with '{'"},
        {"{\"\x1b[31m\":1}", 0, "not valid JSON"},
        {"{\"\\u001b[31m\":1}", 0, "tensor '?[31m'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ferry_weights *w = (ferry_weights *)1;
        expect_failure(ferry_weights_open(made(cases[i].header, cases[i].bytes), &w), FERRY_BAD_DATA, cases[i].text);
        assert_null(w);
        assert_non_null(strstr(ferry_error(), "made.safetensors"));
    }
}

static void refuses_deep_and_long_headers(void **state)
{
    (void)state;
    static char deep[200001];
    ferry_weights *w;
    memset(deep, '[', 200000);
    memcpy(deep, "{\"a\":", 5);
    expect_failure(ferry_weights_open(made(deep, 0), &w), FERRY_BAD_DATA, "nested too deeply");
    /* more values than a header may have: 4.2 MB of commas */
    size_t n = 4200000;
    char *file = malloc(n + 8);
    assert_non_null(file);
    memset(file, ',', n + 8);
    for (int i = 0; i < 8; i++) {
        file[i] = (char)((uint64_t)n >> (8 * i));
    }
    memcpy(file + 8, "{\"a\":[1", 7);
    expect_failure(ferry_weights_open(scratch_file("long.safetensors", file, n + 8), &w), FERRY_BAD_DATA, "4 million");
    free(file);
    unlink(scratch_path("long.safetensors"));
    const uint64_t lengths[] = {3, 100000001, 1ULL << 40, UINT64_MAX, UINT64_MAX - 7, INT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char text[10] = "........{}";
        memcpy(text, &lengths[i], 8);
        expect_failure(ferry_weights_open(scratch_file("l.safetensors", text, 10), &w), FERRY_BAD_DATA,
                       "l.safetensors");
    }
}

static void refuses_every_cut(void **state)
{
    (void)state;
    size_t n;
    char *whole = scratch_read(reference, &n);
    uint64_t head;
    memcpy(&head, whole, sizeof head);
    for (size_t size = 0; size < n; size++) {
        ferry_weights *w;
        expect_failure(ferry_weights_open(scratch_file("cut.safetensors", whole, size), &w), FERRY_BAD_DATA,
                       size < 8          ? "cut.safetensors is not a safetensors file: it has"
                       : size < 8 + head ? "is cut"
                                         : "cut.safetensors: tensor '");
    }
    free(whole);
    ferry_weights *w;
    expect_failure(ferry_weights_open(scratch_path("absent"), &w), FERRY_USAGE, "absent");
    expect_failure(ferry_weights_open(scratch_dir, &w), FERRY_BAD_DATA, "a folder");
}

static void counts_bytes(void **state)
{
    (void)state;
    assert_int_equal(ferry_tensor_bytes(&(ferry_tensor){"x", FERRY_F64, 2, {3, 5}, NULL}), 120);
    assert_int_equal(ferry_tensor_bytes(&(ferry_tensor){"x", FERRY_F16, 0, {9}, NULL}), 2);
    assert_int_equal(ferry_tensor_bytes(&(ferry_tensor){"x", FERRY_F32, 2, {0, 5}, NULL}), 0);
    assert_int_equal(ferry_tensor_bytes(&(ferry_tensor){"x", FERRY_U8, 1, {INT64_MAX}, NULL}), INT64_MAX);
    assert_int_equal(ferry_tensor_bytes(&(ferry_tensor){"x", FERRY_I16, 1, {INT64_MAX}, NULL}), -1);
    assert_int_equal(ferry_tensor_bytes(&(ferry_tensor){"x", FERRY_F32, 2, {-1, 0}, NULL}), -1);
    assert_int_equal(ferry_tensor_bytes(&(ferry_tensor){"x", FERRY_F32, 2, {0, -1}, NULL}), -1);
    assert_int_equal(ferry_tensor_bytes(&(ferry_tensor){"x", FERRY_F32, 9, {1}, NULL}), -1);
    assert_int_equal(ferry_tensor_bytes(&(ferry_tensor){"x", FERRY_F32, -1, {1}, NULL}), -1);
    assert_int_equal(ferry_tensor_bytes(&(ferry_tensor){"x", FERRY_DTYPE_COUNT, 1, {1}, NULL}), -1);
    assert_int_equal(ferry_tensor_bytes(NULL), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_reference),
        cmocka_unit_test(writes_the_committed_file),
        cmocka_unit_test(writes_and_reads_nothing),
        cmocka_unit_test(refuses_wrong_tensors_to_write),
        cmocka_unit_test(takes_other_spellings),
        cmocka_unit_test(refuses_hostile_headers),
        cmocka_unit_test(refuses_deep_and_long_headers),
        cmocka_unit_test(refuses_every_cut),
        cmocka_unit_test(counts_bytes),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
