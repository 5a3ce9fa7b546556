/* fuse_activation.c - GELU, its approximation by a tanh, and SiLU, however an exporter spells them.
 *
 * needs: pruned forward nodes   fills: UNARY nodes   keeps: indices   spoils: nodes without a reader are left
 *
 * What a group of kernels computes is asked rather than read off: a group of analytic functions of one tensor and numbers
 * is evaluated at some points, and is the activation when it agrees at all of them. Constants may be rounded to single
 * precision in the file, or to the graph's. The group grows backwards from its last node, always by the operand that was
 * computed last, and is tried whenever everything in it depends on one tensor. */
#include <math.h>
#include <string.h>

#include "graph/fuse.h"
#include "runtime/both.h"

#define T       double
#define F(name) name##_f64
#define M(name) name
#include "runtime/host_scalar.inc"
#undef T
#undef F
#undef M

enum { MOST_NODES = 16, POINTS = 64 };

typedef struct Group {
    int count, node[MOST_NODES]; /* from the last one back */
    ferry_fn mark;               /* the function that tells what it may be: TANH, ERF or SIGMOID; FN_NONE before */
} Group;

static double point(int i)
{
    return 0.37 * i - 11.9;
}

/* Operand `which` of a unary or binary node: a number, or a tensor of the output's size read from end to end. */
static bool plain_operand(const Graph *g, const Node *n, int which)
{
    const Tensor *x = &g->tensor.at[n->arg[1 + which]], *y = &g->tensor.at[n->arg[0]];
    double number;
    if (fuse_number(g, n->arg[1 + which], &number))
        return true;
    return x->dtype == y->dtype && x->count == y->count &&
           (n->call.op == FERRY_OP_UNARY || (n->call.rank == 1 && n->call.stride[which][0] == 1));
}

static bool is_plain(const Graph *g, const Node *n)
{
    const ferry_kernel *c = &n->call;
    if (c->dtype != g->precision)
        return false;
    if (c->op == FERRY_OP_UNARY)
        return (c->fn == FERRY_NEG || c->fn == FERRY_EXP || c->fn == FERRY_TANH || c->fn == FERRY_ERF ||
                c->fn == FERRY_SIGMOID || c->fn == FERRY_RECIPROCAL || c->fn == FERRY_SQUARE) &&
               plain_operand(g, n, 0);
    return c->op == FERRY_OP_BINARY && c->fn >= FERRY_ADD && c->fn <= FERRY_POW && plain_operand(g, n, 0) &&
           plain_operand(g, n, 1);
}

/* value[i] = operand at each point: x itself, a number, or what a node of the group computed. */
static void operand_values(const Graph *g, const Group *group, double (*of_node)[POINTS], int x, int tensor, double *value)
{
    double number;
    bool is_number = fuse_number(g, tensor, &number);
    for (int i = 0; i < POINTS; i++)
        value[i] = is_number ? number : point(i);
    for (int k = 0; k < group->count && graph_root(g, tensor) != x; k++)
        if (graph_root(g, g->node.at[group->node[k]].arg[0]) == graph_root(g, tensor))
            memcpy(value, of_node[k], sizeof(of_node[k]));
}

/* Is the group fn of x at all points? */
static bool agrees(const Graph *g, const Group *group, int x, ferry_fn fn)
{
    double of_node[MOST_NODES][POINTS], a[POINTS], b[POINTS];
    double tolerance = g->precision == FERRY_BF16 ? 1e-2 : 1e-6;
    for (int k = group->count - 1; k >= 0; k--) {
        const Node *n = &g->node.at[group->node[k]];
        operand_values(g, group, of_node, x, n->arg[1], a);
        if (n->call.op == FERRY_OP_BINARY)
            operand_values(g, group, of_node, x, n->arg[2], b);
        for (int i = 0; i < POINTS; i++)
            of_node[k][i] =
                n->call.op == FERRY_OP_UNARY ? unary_f64(n->call.fn, a[i]) : binary_f64(n->call.fn, a[i], b[i]);
    }
    for (int i = 0; i < POINTS; i++) {
        double expected = unary_f64(fn, point(i));
        if (!(fabs(of_node[0][i] - expected) <= tolerance * fmax(1, fabs(expected))))
            return false;
    }
    return true;
}

