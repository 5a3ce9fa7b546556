/* cuda_blas.c - cuBLAS, found when a device is opened.
 *
 * Products of f32 are computed in f32: without TF32, which keeps 10 bits of the 23. Those of bf16 are added up in f32,
 * also where cuBLAS splits a sum. Each stream has a handle and a
 * workspace of its own, so that products of one stream give the same bits in every run. */
#include "runtime/cuda_device.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 32 << 20 }; /* what cuBLAS asks for on this generation of GPUs */

struct ferryi_cuda_blas {
    void *library;
    __typeof__(&cublasCreate) create;
    __typeof__(&cublasDestroy) destroy;
    __typeof__(&cublasSetStream) set_stream;
    __typeof__(&cublasSetWorkspace) set_workspace;
    __typeof__(&cublasSetMathMode) set_math_mode;
    __typeof__(&cublasGetStatusString) status_string;
    __typeof__(&cublasGemmStridedBatchedEx_64) gemm;
};

/* A name of a function as cublas_v2.h makes it of the name without the version. */
#define NAME_OF(function)  NAME_OF_(function)
#define NAME_OF_(function) #function

static const struct {
    const char *name;
    size_t at;
} functions[] = {
    {NAME_OF(cublasCreate), offsetof(ferryi_cuda_blas, create)},
    {NAME_OF(cublasDestroy), offsetof(ferryi_cuda_blas, destroy)},
    {NAME_OF(cublasSetStream), offsetof(ferryi_cuda_blas, set_stream)},
    {NAME_OF(cublasSetWorkspace), offsetof(ferryi_cuda_blas, set_workspace)},
    {NAME_OF(cublasSetMathMode), offsetof(ferryi_cuda_blas, set_math_mode)},
    {NAME_OF(cublasGetStatusString), offsetof(ferryi_cuda_blas, status_string)},
    {NAME_OF(cublasGemmStridedBatchedEx_64), offsetof(ferryi_cuda_blas, gemm)},
};

/* Where the loader looks, and where the toolkit and its Python packages put it. */
static void *open_library(char *name, size_t size)
{
    const char *const folders[] = {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/targets/x86_64-linux/lib/"};
    void *library = NULL;
    snprintf(name, size, "libcublas.so.%d", CUBLAS_VER_MAJOR);
    for (size_t i = 0; i < sizeof(folders) / sizeof(*folders) && library == NULL; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s%s", folders[i], name);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

ferry_status ferryi_cuda_blas_open(ferryi_cuda_device *d)
{
    char name[64];
    ferryi_cuda_blas *b = calloc(1, sizeof(*b));
    if (b == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for a device");
    }
    b->library = open_library(name, sizeof(name));
    if (b->library == NULL) {
        free(b);
        return ferryi_fail(FERRY_FAILED,
                           "device '%s' needs the cuBLAS library %s, which was not found: install it or put its folder "
                           "into LD_LIBRARY_PATH",
                           d->base.name, name);
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
        void *function = dlsym(b->library, functions[i].name);
        if (function == NULL) {
            dlclose(b->library);
            free(b);
            return ferryi_fail(FERRY_FAILED, "device '%s': the library %s has no %s; a newer one is needed",
                               d->base.name, name, functions[i].name);
        }
        memcpy((char *)b + functions[i].at, &function, sizeof(function));
    }
    d->blas = b;
    return FERRY_OK;
}

void ferryi_cuda_blas_close(ferryi_cuda_device *d)
{
    if (d->blas != NULL) {
        dlclose(d->blas->library);
        free(d->blas);
        d->blas = NULL;
    }
}

static ferry_status check(ferry_device *d, cublasStatus_t result, const char *what)
{
    if (result == CUBLAS_STATUS_SUCCESS) {
        return FERRY_OK;
    }
    (void)cudaGetLastError();
    ferryi_cuda_question(d);
    return ferryi_fail(FERRY_FAILED, "device '%s': cuBLAS, %s: %s", d->name, what,
                       ferryi_cuda_of(d)->blas->status_string(result));
}

ferry_status ferryi_cuda_blas_stream_open(ferryi_cuda_stream *s)
{
    ferry_device *d = s->base.device;
    const ferryi_cuda_blas *b = ferryi_cuda_of(d)->blas;
    cublasHandle_t handle = NULL;
    ferry_status status = ferryi_cuda_scratch_alloc(d, WORKSPACE_BYTES, &s->workspace);
    if (status == FERRY_OK) {
        status = check(d, b->create(&handle), "making a handle");
        s->blas = handle;
    }
    if (status == FERRY_OK) {
        status = check(d, b->set_stream(handle, s->stream), "choosing a stream");
    }
    if (status == FERRY_OK) {
        status = check(d, b->set_workspace(handle, s->workspace, WORKSPACE_BYTES), "giving it a workspace");
    }
    if (status == FERRY_OK) {
        status = check(d, b->set_math_mode(handle, CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
                       "choosing exact sums");
    }
    if (status != FERRY_OK) {
        ferryi_cuda_blas_stream_close(s);
    }
    return status;
}

void ferryi_cuda_blas_stream_close(ferryi_cuda_stream *s)
{
    if (s->blas != NULL) {
        (void)ferryi_cuda_of(s->base.device)->blas->destroy(s->blas);
        s->blas = NULL;
    }
    ferryi_cuda_scratch_free(s->base.device, s->workspace, WORKSPACE_BYTES);
    s->workspace = NULL;
}

/* cuBLAS stores by columns: what it takes for a matrix is our matrix transposed. c^T = op(b)^T * op(a)^T is computed,
 * with the operands swapped and nothing moved. */
ferry_status ferryi_cuda_gemm_run(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g)
{
    ferry_device *d = s->base.device;
    if (s->blas == NULL) {
        ferry_status status = ferryi_cuda_blas_stream_open(s);
        if (status != FERRY_OK) {
            return status;
        }
    }
    /* a matrix without columns still needs a distance between its rows */
    const int64_t lda = g->lda > 0 ? g->lda : 1, ldb = g->ldb > 0 ? g->ldb : 1;
    const bool is_double = g->t == FERRY_F64;
    const float alpha = (float)g->alpha, beta = (float)g->beta;
    const void *alpha_at = is_double ? (const void *)&g->alpha : &alpha;
    const void *beta_at = is_double ? (const void *)&g->beta : &beta;
    const cudaDataType_t type = is_double ? CUDA_R_64F : g->t == FERRY_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    const cublasComputeType_t compute = is_double            ? CUBLAS_COMPUTE_64F_PEDANTIC
                                        : g->t == FERRY_BF16 ? CUBLAS_COMPUTE_32F
                                                             : CUBLAS_COMPUTE_32F_PEDANTIC;
    return check(d,
                 ferryi_cuda_of(d)->blas->gemm(s->blas, g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                               g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, g->n, g->m, g->k, alpha_at, g->b,
                                               type, ldb, g->step_b, g->a, type, lda, g->step_a, beta_at, g->c, type,
                                               g->ldc, g->step_c, g->count, compute, CUBLAS_GEMM_DEFAULT),
                 "a matrix product");
}
