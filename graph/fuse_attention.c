/* fuse_attention.c - softmax(scale * q k^T + mask) v as one kernel.
 *
 * needs: pruned forward nodes   fills: ATTENTION nodes   keeps: indices   spoils: nodes without a reader are left
 *
 * A match starts at a softmax. Upwards, scaling and masking lead to the product of q and k; downwards comes the product
 * with v. How q, k and v are read is a walk over the products' operands; where these are copies - heads transposed, heads
 * repeated for a group, slices of one product - the walk goes on over what the copy reads, as far as a head's elements
 * stay neighbours. The walk over y goes on in the other direction.
 *
 * The gradients of q, k and v take the same walks, so each must visit every element of its root once, or the three
 * together must, with no other reader: slices of one tensor. */
#include <math.h>
#include <string.h>

#include "graph/fuse.h"

enum { LEAD, ROW, ELEMENT }; /* tags: batch and heads; rows of q and y, columns of k and v; elements of a head */
enum { Q, K, V, Y, PARTS };
enum { MOST_LEVELS = 8 };

/* What is added to a score to hide it: e to this power is 0 beside any other score. */
static const double HIDDEN = -1e9;

/* The walks over an operand, from itself to where its last copy reads. */
typedef struct Levels {
    int count;
    Access at[MOST_LEVELS];
    int copy[MOST_LEVELS]; /* node that the step to this level looked through, -1 */
} Levels;

typedef struct Match {
    const Graph *g;
    const Links *l;
    const bool *depends; /* by root: computed from a parameter */
    int64_t rows, columns;
    double scale;
    int mask; /* tensor, -1 */
    bool causal;
    int64_t past;
    Access part[PARTS], mask_walk;
    int last; /* node that writes y */
} Match;

static const Node *node_at(const Match *m, int i)
{
    return &m->g->node.at[i];
}

/* ---- from the softmax up to the first product ------------------------------------------------------------------- */

/* Operand `which` of an element-wise call over the scores as the mask. */
static bool read_mask(Match *m, const Node *n, int which)
{
    const ferry_kernel *c = &n->call;
    m->mask = n->arg[1 + which];
    m->mask_walk = (Access){.root = graph_root(m->g, m->mask)};
    for (int i = 0; i < c->rank; i++)
        if (!access_add(&m->mask_walk, LEAD, c->dim[i], c->stride[which][i]))
            return false;
    return !m->depends[m->mask_walk.root] && access_take(&m->mask_walk, LEAD, ELEMENT, m->columns) &&
           access_take(&m->mask_walk, LEAD, ROW, m->rows);
}

static bool same_count(const Match *m, int a, int b)
{
    return m->g->tensor.at[a].count == m->g->tensor.at[b].count;
}

/* The tensor that a node scales by a number, -1. */
static int scaled(const Match *m, const Node *n, double *by)
{
    double number;
    bool first;
    if (n->call.op != FERRY_OP_BINARY || (n->call.fn != FERRY_MUL && n->call.fn != FERRY_DIV))
        return -1;
    int x = fuse_operand(m->g, n, &number, &first);
    if (x < 0 || number == 0 || (first && n->call.fn == FERRY_DIV) || !same_count(m, x, n->arg[0]))
        return -1;
    *by = n->call.fn == FERRY_MUL ? number : 1 / number;
    return x;
}

/* Is this what scores are: a product, perhaps scaled? */
static bool is_score(const Match *m, int tensor)
{
    double by;
    int maker = fuse_maker(m->g, m->l, tensor);
    for (; maker >= 0 && node_at(m, maker)->call.op != FERRY_OP_MATMUL;
         maker = fuse_maker(m->g, m->l, scaled(m, node_at(m, maker), &by)))
        if (scaled(m, node_at(m, maker), &by) < 0)
            return false;
    return maker >= 0;
}

/* From what a node that scales or masks makes of the scores to the scores; -1. */
static int step_up(Match *m, const Node *n)
{
    double number;
    int x = scaled(m, n, &number);
    if (x >= 0) {
        m->scale *= number;
        return x;
    }
    if (m->mask >= 0 || m->scale != 1) /* one mask, added to scaled scores */
        return -1;
    if (n->call.op == FERRY_OP_BINARY && n->call.fn == FERRY_ADD) {
        int which = is_score(m, n->arg[1]) && same_count(m, n->arg[1], n->arg[0]) ? 0 : 1, scores = n->arg[1 + which];
        return is_score(m, scores) && same_count(m, scores, n->arg[0]) && read_mask(m, n, 1 - which) ? scores : -1;
    }
    if (n->call.op == FERRY_OP_WHERE && fuse_number(m->g, n->arg[3], &number) && number <= HIDDEN &&
        same_count(m, n->arg[2], n->arg[0]))
        return read_mask(m, n, 0) ? n->arg[2] : -1;
    return -1;
}

