/* The timeline: against a longest-path computation on random lists without contention, and against cases worked out by
 * hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/planner/random_steps.h"

enum { LONG = 72, IN_FLIGHT = 4 };

static DeviceFacts facts(void)
{
    DeviceFacts f = {.name = "test", .chunk_bytes = 4096, .alignment_bytes = 64};
    for (int i = 0; i < LINK_CLASS_COUNT; i++)
        for (int j = 0; j < LINK_CLASS_COUNT; j++)
            f.rate_permille[i][j] = 1000;
    return f;
}

/* Ends of all steps of `iterations`: the latest end of everything that a step needs, plus its duration. */
static int64_t *longest_path(Arena *a, const StepList *s, int iterations)
{
    int n = s->n_step;
    int64_t *end = ARENA_NEW(a, int64_t, (size_t)n * (size_t)iterations);
    for (int u = 0; u < n * iterations; u++) {
        const Step *x = &s->step[u % n];
        int64_t start = 0;
        for (int v = 0; v < u; v++) {
            bool needed = s->step[v % n].stream == x->stream || s->step[v % n].stream == STREAM_HOST ||
                          v / n <= u / n - IN_FLIGHT;
            for (int k = 0; k < x->n_wait; k++)
                needed = needed || (x->wait[k].step == v % n && u / n - v / n == x->wait[k].distance);
            start = needed && end[v] > start ? end[v] : start;
        }
        end[u] = start + x->duration_ns;
    }
    return end;
}

static void test_longest_path(void **state)
{
    (void)state;
    uint64_t rng = 21;
    int transients = 0, unsteady = 0;
    for (int round = 0; round < 250; round++) {
        Arena *a = arena_open();
        Diag d = {0};
        StepList *s = random_list(a, &rng,
                                  (RandomShape){.steps = 3 + random_below(&rng, 12),
                                                .device = 1 + random_below(&rng, 6),
                                                .host = 1 + random_below(&rng, 4),
                                                .hosts = random_below(&rng, 2) == 0});
        assert_int_equal(steps_derive_waits(&d, a, s, NULL, 0), ST_OK);
        for (int i = 0; i < s->n_step; i++) {
            s->step[i].duration_ns = random_below(&rng, 4) == 0 ? 0 : random_below(&rng, 100);
            s->step[i].link = (unsigned)random_below(&rng, 32);
        }
        DeviceFacts f = facts();
        for (int i = 0; i < LINK_CLASS_COUNT; i++)
            f.rate_permille[i][random_below(&rng, LINK_CLASS_COUNT)] = 500;
        Timeline t;
        assert_int_equal(simulate(&d, a, s, &f, false, &t), ST_OK);
        int64_t *end = longest_path(a, s, LONG);
        int n = s->n_step, it = t.iterations - 1;
        int64_t zero = INT64_MAX, busy[STREAM_COUNT] = {0};
        for (int i = 0; i < n; i++) {
            int64_t start = end[it * n + i] - s->step[i].duration_ns;
            zero = start < zero ? start : zero;
            busy[s->step[i].stream] += s->step[i].duration_ns;
        }
        for (int i = 0; i < n; i++) {
            assert_int_equal(t.end_ns[i], end[it * n + i] - zero);
            assert_int_equal(t.start_ns[i], end[it * n + i] - s->step[i].duration_ns - zero);
        }
        for (int k = 0; k < STREAM_COUNT; k++)
            assert_int_equal(t.busy_ns[k], busy[k]);
        /* twelve iterations: a multiple of every cycle */
        int64_t twelve = end[LONG * n - 1] - end[(LONG - 12) * n - 1];
        if (t.steady)
            assert_true(llabs(12 * t.period_ns - twelve) <= 6);
        else /* slack is used up too slowly to see the end of it: the busiest stream tells */
            assert_true(llabs(12 * t.period_ns - twelve) <= twelve / 50);
        unsteady += !t.steady;
        transients += t.iterations > 2;
        arena_close(a);
    }
    assert_true(unsteady < 10 && transients > 50);
}

/* Two streams and HOST steps around them, so that each iteration starts from an idle machine: waits of HOST hold all
 * else. */
