/* host_units.c - units and the edges of a step on the host: loads, stores, norms, updates; inputs, loss, clipping.
 *
 * A unit is one run of calls in parameter order, as an emitted schedule makes them. Frozen parameters are only loaded.
 * Beside a GPU, norms and updates of several copies of a unit follow each other, as those of units do in training: what one
 * leaves in the caches is written to memory during the next. */
#include "profiler/bench.h"

typedef struct UnitJob {
    const Graph *graph;
    const Unit *unit;
    char *param, *grad;  /* pinned, in the graph's precision: what loads read; gradients */
    char *wide[3];       /* pinned, in the wide type: the optimizer's two states, and in bf16 the master */
    int64_t ratio;       /* of the two types' sizes */
    char *device;
    double *sum;
    /* copies of the host's part, side by side: how many, in a run, and the next one */
    int64_t copy_bytes, copies, in_run, turn;
} UnitJob;

typedef Status ParamWork(Bench *b, ferry_stream *s, const UnitJob *job, const Param *p, int index, int64_t at);

static Status each_param(Bench *b, ferry_stream *s, const UnitJob *job, bool trainable, ParamWork *work)
{
    int64_t at = 0;
    for (int i = 0; i < job->unit->n_param; i++) {
        const Param *p = &job->graph->param[job->unit->param[i]];
        if (p->trainable || !trainable)
            TRY(work(b, s, job, p, i, at));
        at += bench_aligned(p->bytes);
    }
    return ST_OK;
}

static Status load_param(Bench *b, ferry_stream *s, const UnitJob *job, const Param *p, int index, int64_t at)
{
    (void)index;
    return bench_check(b, ferry_copy_h2d(s, job->device + at, job->param + at, p->bytes));
}

static Status store_gradient(Bench *b, ferry_stream *s, const UnitJob *job, const Param *p, int index, int64_t at)
{
    (void)index;
    return bench_check(b, ferry_copy_d2h(s, job->grad + at, job->device + at, p->bytes));
}

static Status norm_gradient(Bench *b, ferry_stream *s, const UnitJob *job, const Param *p, int index, int64_t at)
{
    return bench_check(b, ferry_sqnorm(s, job->graph->precision, &job->sum[index], job->grad + at, p->count));
}

static Status update_param(Bench *b, ferry_stream *s, const UnitJob *job, const Param *p, int index, int64_t at)
{
    (void)index;
    const ferry_adamw_args args = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .step = 1};
    char *m = job->wide[0] + job->ratio * at, *v = job->wide[1] + job->ratio * at;
    if (job->graph->precision == FERRY_BF16)
        return bench_check(b, ferry_adamw_bf16(s, (float *)(void *)(job->wide[2] + job->ratio * at), (float *)(void *)m,
                                               (float *)(void *)v, job->param + at, job->grad + at, NULL, p->count, args));
    return bench_check(b, ferry_adamw(s, job->graph->precision, job->param + at, m, v, job->grad + at, NULL, p->count,
                                      args));
}

static Status load_unit(Bench *b, ferry_stream *s, void *job)
{
    return each_param(b, s, job, false, load_param);
}

static Status store_unit(Bench *b, ferry_stream *s, void *job)
{
    return each_param(b, s, job, true, store_gradient);
}

static Status norm_unit(Bench *b, ferry_stream *s, void *job)
{
    return each_param(b, s, job, true, norm_gradient);
}

static Status update_unit(Bench *b, ferry_stream *s, void *job)
{
    return each_param(b, s, job, true, update_param);
}

/* ---- norms and updates on the CPU
 * ------------------------------------------------------------------------------------- */

/* The same with the host's part at another place. */
static UnitJob moved(const UnitJob *job, char *place)
{
    UnitJob out = *job;
    out.param = place;
    out.grad = place + (job->grad - job->param);
    for (int i = 0; i < 3; i++)
        out.wide[i] = job->wide[i] ? place + (job->wide[i] - job->param) : NULL;
    return out;
}

static Status each_copy(Bench *b, ferry_stream *s, UnitJob *job, ParamWork *work)
{
    for (int64_t i = 0; i < job->in_run; i++) {
        UnitJob one = moved(job, job->param + job->turn * job->copy_bytes);
        job->turn = (job->turn + 1) % job->copies;
        TRY(each_param(b, s, &one, true, work));
    }
    return ST_OK;
}

static Status norm_copies(Bench *b, ferry_stream *s, void *job)
{
    return each_copy(b, s, job, norm_gradient);
}

