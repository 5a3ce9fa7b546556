/* grad_attention.c - the gradients of ATTENTION, one kernel for q, k and v, and of ROTARY. */
#include "graph/grad.h"

/* The gradients lie as q, k and v do. Parts of one tensor make up all of it (fuse_attention.c), and nothing else reads
 * that tensor: each then writes its part of the one gradient. */
Status grad_attention(Autodiff *a, const Node *n)
{
    enum { PARTS = 3, INPUT = 2 };
    Target target[PARTS];
    int arg[FERRY_MAX_ARGS] = {-1, -1, -1, grad_in(a, n, 0), n->arg[2], n->arg[3], n->arg[4], n->arg[0], n->arg[1], n->arg[5]};
    const ferry_attention_shape *s = &n->call.attention;
    for (int i = 0; i < PARTS; i++) {
        target[i] = (Target){.tensor = -1, .add_to = -1};
        int x = n->arg[INPUT + i];
        if (!grad_wanted(a, x))
            continue;
        int64_t heads = i == FERRY_Q ? s->heads : s->kv_heads, rows = i == FERRY_Q ? s->rows : s->columns;
        bool part = s->batch * heads * rows * (i == FERRY_V ? s->value_size : s->size) < a->g->tensor.at[x].count;
        for (int j = 0; j < i && part; j++)
            if (arg[j] >= 0 && graph_root(a->g, n->arg[INPUT + j]) == graph_root(a->g, x))
                arg[i] = arg[j];
        if (arg[i] >= 0)
            continue;
        TRY(grad_begin(a, x, false, &target[i]));
        arg[i] = target[i].tensor;
    }
    ferry_kernel g = n->call;
    g.op = FERRY_OP_ATTENTION_GRAD;
    TRY(grad_emit(a, &g, arg));
    for (int i = 0; i < PARTS; i++)
        TRY(grad_end(a, &target[i]));
    return ST_OK;
}

/* The transposed map, over the rows of x as they lie: it reads dy in another order where y is transposed. */
Status grad_rotary(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    int64_t dense[FERRY_MAX_RANK];
    int order[FERRY_MAX_RANK];
    strides_dense(c->rank, c->dim, dense);
    for (int i = 0; i < c->rank; i++) {
        int at = i;
        for (; at > 0 && c->stride[1][order[at - 1]] < c->stride[1][i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    ferry_kernel g = *c;
    g.reverse = !c->reverse;
    for (int i = 0; i < c->rank; i++) {
        g.dim[i] = c->dim[order[i]];
        g.stride[1][i] = dense[order[i]] * c->n;
        g.stride[2][i] = c->stride[2][order[i]];
    }
    return grad_write(a, n->arg[1], &g, false, (int[FERRY_MAX_ARGS]){-1, grad_in(a, n, 0), n->arg[2], n->arg[3]});
}
