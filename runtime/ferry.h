/* ferry.h - the public C API of libferry, the runtime that emitted schedules and user trainers link against.
 *
 * A device is opened by name ("host" or "cuda:N"). Work is enqueued on streams and ordered by events with the
 * semantics of CUDA: a stream runs its work in the order of the calls; an event that was never recorded counts as
 * complete; a wait refers to the latest record that was made before the call of the wait.
 *
 * Errors: every function that can fail returns a ferry_status; ferry_error() is the message of the last failure on the
 * calling thread. Output parameters are set to NULL first. A failure inside enqueued work (a token id out of range, say)
 * sticks to the device and is returned by the next ferry_stream_sync, ferry_event_sync or ferry_device_status.
 *
 * Threads: one thread enqueues on a device at a time; the work itself runs on the device's own threads. */
#ifndef FERRY_H
#define FERRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FERRY_VERSION "0.1.0"

typedef enum ferry_status {
    FERRY_OK = 0,
    FERRY_FAILED = 1,   /* the system or the device failed: memory, input/output, a kernel */
    FERRY_USAGE = 2,    /* a call or an option is wrong; no such file */
    FERRY_BAD_DATA = 4, /* data, weights or a checkpoint are wrong */
} ferry_status;

/* Message of the last failure on this thread, "" when there was none. Valid until the next failing call on it. */
const char *ferry_error(void);

/* ---- element types -------------------------------------------------------------------------------------------- */

typedef enum ferry_dtype {
    FERRY_F32,
    FERRY_F64,
    FERRY_F16,
    FERRY_BF16,
    FERRY_I64,
    FERRY_I32,
    FERRY_I16,
    FERRY_I8,
    FERRY_U64,
    FERRY_U32,
    FERRY_U16,
    FERRY_U8,
    FERRY_BOOL,
    FERRY_DTYPE_COUNT,
} ferry_dtype;

size_t ferry_dtype_bytes(ferry_dtype t);     /* bytes of one element, 0 for an unknown type */
const char *ferry_dtype_name(ferry_dtype t); /* "f32", "i64", ... */

/* ---- device, streams, events ---------------------------------------------------------------------------------- */

typedef struct ferry_device ferry_device;
typedef struct ferry_stream ferry_stream;
typedef struct ferry_event ferry_event;

typedef enum ferry_stream_kind {
    FERRY_STREAM_COMPUTE, /* forward and backward kernels */
    FERRY_STREAM_LOAD,    /* host to device copies */
    FERRY_STREAM_STORE,   /* device to host copies */
    FERRY_STREAM_UPDATE,  /* CPU work: norms and AdamW; a CPU thread on every backend */
} ferry_stream_kind;

/* name: "host" or "cuda:N". FERRY_USAGE: anything else. FERRY_FAILED: this build has no CUDA, or the driver, the GPU or the
 * cuBLAS library is missing; there is no fallback.
 * The caller closes streams, events, memory and pools before the device. */
ferry_status ferry_device_open(const char *name, ferry_device **out);
void ferry_device_close(ferry_device *d);
const char *ferry_device_name(const ferry_device *d);
ferry_status ferry_device_status(ferry_device *d); /* the first failure of enqueued work, if any; does not wait */

ferry_status ferry_stream_open(ferry_device *d, ferry_stream_kind kind, ferry_stream **out);
void ferry_stream_close(ferry_stream *s); /* waits for enqueued work; NULL is allowed */
ferry_status ferry_stream_sync(ferry_stream *s);
ferry_status ferry_stream_wait(ferry_stream *s, ferry_event *e); /* later work of s starts after e is complete */

ferry_status ferry_event_open(ferry_device *d, ferry_event **out);
void ferry_event_close(ferry_event *e);
ferry_status ferry_event_record(ferry_stream *s, ferry_event *e);
ferry_status ferry_event_sync(ferry_event *e); /* the calling thread waits */
/* Time of completion of the latest record, in nanoseconds of a monotonic clock. FERRY_USAGE before completion. */
ferry_status ferry_event_time_ns(ferry_event *e, int64_t *out);

/* ---- memory --------------------------------------------------------------------------------------------------- */

/* Pinned host memory, zeroed, aligned to 4096 bytes. */
ferry_status ferry_host_alloc(ferry_device *d, int64_t bytes, void **out);
void ferry_host_free(ferry_device *d, void *p);

