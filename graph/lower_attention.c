/* lower_attention.c - the normalizations and the attention of transformers, as compositions of kernels. An attention of
 * which only y is used is one kernel.
 *
 * Attention is softmax(alpha * Q K^T + bias) V for each head. The heads of a group share one key head: with queries
 * seen as [batch, kv_heads, group, rows, size] the product reads each key once for a whole group, by a stride of 0, and
 * nothing is repeated in memory. */
#include <math.h>
#include <string.h>

#include "graph/build_nn.h"
#include "graph/fold.h"
#include "graph/ops_lower.h"

static double epsilon(const ModelNode *n)
{
    return node_attr_float(n, "epsilon", 1e-5);
}

static uint32_t axes_from(int axis, int rank)
{
    return (((uint32_t)1 << rank) - 1) & ~(((uint32_t)1 << axis) - 1);
}

/* ---- normalizations
 * ------------------------------------------------------------------------------------------------------ */

/* Step by step where the kernel does not serve: the mean or the inverse deviation is used (and has a gradient then), or
 * scale and bias are broadcast. */
Status lower_layer_norm(Diag *d, Lowering *l, ModelNode *n)
{
    int axis;
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0), scale = build_input(&b, 1), bias = build_input(&b, 2);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    TRY(lower_axis(d, l, n, t.rank, -1, &axis));
    int64_t size = dims_count(t.rank - axis, t.dim + axis);
    bool whole = build_tensor(&b, scale).count == size && (bias < 0 || build_tensor(&b, bias).count == size);
    if (whole && !lower_is_used(l, n, 1) && !lower_is_used(l, n, 2))
        return lower_layer_normalization(d, l, n);
    uint32_t axes = axes_from(axis, t.rank);
    int mean = build_reduce(&b, FERRY_MEAN, x, axes), centered = build_binary(&b, FERRY_SUB, x, mean);
    int variance = build_reduce(&b, FERRY_MEAN, build_unary(&b, FERRY_SQUARE, centered), axes);
    int deviation = build_unary(&b, FERRY_SQRT, build_with(&b, FERRY_ADD, variance, epsilon(n)));
    int inverse = build_unary(&b, FERRY_RECIPROCAL, deviation);
    int y = build_binary(&b, FERRY_MUL, build_binary(&b, FERRY_MUL, centered, inverse), scale);
    if (bias >= 0)
        y = build_binary(&b, FERRY_ADD, y, bias);
    TRY(build_give(&b, 0, y));
    if (n->n_out > 1 && n->out[1] >= 0)
        TRY(build_give(&b, 1, mean));
    return n->n_out > 2 && n->out[2] >= 0 ? build_give(&b, 2, inverse) : ST_OK;
}

Status lower_rms_norm(Diag *d, Lowering *l, ModelNode *n)
{
    int axis;
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0), scale = build_input(&b, 1);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    TRY(lower_axis(d, l, n, t.rank, -1, &axis));
    int square = build_reduce(&b, FERRY_MEAN, build_unary(&b, FERRY_SQUARE, x), axes_from(axis, t.rank));
    int root = build_unary(&b, FERRY_SQRT, build_with(&b, FERRY_ADD, square, epsilon(n)));
    int y = build_binary(&b, FERRY_MUL, x, build_unary(&b, FERRY_RECIPROCAL, root));
    return build_give(&b, 0, build_binary(&b, FERRY_MUL, y, scale));
}

/* ---- rotary positions
 * ---------------------------------------------------------------------------------------------------- */

/* Columns first, first + step, .. of the last axis. */
static int columns(Build *b, int x, int64_t first, int64_t step, int64_t count)
{
    Tensor t = build_tensor(b, x);
    int64_t stride[MAX_RANK];
    strides_dense(t.rank, t.dim, stride);
    t.dim[t.rank - 1] = count;
    stride[t.rank - 1] = step;
    return build_copy(b, x, t.rank, t.dim, first, stride);
}

/* The table's values for each position, as [batch, 1, seq, half] or [batch, seq, 1, half]. */
static int positions(Build *b, int table, int ids, int64_t batch, int64_t seq, bool heads_first)
{
    Tensor t = build_tensor(b, table);
    int64_t half = t.dim[t.rank - 1];
    if (ids >= 0)
        table = build_rows(b, table, t.dim[0], half, ids);
    const int64_t before[4] = {batch, 1, seq, half}, after[4] = {batch, seq, 1, half};
    return build_view(b, table, 4, heads_first ? before : after);
}

/* Pairs (x1, x2) of the first columns are turned by each position's angle: neighbours when interleaved, else one from
 * each half. */
