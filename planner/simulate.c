/* simulate.c - the timeline: when each step of a steady training loop starts and ends.
 *
 * needs: steps_time   fills: Timeline   keeps: the list
 *
 * A fluid simulation. At any moment at most one step of each stream runs. A running step has work left, counted in
 * thousandths of a tick (a tick is a thousandth of a nanosecond); in each tick it does `rate` thousandths of work.
 * Rates change only when a step starts or ends, so time jumps from one such event to the next: the first tick at which
 * some step's work is done. A class that meets several others goes at the rate that was measured for all of them at once,
 * where it was not at the slowest of the rates beside each; a step of two classes goes at the slower of theirs.
 *
 * Repeating the program makes it periodic sooner or later: the state after an iteration is a function of the state
 * before. The loop stops when an iteration starts and ends all its steps at the same distances from its beginning as
 * one to four before it. A cycle of several iterations happens when the loop that limits the speed spans more than one
 * of them (the host enqueues an iteration after the results of the one before the last). */
#include <string.h>

#include "planner/steps.h"

enum {
    MAX_ITERATIONS = 64,
    RING = 8,  /* iterations whose times are kept: those that may overlap, and a cycle */
    AHEAD = 4, /* iterations in flight */
    MAX_CYCLE = 4,
    MASKS = 1 << LINK_CLASS_COUNT,
    TICKS_PER_NS = 1000,
};

typedef struct Running {
    int step;     /* -1: idle */
    int64_t work; /* thousandths of ticks */
} Running;

typedef struct Sim {
    const StepList *s;
    int64_t now;                                   /* ticks */
    int *queue;                                    /* steps by stream, in program order */
    int first[STREAM_COUNT + 1];                   /* where each stream's queue starts */
    int at[STREAM_COUNT], iteration[STREAM_COUNT]; /* the next (or running) step of each stream */
    int *ended;                                    /* by step: iterations of it that are over */
    int *hosts_before;                             /* by step: HOST steps before it in the program */
    int left[RING];                                /* steps of an iteration that are not over */
    int over;                                      /* iterations that are over, all before included */
    Running run[STREAM_COUNT];
    int64_t *extra_ns;      /* by step: what its waits and its event take the GPU */
    int64_t signal, signal_update; /* ticks from the end of a step until another stream knows of it */
    int64_t known[STREAM_COUNT];   /* when this stream knows that it can start its next step; 0: it does not depend on that */
    int64_t *start, *end;   /* RING times n_step */
    int rate[MASKS][MASKS]; /* of a step with the first mask while others with the second run */
} Sim;

/* Of class a while those of the set run. A kernel may be of two classes, which are never measured together. */
static int rate_beside(const DeviceFacts *f, int a, unsigned set)
{
    const unsigned both = 1u << LINK_DHA_READ | 1u << LINK_DHA_WRITE;
    set &= ~(1u << a);
    if ((set & both) == both) {
        int read = rate_beside(f, a, set & ~(1u << LINK_DHA_WRITE));
        int write = rate_beside(f, a, set & ~(1u << LINK_DHA_READ));
        return read < write ? read : write;
    }
    int rate = f->rate_together[set | 1u << a][a];
    if (rate > 0)
        return rate;
    rate = 1000;
    for (int b = 0; b < LINK_CLASS_COUNT; b++)
        if ((set >> b & 1) && f->rate_permille[a][b] < rate)
            rate = f->rate_permille[a][b];
    return rate;
}

static Status make_rates(Diag *d, Sim *x, const DeviceFacts *f, bool contention)
{
    for (int a = 0; a < LINK_CLASS_COUNT; a++)
        for (int b = 0; b < LINK_CLASS_COUNT; b++)
            if (f->rate_permille[a][b] < 1 || f->rate_permille[a][b] > 1000)
                return diag_fail(d, ST_MODEL,
                                 "device %s: contention rate %d of class %d beside class %d is outside 1..1000",
                                 f->name ? f->name : "", f->rate_permille[a][b], a, b);
    for (int set = 0; set < MASKS; set++)
        for (int a = 0; a < LINK_CLASS_COUNT; a++)
            if (f->rate_together[set][a] < 0 || f->rate_together[set][a] > 1000)
                return diag_fail(d, ST_MODEL,
                                 "device %s: contention rate %d of class %d in the set %d is outside 1..1000",
                                 f->name ? f->name : "", f->rate_together[set][a], a, set);
    for (int own = 0; own < MASKS; own++)
        for (int other = 0; other < MASKS; other++) {
            int rate = 1000;
            for (int a = 0; contention && a < LINK_CLASS_COUNT; a++)
                if (own >> a & 1) {
                    int r = rate_beside(f, a, (unsigned)other);
                    rate = r < rate ? r : rate;
                }
            x->rate[own][other] = rate;
        }
    return ST_OK;
}

