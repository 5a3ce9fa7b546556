/* cuda_attention_scores.cu - softmax of rows of scores, and its gradient, between the products of an attention of f32
 * (cuda_attention_products.c), and the lists of matrices for these. */
#include "runtime/cuda_attention.cuh"

namespace
{

constexpr int N = 4; /* neighbours in one access */

struct alignas(4 * N) Side {
    float at[N];
};

/* The head and the row of row i of the scores, and the columns that it may see by its place. */
struct Place {
    int64_t batch, head, row;
    int end;
};

__device__ Place place_of(const ferry_attention_shape &a, const ferryi_cuda_scores &s, int64_t i)
{
    const int64_t t = i / s.rows, pair = s.pair + t % s.pairs, row = s.row + i % s.rows;
    const int64_t end = ferryi_attention_end(&a, row);
    return {pair / a.kv_heads, pair % a.kv_heads * s.group + t / s.pairs, row, static_cast<int>(end < s.columns ? end : s.columns)};
}

/* Neighbours of a row from j on; PACKED: in one access, which the rows' places allow. */
template <bool PACKED> __device__ Side load(const float *x, int j, int columns)
{
    Side s = {};
    if constexpr (PACKED) {
        s = *reinterpret_cast<const Side *>(x + j);
    } else {
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (j + e < columns) {
                s.at[e] = x[j + e];
            }
        }
    }
    return s;
}

template <bool PACKED> __device__ void store(float *x, int j, int columns, const Side &s)
{
    if constexpr (PACKED) {
        *reinterpret_cast<Side *>(x + j) = s;
    } else {
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (j + e < columns) {
                x[j + e] = s.at[e];
            }
        }
    }
}

template <bool MASKED>
__device__ float visible(const ferry_attention_shape &a, const Mask &mask, const Place &p, int j, float x)
{
    if (j >= p.end) {
        return -INFINITY;
    }
    return MASKED ? masked<float>(a, mask, p.batch, p.head, p.row, j, x) : x;
}

/* A row stays in the registers of its threads, K accesses each. */
template <typename G, int K, bool PACKED, bool MASKED>
__global__ void softmax_scores(const ferry_attention_shape a, const ferryi_cuda_scores s, Mask mask, float *lse)
{
    const int columns = static_cast<int>(s.columns);
    for (int64_t i = G::first(); i < s.pairs * s.group * s.rows; i += G::step()) {
        const Place p = place_of(a, s, i);
        float *row = s.scores + i * s.columns, top = -INFINITY, sum = 0;
        Side v[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int j = (k * G::SIZE + G::rank()) * N;
            if (j < columns) {
                v[k] = load<PACKED>(row, j, columns);
            }
#pragma unroll
            for (int e = 0; e < N; e++) {
                v[k].at[e] = j < columns ? visible<MASKED>(a, mask, p, j + e, v[k].at[e]) : -INFINITY;
                top = v[k].at[e] > top || v[k].at[e] != v[k].at[e] ? v[k].at[e] : top; /* NaN wins */
            }
        }
        top = G::reduce(top, [](float x, float y) { return y > x || y != y ? y : x; });
        const bool sees = top != -INFINITY;
        const float base = sees ? top : 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
#pragma unroll
            for (int e = 0; e < N; e++) {
                v[k].at[e] = expf(v[k].at[e] - base);
                sum += v[k].at[e];
            }
        }
        sum = G::reduce(sum, [](float x, float y) { return x + y; });
        const float share = sees ? 1 / sum : 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int j = (k * G::SIZE + G::rank()) * N;
#pragma unroll
            for (int e = 0; e < N; e++) {
                v[k].at[e] *= share;
            }
            if (j < columns) {
                store<PACKED>(row, j, columns, v[k]);
            }
        }
        if (G::rank() == 0) {
            lse[(p.batch * a.heads + p.head) * a.rows + p.row] = sees ? top + logf(sum) : INFINITY;
        }
    }
}

/* Of scores and dy v^T: the weights, and their gradient times the scale. */
template <typename G, int K, bool PACKED, bool MASKED>
__global__ void softmax_slopes(const ferry_attention_shape a, const ferryi_cuda_scores s, Mask mask, const float *lse,
                               const float *dy, const float *y)
{
    const int columns = static_cast<int>(s.columns);
    const float scale = static_cast<float>(a.scale);
    for (int64_t i = G::first(); i < s.pairs * s.group * s.rows; i += G::step()) {
        const Place p = place_of(a, s, i);
        const int64_t at = ferryi_attention_at(&a, FERRY_Y, p.batch, p.head, p.row);
        float *row = s.scores + i * s.columns, *slopes = s.slopes + i * s.columns, part = 0;
        for (int64_t e = G::rank(); e < a.value_size; e += G::SIZE) {
            part += dy[at + e] * y[at + e];
        }
        const float dot = G::reduce(part, [](float x, float z) { return x + z; });
        const float l = lse[(p.batch * a.heads + p.head) * a.rows + p.row];
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int j = (k * G::SIZE + G::rank()) * N;
            if (j < columns) {
                Side x = load<PACKED>(row, j, columns), g = load<PACKED>(slopes, j, columns);
#pragma unroll
                for (int e = 0; e < N; e++) {
                    const float weight = expf(visible<MASKED>(a, mask, p, j + e, x.at[e]) - l);
                    x.at[e] = weight;
                    g.at[e] = scale * weight * (g.at[e] - dot);
                }
                store<PACKED>(row, j, columns, x);
                store<PACKED>(slopes, j, columns, g);
            }
        }
    }
}

