/* infer_math.c - shape rules of reductions, normalizations, products and losses. */
#include <string.h>

#include "graph/ops.h"

/* Which axes a Reduce* works on, for shape and data: `axes` as an attribute (ReduceSum before opset 13, the others
 * before 18) or as an input; none given means all of them, or none at all with noop_with_empty_axes. */
Status infer_reduce(Diag *d, Model *m, ModelNode *n)
{
    uint32_t axes;
    int count, rank = 0;
    int64_t dim[MAX_RANK];
    TRY(node_arity(d, m, n, 1, 2));
    const Value *x = node_in(m, n, 0);
    bool order = strcmp(n->op, "ReduceMax") == 0 || strcmp(n->op, "ReduceMin") == 0;
    if (x->dtype == FERRY_BOOL && !(order && m->opset >= 20))
        return node_fail(d, m, n, "its input is of type bool");
    TRY(known_axes(d, m, n, 1, x->rank, &axes, &count));
    if (count <= 0 && !node_attr_int(n, "noop_with_empty_axes", 0))
        axes = ~(uint32_t)0;
    bool keep = node_attr_int(n, "keepdims", 1) != 0;
    for (int k = 0; k < x->rank; k++)
        if (!(axes >> k & 1))
            dim[rank++] = x->dim[k];
        else if (keep)
            dim[rank++] = 1;
    return set_out(d, m, n, 0, x->dtype, rank, dim);
}

Status infer_softmax(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    TRY(node_arity(d, m, n, 1, 1));
    const Value *x = node_in(m, n, 0);
    if (!dtype_is_float(x->dtype))
        return node_fail(d, m, n, "its input is of type %s", ferry_dtype_name(x->dtype));
    /* before opset 13: axes from `axis` on are one; axis = rank makes rows of one element */
    int64_t wanted = node_attr_int(n, "axis", m->opset < 13 ? 1 : -1);
    if (x->rank > 0 && !(m->opset < 13 && wanted == x->rank))
        TRY(axis_resolve(d, m, n, wanted, x->rank, &axis));
    return set_out(d, m, n, 0, x->dtype, x->rank, x->dim);
}

/* Y, and the mean and the inverse standard deviation over the axes from `axis` on, in the type of the computation. */
Status infer_layer_normalization(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    TRY(node_arity(d, m, n, 2, 3));
    const Value *x = node_in(m, n, 0);
    if (!dtype_is_float(x->dtype))
        return node_fail(d, m, n, "its input is of type %s", ferry_dtype_name(x->dtype));
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", -1), x->rank, &axis));
    for (int i = 1; i < 3; i++) {
        const Value *v = node_in(m, n, i);
        if (!v)
            continue;
        if (v->dtype != x->dtype)
            return node_fail(d, m, n, "\"%s\" is of type %s, the input of type %s", v->name, ferry_dtype_name(v->dtype),
                             ferry_dtype_name(x->dtype));
        for (int k = 0; k < v->rank; k++) {
            int theirs = x->rank - v->rank + k;
            if (theirs < 0 || (v->dim[k] != 1 && v->dim[k] != x->dim[theirs]))
                return node_fail(d, m, n, "the shape of \"%s\" does not fit the input's", v->name);
        }
    }
    int64_t dim[MAX_RANK];
    for (int k = 0; k < x->rank; k++)
        dim[k] = k < axis ? x->dim[k] : 1;
    ferry_dtype stash = x->dtype == FERRY_F64 ? FERRY_F64 : FERRY_F32;
    TRY(set_out(d, m, n, 0, x->dtype, x->rank, x->dim));
    TRY(set_out(d, m, n, 1, stash, x->rank, dim));
    return set_out(d, m, n, 2, stash, x->rank, dim);
}

/* As numpy's matmul: a vector gets an axis of extent 1, which the result does not have; leading axes broadcast. */
Status infer_matmul(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 2, 2));
    const Value *a = node_in(m, n, 0), *b = node_in(m, n, 1);
    if (a->dtype != b->dtype || a->dtype == FERRY_BOOL)
        return node_fail(d, m, n, "its inputs are of types %s and %s", ferry_dtype_name(a->dtype),
                         ferry_dtype_name(b->dtype));
    if (a->rank == 0 || b->rank == 0)
        return node_fail(d, m, n, "one of its inputs is a scalar");
    int64_t inner_a = a->dim[a->rank - 1], inner_b = b->dim[b->rank > 1 ? b->rank - 2 : 0];
    if (inner_a != inner_b)
        return node_fail(d, m, n, "\"%s\" has %lld columns, \"%s\" has %lld rows", a->name, (long long)inner_a, b->name,
                         (long long)inner_b);
    Value batch_a = *a, batch_b = *b;
    batch_a.rank = a->rank > 2 ? a->rank - 2 : 0;
    batch_b.rank = b->rank > 2 ? b->rank - 2 : 0;
    const Value *v[2] = {&batch_a, &batch_b};
    int64_t dim[MAX_RANK + 2];
    int rank;
    TRY(broadcast_shapes(d, m, n, v, 2, &rank, dim));
    if (a->rank > 1)
        dim[rank++] = a->dim[a->rank - 2];
    if (b->rank > 1)
        dim[rank++] = b->dim[b->rank - 1];
    return set_out(d, m, n, 0, a->dtype, rank, dim);
}

