/* cuda_rows.cu - kernels in which a group of threads works on one row: SOFTMAX, LAYERNORM, XENT, their gradients, TOPK.
 */
#include "runtime/cuda_common.cuh"
#include "runtime/whole.h"

namespace
{

__device__ float exp_of(float x)
{
    return expf(x);
}
__device__ double exp_of(double x)
{
    return exp(x);
}

/* The largest of n elements that lie `step` apart. */
template <typename T, typename G> __device__ Wide<T> row_max(const T *x, int64_t n, int64_t step)
{
    using W = Wide<T>;
    W top = -static_cast<W>(INFINITY);
    for (int64_t j = G::rank(); j < n; j += G::SIZE) {
        W v = x[j * step];
        top = v > top ? v : top;
    }
    return G::reduce(top, [](W a, W b) { return a > b ? a : b; });
}

/* ---- SOFTMAX ---------------------------------------------------------------------------------------------------- */

template <typename T, typename G> __global__ void softmax(T *y, const T *x, int64_t m, int64_t n)
{
    for (int64_t row = G::first(); row < m; row += G::step()) {
        const T *from = x + row * n;
        T *to = y + row * n;
        Wide<T> top = row_max<T, G>(from, n, 1);
        double sum = 0;
        for (int64_t j = G::rank(); j < n; j += G::SIZE) {
            sum += static_cast<double>(exp_of(Wide<T>(from[j]) - top));
        }
        Wide<T> scale = static_cast<Wide<T>>(1 / G::sum(sum));
        for (int64_t j = G::rank(); j < n; j += G::SIZE) { /* y may be x: a thread writes where only it has read */
            to[j] = exp_of(Wide<T>(from[j]) - top) * scale;
        }
    }
}

template <typename T, typename G> __global__ void softmax_grad(T *dx, const T *dy, const T *y, int64_t m, int64_t n)
{
    for (int64_t row = G::first(); row < m; row += G::step()) {
        double dot = 0;
        for (int64_t j = row * n + G::rank(); j < row * n + n; j += G::SIZE) {
            dot += static_cast<double>(dy[j]) * static_cast<double>(y[j]);
        }
        dot = G::sum(dot);
        for (int64_t j = row * n + G::rank(); j < row * n + n; j += G::SIZE) {
            dx[j] = static_cast<T>(static_cast<double>(y[j]) * (static_cast<double>(dy[j]) - dot));
        }
    }
}

/* ---- LAYERNORM -------------------------------------------------------------------------------------------------- */

template <typename T, typename G>
__global__ void layernorm(T *y, Wide<T> *mean_out, Wide<T> *rstd_out, const T *x, const T *scale, const T *bias, int64_t m,
                          int64_t n, double eps)
{
    for (int64_t row = G::first(); row < m; row += G::step()) {
        const T *from = x + row * n;
        double sum = 0, squares = 0;
        for (int64_t j = G::rank(); j < n; j += G::SIZE) {
            sum += static_cast<double>(from[j]);
        }
        double mean = mean_out != nullptr ? G::sum(sum) / static_cast<double>(n) : 0;
        for (int64_t j = G::rank(); j < n; j += G::SIZE) {
            double d = static_cast<double>(from[j]) - mean;
            squares += d * d;
        }
        double rstd = 1 / sqrt(G::sum(squares) / static_cast<double>(n) + eps);
        for (int64_t j = G::rank(); j < n; j += G::SIZE) {
            double normal = (static_cast<double>(from[j]) - mean) * rstd;
            y[row * n + j] = static_cast<T>(normal * static_cast<double>(scale[j]) +
                                            (bias != nullptr ? static_cast<double>(bias[j]) : 0));
        }
        if (G::rank() == 0) {
            if (mean_out != nullptr) {
                mean_out[row] = static_cast<Wide<T>>(mean);
            }
            rstd_out[row] = static_cast<Wide<T>>(rstd);
        }
    }
}

/* With h = (x - mean) * rstd and g = dy * scale: dx = rstd * (g - mean(g) - h * mean(g * h)). */
template <typename T, typename G>
__global__ void layernorm_dx(T *dx, const T *dy, const T *x, const Wide<T> *mean, const Wide<T> *rstd, const T *scale, int64_t m,
                             int64_t n, bool accumulate)
{
    for (int64_t row = G::first(); row < m; row += G::step()) {
        double center = mean != nullptr ? static_cast<double>(mean[row]) : 0, r = static_cast<double>(rstd[row]), sum_g = 0, sum_gh = 0;
        for (int64_t j = G::rank(); j < n; j += G::SIZE) {
            double g = static_cast<double>(dy[row * n + j]) * static_cast<double>(scale[j]);
            sum_g += g;
            sum_gh += g * ((static_cast<double>(x[row * n + j]) - center) * r);
        }
        double mean_g = mean != nullptr ? G::sum(sum_g) / static_cast<double>(n) : 0, mean_gh = G::sum(sum_gh) / static_cast<double>(n);
        for (int64_t j = G::rank(); j < n; j += G::SIZE) {
            double g = static_cast<double>(dy[row * n + j]) * static_cast<double>(scale[j]);
            double h = (static_cast<double>(x[row * n + j]) - center) * r;
            double value = r * (g - mean_g - h * mean_gh);
            dx[row * n + j] = static_cast<T>(accumulate ? static_cast<double>(dx[row * n + j]) + value : value);
        }
    }
}

/* Classes from which on a block of 512 has enough to do. */
constexpr int64_t LONG_ROW = 4096;

/* ---- XENT ------------------------------------------------------------------------------------------------------- */

struct Labels {
    const void *at;
    bool wide;
    int64_t classes, ignored;

