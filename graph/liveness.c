/* liveness.c - first write and last use of each tensor's bytes. */
#include "graph/graph.h"

/* needs: nodes in execution order   fills: first_write, last_use of roots   keeps: everything else
 * Inputs, parameters and constants are written by nobody: first_write is -1. */
Status graph_liveness(Diag *d, Graph *g)
{
    (void)d;
    for (int i = 0; i < g->tensor.count; i++)
        g->tensor.at[i].first_write = g->tensor.at[i].last_use = -1;
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        for (int k = 0; k < node_n_arg(n); k++) {
            if (n->arg[k] < 0)
                continue;
            Tensor *root = &g->tensor.at[g->tensor.at[n->arg[k]].root];
            if (k < node_n_out(n) && root->first_write < 0)
                root->first_write = i;
            root->last_use = i;
        }
    }
    return ST_OK;
}
