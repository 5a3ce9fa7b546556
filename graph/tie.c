/* tie.c - parameters that are one: an exporter wrote the output head as the transpose of the embedding, or the same
 * weights twice. Training them apart would train another model.
 *
 * A tie is found where values are equal, or equal after a transpose. Tensors whose elements are all the same are no
 * evidence: fresh biases are all zero without being one parameter. --tie ties by name, for values that are not there.
 */
#include <string.h>

#include "graph/lower.h"

/* ---- comparing values -------------------------------------------------------------------------------------------- */

static int64_t file_bytes(const Param *p)
{
    return p->count * (int64_t)ferry_dtype_bytes(p->file_dtype);
}

static bool is_uniform(const Param *p)
{
    int64_t each = (int64_t)ferry_dtype_bytes(p->file_dtype);
    /* equal to itself shifted by one element */
    return memcmp(p->data, (const char *)p->data + each, (size_t)(file_bytes(p) - each)) == 0;
}

static bool same_shape(const Tensor *a, const Tensor *b, bool transposed)
{
    if (transposed)
        return a->rank == 2 && b->rank == 2 && a->dim[0] == b->dim[1] && a->dim[1] == b->dim[0];
    return a->rank == b->rank && memcmp(a->dim, b->dim, (size_t)a->rank * sizeof(a->dim[0])) == 0;
}

static bool same_values(const Graph *g, const Param *a, const Param *b, bool transposed)
{
    if (a->file_dtype != b->file_dtype)
        return false;
    if (!transposed)
        return memcmp(a->data, b->data, (size_t)file_bytes(a)) == 0;
    int64_t rows = g->tensor.at[a->tensor].dim[0], cols = g->tensor.at[a->tensor].dim[1];
    size_t each = ferry_dtype_bytes(a->file_dtype);
    const char *pa = a->data, *pb = b->data;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            if (memcmp(pa + (size_t)(i * cols + j) * each, pb + (size_t)(j * rows + i) * each, each) != 0)
                return false;
    return true;
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Every node that reads the parameter does so as a LINEAR's matrix in the parameter's own shape: trans_b can flip. */
static bool only_linear(const Graph *g, int tensor)
{
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        for (int k = node_n_out(n); k < node_n_arg(n); k++) {
            if (n->arg[k] < 0 || graph_root(g, n->arg[k]) != tensor)
                continue;
            const Tensor *t = &g->tensor.at[n->arg[k]];
            if (n->call.op != FERRY_OP_LINEAR || k != 2 || !same_shape(t, &g->tensor.at[tensor], false))
                return false;
        }
    }
    return true;
}

static void flip_linears(Graph *g, int from, int to)
{
    for (int i = 0; i < g->node.count; i++) {
        Node *n = &g->node.at[i];
        if (n->call.op == FERRY_OP_LINEAR && graph_root(g, n->arg[2]) == from) {
            n->arg[2] = to;
            n->call.trans_b = !n->call.trans_b;
        }
    }
}

/* The tensor becomes a value: the transpose of parameter `from`, copied before its first reader. */
static Status copy_transposed(Diag *d, Graph *g, int tensor, int from)
{
    int first = -1;
    for (int i = 0; i < g->node.count && first < 0; i++)
        for (int k = node_n_out(&g->node.at[i]); k < node_n_arg(&g->node.at[i]); k++)
            if (g->node.at[i].arg[k] >= 0 && graph_root(g, g->node.at[i].arg[k]) == tensor)
                first = first < 0 ? i : first;
    for (int i = 0; i < g->tensor.count; i++)
        if (g->tensor.at[i].root == tensor) {
            g->tensor.at[i].kind = TENSOR_VALUE;
            g->tensor.at[i].param = -1;
        }
    const Tensor t = g->tensor.at[tensor];
    const int64_t y_stride[] = {t.dim[1], 1}, x_stride[] = {1, t.dim[0]};
    ferry_kernel call = call_copy(t.dtype, 2, t.dim, 0, y_stride, 0, x_stride, 1);
    TRY(graph_add_node(d, g, g->node.at[first].name, "Transpose", PHASE_FP, -1, &call, (int[]){tensor, from}));
    Node copy = g->node.at[g->node.count - 1];
    memmove(&g->node.at[first + 1], &g->node.at[first], (size_t)(g->node.count - 1 - first) * sizeof(Node));
    g->node.at[first] = copy;
    for (int i = 0; i < g->node.count; i++)
        g->node.at[i].origin = i;
    graph_index_producers(g);
    return ST_OK;
}

