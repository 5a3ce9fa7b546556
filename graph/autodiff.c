/* autodiff.c - the reverse pass: forward kernels in reverse order, each through the rule of its op. grad.h has the
 * theory. */
#include <string.h>

#include "graph/grad.h"

const GradRow grad_rows[FERRY_OP_COUNT] = {
    [FERRY_OP_LINEAR] = {7, grad_linear},       [FERRY_OP_MATMUL] = {3, grad_matmul},
    [FERRY_OP_UNARY] = {1, grad_unary},         [FERRY_OP_BINARY] = {3, grad_binary},
    [FERRY_OP_WHERE] = {6, grad_where},         [FERRY_OP_REDUCE] = {1, grad_reduce},
    [FERRY_OP_COPY] = {1, grad_copy},           [FERRY_OP_SOFTMAX] = {1, grad_softmax},
    [FERRY_OP_LAYERNORM] = {7, grad_layernorm}, [FERRY_OP_EMBEDDING] = {1, grad_embedding},
    [FERRY_OP_ATTENTION] = {7, grad_attention}, [FERRY_OP_ROTARY] = {1, grad_rotary},
    [FERRY_OP_XENT] = {1, grad_xent},           [FERRY_OP_DROPOUT] = {1, grad_dropout},
    [FERRY_OP_SCATTER] = {3, grad_scatter_rows},
    [FERRY_OP_CONV] = {7, grad_conv},           [FERRY_OP_CONV_DX] = {7, grad_conv_transpose},
    [FERRY_OP_MAXPOOL] = {1, grad_maxpool},     [FERRY_OP_AVGPOOL] = {1, grad_avgpool},
    [FERRY_OP_BATCHNORM] = {7, grad_batchnorm}, [FERRY_OP_FILL] = {0, grad_fill},
    [FERRY_OP_CAST] = {1, grad_cast},
};

Status grad_fail(Autodiff *a, const Node *n, const char *what)
{
    return diag_fail(a->d, ST_MODEL, "%s: node '%s' (%s): %s", a->g->model->path, n->name, n->onnx_op, what);
}

/* ---- gradients of forward roots ---------------------------------------------------------------------------------- */

bool grad_wanted(const Autodiff *a, int x)
{
    return x >= 0 && a->reached[graph_root(a->g, x)];
}

int grad_in(const Autodiff *a, const Node *n, int i)
{
    return a->grad[graph_root(a->g, n->arg[i])];
}

/* Share counts of tensors that were added since the last call start at 0. */
static Status grow_share(Autodiff *a)
{
    while (a->share.count < a->g->tensor.count) {
        int *s = VEC_PUSH(&a->share);
        if (s == NULL)
            return diag_oom(a->d);
        *s = 0;
    }
    return ST_OK;
}

static int *share_of(Autodiff *a, int grad)
{
    return &a->share.at[graph_root(a->g, grad)];
}

/* Nothing else reads these bytes: they may be added to. */
static bool is_owned(Autodiff *a, int grad)
{
    return a->g->tensor.at[graph_root(a->g, grad)].kind == TENSOR_VALUE && *share_of(a, grad) == 1;
}

static const char *grad_name(Autodiff *a, int root)
{
    const char *name = a->g->tensor.at[root].name;
    if (a->grad_names_taken)
        return arena_printf(a->g->arena, "grad:%s%s%d", name, a->g->mark, a->g->tensor.count);
    return arena_printf(a->g->arena, "grad:%s", name);
}

/* A contribution after the first, into a tensor of its own, takes over as the gradient: the name must stay unique. */
static const char *fresh_name(Autodiff *a, int root)
{
    const char *name = grad_name(a, root);
    if (name == NULL || a->grad[root] < 0)
        return name;
    return graph_made_up_name(a->g, name);
}

static Status fresh_gradient(Autodiff *a, int root, int *out)
{
    const Tensor t = a->g->tensor.at[root];
    TRY(graph_add_tensor(a->d, a->g, fresh_name(a, root), TENSOR_VALUE, t.dtype, t.rank, t.dim, out));
    a->g->tensor.at[*out].grad_of = root;
    return grow_share(a);
}

