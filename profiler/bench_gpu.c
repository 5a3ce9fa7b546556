/* bench_gpu.c - what only a GPU's bench does: warm its clocks up, and run a whole step beside the sum of its parts. */
#include <stdlib.h>
#include <time.h>

#include "profiler/bench.h"

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- warm-up
 * ------------------------------------------------------------------------------------------------------------- */

enum { WARM_NS = 400000000, WARM_SIDE = 2048, WARM_CALLS = 16, GAP_CALLS = 64 };

static Status many_products(Bench *b, ferry_stream *s, void *context)
{
    (void)context;
    ferry_dtype t = b->graph->precision;
    int64_t bytes = (int64_t)WARM_SIDE * WARM_SIDE * (int64_t)ferry_dtype_bytes(t);
    char *at = ferry_pool_at(b->pool, 0);
    for (int i = 0; i < WARM_CALLS; i++)
        TRY_FERRY(b, ferry_linear(s, t, at + 2 * bytes, at, at + bytes, NULL, WARM_SIDE, WARM_SIDE, WARM_SIDE, 0));
    return ST_OK;
}

static Status many_fills(Bench *b, ferry_stream *s, void *context)
{
    (void)context;
    for (int i = 0; i < GAP_CALLS; i++) {
        const ferry_kernel fill = {
            .op = FERRY_OP_FILL, .dtype = b->graph->precision, .n = 64, .arg = {ferry_pool_at(b->pool, 0)}};
        TRY_FERRY(b, ferry_launch(s, &fill));
    }
    return ST_OK;
}

/* The gap between small kernels that wait in the queue is what lies between any two. */
static Status measure_gap(Bench *b)
{
    Timing t;
    TRY(bench_time(b, FERRY_STREAM_COMPUTE, many_fills, NULL, &t));
    const GpuRun *r = &b->run[b->options->repeats];
    int64_t idle = r->end_ns - r->start_ns - r->kernel_ns;
    if (r->kernels != GAP_CALLS)
        return diag_fail(b->diag, ST_FAILED, "CUPTI recorded %lld kernels where %d ran", (long long)r->kernels,
                         (int)GAP_CALLS);
    b->gap_ns = idle > 0 ? idle / (GAP_CALLS - 1) : 0;
    b->kernels = b->kernel_ns = b->copies = b->copy_ns = 0;
    b->noise_count = b->noise_permille = b->noise_worst = 0;
    return ST_OK;
}

Status bench_warm_up(Bench *b)
{
    b->what = "the warm-up";
    ferry_dtype t = b->graph->precision;
    TRY(bench_fill(b, ferry_pool_at(b->pool, 0), true, t, INT64_C(2) * WARM_SIDE * WARM_SIDE, 0));
    for (int64_t from = now_ns(); now_ns() - from < WARM_NS;) {
        TRY(many_products(b, b->stream[FERRY_STREAM_COMPUTE], NULL));
        TRY_FERRY(b, ferry_stream_sync(b->stream[FERRY_STREAM_COMPUTE]));
    }
    return ST_OK;
}

/* ---- events and waits
 * ---------------------------------------------------------------------------------------------------- */

typedef enum SyncKind { SYNC_NONE, SYNC_RECORD, SYNC_WAIT, SYNC_ALONE, SYNC_TURNS } SyncKind;

typedef struct SyncJob {
    SyncKind kind;
    ferry_stream_kind other;
    ferry_event *event, *back;
} SyncJob;

static void nothing(void *arg)
{
    (void)arg;
}

/* Small work on the other stream, and its event. */
static Status work_there(Bench *b, const SyncJob *job)
{
    ferry_stream *s = b->stream[job->other];
    if (job->other == FERRY_STREAM_UPDATE)
        TRY_FERRY(b, ferry_stream_call(s, nothing, NULL));
    else
        TRY_FERRY(b, ferry_copy_h2d(s, ferry_pool_at(b->pool, BENCH_ALIGNMENT), b->tile, 64));
    return bench_check(b, ferry_event_record(s, job->back));
}

/* Small kernels, an event or a wait after each; or both streams record an event each time, alone or in turns. */
static Status kernels_between(Bench *b, ferry_stream *s, void *context)
{
    const SyncJob *job = context;
    const ferry_kernel fill = {
        .op = FERRY_OP_FILL, .dtype = b->graph->precision, .n = 64, .arg = {ferry_pool_at(b->pool, 0)}};
    for (int i = 0; i < GAP_CALLS; i++) {
        TRY_FERRY(b, ferry_launch(s, &fill));
        if (job->kind == SYNC_RECORD)
            TRY_FERRY(b, ferry_event_record(s, job->event));
        else if (job->kind == SYNC_WAIT)
            TRY_FERRY(b, ferry_stream_wait(s, job->event));
        if (job->kind < SYNC_ALONE)
            continue;
        TRY_FERRY(b, ferry_event_record(s, job->event));
        if (job->kind == SYNC_TURNS)
            TRY_FERRY(b, ferry_stream_wait(b->stream[job->other], job->event));
        TRY(work_there(b, job));
        if (job->kind == SYNC_TURNS)
            TRY_FERRY(b, ferry_stream_wait(s, job->back));
    }
    return ST_OK;
}