static Status add_alias(Diag *d, Graph *g, Param *p, const char *name, bool transposed)
{
    ParamAlias *more = ARENA_NEW(g->arena, ParamAlias, p->n_alias + 1);
    if (more == NULL)
        return diag_oom(d);
    if (p->n_alias > 0)
        memcpy(more, p->alias, (size_t)p->n_alias * sizeof(*more));
    more[p->n_alias++] = (ParamAlias){name, transposed};
    p->alias = more;
    return ST_OK;
}

/* Data of one of the two is enough: the other's, transposed when the tie is. */
static Status adopt_data(Diag *d, Graph *g, Param *keep, const Param *drop, bool transposed)
{
    if (keep->data != NULL || drop->data == NULL)
        return ST_OK;
    keep->data = drop->data;
    keep->file_dtype = drop->file_dtype;
    if (!transposed)
        return ST_OK;
    int64_t rows = g->tensor.at[keep->tensor].dim[0], cols = g->tensor.at[keep->tensor].dim[1];
    size_t each = ferry_dtype_bytes(drop->file_dtype);
    char *to = arena_alloc(g->arena, (size_t)drop->count, each);
    if (to == NULL)
        return diag_oom(d);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            memcpy(to + (size_t)(i * cols + j) * each, (const char *)drop->data + (size_t)(j * rows + i) * each, each);
    keep->data = to;
    return ST_OK;
}

/* Parameter at index `second` becomes the one at `first`; the merged parameter stays at `first`. */
static Status merge(Diag *d, Graph *g, int first, int second, bool transposed)
{
    Param keep = g->param[first], drop = g->param[second];
    if (transposed && !only_linear(g, drop.tensor) && only_linear(g, keep.tensor)) {
        /* a product can read its matrix either way, an embedding cannot: the embedding's layout stays */
        keep = g->param[second];
        drop = g->param[first];
    }
    TRY(add_alias(d, g, &keep, drop.name, transposed));
    for (int i = 0; i < drop.n_alias; i++)
        TRY(add_alias(d, g, &keep, drop.alias[i].name, drop.alias[i].transposed != transposed));
    TRY(adopt_data(d, g, &keep, &drop, transposed));
    if (!transposed) {
        for (int i = 0; i < g->tensor.count; i++)
            if (g->tensor.at[i].root == drop.tensor)
                g->tensor.at[i].root = keep.tensor;
    } else if (only_linear(g, drop.tensor)) {
        flip_linears(g, drop.tensor, keep.tensor);
        for (int i = 0; i < g->tensor.count; i++)
            if (g->tensor.at[i].root == drop.tensor) { /* nothing reads it any more */
                g->tensor.at[i].kind = TENSOR_VALUE;
                g->tensor.at[i].param = -1;
            }
    } else {
        TRY(copy_transposed(d, g, drop.tensor, keep.tensor));
    }
    diag_note(d, "'%s' is tied to '%s'%s", drop.name, keep.name, transposed ? " (transposed)" : "");
    g->param[first] = keep;
    memmove(&g->param[second], &g->param[second + 1], (size_t)(g->n_param - second - 1) * sizeof(Param));
    g->n_param--;
    for (int p = 0; p < g->n_param; p++)
        g->tensor.at[g->param[p].tensor].param = p;
    for (int i = 0; i < g->tensor.count; i++)
        if (g->tensor.at[i].kind == TENSOR_PARAM || g->tensor.at[i].kind == TENSOR_STATE)
            g->tensor.at[i].param = g->tensor.at[graph_root(g, i)].param;
    return ST_OK;
}

/* ---- by value ---------------------------------------------------------------------------------------------------- */

