/* cuda_launch.c - which kernel runs a call on the GPU, and what it finds in the stream's scratch.
 *
 * Each stream that runs kernels has a fixed scratch: a part that kernels work in, a part for inputs that are staged,
 * and slabs for products (cuda_product.c). Calls of one stream run one after the other and use it in turn.
 *
 * Kernels take pinned memory as it is. Where an op reads an input again and again - the bias of a product, the scale of
 * a normalization, a factor that is broadcast - it is first copied into the scratch, so that it crosses the link once.
 */
#include "runtime/adam.h"
#include "runtime/cuda_device.h"

#include <stdio.h>

enum {
    WORK_BYTES = CUDA_SCRATCH_BYTES / 4,
    STAGED_BYTES = CUDA_SCRATCH_BYTES / 4,
    ALIGN_BYTES = 256,
};

static bool is_float(ferry_dtype t)
{
    return t == FERRY_F32 || t == FERRY_F64 || t == FERRY_BF16;
}

static bool is_product(ferry_op op)
{
    return op == FERRY_OP_LINEAR || op == FERRY_OP_LINEAR_DX || op == FERRY_OP_LINEAR_DW || op == FERRY_OP_MATMUL;
}

/* FERRY_USAGE names what the GPU has no kernel for. */
static ferry_status check_types(const ferry_kernel *k)
{
    bool any = k->op == FERRY_OP_WHERE || k->op == FERRY_OP_FILL || k->op == FERRY_OP_CAST ||
               k->op == FERRY_OP_EMBEDDING || k->op == FERRY_OP_RAVEL ||
               (k->op == FERRY_OP_COPY && k->alpha == 1 && !k->accumulate) ||
               (k->op == FERRY_OP_SCATTER && k->fn == FERRY_FN_NONE);
    bool whole =
        k->op == FERRY_OP_UNARY || k->op == FERRY_OP_BINARY || k->op == FERRY_OP_REDUCE || k->op == FERRY_OP_TOPK;
    if (any || is_float(k->dtype) || (whole && k->dtype != FERRY_F16)) {
        return FERRY_OK;
    }
    return ferryi_fail(FERRY_USAGE, "kernel %s: the cuda device does not compute in %s; use f32, f64 or bf16",
                       ferry_op_get(k->op)->name, ferry_dtype_name(k->dtype));
}

/* ---- staging ---------------------------------------------------------------------------------------------------- */

/* Does the op read argument i more than once? Weights of products have their own way. */
static bool is_read_again(const ferry_kernel *k, int i)
{
    switch (k->op) {
    case FERRY_OP_LINEAR:
        return i == 3;
    case FERRY_OP_LAYERNORM:
        return i == 4 || i == 5;
    case FERRY_OP_LAYERNORM_DX:
        return i == 5;
    case FERRY_OP_CONV:
    case FERRY_OP_CONV_DX:
        return i == 2 || i == 3;
    case FERRY_OP_BATCHNORM:
        return i >= 2;
    case FERRY_OP_BATCHNORM_DX:
        return i >= 2;
    case FERRY_OP_BINARY:
    case FERRY_OP_FUSED:
        return true;
    case FERRY_OP_ROTARY:
        return i >= 2;
    case FERRY_OP_BINARY_GRAD_A:
    case FERRY_OP_BINARY_GRAD_B:
        return i >= 2;
    default:
        return false;
    }
}

static ferry_status stage_inputs(ferryi_cuda_stream *s, ferry_kernel *k)
{
    const ferry_op_info *info = ferry_op_get(k->op);
    int64_t used = 0;
    for (int i = info->n_out; i < info->n_out + info->n_in; i++) {
        ferryi_region r;
        if (k->arg[i] == NULL || !is_read_again(k, i) || !ferryi_region_find(s->base.device, k->arg[i], &r) ||
            r.kind != FERRYI_PINNED) {
            continue;
        }
        int64_t bytes = ferry_kernel_extent_bytes(k, i);
        if (bytes > STAGED_BYTES - used) {
            continue; /* read again and again, and right all the same */
        }
        void *to = (char *)s->scratch + WORK_BYTES + used;
        ferry_status status = ferryi_cuda_check(
            s->base.device, (cudaError_t)ferryi_cuda_stream_copy(s->stream, to, k->arg[i], bytes), "staging an input");
        if (status != FERRY_OK) {
            return status;
        }
        used += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
        k->arg[i] = to;
    }
    return FERRY_OK;
}

/* ---- launching -------------------------------------------------------------------------------------------------- */

typedef int (*kernel_function)(const ferryi_cuda_call *c, const ferry_kernel *k);

