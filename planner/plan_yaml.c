/* plan_yaml.c - plan.yaml, schema ferryc/plan/1 (schemas/plan.md documents each key). */
#include "planner/plan_search.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "planner/steps.h"

static const char *const SCHEMA = "ferryc/plan/1";

/* The shortest decimal that reads back as the same number. */
static void add_real(Text *to, double v)
{
    char buf[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    text_add(to, "%s", buf);
}

void plan_yaml_text(const Graph *g, const Plan *plan, const char *profile_path, Text *to)
{
    text_add(to, "schema: %s\n", SCHEMA);
    text_add(to, "tool: \"ferryc " FERRY_VERSION "\"\n");
    text_add(to, "profile:\n  path: ");
    text_add_quoted(to, profile_path);
    text_add(to, "\n  hash: \"%s\"\n", plan->profile_hash);
    text_add(to, "algorithm: %s\n", plan->algorithm);
    text_add(to, "options:\n");
    text_add(to, "  mem_budget_bytes: %" PRId64 "\n", plan->budget_bytes);
    text_add(to, "  host_budget_bytes: %" PRId64 "\n", plan->host_budget_bytes);
    text_add(to, "  clip: %s\n", plan->clip ? "true" : "false");
    text_add(to, "  update_after_bp: %s\n", plan->update_after_bp ? "true" : "false");
    text_add(to, "  gradient_window_bytes: %" PRId64 "\n", plan->gradient_window_bytes);
    text_add(to, "  load_window_bytes: %" PRId64 "\n", plan->load_window_bytes);
    text_add(to, "  allocations: %" PRId64 "\n", plan->n_alloc);
    text_add(to, "  reserve_factor: ");
    if (plan->reserve_factor < 0)
        text_add(to, "null");
    else
        add_real(to, plan->reserve_factor);
    text_add(to, "\nresults:\n");
    text_add(to, "  iteration_ns: %" PRId64 "\n", plan->iteration_ns);
    text_add(to, "  model_ns: %" PRId64 "\n", plan->model_ns);
    text_add(to, "  bound_ns: %" PRId64 "\n", plan->bound_ns);
    if (plan->milp_ns < 0)
        text_add(to, "  milp_ns: null\n");
    else
        text_add(to, "  milp_ns: %" PRId64 "\n", plan->milp_ns);
    text_add(to, "  resource_bound_ns: %" PRId64 "\n", plan->resource_bound_ns);
    text_add(to, "  compute_ns: %" PRId64 "\n", plan->compute_ns);
    text_add(to, "  h2d_ns: %" PRId64 "\n", plan->h2d_ns);
    text_add(to, "  d2h_ns: %" PRId64 "\n", plan->d2h_ns);
    text_add(to, "  update_ns: %" PRId64 "\n", plan->update_ns);
    text_add(to, "  peak_bytes: %" PRId64 "\n", plan->peak_bytes);
    text_add(to, "  live_bytes: %" PRId64 "\n", plan->live_bytes);
    text_add(to, "  host_bytes: %" PRId64 "\n", plan->host_bytes);

    if (g->n_again > 0)
        text_add(to, "recompute:\n");
    for (int i = 0; i < g->n_again; i++) {
        text_add(to, "  - ");
        text_add_quoted(to, g->again[i]);
        text_add(to, "\n");
    }
    text_add(to, "units:\n");
    for (int i = 0; i < g->n_unit; i++) {
        const Unit *u = &g->unit[i];
        const UnitPlan *c = &plan->unit[i];
        text_add(to, "  - name: ");
        text_add_quoted(to, u->name);
        text_add(to, "\n    mode: %s\n    served_from: ", mode_name(plan_mode(u, c)));
        if (c->first_gpu_use >= u->n_use) {
            text_add(to, "never");
        } else {
            const Use *use = &u->use[c->first_gpu_use];
            Text name = {0};
            text_add(&name, "%s/%s", g->layer[use->layer].name, phase_name(use->phase));
            to->failed |= name.failed;
            text_add_quoted(to, name.at ? name.at : "");
            text_free(&name);
        }
        text_add(to, "\n    gradient: %s\n    update: %s\n", c->grad == ON_GPU ? "gpu" : "host",
                 c->late ? "late" : "early");
    }

    text_add(to, "layout:\n");
    text_add(to, "  chunk_bytes: %" PRId64 "\n", plan->layout.chunk_bytes);
    text_add(to, "  reserved_bytes: %" PRId64 "\n", plan->layout.reserved_bytes);
    text_add(to, "  buffers:%s\n", plan->layout.n_place ? "" : " {}");
    for (int i = 0; i < plan->layout.n_place; i++) {
        const Place *p = &plan->layout.place[i];
        text_add(to, "    ");
        text_add_quoted(to, p->buffer);
        text_add(to, ": [");
        for (int k = 0; k < p->n_piece; k++)
            text_add(to, "%s[%" PRId64 ", %" PRId64 "]", k ? ", " : "", p->piece[k].offset_bytes, p->piece[k].bytes);
        text_add(to, "]\n");
    }
}

Status plan_write(Diag *d, const Graph *g, const Profile *p, const Plan *plan, const char *path, bool force)
{
    Arena *scratch = arena_open();
    if (!scratch)
        return diag_oom(d);
    const char *profile_path = plan->profile_path ? plan->profile_path : p->path;
    if (profile_path) {
        const char *dir = path_dir(scratch, path);
        profile_path = dir ? path_relative(scratch, dir, profile_path) : NULL;
    } else {
        profile_path = "";
    }
    Text t = {0};
    Status st = ST_OK;
    if (!profile_path)
        st = diag_oom(d);
    if (st == ST_OK) {
        plan_yaml_text(g, plan, profile_path, &t);
        st = t.failed ? diag_oom(d) : owned_write(d, path, "#", "plan, see schemas/plan.md", t.at, t.size, force);
    }
    text_free(&t);
    arena_close(scratch);
    return st;
}

/* ---- reading
 * ----------------------------------------------------------------------------------------------------------- */

static const int64_t MOST = (int64_t)1 << 60;

static bool is_null(const YamlNode *n)
{
    return n->kind == YAML_SCALAR && !n->quoted && (strcmp(n->text, "null") == 0 || strcmp(n->text, "~") == 0);
}

static Status read_options(Diag *d, const YamlNode *top, Plan *plan)
{
    static const char *const keys[] = {
        "mem_budget_bytes",      "host_budget_bytes", "clip",           "update_after_bp",
        "gradient_window_bytes", "load_window_bytes", "allocations",    "reserve_factor",   NULL};
    YamlNode *map, *factor;
    TRY(yaml_get(d, top, "options", YAML_MAP, &map));
    TRY(yaml_only_keys(d, map, keys));
    TRY(yaml_get_int(d, map, "mem_budget_bytes", 0, MOST, &plan->budget_bytes));
    TRY(yaml_get_int(d, map, "host_budget_bytes", 0, MOST, &plan->host_budget_bytes));
    TRY(yaml_get_bool(d, map, "clip", &plan->clip));
    TRY(yaml_get_bool(d, map, "update_after_bp", &plan->update_after_bp));
    TRY(yaml_get_int(d, map, "gradient_window_bytes", 0, MOST, &plan->gradient_window_bytes));
    TRY(yaml_get_int(d, map, "load_window_bytes", 0, MOST, &plan->load_window_bytes));
    TRY(yaml_get_int(d, map, "allocations", 0, MOST, &plan->n_alloc));
    TRY(yaml_get(d, map, "reserve_factor", YAML_SCALAR, &factor));
    plan->reserve_factor = -1;
    return is_null(factor) ? ST_OK : yaml_get_real(d, map, "reserve_factor", 0, 1, &plan->reserve_factor);
}

static Status read_results(Diag *d, const YamlNode *top, Plan *plan)
{
    struct {
        const char *key;
        int64_t *to;
    } const rows[] = {
        {"iteration_ns", &plan->iteration_ns},
        {"model_ns", &plan->model_ns},
        {"bound_ns", &plan->bound_ns},
        {"resource_bound_ns", &plan->resource_bound_ns},
        {"compute_ns", &plan->compute_ns},
        {"h2d_ns", &plan->h2d_ns},
        {"d2h_ns", &plan->d2h_ns},
        {"update_ns", &plan->update_ns},
        {"peak_bytes", &plan->peak_bytes},
        {"live_bytes", &plan->live_bytes},
        {"host_bytes", &plan->host_bytes},
    };
    enum { N = sizeof rows / sizeof rows[0] };
    const char *keys[N + 2] = {"milp_ns"};
    for (int i = 0; i < N; i++)
        keys[i + 1] = rows[i].key;
    YamlNode *map, *milp;
    TRY(yaml_get(d, top, "results", YAML_MAP, &map));
    TRY(yaml_only_keys(d, map, keys));
    for (int i = 0; i < N; i++)
        TRY(yaml_get_int(d, map, rows[i].key, 0, MOST, rows[i].to));
    TRY(yaml_get(d, map, "milp_ns", YAML_SCALAR, &milp));
    plan->milp_ns = -1;
    return is_null(milp) ? ST_OK : yaml_get_int(d, map, "milp_ns", 0, MOST, &plan->milp_ns);
}

/* One of two words. */
static Status read_word(Diag *d, const YamlNode *map, const char *key, const char *no, const char *yes, bool *out)
{
    YamlNode *n;
    TRY(yaml_get(d, map, key, YAML_SCALAR, &n));
    *out = strcmp(n->text, yes) == 0;
    if (!*out && strcmp(n->text, no) != 0)
        return yaml_error(d, n, "%s is %s or %s, not '%s'", key, no, yes, n->text);
    return ST_OK;
}

/* "LAYER/fp", "LAYER/rp", "LAYER/bp" or never -> index of the use. */
static Status read_served_from(Diag *d, const Graph *g, const Unit *u, const YamlNode *map, int *out)
{
    YamlNode *n;
    TRY(yaml_get(d, map, "served_from", YAML_SCALAR, &n));
    *out = u->n_use;
    if (strcmp(n->text, "never") == 0 && !n->quoted)
        return ST_OK;
    const char *slash = strrchr(n->text, '/');
    for (int k = 0; slash && k < u->n_use; k++) {
        const char *name = g->layer[u->use[k].layer].name;
        const char *phase = phase_name(u->use[k].phase);
        if (strlen(name) == (size_t)(slash - n->text) && strncmp(name, n->text, strlen(name)) == 0 &&
            strcmp(slash + 1, phase) == 0) {
            *out = k;
            return ST_OK;
        }
    }
    yaml_error(d, n, "unit '%s' has no use '%s'", u->name, n->text);
    return diag_hint(d, "write LAYER/fp, LAYER/bp or, where it is computed again, LAYER/rp of a layer that reads the unit, or never");
}

static Status read_unit(Diag *d, const Graph *g, const YamlNode *map, Plan *plan, bool *seen)
{
    static const char *const keys[] = {"name", "mode", "served_from", "gradient", "update", NULL};
    const char *name;
    YamlNode *mode;
    if (map->kind != YAML_MAP)
        return yaml_error(d, map, "a unit is a map with name, mode, served_from, gradient and update");
    TRY(yaml_only_keys(d, map, keys));
    TRY(yaml_get_text(d, map, "name", &name));
    int i = 0;
    while (i < g->n_unit && strcmp(g->unit[i].name, name) != 0)
        i++;
    if (i == g->n_unit)
        return yaml_error(d, map, "the model has no unit '%s'", name);
    if (seen[i])
        return yaml_error(d, map, "unit '%s' occurs twice", name);
    seen[i] = true;
    const Unit *u = &g->unit[i];
    UnitPlan *c = &plan->unit[i];
    bool host;
    TRY(read_served_from(d, g, u, map, &c->first_gpu_use));
    TRY(yaml_get(d, map, "mode", YAML_SCALAR, &mode));
    int m = 0;
    while (m < MODE_COUNT && strcmp(mode_name((Mode)m), mode->text) != 0)
        m++;
    if (m == MODE_COUNT)
        return yaml_error(d, mode, "mode is gfgb, dha, dfgb, reload or resident, not '%s'", mode->text);
    c->hold = m == MODE_RELOAD ? HOLD_RELOAD : m == MODE_RESIDENT ? HOLD_RESIDENT : HOLD_STEP;
    if ((Mode)m != plan_mode(u, c))
        return yaml_error(d, mode, "unit '%s' has mode %s, but what serves it makes it %s", name, mode->text,
                          mode_name(plan_mode(u, c)));
    TRY(read_word(d, map, "gradient", "gpu", "host", &host));
    c->grad = host ? ON_HOST : ON_GPU;
    TRY(read_word(d, map, "update", "early", "late", &c->late));
    const char *fault = plan_unit_fault(u, c);
    return fault ? yaml_error(d, mode, "unit '%s' cannot have mode %s: %s", name, mode->text, fault) : ST_OK;
}

static Status read_units(Diag *d, Arena *a, const Graph *g, const YamlNode *top, Plan *plan)
{
    YamlNode *list;
    TRY(yaml_get(d, top, "units", YAML_LIST, &list));
    plan->n_unit = g->n_unit;
    plan->unit = ARENA_NEW(a, UnitPlan, g->n_unit);
    bool *seen = ARENA_NEW(a, bool, g->n_unit);
    if (!plan->unit || !seen)
        return diag_oom(d);
    for (int i = 0; i < list->count; i++)
        TRY(read_unit(d, g, list->item[i], plan, seen));
    for (int i = 0; i < g->n_unit; i++)
        if (!seen[i])
            return yaml_error(d, list, "unit '%s' is missing", g->unit[i].name);
    return ST_OK;
}

static Status read_place(Diag *d, Arena *a, const char *buffer, const YamlNode *list, Place *out)
{
    if (list->kind != YAML_LIST || list->count < 1)
        return yaml_error(d, list, "buffer '%s': a list of [offset, bytes] is needed", buffer);
    out->buffer = buffer;
    out->n_piece = list->count;
    out->piece = ARENA_NEW(a, Piece, list->count);
    if (!out->piece)
        return diag_oom(d);
    for (int k = 0; k < list->count; k++) {
        const YamlNode *pair = list->item[k];
        if (pair->kind != YAML_LIST || pair->count != 2)
            return yaml_error(d, pair, "buffer '%s': a piece is [offset, bytes]", buffer);
        TRY(yaml_as_int(d, pair->item[0], 0, MOST, &out->piece[k].offset_bytes));
        TRY(yaml_as_int(d, pair->item[1], 0, MOST, &out->piece[k].bytes));
    }
    return ST_OK;
}

/* The places come in any order; the layout has them in the order of the plan's device buffers. */
static Status read_layout(Diag *d, Arena *a, const Graph *g, const YamlNode *top, Plan *plan)
{
    static const char *const keys[] = {"chunk_bytes", "reserved_bytes", "buffers", NULL};
    YamlNode *map, *buffers;
    Layout *lay = &plan->layout;
    TRY(yaml_get(d, top, "layout", YAML_MAP, &map));
    TRY(yaml_only_keys(d, map, keys));
    TRY(yaml_get_int(d, map, "chunk_bytes", 1, (int64_t)1 << 40, &lay->chunk_bytes));
    TRY(yaml_get_int(d, map, "reserved_bytes", 0, MOST, &lay->reserved_bytes));
    TRY(yaml_get(d, map, "buffers", YAML_MAP, &buffers));

    StepList *s;
    TRY(steps_build(d, a, g, plan, &s));
    lay->place = ARENA_NEW(a, Place, s->n_buffer);
    bool *used = ARENA_NEW(a, bool, buffers->count);
    if (!lay->place || !used)
        return diag_oom(d);
    int next = 0; /* a file that nobody edited has them in order */
    for (int i = 0; i < s->n_buffer; i++) {
        if (s->buffer[i].pool != POOL_DEVICE)
            continue;
        int at = -1;
        for (int k = 0; k < buffers->count && at < 0; k++) {
            int j = (next + k) % buffers->count;
            if (!used[j] && strcmp(buffers->key[j], s->buffer[i].name) == 0)
                at = j;
        }
        if (at < 0)
            return yaml_error(d, buffers, "buffer '%s' has no place", s->buffer[i].name);
        used[at] = true;
        next = at + 1;
        TRY(read_place(d, a, s->buffer[i].name, buffers->item[at], &lay->place[lay->n_place++]));
    }
    for (int j = 0; j < buffers->count; j++)
        if (!used[j])
            return yaml_error(d, buffers->item[j], "the plan has no buffer '%s'", buffers->key[j]);
    return ST_OK;
}

/* Names of tensors; whether the model has them is for graph_recompute to say. No key: nothing is computed again. */
static Status read_recompute(Diag *d, Arena *a, const YamlNode *top, Plan *plan)
{
    YamlNode *list;
    if (!yaml_find(top, "recompute"))
        return ST_OK;
    TRY(yaml_get(d, top, "recompute", YAML_LIST, &list));
    plan->recompute = ARENA_NEW(a, const char *, list->count);
    if (!plan->recompute)
        return diag_oom(d);
    for (int i = 0; i < list->count; i++) {
        if (list->item[i]->kind != YAML_SCALAR)
            return yaml_error(d, list->item[i], "recompute is a list of tensors, each the end of a segment");
        plan->recompute[plan->n_recompute++] = list->item[i]->text;
    }
    return ST_OK;
}

/* fills: plan->graph, the model's with what the plan computes again */
static Status read_graph(Diag *d, Arena *a, const YamlNode *top, const Graph *g, Plan *plan)
{
    const YamlNode *list = yaml_find(top, "recompute");
    int before = -1;
    for (int i = 0; i < plan->n_recompute; i++) {
        const char *name = plan->recompute[i];
        int end = graph_end_node(g, name);
        if (end < 0)
            return yaml_error(d, list->item[i], "the model's forward pass computes no tensor '%s'", name);
        if (end <= before)
            return yaml_error(d, list->item[i], "the segment that ends with '%s' does not follow the one before it", name);
        before = end;
    }
    plan->graph = g;
    return plan->n_recompute == 0 ? ST_OK : graph_recompute(d, a, g, plan->n_recompute, plan->recompute, &plan->graph);
}

static Status read_head(Diag *d, Arena *a, const YamlNode *top, Plan *plan)
{
    static const char *const keys[] = {"schema",    "tool",  "profile", "algorithm", "options", "results",
                                       "recompute", "units", "layout",  NULL};
    static const char *const profile_keys[] = {"path", "hash", NULL};
    if (top->kind != YAML_MAP)
        return yaml_error(d, top, "a plan is a map with schema: %s", SCHEMA);
    const char *schema, *tool, *hash;
    YamlNode *profile;
    TRY(yaml_get_text(d, top, "schema", &schema));
    if (strcmp(schema, SCHEMA) != 0)
        return yaml_error(d, yaml_find(top, "schema"), "schema is '%s', this program reads %s", schema, SCHEMA);
    TRY(yaml_only_keys(d, top, keys));
    TRY(yaml_get_text(d, top, "tool", &tool));
    TRY(yaml_get(d, top, "profile", YAML_MAP, &profile));
    TRY(yaml_only_keys(d, profile, profile_keys));
    TRY(yaml_get_text(d, profile, "path", &plan->profile_path));
    TRY(yaml_get_text(d, profile, "hash", &hash));
    if (strlen(hash) != 32 || strspn(hash, "0123456789abcdef") != 32)
        return yaml_error(d, yaml_find(profile, "hash"), "hash is 32 hexadecimal digits, not '%s'", hash);
    memcpy(plan->profile_hash, hash, sizeof plan->profile_hash);
    TRY(yaml_get_text(d, top, "algorithm", &plan->algorithm));
    if (!algorithm_find(plan->algorithm))
        return yaml_error(d, yaml_find(top, "algorithm"), "unknown algorithm '%s'", plan->algorithm);
    TRY(read_options(d, top, plan));
    TRY(read_recompute(d, a, top, plan));
    return read_results(d, top, plan);
}

Status plan_yaml_head(Diag *d, Arena *a, const char *path, YamlNode **top, Plan **out)
{
    *out = NULL;
    TRY(yaml_read(d, a, path, top));
    Plan *plan = ARENA_NEW(a, Plan, 1);
    if (!plan)
        return diag_oom(d);
    plan->path = arena_strdup(a, path);
    TRY(hash_file(d, path, plan->hash));
    TRY(read_head(d, a, *top, plan));
    const char *dir = path_dir(a, path);
    plan->profile_path = dir ? path_join(a, dir, plan->profile_path) : NULL;
    if (!plan->path || !plan->profile_path)
        return diag_oom(d);
    *out = plan;
    return ST_OK;
}

Status plan_yaml_body(Diag *d, Arena *a, const YamlNode *top, const Graph *g, const Profile *p, bool force, Plan *plan)
{
    if (!force && strcmp(plan->profile_hash, p->hash) != 0) {
        YamlNode *profile = yaml_find(top, "profile");
        yaml_error(d, profile ? yaml_find(profile, "hash") : top,
                   "plan.yaml was made from another profile (hash %s, %s has %s)", plan->profile_hash,
                   p->path ? p->path : "the profile", p->hash);
        return diag_hint(d, "make the plan again with ferryc plan, or use --force");
    }
    TRY(read_graph(d, a, top, g, plan));
    TRY(read_units(d, a, plan->graph, top, plan));
    return read_layout(d, a, plan->graph, top, plan);
}

Status plan_read(Diag *d, Arena *a, const char *path, bool force, const char *dump_after, Plan **out, Profile **profile,
                 Model **model, Graph **graph)
{
    *out = NULL;
    *profile = NULL;
    *model = NULL;
    *graph = NULL;
    YamlNode *top;
    Plan *plan;
    TRY(plan_yaml_head(d, a, path, &top, &plan));
    TRY(profile_load(d, a, plan->profile_path, force, dump_after, profile, model, graph));
    Status st = plan_yaml_body(d, a, top, *graph, *profile, force, plan);
    if (st == ST_OK)
        st = graph_check(d, plan->graph);
    if (st != ST_OK) {
        graph_close(*graph);
        model_close(*model);
        *graph = NULL;
        *model = NULL;
        *profile = NULL;
        return st;
    }
    *graph = (Graph *)plan->graph;
    *out = plan;
    return ST_OK;
}
