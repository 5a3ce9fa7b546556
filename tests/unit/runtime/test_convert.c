/* Conversions. The tables were made with NumPy (f16, f32), exact fractions (all three), and ml_dtypes (bf16). */
#include "scratch.h"

#include <math.h>

/* A double and what it rounds to in f16, bf16 and f32: ties, values beside ties, subnormal numbers, overflow. */
static const struct {
    double x;
    uint16_t f16, bf16;
    uint32_t f32;
} rounding[] = {
    {0x0.0p+0, 0x0000, 0x0000, 0x00000000},
    {-0x0.0p+0, 0x8000, 0x8000, 0x80000000},
    {0x1.0000000000000p+0, 0x3c00, 0x3f80, 0x3f800000},
    {-0x1.4000000000000p+1, 0xc100, 0xc020, 0xc0200000},
    {0x1.5555555555555p-2, 0x3555, 0x3eab, 0x3eaaaaab},
    {0x1.ffc0000000000p+15, 0x7bff, 0x4780, 0x477fe000},
    {0x1.ffdffae147ae1p+15, 0x7bff, 0x4780, 0x477feffd},
    {0x1.ffe0000000000p+15, 0x7c00, 0x4780, 0x477ff000},
    {-0x1.0000000000000p+16, 0xfc00, 0xc780, 0xc7800000},
    {0x1.0000000000000p-24, 0x0001, 0x3380, 0x33800000},
    {0x1.0000000000000p-25, 0x0000, 0x3300, 0x33000000},
    {0x1.0000000001000p-25, 0x0001, 0x3300, 0x33000000},
    {0x1.8000000000000p-24, 0x0002, 0x33c0, 0x33c00000},
    {0x1.ffc0000000000p-15, 0x0400, 0x3880, 0x387fe000},
    {0x1.ffe0000000000p-15, 0x0400, 0x3880, 0x387ff000},
    {0x1.0020000000000p+0, 0x3c00, 0x3f80, 0x3f801000},
    {0x1.0020000001000p+0, 0x3c01, 0x3f80, 0x3f801000},
    {0x1.0060000000000p+0, 0x3c02, 0x3f80, 0x3f803000},
    {0x1.0100000000000p+0, 0x3c04, 0x3f80, 0x3f808000},
    {0x1.0100000000080p+0, 0x3c04, 0x3f81, 0x3f808000},
    {0x1.0300000000000p+0, 0x3c0c, 0x3f82, 0x3f818000},
    {0x1.fe00000000000p+127, 0x7c00, 0x7f7f, 0x7f7f0000},
    {0x1.fefffffffff61p+127, 0x7c00, 0x7f7f, 0x7f7f8000},
    {0x1.0000000000000p-133, 0x0000, 0x0001, 0x00010000},
    {0x1.0000000000000p-134, 0x0000, 0x0000, 0x00008000},
    {0x1.0000000000004p-134, 0x0000, 0x0001, 0x00008000},
    {0x1.ff933c78cdfadp+127, 0x7c00, 0x7f80, 0x7f7fc99e},
    {0x1.7e43c8800759cp+996, 0x7c00, 0x7f80, 0x7f800000},
    {0x0.0000000000001p-1022, 0x0000, 0x0000, 0x00000000},
    {0x0.012688b70e62bp-1022, 0x0000, 0x0000, 0x00000000},
    {INFINITY, 0x7c00, 0x7f80, 0x7f800000},
    {-INFINITY, 0xfc00, 0xff80, 0xff800000},
    {0x1.ffffff0000000p+127, 0x7c00, 0x7f80, 0x7f800000},
    {0x1.fffffefffffffp+127, 0x7c00, 0x7f80, 0x7f7fffff},
    {0x1.0000000000000p-149, 0x0000, 0x0000, 0x00000001},
    {0x1.0000000000000p-150, 0x0000, 0x0000, 0x00000000},
    {0x1.0000000400000p-150, 0x0000, 0x0000, 0x00000001},
    {0x1.0000010000000p+0, 0x3c00, 0x3f80, 0x3f800000},
    {0x1.0000010000001p+0, 0x3c00, 0x3f80, 0x3f800001},
};

static void rounds_doubles_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rounding / sizeof rounding[0]; i++) {
        for (int negative = 0; negative < 2; negative++) {
            double x = negative ? -rounding[i].x : rounding[i].x;
            uint16_t f16, bf16, flip = negative ? 0x8000 : 0;
            uint32_t f32;
            expect_ok(ferry_convert(&f16, FERRY_F16, &x, FERRY_F64, 1));
            expect_ok(ferry_convert(&bf16, FERRY_BF16, &x, FERRY_F64, 1));
            expect_ok(ferry_convert(&f32, FERRY_F32, &x, FERRY_F64, 1));
            if (f16 != (rounding[i].f16 ^ flip) || bf16 != (rounding[i].bf16 ^ flip) ||
                f32 != (rounding[i].f32 ^ (uint32_t)flip << 16)) {
                fail_msg("%a gives 0x%04x 0x%04x 0x%08x", x, f16, bf16, f32);
            }
        }
    }
}

