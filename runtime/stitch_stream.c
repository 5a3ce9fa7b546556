/* stitch_stream.c - streams: queues, memory that changes them, and blocks that several streams use. */
#include "runtime/stitch_internal.h"

#include <stdlib.h>

/* ---- events ------------------------------------------------------------------------------------------------------ */

void *stitch_event_take(ferry_stitch *s)
{
    return s->spare_events > 0 ? s->events[--s->spare_events] : NULL;
}

void stitch_event_give(ferry_stitch *s, void *event)
{
    if (event == NULL) {
        return;
    }
    if (s->spare_events == s->event_capacity) {
        int more = s->event_capacity == 0 ? 16 : 2 * s->event_capacity;
        void **events = realloc(s->events, (size_t)more * sizeof(void *));
        if (events == NULL) {
            s->device.event_close(s->device.self, event);
            return;
        }
        s->events = events;
        s->event_capacity = more;
    }
    s->events[s->spare_events++] = event;
}

ferry_status stitch_record(ferry_stitch *s, const queue *q, void **event)
{
    return q->closed ? FERRY_OK : s->device.event_record(s->device.self, q->stream, event);
}

bool stitch_event_done(ferry_stitch *s, void *event)
{
    return event == NULL || s->device.event_done(s->device.self, event);
}

