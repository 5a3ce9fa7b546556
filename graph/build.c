/* build.c - kernels as expressions; build.h has the idea. */
#include "graph/build.h"

#include <math.h>

#include "graph/fold.h"

Build build_start(Diag *d, Lowering *l, const ModelNode *n)
{
    return (Build){d, l, n, ST_OK};
}

static bool good(const Build *b, int x)
{
    return b->status == ST_OK && x >= 0;
}

/* A temporary as the result of what follows; -1 after an error. */
static int temp(Build *b, ferry_dtype t, int rank, const int64_t *dim)
{
    int out = -1;
    int64_t copy[MAX_RANK];
    for (int i = 0; i < rank; i++)
        copy[i] = dim[i]; /* dim may lie in the array that grows */
    b->status = lower_temp(b->d, b->l, b->n, t, rank, copy, &out);
    return b->status == ST_OK ? out : -1;
}

static int emit(Build *b, int y, const ferry_kernel *call, const int *arg)
{
    if (!good(b, y))
        return -1;
    b->status = lower_emit(b->d, b->l, b->n, call, arg);
    return b->status == ST_OK ? y : -1;
}

Tensor build_tensor(const Build *b, int x)
{
    return good(b, x) ? b->l->graph->tensor.at[x] : (Tensor){.rank = 0, .count = 1};
}

int build_input(Build *b, int i)
{
    int x = -1;
    if (b->status == ST_OK)
        b->status = lower_input(b->d, b->l, b->n, i, &x);
    return b->status == ST_OK ? x : -1;
}

static int constant(Build *b, ferry_dtype t, int rank, int64_t count, double first, double step)
{
    int out;
    if (b->status != ST_OK)
        return -1;
    Graph *g = b->l->graph;
    void *data = arena_alloc(g->arena, (size_t)count, ferry_dtype_bytes(t));
    if (data == NULL) {
        b->status = diag_oom(b->d);
        return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        double value = first + step * (double)i;
        char *at = (char *)data + (size_t)i * ferry_dtype_bytes(t);
        if (!dtype_is_float(t))
            num_put_real(t, data, i, value);
        else if (graph_convert(at, t, &value, FERRY_F64, 1) != FERRY_OK)
            b->status = diag_fail(b->d, ST_FAILED, "%s", ferry_error());
    }
    if (b->status != ST_OK)
        return -1;
    b->status =
        graph_add_tensor(b->d, g, graph_made_up_name(g, rank ? "row" : "scalar"), TENSOR_CONST, t, rank, &count, &out);
    if (b->status != ST_OK)
        return -1;
    g->tensor.at[out].data = data;
    return out;
}

int build_number(Build *b, ferry_dtype t, double value)
{
    return constant(b, t, 0, 1, value, 0);
}

int build_iota(Build *b, ferry_dtype t, int64_t count)
{
    return constant(b, t, 1, count, 0, 1);
}

int build_ones(Build *b, ferry_dtype t, int64_t count)
{
    return constant(b, t, 1, count, 1, 0);
}

int build_unary(Build *b, ferry_fn fn, int x)
{
    if (!good(b, x))
        return -1;
    Tensor t = build_tensor(b, x);
    int y = temp(b, t.dtype, t.rank, t.dim);
    ferry_kernel call = call_unary(FERRY_OP_UNARY, t.dtype, fn, t.count);
    return emit(b, y, &call, (int[]){y, x});
}

/* numpy's rule over the shapes of `count` tensors. */
static int broadcast(Build *b, const int *x, int count, int64_t dim[MAX_RANK])
{
    int rank = 0;
    for (int i = 0; i < count; i++)
        rank = build_tensor(b, x[i]).rank > rank ? build_tensor(b, x[i]).rank : rank;
    for (int k = 0; k < rank; k++)
        dim[k] = 1;
    for (int i = 0; i < count; i++) {
        Tensor t = build_tensor(b, x[i]);
        for (int k = 0; k < t.rank; k++)
            if (t.dim[k] != 1)
                dim[rank - t.rank + k] = t.dim[k];
    }
    return rank;
}

