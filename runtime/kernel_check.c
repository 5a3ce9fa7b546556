/* kernel_check.c - what every kernel call must satisfy, whatever the backend: the table of ferry_ops.def as code.
 *
 * arg_elements is the heart: how far from its pointer each argument of each op reaches. The check, the access checker
 * and the compiler's access lists all ask it, so that they cannot disagree. */
#include "runtime/backend.h"

#include <string.h>

static const ferry_op_info op_table[FERRY_OP_COUNT] = {
#define OP(ID, name, outs, ins) [FERRY_OP_##ID] = {name, outs, ins},
#include "ferry_ops.def"
#undef OP
};

const ferry_op_info *ferry_op_get(ferry_op op)
{
    return (unsigned)op < FERRY_OP_COUNT ? &op_table[op] : NULL;
}

static const char *const fn_names[FERRY_FN_COUNT] = {
    "FERRY_FN_NONE",
    "FERRY_NEG",
    "FERRY_ABS",
    "FERRY_SQRT",
    "FERRY_EXP",
    "FERRY_LOG",
    "FERRY_TANH",
    "FERRY_ERF",
    "FERRY_SIGMOID",
    "FERRY_RELU",
    "FERRY_RECIPROCAL",
    "FERRY_SIN",
    "FERRY_COS",
    "FERRY_TAN",
    "FERRY_ASIN",
    "FERRY_ACOS",
    "FERRY_ATAN",
    "FERRY_SINH",
    "FERRY_COSH",
    "FERRY_ASINH",
    "FERRY_ACOSH",
    "FERRY_ATANH",
    "FERRY_EXPM1",
    "FERRY_SOFTPLUS",
    "FERRY_SQUARE",
    "FERRY_GELU",
    "FERRY_GELU_TANH",
    "FERRY_SILU",
    "FERRY_FLOOR",
    "FERRY_CEIL",
    "FERRY_ROUND",
    "FERRY_SIGN",
    "FERRY_NOT",
    "FERRY_ADD",
    "FERRY_SUB",
    "FERRY_MUL",
    "FERRY_DIV",
    "FERRY_POW",
    "FERRY_MAX",
    "FERRY_MIN",
    "FERRY_FMOD",
    "FERRY_MOD",
    "FERRY_SHIFT_LEFT",
    "FERRY_SHIFT_RIGHT",
    "FERRY_BIT_AND",
    "FERRY_BIT_OR",
    "FERRY_BIT_XOR",
    "FERRY_EQUAL",
    "FERRY_LESS",
    "FERRY_LESS_EQUAL",
    "FERRY_GREATER",
    "FERRY_GREATER_EQUAL",
    "FERRY_AND",
    "FERRY_OR",
    "FERRY_SUM",
    "FERRY_MEAN",
};

const char *ferry_fn_name(ferry_fn f)
{
    return (unsigned)f < FERRY_FN_COUNT ? fn_names[f] : "unknown function";
}

/* ---- types ------------------------------------------------------------------------------------------------------ */

static bool is_float(ferry_dtype t)
{
    return t == FERRY_F32 || t == FERRY_F64 || t == FERRY_F16 || t == FERRY_BF16;
}

static bool is_signed(ferry_dtype t)
{
    return t == FERRY_I64 || t == FERRY_I32 || t == FERRY_I16 || t == FERRY_I8;
}

static bool is_comparison(ferry_fn f)
{
    return f >= FERRY_EQUAL && f <= FERRY_OR;
}

/* Means, deviations, losses and what they are made of keep more bits than elements of 16 bits have. */
static ferry_dtype statistic_dtype(const ferry_kernel *c)
{
    return c->dtype == FERRY_BF16 || c->dtype == FERRY_F16 ? FERRY_F32 : c->dtype;
}

