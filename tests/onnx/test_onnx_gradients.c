/* test_onnx_gradients.c - gradients of the operators over the ONNX project's test data, against central differences.
 *
 * onnx_cases.h has the command line. Each case becomes a training graph in double precision whose loss is the sum over
 * all floating outputs of output * weights, with fixed pseudo-random weights. Every floating input is trainable, in two
 * ways, since operators are lowered differently: as an initializer of the model, and as an input whose tensor is made a
 * parameter after lowering. A way in which the graph cannot be built does not count as long as the other one can.
 *
 * The oracle runs the forward nodes alone and sums weights * (output at x + h - output at x - h) itself, at h and at h
 * / 2. A coordinate is skipped as a kink when the two differ, or when the slopes to the left and to the right differ by
 * as much at h / 2 as at h: those of a smooth function come closer. An input that the backward pass leaves out must
 * have slope 0. At least half of the coordinates have to be compared. Of inputs with more than COORDINATES elements
 * that many are drawn. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/lower.h"
#include "tests/onnx/onnx_cases.h"

enum { COORDINATES = 24, OUTPUTS = 32 };
typedef enum Way { AS_INITIALIZERS, AS_INPUTS } Way;
typedef enum Result { COMPARED, NOT_BUILT, WRONG } Result;

typedef struct Output {
    const char *name, *weights; /* tensors */
    int64_t count;
    double *weight;
    const double *at; /* where the forward nodes leave it */
} Output;

typedef struct Check {
    Arena *arena;
    char *why;
    Model *m;
    Graph *g;
    int n_fed;
    const ferry_tensor *fed; /* what is left of the inputs, in the order of g->input */
    int n_output;
    Output output[OUTPUTS];
    ferry_device *device;
    ferry_stream *stream;
    void **at; /* by tensor */
    int compared, skipped;
    uint64_t random;
} Check;

