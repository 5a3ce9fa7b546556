/* explain.c - why each unit does what it does: what every other choice would cost, by the timeline. */
#include "planner/plan_search.h"

#include <inttypes.h>
#include <string.h>

#include "planner/steps.h"

/* One choice changed. */
typedef struct Change {
    UnitPlan to;
    int64_t model_ns;
    char what[160];
} Change;

static void describe_place(const Graph *g, const Unit *u, const UnitPlan *c, char *buf, size_t size)
{
    int first = c->first_gpu_use;
    if (first >= u->n_use)
        snprintf(buf, size, "dha");
    else
        snprintf(buf, size, "%s from %s/%s", mode_name(plan_mode(u, c)),
                 g->layer[u->use[first].layer].name, phase_name(u->use[first].phase));
}

/* +1.20 ms, -812 ns */
static void signed_time(char *buf, size_t size, int64_t ns)
{
    char t[32];
    time_print(t, ns < 0 ? -ns : ns);
    snprintf(buf, size, "%s%s", ns < 0 ? "-" : "+", t);
}

static void signed_size(char *buf, size_t size, int64_t bytes)
{
    char t[32];
    size_print(t, bytes < 0 ? -bytes : bytes);
    snprintf(buf, size, "%s%s", bytes < 0 ? "-" : "+", t);
}

/* Why this choice: from the times alone, in terms of what it saves and what it spends. */
static void reason(const Problem *pr, const Plan *plan, int unit, Text *to)
{
    char a[32], b[32], s[32];
    const Unit *u = &pr->graph->unit[unit];
    const UnitPlan *c = &plan->unit[unit];
    int64_t load = pr->profile->unit[unit].load.median_ns;
    int64_t all = problem_dha_cost_ns(pr, unit, u->n_use), before = problem_dha_cost_ns(pr, unit, c->first_gpu_use);
    if (c->hold == HOLD_RESIDENT) {
        const UnitProfile *t = &pr->profile->unit[unit];
        text_add(to, "%s of GPU memory and the optimizer's state save a load of %s", size_print(s, u->bytes),
                 time_print(b, load));
        if (u->grad_bytes > 0)
            text_add(to, ", a store of %s and %s of the CPU's update for %s on the GPU", time_print(a, t->store.median_ns),
                     time_print(b, t->norm.median_ns + t->update.median_ns),
                     time_print(s, t->resident_norm.median_ns + t->resident_update.median_ns));
        text_add(to, u->grad_bytes > 0 ? "" : "; frozen");
        return;
    }
    if (c->hold == HOLD_RELOAD)
        text_add(to, "two loads of %s save %s of GPU memory between the passes", time_print(a, load),
                 size_print(s, u->bytes));
    else if (c->first_gpu_use >= u->n_use)
        text_add(to, "DHA adds %s to compute and saves a load of %s and %s", time_print(a, all), time_print(b, load),
                 size_print(s, u->bytes));
    else if (before > 0)
        text_add(to, "DHA adds %s before the load, a load of %s saves %s after it", time_print(a, before),
                 time_print(b, load), time_print(s, all - before));
    else
        text_add(to, "a load of %s saves %s of DHA", time_print(b, load), time_print(a, all));
    if (u->grad_bytes == 0) {
        text_add(to, "; frozen");
        return;
    }
    int64_t gain = problem_grad_gain_ns(pr, unit, c);
    if (c->grad == ON_GPU)
        text_add(to, "; gradient on the GPU saves %s of DHA for a store of %s", time_print(a, gain),
                 time_print(b, pr->profile->unit[unit].store.median_ns));
    else
        text_add(to, "; gradient written to the host costs %s and saves %s", time_print(a, gain),
                 size_print(s, u->grad_bytes));
    text_add(to, "; updated %s", c->late || plan->update_after_bp ? "after the backward pass" : "as gradients arrive");
}

