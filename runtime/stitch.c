/* stitch.c - the allocator's door: requests through the states S1 to S5, frees, trimming. */
#include "runtime/stitch_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static ferry_status check_options(const ferry_stitch_device *d, ferry_stitch_options *o)
{
    const int64_t usual = 2 << 20;
    int64_t slot = d->chunk_bytes;
    if (slot < 4096 || (slot & (slot - 1)) != 0 || d->capacity_bytes < slot || d->capacity_bytes > INT64_MAX / 4) {
        return ferryi_fail(FERRY_USAGE,
                           "ferry_stitch_open: chunks of %lld bytes, capacity %lld: a chunk is a power of two and "
                           "at least 4096, and the capacity holds one",
                           (long long)slot, (long long)d->capacity_bytes);
    }
    o->small_bytes = o->small_bytes != 0 ? o->small_bytes : (usual < slot ? usual : slot);
    o->fragment_bytes = o->fragment_bytes != 0 ? o->fragment_bytes : slot;
    o->large_chunk = o->large_chunk != 0 ? o->large_chunk : slot > 16 * usual ? slot : stitch_round(16 * usual, slot);
    o->limit_bytes = o->limit_bytes != 0 ? o->limit_bytes : d->capacity_bytes;
    o->max_sblocks = o->max_sblocks != 0 ? o->max_sblocks : 1024;
    if (o->small_bytes < 0 || o->small_bytes > slot || o->fragment_bytes < 0 || o->limit_bytes < 0 ||
        o->max_sblocks < 0 || o->large_chunk < slot || o->large_chunk % slot != 0) {
        return ferryi_fail(FERRY_USAGE,
                           "ferry_stitch_open: an option is negative, small_bytes is above a chunk, or large_chunk "
                           "is no multiple of it");
    }
    if (o->limit_bytes > d->capacity_bytes) {
        o->limit_bytes = d->capacity_bytes;
    }
    return FERRY_OK;
}

static ferry_status open_parts(ferry_stitch *s)
{
    ferry_status status = check_options(&s->device, &s->options);
    if (status == FERRY_OK) {
        status = stitch_home_open(s);
    }
    if (status != FERRY_OK) {
        return status;
    }
    s->capacity = 1024;
    s->table = calloc((size_t)s->capacity, sizeof(*s->table));
    s->places = calloc(PLACES, sizeof(*s->places));
    if (s->table == NULL || s->places == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_stitch_open: no host memory");
    }
    if (s->options.worker) {
        if (pthread_create(&s->worker, NULL, stitch_pool_worker, s) != 0) {
            return ferryi_fail(FERRY_FAILED, "ferry_stitch_open: cannot start a thread");
        }
        s->has_worker = true;
    }
    return FERRY_OK;
}

ferry_status ferry_stitch_open(const ferry_stitch_device *device, const ferry_stitch_options *options,
                               ferry_stitch **out)
{
    if (out != NULL) {
        *out = NULL;
    }
    if (device == NULL || out == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_stitch_open: %s is NULL", device == NULL ? "the device" : "out");
    }
    ferry_stitch *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        device->close(device->self);
        return ferryi_fail(FERRY_FAILED, "ferry_stitch_open: no host memory");
    }
    s->device = *device;
    if (options != NULL) {
        s->options = *options;
    }
    pthread_mutex_init(&s->lock, NULL); /* with the default attributes they cannot fail */
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->calm, NULL);
    ferry_status status = open_parts(s);
    if (status != FERRY_OK) {
        ferry_stitch_close(s);
        return status;
    }
    *out = s;
    return FERRY_OK;
}

void ferry_stitch_close(ferry_stitch *s)
{
    if (s == NULL) {
        return;
    }
    if (s->has_worker) {
        pthread_mutex_lock(&s->lock);
        s->quit = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->worker, NULL);
    }
    stitch_pool_close(s);
    stitch_home_close(s);
    stitch_streams_close(s);
    free(s->table);
    free(s->places);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->calm);
    s->device.close(s->device.self);
    free(s);
}

/* ---- live blocks ------------------------------------------------------------------------------------------------- */

