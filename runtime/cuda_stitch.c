/* cuda_stitch.c - the stitching allocator's device on a GPU: the driver's virtual memory calls, found at run time, and
 * nothing else of CUDA. It works in the device's primary context, as the CUDA runtime (and PyTorch) does. */
#include "runtime/internal.h"
#include "runtime/stitch.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct driver {
    __typeof__(&cuInit) init;
    __typeof__(&cuGetErrorString) error_string;
    __typeof__(&cuDeviceGet) device_get;
    __typeof__(&cuDeviceTotalMem) total;
    __typeof__(&cuDeviceGetAttribute) attribute;
    __typeof__(&cuDevicePrimaryCtxRetain) retain;
    __typeof__(&cuDevicePrimaryCtxRelease) drop;
    __typeof__(&cuCtxPushCurrent) push;
    __typeof__(&cuCtxPopCurrent) pop;
    __typeof__(&cuMemGetAllocationGranularity) granularity;
    __typeof__(&cuMemCreate) create;
    __typeof__(&cuMemRelease) release;
    __typeof__(&cuMemAddressReserve) reserve;
    __typeof__(&cuMemAddressFree) unreserve;
    __typeof__(&cuMemMap) map;
    __typeof__(&cuMemUnmap) unmap;
    __typeof__(&cuMemSetAccess) allow;
    __typeof__(&cuEventCreate) event_create;
    __typeof__(&cuEventDestroy) event_destroy;
    __typeof__(&cuEventRecord) event_record;
    __typeof__(&cuEventQuery) event_query;
    __typeof__(&cuEventSynchronize) event_sync;
    __typeof__(&cuStreamWaitEvent) stream_wait;
} driver;

typedef struct gpu {
    driver call;
    void *library;
    CUdevice device;
    CUcontext context; /* NULL: not retained */
    CUmemAllocationProp where;
} gpu;

static ferry_status check(const gpu *g, CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) {
        return FERRY_OK;
    }
    const char *words = NULL;
    if (g->call.error_string(result, &words) != CUDA_SUCCESS || words == NULL) {
        words = "unknown error";
    }
    return ferryi_fail(FERRY_FAILED, "%s: %s (%s)", result == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "CUDA",
                       words, what);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static ferry_status gpu_create(void *self, int64_t bytes, uint64_t *chunk)
{
    const gpu *g = self;
    CUmemGenericAllocationHandle handle = 0;
    ferry_status status = check(g, g->call.create(&handle, (size_t)bytes, &g->where, 0), "cuMemCreate");
    *chunk = status == FERRY_OK ? handle : 0;
    return status;
}

static void gpu_release(void *self, uint64_t chunk)
{
    const gpu *g = self;
    (void)g->call.release(chunk);
}

static ferry_status gpu_reserve(void *self, int64_t bytes, void **at)
{
    const gpu *g = self;
    CUdeviceptr p = 0;
    ferry_status status = check(g, g->call.reserve(&p, (size_t)bytes, 0, 0, 0), "cuMemAddressReserve");
    *at = status == FERRY_OK ? (void *)(uintptr_t)p : NULL;
    return status;
}

static void gpu_unreserve(void *self, void *at, int64_t bytes)
{
    const gpu *g = self;
    (void)g->call.unreserve((CUdeviceptr)(uintptr_t)at, (size_t)bytes);
}

static ferry_status gpu_map(void *self, void *at, int64_t bytes, uint64_t chunk)
{
    const gpu *g = self;
    return check(g, g->call.map((CUdeviceptr)(uintptr_t)at, (size_t)bytes, 0, chunk, 0), "cuMemMap");
}

