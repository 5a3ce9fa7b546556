/* infer.c - shape inference and constant folding, one pass over the nodes, and what the shape rules share.
 *
 * Exported models compute shapes, masks and position ids by integer operators from the shapes of their inputs. Once
 * those are bound all of that is known, and it must be known: the shape of a Reshape is such a value. So each node is
 * inferred, and folded at once when all that it reads is known.
 *
 * Two things are never folded: what depends on the contents of an input, and what is computed from a parameter, since
 * its gradient passes there. Which float initializers are parameters is decided by reaching an output: one whose every
 * path passes through Sin or Cos is a table of rotary frequencies. */
#include <stdlib.h>
#include <string.h>

#include "graph/fold.h"

Value *node_in(const Model *m, const ModelNode *n, int i)
{
    return i < n->n_in && n->in[i] >= 0 ? &m->value.at[n->in[i]] : NULL;
}

Value *node_out(const Model *m, const ModelNode *n, int i)
{
    return i < n->n_out && n->out[i] >= 0 ? &m->value.at[n->out[i]] : NULL;
}

bool dtype_is_float(ferry_dtype t)
{
    return t == FERRY_F32 || t == FERRY_F64 || t == FERRY_F16 || t == FERRY_BF16;
}

bool dtype_is_int(ferry_dtype t)
{
    return !dtype_is_float(t) && t != FERRY_BOOL;
}

Status node_arity(Diag *d, const Model *m, const ModelNode *n, int min, int max)
{
    int count = n->n_in;
    while (count > 0 && n->in[count - 1] < 0)
        count--;
    if (count > max)
        return node_fail(d, m, n, "has %d inputs, at most %d are known", count, max);
    for (int i = 0; i < min; i++)
        if (!node_in(m, n, i))
            return node_fail(d, m, n, "input %d is missing", i);
    return ST_OK;
}

Status set_out(Diag *d, Model *m, ModelNode *n, int i, ferry_dtype t, int rank, const int64_t *dim)
{
    Value *v = node_out(m, n, i);
    if (!v)
        return ST_OK;
    if (rank > MAX_RANK)
        return node_fail(d, m, n, "output %d has %d dimensions; at most %d are supported", i, rank, MAX_RANK);
    int64_t bytes = (int64_t)ferry_dtype_bytes(t);
    for (int k = 0; k < rank; k++) {
        if (dim[k] < 0)
            return node_fail(d, m, n, "output %d: dimension %d is %lld", i, k, (long long)dim[k]);
        /* a 0 among them does not make the others small: products of parts of the shape must be countable too */
        if (mul_overflows_i64(bytes, dim[k] ? dim[k] : 1, &bytes) || bytes > INT64_MAX / 16)
            return node_fail(d, m, n, "output %d has more bytes than can be addressed", i);
    }
    v->dtype = t;
    v->rank = rank;
    for (int k = 0; k < rank; k++)
        v->dim[k] = v->data_dim[k] = dim[k];
    return ST_OK;
}

Status axis_resolve(Diag *d, const Model *m, const ModelNode *n, int64_t axis, int rank, int *out)
{
    *out = 0;
    if (axis < -rank || axis >= rank)
        return node_fail(d, m, n, "axis %lld is outside of %d dimensions", (long long)axis, rank);
    *out = (int)(axis < 0 ? axis + rank : axis);
    return ST_OK;
}

Status attr_get(Diag *d, const Model *m, const ModelNode *n, const char *name, AttrKind kind, const Attr **out)
{
    const Attr *a = node_attr(n, name);
    *out = NULL;
    if (a && a->kind != kind)
        return node_fail(d, m, n, "attribute %s has the wrong type", name);
    *out = a;
    return ST_OK;
}

Status known_ints(Diag *d, Model *m, const ModelNode *n, int i, const char *what, Ints *out)
{
    enum { MOST = 65536 };
    Value *v = node_in(m, n, i);
    *out = (Ints){-1, NULL};
    if (!v)
        return ST_OK;
    if (v->dtype != FERRY_I64 && v->dtype != FERRY_I32)
        return node_fail(d, m, n, "its %s (input \"%s\") is of type %s, not i64", what, v->name,
                         ferry_dtype_name(v->dtype));
    if (v->rank > 1)
        return node_fail(d, m, n, "its %s (input \"%s\") has %d dimensions, not one", what, v->name, v->rank);
    if (!v->data) {
        node_fail(d, m, n,
                  "its %s (input \"%s\") is not known when compiling: it depends on the contents of the inputs", what,
                  v->name);
        return diag_hint(d, "only shapes that follow from the inputs' shapes are supported");
    }
    int64_t count = value_count(v);
    if (count > MOST)
        return node_fail(d, m, n, "its %s (input \"%s\") has %lld elements", what, v->name, (long long)count);
    out->at = ARENA_NEW(m->arena, int64_t, count);
    if (!out->at)
        return diag_oom(d);
    out->count = (int)count;
    for (int64_t k = 0; k < count; k++)
        out->at[k] = num_int(v->dtype, v->data, fold_uniform(v) ? 0 : k);
    return ST_OK;
}

