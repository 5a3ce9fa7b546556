/* cuda_device.c - the CUDA backend: its table, opening a GPU, and errors. See cuda_device.h. */
#include "runtime/cuda_device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 2 << 20 };

/* ---- errors ----------------------------------------------------------------------------------------------------- */

ferry_status ferryi_cuda_enter(ferry_device *d)
{
    cudaError_t error = cudaSetDevice(ferryi_cuda_of(d)->ordinal);
    return error == cudaSuccess ? FERRY_OK : ferryi_cuda_check(d, error, "choosing the GPU");
}

/* Errors of the GPU itself come back from every later call, so that a question without any other reason to fail tells
 * them from errors of one call. */
void ferryi_cuda_question(ferry_device *device)
{
    ferryi_cuda_device *d = ferryi_cuda_of(device);
    if (d->own == NULL || atomic_load(&d->lost) != 0) {
        return;
    }
    cudaError_t error = cudaStreamQuery(d->own);
    if (error == cudaSuccess || error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return;
    }
    ferryi_device_fail(device, FERRY_FAILED, "device '%s': the GPU failed: %s (%s)", device->name,
                       cudaGetErrorString(error), cudaGetErrorName(error));
    atomic_store(&d->lost, 1);
}

ferry_status ferryi_cuda_check(ferry_device *d, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return FERRY_OK;
    }
    (void)cudaGetLastError();
    ferryi_cuda_question(d);
    return ferryi_fail(FERRY_FAILED, "device '%s': %s: %s (%s)", d->name, what, cudaGetErrorString(error),
                       cudaGetErrorName(error));
}

ferry_status ferryi_cuda_check_driver(ferry_device *device, CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) {
        return FERRY_OK;
    }
    const char *text = NULL;
    ferryi_cuda_of(device)->driver.error_string(result, &text);
    ferryi_cuda_question(device);
    return ferryi_fail(FERRY_FAILED, "device '%s': %s: %s (CUresult %d)", device->name, what,
                       text != NULL ? text : "unknown error", (int)result);
}

/* ---- reports of kernels ----------------------------------------------------------------------------------------- */

/* The same words as on the host. */
void ferryi_cuda_poll(ferry_device *d)
{
    const ferryi_cuda_report *r = ferryi_cuda_of(d)->report;
    if (r == NULL || __atomic_load_n(&r->ready, __ATOMIC_ACQUIRE) == 0) {
        return;
    }
    const char *op = ferry_op_get((ferry_op)r->op)->name;
    switch ((ferryi_cuda_fault)r->fault) {
    case FERRYI_FAULT_ROW:
        ferryi_device_fail(d, FERRY_BAD_DATA,
                           "kernel %s: id %lld at position %lld is out of range: the table has %lld rows", op,
                           (long long)r->a, (long long)r->position, (long long)r->b);
        break;
    case FERRYI_FAULT_LABEL:
        ferryi_device_fail(d, FERRY_BAD_DATA,
                           "kernel %s: label %lld at position %lld is out of range: there are %lld classes, and %lld "
                           "is ignored",
                           op, (long long)r->a, (long long)r->position, (long long)r->b, (long long)r->c);
        break;
    case FERRYI_FAULT_INDEX:
        ferryi_device_fail(d, FERRY_BAD_DATA,
                           "kernel %s: index %lld at position %lld is out of range: the axis has %lld elements", op,
                           (long long)r->a, (long long)r->position, (long long)r->b);
        break;
    case FERRYI_FAULT_PLACE:
        ferryi_device_fail(d, FERRY_BAD_DATA, "kernel %s: index %lld is outside of %lld elements", op, (long long)r->a,
                           (long long)r->b);
        break;
    case FERRYI_FAULT_VALUE:
        ferryi_device_fail(d, FERRY_BAD_DATA, "kernel %s: %s of %lld and %lld at element %lld has no value in %s", op,
                           ferry_fn_name((ferry_fn)r->fn), (long long)r->a, (long long)r->b, (long long)r->position,
                           ferry_dtype_name((ferry_dtype)r->dtype));
        break;
    }
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

typedef struct entry {
    const char *name;
    size_t at; /* in ferryi_cuda_driver */
    unsigned version;
} entry;

/* Of the oldest version of CUDA with the signature that cuda.h declares. */
static ferry_status find_driver(ferryi_cuda_device *d)
{
    static const entry entries[] = {
        {"cuGetErrorString", offsetof(ferryi_cuda_driver, error_string), 12000},
        {"cuMemGetAllocationGranularity", offsetof(ferryi_cuda_driver, granularity), 12000},
        {"cuMemCreate", offsetof(ferryi_cuda_driver, create), 12000},
        {"cuMemRelease", offsetof(ferryi_cuda_driver, release), 12000},
        {"cuMemAddressReserve", offsetof(ferryi_cuda_driver, reserve), 12000},
        {"cuMemAddressFree", offsetof(ferryi_cuda_driver, address_free), 12000},
        {"cuMemMap", offsetof(ferryi_cuda_driver, map), 12000},
        {"cuMemUnmap", offsetof(ferryi_cuda_driver, unmap), 12000},
        {"cuMemSetAccess", offsetof(ferryi_cuda_driver, set_access), 12000},
        {"cuStreamWaitValue64", offsetof(ferryi_cuda_driver, wait_value), 12000},
        {"cuStreamWriteValue64", offsetof(ferryi_cuda_driver, write_value), 12000},
    };
    for (size_t i = 0; i < sizeof(entries) / sizeof(*entries); i++) {
        void *function = NULL;
        enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        cudaError_t error =
            cudaGetDriverEntryPointByVersion(entries[i].name, &function, entries[i].version, cudaEnableDefault, &found);
        if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || function == NULL) {
            (void)cudaGetLastError();
            return ferryi_fail(FERRY_FAILED, "device 'cuda:%d': the NVIDIA driver has no %s; it is too old", d->ordinal,
                               entries[i].name);
        }
        memcpy((char *)&d->driver + entries[i].at, &function, sizeof(function));
    }
    return FERRY_OK;
}

