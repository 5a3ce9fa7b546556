/* cuda_stream.c - streams and events of the CUDA backend. cuda_device.h says how they meet.
 *
 * A record does not move what an earlier wait refers to: a wait keeps the number that the counter had to reach at the
 * time of the call. CUDA's own events behave so for waits of the GPU; for the CPU's the number does it. */
#include "runtime/cuda_device.h"
#include "runtime/spin.h"
#include "runtime/host.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum {
    SPINS = 2000, /* looks at a counter before the thread sleeps between them */
    SLEEP_NS = 5000,
    QUESTION_NS = 50000000, /* a caller that waits for the CPU asks the GPU this often whether it still works */
    ANCHOR_NS = 1000000000, /* how long a comparison of the clocks is used */
};

/* ---- counters --------------------------------------------------------------------------------------------------- */

static bool has_reached(const ferryi_cuda_device *d, int counter, uint64_t number)
{
    return atomic_load_explicit(&d->counter[counter].reached, memory_order_acquire) >= number;
}

/* question: ask the GPU now and then; only for callers, never for a worker (cuda_device.h). */
static void wait_for(ferryi_cuda_device *d, int counter, uint64_t number, bool question)
{
    int64_t next_question = ferryi_now_ns() + QUESTION_NS;
    for (int i = 0; !has_reached(d, counter, number) && atomic_load(&d->lost) == 0; i++) {
        if (i < SPINS) {
            ferryi_pause();
            continue;
        }
        nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
        if (question && ferryi_now_ns() >= next_question) {
            ferryi_cuda_question(&d->base);
            next_question = ferryi_now_ns() + QUESTION_NS;
        }
    }
}

static ferry_status take_counter(ferryi_cuda_device *d, int *out)
{
    for (int i = 0; i < CUDA_COUNTERS; i++) {
        if (!d->counter_used[i]) {
            d->counter_used[i] = true;
            *out = i;
            return FERRY_OK;
        }
    }
    return ferryi_fail(FERRY_FAILED, "device '%s': %d streams are open, which is the most", d->base.name,
                       CUDA_COUNTERS);
}

/* ---- the worker's side ------------------------------------------------------------------------------------------ */

typedef struct wait_task {
    ferryi_cuda_device *d;
    int counter;
    uint64_t number;
} wait_task;

/* What a kernel reported before the record is known here, and the tasks that come after it are skipped. */
static void run_wait(void *args)
{
    const wait_task *t = args;
    wait_for(t->d, t->counter, t->number, false);
    ferryi_cuda_poll(&t->d->base);
}

/* Completion of one record on a CPU stream; shared by the event and the task. */
typedef struct cpu_mark {
    atomic_int references;
    int64_t time_ns;
} cpu_mark;

static void drop_mark(cpu_mark *m)
{
    if (m != NULL && atomic_fetch_sub_explicit(&m->references, 1, memory_order_acq_rel) == 1) {
        free(m);
    }
}

typedef struct record_task {
    ferryi_cuda_device *d;
    int counter;
    uint64_t number;
    cpu_mark *mark; /* may be NULL; owns a reference */
} record_task;

static void run_record(void *args)
{
    const record_task *t = args;
    if (t->mark != NULL) {
        t->mark->time_ns = ferryi_now_ns();
    }
    atomic_store_explicit(&t->d->counter[t->counter].reached, t->number, memory_order_release);
    drop_mark(t->mark);
}

