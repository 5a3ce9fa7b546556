/* host_contention.c - how much the classes of work slow each other down on the host: pairs run at once.
 *
 * Class a runs a fixed job alone, then again while class b runs a longer one. With t alone, and an overlap v and time
 * outside it u in the pair, a did t - u of its work during v, so its rate was (t - u) / v. Each job repeats one small
 * call until it takes about half a millisecond. A class does not run beside itself (one stream each), and the two DHA
 * classes share the compute stream: these rates are 1000 by definition. */
#include <stdlib.h>

#include "profiler/bench.h"

enum {
    JOB_NS = 500000, /* a job alone */
    JOB_MOST = 2000, /* calls in it */
    OUTLASTS = 3,    /* b is so many times longer */
    BUFFERS = 4,     /* of the pool: operands of kernels, target of loads, source of stores, spare */
    BUFFER_MOST = 1 << 20,
    GPU_JOB_NS =
        3000000, /* the same for a GPU, whose queue holds few calls and whose link is at its rate with large ones */
    GPU_BUFFER_MOST = 64 << 20,
    GPU_JOB_MOST = 8,
    PAIRS = 5, /* samples of a pair, at most */
    TRIES = 3, /* for each sample, until the two overlap */
};

typedef struct ClassJob {
    LinkClass class;
    ferry_dtype dtype;
    int64_t rows, side;     /* a product of [rows, side] with [side, side] */
    int64_t bytes;          /* copied */
    char *device, *operand; /* buffers of the pool */
    char *pinned;           /* of this class alone; the update has four parts of it */
    int64_t repeat;
} ClassJob;

static const ferry_stream_kind stream_of[LINK_CLASS_COUNT] = {
    [LINK_DHA_READ] = FERRY_STREAM_COMPUTE, [LINK_DHA_WRITE] = FERRY_STREAM_COMPUTE, [LINK_H2D] = FERRY_STREAM_LOAD,
    [LINK_D2H] = FERRY_STREAM_STORE,        [LINK_UPDATE] = FERRY_STREAM_UPDATE,
};

static ferry_status call_once(ferry_stream *s, const ClassJob *j)
{
    const ferry_adamw_args adamw = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .step = 1};
    int64_t elements = j->side * j->side, part = elements * (int64_t)ferry_dtype_bytes(j->dtype);
    int64_t rows_bytes = j->rows * j->side * (int64_t)ferry_dtype_bytes(j->dtype);
    switch (j->class) {
    case LINK_DHA_READ: /* weights in pinned memory */
        return ferry_linear(s, j->dtype, j->operand + rows_bytes, j->operand, j->pinned, NULL, j->rows, j->side,
                            j->side, 0);
    case LINK_DHA_WRITE: /* their gradient in pinned memory */
        return ferry_linear_dw(s, j->dtype, j->pinned, j->operand, j->operand + rows_bytes, j->rows, j->side, j->side,
                               0);
    case LINK_H2D:
        return ferry_copy_h2d(s, j->device, j->pinned, j->bytes);
    case LINK_D2H:
        return ferry_copy_d2h(s, j->pinned, j->device, j->bytes);
    case LINK_UPDATE:
    case LINK_CLASS_COUNT:
        break;
    }
    if (j->dtype == FERRY_BF16) { /* half as many elements: f32 masters and state fill the parts as well */
        float *p = (float *)(void *)j->pinned, *m = (float *)(void *)(j->pinned + part);
        float *v = (float *)(void *)(j->pinned + 2 * part);
        return ferry_adamw_bf16(s, p, m, v, j->pinned + 3 * part, j->pinned + 3 * part + part / 2, NULL, elements / 2,
                                adamw);
    }
    return ferry_adamw(s, j->dtype, j->pinned, j->pinned + part, j->pinned + 2 * part, j->pinned + 3 * part, NULL,
                       elements, adamw);
}

static Status run_class(Bench *b, ferry_stream *s, void *context)
{
    const ClassJob *j = context;
    for (int64_t i = 0; i < j->repeat; i++)
        TRY_FERRY(b, call_once(s, j));
    return ST_OK;
}

