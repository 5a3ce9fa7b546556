/* prune.c - removing what the loss, or the outputs of a forward graph, do not need. */
#include "graph/lower.h"

/* A node without an element to compute: all its outputs are empty, or it copies no element into a larger tensor. */
static bool computes_nothing(const Graph *g, const Node *n)
{
    if (n->call.op == FERRY_OP_COPY && dims_count(n->call.rank, n->call.dim) == 0)
        return true;
    for (int k = 0; k < node_n_out(n); k++)
        if (n->arg[k] >= 0 && g->tensor.at[n->arg[k]].count > 0)
            return false;
    return true;
}

/* What a node makes of no elements: a sum is 0, and a scattering of nothing changes nothing. After this no node of a
 * training graph reads an empty tensor. */
static Status settle_empty_inputs(Diag *d, Graph *g, Node *n)
{
    int empty = -1;
    for (int k = node_n_out(n); k < node_n_arg(n); k++)
        if (n->arg[k] >= 0 && g->tensor.at[n->arg[k]].count == 0)
            empty = n->arg[k];
    if (empty < 0)
        return ST_OK;
    const Tensor *y = &g->tensor.at[n->arg[0]];
    const ferry_kernel c = n->call;
    int from = -1; /* of which y is a copy then */
    if (c.op == FERRY_OP_LINEAR && n->arg[3] >= 0) {
        n->call = call_copy(c.dtype, 2, (int64_t[]){c.m, c.n}, 0, (int64_t[]){c.n, 1}, 0, (int64_t[]){0, 1}, 1);
        from = n->arg[3];
    } else if (c.op == FERRY_OP_SCATTER) {
        n->call = call_scale(c.dtype, y->count, 1, false);
        from = n->arg[1];
    } else if (c.op == FERRY_OP_LINEAR || c.op == FERRY_OP_MATMUL || (c.op == FERRY_OP_REDUCE && c.fn == FERRY_SUM)) {
        n->call = call_new(FERRY_OP_FILL, y->dtype);
        n->call.alpha = 0;
        n->call.n = y->count;
    } else {
        diag_fail(d, ST_MODEL, "%s: node '%s' (%s): its input '%s' has no elements", g->model->path, n->name,
                  n->onnx_op, g->tensor.at[empty].name);
        return diag_hint(d, "training needs every dimension that it computes with to be at least 1");
    }
    for (int k = 1; k < FERRY_MAX_ARGS; k++)
        n->arg[k] = k == 1 ? from : -1;
    return ST_OK;
}

/* Running statistics take part in a training step when what they are statistics of does. */
static bool keeps_statistics(const Graph *g, const Node *n, const bool *needed)
{
    return n->call.op == FERRY_OP_MOVING_AVERAGE && g->tensor.at[graph_root(g, n->arg[0])].kind == TENSOR_STATE &&
           needed[graph_root(g, n->arg[1])];
}

/* needed[root]: the loss, or an output of a forward graph, depends on it. Nodes are in execution order, so one sweep
 * backwards finds them all; of several nodes that write one tensor (the parts of a concatenation) all are needed. */
static Status find_needed(Diag *d, Graph *g, bool *needed, bool *keep_node)
{
    if (g->loss >= 0)
        needed[graph_root(g, g->loss)] = true;
    for (int i = 0; i < g->n_output; i++)
        needed[graph_root(g, g->output[i])] = true;
    for (int i = g->node.count - 1; i >= 0; i--) {
        Node *n = &g->node.at[i];
        int n_out = node_n_out(n);
        for (int k = 0; k < n_out; k++)
            keep_node[i] |= n->arg[k] >= 0 && needed[graph_root(g, n->arg[k])];
        if (keeps_statistics(g, n, needed))
            keep_node[i] = needed[graph_root(g, n->arg[0])] = true;
        if (keep_node[i] && !g->forward) {
            keep_node[i] = !computes_nothing(g, n);
            if (keep_node[i])
                TRY(settle_empty_inputs(d, g, n));
        }
        for (int k = n_out; k < node_n_arg(n) && keep_node[i]; k++)
            if (n->arg[k] >= 0)
                needed[graph_root(g, n->arg[k])] = true;
    }
    return ST_OK;
}