Status lower_rotary_embedding(Diag *d, Lowering *l, ModelNode *n)
{
    Build b = build_start(d, l, n);
    int x = build_input(&b, 0), cosine = build_input(&b, 1), sine = build_input(&b, 2), ids = build_input(&b, 3);
    TRY(b.status);
    Tensor t = build_tensor(&b, x);
    bool heads_first = t.rank == 4, pairs = node_attr_int(n, "interleaved", 0) != 0;
    if (!heads_first) {
        int64_t heads = node_attr_int(n, "num_heads", 0);
        x = build_view(&b, x, 4, (int64_t[]){t.dim[0], t.dim[1], heads, t.dim[2] / heads});
        t = build_tensor(&b, x);
    }
    int64_t half = build_tensor(&b, cosine).dim[build_tensor(&b, cosine).rank - 1], seq = t.dim[heads_first ? 2 : 1];
    cosine = positions(&b, cosine, ids, t.dim[0], seq, heads_first);
    sine = positions(&b, sine, ids, t.dim[0], seq, heads_first);
    int x1 = columns(&b, x, 0, pairs ? 2 : 1, half), x2 = columns(&b, x, pairs ? 1 : half, pairs ? 2 : 1, half);
    int real =
        build_binary(&b, FERRY_SUB, build_binary(&b, FERRY_MUL, x1, cosine), build_binary(&b, FERRY_MUL, x2, sine));
    int imaginary =
        build_binary(&b, FERRY_ADD, build_binary(&b, FERRY_MUL, x1, sine), build_binary(&b, FERRY_MUL, x2, cosine));
    TRY(b.status);
    if (pairs) {
        int64_t dim[5] = {t.dim[0], t.dim[1], t.dim[2], half, 1};
        real = build_view(&b, real, 5, dim);
        imaginary = build_view(&b, imaginary, 5, dim);
    }
    int y = build_concat(&b, real, imaginary, pairs ? 4 : 3);
    y = build_view(&b, y, 4, (int64_t[]){t.dim[0], t.dim[1], t.dim[2], 2 * half});
    if (2 * half < t.dim[3])
        y = build_concat(&b, y, build_slice(&b, x, 3, 2 * half, t.dim[3]), 3);
    return build_give(&b, 0, y);
}

/* ---- attention
 * ----------------------------------------------------------------------------------------------------------- */

/* What a score gets: `allowed` (bool, -1: all) says which columns a row sees, `added` (-1: nothing) is added. some:
 * whether a row sees any column, -1 when each does. */
typedef struct Bias {
    int allowed, added, some;
    int all_allowed, all_added; /* the same as they are given: rows that see nothing stay so */
} Bias;

/* Row i sees column j when j <= i + past. */
static int causal(Build *b, const AttentionShape *s)
{
    const int64_t dim[2] = {s->rows, s->columns};
    uint8_t *see = ARENA_NEW(b->l->graph->arena, uint8_t, s->rows * s->columns);
    if (see == NULL) {
        b->status = diag_oom(b->d);
        return -1;
    }
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < s->columns; j++)
            see[i * s->columns + j] = j <= i + s->past;
    return build_constant(b, FERRY_BOOL, 2, dim, see);
}

/* A mask that is shorter than the columns hides the rest. One of size 1 is broadcast. */
static int padded(Build *b, int mask, int64_t count)
{
    Tensor t = build_tensor(b, mask);
    int64_t none[MAX_RANK] = {0}, missing = count - t.dim[t.rank - 1];
    if (b->status != ST_OK || t.dim[t.rank - 1] == 1 || missing == 0)
        return mask;
    t.dim[t.rank - 1] = missing;
    int hidden = build_number(b, t.dtype, t.dtype == FERRY_BOOL ? 0 : -INFINITY);
    return build_concat(b, mask, build_copy(b, hidden, t.rank, t.dim, 0, none), t.rank - 1);
}

/* A constant mask in which every row sees something, with what the causal mask leaves of it. */
static bool every_row_sees(const Tensor *t, const AttentionShape *s, bool causal)
{
    int64_t last = t->dim[t->rank - 1], rows = t->rank > 1 ? t->dim[t->rank - 2] : 1;
    if (t->kind != TENSOR_CONST || (last != s->columns && last != 1))
        return false;
    for (int64_t i = 0; i < dims_count(t->rank - 1, t->dim); i++) {
        /* of a row that is broadcast the first one sees least */
        int64_t row = rows > 1 ? i % rows : 0, most = causal && row + s->past + 1 < last ? row + s->past + 1 : last;
        bool sees = false;
        for (int64_t j = 0; j < most && !sees; j++)
            sees = t->dtype == FERRY_BOOL ? ((const uint8_t *)t->data)[i * last + j] != 0
                                          : num_real(t->dtype, t->data, i * last + j) > -INFINITY;
        if (!sees)
            return false;
    }
    return true;
}

