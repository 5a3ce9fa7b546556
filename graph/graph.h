/* graph.h - the training graph: kernels in execution order, forward and then backward, and what the planner reasons
 * about: parameters, units, layers and segments.
 *
 * A node is one ferry_kernel (runtime/ferry_ops.def) whose arguments are tensors. A tensor owns its bytes or is a view
 * of another one (same bytes, another shape): `root` is the owner. Views have no node.
 *
 * Terms (planning.md): a *layer* is a forward node that reads parameters, in execution order l = 0..L-1. The
 * parameter-free forward nodes between two layers are A(l, l+1). A *segment* numbers both: 2l is what comes before
 * layer l (the last one, 2L, ends with the loss), 2l+1 is layer l. Every backward node belongs to the segment of the
 * forward node that it differentiates, so the backward pass visits segments from 2L down to 0. A *unit* is a set of
 * parameters that the same layers read; its *uses* are (layer, FP, RP or BP) in execution order, and only those in which a
 * kernel really reads it.
 *
 * *Recomputation*: the backward pass may compute forward values again instead of finding them kept (graph_recompute). The
 * nodes that do so are copies of forward nodes among the backward nodes, in a phase of their own, RP; for what a plan
 * decides about parameters they are part of the backward pass. */
#ifndef FERRY_GRAPH_GRAPH_H
#define FERRY_GRAPH_GRAPH_H

#include "graph/model.h"

typedef enum TensorKind {
    TENSOR_INPUT,    /* fed every step */
    TENSOR_PARAM,    /* Graph.param[Tensor.param] */
    TENSOR_CONST,    /* data known at compile time, in dtype */
    TENSOR_VALUE,    /* computed by a node: activations and their gradients */
    TENSOR_STATE,    /* running statistics, Graph.param[Tensor.param]: one forward node a step brings them up to date in
                      * place, and no other node reads or writes them */
    TENSOR_GRADIENT, /* gradient of Graph.param[Tensor.param]; several nodes may accumulate into it */
} TensorKind;

typedef struct Tensor {
    const char *name; /* ONNX name; "grad:NAME" for gradients; made up and unique for temporaries */
    TensorKind kind;
    ferry_dtype dtype; /* floating tensors have the graph's precision, statistics and the loss graph_wide_dtype */
    int rank;
    int64_t dim[MAX_RANK];
    int64_t count, bytes;
    int root;         /* owner of the bytes: itself, or the tensor of which it is a view */
    int param;        /* TENSOR_PARAM, TENSOR_STATE and TENSOR_GRADIENT, else -1 */
    const void *data; /* TENSOR_CONST */
    int producer;     /* first node that writes it, -1; of a view: that of its root */
    int grad_of; /* root of the forward tensor whose gradient this is, -1. Gradients of several tensors may be views of
                  * the same bytes as long as nothing is added to them (graph_check) */
    /* filled by graph_liveness, of the root, over all views: node indices, -1 when there is none */
    int first_write, last_use;
} Tensor;

typedef enum Phase { PHASE_FP, PHASE_BP, PHASE_RP, PHASE_COUNT } Phase;
const char *phase_name(Phase p); /* "fp", "bp", "rp" */

typedef struct Node {
    const char *name;        /* ONNX node name; of a backward node that of its forward node */
    const char *onnx_op;     /* the same for the operator */
    ferry_kernel call;       /* without arg pointers */
    int arg[FERRY_MAX_ARGS]; /* tensor indices, outputs then inputs; -1 absent. call.accumulate: outputs are read too */
    Phase phase;
    int origin; /* forward node that a backward node differentiates or computes again; its own index for a forward node */
    int segment;
} Node;

typedef enum InitKind {
    INIT_NORMAL,
    INIT_ZERO,
    INIT_ONE
} InitKind; /* for --random-init: N(0, 0.02), biases, norm scales */

/* Another initializer of the file that is this parameter. */
typedef struct ParamAlias {
    const char *name;
    bool transposed;
} ParamAlias;

