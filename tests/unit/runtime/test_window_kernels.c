/* test_window_kernels.c - convolutions, poolings and batch normalization: the fast kernels against the references on
 * random geometries, the references' gradients against central differences, values by hand, and calls that are refused.
 */
#include "kernel_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { ROUNDS = 60 };

/* A random geometry; positions may see nothing but padding. */
static ferry_window random_window(int64_t groups, int64_t most)
{
    ferry_window w = {.rank = (int)bench_int(1, 3), .groups = groups, .count_pad = bench_bits() % 2 != 0};
    for (int i = 0; i < w.rank; i++) {
        w.in[i] = bench_int(1, w.rank == 1 ? 4 * most : most);
        w.size[i] = bench_int(1, 3);
        w.step[i] = bench_int(1, 3);
        w.dilation[i] = bench_int(1, 3);
        w.pad[i] = bench_int(-1, 3);
        w.pad_end[i] = bench_int(0, 3);
        int64_t room = w.in[i] + w.pad[i] + w.pad_end[i] - (w.size[i] - 1) * w.dilation[i] - 1;
        w.out[i] = room < 0 ? bench_int(0, 2) : room / w.step[i] + 1 + bench_int(0, 1);
    }
    return w;
}

static ferry_kernel conv(ferry_op op, ferry_dtype t, const ferry_window *w)
{
    ferry_kernel k = {.op = op, .dtype = t, .alpha = 1, .window = *w};
    k.m = bench_bits() % 16 == 0 ? 0 : bench_int(1, 3);
    k.k = w->groups * bench_int(1, 3);
    k.n = w->groups * bench_int(1, 4);
    return k;
}

static bool is_index(const ferry_kernel *k, int arg)
{
    return (k->op == FERRY_OP_MAXPOOL && arg == 1) || (k->op == FERRY_OP_MAXPOOL_GRAD && arg == 2);
}

/* All arguments that are not there yet get random numbers. */
static void fill_args(ferry_kernel *k, uint32_t without)
{
    const ferry_op_info *info = ferry_op_get(k->op);
    for (int i = 0; i < info->n_out + info->n_in; i++) {
        if (k->arg[i] != NULL || (without >> i & 1) != 0) {
            continue;
        }
        if (is_index(k, i)) {
            bench_alloc(k, i);
        } else {
            bench_random(k, i, 0.1, 1);
            for (int64_t e = 0, n = bench_elements(k, i); e < n && i < 4; e++) {
                bench_set(k, i, e, bench_get(k, i, e) - 0.6);
            }
        }
    }
}

/* Reference and fast on the same contents. Frees. */
static void compare(ferry_kernel *k)
{
    const ferry_op_info *info = ferry_op_get(k->op);
    ferry_kernel fast = *k;
    double tolerance = k->dtype == FERRY_BF16 ? 0x1p-7 : (k->dtype == FERRY_F32 ? 2e-6 : 1e-14) * bench_slack();
    if (ferryi_kernel_check(k) != FERRY_OK) {
        fail_msg("%s", ferry_error());
    }
    for (int o = 0; o < info->n_out; o++) {
        size_t bytes = k->arg[o] != NULL ? (size_t)(bench_elements(k, o) * ferryi_kernel_element_bytes(k, o)) : 0;
        if (k->arg[o] != NULL) {
            fast.arg[o] = malloc(bytes + 1);
            memcpy(fast.arg[o], k->arg[o], bytes);
        }
    }
    assert_int_equal(bench_run(true, k), FERRY_OK);
    assert_int_equal(bench_run(false, &fast), FERRY_OK);
    for (int o = 0; o < info->n_out; o++) {
        int64_t n = k->arg[o] != NULL ? bench_elements(k, o) : 0;
        double top = 0.1;
        for (int64_t i = 0; i < n && !is_index(k, o); i++) {
            double r = bench_get(k, o, i);
            top = isfinite(r) ? fmax(top, fabs(r)) : top;
        }
        for (int64_t i = 0; i < n && !is_index(k, o); i++) {
            double r = bench_get(k, o, i), f = bench_get(&fast, o, i);
            if (!(fabs(r - f) <= tolerance * top) && r != f) {
                fail_msg("%s output %d [%lld]: %.9g, reference %.9g", info->name, o, (long long)i, f, r);
            }
        }
        if (is_index(k, o)) {
            assert_memory_equal(k->arg[o], fast.arg[o], (size_t)n * 8);
        }
        if (k->arg[o] != NULL) {
            free(fast.arg[o]);
        }
    }
    bench_free(k);
}

