/* onnx_scope.h - names inside sub-graphs, so that their nodes can stand in one flat graph.
 *
 * A function's body sees its parameters and its own values only; a branch of an If sees its own values and all around
 * it. Values of either get the name of the calling node as a prefix: two calls, or two branches, may use the same
 * names. */
#ifndef FERRY_GRAPH_ONNX_SCOPE_H
#define FERRY_GRAPH_ONNX_SCOPE_H

#include "graph/onnx_wire.h"

typedef struct Scope Scope;
struct Scope {
    const Scope
        *outer; /* of a branch: where other names are looked up, NULL for the main graph; of a function's body unused */
    const char *prefix;
    bool function;
    int n_bound; /* of a function: parameters and results, and what the call gives for them ("": left out) */
    const char **formal, **actual;
    int n_attr; /* of a function: attributes of the call, and after them the defaults */
    const Attr *attr;
    int n_local; /* of a branch: names that it defines, sorted */
    const char **local;
    int guard; /* index into Model.guard, -1 */
    int depth;
};

/* The flat graph's name for a name in the scope (NULL: the main graph). In the arena, or `name` itself; NULL: out of
 * memory. */
const char *scope_name(Arena *a, const Scope *s, const char *name);
/* The attribute of the call that a body's attribute refers to; NULL when the call leaves it out. */
const Attr *scope_attr(const Scope *s, const char *name);
/* Collects the names that a graph defines, as far as its wire goes, into s->local. */
Status scope_read_locals(Diag *d, Arena *a, Wire graph, Scope *s);

#endif
