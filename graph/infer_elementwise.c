/* infer_elementwise.c - shape rules of operators that work element by element. */
#include <string.h>

#include "graph/fold.h"
#include "graph/onnx_wire.h"

static Status out_like(Diag *d, Model *m, ModelNode *n, int i, ferry_dtype t)
{
    const Value *x = node_in(m, n, 0);
    return set_out(d, m, n, i, t, x->rank, x->dim);
}

/* Operators with more inputs than the first check them where they are read. */
static int most_inputs(const ModelNode *n)
{
    if (strcmp(n->op, "Clip") == 0)
        return 3;
    return strcmp(n->op, "Trilu") == 0 || strcmp(n->op, "CumSum") == 0 ? 2 : 1;
}

Status infer_same(Diag *d, Model *m, ModelNode *n)
{
    bool cumsum = strcmp(n->op, "CumSum") == 0;
    TRY(node_arity(d, m, n, cumsum ? 2 : 1, most_inputs(n)));
    const Value *x = node_in(m, n, 0);
    static const char *const any[] = {"Identity", "Trilu"};
    static const char *const numbers[] = {"Neg", "Abs", "Sign", "Relu", "Clip", "CumSum"};
    if (strcmp(n->op, "BitwiseNot") == 0) {
        if (!dtype_is_int(x->dtype))
            return node_fail(d, m, n, "its input is of type %s", ferry_dtype_name(x->dtype));
        return out_like(d, m, n, 0, x->dtype);
    }
    bool ok = dtype_is_float(x->dtype);
    for (size_t i = 0; i < sizeof any / sizeof any[0]; i++)
        ok = ok || strcmp(n->op, any[i]) == 0;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        ok = ok || (strcmp(n->op, numbers[i]) == 0 && x->dtype != FERRY_BOOL);
    if (!ok)
        return node_fail(d, m, n, "its input is of type %s", ferry_dtype_name(x->dtype));
    if (strcmp(n->op, "Trilu") == 0 && x->rank < 2)
        return node_fail(d, m, n, "its input has %d dimensions, at least two are needed", x->rank);
    for (int i = 1; i < 3 && strcmp(n->op, "Clip") == 0; i++) {
        const Value *bound = node_in(m, n, i);
        if (bound && (bound->dtype != x->dtype || value_count(bound) != 1))
            return node_fail(d, m, n, "the bound \"%s\" is not one number of the input's type", bound->name);
    }
    return out_like(d, m, n, 0, x->dtype);
}

Status infer_cast(Diag *d, Model *m, ModelNode *n)
{
    ferry_dtype to;
    const Attr *a;
    TRY(node_arity(d, m, n, 1, 1));
    TRY(attr_get(d, m, n, "to", ATTR_INT, &a));
    if (!a || !dtype_from_onnx(a->i, &to))
        return node_fail(d, m, n, "cast to %s is not supported", a ? onnx_dtype_name(a->i) : "nothing");
    return out_like(d, m, n, 0, to);
}

Status infer_not(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, 1));
    if (node_in(m, n, 0)->dtype != FERRY_BOOL)
        return node_fail(d, m, n, "its input is of type %s, not bool", ferry_dtype_name(node_in(m, n, 0)->dtype));
    return out_like(d, m, n, 0, FERRY_BOOL);
}

Status infer_is_nan(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, 1));
    if (!dtype_is_float(node_in(m, n, 0)->dtype))
        return node_fail(d, m, n, "its input is of type %s", ferry_dtype_name(node_in(m, n, 0)->dtype));
    return out_like(d, m, n, 0, FERRY_BOOL);
}

/* In training mode (from opset 12 on an input) elements are dropped at random; before, Dropout means nothing. */
Status dropout_ratio(Diag *d, const Model *m, const ModelNode *n, double *out)
{
    const Value *ratio = node_in(m, n, 1), *training = node_in(m, n, 2);
    *out = 0;
    if (!training || !training->data || !*(const uint8_t *)training->data)
        return ST_OK;
    *out = 0.5;
    if (!ratio)
        return ST_OK;
    if (!dtype_is_float(ratio->dtype) || value_count(ratio) != 1 || !ratio->data)
        return node_fail(d, m, n, "its ratio is not one float that is known when compiling");
    *out = num_real(ratio->dtype, ratio->data, 0);
    return *out >= 0 && *out < 1 ? ST_OK : node_fail(d, m, n, "its ratio is %g, not from 0 to below 1", *out);
}

Status infer_dropout(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, 3));
    const Value *x = node_in(m, n, 0), *training = node_in(m, n, 2);
    if (!dtype_is_float(x->dtype))
        return node_fail(d, m, n, "its input is of type %s", ferry_dtype_name(x->dtype));
    if (training) {
        if (training->dtype != FERRY_BOOL || value_count(training) != 1)
            return node_fail(d, m, n, "training_mode is not one bool");
        if (!training->data)
            return node_fail(d, m, n, "training_mode is not known when compiling");
    }
    double ratio;
    TRY(dropout_ratio(d, m, n, &ratio));
    TRY(out_like(d, m, n, 0, x->dtype));
    return out_like(d, m, n, 1, FERRY_BOOL);
}