static StepList *pair_list(Arena *a, int64_t compute_ns, unsigned compute_link, int64_t load_ns, unsigned load_link)
{
    StepList *s = ARENA_NEW(a, StepList, 1);
    s->n_step = 3;
    s->step = ARENA_NEW(a, Step, 3);
    s->step[0] = (Step){.kind = STEP_STAGE, .stream = STREAM_HOST, .unit = -1, .segment = -1};
    s->step[1] = (Step){.kind = STEP_KERNEL, .stream = STREAM_COMPUTE, .node = -1, .unit = -1, .segment = -1};
    s->step[2] = (Step){.kind = STEP_LOAD, .stream = STREAM_LOAD, .unit = -1, .segment = -1};
    s->step[0].wait = ARENA_NEW(a, Wait, 2);
    s->step[0].n_wait = 2;
    s->step[0].wait[0] = (Wait){1, 1};
    s->step[0].wait[1] = (Wait){2, 1};
    s->step[1].duration_ns = compute_ns;
    s->step[1].link = compute_link;
    s->step[2].duration_ns = load_ns;
    s->step[2].link = load_link;
    return s;
}

static void check_pair(const DeviceFacts *f, int64_t compute_ns, unsigned compute_link, int64_t load_ns,
                       unsigned load_link, int64_t compute_end, int64_t load_end)
{
    Arena *a = arena_open();
    Diag d = {0};
    StepList *s = pair_list(a, compute_ns, compute_link, load_ns, load_link);
    Timeline t;
    assert_int_equal(simulate(&d, a, s, f, true, &t), ST_OK);
    assert_true(t.steady);
    assert_int_equal(t.start_ns[1], 0);
    assert_int_equal(t.start_ns[2], 0);
    assert_int_equal(t.end_ns[1], compute_end);
    assert_int_equal(t.end_ns[2], load_end);
    assert_int_equal(t.period_ns, compute_end > load_end ? compute_end : load_end);
    assert_int_equal(t.busy_ns[STREAM_COMPUTE], compute_end);
    assert_int_equal(simulate(&d, a, s, f, false, &t), ST_OK);
    assert_int_equal(t.end_ns[1], compute_ns);
    assert_int_equal(t.end_ns[2], load_ns);
    arena_close(a);
}

static void test_contention_by_hand(void **state)
{
    (void)state;
    DeviceFacts f = facts();
    f.rate_permille[LINK_DHA_READ][LINK_H2D] = 500;
    f.rate_permille[LINK_H2D][LINK_DHA_READ] = 100;
    f.rate_permille[LINK_DHA_WRITE][LINK_H2D] = 250;
    unsigned read = 1u << LINK_DHA_READ, write = 1u << LINK_DHA_WRITE, h2d = 1u << LINK_H2D, update = 1u << LINK_UPDATE;
    /* the kernel takes 100 at half speed = 200, in which the load does 20 of its 100; the other 80 alone */
    check_pair(&f, 100, read, 100, h2d, 200, 280);
    /* the load is over first: 10 of work at a tenth = 100, in which the kernel does 50; the other 50 alone */
    check_pair(&f, 100, read, 10, h2d, 150, 100);
    /* classes that do not meet */
    check_pair(&f, 100, update, 100, h2d, 100, 100);
    check_pair(&f, 100, 0, 100, h2d, 100, 100);
    /* reads and writes: the slower of the two for the kernel; nothing slows the load beside DHA writes, reads do */
    check_pair(&f, 100, read | write, 1000, h2d, 400, 1360);
    check_pair(&f, 100, write, 40, h2d, 130, 40);
    /* thirds are rounded up to a thousandth of a nanosecond */
    f.rate_permille[LINK_DHA_READ][LINK_H2D] = 300;
    f.rate_permille[LINK_H2D][LINK_DHA_READ] = 1000;
    check_pair(&f, 1, read, 100, h2d, 3, 100);
    check_pair(&f, 100, read, 1000, h2d, 333, 1000);
}

/* Three at once: the load meets a DHA kernel and a store; the least of its rates holds, and it changes when they end.
 */
