/* host_contention.c - how much the classes of work slow each other down: those that can meet run at once, on the host in
 * pairs, on a GPU in all sets.
 *
 * Class a runs a fixed job alone, then again while the others of a set run longer ones. With t alone, and an overlap v of
 * all and time outside it u, a did t - u of its work during v, so its rate was (t - u) / v. Each job repeats one small
 * call until it takes about half a millisecond, on a GPU a few. A class does not run beside itself (one stream each), and
 * the two DHA classes share the compute stream: these rates are 1000 by definition. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    GPU_ROWS = 2048,
    /* of the memory that goes through the caches before a place in it is used again: by updates, by copies and kernels */
    UPDATE_SLICES = 16,
    SLICES = 4,
    PAIRS = 5, /* samples of a set of two, at most */
    LARGER = 3, /* of a larger one */
    TRIES = 3, /* for each sample, until all overlap */
    FAR_PERMILLE = 150, /* a spread that is worth a warning */
};

typedef struct ClassJob {
    LinkClass class;
    ferry_dtype dtype;
    int64_t rows, side;     /* a product of [rows, side] with [side, side] */
    int64_t bytes;          /* copied */
    char *device, *operand; /* buffers of the pool */
    char *pinned;           /* of this class alone: slices, used in turn; the update has four parts of it, and slices of each */
    int64_t part, slices, turn; /* part: bytes of the update's, of a slice of others */
    int64_t repeat;
} ClassJob;

static const ferry_stream_kind stream_of[LINK_CLASS_COUNT] = {
    [LINK_DHA_READ] = FERRY_STREAM_COMPUTE, [LINK_DHA_WRITE] = FERRY_STREAM_COMPUTE, [LINK_H2D] = FERRY_STREAM_LOAD,
    [LINK_D2H] = FERRY_STREAM_STORE,        [LINK_UPDATE] = FERRY_STREAM_UPDATE,
};

/* Updates of a model find nothing in the caches. */
static ferry_status update_slice(ferry_stream *s, ClassJob *j)
{
    const ferry_adamw_args adamw = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .step = 1};
    const int64_t slice = j->part / j->slices / BENCH_ALIGNMENT * BENCH_ALIGNMENT, part = j->part;
    char *at = j->pinned + j->turn * slice;
    j->turn = (j->turn + 1) % j->slices;
    if (j->dtype == FERRY_BF16) { /* half as many elements: f32 masters and state fill the parts as well */
        float *p = (float *)(void *)at, *m = (float *)(void *)(at + part), *v = (float *)(void *)(at + 2 * part);
        return ferry_adamw_bf16(s, p, m, v, at + 3 * part, at + 3 * part + slice / 2, NULL, slice / 4, adamw);
    }
    return ferry_adamw(s, j->dtype, at, at + part, at + 2 * part, at + 3 * part, NULL,
                       slice / (int64_t)ferry_dtype_bytes(j->dtype), adamw);
}

/* What a model loads and stores is not in the CPU's caches either. */
static ferry_status call_once(ferry_stream *s, ClassJob *j)
{
    if (j->class == LINK_UPDATE)
        return update_slice(s, j);
    char *pinned = j->pinned + j->turn * j->part;
    j->turn = (j->turn + 1) % j->slices;
    int64_t rows_bytes = j->rows * j->side * (int64_t)ferry_dtype_bytes(j->dtype);
    switch (j->class) {
    case LINK_DHA_READ: /* weights in pinned memory */
        return ferry_linear(s, j->dtype, j->operand + rows_bytes, j->operand, pinned, NULL, j->rows, j->side,
                            j->side, 0);
    case LINK_DHA_WRITE: /* their gradient in pinned memory */
        return ferry_linear_dw(s, j->dtype, pinned, j->operand, j->operand + rows_bytes, j->rows, j->side, j->side,
                               0);
    case LINK_H2D:
        return ferry_copy_h2d(s, j->device, pinned, j->bytes);
    case LINK_D2H:
        return ferry_copy_d2h(s, pinned, j->device, j->bytes);
    case LINK_UPDATE:
    case LINK_CLASS_COUNT:
        break;
    }
    return FERRY_USAGE;
}