    /* The label of a position, or -1: ignored, or out of range, which is told. */
    __device__ int64_t label(const Reporter &r, int64_t position) const
    {
        int64_t id = id_at(at, wide, position);
        if (id == ignored) {
            return -1;
        }
        if (id < 0 || id >= classes) {
            tell(r, FERRYI_FAULT_LABEL, position, id, classes, ignored);
            return -1;
        }
        return id;
    }
};

Labels labels_of(const ferry_kernel *k)
{
    return {k->arg[4], k->dtype2 == FERRY_I64, k->n, k->ignore_index};
}

/* Positions [from, from + count): their classes are k apart. losses[i] is the loss of position from + i, -1 where it is
 * ignored: no loss is below 0. */
template <typename T, typename G>
__global__ void xent_rows(Reporter r, Labels labels, Wide<T> *lse, const T *logits, double *losses, int64_t from,
                          int64_t count, int64_t n, int64_t k)
{
    for (int64_t i = G::first(); i < count; i += G::step()) {
        int64_t position = from + i;
        const T *x = logits + position / k * n * k + position % k;
        Wide<T> top = row_max<T, G>(x, n, k);
        double sum = 0;
        for (int64_t j = G::rank(); j < n; j += G::SIZE) {
            sum += static_cast<double>(exp_of(Wide<T>(x[j * k]) - top));
        }
        double l = static_cast<double>(top) + log(G::sum(sum));
        if (G::rank() == 0) {
            lse[position] = static_cast<Wide<T>>(l);
            int64_t label = labels.label(r, position);
            double loss = label >= 0 ? l - static_cast<double>(x[label * k]) : -1;
            losses[i] = label >= 0 && loss < 0 ? 0 : loss; /* by rounding only; NaN stays */
        }
    }
}

/* *sum += e^(x - *top), where *top is the largest so far. */
__device__ void add_exp(float x, float *top, float *sum)
{
    if (x > *top) {
        *sum *= expf(*top - x);
        *top = x;
    }
    *sum += x == -INFINITY ? 0 : expf(x - *top);
}

/* The same with classes side by side, in accesses of 16 bytes where a row lets them, in one reading: the sum is kept
 * relative to the largest element so far. */
template <typename T>
__global__ void __launch_bounds__(512)
    xent_rows_packed(Reporter r, Labels labels, Wide<T> *lse, const T *logits, double *losses, int64_t from, int64_t count,
                     int64_t n)
{
    using G = Group<16>;
    using P = Pack<T>;
    for (int64_t i = G::first(); i < count; i += G::step()) {
        const T *x = logits + (from + i) * n;
        const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
        const int64_t head = past == 0 ? 0 : P::N - past < n ? P::N - past : n, packs = (n - head) / P::N;
        float top = -INFINITY, sum = 0;
        for (int64_t j = G::rank(); j < n - packs * P::N; j += G::SIZE) {
            add_exp(static_cast<float>(x[j < head ? j : j + packs * P::N]), &top, &sum);
        }
        for (int64_t j = G::rank(); j < packs; j += G::SIZE) {
            const P p = load_pack(x + head + j * P::N);
            float most = top;
#pragma unroll
            for (int e = 0; e < P::N; e++) {
                most = static_cast<float>(p.at[e]) > most ? static_cast<float>(p.at[e]) : most;
            }
            sum = most > top ? sum * expf(top - most) : sum;
            top = most;
#pragma unroll
            for (int e = 0; e < P::N; e++) {
                add_exp(static_cast<float>(p.at[e]), &top, &sum);
            }
        }
        const float all = G::reduce(top, [](float a, float b) { return a > b ? a : b; });
        const double share = top == -INFINITY ? 1 : exp(static_cast<double>(top) - static_cast<double>(all));
        const double l = static_cast<double>(all) + log(G::sum(static_cast<double>(sum) * share));
        if (G::rank() == 0) {
            lse[from + i] = static_cast<Wide<T>>(l);
            int64_t label = labels.label(r, from + i);
            double loss = label >= 0 ? l - static_cast<double>(x[label]) : -1;
            losses[i] = label >= 0 && loss < 0 ? 0 : loss;
        }
    }
}

/* One block adds the losses to total[0] and their number to total[1], and writes the mean after the last ones. */
template <typename T>
__global__ void xent_sum(double *total, const double *losses, int64_t count, bool first, bool last, T *loss, T *number)
{
    using G = Group<16>;
    double sum = 0, counted = 0;
    for (int64_t i = G::rank(); i < count; i += G::SIZE) {
        bool ignored = losses[i] == -1;
        sum += ignored ? 0 : losses[i];
        counted += ignored ? 0 : 1;
    }
    sum = G::sum(sum);
    counted = G::sum(counted);
    if (G::rank() == 0) {
        sum += first ? 0 : total[0];
        counted += first ? 0 : total[1];
        total[0] = sum;
        total[1] = counted;
        if (last) {
            *loss = static_cast<T>(sum / counted); /* NaN when all are ignored, as a mean of nothing is */
            *number = static_cast<T>(counted);
        }
    }
}

template <typename T> int launch_xent(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    double *total = static_cast<double *>(c->scratch), *losses = total + 2;
    int64_t positions = k->m * k->k, most = c->scratch_bytes / static_cast<int64_t>(sizeof(double)) - 2, from = 0;
    do {
        int64_t count = positions - from < most ? positions - from : most;
        if (count > 0) {
            bool done = false;
            if constexpr (sizeof(T) <= 4) {
                done = k->k == 1 && k->n >= LONG_ROW;
                if (done) {
                    xent_rows_packed<T><<<blocks_for(c, count, 1), Group<16>::BLOCK, 0, stream_of(c)>>>(
                        reporter_of(c, k), labels_of(k), out<Wide<T>>(k, 1), in<T>(k, 3), losses, from, count, k->n);
                }
            }
            if (!done) {
                GROUPED(k->n, xent_rows<T, G><<<blocks_for(c, count, G::PER_BLOCK), G::BLOCK, 0, stream_of(c)>>>(
                                  reporter_of(c, k), labels_of(k), out<Wide<T>>(k, 1), in<T>(k, 3), losses, from, count,
                                  k->n, k->k));
            }
        }
        xent_sum<<<1, Group<16>::BLOCK, 0, stream_of(c)>>>(total, losses, count, from == 0, from + count == positions,
                                                           out<Wide<T>>(k, 0), out<Wide<T>>(k, 2));
        from += count;
    } while (from < positions);
    return cudaGetLastError();
}

template <typename T, typename G>
__global__ void xent_grad(Reporter r, Labels labels, T *dlogits, const T *logits, const Wide<T> *lse, const Wide<T> *count,
                          const Wide<T> *dloss, int64_t positions, int64_t n, int64_t k)
{
    double scale = (dloss != nullptr ? static_cast<double>(*dloss) : 1) / static_cast<double>(*count);
    for (int64_t i = G::first(); i < positions; i += G::step()) {
        int64_t first = i / k * n * k + i % k, label = labels.label(r, i);
        for (int64_t j = G::rank(); j < n; j += G::SIZE) {
            Wide<T> x = logits[first + j * k]; /* dlogits may be logits */
            T *to = dlogits + first + j * k;
            if (label < 0) {
                *to = T{0};
            } else if (j == label) {
                *to = static_cast<T>(scale * (exp(static_cast<double>(x) - static_cast<double>(lse[i])) - 1));
            } else {
                *to = static_cast<Wide<T>>(scale) * exp_of(x - lse[i]);
            }
        }
    }
}

/* As xent_rows_packed. In bf16 and f32; a row that is ignored is cleared. */
template <typename T>
__global__ void __launch_bounds__(512)
    xent_grad_packed(Reporter r, Labels labels, T *dlogits, const T *logits, const Wide<T> *lse, const Wide<T> *count,
                     const Wide<T> *dloss, int64_t positions, int64_t n)
{
    using G = Group<16>;
    using P = Pack<T>;
    const double scale = (dloss != nullptr ? static_cast<double>(*dloss) : 1) / static_cast<double>(*count);
    const float factor = static_cast<float>(scale);
    for (int64_t i = G::first(); i < positions; i += G::step()) {
        const int64_t label = labels.label(r, i);
        const T *x = logits + i * n;
        T *to = dlogits + i * n;
        const float l = static_cast<float>(lse[i]);
        const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
        const int64_t head = past == 0 ? 0 : P::N - past < n ? P::N - past : n, packs = (n - head) / P::N;
        const float at_label = label >= 0 ? static_cast<float>(x[label]) : 0;
        __syncthreads(); /* dlogits may be logits */
        for (int64_t j = G::rank(); j < n - packs * P::N; j += G::SIZE) {
            const int64_t at = j < head ? j : j + packs * P::N;
            to[at] = static_cast<T>(label < 0 ? 0 : factor * expf(static_cast<float>(x[at]) - l));
        }
        for (int64_t j = G::rank(); j < packs; j += G::SIZE) {
            P p = load_pack(x + head + j * P::N);
#pragma unroll
            for (int e = 0; e < P::N; e++) {
                p.at[e] = static_cast<T>(label < 0 ? 0 : factor * expf(static_cast<float>(p.at[e]) - l));
            }
            store_pack(to + head + j * P::N, p);
        }
        __syncthreads();
        if (G::rank() == 0 && label >= 0) {
            to[label] = static_cast<T>(static_cast<float>(scale * (exp(static_cast<double>(at_label) - static_cast<double>(l)) - 1)));
        }
    }
}

template <typename T> void launch_xent_grad_packed(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    xent_grad_packed<T><<<blocks_for(c, k->m, 1), Group<16>::BLOCK, 0, stream_of(c)>>>(
        reporter_of(c, k), labels_of(k), out<T>(k, 0), in<T>(k, 1), in<Wide<T>>(k, 2), in<Wide<T>>(k, 3), in<Wide<T>>(k, 5),
        k->m, k->n);
}

/* ---- TOPK ------------------------------------------------------------------------------------------------------- */

/* An element as something to compare: its place, and whether there is one. */
template <typename V> struct Ranked {
    V value;
    int64_t place; /* -1: none */
};

/* a comes before b. NaN is above all numbers; of equal elements the first one comes first. */
template <typename V> __device__ bool before(bool reverse, const Ranked<V> &a, const Ranked<V> &b)
{
    if (a.place < 0 || b.place < 0) {
        return a.place >= 0;
    }
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan || b_nan) {
        return a_nan && b_nan ? a.place < b.place : reverse ? b_nan : a_nan;
    }
    if (a.value == b.value) {
        return a.place < b.place;
    }
    return reverse ? a.value < b.value : a.value > b.value;
}

