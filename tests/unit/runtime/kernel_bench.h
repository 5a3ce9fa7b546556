/* kernel_bench.h - calls with random contents in buffers of exactly their extents, for the kernel tests. Each argument
 * lies in an allocation of its own, so that an access beyond the extent is seen by AddressSanitizer. */
#ifndef FERRY_TESTS_KERNEL_BENCH_H
#define FERRY_TESTS_KERNEL_BENCH_H

#include "runtime/backend.h"
#include "runtime/convert.h"
#include "test_device.h"

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
    return ferryi_float_at(k->arg[arg], ferry_kernel_arg_dtype(k, arg), i);
}

static inline void bench_set(const ferry_kernel *k, int arg, int64_t i, double x)
{
    ferryi_float_put(k->arg[arg], ferry_kernel_arg_dtype(k, arg), i, x);
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

/* ---- running -------------------------------------------------------------------------------------------------- */

enum { BENCH_BYTES = 64 << 20 };

/* A device other than the host, with room for the arguments of a call in both kinds of memory. */
static struct {
    ferry_device *device;
    ferry_stream *stream;
    ferry_pool *pool;
    char *pinned, *staging;
    int calls;
} bench;

static inline void bench_close(void)
{
    if (bench.device != NULL) {
        ferry_stream_close(bench.stream);
        ferry_pool_close(bench.pool);
        ferry_host_free(bench.device, bench.pinned);
        ferry_host_free(bench.device, bench.staging);
        ferry_device_close(bench.device);
        bench.device = NULL;
    }
}

/* False: the device of this test does not exist here. Opening also sets the host's matrix library up. */
static inline bool bench_open(void)
{
    if (!test_device_exists()) {
        return false;
    }
    if (test_on_host()) {
        return true;
    }
    bool opened = ferry_device_open(test_device_name(), &bench.device) == FERRY_OK &&
                  ferry_stream_open(bench.device, FERRY_STREAM_COMPUTE, &bench.stream) == FERRY_OK &&
                  ferry_pool_open(bench.device, BENCH_BYTES, &bench.pool) == FERRY_OK &&
                  ferry_host_alloc(bench.device, BENCH_BYTES, (void **)&bench.pinned) == FERRY_OK &&
                  ferry_host_alloc(bench.device, BENCH_BYTES, (void **)&bench.staging) == FERRY_OK;
    if (!opened) {
        fprintf(stderr, "cannot set the device up: %s\n", ferry_error());
    }
    return opened;
}

/* How much wider the tolerances are on other devices, which sum products in other orders. */
static inline double bench_slack(void)
{
    return test_on_host() ? 1 : 4;
}

/* Bytes from an argument's pointer on that the call touches, also through other arguments with the same pointer. */
static inline int64_t bench_extent(const ferry_kernel *call, int arg)
{
    const ferry_op_info *info = ferry_op_get(call->op);
    int64_t most = 0;
    for (int i = 0; i < info->n_out + info->n_in; i++) {
        int64_t bytes = call->arg[i] == call->arg[arg] ? ferry_kernel_extent_bytes(call, i) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static inline ferry_status bench_on_device(const ferry_kernel *call)
{
    const ferry_op_info *info = ferry_op_get(call->op);
    ferry_kernel k = *call;
    bool pinned[FERRY_MAX_ARGS] = {false};
    int64_t at[FERRY_MAX_ARGS] = {0}, used = 0;
    ferry_status status = FERRY_OK;
    bench.calls++;
    for (int i = 0; i < info->n_out + info->n_in && status == FERRY_OK; i++) {
        int64_t bytes = bench_extent(call, i), each = ferryi_kernel_element_bytes(call, i);
        bool same = false;
        for (int j = 0; j < i && call->arg[i] != NULL; j++) { /* in place */
            if (call->arg[j] == call->arg[i]) {
                k.arg[i] = k.arg[j];
                at[i] = at[j];
                pinned[i] = pinned[j];
                same = true;
            }
        }
        if (call->arg[i] == NULL || same) {
            continue;
        }
        /* every kind of place and distance from a line in turn; each argument ends 64 bytes before the next begins */
        pinned[i] = (bench.calls * 7 + i * 3) % 5 < 2;
        at[i] = used + (bench.calls / 16 % 2 == 0 ? bench.calls * (i + 1) % 9 * each : 0); /* or all at one's start */
        used = (at[i] + bytes + 127) / 64 * 64;
        if (used > BENCH_BYTES) {
            return ferryi_fail(FERRY_USAGE, "the test's arguments do not fit into its pools");
        }
        k.arg[i] = pinned[i] ? bench.pinned + at[i] : (char *)ferry_pool_at(bench.pool, at[i]);
        memcpy((pinned[i] ? bench.pinned : bench.staging) + at[i], call->arg[i], (size_t)bytes);
        if (!pinned[i]) {
            status = ferry_copy_h2d(bench.stream, k.arg[i], bench.staging + at[i], bytes);
        }
    }
    if (status == FERRY_OK) {
        status = ferry_launch(bench.stream, &k);
    }
    for (int i = 0; i < info->n_out && status == FERRY_OK; i++) {
        if (k.arg[i] != NULL && !pinned[i]) {
            status = ferry_copy_d2h(bench.stream, bench.staging + at[i], k.arg[i], bench_extent(call, i));
        }
    }
    if (status == FERRY_OK) {
        status = ferry_stream_sync(bench.stream);
    }
    for (int i = 0; i < info->n_out && status == FERRY_OK; i++) {
        if (call->arg[i] != NULL) {
            memcpy(call->arg[i], (pinned[i] ? bench.pinned : bench.staging) + at[i],
                   (size_t)bench_extent(call, i));
        }
    }
    return status;
}

/* Runs a call on the arguments where they are: by the scalar reference, or as the test's device does. */
static inline ferry_status bench_run(bool reference, const ferry_kernel *k)
{
    if (reference || test_on_host()) {
        return ferryi_host_kernel(reference, k);
    }
    ferry_status status = bench_on_device(k);
    if (status != FERRY_OK) { /* a failure sticks to the device: the next call needs another one */
        char text[1024];
        snprintf(text, sizeof(text), "%s", ferry_error());
        bench_close();
        bench_open();
        ferryi_fail(status, "%s", text);
    }
    return status;
}

#endif