static const kernel_function functions[FERRY_OP_COUNT] = {
    [FERRY_OP_UNARY] = ferryi_cuda_unary,
    [FERRY_OP_UNARY_GRAD] = ferryi_cuda_unary_grad,
    [FERRY_OP_BINARY] = ferryi_cuda_binary,
    [FERRY_OP_BINARY_GRAD_A] = ferryi_cuda_binary,
    [FERRY_OP_BINARY_GRAD_B] = ferryi_cuda_binary,
    [FERRY_OP_WHERE] = ferryi_cuda_where,
    [FERRY_OP_REDUCE] = ferryi_cuda_reduce,
    [FERRY_OP_COPY] = ferryi_cuda_copy_kernel,
    [FERRY_OP_FILL] = ferryi_cuda_fill,
    [FERRY_OP_CAST] = ferryi_cuda_cast,
    [FERRY_OP_SOFTMAX] = ferryi_cuda_softmax,
    [FERRY_OP_SOFTMAX_GRAD] = ferryi_cuda_softmax_grad,
    [FERRY_OP_LAYERNORM] = ferryi_cuda_layernorm,
    [FERRY_OP_LAYERNORM_DX] = ferryi_cuda_layernorm_dx,
    [FERRY_OP_LAYERNORM_DP] = ferryi_cuda_layernorm_dp,
    [FERRY_OP_ATTENTION] = ferryi_cuda_attention,
    [FERRY_OP_ATTENTION_GRAD] = ferryi_cuda_attention_grad,
    [FERRY_OP_EMBEDDING] = ferryi_cuda_embedding,
    [FERRY_OP_EMBEDDING_GRAD] = ferryi_cuda_embedding_grad,
    [FERRY_OP_XENT] = ferryi_cuda_xent,
    [FERRY_OP_XENT_GRAD] = ferryi_cuda_xent_grad,
    [FERRY_OP_DROPOUT] = ferryi_cuda_dropout,
    [FERRY_OP_RAVEL] = ferryi_cuda_ravel,
    [FERRY_OP_SCATTER] = ferryi_cuda_scatter,
    [FERRY_OP_SCATTER_GRAD] = ferryi_cuda_scatter_grad,
    [FERRY_OP_TOPK] = ferryi_cuda_topk,
    [FERRY_OP_FUSED] = ferryi_cuda_fused,
    [FERRY_OP_ROTARY] = ferryi_cuda_rotary,
    [FERRY_OP_CONV] = ferryi_cuda_conv,
    [FERRY_OP_CONV_DX] = ferryi_cuda_conv_dx,
    [FERRY_OP_CONV_DW] = ferryi_cuda_conv_dw,
    [FERRY_OP_MAXPOOL] = ferryi_cuda_maxpool,
    [FERRY_OP_MAXPOOL_GRAD] = ferryi_cuda_maxpool_grad,
    [FERRY_OP_AVGPOOL] = ferryi_cuda_avgpool,
    [FERRY_OP_AVGPOOL_GRAD] = ferryi_cuda_avgpool_grad,
    [FERRY_OP_BATCHNORM] = ferryi_cuda_batchnorm,
    [FERRY_OP_BATCHNORM_DX] = ferryi_cuda_batchnorm_dx,
    [FERRY_OP_BATCHNORM_DP] = ferryi_cuda_batchnorm_dp,
    [FERRY_OP_BATCH_STATS] = ferryi_cuda_batch_stats,
    [FERRY_OP_BATCHNORM_TRAIN_DX] = ferryi_cuda_batchnorm_train_dx,
    [FERRY_OP_MOVING_AVERAGE] = ferryi_cuda_moving_average,
};

/* Has the device failed already? Then work is skipped. */
static bool has_failed(ferry_device *d)
{
    ferryi_cuda_poll(d);
    return atomic_load_explicit(&d->failed, memory_order_relaxed) != 0;
}

static ferry_status check_scratch(const ferry_kernel *k)
{
    bool sorts = k->op == FERRY_OP_EMBEDDING_GRAD || k->op == FERRY_OP_SCATTER || k->op == FERRY_OP_SCATTER_GRAD;
    if (!sorts || (k->m <= INT32_MAX && k->k <= INT32_MAX && ferryi_cuda_sort_bytes(k->m) <= WORK_BYTES)) {
        return FERRY_OK;
    }
    return ferryi_fail(
        FERRY_USAGE, "kernel %s: %lld ids of %lld rows are more than the cuda device sorts in its scratch of %d bytes",
        ferry_op_get(k->op)->name, (long long)k->m, (long long)k->k, WORK_BYTES);
}

