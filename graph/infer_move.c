/* infer_move.c - shape rules of operators that move elements. */
#include <string.h>

#include "graph/fold.h"

/* 0 copies the input's dimension (or means 0 with allowzero), one -1 takes what is left. */
Status infer_reshape(Diag *d, Model *m, ModelNode *n)
{
    Ints shape;
    TRY(node_arity(d, m, n, 2, 2));
    TRY(known_ints(d, m, n, 1, "shape", &shape));
    const Value *x = node_in(m, n, 0);
    int64_t dim[MAX_RANK], known = 1, total = value_count(x);
    int open = -1;
    bool allowzero = node_attr_int(n, "allowzero", 0) != 0;
    if (shape.count > MAX_RANK)
        return node_fail(d, m, n, "to %d dimensions; at most %d are supported", shape.count, MAX_RANK);
    for (int k = 0; k < shape.count; k++) {
        dim[k] = shape.at[k];
        if (dim[k] == 0 && !allowzero) {
            if (k >= x->rank)
                return node_fail(d, m, n, "dimension %d is 0 (copy), but the input has %d dimensions", k, x->rank);
            dim[k] = x->dim[k];
        }
        if (dim[k] == -1) {
            if (open >= 0)
                return node_fail(d, m, n, "two dimensions are -1");
            open = k;
        } else if (dim[k] < 0) {
            return node_fail(d, m, n, "dimension %d is %lld", k, (long long)dim[k]);
        } else if (mul_overflows_i64(known, dim[k], &known)) {
            return node_fail(d, m, n, "the new shape has too many elements");
        }
    }
    if (open >= 0) {
        if (known == 0)
            return node_fail(d, m, n, "a dimension of -1 beside one of 0 can be anything");
        dim[open] = total / known;
        known *= dim[open];
    }
    if (known != total)
        return node_fail(d, m, n, "%lld elements do not fit the new shape", (long long)total);
    return set_out(d, m, n, 0, x->dtype, shape.count, dim);
}

Status infer_flatten(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 1, 1));
    const Value *x = node_in(m, n, 0);
    int64_t axis = node_attr_int(n, "axis", 1), dim[2] = {1, 1};
    if (axis < -x->rank || axis > x->rank)
        return node_fail(d, m, n, "axis %lld is outside of %d dimensions", (long long)axis, x->rank);
    axis = axis < 0 ? axis + x->rank : axis;
    for (int k = 0; k < x->rank; k++)
        dim[k >= axis] *= x->dim[k];
    return set_out(d, m, n, 0, x->dtype, 2, dim);
}

Status infer_squeeze(Diag *d, Model *m, ModelNode *n)
{
    uint32_t axes;
    int count, rank = 0;
    int64_t dim[MAX_RANK];
    TRY(node_arity(d, m, n, 1, 2));
    const Value *x = node_in(m, n, 0);
    TRY(known_axes(d, m, n, 1, x->rank, &axes, &count));
    for (int k = 0; k < x->rank; k++) {
        bool drop = count < 0 ? x->dim[k] == 1 : axes >> k & 1;
        if (drop && x->dim[k] != 1)
            return node_fail(d, m, n, "axis %d is %lld, only axes of 1 can be removed", k, (long long)x->dim[k]);
        if (!drop)
            dim[rank++] = x->dim[k];
    }
    return set_out(d, m, n, 0, x->dtype, rank, dim);
}

Status infer_unsqueeze(Diag *d, Model *m, ModelNode *n)
{
    Ints given;
    uint32_t axes;
    int count, from = 0;
    int64_t dim[MAX_RANK];
    TRY(node_arity(d, m, n, 1, 2));
    const Value *x = node_in(m, n, 0);
    TRY(attr_or_input_ints(d, m, n, "axes", 1, &given));
    if (given.count < 0)
        return node_fail(d, m, n, "its axes are missing");
    int rank = x->rank + given.count;
    if (given.count > MAX_RANK || rank > MAX_RANK)
        return node_fail(d, m, n, "to %d dimensions; at most %d are supported", rank, MAX_RANK);
    TRY(known_axes(d, m, n, 1, rank, &axes, &count));
    for (int k = 0; k < rank; k++)
        dim[k] = axes >> k & 1 ? 1 : x->dim[from++];
    return set_out(d, m, n, 0, x->dtype, rank, dim);
}

