/* stitch_check.c - statistics, the snapshot, and the invariants. */
#include "runtime/stitch_internal.h"

#include <stdlib.h>
#include <string.h>

void ferry_stitch_get_stats(ferry_stitch *s, ferry_stitch_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}

void ferry_stitch_reset_peaks(ferry_stitch *s)
{
    pthread_mutex_lock(&s->lock);
    s->stats.peak_live_bytes = s->stats.live_bytes;
    s->stats.peak_reserved_bytes = s->stats.reserved_bytes;
    pthread_mutex_unlock(&s->lock);
}

/* ---- snapshot ---------------------------------------------------------------------------------------------------- */

ferry_status ferry_stitch_snapshot(ferry_stitch *s, FILE *to)
{
    if (s == NULL || to == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_stitch_snapshot: an argument is NULL");
    }
    static const char *const state_name[] = {"hole", "free", "used"};
    pthread_mutex_lock(&s->lock);
    const ferry_stitch_stats *t = &s->stats;
    fprintf(to,
            "{\"stats\": {\"live_bytes\": %lld, \"peak_live_bytes\": %lld, \"reserved_bytes\": %lld, "
            "\"peak_reserved_bytes\": %lld, \"requests\": %lld, \"frees\": %lld, \"states\": [%lld, %lld, %lld, %lld, "
            "%lld]}, "
            "\"pblocks\": [",
            (long long)t->live_bytes, (long long)t->peak_live_bytes, (long long)t->reserved_bytes,
            (long long)t->peak_reserved_bytes, (long long)t->requests, (long long)t->frees, (long long)t->state[0],
            (long long)t->state[1], (long long)t->state[2], (long long)t->state[3], (long long)t->state[4]);
    const char *comma = "";
    for (int n = 0; n < 2; n++) {
        for (const pblock *b = s->arena[n].first; b != NULL; b = b->after) {
            if (b->state != P_HOLE) {
                fprintf(to, "%s{\"at\": %llu, \"bytes\": %lld, \"state\": \"%s\", \"small\": %s}", comma,
                        (unsigned long long)(uintptr_t)(s->arena[n].base + b->at), (long long)b->bytes,
                        state_name[b->state], n == SMALL ? "true" : "false");
                comma = ", ";
            }
        }
    }
    fprintf(to, "], \"sblocks\": [");
    for (int i = 0; i < s->pooled; i++) {
        const sblock *sb = s->pool[i];
        fprintf(to, "%s{\"at\": %llu, \"bytes\": %lld, \"live\": %s, \"pieces\": [", i > 0 ? ", " : "",
                (unsigned long long)(uintptr_t)sb->address, (long long)sb->bytes, sb->used > 0 ? "true" : "false");
        for (int k = 0; k < sb->count; k++) {
            const piece *p = &sb->pieces[k];
            fprintf(to, "%s[%llu, %lld]", k > 0 ? ", " : "",
                    (unsigned long long)(uintptr_t)(s->arena[p->arena].base + p->at), (long long)p->bytes);
        }
        fprintf(to, "]}");
    }
    fprintf(to, "]}\n");
    pthread_mutex_unlock(&s->lock);
    return ferror(to) ? ferryi_fail(FERRY_FAILED, "ferry_stitch_snapshot: cannot write") : FERRY_OK;
}

/* ---- invariants -------------------------------------------------------------------------------------------------- */

/* A violated one is named: is_valid is asked by tests. */
#define HOLDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            ferryi_fail(FERRY_FAILED, "ferry_stitch_is_valid: line %d: not %s", __LINE__, #condition);                 \
            return false;                                                                                              \
        }                                                                                                              \
    } while (0)

static bool in_bin(const pblock *b)
{
    for (const pblock *x = stitch_home_bin(b); x != NULL; x = x->next) {
        if (x == b) {
            return true;
        }
    }
    return false;
}

/* The list covers the arena, neighbours that could be merged are merged, cover and chunks agree with it. */
static bool arena_holds(const ferry_stitch *s, int n, int64_t *free_blocks, int64_t *backed)
{
    const arena *a = &s->arena[n];
    const int64_t slot = s->device.chunk_bytes;
    int64_t at = 0;
    HOLDS(a->first != NULL && a->first->before == NULL);
    for (const pblock *b = a->first; b != NULL; b = b->after) {
        HOLDS(b->at == at && b->bytes > 0 && b->bytes % UNIT_BYTES == 0 && b->arena == n);
        HOLDS(b->after == NULL || b->after->before == b);
        HOLDS((b->state == P_HOLE) == (b->queue == NULL));
        HOLDS(b->state == P_USED || b->after == NULL || b->after->state != b->state || b->after->queue != b->queue);
        for (int64_t i = (at + slot - 1) / slot; i * slot < at + b->bytes; i++) {
            HOLDS(a->cover[i] == b);
            const chunk *c = a->chunks[i];
            if (b->state == P_FREE) {
                HOLDS(c != NULL && c->at <= i * slot && c->at + c->bytes > i * slot);
            } else if (b->state == P_HOLE) {
                HOLDS(b->bytes % slot == 0 && c == NULL);
            }
        }
        if (b->state == P_FREE) {
            ++*free_blocks;
            HOLDS(b->stamp <= b->queue->frees && in_bin(b));
        }
        at += b->bytes;
    }
    HOLDS(at == a->bytes);
    for (int64_t i = 0; i < a->bytes / slot;) {
        const chunk *c = a->chunks[i];
        HOLDS(c == NULL || c->at == i * slot);
        *backed += c != NULL ? c->bytes : 0;
        i += c != NULL ? c->bytes / slot : 1;
    }
    return true;
}

