/* lower_reduce.c - reductions over axes, and what is computed with them: positions of maxima, running sums, softmax's
 * kin, one-hot rows, triangles. */
#include <math.h>
#include <string.h>

#include "graph/build.h"
#include "graph/ops_lower.h"

static bool is(const Build *b, const char *op)
{
    return strcmp(b->n->op, op) == 0;
}

/* The axes that the node reduces, as infer_reduce takes them. */
static Status reduced_axes(Diag *d, const Lowering *l, const ModelNode *n, int rank, uint32_t *out)
{
    const int64_t *axis;
    int count;
    *out = 0;
    TRY(lower_ints_attr(d, (Lowering *)l, n, "axes", 1, &axis, &count));
    for (int i = 0; i < count; i++) {
        if (axis[i] < -rank || axis[i] >= rank)
            return node_fail(d, l->model, n, "axis %lld is outside of rank %d", (long long)axis[i], rank);
        *out |= 1u << (axis[i] < 0 ? axis[i] + rank : axis[i]);
    }
    if (count == 0 && node_attr_int(n, "noop_with_empty_axes", 0) == 0)
        *out = ((uint32_t)1 << rank) - 1;
    return ST_OK;
}

static int64_t reduced_count(Tensor t, uint32_t axes)
{
    int64_t count = 1;
    for (int i = 0; i < t.rank; i++)
        count *= axes >> i & 1 ? t.dim[i] : 1;
    return count;
}

/* Products by halving each axis: the first half times the second, and an element left over is carried along. Only
 * products have a gradient that is right where factors are 0. */
static int product(Build *b, int x, uint32_t axes)
{
    for (int axis = 0; axis < build_tensor(b, x).rank; axis++) {
        if (!(axes >> axis & 1))
            continue;
        for (int64_t size = build_tensor(b, x).dim[axis]; size > 1; size = size / 2 + size % 2) {
            int64_t half = size / 2;
            int rest = size % 2 ? build_slice(b, x, axis, size - 1, size) : -1;
            x = build_binary(b, FERRY_MUL, build_slice(b, x, axis, 0, half), build_slice(b, x, axis, half, 2 * half));
            if (rest >= 0)
                x = build_concat(b, x, rest, axis);
        }
    }
    return x;
}

/* sqrt with the derivative 0 at 0, as a norm has it: the length of a zero vector does not move. */
static int safe_sqrt(Build *b, int x)
{
    int zero = build_with(b, FERRY_EQUAL, x, 0);
    ferry_dtype t = build_tensor(b, x).dtype;
    int root = build_unary(b, FERRY_SQRT, build_where(b, zero, build_number(b, t, 1), x));
    return build_where(b, zero, build_number(b, t, 0), root);
}

static int square(Build *b, int x)
{
    return dtype_is_float(build_tensor(b, x).dtype) ? build_unary(b, FERRY_SQUARE, x)
                                                    : build_binary(b, FERRY_MUL, x, x);
}

static int reduce(Build *b, int x, uint32_t axes)
{
    if (is(b, "ReduceSum"))
        return build_reduce(b, FERRY_SUM, x, axes);
    if (is(b, "ReduceMean"))
        return build_reduce(b, FERRY_MEAN, x, axes);
    if (is(b, "ReduceMax"))
        return build_reduce(b, FERRY_MAX, x, axes);
    if (is(b, "ReduceMin"))
        return build_reduce(b, FERRY_MIN, x, axes);
    if (is(b, "ReduceProd"))
        return product(b, x, axes);
    if (is(b, "ReduceL1"))
        return build_reduce(b, FERRY_SUM, build_unary(b, FERRY_ABS, x), axes);
    if (is(b, "ReduceSumSquare"))
        return build_reduce(b, FERRY_SUM, square(b, x), axes);
    if (is(b, "ReduceL2"))
        return safe_sqrt(b, build_reduce(b, FERRY_SUM, square(b, x), axes));
    if (is(b, "ReduceLogSum"))
        return build_unary(b, FERRY_LOG, build_reduce(b, FERRY_SUM, x, axes));
    return build_log_sum_exp(b, x, axes);
}

/* A maximum of truth values is "any", a minimum "all". */
static int reduce_bool(Build *b, int x, uint32_t axes)
{
    return build_cast(b, FERRY_BOOL, reduce(b, build_cast(b, FERRY_U8, x), axes));
}

