/* report_make.c - everything that the page and the trace show, as numbers.
 *
 * needs: a plan with timed steps   fills: Report   keeps: the plan */
#include "planner/plan_search.h"
#include "report/page.h"

#include <string.h>

/* *bound_ns: 0, or proven before; proven then. */
static Status run_algorithm(Diag *d, Arena *a, const Report *r, int64_t *bound_ns, ReportAlgorithm *out)
{
    PlanOptions o = {.algorithm = out->name,
                     .mem_budget_bytes = r->plan->budget_bytes,
                     .host_budget_bytes = r->plan->host_budget_bytes,
                     .reserve_factor = -1,
                     .recompute = RECOMPUTE_AUTO,
                     .clip = r->plan->clip,
                     .bound_ns = *bound_ns};
    Diag own = {.quiet = true};
    Plan *plan;
    Status st = plan_make(&own, a, r->graph, r->profile, &o, &plan);
    if (st == ST_OK) {
        out->plan = plan;
        *bound_ns = plan->bound_ns;
        return ST_OK;
    }
    if (st != ST_NO_FIT) {
        diag_fail(d, st, "%s", own.message);
        return own.hint[0] ? diag_hint(d, "%s", own.hint) : st;
    }
    const char *least = strstr(own.message, "the least ");
    out->why_not = arena_strdup(a, least ? least : own.message);
    return out->why_not ? ST_OK : diag_oom(d);
}

Status report_algorithms(Diag *d, Arena *a, Report *r)
{
    int n;
    int64_t bound_ns = 0;
    const Algorithm *table = algorithm_table(&n);
    r->algorithm = ARENA_NEW(a, ReportAlgorithm, n);
    if (!r->algorithm)
        return diag_oom(d);
    r->n_algorithm = n;
    for (int i = 0; i < n; i++)
        r->algorithm[i] = (ReportAlgorithm){.name = table[i].name, .what = table[i].what};
    /* A bound that one has proven serves all. */
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < n; i++)
            if (table[i].from_optimum == (last == 0))
                TRY(run_algorithm(d, a, r, &bound_ns, &r->algorithm[i]));
    return ST_OK;
}

Status report_make(Diag *d, Arena *a, const Graph *g, const Profile *p, const Plan *plan, const StepList *s,
                   Report **out)
{
    *out = NULL;
    Report *r = ARENA_NEW(a, Report, 1);
    if (!r)
        return diag_oom(d);
    *r = (Report){.graph = g, .profile = p, .plan = plan, .steps = s};
    int64_t *live;
    TRY(simulate(d, a, s, &p->device, true, &r->time));
    TRY(memory_profile(d, a, s, &live));
    /* all copies are parameters; both moments are the optimizer's state */
    for (int i = 0; i < s->n_step; i++) {
        live[BUFFER_PARAM * s->n_step + i] += live[BUFFER_PARAM_BP * s->n_step + i] + live[BUFFER_MASTER * s->n_step + i] +
                                              live[BUFFER_ROUNDED * s->n_step + i];
        live[BUFFER_STATE_M * s->n_step + i] += live[BUFFER_STATE_V * s->n_step + i];
    }
    r->live = live;
    TRY(parts_build(d, a, s, &r->parts));
    *out = r;
    return ST_OK;
}

Window page_window(const Report *r)
{
    const Timeline *t = &r->time;
    Window w = {.wraps = t->cycle == 1 || t->cycle == 2};
    int64_t start = 0, end = 0, kernel = INT64_MAX;
    for (int i = 0; i < r->steps->n_step; i++) {
        start = t->previous_start_ns[i] < start ? t->previous_start_ns[i] : start;
        end = t->end_ns[i] > end ? t->end_ns[i] : end;
        if (r->steps->step[i].stream == STREAM_COMPUTE && t->previous_start_ns[i] < kernel)
            kernel = t->previous_start_ns[i];
    }
    w.zero_ns = w.wraps && kernel != INT64_MAX ? kernel : start;
    w.length_ns = w.wraps ? 2 * t->period_ns : end - start;
    if (w.length_ns < 1)
        w.length_ns = 1;
    return w;
}

bool page_step_times(const Report *r, const Window *w, int iteration, int step, int64_t *start_ns, int64_t *end_ns)
{
    const Timeline *t = &r->time;
    if (!w->wraps && (iteration < 0 || iteration > 1))
        return false;
    /* -1 is iteration 1 a window earlier, 2 is iteration 0 a window later */
    bool second = iteration == 1 || iteration == -1;
    int64_t shift = (iteration < 0 ? -w->length_ns : iteration > 1 ? w->length_ns : 0) - w->zero_ns;
    *start_ns = (second ? t->start_ns : t->previous_start_ns)[step] + shift;
    *end_ns = (second ? t->end_ns : t->previous_end_ns)[step] + shift;
    return true;
}

double page_x(const Window *w, int64_t ns)
{
    return (double)ns * PICTURE_WIDTH / (double)w->length_ns;
}

int page_memory_kinds(const BufferKind **kinds)
{
    static const BufferKind order[] = {BUFFER_CONST, BUFFER_INPUT, BUFFER_PARAM,
                                       BUFFER_GRAD,  BUFFER_VALUE, BUFFER_STATE_M};
    *kinds = order;
    return (int)(sizeof order / sizeof order[0]);
}

const char *page_kind_label(BufferKind k)
{
    switch (k) {
    case BUFFER_CONST:
        return "constants";
    case BUFFER_INPUT:
        return "inputs";
    case BUFFER_PARAM:
        return "parameters";
    case BUFFER_GRAD:
        return "gradients";
    case BUFFER_STATE_M:
        return "optimizer state";
    case BUFFER_VALUE:
        return "activations";
    default:
        return buffer_kind_name(k);
    }
}
