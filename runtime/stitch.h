/* stitch.h - a device memory allocator that ends fragmentation by virtual memory stitching.
 *
 * After GMLake (Guo et al., ASPLOS 2024), with its terms:
 *
 *   chunk    a piece of physical memory, the unit that can be mapped (2 MiB on a GPU, or a multiple: see below)
 *
 *   pBlock   a run of bytes of home addresses. Every chunk is mapped once at its home for as long as it exists, so
 *            that pBlocks partition the memory. They are split and merged at any multiple of 512 bytes: neighbours
 *            have neighbouring addresses, so neither costs a virtual memory call (the paper maps the halves again).
 *
 *   sBlock   a second range of addresses over whole chunks that lie apart. It costs a map for each chunk, and stays
 *            when its memory is freed, to be handed out again as long as the memory behind it is free.
 *
 * A request goes through the paper's states (Algorithm 1, Figure 9), the cheapest first:
 *
 *   S1  exact match    a free pBlock of this size, a place that held one before, or an sBlock: no virtual memory call
 *   S2  single block   the smallest free pBlock that holds it, split: no virtual memory call
 *   S3  several        whole chunks of several free pBlocks, stitched; the last one is split
 *   S4  not enough     the chunks that are missing are made, and stitched to what is free
 *   S5  out of memory  everything is given back that can be, S1 to S4 are tried once more, then FERRY_FAILED
 *
 * Beyond the paper: an sBlock also serves smaller requests by its first chunks; what an sBlock leaves of its last chunk
 * is used at home; free chunks of small requests' slabs are stitched too; address ranges of dropped sBlocks are reused,
 * and are unmapped by a thread of their own; no lock is held during virtual memory calls.
 *
 * Streams. A freed block is used again by its stream at once, as the order of the stream permits. Another stream gets
 * it when the work that the first had enqueued by then is known to be complete, or in S5 by waiting for it on the
 * device. A stream that was given to alloc or use has to exist until ferry_stitch_stream_close or ferry_stitch_close.
 *
 * Threads: all functions may be called by several threads, except open and close.
 *
 * Errors: as in ferry.h; ferry_error() has the message. A call that fails changes nothing. */
#ifndef FERRY_STITCH_H
#define FERRY_STITCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifndef FERRY_H
#include "ferry.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what the allocator needs of a device ------------------------------------------------------------------------ */

/* Sizes and addresses are multiples of chunk_bytes. Any thread calls these, several at a time. A stream is the device's
 * own handle, NULL for its default stream. */
typedef struct ferry_stitch_device {
    void *self;
    int64_t chunk_bytes;    /* least unit of physical memory, a power of two and at least 4096 */
    int64_t capacity_bytes; /* physical memory of the device: bounds the home addresses */

    ferry_status (*create)(void *self, int64_t bytes, uint64_t *chunk); /* physical memory, no address yet */
    void (*release)(void *self, uint64_t chunk);
    ferry_status (*reserve)(void *self, int64_t bytes, void **at); /* addresses */
    void (*unreserve)(void *self, void *at, int64_t bytes);
    ferry_status (*map)(void *self, void *at, int64_t bytes, uint64_t chunk); /* the whole chunk */
    ferry_status (*allow)(void *self, void *at, int64_t bytes); /* access to a mapped range, in one call */
    ferry_status (*unmap)(void *self, void *at, int64_t bytes); /* what one call of map had mapped */

    ferry_status (*event_record)(void *self, void *stream, void **event); /* *event is made when NULL */
    bool (*event_done)(void *self, void *event);
    ferry_status (*event_wait)(void *self, void *stream, void *event); /* later work of the stream waits */
    ferry_status (*event_sync)(void *self, void *event);               /* the caller waits */
    void (*event_close)(void *self, void *event);

    void (*close)(void *self);
} ferry_stitch_device;

/* memfd and mmap: physical memory is an anonymous file of capacity_bytes, streams are idle (every event is complete at
 * once). touch: fills new chunks with 0xFF; without, they take no memory until they are written. */