/* A device pool: `bytes` of physical memory made of chunks (a multiple of the device's chunk; rounded up), mapped once
 * from offset 0. ferry_pool_at gives the address of a physical offset. ferry_pool_stitch gives one contiguous virtual
 * range over pieces that need not be adjacent: each piece starts at a multiple of the chunk and all but the last have a
 * length that is one. The pool owns the ranges; closing it unmaps and releases everything. */
typedef struct ferry_pool ferry_pool;
typedef struct ferry_piece {
    int64_t offset_bytes;
    int64_t bytes;
} ferry_piece;

int64_t ferry_device_chunk_bytes(const ferry_device *d);
ferry_status ferry_pool_open(ferry_device *d, int64_t bytes, ferry_pool **out);
void ferry_pool_close(ferry_pool *p);
void *ferry_pool_at(ferry_pool *p, int64_t offset_bytes);
ferry_status ferry_pool_stitch(ferry_pool *p, const ferry_piece *pieces, int count, void **out);
int64_t ferry_pool_bytes(const ferry_pool *p);           /* physical bytes that the pool holds */
int64_t ferry_device_peak_bytes(const ferry_device *d);  /* most bytes that the device's pools held at once */
/* Device memory that the backend holds beside the pools: a fixed scratch for each stream with kernels (made with
 * a COMPUTE stream, else with the first kernel), and the workspace of its matrix library. 0 on the host. The driver's own context is not in it. */
int64_t ferry_device_scratch_bytes(const ferry_device *d);

/* Copies, enqueued. h2d on a LOAD stream, d2h on a STORE stream, both also on a COMPUTE stream. The host side lies in memory
 * of ferry_host_alloc and the device side in a pool, or the call is FERRY_USAGE. */
ferry_status ferry_copy_h2d(ferry_stream *s, void *dst, const void *src, int64_t bytes);
ferry_status ferry_copy_d2h(ferry_stream *s, void *dst, const void *src, int64_t bytes);

/* `bytes` between ordinary host memory and a pool, through pinned memory of at most 4 MiB at a time. Both wait: for work that
 * s has to do before, and for the transfer. */
ferry_status ferry_device_write(ferry_stream *s, void *dst, const void *src, int64_t bytes);
ferry_status ferry_device_read(ferry_stream *s, void *dst, const void *src, int64_t bytes);

/* ---- kernels -------------------------------------------------------------------------------------------------- */

/* A kernel call as data: what the compiler makes of a node, and what a backend runs. The emitted schedule uses the named
 * functions below, which fill one of these. Pointers may point to device memory or to pinned host memory (DHA): a kernel
 * does not care. Matrices are row-major and dense. `accumulate`: the output is added to instead of written. */
enum { FERRY_MAX_RANK = 8, FERRY_MAX_ARGS = 10 };

typedef enum ferry_op {
#define OP(ID, name, outs, ins) FERRY_OP_##ID,
#include "ferry_ops.def"
#undef OP
    FERRY_OP_COUNT,
} ferry_op;

typedef enum ferry_fn {
    FERRY_FN_NONE,
    /* unary */
    FERRY_NEG, FERRY_ABS, FERRY_SQRT, FERRY_EXP, FERRY_LOG, FERRY_TANH, FERRY_ERF, FERRY_SIGMOID, FERRY_RELU,
    FERRY_RECIPROCAL, FERRY_SIN, FERRY_COS, FERRY_TAN, FERRY_ASIN, FERRY_ACOS, FERRY_ATAN, FERRY_SINH, FERRY_COSH,
    FERRY_ASINH, FERRY_ACOSH, FERRY_ATANH, FERRY_EXPM1, FERRY_SOFTPLUS, FERRY_SQUARE,
    FERRY_GELU /* x * Phi(x) */, FERRY_GELU_TANH /* its approximation by a tanh */, FERRY_SILU /* x * sigmoid(x) */,
    FERRY_FLOOR, FERRY_CEIL, FERRY_ROUND /* half to even */, FERRY_SIGN, /* these have the derivative 0 */
    FERRY_NOT,
    /* binary; FMOD has the sign of a */
    FERRY_ADD, FERRY_SUB, FERRY_MUL, FERRY_DIV, FERRY_POW, FERRY_MAX, FERRY_MIN, FERRY_FMOD,
    /* of whole numbers only; MOD has the sign of b; shifts by the type's bits and more give 0, or -1 of a negative number
     * that is shifted right */
    FERRY_MOD, FERRY_SHIFT_LEFT, FERRY_SHIFT_RIGHT, FERRY_BIT_AND, FERRY_BIT_OR, FERRY_BIT_XOR,
    /* comparisons and logic: inputs of the kernel's dtype, output bool */
    FERRY_EQUAL, FERRY_LESS, FERRY_LESS_EQUAL, FERRY_GREATER, FERRY_GREATER_EQUAL, FERRY_AND, FERRY_OR,
    /* reductions, beside FERRY_MAX and FERRY_MIN */
    FERRY_SUM, FERRY_MEAN,
    FERRY_FN_COUNT,
} ferry_fn;

