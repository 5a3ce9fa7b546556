/* cuda_attention.cu - ATTENTION and its gradient for every type and size: tiles of scores in shared memory, products by
 * ordinary arithmetic (no TF32). No score leaves the chip. The method is that of FlashAttention-2 (sections 2.3, 3.1).
 *
 * A block of 16 x 16 threads has a square tile of scores. Thread (x, y) has the rows y * R + 0..R of it and the columns
 * x, x + 16, ..; the threads of one row are half a warp. A head of more elements than a tile has columns is made chunk by
 * chunk, each by a block of its own, which computes the scores again. */
#include "runtime/cuda_attention.cuh"

namespace
{

constexpr int SIDE = 16, DEPTH = 16, BLOCK = SIDE * SIDE;

__device__ float exp_wide(float x)
{
    return expf(x);
}
__device__ double exp_wide(double x)
{
    return exp(x);
}

/* Rows of one head: at[row * step + element]. */
template <typename T> struct Rows {
    T *at;
    int64_t step, count, size;
};

template <typename T>
__device__ Rows<T> rows_of(const ferry_attention_shape &a, ferry_attention_part part, T *x, int64_t b, int64_t h)
{
    bool of_rows = part == FERRY_Q || part == FERRY_Y;
    return {x + ferryi_attention_at(&a, part, b, of_rows ? h : ferryi_attention_kv(&a, h), 0), a.stride[part][2],
            of_rows ? a.rows : a.columns, part == FERRY_V || part == FERRY_Y ? a.value_size : a.size};
}

template <typename T, int TILE> struct Tile {
    using W = Wide<T>;
    static constexpr int R = TILE / SIDE;

    struct Shared {
        W left[TILE][DEPTH + 1], right[TILE][DEPTH + 1];
        W score[TILE][TILE + 1], value[TILE][TILE + 1];
        W lse[TILE], dot[TILE];
    };

    /* sum[r][c] = x[first_x + row] . y[first_y + column] */
    static __device__ void product(Shared *s, const Rows<const T> &x, int64_t first_x, const Rows<const T> &y,
                                   int64_t first_y, W (*sum)[R])
    {
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int c = 0; c < R; c++) {
                sum[r][c] = 0;
            }
        }
        for (int64_t d = 0; d < x.size; d += DEPTH) {
            __syncthreads();
            for (int e = threadIdx.x; e < TILE * DEPTH; e += BLOCK) {
                int row = e / DEPTH, column = e % DEPTH;
                bool in = d + column < x.size;
                int64_t i = first_x + row, j = first_y + row;
                s->left[row][column] = in && i < x.count ? static_cast<W>(x.at[i * x.step + d + column]) : W{0};
                s->right[row][column] = in && j < y.count ? static_cast<W>(y.at[j * y.step + d + column]) : W{0};
            }
            __syncthreads();
#pragma unroll
            for (int e = 0; e < DEPTH; e++) {
                W left[R], right[R];
#pragma unroll
                for (int r = 0; r < R; r++) {
                    left[r] = s->left[threadIdx.x / SIDE * R + r][e];
                    right[r] = s->right[threadIdx.x % SIDE + SIDE * r][e];
                }
#pragma unroll
                for (int r = 0; r < R; r++) {
#pragma unroll
                    for (int c = 0; c < R; c++) {
                        sum[r][c] += left[r] * right[c];
                    }
                }
            }
        }
    }

    /* sum[r][c] += (a tile of factors, given by its elements) * x[first + .., from + ..] */
    static __device__ void add_product(Shared *s, W (*factor)[R], const Rows<const T> &x, int64_t first, int64_t from,
                                       W (*sum)[R])
    {
        __syncthreads();
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int c = 0; c < R; c++) {
                s->score[threadIdx.x / SIDE * R + r][threadIdx.x % SIDE + SIDE * c] = factor[r][c];
            }
        }
        for (int e = threadIdx.x; e < TILE * TILE; e += BLOCK) {
            int64_t i = first + e / TILE, column = from + e % TILE;
            bool in = i < x.count && column < x.size;
            s->value[e / TILE][e % TILE] = in ? static_cast<W>(x.at[i * x.step + column]) : W{0};
        }
        __syncthreads();
