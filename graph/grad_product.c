/* grad_product.c - gradients of LINEAR and MATMUL. */
#include <string.h>

#include "graph/grad.h"

/* y = x * w + b. The parameters' gradients come first: their way to the host can start while dx is computed. */
Status grad_linear(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    int dy = grad_in(a, n, 0), x = n->arg[1], w = n->arg[2], b = n->arg[3];
    if (grad_wanted(a, w)) {
        ferry_kernel dw = call_linear(c->dtype, c->m, c->k, c->n, c->trans_b);
        dw.op = FERRY_OP_LINEAR_DW;
        TRY(grad_write(a, w, &dw, true, (int[FERRY_MAX_ARGS]){-1, x, dy}));
    }
    if (grad_wanted(a, b)) {
        const int64_t dim[] = {c->m, c->n};
        if (c->m == 1) {
            TRY(grad_pass(a, b, dy));
        } else {
            ferry_kernel db = call_reduce(c->dtype, FERRY_SUM, 2, dim, 1);
            TRY(grad_write(a, b, &db, true, (int[FERRY_MAX_ARGS]){-1, dy}));
        }
    }
    if (!grad_wanted(a, x))
        return ST_OK;
    ferry_kernel dx = call_linear(c->dtype, c->m, c->k, c->n, c->trans_b);
    dx.op = FERRY_OP_LINEAR_DX;
    return grad_write(a, x, &dx, true, (int[FERRY_MAX_ARGS]){-1, dy, w});
}

/* A product whose result has the layout of an operand, over all batch dimensions. Where the operand was broadcast the
 * contributions of the batch are summed. row[0..3): which stride rows of the forward call the new y, a and b use. */
static Status product_gradient(Autodiff *a, const Node *n, int x, int x_row, ferry_kernel g, int left, int left_row,
                               int right, int right_row)
{
    const ferry_kernel *c = &n->call;
    int64_t matrix = g.m * g.n;
    uint32_t summed = 0;
    g.rank = c->rank;
    g.alpha = c->alpha;
    for (int i = 0; i < c->rank; i++) {
        g.dim[i] = c->dim[i];
        g.stride[1][i] = c->stride[left_row][i];
        g.stride[2][i] = c->stride[right_row][i];
        g.stride[0][i] = c->stride[x_row][i];
        if (c->stride[x_row][i] == 0 && c->dim[i] != 1)
            summed |= 1u << i;
    }
    if (summed == 0)
        return grad_write(a, x, &g, true, (int[FERRY_MAX_ARGS]){-1, left, right});
    int temp;
    int64_t dim[MAX_RANK];
    memcpy(dim, c->dim, sizeof(dim));
    if (c->rank >= MAX_RANK)
        return grad_fail(a, n, "the gradient of a product with this many batch dimensions is unsupported");
    dim[c->rank] = matrix;
    strides_dense(c->rank, c->dim, g.stride[0]);
    for (int i = 0; i < c->rank; i++)
        g.stride[0][i] *= matrix;
    TRY(grad_temp(a, x, c->rank + 1, dim, &temp));
    TRY(grad_emit(a, &g, (int[]){temp, left, right}));
    ferry_kernel sum = call_reduce(c->dtype, FERRY_SUM, c->rank + 1, dim, summed);
    return grad_write(a, x, &sum, true, (int[FERRY_MAX_ARGS]){-1, temp});
}

/* y = alpha op(A) op(B) with op the transpose or nothing. dA = dy op(B)^T when A is stored as it is used, and
 * op(B) dy^T when it is stored transposed; the same on the other side for B. */
Status grad_matmul(Autodiff *a, const Node *n)
{
    enum { Y, A, B };
    const ferry_kernel *c = &n->call;
    int dy = grad_in(a, n, 0), x = n->arg[1], w = n->arg[2];
    if (grad_wanted(a, w)) {
        ferry_kernel g = call_new(FERRY_OP_MATMUL, c->dtype);
        g.k = c->m;
        g.m = c->trans_b ? c->n : c->k;
        g.n = c->trans_b ? c->k : c->n;
        g.trans_a = c->trans_b ? true : !c->trans_a;
        g.trans_b = c->trans_b ? c->trans_a : false;
        if (c->trans_b)
            TRY(product_gradient(a, n, w, B, g, dy, Y, x, A));
        else
            TRY(product_gradient(a, n, w, B, g, x, A, dy, Y));
    }
    if (!grad_wanted(a, x))
        return ST_OK;
    ferry_kernel g = call_new(FERRY_OP_MATMUL, c->dtype);
    g.k = c->n;
    g.m = c->trans_a ? c->k : c->m;
    g.n = c->trans_a ? c->m : c->k;
    g.trans_a = c->trans_a ? c->trans_b : false;
    g.trans_b = c->trans_a ? true : !c->trans_b;
    if (c->trans_a)
        return product_gradient(a, n, x, A, g, w, B, dy, Y);
    return product_gradient(a, n, x, A, g, dy, Y, w, B);
}
