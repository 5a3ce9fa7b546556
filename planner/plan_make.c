/* plan_make.c - from options to a plan: rules, candidates of the algorithm, the fastest that fits, or the least that
 * would. */
#include "planner/plan_search.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/steps.h"

static Status check_options(Diag *d, const PlanOptions *o, const Algorithm **out)
{
    *out = algorithm_find(o->algorithm);
    if (!*out) {
        Text names = {0};
        int n;
        const Algorithm *table = algorithm_table(&n);
        for (int i = 0; i < n; i++)
            text_add(&names, "%s%s", i ? ", " : "", table[i].name);
        diag_fail(d, ST_USAGE, "--algorithm: there is no '%s'", o->algorithm);
        diag_hint(d, "choose one of %s", names.at ? names.at : "auto");
        text_free(&names);
        return ST_USAGE;
    }
    bool given = o->reserve_factor != -1;
    if (given && !(o->reserve_factor >= 0 && o->reserve_factor <= 1))
        return diag_fail(d, ST_USAGE, "--reserve-factor: %g is not between 0 and 1", o->reserve_factor);
    if (given && strcmp(o->algorithm, "go-memferry") != 0) {
        diag_fail(d, ST_USAGE, "--reserve-factor belongs to go-memferry, not to %s", o->algorithm);
        return diag_hint(d, "add --algorithm go-memferry, or leave --reserve-factor out");
    }
    if (o->mem_budget_bytes < 0 || o->host_budget_bytes < 0)
        return diag_fail(d, ST_USAGE, "a budget is negative");
    return ST_OK;
}

Status search_pin(Search *s)
{
    for (int r = 0; r < s->o->n_rule; r++) {
        const ModeRule *rule = &s->o->rule[r];
        int hits = 0, possible = 0;
        for (int i = 0; i < s->g->n_unit; i++) {
            const Unit *u = &s->g->unit[i];
            if (!glob_match(rule->glob, u->name))
                continue;
            hits++;
            UnitPlan to = {0};
            bool can = plan_set_mode(u, rule->mode, &to);
            if (rule->mode == MODE_RESIDENT && !plan_can_reside(s->g, s->p, i)) {
                diag_fail(s->d, ST_USAGE,
                          "--mode %s=resident: the profile does not say how long the update of %s takes on the GPU",
                          rule->glob, u->name);
                return diag_hint(s->d, "make the profile again with this version of ferryc profile");
            }
            s->pinned[i] = can                          ? (Pin){true, to.first_gpu_use, to.hold}
                           : rule->mode == MODE_RELOAD ? (Pin){true, 0, HOLD_STEP}
                                                        : (Pin){true, u->n_use, HOLD_STEP};
            possible += can;
        }
        if (hits == 0) {
            diag_fail(s->d, ST_USAGE, "--mode %s=%s: no unit has this name", rule->glob, mode_name(rule->mode));
            return diag_hint(s->d,
                             "ferryc plan --json lists the units; a pattern is quoted as in --mode '*.attn.*=dha'");
        }
        if (possible == 0) {
            diag_fail(s->d, ST_USAGE, "--mode %s=%s: the backward pass does not read %s", rule->glob,
                      mode_name(rule->mode), hits == 1 ? "this unit" : "any of these units");
            return diag_hint(s->d, "gfgb and dha are possible");
        }
        if (possible < hits && s->g == s->plain)
            diag_note(s->d, "--mode %s=%s: %d of %d units are not read by the backward pass and stay %s", rule->glob,
                      mode_name(rule->mode), hits - possible, hits, rule->mode == MODE_RELOAD ? "gfgb" : "dha");
    }
    return ST_OK;
}

/* ---- choosing
 * -------------------------------------------------------------------------------------------------------- */

/* Of candidates of one speed those that compute nothing again come first. Then they are compared by the other timeline,
 * without contention (optimal: with it); it is run only for them. */
static Status prefer(Search *s, const Candidate *a, const Candidate *b, bool *out)
{
    if (a->iteration_ns != b->iteration_ns) {
        *out = a->iteration_ns < b->iteration_ns;
        return ST_OK;
    }
    if ((a->plan.n_recompute > 0) != (b->plan.n_recompute > 0)) {
        *out = a->plan.n_recompute == 0;
        return ST_OK;
    }
    int64_t ta, tb;
    bool model = !s->by_model;
    TRY(plan_time(s->d, a->plan.graph, s->p, &a->plan, model ? NULL : &ta, model ? &ta : NULL));
    TRY(plan_time(s->d, b->plan.graph, s->p, &b->plan, model ? NULL : &tb, model ? &tb : NULL));
    *out = ta != tb ? ta < tb : a->peak_bytes < b->peak_bytes;
    return ST_OK;
}

