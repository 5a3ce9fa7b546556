/* infer_if.c - an If whose condition is known when compiling, as those are that an exporter leaves of a model's own
 * conditions on shapes: one branch is taken, the nodes of the other are dead.
 *
 * needs: both branches in the flat graph, under guards (onnx_import.c)   fills: the If's inputs, only those of the
 * branch keeps: everything else                                                 spoils: nothing */
#include "graph/fold.h"

static bool is_true(const Value *condition)
{
    return *(const uint8_t *)condition->data != 0;
}

static Status condition_fail(Diag *d, const Model *m, const ModelNode *n, const Value *condition)
{
    node_fail(d, m, n, "its condition \"%s\" depends on the contents of the inputs or is not one bool",
              condition->name);
    return diag_hint(d, "only conditions on shapes and constants are supported");
}

/* A branch inside a branch that is not taken may have a condition that nobody computed, so the outer ones decide too.
 */
Status guard_skips(Diag *d, Model *m, const ModelNode *n, bool *out)
{
    const Value *unknown = NULL;
    *out = false;
    for (int g = n->guard; g >= 0 && !*out; g = m->guard.at[g].outer) {
        const Value *condition = &m->value.at[m->guard.at[g].condition];
        if (!condition->data || condition->dtype != FERRY_BOOL || value_count(condition) != 1)
            unknown = condition;
        else
            *out = is_true(condition) != m->guard.at[g].taken;
    }
    return unknown && !*out ? condition_fail(d, m, n, unknown) : ST_OK;
}

Status infer_if(Diag *d, Model *m, ModelNode *n)
{
    const Value *condition = node_in(m, n, 0);
    if (!condition->data || condition->dtype != FERRY_BOOL || value_count(condition) != 1)
        return condition_fail(d, m, n, condition);
    const int *result = n->in + 1 + (is_true(condition) ? 0 : n->n_out);
    n->in = (int *)result;
    n->n_in = n->n_out;
    for (int i = 0; i < n->n_out; i++) {
        const Value *v = node_in(m, n, i);
        if (!v || v->rank < 0)
            return node_fail(d, m, n, "a branch does not compute its result %d", i);
        TRY(set_out(d, m, n, i, v->dtype, v->rank, v->dim));
    }
    return ST_OK;
}

Status fold_if(Diag *d, Model *m, ModelNode *n)
{
    for (int i = 0; i < n->n_out; i++)
        fold_share(m, n, i, node_in(m, n, i), node_in(m, n, i)->data_dim);
    return d->status;
}