static int product_of_nothing(Build *b, Tensor t, uint32_t axes)
{
    const int64_t none[MAX_RANK] = {0};
    for (int i = 0; i < t.rank; i++)
        t.dim[i] = axes >> i & 1 ? 1 : t.dim[i];
    return build_copy(b, build_number(b, t.dtype, 1), t.rank, t.dim, 0, none);
}

Status lower_reduce(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    uint32_t axes;
    int x = build_input(&b, 0);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    TRY(reduced_axes(d, l, n, t.rank, &axes));
    bool real = is(&b, "ReduceMean") || is(&b, "ReduceL2") || strncmp(n->op, "ReduceLog", 9) == 0;
    if (real && !dtype_is_float(t.dtype))
        return node_fail(d, l->model, n, "%s of %s values is unsupported", n->op, ferry_dtype_name(t.dtype));
    if (is(&b, "ReduceProd") && reduced_count(t, axes) == 0)
        return build_give(&b, 0, product_of_nothing(&b, t, axes));
    bool order = is(&b, "ReduceMax") || is(&b, "ReduceMin");
    return build_give(&b, 0, t.dtype == FERRY_BOOL && order ? reduce_bool(&b, x, axes) : reduce(&b, x, axes));
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

/* 0, 1, .. along one axis of `rank`, broadcast over the others. */
static int iota_along(Build *b, ferry_dtype t, int64_t count, int rank, int axis)
{
    int64_t dim[MAX_RANK];
    for (int i = 0; i < rank; i++)
        dim[i] = i == axis ? count : 1;
    return build_view(b, build_iota(b, t, count), rank, dim);
}

/* The first (or last) position of the largest (or smallest) element along the axis, which stays with size 1. */
static int arg_extreme(Build *b, int x, int axis, bool largest, bool last)
{
    Tensor t = build_tensor(b, x);
    int best = build_reduce(b, largest ? FERRY_MAX : FERRY_MIN, x, 1u << axis);
    int at = build_binary(b, FERRY_EQUAL, x, best), place = iota_along(b, FERRY_I64, t.dim[axis], t.rank, axis);
    int none = build_number(b, FERRY_I64, last ? -1 : (double)t.dim[axis]);
    return build_reduce(b, last ? FERRY_MAX : FERRY_MIN, build_where(b, at, place, none), 1u << axis);
}

Status lower_arg(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    int axis, x = build_input(&b, 0);
    TRY(b.status);
    TRY(lower_axis(d, l, n, build_tensor(&b, x).rank, 0, &axis));
    bool last = node_attr_int(n, "select_last_index", 0) != 0;
    return build_give(&b, 0, arg_extreme(&b, x, axis, is(&b, "ArgMax"), last));
}

/* Softmax's kin: before opset 13 the axes from `axis` on are one. Gives x as [outer, size, inner] with axis 1. */
static Status as_rows(Build *b, int *x)
{
    const ModelNode *n = b->n;
    bool flat = b->l->model->opset < 13;
    Tensor t = build_tensor(b, *x);
    int axis = t.rank;
    TRY(b->status);
    if (t.rank > 0 && !(flat && node_attr_int(n, "axis", 1) == t.rank))
        TRY(lower_axis(b->d, b->l, n, t.rank, flat ? 1 : -1, &axis));
    int64_t dim[3] = {dims_count(axis, t.dim), flat ? dims_count(t.rank - axis, t.dim + axis) : 1, 1};
    if (!flat && axis < t.rank) {
        dim[1] = t.dim[axis];
        dim[2] = dims_count(t.rank - axis - 1, t.dim + axis + 1);
    }
    *x = build_view(b, *x, 3, dim);
    return b->status;
}

Status lower_log_softmax(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0);
    TRY(as_rows(&b, &x));
    return build_give(&b, 0, build_binary(&b, FERRY_SUB, x, build_log_sum_exp(&b, x, 1u << 1)));
}

/* 1 at the first maximum, 0 elsewhere. */
Status lower_hardmax(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0);
    TRY(as_rows(&b, &x));
    Tensor t = build_tensor(&b, x);
    int place = iota_along(&b, FERRY_I64, t.dim[1], 3, 1);
    int at = build_binary(&b, FERRY_EQUAL, place, arg_extreme(&b, x, 1, true, false));
    return build_give(&b, 0, build_cast(&b, t.dtype, at));
}

