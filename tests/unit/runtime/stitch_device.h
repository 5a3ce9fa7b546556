/* stitch_device.h - a device for the tests of the stitching allocator: the host's memory, streams whose work completes
 * when the test says so, calls that fail when the test says so, and a model of who owns each unit of physical memory.
 */
#ifndef FERRY_TESTS_STITCH_DEVICE_H
#define FERRY_TESTS_STITCH_DEVICE_H

#include "runtime/stitch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { TEST_STREAMS = 4, TEST_UNIT = 512, TEST_PAGES = 1 << 14 };

typedef struct test_map {
    char *at;
    int64_t bytes, physical;    /* offset in the file */
    int64_t last[TEST_STREAMS]; /* work of each stream that may use these addresses, up to here */
} test_map;

typedef struct test_page { /* chunk_bytes of a mapping, found by its address */
    struct test_page *next;
    char *at;
    test_map *map;
} test_page;

typedef struct test_unit {
    int owner;                  /* of a live block; 0: none */
    int64_t last[TEST_STREAMS]; /* as above */
} test_unit;

typedef struct test_device {
    ferry_stitch_device inner;
    int64_t fail_from, fail_count; /* calls fail_from, fail_from + 1 ... fail; 1 is the first */
    atomic_llong calls;
    bool modelled; /* single-threaded: maps, units and streams are checked */
    test_page *page[TEST_PAGES];
    int maps;
    test_unit *unit;
    int64_t enqueued[TEST_STREAMS], completed[TEST_STREAMS];
    bool closed[TEST_STREAMS];                 /* until its handle is that of a new stream */
    int64_t known[TEST_STREAMS][TEST_STREAMS]; /* known[b][a]: work of a that b's next work comes after */
    struct test_wait {
        int64_t after, known[TEST_STREAMS]; /* work of the stream that is enqueued before the wait */
    } wait[TEST_STREAMS][4096];
    int waits[TEST_STREAMS];
    char wrong[200];                     /* the first rule that was broken */
    atomic_llong chunks, ranges, events; /* open */
} test_device;

typedef struct test_event {
    int stream;
    int64_t at, known[TEST_STREAMS];
} test_event;

static inline void test_wrong(test_device *d, const char *what)
{
    if (d->wrong[0] == '\0') {
        snprintf(d->wrong, sizeof(d->wrong), "%s", what);
    }
}

static inline void *test_stream(int i)
{
    return i == 0 ? NULL : (void *)(uintptr_t)(0x1000 + i);
}

static inline int test_stream_index(const void *stream)
{
    return stream == NULL ? 0 : (int)((uintptr_t)stream - 0x1000);
}

static inline bool test_fails(test_device *d)
{
    int64_t call = atomic_fetch_add(&d->calls, 1) + 1;
    return d->fail_count > 0 && call >= d->fail_from && call < d->fail_from + d->fail_count;
}

/* Work of the stream up to `to` is complete, and so is all that it waited for. */
static inline void test_complete(test_device *d, int stream, int64_t to)
{
    if (to <= d->completed[stream]) {
        return;
    }
    d->completed[stream] = to;
    while (d->waits[stream] > 0 && d->wait[stream][0].after < to) {
        struct test_wait w = d->wait[stream][0];
        memmove(&d->wait[stream][0], &d->wait[stream][1], (size_t)--d->waits[stream] * sizeof(w));
        for (int i = 0; i < TEST_STREAMS; i++) {
            test_complete(d, i, w.known[i]);
        }
    }
}

static inline test_page **test_page_of(test_device *d, const char *at)
{
    uintptr_t number = (uintptr_t)at / (uintptr_t)d->inner.chunk_bytes;
    test_page **link = &d->page[number % TEST_PAGES];
    while (*link != NULL && (uintptr_t)(*link)->at / (uintptr_t)d->inner.chunk_bytes != number) {
        link = &(*link)->next;
    }
    return link;
}

static inline test_map *test_find(test_device *d, const char *at)
{
    test_page *p = *test_page_of(d, at);
    return p != NULL ? p->map : NULL;
}

