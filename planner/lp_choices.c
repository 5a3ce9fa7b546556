/* lp_choices.c - who chooses what in the linear model: groups of units, their choices, and the times of slots under each.
 *
 * needs: graph, profile, domain and scan of the model   fills: groups, columns, slot_group, slot_ns   keeps: the rest
 *
 * Units that share a layer choose together, because that layer's time depends on all of their places at once. Kernels'
 * times are learned from lists of steps that steps_time has timed: in the n-th list every group takes its n-th place.
 */
#include "planner/lp_model.h"

#include <string.h>

#include "planner/steps.h"

enum { MAX_CHOICES = 512 }; /* of a group; beyond, its units choose alone and what they share takes no time */

typedef struct Build {
    Diag *d;
    Arena *a;
    const Graph *g;
    const Profile *p;
    LpModel *m;
} Build;

/* ---- groups
 * -------------------------------------------------------------------------------------------------------------- */

static int root(int *parent, int u)
{
    while (parent[u] != u)
        u = parent[u] = parent[parent[u]];
    return u;
}

/* Does the domain know the unit on the GPU? */
static bool may_reside(const LpModel *m, int unit)
{
    const Pin *pin = m->domain.pinned ? &m->domain.pinned[unit] : NULL;
    if (!plan_can_reside(m->graph, m->profile, unit))
        return false;
    return pin && pin->set ? pin->hold == HOLD_RESIDENT : !m->domain.leave_gpu;
}

/* The choices of one unit in this domain. */
static int unit_choices(const LpModel *m, int unit, UnitPlan *out)
{
    const Unit *u = &m->graph->unit[unit];
    bool grads = u->grad_bytes > 0 && !m->domain.modes_only;
    const Pin *pin = m->domain.pinned && m->domain.pinned[unit].set ? &m->domain.pinned[unit] : NULL;
    int n = 0;
    for (int h = HOLD_STEP; h <= HOLD_RESIDENT; h++)
        for (int k = 0; k <= u->n_use; k++) {
            UnitPlan c = {.first_gpu_use = k, .hold = (Hold)h};
            if (plan_unit_fault(u, &c) || (pin && (pin->first_gpu_use != k || pin->hold != c.hold)) ||
                (h == HOLD_RESIDENT && !may_reside(m, unit)))
                continue;
            bool free = grads && h != HOLD_RESIDENT;
            for (int w = ON_GPU; w <= (free ? ON_HOST : ON_GPU); w++)
                for (int late = 0; late <= (free ? 1 : 0); late++) {
                    c.grad = (Where)w;
                    c.late = late != 0;
                    if (out)
                        out[n] = c;
                    n++;
                }
        }
    return n;
}

static Status make_groups(Build *b)
{
    LpModel *m = b->m;
    const Graph *g = b->g;
    int *parent = ARENA_NEW(b->a, int, g->n_unit), *size = ARENA_NEW(b->a, int, g->n_unit);
    m->group_of_unit = ARENA_NEW(b->a, int, g->n_unit);
    m->place_in_group = ARENA_NEW(b->a, int, g->n_unit);
    m->group = ARENA_NEW(b->a, LpGroup, g->n_unit);
    m->first_column = ARENA_NEW(b->a, int, g->n_unit + 1);
    if (!parent || !size || !m->group_of_unit || !m->place_in_group || !m->group || !m->first_column)
        return diag_oom(b->d);
    for (int u = 0; u < g->n_unit; u++) {
        parent[u] = u;
        size[u] = 1;
    }
    for (int l = 0; l < g->n_layer; l++)
        for (int i = 1; i < g->layer[l].n_unit; i++)
            parent[root(parent, g->layer[l].unit[i])] = root(parent, g->layer[l].unit[0]);
    for (int u = 0; u < g->n_unit; u++) {
        int r = root(parent, u), n = unit_choices(m, u, NULL);
        size[r] = size[r] > MAX_CHOICES / n ? MAX_CHOICES + 1 : size[r] * n;
    }
    m->exact = true;
    for (int u = 0; u < g->n_unit; u++) {
        int r = root(parent, u);
        if (size[r] > MAX_CHOICES || r == u)
            m->group_of_unit[u] = m->n_group++;
    }
    for (int u = 0; u < g->n_unit; u++) {
        int r = root(parent, u);
        if (size[r] <= MAX_CHOICES)
            m->group_of_unit[u] = m->group_of_unit[r];
        m->place_in_group[u] = m->group[m->group_of_unit[u]].n_unit++;
    }
    for (int i = 0; i < m->n_group; i++) {
        LpGroup *group = &m->group[i];
        group->unit = ARENA_NEW(b->a, int, group->n_unit);
        if (!group->unit)
            return diag_oom(b->d);
        group->n_unit = 0;
    }
    for (int u = 0; u < g->n_unit; u++) {
        LpGroup *group = &m->group[m->group_of_unit[u]];
        group->unit[group->n_unit++] = u;
    }
    /* All combinations. */
    for (int i = 0; i < m->n_group; i++) {
        LpGroup *group = &m->group[i];
        group->n_choice = 1;
        for (int k = 0; k < group->n_unit; k++)
            group->n_choice *= unit_choices(m, group->unit[k], NULL);
        group->choice = ARENA_NEW(b->a, UnitPlan, (size_t)group->n_choice * (size_t)group->n_unit);
        UnitPlan *own = ARENA_NEW(b->a, UnitPlan, group->n_choice);
        if (!group->choice || !own)
            return diag_oom(b->d);
        int repeat = 1;
        for (int k = 0; k < group->n_unit; k++) {
            int n = unit_choices(m, group->unit[k], own);
            for (int c = 0; c < group->n_choice; c++)
                group->choice[(size_t)c * (size_t)group->n_unit + (size_t)k] = own[c / repeat % n];
            repeat *= n;
        }
        m->first_column[i + 1] = m->first_column[i] + group->n_choice;
    }
    return ST_OK;
}