static Status param_gradient(Autodiff *a, int root, int *out)
{
    Tensor t = a->g->tensor.at[root];
    Param *p = &a->g->param[t.param];
    if (p->grad < 0) {
        int grad;
        TRY(graph_add_tensor(a->d, a->g, grad_name(a, root), TENSOR_GRADIENT, t.dtype, t.rank, t.dim, &grad));
        p->grad = grad;
        a->g->tensor.at[grad].param = t.param;
        a->g->tensor.at[grad].grad_of = root;
        TRY(grow_share(a));
    }
    *out = p->grad;
    return ST_OK;
}

/* Makes `grad` the gradient of root in place of what it was. */
static void set_gradient(Autodiff *a, int root, int grad)
{
    if (a->grad[root] >= 0)
        --*share_of(a, a->grad[root]);
    a->grad[root] = grad;
    ++*share_of(a, grad);
}

Status grad_begin(Autodiff *a, int x, bool can_accumulate, Target *t)
{
    int root = graph_root(a->g, x);
    *t = (Target){.tensor = -1, .add_from = -1, .add_to = -1};
    bool param = a->g->tensor.at[root].kind == TENSOR_PARAM;
    if (param) {
        int grad, p = a->g->tensor.at[root].param;
        TRY(param_gradient(a, root, &grad));
        t->tensor = grad;
        if (!a->written[p]) {
            a->written[p] = true;
            return ST_OK;
        }
    } else if (a->grad[root] < 0) {
        TRY(fresh_gradient(a, root, &t->tensor));
        set_gradient(a, root, t->tensor);
        return ST_OK;
    } else if (!is_owned(a, a->grad[root])) {
        int shared = a->grad[root];
        TRY(fresh_gradient(a, root, &t->tensor));
        t->add_from = shared;
        t->add_to = t->tensor;
        set_gradient(a, root, t->tensor);
        return ST_OK;
    } else {
        t->tensor = a->grad[root];
    }
    if (can_accumulate) {
        t->accumulate = true;
        return ST_OK;
    }
    t->add_to = t->tensor;
    TRY(grad_temp(a, root, a->g->tensor.at[root].rank, a->g->tensor.at[root].dim, &t->tensor));
    t->add_from = t->tensor;
    return ST_OK;
}

static Status emit_add_to(Autodiff *a, int to, int from)
{
    const Tensor t = a->g->tensor.at[to];
    ferry_kernel call = call_scale(t.dtype, t.count, 1, true);
    return grad_emit(a, &call, (int[]){to, from});
}

Status grad_end(Autodiff *a, const Target *t)
{
    return t->add_to < 0 ? ST_OK : emit_add_to(a, t->add_to, t->add_from);
}

Status grad_write(Autodiff *a, int x, const ferry_kernel *call, bool can_accumulate, const int *arg)
{
    Target t;
    int args[FERRY_MAX_ARGS];
    memcpy(args, arg, sizeof(args));
    TRY(grad_begin(a, x, can_accumulate, &t));
    ferry_kernel c = *call;
    c.accumulate = t.accumulate;
    args[0] = t.tensor;
    TRY(grad_emit(a, &c, args));
    return grad_end(a, &t);
}

Status grad_pass(Autodiff *a, int x, int dy)
{
    int root = graph_root(a->g, x);
    const Tensor t = a->g->tensor.at[root];
    if (t.kind == TENSOR_PARAM) {
        ferry_kernel call = call_scale(t.dtype, t.count, 1, false);
        return grad_write(a, x, &call, true, (int[FERRY_MAX_ARGS]){-1, dy});
    }
    if (a->grad[root] < 0) {
        int view;
        const char *name = grad_name(a, root);
        if (name == NULL)
            return diag_oom(a->d);
        TRY(graph_add_view(a->d, a->g, name, dy, t.rank, t.dim, &view));
        a->g->tensor.at[view].grad_of = root;
        TRY(grow_share(a));
        set_gradient(a, root, view);
        return ST_OK;
    }
    if (is_owned(a, a->grad[root]))
        return emit_add_to(a, a->grad[root], dy);
    int sum, shared = a->grad[root];
    const int64_t one = 1;
    TRY(fresh_gradient(a, root, &sum));
    ferry_kernel add = call_binary(FERRY_OP_BINARY, t.dtype, FERRY_ADD, 1, &t.count, &one, &one);
    TRY(grad_emit(a, &add, (int[]){sum, shared, dy}));
    set_gradient(a, root, sum);
    return ST_OK;
}

