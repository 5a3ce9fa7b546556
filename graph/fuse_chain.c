/* fuse_chain.c - element-wise kernels that work on the same elements as one kernel with a program.
 *
 * needs: nodes in execution order, forward and backward   fills: FUSED nodes
 * keeps: what every tensor that is left holds   spoils: node and tensor indices, Tensor.grad_of
 *
 * A chain is a set of nodes: each has as many elements as the others, and reads what another one made in the same order, or an
 * input that another one reads as well. It becomes one node in the place of one of them. What only its own nodes read is never
 * written to memory; what others read is one of its outputs. Copies that only place elements are no steps: the program reads
 * what they read.
 *
 * Nodes move when they become one. A tensor may be written by several nodes, the later ones adding to it, so a chain is good
 * only if every other node that writes what a member reads, or touches what it writes, stays before it or after it, wherever
 * that node's own chain goes.
 *
 * The backward pass keeps values of the forward pass alive. One that only a chain of the forward pass and chains of the
 * backward pass read, and which these can compute from what they read anyway, is computed again instead (a step of the gate of
 * a gated MLP: the largest activation of the layer, for an exponential an element).
 *
 * Nodes that read parameters are layers and stay alone. */
#include <string.h>

#include "graph/fuse.h"

enum {
    MOST_MEMBERS = 16,
    MOST_DISTANCE = 8, /* nodes between a member and the one that reads it: what waits for it stays alive */
    MOST_APART = 4,    /* nodes between members that have nothing but an input in common */
};

/* How one node touches a root. */
typedef struct Touch {
    int node;
    bool writes;
} Touch;

typedef struct Chain {
    int count, member[MOST_MEMBERS]; /* in execution order; forward nodes of a backward chain are computed again */
    int place;                       /* node that it replaces */
    bool dead;                       /* joined to another one */
} Chain;

typedef struct Chains {
    Diag *d;
    Graph *g;
    int *touch_at;    /* touches of root r: touch[touch_at[r]..touch_at[r + 1]), in execution order */
    Touch *touch;
    bool *kept;       /* by root: read from outside */
    bool *again;      /* by root: the backward chains that read it compute it again */
    bool *can;        /* by node: may be a member */
    int *chain_of;    /* by node: -1 */
    VEC(Chain) chain;
} Chains;

/* A chain as one node. */
typedef struct Draft {
    ferry_kernel call;
    int arg[FERRY_MAX_ARGS];
    int outputs, inputs;
    int root[MOST_MEMBERS], value[MOST_MEMBERS]; /* what each member makes, and the value that this is */
} Draft;

/* ---- questions --------------------------------------------------------------------------------------------------- */

/* Does a copy write all of a tensor, one element after the other? */
static bool writes_densely(const Graph *g, const Node *n)
{
    const ferry_kernel *c = &n->call;
    int64_t step = 1;
    for (int i = c->rank - 1; i >= 0; i--) {
        if (c->dim[i] != 1 && c->stride[0][i] != step)
            return false;
        step *= c->dim[i];
    }
    return c->offset[0] == 0 && step == g->tensor.at[n->arg[0]].count;
}

/* Neighbours in x are read one after the other, or one element for a whole row. */
static bool reads_in_rows(const ferry_kernel *c)
{
    for (int i = c->rank - 1; i >= 0; i--)
        if (c->dim[i] != 1)
            return c->stride[1][i] == 1 || c->stride[1][i] == 0;
    return true;
}

static bool can_be_member(const Graph *g, const Node *n)
{
    const ferry_kernel *c = &n->call;
    double number;
    switch (c->op) {
    case FERRY_OP_UNARY:
    case FERRY_OP_UNARY_GRAD:
    case FERRY_OP_BINARY_GRAD_A:
    case FERRY_OP_BINARY_GRAD_B:
    case FERRY_OP_WHERE:
        if (!dtype_is_float(c->dtype))
            return false;
        break;
    case FERRY_OP_BINARY: /* a power by a number may be computed by another way than one by a tensor */
        if (!dtype_is_float(c->dtype) || (c->fn == FERRY_POW && !fuse_number(g, n->arg[2], &number)))
            return false;
        break;
    case FERRY_OP_CAST:
        if (!dtype_is_float(c->dtype2) || (!dtype_is_float(c->dtype) && c->dtype != FERRY_BOOL))
            return false;
        break;
    case FERRY_OP_COPY:
        if (!dtype_is_float(c->dtype) || !writes_densely(g, n) || !reads_in_rows(c))
            return false;
        break;
    default:
        return false;
    }
    for (int k = 0; k < node_n_arg(n); k++) {
        if (n->arg[k] < 0)
            continue;
        TensorKind kind = g->tensor.at[n->arg[k]].kind;
        if (kind == TENSOR_PARAM || kind == TENSOR_STATE || kind == TENSOR_GRADIENT)
            return false;
    }
    return g->tensor.at[n->arg[0]].count > 0;
}