static uint64_t fnv(const void *data, size_t size)
{
    uint64_t h = 0xcbf29ce484222325U;
    for (size_t i = 0; i < size; i++) {
        h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3U;
    }
    return h;
}

/* Every f16 number as f32, and back; NumPy's values by their hash. */
static void reads_every_f16(void **state)
{
    (void)state;
    static uint16_t in[65536], back[65536];
    static float out[65536];
    int n = 0;
    for (int i = 0; i < 65536; i++) {
        if ((i & 0x7c00) != 0x7c00) {
            in[n++] = (uint16_t)i;
        }
    }
    expect_ok(ferry_convert(out, FERRY_F32, in, FERRY_F16, n));
    assert_true(fnv(out, sizeof(float) * (size_t)n) == 0xaf417771d363a145U);
    expect_ok(ferry_convert(back, FERRY_F16, out, FERRY_F32, n));
    assert_memory_equal(in, back, sizeof(uint16_t) * (size_t)n);
}

/* f32 numbers all over the range to bf16 (the fast way and by f64) and f16. */
static void narrows_many_f32(void **state)
{
    (void)state;
    static float in[20000];
    static double wide[20000];
    static uint16_t a[20000], b[20000];
    int n = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t bits = i * 2654435761U;
        float x;
        memcpy(&x, &bits, sizeof x);
        if (!isnan(x)) {
            in[n++] = x;
        }
    }
    assert_int_equal(n, 19923);
    expect_ok(ferry_convert(wide, FERRY_F64, in, FERRY_F32, n));
    expect_ok(ferry_convert(a, FERRY_BF16, in, FERRY_F32, n));
    expect_ok(ferry_convert(b, FERRY_BF16, wide, FERRY_F64, n));
    assert_true(fnv(a, 2 * (size_t)n) == 0x9ebe04982bc62432U);
    assert_memory_equal(a, b, 2 * (size_t)n);
    expect_ok(ferry_convert(a, FERRY_F16, in, FERRY_F32, n));
    assert_true(fnv(a, 2 * (size_t)n) == 0x380f911ecff4f9e6U);
}

/* f32 numbers at a tie between two bf16 numbers and one step to each side, for every finite bf16 number: the fast way
 * against the way by f64, which the table above checks. */
static void breaks_ties_of_f32(void **state)
{
    (void)state;
    for (uint32_t high = 0; high < 65536; high++) {
        for (uint32_t low = 0x7fff; low <= 0x8001; low++) {
            uint32_t bits = high << 16 | low;
            float x;
            double wide;
            uint16_t a, b;
            memcpy(&x, &bits, sizeof x);
            wide = (double)x;
            expect_ok(ferry_convert(&a, FERRY_BF16, &x, FERRY_F32, 1));
            expect_ok(ferry_convert(&b, FERRY_BF16, &wide, FERRY_F64, 1));
            assert_int_equal(a, b);
        }
    }
}

static void keeps_bf16_and_nan(void **state)
{
    (void)state;
    static uint16_t in[65536], back[65536];
    static float wide[65536];
    for (int i = 0; i < 65536; i++) {
        in[i] = (uint16_t)i;
    }
    expect_ok(ferry_convert(wide, FERRY_F32, in, FERRY_BF16, 65536));
    expect_ok(ferry_convert(back, FERRY_BF16, wide, FERRY_F32, 65536));
    for (int i = 0; i < 65536; i++) {
        bool nan = (i & 0x7fff) > 0x7f80;
        assert_int_equal(isnan(wide[i]) != 0, nan);
        assert_int_equal(back[i], nan ? (i & 0x8000) | 0x7fc0 : i);
    }
    static const ferry_dtype floats[4] = {FERRY_F32, FERRY_F64, FERRY_F16, FERRY_BF16};
    for (int from = 0; from < 4; from++) {
        for (int to = 0; to < 4; to++) {
            double x = NAN, out = 0;
            unsigned char a[8], b[8];
            expect_ok(ferry_convert(a, floats[from], &x, FERRY_F64, 1));
            expect_ok(ferry_convert(b, floats[to], a, floats[from], 1));
            expect_ok(ferry_convert(&out, FERRY_F64, b, floats[to], 1));
            assert_true(isnan(out));
        }
    }
    const uint16_t payload = 0x7c01; /* a signalling NaN of f16 must not become infinity */
    float single;
    expect_ok(ferry_convert(&single, FERRY_F32, &payload, FERRY_F16, 1));
    assert_true(isnan(single));
}

