/* test_optimal.c - the linear model, the optimum, its bound and the cross-check, on small random instances: against the
 * timeline, against brute force over all choices that the timeline judges, and against each other.
 * FERRY_RANDOM_INSTANCES sets how many instances the comparison runs through, FERRY_RANDOM_FIRST the first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <glpk.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "planner/cross_check.h"
#include "planner/cross_solve.h"
#include "planner/optimal.h"
#include "planner/plan_check.h"
#include "planner/plan_search.h"
#include "planner/steps.h"
#include "tests/unit/planner/plans.h"

/* Times of all sorts: as the sizes say; scaled by class; with zeros; with ratios up to a million; tiny ones with many
 * ties; all the same. */
static int64_t shaken(int64_t ns, int kind, int64_t factor, uint64_t *rng)
{
    switch (kind) {
    case 1:
        return ns * factor * (1 + random_below(rng, 4));
    case 2:
        return ns * (random_below(rng, 3) == 0 ? 0 : factor);
    case 3:
        return ns * factor;
    case 4:
        return random_below(rng, 4);
    case 5:
        return 1000 * (1 + (random_below(rng, 3) == 2));
    default:
        return ns;
    }
}

static void shake(Profile *p, uint64_t *rng)
{
    int kind = random_below(rng, 6);
    int64_t f[7];
    for (int i = 0; i < 7; i++)
        f[i] = kind == 3 ? (int64_t)1 << random_below(rng, 20) : 1 + random_below(rng, kind == 1 ? 10 : 3);
#define SHAKE(t, i) (t).median_ns = shaken((t).median_ns, kind, f[i], rng)
    for (int u = 0; u < p->n_unit; u++) {
        SHAKE(p->unit[u].load, 0);
        SHAKE(p->unit[u].store, 1);
        SHAKE(p->unit[u].norm, 2);
        SHAKE(p->unit[u].update, 2);
        SHAKE(p->unit[u].resident_norm, 6);
        SHAKE(p->unit[u].resident_update, 6);
    }
    SHAKE(p->input_load, 3);
    SHAKE(p->loss_store, 3);
    SHAKE(p->clip, 4);
    for (int l = 0; l < p->n_layer; l++)
        for (int i = 0; i < 2; i++) {
            SHAKE(p->layer[l].fp[i], 5);
            SHAKE(p->layer[l].bp[i][0], 5);
            SHAKE(p->layer[l].bp[i][1], 5);
        }
    for (int l = 0; l <= p->n_layer; l++) {
        SHAKE(p->between[l].fp, 5);
        SHAKE(p->between[l].bp, 5);
    }
#undef SHAKE
}

static void instance(Arena *a, uint64_t *rng, int blocks, Graph **g, Profile **p)
{
    SyntheticShape shape = {.blocks = blocks,
                            .hidden = 32 * (1 + random_below(rng, 4)),
                            .heads = 4,
                            .vocab = 100 + random_below(rng, 400),
                            .batch = 2,
                            .seq = 16,
                            .freeze_positions = random_below(rng, 2) == 0,
                            .seed = synthetic_random(rng)};
    synthetic_make_shape(a, shape, g, p);
    shake(*p, rng);
    for (int u = 0, kind = random_below(rng, 3); u < (*p)->n_unit; u++) /* none can live on the GPU, some, or all */
        if (kind == 0 || (kind == 1 && random_below(rng, 2)))
            (*p)->unit[u].resident_update.median_ns = -1;
}

/* What the profile does not let live on the GPU does not. */
static void leave_gpu(const Graph *g, const Profile *p, Plan *plan)
{
    for (int u = 0; u < g->n_unit; u++)
        if (plan->unit[u].hold == HOLD_RESIDENT && !plan_can_reside(g, p, u))
            plan->unit[u].hold = HOLD_STEP;
}

/* A trained matrix or two more in the layer of an existing unit: their choices belong together. */
static void share_layer(Graph *g)
{
    Layer *l = &g->layer[g->n_layer - 1]; /* the head: the tied table is there */
    int other = g->layer[g->n_layer - 2].unit[0];
    l->unit[l->n_unit++] = other;
}