ferry_status stitch_event_sync(ferry_stitch *s, void *event)
{
    return event == NULL ? FERRY_OK : s->device.event_sync(s->device.self, event);
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

ferry_status stitch_queue_get(ferry_stitch *s, void *stream, queue **out)
{
    queue **closed = NULL, **link = &s->queues;
    while (*link != NULL && ((*link)->closed || (*link)->stream != stream)) {
        closed = (*link)->closed ? link : closed;
        link = &(*link)->next;
    }
    link = *link == NULL && closed != NULL ? closed : link;
    queue *q = *link;
    if (q != NULL) {
        if (q->closed) { /* a new stream */
            q->closed = false;
            q->stream = stream;
            q->done = q->frees;
        }
        *link = q->next;
        q->next = s->queues;
        s->queues = q;
        *out = q;
        return FERRY_OK;
    }
    q = calloc(1, sizeof(*q));
    if (q == NULL) {
        return ferryi_fail(FERRY_FAILED, "ferry_stitch: no host memory");
    }
    q->stream = stream;
    q->next = s->queues;
    s->queues = q;
    *out = q;
    return FERRY_OK;
}

/* Brings `done` up to date; asks for an event where there is something to wait for. */
static void look(ferry_stitch *s, queue *q)
{
    if (q->closed) {
        q->done = q->frees;
    }
    if (!q->pending && q->done < q->frees) {
        q->pending = stitch_record(s, q, &q->event) == FERRY_OK;
        q->recorded = q->frees;
    }
    if (q->pending && s->device.event_done(s->device.self, q->event)) {
        q->pending = false;
        q->done = q->recorded;
    }
}

/* What was freed up to `done`. stamp: see stitch_home_move. */
static int64_t adopt_from(ferry_stitch *s, queue *from, queue *q, int64_t bytes, uint64_t done, uint64_t stamp)
{
    int64_t adopted = 0;
    for (int arena = LARGE; arena >= SMALL; arena--) {
        for (int i = BINS - 1; i >= 0 && adopted < bytes; i--) {
            for (pblock *b = from->bins[arena].head[i], *next; b != NULL && adopted < bytes; b = next) {
                next = b->next;
                if (b->stamp <= done) {
                    adopted += b->bytes;
                    stitch_home_move(s, b, q, stamp);
                }
            }
        }
    }
    return adopted;
}

int64_t stitch_adopt(ferry_stitch *s, queue *q, int64_t bytes, bool wait)
{
    int64_t adopted = 0;
    for (queue *from = s->queues; from != NULL && adopted < bytes; from = from->next) {
        if (from == q || from->free_bytes == 0) {
            continue;
        }
        look(s, from);
        adopted += adopt_from(s, from, q, bytes - adopted, from->done, 0);
        if (wait && !from->closed && adopted < bytes && from->free_bytes > 0) {
            void *event = stitch_event_take(s);
            if (stitch_record(s, from, &event) == FERRY_OK &&
                s->device.event_wait(s->device.self, q->stream, event) == FERRY_OK) {
                /* complete in the order of q's stream, not for others */
                adopted += adopt_from(s, from, q, bytes - adopted, from->frees, ++q->frees);
            }
            stitch_event_give(s, event);
        }
    }
    s->stats.adopted_bytes += adopted;
    return adopted;
}

ferry_status ferry_stitch_stream_close(ferry_stitch *s, void *stream)
{
    if (s == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_stitch_stream_close: the allocator is NULL");
    }
    pthread_mutex_lock(&s->lock);
    queue *q = s->queues;
    while (q != NULL && (q->closed || q->stream != stream)) {
        q = q->next;
    }
    bool seen = q != NULL;
    for (int64_t i = 0; i < s->capacity && !seen; i++) {
        for (const use *u = s->table[i].address != NULL ? s->table[i].uses : NULL; u != NULL; u = u->next) {
            seen = seen || u->stream == stream;
        }
    }
    void *event = seen ? stitch_event_take(s) : NULL;
    ferry_status status = seen ? s->device.event_record(s->device.self, stream, &event) : FERRY_OK;
    if (status == FERRY_OK) {
        status = stitch_event_sync(s, event);
    }
    stitch_event_give(s, event);
    if (status == FERRY_OK && q != NULL) {
        q->closed = true;
        q->pending = false;
        q->done = q->frees;
    }
    for (int64_t i = 0; i < s->capacity && status == FERRY_OK && seen; i++) {
        for (use **link = &s->table[i].uses; s->table[i].address != NULL && *link != NULL;) {
            use *u = *link;
            if (u->stream == stream) {
                *link = u->next;
                stitch_event_give(s, u->event);
                free(u);
            } else {
                link = &u->next;
            }
        }
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- blocks that several streams use ----------------------------------------------------------------------------- */

static void uses_free(ferry_stitch *s, use *u)
{
    while (u != NULL) {
        use *next = u->next;
        stitch_event_give(s, u->event);
        free(u);
        u = next;
    }
}

ferry_status stitch_wait_later(ferry_stitch *s, const live *block)
{
    pending *p = malloc(sizeof(*p));
    ferry_status status = p != NULL ? FERRY_OK : ferryi_fail(FERRY_FAILED, "ferry_stitch: no host memory");
    for (use *u = block->uses; u != NULL && status == FERRY_OK; u = u->next) {
        if (u->event == NULL) {
            u->event = stitch_event_take(s);
        }
        status = s->device.event_record(s->device.self, u->stream, &u->event);
    }
    if (status != FERRY_OK) {
        free(p);
        return status;
    }
    *p = (pending){NULL, *block};
    if (s->waiting_last != NULL) {
        s->waiting_last->next = p;
    } else {
        s->waiting = p;
    }
    s->waiting_last = p;
    return FERRY_OK;
}

static bool ready(ferry_stitch *s, const pending *p, bool wait)
{
    for (const use *u = p->block.uses; u != NULL; u = u->next) {
        if (wait ? stitch_event_sync(s, u->event) != FERRY_OK : !stitch_event_done(s, u->event)) {
            return false;
        }
    }
    return true;
}

void stitch_poll(ferry_stitch *s, bool wait)
{
    pending **link = &s->waiting, *last = NULL;
    while (*link != NULL) {
        pending *p = *link;
        if (ready(s, p, wait)) {
            *link = p->next;
            stitch_release(s, &p->block);
            uses_free(s, p->block.uses);
            free(p);
        } else {
            last = p;
            link = &p->next;
        }
    }
    s->waiting_last = last;
}

void stitch_streams_close(ferry_stitch *s)
{
    for (int64_t i = 0; i < s->capacity; i++) {
        if (s->table[i].address != NULL) {
            uses_free(s, s->table[i].uses);
        }
    }
    while (s->waiting != NULL) {
        pending *p = s->waiting;
        s->waiting = p->next;
        uses_free(s, p->block.uses);
        free(p);
    }
    while (s->queues != NULL) {
        queue *q = s->queues;
        s->queues = q->next;
        if (q->event != NULL) {
            s->device.event_close(s->device.self, q->event);
        }
        free(q);
    }
    while (s->spare_events > 0) {
        s->device.event_close(s->device.self, s->events[--s->spare_events]);
    }
    free(s->events);
}
