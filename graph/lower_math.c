/* lower_math.c - element-wise operators with broadcasting, casts and reductions. */
#include <math.h>
#include <string.h>

#include "graph/build.h"
#include "graph/ops_lower.h"

typedef struct FnRow {
    const char *op;
    ferry_fn fn;
} FnRow;

static const FnRow fn_rows[] = {
    {"Neg", FERRY_NEG},
    {"Abs", FERRY_ABS},
    {"Sqrt", FERRY_SQRT},
    {"Exp", FERRY_EXP},
    {"Log", FERRY_LOG},
    {"Tanh", FERRY_TANH},
    {"Erf", FERRY_ERF},
    {"Sigmoid", FERRY_SIGMOID},
    {"Relu", FERRY_RELU},
    {"Reciprocal", FERRY_RECIPROCAL},
    {"Sin", FERRY_SIN},
    {"Cos", FERRY_COS},
    {"Tan", FERRY_TAN},
    {"Asin", FERRY_ASIN},
    {"Acos", FERRY_ACOS},
    {"Atan", FERRY_ATAN},
    {"Sinh", FERRY_SINH},
    {"Cosh", FERRY_COSH},
    {"Asinh", FERRY_ASINH},
    {"Acosh", FERRY_ACOSH},
    {"Atanh", FERRY_ATANH},
    {"Softplus", FERRY_SOFTPLUS},
    {"Floor", FERRY_FLOOR},
    {"Ceil", FERRY_CEIL},
    {"Round", FERRY_ROUND},
    {"Sign", FERRY_SIGN},
    {"Not", FERRY_NOT},
    {"Add", FERRY_ADD},
    {"Sub", FERRY_SUB},
    {"Mul", FERRY_MUL},
    {"Div", FERRY_DIV},
    {"Pow", FERRY_POW},
    {"Max", FERRY_MAX},
    {"Min", FERRY_MIN},
    {"Equal", FERRY_EQUAL},
    {"Less", FERRY_LESS},
    {"LessOrEqual", FERRY_LESS_EQUAL},
    {"Greater", FERRY_GREATER},
    {"GreaterOrEqual", FERRY_GREATER_EQUAL},
    {"And", FERRY_AND},
    {"Or", FERRY_OR},
};

static Status find_fn(Diag *d, const Lowering *l, const ModelNode *n, ferry_fn *out)
{
    *out = FERRY_FN_NONE;
    for (size_t i = 0; i < sizeof(fn_rows) / sizeof(*fn_rows); i++)
        if (strcmp(fn_rows[i].op, n->op) == 0) {
            *out = fn_rows[i].fn;
            return ST_OK;
        }
    return node_fail(d, l->model, n, "%s has no kernel", n->op);
}

/* ---- one input --------------------------------------------------------------------------------------------------- */

static Status emit_unary(Diag *d, Lowering *l, const ModelNode *n, ferry_fn fn, int y, int x)
{
    const Tensor *t = &l->graph->tensor.at[x];
    ferry_kernel call = call_unary(FERRY_OP_UNARY, t->dtype, fn, t->count);
    return lower_emit(d, l, n, &call, (int[]){y, x});
}

Status lower_unary(Diag *d, Lowering *l, ModelNode *n)
{
    ferry_fn fn;
    int x, y;
    TRY(find_fn(d, l, n, &fn));
    TRY(lower_input(d, l, n, 0, &x));
    ferry_dtype t = l->graph->tensor.at[x].dtype;
    if (fn == FERRY_ABS && (t == FERRY_U64 || t == FERRY_U32 || t == FERRY_U16 || t == FERRY_U8))
        return lower_view(d, l, n, 0, x);
    if (fn == FERRY_RELU && !dtype_is_float(t)) { /* the larger of x and 0 */
        Build b = build_start(d, l, n);
        return build_give(&b, 0, build_with(&b, FERRY_MAX, x, 0));
    }
    if (!dtype_is_float(t) && fn != FERRY_NEG && fn != FERRY_ABS && fn != FERRY_SIGN && fn != FERRY_NOT)
        return node_fail(d, l->model, n, "%s of %s values is unsupported", n->op, ferry_dtype_name(t));
    TRY(lower_output(d, l, n, 0, &y));
    return emit_unary(d, l, n, fn, y, x);
}

/* y = fn(x, c) for a number c, into a new temporary of x's shape when *y is -1. */
static Status emit_with_number(Diag *d, Lowering *l, const ModelNode *n, ferry_fn fn, int x, double c, int *y)
{
    Tensor t = l->graph->tensor.at[x];
    int s;
    TRY(graph_add_scalar(d, l->graph, c, &s));
    if (*y < 0)
        TRY(lower_temp(d, l, n, t.dtype, t.rank, t.dim, y));
    const int64_t one = 1, zero = 0;
    ferry_kernel call = call_binary(FERRY_OP_BINARY, t.dtype, fn, 1, &t.count, &one, &zero);
    return lower_emit(d, l, n, &call, (int[]){*y, x, s});
}

