/* Plans with recomputation, on a small GPT-2: what is chosen, by hand and by budget, what it takes, and plan.yaml. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "planner/plan_search.h"
#include "tests/unit/planner/plans.h"

typedef struct World {
    Diag d;
    Arena *a;
    Model *m;
    Graph *g;
    Profile *p;
} World;

static World world_open(void)
{
    World w = {.a = arena_open()};
    DimBinding dim[] = {{"batch", 4}, {"seq", 32}};
    ModelOptions options = {.path = FERRY_SOURCE_DIR "/tests/models/gpt2/loss-ts.onnx", .n_dim = 2, .dim = dim};
    ProfileOptions device = {.device = "model:" FERRY_SOURCE_DIR "/tests/data/mixed-device.yaml"};
    w.d.quiet = true;
    if (graph_from_options(&w.d, w.a, &options, &w.m, &w.g) != ST_OK ||
        profile_make(&w.d, w.a, w.g, &options, &device, &w.p) != ST_OK)
        fail_msg("%s", w.d.message);
    hash_hex("x", 1, w.p->hash);
    return w;
}

static void world_close(World *w)
{
    graph_close(w->g);
    model_close(w->m);
    arena_close(w->a);
}

static Plan *make(World *w, int recompute)
{
    Diag d = {.quiet = true};
    Plan *plan;
    PlanOptions o = {.algorithm = "memferry", .reserve_factor = -1, .recompute = recompute};
    if (plan_make(&d, w->a, w->g, w->p, &o, &plan) != ST_OK)
        fail_msg("%s", d.message);
    return plan;
}

static void verify(World *w, const Plan *plan)
{
    Diag d = {.quiet = true};
    StepList *s;
    assert_int_equal(steps_build(&d, w->a, plan->graph, plan, &s), ST_OK);
    if (plan_verify(&d, w->a, s, &plan->layout) != ST_OK)
        fail_msg("%s", d.message);
}

/* The candidates of an algorithm, by what they need. */
static int64_t least_bytes(Search *s, bool with)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < s->found.count; i++) {
        Candidate *c = s->found.at[i];
        if (!c->proposed || (!with && c->plan.n_recompute > 0))
            continue;
        assert_int_equal(search_size(s, c), ST_OK);
        least = c->peak_bytes < least ? c->peak_bytes : least;
    }
    return least;
}

/* More budget is never slower, and what fits is proved; the least budget is far below that without recomputation. What is
 * computed again is chosen only where that is needed. */
static void test_budgets(void **state)
{
    (void)state;
    enum { BUDGETS = 40 };
    World w = world_open();
    const char *const algorithm[] = {"optimal", "auto"};
    for (int k = 0; k < (getenv("FERRY_RANDOM_INSTANCES") ? 1 : 2); k++) { /* less under sanitizers */
        PlanOptions o = {.algorithm = algorithm[k], .reserve_factor = -1, .recompute = RECOMPUTE_AUTO};
        Search s = {.d = &w.d, .a = w.a, .plain = w.g, .p = w.p, .o = &o};
        int64_t bound, before = INT64_MAX;
        Candidate *c, *fastest, *last = NULL;
        assert_int_equal(search_open(&s), ST_OK);
        assert_int_equal(search_optimum(&s, &bound), ST_OK);
        assert_int_equal(algorithm_find(algorithm[k])->propose(&s), ST_OK);
        int64_t least = least_bytes(&s, true), kept = least_bytes(&s, false);
        assert_int_equal(search_choose(&s, INT64_MAX, INT64_MAX, &fastest), ST_OK);
        assert_int_equal(fastest->plan.n_recompute, 0);
        assert_true(least * 2 < kept);
        assert_int_equal(search_choose(&s, least - 1, INT64_MAX, &c), ST_OK);
        assert_null(c);
        int different = 0, with = 0;
        for (int i = 0; i <= BUDGETS; i++) {
            int64_t budget = least + (fastest->peak_bytes - least) * i / BUDGETS;
            assert_int_equal(search_choose(&s, budget, INT64_MAX, &c), ST_OK);
            assert_true(c->peak_bytes <= budget && c->iteration_ns <= before && c->iteration_ns >= fastest->iteration_ns);
            assert_true(k == 1 || c->iteration_ns >= bound);
            assert_true(budget >= kept || c->plan.n_recompute > 0);
            before = c->iteration_ns;
            if (c == last)
                continue;
            last = c;
            different++;
            with += c->plan.n_recompute > 0;
            assert_int_equal(plan_evaluate(&w.d, w.a, c->plan.graph, w.p, &c->plan), ST_OK);
            verify(&w, &c->plan);
        }
        print_message("%s: %lld bytes at least, %lld when all is kept, %lld for the fastest; %d plans, %d with recomputation\n",
                      algorithm[k], (long long)least, (long long)kept, (long long)fastest->peak_bytes, different, with);
        assert_true(with > 4);
        search_close(&s);
    }
    world_close(&w);
}

