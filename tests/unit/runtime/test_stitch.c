/* test_stitch.c - the stitching allocator against a model of physical memory and of the order of streams; by several
 * threads; with failing virtual memory calls. FERRY_STITCH_REQUESTS sets the number of random requests. */
#include "stitch_device.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <cmocka.h>

#define OK(call) assert_int_equal(call, FERRY_OK)
#define VALID(s)                                                                                                       \
    do {                                                                                                               \
        if (!ferry_stitch_is_valid(s)) {                                                                               \
            fail_msg("%s", ferry_error());                                                                             \
        }                                                                                                              \
    } while (0)

enum { CHUNK = 4096, BLOCKS = 400 };

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static int64_t request_count(int64_t usual)
{
    const char *text = getenv("FERRY_STITCH_REQUESTS");
    return text != NULL ? atoll(text) : usual;
}

/* ---- blocks with contents ---------------------------------------------------------------------------------------- */

typedef struct block {
    char *at;
    int64_t bytes;
    uint64_t tag;
    int stream;
    unsigned used; /* streams, a bit each */
} block;

static void block_fill(const block *b)
{
    for (int64_t i = 0; i < b->bytes; i += TEST_UNIT) {
        uint64_t word = b->tag + (uint64_t)i;
        memcpy(b->at + i, &word, b->bytes - i < 8 ? (size_t)(b->bytes - i) : 8);
    }
    b->at[b->bytes - 1] = (char)b->tag;
}

static bool block_intact(const block *b)
{
    for (int64_t i = 0; i + 8 < b->bytes; i += TEST_UNIT) {
        uint64_t word;
        memcpy(&word, b->at + i, 8);
        if (word != b->tag + (uint64_t)i) {
            return false;
        }
    }
    return b->at[b->bytes - 1] == (char)b->tag;
}

/* Sizes as in training: many small ones, some that are often the same, a few large. */
static int64_t draw_bytes(uint64_t *seed, int64_t most)
{
    switch (draw(seed) % 8) {
    case 0:
    case 1:
        return 1 + (int64_t)(draw(seed) % CHUNK);
    case 2:
        return (int64_t)(1 + draw(seed) % 8) * CHUNK;
    case 3:
        return 1 + (int64_t)(draw(seed) % (uint64_t)most);
    default:
        return CHUNK + (int64_t)(draw(seed) % (12 * CHUNK));
    }
}

/* ---- random requests against the model --------------------------------------------------------------------------- */

typedef struct run {
    test_device device;
    ferry_stitch *s;
    block block[BLOCKS];
    int count, next_owner;
    uint64_t seed;
    int64_t live_bytes;
} run;

static void run_open(run *r, uint64_t seed, int64_t capacity, const ferry_stitch_options *options)
{
    ferry_stitch_device device;
    OK(test_device_open(&r->device, CHUNK, capacity, true, &device));
    OK(ferry_stitch_open(&device, options, &r->s));
    r->count = 0;
    r->next_owner = 1;
    r->seed = seed;
    r->live_bytes = 0;
}

static void run_right(run *r)
{
    if (r->device.wrong[0] != '\0') {
        fail_msg("%s", r->device.wrong);
    }
}

static ferry_status run_alloc(run *r, int64_t bytes, int stream)
{
    r->device.closed[stream] = false;
    block b = {
        .bytes = bytes, .stream = stream, .used = 1u << stream, .tag = draw(&r->seed) << 20 | (uint64_t)r->next_owner};
    void *at;
    ferry_status status = ferry_stitch_alloc(r->s, bytes, test_stream(stream), &at);
    if (status != FERRY_OK) {
        assert_int_equal(status, FERRY_FAILED);
        assert_null(at);
        return status;
    }
    assert_int_equal((uintptr_t)at % TEST_UNIT, 0);
    b.at = at;
    test_own(&r->device, at, bytes, r->next_owner, stream);
    run_right(r);
    block_fill(&b);
    r->device.enqueued[stream]++;
    r->live_bytes += (bytes + TEST_UNIT - 1) / TEST_UNIT * TEST_UNIT;
    b.used |= (unsigned)r->next_owner++ << TEST_STREAMS;
    r->block[r->count++] = b;
    return FERRY_OK;
}

