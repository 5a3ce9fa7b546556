/* cupti_trace.c - activity records of a GPU through CUPTI; gpu.h has the idea.
 *
 * CUPTI asks for buffers and gives them back full, on this thread or one of its own, and passes no pointer of ours: the
 * trace that is open is a global, and its lists are locked. A kernel's record carries the correlation id of the call
 * that launched it; another record ties that id to the number of the run. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <cupti.h>

#include "profiler/gpu.h"

#define STRING_OF(x) #x
#define STRING(x)    STRING_OF(x)

enum { BUFFER_BYTES = 4 << 20, BUFFER_ALIGNMENT = 8 };

typedef struct Call {
    uint32_t correlation;
    int run;
} Call;

typedef struct Activity {
    uint32_t correlation;
    bool copy;
    int64_t start_ns, end_ns;
} Activity;

#define CUPTI_CALLS(X)                                                                                                 \
    X(cuptiActivityRegisterCallbacks)                                                                                  \
    X(cuptiActivityEnable)                                                                                             \
    X(cuptiActivityDisable)                                                                                            \
    X(cuptiActivityFlushAll)                                                                                           \
    X(cuptiActivityGetNextRecord)                                                                                      \
    X(cuptiActivityGetNumDroppedRecords)                                                                               \
    X(cuptiActivityPushExternalCorrelationId)                                                                          \
    X(cuptiActivityPopExternalCorrelationId)                                                                           \
    X(cuptiGetResultString)

struct GpuTrace {
    Diag *diag;
    void *library;
#define X(name) __typeof__(&name) name;
    CUPTI_CALLS(X)
#undef X
    pthread_mutex_t lock;
    VEC(Call) call;
    VEC(Activity) activity;
    bool out_of_memory, on;
    size_t dropped;
};

static GpuTrace *open_trace;

static const CUpti_ActivityKind recorded_kinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_RUNTIME,           CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
};
enum { RECORDED_KINDS = sizeof recorded_kinds / sizeof recorded_kinds[0] };

static Status check(GpuTrace *t, CUptiResult result, const char *what)
{
    if (result == CUPTI_SUCCESS)
        return ST_OK;
    const char *text = NULL;
    t->cuptiGetResultString(result, &text);
    diag_fail(t->diag, ST_FAILED, "CUPTI: %s: %s (%d)", what, text ? text : "unknown error", (int)result);
    return diag_hint(t->diag, "another profiler must not be attached; --device model:FILE.yaml needs no GPU");
}

/* ---- records
 * ------------------------------------------------------------------------------------------------------------- */

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *most_records)
{
    *most_records = 0; /* as many as fit */
    *buffer = aligned_alloc(BUFFER_ALIGNMENT, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
}

static void add_activity(GpuTrace *t, uint32_t correlation, bool copy, uint64_t start, uint64_t end)
{
    Activity *a = VEC_PUSH(&t->activity);
    t->out_of_memory |= !a;
    if (a)
        *a = (Activity){correlation, copy, (int64_t)start, (int64_t)end};
}

/* Later versions of a record begin with the same members, so any of them serves. */
static void add_record(GpuTrace *t, const CUpti_Activity *record)
{
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const void *)record;
        add_activity(t, k->correlationId, false, k->start, k->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *c = (const void *)record;
        add_activity(t, c->correlationId, true, c->start, c->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const void *)record;
        add_activity(t, m->correlationId, false, m->start, m->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
        const CUpti_ActivityExternalCorrelation *e = (const void *)record;
        Call *c = VEC_PUSH(&t->call);
        t->out_of_memory |= !c;
        if (c)
            *c = (Call){e->correlationId, (int)e->externalId};
    }
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)size;
    GpuTrace *t = open_trace;
    if (t && buffer) {
        pthread_mutex_lock(&t->lock);
        CUpti_Activity *record = NULL;
        while (valid > 0 && t->cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
            add_record(t, record);
        size_t dropped = 0;
        if (t->cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
            t->dropped += dropped;
        pthread_mutex_unlock(&t->lock);
    }
    free(buffer);
}

/* ---- the library
 * --------------------------------------------------------------------------------------------------------- */

/* Its major version is the toolkit's. Toolkits keep it beside their other libraries or in a folder of its own. */
static void *find_library(void)
{
    static const char *const names[] = {
        "libcupti.so." STRING(FERRY_CUDA_MAJOR),
        "/usr/local/cuda/lib64/libcupti.so." STRING(FERRY_CUDA_MAJOR),
        "/usr/local/cuda/lib/libcupti.so." STRING(FERRY_CUDA_MAJOR),
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so." STRING(FERRY_CUDA_MAJOR),
    };
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static Status find_functions(GpuTrace *t)
{
    static const struct {
        const char *name;
        size_t at;
    } functions[] = {
#define X(name) {#name, offsetof(GpuTrace, name)},
        CUPTI_CALLS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function = dlsym(t->library, functions[i].name);
        if (!function)
            return diag_fail(t->diag, ST_FAILED, "libcupti.so." STRING(FERRY_CUDA_MAJOR) " has no %s; it is too old",
                             functions[i].name);
        memcpy((char *)t + functions[i].at, &function, sizeof function);
    }
    return ST_OK;
}

static Status connect_trace(GpuTrace *t)
{
    t->library = find_library();
    if (!t->library) {
        diag_fail(t->diag, ST_FAILED, "the library libcupti.so." STRING(FERRY_CUDA_MAJOR) " (CUPTI) was not found");
        return diag_hint(t->diag, "it is part of the CUDA toolkit: put its folder into LD_LIBRARY_PATH");
    }
    TRY(find_functions(t));
    return check(t, t->cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "registering buffers");
}

Status gpu_trace_open(Diag *d, GpuTrace **out)
{
    *out = NULL;
    if (open_trace)
        return diag_fail(d, ST_FAILED, "a trace of a GPU is open already");
    GpuTrace *t = base_alloc(sizeof *t);
    if (!t)
        return diag_oom(d);
    t->diag = d;
    pthread_mutex_init(&t->lock, NULL);
    Status status = connect_trace(t);
    if (status != ST_OK) {
        gpu_trace_close(t);
        return status;
    }
    *out = open_trace = t;
    return ST_OK;
}

/* The library stays loaded: CUPTI has threads, and CUDA may still call it. */
void gpu_trace_close(GpuTrace *t)
{
    if (!t)
        return;
    if (t->on) {
        for (int i = 0; i < RECORDED_KINDS; i++)
            t->cuptiActivityDisable(recorded_kinds[i]);
        t->cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    }
    if (open_trace == t)
        open_trace = NULL;
    pthread_mutex_destroy(&t->lock);
    VEC_FREE(&t->call);
    VEC_FREE(&t->activity);
    base_free(t);
}

/* ---- runs
 * ---------------------------------------------------------------------------------------------------------------- */

Status gpu_trace_start(GpuTrace *t)
{
    if (t->on) /* what ran since the last one */
        TRY(check(t, t->cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "reading records"));
    pthread_mutex_lock(&t->lock);
    t->call.count = t->activity.count = 0;
    t->dropped = 0;
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < RECORDED_KINDS && !t->on; i++)
        TRY(check(t, t->cuptiActivityEnable(recorded_kinds[i]), "starting to record"));
    t->on = true;
    return ST_OK;
}

Status gpu_trace_stop(GpuTrace *t)
{
    for (int i = 0; i < RECORDED_KINDS && t->on; i++)
        TRY(check(t, t->cuptiActivityDisable(recorded_kinds[i]), "ending the record"));
    t->on = false;
    return ST_OK;
}

Status gpu_trace_run(GpuTrace *t, int number)
{
    return check(t,
                 t->cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, (uint64_t)number),
                 "numbering a run");
}

Status gpu_trace_run_end(GpuTrace *t)
{
    uint64_t number;
    return check(t, t->cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &number),
                 "numbering a run");
}

