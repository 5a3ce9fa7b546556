/* test_cross_report.c - what `plan --cross-check` says: every algorithm, the bound, the solver's optimum; and that a bound
 * that a plan undercuts is a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "tests/unit/planner/plans.h"

typedef struct Case {
    Diag d;
    Arena *a;
    Graph *g;
    Profile *p;
    PlanOptions options;
    Plan *plan;
    Text table;
} Case;

/* Nothing lives on the GPU; planned and cross-checked. */
static void checked(Case *c, int blocks, unsigned seed, const char *algorithm)
{
    *c = (Case){.a = arena_open(), .options = {.algorithm = algorithm, .reserve_factor = -1}};
    synthetic_make(c->a, blocks, seed, &c->g, &c->p);
    synthetic_no_residents(c->p);
    if (plan_make(&c->d, c->a, c->g, c->p, &c->options, &c->plan) != ST_OK ||
        plan_cross_check(&c->d, c->a, c->g, c->p, &c->options, c->plan, &c->table) != ST_OK)
        fail_msg("%s", c->d.message);
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

/* One block: the solver ends, at the bound. */
static void test_closed(void **state)
{
    (void)state;
    Case c;
    checked(&c, 1, 3, "optimal");
    has_lines(&c.table);
    assert_int_equal(c.plan->milp_ns, c.plan->bound_ns);
    assert_int_equal(c.plan->milp_ns, c.plan->model_ns);
    text_free(&c.table);
    /* a bound that is too high: the solver has a plan below it, closed or not */
    c.d.quiet = true;
    c.plan->bound_ns = 2 * c.plan->model_ns;
    assert_int_equal(plan_cross_check(&c.d, c.a, c.g, c.p, &c.options, c.plan, &c.table), ST_FAILED);
    assert_non_null(strstr(c.d.message, "below the proven bound"));
    text_free(&c.table);
    arena_close(c.a);
}

/* More units than the solver's program can have: said, and no failure. */
static void test_too_many(void **state)
{
    (void)state;
    Case c;
    checked(&c, 7, 5, "native-offload");
    assert_true(c.g->n_unit > 40);
    has_lines(&c.table);
    assert_non_null(strstr(c.table.at, "not run: "));
    assert_int_equal(c.plan->milp_ns, -1);
    text_free(&c.table);
    arena_close(c.a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_closed), cmocka_unit_test(test_too_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
