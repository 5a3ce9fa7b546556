/* cuda_window.cu - convolutions, poolings and BATCHNORM, each output by one thread, sums in double.
 *
 * Gradients are gathered, not scattered: an input element looks for the windows that it is in. */
#include "runtime/cuda_common.cuh"
#include "runtime/window.h"

namespace
{

/* Place `i` of a product of three dimensions. */
__device__ void split(const ferryi_window3 &w, int64_t i, int64_t ferryi_axis::*size, int64_t *at)
{
    at[2] = i % (w.axis[2].*size);
    i /= w.axis[2].*size;
    at[1] = i % (w.axis[1].*size);
    at[0] = i / (w.axis[1].*size);
}

/* Calls body(tap, place in x) for the taps of output position o[] that lie in the input. */
template <typename Body> __device__ void each_tap(const ferryi_window3 &w, const int64_t *o, Body body)
{
    int64_t from[3], to[3];
    for (int a = 0; a < 3; a++) {
        ferryi_window_taps(&w.axis[a], o[a], 0, w.axis[a].in, &from[a], &to[a]);
    }
    for (int64_t t0 = from[0]; t0 < to[0]; t0++) {
        int64_t at0 = ferryi_window_at(&w.axis[0], o[0], t0);
        for (int64_t t1 = from[1]; t1 < to[1]; t1++) {
            int64_t at1 = at0 * w.axis[1].in + ferryi_window_at(&w.axis[1], o[1], t1);
            for (int64_t t2 = from[2]; t2 < to[2]; t2++) {
                body((t0 * w.axis[1].size + t1) * w.axis[2].size + t2,
                     at1 * w.axis[2].in + ferryi_window_at(&w.axis[2], o[2], t2));
            }
        }
    }
}

/* The output position that sees input position `at` by tap t; false: there is none. */
__device__ bool seen_from(const ferryi_axis &a, int64_t at, int64_t t, int64_t *o)
{
    int64_t distance = at + a.pad - t * a.dilation;
    *o = distance / a.step;
    return distance >= 0 && *o * a.step == distance && *o < a.out;
}

/* Calls body(tap, output place, o[]) for the windows that input position at[] is in. */
template <typename Body> __device__ void each_window(const ferryi_window3 &w, const int64_t *at, Body body)
{
    int64_t o[3];
    for (int64_t t0 = 0; t0 < w.axis[0].size; t0++) {
        if (!seen_from(w.axis[0], at[0], t0, &o[0])) {
            continue;
        }
        for (int64_t t1 = 0; t1 < w.axis[1].size; t1++) {
            if (!seen_from(w.axis[1], at[1], t1, &o[1])) {
                continue;
            }
            for (int64_t t2 = 0; t2 < w.axis[2].size; t2++) {
                if (seen_from(w.axis[2], at[2], t2, &o[2])) {
                    body((t0 * w.axis[1].size + t1) * w.axis[2].size + t2,
                         (o[0] * w.axis[1].out + o[1]) * w.axis[2].out + o[2], o);
                }
            }
        }
    }
}

#define EACH(i, n)                                                                                                     \
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < (n); i += int64_t{gridDim.x} * blockDim.x)

/* ---- CONV ------------------------------------------------------------------------------------------------------- */

template <typename T>
__global__ void conv(ferryi_window3 w, T *y, const T *x, const T *weight, const T *b, int64_t m, int64_t k, int64_t n,
                     int64_t groups)
{
    int64_t kg = k / groups, ng = n / groups;
    EACH(i, m * n * w.n_out)
    {
        int64_t o[3], channel = i / w.n_out % n, image = i / w.n_out / n;
        split(w, i % w.n_out, &ferryi_axis::out, o);
        double sum = b != nullptr ? static_cast<double>(b[channel]) : 0;
        for (int64_t q = 0; q < kg; q++) {
            const T *plane = x + (image * k + channel / ng * kg + q) * w.n_in;
            const T *taps = weight + (channel * kg + q) * w.n_size;
            each_tap(w, o, [&](int64_t t, int64_t at) {
                sum += static_cast<double>(plane[at]) * static_cast<double>(taps[t]);
            });
        }
        y[i] = static_cast<T>(sum);
    }
}

