/* warn.c - what a file does not show to the one who trains it: what the exporter left out, stored twice or merged.
 *
 * needs: a training graph   fills: nothing, prints warnings and notes   keeps: everything   spoils: nothing
 *
 * One line for each finding, with what changes it. The commands that come after a profile do not repeat them. */
#include "graph/lower.h"
#include "graph/ops.h"

#include <string.h>

/* Exporters drop Dropout in evaluation mode, or leave it in place without effect. */
static void warn_dropout(Diag *d, const Model *m)
{
    int on = 0, off = 0, attention = 0;
    for (int i = 0; i < m->node.count; i++) {
        const ModelNode *n = &m->node.at[i];
        double ratio = 0;
        attention += strcmp(n->op, "Softmax") == 0 || strcmp(n->op, "Attention") == 0;
        if (strcmp(n->op, "Dropout") != 0)
            continue;
        if (dropout_ratio(d, m, n, &ratio) != ST_OK)
            return;
        on += ratio > 0;
        off += ratio == 0;
    }
    const char *remedy = "export with training=torch.onnx.TrainingMode.TRAINING, or after model.train(), to have it";
    if (off > 0 && on == 0)
        diag_warn(d, "%s: its %d Dropout operators are switched off: it is trained without dropout; %s", m->path, off,
                  remedy);
    else if (on == 0 && attention > 0)
        diag_note(d, "%s has no Dropout, which exporters remove in evaluation mode; %s", m->path, remedy);
}

/* In evaluation mode, and by the dynamo exporter in any, batch normalization comes with statistics that are fixed. */
static void warn_batchnorm(Diag *d, const Model *m)
{
    int fixed = 0, trained = 0;
    for (int i = 0; i < m->node.count; i++) {
        const ModelNode *n = &m->node.at[i];
        if (n->dead || strcmp(n->op, "BatchNormalization") != 0)
            continue;
        trained += batchnorm_trains(m, n);
        fixed += !batchnorm_trains(m, n);
    }
    if (fixed > 0 && trained == 0)
        diag_warn(d,
                  "%s: its %d BatchNormalization operators have fixed statistics, as in evaluation mode; export with "
                  "dynamo=False, training=torch.onnx.TrainingMode.TRAINING to train with those of the batch",
                  m->path, fixed);
}

static int param_of(const Graph *g, int tensor)
{
    return tensor >= 0 && graph_is_param(g, tensor) ? g->tensor.at[graph_root(g, tensor)].param : -1;
}

/* A head that is tied to the embedding is often stored again. With values the copy is found; without them only the
 * shape speaks: the last product of the model scores as many classes as the embedding has rows. */
static void warn_untied(Diag *d, const Graph *g)
{
    const Node *head = NULL;
    for (int i = 0; i < g->n_forward; i++)
        if (g->node.at[i].call.op == FERRY_OP_LINEAR && param_of(g, g->node.at[i].arg[2]) >= 0)
            head = &g->node.at[i];
    int h = head != NULL ? param_of(g, head->arg[2]) : -1;
    for (int i = 0; i < g->n_forward && h >= 0 && g->param[h].data == NULL; i++) {
        const Node *n = &g->node.at[i];
        int e = n->call.op == FERRY_OP_EMBEDDING ? param_of(g, n->arg[1]) : -1;
        if (e < 0 || e == h || g->param[e].data != NULL || n->call.k == n->call.n || n->call.k != head->call.n ||
            n->call.n != head->call.k)
            continue;
        bool transposed = !head->call.trans_b;
        diag_warn(
            d,
            "%s: '%s' has the shape of the embedding '%s'%s, and without values it cannot be told whether it is a "
            "copy; if the model ties them, add --tie '%s=%s%s'",
            g->model->path, g->param[h].name, g->param[e].name, transposed ? ", transposed" : "", g->param[e].name,
            g->param[h].name, transposed ? "^T" : "");
        return;
    }
}

/* A bias or scale that several operators read: equal values, as fresh biases have, become one initializer. */
static Status warn_merged(Diag *d, const Graph *g)
{
    int *readers = ARENA_NEW(g->arena, int, g->n_param), merged = 0, example = -1;
    if (readers == NULL)
        return diag_oom(d);
    for (int i = 0; i < g->n_forward; i++) {
        const Node *n = &g->node.at[i];
        int before = -1;
        for (int k = node_n_out(n); k < node_n_arg(n); k++) {
            int p = param_of(g, n->arg[k]);
            if (p >= 0 && p != before && g->tensor.at[g->param[p].tensor].rank == 1 && g->param[p].trainable)
                readers[p]++;
            before = p >= 0 ? p : before;
        }
    }
    for (int p = 0; p < g->n_param; p++)
        if (readers[p] > 1) {
            merged++;
            example = example < 0 || readers[p] > readers[example] ? p : example;
        }
    if (merged > 0)
        diag_warn(d,
                  "%s: %d vectors serve several operators, such as '%s' (%d of them), and are trained as one each; the "
                  "exporter merges initializers of equal values: export with "
                  "training=torch.onnx.TrainingMode.TRAINING if the model has them apart",
                  g->model->path, merged, g->param[example].name, readers[example]);
    return ST_OK;
}