ferry_status ferryi_cuda_launch(ferry_stream *stream, const ferry_kernel *call)
{
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    ferryi_cuda_device *d = ferryi_cuda_of(stream->device);
    const char *name = ferry_op_get(call->op)->name;
    if (s->worker != NULL) {
        return ferryi_fail(FERRY_USAGE, "kernel %s on an update stream, which is a CPU thread", name);
    }
    ferry_status status = check_types(call);
    if (status == FERRY_OK && functions[call->op] == NULL && !is_product(call->op)) {
        status = ferryi_fail(FERRY_FAILED, "operator %s has no CUDA kernel yet", name);
    }
    if (status == FERRY_OK) {
        status = check_scratch(call);
    }
    if (status != FERRY_OK || has_failed(stream->device)) {
        return status;
    }
    status = ferryi_cuda_enter(stream->device);
    if (status == FERRY_OK && s->scratch == NULL) {
        status = ferryi_cuda_scratch_alloc(stream->device, CUDA_SCRATCH_BYTES, &s->scratch);
    }
    ferry_kernel k = *call;
    if (status == FERRY_OK) {
        status = stage_inputs(s, &k);
    }
    if (status != FERRY_OK) {
        return status;
    }
    const ferryi_cuda_call c = {s->stream, d->claim, d->report, d->processors, s->scratch, WORK_BYTES};
    if (is_product(k.op)) {
        return ferryi_cuda_product(s, &k);
    }
    if (k.op == FERRY_OP_CONV || k.op == FERRY_OP_CONV_DX || k.op == FERRY_OP_CONV_DW) {
        bool done;
        status = ferryi_cuda_dnn_run(s, &c, &k, &done);
        if (status != FERRY_OK || done) {
            return status;
        }
    }
    if (k.op == FERRY_OP_ATTENTION || k.op == FERRY_OP_ATTENTION_GRAD) {
        bool done;
        status = ferryi_cuda_attention_products(s, &c, &k, &done);
        if (status != FERRY_OK || done) {
            return status;
        }
    }
    char what[64];
    snprintf(what, sizeof(what), "kernel %s", name);
    int error;
    if (!ferryi_cuda_packed(&c, &k, &error)) {
        error = functions[k.op](&c, &k);
    }
    return ferryi_cuda_check(stream->device, (cudaError_t)error, what);
}

/* A stream that can run kernels now: entered, with its scratch. *run: false when the device has failed. */
static ferry_status ready(ferry_stream *stream, bool *run)
{
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    *run = !has_failed(stream->device);
    if (!*run) {
        return FERRY_OK;
    }
    ferry_status status = ferryi_cuda_enter(stream->device);
    if (status == FERRY_OK && s->scratch == NULL) {
        status = ferryi_cuda_scratch_alloc(stream->device, CUDA_SCRATCH_BYTES, &s->scratch);
    }
    return status;
}

ferry_status ferryi_cuda_sqnorm(ferry_stream *stream, const ferryi_update *u)
{
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    bool run;
    if (u->n / FERRYI_SQUARE_BLOCK >= WORK_BYTES / (int64_t)sizeof(double)) {
        return ferryi_fail(FERRY_USAGE, "ferry_sqnorm: %lld elements are more than the cuda device sums at a time",
                           (long long)u->n);
    }
    ferry_status status = ready(stream, &run);
    if (status != FERRY_OK || !run) {
        return status;
    }
    return ferryi_cuda_check(stream->device, (cudaError_t)ferryi_cuda_sqnorm_kernel(s->stream, u, s->scratch),
                             "a sum of squares");
}

ferry_status ferryi_cuda_adamw(ferry_stream *stream, const ferryi_update *u)
{
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    bool run;
    ferry_status status = ready(stream, &run);
    if (status != FERRY_OK || !run) {
        return status;
    }
    int processors = ferryi_cuda_of(stream->device)->processors;
    return ferryi_cuda_check(stream->device, (cudaError_t)ferryi_cuda_adamw_kernel(s->stream, u, processors),
                             "an update");
}

ferry_status ferryi_cuda_copy(ferry_stream *stream, void *dst, const void *src, int64_t bytes)
{
    ferryi_cuda_stream *s = (ferryi_cuda_stream *)stream;
    if (has_failed(stream->device)) {
        return FERRY_OK;
    }
    ferry_status status = ferryi_cuda_enter(stream->device);
    return status != FERRY_OK
               ? status
               : ferryi_cuda_check(stream->device,
                                   cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDefault, s->stream), "a copy");
}
