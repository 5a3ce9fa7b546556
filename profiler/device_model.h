/* device_model.h - a device described by numbers, and what it takes for a kernel by these numbers.
 *
 * The model is a roofline with a link. Each kernel takes a launch, and then the longer of its arithmetic (operations
 * over peak rate times the efficiency of its class) and its traffic (bytes over the memory's rate). Under DHA the link
 * is a third roof: reads stream in while the kernel computes, so it takes the longer of both. Writes leave at the end
 * of each tile of the result and hide less well: `write_overlap_permille` is the share of the shorter of the two that
 * hides behind the longer one. All arithmetic is on integers and rounds up, so that the same file gives the same times
 * everywhere. */
#ifndef FERRY_PROFILER_DEVICE_MODEL_H
#define FERRY_PROFILER_DEVICE_MODEL_H

#include "profiler/make.h"

/* Rates fit 10^9: with times below PROFILE_MAX_NS and bytes below PROFILE_MAX_BYTES no product overflows unnoticed. */
#define DEVICE_MAX_RATE INT64_C(1000000000)

enum { DEVICE_PRECISIONS = 3 };

typedef enum WorkClass {
    WORK_PRODUCT,     /* LINEAR, LINEAR_DX, LINEAR_DW, CONV, CONV_DX, CONV_DW */
    WORK_BATCHED,     /* MATMUL */
    WORK_ELEMENTWISE, /* all others */
    WORK_CLASS_COUNT
} WorkClass;

typedef struct PrecisionRates {
    ferry_dtype dtype;
    bool known;                  /* in the file */
    int64_t product_gflop_per_s; /* peak of matrix products */
    int64_t vector_gflop_per_s;  /* peak of everything else */
    int64_t update_mparam_per_s; /* AdamW on the CPU, all workers, state of this precision (bf16: fp32 state) */
} PrecisionRates;

typedef struct LinkPath {
    int64_t latency_ns, mb_per_s;
} LinkPath;

struct DeviceModel {
    const char *file;
    DeviceFacts facts;
    PrecisionRates precision[DEVICE_PRECISIONS];
    int64_t efficiency_permille[WORK_CLASS_COUNT];
    int64_t launch_ns;
    int64_t memory_mb_per_s; /* as reached, not the data sheet's */
    LinkPath h2d, d2h, dha_read, dha_write;
    DhaTiles tiles;
    int64_t write_overlap_permille;
    int64_t cpu_launch_ns; /* one call on the update stream */
    int64_t cpu_memory_mb_per_s;
};

/* The row of the type, NULL for a type without one. */
PrecisionRates *device_precision(DeviceModel *m, ferry_dtype t);

/* amount / ns as a rate of a device file: 1 to DEVICE_MAX_RATE. */
int64_t device_rate(int64_t amount, int64_t ns);
/* The path on which two sizes take these times. */
LinkPath device_fit_path(int64_t small_bytes, int64_t small_ns, int64_t large_bytes, int64_t large_ns);

/* The parts of a kernel's time, for tests and for the sum over a segment. */
typedef struct KernelTime {
    int64_t kernel_ns; /* launch and the longer of arithmetic and traffic, everything in device memory */
    int64_t read_ns;   /* the link, by parameters in host memory; 0 when it reads none */
    int64_t grad_read_ns, grad_write_ns;
    DhaBytes dha;
} KernelTime;
Status device_kernel_time(Diag *d, const DeviceModel *m, const PrecisionRates *r, const Graph *g, const Node *n,
                          KernelTime *out);
/* The kernel with parameters and gradients placed so. */
int64_t device_placed_ns(const DeviceModel *m, const KernelTime *t, Where params, Where grads);

#endif