static Status find_touches(Chains *s)
{
    Graph *g = s->g;
    size_t tensors = (size_t)g->tensor.count;
    s->touch_at = ARENA_NEW(g->arena, int, tensors + 2);
    s->touch = ARENA_NEW(g->arena, Touch, (size_t)g->node.count * FERRY_MAX_ARGS + 1);
    s->kept = ARENA_NEW(g->arena, bool, tensors + 1);
    s->again = ARENA_NEW(g->arena, bool, tensors + 1);
    s->can = ARENA_NEW(g->arena, bool, g->node.count + 1);
    s->chain_of = ARENA_NEW(g->arena, int, g->node.count + 1);
    if (!s->touch_at || !s->touch || !s->kept || !s->again || !s->can || !s->chain_of)
        return diag_oom(s->d);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < g->node.count; i++)
            for (int k = 0; k < node_n_arg(&g->node.at[i]); k++) {
                int arg = g->node.at[i].arg[k];
                if (arg < 0)
                    continue;
                int r = graph_root(g, arg);
                if (pass == 0)
                    s->touch_at[r + 2]++;
                else
                    s->touch[s->touch_at[r + 1]++] = (Touch){i, k < node_n_out(&g->node.at[i])};
            }
        for (size_t r = 0; r < tensors && pass == 0; r++)
            s->touch_at[r + 2] += s->touch_at[r + 1];
    }
    if (g->loss >= 0)
        s->kept[graph_root(g, g->loss)] = true;
    for (int i = 0; i < g->n_output; i++)
        s->kept[graph_root(g, g->output[i])] = true;
    for (int i = 0; i < g->node.count; i++) {
        s->can[i] = can_be_member(g, &g->node.at[i]);
        s->chain_of[i] = -1;
    }
    return ST_OK;
}

static int member_index(const Chain *c, int node)
{
    for (int i = 0; i < c->count; i++)
        if (c->member[i] == node)
            return i;
    return -1;
}

static bool is_backward(const Chains *s, const Chain *c)
{
    return c->member[c->count - 1] >= s->g->n_forward;
}

/* A forward node in a backward chain. */
static bool is_again(const Chains *s, const Chain *c, int node)
{
    return is_backward(s, c) && node < s->g->n_forward;
}

static int writer_count(const Chains *s, int root)
{
    int count = 0;
    for (int i = s->touch_at[root]; i < s->touch_at[root + 1]; i++)
        count += s->touch[i].writes;
    return count;
}

/* Must the root be written to memory when `c` computes it? */
static bool is_output(const Chains *s, const Chain *c, int root)
{
    if (s->kept[root] || writer_count(s, root) != 1)
        return true;
    for (int i = s->touch_at[root]; i < s->touch_at[root + 1]; i++) {
        int node = s->touch[i].node;
        if (member_index(c, node) < 0 && !(s->again[root] && node >= s->g->n_forward))
            return true;
    }
    return false;
}

/* Does a node that is no member write the root between two nodes? */
static bool is_written_between(const Chains *s, const Chain *c, int root, int from, int to)
{
    for (int i = s->touch_at[root]; i < s->touch_at[root + 1]; i++) {
        const Touch *t = &s->touch[i];
        if (t->writes && t->node > from && t->node < to && member_index(c, t->node) < 0)
            return true;
    }
    return false;
}

/* Where a node is computed: with its chain. */
static int place_of(const Chains *s, int node)
{
    return s->chain_of[node] >= 0 ? s->chain.at[s->chain_of[node]].place : node;
}

/* Do all nodes that write the root, where `writes` those that read it as well, stay before or after the member when it goes to
 * `place`? */