struct LoadFloat {
    using Value = double;
    ferry_dtype t;
    __device__ double operator()(const void *x, int64_t i) const
    {
        return t == FERRY_F32    ? static_cast<double>(static_cast<const float *>(x)[i])
               : t == FERRY_BF16 ? static_cast<double>(static_cast<const bf16 *>(x)[i])
                                 : static_cast<const double *>(x)[i];
    }
};

struct LoadWhole {
    using Value = int64_t;
    ferry_dtype t;
    __device__ int64_t operator()(const void *x, int64_t i) const
    {
        return ferryi_whole_load(x, t, i);
    }
};

struct LoadU64 {
    using Value = uint64_t;
    __device__ uint64_t operator()(const void *x, int64_t i) const
    {
        return static_cast<const uint64_t *>(x)[i];
    }
};

/* The next one is the best of those that come after the one before it. */
template <typename Load, typename G>
__global__ void topk(Load load, int64_t *ids, const void *x, int64_t m, int64_t n, int64_t k, bool reverse)
{
    using V = typename Load::Value;
    for (int64_t row = G::first(); row < m; row += G::step()) {
        Ranked<V> last = {V{0}, -1};
        for (int64_t j = 0; j < k; j++) {
            Ranked<V> best = {V{0}, -1};
            for (int64_t i = G::rank(); i < n; i += G::SIZE) {
                Ranked<V> candidate = {load(x, row * n + i), i};
                bool open = j == 0 || before(reverse, last, candidate);
                best = open && before(reverse, candidate, best) ? candidate : best;
            }
#pragma unroll
            for (int d = 16; d > 0; d /= 2) {
                Ranked<V> other = {__shfl_xor_sync(0xffffffffu, best.value, d),
                                   __shfl_xor_sync(0xffffffffu, best.place, d)};
                best = before(reverse, other, best) ? other : best;
            }
            if (G::SIZE > 32) {
                __shared__ Ranked<V> part[32];
                __syncthreads();
                if (threadIdx.x % 32 == 0) {
                    part[threadIdx.x / 32] = best;
                }
                __syncthreads();
                for (int i = 0; i < G::SIZE / 32; i++) {
                    best = before(reverse, part[i], best) ? part[i] : best;
                }
            }
            if (G::rank() == 0) {
                ids[row * k + j] = best.place;
            }
            last = best;
        }
    }
}

} // namespace