static ferry_status run_free(run *r, int i)
{
    block b = r->block[i];
    if (!block_intact(&b)) {
        fail_msg("the contents of a live block of %lld bytes changed", (long long)b.bytes);
    }
    ferry_status status = ferry_stitch_free(r->s, b.at);
    if (status != FERRY_OK) {
        return status;
    }
    test_disown(&r->device, b.at, b.bytes, (int)(b.used >> TEST_STREAMS), b.used & ((1u << TEST_STREAMS) - 1));
    run_right(r);
    r->live_bytes -= (b.bytes + TEST_UNIT - 1) / TEST_UNIT * TEST_UNIT;
    r->block[i] = r->block[--r->count];
    return FERRY_OK;
}

static void run_use(run *r, int i, int stream)
{
    r->device.closed[stream] = false;
    OK(ferry_stitch_use(r->s, r->block[i].at, test_stream(stream)));
    r->block[i].used |= 1u << stream;
    r->device.enqueued[stream]++;
}

static ferry_status run_stream_close(run *r, int stream)
{
    test_device *d = &r->device;
    bool seen = d->enqueued[stream] > 0 && !d->closed[stream];
    ferry_status status = ferry_stitch_stream_close(r->s, test_stream(stream));
    if (status != FERRY_OK) {
        return status;
    }
    assert_true(!seen || d->completed[stream] == d->enqueued[stream]);
    d->closed[stream] = true;
    for (int i = 0; i < r->count; i++) {
        r->block[i].used &= ~(1u << stream);
    }
    run_right(r);
    return FERRY_OK;
}

static void run_refusals(run *r)
{
    char outside[TEST_UNIT];
    ferry_stitch_stats before, after;
    ferry_stitch_get_stats(r->s, &before);
    assert_int_equal(ferry_stitch_free(r->s, outside), FERRY_USAGE);
    if (r->count > 0) {
        char *at = r->block[0].at;
        assert_int_equal(ferry_stitch_free(r->s, at + 1), FERRY_USAGE);
        if (r->block[0].bytes > TEST_UNIT) {
            assert_int_equal(ferry_stitch_free(r->s, at + TEST_UNIT), FERRY_USAGE);
        }
        OK(run_free(r, 0));
        ferry_stitch_get_stats(r->s, &before);
        assert_int_equal(ferry_stitch_free(r->s, at), FERRY_USAGE); /* twice */
    }
    ferry_stitch_get_stats(r->s, &after);
    assert_memory_equal(&before, &after, sizeof(before));
}

static void run_step(run *r, int64_t most)
{
    uint64_t rare = draw(&r->seed);
    test_device *d = &r->device;
    uint64_t kind = draw(&r->seed) % 100;
    int stream = (int)(draw(&r->seed) % 8);
    stream = stream >= TEST_STREAMS ? 0 : stream; /* one stream does most of the work */
    int i = r->count > 0 ? (int)(draw(&r->seed) % (uint64_t)r->count) : 0;
    if (kind < 46 && r->count < BLOCKS) {
        (void)run_alloc(r, draw_bytes(&r->seed, most), stream);
    } else if (kind < 93 && r->count > 0) {
        OK(run_free(r, i));
    } else if (kind < 96 && r->count > 0) {
        run_use(r, i, stream);
    } else if (kind == 96 && rare % 8 == 0) {
        OK(run_stream_close(r, stream));
    } else {
        int64_t left = d->enqueued[stream] - d->completed[stream];
        test_complete(d, stream,
                      d->completed[stream] + (left > 0 ? (int64_t)(draw(&r->seed) % (uint64_t)(left + 1)) : 0));
    }
}

