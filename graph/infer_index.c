/* infer_index.c - shape rules of scattering and of the largest elements. */
#include <string.h>

#include "graph/ops.h"

Status scatter_fn(Diag *d, const Model *m, const ModelNode *n, ferry_fn *out)
{
    static const struct {
        const char *name;
        ferry_fn fn;
    } how[] = {{"none", FERRY_FN_NONE}, {"add", FERRY_ADD}, {"mul", FERRY_MUL}, {"max", FERRY_MAX}, {"min", FERRY_MIN}};
    const Attr *reduction;
    *out = FERRY_FN_NONE;
    TRY(attr_get(d, m, n, "reduction", ATTR_STRING, &reduction));
    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++)
        if (reduction == NULL || strcmp(reduction->s, how[i].name) == 0) {
            *out = how[i].fn;
            return ST_OK;
        }
    return node_fail(d, m, n, "reduction \"%.40s\" is unknown", reduction->s);
}

Status infer_scatter_elements(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    ferry_fn how;
    TRY(node_arity(d, m, n, 3, 3));
    const Value *x = node_in(m, n, 0), *index = node_in(m, n, 1), *update = node_in(m, n, 2);
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", 0), x->rank, &axis));
    TRY(scatter_fn(d, m, n, &how));
    if (index->dtype != FERRY_I64 && index->dtype != FERRY_I32)
        return node_fail(d, m, n, "its indices \"%s\" are of type %s", index->name, ferry_dtype_name(index->dtype));
    bool fits = index->rank == x->rank && update->rank == x->rank && update->dtype == x->dtype;
    for (int k = 0; k < x->rank && fits; k++)
        fits = index->dim[k] == update->dim[k] && (k == axis || index->dim[k] <= x->dim[k]);
    if (!fits)
        return node_fail(d, m, n, "data, indices and updates do not fit each other");
    return set_out(d, m, n, 0, x->dtype, x->rank, x->dim);
}

/* k is an attribute before opset 10. */
Status infer_top_k(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    Ints k;
    int64_t dim[MAX_RANK], count = node_attr_int(n, "k", -1);
    TRY(node_arity(d, m, n, m->opset < 10 ? 1 : 2, 2));
    const Value *x = node_in(m, n, 0);
    if (x->dtype == FERRY_BOOL)
        return node_fail(d, m, n, "its input is of type bool");
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", -1), x->rank, &axis));
    TRY(known_ints(d, m, n, 1, "number K", &k));
    if (k.count == 1)
        count = k.at[0];
    if (count < 0 || count > x->dim[axis])
        return node_fail(d, m, n, "asks for %lld of the %lld elements of axis %d", (long long)count,
                         (long long)x->dim[axis], axis);
    for (int i = 0; i < x->rank; i++)
        dim[i] = i == axis ? count : x->dim[i];
    TRY(set_out(d, m, n, 0, x->dtype, x->rank, dim));
    return set_out(d, m, n, 1, FERRY_I64, x->rank, dim);
}
