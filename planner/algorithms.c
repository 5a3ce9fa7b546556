/* algorithms.c - the algorithms of the planner, one row each: the baselines, the papers' algorithms, and the search
 * over all.
 *
 *   native-offload   ZeRO-Offload's order: everything is loaded, gradients come back, updates follow BP
 *   deepspeed-like   the same; a gradient's memory is free once it is copied, and a caching allocator is paid for
 *   dha              nothing is ever loaded, gradients are written to host memory by the kernels
 *   memferry         Alg. 1 and 2 in all readings
 *   go-memferry      the same, and the knapsack says which gradients stay on the GPU
 *   optimal          the least time without contention, proven (optimal.c), and a path down to the least memory
 *   auto             all of these, then improvements and a path down to the least memory */
#include "planner/plan_search.h"

#include <string.h>

enum {
    OFFLOAD_STEPS = 32,       /* go-memferry: limits tried, in parts of all gradient bytes */
    IMPROVE_EVALUATIONS = 400 /* auto: single changes tried from the fastest candidate */
};

static Status native(Search *s)
{
    Plan p;
    Candidate *c;
    TRY(search_blank(s, &p));
    p.update_after_bp = true;
    for (int i = 0; i < p.n_unit; i++)
        p.unit[i].late = true;
    return search_add(s, &p, "native-offload", &c);
}

/* DeepSpeed keeps two buckets in flight: one is filled while the other is copied. The bucket is the largest gradient.
 */
static Status deepspeed_like(Search *s)
{
    Plan p;
    Candidate *c;
    TRY(search_blank(s, &p));
    p.update_after_bp = true;
    for (int i = 0; i < p.n_unit; i++)
        p.unit[i].late = true;
    for (int i = 0; i < s->g->n_param; i++)
        p.n_alloc += s->g->param[i].trainable;
    p.gradient_window_bytes = 2 * largest_grad_bytes(s->g);
    return search_add(s, &p, "deepspeed-like", &c);
}

static Status dha_choices(Search *s, Plan *out)
{
    TRY(search_blank(s, out));
    for (int i = 0; i < out->n_unit; i++) {
        out->unit[i].first_gpu_use = s->g->unit[i].n_use;
        out->unit[i].grad = ON_HOST;
    }
    return ST_OK;
}

static Status dha(Search *s)
{
    Plan p;
    Candidate *c;
    TRY(dha_choices(s, &p));
    TRY(search_late(s, &p, "dha", &c));
    return search_size(s, c);
}

/* ---- memferry
 * ---------------------------------------------------------------------------------------------------------- */

Status memferry_choices(Search *s, FpReading fp, BpReading bp, Plan *out)
{
    TRY(search_blank(s, out));
    MemferryState state;
    TRY(memferry_fp(s->d, s->a, s->problem, fp, &state));
    TRY(memferry_bp(s->d, s->a, s->problem, bp, &state));
    for (int i = 0; i < s->problem->n_item; i++) {
        int u = s->problem->item[i].unit;
        out->unit[u].first_gpu_use = plan_first_use_of_mode(&s->g->unit[u], state.mode[i]);
    }
    return ST_OK;
}

static const char *reading_label(Search *s, FpReading fp, BpReading bp)
{
    const char *label = arena_printf(s->a, "memferry, fp %s, bp %s", fp_reading_name(fp), bp_reading_name(bp));
    return label ? label : "memferry";
}

/* Calls `then` with the best update placement of each pair of readings. */
static Status each_reading(Search *s, Status (*then)(Search *s, Candidate *c))
{
    for (int fp = 0; fp < FP_READING_COUNT; fp++) {
        for (int bp = 0; bp < BP_READING_COUNT; bp++) {
            Plan p;
            Candidate *c;
            TRY(memferry_choices(s, (FpReading)fp, (BpReading)bp, &p));
            TRY(search_late(s, &p, reading_label(s, (FpReading)fp, (BpReading)bp), &c));
            TRY(then(s, c));
        }
    }
    return ST_OK;
}

static Status memferry(Search *s)
{
    return each_reading(s, search_size);
}

/* ---- go-memferry
 * ------------------------------------------------------------------------------------------------------- */

Status offload_choices(Search *s, int64_t limit_bytes, Plan *p)
{
    int n = s->g->n_unit;
    int64_t *bytes = ARENA_NEW(s->a, int64_t, n), *gain = ARENA_NEW(s->a, int64_t, n);
    bool *keep = ARENA_NEW(s->a, bool, n);
    if (!bytes || !gain || !keep)
        return diag_oom(s->d);
    for (int i = 0; i < n; i++) {
        bytes[i] = s->g->unit[i].grad_bytes;
        gain[i] = bytes[i] > 0 ? problem_grad_gain_ns(s->problem, i, &p->unit[i]) : 0;
    }
    TRY(gradient_offload(s->d, n, bytes, gain, limit_bytes, keep));
    for (int i = 0; i < n; i++)
        p->unit[i].grad = keep[i] ? ON_GPU : ON_HOST;
    return ST_OK;
}

