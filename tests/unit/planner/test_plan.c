/* test_plan.c - plans as a whole: budgets, rules, algorithms, plan.yaml, explanations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#include "planner/plan_search.h"
#include "planner/steps.h"
#include "synthetic.h"

typedef struct World {
    Arena *a;
    Graph *g;
    Profile *p;
    char dir[64], path[96];
} World;

static World *world_open(int blocks, unsigned seed)
{
    Arena *a = arena_open();
    World *w = ARENA_NEW(a, World, 1);
    w->a = a;
    synthetic_make_shape(a,
                         (SyntheticShape){.blocks = blocks,
                                          .hidden = 64,
                                          .heads = 2,
                                          .vocab = 400,
                                          .batch = 1,
                                          .seq = 32,
                                          .freeze_positions = seed % 2 == 0,
                                          .seed = seed},
                         &w->g, &w->p);
    strcpy(w->dir, P_tmpdir "/test_plan_XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->path, sizeof w->path, "%s/plan.yaml", w->dir);
    char *profile = arena_printf(a, "%s/profile.yaml", w->dir);
    Diag d = {0};
    assert_int_equal(file_write(&d, profile, "x", 1), ST_OK);
    w->p->path = profile;
    hash_hex("x", 1, w->p->hash);
    return w;
}

static void world_close(World *w)
{
    unlink(w->path);
    unlink(w->p->path);
    rmdir(w->dir);
    arena_close(w->a);
}

static PlanOptions options(const char *algorithm)
{
    return (PlanOptions){.algorithm = algorithm, .reserve_factor = -1};
}

static Plan *make(World *w, PlanOptions o)
{
    Diag d = {.quiet = true};
    Plan *plan;
    if (plan_make(&d, w->a, w->g, w->p, &o, &plan) != ST_OK)
        print_message("%s\n", d.message);
    assert_int_equal(d.status, ST_OK);
    assert_non_null(plan);
    return plan;
}

static Status make_fails(World *w, PlanOptions o, Diag *d)
{
    Plan *plan;
    *d = (Diag){.quiet = true};
    Status st = plan_make(d, w->a, w->g, w->p, &o, &plan);
    assert_null(plan);
    assert_true(d->message[0] != '\0');
    return st;
}

static int unit_at(const World *w, const char *name)
{
    for (int i = 0; i < w->g->n_unit; i++)
        if (strcmp(w->g->unit[i].name, name) == 0)
            return i;
    fail();
    return -1;
}

/* ---- algorithms
 * ------------------------------------------------------------------------------------------------------- */

static void algorithms_choose_what_they_say(void **state)
{
    (void)state;
    World *w = world_open(2, 1);
    Plan *native = make(w, options("native-offload")), *deep = make(w, options("deepspeed-like"));
    Plan *dha = make(w, options("dha")), *memferry = make(w, options("memferry")), *best = make(w, options("auto"));
    assert_true(native->update_after_bp);
    assert_true(deep->update_after_bp);
    assert_int_equal(deep->n_alloc, w->g->n_param);
    assert_int_equal(native->n_alloc, 0);
    assert_true(deep->gradient_window_bytes > 0);
    for (int i = 0; i < w->g->n_unit; i++) {
        assert_int_equal(plan_mode(&w->g->unit[i], &native->unit[i]), MODE_GFGB);
        assert_int_equal(plan_mode(&w->g->unit[i], &deep->unit[i]), MODE_GFGB);
        assert_int_equal(plan_mode(&w->g->unit[i], &dha->unit[i]), MODE_DHA);
        assert_int_equal(native->unit[i].grad, ON_GPU);
        assert_int_equal(dha->unit[i].grad, ON_HOST);
        assert_int_equal(memferry->unit[i].grad, ON_GPU);
    }
    assert_true(deep->compute_ns > native->compute_ns);
    assert_true(dha->peak_bytes < native->peak_bytes);
    assert_true(dha->compute_ns > native->compute_ns);
    /* auto has all of them among its candidates */
    Plan *all[] = {native, deep, dha, memferry};
    for (int i = 0; i < 4; i++) {
        assert_true(best->iteration_ns <= all[i]->iteration_ns);
        assert_true(all[i]->model_ns >= all[i]->bound_ns);
        assert_true(all[i]->model_ns >= all[i]->resource_bound_ns);
        assert_true(all[i]->peak_bytes % w->p->device.chunk_bytes == 0);
        assert_int_equal(all[i]->bound_ns, native->bound_ns);
    }
    world_close(w);
}