static bool keeps_order(const Chains *s, const Chain *c, int root, int member, int place, bool writes)
{
    for (int i = s->touch_at[root]; i < s->touch_at[root + 1]; i++) {
        const Touch *t = &s->touch[i];
        if ((t->writes || writes) && member_index(c, t->node) < 0 && (t->node < member) != (place_of(s, t->node) < place))
            return false;
    }
    return true;
}

/* May all members be computed where the node `place` is? */
static bool fits_place(const Chains *s, const Chain *c, int place)
{
    for (int m = 0; m < c->count; m++) {
        int at = c->member[m];
        const Node *n = &s->g->node.at[at];
        bool again = is_again(s, c, at);
        for (int k = 0; k < node_n_arg(n); k++) {
            if (n->arg[k] < 0)
                continue;
            int root = graph_root(s->g, n->arg[k]);
            bool output = k < node_n_out(n);
            if (again && output)
                continue;
            if (again && writer_count(s, root) > 1)
                return false;
            if ((!output || is_output(s, c, root)) && !keeps_order(s, c, root, at, place, output))
                return false;
        }
    }
    return true;
}

/* The latest place, or the earliest one when some reader of a result cannot wait. */
static bool find_place(const Chains *s, const Chain *c, int *place)
{
    for (int m = c->count - 1; m >= 0; m--)
        if (!is_again(s, c, c->member[m]) && fits_place(s, c, c->member[m])) {
            *place = c->member[m];
            return true;
        }
    return false;
}

/* ---- iteration spaces -------------------------------------------------------------------------------------------- */

/* The node's own dimensions. */
static int space_of(const Node *n, int64_t *dim)
{
    const ferry_kernel *c = &n->call;
    if (c->op == FERRY_OP_UNARY || c->op == FERRY_OP_UNARY_GRAD || c->op == FERRY_OP_CAST) {
        dim[0] = c->n;
        return 1;
    }
    memcpy(dim, c->dim, (size_t)c->rank * sizeof(*dim));
    return c->rank;
}

/* Steps of input k of the node through these dimensions. */
static void steps_of(const Node *n, int k, int rank, const int64_t *dim, int64_t *stride)
{
    const ferry_kernel *c = &n->call;
    int row = c->op == FERRY_OP_BINARY || c->op == FERRY_OP_WHERE ? k
              : c->op == FERRY_OP_BINARY_GRAD_A || c->op == FERRY_OP_BINARY_GRAD_B ? k - 1
              : c->op == FERRY_OP_COPY                                             ? 1
                                                                                   : -1;
    if (row < 0)
        strides_dense(rank, dim, stride);
    else
        memcpy(stride, c->stride[row], (size_t)rank * sizeof(*stride));
}

/* Brings the draft to the common dimensions of what it has and the node's. */
static bool join_space(Draft *x, const Node *n, CommonSpace *c)
{
    int64_t dim[FERRY_MAX_RANK], stride[FERRY_MAX_RANK];
    int rank = space_of(n, dim);
    if (!space_common(x->call.rank, x->call.dim, rank, dim, c))
        return false;
    for (int i = 0; i < x->inputs; i++) {
        space_strides(c, 0, x->call.program.stride[i], stride);
        memcpy(x->call.program.stride[i], stride, sizeof(stride));
    }
    x->call.rank = c->rank;
    memcpy(x->call.dim, c->dim, sizeof(c->dim));
    return true;
}

static bool is_dense_walk(int rank, const int64_t *dim, const int64_t *stride)
{
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; i--) {
        if (stride[i] != step)
            return false;
        step *= dim[i];
    }
    return true;
}

/* ---- from a chain to a program ------------------------------------------------------------------------------------ */

static int add_step(Draft *x, ferry_program_step step)
{
    ferry_program *p = &x->call.program;
    if (p->steps == FERRY_PROGRAM_STEPS)
        return -1;
    p->step[p->steps] = step;
    return FERRY_PROGRAM_INPUTS + p->steps++;
}

/* A number as a step, made once. */
static int number_value(Draft *x, double number)
{
    const ferry_program *p = &x->call.program;
    for (int i = 0; i < p->steps; i++)
        if (p->step[i].op == FERRY_OP_FILL && memcmp(&p->step[i].alpha, &number, sizeof(number)) == 0)
            return FERRY_PROGRAM_INPUTS + i;
    return add_step(x, (ferry_program_step){FERRY_OP_FILL, FERRY_FN_NONE, -1, -1, -1, number});
}