static void test_conv(void **state)
{
    (void)state;
    for (int round = 0; round < 3 * ROUNDS; round++) {
        ferry_dtype t = (const ferry_dtype[]){FERRY_F32, FERRY_F64, FERRY_BF16}[round % 3];
        ferry_window w = random_window(bench_int(1, 3), 7);
        if (round % 5 == 0) { /* sees the input itself: no matrix of windows is made */
            for (int i = 0; i < w.rank; i++) {
                w.size[i] = w.step[i] = w.dilation[i] = 1;
                w.pad[i] = w.pad_end[i] = 0;
                w.out[i] = w.in[i];
            }
        }
        ferry_kernel k = conv(FERRY_OP_CONV, t, &w);
        fill_args(&k, round % 3 == 0 ? 8 : 0);
        compare(&k);
        k = conv(FERRY_OP_CONV_DX, t, &w);
        k.accumulate = round % 4 == 1;
        fill_args(&k, round % 3 == 0 ? 0 : 8);
        compare(&k);
        k = conv(FERRY_OP_CONV_DW, t, &w);
        k.accumulate = round % 4 == 2;
        fill_args(&k, 0);
        compare(&k);
    }
}

/* Blocks: more windows than fit into the scratch at once, and windows deeper than it. */
static void test_blocks(void **state)
{
    (void)state;
    const ferry_window wide = {
        .rank = 1, .groups = 1, .in = {60000}, .out = {60000}, .size = {9}, .step = {1}, .pad = {4}, .dilation = {1}};
    const ferry_window deep = {.rank = 2,
                               .groups = 1,
                               .in = {130, 130},
                               .out = {10, 9},
                               .size = {121, 122},
                               .step = {1, 1},
                               .dilation = {1, 1}};
    for (int which = 0; which < 2; which++) {
        for (ferry_op op = FERRY_OP_CONV; op <= FERRY_OP_CONV_DW; op++) {
            ferry_kernel k = {.op = op, .dtype = FERRY_F64, .alpha = 1, .m = 1, .k = 2, .n = 1};
            k.window = which == 0 ? wide : deep;
            fill_args(&k, op == FERRY_OP_CONV_DW ? 0 : 8);
            const ferry_op_info *info = ferry_op_get(op);
            ferry_kernel fast = k;
            int64_t n = bench_elements(&k, 0);
            bench_alloc(&fast, 0);
            assert_int_equal(bench_run(true, &k), FERRY_OK);
            assert_int_equal(bench_run(false, &fast), FERRY_OK);
            for (int64_t i = 0; i < n; i++) {
                double r = bench_get(&k, 0, i), f = bench_get(&fast, 0, i);
                if (fabs(r - f) > 1e-10 * (1 + fabs(r))) {
                    fail_msg("%s [%lld]: %.9g, reference %.9g", info->name, (long long)i, f, r);
                }
            }
            free(fast.arg[0]);
            bench_free(&k);
        }
    }
}

