/* steps_deps.c - which steps must wait for which: derived from the accesses, then reduced.
 *
 * needs: steps with accesses, buffers   fills: wait, n_wait   keeps: everything else
 *
 * Three iterations of the program are run in one go, keeping for each copy of a buffer the last write and the reads
 * since, of each stream only the latest since streams are in order. A read must come after the last write; a write
 * after the last write and after the reads since. What the third iteration finds is the steady state; the first two
 * give it its history (two, because a buffer with two copies comes around after two).
 *
 * Of the orderings of one step with one other stream only the latest counts: at most one candidate a stream is left. A
 * candidate a -> b goes when b knows of a's end anyway: because the step before b in its stream, the last HOST step
 * before b, or the step of another candidate of b comes after a. All edges lead from an earlier to a later place in the
 * order of enqueueing, so what remains is the transitive reduction, which is unique, and any path between two steps
 * lies between them: two steps that are at most one iteration apart are related by the steps of these two iterations
 * alone, whichever iteration they are in. */
#include <string.h>

#include "planner/steps.h"

enum { UNROLL = 3 };

/* Steps of the unrolled program are numbered through: iteration * n_step + step; -1 is none. */
typedef struct History {
    int write;
    int read[STREAM_COUNT]; /* latest of each stream since the write */
} History;

typedef struct Deps {
    StepList *s;
    History *history;              /* by buffer and copy */
    int *candidate;                /* by unrolled step and stream: the latest step that must be over */
    int *clock;                    /* by unrolled step and stream, as in Order */
    int *position;                 /* by unrolled step: how many earlier steps of its stream */
    int *extra_first, *extra_next; /* chains of extra orderings by `after` */
    const Ordering *extra;
} Deps;

static void want(Deps *x, int *candidate, int step)
{
    if (step < 0)
        return;
    StepStream t = x->s->step[step % x->s->n_step].stream;
    if (step > candidate[t])
        candidate[t] = step;
}

static void find_candidates(Deps *x, int u)
{
    StepList *s = x->s;
    int iteration = u / s->n_step, *candidate = x->candidate + (size_t)u * STREAM_COUNT;
    const Step *step = &s->step[u % s->n_step];
    for (int t = 0; t < STREAM_COUNT; t++)
        candidate[t] = -1;
    for (int i = 0; i < step->n_access; i++) {
        const Access *access = &step->access[i];
        int copy =
            s->buffer[access->buffer].copies == 2 ? (iteration + access->lag) & 1 : 0; /* -lag and lag: same parity */
        History *h = &x->history[2 * (size_t)access->buffer + (size_t)copy];
        want(x, candidate, h->write);
        for (int t = 0; access->write && t < STREAM_COUNT; t++)
            want(x, candidate, h->read[t]);
        if (access->write) {
            h->write = u;
            for (int t = 0; t < STREAM_COUNT; t++)
                h->read[t] = -1;
        } else {
            h->read[step->stream] = u;
        }
    }
    for (int i = x->extra_first[u % s->n_step]; i >= 0; i = x->extra_next[i])
        if (iteration >= x->extra[i].distance)
            want(x, candidate, (iteration - x->extra[i].distance) * s->n_step + x->extra[i].before);
    candidate[step->stream] = -1;
    candidate[STREAM_HOST] = -1; /* enqueue order */
}

/* Everything that step `from` knows, and its own end. */
static void join(const Deps *x, int *clock, int from)
{
    const int *other = x->clock + (size_t)from * STREAM_COUNT;
    for (int t = 0; t < STREAM_COUNT; t++)
        clock[t] = other[t] > clock[t] ? other[t] : clock[t];
    StepStream t = x->s->step[from % x->s->n_step].stream;
    if (clock[t] < x->position[from] + 1)
        clock[t] = x->position[from] + 1;
}

static bool knows(const Deps *x, int step, int earlier)
{
    StepStream t = x->s->step[earlier % x->s->n_step].stream;
    return x->clock[(size_t)step * STREAM_COUNT + t] > x->position[earlier];
}

/* Keeps of step u's candidates what nothing else implies; `before` are the predecessor in its stream and the last HOST
 * step. */