/* Every reader of what the group computes, but for its result, is in the group. */
static bool is_closed(const Graph *g, const Links *l, const Group *group)
{
    for (int k = 1; k < group->count; k++) {
        int y = graph_root(g, g->node.at[group->node[k]].arg[0]);
        if (l->kept[y])
            return false;
        for (int i = l->reader_at[y]; i < l->reader_at[y + 1]; i++) {
            bool inside = false;
            for (int j = 0; j < k; j++)
                inside |= group->node[j] == l->reader[i];
            if (!inside)
                return false;
        }
    }
    return true;
}

static void add_node(const Graph *g, Group *group, int node)
{
    ferry_fn fn = g->node.at[node].call.fn;
    group->node[group->count++] = node;
    if (g->node.at[node].call.op == FERRY_OP_UNARY) {
        if (fn == FERRY_TANH || fn == FERRY_ERF || fn == FERRY_SIGMOID)
            group->mark = fn;
        else if (fn == FERRY_EXP) /* a sigmoid spelled out */
            group->mark = FERRY_SIGMOID;
    }
}

/* The tensors that the group reads and does not compute: how many roots, and the one that was computed last. */
static int open_operands(const Graph *g, const Group *group, int *last)
{
    int count = 0, found[2 * MOST_NODES];
    double number;
    *last = -1;
    for (int k = 0; k < group->count; k++) {
        const Node *n = &g->node.at[group->node[k]];
        for (int a = 1; a <= (n->call.op == FERRY_OP_BINARY ? 2 : 1); a++) {
            if (fuse_number(g, n->arg[a], &number))
                continue;
            int root = graph_root(g, n->arg[a]);
            bool known = false;
            for (int j = 0; j < group->count; j++)
                known |= graph_root(g, g->node.at[group->node[j]].arg[0]) == root;
            for (int j = 0; j < count; j++)
                known |= found[j] == root;
            if (known)
                continue;
            found[count++] = root;
            if (*last < 0 || g->tensor.at[root].producer > g->tensor.at[*last].producer)
                *last = root;
        }
    }
    return count;
}

/* The activation that ends in `node` and its operand's root; FN_NONE when there is none. */
static ferry_fn find(const Graph *g, const Links *l, int node, int *x)
{
    Group group = {0};
    add_node(g, &group, node);
    for (;;) {
        int last, open = open_operands(g, &group, &last);
        if (last < 0)
            return FERRY_FN_NONE;
        ferry_fn fn = group.mark == FERRY_ERF       ? FERRY_GELU
                      : group.mark == FERRY_TANH    ? FERRY_GELU_TANH
                      : group.mark == FERRY_SIGMOID ? FERRY_SILU
                                                    : FERRY_FN_NONE;
        if (open == 1 && fn != FERRY_FN_NONE && group.count > 1 && agrees(g, &group, last, fn) &&
            is_closed(g, l, &group)) {
            *x = last;
            return fn;
        }
        int maker = fuse_maker(g, l, last);
        if (maker < 0 || group.count == MOST_NODES || !is_plain(g, &g->node.at[maker]))
            return FERRY_FN_NONE;
        add_node(g, &group, maker);
    }
}

Status graph_fuse_activations(Diag *d, Graph *g)
{
    Links l;
    TRY(fuse_links(d, g, &l));
    for (int i = 0; i < g->n_forward; i++) {
        Node *n = &g->node.at[i];
        if (n->call.op != FERRY_OP_BINARY || n->call.fn < FERRY_MUL || n->call.fn > FERRY_DIV || !is_plain(g, n))
            continue;
        int x;
        ferry_fn fn = find(g, &l, i, &x);
        if (fn == FERRY_FN_NONE)
            continue;
        n->call = call_unary(FERRY_OP_UNARY, g->precision, fn, g->tensor.at[x].count);
        n->arg[1] = x;
        n->arg[2] = -1;
    }
    return ST_OK;
}
