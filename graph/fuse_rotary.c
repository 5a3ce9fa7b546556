/* fuse_rotary.c - rotary positions that are spelled out: x * cos + concat(-x[half:], x[:half]) * sin.
 *
 * needs: pruned forward nodes   fills: ROTARY nodes   keeps: indices   spoils: nodes without a reader are left
 *
 * A match starts at the sum and goes up. Where x is a transpose of heads, the kernel reads what the transpose reads. */
#include <string.h>

#include "graph/fuse.h"

typedef struct Rotary {
    int x, cosine, sine; /* tensors; n elements are turned at a time */
    int64_t n;
    int cosine_node, sine_node; /* the products with them */
    int cosine_operand, sine_operand;
} Rotary;

static const Node *maker(const Graph *g, const Links *l, int tensor, ferry_op op)
{
    int i = fuse_maker(g, l, tensor);
    return i >= 0 && g->node.at[i].call.op == op ? &g->node.at[i] : NULL;
}

/* A slice of `half` elements of each row of n, from `from` on: the tensor that it is of, -1. */
static int sliced(const Graph *g, const Links *l, int tensor, int64_t n, int64_t half, int64_t from)
{
    const Node *copy = maker(g, l, tensor, FERRY_OP_COPY);
    if (copy == NULL)
        return -1;
    const ferry_kernel *c = &copy->call;
    int64_t rows = g->tensor.at[copy->arg[1]].count / n;
    bool fits = c->alpha == 1 && !c->accumulate && c->offset[0] == 0 && c->offset[1] == from && c->rank == 2 &&
                c->dim[0] == rows && c->dim[1] == half && c->stride[0][0] == half && c->stride[0][1] == 1 &&
                c->stride[1][0] == n && c->stride[1][1] == 1;
    return fits ? copy->arg[1] : -1;
}

/* The tensor whose halves have changed places, the second one negated, in `tensor`; -1. Two copies write the halves. */
static int turned(const Graph *g, const Links *l, int tensor, int64_t *n)
{
    int root = graph_root(g, tensor), x[2] = {-1, -1};
    if (g->tensor.at[root].kind != TENSOR_VALUE || l->writers[root] != 2 || fuse_reader(g, l, tensor) < 0)
        return -1;
    for (int i = 0; i < g->n_forward; i++) {
        const Node *part = &g->node.at[i];
        const ferry_kernel *c = &part->call;
        if (graph_root(g, part->arg[0]) != root)
            continue;
        if (c->op != FERRY_OP_COPY || c->alpha != 1 || c->accumulate || c->rank != 2 || c->stride[0][1] != 1 ||
            c->stride[0][0] != 2 * c->dim[1] || c->offset[1] != 0 || c->stride[1][1] != 1 || c->stride[1][0] != c->dim[1] ||
            c->dim[0] * 2 * c->dim[1] != g->tensor.at[root].count)
            return -1;
        const int64_t half = c->dim[1];
        const Node *negated = c->offset[0] == 0 ? maker(g, l, part->arg[1], FERRY_OP_UNARY) : NULL;
        if (c->offset[0] == 0)
            x[0] = negated != NULL && negated->call.fn == FERRY_NEG ? sliced(g, l, negated->arg[1], 2 * half, half, half) : -1;
        else if (c->offset[0] == half)
            x[1] = sliced(g, l, part->arg[1], 2 * half, half, 0);
        *n = 2 * half;
    }
    return x[0] >= 0 && x[1] >= 0 && graph_root(g, x[0]) == graph_root(g, x[1]) ? x[0] : -1;
}

static bool find(const Graph *g, const Links *l, const bool *depends, const Node *add, Rotary *r)
{
    const ferry_kernel *c = &add->call;
    if (c->op != FERRY_OP_BINARY || c->fn != FERRY_ADD || c->dtype != g->precision || c->rank != 1 || c->stride[0][0] != 1 ||
        c->stride[1][0] != 1)
        return false;
    for (int with_sine = 1; with_sine <= 2; with_sine++) {
        r->cosine_node = fuse_maker(g, l, add->arg[3 - with_sine]);
        r->sine_node = fuse_maker(g, l, add->arg[with_sine]);
        if (r->cosine_node < 0 || r->sine_node < 0 || fuse_reader(g, l, add->arg[1]) < 0 || fuse_reader(g, l, add->arg[2]) < 0)
            return false;
        const Node *a = &g->node.at[r->cosine_node], *b = &g->node.at[r->sine_node];
        if (a->call.op != FERRY_OP_BINARY || a->call.fn != FERRY_MUL || b->call.op != FERRY_OP_BINARY || b->call.fn != FERRY_MUL)
            return false;
        for (int which = 0; which < 4; which++) {
            int x = which % 2, h = which / 2;
            r->x = a->arg[1 + x];
            if (turned(g, l, b->arg[1 + h], &r->n) < 0 ||
                graph_root(g, turned(g, l, b->arg[1 + h], &r->n)) != graph_root(g, r->x))
                continue;
            r->cosine = a->arg[2 - x];
            r->sine = b->arg[2 - h];
            r->cosine_operand = 1 - x;
            r->sine_operand = 1 - h;
            return !depends[graph_root(g, r->cosine)] && !depends[graph_root(g, r->sine)] &&
                   g->tensor.at[r->x].count == g->tensor.at[add->arg[0]].count;
        }
    }
    return false;
}