const char *ferry_fn_name(ferry_fn f); /* "FERRY_TANH", as in C */

/* Geometry of CONV* and *POOL*. Of the arrays the first `rank` entries count. */
typedef struct ferry_window {
    int rank;              /* spatial dimensions, 1 to 3 */
    int64_t groups;        /* CONV*: channels in and out are split into this many that do not meet; poolings: 1 */
    int64_t in[3], out[3]; /* sizes of x and of y */
    int64_t size[3];       /* of the kernel */
    int64_t step[3];       /* stride of the window */
    int64_t pad[3];        /* positions before the input; negative: the input's first ones are skipped */
    int64_t dilation[3];   /* distance of the taps, 1 = neighbours */
    int64_t pad_end[3];    /* AVGPOOL with count_pad: positions after the input that count */
    bool count_pad;        /* AVGPOOL: padding counts in the mean */
} ferry_window;

/* Geometry of ATTENTION*. Arrays by ferry_attention_part: the first element of each part and its steps, in elements, from
 * batch to batch, head to head and row to row; the elements of a head are neighbours. The parts may lie anywhere: in one
 * array, head beside head, transposed. */
typedef enum ferry_attention_part { FERRY_Q, FERRY_K, FERRY_V, FERRY_Y } ferry_attention_part;
typedef struct ferry_attention_shape {
    int64_t batch, heads, kv_heads; /* heads / kv_heads heads of q in a row share one of k and v */
    int64_t rows, columns;          /* of q and y; of k and v */
    int64_t size, value_size;       /* of a head of q and k; of v and y */
    double scale;
    bool causal; /* row i sees the columns j <= i + past only */
    int64_t past;
    ferry_dtype mask_type; /* FERRY_BOOL: true where a column is seen; else the kernel's type: added to the scores */
    int64_t offset[4], stride[4][3];
    int64_t mask_stride[4]; /* of batch, head, row and column; 0 broadcasts */
} ferry_attention_shape;

/* Program of FUSED: steps from the first to the last, each a kernel of one element. A value is an input, 0 to
 * FERRY_PROGRAM_INPUTS - 1 for x0 to x6, or FERRY_PROGRAM_INPUTS + i for what step i computes. */
enum { FERRY_PROGRAM_OUTPUTS = 3, FERRY_PROGRAM_INPUTS = 7, FERRY_PROGRAM_STEPS = 16 };
typedef struct ferry_program_step {
    ferry_op op;  /* UNARY (a), UNARY_GRAD (a: dy, b: x, c: y), BINARY (a, b), BINARY_GRAD_A and _B (a: dy, b: a, c: b),
                   * WHERE (a: cond, b, c), COPY (b + alpha * a, b may be absent), FILL (alpha) */
    ferry_fn fn;
    int a, b, c;  /* values; -1 absent */
    double alpha;
} ferry_program_step;
typedef struct ferry_program {
    int steps;
    ferry_program_step step[FERRY_PROGRAM_STEPS];
    int out[FERRY_PROGRAM_OUTPUTS]; /* the value that y0, y1, y2 get */
    ferry_dtype type[FERRY_PROGRAM_OUTPUTS + FERRY_PROGRAM_INPUTS]; /* of the arguments: the kernel's, FERRY_BOOL, or beside
                                                                     * bf16 FERRY_F32 */
    int64_t offset[FERRY_PROGRAM_INPUTS];                 /* first element of each input */
    int64_t stride[FERRY_PROGRAM_INPUTS][FERRY_MAX_RANK]; /* its steps through dim */
} ferry_program;

