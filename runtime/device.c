/* device.c - opens devices by name and checks the arguments of streams, events, copies and pinned memory before the
 * backend sees them. */
#include "runtime/backend.h"
#include "runtime/workers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- device ----------------------------------------------------------------------------------------------------- */

static bool is_cuda_name(const char *name)
{
    if (strncmp(name, "cuda:", 5) != 0 || name[5] == '\0') {
        return false;
    }
    return strspn(name + 5, "0123456789") == strlen(name + 5) && strlen(name) < 16;
}

ferry_status ferry_device_open(const char *name, ferry_device **out)
{
    if (out == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_device_open: out is NULL");
    }
    *out = NULL;
    if (name == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_device_open: the name is NULL; use \"host\"");
    }
    const ferryi_backend *backend = NULL;
    if (is_cuda_name(name)) {
#ifdef FERRY_CUDA
        backend = &ferryi_cuda_backend;
#else
        return ferryi_fail(FERRY_FAILED, "device '%.40s': this build of libferry has no CUDA backend; use \"host\"",
                           name);
#endif
    } else if (strcmp(name, ferryi_host_backend.name) == 0) {
        backend = &ferryi_host_backend;
    } else {
        return ferryi_fail(FERRY_USAGE, "unknown device '%.40s'; use \"host\" or \"cuda:N\"", name);
    }
    ferry_device *d = NULL;
    ferry_status status = backend->open(name, &d);
    if (status != FERRY_OK) {
        return status;
    }
    d->backend = backend;
    snprintf(d->name, sizeof(d->name), "%s", name);
    if (pthread_mutex_init(&d->lock, NULL) != 0) {
        d->backend->close(d);
        return ferryi_fail(FERRY_FAILED, "device '%s': cannot create a lock", name);
    }
    *out = d;
    return FERRY_OK;
}

void ferry_device_close(ferry_device *d)
{
    if (d == NULL) {
        return;
    }
    ferryi_workers_close(d->workers);
    free(d->region);
    pthread_mutex_destroy(&d->lock);
    d->backend->close(d);
}

ferryi_workers *ferryi_device_workers(ferry_device *d)
{
    ferryi_unseen_begin(); /* this lock orders a stream with nothing */
    pthread_mutex_lock(&d->lock);
    ferryi_workers *w = d->workers;
    pthread_mutex_unlock(&d->lock);
    ferryi_unseen_end();
    if (w == NULL) {
        pthread_mutex_lock(&d->lock);
        if (d->workers == NULL) {
            (void)ferryi_workers_open(&d->workers);
        }
        w = d->workers;
        pthread_mutex_unlock(&d->lock);
    }
    return w;
}

const char *ferry_device_name(const ferry_device *d)
{
    return d->name;
}

int64_t ferry_device_chunk_bytes(const ferry_device *d)
{
    return d->chunk_bytes;
}

int64_t ferry_device_peak_bytes(const ferry_device *d)
{
    return d->peak_bytes;
}

int64_t ferry_device_scratch_bytes(const ferry_device *d)
{
    return d->backend->scratch_bytes != NULL ? d->backend->scratch_bytes(d) : 0;
}

ferry_status ferry_device_status(ferry_device *d)
{
    if (d == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_device_status: the device is NULL");
    }
    if (d->backend->poll != NULL) {
        d->backend->poll(d);
    }
    if (atomic_load_explicit(&d->failed, memory_order_acquire) == 0) {
        return FERRY_OK;
    }
    return ferryi_fail(d->failure, "%s", d->failure_text);
}

