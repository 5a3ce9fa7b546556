/* call.c - building kernel calls. */
#include "graph/call.h"

void strides_dense(int rank, const int64_t *dim, int64_t *stride)
{
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; i--) {
        stride[i] = step;
        step *= dim[i];
    }
}

void strides_broadcast(int rank, int from_rank, const int64_t *from_dim, int64_t *stride)
{
    int64_t own[FERRY_MAX_RANK];
    strides_dense(from_rank, from_dim, own);
    for (int i = 0; i < rank; i++) {
        int j = i - (rank - from_rank);
        stride[i] = j >= 0 && from_dim[j] != 1 ? own[j] : 0;
    }
}

void space_simplify(int *rank, int64_t *dim, int64_t (*stride)[FERRY_MAX_RANK], int n)
{
    int out = 0;
    for (int i = 0; i < *rank; i++) {
        if (dim[i] == 1)
            continue;
        bool merge = out > 0;
        for (int s = 0; s < n && merge; s++)
            merge = stride[s][out - 1] == stride[s][i] * dim[i];
        int to = merge ? out - 1 : out;
        dim[to] = merge ? dim[to] * dim[i] : dim[i];
        for (int s = 0; s < n; s++)
            stride[s][to] = stride[s][i];
        out = to + 1;
    }
    if (out == 0) {
        dim[0] = 1;
        for (int s = 0; s < n; s++)
            stride[s][0] = 0;
        out = 1;
    }
    *rank = out;
}

ferry_kernel call_new(ferry_op op, ferry_dtype t)
{
    ferry_kernel c = {.op = op, .dtype = t, .dtype2 = t, .alpha = 1};
    return c;
}

ferry_kernel call_linear(ferry_dtype t, int64_t m, int64_t k, int64_t n, bool trans_b)
{
    ferry_kernel c = call_new(FERRY_OP_LINEAR, t);
    c.m = m;
    c.k = k;
    c.n = n;
    c.trans_b = trans_b;
    return c;
}

ferry_kernel call_unary(ferry_op op, ferry_dtype t, ferry_fn fn, int64_t n)
{
    ferry_kernel c = call_new(op, t);
    c.fn = fn;
    c.n = n;
    return c;
}

/* Copies the space into the call and simplifies it there. */
static void set_space(ferry_kernel *c, int rank, const int64_t *dim, const int64_t *const *stride, int n)
{
    c->rank = rank;
    for (int i = 0; i < rank; i++) {
        c->dim[i] = dim[i];
        for (int s = 0; s < n; s++)
            c->stride[s][i] = stride[s][i];
    }
    space_simplify(&c->rank, c->dim, c->stride, n);
}

ferry_kernel call_binary(ferry_op op, ferry_dtype t, ferry_fn fn, int rank, const int64_t *dim, const int64_t *a_stride,
                         const int64_t *b_stride)
{
    ferry_kernel c = call_new(op, t);
    c.fn = fn;
    set_space(&c, rank, dim, (const int64_t *const[]){a_stride, b_stride}, 2);
    return c;
}

ferry_kernel call_where(ferry_dtype t, int rank, const int64_t *dim, const int64_t *cond_stride,
                        const int64_t *a_stride, const int64_t *b_stride)
{
    ferry_kernel c = call_new(FERRY_OP_WHERE, t);
    set_space(&c, rank, dim, (const int64_t *const[]){cond_stride, a_stride, b_stride}, 3);
    return c;
}

ferry_kernel call_reduce(ferry_dtype t, ferry_fn fn, int rank, const int64_t *dim, uint32_t axes)
{
    ferry_kernel c = call_new(FERRY_OP_REDUCE, t);
    c.fn = fn;
    for (int i = 0; i < rank; i++) {
        bool reduced = axes >> i & 1;
        if (dim[i] == 1)
            continue;
        if (c.rank > 0 && reduced == (c.axes >> (c.rank - 1) & 1)) {
            c.dim[c.rank - 1] *= dim[i];
            continue;
        }
        if (reduced)
            c.axes |= 1u << c.rank;
        c.dim[c.rank++] = dim[i];
    }
    if (c.rank == 0) { /* one element: a sum over an axis of size 1 */
        c.dim[0] = 1;
        c.axes = 1;
        c.rank = 1;
    }
    return c;
}

ferry_kernel call_copy(ferry_dtype t, int rank, const int64_t *dim, int64_t y_offset, const int64_t *y_stride,
                       int64_t x_offset, const int64_t *x_stride, double alpha)
{
    ferry_kernel c = call_new(FERRY_OP_COPY, t);
    set_space(&c, rank, dim, (const int64_t *const[]){y_stride, x_stride}, 2);
    c.offset[0] = y_offset;
    c.offset[1] = x_offset;
    c.alpha = alpha;
    return c;
}

ferry_kernel call_scale(ferry_dtype t, int64_t n, double alpha, bool accumulate)
{
    const int64_t one = 1;
    ferry_kernel c = call_copy(t, 1, &n, 0, &one, 0, &one, alpha);
    c.accumulate = accumulate;
    return c;
}

bool call_is_identity_copy(const ferry_kernel *c)
{
    return c->op == FERRY_OP_COPY && c->rank == 1 && c->offset[0] == 0 && c->offset[1] == 0 && c->alpha == 1 &&
           (c->dim[0] == 1 || (c->stride[0][0] == 1 && c->stride[1][0] == 1));
}

bool call_is_transpose_2d(const ferry_kernel *c, int64_t *rows, int64_t *cols)
{
    if (c->op != FERRY_OP_COPY || c->rank != 2 || c->alpha != 1 || c->accumulate || c->offset[0] != 0 ||
        c->offset[1] != 0)
        return false;
    /* y[i, j] = x[j, i]: y is walked densely, x by columns */
    if (c->stride[0][0] != c->dim[1] || c->stride[0][1] != 1 || c->stride[1][0] != 1 || c->stride[1][1] != c->dim[0])
        return false;
    *rows = c->dim[1];
    *cols = c->dim[0];
    return true;
}
