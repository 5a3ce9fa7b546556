/* pad.c - what a Pad says: attributes before opset 11, inputs from there on. */
#include "graph/window.h"

#include <string.h>

#include "graph/fold.h"

static Status read_mode(Diag *d, const Model *m, const ModelNode *n, PadMode *out)
{
    static const char *const names[] = {"constant", "reflect", "edge", "wrap"};
    const Attr *a;
    *out = PAD_CONSTANT;
    TRY(attr_get(d, m, n, "mode", ATTR_STRING, &a));
    if (a == NULL)
        return ST_OK;
    for (int i = 0; i < 4; i++)
        if (strcmp(a->s, names[i]) == 0) {
            *out = (PadMode)i;
            return ST_OK;
        }
    return node_fail(d, m, n, "mode \"%.40s\" is unknown", a->s);
}

static Status need_known(Diag *d, const Model *m, const ModelNode *n, const Value *v, const char *what)
{
    if (v->data != NULL)
        return ST_OK;
    node_fail(d, m, n, "its %s (input \"%s\") is not known when compiling: it depends on the contents of the inputs",
              what, v->name);
    return diag_hint(d, "only padding that follows from the inputs' shapes is supported");
}

/* Numbers of an integer vector. */
static Status need_ints(Diag *d, const Model *m, const ModelNode *n, const Value *v, const char *what)
{
    if ((v->dtype != FERRY_I64 && v->dtype != FERRY_I32) || v->rank != 1)
        return node_fail(d, m, n, "its %s (input \"%s\") are not a list of integers", what, v->name);
    return need_known(d, m, n, v, what);
}

static int64_t int_at(const Value *v, int64_t i)
{
    return num_int(v->dtype, v->data, fold_uniform(v) ? 0 : i);
}

Status pad_read(Diag *d, const Model *m, const ModelNode *n, PadSpec *out)
{
    const Value *x = node_in(m, n, 0), *pads = node_in(m, n, 1), *value = node_in(m, n, 2), *axes = node_in(m, n, 3);
    const Attr *attr = NULL;
    *out = (PadSpec){.rank = x->rank};
    TRY(read_mode(d, m, n, &out->mode));
    if (m->opset < 11) {
        TRY(attr_get(d, m, n, "pads", ATTR_INTS, &attr));
        if (attr == NULL)
            return node_fail(d, m, n, "attribute pads is missing");
        out->value = node_attr_float(n, "value", 0);
        value = axes = NULL;
    } else if (pads == NULL) {
        return node_fail(d, m, n, "its pads are missing");
    } else {
        TRY(need_ints(d, m, n, pads, "pads"));
    }
    if (value != NULL && out->mode == PAD_CONSTANT && value_count(value) > 0) {
        if (value_count(value) != 1 || value->dtype != x->dtype)
            return node_fail(d, m, n, "its value \"%s\" is not one number of the input's type", value->name);
        TRY(need_known(d, m, n, value, "value"));
        out->value = num_real(value->dtype, value->data, 0);
    }
    int64_t count = x->rank, given = attr != NULL ? attr->count : value_count(pads);
    uint32_t seen = 0;
    if (axes != NULL) {
        TRY(need_ints(d, m, n, axes, "axes"));
        count = value_count(axes);
    }
    if (count > x->rank || given != 2 * count)
        return node_fail(d, m, n, "it has %lld pads for %lld axes", (long long)given, (long long)count);
    for (int i = 0; i < count; i++) {
        int axis = i;
        if (axes != NULL)
            TRY(axis_resolve(d, m, n, int_at(axes, i), x->rank, &axis));
        if (seen >> axis & 1)
            return node_fail(d, m, n, "axis %d is given twice", axis);
        seen |= 1u << axis;
        out->begin[axis] = attr != NULL ? attr->ints[i] : int_at(pads, i);
        out->end[axis] = attr != NULL ? attr->ints[count + i] : int_at(pads, count + i);
        const int64_t most = INT64_C(1) << 40;
        if (out->begin[axis] > most || out->begin[axis] < -most || out->end[axis] > most || out->end[axis] < -most)
            return node_fail(d, m, n, "its pads %lld and %lld of axis %d are no paddings", (long long)out->begin[axis],
                             (long long)out->end[axis], axis);
    }
    return ST_OK;
}
