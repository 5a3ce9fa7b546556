/* adam.c - gradient norms and AdamW on an UPDATE stream: checks, tasks and the scalar arithmetic. See adam.h. */
#include "runtime/adam.h"
#include "runtime/backend.h"
#include "runtime/convert.h"
#include "runtime/workers.h"

#include <math.h>
#include <stdlib.h>

/* ---- arithmetic ------------------------------------------------------------------------------------------------ */

ferryi_adamw_numbers ferryi_adamw_prepare(const ferry_adamw_args *args, double scale)
{
    double step = (double)args->step;
    return (ferryi_adamw_numbers){
        .scale = scale,
        .decay = 1 - args->lr * args->weight_decay,
        .weight = 1 - args->beta1,
        .beta2 = args->beta2,
        .fresh = 1 - args->beta2,
        .root2 = sqrt(1 - pow(args->beta2, step)),
        .eps = args->eps,
        .size = args->lr / (1 - pow(args->beta1, step)),
    };
}

#define AS_IT_IS(x)    (x)
#define WIDE(x)        ferryi_bf16_to_f32(x)
#define NOTHING(i, x)  (void)0
#define ROUNDED(i, x)  rounded[i] = ferryi_bf16_from_f32(x)

/* One body for all types. The choice between the two forms of the lerp is made in double, as it is the same for all. */
#define ADAMW_SCALAR(name, T, G, load, keep, root)                                                                     \
    static void name(T *p, T *m, T *v, const G *g, uint16_t *rounded, int64_t n, const ferryi_adamw_numbers *a)        \
    {                                                                                                                  \
        (void)rounded;                                                                                                 \
        const T scale = (T)a->scale, decay = (T)a->decay, weight = (T)a->weight, beta2 = (T)a->beta2;                  \
        const T fresh = (T)a->fresh, root2 = (T)a->root2, eps = (T)a->eps, size = (T)a->size;                          \
        const bool small = weight < (T)0.5;                                                                            \
        const T rest = (T)1 - weight;                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            T gi = load(g[i]) * scale, mi = m[i], pi = p[i] * decay;                                                   \
            mi = small ? mi + weight * (gi - mi) : gi - (gi - mi) * rest;                                              \
            T vi = v[i] * beta2 + (fresh * gi) * gi;                                                                   \
            m[i] = mi;                                                                                                 \
            v[i] = vi;                                                                                                 \
            p[i] = pi - (size * mi) / (root(vi) / root2 + eps);                                                        \
            keep(i, p[i]);                                                                                             \
        }                                                                                                              \
    }

ADAMW_SCALAR(adamw_f32, float, float, AS_IT_IS, NOTHING, sqrtf)
ADAMW_SCALAR(adamw_f64, double, double, AS_IT_IS, NOTHING, sqrt)
ADAMW_SCALAR(adamw_bf16, float, uint16_t, WIDE, ROUNDED, sqrtf)

void ferryi_adamw_scalar(ferry_dtype t, void *p, void *m, void *v, const void *g, void *rounded, int64_t n,
                         const ferryi_adamw_numbers *numbers)
{
    if (t == FERRY_F32) {
        adamw_f32(p, m, v, g, NULL, n, numbers);
    } else if (t == FERRY_F64) {
        adamw_f64(p, m, v, g, NULL, n, numbers);
    } else {
        adamw_bf16(p, m, v, g, rounded, n, numbers);
    }
}

double ferryi_sqnorm_join(double sums[FERRYI_SQUARE_SUMS])
{
    for (int half = FERRYI_SQUARE_SUMS / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            sums[i] += sums[i + half];
        }
    }
    return sums[0];
}

double ferryi_sqnorm_scalar(ferry_dtype t, const void *g, int64_t n)
{
    double sums[FERRYI_SQUARE_SUMS] = {0};
    for (int64_t i = 0; i < n; i++) {
        double x = ferryi_float_at(g, t, i);
        sums[i % FERRYI_SQUARE_SUMS] += x * x;
    }
    return ferryi_sqnorm_join(sums);
}

bool ferryi_have_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

bool ferryi_have_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

/* ---- tasks ----------------------------------------------------------------------------------------------------- */