/* What the backend relies on. */
static ferry_status check_abilities(ferryi_cuda_device *d)
{
    static const struct {
        enum cudaDeviceAttr attribute;
        const char *name;
    } needed[] = {
        {cudaDevAttrCanUseHostPointerForRegisteredMem, "kernels that use the host's addresses of pinned memory"},
        {cudaDevAttrHostRegisterSupported, "pinning of ordinary host memory"},
        {cudaDevAttrUnifiedAddressing, "one address space with the host"},
    };
    for (size_t i = 0; i < sizeof(needed) / sizeof(*needed); i++) {
        int has = 0;
        cudaError_t error = cudaDeviceGetAttribute(&has, needed[i].attribute, d->ordinal);
        if (error != cudaSuccess || has == 0) {
            (void)cudaGetLastError();
            return ferryi_fail(FERRY_FAILED, "device 'cuda:%d': this GPU lacks %s", d->ordinal, needed[i].name);
        }
    }
    return FERRY_OK;
}

static ferry_status find_gpu(const char *name, int *ordinal)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess && error != cudaErrorNoDevice) {
        (void)cudaGetLastError();
        return ferryi_fail(FERRY_FAILED,
                           "device '%s': no NVIDIA driver that works with CUDA %d.%d is loaded: %s; use \"host\"", name,
                           CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, cudaGetErrorString(error));
    }
    (void)cudaGetLastError();
    errno = 0;
    long number = strtol(name + 5, NULL, 10);
    if (errno != 0 || number >= count) {
        return ferryi_fail(FERRY_FAILED, "device '%s': no such GPU; this machine has %d, numbered from cuda:0", name,
                           count);
    }
    *ordinal = (int)number;
    return FERRY_OK;
}

static void close_device(ferryi_cuda_device *d)
{
    if (cudaSetDevice(d->ordinal) == cudaSuccess) {
        ferryi_cuda_dnn_close(d);
        ferryi_cuda_blas_close(d);
        if (d->anchor != NULL) {
            cudaEventDestroy(d->anchor);
        }
        if (d->own != NULL) {
            cudaStreamDestroy(d->own);
        }
        cudaFree(d->claim);
        cudaFreeHost(d->report);
        cudaFreeHost(d->counter);
    }
    (void)cudaGetLastError();
    free(d);
}

