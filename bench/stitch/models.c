/* models.c - see models.h. Free blocks lie in an ordered list for each stream and pool: slow, and simple. */
#include "models.h"

#include <stdlib.h>

#define MIB INT64_C(1048576)

enum { UNIT = 512, STREAMS = 16 };

struct torch_block {
    torch_block *before, *after; /* in the segment */
    torch_block *prev, *next;    /* free: in the pool's list, by size, then address */
    int64_t at, bytes;
    bool used, unmapped; /* unmapped: the room behind an expandable segment */
    int stream, small;
};

struct torch_model {
    bool expandable;
    torch_block *free_list[STREAMS][2];
    torch_block *room[STREAMS][2];
    torch_block **segment; /* the first block of each */
    int64_t segments;
    int64_t reserved, calls, next_address;
};

torch_model *torch_open(bool expandable)
{
    torch_model *m = calloc(1, sizeof(*m));
    if (m != NULL) {
        m->expandable = expandable;
    }
    return m;
}

void torch_close(torch_model *m)
{
    for (int64_t i = 0; i < m->segments; i++) {
        for (torch_block *b = m->segment[i], *next; b != NULL; b = next) {
            next = b->after;
            free(b);
        }
    }
    free(m->segment);
    free(m);
}

static void list_add(torch_model *m, torch_block *b)
{
    torch_block **link = &m->free_list[b->stream][b->small], *prev = NULL;
    while (*link != NULL && ((*link)->bytes < b->bytes || ((*link)->bytes == b->bytes && (*link)->at < b->at))) {
        prev = *link;
        link = &prev->next;
    }
    b->prev = prev;
    b->next = *link;
    if (b->next != NULL) {
        b->next->prev = b;
    }
    *link = b;
}

static void list_remove(torch_model *m, torch_block *b)
{
    *(b->prev != NULL ? &b->prev->next : &m->free_list[b->stream][b->small]) = b->next;
    if (b->next != NULL) {
        b->next->prev = b->prev;
    }
}

static torch_block *block_new(int64_t at, int64_t bytes, int stream, int small)
{
    torch_block *b = calloc(1, sizeof(*b));
    if (b == NULL) {
        abort();
    }
    *b = (torch_block){.at = at, .bytes = bytes, .stream = stream, .small = small};
    return b;
}

static torch_block *segment_new(torch_model *m, int64_t bytes, int stream, int small)
{
    torch_block *b = block_new(m->next_address, bytes, stream, small);
    torch_block **segment = realloc(m->segment, (size_t)(m->segments + 1) * sizeof(*segment));
    if (segment == NULL) {
        abort();
    }
    segment[m->segments++] = b;
    m->segment = segment;
    m->next_address += bytes + 2 * MIB;
    return b;
}

/* [b] becomes [b of `bytes`][rest] */
static torch_block *cut(torch_block *b, int64_t bytes)
{
    torch_block *rest = block_new(b->at + bytes, b->bytes - bytes, b->stream, b->small);
    rest->unmapped = b->unmapped;
    rest->before = b;
    rest->after = b->after;
    if (rest->after != NULL) {
        rest->after->before = rest;
    }
    b->after = rest;
    b->bytes = bytes;
    return rest;
}

/* [b][b->after] becomes [b] */
static void join(torch_block *b)
{
    torch_block *gone = b->after;
    b->bytes += gone->bytes;
    b->after = gone->after;
    if (b->after != NULL) {
        b->after->before = b;
    }
    free(gone);
}

static bool is_free(const torch_block *b)
{
    return b != NULL && !b->used && !b->unmapped;
}

static int64_t room_behind(const torch_block *b)
{
    return b->after != NULL && b->after->unmapped ? b->after->bytes : 0;
}

static torch_block *best_fit(const torch_model *m, int64_t bytes, int stream, int small)
{
    torch_block *b = m->free_list[stream][small];
    while (b != NULL && b->bytes < bytes) {
        b = b->next;
    }
    /* the last block of an expandable segment counts with all that it could become */
    while (b != NULL && m->expandable && b->next != NULL &&
           b->next->bytes + room_behind(b->next) < b->bytes + room_behind(b)) {
        b = b->next;
    }
    return b;
}

/* The last block of the segment, at least `bytes` long, in no list. */
static torch_block *expand(torch_model *m, int64_t bytes, int stream, int small)
{
    const int64_t page = small ? 2 * MIB : 20 * MIB, space = INT64_C(1) << 40;
    if (m->room[stream][small] == NULL) {
        m->room[stream][small] = segment_new(m, space, stream, small);
        m->room[stream][small]->unmapped = true;
    }
    torch_block *room = m->room[stream][small], *last = is_free(room->before) ? room->before : NULL;
    int64_t missing = bytes - (last != NULL ? last->bytes : 0);
    int64_t mapped = (missing + page - 1) / page * page;
    m->room[stream][small] = cut(room, mapped);
    room->unmapped = false;
    m->reserved += mapped;
    m->calls += mapped / page;
    if (last != NULL) {
        list_remove(m, last);
        join(last);
        return last;
    }
    return room;
}

torch_block *torch_alloc(torch_model *m, int64_t bytes, int stream)
{
    bytes = (bytes + UNIT - 1) / UNIT * UNIT;
    int small = bytes <= MIB;
    torch_block *b = best_fit(m, bytes, stream, small);
    if (b != NULL) {
        list_remove(m, b);
    } else if (m->expandable) {
        b = expand(m, bytes, stream, small);
    } else {
        int64_t segment = small ? 2 * MIB : bytes < 10 * MIB ? 20 * MIB : (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
        b = segment_new(m, segment, stream, small);
        m->reserved += segment;
        m->calls++;
    }
    int64_t rest = b->bytes - bytes;
    if (small || m->expandable ? rest >= UNIT : rest > MIB) {
        list_add(m, cut(b, bytes));
    }
    b->used = true;
    return b;
}

void torch_free(torch_model *m, torch_block *b)
{
    b->used = false;
    if (is_free(b->after)) {
        list_remove(m, b->after);
        join(b);
    }
    if (is_free(b->before)) {
        b = b->before;
        list_remove(m, b);
        join(b);
    }
    list_add(m, b);
}

int64_t torch_reserved(const torch_model *m)
{
    return m->reserved;
}

int64_t torch_calls(const torch_model *m)
{
    return m->calls;
}
