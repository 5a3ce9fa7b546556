/* cuda_kernels.h - the kernels of the CUDA backend as C sees them.
 *
 * Each function enqueues what its op means (ferry_ops.def) on one CUDA stream and returns a cudaError_t as int, 0 when
 * all went well. The call was checked (kernel_check.c). Pointers are device memory or pinned host memory. Every result
 * depends on the call alone: sums are taken in a fixed order, and there are no floating atomics. */
#ifndef FERRY_RUNTIME_CUDA_KERNELS_H
#define FERRY_RUNTIME_CUDA_KERNELS_H

#include "runtime/ferry.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a kernel found wrong with its data; only the first one is kept. The report lies in pinned memory, the claim that
 * makes one thread its only writer in device memory, where atomics work. */
typedef enum ferryi_cuda_fault {
    FERRYI_FAULT_ROW = 1, /* a: the id, b: rows */
    FERRYI_FAULT_LABEL,   /* a: the label, b: classes, c: the label that is ignored */
    FERRYI_FAULT_INDEX,   /* a: the index, b: elements of the axis */
    FERRYI_FAULT_PLACE,   /* a: the place, b: elements */
    FERRYI_FAULT_VALUE,   /* a, b: the operands of a whole-number function that has no value */
} ferryi_cuda_fault;

typedef struct ferryi_cuda_report {
    int64_t ready; /* written last */
    int64_t fault, op, fn, dtype, position, a, b, c;
} ferryi_cuda_report;

typedef struct ferryi_cuda_call {
    void *stream;               /* cudaStream_t */
    uint32_t *claim;            /* device memory */
    ferryi_cuda_report *report; /* pinned */
    int processors;
    void *scratch; /* device memory of this stream, for one call at a time */
    int64_t scratch_bytes;
} ferryi_cuda_call;

/* cuda_packed.cu: true when it has run the call; false: it is for the function of its op. *error: a cudaError_t. */
bool ferryi_cuda_packed(const ferryi_cuda_call *c, const ferry_kernel *k, int *error);

/* cuda_elementwise.cu */
int ferryi_cuda_unary(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_unary_grad(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_binary(const ferryi_cuda_call *c, const ferry_kernel *k); /* and its gradients */
int ferryi_cuda_dropout(const ferryi_cuda_call *c, const ferry_kernel *k);

/* cuda_fused.cu */
int ferryi_cuda_fused(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_rotary(const ferryi_cuda_call *c, const ferry_kernel *k);

/* cuda_move.cu: any type */
int ferryi_cuda_where(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_copy_kernel(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_fill(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_cast(const ferryi_cuda_call *c, const ferry_kernel *k);
/* What crosses the link does so once, by few blocks with wide accesses: the rest of the GPU is left to other kernels.
 * y = x; rows that lie pitch_bytes apart in x, close together in y; y + x of n elements. */
/* each of the rows of y, which begin `pitch` elements apart, = x[n] */
int ferryi_cuda_same_rows(void *stream, void *y, const void *x, int64_t rows, int64_t n, int64_t pitch, ferry_dtype t);
int ferryi_cuda_stream_copy(void *stream, void *y, const void *x, int64_t bytes);
int ferryi_cuda_stream_rows(void *stream, void *y, const void *x, int64_t rows, int64_t row_bytes, int64_t pitch_bytes);
/* Slabs one after another, by FERRYI_SLAB_BLOCKS blocks, each of which adds 1 to arrived[i] when its part of slab i lies in
 * `to`. Addresses and lengths are multiples of 16 bytes; the rows lie pitch_bytes apart in `from`. */
enum { FERRYI_SLAB_BLOCKS = 8, FERRYI_MOST_SLABS = 24 };
typedef struct ferryi_cuda_slab {
    const void *from;
    void *to;
    int64_t rows, row_bytes;
} ferryi_cuda_slab;
typedef struct ferryi_cuda_slabs {
    int count;
    int64_t pitch_bytes;
    uint64_t *arrived; /* device memory */
    ferryi_cuda_slab slab[FERRYI_MOST_SLABS];
} ferryi_cuda_slabs;
int ferryi_cuda_stream_slabs(void *stream, const ferryi_cuda_slabs *s);
int ferryi_cuda_stream_add(void *stream, void *y, const void *x, int64_t n, ferry_dtype t);
/* y = the sum of `parts` arrays of n elements that lie one behind the other in x: f32 where t is bf16 */
int ferryi_cuda_sum_parts(void *stream, void *y, const void *x, int64_t n, int parts, ferry_dtype t);

/* cuda_reduce.cu */
int ferryi_cuda_reduce(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_layernorm_dp(const ferryi_cuda_call *c, const ferry_kernel *k);

/* cuda_rows.cu */
int ferryi_cuda_softmax(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_softmax_grad(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_layernorm(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_layernorm_dx(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_xent(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_xent_grad(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_topk(const ferryi_cuda_call *c, const ferry_kernel *k);

/* cuda_attention.cu */
int ferryi_cuda_attention(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_attention_grad(const ferryi_cuda_call *c, const ferry_kernel *k);

/* cuda_attention_scores.cu: a piece of an attention of f32, rows [row, row + rows) of some heads before column `columns`. Heads
 * are in the order of the members of a group, and each member's in that of pairs of a batch entry and a key head: head t is
 * member t / pairs of pair pair + t % pairs. */
typedef enum ferryi_score_list {
    FERRYI_LIST_Q,
    FERRYI_LIST_K,
    FERRYI_LIST_V,
    FERRYI_LIST_Y, /* of the forward pass */
    FERRYI_LIST_DY,
    FERRYI_LIST_DQ,
    FERRYI_LIST_DK,
    FERRYI_LIST_DV,
    FERRYI_LIST_SCORES,
    FERRYI_LIST_SLOPES,
    FERRYI_SCORE_LISTS,
} ferryi_score_list;
typedef struct ferryi_cuda_scores {
    int64_t pair, pairs, group;
    int64_t row, rows, columns;
    float *scores; /* [head, row, column], scaled; become weights */
    float *slopes; /* ATTENTION_GRAD: dy v^T; become the gradients of q k^T */
    void **list;   /* where each head's matrix begins, list_step pointers for each list */
    int64_t list_step;
} ferryi_cuda_scores;
int ferryi_cuda_score_lists(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_cuda_scores *s);
int ferryi_cuda_softmax_scores(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_cuda_scores *s);
int ferryi_cuda_softmax_slopes(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_cuda_scores *s);

/* cuda_index.cu */
int ferryi_cuda_embedding(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_embedding_grad(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_ravel(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_scatter(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_scatter_grad(const ferryi_cuda_call *c, const ferry_kernel *k);
/* Bytes of scratch that the calls with ids take to sort them; the others need 1 MiB at most. */
int64_t ferryi_cuda_sort_bytes(int64_t ids);

/* cuda_update.cu: the arithmetic of adam.h. parts: a double for each block of FERRYI_SQUARE_BLOCK elements, device memory. */
struct ferryi_update;
int ferryi_cuda_sqnorm_kernel(void *stream, const struct ferryi_update *u, double *parts);
int ferryi_cuda_adamw_kernel(void *stream, const struct ferryi_update *u, int processors);

/* cuda_window.cu */
int ferryi_cuda_conv(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_conv_dx(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_conv_dw(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_maxpool(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_maxpool_grad(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_avgpool(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_avgpool_grad(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_batchnorm(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_batchnorm_dx(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_batchnorm_dp(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_batch_stats(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_batchnorm_train_dx(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_moving_average(const ferryi_cuda_call *c, const ferry_kernel *k);

#ifdef __cplusplus
}
#endif
#endif
