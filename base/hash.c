/* hash.c - XXH3 of 128 bits, in the digit order that xxhsum prints. */
#include "base/base.h"
#include "base/file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static void digits(XXH128_hash_t hash, char out[33])
{
    static const char hex[] = "0123456789abcdef";
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, hash);
    for (int i = 0; i < 16; i++) {
        out[2 * i] = hex[bytes.digest[i] >> 4];
        out[2 * i + 1] = hex[bytes.digest[i] & 15];
    }
    out[32] = '\0';
}

void hash_hex(const void *data, size_t size, char out[33])
{
    digits(XXH3_128bits(data, size), out);
}

Status base_hash_rest(Diag *d, const char *path, int fd, char out[33])
{
    enum { STEP = 1 << 18 };
    out[0] = '\0';
    unsigned char *buffer = base_alloc(STEP);
    XXH3_state_t *state = XXH3_createState();
    Status status = ST_OK;
    if (!buffer || !state || XXH3_128bits_reset(state) != XXH_OK)
        status = diag_oom(d);
    while (status == ST_OK) {
        ssize_t n = read(fd, buffer, STEP);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = diag_fail(d, ST_FAILED, "%s: cannot read: %s", path, strerror(errno));
        if (n <= 0)
            break;
        XXH3_128bits_update(state, buffer, (size_t)n);
    }
    if (status == ST_OK)
        digits(XXH3_128bits_digest(state), out);
    XXH3_freeState(state);
    base_free(buffer);
    return status;
}

Status hash_file(Diag *d, const char *path, char out[33])
{
    out[0] = '\0';
    int fd;
    TRY(base_file_open(d, path, &fd, NULL));
    Status status = base_hash_rest(d, path, fd, out);
    close(fd);
    return status;
}
