/* cuda_dnn.c - convolutions by cuDNN, which is looked for at the first one.
 *
 * The algorithms are fixed ones that give the same bits in every run: the implicit product forward, ALGO_1 backward.
 * They work in the stream's scratch. f32 is computed by fused multiply-adds, without TF32; bf16 by tensor cores with
 * sums in f32. Where the library or its headers are missing, where an algorithm does not take a call (other padding
 * before and behind, sizes beyond int) or wants more scratch than there is, the kernels of cuda_window.cu run: slower,
 * and right as well. */
#include "runtime/cuda_device.h"
#include "runtime/window.h"

#if __has_include(<cudnn.h>)

#include <cudnn.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ferryi_cuda_dnn {
    void *library; /* NULL: not found, or too old */
    __typeof__(&cudnnCreate) create;
    __typeof__(&cudnnDestroy) destroy;
    __typeof__(&cudnnSetStream) set_stream;
    __typeof__(&cudnnGetErrorString) error_string;
    __typeof__(&cudnnCreateTensorDescriptor) tensor_create;
    __typeof__(&cudnnDestroyTensorDescriptor) tensor_destroy;
    __typeof__(&cudnnSetTensorNdDescriptorEx) tensor_set;
    __typeof__(&cudnnCreateFilterDescriptor) filter_create;
    __typeof__(&cudnnDestroyFilterDescriptor) filter_destroy;
    __typeof__(&cudnnSetFilterNdDescriptor) filter_set;
    __typeof__(&cudnnCreateConvolutionDescriptor) map_create;
    __typeof__(&cudnnDestroyConvolutionDescriptor) map_destroy;
    __typeof__(&cudnnSetConvolutionNdDescriptor) map_set;
    __typeof__(&cudnnSetConvolutionGroupCount) map_groups;
    __typeof__(&cudnnSetConvolutionMathType) map_math;
    __typeof__(&cudnnGetConvolutionForwardWorkspaceSize) forward_bytes;
    __typeof__(&cudnnGetConvolutionBackwardDataWorkspaceSize) data_bytes;
    __typeof__(&cudnnGetConvolutionBackwardFilterWorkspaceSize) filter_bytes;
    __typeof__(&cudnnConvolutionForward) forward;
    __typeof__(&cudnnConvolutionBackwardData) data;
    __typeof__(&cudnnConvolutionBackwardFilter) filter;
};

#define ENTRY(function, field)                                                                                         \
    {                                                                                                                  \
#function, offsetof(ferryi_cuda_dnn, field)                                                                    \
    }
static const struct {
    const char *name;
    size_t at;
} functions[] = {
    ENTRY(cudnnCreate, create),
    ENTRY(cudnnDestroy, destroy),
    ENTRY(cudnnSetStream, set_stream),
    ENTRY(cudnnGetErrorString, error_string),
    ENTRY(cudnnCreateTensorDescriptor, tensor_create),
    ENTRY(cudnnDestroyTensorDescriptor, tensor_destroy),
    ENTRY(cudnnSetTensorNdDescriptorEx, tensor_set),
    ENTRY(cudnnCreateFilterDescriptor, filter_create),
    ENTRY(cudnnDestroyFilterDescriptor, filter_destroy),
    ENTRY(cudnnSetFilterNdDescriptor, filter_set),
    ENTRY(cudnnCreateConvolutionDescriptor, map_create),
    ENTRY(cudnnDestroyConvolutionDescriptor, map_destroy),
    ENTRY(cudnnSetConvolutionNdDescriptor, map_set),
    ENTRY(cudnnSetConvolutionGroupCount, map_groups),
    ENTRY(cudnnSetConvolutionMathType, map_math),
    ENTRY(cudnnGetConvolutionForwardWorkspaceSize, forward_bytes),
    ENTRY(cudnnGetConvolutionBackwardDataWorkspaceSize, data_bytes),
    ENTRY(cudnnGetConvolutionBackwardFilterWorkspaceSize, filter_bytes),
    ENTRY(cudnnConvolutionForward, forward),
    ENTRY(cudnnConvolutionBackwardData, data),
    ENTRY(cudnnConvolutionBackwardFilter, filter),
};

