/* cuda_attention_mma.cu - ATTENTION and its gradient in bf16 by tensor cores, for heads of 64 and 128 elements.
 *
 * A warp has 16 rows of scores, a block of four warps 64. Products are those of mma.m16n8k16: of its operands, lane l
 * holds rows l / 4 and l / 4 + 8 of the left one and of the result, column l / 4 of the right one, and pairs of neighbours
 * from 2 * (l % 4) on in the other direction. The result of one product thus is the left operand of the next without a
 * move: scores become weights in registers. Right operands are read from shared memory, as they lie or transposed
 * (ldmatrix). The gradient of k and v works on transposed scores, so that it has the same form.
 *
 * Scores, weights' sums and results are f32; weights and score gradients are rounded to bf16 for the second product, as
 * in FlashAttention-2. */
#include "runtime/cuda_attention.cuh"

namespace
{

constexpr int WARPS = 4, ROWS = 16 * WARPS, LANES = 32 * WARPS;
constexpr float LOG2E = 1.44269504088896340736f;

/* ---- pieces of products ----------------------------------------------------------------------------------------- */

struct Left {
    uint32_t r[4];
};

__device__ uint32_t shared_address(const bf16 *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ void load_matrices(uint32_t *r, const bf16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}

__device__ void load_transposed(uint32_t *r, const bf16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}

__device__ void multiply(float *c, const Left &a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

__device__ uint32_t pair(float low, float high)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

/* What was begun to load since the last call is one group. */
__device__ void close_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all groups but the last `LEFT`, of all threads. */
template <int LEFT> __device__ void wait_groups()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
    __syncthreads();
}

/* N elements of up to ROWS rows in shared memory; the distance of the rows keeps ldmatrix free of conflicts. */
template <int N> struct Tile {
    static constexpr int STEP = N + 8;

    /* Begins to load rows [first, first + COUNT) of x; those from `end` on are 0. */
    template <int COUNT> static __device__ void load(bf16 *to, const bf16 *x, int64_t step, int64_t first, int64_t end)
    {
#pragma unroll
        for (int e = threadIdx.x; e < COUNT * (N / 8); e += LANES) {
            const int row = e / (N / 8), column = e % (N / 8) * 8;
            const bool in = first + row < end;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                         :
                         : "r"(shared_address(to + row * STEP + column)), "l"(x + (in ? (first + row) * step + column : 0)),
                           "r"(in ? 16 : 0)
                         : "memory");
        }
    }

    /* Columns [16 d, 16 d + 16) of 16 rows as a left operand. */
    static __device__ Left left(const bf16 *rows, int d)
    {
        Left a;
        int lane = threadIdx.x % 32;
        load_matrices(a.r, rows + lane % 16 * STEP + 16 * d + lane / 16 * 8);
        return a;
    }
};

/* sum[j] += left (16 rows, N elements) * rows^T: scores of 8 * COUNT rows of the tile. */
template <int N, int COUNT>
__device__ void multiply_rows(float (*sum)[4], const bf16 *own, const bf16 *rows)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < N / 16; d++) {
        Left a = Tile<N>::left(own, d);
#pragma unroll
        for (int j = 0; j < COUNT; j += 2) {
            uint32_t b[4];
            load_matrices(b, rows + (8 * j + lane / 16 * 8 + lane % 8) * Tile<N>::STEP + 16 * d + lane / 8 % 2 * 8);
            multiply(sum[j], a, b[0], b[1]);
            multiply(sum[j + 1], a, b[2], b[3]);
        }
    }
}

/* sum[j] += weights (16 rows, 8 * COUNT columns) * rows: N elements. */
template <int N, int COUNT> __device__ void multiply_weights(float (*sum)[4], float (*weight)[4], const bf16 *rows)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < COUNT / 2; e++) {
        Left a = {{pair(weight[2 * e][0], weight[2 * e][1]), pair(weight[2 * e][2], weight[2 * e][3]),
                   pair(weight[2 * e + 1][0], weight[2 * e + 1][1]), pair(weight[2 * e + 1][2], weight[2 * e + 1][3])}};
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            uint32_t b[4];
            load_transposed(b, rows + (16 * e + lane / 8 % 2 * 8 + lane % 8) * Tile<N>::STEP + 8 * j + lane / 16 * 8);
            multiply(sum[j], a, b[0], b[1]);
            multiply(sum[j + 1], a, b[2], b[3]);
        }
    }
}