/* Whether row has a column that is allowed. */
static int any_column(Build *b, int allowed)
{
    Tensor t = build_tensor(b, allowed);
    int count = build_reduce(b, FERRY_SUM, build_cast(b, b->l->graph->precision, allowed), 1u << (t.rank - 1));
    return build_with(b, FERRY_GREATER, count, 0);
}

/* A row that sees nothing has the result 0. Its softmax would be 0 / 0, and so it is let see everything first. */
static Status read_bias(Build *b, const AttentionShape *s, Bias *out)
{
    bool is_causal = node_attr_int(b->n, "is_causal", 0) != 0;
    int mask = build_input(b, 3);
    *out = (Bias){is_causal ? causal(b, s) : -1, -1, -1, -1, -1};
    out->all_allowed = out->allowed;
    TRY(b->status);
    if (mask < 0)
        return ST_OK;
    Tensor t = build_tensor(b, mask);
    bool sees = every_row_sees(&t, s, is_causal);
    mask = padded(b, mask, s->columns);
    int allowed = mask;
    if (t.dtype != FERRY_BOOL) {
        out->added = mask;
        allowed = sees ? -1 : build_with(b, FERRY_GREATER, mask, -INFINITY);
    }
    if (allowed >= 0 && out->allowed >= 0)
        allowed = build_binary(b, FERRY_AND, allowed, out->allowed);
    out->allowed = out->all_allowed = allowed >= 0 ? allowed : out->allowed;
    out->all_added = out->added;
    if (sees)
        return b->status;
    out->some = any_column(b, allowed);
    out->allowed = build_binary(b, FERRY_OR, allowed, build_unary(b, FERRY_NOT, out->some));
    if (out->added >= 0) /* what is hidden is so by `allowed` */
        out->added = build_where(b, build_with(b, FERRY_GREATER, mask, -INFINITY), mask, build_number(b, t.dtype, 0));
    return b->status;
}

/* [batch, heads, rows, size] from an input in either form. */
static int by_heads(Build *b, int x, bool flat, int64_t heads)
{
    if (!flat)
        return x;
    Tensor t = build_tensor(b, x);
    if (b->status != ST_OK)
        return -1;
    x = build_view(b, x, 4, (int64_t[]){t.dim[0], t.dim[1], heads, t.dim[2] / heads});
    return build_transpose(b, x, (int[]){0, 2, 1, 3});
}

/* [batch, heads, ..] as [batch, kv_heads, heads / kv_heads, ..] */
static int in_groups(Build *b, int x, int64_t kv_heads)
{
    Tensor t = build_tensor(b, x);
    if (b->status != ST_OK)
        return -1;
    return build_view(b, x, 5, (int64_t[]){t.dim[0], kv_heads, t.dim[1] / kv_heads, t.dim[2], t.dim[3]});
}

static int biased(Build *b, int scores, int allowed, int added)
{
    if (added >= 0)
        scores = build_binary(b, FERRY_ADD, scores, added);
    if (allowed >= 0)
        scores = build_where(b, allowed, scores, build_number(b, build_tensor(b, scores).dtype, -INFINITY));
    return scores;
}

/* Can one kernel do it? It caps no scores, gives no intermediate results, and has no gradient for a mask. */
static bool is_one_kernel(Build *b)
{
    int mask = build_input(b, 3);
    Tensor t = mask >= 0 ? build_tensor(b, mask) : (Tensor){.kind = TENSOR_CONST};
    bool alone = !b->l->options->composed && node_attr_float(b->n, "softcap", 0) == 0;
    for (int i = 1; i < 4; i++)
        alone = alone && !lower_is_used(b->l, b->n, i) && (i == 3 || build_input(b, 3 + i) < 0);
    return alone && (t.dtype == FERRY_BOOL || t.kind == TENSOR_CONST);
}

