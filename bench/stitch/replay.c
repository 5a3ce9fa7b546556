/* replay.c - replays a trace of allocations (see TRACES.md) against models of PyTorch's allocators and against the stitching
 * allocator on the host's memory, and prints a row of a table for each.
 *
 *   bench_stitch NAME < TRACE      one name for the rows
 *   bench_stitch --head            the table's head */
#include "models.h"
#include "runtime/stitch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB 1048576.0

typedef struct step {
    char what;     /* a: allocate, f: free, u: use on a stream, s: a training step ends */
    int32_t stream; /* a, u */
    int64_t value; /* a: bytes; f, u: which allocation, from 0 */
} step;

typedef struct trace {
    step *step;
    int64_t count, allocations, marks, peak_live;
} trace;

static void die(const char *what)
{
    fprintf(stderr, "bench_stitch: %s\n", what);
    exit(1);
}

static int64_t round_unit(int64_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

static void trace_add(trace *t, step s, int64_t *capacity)
{
    if (t->count == *capacity) {
        *capacity = *capacity == 0 ? 1 << 16 : 2 * *capacity;
        t->step = realloc(t->step, (size_t)*capacity * sizeof(step));
        if (t->step == NULL) {
            die("no memory");
        }
    }
    t->step[t->count++] = s;
}

static trace trace_read(FILE *f)
{
    trace t = {0};
    char line[128];
    int64_t capacity = 0, number = 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        step s = {0};
        long long value = 0;
        int stream = 0;
        number++;
        if (line[0] == '#' || line[0] == '\n' || (number == 1 && strcmp(line, "ferry-trace 1\n") == 0)) {
            continue;
        }
        s.what = line[0];
        int fields = line[1] == ' ' ? sscanf(line + 2, "%lld %d", &value, &stream) : 0;
        bool known = (s.what == 'a' && fields >= 1 && value > 0) || (s.what == 's' && fields <= 0) ||
                     ((s.what == 'f' || s.what == 'u') && fields >= 1 && value >= 0 && value < t.allocations);
        if (!known || stream < 0 || stream > 15) {
            fprintf(stderr, "bench_stitch: line %lld of the trace is wrong: %s", (long long)number, line);
            exit(1);
        }
        s.value = value;
        s.stream = stream;
        t.allocations += s.what == 'a';
        t.marks += s.what == 's';
        trace_add(&t, s, &capacity);
    }
    if (t.count == 0) {
        die("the trace is empty");
    }
    int64_t live = 0, *bytes = calloc((size_t)t.allocations + 1, sizeof(*bytes)), n = 0;
    for (int64_t i = 0; i < t.count; i++) {
        step *s = &t.step[i];
        if (s->what == 'a') {
            bytes[n] = round_unit(s->value);
            live += bytes[n++];
        } else if (s->what == 'f') {
            live -= bytes[s->value];
            if (bytes[s->value] == 0) {
                die("the trace frees a block twice");
            }
            bytes[s->value] = 0;
        }
        t.peak_live = live > t.peak_live ? live : t.peak_live;
    }
    free(bytes);
    return t;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double replay_torch(const trace *t, bool expandable, const char *name)
{
    torch_model *m = torch_open(expandable);
    torch_block **block = calloc((size_t)t->allocations + 1, sizeof(*block));
    int64_t n = 0;
    if (m == NULL || block == NULL) {
        die("no memory");
    }
    for (int64_t i = 0; i < t->count; i++) {
        const step *s = &t->step[i];
        if (s->what == 'a') {
            block[n++] = torch_alloc(m, s->value, s->stream);
        } else if (s->what == 'f') {
            torch_free(m, block[s->value]);
        }
    }
    double ratio = (double)torch_reserved(m) / (double)t->peak_live;
    printf("| %s | %s | %.0f | %.0f | %.3f | %lld | | | | |\n", name, expandable ? "expandable segments" : "caching",
           (double)t->peak_live / MIB, (double)torch_reserved(m) / MIB, ratio, (long long)torch_calls(m));
    free(block);
    torch_close(m);
    return ratio;
}

static int64_t vm_calls(const ferry_stitch_stats *s)
{
    return s->creates + s->releases + s->maps + s->unmaps + s->allows + s->reserves;
}

typedef struct clocked {
    double ns; /* a request or a free */
    int64_t calls, requests;
    int64_t state[5];
} clocked;

/* From step i to the next mark (or the end). */
static int64_t replay_part(ferry_stitch *s, const trace *t, int64_t i, void **block, int64_t *n)
{
    for (; i < t->count && t->step[i].what != 's'; i++) {
        const step *p = &t->step[i];
        void *stream = (void *)(uintptr_t)p->stream;
        ferry_status status = FERRY_OK;
        if (p->what == 'a') {
            status = ferry_stitch_alloc(s, p->value, stream, &block[(*n)++]);
        } else if (p->what == 'f') {
            status = ferry_stitch_free(s, block[p->value]);
        } else {
            status = ferry_stitch_use(s, block[p->value], stream);
        }
        if (status != FERRY_OK) {
            die(ferry_error());
        }
    }
    return i + 1;
}

static double replay_ours(const trace *t, const char *name)
{
    ferry_stitch_device device;
    ferry_stitch *s;
    ferry_stitch_options options = {0};
    const char *large = getenv("FERRY_STITCH_LARGE_MIB");
    options.large_chunk = large != NULL ? atoll(large) << 20 : 0;
    if (ferry_stitch_host(2 << 20, INT64_C(128) << 30, false, &device) != FERRY_OK ||
        ferry_stitch_open(&device, &options, &s) != FERRY_OK) {
        die(ferry_error());
    }
    void **block = calloc((size_t)t->allocations + 1, sizeof(*block));
    int64_t n = 0, mark = 0, parts = 0;
    ferry_stitch_stats before, after;
    double worst = 0, total = 0;
    if (block == NULL) {
        die("no memory");
    }
    for (int64_t i = 0; i < t->count;) {
        double start = seconds();
        ferry_stitch_get_stats(s, &before);
        i = replay_part(s, t, i, block, &n);
        ferry_stitch_get_stats(s, &after);
        double took = seconds() - start;
        total += took;
        if (getenv("FERRY_STITCH_VERBOSE") != NULL) {
            printf("  step %lld: S1 %lld S2 %lld S3 %lld S4 %lld, calls %lld, %.0f ns a call, live %.0f reserved %.0f MiB, sblocks %lld\n", (long long)mark,
                   (long long)(after.state[0] - before.state[0]), (long long)(after.state[1] - before.state[1]),
                   (long long)(after.state[2] - before.state[2]), (long long)(after.state[3] - before.state[3]),
                   (long long)(vm_calls(&after) - vm_calls(&before)),
                   1e9 * took / (double)(after.requests - before.requests + after.frees - before.frees + 1),
                   (double)after.peak_live_bytes / MIB, (double)after.reserved_bytes / MIB, (long long)after.sblocks);
        }
        mark++;
        parts++;
    }
    (void)worst;
    (void)parts;
    ferry_stitch_get_stats(s, &after);
    double ratio = (double)after.peak_reserved_bytes / (double)t->peak_live;
    double requests = (double)after.requests;
    printf("| %s | ferry | %.0f | %.0f | %.3f | %lld | %.1f/%.1f/%.2f/%.2f | %.0f | | |\n", name, (double)t->peak_live / MIB,
           (double)after.peak_reserved_bytes / MIB, ratio, (long long)vm_calls(&after), 100 * (double)after.state[0] / requests,
           100 * (double)after.state[1] / requests, 100 * (double)after.state[2] / requests, 100 * (double)after.state[3] / requests,
           1e9 * total / (double)(after.requests + after.frees));
    free(block);
    ferry_stitch_close(s);
    return ratio;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        die("usage: bench_stitch NAME < TRACE, or --head");
    }
    trace t = trace_read(stdin);
    double caching = replay_torch(&t, false, argv[1]), expandable = replay_torch(&t, true, argv[1]);
    double ours = replay_ours(&t, argv[1]);
    free(t.step);
    printf("ratio %.4f %.4f %.4f\n", caching, expandable, ours);
    return 0;
}