Status infer_concat(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    TRY(node_arity(d, m, n, 1, n->n_in));
    const Value *x = node_in(m, n, 0);
    if (!node_attr(n, "axis"))
        return node_fail(d, m, n, "its axis is missing");
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", 0), x->rank, &axis));
    int64_t dim[MAX_RANK];
    for (int k = 0; k < x->rank; k++)
        dim[k] = x->dim[k];
    for (int i = 1; i < n->n_in; i++) {
        const Value *v = node_in(m, n, i);
        if (!v)
            return node_fail(d, m, n, "input %d is missing", i);
        if (v->dtype != x->dtype || v->rank != x->rank)
            return node_fail(d, m, n, "\"%s\" and \"%s\" differ in type or number of dimensions", x->name, v->name);
        for (int k = 0; k < x->rank; k++)
            if (k != axis && v->dim[k] != x->dim[k])
                return node_fail(d, m, n, "\"%s\" and \"%s\" differ at axis %d", x->name, v->name, k);
        if (add_overflows_i64(dim[axis], v->dim[axis], &dim[axis]))
            return node_fail(d, m, n, "has too many elements");
    }
    return set_out(d, m, n, 0, x->dtype, x->rank, dim);
}

/* Sizes as an attribute (before opset 13) or an input, or equal parts of which the last may be smaller. */
Status split_read(Diag *d, Model *m, ModelNode *n, int *axis, int64_t *start)
{
    Ints sizes;
    const Value *x = node_in(m, n, 0);
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", 0), x->rank, axis));
    TRY(attr_or_input_ints(d, m, n, "split", 1, &sizes));
    int64_t total = x->dim[*axis], parts = n->n_out, each = 0;
    if (sizes.count >= 0 && sizes.count != n->n_out)
        return node_fail(d, m, n, "has %d sizes for %d outputs", sizes.count, n->n_out);
    if (node_attr(n, "num_outputs") && node_attr_int(n, "num_outputs", 0) != parts)
        return node_fail(d, m, n, "num_outputs is not the number of outputs");
    if (sizes.count < 0) {
        if (parts == 0 || (m->opset < 18 && total % parts != 0))
            return node_fail(d, m, n, "%lld elements do not divide into %lld parts", (long long)total,
                             (long long)parts);
        each = total / parts + (total % parts != 0);
    }
    start[0] = 0;
    for (int i = 0; i < n->n_out; i++) {
        int64_t left = total - start[i], size = sizes.count >= 0 ? sizes.at[i] : each < left ? each : left;
        if (size < 0 || size > left)
            return node_fail(d, m, n, "the parts do not add up to the %lld elements of axis %d", (long long)total,
                             *axis);
        start[i + 1] = start[i] + size;
    }
    if (start[n->n_out] != total)
        return node_fail(d, m, n, "the parts do not add up to the %lld elements of axis %d", (long long)total, *axis);
    return ST_OK;
}