static Status update_copies(Bench *b, ferry_stream *s, void *job)
{
    return each_copy(b, s, job, update_param);
}

/* Squares are summed of what the GPU has just written. */
static Status store_copies(Bench *b, void *context)
{
    const UnitJob *job = context;
    for (int64_t i = 0; i < job->in_run; i++) {
        const UnitJob one = moved(job, job->param + (job->turn + i) % job->copies * job->copy_bytes);
        TRY(each_param(b, b->stream[FERRY_STREAM_STORE], &one, true, store_gradient));
    }
    return bench_check(b, ferry_stream_sync(b->stream[FERRY_STREAM_STORE]));
}

static Status fill_host(Bench *b, const UnitJob *job, int64_t elements)
{
    const int wide = job->wide[2] ? 3 : 2;
    TRY(bench_fill(b, job->param, false, b->graph->precision, elements, 0));
    TRY(bench_fill(b, job->grad, false, b->graph->precision, elements, 0));
    for (int i = 0; i < wide; i++)
        TRY(bench_fill(b, job->wide[i], false, graph_wide_dtype(b->graph), elements, 0));
    return ST_OK;
}

/* A unit that does not fit twice into the memory for it is larger than the caches. */
static Status time_on_cpu(Bench *b, const UnitJob *one, int64_t elements, Timing timing[UNIT_TIMINGS])
{
    enum { PAGE = 4096, MOST_COPIES = 1024, MOST_IN_RUN = 64 };
    UnitJob job = *one;
    const int64_t bytes = (job.copy_bytes + PAGE - 1) / PAGE * PAGE;
    job.copies = job.in_run = 1;
    if (b->on_gpu && 2 * bytes <= b->evict_bytes) {
        job.copies = b->evict_bytes / bytes < MOST_COPIES ? b->evict_bytes / bytes : MOST_COPIES;
        job.in_run = job.copies < MOST_IN_RUN ? job.copies : MOST_IN_RUN;
        job.copy_bytes = bytes;
        job = moved(&job, b->evict);
        for (int64_t i = 0; i < job.copies; i++) {
            UnitJob copy = moved(&job, b->evict + i * bytes);
            TRY(fill_host(b, &copy, elements));
        }
    }
    b->before = b->on_gpu ? store_copies : NULL;
    Status status = bench_time(b, FERRY_STREAM_UPDATE, norm_copies, &job, &timing[2]);
    b->before = NULL;
    TRY(status);
    TRY(bench_time(b, FERRY_STREAM_UPDATE, update_copies, &job, &timing[3]));
    for (int i = 2; i < 4; i++) {
        timing[i].median_ns = timing[i].median_ns / job.in_run > 0 ? timing[i].median_ns / job.in_run : 1;
        timing[i].spread_ns /= job.in_run;
    }
    return ST_OK;
}

/* Norm and update by kernels, in a pool of their own. */
static Status time_resident(Bench *b, const UnitJob *on_host, int64_t elements, Timing timing[UNIT_TIMINGS])
{
    UnitJob job = *on_host;
    const int wide = job.wide[2] ? 3 : 2;
    const int64_t bytes = elements * (int64_t)ferry_dtype_bytes(b->graph->precision);
    ferry_pool *pool;
    TRY(bench_check(b, ferry_pool_open(b->device, (2 + wide * job.ratio) * bytes, &pool)));
    job.param = ferry_pool_at(pool, 0);
    job.grad = job.param + bytes;
    Status status = bench_fill(b, job.param, true, b->graph->precision, 2 * elements, 0);
    for (int i = 0; i < wide; i++) {
        job.wide[i] = job.param + (2 + i * job.ratio) * bytes;
        if (status == ST_OK)
            status = bench_fill(b, job.wide[i], true, graph_wide_dtype(b->graph), elements, 0);
    }
    if (status == ST_OK)
        status = bench_time(b, FERRY_STREAM_COMPUTE, norm_unit, &job, &timing[4]);
    if (status == ST_OK)
        status = bench_time(b, FERRY_STREAM_COMPUTE, update_unit, &job, &timing[5]);
    ferry_pool_close(pool);
    return status;
}

static Status time_unit(Bench *b, UnitJob *job, int64_t elements, Timing timing[UNIT_TIMINGS])
{
    TRY(fill_host(b, job, elements));
    TRY(bench_fill(b, job->device, true, b->graph->precision, elements, 0));
    TRY(bench_time(b, FERRY_STREAM_LOAD, load_unit, job, &timing[0]));
    if (job->unit->grad_bytes == 0)
        return ST_OK;
    TRY(bench_time(b, FERRY_STREAM_STORE, store_unit, job, &timing[1]));
    TRY(time_on_cpu(b, job, elements, timing));
    return time_resident(b, job, elements, timing);
}

