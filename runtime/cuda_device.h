/* cuda_device.h - what the C files of the CUDA backend share.
 *
 * The runtime library is linked statically, and needs nothing on the machine until a device is opened. The driver is
 * reached through it (cudaGetDriverEntryPoint), cuBLAS through dlopen: a program with this backend starts and trains on
 * the host where neither exists.
 *
 * Ordering. A record on any stream, of the GPU or of the CPU, raises a counter of that stream in pinned memory: a place
 * of its own, a number that only grows. "The event is complete" is "the counter has reached the number", whoever asks,
 * and a later record of the same event is another number. So
 *   GPU waits for GPU   by a CUDA event, which the record also sets
 *   CPU waits for GPU   the worker watches the counter, without a call into CUDA: nothing that the caller does inside
 *                       CUDA can hold it up
 *   GPU waits for CPU   cuStreamWaitValue64 on the counter
 * Streams of the GPU that wait so must not share a hardware queue with one they wait for; there are 8 queues, and a
 * schedule has three such streams. */
#ifndef FERRY_RUNTIME_CUDA_DEVICE_H
#define FERRY_RUNTIME_CUDA_DEVICE_H

#include "runtime/backend.h"
#include "runtime/cuda_kernels.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

enum {
    CUDA_COUNTERS = 1024, /* streams that can be open at once */
    CUDA_SLABS = 4,       /* see cuda_product.c */
};

typedef struct ferryi_cuda_counter {
    _Alignas(64) _Atomic(uint64_t) reached;
} ferryi_cuda_counter;

typedef struct ferryi_cuda_driver {
    __typeof__(&cuGetErrorString) error_string;
    __typeof__(&cuMemGetAllocationGranularity) granularity;
    __typeof__(&cuMemCreate) create;
    __typeof__(&cuMemRelease) release;
    __typeof__(&cuMemAddressReserve) reserve;
    __typeof__(&cuMemAddressFree) address_free;
    __typeof__(&cuMemMap) map;
    __typeof__(&cuMemUnmap) unmap;
    __typeof__(&cuMemSetAccess) set_access;
    __typeof__(&cuStreamWaitValue64) wait_value;
    __typeof__(&cuStreamWriteValue64) write_value;
} ferryi_cuda_driver;

typedef struct ferryi_cuda_blas ferryi_cuda_blas; /* cuda_blas.c: the functions of the library */
typedef struct ferryi_cuda_dnn ferryi_cuda_dnn;   /* cuda_dnn.c */

typedef struct ferryi_cuda_device {
    ferry_device base;
    int ordinal, processors;
    ferryi_cuda_driver driver;
    ferryi_cuda_blas *blas;
    ferryi_cuda_dnn *dnn;             /* NULL before the first convolution */
    ferryi_cuda_counter *counter;     /* pinned, CUDA_COUNTERS of them */
    uint64_t recorded[CUDA_COUNTERS]; /* by the caller: what each counter will reach */
    bool counter_used[CUDA_COUNTERS]; /* by an open stream. A free one keeps its number: old events stay complete */
    ferryi_cuda_report *report;       /* pinned */
    uint32_t *claim;                  /* device memory */
    atomic_int lost;                  /* the GPU no longer answers: nothing will complete */
    atomic_llong scratch_bytes;       /* device memory beside the pools */
    cudaStream_t own;                 /* for fills, clocks and questions */
    cudaEvent_t anchor;               /* completed at anchor_ns; see ferryi_cuda_event_time_ns */
    int64_t anchor_ns;
    struct cuda_block *blocks; /* of pinned memory: cuda_memory.c */
} ferryi_cuda_device;

typedef struct ferryi_cuda_stream {
    ferry_stream base;
    int counter;
    cudaStream_t stream;  /* of the GPU; NULL for an UPDATE stream */
    ferry_stream *worker; /* an UPDATE stream: a CPU thread, as on the host */
    void *blas;           /* cublasHandle_t, made with the stream or at its first product */
    void *workspace;      /* of cuBLAS */
    void *dnn;            /* cudnnHandle_t, made at its first convolution */
    void *scratch;        /* see cuda_launch.c; made with the stream or at its first kernel */
    void *epilogues;      /* products with a bias whose algorithm is known; cuda_blas.c */
    cudaStream_t side;    /* moves what a product reads or writes by DHA; cuda_product.c */
    cudaEvent_t ready[CUDA_SLABS], used[CUDA_SLABS];
    uint64_t *arrived; /* device memory, of the slabs of weights: how many blocks have brought each */
    uint64_t expected[FERRYI_MOST_SLABS]; /* what these numbers become */
} ferryi_cuda_stream;

static inline ferryi_cuda_device *ferryi_cuda_of(ferry_device *d)
{
    return (ferryi_cuda_device *)d;
}

/* cuda_device.c */

/* Makes the device current on the calling thread: each entry of the backend's table begins with it. */
ferry_status ferryi_cuda_enter(ferry_device *d);
/* FERRY_OK for cudaSuccess; else FERRY_FAILED with "WHAT: CUDA's words", CUDA's memory of the error is wiped, and if
 * the GPU is lost the device fails. */
