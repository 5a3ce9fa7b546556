/* test_recorder.c - the recorder against known waits, on the device of test_device.h: parts of two streams, of which one waits
 * for a CPU task of a known length. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <time.h>
#include <unistd.h>

#include "test_device.h"

static ferry_device *device;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != FERRY_OK)                                                                                        \
            fail_msg("%s", ferry_error());                                                                             \
    } while (0)

enum { PARTS = 3, SLEEP_NS = 20000000, KERNEL = 1 << 16 };
static const ferry_part parts[PARTS] = {
    {"update", "adamw", "unit \"one\" \\ \x01"}, {"compute", "forward", "first"}, {"compute", "backward", "second"}};

static void sleep_a_while(void *arg)
{
    (void)arg;
    nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
}

static void step(ferry_recorder *r, ferry_stream *update, ferry_stream *compute, ferry_event *e, void *at, int64_t number)
{
    const ferry_kernel fill = {.op = FERRY_OP_FILL, .dtype = FERRY_F32, .n = KERNEL, .arg = {at}};
    ferry_recorder_step(r, number);
    OK(ferry_recorder_begin(r, compute, 1));
    OK(ferry_launch(compute, &fill));
    OK(ferry_recorder_end(r, compute, 1));
    OK(ferry_recorder_begin(r, update, 0));
    OK(ferry_stream_call(update, sleep_a_while, NULL));
    OK(ferry_recorder_end(r, update, 0));
    OK(ferry_event_record(update, e));
    OK(ferry_stream_wait(compute, e));
    OK(ferry_recorder_begin(r, compute, 2)); /* after the wait: it is no part of it */
    OK(ferry_launch(compute, &fill));
    OK(ferry_recorder_end(r, compute, 2));
}

typedef struct row {
    char stream[16], what[16];
    long long start, median, least, most;
} row;

static void test_times(void **state)
{
    (void)state;
    enum { FIRST = 3, STEPS = 4 };
    char path[] = "/tmp/ferry-run-XXXXXX", text[512];
    int fd = mkstemp(path);
    ferry_stream *update, *compute;
    ferry_event *e;
    ferry_pool *pool;
    ferry_recorder *r;
    OK(ferry_stream_open(device, FERRY_STREAM_UPDATE, &update));
    OK(ferry_stream_open(device, FERRY_STREAM_COMPUTE, &compute));
    OK(ferry_event_open(device, &e));
    OK(ferry_pool_open(device, KERNEL * 4, &pool));
    OK(ferry_recorder_open(device, parts, PARTS, FIRST, STEPS, &r));
    for (int i = 1; i <= FIRST; i++)
        step(r, update, compute, e, ferry_pool_at(pool, 0), i);
    OK(ferry_stream_sync(compute));
    assert_int_equal(ferry_recorder_write(r, path, "0123"), FERRY_USAGE); /* one step is no steady state */
    for (int i = FIRST + 1; i <= FIRST + STEPS + 2; i++)
        step(r, update, compute, e, ferry_pool_at(pool, 0), i);
    OK(ferry_stream_sync(compute));
    OK(ferry_stream_sync(update));
    OK(ferry_recorder_write(r, path, "0123"));
    assert_int_equal(ferry_recorder_write(r, "/nowhere/run.yaml", "0123") == FERRY_OK, 0);

    FILE *f = fopen(path, "r");
    row got[PARTS];
    int n = 0;
    long long iteration[4] = {0};
    while (fgets(text, sizeof text, f)) {
        if (strncmp(text, "iteration", 9) == 0)
            assert_int_equal(sscanf(text, "iteration: {median_ns: %lld, mean_ns: %lld, min_ns: %lld, max_ns: %lld}", &iteration[0],
                                    &iteration[1], &iteration[2], &iteration[3]),
                             4);
        if (strncmp(text, "steps:", 6) == 0)
            assert_string_equal(text, "steps: 4\n");
        if (!strstr(text, "{stream:"))
            continue;
        assert_true(n < PARTS);
        if (n == 0)
            assert_non_null(strstr(text, "of: \"unit \\\"one\\\" \\\\ \\x01\","));
        assert_int_equal(sscanf(text, "  - {stream: %15[a-z], what: %15[a-z]", got[n].stream, got[n].what), 2);
        const char *times = strstr(text, "start_ns");
        assert_int_equal(sscanf(times, "start_ns: %lld, median_ns: %lld, min_ns: %lld, max_ns: %lld", &got[n].start, &got[n].median,
                                &got[n].least, &got[n].most),
                         4);
        n++;
    }
    fclose(f);
    close(fd);
    unlink(path);
    assert_int_equal(n, PARTS);
    for (int i = 0; i < PARTS; i++) {
        assert_string_equal(got[i].stream, parts[i].stream);
        assert_string_equal(got[i].what, parts[i].what);
        assert_true(0 <= got[i].least && got[i].least <= got[i].median && got[i].median <= got[i].most);
    }
    assert_int_equal(got[1].start, 0);                 /* the step's first compute part */
    assert_true(got[0].least >= SLEEP_NS);             /* the sleep is in it */
    assert_true(got[2].start >= got[1].start);         /* it waits for the sleep, whose start may precede the first part */
    assert_true(got[2].least < SLEEP_NS / 2);          /* the wait is not in it */
    /* from the start of one step to that of the next, which a busy machine makes early or late */
    assert_true(0 < iteration[2] && iteration[2] <= iteration[0] && iteration[0] <= iteration[3] && iteration[3] >= SLEEP_NS / 2);

    ferry_recorder_close(r);
    ferry_event_close(e);
    ferry_stream_close(update);
    ferry_stream_close(compute);
    ferry_pool_close(pool);
}

