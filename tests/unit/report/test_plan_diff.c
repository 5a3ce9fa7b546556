/* What counts as a difference and as a regression, on views made by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "report/report.h"

static Plan plan_of(int64_t time, int64_t peak)
{
    return (Plan){.algorithm = "auto",
                  .reserve_factor = -1,
                  .iteration_ns = time,
                  .peak_bytes = peak,
                  .model_ns = time,
                  .bound_ns = time,
                  .profile_hash = "00000000000000000000000000000000"};
}

static const UnitView BASE[] = {
    {"wte", {"gfgb", "head/fp", "gpu", "early"}},
    {"h.0", {"gfgb", "h.0/fp", "gpu", "early"}},
    {"h.1", {"dha", "never", "host", "late"}},
};

static PlanDiff *diff_of(Diag *d, Arena *a, const PlanView *from, const PlanView *to)
{
    PlanDiff *x;
    assert_int_equal(plan_diff(d, a, from, to, &x), ST_OK);
    return x;
}

static void test_units(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    Plan plan = plan_of(100, 100);
    PlanView from = {"a.yaml", &plan, 3, (UnitView *)BASE}, none = {"none.yaml", &plan, 0, NULL};
    /* any one choice makes a unit changed; order does not matter */
    for (int c = 0; c < CHOICE_COUNT; c++) {
        UnitView unit[] = {BASE[2], BASE[0], BASE[1]};
        unit[2].choice[c] = "other";
        PlanView to = {"b.yaml", &plan, 3, unit};
        PlanDiff *x = diff_of(&d, a, &from, &to);
        assert_int_equal(x->n_diff, 1);
        assert_int_equal(x->changed, 1);
        assert_string_equal(x->diff[0].b->name, "h.0");
        assert_string_equal(x->diff[0].a->name, "h.0");
    }
    UnitView renamed[] = {BASE[0], {"h.2", {"dha", "never", "host", "late"}}, BASE[2]};
    PlanView to = {"b.yaml", &plan, 3, renamed};
    PlanDiff *x = diff_of(&d, a, &from, &to);
    assert_int_equal(x->changed, 0);
    assert_int_equal(x->only_a, 1);
    assert_int_equal(x->only_b, 1);
    assert_int_equal(x->n_diff, 2);
    assert_int_equal(x->n_unit, 4);
    assert_int_equal(diff_of(&d, a, &from, &from)->n_diff, 0);
    assert_int_equal(diff_of(&d, a, &none, &from)->only_b, 3);
    assert_int_equal(diff_of(&d, a, &from, &none)->only_a, 3);
    assert_int_equal(diff_of(&d, a, &none, &none)->n_unit, 0);
    arena_close(a);
}

