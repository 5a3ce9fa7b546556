/* loss.c - the scalar that training minimises: the model's own, or one added to an output. */
#include <stdlib.h>
#include <string.h>

#include "graph/lower.h"

static int tensor_by_name(const Graph *g, const char *name)
{
    for (int i = 0; i < g->tensor.count; i++)
        if (strcmp(g->tensor.at[i].name, name) == 0)
            return i;
    return -1;
}

static Status hint_outputs(Diag *d, const Graph *g)
{
    Text t = {0};
    for (int i = 0; i < g->model->n_output; i++) {
        const Value *v = &g->model->value.at[g->model->output[i]];
        text_add(&t, "%s%s %s[", i > 0 ? ", " : "", v->name, ferry_dtype_name(v->dtype));
        for (int k = 0; k < v->rank; k++)
            text_add(&t, "%s%lld", k > 0 ? "," : "", (long long)v->dim[k]);
        text_add(&t, "]");
    }
    if (!t.failed && t.at != NULL)
        diag_hint(d, "outputs: %s; for a language model: --loss cross_entropy:%s", t.at,
                  g->model->value.at[g->model->output[0]].name);
    text_free(&t);
    return d->status;
}

/* The float output with this name, or the only one when name is NULL. */
static Status find_output(Diag *d, const Graph *g, const char *name, int *out)
{
    const char *found = NULL;
    int n_float = 0;
    for (int i = 0; i < g->model->n_output; i++) {
        const Value *v = &g->model->value.at[g->model->output[i]];
        if (!dtype_is_float(v->dtype))
            continue;
        n_float++;
        if (name == NULL || strcmp(v->name, name) == 0)
            found = v->name;
    }
    if (found == NULL) {
        if (name != NULL)
            diag_fail(d, ST_USAGE, "--loss: the model has no floating output '%s'", name);
        else
            diag_fail(d, ST_USAGE, "--loss: the model has no floating output");
        return hint_outputs(d, g);
    }
    if (name == NULL && n_float > 1) {
        diag_fail(d, ST_USAGE, "--loss: the model has %d floating outputs; name one", n_float);
        return hint_outputs(d, g);
    }
    *out = tensor_by_name(g, found);
    if (*out < 0)
        return diag_fail(d, ST_FAILED, "internal error: output '%s' has no tensor", found);
    return ST_OK;
}

static Status add_input(Diag *d, Graph *g, const char *name, ferry_dtype t, int rank, const int64_t *dim, int *out)
{
    for (int i = 0; i < g->model->value.count; i++) /* the name is fixed: data and trainers refer to it */
        if (g->model->value.at[i].name != NULL && strcmp(g->model->value.at[i].name, name) == 0)
            return diag_fail(d, ST_USAGE, "--loss: the model already has a value called '%s'", name);
    TRY(graph_add_tensor(d, g, name, TENSOR_INPUT, t, rank, dim, out));
    g->input[g->n_input++] = *out;
    return ST_OK;
}

static Status emit(Diag *d, Graph *g, const ferry_kernel *call, const int *arg)
{
    return graph_add_node(d, g, "loss", ferry_op_get(call->op)->name, PHASE_FP, -1, call, arg);
}

static Status temp(Diag *d, Graph *g, const char *base, ferry_dtype t, int rank, const int64_t *dim, int *out)
{
    return graph_add_tensor(d, g, graph_made_up_name(g, base), TENSOR_VALUE, t, rank, dim, out);
}

/* axis_text: NULL for the last axis. */
static Status add_cross_entropy(Diag *d, Graph *g, int output, const char *axis_text)
{
    const Tensor t = g->tensor.at[output];
    long axis = -1;
    char *end = NULL;
    if (axis_text != NULL) {
        axis = strtol(axis_text, &end, 10);
        if (end == axis_text || *end != '\0')
            return diag_fail(d, ST_USAGE, "--loss: axis '%s' is not a number", axis_text);
    }
    if (axis < -t.rank || axis >= t.rank)
        return diag_fail(d, ST_USAGE, "--loss: axis %ld is outside of output '%s' of rank %d", axis, t.name, t.rank);
    int class_axis = (int)(axis < 0 ? axis + t.rank : axis), rank = 0, labels, loss, lse, count;
    int64_t dim[MAX_RANK];
    for (int i = 0; i < t.rank; i++)
        if (i != class_axis)
            dim[rank++] = t.dim[i];
    TRY(add_input(d, g, "labels", FERRY_I64, rank, dim, &labels));
    ferry_kernel call = call_new(FERRY_OP_XENT, g->precision);
    call.dtype2 = FERRY_I64;
    call.m = dims_count(class_axis, t.dim);
    call.n = t.dim[class_axis];
    call.k = dims_count(t.rank - class_axis - 1, t.dim + class_axis + 1);
    call.ignore_index = -100;
    const ferry_dtype wide = graph_wide_dtype(g);
    TRY(temp(d, g, "loss", wide, 0, NULL, &loss));
    TRY(temp(d, g, "lse", wide, rank, dim, &lse));
    TRY(temp(d, g, "count", wide, 0, NULL, &count));
    g->loss = loss;
    return emit(d, g, &call, (int[]){loss, lse, count, output, labels});
}