static void test_three_at_once(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    DeviceFacts f = facts();
    f.rate_permille[LINK_H2D][LINK_DHA_READ] = 200;
    f.rate_permille[LINK_H2D][LINK_D2H] = 500;
    StepList *s = pair_list(a, 50, 1u << LINK_DHA_READ, 100, 1u << LINK_H2D);
    Step *step = ARENA_NEW(a, Step, 4);
    memcpy(step, s->step, 3 * sizeof *step);
    step[3] = (Step){.kind = STEP_STORE,
                     .stream = STREAM_STORE,
                     .unit = -1,
                     .segment = -1,
                     .duration_ns = 110,
                     .link = 1u << LINK_D2H};
    s->step = step;
    s->n_step = 4;
    Wait *wait = ARENA_NEW(a, Wait, 3);
    memcpy(wait, step[0].wait, 2 * sizeof *wait);
    wait[2] = (Wait){3, 1};
    step[0].wait = wait;
    step[0].n_wait = 3;
    Timeline t;
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_OK);
    /* to 50 at 0.2: 10 done; to 110 at 0.5: 30 more; the last 60 alone */
    assert_int_equal(t.end_ns[1], 50);
    assert_int_equal(t.end_ns[3], 110);
    assert_int_equal(t.end_ns[2], 170);
    assert_int_equal(t.period_ns, 170);
    arena_close(a);
}

/* The hand-over of iteration k-1 at the end of k makes loops of two iterations: two chains that alternate. */
static void test_cycle_of_two(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    DeviceFacts f = facts();
    StepList *s = ARENA_NEW(a, StepList, 1);
    s->n_step = 4;
    s->step = ARENA_NEW(a, Step, 4);
    Wait waits[3] = {{0, 0}, {1, 0}, {2, 1}};
    static const StepStream stream[] = {STREAM_LOAD, STREAM_COMPUTE, STREAM_STORE, STREAM_HOST};
    for (int i = 0; i < 4; i++) {
        s->step[i] = (Step){.kind = STEP_KERNEL,
                            .stream = stream[i],
                            .node = -1,
                            .unit = -1,
                            .segment = -1,
                            .duration_ns = i < 3 ? 35 : 0};
        s->step[i].n_wait = i > 0;
        s->step[i].wait = i > 0 ? &waits[i - 1] : NULL;
    }
    Timeline t;
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_OK);
    assert_true(t.steady);
    /* a round trip of 105 every two iterations: 52.5 in the mean, rounded up */
    assert_int_equal(t.period_ns, 53);
    arena_close(a);
}

/* Falling behind a little every iteration: a chain of slack is used up only after many. */
static void test_queues_are_finite(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    DeviceFacts f = facts();
    StepList *s = pair_list(a, 100, 0, 90, 0);
    s->step[0].n_wait = 0; /* nothing holds the load back but the length of the queue */
    Timeline t;
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_OK);
    assert_true(t.steady);
    assert_int_equal(t.period_ns, 100);
    s->step[2].duration_ns = 100000;
    s->step[1].duration_ns = 99999;
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_OK);
    assert_int_equal(t.period_ns, 100000);
    arena_close(a);
}

/* A load beside a DHA kernel and an update: the rates of the three at once hold while all run, those of the pair after. A kernel
 * that reads and writes goes at the slower of its two rates, and others beside it at the least. */
static void test_measured_together(void **state)
{
    (void)state;
    enum { READ = 1 << LINK_DHA_READ, WRITE = 1 << LINK_DHA_WRITE, H2D = 1 << LINK_H2D, UPDATE = 1 << LINK_UPDATE };
    Arena *a = arena_open();
    Diag d = {0};
    DeviceFacts f = facts();
    f.rate_permille[LINK_H2D][LINK_UPDATE] = 500;
    f.rate_permille[LINK_UPDATE][LINK_H2D] = 800;
    f.rate_together[READ | H2D | UPDATE][LINK_DHA_READ] = 900;
    f.rate_together[READ | H2D | UPDATE][LINK_H2D] = 250;
    f.rate_together[READ | H2D | UPDATE][LINK_UPDATE] = 600;
    f.rate_together[WRITE | H2D | UPDATE][LINK_DHA_WRITE] = 450;
    f.rate_together[WRITE | H2D | UPDATE][LINK_H2D] = 750;
    f.rate_together[WRITE | H2D | UPDATE][LINK_UPDATE] = 1000;
    for (int both = 0; both < 2; both++) {
        StepList *s = pair_list(a, 90, both ? READ | WRITE : READ, 100, H2D);
        Step *step = ARENA_NEW(a, Step, 4);
        memcpy(step, s->step, 3 * sizeof *step);
        step[3] = (Step){.kind = STEP_ADAMW, .stream = STREAM_UPDATE, .unit = -1, .segment = -1, .duration_ns = 300, .link = UPDATE};
        s->step = step;
        s->n_step = 4;
        Wait wait[3] = {step[0].wait[0], step[0].wait[1], {3, 1}};
        step[0].wait = wait;
        step[0].n_wait = 3;
        Timeline t;
        assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_OK);
        int64_t kernel = both ? 200 : 100; /* at 0.45 and 0.9 */
        int64_t load = kernel + (both ? 100 : 150); /* a quarter of it as the kernel ends or a half, the rest at half speed */
        assert_int_equal(t.end_ns[1], kernel);
        assert_int_equal(t.end_ns[2], load);
        assert_int_equal(t.end_ns[3], load + 300 - kernel * 6 / 10 - (load - kernel) * 8 / 10);
    }
    arena_close(a);
}

