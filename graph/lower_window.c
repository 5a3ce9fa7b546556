/* lower_window.c - convolutions, poolings, and normalizations over channels. */
#include <string.h>

#include "graph/lower.h"
#include "graph/ops.h"
#include "graph/ops_lower.h"
#include "graph/window.h"

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

Status lower_conv(Diag *d, Lowering *l, ModelNode *n)
{
    int x, w, b, y;
    ferry_kernel call = call_new(FERRY_OP_CONV, l->graph->precision);
    TRY(window_of_conv(d, l->model, n, &call.window));
    TRY(lower_input(d, l, n, 0, &x));
    TRY(lower_input(d, l, n, 1, &w));
    TRY(lower_input(d, l, n, 2, &b));
    TRY(lower_output(d, l, n, 0, &y));
    call.m = l->graph->tensor.at[x].dim[0];
    call.k = l->graph->tensor.at[x].dim[1];
    call.n = l->graph->tensor.at[w].dim[0];
    return lower_emit(d, l, n, &call, (int[]){y, x, w, b});
}

/* The transpose of a convolution is what that convolution's gradient applies: here x takes the part of dy. */
Status lower_conv_transpose(Diag *d, Lowering *l, ModelNode *n)
{
    int x, w, b, y;
    ferry_kernel call = call_new(FERRY_OP_CONV_DX, l->graph->precision);
    TRY(window_of_conv_transpose(d, l->model, n, &call.window));
    TRY(lower_input(d, l, n, 0, &x));
    TRY(lower_input(d, l, n, 1, &w));
    TRY(lower_input(d, l, n, 2, &b));
    TRY(lower_output(d, l, n, 0, &y));
    call.m = l->graph->tensor.at[x].dim[0];
    call.n = l->graph->tensor.at[x].dim[1];
    call.k = l->graph->tensor.at[y].dim[1];
    return lower_emit(d, l, n, &call, (int[]){y, x, w, b});
}

/* ---- poolings ---------------------------------------------------------------------------------------------------- */

/* A kernel of one pooling; the index tensor is the node's second output when it has one. */
static Status emit_maxpool(Diag *d, Lowering *l, ModelNode *n, const ferry_window *w, int64_t planes, int y, int x)
{
    Graph *g = l->graph;
    int index;
    const Tensor t = g->tensor.at[y];
    if (n->n_out > 1 && n->out[1] >= 0)
        TRY(lower_output(d, l, n, 1, &index));
    else
        TRY(graph_add_tensor(d, g, graph_made_up_name(g, "place"), TENSOR_VALUE, FERRY_I64, t.rank, t.dim, &index));
    ferry_kernel call = call_new(FERRY_OP_MAXPOOL, g->precision);
    call.window = *w;
    call.m = planes;
    return lower_emit(d, l, n, &call, (int[]){y, index, x});
}

static Status emit_cast(Diag *d, Lowering *l, const ModelNode *n, int y, int x)
{
    ferry_kernel cast = call_new(FERRY_OP_CAST, l->graph->tensor.at[x].dtype);
    cast.dtype2 = l->graph->tensor.at[y].dtype;
    cast.n = l->graph->tensor.at[x].count;
    return lower_emit(d, l, n, &cast, (int[]){y, x});
}

Status lower_maxpool(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int x, y, wide, most;
    ferry_window w;
    TRY(window_of_pool(d, l->model, n, &w));
    w.count_pad = false;
    if (node_attr_int(n, "storage_order", 0) != 0 && lower_is_used(l, n, 1))
        return node_fail(d, l->model, n, "places in column-major order (storage_order = 1) are unsupported");
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = g->tensor.at[x];
    int64_t planes = t.dim[0] * t.dim[1];
    TRY(lower_output(d, l, n, 0, &y));
    if (dtype_is_float(t.dtype))
        return emit_maxpool(d, l, n, &w, planes, y, x);
    /* 8-bit integers: exact in every floating type */
    TRY(lower_temp(d, l, n, g->precision, t.rank, t.dim, &wide));
    TRY(emit_cast(d, l, n, wide, x));
    TRY(lower_temp(d, l, n, g->precision, t.rank, g->tensor.at[y].dim, &most));
    TRY(emit_maxpool(d, l, n, &w, planes, most, wide));
    return emit_cast(d, l, n, y, most);
}

