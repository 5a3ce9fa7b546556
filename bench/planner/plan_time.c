/* plan_time.c - how long the parts of planning take on one profile: plan_time PROFILE. Prints milliseconds of the processor:
 * the papers' Alg. 1 and 2 in all readings, the knapsack (mean of 33 limits), the optimum with its proof; and the gap. */
#include <time.h>

#include "planner/optimal.h"
#include "planner/problem.h"

static double processor_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

enum { LIMITS = 32 };

static Status knapsacks(Diag *d, Arena *a, const Graph *g, const Problem *problem)
{
    UnitPlan all = {.grad = ON_GPU};
    int64_t *bytes = ARENA_NEW(a, int64_t, g->n_unit), *gain = ARENA_NEW(a, int64_t, g->n_unit), sum = 0;
    bool *keep = ARENA_NEW(a, bool, g->n_unit);
    if (!bytes || !gain || !keep)
        return diag_oom(d);
    for (int u = 0; u < g->n_unit; u++) {
        bytes[u] = g->unit[u].grad_bytes;
        gain[u] = bytes[u] > 0 ? problem_grad_gain_ns(problem, u, &all) : 0;
        sum += bytes[u];
    }
    for (int i = 0; i <= LIMITS; i++)
        TRY(gradient_offload(d, g->n_unit, bytes, gain, sum / LIMITS * i, keep));
    return ST_OK;
}

static Status measure(Diag *d, Arena *a, const Graph *g, const Profile *p)
{
    Problem *problem;
    Optimum o;
    LpDomain domain = {0};
    double start = processor_ms();
    TRY(problem_make(d, a, g, p, &problem));
    for (int fp = 0; fp < FP_READING_COUNT; fp++)
        for (int bp = 0; bp < BP_READING_COUNT; bp++) {
            MemferryState state;
            TRY(memferry_fp(d, a, problem, (FpReading)fp, &state));
            TRY(memferry_bp(d, a, problem, (BpReading)bp, &state));
        }
    double memferry = processor_ms() - start;
    start = processor_ms();
    TRY(knapsacks(d, a, g, problem));
    double knapsack = (processor_ms() - start) / (LIMITS + 1);
    start = processor_ms();
    TRY(optimal_solve(d, a, g, p, &domain, 0, NULL, &o));
    double optimal = processor_ms() - start;
    double gap = o.bound_ns > 0 ? 100.0 * (double)(o.model_ns - o.bound_ns) / (double)o.bound_ns : 0;
    printf("%d %.2f %.2f %.1f %.6f\n", g->n_unit, memferry, knapsack, optimal, gap);
    return ST_OK;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fputs("usage: plan_time PROFILE\n", stderr);
        return 2;
    }
    Diag d = {.quiet = true};
    Arena *a = arena_open();
    Profile *p = NULL;
    Model *m = NULL;
    Graph *g = NULL;
    Status st = a ? profile_load(&d, a, argv[1], false, NULL, &p, &m, &g) : ST_FAILED;
    if (st == ST_OK)
        st = measure(&d, a, g, p);
    if (st != ST_OK)
        diag_print(&d, stderr);
    graph_close(g);
    model_close(m);
    arena_close(a);
    return (int)st;
}
