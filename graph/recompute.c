/* recompute.c - a training graph whose backward pass computes forward values again instead of finding them kept.
 *
 * needs: a checked training graph, ends of segments   fills: a new graph   keeps: the graph, its tensor indices and
 * forward nodes
 *
 * The forward nodes up to the last end fall into segments, one after another. Of a segment only those values are kept that
 * somebody outside of it reads: later forward nodes, their backward nodes, the loss. What its own backward nodes read
 * besides is computed again: copies of the nodes that write it, and of those that write what these read, back to what is
 * kept, to parameters, inputs and constants, stand before the first of its backward nodes. So the activations of one
 * segment live at a time, and what is carried from one to the next (Chen et al., Training Deep Nets with Sublinear Memory
 * Cost). The nodes after the last end keep everything: their backward pass follows at once.
 *
 * A copy is the same call on the same bits, dropout included, whose mask follows from seed, step, salt and place alone: a
 * step with recomputation computes the same bits as one without. Running statistics are brought up to date by a forward
 * node whose result no backward node reads; it is never copied. */
#include <string.h>

#include "graph/lower.h"

typedef struct Again {
    Diag *d;
    Arena *a;
    const Graph *from;
    Graph *g;
    int n, *end;     /* segments, their last nodes */
    int *segment_of; /* by forward node: segment of recomputation, n for those that keep everything */
    int *written_in; /* by root: segment in which all its writers are, else n */
    int *last_write; /* by root: last forward node that writes it, -1 */
    bool *kept;      /* by root: read outside of its segment */
    bool *needed;    /* by root: to be computed again */
    bool *copied;    /* by forward node */
    int *again;      /* by tensor of the old graph: what stands for it in the backward pass, -1 */
    bool taken;      /* a name of the model begins as those of new tensors do */
} Again;

static const char PREFIX[] = "again:";

int graph_end_node(const Graph *g, const char *tensor)
{
    int at = -1, last = -1;
    for (int t = 0; t < g->tensor.count && at < 0; t++)
        if (strcmp(g->tensor.at[t].name, tensor) == 0)
            at = t;
    if (at < 0 || g->tensor.at[at].kind != TENSOR_VALUE || g->node.count == g->n_forward)
        return -1;
    for (int i = 0; i < g->n_forward; i++)
        for (int k = 0; k < node_n_out(&g->node.at[i]); k++)
            if (g->node.at[i].arg[k] >= 0 && graph_root(g, g->node.at[i].arg[k]) == graph_root(g, at))
                last = i;
    return last;
}

static bool is_value(const Again *x, int arg, int *root)
{
    if (arg < 0)
        return false;
    *root = graph_root(x->from, arg);
    return x->from->tensor.at[*root].kind == TENSOR_VALUE;
}

static Status open_maps(Again *x)
{
    const Graph *g = x->from;
    size_t tensors = (size_t)g->tensor.count, nodes = (size_t)g->n_forward;
    x->segment_of = ARENA_NEW(x->a, int, nodes);
    x->written_in = ARENA_NEW(x->a, int, tensors);
    x->last_write = ARENA_NEW(x->a, int, tensors);
    x->kept = ARENA_NEW(x->a, bool, tensors);
    x->needed = ARENA_NEW(x->a, bool, tensors);
    x->copied = ARENA_NEW(x->a, bool, nodes);
    x->again = ARENA_NEW(x->a, int, tensors);
    if (!x->segment_of || !x->written_in || !x->last_write || !x->kept || !x->needed || !x->copied || !x->again)
        return diag_oom(x->d);
    for (int i = 0, s = 0; i < g->n_forward; i++) {
        while (s < x->n && i > x->end[s])
            s++;
        x->segment_of[i] = s;
    }
    for (int t = 0; t < g->tensor.count; t++) {
        x->written_in[t] = x->n;
        x->last_write[t] = x->again[t] = -1;
        x->taken = x->taken || strncmp(g->tensor.at[t].name, PREFIX, strlen(PREFIX)) == 0;
    }
    return ST_OK;
}

