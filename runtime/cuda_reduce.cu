/* cuda_reduce.cu - REDUCE and LAYERNORM_DP: sums along rows, sums down columns.
 *
 * Down columns a warp's threads hold 32 neighbouring columns, so that each row is read in whole lines. Few columns
 * would leave most of the GPU idle: then the rows are split, each part's sums go to the scratch, and a second kernel
 * adds them in order. How they are split depends on the sizes alone. */
#include "runtime/cuda_common.cuh"
#include "runtime/whole.h"

namespace
{

/* What is reduced to one element. */
struct SumOf {
    static __device__ double start()
    {
        return 0;
    }
    static __device__ double join(double a, double b)
    {
        return a + b;
    }
};

/* NaN wins. */
struct MaxOf {
    static __device__ double start()
    {
        return -INFINITY;
    }
    static __device__ double join(double a, double b)
    {
        return a > b || a != a ? a : b;
    }
};

struct MinOf {
    static __device__ double start()
    {
        return INFINITY;
    }
    static __device__ double join(double a, double b)
    {
        return a < b || a != a ? a : b;
    }
};

template <typename T> struct Finish {
    T *y;
    double divide;
    bool accumulate;

    __device__ void operator()(int64_t i, double value) const
    {
        value /= divide;
        y[i] = static_cast<T>(accumulate ? static_cast<double>(y[i]) + value : value);
    }
};

/* ---- along rows ------------------------------------------------------------------------------------------------- */

template <typename T, typename R, typename G>
__global__ void reduce_rows(Finish<T> finish, const T *x, int64_t rows, int64_t n)
{
    for (int64_t row = G::first(); row < rows; row += G::step()) {
        double v = R::start();
        for (int64_t j = G::rank(); j < n; j += G::SIZE) {
            v = R::join(v, static_cast<double>(x[row * n + j]));
        }
        v = G::reduce(v, [](double a, double b) { return R::join(a, b); });
        if (G::rank() == 0) {
            finish(row, v);
        }
    }
}

/* ---- down columns ----------------------------------------------------------------------------------------------- */

constexpr int COLUMNS = 32, LINES = 8; /* of a block */

/* x seen as [outer, count, inner]. Part p of `parts` takes rows [p * each, (p + 1) * each) of each outer index and
 * writes element (p, outer, column) of `partial`; with one part it finishes. */
template <typename T, typename R>
__global__ void reduce_columns(Finish<T> finish, double *partial, const T *x, int64_t outer, int64_t count,
                               int64_t inner, int64_t parts, int64_t each)
{
    __shared__ double line[LINES][COLUMNS];
    int64_t across = (inner + COLUMNS - 1) / COLUMNS, pieces = outer * across * parts;
    for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        int64_t p = piece / (outer * across), o = piece / across % outer,
                column = piece % across * COLUMNS + threadIdx.x;
        int64_t end = (p + 1) * each < count ? (p + 1) * each : count;
        double v = R::start();
        if (column < inner) {
            for (int64_t r = p * each + threadIdx.y; r < end; r += LINES) {
                v = R::join(v, static_cast<double>(x[(o * count + r) * inner + column]));
            }
        }
        __syncthreads();
        line[threadIdx.y][threadIdx.x] = v;
        __syncthreads();
        if (threadIdx.y == 0 && column < inner) {
            for (int i = 1; i < LINES; i++) {
                v = R::join(v, line[i][threadIdx.x]);
            }
            if (parts == 1) {
                finish(o * inner + column, v);
            } else {
                partial[(p * outer + o) * inner + column] = v;
            }
        }
    }
}

template <typename T, typename R>
__global__ void join_parts(Finish<T> finish, const double *partial, int64_t n, int64_t parts)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
        double v = partial[i];
        for (int64_t p = 1; p < parts; p++) {
            v = R::join(v, partial[p * n + i]);
        }
        finish(i, v);
    }
}

/* In how many parts the rows are split: until there are about four blocks a processor of a large GPU, of 64 rows and
 * more each, and the partial results fit. Independent of the GPU, as the result's bits are. */
int64_t parts_of(int64_t blocks, int64_t count, int64_t columns, int64_t partial_bytes)
{
    int64_t parts = 512 / (blocks < 1 ? 1 : blocks), most = count / 64;
    parts = parts < most ? parts : most;
    most = columns > 0 ? partial_bytes / (columns * static_cast<int64_t>(sizeof(double))) : 1;
    parts = parts < most ? parts : most;
    return parts < 1 ? 1 : parts;
}

