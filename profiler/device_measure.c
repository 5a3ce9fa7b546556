/* device_measure.c - the numbers of a device file, measured: a few kernels, copies and updates on the bench, small and large.
 *
 * A copy, and a kernel over host memory, takes latency + bytes / rate: two sizes give both. The rates of products and of
 * element-wise kernels are those that they reach, so efficiencies are whole, but for batched products: theirs is what they
 * reach of the rate of single ones. The vector rate comes from a kernel of exponentials; where memory bounds even that one, it is
 * a lower bound, and the memory's rate decides in the model as it did on the bench. */
#include "profiler/bench.h"
#include "profiler/device_model.h"

enum {
    SMALL_BYTES = 64 << 10,
    LARGE_BYTES = 4 << 20,      /* on the host, where caches are all that a small machine shares with no one */
    GPU_LARGE_BYTES = 64 << 20, /* where copies reach their rate */
    BUFFERS = 4,                /* of the large size, in the pool and pinned */
    PRODUCT_SIDE = 512,
    GPU_PRODUCT_SIDE = 4096,
    HEAD_ROWS = 512, HEAD_COLUMNS = 64, /* a batched product as attention has them */
    LAUNCHES = 16,
    FLOPS_OF_EXP = 8, /* as device_model.c counts it */
};

typedef enum ProbeKind {
    PROBE_LAUNCH,
    PROBE_PRODUCT,
    PROBE_BATCHED,
    PROBE_ADD,
    PROBE_EXP,
    PROBE_H2D,
    PROBE_D2H,
    PROBE_DHA_READ,
    PROBE_DHA_WRITE,
    PROBE_DHA_LINEAR,
    PROBE_DW,
    PROBE_DHA_DW,
    PROBE_SQNORM,
    PROBE_UPDATE,
} ProbeKind;

typedef struct Probe {
    ProbeKind kind;
    ferry_dtype dtype;
    int64_t bytes; /* of the operand that the kind is about */
    int64_t side;
    char *device[BUFFERS], *pinned[BUFFERS];
    double *sum;
} Probe;

static ferry_status probe_call(ferry_stream *s, const Probe *p)
{
    const ferry_adamw_args adamw = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .step = 1};
    const int64_t one = 1, batch_stride[] = {HEAD_ROWS * HEAD_ROWS, HEAD_ROWS * HEAD_COLUMNS};
    int64_t n = p->bytes / (int64_t)ferry_dtype_bytes(p->dtype), batch = p->side * p->side / batch_stride[0];
    char *const *d = p->device, *const *h = p->pinned;
    ferry_status status = FERRY_OK;
    switch (p->kind) {
    case PROBE_LAUNCH:
        for (int i = 0; i < LAUNCHES && status == FERRY_OK; i++)
            status = ferry_unary(s, p->dtype, FERRY_RELU, d[0], d[1], 1);
        return status;
    case PROBE_PRODUCT:
        return ferry_linear(s, p->dtype, d[0], d[1], d[2], NULL, p->side, p->side, p->side, 0);
    case PROBE_BATCHED: /* scores of a query with each key */
        return ferry_matmul(s, p->dtype, d[0], d[1], d[2], HEAD_ROWS, HEAD_COLUMNS, HEAD_ROWS, 1, &batch, &batch_stride[0],
                            &batch_stride[1], &batch_stride[1], 1.0, FERRY_TRANS_B);
    case PROBE_ADD:
        return ferry_binary(s, p->dtype, FERRY_ADD, d[0], d[1], d[2], 1, &n, &one, &one);
    case PROBE_EXP:
        return ferry_unary(s, p->dtype, FERRY_EXP, d[0], d[1], n);
    case PROBE_H2D:
        return ferry_copy_h2d(s, d[0], h[0], p->bytes);
    case PROBE_D2H:
        return ferry_copy_d2h(s, h[0], d[0], p->bytes);
    case PROBE_DHA_READ:
        return ferry_copy(s, p->dtype, d[0], h[0], 1, &n, 0, &one, 0, &one, 1.0, 0);
    case PROBE_DHA_WRITE:
        return ferry_copy(s, p->dtype, h[0], d[0], 1, &n, 0, &one, 0, &one, 1.0, 0);
    case PROBE_DHA_LINEAR:
        return ferry_linear(s, p->dtype, d[0], d[1], h[0], NULL, p->side, p->side, p->side, 0);
    case PROBE_DW:
        return ferry_linear_dw(s, p->dtype, d[0], d[1], d[2], p->side, p->side, p->side, 0);
    case PROBE_DHA_DW:
        return ferry_linear_dw(s, p->dtype, h[0], d[1], d[2], p->side, p->side, p->side, 0);
    case PROBE_SQNORM:
        return ferry_sqnorm(s, p->dtype, p->sum, h[0], n);
    case PROBE_UPDATE:
        break;
    }
    return ferry_adamw(s, p->dtype, h[0], h[1], h[2], h[3], NULL, n, adamw);
}

