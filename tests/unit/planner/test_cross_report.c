/* test_cross_report.c - what `plan --cross-check` says: every algorithm, the bound, the solver's optimum; and that a bound
 * that a plan undercuts is a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "tests/unit/planner/plans.h"

static Plan *planned(Arena *a, const Graph *g, const Profile *p, const char *algorithm, PlanOptions *options)
{
    Diag d = {0};
    Plan *plan;
    *options = (PlanOptions){.algorithm = algorithm, .reserve_factor = -1};
    if (plan_make(&d, a, g, p, options, &plan) != ST_OK)
        fail_msg("%s", d.message);
    return plan;
}

static void has_lines(const Text *t)
{
    static const char *const lines[] = {"\nnative-offload ", "\ndha ",     "\ndeepspeed-like ", "\nmemferry ",
                                        "\ngo-memferry ",    "\noptimal ", "\nthis plan ",      "\nproven bound ",
                                        "\nmilp"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(t->at, lines[i]))
            fail_msg("no line for %s in %s", lines[i] + 1, t->at);
}

/* One block, nothing lives on the GPU: the solver ends, at the bound. */
static void test_closed(void **state)
{
    (void)state;
    Diag d = {0};
    Arena *a = arena_open();
    Graph *g;
    Profile *p;
    PlanOptions options;
    Text t = {0};
    synthetic_make(a, 1, 3, &g, &p);
    synthetic_no_residents(p);
    Plan *plan = planned(a, g, p, "optimal", &options);
    if (plan_cross_check(&d, a, g, p, &options, plan, &t) != ST_OK)
        fail_msg("%s", d.message);
    has_lines(&t);
    if (plan->milp_ns < 0) {
        assert_non_null(strstr(t.at, "no answer: "));
    } else {
        assert_true(plan->milp_ns >= plan->bound_ns);
        assert_true(plan->milp_ns <= plan->model_ns);
    }
    text_free(&t);
    /* a bound that is too high: the solver has a plan below it, closed or not */
    d.quiet = true;
    plan->bound_ns = 2 * plan->model_ns;
    assert_int_equal(plan_cross_check(&d, a, g, p, &options, plan, &t), ST_FAILED);
    assert_non_null(strstr(d.message, "below the proven bound"));
    text_free(&t);
    arena_close(a);
}

/* More units than the solver's program can have: said, and no failure. */
static void test_too_many(void **state)
{
    (void)state;
    Diag d = {0};
    Arena *a = arena_open();
    Graph *g;
    Profile *p;
    PlanOptions options;
    Text t = {0};
    synthetic_make(a, 7, 5, &g, &p);
    synthetic_no_residents(p);
    assert_true(g->n_unit > 40);
    Plan *plan = planned(a, g, p, "native-offload", &options);
    if (plan_cross_check(&d, a, g, p, &options, plan, &t) != ST_OK)
        fail_msg("%s", d.message);
    has_lines(&t);
    assert_non_null(strstr(t.at, "not run: "));
    assert_int_equal(plan->milp_ns, -1);
    text_free(&t);
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_closed), cmocka_unit_test(test_too_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