/* A part of all gradient bytes, never more than it. */
static int64_t part_of(int64_t bytes, double factor)
{
    int64_t part = (int64_t)((double)bytes * factor);
    return part > bytes ? bytes : part;
}

static Status offload_at(Search *s, Candidate *c, double factor)
{
    Plan p;
    Candidate *with;
    TRY(search_copy(s, &c->plan, &p));
    TRY(offload_choices(s, part_of(all_grad_bytes(s->g), factor), &p));
    return search_add(s, &p, c->from, &with);
}

static Status offload_all_limits(Search *s, Candidate *c)
{
    if (s->o->reserve_factor >= 0)
        return offload_at(s, c, s->o->reserve_factor);
    for (int i = OFFLOAD_STEPS; i >= 0; i--)
        TRY(offload_at(s, c, (double)i / OFFLOAD_STEPS));
    return ST_OK;
}

static Status go_memferry(Search *s)
{
    return each_reading(s, offload_all_limits);
}

/* ---- optimal
 * ------------------------------------------------------------------------------------------------------------ */

/* Everything that may live on the GPU does; the rest as in `from`. */
static Status all_resident(Search *s, const UnitPlan *from, UnitPlan **out)
{
    Plan p;
    TRY(search_blank(s, &p));
    *out = p.unit;
    for (int u = 0; u < p.n_unit; u++) {
        p.unit[u] = from[u];
        if (!s->plain_pinned[u].set && plan_can_reside(s->plain, s->p, u))
            plan_set_mode(&s->plain->unit[u], MODE_RESIDENT, &p.unit[u]);
    }
    return ST_OK;
}

Status search_optimum(Search *s, int64_t *bound_ns)
{
    const UnitPlan *start[FP_READING_COUNT * BP_READING_COUNT];
    int n = 0;
    bool reside = false;
    for (int fp = 0; fp < FP_READING_COUNT; fp++)
        for (int bp = 0; bp < BP_READING_COUNT; bp++) {
            Plan p;
            TRY(memferry_choices(s, (FpReading)fp, (BpReading)bp, &p));
            start[n++] = p.unit;
        }
    LpDomain domain = {.clip = s->o->clip, .leave_gpu = true, .pinned = s->o->n_rule > 0 ? s->plain_pinned : NULL};
    TRY(optimal_solve(s->d, s->a, s->plain, s->p, &domain, n, start, &s->off_gpu));
    s->optimum = s->off_gpu;
    domain.leave_gpu = false;
    for (int u = 0; u < s->plain->n_unit; u++)
        reside = reside || plan_can_reside(s->plain, s->p, u);
    if (reside) {
        UnitPlan *most;
        TRY(all_resident(s, s->off_gpu.unit, &most));
        const UnitPlan *ends[] = {s->off_gpu.unit, most};
        TRY(optimal_solve(s->d, s->a, s->plain, s->p, &domain, 2, ends, &s->optimum));
    }
    Optimum all = s->optimum;
    if (domain.pinned) {
        domain.pinned = NULL;
        const UnitPlan *pinned[] = {s->optimum.unit};
        TRY(optimal_solve(s->d, s->a, s->plain, s->p, &domain, 1, pinned, &all));
    }
    /* The linear model is over the plans in which nothing is computed again, which takes time; bound_make likewise. */
    TRY(bound_make(s->d, s->plain, s->p, s->o->clip, bound_ns));
    if (all.bound_ns > *bound_ns)
        *bound_ns = all.bound_ns;
    return ST_OK;
}

/* Choices about the plain graph in the present one. */
static Status of_plain(Search *s, UnitPlan *unit, Plan *out)
{
    Plan plain;
    TRY(search_blank(s, &plain));
    plain.graph = s->plain;
    memcpy(plain.unit, unit, (size_t)plain.n_unit * sizeof *unit);
    return search_adopt(s, &plain, out);
}

static Status add_optimum(Search *s, const Optimum *o, Candidate **out)
{
    Plan p;
    TRY(of_plain(s, o->unit, &p));
    return search_add(s, &p, "optimum", out);
}

/* *out: the one in which nothing lives on the GPU. */
static Status optimum(Search *s, Candidate **out)
{
    TRY(add_optimum(s, &s->optimum, out));
    return add_optimum(s, &s->off_gpu, out);
}