template <int COUNT> __device__ void clear(float (*sum)[4])
{
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0;
    }
}

/* Rows first + lane / 4 and 8 further of a result, times a factor each. */
template <int N>
__device__ void store(bf16 *x, int64_t step, int64_t first, int64_t end, float (*value)[4], float by0, float by1)
{
    int lane = threadIdx.x % 32;
    int64_t i = first + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        int column = 8 * j + lane % 4 * 2;
        if (i < end) {
            *reinterpret_cast<uint32_t *>(x + i * step + column) = pair(value[j][0] * by0, value[j][1] * by0);
        }
        if (i + 8 < end) {
            *reinterpret_cast<uint32_t *>(x + (i + 8) * step + column) = pair(value[j][2] * by1, value[j][3] * by1);
        }
    }
}

__device__ int64_t at(const ferry_attention_shape &a, ferry_attention_part part, int64_t b, int64_t h)
{
    return ferryi_attention_at(&a, part, b, part == FERRY_K || part == FERRY_V ? ferryi_attention_kv(&a, h) : h, 0);
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

template <int N>
__global__ void __launch_bounds__(LANES) attention(const ferry_attention_shape a, Mask mask, Work work, bf16 *y, float *lse,
                                                   const bf16 *q, const bf16 *k, const bf16 *v)
{
    constexpr int COLUMNS = 64, COUNT = COLUMNS / 8;
    extern __shared__ __align__(16) bf16 memory[];
    constexpr int EACH = COLUMNS * Tile<N>::STEP; /* two buffers of keys and of values: one is loaded, one is worked on */
    bf16 *rows = memory, *both = rows + ROWS * Tile<N>::STEP;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int64_t piece = blockIdx.x; piece < work.total; piece += gridDim.x) {
        int64_t b, h, tile, chunk;
        work.find(piece, &b, &h, &tile, &chunk);
        tile = work.tiles - 1 - tile; /* of a causal head the longest first */
        const int64_t first = tile * ROWS, own = first + 16 * warp + lane / 4;
        const int64_t end = ferryi_attention_end(&a, first + ROWS - 1);
        float result[N / 8][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
        clear<N / 8>(result);
        __syncthreads();
        auto load = [&](int64_t j, int buffer) {
            Tile<N>::template load<COLUMNS>(both + 2 * buffer * EACH, k + at(a, FERRY_K, b, h), a.stride[FERRY_K][2], j, a.columns);
            Tile<N>::template load<COLUMNS>(both + (2 * buffer + 1) * EACH, v + at(a, FERRY_V, b, h), a.stride[FERRY_V][2], j,
                                            a.columns);
            close_group();
        };
        Tile<N>::template load<ROWS>(rows, q + at(a, FERRY_Q, b, h), a.stride[FERRY_Q][2], first, a.rows);
        load(0, 0);
        int buffer = 0;
        for (int64_t j0 = 0; j0 < end; j0 += COLUMNS, buffer ^= 1) {
            j0 + COLUMNS < end ? load(j0 + COLUMNS, buffer ^ 1) : close_group();
            wait_groups<1>();
            const bf16 *keys = both + 2 * buffer * EACH, *values = keys + EACH;
            float score[COUNT][4];
            clear<COUNT>(score);
            multiply_rows<N, COUNT>(score, rows + 16 * warp * Tile<N>::STEP, keys);
            const bool plain = mask.at == nullptr && j0 + COLUMNS <= a.columns && first + ROWS <= a.rows &&
                               (!a.causal || j0 + COLUMNS - 1 <= first + a.past);
            const float scale = static_cast<float>(a.scale);
#pragma unroll
            for (int j = 0; j < COUNT; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float s = score[j][e] * scale;
                    score[j][e] = plain ? s
                                        : masked<bf16>(a, mask, b, h, own + e / 2 * 8,
                                                       j0 + 8 * j + lane % 4 * 2 + e % 2, s);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float most = top[r], added = 0;
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; e++) {
                        most = score[j][e] > most || score[j][e] != score[j][e] ? score[j][e] : most; /* NaN wins */
                    }
                }
#pragma unroll
                for (int d = 1; d <= 2; d *= 2) {
                    float other = __shfl_xor_sync(0xffffffffu, most, d);
                    most = other > most || other != other ? other : most;
                }
                const float base = most == -INFINITY ? 0 : most, factor = exp2f((top[r] - base) * LOG2E);
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; e++) {
                        score[j][e] = exp2f((score[j][e] - base) * LOG2E);
                        added += score[j][e];
                    }
                }
                sum[r] = sum[r] * factor + added; /* of this lane's columns; lanes are joined at the end */
                top[r] = most;
#pragma unroll
                for (int j = 0; j < N / 8; j++) {
                    result[j][2 * r] *= factor;
                    result[j][2 * r + 1] *= factor;
                }
            }
            multiply_weights<N, COUNT>(result, score, values);
            __syncthreads();
        }
        wait_groups<0>();
        float by[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int d = 1; d <= 2; d *= 2) {
                sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], d);
            }
            const bool sees = top[r] != -INFINITY;
            const int64_t i = own + 8 * r;
            by[r] = sees ? 1 / sum[r] : 0;
            if (lane % 4 == 0 && i < a.rows) {
                lse[(b * a.heads + h) * a.rows + i] = sees ? top[r] + logf(sum[r]) : INFINITY;
            }
        }
        store<N>(y + at(a, FERRY_Y, b, h), a.stride[FERRY_Y][2], first + 16 * warp, a.rows, result, by[0], by[1]);
    }
}