static Status record_only(Bench *b, ferry_stream *s, void *context)
{
    const SyncJob *job = context;
    return job->kind == SYNC_WAIT ? bench_check(b, ferry_event_record(s, job->event)) : ST_OK;
}

/* Of all kernels. */
static Status time_kernels_between(Bench *b, SyncKind kind, ferry_stream_kind other, int64_t *ns)
{
    enum { TIMES = 9 };
    SyncJob job = {.kind = kind, .other = other};
    int64_t sample[TIMES], outside;
    TRY_FERRY(b, ferry_event_open(b->device, &job.event));
    TRY_FERRY(b, ferry_event_open(b->device, &job.back));
    const BenchLane lane[] = {{other, record_only, &job}, {FERRY_STREAM_COMPUTE, kernels_between, &job}};
    Status status = ST_OK;
    for (int i = -1; i < TIMES && status == ST_OK; i++) { /* one to warm up */
        int64_t from, to;
        status = bench_together(b, lane, 2, &from, &outside);
        if (status == ST_OK)
            status = bench_check(b, ferry_event_time_ns(b->start[FERRY_STREAM_COMPUTE], &from));
        if (status == ST_OK)
            status = bench_check(b, ferry_event_time_ns(b->end[FERRY_STREAM_COMPUTE], &to));
        if (status == ST_OK && i >= 0)
            sample[i] = to - from;
    }
    ferry_event_close(job.event);
    ferry_event_close(job.back);
    if (status == ST_OK)
        *ns = timing_of(sample, TIMES).median_ns;
    return status;
}

static int64_t each_of(int64_t more, int64_t less, int64_t count)
{
    return more > less ? (more - less) / count : 0;
}

/* There and back in each turn. What the other stream does in its turn is a small part of that. */
static Status measure_signal(Bench *b, ferry_stream_kind other, int64_t *ns)
{
    int64_t alone, turns;
    TRY(time_kernels_between(b, SYNC_ALONE, other, &alone));
    TRY(time_kernels_between(b, SYNC_TURNS, other, &turns));
    *ns = each_of(turns, alone, 2 * GAP_CALLS);
    return ST_OK;
}

Status bench_synchronization(Bench *b, DeviceFacts *f)
{
    int64_t none, record, wait, update;
    b->what = "events and waits";
    TRY(time_kernels_between(b, SYNC_NONE, FERRY_STREAM_LOAD, &none));
    TRY(time_kernels_between(b, SYNC_RECORD, FERRY_STREAM_LOAD, &record));
    TRY(time_kernels_between(b, SYNC_WAIT, FERRY_STREAM_LOAD, &wait));
    TRY(time_kernels_between(b, SYNC_WAIT, FERRY_STREAM_UPDATE, &update));
    f->record_ns = each_of(record, none, GAP_CALLS);
    f->wait_ns = each_of(wait, none, GAP_CALLS);
    f->wait_update_ns = each_of(update, none, GAP_CALLS);
    TRY(measure_signal(b, FERRY_STREAM_LOAD, &f->signal_ns));
    return measure_signal(b, FERRY_STREAM_UPDATE, &f->signal_update_ns);
}

Status bench_start_trace(Bench *b)
{
    b->what = "the gap between kernels";
    TRY(gpu_trace_open(b->diag, &b->trace));
    return measure_gap(b);
}

/* ---- a whole step
 * -------------------------------------------------------------------------------------------------------- */

enum { STEPS = 8 }; /* the first one does not count */

typedef struct Step {
    Bench *bench;
    const int64_t *limit;
    bool *written;       /* by root: a kernel writes it, so that it needs no contents */
    void **at;           /* by tensor */
    int64_t *enqueue_ns; /* by step, then by segment and phase */
    ferry_event *event[STEPS + 1];
} Step;

/* Each tensor has its own place: nothing is reused. *bytes overflows to INT64_MAX. */
static int64_t step_bytes(const Graph *g)
{
    int64_t bytes = 0;
    for (int i = 0; i < g->tensor.count; i++) {
        const Tensor *t = &g->tensor.at[i];
        if (t->root == i && add_overflows_i64(bytes, bench_aligned(t->bytes), &bytes))
            return INT64_MAX;
    }
    return bytes;
}