typedef struct ferry_kernel {
    ferry_op op;
    ferry_fn fn;
    ferry_dtype dtype;  /* of every floating argument, but for statistics in bf16 (ferry_ops.def), and of the arithmetic */
    ferry_dtype dtype2; /* CAST: of the output; EMBEDDING*, XENT*: of the ids and labels (i64 or i32) */
    bool trans_a, trans_b, accumulate;
    bool reverse;                           /* TOPK: the smallest; ROTARY: its transpose */
    int64_t m, k, n;                        /* see each op in ferry_ops.def */
    int rank;                               /* of dim */
    int64_t dim[FERRY_MAX_RANK];            /* iteration space of strided ops; batch dimensions of MATMUL */
    int64_t stride[3][FERRY_MAX_RANK];      /* in elements; 0 broadcasts; which argument: see ferry_ops.def */
    int64_t offset[2];                      /* COPY: first element in y and in x */
    uint32_t axes;                          /* REDUCE: bit i set = dim[i] is reduced */
    double alpha;                           /* MATMUL and COPY: scale (1 = none); FILL: the value; DROPOUT: the share that is dropped;
                                             * MOVING_AVERAGE: the share that is kept */
    double eps;                             /* LAYERNORM, BATCHNORM* */
    int64_t ignore_index;                   /* XENT */
    uint64_t seed;                          /* DROPOUT: of the run */
    int64_t step, salt;                     /* DROPOUT: number of the training step; tells nodes apart */
    ferry_window window;                    /* CONV*, *POOL* */
    ferry_attention_shape attention;        /* ATTENTION* */
    ferry_program program;                  /* FUSED */
    void *arg[FERRY_MAX_ARGS];              /* outputs, then inputs, in the order of ferry_ops.def; NULL = absent */
} ferry_kernel;

typedef struct ferry_op_info {
    const char *name; /* "linear_dx": the named function is ferry_linear_dx */
    int n_out, n_in;
} ferry_op_info;
const ferry_op_info *ferry_op_get(ferry_op op);

/* Enqueues one kernel. Checks the sizes that it can check; never reads the data at the time of the call. */
ferry_status ferry_launch(ferry_stream *s, const ferry_kernel *call);

/* Bytes from arg[i] on that the call reads or writes (the highest touched byte plus 1); 0 when absent, -1 when a size or
 * stride is wrong (such a call is refused). A negative-offset access never occurs. Used for access checking and by the
 * compiler for accesses of steps. */
int64_t ferry_kernel_extent_bytes(const ferry_kernel *call, int arg);
/* Type of the elements of arg[i], which the op has. */
ferry_dtype ferry_kernel_arg_dtype(const ferry_kernel *call, int arg);

/* Named calls, for emitted code and for people. Shapes as in ferry_ops.def. flags: any of these. */
enum { FERRY_TRANS_A = 1, FERRY_TRANS_B = 2, FERRY_ACCUMULATE = 4, FERRY_REVERSE = 8 };

ferry_status ferry_linear(ferry_stream *s, ferry_dtype t, void *y, const void *x, const void *w, const void *b, int64_t m,
                          int64_t k, int64_t n, unsigned flags);
ferry_status ferry_linear_dx(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *w, int64_t m, int64_t k,
                             int64_t n, unsigned flags);
ferry_status ferry_linear_dw(ferry_stream *s, ferry_dtype t, void *dw, const void *x, const void *dy, int64_t m, int64_t k,
                             int64_t n, unsigned flags);
/* batch: rank dims, then for y, a, b the strides of each batch dimension in elements */
ferry_status ferry_matmul(ferry_stream *s, ferry_dtype t, void *y, const void *a, const void *b, int64_t m, int64_t k,
                          int64_t n, int rank, const int64_t *dim, const int64_t *y_stride, const int64_t *a_stride,
                          const int64_t *b_stride, double alpha, unsigned flags);
ferry_status ferry_unary(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *y, const void *x, int64_t n);
ferry_status ferry_unary_grad(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *dx, const void *dy, const void *x,
                              const void *y, int64_t n, unsigned flags);
ferry_status ferry_binary(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *y, const void *a, const void *b, int rank,
                          const int64_t *dim, const int64_t *a_stride, const int64_t *b_stride);