/* Every pair of whole types at the ends of their ranges, by comparing with arithmetic in long double (64 bits exact).
 */
static void converts_whole_numbers(void **state)
{
    (void)state;
    static const struct {
        ferry_dtype t;
        int bytes;
        bool is_signed;
    } types[] = {{FERRY_I64, 8, true},  {FERRY_I32, 4, true},  {FERRY_I16, 2, true},  {FERRY_I8, 1, true},
                 {FERRY_U64, 8, false}, {FERRY_U32, 4, false}, {FERRY_U16, 2, false}, {FERRY_U8, 1, false}};
    static const uint64_t patterns[] = {0,
                                        1,
                                        5,
                                        0x7f,
                                        0x80,
                                        0xff,
                                        0x7fff,
                                        0x8000,
                                        0xffff,
                                        0x7fffffff,
                                        0x80000000,
                                        0xffffffff,
                                        0x7fffffffffffffff,
                                        0x8000000000000000,
                                        0xffffffffffffffff,
                                        0xffffffffffffff80,
                                        0xffffffffffff8000,
                                        0xffffffff80000000,
                                        0xffffffff7fffffff,
                                        0xffffffffffffff7f};
    for (size_t f = 0; f < 8; f++) {
        for (size_t t = 0; t < 8; t++) {
            for (size_t k = 0; k < sizeof patterns / sizeof patterns[0]; k++) {
                uint64_t in = patterns[k], out = 0;
                int fb = 8 * types[f].bytes, tb = 8 * types[t].bytes;
                if (fb < 64) {
                    in &= (1ULL << fb) - 1;
                }
                long double value = (long double)in;
                if (types[f].is_signed && (in >> (fb - 1)) != 0) {
                    value -= ldexpl(1, fb);
                }
                long double low = types[t].is_signed ? -ldexpl(1, tb - 1) : 0;
                long double high = ldexpl(1, tb - (types[t].is_signed ? 1 : 0)) - 1;
                ferry_status status = ferry_convert(&out, types[t].t, &in, types[f].t, 1);
                if (value < low || value > high) {
                    expect_failure(status, FERRY_BAD_DATA, "element 0 is ");
                    continue;
                }
                expect_ok(status);
                long double back = (long double)out;
                if (types[t].is_signed && (out >> (tb - 1)) != 0) {
                    back -= ldexpl(1, tb);
                }
                assert_true(back == value);
            }
        }
    }
    const int64_t ids[3] = {7, 3000000000, -1};
    int32_t small[3];
    expect_failure(ferry_convert(small, FERRY_I32, ids, FERRY_I64, 3), FERRY_BAD_DATA,
                   "element 1 is 3000000000, which i32 cannot hold");
    const int64_t truths[4] = {0, 1, -5, 256};
    uint8_t flags[4];
    int64_t back[4];
    expect_ok(ferry_convert(flags, FERRY_BOOL, truths, FERRY_I64, 4));
    assert_memory_equal(flags, "\0\1\1\1", 4);
    flags[1] = 7;
    expect_ok(ferry_convert(back, FERRY_I64, flags, FERRY_BOOL, 4));
    assert_int_equal(back[1], 1);
}

static void refuses_what_makes_no_sense(void **state)
{
    (void)state;
    double x = 1, y = 2;
    expect_failure(ferry_convert(&y, FERRY_I64, &x, FERRY_F64, 1), FERRY_USAGE, "from f64 to i64");
    expect_failure(ferry_convert(&y, FERRY_F32, &x, FERRY_BOOL, 1), FERRY_USAGE, "from bool to f32");
    expect_failure(ferry_convert(&y, FERRY_DTYPE_COUNT, &x, FERRY_F64, 1), FERRY_USAGE, "unknown type");
    expect_failure(ferry_convert(&y, FERRY_F64, &x, FERRY_F64, -1), FERRY_USAGE, "-1 elements");
    expect_failure(ferry_convert(NULL, FERRY_F64, &x, FERRY_F64, 1), FERRY_USAGE, "");
    expect_ok(ferry_convert(NULL, FERRY_F64, NULL, FERRY_F32, 0));
    assert_true(y == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_doubles_once),
        cmocka_unit_test(reads_every_f16),
        cmocka_unit_test(narrows_many_f32),
        cmocka_unit_test(breaks_ties_of_f32),
        cmocka_unit_test(keeps_bf16_and_nan),
        cmocka_unit_test(converts_whole_numbers),
        cmocka_unit_test(refuses_what_makes_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
