/* model.h - an ONNX model as imported: values, nodes with their attributes, and what folding and shape inference found out.
 * The next stage (graph.h) lowers it to kernels. Everything lives in the arena that the import was given. */
#ifndef FERRY_GRAPH_MODEL_H
#define FERRY_GRAPH_MODEL_H

#include "base/base.h"
#include "runtime/ferry.h"

enum { MAX_RANK = FERRY_MAX_RANK };

typedef enum ValueKind {
    VALUE_INPUT,       /* a graph input that is not an initializer */
    VALUE_INITIALIZER, /* weights; data is NULL when its external file is missing (see ModelOptions) */
    VALUE_CONSTANT,    /* Constant nodes and everything folded: data is known */
    VALUE_COMPUTED,
} ValueKind;

/* What an initializer was to the exporter (onnx_origin.c). */
typedef enum Origin {
    ORIGIN_UNKNOWN,
    ORIGIN_PARAMETER,
    ORIGIN_BUFFER,
    ORIGIN_COMPUTED_PARAMETER, /* computed by the exporter, from parameters as it seems */
    ORIGIN_COMPUTED,           /* computed by the exporter, a constant as it seems */
} Origin;

typedef struct Value {
    const char *name;
    ValueKind kind;
    Origin origin;
    ferry_dtype dtype;
    int rank;                     /* -1 before inference, and in a branch that is not taken */
    int64_t dim[MAX_RANK];        /* -1 where not yet known; never after model_infer */
    const char *dim_name[MAX_RANK]; /* graph inputs: the symbolic name, NULL when a number */
    const void *data;             /* dense, in dtype (bool: one byte, 0 or 1), aligned; NULL when not known or not needed */
    int64_t data_dim[MAX_RANK];   /* inside model_infer: extent of data along each axis, 1 where it repeats; then = dim */
    bool data_missing;            /* initializer whose external file is not there */
    int producer;                 /* index of the node that computes it, -1 */
    size_t file_at;               /* initializers, of branches as well: where their message's content lies in the file */
} Value;

typedef enum AttrKind { ATTR_INT, ATTR_INTS, ATTR_FLOAT, ATTR_FLOATS, ATTR_STRING, ATTR_TENSOR, ATTR_GRAPH, ATTR_OTHER } AttrKind;
typedef struct Attr {
    const char *name;
    AttrKind kind;
    int64_t i;
    double f;
    const char *s;
    int count;
    const int64_t *ints;
    const double *floats;
    Value tensor; /* ATTR_TENSOR: name, dtype, shape, data */
} Attr;

typedef struct OpRow OpRow;
typedef struct ModelNode {
    const char *name;   /* as in the file, or "Op_N" when empty */
    const char *op, *domain;
    const OpRow *row;   /* never NULL after model_import: unknown operators are an error there */
    int n_in, n_out;
    int *in, *out;      /* value indices; -1 = omitted */
    int n_attr;
    Attr *attr;
    bool dead;          /* folded away or without a use */
    int guard;          /* in a branch of an If: index into Model.guard, else -1 */
} ModelNode;

/* The nodes of both branches of an If stand in the graph like all others. They count when the value `condition` is `taken`,
 * and so is the guard around it. */
typedef struct Guard {
    int condition, outer; /* value; guard, -1 */
    bool taken;
} Guard;

/* Of the initializers, where the file says which are parameters. */
typedef struct Origins {
    bool known;
    int parameters, constants;  /* computed by the exporter, by what they seem to be; constants that no mask is */
    const char *constant_name;  /* one of these, NULL */
    int missing;                /* parameters of the module that are no initializers */
    const char *missing_name;
} Origins;

typedef struct MappedFile MappedFile; /* onnx_wire.h */
typedef struct Model {
    Arena *arena;
    const char *path;
    char hash[33];      /* of the protobuf file */
    int64_t opset;      /* of the default domain */
    VEC(Value) value;   /* heap arrays: model_close frees them */
    VEC(ModelNode) node; /* topological order */
    VEC(Guard) guard;
    int n_input, *input;   /* value indices, file order */
    int n_output, *output;
    Origins origins;
    int64_t folded_bytes; /* that constant folding took from the arena */
    VEC(MappedFile) map; /* the file and its external data; model_close unmaps them */
    const void **fed; /* by input: its contents in its type where they are known before (model_feed), else NULL */
} Model;

typedef struct DimBinding {
    const char *name;
    int64_t size;
} DimBinding;
typedef struct ShapeBinding {
    const char *input;
    int rank;
    int64_t dim[MAX_RANK];
} ShapeBinding;

