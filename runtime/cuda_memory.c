/* cuda_memory.c - the CUDA backend's pinned, virtual and scratch memory.
 *
 * Pinned memory is ordinary memory, touched and then registered. Blocks of a huge page and more lie in such pages,
 * but for the rest at their ends, and are touched by several threads: four times as fast as letting CUDA allocate it.
 *
 * Device memory. A GPU maps a physical handle only as a whole, so a pool is a row of handles of one chunk each: the
 * chunk is the unit of stitching. It is filled with 0xFF, NaN in every floating type, as on the host. */
#include "runtime/cuda_device.h"
#include "runtime/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, HUGE_BYTES = 2 << 20, MAX_TOUCHERS = 16, FRESH_BYTE = 0xFF };

/* ---- pinned memory ---------------------------------------------------------------------------------------------- */

typedef struct cuda_block {
    struct cuda_block *next;
    void *at;     /* aligned */
    void *mapped; /* where the mapping begins */
    size_t mapped_bytes;
} cuda_block;

typedef struct toucher {
    pthread_t thread;
    char *at;
    size_t bytes;
} toucher;

static void *touch(void *arg)
{
    const toucher *t = arg;
    memset(t->at, 0, t->bytes);
    return NULL;
}

/* Writing a page for the first time makes it, and that is what takes the time. */
static void touch_all(char *at, size_t bytes)
{
    toucher t[MAX_TOUCHERS];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int count = processors < 1 ? 1 : processors > MAX_TOUCHERS ? MAX_TOUCHERS : (int)processors;
    if (bytes / HUGE_BYTES < (size_t)count) {
        count = (int)(bytes / HUGE_BYTES);
    }
    size_t part = (bytes / (size_t)count + HUGE_BYTES) / HUGE_BYTES * HUGE_BYTES;
    bool started[MAX_TOUCHERS] = {false};
    for (int i = 0; i < count; i++) {
        size_t from = part * (size_t)i < bytes ? part * (size_t)i : bytes;
        t[i].at = at + from;
        t[i].bytes = bytes - from < part ? bytes - from : part;
        started[i] = i + 1 < count && pthread_create(&t[i].thread, NULL, touch, &t[i]) == 0;
        if (!started[i]) {
            touch(&t[i]);
        }
    }
    for (int i = 0; i < count; i++) {
        if (started[i]) {
            pthread_join(t[i].thread, NULL);
        }
    }
}

static ferry_status pin(ferry_device *d, size_t bytes, cuda_block *b)
{
    const bool large = bytes >= HUGE_BYTES;
    const size_t page = large ? HUGE_BYTES : PAGE_BYTES, whole = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    b->mapped_bytes = large ? whole + page : whole;
    b->mapped = mmap(NULL, b->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->mapped == MAP_FAILED) {
        return ferryi_fail(FERRY_FAILED, "no memory: pinned memory of %zu bytes: %s", bytes, strerror(errno));
    }
    b->at = (void *)(((uintptr_t)b->mapped + page - 1) / page * page);
    if (large) {
        (void)madvise(b->at, whole, MADV_HUGEPAGE); /* slower without, but right */
        touch_all(b->at, whole);
    } else {
        memset(b->at, 0, whole);
    }
    ferry_status status = ferryi_cuda_check(
        d, cudaHostRegister(b->at, whole, cudaHostRegisterPortable | cudaHostRegisterMapped), "pinning host memory");
    if (status != FERRY_OK) {
        munmap(b->mapped, b->mapped_bytes);
    }
    return status;
}

ferry_status ferryi_cuda_host_alloc(ferry_device *d, int64_t bytes, void **out)
{
    if (bytes > INT64_MAX / 2) {
        return ferryi_fail(FERRY_FAILED, "no memory: pinned memory of %lld bytes", (long long)bytes);
    }
    ferry_status status = ferryi_host_available("pinned memory", bytes);
    if (status == FERRY_OK) {
        status = ferryi_cuda_enter(d);
    }
    if (status != FERRY_OK) {
        return status;
    }
    cuda_block *b = calloc(1, sizeof(*b));
    if (b == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory");
    }
    status = pin(d, (size_t)bytes, b);
    if (status != FERRY_OK) {
        free(b);
        return status;
    }
    b->next = ferryi_cuda_of(d)->blocks;
    ferryi_cuda_of(d)->blocks = b;
    *out = b->at;
    return FERRY_OK;
}

void ferryi_cuda_host_free(ferry_device *d, void *p)
{
    cuda_block **link = &ferryi_cuda_of(d)->blocks;
    while (*link != NULL && (*link)->at != p) {
        link = &(*link)->next;
    }
    cuda_block *b = *link;
    if (b == NULL || ferryi_cuda_enter(d) != FERRY_OK) {
        return;
    }
    *link = b->next;
    (void)ferryi_cuda_check(d, cudaHostUnregister(b->at), "unpinning host memory");
    munmap(b->mapped, b->mapped_bytes);
    free(b);
}

/* ---- device memory ---------------------------------------------------------------------------------------------- */

typedef struct cuda_physical {
    int64_t chunks;
    bool fresh; /* not yet filled */
    CUmemGenericAllocationHandle handle[];
} cuda_physical;

