/* graph_make.h - training graphs put together by hand, for tests, with every parameter's gradient compared to central
 * differences. */
#ifndef FERRY_TESTS_GRAPH_MAKE_H
#define FERRY_TESTS_GRAPH_MAKE_H

#include <math.h>

#include "tests/unit/graph/graph_exec.h"

typedef struct Make {
    Diag d;
    Arena *arena;
    Model model;
    Graph *g;
    uint64_t random;
} Make;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != ST_OK) {                                                                                         \
            diag_print(&m->d, stderr);                                                                                 \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

static inline void make_open(Make *m, uint64_t seed)
{
    *m = (Make){.d = {.quiet = true}, .arena = arena_open(), .random = seed * 0x9e3779b97f4a7c15u + 1};
    m->model.path = "made.onnx";
    m->g = ARENA_NEW(m->arena, Graph, 1);
    *m->g = (Graph){.arena = m->arena, .model = &m->model, .mark = "~", .precision = FERRY_F64, .loss = -1};
    m->g->param = ARENA_NEW(m->arena, Param, 64);
    m->g->input = ARENA_NEW(m->arena, int, 8);
}

static inline void make_close(Make *m)
{
    graph_close(m->g);
    arena_close(m->arena);
}

static inline uint64_t make_random(Make *m)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return m->random;
}

static inline int64_t make_int(Make *m, int64_t from, int64_t to) /* both included */
{
    return from + (int64_t)(make_random(m) % (uint64_t)(to - from + 1));
}

static inline double make_real(Make *m, double from, double to)
{
    return from + (to - from) * (double)(make_random(m) >> 11) * 0x1p-53;
}

static inline double *make_data(Make *m, int64_t count, double from, double to)
{
    double *data = ARENA_NEW(m->arena, double, count);
    for (int64_t i = 0; i < count; i++)
        data[i] = make_real(m, from, to);
    return data;
}

/* Values drawn from [from, to): a trainable parameter. */
static inline int make_param(Make *m, int rank, const int64_t *dim, double from, double to)
{
    Graph *g = m->g;
    int t;
    OK(graph_add_tensor(&m->d, g, arena_printf(m->arena, "p%d", g->n_param), TENSOR_PARAM, FERRY_F64, rank, dim, &t));
    Tensor *x = &g->tensor.at[t];
    x->param = g->n_param;
    g->param[g->n_param++] = (Param){.name = x->name,
                                     .tensor = t,
                                     .grad = -1,
                                     .trainable = true,
                                     .unit = -1,
                                     .count = x->count,
                                     .bytes = x->bytes,
                                     .file_dtype = FERRY_F64,
                                     .data = make_data(m, x->count, from, to)};
    return t;
}

static inline int make_const(Make *m, ferry_dtype type, int rank, const int64_t *dim, const void *data)
{
    int t;
    OK(graph_add_tensor(&m->d, m->g, graph_made_up_name(m->g, "const"), TENSOR_CONST, type, rank, dim, &t));
    m->g->tensor.at[t].data = data;
    return t;
}

static inline int make_value(Make *m, ferry_dtype type, int rank, const int64_t *dim)
{
    int t;
    OK(graph_add_tensor(&m->d, m->g, graph_made_up_name(m->g, "v"), TENSOR_VALUE, type, rank, dim, &t));
    return t;
}

static inline int make_view(Make *m, int of, int rank, const int64_t *dim)
{
    int t;
    OK(graph_add_view(&m->d, m->g, graph_made_up_name(m->g, "view"), of, rank, dim, &t));
    return t;
}

static inline void make_node(Make *m, const ferry_kernel *call, const int *arg)
{
    OK(graph_add_node(&m->d, m->g, arena_printf(m->arena, "n%d", m->g->node.count), ferry_op_get(call->op)->name,
                      PHASE_FP, -1, call, arg));
}

static inline int make_unary(Make *m, ferry_fn fn, int x)
{
    Tensor t = m->g->tensor.at[x];
    int y = make_value(m, t.dtype, t.rank, t.dim);
    ferry_kernel c = call_unary(FERRY_OP_UNARY, t.dtype, fn, t.count);
    make_node(m, &c, (int[]){y, x});
    return y;
}

