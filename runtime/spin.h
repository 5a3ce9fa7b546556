/* spin.h - for threads that look again and again at what another one writes. */
#ifndef FERRY_SPIN_H
#define FERRY_SPIN_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

static inline int64_t ferryi_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Between two looks: leaves the core's units to its other thread. */
static inline void ferryi_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

#endif