ferry_status ferry_stitch_host(int64_t chunk_bytes, int64_t capacity_bytes, bool touch, ferry_stitch_device *out);
/* GPU `ordinal` through the CUDA driver. FERRY_FAILED: no driver, no such GPU, no virtual memory management, or a build
 * without CUDA. */
ferry_status ferry_stitch_cuda(int ordinal, ferry_stitch_device *out);

/* ---- allocator --------------------------------------------------------------------------------------------------- */

typedef struct ferry_stitch ferry_stitch;

/* Zero means the default. */
typedef struct ferry_stitch_options {
    int64_t small_bytes;    /* requests below are sub-allocated in slabs of one chunk (2 MiB) */
    int64_t fragment_bytes; /* no smaller request is stitched, no smaller piece is used: GMLake's limit (a chunk) */
    int64_t large_chunk;    /* chunks of this size serve new memory of 8 times as much (32 MiB); chunk_bytes: none do */
    int64_t limit_bytes;    /* physical memory that may be held (the device's) */
    int max_sblocks;        /* the least recently used one beyond it is dropped (1024) */
    bool worker;            /* a thread unmaps dropped sBlocks; else the next slow request does */
} ferry_stitch_options;

/* Takes the device over: close closes it, and so does an open that fails. */
ferry_status ferry_stitch_open(const ferry_stitch_device *device, const ferry_stitch_options *options,
                               ferry_stitch **out);
/* Frees everything, live blocks too; the device must be idle. NULL is allowed. */
void ferry_stitch_close(ferry_stitch *s);

/* *out is aligned to 512 bytes, to be used on `stream`. bytes 0 gives NULL. FERRY_FAILED: out of memory, after S5. */
ferry_status ferry_stitch_alloc(ferry_stitch *s, int64_t bytes, void *stream, void **out);
/* NULL is allowed. FERRY_USAGE: the address is not that of a live block (freed before, inside one, foreign). */
ferry_status ferry_stitch_free(ferry_stitch *s, void *address);
/* The block is also used on `stream` (PyTorch's record_stream): when it is freed, it waits for what that stream has
 * enqueued by then. */
ferry_status ferry_stitch_use(ferry_stitch *s, void *address, void *stream);
/* Before a stream is destroyed: waits for its work, and does not touch it again. Its live blocks stay; what it has
 * freed is there for other streams at once. A stream that was never seen is none to the allocator: FERRY_OK. */
ferry_status ferry_stitch_stream_close(ferry_stitch *s, void *stream);
/* Gives all chunks back that hold nothing; waits for the device. *out_bytes (may be NULL) is what went back. */
ferry_status ferry_stitch_trim(ferry_stitch *s, int64_t *out_bytes);

/* ---- looking inside ---------------------------------------------------------------------------------------------- */

typedef struct ferry_stitch_stats {
    int64_t live_bytes, peak_live_bytes;         /* handed out, each request rounded up to 512 bytes */
    int64_t reserved_bytes, peak_reserved_bytes; /* physical memory */
    int64_t requests, frees;
    int64_t state[5];                                          /* requests that ended in S1 to S5 */
    int64_t creates, releases, maps, unmaps, allows, reserves; /* virtual memory calls */
    int64_t stitched_bytes;                                    /* requests served by S3 and S4 sBlocks, sum */
    int64_t sblocks, sblocks_dropped;
    int64_t adopted_bytes; /* moved from one stream to another */
} ferry_stitch_stats;
void ferry_stitch_get_stats(ferry_stitch *s, ferry_stitch_stats *out);
void ferry_stitch_reset_peaks(ferry_stitch *s);

/* One line of JSON: "stats"; "pblocks" in the order of addresses, each with "at", "bytes", "state", "small"; "sblocks",
 * each with "at", "bytes", "live", "pieces". */
ferry_status ferry_stitch_snapshot(ferry_stitch *s, FILE *to);

/* All invariants hold (the list stands at the function). Slow: for tests. */
bool ferry_stitch_is_valid(ferry_stitch *s);

#ifdef __cplusplus
}
#endif
#endif
