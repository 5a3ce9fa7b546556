/* cuda_product.c - matrix products of the CUDA backend, and what they read and write by DHA.
 *
 * A library product reads its operands again for each row of tiles and may read its result, which costs nothing in
 * device memory and everything across the link. So a weight matrix in pinned memory is brought over in slabs, each byte
 * once: a kernel of few blocks on the stream's side stream copies slab i + 1 while the product of slab i runs. A slab
 * gives some columns of the result; no sum is split. A result in pinned memory goes back in the same way: slabs of its
 * rows are computed in device memory and written by a streaming kernel.
 *
 * The slabs take turns in four buffers; ready and used events, one each a buffer, keep copy and product apart. */
#include "runtime/cuda_device.h"
#include "runtime/walk.h"

enum { SLABS = 4, SLAB_BYTES = 8 << 20, LEAST_SLAB_BYTES = 2 << 20 };

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

static ferry_status side_open(ferryi_cuda_stream *s)
{
    ferry_device *d = s->base.device;
    ferry_status status = FERRY_OK;
    if (s->side == NULL) {
        status = ferryi_cuda_check(d, cudaStreamCreateWithFlags(&s->side, cudaStreamNonBlocking), "making a stream");
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

/* Of `count` rows or columns of each_bytes each, how many make a slab; in whole lines of 32 where there are so many. */
static int64_t slab_size(int64_t count, int64_t each_bytes)
{
    int64_t bytes = count * each_bytes / SLABS;
    bytes = bytes < LEAST_SLAB_BYTES ? LEAST_SLAB_BYTES : bytes > SLAB_BYTES ? SLAB_BYTES : bytes;
    int64_t most = bytes / each_bytes;
    most = most > 32 ? most / 32 * 32 : most;
    return most < count ? most : count;
}

static ferry_status gemm_reading_b(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g)
{
    int64_t each = (int64_t)ferry_dtype_bytes(g->t), most = slab_size(g->n, g->k * each);
    ferry_status status = side_open(s);
    if (status == FERRY_OK) { /* the side stream may read what the stream has waited for */
        status = follow(s, s->stream, s->ready[0], s->side);
    }
    for (int64_t from = 0, i = 0; from < g->n && status == FERRY_OK; from += most, i++) {
        int64_t count = g->n - from < most ? g->n - from : most;
        int b = (int)(i % SLABS);
        ferryi_cuda_gemm part = *g;
        part.n = count;
        part.c = (char *)g->c + from * each;
        part.b = slab_at(s, b);
        part.ldb = g->trans_b ? g->k : count;
        if (i >= SLABS) {
            status = ferryi_cuda_check(s->base.device, cudaStreamWaitEvent(s->side, s->used[b], 0), "ordering copies");
        }
        if (status == FERRY_OK && g->trans_b) { /* columns of the result are rows of b */
            status = ferryi_cuda_check(s->base.device,
                                       (cudaError_t)ferryi_cuda_stream_copy(s->side, slab_at(s, b),
                                                                            (const char *)g->b + from * g->k * each,
                                                                            count * g->k * each),
                                       "reading a weight");
        } else if (status == FERRY_OK) {
            status = ferryi_cuda_check(s->base.device,
                                       (cudaError_t)ferryi_cuda_stream_rows(s->side, slab_at(s, b),
                                                                            (const char *)g->b + from * each, g->k,
                                                                            count * each, g->n * each),
                                       "reading a weight");
        }
        if (status == FERRY_OK) {
            status = follow(s, s->side, s->ready[b], s->stream);
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

static ferry_status gemm_writing_c(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g)
{
    int64_t each = (int64_t)ferry_dtype_bytes(g->t), row_bytes = g->n * each, most = slab_size(g->m, row_bytes);
    ferry_status status = side_open(s);
    int last = 0;
    for (int64_t from = 0, i = 0; from < g->m && status == FERRY_OK; from += most, i++) {
        int64_t count = g->m - from < most ? g->m - from : most;
        int b = last = (int)(i % SLABS);
        if (i >= SLABS) {
            status =
                ferryi_cuda_check(s->base.device, cudaStreamWaitEvent(s->stream, s->used[b], 0), "ordering copies");
        }
        ferryi_cuda_gemm part = *g;
        part.m = count;
        part.a = (const char *)g->a + from * each * (g->trans_a ? 1 : g->lda);
        part.c = slab_at(s, b);
        part.beta = 0;
        if (status == FERRY_OK) {
            status = ferryi_cuda_gemm_run(s, &part);
        }
        if (status == FERRY_OK) {
            status = follow(s, s->stream, s->ready[b], s->side);
        }
        if (status == FERRY_OK) {
            char *to = (char *)g->c + from * row_bytes;
            int error = g->beta != 0 ? ferryi_cuda_stream_add(s->side, to, slab_at(s, b), count * g->n, g->t)
                                     : ferryi_cuda_stream_copy(s->side, to, slab_at(s, b), count * row_bytes);
            status = ferryi_cuda_check(s->base.device, (cudaError_t)error, "writing a gradient");
        }
        if (status == FERRY_OK) {
            status = ferryi_cuda_check(s->base.device, cudaEventRecord(s->used[b], s->side), "ordering copies");
        }
    }
    if (status == FERRY_OK) { /* the side stream is in order: its last record covers all */
        status = ferryi_cuda_check(s->base.device, cudaStreamWaitEvent(s->stream, s->used[last], 0), "ordering copies");
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
    if (g->k > 0 && g->n * each <= SLAB_BYTES && (g->beta == 0 || g->beta == 1) && is_pinned(s, g->c)) {
        return gemm_writing_c(s, g);
    }
    if (g->k > 0 && g->k * each <= SLAB_BYTES && is_pinned(s, g->b)) {
        return gemm_reading_b(s, g);
    }
    return ferryi_cuda_gemm_run(s, g);
}

/* y = x * w + b: the rows of y start as the bias. */
static ferry_status linear(ferryi_cuda_stream *s, const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->arg[3] != NULL && k->m > 0 && k->n > 0) {
        ferry_kernel rows = {.op = FERRY_OP_COPY, .dtype = k->dtype, .rank = 2, .alpha = 1};
        rows.dim[0] = k->m;
        rows.dim[1] = k->n;
        rows.stride[0][0] = k->n;
        rows.stride[0][1] = rows.stride[1][1] = 1;
        rows.arg[0] = k->arg[0];
        rows.arg[1] = k->arg[3];
        ferry_status status =
            ferryi_cuda_check(s->base.device, (cudaError_t)ferryi_cuda_copy_kernel(c, &rows), "kernel linear");
        if (status != FERRY_OK) {
            return status;
        }
    }
    ferryi_cuda_gemm g = {.t = k->dtype,
                          .trans_b = k->trans_b,
                          .m = k->m,
                          .n = k->n,
                          .k = k->k,
                          .alpha = 1,
                          .beta = k->arg[3] != NULL,
                          .a = k->arg[1],
                          .b = k->arg[2],
                          .c = k->arg[0],
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

ferry_status ferryi_cuda_product(ferryi_cuda_stream *s, const ferryi_cuda_call *c, const ferry_kernel *k)
{
    switch (k->op) {
    case FERRY_OP_LINEAR:
        return linear(s, c, k);
    case FERRY_OP_LINEAR_DX:
        return linear_dx(s, k);
    case FERRY_OP_LINEAR_DW:
        return linear_dw(s, k);
    default:
        return matmul(s, k);
    }
}
