/* cuda_move.cu - kernels that move or convert elements of any type: COPY, WHERE, FILL, CAST; and the copies that cross
 * the link. */
#include "runtime/cuda_common.cuh"
#include "runtime/narrow.h"
#include "runtime/whole.h"

namespace
{

/* ---- COPY and WHERE --------------------------------------------------------------------------------------------- */

template <typename T, typename I> __global__ void copy(Dims<I> d, T *y, const T *x)
{
    for (I i = blockIdx.x * blockDim.x + threadIdx.x; i < d.total; i += gridDim.x * blockDim.x) {
        I where[2];
        d.template at<2>(i, where);
        y[offset_of(where[0])] = x[offset_of(where[1])];
    }
}

template <typename T, typename I> __global__ void copy_scaled(Dims<I> d, T *y, const T *x, Wide<T> alpha, bool accumulate)
{
    for (I i = blockIdx.x * blockDim.x + threadIdx.x; i < d.total; i += gridDim.x * blockDim.x) {
        I where[2];
        d.template at<2>(i, where);
        Wide<T> value = alpha * x[offset_of(where[1])];
        T *to = y + offset_of(where[0]);
        *to = accumulate ? *to + value : value;
    }
}

/* The last two dimensions change places between x and y: each reads along one and writes along the other. Tiles go
 * through shared memory, so that both happen in whole lines. The outer dimensions are blocks. */
constexpr int TILE = 32, TILE_ROWS = 8;

template <typename T>
__global__ void copy_turned(Dims<uint32_t> outer, uint32_t rows, uint32_t columns, int64_t y_column, int64_t x_row,
                            T *y, const T *x)
{
    __shared__ T tile[TILE][TILE + 1];
    uint32_t where[2], across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
    for (uint32_t block = blockIdx.x; block < outer.total * across * down; block += gridDim.x) {
        uint32_t o = block / (across * down), rest = block % (across * down);
        uint32_t row = rest / across * TILE, column = rest % across * TILE;
        outer.at<2>(o, where);
        const T *from = x + offset_of(where[1]);
        T *to = y + offset_of(where[0]);
        __syncthreads();
        for (uint32_t i = threadIdx.y; i < TILE; i += TILE_ROWS) { /* x: columns are neighbours */
            if (row + i < rows && column + threadIdx.x < columns) {
                tile[i][threadIdx.x] = from[(row + i) * x_row + column + threadIdx.x];
            }
        }
        __syncthreads();
        for (uint32_t i = threadIdx.y; i < TILE; i += TILE_ROWS) { /* y: rows are neighbours */
            if (column + i < columns && row + threadIdx.x < rows) {
                to[(column + i) * y_column + row + threadIdx.x] = tile[threadIdx.x][i];
            }
        }
    }
}

/* A walk whose fastest dimension of x is another one than that of y. */
template <typename T> bool launch_turned(const ferryi_cuda_call *c, ferryi_walk w, T *y, const T *x)
{
    int along_x = -1, along_y = -1;
    for (int i = 0; i < w.rank; i++) {
        along_x = w.stride[1][i] == 1 ? i : along_x;
        along_y = w.stride[0][i] == 1 ? i : along_y;
    }
    if (along_x < 0 || along_y < 0 || along_x == along_y || w.dim[along_x] < 8 || w.dim[along_y] < 8) {
        return false;
    }
    int64_t rows = w.dim[along_y], columns = w.dim[along_x];
    int64_t y_column = w.stride[0][along_x], x_row = w.stride[1][along_y];
    w.dim[along_x] = w.dim[along_y] = 1;
    ferryi_walk_join(&w);
    Dims<uint32_t> outer = dims_of<uint32_t>(w);
    int64_t blocks = elements_of(w) * ((rows + TILE - 1) / TILE) * ((columns + TILE - 1) / TILE);
    if (blocks > INT32_MAX) {
        return false;
    }
    copy_turned<T><<<blocks_for(c, blocks, 1), dim3(TILE, TILE_ROWS), 0, stream_of(c)>>>(
        outer, static_cast<uint32_t>(rows), static_cast<uint32_t>(columns), y_column, x_row, y, x);
    return true;
}

template <typename T> void launch_copy(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_walk &w)
{
    T *y = out<T>(k, 0) + k->offset[0];
    const T *x = in<T>(k, 1) + k->offset[1];
    if (is_small(w)) {
        if (!launch_turned<T>(c, w, y, x)) {
            Dims<uint32_t> d = dims_of<uint32_t>(w);
            copy<T><<<blocks_for(c, d.total, THREADS), THREADS, 0, stream_of(c)>>>(d, y, x);
        }
    } else {
        Dims<int64_t> d = dims_of<int64_t>(w);
        copy<T><<<blocks_for(c, d.total, THREADS), THREADS, 0, stream_of(c)>>>(d, y, x);
    }
}

template <typename T> void launch_scaled(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_walk &w)
{
    T *y = out<T>(k, 0) + k->offset[0];
    const T *x = in<T>(k, 1) + k->offset[1];
    Wide<T> alpha = static_cast<Wide<T>>(k->alpha);
    if (is_small(w)) {
        Dims<uint32_t> d = dims_of<uint32_t>(w);
        copy_scaled<T><<<blocks_for(c, d.total, THREADS), THREADS, 0, stream_of(c)>>>(d, y, x, alpha, k->accumulate);
    } else {
        Dims<int64_t> d = dims_of<int64_t>(w);
        copy_scaled<T><<<blocks_for(c, d.total, THREADS), THREADS, 0, stream_of(c)>>>(d, y, x, alpha, k->accumulate);
    }
}

template <typename T, typename I> __global__ void where(Dims<I> d, T *y, const uint8_t *cond, const T *a, const T *b)
{
    for (I i = blockIdx.x * blockDim.x + threadIdx.x; i < d.total; i += gridDim.x * blockDim.x) {
        I at[3];
        d.template at<3>(i, at);
        y[i] = cond[offset_of(at[0])] != 0 ? a[offset_of(at[1])] : b[offset_of(at[2])];
    }
}

template <typename T> void launch_where(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_walk &w)
{
    if (is_small(w)) {
        Dims<uint32_t> d = dims_of<uint32_t>(w);
        where<T><<<blocks_for(c, d.total, THREADS), THREADS, 0, stream_of(c)>>>(d, out<T>(k, 0), in<uint8_t>(k, 1),
                                                                                in<T>(k, 2), in<T>(k, 3));
    } else {
        Dims<int64_t> d = dims_of<int64_t>(w);
        where<T><<<blocks_for(c, d.total, THREADS), THREADS, 0, stream_of(c)>>>(d, out<T>(k, 0), in<uint8_t>(k, 1),
                                                                                in<T>(k, 2), in<T>(k, 3));
    }
}

/* ---- FILL and CAST ---------------------------------------------------------------------------------------------- */

__device__ bool is_real(ferry_dtype t)
{
    return t == FERRY_F32 || t == FERRY_F64 || t == FERRY_F16 || t == FERRY_BF16;
}

__device__ double load_float(const void *x, ferry_dtype t, int64_t i)
{
    switch (t) {
    case FERRY_F32:
        return static_cast<double>(static_cast<const float *>(x)[i]);
    case FERRY_F64:
        return static_cast<const double *>(x)[i];
    case FERRY_F16:
        return ferryi_f16_wide(static_cast<const uint16_t *>(x)[i]);
    default:
        return ferryi_bf16_wide(static_cast<const uint16_t *>(x)[i]);
    }
}

/* Rounded once; whole numbers as whole.h says. */
__device__ void store_float(void *y, ferry_dtype t, int64_t i, double value)
{
    switch (t) {
    case FERRY_F32:
        static_cast<float *>(y)[i] = static_cast<float>(value);
        break;
    case FERRY_F64:
        static_cast<double *>(y)[i] = value;
        break;
    case FERRY_F16:
        static_cast<uint16_t *>(y)[i] = ferryi_narrow(value, 10);
        break;
    case FERRY_BF16:
        static_cast<uint16_t *>(y)[i] = ferryi_narrow(value, 7);
        break;
    case FERRY_BOOL:
        static_cast<uint8_t *>(y)[i] = value != 0;
        break;
    default:
        ferryi_whole_store(y, t, i, static_cast<int64_t>(ferryi_whole_from_float(value, t)));
    }
}

__global__ void cast(void *y, ferry_dtype to, const void *x, ferry_dtype from, int64_t n)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
        if (is_real(from)) {
            store_float(y, to, i, load_float(x, from, i));
            continue;
        }
        int64_t value = ferryi_whole_load(x, from, i);
        value = from == FERRY_BOOL ? value != 0 : value;
        bool is_unsigned = from == FERRY_U64;
        if (to == FERRY_F32) { /* rounded once: not by way of a double */
            static_cast<float *>(y)[i] =
                is_unsigned ? static_cast<float>(static_cast<uint64_t>(value)) : static_cast<float>(value);
        } else if (is_real(to)) {
            store_float(y, to, i,
                        is_unsigned ? static_cast<double>(static_cast<uint64_t>(value)) : static_cast<double>(value));
        } else {
            ferryi_whole_store(y, to, i, to == FERRY_BOOL ? value != 0 : value);
        }
    }
}

