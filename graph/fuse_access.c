/* fuse_access.c - walks with fixed steps over a tensor, and what becomes of them on the other side of a copy. */
#include "graph/fuse.h"

bool access_add(Access *a, int tag, int64_t size, int64_t stride)
{
    if (size == 1)
        return true;
    if (a->count == MOST_PIECES)
        return false;
    a->piece[a->count++] = (Piece){tag, size, stride};
    return true;
}

/* order[]: pieces with a step, the smallest step first. */
static int sort_pieces(const Access *a, int *order)
{
    int count = 0;
    for (int i = 0; i < a->count; i++) {
        if (a->piece[i].stride == 0)
            continue;
        int at = count++;
        for (; at > 0 && a->piece[order[at - 1]].stride > a->piece[i].stride; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return count;
}

/* Does the walk visit each of `count` elements once, apart from steps of 0? */
static bool is_dense(const Access *a, int64_t count, int *order, int *n_order)
{
    int64_t step = 1;
    *n_order = sort_pieces(a, order);
    for (int i = 0; i < *n_order; i++) {
        if (a->piece[order[i]].stride != step)
            return false;
        step *= a->piece[order[i]].size;
    }
    return a->offset == 0 && step == count;
}

/* Splits piece i into an outer one and an inner one of this size. */
static bool split(Access *a, int i, int64_t inner)
{
    if (a->count == MOST_PIECES || a->piece[i].size % inner != 0)
        return false;
    for (int j = a->count++; j > i; j--)
        a->piece[j] = a->piece[j - 1];
    a->piece[i].size /= inner;
    a->piece[i].stride *= inner;
    a->piece[i + 1].size = inner;
    return true;
}

bool access_through(const Graph *g, const Node *copy, int side, const Access *a, Access *out)
{
    const ferry_kernel *c = &copy->call;
    if (c->op != FERRY_OP_COPY || c->alpha != 1 || c->accumulate || c->offset[side] != 0)
        return false;
    Access from = {.root = a->root}, walk = *a;
    int order[MOST_PIECES], n_order, by_step[MOST_PIECES], n_step;
    for (int i = 0; i < c->rank; i++)
        if (!access_add(&from, i, c->dim[i], c->stride[side][i]))
            return false;
    int64_t count = g->tensor.at[graph_root(g, copy->arg[side])].count;
    if (!is_dense(&from, count, by_step, &n_step) || n_step != from.count)
        return false;
    /* the walk's pieces and the copy's, both from the smallest step on: each piece of the walk goes along with a part of
     * one dimension of the copy, or is split where that dimension ends */
    int64_t to[MOST_PIECES], left = 1, step = 0;
    int at = 0;
    for (int i = 0;; i++) {
        if (!is_dense(&walk, count, order, &n_order))
            return false;
        if (i == n_order)
            break;
        if (left == 1) {
            int dim = from.piece[by_step[at++]].tag;
            left = c->dim[dim];
            step = c->stride[1 - side][dim];
        }
        int64_t size = walk.piece[order[i]].size;
        if (left % size != 0) {
            if (size % left != 0 || !split(&walk, order[i], left))
                return false;
            size = left;
        }
        to[i] = step;
        step *= size;
        left /= size;
    }
    for (int i = 0; i < n_order; i++)
        walk.piece[order[i]].stride = to[i];
    walk.root = graph_root(g, copy->arg[1 - side]);
    walk.offset = c->offset[1 - side];
    *out = walk;
    return true;
}

bool access_axis(const Access *a, int tag, int64_t *size, int64_t *stride)
{
    *size = 1;
    *stride = 0;
    for (int i = a->count - 1; i >= 0; i--) {
        const Piece *p = &a->piece[i];
        if (p->tag != tag)
            continue;
        if (*size == 1)
            *stride = p->stride;
        else if (p->stride != *stride * *size)
            return false;
        *size *= p->size;
    }
    return true;
}

/* Index of the n-th piece of a tag from the innermost on, -1. */
static int nth(const Access *a, int tag, int n)
{
    for (int i = a->count - 1; i >= 0; i--)
        if (a->piece[i].tag == tag && n-- == 0)
            return i;
    return -1;
}

bool access_take(Access *a, int from, int to, int64_t size)
{
    while (size > 1) {
        int i = nth(a, from, 0);
        if (i < 0)
            return false;
        if (a->piece[i].size > size) {
            if (!split(a, i, size))
                return false;
            i++;
        }
        if (size % a->piece[i].size != 0)
            return false;
        size /= a->piece[i].size;
        a->piece[i].tag = to;
    }
    return true;
}

bool access_align(Access *const *a, int count, int tag)
{
    for (int n = 0;; n++) {
        int64_t least = INT64_MAX;
        int ended = 0;
        for (int i = 0; i < count; i++) {
            int at = nth(a[i], tag, n);
            ended += at < 0;
            if (at >= 0 && a[i]->piece[at].size < least)
                least = a[i]->piece[at].size;
        }
        if (ended > 0)
            return ended == count;
        for (int i = 0; i < count; i++) {
            int at = nth(a[i], tag, n);
            if (a[i]->piece[at].size != least && !split(a[i], at, least))
                return false;
        }
    }
}

int64_t access_elements(const Access *a)
{
    int64_t count = 1;
    for (int i = 0; i < a->count; i++)
        count *= a->piece[i].stride != 0 ? a->piece[i].size : 1;
    return count;
}

bool access_rows(const Graph *g, const Access *a, int64_t *pitch, int64_t *width)
{
    int order[MOST_PIECES], count = sort_pieces(a, order), i = 0;
    int64_t step = 1;
    for (; i < count && a->piece[order[i]].stride == step; i++)
        step *= a->piece[order[i]].size;
    *width = step;
    *pitch = step = i < count ? a->piece[order[i]].stride : g->tensor.at[a->root].count;
    for (; i < count; i++) {
        if (a->piece[order[i]].stride != step)
            return false;
        step *= a->piece[order[i]].size;
    }
    return step == g->tensor.at[a->root].count && a->offset >= 0 && a->offset + *width <= *pitch;
}