/* Splits the pool and one pinned block. The operands fill half a buffer at most, since rows <= side / 2. */
static Status prepare(Bench *b, ClassJob job[LINK_CLASS_COUNT], void **pinned)
{
    ferry_dtype t = b->graph->precision;
    int64_t element = (int64_t)ferry_dtype_bytes(t), chunk = 4096;
    int64_t buffer = b->pool_bytes / BUFFERS / chunk * chunk;
    int64_t most = b->on_gpu ? GPU_BUFFER_MOST : BUFFER_MOST;
    if (buffer > most)
        buffer = most;
    int64_t side = 16;
    while ((side + 16) * (side + 16) * element <= buffer)
        side += 16;
    int64_t part = side * side * element, blocks = LINK_CLASS_COUNT - 1 + 4;
    TRY(bench_pinned(b, blocks * buffer, pinned));
    TRY(bench_fill(b, *pinned, false, t, blocks * buffer / element, 0));
    TRY(bench_fill(b, ferry_pool_at(b->pool, 0), true, t, BUFFERS * buffer / element, 0));
    for (int i = 0; i < LINK_CLASS_COUNT; i++) {
        int64_t device = i == LINK_D2H ? 2 * buffer : buffer;
        job[i] = (ClassJob){.class = (LinkClass)i,
                            .dtype = t,
                            .rows = side / 2 < 32 ? side / 2 : 32,
                            .side = side,
                            .bytes = part,
                            .device = ferry_pool_at(b->pool, device),
                            .operand = ferry_pool_at(b->pool, 0),
                            .pinned = (char *)*pinned + i * buffer,
                            .repeat = 1};
    }
    return ST_OK;
}

/* One sample, with a run alone just before it: clocks and caches drift. 1000 when the two did not run together for half
 * of the job, however often it was tried. */
static Status sample_pair(Bench *b, ClassJob *a, ClassJob *other, int64_t *rate)
{
    *rate = 1000;
    for (int i = 0; i < TRIES; i++) {
        int64_t alone_ns, overlap_ns, outside_ns;
        TRY(bench_once(b, stream_of[a->class], run_class, a, &alone_ns));
        TRY(bench_pair(b, stream_of[a->class], run_class, a, stream_of[other->class], run_class, other, &overlap_ns,
                       &outside_ns));
        if (overlap_ns < alone_ns / 2)
            continue;
        int64_t done_ns = alone_ns > outside_ns ? alone_ns - outside_ns : 0;
        *rate = done_ns * 1000 / overlap_ns;
        return ST_OK;
    }
    return ST_OK;
}

/* The rate of a beside b, the median of a few pairs. */
static Status measure_pair(Bench *b, ClassJob *a, ClassJob *other, int *out)
{
    int64_t rate[PAIRS];
    int count = b->options->repeats < PAIRS ? b->options->repeats : PAIRS;
    int64_t repeat = other->repeat;
    Status status = ST_OK;
    other->repeat = repeat * OUTLASTS;
    for (int i = 0; i < count && status == ST_OK; i++)
        status = sample_pair(b, a, other, &rate[i]);
    other->repeat = repeat;
    TRY(status);
    int64_t median = timing_of(rate, count).median_ns;
    *out = (int)(median < 1 ? 1 : median > 1000 ? 1000 : median);
    return ST_OK;
}

static bool run_together(int a, int b)
{
    return stream_of[a] != stream_of[b];
}

static Status measure_rates(Bench *b, ClassJob job[LINK_CLASS_COUNT], DeviceFacts *f)
{
    Timing t;
    for (int i = 0; i < LINK_CLASS_COUNT; i++) {
        TRY(bench_time(b, stream_of[i], run_class, &job[i], &t));
        int64_t most = b->on_gpu ? GPU_JOB_MOST : JOB_MOST;
        job[i].repeat = (b->on_gpu ? GPU_JOB_NS : JOB_NS) / (t.median_ns > 0 ? t.median_ns : 1) + 1;
        if (job[i].repeat > most)
            job[i].repeat = most;
    }
    for (int i = 0; i < LINK_CLASS_COUNT; i++)
        for (int k = 0; k < LINK_CLASS_COUNT; k++) {
            f->rate_permille[i][k] = 1000;
            if (run_together(i, k))
                TRY(measure_pair(b, &job[i], &job[k], &f->rate_permille[i][k]));
        }
    return ST_OK;
}

Status host_contention(Bench *b, DeviceFacts *f)
{
    ClassJob job[LINK_CLASS_COUNT];
    void *pinned = NULL;
    b->what = "contention";
    Status status = prepare(b, job, &pinned);
    if (status == ST_OK)
        status = measure_rates(b, job, f);
    if (pinned)
        ferry_host_free(b->device, pinned);
    return status;
}
