/* profile_make.c - a profile from a graph: the frame, and the choice of where the times come from.
 *
 * needs: a checked graph with segments     fills: every field of Profile but path and hash
 * keeps: the graph                         spoils: nothing */
#include <string.h>

#include "profiler/make.h"

Status work_build(Diag *d, Arena *a, const Graph *g, Work *out)
{
    *out = (Work){0};
    int groups = 2 * g->n_segment;
    int *start = ARENA_NEW(a, int, groups + 1);
    int *node = ARENA_NEW(a, int, g->node.count);
    int *fill = ARENA_NEW(a, int, groups);
    if (!start || !node || !fill)
        return diag_oom(d);
    for (int i = 0; i < g->node.count; i++)
        start[2 * g->node.at[i].segment + (int)g->node.at[i].phase + 1]++;
    for (int i = 0; i < groups; i++)
        start[i + 1] += start[i];
    for (int i = 0; i < g->node.count; i++) {
        int group = 2 * g->node.at[i].segment + (int)g->node.at[i].phase;
        node[start[group] + fill[group]++] = i;
    }
    *out = (Work){start, node};
    return ST_OK;
}

int arg_root(const Graph *g, const Node *n, int arg)
{
    return n->arg[arg] < 0 ? -1 : g->tensor.at[n->arg[arg]].root;
}

ArgRole arg_role(const Graph *g, const Node *n, int arg)
{
    int root = arg_root(g, n, arg);
    if (root < 0)
        return ARG_ABSENT;
    TensorKind kind = g->tensor.at[root].kind;
    return kind == TENSOR_PARAM ? ARG_PARAM : kind == TENSOR_GRADIENT ? ARG_GRADIENT : ARG_PLAIN;
}

/* Only the matrices of a product are read again for each tile; a bias, rows of a table, norm scales once. */
static int64_t passes_of(const Node *n, int arg, DhaTiles tiles)
{
    bool linear = n->call.op == FERRY_OP_LINEAR || n->call.op == FERRY_OP_LINEAR_DX;
    bool matmul = n->call.op == FERRY_OP_MATMUL;
    if (!((linear && arg == 2) || (matmul && arg > 0)))
        return 1;
    int64_t rows = matmul && arg == 1 ? n->call.n : n->call.m;
    int64_t tile = tiles.tile_rows > 0 ? tiles.tile_rows : rows;
    int64_t count = rows > 0 ? (rows - 1) / tile + 1 : 1;
    return mul_overflows_i64(count, tiles.passes, &count) ? INT64_MAX : count;
}

Status node_dha_bytes(Diag *d, const Graph *g, const Node *n, DhaTiles tiles, DhaBytes *out)
{
    *out = (DhaBytes){0};
    bool over = false;
    for (int i = 0; i < node_n_arg(n); i++) {
        ArgRole role = arg_role(g, n, i);
        if (role != ARG_PARAM && role != ARG_GRADIENT)
            continue;
        int64_t bytes = node_arg_traffic_bytes(g, n, i);
        bool output = i < node_n_out(n);
        if (role == ARG_PARAM) {
            over |= mul_overflows_i64(bytes, passes_of(n, i, tiles), &bytes);
            over |= add_overflows_i64(out->param_read, bytes, &out->param_read);
            continue;
        }
        if (output)
            over |= add_overflows_i64(out->grad_write, bytes, &out->grad_write);
        if (!output || n->call.accumulate)
            over |= add_overflows_i64(out->grad_read, bytes, &out->grad_read);
    }
    if (over || out->param_read > PROFILE_MAX_BYTES || out->grad_read > PROFILE_MAX_BYTES ||
        out->grad_write > PROFILE_MAX_BYTES)
        return diag_fail(d, ST_MODEL, "node '%s': it moves more bytes over the link than a profile can hold", n->name);
    return ST_OK;
}

/* ---- the frame
 * -------------------------------------------------------------------------------------------------------- */

static bool copy_texts(Arena *a, int count, const char **from, const char ***to)
{
    const char **copy = ARENA_NEW(a, const char *, count);
    bool ok = copy != NULL;
    for (int i = 0; ok && i < count; i++)
        ok = (copy[i] = arena_strdup(a, from[i])) != NULL;
    *to = copy;
    return ok;
}

