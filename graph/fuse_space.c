/* fuse_space.c - one iteration space for kernels that walk over the same elements in dimensions of their own. */
#include "graph/fuse.h"

bool space_common(int rank_a, const int64_t *dim_a, int rank_b, const int64_t *dim_b, CommonSpace *out)
{
    const int64_t *const dim[2] = {dim_a, dim_b};
    int at[2] = {rank_a, rank_b};
    int64_t left[2] = {1, 1}, step[2] = {1, 1};
    CommonSpace c = {0};
    for (;;) { /* from the innermost dimensions on */
        for (int w = 0; w < 2; w++)
            while (left[w] == 1 && at[w] > 0) {
                left[w] = dim[w][--at[w]];
                step[w] = 1;
            }
        if (left[0] == 1 && left[1] == 1)
            break;
        int64_t size = left[0] < left[1] ? left[0] : left[1];
        if (size <= 1 || left[0] % size != 0 || left[1] % size != 0 || c.rank == FERRY_MAX_RANK)
            return false;
        c.dim[c.rank] = size;
        for (int w = 0; w < 2; w++) {
            c.part[c.rank][w] = at[w];
            c.step[c.rank][w] = step[w];
            left[w] /= size;
            step[w] *= size;
        }
        c.rank++;
    }
    *out = (CommonSpace){.rank = c.rank};
    for (int i = 0; i < c.rank; i++) {
        int j = c.rank - 1 - i;
        out->dim[i] = c.dim[j];
        for (int w = 0; w < 2; w++) {
            out->part[i][w] = c.part[j][w];
            out->step[i][w] = c.step[j][w];
        }
    }
    return true;
}

void space_strides(const CommonSpace *c, int which, const int64_t *stride, int64_t *out)
{
    for (int i = 0; i < c->rank; i++)
        out[i] = stride[c->part[i][which]] * c->step[i][which];
}