/* A parameter that no node reads is not part of training; exporting writes it back as it was. */
static void drop_params(Diag *d, Graph *g, const bool *needed)
{
    int kept = 0, dropped = 0;
    const char *example = NULL;
    for (int p = 0; p < g->n_param; p++) {
        if (needed[g->param[p].tensor]) {
            g->param[kept++] = g->param[p];
            continue;
        }
        if (g->param[p].trainable && !g->forward)
            example = dropped++ == 0 ? g->param[p].name : example;
    }
    if (dropped == 1)
        diag_warn(d, "%s: parameter '%s' does not influence the loss (--loss); it is not trained", g->model->path,
                  example);
    if (dropped > 1)
        diag_warn(d, "%s: %d parameters, such as '%s', do not influence the loss (--loss); they are not trained",
                  g->model->path, dropped, example);
    g->n_param = kept;
    for (int i = 0; i < g->tensor.count; i++)
        g->tensor.at[i].param = -1;
    for (int p = 0; p < kept; p++)
        g->tensor.at[g->param[p].tensor].param = p;
    for (int i = 0; i < g->tensor.count; i++)
        g->tensor.at[i].param = g->tensor.at[graph_root(g, i)].param;
}

Status graph_prune(Diag *d, Graph *g)
{
    bool *needed = ARENA_NEW(g->arena, bool, g->tensor.count);
    bool *keep = ARENA_NEW(g->arena, bool, g->node.count);
    if (needed == NULL || keep == NULL)
        return diag_oom(d);
    TRY(find_needed(d, g, needed, keep));
    int kept = 0;
    for (int i = 0; i < g->node.count; i++)
        if (keep[i]) {
            g->node.at[kept] = g->node.at[i];
            g->node.at[kept].origin = kept;
            kept++;
        }
    g->node.count = g->n_forward = kept;
    drop_params(d, g, needed);
    TRY(graph_sweep_tensors(d, g));
    graph_index_producers(g);
    return ST_OK;
}

Status graph_sweep_tensors(Diag *d, Graph *g)
{
    int *to = ARENA_NEW(g->arena, int, g->tensor.count);
    if (to == NULL)
        return diag_oom(d);
    if (g->loss >= 0)
        to[g->loss] = 1;
    for (int i = 0; i < g->n_output; i++)
        to[g->output[i]] = 1;
    for (int i = 0; i < g->n_input; i++)
        to[g->input[i]] = 1;
    for (int p = 0; p < g->n_param; p++) {
        to[g->param[p].tensor] = 1;
        if (g->param[p].grad >= 0)
            to[g->param[p].grad] = 1;
    }
    for (int i = 0; i < g->node.count; i++)
        for (int k = 0; k < node_n_arg(&g->node.at[i]); k++)
            if (g->node.at[i].arg[k] >= 0)
                to[g->node.at[i].arg[k]] = 1;
    for (int i = 0; i < g->tensor.count; i++) {
        if (g->tensor.at[i].grad_of >= 0) /* a gradient that only handed its bytes on: graph_check follows these */
            to[i] = to[g->tensor.at[i].grad_of] = 1;
        if (to[i])
            to[graph_root(g, i)] = 1;
    }
    int kept = 0;
    for (int i = 0; i < g->tensor.count; i++) {
        bool keep = to[i];
        to[i] = keep ? kept : -1;
        if (keep)
            g->tensor.at[kept++] = g->tensor.at[i];
    }
    g->tensor.count = kept;
    for (int i = 0; i < kept; i++) {
        Tensor *t = &g->tensor.at[i];
        t->root = to[t->root];
        t->grad_of = t->grad_of >= 0 ? to[t->grad_of] : -1;
    }
    for (int i = 0; i < g->node.count; i++)
        for (int k = 0; k < FERRY_MAX_ARGS; k++)
            if (g->node.at[i].arg[k] >= 0)
                g->node.at[i].arg[k] = to[g->node.at[i].arg[k]];
    for (int p = 0; p < g->n_param; p++) {
        g->param[p].tensor = to[g->param[p].tensor];
        g->param[p].grad = g->param[p].grad >= 0 ? to[g->param[p].grad] : -1;
    }
    for (int i = 0; i < g->n_input; i++)
        g->input[i] = to[g->input[i]];
    for (int i = 0; i < g->n_output; i++)
        g->output[i] = to[g->output[i]];
    g->loss = g->loss >= 0 ? to[g->loss] : -1;
    return ST_OK;
}
