/* pool.c - device pools over any backend's virtual memory.
 *
 * A pool is one block of physical memory. It is mapped once as a whole, from offset 0; a buffer that the plan laid out
 * in one run lives there. A buffer that lies in several runs gets a range of addresses of its own in which the runs are
 * mapped one behind the other. So one physical chunk can have several addresses, at different times for different
 * buffers: what keeps them apart is the plan's order, not the pool. */
#include "runtime/backend.h"

#include <stdlib.h>

typedef struct pool_range {
    struct pool_range *next;
    void *address;
    int64_t bytes; /* a multiple of the chunk, all of it mapped */
} pool_range;

struct ferry_pool {
    ferry_device *device;
    void *physical;
    int64_t bytes; /* a multiple of the chunk */
    char *base;    /* of the whole block */
    pool_range *ranges;
    uint64_t *shadow;
};

static bool round_up(int64_t bytes, int64_t chunk, int64_t *out)
{
    int64_t more;
    if (!ferryi_add(bytes, chunk - 1, &more)) {
        return false;
    }
    *out = more / chunk * chunk;
    return true;
}

/* ---- ranges ----------------------------------------------------------------------------------------------------- */

static void unmap_range(ferry_pool *p, void *address, int64_t mapped_bytes, int64_t bytes)
{
    if (mapped_bytes > 0) {
        p->device->backend->range_unmap(p->device, address, mapped_bytes);
        ferryi_region_remove(p->device, address, mapped_bytes);
    }
    p->device->backend->range_free(p->device, address, bytes);
}

/* Length in bytes, in whole chunks, of the run that starts at piece *i: pieces that are neighbours in physical memory
 * too. Moves *i behind it. */
static int64_t next_run(const ferry_pool *p, const ferry_piece *pieces, int count, int *i, int64_t *offset)
{
    int64_t bytes = 0;
    *offset = pieces[*i].offset_bytes;
    do {
        int64_t whole = 0;
        round_up(pieces[*i].bytes, p->device->chunk_bytes, &whole);
        bytes += whole;
        ++*i;
    } while (*i < count && pieces[*i].offset_bytes == *offset + bytes);
    return bytes;
}

/* One range over all pieces, or nothing at all. `bytes`: their sum in whole chunks. */
static ferry_status map_range(ferry_pool *p, const ferry_piece *pieces, int count, int64_t bytes, void **out)
{
    const ferryi_backend *b = p->device->backend;
    void *address = NULL;
    ferry_status status = b->range_reserve(p->device, bytes, &address);
    if (status != FERRY_OK) {
        return status;
    }
    int64_t mapped = 0;
    for (int i = 0; i < count;) {
        int64_t offset;
        int64_t run = next_run(p, pieces, count, &i, &offset);
        char *at = (char *)address + mapped;
        status = b->range_map(p->device, at, run, p->physical, offset);
        if (status == FERRY_OK) {
            mapped += run;
            ferryi_region r = {(uintptr_t)at, run, FERRYI_DEVICE, offset, p->shadow};
            status = ferryi_region_add(p->device, r);
        }
        if (status != FERRY_OK) {
            unmap_range(p, address, mapped, bytes);
            return status;
        }
    }
    *out = address;
    return FERRY_OK;
}

/* ---- pool ------------------------------------------------------------------------------------------------------- */

static void count_bytes(ferry_device *d, int64_t more)
{
    pthread_mutex_lock(&d->lock);
    d->held_bytes += more;
    if (d->held_bytes > d->peak_bytes) {
        d->peak_bytes = d->held_bytes;
    }
    pthread_mutex_unlock(&d->lock);
}

ferry_status ferry_pool_open(ferry_device *d, int64_t bytes, ferry_pool **out)
{
    if (out == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_pool_open: out is NULL");
    }
    *out = NULL;
    int64_t whole = 0;
    if (d == NULL || bytes <= 0 || !round_up(bytes, d->chunk_bytes, &whole)) {
        return ferryi_fail(FERRY_USAGE, "ferry_pool_open: %s",
                           d == NULL ? "the device is NULL" : "the size must be above 0 and below 2^63");
    }
    ferry_pool *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_pool_open: no memory");
    }
    p->device = d;
    p->bytes = whole;
    ferry_status status = d->backend->physical_create(d, whole, &p->physical);
    if (status == FERRY_OK) {
        status = ferryi_shadow_alloc(whole, &p->shadow);
        if (status == FERRY_OK) {
            ferry_piece all = {0, whole};
            void *base = NULL;
            status = map_range(p, &all, 1, whole, &base);
            p->base = base;
        }
        if (status != FERRY_OK) {
            d->backend->physical_release(d, p->physical);
        }
    }
    if (status != FERRY_OK) {
        free(p->shadow);
        free(p);
        return status;
    }
    count_bytes(d, whole);
    *out = p;
    return FERRY_OK;
}

