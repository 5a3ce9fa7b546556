/* cuda_costs.c - what virtual memory calls cost on a GPU (GMLake's Table 1 and Figure 6): for 512 MiB, 1 and 2 GiB in
 * chunks of 2 MiB to 2 GiB, milliseconds of each call beside cudaMalloc; access allowed chunk by chunk and for the
 * range at once; and the same range mapped a second time, as stitching does. */
#include "runtime/stitch.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MIB INT64_C(1048576)

enum { MAX_CHUNKS = 1024, ROUNDS = 3 };

typedef struct costs {
    double reserve, create, map, allow_each, allow_once, unmap, release;
} costs;

static void need(ferry_status status)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "bench_stitch_costs: %s\n", ferry_error());
        exit(1);
    }
}

static double ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double lap(double *since)
{
    double now = ms(), took = now - *since;
    *since = now;
    return took;
}

static costs measure(const ferry_stitch_device *d, int64_t bytes, int64_t chunk)
{
    static uint64_t handle[MAX_CHUNKS];
    int64_t n = bytes / chunk;
    void *once = NULL, *each = NULL;
    costs c;
    double t = ms();
    need(d->reserve(d->self, bytes, &once));
    c.reserve = lap(&t);
    for (int64_t i = 0; i < n; i++) {
        need(d->create(d->self, chunk, &handle[i]));
    }
    c.create = lap(&t);
    for (int64_t i = 0; i < n; i++) {
        need(d->map(d->self, (char *)once + i * chunk, chunk, handle[i]));
    }
    c.map = lap(&t);
    need(d->allow(d->self, once, bytes));
    c.allow_once = lap(&t);
    need(d->reserve(d->self, bytes, &each));
    for (int64_t i = 0; i < n; i++) {
        need(d->map(d->self, (char *)each + i * chunk, chunk, handle[i]));
    }
    lap(&t);
    for (int64_t i = 0; i < n; i++) {
        need(d->allow(d->self, (char *)each + i * chunk, chunk));
    }
    c.allow_each = lap(&t);
    for (int64_t i = 0; i < n; i++) {
        need(d->unmap(d->self, (char *)each + i * chunk, chunk));
    }
    c.unmap = lap(&t);
    for (int64_t i = 0; i < n; i++) {
        need(d->unmap(d->self, (char *)once + i * chunk, chunk));
    }
    lap(&t);
    for (int64_t i = 0; i < n; i++) {
        d->release(d->self, handle[i]);
    }
    c.release = lap(&t);
    d->unreserve(d->self, once, bytes);
    d->unreserve(d->self, each, bytes);
    return c;
}

static double measure_malloc(int64_t bytes)
{
    void *p = NULL;
    double t = ms();
    if (cudaMalloc(&p, (size_t)bytes) != cudaSuccess) {
        fprintf(stderr, "bench_stitch_costs: cudaMalloc failed\n");
        exit(1);
    }
    double took = lap(&t);
    cudaFree(p);
    return took;
}

int main(void)
{
    ferry_stitch_device d;
    (void)cudaFree(NULL); /* the context */
    need(ferry_stitch_cuda(0, &d));
    printf("| total MiB | chunk MiB | cudaMalloc | reserve | create | map | set access, once | set access, each | "
           "unmap | release | "
           "all (once) / cudaMalloc |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int64_t total = 512 * MIB; total <= 2048 * MIB; total *= 2) {
        for (int64_t chunk = 2 * MIB; chunk <= total; chunk *= 4) {
            costs best = {0};
            double best_all = 1e30, native = 1e30;
            for (int i = 0; i < ROUNDS; i++) {
                double m = measure_malloc(total);
                costs c = measure(&d, total, chunk);
                double all = c.reserve + c.create + c.map + c.allow_once;
                native = m < native ? m : native;
                if (all < best_all) {
                    best_all = all;
                    best = c;
                }
            }
            printf("| %lld | %lld | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.1f |\n",
                   (long long)(total / MIB), (long long)(chunk / MIB), native, best.reserve, best.create, best.map,
                   best.allow_once, best.allow_each, best.unmap, best.release, best_all / native);
            if (chunk < total && chunk * 4 > total) {
                chunk = total / 4; /* the whole, too */
            }
        }
    }
    d.close(d.self);
    return 0;
}
