/* lower.c - from the inferred model to forward kernels: the driver of the operators' lower functions (lower_*.c) and
 * what they share. */
#include <string.h>

#include "graph/lower.h"
#include "graph/ops.h"

ferry_dtype lower_dtype(const Graph *g, ferry_dtype t)
{
    return dtype_is_float(t) ? g->precision : t;
}

/* ---- what the model uses ----------------------------------------------------------------------------------------- */

static Status count_uses(Diag *d, Lowering *l)
{
    const Model *m = l->model;
    l->n_use = ARENA_NEW(l->graph->arena, int, m->value.count);
    l->user = ARENA_NEW(l->graph->arena, int, m->value.count);
    l->tensor_of = ARENA_NEW(l->graph->arena, int, m->value.count);
    if (l->n_use == NULL || l->user == NULL || l->tensor_of == NULL)
        return diag_oom(d);
    for (int v = 0; v < m->value.count; v++)
        l->user[v] = l->tensor_of[v] = -1;
    for (int i = 0; i < m->node.count; i++) {
        const ModelNode *n = &m->node.at[i];
        for (int k = 0; k < n->n_in && !n->dead; k++) {
            if (n->in[k] < 0)
                continue;
            l->n_use[n->in[k]]++;
            l->user[n->in[k]] = i;
        }
    }
    for (int i = 0; i < m->n_output; i++)
        l->n_use[m->output[i]]++;
    return ST_OK;
}

bool lower_is_used(const Lowering *l, const ModelNode *n, int i)
{
    return i < n->n_out && n->out[i] >= 0 && l->n_use[n->out[i]] > 0;
}

/* A floating input that says how much, not what: the sizes of a Resize, the share of a Dropout. */
static bool is_setting(const char *op, int k)
{
    return k > 0 && (strcmp(op, "Resize") == 0 || strcmp(op, "Upsample") == 0 || strcmp(op, "Dropout") == 0);
}

/* Marks values from which a path of floating values leads to an output without passing Sin or Cos. What only feeds a
 * rotary embedding's angles is a table, not something to train. */
