/* ferry_torch.c - libferry_torch.so: the stitching allocator behind torch.cuda.memory.CUDAPluggableAllocator.
 * ferry_torch.py switches it on, and is the place to read first.
 *
 * One allocator for each device, opened at its first request. PyTorch expects an exception when memory is out, and C
 * has none: the helper passes in aoti_torch_check of libtorch, a C function that raises one. Everything is compiled
 * with unwind tables, and no lock is held at the call. */
#include "runtime/stitch.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_DEVICES = 64 };

typedef void (*check_function)(bool condition, const char *function, const char *file, uint32_t line,
                               const char *message);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of opening */
static ferry_stitch *_Atomic allocator[MAX_DEVICES];
static ferry_stitch_options options = {.worker = true};
static check_function raise_unless;

/* Does not return where the helper gave a function that raises; else the message is all, and the caller returns its failure. */
static void fail(const char *function, const char *message)
{
    if (raise_unless != NULL) {
        raise_unless(false, function, __FILE__, __LINE__, message);
    }
    fprintf(stderr, "ferry_torch: %s: %s\n", function, message);
}

/* NULL: ferry_error() says why. */
static ferry_stitch *get(int device)
{
    if (device < 0 || device >= MAX_DEVICES) {
        return NULL;
    }
    ferry_stitch *s = allocator[device];
    if (s != NULL) {
        return s;
    }
    pthread_mutex_lock(&lock);
    s = allocator[device];
    ferry_stitch_device d;
    if (s == NULL && ferry_stitch_cuda(device, &d) == FERRY_OK && ferry_stitch_open(&d, &options, &s) == FERRY_OK) {
        allocator[device] = s;
    }
    pthread_mutex_unlock(&lock);
    return s;
}

/* Before the first request; raise: aoti_torch_check. Sizes are bytes, 0 is the default. */
EXPORT void ferry_torch_setup(check_function raise, int64_t limit_bytes, int64_t large_chunk, int max_sblocks)
{
    raise_unless = raise;
    options.limit_bytes = limit_bytes;
    options.large_chunk = large_chunk;
    options.max_sblocks = max_sblocks;
}

/* NULL after a failure that nothing raised. */
EXPORT void *ferry_torch_alloc(ssize_t bytes, int device, void *stream)
{
    void *at = NULL;
    ferry_stitch *s = get(device);
    if (s == NULL || ferry_stitch_alloc(s, bytes, stream, &at) != FERRY_OK) {
        fail("ferry_torch_alloc", ferry_error());
        return NULL;
    }
    return at;
}

/* The device that PyTorch passes is the current one, not always the block's. */
static ferry_status each(void *at, void *stream, ferry_status (*call)(ferry_stitch *, void *, void *))
{
    ferry_status status = FERRY_USAGE;
    for (int i = 0; i < MAX_DEVICES && status == FERRY_USAGE; i++) {
        ferry_stitch *s = allocator[i];
        status = s != NULL ? call(s, at, stream) : FERRY_USAGE;
    }
    return status;
}

static ferry_status free_call(ferry_stitch *s, void *at, void *stream)
{
    (void)stream;
    return ferry_stitch_free(s, at);
}

/* No exception from here: PyTorch frees in destructors. */
EXPORT void ferry_torch_free(void *at, ssize_t bytes, int device, void *stream)
{
    (void)bytes;
    (void)device;
    if (at != NULL && each(at, stream, free_call) != FERRY_OK) {
        fprintf(stderr, "ferry_torch: %s\n", ferry_error());
    }
}

EXPORT void ferry_torch_record_stream(void *at, void *stream)
{
    if (at != NULL && each(at, stream, ferry_stitch_use) != FERRY_OK) {
        fail("ferry_torch_record_stream", ferry_error());
    }
}

EXPORT void ferry_torch_empty_cache(void)
{
    for (int i = 0; i < MAX_DEVICES; i++) {
        ferry_stitch *s = allocator[i];
        if (s != NULL && ferry_stitch_trim(s, NULL) != FERRY_OK) {
            fail("ferry_torch_empty_cache", ferry_error());
            return;
        }
    }
}

/* false: the device has had no request. */
EXPORT bool ferry_torch_stats(int device, ferry_stitch_stats *out)
{
    ferry_stitch *s = device >= 0 && device < MAX_DEVICES ? allocator[device] : NULL;
    if (s != NULL) {
        ferry_stitch_get_stats(s, out);
    }
    return s != NULL;
}

EXPORT void ferry_torch_reset_peaks(int device)
{
    ferry_stitch *s = device >= 0 && device < MAX_DEVICES ? allocator[device] : NULL;
    if (s != NULL) {
        ferry_stitch_reset_peaks(s);
    }
}

EXPORT bool ferry_torch_snapshot(int device, const char *path)
{
    ferry_stitch *s = device >= 0 && device < MAX_DEVICES ? allocator[device] : NULL;
    FILE *f = s != NULL ? fopen(path, "w") : NULL;
    if (f == NULL) {
        return false;
    }
    bool written = ferry_stitch_snapshot(s, f) == FERRY_OK;
    return fclose(f) == 0 && written;
}
