/* lower_shape.c - data movement: strided copies, and views where the bytes stay the same. */
#include "graph/lower.h"
#include "graph/ops_lower.h"

Status lower_same_bytes(Diag *d, Lowering *l, ModelNode *n)
{
    int x;
    TRY(lower_input(d, l, n, 0, &x));
    return lower_view(d, l, n, 0, x);
}

/* Output i = the elements of x at x_offset + index . x_stride, for all indices of the output's shape. */
static Status emit_gathering_copy(Diag *d, Lowering *l, const ModelNode *n, int i, int x, int rank, const int64_t *dim,
                                  int64_t x_offset, const int64_t *x_stride)
{
    int y;
    int64_t y_stride[MAX_RANK];
    strides_dense(rank, dim, y_stride);
    ferry_kernel call = call_copy(l->graph->tensor.at[x].dtype, rank, dim, 0, y_stride, x_offset, x_stride, 1);
    if (call_is_identity_copy(&call) && dims_count(rank, dim) == l->graph->tensor.at[x].count)
        return lower_view(d, l, n, i, x);
    TRY(lower_output(d, l, n, i, &y));
    return lower_emit(d, l, n, &call, (int[]){y, x});
}

Status lower_transpose(Diag *d, Lowering *l, ModelNode *n)
{
    int x;
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = l->graph->tensor.at[x];
    const Attr *perm = node_attr(n, "perm");
    if (perm != NULL && perm->count != t.rank)
        return node_fail(d, l->model, n, "perm has %d entries, the input has rank %d", perm->count, t.rank);
    int64_t own[MAX_RANK], dim[MAX_RANK], stride[MAX_RANK];
    strides_dense(t.rank, t.dim, own);
    for (int i = 0; i < t.rank; i++) {
        int64_t from = perm != NULL ? perm->ints[i] : t.rank - 1 - i;
        if (from < 0 || from >= t.rank)
            return node_fail(d, l->model, n, "perm has the entry %lld", (long long)from);
        dim[i] = t.dim[from];
        stride[i] = own[from];
    }
    return emit_gathering_copy(d, l, n, 0, x, t.rank, dim, 0, stride);
}

Status lower_split(Diag *d, Lowering *l, ModelNode *n)
{
    int x, axis;
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = l->graph->tensor.at[x];
    TRY(lower_axis(d, l, n, t.rank, 0, &axis));
    int64_t stride[MAX_RANK], begin = 0;
    strides_dense(t.rank, t.dim, stride);
    for (int i = 0; i < n->n_out; i++) {
        if (n->out[i] < 0)
            return node_fail(d, l->model, n, "output %d is omitted", i);
        const Value *v = &l->model->value.at[n->out[i]];
        int64_t size = v->dim[axis];
        if (size > t.dim[axis] - begin)
            return node_fail(d, l->model, n, "the parts are larger than the input");
        if (lower_is_used(l, n, i))
            TRY(emit_gathering_copy(d, l, n, i, x, v->rank, v->dim, begin * stride[axis], stride));
        begin += size;
    }
    return ST_OK;
}

Status lower_slice(Diag *d, Lowering *l, ModelNode *n)
{
    int x, n_start, n_end, n_axis, n_step;
    const int64_t *start, *end, *axis, *step;
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = l->graph->tensor.at[x];
    const Value *out = &l->model->value.at[n->out[0]];
    TRY(lower_ints_attr(d, l, n, "starts", 1, &start, &n_start));
    TRY(lower_ints_attr(d, l, n, "ends", 2, &end, &n_end));
    TRY(lower_ints_attr(d, l, n, "axes", 3, &axis, &n_axis));
    TRY(lower_ints(d, l, n, 4, &step, &n_step));
    if (n_end != n_start || (axis != NULL && n_axis != n_start) || (step != NULL && n_step != n_start))
        return node_fail(d, l->model, n, "starts, ends, axes and steps have different lengths");
    int64_t stride[MAX_RANK], offset = 0;
    strides_dense(t.rank, t.dim, stride);
    for (int i = 0; i < n_start; i++) {
        int64_t k = axis != NULL ? axis[i] : i, by = step != NULL ? step[i] : 1;
        k = k < 0 ? k + t.rank : k;
        if (k < 0 || k >= t.rank)
            return node_fail(d, l->model, n, "axis %lld is outside of rank %d", (long long)k, t.rank);
        int64_t size = t.dim[k], from = start[i], top = by < 0 ? size - 1 : size, last;
        from = from < 0 ? (from < -size ? 0 : from + size) : from > top ? top : from;
        if (by == 0 || (out->dim[k] > 0 && (mul_overflows_i64(out->dim[k] - 1, by, &last) ||
                                            add_overflows_i64(last, from, &last) || last < 0 || last >= size)))
            return node_fail(d, l->model, n, "it reads outside of axis %lld", (long long)k);
        offset += from * stride[k];
        stride[k] *= by;
    }
    return emit_gathering_copy(d, l, n, 0, x, t.rank, out->dim, offset, stride);
}