/* An input with these steps, one that there is or a new one; -1: no room. */
static int input_value(const Graph *g, Draft *x, int tensor, int64_t offset, const int64_t *stride)
{
    ferry_program *p = &x->call.program;
    const size_t bytes = (size_t)x->call.rank * sizeof(*stride);
    for (int i = 0; i < x->inputs; i++)
        if (graph_root(g, x->arg[FERRY_PROGRAM_OUTPUTS + i]) == graph_root(g, tensor) && p->offset[i] == offset &&
            memcmp(p->stride[i], stride, bytes) == 0)
            return i;
    if (x->inputs == FERRY_PROGRAM_INPUTS)
        return -1;
    x->arg[FERRY_PROGRAM_OUTPUTS + x->inputs] = tensor;
    p->type[FERRY_PROGRAM_OUTPUTS + x->inputs] = g->tensor.at[tensor].dtype;
    p->offset[x->inputs] = offset;
    memcpy(p->stride[x->inputs], stride, bytes);
    return x->inputs++;
}

/* Value of input k of member m; -1: it cannot be one. */
static int operand_value(const Chains *s, const Chain *c, Draft *x, int m, int k, const CommonSpace *space)
{
    const Node *n = &s->g->node.at[c->member[m]];
    int64_t dim[FERRY_MAX_RANK], own[FERRY_MAX_RANK], stride[FERRY_MAX_RANK];
    int rank = space_of(n, dim), tensor = n->arg[k], root = graph_root(s->g, tensor);
    double number;
    steps_of(n, k - 1, rank, dim, own);
    space_strides(space, 1, own, stride);
    int64_t offset = n->call.op == FERRY_OP_COPY ? n->call.offset[1] : 0;
    if (fuse_number(s->g, tensor, &number))
        return number_value(x, number);
    for (int j = 0; j < m; j++)
        if (x->root[j] == root) {
            bool same = offset == 0 && is_dense_walk(space->rank, space->dim, stride) &&
                        !is_written_between(s, c, root, c->member[j], c->member[m]);
            return same ? x->value[j] : -1;
        }
    ferry_dtype t = s->g->tensor.at[tensor].dtype;
    return dtype_is_float(t) || t == FERRY_BOOL ? input_value(s->g, x, tensor, offset, stride) : -1;
}

/* The member's step. *value: what it makes. */
static bool add_member(const Chains *s, const Chain *c, Draft *x, int m, int *value)
{
    const Node *n = &s->g->node.at[c->member[m]];
    const ferry_kernel *k = &n->call;
    CommonSpace space;
    int operand[3] = {-1, -1, -1};
    if (!join_space(x, n, &space))
        return false;
    for (int i = 1; i < node_n_arg(n); i++) {
        if (n->arg[i] < 0)
            continue;
        operand[i - 1] = operand_value(s, c, x, m, i, &space);
        if (operand[i - 1] < 0)
            return false;
    }
    if (k->op == FERRY_OP_CAST || (k->op == FERRY_OP_COPY && k->alpha == 1))
        *value = operand[0]; /* of which outputs are rounded and inputs widened */
    else
        *value = add_step(x, (ferry_program_step){k->op, k->fn, operand[0], operand[1], operand[2],
                                                  k->op == FERRY_OP_COPY ? k->alpha : 0});
    return *value >= 0;
}

/* A cast to a narrower type rounds what comes after it as well, unless it is stored: in bf16 values are f32 anyway. */
static bool draft_outputs(const Chains *s, const Chain *c, Draft *x)
{
    ferry_program *p = &x->call.program;
    for (int m = 0; m < c->count; m++) {
        const Node *n = &s->g->node.at[c->member[m]];
        if (is_again(s, c, c->member[m]) || !is_output(s, c, x->root[m]))
            continue;
        if (x->outputs == FERRY_PROGRAM_OUTPUTS)
            return false;
        x->arg[x->outputs] = n->arg[0];
        p->out[x->outputs] = x->value[m];
        p->type[x->outputs++] = s->g->tensor.at[n->arg[0]].dtype;
    }
    return x->outputs > 0;
}

