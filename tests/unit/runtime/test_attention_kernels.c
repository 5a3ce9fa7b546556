/* test_attention_kernels.c - ATTENTION and its gradient: numbers of PyTorch's scaled_dot_product_attention, the scalar
 * reference on random shapes, masks and layouts, central differences, and rows that see nothing. */
#include "kernel_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { Q, K, V, Y };

/* [batch, head, row, element], or rows before heads */
static void lay(ferry_attention_shape *a, int part, bool rows_first, int64_t gap)
{
    int64_t heads = part == Q || part == Y ? a->heads : a->kv_heads, rows = part == Q || part == Y ? a->rows : a->columns;
    int64_t size = (part == V || part == Y ? a->value_size : a->size) + gap;
    a->stride[part][0] = heads * rows * size;
    a->stride[part][1] = rows_first ? size : rows * size;
    a->stride[part][2] = rows_first ? heads * size : size;
    a->offset[part] = gap;
}

static ferry_kernel forward(ferry_dtype t, const ferry_attention_shape *a)
{
    ferry_kernel k = {.op = FERRY_OP_ATTENTION, .dtype = t, .attention = *a};
    bench_random(&k, 0, 0, 0); /* what lies between rows has to stay */
    bench_random(&k, 1, 0, 0);
    for (int i = 2; i < 5; i++) {
        bench_random(&k, i, -1, 1);
    }
    return k;
}

/* With dy in arg 3 and the rest as in the forward call, whose arguments it shares. */
static ferry_kernel backward(const ferry_kernel *f)
{
    ferry_kernel g = {.op = FERRY_OP_ATTENTION_GRAD, .dtype = f->dtype, .attention = f->attention};
    const int from[] = {2, 3, 4, 0, 1, 5};
    for (int i = 0; i < 6; i++) {
        g.arg[4 + i] = f->arg[from[i]];
    }
    for (int i = 0; i < 3; i++) {
        bench_random(&g, i, 0, 0);
    }
    bench_random(&g, 3, -1, 1);
    return g;
}

static void free_both(ferry_kernel *f, ferry_kernel *g)
{
    for (int i = 0; i < 4; i++) {
        free(g->arg[i]);
    }
    bench_free(f);
}

static void sines(ferry_kernel *k, int arg, double a, double b)
{
    free(k->arg[arg]);
    bench_alloc(k, arg);
    for (int64_t i = 0, n = bench_elements(k, arg); i < n; i++) {
        bench_set(k, arg, i, sin(a * (double)i + b));
    }
}

static void expect(const ferry_kernel *k, int arg, const double *values, double tolerance)
{
    for (int64_t i = 0, n = bench_elements(k, arg); i < n; i++) {
        if (!(fabs(bench_get(k, arg, i) - values[i]) <= tolerance)) {
            fail_msg("argument %d element %d is %.17g, expected %.17g", arg, (int)i, bench_get(k, arg, i), values[i]);
        }
    }
}

static const ferry_dtype floats[] = {FERRY_F32, FERRY_F64};