ferry_dtype ferry_kernel_arg_dtype(const ferry_kernel *c, int arg)
{
    switch (c->op) {
    case FERRY_OP_LAYERNORM:
        return arg == 1 || arg == 2 ? statistic_dtype(c) : c->dtype;
    case FERRY_OP_LAYERNORM_DX:
        return arg == 3 || arg == 4 ? statistic_dtype(c) : c->dtype;
    case FERRY_OP_LAYERNORM_DP:
        return arg == 4 || arg == 5 ? statistic_dtype(c) : c->dtype;
    case FERRY_OP_ATTENTION:
        return arg == 1 ? statistic_dtype(c) : arg == 5 ? c->attention.mask_type : c->dtype;
    case FERRY_OP_ATTENTION_GRAD:
        return arg == 8 ? statistic_dtype(c) : arg == 9 ? c->attention.mask_type : c->dtype;
    case FERRY_OP_BINARY:
        return arg == 0 && is_comparison(c->fn) ? FERRY_BOOL : c->dtype;
    case FERRY_OP_WHERE:
        return arg == 1 ? FERRY_BOOL : c->dtype;
    case FERRY_OP_CAST:
        return arg == 0 ? c->dtype2 : c->dtype;
    case FERRY_OP_EMBEDDING:
    case FERRY_OP_EMBEDDING_GRAD:
        return arg == 2 ? c->dtype2 : c->dtype;
    case FERRY_OP_XENT:
        return arg == 4 ? c->dtype2 : arg == 3 ? c->dtype : statistic_dtype(c);
    case FERRY_OP_XENT_GRAD:
        return arg == 4 ? c->dtype2 : arg == 0 || arg == 1 ? c->dtype : statistic_dtype(c);
    case FERRY_OP_FUSED:
        return c->program.type[arg];
    case FERRY_OP_RAVEL:
    case FERRY_OP_TOPK:
        return arg == 0 ? FERRY_I64 : c->dtype;
    case FERRY_OP_SCATTER:
        return arg == 3 ? c->dtype2 : c->dtype;
    case FERRY_OP_SCATTER_GRAD:
        return arg == 6 ? c->dtype2 : c->dtype;
    case FERRY_OP_MAXPOOL:
        return arg == 1 ? FERRY_I64 : c->dtype;
    case FERRY_OP_MAXPOOL_GRAD:
        return arg == 2 ? FERRY_I64 : c->dtype;
    default:
        return c->dtype;
    }
}

int64_t ferryi_kernel_element_bytes(const ferry_kernel *c, int arg)
{
    const ferry_op_info *info = ferry_op_get(c->op);
    if (info == NULL || arg < 0 || arg >= info->n_out + info->n_in) {
        return 0;
    }
    return (int64_t)ferry_dtype_bytes(ferry_kernel_arg_dtype(c, arg));
}

/* ---- extents ---------------------------------------------------------------------------------------------------- */

static bool product(int rank, const int64_t *dim, uint32_t without, int64_t *out)
{
    *out = 1;
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        if (dim[i] < 0) {
            return false;
        }
        if ((without >> i & 1) == 0) {
            empty = empty || dim[i] == 0;
        }
    }
    if (empty) {
        *out = 0;
        return true;
    }
    for (int i = 0; i < rank; i++) {
        if ((without >> i & 1) == 0 && !ferryi_mul(*out, dim[i], out)) {
            return false;
        }
    }
    return true;
}

/* *out = highest element + block of a walk over dim that starts at offset, where each step touches `block` elements; 0
 * for an empty walk. False when an element is below 0 or beyond 2^63. */
static bool strided(int rank, const int64_t *dim, const int64_t *stride, int64_t offset, int64_t block, int64_t *out)
{
    int64_t elements, low = offset, high = offset;
    *out = 0;
    if (!product(rank, dim, 0, &elements)) {
        return false;
    }
    if (elements == 0 || block == 0) {
        return true;
    }
    for (int i = 0; i < rank; i++) {
        int64_t last;
        if (__builtin_mul_overflow(dim[i] - 1, stride[i], &last) ||
            __builtin_add_overflow(last < 0 ? low : high, last, last < 0 ? &low : &high)) {
            return false;
        }
    }
    return low >= 0 && ferryi_add(high, block, out);
}

/* Elements of a part of an attention, of its statistics (part -1) or of its mask (part -2). */
static bool attention_part(const ferry_attention_shape *a, int part, int64_t *out)
{
    const int64_t mask[4] = {a->batch, a->heads, a->rows, a->columns};
    if (part == -1) {
        return product(3, mask, 0, out);
    }
    if (part == -2) {
        return strided(4, mask, a->mask_stride, 0, 1, out);
    }
    bool of_rows = part == FERRY_Q || part == FERRY_Y;
    const int64_t dim[3] = {a->batch, of_rows ? a->heads : a->kv_heads, of_rows ? a->rows : a->columns};
    int64_t size = part == FERRY_V || part == FERRY_Y ? a->value_size : a->size;
    return size >= 0 && strided(3, dim, a->stride[part], a->offset[part], size, out);
}

static bool is_window_op(ferry_op op)
{
    return op >= FERRY_OP_CONV && op <= FERRY_OP_AVGPOOL_GRAD;
}

