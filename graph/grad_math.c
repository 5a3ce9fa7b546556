/* grad_math.c - gradients of element-wise kernels and reductions. */
#include "graph/grad.h"

Status grad_unary(Autodiff *a, const Node *n)
{
    int y = n->arg[0], x = n->arg[1];
    bool use_x, use_y = false;
    switch (n->call.fn) {
    case FERRY_TANH:
    case FERRY_SIGMOID:
    case FERRY_SQRT:
    case FERRY_EXP:
    case FERRY_RECIPROCAL:
    case FERRY_EXPM1:
        use_x = false;
        use_y = true;
        break;
    case FERRY_NEG:
        use_x = false;
        break;
    case FERRY_ABS:
    case FERRY_LOG:
    case FERRY_ERF:
    case FERRY_RELU:
    case FERRY_SIN:
    case FERRY_COS:
    case FERRY_TAN:
    case FERRY_ASIN:
    case FERRY_ACOS:
    case FERRY_ATAN:
    case FERRY_SINH:
    case FERRY_COSH:
    case FERRY_ASINH:
    case FERRY_ACOSH:
    case FERRY_ATANH:
    case FERRY_SOFTPLUS:
    case FERRY_SQUARE:
    case FERRY_GELU:
    case FERRY_GELU_TANH:
    case FERRY_SILU:
        use_x = true;
        break;
    case FERRY_FLOOR:
    case FERRY_CEIL:
    case FERRY_ROUND:
    case FERRY_SIGN: /* 0 almost everywhere: no contribution */
        return ST_OK;
    default:
        return grad_fail(a, n, "this function has no gradient");
    }
    ferry_kernel g = call_unary(FERRY_OP_UNARY_GRAD, n->call.dtype, n->call.fn, n->call.n);
    return grad_write(a, x, &g, true, (int[FERRY_MAX_ARGS]){-1, grad_in(a, n, 0), use_x ? x : -1, use_y ? y : -1});
}

/* Dimensions in which the operand with these strides was broadcast. */
static uint32_t broadcast_axes(const ferry_kernel *c, const int64_t *stride)
{
    uint32_t axes = 0;
    for (int i = 0; i < c->rank; i++)
        if (stride[i] == 0 && c->dim[i] != 1)
            axes |= 1u << i;
    return axes;
}

/* x receives alpha * dy, summed over `axes`. */
static Status pass_scaled(Autodiff *a, const Node *n, int x, uint32_t axes, double alpha)
{
    const ferry_kernel *c = &n->call;
    int dy = grad_in(a, n, 0);
    int64_t count = a->g->tensor.at[x].count;
    if (axes == 0 && alpha == 1)
        return grad_pass(a, x, dy);
    if (axes != 0) {
        ferry_kernel sum = call_reduce(c->dtype, FERRY_SUM, c->rank, c->dim, axes);
        if (alpha == 1)
            return grad_write(a, x, &sum, true, (int[FERRY_MAX_ARGS]){-1, dy});
        int temp;
        TRY(grad_temp(a, x, 1, &count, &temp));
        TRY(grad_emit(a, &sum, (int[]){temp, dy}));
        dy = temp;
    }
    ferry_kernel scale = call_scale(c->dtype, count, alpha, false);
    return grad_write(a, x, &scale, true, (int[FERRY_MAX_ARGS]){-1, dy});
}

/* The number that an operand is, when it is a constant of one element. */
static bool is_number(const Graph *g, int tensor, double *out)
{
    const Tensor *t = &g->tensor.at[tensor];
    return t->kind == TENSOR_CONST && t->count == 1 && ferry_convert(out, FERRY_F64, t->data, t->dtype, 1) == FERRY_OK;
}

/* Operand `which` (0 = a, 1 = b) of a binary function. Arguments that the derivative does not need are left out: an
 * activation that only they would keep alive is not kept. */
static Status binary_operand(Autodiff *a, const Node *n, int which)
{
    const ferry_kernel *c = &n->call;
    int x = n->arg[1 + which], other = n->arg[2 - which], dy = grad_in(a, n, 0);
    uint32_t axes = broadcast_axes(c, c->stride[which]);
    bool needs[2] = {true, true}; /* a, b */
    double number;
    switch (c->fn) {
    case FERRY_ADD:
        return pass_scaled(a, n, x, axes, 1);
    case FERRY_FMOD: /* a - b * trunc(a / b) */
        if (which == 0)
            return pass_scaled(a, n, x, axes, 1);
        break;
    case FERRY_SUB:
        return pass_scaled(a, n, x, axes, which == 0 ? 1 : -1);
    case FERRY_MUL:
        if (is_number(a->g, other, &number) && axes == 0)
            return pass_scaled(a, n, x, 0, number);
        needs[which] = false;
        break;
    case FERRY_DIV:
        needs[0] = which == 1;
        break;
    default:
        break; /* POW, MAX, MIN: both */
    }
    ferry_kernel g = call_binary(which == 0 ? FERRY_OP_BINARY_GRAD_A : FERRY_OP_BINARY_GRAD_B, c->dtype, c->fn, c->rank,
                                 c->dim, c->stride[0], c->stride[1]);
    int arg[FERRY_MAX_ARGS] = {-1, dy, needs[0] ? n->arg[1] : -1, needs[1] ? n->arg[2] : -1};
    if (axes == 0)
        return grad_write(a, x, &g, false, arg);
    TRY(grad_temp(a, x, c->rank, c->dim, &arg[0]));
    TRY(grad_emit(a, &g, arg));
    ferry_kernel sum = call_reduce(c->dtype, FERRY_SUM, c->rank, c->dim, axes);
    return grad_write(a, x, &sum, true, (int[FERRY_MAX_ARGS]){-1, arg[0]});
}

