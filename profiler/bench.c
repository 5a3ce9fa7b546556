/* bench.c - the measuring bench: opens and closes it, fills memory, times jobs. */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "profiler/bench.h"

Status bench_check(const Bench *b, ferry_status status)
{
    if (status == FERRY_OK)
        return ST_OK;
    return diag_fail(b->diag, ST_FAILED, "measuring %s: %s", b->what, ferry_error());
}

/* An update in training finds parameters and state in memory: the whole model's went through the caches since its last
 * one. Repeated on one unit, it would find them in the caches and be twice as fast. So there is memory of twice their size, in
 * which units lie side by side (host_units.c), or which goes through before a run. */
static Status make_eviction(Bench *b)
{
    enum { LEAST = 128 << 20, MOST = 1 << 30, ALIGNED = 4096 };
    int64_t bytes = 2 * (int64_t)sysconf(_SC_LEVEL3_CACHE_SIZE);
    bytes = bytes < LEAST ? LEAST : bytes > MOST ? MOST : bytes;
    void *p;
    b->evict_bytes = bytes / ALIGNED * ALIGNED;
    TRY(bench_pinned(b, b->evict_bytes, &p));
    b->evict = p;
    return ST_OK;
}

static Status evict_caches(Bench *b)
{
    int64_t part = b->evict_bytes / 4;
    const ferry_adamw_args args = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .step = 1};
    return bench_check(b, ferry_adamw(b->stream[FERRY_STREAM_UPDATE], FERRY_F32, b->evict, b->evict + part,
                                      b->evict + 2 * part, b->evict + 3 * part, NULL, part / 4, args));
}

Status bench_open(Diag *d, const Graph *g, const ProfileOptions *options, int64_t pool_bytes, Arena *a, Bench *b)
{
    *b = (Bench){.diag = d, .graph = g, .options = options, .pool_bytes = pool_bytes, .what = "the device"};
    for (int i = 0; i < BENCH_STREAMS; i++)
        sem_init(&b->gate[i], 0, 0);
    b->sample = ARENA_NEW(a, int64_t, options->repeats);
    b->run = ARENA_NEW(a, GpuRun, (size_t)options->repeats + 1);
    if (!b->sample || !b->run)
        return diag_oom(d);
    b->on_gpu = strcmp(options->device, "host") != 0;
    if (ferry_device_open(options->device, &b->device) != FERRY_OK) {
        diag_fail(d, ST_FAILED, "%s", ferry_error());
        return diag_hint(d,
                         "profile with --device host, or with --device model:FILE.yaml for a GPU described by numbers");
    }
    if (b->on_gpu) {
        TRY_FERRY(b, ferry_event_open(b->device, &b->open));
    }
    for (int i = 0; i < BENCH_STREAMS; i++) {
        TRY_FERRY(b, ferry_stream_open(b->device, (ferry_stream_kind)i, &b->stream[i]));
        TRY_FERRY(b, ferry_event_open(b->device, &b->start[i]));
        TRY_FERRY(b, ferry_event_open(b->device, &b->end[i]));
    }
    TRY_FERRY(b, ferry_pool_open(b->device, pool_bytes, &b->pool));
    if (b->on_gpu)
        TRY(make_eviction(b));
    return bench_pinned(b, TILE_BYTES, &b->tile);
}

void bench_close(Bench *b)
{
    for (int i = 0; i < BENCH_STREAMS; i++) {
        if (b->stream[i])
            ferry_stream_close(b->stream[i]);
        if (b->start[i])
            ferry_event_close(b->start[i]);
        if (b->end[i])
            ferry_event_close(b->end[i]);
        sem_destroy(&b->gate[i]);
    }
    gpu_trace_close(b->trace);
    if (b->open)
        ferry_event_close(b->open);
    if (b->tile)
        ferry_host_free(b->device, b->tile);
    if (b->evict)
        ferry_host_free(b->device, b->evict);
    if (b->pool)
        ferry_pool_close(b->pool);
    if (b->device)
        ferry_device_close(b->device);
}

Status bench_pinned(const Bench *b, int64_t bytes, void **out)
{
    return bench_check(b, ferry_host_alloc(b->device, bytes > 0 ? bytes : 1, out));
}

/* ---- contents
 * --------------------------------------------------------------------------------------------------------- */

/* The next number of a fixed sequence (splitmix64). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static double unit_interval(uint64_t *state)
{
    return (double)(next_random(state) >> 11) / 9007199254740992.0;
}

/* All positive and of one magnitude: no operator of a model makes a NaN, an infinity or a denormal of these in a few
 * steps, and those would be slower (or faster) than what training sees. */
static double small_number(uint64_t *state)
{
    return 0.02 + 0.04 * unit_interval(state);
}

