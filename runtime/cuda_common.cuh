/* cuda_common.cuh - what the kernels share: element types, launch sizes, reports, strided indices and sums over groups of
 * threads.
 *
 * Sums are kept in double and rounded once, as on the host: most kernels wait for memory, and the GPUs that this is for
 * add doubles at half the rate of floats. */
#ifndef FERRY_RUNTIME_CUDA_COMMON_CUH
#define FERRY_RUNTIME_CUDA_COMMON_CUH

#include "runtime/cuda_kernels.h"
#include "runtime/walk.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>

namespace
{

constexpr int THREADS = 256;

/* ---- element types ---------------------------------------------------------------------------------------------- */

/* An element in memory. It has no arithmetic of its own: it widens to float and is rounded, to nearest even, when it is
 * stored. */
struct bf16 {
    uint16_t bits;

    bf16() = default;
    __device__ bf16(float x) : bits(__bfloat16_as_ushort(__float2bfloat16_rn(x))) {}
    __device__ operator float() const
    {
        return __uint_as_float(static_cast<uint32_t>(bits) << 16);
    }
};

/* What is computed with elements of T, and the type of the statistics of T (ferry_ops.def): float for bf16. */
template <typename T> struct WideOf {
    using Type = T;
};
template <> struct WideOf<bf16> {
    using Type = float;
};
template <typename T> using Wide = typename WideOf<T>::Type;

/* As many elements as one access of 16 bytes takes. */
template <typename T> struct alignas(16) Pack {
    static constexpr int N = 16 / static_cast<int>(sizeof(T));
    T at[N];
};

template <typename T> __device__ Pack<T> load_pack(const T *x)
{
    Pack<T> p;
    *reinterpret_cast<uint4 *>(&p) = *reinterpret_cast<const uint4 *>(x);
    return p;
}

template <typename T> __device__ void store_pack(T *x, const Pack<T> &p)
{
    *reinterpret_cast<uint4 *>(x) = *reinterpret_cast<const uint4 *>(&p);
}

inline bool is_packed(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

/* The types that kernels with floating arithmetic exist for. */
inline bool is_floating(ferry_dtype t)
{
    return t == FERRY_F32 || t == FERRY_F64 || t == FERRY_BF16;
}

inline cudaStream_t stream_of(const ferryi_cuda_call *c)
{
    return static_cast<cudaStream_t>(c->stream);
}

/* Blocks for n pieces of work of which each block does `each` at a time: enough to fill the GPU, the rest in loops. */
inline unsigned blocks_for(const ferryi_cuda_call *c, int64_t n, int64_t each)
{
    int64_t blocks = (n + each - 1) / each, most = static_cast<int64_t>(c->processors) * 32;
    return static_cast<unsigned>(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

template <typename T> T *out(const ferry_kernel *k, int i)
{
    return static_cast<T *>(k->arg[i]);
}

template <typename T> const T *in(const ferry_kernel *k, int i)
{
    return static_cast<const T *>(k->arg[i]);
}

/* ---- reports ---------------------------------------------------------------------------------------------------- */

struct Reporter {
    uint32_t *claim;
    ferryi_cuda_report *report;
    int op, fn, dtype;
};

inline Reporter reporter_of(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    return {c->claim, c->report, k->op, k->fn, k->dtype};
}

static __device__ __noinline__ void tell(const Reporter &r, ferryi_cuda_fault fault, int64_t position, int64_t a,
                                         int64_t b, int64_t c)
{
    if (atomicCAS(r.claim, 0u, 1u) != 0) {
        return;
    }
    volatile ferryi_cuda_report *to = r.report;
    to->fault = fault;
    to->op = r.op;
    to->fn = r.fn;
    to->dtype = r.dtype;
    to->position = position;
    to->a = a;
    to->b = b;
    to->c = c;
    __threadfence_system();
    to->ready = 1;
    __threadfence_system();
}

static __device__ int64_t id_at(const void *ids, bool wide, int64_t i)
{
    return wide ? static_cast<const int64_t *>(ids)[i] : static_cast<const int32_t *>(ids)[i];
}

/* The row that ids[i] names, or -1 after telling that there is none. */
static __device__ int64_t row_at(const Reporter &r, const void *ids, bool wide, int64_t i, int64_t rows)
{
    int64_t id = id_at(ids, wide, i);
    if (id < -rows || id >= rows) {
        tell(r, FERRYI_FAULT_ROW, i, id, rows, 0);
        return -1;
    }
    return id < 0 ? id + rows : id;
}

/* ---- strided indices -------------------------------------------------------------------------------------------- */

/* The dimensions of a walk. I: uint32_t where everything fits, which makes the divisions cheap. */
template <typename I> struct Dims {
    int rank;
    I total;
    I dim[FERRY_MAX_RANK];
    I stride[3][FERRY_MAX_RANK];

    /* Where element i of the walk lies in each of N arguments. Strides may be negative: the numbers wrap. */
    template <int N> __device__ void at(I i, I *where) const
    {
#pragma unroll
        for (int a = 0; a < N; a++) {
            where[a] = 0;
        }
#pragma unroll
        for (int d = FERRY_MAX_RANK - 1; d > 0; d--) {
            if (d < rank) {
                I rest = i / dim[d], index = i - rest * dim[d];
                i = rest;
#pragma unroll
                for (int a = 0; a < N; a++) {
                    where[a] += index * stride[a][d];
                }
            }
        }
#pragma unroll
        for (int a = 0; a < N; a++) {
            where[a] += i * stride[a][0];
        }
    }
};

/* An index of a Dims<I> as an offset: back to what was meant where a negative stride made it wrap. */
__device__ inline int64_t offset_of(uint32_t i)
{
    return static_cast<int32_t>(i);
}

__device__ inline int64_t offset_of(int64_t i)
{
    return i;
}

inline int64_t elements_of(const ferryi_walk &w)
{
    int64_t n = 1;
    for (int i = 0; i < w.rank; i++) {
        n *= w.dim[i];
    }
    return n;
}

/* Do all indices and offsets fit into 31 bits? */
inline bool is_small(const ferryi_walk &w)
{
    for (int a = 0; a < 3; a++) {
        int64_t reach = 0;
        for (int i = 0; i < w.rank; i++) {
            reach += (w.dim[i] - 1) * (w.stride[a][i] < 0 ? -w.stride[a][i] : w.stride[a][i]);
        }
        if (reach > INT32_MAX) {
            return false;
        }
    }
    return elements_of(w) <= INT32_MAX - (1 << 24); /* room for the step of a loop */
}

template <typename I> Dims<I> dims_of(const ferryi_walk &w)
{
    Dims<I> d = {};
    d.rank = w.rank;
    d.total = static_cast<I>(elements_of(w));
    for (int i = 0; i < w.rank; i++) {
        d.dim[i] = static_cast<I>(w.dim[i]);
        for (int a = 0; a < 3; a++) {
            d.stride[a][i] = static_cast<I>(w.stride[a][i]);
        }
    }
    return d;
}

/* The call's walk with its unused third stride cleared, joined. False: it has no elements. */
inline bool joined_walk(const ferry_kernel *k, int args, ferryi_walk *w)
{
    *w = ferryi_walk_plain(k);
    if (!w->more) {
        return false;
    }
    for (int a = args; a < 3; a++) {
        memset(w->stride[a], 0, sizeof(w->stride[a]));
    }
    ferryi_walk_join(w);
    return true;
}

/* ---- groups of threads ------------------------------------------------------------------------------------------ */

/* WARPS warps that work on one row: one, eight of which share a block, or a whole block. Sums and extremes are the same
 * for every thread, and in a fixed order. */
template <int WARPS> struct Group {
    static constexpr int SIZE = 32 * WARPS;
    static constexpr int PER_BLOCK = WARPS == 1 ? 8 : 1;
    static constexpr int BLOCK = SIZE * PER_BLOCK;

    static __device__ int rank()
    {
        return WARPS == 1 ? threadIdx.x % 32 : threadIdx.x;
    }
    static __device__ int64_t first()
    {
        return static_cast<int64_t>(blockIdx.x) * PER_BLOCK + (WARPS == 1 ? threadIdx.x / 32 : 0);
    }
    static __device__ int64_t step()
    {
        return static_cast<int64_t>(gridDim.x) * PER_BLOCK;
    }

    template <typename V, typename Join> static __device__ V reduce(V v, Join join)
    {
#pragma unroll
        for (int d = 16; d > 0; d /= 2) {
            v = join(v, __shfl_xor_sync(0xffffffffu, v, d));
        }
        if (WARPS > 1) {
            __shared__ V part[WARPS];
            __syncthreads(); /* the reduction before may still be read */
            if (threadIdx.x % 32 == 0) {
                part[threadIdx.x / 32] = v;
            }
            __syncthreads();
            v = part[0];
            for (int i = 1; i < WARPS; i++) {
                v = join(v, part[i]);
            }
        }
        return v;
    }
    static __device__ double sum(double v)
    {
        return reduce(v, [](double a, double b) { return a + b; });
    }
};

} // namespace

/* The element types of a floating kernel (is_floating): body uses T. */
#define FLOATING(dtype, ...)                                                                                           \
    do {                                                                                                               \
        if ((dtype) == FERRY_F32) {                                                                                    \
            using T = float;                                                                                           \
            __VA_ARGS__;                                                                                               \
        } else if ((dtype) == FERRY_BF16) {                                                                            \
            using T = bf16;                                                                                            \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            using T = double;                                                                                          \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* Rows of n elements: a warp each when they are short, else a block each. */
#define GROUPED(n, ...)                                                                                                \
    do {                                                                                                               \
        if ((n) <= 1024) {                                                                                             \
            using G = Group<1>;                                                                                        \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            using G = Group<16>;                                                                                       \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

#endif