static int64_t timed(const Graph *g, const Profile *p, const Plan *plan)
{
    Diag d = {0};
    int64_t ns = -1;
    assert_int_equal(plan_time(&d, g, p, plan, NULL, &ns), ST_OK);
    return ns;
}

/* ---- the model is the timeline
 * ------------------------------------------------------------------------------------------------ */

static void model_is_the_timeline(void **state)
{
    (void)state;
    for (int i = 0; i < 150; i++) {
        uint64_t rng = (uint64_t)i * 977 + 5;
        Diag d = {0};
        Arena *a = arena_open();
        Graph *g;
        Profile *p;
        instance(a, &rng, random_below(&rng, 3), &g, &p);
        if (i % 5 == 0)
            share_layer(g);
        LpDomain domain = {.clip = i % 2};
        LpModel *m;
        assert_int_equal(lp_model_build(&d, a, g, p, &domain, &m), ST_OK);
        assert_true(m->exact);
        LpTimer t;
        assert_int_equal(lp_timer_open(&d, m, &t), ST_OK);
        int *choice = ARENA_NEW(a, int, m->n_group);
        for (int k = 0; k < 12; k++) {
            Plan *plan = random_plan(a, &rng, g);
            plan->clip = domain.clip;
            plan->update_after_bp = false;
            plan->gradient_window_bytes = plan->load_window_bytes = 0;
            leave_gpu(g, p, plan);
            StepList *s;
            Timeline line;
            assert_int_equal(steps_build(&d, a, g, plan, &s), ST_OK);
            assert_int_equal(steps_time(&d, s, p), ST_OK);
            if (simulate(&d, a, s, &p->device, false, &line) != ST_OK) {
                d = (Diag){0}; /* longer than the timeline can count */
                continue;
            }
            assert_true(line.steady);
            assert_int_equal(lp_choices_of_plan(&d, m, plan->unit, choice), ST_OK);
            LpRatio r = lp_period(&t, choice, (LpRatio){0, 0});
            assert_int_equal(lp_period_ns(r), line.period_ns);
            /* a limit is reached, or changes nothing */
            assert_int_equal(lp_period(&t, choice, r).span, 0);
            LpRatio above = {r.time_ns + 1, r.span};
            assert_int_equal(lp_period_ns(lp_period(&t, choice, above)), line.period_ns);
        }
        lp_timer_close(&t);
        arena_close(a);
    }
}

/* ---- brute force
 * ---------------------------------------------------------------------------------------------------------------- */

/* The next choice of a unit in the order of an odometer: update, gradient, hold, place; false after the last. */
static bool next_choice(const Graph *g, const Profile *p, bool modes_only, int u, UnitPlan *c)
{
    bool trains = g->unit[u].grad_bytes > 0 && !modes_only, first;
    do {
        c->late = trains && !c->late;
        if (!c->late) {
            c->grad = trains && c->grad == ON_GPU ? ON_HOST : ON_GPU;
            if (c->grad == ON_GPU)
                c->hold = (Hold)((c->hold + 1) % HOLD_COUNT);
            if (c->grad == ON_GPU && c->hold == HOLD_STEP)
                c->first_gpu_use = (c->first_gpu_use + 1) % (g->unit[u].n_use + 1);
        }
        first = !c->late && c->grad == ON_GPU && c->hold == HOLD_STEP && c->first_gpu_use == 0;
    } while (plan_unit_fault(&g->unit[u], c) || (c->hold == HOLD_RESIDENT && !plan_can_reside(g, p, u)));
    return !first;
}

static bool next_plan(const Graph *g, const Profile *p, bool modes_only, UnitPlan *unit)
{
    for (int u = 0; u < g->n_unit; u++)
        if (next_choice(g, p, modes_only, u, &unit[u]))
            return true;
    return false;
}