/* ---- gradient --------------------------------------------------------------------------------------------------- */

/* dot[row] = sum(dy * y), a warp for each row. */
template <int N>
__global__ void row_dots(const ferry_attention_shape a, float *dot, const bf16 *dy, const bf16 *y, int64_t total)
{
    const int lane = threadIdx.x % 32;
    for (int64_t r = blockIdx.x * int64_t{WARPS} + threadIdx.x / 32; r < total; r += int64_t{gridDim.x} * WARPS) {
        const int64_t i = r % a.rows, h = r / a.rows % a.heads, b = r / a.rows / a.heads;
        const int64_t from = ferryi_attention_at(&a, FERRY_Y, b, h, i);
        float sum = 0;
#pragma unroll
        for (int c = 0; c < N / 32; c++) {
            sum += static_cast<float>(dy[from + lane + 32 * c]) * static_cast<float>(y[from + lane + 32 * c]);
        }
#pragma unroll
        for (int d = 16; d > 0; d /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, d);
        }
        if (lane == 0) {
            dot[r] = sum;
        }
    }
}

template <int N>
__global__ void __launch_bounds__(LANES)
    attention_dq(const ferry_attention_shape a, Mask mask, Work work, bf16 *dq, const bf16 *dy, const bf16 *q,
                 const bf16 *k, const bf16 *v, const float *lse, const float *dot)
{
    constexpr int COLUMNS = N == 64 ? 64 : 32, COUNT = COLUMNS / 8;
    extern __shared__ __align__(16) bf16 memory[];
    constexpr int EACH = COLUMNS * Tile<N>::STEP;
    bf16 *rows = memory, *dys = rows + ROWS * Tile<N>::STEP, *both = dys + ROWS * Tile<N>::STEP;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int64_t piece = blockIdx.x; piece < work.total; piece += gridDim.x) {
        int64_t b, h, tile, chunk;
        work.find(piece, &b, &h, &tile, &chunk);
        tile = work.tiles - 1 - tile;
        const int64_t first = tile * ROWS, own = first + 16 * warp + lane / 4;
        const int64_t end = ferryi_attention_end(&a, first + ROWS - 1), of = (b * a.heads + h) * a.rows;
        float result[N / 8][4], l[2], own_dot[2];
        clear<N / 8>(result);
        for (int r = 0; r < 2; r++) {
            const bool in = own + 8 * r < a.rows;
            l[r] = in ? lse[of + own + 8 * r] : INFINITY;
            own_dot[r] = in ? dot[of + own + 8 * r] : 0;
        }
        __syncthreads();
        auto load = [&](int64_t j, int buffer) {
            Tile<N>::template load<COLUMNS>(both + 2 * buffer * EACH, k + at(a, FERRY_K, b, h), a.stride[FERRY_K][2], j, a.columns);
            Tile<N>::template load<COLUMNS>(both + (2 * buffer + 1) * EACH, v + at(a, FERRY_V, b, h), a.stride[FERRY_V][2], j,
                                            a.columns);
            close_group();
        };
        Tile<N>::template load<ROWS>(rows, q + at(a, FERRY_Q, b, h), a.stride[FERRY_Q][2], first, a.rows);
        Tile<N>::template load<ROWS>(dys, dy + at(a, FERRY_Y, b, h), a.stride[FERRY_Y][2], first, a.rows);
        load(0, 0);
        int buffer = 0;
        for (int64_t j0 = 0; j0 < end; j0 += COLUMNS, buffer ^= 1) {
            j0 + COLUMNS < end ? load(j0 + COLUMNS, buffer ^ 1) : close_group();
            wait_groups<1>();
            const bf16 *keys = both + 2 * buffer * EACH, *values = keys + EACH;
            float score[COUNT][4], dp[COUNT][4];
            clear<COUNT>(score);
            clear<COUNT>(dp);
            multiply_rows<N, COUNT>(score, rows + 16 * warp * Tile<N>::STEP, keys);
            multiply_rows<N, COUNT>(dp, dys + 16 * warp * Tile<N>::STEP, values);
            const bool plain = mask.at == nullptr && j0 + COLUMNS <= a.columns && first + ROWS <= a.rows &&
                               (!a.causal || j0 + COLUMNS - 1 <= first + a.past);
            const float scale = static_cast<float>(a.scale);
#pragma unroll
            for (int j = 0; j < COUNT; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float s = score[j][e] * scale;
                    s = plain ? s
                              : masked<bf16>(a, mask, b, h, own + e / 2 * 8, j0 + 8 * j + lane % 4 * 2 + e % 2, s);
                    score[j][e] = exp2f((s - l[e / 2]) * LOG2E) * (dp[j][e] - own_dot[e / 2]);
                }
            }
            multiply_weights<N, COUNT>(result, score, keys);
            __syncthreads();
        }
        wait_groups<0>();
        const float by = static_cast<float>(a.scale);
        store<N>(dq + at(a, FERRY_Q, b, h), a.stride[FERRY_Q][2], first + 16 * warp, a.rows, result, by, by);
    }
}

