/* grad_index.c - gradients of dropout and scattering. Gathering is EMBEDDING, with ids that RAVEL made: grad_nn.c. */
#include "graph/grad.h"

/* The same call on dy: seed, step and salt are those of the forward node, and so is the mask. */
Status grad_dropout(Autodiff *a, const Node *n)
{
    return grad_write(a, n->arg[1], &n->call, true, (int[FERRY_MAX_ARGS]){-1, grad_in(a, n, 0)});
}

/* dupdates = dy at the updates' rows */
static Status gather_updates(Autodiff *a, const Node *n, int dy)
{
    ferry_kernel g = call_new(FERRY_OP_EMBEDDING, n->call.dtype);
    g.dtype2 = n->call.dtype2;
    g.m = n->call.m;
    g.k = n->call.k;
    g.n = n->call.n;
    return grad_write(a, n->arg[2], &g, false, (int[FERRY_MAX_ARGS]){-1, dy, n->arg[3]});
}

/* y; data, updates, ids. Replacing takes the old element's gradient away, adding changes none; otherwise one kernel
 * finds both gradients, and what nobody wants of them goes into a temporary. */
Status grad_scatter_rows(Autodiff *a, const Node *n)
{
    int dy = grad_in(a, n, 0), data = n->arg[1], updates = n->arg[2];
    bool want_data = grad_wanted(a, data), want_updates = grad_wanted(a, updates);
    ferry_kernel g = n->call;
    g.op = FERRY_OP_SCATTER_GRAD;
    if (g.fn == FERRY_FN_NONE || g.fn == FERRY_ADD) {
        if (want_updates)
            TRY(gather_updates(a, n, dy));
        if (!want_data)
            return ST_OK;
        if (g.fn == FERRY_ADD)
            return grad_pass(a, data, dy);
        return grad_write(a, data, &g, false, (int[FERRY_MAX_ARGS]){-1, -1, dy, -1, -1, -1, n->arg[3]});
    }
    Target td = {.tensor = -1, .add_to = -1}, tu = td;
    if (want_data)
        TRY(grad_begin(a, data, false, &td));
    else
        TRY(grad_temp(a, data, a->g->tensor.at[data].rank, a->g->tensor.at[data].dim, &td.tensor));
    if (want_updates)
        TRY(grad_begin(a, updates, false, &tu));
    TRY(grad_emit(a, &g, (int[]){td.tensor, tu.tensor, dy, data, updates, n->arg[0], n->arg[3]}));
    TRY(grad_end(a, &td));
    return grad_end(a, &tu);
}
