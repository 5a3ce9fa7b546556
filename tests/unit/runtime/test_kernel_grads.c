/* test_kernel_grads.c - every gradient kernel, reference and fast, against central differences of the forward reference
 * in f64: the derivative of L = sum(weight * forward(x)) by each element of x. */
#include "kernel_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define STEP      1e-5
#define TOLERANCE 1e-6

/* L, with the forward call's output 0 weighted by `weight` (NULL: 1). */
static double loss(const ferry_kernel *forward, const double *weight)
{
    assert_int_equal(ferryi_host_kernel(true, forward), FERRY_OK);
    double sum = 0;
    for (int64_t i = 0, n = bench_elements(forward, 0); i < n; i++) {
        sum += (weight != NULL ? weight[i] : 1) * bench_get(forward, 0, i);
    }
    return sum;
}

/* Compares gradient[0..) with the differences by argument `arg`; `scale` times and `base` more are expected. */
static void check(const ferry_kernel *forward, int arg, const double *weight, const double *gradient, double scale,
                  double base)
{
    for (int64_t i = 0, n = bench_elements(forward, arg); i < n; i++) {
        double x = bench_get(forward, arg, i);
        bench_set(forward, arg, i, x + STEP);
        double above = loss(forward, weight);
        bench_set(forward, arg, i, x - STEP);
        double below = loss(forward, weight);
        bench_set(forward, arg, i, x);
        double expected = base + scale * (above - below) / (2 * STEP);
        if (fabs(gradient[i] - expected) > TOLERANCE * fmax(1, fabs(expected))) {
            fail_msg("%s %s by argument %d at %lld: %.12g, expected %.12g", ferry_op_get(forward->op)->name,
                     ferry_fn_name(forward->fn), arg, (long long)i, gradient[i], expected);
        }
    }
    (void)loss(forward, weight);
}

/* Runs the gradient by reference and fast, and checks both. With accumulate, 0.5 is there before. */
static void check_both(ferry_kernel *grad, int out, const ferry_kernel *forward, int arg, const double *weight,
                       double scale)
{
    for (int reference = 0; reference < 2; reference++) {
        const ferry_op_info *info = ferry_op_get(grad->op);
        for (int o = 0; o < info->n_out; o++) {
            for (int64_t i = 0, n = grad->arg[o] != NULL ? bench_elements(grad, o) : 0; i < n; i++) {
                bench_set(grad, o, i, 0.5);
            }
        }
        assert_int_equal(ferryi_kernel_check(grad), FERRY_OK);
        assert_int_equal(ferryi_host_kernel(reference == 1, grad), FERRY_OK);
        check(forward, arg, weight, grad->arg[out], scale, grad->accumulate ? 0.5 : 0);
    }
}

static ferry_kernel make(ferry_op op, int64_t m, int64_t k, int64_t n)
{
    return (ferry_kernel){.op = op, .dtype = FERRY_F64, .dtype2 = FERRY_I64, .alpha = 1, .m = m, .k = k, .n = n};
}

static void test_linear(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        int64_t m = bench_int(1, 5), kk = bench_int(1, 6), n = bench_int(1, 7);
        ferry_kernel f = make(FERRY_OP_LINEAR, m, kk, n), dx = make(FERRY_OP_LINEAR_DX, m, kk, n);
        ferry_kernel dw = make(FERRY_OP_LINEAR_DW, m, kk, n);
        f.trans_b = dx.trans_b = dw.trans_b = (round & 1) != 0;
        dw.accumulate = (round & 2) != 0;
        bench_alloc(&f, 0);
        for (int a = 1; a < 4; a++) {
            bench_random(&f, a, -1, 1);
        }
        bench_alloc(&dx, 0);
        bench_random(&dx, 1, -1, 1); /* dy */
        bench_alloc(&dw, 0);
        dx.arg[2] = f.arg[2];
        dw.arg[1] = f.arg[1];
        dw.arg[2] = dx.arg[1];
        check_both(&dx, 0, &f, 1, dx.arg[1], 1);
        check_both(&dw, 0, &f, 2, dx.arg[1], 1);
        dx.arg[2] = NULL;
        free(dw.arg[0]);
        bench_free(&dx);
        bench_free(&f);
    }
}