static void reserve_factor_limits_gradients(void **state)
{
    (void)state;
    World *w = world_open(3, 2);
    PlanOptions o = options("go-memferry");
    int64_t before = -1;
    for (int i = 0; i <= 4; i++) {
        o.reserve_factor = i / 4.0;
        Plan *plan = make(w, o);
        int64_t gpu = 0;
        for (int u = 0; u < w->g->n_unit; u++)
            gpu += plan->unit[u].grad == ON_GPU ? w->g->unit[u].grad_bytes : 0;
        assert_true((double)gpu <= o.reserve_factor * (double)all_grad_bytes(w->g));
        assert_true(gpu >= before);
        before = gpu;
        assert_true(plan->reserve_factor == o.reserve_factor);
    }
    assert_int_equal(before, all_grad_bytes(w->g));
    world_close(w);
}

static void same_input_same_plan(void **state)
{
    (void)state;
    World *w = world_open(2, 3);
    Text one = {0}, two = {0};
    plan_yaml_text(w->g, make(w, options("auto")), "profile.yaml", &one);
    plan_yaml_text(w->g, make(w, options("auto")), "profile.yaml", &two);
    assert_string_equal(one.at, two.at);
    text_free(&one);
    text_free(&two);
    world_close(w);
}

static void wrong_options_are_named(void **state)
{
    (void)state;
    World *w = world_open(1, 1);
    Diag d;
    assert_int_equal(make_fails(w, options("best"), &d), ST_USAGE);
    assert_non_null(strstr(d.hint, "go-memferry"));
    PlanOptions o = options("auto");
    o.reserve_factor = 0.5;
    assert_int_equal(make_fails(w, o, &d), ST_USAGE);
    o = options("go-memferry");
    o.reserve_factor = 1.5;
    assert_int_equal(make_fails(w, o, &d), ST_USAGE);
    o = options("memferry");
    o.n_rule = 1;
    o.rule = &(ModeRule){"nothing.*", MODE_DHA};
    assert_int_equal(make_fails(w, o, &d), ST_USAGE);
    assert_non_null(strstr(d.message, "nothing.*"));
    /* A position table is not read in BP: it cannot be loaded for it. */
    o.rule = &(ModeRule){"wpe", MODE_DFGB};
    assert_int_equal(make_fails(w, o, &d), ST_USAGE);
    world_close(w);
}

static void rules_pin_modes(void **state)
{
    (void)state;
    World *w = world_open(2, 1);
    ModeRule rules[] = {{"*.mlp.*", MODE_DHA}, {"*.1.mlp.c_fc", MODE_DFGB}, {"wte", MODE_GFGB}};
    int fc = unit_at(w, "transformer.h.1.mlp.c_fc");
    const char *names[] = {"native-offload", "dha", "deepspeed-like", "memferry", "go-memferry", "auto"};
    for (int k = 0; k < 6; k++) {
        PlanOptions o = options(names[k]);
        o.n_rule = 3;
        o.rule = rules;
        Plan *plan = make(w, o);
        for (int u = 0; u < w->g->n_unit; u++) {
            if (u == fc)
                assert_int_equal(plan_mode(&w->g->unit[u], &plan->unit[u]), MODE_DFGB);
            else if (strstr(w->g->unit[u].name, ".mlp."))
                assert_int_equal(plan_mode(&w->g->unit[u], &plan->unit[u]), MODE_DHA);
        }
        assert_int_equal(plan->unit[unit_at(w, "wte")].first_gpu_use, 0);
    }
    world_close(w);
}

