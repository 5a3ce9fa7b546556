/* host_stitch.c - the stitching allocator's device on the host: one anonymous file is the physical memory, chunks are
 * places in it, and mapping is mmap. Streams are idle: what a test does, it does at once. */
#include "runtime/internal.h"
#include "runtime/stitch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FRESH_BYTE = 0xFF };

typedef struct host_memory {
    int fd;
    int64_t chunk_bytes, chunks;
    bool touch;
    pthread_mutex_t lock;
    int32_t *bytes_of; /* of the allocation that begins here, in chunks; 0: free or inside one */
    bool *taken;
    int64_t next; /* all before it are taken */
} host_memory;

/* A run of free places, first fit. -1: none. */
static int64_t find_run(host_memory *m, int64_t count)
{
    int64_t run = 0;
    while (m->next < m->chunks && m->taken[m->next]) {
        m->next++;
    }
    for (int64_t i = m->next; i < m->chunks; i++) {
        run = m->taken[i] ? 0 : run + 1;
        if (run == count) {
            return i + 1 - count;
        }
    }
    return -1;
}

static ferry_status fill(const host_memory *m, int64_t bytes, int64_t offset)
{
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, offset);
    if (p == MAP_FAILED) {
        return ferryi_fail(FERRY_FAILED, "cannot map %lld bytes: %s", (long long)bytes, strerror(errno));
    }
    memset(p, FRESH_BYTE, (size_t)bytes);
    munmap(p, (size_t)bytes);
    return FERRY_OK;
}

static void host_release(void *self, uint64_t chunk)
{
    host_memory *m = self;
    int64_t at = (int64_t)chunk, count = m->bytes_of[at];
    /* in the file's eyes a hole: the memory goes back once no mapping is left */
    (void)fallocate(m->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at * m->chunk_bytes, count * m->chunk_bytes);
    pthread_mutex_lock(&m->lock);
    m->bytes_of[at] = 0;
    memset(m->taken + at, 0, (size_t)count);
    m->next = at < m->next ? at : m->next;
    pthread_mutex_unlock(&m->lock);
}

static ferry_status host_create(void *self, int64_t bytes, uint64_t *chunk)
{
    host_memory *m = self;
    int64_t count = bytes / m->chunk_bytes;
    pthread_mutex_lock(&m->lock);
    int64_t at = find_run(m, count);
    if (at >= 0) {
        memset(m->taken + at, 1, (size_t)count);
        m->bytes_of[at] = (int32_t)count;
    }
    pthread_mutex_unlock(&m->lock);
    if (at < 0) {
        return ferryi_fail(FERRY_FAILED, "out of memory: no %lld bytes of %lld are free", (long long)bytes,
                           (long long)(m->chunks * m->chunk_bytes));
    }
    ferry_status status = m->touch ? fill(m, bytes, at * m->chunk_bytes) : FERRY_OK;
    if (status != FERRY_OK) {
        host_release(m, (uint64_t)at);
        return status;
    }
    *chunk = (uint64_t)at;
    return FERRY_OK;
}

static ferry_status host_reserve(void *self, int64_t bytes, void **at)
{
    (void)self;
    void *p = mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        return ferryi_fail(FERRY_FAILED, "cannot reserve %lld bytes of addresses: %s", (long long)bytes,
                           strerror(errno));
    }
    *at = p;
    return FERRY_OK;
}

static void host_unreserve(void *self, void *at, int64_t bytes)
{
    (void)self;
    munmap(at, (size_t)bytes);
}

/* Without access until it is allowed, as on a GPU. */
static ferry_status host_map(void *self, void *at, int64_t bytes, uint64_t chunk)
{
    host_memory *m = self;
    void *p = mmap(at, (size_t)bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, (off_t)chunk * m->chunk_bytes);
    if (p == MAP_FAILED) {
        return ferryi_fail(FERRY_FAILED, "cannot map %lld bytes: %s", (long long)bytes, strerror(errno));
    }
    return FERRY_OK;
}

