/* grad_nn.c - gradients of softmax, normalization, embedding and loss. */
#include "graph/grad.h"

/* A Where chooses between the tensor and something else. */
static bool where_reads(const Autodiff *a, int tensor)
{
    int root = graph_root(a->g, tensor);
    for (int i = a->reader_at[root]; i < a->reader_at[root + 1]; i++)
        if (a->g->node.at[a->reader[i]].call.op == FERRY_OP_WHERE)
            return true;
    return false;
}

/* dx = y == y ? dx : 0 */
static Status softmax_without_nan(Autodiff *a, const Node *n, const ferry_kernel *g)
{
    const int64_t one = 1, zero_stride = 0, count = g->m * g->n;
    int y = n->arg[0], number, zero, dx;
    TRY(graph_add_tensor(a->d, a->g, graph_made_up_name(a->g, n->name), TENSOR_VALUE, FERRY_BOOL, 1, &count, &number));
    ferry_kernel equal = call_binary(FERRY_OP_BINARY, g->dtype, FERRY_EQUAL, 1, &count, &one, &one);
    TRY(grad_emit(a, &equal, (int[]){number, y, y}));
    TRY(graph_add_number(a->d, a->g, g->dtype, 0, &zero));
    TRY(grad_temp(a, n->arg[1], 1, &count, &dx));
    TRY(grad_emit(a, g, (int[]){dx, grad_in(a, n, 0), y}));
    ferry_kernel choose = call_where(g->dtype, 1, &count, &one, &one, &zero_stride);
    return grad_write(a, n->arg[1], &choose, false, (int[FERRY_MAX_ARGS]){-1, number, dx, zero});
}

/* A row of which every element is masked with -infinity is NaN. Models that allow for such rows put a 0 in their place
 * with a Where; no gradient comes back then, but 0 * NaN would be NaN, and so the rule keeps it out. */
Status grad_softmax(Autodiff *a, const Node *n)
{
    ferry_kernel g = call_new(FERRY_OP_SOFTMAX_GRAD, n->call.dtype);
    g.m = n->call.m;
    g.n = n->call.n;
    if (where_reads(a, n->arg[0]))
        return softmax_without_nan(a, n, &g);
    return grad_write(a, n->arg[1], &g, false, (int[FERRY_MAX_ARGS]){-1, grad_in(a, n, 0), n->arg[0]});
}

/* y, mean, rstd; x, scale, bias. One kernel gives both parameters' gradients and adds to both or to neither. */
static Status layernorm_params(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    int dy = grad_in(a, n, 0), scale = n->arg[4], bias = n->arg[5];
    bool want_scale = grad_wanted(a, scale), want_bias = grad_wanted(a, bias);
    Target ts = {.tensor = -1, .add_to = -1}, tb = ts;
    if (!want_scale && want_bias) {
        const int64_t dim[] = {c->m, c->n};
        if (c->m == 1)
            return grad_pass(a, bias, dy);
        ferry_kernel db = call_reduce(c->dtype, FERRY_SUM, 2, dim, 1);
        return grad_write(a, bias, &db, true, (int[FERRY_MAX_ARGS]){-1, dy});
    }
    if (!want_scale)
        return ST_OK;
    /* Adding in place only works when it is right for both: ask for targets that are written, and add where needed. */
    bool alone = !want_bias;
    TRY(grad_begin(a, scale, alone, &ts));
    if (want_bias)
        TRY(grad_begin(a, bias, false, &tb));
    ferry_kernel g = call_new(FERRY_OP_LAYERNORM_DP, c->dtype);
    g.m = c->m;
    g.n = c->n;
    g.accumulate = ts.accumulate;
    TRY(grad_emit(a, &g, (int[]){ts.tensor, tb.tensor, dy, n->arg[3], n->arg[1], n->arg[2]}));
    TRY(grad_end(a, &ts));
    return grad_end(a, &tb);
}

Status grad_layernorm(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    TRY(layernorm_params(a, n));
    if (!grad_wanted(a, n->arg[3]))
        return ST_OK;
    ferry_kernel g = call_new(FERRY_OP_LAYERNORM_DX, c->dtype);
    g.m = c->m;
    g.n = c->n;
    return grad_write(a, n->arg[3], &g, true,
                      (int[FERRY_MAX_ARGS]){-1, grad_in(a, n, 0), n->arg[3], n->arg[1], n->arg[2], n->arg[4]});
}

Status grad_embedding(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    ferry_kernel g = call_new(FERRY_OP_EMBEDDING_GRAD, c->dtype);
    g.dtype2 = c->dtype2;
    g.m = c->m;
    g.k = c->k;
    g.n = c->n;
    return grad_write(a, n->arg[1], &g, true, (int[FERRY_MAX_ARGS]){-1, grad_in(a, n, 0), n->arg[2]});
}

/* loss, lse, count; logits, labels. The gradient of the graph's own loss is 1 and not passed. */
Status grad_xent(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    ferry_kernel g = *c;
    g.op = FERRY_OP_XENT_GRAD;
    int dloss = graph_root(a->g, n->arg[0]) == graph_root(a->g, a->g->loss) ? -1 : grad_in(a, n, 0);
    return grad_write(a, n->arg[3], &g, false,
                      (int[FERRY_MAX_ARGS]){-1, n->arg[3], n->arg[1], n->arg[2], n->arg[4], dloss});
}
