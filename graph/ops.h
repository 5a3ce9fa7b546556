/* ops.h - shape rules and evaluators of the operator table, and what they share. */
#ifndef FERRY_GRAPH_OPS_H
#define FERRY_GRAPH_OPS_H

#include "graph/model.h"

typedef Status OpFunction(Diag *d, Model *m, ModelNode *n);

/* infer_shape.c: operators whose result is a shape, or whose shape is a value */
OpFunction infer_constant, infer_constant_of_shape, infer_shape, infer_size, infer_range,
    infer_eye_like, infer_non_zero, infer_one_hot;
/* infer_elementwise.c */
OpFunction infer_same, infer_cast, infer_not, infer_is_nan, infer_dropout, infer_arithmetic, infer_pow, infer_variadic,
    infer_compare, infer_logic, infer_where, infer_cast_like, infer_prelu, infer_bits;
/* infer_move.c */
OpFunction infer_reshape, infer_flatten, infer_squeeze, infer_unsqueeze, infer_concat, infer_split, infer_slice,
    infer_transpose, infer_expand, infer_tile, infer_gather, infer_gather_elements, infer_gather_nd, infer_scatter_nd;
/* infer_index.c */
OpFunction infer_scatter_elements, infer_top_k;
/* infer_if.c */
OpFunction infer_if, fold_if;
/* A node in a branch that is not taken. ST_MODEL when that is not known. */
Status guard_skips(Diag *d, Model *m, const ModelNode *n, bool *out);
/* infer_attention.c */
OpFunction infer_rms_normalization, infer_rotary_embedding, infer_attention;
/* infer_math.c */
OpFunction infer_reduce, infer_softmax, infer_layer_normalization, infer_matmul, infer_gemm, infer_cross_entropy,
    infer_arg;
/* einsum.c */
OpFunction infer_einsum;

/* infer_window.c */
OpFunction infer_conv, infer_conv_transpose, infer_pool, infer_global_pool, infer_batch_normalization,
    infer_instance_normalization, infer_group_normalization, infer_lrn, infer_resize, infer_pad, infer_depth_space;

/* fold_shape.c */
OpFunction fold_constant, fold_constant_of_shape, fold_shape, fold_size, fold_range, fold_copy, fold_dropout,
    fold_eye_like, fold_non_zero;
/* fold_elementwise.c */
OpFunction fold_unary, fold_gelu, fold_clip, fold_cast, fold_binary, fold_variadic, fold_where, fold_is_inf;
/* fold_move.c */
OpFunction fold_concat, fold_split, fold_slice, fold_transpose, fold_expand, fold_tile, fold_trilu;
/* fold_gather.c */
OpFunction fold_gather, fold_gather_elements, fold_gather_nd, fold_scatter_nd, fold_scatter_elements;
/* fold_math.c */
OpFunction fold_reduce, fold_softmax, fold_cumsum, fold_matmul;

/* ---- for both ----------------------------------------------------------------------------------- */

Value *node_in(const Model *m, const ModelNode *n, int i);  /* NULL when omitted */
Value *node_out(const Model *m, const ModelNode *n, int i); /* NULL when omitted */
bool dtype_is_float(ferry_dtype t);
bool dtype_is_int(ferry_dtype t); /* not bool */

/* The first `min` inputs are there, and no more than `max`. */
Status node_arity(Diag *d, const Model *m, const ModelNode *n, int min, int max);
/* Type and shape of output i, if it is wanted; checks that the dimensions are not negative and the bytes countable. */
Status set_out(Diag *d, Model *m, ModelNode *n, int i, ferry_dtype t, int rank, const int64_t *dim);
/* A possibly negative axis to 0..rank-1 (0..rank with `end`, for positions between axes). */
Status axis_resolve(Diag *d, const Model *m, const ModelNode *n, int64_t axis, int rank, int *out);
/* An attribute of this kind, *out = NULL when absent; another kind is an error. */
Status attr_get(Diag *d, const Model *m, const ModelNode *n, const char *name, AttrKind kind, const Attr **out);

/* The values of an integer input of rank 0 or 1, in the arena: ST_MODEL when they depend on the contents of the model's
 * inputs. count is -1 when the input is omitted. */
typedef struct Ints {
    int count;
    int64_t *at;
} Ints;
Status known_ints(Diag *d, Model *m, const ModelNode *n, int i, const char *what, Ints *out);
/* From the attribute when the node has it, else from input i (an operator's older and newer form). */
Status attr_or_input_ints(Diag *d, Model *m, const ModelNode *n, const char *attr, int i, Ints *out);
/* The axes of Squeeze, Unsqueeze, Reduce*: resolved against rank, each once; count -1 when none are given. */
Status known_axes(Diag *d, Model *m, const ModelNode *n, int i, int rank, uint32_t *out, int *count);

/* Multidirectional broadcasting of `count` shapes: the right-most axes are aligned. */
Status broadcast_shapes(Diag *d, const Model *m, const ModelNode *n, const Value *const *v, int count, int *rank,
                        int64_t dim[MAX_RANK]);

/* How a Scatter* merges updates: FERRY_FN_NONE replaces. */
Status scatter_fn(Diag *d, const Model *m, const ModelNode *n, ferry_fn *out);
/* The share of elements that a Dropout drops: 0 outside of training mode. */
Status dropout_ratio(Diag *d, const Model *m, const ModelNode *n, double *out);
/* A BatchNormalization with the statistics of the batch: by training_mode from opset 14 on, before by its further outputs. */
bool batchnorm_trains(const Model *m, const ModelNode *n);

/* A Slice, read once for shape and data. */
typedef struct SliceSpec {
    int64_t start[MAX_RANK], step[MAX_RANK], count[MAX_RANK]; /* of every axis; the whole axis where nothing is said */
} SliceSpec;
Status slice_read(Diag *d, Model *m, ModelNode *n, SliceSpec *out);
/* Start of each output of a Split along the axis, count n_out + 1. */
Status split_read(Diag *d, Model *m, ModelNode *n, int *axis, int64_t *start);
/* The sizes of an Attention: queries [batch, heads, rows, size], keys [batch, kv_heads, columns, size], values the same with
 * value_size; of the columns the first `past` come from the cache. flat: inputs and output are [batch, rows, heads * size]. */
typedef struct AttentionShape {
    bool flat;
    int64_t batch, heads, kv_heads, rows, size, value_size, past, new_columns, columns;
} AttentionShape;
Status attention_read(Diag *d, const Model *m, const ModelNode *n, AttentionShape *out);
/* The axes [start, end) whose sizes a Shape returns. */
void shape_range(const Model *m, const ModelNode *n, int *start, int *end);
/* Number of elements of a Range. */
Status range_count(Diag *d, const Model *m, const ModelNode *n, int64_t *out);

#endif