static ferry_status host_allow(void *self, void *at, int64_t bytes)
{
    (void)self;
    if (mprotect(at, (size_t)bytes, PROT_READ | PROT_WRITE) != 0) {
        return ferryi_fail(FERRY_FAILED, "cannot allow access to %lld bytes: %s", (long long)bytes, strerror(errno));
    }
    return FERRY_OK;
}

static ferry_status host_unmap(void *self, void *at, int64_t bytes)
{
    (void)self;
    void *p = mmap(at, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return p != MAP_FAILED ? FERRY_OK : ferryi_fail(FERRY_FAILED, "cannot unmap %lld bytes", (long long)bytes);
}

static ferry_status host_event_record(void *self, void *stream, void **event)
{
    (void)stream;
    *event = self; /* any address does */
    return FERRY_OK;
}

static bool host_event_done(void *self, void *event)
{
    (void)self;
    (void)event;
    return true;
}

static ferry_status host_event_wait(void *self, void *stream, void *event)
{
    (void)self;
    (void)stream;
    (void)event;
    return FERRY_OK;
}

static ferry_status host_event_sync(void *self, void *event)
{
    (void)self;
    (void)event;
    return FERRY_OK;
}

static void host_event_close(void *self, void *event)
{
    (void)self;
    (void)event;
}

static void host_close(void *self)
{
    host_memory *m = self;
    if (m->fd >= 0) {
        close(m->fd);
    }
    pthread_mutex_destroy(&m->lock);
    free(m->bytes_of);
    free(m->taken);
    free(m);
}

ferry_status ferry_stitch_host(int64_t chunk_bytes, int64_t capacity_bytes, bool touch, ferry_stitch_device *out)
{
    if (out == NULL || chunk_bytes < 4096 || chunk_bytes % 4096 != 0 || capacity_bytes < chunk_bytes) {
        return ferryi_fail(FERRY_USAGE,
                           "ferry_stitch_host: out is NULL, the chunk is no multiple of 4096, or the capacity holds "
                           "none");
    }
    *out = (ferry_stitch_device){.self = NULL};
    host_memory *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_stitch_host: no memory");
    }
    *m = (host_memory){.chunk_bytes = chunk_bytes, .chunks = capacity_bytes / chunk_bytes, .touch = touch};
    pthread_mutex_init(&m->lock, NULL);
    m->taken = calloc((size_t)m->chunks, sizeof(*m->taken));
    m->bytes_of = calloc((size_t)m->chunks, sizeof(*m->bytes_of));
    m->fd = memfd_create("ferry chunks", MFD_CLOEXEC);
    if (m->taken == NULL || m->bytes_of == NULL || m->fd < 0 || ftruncate(m->fd, m->chunks * chunk_bytes) != 0) {
        ferry_status status = ferryi_fail(FERRY_FAILED, "ferry_stitch_host: no memory: %s", strerror(errno));
        host_close(m);
        return status;
    }
    *out = (ferry_stitch_device){
        .self = m,
        .chunk_bytes = chunk_bytes,
        .capacity_bytes = m->chunks * chunk_bytes,
        .create = host_create,
        .release = host_release,
        .reserve = host_reserve,
        .unreserve = host_unreserve,
        .map = host_map,
        .allow = host_allow,
        .unmap = host_unmap,
        .event_record = host_event_record,
        .event_done = host_event_done,
        .event_wait = host_event_wait,
        .event_sync = host_event_sync,
        .event_close = host_event_close,
        .close = host_close,
    };
    return FERRY_OK;
}

#ifndef FERRY_CUDA
ferry_status ferry_stitch_cuda(int ordinal, ferry_stitch_device *out)
{
    (void)ordinal;
    if (out != NULL) {
        *out = (ferry_stitch_device){.self = NULL};
    }
    return ferryi_fail(FERRY_FAILED, "ferry_stitch_cuda: this build of libferry has no CUDA backend");
}
#endif