/* Elements of a convolution's or pooling's argument: of the input's shape, the output's, the weights or a bias. */
static bool window_elements(const ferry_kernel *c, int arg, int64_t *out)
{
    const ferry_window *w = &c->window;
    int64_t in, positions, taps;
    if (w->rank < 1 || w->rank > 3 || w->groups < 1 || !product(w->rank, w->in, 0, &in) ||
        !product(w->rank, w->out, 0, &positions) || !product(w->rank, w->size, 0, &taps)) {
        return false;
    }
    int64_t x = 0, y = 0, weight = 0;
    bool fits = ferryi_mul(c->m, c->k, &x) && ferryi_mul(x, in, &x) && ferryi_mul(c->m, c->n, &y) &&
                ferryi_mul(y, positions, &y) && ferryi_mul(c->n, c->k / w->groups, &weight) &&
                ferryi_mul(weight, taps, &weight) && c->k >= 0 && c->n >= 0;
    switch (c->op) {
    case FERRY_OP_CONV:
        *out = fits ? (int64_t[]){y, x, weight, c->n}[arg] : 0;
        return fits;
    case FERRY_OP_CONV_DX:
        *out = fits ? (int64_t[]){x, y, weight, c->k}[arg] : 0;
        return fits;
    case FERRY_OP_CONV_DW:
        *out = fits ? (int64_t[]){weight, x, y}[arg] : 0;
        return fits;
    case FERRY_OP_MAXPOOL:
        return ferryi_mul(c->m, arg == 2 ? in : positions, out);
    case FERRY_OP_MAXPOOL_GRAD:
        return ferryi_mul(c->m, arg == 0 ? in : positions, out);
    case FERRY_OP_AVGPOOL:
        return ferryi_mul(c->m, arg == 1 ? in : positions, out);
    default: /* AVGPOOL_GRAD */
        return ferryi_mul(c->m, arg == 0 ? in : positions, out);
    }
}