/* ---- from C ----------------------------------------------------------------------------------------------------- */

#define ROWS(kernel, rows, ...)                                                                                        \
    FLOATING(k->dtype, GROUPED(k->n, kernel<T, G>                                                                      \
                               <<<blocks_for(c, rows, G::PER_BLOCK), G::BLOCK, 0, stream_of(c)>>>(__VA_ARGS__)))

int ferryi_cuda_softmax(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->m > 0 && k->n > 0) {
        ROWS(softmax, k->m, out<T>(k, 0), in<T>(k, 1), k->m, k->n);
    }
    return cudaGetLastError();
}

int ferryi_cuda_softmax_grad(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->m > 0 && k->n > 0) {
        ROWS(softmax_grad, k->m, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), k->m, k->n);
    }
    return cudaGetLastError();
}

int ferryi_cuda_layernorm(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->m > 0) {
        ROWS(layernorm, k->m, out<T>(k, 0), out<Wide<T>>(k, 1), out<Wide<T>>(k, 2), in<T>(k, 3), in<T>(k, 4), in<T>(k, 5), k->m,
             k->n, k->eps);
    }
    return cudaGetLastError();
}

int ferryi_cuda_layernorm_dx(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->m > 0 && k->n > 0) {
        ROWS(layernorm_dx, k->m, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<Wide<T>>(k, 3), in<Wide<T>>(k, 4), in<T>(k, 5), k->m,
             k->n, k->accumulate);
    }
    return cudaGetLastError();
}

