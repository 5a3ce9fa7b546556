/* host_memory.c - the host backend's pinned and virtual memory.
 *
 * Physical memory is an anonymous file: the same bytes can then be mapped at several addresses, as a GPU's virtual
 * memory management does, and stitching is real. It is filled with 0xFF, which is NaN in every floating type: a buffer
 * that is read before something was copied or computed into it shows as a wrong number. */
#include "runtime/host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FRESH_BYTE = 0xFF, PINNED_ALIGN = 4096 };

typedef struct host_physical {
    int fd;
    int64_t bytes;
} host_physical;

/* Bytes that the system can give without swapping; INT64_MAX when it does not say. */
static int64_t available_bytes(void)
{
    int64_t found = INT64_MAX;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    if (f == NULL) {
        return found;
    }
    while (fgets(line, sizeof(line), f) != NULL) {
        long long kib;
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1) {
            found = kib * 1024;
        }
    }
    fclose(f);
    return found;
}

/* Linux gives memory away that it does not have and kills the process later; a clear failure now is better. */
ferry_status ferryi_host_available(const char *what, int64_t bytes)
{
    if (bytes < (1 << 24)) {
        return FERRY_OK;
    }
    int64_t available = available_bytes();
    if (bytes > available) {
        return ferryi_fail(FERRY_FAILED, "no memory: %s of %lld bytes, the host has %lld bytes available", what,
                           (long long)bytes, (long long)available);
    }
    return FERRY_OK;
}

ferry_status ferryi_host_alloc(ferry_device *d, int64_t bytes, void **out)
{
    (void)d;
    ferry_status status = ferryi_host_available("pinned memory", bytes);
    if (status != FERRY_OK) {
        return status;
    }
    void *p = NULL;
    if ((uint64_t)bytes > SIZE_MAX / 2 || posix_memalign(&p, PINNED_ALIGN, (size_t)bytes) != 0) {
        return ferryi_fail(FERRY_FAILED, "no memory: pinned memory of %lld bytes", (long long)bytes);
    }
    memset(p, 0, (size_t)bytes);
    *out = p;
    return FERRY_OK;
}

void ferryi_host_free(ferry_device *d, void *p)
{
    (void)d;
    free(p);
}

static ferry_status fill_fresh(const host_physical *h)
{
    void *all = mmap(NULL, (size_t)h->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd, 0);
    if (all == MAP_FAILED) {
        return ferryi_fail(FERRY_FAILED, "cannot map %lld bytes of device memory: %s", (long long)h->bytes,
                           strerror(errno));
    }
    memset(all, FRESH_BYTE, (size_t)h->bytes);
    munmap(all, (size_t)h->bytes);
    return FERRY_OK;
}

ferry_status ferryi_host_physical_create(ferry_device *d, int64_t bytes, void **out)
{
    ferry_status status = ferryi_host_available("a device pool", bytes);
    if (status != FERRY_OK) {
        return status;
    }
    host_physical *h = malloc(sizeof(*h));
    if (h == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory");
    }
    h->bytes = bytes;
    h->fd = memfd_create("ferry pool", MFD_CLOEXEC);
    if (h->fd < 0) {
        status = ferryi_fail(FERRY_FAILED, "cannot create device memory: %s", strerror(errno));
        free(h);
        return status;
    }
    int error = posix_fallocate(h->fd, 0, bytes);
    if (error != 0) {
        status = ferryi_fail(FERRY_FAILED, "cannot allocate %lld bytes of device memory: %s", (long long)bytes,
                             strerror(error));
    } else {
        status = fill_fresh(h);
    }
    if (status != FERRY_OK) {
        ferryi_host_physical_release(d, h);
        return status;
    }
    *out = h;
    return FERRY_OK;
}

void ferryi_host_physical_release(ferry_device *d, void *physical)
{
    (void)d;
    host_physical *h = physical;
    close(h->fd);
    free(h);
}

ferry_status ferryi_host_range_reserve(ferry_device *d, int64_t bytes, void **out)
{
    (void)d;
    void *p = mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        return ferryi_fail(FERRY_FAILED, "cannot reserve %lld bytes of addresses: %s", (long long)bytes,
                           strerror(errno));
    }
    *out = p;
    return FERRY_OK;
}

void ferryi_host_range_free(ferry_device *d, void *range, int64_t bytes)
{
    (void)d;
    munmap(range, (size_t)bytes);
}

ferry_status ferryi_host_range_map(ferry_device *d, void *at, int64_t bytes, void *physical, int64_t offset_bytes)
{
    (void)d;
    const host_physical *h = physical;
    void *p = mmap(at, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, h->fd, (off_t)offset_bytes);
    if (p == MAP_FAILED) {
        return ferryi_fail(FERRY_FAILED, "cannot map %lld bytes at offset %lld of a device pool: %s", (long long)bytes,
                           (long long)offset_bytes, strerror(errno));
    }
    return FERRY_OK;
}

/* The addresses stay reserved: a mapping without access replaces the old one in one step. Should the system refuse, the
 * old one stays until the range is freed. */
void ferryi_host_range_unmap(ferry_device *d, void *at, int64_t bytes)
{
    (void)d;
    (void)mmap(at, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
