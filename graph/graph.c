/* graph.c - the graph's containers and the list of passes. */
#include <math.h>
#include <string.h>

#include "graph/fuse.h"

/* ---- containers -------------------------------------------------------------------------------------------------- */

int graph_root(const Graph *g, int tensor)
{
    return g->tensor.at[tensor].root;
}

bool graph_is_param(const Graph *g, int tensor)
{
    return g->tensor.at[graph_root(g, tensor)].kind == TENSOR_PARAM;
}

const char *graph_made_up_name(Graph *g, const char *base)
{
    return arena_printf(g->arena, "%s%s%d", base, g->mark, g->tensor.count);
}

Status graph_add_tensor(Diag *d, Graph *g, const char *name, TensorKind kind, ferry_dtype t, int rank,
                        const int64_t *dim, int *out)
{
    *out = -1;
    if (name == NULL)
        return diag_oom(d);
    int64_t count = 1, bytes;
    for (int i = 0; i < rank; i++)
        if (dim[i] < 0 || mul_overflows_i64(count, dim[i], &count))
            return diag_fail(d, ST_MODEL, "%s: the size of '%s' overflows", g->model->path, name);
    if (mul_overflows_i64(count, (int64_t)ferry_dtype_bytes(t), &bytes))
        return diag_fail(d, ST_MODEL, "%s: the size of '%s' overflows", g->model->path, name);
    if (count == 0 && kind == TENSOR_INPUT && !g->forward)
        return diag_fail(d, ST_MODEL, "%s: '%s' has no elements; training needs every dimension to be at least 1",
                         g->model->path, name);
    Tensor *x = VEC_PUSH(&g->tensor);
    if (x == NULL)
        return diag_oom(d);
    *out = g->tensor.count - 1;
    *x = (Tensor){.name = name,
                  .kind = kind,
                  .dtype = t,
                  .rank = rank,
                  .count = count,
                  .bytes = bytes,
                  .root = *out,
                  .param = -1,
                  .producer = -1,
                  .grad_of = -1,
                  .first_write = -1,
                  .last_use = -1};
    for (int i = 0; i < rank; i++)
        x->dim[i] = dim[i];
    return ST_OK;
}

Status graph_add_view(Diag *d, Graph *g, const char *name, int of, int rank, const int64_t *dim, int *out)
{
    *out = -1;
    Tensor base = g->tensor.at[of];
    if (dims_count(rank, dim) != base.count)
        return diag_fail(d, ST_FAILED, "internal error: a view of '%s' has another size", base.name);
    if (name == NULL && rank == base.rank && memcmp(dim, base.dim, (size_t)rank * sizeof(*dim)) == 0) {
        *out = of;
        return ST_OK;
    }
    if (name == NULL)
        name = graph_made_up_name(g, base.name);
    TRY(graph_add_tensor(d, g, name, base.kind, base.dtype, rank, dim, out));
    Tensor *v = &g->tensor.at[*out];
    v->root = base.root;
    v->param = base.param;
    v->data = base.data;
    v->producer = g->tensor.at[base.root].producer;
    v->grad_of = base.grad_of;
    return ST_OK;
}

ferry_dtype graph_wide_dtype(const Graph *g)
{
    return g->precision == FERRY_BF16 ? FERRY_F32 : g->precision;
}

ferry_status graph_convert(void *dst, ferry_dtype to, const void *src, ferry_dtype from, int64_t n)
{
    static const uint16_t largest = 0x7f7f;
    ferry_status status = ferry_convert(dst, to, src, from, n);
    uint16_t *narrow = dst;
    for (int64_t i = 0; to == FERRY_BF16 && from != to && status == FERRY_OK && i < n; i++) {
        double wide;
        if ((narrow[i] & 0x7fff) == 0x7f80 &&
            ferry_convert(&wide, FERRY_F64, (const char *)src + (size_t)i * ferry_dtype_bytes(from), from, 1) == FERRY_OK &&
            isfinite(wide))
            narrow[i] = (uint16_t)((narrow[i] & 0x8000) | largest);
    }
    return status;
}

Status graph_add_number(Diag *d, Graph *g, ferry_dtype t, double value, int *out)
{
    *out = -1;
    void *data = arena_alloc(g->arena, 1, ferry_dtype_bytes(t));
    if (data == NULL)
        return diag_oom(d);
    if (graph_convert(data, t, &value, FERRY_F64, 1) != FERRY_OK)
        return diag_fail(d, ST_FAILED, "%s", ferry_error());
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "scalar"), TENSOR_CONST, t, 0, NULL, out));
    g->tensor.at[*out].data = data;
    return ST_OK;
}

Status graph_add_scalar(Diag *d, Graph *g, double value, int *out)
{
    return graph_add_number(d, g, g->precision, value, out);
}