int ferryi_cuda_xent(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    FLOATING(k->dtype, return launch_xent<T>(c, k));
}

int ferryi_cuda_xent_grad(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    bool packed = k->k == 1 && k->n >= LONG_ROW && k->arg[0] != nullptr &&
                  reinterpret_cast<uintptr_t>(k->arg[0]) % 16 == reinterpret_cast<uintptr_t>(k->arg[1]) % 16;
    if (packed && k->m > 0 && k->dtype == FERRY_BF16) {
        launch_xent_grad_packed<bf16>(c, k);
    } else if (packed && k->m > 0 && k->dtype == FERRY_F32) {
        launch_xent_grad_packed<float>(c, k);
    } else if (k->m * k->k > 0 && k->n > 0) {
        ROWS(xent_grad, k->m * k->k, reporter_of(c, k), labels_of(k), out<T>(k, 0), in<T>(k, 1), in<Wide<T>>(k, 2),
             in<Wide<T>>(k, 3), in<Wide<T>>(k, 5), k->m * k->k, k->n, k->k);
    }
    return cudaGetLastError();
}

int ferryi_cuda_topk(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->m == 0 || k->k == 0) {
        return 0;
    }
    cudaStream_t s = stream_of(c);
    if (is_floating(k->dtype)) {
        GROUPED(k->n, topk<LoadFloat, G><<<blocks_for(c, k->m, G::PER_BLOCK), G::BLOCK, 0, s>>>(
                          LoadFloat{k->dtype}, out<int64_t>(k, 0), k->arg[1], k->m, k->n, k->k, k->reverse));
    } else if (k->dtype == FERRY_U64) {
        GROUPED(k->n, topk<LoadU64, G><<<blocks_for(c, k->m, G::PER_BLOCK), G::BLOCK, 0, s>>>(
                          LoadU64{}, out<int64_t>(k, 0), k->arg[1], k->m, k->n, k->k, k->reverse));
    } else {
        GROUPED(k->n, topk<LoadWhole, G><<<blocks_for(c, k->m, G::PER_BLOCK), G::BLOCK, 0, s>>>(
                          LoadWhole{k->dtype}, out<int64_t>(k, 0), k->arg[1], k->m, k->n, k->k, k->reverse));
    }
    return cudaGetLastError();
}