/* Sleeps of a few microseconds instead of the usual fifty. */
static void sharpen_sleep(void *args)
{
    (void)args;
    prctl(PR_SET_TIMERSLACK, 1UL);
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

ferry_status ferryi_cuda_stream_open(ferry_device *device, ferry_stream_kind kind, ferry_stream **out)
{
    ferryi_cuda_device *d = ferryi_cuda_of(device);
    ferry_status status = ferryi_cuda_enter(device);
    if (status != FERRY_OK) {
        return status;
    }
    ferryi_cuda_stream *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for a stream");
    }
    s->base = (ferry_stream){device, kind};
    status = take_counter(d, &s->counter);
    if (status != FERRY_OK) {
        free(s);
        return status;
    }
    if (kind == FERRY_STREAM_UPDATE) {
        status = ferryi_host_stream_open(device, kind, &s->worker);
        if (status == FERRY_OK) {
            status = ferryi_host_stream_always(s->worker, sharpen_sleep, NULL, 0);
        }
    } else {
        status =
            ferryi_cuda_check(device, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "making a stream");
        if (status == FERRY_OK && kind == FERRY_STREAM_COMPUTE) {
            status = ferryi_cuda_scratch_alloc(device, CUDA_SCRATCH_BYTES, &s->scratch);
        }
        if (status == FERRY_OK && kind == FERRY_STREAM_COMPUTE) {
            status = ferryi_cuda_blas_stream_open(s);
        }
    }
    if (status != FERRY_OK) {
        ferryi_cuda_stream_close(&s->base);
        return status;
    }
    *out = &s->base;
    return FERRY_OK;
}

static ferry_status record_on_cpu(ferryi_cuda_stream *s, cpu_mark *mark)
{
    ferryi_cuda_device *d = ferryi_cuda_of(s->base.device);
    record_task t = {d, s->counter, d->recorded[s->counter] + 1, mark};
    ferry_status status = ferryi_host_stream_always(s->worker, run_record, &t, sizeof(t));
    if (status == FERRY_OK) {
        d->recorded[s->counter] = t.number;
    }
    return status;
}

ferry_status ferryi_cuda_stream_sync(ferry_stream *stream)
{
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    ferry_device *d = stream->device;
    ferry_status status = ferryi_cuda_enter(d);
    if (status == FERRY_OK && s->worker != NULL) {
        status = record_on_cpu(s, NULL);
        if (status == FERRY_OK) {
            wait_for(ferryi_cuda_of(d), s->counter, ferryi_cuda_of(d)->recorded[s->counter], true);
        }
    } else if (status == FERRY_OK) {
        status = ferryi_cuda_check(d, cudaStreamSynchronize(s->stream), "waiting for a stream");
    }
    ferryi_cuda_poll(d);
    return status;
}

void ferryi_cuda_stream_close(ferry_stream *stream)
{
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    ferryi_cuda_device *d = ferryi_cuda_of(stream->device);
    if (s->stream != NULL || s->worker != NULL) {
        (void)ferryi_cuda_stream_sync(stream);
    }
    if (s->worker != NULL) {
        ferryi_host_stream_close(s->worker);
    }
    if (s->stream != NULL) {
        ferryi_cuda_product_close(s);
        ferryi_cuda_dnn_stream_close(s);
        ferryi_cuda_blas_stream_close(s);
        ferryi_cuda_scratch_free(stream->device, s->scratch, CUDA_SCRATCH_BYTES);
        (void)ferryi_cuda_check(stream->device, cudaStreamDestroy(s->stream), "closing a stream");
    }
    d->counter_used[s->counter] = false;
    free(s);
}

ferry_status ferryi_cuda_stream_task(ferry_stream *stream, void (*fn)(void *), const void *args, size_t args_bytes)
{
    static const char *const names[] = {"compute", "load", "store", "update"};
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    if (s->worker == NULL) {
        return ferryi_fail(FERRY_USAGE, "a %s stream of a GPU has no CPU thread; use an update stream",
                           names[stream->kind]);
    }
    return ferryi_host_stream_task(s->worker, fn, args, args_bytes);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

typedef struct cuda_event {
    ferry_event base;
    bool recorded, on_cpu; /* of the latest record */
    bool stamp;            /* it was for the time alone: no counter tells its completion */
    int counter;
    uint64_t number;
    int64_t called_ns; /* time of its call */
    cudaEvent_t event; /* on the GPU */
    cpu_mark *mark;    /* on the CPU; owns a reference */
} cuda_event;

ferry_status ferryi_cuda_event_open(ferry_device *d, ferry_event **out)
{
    ferry_status status = ferryi_cuda_enter(d);
    if (status != FERRY_OK) {
        return status;
    }
    cuda_event *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for an event");
    }
    e->base.device = d;
    status = ferryi_cuda_check(d, cudaEventCreate(&e->event), "making an event");
    if (status != FERRY_OK) {
        free(e);
        return status;
    }
    *out = &e->base;
    return FERRY_OK;
}

