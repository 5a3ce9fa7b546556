/* test_kernel_values.c - kernels against numbers that numpy and onnxruntime give, and the rules of whole numbers and
 * casts. */
#include "kernel_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const double x34[12] = {1.0, -2.0, 0.5, 3.0, 0.0, 0.0, 0.0, 0.0, 100.0, 101.0, -100.0, 99.5};

static void expect(const ferry_kernel *k, int arg, const double *values, int n)
{
    const ferry_dtype t = k->dtype; /* bf16: the inputs were rounded as well */
    double tolerance = (t == FERRY_BF16 ? 0x1p-7 : t == FERRY_F32 ? 1e-6 : 1e-14) * bench_slack();
    for (int i = 0; i < n; i++) {
        double got = bench_get(k, arg, i);
        if (!(fabs(got - values[i]) <= tolerance * fmax(1, fabs(values[i])))) {
            fail_msg("%s %s output %d element %d is %.17g, expected %.17g", ferry_op_get(k->op)->name,
                     ferry_dtype_name(k->dtype), arg, i, got, values[i]);
        }
    }
}

static void give(ferry_kernel *k, int arg, const double *values)
{
    bench_alloc(k, arg);
    for (int64_t i = 0, n = bench_elements(k, arg); i < n; i++) {
        bench_set(k, arg, i, values[i]);
    }
}

/* f32, f64 and bf16, reference and fast */
#define EACH_WAY                                                                                                       \
    for (int type = 0; type < 3; type++)                                                                               \
        for (int reference = 0; reference < 2; reference++)

#define RUN(k) assert_int_equal(bench_run(reference == 1, &(k)), FERRY_OK)

static ferry_dtype floats[] = {FERRY_F32, FERRY_F64, FERRY_BF16};

static void test_softmax(void **state)
{
    (void)state;
    const double y[12] = {
        0.11055375036173921, 0.005504147127583673, 0.06705423914061147,   0.8168878633700657, 0.25, 0.25, 0.25, 0.25,
        0.23122389762214904, 0.6285317192117624,   3.199899488178231e-88, 0.14024438316608848};
    EACH_WAY
    {
        ferry_kernel k = {.op = FERRY_OP_SOFTMAX, .dtype = floats[type], .m = 3, .n = 4};
        bench_alloc(&k, 0);
        give(&k, 1, x34);
        RUN(k);
        expect(&k, 0, y, 12);
        bench_free(&k);
    }
}

static void test_layernorm(void **state)
{
    (void)state;
    const double scale[4] = {1.0, 0.5, -2.0, 0.25}, bias[4] = {0.0, 1.0, -1.0, 0.5};
    const double y[12] = {
        0.21055838998863707, 0.2630456350397702, -0.8596277400075752, 0.8333841174820087, 0.0, 1.0, -1.0, 0.5,
        0.5754162004093005,  1.2934766836674,    2.4640343693813027,  0.6424119042366376};
    const double mean[3] = {0.625, 0.0, 50.125};
    const double rstd[3] = {0.5614890399696989, 316.2277660168379, 0.01153716692549976};
    EACH_WAY
    {
        ferry_kernel k = {.op = FERRY_OP_LAYERNORM, .dtype = floats[type], .m = 3, .n = 4, .eps = 1e-5};
        bench_alloc(&k, 0);
        bench_alloc(&k, 1);
        bench_alloc(&k, 2);
        give(&k, 3, x34);
        give(&k, 4, scale);
        give(&k, 5, bias);
        RUN(k);
        expect(&k, 0, y, 12);
        expect(&k, 1, mean, 3);
        expect(&k, 2, rstd, 3);
        bench_free(&k);
    }
}

