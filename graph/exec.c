/* exec.c - a forward graph executed on the host backend: every kernel through ferry_launch, memory by liveness.
 *
 * needs: a forward graph with liveness, a model with fed inputs     fills: the outputs     keeps: the graph
 *
 * A stream runs behind the calls: before memory is given back the stream is waited for. The bytes of an output are held
 * to the end, since a later node may read them and another output may be a view of them. */
#include "graph/exec.h"

#include <string.h>

#include "graph/lower.h"

typedef struct Exec {
    Diag *d;
    const Graph *g;
    void **root;  /* by root tensor: heap memory while it lives, NULL else */
    void **at;    /* by tensor: root's memory, or the constant's */
    bool *output; /* by root tensor */
    ferry_device *device;
    ferry_stream *stream;
} Exec;

static Status device_failed(Exec *e, ferry_status s, const char *node)
{
    const char *path = e->g->model->path;
    Status status = s == FERRY_BAD_DATA ? ST_MODEL : ST_FAILED;
    return node != NULL ? diag_fail(e->d, status, "%s: node '%s': %s", path, node, ferry_error())
                        : diag_fail(e->d, status, "%s: %s", path, ferry_error());
}

static Status take(Exec *e, int root)
{
    int64_t bytes = e->g->tensor.at[root].bytes;
    e->root[root] = base_alloc((size_t)(bytes > 0 ? bytes : 1));
    e->at[root] = e->root[root];
    return e->root[root] != NULL ? ST_OK : diag_oom(e->d);
}

/* Contents of an input or parameter in the graph's type. */
static Status fill(Exec *e, int root, const void *data, ferry_dtype from)
{
    const Tensor *t = &e->g->tensor.at[root];
    if (data == NULL && t->count > 0) {
        diag_fail(e->d, ST_MODEL, "%s: the values of '%s' are missing: its external data file is not there",
                  e->g->model->path, t->name);
        return diag_hint(e->d, "put the file beside the model");
    }
    TRY(take(e, root));
    if (t->count > 0 && ferry_convert(e->root[root], t->dtype, data, from, t->count) != FERRY_OK)
        return diag_fail(e->d, ST_FAILED, "%s: '%s': %s", e->g->model->path, t->name, ferry_error());
    return ST_OK;
}

/* What exists before the first node: constants where they are, inputs and parameters that something uses. */
static Status fill_sources(Exec *e)
{
    const Graph *g = e->g;
    for (int i = 0; i < g->tensor.count; i++)
        if (g->tensor.at[i].root == i && g->tensor.at[i].kind == TENSOR_CONST)
            e->at[i] = (void *)g->tensor.at[i].data;
    for (int i = 0; i < g->n_output; i++)
        e->output[graph_root(g, g->output[i])] = true;
    for (int i = 0; i < g->n_input; i++) {
        const Tensor *t = &g->tensor.at[g->input[i]];
        if (t->last_use >= 0 || e->output[g->input[i]])
            TRY(fill(e, g->input[i], g->model->fed[i], g->model->value.at[g->model->input[i]].dtype));
    }
    for (int p = 0; p < g->n_param; p++)
        TRY(fill(e, g->param[p].tensor, g->param[p].data, g->param[p].file_dtype));
    return ST_OK;
}

static Status run_node(Exec *e, int i)
{
    const Graph *g = e->g;
    const Node *n = &g->node.at[i];
    void *arg[FERRY_MAX_ARGS] = {NULL};
    bool ends = false;
    for (int k = 0; k < node_n_arg(n); k++) {
        if (n->arg[k] < 0)
            continue;
        int root = graph_root(g, n->arg[k]);
        if (k < node_n_out(n) && g->tensor.at[root].first_write == i && e->root[root] == NULL)
            TRY(take(e, root));
        arg[k] = e->at[root];
        ends |= g->tensor.at[root].last_use == i;
    }
    ferry_kernel call = n->call;
    memcpy(call.arg, arg, sizeof(arg));
    ferry_status s = ferry_launch(e->stream, &call);
    if (s == FERRY_OK && ends)
        s = ferry_stream_sync(e->stream);
    if (s != FERRY_OK)
        return device_failed(e, s, n->name);
    for (int k = 0; k < node_n_arg(n) && ends; k++) {
        int root = n->arg[k] >= 0 ? graph_root(g, n->arg[k]) : -1;
        if (root < 0 || g->tensor.at[root].last_use != i || e->output[root])
            continue;
        base_free(e->root[root]);
        e->root[root] = NULL;
    }
    return ST_OK;
}

static Status give_output(Exec *e, Arena *a, int i, ferry_tensor *out)
{
    const Graph *g = e->g;
    const Value *v = &g->model->value.at[g->model->output[i]];
    const Tensor *t = &g->tensor.at[g->output[i]];
    *out = (ferry_tensor){.name = v->name, .dtype = v->dtype, .rank = t->rank};
    memcpy(out->dim, t->dim, sizeof(out->dim));
    out->data = arena_alloc(a, (size_t)t->count, ferry_dtype_bytes(v->dtype));
    if (out->data == NULL)
        return diag_oom(e->d);
    if (t->count > 0 && ferry_convert(out->data, v->dtype, e->at[t->root], t->dtype, t->count) != FERRY_OK)
        return diag_fail(e->d, ST_FAILED, "%s: output '%s': %s", g->model->path, v->name, ferry_error());
    return ST_OK;
}

static Status run(Exec *e, Arena *a, ferry_tensor *out)
{
    const Graph *g = e->g;
    ferry_status s = ferry_device_open("host", &e->device);
    if (s == FERRY_OK)
        s = ferry_stream_open(e->device, FERRY_STREAM_COMPUTE, &e->stream);
    if (s != FERRY_OK)
        return device_failed(e, s, NULL);
    TRY(fill_sources(e));
    for (int i = 0; i < g->node.count; i++)
        TRY(run_node(e, i));
    s = ferry_stream_sync(e->stream);
    if (s != FERRY_OK)
        return device_failed(e, s, NULL);
    for (int i = 0; i < g->n_output; i++)
        TRY(give_output(e, a, i, &out[i]));
    return ST_OK;
}

Status graph_execute(Diag *d, Arena *a, const Graph *g, ferry_tensor *out)
{
    size_t n = (size_t)g->tensor.count + 1;
    Exec e = {.d = d, .g = g};
    e.root = base_alloc(n * sizeof(*e.root));
    e.at = base_alloc(n * sizeof(*e.at));
    e.output = base_alloc(n * sizeof(*e.output));
    Status status = e.root != NULL && e.at != NULL && e.output != NULL ? run(&e, a, out) : diag_oom(d);
    ferry_stream_close(e.stream);
    if (e.device != NULL)
        ferry_device_close(e.device);
    for (size_t i = 0; e.root != NULL && i < n; i++)
        base_free(e.root[i]);
    base_free(e.root);
    base_free(e.at);
    base_free(e.output);
    return status;
}
