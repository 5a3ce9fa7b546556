/* cuda_packed.cu - the kernels between products that move the most bytes, in accesses of 16 bytes and with float
 * arithmetic, for f32 and bf16: LAYERNORM and its gradients, sums down columns, and element-wise kernels over plain
 * arrays. What does not have the alignment or the size for it goes the general way (cuda_rows.cu, cuda_reduce.cu,
 * cuda_elementwise.cu).
 *
 * A row of a norm stays in the registers of its threads, K packs each: it is read once. */
#include "runtime/cuda_scalar.cuh"

namespace
{

__device__ float add_floats(float a, float b)
{
    return a + b;
}

/* ---- LAYERNORM -------------------------------------------------------------------------------------------------- */

template <typename T, typename G, int K>
__global__ void layernorm(T *y, float *mean_out, float *rstd_out, const T *x, const T *scale, const T *bias, int64_t m,
                          int64_t n, float eps)
{
    using P = Pack<T>;
    for (int64_t row = G::first(); row < m; row += G::step()) {
        float v[K][P::N], sum = 0, squares = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const P p = load_pack(x + row * n + (k * G::SIZE + G::rank()) * P::N);
#pragma unroll
            for (int e = 0; e < P::N; e++) {
                v[k][e] = static_cast<float>(p.at[e]);
                sum += v[k][e];
            }
        }
        const float mean = mean_out != nullptr ? G::reduce(sum, add_floats) / static_cast<float>(n) : 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
#pragma unroll
            for (int e = 0; e < P::N; e++) {
                v[k][e] -= mean;
                squares += v[k][e] * v[k][e];
            }
        }
        const float rstd = 1 / sqrtf(G::reduce(squares, add_floats) / static_cast<float>(n) + eps);
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int64_t j = (k * G::SIZE + G::rank()) * P::N;
            const P by = load_pack(scale + j), plus = bias != nullptr ? load_pack(bias + j) : P{};
            P p;
#pragma unroll
            for (int e = 0; e < P::N; e++) {
                float value = v[k][e] * rstd * static_cast<float>(by.at[e]);
                p.at[e] = static_cast<T>(bias != nullptr ? value + static_cast<float>(plus.at[e]) : value);
            }
            store_pack(y + row * n + j, p);
        }
        if (G::rank() == 0) {
            if (mean_out != nullptr) {
                mean_out[row] = mean;
            }
            rstd_out[row] = rstd;
        }
    }
}

/* With h = (x - mean) * rstd and g = dy * scale: dx = rstd * (g - mean(g) - h * mean(g * h)). */
template <typename T, typename G, int K>
__global__ void layernorm_dx(T *dx, const T *dy, const T *x, const float *mean, const float *rstd, const T *scale,
                             int64_t m, int64_t n, bool accumulate)
{
    using P = Pack<T>;
    for (int64_t row = G::first(); row < m; row += G::step()) {
        const float center = mean != nullptr ? mean[row] : 0, r = rstd[row];
        float g[K][P::N], h[K][P::N], sum_g = 0, sum_gh = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int64_t j = (k * G::SIZE + G::rank()) * P::N;
            const P a = load_pack(dy + row * n + j), b = load_pack(x + row * n + j), by = load_pack(scale + j);
#pragma unroll
            for (int e = 0; e < P::N; e++) {
                g[k][e] = static_cast<float>(a.at[e]) * static_cast<float>(by.at[e]);
                h[k][e] = (static_cast<float>(b.at[e]) - center) * r;
                sum_g += g[k][e];
                sum_gh += g[k][e] * h[k][e];
            }
        }
        const float mean_g = mean != nullptr ? G::reduce(sum_g, add_floats) / static_cast<float>(n) : 0;
        const float mean_gh = G::reduce(sum_gh, add_floats) / static_cast<float>(n);
#pragma unroll
        for (int k = 0; k < K; k++) {
            T *to = dx + row * n + (k * G::SIZE + G::rank()) * P::N;
            P p = accumulate ? load_pack(to) : P{};
#pragma unroll
            for (int e = 0; e < P::N; e++) {
                const float value = r * (g[k][e] - mean_g - h[k][e] * mean_gh);
                p.at[e] = static_cast<T>(accumulate ? static_cast<float>(p.at[e]) + value : value);
            }
            store_pack(to, p);
        }
    }
}