/* Everything goes back, and the device with it. */
static void run_close(run *r)
{
    ferry_stitch_stats stats;
    while (r->count > 0) {
        OK(run_free(r, r->count - 1));
    }
    OK(ferry_stitch_trim(r->s, NULL));
    run_right(r);
    VALID(r->s);
    ferry_stitch_get_stats(r->s, &stats);
    assert_int_equal(stats.live_bytes, 0);
    assert_int_equal(stats.reserved_bytes, 0);
    assert_int_equal(atomic_load(&r->device.chunks), 0);
    assert_int_equal(stats.creates, stats.releases);
    assert_int_equal(stats.maps, stats.unmaps);
    ferry_stitch_close(r->s);
    assert_int_equal(r->device.maps, 0);
    assert_int_equal(atomic_load(&r->device.ranges), 0);
    assert_int_equal(atomic_load(&r->device.events), 0);
    free(r->device.unit);
}

static void random_run(uint64_t seed, int64_t requests, int64_t capacity, int64_t most,
                       const ferry_stitch_options *options)
{
    run *r = calloc(1, sizeof(*r));
    ferry_stitch_stats stats;
    run_open(r, seed, capacity, options);
    for (int64_t n = 0; n < requests; n++) {
        run_step(r, most);
        if (n % 997 == 0) {
            VALID(r->s);
            run_refusals(r);
            ferry_stitch_get_stats(r->s, &stats);
            assert_int_equal(stats.live_bytes, r->live_bytes);
            for (int i = 0; i < r->count; i++) {
                assert_true(block_intact(&r->block[i]));
            }
        }
        if (n % 49999 == 49998) {
            OK(ferry_stitch_trim(r->s, NULL));
            run_right(r);
        }
    }
    ferry_stitch_get_stats(r->s, &stats);
    print_message("states %lld %lld %lld %lld %lld, sblocks dropped %lld, adopted %lld KiB\n",
                  (long long)stats.state[0], (long long)stats.state[1], (long long)stats.state[2],
                  (long long)stats.state[3], (long long)stats.state[4], (long long)stats.sblocks_dropped,
                  (long long)stats.adopted_bytes / 1024);
    if (requests >= 25000) {
        for (int i = 0; i < 4; i++) {
            assert_true(stats.state[i] > 0);
        }
    }
    run_close(r);
    free(r);
}