typedef struct sqnorm_task {
    ferry_device *device;
    ferry_dtype t;
    double *out;
    const void *g;
    int64_t n;
} sqnorm_task;

/* Blocks from which on the team is called: below, waking it takes longer than the work. */
enum { TEAM_BLOCKS = 4, SQUARES = FERRYI_UPDATE_BLOCK / FERRYI_SQUARE_BLOCK };

static int64_t blocks_of(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

static int64_t block_size(int64_t n, int64_t size, int64_t block)
{
    int64_t rest = n - block * size;
    return rest < size ? rest : size;
}

static double square_block(const sqnorm_task *task, int64_t block)
{
    const void *g = (const char *)task->g + (size_t)block * FERRYI_SQUARE_BLOCK * ferry_dtype_bytes(task->t);
    int64_t n = block_size(task->n, FERRYI_SQUARE_BLOCK, block);
    if (task->t == FERRY_F16 || !ferryi_have_avx2()) {
        return ferryi_sqnorm_scalar(task->t, g, n);
    }
    return ferryi_have_avx512() ? ferryi_sqnorm_avx512(task->t, g, n) : ferryi_sqnorm_avx2(task->t, g, n);
}

typedef struct sqnorm_team {
    const sqnorm_task *task;
    double *sum; /* of each square block */
} sqnorm_team;

static void sqnorm_part(void *arg, int64_t part)
{
    const sqnorm_team *team = arg;
    int64_t blocks = blocks_of(team->task->n, FERRYI_SQUARE_BLOCK), end = (part + 1) * SQUARES;
    for (int64_t i = part * SQUARES; i < end && i < blocks; i++) {
        team->sum[i] = square_block(team->task, i);
    }
}

static double sqnorm(const sqnorm_task *task)
{
    int64_t blocks = blocks_of(task->n, FERRYI_SQUARE_BLOCK), parts = blocks_of(task->n, FERRYI_UPDATE_BLOCK);
    double sums[FERRYI_SQUARE_SUMS] = {0};
    sqnorm_team team = {task, parts >= TEAM_BLOCKS ? malloc((size_t)blocks * sizeof(double)) : NULL};
    if (team.sum != NULL) {
        ferryi_workers_run(ferryi_device_workers(task->device), parts, sqnorm_part, &team);
    }
    for (int64_t i = 0; i < blocks; i++) {
        sums[i % FERRYI_SQUARE_SUMS] += team.sum != NULL ? team.sum[i] : square_block(task, i);
    }
    free(team.sum);
    return ferryi_sqnorm_join(sums);
}

static void run_sqnorm(void *args)
{
    const sqnorm_task *task = args;
    ferryi_shadow_touch(task->device, task->g, task->n * (int64_t)ferry_dtype_bytes(task->t), false);
    *task->out = sqnorm(task); /* seen as it is: streams write neighbours, which share a line of the shadow */
}

typedef struct norm_task {
    ferry_device *device;
    double *norm, *scale;
    const double *parts;
    int count;
    double clip;
} norm_task;

static void run_norm(void *args)
{
    const norm_task *task = args;
    ferryi_shadow_touch(task->device, task->parts, (int64_t)sizeof(double) * task->count, false);
    ferryi_shadow_touch(task->device, task->norm, sizeof(double), true);
    ferryi_shadow_touch(task->device, task->scale, sizeof(double), true);
    double sum = 0;
    for (int i = 0; i < task->count; i++) {
        sum += task->parts[i];
    }
    double norm = sqrt(sum);
    *task->norm = norm;
    *task->scale = task->clip > 0 && norm > task->clip ? task->clip / (norm + 1e-6) : 1;
}

typedef struct adamw_task {
    ferry_device *device;
    ferry_dtype t;
    void *p, *m, *v;
    const void *g;
    void *rounded; /* NULL but for bf16 */
    const double *scale;
    int64_t n;
    ferry_adamw_args args;
} adamw_task;

/* Bytes of an element of p, m and v. */
static size_t state_bytes(ferry_dtype t)
{
    return t == FERRY_F64 ? 8 : 4;
}

typedef struct adamw_team {
    const adamw_task *task;
    ferryi_adamw_numbers numbers;
} adamw_team;

static void adamw_part(void *arg, int64_t block)
{
    const adamw_team *team = arg;
    const adamw_task *task = team->task;
    size_t first = (size_t)block * FERRYI_UPDATE_BLOCK, at = first * state_bytes(task->t);
    size_t narrow = first * ferry_dtype_bytes(task->t);
    char *p = (char *)task->p + at, *m = (char *)task->m + at, *v = (char *)task->v + at;
    const char *g = (const char *)task->g + narrow;
    char *rounded = task->rounded != NULL ? (char *)task->rounded + narrow : NULL;
    int64_t n = block_size(task->n, FERRYI_UPDATE_BLOCK, block);
    if (ferryi_have_avx2()) {
        ferryi_adamw_avx2(task->t, p, m, v, g, rounded, n, &team->numbers);
    } else {
        ferryi_adamw_scalar(task->t, p, m, v, g, rounded, n, &team->numbers);
    }
}

static void run_adamw(void *args)
{
    const adamw_task *task = args;
    int64_t narrow = task->n * (int64_t)ferry_dtype_bytes(task->t), bytes = task->n * (int64_t)state_bytes(task->t);
    if (task->scale != NULL) {
        ferryi_shadow_touch(task->device, task->scale, sizeof(double), false);
    }
    ferryi_shadow_touch(task->device, task->g, narrow, false);
    if (task->rounded != NULL) {
        ferryi_shadow_touch(task->device, task->rounded, narrow, true);
    }
    ferryi_shadow_touch(task->device, task->p, bytes, true);
    ferryi_shadow_touch(task->device, task->m, bytes, true);
    ferryi_shadow_touch(task->device, task->v, bytes, true);
    adamw_team team = {task, ferryi_adamw_prepare(&task->args, task->scale != NULL ? *task->scale : 1)};
    int64_t blocks = blocks_of(task->n, FERRYI_UPDATE_BLOCK);
    ferryi_workers *workers = blocks >= TEAM_BLOCKS ? ferryi_device_workers(task->device) : NULL;
    ferryi_workers_run(workers, blocks, adamw_part, &team);
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

/* The host backend would let other streams and device memory pass, and a schedule that is wrong on a GPU would look
 * right. */
static ferry_status check_place(const char *what, ferry_stream *s, bool on_compute, const void *const *pointer,
                                int count)
{
    bool compute = s != NULL && s->kind == FERRY_STREAM_COMPUTE && on_compute;
    if (s == NULL || (s->kind != FERRY_STREAM_UPDATE && !compute)) {
        return ferryi_fail(FERRY_USAGE, "%s: %s", what,
                           s == NULL    ? "the stream is NULL"
                           : on_compute ? "the stream is neither an UPDATE nor a COMPUTE stream"
                                        : "the stream is not an UPDATE stream");
    }
    if (compute) {
        return FERRY_OK;
    }
    for (int i = 0; i < count; i++) {
        ferryi_region region;
        if (ferryi_region_find(s->device, pointer[i], &region) && region.kind == FERRYI_DEVICE) {
            return ferryi_fail(FERRY_USAGE, "%s: pointer %p is device memory; the update works on host memory", what,
                               pointer[i]);
        }
    }
    return FERRY_OK;
}

ferry_status ferry_sqnorm(ferry_stream *s, ferry_dtype t, double *out, const void *g, int64_t n)
{
    ferry_status status = check_place("ferry_sqnorm", s, true, (const void *const[]){out, g}, 2);
    if (status != FERRY_OK) {
        return status;
    }
    if (out == NULL || n < 0 || n > INT64_MAX / 8 || (n > 0 && g == NULL) || !ferryi_is_float(t)) {
        return ferryi_fail(FERRY_USAGE,
                           "ferry_sqnorm: a pointer is missing, n = %lld is impossible or %s is no floating type",
                           (long long)n, ferry_dtype_name(t));
    }
    if (s->kind == FERRY_STREAM_COMPUTE && s->device->backend->sqnorm != NULL) {
        return s->device->backend->sqnorm(s, &(ferryi_update){.t = t, .out = out, .g = g, .n = n});
    }
    sqnorm_task task = {ferryi_stream_device(s), t, out, g, n};
    return ferryi_stream_task(s, run_sqnorm, &task, sizeof task);
}

ferry_status ferry_grad_norm(ferry_stream *s, double *norm, double *scale, const double *parts, int count, double clip)
{
    ferry_status status = check_place("ferry_grad_norm", s, false, (const void *const[]){norm, scale, parts}, 3);
    if (status != FERRY_OK) {
        return status;
    }
    if (norm == NULL || scale == NULL || count < 0 || (count > 0 && parts == NULL) || isnan(clip)) {
        return ferryi_fail(FERRY_USAGE,
                           "ferry_grad_norm: a pointer is missing, or count = %d or clip = %g is impossible", count,
                           clip);
    }
    norm_task task = {ferryi_stream_device(s), norm, scale, parts, count, clip};
    return ferryi_stream_task(s, run_norm, &task, sizeof task);
}

static ferry_status adamw(const char *what, ferry_stream *s, adamw_task task)
{
    const void *const pointers[] = {task.p, task.m, task.v, task.g, task.scale, task.rounded};
    ferry_status status = check_place(what, s, true, pointers, 6);
    if (status != FERRY_OK) {
        return status;
    }
    bool missing = task.p == NULL || task.m == NULL || task.v == NULL || task.g == NULL ||
                   (task.t == FERRY_BF16 && task.rounded == NULL);
    if (task.n < 0 || task.n > INT64_MAX / 8 || (task.n > 0 && missing)) {
        return ferryi_fail(FERRY_USAGE, "%s: a pointer is missing or n = %lld is impossible", what, (long long)task.n);
    }
    const ferry_adamw_args *args = &task.args;
    bool rates = isfinite(args->lr) && args->lr >= 0 && isfinite(args->weight_decay) && args->weight_decay >= 0 &&
                 isfinite(args->eps) && args->eps >= 0;
    if (!rates || !(args->beta1 >= 0 && args->beta1 < 1) || !(args->beta2 >= 0 && args->beta2 < 1) || args->step < 1) {
        return ferryi_fail(
            FERRY_USAGE,
            "%s: lr %g, betas %g and %g, eps %g, weight decay %g, step %lld: rates are finite and not "
            "negative, betas below 1, steps count from 1",
            what, args->lr, args->beta1, args->beta2, args->eps, args->weight_decay, (long long)args->step);
    }
    if (s->kind == FERRY_STREAM_COMPUTE && s->device->backend->adamw != NULL) {
        return s->device->backend->adamw(s, &(ferryi_update){.t = task.t,
                                                             .p = task.p,
                                                             .m = task.m,
                                                             .v = task.v,
                                                             .rounded = task.rounded,
                                                             .g = task.g,
                                                             .scale = task.scale,
                                                             .n = task.n,
                                                             .numbers = ferryi_adamw_prepare(args, 1)});
    }
    task.device = ferryi_stream_device(s);
    return ferryi_stream_task(s, run_adamw, &task, sizeof task);
}

ferry_status ferry_adamw(ferry_stream *s, ferry_dtype t, void *p, void *m, void *v, const void *g, const double *scale,
                         int64_t n, ferry_adamw_args args)
{
    if (t != FERRY_F32 && t != FERRY_F64) {
        return ferryi_fail(FERRY_USAGE, "ferry_adamw: parameters of type %s are not supported, only f32 and f64%s",
                           ferry_dtype_name(t), t == FERRY_BF16 ? "; bf16 has ferry_adamw_bf16" : "");
    }
    return adamw("ferry_adamw", s,
                 (adamw_task){.t = t, .p = p, .m = m, .v = v, .g = g, .scale = scale, .n = n, .args = args});
}

ferry_status ferry_adamw_bf16(ferry_stream *s, float *p, float *m, float *v, void *rounded, const void *g,
                              const double *scale, int64_t n, ferry_adamw_args args)
{
    return adamw("ferry_adamw_bf16", s,
                 (adamw_task){.t = FERRY_BF16,
                              .p = p,
                              .m = m,
                              .v = v,
                              .g = g,
                              .rounded = rounded,
                              .scale = scale,
                              .n = n,
                              .args = args});
}