/* The scores are transposed: the rows of a warp are columns of k and v. */
template <int N>
__global__ void __launch_bounds__(LANES)
    attention_dkv(const ferry_attention_shape a, Mask mask, Work work, bf16 *dk, bf16 *dv, const bf16 *dy, const bf16 *q,
                  const bf16 *k, const bf16 *v, const float *lse, const float *dot)
{
    constexpr int ACROSS = N == 64 ? 64 : 32, COUNT = ACROSS / 8; /* rows of q at a time */
    extern __shared__ __align__(16) bf16 memory[];
    constexpr int EACH = ACROSS * Tile<N>::STEP;
    __shared__ float row_lse[2][ACROSS], row_dot[2][ACROSS];
    bf16 *keys = memory, *values = keys + ROWS * Tile<N>::STEP, *both = values + ROWS * Tile<N>::STEP;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t group = a.heads / a.kv_heads;
    for (int64_t piece = blockIdx.x; piece < work.total; piece += gridDim.x) {
        int64_t b, g, tile, chunk;
        work.find(piece, &b, &g, &tile, &chunk);
        const int64_t first = tile * ROWS, own = first + 16 * warp + lane / 4;
        float to_k[N / 8][4], to_v[N / 8][4];
        clear<N / 8>(to_k);
        clear<N / 8>(to_v);
        __syncthreads();
        Tile<N>::template load<ROWS>(keys, k + at(a, FERRY_K, b, g * group), a.stride[FERRY_K][2], first, a.columns);
        Tile<N>::template load<ROWS>(values, v + at(a, FERRY_V, b, g * group), a.stride[FERRY_V][2], first, a.columns);
        for (int64_t h = g * group; h < (g + 1) * group; h++) {
            const int64_t of = (b * a.heads + h) * a.rows;
            int64_t i0 = a.causal && first > a.past ? (first - a.past) / ACROSS * ACROSS : 0;
            auto load = [&](int64_t i, int buffer) {
                Tile<N>::template load<ACROSS>(both + 2 * buffer * EACH, q + at(a, FERRY_Q, b, h), a.stride[FERRY_Q][2], i,
                                               a.rows);
                Tile<N>::template load<ACROSS>(both + (2 * buffer + 1) * EACH, dy + at(a, FERRY_Y, b, h),
                                               a.stride[FERRY_Y][2], i, a.rows);
                if (threadIdx.x < ACROSS) {
                    const bool in = i + threadIdx.x < a.rows;
                    row_lse[buffer][threadIdx.x] = in ? lse[of + i + threadIdx.x] : INFINITY;
                    row_dot[buffer][threadIdx.x] = in ? dot[of + i + threadIdx.x] : 0;
                }
                close_group();
            };
            int buffer = 0;
            load(i0, 0);
            for (; i0 < a.rows; i0 += ACROSS, buffer ^= 1) {
                i0 + ACROSS < a.rows ? load(i0 + ACROSS, buffer ^ 1) : close_group();
                wait_groups<1>();
                const bf16 *rows = both + 2 * buffer * EACH, *dys = rows + EACH;
                float score[COUNT][4], dp[COUNT][4];
                clear<COUNT>(score);
                clear<COUNT>(dp);
                multiply_rows<N, COUNT>(score, keys + 16 * warp * Tile<N>::STEP, rows);
                multiply_rows<N, COUNT>(dp, values + 16 * warp * Tile<N>::STEP, dys);
                const bool plain = mask.at == nullptr && first + ROWS <= a.columns && i0 + ACROSS <= a.rows &&
                                   (!a.causal || first + ROWS - 1 <= i0 + a.past);
                const float scale = static_cast<float>(a.scale);
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int row = 8 * j + lane % 4 * 2 + e % 2;
                        float s = score[j][e] * scale;
                        s = plain ? s : masked<bf16>(a, mask, b, h, i0 + row, own + e / 2 * 8, s);
                        score[j][e] = exp2f((s - row_lse[buffer][row]) * LOG2E);
                        dp[j][e] = score[j][e] * (dp[j][e] - row_dot[buffer][row]);
                    }
                }
                multiply_weights<N, COUNT>(to_v, score, dys);
                multiply_weights<N, COUNT>(to_k, dp, rows);
                __syncthreads();
            }
            wait_groups<0>();
        }
        const float by = static_cast<float>(a.scale);
        if (dk != nullptr) {
            store<N>(dk + at(a, FERRY_K, b, g * group), a.stride[FERRY_K][2], first + 16 * warp, a.columns, to_k, by, by);
        }
        if (dv != nullptr) {
            store<N>(dv + at(a, FERRY_V, b, g * group), a.stride[FERRY_V][2], first + 16 * warp, a.columns, to_v, 1, 1);
        }
    }
}