ferry_status ferryi_cuda_check(ferry_device *d, cudaError_t error, const char *what);
ferry_status ferryi_cuda_check_driver(ferry_device *d, CUresult result, const char *what);
/* Makes the report of a kernel, if there is one, the device's failure. Any thread; calls nothing of CUDA. */
void ferryi_cuda_poll(ferry_device *d);
/* Asks the GPU whether it still works. */
void ferryi_cuda_question(ferry_device *d);

/* cuda_memory.c: as in ferryi_backend */
ferry_status ferryi_cuda_host_alloc(ferry_device *d, int64_t bytes, void **out);
void ferryi_cuda_host_free(ferry_device *d, void *p);
ferry_status ferryi_cuda_physical_create(ferry_device *d, int64_t bytes, void **out);
void ferryi_cuda_physical_release(ferry_device *d, void *physical);
ferry_status ferryi_cuda_range_reserve(ferry_device *d, int64_t bytes, void **out);
void ferryi_cuda_range_free(ferry_device *d, void *range, int64_t bytes);
ferry_status ferryi_cuda_range_map(ferry_device *d, void *at, int64_t bytes, void *physical, int64_t offset_bytes);
void ferryi_cuda_range_unmap(ferry_device *d, void *at, int64_t bytes);
/* Device memory that belongs to no pool; it counts in scratch_bytes. */
ferry_status ferryi_cuda_scratch_alloc(ferry_device *d, int64_t bytes, void **out);
void ferryi_cuda_scratch_free(ferry_device *d, void *p, int64_t bytes);

/* cuda_stream.c: as in ferryi_backend */
ferry_status ferryi_cuda_stream_open(ferry_device *d, ferry_stream_kind kind, ferry_stream **out);
void ferryi_cuda_stream_close(ferry_stream *s);
ferry_status ferryi_cuda_stream_sync(ferry_stream *s);
ferry_status ferryi_cuda_stream_wait(ferry_stream *s, ferry_event *e);
ferry_status ferryi_cuda_stream_task(ferry_stream *s, void (*fn)(void *), const void *args, size_t args_bytes);
ferry_status ferryi_cuda_event_open(ferry_device *d, ferry_event **out);
void ferryi_cuda_event_close(ferry_event *e);
ferry_status ferryi_cuda_event_record(ferry_stream *s, ferry_event *e);
ferry_status ferryi_cuda_event_stamp(ferry_stream *s, ferry_event *e);
ferry_status ferryi_cuda_event_sync(ferry_event *e);
ferry_status ferryi_cuda_event_time_ns(ferry_event *e, int64_t *out);

/* cuda_blas.c */
ferry_status ferryi_cuda_blas_open(ferryi_cuda_device *d); /* FERRY_FAILED names the library and what is missing */
void ferryi_cuda_blas_close(ferryi_cuda_device *d);
ferry_status ferryi_cuda_blas_stream_open(ferryi_cuda_stream *s);
void ferryi_cuda_blas_stream_close(ferryi_cuda_stream *s);

/* A row-major product c = alpha * op(a) * op(b) + beta * c of t, F32, F64 or BF16, for `count` matrices at equal distances.
 * op(a) is [m,k], op(b) [k,n], c [m,n]; lda, ldb, ldc: elements from row to row as they are stored. wide_c: c is f32 where
 * t is BF16. listed: a, b and c are lists of `count` matrices, in device memory. bias: [n], added to each row, or NULL;
 * beta is 0 with it, and count 1. */
typedef struct ferryi_cuda_gemm {
    ferry_dtype t;
    bool trans_a, trans_b;
    int64_t m, n, k;
    double alpha, beta;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int64_t step_a, step_b, step_c, count;
    const void *bias;
    bool wide_c, listed;
} ferryi_cuda_gemm;
ferry_status ferryi_cuda_gemm_run(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g);

/* cuda_dnn.c: CONV, CONV_DX, CONV_DW by cuDNN. *done = false: it does not take this call, or is not there. */
ferry_status ferryi_cuda_dnn_run(ferryi_cuda_stream *s, const ferryi_cuda_call *c, const ferry_kernel *k, bool *done);
void ferryi_cuda_dnn_stream_close(ferryi_cuda_stream *s);
void ferryi_cuda_dnn_close(ferryi_cuda_device *d);

/* cuda_product.c: LINEAR, LINEAR_DX, LINEAR_DW, MATMUL */
ferry_status ferryi_cuda_product(ferryi_cuda_stream *s, const ferry_kernel *k);
void ferryi_cuda_product_close(ferryi_cuda_stream *s);

/* cuda_attention_products.c: ATTENTION and ATTENTION_GRAD of f32. *done = false: it does not take this call. */
ferry_status ferryi_cuda_attention_products(ferryi_cuda_stream *s, const ferryi_cuda_call *c, const ferry_kernel *k, bool *done);

/* cuda_launch.c */
enum { CUDA_SCRATCH_BYTES = 64 << 20 };
ferry_status ferryi_cuda_launch(ferry_stream *s, const ferry_kernel *k);
ferry_status ferryi_cuda_sqnorm(ferry_stream *s, const struct ferryi_update *u);
ferry_status ferryi_cuda_adamw(ferry_stream *s, const struct ferryi_update *u);
ferry_status ferryi_cuda_copy(ferry_stream *s, void *dst, const void *src, int64_t bytes);

#endif