void ferry_pool_close(ferry_pool *p)
{
    if (p == NULL) {
        return;
    }
    while (p->ranges != NULL) {
        pool_range *r = p->ranges;
        p->ranges = r->next;
        unmap_range(p, r->address, r->bytes, r->bytes);
        free(r);
    }
    unmap_range(p, p->base, p->bytes, p->bytes);
    p->device->backend->physical_release(p->device, p->physical);
    count_bytes(p->device, -p->bytes);
    free(p->shadow);
    free(p);
}

void *ferry_pool_at(ferry_pool *p, int64_t offset_bytes)
{
    return p->base + offset_bytes;
}

int64_t ferry_pool_bytes(const ferry_pool *p)
{
    return p->bytes;
}

/* ---- stitching -------------------------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b)
{
    const ferry_piece *x = a, *y = b;
    return (x->offset_bytes > y->offset_bytes) - (x->offset_bytes < y->offset_bytes);
}

/* A chunk that occurs twice in one range would make a buffer overwrite itself. */
static ferry_status check_overlap(const ferry_piece *pieces, int count)
{
    ferry_piece *sorted = malloc((size_t)count * sizeof(*sorted));
    if (sorted == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_pool_stitch: no memory for %d pieces", count);
    }
    for (int i = 0; i < count; i++) {
        sorted[i] = pieces[i];
    }
    qsort(sorted, (size_t)count, sizeof(*sorted), by_offset);
    ferry_status status = FERRY_OK;
    for (int i = 1; i < count && status == FERRY_OK; i++) {
        if (sorted[i - 1].offset_bytes + sorted[i - 1].bytes > sorted[i].offset_bytes) {
            status = ferryi_fail(FERRY_USAGE, "ferry_pool_stitch: the pieces at %lld and %lld overlap",
                                 (long long)sorted[i - 1].offset_bytes, (long long)sorted[i].offset_bytes);
        }
    }
    free(sorted);
    return status;
}

static ferry_status check_pieces(const ferry_pool *p, const ferry_piece *pieces, int count, int64_t *bytes)
{
    int64_t chunk = p->device->chunk_bytes;
    *bytes = 0;
    for (int i = 0; i < count; i++) {
        int64_t end, whole;
        ferry_piece piece = pieces[i];
        const char *wrong = NULL;
        if (piece.bytes <= 0) {
            wrong = "is empty";
        } else if (piece.offset_bytes < 0 || piece.offset_bytes % chunk != 0) {
            wrong = "does not start at a multiple of the chunk";
        } else if (i < count - 1 && piece.bytes % chunk != 0) {
            wrong = "is not a number of whole chunks long, which only the last piece may be";
        } else if (!ferryi_add(piece.offset_bytes, piece.bytes, &end) || end > p->bytes) {
            wrong = "ends behind the pool";
        } else if (!round_up(piece.bytes, chunk, &whole) || !ferryi_add(*bytes, whole, bytes)) {
            wrong = "makes the range too long";
        }
        if (wrong != NULL) {
            return ferryi_fail(
                FERRY_USAGE,
                "ferry_pool_stitch: piece %d (offset %lld, %lld bytes) %s; the chunk is %lld bytes, the pool "
                "%lld",
                i, (long long)piece.offset_bytes, (long long)piece.bytes, wrong, (long long)chunk, (long long)p->bytes);
        }
    }
    return check_overlap(pieces, count);
}

ferry_status ferry_pool_stitch(ferry_pool *p, const ferry_piece *pieces, int count, void **out)
{
    if (out == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_pool_stitch: out is NULL");
    }
    *out = NULL;
    if (p == NULL || pieces == NULL || count <= 0) {
        return ferryi_fail(FERRY_USAGE, "ferry_pool_stitch: needs a pool and at least one piece");
    }
    int64_t bytes;
    ferry_status status = check_pieces(p, pieces, count, &bytes);
    if (status != FERRY_OK) {
        return status;
    }
    pool_range *r = malloc(sizeof(*r));
    if (r == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_pool_stitch: no memory");
    }
    void *address = NULL;
    status = map_range(p, pieces, count, bytes, &address);
    if (status != FERRY_OK) {
        free(r);
        return status;
    }
    *r = (pool_range){p->ranges, address, bytes};
    p->ranges = r;
    *out = address;
    return FERRY_OK;
}
