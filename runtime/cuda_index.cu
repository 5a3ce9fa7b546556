/* cuda_index.cu - EMBEDDING, SCATTER, their gradients, and RAVEL.
 *
 * Where several positions name one row, the row's owner adds them up in the order of the positions: the ids are sorted,
 * stably, so that the positions of a row stand in one run of the list. No atomics, the same bits in every run. */
#include "runtime/cuda_common.cuh"

namespace
{

/* ---- EMBEDDING -------------------------------------------------------------------------------------------------- */

/* Rows in units of V: 16 bytes where the addresses and sizes allow. A row is read in whole lines, also across the link.
 */
template <typename V>
__global__ void embedding(Reporter r, V *y, const V *table, const void *ids, bool wide, int64_t m, int64_t rows,
                          int64_t units)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < m * units;
         i += int64_t{gridDim.x} * blockDim.x) {
        int64_t position = i / units, row = row_at(r, ids, wide, position, rows);
        if (row >= 0) {
            y[i] = table[row * units + i - position * units];
        }
    }
}

template <typename V> void launch_embedding(const ferryi_cuda_call *c, const ferry_kernel *k, int64_t row_bytes)
{
    int64_t units = row_bytes / static_cast<int64_t>(sizeof(V));
    embedding<V><<<blocks_for(c, k->m * units, THREADS), THREADS, 0, stream_of(c)>>>(
        reporter_of(c, k), out<V>(k, 0), in<V>(k, 1), k->arg[2], k->dtype2 == FERRY_I64, k->m, k->k, units);
}

/* ---- sorted ids ------------------------------------------------------------------------------------------------- */

/* The positions in the order of their rows, and of equal rows in their own. */
struct Sorted {
    const uint32_t *row, *position;
    int64_t m;

    /* The first entry with a row of at least `least`. */
    __device__ int64_t find(int64_t least) const
    {
        int64_t low = 0, high = m;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (row[middle] < least) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }
};

/* An id out of range gets a row behind the last one: nobody owns it. */
__global__ void list_rows(Reporter r, uint32_t *row, uint32_t *position, const void *ids, bool wide, int64_t m,
                          int64_t rows)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < m; i += int64_t{gridDim.x} * blockDim.x) {
        int64_t at = row_at(r, ids, wide, i, rows);
        row[i] = static_cast<uint32_t>(at < 0 ? rows : at);
        position[i] = static_cast<uint32_t>(i);
    }
}

/* One pass of a radix sort moves the entries by eight bits of the row, stably. A tile of entries is a block. The places
 * of a tile's entries with one digit begin behind those of all smaller digits and of the tiles before it. */
constexpr int DIGITS = 256, TILE = 256, TILE_WARPS = TILE / 32;

__global__ void count_digits(uint32_t *counts, const uint32_t *row, int64_t m, int shift, int64_t tiles)
{
    __shared__ uint32_t count[DIGITS];
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        count[threadIdx.x] = 0;
        __syncthreads();
        int64_t i = tile * TILE + threadIdx.x;
        if (i < m) {
            atomicAdd(&count[row[i] >> shift & (DIGITS - 1)], 1u); /* whole numbers: any order gives the same */
        }
        __syncthreads();
        counts[threadIdx.x * tiles + tile] = count[threadIdx.x];
        __syncthreads();
    }
}

/* One block: counts become the sums of those before them. */
__global__ void sum_before(uint32_t *counts, int64_t n)
{
    __shared__ uint32_t part[1024];
    int64_t each = (n + blockDim.x - 1) / blockDim.x, from = threadIdx.x * each,
            end = from + each < n ? from + each : n;
    uint32_t sum = 0;
    for (int64_t i = from; i < end; i++) {
        sum += counts[i];
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned d = 1; d < blockDim.x; d *= 2) {
        uint32_t before = threadIdx.x >= d ? part[threadIdx.x - d] : 0;
        __syncthreads();
        part[threadIdx.x] += before;
        __syncthreads();
    }
    uint32_t before = part[threadIdx.x] - sum;
    for (int64_t i = from; i < end; i++) {
        uint32_t own = counts[i];
        counts[i] = before;
        before += own;
    }
}

