/* cuda_product.c - matrix products of the CUDA backend, and what they read and write by DHA.
 *
 * A library product reads its operands again for each row of tiles and may read its result, which costs nothing in
 * device memory and everything across the link. So a weight matrix in pinned memory is brought over in slabs, each byte
 * once: a kernel of few blocks on the stream's side stream copies slab i + 1 while the product of slab i runs. A result
 * in pinned memory goes back in the same way: slabs of its rows are computed in device memory and written by a streaming
 * kernel.
 *
 * Copy and product are a pipeline of two stages. What the first slab takes in the first stage and the last one in the
 * second is hidden behind nothing, and each slab costs a little; so there are few of them, the smallest where nothing
 * hides it, and each further from there larger by as much as the longer stage is longer.
 *
 * A slab of a weight is a part of the sum in f32 and f64: the product of each fills the GPU as that of all would, and is
 * added to the result. bf16 would round between two slabs; there, and where the result is wide, a slab gives some columns
 * of the result. A slab of a result has few tiles and a long sum, which is added up in parts
 * side by side, by f32 also in bf16.
 *
 * A weight of bf16 of up to four buffers is brought by one kernel, whose blocks keep their place beside the product's while slab after
 * slab arrives; the product of a slab waits for its number of arrived blocks. Else the slabs take turns in four buffers; ready
 * and used events, one each a buffer, keep copy and product apart. */
#include "runtime/cuda_device.h"
#include "runtime/walk.h"

enum {
    SLABS = CUDA_SLABS,
    SLAB_BYTES = 8 << 20,
    LEAST_SLAB_BYTES = 768 << 10,
    TILE = 128,
    PARTS_BYTES = CUDA_SCRATCH_BYTES / 4, /* of the scratch that kernels work in (cuda_launch.c) */
    MOST_PARTS = 16,
};

/* Where the slabs lie in the stream's scratch: in its second half (cuda_launch.c). */
static char *slab_at(const ferryi_cuda_stream *s, int64_t i)
{
    return (char *)s->scratch + CUDA_SCRATCH_BYTES / 2 + i % SLABS * SLAB_BYTES;
}

static bool is_pinned(const ferryi_cuda_stream *s, const void *p)
{
    ferryi_region r;
    return ferryi_region_find(s->base.device, p, &r) && r.kind == FERRYI_PINNED;
}

