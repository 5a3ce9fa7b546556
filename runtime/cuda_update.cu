/* cuda_update.cu - sums of squares and AdamW on the GPU, with the bits of the CPU (adam.h).
 *
 * Every operation is one IEEE operation: the _rn functions are never fused. A warp sums a block
 * of squares, each lane two of its sums. */
#include "runtime/cuda_common.cuh"

extern "C" {
#include "runtime/adam.h"
}

namespace
{

enum { WARPS = 8, SUMS = FERRYI_SQUARE_SUMS, PER_LANE = SUMS / 32 };
static_assert(PER_LANE == 2, "a lane keeps two neighbouring sums");

/* The upper half of the sums is added to the lower one until one is left, in lane 0. */
__device__ double join(double even, double odd)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
        even = __dadd_rn(even, __shfl_down_sync(0xffffffffu, even, half));
        odd = __dadd_rn(odd, __shfl_down_sync(0xffffffffu, odd, half));
    }
    return __dadd_rn(even, odd);
}

template <typename T> __device__ double square_of(T g)
{
    const double x = static_cast<double>(static_cast<Wide<T>>(g));
    return __dmul_rn(x, x);
}

/* A warp a block. A zero beyond the end changes no sum of squares. */
template <typename T> __global__ void square_blocks(double *parts, const T *g, int64_t n, int64_t blocks)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t block = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (block >= blocks) {
        return;
    }
    const int64_t begin = block * FERRYI_SQUARE_BLOCK;
    const int64_t end = n - begin < FERRYI_SQUARE_BLOCK ? n : begin + FERRYI_SQUARE_BLOCK;
    double even = 0, odd = 0;
    if (end - begin == FERRYI_SQUARE_BLOCK) {
        const T *from = g + begin + PER_LANE * lane;
#pragma unroll 16
        for (int i = 0; i < FERRYI_SQUARE_BLOCK; i += SUMS) {
            even = __dadd_rn(even, square_of(from[i]));
            odd = __dadd_rn(odd, square_of(from[i + 1]));
        }
    } else {
        for (int64_t i = begin + PER_LANE * lane; i < end; i += SUMS) {
            even = __dadd_rn(even, square_of(g[i]));
            odd = __dadd_rn(odd, i + 1 < end ? square_of(g[i + 1]) : 0);
        }
    }
    double sum = join(even, odd);
    if (lane == 0) {
        parts[block] = sum;
    }
}

/* One warp. */
__global__ void add_blocks(double *out, const double *parts, int64_t blocks)
{
    const int lane = static_cast<int>(threadIdx.x);
    double even = 0, odd = 0;
#pragma unroll 8
    for (int64_t i = PER_LANE * lane; i < blocks; i += SUMS) {
        even = __dadd_rn(even, parts[i]);
        odd = __dadd_rn(odd, i + 1 < blocks ? parts[i + 1] : 0);
    }
    double sum = join(even, odd);
    if (lane == 0) {
        *out = sum;
    }
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

template <typename T> void square(cudaStream_t stream, const ferryi_update *u, double *parts, int64_t blocks)
{
    const unsigned grid = static_cast<unsigned>((blocks + WARPS - 1) / WARPS);
    square_blocks<T><<<grid, 32 * WARPS, 0, stream>>>(parts, static_cast<const T *>(u->g), u->n, blocks);
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
    int64_t blocks = (u->n + FERRYI_SQUARE_BLOCK - 1) / FERRYI_SQUARE_BLOCK;
    if (blocks > INT32_MAX) {
        return cudaErrorInvalidValue;
    }
    if (blocks > 0) {
        switch (u->t) {
        case FERRY_F32:
            square<float>(on, u, parts, blocks);
            break;
        case FERRY_F64:
            square<double>(on, u, parts, blocks);
            break;
        case FERRY_BF16:
            square<bf16>(on, u, parts, blocks);
            break;
        default:
            return cudaErrorInvalidValue;
        }
    }
    add_blocks<<<1, 32, 0, on>>>(u->out, parts, blocks);
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
