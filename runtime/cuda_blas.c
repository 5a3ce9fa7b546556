/* cuda_blas.c - cuBLAS, found when a device is opened.
 *
 * A bias is added by cuBLASLt with the product, which saves writing the result twice. Which of its algorithms computes
 * a product is asked once for each size and kept with the stream.
 *
 * Products of f32 are computed in f32: without TF32, which keeps 10 bits of the 23. Those of bf16 are added up in f32,
 * also where cuBLAS splits a sum. Each stream has a handle and a
 * workspace of its own, so that products of one stream give the same bits in every run. */
#include "runtime/cuda_device.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 32 << 20 }; /* what cuBLAS asks for on this generation of GPUs */

struct ferryi_cuda_blas {
    void *library, *light;
    __typeof__(&cublasCreate) create;
    __typeof__(&cublasDestroy) destroy;
    __typeof__(&cublasSetStream) set_stream;
    __typeof__(&cublasSetWorkspace) set_workspace;
    __typeof__(&cublasSetMathMode) set_math_mode;
    __typeof__(&cublasGetStatusString) status_string;
    __typeof__(&cublasGemmStridedBatchedEx_64) gemm;
    __typeof__(&cublasGemmBatchedEx_64) gemm_listed;
    __typeof__(&cublasLtMatmulDescCreate) desc_create;
    __typeof__(&cublasLtMatmulDescDestroy) desc_destroy;
    __typeof__(&cublasLtMatmulDescSetAttribute) desc_set;
    __typeof__(&cublasLtMatrixLayoutCreate) layout_create;
    __typeof__(&cublasLtMatrixLayoutDestroy) layout_destroy;
    __typeof__(&cublasLtMatmulPreferenceCreate) preference_create;
    __typeof__(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    __typeof__(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    __typeof__(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    __typeof__(&cublasLtMatmul) matmul;
};

/* A name of a function as cublas_v2.h makes it of the name without the version. */
#define NAME_OF(function)  NAME_OF_(function)
#define NAME_OF_(function) #function

static const struct {
    const char *name;
    size_t at;
    bool light; /* of libcublasLt */
} functions[] = {
    {NAME_OF(cublasCreate), offsetof(ferryi_cuda_blas, create), false},
    {NAME_OF(cublasDestroy), offsetof(ferryi_cuda_blas, destroy), false},
    {NAME_OF(cublasSetStream), offsetof(ferryi_cuda_blas, set_stream), false},
    {NAME_OF(cublasSetWorkspace), offsetof(ferryi_cuda_blas, set_workspace), false},
    {NAME_OF(cublasSetMathMode), offsetof(ferryi_cuda_blas, set_math_mode), false},
    {NAME_OF(cublasGetStatusString), offsetof(ferryi_cuda_blas, status_string), false},
    {NAME_OF(cublasGemmStridedBatchedEx_64), offsetof(ferryi_cuda_blas, gemm), false},
    {NAME_OF(cublasGemmBatchedEx_64), offsetof(ferryi_cuda_blas, gemm_listed), false},
    {NAME_OF(cublasLtMatmulDescCreate), offsetof(ferryi_cuda_blas, desc_create), true},
    {NAME_OF(cublasLtMatmulDescDestroy), offsetof(ferryi_cuda_blas, desc_destroy), true},
    {NAME_OF(cublasLtMatmulDescSetAttribute), offsetof(ferryi_cuda_blas, desc_set), true},
    {NAME_OF(cublasLtMatrixLayoutCreate), offsetof(ferryi_cuda_blas, layout_create), true},
    {NAME_OF(cublasLtMatrixLayoutDestroy), offsetof(ferryi_cuda_blas, layout_destroy), true},
    {NAME_OF(cublasLtMatmulPreferenceCreate), offsetof(ferryi_cuda_blas, preference_create), true},
    {NAME_OF(cublasLtMatmulPreferenceDestroy), offsetof(ferryi_cuda_blas, preference_destroy), true},
    {NAME_OF(cublasLtMatmulPreferenceSetAttribute), offsetof(ferryi_cuda_blas, preference_set), true},
    {NAME_OF(cublasLtMatmulAlgoGetHeuristic), offsetof(ferryi_cuda_blas, heuristic), true},
    {NAME_OF(cublasLtMatmul), offsetof(ferryi_cuda_blas, matmul), true},
};

/* Where the loader looks, and where the toolkit and its Python packages put it. */
static void *open_library(const char *stem, char *name, size_t size)
{
    const char *const folders[] = {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/targets/x86_64-linux/lib/"};
    void *library = NULL;
    snprintf(name, size, "%s.so.%d", stem, CUBLAS_VER_MAJOR);
    for (size_t i = 0; i < sizeof(folders) / sizeof(*folders) && library == NULL; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s%s", folders[i], name);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

static void libraries_close(ferryi_cuda_blas *b)
{
    if (b->light != NULL) {
        dlclose(b->light);
    }
    if (b->library != NULL) {
        dlclose(b->library);
    }
    free(b);
}

ferry_status ferryi_cuda_blas_open(ferryi_cuda_device *d)
{
    char name[64];
    ferryi_cuda_blas *b = calloc(1, sizeof(*b));
    if (b == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for a device");
    }
    b->library = open_library("libcublas", name, sizeof(name));
    if (b->library != NULL) {
        b->light = open_library("libcublasLt", name, sizeof(name));
    }
    if (b->light == NULL) {
        libraries_close(b);
        return ferryi_fail(FERRY_FAILED,
                           "device '%s' needs the cuBLAS library %s, which was not found: install it or put its folder "
                           "into LD_LIBRARY_PATH",
                           d->base.name, name);
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
        void *function = dlsym(functions[i].light ? b->light : b->library, functions[i].name);
        if (function == NULL) {
            libraries_close(b);
            return ferryi_fail(FERRY_FAILED, "device '%s': cuBLAS %d has no %s; a newer one is needed", d->base.name,
                               CUBLAS_VER_MAJOR, functions[i].name);
        }
        memcpy((char *)b + functions[i].at, &function, sizeof(function));
    }
    d->blas = b;
    return FERRY_OK;
}

void ferryi_cuda_blas_close(ferryi_cuda_device *d)
{
    if (d->blas != NULL) {
        libraries_close(d->blas);
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

/* ---- products with a bias ---------------------------------------------------------------------------------------- */

/* A product of these sizes: its descriptors, and the algorithm that computes it, if there is one. */
typedef struct epilogue {
    struct epilogue *next;
    ferryi_cuda_gemm key; /* without pointers */
    int alignment;        /* of all pointers, up to 256 */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulHeuristicResult_t found;
    bool exists;
} epilogue;

static void epilogue_free(const ferryi_cuda_blas *b, epilogue *e)
{
    const cublasLtMatrixLayout_t layouts[] = {e->a, e->b, e->c};
    for (int i = 0; i < 3; i++) {
        if (layouts[i] != NULL) {
            (void)b->layout_destroy(layouts[i]);
        }
    }
    if (e->product != NULL) {
        (void)b->desc_destroy(e->product);
    }
    free(e);
}

static int alignment_of(const ferryi_cuda_gemm *g)
{
    uintptr_t low = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c | (uintptr_t)g->bias | 256;
    return (int)(low & -low);
}

/* cuBLAS stores by columns, as in ferryi_cuda_gemm_run: its A is our b, and the bias runs along its rows. */
static cublasStatus_t epilogue_make(const ferryi_cuda_blas *b, void *handle, const ferryi_cuda_gemm *g, epilogue *e)
{
    const cublasOperation_t op_a = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    const uint64_t rows_a = (uint64_t)(g->trans_b ? g->k : g->n), columns_a = (uint64_t)(g->trans_b ? g->n : g->k);
    const uint64_t rows_b = (uint64_t)(g->trans_a ? g->m : g->k), columns_b = (uint64_t)(g->trans_a ? g->k : g->m);
    const uint32_t alignment = (uint32_t)e->alignment;
    const size_t workspace = WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference = NULL;
    int count = 0;
#define STEP(call) status = status == CUBLAS_STATUS_SUCCESS ? (call) : status
    cublasStatus_t status = b->desc_create(&e->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    STEP(b->desc_set(e->product, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof(op_a)));
    STEP(b->desc_set(e->product, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof(op_b)));
    STEP(b->desc_set(e->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof(bias)));
    STEP(b->desc_set(e->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof(g->bias)));
    STEP(b->layout_create(&e->a, CUDA_R_16BF, rows_a, columns_a, g->ldb));
    STEP(b->layout_create(&e->b, CUDA_R_16BF, rows_b, columns_b, g->lda));
    STEP(b->layout_create(&e->c, CUDA_R_16BF, (uint64_t)g->n, (uint64_t)g->m, g->ldc));
    STEP(b->preference_create(&preference));
    STEP(b->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    STEP(b->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof(alignment)));
    STEP(b->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof(alignment)));
    STEP(b->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof(alignment)));
    STEP(b->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof(alignment)));
#undef STEP
    if (status == CUBLAS_STATUS_SUCCESS) { /* a handle of cuBLAS is one of cuBLASLt */
        cublasStatus_t asked = b->heuristic((cublasLtHandle_t)handle, e->product, e->a, e->b, e->c, e->c, preference, 1,
                                            &e->found, &count);
        e->exists = asked == CUBLAS_STATUS_SUCCESS && count > 0;
    }
    if (preference != NULL) {
        (void)b->preference_destroy(preference);
    }
    return status;
}

/* *out = what is known of products of these sizes and types, asked for at the first one. */
static ferry_status epilogue_find(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g, epilogue **out)
{
    const ferryi_cuda_blas *b = ferryi_cuda_of(s->base.device)->blas;
    int alignment = alignment_of(g);
    for (epilogue *e = s->epilogues; e != NULL; e = e->next) {
        const ferryi_cuda_gemm *k = &e->key;
        if (k->m == g->m && k->n == g->n && k->k == g->k && k->trans_a == g->trans_a && k->trans_b == g->trans_b &&
            k->lda == g->lda && k->ldb == g->ldb && k->ldc == g->ldc && e->alignment == alignment) {
            *out = e;
            return FERRY_OK;
        }
    }
    epilogue *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return ferryi_fail(FERRY_FAILED, "no memory for a matrix product");
    }
    e->key = *g;
    e->alignment = alignment;
    ferry_status status = check(s->base.device, epilogue_make(b, s->blas, g, e), "describing a matrix product");
    if (status != FERRY_OK) {
        epilogue_free(b, e);
        return status;
    }
    e->next = s->epilogues;
    s->epilogues = e;
    *out = e;
    return FERRY_OK;
}

/* *done = false: no algorithm adds the bias to such a product. */
static ferry_status gemm_with_bias(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g, bool *done)
{
    const ferryi_cuda_blas *b = ferryi_cuda_of(s->base.device)->blas;
    const float alpha = (float)g->alpha, beta = 0;
    epilogue *e = NULL;
    ferry_status status = epilogue_find(s, g, &e);
    *done = status == FERRY_OK && e->exists;
    if (!*done) {
        return status;
    }
    status = check(s->base.device,
                   b->desc_set(e->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof(g->bias)),
                   "describing a matrix product");
    return status != FERRY_OK
               ? status
               : check(s->base.device,
                       b->matmul((cublasLtHandle_t)s->blas, e->product, &alpha, g->b, e->a, g->a, e->b, &beta, g->c, e->c,
                                 g->c, e->c, &e->found.algo, s->workspace, WORKSPACE_BYTES, s->stream),
                       "a matrix product");
}

/* ---- streams and products ---------------------------------------------------------------------------------------- */

void ferryi_cuda_blas_stream_close(ferryi_cuda_stream *s)
{
    for (epilogue *e = s->epilogues, *next; e != NULL; e = next) {
        next = e->next;
        epilogue_free(ferryi_cuda_of(s->base.device)->blas, e);
    }
    s->epilogues = NULL;
    if (s->blas != NULL) {
        (void)ferryi_cuda_of(s->base.device)->blas->destroy(s->blas);
        s->blas = NULL;
    }
    ferryi_cuda_scratch_free(s->base.device, s->workspace, WORKSPACE_BYTES);
    s->workspace = NULL;
}

/* cuBLAS stores by columns: what it takes for a matrix is our matrix transposed. c^T = op(b)^T * op(a)^T is computed,
 * with the operands swapped and nothing moved. */
static ferry_status gemm(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g)
{
    ferry_device *d = s->base.device;
    /* a matrix without columns still needs a distance between its rows */
    const int64_t lda = g->lda > 0 ? g->lda : 1, ldb = g->ldb > 0 ? g->ldb : 1;
    const bool is_double = g->t == FERRY_F64;
    const float alpha = (float)g->alpha, beta = (float)g->beta;
    const void *alpha_at = is_double ? (const void *)&g->alpha : &alpha;
    const void *beta_at = is_double ? (const void *)&g->beta : &beta;
    const cudaDataType_t type = is_double ? CUDA_R_64F : g->t == FERRY_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    const cudaDataType_t type_c = g->t == FERRY_BF16 && g->wide_c ? CUDA_R_32F : type;
    const cublasComputeType_t compute = is_double            ? CUBLAS_COMPUTE_64F_PEDANTIC
                                        : g->t == FERRY_BF16 ? CUBLAS_COMPUTE_32F
                                                             : CUBLAS_COMPUTE_32F_PEDANTIC;
    if (g->listed) {
        return check(d,
                     ferryi_cuda_of(d)->blas->gemm_listed(
                         s->blas, g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, g->n, g->m,
                         g->k, alpha_at, (const void *const *)g->b, type, ldb, (const void *const *)g->a, type, lda, beta_at,
                         (void *const *)g->c, type_c, g->ldc, g->count, compute, CUBLAS_GEMM_DEFAULT),
                     "a matrix product");
    }
    return check(d,
                 ferryi_cuda_of(d)->blas->gemm(s->blas, g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                               g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, g->n, g->m, g->k, alpha_at, g->b,
                                               type, ldb, g->step_b, g->a, type, lda, g->step_a, beta_at, g->c, type_c,
                                               g->ldc, g->step_c, g->count, compute, CUBLAS_GEMM_DEFAULT),
                 "a matrix product");
}

/* Where no algorithm adds the bias, the rows of the result start as the bias. */
ferry_status ferryi_cuda_gemm_run(ferryi_cuda_stream *s, const ferryi_cuda_gemm *g)
{
    ferry_status status = s->blas == NULL ? ferryi_cuda_blas_stream_open(s) : FERRY_OK;
    bool done = false;
    if (status == FERRY_OK && g->bias != NULL && g->t == FERRY_BF16 && g->k > 0) {
        status = gemm_with_bias(s, g, &done);
    }
    if (status != FERRY_OK || done) {
        return status;
    }
    ferryi_cuda_gemm plain = *g;
    if (g->bias != NULL) {
        plain.beta = 1;
        status = ferryi_cuda_check(
            s->base.device, (cudaError_t)ferryi_cuda_same_rows(s->stream, g->c, g->bias, g->m, g->n, g->ldc, g->t),
            "adding a bias");
    }
    return status != FERRY_OK ? status : gemm(s, &plain);
}