template <typename T, typename R>
void launch_columns(const ferryi_cuda_call *c, Finish<T> finish, const T *x, int64_t outer, int64_t count,
                    int64_t inner)
{
    int64_t blocks = outer * ((inner + COLUMNS - 1) / COLUMNS);
    int64_t parts = parts_of(blocks, count, outer * inner, c->scratch_bytes), each = (count + parts - 1) / parts;
    double *partial = static_cast<double *>(c->scratch);
    reduce_columns<T, R><<<blocks_for(c, blocks * parts, 1), dim3(COLUMNS, LINES), 0, stream_of(c)>>>(
        finish, partial, x, outer, count, inner, parts, each);
    if (parts > 1) {
        join_parts<T, R><<<blocks_for(c, outer * inner, THREADS), THREADS, 0, stream_of(c)>>>(finish, partial,
                                                                                              outer * inner, parts);
    }
}

/* ---- anything --------------------------------------------------------------------------------------------------- */

/* A thread an element: for axes that are not one run, and for nothing to reduce. */
template <typename T, typename R>
__global__ void reduce_walk(Finish<T> finish, Dims<int64_t> kept, Dims<int64_t> reduced, const T *x)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < kept.total;
         i += int64_t{gridDim.x} * blockDim.x) {
        int64_t from, at;
        double v = R::start();
        kept.at<1>(i, &from);
        for (int64_t j = 0; j < reduced.total; j++) {
            reduced.at<1>(j, &at);
            v = R::join(v, static_cast<double>(x[from + at]));
        }
        finish(i, v);
    }
}

__global__ void reduce_whole(ferry_fn fn, ferry_dtype t, bool accumulate, Dims<int64_t> kept, Dims<int64_t> reduced,
                             void *y, const void *x)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < kept.total;
         i += int64_t{gridDim.x} * blockDim.x) {
        int64_t from, at, v = 0;
        kept.at<1>(i, &from);
        bool extreme = fn == FERRY_MAX || fn == FERRY_MIN;
        v = extreme ? ferryi_whole_extreme(t, fn == FERRY_MAX) : accumulate ? ferryi_whole_load(y, t, i) : 0;
        for (int64_t j = 0; j < reduced.total; j++) {
            reduced.at<1>(j, &at);
            int64_t element = ferryi_whole_load(x, t, from + at);
            if (extreme && t == FERRY_U64) {
                ferryi_whole_unsigned_binary(fn, static_cast<uint64_t>(v), static_cast<uint64_t>(element), &v);
            } else if (extreme) {
                ferryi_whole_binary(fn, v, element, &v);
            } else {
                v = ferryi_whole_wrap_add(v, element);
            }
        }
        ferryi_whole_store(y, t, i, v);
    }
}

template <typename T, typename R> void launch_reduce(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_walk kept, reduced;
    int64_t count = ferryi_walk_reduce(k, &kept, &reduced);
    Finish<T> finish = {out<T>(k, 0), k->fn == FERRY_MEAN ? static_cast<double>(count) : 1, k->accumulate};
    int first = 0, end = k->rank;
    while (first < k->rank && (k->axes >> first & 1) == 0) {
        first++;
    }
    while (end > first && (k->axes >> (end - 1) & 1) == 0) {
        end--;
    }
    if (reduced.rank != end - first || count == 0) {
        Dims<int64_t> to = dims_of<int64_t>(kept), over = dims_of<int64_t>(reduced);
        reduce_walk<T, R>
            <<<blocks_for(c, to.total, THREADS), THREADS, 0, stream_of(c)>>>(finish, to, over, in<T>(k, 1));
        return;
    }
    int64_t outer = 1, inner = 1;
    for (int i = 0; i < first; i++) {
        outer *= k->dim[i];
    }
    for (int i = end; i < k->rank; i++) {
        inner *= k->dim[i];
    }
    if (inner > 1) {
        launch_columns<T, R>(c, finish, in<T>(k, 1), outer, count, inner);
    } else {
        GROUPED(count, reduce_rows<T, R, G>
                <<<blocks_for(c, outer, G::PER_BLOCK), G::BLOCK, 0, stream_of(c)>>>(finish, in<T>(k, 1), outer, count));
    }
}

