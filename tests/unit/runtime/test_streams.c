/* test_streams.c - conformance: streams, events and the device's sticky failure. Update streams are CPU threads on
 * every backend, and most tests use those; the last ones mix all kinds. */
#include "runtime/ferry.h"
#include "runtime/internal.h"
#include "test_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define OK(call) assert_int_equal(call, FERRY_OK)

static ferry_device *device;

static int open_device(void **state)
{
    (void)state;
    return ferry_device_open(test_device_name(), &device) == FERRY_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    ferry_device_close(device);
    device = NULL;
    return 0;
}

static ferry_stream *stream(void)
{
    ferry_stream *s;
    OK(ferry_stream_open(device, FERRY_STREAM_UPDATE, &s));
    return s;
}

static ferry_event *event(void)
{
    ferry_event *e;
    OK(ferry_event_open(device, &e));
    return e;
}

/* A gate that holds a stream until the test opens it. */
typedef struct gate {
    atomic_int open, reached;
} gate;

static void pass_gate(void *arg)
{
    gate *g = arg;
    atomic_store(&g->reached, 1);
    while (atomic_load(&g->open) == 0) {
        usleep(100);
    }
}

static void set_one(void *arg)
{
    atomic_store((atomic_int *)arg, 1);
}

/* ---- devices ---------------------------------------------------------------------------------------------------- */

static void test_device_names(void **state)
{
    (void)state;
    ferry_device *d = (ferry_device *)&d;
    /* without CUDA, without a driver, or without that many GPUs */
    assert_int_equal(ferry_device_open("cuda:4096", &d), FERRY_FAILED);
    assert_null(d);
    assert_non_null(strstr(ferry_error(), "device 'cuda:4096'"));
    const char *const wrong[] = {
        "", "Host", "cuda", "cuda:", "cuda:x", "cuda:1x", "gpu", "host:0", "cuda:99999999999999999999"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(ferry_device_open(wrong[i], &d), FERRY_USAGE);
        assert_null(d);
    }
    assert_int_equal(ferry_device_open(NULL, &d), FERRY_USAGE);
    assert_string_equal(ferry_device_name(device), test_device_name());
    assert_int_equal(ferry_device_chunk_bytes(device), test_on_host() ? 4096 : 2 << 20);
}

static void test_error_text(void **state)
{
    (void)state;
    char long_text[3000];
    memset(long_text, 'x', sizeof(long_text));
    long_text[sizeof(long_text) - 1] = '\0';
    assert_int_equal(ferryi_fail(FERRY_BAD_DATA, "%s", long_text), FERRY_BAD_DATA);
    assert_int_equal(strlen(ferry_error()), 1023);
    ferryi_fail(FERRY_FAILED, "inner %d", 7);
    ferryi_fail(FERRY_FAILED, "outer: %s", ferry_error());
    assert_string_equal(ferry_error(), "outer: inner 7");
}

/* ---- order ------------------------------------------------------------------------------------------------------ */

typedef struct append_task {
    int *list, *count, value;
} append_task;

static void append(void *arg)
{
    append_task *t = arg;
    t->list[(*t->count)++] = t->value;
}

static void test_order(void **state)
{
    (void)state;
    enum { TASKS = 20000 };
    int *list = calloc(TASKS, sizeof(int)), count = 0;
    gate g = {0};
    ferry_stream *s = stream();
    OK(ferry_stream_call(s, pass_gate, &g)); /* all of them queue up: enqueuing must not wait */
    for (int i = 0; i < TASKS; i++) {
        append_task t = {list, &count, i};
        OK(ferryi_stream_task(s, append, &t, sizeof(t)));
        t.value = -1; /* the task has its own copy */
    }
    atomic_store(&g.open, 1);
    OK(ferry_stream_sync(s));
    assert_int_equal(count, TASKS);
    for (int i = 0; i < TASKS; i++) {
        assert_int_equal(list[i], i);
    }
    ferry_stream_close(s);
    free(list);
}

static void test_close_waits(void **state)
{
    (void)state;
    atomic_int done = 0;
    gate g = {.open = 0};
    ferry_stream *s = stream(), *other = stream();
    OK(ferry_stream_call(s, pass_gate, &g));
    OK(ferry_stream_call(s, set_one, &done));
    OK(ferry_stream_call(other, set_one, &g.open));
    ferry_stream_close(s);
    assert_int_equal(atomic_load(&done), 1);
    ferry_stream_close(other);
    ferry_stream_close(NULL);
}

