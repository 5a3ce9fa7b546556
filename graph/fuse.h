/* fuse.h - replacing what models spell out in element-wise kernels by the one kernel that does it: what the passes
 * fuse_*.c share. Each rewrites the last node of the group that it found and leaves the others without a reader; pruning
 * then removes them. */
#ifndef FERRY_GRAPH_FUSE_H
#define FERRY_GRAPH_FUSE_H

#include "graph/lower.h"

/* Who reads and writes the bytes of each root. A node is listed once for every argument. */
typedef struct Links {
    int *reader_at, *reader; /* readers of root r: reader[reader_at[r]..reader_at[r + 1]) */
    int *writers, *writer;   /* how many nodes write root r, and one of them */
    bool *kept;              /* the loss or an output: also read from outside */
} Links;
Status fuse_links(Diag *d, const Graph *g, Links *out);

/* The node that computes all of a tensor, -1 when there is none or several. */
int fuse_maker(const Graph *g, const Links *l, int tensor);
/* The only node that reads a tensor, and only once; -1 when there is none, several, or it is an output. */
int fuse_reader(const Graph *g, const Links *l, int tensor);
int fuse_reader_count(const Graph *g, const Links *l, int tensor);
/* The number that a tensor is when it is a constant of one element. */
bool fuse_number(const Graph *g, int tensor, double *out);
/* The other operand of a binary node of which one is a number; -1 when none is. *first: the number comes first. */
int fuse_operand(const Graph *g, const Node *n, double *number, bool *first);

/* needs: pruned forward nodes   fills: UNARY nodes of GELU, GELU_TANH, SILU   keeps: node and tensor indices
 * spoils: nodes without a reader are left */
Status graph_fuse_activations(Diag *d, Graph *g);
/* The same for LAYERNORM nodes, with a mean or without (RMS normalization). */
Status graph_fuse_norms(Diag *d, Graph *g);

#endif