/* Events and waits take the streams of a GPU time, with contention; the update's stream none. */
static void test_synchronization(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    DeviceFacts f = facts();
    f.record_ns = 3;
    f.wait_ns = 5;
    f.wait_update_ns = 7;
    StepList *s = ARENA_NEW(a, StepList, 1);
    s->n_step = 4;
    s->step = ARENA_NEW(a, Step, 4);
    Wait waits[4] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}};
    static const StepStream stream[] = {STREAM_LOAD, STREAM_COMPUTE, STREAM_UPDATE, STREAM_COMPUTE};
    for (int i = 0; i < 4; i++)
        s->step[i] = (Step){.kind = STEP_KERNEL,
                            .stream = stream[i],
                            .unit = -1,
                            .segment = -1,
                            .duration_ns = 100,
                            .n_wait = i > 0,
                            .wait = i > 0 ? &waits[i - 1] : NULL};
    Wait back = {3, 1};
    s->step[0].wait = &back;
    s->step[0].n_wait = 1;
    Timeline t;
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_OK);
    assert_true(t.steady);
    assert_int_equal(t.end_ns[0], 108);       /* a wait for COMPUTE, an event */
    assert_int_equal(t.end_ns[1], 108 + 108); /* the same with LOAD */
    assert_int_equal(t.end_ns[2], 216 + 100);
    assert_int_equal(t.end_ns[3], 316 + 110); /* a wait for the update, an event */
    assert_int_equal(t.period_ns, 426);
    /* each of the four hands over later: between streams of the GPU, and to the update and back */
    f.signal_ns = 20;
    f.signal_update_ns = 30;
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_OK);
    assert_true(t.steady);
    assert_int_equal(t.start_ns[1], 108 + 20);
    assert_int_equal(t.start_ns[2], 236 + 30);
    assert_int_equal(t.start_ns[3], 366 + 30);
    assert_int_equal(t.period_ns, 426 + 2 * 20 + 2 * 30);
    /* what was over long before costs nothing */
    s->step[2].duration_ns = 1;
    s->step[3].wait = &waits[0];
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_OK);
    assert_int_equal(t.start_ns[3], t.end_ns[1]);
    assert_int_equal(simulate(&d, a, s, &f, false, &t), ST_OK);
    assert_int_equal(t.period_ns, 300);
    arena_close(a);
}

static void test_errors(void **state)
{
    (void)state;
    Arena *a = arena_open();
    DeviceFacts f = facts();
    StepList *s = pair_list(a, 100, 0, 90, 0);
    Timeline t;
    Diag d = {0};
    f.rate_permille[2][3] = 0;
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_MODEL);
    f = facts();
    f.rate_together[7][0] = 1001;
    memset(&d, 0, sizeof d);
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_MODEL);
    f = facts();
    Wait never[1] = {{2, 0}};
    s->step[1].wait = never;
    s->step[1].n_wait = 1;
    Wait back[1] = {{1, 0}};
    s->step[2].wait = back;
    s->step[2].n_wait = 1;
    memset(&d, 0, sizeof d);
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_FAILED);
    assert_non_null(strstr(d.message, "kernel 1"));
    s->step[1].n_wait = s->step[2].n_wait = 0;
    s->step[1].duration_ns = INT64_MAX / 2;
    memset(&d, 0, sizeof d);
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_MODEL);
    assert_null(t.start_ns);
    s->n_step = 0;
    memset(&d, 0, sizeof d);
    assert_int_equal(simulate(&d, a, s, &f, true, &t), ST_OK);
    assert_int_equal(t.period_ns, 0);
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_longest_path),      cmocka_unit_test(test_contention_by_hand),
        cmocka_unit_test(test_measured_together),
        cmocka_unit_test(test_synchronization),
        cmocka_unit_test(test_three_at_once),     cmocka_unit_test(test_cycle_of_two),
        cmocka_unit_test(test_queues_are_finite), cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