void ferryi_cuda_event_close(ferry_event *event)
{
    cuda_event *e = (cuda_event *)event;
    if (ferryi_cuda_enter(event->device) == FERRY_OK) {
        (void)ferryi_cuda_check(event->device, cudaEventDestroy(e->event), "closing an event");
    }
    drop_mark(e->mark);
    free(e);
}

static ferry_status record_cpu(ferryi_cuda_stream *s, cuda_event *e)
{
    cpu_mark *m = malloc(sizeof(*m));
    if (m == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for an event");
    }
    atomic_init(&m->references, 2);
    m->time_ns = 0;
    ferry_status status = record_on_cpu(s, m);
    if (status != FERRY_OK) {
        free(m);
        return status;
    }
    drop_mark(e->mark);
    e->mark = m;
    return FERRY_OK;
}

static ferry_status record_gpu(ferryi_cuda_stream *s, cuda_event *e)
{
    ferryi_cuda_device *d = ferryi_cuda_of(s->base.device);
    ferry_status status = ferryi_cuda_check(&d->base, cudaEventRecord(e->event, s->stream), "recording an event");
    if (status == FERRY_OK) {
        CUdeviceptr at = (CUdeviceptr)(uintptr_t)&d->counter[s->counter];
        status = ferryi_cuda_check_driver(
            &d->base, d->driver.write_value((CUstream)s->stream, at, d->recorded[s->counter] + 1, 0),
            "recording an event");
    }
    d->recorded[s->counter] += status == FERRY_OK;
    return status;
}

ferry_status ferryi_cuda_event_record(ferry_stream *stream, ferry_event *event)
{
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    cuda_event *e = (cuda_event *)event;
    ferry_status status = ferryi_cuda_enter(stream->device);
    int64_t called_ns = ferryi_now_ns();
    if (status == FERRY_OK) {
        status = s->worker != NULL ? record_cpu(s, e) : record_gpu(s, e);
    }
    if (status == FERRY_OK) {
        e->recorded = true;
        e->stamp = false;
        e->on_cpu = s->worker != NULL;
        e->counter = s->counter;
        e->number = ferryi_cuda_of(stream->device)->recorded[s->counter];
        e->called_ns = called_ns;
    }
    return status;
}

ferry_status ferryi_cuda_event_stamp(ferry_stream *stream, ferry_event *event)
{
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    cuda_event *e = (cuda_event *)event;
    if (s->worker != NULL) {
        return ferryi_cuda_event_record(stream, event);
    }
    ferry_status status = ferryi_cuda_enter(stream->device);
    int64_t called_ns = ferryi_now_ns();
    if (status == FERRY_OK) {
        status = ferryi_cuda_check(stream->device, cudaEventRecord(e->event, s->stream), "recording an event");
    }
    if (status == FERRY_OK) {
        e->recorded = e->stamp = true;
        e->on_cpu = false;
        e->called_ns = called_ns;
    }
    return status;
}

ferry_status ferryi_cuda_stream_wait(ferry_stream *stream, ferry_event *event)
{
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    ferryi_cuda_device *d = ferryi_cuda_of(stream->device);
    const cuda_event *e = (cuda_event *)event;
    if (!e->recorded || e->counter == s->counter) {
        return FERRY_OK; /* a stream is in order with itself */
    }
    if (s->worker != NULL) {
        wait_task t = {d, e->counter, e->number};
        return ferryi_host_stream_always(s->worker, run_wait, &t, sizeof(t));
    }
    if (has_reached(d, e->counter, e->number)) {
        return FERRY_OK;
    }
    ferry_status status = ferryi_cuda_enter(stream->device);
    if (status != FERRY_OK) {
        return status;
    }
    if (!e->on_cpu) {
        return ferryi_cuda_check(stream->device, cudaStreamWaitEvent(s->stream, e->event, 0), "waiting for an event");
    }
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)&d->counter[e->counter];
    return ferryi_cuda_check_driver(stream->device,
                                    d->driver.wait_value((CUstream)s->stream, at, e->number, CU_STREAM_WAIT_VALUE_GEQ),
                                    "waiting for an event");
}