static void test_pools(void **state)
{
    (void)state;
    for (int round = 0; round < 3 * ROUNDS; round++) {
        ferry_dtype t = (const ferry_dtype[]){FERRY_F32, FERRY_F64, FERRY_BF16}[round % 3];
        ferry_window w = random_window(1, 8);
        ferry_kernel k = {.op = FERRY_OP_MAXPOOL, .dtype = t, .alpha = 1, .m = bench_int(0, 4), .window = w};
        fill_args(&k, round % 3 == 0 ? 2 : 0);
        for (int64_t i = 0, n = bench_elements(&k, 2); i < n && round % 2 == 0; i++) { /* many equal ones, and NaN */
            bench_set(&k, 2, i, bench_bits() % 20 == 0 ? (double)NAN : (double)bench_int(0, 2));
        }
        ferry_kernel forward = k;
        int64_t planes = k.m;
        if (round % 2 != 0) {
            compare(&k);
        } else { /* NaN compares unequal, and is one whatever its bits */
            bench_alloc(&forward, 0);
            if (k.arg[1] != NULL) {
                bench_alloc(&forward, 1);
            }
            assert_int_equal(bench_run(true, &k), FERRY_OK);
            assert_int_equal(bench_run(false, &forward), FERRY_OK);
            for (int64_t i = 0; i < bench_elements(&k, 0); i++) {
                double r = bench_get(&k, 0, i), f = bench_get(&forward, 0, i);
                assert_true(r == f || (isnan(r) && isnan(f)));
            }
            if (k.arg[1] != NULL) {
                assert_memory_equal(k.arg[1], forward.arg[1], (size_t)bench_elements(&k, 1) * 8);
                free(forward.arg[1]);
            }
            free(forward.arg[0]);
            bench_free(&k);
        }
        for (ferry_op op = FERRY_OP_AVGPOOL; op <= FERRY_OP_AVGPOOL_GRAD; op++) {
            ferry_kernel a = {.op = op, .fn = round % 4 < 2 ? FERRY_MEAN : FERRY_SUM, .dtype = t, .alpha = 1};
            a.m = planes;
            a.window = w;
            a.accumulate = op == FERRY_OP_AVGPOOL_GRAD && round % 3 == 0;
            fill_args(&a, 0);
            compare(&a);
        }
    }
}

static void test_batchnorm(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        for (ferry_op op = FERRY_OP_BATCHNORM; op <= FERRY_OP_BATCHNORM_DP; op++) {
            ferry_kernel k = {.op = op, .dtype = (const ferry_dtype[]){FERRY_F32, FERRY_F64, FERRY_BF16}[round % 3], .alpha = 1, .eps = 1e-3};
            k.m = bench_int(0, 3);
            k.n = bench_int(1, 5);
            k.k = bench_int(0, 20);
            k.accumulate = op == FERRY_OP_BATCHNORM_DP && round % 4 == 0;
            uint32_t none = op == FERRY_OP_BATCHNORM_DX ? 8 : 0x30;
            uint32_t without = round % 3 == 0 ? none : 0;
            if (op == FERRY_OP_BATCHNORM_DP && round % 5 == 0) {
                without |= 2;
            }
            int var = op == FERRY_OP_BATCHNORM_DX ? 3 : 5;
            if ((without & none) == 0) {
                bench_random(&k, var, 0.5, 2);
            }
            fill_args(&k, without);
            compare(&k);
        }
    }
}

static void test_batch_training(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        for (ferry_op op = FERRY_OP_BATCH_STATS; op <= FERRY_OP_MOVING_AVERAGE; op++) {
            ferry_kernel k = {.op = op, .dtype = round % 2 != 0 ? FERRY_F32 : FERRY_F64, .alpha = 0.7, .eps = 1e-3};
            k.m = bench_int(1, 3);
            k.n = bench_int(1, 5);
            k.k = bench_int(1, 20);
            k.accumulate = op == FERRY_OP_MOVING_AVERAGE;
            if (op == FERRY_OP_BATCHNORM_TRAIN_DX) {
                bench_random(&k, 5, 0.5, 2);
            }
            fill_args(&k, 0);
            compare(&k);
        }
    }
}

/* ---- gradients against central differences of the forward reference -------------------------------------------------
 */

static double weighted(const ferry_kernel *forward, const double *weight)
{
    double sum = 0;
    assert_int_equal(bench_run(true, forward), FERRY_OK);
    for (int64_t i = 0, n = bench_elements(forward, 0); i < n; i++) {
        sum += weight[i] * bench_get(forward, 0, i);
    }
    return sum;
}

static void check_differences(const ferry_kernel *forward, int arg, const double *weight, const ferry_kernel *gradient,
                              int out)
{
    const double step = 1e-5;
    for (int reference = 0; reference < 2; reference++) {
        assert_int_equal(bench_run(reference == 1, gradient), FERRY_OK);
        for (int64_t i = 0, n = bench_elements(forward, arg); i < n; i++) {
            double kept = bench_get(forward, arg, i);
            bench_set(forward, arg, i, kept + step);
            double up = weighted(forward, weight);
            bench_set(forward, arg, i, kept - step);
            double down = weighted(forward, weight);
            bench_set(forward, arg, i, kept);
            double numeric = (up - down) / (2 * step), is = bench_get(gradient, out, i);
            if (!(fabs(numeric - is) <= 1e-6 * fmax(1, fabs(numeric)))) {
                fail_msg("%s by argument %d [%lld]: %.12g, by differences %.12g", ferry_op_get(gradient->op)->name, arg,
                         (long long)i, is, numeric);
            }
        }
    }
}

