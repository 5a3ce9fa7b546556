/* infer_shape.c - shape rules of operators that make constants, or a shape out of a value. */
#include <math.h>
#include <string.h>

#include "graph/fold.h"
#include "graph/onnx_wire.h"

Status infer_constant(Diag *d, Model *m, ModelNode *n)
{
    int64_t none[MAX_RANK] = {0};
    TRY(node_arity(d, m, n, 0, 0));
    if (n->n_attr != 1)
        return node_fail(d, m, n, "has %d attributes instead of one value", n->n_attr);
    const Attr *a = &n->attr[0];
    int64_t count = a->count;
    if (strcmp(a->name, "value") == 0 && a->kind == ATTR_TENSOR)
        return set_out(d, m, n, 0, a->tensor.dtype, a->tensor.rank, a->tensor.dim);
    if (strcmp(a->name, "value_int") == 0 && a->kind == ATTR_INT)
        return set_out(d, m, n, 0, FERRY_I64, 0, none);
    if (strcmp(a->name, "value_ints") == 0 && a->kind == ATTR_INTS)
        return set_out(d, m, n, 0, FERRY_I64, 1, &count);
    if (strcmp(a->name, "value_float") == 0 && a->kind == ATTR_FLOAT)
        return set_out(d, m, n, 0, FERRY_F32, 0, none);
    if (strcmp(a->name, "value_floats") == 0 && a->kind == ATTR_FLOATS)
        return set_out(d, m, n, 0, FERRY_F32, 1, &count);
    return node_fail(d, m, n, "a constant in the form %s is not supported", a->name);
}

Status infer_constant_of_shape(Diag *d, Model *m, ModelNode *n)
{
    Ints shape;
    const Attr *value;
    TRY(node_arity(d, m, n, 1, 1));
    TRY(known_ints(d, m, n, 0, "shape", &shape));
    TRY(attr_get(d, m, n, "value", ATTR_TENSOR, &value));
    if (value && value_count(&value->tensor) != 1)
        return node_fail(d, m, n, "its value has %lld elements instead of one", (long long)value_count(&value->tensor));
    return set_out(d, m, n, 0, value ? value->tensor.dtype : FERRY_F32, shape.count, shape.at);
}

/* The axes [start, end) that Shape returns: negative ones count from the end, and all are clamped. */
static int shape_bound(int64_t i, int rank)
{
    i = i < 0 ? i + rank : i;
    return (int)(i < 0 ? 0 : i > rank ? rank : i);
}

void shape_range(const Model *m, const ModelNode *n, int *start, int *end)
{
    int rank = node_in(m, n, 0)->rank;
    *start = shape_bound(node_attr_int(n, "start", 0), rank);
    *end = shape_bound(node_attr_int(n, "end", rank), rank);
    if (*end < *start)
        *end = *start;
}

Status infer_shape(Diag *d, Model *m, ModelNode *n)
{
    int start, end;
    TRY(node_arity(d, m, n, 1, 1));
    shape_range(m, n, &start, &end);
    int64_t count = end - start;
    return set_out(d, m, n, 0, FERRY_I64, 1, &count);
}

Status infer_size(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, 1));
    return set_out(d, m, n, 0, FERRY_I64, 0, NULL);
}