/* ---- launching -------------------------------------------------------------------------------------------------- */

/* More shared memory than a kernel gets unasked. */
template <typename Kernel> int allow(Kernel kernel, int bytes)
{
    return bytes <= 48 << 10 ? 0 : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

constexpr int tile_bytes(int n, int rows)
{
    return rows * (n + 8) * static_cast<int>(sizeof(bf16));
}

template <int N> int forward(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    const ferry_attention_shape &a = k->attention;
    const Work w = work_of(a.batch, a.heads, a.rows, ROWS, 1);
    constexpr int bytes = tile_bytes(N, ROWS + 2 * 2 * 64);
    int error = allow(attention<N>, bytes);
    if (error == 0 && w.total > 0) {
        attention<N><<<blocks_of(w), LANES, bytes, stream_of(c)>>>(a, mask_of(k, 5), w, out<bf16>(k, 0), out<float>(k, 1),
                                                                   in<bf16>(k, 2), in<bf16>(k, 3), in<bf16>(k, 4));
    }
    return error != 0 ? error : cudaGetLastError();
}

template <int N> int backward(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    const ferry_attention_shape &a = k->attention;
    const Work by_row = work_of(a.batch, a.heads, a.rows, ROWS, 1),
               by_column = work_of(a.batch, a.kv_heads, a.columns, ROWS, 1);
    constexpr int bytes = tile_bytes(N, 2 * ROWS + 2 * 2 * (N == 64 ? 64 : 32));
    const int64_t total = a.batch * a.heads * a.rows;
    float *dot = static_cast<float *>(c->scratch);
    int error = allow(attention_dq<N>, bytes);
    error = error != 0 ? error : allow(attention_dkv<N>, bytes);
    if (error != 0) {
        return error;
    }
    if (total > 0) {
        row_dots<N><<<blocks_for(c, total, WARPS), LANES, 0, stream_of(c)>>>(a, dot, in<bf16>(k, 3), in<bf16>(k, 7), total);
    }
    if (by_row.total > 0 && k->arg[0] != nullptr) {
        attention_dq<N><<<blocks_of(by_row), LANES, bytes, stream_of(c)>>>(
            a, mask_of(k, 9), by_row, out<bf16>(k, 0), in<bf16>(k, 3), in<bf16>(k, 4), in<bf16>(k, 5), in<bf16>(k, 6),
            in<float>(k, 8), dot);
    }
    if (by_column.total > 0 && (k->arg[1] != nullptr || k->arg[2] != nullptr)) {
        attention_dkv<N><<<blocks_of(by_column), LANES, bytes, stream_of(c)>>>(
            a, mask_of(k, 9), by_column, out<bf16>(k, 1), out<bf16>(k, 2), in<bf16>(k, 3), in<bf16>(k, 4), in<bf16>(k, 5),
            in<bf16>(k, 6), in<float>(k, 8), dot);
    }
    return cudaGetLastError();
}

} // namespace