/* By the timeline where `simulated`; else by the model's, which is the same (model_is_the_timeline). */
static int64_t brute_force(Arena *a, const Graph *g, const Profile *p, const LpDomain *domain, bool simulated)
{
    Diag d = {0};
    Plan plan = {
        .n_unit = g->n_unit, .unit = ARENA_NEW(a, UnitPlan, g->n_unit), .clip = domain->clip, .reserve_factor = -1};
    int64_t best = INT64_MAX;
    LpModel *m;
    LpTimer t;
    assert_int_equal(lp_model_build(&d, a, g, p, domain, &m), ST_OK);
    assert_int_equal(lp_timer_open(&d, m, &t), ST_OK);
    int *choice = ARENA_NEW(a, int, m->n_group);
    do {
        int64_t ns;
        if (simulated) {
            ns = timed(g, p, &plan);
        } else {
            assert_int_equal(lp_choices_of_plan(&d, m, plan.unit, choice), ST_OK);
            LpRatio r = lp_period(&t, choice, best == INT64_MAX ? (LpRatio){0, 0} : (LpRatio){2 * best - 1, 2});
            ns = r.span > 0 ? lp_period_ns(r) : best; /* no better */
        }
        best = ns < best ? ns : best;
    } while (next_plan(g, p, domain->modes_only, plan.unit));
    lp_timer_close(&t);
    return best;
}

/* Is every plan short enough for the timeline to count? */
static bool countable(const Graph *g, const Profile *p)
{
    int64_t sum = p->input_load.median_ns + p->loss_store.median_ns + p->clip.median_ns;
    for (int u = 0; u < p->n_unit; u++)
        sum += p->unit[u].load.median_ns + p->unit[u].store.median_ns + p->unit[u].norm.median_ns +
               p->unit[u].update.median_ns;
    for (int l = 0; l < p->n_layer; l++)
        for (int i = 0; i < 2; i++)
            sum += p->layer[l].fp[i].median_ns + p->layer[l].bp[i][0].median_ns + p->layer[l].bp[i][1].median_ns;
    (void)g;
    return sum < (int64_t)60000000000;
}

typedef struct Worse {
    int n, worse;
    double sum, most;
} Worse;

static void heuristics_are_not_better(Arena *a, const Graph *g, const Profile *p, bool clip, int64_t best, Worse *worse)
{
    static const char *const names[] = {"native-offload", "dha", "deepspeed-like", "memferry", "go-memferry",
                                        "optimal",        "auto"};
    int64_t heuristic = INT64_MAX;
    for (int i = 0; i < 7; i++) {
        Diag d = {.quiet = true};
        PlanOptions o = {.algorithm = names[i], .reserve_factor = -1, .clip = clip};
        Plan *plan;
        assert_int_equal(plan_make(&d, a, g, p, &o, &plan), ST_OK);
        assert_true(plan->model_ns >= best);
        assert_int_equal(plan->bound_ns, best);
        if (i >= 5)
            assert_int_equal(plan->model_ns, best);
        if (i < 5)
            heuristic = plan->model_ns < heuristic ? plan->model_ns : heuristic;
    }
    double percent = best > 0 ? 100.0 * (double)(heuristic - best) / (double)best : 0;
    worse->n++;
    worse->worse += heuristic > best;
    worse->sum += percent;
    worse->most = percent > worse->most ? percent : worse->most;
}

static int number_of(const char *variable, int other)
{
    const char *n = getenv(variable);
    return n ? atoi(n) : other;
}