static uint64_t draw(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static Result say(Check *c, Result result, const char *message)
{
    case_say(c->why, "%s", message);
    return result;
}

/* ---- the graph
 * ------------------------------------------------------------------------------------------------------- */

/* Running statistics of a batch normalization are kept and never trained. */
static bool is_statistic(const Model *m, int value)
{
    for (int i = 0; i < m->node.count; i++) {
        const ModelNode *n = &m->node.at[i];
        for (int k = 3; k < 5 && k < n->n_in && strcmp(n->op, "BatchNormalization") == 0; k++)
            if (n->in[k] == value)
                return true;
    }
    return false;
}

/* An output of a batch normalization beside the first is no part of what is trained. */
static bool is_running_output(const Model *m, int value)
{
    for (int i = 0; i < m->node.count; i++) {
        const ModelNode *n = &m->node.at[i];
        for (int k = 1; k < n->n_out && strcmp(n->op, "BatchNormalization") == 0; k++)
            if (n->out[k] == value)
                return true;
    }
    return false;
}

static bool is_statistic_named(const Model *m, const char *name)
{
    for (int v = 0; v < m->value.count; v++)
        if (strcmp(m->value.at[v].name, name) == 0)
            return is_statistic(m, v);
    return false;
}

/* Neither a shape or an axis, which are known when compiling, nor a statistic or without elements. */
static bool can_train(const Model *m, int i)
{
    const Value *v = &m->value.at[m->input[i]];
    return dtype_is_float(v->dtype) && v->data == NULL && value_count(v) > 0 && !is_statistic(m, m->input[i]);
}

/* Inputs that are known when compiling become constants, and those without elements initializers; of the floating ones
 * those of rank 1 and more as well, as the model's own would be. */
static void make_initializers(Check *c, Way way)
{
    Model *m = c->m;
    int kept = 0;
    for (int i = 0; i < m->n_input; i++) {
        Value *v = &m->value.at[m->input[i]];
        bool trained = way == AS_INITIALIZERS && (can_train(m, i) || is_statistic(m, m->input[i])) && v->rank > 0;
        if (v->data == NULL && !trained && value_count(v) > 0) {
            m->fed[kept] = m->fed[i];
            m->input[kept++] = m->input[i];
            continue;
        }
        v->kind = v->data != NULL ? VALUE_CONSTANT : VALUE_INITIALIZER;
        v->data = m->fed[i];
        memcpy(v->data_dim, v->dim, sizeof v->dim);
    }
    m->n_input = kept;
}

/* The graph's remaining floating inputs become parameters; the others keep their contents. */
static void make_parameters(Check *c)
{
    Model *m = c->m;
    Graph *g = c->g;
    int kept = 0;
    ferry_tensor *fed = ARENA_NEW(c->arena, ferry_tensor, m->n_input + 1);
    for (int i = 0; i < m->n_input; i++) {
        const Value *v = &m->value.at[m->input[i]];
        int t = g->input[i];
        if (!can_train(m, i)) {
            g->input[kept] = t;
            fed[kept++] = (ferry_tensor){.dtype = v->dtype, .data = (void *)m->fed[i]};
            continue;
        }
        for (int k = 0; k < g->tensor.count; k++)
            if (graph_root(g, k) == t) {
                g->tensor.at[k].kind = TENSOR_PARAM;
                g->tensor.at[k].param = g->n_param;
            }
        g->param[g->n_param++] = (Param){.name = v->name,
                                         .tensor = t,
                                         .grad = -1,
                                         .trainable = true,
                                         .unit = -1,
                                         .count = g->tensor.at[t].count,
                                         .bytes = g->tensor.at[t].bytes,
                                         .file_dtype = v->dtype,
                                         .data = m->fed[i]};
    }
    g->n_input = kept;
    c->fed = fed;
    c->n_fed = kept;
}

static int find_tensor(const Graph *g, const char *name)
{
    for (int i = 0; i < g->tensor.count; i++)
        if (strcmp(g->tensor.at[i].name, name) == 0)
            return i;
    return -1;
}

/* loss += sum(y * weights); |weight| is in [0.25, 1). */
static Status weigh(Diag *d, Check *c, int y)
{
    Graph *g = c->g;
    const Tensor t = g->tensor.at[y];
    const int64_t one = 1;
    double *weight = ARENA_NEW(c->arena, double, t.count);
    int w, weighted, sum, total;
    for (int64_t i = 0; i < t.count; i++) {
        uint64_t bits = draw(&c->random);
        weight[i] = (0.25 + 0.75 * (double)(bits >> 11) * 0x1p-53) * (bits & 1 ? 1 : -1);
    }
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "weights"), TENSOR_CONST, FERRY_F64, t.rank, t.dim, &w));
    c->output[c->n_output++] = (Output){t.name, g->tensor.at[w].name, t.count, weight, NULL};
    g->tensor.at[w].data = weight;
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "weighted"), TENSOR_VALUE, FERRY_F64, t.rank, t.dim, &weighted));
    ferry_kernel mul = call_binary(FERRY_OP_BINARY, FERRY_F64, FERRY_MUL, 1, &t.count, &one, &one);
    TRY(graph_add_node(d, g, "weigh", "Mul", PHASE_FP, -1, &mul, (int[]){weighted, y, w}));
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "sum"), TENSOR_VALUE, FERRY_F64, 0, NULL, &sum));
    ferry_kernel add_up = call_reduce(FERRY_F64, FERRY_SUM, 1, &t.count, 1);
    TRY(graph_add_node(d, g, "sum", "ReduceSum", PHASE_FP, -1, &add_up, (int[]){sum, weighted}));
    if (g->loss < 0) {
        g->loss = sum;
        return ST_OK;
    }
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "loss"), TENSOR_VALUE, FERRY_F64, 0, NULL, &total));
    ferry_kernel add = call_binary(FERRY_OP_BINARY, FERRY_F64, FERRY_ADD, 1, &one, &one, &one);
    TRY(graph_add_node(d, g, "add", "Add", PHASE_FP, -1, &add, (int[]){total, g->loss, sum}));
    g->loss = total;
    return ST_OK;
}

static Result build(Check *c, const char *model_path, const char *set, Way way)
{
    Diag d = {.quiet = true};
    ModelOptions options = {.path = model_path, .precision = FERRY_F64};
    if (model_import(&d, c->arena, &options, &c->m) != ST_OK)
        return say(c, NOT_BUILT, d.message);
    Model *m = c->m;
    ferry_tensor *feed = ARENA_NEW(c->arena, ferry_tensor, m->n_input + 1);
    int n_feed, n_trained = 0;
    if (case_inputs(c->arena, m, set, feed, &n_feed, c->why) != CASE_PASSED)
        return NOT_BUILT;
    if (model_feed(&d, m, &options, n_feed, feed) != ST_OK || model_know_inputs(&d, m) != ST_OK)
        return say(c, NOT_BUILT, d.message);
    for (int i = 0; i < m->n_input; i++)
        n_trained += can_train(m, i);
    if (n_trained == 0)
        return say(c, NOT_BUILT, "no input is floating, has elements, and is more than a shape");
    make_initializers(c, way);
    if (model_infer(&d, m) != ST_OK || graph_lower(&d, c->arena, m, &options, &c->g) != ST_OK)
        return say(c, NOT_BUILT, d.message);
    make_parameters(c);
    for (int i = 0; i < m->n_output && c->n_output < OUTPUTS; i++) {
        int y = find_tensor(c->g, m->value.at[m->output[i]].name);
        if (y >= 0 && !is_running_output(m, m->output[i]) && dtype_is_float(c->g->tensor.at[y].dtype) && c->g->tensor.at[y].count > 0 &&
            weigh(&d, c, y) != ST_OK)
            return say(c, WRONG, d.message);
    }
    if (c->n_output == 0)
        return say(c, NOT_BUILT, "no output is floating and has elements");
    Status s = graph_autodiff(&d, c->g);
    if (s != ST_OK && s != ST_USAGE) /* ST_USAGE: no input reaches the loss; then all slopes are 0 */
        return say(c, WRONG, d.message);
    d = (Diag){.quiet = true};
    if (c->g->n_param == 0)
        return say(c, NOT_BUILT, "no output depends on the values of a floating input");
    if (s == ST_OK && (graph_layers(&d, c->g) != ST_OK || graph_liveness(&d, c->g) != ST_OK))
        return say(c, WRONG, d.message);
    return graph_check(&d, c->g) == ST_OK ? COMPARED : say(c, WRONG, d.message);
}