static Status one_kernel(Build *b, const AttentionShape *s)
{
    const int64_t lead[3] = {s->batch, s->heads, s->rows};
    ferry_kernel call = call_new(FERRY_OP_ATTENTION, b->l->graph->precision);
    ferry_attention_shape *to = &call.attention;
    *to = (ferry_attention_shape){.batch = s->batch, .heads = s->heads, .kv_heads = s->kv_heads, .rows = s->rows,
                                  .columns = s->columns, .size = s->size, .value_size = s->value_size,
                                  .scale = node_attr_float(b->n, "scale", 1 / sqrt((double)s->size)),
                                  .causal = node_attr_int(b->n, "is_causal", 0) != 0, .past = s->past,
                                  .mask_type = call.dtype};
    for (int p = FERRY_Q; p <= FERRY_Y; p++) {
        bool of_rows = p == FERRY_Q || p == FERRY_Y;
        int64_t heads = of_rows ? s->heads : s->kv_heads, rows = of_rows ? s->rows : s->columns;
        int64_t size = p == FERRY_V || p == FERRY_Y ? s->value_size : s->size;
        to->stride[p][0] = heads * rows * size;
        to->stride[p][1] = s->flat ? size : rows * size;
        to->stride[p][2] = s->flat ? heads * size : size;
    }
    int mask = build_input(b, 3), y, lse;
    if (mask >= 0) {
        mask = padded(b, mask, s->columns);
        Tensor t = build_tensor(b, mask);
        TRY(b->status);
        to->mask_type = t.dtype;
        strides_broadcast(4, t.rank, t.dim, to->mask_stride);
    }
    TRY(b->status);
    TRY(lower_temp(b->d, b->l, b->n, graph_wide_dtype(b->l->graph), 3, lead, &lse));
    const int q = build_input(b, 0), k = build_input(b, 1), v = build_input(b, 2);
    TRY(lower_output(b->d, b->l, b->n, 0, &y));
    return lower_emit(b->d, b->l, b->n, &call, (int[FERRY_MAX_ARGS]){y, lse, q, k, v, mask});
}

Status lower_attention(Diag *d, Lowering *l, ModelNode *n)
{
    AttentionShape s;
    Bias bias;
    Build b = build_start(d, l, n);
    TRY(attention_read(d, l->model, n, &s));
    bool alone = is_one_kernel(&b);
    TRY(b.status);
    if (alone)
        return one_kernel(&b, &s);
    int q = by_heads(&b, build_input(&b, 0), s.flat, s.heads);
    int k = by_heads(&b, build_input(&b, 1), s.flat, s.kv_heads),
        v = by_heads(&b, build_input(&b, 2), s.flat, s.kv_heads);
    int past_k = build_input(&b, 4), past_v = build_input(&b, 5);
    if (past_k >= 0) {
        k = build_concat(&b, past_k, k, 2);
        v = build_concat(&b, past_v, v, 2);
    }
    TRY(b.status);
    double scale = node_attr_float(n, "scale", 1 / sqrt((double)s.size)), cap = node_attr_float(n, "softcap", 0);
    const int64_t full[4] = {s.batch, s.heads, s.rows, s.columns}, result[4] = {s.batch, s.heads, s.rows, s.value_size};
    int product = build_matmul(&b, in_groups(&b, q, s.kv_heads), in_groups(&b, k, s.kv_heads), true, scale);
    int score[4] = {build_view(&b, product, 4, full), -1, -1, -1};
    score[1] = score[0];
    if (cap > 0)
        score[1] =
            build_with(&b, FERRY_MUL, build_unary(&b, FERRY_TANH, build_with(&b, FERRY_DIV, score[0], cap)), cap);
    TRY(b.status);
    TRY(read_bias(&b, &s, &bias));
    score[2] = biased(&b, score[1], bias.allowed, bias.added);
    score[3] = build_softmax(&b, score[2]);
    if (bias.some >= 0)
        score[3] = build_where(&b, bias.some, score[3], build_number(&b, build_tensor(&b, score[3]).dtype, 0));
    int y = build_matmul(&b, in_groups(&b, score[3], s.kv_heads), in_groups(&b, v, s.kv_heads), false, 1);
    y = build_view(&b, y, 4, result);
    if (s.flat)
        y = build_transpose(&b, y, (int[]){0, 2, 1, 3});
    TRY(build_give(&b, 0, y));
    for (int i = 1; i < 3; i++)
        if (n->n_out > i && n->out[i] >= 0)
            TRY(build_give(&b, i, i == 1 ? k : v));
    if (n->n_out < 4 || n->out[3] < 0)
        return ST_OK;
    if (bias.some >= 0 && node_attr_int(n, "qk_matmul_output_mode", 0) == 2)
        score[2] = biased(&b, score[1], bias.all_allowed, bias.all_added);
    return build_give(&b, 3, score[node_attr_int(n, "qk_matmul_output_mode", 0)]);
}
