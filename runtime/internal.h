/* internal.h - what the files of runtime/ share and users of libferry do not see.
 *
 * Three ways to report a failure, by where it happens:
 *   at the call           return ferryi_fail(FERRY_USAGE, "...", ...): sets ferry_error() of this thread
 *   inside enqueued work  ferryi_device_fail(device, status, "...", ...): sticks to the device, the next sync returns
 * it in a loop of many     build the text once, at the first failure, and stop. */
#ifndef FERRY_RUNTIME_INTERNAL_H
#define FERRY_RUNTIME_INTERNAL_H

#include "ferry.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FERRYI_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#else
#define FERRYI_PRINTF(fmt, first)
#endif

/* ---- messages --------------------------------------------------------------------------------------------------- */

/* Sets ferry_error() of the calling thread to the formatted text and returns `status`. Long texts are cut. The
 * arguments may point into the current message (a prefix can be put before it). */
ferry_status ferryi_fail(ferry_status status, const char *fmt, ...) FERRYI_PRINTF(2, 3);

/* ---- checked sizes ---------------------------------------------------------------------------------------------- */

/* *out = a * b (a + b) for non-negative numbers; false when one is negative or the result does not fit. */
static inline bool ferryi_mul(int64_t a, int64_t b, int64_t *out)
{
    if (a < 0 || b < 0 || (b != 0 && a > INT64_MAX / b)) {
        return false;
    }
    *out = a * b;
    return true;
}

static inline bool ferryi_add(int64_t a, int64_t b, int64_t *out)
{
    if (a < 0 || b < 0 || a > INT64_MAX - b) {
        return false;
    }
    *out = a + b;
    return true;
}

/* ---- enqueued work ---------------------------------------------------------------------------------------------- */

/* Enqueues fn(args) on the stream: a copy of the args_bytes at `args` is taken now (args may be NULL with 0 bytes) and
 * fn gets a pointer to it, aligned to 16 bytes and valid during the call. Tasks of one stream run one after the other
 * in the order of the calls, on the stream's CPU thread. Never waits for earlier tasks. After a failure of the device
 * tasks are skipped, as kernels are. Errors: FERRY_USAGE (s or fn is NULL, or the stream has no CPU thread),
 * FERRY_FAILED (memory). */
ferry_status ferryi_stream_task(ferry_stream *s, void (*fn)(void *args), const void *args, size_t args_bytes);

ferry_device *ferryi_stream_device(ferry_stream *s);

/* The failure of enqueued work: the first one sticks to the device until it is closed. Callable from any thread. */
void ferryi_device_fail(ferry_device *d, ferry_status status, const char *fmt, ...) FERRYI_PRINTF(3, 4);

/* ---- access checking -------------------------------------------------------------------------------------------- */

#ifdef FERRY_TSAN
/* Tells ThreadSanitizer that the calling task reads or writes bytes [ptr, ptr + bytes) of device or pinned memory.
 * Memory that the device does not know (a variable of the caller) is left alone. See region.c. */
void ferryi_shadow_touch(ferry_device *d, const void *ptr, int64_t bytes, bool write);
/* Between these, locks taken on this thread order nothing for ThreadSanitizer: for locks inside libraries, which would
 * otherwise hide missing events. */
void ferryi_unseen_begin(void);
void ferryi_unseen_end(void);
#else
static inline void ferryi_shadow_touch(ferry_device *d, const void *ptr, int64_t bytes, bool write)
{
    (void)d;
    (void)ptr;
    (void)bytes;
    (void)write;
}
static inline void ferryi_unseen_begin(void)
{
}
static inline void ferryi_unseen_end(void)
{
}
#endif

#ifdef __cplusplus
}
#endif
#endif