/* ---- running
 * --------------------------------------------------------------------------------------------------------- */

/* Each root tensor has heap memory of exactly its size. */
static Result prepare(Check *c)
{
    Graph *g = c->g;
    c->at = ARENA_NEW(c->arena, void *, g->tensor.count);
    for (int i = 0; i < g->tensor.count; i++) {
        const Tensor *t = &g->tensor.at[i];
        const Param *p = t->kind == TENSOR_PARAM ? &g->param[t->param] : NULL;
        if (t->root != i)
            continue;
        if ((c->at[i] = malloc((size_t)t->bytes)) == NULL)
            return say(c, WRONG, "out of memory");
        memset(c->at[i], 0xff, (size_t)t->bytes); /* NaN: what is read unwritten shows */
        if (t->kind == TENSOR_CONST)
            memcpy(c->at[i], t->data, (size_t)t->bytes);
        if (p != NULL && ferry_convert(c->at[i], t->dtype, p->data, p->file_dtype, t->count) != FERRY_OK)
            return say(c, WRONG, ferry_error());
    }
    for (int i = 0; i < c->n_fed; i++) {
        const Tensor *t = &g->tensor.at[g->input[i]];
        if (ferry_convert(c->at[g->input[i]], t->dtype, c->fed[i].data, c->fed[i].dtype, t->count) != FERRY_OK)
            return say(c, WRONG, ferry_error());
    }
    for (int i = 0; i < g->tensor.count; i++)
        c->at[i] = c->at[graph_root(g, i)];
    for (int i = 0; i < c->n_output; i++)
        c->output[i].at = c->at[find_tensor(g, c->output[i].name)];
    if (ferry_device_open("host", &c->device) != FERRY_OK ||
        ferry_stream_open(c->device, FERRY_STREAM_COMPUTE, &c->stream) != FERRY_OK)
        return say(c, WRONG, ferry_error());
    return COMPARED;
}

static bool execute(Check *c, int n_node)
{
    for (int i = 0; i < n_node; i++) {
        ferry_kernel call = node_call(c->g, &c->g->node.at[i], c->at);
        if (ferry_launch(c->stream, &call) != FERRY_OK)
            return false;
    }
    return ferry_stream_sync(c->stream) == FERRY_OK;
}

/* ---- differences
 * ----------------------------------------------------------------------------------------------------- */

typedef struct Point {
    double *output[OUTPUTS]; /* a copy of each */
} Point;

static Point *point_new(Check *c)
{
    Point *p = ARENA_NEW(c->arena, Point, 1);
    for (int i = 0; i < c->n_output; i++)
        p->output[i] = ARENA_NEW(c->arena, double, c->output[i].count);
    return p;
}

static bool evaluate(Check *c, double *x, double value, Point *to)
{
    double kept = *x;
    *x = value;
    bool done = execute(c, c->g->n_forward);
    for (int i = 0; i < c->n_output; i++) /* an output may be a view of x */
        memcpy(to->output[i], c->output[i].at, (size_t)c->output[i].count * sizeof(double));
    *x = kept;
    return done;
}

/* sum of weights * (a - b); elements that do not change, infinite ones and NaN as well, count nothing. */
static double difference(const Check *c, const Point *a, const Point *b)
{
    double sum = 0;
    for (int i = 0; i < c->n_output; i++)
        for (int64_t k = 0; k < c->output[i].count; k++) {
            double u = a->output[i][k], v = b->output[i][k];
            if (memcmp(&u, &v, sizeof u) != 0)
                sum += c->output[i].weight[k] * (u - v);
        }
    return sum;
}

typedef struct Slope {
    bool kink;
    double value;
} Slope;

