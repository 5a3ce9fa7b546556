/* fold_elementwise.c - evaluators that work element by element, with broadcasting, over every type.
 *
 * Floats are computed in double and rounded once to their type, which gives the correctly rounded result for + - * /
 * and the square root of 32 bits and less. Integers are computed in 64 bits and wrap to their type. All of it runs over
 * data_dim, so that what repeats is computed once. */
#include <math.h>
#include <string.h>

#include "graph/fold.h"

/* The iteration space over the data of `count` inputs of the node from `first` on, and of its output 0, which is array
 * 0. */
static void *start_walk(Diag *d, Model *m, ModelNode *n, int first, int count, Walk *w)
{
    const Value *y = node_out(m, n, 0);
    if (!y)
        return NULL;
    *w = (Walk){.rank = y->rank, .arrays = count + 1};
    for (int k = 0; k < y->rank; k++)
        w->dim[k] = y->dim[k] ? 1 : 0;
    for (int i = 0; i < count; i++) {
        const Value *x = node_in(m, n, first + i);
        fold_strides(x, y->rank, w->stride[i + 1]);
        for (int k = 0; k < x->rank; k++) {
            int axis = y->rank - x->rank + k;
            if (w->dim[axis] && x->data_dim[k] > 1)
                w->dim[axis] = x->data_dim[k];
        }
    }
    int64_t step = 1;
    for (int k = y->rank - 1; k >= 0; k--) {
        w->stride[0][k] = step;
        step *= w->dim[k];
    }
    return fold_output(d, m, n, 0, w->dim);
}

/* ---- one input --------------------------------------------------------------------------------------------------- */

static double op_sqrt(double x)
{
    return sqrt(x);
}
static double op_reciprocal(double x)
{
    return 1 / x;
}
static double op_sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
static double op_relu(double x)
{
    return isnan(x) ? x : x > 0 ? x : 0;
}
static double op_neg(double x)
{
    return -x;
}
static double op_sign(double x)
{
    return isnan(x) ? x : (double)((x > 0) - (x < 0));
}
static double op_softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}
static double op_is_nan(double x)
{
    return isnan(x) ? 1 : 0;
}

static const struct {
    const char *op;
    double (*f)(double);
} unary[] = {{"Neg", op_neg},
             {"Abs", fabs},
             {"Sqrt", op_sqrt},
             {"Reciprocal", op_reciprocal},
             {"Exp", exp},
             {"Log", log},
             {"Tanh", tanh},
             {"Erf", erf},
             {"Sigmoid", op_sigmoid},
             {"Relu", op_relu},
             {"Sin", sin},
             {"Cos", cos},
             {"Floor", floor},
             {"Ceil", ceil},
             {"Sign", op_sign},
             {"IsNaN", op_is_nan},
             {"Round", nearbyint},
             {"Tan", tan},
             {"Asin", asin},
             {"Acos", acos},
             {"Atan", atan},
             {"Sinh", sinh},
             {"Cosh", cosh},
             {"Asinh", asinh},
             {"Acosh", acosh},
             {"Atanh", atanh},
             {"Softplus", op_softplus}};

/* Neg, Abs, Sign and Relu of integers, Not of bools; unsigned numbers are never negative. */
static int64_t unary_int(char op, bool is_unsigned, int64_t x)
{
    bool negative = x < 0 && !is_unsigned;
    switch (op) {
    case 'N': /* Neg */
        return (int64_t)(0 - (uint64_t)x);
    case 'A': /* Abs */
        return negative ? (int64_t)(0 - (uint64_t)x) : x;
    case 'S': /* Sign */
        return negative ? -1 : x != 0;
    case 'R': /* Relu */
        return negative ? 0 : x;
    default: /* Not */
        return !x;
    }
}

static bool is_unsigned(ferry_dtype t)
{
    return t == FERRY_U64 || t == FERRY_U32 || t == FERRY_U16 || t == FERRY_U8;
}

Status fold_unary(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *y = node_out(m, n, 0);
    void *out = y ? fold_output(d, m, n, 0, x->data_dim) : NULL;
    if (!out)
        return d->status;
    int64_t count = dims_count(x->rank, x->data_dim);
    if (!dtype_is_float(x->dtype)) {
        char op = strcmp(n->op, "Not") == 0 ? '!' : n->op[0];
        for (int64_t i = 0; i < count; i++)
            num_put_int(y->dtype, out, i, unary_int(op, is_unsigned(x->dtype), num_int(x->dtype, x->data, i)));
        return ST_OK;
    }
    for (size_t k = 0; k < sizeof unary / sizeof unary[0]; k++)
        if (strcmp(n->op, unary[k].op) == 0)
            for (int64_t i = 0; i < count; i++)
                num_put_real(y->dtype, out, i, unary[k].f(num_real(x->dtype, x->data, i)));
    return ST_OK;
}

