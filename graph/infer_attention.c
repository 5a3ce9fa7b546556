/* infer_attention.c - shape rules of the operators that opset 23 has for transformers. */
#include "graph/ops.h"

static Status need_float(Diag *d, const Model *m, const ModelNode *n, const Value *x)
{
    if (!dtype_is_float(x->dtype))
        return node_fail(d, m, n, "\"%s\" is of type %s", x->name, ferry_dtype_name(x->dtype));
    return ST_OK;
}

Status infer_rms_normalization(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    TRY(node_arity(d, m, n, 2, 2));
    const Value *x = node_in(m, n, 0), *scale = node_in(m, n, 1);
    TRY(need_float(d, m, n, x));
    TRY(need_float(d, m, n, scale));
    TRY(axis_resolve(d, m, n, node_attr_int(n, "axis", -1), x->rank, &axis));
    for (int k = 0; k < scale->rank; k++) {
        int theirs = x->rank - scale->rank + k;
        if (theirs < 0 || (scale->dim[k] != 1 && scale->dim[k] != x->dim[theirs]))
            return node_fail(d, m, n, "the shape of \"%s\" does not fit the input's", scale->name);
    }
    return set_out(d, m, n, 0, scale->dtype, x->rank, x->dim);
}

/* X [batch, heads, seq, size] or [batch, seq, heads * size]; tables [positions, r / 2] with position ids [batch, seq],
 * or [batch, seq, r / 2] without. */
Status infer_rotary_embedding(Diag *d, Model *m, ModelNode *n)
{
    TRY(node_arity(d, m, n, 3, 4));
    const Value *x = node_in(m, n, 0), *ids = node_in(m, n, 3);
    TRY(need_float(d, m, n, x));
    int64_t heads = node_attr_int(n, "num_heads", 0), turned = node_attr_int(n, "rotary_embedding_dim", 0);
    if (x->rank != 3 && x->rank != 4)
        return node_fail(d, m, n, "its input has %d dimensions, not 3 or 4", x->rank);
    if (x->rank == 3 && (heads < 1 || x->dim[2] % heads != 0))
        return node_fail(d, m, n, "num_heads is %lld for %lld columns", (long long)heads, (long long)x->dim[2]);
    int64_t size = x->rank == 4 ? x->dim[3] : x->dim[2] / heads, batch = x->dim[0], seq = x->dim[x->rank == 4 ? 2 : 1];
    turned = turned == 0 ? size : turned;
    if (turned < 0 || turned > size || turned % 2 != 0)
        return node_fail(d, m, n, "%lld of %lld columns cannot be turned in pairs", (long long)turned, (long long)size);
    if (ids && ((ids->dtype != FERRY_I64 && ids->dtype != FERRY_I32) || ids->rank != 2 || ids->dim[0] != batch ||
                ids->dim[1] != seq))
        return node_fail(d, m, n, "\"%s\" is not one i64 or i32 for each position", ids->name);
    for (int i = 1; i < 3; i++) {
        const Value *t = node_in(m, n, i);
        bool fits = t->dtype == x->dtype && t->rank == (ids ? 2 : 3) && t->dim[t->rank - 1] == turned / 2;
        if (!fits || (!ids && (t->dim[0] != batch || t->dim[1] != seq)))
            return node_fail(d, m, n, "the shape or type of the table \"%s\" does not fit", t->name);
    }
    return set_out(d, m, n, 0, x->dtype, x->rank, x->dim);
}

