/* cuda_elementwise.cu - UNARY, BINARY, their gradients, and DROPOUT. The functions are those of the host. */
#include "runtime/cuda_scalar.cuh"
#include "runtime/random.h"
#include "runtime/whole.h"

namespace
{

__device__ float scalar_unary(ferry_fn fn, float x)
{
    return unary_f32(fn, x);
}
__device__ double scalar_unary(ferry_fn fn, double x)
{
    return unary_f64(fn, x);
}
__device__ float scalar_unary_grad(ferry_fn fn, float dy, float x, float y)
{
    return unary_grad_f32(fn, dy, x, y);
}
__device__ double scalar_unary_grad(ferry_fn fn, double dy, double x, double y)
{
    return unary_grad_f64(fn, dy, x, y);
}
__device__ float scalar_binary(ferry_fn fn, float a, float b)
{
    return binary_f32(fn, a, b);
}
__device__ double scalar_binary(ferry_fn fn, double a, double b)
{
    return binary_f64(fn, a, b);
}
__device__ bool scalar_compare(ferry_fn fn, float a, float b)
{
    return compare_f32(fn, a, b);
}
__device__ bool scalar_compare(ferry_fn fn, double a, double b)
{
    return compare_f64(fn, a, b);
}
__device__ float scalar_da(ferry_fn fn, float dy, float a, float b)
{
    return binary_da_f32(fn, dy, a, b);
}
__device__ double scalar_da(ferry_fn fn, double dy, double a, double b)
{
    return binary_da_f64(fn, dy, a, b);
}
__device__ float scalar_db(ferry_fn fn, float dy, float a, float b)
{
    return binary_db_f32(fn, dy, a, b);
}
__device__ double scalar_db(ferry_fn fn, double dy, double a, double b)
{
    return binary_db_f64(fn, dy, a, b);
}

/* FN: the function when it is one that models run all the time, so that the compiler sees a constant; else ANY. */
constexpr int ANY = -1;

template <int FN> __device__ ferry_fn pick(ferry_fn fn)
{
    return FN == ANY ? fn : static_cast<ferry_fn>(FN);
}

/* ---- UNARY ------------------------------------------------------------------------------------------------------ */

template <typename T, int FN> __global__ void unary(ferry_fn fn, T *y, const T *x, int64_t n)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
        y[i] = scalar_unary(pick<FN>(fn), Wide<T>(x[i]));
    }
}

template <typename T, int FN>
__global__ void unary_grad(ferry_fn fn, bool accumulate, bool needs_x, bool needs_y, T *dx, const T *dy, const T *x,
                           const T *y, int64_t n)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
        Wide<T> g = scalar_unary_grad(pick<FN>(fn), Wide<T>(dy[i]), needs_x ? Wide<T>(x[i]) : 0,
                                      needs_y ? Wide<T>(y[i]) : 0);
        dx[i] = accumulate ? dx[i] + g : g;
    }
}

__global__ void unary_whole(ferry_fn fn, ferry_dtype t, void *y, const void *x, int64_t n)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
        ferryi_whole_store(y, t, i, ferryi_whole_unary(fn, t, ferryi_whole_load(x, t, i)));
    }
}

/* ---- BINARY ----------------------------------------------------------------------------------------------------- */

/* A factor of one element or of a plain array needs no division: W, one dimension. */
template <typename I, bool W> __device__ void binary_at(const Dims<I> &d, I i, I *where)
{
    if (W) {
        where[0] = i * d.stride[0][0];
        where[1] = i * d.stride[1][0];
    } else {
        d.template at<2>(i, where);
    }
}

template <typename T, typename I, bool W, int FN>
__global__ void binary(ferry_fn fn, Dims<I> d, T *y, const T *a, const T *b)
{
    for (I i = blockIdx.x * blockDim.x + threadIdx.x; i < d.total; i += gridDim.x * blockDim.x) {
        I where[2];
        binary_at<I, W>(d, i, where);
        y[i] = scalar_binary(pick<FN>(fn), Wide<T>(a[offset_of(where[0])]), Wide<T>(b[offset_of(where[1])]));
    }
}

template <typename T, typename I> __global__ void compare(ferry_fn fn, Dims<I> d, bool *y, const T *a, const T *b)
{
    for (I i = blockIdx.x * blockDim.x + threadIdx.x; i < d.total; i += gridDim.x * blockDim.x) {
        I where[2];
        d.template at<2>(i, where);
        y[i] = scalar_compare(fn, Wide<T>(a[offset_of(where[0])]), Wide<T>(b[offset_of(where[1])]));
    }
}