ferry_status ferryi_cuda_physical_create(ferry_device *d, int64_t bytes, void **out)
{
    const ferryi_cuda_driver *driver = &ferryi_cuda_of(d)->driver;
    ferry_status status = ferryi_cuda_enter(d);
    size_t available = 0, total = 0;
    if (status == FERRY_OK) {
        status = ferryi_cuda_check(d, cudaMemGetInfo(&available, &total), "asking for its free memory");
    }
    if (status == FERRY_OK && (uint64_t)bytes > available) {
        return ferryi_fail(FERRY_FAILED,
                           "device '%s': a pool of %lld bytes does not fit: %zu of the GPU's %zu bytes are free",
                           d->name, (long long)bytes, available, total);
    }
    if (status != FERRY_OK) {
        return status;
    }
    int64_t chunks = bytes / d->chunk_bytes;
    cuda_physical *p = malloc(sizeof(*p) + (size_t)chunks * sizeof(*p->handle));
    if (p == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory");
    }
    *p = (cuda_physical){.fresh = true};
    CUmemAllocationProp where = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ferryi_cuda_of(d)->ordinal},
    };
    while (status == FERRY_OK && p->chunks < chunks) {
        status = ferryi_cuda_check_driver(d, driver->create(&p->handle[p->chunks], (size_t)d->chunk_bytes, &where, 0),
                                          "allocating device memory");
        p->chunks += status == FERRY_OK;
    }
    if (status != FERRY_OK) {
        ferryi_cuda_physical_release(d, p);
        return status;
    }
    *out = p;
    return FERRY_OK;
}

void ferryi_cuda_physical_release(ferry_device *d, void *physical)
{
    cuda_physical *p = physical;
    if (ferryi_cuda_enter(d) == FERRY_OK) {
        for (int64_t i = 0; i < p->chunks; i++) {
            (void)ferryi_cuda_of(d)->driver.release(p->handle[i]);
        }
    }
    free(p);
}

ferry_status ferryi_cuda_range_reserve(ferry_device *d, int64_t bytes, void **out)
{
    CUdeviceptr at = 0;
    ferry_status status = ferryi_cuda_enter(d);
    if (status == FERRY_OK) {
        status = ferryi_cuda_check_driver(
            d, ferryi_cuda_of(d)->driver.reserve(&at, (size_t)bytes, (size_t)d->chunk_bytes, 0, 0),
            "reserving addresses");
    }
    if (status == FERRY_OK) {
        *out = (void *)(uintptr_t)at;
    }
    return status;
}

void ferryi_cuda_range_free(ferry_device *d, void *range, int64_t bytes)
{
    if (ferryi_cuda_enter(d) == FERRY_OK) {
        (void)ferryi_cuda_of(d)->driver.address_free((CUdeviceptr)(uintptr_t)range, (size_t)bytes);
    }
}

static void unmap_chunks(ferry_device *d, CUdeviceptr at, int64_t chunks)
{
    for (int64_t i = 0; i < chunks; i++) {
        (void)ferryi_cuda_of(d)->driver.unmap(at + (CUdeviceptr)(i * d->chunk_bytes), (size_t)d->chunk_bytes);
    }
}

/* Fills a pool when it is mapped as a whole, which pool.c does first. */
static ferry_status fill_fresh(ferry_device *d, void *at, int64_t bytes)
{
    ferryi_cuda_device *c = ferryi_cuda_of(d);
    ferry_status status =
        ferryi_cuda_check(d, cudaMemsetAsync(at, FRESH_BYTE, (size_t)bytes, c->own), "filling device memory");
    return status != FERRY_OK ? status : ferryi_cuda_check(d, cudaStreamSynchronize(c->own), "filling device memory");
}

ferry_status ferryi_cuda_range_map(ferry_device *d, void *at, int64_t bytes, void *physical, int64_t offset_bytes)
{
    const ferryi_cuda_driver *driver = &ferryi_cuda_of(d)->driver;
    cuda_physical *p = physical;
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)at;
    int64_t first = offset_bytes / d->chunk_bytes, chunks = bytes / d->chunk_bytes, mapped = 0;
    ferry_status status = ferryi_cuda_enter(d);
    while (status == FERRY_OK && mapped < chunks) {
        status = ferryi_cuda_check_driver(d,
                                          driver->map(base + (CUdeviceptr)(mapped * d->chunk_bytes),
                                                      (size_t)d->chunk_bytes, 0, p->handle[first + mapped], 0),
                                          "mapping device memory");
        mapped += status == FERRY_OK;
    }
    if (status == FERRY_OK) {
        CUmemAccessDesc access = {
            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ferryi_cuda_of(d)->ordinal},
            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        status = ferryi_cuda_check_driver(d, driver->set_access(base, (size_t)bytes, &access, 1),
                                          "giving access to device memory");
    }
    if (status == FERRY_OK && p->fresh && chunks == p->chunks) {
        status = fill_fresh(d, at, bytes);
        p->fresh = status != FERRY_OK;
    }
    if (status != FERRY_OK) {
        unmap_chunks(d, base, mapped);
    }
    return status;
}

void ferryi_cuda_range_unmap(ferry_device *d, void *at, int64_t bytes)
{
    if (ferryi_cuda_enter(d) == FERRY_OK) {
        unmap_chunks(d, (CUdeviceptr)(uintptr_t)at, bytes / d->chunk_bytes);
    }
}

/* ---- scratch ---------------------------------------------------------------------------------------------------- */

ferry_status ferryi_cuda_scratch_alloc(ferry_device *d, int64_t bytes, void **out)
{
    ferry_status status = ferryi_cuda_check(d, cudaMalloc(out, (size_t)bytes), "allocating scratch memory");
    if (status == FERRY_OK) {
        atomic_fetch_add(&ferryi_cuda_of(d)->scratch_bytes, bytes);
    } else {
        *out = NULL;
    }
    return status;
}

void ferryi_cuda_scratch_free(ferry_device *d, void *p, int64_t bytes)
{
    if (p != NULL) {
        (void)ferryi_cuda_check(d, cudaFree(p), "freeing scratch memory");
        atomic_fetch_sub(&ferryi_cuda_of(d)->scratch_bytes, bytes);
    }
}
