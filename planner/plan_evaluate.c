/* plan_evaluate.c - what a plan's choices come to: steps, timeline, memory. Also the small questions about modes. */
#include "planner/plan_search.h"

#include "planner/steps.h"

const char *mode_name(Mode m)
{
    static const char *const names[] = {[MODE_GFGB] = "gfgb", [MODE_DHA] = "dha", [MODE_DFGB] = "dfgb",
                                        [MODE_RELOAD] = "reload",
                                        [MODE_RESIDENT] = "resident"};
    return m >= 0 && m < MODE_COUNT ? names[m] : "?";
}

Mode plan_mode(const Unit *u, const UnitPlan *p)
{
    if (p->hold == HOLD_RESIDENT)
        return MODE_RESIDENT;
    if (p->first_gpu_use >= u->n_use)
        return MODE_DHA;
    if (p->hold == HOLD_RELOAD)
        return MODE_RELOAD;
    return u->use[p->first_gpu_use].phase == PHASE_FP ? MODE_GFGB : MODE_DFGB;
}

int plan_first_use_of_mode(const Unit *u, Mode m)
{
    if (m == MODE_GFGB || m == MODE_RELOAD || m == MODE_RESIDENT)
        return 0;
    return m == MODE_DFGB ? plan_first_backward_use(u) : u->n_use;
}

int plan_first_backward_use(const Unit *u)
{
    int k = 0;
    while (k < u->n_use && u->use[k].phase == PHASE_FP)
        k++;
    return k;
}

int plan_copy(const Unit *u, const UnitPlan *p, int use)
{
    if (use < p->first_gpu_use || p->hold == HOLD_RESIDENT)
        return 0;
    return p->hold == HOLD_RELOAD && use >= plan_first_backward_use(u) ? 2 : 1;
}

bool plan_set_mode(const Unit *u, Mode m, UnitPlan *p)
{
    UnitPlan to = *p;
    to.first_gpu_use = plan_first_use_of_mode(u, m);
    to.hold = m == MODE_RELOAD ? HOLD_RELOAD : m == MODE_RESIDENT ? HOLD_RESIDENT : HOLD_STEP;
    if (m == MODE_RESIDENT) {
        to.grad = ON_GPU;
        to.late = false;
    }
    bool possible = (m == MODE_DHA || to.first_gpu_use < u->n_use) && !plan_unit_fault(u, &to);
    if (possible)
        *p = to;
    return possible;
}

bool plan_can_reside(const Graph *g, const Profile *p, int unit)
{
    return g->unit[unit].n_use > 0 && p->unit[unit].resident_update.median_ns >= 0;
}

const char *plan_unit_fault(const Unit *u, const UnitPlan *p)
{
    if (p->first_gpu_use < 0 || p->first_gpu_use > u->n_use)
        return "it has no such use";
    if (p->hold == HOLD_RESIDENT && (p->first_gpu_use > 0 || p->grad != ON_GPU || p->late || u->n_use == 0))
        return "what lives on the GPU is never read from the host, its gradient stays there and its update is early";
    int backward = plan_first_backward_use(u);
    if (p->hold == HOLD_RELOAD && (p->first_gpu_use >= backward || backward == u->n_use))
        return "only what both passes read from the GPU can be loaded again";
    return NULL;
}

/* What serves the first backward use serves what is computed again before it, and the other way round. */
UnitPlan plan_adopt(const Unit *from, const Unit *to, UnitPlan c)
{
    int use = c.first_gpu_use, at = to->n_use;
    if (use < from->n_use && use == plan_first_backward_use(from))
        at = plan_first_backward_use(to);
    for (int k = 0; use < from->n_use && at == to->n_use && k < to->n_use; k++)
        if (to->use[k].layer == from->use[use].layer && to->use[k].phase == from->use[use].phase)
            at = k;
    c.first_gpu_use = at;
    if (plan_unit_fault(to, &c)) /* no backward use is left to load it for */
        c.hold = HOLD_STEP;
    return c;
}

double plan_gap_percent(const Plan *p)
{
    return p->bound_ns > 0 ? 100.0 * (double)(p->model_ns - p->bound_ns) / (double)p->bound_ns : 0;
}

/* needs: choices   fills: nothing of the plan; the contention-aware period, and the other one when model_ns is not NULL
 */