static void test_unary(void **state)
{
    (void)state;
    for (ferry_fn fn = FERRY_NEG; fn <= FERRY_SILU; fn++) {
        double low, high;
        bench_domain(fn, &low, &high);
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            ferry_kernel f = make(FERRY_OP_UNARY, 0, 0, 40), g = make(FERRY_OP_UNARY_GRAD, 0, 0, 40);
            f.fn = g.fn = fn;
            g.accumulate = accumulate == 1;
            bench_alloc(&f, 0);
            bench_random(&f, 1, low, high);
            for (int i = 0; i < 40; i++) { /* off the kinks */
                double x = bench_get(&f, 1, i);
                bench_set(&f, 1, i, fabs(x) < 0.01 ? 0.5 : x);
            }
            bench_alloc(&g, 0);
            bench_random(&g, 1, -1, 1);
            (void)loss(&f, NULL);
            g.arg[2] = f.arg[1];
            g.arg[3] = malloc(40 * sizeof(double)); /* y; f's own changes during the differences */
            memcpy(g.arg[3], f.arg[0], 40 * sizeof(double));
            check_both(&g, 0, &f, 1, g.arg[1], 1);
            g.arg[2] = NULL;
            bench_free(&g);
            bench_free(&f);
        }
    }
}

static void test_binary(void **state)
{
    (void)state;
    for (ferry_fn fn = FERRY_ADD; fn <= FERRY_FMOD; fn++) {
        ferry_kernel f = make(FERRY_OP_BINARY, 0, 0, 0);
        f.fn = fn;
        f.rank = 2;
        f.dim[0] = 4;
        f.dim[1] = 5;
        f.stride[0][0] = 5; /* a row by row, b column by column */
        f.stride[0][1] = 1;
        f.stride[1][0] = 1;
        f.stride[1][1] = 4;
        bench_alloc(&f, 0);
        bench_random(&f, 1, 0.3, 2);
        bench_random(&f, 2, 0.3, 2);
        double weight[20];
        for (int i = 0; i < 20; i++) {
            weight[i] = bench_real(-1, 1);
        }
        for (int by = 0; by < 2; by++) {
            ferry_kernel g = f;
            g.op = by == 0 ? FERRY_OP_BINARY_GRAD_A : FERRY_OP_BINARY_GRAD_B;
            double out[20], ordered[20];
            g.arg[0] = out;
            g.arg[1] = weight;
            g.arg[2] = f.arg[1];
            g.arg[3] = f.arg[2];
            for (int reference = 0; reference < 2; reference++) {
                assert_int_equal(ferryi_host_kernel(reference == 1, &g), FERRY_OK);
                for (int i = 0; i < 4; i++) { /* the gradient is in the order of dim, b is not */
                    for (int j = 0; j < 5; j++) {
                        ordered[by == 0 ? i * 5 + j : j * 4 + i] = out[i * 5 + j];
                    }
                }
                check(&f, 1 + by, weight, ordered, 1, 0);
            }
        }
        bench_free(&f);
    }
}

static void test_softmax(void **state)
{
    (void)state;
    ferry_kernel f = make(FERRY_OP_SOFTMAX, 3, 0, 11), g = make(FERRY_OP_SOFTMAX_GRAD, 3, 0, 11);
    bench_alloc(&f, 0);
    bench_random(&f, 1, -2, 2);
    bench_alloc(&g, 0);
    bench_random(&g, 1, -1, 1);
    (void)loss(&f, NULL);
    g.arg[2] = malloc(33 * sizeof(double));
    memcpy(g.arg[2], f.arg[0], 33 * sizeof(double));
    check_both(&g, 0, &f, 1, g.arg[1], 1);
    bench_free(&f);
    bench_free(&g);
}

static void test_layernorm(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        const bool accumulate = round % 2 == 1, has_mean = round < 2; /* without: RMS normalization */
        const int64_t m = 3, n = 13;
        ferry_kernel f = make(FERRY_OP_LAYERNORM, m, 0, n), dx = make(FERRY_OP_LAYERNORM_DX, m, 0, n);
        ferry_kernel dp = make(FERRY_OP_LAYERNORM_DP, m, 0, n);
        f.eps = 1e-5;
        dp.accumulate = accumulate;
        for (int a = has_mean ? 1 : 2; a < 3; a++) {
            bench_alloc(&f, a);
        }
        bench_alloc(&f, 0);
        bench_random(&f, 3, -1, 2);
        bench_random(&f, 4, 0.5, 2);
        bench_random(&f, 5, -1, 1);
        (void)loss(&f, NULL);
        bench_alloc(&dx, 0);
        bench_random(&dx, 1, -1, 1);
        dx.arg[2] = f.arg[3];
        bench_alloc(&dx, 4);
        if (has_mean) {
            bench_alloc(&dx, 3);
            memcpy(dx.arg[3], f.arg[1], (size_t)m * sizeof(double));
        }
        memcpy(dx.arg[4], f.arg[2], (size_t)m * sizeof(double));
        dx.arg[5] = f.arg[4];
        check_both(&dx, 0, &f, 3, dx.arg[1], 1);
        bench_alloc(&dp, 0);
        bench_alloc(&dp, 1);
        for (int a = 0; a < 4; a++) {
            dp.arg[2 + a] = dx.arg[1 + a];
        }
        check_both(&dp, 0, &f, 4, dx.arg[1], 1);
        check_both(&dp, 1, &f, 5, dx.arg[1], 1);
        free(dp.arg[0]);
        free(dp.arg[1]);
        dx.arg[2] = dx.arg[5] = NULL;
        bench_free(&dx);
        bench_free(&f);
    }
}

