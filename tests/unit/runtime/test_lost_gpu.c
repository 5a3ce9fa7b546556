/* test_lost_gpu.c - a GPU that failed: every wait ends with an error that says so, and closing does not hang. */
#include "runtime/ferry.h"
#include "test_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>
#include <cmocka.h>

#define OK(call) assert_int_equal(call, FERRY_OK)

static void set_one(void *arg)
{
    atomic_store((atomic_int *)arg, 1);
}

static void test_lost(void **state)
{
    (void)state;
    ferry_device *d;
    ferry_stream *compute, *update;
    ferry_event *e, *late;
    atomic_int ran = 0;
    OK(ferry_device_open("cuda:0", &d));
    OK(ferry_stream_open(d, FERRY_STREAM_COMPUTE, &compute));
    OK(ferry_stream_open(d, FERRY_STREAM_UPDATE, &update));
    OK(ferry_event_open(d, &e));
    OK(ferry_event_open(d, &late));
    OK(ferry_fill(compute, FERRY_F32, (void *)(uintptr_t)4096, 1, 1000)); /* no memory is there */
    ferry_status recorded = ferry_event_record(compute, e);
    if (recorded == FERRY_OK) { /* the failure may be known already */
        OK(ferry_stream_wait(update, e));
        OK(ferry_stream_call(update, set_one, &ran));
        OK(ferry_event_record(update, late));
        assert_int_equal(ferry_event_sync(late), FERRY_FAILED);
        assert_non_null(strstr(ferry_error(), "device 'cuda:0': the GPU failed"));
        assert_int_equal(ferry_stream_sync(update), FERRY_FAILED);
    }
    assert_int_equal(ferry_stream_sync(compute), FERRY_FAILED);
    assert_int_equal(ferry_device_status(d), FERRY_FAILED);
    assert_int_equal(atomic_load(&ran), 0);
    ferry_stream_close(update);
    ferry_stream_close(compute);
    ferry_event_close(e);
    ferry_event_close(late);
    ferry_device_close(d);
}

int main(void)
{
    setenv("FERRY_TEST_DEVICE", "cuda:0", 1);
    if (!test_device_exists()) {
        return TEST_SKIPPED;
    }
    alarm(60); /* a wait that never ends fails the test */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