__global__ void fill(void *y, ferry_dtype t, double value, int64_t n)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
        store_float(y, t, i, value);
    }
}

/* ---- across the link -------------------------------------------------------------------------------------------- */

constexpr int LINK_BLOCKS = 16, LINK_THREADS = 512, IN_FLIGHT = 4, SLAB_THREADS = 1024;


/* Each thread has a few accesses of 16 bytes under way; blocks read and write whole neighbouring lines. */
__global__ void stream_wide(uint4 *y, const uint4 *x, int64_t n)
{
    int64_t step = int64_t{gridDim.x} * blockDim.x;
    int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
    for (; i + (IN_FLIGHT - 1) * step < n; i += IN_FLIGHT * step) {
        uint4 v[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            v[j] = __ldcs(x + i + j * step);
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            y[i + j * step] = v[j];
        }
    }
    for (; i < n; i += step) {
        y[i] = __ldcs(x + i);
    }
}

/* Rows of `width` units that lie `pitch` units apart in x and close together in y. */
template <typename V> __global__ void stream_rows(V *y, const V *x, int64_t rows, int64_t width, int64_t pitch)
{
    int64_t n = rows * width, step = int64_t{gridDim.x} * blockDim.x;
    int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
    for (; i + (IN_FLIGHT - 1) * step < n; i += IN_FLIGHT * step) {
        V v[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            int64_t at = i + j * step, row = at / width;
            v[j] = __ldcs(x + row * pitch + at - row * width);
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            y[i + j * step] = v[j];
        }
    }
    for (; i < n; i += step) {
        y[i] = __ldcs(x + i / width * pitch + i % width);
    }
}

