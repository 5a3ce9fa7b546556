/* cuda_update.cu - sums of squares and AdamW on the GPU, with the bits of the CPU (adam.h).
 *
 * Every operation is one IEEE operation: the _rn functions are never fused. A block of FERRYI_UPDATE_BLOCK elements is
 * summed by one warp: element i goes into sum i mod 8, in order, which eight lanes keep while all 32 load and square. */
#include "runtime/cuda_common.cuh"

extern "C" {
#include "runtime/adam.h"
}

namespace
{

__device__ double join(const double s[8])
{
    return __dadd_rn(__dadd_rn(__dadd_rn(s[0], s[4]), __dadd_rn(s[2], s[6])),
                     __dadd_rn(__dadd_rn(s[1], s[5]), __dadd_rn(s[3], s[7])));
}

template <typename T> __global__ void square_blocks(double *parts, const T *g, int64_t n)
{
    const int lane = static_cast<int>(threadIdx.x);
    const int64_t begin = static_cast<int64_t>(blockIdx.x) * FERRYI_UPDATE_BLOCK;
    const int64_t end = n - begin < FERRYI_UPDATE_BLOCK ? n : begin + FERRYI_UPDATE_BLOCK;
    double sum = 0;
    for (int64_t i = begin; i < end; i += 32) {
        double x = i + lane < end ? static_cast<double>(static_cast<Wide<T>>(g[i + lane])) : 0;
        double square = __dmul_rn(x, x);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            double other = __shfl_sync(0xffffffffu, square, (lane & 7) + 8 * k);
            if (i + (lane & 7) + 8 * k < end) {
                sum = __dadd_rn(sum, other);
            }
        }
    }
    double all[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        all[k] = __shfl_sync(0xffffffffu, sum, k);
    }
    if (lane == 0) {
        parts[blockIdx.x] = join(all);
    }
}

__global__ void add_blocks(double *out, const double *parts, int64_t blocks)
{
    double total = 0;
    for (int64_t i = 0; i < blocks; i++) {
        total = __dadd_rn(total, parts[i]);
    }
    *out = total;
}

struct F32 {
    static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
    static __device__ float sub(float a, float b) { return __fsub_rn(a, b); }
    static __device__ float mul(float a, float b) { return __fmul_rn(a, b); }
    static __device__ float div(float a, float b) { return __fdiv_rn(a, b); }
    static __device__ float root(float a) { return __fsqrt_rn(a); }
};

struct F64 {
    static __device__ double add(double a, double b) { return __dadd_rn(a, b); }
    static __device__ double sub(double a, double b) { return __dsub_rn(a, b); }
    static __device__ double mul(double a, double b) { return __dmul_rn(a, b); }
    static __device__ double div(double a, double b) { return __ddiv_rn(a, b); }
    static __device__ double root(double a) { return __dsqrt_rn(a); }
};

/* G: of the gradient; P: of p, m and v; O: their operations. */
template <typename G, typename P, typename O>
__global__ void adamw(P *p, P *m, P *v, G *rounded, const G *g, const double *scale_at, int64_t n,
                      ferryi_adamw_numbers a)
{
    const P scale = static_cast<P>(scale_at != nullptr ? *scale_at : a.scale), decay = static_cast<P>(a.decay);
    const P weight = static_cast<P>(a.weight), beta2 = static_cast<P>(a.beta2), fresh = static_cast<P>(a.fresh);
    const P root2 = static_cast<P>(a.root2), eps = static_cast<P>(a.eps), size = static_cast<P>(a.size);
    const bool small = weight < static_cast<P>(0.5);
    const P rest = O::sub(1, weight);
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        P gi = O::mul(static_cast<P>(static_cast<Wide<G>>(g[i])), scale), mi = m[i], pi = O::mul(p[i], decay);
        P d = O::sub(gi, mi);
        mi = small ? O::add(mi, O::mul(weight, d)) : O::sub(gi, O::mul(d, rest));
        P vi = O::add(O::mul(v[i], beta2), O::mul(O::mul(fresh, gi), gi));
        m[i] = mi;
        v[i] = vi;
        pi = O::sub(pi, O::div(O::mul(size, mi), O::add(O::div(O::root(vi), root2), eps)));
        p[i] = pi;
        if (rounded != nullptr) {
            rounded[i] = static_cast<G>(pi);
        }
    }
}

template <typename T> void square(cudaStream_t stream, const ferryi_update *u, double *parts, unsigned blocks)
{
    square_blocks<T><<<blocks, 32, 0, stream>>>(parts, static_cast<const T *>(u->g), u->n);
}

template <typename G, typename P, typename O>
void update(cudaStream_t stream, const ferryi_update *u, unsigned blocks, G *rounded)
{
    adamw<G, P, O><<<blocks, THREADS, 0, stream>>>(static_cast<P *>(u->p), static_cast<P *>(u->m),
                                                   static_cast<P *>(u->v), rounded, static_cast<const G *>(u->g),
                                                   u->scale, u->n, u->numbers);
}

} // namespace

int ferryi_cuda_sqnorm_kernel(void *stream, const ferryi_update *u, double *parts)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    int64_t blocks = (u->n + FERRYI_UPDATE_BLOCK - 1) / FERRYI_UPDATE_BLOCK;
    if (blocks > INT32_MAX) {
        return cudaErrorInvalidValue;
    }
    if (blocks > 0) {
        switch (u->t) {
        case FERRY_F32:
            square<float>(on, u, parts, static_cast<unsigned>(blocks));
            break;
        case FERRY_F64:
            square<double>(on, u, parts, static_cast<unsigned>(blocks));
            break;
        case FERRY_BF16:
            square<bf16>(on, u, parts, static_cast<unsigned>(blocks));
            break;
        default:
            return cudaErrorInvalidValue;
        }
    }
    add_blocks<<<1, 1, 0, on>>>(u->out, parts, blocks);
    return cudaGetLastError();
}

int ferryi_cuda_adamw_kernel(void *stream, const ferryi_update *u, int processors)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    int64_t blocks = (u->n + THREADS - 1) / THREADS, most = static_cast<int64_t>(processors) * 32;
    blocks = blocks < most ? blocks : most;
    if (blocks < 1) {
        return cudaSuccess;
    }
    switch (u->t) {
    case FERRY_F32:
        update<float, float, F32>(on, u, static_cast<unsigned>(blocks), static_cast<float *>(nullptr));
        break;
    case FERRY_F64:
        update<double, double, F64>(on, u, static_cast<unsigned>(blocks), static_cast<double *>(nullptr));
        break;
    case FERRY_BF16:
        update<bf16, float, F32>(on, u, static_cast<unsigned>(blocks), static_cast<bf16 *>(u->rounded));
        break;
    default:
        return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
