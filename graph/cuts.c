/* cuts.c - where the forward pass can be cut for recomputation.
 *
 * needs: a training graph   fills: cuts   keeps: the graph
 *
 * What later forward nodes read is carried over a cut and has to be kept. Between the blocks of a network that is little,
 * the sum of a residual stream for example; inside of them it is more. So the places are the local minima of the bytes
 * that are carried. A minimum is left out when a lower one is so near that keeping the difference costs more than
 * it would save. */
#include "graph/graph.h"
#include "graph/lower.h"

enum { NEAR = 4 }; /* this many times what is carried, in bytes that the backward pass reads, is near */

static int root_value(const Graph *g, int arg)
{
    return arg >= 0 && g->tensor.at[graph_root(g, arg)].kind == TENSOR_VALUE ? graph_root(g, arg) : -1;
}

/* fills: by forward node, what is carried over the place after it and what the backward pass reads of all up to it */
static Status measure(Diag *d, const Graph *g, int64_t *carried, int64_t *saved)
{
    size_t tensors = (size_t)g->tensor.count;
    int *first = base_alloc((2 * tensors + 1) * sizeof *first), *last = first ? first + tensors : NULL;
    bool *read = base_alloc(tensors + 1);
    Status st = first && read ? ST_OK : diag_oom(d);
    for (size_t t = 0; t < tensors && st == ST_OK; t++)
        first[t] = last[t] = -1;
    for (int i = 0; i < g->node.count && st == ST_OK; i++) {
        const Node *n = &g->node.at[i];
        for (int k = 0; k < node_n_arg(n); k++) {
            int root = root_value(g, n->arg[k]);
            if (root < 0)
                continue;
            if (i >= g->n_forward) {
                read[root] |= k >= node_n_out(n);
                continue;
            }
            first[root] = first[root] < 0 ? i : first[root];
            last[root] = i;
        }
    }
    for (size_t t = 0; t < tensors && st == ST_OK; t++) {
        int64_t bytes = g->tensor.at[t].bytes;
        if (first[t] < 0)
            continue;
        carried[first[t]] += bytes;
        carried[last[t]] -= bytes;
        saved[first[t]] += read[t] ? bytes : 0;
    }
    for (int i = 1; i < g->n_forward && st == ST_OK; i++) {
        carried[i] += carried[i - 1];
        saved[i] += saved[i - 1];
    }
    base_free(first);
    base_free(read);
    return st;
}

/* A lower place on this side, so near that this one is not worth keeping. */
static bool is_beside_lower(const Cut *c, const Cut *other)
{
    int64_t between = c->saved_bytes - other->saved_bytes;
    return other->carried_bytes < c->carried_bytes &&
           (between < 0 ? -between : between) < NEAR * (c->carried_bytes - other->carried_bytes);
}

Status graph_cuts(Diag *d, Arena *a, const Graph *g, Cut **out, int *n, int64_t *total_bytes)
{
    int nodes = g->n_forward;
    int64_t *carried = ARENA_NEW(a, int64_t, nodes), *saved = ARENA_NEW(a, int64_t, nodes);
    Cut *cut = *out = ARENA_NEW(a, Cut, nodes);
    *n = 0;
    *total_bytes = 0;
    if (!carried || !saved || !cut)
        return diag_oom(d);
    TRY(measure(d, g, carried, saved));
    *total_bytes = nodes > 0 ? saved[nodes - 1] : 0;
    int count = 0;
    for (int i = 0; i < nodes - 1; i++) {
        int next = i + 1;
        while (next < nodes - 1 && carried[next] == carried[i])
            next++;
        bool lowest = (i == 0 || carried[i - 1] > carried[i]) && carried[next] > carried[i];
        const char *name = g->tensor.at[g->node.at[i].arg[0]].name;
        if (!lowest || graph_end_node(g, name) != i)
            continue;
        Cut c = {i, name, carried[i], saved[i]};
        while (count > 0 && is_beside_lower(&cut[count - 1], &c))
            count--;
        if (count == 0 || !is_beside_lower(&c, &cut[count - 1]))
            cut[count++] = c;
    }
    *n = count;
    return ST_OK;
}
