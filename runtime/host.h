/* host.h - what the files of the host backend share. */
#ifndef FERRY_RUNTIME_HOST_H
#define FERRY_RUNTIME_HOST_H

#include "runtime/backend.h"

/* host_memory.c: as in ferryi_backend */
ferry_status ferryi_host_alloc(ferry_device *d, int64_t bytes, void **out);
void ferryi_host_free(ferry_device *d, void *p);
ferry_status ferryi_host_physical_create(ferry_device *d, int64_t bytes, void **out);
void ferryi_host_physical_release(ferry_device *d, void *physical);
ferry_status ferryi_host_range_reserve(ferry_device *d, int64_t bytes, void **out);
void ferryi_host_range_free(ferry_device *d, void *range, int64_t bytes);
ferry_status ferryi_host_range_map(ferry_device *d, void *at, int64_t bytes, void *physical, int64_t offset_bytes);
void ferryi_host_range_unmap(ferry_device *d, void *at, int64_t bytes);

/* host_stream.c: as in ferryi_backend */
ferry_status ferryi_host_stream_open(ferry_device *d, ferry_stream_kind kind, ferry_stream **out);
void ferryi_host_stream_close(ferry_stream *s);
ferry_status ferryi_host_stream_sync(ferry_stream *s);
ferry_status ferryi_host_stream_wait(ferry_stream *s, ferry_event *e);
ferry_status ferryi_host_stream_task(ferry_stream *s, void (*fn)(void *), const void *args, size_t args_bytes);
ferry_status ferryi_host_event_open(ferry_device *d, ferry_event **out);
void ferryi_host_event_close(ferry_event *e);
ferry_status ferryi_host_event_record(ferry_stream *s, ferry_event *e);
ferry_status ferryi_host_event_sync(ferry_event *e);
ferry_status ferryi_host_event_time_ns(ferry_event *e, int64_t *out);

/* The host's device. Its marks are the completions of events: see host_stream.c. */
typedef struct ferryi_host_mark ferryi_host_mark;
typedef struct ferryi_host_device {
    ferry_device base;
    ferryi_host_mark *marks; /* under FERRY_TSAN: all that were made, until close */
} ferryi_host_device;
void ferryi_host_marks_free(ferryi_host_device *d);

/* The kernels. A reference kernel exists for every op and type that ferryi_host_supports accepts. */
ferry_status ferryi_ref_f32(const ferry_kernel *k); /* host_ref.c: arithmetic on floats */
ferry_status ferryi_ref_f64(const ferry_kernel *k);
ferry_status ferryi_ref_int(const ferry_kernel *k);  /* host_int.c: UNARY, BINARY, REDUCE on integers and bool */
ferry_status ferryi_ref_move(const ferry_kernel *k); /* host_move.c: WHERE, COPY, FILL, CAST, EMBEDDING of any type */
ferry_status ferryi_ref_index(const ferry_kernel *k); /* host_index.c: RAVEL, TOPK; SCATTER that replaces */
/* host_fast.c. *done = false when there is no faster way than the reference for this call; nothing was done then. */
ferry_status ferryi_fast_f32(const ferry_kernel *k, bool *done);
ferry_status ferryi_fast_f64(const ferry_kernel *k, bool *done);
ferry_status ferryi_fast_move(const ferry_kernel *k, bool *done);
void ferryi_fast_setup(void); /* once, before the first kernel */

/* *out = the row that ids[i] of dtype2 names, in [0, rows). FERRY_BAD_DATA names the id, its position and the rows. */
ferry_status ferryi_host_row(const ferry_kernel *k, const void *ids, int64_t i, int64_t rows, int64_t *out);
/* The label at position i; *ignored when it is ignore_index. FERRY_BAD_DATA names the label, position and classes. */
ferry_status ferryi_host_label(const ferry_kernel *k, const void *labels, int64_t i, int64_t *out, bool *ignored);

/* ---- walking over strided dimensions ---------------------------------------------------------------------------- */

/* An odometer over dim with the offsets of up to three arguments. */
typedef struct ferryi_walk {
    int rank;
    int64_t dim[FERRY_MAX_RANK];
    int64_t stride[3][FERRY_MAX_RANK];
    int64_t index[FERRY_MAX_RANK];
    int64_t at[3];
    bool more; /* at is the offset of an element; false: there are no more */
} ferryi_walk;

static inline void ferryi_walk_start(ferryi_walk *w)
{
    w->more = true;
    for (int i = 0; i < w->rank; i++) {
        w->index[i] = 0;
        w->more = w->more && w->dim[i] > 0;
    }
    w->at[0] = w->at[1] = w->at[2] = 0;
}

static inline void ferryi_walk_next(ferryi_walk *w)
{
    for (int i = w->rank - 1; i >= 0; i--) {
        if (++w->index[i] < w->dim[i]) {
            for (int a = 0; a < 3; a++) {
                w->at[a] += w->stride[a][i];
            }
            return;
        }
        for (int a = 0; a < 3; a++) {
            w->at[a] -= (w->dim[i] - 1) * w->stride[a][i];
        }
        w->index[i] = 0;
    }
    w->more = false;
}

/* The call's dimensions and strides as they are. */
static inline ferryi_walk ferryi_walk_plain(const ferry_kernel *k)
{
    ferryi_walk w = {.rank = k->rank};
    for (int i = 0; i < k->rank; i++) {
        w.dim[i] = k->dim[i];
        for (int a = 0; a < 3; a++) {
            w.stride[a][i] = k->stride[a][i];
        }
    }
    ferryi_walk_start(&w);
    return w;
}

/* The call's REDUCE as two walks over x (at[0]): the kept dimensions, in the order of y, and the reduced ones. Returns
 * the number of elements that are reduced to one. */
static inline int64_t ferryi_walk_reduce(const ferry_kernel *k, ferryi_walk *kept, ferryi_walk *reduced)
{
    /* unsigned: the sizes of an empty x may not fit, but then no element of it is read */
    uint64_t stride = 1, count = 1, strides[FERRY_MAX_RANK];
    for (int i = k->rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= (uint64_t)k->dim[i];
    }
    *kept = (ferryi_walk){0};
    *reduced = (ferryi_walk){0};
    for (int i = 0; i < k->rank; i++) {
        ferryi_walk *w = (k->axes >> i & 1) != 0 ? reduced : kept;
        count *= w == reduced ? (uint64_t)k->dim[i] : 1;
        w->dim[w->rank] = k->dim[i];
        w->stride[0][w->rank++] = (int64_t)strides[i];
    }
    ferryi_walk_start(kept);
    ferryi_walk_start(reduced);
    return (int64_t)count;
}

/* Joins neighbouring dimensions through which all three arguments step evenly and drops those of size 1, so that the
 * last dimension is as long as can be. At least one dimension is left. */
static inline void ferryi_walk_join(ferryi_walk *w)
{
    int n = 0;
    for (int i = 0; i < w->rank; i++) {
        int64_t dim = w->dim[i];
        if (dim == 1) {
            continue;
        }
        bool even = n > 0;
        for (int a = 0; a < 3 && even; a++) {
            even = w->stride[a][n - 1] == dim * w->stride[a][i];
        }
        if (even) {
            w->dim[n - 1] *= dim;
        } else {
            w->dim[n++] = dim;
        }
        for (int a = 0; a < 3; a++) {
            w->stride[a][n - 1] = w->stride[a][i];
        }
    }
    if (n == 0) {
        n = 1;
        w->dim[0] = 1;
        w->stride[0][0] = w->stride[1][0] = w->stride[2][0] = 0;
    }
    w->rank = n;
}

#endif