enum { SINE, X, COSINE, ROWS }; /* rows of strides */

/* Brings the call to the common dimensions of its own and another space, of which the strides become row `row`. */
static bool meet(ferry_kernel *call, int rank, const int64_t *dim, const int64_t *stride, int row)
{
    CommonSpace c;
    int64_t own[FERRY_MAX_RANK] = {0};
    if (!space_common(call->rank, call->dim, rank, dim, &c))
        return false;
    for (int i = 0; i < ROWS; i++) {
        space_strides(&c, i == row, i == row ? stride : call->stride[i], own);
        memcpy(call->stride[i], own, sizeof(own));
    }
    call->rank = c.rank;
    memcpy(call->dim, c.dim, sizeof(c.dim));
    return true;
}

static bool is_dense(int rank, const int64_t *dim, const int64_t *stride)
{
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; i--) {
        if (dim[i] != 1 && stride[i] != step)
            return false;
        step *= dim[i];
    }
    return true;
}

/* Where x is a copy of all elements of a tensor in another order, the call reads that one. */
static void look_through(const Graph *g, const Links *l, Rotary *r, ferry_kernel *call)
{
    const Node *copy = maker(g, l, r->x, FERRY_OP_COPY);
    if (copy == NULL)
        return;
    const ferry_kernel *c = &copy->call;
    const int64_t count = g->tensor.at[r->x].count;
    int64_t last = 1;
    for (int i = 0; i < c->rank; i++) {
        if (c->stride[1][i] <= 0)
            return;
        last += (c->dim[i] - 1) * c->stride[1][i];
    }
    ferry_kernel through = *call;
    if (c->alpha != 1 || c->accumulate || c->offset[0] != 0 || c->offset[1] != 0 || last != count ||
        g->tensor.at[copy->arg[1]].count != count || !is_dense(c->rank, c->dim, c->stride[0]) ||
        !meet(&through, c->rank, c->dim, c->stride[1], X))
        return;
    *call = through;
    r->x = copy->arg[1];
}

/* The call: its innermost dimensions make up a row, with neighbours beside each other in x, cos and sin. */
static bool set_call(const Graph *g, const Links *l, Rotary *r, ferry_kernel *out)
{
    const ferry_kernel *a = &g->node.at[r->cosine_node].call, *b = &g->node.at[r->sine_node].call;
    const int64_t rows[] = {g->tensor.at[r->x].count / r->n, r->n};
    if (!is_dense(a->rank, a->dim, a->stride[1 - r->cosine_operand]) || !is_dense(b->rank, b->dim, b->stride[1 - r->sine_operand]))
        return false;
    ferry_kernel call = call_new(FERRY_OP_ROTARY, g->precision);
    call.rank = 2;
    memcpy(call.dim, rows, sizeof(rows));
    strides_dense(2, rows, call.stride[X]);
    look_through(g, l, r, &call);
    if (!meet(&call, a->rank, a->dim, a->stride[r->cosine_operand], COSINE) ||
        !meet(&call, b->rank, b->dim, b->stride[r->sine_operand], SINE))
        return false;
    int64_t size = 1;
    for (int d = call.rank - 1; d >= 0; d--) {
        if (call.stride[SINE][d] != call.stride[COSINE][d])
            return false;
        if (size == r->n)
            continue;
        if (call.stride[X][d] != size || call.stride[COSINE][d] != size)
            return false;
        size *= call.dim[d];
        call.rank = d;
    }
    call.n = r->n;
    space_simplify(&call.rank, call.dim, call.stride, ROWS);
    memset(call.stride[SINE], 0, sizeof(call.stride[SINE]));
    *out = call;
    return size == r->n;
}

Status graph_fuse_rotary(Diag *d, Graph *g)
{
    Links l;
    bool *depends;
    TRY(fuse_links(d, g, &l));
    TRY(fuse_dependent(d, g, &depends));
    for (int i = 0; i < g->n_forward; i++) {
        Node *n = &g->node.at[i];
        Rotary r = {0};
        ferry_kernel call;
        if (!find(g, &l, depends, n, &r) || !set_call(g, &l, &r, &call))
            continue;
        n->call = call;
        n->onnx_op = "RotaryEmbedding";
        n->arg[1] = r.x;
        n->arg[2] = r.cosine;
        n->arg[3] = r.sine;
    }
    return ST_OK;
}
