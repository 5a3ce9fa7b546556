/* synthetic.h - a small stand-in for an imported model: the training graph of a GPT-2 of any number of blocks, with a
 * tied embedding, activations kept for the backward pass, views, constants and one frozen table on request, and a
 * profile whose times follow from sizes with seeded noise. Everything lives in the arena: never pass the graph to
 * graph_close. */
#ifndef FERRY_TESTS_SYNTHETIC_H
#define FERRY_TESTS_SYNTHETIC_H

#include <string.h>

#include "profiler/profile.h"

typedef struct SyntheticShape {
    int blocks;
    int64_t hidden, heads, vocab, batch, seq;
    bool freeze_positions; /* the position table is frozen: a unit without a gradient */
    unsigned seed;
} SyntheticShape;

typedef struct Synthetic {
    Arena *arena;
    Graph *g;
    SyntheticShape shape;
    int fresh; /* for names */
} Synthetic;

/* A fixed small generator: the same numbers on every machine. */
static inline uint32_t synthetic_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state >> 33;
    return (uint32_t)(x ^ (x >> 15));
}

static inline int synthetic_tensor(Synthetic *s, const char *name, TensorKind kind, ferry_dtype dtype, int64_t rows,
                                   int64_t columns)
{
    Graph *g = s->g;
    Tensor *t = &g->tensor.at[g->tensor.count];
    t->name = arena_strdup(s->arena, name);
    t->kind = kind;
    t->dtype = dtype;
    t->rank = 2;
    t->dim[0] = rows;
    t->dim[1] = columns;
    t->count = rows * columns;
    t->bytes = t->count * (dtype == FERRY_I64 || dtype == FERRY_F64 ? 8 : 4);
    t->root = g->tensor.count;
    t->param = -1;
    t->producer = t->first_write = t->last_use = -1;
    return g->tensor.count++;
}

static inline int synthetic_value(Synthetic *s, const char *what, int64_t rows, int64_t columns)
{
    return synthetic_tensor(s, arena_printf(s->arena, "%s_%d", what, s->fresh++), TENSOR_VALUE, FERRY_F32, rows,
                            columns);
}

static inline int synthetic_view(Synthetic *s, int of)
{
    int v = synthetic_value(s, "view", 1, s->g->tensor.at[of].count);
    s->g->tensor.at[v].root = s->g->tensor.at[of].root;
    return v;
}

/* args: outputs then inputs, `count` of them. origin -1: a forward node; its segment follows from whether it reads
 * parameters. */
static inline int synthetic_node(Synthetic *s, ferry_op op, ferry_fn fn, const char *name, int origin, int count,
                                 const int *arg)
{
    Graph *g = s->g;
    int index = g->node.count++;
    Node *n = &g->node.at[index];
    n->name = arena_strdup(s->arena, name);
    n->onnx_op = ferry_op_get(op)->name;
    n->call.op = op;
    n->call.fn = fn;
    n->call.dtype = FERRY_F32;
    n->call.dtype2 = FERRY_I64;
    n->call.alpha = 1;
    const Tensor *y = &g->tensor.at[arg[0]];
    n->call.m = y->dim[0];
    n->call.n = y->dim[1];
    n->call.k = op == FERRY_OP_LINEAR || op == FERRY_OP_LINEAR_DX || op == FERRY_OP_LINEAR_DW || op == FERRY_OP_MATMUL
                    ? g->tensor.at[arg[1]].dim[1]
                    : 1;
    n->call.rank = 2;
    n->call.dim[0] = y->dim[0];
    n->call.dim[1] = y->dim[1];
    for (int i = 0; i < FERRY_MAX_ARGS; i++)
        n->arg[i] = i < count ? arg[i] : -1;
    n->phase = origin < 0 ? PHASE_FP : PHASE_BP;
    n->origin = origin < 0 ? index : origin;
    if (origin >= 0) {
        n->segment = g->node.at[origin].segment;
        return index;
    }
    bool layer = false;
    for (int i = 0; i < count; i++)
        layer = layer || (arg[i] >= 0 && g->tensor.at[arg[i]].kind == TENSOR_PARAM);
    n->segment = 2 * g->n_layer + (layer ? 1 : 0);
    if (layer) {
        Layer *l = &g->layer[g->n_layer++];
        l->name = n->name;
        l->op = op == FERRY_OP_EMBEDDING ? "Embedding" : op == FERRY_OP_LINEAR ? "Linear" : "LayerNorm";
        l->node = index;
        l->unit = ARENA_NEW(s->arena, int, FERRY_MAX_ARGS);
    }
    return index;
}

