/* onnx_make.h - small random ONNX graphs for tests: written as protobuf, imported, lowered and differentiated like a
 * user's file, with every parameter's gradient compared to central differences.
 *
 * A name stands for a value everywhere; the functions that make values return theirs. Parameters are initializers in
 * double precision. Every value given to out_ is an output of the graph, weighted by random numbers in the loss. */
#ifndef FERRY_TESTS_ONNX_MAKE_H
#define FERRY_TESTS_ONNX_MAKE_H

#include "tests/unit/graph/graph_make.h"
#include "tests/unit/graph/model_test.h"

typedef struct Onnx {
    Make make; /* random numbers; later the graph */
    Bytes graph;
    int64_t opset;
    int n_name, n_out;
    int n_param;        /* all of which must have a gradient in the end */
    char name[256][16]; /* owns the names */
} Onnx;

typedef struct Shape {
    int rank;
    int64_t dim[MAX_RANK];
} Shape;

static inline void onnx_open(Onnx *o, uint64_t seed)
{
    *o = (Onnx){.opset = 17};
    o->make.random = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 4; i++)
        make_random(&o->make);
}

static inline int64_t pick(Onnx *o, int64_t from, int64_t to) /* both included */
{
    return make_int(&o->make, from, to);
}

static inline bool chance(Onnx *o, int one_in)
{
    return pick(o, 1, one_in) == 1;
}

/* Of size 1 now and then. */
static inline Shape pick_shape(Onnx *o, int min_rank, int max_rank)
{
    Shape s = {.rank = (int)pick(o, min_rank, max_rank)};
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = chance(o, 4) ? 1 : pick(o, 2, 4);
    return s;
}

static inline Shape shape2(int64_t a, int64_t b)
{
    return (Shape){2, {a, b}};
}

static inline Shape shape3(int64_t a, int64_t b, int64_t c)
{
    return (Shape){3, {a, b, c}};
}

static inline Shape shape4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (Shape){4, {a, b, c, d}};
}

/* An axis of the shape, negative every other time. */
static inline int64_t pick_axis(Onnx *o, int rank)
{
    int64_t axis = pick(o, 0, rank - 1);
    return chance(o, 2) ? axis - rank : axis;
}

static inline int64_t whole_axis(int64_t axis, int rank)
{
    return axis < 0 ? axis + rank : axis;
}

static inline const char *fresh(Onnx *o, const char *base)
{
    assert_true(o->n_name < 256);
    char *name = o->name[o->n_name];
    snprintf(name, sizeof(o->name[0]), "%s%d", base, o->n_name++);
    return name;
}

static inline const char *param_in(Onnx *o, Shape s, double from, double to)
{
    int64_t count = dims_count(s.rank, s.dim);
    const char *name = fresh(o, "p");
    double *data = calloc((size_t)count + 1, sizeof(*data));
    for (int64_t i = 0; i < count; i++)
        data[i] = make_real(&o->make, from, to);
    put_message(&o->graph, 5, tensor(name, 11, s.rank, s.dim, data, (size_t)count * sizeof(*data)));
    free(data);
    o->n_param++;
    return name;
}

static inline const char *param(Onnx *o, Shape s)
{
    return param_in(o, s, -1.5, 1.5);
}

static inline const char *whole(Onnx *o, Shape s, const int64_t *data)
{
    const char *name = fresh(o, "i");
    put_message(&o->graph, 5, tensor(name, 7, s.rank, s.dim, data, (size_t)dims_count(s.rank, s.dim) * sizeof(*data)));
    return name;
}

static inline const char *list(Onnx *o, int count, const int64_t *data)
{
    return whole(o, (Shape){1, {count}}, data);
}

static inline const char *flags(Onnx *o, Shape s)
{
    char data[512];
    const char *name = fresh(o, "b");
    int64_t count = dims_count(s.rank, s.dim);
    assert_true(count <= (int64_t)sizeof(data));
    for (int64_t i = 0; i < count; i++)
        data[i] = (char)pick(o, 0, 1);
    put_message(&o->graph, 5, tensor(name, 9, s.rank, s.dim, data, (size_t)count));
    return name;
}