static inline void test_add(test_device *d, char *at, int64_t bytes, int64_t physical)
{
    test_map *m = malloc(sizeof(*m));
    *m = (test_map){at, bytes, physical, {0}};
    for (int64_t i = 0; i < bytes; i += d->inner.chunk_bytes) {
        test_page **link = test_page_of(d, at + i), *p = malloc(sizeof(*p));
        *p = (test_page){*link, at + i, m};
        *link = p;
    }
    d->maps++;
}

static inline void test_remove(test_device *d, test_map *m)
{
    for (int64_t i = 0; i < m->bytes; i += d->inner.chunk_bytes) {
        test_page **link = test_page_of(d, m->at + i), *p = *link;
        *link = p->next;
        free(p);
    }
    free(m);
    d->maps--;
}

static ferry_status test_create(void *self, int64_t bytes, uint64_t *chunk)
{
    test_device *d = self;
    if (test_fails(d)) {
        return FERRY_FAILED;
    }
    ferry_status status = d->inner.create(d->inner.self, bytes, chunk);
    d->chunks += d->modelled && status == FERRY_OK;
    return status;
}

static void test_release(void *self, uint64_t chunk)
{
    test_device *d = self;
    d->chunks -= d->modelled;
    d->inner.release(d->inner.self, chunk);
}

static ferry_status test_reserve(void *self, int64_t bytes, void **at)
{
    test_device *d = self;
    if (test_fails(d)) {
        return FERRY_FAILED;
    }
    ferry_status status = d->inner.reserve(d->inner.self, bytes, at);
    d->ranges += d->modelled && status == FERRY_OK;
    return status;
}

static void test_unreserve(void *self, void *at, int64_t bytes)
{
    test_device *d = self;
    d->ranges -= d->modelled;
    d->inner.unreserve(d->inner.self, at, bytes);
}

static ferry_status test_map_call(void *self, void *at, int64_t bytes, uint64_t chunk)
{
    test_device *d = self;
    if (test_fails(d)) {
        return FERRY_FAILED;
    }
    ferry_status status = d->inner.map(d->inner.self, at, bytes, chunk);
    if (status == FERRY_OK && d->modelled) {
        if (test_find(d, at) != NULL) {
            test_wrong(d, "mapped over a mapping");
        }
        test_add(d, at, bytes, (int64_t)chunk * d->inner.chunk_bytes);
    }
    return status;
}

static ferry_status test_allow(void *self, void *at, int64_t bytes)
{
    test_device *d = self;
    return test_fails(d) ? FERRY_FAILED : d->inner.allow(d->inner.self, at, bytes);
}

static ferry_status test_unmap(void *self, void *at, int64_t bytes)
{
    test_device *d = self;
    if (d->modelled) {
        test_map *m = test_find(d, at);
        if (m == NULL || m->at != at || m->bytes != bytes) {
            test_wrong(d, "unmapped what no call had mapped");
        } else {
            for (int i = 0; i < TEST_STREAMS; i++) {
                if (m->last[i] > d->completed[i]) {
                    test_wrong(d, "unmapped while the device may use it");
                }
            }
            test_remove(d, m);
        }
    }
    return d->inner.unmap(d->inner.self, at, bytes);
}

static ferry_status test_event_record(void *self, void *stream, void **event)
{
    test_device *d = self;
    if (test_fails(d)) {
        return FERRY_FAILED;
    }
    if (*event == NULL) {
        *event = calloc(1, sizeof(test_event));
        d->events += d->modelled;
    }
    if (d->modelled) {
        test_event *e = *event;
        e->stream = test_stream_index(stream);
        if (d->closed[e->stream]) {
            test_wrong(d, "recorded on a stream that is gone");
        }
        e->at = d->enqueued[e->stream];
        memcpy(e->known, d->known[e->stream], sizeof(e->known));
    }
    return FERRY_OK;
}

static bool test_event_done(void *self, void *event)
{
    test_device *d = self;
    const test_event *e = event;
    if (!d->modelled) {
        return true;
    }
    bool done = e->at <= d->completed[e->stream];
    for (int i = 0; i < TEST_STREAMS; i++) {
        done = done && e->known[i] <= d->completed[i];
    }
    return done;
}

