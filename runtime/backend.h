/* backend.h - what a backend provides: one table of functions, and the common head of its objects.
 *
 * Everything that does not depend on the machine is above the table: argument checks, the pools (pool.c), the registry
 * of memory (region.c), the kernels' shapes (kernel_check.c). A backend is opened by device.c and found there by its
 * name.
 *
 * Rules for each function of the table
 *   - arguments are checked before the call: pointers are not NULL, sizes are multiples of the chunk where said, stream
 *     and event are of this device
 *   - output parameters hold NULL (0) at the call and stay so on failure; a failure leaves nothing behind
 *   - failures are reported with ferryi_fail at the call, with ferryi_device_fail inside enqueued work
 *   - enqueuing never waits for enqueued work
 *   - after a failure of the device kernels, copies and tasks are skipped; records and waits still happen, so that a
 *     program which waits does not hang */
#ifndef FERRY_RUNTIME_BACKEND_H
#define FERRY_RUNTIME_BACKEND_H

#include "runtime/internal.h"

#include <pthread.h>
#include <stdatomic.h>

typedef enum ferryi_memory {
    FERRYI_PINNED, /* ferry_host_alloc */
    FERRYI_DEVICE, /* a pool, through any of its mappings */
} ferryi_memory;

struct ferryi_update;

typedef struct ferryi_backend {
    const char *name;

    /* Allocates the backend's device, whose first member is a ferry_device. device.c fills the common members after it
     * (except chunk_bytes) and frees them before close. */
    ferry_status (*open)(const char *name, ferry_device **out);
    void (*close)(ferry_device *d);

    /* Looks for failures of enqueued work that the device itself noticed, and tells them by ferryi_device_fail. NULL:
     * there is nothing to look for. */
    void (*poll)(ferry_device *d);
    /* Device memory that the backend holds beside the pools. NULL: none. */
    int64_t (*scratch_bytes)(const ferry_device *d);

    /* Streams and events: their first member is a ferry_stream (ferry_event), filled by device.c. */
    ferry_status (*stream_open)(ferry_device *d, ferry_stream_kind kind, ferry_stream **out);
    void (*stream_close)(ferry_stream *s); /* after the enqueued work */
    ferry_status (*stream_sync)(ferry_stream *s);
    ferry_status (*stream_wait)(ferry_stream *s, ferry_event *e);
    ferry_status (*stream_task)(ferry_stream *s, void (*fn)(void *), const void *args, size_t args_bytes);
    ferry_status (*event_open)(ferry_device *d, ferry_event **out);
    void (*event_close)(ferry_event *e); /* records and waits that are under way stay valid */
    ferry_status (*event_record)(ferry_stream *s, ferry_event *e);
    /* As a record, for the time alone: nothing will wait for this event. NULL: a record is as cheap. */
    ferry_status (*event_stamp)(ferry_stream *s, ferry_event *e);
    ferry_status (*event_sync)(ferry_event *e);
    ferry_status (*event_time_ns)(ferry_event *e, int64_t *out);

    /* Pinned memory: zeroed, aligned to 4096 bytes; bytes > 0. */
    ferry_status (*host_alloc)(ferry_device *d, int64_t bytes, void **out);
    void (*host_free)(ferry_device *d, void *p);

    /* Virtual memory. Physical memory has no address until it is mapped; all sizes and offsets are multiples of
     * chunk_bytes. A physical block may be mapped many times, each part in any order. Unmapped parts of a reserved
     * range stay reserved. */
    ferry_status (*physical_create)(ferry_device *d, int64_t bytes, void **out);
    void (*physical_release)(ferry_device *d, void *physical);
    ferry_status (*range_reserve)(ferry_device *d, int64_t bytes, void **out);
    void (*range_free)(ferry_device *d, void *range, int64_t bytes); /* nothing in it is mapped */
    ferry_status (*range_map)(ferry_device *d, void *at, int64_t bytes, void *physical, int64_t offset_bytes);
    void (*range_unmap)(ferry_device *d, void *at, int64_t bytes);

    /* One of dst and src is pinned memory, the other device memory; bytes > 0. */
    ferry_status (*copy)(ferry_stream *s, void *dst, const void *src, int64_t bytes);
    /* A call that ferryi_kernel_check accepted. FERRY_USAGE when the backend has no kernel for its types. */
    ferry_status (*launch)(ferry_stream *s, const ferry_kernel *call);
    /* ferry_sqnorm and ferry_adamw on a COMPUTE stream (adam.h), with the results of the CPU to the bit. NULL: they run
     * as tasks of the stream. */
    ferry_status (*sqnorm)(ferry_stream *s, const struct ferryi_update *call);
    ferry_status (*adamw)(ferry_stream *s, const struct ferryi_update *call);
} ferryi_backend;

