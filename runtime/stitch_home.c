/* stitch_home.c - home addresses: pBlocks, split and merged at any multiple of UNIT_BYTES, and each queue's FREE ones
 * by size. */
#include "runtime/stitch_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

enum { NODES = 256 };

struct node_slab {
    struct node_slab *next;
    pblock node[NODES];
};

ferry_status stitch_nodes(ferry_stitch *s, int n)
{
    while (s->spares < n) {
        struct node_slab *slab = malloc(sizeof(*slab));
        if (slab == NULL) {
            return ferryi_fail(FERRY_FAILED, "ferry_stitch: no host memory");
        }
        slab->next = s->slabs;
        s->slabs = slab;
        for (int i = 0; i < NODES; i++) {
            slab->node[i].next = s->spare;
            s->spare = &slab->node[i];
        }
        s->spares += NODES;
    }
    return FERRY_OK;
}

static pblock *node_take(ferry_stitch *s)
{
    pblock *b = s->spare;
    s->spare = b->next;
    s->spares--;
    return b;
}

static void node_give(ferry_stitch *s, pblock *b)
{
    b->next = s->spare;
    s->spare = b;
    s->spares++;
}

/* ---- bins: 16 to each power of two ------------------------------------------------------------------------------- */

static int bin_of(int64_t bytes)
{
    uint64_t units = (uint64_t)bytes / UNIT_BYTES;
    if (units < 16) {
        return (int)units;
    }
    int high = 63 - __builtin_clzll(units);
    return (high - 3) * 16 + (int)((units >> (high - 4)) & 15);
}

const pblock *stitch_home_bin(const pblock *b)
{
    return b->queue->bins[b->arena].head[bin_of(b->bytes)];
}

static void bin_add(pblock *b)
{
    bins *all = &b->queue->bins[b->arena];
    int i = bin_of(b->bytes);
    b->prev = NULL;
    b->next = all->head[i];
    if (b->next != NULL) {
        b->next->prev = b;
    }
    all->head[i] = b;
    all->filled[i / 64] |= UINT64_C(1) << (i % 64);
    b->queue->free_bytes += b->bytes;
}

static void bin_remove(pblock *b)
{
    bins *all = &b->queue->bins[b->arena];
    int i = bin_of(b->bytes);
    if (b->prev != NULL) {
        b->prev->next = b->next;
    } else {
        all->head[i] = b->next;
        if (b->next == NULL) {
            all->filled[i / 64] &= ~(UINT64_C(1) << (i % 64));
        }
    }
    if (b->next != NULL) {
        b->next->prev = b->prev;
    }
    b->queue->free_bytes -= b->bytes;
}

static pblock *best_in(pblock *b, int64_t bytes)
{
    pblock *best = NULL;
    for (; b != NULL; b = b->next) {
        if (b->bytes >= bytes &&
            (best == NULL || b->bytes < best->bytes || (b->bytes == best->bytes && b->at < best->at))) {
            best = b;
        }
    }
    return best;
}

pblock *stitch_home_fit(const queue *q, int arena, int64_t bytes)
{
    const bins *all = &q->bins[arena];
    int first = bin_of(bytes);
    pblock *b = best_in(all->head[first], bytes);
    if (b != NULL || first + 1 >= BINS) {
        return b;
    }
    int word = (first + 1) / 64;
    uint64_t bits = all->filled[word] & (~UINT64_C(0) << ((first + 1) % 64));
    while (bits == 0 && ++word < BIN_WORDS) {
        bits = all->filled[word];
    }
    return bits == 0 ? NULL : best_in(all->head[word * 64 + __builtin_ctzll(bits)], bytes);
}

/* ---- splitting and merging --------------------------------------------------------------------------------------- */

static void cover(ferry_stitch *s, pblock *b)
{
    int64_t slot = s->device.chunk_bytes, end = b->at + b->bytes;
    arena *a = &s->arena[b->arena];
    for (int64_t i = (b->at + slot - 1) / slot; i * slot < end; i++) {
        a->cover[i] = b;
    }
}

/* [b] becomes two neighbours, the first of `bytes`; neither is in a bin. The longer one keeps the node, since the cost
 * is in the slots of the other. */
static void split(ferry_stitch *s, pblock *b, int64_t bytes, pblock **left, pblock **right)
{
    pblock *n = node_take(s);
    *n = *b;
    if (bytes < b->bytes - bytes) {
        *left = n;
        *right = b;
        n->after = b;
        b->before = n;
        if (n->before != NULL) {
            n->before->after = n;
        } else {
            s->arena[b->arena].first = n;
        }
    } else {
        *left = b;
        *right = n;
        n->before = b;
        b->after = n;
        if (n->after != NULL) {
            n->after->before = n;
        }
    }
    (*right)->at += bytes;
    (*right)->bytes -= bytes;
    (*left)->bytes = bytes;
    cover(s, n);
}