static void test_random(void **state)
{
    (void)state;
    int64_t requests = request_count(100000);
    random_run(1, requests / 2, 16 << 20, 60 * CHUNK, NULL); /* room enough */
    ferry_stitch_options few = {.max_sblocks = 8, .large_chunk = 4 * CHUNK};
    random_run(2, requests / 4, 2 << 20, 60 * CHUNK, &few); /* tight, and chunks of two sizes */
    ferry_stitch_options limits = {.fragment_bytes = 3 * CHUNK, .small_bytes = 1024, .limit_bytes = 1 << 20};
    random_run(3, requests / 4, 2 << 20, 20 * CHUNK, &limits);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static void expect_states(ferry_stitch *s, int64_t s1, int64_t s2, int64_t s3, int64_t s4, int64_t s5)
{
    ferry_stitch_stats stats;
    int64_t want[] = {s1, s2, s3, s4, s5};
    ferry_stitch_get_stats(s, &stats);
    for (int i = 0; i < 5; i++) {
        if (stats.state[i] != want[i]) {
            fail_msg("S%d: %lld, expected %lld", i + 1, (long long)stats.state[i], (long long)want[i]);
        }
    }
}

static void test_states(void **state)
{
    (void)state;
    static run r;
    ferry_stitch_stats stats;
    run_open(&r, 1, 64 * CHUNK, NULL);
    for (int i = 0; i < 6; i++) {
        OK(run_alloc(&r, 8 * CHUNK, 0)); /* 0 to 5, side by side */
    }
    expect_states(r.s, 0, 0, 0, 6, 0);
    OK(run_free(&r, 1)); /* now 5 is at index 1 */
    OK(run_alloc(&r, 8 * CHUNK, 0));
    expect_states(r.s, 1, 0, 0, 6, 0);
    OK(run_free(&r, 5));
    OK(run_alloc(&r, 3 * CHUNK + 100, 0));
    expect_states(r.s, 1, 1, 0, 6, 0);
    OK(run_free(&r, 5));
    OK(run_free(&r, 3));
    OK(run_free(&r, 0)); /* 0, 1 and 3 are free: not side by side with 3 */
    ferry_stitch_get_stats(r.s, &stats);
    int64_t maps = stats.maps, reserved = stats.reserved_bytes;
    OK(run_alloc(&r, 20 * CHUNK + 1, 0)); /* 16 of the pair and 5 of the single one, the rest of which stays free */
    expect_states(r.s, 1, 1, 1, 6, 0);
    ferry_stitch_get_stats(r.s, &stats);
    assert_int_equal(stats.maps - maps, 21);
    assert_int_equal(stats.reserved_bytes, reserved);
    OK(run_free(&r, r.count - 1));
    OK(run_alloc(&r, 20 * CHUNK + 1, 0)); /* the sBlock again */
    OK(run_free(&r, r.count - 1));
    OK(run_alloc(&r, 19 * CHUNK, 0)); /* its first chunks */
    expect_states(r.s, 3, 1, 1, 6, 0);
    OK(run_free(&r, r.count - 1));
    ferry_stitch_get_stats(r.s, &stats);
    assert_int_equal(stats.maps - maps, 21);
    OK(run_alloc(&r, 30 * CHUNK, 0)); /* 24 are free, 6 are made */
    expect_states(r.s, 3, 1, 1, 7, 0);
    ferry_stitch_get_stats(r.s, &stats);
    assert_int_equal(stats.reserved_bytes - reserved, 6 * CHUNK);
    assert_int_equal(run_alloc(&r, 30 * CHUNK, 0), FERRY_FAILED);
    expect_states(r.s, 3, 1, 1, 7, 1);
    assert_non_null(strstr(ferry_error(), "out of memory"));
    VALID(r.s);
    run_close(&r);
}

/* Freed by one stream, asked for by another: at once when the device is done, else only in S5, which waits. */
static void test_streams(void **state)
{
    (void)state;
    static run r;
    ferry_stitch_stats stats;
    run_open(&r, 1, 16 * CHUNK, NULL);
    OK(run_alloc(&r, 8 * CHUNK, 1));
    OK(run_free(&r, 0));
    OK(run_alloc(&r, 8 * CHUNK, 2)); /* stream 1 is at work: new memory */
    ferry_stitch_get_stats(r.s, &stats);
    assert_int_equal(stats.reserved_bytes, 16 * CHUNK);
    OK(run_alloc(&r, 8 * CHUNK, 2)); /* no more: waits on the device */
    ferry_stitch_get_stats(r.s, &stats);
    assert_int_equal(stats.reserved_bytes, 16 * CHUNK);
    assert_int_equal(stats.adopted_bytes, 8 * CHUNK);
    OK(run_free(&r, 0));
    OK(run_free(&r, 0));
    test_complete(&r.device, 2, r.device.enqueued[2]);
    OK(run_alloc(&r, 16 * CHUNK, 3));
    ferry_stitch_get_stats(r.s, &stats);
    assert_int_equal(stats.state[4], 0);
    run_use(&r, 0, 1); /* stream 1 uses it too */
    OK(run_free(&r, 0));
    test_complete(&r.device, 3, r.device.enqueued[3]);
    assert_true(r.device.completed[1] < r.device.enqueued[1]);
    OK(run_alloc(&r, CHUNK, 3)); /* S5 waits for stream 1 */
    assert_int_equal(r.device.completed[1], r.device.enqueued[1]);
    run_right(&r);
    run_close(&r);
}

/* A stream that is gone: what it freed is anyone's, what it holds stays, and nothing is asked of it again. */
static void test_stream_close(void **state)
{
    (void)state;
    static run r;
    ferry_stitch_stats stats;
    run_open(&r, 1, 32 * CHUNK, NULL);
    OK(run_stream_close(&r, 1)); /* never seen */
    OK(run_alloc(&r, 8 * CHUNK, 1));
    OK(run_alloc(&r, 8 * CHUNK, 1));
    OK(run_alloc(&r, 8 * CHUNK, 2));
    run_use(&r, 2, 1);
    OK(run_free(&r, 0)); /* the last of them is at index 0 now */
    OK(run_stream_close(&r, 1));
    assert_int_equal(r.device.completed[1], r.device.enqueued[1]);
    OK(run_alloc(&r, 8 * CHUNK, 2)); /* what stream 1 freed */
    ferry_stitch_get_stats(r.s, &stats);
    assert_int_equal(stats.reserved_bytes, 24 * CHUNK);
    assert_int_equal(stats.state[4], 0);
    OK(run_free(&r, 1));             /* stream 1's, after its end */
    OK(run_free(&r, 0));             /* used by stream 1 */
    OK(run_alloc(&r, 8 * CHUNK, 3)); /* stream 3 takes the queue over */
    ferry_stitch_get_stats(r.s, &stats);
    assert_int_equal(stats.reserved_bytes, 24 * CHUNK);
    OK(run_alloc(&r, 16 * CHUNK, 1)); /* a new stream of the same handle */
    OK(ferry_stitch_trim(r.s, NULL));
    OK(run_stream_close(&r, 3));
    run_right(&r);
    VALID(r.s);
    assert_int_equal(ferry_stitch_stream_close(NULL, NULL), FERRY_USAGE);
    run_close(&r);
}

static void test_arguments(void **state)
{
    (void)state;
    ferry_stitch_device device;
    ferry_stitch *s = (ferry_stitch *)1;
    void *p = &s;
    assert_int_equal(ferry_stitch_host(1000, 1 << 20, false, &device), FERRY_USAGE);
    assert_int_equal(ferry_stitch_host(4096, 0, false, &device), FERRY_USAGE);
    assert_int_equal(ferry_stitch_open(NULL, NULL, &s), FERRY_USAGE);
    assert_null(s);
    OK(ferry_stitch_host(CHUNK, 1 << 20, true, &device));
    ferry_stitch_options wrong = {.small_bytes = 2 * CHUNK};
    assert_int_equal(ferry_stitch_open(&device, &wrong, &s), FERRY_USAGE);
    OK(ferry_stitch_host(CHUNK, 1 << 20, true, &device));
    OK(ferry_stitch_open(&device, NULL, &s));
    assert_int_equal(ferry_stitch_alloc(s, -1, NULL, &p), FERRY_USAGE);
    assert_null(p);
    OK(ferry_stitch_alloc(s, 0, NULL, &p));
    assert_null(p);
    OK(ferry_stitch_free(s, NULL));
    assert_int_equal(ferry_stitch_alloc(s, INT64_MAX, NULL, &p), FERRY_FAILED);
    assert_int_equal(ferry_stitch_use(s, NULL, NULL), FERRY_USAGE);
    assert_int_equal(ferry_stitch_use(s, &s, NULL), FERRY_USAGE);
    OK(ferry_stitch_alloc(s, 3 * CHUNK, NULL, &p));
    assert_int_equal(*(unsigned char *)p, 0xFF); /* fresh memory is NaN */
    FILE *f = tmpfile();
    OK(ferry_stitch_snapshot(s, f));
    assert_true(ftell(f) > 100);
    fclose(f);
    VALID(s);
    ferry_stitch_close(s); /* with a live block */
    ferry_stitch_close(NULL);
}

/* The host's memory as it is, with streams that are always idle. */
static void test_host(void **state)
{
    (void)state;
    ferry_stitch_device device;
    ferry_stitch_stats stats;
    ferry_stitch *s;
    void *a, *b, *c;
    OK(ferry_stitch_host(CHUNK, 16 * CHUNK, true, &device));
    assert_int_equal(device.capacity_bytes, 16 * CHUNK);
    OK(ferry_stitch_open(&device, NULL, &s));
    OK(ferry_stitch_alloc(s, 8 * CHUNK, test_stream(1), &a));
    OK(ferry_stitch_alloc(s, 8 * CHUNK, test_stream(2), &b));
    memset(a, 1, 8 * CHUNK);
    memset(b, 2, 8 * CHUNK);
    OK(ferry_stitch_use(s, a, test_stream(2)));
    OK(ferry_stitch_free(s, a));
    OK(ferry_stitch_alloc(s, 8 * CHUNK, test_stream(3), &c)); /* another stream's, which is idle */
    assert_int_equal(((char *)b)[8 * CHUNK - 1], 2);
    assert_int_equal(ferry_stitch_alloc(s, CHUNK, test_stream(3), &a), FERRY_FAILED);
    assert_non_null(strstr(ferry_error(), "out of memory"));
    OK(ferry_stitch_free(s, c));
    OK(ferry_stitch_stream_close(s, test_stream(3)));
    OK(ferry_stitch_free(s, b));
    OK(ferry_stitch_trim(s, NULL));
    ferry_stitch_get_stats(s, &stats);
    assert_int_equal(stats.reserved_bytes, 0);
    ferry_stitch_close(s);
}

/* Neither a file nor its size can be had. */
static void test_host_limits(void **state)
{
    (void)state;
    ferry_stitch_device device;
    struct rlimit files, none, size, small;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &size), 0);
    none = (struct rlimit){0, files.rlim_max};
    small = (struct rlimit){CHUNK, size.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    ferry_status no_file = ferry_stitch_host(CHUNK, 1 << 20, false, &device);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(no_file, FERRY_FAILED);
    assert_null(device.self);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    ferry_status no_size = ferry_stitch_host(CHUNK, 1 << 20, false, &device);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &size), 0);
    assert_int_equal(no_size, FERRY_FAILED);
    assert_null(device.self);
}