static void open_library(ferryi_cuda_dnn *n)
{
    const char *const folders[] = {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/targets/x86_64-linux/lib/"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(*folders) && n->library == NULL; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%slibcudnn.so.%d", folders[i], CUDNN_MAJOR);
        n->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions) && n->library != NULL; i++) {
        void *function = dlsym(n->library, functions[i].name);
        if (function == NULL) {
            dlclose(n->library);
            n->library = NULL;
            return;
        }
        memcpy((char *)n + functions[i].at, &function, sizeof(function));
    }
}

void ferryi_cuda_dnn_close(ferryi_cuda_device *d)
{
    if (d->dnn != NULL && d->dnn->library != NULL) {
        dlclose(d->dnn->library);
    }
    free(d->dnn);
    d->dnn = NULL;
}

void ferryi_cuda_dnn_stream_close(ferryi_cuda_stream *s)
{
    if (s->dnn != NULL) {
        (void)ferryi_cuda_of(s->base.device)->dnn->destroy(s->dnn);
        s->dnn = NULL;
    }
}

static ferry_status check(ferry_device *d, cudnnStatus_t result, const char *what)
{
    if (result == CUDNN_STATUS_SUCCESS) {
        return FERRY_OK;
    }
    (void)cudaGetLastError();
    ferryi_cuda_question(d);
    return ferryi_fail(FERRY_FAILED, "device '%s': cuDNN, %s: %s", d->name, what,
                       ferryi_cuda_of(d)->dnn->error_string(result));
}

/* What cuDNN knows of a call. Two spatial dimensions at least: it has no convolution of one. */
typedef struct dnn_call {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t map;
    size_t bytes; /* of workspace */
} dnn_call;

/* False: cuDNN cannot say this geometry. */
static bool describe(const ferryi_cuda_dnn *n, const ferry_kernel *k, dnn_call *c)
{
    const ferryi_window3 wide = ferryi_window_wide(&k->window);
    const int rank = k->window.rank == 3 ? 3 : 2, first = 3 - rank;
    int x[5] = {(int)k->m, (int)k->k}, y[5] = {(int)k->m, (int)k->n},
        w[5] = {(int)k->n, (int)(k->k / k->window.groups)};
    int pad[3], step[3], dilation[3];
    if (k->m > INT32_MAX || k->k > INT32_MAX || k->n > INT32_MAX || k->m < 1 || k->k < 1 || k->n < 1) {
        return false;
    }
    for (int i = 0; i < rank; i++) {
        const ferryi_axis *a = &wide.axis[first + i];
        /* cuDNN pads both ends alike and takes as many outputs as fit */
        const int64_t outputs = (a->in + 2 * a->pad - ((a->size - 1) * a->dilation + 1)) / a->step + 1;
        if (a->pad < 0 || a->in + 2 * a->pad < (a->size - 1) * a->dilation + 1 || outputs != a->out ||
            a->in > INT32_MAX || a->out > INT32_MAX) {
            return false;
        }
        x[2 + i] = (int)a->in;
        y[2 + i] = (int)a->out;
        w[2 + i] = (int)a->size;
        pad[i] = (int)a->pad;
        step[i] = (int)a->step;
        dilation[i] = (int)a->dilation;
    }
    if (k->m * k->k * wide.n_in > INT32_MAX || k->m * k->n * wide.n_out > INT32_MAX) {
        return false;
    }
    const cudnnDataType_t type = k->dtype == FERRY_F64   ? CUDNN_DATA_DOUBLE
                                 : k->dtype == FERRY_F32 ? CUDNN_DATA_FLOAT
                                                         : CUDNN_DATA_BFLOAT16;
    const cudnnDataType_t sums = k->dtype == FERRY_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    const cudnnMathType_t math = k->dtype == FERRY_BF16 ? CUDNN_TENSOR_OP_MATH : CUDNN_FMA_MATH;
    return n->tensor_create(&c->x) == CUDNN_STATUS_SUCCESS && n->tensor_create(&c->y) == CUDNN_STATUS_SUCCESS &&
           n->filter_create(&c->w) == CUDNN_STATUS_SUCCESS && n->map_create(&c->map) == CUDNN_STATUS_SUCCESS &&
           n->tensor_set(c->x, CUDNN_TENSOR_NCHW, type, rank + 2, x) == CUDNN_STATUS_SUCCESS &&
           n->tensor_set(c->y, CUDNN_TENSOR_NCHW, type, rank + 2, y) == CUDNN_STATUS_SUCCESS &&
           n->filter_set(c->w, type, CUDNN_TENSOR_NCHW, rank + 2, w) == CUDNN_STATUS_SUCCESS &&
           n->map_set(c->map, rank, pad, step, dilation, CUDNN_CROSS_CORRELATION, sums) == CUDNN_STATUS_SUCCESS &&
           n->map_groups(c->map, (int)k->window.groups) == CUDNN_STATUS_SUCCESS &&
           n->map_math(c->map, math) == CUDNN_STATUS_SUCCESS;
}