/* Ids are distributed as words are in a text, after Zipf: the n-th is drawn about 1/n times as often as the first. An
 * embedding's gradient takes longer where many ids are equal. */
static uint64_t word(uint64_t *state, uint64_t bound)
{
    uint64_t value = (uint64_t)exp(unit_interval(state) * log((double)bound + 1)) - 1;
    return value < bound ? value : bound - 1;
}

static bool is_integer(ferry_dtype t)
{
    return t != FERRY_F32 && t != FERRY_F64 && t != FERRY_F16 && t != FERRY_BF16;
}

/* The largest value of the type below the limit bounds the random numbers. */
static int64_t clamp_limit(ferry_dtype t, int64_t limit)
{
    if (t == FERRY_BOOL)
        return 2;
    int64_t bytes = (int64_t)ferry_dtype_bytes(t);
    int64_t most = bytes == 1 ? 127 : bytes == 2 ? 32767 : INT32_MAX;
    return limit < 1 ? 1 : limit > most ? most : limit;
}

static Status fill_tile(Bench *b, ferry_dtype t, int64_t count, int64_t limit)
{
    uint64_t state = 20240520;
    enum { PART = 1024 };
    int64_t bytes = (int64_t)ferry_dtype_bytes(t);
    for (int64_t done = 0; done < count; done += PART) {
        int64_t n = count - done < PART ? count - done : PART;
        char *to = (char *)b->tile + done * bytes;
        if (is_integer(t)) {
            uint64_t bound = (uint64_t)clamp_limit(t, limit);
            for (int64_t i = 0; i < n; i++) {
                /* little-endian: the low bytes are the number in any width */
                uint64_t value = bound > 2 ? word(&state, bound) : next_random(&state) % bound;
                memcpy(to + i * bytes, &value, (size_t)bytes);
            }
        } else {
            double part[PART];
            for (int64_t i = 0; i < n; i++)
                part[i] = small_number(&state);
            TRY_FERRY(b, ferry_convert(to, t, part, FERRY_F64, n));
        }
    }
    return ST_OK;
}

/* Copies the tile's first tile_bytes to p again and again. */
static Status spread_tile(Bench *b, void *p, bool on_device, int64_t bytes, int64_t tile_bytes)
{
    ferry_stream *load = b->stream[FERRY_STREAM_LOAD];
    for (int64_t done = 0; done < bytes; done += tile_bytes) {
        int64_t n = bytes - done < tile_bytes ? bytes - done : tile_bytes;
        if (on_device)
            TRY_FERRY(b, ferry_copy_h2d(load, (char *)p + done, b->tile, n));
        else
            memcpy((char *)p + done, b->tile, (size_t)n);
    }
    return on_device ? bench_check(b, ferry_stream_sync(load)) : ST_OK;
}

Status bench_fill(Bench *b, void *p, bool on_device, ferry_dtype dtype, int64_t count, int64_t limit)
{
    int64_t size = (int64_t)ferry_dtype_bytes(dtype);
    int64_t in_tile = TILE_BYTES / size;
    int64_t n = count < in_tile ? count : in_tile;
    if (count <= 0)
        return ST_OK;
    TRY(fill_tile(b, dtype, n, limit));
    return spread_tile(b, p, on_device, count * size, n * size);
}

Status bench_copy_in(Bench *b, void *p, bool on_device, const void *data, int64_t bytes)
{
    for (int64_t done = 0; done < bytes; done += TILE_BYTES) {
        int64_t n = bytes - done < TILE_BYTES ? bytes - done : TILE_BYTES;
        memcpy(b->tile, (const char *)data + done, (size_t)n);
        TRY(spread_tile(b, (char *)p + done, on_device, n, n));
    }
    return ST_OK;
}

/* ---- time
 * ---------------------------------------------------------------------------------------------------------------- */

/* A GPU's queue takes about a thousand calls; the caller of one more waits for it, and would never open the gate. So
 * that gate opens by itself. */
static void wait_gate_a_while(void *gate)
{
    enum { A_WHILE_S = 2 };
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += A_WHILE_S;
    while (sem_timedwait(gate, &until) != 0 && errno == EINTR)
        continue;
}

static void wait_gate(void *gate)
{
    while (sem_wait(gate) != 0) /* a signal interrupts it */
        continue;
}

/* Where two streams of a pair meet. Waking a thread takes as long as a job, so that the first would be over before the
 * second starts: both spin here until both are awake. */
typedef struct Meeting {
    atomic_int arrived;
} Meeting;

static void meet(void *context)
{
    Meeting *m = context;
    atomic_fetch_add(&m->arrived, 1);
    for (int turns = 0; atomic_load(&m->arrived) < 2; turns++)
        if (turns > 100000) /* the other one may need this core */
            sched_yield();
}