static void mark_trainable_paths(const Model *m, bool *leads)
{
    for (int i = 0; i < m->n_output; i++)
        leads[m->output[i]] = true;
    for (int i = m->node.count - 1; i >= 0; i--) {
        const ModelNode *n = &m->node.at[i];
        if (n->dead || strcmp(n->op, "Sin") == 0 || strcmp(n->op, "Cos") == 0)
            continue;
        bool any = false;
        for (int k = 0; k < n->n_out; k++)
            any |= n->out[k] >= 0 && leads[n->out[k]] && dtype_is_float(m->value.at[n->out[k]].dtype);
        for (int k = 0; k < n->n_in && any; k++)
            if (n->in[k] >= 0 && dtype_is_float(m->value.at[n->in[k]].dtype) && !is_setting(n->op, k))
                leads[n->in[k]] = true;
    }
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* How often a value is the running statistics of a BatchNormalization, and in how many of these they are brought up to
 * date. What is nothing else is kept with the parameters, and never trained. */
typedef struct Statistic {
    int times, trained;
} Statistic;

static void count_statistics(const Model *m, Statistic *of)
{
    for (int i = 0; i < m->node.count; i++) {
        const ModelNode *n = &m->node.at[i];
        if (n->dead || strcmp(n->op, "BatchNormalization") != 0)
            continue;
        for (int k = 3; k < 5 && k < n->n_in; k++)
            if (n->in[k] >= 0) {
                of[n->in[k]].times++;
                of[n->in[k]].trained += batchnorm_trains(m, n);
            }
    }
}

/* The one node that brings running statistics up to date must be all that uses them. */
static Status check_state(Diag *d, const Lowering *l, int v)
{
    if (l->n_use[v] == 1)
        return ST_OK;
    diag_fail(d, ST_MODEL,
              "%s: '%s' are the running statistics of a BatchNormalization in training mode, and are used %d times; each "
              "needs its own",
              l->model->path, l->model->value.at[v].name, l->n_use[v]);
    return diag_hint(d, "exporters merge initializers of equal values: export with "
                        "training=torch.onnx.TrainingMode.TRAINING, or train the model for a step before exporting it");
}

static bool matches_any(const char *name, int n, const char **glob, bool *hit)
{
    bool any = false;
    for (int i = 0; i < n; i++)
        if (glob_match(glob[i], name))
            any = hit[i] = true;
    return any;
}

static Status check_globs(Diag *d, const char *option, int n, const char **glob, const bool *hit)
{
    for (int i = 0; i < n; i++)
        if (!hit[i]) {
            diag_fail(d, ST_USAGE, "%s '%s' matches no parameter", option, glob[i]);
            return diag_hint(d, "'ferryc inspect' lists the parameters");
        }
    return ST_OK;
}

static Status add_param(Diag *d, Lowering *l, int v, bool trainable, bool state)
{
    Graph *g = l->graph;
    const Value *value = &l->model->value.at[v];
    int t;
    TRY(graph_add_tensor(d, g, value->name, state ? TENSOR_STATE : TENSOR_PARAM, g->precision, value->rank, value->dim,
                         &t));
    g->tensor.at[t].param = g->n_param;
    l->tensor_of[v] = t;
    g->param[g->n_param++] = (Param){.name = value->name,
                                     .tensor = t,
                                     .grad = -1,
                                     .trainable = trainable,
                                     .state = state,
                                     .unit = -1,
                                     .count = g->tensor.at[t].count,
                                     .bytes = g->tensor.at[t].bytes,
                                     .file_dtype = value->dtype,
                                     .data = value->data};
    return ST_OK;
}

static Status add_params(Diag *d, Lowering *l)
{
    Graph *g = l->graph;
    const Model *m = l->model;
    const ModelOptions *o = l->options;
    bool *leads = ARENA_NEW(g->arena, bool, m->value.count);
    Statistic *statistic = ARENA_NEW(g->arena, Statistic, m->value.count);
    bool *train_hit = ARENA_NEW(g->arena, bool, o->n_train), *freeze_hit = ARENA_NEW(g->arena, bool, o->n_freeze);
    g->param = ARENA_NEW(g->arena, Param, m->value.count);
    if (leads == NULL || statistic == NULL || train_hit == NULL || freeze_hit == NULL || g->param == NULL)
        return diag_oom(d);
    mark_trainable_paths(m, leads);
    count_statistics(m, statistic);
    for (int v = 0; v < m->value.count; v++) {
        const Value *value = &m->value.at[v];
        if (!value_is_trainable(value) || !leads[v] ||
            l->n_use[v] == 0 || (value_count(value) == 0 && !g->forward)) /* nothing to train: a constant */
            continue;
        bool state = statistic[v].trained > 0 && !g->forward;
        if (state)
            TRY(check_state(d, l, v));
        if (statistic[v].times == l->n_use[v]) {
            TRY(add_param(d, l, v, false, state));
            continue;
        }
        bool train = o->n_train == 0 || matches_any(value->name, o->n_train, o->train, train_hit);
        bool freeze = matches_any(value->name, o->n_freeze, o->freeze, freeze_hit);
        TRY(add_param(d, l, v, train && !freeze, false));
    }
    TRY(check_globs(d, "--train", o->n_train, o->train, train_hit));
    return check_globs(d, "--freeze", o->n_freeze, o->freeze, freeze_hit);
}

static void set_init(Graph *g, int tensor, InitKind init)
{
    if (tensor >= 0 && graph_is_param(g, tensor))
        g->param[g->tensor.at[tensor].param].init = init;
}

/* How --random-init draws a parameter follows from what reads it: scales are 1, biases 0, the rest is drawn. */
static void find_init_kinds(Graph *g)
{
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        if (n->call.op == FERRY_OP_LINEAR || n->call.op == FERRY_OP_CONV || n->call.op == FERRY_OP_CONV_DX)
            set_init(g, n->arg[3], INIT_ZERO);
        if (n->call.op == FERRY_OP_BATCHNORM) {
            set_init(g, n->arg[2], INIT_ONE);
            set_init(g, n->arg[3], INIT_ZERO);
            set_init(g, n->arg[4], INIT_ZERO);
            set_init(g, n->arg[5], INIT_ONE);
        }
        if (n->call.op == FERRY_OP_LAYERNORM) {
            set_init(g, n->arg[4], INIT_ONE);
            set_init(g, n->arg[5], INIT_ZERO);
        }
        bool scales = n->call.fn == FERRY_MUL, shifts = n->call.fn == FERRY_ADD || n->call.fn == FERRY_SUB;
        for (int a = 1; a <= 2 && n->call.op == FERRY_OP_BINARY && (scales || shifts); a++)
            if (graph_is_param(g, n->arg[a]) && g->tensor.at[graph_root(g, n->arg[a])].rank == 1)
                set_init(g, n->arg[a], scales ? INIT_ONE : INIT_ZERO);
    }
}

/* ---- tensors of values ------------------------------------------------------------------------------------------- */

