/* graph_check.c - every invariant of graph.h. A failure here is a bug of a pass, never of the model. */
#include <stdlib.h>
#include <string.h>

#include "graph/lower.h"

static Status bug(Diag *d, const char *what, const char *about)
{
    diag_fail(d, ST_FAILED, "internal error: the training graph is inconsistent: %s (%s)", what, about);
    return diag_hint(d, "please report this with the model");
}

static Status check_tensor(Diag *d, const Graph *g, int i)
{
    const Tensor *t = &g->tensor.at[i];
    if (t->name == NULL || t->rank < 0 || t->rank > MAX_RANK)
        return bug(d, "tensor without a name or rank", t->name != NULL ? t->name : "?");
    if (t->root < 0 || t->root >= g->tensor.count)
        return bug(d, "root outside of the graph", t->name);
    const Tensor *root = &g->tensor.at[t->root];
    if (root->root != t->root)
        return bug(d, "view of a view", t->name);
    if (t->count < 0 || dims_count(t->rank, t->dim) != t->count ||
        t->bytes != t->count * (int64_t)ferry_dtype_bytes(t->dtype))
        return bug(d, "sizes do not fit the shape", t->name);
    if (root->bytes != t->bytes || root->dtype != t->dtype || root->kind != t->kind || root->param != t->param)
        return bug(d, "a view differs from its root", t->name);
    if (t->kind == TENSOR_CONST && t->data == NULL)
        return bug(d, "constant without data", t->name);
    bool of_param = t->kind == TENSOR_PARAM || t->kind == TENSOR_STATE || t->kind == TENSOR_GRADIENT;
    if (of_param ? t->param < 0 || t->param >= g->n_param : t->param != -1)
        return bug(d, "parameter index", t->name);
    if (of_param && t->root != (t->kind == TENSOR_GRADIENT ? g->param[t->param].grad : g->param[t->param].tensor))
        return bug(d, "a parameter's tensor is another one's", t->name);
    if (dtype_is_float(t->dtype) && t->dtype != g->precision && t->dtype != graph_wide_dtype(g))
        return bug(d, "a floating tensor of another precision", t->name);
    return ST_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static Status check_names(Diag *d, const Graph *g)
{
    const char **name = base_alloc(((size_t)g->tensor.count + 1) * sizeof(*name));
    if (name == NULL)
        return diag_oom(d);
    for (int i = 0; i < g->tensor.count; i++)
        name[i] = g->tensor.at[i].name;
    qsort(name, (size_t)g->tensor.count, sizeof(*name), compare_names);
    const char *twice = NULL;
    for (int i = 1; i < g->tensor.count && twice == NULL; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            twice = name[i];
    base_free(name);
    return twice != NULL ? bug(d, "two tensors of one name", twice) : ST_OK;
}

/* Types, and that no argument reaches beyond its tensor. */
static Status check_node(Diag *d, const Graph *g, int i)
{
    const Node *n = &g->node.at[i];
    if (ferry_op_get(n->call.op) == NULL || n->name == NULL || n->onnx_op == NULL)
        return bug(d, "node without a name or kernel", n->name != NULL ? n->name : "?");
    if ((n->phase == PHASE_FP) != (i < g->n_forward))
        return bug(d, "forward and backward nodes are mixed", n->name);
    if (n->phase == PHASE_FP ? n->origin != i : n->origin < 0 || n->origin >= g->n_forward)
        return bug(d, "origin", n->name);
    if (n->phase >= PHASE_COUNT)
        return bug(d, "phase", n->name);
    ferry_kernel call = n->call;
    for (int k = 0; k < FERRY_MAX_ARGS; k++) {
        if (n->arg[k] >= g->tensor.count || (k >= node_n_arg(n) && n->arg[k] >= 0))
            return bug(d, "argument outside of the graph", n->name);
        call.arg[k] = n->arg[k] >= 0 ? &call : NULL; /* any address: only its presence counts */
    }
    for (int k = 0; k < node_n_arg(n); k++) {
        if (n->arg[k] < 0)
            continue;
        const Tensor *t = &g->tensor.at[n->arg[k]];
        int64_t extent = ferry_kernel_extent_bytes(&call, k);
        if (extent < 0 || extent > t->bytes)
            return bug(d, "a kernel reaches beyond its argument", n->name);
        if (t->dtype != ferry_kernel_arg_dtype(&call, k))
            return bug(d, "an argument has another type than the kernel", n->name);
        bool fixed = t->kind == TENSOR_INPUT || t->kind == TENSOR_PARAM || t->kind == TENSOR_CONST;
        if (k < node_n_out(n) && (fixed || (t->kind == TENSOR_GRADIENT && n->phase != PHASE_BP)))
            return bug(d, "a kernel writes what is not its to write", n->name);
        if (t->kind == TENSOR_STATE && (n->call.op != FERRY_OP_MOVING_AVERAGE || k > 0 || n->phase != PHASE_FP))
            return bug(d, "running statistics are used by another kernel than the one that averages", n->name);
    }
    return ST_OK;
}

/* ---- order of writes and reads, and shared gradients ------------------------------------------------------------- */

/* For the gradient of forward tensor f: the forward node whose differentiation gave it its first contribution, which is
 * the last reader of f that a gradient flows through. A view of other bytes exists from then on. */
static bool find_made_at(const Graph *g, int *made_at)
{
    bool *has = base_alloc((size_t)g->tensor.count + 1);
    for (int i = 0; i < g->tensor.count; i++)
        made_at[i] = -1;
    if (has == NULL)
        return false;
    for (int i = 0; i < g->tensor.count; i++)
        if (g->tensor.at[i].grad_of >= 0)
            has[g->tensor.at[i].grad_of] = true;
    if (g->loss >= 0)
        has[graph_root(g, g->loss)] = true;
    for (int i = 0; i < g->n_forward; i++) {
        const Node *n = &g->node.at[i];
        if (!has[graph_root(g, n->arg[0])])
            continue;
        for (int k = node_n_out(n); k < node_n_arg(n); k++)
            if (n->arg[k] >= 0)
                made_at[graph_root(g, n->arg[k])] = i;
    }
    base_free(has);
    return true;
}

typedef struct Access {
    bool written, read;
    int added_by, added_for; /* node that last added to these bytes, and for the gradient of which forward root; -1 */
} Access;

/* Bytes that were added to as the gradient of one tensor must not be read as that of another, unless the other one took
 * them over afterwards: its gradient was made at an earlier forward node than the one whose rule did the adding. */
static bool reads_changed_bytes(const Graph *g, const Access *a, int tensor, const int *made_at)
{
    int of = g->tensor.at[tensor].grad_of;
    if (a->added_by < 0 || of == a->added_for)
        return false;
    return of < 0 || made_at[of] < 0 || made_at[of] >= g->node.at[a->added_by].origin;
}

static Status check_order(Diag *d, const Graph *g, Access *access, const int *made_at)
{
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        for (int k = node_n_out(n); k < node_n_arg(n); k++) {
            if (n->arg[k] < 0)
                continue;
            const Tensor *t = &g->tensor.at[n->arg[k]];
            Access *a = &access[t->root];
            if ((t->kind == TENSOR_VALUE || t->kind == TENSOR_GRADIENT) && !a->written)
                return bug(d, "a tensor is read before it is written", t->name);
            if (t->kind == TENSOR_VALUE && reads_changed_bytes(g, a, n->arg[k], made_at))
                return bug(d, "a gradient is read after its bytes became another one's", t->name);
            a->read = true;
        }
        for (int k = 0; k < node_n_out(n); k++) {
            if (n->arg[k] < 0)
                continue;
            const Tensor *t = &g->tensor.at[n->arg[k]];
            Access *a = &access[t->root];
            if (t->kind == TENSOR_STATE && a->written)
                return bug(d, "running statistics are brought up to date twice", t->name);
            if (n->call.accumulate && !a->written && t->kind != TENSOR_STATE)
                return bug(d, "added to before it was written", t->name);
            if (!n->call.accumulate && a->read)
                return bug(d, "written again after it was read", t->name);
            for (int j = node_n_out(n); j < node_n_arg(n); j++)
                if (n->arg[j] >= 0 && graph_root(g, n->arg[j]) == t->root)
                    return bug(d, "a kernel writes what it reads", t->name);
            if (n->call.accumulate && t->kind == TENSOR_VALUE) {
                if (reads_changed_bytes(g, a, n->arg[k], made_at))
                    return bug(d, "a gradient is added to after its bytes became another one's", t->name);
                a->added_by = i;
                a->added_for = t->grad_of;
            }
            a->written = true;
        }
    }
    for (int p = 0; p < g->n_param; p++)
        if (g->param[p].grad >= 0 && !access[g->param[p].grad].written)
            return bug(d, "a gradient is never written", g->param[p].name);
    for (int p = 0; p < g->n_param; p++)
        if (g->param[p].state && !access[g->param[p].tensor].written)
            return bug(d, "running statistics are never brought up to date", g->param[p].name);
    return ST_OK;
}

static Status check_accesses(Diag *d, const Graph *g)
{
    Access *access = base_alloc(((size_t)g->tensor.count + 1) * sizeof(*access));
    int *made_at = base_alloc(((size_t)g->tensor.count + 1) * sizeof(*made_at));
    if (access == NULL || made_at == NULL || !find_made_at(g, made_at)) {
        base_free(access);
        base_free(made_at);
        return diag_oom(d);
    }
    for (int i = 0; i < g->tensor.count; i++)
        access[i].added_by = access[i].added_for = -1;
    Status s = check_order(d, g, access, made_at);
    base_free(access);
    base_free(made_at);
    return s;
}

/* ---- the backward pass ------------------------------------------------------------------------------------------- */

/* A copy is its origin's call; what it writes stands for what that writes, and what it reads is the same or stands for it. */
static bool is_copy(const Graph *g, const Node *n, int *stands_for)
{
    const Node *o = &g->node.at[n->origin];
    if (memcmp(&n->call, &o->call, sizeof(n->call)) != 0)
        return false;
    for (int k = 0; k < node_n_arg(n); k++) {
        if (n->arg[k] < 0 || o->arg[k] < 0) {
            if (n->arg[k] != o->arg[k])
                return false;
            continue;
        }
        const Tensor *t = &g->tensor.at[n->arg[k]], *u = &g->tensor.at[o->arg[k]];
        if (t->rank != u->rank || memcmp(t->dim, u->dim, (size_t)t->rank * sizeof(*t->dim)) != 0)
            return false;
        if (k < node_n_out(n)) {
            if (t->root == u->root || (stands_for[t->root] >= 0 && stands_for[t->root] != u->root))
                return false;
            stands_for[t->root] = u->root;
        } else if (n->arg[k] != o->arg[k] && stands_for[t->root] != u->root) {
            return false;
        }
    }
    return true;
}

/* Gradients in reverse order; what is computed again in the order of the forward pass, before the gradients of the same
 * nodes. */
Status graph_check_backward(Diag *d, const Graph *g)
{
    int *stands_for = base_alloc(((size_t)g->tensor.count + 1) * sizeof(*stands_for));
    if (stands_for == NULL)
        return diag_oom(d);
    for (int i = 0; i < g->tensor.count; i++)
        stands_for[i] = -1;
    int last = g->n_forward, again = -1;
    Status s = ST_OK;
    for (int i = g->n_forward; i < g->node.count && s == ST_OK; i++) {
        const Node *n = &g->node.at[i];
        bool copy = n->phase == PHASE_RP;
        if (copy ? n->origin >= last || n->origin <= again : n->origin > last)
            s = bug(d, "backward nodes are not in reverse order", n->name);
        else if (copy && !is_copy(g, n, stands_for))
            s = bug(d, "what is computed again is not what the forward pass computed", n->name);
        again = copy ? n->origin : -1;
        last = copy ? last : n->origin;
    }
    base_free(stands_for);
    return s;
}

/* ---- parameters, layers, units ----------------------------------------------------------------------------------- */

static Status check_params(Diag *d, const Graph *g)
{
    for (int p = 0; p < g->n_param; p++) {
        const Param *param = &g->param[p];
        const Tensor *t = &g->tensor.at[param->tensor];
        if (t->kind != (param->state ? TENSOR_STATE : TENSOR_PARAM) || t->param != p || t->root != param->tensor || t->bytes != param->bytes)
            return bug(d, "a parameter and its tensor differ", param->name);
        if (param->grad >= 0) {
            const Tensor *grad = &g->tensor.at[param->grad];
            if (grad->kind != TENSOR_GRADIENT || grad->param != p || grad->bytes != t->bytes || !param->trainable)
                return bug(d, "a parameter and its gradient differ", param->name);
        }
        if (param->state && (param->trainable || param->grad >= 0 || param->unit >= 0))
            return bug(d, "running statistics are trained", param->name);
        if (g->node.count > g->n_forward && param->trainable && param->grad < 0)
            return bug(d, "a trainable parameter has no gradient", param->name);
    }
    for (int i = 0; i < g->n_input; i++)
        if (g->tensor.at[g->input[i]].kind != TENSOR_INPUT)
            return bug(d, "an input of another kind", g->tensor.at[g->input[i]].name);
    if (g->loss >= 0 && g->tensor.at[g->loss].count != 1)
        return bug(d, "the loss is no scalar", g->tensor.at[g->loss].name);
    return ST_OK;
}

static Status check_segments(Diag *d, const Graph *g)
{
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        bool param = false;
        for (int k = node_n_out(n); k < node_n_arg(n); k++)
            param |= n->arg[k] >= 0 && graph_is_param(g, n->arg[k]);
        if (n->segment < 0 || n->segment >= g->n_segment || n->segment != g->node.at[n->origin].segment)
            return bug(d, "segment", n->name);
        bool forward = n->phase != PHASE_BP; /* or computed again */
        if (forward ? param != (n->segment % 2 == 1) : param && n->segment % 2 == 0)
            return bug(d, "a parameter is read between layers", n->name);
        if (i == 0 || g->node.at[i - 1].phase != n->phase)
            continue;
        int step = n->segment - g->node.at[i - 1].segment;
        if (forward ? step < 0 || (step == 0 && n->segment % 2 == 1) : step > 0)
            return bug(d, "segments are out of order", n->name);
    }
    return ST_OK;
}

