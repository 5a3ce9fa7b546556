/* files.c - mapped reading and atomic writing of files, and tensor shapes as text. See files.h. */
#include "runtime/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- reading --------------------------------------------------------------------------------------------------- */

ferry_status ferryi_map_open(const char *path, ferryi_map *out)
{
    *out = (ferryi_map){0};
    if (path == NULL) {
        return ferryi_fail(FERRY_USAGE, "no path was given");
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG;
        bool odd = errno == ENXIO || errno == ELOOP; /* a socket; links in a circle */
        return ferryi_fail(absent ? FERRY_USAGE : odd ? FERRY_BAD_DATA : FERRY_FAILED, "%s: %s", path, strerror(errno));
    }
    ferry_status status = FERRY_OK;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        status = ferryi_fail(FERRY_FAILED, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = ferryi_fail(FERRY_BAD_DATA, "%s is not a regular file but a %s", path,
                             S_ISDIR(st.st_mode)    ? "folder"
                             : S_ISFIFO(st.st_mode) ? "fifo"
                                                    : "device");
    } else if (st.st_size == 0) {
        out->at = (const uint8_t *)""; /* an empty file cannot be mapped */
    } else {
        void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED) {
            status = ferryi_fail(FERRY_FAILED, "%s: mapping %lld bytes failed: %s", path, (long long)st.st_size,
                                 strerror(errno));
        } else {
            out->at = at;
            out->bytes = st.st_size;
        }
    }
    close(fd);
    return status;
}

void ferryi_map_close(ferryi_map *m)
{
    if (m->bytes > 0) {
        munmap((void *)(uintptr_t)m->at, (size_t)m->bytes);
    }
    *m = (ferryi_map){0};
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

void ferryi_writer_abandon(ferryi_writer *w)
{
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->temporary);
    }
    free(w->path);
    free(w->temporary);
    *w = (ferryi_writer){.fd = -1};
}

ferry_status ferryi_writer_open(const char *path, ferryi_writer *out)
{
    *out = (ferryi_writer){.fd = -1};
    if (path == NULL || path[0] == 0) {
        return ferryi_fail(FERRY_USAGE, "no path to write to was given");
    }
    size_t size = strlen(path) + 48;
    out->path = strdup(path);
    out->temporary = malloc(size);
    if (out->path == NULL || out->temporary == NULL) {
        ferryi_writer_abandon(out);
        return ferryi_fail(FERRY_FAILED, "out of memory");
    }
    /* A left-over of a killed run may hold a name: try the next. */
    for (int i = 0; i < 100 && out->fd < 0; i++) {
        snprintf(out->temporary, size, "%s.%ld.%d.tmp", path, (long)getpid(), i);
        out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (out->fd < 0 && errno != EEXIST) {
            break;
        }
    }
    if (out->fd < 0) {
        int e = errno;
        ferryi_writer_abandon(out);
        return ferryi_fail(e == ENOENT || e == ENOTDIR ? FERRY_USAGE : FERRY_FAILED, "%s cannot be written: %s", path,
                           strerror(e));
    }
    return FERRY_OK;
}

ferry_status ferryi_writer_put(ferryi_writer *w, const void *data, int64_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        size_t part = bytes > (1 << 30) ? (size_t)1 << 30 : (size_t)bytes; /* one call takes less than 2 GiB */
        ssize_t done = write(w->fd, at, part);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return ferryi_fail(FERRY_FAILED, "writing %s failed: %s", w->temporary, strerror(errno));
        }
        at += done;
        bytes -= done;
    }
    return FERRY_OK;
}

/* Makes the rename itself durable. Some file systems cannot flush a folder: that is not an error of ours. */
static void flush_folder(const char *path)
{
    char *folder = strdup(path);
    if (folder == NULL) {
        return;
    }
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        slash[slash == folder ? 1 : 0] = 0;
    }
    int fd = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

ferry_status ferryi_writer_commit(ferryi_writer *w)
{
    ferry_status status = FERRY_OK;
    if (fsync(w->fd) != 0) {
        status = ferryi_fail(FERRY_FAILED, "flushing %s failed: %s", w->temporary, strerror(errno));
    } else if (rename(w->temporary, w->path) != 0) {
        status = ferryi_fail(FERRY_FAILED, "%s cannot be replaced: %s", w->path, strerror(errno));
    }
    if (status != FERRY_OK) {
        ferryi_writer_abandon(w);
        return status;
    }
    flush_folder(w->path);
    close(w->fd); /* flushed above: closing has nothing left that can fail */
    w->fd = -1;
    ferryi_writer_abandon(w);
    return FERRY_OK;
}

/* ---- tensors --------------------------------------------------------------------------------------------------- */

/* A dimension of 0 counts as 1 in the check, so that a tensor without elements has no dimensions either whose product
 * overflows in somebody's strides. */
int64_t ferry_tensor_bytes(const ferry_tensor *t)
{
    if (t == NULL || t->rank < 0 || t->rank > FERRY_MAX_RANK || ferry_dtype_bytes(t->dtype) == 0) {
        return -1;
    }
    int64_t bytes = (int64_t)ferry_dtype_bytes(t->dtype);
    bool empty = false;
    for (int i = 0; i < t->rank; i++) {
        if (!ferryi_mul(bytes, t->dim[i] == 0 ? 1 : t->dim[i], &bytes)) {
            return -1;
        }
        empty = empty || t->dim[i] == 0;
    }
    return empty ? 0 : bytes;
}

const char *ferryi_shape_text(char buf[FERRYI_SHAPE_TEXT], const ferry_tensor *t)
{
    int rank = t->rank < 0 ? 0 : t->rank > FERRY_MAX_RANK ? FERRY_MAX_RANK : t->rank;
    int used = snprintf(buf, FERRYI_SHAPE_TEXT, "%s [", ferry_dtype_name(t->dtype));
    for (int i = 0; i < rank; i++) { /* at most 16 + 8 * 22 characters */
        used +=
            snprintf(buf + used, (size_t)(FERRYI_SHAPE_TEXT - used), "%s%lld", i > 0 ? ", " : "", (long long)t->dim[i]);
    }
    snprintf(buf + used, (size_t)(FERRYI_SHAPE_TEXT - used), "]");
    return buf;
}

const char *ferryi_name_text(char buf[FERRYI_NAME_TEXT], const char *name)
{
    int n = 0;
    for (; name[n] != 0 && n < FERRYI_NAME_TEXT - 4; n++) {
        buf[n] = name[n] >= ' ' && name[n] <= '~' ? name[n] : '?';
    }
    memcpy(buf + n, name[n] != 0 ? "..." : "", name[n] != 0 ? 4 : 1);
    return buf;
}

bool ferryi_same_shape(const ferry_tensor *a, const ferry_tensor *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank) {
        return false;
    }
    for (int i = 0; i < a->rank; i++) {
        if (a->dim[i] != b->dim[i]) {
            return false;
        }
    }
    return true;
}