template <typename T>
__global__ void conv_dx(ferryi_window3 w, T *dx, const T *dy, const T *weight, const T *b, int64_t m, int64_t k,
                        int64_t n, int64_t groups, bool accumulate)
{
    int64_t kg = k / groups, ng = n / groups;
    EACH(i, m * k * w.n_in)
    {
        int64_t at[3], channel = i / w.n_in % k, image = i / w.n_in / k, group = channel / kg;
        split(w, i % w.n_in, &ferryi_axis::in, at);
        double sum =
            (accumulate ? static_cast<double>(dx[i]) : 0) + (b != nullptr ? static_cast<double>(b[channel]) : 0);
        each_window(w, at, [&](int64_t t, int64_t place, const int64_t *) {
            for (int64_t q = group * ng; q < (group + 1) * ng; q++) {
                sum += static_cast<double>(dy[(image * n + q) * w.n_out + place]) *
                       static_cast<double>(weight[(q * kg + channel % kg) * w.n_size + t]);
            }
        });
        dx[i] = static_cast<T>(sum);
    }
}

/* A block a weight: its threads share the images and positions. */
template <typename T>
__global__ void conv_dw(ferryi_window3 w, T *dw, const T *x, const T *dy, int64_t m, int64_t k, int64_t n,
                        int64_t groups, bool accumulate)
{
    using G = Group<8>;
    int64_t kg = k / groups, ng = n / groups;
    for (int64_t i = G::first(); i < n * kg * w.n_size; i += G::step()) {
        int64_t t[3], row = i / w.n_size, channel = row / kg, from = channel / ng * kg + row % kg;
        split(w, i % w.n_size, &ferryi_axis::size, t);
        double sum = 0;
        for (int64_t p = G::rank(); p < m * w.n_out; p += G::SIZE) {
            int64_t o[3], image = p / w.n_out, at = 0;
            split(w, p % w.n_out, &ferryi_axis::out, o);
            bool inside = true;
            for (int a = 0; a < 3; a++) {
                int64_t place = ferryi_window_at(&w.axis[a], o[a], t[a]);
                inside = inside && place >= 0 && place < w.axis[a].in;
                at = at * w.axis[a].in + place;
            }
            if (inside) {
                sum += static_cast<double>(x[(image * k + from) * w.n_in + at]) *
                       static_cast<double>(dy[(image * n + channel) * w.n_out + p % w.n_out]);
            }
        }
        sum = G::sum(sum);
        if (G::rank() == 0) {
            dw[i] = static_cast<T>(accumulate ? static_cast<double>(dw[i]) + sum : sum);
        }
    }
}

/* ---- poolings --------------------------------------------------------------------------------------------------- */

template <typename T> __global__ void maxpool(ferryi_window3 w, T *y, int64_t *index, const T *x, int64_t m)
{
    EACH(i, m * w.n_out)
    {
        int64_t o[3], plane = i / w.n_out, best_at = -1;
        split(w, i % w.n_out, &ferryi_axis::out, o);
        Wide<T> best = -static_cast<Wide<T>>(INFINITY);
        each_tap(w, o, [&](int64_t, int64_t at) {
            Wide<T> v = x[plane * w.n_in + at];
            if (best_at < 0 || v > best || v != v) {
                best = v;
                best_at = at;
            }
        });
        y[i] = best;
        if (index != nullptr) {
            index[i] = best_at < 0 ? -1 : plane * w.n_in + best_at;
        }
    }
}

__global__ void check_places(Reporter r, const int64_t *index, int64_t n, int64_t total)
{
    EACH(i, n)
    {
        if (index[i] >= total) {
            tell(r, FERRYI_FAULT_PLACE, i, index[i], total, 0);
        }
    }
}

