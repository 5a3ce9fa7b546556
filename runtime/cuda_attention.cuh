/* cuda_attention.cuh - what the attention kernels share: pieces of work, masks. */
#ifndef FERRY_RUNTIME_CUDA_ATTENTION_CUH
#define FERRY_RUNTIME_CUDA_ATTENTION_CUH

#include "runtime/attention.h"
#include "runtime/cuda_common.cuh"

namespace
{

/* Which columns a row sees, and what is added to its scores. */
struct Mask {
    const void *at; /* nullptr: nothing */
    bool is_bool;
};

inline Mask mask_of(const ferry_kernel *k, int arg)
{
    return {k->arg[arg], k->attention.mask_type == FERRY_BOOL};
}

/* The score of row i and column j, of which s is the scaled product; -infinity where the row does not see the column. */
template <typename T>
__device__ Wide<T> masked(const ferry_attention_shape &a, const Mask &mask, int64_t b, int64_t h, int64_t i, int64_t j,
                          Wide<T> s)
{
    if (i >= a.rows || j >= a.columns || (a.causal && j > i + a.past)) {
        return -static_cast<Wide<T>>(INFINITY);
    }
    if (mask.at == nullptr) {
        return s;
    }
    int64_t at = ferryi_attention_mask(&a, b, h, i, j);
    if (!mask.is_bool) {
        return s + static_cast<Wide<T>>(static_cast<const T *>(mask.at)[at]);
    }
    return static_cast<const uint8_t *>(mask.at)[at] != 0 ? s : -static_cast<Wide<T>>(INFINITY);
}

/* Tiles of `size` rows or columns of all heads: what one block works on. */
struct Work {
    int64_t heads, tiles, chunks, total;

    __device__ void find(int64_t piece, int64_t *batch, int64_t *head, int64_t *tile, int64_t *chunk) const
    {
        *chunk = piece % chunks;
        piece /= chunks;
        *tile = piece % tiles;
        piece /= tiles;
        *head = piece % heads;
        *batch = piece / heads;
    }
};

inline Work work_of(int64_t batch, int64_t heads, int64_t length, int64_t tile, int64_t chunks)
{
    Work w = {heads, (length + tile - 1) / tile, chunks, 0};
    w.total = batch * heads * w.tiles * chunks;
    return w;
}

/* One block for each piece, the rest in a loop. */
inline unsigned blocks_of(const Work &w)
{
    return static_cast<unsigned>(w.total < 0x7fffffff ? w.total : 0x7fffffff);
}

} // namespace

/* cuda_attention_mma.cu: by tensor cores. False: not for these types, sizes or places. */
bool ferryi_cuda_attention_mma_takes(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_attention_mma(const ferryi_cuda_call *c, const ferry_kernel *k);
int ferryi_cuda_attention_mma_grad(const ferryi_cuda_call *c, const ferry_kernel *k);

#endif