/* Slope of the loss along *x; `largest` is the scale of this input's gradient. */
static bool slope_at(Check *c, Point **at, double *x, double largest, Slope *out)
{
    double h = 1e-4 * fmin(fmax(fabs(*x), 0.05), 1), step[5] = {0, h, -h, h / 2, -h / 2};
    for (int i = 0; i < 5; i++)
        if (!evaluate(c, x, *x + step[i], at[i]))
            return false;
    double wide = difference(c, at[1], at[2]) / (2 * h), narrow = difference(c, at[3], at[4]) / h;
    double bend_wide = fabs(difference(c, at[1], at[0]) - difference(c, at[0], at[2])) / h;
    double bend_narrow = fabs(difference(c, at[3], at[0]) - difference(c, at[0], at[4])) / (h / 2);
    double scale = fmax(fmax(largest, fabs(narrow)), 1e-4);
    out->value = (4 * narrow - wide) / 3; /* without the h^2 term of the error */
    out->kink = !(fabs(wide - narrow) <= 1e-6 * scale) || (bend_narrow > 1e-6 * scale && bend_narrow > 0.7 * bend_wide);
    return true;
}

static Result compare_param(Check *c, const Param *p, Point **at)
{
    double *x = c->at[p->tensor], largest = 0;
    const double *grad = p->grad >= 0 ? c->at[p->grad] : NULL;
    for (int64_t i = 0; i < p->count && grad != NULL; i++)
        largest = isfinite(grad[i]) ? fmax(largest, fabs(grad[i])) : largest;
    for (int64_t k = 0; k < p->count && k < COORDINATES; k++) {
        int64_t i = p->count <= COORDINATES ? k : (int64_t)(draw(&c->random) % (uint64_t)p->count);
        double got = grad != NULL ? grad[i] : 0;
        Slope s;
        if (!isfinite(x[i]))
            continue;
        if (!slope_at(c, at, &x[i], largest, &s))
            return say(c, WRONG, ferry_error());
        if (s.kink) {
            c->skipped++;
            continue;
        }
        c->compared++;
        if (fabs(got - s.value) <= 1e-6 * fmax(largest, fabs(s.value)) + 1e-10)
            continue;
        case_say(c->why, "gradient of %s at element %lld is %.10g, by differences %.10g (largest %.3g)", p->name,
                 (long long)i, got, s.value, largest);
        return WRONG;
    }
    return COMPARED;
}

/* What is infinite or NaN has no slope: it does not count. */
static void ignore_infinite(Check *c)
{
    for (int i = 0; i < c->n_output; i++) {
        Output *o = &c->output[i];
        double *used = c->at[find_tensor(c->g, o->weights)];
        for (int64_t k = 0; k < o->count; k++)
            if (!isfinite(o->at[k]))
                used[k] = o->weight[k] = 0;
    }
}

static Result compare(Check *c)
{
    Result result = prepare(c);
    if (result != COMPARED)
        return result;
    if (!execute(c, c->g->n_forward))
        return say(c, WRONG, ferry_error());
    ignore_infinite(c);
    if (!execute(c, c->g->node.count))
        return say(c, WRONG, ferry_error());
    Point *at[5];
    for (int i = 0; i < 5; i++)
        at[i] = point_new(c);
    for (int p = 0; p < c->g->n_param && result == COMPARED; p++)
        if (!is_statistic_named(c->m, c->g->param[p].name))
            result = compare_param(c, &c->g->param[p], at);
    if (result == COMPARED && c->compared < c->skipped) {
        case_say(c->why, "%d of %d coordinates lie at kinks", c->skipped, c->compared + c->skipped);
        return WRONG;
    }
    return result;
}

static Result check(Arena *a, const char *model_path, const char *set, Way way, char *why)
{
    Check c = {.arena = a, .why = why, .random = 0x9e3779b97f4a7c15u};
    Result result = build(&c, model_path, set, way);
    if (result == COMPARED)
        result = compare(&c);
    ferry_stream_close(c.stream);
    ferry_device_close(c.device);
    for (int i = 0; c.at != NULL && i < c.g->tensor.count; i++)
        if (graph_root(c.g, i) == i)
            free(c.at[i]);
    graph_close(c.g);
    model_close(c.m);
    return result;
}

static int run_set(Arena *a, const char *model_path, const char *set, char *why)
{
    char other[CASE_TEXT];
    Result first = check(a, model_path, set, AS_INITIALIZERS, why);
    if (first == WRONG)
        return CASE_FAILED;
    Result second = check(a, model_path, set, AS_INPUTS, first == COMPARED ? other : why);
    if (second == WRONG && first == COMPARED)
        return case_say(why, "as inputs: %.500s", other);
    return first == COMPARED || second == COMPARED ? CASE_PASSED : CASE_FAILED;
}

int main(int argc, char **argv)
{
    return cases_main(argc, argv, run_set);
}