static Status infer_broadcast(Diag *d, Model *m, ModelNode *n, int first, int count, ferry_dtype t)
{
    const Value *v[64];
    int64_t dim[MAX_RANK];
    int rank;
    if (count > 64)
        return node_fail(d, m, n, "has %d inputs; at most 64 are supported", count);
    for (int i = 0; i < count; i++) {
        v[i] = node_in(m, n, i);
        if (!v[i])
            return node_fail(d, m, n, "input %d is missing", i);
        if (i > first && v[i]->dtype != v[first]->dtype)
            return node_fail(d, m, n, "its inputs are of types %s and %s", ferry_dtype_name(v[first]->dtype),
                             ferry_dtype_name(v[i]->dtype));
    }
    TRY(broadcast_shapes(d, m, n, v, count, &rank, dim));
    return set_out(d, m, n, 0, t, rank, dim);
}

Status infer_arithmetic(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 2, 2));
    ferry_dtype t = node_in(m, n, 0)->dtype;
    if (t == FERRY_BOOL)
        return node_fail(d, m, n, "its inputs are of type bool");
    if (strcmp(n->op, "Mod") == 0 && dtype_is_float(t) && !node_attr_int(n, "fmod", 0))
        return node_fail(d, m, n, "of floats needs the attribute fmod = 1");
    return infer_broadcast(d, m, n, 0, 2, t);
}

/* The exponent may be of another type than the base, which gives the result's. */
Status infer_pow(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 2, 2));
    ferry_dtype t = node_in(m, n, 0)->dtype;
    if (t == FERRY_BOOL || node_in(m, n, 1)->dtype == FERRY_BOOL)
        return node_fail(d, m, n, "one of its inputs is of type bool");
    return infer_broadcast(d, m, n, 1, 2, t);
}

Status infer_variadic(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, n->n_in));
    ferry_dtype t = node_in(m, n, 0)->dtype;
    if (t == FERRY_BOOL)
        return node_fail(d, m, n, "its inputs are of type bool");
    return infer_broadcast(d, m, n, 0, n->n_in, t);
}

Status infer_compare(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 2, 2));
    if (node_in(m, n, 0)->dtype == FERRY_BOOL && strcmp(n->op, "Equal") != 0)
        return node_fail(d, m, n, "its inputs are of type bool");
    return infer_broadcast(d, m, n, 0, 2, FERRY_BOOL);
}

Status infer_logic(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 2, 2));
    if (node_in(m, n, 0)->dtype != FERRY_BOOL)
        return node_fail(d, m, n, "its inputs are of type %s, not bool", ferry_dtype_name(node_in(m, n, 0)->dtype));
    return infer_broadcast(d, m, n, 0, 2, FERRY_BOOL);
}

Status infer_where(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 3, 3));
    if (node_in(m, n, 0)->dtype != FERRY_BOOL)
        return node_fail(d, m, n, "its condition is of type %s, not bool", ferry_dtype_name(node_in(m, n, 0)->dtype));
    return infer_broadcast(d, m, n, 1, 3, node_in(m, n, 1)->dtype);
}

/* The type of the second input, whose shape and values do not count. */
Status infer_cast_like(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 2, 2));
    return out_like(d, m, n, 0, node_in(m, n, 1)->dtype);
}

/* The slope is broadcast to the input, not the other way round. */
Status infer_prelu(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 2, 2));
    const Value *x = node_in(m, n, 0), *slope = node_in(m, n, 1);
    bool ok = dtype_is_float(x->dtype) && slope->dtype == x->dtype && slope->rank <= x->rank;
    for (int k = 0; ok && k < slope->rank; k++)
        ok = slope->dim[k] == 1 || slope->dim[k] == x->dim[x->rank - slope->rank + k];
    if (!ok)
        return node_fail(d, m, n, "the slope \"%s\" does not broadcast to its input", slope->name);
    return out_like(d, m, n, 0, x->dtype);
}

/* BitShift and Bitwise*: whole numbers of one type. */
Status infer_bits(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 2, 2));
    ferry_dtype t = node_in(m, n, 0)->dtype;
    if (!dtype_is_int(t))
        return node_fail(d, m, n, "its inputs are of type %s, not whole numbers", ferry_dtype_name(t));
    const Attr *direction;
    TRY(attr_get(d, m, n, "direction", ATTR_STRING, &direction));
    bool known = direction && (strcmp(direction->s, "LEFT") == 0 || strcmp(direction->s, "RIGHT") == 0);
    if (strcmp(n->op, "BitShift") == 0 && !known)
        return node_fail(d, m, n, "its direction is neither LEFT nor RIGHT");
    return infer_broadcast(d, m, n, 0, 2, t);
}
