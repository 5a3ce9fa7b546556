/* stitch_internal.h - the allocator's structures; stitch.h has the idea.
 *
 *   arena    home addresses: one for requests below small_bytes, one for the others. Its pBlocks are a list in the
 *            order of addresses that covers it without a gap: HOLE (no memory behind it), FREE or USED.
 *
 *   queue    what one stream has freed: its FREE pBlocks by size. Two free neighbours of one queue do not exist.
 *
 *   cover    for each slot of chunk_bytes the pBlock that holds its first byte: so "are these whole chunks free" is one
 *            look.
 *
 *   sBlock   pieces of home addresses, whole chunks, mapped one behind the other elsewhere. It may be handed out when
 *            each piece lies in a FREE pBlock of the stream's queue; then these bytes become USED pBlocks, its parts.
 *
 *   live     a hash table from the address of a live block to what it is. */
#ifndef FERRY_RUNTIME_STITCH_INTERNAL_H
#define FERRY_RUNTIME_STITCH_INTERNAL_H

#include "runtime/internal.h"
#include "runtime/stitch.h"

#include <pthread.h>

enum { UNIT_BYTES = 512, BINS = 512, BIN_WORDS = BINS / 64, SMALL = 0, LARGE = 1, PLACES = 1 << 16 };

typedef struct pblock pblock;
typedef struct sblock sblock;
typedef struct queue queue;

typedef enum pstate { P_HOLE, P_FREE, P_USED } pstate;

struct pblock {
    pblock *before, *after; /* by address */
    pblock *prev, *next;    /* FREE: in its bin; spare: next */
    queue *queue;           /* NULL: HOLE */
    int64_t at, bytes;      /* at: from the arena's base */
    uint64_t stamp;         /* FREE: queue->frees when its last byte was freed */
    uint8_t state, arena;
};

typedef struct chunk {
    uint64_t handle;
    int64_t at, bytes; /* home, from the arena's base */
    int sblocks;       /* that map it */
} chunk;

typedef struct arena {
    char *base;
    int64_t bytes;
    pblock *first;
    pblock **cover; /* bytes / chunk_bytes slots */
    chunk **chunks; /* of each slot; NULL: none */
} arena;

typedef struct bins {
    uint64_t filled[BIN_WORDS];
    pblock *head[BINS];
} bins;

struct queue {
    queue *next;
    void *stream;
    bins bins[2]; /* of each arena */
    int64_t free_bytes;
    uint64_t frees;    /* counts */
    uint64_t recorded; /* frees when `event` was recorded */
    uint64_t done;     /* frees that are known to be complete on the device */
    void *event;
    bool pending; /* event is recorded and not known to be done */
    bool closed;  /* the stream is gone and its work complete; another stream may take the queue over */
};

typedef struct piece {
    int arena;
    int64_t at, bytes; /* whole chunks of one arena that are neighbours */
} piece;

struct sblock {
    char *address;
    int64_t bytes;          /* mapped */
    int64_t reserved_bytes; /* addresses */
    piece *pieces;
    pblock **parts; /* while handed out: one for each of the first `used` pieces */
    int count, used;
    int maps; /* chunks mapped */
    uint64_t last_use;
    queue *queue;          /* of the last use */
    sblock *older, *newer; /* inactive and in the pool: by last use */
    sblock *next;          /* dropped */
    void *event;           /* dropped: after its last use */
};

typedef struct use {
    struct use *next;
    void *stream;
    void *event; /* once freed */
} use;

typedef struct live {
    void *address; /* NULL: empty */
    pblock *home;  /* one of the two */
    sblock *stitched;
    int64_t bytes;
    queue *queue;
    use *uses;
} live;

typedef struct pending {
    struct pending *next;
    live block;
} pending;

typedef struct span { /* spare addresses */
    struct span *next;
    void *at;
    int64_t bytes;
} span;

struct ferry_stitch {
    ferry_stitch_device device;
    ferry_stitch_options options;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the worker: something was dropped, or quit */
    pthread_cond_t calm; /* dropping is 0 */
    pthread_t worker;
    bool has_worker, quit;

    arena arena[2];
    queue *queues; /* the last used first */
    pblock *spare; /* nodes */
    int spares;
    struct node_slab *slabs;

    uint64_t *places; /* PLACES of them: where at home blocks of which size have been, for S1 */

    live *table; /* open addressing, a power of two */
    int64_t capacity, used;

    sblock **pool; /* sorted by bytes, then address */
    int pooled, pool_capacity;
    int most_pieces; /* of any sBlock */
    sblock *oldest, *newest;
    sblock *dropped;
    int dropping; /* sBlocks that are being unmapped, without the lock */
    uint64_t clock;

    pending *waiting, *waiting_last; /* freed blocks that other streams may still use */
    void **events;                   /* spare */
    int spare_events, event_capacity;
    span *spans;

    int64_t promised_bytes; /* reserved, and under way */
    int promised_sblocks;   /* under way */
    ferry_stitch_stats stats;
};