/* A node that reads what later nodes still add to, or adds to several outputs, would not find the same again. */
static bool can_copy(const Again *x, int i)
{
    const Node *n = &x->from->node.at[i];
    int root;
    for (int k = node_n_out(n); k < node_n_arg(n); k++)
        if (is_value(x, n->arg[k], &root) && x->last_write[root] > i)
            return false;
    return !n->call.accumulate || node_n_out(n) == 1;
}

/* fills: written_in, last_write, kept */
static void find_kept(Again *x)
{
    const Graph *g = x->from;
    int root;
    for (int i = 0; i < g->n_forward; i++) {
        const Node *n = &g->node.at[i];
        for (int k = 0; k < node_n_out(n); k++) {
            if (!is_value(x, n->arg[k], &root))
                continue;
            if (x->last_write[root] < 0)
                x->written_in[root] = x->segment_of[i];
            x->kept[root] |= x->written_in[root] != x->segment_of[i]; /* a part of it was there before */
            x->last_write[root] = i;
        }
    }
    x->kept[graph_root(g, g->loss)] = true;
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        int here = x->segment_of[n->origin];
        bool keeps = here == x->n || (i < g->n_forward && !can_copy(x, i));
        for (int k = 0; k < node_n_out(n) && keeps; k++)
            if (is_value(x, n->arg[k], &root))
                x->kept[root] = true;
        for (int k = node_n_out(n); k < node_n_arg(n); k++)
            if (is_value(x, n->arg[k], &root))
                x->kept[root] |= x->written_in[root] != here;
    }
}

/* fills: needed, copied. One sweep over the backward nodes, then one back over the forward nodes. */
static void find_needed(Again *x)
{
    const Graph *g = x->from;
    int root;
    for (int i = g->node.count - 1; i >= 0; i--) {
        const Node *n = &g->node.at[i];
        bool reads = i >= g->n_forward && x->segment_of[n->origin] < x->n;
        for (int k = 0; k < node_n_out(n) && i < g->n_forward; k++)
            reads |= is_value(x, n->arg[k], &root) && x->needed[root];
        if (!reads)
            continue;
        if (i < g->n_forward)
            x->copied[i] = true;
        for (int k = node_n_out(n); k < node_n_arg(n); k++)
            if (is_value(x, n->arg[k], &root) && x->last_write[root] >= 0 && !x->kept[root])
                x->needed[root] = true;
    }
}

/* ---- the new graph ----------------------------------------------------------------------------------------------- */

static const char *again_name(Again *x, int tensor)
{
    const char *name = x->from->tensor.at[tensor].name;
    if (x->taken)
        return arena_printf(x->a, "%s%s%s%d", PREFIX, name, x->g->mark, x->g->tensor.count);
    return arena_printf(x->a, "%s%s", PREFIX, name);
}

/* The tensor that stands for `tensor`: of the same shape, a view where that is one. */
static Status stand_in(Again *x, int tensor, int *out)
{
    if (x->again[tensor] < 0) {
        const Tensor t = x->g->tensor.at[tensor];
        int made;
        if (t.root == tensor) {
            TRY(graph_add_tensor(x->d, x->g, again_name(x, tensor), TENSOR_VALUE, t.dtype, t.rank, t.dim, &made));
        } else {
            int root;
            const char *name = again_name(x, tensor);
            if (name == NULL)
                return diag_oom(x->d);
            TRY(stand_in(x, t.root, &root));
            if (x->taken) /* the root may have been made just now */
                name = again_name(x, tensor);
            TRY(graph_add_view(x->d, x->g, name, root, t.rank, t.dim, &made));
        }
        x->again[tensor] = made;
    }
    *out = x->again[tensor];
    return ST_OK;
}

static Status redirect(Again *x, Node *n)
{
    int root;
    for (int k = node_n_out(n); k < node_n_arg(n); k++)
        if (is_value(x, n->arg[k], &root) && x->needed[root])
            TRY(stand_in(x, n->arg[k], &n->arg[k]));
    return ST_OK;
}

