/* call.h - kernel calls without argument pointers, as values: one function for each ferry_op that the compiler makes.
 * Strided calls are simplified: dimensions of size 1 are dropped and neighbours that are walked as one are merged, so
 * that an addition of two equal shapes is a call of rank 1 whatever the rank was. */
#ifndef FERRY_GRAPH_CALL_H
#define FERRY_GRAPH_CALL_H

#include "graph/model.h"

/* Row-major strides of a dense tensor. */
void strides_dense(int rank, const int64_t *dim, int64_t *stride);
/* Strides with which a dense tensor is read when it is broadcast to `rank` dimensions (numpy's rule, aligned on the
 * right). */
void strides_broadcast(int rank, int from_rank, const int64_t *from_dim, int64_t *stride);
/* Product of rank dims, 1 for rank 0. */
int64_t dims_count(int rank, const int64_t *dim);
/* Simplifies an iteration space with n stride rows in place; rank stays at least 1. */
void space_simplify(int *rank, int64_t *dim, int64_t (*stride)[FERRY_MAX_RANK], int n);

ferry_kernel call_new(ferry_op op, ferry_dtype t);
ferry_kernel call_linear(ferry_dtype t, int64_t m, int64_t k, int64_t n, bool trans_b);
/* op is UNARY or UNARY_GRAD */
ferry_kernel call_unary(ferry_op op, ferry_dtype t, ferry_fn fn, int64_t n);
/* op is BINARY, BINARY_GRAD_A or BINARY_GRAD_B */
ferry_kernel call_binary(ferry_op op, ferry_dtype t, ferry_fn fn, int rank, const int64_t *dim, const int64_t *a_stride,
                         const int64_t *b_stride);
ferry_kernel call_where(ferry_dtype t, int rank, const int64_t *dim, const int64_t *cond_stride,
                        const int64_t *a_stride, const int64_t *b_stride);
ferry_kernel call_reduce(ferry_dtype t, ferry_fn fn, int rank, const int64_t *dim, uint32_t axes);
ferry_kernel call_copy(ferry_dtype t, int rank, const int64_t *dim, int64_t y_offset, const int64_t *y_stride,
                       int64_t x_offset, const int64_t *x_stride, double alpha);
/* y[i] = alpha * x[i] */
ferry_kernel call_scale(ferry_dtype t, int64_t n, double alpha, bool accumulate);
/* True when a copy moves every element of y (count elements) to where it already is: a view does as well. */
bool call_is_identity_copy(const ferry_kernel *c);
/* What a FUSED call computes, as expressions of its inputs x0..x6: "y0 = silu(x0) * x1". Values that are used more than once
 * are told first. */
void call_program_text(const ferry_kernel *c, Text *to);
/* True for a call that copies the transpose of a dense [*rows, *cols] matrix into a dense [*cols, *rows] one. */
bool call_is_transpose_2d(const ferry_kernel *c, int64_t *rows, int64_t *cols);

#endif