static void forget(const ferryi_cuda_dnn *n, dnn_call *c)
{
    if (c->x != NULL) {
        n->tensor_destroy(c->x);
    }
    if (c->y != NULL) {
        n->tensor_destroy(c->y);
    }
    if (c->w != NULL) {
        n->filter_destroy(c->w);
    }
    if (c->map != NULL) {
        n->map_destroy(c->map);
    }
}

static bool fits(const ferryi_cuda_dnn *n, cudnnHandle_t handle, const ferry_kernel *k, int64_t most, dnn_call *c)
{
    cudnnStatus_t result =
        k->op == FERRY_OP_CONV ? n->forward_bytes(handle, c->x, c->w, c->map, c->y,
                                                  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, &c->bytes)
        : k->op == FERRY_OP_CONV_DX
            ? n->data_bytes(handle, c->w, c->y, c->map, c->x, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, &c->bytes)
            : n->filter_bytes(handle, c->x, c->y, c->map, c->w, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, &c->bytes);
    return result == CUDNN_STATUS_SUCCESS && c->bytes <= (size_t)most;
}

/* The output starts as the bias of its channel, to which the library adds. */
static ferry_status start_as_bias(ferryi_cuda_stream *s, const ferryi_cuda_call *call, const ferry_kernel *k,
                                  int64_t channels, int64_t places)
{
    ferry_kernel rows = {.op = FERRY_OP_COPY, .dtype = k->dtype, .rank = 3, .alpha = 1, .accumulate = k->accumulate};
    const int64_t dim[3] = {k->m, channels, places}, y[3] = {channels * places, places, 1}, b[3] = {0, 1, 0};
    memcpy(rows.dim, dim, sizeof(dim));
    memcpy(rows.stride[0], y, sizeof(y));
    memcpy(rows.stride[1], b, sizeof(b));
    rows.arg[0] = k->arg[0];
    rows.arg[1] = k->arg[3];
    return ferryi_cuda_check(s->base.device, (cudaError_t)ferryi_cuda_copy_kernel(call, &rows), "kernel conv");
}