#pragma unroll 4
        for (int e = 0; e < TILE; e++) {
            W left[R], right[R];
#pragma unroll
            for (int r = 0; r < R; r++) {
                left[r] = s->score[threadIdx.x / SIDE * R + r][e];
                right[r] = s->value[e][threadIdx.x % SIDE + SIDE * r];
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
#pragma unroll
                for (int c = 0; c < R; c++) {
                    sum[r][c] += left[r] * right[c];
                }
            }
        }
    }

    static __device__ void store(const Rows<T> &y, int64_t first, int64_t from, W (*value)[R])
    {
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int c = 0; c < R; c++) {
                int64_t i = first + threadIdx.x / SIDE * R + r, column = from + threadIdx.x % SIDE + SIDE * c;
                if (i < y.count && column < y.size) {
                    y.at[i * y.step + column] = static_cast<T>(value[r][c]);
                }
            }
        }
    }

    /* lse of rows, and the sums of dy * y: lse, dot of the tile that starts at row `first`. */
    static __device__ void row_statistics(Shared *s, const Rows<const T> &dy, const Rows<const T> &y, const W *lse,
                                          int64_t first)
    {
        constexpr int EACH = BLOCK / TILE; /* threads of one row */
        int row = threadIdx.x / EACH;
        int64_t i = first + row;
        W dot = 0;
        for (int64_t c = threadIdx.x % EACH; i < y.count && c < y.size; c += EACH) {
            dot += static_cast<W>(dy.at[i * dy.step + c]) * static_cast<W>(y.at[i * y.step + c]);
        }
        for (int d = EACH / 2; d > 0; d /= 2) {
            dot += __shfl_xor_sync(0xffffffffu, dot, d);
        }
        __syncthreads();
        if (threadIdx.x % EACH == 0) {
            s->dot[row] = dot;
            s->lse[row] = i < y.count ? lse[i] : static_cast<W>(INFINITY);
        }
        __syncthreads();
    }
};

template <typename W> __device__ W half_warp_max(W v)
{
    for (int d = SIDE / 2; d > 0; d /= 2) {
        W other = __shfl_xor_sync(0xffffffffu, v, d);
        v = other > v || other != other ? other : v; /* NaN wins */
    }
    return v;
}

template <typename W> __device__ W half_warp_sum(W v)
{
    for (int d = SIDE / 2; d > 0; d /= 2) {
        v += __shfl_xor_sync(0xffffffffu, v, d);
    }
    return v;
}

template <typename T, int TILE>
__global__ void __launch_bounds__(BLOCK)
    attention(const ferry_attention_shape a, Mask mask, Work work, T *y, Wide<T> *lse, const T *q, const T *k, const T *v)
{
    using W = Wide<T>;
    using U = Tile<T, TILE>;
    constexpr int R = U::R;
    __shared__ typename U::Shared shared;
    for (int64_t piece = blockIdx.x; piece < work.total; piece += gridDim.x) {
        int64_t b, h, tile, chunk;
        work.find(piece, &b, &h, &tile, &chunk);
        int64_t first = tile * TILE, end = ferryi_attention_end(&a, first + TILE - 1);
        Rows<const T> own = rows_of(a, FERRY_Q, q, b, h), keys = rows_of(a, FERRY_K, k, b, h),
                      values = rows_of(a, FERRY_V, v, b, h);
        W top[R], sum[R], score[R][R], result[R][R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            top[r] = -static_cast<W>(INFINITY);
            sum[r] = 0;
#pragma unroll
            for (int c = 0; c < R; c++) {
                result[r][c] = 0;
            }
        }
        for (int64_t j = 0; j < end; j += TILE) {
            U::product(&shared, own, first, keys, j, score);
#pragma unroll
            for (int r = 0; r < R; r++) {
                W most = top[r], added = 0;
#pragma unroll
                for (int c = 0; c < R; c++) {
                    score[r][c] = masked<T>(a, mask, b, h, first + threadIdx.x / SIDE * R + r,
                                            j + threadIdx.x % SIDE + SIDE * c, score[r][c] * static_cast<W>(a.scale));
                    most = score[r][c] > most || score[r][c] != score[r][c] ? score[r][c] : most;
                }
                most = half_warp_max(most);
                W base = most == -static_cast<W>(INFINITY) ? W{0} : most, factor = exp_wide(top[r] - base);
#pragma unroll
                for (int c = 0; c < R; c++) {
                    score[r][c] = exp_wide(score[r][c] - base);
                    added += score[r][c];
                    result[r][c] *= factor;
                }
                sum[r] = sum[r] * factor + half_warp_sum(added);
                top[r] = most;
            }
            U::add_product(&shared, score, values, j, chunk * TILE, result);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            int64_t i = first + threadIdx.x / SIDE * R + r;
            bool sees = top[r] != -static_cast<W>(INFINITY);
#pragma unroll
            for (int c = 0; c < R; c++) {
                result[r][c] = sees ? result[r][c] / sum[r] : W{0};
            }
            if (chunk == 0 && threadIdx.x % SIDE == 0 && i < a.rows) {
                lse[(b * a.heads + h) * a.rows + i] = sees ? top[r] + log(sum[r]) : static_cast<W>(INFINITY);
            }
        }
        U::store(rows_of(a, FERRY_Y, y, b, h), first, chunk * TILE, result);
    }
}

