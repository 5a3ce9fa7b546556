/* lower_index.c - gathering and scattering by indices that are known at run time only, the largest elements, dropout.
 *
 * Every index is turned into the number of a row (RAVEL, which checks it against its axis and takes negative ones from
 * the end); the rows are then those of an embedding, whose gradient adds up what was read more than once. */
#include "graph/build_nn.h"
#include "graph/ops.h"
#include "graph/ops_lower.h"

/* Elements of x at the indices' own positions, but along the axis at the indices. */
static int element_places(Build *b, Tensor x, int index, int axis)
{
    Tensor t = build_tensor(b, index);
    int64_t own[MAX_RANK], dense[MAX_RANK];
    strides_dense(x.rank, x.dim, own);
    strides_dense(t.rank, t.dim, dense);
    int64_t unit = x.rank > 0 ? own[axis] : 1, size = x.rank > 0 ? x.dim[axis] : 1;
    if (x.rank > 0)
        own[axis] = 0;
    return build_ravel(b, index, t.rank, t.dim, own, dense, 1, &size, unit);
}

Status lower_gather_elements(Diag *d, Lowering *l, ModelNode *n)
{
    int axis;
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0), index = build_input(&b, 1);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    TRY(lower_axis(d, l, n, t.rank, 0, &axis));
    return build_give(&b, 0, build_rows(&b, x, t.count, 1, element_places(&b, t, index, axis)));
}

/* Row numbers of index tuples [batch.., .., tuple] in data whose first `batch` axes are the indices' own. */
static int tuple_places(Build *b, Tensor x, int index, int batch, int64_t *rows, int64_t *row_size)
{
    Tensor t = build_tensor(b, index);
    int64_t tuple = t.dim[t.rank - 1], box = dims_count((int)tuple, x.dim + batch);
    int64_t batches = dims_count(batch, t.dim), each = dims_count(t.rank - 1 - batch, t.dim + batch);
    const int64_t dim[2] = {batches, each}, base[2] = {box, 0}, stride[2] = {each * tuple, tuple};
    *rows = batches * box;
    *row_size = dims_count(x.rank - batch - (int)tuple, x.dim + batch + tuple);
    return build_ravel(b, index, 2, dim, base, stride, tuple, x.dim + batch, 1);
}

Status lower_gather_nd(Diag *d, Lowering *l, ModelNode *n)
{
    int64_t rows, row_size;
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0), index = build_input(&b, 1);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    int places = tuple_places(&b, t, index, (int)node_attr_int(n, "batch_dims", 0), &rows, &row_size);
    return build_give(&b, 0, build_rows(&b, x, rows, row_size, places));
}

static Status emit_scatter(Build *b, int x, int updates, int places, int64_t rows, int64_t row_size)
{
    int y;
    TRY(b->status);
    Tensor t = build_tensor(b, x);
    ferry_kernel call = call_new(FERRY_OP_SCATTER, t.dtype);
    TRY(scatter_fn(b->d, b->l->model, b->n, &call.fn));
    if (call.fn != FERRY_FN_NONE && !dtype_is_float(t.dtype))
        return node_fail(b->d, b->l->model, b->n, "merging updates of type %s is supported on constants only",
                         ferry_dtype_name(t.dtype));
    call.dtype2 = FERRY_I64;
    call.m = build_tensor(b, places).count;
    call.k = rows;
    call.n = row_size;
    TRY(lower_output(b->d, b->l, b->n, 0, &y));
    return lower_emit(b->d, b->l, b->n, &call, (int[]){y, x, updates, places});
}

Status lower_scatter_elements(Diag *d, Lowering *l, ModelNode *n)
{
    int axis;
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0), index = build_input(&b, 1), updates = build_input(&b, 2);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    TRY(lower_axis(d, l, n, t.rank, 0, &axis));
    return emit_scatter(&b, x, updates, element_places(&b, t, index, axis), t.count, 1);
}

Status lower_scatter_nd(Diag *d, Lowering *l, ModelNode *n)
{
    int64_t rows, row_size;
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0), index = build_input(&b, 1), updates = build_input(&b, 2);
    TRY(b.status);
    int places = tuple_places(&b, build_tensor(&b, x), index, 0, &rows, &row_size);
    return emit_scatter(&b, x, updates, places, rows, row_size);
}