static bool on_gpu(StepStream t)
{
    return t == STREAM_COMPUTE || t == STREAM_LOAD || t == STREAM_STORE;
}

/* A stream of a GPU does nothing else while it waits, however short, and while it tells that a step is over. */
static void add_synchronization(Sim *x, const DeviceFacts *f)
{
    const StepList *s = x->s;
    for (int i = 0; i < s->n_step; i++)
        for (int k = 0; k < s->step[i].n_wait; k++) {
            int other = s->step[i].wait[k].step;
            if (on_gpu(s->step[other].stream))
                x->extra_ns[other] = -1; /* has an event */
        }
    for (int i = 0; i < s->n_step; i++) {
        int64_t ns = x->extra_ns[i] < 0 ? f->record_ns : 0;
        for (int k = 0; k < s->step[i].n_wait && on_gpu(s->step[i].stream); k++)
            ns += on_gpu(s->step[s->step[i].wait[k].step].stream) ? f->wait_ns : f->wait_update_ns;
        x->extra_ns[i] = ns;
    }
}

/* Until stream t knows of the end of a step of another one. The thread that enqueues is no part of the loop's pace. */
static int64_t signal_between(const Sim *x, StepStream from, int t)
{
    if (t == STREAM_HOST)
        return 0;
    return on_gpu(from) && on_gpu((StepStream)t) ? x->signal : x->signal_update;
}

static bool stream_can_start(Sim *x, int t)
{
    const StepList *s = x->s;
    int count = x->first[t + 1] - x->first[t], hosts = x->first[STREAM_HOST + 1] - x->first[STREAM_HOST];
    x->known[t] = 0;
    if (count == 0 || x->run[t].step >= 0)
        return false;
    int it = x->iteration[t], step = x->queue[x->first[t] + x->at[t]];
    if (it >= x->over + AHEAD)
        return false;
    const Step *p = &s->step[step];
    /* with h HOST steps an iteration, step `at` of iteration `it` of that stream is number it * h + at */
    if (t != STREAM_HOST &&
        (int64_t)x->iteration[STREAM_HOST] * hosts + x->at[STREAM_HOST] < (int64_t)it * hosts + x->hosts_before[step])
        return false;
    int64_t known = 0;
    for (int k = 0; k < p->n_wait; k++) {
        int other = p->wait[k].step, of = it - p->wait[k].distance;
        if (x->ended[other] < of + 1)
            return false;
        if (of < 0)
            continue;
        int64_t at = x->end[(size_t)(of % RING) * (size_t)s->n_step + (size_t)other] +
                     signal_between(x, s->step[other].stream, t);
        known = at > known ? at : known;
    }
    x->known[t] = known > x->now ? known : 0;
    return known <= x->now;
}

static void end_step(Sim *x, int t)
{
    const StepList *s = x->s;
    int it = x->iteration[t], step = x->run[t].step;
    x->end[(size_t)(it % RING) * (size_t)s->n_step + (size_t)step] = x->now;
    x->run[t].step = -1;
    x->ended[step]++;
    if (++x->at[t] == x->first[t + 1] - x->first[t]) {
        x->at[t] = 0;
        x->iteration[t]++;
    }
    if (--x->left[it % RING] == 0) {
        x->left[it % RING] = s->n_step;
        x->over++; /* iterations end in order: each stream does them in order */
    }
}

/* Starts everything that can start now, ending what takes no time, until nothing changes. */
static void start_steps(Sim *x)
{
    const StepList *s = x->s;
    bool changed = true;
    while (changed) {
        changed = false;
        for (int t = 0; t < STREAM_COUNT; t++) {
            int over = x->over;
            while (x->over == over && stream_can_start(x, t)) {
                int step = x->queue[x->first[t] + x->at[t]];
                x->run[t].step = step;
                x->run[t].work = (s->step[step].duration_ns + x->extra_ns[step]) * TICKS_PER_NS * 1000;
                x->start[(size_t)(x->iteration[t] % RING) * (size_t)s->n_step + (size_t)step] = x->now;
                changed = true;
                if (x->run[t].work > 0)
                    break;
                end_step(x, t);
            }
            if (x->over > over)
                return; /* an iteration is over: the caller looks at it before its place in the ring is used again */
        }
    }
}