/* dq of a tile of rows. */
template <typename T, int TILE>
__global__ void __launch_bounds__(BLOCK)
    attention_dq(const ferry_attention_shape a, Mask mask, Work work, T *dq, const T *dy, const T *q, const T *k,
                 const T *v, const T *y, const Wide<T> *lse)
{
    using W = Wide<T>;
    using U = Tile<T, TILE>;
    constexpr int R = U::R;
    __shared__ typename U::Shared shared;
    for (int64_t piece = blockIdx.x; piece < work.total; piece += gridDim.x) {
        int64_t b, h, tile, chunk;
        work.find(piece, &b, &h, &tile, &chunk);
        int64_t first = tile * TILE, end = ferryi_attention_end(&a, first + TILE - 1);
        Rows<const T> rows = rows_of(a, FERRY_Q, q, b, h), keys = rows_of(a, FERRY_K, k, b, h),
                      values = rows_of(a, FERRY_V, v, b, h), dys = rows_of(a, FERRY_Y, dy, b, h);
        U::row_statistics(&shared, dys, rows_of(a, FERRY_Y, y, b, h), lse + (b * a.heads + h) * a.rows, first);
        W score[R][R], dp[R][R], result[R][R] = {};
        for (int64_t j = 0; j < end; j += TILE) {
            U::product(&shared, rows, first, keys, j, score);
            U::product(&shared, dys, first, values, j, dp);
#pragma unroll
            for (int r = 0; r < R; r++) {
                int row = threadIdx.x / SIDE * R + r;
#pragma unroll
                for (int c = 0; c < R; c++) {
                    W s = masked<T>(a, mask, b, h, first + row, j + threadIdx.x % SIDE + SIDE * c,
                                    score[r][c] * static_cast<W>(a.scale));
                    score[r][c] = static_cast<W>(a.scale) * exp_wide(s - shared.lse[row]) * (dp[r][c] - shared.dot[row]);
                }
            }
            U::add_product(&shared, score, keys, j, chunk * TILE, result);
        }
        U::store(rows_of(a, FERRY_Q, dq, b, h), first, chunk * TILE, result);
    }
}

/* dk and dv of a tile of columns, from all heads that share them. The scores are transposed: a row of the tile is a
 * column of k. */
