/* stitch_make.c - the states that cost virtual memory calls: S3 (stitch what is free) and S4 (make what is missing).
 *
 * Under the lock the memory is chosen and marked USED; then, without it, chunks are made, mapped and stitched; under it
 * again the result is published, or everything goes back to what it was. */
#include "runtime/stitch_internal.h"

#include <stdlib.h>
#include <string.h>

/* New memory behind a free pBlock at home needs no stitching. That may reserve this part of what is reserved in excess
 * of what stitching everything would. */
enum { EXTEND_PART = 512, LARGE_TIMES = 8 };

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* One chunk of at most `bytes` at the slot `at`, mapped but not yet accessible. Large chunks are taken from memory that
 * may be too scattered for them: then small ones do. */
static ferry_status chunk_make(ferry_stitch *s, int arena, int64_t at, int64_t bytes, bool large, chunk **out)
{
    chunk *c = malloc(sizeof(*c));
    if (c == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_stitch: no host memory");
    }
    *c = (chunk){.at = at};
    ferry_status status = FERRY_FAILED;
    if (large && bytes >= s->options.large_chunk) {
        c->bytes = s->options.large_chunk;
        status = s->device.create(s->device.self, c->bytes, &c->handle);
    }
    if (status != FERRY_OK) {
        c->bytes = s->device.chunk_bytes;
        status = s->device.create(s->device.self, c->bytes, &c->handle);
    }
    if (status == FERRY_OK) {
        status = s->device.map(s->device.self, s->arena[arena].base + at, c->bytes, c->handle);
        if (status != FERRY_OK) {
            s->device.release(s->device.self, c->handle);
        }
    }
    if (status != FERRY_OK) {
        free(c);
        return status;
    }
    for (int64_t i = 0; i < c->bytes / s->device.chunk_bytes; i++) {
        s->arena[arena].chunks[at / s->device.chunk_bytes + i] = c;
    }
    *out = c;
    return FERRY_OK;
}

int stitch_chunks_release(ferry_stitch *s, int arena, int64_t at, int64_t bytes)
{
    int64_t slot = s->device.chunk_bytes;
    chunk **chunks = s->arena[arena].chunks;
    int count = 0;
    for (int64_t i = at / slot; i < (at + bytes) / slot;) {
        chunk *c = chunks[i];
        if (c == NULL) {
            i++;
            continue;
        }
        (void)s->device.unmap(s->device.self, s->arena[arena].base + c->at, c->bytes);
        s->device.release(s->device.self, c->handle);
        for (int64_t n = c->bytes / slot; n > 0; n--) {
            chunks[i++] = NULL;
        }
        free(c);
        count++;
    }
    return count;
}

/* Home memory for [at, at + bytes), all or nothing. Without the lock. *count: chunks made. */
static ferry_status home_make(ferry_stitch *s, int arena, int64_t at, int64_t bytes, int *count)
{
    bool large = bytes >= LARGE_TIMES * s->options.large_chunk;
    ferry_status status = FERRY_OK;
    int64_t made = 0;
    *count = 0;
    while (status == FERRY_OK && made < bytes) {
        chunk *c = NULL;
        status = chunk_make(s, arena, at + made, bytes - made, large, &c);
        if (status == FERRY_OK) {
            made += c->bytes;
            ++*count;
        }
    }
    if (status == FERRY_OK) {
        status = s->device.allow(s->device.self, s->arena[arena].base + at, bytes);
    }
    if (status != FERRY_OK) {
        (void)stitch_chunks_release(s, arena, at, made);
    }
    return status;
}

/* ---- stitching --------------------------------------------------------------------------------------------------- */

/* Addresses for the pieces, all or nothing. Without the lock. */
static ferry_status sblock_map(ferry_stitch *s, sblock *sb)
{
    void *address = NULL;
    ferry_status status = stitch_span_take(s, sb->bytes, &address, &sb->reserved_bytes);
    if (status != FERRY_OK) {
        return status;
    }
    sb->address = address;
    char *at = address;
    for (int i = 0; i < sb->count && status == FERRY_OK; i++) {
        const piece *p = &sb->pieces[i];
        for (int64_t from = p->at; from < p->at + p->bytes && status == FERRY_OK;) {
            const chunk *c = s->arena[p->arena].chunks[from / s->device.chunk_bytes];
            status = s->device.map(s->device.self, at, c->bytes, c->handle);
            sb->maps += status == FERRY_OK;
            at += c->bytes;
            from += c->bytes;
        }
    }
    if (status == FERRY_OK) {
        status = s->device.allow(s->device.self, sb->address, sb->bytes);
    }
    if (status != FERRY_OK) {
        bool unmapped = stitch_sblock_unmap(s, sb);
        pthread_mutex_lock(&s->lock);
        if (unmapped) {
            stitch_span_give(s, sb->address, sb->reserved_bytes);
        }
        pthread_mutex_unlock(&s->lock);
    }
    return status;
}