static void test_embedding(void **state)
{
    (void)state;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        ferry_kernel f = make(FERRY_OP_EMBEDDING, 9, 5, 4), g = make(FERRY_OP_EMBEDDING_GRAD, 9, 5, 4);
        g.accumulate = accumulate == 1;
        bench_alloc(&f, 0);
        bench_random(&f, 1, -1, 1);
        bench_ids(&f, 2, -5, 3); /* row 4 only by -1 */
        bench_alloc(&g, 0);
        bench_random(&g, 1, -1, 1);
        g.arg[2] = f.arg[2];
        check_both(&g, 0, &f, 1, g.arg[1], 1);
        g.arg[2] = NULL;
        bench_free(&g);
        bench_free(&f);
    }
}

static void test_xent(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        const int64_t m = 4, n = 6, kk = (round & 1) != 0 ? 3 : 1;
        ferry_kernel f = make(FERRY_OP_XENT, m, kk, n), g = make(FERRY_OP_XENT_GRAD, m, kk, n);
        f.ignore_index = g.ignore_index = (round & 2) != 0 ? -100 : 2; /* 2: a class can be ignored */
        f.dtype2 = g.dtype2 = (round & 4) != 0 ? FERRY_I32 : FERRY_I64;
        for (int a = 0; a < 3; a++) {
            bench_alloc(&f, a);
        }
        bench_random(&f, 3, -2, 2);
        bench_ids(&f, 4, 0, n - 1);
        if (f.dtype2 == FERRY_I64) {
            ((int64_t *)f.arg[4])[1] = f.ignore_index;
            ((int64_t *)f.arg[4])[2] = 0;
        } else {
            ((int32_t *)f.arg[4])[1] = (int32_t)f.ignore_index;
            ((int32_t *)f.arg[4])[2] = 0;
        }
        (void)loss(&f, NULL);
        double dloss = 0.7;
        bench_alloc(&g, 0);
        g.arg[1] = f.arg[3];
        bench_alloc(&g, 2);
        memcpy(g.arg[2], f.arg[1], (size_t)(m * kk) * sizeof(double));
        g.arg[3] = f.arg[2];
        g.arg[4] = f.arg[4];
        g.arg[5] = &dloss;
        check_both(&g, 0, &f, 3, NULL, dloss);
        g.arg[5] = NULL;
        check_both(&g, 0, &f, 3, NULL, 1);
        g.arg[1] = g.arg[3] = g.arg[4] = NULL;
        bench_free(&g);
        bench_free(&f);
    }
}

/* MATMUL is its own gradient: of y = alpha a b, da = alpha dy b^T and db = alpha a^T dy. */
static void test_matmul(void **state)
{
    (void)state;
    ferry_kernel f = make(FERRY_OP_MATMUL, 3, 4, 5);
    f.alpha = 0.25;
    f.rank = 1;
    f.dim[0] = 2;
    f.stride[0][0] = 15;
    f.stride[1][0] = 12;
    f.stride[2][0] = 20;
    bench_alloc(&f, 0);
    bench_random(&f, 1, -1, 1);
    bench_random(&f, 2, -1, 1);
    double dy[30], da[24], db[40];
    for (int i = 0; i < 30; i++) {
        dy[i] = bench_real(-1, 1);
    }
    for (int reference = 0; reference < 2; reference++) {
        ferry_kernel g = {.op = FERRY_OP_MATMUL,
                          .dtype = FERRY_F64,
                          .m = 3,
                          .k = 5,
                          .n = 4,
                          .rank = 1,
                          .dim = {2},
                          .stride = {{12}, {15}, {20}},
                          .alpha = 0.25,
                          .trans_b = true,
                          .arg = {da, dy, f.arg[2]}};
        assert_int_equal(ferryi_host_kernel(reference == 1, &g), FERRY_OK);
        check(&f, 1, dy, da, 1, 0);
        ferry_kernel h = {.op = FERRY_OP_MATMUL,
                          .dtype = FERRY_F64,
                          .m = 4,
                          .k = 3,
                          .n = 5,
                          .rank = 1,
                          .dim = {2},
                          .stride = {{20}, {12}, {15}},
                          .alpha = 0.25,
                          .trans_a = true,
                          .arg = {db, f.arg[1], dy}};
        assert_int_equal(ferryi_host_kernel(reference == 1, &h), FERRY_OK);
        check(&f, 2, dy, db, 1, 0);
    }
    bench_free(&f);
}