static Status fill_step(Step *s)
{
    Bench *b = s->bench;
    const Graph *g = b->graph;
    int64_t used = 0;
    for (int i = 0; i < g->tensor.count; i++) {
        const Tensor *t = &g->tensor.at[i];
        if (t->root != i)
            continue;
        s->at[i] = ferry_pool_at(b->pool, used);
        used += bench_aligned(t->bytes);
        if (t->kind == TENSOR_CONST && t->data)
            TRY(bench_copy_in(b, s->at[i], true, t->data, t->bytes));
        else if (!s->written[i])
            TRY(bench_fill(b, s->at[i], true, t->dtype, t->count, s->limit[i]));
    }
    for (int i = 0; i < g->tensor.count; i++)
        s->at[i] = s->at[g->tensor.at[i].root];
    return ST_OK;
}

static Status run_step(const Step *s, int64_t *enqueue_ns)
{
    const Bench *b = s->bench;
    const Graph *g = b->graph;
    int64_t before = now_ns();
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        ferry_kernel call = node_call(g, n, s->at);
        if (ferry_launch(b->stream[FERRY_STREAM_COMPUTE], &call) != FERRY_OK)
            return diag_fail(b->diag, ST_FAILED, "measuring node '%s' (%s): %s", n->name, n->onnx_op, ferry_error());
        int64_t now = now_ns();
        enqueue_ns[2 * n->segment + (int)n->phase] += now - before;
        before = now;
    }
    return ST_OK;
}

static Status run_steps(Step *s, int64_t *ns, int64_t *enqueue_ns)
{
    int groups = 2 * s->bench->graph->n_segment;
    Bench *b = s->bench;
    ferry_stream *compute = b->stream[FERRY_STREAM_COMPUTE];
    int64_t time[STEPS + 1], sample[STEPS - 1];
    TRY(fill_step(s));
    for (int i = 0; i <= STEPS; i++) {
        TRY_FERRY(b, ferry_event_open(b->device, &s->event[i]));
        if (i > 0)
            TRY(run_step(s, s->enqueue_ns + (int64_t)(i - 1) * groups));
        TRY_FERRY(b, ferry_event_record(compute, s->event[i]));
    }
    TRY_FERRY(b, ferry_stream_sync(compute));
    for (int i = 0; i <= STEPS; i++)
        TRY_FERRY(b, ferry_event_time_ns(s->event[i], &time[i]));
    for (int i = 1; i < STEPS; i++)
        sample[i - 1] = time[i + 1] - time[i];
    *ns = timing_of(sample, STEPS - 1).median_ns;
    for (int group = 0; group < groups; group++) {
        for (int i = 1; i < STEPS; i++)
            sample[i - 1] = s->enqueue_ns[(int64_t)i * groups + group];
        enqueue_ns[group] = timing_of(sample, STEPS - 1).median_ns;
    }
    return ST_OK;
}

Status bench_whole_step(Bench *b, const int64_t *limit, int64_t memory_bytes, int64_t *ns, int64_t *enqueue_ns)
{
    const Graph *g = b->graph;
    *ns = -1;
    b->what = "a whole step";
    int64_t bytes = step_bytes(g);
    if (bytes > memory_bytes)
        return ST_OK;
    Step s = {.bench = b, .limit = limit};
    s.written = base_alloc((size_t)g->tensor.count * sizeof *s.written + 1);
    s.at = base_alloc((size_t)g->tensor.count * sizeof *s.at + 1);
    s.enqueue_ns = base_alloc((size_t)(2 * g->n_segment * STEPS + 1) * sizeof *s.enqueue_ns);
    ferry_pool *kept = b->pool, *whole = NULL;
    Status status = s.written && s.at && s.enqueue_ns
                        ? bench_check(b, ferry_pool_open(b->device, bytes > 0 ? bytes : 1, &whole))
                        : diag_oom(b->diag);
    if (status == ST_OK) {
        for (int i = 0; i < g->node.count; i++)
            for (int k = 0; k < node_n_out(&g->node.at[i]); k++)
                if (arg_root(g, &g->node.at[i], k) >= 0)
                    s.written[arg_root(g, &g->node.at[i], k)] = true;
        b->pool = whole;
        status = run_steps(&s, ns, enqueue_ns);
        b->pool = kept;
        (void)ferry_stream_sync(b->stream[FERRY_STREAM_COMPUTE]);
        for (int i = 0; i <= STEPS; i++)
            if (s.event[i])
                ferry_event_close(s.event[i]);
        ferry_pool_close(whole);
    }
    base_free(s.written);
    base_free(s.at);
    base_free(s.enqueue_ns);
    return status;
}
