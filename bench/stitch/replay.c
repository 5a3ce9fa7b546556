/* replay.c - replays a trace of allocations (TRACES.md) against models of PyTorch's allocators and against the
 * stitching allocator on the host's memory: a row of a table for each, then reserved / live of the three on a line that
 * begins with "ratios".
 *
 *   bench_stitch NAME [LARGE_CHUNK_MIB] < TRACE
 *   bench_stitch --steps < TRACE                 each training step under the stitching allocator
 *   bench_stitch --head                          the table's head
 *
 * Steady state: the trace's last step, with all that it allocated freed at its end, is replayed REPEATS times more. */
#include "models.h"
#include "runtime/stitch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB 1048576.0

enum { REPEATS = 10 };

typedef struct step {
    char what;      /* a: allocate, f: free, u: use on a stream, s: a training step ends */
    int32_t stream; /* a, u */
    int64_t value;  /* a: bytes; f, u: which allocation, from 0 */
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

static int64_t requests_of(const trace *t)
{
    int64_t n = 0;
    for (int64_t i = 0; i < t->count; i++) {
        n += t->step[i].what == 'a' || t->step[i].what == 'f';
    }
    return n;
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
    double live = (double)t->peak_live, reserved = (double)torch_reserved(m);
    printf("| %s | %s | %.0f | %.0f | %.3f | %.1f | %lld | | | |\n", name,
           expandable ? "expandable segments" : "caching", live / MIB, reserved / MIB, reserved / live,
           100 * (1 - live / reserved), (long long)torch_calls(m));
    free(block);
    torch_close(m);
    return reserved / live;
}

/* ---- the stitching allocator ------------------------------------------------------------------------------------- */

typedef struct replay {
    ferry_stitch *s;
    const trace *t;
    void **block;
    int64_t n; /* allocations so far */
} replay;

static int64_t vm_calls(const ferry_stitch_stats *s)
{
    return s->creates + s->releases + s->maps + s->unmaps + s->allows + s->reserves;
}

static void play(replay *r, const step *p)
{
    void *stream = (void *)(uintptr_t)p->stream;
    ferry_status status = FERRY_OK;
    if (p->what == 'a') {
        status = ferry_stitch_alloc(r->s, p->value, stream, &r->block[r->n++]);
    } else if (p->what == 'f') {
        status = ferry_stitch_free(r->s, r->block[p->value]);
    } else if (p->what == 'u') {
        status = ferry_stitch_use(r->s, r->block[p->value], stream);
    }
    if (status != FERRY_OK) {
        die(ferry_error());
    }
}

/* From step i behind the next mark (or to the end); returns where. */
static int64_t play_part(replay *r, int64_t i)
{
    for (; i < r->t->count && r->t->step[i].what != 's'; i++) {
        play(r, &r->t->step[i]);
    }
    return i + 1;
}

typedef struct steady {
    double ns;        /* a request or a free, in the fastest repeat */
    double s1;        /* part of the last repeat's requests */
    int64_t vm_calls; /* of the last repeat */
    int settled;      /* the first repeat that needs none, from 1; 0: none */
} steady;

/* [from, to): the last step; its allocations are first, first + 1, ... */
static steady play_steady(replay *r, int64_t from, int64_t to, int64_t first)
{
    steady out = {.ns = 1e30};
    int64_t count = r->n - first;
    void **mine = calloc((size_t)count + 1, sizeof(*mine));
    if (mine == NULL) {
        die("no memory");
    }
    for (int repeat = 1; repeat <= REPEATS; repeat++) {
        ferry_stitch_stats before, after;
        int64_t n = 0, calls = 0;
        ferry_stitch_get_stats(r->s, &before);
        double start = seconds();
        for (int64_t i = from; i < to; i++) {
            const step *p = &r->t->step[i];
            void *stream = (void *)(uintptr_t)p->stream;
            ferry_status status = FERRY_OK;
            if (p->what == 'a') {
                status = ferry_stitch_alloc(r->s, p->value, stream, &mine[n++]);
            } else if (p->what == 'f' && p->value >= first) {
                status = ferry_stitch_free(r->s, mine[p->value - first]);
                mine[p->value - first] = NULL;
            }
            if (status != FERRY_OK) {
                die(ferry_error());
            }
        }
        for (int64_t i = 0; i < n; i++) {
            if (ferry_stitch_free(r->s, mine[i]) != FERRY_OK) {
                die(ferry_error());
            }
            mine[i] = NULL;
        }
        double took = seconds() - start;
        ferry_stitch_get_stats(r->s, &after);
        calls = after.requests - before.requests + after.frees - before.frees;
        out.ns = 1e9 * took / (double)calls < out.ns ? 1e9 * took / (double)calls : out.ns;
        out.s1 = (double)(after.state[0] - before.state[0]) / (double)(after.requests - before.requests);
        out.vm_calls = vm_calls(&after) - vm_calls(&before);
        out.settled = out.settled == 0 && out.vm_calls == 0 ? repeat : out.settled;
    }
    free(mine);
    return out;
}

static void print_step(int64_t number, const ferry_stitch_stats *before, const ferry_stitch_stats *after, double took)
{
    const int64_t *b = before->state, *a = after->state;
    printf("%3lld: S1 %lld S2 %lld S3 %lld S4 %lld, virtual memory calls %lld, %.0f ns a request, peak live %.0f, "
           "reserved %.0f MiB, "
           "sBlocks %lld\n",
           (long long)number, (long long)(a[0] - b[0]), (long long)(a[1] - b[1]), (long long)(a[2] - b[2]),
           (long long)(a[3] - b[3]), (long long)(vm_calls(after) - vm_calls(before)),
           1e9 * took / (double)(after->requests - before->requests + after->frees - before->frees + 1),
           (double)after->peak_live_bytes / MIB, (double)after->reserved_bytes / MIB, (long long)after->sblocks);
}

static double replay_ours(const trace *t, const char *name, bool steps, int64_t large_chunk)
{
    ferry_stitch_device device;
    ferry_stitch_options options = {.large_chunk = large_chunk};
    replay r = {.t = t, .block = calloc((size_t)t->allocations + 1, sizeof(void *))};
    if (r.block == NULL || ferry_stitch_host(2 << 20, INT64_C(128) << 30, false, &device) != FERRY_OK ||
        ferry_stitch_open(&device, &options, &r.s) != FERRY_OK) {
        die(ferry_error());
    }
    int64_t from = 0, to = 0, first = 0, mark = 0;
    ferry_stitch_stats before, after;
    ferry_stitch_get_stats(r.s, &before);
    double start = seconds(), all = 0;
    for (int64_t i = 0; i < t->count;) {
        int64_t begin = i, known = r.n;
        i = play_part(&r, i);
        double took = seconds() - start;
        all += took;
        if (i <= t->count) { /* it ended in a mark */
            from = begin;
            to = i - 1;
            first = known;
        }
        if (steps) {
            ferry_stitch_get_stats(r.s, &after);
            print_step(++mark, &before, &after, took);
            before = after;
        }
        start = seconds();
    }
    ferry_stitch_get_stats(r.s, &after);
    double live = (double)t->peak_live, reserved = (double)after.peak_reserved_bytes;
    int64_t calls = vm_calls(&after);
    steady st = to > from ? play_steady(&r, from, to, first) : (steady){.ns = 0};
    if (!steps) {
        printf(
            "| %s | ferry | %.0f | %.0f | %.3f | %.1f | %lld | %.0f | %.0f | S1 %.1f%%, %lld calls, from repeat %d |\n",
            name, live / MIB, reserved / MIB, reserved / live, 100 * (1 - live / reserved), (long long)calls,
            1e9 * all / (double)requests_of(t), st.ns, 100 * st.s1, (long long)st.vm_calls, st.settled);
    }
    free(r.block);
    ferry_stitch_close(r.s);
    return reserved / live;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--head") == 0) {
        printf("| trace | allocator | peak live MiB | peak reserved MiB | reserved / live | fragmentation %% | device "
               "calls | "
               "ns a request | ns, steady | steady state |\n|---|---|---|---|---|---|---|---|---|---|\n");
        return 0;
    }
    if (argc < 2 || argc > 3) {
        die("usage: bench_stitch NAME [LARGE_CHUNK_MIB] < TRACE, --steps < TRACE, or --head");
    }
    trace t = trace_read(stdin);
    int64_t large = argc == 3 ? atoll(argv[2]) << 20 : 0;
    if (strcmp(argv[1], "--steps") == 0) {
        (void)replay_ours(&t, "", true, large);
    } else {
        double caching = replay_torch(&t, false, argv[1]), expandable = replay_torch(&t, true, argv[1]);
        double ours = replay_ours(&t, argv[1], false, large);
        printf("ratios %.4f %.4f %.4f\n", caching, expandable, ours);
    }
    free(t.step);
    return 0;
}
