/* owned.c - generated files, which know whether a person has touched them.
 *
 * The first line carries the hash of all bytes after it. A file whose hash is right is exactly what was generated:
 * writing it again loses nothing. Any other file holds somebody's work and is replaced only by force. The version in
 * the line is not compared: a newer ferryc replaces what an older one wrote. */
#include "base/base.h"
#include "base/file.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_MAX = 4096 };

/* The hash in "PREFIX ferryc VERSION HASH[ TITLE]", NULL when the line is another. */
static const char *header_hash(const char *line, const char *prefix)
{
    size_t length = strlen(prefix);
    if (strncmp(line, prefix, length) != 0)
        return NULL;
    line += length;
    if (length > 0 && *line++ != ' ')
        return NULL;
    if (strncmp(line, "ferryc ", 7) != 0)
        return NULL;
    line += 7;
    size_t version = strcspn(line, " ");
    if (version == 0 || line[version] != ' ' || strspn(line, "0123456789.") != version)
        return NULL;
    line += version + 1;
    if (strspn(line, "0123456789abcdef") != 32 || (line[32] != ' ' && line[32] != '\0'))
        return NULL;
    return line;
}

/* *out_edited: the file claims to be ours, and its content is another. */
static Status is_ours(Diag *d, const char *path, const char *prefix, bool *out_ours, bool *out_edited)
{
    *out_ours = *out_edited = false;
    char line[HEADER_MAX + 1], found[33];
    int fd;
    TRY(base_file_open(d, path, &fd, NULL));
    ssize_t n, count = 0;
    do {
        n = read(fd, line + count, (size_t)(HEADER_MAX - count));
        if (n > 0)
            count += n;
    } while ((n > 0 && count < HEADER_MAX) || (n < 0 && errno == EINTR));
    Status status = n < 0 ? diag_fail(d, ST_FAILED, "%s: cannot read: %s", path, strerror(errno)) : ST_OK;
    char *end = status == ST_OK ? memchr(line, '\n', (size_t)count) : NULL;
    const char *hash = NULL;
    if (end) {
        *end = '\0';
        hash = header_hash(line, prefix);
    }
    if (hash) {
        if (lseek(fd, end + 1 - line, SEEK_SET) < 0)
            status = diag_fail(d, ST_FAILED, "%s: cannot read: %s", path, strerror(errno));
        else
            status = base_hash_rest(d, path, fd, found);
        if (status == ST_OK) {
            *out_ours = memcmp(hash, found, 32) == 0;
            *out_edited = !*out_ours;
        }
    }
    close(fd);
    return status;
}

Status owned_check(Diag *d, const char *path, const char *prefix, bool *out_edited)
{
    struct stat st;
    *out_edited = false;
    if (lstat(path, &st) != 0 || !(S_ISREG(st.st_mode) || S_ISLNK(st.st_mode)) || !file_exists(path))
        return ST_OK;
    bool ours, edited;
    TRY(is_ours(d, path, prefix, &ours, &edited));
    if (ours)
        return ST_OK;
    *out_edited = edited;
    diag_fail(d, ST_USAGE,
              edited ? "%s: was edited since ferryc wrote it" : "%s: exists and was not written by ferryc", path);
    return diag_hint(d, "-f replaces it; -o writes elsewhere");
}

Status owned_write(Diag *d, const char *path, const char *prefix, const char *title, const char *body, size_t size,
                   bool force)
{
    bool edited;
    if (!force)
        TRY(owned_check(d, path, prefix, &edited));

    char hash[33];
    hash_hex(body, size, hash);
    Text all = {0};
    text_add(&all, "%s%sferryc %s %s", prefix, prefix[0] ? " " : "", FERRYC_VERSION, hash);
    if (title[0])
        text_add(&all, " %s", title);
    for (size_t i = 0; !all.failed && i < all.size; i++)
        if (iscntrl((unsigned char)all.at[i]))
            all.at[i] = ' '; /* the title must not end the line */
    if (!all.failed && all.size > HEADER_MAX - 1)
        all.size = HEADER_MAX - 1; /* nor hide its end from the next run */
    text_add_bytes(&all, "\n", 1);
    text_add_bytes(&all, body, size);
    Status status = all.failed ? diag_oom(d) : file_write(d, path, all.at, all.size);
    text_free(&all);
    return status;
}