Status graph_add_node(Diag *d, Graph *g, const char *name, const char *onnx_op, Phase phase, int origin,
                      const ferry_kernel *call, const int *arg)
{
    Node *n = VEC_PUSH(&g->node);
    if (n == NULL)
        return diag_oom(d);
    int self = g->node.count - 1;
    *n = (Node){
        .name = name, .onnx_op = onnx_op, .call = *call, .phase = phase, .origin = phase == PHASE_FP ? self : origin};
    n->segment = -1;
    int n_arg = node_n_arg(n);
    for (int i = 0; i < FERRY_MAX_ARGS; i++)
        n->arg[i] = i < n_arg ? arg[i] : -1;
    for (int i = 0; i < node_n_out(n); i++) {
        if (n->arg[i] < 0)
            continue;
        Tensor *t = &g->tensor.at[n->arg[i]];
        Tensor *root = &g->tensor.at[t->root];
        if (root->producer < 0)
            root->producer = self;
        t->producer = root->producer;
    }
    if (phase == PHASE_FP)
        g->n_forward = g->node.count;
    return ST_OK;
}

void graph_index_producers(Graph *g)
{
    for (int i = 0; i < g->tensor.count; i++)
        g->tensor.at[i].producer = -1;
    for (int i = 0; i < g->node.count; i++)
        for (int a = 0; a < node_n_out(&g->node.at[i]); a++) {
            int t = g->node.at[i].arg[a];
            if (t >= 0 && g->tensor.at[graph_root(g, t)].producer < 0)
                g->tensor.at[graph_root(g, t)].producer = i;
        }
    for (int i = 0; i < g->tensor.count; i++)
        g->tensor.at[i].producer = g->tensor.at[graph_root(g, i)].producer;
}

int node_n_out(const Node *n)
{
    return ferry_op_get(n->call.op)->n_out;
}

int node_n_arg(const Node *n)
{
    const ferry_op_info *info = ferry_op_get(n->call.op);
    return info->n_out + info->n_in;
}

ferry_kernel node_call(const Graph *g, const Node *n, void *const *pointer_of_tensor)
{
    (void)g;
    ferry_kernel call = n->call;
    for (int i = 0; i < FERRY_MAX_ARGS; i++)
        call.arg[i] = i < node_n_arg(n) && n->arg[i] >= 0 ? pointer_of_tensor[n->arg[i]] : NULL;
    return call;
}

const char *phase_name(Phase p)
{
    static const char *const name[PHASE_COUNT] = {"fp", "bp", "rp"};
    return name[p];
}

void graph_close(Graph *g)
{
    if (g == NULL)
        return;
    if (g->plain != NULL)
        g = (Graph *)g->plain;
    VEC_FREE(&g->tensor);
    VEC_FREE(&g->node);
}

/* ---- the list of passes ------------------------------------------------------------------------------------------ */

static const char *const dump_names[] = {"import", "bind", "infer", "lower", "tie", "fuse",
                                         "autodiff", "chains", "layers", "liveness"};

static Status dump_check(Diag *d, const ModelOptions *o)
{
    if (o->dump_after == NULL)
        return ST_OK;
    for (size_t i = 0; i < sizeof(dump_names) / sizeof(*dump_names); i++)
        if (strcmp(o->dump_after, dump_names[i]) == 0)
            return ST_OK;
    diag_fail(d, ST_USAGE, "--dump: there is no pass '%s'", o->dump_after);
    return diag_hint(d, "passes: import, bind, infer, lower, tie, fuse, autodiff, chains, layers, liveness; of plan also problem, fp, "
                        "bp, go, steps; of commands that read a plan also steps");
}

static Status dump_text(Diag *d, Text *t)
{
    if (!t->failed && t->at != NULL)
        fputs(t->at, stderr);
    bool failed = t->failed;
    text_free(t);
    return failed ? diag_oom(d) : ST_OK;
}

static Status dump_model(Diag *d, const ModelOptions *o, const Model *m, const char *pass)
{
    if (o->dump_after == NULL || strcmp(o->dump_after, pass) != 0)
        return ST_OK;
    Text t = {0};
    model_print(m, &t);
    return dump_text(d, &t);
}

/* After a pass: its result is checked in debug builds, and printed when asked for. */
static Status after(Diag *d, const ModelOptions *o, const Graph *g, const char *pass)
{
#ifndef NDEBUG
    TRY(graph_check(d, g));
#endif
    if (o->dump_after == NULL || strcmp(o->dump_after, pass) != 0)
        return ST_OK;
    Text t = {0};
    graph_print(g, &t);
    return dump_text(d, &t);
}

