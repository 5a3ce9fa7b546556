/* host_stream.c - streams and events of the host backend, and CPU threads for any backend.
 *
 * A stream is a thread with a queue. The caller puts nodes at the end, the thread takes them from the front; the queue
 * is a linked list with one writer at each end, so neither side ever waits for the other. Enqueuing a node copies its
 * arguments and wakes the thread.
 *
 * A mark is the completion of one record: a flag, set once, that any number of threads can wait for. An event points to
 * the mark of its latest record. A wait takes that mark at the time of the call, so a later record of the same event
 * does not move it, whatever the order in which the records complete. Closing an event only drops its reference.
 *
 * Ordering is as weak as the contract says, on purpose: work of two streams is ordered only by record and wait, never
 * by a lock that both happen to take. Under ThreadSanitizer a missing event then is a race even if the timing was good:
 *   caller -> stream        release and acquire of the node's link
 *   record -> wait, sync    release and acquire of the mark's flag
 * Nothing flows back from a stream to the caller except by sync. Dropping the last reference to a mark would order the
 * waiters among each other; FERRY_TSAN builds keep the marks until the device is closed instead. */
#include "runtime/host.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- sleeping on a word ----------------------------------------------------------------------------------------- */

/* Sleeps while *word is `value`; may return early. */
static void word_sleep(_Atomic(uint32_t) *word, uint32_t value)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void word_wake(_Atomic(uint32_t) *word)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* ---- marks ------------------------------------------------------------------------------------------------------ */

struct ferryi_host_mark {
    _Atomic(uint32_t) done;
    atomic_int references;
    int64_t time_ns; /* of completion, CLOCK_MONOTONIC; written before done */
    ferryi_host_mark *next;
};

static ferryi_host_mark *mark_new(ferry_device *d)
{
    ferryi_host_mark *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        ferryi_fail(FERRY_FAILED, "no memory for an event");
        return NULL;
    }
    atomic_init(&m->references, 1);
#ifdef FERRY_TSAN
    ferryi_host_device *h = (ferryi_host_device *)d;
    m->next = h->marks;
    h->marks = m;
#else
    (void)d;
#endif
    return m;
}

static void mark_take(ferryi_host_mark *m)
{
    atomic_fetch_add_explicit(&m->references, 1, memory_order_relaxed);
}

static void mark_drop(ferryi_host_mark *m)
{
#ifdef FERRY_TSAN
    (void)m;
#else
    if (m != NULL && atomic_fetch_sub_explicit(&m->references, 1, memory_order_acq_rel) == 1) {
        free(m);
    }
#endif
}

void ferryi_host_marks_free(ferryi_host_device *d)
{
    while (d->marks != NULL) {
        ferryi_host_mark *m = d->marks;
        d->marks = m->next;
        free(m);
    }
}

static void mark_finish(ferryi_host_mark *m)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    m->time_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    atomic_store_explicit(&m->done, 1, memory_order_release);
    word_wake(&m->done);
}

static void mark_wait(ferryi_host_mark *m)
{
    while (atomic_load_explicit(&m->done, memory_order_acquire) == 0) {
        word_sleep(&m->done, 0);
    }
}

/* ---- the queue -------------------------------------------------------------------------------------------------- */

typedef enum node_kind { NODE_TASK, NODE_ALWAYS, NODE_RECORD, NODE_WAIT, NODE_STOP } node_kind;

typedef struct node {
    _Atomic(struct node *) next;
    node_kind kind;
    ferryi_host_mark *mark; /* RECORD and WAIT own a reference */
    void (*fn)(void *);
    _Alignas(16) unsigned char args[];
} node;

typedef struct host_stream {
    ferry_stream base;
    pthread_t thread;
    node *tail;                 /* of the caller: the last node */
    node *stop;                 /* so that closing needs no memory */
    _Atomic(uint32_t) enqueued; /* changes with each node; the thread sleeps on it */
    _Alignas(64) node *head;    /* of the thread: the node that was run last */
} host_stream;

static node *node_new(node_kind kind, size_t args_bytes)
{
    node *n = args_bytes <= SIZE_MAX - sizeof(node) ? malloc(sizeof(node) + args_bytes) : NULL;
    if (n == NULL) {
        ferryi_fail(FERRY_FAILED, "no memory to enqueue work with %zu bytes of arguments", args_bytes);
        return NULL;
    }
    atomic_init(&n->next, NULL);
    n->kind = kind;
    n->mark = NULL;
    n->fn = NULL;
    return n;
}

static void enqueue(host_stream *s, node *n)
{
    node *last = s->tail;
    s->tail = n;
    atomic_store_explicit(&last->next, n, memory_order_release); /* from here on the thread may free last */
    atomic_fetch_add_explicit(&s->enqueued, 1, memory_order_release);
    word_wake(&s->enqueued);
}

/* The next node, after sleeping if there is none. The one before it is freed. */
static node *dequeue(host_stream *s)
{
    for (;;) {
        uint32_t seen = atomic_load_explicit(&s->enqueued, memory_order_acquire);
        node *n = atomic_load_explicit(&s->head->next, memory_order_acquire);
        if (n != NULL) {
            free(s->head);
            s->head = n;
            return n;
        }
        word_sleep(&s->enqueued, seen);
    }
}

