/* recorder.c - when the parts of a step ran, and run.yaml. See ferry.h and schemas/run.md.
 *
 * A stamp takes a GPU a few microseconds. So each step records a share of its parts only, every STRIDE-th, and the next
 * step the ones beside them; the first compute part is in all. The more steps, the smaller the share.
 *
 * Each part of each recorded step has two events of its own, so that nothing is read, and no one waits, while the run
 * goes on. Times in the file count from the start of the step's first compute part: there a step begins for the reader,
 * since its loads and the updates of the step before run beside each other. */
#include "runtime/backend.h"
#include "runtime/files.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ferry_recorder {
    ferry_device *device;
    const ferry_part *part;
    int parts, steps, done; /* done: steps whose number came by, up to `steps` */
    int64_t first_step;
    int stride, zero;    /* every stride-th part of a step is recorded; the first compute part always is */
    int now;             /* index of the step that is being enqueued; -1: it is not recorded */
    ferry_event **event; /* [step][part][begin, end] */
    bool *used;          /* begun and ended */
};

enum {
    SAMPLES = 4, /* of each part, at least, where there are so many steps */
    MOST_STRIDE = 16,
};

static bool is_recorded(const ferry_recorder *r, int step, int part)
{
    return part == r->zero || (part + step) % r->stride == 0;
}

static size_t index_of(const ferry_recorder *r, int step, int part)
{
    return (size_t)step * (size_t)r->parts + (size_t)part;
}

ferry_status ferry_recorder_open(ferry_device *d, const ferry_part *parts, int count, int64_t first_step, int steps,
                                 ferry_recorder **out)
{
    if (out == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_recorder_open: out is NULL");
    }
    *out = NULL;
    if (d == NULL || parts == NULL || count < 1 || steps < 2 || count > INT32_MAX / 2 / steps) {
        return ferryi_fail(FERRY_USAGE, "ferry_recorder_open: %d parts of %d steps cannot be recorded", count, steps);
    }
    ferry_recorder *r = calloc(1, sizeof(*r));
    const size_t all = (size_t)count * (size_t)steps;
    int zero = 0;
    while (zero < count && strcmp(parts[zero].stream, "compute") != 0) {
        zero++;
    }
    if (zero == count) {
        free(r);
        return ferryi_fail(FERRY_USAGE, "ferry_recorder_open: no part is on the compute stream");
    }
    if (r != NULL) {
        *r = (ferry_recorder){.device = d,
                              .part = parts,
                              .parts = count,
                              .steps = steps,
                              .first_step = first_step,
                              .stride = steps < 2 * SAMPLES               ? 1
                                        : steps < MOST_STRIDE * SAMPLES ? steps / SAMPLES
                                                                          : MOST_STRIDE,
                              .zero = zero,
                              .now = -1};
        r->event = calloc(2 * all, sizeof(ferry_event *));
        r->used = calloc(all, sizeof(bool));
    }
    if (r == NULL || r->event == NULL || r->used == NULL) {
        ferry_recorder_close(r);
        return ferryi_fail(FERRY_FAILED, "no memory for a recorder");
    }
    for (size_t i = 0; i < 2 * all; i++) {
        ferry_status status = ferry_event_open(d, &r->event[i]);
        if (status != FERRY_OK) {
            ferry_recorder_close(r);
            return status;
        }
    }
    *out = r;
    return FERRY_OK;
}

void ferry_recorder_close(ferry_recorder *r)
{
    if (r == NULL) {
        return;
    }
    for (size_t i = 0; r->event != NULL && i < 2 * (size_t)r->parts * (size_t)r->steps; i++) {
        ferry_event_close(r->event[i]);
    }
    free(r->event);
    free(r->used);
    free(r);
}

void ferry_recorder_step(ferry_recorder *r, int64_t step)
{
    if (r == NULL) {
        return;
    }
    r->now = step >= r->first_step && step - r->first_step < r->steps ? (int)(step - r->first_step) : -1;
    if (r->now >= r->done) {
        r->done = r->now + 1;
    }
}

static ferry_status stamp(ferry_recorder *r, ferry_stream *s, int part, int which)
{
    if (r == NULL || r->now < 0) {
        return FERRY_OK;
    }
    if (s == NULL || s->device != r->device || part < 0 || part >= r->parts) {
        return ferryi_fail(FERRY_USAGE, "recorder: no such part (%d), or a stream of another device", part);
    }
    if (!is_recorded(r, r->now, part)) {
        return FERRY_OK;
    }
    const size_t i = index_of(r, r->now, part);
    const ferryi_backend *backend = r->device->backend;
    r->used[i] = which == 1;
    return (backend->event_stamp != NULL ? backend->event_stamp
                                         : backend->event_record)(s, r->event[2 * i + (size_t)which]);
}

ferry_status ferry_recorder_begin(ferry_recorder *r, ferry_stream *s, int part)
{
    return stamp(r, s, part, 0);
}

ferry_status ferry_recorder_end(ferry_recorder *r, ferry_stream *s, int part)
{
    return stamp(r, s, part, 1);
}

/* ---- run.yaml --------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median(int64_t *x, int n)
{
    qsort(x, (size_t)n, sizeof(*x), by_value);
    return x[n / 2];
}

static ferry_status put(ferryi_writer *w, const char *format, ...) FERRYI_PRINTF(2, 3);
static ferry_status put(ferryi_writer *w, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return ferryi_writer_put(w, text, n < (int)sizeof(text) ? n : (int)sizeof(text) - 1);
}

/* Double quotes; what YAML does not take as it is becomes an escape. Names are UTF-8, as in the model. */
static ferry_status put_quoted(ferryi_writer *w, const char *s)
{
    ferry_status status = ferryi_writer_put(w, "\"", 1);
    for (; *s != '\0' && status == FERRY_OK; s++) {
        const unsigned char c = (unsigned char)*s;
        status = c == '"' || c == '\\'   ? put(w, "\\%c", c)
                 : c < 0x20 || c == 0x7f ? put(w, "\\x%02X", c)
                                         : ferryi_writer_put(w, s, 1);
    }
    return status == FERRY_OK ? ferryi_writer_put(w, "\"", 1) : status;
}