Status grad_emit(Autodiff *a, const ferry_kernel *call, const int *arg)
{
    const Node n = a->g->node.at[a->origin];
    return graph_add_node(a->d, a->g, n.name, n.onnx_op, PHASE_BP, a->origin, call, arg);
}

Status grad_temp(Autodiff *a, int x, int rank, const int64_t *dim, int *out)
{
    const Tensor t = a->g->tensor.at[x];
    int64_t copy[MAX_RANK];
    for (int i = 0; i < rank; i++)
        copy[i] = dim[i]; /* dim may lie in the array that grows */
    const char *base = arena_printf(a->g->arena, "grad:%s", t.name);
    if (base == NULL)
        return diag_oom(a->d);
    TRY(graph_add_tensor(a->d, a->g, graph_made_up_name(a->g, base), TENSOR_VALUE, t.dtype, rank, copy, out));
    return grow_share(a);
}

/* ---- what needs a gradient --------------------------------------------------------------------------------------- */

/* Readers of each forward root, in execution order. */
static Status index_readers(Autodiff *a)
{
    Graph *g = a->g;
    a->reader_at = ARENA_NEW(g->arena, int, a->n_tensor + 1);
    a->reader = ARENA_NEW(g->arena, int, (size_t)g->node.count *FERRY_MAX_ARGS);
    int *next = ARENA_NEW(g->arena, int, a->n_tensor + 1);
    if (a->reader_at == NULL || a->reader == NULL || next == NULL)
        return diag_oom(a->d);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < g->node.count; i++) {
            const Node *n = &g->node.at[i];
            for (int k = node_n_out(n); k < node_n_arg(n); k++) {
                if (n->arg[k] < 0)
                    continue;
                int r = graph_root(g, n->arg[k]);
                if (pass == 0)
                    a->reader_at[r + 1]++;
                else
                    a->reader[next[r]++] = i;
            }
        }
        for (int r = 0; r < a->n_tensor && pass == 0; r++) {
            a->reader_at[r + 1] += a->reader_at[r];
            next[r] = a->reader_at[r];
        }
    }
    return ST_OK;
}

/* depends[r]: r is a trainable parameter or a floating value computed from one through differentiable inputs. */
static void find_dependent(const Autodiff *a, bool *depends)
{
    const Graph *g = a->g;
    for (int p = 0; p < g->n_param; p++)
        depends[g->param[p].tensor] = g->param[p].trainable;
    for (int i = 0; i < a->n_forward; i++) {
        const Node *n = &g->node.at[i];
        int n_out = node_n_out(n);
        bool any = false;
        for (int k = 0; n_out + k < node_n_arg(n); k++)
            any |= n->arg[n_out + k] >= 0 && depends[graph_root(g, n->arg[n_out + k])] &&
                   (grad_rows[n->call.op].inputs >> k & 1 || grad_rows[n->call.op].rule == NULL);
        int y = graph_root(g, n->arg[0]);
        if (any && dtype_is_float(g->tensor.at[y].dtype))
            depends[y] = true;
    }
}

static void find_reached(Autodiff *a, const bool *depends)
{
    const Graph *g = a->g;
    int loss = graph_root(g, g->loss);
    a->reached[loss] = depends[loss];
    for (int i = a->n_forward - 1; i >= 0; i--) {
        const Node *n = &g->node.at[i];
        int n_out = node_n_out(n);
        if (!a->reached[graph_root(g, n->arg[0])])
            continue;
        for (int k = 0; n_out + k < node_n_arg(n); k++)
            if (n->arg[n_out + k] >= 0 && grad_rows[n->call.op].inputs >> k & 1 &&
                depends[graph_root(g, n->arg[n_out + k])])
                a->reached[graph_root(g, n->arg[n_out + k])] = true;
    }
}