static void *run_stream(void *arg)
{
    host_stream *s = arg;
    ferry_device *d = s->base.device;
    for (;;) {
        node *n = dequeue(s);
        switch (n->kind) {
        case NODE_TASK:
            /* relaxed: what this stream depends on is ordered by its waits */
            if (atomic_load_explicit(&d->failed, memory_order_relaxed) == 0) {
                n->fn(n->args);
            }
            break;
        case NODE_ALWAYS:
            n->fn(n->args);
            break;
        case NODE_RECORD:
            mark_finish(n->mark);
            mark_drop(n->mark);
            break;
        case NODE_WAIT:
            mark_wait(n->mark);
            mark_drop(n->mark);
            break;
        case NODE_STOP:
            return NULL;
        }
    }
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

/* Signals are for the program's own threads. */
static int start_thread(host_stream *s)
{
    static const char *const names[] = {"ferry compute", "ferry load", "ferry store", "ferry update"};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&s->thread, NULL, run_stream, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        pthread_setname_np(s->thread, names[s->base.kind]);
    }
    return error;
}

ferry_status ferryi_host_stream_open(ferry_device *d, ferry_stream_kind kind, ferry_stream **out)
{
    host_stream *s = aligned_alloc(_Alignof(host_stream), sizeof(*s));
    node *first = node_new(NODE_TASK, 0), *stop = node_new(NODE_STOP, 0);
    if (s == NULL || first == NULL || stop == NULL) {
        free(s);
        free(first);
        free(stop);
        return ferryi_fail(FERRY_FAILED, "no memory for a stream");
    }
    memset(s, 0, sizeof(*s));
    s->base = (ferry_stream){d, kind};
    s->head = s->tail = first;
    s->stop = stop;
    int error = start_thread(s);
    if (error != 0) {
        free(s);
        free(first);
        free(stop);
        return ferryi_fail(FERRY_FAILED, "cannot start the thread of a stream: %s", strerror(error));
    }
    *out = &s->base;
    return FERRY_OK;
}

void ferryi_host_stream_close(ferry_stream *stream)
{
    host_stream *s = (host_stream *)stream;
    enqueue(s, s->stop);
    pthread_join(s->thread, NULL);
    free(s->head); /* the stop node */
    free(s);
}

static ferry_status enqueue_task(ferry_stream *s, node_kind kind, void (*fn)(void *), const void *args,
                                 size_t args_bytes)
{
    node *n = node_new(kind, args_bytes);
    if (n == NULL) {
        return FERRY_FAILED;
    }
    n->fn = fn;
    if (args_bytes != 0) {
        memcpy(n->args, args, args_bytes);
    }
    enqueue((host_stream *)s, n);
    return FERRY_OK;
}

ferry_status ferryi_host_stream_task(ferry_stream *s, void (*fn)(void *), const void *args, size_t args_bytes)
{
    return enqueue_task(s, NODE_TASK, fn, args, args_bytes);
}

ferry_status ferryi_host_stream_always(ferry_stream *s, void (*fn)(void *), const void *args, size_t args_bytes)
{
    return enqueue_task(s, NODE_ALWAYS, fn, args, args_bytes);
}

/* Takes over the reference to the mark. */
static ferry_status enqueue_mark(ferry_stream *s, node_kind kind, ferryi_host_mark *m)
{
    node *n = node_new(kind, 0);
    if (n == NULL) {
        mark_drop(m);
        return FERRY_FAILED;
    }
    n->mark = m;
    enqueue((host_stream *)s, n);
    return FERRY_OK;
}

ferry_status ferryi_host_stream_sync(ferry_stream *s)
{
    ferryi_host_mark *m = mark_new(s->device);
    if (m == NULL) {
        return FERRY_FAILED;
    }
    mark_take(m);
    ferry_status status = enqueue_mark(s, NODE_RECORD, m);
    if (status == FERRY_OK) {
        mark_wait(m);
    }
    mark_drop(m);
    return status;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

typedef struct host_event {
    ferry_event base;
    ferryi_host_mark *latest; /* of the caller; NULL: never recorded. Owns a reference */
} host_event;

ferry_status ferryi_host_event_open(ferry_device *d, ferry_event **out)
{
    host_event *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for an event");
    }
    e->base.device = d;
    *out = &e->base;
    return FERRY_OK;
}

void ferryi_host_event_close(ferry_event *event)
{
    host_event *e = (host_event *)event;
    mark_drop(e->latest);
    free(e);
}

ferry_status ferryi_host_event_record(ferry_stream *s, ferry_event *event)
{
    host_event *e = (host_event *)event;
    ferryi_host_mark *m = mark_new(s->device);
    if (m == NULL) {
        return FERRY_FAILED;
    }
    mark_take(m);
    ferry_status status = enqueue_mark(s, NODE_RECORD, m);
    if (status != FERRY_OK) {
        mark_drop(m);
        return status;
    }
    mark_drop(e->latest);
    e->latest = m;
    return FERRY_OK;
}

ferry_status ferryi_host_stream_wait(ferry_stream *s, ferry_event *event)
{
    host_event *e = (host_event *)event;
    if (e->latest == NULL) {
        return FERRY_OK;
    }
    mark_take(e->latest);
    return enqueue_mark(s, NODE_WAIT, e->latest);
}

ferry_status ferryi_host_event_sync(ferry_event *event)
{
    host_event *e = (host_event *)event;
    if (e->latest != NULL) {
        mark_wait(e->latest);
    }
    return FERRY_OK;
}

ferry_status ferryi_host_event_time_ns(ferry_event *event, int64_t *out)
{
    host_event *e = (host_event *)event;
    if (e->latest == NULL || atomic_load_explicit(&e->latest->done, memory_order_acquire) == 0) {
        return ferryi_fail(FERRY_USAGE, "the event has no time: %s",
                           e->latest == NULL ? "it was never recorded" : "its latest record is not complete");
    }
    *out = e->latest->time_ns;
    return FERRY_OK;
}