Status attr_or_input_ints(Diag *d, Model *m, const ModelNode *n, const char *attr, int i, Ints *out)
{
    const Attr *a;
    *out = (Ints){-1, NULL};
    TRY(attr_get(d, m, n, attr, ATTR_INTS, &a));
    if (!a)
        return known_ints(d, m, n, i, attr, out);
    out->at = ARENA_NEW(m->arena, int64_t, a->count);
    if (!out->at)
        return diag_oom(d);
    out->count = a->count;
    for (int k = 0; k < a->count; k++)
        out->at[k] = a->ints[k];
    return ST_OK;
}

Status known_axes(Diag *d, Model *m, const ModelNode *n, int i, int rank, uint32_t *out, int *count)
{
    Ints axes;
    *out = 0;
    *count = -1;
    TRY(attr_or_input_ints(d, m, n, "axes", i, &axes));
    if (axes.count < 0)
        return ST_OK;
    for (int k = 0; k < axes.count; k++) {
        int axis;
        TRY(axis_resolve(d, m, n, axes.at[k], rank, &axis));
        if (*out >> axis & 1)
            return node_fail(d, m, n, "axis %d is given twice", axis);
        *out |= (uint32_t)1 << axis;
    }
    *count = axes.count;
    return ST_OK;
}

Status broadcast_shapes(Diag *d, const Model *m, const ModelNode *n, const Value *const *v, int count, int *rank,
                        int64_t dim[MAX_RANK])
{
    *rank = 0;
    for (int i = 0; i < count; i++)
        *rank = v[i]->rank > *rank ? v[i]->rank : *rank;
    for (int k = 0; k < *rank; k++)
        dim[k] = 1;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < v[i]->rank; k++) {
            int64_t *to = &dim[*rank - v[i]->rank + k], size = v[i]->dim[k];
            if (*to == 1)
                *to = size;
            else if (size != 1 && size != *to)
                return node_fail(d, m, n, "shapes do not broadcast: axis %d of \"%s\" is %lld, another input has %lld",
                                 k, v[i]->name, (long long)size, (long long)*to);
        }
    return ST_OK;
}

/* ---- the pass ----------------------------------------------------------------------------------- */

/* Values from which an output is reached other than through Sin and Cos. */
static bool *mark_trained(Model *m)
{
    bool *reaches = base_alloc((size_t)m->value.count * sizeof *reaches);
    if (!reaches)
        return NULL;
    for (int i = 0; i < m->n_output; i++)
        reaches[m->output[i]] = true;
    for (int i = m->node.count - 1; i >= 0; i--) {
        const ModelNode *n = &m->node.at[i];
        if (strcmp(n->op, "Sin") == 0 || strcmp(n->op, "Cos") == 0)
            continue;
        bool wanted = false;
        for (int k = 0; k < n->n_out; k++)
            wanted = wanted || (n->out[k] >= 0 && reaches[n->out[k]]);
        for (int k = 0; k < n->n_in && wanted; k++)
            if (n->in[k] >= 0)
                reaches[n->in[k]] = true;
    }
    for (int i = 0; i < m->value.count; i++) {
        const Value *v = &m->value.at[i];
        reaches[i] = reaches[i] && value_is_trainable(v);
    }
    return reaches;
}

/* A gather from equal elements needs no indices, a shape no data. */
static bool can_fold(const Model *m, const ModelNode *n, const bool *trained)
{
    if (!n->row->fold)
        return false;
    if (n->row->fold == fold_shape || n->row->fold == fold_size || n->row->fold == fold_eye_like)
        return true;
    bool gather = n->row->fold == fold_gather || n->row->fold == fold_gather_nd || n->row->fold == fold_gather_elements;
    int needed = gather && fold_uniform(&m->value.at[n->in[0]]) ? 1 : n->n_in;
    for (int i = 0; i < needed; i++)
        if (n->in[i] >= 0 && (!m->value.at[n->in[i]].data || trained[n->in[i]]))
            return false;
    return true;
}

static Status infer_node(Diag *d, Model *m, ModelNode *n, const bool *trained)
{
    bool skips;
    TRY(guard_skips(d, m, n, &skips));
    n->dead = skips;
    if (skips)
        return ST_OK;
    TRY(n->row->infer(d, m, n));
    for (int i = 0; i < n->n_out; i++) {
        const Value *v = node_out(m, n, i);
        if (v && v->rank < 0)
            return node_fail(d, m, n, "output %d is not one that is supported", i);
    }
    if (!can_fold(m, n, trained))
        return ST_OK;
    TRY(n->row->fold(d, m, n));
    n->dead = true;
    for (int i = 0; i < n->n_out; i++) {
        Value *v = node_out(m, n, i);
        if (v && v->data)
            v->kind = VALUE_CONSTANT;
        else if (v)
            n->dead = false;
    }
    return ST_OK;
}

