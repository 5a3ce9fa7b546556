/* Random numbers: the published known answers of Philox-4x32-10, values computed with 120 bits, and moments. */
#include "scratch.h"

#include <math.h>

#include "runtime/random.h"

static void gives_the_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        ferryi_philox(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

static void expect_near(double have, double want, double relative, double absolute)
{
    if (!(fabs(have - want) <= relative * fabs(want) + absolute)) {
        fail_msg("%.17g, expected %.17g", have, want);
    }
}

static void knows_its_functions(void **state)
{
    (void)state;
    static const double logs[][2] = {{1.0, 0.0},
                                     {0x1p-53, -36.7368005696771},
                                     {0.5, -0.6931471805599453},
                                     {0.7071067811865476, -0.3465735902799726},
                                     {0.1, -2.3025850929940455},
                                     {0.9999999999999999, -1.1102230246251565e-16},
                                     {3e-09, -19.624653548278303},
                                     {0.999, -0.0010005003335835344},
                                     {0.3333, -1.098712293668443}};
    static const double turns[][3] = {{0.0, 1.0, 0.0},
                                      {0.125, 0.7071067811865476, 0.7071067811865476},
                                      {0.25, 0, 1.0},
                                      {0.3, -0.30901699437494734, 0.9510565162951536},
                                      {0.375, -0.7071067811865476, 0.7071067811865476},
                                      {0.5, -1.0, 0},
                                      {0.61, -0.7705132427757893, -0.6374239897486896},
                                      {0.75, 0, -1.0},
                                      {0.875, 0.7071067811865476, -0.7071067811865476},
                                      {0.9, 0.8090169943749475, -0.587785252292473},
                                      {0.9999999999999999, 1.0, -6.975736996017264e-16},
                                      {0.124, 0.7115356772092853, 0.7026499697988492},
                                      {0x1p-53, 1.0, 6.975736996017264e-16}};
    for (size_t i = 0; i < sizeof logs / sizeof logs[0]; i++) {
        expect_near(ferryi_random_log(logs[i][0]), logs[i][1], 6e-16, 0);
    }
    for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
        double c, s;
        ferryi_random_turn(turns[i][0], &c, &s);
        expect_near(c, turns[i][1], 6e-16, 0);
        expect_near(s, turns[i][2], 6e-16, 0);
    }
    /* against the mathematical library at many places */
    for (int i = 0; i < 100000; i++) {
        double u = (i + 0.5) / 100000, c, s;
        ferryi_random_turn(u, &c, &s);
        expect_near(c, cos(6.283185307179586477 * u), 1e-15, 2e-15);
        expect_near(s, sin(6.283185307179586477 * u), 1e-15, 2e-15);
        expect_near(ferryi_random_log(u), log(u), 6e-16, 0);
    }
}

static void draws_the_expected_numbers(void **state)
{
    (void)state;
    static const double want[9] = {0.7984044060474188,  0.12949539090183998,  0.26457559337733794,
                                   0.38418749359829935, -0.18134375040469516, -1.589817884265931,
                                   -0.6956822684292134, -0.08054406244690689, -0.7033124068770296};
    static const double other[4] = {-1.0434113609193618, -0.4096820236662957, 0.33348636481220156, -1.278906422355236};
    double x[10] = {0};
    x[9] = 77;
    expect_ok(ferry_random_normal(x, FERRY_F64, 9, 42, "h.0.attn.c_attn.weight", 0, 1));
    for (int i = 0; i < 9; i++) {
        expect_near(x[i], want[i], 2e-15, 0);
    }
    assert_true(x[9] == 77); /* an odd number of elements */
    expect_ok(ferry_random_normal(x, FERRY_F64, 4, 0xfedcba9876543210U, "wte", 0, 1));
    for (int i = 0; i < 4; i++) {
        expect_near(x[i], other[i], 2e-15, 0);
    }
    expect_ok(ferry_random_normal(x, FERRY_F64, 4, 42, "h.0.attn.c_attn.weight", 3, 0.02));
    for (int i = 0; i < 4; i++) {
        expect_near(x[i], 3 + 0.02 * want[i], 2e-15, 0);
    }
}