static void test_values(void **state)
{
    (void)state;
    const double y[] = {-0.10987966755988682, 0.32956249630398082,  0.24168517543480639,  0.19325268625128694,
                        0.23365782875420968,  -0.49819459268798066, -0.51925915499515085, 0.02633819906088411};
    const double lse[] = {2.1355969707547335, 1.8806527644157387, 2.0599894735418744, 2.2325530083340226};
    const double dq[] = {0.27785993958581423,  0.26185023170406907,   0.047677488856650498,
                         0.4827765748581001,   0.11688420108242842,   -0.33746380580571966,
                         0.07196017412216453,  -0.044021711620275468, -0.12668884364916413,
                         -0.0098924831879969154, -0.02032413820722211, -0.015374890624242955};
    const double dk[] = {0.053877889555541167, 0.23065411003874062,  0.29895009850083376,  -0.18279201042680726,
                         -0.11669218723658484, 0.0042897949767260433, -0.17838818911650045, -0.20231434768536938,
                         -0.13108890728892431, 0.30730230998776659,  0.088352424883213543, -0.17215098618863561};
    const double dv[] = {0.41579585387173068, 0.47226456011787005, 1.032777732935023,   0.7969150805093137,
                         0.65163190158571438, 0.44324295120531626, 0.39950312687048445, 0.36285629364822425};
    for (int way = 0; way < 4; way++) {
        ferry_dtype t = floats[way / 2];
        double tolerance = t == FERRY_F32 ? 1e-6 : 1e-14;
        ferry_attention_shape a = {.batch = 1, .heads = 2, .kv_heads = 1, .rows = 2, .columns = 4, .size = 3,
                                   .value_size = 2, .scale = 0.8, .causal = true, .past = 2, .mask_type = t,
                                   .mask_stride = {0, 0, 4, 1}};
        for (int i = 0; i < 4; i++) {
            lay(&a, i, false, 0);
        }
        ferry_kernel f = forward(t, &a);
        sines(&f, 2, 0.7, 0.1);
        sines(&f, 3, 0.9, 0.3);
        sines(&f, 4, 1.1, 0.5);
        sines(&f, 5, 1.3, 0.2);
        assert_int_equal(bench_run(way % 2 == 0, &f), FERRY_OK);
        expect(&f, 0, y, tolerance);
        expect(&f, 1, lse, tolerance);
        ferry_kernel g = backward(&f);
        sines(&g, 3, 0.4, 0.6);
        assert_int_equal(bench_run(way % 2 == 0, &g), FERRY_OK);
        expect(&g, 0, dq, tolerance);
        expect(&g, 1, dk, tolerance);
        expect(&g, 2, dv, tolerance);
        free_both(&f, &g);
    }
}

/* ---- random calls ------------------------------------------------------------------------------------------------- */

static ferry_attention_shape random_shape(ferry_dtype t)
{
    const int64_t sizes[] = {1, 3, 8, 16, 32, 64, 64, 80, 128};
    const int64_t lengths[] = {1, 2, 7, 33, 64, 65, 130};
    ferry_attention_shape a = {.batch = bench_int(1, 2), .kv_heads = bench_int(1, 3), .mask_type = t};
    a.heads = a.kv_heads * bench_int(1, 3);
    a.rows = lengths[bench_bits() % 7];
    a.columns = bench_bits() % 3 == 0 ? lengths[bench_bits() % 7] : a.rows;
    a.size = sizes[bench_bits() % 9];
    a.value_size = bench_bits() % 4 == 0 ? sizes[bench_bits() % 9] : a.size;
    a.scale = 1 / sqrt((double)a.size);
    a.causal = bench_bits() % 2 == 0;
    a.past = a.causal && a.columns > a.rows && bench_bits() % 2 == 0 ? a.columns - a.rows : 0;
    bool rows_first = bench_bits() % 2 == 0;
    for (int i = 0; i < 4; i++) {
        lay(&a, i, rows_first, bench_bits() % 4 == 0 ? 3 : bench_bits() % 4 == 0 ? 8 : 0);
    }
    return a;
}

/* Adds a mask: bool or added, of one batch, head or row or of all. Without an element in it every row sees something. */
static void random_mask(ferry_kernel *f)
{
    ferry_attention_shape *a = &f->attention;
    const int64_t dim[4] = {a->batch, a->heads, a->rows, a->columns};
    bool is_bool = bench_bits() % 2 == 0;
    int64_t step = 1;
    if (bench_bits() % 3 == 0) {
        return;
    }
    a->mask_type = is_bool ? FERRY_BOOL : f->dtype;
    for (int i = 3; i >= 0; i--) {
        bool absent = i < 3 && bench_bits() % 2 == 0;
        a->mask_stride[i] = absent ? 0 : step;
        step *= absent ? 1 : dim[i];
    }
    bench_alloc(f, 5);
    for (int64_t i = 0, n = bench_elements(f, 5); i < n; i++) {
        bool hidden = i % a->columns != 0 && bench_bits() % 3 == 0;
        if (is_bool) {
            ((uint8_t *)f->arg[5])[i] = !hidden;
        } else {
            bench_set(f, 5, i, hidden ? (bench_bits() % 2 == 0 ? -INFINITY : -3e38) : bench_real(-1, 1));
        }
    }
}

