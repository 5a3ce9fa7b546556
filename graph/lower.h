/* lower.h - what the lower functions of the operator table use to build the graph. */
#ifndef FERRY_GRAPH_LOWER_H
#define FERRY_GRAPH_LOWER_H

#include "graph/graph.h"

struct Lowering {
    const Model *model;
    Graph *graph;
    const ModelOptions *options;
    int *tensor_of; /* by value index: the graph's tensor, -1 when it has none yet */
};

/* The tensor of a node's input (constants and parameters are made on first use), -1 when omitted or out of memory. */
int lower_input(Lowering *l, const ModelNode *n, int i);
/* A new tensor for a node's output, dense, own bytes, shape and type from the model; also bound to the value. */
int lower_output(Lowering *l, const ModelNode *n, int i);
/* Binds a node's output to a view of `tensor` with the output's shape. */
Status lower_view(Diag *d, Lowering *l, const ModelNode *n, int i, int tensor);
/* A tensor with the given shape, name made up from `base`. -1 when out of memory. */
int graph_add_tensor(Graph *g, const char *base, TensorKind kind, ferry_dtype t, int rank, const int64_t *dim);
int graph_add_view(Graph *g, int of, int rank, const int64_t *dim);
/* A node with this call, forward; args are set by the caller through the returned pointer (valid until the next add), all
 * -1 at first. NULL when out of memory. */
Node *graph_add_node(Graph *g, const char *name, const char *onnx_op, const ferry_kernel *call);

#endif