static void test_wrong_tasks(void **state)
{
    (void)state;
    ferry_stream *s = stream();
    assert_int_equal(ferryi_stream_task(s, NULL, NULL, 0), FERRY_USAGE);
    assert_int_equal(ferryi_stream_task(NULL, set_one, NULL, 0), FERRY_USAGE);
    assert_int_equal(ferryi_stream_task(s, set_one, NULL, 8), FERRY_USAGE);
    assert_int_equal(ferry_stream_call(s, NULL, NULL), FERRY_USAGE);
    assert_ptr_equal(ferryi_stream_device(s), device);
    ferry_stream_close(s);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static void test_never_recorded(void **state)
{
    (void)state;
    ferry_stream *s = stream();
    ferry_event *e = event();
    int64_t t;
    OK(ferry_stream_wait(s, e)); /* complete: does not hold the stream */
    OK(ferry_stream_sync(s));
    OK(ferry_event_sync(e));
    assert_int_equal(ferry_event_time_ns(e, &t), FERRY_USAGE);
    ferry_event_close(e);
    ferry_event_close(NULL);
    ferry_stream_close(s);
}

/* A wait refers to the record that was the latest at the time of the call: neither to one made later (which would wait
 * too long, here for ever) nor to an earlier one (which would wait too short). */
static void test_wait_takes_latest(void **state)
{
    (void)state;
    gate early = {0}, late = {0};
    atomic_int passed = 0;
    ferry_stream *a = stream(), *b = stream(), *c = stream();
    ferry_event *e = event();
    OK(ferry_stream_call(a, pass_gate, &early));
    OK(ferry_event_record(a, e));
    OK(ferry_stream_wait(c, e));
    OK(ferry_stream_call(c, set_one, &passed));
    OK(ferry_stream_call(b, pass_gate, &late));
    OK(ferry_event_record(b, e)); /* does not move the wait of c */
    usleep(2000);
    assert_int_equal(atomic_load(&passed), 0);
    atomic_store(&early.open, 1);
    OK(ferry_stream_sync(c)); /* b is still held */
    assert_int_equal(atomic_load(&passed), 1);
    int64_t t;
    assert_int_equal(ferry_event_time_ns(e, &t), FERRY_USAGE); /* the latest record is not complete */
    atomic_store(&late.open, 1);
    OK(ferry_event_sync(e));
    OK(ferry_event_time_ns(e, &t));
    ferry_stream_close(a);
    ferry_stream_close(b);
    ferry_stream_close(c);
    ferry_event_close(e);
}

/* A later record that completes first must not release a wait for the earlier one. */
static void test_records_out_of_order(void **state)
{
    (void)state;
    gate g = {0};
    atomic_int passed = 0;
    ferry_stream *slow = stream(), *quick = stream(), *waiter = stream();
    ferry_event *e = event();
    OK(ferry_stream_call(slow, pass_gate, &g));
    OK(ferry_event_record(slow, e));
    OK(ferry_stream_wait(waiter, e));
    OK(ferry_stream_call(waiter, set_one, &passed));
    OK(ferry_event_record(quick, e));
    OK(ferry_event_sync(e)); /* the second record is complete, the first is not */
    usleep(2000);
    assert_int_equal(atomic_load(&passed), 0);
    ferry_event_close(e); /* with a record and a wait under way */
    atomic_store(&g.open, 1);
    OK(ferry_stream_sync(waiter));
    assert_int_equal(atomic_load(&passed), 1);
    ferry_stream_close(slow);
    ferry_stream_close(quick);
    ferry_stream_close(waiter);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_5ms(void *arg)
{
    (void)arg;
    usleep(5000);
}

static void test_event_time(void **state)
{
    (void)state;
    ferry_stream *s = stream();
    ferry_event *first = event(), *second = event();
    int64_t before = now_ns(), t1, t2;
    OK(ferry_event_record(s, first));
    OK(ferry_stream_call(s, sleep_5ms, NULL));
    OK(ferry_event_record(s, second));
    OK(ferry_event_sync(second));
    OK(ferry_event_time_ns(first, &t1));
    OK(ferry_event_time_ns(second, &t2));
    assert_true(before <= t1 && t1 + 5000000 <= t2 && t2 <= now_ns());
    assert_int_equal(ferry_event_time_ns(NULL, &t1), FERRY_USAGE);
    ferry_stream_close(s);
    ferry_event_close(first);
    ferry_event_close(second);
}

static void test_wrong_calls(void **state)
{
    (void)state;
    ferry_stream *s = stream(), *none = (ferry_stream *)&none;
    ferry_event *e = event(), *other;
    ferry_device *d;
    OK(ferry_device_open(test_device_name(), &d));
    OK(ferry_event_open(d, &other));
    assert_int_equal(ferry_event_record(s, other), FERRY_USAGE);
    assert_int_equal(ferry_stream_wait(s, other), FERRY_USAGE);
    assert_int_equal(ferry_event_record(NULL, e), FERRY_USAGE);
    assert_int_equal(ferry_stream_wait(s, NULL), FERRY_USAGE);
    assert_int_equal(ferry_event_sync(NULL), FERRY_USAGE);
    assert_int_equal(ferry_stream_sync(NULL), FERRY_USAGE);
    assert_int_equal(ferry_stream_open(device, (ferry_stream_kind)9, &none), FERRY_USAGE);
    assert_null(none);
    ferry_event *missing = e;
    assert_int_equal(ferry_event_open(NULL, &missing), FERRY_USAGE);
    assert_null(missing);
    assert_int_equal(ferry_device_status(NULL), FERRY_USAGE);
    ferry_event_close(e);
    ferry_stream_close(s);
    ferry_event_close(other);
    ferry_device_close(d);
}

/* ---- failures of enqueued work ---------------------------------------------------------------------------------- */

static void fail_with(void *arg)
{
    int *code = arg;
    ferryi_device_fail(device, FERRY_BAD_DATA, "failure number %d", *code);
}

static void test_sticky_failure(void **state)
{
    (void)state;
    ferry_stream *s = stream(), *other = stream();
    ferry_event *e = event();
    atomic_int ran = 0;
    int first = 1, second = 2;
    OK(ferry_device_status(device));
    OK(ferryi_stream_task(s, fail_with, &first, sizeof(first)));
    OK(ferryi_stream_task(s, fail_with, &second, sizeof(second)));
    OK(ferry_stream_call(s, set_one, &ran)); /* skipped */
    OK(ferry_event_record(s, e));            /* still happens: nothing hangs */
    OK(ferry_stream_wait(other, e));
    OK(ferry_stream_call(other, set_one, &ran));
    assert_int_equal(ferry_stream_sync(other), FERRY_BAD_DATA);
    assert_string_equal(ferry_error(), "failure number 1");
    assert_int_equal(ferry_stream_sync(s), FERRY_BAD_DATA);
    assert_int_equal(ferry_event_sync(e), FERRY_BAD_DATA);
    ferryi_fail(FERRY_USAGE, "something else");
    assert_int_equal(ferry_device_status(device), FERRY_BAD_DATA);
    assert_string_equal(ferry_error(), "failure number 1");
    assert_int_equal(atomic_load(&ran), 0);
    ferry_stream_close(s);
    ferry_stream_close(other);
    ferry_event_close(e);
}

/* ---- a random graph of tasks against the same tasks one after the other ----------------------------------------- */

typedef struct mix_task {
    uint64_t *cell;
    int to, from;
    uint64_t factor;
} mix_task;

static void mix(void *arg)
{
    const mix_task *t = arg;
    t->cell[t->to] = t->cell[t->to] * t->factor + t->cell[t->from] + 1;
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Each task works on two cells. A cell's last user records an event after it; the next user of the cell on another
 * stream waits for it. So all orders that remain give the numbers of the sequential order. */
static void run_graph(uint64_t seed)
{
    enum { STREAMS = 8, CELLS = 12, TASKS = 600 };
    ferry_stream *s[STREAMS];
    ferry_event *last_use[CELLS];
    uint64_t cell[CELLS], expected[CELLS];
    for (int i = 0; i < STREAMS; i++) {
        s[i] = stream();
    }
    for (int i = 0; i < CELLS; i++) {
        last_use[i] = event();
        cell[i] = expected[i] = (uint64_t)i;
    }
    for (int i = 0; i < TASKS; i++) {
        ferry_stream *at = s[next_random(&seed) % STREAMS];
        mix_task t = {cell, (int)(next_random(&seed) % CELLS), (int)(next_random(&seed) % CELLS), next_random(&seed)};
        mix_task copy = t;
        copy.cell = expected;
        mix(&copy);
        OK(ferry_stream_wait(at, last_use[t.to]));
        OK(ferry_stream_wait(at, last_use[t.from]));
        OK(ferryi_stream_task(at, mix, &t, sizeof(t)));
        OK(ferry_event_record(at, last_use[t.to]));
        OK(ferry_event_record(at, last_use[t.from]));
    }
    for (int i = 0; i < STREAMS; i++) {
        OK(ferry_stream_sync(s[i]));
    }
    assert_memory_equal(cell, expected, sizeof(cell));
    for (int i = 0; i < STREAMS; i++) {
        ferry_stream_close(s[i]);
    }
    for (int i = 0; i < CELLS; i++) {
        ferry_event_close(last_use[i]);
    }
}

static void test_random_graphs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        run_graph(seed);
    }
}

/* ---- all kinds of streams together ------------------------------------------------------------------------------ */

enum { MIX_STREAMS = 5, MIX_CELLS = 10, MIX_STEPS = 400, APART = 8 /* a cell has a cache line for itself */ };

/* Numbers in pinned memory, on which CPU tasks and kernels work, and copies of them in device memory. */
typedef struct mixed {
    ferry_stream *s[MIX_STREAMS];
    ferry_event *last_use[MIX_CELLS];
    int64_t *cell, *number; /* number[i]: of step i; after the last one a 1 */
    int64_t *copy;          /* device memory */
} mixed;

static void launch_binary(ferry_stream *s, ferry_fn fn, int64_t *y, int64_t *b)
{
    ferry_kernel k = {.op = FERRY_OP_BINARY, .fn = fn, .dtype = FERRY_I64, .arg = {y, y, b}};
    OK(ferry_launch(s, &k));
}

/* On a compute or update stream cell[to] = cell[to] * number + cell[from] + 1, on a copy stream a copy. The same is
 * done to `cell` and `copy` at once. */
static void mixed_step(const mixed *m, int at, int step, int to, int from, int64_t *cell, int64_t *copy)
{
    mix_task t = {(uint64_t *)m->cell, to, from, (uint64_t)m->number[step]}, now = t;
    now.cell = (uint64_t *)cell;
    switch (at) {
    case 0:
        launch_binary(m->s[at], FERRY_MUL, &m->cell[to], &m->number[step]);
        launch_binary(m->s[at], FERRY_ADD, &m->cell[to], &m->cell[from]);
        launch_binary(m->s[at], FERRY_ADD, &m->cell[to], &m->number[MIX_STEPS]);
        mix(&now);
        break;
    case 1:
        OK(ferry_copy_h2d(m->s[at], &m->copy[to], &m->cell[to], sizeof(int64_t)));
        copy[to] = cell[to];
        break;
    case 2:
        OK(ferry_copy_d2h(m->s[at], &m->cell[to], &m->copy[to], sizeof(int64_t)));
        cell[to] = copy[to];
        break;
    default:
        OK(ferryi_stream_task(m->s[at], mix, &t, sizeof(t)));
        mix(&now);
    }
}

static void run_mixed(uint64_t seed)
{
    static const ferry_stream_kind kind[MIX_STREAMS] = {FERRY_STREAM_COMPUTE, FERRY_STREAM_LOAD, FERRY_STREAM_STORE,
                                                        FERRY_STREAM_UPDATE, FERRY_STREAM_UPDATE};
    mixed m;
    ferry_pool *pool;
    int64_t cell[MIX_CELLS * APART] = {0}, copy[MIX_CELLS * APART] = {0};
    OK(ferry_pool_open(device, 4096, &pool));
    m.copy = ferry_pool_at(pool, 0);
    OK(ferry_host_alloc(device, sizeof(cell), (void **)&m.cell));
    OK(ferry_host_alloc(device, (MIX_STEPS + 1) * sizeof(int64_t), (void **)&m.number));
    m.number[MIX_STEPS] = 1;
    for (int i = 0; i < MIX_STREAMS; i++) {
        OK(ferry_stream_open(device, kind[i], &m.s[i]));
    }
    for (int i = 0; i < MIX_CELLS; i++) {
        m.last_use[i] = event();
        int at = i * APART;
        m.cell[at] = cell[at] = copy[at] = i;
        OK(ferry_copy_h2d(m.s[1], &m.copy[at], &m.cell[at], sizeof(int64_t)));
        OK(ferry_event_record(m.s[1], m.last_use[i]));
    }
    for (int i = 0; i < MIX_STEPS; i++) {
        int at = (int)(next_random(&seed) % MIX_STREAMS), to = (int)(next_random(&seed) % MIX_CELLS);
        int from = (to + 1 + (int)(next_random(&seed) % (MIX_CELLS - 1))) % MIX_CELLS;
        m.number[i] = (int64_t)next_random(&seed);
        OK(ferry_stream_wait(m.s[at], m.last_use[to]));
        OK(ferry_stream_wait(m.s[at], m.last_use[from]));
        mixed_step(&m, at, i, to * APART, from * APART, cell, copy);
        OK(ferry_event_record(m.s[at], m.last_use[to]));
        OK(ferry_event_record(m.s[at], m.last_use[from]));
    }
    for (int i = 0; i < MIX_CELLS; i++) {
        OK(ferry_event_sync(m.last_use[i]));
    }
    for (int i = 0; i < MIX_STREAMS; i++) {
        OK(ferry_stream_sync(m.s[i]));
        ferry_stream_close(m.s[i]);
    }
    assert_memory_equal(m.cell, cell, sizeof(cell));
    for (int i = 0; i < MIX_CELLS; i++) {
        ferry_event_close(m.last_use[i]);
    }
    ferry_host_free(device, m.cell);
    ferry_host_free(device, m.number);
    ferry_pool_close(pool);
}

static void test_mixed_graphs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        run_mixed(seed);
    }
}

