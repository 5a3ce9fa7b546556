/* plan_view.c - a plan's choices by name, from its file alone or from a plan in memory.
 *
 * needs: plan.yaml, or a plan with its graph   fills: PlanView   keeps: the plan */
#include "planner/plan_search.h"
#include "report/report.h"

#include <string.h>

const char *choice_name(Choice c)
{
    static const char *const name[CHOICE_COUNT] = {"mode", "served_from", "gradient", "update"};
    return name[c];
}

static Status check_word(Diag *d, const YamlNode *unit, const char *key, const char *word, const char *const *allowed)
{
    for (int i = 0; allowed[i]; i++)
        if (strcmp(allowed[i], word) == 0)
            return ST_OK;
    return yaml_error(d, yaml_find(unit, key), "%s is not '%s'", key, word);
}

static Status read_unit(Diag *d, const YamlNode *map, UnitView *out)
{
    static const char *const keys[] = {"name", "mode", "served_from", "gradient", "update", NULL};
    static const char *const modes[] = {"gfgb", "dha", "dfgb", "reload", "resident", NULL};
    static const char *const grads[] = {"gpu", "host", NULL};
    static const char *const updates[] = {"early", "late", NULL};
    if (map->kind != YAML_MAP)
        return yaml_error(d, map, "a unit is a map with name, mode, served_from, gradient and update");
    TRY(yaml_only_keys(d, map, keys));
    TRY(yaml_get_text(d, map, "name", &out->name));
    for (int c = 0; c < CHOICE_COUNT; c++) {
        YamlNode *n;
        TRY(yaml_get(d, map, choice_name((Choice)c), YAML_SCALAR, &n));
        out->choice[c] = n->text;
    }
    TRY(check_word(d, map, "mode", out->choice[CHOICE_MODE], modes));
    TRY(check_word(d, map, "gradient", out->choice[CHOICE_GRADIENT], grads));
    return check_word(d, map, "update", out->choice[CHOICE_UPDATE], updates);
}

Status plan_view_read(Diag *d, Arena *a, const char *path, PlanView **out)
{
    *out = NULL;
    YamlNode *top, *list;
    Plan *plan;
    TRY(plan_yaml_head(d, a, path, &top, &plan));
    TRY(yaml_get(d, top, "units", YAML_LIST, &list));
    PlanView *v = ARENA_NEW(a, PlanView, 1);
    UnitView *unit = ARENA_NEW(a, UnitView, list->count);
    if (!v || !unit)
        return diag_oom(d);
    for (int i = 0; i < list->count; i++) {
        TRY(read_unit(d, list->item[i], &unit[i]));
        for (int k = 0; k < i; k++)
            if (strcmp(unit[k].name, unit[i].name) == 0)
                return yaml_error(d, list->item[i], "unit '%s' occurs twice", unit[i].name);
    }
    *v = (PlanView){plan->path, plan, list->count, unit};
    *out = v;
    return ST_OK;
}

Status plan_view_of(Diag *d, Arena *a, const Graph *g, const Plan *plan, PlanView **out)
{
    *out = NULL;
    PlanView *v = ARENA_NEW(a, PlanView, 1);
    UnitView *unit = ARENA_NEW(a, UnitView, g->n_unit);
    if (!v || !unit)
        return diag_oom(d);
    for (int i = 0; i < g->n_unit; i++) {
        const Unit *u = &g->unit[i];
        const UnitPlan *c = &plan->unit[i];
        const char *from = "never";
        if (c->first_gpu_use < u->n_use) {
            const Use *use = &u->use[c->first_gpu_use];
            from = arena_printf(a, "%s/%s", g->layer[use->layer].name, phase_name(use->phase));
        }
        if (!from)
            return diag_oom(d);
        unit[i] = (UnitView){u->name,
                             {[CHOICE_MODE] = mode_name(plan_mode(u, c)),
                              [CHOICE_SERVED_FROM] = from,
                              [CHOICE_GRADIENT] = c->grad == ON_GPU ? "gpu" : "host",
                              [CHOICE_UPDATE] = c->late ? "late" : "early"}};
    }
    *v = (PlanView){plan->path, plan, g->n_unit, unit};
    *out = v;
    return ST_OK;
}

Status plan_restate(Diag *d, const StepList *s, const Profile *p, Plan *plan)
{
    Arena *scratch = arena_open();
    if (!scratch)
        return diag_oom(d);
    Timeline with, without;
    Layout layout;
    int64_t live = 0;
    Status st = simulate(d, scratch, s, &p->device, true, &with);
    if (st == ST_OK)
        st = simulate(d, scratch, s, &p->device, false, &without);
    if (st == ST_OK)
        st = memory_plan(d, scratch, s, &p->device, &layout, &live);
    if (st == ST_OK) {
        const char *path = plan->path ? plan->path : "the plan";
        char said[32], is[32];
        if (with.period_ns != plan->iteration_ns)
            diag_warn(d, "%s says %s a step, its choices take %s: the file was edited", path,
                      time_print(said, plan->iteration_ns), time_print(is, with.period_ns));
        int64_t peak = memory_peak_bytes(&plan->layout, &p->device);
        if (peak != plan->peak_bytes)
            diag_warn(d, "%s says a peak of %s, its layout and the kernels' scratch are %s: the file was edited", path,
                      size_print(said, plan->peak_bytes), size_print(is, peak));
        plan->iteration_ns = with.period_ns;
        plan->compute_ns = without.busy_ns[STREAM_COMPUTE];
        plan->h2d_ns = without.busy_ns[STREAM_LOAD];
        plan->d2h_ns = without.busy_ns[STREAM_STORE];
        plan->update_ns = without.busy_ns[STREAM_UPDATE];
        int64_t busy[] = {plan->compute_ns, plan->h2d_ns, plan->d2h_ns, plan->update_ns};
        plan->resource_bound_ns = 0;
        for (int i = 0; i < 4; i++)
            plan->resource_bound_ns = busy[i] > plan->resource_bound_ns ? busy[i] : plan->resource_bound_ns;
        plan->peak_bytes = peak;
        plan->live_bytes = live;
        plan->host_bytes = memory_host_bytes(s);
    }
    arena_close(scratch);
    return st;
}