__global__ void move_entries(uint32_t *row_to, uint32_t *position_to, const uint32_t *row, const uint32_t *position,
                             const uint32_t *places, int64_t m, int shift, int64_t tiles)
{
    __shared__ uint32_t count[TILE_WARPS][DIGITS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        for (int w = 0; w < TILE_WARPS; w++) {
            count[w][threadIdx.x] = 0;
        }
        __syncthreads();
        int64_t i = tile * TILE + threadIdx.x;
        bool is_entry = i < m;
        uint32_t digit = is_entry ? row[i] >> shift & (DIGITS - 1) : DIGITS;
        uint32_t same = __match_any_sync(0xffffffffu, digit);
        uint32_t before = static_cast<uint32_t>(__popc(same & ((1u << lane) - 1)));
        if (is_entry && before == 0) {
            count[warp][digit] = static_cast<uint32_t>(__popc(same));
        }
        __syncthreads();
        if (is_entry) {
            for (int w = 0; w < warp; w++) {
                before += count[w][digit];
            }
            uint32_t to = places[digit * tiles + tile] + before;
            row_to[to] = row[i];
            position_to[to] = position[i];
        }
        __syncthreads();
    }
}

int64_t array_bytes(int64_t elements)
{
    return (elements * 4 + 255) / 256 * 256;
}

int64_t tiles_of(int64_t m)
{
    return (m + TILE - 1) / TILE;
}

/* In the scratch: rows and positions twice, and the counts. */
cudaError_t sort_ids(const ferryi_cuda_call *c, const ferry_kernel *k, const void *ids, Sorted *sorted)
{
    int64_t each = array_bytes(k->m), tiles = tiles_of(k->m);
    char *at = static_cast<char *>(c->scratch);
    uint32_t *row = reinterpret_cast<uint32_t *>(at), *position = reinterpret_cast<uint32_t *>(at + each);
    uint32_t *row_to = reinterpret_cast<uint32_t *>(at + 2 * each);
    uint32_t *position_to = reinterpret_cast<uint32_t *>(at + 3 * each);
    uint32_t *counts = reinterpret_cast<uint32_t *>(at + 4 * each);
    cudaStream_t s = stream_of(c);
    if (k->m > 0) {
        list_rows<<<blocks_for(c, k->m, THREADS), THREADS, 0, s>>>(reporter_of(c, k), row, position, ids,
                                                                   k->dtype2 == FERRY_I64, k->m, k->k);
    }
    for (int shift = 0; k->m > 0 && k->k >> shift != 0; shift += 8) {
        count_digits<<<blocks_for(c, tiles, 1), TILE, 0, s>>>(counts, row, k->m, shift, tiles);
        sum_before<<<1, 1024, 0, s>>>(counts, DIGITS * tiles);
        move_entries<<<blocks_for(c, tiles, 1), TILE, 0, s>>>(row_to, position_to, row, position, counts, k->m, shift,
                                                              tiles);
        uint32_t *swap = row;
        row = row_to;
        row_to = swap;
        swap = position;
        position = position_to;
        position_to = swap;
    }
    *sorted = {row, position, k->m};
    return cudaGetLastError();
}

/* ---- EMBEDDING_GRAD --------------------------------------------------------------------------------------------- */

constexpr int COLUMNS = 32, LINES = 8;

/* A block takes BATCH rows, whose runs its threads look up together, and of each 32 columns at a time; its lines share
 * the row's positions. Rows without ids are written as well, so that the table is one stream of whole lines, also
 * across the link. */
constexpr int BATCH = 16;

/* Positions that one thread adds up by itself. */
constexpr int64_t FEW = 32;

/* One pack of columns of a table's row: the sum of the positions' [from, end), in their order. */
template <typename T>
__device__ void add_rows(const Sorted &sorted, int64_t from, int64_t end, const T *dy, int64_t n, T *table, bool accumulate)
{
    double sum[Pack<T>::N] = {};
    for (int64_t i = from; i < end; i++) {
        const Pack<T> p = load_pack(dy + int64_t{sorted.position[i]} * n);
#pragma unroll
        for (int e = 0; e < Pack<T>::N; e++) {
            sum[e] += static_cast<double>(p.at[e]);
        }
    }
    Pack<T> to = accumulate ? load_pack(table) : Pack<T>{};
#pragma unroll
    for (int e = 0; e < Pack<T>::N; e++) {
        to.at[e] = static_cast<T>(accumulate ? static_cast<double>(to.at[e]) + sum[e] : sum[e]);
    }
    store_pack(table, to);
}