pblock *stitch_home_join(ferry_stitch *s, pblock *left, pblock *right)
{
    pblock *kept = left->bytes < right->bytes ? right : left, *gone = kept == left ? right : left;
    kept->stamp = gone->stamp > kept->stamp ? gone->stamp : kept->stamp;
    kept->before = left->before;
    kept->after = right->after;
    if (kept->before != NULL) {
        kept->before->after = kept;
    } else {
        s->arena[kept->arena].first = kept;
    }
    if (kept->after != NULL) {
        kept->after->before = kept;
    }
    int64_t slot = s->device.chunk_bytes, end = gone->at + gone->bytes;
    for (int64_t i = (gone->at + slot - 1) / slot; i * slot < end; i++) {
        s->arena[kept->arena].cover[i] = kept;
    }
    kept->at = kept->at < gone->at ? kept->at : gone->at;
    kept->bytes += gone->bytes;
    node_give(s, gone);
    return kept;
}

static bool alike(const pblock *a, const pblock *b)
{
    return a != NULL && a->state != P_USED && a->state == b->state && a->queue == b->queue;
}

static void settle(ferry_stitch *s, pblock *b)
{
    pblock *neighbour[] = {b->before, b->after};
    for (int i = 0; i < 2; i++) {
        if (alike(neighbour[i], b)) {
            if (b->state == P_FREE) {
                bin_remove(neighbour[i]);
            }
            b = i == 0 ? stitch_home_join(s, neighbour[i], b) : stitch_home_join(s, b, neighbour[i]);
        }
    }
    if (b->state == P_FREE) {
        bin_add(b);
    }
}

pblock *stitch_home_take(ferry_stitch *s, pblock *b, int64_t at, int64_t bytes, queue *q)
{
    bool was_free = b->state == P_FREE;
    pblock *rest;
    if (was_free) {
        bin_remove(b);
    }
    if (at > b->at) {
        split(s, b, at - b->at, &rest, &b);
        if (was_free) {
            bin_add(rest);
        }
    }
    if (bytes < b->bytes) {
        split(s, b, bytes, &b, &rest);
        if (was_free) {
            bin_add(rest);
        }
    }
    b->state = P_USED;
    b->queue = q;
    return b;
}

void stitch_home_free(ferry_stitch *s, pblock *b)
{
    b->state = P_FREE;
    b->stamp = ++b->queue->frees;
    settle(s, b);
}

void stitch_home_hole(ferry_stitch *s, pblock *b)
{
    b->state = P_HOLE;
    b->queue = NULL;
    b->stamp = 0;
    settle(s, b);
}

void stitch_home_move(ferry_stitch *s, pblock *b, queue *to, uint64_t stamp)
{
    bin_remove(b);
    b->queue = to;
    b->stamp = stamp;
    settle(s, b);
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

bool stitch_home_is_free(const ferry_stitch *s, const queue *q, int arena, int64_t at, int64_t bytes)
{
    const pblock *b = s->arena[arena].cover[at / s->device.chunk_bytes];
    return b->state == P_FREE && b->queue == q && b->at + b->bytes >= at + bytes;
}

bool stitch_home_whole(const ferry_stitch *s, int arena, int64_t *at, int64_t *end)
{
    int64_t slot = s->device.chunk_bytes;
    chunk *const *chunks = s->arena[arena].chunks;
    int64_t first = (*at + slot - 1) / slot, last = *end / slot;
    if (first < last && chunks[first]->at < first * slot) {
        first = (chunks[first]->at + chunks[first]->bytes) / slot;
    }
    if (first < last && chunks[last - 1]->at + chunks[last - 1]->bytes > last * slot) {
        last = chunks[last - 1]->at / slot;
    }
    *at = first * slot;
    *end = last * slot;
    return first < last;
}

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

ferry_status stitch_home_open(ferry_stitch *s)
{
    for (int i = 0; i < 2; i++) {
        arena *a = &s->arena[i];
        /* twice the memory: trimming leaves holes, and a request needs one that is long enough */
        int64_t bytes = stitch_round(s->device.capacity_bytes, s->device.chunk_bytes) * 2;
        size_t slots = (size_t)(bytes / s->device.chunk_bytes);
        ferry_status status = stitch_nodes(s, 1);
        a->cover = calloc(slots, sizeof(*a->cover));
        a->chunks = calloc(slots, sizeof(*a->chunks));
        if (status != FERRY_OK || a->cover == NULL || a->chunks == NULL) {
            return ferryi_fail(FERRY_FAILED, "ferry_stitch_open: no host memory");
        }
        void *base = NULL;
        status = s->device.reserve(s->device.self, bytes, &base);
        if (status != FERRY_OK) {
            return status;
        }
        s->stats.reserves++;
        a->base = base;
        a->bytes = bytes;
        pblock *b = node_take(s);
        *b = (pblock){.bytes = bytes, .state = P_HOLE, .arena = (uint8_t)i};
        a->first = b;
        cover(s, b);
    }
    return FERRY_OK;
}

void stitch_home_close(ferry_stitch *s)
{
    for (int i = 0; i < 2; i++) {
        arena *a = &s->arena[i];
        if (a->base != NULL) {
            stitch_chunks_release(s, i, 0, a->bytes);
            s->device.unreserve(s->device.self, a->base, a->bytes);
        }
        free(a->cover);
        free(a->chunks);
    }
    while (s->slabs != NULL) {
        struct node_slab *slab = s->slabs;
        s->slabs = slab->next;
        free(slab);
    }
}