template <typename T, typename I, bool W, int FN, bool OF_B>
__global__ void binary_grad(ferry_fn fn, Dims<I> d, T *g, const T *dy, const T *a, const T *b)
{
    for (I i = blockIdx.x * blockDim.x + threadIdx.x; i < d.total; i += gridDim.x * blockDim.x) {
        I where[2];
        binary_at<I, W>(d, i, where);
        Wide<T> x = a != nullptr ? Wide<T>(a[offset_of(where[0])]) : 0, y = b != nullptr ? Wide<T>(b[offset_of(where[1])]) : 0;
        Wide<T> out = dy[i];
        g[i] = OF_B ? scalar_db(pick<FN>(fn), out, x, y) : scalar_da(pick<FN>(fn), out, x, y);
    }
}

__global__ void binary_whole(Reporter r, ferry_fn fn, ferry_dtype t, ferry_dtype to, bool is_unsigned, Dims<int64_t> d,
                             void *y, const void *a, const void *b)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < d.total;
         i += int64_t{gridDim.x} * blockDim.x) {
        int64_t where[2], value = 0;
        d.at<2>(i, where);
        int64_t x = ferryi_whole_load(a, t, where[0]), z = ferryi_whole_load(b, t, where[1]);
        bool has = is_unsigned
                       ? ferryi_whole_unsigned_binary(fn, static_cast<uint64_t>(x), static_cast<uint64_t>(z), &value)
                       : ferryi_whole_binary(fn, x, z, &value);
        if (!has) {
            tell(r, FERRYI_FAULT_VALUE, i, x, z, 0);
        }
        ferryi_whole_store(y, to, i, value);
    }
}

template <typename T, typename I, bool W, int FN>
void launch_binary(const ferryi_cuda_call *c, const ferry_kernel *k, const Dims<I> &d)
{
    unsigned blocks = blocks_for(c, d.total, THREADS);
    cudaStream_t s = stream_of(c);
    if (k->op == FERRY_OP_BINARY) {
        binary<T, I, W, FN><<<blocks, THREADS, 0, s>>>(k->fn, d, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2));
    } else if (k->op == FERRY_OP_BINARY_GRAD_A) {
        binary_grad<T, I, W, FN, false>
            <<<blocks, THREADS, 0, s>>>(k->fn, d, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3));
    } else {
        binary_grad<T, I, W, FN, true>
            <<<blocks, THREADS, 0, s>>>(k->fn, d, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3));
    }
}

template <typename T, typename I, bool W>
void launch_binary_fn(const ferryi_cuda_call *c, const ferry_kernel *k, const Dims<I> &d)
{
    switch (k->fn) {
    case FERRY_ADD:
        return launch_binary<T, I, W, FERRY_ADD>(c, k, d);
    case FERRY_SUB:
        return launch_binary<T, I, W, FERRY_SUB>(c, k, d);
    case FERRY_MUL:
        return launch_binary<T, I, W, FERRY_MUL>(c, k, d);
    case FERRY_DIV:
        return launch_binary<T, I, W, FERRY_DIV>(c, k, d);
    default:
        return launch_binary<T, I, W, ANY>(c, k, d);
    }
}

template <typename T, typename I>
void launch_walk(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_walk &w)
{
    Dims<I> d = dims_of<I>(w);
    if (k->op == FERRY_OP_BINARY && k->fn >= FERRY_EQUAL) {
        compare<T, I><<<blocks_for(c, d.total, THREADS), THREADS, 0, stream_of(c)>>>(k->fn, d, out<bool>(k, 0),
                                                                                     in<T>(k, 1), in<T>(k, 2));
    } else if (d.rank == 1 && sizeof(I) == 4) {
        launch_binary_fn<T, I, true>(c, k, d);
    } else {
        launch_binary_fn<T, I, false>(c, k, d);
    }
}

/* ---- DROPOUT ---------------------------------------------------------------------------------------------------- */

/* As on the host: one draw decides four elements. */
template <typename T>
__global__ void dropout(T *y, const T *x, int64_t n, uint64_t least, double scale, uint64_t seed, uint32_t salt,
                        uint32_t step, bool accumulate)
{
    const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int64_t q = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; q < (n + 3) / 4;
         q += int64_t{gridDim.x} * blockDim.x) {
        const uint32_t counter[4] = {static_cast<uint32_t>(q), static_cast<uint32_t>(q >> 32), salt, step};
        uint32_t draw[4];
        ferryi_philox(counter, key, draw);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t i = 4 * q + j;
            if (i < n) {
                Wide<T> value = draw[j] >= least ? static_cast<Wide<T>>(static_cast<double>(x[i]) * scale) : 0;
                y[i] = accumulate ? y[i] + value : value;
            }
        }
    }
}

} // namespace