/* Adding is for the last member, alone. */
static bool draft_accumulates(const Chains *s, const Chain *c, Draft *x)
{
    for (int m = 0; m < c->count; m++) {
        const Node *n = &s->g->node.at[c->member[m]];
        if (!n->call.accumulate)
            continue;
        if (m < c->count - 1 || is_again(s, c, c->member[m]))
            return false;
        for (int j = 0; j < m; j++)
            if (x->root[j] == x->root[m])
                return false;
        for (int i = 0; i < x->inputs; i++)
            if (graph_root(s->g, x->arg[FERRY_PROGRAM_OUTPUTS + i]) == x->root[m])
                return false;
        x->call.accumulate = true;
    }
    return !x->call.accumulate || x->outputs == 1;
}

/* Drops dimensions that all inputs step through evenly. */
static void simplify(Draft *x)
{
    int64_t stride[FERRY_PROGRAM_INPUTS + 1][FERRY_MAX_RANK] = {{0}};
    strides_dense(x->call.rank, x->call.dim, stride[0]);
    memcpy(stride[1], x->call.program.stride, sizeof(x->call.program.stride));
    space_simplify(&x->call.rank, x->call.dim, stride, 1 + x->inputs);
    memset(x->call.program.stride, 0, sizeof(x->call.program.stride));
    for (int i = 0; i < x->inputs; i++)
        memcpy(x->call.program.stride[i], stride[1 + i], (size_t)x->call.rank * sizeof(int64_t));
    for (int d = x->call.rank; d < FERRY_MAX_RANK; d++)
        x->call.dim[d] = 0;
}

/* Is there a step that is more than a number? */
static bool computes(const ferry_program *p)
{
    for (int i = 0; i < p->steps; i++)
        if (p->step[i].op != FERRY_OP_FILL)
            return true;
    return false;
}

/* The chain as one node; false when it cannot be one. */
static bool draft(const Chains *s, const Chain *c, Draft *x)
{
    const Node *first = &s->g->node.at[c->member[0]];
    *x = (Draft){.call = call_new(FERRY_OP_FUSED, s->g->precision)};
    for (int i = 0; i < FERRY_MAX_ARGS; i++) {
        x->arg[i] = -1;
        x->call.program.type[i] = s->g->precision;
    }
    for (int o = 0; o < FERRY_PROGRAM_OUTPUTS; o++)
        x->call.program.out[o] = -1;
    x->call.rank = space_of(first, x->call.dim);
    for (int m = 0; m < c->count; m++) {
        const Node *n = &s->g->node.at[c->member[m]];
        if (s->g->tensor.at[n->arg[0]].count != s->g->tensor.at[first->arg[0]].count)
            return false;
        x->root[m] = -1;
        int value;
        if (!add_member(s, c, x, m, &value))
            return false;
        x->root[m] = graph_root(s->g, n->arg[0]);
        x->value[m] = value;
    }
    return computes(&x->call.program) && draft_outputs(s, c, x) && draft_accumulates(s, c, x);
}

/* ---- finding chains ---------------------------------------------------------------------------------------------- */

/* a and b and the node, in execution order; false: too many. Either chain may be NULL. */
static bool joined(const Chain *a, const Chain *b, int node, Chain *out)
{
    *out = (Chain){0};
    for (int which = 0; which < 3; which++) {
        const Chain *from = which == 0 ? a : b;
        int count = which == 2 ? 1 : from != NULL ? from->count : 0;
        for (int i = 0; i < count; i++) {
            int member = which == 2 ? node : from->member[i], at = out->count;
            if (member_index(out, member) >= 0)
                continue;
            if (out->count == MOST_MEMBERS)
                return false;
            for (; at > 0 && out->member[at - 1] > member; at--)
                out->member[at] = out->member[at - 1];
            out->member[at] = member;
            out->count++;
        }
    }
    return true;
}

static Status take(Chains *s, int a, int b, int node, bool *done)
{
    Chain c;
    Draft x;
    *done = joined(a >= 0 ? &s->chain.at[a] : NULL, b >= 0 ? &s->chain.at[b] : NULL, node, &c) && draft(s, &c, &x) &&
            find_place(s, &c, &c.place);
    if (!*done)
        return ST_OK;
    if (a >= 0)
        s->chain.at[a].dead = true;
    if (b >= 0)
        s->chain.at[b].dead = true;
    Chain *to = VEC_PUSH(&s->chain);
    if (to == NULL)
        return diag_oom(s->d);
    *to = c;
    for (int i = 0; i < c.count; i++)
        s->chain_of[c.member[i]] = s->chain.count - 1;
    return ST_OK;
}

