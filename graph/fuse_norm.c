/* fuse_norm.c - normalizations that are spelled out: RMS (Llama's) and layer normalization before opset 17.
 *
 * needs: pruned forward nodes   fills: LAYERNORM nodes   keeps: indices   spoils: nodes without a reader are left
 *
 *     u = x, or x - mean(x);  r = 1 / sqrt(mean(u * u) + eps);  y = (u * r) * scale, + bias
 *
 * over the last axes, seen as n columns of m rows. A match starts at the mean of squares and follows the only reader of
 * each result to the end. */
#include "graph/fuse.h"

typedef struct Norm {
    int64_t m, n;
    int u, x, scale, bias; /* roots; bias -1 */
    bool centered;
    double eps;
    int last; /* node whose output is the normalization's */
} Norm;

typedef enum Walk { DENSE, BY_ROW, BY_COLUMN } Walk;

/* Does a kernel over [m, n] read an operand in this way? */
static bool walks(const ferry_kernel *c, int which, const Norm *p, Walk how)
{
    const int64_t *s = c->stride[which];
    if (p->m == 1)
        return c->rank == 1 && c->dim[0] == p->n && s[0] == (how == BY_ROW ? 0 : 1);
    if (c->rank != 2 || c->dim[0] != p->m || c->dim[1] != p->n)
        return false;
    return how == DENSE ? s[0] == p->n && s[1] == 1 : how == BY_ROW ? s[0] == 1 && s[1] == 0 : s[0] == 0 && s[1] == 1;
}

static bool is_binary(const Node *n, ferry_fn fn)
{
    return n->call.op == FERRY_OP_BINARY && n->call.fn == fn;
}

static bool is_unary(const Node *n, ferry_fn fn)
{
    return n->call.op == FERRY_OP_UNARY && n->call.fn == fn;
}

/* A mean over the last axes of more than one element. */
static bool is_row_mean(const Node *n, Norm *p)
{
    const ferry_kernel *c = &n->call;
    if (c->op != FERRY_OP_REDUCE || c->fn != FERRY_MEAN || c->rank > 2 || c->axes != 1u << (c->rank - 1))
        return false;
    p->m = c->rank == 2 ? c->dim[0] : 1;
    p->n = c->dim[c->rank - 1];
    return p->n > 1;
}

/* The root of which `tensor` is the square, -1. */
static int squared(const Graph *g, const Links *l, int tensor)
{
    int maker = fuse_maker(g, l, tensor);
    if (maker < 0)
        return -1;
    const Node *n = &g->node.at[maker];
    double number;
    bool power = is_binary(n, FERRY_POW) && fuse_number(g, n->arg[2], &number) && number == 2;
    bool product = is_binary(n, FERRY_MUL) && graph_root(g, n->arg[1]) == graph_root(g, n->arg[2]) && n->call.rank == 1;
    return is_unary(n, FERRY_SQUARE) || power || product ? graph_root(g, n->arg[1]) : -1;
}

/* u = x - mean(x) over the same rows, of which nothing else is read. */
static bool find_centered(const Graph *g, const Links *l, Norm *p, int square_reads)
{
    Norm same;
    int maker = fuse_maker(g, l, p->u);
    if (maker < 0 || fuse_reader_count(g, l, p->u) != 1 + square_reads)
        return false;
    const Node *n = &g->node.at[maker];
    if (!is_binary(n, FERRY_SUB) || !walks(&n->call, 0, p, DENSE) || !walks(&n->call, 1, p, BY_ROW) ||
        fuse_reader(g, l, n->arg[2]) != maker)
        return false;
    int mean = fuse_maker(g, l, n->arg[2]);
    if (mean < 0 || !is_row_mean(&g->node.at[mean], &same) || same.m != p->m || same.n != p->n ||
        graph_root(g, g->node.at[mean].arg[1]) != graph_root(g, n->arg[1]))
        return false;
    p->x = graph_root(g, n->arg[1]);
    return true;
}

/* From the root z = sqrt(..) or the inverse r = 1 / z of one tensor (`inverse` tells which) to the node that scales u by
 * it; -1. */
