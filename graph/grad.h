/* grad.h - reverse mode over kernels: what the gradient rules (grad_*.c) use.
 *
 * Gradients are kept for the roots of forward tensors: a view has the gradient of its root, in its own shape, so views
 * need no rule. A forward root's gradient is the sum of one contribution for each kernel that reads it, and the
 * contributions arrive while those kernels are differentiated, the last reader first.
 *
 * Ownership. The gradient of a sum's operand is the sum's own gradient, unchanged: no copy is made, both forward
 * tensors share the bytes (Autodiff.share counts the forward roots that still read them). Bytes with one reader may be
 * added to in place. When a second contribution meets shared bytes, it goes into a fresh tensor to which the shared
 * ones are added. The share of a forward tensor ends when the kernel that produced it has been differentiated, since
 * nothing reads its gradient after that; the residual stream of a transformer thus ends up in one buffer without a
 * copy. */
#ifndef FERRY_GRAPH_GRAD_H
#define FERRY_GRAPH_GRAD_H

#include "graph/lower.h"

typedef struct Autodiff {
    Diag *d;
    Graph *g;
    int n_tensor; /* tensors before any gradient: the forward graph */
    int n_forward;
    int origin;     /* forward node being differentiated */
    int *grad;      /* by forward root: tensor of its gradient, -1 */
    bool *reached;  /* by forward root: a gradient flows into it */
    bool *parts;    /* by forward root: the gradient is written part by part, by slices that cover it */
    bool *written;  /* by parameter: something was written into its gradient */
    VEC(int) share; /* by tensor: forward roots whose gradient these bytes are (of gradient roots) */
    int *reader_at; /* readers of forward root r: reader[reader_at[r]..reader_at[r + 1]) */
    int *reader;
    bool grad_names_taken; /* the model has names that begin with "grad:" */
} Autodiff;

/* Where a rule writes its contribution: `tensor`, added to when `accumulate`. */
typedef struct Target {
    int tensor;
    bool accumulate;
    int add_from, add_to; /* grad_end adds the one to the other when add_to >= 0 */
} Target;

/* A gradient is wanted for this forward tensor; false for an omitted one. */
bool grad_wanted(const Autodiff *a, int x);
/* The gradient of output i of the node; it has the root's shape, which has the same bytes. */
int grad_in(const Autodiff *a, const Node *n, int i);
/* A contribution to x's gradient, of x's size: the rule emits one kernel that writes target->tensor, between these two.
 * can_accumulate: that kernel is able to add. */
Status grad_begin(Autodiff *a, int x, bool can_accumulate, Target *target);
Status grad_end(Autodiff *a, const Target *target);
/* A contribution to x that is dy itself. */
Status grad_pass(Autodiff *a, int x, int dy);
/* The kernel of one contribution: grad_begin, the node with arg[0] = target, grad_end. arg[0] of the caller is ignored.
 */
Status grad_write(Autodiff *a, int x, const ferry_kernel *call, bool can_accumulate, const int *arg);
/* A backward node of the forward node being differentiated. */
Status grad_emit(Autodiff *a, const ferry_kernel *call, const int *arg);
/* A tensor for an intermediate result, named after the gradient of x. */
Status grad_temp(Autodiff *a, int x, int rank, const int64_t *dim, int *out);
/* A contribution to x from a copy's gradient: x[offset + i . stride] += alpha * dy at its own strides. */
Status grad_scatter(Autodiff *a, int x, const ferry_kernel *copy, int dy);

typedef struct GradRow {
    uint32_t inputs;                            /* bit i: the op is differentiable in its i-th input */
    Status (*rule)(Autodiff *a, const Node *n); /* NULL: constant almost everywhere, or no rule */
} GradRow;
extern const GradRow grad_rows[FERRY_OP_COUNT];

/* grad_product.c */
Status grad_linear(Autodiff *a, const Node *n);
Status grad_matmul(Autodiff *a, const Node *n);
/* grad_math.c */
Status grad_unary(Autodiff *a, const Node *n);
Status grad_binary(Autodiff *a, const Node *n);
Status grad_where(Autodiff *a, const Node *n);
Status grad_reduce(Autodiff *a, const Node *n);
/* grad_copy.c */
Status grad_copy(Autodiff *a, const Node *n);
Status grad_cast(Autodiff *a, const Node *n);
/* grad_nn.c */
Status grad_softmax(Autodiff *a, const Node *n);
Status grad_layernorm(Autodiff *a, const Node *n);
Status grad_embedding(Autodiff *a, const Node *n);
Status grad_xent(Autodiff *a, const Node *n);

/* grad_attention.c */
Status grad_attention(Autodiff *a, const Node *n);
Status grad_rotary(Autodiff *a, const Node *n);

/* grad_index.c */
Status grad_dropout(Autodiff *a, const Node *n);
Status grad_scatter_rows(Autodiff *a, const Node *n);

/* grad_window.c */
Status grad_conv(Autodiff *a, const Node *n);
Status grad_conv_transpose(Autodiff *a, const Node *n);
Status grad_maxpool(Autodiff *a, const Node *n);
Status grad_avgpool(Autodiff *a, const Node *n);
Status grad_batchnorm(Autodiff *a, const Node *n);
Status grad_fill(Autodiff *a, const Node *n);

/* Error that names the forward node being differentiated. */
Status grad_fail(Autodiff *a, const Node *n, const char *what);

#endif