/* *out = elements from arg[i] on that an op with these sizes touches. False: a size is negative or too large. */
static bool arg_elements(const ferry_kernel *c, int arg, int64_t *out)
{
    int64_t mk = 0, kn = 0, mn = 0;
    *out = 0;
    bool fits = ferryi_mul(c->m, c->k, &mk) && ferryi_mul(c->k, c->n, &kn) && ferryi_mul(c->m, c->n, &mn);
    switch (c->op) {
    case FERRY_OP_LINEAR:
        *out = fits ? (int64_t[]){mn, mk, kn, c->n}[arg] : 0;
        return fits;
    case FERRY_OP_LINEAR_DX:
        *out = fits ? (int64_t[]){mk, mn, kn}[arg] : 0;
        return fits;
    case FERRY_OP_LINEAR_DW:
        *out = fits ? (int64_t[]){kn, mk, mn}[arg] : 0;
        return fits;
    case FERRY_OP_MATMUL:
        return fits && strided(c->rank, c->dim, c->stride[arg], 0, (int64_t[]){mn, mk, kn}[arg], out);
    case FERRY_OP_UNARY:
    case FERRY_OP_UNARY_GRAD:
    case FERRY_OP_FILL:
    case FERRY_OP_CAST:
        *out = c->n;
        return c->n >= 0;
    case FERRY_OP_BINARY:
        return arg == 0 ? product(c->rank, c->dim, 0, out) : strided(c->rank, c->dim, c->stride[arg - 1], 0, 1, out);
    case FERRY_OP_BINARY_GRAD_A:
    case FERRY_OP_BINARY_GRAD_B:
        return arg <= 1 ? product(c->rank, c->dim, 0, out) : strided(c->rank, c->dim, c->stride[arg - 2], 0, 1, out);
    case FERRY_OP_WHERE:
        return arg == 0 ? product(c->rank, c->dim, 0, out) : strided(c->rank, c->dim, c->stride[arg - 1], 0, 1, out);
    case FERRY_OP_REDUCE:
        return product(c->rank, c->dim, arg == 0 ? c->axes : 0, out);
    case FERRY_OP_COPY:
        return strided(c->rank, c->dim, c->stride[arg], c->offset[arg], 1, out);
    case FERRY_OP_SOFTMAX:
    case FERRY_OP_SOFTMAX_GRAD:
        return ferryi_mul(c->m, c->n, out);
    case FERRY_OP_LAYERNORM: /* y, mean, rstd; x, scale, bias */
        *out = arg == 1 || arg == 2 ? c->m : c->n;
        return arg == 0 || arg == 3 ? ferryi_mul(c->m, c->n, out) : c->m >= 0 && c->n >= 0;
    case FERRY_OP_LAYERNORM_DX: /* dx; dy, x, mean, rstd, scale */
        *out = arg == 3 || arg == 4 ? c->m : c->n;
        return arg <= 2 ? ferryi_mul(c->m, c->n, out) : c->m >= 0 && c->n >= 0;
    case FERRY_OP_LAYERNORM_DP: /* dscale, dbias; dy, x, mean, rstd */
        *out = arg >= 4 ? c->m : c->n;
        return arg == 2 || arg == 3 ? ferryi_mul(c->m, c->n, out) : c->m >= 0 && c->n >= 0;
    case FERRY_OP_ATTENTION: /* y, lse; q, k, v, mask */
        return attention_part(&c->attention, (int[]){FERRY_Y, -1, FERRY_Q, FERRY_K, FERRY_V, -2}[arg], out);
    case FERRY_OP_ATTENTION_GRAD: /* dq, dk, dv; dy, q, k, v, y, lse, mask */
        return attention_part(
            &c->attention,
            (int[]){FERRY_Q, FERRY_K, FERRY_V, FERRY_Y, FERRY_Q, FERRY_K, FERRY_V, FERRY_Y, -1, -2}[arg], out);
    case FERRY_OP_EMBEDDING:
    case FERRY_OP_EMBEDDING_GRAD: /* y[m,n]; table[k,n], ids[m] or dtable[k,n]; dy[m,n], ids[m] */
        *out =
            fits ? (int64_t[]){c->op == FERRY_OP_EMBEDDING ? mn : kn, c->op == FERRY_OP_EMBEDDING ? kn : mn, c->m}[arg]
                 : 0;
        return fits;
    case FERRY_OP_XENT: /* loss, lse, count; logits, labels */
        fits = fits && ferryi_mul(mn, c->k, &mn);
        *out = fits ? (int64_t[]){1, mk, 1, mn, mk}[arg] : 0;
        return fits;
    case FERRY_OP_XENT_GRAD: /* dlogits; logits, lse, count, labels, dloss */
        fits = fits && ferryi_mul(mn, c->k, &mn);
        *out = fits ? (int64_t[]){mn, mn, mk, 1, mk, 1}[arg] : 0;
        return fits;
    case FERRY_OP_DROPOUT:
        *out = c->n;
        return c->n >= 0;
    case FERRY_OP_RAVEL:
        return arg == 0 ? product(c->rank, c->dim, 0, out) : strided(c->rank, c->dim, c->stride[1], 0, c->m, out);
    case FERRY_OP_SCATTER: /* y[k,n]; data[k,n], updates[m,n], ids[m] */
        *out = fits ? (int64_t[]){kn, kn, mn, c->m}[arg] : 0;
        return fits;
    case FERRY_OP_SCATTER_GRAD: /* ddata[k,n], dupdates[m,n]; dy[k,n], data[k,n], updates[m,n], y[k,n], ids[m] */
        *out = fits ? (int64_t[]){kn, mn, kn, kn, mn, kn, c->m}[arg] : 0;
        return fits;
    case FERRY_OP_TOPK: /* ids[m,k]; x[m,n] */
        *out = fits ? (int64_t[]){mk, mn}[arg] : 0;
        return fits;
    case FERRY_OP_FUSED:
        if (arg < FERRY_PROGRAM_OUTPUTS) {
            return product(c->rank, c->dim, 0, out);
        }
        arg -= FERRY_PROGRAM_OUTPUTS;
        return strided(c->rank, c->dim, c->program.stride[arg], c->program.offset[arg], 1, out);
    case FERRY_OP_ROTARY:
        if (arg == 0) {
            return product(c->rank, c->dim, 0, out) && ferryi_mul(*out, c->n, out);
        }
        return c->n >= 0 && strided(c->rank, c->dim, c->stride[arg == 1 ? 1 : 2], 0, c->n, out);
    case FERRY_OP_CONV:
    case FERRY_OP_CONV_DX:
    case FERRY_OP_CONV_DW:
    case FERRY_OP_MAXPOOL:
    case FERRY_OP_MAXPOOL_GRAD:
    case FERRY_OP_AVGPOOL:
    case FERRY_OP_AVGPOOL_GRAD:
        return window_elements(c, arg, out);
    case FERRY_OP_BATCHNORM:    /* y; x, scale, bias, mean, var */
    case FERRY_OP_BATCHNORM_DX: /* dx; dy, scale, var */
        *out = c->n;
        return fits && (arg > 1 || ferryi_mul(mn, c->k, out));
    case FERRY_OP_BATCHNORM_DP: /* dscale, dbias; dy, x, mean, var */
        *out = c->n;
        return fits && ((arg != 2 && arg != 3) || ferryi_mul(mn, c->k, out));
    case FERRY_OP_BATCH_STATS: /* mean, var; x */
        *out = c->n;
        return fits && (arg < 2 || ferryi_mul(mn, c->k, out));
    case FERRY_OP_BATCHNORM_TRAIN_DX: /* dx; dy, x, scale, mean, var */
        *out = c->n;
        return fits && (arg > 2 || ferryi_mul(mn, c->k, out));
    case FERRY_OP_MOVING_AVERAGE:
        *out = c->n;
        return c->n >= 0;
    default:
        return false;
    }
}

int64_t ferry_kernel_extent_bytes(const ferry_kernel *c, int arg)
{
    int64_t elements, bytes;
    const ferry_op_info *info = ferry_op_get(c->op);
    if (info == NULL || arg < 0 || arg >= info->n_out + info->n_in || c->arg[arg] == NULL) {
        return 0;
    }
    if (c->rank < 0 || c->rank > FERRY_MAX_RANK || !arg_elements(c, arg, &elements) ||
        !ferryi_mul(elements, ferryi_kernel_element_bytes(c, arg), &bytes)) {
        return -1;
    }
    return bytes;
}