/* Times of both kinds of streams are of one clock. */
static void test_mixed_times(void **state)
{
    (void)state;
    ferry_stream *cpu = stream(), *gpu;
    ferry_event *e[3] = {event(), event(), event()};
    int64_t t[3], before = now_ns();
    OK(ferry_stream_open(device, FERRY_STREAM_COMPUTE, &gpu));
    OK(ferry_stream_call(cpu, sleep_5ms, NULL));
    OK(ferry_event_record(cpu, e[0]));
    OK(ferry_stream_wait(gpu, e[0]));
    OK(ferry_event_record(gpu, e[1]));
    OK(ferry_stream_wait(cpu, e[1]));
    OK(ferry_stream_call(cpu, sleep_5ms, NULL));
    OK(ferry_event_record(cpu, e[2]));
    OK(ferry_event_sync(e[2]));
    for (int i = 0; i < 3; i++) {
        OK(ferry_event_time_ns(e[i], &t[i]));
    }
    assert_true(before + 5000000 <= t[0] && t[1] + 5000000 <= t[2] + 100000 && t[2] <= now_ns());
    assert_true(t[0] <= t[1] + 100000); /* the clocks agree to better than a tenth of a millisecond */
    for (int i = 0; i < 3; i++) {
        ferry_event_close(e[i]);
    }
    ferry_stream_close(cpu);
    ferry_stream_close(gpu);
}