static void test_refusals(void **state)
{
    (void)state;
    ferry_recorder *r = (ferry_recorder *)&r;
    ferry_stream *s;
    assert_int_equal(ferry_recorder_open(device, parts, 0, 1, 4, &r), FERRY_USAGE);
    assert_null(r);
    assert_int_equal(ferry_recorder_open(device, parts, PARTS, 1, 1, &r), FERRY_USAGE);
    assert_int_equal(ferry_recorder_open(device, parts, PARTS, 1, INT32_MAX, &r), FERRY_USAGE);
    assert_int_equal(ferry_recorder_open(NULL, parts, PARTS, 1, 4, &r), FERRY_USAGE);
    ferry_recorder_close(NULL);
    OK(ferry_stream_open(device, FERRY_STREAM_COMPUTE, &s));
    ferry_recorder_step(NULL, 1); /* nothing is recorded, and nothing goes wrong */
    OK(ferry_recorder_begin(NULL, s, 0));
    OK(ferry_recorder_end(NULL, s, 0));
    OK(ferry_recorder_open(device, parts, PARTS, 1, 2, &r));
    OK(ferry_recorder_begin(r, s, PARTS)); /* no step has begun */
    ferry_recorder_step(r, 1);
    assert_int_equal(ferry_recorder_begin(r, s, PARTS), FERRY_USAGE);
    assert_int_equal(ferry_recorder_begin(r, s, -1), FERRY_USAGE);
    ferry_recorder_step(r, 2);
    OK(ferry_recorder_begin(r, s, 1));
    OK(ferry_recorder_end(r, s, 1));
    OK(ferry_stream_sync(s));
    assert_int_equal(ferry_recorder_write(r, "none", "0123"), FERRY_USAGE); /* parts are missing */
    assert_non_null(strstr(ferry_error(), "step 1"));
    assert_int_equal(ferry_recorder_write(NULL, "none", "0123"), FERRY_USAGE);
    ferry_recorder_close(r);
    ferry_stream_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_times), cmocka_unit_test(test_refusals)};
    if (!test_device_exists()) {
        return TEST_SKIPPED;
    }
    if (ferry_device_open(test_device_name(), &device) != FERRY_OK) {
        return 1;
    }
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    ferry_device_close(device);
    return failures;
}