/* To the next event. False when nothing runs. */
static bool advance(Sim *x)
{
    const StepList *s = x->s;
    int rate[STREAM_COUNT];
    int64_t ticks = INT64_MAX;
    for (int t = 0; t < STREAM_COUNT; t++) {
        if (x->run[t].step < 0) {
            if (x->known[t] > 0 && x->known[t] - x->now < ticks)
                ticks = x->known[t] - x->now;
            continue;
        }
        unsigned others = 0;
        for (int o = 0; o < STREAM_COUNT; o++)
            if (o != t && x->run[o].step >= 0)
                others |= s->step[x->run[o].step].link;
        rate[t] = x->rate[s->step[x->run[t].step].link][others];
        int64_t need = x->run[t].work / rate[t] + (x->run[t].work % rate[t] != 0);
        ticks = need < ticks ? need : ticks;
    }
    if (ticks == INT64_MAX)
        return false;
    x->now += ticks;
    for (int t = 0; t < STREAM_COUNT; t++) {
        if (x->run[t].step < 0)
            continue;
        x->run[t].work -= ticks * rate[t];
        if (x->run[t].work <= 0)
            end_step(x, t);
    }
    return true;
}

static int64_t iteration_start(const Sim *x, int it)
{
    const int64_t *start = x->start + (size_t)(it % RING) * (size_t)x->s->n_step;
    int64_t least = start[0];
    for (int i = 1; i < x->s->n_step; i++)
        least = start[i] < least ? start[i] : least;
    return least;
}

static bool same_pattern(const Sim *x, int it, int other, int64_t shift)
{
    size_t n = (size_t)x->s->n_step, a = (size_t)(it % RING) * n, b = (size_t)(other % RING) * n;
    for (size_t i = n; i-- > 0;) /* updates, last in the program, settle last */
        if (x->start[a + i] - x->start[b + i] != shift || x->end[a + i] - x->end[b + i] != shift)
            return false;
    return true;
}

static int64_t round_div(int64_t a, int64_t b)
{
    return (a + b / 2) / b;
}

/* Rounds down, below zero as well: a step that starts where another ends still does so in nanoseconds. */
static int64_t floor_ns(int64_t ticks)
{
    return ticks / TICKS_PER_NS - (ticks % TICKS_PER_NS < 0);
}

/* Iteration `it` is over. True when the loop can stop; fills period and steady. */
static bool settled(const Sim *x, int it, int64_t *starts, Timeline *out)
{
    starts[it % RING] = iteration_start(x, it);
    out->iterations = it + 1;
    /* the ring still holds it - cycle: only iterations up to it + AHEAD - 1 have started */
    for (int cycle = 1; cycle <= MAX_CYCLE && cycle <= it; cycle++) {
        int64_t shift = starts[it % RING] - starts[(it - cycle) % RING];
        if (!same_pattern(x, it, it - cycle, shift))
            continue;
        out->steady = true;
        out->cycle = cycle;
        out->period_ns = round_div(shift, (int64_t)cycle * TICKS_PER_NS);
        return true;
    }
    if (it + 1 < MAX_ITERATIONS)
        return false;
    out->period_ns = round_div(starts[it % RING] - starts[(it - 1) % RING], TICKS_PER_NS);
    return true;
}

static Status stuck(Diag *d, const Sim *x)
{
    char label[STEP_LABEL_BYTES];
    for (int t = 0; t < STREAM_COUNT; t++)
        if (x->first[t + 1] > x->first[t] && x->iteration[t] == x->over)
            return diag_fail(d, ST_FAILED, "the timeline stops in iteration %d: %s never has all that it waits for",
                             x->over, step_label(x->s, x->queue[x->first[t] + x->at[t]], label));
    return diag_fail(d, ST_FAILED, "the timeline stops in iteration %d", x->over);
}

