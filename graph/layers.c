/* layers.c - layers, units and segments: what the planner moves and when.
 *
 * needs: forward and backward nodes   fills: layers, units, Param.unit, segments   keeps: nodes, tensors
 *
 * A layer is a forward node that reads parameters. Parameters that the same set of layers reads form a unit: they are
 * loaded together or not at all. A use is one layer reading a unit in one direction; which kernels read it decides, not
 * what the operator is: a bias has no use in BP, a norm's scale has one. Running statistics are in no layer: they stay in
 * host memory. */
#include <string.h>

#include "graph/layer_names.h"
#include "graph/lower.h"

static bool reads_param(const Graph *g, const Node *n, int p)
{
    for (int k = node_n_out(n); k < node_n_arg(n); k++)
        if (n->arg[k] >= 0 && graph_is_param(g, n->arg[k]) && (p < 0 || g->tensor.at[n->arg[k]].param == p))
            return true;
    return false;
}

static const char *layer_op(const Node *n)
{
    switch (n->call.op) {
    case FERRY_OP_EMBEDDING:
        return "Embedding";
    case FERRY_OP_LINEAR:
        return "Linear";
    case FERRY_OP_LAYERNORM:
        return n->arg[1] >= 0 ? "LayerNorm" : "RMSNorm";
    default:
        return n->onnx_op;
    }
}

static Status find_layers(Diag *d, Graph *g)
{
    g->layer = ARENA_NEW(g->arena, Layer, g->n_forward);
    if (g->layer == NULL)
        return diag_oom(d);
    g->n_layer = 0;
    for (int i = 0; i < g->n_forward; i++) {
        Node *n = &g->node.at[i];
        bool is_layer = reads_param(g, n, -1);
        n->segment = 2 * g->n_layer + is_layer;
        if (is_layer)
            g->layer[g->n_layer++] = (Layer){.op = layer_op(n), .node = i};
    }
    g->n_segment = 2 * g->n_layer + 1;
    for (int i = g->n_forward; i < g->node.count; i++)
        g->node.at[i].segment = g->node.at[g->node.at[i].origin].segment;
    return ST_OK;
}

/* reads[p * n_layer + l]: layer l reads parameter p. */
static Status find_units(Diag *d, Graph *g, const bool *reads)
{
    size_t width = (size_t)g->n_layer;
    g->unit = ARENA_NEW(g->arena, Unit, g->n_param);
    int *members = ARENA_NEW(g->arena, int, g->n_param);
    if (g->unit == NULL || members == NULL)
        return diag_oom(d);
    g->n_unit = 0;
    for (int p = 0; p < g->n_param; p++)
        g->param[p].unit = -1;
    for (int p = 0; p < g->n_param; p++) {
        if (g->param[p].unit >= 0 || g->param[p].state)
            continue;
        Unit *u = &g->unit[g->n_unit];
        u->param = members; /* units partition the parameters: one array serves all */
        for (int q = p; q < g->n_param; q++) {
            if (g->param[q].unit >= 0 || g->param[q].state || memcmp(reads + (size_t)p * width, reads + (size_t)q * width, width) != 0)
                continue;
            g->param[q].unit = g->n_unit;
            *members++ = q;
            u->n_param++;
            u->bytes += g->param[q].bytes;
            u->grad_bytes += g->param[q].trainable ? g->param[q].bytes : 0;
        }
        g->n_unit++;
    }
    return ST_OK;
}

/* A unit's uses in the order of the nodes: one for all that a layer's kernels read in one direction, which are
 * neighbours but for what reads no parameter. Counts first, then fills. */
Status graph_find_uses(Diag *d, Graph *g)
{
    for (int fill = 0; fill < 2; fill++) {
        Use *last = ARENA_NEW(g->arena, Use, g->n_unit);
        if (last == NULL)
            return diag_oom(d);
        for (int u = 0; u < g->n_unit; u++) {
            last[u].layer = -1;
            if (fill == 1 && (g->unit[u].use = ARENA_NEW(g->arena, Use, g->unit[u].n_use)) == NULL)
                return diag_oom(d);
            g->unit[u].n_use = 0;
        }
        for (int i = 0; i < g->node.count; i++) {
            const Node *n = &g->node.at[i];
            for (int k = node_n_out(n); k < node_n_arg(n); k++) {
                if (n->arg[k] < 0 || !graph_is_param(g, n->arg[k]))
                    continue;
                int u = g->param[g->tensor.at[n->arg[k]].param].unit;
                Unit *unit = &g->unit[u];
                Use now = {n->segment / 2, n->phase};
                if (now.layer == last[u].layer && now.phase == last[u].phase)
                    continue;
                last[u] = now;
                if (fill == 1)
                    unit->use[unit->n_use] = now;
                unit->n_use++;
            }
        }
    }
    return ST_OK;
}

static Status find_layer_units(Diag *d, Graph *g, const bool *reads)
{
    for (int l = 0; l < g->n_layer; l++) {
        Layer *layer = &g->layer[l];
        layer->unit = ARENA_NEW(g->arena, int, FERRY_MAX_ARGS);
        if (layer->unit == NULL)
            return diag_oom(d);
        for (int u = 0; u < g->n_unit; u++)
            if (reads[(size_t)g->unit[u].param[0] * (size_t)g->n_layer + (size_t)l])
                layer->unit[layer->n_unit++] = u;
    }
    return ST_OK;
}

Status graph_layers(Diag *d, Graph *g)
{
    TRY(find_layers(d, g));
    bool *reads = arena_alloc(g->arena, (size_t)g->n_param * (size_t)g->n_layer + 1, sizeof(bool));
    if (reads == NULL)
        return diag_oom(d);
    for (int l = 0; l < g->n_layer; l++) {
        const Node *n = &g->node.at[g->layer[l].node];
        for (int k = node_n_out(n); k < node_n_arg(n); k++)
            if (n->arg[k] >= 0 && graph_is_param(g, n->arg[k]))
                reads[(size_t)g->tensor.at[n->arg[k]].param * (size_t)g->n_layer + (size_t)l] = true;
    }
    TRY(find_units(d, g, reads));
    TRY(graph_find_uses(d, g));
    TRY(find_layer_units(d, g, reads));
    return graph_name_layers(d, g);
}

int graph_use_of_node(const Graph *g, const Node *n, int unit)
{
    const Unit *u = &g->unit[unit];
    for (int i = 0; i < u->n_use; i++)
        if (2 * u->use[i].layer + 1 == n->segment && u->use[i].phase == n->phase)
            return i;
    return -1;
}