static Status emit_same_shape(Diag *d, Lowering *l, const ModelNode *n, ferry_fn fn, int a, int b, int *y)
{
    Tensor t = l->graph->tensor.at[a];
    if (*y < 0)
        TRY(lower_temp(d, l, n, t.dtype, t.rank, t.dim, y));
    const int64_t one = 1;
    ferry_kernel call = call_binary(FERRY_OP_BINARY, t.dtype, fn, 1, &t.count, &one, &one);
    return lower_emit(d, l, n, &call, (int[]){*y, a, b});
}

/* none: x/2 * (1 + erf(x / sqrt 2)); tanh: x/2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) */
Status lower_gelu(Diag *d, Lowering *l, ModelNode *n)
{
    const double sqrt_half = 0.70710678118654752440, sqrt_2_over_pi = 0.79788456080286535588;
    const Attr *approximate = node_attr(n, "approximate");
    bool by_tanh = approximate != NULL && approximate->s != NULL && strcmp(approximate->s, "tanh") == 0;
    int x, y, inner = -1, f = -1, f1 = -1, half = -1;
    TRY(lower_input(d, l, n, 0, &x));
    Tensor t = l->graph->tensor.at[x];
    if (by_tanh) {
        int square = -1, cube = -1, scaled = -1, sum = -1;
        TRY(emit_same_shape(d, l, n, FERRY_MUL, x, x, &square));
        TRY(emit_same_shape(d, l, n, FERRY_MUL, square, x, &cube));
        TRY(emit_with_number(d, l, n, FERRY_MUL, cube, 0.044715, &scaled));
        TRY(emit_same_shape(d, l, n, FERRY_ADD, x, scaled, &sum));
        TRY(emit_with_number(d, l, n, FERRY_MUL, sum, sqrt_2_over_pi, &inner));
    } else {
        TRY(emit_with_number(d, l, n, FERRY_MUL, x, sqrt_half, &inner));
    }
    TRY(lower_temp(d, l, n, t.dtype, t.rank, t.dim, &f));
    TRY(emit_unary(d, l, n, by_tanh ? FERRY_TANH : FERRY_ERF, f, inner));
    TRY(emit_with_number(d, l, n, FERRY_ADD, f, 1, &f1));
    TRY(emit_with_number(d, l, n, FERRY_MUL, x, 0.5, &half));
    TRY(lower_output(d, l, n, 0, &y));
    return emit_same_shape(d, l, n, FERRY_MUL, half, f1, &y);
}

Status lower_cast(Diag *d, Lowering *l, ModelNode *n)
{
    int x, y;
    TRY(lower_input(d, l, n, 0, &x));
    ferry_dtype from = l->graph->tensor.at[x].dtype;
    ferry_dtype to = lower_dtype(l->graph, l->model->value.at[n->out[0]].dtype);
    if (from == to)
        return lower_view(d, l, n, 0, x);
    TRY(lower_output(d, l, n, 0, &y));
    ferry_kernel call = call_new(FERRY_OP_CAST, from);
    call.dtype2 = to;
    call.n = l->graph->tensor.at[x].count;
    return lower_emit(d, l, n, &call, (int[]){y, x});
}

/* ---- two and three inputs ---------------------------------------------------------------------------------------- */

/* y = fn(a, b) with a and b broadcast to y's shape. */
static Status emit_binary(Diag *d, Lowering *l, const ModelNode *n, ferry_fn fn, int y, int a, int b)
{
    const Tensor *ty = &l->graph->tensor.at[y], *ta = &l->graph->tensor.at[a], *tb = &l->graph->tensor.at[b];
    if (ta->dtype != tb->dtype)
        return node_fail(d, l->model, n, "its inputs have the types %s and %s", ferry_dtype_name(ta->dtype),
                         ferry_dtype_name(tb->dtype));
    int64_t sa[MAX_RANK], sb[MAX_RANK];
    strides_broadcast(ty->rank, ta->rank, ta->dim, sa);
    strides_broadcast(ty->rank, tb->rank, tb->dim, sb);
    ferry_kernel call = call_binary(FERRY_OP_BINARY, ta->dtype, fn, ty->rank, ty->dim, sa, sb);
    return lower_emit(d, l, n, &call, (int[]){y, a, b});
}

/* Truth values have logic and equality only. */
static Status need_number(Diag *d, const Lowering *l, const ModelNode *n, int tensor)
{
    ferry_dtype t = l->graph->tensor.at[tensor].dtype;
    if (t == FERRY_BOOL)
        return node_fail(d, l->model, n, "%s of truth values is unsupported", n->op);
    return ST_OK;
}

static Status lower_two(Diag *d, Lowering *l, ModelNode *n, bool numbers)
{
    ferry_fn fn;
    int a, b, y;
    TRY(find_fn(d, l, n, &fn));
    TRY(lower_input(d, l, n, 0, &a));
    TRY(lower_input(d, l, n, 1, &b));
    if (numbers)
        TRY(need_number(d, l, n, a));
    TRY(lower_output(d, l, n, 0, &y));
    return emit_binary(d, l, n, fn, y, a, b);
}