static Node *add_node(Again *x, int from)
{
    return memcpy(&x->g->node.at[x->g->node.count++], &x->from->node.at[from], sizeof(Node));
}

static Status copy_segment(Again *x, int segment)
{
    for (int i = segment > 0 ? x->end[segment - 1] + 1 : 0; i <= x->end[segment]; i++) {
        if (!x->copied[i])
            continue;
        Node *n = add_node(x, i);
        int root;
        n->phase = PHASE_RP;
        for (int k = 0; k < node_n_out(n); k++) /* also what is kept: it must not be written twice */
            if (is_value(x, n->arg[k], &root))
                TRY(stand_in(x, n->arg[k], &n->arg[k]));
        TRY(redirect(x, n));
    }
    return ST_OK;
}

/* The forward nodes as they are, then the backward nodes, with what is computed again before the first of each segment. */
static Status make_nodes(Again *x)
{
    const Graph *from = x->from;
    Graph *g = x->g;
    int now = x->n;
    memcpy(g->node.at, from->node.at, (size_t)from->n_forward * sizeof(*g->node.at));
    g->node.count = from->n_forward;
    for (int i = from->n_forward; i < from->node.count; i++) {
        int segment = x->segment_of[from->node.at[i].origin];
        if (segment < now)
            TRY(copy_segment(x, segment));
        now = segment;
        Node *n = add_node(x, i);
        if (segment < x->n)
            TRY(redirect(x, n));
    }
    return ST_OK;
}

/* Containers with room for everything, since those in an arena cannot grow. */
static Status copy_graph(Again *x)
{
    const Graph *from = x->from;
    Graph *g = ARENA_NEW(x->a, Graph, 1);
    int tensors = 2 * from->tensor.count, nodes = from->node.count + from->n_forward;
    if (g == NULL)
        return diag_oom(x->d);
    *g = *from;
    g->arena = x->a;
    g->plain = from;
    g->tensor.at = ARENA_NEW(x->a, Tensor, tensors);
    g->node.at = ARENA_NEW(x->a, Node, nodes);
    g->unit = ARENA_NEW(x->a, Unit, from->n_unit);
    g->again = ARENA_NEW(x->a, const char *, x->n);
    if (!g->tensor.at || !g->node.at || !g->unit || !g->again)
        return diag_oom(x->d);
    g->tensor.capacity = tensors;
    g->node.capacity = nodes;
    g->n_again = x->n;
    memcpy(g->tensor.at, from->tensor.at, (size_t)from->tensor.count * sizeof(*g->tensor.at));
    memcpy(g->unit, from->unit, (size_t)from->n_unit * sizeof(*g->unit));
    x->g = g;
    return ST_OK;
}

Status graph_recompute(Diag *d, Arena *a, const Graph *from, int n, const char *const *ends, const Graph **out)
{
    *out = NULL;
    Again x = {.d = d, .a = a, .from = from, .n = n, .end = ARENA_NEW(a, int, n)};
    if (x.end == NULL)
        return diag_oom(d);
    for (int i = 0; i < n; i++) {
        x.end[i] = graph_end_node(from, ends[i]);
        if (x.end[i] < 0)
            return diag_fail(d, ST_MODEL, "recomputation: no segment of the forward pass ends with '%s'", ends[i]);
        if (i > 0 && x.end[i] <= x.end[i - 1])
            return diag_fail(d, ST_MODEL, "recomputation: '%s' is not computed after '%s'", ends[i], ends[i - 1]);
    }
    TRY(open_maps(&x));
    find_kept(&x);
    find_needed(&x);
    TRY(copy_graph(&x));
    for (int i = 0; i < n; i++)
        if ((x.g->again[i] = arena_strdup(a, ends[i])) == NULL)
            return diag_oom(d);
    TRY(make_nodes(&x));
    graph_index_producers(x.g);
    TRY(graph_find_uses(d, x.g));
    TRY(graph_liveness(d, x.g));
    TRY(graph_check_backward(d, x.g));
    *out = x.g;
    return ST_OK;
}