ferry_status ferry_binary_grad_a(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *g, const void *dy, const void *a,
                                 const void *b, int rank, const int64_t *dim, const int64_t *a_stride,
                                 const int64_t *b_stride);
ferry_status ferry_binary_grad_b(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *g, const void *dy, const void *a,
                                 const void *b, int rank, const int64_t *dim, const int64_t *a_stride,
                                 const int64_t *b_stride);
ferry_status ferry_where(ferry_stream *s, ferry_dtype t, void *y, const void *cond, const void *a, const void *b, int rank,
                         const int64_t *dim, const int64_t *cond_stride, const int64_t *a_stride, const int64_t *b_stride);
ferry_status ferry_reduce(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *y, const void *x, int rank, const int64_t *dim,
                          uint32_t axes, unsigned flags);
ferry_status ferry_copy(ferry_stream *s, ferry_dtype t, void *y, const void *x, int rank, const int64_t *dim,
                        int64_t y_offset, const int64_t *y_stride, int64_t x_offset, const int64_t *x_stride, double alpha,
                        unsigned flags);
ferry_status ferry_fill(ferry_stream *s, ferry_dtype t, void *y, double value, int64_t n);
ferry_status ferry_cast(ferry_stream *s, ferry_dtype to, void *y, ferry_dtype from, const void *x, int64_t n);
ferry_status ferry_softmax(ferry_stream *s, ferry_dtype t, void *y, const void *x, int64_t m, int64_t n);
ferry_status ferry_softmax_grad(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *y, int64_t m, int64_t n);
ferry_status ferry_layernorm(ferry_stream *s, ferry_dtype t, void *y, void *mean, void *rstd, const void *x,
                             const void *scale, const void *bias, int64_t m, int64_t n, double eps);
ferry_status ferry_layernorm_dx(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *x, const void *mean,
                                const void *rstd, const void *scale, int64_t m, int64_t n, unsigned flags);
ferry_status ferry_layernorm_dp(ferry_stream *s, ferry_dtype t, void *dscale, void *dbias, const void *dy, const void *x,
                                const void *mean, const void *rstd, int64_t m, int64_t n, unsigned flags);
ferry_status ferry_attention(ferry_stream *s, ferry_dtype t, void *y, void *lse, const void *q, const void *k,
                             const void *v, const void *mask, const ferry_attention_shape *shape);
ferry_status ferry_attention_grad(ferry_stream *s, ferry_dtype t, void *dq, void *dk, void *dv, const void *dy,
                                  const void *q, const void *k, const void *v, const void *y, const void *lse,
                                  const void *mask, const ferry_attention_shape *shape);
ferry_status ferry_embedding(ferry_stream *s, ferry_dtype t, void *y, const void *table, ferry_dtype id_type,
                             const void *ids, int64_t m, int64_t k, int64_t n);
ferry_status ferry_embedding_grad(ferry_stream *s, ferry_dtype t, void *dtable, const void *dy, ferry_dtype id_type,
                                  const void *ids, int64_t m, int64_t k, int64_t n, unsigned flags);
ferry_status ferry_xent(ferry_stream *s, ferry_dtype t, void *loss, void *lse, void *count, const void *logits,
                        ferry_dtype label_type, const void *labels, int64_t m, int64_t n, int64_t k, int64_t ignore_index);
ferry_status ferry_xent_grad(ferry_stream *s, ferry_dtype t, void *dlogits, const void *logits, const void *lse,
                             const void *count, ferry_dtype label_type, const void *labels, const void *dloss, int64_t m,
                             int64_t n, int64_t k, int64_t ignore_index);
ferry_status ferry_dropout(ferry_stream *s, ferry_dtype t, void *y, const void *x, int64_t n, double ratio, uint64_t seed,
                           int64_t step, int64_t salt, unsigned flags);
ferry_status ferry_ravel(ferry_stream *s, ferry_dtype id_type, void *y, const void *ids, int rank, const int64_t *dim,
                         const int64_t *y_base, const int64_t *ids_stride, int64_t count, const int64_t *sizes, int64_t unit);
ferry_status ferry_scatter(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *y, const void *data, const void *updates,
                           ferry_dtype id_type, const void *ids, int64_t m, int64_t k, int64_t n);