/* mean((output - target)^2) */
static Status add_mse(Diag *d, Graph *g, int output)
{
    const Tensor t = g->tensor.at[output];
    int target, difference, square, loss;
    const int64_t one = 1;
    TRY(add_input(d, g, "target", g->precision, t.rank, t.dim, &target));
    TRY(temp(d, g, "difference", g->precision, t.rank, t.dim, &difference));
    ferry_kernel sub = call_binary(FERRY_OP_BINARY, g->precision, FERRY_SUB, 1, &t.count, &one, &one);
    TRY(emit(d, g, &sub, (int[]){difference, output, target}));
    TRY(temp(d, g, "square", g->precision, t.rank, t.dim, &square));
    ferry_kernel sq = call_unary(FERRY_OP_UNARY, g->precision, FERRY_SQUARE, t.count);
    TRY(emit(d, g, &sq, (int[]){square, difference}));
    TRY(temp(d, g, "loss", g->precision, 0, NULL, &loss));
    g->loss = loss;
    ferry_kernel mean = call_reduce(g->precision, FERRY_MEAN, 1, &t.count, 1);
    return emit(d, g, &mean, (int[]){loss, square});
}

static Status take_output(Diag *d, Graph *g, int output, const char *how)
{
    const Tensor *t = &g->tensor.at[output];
    if (t->count != 1) {
        diag_fail(d, ST_USAGE, "%s: output '%s' has %lld elements; a loss has one", how, t->name, (long long)t->count);
        return hint_outputs(d, g);
    }
    if (g->tensor.at[t->root].kind != TENSOR_VALUE)
        return diag_fail(d, ST_USAGE, "%s: output '%s' is not computed by the model", how, t->name);
    g->loss = output;
    return ST_OK;
}

static Status own_loss(Diag *d, Graph *g)
{
    int n_float = 0, output;
    int64_t count = 0;
    for (int i = 0; i < g->model->n_output; i++) {
        const Value *v = &g->model->value.at[g->model->output[i]];
        if (dtype_is_float(v->dtype)) {
            n_float++;
            count = value_count(v);
        }
    }
    if (n_float != 1 || count != 1) {
        diag_fail(d, ST_USAGE, "%s: the model does not end in a loss; give one with --loss", g->model->path);
        return hint_outputs(d, g);
    }
    TRY(find_output(d, g, NULL, &output));
    return take_output(d, g, output, "the loss");
}

/* ---- a loss of few bits ------------------------------------------------------------------------------------------ */

static Status cast_wide(Diag *d, Graph *g, int x, int *out)
{
    const Tensor t = g->tensor.at[x];
    ferry_kernel call = call_new(FERRY_OP_CAST, t.dtype);
    call.dtype2 = graph_wide_dtype(g);
    call.n = t.count;
    TRY(temp(d, g, t.name, call.dtype2, t.rank, t.dim, out));
    return emit(d, g, &call, (int[]){*out, x});
}

/* *out = x in the wide type. What is computed of scalars, down to the sums that they come from, is computed once more in
 * that type; the kernels that nothing reads any more are pruned. `depth` bounds the recursion: a cast is right as well. */
static Status widen(Diag *d, Graph *g, int x, int depth, int *out)
{
    const Tensor t = g->tensor.at[x], root = g->tensor.at[t.root];
    *out = x;
    if (t.dtype == graph_wide_dtype(g))
        return ST_OK;
    if (root.producer < 0 || t.count != 1 || depth == 0)
        return cast_wide(d, g, x, out);
    Node n = g->node.at[root.producer];
    if (n.call.op == FERRY_OP_CAST && n.call.dtype == graph_wide_dtype(g)) {
        *out = n.arg[1];
        return ST_OK;
    }
    bool scalar = n.call.op == FERRY_OP_UNARY || n.call.op == FERRY_OP_BINARY;
    if ((!scalar && n.call.op != FERRY_OP_REDUCE) || n.call.accumulate)
        return cast_wide(d, g, x, out);
    for (int k = 1; k < node_n_arg(&n); k++)
        TRY(scalar ? widen(d, g, n.arg[k], depth - 1, &n.arg[k]) : cast_wide(d, g, n.arg[k], &n.arg[k]));
    n.call.dtype = graph_wide_dtype(g);
    TRY(temp(d, g, t.name, n.call.dtype, t.rank, t.dim, &n.arg[0]));
    *out = n.arg[0];
    return emit(d, g, &n.call, n.arg);
}

static Status find_loss(Diag *d, Graph *g, const ModelOptions *options)
{
    if (options->loss == NULL)
        return own_loss(d, g);
    /* KIND[:OUTPUT][,axis=K]: output names may contain ':' and ',', so the kind ends at the first and the axis starts
     * at the last */
    char *text = arena_strdup(g->arena, options->loss), *name = NULL, *axis = NULL;
    if (text == NULL)
        return diag_oom(d);
    for (char *at = strstr(text, ",axis="); at != NULL; at = strstr(at + 1, ",axis="))
        axis = at;
    if (axis != NULL) {
        *axis = '\0';
        axis += strlen(",axis=");
    }
    name = strchr(text, ':');
    if (name != NULL)
        *name++ = '\0';
    bool xent = strcmp(text, "cross_entropy") == 0, mse = strcmp(text, "mse") == 0, own = strcmp(text, "output") == 0;
    if ((!xent && !mse && !own) || (own && name == NULL) || (axis != NULL && !xent) ||
        (name != NULL && *name == '\0')) {
        diag_fail(d, ST_USAGE, "--loss '%s' is not a loss", options->loss);
        return diag_hint(d, "cross_entropy[:OUTPUT[,axis=K]], mse[:OUTPUT] or output:NAME");
    }
    int output;
    TRY(find_output(d, g, name, &output));
    if (own)
        return take_output(d, g, output, "--loss");
    return xent ? add_cross_entropy(d, g, output, axis) : add_mse(d, g, output);
}

Status graph_loss(Diag *d, Graph *g, const ModelOptions *options)
{
    enum { MOST_SCALARS = 64 };
    TRY(find_loss(d, g, options));
    return widen(d, g, g->loss, MOST_SCALARS, &g->loss);
}
