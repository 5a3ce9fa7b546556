/* lower_activation.c - activations and other element-wise operators as compositions of kernels.
 *
 * The derivative at a kink is the one that PyTorch takes, which decides the comparison that is used: LeakyReLU, PReLU,
 * ELU and their kin have the left one at 0, a clamp passes the gradient on at its bounds. A branch that is not taken
 * must not overflow either, since 0 * infinity would be NaN in its gradient: exponentials see only the negative part of
 * x. */
#include <math.h>
#include <string.h>

#include "graph/build.h"
#include "graph/ops_lower.h"

static bool is(const Build *b, const char *op)
{
    return strcmp(b->n->op, op) == 0;
}

static double number(const Build *b, const char *attr, double otherwise)
{
    return node_attr_float(b->n, attr, otherwise);
}

/* x > 0 ? x : below */
static int above_zero(Build *b, int x, int below)
{
    return build_where(b, build_with(b, FERRY_GREATER, x, 0), x, below);
}

/* scale * (exp(min(x, 0) / alpha) - 1) */
static int exp_below(Build *b, int x, double scale, double alpha)
{
    int positive = build_with(b, FERRY_GREATER, x, 0);
    int below = build_where(b, positive, build_number(b, build_tensor(b, x).dtype, 0), x);
    if (alpha != 1)
        below = build_with(b, FERRY_DIV, below, alpha);
    below = build_unary(b, FERRY_EXPM1, below);
    return scale == 1 ? below : build_with(b, FERRY_MUL, below, scale);
}

/* max(0, min(1, alpha * x + beta)), with the derivative 0 at both ends. */
static int hard_sigmoid(Build *b, int x, double alpha, double beta)
{
    int line = build_with(b, FERRY_ADD, build_with(b, FERRY_MUL, x, alpha), beta);
    ferry_dtype t = build_tensor(b, x).dtype;
    int high = build_where(b, build_with(b, FERRY_LESS, line, 1), line, build_number(b, t, 1));
    return build_where(b, build_with(b, FERRY_GREATER, line, 0), high, build_number(b, t, 0));
}

static int activation(Build *b, int x)
{
    ferry_dtype t = build_tensor(b, x).dtype;
    if (is(b, "LeakyRelu"))
        return above_zero(b, x, build_with(b, FERRY_MUL, x, number(b, "alpha", 0.01)));
    if (is(b, "PRelu"))
        return above_zero(b, x, build_binary(b, FERRY_MUL, x, build_input(b, 1)));
    if (is(b, "Elu"))
        return above_zero(b, x, exp_below(b, x, number(b, "alpha", 1), 1));
    if (is(b, "Celu")) {
        double alpha = number(b, "alpha", 1);
        return above_zero(b, x, exp_below(b, x, alpha, alpha));
    }
    if (is(b, "Selu")) {
        double alpha = number(b, "alpha", 1.67326319217681884765625);
        return build_with(b, FERRY_MUL, above_zero(b, x, exp_below(b, x, alpha, 1)),
                          number(b, "gamma", 1.05070102214813232421875));
    }
    if (is(b, "ThresholdedRelu"))
        return build_where(b, build_with(b, FERRY_GREATER, x, number(b, "alpha", 1)), x, build_number(b, t, 0));
    if (is(b, "HardSigmoid"))
        return hard_sigmoid(b, x, number(b, "alpha", 0.2), number(b, "beta", 0.5));
    if (is(b, "HardSwish"))
        return build_binary(b, FERRY_MUL, x, hard_sigmoid(b, x, 1.0 / 6, 0.5));
    if (is(b, "Softsign"))
        return build_binary(b, FERRY_DIV, x, build_with(b, FERRY_ADD, build_unary(b, FERRY_ABS, x), 1));
    if (is(b, "Mish"))
        return build_binary(b, FERRY_MUL, x, build_unary(b, FERRY_TANH, build_unary(b, FERRY_SOFTPLUS, x)));
    /* Shrink: x + bias below -lambd, x - bias above lambd, 0 between */
    double bias = number(b, "bias", 0), lambd = number(b, "lambd", 0.5);
    int low = build_with(b, FERRY_LESS, x, -lambd), high = build_with(b, FERRY_GREATER, x, lambd);
    int inner = build_where(b, high, bias == 0 ? x : build_with(b, FERRY_SUB, x, bias), build_number(b, t, 0));
    return build_where(b, low, bias == 0 ? x : build_with(b, FERRY_ADD, x, bias), inner);
}