ferry_status ferry_scatter_grad(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *ddata, void *dupdates, const void *dy,
                                const void *data, const void *updates, const void *y, ferry_dtype id_type, const void *ids,
                                int64_t m, int64_t k, int64_t n);
ferry_status ferry_topk(ferry_stream *s, ferry_dtype t, void *ids, const void *x, int64_t m, int64_t n, int64_t k,
                        unsigned flags);

/* y0 to y2, then x0 to x6; NULL where there is none */
ferry_status ferry_fused(ferry_stream *s, ferry_dtype t, void *y0, void *y1, void *y2, const void *x0, const void *x1,
                         const void *x2, const void *x3, const void *x4, const void *x5, const void *x6, int rank,
                         const int64_t *dim, const ferry_program *program, unsigned flags);
ferry_status ferry_rotary(ferry_stream *s, ferry_dtype t, void *y, const void *x, const void *cosine, const void *sine, int rank,
                          const int64_t *dim, int64_t n, const int64_t *x_stride, const int64_t *angle_stride, unsigned flags);
ferry_status ferry_conv(ferry_stream *s, ferry_dtype t, void *y, const void *x, const void *w, const void *b, int64_t m,
                        int64_t k, int64_t n, const ferry_window *window);
ferry_status ferry_conv_dx(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *w, const void *b,
                           int64_t m, int64_t k, int64_t n, const ferry_window *window, unsigned flags);
ferry_status ferry_conv_dw(ferry_stream *s, ferry_dtype t, void *dw, const void *x, const void *dy, int64_t m, int64_t k,
                           int64_t n, const ferry_window *window, unsigned flags);
ferry_status ferry_maxpool(ferry_stream *s, ferry_dtype t, void *y, void *index, const void *x, int64_t m,
                           const ferry_window *window);
ferry_status ferry_maxpool_grad(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *index, int64_t m,
                                const ferry_window *window, unsigned flags);
ferry_status ferry_avgpool(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *y, const void *x, int64_t m,
                           const ferry_window *window);
ferry_status ferry_avgpool_grad(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *dx, const void *dy, int64_t m,
                                const ferry_window *window, unsigned flags);
ferry_status ferry_batchnorm(ferry_stream *s, ferry_dtype t, void *y, const void *x, const void *scale, const void *bias,
                             const void *mean, const void *var, int64_t m, int64_t n, int64_t k, double eps);
ferry_status ferry_batchnorm_dx(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *scale,
                                const void *var, int64_t m, int64_t n, int64_t k, double eps);
ferry_status ferry_batchnorm_dp(ferry_stream *s, ferry_dtype t, void *dscale, void *dbias, const void *dy, const void *x,
                                const void *mean, const void *var, int64_t m, int64_t n, int64_t k, double eps,
                                unsigned flags);
ferry_status ferry_batch_stats(ferry_stream *s, ferry_dtype t, void *mean, void *var, const void *x, int64_t m, int64_t n,
                               int64_t k);
ferry_status ferry_batchnorm_train_dx(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *x,
                                      const void *scale, const void *mean, const void *var, int64_t m, int64_t n, int64_t k,
                                      double eps);
/* momentum: the share that y keeps of itself */
ferry_status ferry_moving_average(ferry_stream *s, ferry_dtype t, void *y, const void *x, int64_t n, double momentum);

/* ---- the optimizer ------------------------------------------------------------------------------------------------ *
 * On an UPDATE stream: CPU work on host memory. ferry_sqnorm and ferry_adamw also run on a COMPUTE stream, on device memory
 * (or pinned memory, by DHA), with the same bits. */

typedef struct ferry_adamw_args {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step; /* 1, 2, ...: for the bias correction */
} ferry_adamw_args;

/* *out = sum of squares of g[0..n), in fp64, in a fixed order. */
ferry_status ferry_sqnorm(ferry_stream *s, ferry_dtype t, double *out, const void *g, int64_t n);
/* *norm = sqrt of the sum of parts[0..count) in order; *scale = clip > 0 && *norm > clip ? clip / (*norm + 1e-6) : 1
 * (PyTorch's clip_grad_norm_). */
ferry_status ferry_grad_norm(ferry_stream *s, double *norm, double *scale, const double *parts, int count, double clip);
/* Decoupled weight decay, as torch.optim.AdamW: p, m, v of type t are updated from g times *scale (NULL: 1). Scalar and
 * AVX2 versions give the same bits. */