/* What the user says about a model; profile.yaml records it so that later commands import the same graph again. */
typedef struct ModelOptions {
    const char *path;
    int n_dim;
    DimBinding *dim;           /* --dim NAME=SIZE */
    int n_shape;
    ShapeBinding *shape;       /* --shape INPUT=8x512 */
    const char *loss;          /* --loss, NULL when not given */
    int n_train, n_freeze, n_tie;
    const char **train, **freeze, **tie; /* --train GLOB, --freeze GLOB, --tie A=B or A=B^T */
    ferry_dtype precision;     /* FERRY_F32, FERRY_F64, or for training FERRY_BF16 */
    bool allow_missing_data;   /* shapes are enough: profile, plan, emit --random-init */
    bool composed;             /* nothing is fused (fuse.h): every operator as the kernels that it is lowered to; for tests */
    bool forward;              /* only to be run once: loss, train, freeze and tie mean nothing */
    const char *dump_after;    /* pass whose result is printed to stderr, NULL for none */
} ModelOptions;

/* Reads and checks the file: sizes, counts and nesting on the wire before anything is unpacked (onnx_scan.c), then by
 * protobuf-c with a bounded allocator. ST_USAGE: no such file. ST_MODEL: not ONNX, truncated, inconsistent, an unsupported
 * operator or opset (file, node and operator named), missing external data (the file named, --random-init offered) unless
 * allowed. External data is mapped or read below the model's folder only: no absolute path, "..", or link that leaves it. */
Status model_import(Diag *d, Arena *a, const ModelOptions *options, Model **out);
void model_close(Model *m);

/* Binds symbolic input dimensions. Unbound ones are ST_USAGE and listed with a command to paste; a binding that names
 * nothing in the model is ST_USAGE as well. */
Status model_bind(Diag *d, Model *m, const ModelOptions *options);

/* For a model that is only run: gives the inputs their contents (`feed` by name, which must live as long as the model) and
 * binds all dimensions by the shapes of these, with options->dim and options->shape, which must agree. Every input is
 * needed. ST_USAGE names an input that is missing or that the model does not have; ST_MODEL one whose shape or type
 * does not fit: whole numbers may have another type as long as the values fit, floating ones a narrower one. */
Status model_feed(Diag *d, Model *m, const ModelOptions *options, int n_feed, const ferry_tensor *feed);
/* needs: fed inputs   fills: data of the inputs from which shapes, axes and the like are computed, and of those that only
 * folding can work on   keeps: everything else
 * So that shape inference sees the values that it has to know when compiling; other inputs stay open. */
Status model_know_inputs(Diag *d, Model *m);

/* needs: bound inputs   fills: dtype, rank, dim of every value; data of values that depend on no input's contents
 * keeps: node order     spoils: nodes whose outputs are all known become dead, as do nodes that no output needs
 * Constant folding and shape inference are one pass in topological order since each needs the other. Initializers that can
 * be parameters (value_is_trainable) are not folded, unless every path to an output passes through Sin or Cos. While folding,
 * data that repeats along an axis is kept once (data_dim); what is larger than 256 MiB even so is not folded.
 * A constant that only broadcasting operators read is left with 1 for the axes along which it repeats, where another
 * operand of each reader has the full extent: the readers' own outputs say what to broadcast to. */
Status model_infer(Diag *d, Model *m);

/* One line a value and node, for --dump and tests. */
void model_print(const Model *m, Text *to);

const Attr *node_attr(const ModelNode *n, const char *name); /* NULL when absent */
int64_t node_attr_int(const ModelNode *n, const char *name, int64_t otherwise);
double node_attr_float(const ModelNode *n, const char *name, double otherwise);
int64_t value_count(const Value *v); /* elements */
/* A floating initializer that can be a parameter: one of rank 1 and more, or a scalar of which the exporter says so. */
bool value_is_trainable(const Value *v);

/* ---- the operator table (ops.c): one row an ONNX operator ------------------------------------------------------------ */

typedef struct Lowering Lowering; /* lower.h: the state of model -> graph */

struct OpRow {
    const char *op;
    int since, until; /* opsets that the row covers; an operator may have several rows */
    /* Fills dtype and shape of the outputs from those of the inputs, and from the values of shape-like inputs. */
    Status (*infer)(Diag *d, Model *m, ModelNode *n);
    /* Computes the outputs' data from the inputs' data, which is all known. NULL: cannot be folded. */
    Status (*fold)(Diag *d, Model *m, ModelNode *n);
    /* Adds the kernels (or the view) that compute the node. NULL: only where it folds. */
    Status (*lower)(Diag *d, Lowering *l, ModelNode *n);
};

const OpRow *op_find(const char *domain, const char *op, int64_t opset); /* NULL when unsupported */
/* The rows, for listings. */
const OpRow *op_rows(int *count);

/* Error about a node: file, node, operator and the text. */
Status node_fail(Diag *d, const Model *m, const ModelNode *n, const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
