/* onnx_external.c - mapped files, and weights that lie beside the model.
 *
 * A model from somebody else names files to read. Only those below the model's own folder are: the path is relative,
 * has no "..", its real path (links resolved) still begins with the folder's real path, and the file has no second
 * name. Otherwise a model could bring any file that the user may read into the weights that are written. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/onnx_wire.h"

Status model_map(Diag *d, Model *m, const char *path, bool *missing, MappedFile *out)
{
    *out = (MappedFile){0};
    for (int i = 0; i < m->map.count; i++)
        if (strcmp(m->map.at[i].path, path) == 0) {
            *out = m->map.at[i];
            return ST_OK;
        }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo must not make us wait */
    if (fd < 0 && missing && (errno == ENOENT || errno == ENOTDIR)) {
        *missing = true;
        return ST_OK;
    }
    if (fd < 0)
        return diag_fail(d, errno == ENOENT || errno == ENOTDIR ? ST_USAGE : ST_FAILED, "%s: %s", path,
                         strerror(errno));
    struct stat info;
    Status status = ST_OK;
    if (fstat(fd, &info) != 0)
        status = diag_fail(d, ST_FAILED, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = diag_fail(d, ST_MODEL, "%s: not a regular file", path);
    else if (missing && info.st_nlink > 1) {
        status = diag_fail(d, ST_MODEL,
                           "%s: this external data has a second name (a hard link), perhaps outside the folder", path);
        diag_hint(d, "put a copy of the file in its place");
    }
    MappedFile file = {.path = arena_strdup(m->arena, path), .bytes = (const uint8_t *)"", .size = 0};
    if (status == ST_OK && !file.path)
        status = diag_oom(d);
    if (status == ST_OK && info.st_size > 0) {
        void *at = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED)
            status = diag_fail(d, ST_FAILED, "%s: cannot map the file: %s", path, strerror(errno));
        else {
            file.bytes = at;
            file.size = (size_t)info.st_size;
        }
    }
    close(fd);
    TRY(status);
    MappedFile *slot = VEC_PUSH(&m->map);
    if (!slot) {
        if (file.size)
            munmap((void *)file.bytes, file.size);
        return diag_oom(d);
    }
    *slot = *out = file;
    return ST_OK;
}

static bool parse_i64(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    *out = v;
    return errno == 0 && end != text && *end == '\0' && v >= 0;
}

static bool path_is_below(const char *location)
{
    if (location[0] == '/' || location[0] == '\0')
        return false;
    for (const char *p = location; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.')
            return false;
        p += n + (p[n] == '/');
    }
    return true;
}

/* Real path of `location` in `folder`; NULL and *missing, or an error. In the arena. */
static Status external_path(Diag *d, Model *m, const char *where, const char *location, bool *missing, const char **out)
{
    *out = NULL;
    char *dir = path_dir(m->arena, m->path);
    char *joined = dir ? path_join(m->arena, dir, location) : NULL;
    if (!joined)
        return diag_oom(d);
    char *real_dir = realpath(dir, NULL);
    if (!real_dir)
        return diag_fail(d, ST_FAILED, "%s: %s", dir, strerror(errno));
    char *real = realpath(joined, NULL);
    int error = errno;
    Status status = ST_OK;
    size_t n = strlen(real_dir);
    if (n == 1)
        n = 0; /* the root folder: its own slash is the separator */
    if (!real && (error == ENOENT || error == ENOTDIR))
        *missing = true;
    else if (!real)
        status = diag_fail(d, ST_MODEL, "%s: %s: %s: %s", m->path, where, joined, strerror(error));
    else if (strncmp(real, real_dir, n) != 0 || real[n] != '/')
        status = diag_fail(d, ST_MODEL, "%s: %s: external data \"%s\" is a link that leaves the model's folder",
                           m->path, where, location);
    else if (!(*out = arena_strdup(m->arena, real)))
        status = diag_oom(d);
    free(real_dir);
    free(real);
    return status;
}

Status tensor_external(Diag *d, Model *m, const char *where, const Onnx__TensorProto *t, int64_t bytes,
                       bool allow_missing, Value *out)
{
    const char *location = NULL;
    int64_t offset = 0, length = bytes;
    for (size_t i = 0; i < t->n_external_data; i++) {
        const char *key = t->external_data[i]->key, *value = t->external_data[i]->value;
        if (!key || !value)
            continue;
        if (strcmp(key, "location") == 0)
            location = value;
        else if ((strcmp(key, "offset") == 0 && !parse_i64(value, &offset)) ||
                 (strcmp(key, "length") == 0 && !parse_i64(value, &length)))
            return diag_fail(d, ST_MODEL, "%s: %s: external data: %s is \"%.100s\", not a size", m->path, where, key,
                             value);
    }
    if (!location)
        return diag_fail(d, ST_MODEL, "%s: %s: its data is external, but no location is given", m->path, where);
    if (!path_is_below(location))
        return diag_fail(d, ST_MODEL, "%s: %s: external data \"%.300s\": only files below the model's folder are read",
                         m->path, where, location);
    if (length != bytes)
        return diag_fail(d, ST_MODEL, "%s: %s: external data has %lld bytes, the shape needs %lld", m->path, where,
                         (long long)length, (long long)bytes);
    bool missing = false;
    const char *path;
    MappedFile file = {0};
    TRY(external_path(d, m, where, location, &missing, &path));
    if (!missing)
        TRY(model_map(d, m, path, &missing, &file));
    if (missing && allow_missing) {
        out->data_missing = true;
        return ST_OK;
    }
    if (missing) {
        diag_fail(d, ST_MODEL, "%s: %s: its external data file \"%.300s\" is missing", m->path, where, location);
        return diag_hint(d, "put the file beside the model, or draw the weights at random: --random-init SEED");
    }
    int64_t end;
    if (add_overflows_i64(offset, bytes, &end) || end > (int64_t)file.size)
        return diag_fail(d, ST_MODEL,
                         "%s: %s: external data: %lld bytes from %lld on are not in \"%.300s\" (%zu bytes)", m->path,
                         where, (long long)bytes, (long long)offset, location, file.size);
    const uint8_t *at = file.bytes + offset;
    if (out->dtype != FERRY_BOOL && (uintptr_t)at % ferry_dtype_bytes(out->dtype) == 0) {
        out->data = at;
        return ST_OK;
    }
    uint8_t *copy = arena_alloc(m->arena, (size_t)bytes, 1);
    if (!copy)
        return diag_oom(d);
    for (int64_t i = 0; i < bytes; i++)
        copy[i] = out->dtype == FERRY_BOOL ? at[i] != 0 : at[i];
    out->data = copy;
    return ST_OK;
}
