/* gpu.h - what the measuring bench asks of a GPU beside libferry: the records of its activity, and what it is.
 *
 * CUPTI records when each kernel and each copy started and ended on the GPU. Every run gets a number, an external
 * correlation id: CUPTI ties it to the calls made meanwhile, and these to the kernels and copies that they caused, on
 * whatever stream. The library is looked for when a trace is opened: programs start without it. */
#ifndef FERRY_PROFILER_GPU_H
#define FERRY_PROFILER_GPU_H

#include "base/base.h"

/* What the GPU did for one run. */
typedef struct GpuRun {
    int64_t start_ns, end_ns; /* of the first and the last; equal when there was nothing. The GPU's clock */
    int64_t kernels, copies;
    int64_t kernel_ns, copy_ns; /* sums; kernels on two streams can run at once */
} GpuRun;

typedef struct GpuTrace GpuTrace;
/* One at a time. ST_FAILED names the library and what is wrong with it. Recording is off. */
Status gpu_trace_open(Diag *d, GpuTrace **out);
void gpu_trace_close(GpuTrace *t); /* NULL is allowed */
/* Starts to record, or goes on, and forgets what was. Recording goes on until stop: to begin and to end it takes long. */
Status gpu_trace_start(GpuTrace *t);
Status gpu_trace_stop(GpuTrace *t);
/* Calls between these belong to the run of this number, from 0. */
Status gpu_trace_run(GpuTrace *t, int number);
Status gpu_trace_run_end(GpuTrace *t);
/* All work has been waited for. run[0..count) by number. A record that was lost is an error. */
Status gpu_trace_collect(GpuTrace *t, GpuRun *run, int count);

/* The GPU that is current on this thread. name is in the arena; free_bytes: what the process can still allocate. */
Status gpu_describe(Diag *d, const char *device, char *name, size_t name_bytes, int64_t *free_bytes);

#endif