template <typename T>
__global__ void maxpool_grad(ferryi_window3 w, T *dx, const T *dy, const int64_t *index, int64_t m, bool accumulate)
{
    EACH(i, m * w.n_in)
    {
        int64_t at[3], plane = i / w.n_in;
        split(w, i % w.n_in, &ferryi_axis::in, at);
        Wide<T> sum = accumulate ? Wide<T>(dx[i]) : 0;
        each_window(w, at, [&](int64_t, int64_t place, const int64_t *) {
            sum += index[plane * w.n_out + place] == i ? Wide<T>(dy[plane * w.n_out + place]) : 0;
        });
        dx[i] = sum;
    }
}

__device__ double pool_weight(const ferryi_window3 &w, bool mean, bool count_pad, const int64_t *o)
{
    int64_t count = 1;
    for (int a = 0; a < 3 && mean; a++) {
        count *= ferryi_window_count(&w.axis[a], o[a], count_pad);
    }
    return count > 0 ? 1 / static_cast<double>(count) : 0;
}

template <typename T> __global__ void avgpool(ferryi_window3 w, T *y, const T *x, int64_t m, bool mean, bool count_pad)
{
    EACH(i, m * w.n_out)
    {
        int64_t o[3], plane = i / w.n_out;
        split(w, i % w.n_out, &ferryi_axis::out, o);
        double sum = 0;
        each_tap(w, o, [&](int64_t, int64_t at) { sum += static_cast<double>(x[plane * w.n_in + at]); });
        y[i] = static_cast<T>(sum * pool_weight(w, mean, count_pad, o));
    }
}

template <typename T>
__global__ void avgpool_grad(ferryi_window3 w, T *dx, const T *dy, int64_t m, bool mean, bool count_pad,
                             bool accumulate)
{
    EACH(i, m * w.n_in)
    {
        int64_t at[3], plane = i / w.n_in;
        split(w, i % w.n_in, &ferryi_axis::in, at);
        Wide<T> sum = accumulate ? Wide<T>(dx[i]) : 0;
        each_window(w, at, [&](int64_t, int64_t place, const int64_t *o) {
            sum +=
                static_cast<Wide<T>>(static_cast<double>(dy[plane * w.n_out + place]) * pool_weight(w, mean, count_pad, o));
        });
        dx[i] = sum;
    }
}

/* ---- BATCHNORM -------------------------------------------------------------------------------------------------- */

/* 1 / sqrt(var + eps) of channel c; 1 when there are no statistics. */
template <typename T> __device__ double channel_rstd(const T *var, int64_t c, double eps)
{
    return var != nullptr ? 1 / sqrt(static_cast<double>(var[c]) + eps) : 1;
}

template <typename T>
__global__ void batchnorm(T *y, const T *x, const T *scale, const T *bias, const T *mean, const T *var, int64_t m,
                          int64_t n, int64_t k, double eps)
{
    EACH(i, m * n * k)
    {
        int64_t c = i / k % n;
        double center = mean != nullptr ? static_cast<double>(mean[c]) : 0;
        y[i] = static_cast<T>((static_cast<double>(x[i]) - center) * channel_rstd(var, c, eps) *
                                  static_cast<double>(scale[c]) +
                              static_cast<double>(bias[c]));
    }
}

template <typename T>
__global__ void batchnorm_dx(T *dx, const T *dy, const T *scale, const T *var, int64_t m, int64_t n, int64_t k,
                             double eps)
{
    EACH(i, m * n * k)
    {
        int64_t c = i / k % n;
        dx[i] =
            static_cast<T>(static_cast<double>(dy[i]) * (channel_rstd(var, c, eps) * static_cast<double>(scale[c])));
    }
}