/* A candidate and when it was found. */
typedef struct Ranked {
    Candidate *c;
    int found;
} Ranked;

static int by_time(const void *x, const void *y)
{
    const Ranked *a = x, *b = y;
    if (a->c->iteration_ns != b->c->iteration_ns)
        return a->c->iteration_ns < b->c->iteration_ns ? -1 : 1;
    return a->found - b->found;
}

/* The fastest first: layouts are made until one fits, and for its equals. */
Status search_choose(Search *s, int64_t mem, int64_t host, Candidate **out)
{
    *out = NULL;
    int n = 0;
    Ranked *r = ARENA_NEW(s->a, Ranked, s->found.count);
    if (!r)
        return diag_oom(s->d);
    for (int i = 0; i < s->found.count; i++)
        if (s->found.at[i]->proposed)
            r[n++] = (Ranked){s->found.at[i], i};
    qsort(r, (size_t)n, sizeof *r, by_time);
    for (int i = 0; i < n; i++) {
        Candidate *c = r[i].c;
        if (*out && c->iteration_ns > (*out)->iteration_ns)
            break;
        TRY(search_size(s, c));
        if (c->peak_bytes > mem || c->host_bytes > host)
            continue;
        bool better = true;
        if (*out)
            TRY(prefer(s, c, *out, &better));
        if (better)
            *out = c;
    }
    return ST_OK;
}

/* A size that can be pasted as it stands and is not less than `bytes`. Pools are whole chunks of a multiple of 1 KiB.
 */
static const char *exact(char *buf, size_t size, int64_t bytes)
{
    int64_t kib = bytes / 1024 + (bytes % 1024 != 0);
    if (kib % (1024 * 1024) == 0 && kib > 0)
        snprintf(buf, size, "%" PRId64 "GiB", kib / (1024 * 1024));
    else if (kib % 1024 == 0 && kib > 0)
        snprintf(buf, size, "%" PRId64 "MiB", kib / 1024);
    else
        snprintf(buf, size, "%" PRId64 "KiB", kib);
    return buf;
}

/* The candidate that needs least: of GPU memory among those whose pinned memory fits; when there is none, of pinned
 * memory among those whose GPU memory fits; when there is none either, of GPU memory, and both are named. */
static Status no_fit(Search *s, int64_t mem, int64_t host)
{
    const Candidate *least_mem = NULL, *least_host = NULL, *least = NULL;
    for (int i = 0; i < s->found.count; i++) {
        const Candidate *c = s->found.at[i];
        if (!c->proposed)
            continue;
        if (c->host_bytes <= host && (!least_mem || c->peak_bytes < least_mem->peak_bytes))
            least_mem = c;
        if (c->peak_bytes <= mem && (!least_host || c->host_bytes < least_host->host_bytes))
            least_host = c;
        if (!least || c->peak_bytes < least->peak_bytes)
            least = c;
    }
    if (!least)
        return diag_fail(s->d, ST_FAILED, "algorithm '%s' proposed nothing", s->o->algorithm);
    char a[32], b[32], c[48], e[48];
    if (least_mem) {
        diag_fail(s->d, ST_NO_FIT, "no plan of '%s' fits --mem-budget %s: the least that works is %s", s->o->algorithm,
                  size_print(a, mem), exact(c, sizeof c, least_mem->peak_bytes));
        diag_hint(s->d, "use --mem-budget %s%s", c,
                  strcmp(s->o->algorithm, "auto") == 0 ? ", a smaller batch or a shorter sequence"
                                                       : " or --algorithm auto");
    } else if (least_host) {
        diag_fail(s->d, ST_NO_FIT, "no plan of '%s' fits --host-budget %s: the least that works is %s", s->o->algorithm,
                  size_print(a, host), exact(c, sizeof c, least_host->host_bytes));
        diag_hint(s->d, "use --host-budget %s", c);
    } else {
        diag_fail(s->d, ST_NO_FIT,
                  "no plan of '%s' fits --mem-budget %s and --host-budget %s: the least that works is %s and %s",
                  s->o->algorithm, size_print(a, mem), size_print(b, host), exact(c, sizeof c, least->peak_bytes),
                  exact(e, sizeof e, least->host_bytes));
        diag_hint(s->d, "use --mem-budget %s --host-budget %s", c, e);
    }
    return s->d->status;
}

/* ---- dumps
 * ----------------------------------------------------------------------------------------------------------- */

static void dump(const Text *t)
{
    if (t->at)
        fputs(t->at, stderr);
}

