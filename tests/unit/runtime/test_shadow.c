/* test_shadow.c - does ThreadSanitizer see a missing event? Each scenario runs in a child process, where the report of
 * a race is the exit status. Other builds have no shadow, and the test says so. */
#include "runtime/ferry.h"
#include "runtime/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { CHUNK = 4096, RACE_STATUS = 66, SETUP_STATUS = 3 };

static const char *program;

#define CHECK(call)                                                                                                    \
    if ((call) != FERRY_OK) {                                                                                          \
        fprintf(stderr, "%s\n", ferry_error());                                                                        \
        exit(SETUP_STATUS);                                                                                            \
    }

static void nothing(void *arg)
{
    (void)arg;
}

static void touch_task(void *arg)
{
    void **args = arg;
    ferryi_shadow_touch(args[0], args[1], 64, true);
}

/* Two streams use one device; `order`: with an event between them. Everything else is the same, and other events that
 * do not order these two are there as well. */
static void scenario(const char *what, bool order)
{
    ferry_device *d;
    ferry_stream *a, *b, *load;
    ferry_event *e, *other;
    ferry_pool *pool;
    float *base, *v, *w, *host;
    CHECK(ferry_device_open("host", &d));
    CHECK(ferry_stream_open(d, FERRY_STREAM_COMPUTE, &a));
    CHECK(ferry_stream_open(d, FERRY_STREAM_COMPUTE, &b));
    CHECK(ferry_stream_open(d, FERRY_STREAM_LOAD, &load));
    CHECK(ferry_event_open(d, &e));
    CHECK(ferry_event_open(d, &other));
    CHECK(ferry_pool_open(d, 8 * CHUNK, &pool));
    CHECK(ferry_host_alloc(d, 4 * CHUNK, (void **)&host));
    const ferry_piece first[] = {{4 * CHUNK, CHUNK}, {2 * CHUNK, CHUNK}};
    const ferry_piece second[] = {{6 * CHUNK, CHUNK}, {4 * CHUNK, CHUNK}};
    CHECK(ferry_pool_stitch(pool, first, 2, (void **)&v));
    CHECK(ferry_pool_stitch(pool, second, 2, (void **)&w)); /* its second half is the first half of v */
    base = ferry_pool_at(pool, 0);
    float *w_shared = w + CHUNK / 4, *v_shared = v;
    CHECK(ferry_event_record(load, other));
    CHECK(ferry_stream_wait(a, other));
    CHECK(ferry_stream_wait(b, other)); /* two waiters of one event are not ordered by that */
    void *args[2] = {d, host + 64};
    if (strcmp(what, "write-write") == 0) {
        CHECK(ferry_fill(a, FERRY_F32, v_shared, 1, 8));
    } else if (strcmp(what, "copy") == 0) {
        CHECK(ferry_copy_h2d(load, v_shared, host, 64));
    } else if (strcmp(what, "gemm") == 0) { /* inside the BLAS library */
        CHECK(ferry_linear(a, FERRY_F32, v_shared, base, base + 64, NULL, 4, 4, 4, 0));
    } else if (strcmp(what, "pinned") == 0) {
        CHECK(ferryi_stream_task(a, touch_task, args, sizeof(args)));
    } else if (strncmp(what, "rows", 4) == 0) { /* every second line */
        CHECK(ferry_copy(a, FERRY_F32, v_shared, base, 2, (int64_t[]){8, 16}, 0, (int64_t[]){32, 1}, 0,
                         (int64_t[]){16, 1}, 1, 0));
    } else { /* read-read */
        CHECK(ferry_unary(a, FERRY_F32, FERRY_NEG, base, v_shared, 8));
    }
    if (order) {
        CHECK(ferry_event_record(strcmp(what, "copy") == 0 ? load : a, e));
        CHECK(ferry_stream_wait(b, e));
    }
    usleep(20000); /* the first is long finished: only the wiring counts, not the timing */
    if (strcmp(what, "pinned") == 0) {
        CHECK(ferry_fill(b, FERRY_F32, host + 64, 1, 8));
    } else if (strcmp(what, "gemm") == 0) {
        CHECK(ferry_linear(b, FERRY_F32, base + 512, w_shared, base + 256, NULL, 4, 4, 4, 0));
    } else if (strcmp(what, "rows") == 0) {
        CHECK(ferry_fill(b, FERRY_F32, w_shared + 16, 1, 16)); /* a line between */
    } else if (strcmp(what, "rows-hit") == 0) {
        CHECK(ferry_fill(b, FERRY_F32, w_shared + 32, 1, 16)); /* a line of the copy */
    } else if (strcmp(what, "read-read") == 0) {
        CHECK(ferry_unary(b, FERRY_F32, FERRY_NEG, base + 512, w_shared, 8));
    } else {
        CHECK(ferry_fill(b, FERRY_F32, w_shared, 2, 8));
    }
    CHECK(ferry_stream_call(b, nothing, NULL));
    CHECK(ferry_stream_sync(b));
    CHECK(ferry_stream_sync(a));
    CHECK(ferry_stream_sync(load));
    ferry_stream_close(a);
    ferry_stream_close(b);
    ferry_stream_close(load);
    ferry_event_close(e);
    ferry_event_close(other);
    ferry_host_free(d, host);
    ferry_pool_close(pool);
    ferry_device_close(d);
}

#ifdef FERRY_TSAN

static int child(const char *what, const char *order)
{
    pid_t pid = fork();
    if (pid == 0) {
        setenv("TSAN_OPTIONS", "exitcode=66 log_path=/dev/null", 1);
        execl("/proc/self/exe", program, what, order, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_races(void **state)
{
    (void)state;
    const char *const racing[] = {"write-write", "copy", "gemm", "pinned", "rows-hit"};
    for (size_t i = 0; i < sizeof(racing) / sizeof(*racing); i++) {
        int without = child(racing[i], "free"), with = child(racing[i], "ordered");
        if (without != RACE_STATUS || with != 0) {
            fail_msg("%s: without an event the child ends with %d, with one with %d", racing[i], without, with);
        }
    }
    assert_int_equal(child("read-read", "free"), 0);
    assert_int_equal(child("rows", "free"), 0); /* between the rows is nobody */
}

#else

static void test_races(void **state)
{
    (void)state;
    print_message("skipped: access checking is built with FERRY_SANITIZE=thread only\n");
    scenario("write-write", true);
    scenario("rows", true);
    skip();
}

#endif

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 3) {
        scenario(argv[1], strcmp(argv[2], "ordered") == 0);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_races)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