/* Slab after slab, by the same blocks all the time: between two kernels others would take their places. Each block counts up
 * when its part of a slab is there. */
__global__ void __launch_bounds__(SLAB_THREADS) stream_slabs(const __grid_constant__ ferryi_cuda_slabs s)
{
    const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, step = int64_t{gridDim.x} * blockDim.x;
    for (int k = 0; k < s.count; k++) {
        const ferryi_cuda_slab &slab = s.slab[k];
        const int64_t width = slab.row_bytes / 16, pitch = s.pitch_bytes / 16, n = slab.rows * width;
        const uint4 *x = reinterpret_cast<const uint4 *>(slab.from);
        uint4 *y = reinterpret_cast<uint4 *>(slab.to);
        for (int64_t i = first; i < n; i += IN_FLIGHT * step) {
            uint4 v[IN_FLIGHT];
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                const int64_t at = i + j * step;
                if (at < n) {
                    v[j] = x[slab.rows == 1 ? at : at / width * pitch + at % width];
                }
            }
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                if (i + j * step < n) {
                    y[i + j * step] = v[j];
                }
            }
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(reinterpret_cast<unsigned long long *>(s.arrived + k), 1ull);
        }
    }
}

/* A pack of elements is one access of 16 bytes of T, where addresses and n allow. */
template <typename T, int V> struct alignas(sizeof(T) * V) Elements {
    T at[V];
};

