/* node_cost.c - what a node reads and computes, estimated from its call alone. */
#include "graph/lower.h"

/* Elements that a strided walk touches: broadcast dimensions touch the same ones again. */
static int64_t touched(const ferry_kernel *c, const int64_t *stride)
{
    int64_t n = 1;
    for (int i = 0; i < c->rank; i++)
        n *= stride[i] != 0 ? c->dim[i] : 1;
    return n;
}

int64_t node_arg_traffic_bytes(const Graph *g, const Node *n, int arg)
{
    if (arg < 0 || arg >= node_n_arg(n) || n->arg[arg] < 0)
        return 0;
    const ferry_kernel *c = &n->call;
    const Tensor *t = &g->tensor.at[n->arg[arg]];
    int64_t each = (int64_t)ferry_dtype_bytes(t->dtype), rows = c->m * c->n * each;
    switch (c->op) {
    case FERRY_OP_EMBEDDING: /* the rows that are looked up, at most all */
        return arg == 1 && rows < t->bytes ? rows : t->bytes;
    case FERRY_OP_EMBEDDING_GRAD: /* only adding leaves the other rows alone */
        return arg == 0 && c->accumulate && rows < t->bytes ? rows : t->bytes;
    case FERRY_OP_FUSED:
        return arg < FERRY_PROGRAM_OUTPUTS ? t->bytes : touched(c, c->program.stride[arg - FERRY_PROGRAM_OUTPUTS]) * each;
    case FERRY_OP_COPY:
        return touched(c, c->stride[arg]) * each;
    default:
        return t->bytes;
    }
}

int64_t node_cost(const Graph *g, const Node *n)
{
    const ferry_kernel *c = &n->call;
    /* A byte of memory traffic is taken to cost as much as 8 floating-point operations, between a CPU core's ratio and
     * a GPU's; only nodes of the same segment are compared. */
    const double flops_per_byte = 8;
    double bytes = 0, flops = 0;
    for (int i = 0; i < node_n_arg(n); i++)
        bytes += (double)node_arg_traffic_bytes(g, n, i) * (c->accumulate && i < node_n_out(n) ? 2 : 1);
    switch (c->op) {
    case FERRY_OP_LINEAR:
    case FERRY_OP_LINEAR_DX:
    case FERRY_OP_LINEAR_DW:
    case FERRY_OP_MATMUL:
        flops = 2 * (double)c->m * (double)c->k * (double)c->n;
        for (int i = 0; i < c->rank && c->op == FERRY_OP_MATMUL; i++)
            flops *= (double)c->dim[i];
        break;
    case FERRY_OP_ATTENTION: /* two products of each score, and five in the gradient, two of which it repeats */
    case FERRY_OP_ATTENTION_GRAD:
        flops = (c->op == FERRY_OP_ATTENTION ? 4.0 : 14.0) * (double)c->attention.batch * (double)c->attention.heads *
                (double)c->attention.rows * (double)c->attention.columns * (double)c->attention.size *
                (c->attention.causal ? 0.5 : 1);
        break;
    case FERRY_OP_SOFTMAX:
    case FERRY_OP_XENT:
    case FERRY_OP_XENT_GRAD:
        flops = 16 * (double)c->m * (double)c->n * (double)(c->k > 0 ? c->k : 1); /* an exponential an element */
        break;
    case FERRY_OP_CONV:
    case FERRY_OP_CONV_DX:
    case FERRY_OP_CONV_DW:
        flops = 2 * (double)c->m * (double)(c->k / c->window.groups) * (double)c->n;
        for (int i = 0; i < c->window.rank; i++)
            flops *= (double)c->window.size[i] * (double)c->window.out[i];
        break;
    default:
        break;
    }
    double cost = 1 + bytes + flops / flops_per_byte;
    return cost < (double)INT64_MAX ? (int64_t)cost : INT64_MAX; /* a conversion beyond the range is undefined */
}