/* Compares the outputs of two runs, from the same contents before. */
static void compare(ferry_kernel *k, int outs, double tolerance)
{
    ferry_kernel other = *k;
    assert_int_equal(ferryi_kernel_check(k), FERRY_OK);
    for (int o = 0; o < outs; o++) {
        other.arg[o] = NULL;
        bench_alloc(&other, o);
        memcpy(other.arg[o], k->arg[o], (size_t)ferry_kernel_extent_bytes(k, o));
    }
    assert_int_equal(bench_run(true, k), FERRY_OK);
    ferry_status status = bench_run(false, &other);
    if (status != FERRY_OK) {
        fail_msg("%s", ferry_error());
    }
    for (int o = 0; o < outs; o++) {
        for (int64_t i = 0, n = bench_elements(k, o); i < n; i++) {
            double expected = bench_get(k, o, i), got = bench_get(&other, o, i);
            if (!(expected == got || fabs(expected - got) <= tolerance * fmax(1, fabs(expected)))) {
                const ferry_attention_shape *a = &k->attention;
                fail_msg("%s %s output %d element %d is %.9g, expected %.9g (heads %d of %d, %d x %d, size %d and %d, "
                         "causal %d past %d)",
                         ferry_op_get(k->op)->name, ferry_dtype_name(k->dtype), o, (int)i, got, expected, (int)a->heads,
                         (int)a->kv_heads, (int)a->rows, (int)a->columns, (int)a->size, (int)a->value_size, a->causal,
                         (int)a->past);
            }
        }
        free(other.arg[o]);
    }
}

static void test_random(void **state)
{
    (void)state;
    for (int round = 0; round < 120; round++) {
        ferry_dtype t = floats[round % 2];
        double tolerance = (t == FERRY_F32 ? 2e-6 : 1e-13) * bench_slack();
        ferry_attention_shape a = random_shape(t);
        ferry_kernel f = forward(t, &a);
        random_mask(&f);
        compare(&f, 2, tolerance);
        ferry_kernel g = backward(&f);
        compare(&g, 3, 10 * tolerance);
        free_both(&f, &g);
    }
}

/* Lengths from which on a device may cut the scores in blocks of rows and of heads. */
static void test_long(void **state)
{
    (void)state;
    for (int round = 0; round < (test_on_host() ? 2 : 7); round++) {
        const int64_t rows[] = {300, 140, 513, 256, 260, 512, 2100}, columns[] = {300, 257, 513, 256, 388, 512, 2100};
        ferry_attention_shape a = {.batch = round < 6 ? 2 : 1, .kv_heads = round % 3 == 2 ? 3 : 1, .rows = rows[round],
                                   .columns = columns[round], .size = 64, .value_size = round == 1 ? 32 : 64, .scale = 0.125,
                                   .causal = round != 1 && round != 3, .mask_type = FERRY_F32};
        a.heads = a.kv_heads * (round % 2 == 0 ? 2 : 1);
        a.past = a.causal && a.columns > a.rows ? a.columns - a.rows : 0;
        for (int i = 0; i < 4; i++) {
            lay(&a, i, round % 2 == 0, round == 3 ? 8 : 0);
        }
        ferry_kernel f = forward(FERRY_F32, &a);
        if (round % 2 == 1) {
            random_mask(&f);
        }
        compare(&f, 2, 4e-6 * bench_slack());
        ferry_kernel g = backward(&f);
        compare(&g, 3, 4e-5 * bench_slack());
        free_both(&f, &g);
    }
}

