/* grad_copy.c - gradients of strided copies: permutations, slices, concatenations, expansions.
 *
 * y[oy + i.sy] = x[ox + i.sx] gives dx[ox + i.sx] += dy[oy + i.sy]. Where sx is 0 the element was read many times and
 * dy is summed first. Where the copy read a part of x only, the rest of dx is zero unless other copies deliver it: the
 * parts of a Split cover x without overlap, and then each writes its part and nothing is cleared. */
#include "graph/grad.h"

/* The part [begin, end) of each row of `row` elements that a slice reads; false when it is no such slice. */
static bool slice_of_rows(const ferry_kernel *c, int64_t count, int64_t *row, int64_t *begin, int64_t *end)
{
    if (c->op != FERRY_OP_COPY || c->rank > 2)
        return false;
    int64_t width = c->dim[c->rank - 1];
    if (c->stride[1][c->rank - 1] != 1 && width != 1)
        return false;
    *row = c->rank == 2 ? c->stride[1][0] : count;
    if (c->rank == 2 && width == 1 && c->stride[1][1] == 0)
        return false;
    if (*row <= 0 || count % *row != 0 || (c->rank == 2 ? c->dim[0] : 1) != count / *row)
        return false;
    *begin = c->offset[1];
    *end = *begin + width;
    return *end <= *row;
}

/* Row length of the slices when one of them is a single column: rank 1 with a stride. */
static bool column_of_rows(const ferry_kernel *c, int64_t count, int64_t row, int64_t *begin, int64_t *end)
{
    if (c->op != FERRY_OP_COPY || c->rank != 1 || c->stride[1][0] != row || c->dim[0] * row != count)
        return false;
    *begin = c->offset[1];
    *end = *begin + 1;
    return *end <= row;
}

/* Do the readers of the root cover it without overlap, each giving a gradient? Then its gradient is written in parts.
 */
static bool readers_partition(const Autodiff *a, int root)
{
    const Graph *g = a->g;
    int64_t count = g->tensor.at[root].count, row = -1, covered = 0, row_i, begin, end;
    int from = a->reader_at[root], to = a->reader_at[root + 1];
    for (int i = from; i < to && row < 0; i++)
        if (slice_of_rows(&g->node.at[a->reader[i]].call, count, &row_i, &begin, &end))
            row = row_i;
    if (row < 0)
        return false;
    for (int i = from; i < to; i++) {
        const Node *n = &g->node.at[a->reader[i]];
        if (!a->reached[graph_root(g, n->arg[0])])
            return false;
        if (!(slice_of_rows(&n->call, count, &row_i, &begin, &end) && row_i == row) &&
            !column_of_rows(&n->call, count, row, &begin, &end))
            return false;
        covered += end - begin;
        for (int j = from; j < i; j++) {
            int64_t b, e;
            const ferry_kernel *other = &g->node.at[a->reader[j]].call;
            if (!slice_of_rows(other, count, &row_i, &b, &e))
                column_of_rows(other, count, row, &b, &e);
            if (begin < e && b < end)
                return false;
        }
    }
    return covered == row;
}

/* dx[...] += alpha dy[...] where the copy covers a part of x only. */
static Status scatter_part(Autodiff *a, int x, const ferry_kernel *g, int dy)
{
    int root = graph_root(a->g, x);
    const Tensor t = a->g->tensor.at[root];
    Target target;
    if (t.kind != TENSOR_PARAM && a->grad[root] < 0)
        a->parts[root] = readers_partition(a, root);
    if (a->parts[root]) {
        int to = a->grad[root];
        if (to < 0) {
            TRY(grad_begin(a, x, true, &target));
            to = target.tensor;
        }
        return grad_emit(a, g, (int[]){to, dy});
    }
    ferry_kernel add = *g;
    TRY(grad_begin(a, x, true, &target));
    if (!target.accumulate) { /* the first contribution, or one beside shared bytes */
        ferry_kernel zero = call_new(FERRY_OP_FILL, t.dtype);
        zero.alpha = 0;
        zero.n = t.count;
        TRY(grad_emit(a, &zero, (int[]){target.tensor}));
    }
    add.accumulate = true;
    TRY(grad_emit(a, &add, (int[]){target.tensor, dy}));
    return grad_end(a, &target);
}

Status grad_scatter(Autodiff *a, int x, const ferry_kernel *g, int dy)
{
    int64_t count = dims_count(g->rank, g->dim);
    if (count != a->g->tensor.at[x].count)
        return scatter_part(a, x, g, dy);
    if (call_is_identity_copy(g) && count == a->g->tensor.at[dy].count)
        return grad_pass(a, x, dy);
    return grad_write(a, x, g, true, (int[FERRY_MAX_ARGS]){-1, dy});
}

Status grad_copy(Autodiff *a, const Node *n)
{
    const ferry_kernel *c = &n->call;
    int x = n->arg[1], dy = grad_in(a, n, 0);
    uint32_t summed = 0;
    for (int i = 0; i < c->rank; i++)
        if (c->stride[1][i] == 0 && c->dim[i] != 1)
            summed |= 1u << i;
    if (summed == 0) {
        ferry_kernel g =
            call_copy(c->dtype, c->rank, c->dim, c->offset[1], c->stride[1], c->offset[0], c->stride[0], c->alpha);
        return grad_scatter(a, x, &g, dy);
    }
    /* dy in the order of the iteration space */
    int64_t dense[MAX_RANK];
    strides_dense(c->rank, c->dim, dense);
    ferry_kernel gather = call_copy(c->dtype, c->rank, c->dim, 0, dense, c->offset[0], c->stride[0], c->alpha);
    if (!call_is_identity_copy(&gather) || gather.dim[0] != a->g->tensor.at[n->arg[0]].count) {
        int ordered;
        TRY(grad_temp(a, x, c->rank, c->dim, &ordered));
        TRY(grad_emit(a, &gather, (int[]){ordered, dy}));
        dy = ordered;
    }
    /* summed over repeated reads; what is left is a copy without repetition */
    ferry_kernel sum = call_reduce(c->dtype, FERRY_SUM, c->rank, c->dim, summed);
    int rank = 0;
    int64_t dim[MAX_RANK], to[MAX_RANK], from[MAX_RANK];
    for (int i = 0; i < c->rank; i++)
        if (!(summed >> i & 1)) {
            dim[rank] = c->dim[i];
            to[rank++] = c->stride[1][i];
        }
    strides_dense(rank, dim, from);
    ferry_kernel g = call_copy(c->dtype, rank, dim, c->offset[1], to, 0, from, 1);
    if (call_is_identity_copy(&g) && dims_count(rank, dim) == a->g->tensor.at[x].count)
        return grad_write(a, x, &sum, true, (int[FERRY_MAX_ARGS]){-1, dy});
    int temp;
    TRY(grad_temp(a, x, rank, dim, &temp));
    TRY(grad_emit(a, &sum, (int[]){temp, dy}));
    return grad_scatter(a, x, &g, temp);
}

/* From one floating type to another. */
Status grad_cast(Autodiff *a, const Node *n)
{
    ferry_kernel back = call_new(FERRY_OP_CAST, n->call.dtype2);
    back.dtype2 = n->call.dtype;
    back.n = n->call.n;
    return grad_write(a, n->arg[1], &back, false, (int[FERRY_MAX_ARGS]){-1, grad_in(a, n, 0)});
}