/* packs: of a row, 0 where rows are not made of aligned ones. */
template <typename T>
__global__ void embedding_grad(Sorted sorted, T *table, const T *dy, int64_t rows, int64_t n, int64_t packs, bool accumulate)
{
    __shared__ double line[LINES][COLUMNS];
    __shared__ int64_t run[BATCH + 1];
    for (int64_t first_row = int64_t{blockIdx.x} * BATCH; first_row < rows; first_row += int64_t{gridDim.x} * BATCH) {
        int taken = rows - first_row < BATCH ? static_cast<int>(rows - first_row) : BATCH;
        __syncthreads();
        if (threadIdx.y == 0 && threadIdx.x <= taken) {
            run[threadIdx.x] = sorted.find(first_row + threadIdx.x);
        }
        __syncthreads();
        for (int r = 0; r < taken; r++) {
            int64_t row = first_row + r, from = run[r], end = run[r + 1];
            if (from == end && packs > 0) {
                for (int64_t p = threadIdx.y * COLUMNS + threadIdx.x; p < packs && !accumulate; p += LINES * COLUMNS) {
                    *reinterpret_cast<uint4 *>(table + row * n + p * Pack<T>::N) = uint4{0, 0, 0, 0};
                }
                continue;
            }
            if (from == end) {
                for (int64_t j = threadIdx.y * COLUMNS + threadIdx.x; j < n && !accumulate; j += LINES * COLUMNS) {
                    table[row * n + j] = T{0};
                }
                continue;
            }
            if (packs > 0 && end - from <= FEW) { /* each thread its own columns */
                for (int64_t p = threadIdx.y * COLUMNS + threadIdx.x; p < packs; p += LINES * COLUMNS) {
                    add_rows(sorted, from, end, dy + p * Pack<T>::N, n, table + row * n + p * Pack<T>::N, accumulate);
                }
                continue;
            }
            for (int64_t first = 0; first < n; first += COLUMNS) {
                int64_t j = first + threadIdx.x;
                double sum = 0;
                for (int64_t i = from + threadIdx.y; i < end && j < n; i += LINES) {
                    sum += static_cast<double>(dy[sorted.position[i] * n + j]);
                }
                __syncthreads();
                line[threadIdx.y][threadIdx.x] = sum;
                __syncthreads();
                if (threadIdx.y == 0 && j < n) {
                    for (int l = 1; l < LINES; l++) {
                        sum += line[l][threadIdx.x];
                    }
                    T *to = table + row * n + j;
                    *to = static_cast<T>(accumulate ? static_cast<double>(*to) + sum : sum);
                }
            }
        }
    }
}

/* ---- SCATTER ---------------------------------------------------------------------------------------------------- */

template <typename W> __device__ W merge(ferry_fn fn, W a, W b)
{
    switch (fn) {
    case FERRY_ADD:
        return a + b;
    case FERRY_MUL:
        return a * b;
    case FERRY_MAX:
        return a > b ? a : b;
    default:
        return a < b ? a : b;
    }
}

/* The last of equal ids stays. */
template <typename T>
__global__ void scatter_replace(Sorted sorted, T *y, const T *data, const T *updates, int64_t rows, int64_t n)
{
    for (int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; at < rows * n;
         at += int64_t{gridDim.x} * blockDim.x) {
        int64_t row = at / n, end = sorted.find(row + 1);
        bool replaced = end > 0 && sorted.row[end - 1] == row;
        y[at] = replaced ? updates[sorted.position[end - 1] * n + at % n] : data[at];
    }
}