/* bf16, where the device computes in it: against the reference in f64 on the same numbers, within the rounding of weights
 * and results. */
static void to_bf16(ferry_kernel *to, int arg, const ferry_kernel *from, bool is_f32)
{
    int64_t n = bench_elements(from, arg);
    to->arg[arg] = malloc((size_t)n * 8 + 8);
    assert_int_equal(ferry_convert(to->arg[arg], is_f32 ? FERRY_F32 : FERRY_BF16, from->arg[arg], FERRY_F64, n), FERRY_OK);
    if (!is_f32) { /* both then have the same numbers */
        assert_int_equal(ferry_convert(from->arg[arg], FERRY_F64, to->arg[arg], FERRY_BF16, n), FERRY_OK);
    }
}

static void near(const ferry_kernel *k, const ferry_kernel *narrow, int arg, ferry_dtype t)
{
    int64_t n = bench_elements(k, arg);
    double *got = malloc((size_t)(n + 1) * sizeof(double)), norm = 0, error = 0, most = 0, largest = 1;
    assert_int_equal(ferry_convert(got, FERRY_F64, narrow->arg[arg], t, n), FERRY_OK);
    for (int64_t i = 0; i < n; i++) {
        double expected = bench_get(k, arg, i), d = isinf(expected) && got[i] == expected ? 0 : fabs(got[i] - expected);
        error += d * d;
        norm += isinf(expected) ? 0 : expected * expected;
        most = d > most || d != d ? d : most;
        largest = !isinf(expected) && fabs(expected) > largest ? fabs(expected) : largest;
    }
    free(got);
    const ferry_attention_shape *a = &k->attention;
    if (!(sqrt(error) <= 0.01 * sqrt(norm) + 1e-3 && most <= 0.05 * largest)) {
        fail_msg("%s bf16 output %d is off by %.3g of its norm, at most by %.3g (heads %d of %d, %d x %d, size %d and %d, "
                 "causal %d past %d, mask %d)",
                 ferry_op_get(k->op)->name, arg, sqrt(error / norm), most, (int)a->heads, (int)a->kv_heads, (int)a->rows,
                 (int)a->columns, (int)a->size, (int)a->value_size, a->causal, (int)a->past,
                 k->arg[k->op == FERRY_OP_ATTENTION ? 5 : 9] != NULL);
    }
}

static void test_bf16(void **state)
{
    (void)state;
    const ferry_kernel probe = {.op = FERRY_OP_ATTENTION, .dtype = FERRY_BF16};
    if (test_on_host() && ferryi_host_supports(&probe) != FERRY_OK) {
        skip();
    }
    for (int round = 0; round < 60; round++) {
        ferry_attention_shape a = random_shape(FERRY_F64);
        if (round % 3 != 0) { /* what tensor cores take */
            a.size = a.value_size = round % 2 == 0 ? 64 : 128;
            a.scale = 1 / sqrt((double)a.size);
            for (int i = 0; i < 4; i++) {
                lay(&a, i, round % 4 < 2, round % 5 == 0 ? 8 : 0);
            }
        }
        ferry_kernel f = forward(FERRY_F64, &a), n = {.op = FERRY_OP_ATTENTION, .dtype = FERRY_BF16};
        random_mask(&f);
        for (int i = 0; i < 5; i++) {
            to_bf16(&n, i, &f, i == 1);
        }
        n.attention = f.attention;
        if (f.arg[5] != NULL && f.attention.mask_type == FERRY_BOOL) {
            n.arg[5] = f.arg[5];
        } else if (f.arg[5] != NULL) {
            n.attention.mask_type = FERRY_BF16;
            to_bf16(&n, 5, &f, false);
        } else {
            n.attention.mask_type = FERRY_BF16;
        }
        assert_int_equal(bench_run(true, &f), FERRY_OK);
        ferry_status status = bench_run(false, &n);
        if (status != FERRY_OK) {
            fail_msg("%s", ferry_error());
        }
        near(&f, &n, 0, FERRY_BF16);
        near(&f, &n, 1, FERRY_F32);
        ferry_kernel g = backward(&f), ng = {.op = FERRY_OP_ATTENTION_GRAD, .dtype = FERRY_BF16, .attention = n.attention};
        for (int i = 0; i < 4; i++) {
            to_bf16(&ng, i, &g, false);
        }
        const int from[] = {2, 3, 4, 0, 1, 5};
        for (int i = 0; i < 6; i++) {
            ng.arg[4 + i] = n.arg[from[i]];
        }
        assert_int_equal(bench_run(true, &g), FERRY_OK);
        status = bench_run(false, &ng);
        if (status != FERRY_OK) {
            fail_msg("%s", ferry_error());
        }
        for (int i = 0; i < 3; i++) {
            near(&g, &ng, i, FERRY_BF16);
        }
        for (int i = 0; i < 4; i++) {
            free(ng.arg[i]);
        }
        if (n.arg[5] == f.arg[5]) {
            n.arg[5] = NULL;
        }
        bench_free(&n);
        free_both(&f, &g);
    }
}