static ferry_kernel xent(ferry_dtype t, const double *logits, const int64_t *labels, int64_t m, int64_t n, int64_t kk)
{
    ferry_kernel k = {
        .op = FERRY_OP_XENT, .dtype = t, .dtype2 = FERRY_I64, .m = m, .n = n, .k = kk, .ignore_index = -100};
    bench_alloc(&k, 0);
    bench_alloc(&k, 1);
    bench_alloc(&k, 2);
    give(&k, 3, logits);
    bench_alloc(&k, 4);
    memcpy(k.arg[4], labels, (size_t)(m * kk) * sizeof(int64_t));
    return k;
}

static void test_xent(void **state)
{
    (void)state;
    const int64_t labels[3] = {3, -100, 1}, ignored[3] = {-100, -100, -100};
    const double lse[3] = {3.2022534476793516, 1.3862943611198906, 101.46436878410795};
    const double loss = 0.33331111589364926, two = 2, zero = 0;
    /* classes in the middle: logits [2, 3, 2], labels [2, 2] */
    const double x3[12] = {0.0,
                           0.9839859468739369,
                           -0.35078322768961984,
                           -0.858934493426592,
                           0.6569865987187891,
                           0.6247239537541924,
                           -0.87969575997167,
                           -0.3111193549811273,
                           0.9906073556948704,
                           -0.04202435271884079,
                           -0.9756260054681576,
                           0.3898273272463786};
    const int64_t labels3[4] = {0, 2, 1, 1};
    const double loss3 = 0.930260001587859;
    EACH_WAY
    {
        ferry_kernel k = xent(floats[type], x34, labels, 3, 4, 1);
        RUN(k);
        double got = bench_get(&k, 0, 0); /* two numbers near 100 are subtracted */
        assert_true(fabs(got - loss) < (type == 2 ? 0x1p-7 : type == 1 ? 1e-14 : 5e-6));
        expect(&k, 1, lse, 3);
        expect(&k, 2, &two, 1);
        bench_free(&k);
        k = xent(floats[type], x3, labels3, 2, 3, 2);
        RUN(k);
        expect(&k, 0, &loss3, 1);
        bench_free(&k);
        /* the mean of nothing, as PyTorch: NaN, and no gradient */
        k = xent(floats[type], x34, ignored, 3, 4, 1);
        RUN(k);
        assert_true(isnan(bench_get(&k, 0, 0)));
        expect(&k, 2, &zero, 1);
        ferry_kernel g = {.op = FERRY_OP_XENT_GRAD,
                          .dtype = k.dtype,
                          .dtype2 = FERRY_I64,
                          .m = 3,
                          .n = 4,
                          .k = 1,
                          .ignore_index = -100,
                          .arg = {NULL, k.arg[3], k.arg[1], k.arg[2], k.arg[4]}};
        bench_alloc(&g, 0);
        RUN(g);
        for (int i = 0; i < 12; i++) {
            assert_true(bench_get(&g, 0, i) == 0);
        }
        free(g.arg[0]);
        bench_free(&k);
    }
}

static void test_functions(void **state)
{
    (void)state;
    const double x[3] = {-1.5, 0.25, 2.0};
    const struct {
        ferry_fn fn;
        double y[3];
    } rows[] = {
        {FERRY_ERF, {-0.9661051464753108, 0.2763263901682369, 0.9953222650189527}},
        {FERRY_TANH, {-0.9051482536448665, 0.24491866240370913, 0.9640275800758169}},
        {FERRY_SIGMOID, {0.18242552380635635, 0.5621765008857981, 0.8807970779778823}},
        {FERRY_RELU, {0, 0.25, 2}},
        {FERRY_ABS, {1.5, 0.25, 2}},
        {FERRY_RECIPROCAL, {-1 / 1.5, 4, 0.5}},
    };
    EACH_WAY
    {
        for (size_t r = 0; r < sizeof(rows) / sizeof(*rows); r++) {
            ferry_kernel k = {.op = FERRY_OP_UNARY, .fn = rows[r].fn, .dtype = floats[type], .n = 3};
            bench_alloc(&k, 0);
            give(&k, 1, x);
            RUN(k);
            expect(&k, 0, rows[r].y, 3);
            bench_free(&k);
        }
        const double far[3] = {-1000, 0, 1000}, flat[3] = {0, 0.5, 1};
        ferry_kernel k = {.op = FERRY_OP_UNARY, .fn = FERRY_SIGMOID, .dtype = floats[type], .n = 3};
        bench_alloc(&k, 0);
        give(&k, 1, far);
        RUN(k);
        expect(&k, 0, flat, 3);
        bench_free(&k);
    }
}

