/* memory_file.h - a file without a disk for the fuzzers: its path opens like that of any regular file. */
#ifndef FERRY_FUZZ_MEMORY_FILE_H
#define FERRY_FUZZ_MEMORY_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Replaces the content of the one memory file of this program and returns its path. */
static inline const char *memory_file(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) {
        abort();
    }
    return path;
}

/* Reads every byte, so that the sanitizer sees an address that is not ours. */
static inline void touch_bytes(const void *data, int64_t bytes)
{
    unsigned sum = 0;
    for (int64_t i = 0; i < bytes; i++) {
        sum += ((const unsigned char *)data)[i];
    }
    volatile unsigned sink = sum; /* or the loop would be dropped */
    (void)sink;
}

#endif