/* A node as a chain of its own, for others to join. */
static Status start_chain(Chains *s, int node, int *out)
{
    if (s->chain_of[node] < 0) {
        Chain *c = VEC_PUSH(&s->chain);
        if (c == NULL)
            return diag_oom(s->d);
        *c = (Chain){.count = 1, .member = {node}, .place = node};
        s->chain_of[node] = s->chain.count - 1;
    }
    *out = s->chain_of[node];
    return ST_OK;
}

/* The member of this phase that wrote what input k of the node reads last before it; -1. */
static int maker_of(const Chains *s, int node, int k)
{
    const Node *n = &s->g->node.at[node];
    if (n->arg[k] < 0)
        return -1;
    int root = graph_root(s->g, n->arg[k]), found = -1;
    for (int i = s->touch_at[root]; i < s->touch_at[root + 1] && s->touch[i].node < node; i++)
        if (s->touch[i].writes)
            found = s->touch[i].node;
    bool same_phase = found >= 0 && (found >= s->g->n_forward) == (node >= s->g->n_forward);
    return same_phase && s->can[found] && node - found <= MOST_DISTANCE ? found : -1;
}

/* A member shortly before the node that reads the whole of a tensor that the node reads as well; -1. */
static int sibling_of(const Chains *s, int node)
{
    const Node *n = &s->g->node.at[node];
    int64_t count = s->g->tensor.at[n->arg[0]].count;
    int found = -1;
    for (int k = 1; k < node_n_arg(n); k++) {
        if (n->arg[k] < 0 || s->g->tensor.at[n->arg[k]].count != count)
            continue;
        int root = graph_root(s->g, n->arg[k]);
        for (int i = s->touch_at[root]; i < s->touch_at[root + 1] && s->touch[i].node < node; i++) {
            int other = s->touch[i].node;
            bool same_phase = (other >= s->g->n_forward) == (node >= s->g->n_forward);
            if (!s->touch[i].writes && same_phase && s->can[other] && node - other <= MOST_APART &&
                s->g->tensor.at[s->g->node.at[other].arg[0]].count == count)
                found = other > found ? other : found;
        }
    }
    return found;
}

static Status grow(Chains *s, int node)
{
    int maker[FERRY_MAX_ARGS], makers = 0, other = -1;
    bool done = false;
    for (int k = 1; k < node_n_arg(&s->g->node.at[node]); k++) {
        int m = maker_of(s, node, k), chain;
        if (m < 0)
            continue;
        TRY(start_chain(s, m, &chain));
        if (makers == 0 || maker[makers - 1] != chain)
            maker[makers++] = chain;
    }
    for (int i = 0; i + 1 < makers && !done; i++)
        TRY(take(s, maker[i], maker[i + 1], node, &done));
    for (int i = makers - 1; i >= 0 && !done; i--)
        TRY(take(s, maker[i], -1, node, &done));
    if (!done && (other = sibling_of(s, node)) >= 0) {
        int chain;
        TRY(start_chain(s, other, &chain));
        TRY(take(s, chain, -1, node, &done));
    }
    return ST_OK;
}

/* ---- computing again --------------------------------------------------------------------------------------------- */

/* The chain of the backward node with the forward node `maker` as its first member. */
static bool with_maker(const Chains *s, int node, int maker, Chain *out)
{
    const Chain *c = s->chain_of[node] >= 0 ? &s->chain.at[s->chain_of[node]] : NULL;
    Chain without;
    return joined(c, NULL, node, &without) && joined(&without, NULL, maker, out);
}

/* Does the chain read everything that the forward node reads? */
static bool reads_operands(const Chains *s, const Chain *c, const Node *maker)
{
    double number;
    for (int k = 1; k < node_n_arg(maker); k++) {
        if (maker->arg[k] < 0 || fuse_number(s->g, maker->arg[k], &number))
            continue;
        bool reads = false;
        for (int m = 0; m < c->count; m++) {
            const Node *n = &s->g->node.at[c->member[m]];
            for (int j = 1; j < node_n_arg(n) && !is_again(s, c, c->member[m]); j++)
                reads |= n->arg[j] >= 0 && graph_root(s->g, n->arg[j]) == graph_root(s->g, maker->arg[k]);
        }
        if (!reads)
            return false;
    }
    return true;
}

/* Computes the result of forward node `maker` again in all backward chains that read it, if these can and then nothing but
 * the forward chain reads it. */