static Status fuse(Diag *d, const ModelOptions *options, Graph *g)
{
    TRY(graph_prune(d, g));
    if (options->composed)
        return ST_OK;
    TRY(graph_fuse_activations(d, g));
    TRY(graph_fuse_norms(d, g));
    TRY(graph_prune(d, g));
    TRY(graph_fuse_rotary(d, g));
    TRY(graph_prune(d, g));
    TRY(graph_fuse_attention(d, g));
    TRY(graph_prune(d, g));
    return after(d, options, g, "fuse");
}

static Status fuse_chains(Diag *d, const ModelOptions *options, Graph *g)
{
    if (options->composed)
        return ST_OK;
    TRY(graph_fuse_chains(d, g));
    return after(d, options, g, "chains");
}

static Status run_passes(Diag *d, const ModelOptions *options, Graph *g)
{
    TRY(after(d, options, g, "lower"));
    TRY(graph_tie(d, g, options));
    TRY(after(d, options, g, "tie"));
    TRY(graph_loss(d, g, options));
    TRY(fuse(d, options, g));
    TRY(graph_autodiff(d, g));
    TRY(after(d, options, g, "autodiff"));
    TRY(graph_check(d, g)); /* that gradients share bytes rightly is not seen any more in what comes next */
    TRY(fuse_chains(d, options, g));
    TRY(graph_layers(d, g));
    TRY(after(d, options, g, "layers"));
    TRY(graph_liveness(d, g));
    TRY(after(d, options, g, "liveness"));
    return graph_check(d, g);
}

Status graph_build(Diag *d, Arena *a, const Model *m, const ModelOptions *options, Graph **out)
{
    *out = NULL;
    Graph *g = NULL;
    TRY(dump_check(d, options));
    TRY(graph_lower(d, a, m, options, &g));
    Status s = run_passes(d, options, g);
    if (s != ST_OK) {
        graph_close(g);
        return s;
    }
    *out = g;
    return ST_OK;
}

static Status forward_passes(Diag *d, const ModelOptions *options, Graph *g)
{
    TRY(after(d, options, g, "lower"));
    TRY(fuse(d, options, g));
    TRY(fuse_chains(d, options, g));
    TRY(graph_liveness(d, g));
    TRY(after(d, options, g, "liveness"));
    return graph_check(d, g);
}

Status graph_forward(Diag *d, Arena *a, const Model *m, const ModelOptions *options, Graph **out)
{
    *out = NULL;
    Graph *g = NULL;
    ModelOptions o = *options;
    o.forward = true;
    TRY(dump_check(d, &o));
    TRY(graph_lower(d, a, m, &o, &g));
    Status s = forward_passes(d, &o, g);
    if (s != ST_OK) {
        graph_close(g);
        return s;
    }
    *out = g;
    return ST_OK;
}

static ferry_dtype forward_precision(const Model *m)
{
    for (int i = 0; i < m->value.count; i++) {
        const Value *v = &m->value.at[i];
        if (v->dtype == FERRY_F64 && (v->kind == VALUE_INPUT || v->kind == VALUE_INITIALIZER))
            return FERRY_F64;
    }
    return FERRY_F32;
}

Status forward_from_options(Diag *d, Arena *a, const ModelOptions *options, int n_feed, const ferry_tensor *feed,
                            Model **model, Graph **out)
{
    *model = NULL;
    *out = NULL;
    Model *m = NULL;
    ModelOptions o = *options;
    TRY(dump_check(d, &o));
    TRY(model_import(d, a, &o, &m));
    if (o.precision == FERRY_DTYPE_COUNT)
        o.precision = forward_precision(m);
    Status s = dump_model(d, &o, m, "import");
    if (s == ST_OK)
        s = model_feed(d, m, &o, n_feed, feed);
    if (s == ST_OK)
        s = dump_model(d, &o, m, "bind");
    if (s == ST_OK)
        s = model_know_inputs(d, m);
    if (s == ST_OK)
        s = model_infer(d, m);
    if (s == ST_OK)
        s = dump_model(d, &o, m, "infer");
    if (s == ST_OK)
        s = graph_forward(d, a, m, &o, out);
    if (s != ST_OK) {
        model_close(m);
        return s;
    }
    *model = m;
    return ST_OK;
}

Status graph_from_options(Diag *d, Arena *a, const ModelOptions *options, Model **model, Graph **out)
{
    *model = NULL;
    *out = NULL;
    Model *m = NULL;
    TRY(dump_check(d, options));
    TRY(model_import(d, a, options, &m));
    Status s = dump_model(d, options, m, "import");
    if (s == ST_OK)
        s = model_bind(d, m, options);
    if (s == ST_OK)
        s = dump_model(d, options, m, "bind");
    if (s == ST_OK)
        s = model_infer(d, m);
    if (s == ST_OK)
        s = dump_model(d, options, m, "infer");
    if (s == ST_OK)
        s = graph_build(d, a, m, options, out);
    if (s != ST_OK) {
        model_close(m);
        return s;
    }
    *model = m;
    return ST_OK;
}