int build_binary(Build *b, ferry_fn fn, int x, int y)
{
    if (!good(b, x) || !good(b, y))
        return -1;
    Tensor tx = build_tensor(b, x), ty = build_tensor(b, y);
    int64_t dim[MAX_RANK], sx[MAX_RANK], sy[MAX_RANK];
    int rank = broadcast(b, (int[]){x, y}, 2, dim);
    if (tx.dtype != ty.dtype) {
        b->status = node_fail(b->d, b->l->model, b->n, "its inputs have the types %s and %s",
                              ferry_dtype_name(tx.dtype), ferry_dtype_name(ty.dtype));
        return -1;
    }
    strides_broadcast(rank, tx.rank, tx.dim, sx);
    strides_broadcast(rank, ty.rank, ty.dim, sy);
    bool compares = fn >= FERRY_EQUAL && fn <= FERRY_OR;
    int out = temp(b, compares ? FERRY_BOOL : tx.dtype, rank, dim);
    ferry_kernel call = call_binary(FERRY_OP_BINARY, tx.dtype, fn, rank, dim, sx, sy);
    return emit(b, out, &call, (int[]){out, x, y});
}

int build_with(Build *b, ferry_fn fn, int x, double c)
{
    return good(b, x) ? build_binary(b, fn, x, build_number(b, build_tensor(b, x).dtype, c)) : -1;
}

int build_where(Build *b, int cond, int x, int y)
{
    if (!good(b, cond) || !good(b, x) || !good(b, y))
        return -1;
    int64_t dim[MAX_RANK], stride[3][MAX_RANK];
    const int in[3] = {cond, x, y};
    int rank = broadcast(b, in, 3, dim);
    for (int i = 0; i < 3; i++) {
        Tensor t = build_tensor(b, in[i]);
        strides_broadcast(rank, t.rank, t.dim, stride[i]);
    }
    ferry_dtype t = build_tensor(b, x).dtype;
    int out = temp(b, t, rank, dim);
    ferry_kernel call = call_where(t, rank, dim, stride[0], stride[1], stride[2]);
    return emit(b, out, &call, (int[]){out, cond, x, y});
}

int build_cast(Build *b, ferry_dtype t, int x)
{
    if (!good(b, x) || build_tensor(b, x).dtype == t)
        return x;
    Tensor from = build_tensor(b, x);
    int y = temp(b, t, from.rank, from.dim);
    ferry_kernel call = call_new(FERRY_OP_CAST, from.dtype);
    call.dtype2 = t;
    call.n = from.count;
    return emit(b, y, &call, (int[]){y, x});
}

int build_reduce(Build *b, ferry_fn fn, int x, uint32_t axes)
{
    if (!good(b, x))
        return -1;
    Tensor t = build_tensor(b, x);
    bool reduces = false;
    int64_t dim[MAX_RANK];
    for (int i = 0; i < t.rank; i++) {
        reduces |= (axes >> i & 1) && t.dim[i] != 1;
        dim[i] = axes >> i & 1 ? 1 : t.dim[i];
    }
    if (!reduces)
        return x;
    int y = temp(b, t.dtype, t.rank, dim);
    ferry_kernel call = call_reduce(t.dtype, fn, t.rank, t.dim, axes);
    return emit(b, y, &call, (int[]){y, x});
}

int build_lookup(Build *b, int table, int ids)
{
    if (!good(b, table) || !good(b, ids))
        return -1;
    Tensor t = build_tensor(b, table), ti = build_tensor(b, ids);
    ferry_kernel call = call_new(FERRY_OP_EMBEDDING, t.dtype);
    call.dtype2 = ti.dtype;
    call.m = ti.count;
    call.k = t.dim[0];
    call.n = dims_count(t.rank - 1, t.dim + 1);
    int y = temp(b, t.dtype, 2, (int64_t[]){call.m, call.n});
    return emit(b, y, &call, (int[]){y, table, ids});
}