static ferry_status gpu_allow(void *self, void *at, int64_t bytes)
{
    const gpu *g = self;
    const CUmemAccessDesc access = {.location = g->where.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return check(g, g->call.allow((CUdeviceptr)(uintptr_t)at, (size_t)bytes, &access, 1), "cuMemSetAccess");
}

static ferry_status gpu_unmap(void *self, void *at, int64_t bytes)
{
    const gpu *g = self;
    return check(g, g->call.unmap((CUdeviceptr)(uintptr_t)at, (size_t)bytes), "cuMemUnmap");
}

/* ---- events: the calls that need a current context --------------------------------------------------------------- */

static ferry_status enter(const gpu *g)
{
    return check(g, g->call.push(g->context), "cuCtxPushCurrent");
}

static void leave(const gpu *g)
{
    CUcontext gone;
    (void)g->call.pop(&gone);
}

static ferry_status gpu_event_record(void *self, void *stream, void **event)
{
    const gpu *g = self;
    ferry_status status = enter(g);
    if (status != FERRY_OK) {
        return status;
    }
    CUevent e = *event;
    if (e == NULL) {
        status = check(g, g->call.event_create(&e, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    }
    if (status == FERRY_OK) {
        status = check(g, g->call.event_record(e, stream), "cuEventRecord");
        if (status != FERRY_OK && *event == NULL) {
            (void)g->call.event_destroy(e);
            e = NULL;
        }
    }
    *event = e;
    leave(g);
    return status;
}

/* A failed device counts as at work: nothing is handed on. */
static bool gpu_event_done(void *self, void *event)
{
    const gpu *g = self;
    if (enter(g) != FERRY_OK) {
        return false;
    }
    CUresult result = g->call.event_query(event);
    leave(g);
    return result == CUDA_SUCCESS;
}

static ferry_status gpu_event_wait(void *self, void *stream, void *event)
{
    const gpu *g = self;
    ferry_status status = enter(g);
    if (status == FERRY_OK) {
        status = check(g, g->call.stream_wait(stream, event, 0), "cuStreamWaitEvent");
        leave(g);
    }
    return status;
}

static ferry_status gpu_event_sync(void *self, void *event)
{
    const gpu *g = self;
    ferry_status status = enter(g);
    if (status == FERRY_OK) {
        status = check(g, g->call.event_sync(event), "cuEventSynchronize");
        leave(g);
    }
    return status;
}

static void gpu_event_close(void *self, void *event)
{
    const gpu *g = self;
    if (event != NULL && enter(g) == FERRY_OK) {
        (void)g->call.event_destroy(event);
        leave(g);
    }
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void gpu_close(void *self)
{
    gpu *g = self;
    if (g->context != NULL) {
        (void)g->call.drop(g->device);
    }
    if (g->library != NULL) {
        dlclose(g->library);
    }
    free(g);
}

static ferry_status load(gpu *g)
{
    static const struct {
        const char *name;
        size_t at;
    } entry[] = {
        {"cuInit", offsetof(driver, init)},
        {"cuGetErrorString", offsetof(driver, error_string)},
        {"cuDeviceGet", offsetof(driver, device_get)},
        {"cuDeviceTotalMem_v2", offsetof(driver, total)},
        {"cuDeviceGetAttribute", offsetof(driver, attribute)},
        {"cuDevicePrimaryCtxRetain", offsetof(driver, retain)},
        {"cuDevicePrimaryCtxRelease_v2", offsetof(driver, drop)},
        {"cuCtxPushCurrent_v2", offsetof(driver, push)},
        {"cuCtxPopCurrent_v2", offsetof(driver, pop)},
        {"cuMemGetAllocationGranularity", offsetof(driver, granularity)},
        {"cuMemCreate", offsetof(driver, create)},
        {"cuMemRelease", offsetof(driver, release)},
        {"cuMemAddressReserve", offsetof(driver, reserve)},
        {"cuMemAddressFree", offsetof(driver, unreserve)},
        {"cuMemMap", offsetof(driver, map)},
        {"cuMemUnmap", offsetof(driver, unmap)},
        {"cuMemSetAccess", offsetof(driver, allow)},
        {"cuEventCreate", offsetof(driver, event_create)},
        {"cuEventDestroy_v2", offsetof(driver, event_destroy)},
        {"cuEventRecord", offsetof(driver, event_record)},
        {"cuEventQuery", offsetof(driver, event_query)},
        {"cuEventSynchronize", offsetof(driver, event_sync)},
        {"cuStreamWaitEvent", offsetof(driver, stream_wait)},
    };
    g->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (g->library == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_stitch_cuda: no NVIDIA driver (libcuda.so.1)");
    }
    for (size_t i = 0; i < sizeof(entry) / sizeof(*entry); i++) {
        void *found = dlsym(g->library, entry[i].name);
        if (found == NULL) {
            return ferryi_fail(FERRY_FAILED, "ferry_stitch_cuda: the NVIDIA driver has no %s; it is too old",
                               entry[i].name);
        }
        memcpy((char *)&g->call + entry[i].at, &found, sizeof(found));
    }
    return FERRY_OK;
}

static ferry_status find_device(gpu *g, int ordinal, int64_t *chunk_bytes, int64_t *capacity_bytes)
{
    size_t granularity = 0, total = 0;
    int has = 0;
    ferry_status status = check(g, g->call.init(0), "cuInit");
    if (status == FERRY_OK) {
        status = check(g, g->call.device_get(&g->device, ordinal), "cuDeviceGet");
    }
    if (status == FERRY_OK) {
        status = check(g, g->call.attribute(&has, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, g->device),
                       "cuDeviceGetAttribute");
    }
    if (status == FERRY_OK && !has) {
        status = ferryi_fail(FERRY_FAILED, "ferry_stitch_cuda: GPU %d has no virtual memory management", ordinal);
    }
    g->where = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal}};
    if (status == FERRY_OK) {
        status = check(g, g->call.granularity(&granularity, &g->where, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                       "cuMemGetAllocationGranularity");
    }
    if (status == FERRY_OK) {
        status = check(g, g->call.total(&total, g->device), "cuDeviceTotalMem");
    }
    if (status == FERRY_OK) {
        status = check(g, g->call.retain(&g->context, g->device), "cuDevicePrimaryCtxRetain");
    }
    *chunk_bytes = (int64_t)granularity;
    *capacity_bytes = (int64_t)total;
    return status;
}

ferry_status ferry_stitch_cuda(int ordinal, ferry_stitch_device *out)
{
    if (out == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_stitch_cuda: out is NULL");
    }
    *out = (ferry_stitch_device){.self = NULL};
    gpu *g = calloc(1, sizeof(*g));
    if (g == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_stitch_cuda: no host memory");
    }
    int64_t chunk_bytes = 0, capacity_bytes = 0;
    ferry_status status = load(g);
    if (status == FERRY_OK) {
        status = find_device(g, ordinal, &chunk_bytes, &capacity_bytes);
    }
    if (status != FERRY_OK) {
        gpu_close(g);
        return status;
    }
    *out = (ferry_stitch_device){
        .self = g,
        .chunk_bytes = chunk_bytes,
        .capacity_bytes = capacity_bytes,
        .create = gpu_create,
        .release = gpu_release,
        .reserve = gpu_reserve,
        .unreserve = gpu_unreserve,
        .map = gpu_map,
        .allow = gpu_allow,
        .unmap = gpu_unmap,
        .event_record = gpu_event_record,
        .event_done = gpu_event_done,
        .event_wait = gpu_event_wait,
        .event_sync = gpu_event_sync,
        .event_close = gpu_event_close,
        .close = gpu_close,
    };
    return FERRY_OK;
}