template <typename T>
__global__ void batchnorm_dp(T *dscale, T *dbias, const T *dy, const T *x, const T *mean, const T *var, int64_t m,
                             int64_t n, int64_t k, double eps, bool accumulate)
{
    using G = Group<16>;
    for (int64_t c = G::first(); c < n; c += G::step()) {
        double sum = 0, sum_x = 0, rstd = channel_rstd(var, c, eps);
        double center = mean != nullptr ? static_cast<double>(mean[c]) : 0;
        for (int64_t j = G::rank(); j < m * k; j += G::SIZE) {
            int64_t i = (j / k * n + c) * k + j % k;
            sum += static_cast<double>(dy[i]);
            sum_x += static_cast<double>(dy[i]) * ((static_cast<double>(x[i]) - center) * rstd);
        }
        sum = G::sum(sum);
        sum_x = G::sum(sum_x);
        if (G::rank() == 0) {
            dscale[c] = static_cast<T>(accumulate ? static_cast<double>(dscale[c]) + sum_x : sum_x);
            if (dbias != nullptr) {
                dbias[c] = static_cast<T>(accumulate ? static_cast<double>(dbias[c]) + sum : sum);
            }
        }
    }
}

/* Mean and variance of the population, one channel a group: the second pass reads what the caches still have. */
template <typename T> __global__ void batch_stats(T *mean, T *var, const T *x, int64_t m, int64_t n, int64_t k)
{
    using G = Group<16>;
    double count = static_cast<double>(m) * static_cast<double>(k);
    for (int64_t c = G::first(); c < n; c += G::step()) {
        double sum = 0, squares = 0;
        for (int64_t j = G::rank(); j < m * k; j += G::SIZE) {
            sum += static_cast<double>(x[(j / k * n + c) * k + j % k]);
        }
        double center = G::sum(sum) / count;
        for (int64_t j = G::rank(); j < m * k; j += G::SIZE) {
            double off = static_cast<double>(x[(j / k * n + c) * k + j % k]) - center;
            squares += off * off;
        }
        squares = G::sum(squares);
        if (G::rank() == 0) {
            mean[c] = static_cast<T>(center);
            var[c] = static_cast<T>(squares / count);
        }
    }
}

template <typename T>
__global__ void batchnorm_train_dx(T *dx, const T *dy, const T *x, const T *scale, const T *mean, const T *var, int64_t m,
                                   int64_t n, int64_t k, double eps)
{
    using G = Group<16>;
    double count = static_cast<double>(m) * static_cast<double>(k);
    for (int64_t c = G::first(); c < n; c += G::step()) {
        double sum = 0, sum_x = 0, rstd = channel_rstd(var, c, eps), center = static_cast<double>(mean[c]);
        for (int64_t j = G::rank(); j < m * k; j += G::SIZE) {
            int64_t i = (j / k * n + c) * k + j % k;
            sum += static_cast<double>(dy[i]);
            sum_x += static_cast<double>(dy[i]) * ((static_cast<double>(x[i]) - center) * rstd);
        }
        double average = G::sum(sum) / count, slope = G::sum(sum_x) / count * rstd;
        double factor = rstd * static_cast<double>(scale[c]);
        for (int64_t j = G::rank(); j < m * k; j += G::SIZE) {
            int64_t i = (j / k * n + c) * k + j % k;
            dx[i] = static_cast<T>(factor *
                                   (static_cast<double>(dy[i]) - average - (static_cast<double>(x[i]) - center) * slope));
        }
    }
}

template <typename T> __global__ void moving_average(T *y, const T *x, int64_t n, double keep)
{
    EACH(i, n)
    {
        y[i] = static_cast<T>(keep * static_cast<double>(y[i]) + (1 - keep) * static_cast<double>(x[i]));
    }
}

} // namespace

/* ---- from C ----------------------------------------------------------------------------------------------------- */

/* Launches a kernel of one thread an element over n elements. */
#define OVER(n, kernel, ...)                                                                                           \
    do {                                                                                                               \
        int64_t elements = (n);                                                                                        \
        if (elements > 0) {                                                                                            \
            FLOATING(k->dtype,                                                                                         \
                     kernel<T><<<blocks_for(c, elements, THREADS), THREADS, 0, stream_of(c)>>>(__VA_ARGS__));          \
        }                                                                                                              \
        return cudaGetLastError();                                                                                     \
    } while (0)

int ferryi_cuda_conv(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_window3 w = ferryi_window_wide(&k->window);
    OVER(k->m * k->n * w.n_out, conv, w, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), k->m, k->k, k->n,
         k->window.groups);
}