Status lower_concat(Diag *d, Lowering *l, ModelNode *n)
{
    int y = -1, axis;
    const Value *out = &l->model->value.at[n->out[0]];
    int64_t y_stride[MAX_RANK], begin = 0;
    TRY(lower_axis(d, l, n, out->rank, 0, &axis));
    strides_dense(out->rank, out->dim, y_stride);
    for (int i = 0; i < n->n_in; i++) {
        int x;
        TRY(lower_input(d, l, n, i, &x));
        const Tensor t = l->graph->tensor.at[x];
        if (t.rank != out->rank || t.dim[axis] > out->dim[axis] - begin)
            return node_fail(d, l->model, n, "input %d does not fit the output", i);
        if (t.count == 0 && value_count(out) > 0)
            continue;
        if (t.count == value_count(out))
            return lower_view(d, l, n, 0, x);
        if (y < 0)
            TRY(lower_output(d, l, n, 0, &y));
        int64_t x_stride[MAX_RANK];
        strides_dense(t.rank, t.dim, x_stride);
        ferry_kernel call = call_copy(t.dtype, t.rank, t.dim, begin * y_stride[axis], y_stride, 0, x_stride, 1);
        TRY(lower_emit(d, l, n, &call, (int[]){y, x}));
        begin += t.dim[axis];
    }
    return ST_OK;
}

Status lower_expand(Diag *d, Lowering *l, ModelNode *n)
{
    int x;
    int64_t stride[MAX_RANK];
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = l->graph->tensor.at[x];
    const Value *out = &l->model->value.at[n->out[0]];
    strides_broadcast(out->rank, t.rank, t.dim, stride);
    return emit_gathering_copy(d, l, n, 0, x, out->rank, out->dim, 0, stride);
}

/* Every repeated dimension becomes two: the repetition, with stride 0, and the dimension itself. */
Status lower_tile(Diag *d, Lowering *l, ModelNode *n)
{
    int x, y, rank = 0;
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = l->graph->tensor.at[x];
    const Value *out = &l->model->value.at[n->out[0]];
    int64_t own[MAX_RANK], own_y[MAX_RANK], dim[MAX_RANK], x_stride[MAX_RANK], y_stride[MAX_RANK];
    strides_dense(t.rank, t.dim, own);
    strides_dense(t.rank, out->dim, own_y);
    for (int i = 0; i < t.rank; i++) {
        int64_t repeats = t.dim[i] > 0 ? out->dim[i] / t.dim[i] : 1; /* 0: nothing is left */
        if (rank + (repeats > 1) + 1 > MAX_RANK)
            return node_fail(d, l->model, n, "tiling this many dimensions is unsupported");
        if (repeats > 1) {
            dim[rank] = repeats;
            x_stride[rank] = 0;
            y_stride[rank++] = t.dim[i] * own_y[i];
        }
        dim[rank] = repeats > 0 ? t.dim[i] : 0;
        x_stride[rank] = own[i];
        y_stride[rank++] = own_y[i];
    }
    if (t.count == value_count(out))
        return lower_view(d, l, n, 0, x);
    TRY(lower_output(d, l, n, 0, &y));
    ferry_kernel call = call_copy(t.dtype, rank, dim, 0, y_stride, 0, x_stride, 1);
    return lower_emit(d, l, n, &call, (int[]){y, x});
}

/* ---- Gather ------------------------------------------------------------------------------------------------------ */