/* Are the matrices of argument `arg` of a product one dense array? */
static bool is_dense(const ferry_kernel *c, int arg, int64_t matrix)
{
    for (int i = c->rank - 1; i >= 0; i--) {
        if (c->dim[i] > 1 && c->stride[arg][i] != matrix)
            return false;
        matrix *= c->dim[i];
    }
    return true;
}

/* The product of q and k above a softmax over `columns`, NULL. */
static const Node *find_scores(Match *m, const Node *softmax)
{
    int x = softmax->arg[1];
    for (;;) {
        int maker = fuse_maker(m->g, m->l, x);
        if (maker < 0 || fuse_reader(m->g, m->l, x) < 0)
            return NULL;
        const Node *n = node_at(m, maker);
        if (n->call.op == FERRY_OP_MATMUL) {
            bool fits = !n->call.trans_a && !n->call.accumulate && n->call.m == m->rows && n->call.n == m->columns &&
                        is_dense(&n->call, 0, m->rows * m->columns);
            m->scale *= n->call.alpha;
            return fits ? n : NULL;
        }
        x = step_up(m, n);
        if (x < 0)
            return NULL;
    }
}

/* ---- walks over the operands ------------------------------------------------------------------------------------ */

static bool operand_walk(const Match *m, const Node *n, int arg, int64_t rows, int64_t row_step, int64_t elements,
                         int64_t element_step, Access *out)
{
    const ferry_kernel *c = &n->call;
    *out = (Access){.root = graph_root(m->g, n->arg[arg])};
    for (int i = 0; i < c->rank; i++)
        if (!access_add(out, LEAD, c->dim[i], c->stride[arg][i]))
            return false;
    return access_add(out, ROW, rows, row_step) && access_add(out, ELEMENT, elements, element_step);
}

/* Elements of a head are neighbours, and rows have one step. */
static bool is_usable(const Access *a)
{
    int64_t size, stride;
    return access_axis(a, ROW, &size, &stride) && (size == 1 || stride > 0) && access_axis(a, ELEMENT, &size, &stride) &&
           (size == 1 || stride == 1);
}

/* Lead pieces that read the same elements again: 0 when there are none, the size of the innermost when it is the only
 * one, else -1. */
static int64_t repeats(const Access *a)
{
    int64_t repeated = 0;
    bool innermost = true;
    for (int i = a->count - 1; i >= 0; i--) {
        if (a->piece[i].tag != LEAD)
            continue;
        if (a->piece[i].stride == 0) {
            if (!innermost)
                return -1;
            repeated = a->piece[i].size;
        }
        innermost = false;
    }
    return repeated;
}

/* The walk over operand `arg` and over what its copies read. Scaling of q and k goes into that of the scores. */
static bool find_levels(Match *m, const Node *n, int arg, const Access *operand, bool scales, Levels *out)
{
    int x = n->arg[arg], maker;
    double by;
    *out = (Levels){.count = 1, .at = {*operand}, .copy = {-1}};
    while (scales && (maker = fuse_maker(m->g, m->l, x)) >= 0 && fuse_reader(m->g, m->l, x) >= 0) {
        int from = scaled(m, node_at(m, maker), &by);
        if (from < 0)
            break;
        m->scale *= by;
        x = from;
        out->at[0].root = graph_root(m->g, x);
    }
    while (out->count < MOST_LEVELS && (maker = fuse_maker(m->g, m->l, out->at[out->count - 1].root)) >= 0) {
        const Node *copy = node_at(m, maker);
        if (copy->call.op != FERRY_OP_COPY || graph_is_param(m->g, copy->arg[1]) ||
            !access_through(m->g, copy, 0, &out->at[out->count - 1], &out->at[out->count]))
            break;
        out->copy[out->count++] = maker;
    }
    return true;
}

