/* build_nn.c - products, softmax, gathering and arrays of constants as expressions; build_nn.h. */
#include "graph/build_nn.h"

#include <string.h>

static bool good(const Build *b, int x)
{
    return b->status == ST_OK && x >= 0;
}

static int emit(Build *b, ferry_dtype t, int rank, const int64_t *dim, const ferry_kernel *call, int x, int y)
{
    int out = -1;
    b->status = lower_temp(b->d, b->l, b->n, t, rank, dim, &out);
    if (b->status == ST_OK)
        b->status = lower_emit(b->d, b->l, b->n, call, (int[]){out, x, y});
    return b->status == ST_OK ? out : -1;
}

int build_matmul(Build *b, int x, int y, bool trans_y, double alpha)
{
    if (!good(b, x) || !good(b, y))
        return -1;
    Tensor tx = build_tensor(b, x), ty = build_tensor(b, y);
    int batch = (tx.rank > ty.rank ? tx.rank : ty.rank) - 2;
    int64_t dim[MAX_RANK];
    ferry_kernel call = call_new(FERRY_OP_MATMUL, tx.dtype);
    call.m = tx.dim[tx.rank - 2];
    call.k = tx.dim[tx.rank - 1];
    call.n = ty.dim[ty.rank - (trans_y ? 2 : 1)];
    call.trans_b = trans_y;
    call.alpha = alpha;
    strides_broadcast(batch, tx.rank - 2, tx.dim, call.stride[1]);
    strides_broadcast(batch, ty.rank - 2, ty.dim, call.stride[2]);
    for (int i = 0; i < batch; i++) {
        int ax = i + tx.rank - 2 - batch, ay = i + ty.rank - 2 - batch;
        dim[i] = ax < 0 || tx.dim[ax] == 1 ? ay < 0 ? 1 : ty.dim[ay] : tx.dim[ax];
        call.dim[i] = dim[i];
        call.stride[1][i] *= call.m * call.k;
        call.stride[2][i] *= call.k * call.n;
    }
    strides_dense(batch, dim, call.stride[0]);
    for (int i = 0; i < batch; i++)
        call.stride[0][i] *= call.m * call.n;
    dim[batch] = call.m;
    dim[batch + 1] = call.n;
    call.rank = batch;
    if (dims_count(batch, dim) == 1)
        call.rank = 0;
    else
        space_simplify(&call.rank, call.dim, call.stride, 3);
    return emit(b, tx.dtype, batch + 2, dim, &call, x, y);
}

int build_softmax(Build *b, int x)
{
    if (!good(b, x))
        return -1;
    Tensor t = build_tensor(b, x);
    ferry_kernel call = call_new(FERRY_OP_SOFTMAX, t.dtype);
    call.m = dims_count(t.rank - 1, t.dim);
    call.n = t.dim[t.rank - 1];
    return emit(b, t.dtype, t.rank, t.dim, &call, x, -1);
}

int build_transpose(Build *b, int x, const int *perm)
{
    if (!good(b, x))
        return -1;
    Tensor t = build_tensor(b, x);
    int64_t own[MAX_RANK], dim[MAX_RANK], stride[MAX_RANK];
    strides_dense(t.rank, t.dim, own);
    for (int i = 0; i < t.rank; i++) {
        dim[i] = t.dim[perm[i]];
        stride[i] = own[perm[i]];
    }
    return build_copy(b, x, t.rank, dim, 0, stride);
}

int build_constant(Build *b, ferry_dtype t, int rank, const int64_t *dim, const void *data)
{
    int out = -1;
    Graph *g = b->l->graph;
    if (b->status == ST_OK)
        b->status = graph_add_tensor(b->d, g, graph_made_up_name(g, "constant"), TENSOR_CONST, t, rank, dim, &out);
    if (b->status != ST_OK)
        return -1;
    g->tensor.at[out].data = data;
    return out;
}

int build_rows(Build *b, int table, int64_t k, int64_t n, int ids)
{
    if (!good(b, table) || !good(b, ids))
        return -1;
    Tensor t = build_tensor(b, table), ti = build_tensor(b, ids);
    ferry_kernel call = call_new(FERRY_OP_EMBEDDING, t.dtype);
    call.dtype2 = ti.dtype;
    call.m = ti.count;
    call.k = k;
    call.n = n;
    return emit(b, t.dtype, 2, (int64_t[]){ti.count, n}, &call, table, ids);
}

int build_ravel(Build *b, int ids, int rank, const int64_t *dim, const int64_t *base, const int64_t *ids_stride,
                int64_t count, const int64_t *sizes, int64_t unit)
{
    if (!good(b, ids))
        return -1;
    ferry_kernel call = call_new(FERRY_OP_RAVEL, build_tensor(b, ids).dtype);
    call.rank = rank;
    for (int i = 0; i < rank; i++) {
        call.dim[i] = dim[i];
        call.stride[0][i] = base[i];
        call.stride[1][i] = ids_stride[i];
    }
    for (int64_t i = 0; i < count; i++)
        call.stride[2][i] = sizes[i];
    call.m = count;
    call.k = unit;
    int64_t own[MAX_RANK];
    memcpy(own, dim, (size_t)rank * sizeof *own);
    return emit(b, FERRY_I64, rank, own, &call, ids, -1);
}
