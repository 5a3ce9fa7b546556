/* fold_move.c - evaluators that move elements. They copy bytes, so the type only gives an element's size. */
#include <string.h>

#include "graph/fold.h"

/* Copies an index space between two arrays of elements of `each` bytes. Offsets and strides in elements. */
static void copy_block(int rank, const int64_t *dim, size_t each, uint8_t *to, const int64_t *to_stride,
                       const uint8_t *from, const int64_t *from_stride)
{
    Walk w = {.rank = rank, .arrays = 2};
    for (int k = 0; k < rank; k++) {
        w.dim[k] = dim[k];
        w.stride[0][k] = to_stride[k];
        w.stride[1][k] = from_stride[k];
    }
    while (walk_next(&w)) {
        uint8_t *y = to + w.offset[0] * (int64_t)each;
        const uint8_t *x = from + w.offset[1] * (int64_t)each;
        if (w.step[0] == 1 && w.step[1] == 1) {
            memcpy(y, x, (size_t)w.row * each);
            continue;
        }
        for (int64_t i = 0; i < w.row; i++)
            memcpy(y + i * w.step[0] * (int64_t)each, x + i * w.step[1] * (int64_t)each, each);
    }
}

/* Row-major strides of a dense array; unlike fold_strides also where the extent is 1. */
static void dense_strides(int rank, const int64_t *dim, int64_t *stride)
{
    int64_t step = 1;
    for (int k = rank - 1; k >= 0; k--) {
        stride[k] = step;
        step *= dim[k];
    }
}

/* Along its axis everything is copied; along another one the output repeats where all inputs do. */
Status fold_concat(Diag *d, Model *m, ModelNode *n)
{
    int axis, rank = node_in(m, n, 0)->rank;
    const Value *y = node_out(m, n, 0);
    if (!y)
        return ST_OK;
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", 0), rank, &axis));
    int64_t dim[MAX_RANK], to[MAX_RANK], from[MAX_RANK], offset = 0;
    for (int k = 0; k < rank; k++) {
        bool repeats = k != axis;
        for (int i = 0; i < n->n_in; i++)
            repeats = repeats && node_in(m, n, i)->data_dim[k] == 1;
        dim[k] = repeats ? 1 : y->dim[k];
    }
    uint8_t *out = fold_output(d, m, n, 0, dim);
    if (!out)
        return d->status;
    dense_strides(rank, dim, to);
    for (int i = 0; i < n->n_in; i++) {
        const Value *x = node_in(m, n, i);
        size_t each = ferry_dtype_bytes(x->dtype);
        fold_strides(x, rank, from);
        dim[axis] = x->dim[axis];
        copy_block(rank, dim, each, out + (size_t)(offset * to[axis]) * each, to, x->data, from);
        offset += x->dim[axis];
    }
    return ST_OK;
}

/* Elements start, start + step, .. of each axis; an axis along which the input repeats still does. */
static Status fold_part(Diag *d, Model *m, ModelNode *n, int i, const int64_t *start, const int64_t *step)
{
    const Value *x = node_in(m, n, 0), *y = node_out(m, n, i);
    int64_t dim[MAX_RANK], to[MAX_RANK], from[MAX_RANK], offset = 0;
    if (!y)
        return ST_OK;
    bool all = true;
    fold_strides(x, x->rank, from);
    for (int k = 0; k < x->rank; k++) {
        all = all && y->dim[k] == x->dim[k] && start[k] == 0;
        dim[k] = x->data_dim[k] == 1 && y->dim[k] ? 1 : y->dim[k];
        offset += start[k] * from[k];
        from[k] *= dim[k] > 1 ? step[k] : 0;
    }
    if (all) { /* [:, :, :, :length] of a mask that has just this length */
        fold_share(m, n, i, x, x->data_dim);
        return ST_OK;
    }
    uint8_t *out = fold_output(d, m, n, i, dim);
    if (!out)
        return d->status;
    size_t each = ferry_dtype_bytes(x->dtype);
    dense_strides(x->rank, dim, to);
    if (dims_count(x->rank, dim))
        copy_block(x->rank, dim, each, out, to, (const uint8_t *)x->data + offset * (int64_t)each, from);
    return ST_OK;
}

Status fold_slice(Diag *d, Model *m, ModelNode *n)
{
    SliceSpec s;
    TRY(slice_read(d, m, n, &s));
    return fold_part(d, m, n, 0, s.start, s.step);
}