Status infer_split(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    TRY(node_arity(d, m, n, 1, 2));
    const Value *x = node_in(m, n, 0);
    int64_t *start = ARENA_NEW(m->arena, int64_t, n->n_out + 1), dim[MAX_RANK];
    if (!start)
        return diag_oom(d);
    TRY(split_read(d, m, n, &axis, start));
    for (int k = 0; k < x->rank; k++)
        dim[k] = x->dim[k];
    for (int i = 0; i < n->n_out; i++) {
        dim[axis] = start[i + 1] - start[i];
        TRY(set_out(d, m, n, i, x->dtype, x->rank, dim));
    }
    return ST_OK;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* starts, ends, axes as attributes (before opset 10), or with steps as inputs 1 to 4. Positions count from the end when
 * negative and are clamped; a negative step walks backwards. */
Status slice_read(Diag *d, Model *m, ModelNode *n, SliceSpec *out)
{
    Ints start, end, axes, step = {-1, NULL};
    const Value *x = node_in(m, n, 0);
    uint32_t seen = 0;
    TRY(attr_or_input_ints(d, m, n, "starts", 1, &start));
    TRY(attr_or_input_ints(d, m, n, "ends", 2, &end));
    TRY(attr_or_input_ints(d, m, n, "axes", 3, &axes));
    TRY(known_ints(d, m, n, 4, "steps", &step));
    if (start.count < 0 || end.count != start.count || start.count > x->rank ||
        (axes.count >= 0 && axes.count != start.count) || (step.count >= 0 && step.count != start.count))
        return node_fail(d, m, n, "starts, ends, axes and steps differ in length, or are more than the axes");
    for (int k = 0; k < x->rank; k++) {
        out->start[k] = 0;
        out->step[k] = 1;
        out->count[k] = x->dim[k];
    }
    for (int i = 0; i < start.count; i++) {
        int axis;
        TRY(axis_resolve(d, m, n, axes.count < 0 ? i : axes.at[i], x->rank, &axis));
        if (seen >> axis & 1)
            return node_fail(d, m, n, "axis %d is given twice", axis);
        seen |= (uint32_t)1 << axis;
        int64_t size = x->dim[axis], s = step.count < 0 ? 1 : step.at[i];
        int64_t from = start.at[i], to = end.at[i];
        if (s == 0)
            return node_fail(d, m, n, "step %d is 0", i);
        if (s < -INT64_MAX)
            s = -INT64_MAX;
        from = from < 0 ? from + size : from;
        to = to < 0 ? to + size : to;
        from = clamp(from, 0, s > 0 ? size : size - 1);
        to = clamp(to, s > 0 ? 0 : -1, size);
        int64_t distance = s > 0 ? to - from : from - to, stride = s > 0 ? s : -s;
        out->start[axis] = from;
        out->step[axis] = s;
        out->count[axis] = distance <= 0 || size == 0 ? 0 : (distance - 1) / stride + 1;
    }
    return ST_OK;
}

Status infer_slice(Diag *d, Model *m, ModelNode *n)
{
    SliceSpec s;
    TRY(node_arity(d, m, n, 1, 5));
    TRY(slice_read(d, m, n, &s));
    return set_out(d, m, n, 0, node_in(m, n, 0)->dtype, node_in(m, n, 0)->rank, s.count);
}

Status infer_transpose(Diag *d, Model *m, ModelNode *n)
{
    const Attr *perm;
    TRY(node_arity(d, m, n, 1, 1));
    TRY(attr_get(d, m, n, "perm", ATTR_INTS, &perm));
    const Value *x = node_in(m, n, 0);
    int64_t dim[MAX_RANK];
    uint32_t seen = 0;
    if (perm && perm->count != x->rank)
        return node_fail(d, m, n, "perm has %d entries for %d dimensions", perm->count, x->rank);
    for (int k = 0; k < x->rank; k++) {
        int64_t from = perm ? perm->ints[k] : x->rank - 1 - k;
        if (from < 0 || from >= x->rank || (seen >> from & 1))
            return node_fail(d, m, n, "perm is not a permutation of the axes");
        seen |= (uint32_t)1 << from;
        dim[k] = x->dim[from];
    }
    return set_out(d, m, n, 0, x->dtype, x->rank, dim);
}

/* Broadcasting in both directions: the given shape may also have 1 where the input is larger. */
Status infer_expand(Diag *d, Model *m, ModelNode *n)
{
    Ints shape;
    TRY(node_arity(d, m, n, 2, 2));
    TRY(known_ints(d, m, n, 1, "shape", &shape));
    const Value *x = node_in(m, n, 0);
    if (shape.count > MAX_RANK)
        return node_fail(d, m, n, "to %d dimensions; at most %d are supported", shape.count, MAX_RANK);
    Value to = {.name = node_in(m, n, 1)->name, .rank = shape.count};
    for (int k = 0; k < shape.count; k++) {
        to.dim[k] = shape.at[k];
        if (to.dim[k] < 0)
            return node_fail(d, m, n, "dimension %d of the shape is %lld", k, (long long)to.dim[k]);
    }
    const Value *v[2] = {x, &to};
    int64_t dim[MAX_RANK];
    int rank;
    TRY(broadcast_shapes(d, m, n, v, 2, &rank, dim));
    return set_out(d, m, n, 0, x->dtype, rank, dim);
}

Status infer_tile(Diag *d, Model *m, ModelNode *n)
{
    Ints repeats;
    TRY(node_arity(d, m, n, 2, 2));
    TRY(known_ints(d, m, n, 1, "repeats", &repeats));
    const Value *x = node_in(m, n, 0);
    int64_t dim[MAX_RANK];
    if (repeats.count != x->rank)
        return node_fail(d, m, n, "has %d repeats for %d dimensions", repeats.count, x->rank);
    for (int k = 0; k < x->rank; k++)
        if (repeats.at[k] < 0 || mul_overflows_i64(x->dim[k], repeats.at[k], &dim[k]))
            return node_fail(d, m, n, "repeats axis %d %lld times", k, (long long)repeats.at[k]);
    return set_out(d, m, n, 0, x->dtype, x->rank, dim);
}

static Status check_indices(Diag *d, const Model *m, const ModelNode *n, const Value *v)
{
    if (v->dtype != FERRY_I64 && v->dtype != FERRY_I32)
        return node_fail(d, m, n, "its indices \"%s\" are of type %s", v->name, ferry_dtype_name(v->dtype));
    return ST_OK;
}

Status infer_gather(Diag *d, Model *m, ModelNode *n)
{
    int axis, rank = 0;
    TRY(node_arity(d, m, n, 2, 2));
    const Value *x = node_in(m, n, 0), *index = node_in(m, n, 1);
    TRY(check_indices(d, m, n, index));
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", 0), x->rank, &axis));
    int64_t dim[2 * MAX_RANK];
    for (int k = 0; k < axis; k++)
        dim[rank++] = x->dim[k];
    for (int k = 0; k < index->rank; k++)
        dim[rank++] = index->dim[k];
    for (int k = axis + 1; k < x->rank; k++)
        dim[rank++] = x->dim[k];
    return set_out(d, m, n, 0, x->dtype, rank, dim);
}

Status infer_gather_elements(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    TRY(node_arity(d, m, n, 2, 2));
    const Value *x = node_in(m, n, 0), *index = node_in(m, n, 1);
    TRY(check_indices(d, m, n, index));
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", 0), x->rank, &axis));
    if (index->rank != x->rank)
        return node_fail(d, m, n, "the indices have %d dimensions, the data %d", index->rank, x->rank);
    for (int k = 0; k < x->rank; k++)
        if (k != axis && index->dim[k] > x->dim[k])
            return node_fail(d, m, n, "axis %d of the indices is larger than the data's", k);
    return set_out(d, m, n, 0, x->dtype, index->rank, index->dim);
}

/* data [b.., x.., rest..], indices [b.., i.., j]: the last axis of the indices addresses j axes of the data. */
Status infer_gather_nd(Diag *d, Model *m, ModelNode *n)
{
    int rank = 0;
    TRY(node_arity(d, m, n, 2, 2));
    const Value *x = node_in(m, n, 0), *index = node_in(m, n, 1);
    int64_t batch = node_attr_int(n, "batch_dims", 0), dim[2 * MAX_RANK];
    TRY(check_indices(d, m, n, index));
    if (x->rank < 1 || index->rank < 1 || batch < 0 || batch >= x->rank || batch >= index->rank)
        return node_fail(d, m, n, "batch_dims is %lld for data of %d and indices of %d dimensions", (long long)batch,
                         x->rank, index->rank);
    for (int k = 0; k < batch; k++)
        if (x->dim[k] != index->dim[k])
            return node_fail(d, m, n, "data and indices differ at axis %d", k);
    int64_t tuple = index->dim[index->rank - 1];
    if (tuple < 1 || tuple > x->rank - batch)
        return node_fail(d, m, n, "the indices address %lld axes of %d", (long long)tuple, x->rank);
    for (int k = 0; k < index->rank - 1; k++)
        dim[rank++] = index->dim[k];
    for (int k = (int)(batch + tuple); k < x->rank; k++)
        dim[rank++] = x->dim[k];
    return set_out(d, m, n, 0, x->dtype, rank, dim);
}

Status infer_scatter_nd(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 3, 3));
    const Value *x = node_in(m, n, 0), *index = node_in(m, n, 1), *update = node_in(m, n, 2);
    TRY(check_indices(d, m, n, index));
    ferry_fn how;
    TRY(scatter_fn(d, m, n, &how));
    int64_t tuple = index->rank ? index->dim[index->rank - 1] : 0;
    if (tuple < 1 || tuple > x->rank || update->dtype != x->dtype ||
        update->rank != index->rank - 1 + x->rank - (int)tuple)
        return node_fail(d, m, n, "data, indices and updates do not fit each other");
    for (int k = 0; k < update->rank; k++) {
        int64_t wanted = k < index->rank - 1 ? index->dim[k] : x->dim[k - (index->rank - 1) + tuple];
        if (update->dim[k] != wanted)
            return node_fail(d, m, n, "data, indices and updates do not fit each other at axis %d", k);
    }
    return set_out(d, m, n, 0, x->dtype, x->rank, x->dim);
}