void ferryi_device_fail(ferry_device *d, ferry_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    pthread_mutex_lock(&d->lock);
    if (atomic_load_explicit(&d->failed, memory_order_relaxed) == 0) {
        d->failure = status;
        vsnprintf(d->failure_text, sizeof(d->failure_text), fmt, args);
        atomic_store_explicit(&d->failed, 1, memory_order_release);
    }
    pthread_mutex_unlock(&d->lock);
    va_end(args);
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

ferry_status ferry_stream_open(ferry_device *d, ferry_stream_kind kind, ferry_stream **out)
{
    if (out == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_stream_open: out is NULL");
    }
    *out = NULL;
    if (d == NULL || (unsigned)kind > FERRY_STREAM_UPDATE) {
        return ferryi_fail(FERRY_USAGE, "ferry_stream_open: %s",
                           d == NULL ? "the device is NULL" : "unknown kind of stream");
    }
    return d->backend->stream_open(d, kind, out);
}

void ferry_stream_close(ferry_stream *s)
{
    if (s != NULL) {
        s->device->backend->stream_close(s);
    }
}

ferry_status ferry_stream_sync(ferry_stream *s)
{
    if (s == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_stream_sync: the stream is NULL");
    }
    ferry_status status = s->device->backend->stream_sync(s);
    return status != FERRY_OK ? status : ferry_device_status(s->device);
}

ferry_device *ferryi_stream_device(ferry_stream *s)
{
    return s->device;
}

ferry_status ferryi_stream_task(ferry_stream *s, void (*fn)(void *), const void *args, size_t args_bytes)
{
    if (s == NULL || fn == NULL || (args == NULL && args_bytes != 0)) {
        return ferryi_fail(FERRY_USAGE, "a task needs a stream, a function and its arguments; one of them is NULL");
    }
    return s->device->backend->stream_task(s, fn, args, args_bytes);
}

typedef struct user_call {
    void (*fn)(void *);
    void *arg;
} user_call;

static void run_user_call(void *args)
{
    user_call *c = args;
    c->fn(c->arg);
}

ferry_status ferry_stream_call(ferry_stream *s, void (*fn)(void *), void *arg)
{
    if (fn == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_stream_call: the function is NULL");
    }
    user_call c = {fn, arg};
    return ferryi_stream_task(s, run_user_call, &c, sizeof(c));
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static ferry_status check_pair(const char *what, const ferry_stream *s, const ferry_event *e)
{
    if (s == NULL || e == NULL) {
        return ferryi_fail(FERRY_USAGE, "%s: the %s is NULL", what, s == NULL ? "stream" : "event");
    }
    if (s->device != e->device) {
        return ferryi_fail(FERRY_USAGE, "%s: stream and event belong to different devices", what);
    }
    return FERRY_OK;
}

ferry_status ferry_event_open(ferry_device *d, ferry_event **out)
{
    if (out == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_event_open: out is NULL");
    }
    *out = NULL;
    if (d == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_event_open: the device is NULL");
    }
    return d->backend->event_open(d, out);
}

void ferry_event_close(ferry_event *e)
{
    if (e != NULL) {
        e->device->backend->event_close(e);
    }
}

ferry_status ferry_event_record(ferry_stream *s, ferry_event *e)
{
    ferry_status status = check_pair("ferry_event_record", s, e);
    return status != FERRY_OK ? status : s->device->backend->event_record(s, e);
}

ferry_status ferry_stream_wait(ferry_stream *s, ferry_event *e)
{
    ferry_status status = check_pair("ferry_stream_wait", s, e);
    return status != FERRY_OK ? status : s->device->backend->stream_wait(s, e);
}

ferry_status ferry_event_sync(ferry_event *e)
{
    if (e == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_event_sync: the event is NULL");
    }
    ferry_status status = e->device->backend->event_sync(e);
    return status != FERRY_OK ? status : ferry_device_status(e->device);
}

ferry_status ferry_event_time_ns(ferry_event *e, int64_t *out)
{
    if (e == NULL || out == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_event_time_ns: %s is NULL", e == NULL ? "the event" : "out");
    }
    *out = 0;
    return e->device->backend->event_time_ns(e, out);
}

/* ---- pinned memory and copies ----------------------------------------------------------------------------------- */

ferry_status ferry_host_alloc(ferry_device *d, int64_t bytes, void **out)
{
    if (out == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_host_alloc: out is NULL");
    }
    *out = NULL;
    if (d == NULL || bytes < 0) {
        return ferryi_fail(FERRY_USAGE, "ferry_host_alloc: %s",
                           d == NULL ? "the device is NULL" : "the size is negative");
    }
    bytes = bytes == 0 ? 1 : bytes; /* an address of its own, as malloc */
    uint64_t *shadow = NULL;
    void *p = NULL;
    ferry_status status = d->backend->host_alloc(d, bytes, &p);
    if (status != FERRY_OK) {
        return status;
    }
    status = ferryi_shadow_alloc(bytes, &shadow);
    if (status == FERRY_OK) {
        ferryi_region r = {.base = (uintptr_t)p, .bytes = bytes, .kind = FERRYI_PINNED, .shadow = shadow};
        status = ferryi_region_add(d, r);
    }
    if (status != FERRY_OK) {
        free(shadow);
        d->backend->host_free(d, p);
        return status;
    }
    *out = p;
    return FERRY_OK;
}

void ferry_host_free(ferry_device *d, void *p)
{
    ferryi_region r;
    if (p == NULL || !ferryi_region_find(d, p, &r) || r.base != (uintptr_t)p || r.kind != FERRYI_PINNED) {
        return;
    }
    ferryi_region_remove(d, p, r.bytes);
    free(r.shadow);
    d->backend->host_free(d, p);
}

static const char *const kind_name[] = {"compute", "load", "store", "update"};

static ferry_status copy(const char *what, ferry_stream *s, ferry_stream_kind kind, void *dst, const void *src,
                         int64_t bytes, ferryi_memory dst_kind)
{
    if (s == NULL || bytes < 0) {
        return ferryi_fail(FERRY_USAGE, "%s: %s", what, s == NULL ? "the stream is NULL" : "the size is negative");
    }
    if (s->kind != kind && s->kind != FERRY_STREAM_COMPUTE) {
        return ferryi_fail(FERRY_USAGE, "%s on a stream of kind %s; use a %s stream", what, kind_name[s->kind],
                           kind_name[kind]);
    }
    if (bytes == 0) {
        return FERRY_OK;
    }
    const void *host = dst_kind == FERRYI_DEVICE ? src : dst;
    const void *device = dst_kind == FERRYI_DEVICE ? dst : src;
    if (!ferryi_region_covers(s->device, host, bytes, FERRYI_PINNED)) {
        return ferryi_fail(FERRY_USAGE, "%s of %lld bytes: the host side is not inside memory of ferry_host_alloc",
                           what, (long long)bytes);
    }
    if (!ferryi_region_covers(s->device, device, bytes, FERRYI_DEVICE)) {
        return ferryi_fail(FERRY_USAGE, "%s of %lld bytes: the device side is not inside a pool of this device", what,
                           (long long)bytes);
    }
    return s->device->backend->copy(s, dst, src, bytes);
}

ferry_status ferry_copy_h2d(ferry_stream *s, void *dst, const void *src, int64_t bytes)
{
    return copy("ferry_copy_h2d", s, FERRY_STREAM_LOAD, dst, src, bytes, FERRYI_DEVICE);
}

ferry_status ferry_copy_d2h(ferry_stream *s, void *dst, const void *src, int64_t bytes)
{
    return copy("ferry_copy_d2h", s, FERRY_STREAM_STORE, dst, src, bytes, FERRYI_PINNED);
}

/* ---- ordinary memory --------------------------------------------------------------------------------------------- */

enum { BOUNCE_BYTES = 4 << 20 };

static ferry_status through_pinned(ferry_stream *s, char *dst, const char *src, int64_t bytes, bool write)
{
    void *pinned = NULL;
    if (s == NULL || bytes < 0 || (bytes > 0 && (dst == NULL || src == NULL))) {
        return ferryi_fail(FERRY_USAGE, "ferry_device_%s: %s", write ? "write" : "read",
                           s == NULL ? "the stream is NULL" : "a pointer is missing or the size is negative");
    }
    ferry_status status = ferry_host_alloc(s->device, bytes < BOUNCE_BYTES ? bytes : BOUNCE_BYTES, &pinned);
    for (int64_t at = 0; at < bytes && status == FERRY_OK; at += BOUNCE_BYTES) {
        int64_t part = bytes - at < BOUNCE_BYTES ? bytes - at : BOUNCE_BYTES;
        if (write) {
            memcpy(pinned, src + at, (size_t)part);
        }
        status = write ? ferry_copy_h2d(s, dst + at, pinned, part) : ferry_copy_d2h(s, pinned, src + at, part);
        if (status == FERRY_OK) {
            status = ferry_stream_sync(s);
        }
        if (status == FERRY_OK && !write) {
            memcpy(dst + at, pinned, (size_t)part);
        }
    }
    if (pinned != NULL) {
        ferry_host_free(s->device, pinned);
    }
    return status;
}

ferry_status ferry_device_write(ferry_stream *s, void *dst, const void *src, int64_t bytes)
{
    return through_pinned(s, dst, src, bytes, true);
}

ferry_status ferry_device_read(ferry_stream *s, void *dst, const void *src, int64_t bytes)
{
    return through_pinned(s, dst, src, bytes, false);
}
