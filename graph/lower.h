/* lower.h - what the passes that add to the graph use: tensors, nodes, and the state of model -> graph.
 *
 * Every function that adds something may move Graph.tensor.at and Graph.node.at: keep indices, not pointers, across
 * calls. */
#ifndef FERRY_GRAPH_LOWER_H
#define FERRY_GRAPH_LOWER_H

#include "graph/call.h"
#include "graph/graph.h"

struct Lowering {
    const Model *model;
    Graph *graph;
    const ModelOptions *options;
    int *tensor_of; /* by value index: the graph's tensor, -1 when it has none yet */
    int *n_use;     /* by value index: live nodes' inputs that read it, plus graph outputs that are it */
    int n_dropout;  /* DROPOUT nodes so far: the salt of the next one */
    int *user;      /* by value index: a live node that reads it, -1; the only one when n_use is 1 */
};

/* ---- the model's values, for lower functions --------------------------------------------------------------------- */

/* The tensor of a node's input; constants are made on first use. *out = -1 when the input is omitted. ST_MODEL: a
 * constant whose values are in a missing file. */
Status lower_input(Diag *d, Lowering *l, const ModelNode *n, int i, int *out);
/* A new tensor for a node's output, dense, own bytes, shape and type from the model; also bound to the value. */
Status lower_output(Diag *d, Lowering *l, const ModelNode *n, int i, int *out);
/* Binds a node's output to a view of `tensor` with the output's shape. */
Status lower_view(Diag *d, Lowering *l, const ModelNode *n, int i, int tensor);
/* A tensor for an intermediate result of the node: float, dense, name made up. */
Status lower_temp(Diag *d, Lowering *l, const ModelNode *n, ferry_dtype t, int rank, const int64_t *dim, int *out);
/* A node with this call and the arguments, outputs first. */
Status lower_emit(Diag *d, Lowering *l, const ModelNode *n, const ferry_kernel *call, const int *arg);
/* True when output i exists and something reads it. */
bool lower_is_used(const Lowering *l, const ModelNode *n, int i);
/* Integers of input i, which must be known: axes, starts, splits. ST_MODEL when it is computed from the model's inputs.
 * An omitted input gives *out = NULL and *count = 0. */
Status lower_ints(Diag *d, Lowering *l, const ModelNode *n, int i, const int64_t **out, int *count);
/* The same from an attribute, or from input i when there is none: where an operator moved it between opsets. */
Status lower_ints_attr(Diag *d, Lowering *l, const ModelNode *n, const char *attr, int i, const int64_t **out,
                       int *count);
/* Attribute `axis` (else `otherwise`) in [0, rank). */
Status lower_axis(Diag *d, Lowering *l, const ModelNode *n, int rank, int64_t otherwise, int *out);
/* The graph's type of a value of this type: floating values have the graph's precision. */
ferry_dtype lower_dtype(const Graph *g, ferry_dtype t);
bool dtype_is_float(ferry_dtype t);

/* ---- adding to the graph ----------------------------------------------------------------------------------------- */

/* A dense tensor that owns its bytes. `name` is used as it is. ST_MODEL when its size overflows. */
Status graph_add_tensor(Diag *d, Graph *g, const char *name, TensorKind kind, ferry_dtype t, int rank,
                        const int64_t *dim, int *out);
/* Another shape for the same bytes; returns `of` itself when it has that shape and name is NULL. */
Status graph_add_view(Diag *d, Graph *g, const char *name, int of, int rank, const int64_t *dim, int *out);
/* A floating constant of one element in the graph's precision, rank 0. */
Status graph_add_scalar(Diag *d, Graph *g, double value, int *out);
/* The same in a given type. */
Status graph_add_number(Diag *d, Graph *g, ferry_dtype t, double value, int *out);
/* ferry_convert for constants: a finite number beyond the range of a narrower type becomes its largest, not infinite (a
 * mask of -3.4e38 in bf16). */
ferry_status graph_convert(void *dst, ferry_dtype to, const void *src, ferry_dtype from, int64_t n);
/* base + mark + number: a name that nothing else in the graph has. NULL when out of memory. */
const char *graph_made_up_name(Graph *g, const char *base);
/* Appends a node, outputs first in arg[0..node_n_arg). Sets the producer of its outputs. */
Status graph_add_node(Diag *d, Graph *g, const char *name, const char *onnx_op, Phase phase, int origin,
                      const ferry_kernel *call, const int *arg);
/* Recomputes Tensor.producer from the nodes. */
void graph_index_producers(Graph *g);
/* needs: lowered graph, loss   spoils: node and tensor indices
 * Removes what the loss does not need: nodes, then tensors and parameters that nothing reads. Inputs stay. From a training
 * graph nodes go as well that compute no element, so that none is left that works on an empty tensor: the sum of no
 * elements becomes a 0, and ST_MODEL names a node of another kind. */
Status graph_prune(Diag *d, Graph *g);
/* Removes tensors that no node, input, parameter or the loss refers to. spoils: tensor indices */
Status graph_sweep_tensors(Diag *d, Graph *g);

/* The part of graph_check that is about the order of backward nodes and about what is computed again. */
Status graph_check_backward(Diag *d, const Graph *g);

/* Root of a tensor, and whether a tensor is (a view of) a parameter. */
int graph_root(const Graph *g, int tensor);
bool graph_is_param(const Graph *g, int tensor);

#endif