template <typename T, typename G, int K> void launch_norm(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    const unsigned blocks = blocks_for(c, k->m, G::PER_BLOCK);
    if (k->op == FERRY_OP_LAYERNORM) {
        layernorm<T, G, K><<<blocks, G::BLOCK, 0, stream_of(c)>>>(out<T>(k, 0), out<float>(k, 1), out<float>(k, 2),
                                                                  in<T>(k, 3), in<T>(k, 4), in<T>(k, 5), k->m, k->n,
                                                                  static_cast<float>(k->eps));
    } else {
        layernorm_dx<T, G, K><<<blocks, G::BLOCK, 0, stream_of(c)>>>(out<T>(k, 0), in<T>(k, 1), in<T>(k, 2),
                                                                     in<float>(k, 3), in<float>(k, 4), in<T>(k, 5), k->m,
                                                                     k->n, k->accumulate);
    }
}

/* Rows of 1 to 4 packs a thread: of a warp, or of four. */
template <typename T> bool norm(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    constexpr int64_t warp = 32 * Pack<T>::N;
    switch (k->n % warp == 0 ? k->n / warp : 0) {
    case 1:
        return launch_norm<T, Group<1>, 1>(c, k), true;
    case 2:
        return launch_norm<T, Group<1>, 2>(c, k), true;
    case 3:
        return launch_norm<T, Group<1>, 3>(c, k), true;
    case 4:
        return launch_norm<T, Group<1>, 4>(c, k), true;
    case 8:
        return launch_norm<T, Group<4>, 2>(c, k), true;
    case 12:
        return launch_norm<T, Group<4>, 3>(c, k), true;
    case 16:
        return launch_norm<T, Group<4>, 4>(c, k), true;
    default:
        return false;
    }
}

/* ---- sums down columns ------------------------------------------------------------------------------------------ */

constexpr int LINES = 16;

/* Part blockIdx.y of the rows of 32 packs of columns: sums of x, and with dy those of LAYERNORM_DP. */
template <typename T, bool NORM>
__global__ void __launch_bounds__(32 * LINES)
    columns(double *partial, const T *x, const T *dy, const float *mean, const float *rstd, int64_t m, int64_t n, int64_t each)
{
    using P = Pack<T>;
    __shared__ float line[NORM ? 2 : 1][LINES][32 * P::N];
    const int64_t column = (int64_t{blockIdx.x} * 32 + threadIdx.x) * P::N;
    const int64_t first = blockIdx.y * each, end = first + each < m ? first + each : m;
    float sum[P::N] = {}, sum_h[P::N] = {};
    if (column < n) {
#pragma unroll 4
        for (int64_t i = first + threadIdx.y; i < end; i += LINES) {
            const P p = load_pack((NORM ? dy : x) + i * n + column);
            P q = {};
            float center = 0, r = 0;
            if (NORM) {
                q = load_pack(x + i * n + column);
                center = mean != nullptr ? mean[i] : 0;
                r = rstd[i];
            }
#pragma unroll
            for (int e = 0; e < P::N; e++) {
                const float g = static_cast<float>(p.at[e]);
                sum[e] += g;
                if (NORM) {
                    sum_h[e] += g * ((static_cast<float>(q.at[e]) - center) * r);
                }
            }
        }
    }
#pragma unroll
    for (int e = 0; e < P::N; e++) {
        line[0][threadIdx.y][e * 32 + threadIdx.x] = sum[e];
        if (NORM) {
            line[1][threadIdx.y][e * 32 + threadIdx.x] = sum_h[e];
        }
    }
    __syncthreads();
    for (int at = threadIdx.y * 32 + threadIdx.x; at < 32 * P::N; at += 32 * LINES) {
        const int64_t to = (int64_t{blockIdx.x} * 32 + at % 32) * P::N + at / 32;
        for (int s = 0; s < (NORM ? 2 : 1) && to < n; s++) {
            double total = 0;
            for (int l = 0; l < LINES; l++) {
                total += static_cast<double>(line[s][l][at]);
            }
            partial[(s * int64_t{gridDim.y} + blockIdx.y) * n + to] = total;
        }
    }
}