/* brute force = optimum = bound = the solver's, to the nanosecond. One in eight has nine units and modes only. */
static void optimum_is_brute_force(void **state)
{
    (void)state;
    Worse worse = {0};
    int n = number_of("FERRY_RANDOM_INSTANCES", 64), from = number_of("FERRY_RANDOM_FIRST", 0), checked = 0, open = 0;
    for (int i = from; i < from + n; i++) {
        uint64_t rng = (uint64_t)i * 9779 + 11;
        Diag d = {0};
        Arena *a = arena_open();
        Graph *g;
        Profile *p;
        bool modes = i % 8 == 7;
        instance(a, &rng, modes ? 1 : 0, &g, &p);
        if (i % 16 == 4)
            share_layer(g);
        LpDomain domain = {.clip = i % 2, .modes_only = modes};
        int64_t best = brute_force(a, g, p, &domain, i % 16 == 0 && countable(g, p));
        Optimum o;
        assert_int_equal(optimal_solve(&d, a, g, p, &domain, 0, NULL, &o), ST_OK);
        if (o.model_ns != best || o.bound_ns != best)
            print_message("instance %d: brute force %lld, optimum %lld, bound %lld\n", i, (long long)best,
                          (long long)o.model_ns, (long long)o.bound_ns);
        assert_int_equal(o.model_ns, best);
        assert_int_equal(o.bound_ns, best);
        assert_true(o.exact);
        Plan plan = {.n_unit = g->n_unit, .unit = o.unit, .clip = domain.clip, .reserve_factor = -1};
        if (countable(g, p))
            assert_int_equal(timed(g, p, &plan), best);
        if (countable(g, p) && i % 3 == 0) {
            CrossOptions c = {.clip = domain.clip, .modes_only = modes, .most_ns = best};
            CrossResult r;
            assert_int_equal(cross_check(&d, a, g, p, &c, &r), ST_OK);
            checked++;
            open += !r.closed;
            if (r.closed)
                assert_int_equal(r.milp_ns, best);
        }
        if (countable(g, p) && !modes && i % 8 == 1)
            heuristics_are_not_better(a, g, p, domain.clip, best, &worse);
        arena_close(a);
    }
    print_message("%d instances; %d by the solver, %d of them too ill-conditioned for it\n", n, checked, open);
    print_message("best heuristic: above the optimum in %d of %d, by %.2f%% on average, %.2f%% at most\n", worse.worse,
                  worse.n, worse.n ? worse.sum / worse.n : 0, worse.most);
    assert_true(open * 50 <= checked);
}

/* The solver finds the optimum also when it does not start from it. */
static void solver_needs_no_hint(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        uint64_t rng = (uint64_t)i * 31 + 3;
        Diag d = {0};
        Arena *a = arena_open();
        Graph *g;
        Profile *p;
        SyntheticShape shape = {0, 64, 4, 200 + 50 * i, 2, 16, i % 2, (unsigned)i};
        synthetic_make_shape(a, shape, &g, &p);
        synthetic_no_residents(p);
        (void)rng;
        LpDomain domain = {.clip = i % 3 == 0};
        int64_t best = brute_force(a, g, p, &domain, false);
        CrossOptions c = {.clip = domain.clip, .most_ns = 2 * best};
        CrossResult r;
        assert_int_equal(cross_check(&d, a, g, p, &c, &r), ST_OK);
        assert_true(r.closed);
        assert_int_equal(r.milp_ns, best);
        arena_close(a);
    }
}

/* ---- larger ones: bounds against plans
 * ----------------------------------------------------------------------------------------- */

static void bound_is_below_every_plan(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        uint64_t rng = (uint64_t)i * 501 + 9;
        Diag d = {0};
        Arena *a = arena_open();
        Graph *g;
        Profile *p;
        instance(a, &rng, i % 2 ? 2 : 6, &g, &p);
        LpDomain domain = {.clip = i % 2};
        Optimum o, again;
        assert_int_equal(optimal_solve(&d, a, g, p, &domain, 0, NULL, &o), ST_OK);
        assert_true(o.bound_ns <= o.model_ns);
        assert_int_equal(optimal_solve(&d, a, g, p, &domain, 0, NULL, &again), ST_OK);
        assert_int_equal(o.model_ns, again.model_ns);
        assert_int_equal(o.bound_ns, again.bound_ns);
        assert_memory_equal(o.unit, again.unit, (size_t)g->n_unit * sizeof *o.unit);
        LpModel *m;
        LpTimer t;
        assert_int_equal(lp_model_build(&d, a, g, p, &domain, &m), ST_OK);
        assert_int_equal(lp_timer_open(&d, m, &t), ST_OK);
        int *choice = ARENA_NEW(a, int, m->n_group);
        for (int k = 0; k < 400; k++) {
            Plan *plan = random_plan(a, &rng, g);
            leave_gpu(g, p, plan);
            for (int u = 0; k % 2 && u < g->n_unit; u++)
                plan->unit[u] = random_below(&rng, 4) == 0 ? plan->unit[u] : o.unit[u];
            assert_int_equal(lp_choices_of_plan(&d, m, plan->unit, choice), ST_OK);
            assert_true(lp_period_ns(lp_period(&t, choice, (LpRatio){0, 0})) >= o.bound_ns);
        }
        lp_timer_close(&t);
        arena_close(a);
    }
}