/* The alternatives of a unit that differ in one choice; at most n_use + 5. */
static int alternatives(const Graph *g, const Profile *p, const Plan *plan, int unit, Change *out)
{
    const Unit *u = &g->unit[unit];
    const UnitPlan *c = &plan->unit[unit];
    int n = 0;
    for (int k = 0; k <= u->n_use; k++) {
        if (k == c->first_gpu_use && c->hold == HOLD_STEP)
            continue;
        out[n].to = *c;
        out[n].to.first_gpu_use = k;
        out[n].to.hold = HOLD_STEP;
        describe_place(g, u, &out[n].to, out[n].what, sizeof out[n].what);
        n++;
    }
    out[n].to = *c;
    if (c->hold != HOLD_RELOAD && plan_set_mode(u, MODE_RELOAD, &out[n].to)) {
        describe_place(g, u, &out[n].to, out[n].what, sizeof out[n].what);
        n++;
    }
    out[n].to = *c;
    if (c->hold != HOLD_RESIDENT && plan_can_reside(g, p, unit) && plan_set_mode(u, MODE_RESIDENT, &out[n].to)) {
        snprintf(out[n].what, sizeof out[n].what, "resident");
        n++;
    }
    if (u->grad_bytes == 0 || c->hold == HOLD_RESIDENT) /* where that lives its gradient lives, and its update is there */
        return n;
    out[n].to = *c;
    out[n].to.grad = c->grad == ON_GPU ? ON_HOST : ON_GPU;
    snprintf(out[n].what, sizeof out[n].what, "gradient on the %s", c->grad == ON_GPU ? "host" : "GPU");
    n++;
    out[n].to = *c;
    out[n].to.late = !c->late;
    snprintf(out[n].what, sizeof out[n].what, "update %s", c->late ? "as gradients arrive" : "after the backward pass");
    return n + 1;
}

static Status explain_unit(Diag *d, Arena *a, const Problem *pr, Plan *work, int unit, Text *to)
{
    const Graph *g = pr->graph;
    const Unit *u = &g->unit[unit];
    char place[160], t[40], m[40];
    describe_place(g, u, &work->unit[unit], place, sizeof place);
    text_add(to, "%s: %s, gradient %s, update %s\n    ", u->name, place,
             u->grad_bytes == 0                ? "none"
             : work->unit[unit].grad == ON_GPU ? "gpu"
                                               : "host",
             work->unit[unit].late ? "late" : "early");
    reason(pr, work, unit, to);
    text_add(to, "\n");
    Change *change = ARENA_NEW(a, Change, u->n_use + 5);
    if (!change)
        return diag_oom(d);
    int n = alternatives(g, pr->profile, work, unit, change);
    if (n == 0)
        return ST_OK;
    const UnitPlan was = work->unit[unit];
    int best = 0;
    for (int i = 0; i < n; i++) {
        work->unit[unit] = change[i].to;
        TRY(plan_time(d, g, pr->profile, work, NULL, &change[i].model_ns));
        if (change[i].model_ns < change[best].model_ns)
            best = i;
    }
    int64_t peak, host;
    work->unit[unit] = change[best].to;
    Status st = plan_size(d, g, pr->profile, work, &peak, &host);
    work->unit[unit] = was;
    TRY(st);
    signed_time(t, sizeof t, change[best].model_ns - work->model_ns);
    signed_size(m, sizeof m, peak - work->peak_bytes);
    text_add(to, "    next best: %s, %s, peak %s", change[best].what, t, m);
    for (int i = 0; i < n; i++) {
        if (i == best)
            continue;
        signed_time(t, sizeof t, change[i].model_ns - work->model_ns);
        text_add(to, "; %s %s", change[i].what, t);
    }
    text_add(to, "\n");
    return ST_OK;
}