template <typename T>
__global__ void scatter(ferry_fn fn, Sorted sorted, T *y, const T *data, const T *updates, int64_t rows, int64_t n)
{
    for (int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; at < rows * n;
         at += int64_t{gridDim.x} * blockDim.x) {
        int64_t row = at / n;
        Wide<T> value = data[at];
        for (int64_t i = sorted.find(row); i < sorted.m && sorted.row[i] == row; i++) {
            value = merge(fn, value, Wide<T>(updates[sorted.position[i] * n + at % n]));
        }
        y[at] = value;
    }
}

/* One thread owns an element of the table and all updates that meet in it. */
template <typename T>
__global__ void scatter_grad(ferry_fn fn, Sorted sorted, T *ddata, T *dupdates, const T *dy, const T *data,
                             const T *updates, const T *y, int64_t rows, int64_t n)
{
    for (int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; at < rows * n;
         at += int64_t{gridDim.x} * blockDim.x) {
        int64_t row = at / n, from = sorted.find(row), end = from;
        Wide<T> g = dy[at], sharing = 0;
        bool extreme = fn == FERRY_MAX || fn == FERRY_MIN;
        if (extreme) {
            sharing = data[at] == y[at] ? 1 : 0;
        }
        for (; end < sorted.m && sorted.row[end] == row; end++) {
            if (extreme) {
                sharing += updates[sorted.position[end] * n + at % n] == y[at] ? 1 : 0;
            }
        }
        if (fn == FERRY_MUL) { /* y / factor, and where a factor is 0 the product of the others */
            for (int64_t skip = from - 1; skip < end; skip++) {
                int64_t u = skip < from ? 0 : sorted.position[skip] * n + at % n;
                Wide<T> own = skip < from ? data[at] : updates[u];
                double others = own != 0      ? static_cast<double>(y[at]) / static_cast<double>(own)
                                : skip < from ? 1
                                              : static_cast<double>(data[at]);
                for (int64_t i = from; i < end && own == 0; i++) {
                    others *= i == skip ? 1 : static_cast<double>(updates[sorted.position[i] * n + at % n]);
                }
                T value = static_cast<T>(static_cast<double>(g) * others);
                if (skip < from) {
                    ddata[at] = value;
                } else if (dupdates != nullptr) {
                    dupdates[u] = value;
                }
            }
            continue;
        }
        for (int64_t i = from; i < end && dupdates != nullptr; i++) {
            int64_t u = sorted.position[i] * n + at % n;
            dupdates[u] = !extreme ? g : updates[u] == y[at] ? g / sharing : Wide<T>{0};
        }
        ddata[at] = extreme ? (data[at] == y[at] ? g / sharing : Wide<T>{0}) : fn == FERRY_FN_NONE && end > from ? Wide<T>{0} : g;
    }
}

/* ---- RAVEL ------------------------------------------------------------------------------------------------------ */

struct Box {
    int64_t size[FERRY_MAX_RANK];
};

__global__ void ravel(Reporter r, Dims<int64_t> d, Box box, int64_t *y, const void *ids, bool wide, int64_t count,
                      int64_t unit)
{
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < d.total;
         i += int64_t{gridDim.x} * blockDim.x) {
        int64_t at[2], place = 0;
        d.at<2>(i, at);
        for (int64_t a = 0; a < count; a++) {
            int64_t id = id_at(ids, wide, at[1] + a), size = box.size[a];
            if (id < -size || id >= size) {
                tell(r, FERRYI_FAULT_INDEX, at[1] + a, id, size, 0);
                id = 0;
            }
            place = place * size + (id < 0 ? id + size : id);
        }
        y[i] = at[0] + unit * place;
    }
}

} // namespace

/* ---- from C ----------------------------------------------------------------------------------------------------- */

int64_t ferryi_cuda_sort_bytes(int64_t ids)
{
    return ids > INT32_MAX ? INT64_MAX : 4 * array_bytes(ids) + array_bytes(DIGITS * tiles_of(ids));
}

static int64_t element_bytes(ferry_dtype t)
{
    switch (t) {
    case FERRY_F64:
    case FERRY_I64:
    case FERRY_U64:
        return 8;
    case FERRY_F32:
    case FERRY_I32:
    case FERRY_U32:
        return 4;
    case FERRY_F16:
    case FERRY_BF16:
    case FERRY_I16:
    case FERRY_U16:
        return 2;
    default:
        return 1;
    }
}