/* The deepest level that visits all of its root, each element once or, over and over, `group` times; -1. */
static int whole_level(const Match *m, const Levels *levels, int64_t group)
{
    for (int i = levels->count - 1; i >= 0; i--) {
        const Access *a = &levels->at[i];
        if (is_usable(a) && repeats(a) == group && a->offset == 0 &&
            access_elements(a) == m->g->tensor.at[a->root].count)
            return i;
    }
    return -1;
}

/* The deepest usable level, where it is a part of its root of which only this chain of copies reads; -1. */
static int part_level(const Match *m, const Levels *levels, int64_t group)
{
    for (int i = levels->count - 1; i > 0; i--) {
        const Access *a = &levels->at[i];
        if (!is_usable(a) || repeats(a) != group || access_elements(a) == m->g->tensor.at[a->root].count)
            continue;
        bool only = true;
        for (int j = 1; j <= i; j++) /* what the copies make is read by the next one alone */
            only = only && fuse_reader(m->g, m->l, node_at(m, levels->copy[j])->arg[0]) >= 0;
        return only ? i : -1;
    }
    return -1;
}

/* Do the parts among `part` with the root of part[p] make up all of it, without another reader? */
static bool make_up_root(const Match *m, Access *const *part, int p)
{
    int64_t pitch = 0, width, from[3], end[3], total = 0, same;
    int count = 0;
    for (int i = 0; i < 3; i++) {
        if (part[i] == NULL || part[i]->root != part[p]->root)
            continue;
        if (!access_rows(m->g, part[i], &same, &width) || (count > 0 && same != pitch))
            return false;
        pitch = same;
        from[count] = part[i]->offset;
        end[count] = from[count] + width;
        for (int j = 0; j < count; j++)
            if (from[count] < end[j] && from[j] < end[count])
                return false;
        total += width;
        count++;
    }
    return total == pitch && fuse_reader_count(m->g, m->l, part[p]->root) == count;
}

/* Chooses the levels of q, k and v. */
static bool choose_levels(Match *m, Levels *levels)
{
    int64_t group = 0;
    Access *part[3] = {NULL};
    int whole[3], deep[3];
    for (int i = levels[K].count - 1; i >= 0 && group == 0; i--) { /* heads repeated, for both k and v */
        int64_t repeated = repeats(&levels[K].at[i]);
        if (repeated > 1 && (part_level(m, &levels[V], repeated) >= 0 || whole_level(m, &levels[V], repeated) >= 0) &&
            (part_level(m, &levels[K], repeated) >= 0 || whole_level(m, &levels[K], repeated) >= 0))
            group = repeated;
    }
    for (int p = Q; p <= V; p++) {
        deep[p] = part_level(m, &levels[p], p == Q ? 0 : group);
        whole[p] = whole_level(m, &levels[p], p == Q ? 0 : group);
        part[p] = deep[p] >= 0 ? &levels[p].at[deep[p]] : NULL;
    }
    for (int p = Q; p <= V; p++) {
        if (part[p] != NULL && make_up_root(m, part, p)) {
            m->part[p] = *part[p];
        } else if (whole[p] >= 0) {
            m->part[p] = levels[p].at[whole[p]];
        } else {
            return false;
        }
    }
    return true;
}

/* The product of the softmax's result with v, and where y goes. */
static bool find_parts(Match *m, const Node *scores, const Node *softmax)
{
    Levels levels[3];
    Access walk;
    int second = fuse_reader(m->g, m->l, softmax->arg[0]);
    if (second < 0 || node_at(m, second)->call.op != FERRY_OP_MATMUL)
        return false;
    const Node *n = node_at(m, second);
    const ferry_kernel *a = &scores->call, *b = &n->call;
    if (graph_root(m->g, n->arg[1]) != graph_root(m->g, softmax->arg[0]) || b->trans_a || b->accumulate ||
        b->alpha != 1 || b->m != m->rows || b->k != m->columns || !is_dense(b, 1, m->rows * m->columns) ||
        !is_dense(b, 0, b->m * b->n) || dims_count(a->rank, a->dim) != dims_count(b->rank, b->dim))
        return false;
    if (!operand_walk(m, scores, 1, m->rows, a->k, a->k, 1, &walk) || !find_levels(m, scores, 1, &walk, true, &levels[Q]))
        return false;
    if (!operand_walk(m, scores, 2, m->columns, a->trans_b ? a->k : 1, a->k, a->trans_b ? 1 : m->columns, &walk) ||
        !find_levels(m, scores, 2, &walk, true, &levels[K]))
        return false;
    if (!operand_walk(m, n, 2, m->columns, b->trans_b ? 1 : b->n, b->n, b->trans_b ? m->columns : 1, &walk) ||
        !find_levels(m, n, 2, &walk, false, &levels[V]))
        return false;
    if (!choose_levels(m, levels) || !operand_walk(m, n, 0, m->rows, b->n, b->n, 1, &m->part[Y]))
        return false;
    m->last = second;
    int next = fuse_reader(m->g, m->l, n->arg[0]);
    if (next >= 0 && m->l->writers[graph_root(m->g, node_at(m, next)->arg[0])] == 1 &&
        access_through(m->g, node_at(m, next), 1, &m->part[Y], &walk) && is_usable(&walk) && walk.offset == 0 &&
        access_elements(&walk) == m->g->tensor.at[walk.root].count) {
        m->part[Y] = walk;
        m->last = next;
    }
    return true;
}