/* Whatever is chosen, the proof goes through: orderings and layout are right for every mix of choices. */
static void plans_verify(void **state)
{
    (void)state;
    const char *names[] = {"native-offload", "dha", "deepspeed-like", "memferry", "go-memferry", "auto"};
    World *w = world_open(2, 4);
    for (int k = 0; k < 12; k++) {
        PlanOptions o = options(names[k / 2]);
        o.clip = k % 2;
        Plan *plan = make(w, o);
        Diag d = {0};
        StepList *s;
        assert_int_equal(steps_build(&d, w->a, w->g, plan, &s), ST_OK);
        assert_int_equal(plan_verify(&d, w->a, s, &plan->layout), ST_OK);
        assert_int_equal(plan->layout.reserved_bytes, plan->peak_bytes);
    }
    world_close(w);
}

/* ---- budgets
 * ---------------------------------------------------------------------------------------------------------- */

/* The size that a message ends with, as a person would paste it. */
static int64_t pasted(const char *message)
{
    Diag d = {0};
    int64_t bytes;
    const char *last = strrchr(message, ' ');
    assert_non_null(last);
    assert_int_equal(size_parse(&d, "--mem-budget", last + 1, &bytes), ST_OK);
    return bytes;
}

static void least_budget_works(void **state)
{
    (void)state;
    const char *names[] = {"native-offload", "dha", "deepspeed-like", "memferry", "go-memferry", "auto"};
    for (unsigned seed = 1; seed <= 2; seed++) {
        World *w = world_open(1, seed);
        for (int k = 0; k < 6; k++) {
            PlanOptions o = options(names[k]);
            Diag d;
            o.mem_budget_bytes = 4096;
            assert_int_equal(make_fails(w, o, &d), ST_NO_FIT);
            assert_non_null(strstr(d.message, names[k]));
            int64_t least = pasted(d.message);
            o.mem_budget_bytes = least;
            Plan *plan = make(w, o);
            assert_int_equal(plan->peak_bytes, least);
            o.mem_budget_bytes = least - w->p->device.chunk_bytes;
            assert_int_equal(make_fails(w, o, &d), ST_NO_FIT);
            assert_int_equal(pasted(d.message), least);
        }
        world_close(w);
    }
}

/* The kernels' scratch is device memory like any other: each plan takes it, and the budget has to hold it. */
static void scratch_counts(void **state)
{
    (void)state;
    enum { SCRATCH = 10 << 20 };
    World *w = world_open(1, 1);
    Plan *without = make(w, options("memferry"));
    w->p->device.scratch_bytes = SCRATCH;
    PlanOptions o = options("memferry");
    Plan *with = make(w, o);
    assert_int_equal(with->peak_bytes, without->peak_bytes + SCRATCH);
    assert_int_equal(with->layout.reserved_bytes, without->layout.reserved_bytes);
    assert_int_equal(with->live_bytes, without->live_bytes);
    Diag d;
    o.mem_budget_bytes = SCRATCH;
    assert_int_equal(make_fails(w, o, &d), ST_NO_FIT);
    o.mem_budget_bytes = pasted(d.message);
    assert_true(make(w, o)->peak_bytes >= SCRATCH + w->p->device.chunk_bytes);
    world_close(w);
}

static void least_host_budget_works(void **state)
{
    (void)state;
    World *w = world_open(1, 1);
    PlanOptions o = options("auto");
    Diag d;
    o.host_budget_bytes = 100; /* less than the inputs, even where all parameters live on the GPU */
    assert_int_equal(make_fails(w, o, &d), ST_NO_FIT);
    assert_non_null(strstr(d.message, "--host-budget"));
    o.host_budget_bytes = pasted(d.message);
    assert_true(make(w, o)->host_bytes <= o.host_budget_bytes);
    /* Neither fits: both are named, and together they work. */
    o.host_budget_bytes = 100;
    o.mem_budget_bytes = 1024;
    assert_int_equal(make_fails(w, o, &d), ST_NO_FIT);
    char mem[32], host[32];
    assert_int_equal(sscanf(d.hint, "use --mem-budget %31s --host-budget %31s", mem, host), 2);
    Diag e = {0};
    assert_int_equal(size_parse(&e, "", mem, &o.mem_budget_bytes), ST_OK);
    assert_int_equal(size_parse(&e, "", host, &o.host_budget_bytes), ST_OK);
    make(w, o);
    world_close(w);
}

