/* random_steps.h - small random lists of steps, without graph or plan, and happens-before by the closure of an explicit
 * graph: what vector clocks, reduction, timeline and layout are compared with. */
#ifndef FERRY_TESTS_RANDOM_STEPS_H
#define FERRY_TESTS_RANDOM_STEPS_H

#include <stdlib.h>
#include <string.h>

#include "planner/steps.h"
#include "tests/unit/planner/synthetic.h"

static inline int random_below(uint64_t *rng, int n)
{
    return (int)(synthetic_random(rng) % (unsigned)n);
}

typedef struct RandomShape {
    int steps, device, host; /* buffers of each pool */
    bool two_copies;         /* the last host buffer has two */
    bool hosts;              /* some steps are HOST steps */
} RandomShape;

/* Each step touches one to three buffers. Device buffers are written before they are read within an iteration, but for
 * one in eight, which carries data over. */
static inline StepList *random_list(Arena *a, uint64_t *rng, RandomShape shape)
{
    StepList *s = ARENA_NEW(a, StepList, 1);
    s->n_step = shape.steps;
    s->n_device = shape.device;
    s->n_buffer = shape.device + shape.host;
    s->step = ARENA_NEW(a, Step, s->n_step);
    s->buffer = ARENA_NEW(a, Buffer, s->n_buffer);
    bool *written = ARENA_NEW(a, bool, s->n_buffer);
    for (int i = 0; i < s->n_buffer; i++) {
        Buffer *b = &s->buffer[i];
        bool device = i < shape.device;
        b->name = arena_printf(a, "%s%d", device ? "d" : "h", i);
        b->kind = device ? BUFFER_VALUE : BUFFER_HOST_GRAD;
        b->pool = device ? POOL_DEVICE : POOL_HOST;
        b->bytes = 1 + random_below(rng, 4000);
        b->copies = shape.two_copies && i == s->n_buffer - 1 ? 2 : 1;
        b->preset = device && random_below(rng, 16) == 0;
        written[i] = !device || b->preset || random_below(rng, 8) == 0;
    }
    for (int i = 0; i < s->n_step; i++) {
        Step *x = &s->step[i];
        x->kind = STEP_KERNEL;
        x->node = x->unit = x->segment = -1;
        do
            x->stream = (StepStream)random_below(rng, STREAM_COUNT);
        while (x->stream == STREAM_HOST && (!shape.hosts || random_below(rng, 3) > 0));
        x->access = ARENA_NEW(a, Access, 3);
        int n = 1 + random_below(rng, 3);
        for (int k = 0; k < n; k++) {
            /* buffers near the step's place in the program, so that lives are short */
            int near = s->n_buffer * i / s->n_step + random_below(rng, 5) - 2;
            int buffer = random_below(rng, 3) == 0 ? random_below(rng, s->n_buffer) : near;
            bool known = buffer < 0 || buffer >= s->n_buffer || (buffer < shape.device && x->stream == STREAM_HOST);
            for (int j = 0; j < x->n_access; j++)
                known = known || x->access[j].buffer == buffer;
            if (known)
                continue;
            bool write = !written[buffer] || (!s->buffer[buffer].preset && random_below(rng, 3) == 0);
            bool read = written[buffer] && (!write || random_below(rng, 3) == 0);
            written[buffer] = true;
            x->access[x->n_access++] = (Access){.buffer = buffer, .read = read, .write = write};
            if (s->buffer[buffer].copies == 2 && !write)
                x->access[x->n_access - 1].lag = random_below(rng, 2);
        }
    }
    return s;
}

/* ---- happens-before as a matrix over unrolled steps
 * ------------------------------------------------------------------------- */

typedef struct Closure {
    int n;    /* unrolled steps */
    bool *at; /* at[a * n + b]: a is over before b starts */
} Closure;

static inline void closure_add(Closure *c, int a, int b)
{
    if (a >= 0)
        c->at[(size_t)a * (size_t)c->n + (size_t)b] = true;
}

