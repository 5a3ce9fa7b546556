/* bench.h - the measuring bench on a device of libferry: streams, memory, and the one way in which anything is timed.
 *
 * A run is: a gate that holds the stream, an event, the work, an event; then the gate opens. All work is enqueued by
 * then, so the events enclose what the stream does and not how fast the caller enqueues. The time is the difference of
 * their completion.
 *
 * A stream of a GPU cannot call a function: its gate is the update stream's, whose event it waits for. What a GPU ran
 * is timed by the records of CUPTI instead of events, which take a few microseconds themselves: from the start of the
 * run's first kernel or copy to the end of its last one, and one gap between two kernels, since segments follow each
 * other. */
#ifndef FERRY_PROFILER_BENCH_H
#define FERRY_PROFILER_BENCH_H

#include <semaphore.h>

#include "profiler/gpu.h"
#include "profiler/make.h"

enum {
    BENCH_STREAMS = 4,      /* by ferry_stream_kind */
    TILE_BYTES = 512 << 10, /* staging buffer, from which memory is filled */
    BENCH_ALIGNMENT = 256,  /* as device memory is laid out on GPUs; more than a host needs */
    HOST_ALIGNMENT = 64,
};

typedef struct Bench {
    Diag *diag;
    const Graph *graph;
    const ProfileOptions *options;
    ferry_device *device;
    ferry_stream *stream[BENCH_STREAMS];
    ferry_event *start[BENCH_STREAMS], *end[BENCH_STREAMS];
    sem_t gate[BENCH_STREAMS];
    ferry_pool *pool; /* as large as the segment that needs most */
    int64_t pool_bytes;
    void *tile;       /* pinned, TILE_BYTES */
    int64_t *sample;  /* repeats */
    const char *what; /* being measured, for messages */
    int done, total;  /* progress */
    bool on_gpu;
    ferry_event *open; /* the gate of a GPU's streams */
    char *evict;       /* pinned, larger than the caches; NULL on the host */
    int64_t evict_bytes;
    bool cold;                                   /* evict the caches before each run on the update stream */
    Status (*before)(struct Bench *b, void *context); /* of a GPU's bench: before each run of one job; NULL: nothing */
    GpuTrace *trace;                             /* of a GPU; NULL on the host */
    int64_t gap_ns;                              /* between two kernels of a GPU */
    GpuRun *run;                                 /* repeats + 1 */
    int64_t kernels, kernel_ns, copies, copy_ns; /* on record, of all runs that counted */
    int64_t noise_count, noise_permille; /* jobs of NOISE_LEAST_NS and more; sum of their spreads over their medians */
    int64_t noise_worst;
    const char *noisiest;
} Bench;

enum { NOISE_LEAST_NS = 20000 };

/* ST_FAILED with what is being measured and ferry_error(), unless the call succeeded. */
Status bench_check(const Bench *b, ferry_status status);
#define TRY_FERRY(bench, call) TRY(bench_check((bench), (call)))

Status bench_open(Diag *d, const Graph *g, const ProfileOptions *options, int64_t pool_bytes, Arena *a, Bench *b);
void bench_close(Bench *b); /* also after a failed open */

/* Pinned memory; freed by ferry_host_free. */
Status bench_pinned(const Bench *b, int64_t bytes, void **out);

/* Enqueues the work of one run on the stream. */
typedef Status BenchJob(Bench *b, ferry_stream *s, void *context);
/* One run of the job, alone. */
Status bench_once(Bench *b, ferry_stream_kind kind, BenchJob *job, void *context, int64_t *ns);
/* Median and spread of the job on the stream of this kind: warm-up runs, then the repeats. */
Status bench_time(Bench *b, ferry_stream_kind kind, BenchJob *job, void *context, Timing *out);
/* A job on a stream of its own. */
typedef struct BenchLane {
    ferry_stream_kind kind;
    BenchJob *job;
    void *context;
} BenchLane;
/* 2 to BENCH_STREAMS jobs (on the host 2), started together, once. *overlap_ns: while all ran; *outside_ns: what the first
 * one needed besides. */
Status bench_together(Bench *b, const BenchLane *lane, int count, int64_t *overlap_ns, int64_t *outside_ns);
/* A GPU: products for so long that its clocks are up. */
Status bench_warm_up(Bench *b);
/* A GPU: records from here on, first of the gap between kernels. CUPTI slows every later call into CUDA down. */
Status bench_start_trace(Bench *b);
/* A GPU, before the trace: what an event and waits take its streams. */
Status bench_synchronization(Bench *b, DeviceFacts *f);
/* A GPU, before the trace: forward and backward once with everything in device memory, as enqueued without a gate.
 * *ns = -1 when that is more than `memory_bytes`. enqueue_ns: by segment and phase (2 * segment + phase), what the
 * calls took the CPU; when the GPU's queue is full this is the GPU's time. */
Status bench_whole_step(Bench *b, const int64_t *limit, int64_t memory_bytes, int64_t *ns, int64_t *enqueue_ns);
/* Sorts. The middle sample, and half the distance between the quartiles. */
Timing timing_of(int64_t *sample, int count);

/* Fills `bytes` of elements with valid contents: floats in [0.02, 0.06), integers and truth values in [0, limit).
 * Device memory by copies through the tile. Waits. */
Status bench_fill(Bench *b, void *p, bool on_device, ferry_dtype dtype, int64_t count, int64_t limit);
/* The same with given data. */
Status bench_copy_in(Bench *b, void *p, bool on_device, const void *data, int64_t bytes);

void bench_progress(Bench *b, const char *name);

static inline int64_t bench_aligned(int64_t bytes)
{
    return (bytes + BENCH_ALIGNMENT - 1) / BENCH_ALIGNMENT * BENCH_ALIGNMENT;
}

/* Load, store, norm and update of a unit, then norm and update in device memory; all but the first stay as they are when it
 * is frozen. */
enum { UNIT_TIMINGS = 6 };
Status host_unit(Bench *b, const Unit *u, Timing timing[UNIT_TIMINGS]);
/* input_load, loss_store and clip of the profile. */
Status host_edges(Bench *b, Profile *p);
/* The device of the bench as numbers, with these facts and the rates of the graph's precision. The pool has at least
 * device_measure_bytes. ST_USAGE for a type without rates. */
Status device_measure(Bench *b, const DeviceFacts *facts, DeviceModel *out);
int64_t device_measure_bytes(bool on_gpu);
/* Rates of the classes against each other, by running pairs at once. */
Status host_contention(Bench *b, DeviceFacts *f);

#endif
