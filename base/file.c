/* file.c - whole files in, whole files out.
 *
 * Writing: the bytes go to a temporary file in the folder of the target, reach the disk, and only then take the
 * target's name by a rename, which a crash cannot split: a reader finds the old file or the new one. The folder is
 * synchronised last, since the new name lives there. */
#include "base/base.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_name(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a fifo"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISBLK(mode)  ? "a device"
           : S_ISCHR(mode)  ? "a device"
                            : "no regular file";
}

/* The errors that mean that the path names nothing. */
static bool names_nothing(int error)
{
    return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG;
}

Status base_file_open(Diag *d, const char *path, int *out_fd, int64_t *out_size)
{
    *out_fd = -1;
    if (out_size)
        *out_size = 0;
    /* Without O_NONBLOCK the open of a fifo waits for a writer. */
    int fd;
    do
        fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        if (errno == ENXIO || errno == ENODEV)
            return diag_fail(d, ST_MODEL, "%s: is a socket or a device, not a file", path);
        return diag_fail(d, names_nothing(errno) ? ST_USAGE : ST_FAILED, "%s: cannot open: %s", path, strerror(errno));
    }
    struct stat st;
    Status status = ST_OK;
    if (fstat(fd, &st) != 0)
        status = diag_fail(d, ST_FAILED, "%s: cannot examine: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        status = diag_fail(d, ST_MODEL, "%s: is %s, not a file", path, kind_name(st.st_mode));
    if (status != ST_OK) {
        close(fd);
        return status;
    }
    *out_fd = fd;
    if (out_size)
        *out_size = st.st_size;
    return ST_OK;
}

static Status too_large(Diag *d, const char *path, int64_t max_bytes)
{
    char limit[32];
    return diag_fail(d, ST_MODEL, "%s: is larger than %s, the most that is read here", path,
                     size_print(limit, max_bytes));
}

/* The size that fstat told is a first guess: files grow while they are read, and those of /proc tell 0. */
static Status read_all(Diag *d, const char *path, int fd, int64_t size, int64_t max_bytes, uint8_t **out,
                       int64_t *out_size)
{
    int64_t capacity = size + 1, count = 0;
    uint8_t *data = (uint64_t)capacity <= SIZE_MAX ? base_alloc((size_t)capacity) : NULL;
    if (!data)
        return diag_oom(d);
    for (;;) {
        if (count == capacity) {
            int64_t larger = capacity <= INT64_MAX / 2 && capacity * 2 > 4096 ? capacity * 2 : 4096;
            uint8_t *grown = larger > capacity ? base_realloc(data, (size_t)larger) : NULL;
            if (!grown) {
                base_free(data);
                return diag_oom(d);
            }
            data = grown;
            capacity = larger;
        }
        int64_t step = capacity - count < (1 << 30) ? capacity - count : 1 << 30;
        ssize_t n = read(fd, data + count, (size_t)step);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            base_free(data);
            return diag_fail(d, ST_FAILED, "%s: cannot read: %s", path, strerror(errno));
        }
        if (n == 0)
            break;
        count += n;
        if (count > max_bytes) {
            base_free(data);
            return too_large(d, path, max_bytes);
        }
    }
    data[count] = 0; /* the end was found by a read into at least one free byte */
    *out = data;
    *out_size = count;
    return ST_OK;
}

Status file_read(Diag *d, const char *path, int64_t max_bytes, uint8_t **out, int64_t *out_size)
{
    *out = NULL;
    *out_size = 0;
    int fd;
    int64_t size;
    TRY(base_file_open(d, path, &fd, &size));
    Status status = size > max_bytes || size == INT64_MAX ? too_large(d, path, max_bytes)
                                                          : read_all(d, path, fd, size, max_bytes, out, out_size);
    close(fd);
    return status;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* ---- writing
 * --------------------------------------------------------------------------------------------------------- */

/* A new file in `dir` under a name that nobody has; open with mode 0666 applies the umask, which mkstemp does not. */
static int temporary_open(const char *dir, char path[PATH_MAX])
{
    for (int tries = 0; tries < 100; tries++) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            return -1;
        int length = snprintf(path, PATH_MAX, "%s/.ferryc-%016llx.tmp", dir, (unsigned long long)random);
        if (length < 0 || length >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd >= 0 || (errno != EEXIST && errno != EINTR))
            return fd;
    }
    return -1;
}

static bool write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size < (1u << 30) ? size : 1u << 30);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            if (n == 0)
                errno = EIO;
            return false;
        }
        data += n;
        size -= (size_t)n;
    }
    return true;
}

/* Some file systems cannot synchronise a folder, and a folder may be writable without being readable: neither is an
 * error of the file, which has its name already. */
static bool folder_sync(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES;
    bool ok = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP;
    int error = errno;
    close(fd);
    errno = error;
    return ok;
}

/* The file that the path leads to through symbolic links: they are kept, the file behind them is replaced. */
static Status find_target(Diag *d, const char *path, char target[PATH_MAX], struct stat *st, bool *exists)
{
    *exists = false;
    if (strlen(path) >= PATH_MAX || !path[0])
        return diag_fail(d, ST_USAGE, "'%s': is no name for a file", path);
    strcpy(target, path);
    if (lstat(path, st) != 0) {
        if (errno == ENOENT)
            return ST_OK;
        return diag_fail(d, names_nothing(errno) ? ST_USAGE : ST_FAILED, "%s: cannot write: %s", path, strerror(errno));
    }
    if (S_ISLNK(st->st_mode) && (!realpath(path, target) || stat(target, st) != 0))
        return diag_fail(d, ST_USAGE, "%s: is a link to a file that cannot be reached: %s", path, strerror(errno));
    if (!S_ISREG(st->st_mode)) {
        diag_fail(d, ST_USAGE, "%s: is %s; output goes to a file only", path, kind_name(st->st_mode));
        return diag_hint(d, "name a file with -o");
    }
    *exists = true;
    return ST_OK;
}