/* ---- the check -------------------------------------------------------------------------------------------------- */

static ferry_status wrong(const ferry_kernel *c, const char *what)
{
    return ferryi_fail(FERRY_USAGE, "kernel %s (fn %s, %s): %s", op_table[c->op].name, ferry_fn_name(c->fn),
                       ferry_dtype_name(c->dtype), what);
}

/* NULL, or what is wrong with fn and the types. */
static const char *check_types(const ferry_kernel *c)
{
    ferry_dtype t = c->dtype;
    ferry_fn f = c->fn;
    if (ferry_dtype_bytes(t) == 0) {
        return "the type is unknown";
    }
    switch (c->op) {
    case FERRY_OP_UNARY:
        if (f < FERRY_NEG || f > FERRY_NOT) {
            return "fn is not a unary function";
        }
        if (is_float(t)         ? f == FERRY_NOT
            : t == FERRY_BOOL   ? f != FERRY_NOT
            : f == FERRY_SIGN   ? false
            : f > FERRY_ABS     ? true
                                : !is_signed(t)) {
            return "the function does not exist for this type";
        }
        return NULL;
    case FERRY_OP_UNARY_GRAD:
        return !is_float(t)                        ? "needs a floating type"
               : f < FERRY_NEG || f > FERRY_SILU ? "fn is not a unary function with a derivative"
                                                   : NULL;
    case FERRY_OP_BINARY:
        if (f < FERRY_ADD || f > FERRY_OR) {
            return "fn is not a binary function";
        }
        if (t == FERRY_BOOL ? f != FERRY_EQUAL && f < FERRY_AND
                            : f >= FERRY_AND || (is_float(t) && f >= FERRY_MOD && f <= FERRY_BIT_XOR)) {
            return "the function does not exist for this type";
        }
        return NULL;
    case FERRY_OP_BINARY_GRAD_A:
    case FERRY_OP_BINARY_GRAD_B:
        return !is_float(t)                     ? "needs a floating type"
               : f < FERRY_ADD || f > FERRY_FMOD ? "fn is not a binary function with a derivative"
                                                : NULL;
    case FERRY_OP_REDUCE:
        if (f != FERRY_SUM && f != FERRY_MEAN && f != FERRY_MAX && f != FERRY_MIN) {
            return "fn is not FERRY_SUM, FERRY_MEAN, FERRY_MAX or FERRY_MIN";
        }
        if (c->accumulate && f != FERRY_SUM && f != FERRY_MEAN) {
            return "only sums and means accumulate";
        }
        return is_float(t) || (f != FERRY_MEAN && t != FERRY_BOOL) ? NULL : "the function does not exist for this type";
    case FERRY_OP_COPY:
        return !is_float(t) && (c->alpha != 1 || c->accumulate) ? "scale and accumulate need a floating type" : NULL;
    case FERRY_OP_CAST:
        return ferry_dtype_bytes(c->dtype2) == 0 ? "the type of the output is unknown" : NULL;
    case FERRY_OP_FILL:
    case FERRY_OP_WHERE:
        return NULL;
    case FERRY_OP_EMBEDDING:
    case FERRY_OP_EMBEDDING_GRAD:
    case FERRY_OP_XENT:
    case FERRY_OP_XENT_GRAD:
        if (c->dtype2 != FERRY_I64 && c->dtype2 != FERRY_I32) {
            return "ids and labels must be i64 or i32";
        }
        return is_float(t) || c->op == FERRY_OP_EMBEDDING ? NULL : "needs a floating type";
    case FERRY_OP_RAVEL:
        return t != FERRY_I64 && t != FERRY_I32 ? "ids must be i64 or i32" : NULL;
    case FERRY_OP_SCATTER:
    case FERRY_OP_SCATTER_GRAD:
        if (c->dtype2 != FERRY_I64 && c->dtype2 != FERRY_I32) {
            return "ids must be i64 or i32";
        }
        if (f != FERRY_FN_NONE && f != FERRY_ADD && f != FERRY_MUL && f != FERRY_MAX && f != FERRY_MIN) {
            return "fn does not merge updates";
        }
        return is_float(t) || (c->op == FERRY_OP_SCATTER && f == FERRY_FN_NONE) ? NULL : "needs a floating type";
    case FERRY_OP_TOPK:
        return t == FERRY_BOOL ? "needs numbers" : NULL;
    case FERRY_OP_AVGPOOL:
    case FERRY_OP_AVGPOOL_GRAD:
        return !is_float(t)                        ? "needs a floating type"
               : f != FERRY_SUM && f != FERRY_MEAN ? "fn is not FERRY_SUM or FERRY_MEAN"
                                                   : NULL;
    default:
        return is_float(t) ? NULL : "needs a floating type";
    }
}