static Status add_const(Diag *d, Lowering *l, int v)
{
    Graph *g = l->graph;
    const Value *value = &l->model->value.at[v];
    static const char nothing[16];
    const void *data = value_count(value) == 0 ? nothing : value->data;
    if (data == NULL) {
        diag_fail(d, ST_MODEL, "%s: the values of '%s' are needed but its external data file is missing",
                  l->model->path, value->name);
        return diag_hint(d, "put the file beside the model");
    }
    int t;
    TRY(graph_add_tensor(d, g, value->name, TENSOR_CONST, lower_dtype(g, value->dtype), value->rank, value->dim, &t));
    if (g->tensor.at[t].dtype != value->dtype && value_count(value) > 0) {
        void *converted = arena_alloc(g->arena, (size_t)g->tensor.at[t].bytes, 1);
        if (converted == NULL)
            return diag_oom(d);
        if (graph_convert(converted, g->precision, value->data, value->dtype, g->tensor.at[t].count) != FERRY_OK)
            return diag_fail(d, ST_FAILED, "%s: constant '%s': %s", l->model->path, value->name, ferry_error());
        data = converted;
    }
    g->tensor.at[t].data = data;
    l->tensor_of[v] = t;
    return ST_OK;
}

static Status add_inputs(Diag *d, Lowering *l)
{
    Graph *g = l->graph;
    const Model *m = l->model;
    g->input = ARENA_NEW(g->arena, int, m->n_input + 1); /* one more for what --loss adds */
    if (g->input == NULL)
        return diag_oom(d);
    for (int i = 0; i < m->n_input; i++) {
        const Value *value = &m->value.at[m->input[i]];
        int t;
        TRY(graph_add_tensor(d, g, value->name, TENSOR_INPUT, lower_dtype(g, value->dtype), value->rank, value->dim,
                             &t));
        l->tensor_of[m->input[i]] = t;
        g->input[g->n_input++] = t;
    }
    return ST_OK;
}

Status lower_input(Diag *d, Lowering *l, const ModelNode *n, int i, int *out)
{
    *out = -1;
    if (i >= n->n_in || n->in[i] < 0)
        return ST_OK;
    int v = n->in[i];
    const Value *value = &l->model->value.at[v];
    if (l->tensor_of[v] < 0) {
        if (value->kind == VALUE_COMPUTED && value->data == NULL)
            return node_fail(d, l->model, n, "its input '%s' is computed by no node before it", value->name);
        TRY(add_const(d, l, v));
    }
    *out = l->tensor_of[v];
    return ST_OK;
}

Status lower_output(Diag *d, Lowering *l, const ModelNode *n, int i, int *out)
{
    const Value *value = &l->model->value.at[n->out[i]];
    TRY(graph_add_tensor(d, l->graph, value->name, TENSOR_VALUE, lower_dtype(l->graph, value->dtype), value->rank,
                         value->dim, out));
    l->tensor_of[n->out[i]] = *out;
    return ST_OK;
}

Status lower_view(Diag *d, Lowering *l, const ModelNode *n, int i, int tensor)
{
    const Value *value = &l->model->value.at[n->out[i]];
    int t;
    TRY(graph_add_view(d, l->graph, value->name, tensor, value->rank, value->dim, &t));
    l->tensor_of[n->out[i]] = t;
    return ST_OK;
}

Status lower_temp(Diag *d, Lowering *l, const ModelNode *n, ferry_dtype t, int rank, const int64_t *dim, int *out)
{
    return graph_add_tensor(d, l->graph, graph_made_up_name(l->graph, n->name), TENSOR_VALUE, t, rank, dim, out);
}

Status lower_emit(Diag *d, Lowering *l, const ModelNode *n, const ferry_kernel *call, const int *arg)
{
    return graph_add_node(d, l->graph, n->name, n->op, PHASE_FP, -1, call, arg);
}

/* ---- attributes and known integers ------------------------------------------------------------------------------- */

Status lower_ints(Diag *d, Lowering *l, const ModelNode *n, int i, const int64_t **out, int *count)
{
    *out = NULL;
    *count = 0;
    if (i >= n->n_in || n->in[i] < 0)
        return ST_OK;
    const Value *v = &l->model->value.at[n->in[i]];
    if (v->data == NULL)
        return node_fail(d, l->model, n, "'%s' depends on the contents of the model's inputs; it must be known",
                         v->name);
    if (v->dtype != FERRY_I64 && v->dtype != FERRY_I32)
        return node_fail(d, l->model, n, "'%s' is not an integer tensor", v->name);
    int64_t c = value_count(v);
    if (c > INT32_MAX)
        return node_fail(d, l->model, n, "'%s' has too many elements", v->name);
    *count = (int)c;
    if (v->dtype == FERRY_I64) {
        *out = v->data;
        return ST_OK;
    }
    int64_t *wide = ARENA_NEW(l->graph->arena, int64_t, c);
    if (wide == NULL)
        return diag_oom(d);
    for (int64_t k = 0; k < c; k++)
        wide[k] = ((const int32_t *)v->data)[k];
    *out = wide;
    return ST_OK;
}