template <typename T, int TILE>
__global__ void __launch_bounds__(BLOCK)
    attention_dkv(const ferry_attention_shape a, Mask mask, Work work, T *dk, T *dv, const T *dy, const T *q, const T *k,
                  const T *v, const T *y, const Wide<T> *lse)
{
    using W = Wide<T>;
    using U = Tile<T, TILE>;
    constexpr int R = U::R;
    __shared__ typename U::Shared shared;
    for (int64_t piece = blockIdx.x; piece < work.total; piece += gridDim.x) {
        int64_t b, g, tile, chunk, group = a.heads / a.kv_heads;
        work.find(piece, &b, &g, &tile, &chunk);
        int64_t first = tile * TILE;
        W score[R][R], dp[R][R], to_k[R][R] = {}, to_v[R][R] = {};
        for (int64_t h = g * group; h < (g + 1) * group; h++) {
            Rows<const T> rows = rows_of(a, FERRY_Q, q, b, h), keys = rows_of(a, FERRY_K, k, b, h),
                          values = rows_of(a, FERRY_V, v, b, h), dys = rows_of(a, FERRY_Y, dy, b, h);
            /* rows before see nothing of these columns */
            int64_t i = a.causal && first > a.past ? (first - a.past) / TILE * TILE : 0;
            for (; i < a.rows; i += TILE) {
                U::row_statistics(&shared, dys, rows_of(a, FERRY_Y, y, b, h), lse + (b * a.heads + h) * a.rows, i);
                U::product(&shared, keys, first, rows, i, score);
                U::product(&shared, values, first, dys, i, dp);
#pragma unroll
                for (int r = 0; r < R; r++) {
#pragma unroll
                    for (int c = 0; c < R; c++) {
                        int row = threadIdx.x % SIDE + SIDE * c;
                        W s = masked<T>(a, mask, b, h, i + row, first + threadIdx.x / SIDE * R + r,
                                        score[r][c] * static_cast<W>(a.scale));
                        score[r][c] = exp_wide(s - shared.lse[row]);
                        dp[r][c] = static_cast<W>(a.scale) * score[r][c] * (dp[r][c] - shared.dot[row]);
                    }
                }
                if (dv != nullptr) {
                    U::add_product(&shared, score, dys, i, chunk * TILE, to_v);
                }
                if (dk != nullptr) {
                    U::add_product(&shared, dp, rows, i, chunk * TILE, to_k);
                }
            }
        }
        int64_t h = g * group;
        if (dk != nullptr) {
            U::store(rows_of(a, FERRY_K, dk, b, h), first, chunk * TILE, to_k);
        }
        if (dv != nullptr) {
            U::store(rows_of(a, FERRY_V, dv, b, h), first, chunk * TILE, to_v);
        }
    }
}

template <typename T> struct TileOf {
    static constexpr int SIZE = sizeof(Wide<T>) == 8 ? 32 : 64;
};

inline int64_t chunks_of(int64_t size, int64_t tile)
{
    return size > tile ? (size + tile - 1) / tile : 1;
}

template <typename T> void launch_forward(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    constexpr int TILE = TileOf<T>::SIZE;
    const ferry_attention_shape &a = k->attention;
    Work w = work_of(a.batch, a.heads, a.rows, TILE, chunks_of(a.value_size, TILE));
    if (w.total > 0) {
        attention<T, TILE><<<blocks_of(w), BLOCK, 0, stream_of(c)>>>(
            a, mask_of(k, 5), w, out<T>(k, 0), out<Wide<T>>(k, 1), in<T>(k, 2), in<T>(k, 3), in<T>(k, 4));
    }
}

template <typename T> void launch_backward(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    constexpr int TILE = TileOf<T>::SIZE;
    const ferry_attention_shape &a = k->attention;
    int64_t largest = a.size > a.value_size ? a.size : a.value_size;
    Work by_row = work_of(a.batch, a.heads, a.rows, TILE, chunks_of(a.size, TILE));
    Work by_column = work_of(a.batch, a.kv_heads, a.columns, TILE, chunks_of(largest, TILE));
    if (by_row.total > 0 && k->arg[0] != nullptr) {
        attention_dq<T, TILE><<<blocks_of(by_row), BLOCK, 0, stream_of(c)>>>(
            a, mask_of(k, 9), by_row, out<T>(k, 0), in<T>(k, 3), in<T>(k, 4), in<T>(k, 5), in<T>(k, 6), in<T>(k, 7),
            in<Wide<T>>(k, 8));
    }
    if (by_column.total > 0 && (k->arg[1] != nullptr || k->arg[2] != nullptr)) {
        attention_dkv<T, TILE><<<blocks_of(by_column), BLOCK, 0, stream_of(c)>>>(
            a, mask_of(k, 9), by_column, out<T>(k, 1), out<T>(k, 2), in<T>(k, 3), in<T>(k, 4), in<T>(k, 5), in<T>(k, 6),
            in<T>(k, 7), in<Wide<T>>(k, 8));
    }
}

} // namespace

/* ---- from C ----------------------------------------------------------------------------------------------------- */

int ferryi_cuda_attention(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (ferryi_cuda_attention_mma_takes(c, k)) {
        return ferryi_cuda_attention_mma(c, k);
    }
    FLOATING(k->dtype, launch_forward<T>(c, k));
    return cudaGetLastError();
}

int ferryi_cuda_attention_grad(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (ferryi_cuda_attention_mma_takes(c, k)) {
        return ferryi_cuda_attention_mma_grad(c, k);
    }
    FLOATING(k->dtype, launch_backward<T>(c, k));
    return cudaGetLastError();
}