static void test_linear(void **state)
{
    (void)state;
    const double x[6] = {1, 2, 3, 4, 5, 6}, w[6] = {1, 0.5, -1, 2, 0.25, 3}, b[2] = {10, 20};
    const double wt[6] = {1, -1, 0.25, 0.5, 2, 3}, y[4] = {9.75, 33.5, 10.5, 50};
    EACH_WAY
    {
        for (int t = 0; t < 2; t++) {
            ferry_kernel k = {.op = FERRY_OP_LINEAR, .dtype = floats[type], .m = 2, .k = 3, .n = 2, .trans_b = t == 1};
            bench_alloc(&k, 0);
            give(&k, 1, x);
            give(&k, 2, t == 1 ? wt : w);
            give(&k, 3, b);
            RUN(k);
            expect(&k, 0, y, 4);
            bench_free(&k);
        }
    }
}

/* A long sum in f32 keeps its digits: a float sum of 0.1f would be off by 1e-4 of it and more. */
static void test_long_sums(void **state)
{
    (void)state;
    for (int reference = 0; reference < 2; reference++) {
        for (uint32_t axes = 1; axes <= 2; axes++) {
            ferry_kernel k = {.op = FERRY_OP_REDUCE, .fn = FERRY_SUM, .dtype = FERRY_F32, .rank = 2, .axes = axes};
            k.dim[0] = axes == 1 ? 1000000 : 2;
            k.dim[1] = axes == 1 ? 2 : 1000000;
            bench_alloc(&k, 0);
            bench_random(&k, 1, 0.1, 0.1);
            RUN(k);
            assert_true(fabs(bench_get(&k, 0, 1) - 100000.00149011612) < 0.01);
            bench_free(&k);
        }
    }
}

/* ---- whole numbers ----------------------------------------------------------------------------------------------- */