static void more_budget_is_never_slower(void **state)
{
    (void)state;
    for (int clip = 0; clip < 2; clip++) {
        World *w = world_open(1, 5);
        PlanOptions o = options("auto");
        o.clip = clip;
        Diag d;
        o.mem_budget_bytes = 4096;
        assert_int_equal(make_fails(w, o, &d), ST_NO_FIT);
        int64_t least = pasted(d.message), most = make(w, options("native-offload"))->peak_bytes, before = INT64_MAX;
        int different = 0;
        for (int i = 0; i <= 8; i++) {
            o.mem_budget_bytes = least + (most - least) * i / 8;
            Plan *plan = make(w, o);
            assert_true(plan->peak_bytes <= o.mem_budget_bytes);
            assert_true(plan->iteration_ns <= before);
            different += plan->iteration_ns < before;
            before = plan->iteration_ns;
        }
        /* the frontier has more than its two ends */
        assert_true(different >= 4);
        world_close(w);
    }
}

/* ---- plan.yaml
 * -------------------------------------------------------------------------------------------------------- */

static Status read_back(World *w, Diag *d, bool force, Plan **plan)
{
    YamlNode *top;
    *d = (Diag){.quiet = true};
    TRY(plan_yaml_head(d, w->a, w->path, &top, plan));
    return plan_yaml_body(d, w->a, top, w->g, w->p, force, *plan);
}

static void yaml_round_trip(void **state)
{
    (void)state;
    const char *names[] = {"native-offload", "deepspeed-like", "go-memferry", "auto"};
    for (int k = 0; k < 4; k++) {
        World *w = world_open(1, (unsigned)k);
        Diag d = {.quiet = true};
        PlanOptions o = options(names[k]);
        o.clip = k % 2;
        if (k == 2)
            o.reserve_factor = 0.3;
        Plan *plan = make(w, o), *again;
        assert_int_equal(plan_write(&d, w->g, w->p, plan, w->path, false), ST_OK);
        assert_int_equal(read_back(w, &d, false, &again), ST_OK);
        assert_string_equal(again->profile_path, w->p->path);
        Text one = {0}, two = {0};
        plan_yaml_text(w->g, plan, "profile.yaml", &one);
        plan_yaml_text(w->g, again, "profile.yaml", &two);
        assert_string_equal(one.at, two.at);
        for (int i = 0; i < w->g->n_unit; i++) {
            assert_int_equal(plan->unit[i].first_gpu_use, again->unit[i].first_gpu_use);
            assert_int_equal(plan->unit[i].grad, again->unit[i].grad);
            assert_int_equal(plan->unit[i].late, again->unit[i].late);
        }
        /* Written again over itself: ours, not edited. */
        assert_int_equal(plan_write(&d, w->g, w->p, again, w->path, false), ST_OK);
        uint8_t *file;
        int64_t size;
        assert_int_equal(file_read(&d, w->path, 1 << 24, &file, &size), ST_OK);
        char *body = strchr((char *)file, '\n') + 1;
        assert_string_equal(body, one.at);
        assert_null(strstr(body, w->dir)); /* paths are relative */
        base_free(file);
        /* The results are those of the choices that were read. */
        Plan copy = *again;
        assert_int_equal(plan_evaluate(&d, w->a, w->g, w->p, &copy), ST_OK);
        assert_int_equal(copy.iteration_ns, plan->iteration_ns);
        assert_int_equal(copy.peak_bytes, plan->peak_bytes);
        text_free(&one);
        text_free(&two);
        world_close(w);
    }
}

/* The text with the first `find` after `after` replaced. */
static char *edited(World *w, const char *text, const char *after, const char *find, const char *replace)
{
    const char *at = strstr(text, after);
    assert_non_null(at);
    at = strstr(at, find);
    assert_non_null(at);
    return arena_printf(w->a, "%.*s%s%s", (int)(at - text), text, replace, at + strlen(find));
}