Status file_writer_open(Diag *d, const char *path, FileWriter *w)
{
    _Static_assert(sizeof w->path == PATH_MAX, "paths of FileWriter");
    struct stat st;
    memset(w, 0, sizeof *w);
    TRY(find_target(d, path, w->target, &st, &w->replaces));
    strcpy(w->path, path);
    w->mode = w->replaces ? st.st_mode & 0777 : 0;

    char *slash = strrchr(w->target, '/');
    if (slash && slash[1] == '\0')
        return diag_fail(d, ST_USAGE, "%s: is no name for a file", path);
    if (slash)
        snprintf(w->dir, sizeof w->dir, "%.*s", slash == w->target ? 1 : (int)(slash - w->target), w->target);
    else
        strcpy(w->dir, ".");

    w->fd = temporary_open(w->dir, w->temporary);
    if (w->fd < 0) {
        Status status = names_nothing(errno) ? ST_USAGE : ST_FAILED;
        return diag_fail(d, status, "%s: cannot write into its folder %s: %s", path, w->dir, strerror(errno));
    }
    w->open = true;
    return ST_OK;
}

static Status writer_failed(Diag *d, const FileWriter *w)
{
    return diag_fail(d, ST_FAILED, "%s: cannot write: %s", w->path, strerror(errno));
}

Status file_writer_put(Diag *d, FileWriter *w, const void *data, size_t size)
{
    return write_all(w->fd, data, size) ? ST_OK : writer_failed(d, w);
}

Status file_writer_sync(Diag *d, FileWriter *w)
{
    /* A file that is replaced hands on its permissions. */
    bool ok = (!w->replaces || fchmod(w->fd, (mode_t)w->mode) == 0) && fsync(w->fd) == 0;
    return ok ? ST_OK : writer_failed(d, w);
}

Status file_writer_commit(Diag *d, FileWriter *w)
{
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0 || rename(w->temporary, w->target) != 0)
        return writer_failed(d, w);
    w->open = false;
    if (!folder_sync(w->dir))
        return diag_fail(d, ST_FAILED, "%s: written, but its folder cannot be synchronised: %s", w->path,
                         strerror(errno));
    return ST_OK;
}

void file_writer_abandon(FileWriter *w)
{
    if (!w->open)
        return;
    if (w->fd >= 0)
        close(w->fd);
    unlink(w->temporary);
    w->open = false;
}

Status file_write(Diag *d, const char *path, const void *data, size_t size)
{
    FileWriter w;
    Status status = file_writer_open(d, path, &w);
    if (status == ST_OK)
        status = file_writer_put(d, &w, data, size);
    if (status == ST_OK)
        status = file_writer_sync(d, &w);
    if (status == ST_OK)
        status = file_writer_commit(d, &w);
    file_writer_abandon(&w);
    return status;
}

/* ---- paths
 * ----------------------------------------------------------------------------------------------------------- */

char *path_dir(Arena *a, const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    while (end > 0 && path[end - 1] != '/')
        end--;
    while (end > 1 && path[end - 1] == '/')
        end--;
    if (end == 0)
        return arena_strdup(a, ".");
    char *dir = arena_alloc(a, end + 1, 1);
    return dir ? memcpy(dir, path, end) : NULL;
}

char *path_join(Arena *a, const char *dir, const char *name)
{
    size_t length = strlen(dir);
    if (name[0] == '/' || length == 0 || strcmp(dir, ".") == 0)
        return arena_strdup(a, name);
    return arena_printf(a, "%s%s%s", dir, dir[length - 1] == '/' ? "" : "/", name);
}

char *path_relative(Arena *a, const char *from_dir, const char *target)
{
    char from[PATH_MAX], to[PATH_MAX];
    if (!realpath(from_dir, from) || !realpath(target, to))
        return NULL;
    /* `shared` ends after the last whole component that both have; the root is the component before the first slash. */
    size_t shared = 0, i = 0;
    if (from[1] == '\0')
        from[0] = '\0';
    if (to[1] == '\0')
        to[0] = '\0';
    for (;; i++) {
        bool from_ends = from[i] == '\0' || from[i] == '/', to_ends = to[i] == '\0' || to[i] == '/';
        if (from_ends && to_ends)
            shared = i;
        if (from[i] != to[i] || from[i] == '\0')
            break;
    }
    int up = 0;
    for (const char *p = from + shared; *p; p++)
        up += *p == '/';
    const char *down = to[shared] == '/' ? to + shared + 1 : "";
    size_t size = (size_t)up * 3 + strlen(down) + 2;
    char *path = arena_alloc(a, size, 1);
    if (!path) {
        errno = ENOMEM;
        return NULL;
    }
    char *p = path;
    for (int k = 0; k < up; k++, p += 3)
        memcpy(p, "../", 3);
    strcpy(p, down);
    size_t length = strlen(path);
    if (length == 0)
        strcpy(path, ".");
    else if (path[length - 1] == '/')
        path[length - 1] = '\0';
    return path;
}