static void test_conv_gradients(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        ferry_window w = random_window(bench_int(1, 2), 5);
        ferry_kernel f = conv(FERRY_OP_CONV, FERRY_F64, &w), dx = f, dw = f;
        fill_args(&f, 0);
        dx.op = FERRY_OP_CONV_DX;
        dw.op = FERRY_OP_CONV_DW;
        bench_alloc(&dx, 0);
        bench_random(&dx, 1, -1, 1);
        dx.arg[2] = f.arg[2];
        bench_alloc(&dw, 0);
        dw.arg[1] = f.arg[1];
        dw.arg[2] = dx.arg[1];
        check_differences(&f, 1, dx.arg[1], &dx, 0);
        check_differences(&f, 2, dx.arg[1], &dw, 0);
        free(dw.arg[0]);
        dx.arg[2] = NULL;
        bench_free(&dx);
        bench_free(&f);
    }
}

static void test_pool_gradients(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        ferry_window w = random_window(1, 6);
        bool max = round % 3 == 0;
        ferry_kernel f = {.op = max ? FERRY_OP_MAXPOOL : FERRY_OP_AVGPOOL, .dtype = FERRY_F64, .alpha = 1, .m = 2};
        f.fn = max ? FERRY_FN_NONE : round % 3 == 1 ? FERRY_MEAN : FERRY_SUM;
        f.window = w;
        fill_args(&f, 0);
        ferry_kernel g = f;
        g.op = max ? FERRY_OP_MAXPOOL_GRAD : FERRY_OP_AVGPOOL_GRAD;
        memset(g.arg, 0, sizeof(g.arg));
        bench_alloc(&g, 0);
        bench_random(&g, 1, -1, 1);
        assert_int_equal(bench_run(true, &f), FERRY_OK);
        for (int64_t i = 0, n = bench_elements(&f, 0); i < n; i++) { /* of nothing but padding: no difference of -inf */
            if (!isfinite(bench_get(&f, 0, i))) {
                bench_set(&g, 1, i, 0);
            }
        }
        if (max) {
            bench_alloc(&g, 2);
            memcpy(g.arg[2], f.arg[1], (size_t)bench_elements(&g, 2) * 8);
        }
        bool finite = true;
        for (int64_t i = 0, n = bench_elements(&f, 0); i < n; i++) {
            finite = finite && isfinite(bench_get(&f, 0, i));
        }
        if (finite) {
            check_differences(&f, max ? 2 : 1, g.arg[1], &g, 0);
        }
        bench_free(&g);
        bench_free(&f);
    }
}

static void test_batchnorm_gradients(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        ferry_kernel f = {.op = FERRY_OP_BATCHNORM, .dtype = FERRY_F64, .alpha = 1, .eps = 0.01};
        f.m = bench_int(1, 3);
        f.n = bench_int(1, 4);
        f.k = bench_int(1, 5);
        bool statistics = round % 2 == 0;
        if (statistics) {
            bench_random(&f, 5, 0.5, 2);
        }
        fill_args(&f, statistics ? 0 : 0x30);
        ferry_kernel dx = f, dp = f;
        dx.op = FERRY_OP_BATCHNORM_DX;
        dp.op = FERRY_OP_BATCHNORM_DP;
        bench_alloc(&dx, 0);
        bench_random(&dx, 1, -1, 1);
        dx.arg[2] = f.arg[2];
        dx.arg[3] = f.arg[5];
        double dscale[4], dbias[4];
        dp.arg[0] = dscale;
        dp.arg[1] = dbias;
        dp.arg[2] = dx.arg[1];
        dp.arg[3] = f.arg[1];
        check_differences(&f, 1, dx.arg[1], &dx, 0);
        check_differences(&f, 2, dx.arg[1], &dp, 0);
        check_differences(&f, 3, dx.arg[1], &dp, 1);
        dx.arg[2] = dx.arg[3] = NULL;
        free(dx.arg[0]);
        free(dx.arg[1]);
        bench_free(&f);
    }
}