static bool queues_hold(const ferry_stitch *s, int64_t free_blocks)
{
    for (const queue *q = s->queues; q != NULL; q = q->next) {
        int64_t bytes = 0;
        HOLDS(q->done <= q->frees && q->recorded <= q->frees);
        for (int n = 0; n < 2; n++) {
            for (int i = 0; i < BINS; i++) {
                bool filled = (q->bins[n].filled[i / 64] >> (i % 64) & 1) != 0;
                HOLDS(filled == (q->bins[n].head[i] != NULL));
                for (const pblock *b = q->bins[n].head[i]; b != NULL; b = b->next) {
                    HOLDS(b->state == P_FREE && b->queue == q && b->arena == n);
                    HOLDS(b->next == NULL || b->next->prev == b);
                    bytes += b->bytes;
                    free_blocks--;
                }
            }
        }
        HOLDS(bytes == q->free_bytes);
    }
    HOLDS(free_blocks == 0);
    return true;
}

static bool sblock_holds(const ferry_stitch *s, const sblock *sb)
{
    int64_t bytes = 0;
    int maps = 0;
    HOLDS(sb->count > 0 && sb->used <= sb->count && sb->reserved_bytes >= sb->bytes);
    for (int i = 0; i < sb->count; i++) {
        const piece *p = &sb->pieces[i];
        for (int64_t from = p->at; from < p->at + p->bytes; maps++) {
            const chunk *c = s->arena[p->arena].chunks[from / s->device.chunk_bytes];
            HOLDS(c != NULL && c->at == from && c->sblocks > 0);
            from += c->bytes;
            HOLDS(from <= p->at + p->bytes);
        }
        if (i < sb->used) {
            const pblock *b = sb->parts[i];
            HOLDS(b->state == P_USED && b->arena == p->arena && b->at == p->at && b->bytes <= p->bytes);
            HOLDS(i == sb->used - 1 || b->bytes == p->bytes);
        }
        bytes += p->bytes;
    }
    HOLDS(bytes == sb->bytes && maps == sb->maps);
    return true;
}

static bool pool_holds(const ferry_stitch *s)
{
    int idle = 0;
    for (int i = 0; i < s->pooled; i++) {
        const sblock *sb = s->pool[i];
        HOLDS(i == 0 || s->pool[i - 1]->bytes < sb->bytes ||
              (s->pool[i - 1]->bytes == sb->bytes && s->pool[i - 1]->address < sb->address));
        if (!sblock_holds(s, sb)) {
            return false;
        }
        idle += sb->used == 0;
    }
    uint64_t last = 0;
    for (const sblock *sb = s->oldest; sb != NULL; sb = sb->newer, idle--) {
        HOLDS(sb->last_use > last && sb->used == 0 && sb->newer != NULL ? sb->newer->older == sb : s->newest == sb);
        last = sb->last_use;
    }
    HOLDS(idle == 0 && s->stats.sblocks == s->pooled);
    return true;
}

static bool live_holds(const ferry_stitch *s)
{
    int64_t bytes = 0, count = 0;
    for (int64_t i = 0; i < s->capacity; i++) {
        const live *e = &s->table[i];
        if (e->address == NULL) {
            continue;
        }
        HOLDS((e->home != NULL) != (e->stitched != NULL) && stitch_find(s, e->address) == e);
        if (e->home != NULL) {
            HOLDS(e->home->state == P_USED && e->home->bytes == e->bytes && e->home->queue == e->queue);
            HOLDS(s->arena[e->home->arena].base + e->home->at == (char *)e->address);
        } else {
            int64_t parts = 0;
            for (int k = 0; k < e->stitched->used; k++) {
                parts += e->stitched->parts[k]->bytes;
            }
            HOLDS(parts == e->bytes && e->stitched->address == e->address);
        }
        bytes += e->bytes;
        count++;
    }
    HOLDS(bytes == s->stats.live_bytes && count == s->used);
    return true;
}

bool ferry_stitch_is_valid(ferry_stitch *s)
{
    int64_t free_blocks = 0, backed = 0;
    pthread_mutex_lock(&s->lock);
    bool idle = s->promised_bytes == s->stats.reserved_bytes && s->promised_sblocks == 0;
    bool holds = arena_holds(s, SMALL, &free_blocks, &backed) && arena_holds(s, LARGE, &free_blocks, &backed) &&
                 queues_hold(s, free_blocks) && pool_holds(s) && live_holds(s) &&
                 (!idle || backed == s->stats.reserved_bytes) && s->stats.reserved_bytes <= s->options.limit_bytes;
    pthread_mutex_unlock(&s->lock);
    return holds;
}