/* ---- what the kernel is told ------------------------------------------------------------------------------------ */

static double mask_value(const Match *m, int64_t at)
{
    const Tensor *t = &m->g->tensor.at[m->mask];
    double value = 0;
    if (t->dtype == FERRY_BOOL)
        return ((const uint8_t *)t->data)[at] != 0 ? 0 : -INFINITY;
    if (ferry_convert(&value, FERRY_F64, (const char *)t->data + at * (int64_t)ferry_dtype_bytes(t->dtype), t->dtype, 1) != FERRY_OK)
        return NAN;
    return value;
}

/* A constant mask that hides nothing is none, and one that hides what lies behind a diagonal is a number. */
static void read_constant_mask(Match *m)
{
    int64_t rows, columns, row_step, column_step;
    Access *a = &m->mask_walk;
    for (int i = 0; i < a->count; i++)
        if (a->piece[i].tag == LEAD && a->piece[i].stride != 0)
            return;
    if (m->mask < 0 || m->g->tensor.at[m->mask].kind != TENSOR_CONST || !access_axis(a, ROW, &rows, &row_step) ||
        !access_axis(a, ELEMENT, &columns, &column_step))
        return;
    bool open = true, causal = true;
    int64_t past = -1;
    for (int64_t i = 0; i < (row_step != 0 ? m->rows : 1); i++)
        for (int64_t j = 0; j < (column_step != 0 ? m->columns : 1); j++) {
            double value = mask_value(m, a->offset + i * row_step + j * column_step);
            open = open && value == 0;
            if (i == 0 && value == 0 && past == j - 1)
                past = j;
            causal = causal && (j <= i + past ? value == 0 : value <= HIDDEN);
        }
    m->causal = !open && causal && past >= 0 && row_step != 0 && column_step != 0;
    if (open || m->causal) {
        m->past = m->causal ? past : 0;
        m->mask = -1;
    }
}

/* Lead pieces, the same for all walks, as batch and heads; k and v without the heads of a group. */
static bool set_heads(Match *m, ferry_attention_shape *s)
{
    Access *walk[PARTS + 1] = {&m->part[Q], &m->part[K], &m->part[V], &m->part[Y], &m->mask_walk};
    int walks = m->mask >= 0 ? PARTS + 1 : PARTS, count = 0;
    int64_t size[MOST_PIECES], stride[PARTS + 1][MOST_PIECES], group = 1;
    if (!access_align(walk, walks, LEAD))
        return false;
    for (int w = 0; w < walks; w++) {
        count = 0;
        for (int i = 0; i < walk[w]->count; i++)
            if (walk[w]->piece[i].tag == LEAD) {
                size[count] = walk[w]->piece[i].size;
                stride[w][count++] = walk[w]->piece[i].stride;
            }
    }
    /* outermost first: join what all walks step through alike; the pieces of a group are innermost and apart */
    int grouped = count;
    while (grouped > 0 && stride[K][grouped - 1] == 0 && stride[V][grouped - 1] == 0)
        group *= size[--grouped];
    int kept = 0;
    for (int i = 0; i < count; i++) {
        bool joins = kept > 0 && i != grouped;
        for (int w = 0; w < walks && joins; w++)
            joins = stride[w][kept - 1] == stride[w][i] * size[i];
        int to = joins ? kept - 1 : kept++;
        size[to] = joins ? size[to] * size[i] : size[i];
        for (int w = 0; w < walks; w++)
            stride[w][to] = stride[w][i];
    }
    int own = kept - (group > 1 ? 1 : 0); /* pieces of batch and heads of k and v */
    if (own > 2 || (group > 1 && size[kept - 1] != group))
        return false;
    s->batch = own == 2 ? size[0] : 1;
    s->kv_heads = own > 0 ? size[own - 1] : 1;
    s->heads = s->kv_heads * group;
    for (int w = 0; w < walks; w++) {
        int64_t *to = w < PARTS ? s->stride[w] : s->mask_stride;
        to[0] = own == 2 ? stride[w][0] : 0;
        to[1] = own > 0 ? stride[w][own - 1] : 0;
        if (group > 1 && w != K && w != V) { /* heads of q in a row belong to one group */
            if (own > 0 && to[1] != stride[w][kept - 1] * group)
                return false;
            to[1] = stride[w][kept - 1];
        }
    }
    return true;
}