/* A rule restricts the plan, not the bound; more budget never gives a slower plan. */
static void rules_and_budgets(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Graph *g;
    Profile *p;
    synthetic_make(a, 1, 3, &g, &p);
    synthetic_no_residents(p);
    PlanOptions o = {.algorithm = "optimal", .reserve_factor = -1};
    Plan *free, *ruled, *plan;
    Diag d = {.quiet = true};
    assert_int_equal(plan_make(&d, a, g, p, &o, &free), ST_OK);
    ModeRule rule = {"*mlp*", MODE_DHA};
    o.rule = &rule;
    o.n_rule = 1;
    assert_int_equal(plan_make(&d, a, g, p, &o, &ruled), ST_OK);
    assert_true(ruled->model_ns >= free->model_ns);
    assert_true(ruled->bound_ns <= free->model_ns);
    for (int u = 0; u < g->n_unit; u++)
        if (strstr(g->unit[u].name, "mlp"))
            assert_int_equal(plan_mode(&g->unit[u], &ruled->unit[u]), MODE_DHA);
    o.n_rule = 0;
    int64_t before = INT64_MAX;
    int fits = 0;
    for (int64_t budget = free->peak_bytes / 2; budget <= free->peak_bytes + 4096; budget += free->peak_bytes / 12) {
        Diag e = {.quiet = true};
        o.mem_budget_bytes = budget;
        Status st = plan_make(&e, a, g, p, &o, &plan);
        assert_true(st == ST_OK || (st == ST_NO_FIT && fits == 0));
        if (st != ST_OK)
            continue;
        fits++;
        assert_true(plan->peak_bytes <= budget);
        assert_true(plan->model_ns <= before);
        before = plan->model_ns;
    }
    assert_true(fits > 2);
    arena_close(a);
}

/* ---- traps of the solver
 * --------------------------------------------------------------------------------------------------------- */

static const CrossLimits small = {.nodes = 100, .seconds = 60, .bytes = (int64_t)1 << 32};

static void solver_gets_numbers_only(void **state)
{
    (void)state;
    Diag d = {.quiet = true};
    CrossProblem p;
    assert_int_equal(cross_open(&d, &p, NAN), ST_FAILED);
    d = (Diag){.quiet = true};
    assert_int_equal(cross_open(&d, &p, 10), ST_OK);
    int x = cross_column(&p, CROSS_BINARY);
    double row[2] = {1, 0};
    row[x] = NAN;
    assert_int_equal(cross_row(&d, &p, row, 1, false), ST_FAILED);
    assert_non_null(strstr(d.message, "finite"));
    d = (Diag){.quiet = true};
    row[x] = INFINITY;
    assert_int_equal(cross_row(&d, &p, row, 1, false), ST_FAILED);
    d = (Diag){.quiet = true};
    assert_int_equal(cross_row(&d, &p, row, NAN, false), ST_FAILED);
    cross_close(&p);
    /* period >= 3 + 2 x, period >= 4 - x: what is added twice to a column is there once */
    d = (Diag){0};
    assert_int_equal(cross_open(&d, &p, 10), ST_OK);
    x = cross_column(&p, CROSS_BINARY);
    double dense[2] = {0};
    dense[p.period] += 1;
    dense[x] -= 1;
    dense[x] -= 1;
    assert_int_equal(cross_row(&d, &p, dense, 3, false), ST_OK);
    assert_true(dense[0] == 0 && dense[1] == 0);
    dense[p.period] = 1;
    dense[x] = 1;
    assert_int_equal(cross_row(&d, &p, dense, 4, false), ST_OK);
    assert_int_equal(p.entry.count, 4);
    CrossAnswer answer;
    for (int way = 0; way < CROSS_WAYS; way++) {
        assert_int_equal(cross_solve(&d, &p, &small, way, &answer), ST_OK);
        assert_true(answer.closed);
        assert_non_null(answer.value);
        assert_false(answer.value[x]); /* 4 instead of 5 */
        base_free(answer.value);
    }
    cross_close(&p);
}