static ferry_status test_event_wait(void *self, void *stream, void *event)
{
    test_device *d = self;
    if (test_fails(d)) {
        return FERRY_FAILED;
    }
    if (d->modelled) {
        const test_event *e = event;
        int index = test_stream_index(stream);
        int64_t *known = d->known[index];
        if (d->closed[index]) {
            test_wrong(d, "a stream that is gone is to wait");
        }
        for (int i = 0; i < TEST_STREAMS; i++) {
            known[i] = e->known[i] > known[i] ? e->known[i] : known[i];
        }
        known[e->stream] = e->at > known[e->stream] ? e->at : known[e->stream];
        struct test_wait *w = &d->wait[index][d->waits[index]++];
        w->after = d->enqueued[index];
        memcpy(w->known, known, sizeof(w->known));
    }
    return FERRY_OK;
}

static ferry_status test_event_sync(void *self, void *event)
{
    test_device *d = self;
    if (d->modelled) {
        const test_event *e = event;
        test_complete(d, e->stream, e->at);
        for (int i = 0; i < TEST_STREAMS; i++) {
            test_complete(d, i, e->known[i]);
        }
    }
    return FERRY_OK;
}

static void test_event_close(void *self, void *event)
{
    test_device *d = self;
    d->events -= d->modelled;
    free(event);
}

static void test_close(void *self)
{
    test_device *d = self;
    d->inner.close(d->inner.self);
}

static inline ferry_status test_device_open(test_device *d, int64_t chunk_bytes, int64_t capacity, bool modelled,
                                            ferry_stitch_device *out)
{
    memset(d, 0, sizeof(*d));
    d->modelled = modelled;
    d->unit = calloc((size_t)(capacity / TEST_UNIT), sizeof(*d->unit));
    ferry_status status = ferry_stitch_host(chunk_bytes, capacity, false, &d->inner);
    *out = d->inner;
    out->self = d;
    out->create = test_create;
    out->release = test_release;
    out->reserve = test_reserve;
    out->unreserve = test_unreserve;
    out->map = test_map_call;
    out->allow = test_allow;
    out->unmap = test_unmap;
    out->event_record = test_event_record;
    out->event_done = test_event_done;
    out->event_wait = test_event_wait;
    out->event_sync = test_event_sync;
    out->event_close = test_event_close;
    out->close = test_close;
    return status;
}

/* The block [at, at + bytes) is handed to `stream` (owner > 0), or freed by it and by the streams of the mask `used`.
 */
static inline void test_own(test_device *d, char *at, int64_t bytes, int owner, int stream)
{
    for (int64_t done = 0; done < bytes;) {
        test_map *m = test_find(d, at + done);
        if (m == NULL) {
            test_wrong(d, "handed out without memory");
            return;
        }
        for (; done < bytes && at + done < m->at + m->bytes; done += TEST_UNIT) {
            test_unit *u = &d->unit[(m->physical + (at + done - m->at)) / TEST_UNIT];
            if (u->owner != 0) {
                test_wrong(d, "handed out twice");
            }
            for (int i = 0; i < TEST_STREAMS; i++) {
                if (i != stream && u->last[i] > d->completed[i] && u->last[i] > d->known[stream][i]) {
                    test_wrong(d, "handed to a stream that does not wait for its last user");
                }
            }
            u->owner = owner;
        }
    }
}

static inline void test_disown(test_device *d, char *at, int64_t bytes, int owner, unsigned used)
{
    for (int64_t done = 0; done < bytes;) {
        test_map *m = test_find(d, at + done);
        if (m == NULL) {
            test_wrong(d, "freed without memory");
            return;
        }
        for (int i = 0; i < TEST_STREAMS; i++) {
            m->last[i] = used >> i & 1 ? d->enqueued[i] : m->last[i];
        }
        for (; done < bytes && at + done < m->at + m->bytes; done += TEST_UNIT) {
            test_unit *u = &d->unit[(m->physical + (at + done - m->at)) / TEST_UNIT];
            if (u->owner != owner) {
                test_wrong(d, "owned by another");
            }
            u->owner = 0;
            for (int i = 0; i < TEST_STREAMS; i++) {
                u->last[i] = used >> i & 1 ? d->enqueued[i] : u->last[i];
            }
        }
    }
}

#endif