ferry_status ferry_adamw(ferry_stream *s, ferry_dtype t, void *p, void *m, void *v, const void *g, const double *scale,
                         int64_t n, ferry_adamw_args args);
/* The same with a gradient in bf16: p, m and v are f32, and `rounded` gets the new p in bf16. */
ferry_status ferry_adamw_bf16(ferry_stream *s, float *p, float *m, float *v, void *rounded, const void *g,
                              const double *scale, int64_t n, ferry_adamw_args args);
/* A function called on the stream's thread; for hand-over and tests. Not called after a failure of the device, as all
 * enqueued work: who waits for it uses an event or a sync, which then say what failed. */
ferry_status ferry_stream_call(ferry_stream *s, void (*fn)(void *), void *arg);

/* ---- training data, weights, checkpoints, logs ------------------------------------------------------------------ */

/* One tensor by name in host memory. dims beyond rank are ignored. */
typedef struct ferry_tensor {
    const char *name;
    ferry_dtype dtype;
    int rank;
    int64_t dim[FERRY_MAX_RANK];
    void *data;
} ferry_tensor;

int64_t ferry_tensor_bytes(const ferry_tensor *t); /* -1 on overflow or a negative dimension */

/* .npy (version 1 to 3, C order, little endian). The file is mapped; *data is valid until close. */
typedef struct ferry_npy ferry_npy;
ferry_status ferry_npy_open(const char *path, ferry_npy **out);
void ferry_npy_close(ferry_npy *f);
const ferry_tensor *ferry_npy_tensor(const ferry_npy *f); /* name = path */
ferry_status ferry_npy_write(const char *path, const ferry_tensor *t);

/* safetensors. Reading maps the file and checks the header against the file's size: offsets inside, no overlap, sizes
 * equal to shape times type; FERRY_BAD_DATA names the tensor. Writing is atomic: temporary file, fsync, rename. */
typedef struct ferry_weights ferry_weights;
ferry_status ferry_weights_open(const char *path, ferry_weights **out);
void ferry_weights_close(ferry_weights *w);
int ferry_weights_count(const ferry_weights *w);
const ferry_tensor *ferry_weights_at(const ferry_weights *w, int i);
const ferry_tensor *ferry_weights_find(const ferry_weights *w, const char *name); /* NULL when absent */
const char *ferry_weights_meta(const ferry_weights *w, const char *key);          /* NULL when absent */
typedef struct ferry_meta {
    const char *key, *value;
} ferry_meta;
ferry_status ferry_weights_write(const char *path, const ferry_tensor *t, int count, const ferry_meta *meta, int meta_count);

/* Fills tensors (name, type, shape and data given) from a file, converting element types. Other tensors of the file are
 * ignored. FERRY_BAD_DATA names one that is missing or has another shape; nothing is written then. */
ferry_status ferry_weights_load(const char *path, const ferry_tensor *tensors, int count);

/* Converts n elements between types: floating ones among each other, rounded to the nearest, ties to even; whole numbers
 * and BOOL among each other. dst and src do not overlap. FERRY_USAGE: from floating to whole numbers or back.
 * FERRY_BAD_DATA names a whole number that `to` cannot hold; dst is then written in part. */
ferry_status ferry_convert(void *dst, ferry_dtype to, const void *src, ferry_dtype from, int64_t n);

/* Fills n elements with seeded counter-based random numbers, the same on every machine: N(mean, std). `name` enters the
 * seed, so that tensors differ. */
ferry_status ferry_random_normal(void *dst, ferry_dtype t, int64_t n, uint64_t seed, const char *name, double mean,
                                 double std);

/* Training batches from a folder: DIR/<input>.npy for each input (first axis = step, wrapping around; the rest must have
 * the input's shape), or DIR/tokens.bin (256 int32 header: 20240520, version 1 = uint16 or 2 = uint32, count) for inputs
 * input_ids [batch, seq] and labels (the next token): rows of seq+1 tokens in order, wrapping around at the last whole row.
 * `inputs` gives name, type and shape; data is ignored. FERRY_USAGE when the folder or a file is missing, FERRY_BAD_DATA for
 * a wrong one. An element type in the file other than the input's is taken where no value changes: whole numbers among each
 * other (a value that does not fit is an error of that batch), a floating type to a wider one; and f32 to f16 or bf16, which
 * NumPy lacks, rounded. Token ids are not compared with a vocabulary here: the kernels do that. */
