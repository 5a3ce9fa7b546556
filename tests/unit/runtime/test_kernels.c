/* test_kernels.c - conformance: every op's kernel of a device against the scalar reference, on random shapes with empty
 * and single dimensions, broadcasts, transposed matrices and accumulation, in f32, f64 and bf16; and the same bits wherever
 * buffers lie. */
#include "kernel_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { ROUNDS = 60 };

static int64_t size(void)
{
    const int64_t sizes[] = {0, 1, 1, 2, 3, 5, 7, 8, 9, 16, 17, 33, 70};
    return sizes[bench_bits() % 13];
}

static int64_t small(void) /* seldom 0: it empties the whole shape */
{
    return bench_bits() % 24 == 0 ? 0 : (const int64_t[]){1, 1, 2, 2, 3, 4, 5, 9}[bench_bits() % 8];
}

static int64_t product(const ferry_kernel *k)
{
    int64_t n = 1;
    for (int i = 0; i < k->rank; i++) {
        n *= k->dim[i];
    }
    return n;
}

static void random_dims(ferry_kernel *k, int max_rank)
{
    do {
        k->rank = (int)bench_int(0, max_rank);
        for (int i = 0; i < k->rank; i++) {
            k->dim[i] = small();
        }
    } while (product(k) > 3000);
}

/* Strides of argument a: dense over the dimensions that it has, 0 over the others; sometimes in another order, or with
 * gaps. `block`: elements below the last dimension. */
