/* cuda_product.c - matrix products of the CUDA backend, and what they read and write by DHA.
 *
 * A library product reads its operands again for each row of tiles and may read its result, which costs nothing in
 * device memory and everything across the link. So a weight matrix in pinned memory is brought over in slabs, each byte
 * once: kernels of few blocks on side streams copy the next slabs while the product of a slab runs. A slab gives some
 * columns of the result; no sum over a weight is split. A result in pinned memory goes back in the same way: slabs of its
 * rows are computed in device memory and written by a streaming kernel.
 *
 * Copy and product are a pipeline of two stages. What the first slab takes in the first stage and the last one in the
 * second is hidden behind nothing, so where the second stage is the longer one, slabs begin small and grow, else they
 * shrink towards the end. Two side streams take turns: one copy starts while the one before it drains.
 *
 * The slabs take turns in four buffers; ready and used events, one each a buffer, keep copy and product apart. */
#include "runtime/cuda_device.h"
#include "runtime/walk.h"

enum { SLABS = CUDA_SLABS, SLAB_BYTES = 8 << 20, LEAST_SLAB_BYTES = 512 << 10, TILE = 128, MOST_PARTS = 16 };

/* Where the slabs lie in the stream's scratch: in its second half (cuda_launch.c). */
static char *slab_at(const ferryi_cuda_stream *s, int i)
{
    return (char *)s->scratch + CUDA_SCRATCH_BYTES / 2 + (int64_t)i * SLAB_BYTES;
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
    int least = 0, greatest = 0;
    if (s->side[CUDA_SIDES - 1] == NULL) {
        status = ferryi_cuda_check(d, cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
    }
    for (int i = 0; i < CUDA_SIDES && status == FERRY_OK; i++) {
        if (s->side[i] == NULL) {
            status = ferryi_cuda_check(d, cudaStreamCreateWithPriority(&s->side[i], cudaStreamNonBlocking, greatest),
                                       "making a stream");
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
    for (int i = 0; i < CUDA_SIDES; i++) {
        if (s->side[i] != NULL) {
            (void)ferryi_cuda_check(s->base.device, cudaStreamDestroy(s->side[i]), "closing a stream");
        }
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

/* How long the arithmetic of a product takes in units of the copy of its matrix across the link: operations a byte over
 * what GPUs of this generation do while the link moves a byte. Only the sizes of slabs depend on it. */
static double arithmetic_per_copy(ferry_dtype t, int64_t rows)
{
    const double per_byte = t == FERRY_BF16 ? 11000 : 850;
    return 2 * (double)rows / (double)ferry_dtype_bytes(t) / per_byte;
}

/* Rows or columns of the next slab: `rest` of each_bytes each are left, the slab before had `previous`. ratio: of the
 * second stage's time to the first's. In whole tiles where there are so many. */
static int64_t next_slab(int64_t rest, int64_t previous, int64_t each_bytes, double ratio)
{
    int64_t least = (LEAST_SLAB_BYTES + each_bytes - 1) / each_bytes, most = SLAB_BYTES / each_bytes, size;
    if (ratio > 1) {
        size = previous == 0 ? least : (int64_t)((double)previous * (ratio < 2 ? ratio : 2));
    } else {
        size = (int64_t)((double)rest * (ratio < 0.5 ? 0.5 : ratio < 0.75 ? 1 - ratio : 0.25));
    }
    size = size < least ? least : size;
    size = size > TILE / 2 ? (size + TILE / 2) / TILE * TILE : size;
    size = size < most ? size : most >= TILE ? most / TILE * TILE : most;
    return rest - size < least / 2 && rest <= most ? rest : size < rest ? size : rest;
}

static ferry_status read_slab(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g, int64_t from, int64_t count, void *to,
                              cudaStream_t side)
{
    int64_t each = (int64_t)ferry_dtype_bytes(g->t);
    const char *b = g->b;
    int error = g->trans_b /* columns of the result are rows of b */
                    ? ferryi_cuda_stream_copy(side, to, b + from * g->k * each, count * g->k * each)
                    : ferryi_cuda_stream_rows(side, to, b + from * each, g->k, count * each, g->n * each);
    return ferryi_cuda_check(s->base.device, (cudaError_t)error, "reading a weight");
}

static ferry_status gemm_reading_b(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g)
{
    int64_t each = (int64_t)ferry_dtype_bytes(g->t), count = 0;
    const double ratio = arithmetic_per_copy(g->t, g->m);
    ferry_status status = side_open(s);
    for (int i = 0; i < CUDA_SIDES && status == FERRY_OK; i++) { /* they may read what the stream has waited for */
        status = i == 0 ? follow(s, s->stream, s->ready[0], s->side[0])
                        : ferryi_cuda_check(s->base.device, cudaStreamWaitEvent(s->side[i], s->ready[0], 0),
                                            "ordering copies");
    }
    for (int64_t from = 0, i = 0; from < g->n && status == FERRY_OK; from += count, i++) {
        count = next_slab(g->n - from, count, g->k * each, ratio);
        int b = (int)(i % SLABS);
        cudaStream_t side = s->side[i % CUDA_SIDES];
        ferryi_cuda_gemm part = *g;
        part.n = count;
        part.c = (char *)g->c + from * each;
        part.bias = g->bias != NULL ? (const char *)g->bias + from * each : NULL;
        part.b = slab_at(s, b);
        part.ldb = g->trans_b ? g->k : count;
        if (i >= SLABS) {
            status = ferryi_cuda_check(s->base.device, cudaStreamWaitEvent(side, s->used[b], 0), "ordering copies");
        }
        if (status == FERRY_OK) {
            status = read_slab(s, g, from, count, slab_at(s, b), side);
        }
        if (status == FERRY_OK) {
            status = follow(s, side, s->ready[b], s->stream);
        }
        if (status == FERRY_OK) {
            status = ferryi_cuda_gemm_run(s, &part);
        }
        if (status == FERRY_OK) {
            status = ferryi_cuda_check(s->base.device, cudaEventRecord(s->used[b], s->stream), "ordering copies");
        }
    }
    return status;
}

/* In how many parts the long sum of a slab of the result is added up side by side: a slab of few tiles would leave most
 * of the GPU idle. Depends on the sizes alone, as the result's bits do. The parts are f32 (f64) and fit into a slab. */
static int parts_of(const ferryi_cuda_gemm *g, int64_t count)
{
    int64_t tiles = ((count + TILE - 1) / TILE) * ((g->n + TILE - 1) / TILE), wide = g->t == FERRY_F64 ? 8 : 4;
    int parts = 1;
    while (2 * parts <= MOST_PARTS && tiles * parts < 128 && g->k % (2 * parts) == 0 && g->k / (2 * parts) >= 4 * TILE &&
           2 * parts * count * g->n * wide <= SLAB_BYTES) {
        parts *= 2;
    }
    return parts;
}

/* Rows [from, from + count) of the result into a slab, in `parts` sums of equal size. */
static ferry_status gemm_slab(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g, int64_t from, int64_t count, int parts,
                              void *to)
{
    int64_t each = (int64_t)ferry_dtype_bytes(g->t);
    ferryi_cuda_gemm part = *g;
    part.m = count;
    part.a = (const char *)g->a + from * each * (g->trans_a ? 1 : g->lda);
    part.c = to;
    part.beta = 0;
    if (parts > 1) {
        part.k = g->k / parts;
        part.count = parts;
        part.step_a = part.k * (g->trans_a ? g->lda : 1);
        part.step_b = part.k * (g->trans_b ? 1 : g->ldb);
        part.step_c = count * g->n;
        part.wide_c = true;
    }
    return ferryi_cuda_gemm_run(s, &part);
}

static ferry_status gemm_writing_c(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g)
{
    int64_t row_bytes = g->n * (int64_t)ferry_dtype_bytes(g->t), count = 0, slabs = 0;
    const double ratio = 1 / arithmetic_per_copy(g->t, g->k);
    ferry_status status = side_open(s);
    for (int64_t from = 0; from < g->m && status == FERRY_OK; from += count, slabs++) {
        count = next_slab(g->m - from, count, row_bytes, ratio);
        int b = (int)(slabs % SLABS), parts = parts_of(g, count);
        cudaStream_t side = s->side[slabs % CUDA_SIDES];
        if (slabs >= SLABS) {
            status =
                ferryi_cuda_check(s->base.device, cudaStreamWaitEvent(s->stream, s->used[b], 0), "ordering copies");
        }
        if (status == FERRY_OK) {
            status = gemm_slab(s, g, from, count, parts, slab_at(s, b));
        }
        if (status == FERRY_OK) {
            status = follow(s, s->stream, s->ready[b], side);
        }
        if (status == FERRY_OK) {
            char *to = (char *)g->c + from * row_bytes;
            int error = parts > 1 || g->beta != 0
                            ? ferryi_cuda_stream_sum(side, to, slab_at(s, b), count * g->n, parts, g->beta != 0, g->t)
                            : ferryi_cuda_stream_copy(side, to, slab_at(s, b), count * row_bytes);
            status = ferryi_cuda_check(s->base.device, (cudaError_t)error, "writing a gradient");
        }
        if (status == FERRY_OK) {
            status = ferryi_cuda_check(s->base.device, cudaEventRecord(s->used[b], side), "ordering copies");
        }
    }
    for (int64_t i = slabs < CUDA_SIDES ? 0 : slabs - CUDA_SIDES; i < slabs && status == FERRY_OK; i++) {
        /* each side stream is in order: its last record covers all of it */
        status = ferryi_cuda_check(s->base.device, cudaStreamWaitEvent(s->stream, s->used[i % SLABS], 0),
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
    if (g->k > 0 && g->k * each <= SLAB_BYTES && is_pinned(s, g->b)) {
        return gemm_reading_b(s, g);
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