static ferry_status run(ferryi_cuda_stream *s, const ferryi_cuda_call *call, const ferry_kernel *k, const dnn_call *c)
{
    ferry_device *d = s->base.device;
    const ferryi_cuda_dnn *n = ferryi_cuda_of(d)->dnn;
    const ferryi_window3 wide = ferryi_window_wide(&k->window);
    const bool biased = k->op != FERRY_OP_CONV_DW && k->arg[3] != NULL;
    ferry_status status = FERRY_OK;
    if (biased) {
        status = k->op == FERRY_OP_CONV ? start_as_bias(s, call, k, k->n, wide.n_out)
                                        : start_as_bias(s, call, k, k->k, wide.n_in);
    }
    const double one64 = 1, beta64 = biased || k->accumulate;
    const float one32 = 1, beta32 = (float)beta64;
    const bool is_double = k->dtype == FERRY_F64;
    const void *one = is_double ? (const void *)&one64 : &one32, *beta = is_double ? (const void *)&beta64 : &beta32;
    if (status != FERRY_OK) {
        return status;
    }
    if (k->op == FERRY_OP_CONV) {
        return check(d,
                     n->forward(s->dnn, one, c->x, k->arg[1], c->w, k->arg[2], c->map,
                                CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, call->scratch, c->bytes, beta, c->y,
                                k->arg[0]),
                     "a convolution");
    }
    if (k->op == FERRY_OP_CONV_DX) {
        return check(d,
                     n->data(s->dnn, one, c->w, k->arg[2], c->y, k->arg[1], c->map, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                             call->scratch, c->bytes, beta, c->x, k->arg[0]),
                     "a convolution's dx");
    }
    return check(d,
                 n->filter(s->dnn, one, c->x, k->arg[1], c->y, k->arg[2], c->map, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                           call->scratch, c->bytes, beta, c->w, k->arg[0]),
                 "a convolution's dw");
}

static bool on_host(const ferryi_cuda_stream *s, const void *p)
{
    ferryi_region r;
    return ferryi_region_find(s->base.device, p, &r) && r.kind == FERRYI_PINNED;
}

/* The library reads its operands again and again and may read its result: in host memory that is the matter of own
 * kernels. */
static bool touches_host(const ferryi_cuda_stream *s, const ferry_kernel *k)
{
    return on_host(s, k->arg[0]) || on_host(s, k->arg[1]) || on_host(s, k->arg[2]);
}

ferry_status ferryi_cuda_dnn_run(ferryi_cuda_stream *s, const ferryi_cuda_call *call, const ferry_kernel *k, bool *done)
{
    ferryi_cuda_device *d = ferryi_cuda_of(s->base.device);
    *done = false;
    if (d->dnn == NULL) {
        d->dnn = calloc(1, sizeof(*d->dnn));
        if (d->dnn == NULL) {
            return ferryi_fail(FERRY_FAILED, "no memory for a device");
        }
        open_library(d->dnn);
    }
    if (d->dnn->library == NULL || touches_host(s, k)) {
        return FERRY_OK;
    }
    ferry_status status = FERRY_OK;
    if (s->dnn == NULL) {
        cudnnHandle_t handle = NULL;
        status = check(&d->base, d->dnn->create(&handle), "making a handle");
        s->dnn = handle;
        if (status == FERRY_OK) {
            status = check(&d->base, d->dnn->set_stream(handle, s->stream), "choosing a stream");
        }
    }
    dnn_call c = {0};
    if (status == FERRY_OK && describe(d->dnn, k, &c) && fits(d->dnn, s->dnn, k, call->scratch_bytes, &c)) {
        status = run(s, call, k, &c);
        *done = status == FERRY_OK;
    }
    forget(d->dnn, &c);
    return status;
}

#else

void ferryi_cuda_dnn_close(ferryi_cuda_device *d)
{
    (void)d;
}

void ferryi_cuda_dnn_stream_close(ferryi_cuda_stream *s)
{
    (void)s;
}

ferry_status ferryi_cuda_dnn_run(ferryi_cuda_stream *s, const ferryi_cuda_call *call, const ferry_kernel *k, bool *done)
{
    (void)s;
    (void)call;
    (void)k;
    *done = false;
    return FERRY_OK;
}

#endif