/* Edges lead from lower to higher numbers only. */
static inline void closure_close(Closure *c)
{
    size_t n = (size_t)c->n;
    for (size_t b = 0; b < n; b++)
        for (size_t m = b; m-- > 0;)
            if (c->at[m * n + b])
                for (size_t a = 0; a < m; a++)
                    c->at[a * n + b] |= c->at[a * n + m];
}

static inline bool closure_has(const Closure *c, int a, int b)
{
    return c->at[(size_t)a * (size_t)c->n + (size_t)b];
}

/* Stream order and enqueue order. */
static inline Closure closure_open(Arena *a, const StepList *s, int iterations)
{
    Closure c = {iterations * s->n_step, NULL};
    c.at = ARENA_NEW(a, bool, (size_t)c.n *(size_t)c.n);
    for (int x = 0; x < c.n; x++)
        for (int y = x + 1; y < c.n; y++)
            if (s->step[x % s->n_step].stream == s->step[y % s->n_step].stream ||
                s->step[x % s->n_step].stream == STREAM_HOST)
                closure_add(&c, x, y);
    return c;
}

/* By the waits of the list, leaving out number `skip` of step `skip_step`. */
static inline Closure closure_of_waits(Arena *a, const StepList *s, int iterations, int skip_step, int skip)
{
    Closure c = closure_open(a, s, iterations);
    for (int x = 0; x < c.n; x++) {
        const Step *step = &s->step[x % s->n_step];
        for (int k = 0; k < step->n_wait; k++)
            if (x % s->n_step != skip_step || k != skip)
                closure_add(&c,
                            (x / s->n_step - step->wait[k].distance) < 0
                                ? -1
                                : (x / s->n_step - step->wait[k].distance) * s->n_step + step->wait[k].step,
                            x);
    }
    closure_close(&c);
    return c;
}

static inline int copy_of(const StepList *s, const Access *c, int iteration)
{
    return s->buffer[c->buffer].copies == 2 ? (iteration + c->lag) % 2 : 0;
}

/* True when two unrolled steps touch the same copy of a buffer and one of them writes it. */
static inline bool steps_conflict(const StepList *s, int x, int y)
{
    const Step *p = &s->step[x % s->n_step], *q = &s->step[y % s->n_step];
    for (int i = 0; i < p->n_access; i++)
        for (int j = 0; j < q->n_access; j++) {
            const Access *c = &p->access[i], *e = &q->access[j];
            if (c->buffer == e->buffer && (c->write || e->write) &&
                copy_of(s, c, x / s->n_step) == copy_of(s, e, y / s->n_step))
                return true;
        }
    return false;
}

/* By the accesses: everything that conflicts is ordered as in the program, up to `distance` iterations apart. */
static inline Closure closure_of_accesses(Arena *a, const StepList *s, int iterations, int distance)
{
    Closure c = closure_open(a, s, iterations);
    for (int x = 0; x < c.n; x++)
        for (int y = x + 1; y < c.n; y++)
            if (y / s->n_step - x / s->n_step <= distance && steps_conflict(s, x, y))
                closure_add(&c, x, y);
    closure_close(&c);
    return c;
}

/* Accesses of a buffer in one iteration, all before those of another in another iteration. */
static inline bool buffers_before(const StepList *s, const Closure *c, int a, int iteration_a, int b, int iteration_b)
{
    for (int i = 0; i < s->n_step; i++)
        for (int j = 0; j < s->n_step; j++)
            for (int k = 0; k < s->step[i].n_access; k++)
                for (int l = 0; l < s->step[j].n_access; l++)
                    if (s->step[i].access[k].buffer == a && s->step[j].access[l].buffer == b &&
                        !closure_has(c, iteration_a * s->n_step + i, iteration_b * s->n_step + j))
                        return false;
    return true;
}

#endif