typedef struct times {
    const ferry_recorder *r;
    int steps;            /* whole ones */
    int64_t *begin, *end; /* [step][part] */
    int64_t *zero;        /* [step]: start of its first compute part */
    int64_t *a, *b;       /* samples, a number a step */
} times;

static ferry_status read_times(times *t)
{
    const ferry_recorder *r = t->r;
    for (int i = 0; i < t->steps; i++) {
        for (int k = 0; k < r->parts; k++) {
            const size_t at = index_of(r, i, k);
            if (!is_recorded(r, i, k)) {
                continue;
            }
            if (!r->used[at]) {
                return ferryi_fail(FERRY_USAGE, "recorder: part '%s of %s' is missing in step %lld", r->part[k].what,
                                   r->part[k].of, (long long)(r->first_step + i));
            }
            ferry_status status = ferry_event_time_ns(r->event[2 * at], &t->begin[at]);
            if (status == FERRY_OK) {
                status = ferry_event_time_ns(r->event[2 * at + 1], &t->end[at]);
            }
            if (status != FERRY_OK) {
                return status;
            }
        }
        t->zero[i] = t->begin[index_of(r, i, r->zero)];
    }
    return FERRY_OK;
}

static ferry_status put_part(ferryi_writer *w, times *t, int k)
{
    const ferry_recorder *r = t->r;
    int n = 0;
    for (int i = 0; i < t->steps; i++) {
        if (is_recorded(r, i, k)) {
            t->a[n] = t->begin[index_of(r, i, k)] - t->zero[i];
            t->b[n++] = t->end[index_of(r, i, k)] - t->begin[index_of(r, i, k)];
        }
    }
    if (n == 0) {
        return ferryi_fail(FERRY_USAGE, "recorder: part '%s of %s' was in no step: take more steps", r->part[k].what,
                           r->part[k].of);
    }
    const int64_t start = median(t->a, n), length = median(t->b, n);
    ferry_status status = put(w, "  - {stream: %s, what: %s, of: ", r->part[k].stream, r->part[k].what);
    if (status == FERRY_OK) {
        status = put_quoted(w, r->part[k].of);
    }
    return status != FERRY_OK ? status
                              : put(w, ", start_ns: %lld, median_ns: %lld, min_ns: %lld, max_ns: %lld}\n",
                                    (long long)start, (long long)length, (long long)t->b[0], (long long)t->b[n - 1]);
}

static ferry_status put_run(ferryi_writer *w, times *t, const char *plan_hash)
{
    const ferry_recorder *r = t->r;
    const int periods = t->steps - 1;
    for (int i = 0; i < periods; i++) {
        t->a[i] = t->zero[i + 1] - t->zero[i];
    }
    const int64_t middle = median(t->a, periods), mean = (t->zero[periods] - t->zero[0]) / periods;
    ferry_status status =
        put(w, "schema: ferryc/run/1\ntool: \"libferry " FERRY_VERSION "\"\nplan_hash: \"%.64s\"\ndevice: ", plan_hash);
    if (status == FERRY_OK) {
        status = put_quoted(w, ferry_device_name(r->device));
    }
    if (status == FERRY_OK) {
        status = put(
            w,
            "\nfirst_step: %lld\nsteps: %d\niteration: {median_ns: %lld, mean_ns: %lld, min_ns: %lld, max_ns: %lld}\n"
            "pool_bytes: %lld\nscratch_bytes: %lld\n"
            "# start_ns counts from the start of the step's first compute part; a part's length is median_ns\nparts:\n",
            (long long)r->first_step, t->steps, (long long)middle, (long long)mean, (long long)t->a[0],
            (long long)t->a[periods - 1], (long long)ferry_device_peak_bytes(r->device),
            (long long)ferry_device_scratch_bytes(r->device));
    }
    for (int k = 0; k < r->parts && status == FERRY_OK; k++) {
        status = put_part(w, t, k);
    }
    return status;
}

ferry_status ferry_recorder_write(const ferry_recorder *r, const char *path, const char *plan_hash)
{
    if (r == NULL || path == NULL || plan_hash == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_recorder_write: an argument is NULL");
    }
    if (r->done < 2) {
        return ferryi_fail(FERRY_USAGE, "%s: %d of the steps %lld to %lld ran; at least 2 are needed: take more steps",
                           path, r->done, (long long)r->first_step, (long long)(r->first_step + r->steps - 1));
    }
    const size_t all = (size_t)r->done * (size_t)r->parts, steps = (size_t)r->done;
    int64_t *memory = calloc(2 * all + 3 * steps, sizeof(*memory));
    if (memory == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for the times of a run");
    }
    times t = {
        r, r->done, memory, memory + all, memory + 2 * all, memory + 2 * all + steps, memory + 2 * all + 2 * steps};
    ferryi_writer w;
    ferry_status status = read_times(&t);
    if (status == FERRY_OK) {
        status = ferryi_writer_open(path, &w);
        if (status == FERRY_OK) {
            status = put_run(&w, &t, plan_hash);
            if (status == FERRY_OK) {
                status = ferryi_writer_commit(&w);
            } else {
                ferryi_writer_abandon(&w);
            }
        }
    }
    free(memory);
    return status;
}
