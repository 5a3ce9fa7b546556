/* The page and the trace of plans drawn at random, with the worst names: well formed, alone, complete. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

#include "planner/plan_search.h"
#include "report/page.h"
#include "tests/html_check.h"
#include "tests/trace_check.h"
#include "tests/unit/planner/plans.h"

typedef struct Case {
    Arena *a;
    Graph *g;
    Profile *p;
    Plan *plan;
    StepList *s;
    Report *r;
} Case;

/* evaluated: with results and a layout, which takes the longest. */
static void make(Case *c, uint64_t *rng, bool evaluated)
{
    static const char *const names[] = {"<script>alert(1)</script>",
                                        "\"><img src=x onerror=alert(1)>",
                                        "a&b'c",
                                        "</svg></style>",
                                        "tab\there\x01",
                                        "\xff\xfe bytes",
                                        "-->"};
    *c = (Case){.a = arena_open()};
    Diag d = {0};
    small_graph(c->a, rng, &c->g, &c->p);
    for (int i = 0; i < c->g->n_unit; i++)
        c->g->unit[i].name = arena_printf(c->a, "%s%d", names[i % 7], i);
    for (int i = 0; i < c->g->n_layer; i++) {
        c->g->layer[i].name = arena_printf(c->a, "%s layer %d", names[i % 7], i);
        c->g->layer[i].op = names[(i + 3) % 7];
    }
    for (int i = 0; i < c->g->node.count; i++)
        c->g->node.at[i].name = names[i % 7];
    static DimBinding dim[] = {{"<b>", 3}};
    c->p->options.path = "/home/<i>/model<\">.onnx";
    c->p->options.n_dim = 1;
    c->p->options.dim = dim;
    c->p->device.name = names[1];
    c->plan = random_plan(c->a, rng, c->g);
    c->plan->algorithm = "auto";
    c->plan->reserve_factor = -1;
    c->plan->milp_ns = -1;
    if (evaluated) {
        plans_leave_gpu(c->g, c->plan); /* such a plan needs more memory than most of the algorithms, */
        synthetic_no_residents(c->p);   /* and their optimum takes long */
    }
    if (evaluated)
        assert_int_equal(plan_evaluate(&d, c->a, c->g, c->p, c->plan), ST_OK);
    c->plan->budget_bytes = c->plan->peak_bytes; /* some algorithms fit, some do not */
    c->plan->host_budget_bytes = c->p->device.host_memory_bytes;
    assert_int_equal(steps_build(&d, c->a, c->g, c->plan, &c->s), ST_OK);
    assert_int_equal(steps_time(&d, c->s, c->p), ST_OK);
}

static void test_page(void **state)
{
    (void)state;
    static HtmlCheck html;
    uint64_t rng = 7;
    int out = 0, in = 0;
    for (int round = 0; round < 2; round++) {
        Case c;
        Diag d = {0};
        make(&c, &rng, true);
        assert_int_equal(report_make(&d, c.a, c.g, c.p, c.plan, c.s, &c.r), ST_OK);
        assert_int_equal(report_algorithms(&d, c.a, c.r), ST_OK);
        for (int i = 0; i < c.r->n_algorithm; i++)
            *(c.r->algorithm[i].plan ? &in : &out) += 1;
        Text t = {0};
        assert_int_equal(report_html(&d, c.r, &t), ST_OK);
        if (!html_check(&html, t.at))
            fail_msg("round %d: %s", round, html.why);
        assert_null(strstr(t.at, "<img"));
        assert_null(strstr(t.at, "<i>/"));
        assert_null(strstr(t.at, "/home"));
        text_free(&t);
        arena_close(c.a);
    }
    assert_true(in > 0 && out > 0);
}

/* Against the list of steps and a timeline of its own. */
static void test_trace(void **state)
{
    (void)state;
    uint64_t rng = 11;
    for (int round = 0; round < 12; round++) {
        Case c;
        Diag d = {0};
        make(&c, &rng, false);
        Report r = {.graph = c.g, .profile = c.p, .plan = c.plan, .steps = c.s};
        int64_t *live;
        assert_int_equal(simulate(&d, c.a, c.s, &c.p->device, true, &r.time), ST_OK);
        assert_int_equal(memory_profile(&d, c.a, c.s, &live), ST_OK);
        r.live = live;
        Text t = {0};
        text_add(&t, "{");
        assert_int_equal(report_trace(&d, &r, &t), ST_OK);
        json_error_t error;
        json_t *json = json_loads(t.at, JSON_REJECT_DUPLICATES, &error);
        if (!json)
            fail_msg("round %d: %s", round, error.text);
        TraceCheck trace;
        if (!trace_check(&trace, json))
            fail_msg("round %d: %s", round, trace.why);
        assert_int_equal(trace.n_span, 2 * c.s->n_step);
        int flows = 0, kernels = 0;
        for (int i = 0; i < c.s->n_step; i++) {
            kernels += c.s->step[i].stream == STREAM_COMPUTE;
            for (int k = 0; k < c.s->step[i].n_wait; k++)
                flows += c.s->step[i].wait[k].distance ? 1 : 2; /* one reaches back to before the trace */
        }
        assert_int_equal(trace.n_flow, flows);
        assert_int_equal(trace.n_counter, 2 * kernels);
        trace_close(&trace);
        json_decref(json);
        text_free(&t);
        arena_close(c.a);
    }
}

