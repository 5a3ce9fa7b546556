/* onnx_import.h - what the files of the importer share: onnx_import.c walks the file, onnx_nodes.c reads nodes and
 * attributes, onnx_calls.c puts the bodies of functions and branches in the place of their calls. */
#ifndef FERRY_GRAPH_ONNX_IMPORT_H
#define FERRY_GRAPH_ONNX_IMPORT_H

#include "graph/onnx_scope.h"

enum {
    MAX_VALUES = 1 << 20,
    MAX_NODES = 1 << 20,
    MAX_ATTRS = 256,
    MAX_CALLS = 1 << 16, /* of functions: each may call others twice over */
    MAX_SCOPES = 32,
    OLDEST_OPSET = 7,
    NEWEST_OPSET = 23,
};

typedef struct NameSlot {
    int value; /* index + 1, 0: free */
} NameSlot;

typedef struct Import {
    Diag *d;
    Model *m;
    const ModelOptions *options;
    const uint8_t *file;
    Wire graph;
    bool has_graph;
    NameSlot *slot; /* open addressing by the name's hash; a power of two, at most half full */
    size_t n_slot;
    VEC(const char **) in_name;          /* by node: names of its inputs */
    VEC(const char *) condition;         /* by guard: name of its condition */
    VEC(Onnx__FunctionProto *) function; /* that the model defines */
    VEC(WireField) function_wire;        /* the same in the file */
    int calls;                           /* of functions, and branches */
    int unsupported;                     /* nodes */
    Text unsupported_ops;
} Import;

/* ST_MODEL with the file's name. */
Status import_fail(Import *im, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* onnx_import.c: a value's index by its name, -1; a new value, whose name (copied) must be new as well. */
int value_find(Import *im, const char *name);
Status value_add(Import *im, const char *name, ValueKind kind, const char *definer, int *out);
Status import_initializer(Import *im, const WireField *f, const Scope *scope);

/* onnx_origin.c: which initializers are parameters, where the exporter says anything of it. */
Status import_origins(Import *im);

/* onnx_nodes.c: the nodes in field `number` of a graph or a function's body. */
Status import_nodes(Import *im, Wire body, uint32_t number, const Scope *scope);
/* The attributes in field `number` of a message, added to those that n has. A second one of a name is an error, or with
 * `defaults` ignored. */
Status import_attrs(Import *im, ModelNode *n, Onnx__AttributeProto *const *p, size_t count, const WireField *message,
                    uint32_t number, const Scope *scope, bool defaults);
/* A name in the scope, copied. */
Status copy_name(Import *im, const Scope *scope, const char *name, const char **out);
/* The node with its outputs, which become values. in_name: n.n_in names, copied. */
Status add_node(Import *im, ModelNode n, const char **in_name, const char *const *out_name);

/* onnx_calls.c: the model's function that a node calls, -1; its body in place of the call. */
int find_function(const Import *im, const Onnx__NodeProto *p, const char *domain);
Status call_function(Import *im, ModelNode *n, int function, const Onnx__NodeProto *p, const WireField *wire,
                     const char *const *in, const char *const *out, const Scope *outer);
/* The branches of an If; its inputs become the condition, the results of one branch and those of the other. */
Status import_branches(Import *im, ModelNode *n, const Onnx__NodeProto *p, const WireField *wire, const char ***in_name,
                       const Scope *outer);

#endif
