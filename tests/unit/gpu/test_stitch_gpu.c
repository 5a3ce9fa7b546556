/* test_stitch_gpu.c - the stitching allocator on the GPU's virtual memory: contents of live blocks on streams that are
 * really at work, with failing calls, by several threads, and all memory back at the end. What needs a model of the
 * device to be seen is in test_stitch.c, on the host's memory. */
#include "runtime/stitch.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MIB      INT64_C(1048576)
#define OK(call) assert_int_equal(call, FERRY_OK)
#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) {                                                                                   \
            fail_msg("%s: %s", #call, cudaGetErrorString(error_));                                                     \
        }                                                                                                              \
    } while (0)
#define VALID(s)                                                                                                       \
    do {                                                                                                               \
        if (!ferry_stitch_is_valid(s)) {                                                                               \
            fail_msg("%s", ferry_error());                                                                             \
        }                                                                                                              \
    } while (0)

enum { SKIPPED = 77, STREAMS = 3, BLOCKS = 64, SAMPLE = 1 << 16, PENDING = 4096 };

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* ---- a device whose calls fail when the test says so ------------------------------------------------------------- */

typedef struct failing {
    ferry_stitch_device inner;
    int64_t from, count; /* calls from, from + 1 ... fail; 1 is the first */
    atomic_llong calls;
} failing;

static bool fails(failing *f)
{
    int64_t call = atomic_fetch_add(&f->calls, 1) + 1;
    return f->count > 0 && call >= f->from && call < f->from + f->count;
}

static ferry_status fail_create(void *self, int64_t bytes, uint64_t *chunk)
{
    failing *f = self;
    return fails(f) ? FERRY_FAILED : f->inner.create(f->inner.self, bytes, chunk);
}

static void fail_release(void *self, uint64_t chunk)
{
    failing *f = self;
    f->inner.release(f->inner.self, chunk);
}

static ferry_status fail_reserve(void *self, int64_t bytes, void **at)
{
    failing *f = self;
    return fails(f) ? FERRY_FAILED : f->inner.reserve(f->inner.self, bytes, at);
}

static void fail_unreserve(void *self, void *at, int64_t bytes)
{
    failing *f = self;
    f->inner.unreserve(f->inner.self, at, bytes);
}

static ferry_status fail_map(void *self, void *at, int64_t bytes, uint64_t chunk)
{
    failing *f = self;
    return fails(f) ? FERRY_FAILED : f->inner.map(f->inner.self, at, bytes, chunk);
}

static ferry_status fail_allow(void *self, void *at, int64_t bytes)
{
    failing *f = self;
    return fails(f) ? FERRY_FAILED : f->inner.allow(f->inner.self, at, bytes);
}

static ferry_status fail_unmap(void *self, void *at, int64_t bytes)
{
    failing *f = self;
    return f->inner.unmap(f->inner.self, at, bytes);
}

static ferry_status fail_event_record(void *self, void *stream, void **event)
{
    failing *f = self;
    return fails(f) ? FERRY_FAILED : f->inner.event_record(f->inner.self, stream, event);
}

static bool fail_event_done(void *self, void *event)
{
    failing *f = self;
    return f->inner.event_done(f->inner.self, event);
}

static ferry_status fail_event_wait(void *self, void *stream, void *event)
{
    failing *f = self;
    return fails(f) ? FERRY_FAILED : f->inner.event_wait(f->inner.self, stream, event);
}

static ferry_status fail_event_sync(void *self, void *event)
{
    failing *f = self;
    return f->inner.event_sync(f->inner.self, event);
}

static void fail_event_close(void *self, void *event)
{
    failing *f = self;
    f->inner.event_close(f->inner.self, event);
}

static void fail_close(void *self)
{
    failing *f = self;
    f->inner.close(f->inner.self);
}

