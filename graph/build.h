/* build.h - lowering by expression: an operator that is a composition of kernels, written as one.
 *
 * Each function adds one kernel (or a view) of the node and returns the tensor it computes, in broadcast shape, with a
 * made-up name. Errors stick: after the first one everything returns -1 and does nothing, and build_give returns it.
 * Gradients, cost and code generation of such an operator are those of its kernels. */
#ifndef FERRY_GRAPH_BUILD_H
#define FERRY_GRAPH_BUILD_H

#include "graph/lower.h"

typedef struct Build {
    Diag *d;
    Lowering *l;
    const ModelNode *n;
    Status status;
} Build;

Build build_start(Diag *d, Lowering *l, const ModelNode *n);
/* Input i of the node, -1 when it is omitted. */
int build_input(Build *b, int i);
/* The tensor by value; only valid when status is ST_OK. */
Tensor build_tensor(const Build *b, int x);

/* A constant of one element, of any type (rounded to it). */
int build_number(Build *b, ferry_dtype t, double value);
/* 0, 1, .., count - 1 as a constant of shape [count]. */
int build_iota(Build *b, ferry_dtype t, int64_t count);
/* `count` ones, [count] */
int build_ones(Build *b, ferry_dtype t, int64_t count);
int build_unary(Build *b, ferry_fn fn, int x);
int build_binary(Build *b, ferry_fn fn, int x, int y);
/* fn(x, c) with a number of x's type. */
int build_with(Build *b, ferry_fn fn, int x, double c);
int build_where(Build *b, int cond, int x, int y);
int build_cast(Build *b, ferry_dtype t, int x); /* x itself when it has that type */
/* Over the axes (bit i: axis i), which stay with size 1. */
int build_reduce(Build *b, ferry_fn fn, int x, uint32_t axes);
/* table[k, ..] by i64 or i32 ids, which the kernel checks: [number of ids, size of a row] */
int build_lookup(Build *b, int table, int ids);
/* x[b, m, k] times y[b, k, n] */
int build_batched(Build *b, int x, int y);
/* The same bytes. */
int build_view(Build *b, int x, int rank, const int64_t *dim);
/* y[i] = x[offset + i . stride] */
int build_copy(Build *b, int x, int rank, const int64_t *dim, int64_t offset, const int64_t *stride);
/* x[.., start : end, ..] of one axis; x itself when that is all of it */
int build_slice(Build *b, int x, int axis, int64_t start, int64_t end);
int build_concat(Build *b, int x, int y, int axis);
/* log(sum(exp(x))) over the axes, without overflow */
int build_log_sum_exp(Build *b, int x, uint32_t axes);
/* Output i of the node is x, whose elements are the output's in another shape at most. */
Status build_give(Build *b, int i, int x);

#endif