static void test_whole(void **state)
{
    (void)state;
    const int64_t low = INT64_MIN, high = INT64_MAX;
    const struct {
        ferry_fn fn;
        int64_t a, b, y;
    } rows[] = {
        {FERRY_ADD, 2, 3, 5},    {FERRY_ADD, high, 1, low}, {FERRY_SUB, low, 1, high}, {FERRY_MUL, -4, 5, -20},
        {FERRY_DIV, -7, 2, -3},  {FERRY_DIV, 7, -2, -3},    {FERRY_DIV, low, -1, low}, {FERRY_POW, 3, 4, 81},
        {FERRY_POW, -1, -3, -1}, {FERRY_POW, 2, -1, 0},     {FERRY_POW, 7, 0, 1},      {FERRY_MAX, -3, 2, 2},
        {FERRY_MIN, -3, 2, -3},
    };
    for (size_t r = 0; r < sizeof(rows) / sizeof(*rows); r++) {
        int64_t a = rows[r].a, b = rows[r].b, y;
        ferry_kernel k = {.op = FERRY_OP_BINARY, .fn = rows[r].fn, .dtype = FERRY_I64, .arg = {&y, &a, &b}};
        assert_int_equal(ferryi_kernel_check(&k), FERRY_OK);
        assert_int_equal(bench_run(false, &k), FERRY_OK);
        assert_true(y == rows[r].y);
    }
    int32_t a32[3] = {INT32_MIN, INT32_MAX, 5}, b32[3] = {-1, 2, 5}, y32[3];
    bool yes[3];
    ferry_kernel k = {.op = FERRY_OP_BINARY,
                      .fn = FERRY_DIV,
                      .dtype = FERRY_I32,
                      .rank = 1,
                      .dim = {3},
                      .stride = {{1}, {1}},
                      .arg = {y32, a32, b32}};
    assert_int_equal(bench_run(false, &k), FERRY_OK);
    assert_true(y32[0] == INT32_MIN && y32[1] == INT32_MAX / 2 && y32[2] == 1);
    k.fn = FERRY_LESS_EQUAL;
    k.arg[0] = yes;
    assert_int_equal(bench_run(false, &k), FERRY_OK);
    assert_true(yes[0] && !yes[1] && yes[2]);
    k.fn = FERRY_DIV;
    k.arg[0] = y32;
    b32[2] = 0;
    assert_int_equal(bench_run(false, &k), FERRY_BAD_DATA);
    assert_non_null(strstr(ferry_error(), "element 2"));

    bool p[4] = {false, false, true, true}, q[4] = {false, true, false, true}, r[4];
    ferry_kernel logic = {.op = FERRY_OP_BINARY,
                          .fn = FERRY_AND,
                          .dtype = FERRY_BOOL,
                          .rank = 1,
                          .dim = {4},
                          .stride = {{1}, {1}},
                          .arg = {r, p, q}};
    assert_int_equal(bench_run(false, &logic), FERRY_OK);
    assert_true(!r[0] && !r[1] && !r[2] && r[3]);
    logic.fn = FERRY_OR;
    assert_int_equal(bench_run(false, &logic), FERRY_OK);
    assert_true(!r[0] && r[1] && r[2] && r[3]);
    ferry_kernel invert = {.op = FERRY_OP_UNARY, .fn = FERRY_NOT, .dtype = FERRY_BOOL, .n = 4, .arg = {r, p}};
    assert_int_equal(bench_run(false, &invert), FERRY_OK);
    assert_true(r[0] && r[1] && !r[2] && !r[3]);

    int64_t x[6] = {1, 2, 3, 4, 5, -6}, sums[2] = {100, 100};
    ferry_kernel sum = {.op = FERRY_OP_REDUCE,
                        .fn = FERRY_SUM,
                        .dtype = FERRY_I64,
                        .rank = 2,
                        .dim = {2, 3},
                        .axes = 2,
                        .arg = {sums, x}};
    assert_int_equal(bench_run(false, &sum), FERRY_OK);
    assert_true(sums[0] == 6 && sums[1] == 3);
    sum.accumulate = true;
    assert_int_equal(bench_run(false, &sum), FERRY_OK);
    assert_true(sums[0] == 12 && sums[1] == 6);
    ferry_kernel negate = {.op = FERRY_OP_UNARY, .fn = FERRY_ABS, .dtype = FERRY_I64, .n = 6, .arg = {x, x}};
    assert_int_equal(bench_run(false, &negate), FERRY_OK);
    assert_true(x[4] == 5 && x[5] == 6);
}

