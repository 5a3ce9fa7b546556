/* infer_window.c - shape rules of convolutions, poolings, normalizations over channels, resizing and padding. */
#include <string.h>

#include "graph/window.h"

static Status set_spatial(Diag *d, Model *m, ModelNode *n, int i, ferry_dtype t, int64_t channels, int rank,
                          const int64_t *size)
{
    int64_t dim[MAX_RANK] = {node_in(m, n, 0)->dim[0], channels};
    for (int k = 0; k < rank; k++)
        dim[2 + k] = size[k];
    return set_out(d, m, n, i, t, 2 + rank, dim);
}

Status infer_conv(Diag *d, Model *m, ModelNode *n)
{
    ferry_window w;
    TRY(node_arity(d, m, n, 2, 3));
    TRY(window_of_conv(d, m, n, &w));
    return set_spatial(d, m, n, 0, node_in(m, n, 0)->dtype, node_in(m, n, 1)->dim[0], w.rank, w.out);
}

Status infer_conv_transpose(Diag *d, Model *m, ModelNode *n)
{
    ferry_window w;
    TRY(node_arity(d, m, n, 2, 3));
    TRY(window_of_conv_transpose(d, m, n, &w));
    return set_spatial(d, m, n, 0, node_in(m, n, 0)->dtype, node_in(m, n, 1)->dim[1] * w.groups, w.rank, w.in);
}

/* MaxPool, whose second output is the places of the first one's elements; AveragePool; LpPool. */
Status infer_pool(Diag *d, Model *m, ModelNode *n)
{
    ferry_window w;
    TRY(node_arity(d, m, n, 1, 1));
    const Value *x = node_in(m, n, 0);
    bool max = strcmp(n->op, "MaxPool") == 0;
    if (!dtype_is_float(x->dtype) && !(max && (x->dtype == FERRY_U8 || x->dtype == FERRY_I8)))
        return node_fail(d, m, n, "its input is of type %s", ferry_dtype_name(x->dtype));
    TRY(window_of_pool(d, m, n, &w));
    int64_t channels = x->dim[1];
    TRY(set_spatial(d, m, n, 0, x->dtype, channels, w.rank, w.out));
    return max ? set_spatial(d, m, n, 1, FERRY_I64, channels, w.rank, w.out) : ST_OK;
}

Status infer_global_pool(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, 1));
    const Value *x = node_in(m, n, 0);
    if (!dtype_is_float(x->dtype) || x->rank < 2)
        return node_fail(d, m, n, "its input is of type %s with %d dimensions; floating numbers [N, C, ...] are needed",
                         ferry_dtype_name(x->dtype), x->rank);
    int64_t dim[MAX_RANK];
    for (int k = 0; k < x->rank; k++)
        dim[k] = k < 2 ? x->dim[k] : 1;
    return set_out(d, m, n, 0, x->dtype, x->rank, dim);
}

/* Inputs from..to-1 are vectors of this many numbers of x's type. */
static Status check_vectors(Diag *d, const Model *m, const ModelNode *n, int from, int to, int64_t count)
{
    const Value *x = node_in(m, n, 0);
    if (!dtype_is_float(x->dtype) || x->rank < 2)
        return node_fail(d, m, n, "its input is of type %s with %d dimensions; floating numbers [N, C, ...] are needed",
                         ferry_dtype_name(x->dtype), x->rank);
    for (int i = from; i < to; i++) {
        const Value *v = node_in(m, n, i);
        if (!dtype_is_float(v->dtype) || v->rank != 1 || v->dim[0] != count)
            return node_fail(d, m, n, "input %d (\"%s\") is not a vector of %lld floating numbers", i, v->name,
                             (long long)count);
    }
    return ST_OK;
}

/* Outputs beyond the first exist in training mode only: the running statistics, and before opset 14 those of the batch. With
 * spatial = 0 (before opset 9) there are statistics of each activation, else of each channel. */
Status infer_batch_normalization(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 5, 5));
    const Value *x = node_in(m, n, 0);
    bool each = m->opset < 9 && node_attr_int(n, "spatial", 1) == 0;
    TRY(check_vectors(d, m, n, 1, each ? 1 : 5, x->rank > 1 ? x->dim[1] : 1));
    for (int i = 1; i < 5 && each; i++) {
        const Value *v = node_in(m, n, i);
        if (!dtype_is_float(v->dtype) || v->rank != x->rank - 1 ||
            memcmp(v->dim, x->dim + 1, (size_t)v->rank * sizeof *v->dim) != 0)
            return node_fail(d, m, n, "input %d (\"%s\") does not have the shape of one element of the batch", i, v->name);
    }
    TRY(set_out(d, m, n, 0, x->dtype, x->rank, x->dim));
    for (int i = 1; i < n->n_out; i++)
        TRY(set_out(d, m, n, i, node_in(m, n, 3)->dtype, node_in(m, n, 3)->rank, node_in(m, n, 3)->dim));
    return ST_OK;
}