/* fills: s->frontier, plain plans in which nothing lives on the GPU, and all */
static Status find_frontier(Search *s)
{
    UnitPlan **plan[2];
    int n[2];
    for (int leave = 1; leave >= 0; leave--) {
        LpDomain domain = {.clip = s->o->clip, .leave_gpu = leave, .pinned = s->o->n_rule > 0 ? s->plain_pinned : NULL};
        TRY(optimal_frontier(s->d, s->a, s->plain, s->p, &domain, leave ? &s->off_gpu : &s->optimum, &plan[leave],
                             &n[leave]));
    }
    s->frontier = ARENA_NEW(s->a, UnitPlan *, n[0] + n[1]);
    if (!s->frontier)
        return diag_oom(s->d);
    for (int leave = 1; leave >= 0; leave--)
        for (int i = 0; i < n[leave]; i++)
            s->frontier[s->n_frontier++] = plan[leave][i];
    return ST_OK;
}

/* With windows of loads up to so many times the largest; without a unit that is loaded twice, one plan. */
static Status frontier(Search *s, int most_times)
{
    Candidate *c;
    if (!s->frontier)
        TRY(find_frontier(s));
    for (int i = 0; i < s->n_frontier; i++) {
        Plan p;
        TRY(of_plain(s, s->frontier[i], &p));
        for (int times = 1; times <= most_times; times *= 2) {
            search_load_window(s, &p, times);
            TRY(search_add(s, &p, "price of memory", &c));
        }
    }
    return ST_OK;
}

/* The plans of the frontier, with segments computed again. */
static Status optimal_again(Search *s, Candidate *from)
{
    TRY(search_resident(s, &from->plan));
    return frontier(s, 2);
}

static Status optimal(Search *s)
{
    Candidate *c;
    s->by_model = true;
    TRY(optimum(s, &c));
    TRY(search_resident(s, &c->plan));
    TRY(frontier(s, 4));
    return search_recompute(s, c, optimal_again);
}

/* ---- auto
 * -------------------------------------------------------------------------------------------------------------- */

/* Each place of load of a unit that several layers read. */
static Status tied_places(Search *s, const Candidate *from)
{
    for (int i = 0; i < s->g->n_unit; i++) {
        const Unit *u = &s->g->unit[i];
        if (u->n_use < 2 || u->use[u->n_use - 1].layer == u->use[0].layer)
            continue;
        for (int k = 0; k <= u->n_use; k++) {
            Plan p;
            Candidate *c;
            TRY(search_copy(s, &from->plan, &p));
            p.unit[i].first_gpu_use = k;
            TRY(search_try(s, &p, "tied unit moved", &c));
        }
    }
    return ST_OK;
}

static Status auto_again(Search *s, Candidate *from)
{
    TRY(search_resident(s, &from->plan));
    return search_frugal_again(s, from);
}

static Status auto_all(Search *s)
{
    Candidate *best;
    TRY(native(s));
    TRY(deepspeed_like(s));
    TRY(dha(s));
    TRY(memferry(s));
    TRY(optimum(s, &best));
    TRY(search_late(s, &best->plan, "optimum, updates moved", &best));
    Plan p;
    TRY(search_blank(s, &p));
    TRY(search_late(s, &p, "all loaded", &best));
    TRY(search_size(s, best));
    TRY(tied_places(s, search_fastest(s)));
    TRY(search_improve(s, search_fastest(s), IMPROVE_EVALUATIONS, INT64_MAX, &best));
    TRY(search_late(s, &best->plan, "improved", &best));
    best = search_fastest(s);
    TRY(search_size(s, best));
    TRY(frontier(s, 4));
    TRY(search_resident(s, &best->plan));
    TRY(search_frugal(s, best));
    return search_recompute(s, best, auto_again);
}

static const Algorithm algorithms[] = {
    {"native-offload", "load everything, updates after the backward pass", native, false},
    {"dha", "load nothing, kernels read and write host memory", dha, false},
    {"deepspeed-like", "native-offload with gradients freed after their copy", deepspeed_like, false},
    {"memferry", "MemFerry's Algorithms 1 and 2, the best of all readings", memferry, false},
    {"go-memferry", "memferry with gradients offloaded by --reserve-factor", go_memferry, false},
    {"optimal", "the least time without contention, with a proof", optimal, true},
    {"auto", "the fastest plan that fits, over all of these and more", auto_all, true},
};
enum { ALGORITHM_COUNT = sizeof algorithms / sizeof algorithms[0] };

const Algorithm *algorithm_table(int *count)
{
    *count = ALGORITHM_COUNT;
    return algorithms;
}

const Algorithm *algorithm_find(const char *name)
{
    for (int i = 0; i < ALGORITHM_COUNT; i++)
        if (strcmp(algorithms[i].name, name) == 0)
            return &algorithms[i];
    return NULL;
}