typedef struct Param {
    const char *name; /* ONNX initializer */
    int tensor, grad; /* tensor indices; grad -1 when frozen */
    bool trainable;
    bool state; /* running statistics (TENSOR_STATE): kept, saved and exported like parameters, but in no unit */
    int unit;   /* -1 for state */
    int64_t count, bytes; /* in the graph's precision */
    ferry_dtype file_dtype;
    const void *data; /* in file_dtype; NULL when the external file is missing */
    InitKind init;
    int n_alias;
    ParamAlias *alias;
} Param;

typedef struct Use {
    int layer;
    Phase phase;
} Use;

typedef struct Unit {
    const char *name; /* common part of the layer's or parameter's names, unique */
    int n_param, *param;
    int64_t bytes;      /* of all parameters */
    int64_t grad_bytes; /* of the trainable ones; 0 when all are frozen */
    int n_use;
    Use *use;
} Unit;

typedef struct Layer {
    const char *name; /* unique, readable: "transformer.h.0.attn.c_attn" */
    const char *op;   /* "Embedding", "Linear", "LayerNorm", else the ONNX operator */
    int node;         /* the forward node */
    int n_unit, *unit;
} Layer;

typedef struct Graph Graph;
struct Graph {
    Arena *arena;
    const Model *model; /* for names and the hash; outlives the graph */
    const char *mark;   /* stands between base and number in made-up names; no name of the model contains it */
    ferry_dtype precision;
    VEC(Tensor) tensor;
    VEC(Node) node; /* nodes [0, n_forward) forward, the rest backward, in execution order */
    int n_forward;
    int n_param, n_unit, n_layer, n_segment; /* n_segment = 2 * n_layer + 1 */
    Param *param;
    Unit *unit;
    Layer *layer;
    int n_input, *input; /* tensors, the model's inputs and then what --loss added ("labels") */
    int loss;            /* tensor, one element; -1 in a forward graph */
    bool forward;        /* made by graph_forward: no loss and no backward nodes; nodes may work on empty tensors */
    int n_output, *output; /* forward graphs: tensors of the model's outputs, in its order */
    /* Of a graph with recomputation: the one without; the tensors that end the segments that are computed again, in order.
     * It lies in an arena, and graph_close only closes the plain graph. */
    const Graph *plain; /* else NULL */
    int n_again;
    const char **again;
};

/* All passes from a bound, inferred model to a checked training graph, with a --dump after any of them ("lower", "tie",
 * "fuse", "autodiff", "layers", "liveness"). The model must outlive the graph. graph_close frees the heap arrays. */
Status graph_build(Diag *d, Arena *a, const Model *m, const ModelOptions *options, Graph **out);
/* model_import, model_bind, model_infer and graph_build; closes nothing on success. */
Status graph_from_options(Diag *d, Arena *a, const ModelOptions *options, Model **model, Graph **out);
void graph_close(Graph *g);

/* The forward nodes of an inferred model and nothing else, for one execution (exec.h): no loss, no gradients, no layers;
 * liveness is filled. Parameters are as in training, but nothing has to be trainable. */
Status graph_forward(Diag *d, Arena *a, const Model *m, const ModelOptions *options, Graph **out);
/* model_import, model_feed, model_know_inputs, model_infer and graph_forward. options->precision FERRY_DTYPE_COUNT means:
 * f64 when an input or initializer of the model is double, else f32. */
Status forward_from_options(Diag *d, Arena *a, const ModelOptions *options, int n_feed, const ferry_tensor *feed,
                            Model **model, Graph **out);

/* ---- the passes -------------------------------------------------------------------------------------------------- */

/* needs: inferred model   fills: tensors, forward nodes, parameters, inputs   keeps: execution order of the model
 * Parameters: initializers that can be (value_is_trainable) and reach the outputs, unless every path passes through Sin or
 * Cos; --freeze and --train decide which are trainable. Other initializers and constants are TENSOR_CONST. */