__global__ void score_lists(const ferry_attention_shape a, const ferryi_cuda_scores s, float *q, float *k, float *v, float *y,
                            float *dy, float *dq, float *dk, float *dv)
{
    const int64_t heads = s.pairs * s.group;
    for (int64_t t = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; t < heads; t += int64_t{gridDim.x} * blockDim.x) {
        const int64_t pair = s.pair + t % s.pairs, batch = pair / a.kv_heads, kv = pair % a.kv_heads, head = kv * s.group + t / s.pairs;
        const int64_t of_q = ferryi_attention_at(&a, FERRY_Q, batch, head, s.row), of_k = ferryi_attention_at(&a, FERRY_K, batch, kv, 0);
        const int64_t of_v = ferryi_attention_at(&a, FERRY_V, batch, kv, 0), of_y = ferryi_attention_at(&a, FERRY_Y, batch, head, s.row);
        void **list = s.list + t;
        list[FERRYI_LIST_Q * s.list_step] = q + of_q;
        list[FERRYI_LIST_K * s.list_step] = k + of_k;
        list[FERRYI_LIST_V * s.list_step] = v + of_v;
        list[FERRYI_LIST_Y * s.list_step] = y + of_y;
        list[FERRYI_LIST_DY * s.list_step] = dy + of_y;
        list[FERRYI_LIST_DQ * s.list_step] = dq + of_q;
        list[FERRYI_LIST_DK * s.list_step] = dk + of_k;
        list[FERRYI_LIST_DV * s.list_step] = dv + of_v;
        list[FERRYI_LIST_SCORES * s.list_step] = s.scores + t * s.rows * s.columns;
        list[FERRYI_LIST_SLOPES * s.list_step] = s.slopes + t * s.rows * s.columns;
    }
}

template <typename G, int K, bool PACKED, bool MASKED>
void launch(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_cuda_scores &s)
{
    const unsigned blocks = blocks_for(c, s.pairs * s.group * s.rows, G::PER_BLOCK);
    if (k->op == FERRY_OP_ATTENTION) {
        softmax_scores<G, K, PACKED, MASKED><<<blocks, G::BLOCK, 0, stream_of(c)>>>(k->attention, s, mask_of(k, 5), out<float>(k, 1));
    } else {
        softmax_slopes<G, K, PACKED, MASKED><<<blocks, G::BLOCK, 0, stream_of(c)>>>(
            k->attention, s, mask_of(k, 9), in<float>(k, 8), in<float>(k, 3), in<float>(k, 7));
    }
}

template <typename G, int K> void launch_any(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_cuda_scores &s)
{
    const bool is_masked = k->arg[k->op == FERRY_OP_ATTENTION ? 5 : 9] != nullptr;
    if (s.columns % N != 0) {
        launch<G, K, false, true>(c, k, s); /* `masked` copes with no mask */
    } else if (is_masked) {
        launch<G, K, true, true>(c, k, s);
    } else {
        launch<G, K, true, false>(c, k, s);
    }
}

/* A warp or a block for each row, with as many accesses a thread as the row needs: 16384 columns at most. */
int run(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_cuda_scores &s)
{
    const int64_t columns = s.columns;
    if (columns <= 256) {
        launch_any<Group<1>, 2>(c, k, s);
    } else if (columns <= 512) {
        launch_any<Group<1>, 4>(c, k, s);
    } else if (columns <= 2048) {
        launch_any<Group<4>, 4>(c, k, s);
    } else {
        launch_any<Group<16>, 8>(c, k, s);
    }
    return cudaGetLastError();
}

} // namespace

int ferryi_cuda_score_lists(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_cuda_scores *s)
{
    const int64_t heads = s->pairs * s->group;
    const unsigned blocks = static_cast<unsigned>((heads + 127) / 128);
    if (k->op == FERRY_OP_ATTENTION) {
        score_lists<<<blocks, 128, 0, stream_of(c)>>>(k->attention, *s, out<float>(k, 2), out<float>(k, 3), out<float>(k, 4),
                                                      out<float>(k, 0), nullptr, nullptr, nullptr, nullptr);
    } else {
        score_lists<<<blocks, 128, 0, stream_of(c)>>>(k->attention, *s, out<float>(k, 4), out<float>(k, 5), out<float>(k, 6),
                                                      out<float>(k, 7), out<float>(k, 3), out<float>(k, 0), out<float>(k, 1),
                                                      out<float>(k, 2));
    }
    return cudaGetLastError();
}

int ferryi_cuda_softmax_scores(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_cuda_scores *s)
{
    return run(c, k, *s);
}

int ferryi_cuda_softmax_slopes(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_cuda_scores *s)
{
    return run(c, k, *s);
}