/* A piece of address space that the device gave out. A stitched range is one region for each run of physical memory. */
typedef struct ferryi_region {
    uintptr_t base;
    int64_t bytes;
    ferryi_memory kind;
    int64_t physical_bytes; /* offset of base in its physical memory */
    uint64_t *shadow;       /* of the physical memory, NULL without FERRY_TSAN: see region.c */
} ferryi_region;

struct ferry_device {
    const ferryi_backend *backend;
    char name[32];
    int64_t chunk_bytes; /* set by the backend's open */

    pthread_mutex_t lock; /* of everything below */
    atomic_int failed;    /* 1 after failure was written */
    ferry_status failure; /* of enqueued work, the first one */
    char failure_text[1024];
    int64_t held_bytes, peak_bytes; /* of all pools */
    ferryi_region *region;          /* sorted by base, disjoint */
    int regions, region_capacity;
    struct ferryi_workers *workers; /* NULL until first asked for */
};

struct ferry_stream {
    ferry_device *device;
    ferry_stream_kind kind;
};

struct ferry_event {
    ferry_device *device;
};

extern const ferryi_backend ferryi_host_backend;
extern const ferryi_backend ferryi_cuda_backend; /* with FERRY_CUDA */

/* ---- region.c --------------------------------------------------------------------------------------------------- */

/* Registers [base, base + bytes). Errors: FERRY_FAILED (memory). */
ferry_status ferryi_region_add(ferry_device *d, ferryi_region region);
/* Forgets all regions that begin in [base, base + bytes). */
void ferryi_region_remove(ferry_device *d, const void *base, int64_t bytes);
/* The region that holds p; false when there is none. */
bool ferryi_region_find(ferry_device *d, const void *p, ferryi_region *out);
/* All of [p, p + bytes) is registered memory of that kind. */
bool ferryi_region_covers(ferry_device *d, const void *p, int64_t bytes, ferryi_memory kind);
/* *out = shadow words for `bytes` of physical memory; NULL without FERRY_TSAN. The caller frees it. */
ferry_status ferryi_shadow_alloc(int64_t bytes, uint64_t **out);

/* ---- kernel_check.c --------------------------------------------------------------------------------------------- */

/* Everything about a call that does not depend on the backend. Errors: FERRY_USAGE. */
ferry_status ferryi_kernel_check(const ferry_kernel *call);
/* Tells the access checker all that the call touches. Nothing without FERRY_TSAN. */
void ferryi_kernel_touch(ferry_device *d, const ferry_kernel *call);
/* Bytes of one element of arg[i]; 0 when the op has no such argument. */
int64_t ferryi_kernel_element_bytes(const ferry_kernel *call, int arg);

/* ---- host_kernel.c: the host's kernels, also for tests and for CPU work of other backends ----------------------- */

/* Whether the host has kernels for the call's types; FERRY_USAGE names what it lacks. */
ferry_status ferryi_host_supports(const ferry_kernel *call);
/* Runs a checked and supported call now, on the calling thread, by the plain scalar reference or by the fast kernels.
 * Errors: FERRY_BAD_DATA (an id or label out of range, an integer division by zero), FERRY_FAILED (memory). */
ferry_status ferryi_host_kernel(bool reference, const ferry_kernel *call);

#endif