/* fn(a, b) broadcast. */
static inline int make_binary(Make *m, ferry_fn fn, int a, int b)
{
    Tensor ta = m->g->tensor.at[a], tb = m->g->tensor.at[b];
    int rank = ta.rank > tb.rank ? ta.rank : tb.rank;
    int64_t dim[MAX_RANK], sa[MAX_RANK], sb[MAX_RANK];
    for (int i = 0; i < rank; i++) {
        int64_t da = i >= rank - ta.rank ? ta.dim[i - (rank - ta.rank)] : 1;
        int64_t db = i >= rank - tb.rank ? tb.dim[i - (rank - tb.rank)] : 1;
        dim[i] = da > db ? da : db;
    }
    int y = make_value(m, ta.dtype, rank, dim);
    strides_broadcast(rank, ta.rank, ta.dim, sa);
    strides_broadcast(rank, tb.rank, tb.dim, sb);
    ferry_kernel c = call_binary(FERRY_OP_BINARY, ta.dtype, fn, rank, dim, sa, sb);
    make_node(m, &c, (int[]){y, a, b});
    return y;
}

/* loss += sum(y * random weights): gives every element of y its own gradient. */
static inline void make_loss(Make *m, int y)
{
    Tensor t = m->g->tensor.at[y];
    int w = make_const(m, FERRY_F64, t.rank, t.dim, make_data(m, t.count, -1, 1));
    int weighted = make_binary(m, FERRY_MUL, y, w), sum = make_value(m, FERRY_F64, 0, NULL);
    ferry_kernel c = call_reduce(FERRY_F64, FERRY_SUM, 1, &t.count, 1);
    make_node(m, &c, (int[]){sum, weighted});
    m->g->loss = m->g->loss < 0 ? sum : make_binary(m, FERRY_ADD, m->g->loss, sum);
}

/* Ends of segments of the forward pass, drawn: up to three. */
static inline int make_ends(Make *m, const char **ends)
{
    const Graph *g = m->g;
    int n = 0, at = -1;
    for (int i = 0; i < 3 && at + 1 < g->n_forward; i++) {
        int node = (int)make_int(m, at + 1, g->n_forward - 1);
        const char *name = g->tensor.at[g->node.at[node].arg[0]].name;
        int end = graph_end_node(g, name);
        if (end <= at)
            continue;
        ends[n++] = name;
        at = end;
    }
    return n;
}

/* With segments computed again, wherever they end: the same bits. */
static inline void make_check_recomputation(Make *m, const Exec *plain)
{
    const char *ends[3];
    const Graph *g;
    Exec e;
    OK(graph_recompute(&m->d, m->arena, m->g, make_ends(m, ends), ends, &g));
    OK(graph_check(&m->d, g));
    exec_open(&e, g);
    exec_run(&e, g->node.count);
    assert_memory_equal(e.at[g->loss], plain->at[g->loss], sizeof(double));
    for (int p = 0; p < g->n_param; p++)
        if (g->param[p].grad >= 0)
            assert_memory_equal(e.at[g->param[p].grad], plain->at[g->param[p].grad], (size_t)g->param[p].bytes);
    exec_close(&e);
}

/* Differentiates, checks the graph, runs it, and compares each parameter's gradient with central differences. */
static inline void make_check_gradients(Make *m)
{
    Graph *g = m->g;
    Exec e;
    OK(graph_check(&m->d, g));
    OK(graph_autodiff(&m->d, g));
    OK(graph_check(&m->d, g));
    OK(graph_layers(&m->d, g));
    OK(graph_liveness(&m->d, g));
    OK(graph_check(&m->d, g));
    exec_open(&e, g);
    exec_run(&e, g->node.count);
    for (int round = 0; round < 3; round++)
        make_check_recomputation(m, &e);
    for (int p = 0; p < g->n_param; p++) {
        if (!g->param[p].trainable)
            continue;
        double *value = e.at[g->param[p].tensor], h = 1e-5;
        const double *grad = e.at[g->param[p].grad];
        int64_t step = g->param[p].count > 40 ? g->param[p].count / 20 : 1;
        for (int64_t i = 0; i < g->param[p].count; i += step) {
            double kept = value[i], up, down;
            value[i] = kept + h;
            exec_run(&e, g->n_forward);
            up = exec_loss(&e);
            value[i] = kept - h;
            exec_run(&e, g->n_forward);
            down = exec_loss(&e);
            value[i] = kept;
            double numeric = (up - down) / (2 * h);
            if (!(fabs(numeric - grad[i]) <= 2e-6 * (1 + fabs(numeric)))) {
                Text t = {0};
                graph_print(g, &t);
                print_error("%s\n%s[%lld]: %.10g, by differences %.10g\n", t.at, g->param[p].name, (long long)i,
                            grad[i], numeric);
                text_free(&t);
                fail();
            }
        }
    }
    exec_close(&e);
}

#endif
