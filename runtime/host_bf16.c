/* host_bf16.c - kernels of bf16 on the host: those of f32 on widened copies of the arguments, and what was written rounded.
 *
 * The host is the reference: this is as ferry_ops.def says it and not fast. Statistics are f32 and ids whole numbers on
 * both sides; they are passed on as they are. */
#include "runtime/attention.h"
#include "runtime/convert.h"
#include "runtime/host.h"

#include <stdlib.h>

typedef struct wide_args {
    float *at[FERRY_MAX_ARGS]; /* NULL: the argument is passed on */
    int64_t count[FERRY_MAX_ARGS];
} wide_args;

static void wide_close(wide_args *w)
{
    for (int i = 0; i < FERRY_MAX_ARGS; i++) {
        free(w->at[i]);
    }
}

static ferry_status convert_elements(uint16_t *narrow, float *wide, int64_t n, bool back)
{
    return back ? ferry_convert(narrow, FERRY_BF16, wide, FERRY_F32, n) : ferry_convert(wide, FERRY_F32, narrow, FERRY_BF16, n);
}

/* Of q, k, v or y of an attention only the heads: parts of one array are converted one by one. */
static ferry_status convert_part(const ferry_attention_shape *a, ferry_attention_part part, uint16_t *narrow, float *wide,
                                 bool back)
{
    bool of_rows = part == FERRY_Q || part == FERRY_Y;
    int64_t heads = of_rows ? a->heads : a->kv_heads, rows = of_rows ? a->rows : a->columns;
    int64_t size = part == FERRY_V || part == FERRY_Y ? a->value_size : a->size;
    ferry_status status = FERRY_OK;
    for (int64_t r = 0; r < a->batch * heads * rows && status == FERRY_OK; r++) {
        int64_t at = ferryi_attention_at(a, part, r / rows / heads, r / rows % heads, r % rows);
        status = convert_elements(narrow + at, wide + at, size, back);
    }
    return status;
}

/* Widens an argument, or rounds it back. Of a product's result only the matrices: what lies between them others may be
 * writing. */
static ferry_status convert_arg(const ferry_kernel *k, const wide_args *w, int arg, bool back)
{
    float *wide = w->at[arg];
    uint16_t *narrow = k->arg[arg];
    if (k->op == FERRY_OP_ATTENTION && arg == 0) {
        return convert_part(&k->attention, FERRY_Y, narrow, wide, back);
    }
    if (k->op == FERRY_OP_ATTENTION_GRAD && arg < 3) {
        return convert_part(&k->attention, (ferry_attention_part)arg, narrow, wide, back);
    }
    if (k->op != FERRY_OP_MATMUL || arg > 0) {
        return convert_elements(narrow, wide, w->count[arg], back);
    }
    ferry_status status = FERRY_OK;
    for (ferryi_walk at = ferryi_walk_plain(k); at.more && status == FERRY_OK; ferryi_walk_next(&at)) {
        int64_t from = at.at[0];
        status = convert_elements(narrow + from, wide + from, k->m * k->n, back);
    }
    return status;
}

/* Outputs are widened as well: they may be added to. */
static ferry_status wide_open(const ferry_kernel *k, wide_args *w)
{
    const ferry_op_info *info = ferry_op_get(k->op);
    *w = (wide_args){0};
    for (int i = 0; i < info->n_out + info->n_in; i++) {
        if (k->arg[i] == NULL || ferry_kernel_arg_dtype(k, i) != FERRY_BF16) {
            continue;
        }
        w->count[i] = ferry_kernel_extent_bytes(k, i) / 2;
        w->at[i] = malloc((size_t)w->count[i] * sizeof(float) + 1);
        if (w->at[i] == NULL) {
            return ferryi_fail(FERRY_FAILED, "kernel %s: no memory to widen %lld elements", info->name,
                               (long long)w->count[i]);
        }
        ferry_status status = convert_arg(k, w, i, false);
        if (status != FERRY_OK) {
            return status;
        }
    }
    return FERRY_OK;
}

/* y[i] = alpha * x[i], or added: element by element, since a copy may scatter what it writes. */
static ferry_status scaled_copy(const ferry_kernel *k)
{
    const float alpha = (float)k->alpha;
    uint16_t *y = (uint16_t *)k->arg[0] + k->offset[0];
    const uint16_t *x = (const uint16_t *)k->arg[1] + k->offset[1];
    ferryi_walk w = ferryi_walk_plain(k);
    for (; w.more; ferryi_walk_next(&w)) {
        float value = alpha * ferryi_bf16_to_f32(x[w.at[1]]);
        y[w.at[0]] = ferryi_bf16_from_f32(k->accumulate ? ferryi_bf16_to_f32(y[w.at[0]]) + value : value);
    }
    return FERRY_OK;
}

ferry_status ferryi_host_bf16(bool reference, const ferry_kernel *k)
{
    if (k->op == FERRY_OP_COPY) {
        return scaled_copy(k);
    }
    wide_args w;
    ferry_kernel wide = *k;
    wide.dtype = FERRY_F32;
    if (wide.attention.mask_type == FERRY_BF16) {
        wide.attention.mask_type = FERRY_F32;
    }
    for (int i = 0; i < FERRY_MAX_ARGS && k->op == FERRY_OP_FUSED; i++) {
        wide.program.type[i] = k->program.type[i] == FERRY_BF16 ? FERRY_F32 : k->program.type[i];
    }
    ferry_status status = wide_open(k, &w);
    for (int i = 0; i < FERRY_MAX_ARGS; i++) {
        wide.arg[i] = w.at[i] != NULL ? (void *)w.at[i] : k->arg[i];
    }
    if (status == FERRY_OK) {
        status = ferryi_host_kernel(reference, &wide);
    }
    for (int i = 0; i < ferry_op_get(k->op)->n_out && status == FERRY_OK; i++) {
        if (w.at[i] != NULL) {
            status = convert_arg(k, &w, i, true);
        }
    }
    wide_close(&w);
    return status;
}