/* The two iterations that the timeline gives are consecutive: what repeats does so after a period. */
static void test_previous_iteration(void **state)
{
    (void)state;
    uint64_t rng = 13;
    int repeating = 0;
    for (int round = 0; round < 12; round++) {
        Case c;
        Diag d = {0};
        Timeline t;
        make(&c, &rng, false);
        assert_int_equal(simulate(&d, c.a, c.s, &c.p->device, true, &t), ST_OK);
        assert_int_equal(t.steady, t.cycle > 0);
        for (int i = 0; i < c.s->n_step; i++) {
            int64_t shift = t.start_ns[i] - t.previous_start_ns[i];
            if (t.cycle == 1)
                assert_true(llabs(shift - t.period_ns) <= 1);
            assert_true(t.previous_end_ns[i] <= t.start_ns[i] && t.previous_start_ns[i] <= t.previous_end_ns[i]);
            for (int k = 0; k < c.s->step[i].n_wait; k++) { /* waits are kept across the iterations */
                const Wait *w = &c.s->step[i].wait[k];
                assert_true((w->distance ? t.previous_end_ns : t.end_ns)[w->step] <= t.start_ns[i]);
            }
        }
        repeating += t.cycle == 1;
        arena_close(c.a);
    }
    assert_true(repeating > 6);
}

static void test_view(void **state)
{
    (void)state;
    uint64_t rng = 17;
    for (int round = 0; round < 3; round++) {
        Case c;
        Diag d = {0};
        make(&c, &rng, true);
        for (int i = 0; i < c.g->n_layer;
             i++) /* map keys and values are read back as they were only when they are text */
            c.g->layer[i].name = arena_printf(c.a, "layer '%d' \"x\"", i);
        for (int i = 0; i < c.g->n_unit; i++)
            c.g->unit[i].name = arena_printf(c.a, "unit <%d>", i);
        memset(c.plan->profile_hash, '0', 32);
        Text t = {0};
        plan_yaml_text(c.g, c.plan, "profile.yaml", &t);
        char path[] = "/tmp/ferry_view_XXXXXX";
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, t.at, t.size), (ssize_t)t.size);
        close(fd);
        PlanView *file, *memory;
        PlanDiff *x;
        assert_int_equal(plan_view_read(&d, c.a, path, &file), ST_OK);
        assert_int_equal(plan_view_of(&d, c.a, c.g, c.plan, &memory), ST_OK);
        assert_int_equal(plan_diff(&d, c.a, file, memory, &x), ST_OK);
        assert_int_equal(x->n_diff, 0);
        assert_int_equal(file->n_unit, c.g->n_unit);
        assert_int_equal(file->plan->iteration_ns, c.plan->iteration_ns);
        /* results that are older than the choices */
        d.quiet = true;
        Plan stale = *c.plan;
        stale.iteration_ns++;
        stale.peak_bytes--;
        assert_int_equal(plan_restate(&d, c.s, c.p, &stale), ST_OK);
        assert_int_equal(d.warnings, 2);
        assert_int_equal(stale.iteration_ns, c.plan->iteration_ns);
        assert_int_equal(stale.peak_bytes, c.plan->peak_bytes);
        assert_int_equal(stale.live_bytes, c.plan->live_bytes);
        assert_int_equal(stale.host_bytes, c.plan->host_bytes);
        assert_int_equal(stale.resource_bound_ns, c.plan->resource_bound_ns);
        unlink(path);
        text_free(&t);
        arena_close(c.a);
    }
}

/* Each allocation fails once: an error, nothing lost (the sanitizer looks for that). */
static void test_no_memory(void **state)
{
    (void)state;
    uint64_t rng = 19;
    Case c;
    Diag d = {0};
    make(&c, &rng, true);
    assert_int_equal(report_make(&d, c.a, c.g, c.p, c.plan, c.s, &c.r), ST_OK);
    int failed = 0;
    for (long n = 1; n < 200; n++) {
        Diag e = {0};
        Text html = {0}, json = {0};
        base_fail_alloc(n);
        Status st = report_html(&e, c.r, &html);
        if (st == ST_OK)
            st = report_trace(&e, c.r, &json);
        base_fail_alloc(0);
        text_free(&html);
        text_free(&json);
        if (st == ST_OK)
            break;
        assert_int_equal(st, ST_FAILED);
        failed++;
    }
    assert_true(failed > 5);
    arena_close(c.a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_page), cmocka_unit_test(test_trace),
                                       cmocka_unit_test(test_previous_iteration), cmocka_unit_test(test_view),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
