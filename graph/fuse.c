/* fuse.c - questions that the fusing passes ask. */
#include "graph/fuse.h"

Status fuse_links(Diag *d, const Graph *g, Links *l)
{
    size_t tensors = (size_t)g->tensor.count;
    l->reader_at = ARENA_NEW(g->arena, int, tensors + 2);
    l->reader = ARENA_NEW(g->arena, int, (size_t)g->node.count * FERRY_MAX_ARGS);
    l->writers = ARENA_NEW(g->arena, int, tensors);
    l->writer = ARENA_NEW(g->arena, int, tensors);
    l->kept = ARENA_NEW(g->arena, bool, tensors);
    if (l->reader_at == NULL || l->reader == NULL || l->writers == NULL || l->writer == NULL || l->kept == NULL)
        return diag_oom(d);
    /* counts are kept one place further on, so that filling in leaves the starts where they belong */
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < g->node.count; i++) {
            const Node *n = &g->node.at[i];
            for (int k = 0; k < node_n_arg(n); k++) {
                if (n->arg[k] < 0)
                    continue;
                int r = graph_root(g, n->arg[k]);
                if (k >= node_n_out(n) && pass == 0)
                    l->reader_at[r + 2]++;
                else if (k >= node_n_out(n))
                    l->reader[l->reader_at[r + 1]++] = i;
                else if (pass == 0) {
                    l->writers[r]++;
                    l->writer[r] = i;
                }
            }
        }
        for (size_t r = 0; r < tensors && pass == 0; r++)
            l->reader_at[r + 2] += l->reader_at[r + 1];
    }
    if (g->loss >= 0)
        l->kept[graph_root(g, g->loss)] = true;
    for (int i = 0; i < g->n_output; i++)
        l->kept[graph_root(g, g->output[i])] = true;
    return ST_OK;
}

int fuse_maker(const Graph *g, const Links *l, int tensor)
{
    if (tensor < 0)
        return -1;
    int r = graph_root(g, tensor);
    return g->tensor.at[r].kind == TENSOR_VALUE && l->writers[r] == 1 ? l->writer[r] : -1;
}

int fuse_reader_count(const Graph *g, const Links *l, int tensor)
{
    int r = graph_root(g, tensor);
    return l->reader_at[r + 1] - l->reader_at[r] + (l->kept[r] ? 1 : 0);
}

int fuse_reader(const Graph *g, const Links *l, int tensor)
{
    int r = graph_root(g, tensor);
    return fuse_reader_count(g, l, tensor) == 1 && !l->kept[r] ? l->reader[l->reader_at[r]] : -1;
}

bool fuse_number(const Graph *g, int tensor, double *out)
{
    const Tensor *t = &g->tensor.at[tensor];
    return t->kind == TENSOR_CONST && t->count == 1 && dtype_is_float(t->dtype) &&
           ferry_convert(out, FERRY_F64, t->data, t->dtype, 1) == FERRY_OK;
}

int fuse_operand(const Graph *g, const Node *n, double *number, bool *first)
{
    *first = fuse_number(g, n->arg[1], number);
    if (*first)
        return n->arg[2];
    return fuse_number(g, n->arg[2], number) ? n->arg[1] : -1;
}

Status fuse_dependent(Diag *d, const Graph *g, bool **out)
{
    bool *depends = *out = ARENA_NEW(g->arena, bool, g->tensor.count);
    if (depends == NULL)
        return diag_oom(d);
    for (int p = 0; p < g->n_param; p++)
        depends[g->param[p].tensor] = true;
    for (int i = 0; i < g->n_forward; i++) {
        const Node *n = &g->node.at[i];
        bool any = false;
        for (int k = node_n_out(n); k < node_n_arg(n); k++)
            any |= n->arg[k] >= 0 && depends[graph_root(g, n->arg[k])];
        for (int k = 0; k < node_n_out(n) && any; k++)
            if (n->arg[k] >= 0)
                depends[graph_root(g, n->arg[k])] = true;
    }
    return ST_OK;
}