/* What a kernel finds wrong with its data stops the CPU work that comes after it. */
static void test_kernel_failure(void **state)
{
    (void)state;
    ferry_stream *cpu = stream(), *gpu;
    ferry_event *e = event();
    float *memory;
    atomic_int ran = 0;
    OK(ferry_stream_open(device, FERRY_STREAM_COMPUTE, &gpu));
    OK(ferry_host_alloc(device, 4096, (void **)&memory));
    int64_t *ids = (int64_t *)(void *)(memory + 512);
    ids[1] = 9;
    OK(ferry_embedding(gpu, FERRY_F32, memory, memory + 64, FERRY_I64, ids, 3, 4, 2));
    OK(ferry_event_record(gpu, e));
    OK(ferry_stream_wait(cpu, e));
    OK(ferry_stream_call(cpu, set_one, &ran));
    assert_int_equal(ferry_stream_sync(cpu), FERRY_BAD_DATA);
    assert_string_equal(ferry_error(), "kernel embedding: id 9 at position 1 is out of range: the table has 4 rows");
    assert_int_equal(atomic_load(&ran), 0);
    OK(ferry_embedding(gpu, FERRY_F32, memory, memory + 64, FERRY_I64, ids, 1, 4, 2)); /* skipped */
    assert_int_equal(ferry_stream_sync(gpu), FERRY_BAD_DATA);
    ferry_stream_close(cpu);
    ferry_stream_close(gpu);
    ferry_event_close(e);
    ferry_host_free(device, memory);
}

int main(void)
{
    if (!test_device_exists()) {
        return TEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_device_names, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_error_text, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_order, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_close_waits, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_wrong_tasks, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_never_recorded, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_wait_takes_latest, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_records_out_of_order, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_event_time, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_wrong_calls, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_sticky_failure, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_random_graphs, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_mixed_graphs, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_mixed_times, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_kernel_failure, open_device, close_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