/* Known indices that form a progression, as one index or a range does: start and step. */
static bool is_progression(const Value *ids, int64_t size, int64_t *start, int64_t *step)
{
    int64_t count = value_count(ids), previous = 0;
    if (ids->data == NULL || count < 1)
        return false;
    *start = *step = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t id = ids->dtype == FERRY_I64 ? ((const int64_t *)ids->data)[i] : ((const int32_t *)ids->data)[i];
        id = id < 0 ? id + size : id;
        if (id < 0 || id >= size)
            return false;
        if (i == 0)
            *start = id;
        else if (i == 1)
            *step = id - previous;
        else if (id - previous != *step)
            return false;
        previous = id;
    }
    return *step >= 0;
}

/* Gather along an axis that is not the first: the axis is brought to the front, gathered as rows, and brought back. */
static Status gather_inner_axis(Diag *d, Lowering *l, ModelNode *n, int x, int ids, int axis)
{
    Graph *g = l->graph;
    const Tensor t = g->tensor.at[x];
    int64_t outer = dims_count(axis, t.dim), size = t.dim[axis];
    int64_t inner = dims_count(t.rank - axis - 1, t.dim + axis + 1), m = g->tensor.at[ids].count;
    int front, rows, y;
    /* front[size, outer, inner] */
    const int64_t front_dim[] = {size, outer, inner}, front_from[] = {inner, size * inner, 1};
    TRY(lower_temp(d, l, n, t.dtype, 3, front_dim, &front));
    int64_t dense[3];
    strides_dense(3, front_dim, dense);
    ferry_kernel to_front = call_copy(t.dtype, 3, front_dim, 0, dense, 0, front_from, 1);
    TRY(lower_emit(d, l, n, &to_front, (int[]){front, x}));
    /* rows[m, outer, inner] */
    const int64_t rows_dim[] = {m, outer, inner};
    TRY(lower_temp(d, l, n, t.dtype, 3, rows_dim, &rows));
    ferry_kernel gather = call_new(FERRY_OP_EMBEDDING, t.dtype);
    gather.dtype2 = g->tensor.at[ids].dtype;
    gather.m = m;
    gather.k = size;
    gather.n = outer * inner;
    TRY(lower_emit(d, l, n, &gather, (int[]){rows, front, ids}));
    /* y[outer, m, inner] */
    const int64_t y_dim[] = {outer, m, inner}, y_from[] = {inner, outer * inner, 1};
    strides_dense(3, y_dim, dense);
    ferry_kernel back = call_copy(t.dtype, 3, y_dim, 0, dense, 0, y_from, 1);
    TRY(lower_output(d, l, n, 0, &y));
    return lower_emit(d, l, n, &back, (int[]){y, rows});
}

Status lower_gather(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int x, ids, axis, y;
    int64_t start, step;
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = g->tensor.at[x];
    if (t.rank < 1)
        return node_fail(d, l->model, n, "its data is a scalar");
    TRY(lower_axis(d, l, n, t.rank, 0, &axis));
    const Value *index = &l->model->value.at[n->in[1]];
    if (index->dtype != FERRY_I64 && index->dtype != FERRY_I32)
        return node_fail(d, l->model, n, "its indices are neither int32 nor int64");
    /* Rows of a parameter are read by an embedding, whatever the indices: that is what a reader expects of a table. */
    bool table = graph_is_param(g, x) && axis == 0;
    if (!table && is_progression(index, t.dim[axis], &start, &step)) {
        int64_t own[MAX_RANK];
        strides_dense(t.rank, t.dim, own);
        const int64_t dim[] = {dims_count(axis, t.dim), value_count(index),
                               dims_count(t.rank - axis - 1, t.dim + axis + 1)};
        const int64_t stride[] = {own[axis] * t.dim[axis], step * own[axis], 1};
        return emit_gathering_copy(d, l, n, 0, x, 3, dim, start * own[axis], stride);
    }
    TRY(lower_input(d, l, n, 1, &ids));
    if (dims_count(axis, t.dim) != 1)
        return gather_inner_axis(d, l, n, x, ids, axis);
    TRY(lower_output(d, l, n, 0, &y));
    ferry_kernel call = call_new(FERRY_OP_EMBEDDING, t.dtype);
    call.dtype2 = g->tensor.at[ids].dtype;
    call.m = g->tensor.at[ids].count;
    call.k = t.dim[axis];
    call.n = dims_count(t.rank - axis - 1, t.dim + axis + 1);
    return lower_emit(d, l, n, &call, (int[]){y, x, ids});
}