template <typename T>
__global__ void join(T *y, const double *partial, int64_t n, int64_t parts, double divide, bool accumulate)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
        double sum = 0;
#pragma unroll 8
        for (int64_t p = 0; p < parts; p++) {
            sum += partial[p * n + i];
        }
        sum /= divide;
        y[i] = static_cast<T>(static_cast<float>(accumulate ? static_cast<double>(y[i]) + sum : sum));
    }
}

/* Parts of at least 64 rows, about 256 blocks in all; as the bits of a sum they do not depend on the GPU. */
inline int64_t parts_of(int64_t across, int64_t m)
{
    int64_t parts = 256 / across, most = m / 64;
    parts = parts < most ? parts : most;
    return parts < 1 ? 1 : parts;
}

template <typename T, bool NORM>
bool column_sums(const ferryi_cuda_call *c, T *first, T *second, const T *x, const T *dy, const float *mean,
                 const float *rstd, int64_t m, int64_t n, double divide, bool accumulate)
{
    const int64_t across = (n / Pack<T>::N + 31) / 32, parts = parts_of(across, m);
    if (n % Pack<T>::N != 0 || across > 0x7fffffff ||
        (NORM ? 2 : 1) * parts * n > c->scratch_bytes / static_cast<int64_t>(sizeof(double))) {
        return false;
    }
    double *partial = static_cast<double *>(c->scratch);
    columns<T, NORM><<<dim3(static_cast<unsigned>(across), static_cast<unsigned>(parts)), dim3(32, LINES), 0, stream_of(c)>>>(
        partial, x, dy, mean, rstd, m, n, (m + parts - 1) / parts);
    if (second != nullptr) {
        join<T><<<blocks_for(c, n, 64), 64, 0, stream_of(c)>>>(second, partial, n, parts, divide, accumulate);
    }
    join<T><<<blocks_for(c, n, 64), 64, 0, stream_of(c)>>>(first, partial + (NORM ? parts * n : 0), n, parts, divide,
                                                           accumulate);
    return true;
}

/* ---- element by element ----------------------------------------------------------------------------------------- */

template <int FN> struct Unary {
    static __device__ float of(float x, float)
    {
        return unary_f32(static_cast<ferry_fn>(FN), x);
    }
};
template <int FN> struct UnaryGrad { /* of dy and x */
    static __device__ float of(float dy, float x)
    {
        return unary_grad_f32(static_cast<ferry_fn>(FN), dy, x, 0);
    }
};
template <int FN> struct Binary {
    static __device__ float of(float a, float b)
    {
        return binary_f32(static_cast<ferry_fn>(FN), a, b);
    }
};

/* y = op(a, b), b absent where op has one operand. */
template <typename T, typename Op> __global__ void elementwise(T *y, const T *a, const T *b, int64_t n, bool accumulate)
{
    using P = Pack<T>;
    const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = first; i < n / P::N; i += step) {
        const P p = load_pack(a + i * P::N), q = b != nullptr ? load_pack(b + i * P::N) : P{};
        P to = accumulate ? load_pack(y + i * P::N) : P{};
#pragma unroll
        for (int e = 0; e < P::N; e++) {
            const float value = Op::of(static_cast<float>(p.at[e]), static_cast<float>(q.at[e]));
            to.at[e] = static_cast<T>(accumulate ? static_cast<float>(to.at[e]) + value : value);
        }
        store_pack(y + i * P::N, to);
    }
    const int64_t i = n / P::N * P::N + first;
    if (i < n) {
        const float value = Op::of(static_cast<float>(a[i]), b != nullptr ? static_cast<float>(b[i]) : 0);
        y[i] = static_cast<T>(accumulate ? static_cast<float>(y[i]) + value : value);
    }
}

template <typename T, typename Op> bool launch(const ferryi_cuda_call *c, const ferry_kernel *k, int a, int b, int64_t n)
{
    elementwise<T, Op><<<blocks_for(c, n, THREADS * Pack<T>::N), THREADS, 0, stream_of(c)>>>(
        out<T>(k, 0), in<T>(k, a), b >= 0 ? in<T>(k, b) : nullptr, n, k->accumulate);
    return true;
}

