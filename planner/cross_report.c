/* cross_report.c - `plan --cross-check`: every algorithm beside the plan, the proven bound and the solver's optimum.
 *
 * needs: a plan made by plan_make   fills: milp_ns, a table   keeps: the rest of the plan */
#include "planner/cross_check.h"

#include <inttypes.h>
#include <string.h>

#include "planner/plan_search.h"

enum { NODES = 500 }; /* of the solver; a node of 40 units takes tens of milliseconds */

static double above(int64_t ns, int64_t base)
{
    return base > 0 ? 100.0 * (double)(ns - base) / (double)base : 0;
}

static void line(Text *to, const char *what, int64_t ns, int64_t bound_ns)
{
    char t[32];
    text_add(to, "%-16s %12" PRId64 " ns  %10s  %+9.4f%% of the bound\n", what, ns, time_print(t, ns),
             above(ns, bound_ns));
}

/* The algorithms of this profile without budgets; *least: the fastest without contention. */
static Status other_algorithms(Diag *d, Arena *a, const Graph *g, const Profile *p, const PlanOptions *options,
                               const Plan *plan, int64_t *least, Text *to)
{
    int n;
    const Algorithm *table = algorithm_table(&n);
    *least = INT64_MAX;
    for (int i = 0; i < n; i++) {
        if (strcmp(table[i].name, "auto") == 0)
            continue;
        PlanOptions o = *options;
        o.algorithm = table[i].name;
        o.reserve_factor = -1;
        o.dump_after = NULL;
        o.mem_budget_bytes = o.host_budget_bytes = INT64_MAX;
        o.n_rule = 0;
        o.bound_ns = plan->bound_ns;
        Plan *other;
        TRY(plan_make(d, a, g, p, &o, &other));
        line(to, table[i].name, other->model_ns, plan->bound_ns);
        *least = other->model_ns < *least ? other->model_ns : *least;
    }
    return ST_OK;
}

static Status below_bound(Diag *d, const CrossResult *r, const Plan *plan)
{
    return diag_fail(d, ST_FAILED,
                     "the cross-check finds a plan of %" PRId64 " ns below the proven bound %" PRId64 " ns", r->milp_ns,
                     plan->bound_ns);
}

Status plan_cross_check(Diag *d, Arena *a, const Graph *g, const Profile *p, const PlanOptions *options, Plan *plan,
                        Text *to)
{
    int64_t least;
    text_add(to, "cross-check: time of a step without contention, without budgets and --mode\n");
    TRY(other_algorithms(d, a, g, p, options, plan, &least, to));
    line(to, "this plan", plan->model_ns, plan->bound_ns);
    line(to, "proven bound", plan->bound_ns, plan->bound_ns);
    if (g->n_unit > CROSS_MAX_UNITS) {
        text_add(to, "%-16s not run: %d units, and the solver's program grows with their square: at most %d\n", "milp",
                 g->n_unit, CROSS_MAX_UNITS);
        return ST_OK;
    }
    CrossOptions o = {.clip = options->clip, .most_ns = least, .nodes = NODES};
    CrossResult r;
    TRY(cross_check(d, a, g, p, &o, &r));
    if (!r.closed) {
        text_add(to, "%-16s no answer: %s\n", "milp", r.why);
        if (r.unit)
            line(to, "milp, so far", r.milp_ns, plan->bound_ns);
        if (r.unit && r.milp_ns < plan->bound_ns)
            return below_bound(d, &r, plan);
        return ST_OK;
    }
    if (!r.unit)
        return diag_fail(d, ST_FAILED, "the cross-check finds no plan as fast as one that exists (%" PRId64 " ns)",
                         least);
    line(to, "milp", r.milp_ns, plan->bound_ns);
    if (r.milp_ns < plan->bound_ns)
        return below_bound(d, &r, plan);
    plan->milp_ns = r.milp_ns;
    return ST_OK;
}
