/* ops_lower.h - the lower functions that the operator table (ops.def) names. Each adds the kernels of one model node.
 */
#ifndef FERRY_GRAPH_OPS_LOWER_H
#define FERRY_GRAPH_OPS_LOWER_H

#include "graph/model.h"

/* lower_math.c */
Status lower_unary(Diag *d, Lowering *l,
                   ModelNode *n); /* Neg Abs Sqrt Exp Log Tanh Erf Sigmoid Relu Reciprocal Sin Cos Not */
Status lower_binary(Diag *d, Lowering *l, ModelNode *n);   /* Add Sub Mul Div */
Status lower_variadic(Diag *d, Lowering *l, ModelNode *n); /* Max Min, any number of inputs */
Status lower_compare(Diag *d, Lowering *l, ModelNode *n);  /* Equal Less LessOrEqual Greater GreaterOrEqual */
Status lower_logic(Diag *d, Lowering *l, ModelNode *n);    /* And Or */
Status lower_pow(Diag *d, Lowering *l, ModelNode *n);
Status lower_where(Diag *d, Lowering *l, ModelNode *n);
Status lower_cast(Diag *d, Lowering *l, ModelNode *n);
Status lower_reduce(Diag *d, Lowering *l, ModelNode *n); /* ReduceMean ReduceSum */
Status lower_gelu(Diag *d, Lowering *l, ModelNode *n);

/* lower_shape.c */
Status lower_same_bytes(Diag *d, Lowering *l, ModelNode *n); /* Reshape Squeeze Unsqueeze Flatten Identity */
Status lower_transpose(Diag *d, Lowering *l, ModelNode *n);
Status lower_split(Diag *d, Lowering *l, ModelNode *n);
Status lower_slice(Diag *d, Lowering *l, ModelNode *n);
Status lower_concat(Diag *d, Lowering *l, ModelNode *n);
Status lower_expand(Diag *d, Lowering *l, ModelNode *n);
Status lower_tile(Diag *d, Lowering *l, ModelNode *n);
Status lower_gather(Diag *d, Lowering *l, ModelNode *n);

/* lower_nn.c */
Status lower_matmul(Diag *d, Lowering *l, ModelNode *n);
Status lower_gemm(Diag *d, Lowering *l, ModelNode *n);
Status lower_layer_normalization(Diag *d, Lowering *l, ModelNode *n);
Status lower_softmax(Diag *d, Lowering *l, ModelNode *n);
Status lower_cross_entropy(Diag *d, Lowering *l, ModelNode *n); /* SoftmaxCrossEntropyLoss */

#endif