static Status try_again(Chains *s, int maker)
{
    const Node *n = &s->g->node.at[maker];
    int root = graph_root(s->g, n->arg[0]), readers = 0;
    const Chain *own = s->chain_of[maker] >= 0 ? &s->chain.at[s->chain_of[maker]] : NULL;
    if (own == NULL || own->count < 2 || s->kept[root] || writer_count(s, root) != 1)
        return ST_OK;
    s->again[root] = true;
    bool good = !is_output(s, own, root);
    for (int i = s->touch_at[root]; i < s->touch_at[root + 1] && good; i++) {
        Chain c;
        Draft x;
        int node = s->touch[i].node;
        if (node < s->g->n_forward)
            continue;
        readers++;
        good = s->can[node] && with_maker(s, node, maker, &c) && reads_operands(s, &c, n) && draft(s, &c, &x);
    }
    s->again[root] = good && readers > 0;
    for (int i = s->touch_at[root]; i < s->touch_at[root + 1] && s->again[root]; i++) {
        Chain c;
        int node = s->touch[i].node, chain, forward = s->chain_of[maker];
        if (node < s->g->n_forward || !with_maker(s, node, maker, &c))
            continue;
        TRY(start_chain(s, node, &chain));
        c.place = s->chain.at[chain].place;
        s->chain.at[chain] = c;
        s->chain_of[maker] = forward;
    }
    return ST_OK;
}

/* ---- rewriting --------------------------------------------------------------------------------------------------- */

/* Replaces each chain by its node. */
static Status place_chains(Chains *s, bool *gone)
{
    Graph *g = s->g;
    for (int i = 0; i < s->chain.count; i++) {
        const Chain *c = &s->chain.at[i];
        Draft x;
        if (c->dead || c->count < 2)
            continue;
        if (!draft(s, c, &x))
            return diag_fail(s->d, ST_FAILED, "internal error: a chain of '%s' cannot be made any more",
                             g->node.at[c->member[0]].name);
        for (int m = 0; m < c->count; m++)
            gone[c->member[m]] |= !is_again(s, c, c->member[m]) && c->member[m] != c->place;
        simplify(&x);
        Node *n = &g->node.at[c->place];
        n->call = x.call;
        memcpy(n->arg, x.arg, sizeof(n->arg));
    }
    return ST_OK;
}

/* Moves the nodes that are left up. A backward node whose forward node has become a part of a chain belongs to the chain, as far
 * as the order of the backward pass allows. */
static void close_up(Chains *s, const bool *gone, int *to)
{
    Graph *g = s->g;
    int kept = 0, forward = 0;
    for (int i = 0; i < g->node.count; i++) {
        to[i] = kept;
        kept += !gone[i];
        forward += i < g->n_forward && !gone[i];
    }
    int last = forward;
    for (int i = 0; i < g->node.count; i++) {
        Node n = g->node.at[i];
        if (gone[i])
            continue;
        if (i < g->n_forward) {
            n.origin = to[i];
        } else {
            int origin = to[gone[n.origin] ? place_of(s, n.origin) : n.origin];
            n.origin = last = origin < last ? origin : last;
        }
        g->node.at[to[i]] = n;
    }
    g->node.count = kept;
    g->n_forward = forward;
}

static Status rewrite(Chains *s)
{
    Graph *g = s->g;
    bool *gone = ARENA_NEW(g->arena, bool, g->node.count + 1);
    int *to = ARENA_NEW(g->arena, int, g->node.count + 1);
    if (gone == NULL || to == NULL)
        return diag_oom(s->d);
    TRY(place_chains(s, gone));
    close_up(s, gone, to);
    for (int i = 0; i < g->tensor.count; i++)
        g->tensor.at[i].grad_of = -1;
    TRY(graph_sweep_tensors(s->d, g));
    graph_index_producers(g);
    return ST_OK;
}

static Status run(Chains *s)
{
    Graph *g = s->g;
    TRY(find_touches(s));
    for (int i = 0; i < g->node.count; i++)
        if (s->can[i])
            TRY(grow(s, i));
    for (int i = 0; i < g->n_forward; i++)
        if (s->can[i])
            TRY(try_again(s, i));
    return rewrite(s);
}

Status graph_fuse_chains(Diag *d, Graph *g)
{
    Chains s = {.d = d, .g = g};
    Status status = run(&s);
    VEC_FREE(&s.chain);
    return status;
}