/* ---- the times of slots
 * -------------------------------------------------------------------------------------------------------- */

static bool same_places(const UnitPlan *x, const UnitPlan *y, int n)
{
    for (int i = 0; i < n; i++)
        if (x[i].first_gpu_use != y[i].first_gpu_use || x[i].grad != y[i].grad)
            return false;
    return true;
}

/* One list of steps in which every group takes the representative[probe]-th of its choices. */
static Status probe(Build *b, Arena *scratch, int probe_index, int *const *representative, const int *n_representative)
{
    LpModel *m = b->m;
    Plan plan = {.n_unit = b->g->n_unit, .clip = m->domain.clip, .reserve_factor = -1};
    plan.unit = ARENA_NEW(scratch, UnitPlan, plan.n_unit);
    if (!plan.unit)
        return diag_oom(b->d);
    int *choice = ARENA_NEW(scratch, int, m->n_group);
    if (!choice)
        return diag_oom(b->d);
    for (int g = 0; g < m->n_group; g++)
        choice[g] = representative[g][probe_index < n_representative[g] ? probe_index : 0];
    lp_plan_of_choices(m, choice, plan.unit);
    StepList *s;
    TRY(steps_build(b->d, scratch, b->g, &plan, &s));
    TRY(steps_time(b->d, s, b->p));
    for (int i = 0; i < s->n_step; i++) {
        const Step *step = &s->step[i];
        if (step->kind != STEP_KERNEL)
            continue;
        int slot = m->scan.kernel_slot[step->node], g = m->slot_group[slot];
        if (g < 0) {
            if (m->slot_ns[slot][0] != INT64_MIN)
                m->slot_ns[slot][0] = step->duration_ns;
            continue;
        }
        const LpGroup *group = &m->group[g];
        size_t n = (size_t)group->n_unit;
        if (probe_index < n_representative[g])
            for (int c = 0; c < group->n_choice; c++)
                if (same_places(&group->choice[(size_t)c * n], &group->choice[(size_t)choice[g] * n], group->n_unit))
                    m->slot_ns[slot][c] = step->duration_ns;
    }
    return ST_OK;
}

/* Who decides how long a slot takes; and for all but kernels, how long that is. */
static Status make_slot(Build *b, int index)
{
    LpModel *m = b->m;
    const LpSlot *slot = &m->scan.slot[index];
    if (slot->work != LP_WORK_KERNEL) {
        const UnitProfile *p = &b->p->unit[slot->unit];
        int g = m->slot_group[index] = m->group_of_unit[slot->unit];
        int64_t ns = slot->work == LP_WORK_CPU        ? p->norm.median_ns + p->update.median_ns
                     : slot->work == LP_WORK_GPU_NORM ? p->resident_norm.median_ns
                                                      : p->resident_update.median_ns;
        LpWhen resident = {slot->unit, 0, 0, -1, -1, 1u << HOLD_RESIDENT};
        m->slot_ns[index] = ARENA_NEW(b->a, int64_t, m->group[g].n_choice);
        if (!m->slot_ns[index])
            return diag_oom(b->d);
        for (int c = 0; c < m->group[g].n_choice; c++)
            m->slot_ns[index][c] = lp_holds(m, &resident, c) == (slot->work != LP_WORK_CPU) ? ns : 0;
        return ST_OK;
    }
    int segment = b->g->node.at[slot->node].segment;
    const Layer *l = segment % 2 == 1 ? &b->g->layer[segment / 2] : NULL;
    int group = l && l->n_unit > 0 ? m->group_of_unit[l->unit[0]] : -1;
    bool shared = false;
    for (int k = 1; l && k < l->n_unit; k++)
        shared = shared || m->group_of_unit[l->unit[k]] != group;
    m->slot_group[index] = shared ? -1 : group;
    m->slot_ns[index] = ARENA_NEW(b->a, int64_t, group < 0 || shared ? 1 : m->group[group].n_choice);
    if (!m->slot_ns[index])
        return diag_oom(b->d);
    m->exact = m->exact && !shared;
    if (shared)
        m->slot_ns[index][0] = INT64_MIN; /* stays unknown */
    return ST_OK;
}