/* Sums of the last 1, 2, 4, .. elements: each round adds what lies that far before. Of any type, and O(n log n). */
Status lower_cumsum(Diag *d, Lowering *l, ModelNode *n)
{
    const int64_t *given;
    int count;
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    TRY(lower_ints(d, l, n, 1, &given, &count));
    if (count != 1 || given[0] < -t.rank || given[0] >= t.rank)
        return node_fail(d, l->model, n, "its axis is outside of rank %d", t.rank);
    int axis = (int)(given[0] < 0 ? given[0] + t.rank : given[0]);
    bool exclusive = node_attr_int(n, "exclusive", 0) != 0, reverse = node_attr_int(n, "reverse", 0) != 0;
    int64_t size = t.dim[axis];
    if (exclusive && size > 0) { /* shifted by one: a zero comes in */
        int64_t edge[MAX_RANK], none[MAX_RANK] = {0};
        for (int i = 0; i < t.rank; i++)
            edge[i] = i == axis ? 1 : t.dim[i];
        int zero = build_copy(&b, build_number(&b, t.dtype, 0), t.rank, edge, 0, none);
        int rest = size == 1 ? -1 : build_slice(&b, x, axis, reverse, size - 1 + reverse);
        x = rest < 0 ? zero : reverse ? build_concat(&b, rest, zero, axis) : build_concat(&b, zero, rest, axis);
    }
    for (int64_t step = 1; step < size; step *= 2) {
        int low = build_slice(&b, x, axis, 0, size - step), high = build_slice(&b, x, axis, step, size);
        int sum = build_binary(&b, FERRY_ADD, low, high);
        x = reverse ? build_concat(&b, sum, build_slice(&b, x, axis, size - step, size), axis)
                    : build_concat(&b, build_slice(&b, x, axis, 0, step), sum, axis);
    }
    return build_give(&b, 0, x);
}

/* values[0] where not, values[1] where the new axis's position is the index; negative ones count from the end. */
Status lower_one_hot(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    const Value *y = &l->model->value.at[n->out[0]];
    int ids = build_cast(&b, FERRY_I64, build_input(&b, 0)), values = build_input(&b, 2), axis;
    TRY(b.status);
    TRY(lower_axis(d, l, n, y->rank, -1, &axis));
    Tensor t = build_tensor(&b, ids);
    int64_t dim[MAX_RANK], depth = y->dim[axis];
    for (int i = 0; i < y->rank; i++)
        dim[i] = i == axis ? 1 : t.dim[i - (i > axis)];
    ids = build_view(&b, ids, y->rank, dim);
    int wrapped = build_with(&b, FERRY_ADD, ids, (double)depth);
    ids = build_where(&b, build_with(&b, FERRY_LESS, ids, 0), wrapped, ids);
    int at = build_binary(&b, FERRY_EQUAL, ids, iota_along(&b, FERRY_I64, depth, y->rank, axis));
    return build_give(&b, 0, build_where(&b, at, build_slice(&b, values, 0, 1, 2), build_slice(&b, values, 0, 0, 1)));
}

/* Zero outside the triangle that the diagonal k bounds: position of the column less that of the row. */
Status lower_trilu(Diag *d, Lowering *l, ModelNode *n)
{
    const int64_t *given;
    int count;
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    TRY(lower_ints(d, l, n, 1, &given, &count));
    int64_t rows = t.dim[t.rank - 2], columns = t.dim[t.rank - 1], k = count > 0 ? given[0] : 0;
    k = k > columns ? columns : k < -rows ? -rows : k; /* beyond the matrix it makes no difference */
    bool upper = node_attr_int(n, "upper", 1) != 0;
    uint8_t *keep = ARENA_NEW(l->graph->arena, uint8_t, rows * columns);
    if (keep == NULL)
        return diag_oom(d);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            keep[i * columns + j] = upper ? j - i >= k : j - i <= k;
    int mask;
    TRY(graph_add_tensor(d, l->graph, graph_made_up_name(l->graph, "triangle"), TENSOR_CONST, FERRY_BOOL, 2,
                         (int64_t[]){rows, columns}, &mask));
    l->graph->tensor.at[mask].data = keep;
    return build_give(&b, 0, build_where(&b, mask, x, build_number(&b, t.dtype, 0)));
}
