/* grad_window.c - gradients of convolutions, poolings and batch normalization. */
#include "graph/grad.h"

/* The sum of dy [m, n, inner] over all but the channels. */
static Status channel_sum(Autodiff *a, int bias, int dy, ferry_dtype t, int64_t m, int64_t n, int64_t inner)
{
    const int64_t dim[] = {m, n, inner};
    if (m == 1 && inner == 1)
        return grad_pass(a, bias, dy);
    ferry_kernel sum = call_reduce(t, FERRY_SUM, 3, dim, 5);
    return grad_write(a, bias, &sum, true, (int[FERRY_MAX_ARGS]){-1, dy});
}

/* y = conv(x, w) + b. The parameters' gradients come first: their way to the host can start while dx is computed. */
Status grad_conv(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    int dy = grad_in(a, n, 0), x = n->arg[1], w = n->arg[2], b = n->arg[3];
    if (grad_wanted(a, w)) {
        ferry_kernel dw = *c;
        dw.op = FERRY_OP_CONV_DW;
        TRY(grad_write(a, w, &dw, true, (int[FERRY_MAX_ARGS]){-1, x, dy}));
    }
    if (grad_wanted(a, b))
        TRY(channel_sum(a, b, dy, c->dtype, c->m, c->n, dims_count(c->window.rank, c->window.out)));
    if (!grad_wanted(a, x))
        return ST_OK;
    ferry_kernel dx = *c;
    dx.op = FERRY_OP_CONV_DX;
    return grad_write(a, x, &dx, true, (int[FERRY_MAX_ARGS]){-1, dy, w, -1});
}

/* A transposed convolution y = transpose of conv(., w) applied to x, + b: its transpose is the convolution, and w's
 * gradient that of the convolution with x and dy in each other's place. */
Status grad_conv_transpose(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    int dy = grad_in(a, n, 0), x = n->arg[1], w = n->arg[2], b = n->arg[3];
    if (grad_wanted(a, w)) {
        ferry_kernel dw = *c;
        dw.op = FERRY_OP_CONV_DW;
        TRY(grad_write(a, w, &dw, true, (int[FERRY_MAX_ARGS]){-1, dy, x}));
    }
    if (grad_wanted(a, b))
        TRY(channel_sum(a, b, dy, c->dtype, c->m, c->k, dims_count(c->window.rank, c->window.in)));
    if (!grad_wanted(a, x))
        return ST_OK;
    ferry_kernel dx = *c;
    dx.op = FERRY_OP_CONV;
    return grad_write(a, x, &dx, false, (int[FERRY_MAX_ARGS]){-1, dy, w, -1});
}

/* y, index; x */
Status grad_maxpool(Autodiff *a, const Node *n)
{
    ferry_kernel g = n->call;
    g.op = FERRY_OP_MAXPOOL_GRAD;
    return grad_write(a, n->arg[2], &g, true, (int[FERRY_MAX_ARGS]){-1, grad_in(a, n, 0), n->arg[1]});
}

Status grad_avgpool(Autodiff *a, const Node *n)
{
    ferry_kernel g = n->call;
    g.op = FERRY_OP_AVGPOOL_GRAD;
    return grad_write(a, n->arg[1], &g, true, (int[FERRY_MAX_ARGS]){-1, grad_in(a, n, 0)});
}

/* The statistics are those of x itself: the gradient flows through them as well. */
static bool is_of_batch(const Autodiff *a, const Node *n)
{
    int by = n->arg[4] < 0 ? -1 : a->g->tensor.at[graph_root(a->g, n->arg[4])].producer;
    return by >= 0 && a->g->node.at[by].call.op == FERRY_OP_BATCH_STATS &&
           graph_root(a->g, a->g->node.at[by].arg[2]) == graph_root(a->g, n->arg[1]);
}

/* y; x, scale, bias, mean, var. One kernel gives both parameters' gradients and adds to both or to neither. */
Status grad_batchnorm(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    int dy = grad_in(a, n, 0), x = n->arg[1], scale = n->arg[2], bias = n->arg[3];
    bool want_bias = grad_wanted(a, bias);
    if (grad_wanted(a, scale)) {
        Target ts, tb = {.tensor = -1, .add_from = -1, .add_to = -1};
        TRY(grad_begin(a, scale, !want_bias, &ts));
        if (want_bias)
            TRY(grad_begin(a, bias, false, &tb));
        ferry_kernel g = *c;
        g.op = FERRY_OP_BATCHNORM_DP;
        g.accumulate = ts.accumulate;
        TRY(grad_emit(a, &g, (int[]){ts.tensor, tb.tensor, dy, x, n->arg[4], n->arg[5]}));
        TRY(grad_end(a, &ts));
        TRY(grad_end(a, &tb));
    } else if (want_bias) {
        TRY(channel_sum(a, bias, dy, c->dtype, c->m, c->n, c->k));
    }
    if (!grad_wanted(a, x))
        return ST_OK;
    ferry_kernel dx = *c;
    if (is_of_batch(a, n)) {
        dx.op = FERRY_OP_BATCHNORM_TRAIN_DX;
        return grad_write(a, x, &dx, false, (int[FERRY_MAX_ARGS]){-1, dy, x, scale, n->arg[4], n->arg[5]});
    }
    dx.op = FERRY_OP_BATCHNORM_DX;
    return grad_write(a, x, &dx, false, (int[FERRY_MAX_ARGS]){-1, dy, scale, n->arg[5]});
}

/* A number everywhere, beneath what is written over it: nothing flows on. */
Status grad_fill(Autodiff *a, const Node *n)
{
    (void)a;
    (void)n;
    return ST_OK;
}