Status host_unit(Bench *b, const Unit *u, Timing timing[UNIT_TIMINGS])
{
    const Graph *g = b->graph;
    const int64_t element = (int64_t)ferry_dtype_bytes(g->precision);
    const int64_t ratio = (int64_t)ferry_dtype_bytes(graph_wide_dtype(g)) / element, parts = 2 + (ratio > 1 ? 3 * ratio : 2);
    int64_t bytes = 0, all;
    for (int i = 0; i < u->n_param; i++)
        bytes += bench_aligned(g->param[u->param[i]].bytes);
    if (mul_overflows_i64(bytes, parts, &all))
        return diag_fail(b->diag, ST_MODEL, "unit '%s': larger than any memory", u->name);
    void *pinned, *sum;
    TRY(bench_pinned(b, all, &pinned));
    Status status = bench_pinned(b, u->n_param * (int64_t)sizeof(double), &sum);
    if (status == ST_OK) {
        UnitJob job = {.graph = g,
                       .unit = u,
                       .param = pinned,
                       .grad = (char *)pinned + bytes,
                       .ratio = ratio,
                       .device = ferry_pool_at(b->pool, 0),
                       .sum = sum,
                       .copy_bytes = all};
        for (int i = 0; i < (ratio > 1 ? 3 : 2); i++)
            job.wide[i] = (char *)pinned + (2 + i * ratio) * bytes;
        status = time_unit(b, &job, bytes / element, timing);
        ferry_host_free(b->device, sum);
    }
    ferry_host_free(b->device, pinned);
    return status;
}

/* ---- inputs, loss, clipping
 * --------------------------------------------------------------------------------------------------- */

typedef struct EdgeJob {
    const Graph *graph;
    char *pinned;
    char *device;
    int count; /* partial sums */
} EdgeJob;

/* One after the other into the same place, which fits the largest. */
static Status load_inputs(Bench *b, ferry_stream *s, void *context)
{
    const EdgeJob *job = context;
    const Graph *g = job->graph;
    for (int i = 0; i < g->n_input; i++) {
        const Tensor *t = &g->tensor.at[g->input[i]];
        if (t->bytes > 0)
            TRY_FERRY(b, ferry_copy_h2d(s, job->device, job->pinned, t->bytes));
    }
    return ST_OK;
}

static Status store_loss(Bench *b, ferry_stream *s, void *context)
{
    const EdgeJob *job = context;
    return bench_check(b, ferry_copy_d2h(s, job->pinned, job->device, job->graph->tensor.at[job->graph->loss].bytes));
}

static Status clip_norm(Bench *b, ferry_stream *s, void *context)
{
    const EdgeJob *job = context;
    double *at = (double *)(void *)job->pinned;
    return bench_check(b, ferry_grad_norm(s, &at[0], &at[1], &at[2], job->count, 1.0));
}

Status host_edges(Bench *b, Profile *p)
{
    const Graph *g = b->graph;
    EdgeJob job = {.graph = g, .device = ferry_pool_at(b->pool, 0)};
    int64_t bytes = g->tensor.at[g->loss].bytes;
    for (int i = 0; i < g->n_input; i++)
        if (g->tensor.at[g->input[i]].bytes > bytes)
            bytes = g->tensor.at[g->input[i]].bytes;
    for (int i = 0; i < g->n_param; i++)
        job.count += g->param[i].trainable;
    int64_t doubles = (int64_t)job.count + 2;
    if (bytes < doubles * (int64_t)sizeof(double))
        bytes = doubles * (int64_t)sizeof(double);
    void *pinned;
    b->what = "inputs, loss and norm";
    TRY(bench_pinned(b, bytes, &pinned));
    job.pinned = pinned;
    Status status = bench_fill(b, pinned, false, FERRY_F64, doubles, 0);
    if (status == ST_OK && g->n_input > 0)
        status = bench_time(b, FERRY_STREAM_LOAD, load_inputs, &job, &p->input_load);
    if (status == ST_OK)
        status = bench_time(b, FERRY_STREAM_STORE, store_loss, &job, &p->loss_store);
    if (status == ST_OK && job.count > 0)
        status = bench_time(b, FERRY_STREAM_UPDATE, clip_norm, &job, &p->clip);
    ferry_host_free(b->device, pinned);
    return status;
}