static void summary(const Plan *p, Text *to)
{
    const struct {
        const char *what;
        int64_t ns;
    } rows[] = {{"compute", p->compute_ns},
                {"loads to the GPU", p->h2d_ns},
                {"stores to the host", p->d2h_ns},
                {"updates on the CPU", p->update_ns}};
    int most = 0;
    for (int i = 1; i < 4; i++)
        if (rows[i].ns > rows[most].ns)
            most = i;
    char a[32], b[32], c[32];
    int64_t idle = p->model_ns - rows[most].ns;
    text_add(to, "A step takes %s without contention, %s with it. Its bottleneck is %s: busy %s of it",
             time_print(a, p->model_ns), time_print(b, p->iteration_ns), rows[most].what, time_print(c, rows[most].ns));
    if (idle > 0)
        text_add(to, "; for %s it waits", time_print(a, idle));
    text_add(to, ".\n");
    for (int i = 0; i < 4; i++)
        text_add(to, "  %-20s %10s  %5.1f%%\n", rows[i].what, time_print(a, rows[i].ns),
                 p->model_ns > 0 ? 100.0 * (double)rows[i].ns / (double)p->model_ns : 0.0);
    text_add(to, "  %-20s %10s  the plan is %.2f%% above it\n", "proven bound", time_print(a, p->bound_ns),
             plan_gap_percent(p));
    if (p->iteration_ns > p->model_ns)
        text_add(to, "  %-20s %10s  streams that share the link and the host's memory\n", "contention",
                 time_print(a, p->iteration_ns - p->model_ns));
    text_add(to, "\n");
}

/* What is computed again, what it costs, and what the plan would be without. */
static Status recomputation(Diag *d, Arena *a, const Graph *g, const Profile *p, const Plan *plan, Text *to)
{
    StepList *s;
    int64_t again = 0, model, peak, host;
    int kernels = 0;
    char t[32], u[32], v[32], w[32];
    if (g->n_again == 0)
        return ST_OK;
    TRY(steps_build(d, a, g, plan, &s));
    TRY(steps_time(d, s, p));
    for (int i = 0; i < s->n_step; i++)
        if (s->step[i].kind == STEP_KERNEL && s->step[i].phase == PHASE_RP) {
            again += s->step[i].duration_ns;
            kernels++;
        }
    Plan without = *plan;
    without.unit = ARENA_NEW(a, UnitPlan, plan->n_unit);
    if (!without.unit)
        return diag_oom(d);
    for (int i = 0; i < plan->n_unit; i++)
        without.unit[i] = plan_adopt(&g->unit[i], &g->plain->unit[i], plan->unit[i]);
    TRY(plan_time(d, g->plain, p, &without, NULL, &model));
    TRY(plan_size(d, g->plain, p, &without, &peak, &host));
    text_add(to,
             "The backward pass computes %d segment%s of the forward pass again, %d kernels, %s of compute; ends:\n",
             g->n_again, g->n_again == 1 ? "" : "s", kernels, time_print(t, again));
    for (int i = 0; i < g->n_again; i++)
        text_add(to, "  %s\n", g->again[i]);
    text_add(to, "If all activations were kept, these choices would take %s a step and %s of GPU memory instead of %s and %s.\n\n",
             time_print(t, model), size_print(u, peak), time_print(v, plan->model_ns), size_print(w, plan->peak_bytes));
    return ST_OK;
}

Status plan_explain(Diag *d, Arena *a, const Graph *g, const Profile *p, const Plan *plan, Text *to)
{
    Problem *pr;
    TRY(problem_make(d, a, g, p, &pr));
    Plan work = *plan;
    work.unit = ARENA_NEW(a, UnitPlan, g->n_unit);
    if (!work.unit)
        return diag_oom(d);
    memcpy(work.unit, plan->unit, (size_t)g->n_unit * sizeof *work.unit);
    TRY(plan_time(d, g, p, plan, NULL, &work.model_ns)); /* of `auto`, the file's is that of another plan */
    summary(&work, to);
    TRY(recomputation(d, a, g, p, &work, to));
    text_add(to,
             "Each unit, its choice, and what a step without contention would take with only this choice changed:\n\n");
    for (int i = 0; i < g->n_unit; i++)
        TRY(explain_unit(d, a, pr, &work, i, to));
    return to->failed ? diag_oom(d) : ST_OK;
}
