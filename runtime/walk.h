/* walk.h - walking over strided dimensions, for the kernels of every backend. */
#ifndef FERRY_RUNTIME_WALK_H
#define FERRY_RUNTIME_WALK_H

#include "runtime/both.h"
#include "runtime/ferry.h"

#include <string.h>

/* An odometer over dim with the offsets of up to three arguments. */
typedef struct ferryi_walk {
    int rank;
    int64_t dim[FERRY_MAX_RANK];
    int64_t stride[3][FERRY_MAX_RANK];
    int64_t index[FERRY_MAX_RANK];
    int64_t at[3];
    bool more; /* at is the offset of an element; false: there are no more */
} ferryi_walk;

FERRYI_BOTH void ferryi_walk_start(ferryi_walk *w)
{
    w->more = true;
    for (int i = 0; i < w->rank; i++) {
        w->index[i] = 0;
        w->more = w->more && w->dim[i] > 0;
    }
    w->at[0] = w->at[1] = w->at[2] = 0;
}

FERRYI_BOTH void ferryi_walk_next(ferryi_walk *w)
{
    for (int i = w->rank - 1; i >= 0; i--) {
        if (++w->index[i] < w->dim[i]) {
            for (int a = 0; a < 3; a++) {
                w->at[a] += w->stride[a][i];
            }
            return;
        }
        for (int a = 0; a < 3; a++) {
            w->at[a] -= (w->dim[i] - 1) * w->stride[a][i];
        }
        w->index[i] = 0;
    }
    w->more = false;
}

/* The call's dimensions and strides as they are. */
FERRYI_BOTH ferryi_walk ferryi_walk_plain(const ferry_kernel *k)
{
    ferryi_walk w;
    memset(&w, 0, sizeof(w));
    w.rank = k->rank;
    for (int i = 0; i < k->rank; i++) {
        w.dim[i] = k->dim[i];
        for (int a = 0; a < 3; a++) {
            w.stride[a][i] = k->stride[a][i];
        }
    }
    ferryi_walk_start(&w);
    return w;
}

/* The call's REDUCE as two walks over x (at[0]): the kept dimensions, in the order of y, and the reduced ones. Returns
 * the number of elements that are reduced to one. */
FERRYI_BOTH int64_t ferryi_walk_reduce(const ferry_kernel *k, ferryi_walk *kept, ferryi_walk *reduced)
{
    /* unsigned: the sizes of an empty x may not fit, but then no element of it is read */
    uint64_t stride = 1, count = 1, strides[FERRY_MAX_RANK];
    for (int i = k->rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= (uint64_t)k->dim[i];
    }
    memset(kept, 0, sizeof(*kept));
    memset(reduced, 0, sizeof(*reduced));
    for (int i = 0; i < k->rank; i++) {
        ferryi_walk *w = (k->axes >> i & 1) != 0 ? reduced : kept;
        count *= w == reduced ? (uint64_t)k->dim[i] : 1;
        w->dim[w->rank] = k->dim[i];
        w->stride[0][w->rank++] = (int64_t)strides[i];
    }
    ferryi_walk_start(kept);
    ferryi_walk_start(reduced);
    return (int64_t)count;
}

/* Joins neighbouring dimensions through which all three arguments step evenly and drops those of size 1, so that the
 * last dimension is as long as can be. At least one dimension is left. */
FERRYI_BOTH void ferryi_walk_join(ferryi_walk *w)
{
    int n = 0;
    for (int i = 0; i < w->rank; i++) {
        int64_t dim = w->dim[i];
        if (dim == 1) {
            continue;
        }
        bool even = n > 0;
        for (int a = 0; a < 3 && even; a++) {
            even = w->stride[a][n - 1] == dim * w->stride[a][i];
        }
        if (even) {
            w->dim[n - 1] *= dim;
        } else {
            w->dim[n++] = dim;
        }
        for (int a = 0; a < 3; a++) {
            w->stride[a][n - 1] = w->stride[a][i];
        }
    }
    if (n == 0) {
        n = 1;
        w->dim[0] = 1;
        w->stride[0][0] = w->stride[1][0] = w->stride[2][0] = 0;
    }
    w->rank = n;
}

#endif
