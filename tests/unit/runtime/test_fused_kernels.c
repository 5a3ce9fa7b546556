/* test_fused_kernels.c - FUSED against its steps as kernels one by one on the same device, to the bit, and against the reference;
 * ROTARY against the kernels that it replaces, and its transpose; programs that are refused. */
#include "kernel_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { IN = FERRY_PROGRAM_INPUTS, OUT = FERRY_PROGRAM_OUTPUTS };

static const ferry_fn unary[] = {FERRY_NEG,  FERRY_ABS,   FERRY_TANH, FERRY_SIGMOID, FERRY_RELU, FERRY_SQUARE,
                                 FERRY_GELU, FERRY_SILU,  FERRY_SIN,  FERRY_ERF,     FERRY_SIGN, FERRY_GELU_TANH};
static const ferry_fn graded[] = {FERRY_NEG, FERRY_TANH, FERRY_RELU, FERRY_GELU, FERRY_SILU, FERRY_SIGMOID, FERRY_GELU_TANH};
static const ferry_fn binary[] = {FERRY_ADD, FERRY_SUB, FERRY_MUL, FERRY_DIV, FERRY_MAX, FERRY_MIN};

static ferry_fn pick(const ferry_fn *from, size_t count)
{
    return from[bench_bits() % count];
}

static int64_t total_of(const ferry_kernel *k)
{
    int64_t total = 1;
    for (int d = 0; d < k->rank; d++) {
        total *= k->dim[d];
    }
    return total;
}

/* A program of random steps over inputs that are dense, broadcast, reversed or of type bool. */
static void make_program(ferry_kernel *k, ferry_dtype t, int shape)
{
    static const int64_t shapes[][3] = {{5, 3, 7}, {64, 3, 32}, {1, 33, 4}, {2, 1, 1000}, {1, 1, 1}};
    ferry_program *p = &k->program;
    *k = (ferry_kernel){.op = FERRY_OP_FUSED, .dtype = t, .alpha = 1, .rank = 3};
    memcpy(k->dim, shapes[shape], sizeof(shapes[shape]));
    int inputs = (int)bench_int(1, IN), values[IN + FERRY_PROGRAM_STEPS], count = 0;
    for (int i = 0; i < OUT + IN; i++) {
        p->type[i] = t;
    }
    for (int x = 0; x < inputs; x++) {
        int64_t step = 1;
        p->type[OUT + x] = bench_bits() % 8 == 0 ? FERRY_BOOL : t == FERRY_BF16 && bench_bits() % 8 == 0 ? FERRY_F32 : t;
        for (int d = 2; d >= 0; d--) {
            bool absent = bench_bits() % 4 == 0, back = bench_bits() % 8 == 0;
            p->stride[x][d] = absent ? 0 : back ? -step : step;
            p->offset[x] += !absent && back ? (k->dim[d] - 1) * step : 0;
            step *= absent ? 1 : k->dim[d];
        }
        p->offset[x] += bench_bits() % 2 == 0 ? 0 : 4;
        k->arg[OUT + x] = k; /* to be there for the extents */
        values[count++] = x;
    }
    p->steps = (int)bench_int(1, FERRY_PROGRAM_STEPS);
    for (int i = 0; i < p->steps; i++) {
        ferry_program_step *s = &p->step[i];
        *s = (ferry_program_step){FERRY_OP_BINARY, pick(binary, 6), values[bench_int(0, count - 1)],
                                  values[bench_int(0, count - 1)], -1, 0};
        int c = values[bench_int(0, count - 1)];
        switch (bench_bits() % 9) {
        case 0:
        case 1:
            *s = (ferry_program_step){FERRY_OP_UNARY, pick(unary, 12), s->a, -1, -1, 0};
            break;
        case 2: {
            ferry_fn fn = pick(graded, 7);
            bool by_y = fn == FERRY_TANH || fn == FERRY_SIGMOID, by_none = fn == FERRY_NEG;
            *s = (ferry_program_step){FERRY_OP_UNARY_GRAD, fn, s->a, by_y || by_none ? -1 : s->b, by_y ? c : -1, 0};
            break;
        }
        case 3:
            *s = (ferry_program_step){FERRY_OP_BINARY_GRAD_A, pick(binary, 6), s->a, s->b, c, 0};
            break;
        case 4:
            *s = (ferry_program_step){FERRY_OP_BINARY_GRAD_B, pick(binary, 6), s->a, s->b, c, 0};
            break;
        case 5:
            *s = (ferry_program_step){FERRY_OP_WHERE, FERRY_FN_NONE, s->a, s->b, c, 0};
            break;
        case 6:
            *s = (ferry_program_step){FERRY_OP_COPY, FERRY_FN_NONE, s->a, bench_bits() % 2 == 0 ? s->b : -1, -1,
                                      bench_bits() % 2 == 0 ? 1 : bench_real(-2, 2)};
            break;
        case 7:
            if (bench_bits() % 2 == 0) {
                *s = (ferry_program_step){FERRY_OP_FILL, FERRY_FN_NONE, -1, -1, -1, 0.7};
            } else {
                s->fn = bench_bits() % 2 == 0 ? FERRY_LESS : FERRY_GREATER_EQUAL;
            }
            break;
        default:
            break;
        }
        values[count++] = IN + i;
    }
    int outputs = (int)bench_int(1, OUT);
    k->accumulate = outputs == 1 && bench_bits() % 4 == 0;
    for (int o = 0; o < OUT; o++) {
        p->out[o] = o < outputs ? values[count - 1 - (int)bench_int(0, count > 3 ? 3 : count - 1)] : -1;
        p->type[o] = !k->accumulate && o > 0 && bench_bits() % 4 == 0 ? FERRY_BOOL : t;
    }
    for (int x = 0; x < inputs; x++) {
        if (p->type[OUT + x] == FERRY_BOOL) {
            bench_alloc(k, OUT + x);
            for (int64_t i = 0; i < bench_elements(k, OUT + x); i++) {
                ((bool *)k->arg[OUT + x])[i] = bench_bits() % 2 != 0;
            }
        } else {
            bench_random(k, OUT + x, -2, 2);
        }
    }
    for (int o = 0; o < outputs; o++) {
        if (p->type[o] == FERRY_BOOL) {
            bench_alloc(k, o);
        } else {
            bench_random(k, o, -1, 1);
        }
    }
}