static void edits_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *after, *find, *replace, *says;
    } edits[] = {
        {"schema", "plan/1", "plan/2", "plan/2"},
        {"tool", "algorithm: auto", "algorithm: auto\nfoo: 1", "foo"},
        {"tool", "algorithm: auto", "algorithm: best", "best"},
        {"tool", "algorithm: auto\n", "", "algorithm"},
        {"options", "clip: false", "clip: maybe", "clip"},
        {"options", "reserve_factor: null", "reserve_factor: 1.5", "reserve_factor"},
        {"options", "allocations: 0", "allocations: -1", "allocations"},
        {"options", "gradient_window_bytes", "gradient_windows_bytes", "gradient_windows_bytes"},
        {"results", "peak_bytes: ", "peak_bytes: -", "peak_bytes"},
        {"results", "model_ns", "iteration_ns", "iteration_ns"},
        {"units", "\"wpe\"", "\"wpx\"", "wpx"},
        {"units", "\"wpe\"", "\"wte\"", "wte"},
        {"name: \"ln_f\"", "gradient: ", "gradient: x", "gradient"},
        {"name: \"ln_f\"", "update: ", "update: x", "update"},
        {"name: \"ln_f\"", "mode: ", "mode: x", "mode"},
        {"name: \"wpe\"", "mode: dha", "mode: gfgb", "wpe"},
        {"name: \"wpe\"", "served_from: never", "served_from: \"wte/fp\"", "wte/fp"},
        {"name: \"wpe\"", "served_from: never", "served_from: \"wpe\"", "wpe"},
        {"layout", "chunk_bytes: 4096", "chunk_bytes: 0", "chunk_bytes"},
        {"layout", "\"act:loss", "\"act:los", "act:loss"},
        {"layout", "buffers:", "buffers:\n    \"act:more\": [[0, 1]]", "act:more"},
        {"\"act:loss", "[[", "[[-", "range"},
        {"\"act:loss", "[[", "[7, [", "act:loss"},
    };
    World *w = world_open(1, 1);
    Diag d = {.quiet = true};
    PlanOptions o = options("auto");
    o.n_rule = 1;
    o.rule = &(ModeRule){"wpe", MODE_DHA};
    Plan *plan = make(w, o), *again;
    Text t = {0};
    plan_yaml_text(w->g, plan, "profile.yaml", &t);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        char *text = edited(w, t.at, edits[i].after, edits[i].find, edits[i].replace);
        d = (Diag){.quiet = true};
        assert_int_equal(file_write(&d, w->path, text, strlen(text)), ST_OK);
        Status st = read_back(w, &d, false, &again);
        if (st != ST_MODEL || !strstr(d.message, "plan.yaml:"))
            print_message("edit %d (%s): status %d, %s\n", (int)i, edits[i].replace, st, d.message);
        assert_int_equal(st, ST_MODEL);
        assert_non_null(strstr(d.message, "plan.yaml:"));
        if (strcmp(edits[i].says, "range") != 0 && !strstr(d.message, edits[i].says))
            print_message("edit %d: %s\n", (int)i, d.message);
        assert_true(strcmp(edits[i].says, "range") == 0 || strstr(d.message, edits[i].says));
    }
    /* Cut anywhere: never a crash, never a plan. */
    for (size_t cut = 0; cut + 2 < t.size; cut += 97) {
        assert_int_equal(file_write(&d, w->path, t.at, cut), ST_OK);
        assert_int_equal(read_back(w, &d, false, &again), ST_MODEL);
    }
    assert_int_equal(file_write(&d, w->path, t.at, t.size), ST_OK);
    assert_int_equal(read_back(w, &d, false, &again), ST_OK);
    text_free(&t);
    world_close(w);
}