Status graph_lower(Diag *d, Arena *a, const Model *m, const ModelOptions *options, Graph **out);
/* Merges parameters with equal values, or values equal after a transpose (elements that are all the same are no
 * evidence), and those of --tie; the nodes that read the second one read the first (with trans_b flipped). What an
 * embedding reads keeps its layout. --train and --freeze match any of a parameter's names. Reports each tie as a note.
 * Ambiguous or impossible --tie: ST_USAGE. */
Status graph_tie(Diag *d, Graph *g, const ModelOptions *options);
/* Adds --loss to the graph or takes its scalar output. ST_USAGE when there is none, naming the outputs. */
Status graph_loss(Diag *d, Graph *g, const ModelOptions *options);
/* needs: forward nodes, loss   fills: backward nodes, gradient tensors, Param.grad   keeps: forward nodes
 * Nodes that nothing needs are removed first. Warns of trainable parameters that do not reach the loss (frozen then).
 * ST_MODEL names the node whose operator has no gradient on a path from a trainable parameter. */
Status graph_autodiff(Diag *d, Graph *g);
/* fills: layers, units, segments */
Status graph_layers(Diag *d, Graph *g);
/* fills: first_write, last_use of each root tensor */
Status graph_liveness(Diag *d, Graph *g);
/* fills: Unit.use   needs: segments */
Status graph_find_uses(Diag *d, Graph *g);
/* The place of (layer of the node, phase of the node) among the uses of a unit; -1 when the unit has no such use. */
int graph_use_of_node(const Graph *g, const Node *n, int unit);

/* A place where the forward pass can be cut: few bytes are carried over it. The segments of recomputation end here. */
typedef struct Cut {
    int node;            /* the last forward node before it */
    const char *name;    /* of the tensor that this node writes first */
    int64_t carried_bytes; /* of values that later forward nodes read */
    int64_t saved_bytes;   /* of all values up to here that the backward pass reads */
} Cut;
/* needs: a checked training graph   fills: the narrow places in execution order; arena memory. *total_bytes: all values that
 * the backward pass reads. */
Status graph_cuts(Diag *d, Arena *a, const Graph *g, Cut **out, int *n, int64_t *total_bytes);
/* The last forward node of a segment that this tensor ends, -1 when it is not written by the forward pass or there is no
 * backward pass after it. */
int graph_end_node(const Graph *g, const char *tensor);
/* needs: a checked training graph, names of tensors whose end nodes rise   fills: a graph of its own in the arena
 * keeps: g, which has to live as long as the new graph; forward nodes, parameters, units, layers and tensor indices
 * The forward pass up to the last end is divided into segments; the backward pass of each computes again what it reads
 * of its own segment (recompute.c). ST_MODEL names a tensor that ends no segment. */
Status graph_recompute(Diag *d, Arena *a, const Graph *g, int n, const char *const *ends, const Graph **out);
/* Checks every invariant of this header; a failure is our own bug and says so (ST_FAILED). Run after every pass in
 * debug builds, and once at the end always. */
Status graph_check(Diag *d, const Graph *g);
void graph_print(const Graph *g, Text *to);
/* Warns, once each, of what the file does not show: dropout that is not there, a head that may be a copy of the embedding,
 * merged initializers, tables that are not trained. For a training graph. */
Status graph_warn(Diag *d, const Graph *g);

/* ---- questions --------------------------------------------------------------------------------------------------- */

/* The type of what bf16 is too narrow for: statistics, the loss, the parameters that the optimizer updates and its state.
 * f32 then, else the graph's precision. */
ferry_dtype graph_wide_dtype(const Graph *g);

int node_n_out(const Node *n);
int node_n_arg(const Node *n);
/* Fills call.arg from pointers by tensor index (already the right place for each tensor) and returns the call. */
ferry_kernel node_call(const Graph *g, const Node *n, void *const *pointer_of_tensor);
/* A deterministic estimate of a node's work, for splitting a segment's time among its nodes: never 0. */
int64_t node_cost(const Graph *g, const Node *n);
/* Bytes that the node reads of parameter tensors / of one argument, by what the kernel touches (an embedding touches
 * its rows only). */
int64_t node_arg_traffic_bytes(const Graph *g, const Node *n, int arg);

#endif
