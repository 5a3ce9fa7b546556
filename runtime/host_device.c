/* host_device.c - the host backend: its table, its copies and its kernel launches. */
#include "runtime/host.h"

#include <stdlib.h>
#include <string.h>

enum { HOST_CHUNK_BYTES = 4096 }; /* a page: what mmap can place */

static ferry_status host_open(const char *name, ferry_device **out)
{
    (void)name;
    ferryi_host_device *d = calloc(1, sizeof(*d));
    if (d == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for a device");
    }
    ferryi_fast_setup();
    d->base.chunk_bytes = HOST_CHUNK_BYTES;
    *out = &d->base;
    return FERRY_OK;
}

static void host_close(ferry_device *device)
{
    ferryi_host_device *d = (ferryi_host_device *)device;
    ferryi_host_marks_free(d);
    free(d);
}

typedef struct copy_task {
    ferry_device *device;
    void *dst;
    const void *src;
    int64_t bytes;
} copy_task;

static void run_copy(void *args)
{
    const copy_task *c = args;
    ferryi_shadow_touch(c->device, c->src, c->bytes, false);
    ferryi_shadow_touch(c->device, c->dst, c->bytes, true);
    memcpy(c->dst, c->src, (size_t)c->bytes);
}

static ferry_status host_copy(ferry_stream *s, void *dst, const void *src, int64_t bytes)
{
    copy_task c = {s->device, dst, src, bytes};
    return ferryi_host_stream_task(s, run_copy, &c, sizeof(c));
}

typedef struct kernel_task {
    ferry_device *device;
    ferry_kernel call;
} kernel_task;

static void run_kernel(void *args)
{
    const kernel_task *t = args;
    ferryi_kernel_touch(t->device, &t->call);
    ferry_status status = ferryi_host_kernel(false, &t->call);
    if (status != FERRY_OK) {
        ferryi_device_fail(t->device, status, "%s", ferry_error());
    }
}

static ferry_status host_launch(ferry_stream *s, const ferry_kernel *call)
{
    ferry_status status = ferryi_host_supports(call);
    if (status != FERRY_OK) {
        return status;
    }
    kernel_task t = {s->device, *call};
    return ferryi_host_stream_task(s, run_kernel, &t, sizeof(t));
}

const ferryi_backend ferryi_host_backend = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .stream_open = ferryi_host_stream_open,
    .stream_close = ferryi_host_stream_close,
    .stream_sync = ferryi_host_stream_sync,
    .stream_wait = ferryi_host_stream_wait,
    .stream_task = ferryi_host_stream_task,
    .event_open = ferryi_host_event_open,
    .event_close = ferryi_host_event_close,
    .event_record = ferryi_host_event_record,
    .event_sync = ferryi_host_event_sync,
    .event_time_ns = ferryi_host_event_time_ns,
    .host_alloc = ferryi_host_alloc,
    .host_free = ferryi_host_free,
    .physical_create = ferryi_host_physical_create,
    .physical_release = ferryi_host_physical_release,
    .range_reserve = ferryi_host_range_reserve,
    .range_free = ferryi_host_range_free,
    .range_map = ferryi_host_range_map,
    .range_unmap = ferryi_host_range_unmap,
    .copy = host_copy,
    .launch = host_launch,
};