Status lower_avgpool(Diag *d, Lowering *l, ModelNode *n)
{
    int x, y;
    ferry_kernel call = call_new(FERRY_OP_AVGPOOL, l->graph->precision);
    TRY(window_of_pool(d, l->model, n, &call.window));
    TRY(lower_input(d, l, n, 0, &x));
    TRY(lower_output(d, l, n, 0, &y));
    call.fn = FERRY_MEAN;
    call.m = l->graph->tensor.at[x].dim[0] * l->graph->tensor.at[x].dim[1];
    return lower_emit(d, l, n, &call, (int[]){y, x});
}

/* y = fn(x) or fn(x, number), element by element, into a new temporary when *y is -1. */
static Status emit_each(Diag *d, Lowering *l, const ModelNode *n, ferry_fn fn, int x, int *y)
{
    const Tensor t = l->graph->tensor.at[x];
    if (*y < 0)
        TRY(lower_temp(d, l, n, t.dtype, t.rank, t.dim, y));
    ferry_kernel call = call_unary(FERRY_OP_UNARY, t.dtype, fn, t.count);
    return lower_emit(d, l, n, &call, (int[]){*y, x});
}

static Status emit_each_with(Diag *d, Lowering *l, const ModelNode *n, ferry_fn fn, int x, double number, int *y)
{
    const Tensor t = l->graph->tensor.at[x];
    const int64_t one = 1, zero = 0;
    int s;
    TRY(graph_add_scalar(d, l->graph, number, &s));
    if (*y < 0)
        TRY(lower_temp(d, l, n, t.dtype, t.rank, t.dim, y));
    ferry_kernel call = call_binary(FERRY_OP_BINARY, t.dtype, fn, 1, &t.count, &one, &zero);
    return lower_emit(d, l, n, &call, (int[]){*y, x, s});
}

/* |x|^p */
static Status emit_power(Diag *d, Lowering *l, const ModelNode *n, int x, double p, int *y)
{
    int size = -1;
    if (p == 2)
        return emit_each(d, l, n, FERRY_SQUARE, x, y);
    if (p == 1)
        return emit_each(d, l, n, FERRY_ABS, x, y);
    TRY(emit_each(d, l, n, FERRY_ABS, x, &size));
    return emit_each_with(d, l, n, FERRY_POW, size, p, y);
}

/* Output 0 = sum^(1/p) */
static Status emit_root(Diag *d, Lowering *l, const ModelNode *n, int sum, double p)
{
    int y;
    if (p == 1)
        return lower_view(d, l, n, 0, sum);
    TRY(lower_output(d, l, n, 0, &y));
    return p == 2 ? emit_each(d, l, n, FERRY_SQRT, sum, &y) : emit_each_with(d, l, n, FERRY_POW, sum, 1 / p, &y);
}

static Status read_norm_order(Diag *d, Lowering *l, const ModelNode *n, double *out)
{
    int64_t p = node_attr_int(n, "p", 2);
    *out = (double)p;
    return p >= 1 ? ST_OK : node_fail(d, l->model, n, "its p is %lld", (long long)p);
}

/* (sum of |x|^p over the window)^(1/p) */
Status lower_lp_pool(Diag *d, Lowering *l, ModelNode *n)
{
    int x, powers = -1, sum;
    double p;
    ferry_kernel call = call_new(FERRY_OP_AVGPOOL, l->graph->precision);
    TRY(read_norm_order(d, l, n, &p));
    TRY(window_of_pool(d, l->model, n, &call.window));
    call.window.count_pad = false;
    TRY(lower_input(d, l, n, 0, &x));
    TRY(emit_power(d, l, n, x, p, &powers));
    const Value *out = &l->model->value.at[n->out[0]];
    TRY(lower_temp(d, l, n, l->graph->precision, out->rank, out->dim, &sum));
    call.fn = FERRY_SUM;
    call.m = out->dim[0] * out->dim[1];
    TRY(lower_emit(d, l, n, &call, (int[]){sum, powers}));
    return emit_root(d, l, n, sum, p);
}