static Status reduce(Diag *d, Arena *a, Deps *x, int u, const int before[2])
{
    StepList *s = x->s;
    const int *candidate = x->candidate + (size_t)u * STREAM_COUNT;
    Step *step = &s->step[u % s->n_step];
    Wait wait[STREAM_COUNT];
    int n = 0;
    for (int t = 0; t < STREAM_COUNT; t++) {
        if (candidate[t] < 0)
            continue;
        bool implied = false;
        for (int i = 0; i < 2; i++)
            implied = implied || (before[i] >= 0 && knows(x, before[i], candidate[t]));
        for (int o = 0; o < STREAM_COUNT; o++)
            implied = implied || (o != t && candidate[o] >= 0 && knows(x, candidate[o], candidate[t]));
        if (implied)
            continue;
        Wait w = {candidate[t] % s->n_step, u / s->n_step - candidate[t] / s->n_step};
        char from[STEP_LABEL_BYTES], to[STEP_LABEL_BYTES];
        if (w.distance > 1)
            return diag_fail(d, ST_FAILED, "%s would have to wait for %s of %d iterations before",
                             step_label(s, u % s->n_step, to), step_label(s, w.step, from), w.distance);
        int at = n++;
        for (; at > 0 && (wait[at - 1].distance > w.distance ||
                          (wait[at - 1].distance == w.distance && wait[at - 1].step > w.step));
             at--)
            wait[at] = wait[at - 1];
        wait[at] = w;
    }
    step->n_wait = n;
    step->wait = ARENA_NEW(a, Wait, n);
    if (!step->wait)
        return diag_oom(d);
    for (int i = 0; i < n; i++)
        step->wait[i] = wait[i];
    return ST_OK;
}

static Status derive(Diag *d, Arena *a, Deps *x)
{
    StepList *s = x->s;
    int last[STREAM_COUNT], count[STREAM_COUNT] = {0};
    for (int t = 0; t < STREAM_COUNT; t++)
        last[t] = -1;
    for (int u = 0; u < UNROLL * s->n_step; u++) {
        StepStream t = s->step[u % s->n_step].stream;
        const int before[2] = {last[t], last[STREAM_HOST]};
        int *clock = x->clock + (size_t)u * STREAM_COUNT;
        find_candidates(x, u);
        x->position[u] = count[t]++;
        for (int i = 0; i < 2; i++)
            if (before[i] >= 0)
                join(x, clock, before[i]);
        if (u >= (UNROLL - 1) * s->n_step)
            TRY(reduce(d, a, x, u, before));
        for (int o = 0; o < STREAM_COUNT; o++)
            if (x->candidate[(size_t)u * STREAM_COUNT + o] >= 0)
                join(x, clock, x->candidate[(size_t)u * STREAM_COUNT + o]);
        last[t] = u;
    }
    return ST_OK;
}

Status steps_derive_waits(Diag *d, Arena *a, StepList *s, const Ordering *extra, int n_extra)
{
    size_t n = (size_t)s->n_step, all = UNROLL * n;
    if (all * STREAM_COUNT > INT32_MAX / 2)
        return diag_fail(d, ST_MODEL, "%d steps are more than a schedule can have", s->n_step);
    Deps x = {.s = s, .extra = extra};
    size_t histories = 2 * (size_t)s->n_buffer, ints = all * (2 * STREAM_COUNT + 1) + n + (size_t)n_extra;
    x.history = base_alloc((histories + 1) * sizeof *x.history);
    int *at = base_alloc((ints + 1) * sizeof *at);
    Status status = ST_OK;
    if (!x.history || !at) {
        status = diag_oom(d);
    } else {
        x.candidate = at;
        x.clock = x.candidate + all * STREAM_COUNT;
        x.position = x.clock + all * STREAM_COUNT;
        x.extra_first = x.position + all;
        x.extra_next = x.extra_first + n;
        memset(x.history, -1, histories * sizeof *x.history); /* -1 in every field */
        for (size_t i = 0; i < n; i++)
            x.extra_first[i] = -1;
        for (int i = 0; i < n_extra && status == ST_OK; i++) {
            const Ordering *e = &extra[i];
            if (e->before < 0 || e->after < 0 || e->before >= s->n_step || e->after >= s->n_step || e->distance < 0 ||
                e->distance > 1 || (e->distance == 0 && e->before >= e->after)) {
                status =
                    diag_fail(d, ST_FAILED, "ordering of step %d after step %d of %d iterations before is no ordering",
                              e->after, e->before, e->distance);
                break;
            }
            x.extra_next[i] = x.extra_first[e->after];
            x.extra_first[e->after] = i;
        }
        if (status == ST_OK)
            status = derive(d, a, &x);
    }
    base_free(x.history);
    base_free(at);
    return status;
}