/* Nodes from which no output is reached; used[value] afterwards: an output or read by a live node. */
static void mark_dead(Model *m, bool *used)
{
    for (int i = 0; i < m->n_output; i++)
        used[m->output[i]] = true;
    for (int i = m->node.count - 1; i >= 0; i--) {
        ModelNode *n = &m->node.at[i];
        bool wanted = false;
        for (int k = 0; k < n->n_out; k++)
            wanted = wanted || (n->out[k] >= 0 && used[n->out[k]]);
        n->dead = n->dead || !wanted;
        for (int k = 0; k < n->n_in && !n->dead; k++)
            if (n->in[k] >= 0)
                used[n->in[k]] = true;
    }
}

static bool broadcasts(const ModelNode *n)
{
    OpFunction *f = n->row->infer;
    return f == infer_arithmetic || f == infer_compare || f == infer_logic || f == infer_where || f == infer_variadic;
}

/* Clears from keep[value] the axes along which a reader needs the full extent: the reader does not broadcast, or no
 * other operand brings the extent. Bit k is axis k of the value. A reader that takes two shrinking constants could be
 * left with neither full, so others that are constants themselves do not count. */
static void needed_axes(const Model *m, uint32_t *keep)
{
    for (int i = 0; i < m->node.count; i++) {
        const ModelNode *n = &m->node.at[i];
        for (int k = 0; k < n->n_in && !n->dead; k++) {
            const Value *v = node_in(m, n, k);
            if (!v || v->kind != VALUE_CONSTANT || !v->data)
                continue;
            uint32_t brought = 0;
            for (int j = 0; j < n->n_in && broadcasts(n); j++) {
                const Value *other = node_in(m, n, j);
                if (!other || other->kind == VALUE_CONSTANT)
                    continue;
                for (int axis = 0; axis < v->rank; axis++) {
                    int theirs = other->rank - v->rank + axis;
                    if (theirs >= 0 && other->dim[theirs] == v->dim[axis])
                        brought |= (uint32_t)1 << axis;
                }
            }
            keep[n->in[k]] |= ~brought;
        }
    }
    for (int i = 0; i < m->n_output; i++)
        keep[m->output[i]] = ~(uint32_t)0;
}

/* Constants that are read get dense data, of the smaller shape where that is enough; what nothing reads keeps its data
 * when small, for listings. */
static Status finish_constants(Diag *d, Model *m, const bool *used, uint32_t *keep)
{
    enum { SMALL_BYTES = 1 << 20 };
    needed_axes(m, keep);
    for (int i = 0; i < m->value.count; i++) {
        Value *v = &m->value.at[i];
        if (v->kind != VALUE_CONSTANT || !v->data)
            continue;
        for (int k = 0; k < v->rank && used[i]; k++)
            if (v->data_dim[k] == 1 && !(keep[i] >> k & 1))
                v->dim[k] = 1;
        int64_t bytes = value_count(v) * (int64_t)ferry_dtype_bytes(v->dtype);
        const void *data = used[i] || bytes <= SMALL_BYTES ? fold_dense(d, m, v) : NULL;
        if (d->status != ST_OK)
            return d->status;
        if (used[i] && !data) {
            diag_fail(d, ST_MODEL, "%s: the constant \"%s\" takes %lld bytes; constants are limited to %lld bytes",
                      m->path, v->name, (long long)bytes, (long long)FOLD_VALUE_BYTES);
            return diag_hint(d, "use smaller dimensions, or export the model so that it is an input");
        }
        v->data = data;
        for (int k = 0; k < v->rank; k++)
            v->data_dim[k] = v->dim[k];
    }
    return ST_OK;
}

Status model_infer(Diag *d, Model *m)
{
    for (int i = 0; i < m->n_input; i++) {
        const Value *v = &m->value.at[m->input[i]];
        int64_t bytes = 16 * (int64_t)ferry_dtype_bytes(v->dtype);
        for (int k = 0; k < v->rank; k++)
            if (v->dim[k] < 0 || mul_overflows_i64(bytes, v->dim[k] ? v->dim[k] : 1, &bytes))
                return diag_fail(d, ST_MODEL, "%s: input \"%s\": its shape is not bound, or too large", m->path,
                                 v->name);
        if (v->rank < 0)
            return diag_fail(d, ST_MODEL, "%s: input \"%s\" has no shape", m->path, v->name);
    }
    bool *trained = mark_trained(m), *used = base_alloc((size_t)m->value.count * sizeof *used);
    uint32_t *keep = base_alloc((size_t)m->value.count * sizeof *keep);
    Status status = trained && used && keep ? ST_OK : diag_oom(d);
    for (int i = 0; i < m->node.count && status == ST_OK; i++)
        status = infer_node(d, m, &m->node.at[i], trained);
    if (status == ST_OK) {
        mark_dead(m, used);
        status = finish_constants(d, m, used, keep);
    }
    base_free(trained);
    base_free(used);
    base_free(keep);
    return status;
}