/* q, k and v side by side in each row of one array, and their gradients in another one. */
static void test_packed(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++) {
        const int64_t rows = 70, heads = 2, size = 16, pitch = 3 * heads * size;
        ferry_attention_shape a = {.batch = 2, .heads = heads, .kv_heads = heads, .rows = rows, .columns = rows, .size = size,
                                   .value_size = size, .scale = 0.25, .causal = true, .mask_type = floats[type]};
        ferry_attention_shape apart = a;
        for (int i = 0; i < 4; i++) {
            lay(&apart, i, true, 0);
            a.offset[i] = i < 3 ? i * heads * size : 0;
            a.stride[i][0] = i < 3 ? rows * pitch : apart.stride[i][0];
            a.stride[i][1] = size;
            a.stride[i][2] = i < 3 ? pitch : apart.stride[i][2];
        }
        ferry_kernel f = forward(floats[type], &apart), packed = {.op = f.op, .dtype = f.dtype, .attention = a};
        ferry_kernel array = {.op = FERRY_OP_FILL, .dtype = f.dtype, .n = 2 * rows * pitch};
        bench_alloc(&array, 0);
        for (int i = 0; i < 3; i++) {
            for (int64_t e = 0; e < 2 * rows * heads * size; e++) {
                bench_set(&array, 0, e / (heads * size) * pitch + i * heads * size + e % (heads * size),
                          bench_get(&f, 2 + i, e));
            }
            packed.arg[2 + i] = array.arg[0];
        }
        bench_alloc(&packed, 0);
        bench_alloc(&packed, 1);
        assert_int_equal(bench_run(true, &f), FERRY_OK);
        assert_int_equal(bench_run(false, &packed), FERRY_OK);
        double tolerance = (type == 0 ? 1e-5 : 1e-13) * bench_slack();
        for (int64_t e = 0; e < bench_elements(&f, 0); e++) {
            assert_true(fabs(bench_get(&f, 0, e) - bench_get(&packed, 0, e)) <= tolerance);
        }
        ferry_kernel g = backward(&f), grad = {.op = g.op, .dtype = g.dtype, .attention = a}, to = array;
        to.arg[0] = NULL;
        bench_random(&to, 0, 7, 7);
        for (int i = 0; i < 3; i++) {
            grad.arg[i] = to.arg[0];
            grad.arg[4 + i] = array.arg[0];
        }
        grad.arg[3] = g.arg[3];
        grad.arg[7] = packed.arg[0];
        grad.arg[8] = packed.arg[1];
        assert_int_equal(bench_run(true, &g), FERRY_OK);
        assert_int_equal(bench_run(false, &grad), FERRY_OK);
        for (int i = 0; i < 3; i++) {
            for (int64_t e = 0; e < 2 * rows * heads * size; e++) {
                double got = bench_get(&to, 0, e / (heads * size) * pitch + i * heads * size + e % (heads * size));
                assert_true(fabs(bench_get(&g, i, e) - got) <= tolerance);
            }
        }
        free(packed.arg[0]);
        free(packed.arg[1]);
        free(array.arg[0]);
        free(to.arg[0]);
        free_both(&f, &g);
    }
}

