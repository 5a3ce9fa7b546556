/* host_kernel.c - which of the host's kernels runs a call. */
#include "runtime/host.h"

static bool is_host_float(ferry_dtype t)
{
    return t == FERRY_F32 || t == FERRY_F64 || t == FERRY_BF16;
}

/* Moves elements without arithmetic, of any type. */
static bool is_move(const ferry_kernel *k)
{
    switch (k->op) {
    case FERRY_OP_WHERE:
    case FERRY_OP_FILL:
    case FERRY_OP_CAST:
    case FERRY_OP_EMBEDDING:
        return true;
    case FERRY_OP_COPY:
        return k->alpha == 1 && !k->accumulate;
    default:
        return false;
    }
}

/* On ids, or on elements of any type: host_index.c. */
static bool is_index(const ferry_kernel *k)
{
    return k->op == FERRY_OP_RAVEL || k->op == FERRY_OP_TOPK || (k->op == FERRY_OP_SCATTER && k->fn == FERRY_FN_NONE);
}

static bool is_product(const ferry_kernel *k)
{
    return k->op == FERRY_OP_LINEAR || k->op == FERRY_OP_LINEAR_DX || k->op == FERRY_OP_LINEAR_DW ||
           k->op == FERRY_OP_MATMUL;
}

ferry_status ferryi_host_supports(const ferry_kernel *k)
{
    const char *name = ferry_op_get(k->op)->name;
    if (is_move(k) || k->op == FERRY_OP_RAVEL || (k->op == FERRY_OP_SCATTER && k->fn == FERRY_FN_NONE)) {
        return FERRY_OK;
    }
    if (is_product(k) && (k->m > INT32_MAX || k->k > INT32_MAX || k->n > INT32_MAX)) {
        return ferryi_fail(FERRY_USAGE, "kernel %s: the host multiplies matrices of at most 2^31 - 1 rows and columns",
                           name);
    }
    if (k->op == FERRY_OP_CONV || k->op == FERRY_OP_CONV_DX || k->op == FERRY_OP_CONV_DW) {
        int64_t depth = k->k / k->window.groups, out = 1;
        for (int i = 0; i < k->window.rank; i++) { /* the arguments' extents are checked: these products fit */
            depth *= k->window.size[i];
            out *= k->window.out[i];
        }
        if (depth > INT32_MAX || out > INT32_MAX || k->n > INT32_MAX) {
            return ferryi_fail(FERRY_USAGE, "kernel %s: the host convolves with at most 2^31 - 1 taps, positions and channels",
                               name);
        }
    }
    bool whole = k->op == FERRY_OP_UNARY || k->op == FERRY_OP_BINARY || k->op == FERRY_OP_REDUCE ||
                 k->op == FERRY_OP_TOPK;
    bool has =
        is_host_float(k->dtype) || (whole && k->dtype != FERRY_F16);
    if (!has) {
        return ferryi_fail(FERRY_USAGE, "kernel %s: the host device does not compute in %s; use f32, f64 or bf16", name,
                           ferry_dtype_name(k->dtype));
    }
    return FERRY_OK;
}

ferry_status ferryi_host_kernel(bool reference, const ferry_kernel *k)
{
    bool move = is_move(k), done = false;
    if (k->dtype == FERRY_BF16 && !move && (!is_index(k) || k->op == FERRY_OP_TOPK)) {
        return ferryi_host_bf16(reference, k);
    }
    if (is_index(k)) {
        return ferryi_ref_index(k);
    }
    if (!reference) {
        ferry_status status = move                    ? ferryi_fast_move(k, &done)
                              : k->dtype == FERRY_F32 ? ferryi_fast_f32(k, &done)
                              : k->dtype == FERRY_F64 ? ferryi_fast_f64(k, &done)
                                                      : FERRY_OK;
        if (done || status != FERRY_OK) {
            return status;
        }
    }
    return move                    ? ferryi_ref_move(k)
           : k->dtype == FERRY_F32 ? ferryi_ref_f32(k)
           : k->dtype == FERRY_F64 ? ferryi_ref_f64(k)
                                   : ferryi_ref_int(k);
}