bool plan_is_pass(const char *name)
{
    static const char *const passes[] = {"problem", "fp", "bp", "go", "steps"};
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
        if (strcmp(name, passes[i]) == 0)
            return true;
    return false;
}

/* problem, fp, bp, go and steps, whatever the algorithm chooses: the state of the algorithms on this profile. */
static Status dump_stage(Search *s, const char *stage, const Plan *chosen)
{
    Text t = {0};
    Status st = ST_OK;
    if (strcmp(stage, "problem") == 0 && !chosen)
        problem_print(s->problem, &t);
    for (int fp = 0; fp < FP_READING_COUNT && !chosen && st == ST_OK; fp++) {
        MemferryState state;
        char title[64];
        if (strcmp(stage, "fp") == 0) {
            st = memferry_fp(s->d, s->a, s->problem, (FpReading)fp, &state);
            snprintf(title, sizeof title, "fp %s", fp_reading_name((FpReading)fp));
            if (st == ST_OK)
                memferry_print(s->problem, &state, title, &t);
        }
        for (int bp = 0; bp < BP_READING_COUNT && strcmp(stage, "bp") == 0 && st == ST_OK; bp++) {
            st = memferry_fp(s->d, s->a, s->problem, (FpReading)fp, &state);
            if (st == ST_OK)
                st = memferry_bp(s->d, s->a, s->problem, (BpReading)bp, &state);
            snprintf(title, sizeof title, "fp %s, bp %s", fp_reading_name((FpReading)fp),
                     bp_reading_name((BpReading)bp));
            if (st == ST_OK)
                memferry_print(s->problem, &state, title, &t);
        }
    }
    if (strcmp(stage, "go") == 0 && chosen)
        for (int i = 0; i < chosen->n_unit; i++)
            text_add(&t, "go  %-40s gradient %-4s %12" PRId64 " bytes, gain %" PRId64 " ns\n", s->g->unit[i].name,
                     chosen->unit[i].grad == ON_GPU ? "gpu" : "host", s->g->unit[i].grad_bytes,
                     problem_grad_gain_ns(s->problem, i, &chosen->unit[i]));
    if (strcmp(stage, "steps") == 0 && chosen) {
        StepList *list;
        st = steps_build(s->d, s->a, chosen->graph, chosen, &list);
        if (st == ST_OK)
            st = steps_time(s->d, list, s->p);
        if (st == ST_OK)
            steps_print(list, &t);
    }
    if (st == ST_OK)
        dump(&t);
    text_free(&t);
    return st;
}

static Status make(Search *s, const Algorithm *algorithm, Plan **out)
{
    const PlanOptions *o = s->o;
    TRY(search_open(s));
    if (o->dump_after)
        TRY(dump_stage(s, o->dump_after, NULL));
    int64_t bound_ns = o->bound_ns;
    if (bound_ns == 0 || algorithm->from_optimum)
        TRY(search_optimum(s, &bound_ns));
    if (o->recompute > 0) {
        const Graph *g;
        TRY(recompute_evenly(s, o->recompute, &g));
        TRY(search_enter(s, g));
    }
    TRY(algorithm->propose(s));
    int64_t mem = o->mem_budget_bytes ? o->mem_budget_bytes : s->p->device.memory_bytes;
    int64_t host = o->host_budget_bytes ? o->host_budget_bytes : s->p->device.host_memory_bytes;
    Candidate *c;
    TRY(search_choose(s, mem, host, &c));
    if (!c)
        return no_fit(s, mem, host);
    c->plan.budget_bytes = mem;
    c->plan.host_budget_bytes = host;
    c->plan.reserve_factor = o->reserve_factor;
    c->plan.profile_path = s->p->path;
    memcpy(c->plan.profile_hash, s->p->hash, sizeof c->plan.profile_hash);
    TRY(plan_evaluate(s->d, s->a, c->plan.graph, s->p, &c->plan));
    c->plan.bound_ns = bound_ns;
    if (strcmp(o->algorithm, "auto") == 0 && s->optimum.model_ns < c->plan.model_ns)
        c->plan.model_ns = s->optimum.model_ns;
    if (o->dump_after)
        TRY(dump_stage(s, o->dump_after, &c->plan));
    *out = &c->plan;
    return ST_OK;
}

Status plan_make(Diag *d, Arena *a, const Graph *g, const Profile *p, const PlanOptions *options, Plan **out)
{
    *out = NULL;
    const Algorithm *algorithm;
    TRY(check_options(d, options, &algorithm));
    Search s = {.d = d, .a = a, .plain = g->plain ? g->plain : g, .p = p, .o = options};
    Status st = make(&s, algorithm, out);
    search_close(&s);
    return st;
}