Status infer_gemm(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, m->opset < 11 ? 3 : 2, 3));
    const Value *a = node_in(m, n, 0), *b = node_in(m, n, 1), *c = node_in(m, n, 2);
    if (a->rank != 2 || b->rank != 2)
        return node_fail(d, m, n, "its factors have %d and %d dimensions, not two", a->rank, b->rank);
    if (a->dtype != b->dtype || (c && c->dtype != a->dtype) || a->dtype == FERRY_BOOL)
        return node_fail(d, m, n, "its inputs are of different types, or bool");
    int ta = node_attr_int(n, "transA", 0) != 0, tb = node_attr_int(n, "transB", 0) != 0;
    int64_t dim[2] = {a->dim[ta], b->dim[!tb]};
    if (a->dim[!ta] != b->dim[tb])
        return node_fail(d, m, n, "\"%s\" has %lld columns, \"%s\" has %lld rows", a->name, (long long)a->dim[!ta],
                         b->name, (long long)b->dim[tb]);
    if (c) {
        bool ok = c->rank <= 2;
        for (int k = 0; k < c->rank && ok; k++)
            ok = c->dim[k] == 1 || c->dim[k] == dim[2 - c->rank + k];
        if (!ok)
            return node_fail(d, m, n, "the shape of \"%s\" does not broadcast to the product's", c->name);
    }
    return set_out(d, m, n, 0, a->dtype, 2, dim);
}

/* scores [N, C, d1, d2, ...], labels [N, d1, d2, ...]; the loss is a scalar unless it is not reduced. */
Status infer_cross_entropy(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 2, 3));
    const Value *x = node_in(m, n, 0), *labels = node_in(m, n, 1), *weight = node_in(m, n, 2);
    if (!dtype_is_float(x->dtype))
        return node_fail(d, m, n, "its scores are of type %s", ferry_dtype_name(x->dtype));
    if (labels->dtype != FERRY_I64 && labels->dtype != FERRY_I32)
        return node_fail(d, m, n, "its labels are of type %s, not i64 or i32", ferry_dtype_name(labels->dtype));
    bool ok = x->rank >= 2 && labels->rank == x->rank - 1;
    for (int k = 0; k < labels->rank && ok; k++)
        ok = labels->dim[k] == x->dim[k ? k + 1 : 0];
    if (!ok)
        return node_fail(d, m, n, "the shape of the labels is not the scores' without its second axis");
    if (weight && (weight->rank != 1 || weight->dim[0] != x->dim[1] || weight->dtype != x->dtype))
        return node_fail(d, m, n, "the weights are not one number of the scores' type for each class");
    const Attr *reduction;
    TRY(attr_get(d, m, n, "reduction", ATTR_STRING, &reduction));
    const char *how = reduction ? reduction->s : "mean";
    if (strcmp(how, "mean") != 0 && strcmp(how, "sum") != 0 && strcmp(how, "none") != 0)
        return node_fail(d, m, n, "reduction \"%.40s\" is unknown", how);
    bool reduced = strcmp(how, "none") != 0;
    TRY(set_out(d, m, n, 0, x->dtype, reduced ? 0 : labels->rank, labels->dim));
    if (strcmp(n->op, "SoftmaxCrossEntropyLoss") == 0) /* its second output: the logarithm of the softmax */
        return set_out(d, m, n, 1, x->dtype, x->rank, x->dim);
    return ST_OK;
}

/* Positions along one axis. */
Status infer_arg(Diag *d, Model *m, ModelNode *n)
{
    int axis, rank = 0;
    int64_t dim[MAX_RANK];
    TRY(node_arity(d, m, n, 1, 1));
    const Value *x = node_in(m, n, 0);
    if (x->dtype == FERRY_BOOL)
        return node_fail(d, m, n, "its input is of type bool");
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", 0), x->rank, &axis));
    if (x->dim[axis] == 0)
        return node_fail(d, m, n, "axis %d has no elements", axis);
    bool keep = node_attr_int(n, "keepdims", 1) != 0;
    for (int k = 0; k < x->rank; k++)
        if (k != axis || keep)
            dim[rank++] = k == axis ? 1 : x->dim[k];
    return set_out(d, m, n, 0, FERRY_I64, rank, dim);
}
