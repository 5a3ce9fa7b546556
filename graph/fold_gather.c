/* fold_gather.c - evaluators that read or write by index. Negative indices count from the end; every index is checked.
 */
#include <string.h>

#include "graph/fold.h"

static Status resolve(Diag *d, const Model *m, const ModelNode *n, int64_t index, int64_t size, int64_t *out)
{
    *out = 0;
    if (index < -size || index >= size)
        return node_fail(d, m, n, "index %lld is outside of %lld elements", (long long)index, (long long)size);
    *out = index < 0 ? index + size : index;
    return ST_OK;
}

Status fold_gather(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    const Value *x = node_in(m, n, 0), *index = node_in(m, n, 1), *y = node_out(m, n, 0);
    if (!y || fold_uniform(x))
        return fold_fill(d, m, n, 0, x);
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", 0), x->rank, &axis));
    /* outside the axis the data's repeats stay; along it the indices' repeats do */
    int64_t dim[MAX_RANK], outer = 1, inner = 1, count = dims_count(index->rank, index->data_dim);
    for (int k = 0; k < y->rank; k++)
        dim[k] = k < axis                 ? x->data_dim[k]
                 : k < axis + index->rank ? index->data_dim[k - axis]
                                          : x->data_dim[k - index->rank + 1];
    for (int k = 0; k < x->rank; k++)
        *(k < axis ? &outer : &inner) *= k == axis ? 1 : x->data_dim[k];
    size_t row = (size_t)inner * ferry_dtype_bytes(x->dtype);
    uint8_t *out = fold_output(d, m, n, 0, dim);
    if (!out)
        return d->status;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < count; i++) {
            int64_t at;
            TRY(resolve(d, m, n, num_int(index->dtype, index->data, i), x->dim[axis], &at));
            at = x->data_dim[axis] == 1 ? 0 : at;
            memcpy(out + (size_t)(o * count + i) * row,
                   (const uint8_t *)x->data + (size_t)(o * x->data_dim[axis] + at) * row, row);
        }
    return ST_OK;
}

Status fold_gather_elements(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    const Value *x = node_in(m, n, 0), *index = node_in(m, n, 1), *y = node_out(m, n, 0);
    if (!y || fold_uniform(x))
        return fold_fill(d, m, n, 0, x);
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", 0), x->rank, &axis));
    Walk w = {.rank = x->rank, .arrays = 2};
    fold_strides(index, x->rank, w.stride[0]);
    fold_strides(x, x->rank, w.stride[1]);
    int64_t stride = w.stride[1][axis];
    w.stride[1][axis] = 0;
    memcpy(w.dim, y->dim, sizeof w.dim);
    size_t each = ferry_dtype_bytes(x->dtype);
    uint8_t *out = fold_output_dense(d, m, n, 0);
    while (out && walk_next(&w))
        for (int64_t i = 0; i < w.row; i++) {
            int64_t at;
            TRY(resolve(d, m, n, num_int(index->dtype, index->data, w.offset[0] + i * w.step[0]), x->dim[axis], &at));
            at = w.offset[1] + i * w.step[1] + at * stride;
            memcpy(out, (const uint8_t *)x->data + (size_t)at * each, each);
            out += each;
        }
    return d->status;
}

/* One index tuple: the offset of what it addresses. */
static Status tuple_offset(Diag *d, const Model *m, const ModelNode *n, const Value *x, const int64_t *stride,
                           int first, ferry_dtype t, const void *index, int64_t at, int64_t tuple, int64_t *out)
{
    *out = 0;
    for (int64_t k = 0; k < tuple; k++) {
        int64_t i;
        TRY(resolve(d, m, n, num_int(t, index, at + k), x->dim[first + k], &i));
        *out += i * stride[first + k];
    }
    return ST_OK;
}

Status fold_gather_nd(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *index = node_in(m, n, 1), *y = node_out(m, n, 0);
    if (!y || fold_uniform(x))
        return fold_fill(d, m, n, 0, x);
    int64_t batch = node_attr_int(n, "batch_dims", 0), tuple = index->dim[index->rank - 1], stride[MAX_RANK];
    const uint8_t *data = fold_dense(d, m, x);
    const void *indices = fold_dense(d, m, index);
    uint8_t *out = data && indices ? fold_output_dense(d, m, n, 0) : NULL;
    if (!out)
        return d->status;
    int64_t step = 1, slice = 1;
    for (int k = x->rank - 1; k >= 0; k--) {
        stride[k] = step;
        step *= x->dim[k];
        slice = k >= batch + tuple ? step : slice;
    }
    int64_t batches = dims_count((int)batch, index->dim),
            per = dims_count(index->rank - 1 - (int)batch, index->dim + batch);
    int64_t batch_stride = batch ? stride[batch - 1] : 0;
    size_t each = ferry_dtype_bytes(x->dtype), bytes = (size_t)slice * each;
    for (int64_t i = 0, count = batches * per; i < count; i++, out += bytes) {
        int64_t at;
        TRY(tuple_offset(d, m, n, x, stride, (int)batch, index->dtype, indices, i * tuple, tuple, &at));
        memcpy(out, data + (size_t)(i / per * batch_stride + at) * each, bytes);
    }
    return ST_OK;
}

Status fold_scatter_nd(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *index = node_in(m, n, 1), *update = node_in(m, n, 2), *y = node_out(m, n, 0);
    const void *data = y ? fold_dense(d, m, x) : NULL, *indices = fold_dense(d, m, index);
    const uint8_t *updates = fold_dense(d, m, update);
    uint8_t *out = data && indices && updates ? fold_output_dense(d, m, n, 0) : NULL;
    if (!out)
        return d->status;
    int64_t tuple = index->dim[index->rank - 1], stride[MAX_RANK], step = 1, slice = 1;
    for (int k = x->rank - 1; k >= 0; k--) {
        stride[k] = step;
        step *= x->dim[k];
        slice = k >= tuple ? step : slice;
    }
    size_t each = ferry_dtype_bytes(x->dtype), bytes = (size_t)slice * each;
    memcpy(out, data, (size_t)value_count(x) * each);
    for (int64_t i = 0, count = dims_count(index->rank - 1, index->dim); i < count; i++) {
        int64_t at;
        TRY(tuple_offset(d, m, n, x, stride, 0, index->dtype, indices, i * tuple, tuple, &at));
        memcpy(out + (size_t)at * each, updates + (size_t)i * bytes, bytes);
    }
    return ST_OK;
}