/* numpy's numbers: mod, fmod, shifts, bits, sign and order of signed and of unsigned numbers. */
static void test_whole_functions(void **state)
{
    (void)state;
    enum { N = 6 };
    const int8_t a[N] = {7, -7, 7, -7, -128, 5}, b[N] = {3, 3, -3, -3, -1, 1};
    const struct {
        ferry_fn fn;
        int8_t y[N];
    } signed_row[] = {{FERRY_MOD, {1, 2, -2, -1, 0, 0}},       {FERRY_FMOD, {1, -1, 1, -1, 0, 0}},
                      {FERRY_BIT_AND, {3, 1, 5, -7, -128, 1}}, {FERRY_BIT_OR, {7, -5, -1, -3, -1, 5}},
                      {FERRY_BIT_XOR, {4, -6, -6, 4, 127, 4}}, {FERRY_MAX, {7, 3, 7, -3, -1, 5}}};
    int8_t y[N];
    ferry_kernel k = {.op = FERRY_OP_BINARY,
                      .dtype = FERRY_I8,
                      .rank = 1,
                      .dim = {N},
                      .stride = {{1}, {1}},
                      .arg = {y, (void *)(uintptr_t)a, (void *)(uintptr_t)b}};
    for (size_t i = 0; i < sizeof(signed_row) / sizeof(*signed_row); i++) {
        k.fn = signed_row[i].fn;
        assert_int_equal(ferryi_kernel_check(&k), FERRY_OK);
        assert_int_equal(bench_run(false, &k), FERRY_OK);
        assert_memory_equal(y, signed_row[i].y, sizeof(y));
    }
    const int8_t by[N] = {1, 1, 0, 7, 3, 9}, right[N] = {3, -4, 7, -1, -16, 0}, left[N] = {14, -14, 7, -128, 0, 0};
    k.arg[2] = (void *)(uintptr_t)by;
    k.fn = FERRY_SHIFT_RIGHT;
    assert_int_equal(bench_run(false, &k), FERRY_OK);
    assert_memory_equal(y, right, sizeof(y));
    k.fn = FERRY_SHIFT_LEFT;
    assert_int_equal(bench_run(false, &k), FERRY_OK);
    assert_memory_equal(y, left, sizeof(y));
    const int8_t sign[N] = {1, -1, 1, -1, -1, 1};
    ferry_kernel u = {.op = FERRY_OP_UNARY, .fn = FERRY_SIGN, .dtype = FERRY_I8, .n = N, .arg = {y, k.arg[1]}};
    assert_int_equal(bench_run(false, &u), FERRY_OK);
    assert_memory_equal(y, sign, sizeof(y));

    const uint64_t top = (uint64_t)1 << 63, c[3] = {top + 5, 10, 3}, e[3] = {3, top + 1, 2};
    const struct {
        ferry_fn fn;
        uint64_t y[3];
    } unsigned_row[] = {{FERRY_MOD, {1, 10, 1}},
                        {FERRY_FMOD, {1, 10, 1}},
                        {FERRY_DIV, {3074457345618258604u, 0, 1}},
                        {FERRY_MAX, {top + 5, top + 1, 3}},
                        {FERRY_MIN, {3, 10, 2}},
                        {FERRY_SHIFT_RIGHT, {1152921504606846976u, 0, 0}},
                        {FERRY_POW, {9223372036854775933u, 0, 9}}};
    uint64_t z[3];
    k = (ferry_kernel){.op = FERRY_OP_BINARY,
                       .dtype = FERRY_U64,
                       .rank = 1,
                       .dim = {3},
                       .stride = {{1}, {1}},
                       .arg = {z, (void *)(uintptr_t)c, (void *)(uintptr_t)e}};
    for (size_t i = 0; i < sizeof(unsigned_row) / sizeof(*unsigned_row); i++) {
        k.fn = unsigned_row[i].fn;
        assert_int_equal(bench_run(false, &k), FERRY_OK);
        for (int j = 0; j < 3; j++)
            assert_true(z[j] == unsigned_row[i].y[j]);
    }
    bool less[3];
    k.fn = FERRY_LESS;
    k.arg[0] = less;
    assert_int_equal(bench_run(false, &k), FERRY_OK);
    assert_true(!less[0] && less[1] && !less[2]);
    ferry_kernel most = {.op = FERRY_OP_REDUCE,
                         .fn = FERRY_MAX,
                         .dtype = FERRY_U64,
                         .rank = 1,
                         .dim = {3},
                         .axes = 1,
                         .arg = {z, (void *)(uintptr_t)c}};
    assert_int_equal(bench_run(false, &most), FERRY_OK);
    assert_true(z[0] == top + 5);
    most.dim[0] = 0; /* of nothing: what every number replaces */
    assert_int_equal(bench_run(false, &most), FERRY_OK);
    assert_true(z[0] == 0);
    most.fn = FERRY_MIN;
    most.dtype = FERRY_I16;
    int16_t low = 0;
    most.arg[0] = &low;
    assert_int_equal(bench_run(false, &most), FERRY_OK);
    assert_true(low == INT16_MAX);
}

