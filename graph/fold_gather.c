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

/* out[at + j] takes updates[from + j] in, for j in [0, count). */
static void merge(ferry_fn fn, ferry_dtype t, void *out, int64_t at, const void *updates, int64_t from, int64_t count)
{
    for (int64_t j = 0; j < count; j++) {
        if (dtype_is_float(t)) {
            double a = num_real(t, out, at + j), b = num_real(t, updates, from + j);
            num_put_real(t, out, at + j,
                         fn == FERRY_ADD   ? a + b
                         : fn == FERRY_MUL ? a * b
                         : fn == FERRY_MAX ? (a > b ? a : b)
                         : fn == FERRY_MIN ? (a < b ? a : b)
                                           : b);
            continue;
        }
        int64_t a = num_int(t, out, at + j), b = num_int(t, updates, from + j);
        bool less = t == FERRY_U64 ? (uint64_t)a < (uint64_t)b : a < b;
        num_put_int(t, out, at + j,
                    fn == FERRY_ADD   ? (int64_t)((uint64_t)a + (uint64_t)b)
                    : fn == FERRY_MUL ? (int64_t)((uint64_t)a * (uint64_t)b)
                    : fn == FERRY_MAX ? (less ? b : a)
                    : fn == FERRY_MIN ? (less ? a : b)
                                      : b);
    }
}

Status fold_scatter_elements(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    ferry_fn fn;
    const Value *x = node_in(m, n, 0), *index = node_in(m, n, 1), *update = node_in(m, n, 2), *y = node_out(m, n, 0);
    const void *data = y ? fold_dense(d, m, x) : NULL, *updates = fold_dense(d, m, update);
    void *out = data && updates ? fold_output_dense(d, m, n, 0) : NULL;
    if (!out)
        return d->status;
    TRY(scatter_fn(d, m, n, &fn));
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", 0), x->rank, &axis));
    memcpy(out, data, (size_t)value_count(x) * ferry_dtype_bytes(x->dtype));
    Walk w = {.rank = x->rank, .arrays = 2};
    memcpy(w.dim, index->dim, sizeof w.dim);
    fold_strides(index, x->rank, w.stride[0]);
    for (int64_t k = x->rank - 1, step = 1; k >= 0; step *= x->dim[k--])
        w.stride[1][k] = step;
    int64_t stride = w.stride[1][axis], from = 0;
    w.stride[1][axis] = 0;
    while (walk_next(&w))
        for (int64_t i = 0; i < w.row; i++) {
            int64_t at;
            TRY(resolve(d, m, n, num_int(index->dtype, index->data, w.offset[0] + i * w.step[0]), x->dim[axis], &at));
            merge(fn, x->dtype, out, w.offset[1] + i * w.step[1] + at * stride, updates, from++, 1);
        }
    return ST_OK;
}

Status fold_scatter_nd(Diag *d, Model *m, ModelNode *n)
{
    ferry_fn fn;
    TRY(scatter_fn(d, m, n, &fn));
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
    memcpy(out, data, (size_t)value_count(x) * ferry_dtype_bytes(x->dtype));
    for (int64_t i = 0, count = dims_count(index->rank - 1, index->dim); i < count; i++) {
        int64_t at;
        TRY(tuple_offset(d, m, n, x, stride, 0, index->dtype, indices, i * tuple, tuple, &at));
        merge(fn, x->dtype, out, at, updates, i * slice, slice);
    }
    return ST_OK;
}
