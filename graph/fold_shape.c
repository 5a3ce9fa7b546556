/* fold_shape.c - evaluators that make data from shapes and attributes, or keep it under another shape. */
#include <string.h>

#include "graph/fold.h"

Status fold_constant(Diag *d, Model *m, ModelNode *n)
{
    const Attr *a = &n->attr[0];
    if (a->kind == ATTR_TENSOR) {
        fold_share(m, n, 0, &a->tensor, a->tensor.dim);
        return ST_OK;
    }
    Value *v = node_out(m, n, 0);
    void *out = fold_output_dense(d, m, n, 0);
    if (!out)
        return d->status;
    if (a->kind == ATTR_INT || a->kind == ATTR_FLOAT)
        v->dtype == FERRY_I64 ? num_put_int(v->dtype, out, 0, a->i) : num_put_real(v->dtype, out, 0, a->f);
    for (int i = 0; i < a->count; i++)
        a->kind == ATTR_INTS ? num_put_int(v->dtype, out, i, a->ints[i]) : num_put_real(v->dtype, out, i, a->floats[i]);
    return ST_OK;
}

Status fold_constant_of_shape(Diag *d, Model *m, ModelNode *n)
{
    static const float zero = 0;
    const Attr *a = node_attr(n, "value");
    Value from = {.data = &zero};
    if (a)
        from.data = a->tensor.data;
    return fold_fill(d, m, n, 0, &from);
}

Status fold_shape(Diag *d, Model *m, ModelNode *n)
{
    int start, end;
    int64_t *out = fold_output_dense(d, m, n, 0);
    if (!out)
        return d->status;
    shape_range(m, n, &start, &end);
    for (int i = start; i < end; i++)
        out[i - start] = node_in(m, n, 0)->dim[i];
    return ST_OK;
}

Status fold_size(Diag *d, Model *m, ModelNode *n)
{
    int64_t *out = fold_output_dense(d, m, n, 0);
    if (out)
        *out = value_count(node_in(m, n, 0));
    return d->status;
}

Status fold_range(Diag *d, Model *m, ModelNode *n)
{
    int64_t count;
    ferry_dtype t = node_in(m, n, 0)->dtype;
    const void *start = node_in(m, n, 0)->data, *delta = node_in(m, n, 2)->data;
    TRY(range_count(d, m, n, &count));
    void *out = fold_output_dense(d, m, n, 0);
    if (!out)
        return d->status;
    for (int64_t i = 0; i < count; i++)
        if (dtype_is_float(t))
            num_put_real(t, out, i, num_real(t, start, 0) + (double)i * num_real(t, delta, 0));
        else /* in unsigned arithmetic, which may wrap */
            num_put_int(t, out, i,
                        (int64_t)((uint64_t)num_int(t, start, 0) + (uint64_t)i * (uint64_t)num_int(t, delta, 0)));
    return ST_OK;
}

/* Where the new shape only adds or drops axes of extent 1, the other axes keep what repeats. */
static bool axes_correspond(const Value *from, const Value *to, int64_t data_dim[MAX_RANK])
{
    int k = 0;
    for (int i = 0; i < to->rank; i++) {
        data_dim[i] = to->dim[i];
        if (to->dim[i] == 1)
            continue;
        while (k < from->rank && from->dim[k] == 1)
            k++;
        if (k == from->rank || from->dim[k] != to->dim[i])
            return false;
        data_dim[i] = from->data_dim[k++];
    }
    while (k < from->rank && from->dim[k] == 1)
        k++;
    return k == from->rank;
}

/* Identity, Reshape, Flatten, Squeeze, Unsqueeze: the same elements in the same order. */
Status fold_copy(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *y = node_out(m, n, 0);
    int64_t data_dim[MAX_RANK];
    if (!y)
        return ST_OK;
    if (fold_uniform(x)) {
        for (int k = 0; k < y->rank; k++)
            data_dim[k] = 1;
        fold_share(m, n, 0, x, data_dim);
    } else if (axes_correspond(x, y, data_dim)) {
        fold_share(m, n, 0, x, data_dim);
    } else {
        Value dense = *x;
        dense.data = fold_dense(d, m, x);
        if (dense.data)
            fold_share(m, n, 0, &dense, y->dim);
    }
    return d->status;
}

/* Without training the identity, and a mask of what was kept: everything. */
Status fold_dropout(Diag *d, Model *m, ModelNode *n)
{
    static const uint8_t yes = 1;
    const Value *x = node_in(m, n, 0);
    Value kept = {.data = &yes};
    double ratio;
    TRY(dropout_ratio(d, m, n, &ratio));
    if (ratio > 0)
        return ST_OK;
    fold_share(m, n, 0, x, x->data_dim);
    return fold_fill(d, m, n, 1, &kept);
}

/* 1 on the k-th diagonal. */
Status fold_eye_like(Diag *d, Model *m, ModelNode *n)
{
    Value *y = node_out(m, n, 0);
    int64_t k = node_attr_int(n, "k", 0);
    void *out = fold_output_dense(d, m, n, 0);
    for (int64_t i = 0; out && i < value_count(y); i++) /* by the difference: no k can overflow it */
        num_put_int(y->dtype, out, i, i % y->dim[1] - i / y->dim[1] == k);
    return d->status;
}

Status fold_non_zero(Diag *d, Model *m, ModelNode *n)
{
    const Value *x = node_in(m, n, 0), *y = node_out(m, n, 0);
    const void *data = y ? fold_dense(d, m, x) : NULL;
    int64_t *out = data ? fold_output_dense(d, m, n, 0) : NULL;
    int64_t place = 0, count = value_count(x);
    for (int64_t i = 0; out && i < count; i++) {
        if (num_real(x->dtype, data, i) == 0)
            continue;
        int64_t rest = i;
        for (int k = x->rank - 1; k >= 0; k--) {
            out[k * y->dim[1] + place] = rest % x->dim[k];
            rest /= x->dim[k];
        }
        if (x->rank == 0)
            out[place] = 0;
        place++;
    }
    return d->status;
}