static Status check_layers(Diag *d, const Graph *g)
{
    if (g->n_segment != 2 * g->n_layer + 1)
        return bug(d, "number of segments", "layers");
    for (int l = 0; l < g->n_layer; l++) {
        const Layer *layer = &g->layer[l];
        if (layer->name == NULL || layer->node < 0 || layer->node >= g->n_forward ||
            g->node.at[layer->node].segment != 2 * l + 1 || layer->n_unit < 1)
            return bug(d, "layer", layer->name != NULL ? layer->name : "?");
    }
    int n_param = 0;
    for (int p = 0; p < g->n_param; p++)
        n_param += g->param[p].state;
    for (int u = 0; u < g->n_unit; u++) {
        const Unit *unit = &g->unit[u];
        int64_t bytes = 0;
        for (int i = 0; i < unit->n_param; i++) {
            bytes += g->param[unit->param[i]].bytes;
            if (g->param[unit->param[i]].unit != u)
                return bug(d, "a parameter is in another unit", unit->name);
        }
        n_param += unit->n_param;
        if (unit->name == NULL || bytes != unit->bytes || unit->grad_bytes > bytes || unit->n_use < 1 ||
            unit->use[0].phase != PHASE_FP)
            return bug(d, "unit", unit->name != NULL ? unit->name : "?");
        for (int i = 1; i < unit->n_use; i++) {
            Use a = unit->use[i - 1], b = unit->use[i];
            bool backward = a.phase != PHASE_FP;
            if (backward > (b.phase != PHASE_FP) ||
                (a.phase == b.phase && a.phase != PHASE_RP && (backward ? a.layer <= b.layer : a.layer >= b.layer)))
                return bug(d, "uses are out of order", unit->name);
        }
    }
    return n_param == g->n_param ? check_segments(d, g) : bug(d, "parameters without a unit", "layers");
}

Status graph_check(Diag *d, const Graph *g)
{
    for (int i = 0; i < g->tensor.count; i++)
        TRY(check_tensor(d, g, i));
    TRY(check_names(d, g));
    for (int i = 0; i < g->node.count; i++)
        TRY(check_node(d, g, i));
    TRY(check_params(d, g));
    TRY(check_accesses(d, g));
    TRY(graph_check_backward(d, g));
    return g->n_segment > 0 ? check_layers(d, g) : ST_OK;
}
