/* region.c - what memory the device gave out, and the shadow of it for access checking.
 *
 * The registry answers two questions: is this pointer pinned or device memory (copies ask at the time of the call), and
 * which physical memory is behind this address (the access checker asks inside the work).
 *
 * The shadow. ThreadSanitizer watches addresses that instrumented code touches. It is blind inside OpenBLAS, and it
 * takes two mappings of one page for different memory. So in FERRY_TSAN builds each line of 64 bytes of physical memory
 * has a word of its own, and every kernel, copy and task reads or writes the words of what it may touch, with plain
 * accesses of instrumented code. Two steps without an event between them then race on the words. A whole word a line,
 * not a byte: TSan remembers only four accesses for each 8 bytes, and neighbours must not push each other out.
 *
 * The lookup must not order anything itself, or it would hide the races it is there to find: its lock and its reads are
 * invisible to TSan. */
#include "runtime/backend.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 64 };

#ifdef FERRY_TSAN
#define UNSEEN __attribute__((no_sanitize("thread")))
#else
#define UNSEEN
#endif

/* The first region whose base is above p. The caller holds the lock. */
UNSEEN static int first_above(const ferry_device *d, uintptr_t p)
{
    int low = 0, high = d->regions;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (d->region[middle].base <= p) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

UNSEEN static bool find(const ferry_device *d, uintptr_t p, ferryi_region *out)
{
    int i = first_above(d, p) - 1;
    if (i < 0 || p - d->region[i].base >= (uintptr_t)d->region[i].bytes) {
        return false;
    }
    *out = d->region[i];
    return true;
}

ferry_status ferryi_region_add(ferry_device *d, ferryi_region region)
{
    ferry_status status = FERRY_OK;
    pthread_mutex_lock(&d->lock);
    if (d->regions == d->region_capacity) {
        int capacity = d->region_capacity == 0 ? 64 : 2 * d->region_capacity;
        ferryi_region *grown = realloc(d->region, (size_t)capacity * sizeof(*grown));
        if (grown == NULL) {
            status = ferryi_fail(FERRY_FAILED, "no memory for the list of %d memory regions", capacity);
        } else {
            d->region = grown;
            d->region_capacity = capacity;
        }
    }
    if (status == FERRY_OK) {
        int at = first_above(d, region.base);
        memmove(d->region + at + 1, d->region + at, (size_t)(d->regions - at) * sizeof(region));
        d->region[at] = region;
        d->regions++;
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

void ferryi_region_remove(ferry_device *d, const void *base, int64_t bytes)
{
    uintptr_t low = (uintptr_t)base, high = low + (uintptr_t)bytes;
    pthread_mutex_lock(&d->lock);
    int kept = 0;
    for (int i = 0; i < d->regions; i++) {
        if (d->region[i].base < low || d->region[i].base >= high) {
            d->region[kept++] = d->region[i];
        }
    }
    d->regions = kept;
    pthread_mutex_unlock(&d->lock);
}

bool ferryi_region_find(ferry_device *d, const void *p, ferryi_region *out)
{
    pthread_mutex_lock(&d->lock);
    bool found = find(d, (uintptr_t)p, out);
    pthread_mutex_unlock(&d->lock);
    return found;
}

bool ferryi_region_covers(ferry_device *d, const void *p, int64_t bytes, ferryi_memory kind)
{
    uintptr_t at = (uintptr_t)p;
    bool covered = true;
    pthread_mutex_lock(&d->lock);
    while (covered && bytes > 0) {
        ferryi_region r;
        covered = find(d, at, &r) && r.kind == kind;
        if (covered) {
            int64_t here = r.bytes - (int64_t)(at - r.base);
            at += (uintptr_t)here;
            bytes -= here;
        }
    }
    pthread_mutex_unlock(&d->lock);
    return covered;
}

#ifdef FERRY_TSAN

void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);

void ferryi_unseen_begin(void)
{
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
}

void ferryi_unseen_end(void)
{
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
}

ferry_status ferryi_shadow_alloc(int64_t bytes, uint64_t **out)
{
    *out = calloc((size_t)(bytes / LINE_BYTES + 1), sizeof(**out));
    return *out != NULL ? FERRY_OK
                        : ferryi_fail(FERRY_FAILED, "no memory for the shadow of %lld bytes", (long long)bytes);
}

void ferryi_shadow_touch(ferry_device *d, const void *ptr, int64_t bytes, bool write)
{
    uintptr_t at = (uintptr_t)ptr;
    while (bytes > 0) {
        ferryi_region r;
        ferryi_unseen_begin();
        pthread_mutex_lock(&d->lock);
        bool found = find(d, at, &r);
        pthread_mutex_unlock(&d->lock);
        ferryi_unseen_end();
        if (!found) {
            return; /* memory of the caller */
        }
        int64_t inside = (int64_t)(at - r.base);
        int64_t here = r.bytes - inside < bytes ? r.bytes - inside : bytes;
        int64_t first = (r.physical_bytes + inside) / LINE_BYTES;
        int64_t last = (r.physical_bytes + inside + here - 1) / LINE_BYTES;
        volatile uint64_t *word = r.shadow;
        for (int64_t i = first; word != NULL && i <= last; i++) {
            if (write) {
                word[i] = 1;
            } else {
                (void)word[i];
            }
        }
        at += (uintptr_t)here;
        bytes -= here;
    }
}

#else

ferry_status ferryi_shadow_alloc(int64_t bytes, uint64_t **out)
{
    (void)bytes;
    *out = NULL;
    return FERRY_OK;
}

#endif