static const Graph *graph_of(World *w, int segments)
{
    PlanOptions o = {.algorithm = "memferry", .reserve_factor = -1};
    Search s = {.d = &w->d, .a = w->a, .plain = w->g, .p = w->p, .o = &o};
    const Graph *g;
    if (recompute_evenly(&s, segments, &g) != ST_OK)
        fail_msg("%s", w->d.message);
    return g;
}

static void test_by_hand(void **state)
{
    (void)state;
    World w = world_open();
    Plan *none = make(&w, 0), *plan = make(&w, 3), *same;
    assert_int_equal(plan->n_recompute, 3);
    assert_int_equal(plan->graph->n_again, 3);
    assert_ptr_equal(plan->graph->plain, w.g);
    assert_true(plan->live_bytes < none->live_bytes && plan->compute_ns > none->compute_ns);
    assert_int_equal(plan->bound_ns, none->bound_ns);
    verify(&w, plan);
    /* a graph with recomputation means the model's */
    PlanOptions o = {.algorithm = "memferry", .reserve_factor = -1};
    Diag d = {.quiet = true};
    assert_int_equal(plan_make(&d, w.a, plan->graph, w.p, &o, &same), ST_OK);
    assert_int_equal(same->iteration_ns, none->iteration_ns);
    o.recompute = 7;
    assert_int_equal(plan_make(&d, w.a, w.g, w.p, &o, &same), ST_USAGE);
    assert_non_null(strstr(d.message, "at most 6"));
    for (int n = 1; n <= 6; n++) /* equal sizes: as many as asked for */
        assert_int_equal(graph_of(&w, n)->n_again, n);
    world_close(&w);
}

/* Each graph saves bytes over the one before, for time. */
static void test_graphs(void **state)
{
    (void)state;
    World w = world_open();
    PlanOptions o = {.algorithm = "auto", .reserve_factor = -1};
    Search s = {.d = &w.d, .a = w.a, .plain = w.g, .p = w.p, .o = &o};
    const Graph **g;
    int n, before = 0;
    assert_int_equal(search_open(&s), ST_OK);
    assert_int_equal(recompute_graphs(&s, &g, &n), ST_OK);
    assert_true(n > 2);
    for (int i = 0; i < n; i++) {
        Plan plan;
        StepList *list;
        int64_t again = 0, forward = 0;
        int copies = 0;
        assert_int_equal(search_enter(&s, g[i]), ST_OK);
        assert_int_equal(search_blank(&s, &plan), ST_OK);
        assert_int_equal(steps_build(&w.d, w.a, g[i], &plan, &list), ST_OK);
        assert_int_equal(steps_time(&w.d, list, w.p), ST_OK);
        for (int k = 0; k < list->n_step; k++) {
            if (list->step[k].kind != STEP_KERNEL || list->step[k].phase != PHASE_RP)
                continue;
            again += list->step[k].duration_ns;
            copies++;
            for (int j = 0; j < k; j++) /* as long as the kernel that it copies, but for rounding */
                if (list->step[j].kind == STEP_KERNEL && list->step[j].node == g[i]->node.at[list->step[k].node].origin) {
                    forward += list->step[j].duration_ns;
                    assert_true(llabs(list->step[j].duration_ns - list->step[k].duration_ns) <= 1);
                }
        }
        assert_true(llabs(again - forward) <= copies);
        assert_true(copies > before || i > 0);
        before = copies;
    }
    search_close(&s);
    world_close(&w);
}