Status lower_ints_attr(Diag *d, Lowering *l, const ModelNode *n, const char *attr, int i, const int64_t **out,
                       int *count)
{
    const Attr *a = node_attr(n, attr);
    if (a == NULL)
        return lower_ints(d, l, n, i, out, count);
    *out = a->ints;
    *count = a->count;
    return ST_OK;
}

Status lower_axis(Diag *d, Lowering *l, const ModelNode *n, int rank, int64_t otherwise, int *out)
{
    int64_t axis = node_attr_int(n, "axis", otherwise);
    if (axis < -rank || axis >= rank)
        return node_fail(d, l->model, n, "axis %lld is outside of rank %d", (long long)axis, rank);
    *out = (int)(axis < 0 ? axis + rank : axis);
    return ST_OK;
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

/* '~' as often as no name of the model contains it in a row, so that made-up names never meet the model's. */
static const char *find_mark(Arena *a, const Model *m)
{
    size_t longest = 0;
    for (int v = 0; v < m->value.count; v++) {
        size_t run = 0;
        for (const char *c = m->value.at[v].name; c != NULL && *c != '\0'; c++) {
            run = *c == '~' ? run + 1 : 0;
            longest = run > longest ? run : longest;
        }
    }
    char *mark = arena_alloc(a, longest + 2, 1);
    if (mark != NULL)
        memset(mark, '~', longest + 1);
    return mark;
}

/* Already lowered as a part of an earlier node, such as the Add of a bias. */
static bool is_done(const Lowering *l, const ModelNode *n)
{
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i] >= 0 && l->tensor_of[n->out[i]] < 0)
            return false;
    return n->n_out > 0;
}

static Status lower_nodes(Diag *d, Lowering *l)
{
    for (int i = 0; i < l->model->node.count; i++) {
        ModelNode *n = &l->model->node.at[i];
        if (n->dead || is_done(l, n))
            continue;
        if (n->row->lower == NULL) {
            node_fail(d, l->model, n,
                      "%s is supported on constants only, and this one depends on the model's inputs or "
                      "parameters",
                      n->op);
            return diag_hint(d, "'ferryc inspect --ops' lists what is supported");
        }
        TRY(n->row->lower(d, l, n));
    }
    return ST_OK;
}

/* Outputs that are constants or inputs have no node that would have made their tensor. */
static Status add_outputs(Diag *d, Lowering *l)
{
    Graph *g = l->graph;
    if (g->forward && (g->output = ARENA_NEW(g->arena, int, l->model->n_output)) == NULL)
        return diag_oom(d);
    for (int i = 0; i < l->model->n_output; i++) {
        int v = l->model->output[i];
        const Value *value = &l->model->value.at[v];
        if (l->tensor_of[v] < 0 && value->data == NULL)
            return diag_fail(d, ST_MODEL, "%s: output '%s' is computed by no node", l->model->path, value->name);
        if (l->tensor_of[v] < 0)
            TRY(add_const(d, l, v));
        if (g->forward)
            g->output[g->n_output++] = l->tensor_of[v];
    }
    return ST_OK;
}

Status graph_lower(Diag *d, Arena *a, const Model *m, const ModelOptions *options, Graph **out)
{
    *out = NULL;
    Graph *g = ARENA_NEW(a, Graph, 1);
    if (g == NULL)
        return diag_oom(d);
    g->arena = a;
    g->model = m;
    g->precision = options->precision;
    g->loss = -1;
    g->forward = options->forward;
    g->mark = find_mark(a, m);
    if (g->mark == NULL)
        return diag_oom(d);
    Lowering l = {.model = m, .graph = g, .options = options};
    Status s = count_uses(d, &l);
    if (s == ST_OK)
        s = add_inputs(d, &l);
    if (s == ST_OK)
        s = add_params(d, &l);
    if (s == ST_OK)
        s = lower_nodes(d, &l);
    if (s == ST_OK)
        s = add_outputs(d, &l);
    if (s != ST_OK) {
        graph_close(g);
        return s;
    }
    find_init_kinds(g);
    *out = g;
    return ST_OK;
}