/* The profile outlives the caller's options: everything is copied. */
static bool copy_options(Arena *a, const ModelOptions *from, ModelOptions *to)
{
    *to = *from;
    to->dump_after = NULL;
    if (from->path && !(to->path = arena_strdup(a, from->path)))
        return false;
    if (from->loss && !(to->loss = arena_strdup(a, from->loss)))
        return false;
    to->dim = ARENA_NEW(a, DimBinding, from->n_dim);
    to->shape = ARENA_NEW(a, ShapeBinding, from->n_shape);
    if (!to->dim || !to->shape)
        return false;
    for (int i = 0; i < from->n_dim; i++) {
        to->dim[i] = from->dim[i];
        if (!(to->dim[i].name = arena_strdup(a, from->dim[i].name)))
            return false;
    }
    for (int i = 0; i < from->n_shape; i++) {
        to->shape[i] = from->shape[i];
        if (!(to->shape[i].input = arena_strdup(a, from->shape[i].input)))
            return false;
    }
    return copy_texts(a, from->n_train, from->train, &to->train) &&
           copy_texts(a, from->n_freeze, from->freeze, &to->freeze) && copy_texts(a, from->n_tie, from->tie, &to->tie);
}

Status profile_frame(Diag *d, Arena *a, const Graph *g, const ModelOptions *model, Profile **out)
{
    *out = NULL;
    Profile *p = ARENA_NEW(a, Profile, 1);
    if (!p || !copy_options(a, model, &p->options))
        return diag_oom(d);
    p->arena = a;
    p->options.precision = g->precision;
    if (g->model)
        memcpy(p->model_hash, g->model->hash, sizeof p->model_hash);
    p->n_layer = g->n_layer;
    p->n_unit = g->n_unit;
    p->layer = ARENA_NEW(a, LayerProfile, g->n_layer);
    p->between = ARENA_NEW(a, BetweenProfile, (size_t)g->n_layer + 1);
    p->unit = ARENA_NEW(a, UnitProfile, g->n_unit);
    if (!p->layer || !p->between || !p->unit)
        return diag_oom(d);
    for (int i = 0; i < g->n_layer; i++)
        if (!(p->layer[i].name = arena_strdup(a, g->layer[i].name)))
            return diag_oom(d);
    for (int i = 0; i < g->n_unit; i++)
        if (!(p->unit[i].name = arena_strdup(a, g->unit[i].name)))
            return diag_oom(d);
    *out = p;
    return ST_OK;
}

/* ---- where the times come from
 * ---------------------------------------------------------------------------------------- */

static bool is_cuda(const char *device)
{
    return strncmp(device, "cuda:", 5) == 0 && device[5] != '\0' &&
           strspn(device + 5, "0123456789") == strlen(device + 5);
}

Status profile_make(Diag *d, Arena *a, const Graph *g, const ModelOptions *model, const ProfileOptions *options,
                    Profile **out)
{
    *out = NULL;
    const char *device = options->device ? options->device : "";
    bool host = strcmp(device, "host") == 0;
    bool numbers = strncmp(device, "model:", 6) == 0 && device[6] != '\0';
    bool measured = host || is_cuda(device);
    if (!measured && !numbers) {
        diag_fail(d, ST_USAGE, "unknown device '%s'", device);
        return diag_hint(d, "a device is 'host', 'cuda:N' (the N-th GPU) or 'model:FILE.yaml' (a device described by "
                            "numbers)");
    }
    if (measured && (options->warmup < 0 || options->repeats < 1)) {
        diag_fail(d, ST_USAGE, "%d warm-up runs and %d repeats cannot be measured", options->warmup, options->repeats);
        return diag_hint(d, "at least one repeat is needed; 2 and 7 are usual");
    }
    if (options->model) {
        *options->model = NULL;
        if (numbers)
            return diag_fail(d, ST_USAGE, "'%s' is already a device described by numbers: only a measured one can be saved", device);
    }
    DeviceModel *numbers_of = NULL;
    if (numbers)
        TRY(device_model_read(d, a, device + 6, &numbers_of));
    Profile *p;
    TRY(profile_frame(d, a, g, model, &p));
    TRY(measured ? host_clock(d, a, g, options, p) : device_model_apply(d, a, numbers_of, g, p));
    *out = p;
    return ST_OK;
}
