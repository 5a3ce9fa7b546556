/* log.c - the log of a training run, one JSON object a line. See ferry.h. */
#include "runtime/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ferry_log {
    int fd;
    char *path;
    locale_t plain; /* "C": a decimal point whatever the program has set */
};

ferry_status ferry_log_open(const char *path, bool append, ferry_log **out)
{
    *out = NULL;
    if (path == NULL) {
        return ferryi_fail(FERRY_USAGE, "no path of a log was given");
    }
    /* Not waiting at open makes a fifo without a reader an error; the writes afterwards do wait. */
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (append ? O_APPEND : O_TRUNC), 0666);
    if (fd < 0 || fcntl(fd, F_SETFL, append ? O_APPEND : 0) != 0) {
        int e = errno;
        if (fd >= 0) {
            close(fd);
        }
        return ferryi_fail(e == ENOENT || e == ENOTDIR || e == EISDIR ? FERRY_USAGE : FERRY_FAILED,
                           "the log %s cannot be opened: %s", path, strerror(e));
    }
    ferry_log *log = calloc(1, sizeof *log);
    char *copy = strdup(path);
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (log == NULL || copy == NULL || plain == (locale_t)0) {
        free(log);
        free(copy);
        if (plain != (locale_t)0) {
            freelocale(plain);
        }
        close(fd);
        return ferryi_fail(FERRY_FAILED, "out of memory");
    }
    *log = (ferry_log){fd, copy, plain};
    *out = log;
    return FERRY_OK;
}

static void number(char text[40], double x)
{
    if (isfinite(x)) {
        snprintf(text, 40, "%.17g", x);
    } else {
        strcpy(text, "null");
    }
}

ferry_status ferry_log_write(ferry_log *log, const ferry_log_line *line)
{
    char loss[40], norm[40], ms[40], text[320];
    if (log == NULL || line == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_log_write: no log or no line was given");
    }
    locale_t before = uselocale(log->plain);
    number(loss, line->loss);
    number(norm, line->grad_norm);
    number(ms, line->ms);
    uselocale(before);
    int size =
        snprintf(text, sizeof text, "{\"step\": %lld, \"loss\": %s, \"grad_norm\": %s, \"ms\": %s, \"bytes\": %lld}\n",
                 (long long)line->step, loss, norm, ms, (long long)line->bytes);
    for (int done = 0; done < size;) {
        ssize_t n = write(log->fd, text + done, (size_t)(size - done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return ferryi_fail(FERRY_FAILED, "writing the log %s failed: %s", log->path, strerror(errno));
        }
        done += (int)n;
    }
    return FERRY_OK;
}

ferry_status ferry_log_close(ferry_log *log)
{
    ferry_status status = FERRY_OK;
    if (log == NULL) {
        return status;
    }
    if (close(log->fd) != 0) {
        status = ferryi_fail(FERRY_FAILED, "closing the log %s failed: %s", log->path, strerror(errno));
    }
    freelocale(log->plain);
    free(log->path);
    free(log);
    return status;
}