/* A kernel over all elements of values that lie side by side. */
static ferry_kernel single(const ferry_kernel *k, ferry_op op, ferry_fn fn)
{
    ferry_kernel c = {.op = op, .fn = fn, .dtype = k->dtype, .dtype2 = k->dtype, .alpha = 1, .rank = 1, .n = total_of(k)};
    c.dim[0] = c.n;
    for (int a = 0; a < 3; a++) {
        c.stride[a][0] = 1;
    }
    return c;
}

static void *fresh(const ferry_kernel *k)
{
    return calloc((size_t)total_of(k) + 1, 8);
}

static void run_single(ferry_kernel *c)
{
    assert_int_equal(bench_run(false, c), FERRY_OK);
}

/* Bools as numbers. */
static void widen(const ferry_kernel *k, void *to, void *from)
{
    ferry_kernel c = single(k, FERRY_OP_CAST, FERRY_FN_NONE);
    c.dtype = FERRY_BOOL;
    c.arg[0] = to;
    c.arg[1] = from;
    run_single(&c);
}

/* Numbers as bools. */
static void narrow(const ferry_kernel *k, void *to, void *from)
{
    ferry_kernel c = single(k, FERRY_OP_CAST, FERRY_FN_NONE);
    c.dtype2 = FERRY_BOOL;
    c.arg[0] = to;
    c.arg[1] = from;
    run_single(&c);
}

static void read_input(const ferry_kernel *k, int x, void *to)
{
    const ferry_program *p = &k->program;
    bool flag = p->type[OUT + x] == FERRY_BOOL;
    void *bools = fresh(k);
    ferry_kernel c = {.op = FERRY_OP_COPY, .dtype = p->type[OUT + x], .alpha = 1, .rank = k->rank};
    int64_t step = 1;
    for (int d = k->rank - 1; d >= 0; d--) {
        c.dim[d] = k->dim[d];
        c.stride[0][d] = step;
        c.stride[1][d] = p->stride[x][d];
        step *= k->dim[d];
    }
    c.offset[1] = p->offset[x];
    c.arg[0] = flag ? bools : to;
    c.arg[1] = k->arg[OUT + x];
    run_single(&c);
    if (flag) {
        widen(k, to, bools);
    }
    free(bools);
}