static ferry_status sblock_open(int count, sblock **out)
{
    sblock *sb = calloc(1, sizeof(*sb));
    if (sb != NULL) {
        sb->pieces = calloc((size_t)count, sizeof(*sb->pieces));
        sb->parts = calloc((size_t)count, sizeof(*sb->parts));
    }
    if (sb == NULL || sb->pieces == NULL || sb->parts == NULL) {
        if (sb != NULL) {
            stitch_sblock_free(sb);
        }
        return ferryi_fail(FERRY_FAILED, "ferry_stitch: no host memory");
    }
    *out = sb;
    return FERRY_OK;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

typedef struct choice {
    piece *pieces;
    int count, capacity;
    int64_t bytes;  /* of the pieces */
    int64_t fresh;  /* bytes to be made; a multiple of the chunk */
    pblock *extend; /* the fresh bytes lie behind this one, and no piece is needed */
    pblock *hole;   /* where */
} choice;

static int longer_first(const void *left, const void *right)
{
    const piece *a = left, *b = right;
    if (a->bytes != b->bytes) {
        return a->bytes > b->bytes ? -1 : 1;
    }
    if (a->arena != b->arena) {
        return a->arena > b->arena ? -1 : 1;
    }
    return a->at < b->at ? -1 : a->at > b->at;
}

/* All whole chunks that q has free, in pieces, the longest first. */
static ferry_status gather(const ferry_stitch *s, const queue *q, choice *c)
{
    for (int arena = 0; arena < 2; arena++) {
        for (int i = BINS - 1; i >= 0; i--) {
            for (const pblock *b = q->bins[arena].head[i]; b != NULL; b = b->next) {
                int64_t at = b->at, end = b->at + b->bytes;
                if (!stitch_home_whole(s, arena, &at, &end) || end - at < s->options.fragment_bytes) {
                    continue;
                }
                if (c->count == c->capacity) {
                    int more = c->capacity == 0 ? 64 : 2 * c->capacity;
                    piece *pieces = realloc(c->pieces, (size_t)more * sizeof(*pieces));
                    if (pieces == NULL) {
                        return ferryi_fail(FERRY_FAILED, "ferry_stitch: no host memory");
                    }
                    c->pieces = pieces;
                    c->capacity = more;
                }
                c->pieces[c->count++] = (piece){arena, at, end - at};
                c->bytes += end - at;
            }
        }
    }
    if (c->count > 0) {
        qsort(c->pieces, (size_t)c->count, sizeof(*c->pieces), longer_first);
    }
    return FERRY_OK;
}

/* Keeps as few pieces as hold `bytes`, of which there are enough. The last one is the shortest that suffices, cut to
 * whole chunks. */
static void narrow(const ferry_stitch *s, choice *c, int64_t bytes)
{
    int n = 0;
    int64_t rest = bytes;
    while (c->pieces[n].bytes < rest) {
        rest -= c->pieces[n++].bytes;
    }
    int last = n;
    while (last + 1 < c->count && c->pieces[last + 1].bytes >= rest) {
        last++;
    }
    piece *p = &c->pieces[n];
    *p = c->pieces[last];
    int64_t end = p->at;
    while (end - p->at < rest) {
        end += s->arena[p->arena].chunks[end / s->device.chunk_bytes]->bytes;
    }
    p->bytes = end - p->at;
    c->count = n + 1;
}

static pblock *find_hole(const ferry_stitch *s, int arena, int64_t bytes)
{
    pblock *b = s->arena[arena].first;
    while (b != NULL && (b->state != P_HOLE || b->bytes < bytes)) {
        b = b->after;
    }
    return b;
}

/* The longest FREE pBlock of q with room behind it. */
static pblock *find_extension(const ferry_stitch *s, const queue *q, int64_t bytes)
{
    pblock *best = NULL;
    for (pblock *b = s->arena[LARGE].first; b != NULL; b = b->after) {
        if (b->state == P_FREE && b->queue == q && b->after != NULL && b->after->state == P_HOLE &&
            b->bytes + b->after->bytes >= bytes && (best == NULL || b->bytes > best->bytes)) {
            best = b;
        }
    }
    return best;
}

static ferry_status choose(ferry_stitch *s, const queue *q, int64_t bytes, choice *c)
{
    const int64_t slot = s->device.chunk_bytes;
    ferry_status status = bytes >= s->options.fragment_bytes ? gather(s, q, c) : FERRY_OK;
    if (status != FERRY_OK) {
        return status;
    }
    if (c->bytes >= bytes) {
        narrow(s, c, bytes);
        return FERRY_OK;
    }
    c->fresh = stitch_round(bytes - c->bytes, slot);
    pblock *b = find_extension(s, q, bytes);
    if (b != NULL) {
        int64_t fresh = stitch_round(bytes - b->bytes, slot);
        if (c->count == 0 || fresh <= c->fresh + s->stats.reserved_bytes / EXTEND_PART) {
            c->extend = b;
            c->hole = b->after;
            c->fresh = fresh;
        }
    }
    if (c->extend == NULL) {
        c->hole = find_hole(s, LARGE, c->fresh);
    }
    if (c->hole == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_stitch: no home addresses for %lld bytes", (long long)c->fresh);
    }
    return FERRY_OK;
}

/* ---- S3, S4 ------------------------------------------------------------------------------------------------------ */

/* What is under way without the lock. */
typedef struct work {
    int arena;
    pblock *fresh, *rest; /* USED and behind each other, memory to be made: handed out, and left over (NULL: none) */
    pblock *extend;       /* USED, before fresh */
    sblock *sb;           /* NULL: nothing to stitch */
} work;

static void undo(ferry_stitch *s, work *w)
{
    if (w->sb != NULL) {
        int pieces = w->sb->count - (w->fresh != NULL);
        for (int i = 0; i < pieces; i++) {
            stitch_home_free(s, w->sb->parts[i]);
        }
        stitch_sblock_free(w->sb);
    }
    if (w->extend != NULL) {
        stitch_home_free(s, w->extend);
    }
    if (w->fresh != NULL) {
        stitch_home_hole(s, w->fresh);
    }
    if (w->rest != NULL) {
        stitch_home_hole(s, w->rest);
    }
}

static ferry_status claim(ferry_stitch *s, queue *q, int64_t bytes, const choice *c, work *w)
{
    ferry_status status = stitch_nodes(s, 2 * c->count + 4);
    int pieces = c->extend != NULL ? 0 : c->count;
    if (status == FERRY_OK && pieces > 0) {
        status = stitch_pool_reserve(s);
    }
    if (status == FERRY_OK && pieces > 0) {
        status = sblock_open(pieces + 1, &w->sb);
    }
    if (status != FERRY_OK) {
        return status;
    }
    int64_t rest = bytes;
    for (int i = 0; i < pieces; i++) {
        const piece *p = &c->pieces[i];
        int64_t part = p->bytes < rest ? p->bytes : rest;
        pblock *b = s->arena[p->arena].cover[p->at / s->device.chunk_bytes];
        w->sb->pieces[i] = *p;
        w->sb->parts[i] = stitch_home_take(s, b, p->at, part, q);
        w->sb->bytes += p->bytes;
        rest -= part;
    }
    if (c->extend != NULL) {
        rest -= c->extend->bytes;
        w->extend = stitch_home_take(s, c->extend, c->extend->at, c->extend->bytes, q);
    }
    if (c->fresh > 0) {
        int64_t at = c->hole->at;
        w->fresh = stitch_home_take(s, c->hole, at, rest, q);
        if (c->fresh > rest) {
            w->rest = stitch_home_take(s, w->fresh->after, at + rest, c->fresh - rest, q);
        }
        if (w->sb != NULL) {
            w->sb->pieces[pieces] = (piece){w->arena, at, c->fresh};
            w->sb->parts[pieces] = w->fresh;
            w->sb->bytes += c->fresh;
        }
    }
    if (w->sb != NULL) {
        w->sb->count = w->sb->used = pieces + (c->fresh > 0);
        w->sb->queue = q;
    }
    return FERRY_OK;
}

static ferry_status perform(ferry_stitch *s, const choice *c, work *w)
{
    int created = 0;
    int64_t at = w->fresh != NULL ? w->fresh->at : 0;
    s->promised_bytes += c->fresh;
    s->promised_sblocks += w->sb != NULL;
    pthread_mutex_unlock(&s->lock);
    ferry_status status = c->fresh > 0 ? home_make(s, w->arena, at, c->fresh, &created) : FERRY_OK;
    if (status == FERRY_OK && w->sb != NULL) {
        status = sblock_map(s, w->sb);
        if (status != FERRY_OK && c->fresh > 0) {
            (void)stitch_chunks_release(s, w->arena, at, c->fresh);
        }
    }
    pthread_mutex_lock(&s->lock);
    s->promised_sblocks -= w->sb != NULL;
    if (status != FERRY_OK) {
        s->promised_bytes -= c->fresh;
        return status;
    }
    ferry_stitch_stats *stats = &s->stats;
    stats->creates += created;
    stats->maps += created + (w->sb != NULL ? w->sb->maps : 0);
    stats->allows += (c->fresh > 0) + (w->sb != NULL);
    stats->reserved_bytes += c->fresh;
    if (stats->reserved_bytes > stats->peak_reserved_bytes) {
        stats->peak_reserved_bytes = stats->reserved_bytes;
    }
    return FERRY_OK;
}

static ferry_status within_limit(const ferry_stitch *s, int64_t fresh)
{
    if (s->promised_bytes + fresh <= s->options.limit_bytes) {
        return FERRY_OK;
    }
    return ferryi_fail(FERRY_FAILED,
                       "ferry_stitch: out of memory: %lld of at most %lld bytes are held, %lld more are needed",
                       (long long)s->promised_bytes, (long long)s->options.limit_bytes, (long long)fresh);
}

static ferry_status make(ferry_stitch *s, queue *q, int64_t bytes, choice *c, place *out)
{
    ferry_status status = choose(s, q, bytes, c);
    if (status != FERRY_OK) {
        return status;
    }
    if (c->fresh > 0 && stitch_adopt(s, q, bytes, false) > 0) {
        return FERRY_OK; /* look again */
    }
    status = within_limit(s, c->fresh);
    work w = {.arena = LARGE};
    if (status == FERRY_OK) {
        status = claim(s, q, bytes, c, &w);
    }
    if (status != FERRY_OK) {
        return status;
    }
    status = perform(s, c, &w);
    if (status != FERRY_OK) {
        undo(s, &w);
        return status;
    }
    if (w.rest != NULL) {
        stitch_home_free(s, w.rest);
    }
    out->state = c->fresh > 0 ? 3 : 2;
    if (w.sb != NULL) {
        stitch_pool_add(s, w.sb);
        if (s->pooled > s->options.max_sblocks && s->oldest != NULL) {
            (void)stitch_pool_drop(s, s->oldest); /* should it fail, the next one tries again */
        }
        out->stitched = w.sb;
        s->stats.stitched_bytes += bytes;
    } else {
        out->home = w.extend != NULL ? stitch_home_join(s, w.extend, w.fresh) : w.fresh;
    }
    return FERRY_OK;
}

ferry_status stitch_make(ferry_stitch *s, queue *q, int64_t bytes, place *out)
{
    choice c = {.pieces = NULL};
    ferry_status status = make(s, q, bytes, &c, out);
    free(c.pieces);
    return status;
}

ferry_status stitch_make_small(ferry_stitch *s, queue *q)
{
    const int64_t slot = s->device.chunk_bytes;
    choice c = {.fresh = slot, .hole = find_hole(s, SMALL, slot)};
    ferry_status status =
        c.hole != NULL ? within_limit(s, slot) : ferryi_fail(FERRY_FAILED, "ferry_stitch: no home addresses");
    if (status == FERRY_OK) {
        status = stitch_nodes(s, 2);
    }
    if (status != FERRY_OK) {
        return status;
    }
    work w = {.arena = SMALL, .fresh = stitch_home_take(s, c.hole, c.hole->at, slot, q)};
    status = perform(s, &c, &w);
    if (status != FERRY_OK) {
        stitch_home_hole(s, w.fresh);
        return status;
    }
    stitch_home_free(s, w.fresh);
    return FERRY_OK;
}