Status range_count(Diag *d, const Model *m, const ModelNode *n, int64_t *out)
{
    const Value *v[3];
    *out = 0;
    for (int i = 0; i < 3; i++) {
        v[i] = node_in(m, n, i);
        if (v[i]->dtype != v[0]->dtype || v[i]->dtype == FERRY_BOOL)
            return node_fail(d, m, n, "start, limit and delta are not numbers of one type");
        if (value_count(v[i]) != 1)
            return node_fail(d, m, n, "\"%s\" has more than one element", v[i]->name);
        if (!v[i]->data)
            return node_fail(d, m, n, "\"%s\" is not known when compiling: it depends on the contents of the inputs",
                             v[i]->name);
    }
    double count;
    if (dtype_is_float(v[0]->dtype)) {
        double start = num_real(v[0]->dtype, v[0]->data, 0), limit = num_real(v[0]->dtype, v[1]->data, 0);
        double delta = num_real(v[0]->dtype, v[2]->data, 0);
        if (delta == 0)
            return node_fail(d, m, n, "delta is 0");
        count = ceil((limit - start) / delta);
        if (isnan(count))
            return node_fail(d, m, n, "start, limit or delta is not a finite number");
    } else {
        int64_t start = num_int(v[0]->dtype, v[0]->data, 0), limit = num_int(v[0]->dtype, v[1]->data, 0);
        int64_t delta = num_int(v[0]->dtype, v[2]->data, 0);
        if (delta == 0)
            return node_fail(d, m, n, "delta is 0");
        /* the distance of two 64-bit numbers needs 65 bits; unsigned arithmetic has the magnitude */
        bool up = delta > 0;
        uint64_t step = up ? (uint64_t)delta : 0 - (uint64_t)delta;
        uint64_t distance = up ? (uint64_t)limit - (uint64_t)start : (uint64_t)start - (uint64_t)limit;
        bool empty = up ? limit <= start : limit >= start;
        count = empty ? 0 : (double)(distance / step + (distance % step != 0));
    }
    if (count > 1e15)
        return node_fail(d, m, n, "has %g elements", count);
    *out = count < 0 ? 0 : (int64_t)count;
    return ST_OK;
}

Status infer_range(Diag *d, Model *m, ModelNode *n)
{
    int64_t count;
    TRY(node_arity(d, m, n, 3, 3));
    TRY(range_count(d, m, n, &count));
    return set_out(d, m, n, 0, node_in(m, n, 0)->dtype, 1, &count);
}

/* The shape of the input, and its type unless `dtype` says another one. */
Status infer_eye_like(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, 1));
    const Value *x = node_in(m, n, 0);
    const Attr *a;
    ferry_dtype t = x->dtype;
    TRY(attr_get(d, m, n, "dtype", ATTR_INT, &a));
    if (a && !dtype_from_onnx(a->i, &t))
        return node_fail(d, m, n, "elements of type %s are not supported", onnx_dtype_name(a->i));
    if (x->rank != 2)
        return node_fail(d, m, n, "its input has %d dimensions, not two", x->rank);
    return set_out(d, m, n, 0, t, 2, x->dim);
}

/* One column for each element that is not 0: a shape that only data tells. */
Status infer_non_zero(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, 1));
    const Value *x = node_in(m, n, 0);
    if (!x->data)
        return node_fail(d, m, n, "\"%s\" is not known when compiling: it depends on the contents of the inputs",
                         x->name);
    const void *data = fold_dense(d, m, x);
    if (!data)
        return d->status != ST_OK ? d->status : node_fail(d, m, n, "\"%s\" is too large", x->name);
    int64_t dim[2] = {x->rank ? x->rank : 1, 0}, count = value_count(x);
    for (int64_t i = 0; i < count; i++)
        dim[1] += num_real(x->dtype, data, i) != 0;
    return set_out(d, m, n, 0, FERRY_I64, 2, dim);
}

/* A new axis of size depth; the type is that of the values [off, on]. */
Status infer_one_hot(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    int64_t dim[MAX_RANK + 1];
    TRY(node_arity(d, m, n, 3, 3));
    const Value *ids = node_in(m, n, 0), *depth = node_in(m, n, 1), *values = node_in(m, n, 2);
    if (!depth->data || value_count(depth) != 1 || depth->dtype == FERRY_BOOL)
        return node_fail(d, m, n, "its depth is not one number that is known when compiling");
    double size = num_real(depth->dtype, depth->data, 0);
    if (!(size >= 1 && size <= 1e15))
        return node_fail(d, m, n, "its depth is %g", size);
    if (values->rank != 1 || values->dim[0] != 2)
        return node_fail(d, m, n, "its values are not two elements");
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", -1), ids->rank + 1, &axis));
    for (int k = 0; k <= ids->rank; k++)
        dim[k] = k == axis ? (int64_t)size : ids->dim[k - (k > axis)];
    return set_out(d, m, n, 0, values->dtype, ids->rank + 1, dim);
}