Status lower_activation(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0);
    if (!dtype_is_float(build_tensor(&b, x).dtype))
        return node_fail(d, l->model, n, "%s of %s values is unsupported", n->op,
                         ferry_dtype_name(build_tensor(&b, x).dtype));
    return build_give(&b, 0, activation(&b, x));
}

/* Bounds: attributes before opset 11, then inputs; each may be missing. */
Status lower_clip(Diag *d, Lowering *l, ModelNode *n)
{
    static const char *const name[2] = {"min", "max"};
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0);
    for (int k = 0; k < 2; k++) {
        int bound = build_input(&b, 1 + k);
        if (bound < 0 && b.status == ST_OK && node_attr(n, name[k]) != NULL)
            bound = build_number(&b, build_tensor(&b, x).dtype, node_attr_float(n, name[k], 0));
        if (bound < 0)
            continue;
        Tensor t = build_tensor(&b, bound);
        if (t.rank > 0) /* [1]: the result has x's rank */
            bound = build_view(&b, bound, 0, NULL);
        int beyond = build_binary(&b, k == 0 ? FERRY_LESS : FERRY_GREATER, x, bound);
        x = build_where(&b, beyond, bound, x);
    }
    return build_give(&b, 0, x);
}

/* A NaN is not equal to itself. */
Status lower_is_nan(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0);
    return build_give(&b, 0, build_unary(&b, FERRY_NOT, build_binary(&b, FERRY_EQUAL, x, x)));
}

Status lower_is_inf(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0);
    bool negative = node_attr_int(n, "detect_negative", 1) != 0, positive = node_attr_int(n, "detect_positive", 1) != 0;
    if (negative && positive)
        x = build_unary(&b, FERRY_ABS, x);
    double infinity = positive ? (double)INFINITY : -(double)INFINITY;
    if (!negative && !positive) /* nothing equals NaN */
        infinity = (double)NAN;
    return build_give(&b, 0, build_with(&b, FERRY_EQUAL, x, infinity));
}

Status lower_xor(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0), y = build_input(&b, 1);
    return build_give(&b, 0, build_unary(&b, FERRY_NOT, build_binary(&b, FERRY_EQUAL, x, y)));
}

Status lower_mod(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0), y = build_input(&b, 1);
    bool fmod_rule = dtype_is_float(build_tensor(&b, x).dtype) || node_attr_int(n, "fmod", 0) != 0;
    return build_give(&b, 0, build_binary(&b, fmod_rule ? FERRY_FMOD : FERRY_MOD, x, y));
}

Status lower_bits(Diag *d, Lowering *l, ModelNode *n)
{
    static const struct {
        const char *op;
        ferry_fn fn;
    } row[] = {{"BitwiseAnd", FERRY_BIT_AND}, {"BitwiseOr", FERRY_BIT_OR}, {"BitwiseXor", FERRY_BIT_XOR}};
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0);
    if (is(&b, "BitwiseNot")) { /* all bits of zero less one */
        ferry_dtype t = build_tensor(&b, x).dtype;
        int ones = build_binary(&b, FERRY_SUB, build_number(&b, t, 0), build_number(&b, t, 1));
        return build_give(&b, 0, build_binary(&b, FERRY_BIT_XOR, x, ones));
    }
    ferry_fn fn = FERRY_SHIFT_LEFT;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (is(&b, row[i].op))
            fn = row[i].fn;
    if (is(&b, "BitShift") && strcmp(node_attr(n, "direction")->s, "RIGHT") == 0)
        fn = FERRY_SHIFT_RIGHT;
    return build_give(&b, 0, build_binary(&b, fn, x, build_input(&b, 1)));
}

/* Sum and Mean of any number of inputs. */
Status lower_sum(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    int sum = build_input(&b, 0);
    for (int i = 1; i < n->n_in; i++)
        sum = build_binary(&b, FERRY_ADD, sum, build_input(&b, i));
    if (strcmp(n->op, "Mean") == 0 && n->n_in > 1)
        sum = build_with(&b, FERRY_MUL, sum, 1.0 / n->n_in);
    return build_give(&b, 0, sum);
}