template <typename T> bool unary(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    const bool grad = k->op == FERRY_OP_UNARY_GRAD;
#define CASE(f)                                                                                                        \
    case f:                                                                                                            \
        return grad ? launch<T, UnaryGrad<f>>(c, k, 1, 2, k->n) : launch<T, Unary<f>>(c, k, 1, -1, k->n)
    switch (k->fn) { /* whose derivatives need x alone */
        CASE(FERRY_GELU);
        CASE(FERRY_GELU_TANH);
        CASE(FERRY_SILU);
        CASE(FERRY_RELU);
    default:
        return false;
    }
#undef CASE
}

template <typename T> bool binary(const ferryi_cuda_call *c, const ferry_kernel *k, int64_t n)
{
    switch (k->fn) {
    case FERRY_ADD:
        return launch<T, Binary<FERRY_ADD>>(c, k, 1, 2, n);
    case FERRY_MUL:
        return launch<T, Binary<FERRY_MUL>>(c, k, 1, 2, n);
    default:
        return false;
    }
}

/* y += x */
struct Itself {
    static __device__ float of(float x, float)
    {
        return x;
    }
};

/* ---- which is which --------------------------------------------------------------------------------------------- */

/* Two dimensions that a walk steps through as one count as one. */
bool is_plain(const ferry_kernel *k, int args)
{
    bool plain = k->rank == 1;
    for (int a = 0; a < args; a++) {
        plain = plain && k->stride[a][0] == 1;
    }
    return plain;
}

template <typename T> bool run(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    const double one = 1;
    switch (k->op) {
    case FERRY_OP_LAYERNORM:
    case FERRY_OP_LAYERNORM_DX:
        return k->m > 0 && norm<T>(c, k);
    case FERRY_OP_LAYERNORM_DP:
        return k->m > 0 && k->n > 0 && column_sums<T, true>(c, out<T>(k, 0), out<T>(k, 1), in<T>(k, 3), in<T>(k, 2), in<float>(k, 4),
                                                in<float>(k, 5), k->m, k->n, one, k->accumulate);
    case FERRY_OP_REDUCE: {
        const bool sum = k->fn == FERRY_SUM || k->fn == FERRY_MEAN;
        return sum && k->rank == 2 && k->axes == 1 && k->dim[0] > 1 && k->dim[1] > 1 &&
               column_sums<T, false>(c, out<T>(k, 0), nullptr, in<T>(k, 1), nullptr, nullptr, nullptr, k->dim[0], k->dim[1],
                                     k->fn == FERRY_MEAN ? static_cast<double>(k->dim[0]) : one, k->accumulate);
    }
    case FERRY_OP_UNARY:
    case FERRY_OP_UNARY_GRAD:
        return k->n > 0 && unary<T>(c, k);
    case FERRY_OP_BINARY:
        return is_plain(k, 2) && k->dim[0] > 0 && binary<T>(c, k, k->dim[0]);
    case FERRY_OP_COPY:
        return k->accumulate && k->alpha == 1 && is_plain(k, 2) && k->offset[0] == 0 && k->offset[1] == 0 &&
               k->dim[0] > 0 && launch<T, Itself>(c, k, 1, -1, k->dim[0]);
    default:
        return false;
    }
}

} // namespace

/* Statistics and what is written alone are read and written element by element; all else must be aligned. */
bool ferryi_cuda_packed(const ferryi_cuda_call *c, const ferry_kernel *k, int *error)
{
    const ferry_op_info *info = ferry_op_get(k->op);
    *error = 0;
    if (k->dtype != FERRY_F32 && k->dtype != FERRY_BF16) {
        return false;
    }
    for (int i = 0; i < info->n_out + info->n_in; i++) {
        if (!is_packed(k->arg[i]) && !(k->op == FERRY_OP_LAYERNORM && (i == 1 || i == 2))) {
            return false;
        }
    }
    const bool done = k->dtype == FERRY_F32 ? run<float>(c, k) : run<bf16>(c, k);
    *error = done ? static_cast<int>(cudaGetLastError()) : 0;
    return done;
}