/* GlobalAveragePool, GlobalMaxPool, GlobalLpPool: the spatial dimensions are one of [N * C, spatial]. */
Status lower_global_pool(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int x, y;
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = g->tensor.at[x];
    const Value *out = &l->model->value.at[n->out[0]];
    const int64_t dim[] = {dims_count(2, t.dim), dims_count(t.rank - 2, t.dim + 2)};
    if (dim[1] == 0)
        return node_fail(d, l->model, n, "its input has no spatial positions");
    bool lp = strcmp(n->op, "GlobalLpPool") == 0;
    if (dim[1] == 1 && !lp)
        return lower_view(d, l, n, 0, x);
    if (strcmp(n->op, "GlobalMaxPool") == 0) {
        ferry_window w = {.rank = 1, .groups = 1, .in = {dim[1]}, .out = {1}, .size = {dim[1]}};
        w.step[0] = w.dilation[0] = 1;
        TRY(lower_output(d, l, n, 0, &y));
        return emit_maxpool(d, l, n, &w, dim[0], y, x);
    }
    ferry_kernel call = call_reduce(t.dtype, lp ? FERRY_SUM : FERRY_MEAN, 2, dim, 2);
    if (!lp) {
        TRY(lower_output(d, l, n, 0, &y));
        return lower_emit(d, l, n, &call, (int[]){y, x});
    }
    int powers = -1, sum;
    double p;
    TRY(read_norm_order(d, l, n, &p));
    TRY(emit_power(d, l, n, x, p, &powers));
    TRY(lower_temp(d, l, n, t.dtype, out->rank, out->dim, &sum));
    TRY(lower_emit(d, l, n, &call, (int[]){sum, powers}));
    return emit_root(d, l, n, sum, p);
}

/* y = x / (bias + alpha / size * sum of squares of the channels around)^beta */
Status lower_lrn(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int x, y, squares = -1, sum, scaled = -1, base = -1, factor = -1;
    int64_t size = node_attr_int(n, "size", 1);
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = g->tensor.at[x];
    int64_t channels = t.dim[1], inner = dims_count(t.rank - 2, t.dim + 2), one = 1;
    TRY(emit_each(d, l, n, FERRY_SQUARE, x, &squares));
    TRY(lower_temp(d, l, n, t.dtype, t.rank, t.dim, &sum));
    ferry_kernel pool = call_new(FERRY_OP_AVGPOOL, t.dtype);
    pool.fn = FERRY_SUM;
    pool.m = t.dim[0];
    pool.window = (ferry_window){.rank = 2,
                                 .groups = 1,
                                 .in = {channels, inner},
                                 .out = {channels, inner},
                                 .size = {size, 1},
                                 .step = {1, 1},
                                 .pad = {(size - 1) / 2, 0},
                                 .dilation = {1, 1}};
    TRY(lower_emit(d, l, n, &pool, (int[]){sum, squares}));
    TRY(emit_each_with(d, l, n, FERRY_MUL, sum, node_attr_float(n, "alpha", 0.0001) / (double)size, &scaled));
    TRY(emit_each_with(d, l, n, FERRY_ADD, scaled, node_attr_float(n, "bias", 1), &base));
    TRY(emit_each_with(d, l, n, FERRY_POW, base, -node_attr_float(n, "beta", 0.75), &factor));
    TRY(lower_output(d, l, n, 0, &y));
    ferry_kernel call = call_binary(FERRY_OP_BINARY, t.dtype, FERRY_MUL, 1, &t.count, &one, &one);
    return lower_emit(d, l, n, &call, (int[]){y, x, factor});
}

/* ---- normalizations over channels -------------------------------------------------------------------------------- */

bool batchnorm_trains(const Model *m, const ModelNode *n)
{
    if (m->opset >= 14)
        return node_attr_int(n, "training_mode", 0) != 0;
    for (int i = 1; i < n->n_out; i++)
        if (n->out[i] >= 0)
            return true;
    return false;
}