template <typename T, int V> __global__ void stream_add(Elements<T, V> *y, const Elements<T, V> *x, int64_t n)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
        Elements<T, V> to = y[i], from = x[i];
#pragma unroll
        for (int j = 0; j < V; j++) {
            to.at[j] = to.at[j] + from.at[j];
        }
        y[i] = to;
    }
}

template <typename T, int V>
__global__ void sum_parts(Elements<T, V> *y, const Elements<Wide<T>, V> *x, int64_t n, int parts)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
        Elements<Wide<T>, V> sum = x[i];
        for (int p = 1; p < parts; p++) {
            Elements<Wide<T>, V> part = x[p * n + i];
#pragma unroll
            for (int j = 0; j < V; j++) {
                sum.at[j] += part.at[j];
            }
        }
        Elements<T, V> to;
#pragma unroll
        for (int j = 0; j < V; j++) {
            to.at[j] = sum.at[j];
        }
        y[i] = to;
    }
}

template <typename T, int V> void launch_add(cudaStream_t s, void *y, const void *x, int64_t n)
{
    stream_add<T, V><<<LINK_BLOCKS, LINK_THREADS, 0, s>>>(static_cast<Elements<T, V> *>(y),
                                                         static_cast<const Elements<T, V> *>(x), n / V);
}

template <typename T, int V> void launch_parts(cudaStream_t s, void *y, const void *x, int64_t n, int parts)
{
    int64_t blocks = (n / V + THREADS - 1) / THREADS;
    sum_parts<T, V><<<static_cast<unsigned>(blocks < 1024 ? blocks : 1024), THREADS, 0, s>>>(
        static_cast<Elements<T, V> *>(y), static_cast<const Elements<Wide<T>, V> *>(x), n / V, parts);
}

/* May n elements of T at y and of X at x be taken 16 bytes of T at a time? */
template <typename T, typename X> bool in_packs(const void *y, const void *x, int64_t n)
{
    constexpr int V = 16 / sizeof(T);
    return n % V == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0 && reinterpret_cast<uintptr_t>(x) % (V * sizeof(X)) == 0;
}

template <typename T> __global__ void same_rows(T *y, const T *x, int64_t rows, int64_t n, int64_t pitch)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
            y[row * pitch + j] = x[j];
        }
    }
}

} // namespace

/* ---- from C ----------------------------------------------------------------------------------------------------- */

static int element_bytes(ferry_dtype t)
{
    return t == FERRY_F32 ? 4 : t == FERRY_F64 ? 8 : t == FERRY_F16 || t == FERRY_BF16 ? 2 : ferryi_whole_bytes(t);
}

#define BY_SIZE(t, call)                                                                                               \
    do {                                                                                                               \
        switch (element_bytes(t)) {                                                                                    \
        case 1:                                                                                                        \
            call<uint8_t>(c, k, w);                                                                                    \
            break;                                                                                                     \
        case 2:                                                                                                        \
            call<uint16_t>(c, k, w);                                                                                   \
            break;                                                                                                     \
        case 4:                                                                                                        \
            call<uint32_t>(c, k, w);                                                                                   \
            break;                                                                                                     \
        default:                                                                                                       \
            call<uint64_t>(c, k, w);                                                                                   \
        }                                                                                                              \
    } while (0)

int ferryi_cuda_copy_kernel(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_walk w;
    if (!joined_walk(k, 2, &w)) {
        return 0;
    }
    if (k->alpha == 1 && !k->accumulate) {
        BY_SIZE(k->dtype, launch_copy);
    } else {
        FLOATING(k->dtype, launch_scaled<T>(c, k, w));
    }
    return cudaGetLastError();
}

int ferryi_cuda_where(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_walk w;
    if (!joined_walk(k, 3, &w)) {
        return 0;
    }
    BY_SIZE(k->dtype, launch_where);
    return cudaGetLastError();
}