/* Rows that see no column: y and gradients are 0, and other rows are not touched by it. */
static void test_nothing_seen(void **state)
{
    (void)state;
    for (int reference = 0; reference < 2; reference++) {
        ferry_attention_shape a = {.batch = 1, .heads = 1, .kv_heads = 1, .rows = 3, .columns = 5, .size = 16,
                                   .value_size = 16, .scale = 1, .mask_type = FERRY_BOOL, .mask_stride = {0, 0, 5, 1}};
        for (int i = 0; i < 4; i++) {
            lay(&a, i, false, 0);
        }
        ferry_kernel f = forward(FERRY_F64, &a);
        bench_alloc(&f, 5);
        for (int i = 0; i < 15; i++) {
            ((uint8_t *)f.arg[5])[i] = i / 5 != 1;
        }
        assert_int_equal(bench_run(reference == 1, &f), FERRY_OK);
        ferry_kernel g = backward(&f);
        assert_int_equal(bench_run(reference == 1, &g), FERRY_OK);
        for (int c = 0; c < 16; c++) {
            assert_true(bench_get(&f, 0, 16 + c) == 0 && bench_get(&g, 0, 16 + c) == 0);
            assert_true(bench_get(&f, 0, c) != 0 && bench_get(&g, 1, c) != 0);
        }
        assert_true(isinf(bench_get(&f, 1, 1)));
        free_both(&f, &g);
    }
}

/* ---- central differences ---------------------------------------------------------------------------------------- */

static double loss(const ferry_kernel *f, const ferry_kernel *g)
{
    double sum = 0;
    assert_int_equal(bench_run(true, f), FERRY_OK);
    for (int64_t i = 0, n = bench_elements(f, 0); i < n; i++) {
        sum += bench_get(f, 0, i) * bench_get(g, 3, i);
    }
    return sum;
}

static void test_differences(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++) {
        ferry_attention_shape a = {.batch = 2, .heads = 4, .kv_heads = round % 2 == 0 ? 2 : 4, .rows = 5, .columns = 6,
                                   .size = 3, .value_size = 4, .scale = 0.7, .causal = round % 3 == 0, .past = 1,
                                   .mask_type = FERRY_F64};
        for (int i = 0; i < 4; i++) {
            lay(&a, i, round % 2 == 0, 0);
        }
        ferry_kernel f = forward(FERRY_F64, &a);
        random_mask(&f);
        assert_int_equal(bench_run(true, &f), FERRY_OK);
        ferry_kernel g = backward(&f);
        for (int reference = 0; reference < 2; reference++) {
            assert_int_equal(bench_run(reference == 1, &g), FERRY_OK);
            for (int x = 0; x < 3; x++) {
                for (int64_t i = 0, n = bench_elements(&f, 2 + x); i < n; i++) {
                    const double at = bench_get(&f, 2 + x, i), step = 1e-5;
                    bench_set(&f, 2 + x, i, at + step);
                    double above = loss(&f, &g);
                    bench_set(&f, 2 + x, i, at - step);
                    double below = loss(&f, &g);
                    bench_set(&f, 2 + x, i, at);
                    assert_true(fabs((above - below) / (2 * step) - bench_get(&g, x, i)) <= 1e-8);
                }
            }
            (void)loss(&f, &g);
        }
        free_both(&f, &g);
    }
}

int main(void)
{
    if (!bench_open()) {
        return TEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_random),      cmocka_unit_test(test_packed),
        cmocka_unit_test(test_bf16), cmocka_unit_test(test_long),
        cmocka_unit_test(test_nothing_seen), cmocka_unit_test(test_differences),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_close();
    return failed;
}