static void run_step(const ferry_kernel *k, const ferry_program_step *s, void **value, void *y)
{
    void *a = s->a >= 0 ? value[s->a] : NULL, *b = s->b >= 0 ? value[s->b] : NULL, *c = s->c >= 0 ? value[s->c] : NULL;
    void *bools = fresh(k);
    ferry_kernel one = single(k, s->op, s->fn);
    bool compares = s->op == FERRY_OP_BINARY && s->fn >= FERRY_EQUAL;
    one.arg[0] = compares ? bools : y;
    one.arg[1] = a;
    one.arg[2] = b;
    one.arg[3] = c;
    one.alpha = s->op == FERRY_OP_COPY || s->op == FERRY_OP_FILL ? s->alpha : 1;
    if (s->op == FERRY_OP_WHERE) {
        narrow(k, bools, a);
        one.arg[1] = bools;
    }
    if (s->op == FERRY_OP_COPY) {
        one.arg[2] = NULL;
        one.accumulate = b != NULL;
        if (b != NULL) {
            memcpy(y, b, (size_t)total_of(k) * ferry_dtype_bytes(k->dtype));
        }
    }
    run_single(&one);
    if (compares) {
        widen(k, y, bools);
    }
    free(bools);
}

/* Equal as numbers: one NaN is as good as another. */
static void same(const ferry_kernel *k, int o, const void *want)
{
    for (int64_t i = 0; i < total_of(k); i++) {
        double x = k->program.type[o] == FERRY_BOOL ? ((const bool *)k->arg[o])[i] : bench_get(k, o, i);
        double y = k->program.type[o] == FERRY_BOOL ? ((const bool *)want)[i] : ferryi_float_at(want, k->dtype, i);
        if (!(x == y || (isnan(x) && isnan(y)))) {
            fail_msg("%s program of %d steps: output %d element %lld is %.17g, by single kernels %.17g", ferry_dtype_name(k->dtype),
                     k->program.steps, o, (long long)i, x, y);
        }
    }
}

static void test_bits(void **state)
{
    (void)state;
    static const ferry_dtype types[] = {FERRY_F32, FERRY_F64};
    for (int round = 0; round < 150; round++) {
        ferry_kernel k;
        void *value[IN + FERRY_PROGRAM_STEPS] = {NULL}, *want[OUT] = {NULL};
        make_program(&k, types[round % 2], round / 2 % 5);
        assert_int_equal(ferryi_kernel_check(&k), FERRY_OK);
        for (int x = 0; x < IN; x++) {
            if (k.arg[OUT + x] != NULL) {
                value[x] = fresh(&k);
                read_input(&k, x, value[x]);
            }
        }
        for (int s = 0; s < k.program.steps; s++) {
            value[IN + s] = fresh(&k);
            run_step(&k, &k.program.step[s], value, value[IN + s]);
        }
        for (int o = 0; o < OUT; o++) {
            if (k.arg[o] == NULL) {
                continue;
            }
            want[o] = fresh(&k);
            if (k.program.type[o] == FERRY_BOOL) {
                narrow(&k, want[o], value[k.program.out[o]]);
                continue;
            }
            ferry_kernel c = single(&k, FERRY_OP_COPY, FERRY_FN_NONE);
            memcpy(want[o], k.arg[o], (size_t)total_of(&k) * ferry_dtype_bytes(k.dtype));
            c.accumulate = k.accumulate;
            c.arg[0] = want[o];
            c.arg[1] = value[k.program.out[o]];
            run_single(&c);
        }
        assert_int_equal(bench_run(false, &k), FERRY_OK);
        for (int o = 0; o < OUT; o++) {
            if (k.arg[o] != NULL) {
                same(&k, o, want[o]);
            }
            free(want[o]);
        }
        for (int v = 0; v < IN + FERRY_PROGRAM_STEPS; v++) {
            free(value[v]);
        }
        bench_free(&k);
    }
}

