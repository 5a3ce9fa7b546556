/* stitch_sblock.c - the pool of sBlocks: handing out, dropping the least recently used (the paper's StitchFree), and
 * the addresses that dropped ones leave. */
#include "runtime/stitch_internal.h"

#include <stdlib.h>
#include <string.h>

/* An sBlock may be larger than the request by this part of it: what it could serve else is worth more. */
enum { WIDER_PART = 4, CANDIDATES = 32 };

/* ---- pool, sorted ------------------------------------------------------------------------------------------------ */

static int pool_find(const ferry_stitch *s, int64_t bytes, const char *address)
{
    int low = 0, high = s->pooled;
    while (low < high) {
        int middle = (low + high) / 2;
        const sblock *sb = s->pool[middle];
        if (sb->bytes < bytes || (sb->bytes == bytes && sb->address < address)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void lru_add(ferry_stitch *s, sblock *sb)
{
    sb->last_use = ++s->clock;
    sb->older = s->newest;
    sb->newer = NULL;
    if (s->newest != NULL) {
        s->newest->newer = sb;
    } else {
        s->oldest = sb;
    }
    s->newest = sb;
}

static void lru_remove(ferry_stitch *s, sblock *sb)
{
    *(sb->older != NULL ? &sb->older->newer : &s->oldest) = sb->newer;
    *(sb->newer != NULL ? &sb->newer->older : &s->newest) = sb->older;
}

ferry_status stitch_pool_reserve(ferry_stitch *s)
{
    if (s->pooled + s->promised_sblocks < s->pool_capacity) {
        return FERRY_OK;
    }
    int more = s->pool_capacity == 0 ? 64 : 2 * s->pool_capacity;
    sblock **pool = realloc(s->pool, (size_t)more * sizeof(sblock *));
    if (pool == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_stitch: no host memory");
    }
    s->pool = pool;
    s->pool_capacity = more;
    return FERRY_OK;
}

/* Tells the chunks that one more (less) sBlock maps them. */
static void count_chunks(ferry_stitch *s, const sblock *sb, int more)
{
    for (int i = 0; i < sb->count; i++) {
        const piece *p = &sb->pieces[i];
        for (int64_t from = p->at; from < p->at + p->bytes;) {
            chunk *c = s->arena[p->arena].chunks[from / s->device.chunk_bytes];
            c->sblocks += more;
            from += c->bytes;
        }
    }
}

void stitch_pool_add(ferry_stitch *s, sblock *sb)
{
    int i = pool_find(s, sb->bytes, sb->address);
    memmove(s->pool + i + 1, s->pool + i, (size_t)(s->pooled - i) * sizeof(sblock *));
    s->pool[i] = sb;
    s->pooled++;
    s->most_pieces = sb->count > s->most_pieces ? sb->count : s->most_pieces;
    s->stats.sblocks++;
    count_chunks(s, sb, 1);
}

static bool is_free(const ferry_stitch *s, const queue *q, const sblock *sb, int64_t bytes)
{
    for (int i = 0; bytes > 0; i++) {
        const piece *p = &sb->pieces[i];
        int64_t part = p->bytes < bytes ? p->bytes : bytes;
        if (!stitch_home_is_free(s, q, p->arena, p->at, part)) {
            return false;
        }
        bytes -= part;
    }
    return true;
}

sblock *stitch_pool_take(ferry_stitch *s, queue *q, int64_t bytes)
{
    int first = pool_find(s, bytes, NULL);
    for (int i = first; i < s->pooled && i < first + CANDIDATES; i++) {
        sblock *sb = s->pool[i];
        if (sb->bytes > bytes + bytes / WIDER_PART + s->device.chunk_bytes) {
            break;
        }
        if (sb->used > 0 || !is_free(s, q, sb, bytes)) {
            continue;
        }
        lru_remove(s, sb);
        sb->queue = q;
        for (int64_t rest = bytes; rest > 0; sb->used++) {
            const piece *p = &sb->pieces[sb->used];
            int64_t part = p->bytes < rest ? p->bytes : rest;
            pblock *home = s->arena[p->arena].cover[p->at / s->device.chunk_bytes];
            sb->parts[sb->used] = stitch_home_take(s, home, p->at, part, q);
            rest -= part;
        }
        return sb;
    }
    return NULL;
}

void stitch_pool_free(ferry_stitch *s, sblock *sb)
{
    for (int i = 0; i < sb->used; i++) {
        stitch_home_free(s, sb->parts[i]);
    }
    sb->used = 0;
    lru_add(s, sb);
}

/* ---- dropping ---------------------------------------------------------------------------------------------------- */

ferry_status stitch_pool_drop(ferry_stitch *s, sblock *sb)
{
    sb->event = stitch_event_take(s);
    ferry_status status = stitch_record(s, sb->queue, &sb->event);
    if (status != FERRY_OK) {
        stitch_event_give(s, sb->event);
        sb->event = NULL;
        return status;
    }
    int i = pool_find(s, sb->bytes, sb->address);
    lru_remove(s, sb);
    s->pooled--;
    memmove(s->pool + i, s->pool + i + 1, (size_t)(s->pooled - i) * sizeof(sblock *));
    s->stats.sblocks--;
    s->stats.sblocks_dropped++;
    sb->next = s->dropped;
    s->dropped = sb;
    if (s->has_worker) {
        pthread_cond_signal(&s->wake);
    }
    return FERRY_OK;
}

void stitch_sblock_free(sblock *sb)
{
    free(sb->pieces);
    free(sb->parts);
    free(sb);
}

bool stitch_sblock_unmap(ferry_stitch *s, sblock *sb)
{
    bool done = true;
    char *at = sb->address;
    int maps = sb->maps;
    for (int i = 0; i < sb->count && maps > 0; i++) {
        const piece *p = &sb->pieces[i];
        for (int64_t from = p->at; from < p->at + p->bytes && maps > 0; maps--) {
            const chunk *c = s->arena[p->arena].chunks[from / s->device.chunk_bytes];
            done = s->device.unmap(s->device.self, at, c->bytes) == FERRY_OK && done;
            at += c->bytes;
            from += c->bytes;
        }
    }
    return done;
}

void stitch_pool_tend(ferry_stitch *s, bool wait)
{
    sblock *mine = NULL;
    for (sblock **link = &s->dropped; *link != NULL;) {
        sblock *sb = *link;
        if (wait || stitch_event_done(s, sb->event)) {
            *link = sb->next;
            sb->next = mine;
            mine = sb;
            s->dropping++;
        } else {
            link = &sb->next;
        }
    }
    while (mine != NULL) {
        sblock *sb = mine;
        mine = sb->next;
        pthread_mutex_unlock(&s->lock);
        if (wait) {
            (void)stitch_event_sync(s, sb->event);
        }
        bool unmapped = stitch_sblock_unmap(s, sb);
        pthread_mutex_lock(&s->lock);
        count_chunks(s, sb, -1);
        s->stats.unmaps += sb->maps;
        stitch_event_give(s, sb->event);
        if (unmapped) {
            stitch_span_give(s, sb->address, sb->reserved_bytes);
        }
        stitch_sblock_free(sb);
        if (--s->dropping == 0) {
            pthread_cond_broadcast(&s->calm);
        }
    }
}

void *stitch_pool_worker(void *stitch)
{
    ferry_stitch *s = stitch;
    pthread_mutex_lock(&s->lock);
    while (!s->quit) {
        if (s->dropped == NULL) {
            pthread_cond_wait(&s->wake, &s->lock);
        } else {
            stitch_pool_tend(s, true);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

/* Reserved in powers of two, so that a spare range fits again. */
static int64_t span_bytes(const ferry_stitch *s, int64_t bytes)
{
    int64_t whole = s->device.chunk_bytes;
    while (whole < bytes) {
        whole *= 2;
    }
    return whole;
}

ferry_status stitch_span_take(ferry_stitch *s, int64_t bytes, void **at, int64_t *out_bytes)
{
    *out_bytes = span_bytes(s, bytes);
    *at = NULL;
    pthread_mutex_lock(&s->lock);
    for (span **link = &s->spans; *link != NULL; link = &(*link)->next) {
        if ((*link)->bytes == *out_bytes) {
            span *found = *link;
            *link = found->next;
            *at = found->at;
            free(found);
            break;
        }
    }
    s->stats.reserves += *at == NULL;
    pthread_mutex_unlock(&s->lock);
    return *at != NULL ? FERRY_OK : s->device.reserve(s->device.self, *out_bytes, at);
}

void stitch_span_give(ferry_stitch *s, void *at, int64_t bytes)
{
    span *n = malloc(sizeof(*n));
    if (n == NULL) {
        s->device.unreserve(s->device.self, at, bytes);
        return;
    }
    *n = (span){s->spans, at, bytes};
    s->spans = n;
}

void stitch_pool_close(ferry_stitch *s)
{
    while (s->dropped != NULL) {
        sblock *sb = s->dropped;
        s->dropped = sb->next;
        stitch_event_give(s, sb->event);
        (void)stitch_sblock_unmap(s, sb);
        s->device.unreserve(s->device.self, sb->address, sb->reserved_bytes);
        stitch_sblock_free(sb);
    }
    for (int i = 0; i < s->pooled; i++) {
        (void)stitch_sblock_unmap(s, s->pool[i]);
        s->device.unreserve(s->device.self, s->pool[i]->address, s->pool[i]->reserved_bytes);
        stitch_sblock_free(s->pool[i]);
    }
    free(s->pool);
    while (s->spans != NULL) {
        span *n = s->spans;
        s->spans = n->next;
        s->device.unreserve(s->device.self, n->at, n->bytes);
        free(n);
    }
}