/* The other types are the f64 numbers, rounded once. */
static void rounds_to_every_type(void **state)
{
    (void)state;
    enum { N = 1000 };
    static double wide[N];
    static unsigned char have[8 * N], want[8 * N];
    expect_ok(ferry_random_normal(wide, FERRY_F64, N, 7, "x", 0, 0.02));
    static const ferry_dtype floats[3] = {FERRY_F32, FERRY_F16, FERRY_BF16};
    for (int i = 0; i < 3; i++) {
        expect_ok(ferry_random_normal(have, floats[i], N, 7, "x", 0, 0.02));
        expect_ok(ferry_convert(want, floats[i], wide, FERRY_F64, N));
        assert_memory_equal(have, want, N * ferry_dtype_bytes(floats[i]));
    }
}

static void has_the_moments_of_a_normal(void **state)
{
    (void)state;
    enum { N = 400000 };
    double *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    assert_true(x != NULL && y != NULL);
    expect_ok(ferry_random_normal(x, FERRY_F64, N, 1, "x", 0, 1));
    double sum = 0, square = 0, third = 0, fourth = 0, lag = 0, across = 0, largest = 0;
    expect_ok(ferry_random_normal(y, FERRY_F64, N, 1, "y", 0, 1));
    for (int i = 0; i < N; i++) {
        sum += x[i];
        square += x[i] * x[i];
        third += x[i] * x[i] * x[i];
        fourth += x[i] * x[i] * x[i] * x[i];
        lag += i > 0 ? x[i] * x[i - 1] : 0;
        across += x[i] * y[i];
        largest = fmax(largest, fabs(x[i]));
    }
    /* five standard errors each */
    double root = sqrt(N);
    assert_true(fabs(sum / N) < 5 / root);
    assert_true(fabs(square / N - 1) < 5 * sqrt(2) / root);
    assert_true(fabs(third / N) < 5 * sqrt(15) / root);
    assert_true(fabs(fourth / N - 3) < 5 * sqrt(96) / root);
    assert_true(fabs(lag / N) < 5 / root);
    assert_true(fabs(across / N) < 5 / root);
    assert_true(largest > 4 && largest < 7);
    expect_ok(ferry_random_normal(y, FERRY_F64, N, 2, "x", 0, 1));
    assert_true(memcmp(x, y, N * sizeof *x) != 0);
    free(x);
    free(y);
}

/* Large tensors are drawn by several threads, small ones by the caller. */
static void does_not_depend_on_threads(void **state)
{
    (void)state;
    enum { LARGE = (1 << 20) + 77, SMALL = (1 << 20) - 1 };
    float *a = malloc(LARGE * sizeof(float)), *b = malloc(SMALL * sizeof(float));
    assert_int_equal(ferry_random_normal(a, FERRY_F32, LARGE, 5, "w", 0, 1), FERRY_OK);
    assert_int_equal(ferry_random_normal(b, FERRY_F32, SMALL, 5, "w", 0, 1), FERRY_OK);
    assert_memory_equal(a, b, SMALL * sizeof(float));
    free(a);
    free(b);
}

static void refuses_wrong_calls(void **state)
{
    (void)state;
    double x[2];
    expect_failure(ferry_random_normal(x, FERRY_I64, 2, 1, "x", 0, 1), FERRY_USAGE, "type i64");
    expect_failure(ferry_random_normal(x, FERRY_F64, -1, 1, "x", 0, 1), FERRY_USAGE, "-1");
    expect_failure(ferry_random_normal(NULL, FERRY_F64, 2, 1, "x", 0, 1), FERRY_USAGE, "memory");
    expect_failure(ferry_random_normal(x, FERRY_F64, 2, 1, NULL, 0, 1), FERRY_USAGE, "name");
    expect_failure(ferry_random_normal(x, FERRY_F64, 2, 1, "x", 0, -1), FERRY_USAGE, "'x'");
    expect_failure(ferry_random_normal(x, FERRY_F64, 2, 1, "x", NAN, 1), FERRY_USAGE, "'x'");
    expect_ok(ferry_random_normal(NULL, FERRY_F64, 0, 1, "x", 0, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_known_answers),     cmocka_unit_test(knows_its_functions),
        cmocka_unit_test(draws_the_expected_numbers),  cmocka_unit_test(rounds_to_every_type),
        cmocka_unit_test(has_the_moments_of_a_normal), cmocka_unit_test(refuses_wrong_calls),
        cmocka_unit_test(does_not_depend_on_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