/* BATCHNORM over its own BATCH_STATS, as one function of x. */
static double normalized(ferry_kernel *stats, ferry_kernel *norm, const double *weight)
{
    assert_int_equal(bench_run(true, stats), FERRY_OK);
    return weighted(norm, weight);
}

static void test_batch_gradients(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        ferry_kernel f = {.op = FERRY_OP_BATCHNORM, .dtype = FERRY_F64, .alpha = 1, .eps = 0.01};
        f.m = bench_int(1, 3);
        f.n = bench_int(1, 4);
        f.k = bench_int(2, 5);
        fill_args(&f, 0);
        ferry_kernel dx = f, stats = f;
        stats.op = FERRY_OP_BATCH_STATS;
        stats.arg[0] = f.arg[4];
        stats.arg[1] = f.arg[5];
        stats.arg[2] = f.arg[1];
        dx.op = FERRY_OP_BATCHNORM_TRAIN_DX;
        bench_alloc(&dx, 0);
        bench_random(&dx, 1, -1, 1);
        dx.arg[2] = f.arg[1];
        dx.arg[3] = f.arg[2];
        const double *dy = dx.arg[1];
        normalized(&stats, &f, dy);
        assert_int_equal(bench_run(true, &dx), FERRY_OK);
        double *x = f.arg[1];
        for (int64_t i = 0, n = bench_elements(&f, 1); i < n; i++) {
            const double h = 1e-5, at = x[i];
            x[i] = at + h;
            double above = normalized(&stats, &f, dy);
            x[i] = at - h;
            double below = normalized(&stats, &f, dy);
            x[i] = at;
            double want = (above - below) / (2 * h), got = bench_get(&dx, 0, i);
            if (!(fabs(got - want) <= 1e-7 * (1 + fabs(want)))) {
                fail_msg("dx[%d] is %.12g, differences give %.12g", (int)i, got, want);
            }
        }
        dx.arg[2] = dx.arg[3] = dx.arg[4] = dx.arg[5] = NULL;
        free(dx.arg[0]);
        free(dx.arg[1]);
        bench_free(&f);
    }
}

/* ---- by hand
 * --------------------------------------------------------------------------------------------------------- */

/* [1 2 3; 4 5 6] with a window of 2 x 2: sums, means with and without padding, the first of equal maxima. */
static void test_values(void **state)
{
    (void)state;
    double x[] = {1, 2, 3, 4, 5, 6}, ones[] = {1, 1, 1, 1}, y[6], bias[] = {10};
    int64_t place[6];
    ferry_window w = {.rank = 2, .groups = 1, .in = {2, 3}, .out = {1, 2}, .size = {2, 2}, .step = {1, 1}};
    w.dilation[0] = w.dilation[1] = 1;
    ferry_kernel k = {.op = FERRY_OP_CONV, .dtype = FERRY_F64, .alpha = 1, .m = 1, .k = 1, .n = 1, .window = w};
    k.arg[0] = y;
    k.arg[1] = x;
    k.arg[2] = ones;
    k.arg[3] = bias;
    for (int reference = 0; reference < 2; reference++) {
        assert_int_equal(bench_run(reference, &k), FERRY_OK);
        assert_true(y[0] == 22 && y[1] == 26);
        /* padded by one before: the corner window sees one element */
        ferry_kernel a = {.op = FERRY_OP_AVGPOOL, .fn = FERRY_MEAN, .dtype = FERRY_F64, .m = 1, .window = w};
        a.window.pad[0] = a.window.pad[1] = 1;
        a.window.out[0] = 2;
        a.window.out[1] = 3;
        a.arg[0] = y;
        a.arg[1] = x;
        assert_int_equal(bench_run(reference, &a), FERRY_OK);
        assert_true(y[0] == 1 && y[1] == 1.5 && y[3] == 2.5);
        a.window.count_pad = true;
        assert_int_equal(bench_run(reference, &a), FERRY_OK);
        assert_true(y[0] == 0.25 && y[1] == 0.75 && y[3] == 1.25);
        double mean[2], var[2], kept[] = {1, -1}, batch[] = {3, 4, 5, 6, 1, 2, 7, 8}; /* [2, 2, 2] */
        ferry_kernel s = {.op = FERRY_OP_BATCH_STATS, .dtype = FERRY_F64, .m = 2, .n = 2, .k = 2};
        s.arg[0] = mean;
        s.arg[1] = var;
        s.arg[2] = batch;
        assert_int_equal(bench_run(reference, &s), FERRY_OK);
        assert_true(mean[0] == 2.5 && mean[1] == 6.5 && var[0] == 1.25 && var[1] == 1.25);
        ferry_kernel e = {.op = FERRY_OP_MOVING_AVERAGE, .dtype = FERRY_F64, .n = 2, .alpha = 0.75, .accumulate = true};
        e.arg[0] = kept;
        e.arg[1] = mean;
        assert_int_equal(bench_run(reference, &e), FERRY_OK);
        assert_true(kept[0] == 1.375 && kept[1] == 0.875);
        double equal[] = {7, 7, 7, 7, 7, 7};
        ferry_kernel p = {.op = FERRY_OP_MAXPOOL, .dtype = FERRY_F64, .m = 1, .window = w};
        p.arg[0] = y;
        p.arg[1] = place;
        p.arg[2] = equal;
        assert_int_equal(bench_run(reference, &p), FERRY_OK);
        assert_true(y[0] == 7 && place[0] == 0 && place[1] == 1);
    }
}