#define SYNTHETIC_NODE(s, op, fn, name, origin, ...)                                                                   \
    synthetic_node(s, op, fn, name, origin, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

static inline int synthetic_param(Synthetic *s, const char *name, int unit, int64_t rows, int64_t columns,
                                  bool trainable)
{
    Graph *g = s->g;
    Param *p = &g->param[g->n_param];
    p->name = arena_strdup(s->arena, name);
    p->tensor = synthetic_tensor(s, name, TENSOR_PARAM, FERRY_F32, rows, columns);
    g->tensor.at[p->tensor].param = g->n_param;
    p->grad = -1;
    p->trainable = trainable;
    if (trainable) {
        p->grad =
            synthetic_tensor(s, arena_printf(s->arena, "grad:%s", name), TENSOR_GRADIENT, FERRY_F32, rows, columns);
        g->tensor.at[p->grad].param = g->n_param;
    }
    p->unit = unit;
    p->count = rows * columns;
    p->bytes = p->count * 4;
    p->file_dtype = FERRY_F32;
    Unit *u = &g->unit[unit];
    u->param[u->n_param++] = g->n_param;
    u->bytes += p->bytes;
    u->grad_bytes += trainable ? p->bytes : 0;
    return g->n_param++;
}

static inline int synthetic_unit(Synthetic *s, const char *name)
{
    Unit *u = &s->g->unit[s->g->n_unit];
    u->name = arena_strdup(s->arena, name);
    u->param = ARENA_NEW(s->arena, int, 2);
    u->use = ARENA_NEW(s->arena, Use, 8);
    return s->g->n_unit++;
}

/* A weight and a bias that make one unit; returns the weight's parameter, the bias is the next one. */
static inline int synthetic_pair(Synthetic *s, const char *name, int64_t rows, int64_t columns)
{
    int u = synthetic_unit(s, name);
    int w = synthetic_param(s, arena_printf(s->arena, "%s.weight", name), u, rows, columns, true);
    synthetic_param(s, arena_printf(s->arena, "%s.bias", name), u, 1, columns, true);
    return w;
}

/* What the backward pass of a block needs to know of its forward pass. */
typedef struct SyntheticBlock {
    int x, ln1, attn, proj, ln2, fc, mproj; /* input; first parameter of each layer */
    int ln1_y, ln1_mean, ln1_rstd, qkv, q, k, v, p, merged, r1;
    int ln2_y, ln2_mean, ln2_rstd, h, u, t, gel;
    int n_ln1, n_attn, n_q, n_k, n_v, n_qk, n_soft, n_pv, n_merge, n_proj, n_r1, n_ln2, n_fc, n_u, n_t, n_gel, n_mproj,
        n_r2;
} SyntheticBlock;

static inline int synthetic_block(Synthetic *s, int index, int x, int mask, SyntheticBlock *b)
{
    Graph *g = s->g;
    Arena *a = s->arena;
    int64_t C = s->shape.hidden, M = s->shape.batch * s->shape.seq, T = s->shape.seq,
            BH = s->shape.batch * s->shape.heads;
    int64_t D = C / s->shape.heads;
#define AT(part) arena_printf(a, "transformer.h.%d." part, index)
#define P(p)     g->param[p].tensor
    b->x = x;
    b->ln1 = synthetic_pair(s, AT("ln_1"), 1, C);
    b->ln1_y = synthetic_value(s, "ln1", M, C);
    b->ln1_mean = synthetic_value(s, "mean", M, 1);
    b->ln1_rstd = synthetic_value(s, "rstd", M, 1);
    b->n_ln1 = SYNTHETIC_NODE(s, FERRY_OP_LAYERNORM, 0, AT("ln_1"), -1, b->ln1_y, b->ln1_mean, b->ln1_rstd, x,
                              P(b->ln1), P(b->ln1 + 1));
    b->attn = synthetic_pair(s, AT("attn.c_attn"), C, 3 * C);
    b->qkv = synthetic_value(s, "qkv", M, 3 * C);
    b->n_attn =
        SYNTHETIC_NODE(s, FERRY_OP_LINEAR, 0, AT("attn.c_attn"), -1, b->qkv, b->ln1_y, P(b->attn), P(b->attn + 1));
    b->q = synthetic_value(s, "q", BH * T, D);
    b->k = synthetic_value(s, "k", BH * T, D);
    b->v = synthetic_value(s, "v", BH * T, D);
    int split = synthetic_view(s, b->qkv);
    b->n_q = SYNTHETIC_NODE(s, FERRY_OP_COPY, 0, AT("attn.q"), -1, b->q, split);
    b->n_k = SYNTHETIC_NODE(s, FERRY_OP_COPY, 0, AT("attn.k"), -1, b->k, split);
    b->n_v = SYNTHETIC_NODE(s, FERRY_OP_COPY, 0, AT("attn.v"), -1, b->v, split);
    int qk = synthetic_value(s, "qk", BH * T, T), masked = synthetic_value(s, "masked", BH * T, T);
    b->n_qk = SYNTHETIC_NODE(s, FERRY_OP_MATMUL, 0, AT("attn.qk"), -1, qk, b->q, b->k);
    SYNTHETIC_NODE(s, FERRY_OP_BINARY, FERRY_ADD, AT("attn.mask"), -1, masked, qk, mask);
    b->p = synthetic_value(s, "p", BH * T, T);
    b->n_soft = SYNTHETIC_NODE(s, FERRY_OP_SOFTMAX, 0, AT("attn.softmax"), -1, b->p, masked);
    int o = synthetic_value(s, "o", BH * T, D);
    b->n_pv = SYNTHETIC_NODE(s, FERRY_OP_MATMUL, 0, AT("attn.pv"), -1, o, b->p, b->v);
    b->merged = synthetic_value(s, "merged", M, C);
    b->n_merge = SYNTHETIC_NODE(s, FERRY_OP_COPY, 0, AT("attn.merge"), -1, b->merged, o);
    b->proj = synthetic_pair(s, AT("attn.c_proj"), C, C);
    int proj_y = synthetic_value(s, "proj", M, C);
    b->n_proj =
        SYNTHETIC_NODE(s, FERRY_OP_LINEAR, 0, AT("attn.c_proj"), -1, proj_y, b->merged, P(b->proj), P(b->proj + 1));
    b->r1 = synthetic_value(s, "r1", M, C);
    b->n_r1 = SYNTHETIC_NODE(s, FERRY_OP_BINARY, FERRY_ADD, AT("attn.residual"), -1, b->r1, x, proj_y);
    b->ln2 = synthetic_pair(s, AT("ln_2"), 1, C);
    b->ln2_y = synthetic_value(s, "ln2", M, C);
    b->ln2_mean = synthetic_value(s, "mean", M, 1);
    b->ln2_rstd = synthetic_value(s, "rstd", M, 1);
    b->n_ln2 = SYNTHETIC_NODE(s, FERRY_OP_LAYERNORM, 0, AT("ln_2"), -1, b->ln2_y, b->ln2_mean, b->ln2_rstd, b->r1,
                              P(b->ln2), P(b->ln2 + 1));
    b->fc = synthetic_pair(s, AT("mlp.c_fc"), C, 4 * C);
    b->h = synthetic_value(s, "h", M, 4 * C);
    b->n_fc = SYNTHETIC_NODE(s, FERRY_OP_LINEAR, 0, AT("mlp.c_fc"), -1, b->h, b->ln2_y, P(b->fc), P(b->fc + 1));
    b->u = synthetic_value(s, "u", M, 4 * C);
    b->n_u = SYNTHETIC_NODE(s, FERRY_OP_BINARY, FERRY_MUL, AT("mlp.square"), -1, b->u, b->h, b->h);
    b->t = synthetic_value(s, "t", M, 4 * C);
    b->n_t = SYNTHETIC_NODE(s, FERRY_OP_UNARY, FERRY_TANH, AT("mlp.tanh"), -1, b->t, b->u);
    b->gel = synthetic_value(s, "gel", M, 4 * C);
    b->n_gel = SYNTHETIC_NODE(s, FERRY_OP_BINARY, FERRY_MUL, AT("mlp.gate"), -1, b->gel, b->h, b->t);
    b->mproj = synthetic_pair(s, AT("mlp.c_proj"), 4 * C, C);
    int mproj_y = synthetic_value(s, "mproj", M, C);
    b->n_mproj =
        SYNTHETIC_NODE(s, FERRY_OP_LINEAR, 0, AT("mlp.c_proj"), -1, mproj_y, b->gel, P(b->mproj), P(b->mproj + 1));
    int r2 = synthetic_value(s, "r2", M, C);
    b->n_r2 = SYNTHETIC_NODE(s, FERRY_OP_BINARY, FERRY_ADD, AT("mlp.residual"), -1, r2, b->r1, mproj_y);
    return r2;
}

/* Gradients of a linear layer; returns dx. */
static inline int synthetic_linear_back(Synthetic *s, int node, int weight, int x, int dy)
{
    Graph *g = s->g;
    const char *name = g->node.at[node].name;
    int dx = synthetic_value(s, "dx", g->tensor.at[x].dim[0], g->tensor.at[x].dim[1]);
    SYNTHETIC_NODE(s, FERRY_OP_LINEAR_DX, 0, name, node, dx, dy, P(weight));
    SYNTHETIC_NODE(s, FERRY_OP_LINEAR_DW, 0, name, node, g->param[weight].grad, x, dy);
    SYNTHETIC_NODE(s, FERRY_OP_REDUCE, FERRY_SUM, name, node, g->param[weight + 1].grad, dy);
    return dx;
}

static inline int synthetic_norm_back(Synthetic *s, int node, int scale, int x, int mean, int rstd, int dy)
{
    Graph *g = s->g;
    const char *name = g->node.at[node].name;
    int dx = synthetic_value(s, "dx", g->tensor.at[x].dim[0], g->tensor.at[x].dim[1]);
    SYNTHETIC_NODE(s, FERRY_OP_LAYERNORM_DX, 0, name, node, dx, dy, x, mean, rstd, P(scale));
    SYNTHETIC_NODE(s, FERRY_OP_LAYERNORM_DP, 0, name, node, g->param[scale].grad, g->param[scale + 1].grad, dy, x, mean,
                   rstd);
    return dx;
}

static inline int synthetic_block_back(Synthetic *s, const SyntheticBlock *b, int d_r2)
{
    Graph *g = s->g;
    int64_t C = s->shape.hidden, M = s->shape.batch * s->shape.seq, T = s->shape.seq,
            BH = s->shape.batch * s->shape.heads;
    int64_t D = C / s->shape.heads;
#define NAME(n) g->node.at[n].name
    int d_gel = synthetic_linear_back(s, b->n_mproj, b->mproj, b->gel, d_r2);
    int d_h1 = synthetic_value(s, "dh", M, 4 * C), d_t = synthetic_value(s, "dt", M, 4 * C);
    SYNTHETIC_NODE(s, FERRY_OP_BINARY_GRAD_A, FERRY_MUL, NAME(b->n_gel), b->n_gel, d_h1, d_gel, b->h, b->t);
    SYNTHETIC_NODE(s, FERRY_OP_BINARY_GRAD_B, FERRY_MUL, NAME(b->n_gel), b->n_gel, d_t, d_gel, b->h, b->t);
    int d_u = synthetic_value(s, "du", M, 4 * C);
    SYNTHETIC_NODE(s, FERRY_OP_UNARY_GRAD, FERRY_TANH, NAME(b->n_t), b->n_t, d_u, d_t, -1, b->t);
    int d_h2 = synthetic_value(s, "dh", M, 4 * C), d_h = synthetic_value(s, "dh", M, 4 * C);
    SYNTHETIC_NODE(s, FERRY_OP_BINARY_GRAD_A, FERRY_MUL, NAME(b->n_u), b->n_u, d_h2, d_u, b->h, b->h);
    SYNTHETIC_NODE(s, FERRY_OP_BINARY, FERRY_ADD, NAME(b->n_u), b->n_u, d_h, d_h1, d_h2);
    int d_ln2 = synthetic_linear_back(s, b->n_fc, b->fc, b->ln2_y, d_h);
    int d_x2 = synthetic_norm_back(s, b->n_ln2, b->ln2, b->r1, b->ln2_mean, b->ln2_rstd, d_ln2);
    int d_r1 = synthetic_value(s, "dr1", M, C);
    SYNTHETIC_NODE(s, FERRY_OP_BINARY, FERRY_ADD, NAME(b->n_r1), b->n_r1, d_r1, d_r2, d_x2);
    int d_merged = synthetic_linear_back(s, b->n_proj, b->proj, b->merged, d_r1);
    int d_o = synthetic_value(s, "do", BH * T, D);
    SYNTHETIC_NODE(s, FERRY_OP_COPY, 0, NAME(b->n_merge), b->n_merge, d_o, d_merged);
    int d_p = synthetic_value(s, "dp", BH * T, T), d_v = synthetic_value(s, "dv", BH * T, D);
    SYNTHETIC_NODE(s, FERRY_OP_MATMUL, 0, NAME(b->n_pv), b->n_pv, d_p, d_o, b->v);
    SYNTHETIC_NODE(s, FERRY_OP_MATMUL, 0, NAME(b->n_pv), b->n_pv, d_v, b->p, d_o);
    int d_s = synthetic_value(s, "ds", BH * T, T);
    SYNTHETIC_NODE(s, FERRY_OP_SOFTMAX_GRAD, 0, NAME(b->n_soft), b->n_soft, d_s, d_p, b->p);
    int d_q = synthetic_value(s, "dq", BH * T, D), d_k = synthetic_value(s, "dk", BH * T, D);
    SYNTHETIC_NODE(s, FERRY_OP_MATMUL, 0, NAME(b->n_qk), b->n_qk, d_q, d_s, b->k);
    SYNTHETIC_NODE(s, FERRY_OP_MATMUL, 0, NAME(b->n_qk), b->n_qk, d_k, d_s, b->q);
    int d_qkv = synthetic_value(s, "dqkv", M, 3 * C);
    SYNTHETIC_NODE(s, FERRY_OP_COPY, 0, NAME(b->n_v), b->n_v, d_qkv, d_v);
    SYNTHETIC_NODE(s, FERRY_OP_COPY, 0, NAME(b->n_k), b->n_k, d_qkv, d_k);
    SYNTHETIC_NODE(s, FERRY_OP_COPY, 0, NAME(b->n_q), b->n_q, d_qkv, d_q);
    int d_ln1 = synthetic_linear_back(s, b->n_attn, b->attn, b->ln1_y, d_qkv);
    int d_x1 = synthetic_norm_back(s, b->n_ln1, b->ln1, b->x, b->ln1_mean, b->ln1_rstd, d_ln1);
    int d_x = synthetic_value(s, "dx", M, C);
    SYNTHETIC_NODE(s, FERRY_OP_BINARY, FERRY_ADD, NAME(b->n_ln1), b->n_ln1, d_x, d_r1, d_x1);
    return d_x;
}

/* Uses of units, layers' units, producers and liveness, all from the nodes' arguments. */
static inline void synthetic_finish(Synthetic *s)
{
    Graph *g = s->g;
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        int outs = ferry_op_get(n->call.op)->n_out;
        for (int k = 0; k < FERRY_MAX_ARGS; k++) {
            if (n->arg[k] < 0)
                continue;
            Tensor *t = &g->tensor.at[g->tensor.at[n->arg[k]].root];
            if (k < outs) {
                t->producer = t->producer < 0 ? i : t->producer;
                t->first_write = t->first_write < 0 ? i : t->first_write;
            }
            t->last_use = i;
            if (k < outs || t->kind != TENSOR_PARAM)
                continue;
            int unit = g->param[t->param].unit;
            Unit *u = &g->unit[unit];
            int layer = (n->segment - 1) / 2;
            if (u->n_use == 0 || u->use[u->n_use - 1].layer != layer || u->use[u->n_use - 1].phase != n->phase)
                u->use[u->n_use++] = (Use){layer, n->phase};
            Layer *l = &g->layer[layer];
            bool known = false;
            for (int j = 0; j < l->n_unit; j++)
                known = known || l->unit[j] == unit;
            if (!known)
                l->unit[l->n_unit++] = unit;
        }
    }
    for (int i = 0; i < g->tensor.count; i++)
        g->tensor.at[i].producer = g->tensor.at[g->tensor.at[i].root].producer;
}