static inline Bytes attr_float(const char *name, float x)
{
    Bytes a = {0};
    put_text(&a, 1, name);
    put_number(&a, 2 << 3 | 5);
    put_bytes(&a, &x, sizeof(x));
    put_int(&a, 20, 1);
    return a;
}

static inline Bytes attr_text(const char *name, const char *x)
{
    Bytes a = {0};
    put_text(&a, 1, name);
    put_text(&a, 4, x);
    put_int(&a, 20, 3);
    return a;
}

/* A node by inputs "a,b,,c" and outputs; `n` attributes, whose bytes are taken. */
static inline void add_node(Onnx *o, const char *op, const char *in, const char *out, int n, const Bytes *attr)
{
    Bytes b = node(fresh(o, "n"), op, in, out);
    for (int i = 0; i < n; i++)
        put_message(&b, 5, attr[i]);
    put_message(&o->graph, 1, b);
}

/* The same with inputs by format and one output, whose name it returns. */
#define APPLY(o, op, n, attr, ...) apply_(o, op, n, attr, (snprintf(text_, sizeof(text_), __VA_ARGS__), text_))
static char text_[512];

static inline const char *apply_(Onnx *o, const char *op, int n, const Bytes *attr, const char *in)
{
    const char *y = fresh(o, "v");
    add_node(o, op, in, y, n, attr);
    return y;
}

static inline const char *unary(Onnx *o, const char *op, const char *x)
{
    return apply_(o, op, 0, NULL, x);
}

static inline const char *binary(Onnx *o, const char *op, const char *x, const char *y)
{
    return APPLY(o, op, 0, NULL, "%s,%s", x, y);
}

static inline const char *reshape(Onnx *o, const char *x, Shape s)
{
    return binary(o, "Reshape", x, list(o, s.rank, s.dim));
}

/* x itself, a value computed from it, or a view of either. `s`: its shape. */
static inline const char *pass(Onnx *o, const char *x, Shape s)
{
    if (chance(o, 2))
        x = unary(o, "Tanh", x);
    if (chance(o, 3)) {
        const int64_t flat = -1;
        x = reshape(o, binary(o, "Reshape", x, list(o, 1, &flat)), s);
    }
    return x;
}

static inline void out_(Onnx *o, const char *y)
{
    put_message(&o->graph, 12, output(y));
    o->n_out++;
}

/* ---- from the bytes to a differentiated graph
 * ------------------------------------------------------------------------ */

/* Imports and lowers; the graph's outputs are weighed into the loss. */
static inline Opened onnx_lower(Onnx *o)
{
    Opened opened = open_bytes(model_bytes(o->graph, o->opset));
    if (opened.status != ST_OK)
        fail_msg("%s", opened.d.message);
    Make *m = &o->make;
    m->d = (Diag){.quiet = true};
    m->arena = opened.arena;
    ModelOptions options = {.precision = FERRY_F64};
    OK(graph_lower(&m->d, m->arena, opened.m, &options, &m->g));
    for (int i = 0; i < opened.m->n_output; i++) {
        const char *name = opened.m->value.at[opened.m->output[i]].name;
        int y = -1;
        for (int t = 0; t < m->g->tensor.count; t++)
            if (strcmp(m->g->tensor.at[t].name, name) == 0)
                y = t;
        assert_true(y >= 0);
        if (dtype_is_float(m->g->tensor.at[y].dtype) && (m->g->tensor.at[y].count > 0 || chance(o, 2)))
            make_loss(m, y);
    }
    return opened;
}

static inline void onnx_check(Onnx *o)
{
    Opened opened = onnx_lower(o);
    make_check_gradients(&o->make);
    int trained = 0;
    for (int p = 0; p < o->make.g->n_param; p++)
        trained += o->make.g->param[p].trainable;
    assert_int_equal(trained, o->n_param);
    graph_close(o->make.g);
    close_opened(&opened);
}

#endif
