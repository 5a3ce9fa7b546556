/* plans.h - plans with choices drawn at random, for tests. */
#ifndef FERRY_TESTS_PLANS_H
#define FERRY_TESTS_PLANS_H

#include "planner/plan.h"
#include "tests/unit/planner/random_steps.h"

/* A graph of one to three blocks, small sizes. */
static inline void small_graph(Arena *a, uint64_t *rng, Graph **g, Profile **p)
{
    SyntheticShape shape = {.blocks = 1 + random_below(rng, 3),
                            .hidden = 32 * (1 + random_below(rng, 4)),
                            .heads = 4,
                            .vocab = 100 + random_below(rng, 400),
                            .batch = 2,
                            .seq = 16,
                            .freeze_positions = random_below(rng, 2) == 0,
                            .seed = synthetic_random(rng)};
    synthetic_make_shape(a, shape, g, p);
}

static inline Plan *random_plan(Arena *a, uint64_t *rng, const Graph *g)
{
    Plan *plan = ARENA_NEW(a, Plan, 1);
    plan->n_unit = g->n_unit;
    plan->unit = ARENA_NEW(a, UnitPlan, g->n_unit);
    plan->clip = random_below(rng, 2) == 0;
    plan->update_after_bp = random_below(rng, 3) == 0;
    if (random_below(rng, 2) == 0)
        plan->gradient_window_bytes = 1 + random_below(rng, 60000);
    if (random_below(rng, 2) == 0)
        plan->load_window_bytes = 1 + random_below(rng, 60000);
    int kind = random_below(rng, 3); /* all on the device, all mixed, all on the host */
    for (int u = 0; u < g->n_unit; u++) {
        int uses = g->unit[u].n_use;
        plan->unit[u].first_gpu_use = kind == 0 ? 0 : kind == 1 ? random_below(rng, uses + 1) : uses;
        plan->unit[u].grad = kind == 0 ? ON_GPU : kind == 1 ? (Where)random_below(rng, 2) : ON_HOST;
        plan->unit[u].late = random_below(rng, 2) == 0;
        UnitPlan held = plan->unit[u];
        held.hold = (Hold)random_below(rng, HOLD_COUNT);
        if (held.hold == HOLD_RESIDENT)
            plan_set_mode(&g->unit[u], MODE_RESIDENT, &plan->unit[u]);
        else if (!plan_unit_fault(&g->unit[u], &held))
            plan->unit[u] = held;
    }
    return plan;
}

/* Nothing lives on the GPU. */
static inline void plans_leave_gpu(const Graph *g, Plan *plan)
{
    for (int u = 0; u < g->n_unit; u++)
        plan->unit[u].hold = plan->unit[u].hold == HOLD_RESIDENT ? HOLD_STEP : plan->unit[u].hold;
}

#endif