static bool set_shape(Match *m, ferry_attention_shape *s, int64_t size, int64_t value_size)
{
    int64_t count;
    *s = (ferry_attention_shape){.rows = m->rows,
                                 .columns = m->columns,
                                 .size = size,
                                 .value_size = value_size,
                                 .scale = m->scale,
                                 .causal = m->causal,
                                 .past = m->past,
                                 .mask_type = m->g->precision};
    if (!set_heads(m, s))
        return false;
    for (int p = 0; p < PARTS; p++) {
        s->offset[p] = m->part[p].offset;
        access_axis(&m->part[p], ROW, &count, &s->stride[p][2]);
        if (count == 1) /* any step will do: one that a dense array has */
            s->stride[p][2] = p == V || p == Y ? value_size : size;
    }
    if (m->mask < 0)
        return true;
    s->mask_type = m->g->tensor.at[m->mask].dtype;
    return access_axis(&m->mask_walk, ROW, &count, &s->mask_stride[2]) &&
           access_axis(&m->mask_walk, ELEMENT, &count, &s->mask_stride[3]);
}

/* ---- the pass --------------------------------------------------------------------------------------------------- */

static Status rewrite(Diag *d, Graph *g, const Match *m, const ferry_attention_shape *s)
{
    int lse;
    const int64_t dim[] = {s->batch, s->heads, s->rows};
    const char *name = graph_made_up_name(g, g->node.at[m->last].name);
    TRY(graph_add_tensor(d, g, name, TENSOR_VALUE, graph_wide_dtype(g), 3, dim, &lse));
    Node *n = &g->node.at[m->last];
    n->call = call_new(FERRY_OP_ATTENTION, g->precision);
    n->call.attention = *s;
    n->onnx_op = "Attention";
    const int arg[] = {n->arg[0], lse, m->part[Q].root, m->part[K].root, m->part[V].root, m->mask};
    for (int k = 0; k < 6; k++)
        n->arg[k] = arg[k];
    return ST_OK;
}

Status graph_fuse_attention(Diag *d, Graph *g)
{
    Links l;
    bool *depends;
    TRY(fuse_links(d, g, &l));
    TRY(fuse_dependent(d, g, &depends));
    for (int i = 0; i < g->n_forward; i++) {
        const Node *softmax = &g->node.at[i];
        const ferry_kernel *c = &softmax->call;
        if (c->op != FERRY_OP_SOFTMAX || c->dtype != g->precision)
            continue;
        const Tensor *x = &g->tensor.at[softmax->arg[1]];
        if (x->rank < 2 || x->dim[x->rank - 1] != c->n || c->n == 0 || c->m == 0)
            continue;
        Match m = {.g = g, .l = &l, .depends = depends, .columns = c->n, .scale = 1, .mask = -1};
        m.rows = x->dim[x->rank - 2];
        ferry_attention_shape shape;
        const Node *scores = find_scores(&m, softmax);
        if (scores == NULL || !find_parts(&m, scores, softmax))
            continue;
        int second = fuse_reader(g, &l, softmax->arg[0]);
        read_constant_mask(&m);
        if (set_shape(&m, &shape, scores->call.k, g->node.at[second].call.n))
            TRY(rewrite(d, g, &m, &shape));
    }
    graph_index_producers(g);
    return ST_OK;
}