/* ---- failing calls ----------------------------------------------------------------------------------------------- */

/* The same 150 steps with the n-th virtual memory call failing (and those after it): what fails changes nothing, what
 * follows works. */
static int64_t failing_run(int64_t from, int64_t count)
{
    run *r = calloc(1, sizeof(*r));
    ferry_stitch_device device;
    ferry_stitch_options options = {.max_sblocks = 6, .large_chunk = 2 * CHUNK};
    OK(test_device_open(&r->device, CHUNK, 3 << 20, true, &device));
    r->device.fail_from = from;
    r->device.fail_count = count;
    r->seed = 7;
    r->next_owner = 1;
    if (ferry_stitch_open(&device, &options, &r->s) != FERRY_OK) {
        assert_null(r->s);
        assert_int_equal(atomic_load(&r->device.ranges), 0);
        int64_t calls = atomic_load(&r->device.calls);
        free(r->device.unit);
        free(r);
        return calls;
    }
    for (int n = 0; n < 150; n++) {
        uint64_t kind = draw(&r->seed) % 10;
        int stream = (int)(draw(&r->seed) % 2);
        int64_t bytes = draw_bytes(&r->seed, 30 * CHUNK);
        if (kind < 6 || r->count == 0) {
            ferry_stitch_stats before, after;
            ferry_stitch_get_stats(r->s, &before);
            int64_t calls = atomic_load(&r->device.calls);
            if (run_alloc(r, bytes, stream) != FERRY_OK) {
                assert_true(atomic_load(&r->device.calls) > calls);
                ferry_stitch_get_stats(r->s, &after);
                assert_int_equal(before.reserved_bytes, after.reserved_bytes);
                assert_int_equal(before.live_bytes, after.live_bytes);
            }
        } else if (kind < 9) {
            int i = (int)((uint64_t)n % (uint64_t)r->count);
            if (kind == 8) {
                run_use(r, i, 1 - stream);
            }
            (void)run_free(r, i);
        } else {
            (void)ferry_stitch_trim(r->s, NULL);
        }
        VALID(r->s);
        run_right(r);
    }
    int64_t calls = atomic_load(&r->device.calls);
    r->device.fail_count = 0;
    run_close(r);
    free(r);
    return calls;
}

