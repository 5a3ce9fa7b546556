/* memory.c - static stitching: where each device buffer lies in the pool.
 *
 * needs: steps with accesses and waits   fills: Layout, live bytes   keeps: the list
 *
 * The pool is one range of physical memory made of chunks. A buffer is one piece at any aligned offset or, when it is
 * at least a chunk long, whole chunks stitched into one virtual range, so that free memory in several places serves a
 * large buffer without moving anything; what its last chunk leaves over is used by others through the pool's own
 * mapping.
 *
 * Buffers are placed one after the other, never moved. The bytes that are taken are those of placed buffers with which
 * the new one cannot share; between them are gaps, the last of which is open above. In the smallest gap that is long
 * enough it goes; if none is and stitching the chunks of gaps makes the pool grow less than one piece at the top, it is
 * stitched, with the longest runs first to have few pieces. Which order is best depends on the graph: several are
 * tried, until one needs no more than what is live at once, and the smallest pool wins (the earliest order among
 * equals). */
#include <stdlib.h>
#include <string.h>

#include "planner/memory.h"

typedef struct Gap {
    int64_t begin, end; /* end INT64_MAX: open */
} Gap;

/* A taken piece, kept sorted by offset; pieces of buffers that share bytes may overlap. Every placement looks at all of
 * them: the life of an owner that only COMPUTE accesses is copied here, [from, to) in that stream; others have to <
 * from. */
typedef struct Taken {
    int64_t begin, end;
    int owner, from, to;
} Taken;

typedef struct Packer {
    Diag *d;
    const StepList *s;
    const Lives *lives;
    int64_t chunk, alignment;
    int *order; /* device buffers as they are placed */
    VEC(Taken) taken;
    VEC(Gap) gap;
    VEC(Gap) run;       /* whole chunks in gaps */
    VEC(Piece) piece;   /* of all placed buffers */
    int *first, *count; /* by device buffer: its pieces */
    int64_t top;        /* end of the highest piece */
} Packer;

/* Qsort has no context: the keys travel with the indices. */
typedef struct Keyed {
    int64_t key, second;
    int index;
} Keyed;