/* Enqueues gate, meeting (if any), event, work, event. The gate must be opened afterwards, also on failure: *gated says
 * so. */
static Status enqueue_run(Bench *b, ferry_stream_kind kind, BenchJob *job, void *context, Meeting *m, bool *gated)
{
    ferry_stream *s = b->stream[kind];
    TRY_FERRY(b, ferry_stream_call(s, wait_gate, &b->gate[kind]));
    *gated = true;
    if (m)
        TRY_FERRY(b, ferry_stream_call(s, meet, m));
    TRY_FERRY(b, ferry_event_record(s, b->start[kind]));
    TRY(job(b, s, context));
    return bench_check(b, ferry_event_record(s, b->end[kind]));
}

/* Opens the gate and waits for the work. A failed device skips the gate; its count must not let the next run through.
 */
static Status finish_run(Bench *b, ferry_stream_kind kind, bool gated, Status status)
{
    if (!gated)
        return status;
    ferry_status synced = ferry_stream_sync(b->stream[kind]);
    return status != ST_OK ? status : bench_check(b, synced);
}

static Status run_times(Bench *b, ferry_stream_kind kind, int64_t *start_ns, int64_t *end_ns)
{
    TRY_FERRY(b, ferry_event_time_ns(b->start[kind], start_ns));
    return bench_check(b, ferry_event_time_ns(b->end[kind], end_ns));
}

/* ---- runs on a GPU
 * ------------------------------------------------------------------------------------------------------- */

static Status enqueue_lane(Bench *b, const BenchLane *l)
{
    ferry_stream *s = b->stream[l->kind];
    if (l->kind != FERRY_STREAM_UPDATE)
        TRY_FERRY(b, ferry_stream_wait(s, b->open));
    else if (b->cold)
        TRY(evict_caches(b));
    TRY_FERRY(b, ferry_event_record(s, b->start[l->kind]));
    TRY(l->job(b, s, l->context));
    return bench_check(b, ferry_event_record(s, b->end[l->kind]));
}

static Status enqueue_lanes(Bench *b, const BenchLane *lane, int count)
{
    TRY_FERRY(b, ferry_event_record(b->stream[FERRY_STREAM_UPDATE], b->open));
    for (int i = 0; i < count; i++)
        TRY(enqueue_lane(b, &lane[i]));
    return ST_OK;
}

/* Some jobs at once, behind the update stream's gate. */
static Status run_lanes(Bench *b, const BenchLane *lane, int count)
{
    ferry_stream *update = b->stream[FERRY_STREAM_UPDATE];
    sem_t *gate = &b->gate[FERRY_STREAM_UPDATE];
    TRY_FERRY(b, ferry_stream_call(update, wait_gate_a_while, gate));
    Status status = enqueue_lanes(b, lane, count);
    sem_post(gate);
    ferry_status synced = ferry_stream_sync(update);
    for (int i = 0; i < count; i++) {
        ferry_status one = ferry_stream_sync(b->stream[lane[i].kind]);
        synced = synced == FERRY_OK ? one : synced;
    }
    while (sem_trywait(gate) == 0) /* it had opened by itself */
        continue;
    return status != ST_OK ? status : bench_check(b, synced);
}

/* A run by CUPTI's records: run[i] of the repeats. */
static Status trace_lane(Bench *b, const BenchLane *lane, int number)
{
    TRY(gpu_trace_run(b->trace, number));
    Status status = run_lanes(b, lane, 1);
    Status ended = gpu_trace_run_end(b->trace);
    return status != ST_OK ? status : ended;
}

static Status time_on_gpu(Bench *b, const BenchLane *lane, Timing *out)
{
    int repeats = b->options->repeats;
    TRY(gpu_trace_start(b->trace));
    for (int i = 0; i <= repeats; i++) /* the first one after recording begins does not count */
        TRY(trace_lane(b, lane, i));
    TRY(gpu_trace_collect(b->trace, b->run, repeats + 1));
    for (int i = 0; i < repeats; i++) {
        const GpuRun *r = &b->run[i + 1];
        bool work = r->kernels + r->copies > 0;
        b->sample[i] = work ? r->end_ns - r->start_ns + b->gap_ns : 1;
        b->kernels += r->kernels;
        b->kernel_ns += r->kernel_ns;
        b->copies += r->copies;
        b->copy_ns += r->copy_ns;
    }
    *out = timing_of(b->sample, repeats);
    return ST_OK;
}

static void add_noise(Bench *b, const Timing *t)
{
    if (t->median_ns < NOISE_LEAST_NS)
        return;
    int64_t permille = t->spread_ns * 1000 / t->median_ns;
    b->noise_count++;
    b->noise_permille += permille;
    if (permille > b->noise_worst) {
        b->noise_worst = permille;
        b->noisiest = b->what;
    }
}