/* Choices go to a graph with recomputation and back; drawn plans of both are proved. */
static void test_adopted_and_drawn(void **state)
{
    (void)state;
    World w = world_open();
    DeviceFacts device = {.chunk_bytes = 4096, .alignment_bytes = 256};
    uint64_t rng = 11;
    for (int round = 0; round < 12; round++) {
        const Graph *g = graph_of(&w, 1 + round % 6);
        Plan *plan = random_plan(w.a, &rng, round % 2 ? g : w.g), other = *plan;
        StepList *s;
        int64_t live;
        if (round % 2 == 0) {
            other.unit = ARENA_NEW(w.a, UnitPlan, g->n_unit);
            for (int u = 0; u < g->n_unit; u++) {
                other.unit[u] = plan_adopt(&w.g->unit[u], &g->unit[u], plan->unit[u]);
                assert_null(plan_unit_fault(&g->unit[u], &other.unit[u]));
                UnitPlan back = plan_adopt(&g->unit[u], &w.g->unit[u], other.unit[u]);
                assert_int_equal(back.first_gpu_use, plan->unit[u].first_gpu_use);
                assert_int_equal(back.hold, plan->unit[u].hold);
            }
        }
        assert_int_equal(steps_build(&w.d, w.a, g, &other, &s), ST_OK);
        Layout l;
        assert_int_equal(memory_plan(&w.d, w.a, s, &device, &l, &live), ST_OK);
        if (plan_verify(&w.d, w.a, s, &l) != ST_OK)
            fail_msg("%s", w.d.message);
        /* the proof knows the order of the graph */
        for (int i = 1; i < s->n_step; i++)
            if (s->step[i].kind == STEP_KERNEL && s->step[i - 1].kind == STEP_KERNEL && s->step[i].phase == PHASE_RP) {
                Step kept = s->step[i];
                Diag d = {.quiet = true};
                s->step[i] = s->step[i - 1];
                s->step[i - 1] = kept;
                assert_int_equal(plan_verify(&d, w.a, s, &l), ST_FAILED);
                kept = s->step[i];
                s->step[i] = s->step[i - 1];
                s->step[i - 1] = kept;
            }
    }
    world_close(&w);
}

static void expect_refused(World *w, const char *text, const char *find, const char *replace, const char *says)
{
    const char *at = strstr(text, find);
    assert_non_null(at);
    char *edited = arena_printf(w->a, "%.*s%s%s", (int)(at - text), text, replace, at + strlen(find)), path[] = P_tmpdir "/recompute_XXXXXX";
    Diag d = {.quiet = true};
    YamlNode *top;
    Plan *plan;
    int file = mkstemp(path);
    assert_true(file >= 0 && write(file, edited, strlen(edited)) == (ssize_t)strlen(edited));
    close(file);
    Status st = plan_yaml_head(&d, w->a, path, &top, &plan);
    if (st == ST_OK)
        st = plan_yaml_body(&d, w->a, top, w->g, w->p, true, plan);
    unlink(path);
    assert_int_equal(st, ST_MODEL);
    if (!strstr(d.message, says))
        fail_msg("'%s' is not in '%s'", says, d.message);
}

static void test_yaml(void **state)
{
    (void)state;
    World w = world_open();
    Plan *plan = make(&w, 3), *again;
    Text one = {0}, two = {0};
    plan_yaml_text(plan->graph, plan, "profile.yaml", &one);
    char path[] = P_tmpdir "/recompute_XXXXXX";
    YamlNode *top;
    int file = mkstemp(path);
    assert_true(file >= 0 && write(file, one.at, one.size) == (ssize_t)one.size);
    close(file);
    assert_int_equal(plan_yaml_head(&w.d, w.a, path, &top, &again), ST_OK);
    unlink(path);
    if (plan_yaml_body(&w.d, w.a, top, w.g, w.p, true, again) != ST_OK)
        fail_msg("%s", w.d.message);
    plan_yaml_text(again->graph, again, "profile.yaml", &two);
    assert_string_equal(one.at, two.at);
    assert_non_null(strstr(one.at, "/rp\"")); /* a load for what is computed again */
    verify(&w, again);
    char *name[2];
    for (int i = 0; i < 2; i++)
        name[i] = arena_printf(w.a, "  - \"%s\"\n", plan->recompute[i]);
    expect_refused(&w, one.at, name[0], "  - nobody\n", "nobody");
    expect_refused(&w, one.at, name[1], name[0], "does not follow");
    expect_refused(&w, one.at, name[0], "", "buffer");
    expect_refused(&w, one.at, name[0], "  - [a]\n", "list of tensors");
    expect_refused(&w, one.at, "recompute:\n", "recompute: 3\nx:\n", "recompute");
    text_free(&one);
    text_free(&two);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),           cmocka_unit_test(test_graphs), cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_adopted_and_drawn), cmocka_unit_test(test_yaml),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