static void refused(ferry_kernel k, const char *part)
{
    if (ferryi_kernel_check(&k) != FERRY_USAGE || strstr(ferry_error(), part) == NULL) {
        fail_msg("'%s' is not in '%s'", part, ferry_error());
    }
}

static void test_refused(void **state)
{
    (void)state;
    double at[64];
    ferry_window w = {.rank = 1, .groups = 2, .in = {4}, .out = {4}, .size = {1}, .step = {1}, .dilation = {1}};
    ferry_kernel k = {.op = FERRY_OP_CONV, .dtype = FERRY_F64, .m = 1, .k = 2, .n = 4, .window = w}, b;
    k.arg[0] = k.arg[1] = k.arg[2] = k.arg[3] = at;
    assert_int_equal(ferryi_kernel_check(&k), FERRY_OK);
    b = k;
    b.k = 3;
    refused(b, "groups");
    b = k;
    b.window.rank = 4;
    refused(b, "dimensions");
    b = k;
    b.window.step[0] = 0;
    refused(b, "size of the window");
    b = k;
    b.window.pad[0] = INT64_MIN;
    refused(b, "too large");
    b = k;
    b.window.in[0] = b.window.out[0] = INT64_MAX / 16;
    refused(b, "size or stride is wrong");
    b = k;
    b.arg[2] = NULL;
    refused(b, "argument 2 is NULL");
    b = k;
    b.dtype = FERRY_I32;
    refused(b, "floating");
    b = k;
    b.accumulate = true;
    refused(b, "accumulate");
    int64_t place[] = {0, 1, 2, 99};
    ferry_kernel g = {.op = FERRY_OP_MAXPOOL_GRAD, .dtype = FERRY_F64, .m = 1, .window = w};
    g.window.groups = 1;
    g.arg[0] = at;
    g.arg[1] = at + 8;
    g.arg[2] = place;
    assert_int_equal(ferryi_kernel_check(&g), FERRY_OK);
    assert_int_equal(bench_run(false, &g), FERRY_BAD_DATA);
    ferry_kernel n = {.op = FERRY_OP_BATCHNORM, .dtype = FERRY_F64, .m = 1, .k = 2, .n = 4};
    n.arg[0] = n.arg[1] = n.arg[2] = n.arg[3] = n.arg[4] = at;
    refused(n, "argument 5 is NULL");
    ferry_kernel e = {.op = FERRY_OP_MOVING_AVERAGE, .dtype = FERRY_F64, .n = 4, .alpha = 0.5};
    e.arg[0] = e.arg[1] = at;
    refused(e, "accumulate must be set");
}

int main(void)
{
    if (!bench_open()) {
        return TEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_pools),
        cmocka_unit_test(test_batchnorm),
        cmocka_unit_test(test_conv_gradients),
        cmocka_unit_test(test_pool_gradients),
        cmocka_unit_test(test_batchnorm_gradients),
        cmocka_unit_test(test_batch_training),
        cmocka_unit_test(test_batch_gradients),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_close();
    return failed;
}
