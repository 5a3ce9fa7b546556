/* memory.h - lifetimes of device buffers by happens-before; shared by the layout (memory.c) and what is live
 * (memory_live.c). */
#ifndef FERRY_PLANNER_MEMORY_H
#define FERRY_PLANNER_MEMORY_H

#include "planner/steps.h"

/* The whole of a buffer's accesses in one iteration, as far as orderings with other buffers are concerned. Let A and B
 * be two buffers. Every access of A is over before any of B starts iff each access of B knows, for each stream, the
 * last access of A there. So of A the last place in each stream is enough, and of B the least that any of its accesses
 * knows. Counts are relative to the beginning of an iteration; `knows` can be negative (into the iteration before). */
typedef struct Life {
    int ends[STREAM_COUNT];  /* steps of the stream up to and including the last access, 0: none there */
    int knows[STREAM_COUNT]; /* steps of the stream that every access knows to be over */
    bool always;             /* holds data from before the first iteration on: shares with nothing */
    bool simple;             /* accessed by COMPUTE only: its life is the interval [knows, ends) there */
} Life;

typedef struct Lives {
    Order order;                         /* two iterations */
    Life *life;                          /* by device buffer */
    int *queue, first[STREAM_COUNT + 1]; /* steps by stream */
} Lives;

/* Paths of happens-before between accesses at most one iteration apart lie within two iterations, so two unrolled ones
 * are exact. Arena memory. */
Status lives_build(Diag *d, Arena *a, const StepList *s, Lives *out);

/* Every access of a is before every access of b, `distance` (0 or 1) iterations later. */
static inline bool life_before(const Lives *x, const Life *a, const Life *b, int distance)
{
    for (int t = 0; t < STREAM_COUNT; t++)
        if (a->ends[t] > 0 && b->knows[t] + distance * x->order.per_stream[t] < a->ends[t])
            return false;
    return true;
}

/* True when a and b may lie on the same bytes: one whole life before the other in an iteration, and that one before the
 * first life of the next iteration. */
static inline bool lives_can_share(const Lives *x, const Life *a, const Life *b)
{
    if (a->always || b->always)
        return false;
    if (a->simple && b->simple)
        return a->ends[STREAM_COMPUTE] <= b->knows[STREAM_COMPUTE] ||
               b->ends[STREAM_COMPUTE] <= a->knows[STREAM_COMPUTE];
    return (life_before(x, a, b, 0) && life_before(x, b, a, 1)) || (life_before(x, b, a, 0) && life_before(x, a, b, 1));
}

/* The steps of a stream beside which a buffer may hold data: places [*begin, *end) of that stream, counted from the
 * beginning of an iteration, negative for the one before. False: beside all. */
bool life_interval(const Lives *x, const Life *l, StepStream stream, int *begin, int *end);

/* Rounds up to a multiple of `to`. */
static inline int64_t memory_round(int64_t bytes, int64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Most bytes that may be live beside one compute step, each buffer rounded up to the alignment. */
int64_t lives_peak(Diag *d, const StepList *s, const Lives *x, int64_t alignment);

#endif