/* ---- from C ----------------------------------------------------------------------------------------------------- */

#define UNARY_CASE(f)                                                                                                  \
    case f:                                                                                                            \
        FLOATING(k->dtype, unary<T, f><<<blocks, THREADS, 0, stream_of(c)>>>(f, out<T>(k, 0), in<T>(k, 1), k->n));     \
        break
#define UNARY_GRAD_CASE(f)                                                                                             \
    case f:                                                                                                            \
        FLOATING(k->dtype, unary_grad<T, f>                                                                            \
                 <<<blocks, THREADS, 0, stream_of(c)>>>(f, k->accumulate, needs & 1, needs & 2, out<T>(k, 0),          \
                                                        in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), k->n));                 \
        break

int ferryi_cuda_unary(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->n == 0) {
        return 0;
    }
    unsigned blocks = blocks_for(c, k->n, THREADS);
    if (!is_floating(k->dtype)) {
        unary_whole<<<blocks, THREADS, 0, stream_of(c)>>>(k->fn, k->dtype, k->arg[0], k->arg[1], k->n);
        return cudaGetLastError();
    }
    switch (k->fn) {
        UNARY_CASE(FERRY_EXP);
        UNARY_CASE(FERRY_TANH);
        UNARY_CASE(FERRY_ERF);
        UNARY_CASE(FERRY_SIGMOID);
        UNARY_CASE(FERRY_RELU);
        UNARY_CASE(FERRY_SQUARE);
        UNARY_CASE(FERRY_GELU);
        UNARY_CASE(FERRY_GELU_TANH);
        UNARY_CASE(FERRY_SILU);
    default:
        FLOATING(k->dtype, unary<T, ANY><<<blocks, THREADS, 0, stream_of(c)>>>(k->fn, out<T>(k, 0), in<T>(k, 1), k->n));
    }
    return cudaGetLastError();
}

int ferryi_cuda_unary_grad(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->n == 0) {
        return 0;
    }
    unsigned blocks = blocks_for(c, k->n, THREADS);
    int needs = unary_grad_needs_f32(k->fn);
    switch (k->fn) {
        UNARY_GRAD_CASE(FERRY_EXP);
        UNARY_GRAD_CASE(FERRY_TANH);
        UNARY_GRAD_CASE(FERRY_ERF);
        UNARY_GRAD_CASE(FERRY_SIGMOID);
        UNARY_GRAD_CASE(FERRY_RELU);
        UNARY_GRAD_CASE(FERRY_SQUARE);
        UNARY_GRAD_CASE(FERRY_GELU);
        UNARY_GRAD_CASE(FERRY_GELU_TANH);
        UNARY_GRAD_CASE(FERRY_SILU);
    default:
        FLOATING(k->dtype, unary_grad<T, ANY>
                 <<<blocks, THREADS, 0, stream_of(c)>>>(k->fn, k->accumulate, needs & 1, needs & 2, out<T>(k, 0),
                                                        in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), k->n));
    }
    return cudaGetLastError();
}

int ferryi_cuda_binary(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_walk w;
    if (!joined_walk(k, 2, &w)) {
        return 0;
    }
    if (!is_floating(k->dtype)) {
        Dims<int64_t> d = dims_of<int64_t>(w);
        bool is_unsigned = k->dtype == FERRY_U64 && ferryi_whole_differs_unsigned(k->fn);
        binary_whole<<<blocks_for(c, d.total, THREADS), THREADS, 0, stream_of(c)>>>(
            reporter_of(c, k), k->fn, k->dtype, k->fn >= FERRY_EQUAL ? FERRY_BOOL : k->dtype, is_unsigned, d, k->arg[0],
            k->arg[1], k->arg[2]);
    } else if (is_small(w)) {
        FLOATING(k->dtype, launch_walk<T, uint32_t>(c, k, w));
    } else {
        FLOATING(k->dtype, launch_walk<T, int64_t>(c, k, w));
    }
    return cudaGetLastError();
}

int ferryi_cuda_dropout(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->n == 0) {
        return 0;
    }
    uint64_t least = static_cast<uint64_t>(k->alpha * 4294967296.0);
    double scale = k->alpha < 1 ? 1 / (1 - k->alpha) : 0;
    FLOATING(k->dtype, dropout<<<blocks_for(c, k->n, 4 * THREADS), THREADS, 0, stream_of(c)>>>(
                           out<T>(k, 0), in<T>(k, 1), k->n, least, scale, k->seed, static_cast<uint32_t>(k->salt),
                           static_cast<uint32_t>(k->step), k->accumulate));
    return cudaGetLastError();
}