static void cast(void *y, ferry_dtype to, const void *x, ferry_dtype from, int64_t n)
{
    ferry_kernel k = {.op = FERRY_OP_CAST, .dtype = from, .dtype2 = to, .n = n, .arg = {y, (void *)(uintptr_t)x}};
    assert_int_equal(ferryi_kernel_check(&k), FERRY_OK);
    assert_int_equal(bench_run(false, &k), FERRY_OK);
}

static void test_cast(void **state)
{
    (void)state;
    const float f[8] = {1.9f, -1.9f, 0.0f, 3e9f, -3e9f, NAN, INFINITY, -INFINITY};
    int32_t i32[8];
    cast(i32, FERRY_I32, f, FERRY_F32, 8);
    const int32_t expected[8] = {1, -1, 0, INT32_MAX, INT32_MIN, 0, INT32_MAX, INT32_MIN};
    assert_memory_equal(i32, expected, sizeof(expected));
    int64_t i64[8];
    cast(i64, FERRY_I64, f, FERRY_F32, 8);
    assert_true(i64[3] == 3000000000 && i64[6] == INT64_MAX && i64[7] == INT64_MIN && i64[5] == 0);
    uint8_t u8[8];
    cast(u8, FERRY_U8, f, FERRY_F32, 8);
    assert_true(u8[0] == 1 && u8[1] == 0 && u8[3] == 255 && u8[5] == 0);
    uint64_t u64[8];
    cast(u64, FERRY_U64, f, FERRY_F32, 8);
    assert_true(u64[3] == 3000000000u && u64[4] == 0 && u64[6] == UINT64_MAX);
    bool truth[8];
    cast(truth, FERRY_BOOL, f, FERRY_F32, 8);
    assert_true(truth[0] && !truth[2] && truth[5]);
    float back[8];
    cast(back, FERRY_F32, truth, FERRY_BOOL, 8);
    assert_true(back[0] == 1 && back[2] == 0);
    /* rounded once: by way of double it would be a tie and become 2^62 */
    const int64_t tie = ((int64_t)1 << 62) + ((int64_t)1 << 38) + 1;
    cast(back, FERRY_F32, &tie, FERRY_I64, 1);
    assert_true(back[0] == 4611686568183201792.0f);
    const int64_t wide[2] = {-1, 300};
    cast(u8, FERRY_U8, wide, FERRY_I64, 2);
    assert_true(u8[0] == 255 && u8[1] == 44);
    cast(i32, FERRY_I32, wide, FERRY_I64, 2);
    assert_true(i32[0] == -1 && i32[1] == 300);
    const double d[3] = {1.0 + 1e-3, 65504, 1e6};
    uint16_t half[3];
    cast(half, FERRY_F16, d, FERRY_F64, 3);
    assert_true(half[0] == 0x3c01 && half[1] == 0x7bff && half[2] == 0x7c00);
    double again[3];
    cast(again, FERRY_F64, half, FERRY_F16, 3);
    assert_true(again[0] == 1 + 1.0 / 1024 && again[1] == 65504 && isinf(again[2]));
}

int main(void)
{
    if (!bench_open()) {
        return TEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax),   cmocka_unit_test(test_layernorm),       cmocka_unit_test(test_xent),
        cmocka_unit_test(test_functions), cmocka_unit_test(test_linear),          cmocka_unit_test(test_long_sums),
        cmocka_unit_test(test_whole),     cmocka_unit_test(test_whole_functions), cmocka_unit_test(test_cast),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_close();
    return failed;
}