int ferryi_cuda_conv_dx(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_window3 w = ferryi_window_wide(&k->window);
    OVER(k->m * k->k * w.n_in, conv_dx, w, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), k->m, k->k, k->n,
         k->window.groups, k->accumulate);
}

int ferryi_cuda_conv_dw(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_window3 w = ferryi_window_wide(&k->window);
    int64_t weights = k->n * (k->k / k->window.groups) * w.n_size;
    if (weights > 0) {
        FLOATING(k->dtype,
                 conv_dw<T><<<blocks_for(c, weights, 1), Group<8>::BLOCK, 0, stream_of(c)>>>(
                     w, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), k->m, k->k, k->n, k->window.groups, k->accumulate));
    }
    return cudaGetLastError();
}

int ferryi_cuda_maxpool(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_window3 w = ferryi_window_wide(&k->window);
    OVER(k->m * w.n_out, maxpool, w, out<T>(k, 0), out<int64_t>(k, 1), in<T>(k, 2), k->m);
}

int ferryi_cuda_maxpool_grad(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_window3 w = ferryi_window_wide(&k->window);
    int64_t places = k->m * w.n_out;
    if (places > 0) {
        check_places<<<blocks_for(c, places, THREADS), THREADS, 0, stream_of(c)>>>(reporter_of(c, k), in<int64_t>(k, 2),
                                                                                   places, k->m * w.n_in);
    }
    OVER(k->m * w.n_in, maxpool_grad, w, out<T>(k, 0), in<T>(k, 1), in<int64_t>(k, 2), k->m, k->accumulate);
}

int ferryi_cuda_avgpool(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_window3 w = ferryi_window_wide(&k->window);
    OVER(k->m * w.n_out, avgpool, w, out<T>(k, 0), in<T>(k, 1), k->m, k->fn == FERRY_MEAN, k->window.count_pad);
}

int ferryi_cuda_avgpool_grad(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_window3 w = ferryi_window_wide(&k->window);
    OVER(k->m * w.n_in, avgpool_grad, w, out<T>(k, 0), in<T>(k, 1), k->m, k->fn == FERRY_MEAN, k->window.count_pad,
         k->accumulate);
}

int ferryi_cuda_batchnorm(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    OVER(k->m * k->n * k->k, batchnorm, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in<T>(k, 4), in<T>(k, 5),
         k->m, k->n, k->k, k->eps);
}

int ferryi_cuda_batchnorm_dx(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    OVER(k->m * k->n * k->k, batchnorm_dx, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), k->m, k->n, k->k,
         k->eps);
}

int ferryi_cuda_batchnorm_dp(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->n > 0) {
        FLOATING(k->dtype, batchnorm_dp<T><<<blocks_for(c, k->n, 1), Group<16>::BLOCK, 0, stream_of(c)>>>(
                               out<T>(k, 0), out<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in<T>(k, 4), in<T>(k, 5), k->m,
                               k->n, k->k, k->eps, k->accumulate));
    }
    return cudaGetLastError();
}

int ferryi_cuda_batch_stats(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->n > 0) {
        FLOATING(k->dtype, batch_stats<T><<<blocks_for(c, k->n, 1), Group<16>::BLOCK, 0, stream_of(c)>>>(
                               out<T>(k, 0), out<T>(k, 1), in<T>(k, 2), k->m, k->n, k->k));
    }
    return cudaGetLastError();
}

int ferryi_cuda_batchnorm_train_dx(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->n > 0) {
        FLOATING(k->dtype, batchnorm_train_dx<T><<<blocks_for(c, k->n, 1), Group<16>::BLOCK, 0, stream_of(c)>>>(
                               out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in<T>(k, 4), in<T>(k, 5), k->m,
                               k->n, k->k, k->eps));
    }
    return cudaGetLastError();
}

int ferryi_cuda_moving_average(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    OVER(k->n, moving_average, out<T>(k, 0), in<T>(k, 1), k->n, k->alpha);
}
