/* workers.c - see workers.h. The parts are taken from a counter, so that a thread which the system holds up delays
 * nobody; the threads sleep between jobs. */
#include "runtime/workers.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORKERS = 32 };

struct ferryi_workers {
    pthread_mutex_t caller; /* held by whoever has work done */
    pthread_mutex_t lock;   /* of what follows */
    pthread_cond_t begin, end;
    uint64_t job; /* number of the current one */
    int busy;     /* threads that have not left it */
    bool stop;
    void (*fn)(void *arg, int64_t part);
    void *arg;
    int64_t parts;
    atomic_llong next;
    int threads; /* without the caller */
    pthread_t thread[MAX_WORKERS];
};

static void take_parts(ferryi_workers *w)
{
    for (;;) {
        int64_t part = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
        if (part >= w->parts) {
            return;
        }
        w->fn(w->arg, part);
    }
}

static void *run_worker(void *arg)
{
    ferryi_workers *w = arg;
    uint64_t done = 0;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->job == done && !w->stop) {
            pthread_cond_wait(&w->begin, &w->lock);
        }
        if (w->stop) {
            break;
        }
        done = w->job;
        pthread_mutex_unlock(&w->lock);
        take_parts(w);
        pthread_mutex_lock(&w->lock);
        if (--w->busy == 0) {
            pthread_cond_signal(&w->end);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int processors(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > MAX_WORKERS ? MAX_WORKERS : n;
}

ferry_status ferryi_workers_open(ferryi_workers **out)
{
    *out = NULL;
    ferryi_workers *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for threads");
    }
    pthread_mutex_init(&w->caller, NULL); /* of the default kind: these do not fail on Linux */
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->begin, NULL);
    pthread_cond_init(&w->end, NULL);
    sigset_t all, before; /* signals are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (int wanted = processors() - 1; w->threads < wanted && error == 0;) {
        error = pthread_create(&w->thread[w->threads], NULL, run_worker, w);
        if (error == 0) {
            pthread_setname_np(w->thread[w->threads++], "ferry worker");
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        ferryi_workers_close(w);
        return ferryi_fail(FERRY_FAILED, "cannot start a thread: %s", strerror(error));
    }
    *out = w;
    return FERRY_OK;
}

void ferryi_workers_close(ferryi_workers *w)
{
    if (w == NULL) {
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->begin);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->threads; i++) {
        pthread_join(w->thread[i], NULL);
    }
    pthread_cond_destroy(&w->begin);
    pthread_cond_destroy(&w->end);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->caller);
    free(w);
}

int ferryi_workers_count(const ferryi_workers *w)
{
    return w->threads + 1;
}

void ferryi_workers_run(ferryi_workers *w, int64_t parts, void (*fn)(void *arg, int64_t part), void *arg)
{
    if (w == NULL || w->threads == 0 || parts < 2 || pthread_mutex_trylock(&w->caller) != 0) {
        for (int64_t i = 0; i < parts; i++) {
            fn(arg, i);
        }
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->fn = fn;
    w->arg = arg;
    w->parts = parts;
    atomic_store_explicit(&w->next, 0, memory_order_relaxed);
    w->busy = w->threads;
    w->job++;
    pthread_cond_broadcast(&w->begin);
    pthread_mutex_unlock(&w->lock);
    take_parts(w);
    pthread_mutex_lock(&w->lock);
    while (w->busy > 0) {
        pthread_cond_wait(&w->end, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    pthread_mutex_unlock(&w->caller);
}
