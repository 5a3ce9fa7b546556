/* test_bound.c - the proven bound against every plan of small random instances, and against every algorithm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "planner/plan_search.h"
#include "synthetic.h"

/* Times that the sizes do not explain: now the link, now compute, now the CPU is what the step waits for. */
static void shake(Profile *p, unsigned seed)
{
    uint64_t state = seed * 77777u + 1;
    int64_t link = 1 + synthetic_random(&state) % 8, cpu = 1 + synthetic_random(&state) % 8;
    for (int u = 0; u < p->n_unit; u++) {
        p->unit[u].load.median_ns *= link;
        p->unit[u].store.median_ns *= link;
        p->unit[u].update.median_ns =
            1 + p->unit[u].update.median_ns * cpu * (int64_t)(synthetic_random(&state) % 100) / 50;
    }
    for (int l = 0; l < p->n_layer; l++) {
        LayerProfile *t = &p->layer[l];
        /* A measured DHA time may even be the shorter one. */
        if (synthetic_random(&state) % 4 == 0)
            t->fp[ON_HOST].median_ns = 1 + t->fp[ON_GPU].median_ns * 9 / 10;
        if (synthetic_random(&state) % 4 == 0)
            t->bp[ON_GPU][ON_HOST].median_ns = t->bp[ON_GPU][ON_GPU].median_ns;
    }
}

static void every_plan(unsigned seed, bool clip)
{
    Diag d = {0};
    Arena *a = arena_open();
    Graph *g;
    Profile *p;
    synthetic_make_shape(a,
                         (SyntheticShape){.blocks = 0,
                                          .hidden = 64,
                                          .heads = 2,
                                          .vocab = 300 + 100 * (seed % 5),
                                          .batch = 1,
                                          .seq = 16 << seed % 4,
                                          .freeze_positions = seed % 3 == 0,
                                          .seed = seed},
                         &g, &p);
    shake(p, seed);
    int64_t bound, best = INT64_MAX;
    assert_int_equal(bound_make(&d, g, p, clip, &bound), ST_OK);
    assert_true(bound > 0);
    UnitPlan unit[8] = {0};
    assert_true(g->n_unit <= 8);
    Plan plan = {.algorithm = "auto", .n_unit = g->n_unit, .unit = unit, .clip = clip, .reserve_factor = -1};
    int u;
    do {
        int64_t t;
        bool possible = true;
        for (u = 0; u < g->n_unit; u++)
            possible = possible && !plan_unit_fault(&g->unit[u], &unit[u]);
        if (possible) {
            assert_int_equal(plan_time(&d, g, p, &plan, NULL, &t), ST_OK);
            best = t < best ? t : best;
        }
        /* the next plan: late, gradient, place, then the next unit */
        for (u = 0; u < g->n_unit; u++) {
            unit[u].late = !unit[u].late;
            if (unit[u].late)
                break;
            unit[u].grad = unit[u].grad == ON_GPU ? ON_HOST : ON_GPU;
            if (unit[u].grad == ON_HOST)
                break;
            do {
                unit[u].hold = (Hold)((unit[u].hold + 1) % HOLD_COUNT);
                if (unit[u].hold == HOLD_STEP)
                    unit[u].first_gpu_use = (unit[u].first_gpu_use + 1) % (g->unit[u].n_use + 1);
            } while (plan_unit_fault(&g->unit[u], &unit[u]));
            if (unit[u].first_gpu_use != 0 || unit[u].hold != HOLD_STEP)
                break;
        }
    } while (u < g->n_unit);
    if (bound > best)
        print_message("seed %u clip %d: bound %lld, best %lld\n", seed, clip, (long long)bound, (long long)best);
    assert_true(bound <= best);
    /* On instances this small the bound says something: half of the best at least. */
    assert_true(bound >= best / 2);
    arena_close(a);
}

static void not_above_any_plan(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 12; seed++)
        every_plan(seed, false);
}

static void not_above_any_plan_with_clip(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 6; seed++)
        every_plan(seed, true);
}

/* Random choices for a deeper network, windows and baselines' options included. */
static void not_above_random_plans(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        Diag d = {0};
        Arena *a = arena_open();
        Graph *g;
        Profile *p;
        synthetic_make_shape(a,
                             (SyntheticShape){.blocks = 1 + (int)(seed % 3),
                                              .hidden = 64,
                                              .heads = 2,
                                              .vocab = 500,
                                              .batch = 2,
                                              .seq = 32,
                                              .seed = seed},
                             &g, &p);
        shake(p, seed);
        uint64_t random = seed;
        for (int clip = 0; clip < 2; clip++) {
            int64_t bound;
            assert_int_equal(bound_make(&d, g, p, clip, &bound), ST_OK);
            Plan plan = {.algorithm = "auto", .n_unit = g->n_unit, .clip = clip, .reserve_factor = -1};
            plan.unit = ARENA_NEW(a, UnitPlan, g->n_unit);
            for (int round = 0; round < 60; round++) {
                for (int u = 0; u < g->n_unit; u++)
                    do {
                        plan.unit[u] =
                            (UnitPlan){(int)(synthetic_random(&random) % (uint32_t)(g->unit[u].n_use + 1)),
                                       synthetic_random(&random) % 3 ? ON_GPU : ON_HOST, synthetic_random(&random) % 2,
                                       (Hold)(synthetic_random(&random) % HOLD_COUNT)};
                    } while (plan_unit_fault(&g->unit[u], &plan.unit[u]));
                plan.update_after_bp = round % 4 == 0;
                plan.gradient_window_bytes = round % 3 == 0 ? largest_grad_bytes(g) : 0;
                int64_t t;
                assert_int_equal(plan_time(&d, g, p, &plan, NULL, &t), ST_OK);
                assert_true(bound <= t);
            }
        }
        arena_close(a);
    }
}

/* The optimum of the search lies between the bound and a little above it where the CPU's updates are all that counts.
 */
static void tight_where_updates_rule(void **state)
{
    (void)state;
    Diag d = {0};
    Arena *a = arena_open();
    Graph *g;
    Profile *p;
    synthetic_make(a, 2, 5, &g, &p);
    synthetic_no_residents(p);
    for (int u = 0; u < p->n_unit; u++)
        p->unit[u].update.median_ns *= 20;
    PlanOptions o = {.algorithm = "auto", .reserve_factor = -1};
    Plan *plan;
    assert_int_equal(plan_make(&d, a, g, p, &o, &plan), ST_OK);
    assert_true(plan->model_ns >= plan->bound_ns);
    assert_true(plan_gap_percent(plan) < 1);
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_above_any_plan),
        cmocka_unit_test(not_above_any_plan_with_clip),
        cmocka_unit_test(not_above_random_plans),
        cmocka_unit_test(tight_where_updates_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