Status fold_split(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    int64_t begin[MAX_RANK] = {0}, step[MAX_RANK];
    int64_t *start = ARENA_NEW(m->arena, int64_t, n->n_out + 1);
    if (!start)
        return diag_oom(d);
    TRY(split_read(d, m, n, &axis, start));
    for (int k = 0; k < MAX_RANK; k++)
        step[k] = 1;
    for (int i = 0; i < n->n_out; i++) {
        begin[axis] = start[i];
        TRY(fold_part(d, m, n, i, begin, step));
    }
    return ST_OK;
}

Status fold_transpose(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *y = node_out(m, n, 0);
    const Attr *perm = node_attr(n, "perm");
    int64_t dim[MAX_RANK], stride[MAX_RANK], to[MAX_RANK], from[MAX_RANK];
    fold_strides(x, x->rank, stride);
    for (int k = 0; k < x->rank; k++) {
        int64_t axis = perm ? perm->ints[k] : x->rank - 1 - k;
        dim[k] = x->data_dim[axis];
        from[k] = stride[axis];
    }
    uint8_t *out = y ? fold_output(d, m, n, 0, dim) : NULL;
    if (!out)
        return d->status;
    dense_strides(x->rank, dim, to);
    copy_block(x->rank, dim, ferry_dtype_bytes(x->dtype), out, to, x->data, from);
    return ST_OK;
}

/* Nothing is copied: the new axes repeat. */
Status fold_expand(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *y = node_out(m, n, 0);
    int64_t dim[MAX_RANK];
    (void)d;
    if (!y)
        return ST_OK;
    for (int k = 0; k < y->rank; k++) {
        int axis = k - (y->rank - x->rank);
        dim[k] = y->dim[k] == 0 ? 0 : axis < 0 ? 1 : x->data_dim[axis];
    }
    fold_share(m, n, 0, x, dim);
    return ST_OK;
}

/* The repeated part of an axis as an axis of its own: [2, 3] tiled [5, 4] is [5, 2, 4, 3] with strides 0 for 5 and 4.
 */
Status fold_tile(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *y = node_out(m, n, 0);
    int64_t dim[MAX_RANK], to[MAX_RANK], from[MAX_RANK], repeats[MAX_RANK];
    int rank = x->rank;
    if (!y)
        return ST_OK;
    for (int k = 0; k < rank; k++) {
        dim[k] = y->dim[k] && x->data_dim[k] == 1 ? 1 : y->dim[k];
        repeats[k] = x->data_dim[k] ? dim[k] / x->data_dim[k] : 0;
    }
    uint8_t *out = fold_output(d, m, n, 0, dim);
    if (!out)
        return d->status;
    size_t each = ferry_dtype_bytes(x->dtype);
    dense_strides(rank, dim, to);
    fold_strides(x, rank, from);
    /* copies of the whole input, one for each index of `repeats` */
    Walk w = {.rank = rank, .arrays = 1};
    for (int k = 0; k < rank; k++) {
        w.dim[k] = repeats[k];
        w.stride[0][k] = to[k] * x->data_dim[k];
    }
    while (walk_next(&w))
        for (int64_t i = 0; i < w.row; i++)
            copy_block(rank, x->data_dim, each, out + (w.offset[0] + i * w.step[0]) * (int64_t)each, to, x->data, from);
    return ST_OK;
}

/* Keeps the triangle at and above (upper) or below the k-th diagonal of the last two axes. */
Status fold_trilu(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *shift = node_in(m, n, 1), *y = node_out(m, n, 0);
    bool upper = node_attr_int(n, "upper", 1) != 0;
    if (shift && (shift->dtype != FERRY_I64 || value_count(shift) != 1))
        return node_fail(d, m, n, "k is not one i64");
    if (!y)
        return ST_OK;
    int64_t k = shift ? num_int(FERRY_I64, shift->data, 0) : 0, dim[MAX_RANK], to[MAX_RANK];
    for (int i = 0; i < x->rank; i++)
        dim[i] = i < x->rank - 2 ? x->data_dim[i] : x->dim[i];
    uint8_t *out = fold_output(d, m, n, 0, dim);
    if (!out)
        return d->status;
    size_t each = ferry_dtype_bytes(x->dtype);
    int64_t from[MAX_RANK], rows = x->dim[x->rank - 2], columns = x->dim[x->rank - 1];
    dense_strides(x->rank, dim, to);
    fold_strides(x, x->rank, from);
    copy_block(x->rank, dim, each, out, to, x->data, from);
    for (int64_t i = 0, count = dims_count(x->rank, dim); i < count; i++) {
        int64_t column = i % columns, row = i / columns % rows;
        /* column - row is small, so that the comparison cannot overflow for any k */
        if (upper ? column - row < k : column - row > k)
            memset(out + (size_t)i * each, 0, each);
    }
    return ST_OK;
}