Status fold_is_inf(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0);
    bool negative = node_attr_int(n, "detect_negative", 1) != 0, positive = node_attr_int(n, "detect_positive", 1) != 0;
    void *out = node_out(m, n, 0) ? fold_output(d, m, n, 0, x->data_dim) : NULL;
    int64_t count = out ? dims_count(x->rank, x->data_dim) : 0;
    for (int64_t i = 0; i < count; i++) {
        double v = num_real(x->dtype, x->data, i);
        num_put_int(FERRY_BOOL, out, i, isinf(v) && (v > 0 ? positive : negative));
    }
    return d->status;
}

Status fold_gelu(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0);
    const Attr *how = node_attr(n, "approximate");
    bool by_tanh = how && how->kind == ATTR_STRING && strcmp(how->s, "tanh") == 0;
    void *out = node_out(m, n, 0) ? fold_output(d, m, n, 0, x->data_dim) : NULL;
    int64_t count = out ? dims_count(x->rank, x->data_dim) : 0;
    for (int64_t i = 0; i < count; i++) {
        double v = num_real(x->dtype, x->data, i);
        double t = by_tanh ? tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)) : erf(v / sqrt(2));
        num_put_real(x->dtype, out, i, 0.5 * v * (1 + t));
    }
    return d->status;
}

Status fold_cast(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *y = node_out(m, n, 0);
    if (y && y->dtype == x->dtype) {
        fold_share(m, n, 0, x, x->data_dim);
        return ST_OK;
    }
    void *out = y ? fold_output(d, m, n, 0, x->data_dim) : NULL;
    int64_t count = out ? dims_count(x->rank, x->data_dim) : 0;
    for (int64_t i = 0; i < count; i++)
        if (dtype_is_float(x->dtype) || dtype_is_float(y->dtype))
            num_put_real(y->dtype, out, i, num_real(x->dtype, x->data, i));
        else
            num_put_int(y->dtype, out, i, num_int(x->dtype, x->data, i));
    return d->status;
}

/* Bounds: attributes before opset 11, then inputs; both can be missing. */
Status fold_clip(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *bound[2] = {node_in(m, n, 1), node_in(m, n, 2)};
    static const char *const name[2] = {"min", "max"};
    void *out = node_out(m, n, 0) ? fold_output(d, m, n, 0, x->data_dim) : NULL;
    int64_t count = out ? dims_count(x->rank, x->data_dim) : 0;
    ferry_dtype t = x->dtype;
    for (int64_t i = 0; i < count; i++) {
        if (dtype_is_float(t)) {
            double v = num_real(t, x->data, i);
            for (int k = 0; k < 2; k++) {
                if (!bound[k] && !node_attr(n, name[k]))
                    continue;
                double b = bound[k] ? num_real(t, bound[k]->data, 0) : node_attr_float(n, name[k], 0);
                v = (k ? v > b : v < b) ? b : v;
            }
            num_put_real(t, out, i, v);
        } else {
            int64_t v = num_int(t, x->data, i);
            for (int k = 0; k < 2; k++) {
                if (!bound[k])
                    continue;
                int64_t b = num_int(t, bound[k]->data, 0);
                bool less = is_unsigned(t) ? (uint64_t)v < (uint64_t)b : v < b;
                v = (k ? !less : less) ? b : v;
            }
            num_put_int(t, out, i, v);
        }
    }
    return d->status;
}

/* ---- two inputs -------------------------------------------------------------------------------------------------- */

typedef enum Binary {
    B_ADD,
    B_SUB,
    B_MUL,
    B_DIV,
    B_MOD,
    B_POW,
    B_MAX,
    B_MIN,
    B_EQUAL,
    B_LESS,
    B_LESS_EQUAL,
    B_GREATER,
    B_GREATER_EQUAL,
    B_AND,
    B_OR,
    B_XOR,
    B_SHIFT,
    B_BIT_AND,
    B_BIT_OR,
    B_BIT_XOR,
    B_COUNT
} Binary;
static const char *const binary_name[B_COUNT] = {"Add",
                                                 "Sub",
                                                 "Mul",
                                                 "Div",
                                                 "Mod",
                                                 "Pow",
                                                 "Max",
                                                 "Min",
                                                 "Equal",
                                                 "Less",
                                                 "LessOrEqual",
                                                 "Greater",
                                                 "GreaterOrEqual",
                                                 "And",
                                                 "Or",
                                                 "Xor",
                                                 "BitShift",
                                                 "BitwiseAnd",
                                                 "BitwiseOr",
                                                 "BitwiseXor"};

