/* lower_loss.c - losses over classes: SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss.
 *
 * The common case, a mean without class weights, is one kernel (XENT). Everything else is composed: the score of the
 * label is picked by comparing the label with 0, 1, .. along the classes, and each position has the weight of its
 * label, 0 where that is ignored. */
#include <string.h>

#include "graph/build.h"
#include "graph/ops_lower.h"

typedef struct Loss {
    int64_t n, c, rest; /* scores as [n, c, rest] */
    int hot;            /* bool [n, c, rest]: the class is the label */
    int weight;         /* [n, rest]: the class's, 0 where the label is ignored */
} Loss;

static const char *reduction(const ModelNode *n)
{
    const Attr *a = node_attr(n, "reduction");
    return a != NULL && a->s != NULL ? a->s : "mean";
}

/* Positions of labels and their weights. */
static Status read_labels(Build *b, Loss *s)
{
    int labels = build_input(b, 1), weights = build_input(b, 2);
    const int64_t dim[3] = {s->n, 1, s->rest}, along[3] = {1, s->c, 1}, flat[2] = {s->n, s->rest};
    ferry_dtype t = b->l->graph->precision;
    TRY(b->status);
    Tensor tl = build_tensor(b, labels);
    if (tl.count != s->n * s->rest)
        return node_fail(b->d, b->l->model, b->n, "%lld labels for %lld rows of scores", (long long)tl.count,
                         (long long)(s->n * s->rest));
    labels = build_view(b, labels, 3, dim);
    s->hot = build_binary(b, FERRY_EQUAL, labels, build_view(b, build_iota(b, tl.dtype, s->c), 3, along));
    int ignored = -1, table = weights >= 0 ? weights : build_ones(b, t, s->c), counted = labels;
    if (node_attr(b->n, "ignore_index") != NULL) {
        ignored = build_with(b, FERRY_EQUAL, labels, (double)node_attr_int(b->n, "ignore_index", 0));
        counted = build_where(b, ignored, build_number(b, tl.dtype, 0), labels);
    }
    /* looking up the weight is what finds a label that is no class */
    s->weight = build_view(b, build_lookup(b, table, counted), 2, flat);
    if (ignored >= 0)
        s->weight = build_where(b, build_view(b, ignored, 2, flat), build_number(b, t, 0), s->weight);
    return b->status;
}

/* From log probabilities [n, c, rest] to the node's output 0. */
static Status give_loss(Build *b, const Loss *s, int log_prob)
{
    const int64_t flat[2] = {s->n, s->rest};
    ferry_dtype t = b->l->graph->precision;
    int picked = build_where(b, s->hot, log_prob, build_number(b, t, 0));
    int loss = build_view(b, build_reduce(b, FERRY_SUM, picked, 1u << 1), 2, flat);
    loss = build_unary(b, FERRY_NEG, loss);
    loss = build_binary(b, FERRY_MUL, loss, s->weight);
    bool mean = strcmp(reduction(b->n), "mean") == 0;
    if (mean || strcmp(reduction(b->n), "sum") == 0)
        loss = build_reduce(b, FERRY_SUM, loss, 3);
    if (mean)
        loss = build_binary(b, FERRY_DIV, loss, build_reduce(b, FERRY_SUM, s->weight, 3));
    return build_give(b, 0, loss);
}

static Status composed(Diag *d, Lowering *l, ModelNode *n, bool softmax)
{
    Build b = build_start(d, l, n);
    Loss s = {0};
    int x = build_input(&b, 0);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    s.n = t.dim[0];
    s.c = t.dim[1];
    s.rest = dims_count(t.rank - 2, t.dim + 2);
    x = build_view(&b, x, 3, (int64_t[]){s.n, s.c, s.rest});
    if (softmax)
        x = build_binary(&b, FERRY_SUB, x, build_log_sum_exp(&b, x, 1u << 1));
    if (softmax && n->n_out > 1 && n->out[1] >= 0)
        TRY(build_give(&b, 1, x));
    TRY(read_labels(&b, &s));
    return give_loss(&b, &s, x);
}

/* XENT is for means without weights. */
Status lower_softmax_loss(Diag *d, Lowering *l, ModelNode *n)
{
    bool plain = strcmp(reduction(n), "mean") == 0 && (n->n_in < 3 || n->in[2] < 0) && !lower_is_used(l, n, 1);
    return plain ? lower_cross_entropy(d, l, n) : composed(d, l, n, true);
}

Status lower_likelihood_loss(Diag *d, Lowering *l, ModelNode *n)
{
    return composed(d, l, n, false);
}