/* The child dies of an empty row with a column that does not exist; the caller hears that there is no answer. */
static void solver_dies_alone(void **state)
{
    (void)state;
    Diag d = {0};
    CrossProblem p;
    assert_int_equal(cross_open(&d, &p, 10), ST_OK);
    double dense[1] = {1};
    assert_int_equal(cross_row(&d, &p, dense, 1, false), ST_OK);
    p.entry.at[0].column = 7; /* GLPK aborts */
    CrossAnswer answer;
    assert_int_equal(cross_solve(&d, &p, &small, 0, &answer), ST_OK);
    assert_false(answer.closed);
    assert_null(answer.value);
    assert_non_null(answer.why);
    p.entry.at[0].column = 0;
    p.entry.at[0].value = 1;
    double twice[1] = {1};
    assert_int_equal(cross_row(&d, &p, twice, 1, false), ST_OK);
    p.row.at[0].n = 2; /* and of a column that is twice in a row */
    assert_int_equal(cross_solve(&d, &p, &small, 0, &answer), ST_OK);
    assert_false(answer.closed);
    assert_null(answer.value);
    assert_non_null(strstr(answer.why, "data wrong"));
    p.row.at[0].n = 1;
    p.entry.at[0].value = NAN; /* and here */
    assert_int_equal(cross_solve(&d, &p, &small, 0, &answer), ST_OK);
    assert_false(answer.closed);
    cross_close(&p);
}

/* Two sets of weights, each to be halved at once: branch and bound has nothing to go by and does not end. */
static void endless(CrossProblem *p, int columns)
{
    Diag d = {0};
    uint64_t rng = 5;
    double dense[64] = {0}, weight[64];
    assert_int_equal(cross_open(&d, p, 1e9), ST_OK);
    for (int c = 0; c < columns; c++)
        cross_column(p, CROSS_BINARY);
    for (int set = 0; set < 2; set++) {
        double half = 0;
        for (int c = 1; c <= columns; c++) {
            weight[c] = random_below(&rng, 1000000) + 1;
            half += weight[c] / 2;
        }
        for (int side = -1; side <= 1; side += 2) { /* period >= side (half - sum) */
            for (int c = 1; c <= columns; c++)
                dense[c] = side * weight[c];
            dense[p->period] = 1;
            assert_int_equal(cross_row(&d, p, dense, side * half, false), ST_OK);
        }
    }
}

static pthread_t killer_thread;

/* Ends the first child of this process that it sees. */
static void *kill_child(void *unused)
{
    (void)unused;
    char path[100];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    for (int i = 0; i < 3000; i++) {
        int child = 0;
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%d", &child) != 1)
            child = 0;
        if (f)
            fclose(f);
        if (child > 0) {
            kill(child, SIGKILL);
            return NULL;
        }
        usleep(10000);
    }
    return NULL;
}