/* ---- the largest elements
 * ------------------------------------------------------------------------------------------------ */

/* [outer, inner, k] to the output's shape, [outer, k, inner]. */
static int back(Build *b, int x, int64_t outer, int64_t inner, int64_t k)
{
    const int64_t dim[3] = {outer, inner, k};
    return build_transpose(b, build_view(b, x, 3, dim), (int[]){0, 2, 1});
}

Status lower_top_k(Diag *d, Lowering *l, ModelNode *n)
{
    int axis, ids;
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    TRY(lower_axis(d, l, n, t.rank, -1, &axis));
    const Value *y = node_out(l->model, n, 0) ? node_out(l->model, n, 0) : node_out(l->model, n, 1);
    int64_t outer = dims_count(axis, t.dim), inner = dims_count(t.rank - axis - 1, t.dim + axis + 1);
    int64_t size = t.dim[axis], k = y->dim[axis], rows = outer * inner;
    int front = build_transpose(&b, build_view(&b, x, 3, (int64_t[]){outer, size, inner}), (int[]){0, 2, 1});
    TRY(b.status);
    ferry_kernel call = call_new(FERRY_OP_TOPK, t.dtype);
    call.m = rows;
    call.n = size;
    call.k = k;
    call.reverse = node_attr_int(n, "largest", 1) == 0;
    TRY(lower_temp(d, l, n, FERRY_I64, 2, (int64_t[]){rows, k}, &ids));
    TRY(lower_emit(d, l, n, &call, (int[]){ids, front}));
    if (node_out(l->model, n, 0)) {
        const int64_t dim[2] = {rows, k}, base[2] = {size, 0}, stride[2] = {k, 1};
        int places = build_ravel(&b, ids, 2, dim, base, stride, 1, &size, 1);
        TRY(build_give(&b, 0, back(&b, build_rows(&b, front, t.count, 1, places), outer, inner, k)));
    }
    return node_out(l->model, n, 1) ? build_give(&b, 1, back(&b, ids, outer, inner, k)) : ST_OK;
}

/* ---- dropout
 * ------------------------------------------------------------------------------------------------------------- */

/* Each node has its own number, by which its masks differ from the others'. The mask of what was kept is what dropping
 * leaves of ones. */
Status lower_dropout(Diag *d, Lowering *l, ModelNode *n)
{
    double ratio;
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0), y;
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    TRY(dropout_ratio(d, l->model, n, &ratio));
    ferry_kernel call = call_new(FERRY_OP_DROPOUT, t.dtype), fill = call_new(FERRY_OP_FILL, t.dtype);
    call.n = fill.n = t.count;
    call.alpha = ratio;
    call.salt = l->n_dropout++;
    fill.alpha = 1;
    if (ratio > 0) {
        TRY(lower_output(d, l, n, 0, &y));
        TRY(lower_emit(d, l, n, &call, (int[]){y, x}));
    } else {
        TRY(lower_view(d, l, n, 0, x));
    }
    if (!node_out(l->model, n, 1))
        return ST_OK;
    if (!lower_is_used(l, n, 1)) {
        l->tensor_of[n->out[1]] = x; /* done, and nobody looks */
        return ST_OK;
    }
    int ones, kept;
    TRY(lower_temp(d, l, n, t.dtype, t.rank, t.dim, &ones));
    TRY(lower_emit(d, l, n, &fill, (int[]){ones}));
    if (ratio > 0) {
        TRY(lower_temp(d, l, n, t.dtype, t.rank, t.dim, &kept));
        TRY(lower_emit(d, l, n, &call, (int[]){kept, ones}));
        ones = kept;
    }
    return build_give(&b, 1, build_cast(&b, FERRY_BOOL, ones));
}

/* ---- branches
 * ------------------------------------------------------------------------------------------------------------ */

/* The results of the branch that is taken are the node's inputs: infer_if. */
Status lower_if(Diag *d, Lowering *l, ModelNode *n)
{
    for (int i = 0; i < n->n_out; i++) {
        int x;
        if (n->out[i] < 0)
            continue;
        TRY(lower_input(d, l, n, i, &x));
        TRY(lower_view(d, l, n, i, x));
    }
    return ST_OK;
}
