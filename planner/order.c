/* order.c - happens-before as vector clocks, from nothing but the list's streams, its waits and the order of
 * enqueueing.
 *
 * A step's clock has an entry a stream: how many of that stream's steps are known to be over when it starts. It is the
 * largest, entry by entry, of the clocks of its direct predecessors, each of which adds its own end. Direct
 * predecessors are the step before it in its stream, the last HOST step before it (see steps.h), and the steps that it
 * waits for; each of them was enqueued earlier, so one pass in that order is enough. */
#include "planner/steps.h"

static void join(int *clock, const int *other, StepStream stream, int ended)
{
    for (int t = 0; t < STREAM_COUNT; t++)
        clock[t] = other[t] > clock[t] ? other[t] : clock[t];
    clock[stream] = ended > clock[stream] ? ended : clock[stream];
}

static Status check_waits(Diag *d, const StepList *s)
{
    char label[STEP_LABEL_BYTES];
    for (int i = 0; i < s->n_step; i++)
        for (int k = 0; k < s->step[i].n_wait; k++) {
            Wait w = s->step[i].wait[k];
            if (w.step < 0 || w.step >= s->n_step || w.distance < 0 || w.distance > 1 ||
                (w.distance == 0 && w.step >= i))
                return diag_fail(d, ST_FAILED,
                                 "%s waits for step %d of %d iterations before, which is not enqueued before it",
                                 step_label(s, i, label), w.step, w.distance);
        }
    return ST_OK;
}

Status order_build(Diag *d, Arena *a, const StepList *s, int iterations, Order *out)
{
    *out = (Order){0};
    TRY(check_waits(d, s));
    size_t n = (size_t)s->n_step;
    Order o = {.iterations = iterations};
    o.position = ARENA_NEW(a, int, n);
    o.clock = ARENA_NEW(a, int, n *(size_t)iterations *STREAM_COUNT);
    if (!o.position || !o.clock)
        return diag_oom(d);
    for (int i = 0; i < s->n_step; i++)
        o.position[i] = o.per_stream[s->step[i].stream]++;
    const int *last[STREAM_COUNT] = {0};
    int ended[STREAM_COUNT] = {0};
    for (int it = 0; it < iterations; it++)
        for (int i = 0; i < s->n_step; i++) {
            const Step *step = &s->step[i];
            int *clock = o.clock + ((size_t)it * n + (size_t)i) * STREAM_COUNT;
            if (last[step->stream])
                join(clock, last[step->stream], step->stream, ended[step->stream]);
            if (last[STREAM_HOST])
                join(clock, last[STREAM_HOST], STREAM_HOST, ended[STREAM_HOST]);
            for (int k = 0; k < step->n_wait; k++) {
                int w = step->wait[k].step, at = it - step->wait[k].distance;
                StepStream t = s->step[w].stream;
                if (at >= 0)
                    join(clock, o.clock + ((size_t)at * n + (size_t)w) * STREAM_COUNT, t,
                         at * o.per_stream[t] + o.position[w] + 1);
            }
            last[step->stream] = clock;
            ended[step->stream]++;
        }
    *out = o;
    return ST_OK;
}

bool order_before(const Order *o, const StepList *s, int step_a, int iteration_a, int step_b, int iteration_b)
{
    StepStream t = s->step[step_a].stream;
    int end = iteration_a * o->per_stream[t] + o->position[step_a] + 1;
    return o->clock[((size_t)iteration_b * (size_t)s->n_step + (size_t)step_b) * STREAM_COUNT + t] >= end;
}