static int compare_calls(const void *a, const void *b)
{
    uint32_t x = ((const Call *)a)->correlation, y = ((const Call *)b)->correlation;
    return (x > y) - (x < y);
}

static void add_to_run(GpuRun *r, const Activity *a)
{
    bool first = r->kernels + r->copies == 0;
    if (first || a->start_ns < r->start_ns)
        r->start_ns = a->start_ns;
    if (first || a->end_ns > r->end_ns)
        r->end_ns = a->end_ns;
    *(a->copy ? &r->copies : &r->kernels) += 1;
    *(a->copy ? &r->copy_ns : &r->kernel_ns) += a->end_ns - a->start_ns;
}

static Status sum_up(GpuTrace *t, GpuRun *run, int count)
{
    if (t->out_of_memory)
        return diag_oom(t->diag);
    if (t->dropped > 0)
        return diag_fail(t->diag, ST_FAILED, "CUPTI lost %zu records of the GPU's activity", t->dropped);
    if (t->call.count > 0)
        qsort(t->call.at, (size_t)t->call.count, sizeof *t->call.at, compare_calls);
    for (int i = 0; i < t->activity.count; i++) {
        const Activity *a = &t->activity.at[i];
        const Call key = {a->correlation, 0};
        const Call *c =
            t->call.count > 0 ? bsearch(&key, t->call.at, (size_t)t->call.count, sizeof key, compare_calls) : NULL;
        if (c && c->run >= 0 && c->run < count)
            add_to_run(&run[c->run], a);
    }
    return ST_OK;
}

Status gpu_trace_collect(GpuTrace *t, GpuRun *run, int count)
{
    memset(run, 0, (size_t)count * sizeof *run);
    TRY(check(t, t->cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "reading records"));
    pthread_mutex_lock(&t->lock);
    Status status = sum_up(t, run, count);
    pthread_mutex_unlock(&t->lock);
    return status;
}

/* ---- the GPU
 * ------------------------------------------------------------------------------------------------------------- */

static Status check_cuda(Diag *d, const char *device, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return ST_OK;
    (void)cudaGetLastError();
    return diag_fail(d, ST_FAILED, "device '%s': %s: %s", device, what, cudaGetErrorString(error));
}

Status gpu_describe(Diag *d, const char *device, char *name, size_t name_bytes, int64_t *free_bytes)
{
    *free_bytes = 0;
    struct cudaDeviceProp properties;
    int ordinal = 0;
    size_t left = 0, all = 0;
    TRY(check_cuda(d, device, cudaGetDevice(&ordinal), "asking for the GPU"));
    TRY(check_cuda(d, device, cudaGetDeviceProperties(&properties, ordinal), "asking for its name"));
    TRY(check_cuda(d, device, cudaMemGetInfo(&left, &all), "asking for its memory"));
    snprintf(name, name_bytes, "%s", properties.name);
    *free_bytes = (int64_t)left;
    return ST_OK;
}