static Status find_gradients(Autodiff *a)
{
    Graph *g = a->g;
    bool *depends = ARENA_NEW(g->arena, bool, a->n_tensor);
    a->reached = ARENA_NEW(g->arena, bool, a->n_tensor);
    a->parts = ARENA_NEW(g->arena, bool, a->n_tensor);
    a->written = ARENA_NEW(g->arena, bool, g->n_param);
    a->grad = ARENA_NEW(g->arena, int, a->n_tensor);
    if (depends == NULL || a->reached == NULL || a->parts == NULL || a->written == NULL || a->grad == NULL)
        return diag_oom(a->d);
    for (int r = 0; r < a->n_tensor; r++)
        a->grad[r] = -1;
    for (int v = 0; v < g->model->value.count; v++) {
        const char *name = g->model->value.at[v].name;
        a->grad_names_taken |= name != NULL && strncmp(name, "grad:", 5) == 0;
    }
    find_dependent(a, depends);
    find_reached(a, depends);
    return index_readers(a);
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

/* d loss / d loss = 1, shared by one reader more than there is, so that nothing is ever added to it. */
static Status seed(Autodiff *a)
{
    int one;
    TRY(graph_add_number(a->d, a->g, a->g->tensor.at[a->g->loss].dtype, 1, &one));
    TRY(grow_share(a));
    set_gradient(a, graph_root(a->g, a->g->loss), one);
    return ST_OK;
}

static Status differentiate(Autodiff *a, int i)
{
    const Node n = a->g->node.at[i];
    int y = graph_root(a->g, n.arg[0]);
    if (!a->reached[y] || a->grad[y] < 0)
        return ST_OK;
    a->origin = i;
    if (grad_rows[n.call.op].rule == NULL)
        return grad_fail(a, &n, "it is on the way from a trainable parameter to the loss, and has no gradient");
    TRY(grad_rows[n.call.op].rule(a, &n));
    if (a->g->tensor.at[y].producer == i) /* the first of those that write it: nothing reads its gradient any more */
        --*share_of(a, a->grad[y]);
    return ST_OK;
}

static Status freeze_unreached(Autodiff *a)
{
    Graph *g = a->g;
    int trained = 0, frozen = 0;
    const char *example = NULL;
    for (int p = 0; p < g->n_param; p++) {
        Param *param = &g->param[p];
        if (param->trainable && param->grad < 0) {
            example = frozen++ == 0 ? param->name : example;
            param->trainable = false;
        }
        trained += param->trainable;
    }
    if (frozen > 0)
        diag_warn(a->d, "%s: %d parameter%s%s '%s'%s no gradient of the loss (--loss); not trained", g->model->path, frozen,
                  frozen > 1 ? "s" : "", frozen > 1 ? ", such as" : "", example, frozen > 1 ? ", get" : " gets");
    if (trained > 0)
        return ST_OK;
    diag_fail(a->d, ST_USAGE, "%s: no trainable parameter reaches the loss", g->model->path);
    return diag_hint(a->d, "check --train, --freeze and --loss");
}

static Status run(Autodiff *a)
{
    TRY(find_gradients(a));
    TRY(grow_share(a));
    TRY(seed(a));
    for (int i = a->n_forward - 1; i >= 0; i--)
        TRY(differentiate(a, i));
    TRY(freeze_unreached(a));
    TRY(graph_sweep_tensors(a->d, a->g));
    graph_index_producers(a->g);
    return ST_OK;
}

Status graph_autodiff(Diag *d, Graph *g)
{
    TRY(graph_prune(d, g));
    Autodiff a = {.d = d, .g = g, .n_tensor = g->tensor.count, .n_forward = g->n_forward};
    Status s = run(&a);
    VEC_FREE(&a.share);
    return s;
}
