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

/* (*out)[r]: root r is a parameter or computed from one. */
Status fuse_dependent(Diag *d, const Graph *g, bool **out);

/* ---- strided reading (fuse_access.c) ---- */

/* How a kernel walks over the bytes of a root: pieces from the outermost to the innermost, each with a tag that says of
 * which of the kernel's axes it is a part. One axis may be in several pieces. Pieces of size 1 are left out. */
typedef struct Piece {
    int tag;
    int64_t size, stride;
} Piece;
enum { MOST_PIECES = 12 };
typedef struct Access {
    int root;
    int64_t offset;
    int count;
    Piece piece[MOST_PIECES];
} Access;

/* False: no room. */
bool access_add(Access *a, int tag, int64_t size, int64_t stride);
/* The walk over the other side (1 - side) of a copy whose side (0: y, 1: x) `a` walks over. False: `a` does not visit each
 * element of that side once, or the result is no walk with fixed steps. */
bool access_through(const Graph *g, const Node *copy, int side, const Access *a, Access *out);
/* Gives the innermost `size` elements of tag `from` the tag `to`. */
bool access_take(Access *a, int from, int to, int64_t size);
/* The pieces of one tag, from the outermost to the innermost, as one: false when their steps differ. Size 1 when there are
 * none. */
bool access_axis(const Access *a, int tag, int64_t *size, int64_t *stride);
/* Splits the pieces of a tag of several accesses so that all have the same sizes: false when they do not divide. */
bool access_align(Access *const *a, int count, int tag);
/* Elements that are visited, repeated visits (steps of 0) left out. */
int64_t access_elements(const Access *a);
/* The visited elements as runs [offset, offset + *width) of each row of *pitch elements, for all rows of the root. */
bool access_rows(const Graph *g, const Access *a, int64_t *pitch, int64_t *width);

/* ---- spaces (fuse_space.c) ---- */

/* The dimensions of two spaces of as many elements cut so that each is a part of one of each: part[i][which] is the dimension
 * that the i-th one is a part of, and step[i][which] how many places there one step in it is. None has the size 1. */
typedef struct CommonSpace {
    int rank;
    int64_t dim[FERRY_MAX_RANK], step[FERRY_MAX_RANK][2];
    int part[FERRY_MAX_RANK][2];
} CommonSpace;
/* False: the sizes do not divide each other, or there are too many. */
bool space_common(int rank_a, const int64_t *dim_a, int rank_b, const int64_t *dim_b, CommonSpace *out);
/* Strides of one of the two spaces in the common one. `out` may not be `stride`. */
void space_strides(const CommonSpace *c, int which, const int64_t *stride, int64_t *out);

/* ---- the passes ---- */

/* needs: pruned forward nodes   fills: UNARY nodes of GELU, GELU_TANH, SILU   keeps: node and tensor indices
 * spoils: nodes without a reader are left */
Status graph_fuse_activations(Diag *d, Graph *g);
/* The same for LAYERNORM nodes, with a mean or without (RMS normalization). */
Status graph_fuse_norms(Diag *d, Graph *g);
/* The same for ATTENTION nodes: no product of rows and columns is kept. Transposes and slices of q, k, v and y vanish where
 * the kernel can walk over what they read. */
Status graph_fuse_attention(Diag *d, Graph *g);
/* The same for ROTARY nodes. */
Status graph_fuse_rotary(Diag *d, Graph *g);
/* needs: nodes, forward and backward   fills: FUSED nodes   spoils: node and tensor indices, Tensor.grad_of
 * Element-wise kernels that work on the same elements become one. */
Status graph_fuse_chains(Diag *d, Graph *g);

#endif