static void solver_is_kept_within_limits(void **state)
{
    (void)state;
    Diag d = {0};
    CrossProblem p;
    CrossAnswer answer;
    endless(&p, 50);
    CrossLimits limits = {.nodes = INT32_MAX, .seconds = 1, .bytes = (int64_t)1 << 32};
    assert_int_equal(cross_solve(&d, &p, &limits, 0, &answer), ST_OK); /* never ends by itself */
    assert_false(answer.closed);
    assert_string_equal(answer.why, "the solver's time was used up");
    assert_false(answer.again);
    base_free(answer.value);

    limits = (CrossLimits){.nodes = 20, .seconds = 60, .bytes = (int64_t)1 << 32};
    assert_int_equal(cross_solve(&d, &p, &limits, 0, &answer), ST_OK);
    assert_false(answer.closed);
    assert_string_equal(answer.why, "the solver's nodes were used up");
    base_free(answer.value);

    limits = (CrossLimits){.nodes = INT32_MAX, .seconds = 60, .bytes = (int64_t)1 << 32};
    assert_int_equal(pthread_create(&killer_thread, NULL, kill_child, NULL), 0);
    assert_int_equal(cross_solve(&d, &p, &limits, 0, &answer), ST_OK);
    pthread_join(killer_thread, NULL);
    assert_false(answer.closed);
    assert_null(answer.value);
    assert_string_equal(answer.why, "the solver was killed");
    cross_close(&p);

#if !defined(__SANITIZE_ADDRESS__)
    /* Its matrix alone takes more than the process has; the limit is below that: it gets nothing more. */
    static double dense[4001];
    assert_int_equal(cross_open(&d, &p, 1e9), ST_OK);
    for (int c = 1; c <= 4000; c++)
        cross_column(&p, CROSS_BINARY);
    for (int row = 0; row < 1000; row++) {
        for (int c = 0; c <= 4000; c++)
            dense[c] = 1;
        assert_int_equal(cross_row(&d, &p, dense, row, false), ST_OK);
    }
    limits = (CrossLimits){.nodes = 100, .seconds = 60, .bytes = 1 << 20};
    assert_int_equal(cross_solve(&d, &p, &limits, 0, &answer), ST_OK);
    assert_false(answer.closed);
    assert_null(answer.value);
    assert_non_null(strstr(answer.why, "more memory than it may"));
    cross_close(&p);
#endif
}

/* Beale's linear program, on which the simplex method with the plain rules goes round in a circle: max 0.75 a - 20 b +
 * 0.5 c - 6 d with 0.25 a - 8 b - c + 9 d <= 0, 0.5 a - 12 b - 0.5 c + 3 d <= 0, c <= 1; the optimum is 1.25. */
static void solver_does_not_cycle(void **state)
{
    (void)state;
    Diag d = {0};
    CrossProblem p;
    assert_int_equal(cross_open(&d, &p, 10), ST_OK);
    int x[4];
    for (int i = 0; i < 4; i++)
        x[i] = cross_column(&p, CROSS_TIME);
    int good = cross_column(&p, CROSS_BINARY); /* true when the period is below 3.8 = 5 - 1.2 */
    const double rows[3][4] = {{-0.25, 8, 1, -9}, {-0.5, 12, 0.5, -3}, {0.75, -20, 0.5, -6}};
    double dense[6] = {0};
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < 4; i++)
            dense[x[i]] = rows[r][i];
        dense[p.period] = r == 2; /* period >= 5 - profit */
        assert_int_equal(cross_row(&d, &p, dense, r == 2 ? 5 : 0, false), ST_OK);
    }
    dense[x[2]] = -1;
    assert_int_equal(cross_row(&d, &p, dense, -1, false), ST_OK);
    dense[p.period] = 1; /* period + 2 good >= 3.8: so good unless the period is */
    dense[good] = 2;
    assert_int_equal(cross_row(&d, &p, dense, 3.8, false), ST_OK);
    for (int way = 0; way < CROSS_WAYS; way++) {
        CrossAnswer answer;
        assert_int_equal(cross_solve(&d, &p, &small, way, &answer), ST_OK);
        assert_true(answer.closed);
        assert_true(answer.value[good]); /* 3.75 */
        base_free(answer.value);
    }
    cross_close(&p);
}