Status attention_read(Diag *d, const Model *m, const ModelNode *n, AttentionShape *out)
{
    const Value *q = node_in(m, n, 0), *k = node_in(m, n, 1), *v = node_in(m, n, 2);
    *out = (AttentionShape){.flat = q->rank == 3};
    if ((q->rank != 3 && q->rank != 4) || k->rank != q->rank || v->rank != q->rank)
        return node_fail(d, m, n, "Q, K and V have %d, %d and %d dimensions, not 3 or 4 each", q->rank, k->rank,
                         v->rank);
    int64_t heads = node_attr_int(n, "q_num_heads", 0), kv_heads = node_attr_int(n, "kv_num_heads", 0);
    if (out->flat &&
        (heads < 1 || kv_heads < 1 || q->dim[2] % heads != 0 || k->dim[2] % kv_heads != 0 || v->dim[2] % kv_heads != 0))
        return node_fail(d, m, n, "q_num_heads %lld and kv_num_heads %lld do not divide the columns", (long long)heads,
                         (long long)kv_heads);
    out->heads = out->flat ? heads : q->dim[1];
    out->kv_heads = out->flat ? kv_heads : k->dim[1];
    out->batch = q->dim[0];
    out->rows = q->dim[out->flat ? 1 : 2];
    out->new_columns = k->dim[out->flat ? 1 : 2];
    out->size = out->flat ? q->dim[2] / heads : q->dim[3];
    out->value_size = out->flat ? v->dim[2] / kv_heads : v->dim[3];
    int64_t key_size = out->flat ? k->dim[2] / kv_heads : k->dim[3];
    bool fits = k->dim[0] == out->batch && v->dim[0] == out->batch && key_size == out->size &&
                v->dim[out->flat ? 1 : 2] == out->new_columns && (out->flat || v->dim[1] == out->kv_heads) &&
                k->dtype == q->dtype && v->dtype == q->dtype && out->kv_heads > 0 && out->heads % out->kv_heads == 0;
    if (!fits)
        return node_fail(d, m, n, "the shapes or types of Q, K and V do not fit each other");
    const Value *past[2] = {node_in(m, n, 4), node_in(m, n, 5)};
    if (!past[0] != !past[1])
        return node_fail(d, m, n, "past_key and past_value belong together");
    for (int i = 0; i < 2 && past[0]; i++) {
        const int64_t *dim = past[i]->dim, size = i == 0 ? out->size : out->value_size;
        if (past[i]->dtype != q->dtype || past[i]->rank != 4 || dim[0] != out->batch || dim[1] != out->kv_heads ||
            dim[3] != size || (i == 1 && dim[2] != out->past))
            return node_fail(d, m, n, "the shape or type of \"%s\" does not fit", past[i]->name);
        out->past = dim[2];
    }
    out->columns = out->past + out->new_columns;
    return ST_OK;
}

Status infer_attention(Diag *d, Model *m, ModelNode *n)
{
    AttentionShape s;
    TRY(node_arity(d, m, n, 3, 6));
    const Value *q = node_in(m, n, 0), *mask = node_in(m, n, 3);
    TRY(need_float(d, m, n, q));
    TRY(attention_read(d, m, n, &s));
    if (mask && ((mask->dtype != FERRY_BOOL && mask->dtype != q->dtype) || mask->rank < 1 || mask->rank > 4))
        return node_fail(d, m, n, "the mask \"%s\" is of type %s and has %d dimensions", mask->name,
                         ferry_dtype_name(mask->dtype), mask->rank);
    const int64_t full[4] = {s.batch, s.heads, s.rows, s.columns};
    for (int i = 0; mask && i < mask->rank; i++) {
        int64_t size = mask->dim[i], most = full[4 - mask->rank + i];
        bool shorter = i == mask->rank - 1 && size < most;
        if (size != 1 && size != most && !shorter)
            return node_fail(d, m, n, "axis %d of the mask \"%s\" is %lld, not 1 or %lld", i, mask->name,
                             (long long)size, (long long)most);
    }
    int64_t mode = node_attr_int(n, "qk_matmul_output_mode", 0);
    if (mode < 0 || mode > 3)
        return node_fail(d, m, n, "qk_matmul_output_mode is %lld", (long long)mode);
    const int64_t flat[3] = {s.batch, s.rows, s.heads * s.value_size};
    const int64_t y[4] = {s.batch, s.heads, s.rows, s.value_size};
    const int64_t keys[4] = {s.batch, s.kv_heads, s.columns, s.size};
    const int64_t values[4] = {s.batch, s.kv_heads, s.columns, s.value_size};
    TRY(set_out(d, m, n, 0, q->dtype, s.flat ? 3 : 4, s.flat ? flat : y));
    TRY(set_out(d, m, n, 1, q->dtype, 4, keys));
    TRY(set_out(d, m, n, 2, q->dtype, 4, values));
    return set_out(d, m, n, 3, q->dtype, 4, full);
}