static int compare_keyed(const void *a, const void *b)
{
    const Keyed *x = a, *y = b;
    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    if (x->second != y->second)
        return x->second > y->second ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int compare_gap_length(const void *a, const void *b)
{
    const Gap *x = a, *y = b;
    int64_t n = x->end - x->begin, m = y->end - y->begin;
    if (n != m)
        return n > m ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static int compare_piece(const void *a, const void *b)
{
    const Piece *x = a, *y = b;
    return x->offset_bytes < y->offset_bytes ? -1 : x->offset_bytes > y->offset_bytes;
}

static Status find_gaps(Packer *p, int buffer)
{
    const Life *mine = &p->lives->life[buffer];
    int64_t free_from = 0;
    int from = mine->knows[STREAM_COMPUTE], to = mine->ends[STREAM_COMPUTE];
    p->gap.count = 0;
    for (int i = 0; i < p->taken.count; i++) {
        const Taken *t = &p->taken.at[i];
        if (t->end <= free_from)
            continue;
        if (mine->simple && t->from <= t->to) {
            if (t->to <= from || to <= t->from)
                continue;
        } else if (lives_can_share(p->lives, mine, &p->lives->life[t->owner])) {
            continue;
        }
        if (t->begin > free_from) {
            Gap *g = VEC_PUSH(&p->gap);
            if (!g)
                return diag_oom(p->d);
            *g = (Gap){free_from, t->begin};
        }
        free_from = t->end;
    }
    Gap *g = VEC_PUSH(&p->gap);
    if (!g)
        return diag_oom(p->d);
    *g = (Gap){free_from, INT64_MAX};
    return ST_OK;
}

static Status add_piece(Packer *p, int buffer, int64_t begin, int64_t bytes)
{
    if (p->count[buffer] > 0) { /* goes on where the last one ended? */
        Piece *last = &p->piece.at[p->piece.count - 1];
        if (last->offset_bytes + last->bytes == begin) {
            last->bytes += bytes;
            return ST_OK;
        }
    }
    Piece *piece = VEC_PUSH(&p->piece);
    if (!piece)
        return diag_oom(p->d);
    *piece = (Piece){begin, bytes};
    p->count[buffer]++;
    return ST_OK;
}

/* Chunks for a buffer out of the runs of whole free chunks, the longest first; the remainder behind the last whole
 * chunk may lie in any chunk whose beginning is free for it. Done only when the pool, in whole chunks, stays smaller
 * than `limit`. */
static Status stitch(Packer *p, int buffer, int64_t bytes, int64_t limit, bool *done)
{
    int64_t chunk = p->chunk, whole = bytes / chunk, rest = bytes % chunk, have = 0;
    *done = false;
    p->run.count = 0;
    Gap tail = {-1, -1}; /* the shortest gap's beginning that is long enough for the rest and not for a chunk */
    for (int i = 0; i < p->gap.count; i++) {
        int64_t begin = memory_round(p->gap.at[i].begin, chunk), end = p->gap.at[i].end;
        if (end == INT64_MAX) {
            /* of the open gap only as much as one could need */
            int64_t need = (whole - have > 0 ? whole - have : 0) + 1;
            end = begin + need * chunk;
        }
        int64_t n = end > begin ? (end - begin) / chunk : 0;
        int64_t left = end - (begin + n * chunk);
        if (n > 0) {
            Gap *run = VEC_PUSH(&p->run);
            if (!run)
                return diag_oom(p->d);
            *run = (Gap){begin, begin + n * chunk};
            if (p->gap.at[i].end != INT64_MAX)
                have += n;
        }
        if (rest > 0 && end > begin && left >= rest && (tail.begin < 0 || left < tail.end - tail.begin))
            tail = (Gap){begin + n * chunk, end};
    }
    if (p->run.count == 0)
        return ST_OK;
    /* the open run is used last: it is what makes the pool grow */
    Gap open = p->run.at[p->run.count - 1];
    p->run.count--;
    qsort(p->run.at, (size_t)p->run.count, sizeof *p->run.at, compare_gap_length);
    int64_t need = whole, top = p->top, from_open = 0;
    int used = 0;
    for (; used < p->run.count && need > 0; used++)
        need -= (p->run.at[used].end - p->run.at[used].begin) / chunk;
    from_open = need > 0 ? need : 0;
    bool rest_in_runs = rest > 0 && tail.begin < 0 && (need < 0 || used < p->run.count);
    bool rest_open = rest > 0 && tail.begin < 0 && !rest_in_runs;
    int64_t open_end = open.begin + from_open * chunk + (rest_open ? rest : 0);
    if (from_open > 0 || rest_open)
        top = open_end > top ? open_end : top;
    if (memory_round(top, chunk) >= limit)
        return ST_OK;
    /* take them: all used runs but the last completely, of the last what is needed */
    int first = p->piece.count;
    Gap *spare = NULL;
    need = whole;
    for (int i = 0; i < used; i++) {
        Gap *run = &p->run.at[i];
        int64_t n = (run->end - run->begin) / chunk;
        n = n < need ? n : need;
        Piece *piece = VEC_PUSH(&p->piece);
        if (!piece)
            return diag_oom(p->d);
        *piece = (Piece){run->begin, n * chunk};
        run->begin += n * chunk;
        if (run->begin < run->end)
            spare = run;
        need -= n;
    }
    if (from_open > 0) {
        Piece *piece = VEC_PUSH(&p->piece);
        if (!piece)
            return diag_oom(p->d);
        *piece = (Piece){open.begin, from_open * chunk};
    }
    qsort(p->piece.at + first, (size_t)(p->piece.count - first), sizeof *p->piece.at, compare_piece);
    /* neighbours are one piece */
    int kept = first;
    for (int i = first + 1; i < p->piece.count; i++) {
        Piece *last = &p->piece.at[kept];
        if (last->offset_bytes + last->bytes == p->piece.at[i].offset_bytes)
            last->bytes += p->piece.at[i].bytes;
        else
            p->piece.at[++kept] = p->piece.at[i];
    }
    p->piece.count = kept + 1;
    p->first[buffer] = first;
    p->count[buffer] = p->piece.count - first;
    if (rest > 0) {
        int64_t at = tail.begin;
        if (at < 0 && rest_in_runs)
            at = spare ? spare->begin : p->run.at[used].begin;
        if (at < 0)
            at = open.begin + from_open * chunk;
        TRY(add_piece(p, buffer, at, rest));
    }
    p->top = top;
    *done = true;
    return ST_OK;
}

static Status take(Packer *p, int buffer)
{
    for (int i = 0; i < p->count[buffer]; i++) {
        const Piece *piece = &p->piece.at[p->first[buffer] + i];
        Taken *t = VEC_PUSH(&p->taken);
        if (!t)
            return diag_oom(p->d);
        int low = 0, high = p->taken.count - 1;
        while (low < high) {
            int middle = (low + high) / 2;
            if (p->taken.at[middle].begin <= piece->offset_bytes)
                low = middle + 1;
            else
                high = middle;
        }
        memmove(&p->taken.at[low + 1], &p->taken.at[low], (size_t)(p->taken.count - 1 - low) * sizeof *p->taken.at);
        const Life *l = &p->lives->life[buffer];
        p->taken.at[low] = (Taken){piece->offset_bytes, piece->offset_bytes + piece->bytes, buffer,
                                   l->simple ? l->knows[STREAM_COMPUTE] : 0, l->simple ? l->ends[STREAM_COMPUTE] : -1};
    }
    return ST_OK;
}

static Status place(Packer *p, int buffer)
{
    int64_t bytes = memory_round(p->s->buffer[buffer].bytes, p->alignment);
    bytes = bytes > 0 ? bytes : p->alignment;
    TRY(find_gaps(p, buffer));
    const Gap *best = NULL;
    for (int i = 0; i < p->gap.count; i++) {
        const Gap *g = &p->gap.at[i];
        if (g->end - g->begin < bytes || (g->end == INT64_MAX && g->begin + bytes > p->top))
            continue;
        if (!best || g->end - g->begin < best->end - best->begin)
            best = g;
    }
    p->first[buffer] = p->piece.count;
    p->count[buffer] = 0;
    int64_t at = best ? best->begin : p->gap.at[p->gap.count - 1].begin;
    bool stitched = false;
    if (!best && bytes >= p->chunk)
        TRY(stitch(p, buffer, bytes, memory_round(at + bytes, p->chunk), &stitched));
    if (!stitched) {
        TRY(add_piece(p, buffer, at, bytes));
        p->top = at + bytes > p->top ? at + bytes : p->top;
    }
    return take(p, buffer);
}

/* The orders that are tried. Lives that last long are in everyone's way: they go to the bottom, the short ones share
 * above. */
enum { BY_SIZE, BY_START, BY_LENGTH, BY_AREA, ORDERS };

static void sort_order(Packer *p, int how, Keyed *keyed)
{
    int per = p->lives->order.per_stream[STREAM_COMPUTE];
    for (int i = 0; i < p->s->n_device; i++) {
        int begin = 0, end = per;
        bool all = !life_interval(p->lives, &p->lives->life[i], STREAM_COMPUTE, &begin, &end);
        int64_t length = all ? per : end - begin, bytes = p->s->buffer[i].bytes;
        keyed[i] = (Keyed){.index = i};
        switch (how) {
        case BY_SIZE:
            keyed[i].key = bytes;
            keyed[i].second = length;
            break;
        case BY_START: /* what is always there or wraps around first, then by time */
            keyed[i].key = all || begin < 0 || end > per ? 1 : -(int64_t)begin;
            keyed[i].second = bytes;
            break;
        case BY_LENGTH:
            keyed[i].key = length;
            keyed[i].second = bytes;
            break;
        default:
            keyed[i].key = bytes / 256 * length;
            keyed[i].second = bytes;
            break;
        }
    }
    qsort(keyed, (size_t)p->s->n_device, sizeof *keyed, compare_keyed);
    for (int i = 0; i < p->s->n_device; i++)
        p->order[i] = keyed[i].index;
}

static Status pack(Packer *p)
{
    p->taken.count = p->piece.count = 0;
    p->top = 0;
    for (int i = 0; i < p->s->n_device; i++)
        TRY(place(p, p->order[i]));
    return ST_OK;
}

static Status copy_layout(Packer *p, Arena *a, Layout *out)
{
    const StepList *s = p->s;
    out->chunk_bytes = p->chunk;
    out->reserved_bytes = memory_round(p->top, p->chunk);
    out->n_place = s->n_device;
    out->place = ARENA_NEW(a, Place, s->n_device);
    Piece *pieces = ARENA_NEW(a, Piece, p->piece.count);
    if (!out->place || !pieces)
        return diag_oom(p->d);
    if (p->piece.count > 0)
        memcpy(pieces, p->piece.at, (size_t)p->piece.count * sizeof *pieces);
    for (int i = 0; i < s->n_device; i++)
        out->place[i] = (Place){s->buffer[i].name, p->count[i], pieces + p->first[i]};
    return ST_OK;
}

static Status try_orders(Packer *p, Arena *a, int64_t live, Layout *out)
{
    Keyed *keyed = ARENA_NEW(a, Keyed, p->s->n_device);
    if (!keyed)
        return diag_oom(p->d);
    Layout best = {0};
    for (int how = 0; how < ORDERS; how++) {
        sort_order(p, how, keyed);
        TRY(pack(p));
        if (how == 0 || memory_round(p->top, p->chunk) < best.reserved_bytes)
            TRY(copy_layout(p, a, &best));
        if (best.reserved_bytes <= memory_round(live, p->chunk))
            break;
    }
    *out = best;
    return ST_OK;
}

static Status check_sizes(Diag *d, const StepList *s, const DeviceFacts *f)
{
    if (f->chunk_bytes <= 0 || f->alignment_bytes <= 0 || f->chunk_bytes % f->alignment_bytes != 0)
        return diag_fail(d, ST_MODEL, "device %s: a chunk of %lld bytes is no multiple of the alignment of %lld bytes",
                         f->name ? f->name : "", (long long)f->chunk_bytes, (long long)f->alignment_bytes);
    int64_t sum = 0;
    for (int i = 0; i < s->n_device; i++) {
        int64_t bytes = s->buffer[i].bytes;
        if (bytes < 0 || add_overflows_i64(bytes, 2 * f->chunk_bytes, &bytes) || add_overflows_i64(sum, bytes, &sum) ||
            sum > INT64_MAX / 4)
            return diag_fail(d, ST_MODEL, "buffer %s: the sizes of the device's buffers overflow", s->buffer[i].name);
    }
    return ST_OK;
}

Status memory_plan(Diag *d, Arena *a, const StepList *s, const DeviceFacts *f, Layout *out, int64_t *live_bytes)
{
    *out = (Layout){0};
    *live_bytes = 0;
    TRY(check_sizes(d, s, f));
    Arena *scratch = arena_open();
    if (!scratch)
        return diag_oom(d);
    Lives lives;
    Packer p = {.d = d, .s = s, .lives = &lives, .chunk = f->chunk_bytes, .alignment = f->alignment_bytes};
    Status status = lives_build(d, scratch, s, &lives);
    p.order = ARENA_NEW(scratch, int, s->n_device);
    p.first = ARENA_NEW(scratch, int, s->n_device);
    p.count = ARENA_NEW(scratch, int, s->n_device);
    if (status == ST_OK && (!p.order || !p.first || !p.count))
        status = diag_oom(d);
    int64_t live = status == ST_OK ? lives_peak(d, s, &lives, f->alignment_bytes) : -1;
    if (status == ST_OK)
        status = live < 0 ? d->status : try_orders(&p, a, live, out);
    if (status == ST_OK)
        *live_bytes = live;
    VEC_FREE(&p.taken);
    VEC_FREE(&p.gap);
    VEC_FREE(&p.run);
    VEC_FREE(&p.piece);
    arena_close(scratch);
    return status;
}