static Status run_class(Bench *b, ferry_stream *s, void *context)
{
    ClassJob *j = context;
    for (int64_t i = 0; i < j->repeat; i++)
        TRY_FERRY(b, call_once(s, j));
    return ST_OK;
}

/* Splits the pool and one pinned block; the update of a GPU's bench works on the memory for eviction. The operands fill half
 * a buffer at most, since rows <= side / 2. */
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
    int64_t rows = b->on_gpu ? GPU_ROWS : 32, part = side * side * element, slices = b->on_gpu ? SLICES : 1;
    int64_t blocks = (LINK_CLASS_COUNT - 1) * slices + 4;
    TRY(bench_pinned(b, blocks * buffer, pinned));
    TRY(bench_fill(b, *pinned, false, t, blocks * buffer / element, 0));
    TRY(bench_fill(b, ferry_pool_at(b->pool, 0), true, t, BUFFERS * buffer / element, 0));
    for (int i = 0; i < LINK_CLASS_COUNT; i++) {
        int64_t device = i == LINK_D2H ? 2 * buffer : buffer;
        job[i] = (ClassJob){.class = (LinkClass)i,
                            .dtype = t,
                            .rows = side / 2 < rows ? side / 2 : rows,
                            .side = side,
                            .bytes = part,
                            .device = ferry_pool_at(b->pool, device),
                            .operand = ferry_pool_at(b->pool, 0),
                            .pinned = (char *)*pinned + i * slices * buffer,
                            .part = part,
                            .slices = slices,
                            .repeat = 1};
    }
    if (b->on_gpu) {
        job[LINK_UPDATE].pinned = b->evict;
        job[LINK_UPDATE].part = b->evict_bytes / 4;
        job[LINK_UPDATE].slices = UPDATE_SLICES;
        memset(b->evict, 0, (size_t)b->evict_bytes); /* what units left there may be subnormal in another type, and slow */
    }
    return ST_OK;
}

/* Classes that can meet, the measured one first. */
typedef struct Meeting {
    ClassJob *job[BENCH_STREAMS];
    int count;
} Meeting;

/* One sample, with a run alone just before it: clocks and caches drift. 1000 when all did not run together for half of the
 * job, however often it was tried. */
static Status sample_rate(Bench *b, const Meeting *m, int64_t *rate)
{
    BenchLane lane[BENCH_STREAMS];
    for (int i = 0; i < m->count; i++)
        lane[i] = (BenchLane){stream_of[m->job[i]->class], run_class, m->job[i]};
    *rate = 1000;
    for (int i = 0; i < TRIES; i++) {
        int64_t alone_ns, overlap_ns, outside_ns;
        TRY(bench_once(b, lane[0].kind, run_class, m->job[0], &alone_ns));
        TRY(bench_together(b, lane, m->count, &overlap_ns, &outside_ns));
        if (overlap_ns < alone_ns / 2)
            continue;
        int64_t done_ns = alone_ns > outside_ns ? alone_ns - outside_ns : 0;
        *rate = done_ns * 1000 / overlap_ns;
        return ST_OK;
    }
    return ST_OK;
}

/* The rate of the first one beside the others, the median of a few samples and their spread. */
static Status measure_rate(Bench *b, const Meeting *m, Timing *out)
{
    int64_t rate[PAIRS];
    int most = m->count > 2 ? LARGER : PAIRS, count = b->options->repeats < most ? b->options->repeats : most;
    Status status = ST_OK;
    for (int i = 1; i < m->count; i++)
        m->job[i]->repeat *= OUTLASTS;
    for (int i = 0; i < count && status == ST_OK; i++)
        status = sample_rate(b, m, &rate[i]);
    for (int i = 1; i < m->count; i++)
        m->job[i]->repeat /= OUTLASTS;
    TRY(status);
    *out = timing_of(rate, count);
    out->median_ns = out->median_ns < 1 ? 1 : out->median_ns > 1000 ? 1000 : out->median_ns;
    return ST_OK;
}