/* ---- edges ------------------------------------------------------------------------------------------------------ */

static void test_power_edges(void **state)
{
    (void)state;
    const struct {
        double a, b, da, db; /* with dy = 3 */
    } edge[] = {
        {0, 0, 0, 0},      {2, 0, 0, 3 * 0.69314718055994531},
        {0, 1, 3, 0},      {0, 2, 0, 0},
        {0, 3, 0, 0},      {-2, 1, 3, NAN},
        {-2, 2, -12, NAN}, {-2, 3, 36, NAN},
        {-2, 0, 0, NAN},   {2, 3, 36, 24 * 0.69314718055994531},
    };
    for (size_t i = 0; i < sizeof(edge) / sizeof(*edge); i++) {
        for (int type = 0; type < 2; type++) {
            for (int reference = 0; reference < 2; reference++) {
                ferry_kernel k = {
                    .op = FERRY_OP_BINARY_GRAD_A, .fn = FERRY_POW, .rank = 1, .dim = {3}, .stride = {{1}, {0}}};
                k.dtype = type == 0 ? FERRY_F32 : FERRY_F64;
                bench_alloc(&k, 0);
                bench_random(&k, 1, 3, 3);
                bench_random(&k, 2, edge[i].a, edge[i].a);
                bench_random(&k, 3, edge[i].b, edge[i].b);
                assert_int_equal(ferryi_host_kernel(reference == 1, &k), FERRY_OK);
                assert_true(fabs(bench_get(&k, 0, 1) - edge[i].da) <= 1e-6 * fabs(edge[i].da));
                k.op = FERRY_OP_BINARY_GRAD_B;
                assert_int_equal(ferryi_host_kernel(reference == 1, &k), FERRY_OK);
                double db = bench_get(&k, 0, 1);
                assert_true(isnan(edge[i].db) ? isnan(db) : fabs(db - edge[i].db) <= 1e-6 * fabs(edge[i].db));
                bench_free(&k);
            }
        }
    }
}

/* Where both are equal each gets half. */
static void test_ties(void **state)
{
    (void)state;
    for (int reference = 0; reference < 2; reference++) {
        for (ferry_fn fn = FERRY_MAX; fn <= FERRY_MIN; fn++) {
            double a[] = {1, 2, 3}, b[] = {2, 2, 2}, dy[] = {4, 4, 4}, ga[3], gb[3];
            ferry_kernel k = {.op = FERRY_OP_BINARY_GRAD_A,
                              .fn = fn,
                              .dtype = FERRY_F64,
                              .rank = 1,
                              .dim = {3},
                              .stride = {{1}, {1}},
                              .arg = {ga, dy, a, b}};
            assert_int_equal(ferryi_host_kernel(reference == 1, &k), FERRY_OK);
            k.op = FERRY_OP_BINARY_GRAD_B;
            k.arg[0] = gb;
            assert_int_equal(ferryi_host_kernel(reference == 1, &k), FERRY_OK);
            int low = fn == FERRY_MAX ? 0 : 2;
            assert_true(ga[low] == 0 && ga[1] == 2 && ga[2 - low] == 4);
            assert_true(gb[low] == 4 && gb[1] == 2 && gb[2 - low] == 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),  cmocka_unit_test(test_unary),     cmocka_unit_test(test_binary),
        cmocka_unit_test(test_softmax), cmocka_unit_test(test_layernorm), cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_xent),    cmocka_unit_test(test_matmul),    cmocka_unit_test(test_power_edges),
        cmocka_unit_test(test_ties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