Status lower_binary(Diag *d, Lowering *l, ModelNode *n)
{
    return lower_two(d, l, n, true);
}

Status lower_compare(Diag *d, Lowering *l, ModelNode *n)
{
    return lower_two(d, l, n, strcmp(n->op, "Equal") != 0);
}

Status lower_logic(Diag *d, Lowering *l, ModelNode *n)
{
    return lower_two(d, l, n, false);
}

Status lower_variadic(Diag *d, Lowering *l, ModelNode *n)
{
    ferry_fn fn;
    int a, b, y;
    TRY(find_fn(d, l, n, &fn));
    TRY(lower_input(d, l, n, 0, &a));
    TRY(need_number(d, l, n, a));
    if (n->n_in == 1)
        return lower_view(d, l, n, 0, a);
    const Value *out = &l->model->value.at[n->out[0]];
    for (int i = 1; i < n->n_in; i++) {
        TRY(lower_input(d, l, n, i, &b));
        if (i == n->n_in - 1)
            TRY(lower_output(d, l, n, 0, &y));
        else
            TRY(lower_temp(d, l, n, lower_dtype(l->graph, out->dtype), out->rank, out->dim, &y));
        TRY(emit_binary(d, l, n, fn, y, a, b));
        a = y;
    }
    return ST_OK;
}

/* The number of a constant of one element. */
static bool is_number(const Graph *g, int tensor, double *out)
{
    const Tensor *t = &g->tensor.at[tensor];
    if (t->kind != TENSOR_CONST || t->count != 1 || !dtype_is_float(t->dtype))
        return false;
    return ferry_convert(out, FERRY_F64, t->data, t->dtype, 1) == FERRY_OK;
}

/* To a whole power in the base's type; to a floating one by way of the graph's precision, cut as a cast cuts. */
static Status power_of_whole(Diag *d, Lowering *l, const ModelNode *n, int x)
{
    Build b = build_start(d, l, n);
    int e = build_input(&b, 1);
    ferry_dtype t = build_tensor(&b, x).dtype;
    if (!dtype_is_float(build_tensor(&b, e).dtype))
        return build_give(&b, 0, build_binary(&b, FERRY_POW, x, build_cast(&b, t, e)));
    int power = build_binary(&b, FERRY_POW, build_cast(&b, l->graph->precision, x), e);
    return build_give(&b, 0, build_cast(&b, t, power));
}

Status lower_pow(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int x, e, y;
    TRY(lower_input(d, l, n, 0, &x));
    if (!dtype_is_float(g->tensor.at[x].dtype))
        return power_of_whole(d, l, n, x);
    TRY(lower_input(d, l, n, 1, &e));
    Tensor te = g->tensor.at[e];
    if (!dtype_is_float(te.dtype)) { /* an integer exponent: constant, or cast */
        if (te.kind == TENSOR_CONST && te.count == 1) {
            int64_t whole;
            if (ferry_convert(&whole, FERRY_I64, te.data, te.dtype, 1) != FERRY_OK)
                return node_fail(d, l->model, n, "exponent: %s", ferry_error());
            TRY(graph_add_scalar(d, g, (double)whole, &e));
        } else {
            int f;
            TRY(lower_temp(d, l, n, g->precision, te.rank, te.dim, &f));
            ferry_kernel cast = call_new(FERRY_OP_CAST, te.dtype);
            cast.dtype2 = g->precision;
            cast.n = te.count;
            TRY(lower_emit(d, l, n, &cast, (int[]){f, e}));
            e = f;
        }
    }
    TRY(lower_output(d, l, n, 0, &y));
    double p;
    if (is_number(g, e, &p) && g->tensor.at[y].count == g->tensor.at[x].count && (p == 2 || p == 0.5))
        return emit_unary(d, l, n, p == 2 ? FERRY_SQUARE : FERRY_SQRT, y, x);
    return emit_binary(d, l, n, FERRY_POW, y, x, e);
}

Status lower_where(Diag *d, Lowering *l, ModelNode *n)
{
    int c, a, b, y;
    TRY(lower_input(d, l, n, 0, &c));
    TRY(lower_input(d, l, n, 1, &a));
    TRY(lower_input(d, l, n, 2, &b));
    TRY(lower_output(d, l, n, 0, &y));
    const Tensor *at = l->graph->tensor.at;
    int64_t stride[3][MAX_RANK];
    strides_broadcast(at[y].rank, at[c].rank, at[c].dim, stride[0]);
    strides_broadcast(at[y].rank, at[a].rank, at[a].dim, stride[1]);
    strides_broadcast(at[y].rank, at[b].rank, at[b].dim, stride[2]);
    ferry_kernel call = call_where(at[y].dtype, at[y].rank, at[y].dim, stride[0], stride[1], stride[2]);
    return lower_emit(d, l, n, &call, (int[]){y, c, a, b});
}
