/* build_nn.h - more kernels as expressions (build.h): products, softmax, and whole arrays of constants. */
#ifndef FERRY_GRAPH_BUILD_NN_H
#define FERRY_GRAPH_BUILD_NN_H

#include "graph/build.h"

/* alpha * x[.., m, k] * y[.., k, n], or y[.., n, k] with trans_y; leading dimensions broadcast. */
int build_matmul(Build *b, int x, int y, bool trans_y, double alpha);
/* Over the last axis. */
int build_softmax(Build *b, int x);
/* y's axis i is x's axis perm[i]. */
int build_transpose(Build *b, int x, const int *perm);
/* A constant; data in t, in the graph's arena. */
int build_constant(Build *b, ferry_dtype t, int rank, const int64_t *dim, const void *data);
/* table[k, n][ids]: [count, n], where ids are row numbers. */
int build_rows(Build *b, int table, int64_t k, int64_t n, int ids);
/* Row numbers as RAVEL makes them: one for each index of dim. */
int build_ravel(Build *b, int ids, int rank, const int64_t *dim, const int64_t *base, const int64_t *ids_stride,
                int64_t count, const int64_t *sizes, int64_t unit);

#endif