static void random_strides(ferry_kernel *k, int a, int64_t block, bool broadcast)
{
    int order[FERRY_MAX_RANK];
    for (int i = 0; i < k->rank; i++) {
        order[i] = i;
    }
    for (int i = k->rank - 1; i > 0 && bench_bits() % 3 == 0; i--) {
        int j = (int)bench_int(0, i), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    int64_t stride = block + (bench_bits() % 4 == 0 ? 3 : 0);
    for (int i = k->rank - 1; i >= 0; i--) {
        int d = order[i];
        bool absent = broadcast && bench_bits() % 4 == 0;
        k->stride[a][d] = absent ? 0 : stride;
        stride *= absent ? 1 : k->dim[d] > 0 ? k->dim[d] : 1;
    }
}

/* Numbers of bf16 that are neighbours: two results that agree in f32 but for the last bits may be rounded apart. */
#define BF16_STEP 0x1p-7

/* Runs both and compares. The outputs' earlier contents are the same for both: accumulated to, or overwritten. */
static void compare(ferry_kernel *k, double tolerance)
{
    const ferry_op_info *info = ferry_op_get(k->op);
    ferry_kernel fast = *k;
    assert_int_equal(ferryi_kernel_check(k), FERRY_OK);
    assert_int_equal(ferryi_host_supports(k), FERRY_OK);
    for (int o = 0; o < info->n_out; o++) {
        if (k->arg[o] == NULL) {
            continue;
        }
        size_t bytes = (size_t)(bench_elements(k, o) * ferryi_kernel_element_bytes(k, o));
        fast.arg[o] = malloc(bytes > 0 ? bytes : 1);
        memcpy(fast.arg[o], k->arg[o], bytes);
    }
    assert_int_equal(bench_run(true, k), FERRY_OK);
    assert_int_equal(bench_run(false, &fast), FERRY_OK);
    for (int o = 0; o < info->n_out; o++) {
        int64_t n = k->arg[o] != NULL ? bench_elements(k, o) : 0;
        int64_t each = ferryi_kernel_element_bytes(k, o);
        if (tolerance == 0) {
            assert_memory_equal(k->arg[o], fast.arg[o], (size_t)(n * each));
        } else {
            double top = 0, off = 0;
            for (int64_t i = 0; i < n; i++) {
                double r = bench_get(k, o, i), f = bench_get(&fast, o, i);
                assert_int_equal(isnan(r) != 0, isnan(f) != 0);
                if (!isnan(r) && r != f) {
                    off = fmax(off, fabs(r - f));
                }
                top = isfinite(r) ? fmax(top, fabs(r)) : top;
            }
            bool narrow = ferry_kernel_arg_dtype(k, o) == FERRY_BF16;
            double most = narrow ? BF16_STEP : tolerance * bench_slack();
            if (off > most * fmax(top, 0.1)) {
                fail_msg("%s %s %s: output %d is off by %g of %g", info->name, ferry_fn_name(k->fn),
                         ferry_dtype_name(k->dtype), o, off, top);
            }
        }
        if (k->arg[o] != NULL) {
            free(fast.arg[o]);
        }
    }
    bench_free(k);
}

static double tolerance(const ferry_kernel *k)
{
    return k->dtype == FERRY_F64 ? 1e-14 : 2e-6;
}

static ferry_kernel start(ferry_op op, ferry_dtype t)
{
    ferry_kernel k = {.op = op, .dtype = t, .dtype2 = bench_bits() % 2 != 0 ? FERRY_I64 : FERRY_I32, .alpha = 1};
    k.m = size();
    k.k = size();
    k.n = size();
    return k;
}

static const ferry_dtype floats[] = {FERRY_F32, FERRY_F64, FERRY_BF16};

#define EACH_TYPE_AND_ROUND                                                                                            \
    for (int type = 0; type < 3; type++)                                                                               \
        for (int round = 0; round < ROUNDS; round++)

static void test_linear(void **state)
{
    (void)state;
    EACH_TYPE_AND_ROUND
    {
        ferry_kernel k = start(FERRY_OP_LINEAR, floats[type]);
        k.trans_b = bench_bits() % 2 != 0;
        bench_alloc(&k, 0);
        bench_random(&k, 1, -1, 1);
        bench_random(&k, 2, -1, 1);
        if (bench_bits() % 2 != 0) {
            bench_random(&k, 3, -1, 1);
        }
        memset(k.arg[0], 0xFF, (size_t)(k.m * k.n) * ferry_dtype_bytes(k.dtype)); /* NaN must not leak */
        compare(&k, tolerance(&k));
        k = start(FERRY_OP_LINEAR_DX, floats[type]);
        k.trans_b = bench_bits() % 2 != 0;
        k.accumulate = bench_bits() % 2 != 0;
        if (k.accumulate) {
            bench_random(&k, 0, -1, 1);
        } else {
            bench_alloc(&k, 0);
            memset(k.arg[0], 0xFF, (size_t)(k.m * k.k) * ferry_dtype_bytes(k.dtype));
        }
        bench_random(&k, 1, -1, 1);
        bench_random(&k, 2, -1, 1);
        compare(&k, tolerance(&k));
        k = start(FERRY_OP_LINEAR_DW, floats[type]);
        k.trans_b = bench_bits() % 2 != 0;
        k.accumulate = bench_bits() % 2 != 0;
        bench_random(&k, 0, -1, 1);
        bench_random(&k, 1, -1, 1);
        bench_random(&k, 2, -1, 1);
        compare(&k, tolerance(&k));
    }
}

static void test_matmul(void **state)
{
    (void)state;
    EACH_TYPE_AND_ROUND
    {
        ferry_kernel k = start(FERRY_OP_MATMUL, floats[type]);
        k.trans_a = bench_bits() % 2 != 0;
        k.trans_b = bench_bits() % 2 != 0;
        k.accumulate = bench_bits() % 2 != 0;
        k.alpha = bench_bits() % 2 != 0 ? 1 : bench_real(-2, 2);
        k.alpha = (double)(float)k.alpha;
        do {
            random_dims(&k, 3);
        } while (product(&k) > 12);
        random_strides(&k, 0, k.m * k.n, false);
        random_strides(&k, 1, k.m * k.k, true);
        random_strides(&k, 2, k.k * k.n, true);
        bench_random(&k, 0, -1, 1);
        bench_random(&k, 1, -1, 1);
        bench_random(&k, 2, -1, 1);
        compare(&k, tolerance(&k));
    }
}

static void test_unary(void **state)
{
    (void)state;
    EACH_TYPE_AND_ROUND
    {
        for (ferry_fn f = FERRY_NEG; f <= FERRY_SILU; f++) {
            double low, high;
            bench_domain(f, &low, &high);
            ferry_kernel k = start(FERRY_OP_UNARY, floats[type]);
            k.fn = f;
            bench_alloc(&k, 0);
            bench_random(&k, 1, low, high);
            compare(&k, tolerance(&k));
            k = start(FERRY_OP_UNARY_GRAD, floats[type]);
            k.fn = f;
            k.accumulate = bench_bits() % 2 != 0;
            bench_random(&k, 0, -1, 1);
            bench_random(&k, 1, -1, 1);
            bench_random(&k, 2, low, high);
            bench_random(&k, 3, 0.2, 0.9);
            compare(&k, tolerance(&k));
        }
    }
}

static void test_binary(void **state)
{
    (void)state;
    EACH_TYPE_AND_ROUND
    {
        for (ferry_fn f = FERRY_ADD; f <= FERRY_GREATER_EQUAL; f = f == FERRY_FMOD ? FERRY_EQUAL : f + 1) {
            ferry_kernel k = start(FERRY_OP_BINARY, floats[type]);
            k.fn = f;
            random_dims(&k, 5);
            random_strides(&k, 0, 1, true);
            random_strides(&k, 1, 1, true);
            for (ferry_op op = FERRY_OP_BINARY; op <= (f <= FERRY_FMOD ? FERRY_OP_BINARY_GRAD_B : FERRY_OP_BINARY);
                 op++) {
                ferry_kernel g = k;
                int inputs = op == FERRY_OP_BINARY ? 1 : 2;
                g.op = op;
                bench_alloc(&g, 0);
                if (inputs == 2) {
                    bench_random(&g, 1, -1, 1);
                }
                bench_random(&g, inputs, 0.5, 2);
                bench_random(&g, inputs + 1, 0.5, 2);
                if (f >= FERRY_MAX && bench_elements(&g, inputs + 1) > 0 && bench_elements(&g, inputs) > 0) {
                    bench_set(&g, inputs + 1, 0, bench_get(&g, inputs, 0)); /* a tie */
                }
                compare(&g, op == FERRY_OP_BINARY && f >= FERRY_EQUAL ? 0 : tolerance(&g));
            }
        }
    }
}

/* Powers by one number: also the ones that are products. */
static void test_power(void **state)
{
    (void)state;
    const double exponents[] = {-2, -1, 0, 0.5, 1, 2, 3, 4, 5};
    EACH_TYPE_AND_ROUND
    {
        ferry_kernel k = start(FERRY_OP_BINARY, floats[type]);
        k.fn = FERRY_POW;
        random_dims(&k, 3);
        random_strides(&k, 0, 1, false);
        double b = exponents[round % 9];
        for (ferry_op op = FERRY_OP_BINARY; op <= FERRY_OP_BINARY_GRAD_A; op++) {
            ferry_kernel g = k;
            int inputs = op == FERRY_OP_BINARY ? 1 : 2;
            g.op = op;
            bench_alloc(&g, 0);
            if (inputs == 2) {
                bench_random(&g, 1, -1, 1);
            }
            bench_random(&g, inputs, b == 0.5 ? 0.1 : -2, 2);
            bench_random(&g, inputs + 1, b, b);
            compare(&g, k.dtype == FERRY_F64 ? 1e-15 : 3e-7);
        }
    }
}

static void test_reduce(void **state)
{
    (void)state;
    EACH_TYPE_AND_ROUND
    {
        for (int i = 0; i < 4; i++) {
            ferry_kernel k = start(FERRY_OP_REDUCE, floats[type]);
            const ferry_fn fns[] = {FERRY_SUM, FERRY_MEAN, FERRY_MAX, FERRY_MIN};
            k.fn = fns[bench_bits() % 4];
            k.accumulate = (k.fn == FERRY_SUM || k.fn == FERRY_MEAN) && bench_bits() % 2 != 0;
            random_dims(&k, 5);
            if (k.rank > 0 && bench_bits() % 2 != 0) {
                k.dim[bench_int(0, k.rank - 1)] = bench_int(60, 140);
            }
            k.axes = (uint32_t)bench_bits() & ((1u << k.rank) - 1);
            bench_random(&k, 0, -1, 1);
            bench_random(&k, 1, -1, 1);
            compare(&k, tolerance(&k));
        }
    }
}

static void random_copy(ferry_kernel *k)
{
    random_dims(k, 5);
    random_strides(k, 0, 1, false);
    random_strides(k, 1, 1, true);
    k->offset[0] = bench_int(0, 5);
    k->offset[1] = bench_int(0, 5);
    for (int a = 0; a < 2; a++) { /* backwards */
        int d = (int)bench_int(0, 7);
        if (d < k->rank && bench_bits() % 3 == 0 && k->dim[d] > 0) {
            k->offset[a] += (k->dim[d] - 1) * k->stride[a][d];
            k->stride[a][d] *= -1;
        }
    }
}

static void test_copy(void **state)
{
    (void)state;
    EACH_TYPE_AND_ROUND
    {
        ferry_kernel k = start(FERRY_OP_COPY, floats[type]);
        k.accumulate = bench_bits() % 2 != 0;
        k.alpha = k.accumulate && bench_bits() % 2 != 0 ? 1 : 0.375;
        random_copy(&k);
        bench_random(&k, 0, -1, 1);
        bench_random(&k, 1, -1, 1);
        compare(&k, tolerance(&k));
    }
    for (int round = 0; round < 10 * ROUNDS; round++) {
        ferry_kernel k = start(FERRY_OP_COPY, (ferry_dtype)(round % FERRY_DTYPE_COUNT));
        random_copy(&k);
        for (int a = 0; a < 2; a++) {
            bench_alloc(&k, a);
            for (int64_t i = 0, n = bench_elements(&k, a) * (int64_t)ferry_dtype_bytes(k.dtype); i < n; i++) {
                ((uint8_t *)k.arg[a])[i] = (uint8_t)bench_bits();
            }
        }
        compare(&k, 0);
    }
}

static void test_where_and_fill(void **state)
{
    (void)state;
    for (int round = 0; round < 4 * ROUNDS; round++) {
        ferry_kernel k = start(FERRY_OP_WHERE, (ferry_dtype)(round % FERRY_DTYPE_COUNT));
        random_dims(&k, 4);
        for (int a = 0; a < 3; a++) {
            random_strides(&k, a, 1, true);
        }
        for (int a = 0; a < 4; a++) {
            bench_alloc(&k, a);
            for (int64_t i = 0, n = bench_elements(&k, a) * ferryi_kernel_element_bytes(&k, a); i < n; i++) {
                ((uint8_t *)k.arg[a])[i] = (uint8_t)(a == 1 ? bench_bits() % 2 : bench_bits());
            }
        }
        compare(&k, 0);
        k = start(FERRY_OP_FILL, (ferry_dtype)(round % FERRY_DTYPE_COUNT));
        k.alpha = (double)bench_int(0, 100);
        bench_alloc(&k, 0);
        compare(&k, 0);
    }
}

static void test_rows(void **state)
{
    (void)state;
    EACH_TYPE_AND_ROUND
    {
        ferry_kernel k = start(FERRY_OP_SOFTMAX, floats[type]);
        bench_alloc(&k, 0);
        bench_random(&k, 1, -5, 5);
        compare(&k, tolerance(&k));
        k = start(FERRY_OP_SOFTMAX_GRAD, floats[type]);
        bench_alloc(&k, 0);
        bench_random(&k, 1, -1, 1);
        bench_random(&k, 2, 0, 1);
        compare(&k, tolerance(&k));
        k = start(FERRY_OP_LAYERNORM, floats[type]);
        k.eps = 1e-5;
        bool rms = bench_bits() % 2 != 0;
        for (int a = 0; a < 3; a++) {
            if (!rms || a != 1) {
                bench_alloc(&k, a);
            }
        }
        bench_random(&k, 3, -1, 3);
        bench_random(&k, 4, 0, 2);
        if (bench_bits() % 2 != 0) {
            bench_random(&k, 5, -1, 1);
        }
        compare(&k, tolerance(&k));
        k = start(FERRY_OP_LAYERNORM_DX, floats[type]);
        k.accumulate = bench_bits() % 2 != 0;
        bench_random(&k, 0, -1, 1);
        bench_random(&k, 1, -1, 1);
        bench_random(&k, 2, -1, 1);
        if (!rms) {
            bench_random(&k, 3, -0.1, 0.1);
        }
        bench_random(&k, 4, 0.5, 2);
        bench_random(&k, 5, 0.5, 2);
        compare(&k, tolerance(&k));
        k = start(FERRY_OP_LAYERNORM_DP, floats[type]);
        k.accumulate = bench_bits() % 2 != 0;
        bench_random(&k, 0, -1, 1);
        if (bench_bits() % 2 != 0) {
            bench_random(&k, 1, -1, 1);
        }
        bench_random(&k, 2, -1, 1);
        bench_random(&k, 3, -1, 1);
        if (!rms) {
            bench_random(&k, 4, -0.1, 0.1);
        }
        bench_random(&k, 5, 0.5, 2);
        compare(&k, tolerance(&k));
    }
}

static void test_ids(void **state)
{
    (void)state;
    EACH_TYPE_AND_ROUND
    {
        ferry_kernel k = start(FERRY_OP_EMBEDDING, floats[type]);
        k.k = k.k == 0 ? 1 : k.k;
        bench_alloc(&k, 0);
        bench_random(&k, 1, -1, 1);
        bench_ids(&k, 2, -k.k, k.k - 1);
        compare(&k, 0);
        k = start(FERRY_OP_EMBEDDING_GRAD, floats[type]);
        k.k = k.k == 0 ? 1 : k.k;
        k.accumulate = bench_bits() % 2 != 0;
        bench_random(&k, 0, -1, 1);
        bench_random(&k, 1, -1, 1);
        bench_ids(&k, 2, -k.k, k.k - 1);
        compare(&k, tolerance(&k));
        k = start(FERRY_OP_XENT, floats[type]);
        k.k = bench_bits() % 3 == 0 ? small() : 1;
        k.n = k.n == 0 ? 1 : k.n;
        k.ignore_index = -1;
        for (int a = 0; a < 3; a++) {
            bench_alloc(&k, a);
        }
        bench_random(&k, 3, -5, 5);
        bench_ids(&k, 4, -1, k.n - 1);
        compare(&k, tolerance(&k));
        k = start(FERRY_OP_XENT_GRAD, floats[type]);
        k.k = bench_bits() % 3 == 0 ? small() : 1;
        k.n = k.n == 0 ? 1 : k.n;
        k.ignore_index = -1;
        bench_alloc(&k, 0);
        bench_random(&k, 1, -5, 5);
        bench_random(&k, 2, 4, 6);
        bench_random(&k, 3, 7, 7);
        bench_ids(&k, 4, -1, k.n - 1);
        if (bench_bits() % 2 != 0) {
            bench_random(&k, 5, -1, 1);
        }
        compare(&k, tolerance(&k));
    }
}

/* Ids with many equal ones, so that updates meet. */
static void test_index(void **state)
{
    (void)state;
    const ferry_fn merging[] = {FERRY_FN_NONE, FERRY_ADD, FERRY_MUL, FERRY_MAX, FERRY_MIN};
    EACH_TYPE_AND_ROUND
    {
        ferry_kernel k = start(FERRY_OP_SCATTER, floats[type]);
        k.k = k.k == 0 ? 1 : k.k;
        k.fn = merging[round % 5];
        bench_alloc(&k, 0);
        bench_random(&k, 1, 0.5, 2);
        bench_random(&k, 2, 0.5, 2);
        bench_ids(&k, 3, -k.k, k.k - 1);
        compare(&k, tolerance(&k));
        k = start(FERRY_OP_SCATTER_GRAD, floats[type]);
        k.k = k.k == 0 ? 1 : k.k;
        k.fn = merging[round % 5];
        bench_alloc(&k, 0);
        bench_alloc(&k, 1);
        if (k.fn == FERRY_FN_NONE) { /* of equal ids the reference gives each the gradient */
            k.m = k.m < k.k ? k.m : k.k;
        }
        bench_random(&k, 2, -1, 1);
        for (int a = 3; a < 6; a++) { /* few values: factors of 0, and equal extremes */
            bench_alloc(&k, a);
            for (int64_t i = 0, n = bench_elements(&k, a); i < n; i++) {
                bench_set(&k, a, i, (double)bench_int(0, 2));
            }
        }
        bench_ids(&k, 6, -k.k, k.k - 1);
        compare(&k, tolerance(&k));
        k = start(FERRY_OP_TOPK, floats[type]);
        k.k = bench_int(0, k.n);
        k.reverse = round % 2 == 1;
        bench_alloc(&k, 0);
        bench_alloc(&k, 1);
        for (int64_t i = 0, n = bench_elements(&k, 1); i < n; i++) {
            bench_set(&k, 1, i, bench_bits() % 16 == 0 ? (double)NAN : (double)bench_int(-3, 3));
        }
        compare(&k, 0);
        k = start(FERRY_OP_DROPOUT, floats[type]);
        k.n = k.n * k.m;
        k.alpha = 0.3;
        k.seed = 77777777777;
        k.step = round;
        k.salt = 5;
        k.accumulate = bench_bits() % 2 != 0;
        bench_random(&k, 0, -1, 1);
        bench_random(&k, 1, -1, 1);
        compare(&k, tolerance(&k));
    }
    for (int round = 0; round < ROUNDS; round++) {
        ferry_kernel k = start(FERRY_OP_RAVEL, round % 2 != 0 ? FERRY_I64 : FERRY_I32);
        k.dtype2 = k.dtype;
        k.m = bench_int(1, 4);
        k.k = bench_int(1, 3);
        random_dims(&k, 3);
        random_strides(&k, 0, 1, false);
        random_strides(&k, 1, k.m, true);
        for (int i = 0; i < FERRY_MAX_RANK; i++) {
            k.stride[2][i] = bench_int(2, 9);
        }
        bench_alloc(&k, 0);
        bench_ids(&k, 1, -2, 1);
        compare(&k, 0);
    }
}

/* The same numbers at eight distances from a cache line give the same bits. */
static void same_bits(ferry_kernel *k)
{
    const ferry_op_info *info = ferry_op_get(k->op);
    int args = info->n_out + info->n_in;
    assert_int_equal(bench_run(false, k), FERRY_OK);
    for (int shift = 0; shift < 8; shift++) {
        ferry_kernel moved = *k;
        char *block[FERRY_MAX_ARGS] = {0};
        for (int a = 0; a < args; a++) {
            int64_t each = ferryi_kernel_element_bytes(k, a), bytes = bench_elements(k, a) * each;
            if (k->arg[a] != NULL) {
                block[a] = aligned_alloc(64, ((size_t)bytes / 64 + 10) * 64);
                moved.arg[a] = block[a] + (shift * (a + 1)) % 16 * each;
                if (a >= info->n_out) {
                    memcpy(moved.arg[a], k->arg[a], (size_t)bytes);
                }
            }
        }
        assert_int_equal(bench_run(false, &moved), FERRY_OK);
        for (int a = 0; a < args; a++) {
            if (a < info->n_out && k->arg[a] != NULL) {
                assert_memory_equal(k->arg[a], moved.arg[a],
                                    (size_t)(bench_elements(k, a) * ferryi_kernel_element_bytes(k, a)));
            }
            free(block[a]);
        }
    }
    bench_free(k);
}

static void test_same_bits(void **state)
{
    (void)state;
    if (!test_on_host()) { /* a library picks its products by the addresses, too */
        skip();
    }
    for (int type = 0; type < 2; type++) {
        for (int round = 0; round < 12; round++) {
            const ferry_op ops[] = {FERRY_OP_LINEAR,    FERRY_OP_LINEAR_DX,    FERRY_OP_LINEAR_DW,
                                    FERRY_OP_MATMUL,    FERRY_OP_SOFTMAX,      FERRY_OP_SOFTMAX_GRAD,
                                    FERRY_OP_LAYERNORM, FERRY_OP_LAYERNORM_DX, FERRY_OP_LAYERNORM_DP,
                                    FERRY_OP_REDUCE};
            for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
                ferry_kernel k = start(ops[i], floats[type]);
                k.m = bench_int(1, 90);
                k.k = bench_int(1, 90);
                k.n = bench_int(1, 90);
                k.trans_b = ops[i] <= FERRY_OP_MATMUL && bench_bits() % 2 != 0;
                if (ops[i] == FERRY_OP_REDUCE) {
                    k.fn = FERRY_SUM;
                    k.rank = 2;
                    k.dim[0] = k.m;
                    k.dim[1] = k.n;
                    k.axes = (uint32_t)bench_int(1, 3);
                }
                const ferry_op_info *info = ferry_op_get(ops[i]);
                for (int a = 0; a < info->n_out + info->n_in; a++) {
                    bench_random(&k, a, 0.1, 2);
                }
                same_bits(&k);
            }
        }
    }
}

int main(void)
{
    if (!bench_open()) {
        return TEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear), cmocka_unit_test(test_matmul),         cmocka_unit_test(test_unary),
        cmocka_unit_test(test_binary), cmocka_unit_test(test_power),          cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_copy),   cmocka_unit_test(test_where_and_fill), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_ids),    cmocka_unit_test(test_index),          cmocka_unit_test(test_same_bits),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_close();
    return failed;
}