/* In this process: GLPK runs out of the memory it may take in the middle of planning, or is handed what is not a number.
 * There is a plan all the same, verified like any other, with a bound that holds, and a warning says why it is weaker. */
static void solver_fails_in_the_planner(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Graph *g;
    Profile *p;
    synthetic_make(a, 4, 3, &g, &p);
    synthetic_no_residents(p); /* with them, branch and bound takes long */
    Diag d = {0};
    PlanOptions o = {.algorithm = "optimal", .reserve_factor = -1};
    Plan *sound, *harmed;
    assert_int_equal(plan_make(&d, a, g, p, &o, &sound), ST_OK);
    glp_free_env();
    glp_mem_limit(1);
    assert_int_equal(plan_make(&d, a, g, p, &o, &harmed), ST_OK);
    glp_mem_limit(INT32_MAX);
    assert_true(d.warnings > 0);
    assert_true(harmed->bound_ns > 0 && harmed->bound_ns <= sound->bound_ns);
    assert_true(harmed->model_ns >= sound->bound_ns);
    StepList *s;
    assert_int_equal(steps_build(&d, a, g, harmed, &s), ST_OK);
    assert_int_equal(plan_verify(&d, a, s, &harmed->layout), ST_OK);

    LpDomain domain = {0};
    LpModel *m;
    LpMaster x;
    assert_int_equal(lp_model_build(&d, a, g, p, &domain, &m), ST_OK);
    int *choice = ARENA_NEW(a, int, m->n_group);
    Optimum best;
    assert_int_equal(optimal_solve(&d, a, g, p, &domain, 0, NULL, &best), ST_OK);
    assert_int_equal(lp_choices_of_plan(&d, m, best.unit, choice), ST_OK);
    for (int harm = 0; harm < 2; harm++) {
        assert_int_equal(master_open(&d, a, m, choice, best.model_ns, &x), ST_OK);
        int64_t bound = 1;
        if (harm == 0)
            x.unit_ns = NAN; /* a coefficient that is not a number */
        else
            x.n_column = m->first_column[m->n_group] + 7; /* columns that the problem does not have */
        LpTimer t;
        assert_int_equal(lp_timer_open(&d, m, &t), ST_OK);
        lp_period(&t, choice, (LpRatio){0, 0});
        if (harm == 0)
            assert_int_equal(master_add(&x, t.cycle, t.n_cycle), ST_OK);
        else
            master_charge(&x, ARENA_NEW(a, double, x.n_column));
        lp_timer_close(&t);
        x.n_column = m->first_column[m->n_group];
        assert_int_equal(master_solve(&x, x.allowed, 10, bound, &bound), ST_OK);
        assert_true(x.dead);
        assert_int_equal(bound, 1); /* what was known before */
        master_close(&x);
    }
    arena_close(a);
}

static void memory_fails_cleanly(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Graph *g;
    Profile *p;
    synthetic_make(a, 1, 2, &g, &p);
    LpDomain domain = {0};
    bool ended = false;
    for (long n = 1; n < 100000 && !ended; n += 1 + n / 6) {
        Diag d = {.quiet = true};
        Optimum o;
        Arena *own = arena_open();
        base_fail_alloc(n);
        Status st = optimal_solve(&d, own, g, p, &domain, 0, NULL, &o);
        base_fail_alloc(0);
        ended = st == ST_OK;
        if (!ended)
            assert_int_equal(st, ST_FAILED);
        arena_close(own);
    }
    assert_true(ended);
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_is_the_timeline), cmocka_unit_test(optimum_is_brute_force),
        cmocka_unit_test(solver_needs_no_hint),  cmocka_unit_test(bound_is_below_every_plan),
        cmocka_unit_test(rules_and_budgets),     cmocka_unit_test(solver_gets_numbers_only),
        cmocka_unit_test(solver_dies_alone),     cmocka_unit_test(solver_is_kept_within_limits),
        cmocka_unit_test(solver_does_not_cycle), cmocka_unit_test(solver_fails_in_the_planner),
        cmocka_unit_test(memory_fails_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