static void test_failing_calls(void **state)
{
    (void)state;
    int64_t calls = failing_run(0, 0);
    assert_true(calls > 200);
    int64_t step = getenv("FERRY_RANDOM_INSTANCES") != NULL ? 11 : 3; /* sanitizer builds */
    for (int64_t n = 1; n <= calls; n += step) {
        (void)failing_run(n, 1);
        (void)failing_run(n, 2 + n % 5);
    }
    (void)failing_run(10, INT64_MAX / 2); /* from then on all of them */
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef struct thread {
    pthread_t id;
    ferry_stitch *s;
    uint64_t seed;
    int64_t requests;
    int stream;
    bool intact;
} thread;

static void *thread_run(void *arg)
{
    thread *t = arg;
    enum { MINE = 60 };
    block mine[MINE];
    int count = 0;
    for (int64_t n = 0; n < t->requests || count > 0; n++) {
        if (n < t->requests && (draw(&t->seed) % 2 == 0 ? count < MINE : count == 0)) {
            block b = {.bytes = draw_bytes(&t->seed, 20 * CHUNK), .tag = draw(&t->seed)};
            void *at;
            if (ferry_stitch_alloc(t->s, b.bytes, test_stream(t->stream), &at) == FERRY_OK) {
                b.at = at;
                block_fill(&b);
                mine[count++] = b;
            }
        } else {
            int i = (int)(draw(&t->seed) % (uint64_t)count);
            t->intact = t->intact && block_intact(&mine[i]);
            if (draw(&t->seed) % 16 == 0) {
                (void)ferry_stitch_use(t->s, mine[i].at, test_stream(1));
            }
            if (ferry_stitch_free(t->s, mine[i].at) == FERRY_OK) {
                mine[i] = mine[--count];
            }
        }
        if (n % 4096 == 4095) {
            (void)ferry_stitch_trim(t->s, NULL);
        }
    }
    return t;
}

static void threads_run(int64_t fail_from, int64_t fail_count)
{
    enum { THREADS = 4 };
    static test_device d;
    ferry_stitch_device device;
    thread t[THREADS];
    ferry_stitch *s;
    ferry_stitch_options options = {.max_sblocks = 20, .worker = true, .large_chunk = 4 * CHUNK};
    OK(test_device_open(&d, CHUNK, 6 << 20, false, &device));
    OK(ferry_stitch_open(&device, &options, &s));
    d.fail_from = fail_from;
    d.fail_count = fail_count;
    for (int i = 0; i < THREADS; i++) {
        t[i] = (thread){.s = s,
                        .seed = (uint64_t)i + 1,
                        .requests = request_count(60000) / THREADS,
                        .stream = i % 3,
                        .intact = true};
        assert_int_equal(pthread_create(&t[i].id, NULL, thread_run, &t[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i].id, NULL);
        assert_true(t[i].intact);
    }
    VALID(s);
    ferry_stitch_stats stats;
    OK(ferry_stitch_trim(s, NULL));
    ferry_stitch_get_stats(s, &stats);
    assert_int_equal(stats.live_bytes, 0);
    assert_int_equal(stats.reserved_bytes, 0);
    assert_int_equal(stats.creates, stats.releases);
    assert_true(stats.state[2] > 0 && stats.sblocks_dropped > 0);
    ferry_stitch_close(s);
    free(d.unit);
}

static void test_threads(void **state)
{
    (void)state;
    threads_run(0, 0);
    threads_run(1000, 3000); /* a while without memory */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments),    cmocka_unit_test(test_states),        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_stream_close), cmocka_unit_test(test_host),          cmocka_unit_test(test_host_limits),
        cmocka_unit_test(test_random),       cmocka_unit_test(test_failing_calls), cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
