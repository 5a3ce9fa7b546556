/* fold.h - what the evaluators of constant folding share.
 *
 * Data that repeats along an axis is kept once: v->data_dim[k] is 1 there although v->dim[k] is larger. A causal mask
 * expanded to [batch, 1, seq, seq] is then seq * seq elements while folding, the index tensors behind it are seq
 * elements each, and a mask of ones is one element. Evaluators read data as an array of shape data_dim and broadcast;
 * those that cannot ask for dense data. */
#ifndef FERRY_GRAPH_FOLD_H
#define FERRY_GRAPH_FOLD_H

#include "graph/ops.h"

/* Most bytes of one folded value, and of all of a model. */
static const int64_t FOLD_VALUE_BYTES = (int64_t)256 << 20;
static const int64_t FOLD_TOTAL_BYTES = (int64_t)1 << 30;

/* Memory for output i with this data_dim (of the output's rank). NULL: too large, or out of memory, or not wanted: the
 * evaluator then returns d->status, and the value stays computed. */
void *fold_output(Diag *d, Model *m, ModelNode *n, int i, const int64_t *data_dim);
/* The same with data_dim = dim. */
void *fold_output_dense(Diag *d, Model *m, ModelNode *n, int i);
/* Output i shares the input's data under another data_dim. */
void fold_share(Model *m, ModelNode *n, int i, const Value *from, const int64_t *data_dim);
/* Dense data of a value, made on demand; NULL as fold_output. */
const void *fold_dense(Diag *d, Model *m, const Value *v);
/* All elements are the same one (data holds at least it): shapes do not matter then. */
bool fold_uniform(const Value *v);
/* Output i is `from`'s first element everywhere. */
Status fold_fill(Diag *d, Model *m, ModelNode *n, int i, const Value *from);

int64_t dims_count(int rank, const int64_t *dim);
/* Row-major strides in elements, 0 for axes of extent 1, for data_dim read inside a larger shape of out_rank axes. */
void fold_strides(const Value *v, int out_rank, int64_t stride[MAX_RANK]);

/* Numbers of any type: floats as double, integers as 64 bits (unsigned ones by cast), bool as 0 or 1. Writing rounds or
 * wraps to the type. */
double num_real(ferry_dtype t, const void *p, int64_t i); /* of every type */
int64_t num_int(ferry_dtype t, const void *p, int64_t i); /* of integers and bool */
void num_put_real(ferry_dtype t, void *p, int64_t i, double x);
void num_put_int(ferry_dtype t, void *p, int64_t i, int64_t x);

/* Visits an iteration space row by row: `each` gets the offsets of up to 4 arrays at the row's begin, and the row's
 * length with the arrays' strides along it. */
typedef struct Walk {
    int rank;
    int64_t dim[MAX_RANK];
    int arrays;
    int64_t stride[4][MAX_RANK];
    /* state */
    int64_t index[MAX_RANK], offset[4], row, step[4];
    bool started;
} Walk;
/* Sets up rank, dim, arrays; strides are the caller's. */
bool walk_next(Walk *w); /* false when all rows are done; else offset, row and step are set */

#endif