static const char *check_flags(const ferry_kernel *c)
{
    switch (c->op) {
    case FERRY_OP_LINEAR_DX:
    case FERRY_OP_LINEAR_DW:
    case FERRY_OP_MATMUL:
    case FERRY_OP_UNARY_GRAD:
    case FERRY_OP_REDUCE:
    case FERRY_OP_COPY:
    case FERRY_OP_LAYERNORM_DX:
    case FERRY_OP_LAYERNORM_DP:
    case FERRY_OP_EMBEDDING_GRAD:
    case FERRY_OP_DROPOUT:
    case FERRY_OP_FUSED:
    case FERRY_OP_CONV_DX:
    case FERRY_OP_CONV_DW:
    case FERRY_OP_MAXPOOL_GRAD:
    case FERRY_OP_AVGPOOL_GRAD:
    case FERRY_OP_BATCHNORM_DP:
        break;
    case FERRY_OP_MOVING_AVERAGE:
        if (!c->accumulate) {
            return "it reads its output: accumulate must be set";
        }
        break;
    default:
        if (c->accumulate) {
            return "accumulate is not allowed";
        }
    }
    if (c->trans_a && c->op != FERRY_OP_MATMUL) {
        return "trans_a is not allowed";
    }
    if (c->trans_b && c->op != FERRY_OP_MATMUL && c->op != FERRY_OP_LINEAR && c->op != FERRY_OP_LINEAR_DX &&
        c->op != FERRY_OP_LINEAR_DW) {
        return "trans_b is not allowed";
    }
    return NULL;
}

/* Which of dy, x and y (bits 0 to 2) a unary function's gradient reads. */
static unsigned unary_grad_needs(ferry_fn f)
{
    bool needs_y =
        f == FERRY_SQRT || f == FERRY_EXP || f == FERRY_TANH || f == FERRY_SIGMOID || f == FERRY_RECIPROCAL || f == FERRY_EXPM1;
    return f == FERRY_NEG ? 1 : needs_y ? 1 | 4 : 1 | 2;
}

/* Which of dy, a and b a binary function's gradient reads: products need the other one only, sums none. */
static unsigned binary_grad_needs(ferry_op op, ferry_fn f)
{
    const unsigned other = op == FERRY_OP_BINARY_GRAD_A ? 4 : 2;
    return f == FERRY_ADD || f == FERRY_SUB                                ? 1
           : f == FERRY_MUL || (f == FERRY_DIV && op == FERRY_OP_BINARY_GRAD_A) ? 1 | other
                                                                           : 7;
}

static bool is_optional(const ferry_kernel *c, int arg)
{
    switch (c->op) {
    case FERRY_OP_LINEAR:
    case FERRY_OP_CONV:
    case FERRY_OP_CONV_DX:
        return arg == 3;
    case FERRY_OP_MAXPOOL:
        return arg == 1;
    case FERRY_OP_BATCHNORM: /* mean and var: both or none */
        return arg >= 4 && !c->arg[4] == !c->arg[5];
    case FERRY_OP_BATCHNORM_DX:
        return arg == 3;
    case FERRY_OP_BATCHNORM_DP:
        return arg == 1 || (arg >= 4 && !c->arg[4] == !c->arg[5]);
    case FERRY_OP_LAYERNORM:
        return arg == 1 || arg == 5;
    case FERRY_OP_LAYERNORM_DX:
        return arg == 3;
    case FERRY_OP_LAYERNORM_DP:
        return arg == 1 || arg == 4;
    case FERRY_OP_XENT_GRAD:
        return arg == 5;
    case FERRY_OP_ATTENTION:
        return arg == 5;
    case FERRY_OP_ATTENTION_GRAD:
        return arg <= 2 || arg == 9;
    case FERRY_OP_SCATTER_GRAD:
        return arg == 1 || (arg >= 3 && arg <= 5 && (c->fn == FERRY_FN_NONE || c->fn == FERRY_ADD));
    case FERRY_OP_UNARY_GRAD:
        return arg >= 1 && (unary_grad_needs(c->fn) >> (arg - 1) & 1) == 0;
    case FERRY_OP_BINARY_GRAD_A:
    case FERRY_OP_BINARY_GRAD_B:
        return arg >= 1 && (binary_grad_needs(c->op, c->fn) >> (arg - 1) & 1) == 0;
    case FERRY_OP_FUSED:
        return arg > 0; /* check_program knows which are read */
    default:
        return false;
    }
}