typedef struct ferry_data ferry_data;
ferry_status ferry_data_open(const char *dir, const ferry_tensor *inputs, int count, ferry_data **out);
/* out[i] = the batch of input i for 0-based step `step`; valid until the next call or close. */
ferry_status ferry_data_batch(ferry_data *d, int64_t step, const void **out);
void ferry_data_close(ferry_data *d);

/* A checkpoint: DIR/checkpoint.safetensors with the parameters under their names, AdamW's state under "optimizer.m.NAME" and
 * "optimizer.v.NAME", and the metadata schema "ferryc/checkpoint/1" and step (steps done, decimal). params, m and v have
 * `count` tensors each; of m and v the names are not written, and one without a name and data stands for a frozen parameter,
 * which has no state. Saving makes DIR and the folders above it where they are missing,
 * and is atomic: after a failure the checkpoint before it is still whole. */
ferry_status ferry_checkpoint_save(const char *dir, const ferry_tensor *params, const ferry_tensor *m, const ferry_tensor *v,
                                   int count, int64_t step);
/* Copies a checkpoint into the tensors' data. The file has to hold these tensors with these types and shapes and no other;
 * nothing is converted. Nothing is written, neither data nor *step, unless all of it is right.
 * FERRY_USAGE: no such file. FERRY_BAD_DATA names the tensor, what was expected and what was found. */
ferry_status ferry_checkpoint_load(const char *dir, const ferry_tensor *params, const ferry_tensor *m, const ferry_tensor *v,
                                   int count, int64_t *step);

/* A recorder keeps when the parts of a step ran, over some consecutive steps, and writes run.yaml (schema ferryc/run/1,
 * schemas/run.md). A part is what one stream does in a row: the kernels of a layer in one direction, a load, a store, an
 * update. Begin and end are enqueued between the part's waits and its work, and after its work; each stream does its parts one
 * after the other. Nothing is read before ferry_recorder_write: recording costs two time stamps a part. */
typedef struct ferry_recorder ferry_recorder;
typedef struct ferry_part {
    const char *stream, *what, *of; /* "compute", "forward", "transformer.h.0.mlp"; kept, not copied */
} ferry_part;
/* Steps first_step .. first_step + steps - 1 are recorded, others cost nothing. */
ferry_status ferry_recorder_open(ferry_device *d, const ferry_part *parts, int count, int64_t first_step, int steps,
                                 ferry_recorder **out);
void ferry_recorder_close(ferry_recorder *r); /* NULL is allowed; before the device, after its streams */
/* Number of the step whose parts are enqueued next. NULL is allowed, here and in the next two: nothing is recorded. */
void ferry_recorder_step(ferry_recorder *r, int64_t step);
ferry_status ferry_recorder_begin(ferry_recorder *r, ferry_stream *s, int part);
ferry_status ferry_recorder_end(ferry_recorder *r, ferry_stream *s, int part);
/* The enqueued work is over. plan_hash: of the plan.yaml behind the schedule, 32 hexadecimal digits.
 * FERRY_USAGE: fewer than 2 whole steps were recorded.
 * FERRY_FAILED: times or the file. */
ferry_status ferry_recorder_write(const ferry_recorder *r, const char *path, const char *plan_hash);

/* The log of a run: one JSON object a line, {"step", "loss", "grad_norm", "ms", "bytes"}, floating numbers as %.17g in any
 * locale; one that is not finite is null, so that every line is JSON. Each line is written at once. */
typedef struct ferry_log ferry_log;
typedef struct ferry_log_line {
    int64_t step;     /* 1, 2, ... */
    double loss;
    double grad_norm; /* NAN when it was not computed */
    double ms;        /* wall time of the step */
    int64_t bytes;    /* ferry_device_peak_bytes */
} ferry_log_line;
/* append: add to an existing file (a resumed run), else start it anew. */
ferry_status ferry_log_open(const char *path, bool append, ferry_log **out);
ferry_status ferry_log_write(ferry_log *log, const ferry_log_line *line);
ferry_status ferry_log_close(ferry_log *log); /* the log is gone in any case; NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
