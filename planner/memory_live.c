/* memory_live.c - when device buffers may hold data, and how many bytes that makes.
 *
 * needs: steps with accesses and waits   fills: Lives   keeps: the list */
#include <string.h>

#include "planner/memory.h"

Status lives_build(Diag *d, Arena *a, const StepList *s, Lives *out)
{
    *out = (Lives){0};
    Lives x = {0};
    TRY(order_build(d, a, s, 2, &x.order));
    x.life = ARENA_NEW(a, Life, s->n_device);
    x.queue = ARENA_NEW(a, int, s->n_step);
    if (!x.life || !x.queue)
        return diag_oom(d);
    int n = 0;
    for (int t = 0; t < STREAM_COUNT; t++) {
        x.first[t] = n;
        for (int i = 0; i < s->n_step; i++)
            if ((int)s->step[i].stream == t)
                x.queue[n++] = i;
    }
    x.first[STREAM_COUNT] = n;
    for (int i = 0; i < s->n_device; i++) {
        x.life[i].always = s->buffer[i].preset;
        for (int t = 0; t < STREAM_COUNT; t++)
            x.life[i].knows[t] = INT32_MAX;
    }
    for (int i = 0; i < s->n_step; i++) {
        const int *clock = x.order.clock + ((size_t)s->n_step + (size_t)i) * STREAM_COUNT;
        StepStream stream = s->step[i].stream;
        for (int k = 0; k < s->step[i].n_access; k++) {
            const Access *c = &s->step[i].access[k];
            if (c->buffer >= s->n_device)
                continue;
            Life *l = &x.life[c->buffer];
            bool first = true;
            for (int t = 0; t < STREAM_COUNT; t++)
                first = first && l->ends[t] == 0;
            if (first && (c->read || c->lag || s->buffer[c->buffer].copies != 1))
                l->always = true; /* what it reads is of an earlier iteration */
            l->ends[stream] = x.order.position[i] + 1;
            for (int t = 0; t < STREAM_COUNT; t++) {
                int knows = clock[t] - x.order.per_stream[t];
                l->knows[t] = knows < l->knows[t] ? knows : l->knows[t];
            }
        }
    }
    for (int i = 0; i < s->n_device; i++) {
        Life *l = &x.life[i];
        l->simple = l->ends[STREAM_COMPUTE] > 0;
        for (int t = 0; t < STREAM_COUNT; t++)
            l->simple = l->simple && (t == STREAM_COMPUTE || l->ends[t] == 0);
        if (l->knows[STREAM_COMPUTE] == INT32_MAX)
            l->always = true; /* never accessed: nothing is known of it */
        l->simple = l->simple && !l->always;
    }
    *out = x;
    return ST_OK;
}

static bool knows_all(const int *clock, const Life *l)
{
    for (int t = 0; t < STREAM_COUNT; t++)
        if (clock[t] < l->ends[t])
            return false;
    return true;
}

bool life_interval(const Lives *x, const Life *l, StepStream stream, int *begin, int *end)
{
    int per = x->order.per_stream[stream], n_step = x->first[STREAM_COUNT];
    if (l->always)
        return false;
    /* The first step that knows all accesses of the first iteration to be over: clocks never fall along a stream. */
    int low = 0, high = 2 * per;
    while (low < high) {
        int middle = (low + high) / 2, step = x->queue[x->first[stream] + middle % per];
        const int *clock = x->order.clock + ((size_t)(middle / per) * (size_t)n_step + (size_t)step) * STREAM_COUNT;
        if (knows_all(clock, l))
            high = middle;
        else
            low = middle + 1;
    }
    *begin = l->knows[stream];
    *end = low;
    return low < 2 * per && *end - *begin < per;
}

/* Adds bytes beside the places of one stream in which the buffer may hold data; `change` has per + 1 entries. */
static void add_life(const Lives *x, const Life *l, StepStream stream, int64_t bytes, int64_t *change)
{
    int per = x->order.per_stream[stream], begin, end;
    if (!life_interval(x, l, stream, &begin, &end)) {
        change[0] += bytes;
        return;
    }
    if (begin >= end)
        return;
    int length = end - begin;
    begin = (begin % per + per) % per;
    end = begin + length;
    change[begin] += bytes;
    if (end <= per) {
        change[end] -= bytes;
    } else {
        change[per] -= bytes;
        change[0] += bytes;
        change[end - per] -= bytes;
    }
}

int64_t lives_peak(Diag *d, const StepList *s, const Lives *x, int64_t alignment)
{
    int per = x->order.per_stream[STREAM_COMPUTE];
    int64_t *change = base_alloc(((size_t)per + 1) * sizeof *change);
    if (!change) {
        diag_oom(d);
        return -1;
    }
    for (int i = 0; i < s->n_device && per > 0; i++)
        add_life(x, &x->life[i], STREAM_COMPUTE, memory_round(s->buffer[i].bytes, alignment), change);
    int64_t live = 0, peak = 0;
    for (int i = 0; i < per; i++) {
        live += change[i];
        peak = live > peak ? live : peak;
    }
    base_free(change);
    return peak;
}

Status memory_profile(Diag *d, Arena *a, const StepList *s, int64_t **live)
{
    *live = NULL;
    Lives x;
    TRY(lives_build(d, a, s, &x));
    int64_t *out = ARENA_NEW(a, int64_t, (size_t)BUFFER_KIND_COUNT * (size_t)s->n_step);
    int64_t *change = base_alloc((size_t)BUFFER_KIND_COUNT * ((size_t)s->n_step + 1) * sizeof *change);
    if (!out || !change) {
        base_free(change);
        return diag_oom(d);
    }
    for (int t = 0; t < STREAM_COUNT; t++) {
        size_t per = (size_t)x.order.per_stream[t];
        if (per == 0)
            continue;
        memset(change, 0, (size_t)BUFFER_KIND_COUNT * (per + 1) * sizeof *change);
        for (int i = 0; i < s->n_device; i++)
            add_life(&x, &x.life[i], (StepStream)t, s->buffer[i].bytes, change + (size_t)s->buffer[i].kind * (per + 1));
        for (size_t k = 0; k < BUFFER_KIND_COUNT; k++) {
            int64_t sum = 0;
            for (size_t i = 0; i < per; i++) {
                sum += change[k * (per + 1) + i];
                out[k * (size_t)s->n_step + (size_t)x.queue[x.first[t] + (int)i]] = sum;
            }
        }
    }
    base_free(change);
    *live = out;
    return ST_OK;
}

int64_t memory_peak_bytes(const Layout *l, const DeviceFacts *f)
{
    int64_t peak;
    return add_overflows_i64(l->reserved_bytes, f->scratch_bytes, &peak) ? INT64_MAX : peak;
}

int64_t memory_host_bytes(const StepList *s)
{
    int64_t sum = 0;
    for (int i = s->n_device; i < s->n_buffer; i++)
        sum += s->buffer[i].bytes * s->buffer[i].copies;
    return sum;
}