static void failing_open(failing *f, ferry_stitch_device *out)
{
    memset(f, 0, sizeof(*f));
    OK(ferry_stitch_cuda(0, &f->inner));
    *out = (ferry_stitch_device){.self = f,
                                 .chunk_bytes = f->inner.chunk_bytes,
                                 .capacity_bytes = f->inner.capacity_bytes,
                                 .create = fail_create,
                                 .release = fail_release,
                                 .reserve = fail_reserve,
                                 .unreserve = fail_unreserve,
                                 .map = fail_map,
                                 .allow = fail_allow,
                                 .unmap = fail_unmap,
                                 .event_record = fail_event_record,
                                 .event_done = fail_event_done,
                                 .event_wait = fail_event_wait,
                                 .event_sync = fail_event_sync,
                                 .event_close = fail_event_close,
                                 .close = fail_close};
}

/* ---- blocks with contents ---------------------------------------------------------------------------------------- */

typedef struct block {
    char *at;
    int64_t bytes;
    unsigned char tag;
    int stream;
} block;

/* Samples of freed blocks on their way to the host; compared when the streams are idle. */
typedef struct pending {
    int64_t offset, count;
    unsigned char tag;
} pending;

typedef struct run {
    ferry_stitch *s;
    cudaStream_t stream[STREAMS]; /* several threads: only the first */
    int streams;
    block block[BLOCKS];
    int count;
    unsigned char *sample; /* pinned */
    int64_t sampled, room, checked;
    pending pending[PENDING];
    int n_pending;
    char *busy; /* memory that is written to keep a stream at work */
    int64_t busy_bytes;
    uint64_t seed;
    bool intact;
} run;

static void run_init(run *r, ferry_stitch *s, uint64_t seed, int streams)
{
    memset(r, 0, sizeof(*r));
    r->s = s;
    r->seed = seed;
    r->streams = streams;
    r->intact = true;
    r->room = 1 << 20;
    r->busy_bytes = 256 * MIB;
    for (int i = 0; i < streams; i++) {
        CUDA(cudaStreamCreateWithFlags(&r->stream[i], cudaStreamNonBlocking));
    }
    CUDA(cudaMallocHost((void **)&r->sample, (size_t)r->room));
    CUDA(cudaMalloc((void **)&r->busy, (size_t)r->busy_bytes));
}

static bool run_sync(run *r)
{
    for (int i = 0; i < r->streams; i++) {
        if (cudaStreamSynchronize(r->stream[i]) != cudaSuccess) {
            return r->intact = false;
        }
    }
    for (int i = 0; i < r->n_pending; i++) {
        const pending *p = &r->pending[i];
        for (int64_t k = 0; k < p->count; k++) {
            r->intact = r->intact && r->sample[p->offset + k] == p->tag;
        }
        r->checked += p->count;
    }
    r->n_pending = 0;
    r->sampled = 0;
    return r->intact;
}

/* Reads every SAMPLE-th byte, and the last, on a stream. */
static void block_check(run *r, const block *b, int stream)
{
    int64_t n = (b->bytes - 1) / SAMPLE;
    if (r->n_pending == PENDING || r->sampled + n + 1 > r->room) {
        run_sync(r);
    }
    unsigned char *to = r->sample + r->sampled;
    bool sent = n == 0 || cudaMemcpy2DAsync(to, 1, b->at, SAMPLE, 1, (size_t)n, cudaMemcpyDeviceToHost,
                                            r->stream[stream]) == cudaSuccess;
    sent = cudaMemcpyAsync(to + n, b->at + b->bytes - 1, 1, cudaMemcpyDeviceToHost, r->stream[stream]) == cudaSuccess &&
           sent;
    r->intact = r->intact && sent;
    r->pending[r->n_pending++] = (pending){r->sampled, n + 1, b->tag};
    r->sampled += n + 1;
}