static inline Graph *synthetic_graph(Arena *a, SyntheticShape shape)
{
    Synthetic state = {.arena = a, .shape = shape}, *s = &state;
    Graph *g = s->g = ARENA_NEW(a, Graph, 1);
    int n = shape.blocks;
    int64_t C = shape.hidden, M = shape.batch * shape.seq;
    g->arena = a;
    g->precision = FERRY_F32;
    g->tensor.capacity = 100 * n + 64;
    g->tensor.at = ARENA_NEW(a, Tensor, g->tensor.capacity);
    g->node.capacity = 64 * n + 32;
    g->node.at = ARENA_NEW(a, Node, g->node.capacity);
    g->param = ARENA_NEW(a, Param, 12 * n + 8);
    g->unit = ARENA_NEW(a, Unit, 6 * n + 8);
    g->layer = ARENA_NEW(a, Layer, 6 * n + 8);
    int ids = synthetic_tensor(s, "input_ids", TENSOR_INPUT, FERRY_I64, shape.batch, shape.seq);
    int labels = synthetic_tensor(s, "labels", TENSOR_INPUT, FERRY_I64, shape.batch, shape.seq);
    g->n_input = 2;
    g->input = ARENA_NEW(a, int, 2);
    g->input[0] = ids;
    g->input[1] = labels;
    int positions = synthetic_tensor(s, "positions", TENSOR_CONST, FERRY_I64, 1, M);
    int mask = synthetic_tensor(s, "mask", TENSOR_CONST, FERRY_F32, shape.seq, shape.seq);

    int wte = synthetic_param(s, "wte.weight", synthetic_unit(s, "wte"), shape.vocab, C, true);
    int tokens = synthetic_value(s, "tokens", M, C);
    int n_wte = SYNTHETIC_NODE(s, FERRY_OP_EMBEDDING, 0, "wte", -1, tokens, P(wte), ids);
    int wpe = synthetic_param(s, "wpe.weight", synthetic_unit(s, "wpe"), shape.seq, C, !shape.freeze_positions);
    int places = synthetic_value(s, "places", M, C);
    int n_wpe = SYNTHETIC_NODE(s, FERRY_OP_EMBEDDING, 0, "wpe", -1, places, P(wpe), positions);
    int sum = synthetic_value(s, "x", M, C);
    SYNTHETIC_NODE(s, FERRY_OP_BINARY, FERRY_ADD, "embed.add", -1, sum, synthetic_view(s, tokens), places);

    SyntheticBlock *block = ARENA_NEW(a, SyntheticBlock, n);
    int x = sum;
    for (int i = 0; i < n; i++)
        x = synthetic_block(s, i, x, mask, &block[i]);
    int lnf = synthetic_pair(s, "ln_f", 1, C);
    int lnf_y = synthetic_value(s, "lnf", M, C), lnf_mean = synthetic_value(s, "mean", M, 1);
    int lnf_rstd = synthetic_value(s, "rstd", M, 1);
    int n_lnf = SYNTHETIC_NODE(s, FERRY_OP_LAYERNORM, 0, "ln_f", -1, lnf_y, lnf_mean, lnf_rstd, x, P(lnf), P(lnf + 1));
    int logits = synthetic_value(s, "logits", M, shape.vocab);
    int n_head = SYNTHETIC_NODE(s, FERRY_OP_LINEAR, 0, "lm_head", -1, logits, lnf_y, P(wte));
    g->node.at[n_head].call.trans_b = true;
    int loss = synthetic_value(s, "loss", 1, 1), lse = synthetic_value(s, "lse", M, 1),
        count = synthetic_value(s, "count", 1, 1);
    int n_loss = SYNTHETIC_NODE(s, FERRY_OP_XENT, 0, "loss", -1, loss, lse, count, logits, labels);
    g->loss = loss;
    g->n_forward = g->node.count;

    int d_logits = synthetic_value(s, "dlogits", M, shape.vocab);
    SYNTHETIC_NODE(s, FERRY_OP_XENT_GRAD, 0, "loss", n_loss, d_logits, logits, lse, count, labels, -1);
    int d_lnf = synthetic_value(s, "dx", M, C);
    SYNTHETIC_NODE(s, FERRY_OP_LINEAR_DX, 0, "lm_head", n_head, d_lnf, d_logits, P(wte));
    SYNTHETIC_NODE(s, FERRY_OP_LINEAR_DW, 0, "lm_head", n_head, g->param[wte].grad, lnf_y, d_logits);
    int d = synthetic_norm_back(s, n_lnf, lnf, x, lnf_mean, lnf_rstd, d_lnf);
    for (int i = n - 1; i >= 0; i--)
        d = synthetic_block_back(s, &block[i], d);
    if (!shape.freeze_positions)
        SYNTHETIC_NODE(s, FERRY_OP_EMBEDDING_GRAD, 0, "wpe", n_wpe, g->param[wpe].grad, d, positions);
    int last = SYNTHETIC_NODE(s, FERRY_OP_EMBEDDING_GRAD, 0, "wte", n_wte, g->param[wte].grad, d, ids);
    g->node.at[last].call.accumulate = true;
    g->n_segment = 2 * g->n_layer + 1;
    synthetic_finish(s);
    return g;
}
#undef AT
#undef P
#undef NAME