/* The parts that belong to the GPU. */
static ferry_status set_up(ferryi_cuda_device *d)
{
    ferry_device *base = &d->base;
    ferry_status status = ferryi_cuda_enter(base);
    if (status == FERRY_OK) {
        status = ferryi_cuda_check(base, cudaFree(NULL), "making a context on the GPU");
    }
    if (status == FERRY_OK) {
        status = check_abilities(d);
    }
    if (status == FERRY_OK) {
        status = find_driver(d);
    }
    if (status != FERRY_OK) {
        return status;
    }
    CUmemAllocationProp where = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->ordinal}};
    size_t least = 0;
    status = ferryi_cuda_check_driver(base, d->driver.granularity(&least, &where, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                                      "asking for the size of its memory's chunks");
    base->chunk_bytes = least > CHUNK_BYTES ? (int64_t)least : CHUNK_BYTES;
    cudaDeviceGetAttribute(&d->processors, cudaDevAttrMultiProcessorCount, d->ordinal);
    const size_t counters = CUDA_COUNTERS * sizeof(*d->counter);
    void *p = NULL;
    if (status == FERRY_OK) {
        status = ferryi_cuda_check(base, cudaHostAlloc(&p, counters, cudaHostAllocPortable), "pinning counters");
        d->counter = p;
    }
    if (status == FERRY_OK) {
        memset(p, 0, counters);
        p = NULL;
        status =
            ferryi_cuda_check(base, cudaHostAlloc(&p, sizeof(*d->report), cudaHostAllocPortable), "pinning a report");
        d->report = p;
    }
    if (status == FERRY_OK) {
        memset(p, 0, sizeof(*d->report));
        p = NULL;
        status = ferryi_cuda_check(base, cudaMalloc(&p, sizeof(*d->claim)), "allocating device memory");
        d->claim = p;
    }
    if (status == FERRY_OK) {
        status = ferryi_cuda_check(base, cudaMemset(p, 0, sizeof(*d->claim)), "clearing device memory");
    }
    if (status == FERRY_OK) {
        status = ferryi_cuda_check(base, cudaStreamCreateWithFlags(&d->own, cudaStreamNonBlocking), "making a stream");
    }
    if (status == FERRY_OK) {
        status = ferryi_cuda_check(base, cudaEventCreate(&d->anchor), "making an event");
    }
    return status == FERRY_OK ? ferryi_cuda_blas_open(d) : status;
}

static ferry_status cuda_open(const char *name, ferry_device **out)
{
    int ordinal = 0;
    ferry_status status = find_gpu(name, &ordinal);
    if (status != FERRY_OK) {
        return status;
    }
    ferryi_cuda_device *d = calloc(1, sizeof(*d));
    if (d == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for a device");
    }
    d->ordinal = ordinal;
    d->base.backend = &ferryi_cuda_backend;
    snprintf(d->base.name, sizeof(d->base.name), "%s", name); /* for messages from here on */
    status = set_up(d);
    if (status != FERRY_OK) {
        close_device(d);
        return status;
    }
    *out = &d->base;
    return FERRY_OK;
}

static void cuda_close(ferry_device *d)
{
    close_device(ferryi_cuda_of(d));
}

static int64_t cuda_scratch_bytes(const ferry_device *d)
{
    return atomic_load(&((const ferryi_cuda_device *)d)->scratch_bytes);
}

const ferryi_backend ferryi_cuda_backend = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .poll = ferryi_cuda_poll,
    .scratch_bytes = cuda_scratch_bytes,
    .stream_open = ferryi_cuda_stream_open,
    .stream_close = ferryi_cuda_stream_close,
    .stream_sync = ferryi_cuda_stream_sync,
    .stream_wait = ferryi_cuda_stream_wait,
    .stream_task = ferryi_cuda_stream_task,
    .event_open = ferryi_cuda_event_open,
    .event_close = ferryi_cuda_event_close,
    .event_record = ferryi_cuda_event_record,
    .event_stamp = ferryi_cuda_event_stamp,
    .event_sync = ferryi_cuda_event_sync,
    .event_time_ns = ferryi_cuda_event_time_ns,
    .host_alloc = ferryi_cuda_host_alloc,
    .host_free = ferryi_cuda_host_free,
    .physical_create = ferryi_cuda_physical_create,
    .physical_release = ferryi_cuda_physical_release,
    .range_reserve = ferryi_cuda_range_reserve,
    .range_free = ferryi_cuda_range_free,
    .range_map = ferryi_cuda_range_map,
    .range_unmap = ferryi_cuda_range_unmap,
    .copy = ferryi_cuda_copy,
    .launch = ferryi_cuda_launch,
    .sqnorm = ferryi_cuda_sqnorm,
    .adamw = ferryi_cuda_adamw,
};
