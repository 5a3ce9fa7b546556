/* attention.h - where the parts of an attention lie, for the kernels of every backend. */
#ifndef FERRY_RUNTIME_ATTENTION_H
#define FERRY_RUNTIME_ATTENTION_H

#include "runtime/both.h"
#include "runtime/ferry.h"

/* First element of row `row` of a head. */
FERRYI_BOTH int64_t ferryi_attention_at(const ferry_attention_shape *a, ferry_attention_part part, int64_t batch,
                                        int64_t head, int64_t row)
{
    return a->offset[part] + batch * a->stride[part][0] + head * a->stride[part][1] + row * a->stride[part][2];
}

/* The head of k and v that a head of q reads. */
FERRYI_BOTH int64_t ferryi_attention_kv(const ferry_attention_shape *a, int64_t head)
{
    return head / (a->heads / a->kv_heads);
}

/* Row `row` may see the columns before this one, whatever the mask says. */
FERRYI_BOTH int64_t ferryi_attention_end(const ferry_attention_shape *a, int64_t row)
{
    int64_t end = row + a->past + 1;
    return a->causal && end < a->columns ? end : a->columns;
}

FERRYI_BOTH int64_t ferryi_attention_mask(const ferry_attention_shape *a, int64_t batch, int64_t head, int64_t row,
                                          int64_t column)
{
    return batch * a->mask_stride[0] + head * a->mask_stride[1] + row * a->mask_stride[2] + column * a->mask_stride[3];
}

#endif