static double binary_real(Binary op, double a, double b)
{
    switch (op) {
    case B_ADD:
        return a + b;
    case B_SUB:
        return a - b;
    case B_MUL:
        return a * b;
    case B_DIV:
        return a / b;
    case B_MOD:
        return fmod(a, b);
    case B_POW:
        return pow(a, b);
    case B_MAX: /* a NaN wins */
        return isnan(a) || a > b ? a : b;
    case B_MIN:
        return isnan(a) || a < b ? a : b;
    case B_EQUAL:
        return a == b;
    case B_LESS:
        return a < b;
    case B_LESS_EQUAL:
        return a <= b;
    case B_GREATER:
        return a > b;
    case B_GREATER_EQUAL:
        return a >= b;
    default:
        return 0;
    }
}

static int64_t int_power(int64_t base, int64_t exponent)
{
    uint64_t result = 1, b = (uint64_t)base;
    if (exponent < 0) /* 1 / base^n, rounded towards zero */
        return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
    for (; exponent; exponent >>= 1, b *= b)
        if (exponent & 1)
            result *= b;
    return (int64_t)result;
}

/* Signed; sums, products and equality are the same for unsigned numbers. The divisor is not 0. */
static int64_t binary_int(Binary op, bool fmod_rule, int64_t a, int64_t b)
{
    switch (op) {
    case B_ADD:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    case B_SUB:
        return (int64_t)((uint64_t)a - (uint64_t)b);
    case B_MUL:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case B_DIV:
        return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
    case B_MOD: {
        int64_t r = b == -1 ? 0 : a % b;
        return !fmod_rule && r != 0 && (r < 0) != (b < 0) ? r + b : r; /* the divisor's sign, or the dividend's */
    }
    case B_POW:
        return int_power(a, b);
    case B_MAX:
        return a > b ? a : b;
    case B_MIN:
        return a < b ? a : b;
    case B_EQUAL:
        return a == b;
    case B_LESS:
        return a < b;
    case B_LESS_EQUAL:
        return a <= b;
    case B_GREATER:
        return a > b;
    case B_GREATER_EQUAL:
        return a >= b;
    case B_AND:
        return a && b;
    case B_OR:
        return a || b;
    case B_XOR:
        return !a != !b;
    case B_BIT_AND:
        return a & b;
    case B_BIT_OR:
        return a | b;
    case B_BIT_XOR:
        return a ^ b;
    default:
        return 0;
    }
}

static int64_t binary_unsigned(Binary op, bool fmod_rule, uint64_t a, uint64_t b)
{
    switch (op) {
    case B_DIV:
        return (int64_t)(a / b);
    case B_MOD:
        return (int64_t)(a % b);
    case B_MAX:
        return (int64_t)(a > b ? a : b);
    case B_MIN:
        return (int64_t)(a < b ? a : b);
    case B_LESS:
        return a < b;
    case B_LESS_EQUAL:
        return a <= b;
    case B_GREATER:
        return a > b;
    case B_GREATER_EQUAL:
        return a >= b;
    default:
        return binary_int(op, fmod_rule, (int64_t)a, (int64_t)b);
    }
}

/* Of unsigned numbers, as the operator is defined; by 64 and more nothing is left. */
static int64_t shift(bool left, int64_t a, int64_t b)
{
    if ((uint64_t)b > 63)
        return 0;
    return (int64_t)(left ? (uint64_t)a << b : (uint64_t)a >> b);
}