static Status gate(Diag *d, int64_t time, int64_t peak, int changed, const Tolerance *t)
{
    Arena *a = arena_open();
    Plan before = plan_of(100000, 1000000), after = plan_of(time, peak);
    UnitView unit[] = {BASE[0], BASE[1], BASE[2]};
    for (int i = 0; i < changed; i++)
        unit[i].choice[CHOICE_UPDATE] = "other";
    PlanView from = {"base.yaml", &before, 3, (UnitView *)BASE}, to = {"plan.yaml", &after, 3, unit};
    memset(d, 0, sizeof *d);
    PlanDiff *x = diff_of(d, a, &from, &to);
    Text text = {0};
    plan_gate_json(x, t, &text);
    json_t *json = json_loads(text.at, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(json);
    Status status = plan_gate(d, x, t);
    assert_int_equal(json_is_true(json_object_get(json, "ok")), status == ST_OK);
    json_decref(json);
    text_free(&text);
    arena_close(a);
    return status;
}

static void test_gate(void **state)
{
    (void)state;
    Diag d;
    Tolerance t = TOLERANCE_DEFAULT, zero = {0, 0, 0}, wide = {50, 50, 3};
    assert_int_equal(ST_REGRESSION, 5);
    assert_int_equal(gate(&d, 100000, 1000000, 0, &zero), ST_OK);
    assert_int_equal(gate(&d, 100001, 1000000, 0, &zero), ST_REGRESSION);
    assert_int_equal(gate(&d, 1, 1, 0, &zero), ST_OK);         /* better is no regression */
    assert_int_equal(gate(&d, 101000, 1010000, 0, &t), ST_OK); /* exactly the tolerance */
    assert_int_equal(gate(&d, 101001, 1000000, 0, &t), ST_REGRESSION);
    assert_non_null(strstr(d.message, "slower by 1%"));
    assert_null(strstr(d.message, "larger"));
    assert_int_equal(gate(&d, 100000, 1010001, 0, &t), ST_REGRESSION);
    assert_non_null(strstr(d.message, "larger by 1%"));
    assert_int_equal(gate(&d, 100000, 1000000, 1, &t), ST_REGRESSION);
    assert_non_null(strstr(d.message, "1 unit changed (tolerance 0): wte (update early -> other)"));
    assert_int_equal(gate(&d, 150000, 1500000, 3, &wide), ST_OK);
    assert_int_equal(gate(&d, 200000, 2000000, 3, &t), ST_REGRESSION);
    assert_non_null(strstr(d.message, "slower by 100% (200 us, was 100 us; tolerance 1%); larger by 100%"));
    assert_non_null(strstr(d.message, "plan.yaml against base.yaml"));
    assert_true(d.hint[0]);
}

static void test_tolerance(void **state)
{
    (void)state;
    Tolerance t = TOLERANCE_DEFAULT;
    Diag d = {0};
    assert_int_equal(tolerance_parse(&d, "time=2.5%,modes=7", &t), ST_OK);
    assert_true(t.time_percent == 2.5 && t.peak_percent == 1 && t.modes == 7);
    assert_int_equal(tolerance_parse(&d, "peak=0%", &t), ST_OK);
    assert_true(t.peak_percent == 0 && t.modes == 7);
    static const char *const bad[] = {"",           "time",
                                      "time=",      "time=1",
                                      "time=-1%",   "time=nan%",
                                      "time=inf%",  "time=1%%",
                                      "modes=1%",   "modes=-1",
                                      "modes=1.5",  "speed=1%",
                                      "time=1%,",   "time=1%;peak=1%",
                                      "time= 1%",   "modes=99999999999999999999",
                                      "time=1e999%"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Diag e = {0};
        Tolerance before = t;
        if (tolerance_parse(&e, bad[i], &t) != ST_USAGE)
            fail_msg("'%s' was accepted", bad[i]);
        assert_memory_equal(&before, &t, sizeof t);
        assert_true(e.hint[0]);
    }
}

static void test_percent(void **state)
{
    (void)state;
    assert_true(change_percent(200, 250) == 25);
    assert_true(change_percent(200, 150) == -25);
    assert_true(change_percent(0, 0) == 0);
    assert_true(isinf(change_percent(0, 1)));
}

static void test_prints(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    Plan before = plan_of(100, 0), after = plan_of(110, 5);
    after.algorithm = "dha";
    UnitView unit[] = {BASE[0], BASE[1], {"quote\"\n<", {"dfgb", "x/bp", "host", "late"}}};
    unit[0].choice[CHOICE_SERVED_FROM] = "wte/fp";
    unit[1].choice[CHOICE_MODE] = "dha";
    PlanView from = {"a.yaml", &before, 3, (UnitView *)BASE}, to = {"b.yaml", &after, 3, unit};
    PlanDiff *x = diff_of(&d, a, &from, &to);
    Text text = {0}, json = {0};
    plan_diff_print(x, &text);
    static const char *const wanted[] = {
        "+10.00%", "gfgb -> dha", "head/fp -> wte/fp", "2 of 4 units changed, 1 only in a, 1 only in b", "\n+ quote",
        "\n- h.1", "\n~ wte"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!strstr(text.at, wanted[i]))
            fail_msg("'%s' is not in:\n%s", wanted[i], text.at);
    plan_diff_json(x, &json);
    json_error_t error;
    json_t *j = json_loads(json.at, JSON_REJECT_DUPLICATES, &error);
    if (!j)
        fail_msg("%s: %s", error.text, json.at);
    json_t *units = json_object_get(j, "units");
    assert_int_equal(json_array_size(units), 4);
    assert_string_equal(json_string_value(json_object_get(json_array_get(units, 2), "name")), "quote\"\n<");
    assert_true(json_is_null(json_object_get(json_array_get(units, 2), "a")));
    assert_true(json_is_null(json_object_get(json_object_get(j, "change_percent"), "peak_bytes")));
    assert_true(fabs(json_number_value(json_object_get(json_object_get(j, "change_percent"), "iteration_ns")) - 10) <
                1e-9);
    json_decref(j);
    text_free(&text);
    text_free(&json);
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_units), cmocka_unit_test(test_gate),
                                       cmocka_unit_test(test_tolerance), cmocka_unit_test(test_percent),
                                       cmocka_unit_test(test_prints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