/* Floating initializers that reach an output only through Sin and Cos. */
static Status note_tables(Diag *d, const Graph *g)
{
    const Model *m = g->model;
    bool *reaches = ARENA_NEW(g->arena, bool, m->value.count), *open = ARENA_NEW(g->arena, bool, m->value.count);
    if (reaches == NULL || open == NULL)
        return diag_oom(d);
    for (int i = 0; i < m->n_output; i++)
        reaches[m->output[i]] = open[m->output[i]] = true;
    for (int i = m->node.count - 1; i >= 0; i--) {
        const ModelNode *n = &m->node.at[i];
        bool angle = strcmp(n->op, "Sin") == 0 || strcmp(n->op, "Cos") == 0, any = false, free = false;
        for (int k = 0; k < n->n_out; k++) {
            any = any || (n->out[k] >= 0 && reaches[n->out[k]]);
            free = free || (n->out[k] >= 0 && open[n->out[k]]);
        }
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] >= 0) {
                reaches[n->in[k]] = reaches[n->in[k]] || any;
                open[n->in[k]] = open[n->in[k]] || (free && !angle);
            }
    }
    int count = 0;
    const char *example = NULL;
    for (int v = 0; v < m->value.count; v++) {
        const Value *x = &m->value.at[v];
        if (!value_is_trainable(x) || !reaches[v] || open[v])
            continue;
        example = count++ == 0 ? x->name : example;
    }
    if (count > 0)
        diag_note(d, "%s: %d initializers, such as '%s', only give angles to Sin and Cos: tables that are not trained",
                  m->path, count, example);
    return ST_OK;
}

static const char *param_name(const Graph *g, int tensor)
{
    int p = param_of(g, tensor);
    return p >= 0 ? g->param[p].name : "";
}

/* In evaluation mode exporters multiply a batch normalization into the convolution before it: its weights and bias are then
 * results of theirs. */
static void warn_folded_norm(Diag *d, const Graph *g)
{
    static const char result[] = "onnx::Conv_", mark[] = "_bias";
    int folded = 0;
    for (int i = 0; i < g->n_forward; i++) {
        const Node *n = &g->node.at[i];
        if (n->call.op != FERRY_OP_CONV)
            continue;
        const char *weight = param_name(g, n->arg[2]), *bias = param_name(g, n->arg[3]);
        size_t length = strlen(weight);
        folded += (strncmp(weight, result, sizeof result - 1) == 0 && strncmp(bias, result, sizeof result - 1) == 0) ||
                  (length > 0 && strncmp(bias, weight, length) == 0 && strcmp(bias + length, mark) == 0);
    }
    if (folded > 0)
        diag_warn(d,
                  "%s: %d convolutions have weights and a bias that the exporter computed, as it does when it folds "
                  "BatchNormalization in evaluation mode: these are trained, not the original parameters; export with "
                  "dynamo=False, training=torch.onnx.TrainingMode.TRAINING and do_constant_folding=False to have both",
                  g->model->path, folded);
}

/* What the exporter computed ahead of time, and the parameters that went into it. */
static void warn_computed(Diag *d, const Model *m)
{
    const Origins *o = &m->origins;
    const char *remedy = "export with optimize=False, or with dynamic shapes, to have the parameters themselves";
    if (o->missing > o->parameters)
        diag_warn(d,
                  "%s: the exporter computed results of %d parameters, such as '%s', ahead of time; %d of these results "
                  "are trained in their place, and the rest is constant%s%s%s: gradients and their norm differ from the "
                  "original model's; %s",
                  m->path, o->missing, o->missing_name, o->parameters, o->constant_name ? ", such as '" : "",
                  o->constant_name ? o->constant_name : "", o->constant_name ? "'" : "", remedy);
    else if (o->constants > 0)
        diag_note(d,
                  "%s: what the exporter computed ahead of time, such as '%s' (%d of them), is constant; --train with the "
                  "whole name of one trains it",
                  m->path, o->constant_name, o->constants);
}

Status graph_warn(Diag *d, const Graph *g)
{
    warn_computed(d, g->model);
    if (!g->model->origins.known)
        warn_folded_norm(d, g);
    warn_dropout(d, g->model);
    warn_batchnorm(d, g->model);
    warn_untied(d, g);
    TRY(warn_merged(d, g));
    return note_tables(d, g);
}