int ferryi_cuda_fill(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->n > 0) {
        fill<<<blocks_for(c, k->n, THREADS), THREADS, 0, stream_of(c)>>>(k->arg[0], k->dtype, k->alpha, k->n);
    }
    return cudaGetLastError();
}

int ferryi_cuda_cast(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->n > 0) {
        cast<<<blocks_for(c, k->n, THREADS), THREADS, 0, stream_of(c)>>>(k->arg[0], k->dtype2, k->arg[1], k->dtype,
                                                                         k->n);
    }
    return cudaGetLastError();
}

int ferryi_cuda_same_rows(void *stream, void *y, const void *x, int64_t rows, int64_t n, int64_t pitch, ferry_dtype t)
{
    const unsigned blocks = rows < 4096 ? static_cast<unsigned>(rows) : 4096;
    if (rows > 0 && n > 0) {
        FLOATING(t, same_rows<<<blocks, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
                        static_cast<T *>(y), static_cast<const T *>(x), rows, n, pitch));
    }
    return cudaGetLastError();
}

int ferryi_cuda_stream_slabs(void *stream, const ferryi_cuda_slabs *s)
{
    stream_slabs<<<FERRYI_SLAB_BLOCKS, SLAB_THREADS, 0, static_cast<cudaStream_t>(stream)>>>(*s);
    return cudaGetLastError();
}

int ferryi_cuda_stream_copy(void *stream, void *y, const void *x, int64_t bytes)
{
    return ferryi_cuda_stream_rows(stream, y, x, 1, bytes, bytes);
}

int ferryi_cuda_stream_rows(void *stream, void *y, const void *x, int64_t rows, int64_t row_bytes, int64_t pitch_bytes)
{
    cudaStream_t s = static_cast<cudaStream_t>(stream);
    uintptr_t low = reinterpret_cast<uintptr_t>(y) | reinterpret_cast<uintptr_t>(x) |
                    static_cast<uintptr_t>(row_bytes) | static_cast<uintptr_t>(pitch_bytes);
    if (rows == 0 || row_bytes == 0) {
        return 0;
    }
    if (low % 16 == 0 && rows == 1) {
        stream_wide<<<LINK_BLOCKS, LINK_THREADS, 0, s>>>(static_cast<uint4 *>(y), static_cast<const uint4 *>(x),
                                                         row_bytes / 16);
    } else if (low % 16 == 0) {
        stream_rows<<<LINK_BLOCKS, LINK_THREADS, 0, s>>>(static_cast<uint4 *>(y), static_cast<const uint4 *>(x), rows,
                                                         row_bytes / 16, pitch_bytes / 16);
    } else if (low % 4 == 0) {
        stream_rows<<<LINK_BLOCKS, LINK_THREADS, 0, s>>>(static_cast<uint32_t *>(y), static_cast<const uint32_t *>(x),
                                                         rows, row_bytes / 4, pitch_bytes / 4);
    } else {
        stream_rows<<<LINK_BLOCKS, LINK_THREADS, 0, s>>>(
            static_cast<unsigned char *>(y), static_cast<const unsigned char *>(x), rows, row_bytes, pitch_bytes);
    }
    return cudaGetLastError();
}

int ferryi_cuda_stream_add(void *stream, void *y, const void *x, int64_t n, ferry_dtype t)
{
    cudaStream_t s = static_cast<cudaStream_t>(stream);
    FLOATING(t, in_packs<T, T>(y, x, n) ? launch_add<T, 16 / sizeof(T)>(s, y, x, n) : launch_add<T, 1>(s, y, x, n));
    return cudaGetLastError();
}

int ferryi_cuda_sum_parts(void *stream, void *y, const void *x, int64_t n, int parts, ferry_dtype t)
{
    cudaStream_t s = static_cast<cudaStream_t>(stream);
    FLOATING(t, in_packs<T, Wide<T>>(y, x, n) ? launch_parts<T, 16 / sizeof(T)>(s, y, x, n, parts)
                                              : launch_parts<T, 1>(s, y, x, n, parts));
    return cudaGetLastError();
}
