/* host.h - what the files of the host backend share. */
#ifndef FERRY_RUNTIME_HOST_H
#define FERRY_RUNTIME_HOST_H

#include "runtime/backend.h"
#include "runtime/walk.h"

/* FERRY_FAILED when the system cannot give `bytes` of memory for `what` without swapping. Small sizes are not checked. */
ferry_status ferryi_host_available(const char *what, int64_t bytes);

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
/* The same, but the task also runs after a failure of the device: what another backend makes records and waits of. */
ferry_status ferryi_host_stream_always(ferry_stream *s, void (*fn)(void *), const void *args, size_t args_bytes);
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
ferry_status ferryi_host_bf16(bool reference, const ferry_kernel *k); /* host_bf16.c: arithmetic on bf16 */
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

#endif
