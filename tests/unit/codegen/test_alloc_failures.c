/* test_alloc_failures.c - memory runs out at the n-th allocation, from importing a model to emitting its schedule and
 * exporting its weights: a clean error each time, and nothing is lost (the sanitizer build tells). A sample of all n,
 * or with FERRY_ALL_ALLOCATIONS=1 every one. */
#include "graph/onnx_export.h"
#include "tiny.h"

#include <time.h>

static const char *const NAMES[] = {"ids",         "m.wte.weight", "e",       "scale",   "s",
                                    "m.fc.weight", "m.fc.bias",    "fc",      "fc_tanh", "m.out.weight",
                                    "m.out.bias",  "out",          "out_tanh"};

enum { SECONDS = 6, ALL_UP_TO = 150 };

/* The road, then schedule.yaml and the untrained weights back into the model. */
static Status whole(Diag *d, Arena *a, const char *dir, Tiny *t)
{
    TRY(tiny_road(d, a, dir, "mse", "go-memferry", &(EmitOptions){.force = true}, t));
    char *out = path_join(a, dir, "out"), *trained = path_join(a, dir, "t.onnx");
    char *weights = out ? path_join(a, out, "weights.safetensors") : NULL;
    Schedule *s;
    ExportReport report;
    if (!weights || !trained)
        return diag_oom(d);
    TRY(schedule_read(d, a, out, &s));
    ExportWeight *list = ARENA_NEW(a, ExportWeight, s->n_param);
    ferry_weights *w = NULL;
    if (!list)
        return diag_oom(d);
    assert_int_equal(ferry_weights_open(weights, &w), FERRY_OK);
    for (int i = 0; i < s->n_param; i++)
        list[i] = (ExportWeight){s->param[i].name, ferry_weights_find(w, s->param[i].name), false};
    ExportOptions o = {.model = s->model_path,
                       .out = trained,
                       .model_hash = s->model_hash,
                       .n_weight = s->n_param,
                       .weight = list,
                       .inline_bytes = 0,
                       .force = false};
    Status status = onnx_export(d, a, &o, &report);
    ferry_weights_close(w);
    return status;
}

/* Allocations asked for, 0 when the n-th was not reached. */
static long attempt(const char *dir, long n)
{
    Diag d = {.quiet = true};
    Tiny t = {0};
    long before = base_alloc_count();
    base_fail_alloc(n);
    Arena *a = arena_open();
    Status status = a ? whole(&d, a, dir, &t) : diag_oom(&d);
    base_fail_alloc(0);
    tiny_close(&t);
    arena_close(a);
    if (n == 0 && status != ST_OK)
        fail_msg("%s", d.message);
    if (n > 0 && (status != ST_FAILED || !strstr(d.message, "out of memory")))
        fail_msg("allocation %ld: status %d, %s", n, status, d.message);
    return base_alloc_count() - before;
}

static void test_everywhere(void **state)
{
    (void)state;
    Arena *a = arena_open();
    char *dir = tiny_dir(a);
    tiny_write(path_join(a, dir, "m.onnx"), NAMES, 2);
    attempt(dir, 0);
    long total = attempt(dir, 0);
    assert_true(total > 1000);
    /* The early ones all, then in growing steps from both ends, then between those as long as there is time. */
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    long tried = 0, all_up_to = getenv("FERRY_ALL_ALLOCATIONS") ? total : ALL_UP_TO;
    for (long n = 1; n <= all_up_to; n++, tried++)
        attempt(dir, n);
    for (long n = total; n > ALL_UP_TO; n -= 1 + (total - n) / 8, tried++)
        attempt(dir, n);
    uint64_t place = 0;
    const uint64_t golden = 0x9e3779b97f4a7c15u; /* fractions of a turn by the golden ratio fill the range evenly */
    do {
        place += golden;
        attempt(dir, 1 + (long)((double)place / 18446744073709551616.0 * (double)(total - 1)));
        tried++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - from.tv_sec < SECONDS && tried < total);
    print_message("%ld allocations, %ld of them failed\n", total, tried);
    attempt(dir, 0);
    tiny_remove(dir);
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everywhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
