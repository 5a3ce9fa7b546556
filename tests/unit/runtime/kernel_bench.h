/* kernel_bench.h - calls with random contents in buffers of exactly their extents, for the kernel tests. Each argument
 * lies in an allocation of its own, so that an access beyond the extent is seen by AddressSanitizer. */
#ifndef FERRY_TESTS_KERNEL_BENCH_H
#define FERRY_TESTS_KERNEL_BENCH_H

#include "runtime/backend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t bench_seed = 1;

static inline uint64_t bench_bits(void)
{
    bench_seed = bench_seed * 6364136223846793005u + 1442695040888963407u;
    return bench_seed >> 33;
}

static inline int64_t bench_int(int64_t low, int64_t high) /* low and high may occur */
{
    return low + (int64_t)(bench_bits() % (uint64_t)(high - low + 1));
}

static inline double bench_real(double low, double high)
{
    return low + (high - low) * (double)bench_bits() / 2147483648.0;
}

static inline int64_t bench_elements(const ferry_kernel *k, int arg)
{
    ferry_kernel probe = *k;
    probe.arg[arg] = (void *)(uintptr_t)64;
    int64_t bytes = ferry_kernel_extent_bytes(&probe, arg);
    return bytes / ferryi_kernel_element_bytes(k, arg);
}

static inline double bench_get(const ferry_kernel *k, int arg, int64_t i)
{
    return k->dtype == FERRY_F32 ? (double)((float *)k->arg[arg])[i] : ((double *)k->arg[arg])[i];
}

static inline void bench_set(const ferry_kernel *k, int arg, int64_t i, double x)
{
    if (k->dtype == FERRY_F32) {
        ((float *)k->arg[arg])[i] = (float)x;
    } else {
        ((double *)k->arg[arg])[i] = x;
    }
}

/* Allocates arg, without contents. */
static inline void bench_alloc(ferry_kernel *k, int arg)
{
    size_t bytes = (size_t)(bench_elements(k, arg) * ferryi_kernel_element_bytes(k, arg));
    k->arg[arg] = malloc(bytes > 0 ? bytes : 1);
}

/* Allocates a floating arg with numbers in [low, high]. */
static inline void bench_random(ferry_kernel *k, int arg, double low, double high)
{
    bench_alloc(k, arg);
    for (int64_t i = 0, n = bench_elements(k, arg); i < n; i++) {
        bench_set(k, arg, i, bench_real(low, high));
    }
}

/* Allocates ids or labels in [low, high]. */
static inline void bench_ids(ferry_kernel *k, int arg, int64_t low, int64_t high)
{
    bench_alloc(k, arg);
    for (int64_t i = 0, n = bench_elements(k, arg); i < n; i++) {
        int64_t id = bench_int(low, high);
        if (k->dtype2 == FERRY_I64) {
            ((int64_t *)k->arg[arg])[i] = id;
        } else {
            ((int32_t *)k->arg[arg])[i] = (int32_t)id;
        }
    }
}

static inline void bench_free(ferry_kernel *k)
{
    for (int i = 0; i < FERRY_MAX_ARGS; i++) {
        free(k->arg[i]);
        k->arg[i] = NULL;
    }
}

/* Arguments for which a unary function and its derivative are finite. */
static inline void bench_domain(ferry_fn fn, double *low, double *high)
{
    bool positive = fn == FERRY_SQRT || fn == FERRY_LOG || fn == FERRY_RECIPROCAL;
    bool below_one = fn == FERRY_ASIN || fn == FERRY_ACOS || fn == FERRY_ATANH;
    *low = positive ? 0.3 : fn == FERRY_ACOSH ? 1.2 : below_one ? -0.9 : fn == FERRY_TAN ? -1.2 : -2;
    *high = below_one ? 0.9 : fn == FERRY_TAN ? 1.2 : 2;
}

#endif