Status infer_instance_normalization(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 3, 3));
    const Value *x = node_in(m, n, 0);
    TRY(check_vectors(d, m, n, 1, 3, x->rank > 1 ? x->dim[1] : 1));
    return set_out(d, m, n, 0, x->dtype, x->rank, x->dim);
}

/* scale and bias: one number a group before opset 21, one a channel from there on. */
Status infer_group_normalization(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 3, 3));
    const Value *x = node_in(m, n, 0);
    int64_t groups = node_attr_int(n, "num_groups", 0), channels = x->rank > 1 ? x->dim[1] : 1;
    if (groups < 1 || channels % groups != 0)
        return node_fail(d, m, n, "%lld channels do not divide into %lld groups", (long long)channels,
                         (long long)groups);
    TRY(check_vectors(d, m, n, 1, 3, m->opset < 21 ? groups : channels));
    return set_out(d, m, n, 0, x->dtype, x->rank, x->dim);
}

Status infer_lrn(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, 1));
    const Value *x = node_in(m, n, 0);
    TRY(check_vectors(d, m, n, 1, 1, 0));
    int64_t size = node_attr_int(n, "size", 0);
    if (size < 1 || size > INT32_MAX)
        return node_fail(d, m, n, "its size is %lld", (long long)size);
    return set_out(d, m, n, 0, x->dtype, x->rank, x->dim);
}

Status infer_resize(Diag *d, Model *m, ModelNode *n)
{
    ResizeSpec s;
    TRY(node_arity(d, m, n, 1, 4));
    TRY(resize_read(d, m, n, &s));
    return set_out(d, m, n, 0, node_in(m, n, 0)->dtype, s.rank, s.out);
}

Status infer_pad(Diag *d, Model *m, ModelNode *n)
{
    PadSpec p;
    int64_t dim[MAX_RANK];
    TRY(node_arity(d, m, n, 1, 4));
    TRY(pad_read(d, m, n, &p));
    const Value *x = node_in(m, n, 0);
    for (int k = 0; k < p.rank; k++) {
        if (add_overflows_i64(x->dim[k], p.begin[k], &dim[k]) || add_overflows_i64(dim[k], p.end[k], &dim[k]) ||
            dim[k] < 0)
            return node_fail(d, m, n, "its pads %lld and %lld do not fit axis %d", (long long)p.begin[k],
                             (long long)p.end[k], k);
        int64_t cut = (p.begin[k] < 0 ? -p.begin[k] : 0) + (p.end[k] < 0 ? -p.end[k] : 0);
        if (p.mode != PAD_CONSTANT && x->dim[k] <= cut && dim[k] > 0)
            return node_fail(d, m, n, "nothing is left of axis %d that it could be padded with", k);
    }
    return set_out(d, m, n, 0, x->dtype, p.rank, dim);
}

Status infer_depth_space(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, 1));
    const Value *x = node_in(m, n, 0);
    int64_t b = node_attr_int(n, "blocksize", 0);
    bool to_space = strcmp(n->op, "DepthToSpace") == 0;
    if (x->rank != 4 || b < 1 || b > INT32_MAX)
        return node_fail(d, m, n, "its input has %d dimensions and blocksize is %lld; [N, C, H, W] is needed", x->rank,
                         (long long)b);
    int64_t dim[4] = {x->dim[0], x->dim[1], x->dim[2], x->dim[3]};
    if (to_space ? dim[1] % (b * b) != 0 : dim[2] % b != 0 || dim[3] % b != 0)
        return node_fail(d, m, n, "its shape does not divide into blocks of %lld", (long long)b);
    if (to_space) {
        dim[1] /= b * b;
        if (mul_overflows_i64(dim[2], b, &dim[2]) || mul_overflows_i64(dim[3], b, &dim[3]))
            return node_fail(d, m, n, "its output is too large");
    } else {
        dim[2] /= b;
        dim[3] /= b;
        if (mul_overflows_i64(dim[1], b * b, &dim[1]))
            return node_fail(d, m, n, "its output is too large");
    }
    return set_out(d, m, n, 0, x->dtype, 4, dim);
}
