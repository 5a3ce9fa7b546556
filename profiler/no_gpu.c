/* no_gpu.c - gpu.h in a build without CUDA. No device is opened there, so these only say why. */
#include "profiler/gpu.h"

#ifndef FERRY_CUDA

static Status without(Diag *d)
{
    diag_fail(d, ST_FAILED, "this build of ferryc has no CUDA");
    return diag_hint(d, "build it where nvcc is installed, or profile with --device host or --device model:FILE.yaml");
}

Status gpu_trace_open(Diag *d, GpuTrace **out)
{
    *out = NULL;
    return without(d);
}

void gpu_trace_close(GpuTrace *t)
{
    (void)t;
}

Status gpu_trace_start(GpuTrace *t)
{
    (void)t;
    return ST_FAILED;
}

Status gpu_trace_stop(GpuTrace *t)
{
    (void)t;
    return ST_FAILED;
}

Status gpu_trace_run(GpuTrace *t, int number)
{
    (void)t;
    (void)number;
    return ST_FAILED;
}

Status gpu_trace_run_end(GpuTrace *t)
{
    (void)t;
    return ST_FAILED;
}

Status gpu_trace_collect(GpuTrace *t, GpuRun *run, int count)
{
    (void)t;
    (void)run;
    (void)count;
    return ST_FAILED;
}

Status gpu_describe(Diag *d, const char *device, char *name, size_t name_bytes, int64_t *free_bytes)
{
    (void)device;
    (void)name;
    (void)name_bytes;
    *free_bytes = 0;
    return without(d);
}

#endif