/* BATCHNORM of input x, whose statistics have the shape of its scale. */
static ferry_kernel batchnorm_call(const Lowering *l, const ModelNode *n, const Tensor *x, const Tensor *scale)
{
    ferry_kernel call = call_new(FERRY_OP_BATCHNORM, l->graph->precision);
    call.m = x->dim[0];
    call.n = scale->count;
    call.k = scale->rank > 1 ? 1 : dims_count(x->rank - 2, x->dim + 2);
    call.eps = node_attr_float(n, "epsilon", 1e-5);
    return call;
}

/* Running statistics number i (mean, variance) from those of the batch: in a training graph the initializer's state is
 * brought up to date; else output 1 + i is made of input 3 + i. */
static Status lower_running(Diag *d, Lowering *l, ModelNode *n, int i, int batch)
{
    Graph *g = l->graph;
    ferry_kernel average = call_new(FERRY_OP_MOVING_AVERAGE, g->precision);
    average.n = g->tensor.at[batch].count;
    average.alpha = node_attr_float(n, "momentum", 0.9);
    average.accumulate = true;
    int running = -1, out = batch; /* unused outputs need a tensor to be known as done */
    bool used = lower_is_used(l, n, 1 + i);
    if (used || !g->forward)
        TRY(lower_input(d, l, n, 3 + i, &running));
    bool state = running >= 0 && g->tensor.at[graph_root(g, running)].kind == TENSOR_STATE;
    if (!state && !g->forward)
        diag_warn(d, "%s: node '%s' (%s): its running %s is no initializer and is not kept", l->model->path, n->name,
                  n->op, i == 0 ? "mean" : "variance");
    if (used && !state) {
        TRY(lower_output(d, l, n, 1 + i, &out));
        ferry_kernel copy = call_scale(g->precision, average.n, 1, false);
        TRY(lower_emit(d, l, n, &copy, (int[]){out, running}));
        TRY(lower_emit(d, l, n, &average, (int[]){out, batch}));
    } else if (state) {
        g->param[g->tensor.at[running].param].init = i == 0 ? INIT_ZERO : INIT_ONE;
        TRY(lower_emit(d, l, n, &average, (int[]){running, batch}));
        out = running;
    }
    if (1 + i < n->n_out && n->out[1 + i] >= 0)
        l->tensor_of[n->out[1 + i]] = out;
    return ST_OK;
}

/* The statistics are those of the batch, and the running ones follow them. These come before the normalization: what the
 * loss does not need is found from the end. */
static Status lower_trained_norm(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int arg[6];
    if (g->precision != FERRY_F32 && g->precision != FERRY_F64)
        return node_fail(d, l->model, n, "training mode is unsupported in %s: running statistics are kept in fp32 or fp64",
                         ferry_dtype_name(g->precision));
    for (int i = 1; i < n->n_out && !g->forward; i++)
        if (n->out[i] >= 0 && l->user[n->out[i]] >= 0)
            return node_fail(d, l->model, n, "its output '%s' is read by '%s': only the first output can be trained through",
                             l->model->value.at[n->out[i]].name, l->model->node.at[l->user[n->out[i]]].name);
    for (int i = 0; i < 3; i++)
        TRY(lower_input(d, l, n, i, &arg[1 + i]));
    const Tensor x = g->tensor.at[arg[1]], scale = g->tensor.at[arg[2]];
    ferry_kernel call = batchnorm_call(l, n, &x, &scale), stats = call;
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "mean"), TENSOR_VALUE, x.dtype, scale.rank, scale.dim, &arg[4]));
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "var"), TENSOR_VALUE, x.dtype, scale.rank, scale.dim, &arg[5]));
    stats.op = FERRY_OP_BATCH_STATS;
    TRY(lower_emit(d, l, n, &stats, (int[]){arg[4], arg[5], arg[1]}));
    for (int i = 0; i < 2; i++) {
        TRY(lower_running(d, l, n, i, arg[4 + i]));
        if (3 + i < n->n_out && n->out[3 + i] >= 0) /* before opset 14: the statistics of the batch */
            l->tensor_of[n->out[3 + i]] = arg[4 + i];
    }
    TRY(lower_output(d, l, n, 0, &arg[0]));
    return lower_emit(d, l, n, &call, arg);
}