static Status measure_lengths(Bench *b, ClassJob job[LINK_CLASS_COUNT])
{
    Timing t;
    for (int i = 0; i < LINK_CLASS_COUNT; i++) {
        TRY(bench_time(b, stream_of[i], run_class, &job[i], &t));
        int64_t most = b->on_gpu ? GPU_JOB_MOST : JOB_MOST;
        job[i].repeat = (b->on_gpu ? GPU_JOB_NS : JOB_NS) / (t.median_ns > 0 ? t.median_ns : 1) + 1;
        if (job[i].repeat > most)
            job[i].repeat = most;
    }
    return ST_OK;
}

static bool can_meet(int a, int b)
{
    return stream_of[a] != stream_of[b];
}

/* How many classes, 0 when two of them cannot meet. */
static int size_of_set(unsigned set)
{
    int count = 0;
    for (int i = 0; i < LINK_CLASS_COUNT; i++) {
        count += (int)(set >> i & 1);
        for (int k = 0; k < i; k++)
            if ((set >> i & 1) && (set >> k & 1) && !can_meet(i, k))
                return 0;
    }
    return count;
}

static void set_name(unsigned set, char out[64])
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < LINK_CLASS_COUNT; i++)
        if (set >> i & 1)
            used += (size_t)snprintf(out + used, 64 - used, "%s%s", used ? ", " : "", link_class_name[i]);
}

/* The rates of each class of the set while all of it runs, into rate[]; a line for people. */
static Status measure_set(Bench *b, ClassJob job[LINK_CLASS_COUNT], unsigned set, int rate[LINK_CLASS_COUNT])
{
    Text line = {0};
    char name[64];
    set_name(set, name);
    for (int a = 0; a < LINK_CLASS_COUNT; a++) {
        if (!(set >> a & 1))
            continue;
        Meeting m = {.job = {&job[a]}, .count = 1};
        Timing t;
        for (int i = 0; i < LINK_CLASS_COUNT; i++)
            if (i != a && (set >> i & 1))
                m.job[m.count++] = &job[i];
        Status status = measure_rate(b, &m, &t);
        if (status != ST_OK) {
            text_free(&line);
            return status;
        }
        rate[a] = (int)t.median_ns;
        text_add(&line, "%s%s %d (spread %d)", line.size ? ", " : "", link_class_name[a], rate[a], (int)t.spread_ns);
        if (b->on_gpu && b->options->progress && t.spread_ns * 1000 > rate[a] * (int64_t)FAR_PERMILLE)
            diag_warn(b->diag, "the speed of %s varies by %d of %d thousandths while %s run: was there other work?",
                      link_class_name[a], (int)t.spread_ns, rate[a], name);
    }
    if (b->on_gpu && b->options->progress && !line.failed)
        diag_note(b->diag, "contention, thousandths of the speed alone: %.*s", (int)line.size, line.at);
    text_free(&line);
    return ST_OK;
}

static Status measure_rates(Bench *b, ClassJob job[LINK_CLASS_COUNT], DeviceFacts *f)
{
    TRY(measure_lengths(b, job));
    if (b->trace)
        TRY(gpu_trace_stop(b->trace)); /* sets are timed by events */
    for (int i = 0; i < LINK_CLASS_COUNT; i++)
        for (int k = 0; k < LINK_CLASS_COUNT; k++)
            f->rate_permille[i][k] = 1000;
    for (unsigned set = 1; set < 1u << LINK_CLASS_COUNT; set++) {
        int size = size_of_set(set), rate[LINK_CLASS_COUNT] = {0};
        if (size < 2 || (size > 2 && !b->on_gpu))
            continue;
        TRY(measure_set(b, job, set, rate));
        if (size > 2)
            memcpy(f->rate_together[set], rate, sizeof rate);
        for (int i = 0; size == 2 && i < LINK_CLASS_COUNT; i++)
            for (int k = 0; k < LINK_CLASS_COUNT; k++)
                if (i != k && (set >> i & 1) && (set >> k & 1))
                    f->rate_permille[i][k] = rate[i];
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