static Status probe_run(Bench *b, ferry_stream *s, void *probe)
{
    return bench_check(b, probe_call(s, probe));
}

/* Median time of one call; bytes is ignored by kinds that go by the side. */
static Status probe_ns(Bench *b, Probe *p, ProbeKind kind, int64_t bytes, int64_t *ns)
{
    static const ferry_stream_kind stream[] = {
        [PROBE_H2D] = FERRY_STREAM_LOAD,
        [PROBE_D2H] = FERRY_STREAM_STORE,
        [PROBE_SQNORM] = FERRY_STREAM_UPDATE,
        [PROBE_UPDATE] = FERRY_STREAM_UPDATE,
    };
    Timing t;
    p->kind = kind;
    p->bytes = bytes;
    b->cold = b->on_gpu && stream[kind] == FERRY_STREAM_UPDATE; /* as in training: see bench.c */
    Status status = bench_time(b, stream[kind], probe_run, p, &t);
    b->cold = false;
    *ns = status == ST_OK && t.median_ns > 0 ? t.median_ns : 1;
    return status;
}

static int64_t within(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

int64_t device_rate(int64_t amount, int64_t ns)
{
    return within(amount / (ns > 0 ? ns : 1), 1, DEVICE_MAX_RATE);
}

LinkPath device_fit_path(int64_t small_bytes, int64_t small_ns, int64_t large_bytes, int64_t large_ns)
{
    int64_t bytes = large_bytes - small_bytes, ns = large_ns - small_ns;
    LinkPath path = {.mb_per_s = device_rate(bytes * 1000, ns)};
    path.latency_ns = within(small_ns - small_bytes * 1000 / path.mb_per_s, 0, PROFILE_MAX_NS);
    return path;
}

static Status measure_path(Bench *b, Probe *p, ProbeKind kind, int64_t large, LinkPath *out)
{
    int64_t small_ns, large_ns;
    TRY(probe_ns(b, p, kind, SMALL_BYTES, &small_ns));
    TRY(probe_ns(b, p, kind, large, &large_ns));
    *out = device_fit_path(SMALL_BYTES, small_ns, large, large_ns);
    return ST_OK;
}

static Status measure_kernels(Bench *b, Probe *p, int64_t large, PrecisionRates *r, DeviceModel *m)
{
    int64_t launches, product, batched, add, exp, element = (int64_t)ferry_dtype_bytes(p->dtype);
    TRY(probe_ns(b, p, PROBE_LAUNCH, 0, &launches));
    TRY(probe_ns(b, p, PROBE_PRODUCT, 0, &product));
    TRY(probe_ns(b, p, PROBE_BATCHED, 0, &batched));
    TRY(probe_ns(b, p, PROBE_ADD, large, &add));
    TRY(probe_ns(b, p, PROBE_EXP, large, &exp));
    m->launch_ns = launches / LAUNCHES;
    int64_t batches = p->side * p->side / (HEAD_ROWS * HEAD_ROWS);
    r->product_gflop_per_s = device_rate(2 * p->side * p->side * p->side, product - m->launch_ns);
    r->vector_gflop_per_s = device_rate(FLOPS_OF_EXP * (large / element), exp - m->launch_ns);
    m->memory_mb_per_s = device_rate(3 * large * 1000, add - m->launch_ns);
    int64_t rate = device_rate(2 * batches * HEAD_ROWS * HEAD_ROWS * HEAD_COLUMNS, batched - m->launch_ns);
    m->efficiency_permille[WORK_PRODUCT] = m->efficiency_permille[WORK_ELEMENTWISE] = 1000;
    m->efficiency_permille[WORK_BATCHED] = within(rate * 1000 / r->product_gflop_per_s, 1, 1000);
    return ST_OK;
}

/* How products use host memory: how often they read weights there, and how much of a gradient's way there hides behind its
 * computation. */
static Status measure_dha_products(Bench *b, Probe *p, DeviceModel *m)
{
    int64_t product, read, dw, write, bytes = p->side * p->side * (int64_t)ferry_dtype_bytes(p->dtype);
    TRY(probe_ns(b, p, PROBE_PRODUCT, 0, &product));
    TRY(probe_ns(b, p, PROBE_DHA_LINEAR, 0, &read));
    TRY(probe_ns(b, p, PROBE_DW, 0, &dw));
    TRY(probe_ns(b, p, PROBE_DHA_DW, 0, &write));
    int64_t once_ns = m->dha_read.latency_ns + bytes * 1000 / m->dha_read.mb_per_s + 1;
    int64_t way_ns = m->dha_write.latency_ns + bytes * 1000 / m->dha_write.mb_per_s + 1;
    /* a product that hides the reading says nothing of how often it reads */
    m->tiles = (DhaTiles){.passes = read > product + product / 4 ? within((read + once_ns / 2) / once_ns, 1, 1000000) : 1};
    int64_t shorter = dw < way_ns ? dw : way_ns;
    m->write_overlap_permille = within((dw + way_ns - write) * 1000 / shorter, 0, 1000);
    return ST_OK;
}

static Status measure_cpu(Bench *b, Probe *p, int64_t large, PrecisionRates *r, DeviceModel *m)
{
    int64_t element = (int64_t)ferry_dtype_bytes(p->dtype), nothing, norm, update;
    TRY(probe_ns(b, p, PROBE_SQNORM, element, &nothing));
    TRY(probe_ns(b, p, PROBE_SQNORM, large, &norm));
    TRY(probe_ns(b, p, PROBE_UPDATE, large, &update));
    m->cpu_launch_ns = nothing;
    m->cpu_memory_mb_per_s = device_rate(large * 1000, norm - nothing);
    r->update_mparam_per_s = device_rate(large / element * 1000, update - nothing);
    return ST_OK;
}

int64_t device_measure_bytes(bool on_gpu)
{
    return BUFFERS * (int64_t)(on_gpu ? GPU_LARGE_BYTES : LARGE_BYTES);
}

static Status measure_all(Bench *b, Probe *p, int64_t large, PrecisionRates *r, DeviceModel *m)
{
    for (int i = 0; i < BUFFERS; i++) {
        p->device[i] = (char *)ferry_pool_at(b->pool, i * large);
        p->pinned[i] = p->pinned[0] + i * large;
    }
    int64_t n = BUFFERS * large / (int64_t)ferry_dtype_bytes(p->dtype);
    TRY(bench_fill(b, p->pinned[0], false, p->dtype, n, 0));
    TRY(bench_fill(b, p->device[0], true, p->dtype, n, 0));
    TRY(measure_kernels(b, p, large, r, m));
    TRY(measure_path(b, p, PROBE_H2D, large, &m->h2d));
    TRY(measure_path(b, p, PROBE_D2H, large, &m->d2h));
    TRY(measure_path(b, p, PROBE_DHA_READ, large, &m->dha_read));
    TRY(measure_path(b, p, PROBE_DHA_WRITE, large, &m->dha_write));
    TRY(measure_dha_products(b, p, m));
    return measure_cpu(b, p, large, r, m);
}

Status device_measure(Bench *b, const DeviceFacts *facts, DeviceModel *m)
{
    ferry_dtype t = b->graph->precision;
    int64_t large = b->on_gpu ? GPU_LARGE_BYTES : LARGE_BYTES;
    Probe p = {.dtype = t, .side = b->on_gpu ? GPU_PRODUCT_SIDE : PRODUCT_SIDE};
    if (p.side * p.side * (int64_t)ferry_dtype_bytes(t) > large)
        p.side /= 2;
    if (p.side < HEAD_ROWS)
        p.side = HEAD_ROWS;
    void *pinned = NULL, *sum = NULL;
    *m = (DeviceModel){.file = "measured", .facts = *facts};
    PrecisionRates *r = device_precision(m, t);
    if (!r)
        return diag_fail(b->diag, ST_USAGE, "a device cannot be described for the type %s", ferry_dtype_name(t));
    r->known = true;
    b->what = "the device";
    Status status = bench_pinned(b, BUFFERS * large, &pinned);
    if (status == ST_OK)
        status = bench_pinned(b, sizeof(double), &sum);
    p.pinned[0] = pinned;
    p.sum = sum;
    if (status == ST_OK)
        status = measure_all(b, &p, large, r, m);
    if (sum)
        ferry_host_free(b->device, sum);
    if (pinned)
        ferry_host_free(b->device, pinned);
    return status;
}