/* NULL, or what is wrong with the geometry. Every position that a tap can have fits, with room for sums of a few. */
static const char *check_window(const ferry_kernel *c)
{
    const int64_t most = INT64_MAX / 8;
    const ferry_window *w = &c->window;
    if (w->rank < 1 || w->rank > 3) {
        return "the window must have 1 to 3 dimensions";
    }
    bool conv = c->op <= FERRY_OP_CONV_DW;
    if (w->groups < 1 || (conv ? c->k % w->groups != 0 || c->n % w->groups != 0 : w->groups != 1)) {
        return "the channels do not divide into these groups";
    }
    for (int i = 0; i < w->rank; i++) {
        int64_t reach, last;
        if (w->in[i] < 0 || w->out[i] < 0 || w->size[i] < 1 || w->step[i] < 1 || w->dilation[i] < 1) {
            return "a size of the window is wrong";
        }
        if (w->in[i] > most || w->pad[i] > most || w->pad[i] < -most || w->pad_end[i] > most || w->pad_end[i] < -most ||
            !ferryi_mul(w->out[i], w->step[i], &last) || last > most ||
            !ferryi_mul(w->size[i], w->dilation[i], &reach) || reach > most) {
            return "a size of the window is too large";
        }
    }
    return NULL;
}

static const char *check_attention(const ferry_kernel *c)
{
    const ferry_attention_shape *a = &c->attention;
    bool masked = c->arg[c->op == FERRY_OP_ATTENTION ? 5 : 9] != NULL;
    if (a->heads < 0 || a->kv_heads < 1 || a->heads % a->kv_heads != 0) {
        return "the heads of k do not divide those of q";
    }
    if (a->past < 0 || a->past > INT64_MAX / 2) {
        return "the columns before the first row are wrong";
    }
    return masked && a->mask_type != FERRY_BOOL && a->mask_type != c->dtype ? "the mask's type is neither bool nor its own"
                                                                            : NULL;
}

/* Is a value there before step `step`? */
static bool has_value(const ferry_kernel *c, int value, int step)
{
    return value >= 0 && (value < FERRY_PROGRAM_INPUTS ? c->arg[FERRY_PROGRAM_OUTPUTS + value] != NULL
                                                       : value - FERRY_PROGRAM_INPUTS < step);
}

/* The operands that a step needs (bits 0 to 2), and those that it may have beside them. False: an op or a function that no
 * step has. */
static bool step_operands(const ferry_program_step *s, unsigned *needs, unsigned *may)
{
    const ferry_kernel one = {.op = s->op, .fn = s->fn, .dtype = FERRY_F32};
    *may = 0;
    switch (s->op) {
    case FERRY_OP_UNARY:
        *needs = 1;
        break;
    case FERRY_OP_UNARY_GRAD:
        *needs = unary_grad_needs(s->fn);
        *may = 7;
        break;
    case FERRY_OP_BINARY:
        *needs = 3;
        break;
    case FERRY_OP_BINARY_GRAD_A:
    case FERRY_OP_BINARY_GRAD_B:
        *needs = binary_grad_needs(s->op, s->fn);
        *may = 7;
        break;
    case FERRY_OP_WHERE:
        *needs = 7;
        break;
    case FERRY_OP_COPY:
        *needs = 1;
        *may = 2;
        break;
    case FERRY_OP_FILL:
        *needs = 0;
        break;
    default:
        return false;
    }
    *may |= *needs;
    return check_types(&one) == NULL;
}

static const char *check_program(const ferry_kernel *c)
{
    const ferry_program *p = &c->program;
    if (p->steps < 0 || p->steps > FERRY_PROGRAM_STEPS) {
        return "a program has at most 16 steps";
    }
    for (int i = 0; i < p->steps; i++) {
        const int operand[3] = {p->step[i].a, p->step[i].b, p->step[i].c};
        unsigned needs, may;
        if (!step_operands(&p->step[i], &needs, &may)) {
            return "a step of the program has an op or a function that does not exist for it";
        }
        for (int k = 0; k < 3; k++) {
            bool has = operand[k] != -1;
            if (has ? (may >> k & 1) == 0 || !has_value(c, operand[k], i) : (needs >> k & 1) != 0) {
                return "a step of the program reads a value that is not there, or lacks one";
            }
        }
    }
    for (int i = 0; i < FERRY_PROGRAM_OUTPUTS + FERRY_PROGRAM_INPUTS; i++) {
        ferry_dtype t = p->type[i];
        if (c->arg[i] == NULL) {
            continue;
        }
        if (t != c->dtype && t != FERRY_BOOL && !(t == FERRY_F32 && c->dtype == FERRY_BF16)) {
            return "the type of an argument is neither the kernel's nor bool";
        }
        if (i < FERRY_PROGRAM_OUTPUTS && !has_value(c, p->out[i], p->steps)) {
            return "an output gets a value that is not there";
        }
    }
    if (c->accumulate && (c->arg[1] != NULL || c->arg[2] != NULL || p->type[0] == FERRY_BOOL)) {
        return "accumulate is for one floating output alone";
    }
    return NULL;
}