static int64_t hash(const ferry_stitch *s, const void *address)
{
    uint64_t x = (uint64_t)(uintptr_t)address / UNIT_BYTES * UINT64_C(0x9E3779B97F4A7C15);
    return (int64_t)((x >> 20) & (uint64_t)(s->capacity - 1));
}

live *stitch_find(const ferry_stitch *s, const void *address)
{
    int64_t i = hash(s, address);
    while (s->table[i].address != NULL && s->table[i].address != address) {
        i = (i + 1) & (s->capacity - 1);
    }
    return &s->table[i];
}

static ferry_status table_room(ferry_stitch *s)
{
    if (2 * (s->used + 1) <= s->capacity) {
        return FERRY_OK;
    }
    live *old = s->table;
    int64_t capacity = s->capacity;
    live *table = calloc((size_t)capacity * 2, sizeof(*table));
    if (table == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_stitch: no host memory");
    }
    s->table = table;
    s->capacity = 2 * capacity;
    for (int64_t i = 0; i < capacity; i++) {
        if (old[i].address != NULL) {
            *stitch_find(s, old[i].address) = old[i];
        }
    }
    free(old);
    return FERRY_OK;
}

/* Closes the gap, so that a search may stop at an empty place. */
static void table_remove(ferry_stitch *s, live *e)
{
    int64_t mask = s->capacity - 1, gap = e - s->table;
    for (int64_t i = (gap + 1) & mask; s->table[i].address != NULL; i = (i + 1) & mask) {
        int64_t wanted = hash(s, s->table[i].address);
        if (((i - wanted) & mask) >= ((i - gap) & mask)) {
            s->table[gap] = s->table[i];
            gap = i;
        }
    }
    s->table[gap].address = NULL;
    s->used--;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* The paper's pBlocks stay as they were split; ours merge, and are split again where they were. Both are the exact
 * match of a pattern that has been seen. (Of several places with one hash the last two are known.) */
static bool seen_before(ferry_stitch *s, int arena, int64_t at, int64_t bytes)
{
    uint64_t key = ((uint64_t)at * 2 + (uint64_t)arena) * UINT64_C(0x9E3779B97F4A7C15) +
                   (uint64_t)bytes * UINT64_C(0xC2B2AE3D27D4EB4F);
    key = (key ^ key >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
    uint64_t *known = &s->places[(key >> 40) % (PLACES / 2) * 2];
    if (known[0] == key) {
        return true;
    }
    bool seen = known[1] == key;
    known[1] = known[0];
    known[0] = key;
    return seen;
}

static bool take_home(ferry_stitch *s, queue *q, pblock *b, int64_t bytes, place *out)
{
    if (b == NULL) {
        return false;
    }
    out->state = seen_before(s, b->arena, b->at, bytes) || b->bytes == bytes ? 0 : 1;
    out->home = stitch_home_take(s, b, b->at, bytes, q);
    return true;
}

/* Slabs first; then what is too short to be of use to anything else. */
static ferry_status get_small(ferry_stitch *s, queue *q, int64_t bytes, place *out)
{
    ferry_status status = stitch_nodes(s, 2);
    if (status != FERRY_OK) {
        return status;
    }
    pblock *b = stitch_home_fit(q, SMALL, bytes);
    if (b == NULL) {
        b = stitch_home_fit(q, LARGE, bytes);
        b = b != NULL && b->bytes < s->device.chunk_bytes ? b : NULL;
    }
    if (b == NULL && stitch_adopt(s, q, bytes, false) > 0) {
        b = stitch_home_fit(q, SMALL, bytes);
    }
    if (take_home(s, q, b, bytes, out)) {
        return FERRY_OK;
    }
    status = stitch_make_small(s, q);
    b = stitch_home_fit(q, SMALL, bytes);
    if (b == NULL) {
        b = stitch_home_fit(q, LARGE, bytes);
    }
    if (b == NULL || stitch_nodes(s, 2) != FERRY_OK) {
        return status;
    }
    (void)take_home(s, q, b, bytes, out);
    out->state = status == FERRY_OK ? 3 : out->state;
    return FERRY_OK;
}

static ferry_status get_large(ferry_stitch *s, queue *q, int64_t bytes, place *out)
{
    for (;;) {
        ferry_status status = stitch_nodes(s, 2 * s->most_pieces + 4);
        if (status != FERRY_OK || take_home(s, q, stitch_home_fit(q, LARGE, bytes), bytes, out)) {
            return status;
        }
        out->stitched = stitch_pool_take(s, q, bytes);
        if (out->stitched != NULL) {
            out->state = 0;
            return FERRY_OK;
        }
        if (!s->has_worker) {
            stitch_pool_tend(s, false);
        }
        status = stitch_make(s, q, bytes, out);
        if (status != FERRY_OK || out->home != NULL || out->stitched != NULL) {
            return status;
        }
    }
}

static ferry_status get(ferry_stitch *s, queue *q, int64_t bytes, place *out)
{
    return bytes < s->options.small_bytes ? get_small(s, q, bytes, out) : get_large(s, q, bytes, out);
}

static ferry_status alloc_locked(ferry_stitch *s, int64_t bytes, void *stream, void **out)
{
    queue *q;
    place p = {.state = 0};
    ferry_status status = stitch_queue_get(s, stream, &q);
    if (status != FERRY_OK) {
        return status;
    }
    if (s->waiting != NULL) {
        stitch_poll(s, false);
    }
    status = get(s, q, bytes, &p);
    if (status != FERRY_OK) {
        stitch_poll(s, true);
        stitch_adopt(s, q, INT64_MAX, true);
        status = get(s, q, bytes, &p);
    }
    s->stats.requests++;
    s->stats.state[status == FERRY_OK ? p.state : 4]++;
    if (status == FERRY_OK) {
        status = table_room(s);
    } else {
        return status;
    }
    live block = {.home = p.home, .stitched = p.stitched, .bytes = bytes, .queue = q};
    if (status != FERRY_OK) {
        stitch_release(s, &block);
        return status;
    }
    block.address = p.home != NULL ? s->arena[p.home->arena].base + p.home->at : p.stitched->address;
    *stitch_find(s, block.address) = block;
    s->used++;
    s->stats.live_bytes += bytes;
    if (s->stats.live_bytes > s->stats.peak_live_bytes) {
        s->stats.peak_live_bytes = s->stats.live_bytes;
    }
    *out = block.address;
    return FERRY_OK;
}

ferry_status ferry_stitch_alloc(ferry_stitch *s, int64_t bytes, void *stream, void **out)
{
    if (out != NULL) {
        *out = NULL;
    }
    if (s == NULL || out == NULL || bytes < 0) {
        return ferryi_fail(FERRY_USAGE, "ferry_stitch_alloc: %s",
                           bytes < 0 ? "the size is negative" : "an argument is NULL");
    }
    if (bytes == 0) {
        return FERRY_OK;
    }
    if (bytes > s->device.capacity_bytes) {
        return ferryi_fail(FERRY_FAILED, "ferry_stitch: out of memory: %lld bytes asked for, the device has %lld",
                           (long long)bytes, (long long)s->device.capacity_bytes);
    }
    pthread_mutex_lock(&s->lock);
    ferry_status status = alloc_locked(s, stitch_round(bytes, UNIT_BYTES), stream, out);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- frees ------------------------------------------------------------------------------------------------------- */

void stitch_release(ferry_stitch *s, const live *block)
{
    if (block->home != NULL) {
        stitch_home_free(s, block->home);
    } else {
        stitch_pool_free(s, block->stitched);
    }
}

static ferry_status not_live(const char *what, const void *address)
{
    return ferryi_fail(FERRY_USAGE, "%s: %p is not the address of a live block", what, address);
}

ferry_status ferry_stitch_free(ferry_stitch *s, void *address)
{
    if (s == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_stitch_free: the allocator is NULL");
    }
    if (address == NULL) {
        return FERRY_OK;
    }
    pthread_mutex_lock(&s->lock);
    live *e = stitch_find(s, address);
    ferry_status status = e->address != NULL ? FERRY_OK : not_live("ferry_stitch_free", address);
    if (status == FERRY_OK && e->uses != NULL) {
        status = stitch_wait_later(s, e);
    } else if (status == FERRY_OK) {
        stitch_release(s, e);
    }
    if (status == FERRY_OK) {
        s->stats.live_bytes -= e->bytes;
        s->stats.frees++;
        table_remove(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

ferry_status ferry_stitch_use(ferry_stitch *s, void *address, void *stream)
{
    if (s == NULL || address == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_stitch_use: an argument is NULL");
    }
    pthread_mutex_lock(&s->lock);
    live *e = stitch_find(s, address);
    ferry_status status = e->address != NULL ? FERRY_OK : not_live("ferry_stitch_use", address);
    bool known = status != FERRY_OK || (!e->queue->closed && e->queue->stream == stream);
    for (const use *u = known ? NULL : e->uses; u != NULL; u = u->next) {
        known = known || u->stream == stream;
    }
    if (!known) {
        use *u = malloc(sizeof(*u));
        if (u == NULL) {
            status = ferryi_fail(FERRY_FAILED, "ferry_stitch: no host memory");
        } else {
            *u = (use){e->uses, stream, NULL};
            e->uses = u;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- trimming ---------------------------------------------------------------------------------------------------- */

/* The device is done with all that was freed, and no sBlock is left that can be spared. The lock is released on the
 * way, but not after the last wait. */
static ferry_status come_to_rest(ferry_stitch *s)
{
    stitch_poll(s, true);
    while (s->oldest != NULL) {
        ferry_status status = stitch_pool_drop(s, s->oldest);
        if (status != FERRY_OK) {
            return status;
        }
    }
    stitch_pool_tend(s, true);
    while (s->dropping > 0) {
        pthread_cond_wait(&s->calm, &s->lock);
    }
    for (queue *q = s->queues; q != NULL; q = q->next) {
        ferry_status status = stitch_record(s, q, &q->event);
        if (status == FERRY_OK) {
            status = stitch_event_sync(s, q->event);
        }
        if (status != FERRY_OK) {
            return status;
        }
        q->pending = false;
        q->done = q->frees;
    }
    /* a chunk that two queues have freed half each is whole again */
    if (s->queues != NULL) {
        stitch_adopt(s, s->queues, INT64_MAX, false);
    }
    return FERRY_OK;
}

/* Whole chunks from slot i on that lie in b and in no sBlock. */
static int64_t spare_bytes(const ferry_stitch *s, const arena *a, const pblock *b, int64_t i)
{
    int64_t slot = s->device.chunk_bytes, at = i * slot, end = at;
    while (b->state == P_FREE && end < b->at + b->bytes) {
        const chunk *c = a->chunks[end / slot];
        if (c->at != end || c->sblocks > 0 || end + c->bytes > b->at + b->bytes) {
            break;
        }
        end += c->bytes;
    }
    return end - at;
}

ferry_status ferry_stitch_trim(ferry_stitch *s, int64_t *out_bytes)
{
    if (out_bytes != NULL) {
        *out_bytes = 0;
    }
    if (s == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_stitch_trim: the allocator is NULL");
    }
    int64_t slot = s->device.chunk_bytes, freed = 0;
    pthread_mutex_lock(&s->lock);
    ferry_status status = come_to_rest(s);
    for (int n = 0; n < 2 && status == FERRY_OK; n++) {
        arena *a = &s->arena[n];
        for (int64_t i = 0; i < a->bytes / slot && status == FERRY_OK;) {
            pblock *b = a->cover[i];
            int64_t bytes = spare_bytes(s, a, b, i);
            if (bytes > 0 && (status = stitch_nodes(s, 2)) == FERRY_OK) {
                b = stitch_home_take(s, b, i * slot, bytes, b->queue);
                int chunks = stitch_chunks_release(s, n, b->at, bytes);
                stitch_home_hole(s, b);
                s->stats.unmaps += chunks;
                s->stats.releases += chunks;
                freed += bytes;
            }
            i += bytes > 0 ? bytes / slot : 1;
        }
    }
    s->stats.reserved_bytes -= freed;
    s->promised_bytes -= freed;
    pthread_mutex_unlock(&s->lock);
    if (out_bytes != NULL) {
        *out_bytes = freed;
    }
    return status;
}