ferry_status ferryi_cuda_event_sync(ferry_event *event)
{
    const cuda_event *e = (cuda_event *)event;
    ferryi_cuda_device *d = ferryi_cuda_of(event->device);
    ferry_status status = FERRY_OK;
    if (e->recorded && !has_reached(d, e->counter, e->number)) {
        status = ferryi_cuda_enter(&d->base);
        if (status == FERRY_OK) {
            wait_for(d, e->counter, e->number, true);
        }
    }
    ferryi_cuda_poll(&d->base);
    return status;
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

/* CUDA tells the time between two events. One that is recorded on an idle stream between two looks at the clock ties
 * its time to the clock's; the closest of a few tries counts. CUDA gives milliseconds as a float, which is exact to
 * nanoseconds only for a while: then the clocks are compared again. */
static ferry_status compare_clocks(ferryi_cuda_device *d)
{
    int64_t now = ferryi_now_ns(), best = INT64_MAX;
    if (d->anchor_ns != 0 && now - d->anchor_ns < ANCHOR_NS) {
        return FERRY_OK;
    }
    cudaEvent_t kept = d->anchor;
    for (int i = 0; i < 8; i++) {
        cudaEvent_t fresh;
        ferry_status status = ferryi_cuda_check(&d->base, cudaEventCreate(&fresh), "making an event");
        if (status != FERRY_OK) {
            return status;
        }
        int64_t before = ferryi_now_ns();
        status = ferryi_cuda_check(&d->base, cudaEventRecord(fresh, d->own), "recording an event");
        if (status == FERRY_OK) {
            status = ferryi_cuda_check(&d->base, cudaEventSynchronize(fresh), "waiting for an event");
        }
        int64_t after = ferryi_now_ns();
        bool better = status == FERRY_OK && after - before < best;
        if (better) {
            best = after - before;
            d->anchor_ns = before + best / 2;
        }
        cudaEventDestroy(better ? kept : fresh);
        kept = d->anchor = better ? fresh : kept;
        if (status != FERRY_OK) {
            return status;
        }
    }
    return FERRY_OK;
}

static bool is_complete(ferryi_cuda_device *d, const cuda_event *e)
{
    if (!e->recorded || !e->stamp) {
        return e->recorded && has_reached(d, e->counter, e->number);
    }
    bool complete = cudaEventQuery(e->event) == cudaSuccess;
    (void)cudaGetLastError();
    return complete;
}

ferry_status ferryi_cuda_event_time_ns(ferry_event *event, int64_t *out)
{
    const cuda_event *e = (cuda_event *)event;
    ferryi_cuda_device *d = ferryi_cuda_of(event->device);
    if (!is_complete(d, e)) {
        return ferryi_fail(FERRY_USAGE, "the event has no time: %s",
                           !e->recorded ? "it was never recorded" : "its latest record is not complete");
    }
    if (e->on_cpu) {
        *out = e->mark->time_ns;
        return FERRY_OK;
    }
    ferry_status status = ferryi_cuda_enter(&d->base);
    if (status == FERRY_OK) {
        status = compare_clocks(d);
    }
    float ms = 0;
    if (status == FERRY_OK) {
        status = ferryi_cuda_check(&d->base, cudaEventElapsedTime(&ms, d->anchor, e->event), "asking for a time");
    }
    if (status != FERRY_OK) {
        return status;
    }
    /* the clocks agree to microseconds: a completion lies between the call of its record and now */
    int64_t time = d->anchor_ns + (int64_t)((double)ms * 1e6), now = ferryi_now_ns();
    *out = time < e->called_ns ? e->called_ns : time > now ? now : time;
    return FERRY_OK;
}