static Status run(Diag *d, Sim *x, Timeline *out)
{
    int64_t starts[RING] = {0};
    bool done = false;
    for (int seen = 0; !done;) {
        start_steps(x);
        if (x->over == seen && !advance(x))
            return stuck(d, x);
        while (x->over > seen && !done)
            done = settled(x, seen++, starts, out);
    }
    const StepList *s = x->s;
    int it = out->iterations - 1; /* at least 1: nothing repeats before the second */
    size_t at = (size_t)(it % RING) * (size_t)s->n_step, before = (size_t)((it - 1) % RING) * (size_t)s->n_step;
    for (int i = 0; i < s->n_step; i++) {
        int64_t from = x->start[at + (size_t)i], to = x->end[at + (size_t)i], zero = starts[it % RING];
        out->start_ns[i] = (from - zero) / TICKS_PER_NS;
        out->end_ns[i] = (to - zero) / TICKS_PER_NS;
        out->previous_start_ns[i] = floor_ns(x->start[before + (size_t)i] - zero);
        out->previous_end_ns[i] = floor_ns(x->end[before + (size_t)i] - zero);
        out->busy_ns[s->step[i].stream] += to - from;
    }
    for (int t = 0; t < STREAM_COUNT; t++) {
        out->busy_ns[t] = round_div(out->busy_ns[t], TICKS_PER_NS);
        /* a stream that is busy for longer than the last distance is still falling behind */
        if (!out->steady && out->busy_ns[t] > out->period_ns)
            out->period_ns = out->busy_ns[t];
    }
    return ST_OK;
}

static Status check_durations(Diag *d, const StepList *s)
{
    int64_t sum = 0;
    char label[STEP_LABEL_BYTES];
    for (int i = 0; i < s->n_step; i++) {
        int64_t ns = s->step[i].duration_ns;
        if (ns < 0 || s->step[i].link >= MASKS)
            return diag_fail(d, ST_FAILED, "%s: no duration or class of the link", step_label(s, i, label));
        if (add_overflows_i64(sum, ns, &sum) || sum > INT64_MAX / (TICKS_PER_NS * (int64_t)1000 * MAX_ITERATIONS * 2))
            return diag_fail(d, ST_MODEL, "the steps of one iteration take more than %lld s: too long for the timeline",
                             (long long)(INT64_MAX / (TICKS_PER_NS * (int64_t)1000 * MAX_ITERATIONS * 2) / 1000000000));
    }
    return ST_OK;
}

Status simulate(Diag *d, Arena *a, const StepList *s, const DeviceFacts *f, bool contention, Timeline *out)
{
    *out = (Timeline){0};
    Sim x = {.s = s};
    TRY(make_rates(d, &x, f, contention));
    TRY(check_durations(d, s));
    size_t n = (size_t)s->n_step;
    Timeline result = {0};
    result.start_ns = ARENA_NEW(a, int64_t, n);
    result.end_ns = ARENA_NEW(a, int64_t, n);
    result.previous_start_ns = ARENA_NEW(a, int64_t, n);
    result.previous_end_ns = ARENA_NEW(a, int64_t, n);
    if (!result.start_ns || !result.end_ns || !result.previous_start_ns || !result.previous_end_ns)
        return diag_oom(d);
    if (n == 0) {
        result.steady = true;
        *out = result;
        return ST_OK;
    }
    int64_t *times = base_alloc((2 * RING + 1) * n * sizeof *times);
    int *ints = base_alloc(3 * n * sizeof *ints);
    Status status = ST_OK;
    if (!times || !ints) {
        status = diag_oom(d);
    } else {
        x.start = times;
        x.end = times + RING * n;
        x.extra_ns = times + 2 * RING * n;
        x.queue = ints;
        x.ended = ints + n;
        x.hosts_before = ints + 2 * n;
        int hosts = 0, filled = 0;
        for (int i = 0; i < s->n_step; i++) {
            x.hosts_before[i] = hosts;
            hosts += s->step[i].stream == STREAM_HOST;
        }
        for (int t = 0; t < STREAM_COUNT; t++) {
            x.first[t] = filled;
            for (int i = 0; i < s->n_step; i++)
                if ((int)s->step[i].stream == t)
                    x.queue[filled++] = i;
            x.run[t].step = -1;
        }
        x.first[STREAM_COUNT] = filled;
        for (int r = 0; r < RING; r++)
            x.left[r] = s->n_step;
        if (contention) {
            add_synchronization(&x, f);
            x.signal = f->signal_ns * TICKS_PER_NS;
            x.signal_update = f->signal_update_ns * TICKS_PER_NS;
        }
        status = run(d, &x, &result);
    }
    base_free(times);
    base_free(ints);
    if (status == ST_OK)
        *out = result;
    return status;
}