static Status time_slots(Build *b)
{
    LpModel *m = b->m;
    int n = m->scan.n_slot, probes = 0;
    m->slot_group = ARENA_NEW(b->a, int, n);
    m->slot_ns = ARENA_NEW(b->a, int64_t *, n);
    int **representative = ARENA_NEW(b->a, int *, m->n_group), *count = ARENA_NEW(b->a, int, m->n_group);
    if (!m->slot_group || !m->slot_ns || !representative || !count)
        return diag_oom(b->d);
    for (int i = 0; i < n; i++)
        TRY(make_slot(b, i));
    for (int i = 0; i < m->n_group; i++) {
        const LpGroup *group = &m->group[i];
        size_t units = (size_t)group->n_unit;
        representative[i] = ARENA_NEW(b->a, int, group->n_choice);
        if (!representative[i])
            return diag_oom(b->d);
        for (int c = 0; c < group->n_choice; c++) {
            bool known = false;
            for (int k = 0; k < count[i] && !known; k++)
                known = same_places(&group->choice[(size_t)c * units],
                                    &group->choice[(size_t)representative[i][k] * units], group->n_unit);
            if (!known)
                representative[i][count[i]++] = c;
        }
        probes = count[i] > probes ? count[i] : probes;
    }
    for (int i = 0; i < probes; i++) {
        Arena *scratch = arena_open();
        if (!scratch)
            return diag_oom(b->d);
        Status st = probe(b, scratch, i, representative, count);
        arena_close(scratch);
        TRY(st);
    }
    for (int i = 0; i < n; i++)
        if (m->slot_ns[i][0] == INT64_MIN)
            m->slot_ns[i][0] = 0;
    return ST_OK;
}

Status lp_choices_make(Diag *d, Arena *a, LpModel *m)
{
    Build b = {.d = d, .a = a, .g = m->graph, .p = m->profile, .m = m};
    TRY(make_groups(&b));
    return time_slots(&b);
}

/* ---- choices
 * ----------------------------------------------------------------------------------------------------------------- */

bool lp_holds(const LpModel *m, const LpWhen *w, int c)
{
    if (w->unit < 0)
        return true;
    const LpGroup *group = &m->group[m->group_of_unit[w->unit]];
    const UnitPlan *u = &group->choice[(size_t)c * (size_t)group->n_unit + (size_t)m->place_in_group[w->unit]];
    return u->first_gpu_use >= w->low && u->first_gpu_use <= w->high && (w->grad < 0 || w->grad == (int)u->grad) &&
           (w->late < 0 || (w->late != 0) == u->late) && (w->holds == 0 || (w->holds >> u->hold & 1));
}

Status lp_choices_of_plan(Diag *d, const LpModel *m, const UnitPlan *unit, int *choice)
{
    for (int i = 0; i < m->n_group; i++) {
        const LpGroup *group = &m->group[i];
        choice[i] = -1;
        for (int c = 0; c < group->n_choice && choice[i] < 0; c++) {
            bool same = true;
            for (int k = 0; k < group->n_unit; k++) {
                const UnitPlan *x = &unit[group->unit[k]],
                               *y = &group->choice[(size_t)c * (size_t)group->n_unit + (size_t)k];
                bool trains = m->graph->unit[group->unit[k]].grad_bytes > 0;
                same = same && x->first_gpu_use == y->first_gpu_use && x->hold == y->hold &&
                       (!trains || (x->grad == y->grad && x->late == y->late));
            }
            if (same)
                choice[i] = c;
        }
        if (choice[i] < 0)
            return diag_fail(d, ST_FAILED, "unit %s: its choice is not one of those compared",
                             m->graph->unit[group->unit[0]].name);
    }
    return ST_OK;
}

void lp_plan_of_choices(const LpModel *m, const int *choice, UnitPlan *unit)
{
    for (int i = 0; i < m->n_group; i++) {
        const LpGroup *group = &m->group[i];
        for (int k = 0; k < group->n_unit; k++)
            unit[group->unit[k]] = group->choice[(size_t)choice[i] * (size_t)group->n_unit + (size_t)k];
    }
}