Status bench_once(Bench *b, ferry_stream_kind kind, BenchJob *job, void *context, int64_t *ns)
{
    if (b->on_gpu) {
        const BenchLane lane = {kind, job, context};
        int64_t from, to;
        if (b->before)
            TRY(b->before(b, context));
        TRY(run_lanes(b, &lane, 1));
        TRY(run_times(b, kind, &from, &to));
        *ns = to > from ? to - from : 1;
        return ST_OK;
    }
    bool gated = false;
    int64_t start, end;
    Status status = enqueue_run(b, kind, job, context, NULL, &gated);
    if (gated)
        sem_post(&b->gate[kind]);
    TRY(finish_run(b, kind, gated, status));
    TRY(run_times(b, kind, &start, &end));
    *ns = end > start ? end - start : 1; /* work that a clock cannot see took a nanosecond */
    return ST_OK;
}

static int compare_ns(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

Timing timing_of(int64_t *sample, int count)
{
    qsort(sample, (size_t)count, sizeof *sample, compare_ns);
    int64_t low = sample[(count - 1) / 2], high = sample[count / 2];
    int quarter = count / 4;
    return (Timing){low + (high - low) / 2, (sample[count - 1 - quarter] - sample[quarter]) / 2};
}

Status bench_time(Bench *b, ferry_stream_kind kind, BenchJob *job, void *context, Timing *out)
{
    /* A run of half a second has warmed everything up. */
    enum { LONG_RUN_NS = 500000000 };
    int64_t ns = 0;
    for (int i = 0; i < b->options->warmup && ns < LONG_RUN_NS; i++)
        TRY(bench_once(b, kind, job, context, &ns));
    if (b->on_gpu && kind != FERRY_STREAM_UPDATE) {
        const BenchLane lane = {kind, job, context};
        TRY(time_on_gpu(b, &lane, out));
    } else {
        for (int i = 0; i < b->options->repeats; i++)
            TRY(bench_once(b, kind, job, context, &b->sample[i]));
        *out = timing_of(b->sample, b->options->repeats);
    }
    add_noise(b, out);
    return ST_OK;
}

/* On the host each stream has its gate, and the two meet behind them. */
static Status run_pair_on_host(Bench *b, const BenchLane *one, const BenchLane *two)
{
    bool gated_a = false, gated_b = false;
    Meeting meeting;
    atomic_init(&meeting.arrived, 0);
    Status status = enqueue_run(b, one->kind, one->job, one->context, &meeting, &gated_a);
    if (status == ST_OK)
        status = enqueue_run(b, two->kind, two->job, two->context, &meeting, &gated_b);
    if (status != ST_OK)
        atomic_store(&meeting.arrived, 2); /* nobody waits for the one that does not come */
    if (gated_b)
        sem_post(&b->gate[two->kind]);
    if (gated_a)
        sem_post(&b->gate[one->kind]);
    status = finish_run(b, one->kind, gated_a, status);
    return finish_run(b, two->kind, gated_b, status);
}

Status bench_together(Bench *b, const BenchLane *lane, int count, int64_t *overlap_ns, int64_t *outside_ns)
{
    int64_t from = 0, to = INT64_MAX, alone = 0;
    TRY(b->on_gpu ? run_lanes(b, lane, count) : run_pair_on_host(b, &lane[0], &lane[1]));
    for (int i = 0; i < count; i++) {
        int64_t start, end;
        TRY(run_times(b, lane[i].kind, &start, &end));
        from = start > from ? start : from;
        to = end < to ? end : to;
        alone = i == 0 ? end - start : alone;
    }
    *overlap_ns = to > from ? to - from : 0;
    *outside_ns = alone - *overlap_ns;
    return ST_OK;
}

/* ---- progress
 * ----------------------------------------------------------------------------------------------------------- */

void bench_progress(Bench *b, const char *name)
{
    enum { WIDTH = 30 };
    b->done++;
    if (!b->options->progress || b->total <= 0)
        return;
    int percent = (int)((int64_t)100 * b->done / b->total), before = (int)((int64_t)100 * (b->done - 1) / b->total);
    if (isatty(STDERR_FILENO)) {
        char bar[WIDTH + 1];
        int full = WIDTH * b->done / b->total;
        memset(bar, '.', WIDTH);
        memset(bar, '#', (size_t)(full < WIDTH ? full : WIDTH));
        bar[WIDTH] = '\0';
        fprintf(stderr, "\r[%s] %3d%% %-40.40s", bar, percent, b->done == b->total ? "" : name);
        if (b->done == b->total)
            fputc('\n', stderr);
        fflush(stderr);
    } else if (percent / 10 != before / 10) {
        fprintf(stderr, "ferryc: profiling: %d%% (%s)\n", percent, name);
    }
}