int ferryi_cuda_embedding(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    int64_t row_bytes = k->n * element_bytes(k->dtype);
    if (k->m == 0 || row_bytes == 0) {
        return 0;
    }
    uintptr_t low = reinterpret_cast<uintptr_t>(k->arg[0]) | reinterpret_cast<uintptr_t>(k->arg[1]) |
                    static_cast<uintptr_t>(row_bytes);
    if (low % 16 == 0) {
        launch_embedding<uint4>(c, k, row_bytes);
    } else if (low % 8 == 0) {
        launch_embedding<uint64_t>(c, k, row_bytes);
    } else if (low % 4 == 0) {
        launch_embedding<uint32_t>(c, k, row_bytes);
    } else {
        launch_embedding<uint8_t>(c, k, row_bytes);
    }
    return cudaGetLastError();
}

int ferryi_cuda_embedding_grad(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    Sorted sorted;
    cudaError_t error = sort_ids(c, k, k->arg[2], &sorted);
    if (error != cudaSuccess || k->k * k->n == 0) {
        return error;
    }
    const bool aligned = is_packed(k->arg[0]) && is_packed(k->arg[1]);
    FLOATING(k->dtype, embedding_grad<T><<<blocks_for(c, k->k, BATCH), dim3(COLUMNS, LINES), 0, stream_of(c)>>>(
                           sorted, out<T>(k, 0), in<T>(k, 1), k->k, k->n,
                           aligned && k->n % Pack<T>::N == 0 ? k->n / Pack<T>::N : 0, k->accumulate));
    return cudaGetLastError();
}

template <typename T> static void launch_replace(const ferryi_cuda_call *c, const ferry_kernel *k, const Sorted &sorted)
{
    scatter_replace<T><<<blocks_for(c, k->k * k->n, THREADS), THREADS, 0, stream_of(c)>>>(
        sorted, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), k->k, k->n);
}

int ferryi_cuda_scatter(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    Sorted sorted;
    cudaError_t error = sort_ids(c, k, k->arg[3], &sorted);
    if (error != cudaSuccess || k->k * k->n == 0) {
        return error;
    }
    if (k->fn != FERRY_FN_NONE) {
        FLOATING(k->dtype, scatter<T><<<blocks_for(c, k->k * k->n, THREADS), THREADS, 0, stream_of(c)>>>(
                               k->fn, sorted, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), k->k, k->n));
        return cudaGetLastError();
    }
    switch (element_bytes(k->dtype)) {
    case 1:
        launch_replace<uint8_t>(c, k, sorted);
        break;
    case 2:
        launch_replace<uint16_t>(c, k, sorted);
        break;
    case 4:
        launch_replace<uint32_t>(c, k, sorted);
        break;
    default:
        launch_replace<uint64_t>(c, k, sorted);
    }
    return cudaGetLastError();
}

int ferryi_cuda_scatter_grad(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    Sorted sorted;
    cudaError_t error = sort_ids(c, k, k->arg[6], &sorted);
    if (error != cudaSuccess || k->k * k->n == 0) {
        return error;
    }
    FLOATING(k->dtype, scatter_grad<T><<<blocks_for(c, k->k * k->n, THREADS), THREADS, 0, stream_of(c)>>>(
                           k->fn, sorted, out<T>(k, 0), out<T>(k, 1), in<T>(k, 2), in<T>(k, 3), in<T>(k, 4),
                           in<T>(k, 5), k->k, k->n));
    return cudaGetLastError();
}

int ferryi_cuda_ravel(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_walk w = ferryi_walk_plain(k);
    if (!w.more) {
        return 0;
    }
    Box box;
    for (int i = 0; i < FERRY_MAX_RANK; i++) {
        box.size[i] = k->stride[2][i];
        w.stride[2][i] = 0;
    }
    Dims<int64_t> d = dims_of<int64_t>(w);
    ravel<<<blocks_for(c, d.total, THREADS), THREADS, 0, stream_of(c)>>>(reporter_of(c, k), d, box, out<int64_t>(k, 0),
                                                                         k->arg[1], k->dtype == FERRY_I64, k->m, k->k);
    return cudaGetLastError();
}