static ferry_status run_alloc(run *r, int64_t bytes, int stream)
{
    block b = {.bytes = bytes, .tag = (unsigned char)draw(&r->seed), .stream = stream};
    void *at;
    ferry_status status = ferry_stitch_alloc(r->s, bytes, r->stream[stream], &at);
    if (status != FERRY_OK) {
        return status;
    }
    b.at = at;
    bool sent = true;
    if (draw(&r->seed) % 8 == 0) { /* what follows on this stream comes late */
        sent = cudaMemsetAsync(r->busy, 0, (size_t)r->busy_bytes, r->stream[stream]) == cudaSuccess;
    }
    sent = cudaMemsetAsync(b.at, b.tag, (size_t)bytes, r->stream[stream]) == cudaSuccess && sent;
    r->intact = r->intact && sent;
    r->block[r->count++] = b;
    return FERRY_OK;
}

/* The block is read by its own stream, or by another that waits for it and of which the allocator is told; then it is
 * freed, while all that is still to come. */
static ferry_status run_free(run *r, int i, bool elsewhere)
{
    block b = r->block[i];
    int stream = b.stream;
    if (elsewhere && r->streams > 1) {
        cudaEvent_t e;
        stream = (stream + 1) % r->streams;
        bool sent = cudaEventCreateWithFlags(&e, cudaEventDisableTiming) == cudaSuccess &&
                    cudaEventRecord(e, r->stream[b.stream]) == cudaSuccess &&
                    cudaStreamWaitEvent(r->stream[stream], e, 0) == cudaSuccess && cudaEventDestroy(e) == cudaSuccess;
        r->intact = r->intact && sent;
        ferry_status status = ferry_stitch_use(r->s, b.at, r->stream[stream]);
        if (status != FERRY_OK) {
            return status;
        }
    }
    block_check(r, &b, stream);
    ferry_status status = ferry_stitch_free(r->s, b.at);
    if (status == FERRY_OK) {
        r->block[i] = r->block[--r->count];
    }
    return status;
}

static int64_t draw_bytes(uint64_t *seed, int64_t most)
{
    switch (draw(seed) % 8) {
    case 0:
    case 1:
        return 1 + (int64_t)(draw(seed) % (uint64_t)(2 * MIB));
    case 2:
        return (int64_t)(1 + draw(seed) % 16) * 2 * MIB;
    case 3:
        return 1 + (int64_t)(draw(seed) % (uint64_t)most);
    default:
        return 2 * MIB + (int64_t)(draw(seed) % (uint64_t)(24 * MIB));
    }
}

static void run_step(run *r, int64_t most)
{
    uint64_t kind = draw(&r->seed) % 100;
    int stream = (int)(draw(&r->seed) % (uint64_t)r->streams);
    if (kind < 52 && r->count < BLOCKS) {
        (void)run_alloc(r, draw_bytes(&r->seed, most), stream);
    } else if (r->count > 0) {
        (void)run_free(r, (int)(draw(&r->seed) % (uint64_t)r->count), kind % 4 == 0);
    }
}

static void run_end(run *r)
{
    while (r->count > 0) {
        if (run_free(r, r->count - 1, false) != FERRY_OK) {
            r->intact = false;
            break;
        }
    }
    run_sync(r);
    for (int i = 0; i < r->streams; i++) {
        r->intact = ferry_stitch_stream_close(r->s, r->stream[i]) == FERRY_OK && r->intact;
        r->intact = cudaStreamDestroy(r->stream[i]) == cudaSuccess && r->intact;
    }
    r->intact = cudaFree(r->busy) == cudaSuccess && cudaFreeHost(r->sample) == cudaSuccess && r->intact;
}