/* The gate of a gated MLP and its gradients, with the reference beside it: in bf16 as well, rounded once. */
static void test_gate(void **state)
{
    (void)state;
    static const ferry_dtype types[] = {FERRY_F32, FERRY_F64, FERRY_BF16};
    for (int t = 0; t < 3; t++) {
        for (int n = 1000; n <= 1024; n += 24) {
            ferry_kernel k = {.op = FERRY_OP_FUSED, .dtype = types[t], .alpha = 1, .rank = 1, .dim = {n}}, fast;
            k.program = (ferry_program){.steps = 4,
                                        .step = {{FERRY_OP_UNARY, FERRY_SILU, 0, -1, -1, 0},
                                                 {FERRY_OP_BINARY_GRAD_B, FERRY_MUL, 1, 7, -1, 0},
                                                 {FERRY_OP_BINARY_GRAD_A, FERRY_MUL, 1, -1, 2, 0},
                                                 {FERRY_OP_UNARY_GRAD, FERRY_SILU, 9, 0, -1, 0}},
                                        .out = {8, 10, -1}};
            for (int i = 0; i < OUT + IN; i++) {
                k.program.type[i] = types[t];
            }
            for (int x = 0; x < 3; x++) {
                k.program.stride[x][0] = 1;
                bench_random(&k, OUT + x, -2, 2);
            }
            bench_alloc(&k, 0);
            bench_alloc(&k, 1);
            fast = k;
            fast.arg[0] = fresh(&k);
            fast.arg[1] = fresh(&k);
            assert_int_equal(bench_run(true, &k), FERRY_OK);
            assert_int_equal(bench_run(false, &fast), FERRY_OK);
            for (int o = 0; o < 2; o++) {
                for (int64_t i = 0; i < n; i++) {
                    double x = bench_get(&k, o, i), y = bench_get(&fast, o, i);
                    double most = types[t] == FERRY_BF16 ? 0x1p-7 : types[t] == FERRY_F32 ? 1e-6 : 1e-14;
                    assert_true(fabs(x - y) <= most * bench_slack() * fmax(1, fabs(x)));
                }
                free(fast.arg[o]);
            }
            bench_free(&k);
        }
    }
}

/* ---- ROTARY ----------------------------------------------------------------------------------------------------- */

enum { BATCH = 2, HEADS = 3, LENGTH = 5, ELEMENTS = BATCH * HEADS * LENGTH };

/* x lies [batch, row, head, n]; y [batch, head, row, n]. cos and sin are [row, n]. */
static ferry_kernel rotary_call(ferry_dtype t, int64_t n, bool reverse)
{
    return (ferry_kernel){.op = FERRY_OP_ROTARY, .dtype = t, .alpha = 1, .reverse = reverse, .n = n, .rank = 3,
                          .dim = {BATCH, HEADS, LENGTH},
                          .stride = {{0}, {LENGTH * HEADS * n, n, HEADS * n}, {0, 0, n}}};
}

static void test_rotary(void **state)
{
    (void)state;
    static const ferry_dtype types[] = {FERRY_F32, FERRY_F64, FERRY_BF16};
    for (int t = 0; t < 3; t++) {
        for (int64_t n = 6; n <= 32; n += n == 6 ? 10 : 16) {
            for (int reverse = 0; reverse < 2; reverse++) {
                ferry_kernel k = rotary_call(types[t], n, reverse != 0);
                const int64_t half = n / 2;
                for (int a = 1; a < 4; a++) {
                    bench_random(&k, a, -1, 1);
                }
                bench_alloc(&k, 0);
                assert_int_equal(ferryi_kernel_check(&k), FERRY_OK);
                assert_int_equal(bench_run(false, &k), FERRY_OK);
                for (int64_t row = 0; row < ELEMENTS; row++) {
                    int64_t b = row / (HEADS * LENGTH), h = row / LENGTH % HEADS, l = row % LENGTH;
                    int64_t x = ((b * LENGTH + l) * HEADS + h) * n;
                    for (int64_t j = 0; j < n; j++) {
                        int64_t other = j < half ? j + half : j - half, angle = l * n + (reverse != 0 ? other : j);
                        double turned = bench_get(&k, 1, x + other) * bench_get(&k, 3, angle);
                        /* f32: rounded as the kernels would round one by one */
                        turned = types[t] == FERRY_F64 ? turned : (double)(float)turned;
                        double by_cosine = bench_get(&k, 1, x + j) * bench_get(&k, 2, l * n + j);
                        by_cosine = types[t] == FERRY_F64 ? by_cosine : (double)(float)by_cosine;
                        double want = by_cosine + ((j < half) != (reverse != 0) ? -turned : turned);
                        double got = bench_get(&k, 0, row * n + j);
                        if (types[t] == FERRY_F32) {
                            assert_true(got == (double)(float)want);
                        } else {
                            assert_true(fabs(got - want) <= (types[t] == FERRY_F64 ? 0 : 0x1p-8 * fabs(want)));
                        }
                    }
                }
                bench_free(&k);
            }
        }
    }
}