Status grad_binary(Autodiff *a, const Node *n)
{
    for (int which = 1; which >= 0; which--) /* a bias before the value it was added to */
        if (grad_wanted(a, n->arg[1 + which]))
            TRY(binary_operand(a, n, which));
    return ST_OK;
}

/* da = cond ? dy : 0 and db = cond ? 0 : dy */
Status grad_where(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    int dy = grad_in(a, n, 0);
    for (int which = 0; which < 2; which++) {
        int x = n->arg[2 + which], zero;
        if (!grad_wanted(a, x))
            continue;
        int64_t dense[MAX_RANK], none[MAX_RANK] = {0};
        strides_dense(c->rank, c->dim, dense);
        TRY(graph_add_number(a->d, a->g, n->call.dtype, 0, &zero));
        ferry_kernel g =
            call_where(c->dtype, c->rank, c->dim, c->stride[0], which == 0 ? dense : none, which == 0 ? none : dense);
        int arg[FERRY_MAX_ARGS] = {-1, n->arg[1], which == 0 ? dy : zero, which == 0 ? zero : dy};
        uint32_t axes = broadcast_axes(c, c->stride[1 + which]);
        if (axes == 0) {
            TRY(grad_write(a, x, &g, false, arg));
            continue;
        }
        TRY(grad_temp(a, x, c->rank, c->dim, &arg[0]));
        TRY(grad_emit(a, &g, arg));
        ferry_kernel sum = call_reduce(c->dtype, FERRY_SUM, c->rank, c->dim, axes);
        TRY(grad_write(a, x, &sum, true, (int[FERRY_MAX_ARGS]){-1, arg[0]}));
    }
    return ST_OK;
}

/* A bool or floating tensor for the rule of a maximum. */
static Status extreme_temp(Autodiff *a, const Node *n, ferry_dtype t, int rank, const int64_t *dim, int *out)
{
    return graph_add_tensor(a->d, a->g, graph_made_up_name(a->g, n->name), TENSOR_VALUE, t, rank, dim, out);
}

/* The elements that are the maximum (minimum) share dy evenly: dx = (x == y) * dy / count(x == y). from: strides by
 * which y is read over x's dimensions. */
static Status grad_extreme(Autodiff *a, const Node *n, const int64_t *dense, const int64_t *from)
{
    const ferry_kernel c = n->call;
    int y = n->arg[0], x = n->arg[1], dy = grad_in(a, n, 0), is, one, count, share;
    int64_t kept = a->g->tensor.at[y].count;
    const int64_t step = 1;
    TRY(extreme_temp(a, n, FERRY_BOOL, c.rank, c.dim, &is));
    TRY(extreme_temp(a, n, c.dtype, c.rank, c.dim, &one));
    TRY(extreme_temp(a, n, c.dtype, 1, &kept, &count));
    TRY(extreme_temp(a, n, c.dtype, 1, &kept, &share));
    ferry_kernel equal = call_binary(FERRY_OP_BINARY, c.dtype, FERRY_EQUAL, c.rank, c.dim, dense, from);
    TRY(grad_emit(a, &equal, (int[]){is, x, y}));
    ferry_kernel cast = call_new(FERRY_OP_CAST, FERRY_BOOL);
    cast.dtype2 = c.dtype;
    cast.n = dims_count(c.rank, c.dim);
    TRY(grad_emit(a, &cast, (int[]){one, is}));
    ferry_kernel sum = call_reduce(c.dtype, FERRY_SUM, c.rank, c.dim, c.axes);
    TRY(grad_emit(a, &sum, (int[]){count, one}));
    ferry_kernel divide = call_binary(FERRY_OP_BINARY, c.dtype, FERRY_DIV, 1, &kept, &step, &step);
    TRY(grad_emit(a, &divide, (int[]){share, dy, count}));
    ferry_kernel g = call_binary(FERRY_OP_BINARY, c.dtype, FERRY_MUL, c.rank, c.dim, dense, from);
    return grad_write(a, x, &g, false, (int[FERRY_MAX_ARGS]){-1, one, share});
}

/* Every element of x gets dy of its group, divided by the group's size for a mean. */
Status grad_reduce(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    int x = n->arg[1];
    int64_t dense[MAX_RANK], from[MAX_RANK], step = 1, group = 1;
    strides_dense(c->rank, c->dim, dense);
    for (int i = c->rank - 1; i >= 0; i--) {
        bool reduced = c->axes >> i & 1;
        from[i] = reduced ? 0 : step;
        step *= reduced ? 1 : c->dim[i];
        group *= reduced ? c->dim[i] : 1;
    }
    if (c->fn == FERRY_MAX || c->fn == FERRY_MIN)
        return grad_extreme(a, n, dense, from);
    double alpha = c->fn == FERRY_MEAN ? 1 / (double)group : 1;
    ferry_kernel g = call_copy(c->dtype, c->rank, c->dim, 0, dense, 0, from, alpha);
    return grad_write(a, x, &g, true, (int[FERRY_MAX_ARGS]){-1, grad_in(a, n, 0)});
}