/* Accesses are of 16 bytes, and the sums of dy * y go into the scratch. */
bool ferryi_cuda_attention_mma_takes(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    const ferry_attention_shape &a = k->attention;
    bool fits = k->dtype == FERRY_BF16 && a.size == a.value_size && (a.size == 64 || a.size == 128) &&
                a.batch * a.heads * a.rows <= c->scratch_bytes / static_cast<int64_t>(sizeof(float));
    for (int p = 0; p < 4; p++) {
        fits = fits && a.offset[p] % 8 == 0;
        for (int i = 0; i < 3; i++) {
            fits = fits && a.stride[p][i] % 8 == 0;
        }
    }
    const int count = k->op == FERRY_OP_ATTENTION ? 5 : 8, statistics = k->op == FERRY_OP_ATTENTION ? 1 : -1;
    for (int i = 0; i < count; i++) {
        fits = fits && (i == statistics || reinterpret_cast<uintptr_t>(k->arg[i]) % 16 == 0);
    }
    return fits;
}

int ferryi_cuda_attention_mma(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    return k->attention.size == 64 ? forward<64>(c, k) : forward<128>(c, k);
}

int ferryi_cuda_attention_mma_grad(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    return k->attention.size == 64 ? backward<64>(c, k) : backward<128>(c, k);
}
