/* workers.c - see workers.h. The parts are taken from a counter, so that a thread which the system holds up delays
 * nobody, and the caller waits only for threads that have joined its work: one that wakes up too late finds it closed.
 *
 * Waking a thread takes as long as a small tensor's update, and updates follow each other closely. So a thread that
 * runs out of work looks for more for a moment before it sleeps. */
#include "runtime/workers.h"
#include "runtime/spin.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MAX_WORKERS = 32,
    SPIN_NS = 100000,
    SPINS = 64, /* between two looks at the clock */
};

/* `state` of the team: the number of the current work, whether it is open, and how many threads have joined it. */
enum { JOINED_BITS = 8, OPEN = 1 << JOINED_BITS, JOINED = OPEN - 1, NUMBER = 2 * OPEN };

struct ferryi_workers {
    pthread_mutex_t caller; /* held by whoever has work done */
    _Alignas(64) _Atomic(uint64_t) state;
    void (*fn)(void *arg, int64_t part);
    void *arg;
    int64_t parts;
    _Alignas(64) _Atomic(int64_t) next;
    _Alignas(64) pthread_mutex_t lock; /* of sleeping and waking */
    pthread_cond_t begin, end;
    int sleeping;
    atomic_bool stop;
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

static bool is_open(uint64_t state, uint64_t done)
{
    return (state & OPEN) != 0 && state / NUMBER != done;
}

static bool all_have_left(uint64_t state)
{
    return (state & JOINED) == 0;
}

typedef bool look(ferryi_workers *w, uint64_t done);

static bool sees_work(ferryi_workers *w, uint64_t done)
{
    return is_open(atomic_load(&w->state), done) || atomic_load(&w->stop);
}

static bool sees_the_end(ferryi_workers *w, uint64_t done)
{
    (void)done;
    return all_have_left(atomic_load(&w->state));
}

static bool spin(ferryi_workers *w, look *sees, uint64_t done)
{
    int64_t until = ferryi_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPINS; i++) {
            if (sees(w, done)) {
                return true;
            }
            ferryi_pause();
        }
    } while (ferryi_now_ns() < until);
    return false;
}

static void sleep_until_work(ferryi_workers *w, uint64_t done)
{
    pthread_mutex_lock(&w->lock);
    w->sleeping++;
    while (!sees_work(w, done)) {
        pthread_cond_wait(&w->begin, &w->lock);
    }
    w->sleeping--;
    pthread_mutex_unlock(&w->lock);
}

/* True when this thread takes part in the work that is open; *done is its number. */
static bool join_work(ferryi_workers *w, uint64_t *done)
{
    uint64_t state = atomic_load(&w->state);
    while (is_open(state, *done)) {
        if (atomic_compare_exchange_weak(&w->state, &state, state + 1)) {
            *done = state / NUMBER;
            return true;
        }
    }
    return false;
}

static void leave_work(ferryi_workers *w)
{
    uint64_t state = atomic_fetch_sub(&w->state, 1) - 1;
    if ((state & OPEN) == 0 && all_have_left(state)) {
        pthread_mutex_lock(&w->lock);
        pthread_cond_signal(&w->end);
        pthread_mutex_unlock(&w->lock);
    }
}

static void *run_worker(void *arg)
{
    ferryi_workers *w = arg;
    uint64_t done = 0;
    while (!atomic_load(&w->stop)) {
        if (join_work(w, &done)) {
            take_parts(w);
            leave_work(w);
        } else if (!spin(w, sees_work, done)) {
            sleep_until_work(w, done);
        }
    }
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
    ferryi_workers *w = aligned_alloc(_Alignof(ferryi_workers), sizeof(*w));
    if (w == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for threads");
    }
    memset(w, 0, sizeof(*w));
    atomic_init(&w->state, 0);
    atomic_init(&w->next, 0);
    atomic_init(&w->stop, false);
    pthread_mutex_init(&w->caller, NULL); /* of the default kind: these do not fail on Linux */
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->begin, NULL);
    pthread_cond_init(&w->end, NULL);
    sigset_t all, before; /* signals are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    int wanted = processors() - 1;
    wanted -= wanted >= 3; /* one is left to the thread that enqueues: whoever waits for its processor holds all others up */
    while (w->threads < wanted && error == 0) {
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
    atomic_store(&w->stop, true);
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

static void open_work(ferryi_workers *w)
{
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->state, (atomic_load(&w->state) / NUMBER + 1) * NUMBER + OPEN);
    if (w->sleeping > 0) {
        pthread_cond_broadcast(&w->begin);
    }
    pthread_mutex_unlock(&w->lock);
}

static void close_work(ferryi_workers *w)
{
    atomic_fetch_and(&w->state, ~(uint64_t)OPEN);
    if (spin(w, sees_the_end, 0)) {
        return;
    }
    pthread_mutex_lock(&w->lock);
    while (!sees_the_end(w, 0)) {
        pthread_cond_wait(&w->end, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

void ferryi_workers_run(ferryi_workers *w, int64_t parts, void (*fn)(void *arg, int64_t part), void *arg)
{
    if (w == NULL || w->threads == 0 || parts < 2 || pthread_mutex_trylock(&w->caller) != 0) {
        for (int64_t i = 0; i < parts; i++) {
            fn(arg, i);
        }
        return;
    }
    w->fn = fn;
    w->arg = arg;
    w->parts = parts;
    atomic_store_explicit(&w->next, 0, memory_order_relaxed);
    open_work(w);
    take_parts(w);
    close_work(w);
    pthread_mutex_unlock(&w->caller);
}