static void another_profile_is_refused(void **state)
{
    (void)state;
    World *w = world_open(1, 1);
    Diag d = {.quiet = true};
    Plan *plan = make(w, options("memferry")), *again;
    assert_int_equal(plan_write(&d, w->g, w->p, plan, w->path, false), ST_OK);
    hash_hex("y", 1, w->p->hash);
    assert_int_equal(read_back(w, &d, false, &again), ST_MODEL);
    assert_non_null(strstr(d.message, "another profile"));
    assert_non_null(strstr(d.hint, "--force"));
    assert_int_equal(read_back(w, &d, true, &again), ST_OK);
    world_close(w);
}

/* ---- reports
 * ---------------------------------------------------------------------------------------------------------- */

static void json_has_the_keys(void **state)
{
    (void)state;
    World *w = world_open(1, 1);
    Plan *plan = make(w, options("auto"));
    Text t = {0};
    plan_print_json(w->g, plan, &t);
    json_error_t error;
    json_t *j = json_loads(t.at, JSON_REJECT_DUPLICATES, &error);
    assert_non_null(j);
    const char *keys[] = {"iteration_ns", "model_ns",  "bound_ns",   "resource_bound_ns", "compute_ns",   "h2d_ns",
                          "d2h_ns",       "update_ns", "peak_bytes", "live_bytes",        "budget_bytes", "host_bytes"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        assert_true(json_integer_value(json_object_get(j, keys[i])) > 0);
    assert_int_equal(json_integer_value(json_object_get(j, "model_ns")), plan->model_ns);
    assert_true(json_is_real(json_object_get(j, "gap_percent")));
    assert_true(json_is_null(json_object_get(j, "milp_ns")));
    assert_string_equal(json_string_value(json_object_get(j, "algorithm")), "auto");
    assert_int_equal(json_object_size(json_object_get(j, "modes")), w->g->n_unit);
    json_decref(j);
    text_free(&t);
    plan_print_table(w->g, plan, &t);
    assert_non_null(strstr(t.at, "proven bound"));
    text_free(&t);
    world_close(w);
}

/* The next best alternative of each unit is what plan_time says of it, and every unit has a line. */
static void explanation_covers_every_unit(void **state)
{
    (void)state;
    World *w = world_open(1, 1);
    Plan *plan = make(w, options("memferry"));
    Text t = {0};
    Diag d = {.quiet = true};
    assert_int_equal(plan_explain(&d, w->a, w->g, w->p, plan, &t), ST_OK);
    for (int i = 0; i < w->g->n_unit; i++) {
        char *line = arena_printf(w->a, "\n%s: ", w->g->unit[i].name);
        assert_non_null(strstr(t.at, line));
    }
    assert_non_null(strstr(t.at, "bottleneck"));
    assert_non_null(strstr(t.at, "next best"));
    text_free(&t);
    world_close(w);
}

static void memory_fails_cleanly(void **state)
{
    (void)state;
    World *w = world_open(0, 1);
    bool done = false;
    for (long n = 1; !done && n < 4000000; n += 1 + n / 7) {
        Arena *a = arena_open();
        Diag d = {.quiet = true};
        PlanOptions o = options("go-memferry");
        o.reserve_factor = 0.5;
        Plan *plan;
        base_fail_alloc(n);
        Status st = plan_make(&d, a, w->g, w->p, &o, &plan);
        base_fail_alloc(0);
        assert_true(st == ST_OK || st == ST_FAILED);
        assert_true((st == ST_OK) == (plan != NULL));
        done = st == ST_OK;
        arena_close(a);
    }
    assert_true(done);
    world_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(algorithms_choose_what_they_say),
        cmocka_unit_test(reserve_factor_limits_gradients),
        cmocka_unit_test(same_input_same_plan),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(rules_pin_modes),
        cmocka_unit_test(plans_verify),
        cmocka_unit_test(least_budget_works),
        cmocka_unit_test(scratch_counts),
        cmocka_unit_test(least_host_budget_works),
        cmocka_unit_test(more_budget_is_never_slower),
        cmocka_unit_test(yaml_round_trip),
        cmocka_unit_test(edits_are_refused),
        cmocka_unit_test(another_profile_is_refused),
        cmocka_unit_test(json_has_the_keys),
        cmocka_unit_test(explanation_covers_every_unit),
        cmocka_unit_test(memory_fails_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