static inline int64_t stitch_round(int64_t bytes, int64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- stitch_home.c: pBlocks -------------------------------------------------------------------------------------- */

ferry_status stitch_home_open(ferry_stitch *s);
void stitch_home_close(ferry_stitch *s);
/* At least n nodes are spare, so that n splits cannot fail. */
ferry_status stitch_nodes(ferry_stitch *s, int n);
/* The smallest FREE pBlock of the queue with at least `bytes`, the one at the lowest address among equals; NULL: none.
 */
pblock *stitch_home_fit(const queue *q, int arena, int64_t bytes);
/* The first one in the bin that b belongs into. */
const pblock *stitch_home_bin(const pblock *b);
/* [at, at + bytes) inside a FREE (HOLE) pBlock becomes a pBlock of its own, USED by q. Takes up to two nodes. */
pblock *stitch_home_take(ferry_stitch *s, pblock *b, int64_t at, int64_t bytes, queue *q);
/* Two neighbours, neither in a bin, become one, with the node of the longer one. */
pblock *stitch_home_join(ferry_stitch *s, pblock *left, pblock *right);
/* USED becomes FREE in its queue (HOLE), merged with its neighbours of the same kind. */
void stitch_home_free(ferry_stitch *s, pblock *b);
void stitch_home_hole(ferry_stitch *s, pblock *b);
/* A FREE pBlock changes its queue. stamp: 0 when the device is done with it, else of the new queue. */
void stitch_home_move(ferry_stitch *s, pblock *b, queue *to, uint64_t stamp);
/* The whole range is in one FREE pBlock of the queue; at is the start of a slot. */
bool stitch_home_is_free(const ferry_stitch *s, const queue *q, int arena, int64_t at, int64_t bytes);
/* Whole chunks inside [*at, *end): narrows the range to them; false: none. */
bool stitch_home_whole(const ferry_stitch *s, int arena, int64_t *at, int64_t *end);

/* ---- stitch_sblock.c: sBlocks ------------------------------------------------------------------------------------ */

/* A pooled sBlock whose first `bytes` are free for q, taken; NULL: none. */
sblock *stitch_pool_take(ferry_stitch *s, queue *q, int64_t bytes);
void stitch_pool_free(ferry_stitch *s, sblock *sb);
ferry_status stitch_pool_reserve(ferry_stitch *s); /* room for one more, beside those under way */
void stitch_pool_add(ferry_stitch *s, sblock *sb);
/* Takes it out of the pool; its addresses are unmapped later. A failure (of an event) keeps it. */
ferry_status stitch_pool_drop(ferry_stitch *s, sblock *sb);
/* Unmaps dropped sBlocks; wait: all of them, also those that the device may still use. The lock is released and taken.
 */
void stitch_pool_tend(ferry_stitch *s, bool wait);
void *stitch_pool_worker(void *stitch);
void stitch_sblock_free(sblock *sb);
/* The first sb->maps chunks. Without the lock: sb belongs to the caller, and its chunks stay as long as it counts in
 * them. false: an unmap failed, and the addresses cannot be used again. */
bool stitch_sblock_unmap(ferry_stitch *s, sblock *sb);
/* Addresses, from the spare ones first. *out_bytes may be larger. Without the lock. */
ferry_status stitch_span_take(ferry_stitch *s, int64_t bytes, void **at, int64_t *out_bytes);
void stitch_span_give(ferry_stitch *s, void *at, int64_t bytes);
void stitch_pool_close(ferry_stitch *s);

/* ---- stitch_make.c: S3 and S4 ------------------------------------------------------------------------------------ */

typedef struct place {
    pblock *home; /* one of the two */
    sblock *stitched;
    int state; /* 0: S1 */
} place;

/* S3 and S4. The lock is released during the virtual memory calls. FERRY_FAILED: out of memory. Neither place is set:
 * memory of other streams was adopted, look again. */
ferry_status stitch_make(ferry_stitch *s, queue *q, int64_t bytes, place *out);
/* One more chunk for small requests, free. */
ferry_status stitch_make_small(ferry_stitch *s, queue *q);
/* Unmaps and releases the chunks of [at, at + bytes); returns how many. */
int stitch_chunks_release(ferry_stitch *s, int arena, int64_t at, int64_t bytes);

/* ---- stitch_stream.c: streams ------------------------------------------------------------------------------------ */

ferry_status stitch_queue_get(ferry_stitch *s, void *stream, queue **out);
/* Records an event (made when *event is NULL) behind the work of the queue's stream; of a closed one there is none, and
 * *event stays as it is. An event that is NULL is done. */
ferry_status stitch_record(ferry_stitch *s, const queue *q, void **event);
bool stitch_event_done(ferry_stitch *s, void *event);
ferry_status stitch_event_sync(ferry_stitch *s, void *event);
/* What other queues have freed, if the device is done with it, becomes q's, up to `bytes`. wait: q's stream waits for
 * it. */
int64_t stitch_adopt(ferry_stitch *s, queue *q, int64_t bytes, bool wait);
/* Frees blocks whose other streams are done with them; wait: all. */
void stitch_poll(ferry_stitch *s, bool wait);
ferry_status stitch_wait_later(ferry_stitch *s, const live *block);
void *stitch_event_take(ferry_stitch *s);
void stitch_event_give(ferry_stitch *s, void *event);
void stitch_streams_close(ferry_stitch *s);

/* ---- stitch.c ---------------------------------------------------------------------------------------------------- */

/* The block is free now. */
void stitch_release(ferry_stitch *s, const live *block);
live *stitch_find(const ferry_stitch *s, const void *address);

#endif