int build_batched(Build *b, int x, int y)
{
    if (!good(b, x) || !good(b, y))
        return -1;
    Tensor tx = build_tensor(b, x), ty = build_tensor(b, y);
    ferry_kernel call = call_new(FERRY_OP_MATMUL, tx.dtype);
    call.m = tx.dim[1];
    call.k = tx.dim[2];
    call.n = ty.dim[2];
    call.rank = 1;
    call.dim[0] = tx.dim[0];
    call.stride[0][0] = call.m * call.n;
    call.stride[1][0] = call.m * call.k;
    call.stride[2][0] = call.k * call.n;
    int z = temp(b, tx.dtype, 3, (int64_t[]){tx.dim[0], call.m, call.n});
    return emit(b, z, &call, (int[]){z, x, y});
}

int build_view(Build *b, int x, int rank, const int64_t *dim)
{
    if (!good(b, x))
        return -1;
    int y = -1;
    b->status = graph_add_view(b->d, b->l->graph, NULL, x, rank, dim, &y);
    return b->status == ST_OK ? y : -1;
}

int build_copy(Build *b, int x, int rank, const int64_t *dim, int64_t offset, const int64_t *stride)
{
    if (!good(b, x))
        return -1;
    Tensor t = build_tensor(b, x);
    int64_t dense[MAX_RANK];
    strides_dense(rank, dim, dense);
    ferry_kernel call = call_copy(t.dtype, rank, dim, 0, dense, offset, stride, 1);
    if (call_is_identity_copy(&call) && dims_count(rank, dim) == t.count)
        return build_view(b, x, rank, dim);
    int y = temp(b, t.dtype, rank, dim);
    return emit(b, y, &call, (int[]){y, x});
}

int build_slice(Build *b, int x, int axis, int64_t start, int64_t end)
{
    if (!good(b, x))
        return -1;
    Tensor t = build_tensor(b, x);
    if (start == 0 && end == t.dim[axis])
        return x;
    int64_t stride[MAX_RANK];
    strides_dense(t.rank, t.dim, stride);
    t.dim[axis] = end - start;
    return build_copy(b, x, t.rank, t.dim, start * stride[axis], stride);
}

int build_concat(Build *b, int x, int y, int axis)
{
    if (!good(b, x) || !good(b, y))
        return -1;
    Tensor out = build_tensor(b, x);
    int64_t y_stride[MAX_RANK], x_stride[MAX_RANK], begin = 0;
    const int in[2] = {x, y};
    out.dim[axis] += build_tensor(b, y).dim[axis];
    strides_dense(out.rank, out.dim, y_stride);
    int z = temp(b, out.dtype, out.rank, out.dim);
    for (int i = 0; i < 2 && good(b, z); i++) {
        Tensor t = build_tensor(b, in[i]);
        strides_dense(t.rank, t.dim, x_stride);
        ferry_kernel call = call_copy(t.dtype, t.rank, t.dim, begin * y_stride[axis], y_stride, 0, x_stride, 1);
        emit(b, z, &call, (int[]){z, in[i]});
        begin += t.dim[axis];
    }
    return z;
}

/* log(sum(exp(x))) over the axes, which stay with size 1: exp sees no positive number. */
int build_log_sum_exp(Build *b, int x, uint32_t axes)
{
    int top = build_reduce(b, FERRY_MAX, x, axes);
    /* all of -infinity, or one of infinity: x - top would be NaN */
    int infinite = build_with(b, FERRY_EQUAL, build_unary(b, FERRY_ABS, top), (double)INFINITY);
    top = build_where(b, infinite, build_number(b, build_tensor(b, x).dtype, 0), top);
    int sum = build_reduce(b, FERRY_SUM, build_unary(b, FERRY_EXP, build_binary(b, FERRY_SUB, x, top)), axes);
    return build_binary(b, FERRY_ADD, build_unary(b, FERRY_LOG, sum), top);
}

Status build_give(Build *b, int i, int x)
{
    if (b->status != ST_OK || x < 0)
        return b->status != ST_OK ? b->status
                                  : diag_fail(b->d, ST_FAILED, "internal error: '%s' lacks an input", b->n->name);
    return lower_view(b->d, b->l, b->n, i, x);
}