/* ---- LAYERNORM_DP ----------------------------------------------------------------------------------------------- */

template <typename T>
__global__ void layernorm_dp(Finish<T> dscale, Finish<T> dbias, double *partial, const T *dy, const T *x, const Wide<T> *mean,
                             const Wide<T> *rstd, int64_t m, int64_t n, int64_t parts, int64_t each)
{
    __shared__ double line[2][LINES][COLUMNS];
    int64_t across = (n + COLUMNS - 1) / COLUMNS;
    for (int64_t piece = blockIdx.x; piece < across * parts; piece += gridDim.x) {
        int64_t p = piece / across, column = piece % across * COLUMNS + threadIdx.x;
        int64_t end = (p + 1) * each < m ? (p + 1) * each : m;
        double sum = 0, sum_h = 0;
        if (column < n) {
            for (int64_t i = p * each + threadIdx.y; i < end; i += LINES) {
                double g = static_cast<double>(dy[i * n + column]);
                double center = mean != nullptr ? static_cast<double>(mean[i]) : 0;
                double h = (static_cast<double>(x[i * n + column]) - center) * static_cast<double>(rstd[i]);
                sum += g;
                sum_h += g * h;
            }
        }
        __syncthreads();
        line[0][threadIdx.y][threadIdx.x] = sum_h;
        line[1][threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && column < n) {
            for (int i = 1; i < LINES; i++) {
                sum_h += line[0][i][threadIdx.x];
                sum += line[1][i][threadIdx.x];
            }
            if (parts == 1) {
                dscale(column, sum_h);
                if (dbias.y != nullptr) {
                    dbias(column, sum);
                }
            } else {
                partial[p * n + column] = sum_h;
                partial[(parts + p) * n + column] = sum;
            }
        }
    }
}

template <typename T> void launch_layernorm_dp(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    Finish<T> dscale = {out<T>(k, 0), 1, k->accumulate}, dbias = {out<T>(k, 1), 1, k->accumulate};
    int64_t blocks = (k->n + COLUMNS - 1) / COLUMNS, parts = parts_of(blocks, k->m, 2 * k->n, c->scratch_bytes);
    double *partial = static_cast<double *>(c->scratch);
    cudaStream_t s = stream_of(c);
    layernorm_dp<T><<<blocks_for(c, blocks * parts, 1), dim3(COLUMNS, LINES), 0, s>>>(
        dscale, dbias, partial, in<T>(k, 2), in<T>(k, 3), in<Wide<T>>(k, 4), in<Wide<T>>(k, 5), k->m, k->n, parts,
        (k->m + parts - 1) / parts);
    if (parts > 1) {
        unsigned joining = blocks_for(c, k->n, THREADS);
        join_parts<T, SumOf><<<joining, THREADS, 0, s>>>(dscale, partial, k->n, parts);
        if (dbias.y != nullptr) {
            join_parts<T, SumOf><<<joining, THREADS, 0, s>>>(dbias, partial + parts * k->n, k->n, parts);
        }
    }
}

} // namespace

/* ---- from C ----------------------------------------------------------------------------------------------------- */

int ferryi_cuda_reduce(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_walk kept, reduced;
    ferryi_walk_reduce(k, &kept, &reduced);
    if (!kept.more) {
        return 0;
    }
    if (!is_floating(k->dtype)) {
        Dims<int64_t> to = dims_of<int64_t>(kept), over = dims_of<int64_t>(reduced);
        reduce_whole<<<blocks_for(c, to.total, THREADS), THREADS, 0, stream_of(c)>>>(k->fn, k->dtype, k->accumulate, to,
                                                                                     over, k->arg[0], k->arg[1]);
    } else if (k->fn == FERRY_MAX) {
        FLOATING(k->dtype, launch_reduce<T, MaxOf>(c, k));
    } else if (k->fn == FERRY_MIN) {
        FLOATING(k->dtype, launch_reduce<T, MinOf>(c, k));
    } else {
        FLOATING(k->dtype, launch_reduce<T, SumOf>(c, k));
    }
    return cudaGetLastError();
}

int ferryi_cuda_layernorm_dp(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    if (k->n > 0) {
        FLOATING(k->dtype, launch_layernorm_dp<T>(c, k));
    }
    return cudaGetLastError();
}