/* Nothing is live, nothing is held, and the device has as much free memory as before. */
static void end(ferry_stitch *s, size_t free_before)
{
    ferry_stitch_stats stats;
    size_t free_now, total;
    OK(ferry_stitch_trim(s, NULL));
    VALID(s);
    ferry_stitch_get_stats(s, &stats);
    assert_int_equal(stats.live_bytes, 0);
    assert_int_equal(stats.reserved_bytes, 0);
    assert_int_equal(stats.creates, stats.releases);
    ferry_stitch_close(s);
    CUDA(cudaMemGetInfo(&free_now, &total));
    assert_true((int64_t)free_now >= (int64_t)free_before - 4 * MIB);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* The paper's states, in chunks of the device. */
static void test_states(void **state)
{
    (void)state;
    ferry_stitch_device device;
    ferry_stitch_stats stats;
    ferry_stitch *s;
    size_t before, total;
    CUDA(cudaMemGetInfo(&before, &total));
    OK(ferry_stitch_cuda(0, &device));
    int64_t chunk = device.chunk_bytes;
    ferry_stitch_options options = {.limit_bytes = 32 * chunk};
    OK(ferry_stitch_open(&device, &options, &s));
    void *p[4], *q;
    for (int i = 0; i < 4; i++) {
        OK(ferry_stitch_alloc(s, 8 * chunk, NULL, &p[i]));
        CUDA(cudaMemset(p[i], i + 1, (size_t)(8 * chunk)));
    }
    OK(ferry_stitch_free(s, p[0]));
    OK(ferry_stitch_free(s, p[2]));
    OK(ferry_stitch_alloc(s, 12 * chunk, NULL, &q)); /* stitched of two that lie apart */
    CUDA(cudaMemset(q, 9, (size_t)(12 * chunk)));
    for (int i = 1; i < 4; i += 2) {
        unsigned char byte[2];
        CUDA(cudaMemcpy(&byte[0], p[i], 1, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(&byte[1], (char *)p[i] + 8 * chunk - 1, 1, cudaMemcpyDeviceToHost));
        assert_int_equal(byte[0], i + 1);
        assert_int_equal(byte[1], i + 1);
    }
    void *none;
    assert_int_equal(ferry_stitch_alloc(s, 8 * chunk, NULL, &none), FERRY_FAILED);
    assert_null(none);
    assert_non_null(strstr(ferry_error(), "out of memory"));
    OK(ferry_stitch_free(s, q));
    OK(ferry_stitch_alloc(s, 12 * chunk, NULL, &q)); /* the same sBlock */
    ferry_stitch_get_stats(s, &stats);
    assert_int_equal(stats.state[0], 1);
    assert_int_equal(stats.state[2], 1);
    assert_int_equal(stats.state[3], 4);
    assert_int_equal(stats.state[4], 1);
    assert_int_equal(ferry_stitch_free(s, (char *)q + 512), FERRY_USAGE);
    OK(ferry_stitch_free(s, q));
    assert_int_equal(ferry_stitch_free(s, q), FERRY_USAGE);
    OK(ferry_stitch_free(s, p[1]));
    OK(ferry_stitch_free(s, p[3]));
    end(s, before);
}

static void random_run(uint64_t seed, int requests, const ferry_stitch_options *options, bool tight)
{
    ferry_stitch_device device;
    ferry_stitch_stats stats;
    ferry_stitch *s;
    size_t before, total;
    CUDA(cudaMemGetInfo(&before, &total));
    OK(ferry_stitch_cuda(0, &device));
    OK(ferry_stitch_open(&device, options, &s));
    run *r = malloc(sizeof(*r));
    run_init(r, s, seed, STREAMS);
    for (int n = 0; n < requests; n++) {
        run_step(r, 96 * MIB);
        if (n % 499 == 0) {
            VALID(s);
            assert_true(run_sync(r));
        }
    }
    run_end(r);
    assert_true(r->intact);
    ferry_stitch_get_stats(s, &stats);
    print_message("%lld requests, %lld bytes looked at, states %lld %lld %lld %lld %lld, sblocks dropped %lld, "
                  "adopted %lld MiB\n",
                  (long long)stats.requests, (long long)r->checked, (long long)stats.state[0],
                  (long long)stats.state[1], (long long)stats.state[2], (long long)stats.state[3],
                  (long long)stats.state[4], (long long)stats.sblocks_dropped, (long long)(stats.adopted_bytes / MIB));
    assert_true(stats.state[0] > 0 && stats.state[1] > 0 && stats.state[2] > 0 && stats.state[3] > 0);
    assert_true(!tight || (stats.state[4] > 0 && stats.adopted_bytes > 0));
    free(r);
    end(s, before);
}

static void test_random(void **state)
{
    (void)state;
    ferry_stitch_options tight = {.limit_bytes = 400 * MIB, .max_sblocks = 40}, worker = {.worker = true};
    random_run(1, 8000, NULL, false);
    random_run(2, 8000, &tight, true);
    random_run(3, 8000, &worker, false);
}

/* The n-th call fails, and some after it: contents stay, what follows works, all memory comes back. */
static int64_t failing_run(int64_t from, int64_t count)
{
    failing f;
    ferry_stitch_device device;
    ferry_stitch *s;
    size_t before, total;
    ferry_stitch_options options = {.limit_bytes = 300 * MIB, .max_sblocks = 6};
    CUDA(cudaMemGetInfo(&before, &total));
    failing_open(&f, &device);
    f.from = from;
    f.count = count;
    if (ferry_stitch_open(&device, &options, &s) != FERRY_OK) {
        assert_null(s);
        return atomic_load(&f.calls);
    }
    run *r = malloc(sizeof(*r));
    run_init(r, s, 7, 2);
    for (int n = 0; n < 120; n++) {
        ferry_stitch_stats was, is;
        ferry_stitch_get_stats(s, &was);
        int64_t bytes = draw_bytes(&r->seed, 60 * MIB);
        if (draw(&r->seed) % 10 < 6 && r->count < BLOCKS) {
            if (run_alloc(r, bytes, n % 2) != FERRY_OK) {
                ferry_stitch_get_stats(s, &is);
                assert_int_equal(was.live_bytes, is.live_bytes);
                assert_true(is.reserved_bytes <= was.reserved_bytes); /* S5 may have given some back */
            }
        } else if (r->count > 0) {
            (void)run_free(r, n % r->count, n % 4 == 0);
        }
        VALID(s);
    }
    int64_t calls = atomic_load(&f.calls);
    f.count = 0;
    run_end(r);
    assert_true(r->intact);
    free(r);
    end(s, before);
    return calls;
}

static void test_failing_calls(void **state)
{
    (void)state;
    int64_t calls = failing_run(0, 0);
    assert_true(calls > 100);
    for (int64_t n = 1; n <= calls; n += 1 + calls / 40) {
        (void)failing_run(n, 1 + n % 4);
    }
    (void)failing_run(10, INT64_MAX / 2); /* from then on all of them */
}

typedef struct thread {
    pthread_t id;
    run run;
} thread;

static void *thread_run(void *arg)
{
    thread *t = arg;
    for (int n = 0; n < 3000; n++) {
        run_step(&t->run, 64 * MIB);
    }
    return t;
}

static void test_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    ferry_stitch_device device;
    ferry_stitch *s;
    size_t before, total;
    thread *t = calloc(THREADS, sizeof(*t));
    ferry_stitch_options options = {.worker = true, .max_sblocks = 60, .limit_bytes = 2048 * MIB};
    CUDA(cudaMemGetInfo(&before, &total));
    OK(ferry_stitch_cuda(0, &device));
    OK(ferry_stitch_open(&device, &options, &s));
    for (int i = 0; i < THREADS; i++) {
        run_init(&t[i].run, s, (uint64_t)i + 1, 1);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&t[i].id, NULL, thread_run, &t[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i].id, NULL);
    }
    VALID(s);
    for (int i = 0; i < THREADS; i++) {
        run_end(&t[i].run);
        assert_true(t[i].run.intact);
        assert_true(t[i].run.checked > 0);
    }
    free(t);
    end(s, before);
}

int main(void)
{
    ferry_stitch_device device;
    if (ferry_stitch_cuda(0, &device) != FERRY_OK) {
        fprintf(stderr, "skipped: %s\n", ferry_error());
        return SKIPPED;
    }
    device.close(device.self);
    /* The context and what CUDA keeps for such calls are there before free memory is looked at. */
    void *warm;
    if (cudaMalloc(&warm, 1 << 20) != cudaSuccess || cudaMemset(warm, 0, 1 << 20) != cudaSuccess ||
        cudaFree(warm) != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_states), cmocka_unit_test(test_random),
                                       cmocka_unit_test(test_failing_calls), cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