static int find_scaling(const Graph *g, const Links *l, const Norm *p, int tensor, bool inverse)
{
    double number;
    int reader = fuse_reader(g, l, tensor);
    const Node *n = reader >= 0 ? &g->node.at[reader] : NULL;
    if (n != NULL && !inverse &&
        (is_unary(n, FERRY_RECIPROCAL) ||
         (is_binary(n, FERRY_DIV) && fuse_number(g, n->arg[1], &number) && number == 1)))
        return find_scaling(g, l, p, n->arg[0], true);
    if (n == NULL || !is_binary(n, inverse ? FERRY_MUL : FERRY_DIV))
        return -1;
    int u = graph_root(g, n->arg[1]) == p->u ? 0 : 1;
    if (graph_root(g, n->arg[1 + u]) != p->u || (u == 1 && !inverse))
        return -1;
    return walks(&n->call, u, p, DENSE) && walks(&n->call, 1 - u, p, BY_ROW) ? reader : -1;
}

/* The operand of [n] elements that is combined with each row of `tensor` by fn, and the node that does it; -1. */
static int find_by_column(const Graph *g, const Links *l, const Norm *p, int tensor, ferry_fn fn, int *node)
{
    *node = fuse_reader(g, l, tensor);
    if (*node < 0 || !is_binary(&g->node.at[*node], fn))
        return -1;
    const Node *n = &g->node.at[*node];
    int at = graph_root(g, n->arg[1]) == graph_root(g, tensor) ? 0 : 1, other = n->arg[2 - at];
    bool fits = walks(&n->call, at, p, DENSE) && walks(&n->call, 1 - at, p, BY_COLUMN);
    return fits && g->tensor.at[other].count == p->n ? other : -1;
}

static bool find(const Graph *g, const Links *l, const Node *mean, Norm *p)
{
    bool first;
    if (!is_row_mean(mean, p) || mean->call.dtype != g->precision)
        return false;
    p->u = squared(g, l, mean->arg[1]);
    int square = p->u >= 0 ? fuse_maker(g, l, mean->arg[1]) : -1, add = fuse_reader(g, l, mean->arg[0]);
    if (square < 0 || fuse_reader_count(g, l, mean->arg[1]) != 1 || add < 0 ||
        !is_binary(&g->node.at[add], FERRY_ADD) || fuse_operand(g, &g->node.at[add], &p->eps, &first) < 0)
        return false;
    int root = fuse_reader(g, l, g->node.at[add].arg[0]), normal = -1;
    if (root < 0)
        return false;
    const Node *n = &g->node.at[root];
    double power;
    if (is_unary(n, FERRY_SQRT))
        normal = find_scaling(g, l, p, n->arg[0], false);
    else if (is_binary(n, FERRY_POW) && fuse_number(g, n->arg[2], &power) && power == -0.5)
        normal = find_scaling(g, l, p, n->arg[0], true);
    if (normal < 0)
        return false;
    p->scale = find_by_column(g, l, p, g->node.at[normal].arg[0], FERRY_MUL, &p->last);
    if (p->scale < 0)
        return false;
    p->x = p->u;
    p->centered = find_centered(g, l, p, is_binary(&g->node.at[square], FERRY_MUL) ? 2 : 1);
    int with_bias;
    p->bias = find_by_column(g, l, p, g->node.at[p->last].arg[0], FERRY_ADD, &with_bias);
    p->last = p->bias >= 0 ? with_bias : p->last;
    return true;
}

static Status rewrite(Diag *d, Graph *g, const Norm *p)
{
    int mean = -1, rstd;
    const char *name = g->node.at[p->last].name;
    if (p->centered)
        TRY(graph_add_tensor(d, g, graph_made_up_name(g, name), TENSOR_VALUE, graph_wide_dtype(g), 1, &p->m, &mean));
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, name), TENSOR_VALUE, graph_wide_dtype(g), 1, &p->m, &rstd));
    Node *n = &g->node.at[p->last];
    n->call = call_new(FERRY_OP_LAYERNORM, g->precision);
    n->call.m = p->m;
    n->call.n = p->n;
    n->call.eps = p->eps;
    const int arg[] = {n->arg[0], mean, rstd, p->x, p->scale, p->bias};
    for (int k = 0; k < 6; k++)
        n->arg[k] = arg[k];
    return ST_OK;
}

Status graph_fuse_norms(Diag *d, Graph *g)
{
    Links l;
    TRY(fuse_links(d, g, &l));
    for (int i = 0; i < g->n_forward; i++) {
        Norm p;
        if (find(g, &l, &g->node.at[i], &p))
            TRY(rewrite(d, g, &p));
    }
    graph_index_producers(g);
    return ST_OK;
}