/* Of high priority: a copy's few blocks come in between those of a product. */
static ferry_status side_open(ferryi_cuda_stream *s)
{
    ferry_device *d = s->base.device;
    ferry_status status = FERRY_OK;
    if (s->side == NULL) {
        int least, greatest;
        status = ferryi_cuda_check(d, cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
        if (status == FERRY_OK) {
            status = ferryi_cuda_check(d, cudaStreamCreateWithPriority(&s->side, cudaStreamNonBlocking, greatest),
                                       "making a stream");
        }
    }
    if (status == FERRY_OK && s->arrived == NULL) {
        void *p = NULL;
        status = ferryi_cuda_check(d, cudaMalloc(&p, sizeof(s->expected)), "allocating device memory");
        if (status == FERRY_OK) {
            s->arrived = p;
            status = ferryi_cuda_check(d, cudaMemsetAsync(p, 0, sizeof(s->expected), s->side), "clearing device memory");
        }
    }
    for (int i = 0; i < SLABS && status == FERRY_OK; i++) {
        if (s->ready[i] == NULL) {
            status =
                ferryi_cuda_check(d, cudaEventCreateWithFlags(&s->ready[i], cudaEventDisableTiming), "making an event");
        }
        if (status == FERRY_OK && s->used[i] == NULL) {
            status =
                ferryi_cuda_check(d, cudaEventCreateWithFlags(&s->used[i], cudaEventDisableTiming), "making an event");
        }
    }
    return status;
}

void ferryi_cuda_product_close(ferryi_cuda_stream *s)
{
    for (int i = 0; i < SLABS; i++) {
        if (s->ready[i] != NULL) {
            cudaEventDestroy(s->ready[i]);
        }
        if (s->used[i] != NULL) {
            cudaEventDestroy(s->used[i]);
        }
    }
    if (s->side != NULL) {
        (void)ferryi_cuda_check(s->base.device, cudaStreamDestroy(s->side), "closing a stream");
    }
    if (s->arrived != NULL) {
        cudaFree(s->arrived);
    }
}

/* `to` goes on after what `from` was given so far. */
static ferry_status follow(ferryi_cuda_stream *s, cudaStream_t from, cudaEvent_t event, cudaStream_t to)
{
    cudaError_t error = cudaEventRecord(event, from);
    if (error == cudaSuccess) {
        error = cudaStreamWaitEvent(to, event, 0);
    }
    return ferryi_cuda_check(s->base.device, error, "ordering a product and its copies");
}

/* ---- sizes of slabs ----------------------------------------------------------------------------------------------- */

typedef struct slabs {
    int64_t total, each_bytes; /* rows or columns, and the bytes of one */
    int64_t unit;              /* they come in multiples of this, where there are so many */
    double smallest, growth;   /* share of the smallest slab; of one to the next larger */
    bool grow;                 /* the smallest comes first */
    int64_t previous;
} slabs;

/* How long the arithmetic of a product with a matrix and `rows` rows takes, in units of the matrix's way across the link:
 * operations a byte over what GPUs of this generation do while the link moves one. Only the sizes of slabs depend on it. */
static double arithmetic_per_copy(ferry_dtype t, int64_t rows)
{
    const double per_byte = t == FERRY_BF16 ? 14600 : 950;
    return 2 * (double)rows / (double)ferry_dtype_bytes(t) / per_byte;
}

/* ratio: of the second stage's time to the first's. */
static slabs slabs_of(int64_t total, int64_t each_bytes, int64_t unit, double ratio)
{
    const double longer = ratio > 1 ? ratio : ratio > 0 ? 1 / ratio : 1e9;
    return (slabs){.total = total,
                   .each_bytes = each_bytes,
                   .unit = unit,
                   .smallest = longer < 10.0 / 3 ? 0.15 * longer : 0.5,
                   .growth = longer < 4 ? longer : 4,
                   .grow = ratio > 1};
}

static int64_t next_slab(slabs *s, int64_t rest)
{
    const int64_t least = (LEAST_SLAB_BYTES + s->each_bytes - 1) / s->each_bytes, most = SLAB_BYTES / s->each_bytes;
    double smallest = s->smallest * (double)s->total, size = smallest;
    smallest = smallest < (double)least ? (double)least : smallest;
    if (s->grow) {
        size = s->previous == 0 ? smallest : (double)s->previous * s->growth;
    } else { /* from the end: what is left after the smaller ones */
        double after = 0, e = smallest;
        while (after + 1.5 * e < (double)rest) {
            after += e;
            e = e * s->growth < (double)most ? e * s->growth : (double)most;
        }
        size = (double)rest - after;
    }
    int64_t count = size < (double)most ? (int64_t)size : most;
    if (most >= s->unit) {
        count = (count + s->unit / 2) / s->unit * s->unit;
        count = count < s->unit ? s->unit : count > most ? most / s->unit * s->unit : count;
    }
    count = count < 1 ? 1 : count;
    if (rest <= most && (double)(rest - count) < 0.5 * smallest) {
        count = rest;
    }
    s->previous = count;
    return count < rest ? count : rest;
}

/* ---- weights ------------------------------------------------------------------------------------------------------ */

/* Slab number i of [k, n] at b: its `count` of k (of n) from `from` on. */
static ferry_status read_slab(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g, bool of_k, int64_t from, int64_t count,
                              int64_t i)
{
    const int64_t each = (int64_t)ferry_dtype_bytes(g->t), across = of_k ? g->n : g->k, pitch = g->trans_b ? g->k : g->n;
    const char *b = g->b;
    int error;
    if (i >= SLABS) {
        ferry_status status =
            ferryi_cuda_check(s->base.device, cudaStreamWaitEvent(s->side, s->used[i % SLABS], 0), "ordering copies");
        if (status != FERRY_OK) {
            return status;
        }
    }
    if (of_k != g->trans_b) { /* whole rows as they are stored */
        error = ferryi_cuda_stream_copy(s->side, slab_at(s, i), b + from * pitch * each, count * across * each);
    } else {
        error = ferryi_cuda_stream_rows(s->side, slab_at(s, i), b + from * each, across, count * each, pitch * each);
    }
    return ferryi_cuda_check(s->base.device, (cudaError_t)error, "reading a weight");
}

/* The product with a slab: of_k, it is added to what those before gave. */
static ferryi_cuda_gemm part_of(const ferryi_cuda_gemm *g, bool of_k, int64_t from, int64_t count, const void *slab)
{
    const int64_t each = (int64_t)ferry_dtype_bytes(g->t);
    ferryi_cuda_gemm part = *g;
    part.b = slab;
    if (of_k) {
        part.k = count;
        part.ldb = g->trans_b ? count : g->n;
        part.a = (const char *)g->a + from * each * (g->trans_a ? g->lda : 1);
        part.beta = from > 0 ? 1 : g->beta;
        part.bias = from > 0 ? NULL : g->bias;
    } else {
        part.n = count;
        part.ldb = g->trans_b ? g->k : count;
        part.c = (char *)g->c + from * each;
        part.bias = g->bias != NULL ? (const char *)g->bias + from * each : NULL;
    }
    return part;
}

/* All slabs side by side in the scratch, brought by one kernel. *done = false: they do not fit, are too many, or do not lie as
 * that kernel needs them. Products of f32 are long blocks of threads, with which it does worse than a kernel for each slab. */
static ferry_status gemm_following(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g, bool of_k, slabs sizes, bool *done)
{
    const int64_t each = (int64_t)ferry_dtype_bytes(g->t), total = of_k ? g->k : g->n, across = of_k ? g->n : g->k;
    const int64_t pitch = (g->trans_b ? g->k : g->n) * each, step = of_k != g->trans_b ? pitch : each;
    const ferryi_cuda_device *d = ferryi_cuda_of(s->base.device);
    ferryi_cuda_slabs list = {.pitch_bytes = pitch, .arrived = s->arrived};
    int64_t counts[FERRYI_MOST_SLABS];
    char *to = slab_at(s, 0);
    *done = g->t == FERRY_BF16 && total * across * each <= SLABS * (int64_t)SLAB_BYTES && (uintptr_t)g->b % 16 == 0 && pitch % 16 == 0;
    for (int64_t from = 0; from < total && *done; from += counts[list.count++]) {
        if (list.count == FERRYI_MOST_SLABS) {
            *done = false;
            return FERRY_OK;
        }
        const int64_t count = counts[list.count] = next_slab(&sizes, total - from);
        ferryi_cuda_slab *slab = &list.slab[list.count];
        *slab = (ferryi_cuda_slab){(const char *)g->b + from * step, to, 1, count * across * each};
        if (of_k == g->trans_b) { /* parts of the rows as they are stored */
            slab->rows = across;
            slab->row_bytes = count * each;
        }
        *done = from * step % 16 == 0 && slab->row_bytes % 16 == 0;
        to += count * across * each;
    }
    if (!*done) {
        return FERRY_OK;
    }
    ferry_status status =
        ferryi_cuda_check(s->base.device, (cudaError_t)ferryi_cuda_stream_slabs(s->side, &list), "reading a weight");
    for (int64_t i = 0, from = 0; i < list.count && status == FERRY_OK; from += counts[i++]) {
        s->expected[i] += FERRYI_SLAB_BLOCKS;
        status = ferryi_cuda_check_driver(s->base.device,
                                          d->driver.wait_value((CUstream)s->stream, (CUdeviceptr)(uintptr_t)(s->arrived + i),
                                                               s->expected[i], CU_STREAM_WAIT_VALUE_GEQ),
                                          "ordering a product and its copies");
        if (status == FERRY_OK) {
            const ferryi_cuda_gemm part = part_of(g, of_k, from, counts[i], list.slab[i].to);
            status = ferryi_cuda_gemm_run(s, &part);
        }
    }
    return status;
}

static ferry_status gemm_reading_b(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g, bool of_k)
{
    const int64_t each = (int64_t)ferry_dtype_bytes(g->t), total = of_k ? g->k : g->n;
    slabs sizes = slabs_of(total, (of_k ? g->n : g->k) * each, of_k ? TILE / 4 : TILE, arithmetic_per_copy(g->t, g->m));
    ferry_status status = side_open(s);
    if (status == FERRY_OK) { /* the side stream may read what the stream has waited for */
        status = follow(s, s->stream, s->ready[0], s->side);
    }
    bool done = false;
    if (status == FERRY_OK) {
        status = gemm_following(s, g, of_k, sizes, &done);
    }
    if (status != FERRY_OK || done) {
        return status;
    }
    for (int64_t from = 0, i = 0, count = 0; from < total && status == FERRY_OK; from += count, i++) {
        count = next_slab(&sizes, total - from);
        status = read_slab(s, g, of_k, from, count, i);
        if (status == FERRY_OK) {
            status = follow(s, s->side, s->ready[i % SLABS], s->stream);
        }
        if (status == FERRY_OK) {
            const ferryi_cuda_gemm part = part_of(g, of_k, from, count, slab_at(s, i));
            status = ferryi_cuda_gemm_run(s, &part);
        }
        if (status == FERRY_OK) {
            status = ferryi_cuda_check(s->base.device, cudaEventRecord(s->used[i % SLABS], s->stream), "ordering copies");
        }
    }
    return status;
}

/* ---- gradients ---------------------------------------------------------------------------------------------------- */

/* In how many parts the sum of `count` rows of the result is added up: until there are tiles for the whole GPU, with no
 * part too short. Depends on the sizes alone, as the result's bits do. */
static int parts_of(const ferryi_cuda_gemm *g, int64_t count)
{
    const int64_t tiles = ((count + TILE - 1) / TILE) * ((g->n + TILE - 1) / TILE), wide = g->t == FERRY_F64 ? 8 : 4;
    const int64_t shortest = g->t == FERRY_BF16 ? 4 * TILE : TILE;
    int parts = 1;
    while (2 * parts <= MOST_PARTS && tiles * parts < TILE && g->k % (2 * parts) == 0 && g->k / (2 * parts) >= shortest &&
           2 * parts * count * g->n * wide <= PARTS_BYTES) {
        parts *= 2;
    }
    return parts;
}

/* Rows [from, from + count) of the result into a slab. */
static ferry_status gemm_slab(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g, int64_t from, int64_t count, void *slab)
{
    const int64_t each = (int64_t)ferry_dtype_bytes(g->t);
    const int parts = parts_of(g, count);
    ferryi_cuda_gemm part = *g;
    part.m = count;
    part.a = (const char *)g->a + from * each * (g->trans_a ? 1 : g->lda);
    part.c = slab;
    part.beta = 0;
    if (parts > 1) {
        part.c = s->scratch;
        part.k = g->k / parts;
        part.count = parts;
        part.step_a = part.k * (g->trans_a ? g->lda : 1);
        part.step_b = part.k * (g->trans_b ? 1 : g->ldb);
        part.step_c = count * g->n;
        part.wide_c = true;
    }
    ferry_status status = ferryi_cuda_gemm_run(s, &part);
    if (status == FERRY_OK && parts > 1) {
        status = ferryi_cuda_check(
            s->base.device, (cudaError_t)ferryi_cuda_sum_parts(s->stream, slab, s->scratch, count * g->n, parts, g->t),
            "adding up a gradient");
    }
    return status;
}

static ferry_status gemm_writing_c(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g)
{
    const int64_t row_bytes = g->n * (int64_t)ferry_dtype_bytes(g->t);
    slabs sizes = slabs_of(g->m, row_bytes, TILE, 1 / arithmetic_per_copy(g->t, g->k));
    ferry_status status = side_open(s);
    int64_t last = 0;
    for (int64_t from = 0, i = 0, count = 0; from < g->m && status == FERRY_OK; from += count, i++) {
        count = next_slab(&sizes, g->m - from);
        last = i;
        if (i >= SLABS) {
            status = ferryi_cuda_check(s->base.device, cudaStreamWaitEvent(s->stream, s->used[i % SLABS], 0),
                                       "ordering copies");
        }
        if (status == FERRY_OK) {
            status = gemm_slab(s, g, from, count, slab_at(s, i));
        }
        if (status == FERRY_OK) {
            status = follow(s, s->stream, s->ready[i % SLABS], s->side);
        }
        if (status == FERRY_OK) {
            char *to = (char *)g->c + from * row_bytes;
            int error = g->beta != 0 ? ferryi_cuda_stream_add(s->side, to, slab_at(s, i), count * g->n, g->t)
                                     : ferryi_cuda_stream_copy(s->side, to, slab_at(s, i), count * row_bytes);
            status = ferryi_cuda_check(s->base.device, (cudaError_t)error, "writing a gradient");
        }
        if (status == FERRY_OK) {
            status = ferryi_cuda_check(s->base.device, cudaEventRecord(s->used[i % SLABS], s->side), "ordering copies");
        }
    }
    if (status == FERRY_OK) { /* the side stream is in order: its last record covers all */
        status = ferryi_cuda_check(s->base.device, cudaStreamWaitEvent(s->stream, s->used[last % SLABS], 0),
                                   "ordering copies");
    }
    return status;
}

/* One product of dense matrices. */
static ferry_status gemm_anywhere(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g)
{
    int64_t each = (int64_t)ferry_dtype_bytes(g->t);
    if (g->m == 0 || g->n == 0) {
        return FERRY_OK;
    }
    if (g->k > 0 && g->bias == NULL && g->n * each <= SLAB_BYTES && (g->beta == 0 || g->beta == 1) && is_pinned(s, g->c)) {
        return gemm_writing_c(s, g);
    }
    if (g->k > 0 && is_pinned(s, g->b)) {
        /* Adding to the result costs reading and writing it: not for a result so wide that a slab is a short sum. Then
         * the columns of a slab have tiles enough. */
        const bool of_k = g->t != FERRY_BF16 && g->n * each * 2 * TILE <= SLAB_BYTES;
        if (of_k || g->k * each <= SLAB_BYTES) {
            return gemm_reading_b(s, g, of_k);
        }
    }
    return ferryi_cuda_gemm_run(s, g);
}

/* y = x * w + b */
static ferry_status linear(ferryi_cuda_stream *s, const ferry_kernel *k)
{
    ferryi_cuda_gemm g = {.t = k->dtype,
                          .trans_b = k->trans_b,
                          .m = k->m,
                          .n = k->n,
                          .k = k->k,
                          .alpha = 1,
                          .a = k->arg[1],
                          .b = k->arg[2],
                          .c = k->arg[0],
                          .bias = k->arg[3],
                          .lda = k->k,
                          .ldb = k->trans_b ? k->k : k->n,
                          .ldc = k->n,
                          .count = 1};
    return gemm_anywhere(s, &g);
}

/* dx[m,k] = dy[m,n] * w^T */
static ferry_status linear_dx(ferryi_cuda_stream *s, const ferry_kernel *k)
{
    ferryi_cuda_gemm g = {.t = k->dtype,
                          .trans_b = !k->trans_b,
                          .m = k->m,
                          .n = k->k,
                          .k = k->n,
                          .alpha = 1,
                          .beta = k->accumulate,
                          .a = k->arg[1],
                          .b = k->arg[2],
                          .c = k->arg[0],
                          .lda = k->n,
                          .ldb = k->trans_b ? k->k : k->n,
                          .ldc = k->k,
                          .count = 1};
    return gemm_anywhere(s, &g);
}

/* dw[k,n] = x^T * dy, or dw[n,k] = dy^T * x */
static ferry_status linear_dw(ferryi_cuda_stream *s, const ferry_kernel *k)
{
    ferryi_cuda_gemm g = {.t = k->dtype,
                          .trans_a = true,
                          .m = k->trans_b ? k->n : k->k,
                          .n = k->trans_b ? k->k : k->n,
                          .k = k->m,
                          .alpha = 1,
                          .beta = k->accumulate,
                          .a = k->trans_b ? k->arg[2] : k->arg[1],
                          .b = k->trans_b ? k->arg[1] : k->arg[2],
                          .c = k->arg[0],
                          .count = 1};
    g.lda = g.m;
    g.ldb = g.ldc = g.n;
    return gemm_anywhere(s, &g);
}

/* The longest batch dimension after joining is one call of the library, the others are loops. */
static ferry_status matmul(ferryi_cuda_stream *s, const ferry_kernel *k)
{
    int64_t each = (int64_t)ferry_dtype_bytes(k->dtype);
    ferryi_walk w = ferryi_walk_plain(k);
    if (!w.more || k->m == 0 || k->n == 0) {
        return FERRY_OK;
    }
    ferryi_walk_join(&w);
    int inner = 0;
    for (int i = 1; i < w.rank; i++) {
        inner = w.dim[i] > w.dim[inner] ? i : inner;
    }
    ferryi_cuda_gemm g = {.t = k->dtype,
                          .trans_a = k->trans_a,
                          .trans_b = k->trans_b,
                          .m = k->m,
                          .n = k->n,
                          .k = k->k,
                          .alpha = k->alpha,
                          .beta = k->accumulate,
                          .lda = k->trans_a ? k->m : k->k,
                          .ldb = k->trans_b ? k->k : k->n,
                          .ldc = k->n,
                          .step_a = w.stride[1][inner],
                          .step_b = w.stride[2][inner],
                          .step_c = w.stride[0][inner],
                          .count = w.dim[inner]};
    w.dim[inner] = 1;
    ferry_status status = FERRY_OK;
    for (ferryi_walk_start(&w); w.more && status == FERRY_OK; ferryi_walk_next(&w)) {
        g.c = (char *)k->arg[0] + w.at[0] * each;
        g.a = (const char *)k->arg[1] + w.at[1] * each;
        g.b = (const char *)k->arg[2] + w.at[2] * each;
        status = g.count == 1 ? gemm_anywhere(s, &g) : ferryi_cuda_gemm_run(s, &g);
    }
    return status;
}

ferry_status ferryi_cuda_product(ferryi_cuda_stream *s, const ferry_kernel *k)
{
    switch (k->op) {
    case FERRY_OP_LINEAR:
        return linear(s, k);
    case FERRY_OP_LINEAR_DX:
        return linear_dx(s, k);
    case FERRY_OP_LINEAR_DW:
        return linear_dw(s, k);
    default:
        return matmul(s, k);
    }
}