static inline Timing synthetic_timing(uint64_t *state, double ns)
{
    double noise = 0.8 + 0.4 * (synthetic_random(state) % 1000) / 1000.0;
    return (Timing){(int64_t)(ns * noise) + 1, 0};
}

/* Nothing can live on the GPU: the profile does not know how long updates take there. */
static inline void synthetic_no_residents(Profile *p)
{
    for (int u = 0; u < p->n_unit; u++)
        p->unit[u].resident_update.median_ns = -1;
}

/* Rates like those of one accelerator on a slow link: 40 TFLOP/s, 800 GB/s, 24 GB/s a direction, a CPU of 40 GB/s. */
static inline Profile *synthetic_profile(Arena *a, const Graph *g, unsigned seed)
{
    uint64_t state = seed * 2654435761u + 12345;
    Profile *p = ARENA_NEW(a, Profile, 1);
    p->arena = a;
    strcpy(p->hash, "00000000000000000000000000000000");
    strcpy(p->model_hash, p->hash);
    p->options.path = "synthetic.onnx";
    p->options.precision = FERRY_F32;
    p->device = (DeviceFacts){.name = "synthetic",
                              .memory_bytes = (int64_t)1 << 40,
                              .host_memory_bytes = (int64_t)1 << 42,
                              .chunk_bytes = 4096,
                              .alignment_bytes = 256,
                              .alloc_ns = 20000};
    static const int rate[LINK_CLASS_COUNT][LINK_CLASS_COUNT] = {{1000, 850, 900, 950, 900},
                                                                 {850, 1000, 950, 600, 900},
                                                                 {150, 900, 1000, 850, 800},
                                                                 {950, 500, 850, 1000, 800},
                                                                 {900, 900, 850, 850, 1000}};
    memcpy(p->device.rate_permille, rate, sizeof rate);
    p->n_layer = g->n_layer;
    p->n_unit = g->n_unit;
    p->layer = ARENA_NEW(a, LayerProfile, g->n_layer);
    p->between = ARENA_NEW(a, BetweenProfile, g->n_layer + 1);
    p->unit = ARENA_NEW(a, UnitProfile, g->n_unit);
    for (int l = 0; l < g->n_layer; l++) {
        const Node *n = &g->node.at[g->layer[l].node];
        const Tensor *y = &g->tensor.at[n->arg[0]];
        double flop_ns = n->call.op == FERRY_OP_LINEAR ? 2.0 * (double)y->count * (double)n->call.k / 40e3 : 0;
        double fp = 4000 + flop_ns + (double)y->bytes * 2 / 800, bp = 2 * fp;
        int64_t bytes = 0;
        for (int i = 0; i < g->layer[l].n_unit; i++)
            bytes += g->unit[g->layer[l].unit[i]].bytes;
        bool table = n->call.op == FERRY_OP_EMBEDDING;
        LayerProfile *lp = &p->layer[l];
        lp->name = g->layer[l].name;
        lp->fp_dha_bytes = table ? y->bytes : bytes;
        lp->bp_dha_bytes = table ? 0 : bytes;
        lp->grad_dha_bytes = bytes;
        double read = (double)lp->fp_dha_bytes / 20, read_bp = (double)lp->bp_dha_bytes / 20,
               write = (double)bytes / 20;
        lp->fp[ON_GPU] = synthetic_timing(&state, fp);
        lp->fp[ON_HOST] = (Timing){lp->fp[ON_GPU].median_ns + synthetic_timing(&state, read).median_ns, 0};
        lp->bp[ON_GPU][ON_GPU] = synthetic_timing(&state, bp);
        int64_t base = lp->bp[ON_GPU][ON_GPU].median_ns;
        int64_t r = lp->bp_dha_bytes == 0 ? 0 : synthetic_timing(&state, read_bp).median_ns;
        int64_t w = synthetic_timing(&state, write).median_ns;
        lp->bp[ON_HOST][ON_GPU] = (Timing){base + r, 0};
        lp->bp[ON_GPU][ON_HOST] = (Timing){base + w, 0};
        lp->bp[ON_HOST][ON_HOST] = (Timing){base + r + w + (r < w ? r : w) / 8, 0};
    }
    int64_t *fp = ARENA_NEW(a, int64_t, g->n_layer + 1), *bp = ARENA_NEW(a, int64_t, g->n_layer + 1);
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        if (n->segment % 2 == 0)
            (n->phase == PHASE_FP ? fp : bp)[n->segment / 2] += 3000 + g->tensor.at[n->arg[0]].bytes * 3 / 800;
    }
    for (int l = 0; l <= g->n_layer; l++) {
        if (fp[l] > 0)
            p->between[l].fp = synthetic_timing(&state, (double)fp[l]);
        if (bp[l] > 0)
            p->between[l].bp = synthetic_timing(&state, (double)bp[l]);
    }
    for (int u = 0; u < g->n_unit; u++) {
        UnitProfile *up = &p->unit[u];
        up->name = g->unit[u].name;
        up->load = synthetic_timing(&state, 6000 + (double)g->unit[u].bytes / 24);
        up->resident_norm.median_ns = 4000 + g->unit[u].grad_bytes / 800;
        up->resident_update.median_ns = 4000 + g->unit[u].grad_bytes * 7 / 800;
        if (g->unit[u].grad_bytes == 0)
            continue;
        up->store = synthetic_timing(&state, 6000 + (double)g->unit[u].grad_bytes / 24);
        up->norm = synthetic_timing(&state, 1000 + (double)g->unit[u].grad_bytes / 40);
        up->update = synthetic_timing(&state, 2000 + (double)g->unit[u].grad_bytes * 7 / 40);
    }
    p->input_load = synthetic_timing(&state, 8000);
    p->loss_store = synthetic_timing(&state, 6000);
    p->clip = synthetic_timing(&state, 2000);
    return p;
}

static inline void synthetic_make_shape(Arena *a, SyntheticShape shape, Graph **g, Profile **p)
{
    *g = synthetic_graph(a, shape);
    *p = synthetic_profile(a, *g, shape.seed);
}

/* The sizes of the small GPT-2 with `blocks` blocks, batch 4 of 256 tokens. */
static inline void synthetic_make(Arena *a, int blocks, unsigned seed, Graph **g, Profile **p)
{
    SyntheticShape shape = {
        .blocks = blocks, .hidden = 768, .heads = 12, .vocab = 50257, .batch = 4, .seq = 256, .seed = seed};
    synthetic_make_shape(a, shape, g, p);
}

#endif