/* <map(x), z> = <x, transpose(z)> */
static void test_transposed(void **state)
{
    (void)state;
    const int64_t n = 8, count = ELEMENTS * n;
    ferry_kernel k = rotary_call(FERRY_F64, n, false), back = rotary_call(FERRY_F64, n, true);
    for (int d = 0; d < 3; d++) { /* the result where x lies, from what lies as y */
        const int64_t of[] = {BATCH, LENGTH, HEADS}, steps[] = {HEADS * LENGTH * n, n, LENGTH * n}, angles[] = {0, n, 0};
        back.dim[d] = of[d];
        back.stride[1][d] = steps[d];
        back.stride[2][d] = angles[d];
    }
    for (int a = 1; a < 4; a++) {
        bench_random(&k, a, -1, 1);
    }
    bench_alloc(&k, 0);
    bench_alloc(&back, 0);
    bench_random(&back, 1, -1, 1);
    back.arg[2] = k.arg[2];
    back.arg[3] = k.arg[3];
    assert_int_equal(bench_run(false, &k), FERRY_OK);
    assert_int_equal(bench_run(false, &back), FERRY_OK);
    double left = 0, right = 0;
    for (int64_t i = 0; i < count; i++) {
        left += bench_get(&k, 0, i) * bench_get(&back, 1, i);
        right += bench_get(&k, 1, i) * bench_get(&back, 0, i);
    }
    assert_true(fabs(left - right) < 1e-12);
    back.arg[2] = back.arg[3] = NULL;
    bench_free(&back);
    bench_free(&k);
}

/* ---- what is refused ---------------------------------------------------------------------------------------------- */

static void refused(const ferry_kernel *k, const char *what)
{
    assert_int_equal(ferryi_kernel_check(k), FERRY_USAGE);
    if (strstr(ferry_error(), what) == NULL) {
        fail_msg("'%s' does not say '%s'", ferry_error(), what);
    }
}

static void test_refused(void **state)
{
    (void)state;
    float x[4] = {0}, y[4];
    ferry_kernel good = {.op = FERRY_OP_FUSED, .dtype = FERRY_F32, .alpha = 1, .rank = 1, .dim = {4}};
    good.program = (ferry_program){.steps = 1, .step = {{FERRY_OP_UNARY, FERRY_TANH, 0, -1, -1, 0}}, .out = {7, -1, -1},
                                   .stride = {{1}}};
    good.arg[0] = y;
    good.arg[3] = x;
    assert_int_equal(ferryi_kernel_check(&good), FERRY_OK);
    ferry_kernel k = good;
    k.program.step[0].a = 7;
    refused(&k, "a value that is not there");
    k = good;
    k.program.step[0].a = 1;
    refused(&k, "a value that is not there");
    k = good;
    k.program.step[0].b = 0;
    refused(&k, "a value that is not there");
    k = good;
    k.program.step[0].op = FERRY_OP_SOFTMAX;
    refused(&k, "a step of the program has an op");
    k = good;
    k.program.step[0].fn = FERRY_ADD;
    refused(&k, "a step of the program has an op");
    k = good;
    k.program.steps = FERRY_PROGRAM_STEPS + 1;
    refused(&k, "at most 16 steps");
    k = good;
    k.program.out[0] = 8;
    refused(&k, "an output gets a value");
    k = good;
    k.program.type[3] = FERRY_F64;
    refused(&k, "the type of an argument");
    k = good;
    k.program.offset[0] = -1;
    refused(&k, "argument 3");
    k = good;
    k.accumulate = true;
    assert_int_equal(ferryi_kernel_check(&k), FERRY_OK);
    k.program.out[1] = 0;
    k.arg[1] = y;
    refused(&k, "accumulate is for one");
    k = (ferry_kernel){.op = FERRY_OP_ROTARY, .dtype = FERRY_F32, .rank = 1, .dim = {1}, .n = 3};
    for (int a = 0; a < 4; a++) {
        k.arg[a] = a == 0 ? y : x;
    }
    refused(&k, "have no halves");
}

int main(void)
{
    if (!bench_open()) {
        return TEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),       cmocka_unit_test(test_gate),    cmocka_unit_test(test_rotary),
        cmocka_unit_test(test_transposed), cmocka_unit_test(test_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_close();
    return failed;
}
