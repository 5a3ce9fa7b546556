/* trace_check.h - is this a trace that Perfetto shows as meant? For tests; the format is Google's "Trace Event Format".
 */
#ifndef FERRY_TESTS_TRACE_CHECK_H
#define FERRY_TESTS_TRACE_CHECK_H

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRACE_THREADS = 16, TRACE_FLOWS = 200000 };

typedef struct TraceSpan {
    long long start, end; /* ns */
    int thread, step, iteration;
} TraceSpan;

typedef struct TraceFlow {
    int starts, ends, thread[2];
    long long at[2];
} TraceFlow;

typedef struct TraceCheck {
    int n_span, n_flow, n_counter, n_named, n_measured, steps; /* measured: spans of a recorded run */
    TraceSpan *span;
    TraceFlow *flow;
    char why[200];
} TraceCheck;

static inline bool trace_fail(TraceCheck *c, const char *why, long long number)
{
    snprintf(c->why, sizeof c->why, "%s (%lld)", why, number);
    return false;
}

static inline long long trace_ns(const json_t *event, const char *key)
{
    json_t *v = json_object_get(event, key);
    return json_is_number(v) ? llround(json_number_value(v) * 1000) : -1;
}

static inline int trace_by_start(const void *a, const void *b)
{
    const TraceSpan *x = a, *y = b;
    if (x->thread != y->thread)
        return x->thread < y->thread ? -1 : 1;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static inline bool trace_covers(const TraceCheck *c, int thread, long long at)
{
    for (int i = 0; i < c->n_span; i++)
        if (c->span[i].thread == thread && c->span[i].start <= at && at <= c->span[i].end)
            return true;
    return false;
}

/* fills: spans sorted by thread and start. *c is closed by trace_close in any case. */
static inline bool trace_check(TraceCheck *c, const json_t *trace)
{
    *c = (TraceCheck){0};
    const json_t *events = json_object_get(trace, "traceEvents");
    size_t n = json_array_size(events);
    c->span = calloc(n + 1, sizeof *c->span);
    c->flow = calloc(TRACE_FLOWS, sizeof *c->flow);
    if (!c->span || !c->flow || n == 0)
        return trace_fail(c, "no events", 0);
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(events, i), *args = json_object_get(e, "args");
        const char *ph = json_string_value(json_object_get(e, "ph"));
        int thread = (int)json_integer_value(json_object_get(e, "tid"));
        long long at = trace_ns(e, "ts"), id = json_integer_value(json_object_get(e, "id"));
        if (!ph || (*ph != 'M' && at < 0) || thread < 0 || thread >= TRACE_THREADS)
            return trace_fail(c, "an event without phase, time or thread", (long long)i);
        switch (*ph) {
        case 'M':
            c->n_named += strcmp(json_string_value(json_object_get(e, "name")), "thread_name") == 0;
            break;
        case 'C':
            c->n_counter++;
            break;
        case 'X': {
            if (json_integer_value(json_object_get(e, "pid")) == 2) {
                if (trace_ns(e, "dur") < 0 || !json_object_get(args, "predicted_ns"))
                    return trace_fail(c, "a measured span without length or prediction", (long long)i);
                c->n_measured++;
                break;
            }
            TraceSpan s = {at, at + trace_ns(e, "dur"), thread, (int)json_integer_value(json_object_get(args, "step")),
                           (int)json_integer_value(json_object_get(args, "iteration"))};
            if (s.end < s.start || !json_string_value(json_object_get(e, "name")))
                return trace_fail(c, "a span without name or length", (long long)i);
            c->steps = s.step + 1 > c->steps ? s.step + 1 : c->steps;
            c->span[c->n_span++] = s;
            break;
        }
        case 's':
        case 'f': {
            if (id < 1 || id >= TRACE_FLOWS)
                return trace_fail(c, "a flow's id", id);
            TraceFlow *f = &c->flow[id];
            int k = *ph == 'f';
            *(k ? &f->ends : &f->starts) += 1;
            f->at[k] = at;
            f->thread[k] = thread;
            c->n_flow = id > c->n_flow ? (int)id : c->n_flow;
            break;
        }
        default:
            return trace_fail(c, "an event of an unknown phase", (long long)i);
        }
    }
    qsort(c->span, (size_t)c->n_span, sizeof *c->span, trace_by_start);
    for (int i = 1; i < c->n_span; i++)
        if (c->span[i].thread == c->span[i - 1].thread && c->span[i].start < c->span[i - 1].end)
            return trace_fail(c, "two spans of a stream overlap at ns", c->span[i].start);
    for (int i = 1; i <= c->n_flow; i++) {
        const TraceFlow *f = &c->flow[i];
        if (f->starts != 1 || f->ends != 1)
            return trace_fail(c, "a flow has not one start and one end", i);
        if (f->thread[0] == f->thread[1] || f->at[0] > f->at[1])
            return trace_fail(c, "a flow within a stream or backwards", i);
        if (!trace_covers(c, f->thread[0], f->at[0]) || !trace_covers(c, f->thread[1], f->at[1]))
            return trace_fail(c, "a flow that touches no span", i);
    }
    return true;
}

static inline void trace_close(TraceCheck *c)
{
    free(c->span);
    free(c->flow);
}

#endif