Status fold_binary(Diag *d, Model *m, ModelNode *n)
{
    const Value *a = node_in(m, n, 0), *b = node_in(m, n, 1), *y = node_out(m, n, 0);
    Binary op = 0;
    Walk w;
    while (op < B_COUNT && strcmp(n->op, binary_name[op]) != 0)
        op++;
    bool real = dtype_is_float(a->dtype) || dtype_is_float(b->dtype), fmod_rule = node_attr_int(n, "fmod", 0) != 0;
    const Attr *direction = node_attr(n, "direction");
    bool left = op == B_SHIFT && direction && direction->kind == ATTR_STRING && strcmp(direction->s, "LEFT") == 0;
    bool divides = !real && (op == B_DIV || op == B_MOD);
    void *out = start_walk(d, m, n, 0, 2, &w);
    if (!out)
        return d->status;
    while (walk_next(&w))
        for (int64_t i = 0; i < w.row; i++) {
            int64_t ia = w.offset[1] + i * w.step[1], ib = w.offset[2] + i * w.step[2], iy = w.offset[0] + i;
            if (real) {
                num_put_real(y->dtype, out, iy,
                             binary_real(op, num_real(a->dtype, a->data, ia), num_real(b->dtype, b->data, ib)));
                continue;
            }
            int64_t x1 = num_int(a->dtype, a->data, ia), x2 = num_int(b->dtype, b->data, ib);
            if (divides && x2 == 0)
                return node_fail(d, m, n, "divides by zero");
            if (op == B_SHIFT) {
                num_put_int(y->dtype, out, iy, shift(left, x1, x2));
                continue;
            }
            num_put_int(y->dtype, out, iy,
                        is_unsigned(a->dtype) ? binary_unsigned(op, fmod_rule, (uint64_t)x1, (uint64_t)x2)
                                              : binary_int(op, fmod_rule, x1, x2));
        }
    return ST_OK;
}

Status fold_variadic(Diag *d, Model *m, ModelNode *n)
{
    /* the output is filled from the first input and then combined with the others, over the extent of all of them */
    Value *y = node_out(m, n, 0);
    bool sum = strcmp(n->op, "Sum") == 0, mean = strcmp(n->op, "Mean") == 0;
    Binary op = sum || mean ? B_ADD : strcmp(n->op, "Max") == 0 ? B_MAX : B_MIN;
    if (!y)
        return ST_OK;
    Walk w = {.rank = y->rank, .arrays = 2};
    for (int k = 0; k < y->rank; k++)
        w.dim[k] = y->dim[k] ? 1 : 0;
    for (int i = 0; i < n->n_in; i++) {
        const Value *x = node_in(m, n, i);
        for (int k = 0; k < x->rank; k++) {
            int64_t *to = &w.dim[y->rank - x->rank + k];
            *to = *to && x->data_dim[k] > 1 ? x->data_dim[k] : *to;
        }
    }
    int64_t step = 1;
    for (int k = y->rank - 1; k >= 0; k--) {
        w.stride[0][k] = step;
        step *= w.dim[k];
    }
    void *out = fold_output(d, m, n, 0, w.dim);
    ferry_dtype t = y->dtype;
    for (int i = 0; i < n->n_in && out; i++) {
        const Value *x = node_in(m, n, i);
        fold_strides(x, y->rank, w.stride[1]);
        w.started = false;
        while (walk_next(&w))
            for (int64_t k = 0; k < w.row; k++) {
                int64_t ix = w.offset[1] + k * w.step[1], iy = w.offset[0] + k;
                if (dtype_is_float(t)) {
                    double v = num_real(t, x->data, ix);
                    num_put_real(t, out, iy, i ? binary_real(op, num_real(t, out, iy), v) : v);
                } else {
                    int64_t v = num_int(t, x->data, ix), u = num_int(t, out, iy);
                    num_put_int(t, out, iy,
                                !i               ? v
                                : is_unsigned(t) ? binary_unsigned(op, false, (uint64_t)u, (uint64_t)v)
                                                 : binary_int(op, false, u, v));
                }
            }
    }
    for (int64_t k = 0, count = mean && out ? dims_count(y->rank, w.dim) : 0; k < count; k++)
        num_put_real(t, out, k, num_real(t, out, k) / n->n_in);
    return d->status;
}

Status fold_where(Diag *d, Model *m, ModelNode *n)
{
    const Value *c = node_in(m, n, 0), *a = node_in(m, n, 1), *b = node_in(m, n, 2);
    size_t each = ferry_dtype_bytes(a->dtype);
    Walk w;
    uint8_t *out = start_walk(d, m, n, 0, 3, &w);
    while (out && walk_next(&w))
        for (int64_t i = 0; i < w.row; i++) {
            bool yes = ((const uint8_t *)c->data)[w.offset[1] + i * w.step[1]] != 0;
            int k = yes ? 2 : 3;
            const uint8_t *from = (yes ? a : b)->data;
            memcpy(out + (size_t)(w.offset[0] + i) * each, from + (size_t)(w.offset[k] + i * w.step[k]) * each, each);
        }
    return d->status;
}