static Status tie_by_value(Diag *d, Graph *g)
{
    for (int i = 0; i < g->n_param; i++) {
        if (g->param[i].data == NULL || g->param[i].state || is_uniform(&g->param[i]))
            continue;
        for (int j = i + 1; j < g->n_param;) {
            const Param *a = &g->param[i], *b = &g->param[j];
            const Tensor *ta = &g->tensor.at[a->tensor], *tb = &g->tensor.at[b->tensor];
            bool given = b->data != NULL && !b->state;
            bool same = given && same_shape(ta, tb, false) && same_values(g, a, b, false);
            bool transposed = !same && given && same_shape(ta, tb, true) && same_values(g, a, b, true);
            if (same || transposed)
                TRY(merge(d, g, i, j, transposed));
            else
                j++;
        }
    }
    return ST_OK;
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */

/* The parameter with this name, or that has it as an alias; -1. Running statistics are no parameter here. */
static int find_param(const Graph *g, const char *name, size_t length, bool *transposed)
{
    *transposed = false;
    for (int p = 0; p < g->n_param; p++) {
        const Param *param = &g->param[p];
        if (param->state)
            continue;
        if (strlen(param->name) == length && memcmp(param->name, name, length) == 0)
            return p;
        for (int i = 0; i < param->n_alias; i++)
            if (strlen(param->alias[i].name) == length && memcmp(param->alias[i].name, name, length) == 0) {
                *transposed = param->alias[i].transposed;
                return p;
            }
    }
    return -1;
}

static void shape_print(const Tensor *t, char *to, size_t size)
{
    size_t at = 0;
    to[0] = '\0';
    for (int i = 0; i < t->rank && at < size; i++)
        at += (size_t)snprintf(to + at, size - at, "%s%lld", i > 0 ? "x" : "", (long long)t->dim[i]);
}

static Status tie_pair(Diag *d, Graph *g, const char *option, int a, int b, bool transposed)
{
    if (a == b) {
        if (transposed)
            return diag_fail(d, ST_USAGE, "--tie '%s': the two are the same parameter, the other way round", option);
        return ST_OK;
    }
    const Tensor *ta = &g->tensor.at[g->param[a].tensor], *tb = &g->tensor.at[g->param[b].tensor];
    if (!same_shape(ta, tb, transposed)) {
        char sa[128], sb[128];
        shape_print(ta, sa, sizeof(sa));
        shape_print(tb, sb, sizeof(sb));
        diag_fail(d, ST_USAGE, "--tie '%s': the shapes %s and %s%s do not match", option, sa, sb,
                  transposed ? " (transposed)" : "");
        return diag_hint(d, same_shape(ta, tb, !transposed) ? "%s the ^T" : "%stie parameters of the same shape",
                         !same_shape(ta, tb, !transposed) ? ""
                         : transposed                     ? "leave out"
                                                          : "add");
    }
    if (g->param[a].data != NULL && g->param[b].data != NULL && !same_values(g, &g->param[a], &g->param[b], transposed))
        diag_warn(d, "--tie '%s': the values in the file differ; those of '%s' are used", option, g->param[a].name);
    return a < b ? merge(d, g, a, b, transposed) : merge(d, g, b, a, transposed);
}

/* NAME=NAME or NAME=NAME^T. Names may contain '=': every place to split is tried, exactly one must give two parameters.
 */
static Status tie_by_name(Diag *d, Graph *g, const char *option)
{
    int found = 0, a = -1, b = -1;
    bool transposed = false;
    for (const char *eq = strchr(option, '='); eq != NULL; eq = strchr(eq + 1, '=')) {
        const char *right = eq + 1;
        size_t length = strlen(right);
        bool ta, tb, t = length > 2 && strcmp(right + length - 2, "^T") == 0;
        int pa = find_param(g, option, (size_t)(eq - option), &ta);
        int pb = find_param(g, right, length, &tb);
        if (pb >= 0)
            t = false; /* a name that ends in ^T */
        else if (t)
            pb = find_param(g, right, length - 2, &tb);
        bool itself = (size_t)(eq - option) == length && memcmp(option, right, length) == 0;
        if (pa < 0 || pb < 0 || itself)
            continue;
        found++;
        a = pa;
        b = pb;
        transposed = t != (ta != tb);
    }
    if (found == 1)
        return tie_pair(d, g, option, a, b, transposed);
    diag_fail(d, ST_USAGE, "--tie '%s' %s", option,
              found == 0 ? "does not name two parameters" : "can be read in more than one way");
    return diag_hint(d, "A=B or A=B^T with the names that 'ferryc inspect' lists");
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

static bool any_name_matches(const Param *p, int n, const char **glob)
{
    for (int i = 0; i < n; i++) {
        if (glob_match(glob[i], p->name))
            return true;
        for (int k = 0; k < p->n_alias; k++)
            if (glob_match(glob[i], p->alias[k].name))
                return true;
    }
    return false;
}

/* --train and --freeze mean the whole parameter, whichever of its names they match. */
static void select_again(Graph *g, const ModelOptions *o)
{
    for (int i = 0; i < g->n_param; i++) {
        Param *p = &g->param[i];
        if (p->n_alias > 0)
            p->trainable = (o->n_train == 0 || any_name_matches(p, o->n_train, o->train)) &&
                           !any_name_matches(p, o->n_freeze, o->freeze);
    }
}

Status graph_tie(Diag *d, Graph *g, const ModelOptions *options)
{
    TRY(tie_by_value(d, g));
    for (int i = 0; i < options->n_tie; i++)
        TRY(tie_by_name(d, g, options->tie[i]));
    select_again(g, options);
    return ST_OK;
}
