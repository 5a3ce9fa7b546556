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

/* lower_index.c */
Status lower_gather_elements(Diag *d, Lowering *l, ModelNode *n);
Status lower_gather_nd(Diag *d, Lowering *l, ModelNode *n);
Status lower_scatter_elements(Diag *d, Lowering *l, ModelNode *n); /* and Scatter */
Status lower_scatter_nd(Diag *d, Lowering *l, ModelNode *n);
Status lower_top_k(Diag *d, Lowering *l, ModelNode *n);
Status lower_dropout(Diag *d, Lowering *l, ModelNode *n);
Status lower_if(Diag *d, Lowering *l, ModelNode *n);

/* lower_attention.c */
Status lower_layer_norm(Diag *d, Lowering *l, ModelNode *n);
Status lower_rms_norm(Diag *d, Lowering *l, ModelNode *n);
Status lower_rotary_embedding(Diag *d, Lowering *l, ModelNode *n);
Status lower_attention(Diag *d, Lowering *l, ModelNode *n);

/* lower_nn.c */
Status lower_matmul(Diag *d, Lowering *l, ModelNode *n);
Status lower_gemm(Diag *d, Lowering *l, ModelNode *n);
Status lower_layer_normalization(Diag *d, Lowering *l, ModelNode *n);
Status lower_softmax(Diag *d, Lowering *l, ModelNode *n);
Status lower_cross_entropy(Diag *d, Lowering *l, ModelNode *n); /* SoftmaxCrossEntropyLoss */

/* lower_activation.c */
/* LeakyRelu PRelu Elu Celu Selu ThresholdedRelu HardSigmoid HardSwish Softsign Mish Shrink */
Status lower_activation(Diag *d, Lowering *l, ModelNode *n);
Status lower_clip(Diag *d, Lowering *l, ModelNode *n);
Status lower_is_nan(Diag *d, Lowering *l, ModelNode *n);
Status lower_is_inf(Diag *d, Lowering *l, ModelNode *n);
Status lower_xor(Diag *d, Lowering *l, ModelNode *n);
Status lower_mod(Diag *d, Lowering *l, ModelNode *n);
Status lower_bits(Diag *d, Lowering *l, ModelNode *n); /* BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot */
Status lower_sum(Diag *d, Lowering *l, ModelNode *n);  /* Sum Mean */

/* lower_reduce.c */
Status lower_reduce(Diag *d, Lowering *l, ModelNode *n); /* all Reduce* */
Status lower_arg(Diag *d, Lowering *l, ModelNode *n);    /* ArgMax ArgMin */
Status lower_log_softmax(Diag *d, Lowering *l, ModelNode *n);
Status lower_hardmax(Diag *d, Lowering *l, ModelNode *n);
Status lower_cumsum(Diag *d, Lowering *l, ModelNode *n);
Status lower_one_hot(Diag *d, Lowering *l, ModelNode *n);
Status lower_trilu(Diag *d, Lowering *l, ModelNode *n);

/* lower_loss.c */
Status lower_softmax_loss(Diag *d, Lowering *l, ModelNode *n);    /* SoftmaxCrossEntropyLoss */
Status lower_likelihood_loss(Diag *d, Lowering *l, ModelNode *n); /* NegativeLogLikelihoodLoss */

/* einsum.c */
Status lower_einsum(Diag *d, Lowering *l, ModelNode *n);

/* lower_window.c */
Status lower_conv(Diag *d, Lowering *l, ModelNode *n);
Status lower_conv_transpose(Diag *d, Lowering *l, ModelNode *n);
Status lower_maxpool(Diag *d, Lowering *l, ModelNode *n);
Status lower_avgpool(Diag *d, Lowering *l, ModelNode *n);
Status lower_lp_pool(Diag *d, Lowering *l, ModelNode *n);
Status lower_global_pool(Diag *d, Lowering *l, ModelNode *n); /* GlobalAveragePool GlobalMaxPool GlobalLpPool */
Status lower_lrn(Diag *d, Lowering *l, ModelNode *n);
Status lower_batch_normalization(Diag *d, Lowering *l, ModelNode *n);
Status lower_instance_normalization(Diag *d, Lowering *l, ModelNode *n);
Status lower_group_normalization(Diag *d, Lowering *l, ModelNode *n);

/* lower_resize.c */
Status lower_resize(Diag *d, Lowering *l, ModelNode *n); /* Resize Upsample */
Status lower_pad(Diag *d, Lowering *l, ModelNode *n);
Status lower_depth_space(Diag *d, Lowering *l, ModelNode *n); /* DepthToSpace SpaceToDepth */

#endif