Status lower_batch_normalization(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int arg[6];
    if (batchnorm_trains(l->model, n))
        return lower_trained_norm(d, l, n);
    for (int i = 1; i < n->n_out; i++)
        if (lower_is_used(l, n, i))
            return node_fail(d, l->model, n, "it has one output only unless training_mode is 1");
    for (int i = 0; i < 5; i++)
        TRY(lower_input(d, l, n, i, &arg[1 + i]));
    for (int i = 4; i < 6; i++) {
        const Tensor *s = &g->tensor.at[graph_root(g, arg[i])];
        const char *what = i == 4 ? "mean" : "variance";
        if (s->kind == TENSOR_VALUE)
            return node_fail(d, l->model, n, "its %s is computed by the model, which is unsupported", what);
        if (s->kind == TENSOR_PARAM && g->param[s->param].trainable) {
            node_fail(d, l->model, n, "its %s is the initializer '%s', which is trained elsewhere in the model", what,
                      s->name);
            return diag_hint(
                d,
                "exporters merge initializers of equal values: train the model for a step before exporting "
                "it, or give --freeze '%s'",
                s->name);
        }
    }
    ferry_kernel call = batchnorm_call(l, n, &g->tensor.at[arg[1]], &g->tensor.at[arg[2]]);
    TRY(lower_output(d, l, n, 0, &arg[0]));
    for (int i = 1; i < n->n_out; i++) /* unused outputs need a tensor to be known as done */
        if (n->out[i] >= 0)
            l->tensor_of[n->out[i]] = arg[4];
    return lower_emit(d, l, n, &call, arg);
}

/* Rows of `cols` elements to mean 0 and variance 1, then scale and bias by channel of [outer, channels, inner]. */
static Status emit_row_norm(Diag *d, Lowering *l, ModelNode *n, int64_t rows, int64_t cols, int64_t channels,
                            int64_t inner)
{
    Graph *g = l->graph;
    int x, scale, bias, ones, normal, mean, rstd, y;
    TRY(lower_input(d, l, n, 0, &x));
    TRY(lower_input(d, l, n, 1, &scale));
    TRY(lower_input(d, l, n, 2, &bias));
    const Tensor t = g->tensor.at[x];
    TRY(lower_temp(d, l, n, t.dtype, 1, &cols, &ones));
    ferry_kernel fill = call_new(FERRY_OP_FILL, t.dtype);
    fill.n = cols;
    fill.alpha = 1;
    TRY(lower_emit(d, l, n, &fill, (int[]){ones}));
    TRY(lower_temp(d, l, n, t.dtype, t.rank, t.dim, &normal));
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "mean"), TENSOR_VALUE, t.dtype, 1, &rows, &mean));
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "rstd"), TENSOR_VALUE, t.dtype, 1, &rows, &rstd));
    ferry_kernel norm = call_new(FERRY_OP_LAYERNORM, t.dtype);
    norm.m = rows;
    norm.n = cols;
    norm.eps = node_attr_float(n, "epsilon", 1e-5);
    TRY(lower_emit(d, l, n, &norm, (int[]){normal, mean, rstd, x, ones, -1}));
    TRY(lower_output(d, l, n, 0, &y));
    ferry_kernel affine = call_new(FERRY_OP_BATCHNORM, t.dtype);
    affine.n = channels;
    affine.k = inner;
    affine.m = t.dim[0];
    return lower_emit(d, l, n, &affine, (int[]){y, normal, scale, bias, -1, -1});
}

Status lower_instance_normalization(Diag *d, Lowering *l, ModelNode *n)
{
    const Value *x = &l->model->value.at[n->in[0]];
    int64_t inner = dims_count(x->rank - 2, x->dim + 2);
    return emit_row_norm(d, l, n, x->dim[0] * x->dim[1], inner, x->dim[1], inner);
}

Status lower_group_normalization(Diag *d, Lowering *l, ModelNode *n)
{
    const Value *x = &l->model->value.at[n->in[0]];
    int64_t groups = node_attr_int(n, "num_groups", 1), inner = dims_count(x->rank - 2, x->dim + 2);
    int64_t cols = x->dim[1] / groups * inner;
    bool by_group = l->model->opset < 21;
    return emit_row_norm(d, l, n, x->dim[0] * groups, cols, by_group ? groups : x->dim[1], by_group ? cols : inner);
}