static ferry_status check_args(const ferry_kernel *c)
{
    const ferry_op_info *info = &op_table[c->op];
    for (int i = 0; i < info->n_out + info->n_in; i++) {
        int64_t elements, bytes, each = ferryi_kernel_element_bytes(c, i);
        if (!arg_elements(c, i, &elements) || !ferryi_mul(elements, each, &bytes)) {
            return ferryi_fail(
                FERRY_USAGE,
                "kernel %s: argument %d: a size or stride is wrong (m %lld, k %lld, n %lld, rank %d): negative, "
                "below the first element, or beyond 2^63 bytes",
                info->name, i, (long long)c->m, (long long)c->k, (long long)c->n, c->rank);
        }
        if (c->arg[i] == NULL && bytes > 0 && !is_optional(c, i)) {
            return ferryi_fail(FERRY_USAGE, "kernel %s (fn %s): argument %d is NULL", info->name, ferry_fn_name(c->fn),
                               i);
        }
        if ((uintptr_t)c->arg[i] % (uintptr_t)each != 0) {
            return ferryi_fail(FERRY_USAGE, "kernel %s: argument %d is not aligned to its elements of %lld bytes",
                               info->name, i, (long long)each);
        }
    }
    return FERRY_OK;
}

ferry_status ferryi_kernel_check(const ferry_kernel *c)
{
    if (ferry_op_get(c->op) == NULL) {
        return ferryi_fail(FERRY_USAGE, "there is no kernel %d", (int)c->op);
    }
    const char *what = check_types(c);
    if (what == NULL) {
        what = check_flags(c);
    }
    if (what == NULL && (c->rank < 0 || c->rank > FERRY_MAX_RANK)) {
        what = "the rank must be 0 to 8";
    }
    if (what == NULL && c->op == FERRY_OP_REDUCE && c->axes >> c->rank != 0) {
        what = "an axis is beyond the rank";
    }
    if (what == NULL && is_window_op(c->op)) {
        what = check_window(c);
    }
    if (what == NULL && (c->op == FERRY_OP_ATTENTION || c->op == FERRY_OP_ATTENTION_GRAD)) {
        what = check_attention(c);
    }
    if (what == NULL && c->op == FERRY_OP_FUSED) {
        what = check_program(c);
    }
    if (what == NULL && c->op == FERRY_OP_ROTARY && c->n % 2 != 0) {
        what = "rows of an odd number of elements have no halves";
    }
    if (what == NULL && c->op == FERRY_OP_DROPOUT && !(c->alpha >= 0 && c->alpha <= 1)) {
        what = "the share that is dropped must be 0 to 1";
    }
    if (what == NULL && c->op == FERRY_OP_TOPK && c->k > c->n) {
        what = "more elements are asked for than there are";
    }
    if (what == NULL && c->op == FERRY_OP_RAVEL && (c->m < 1 || c->m > FERRY_MAX_RANK)) {
        what = "a tuple has 1 to 8 ids";
    }
    return what != NULL ? wrong(c, what) : check_args(c);
}

/* ---- access checking -------------------------------------------------------------------------------------------- */

#ifdef FERRY_TSAN

/* A copy with rows touches the lines of its rows and not what lies between them: neighbours may belong to others. */
static void touch_rows(ferry_device *d, const ferry_kernel *c, int arg)
{
    int64_t each = ferryi_kernel_element_bytes(c, arg), index[FERRY_MAX_RANK] = {0};
    const int64_t *stride = c->stride[arg];
    int inner = c->rank;
    int64_t row = 1;
    while (inner > 0 && (stride[inner - 1] == row || c->dim[inner - 1] == 1)) {
        row *= c->dim[--inner];
    }
    for (;;) {
        int64_t at = c->offset[arg];
        for (int i = 0; i < inner; i++) {
            at += index[i] * stride[i];
        }
        ferryi_shadow_touch(d, (char *)c->arg[arg] + at * each, row * each, arg == 0);
        int i = inner - 1;
        while (i >= 0 && ++index[i] == c->dim[i]) {
            index[i--] = 0;
        }
        if (i < 0) {
            return;
        }
    }
}

void ferryi_kernel_touch(ferry_device *d, const ferry_kernel *c)
{
    const ferry_op_info *info = &op_table[c->op];
    for (int i = 0; i < info->n_out + info->n_in; i++) {
        int64_t bytes = ferry_kernel_extent_bytes(c, i);
        if (bytes > 0 && c->op == FERRY_OP_COPY) {
            touch_rows(d, c, i);
        } else {
            ferryi_shadow_touch(d, c->arg[i], bytes, i < info->n_out); /* accumulating is a write too */
        }
    }
}

#else

void ferryi_kernel_touch(ferry_device *d, const ferry_kernel *c)
{
    (void)d;
    (void)c;
}

#endif