Status plan_time(Diag *d, const Graph *g, const Profile *p, const Plan *plan, int64_t *iteration_ns, int64_t *model_ns)
{
    Arena *scratch = arena_open();
    if (!scratch)
        return diag_oom(d);
    StepList *s = NULL;
    Timeline t;
    Status st = steps_build(d, scratch, g, plan, &s);
    if (st == ST_OK)
        st = steps_time(d, s, p);
    if (st == ST_OK && iteration_ns) {
        st = simulate(d, scratch, s, &p->device, true, &t);
        *iteration_ns = t.period_ns;
    }
    if (st == ST_OK && model_ns) {
        st = simulate(d, scratch, s, &p->device, false, &t);
        *model_ns = t.period_ns;
    }
    arena_close(scratch);
    return st;
}

static Status layout_copy(Diag *d, Arena *a, const Layout *from, Layout *to)
{
    *to = *from;
    to->place = ARENA_NEW(a, Place, from->n_place);
    if (!to->place)
        return diag_oom(d);
    for (int i = 0; i < from->n_place; i++) {
        const Place *p = &from->place[i];
        Place *q = &to->place[i];
        q->buffer = arena_strdup(a, p->buffer);
        q->n_piece = p->n_piece;
        q->piece = ARENA_NEW(a, Piece, p->n_piece);
        if (!q->buffer || !q->piece)
            return diag_oom(d);
        for (int k = 0; k < p->n_piece; k++)
            q->piece[k] = p->piece[k];
    }
    return ST_OK;
}

static Status evaluate(Diag *d, Arena *a, Arena *scratch, const Graph *g, const Profile *p, Plan *plan)
{
    StepList *s;
    Timeline with, without;
    Layout layout = {0};
    TRY(steps_build(d, scratch, g, plan, &s));
    TRY(steps_time(d, s, p));
    TRY(simulate(d, scratch, s, &p->device, true, &with));
    TRY(simulate(d, scratch, s, &p->device, false, &without));
    TRY(memory_plan(d, scratch, s, &p->device, &layout, &plan->live_bytes));
    TRY(layout_copy(d, a, &layout, &plan->layout));
    plan->iteration_ns = with.period_ns;
    plan->model_ns = without.period_ns;
    plan->compute_ns = without.busy_ns[STREAM_COMPUTE];
    plan->h2d_ns = without.busy_ns[STREAM_LOAD];
    plan->d2h_ns = without.busy_ns[STREAM_STORE];
    plan->update_ns = without.busy_ns[STREAM_UPDATE];
    plan->resource_bound_ns = plan->compute_ns;
    const int64_t busy[] = {plan->h2d_ns, plan->d2h_ns, plan->update_ns};
    for (int i = 0; i < 3; i++)
        if (busy[i] > plan->resource_bound_ns)
            plan->resource_bound_ns = busy[i];
    plan->peak_bytes = memory_peak_bytes(&layout, &p->device);
    plan->host_bytes = memory_host_bytes(s);
    plan->milp_ns = -1;
    return bound_make(d, g->plain ? g->plain : g, p, plan->clip, &plan->bound_ns);
}

/* needs: choices   fills: results, layout   keeps: choices */
Status plan_evaluate(Diag *d, Arena *a, const Graph *g, const Profile *p, Plan *plan)
{
    Arena *scratch = arena_open();
    if (!scratch)
        return diag_oom(d);
    Status st = evaluate(d, a, scratch, g, p, plan);
    arena_close(scratch);
    return st;
}

/* fills: peak_bytes, live_bytes, host_bytes of the choices, without keeping the layout */
Status plan_size(Diag *d, const Graph *g, const Profile *p, const Plan *plan, int64_t *peak_bytes, int64_t *host_bytes)
{
    Arena *scratch = arena_open();
    if (!scratch)
        return diag_oom(d);
    StepList *s = NULL;
    Layout layout = {0};
    int64_t live;
    Status st = steps_build(d, scratch, g, plan, &s);
    if (st == ST_OK)
        st = memory_plan(d, scratch, s, &p->device, &layout, &live);
    if (st == ST_OK) {
        *peak_bytes = memory_peak_bytes(&layout, &p->device);
        *host_bytes = memory_host_bytes(s);
    }
    arena_close(scratch);
    return st;
}
