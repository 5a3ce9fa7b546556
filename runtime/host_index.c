/* host_index.c - kernels on ids and on elements of any type: RAVEL, TOPK, SCATTER that replaces. */
#include "runtime/convert.h"
#include "runtime/host.h"

#include <math.h>
#include <string.h>

static int64_t id_at(ferry_dtype t, const void *ids, int64_t i)
{
    return t == FERRY_I64 ? ((const int64_t *)ids)[i] : ((const int32_t *)ids)[i];
}

static ferry_status ravel(const ferry_kernel *k)
{
    int64_t *y = k->arg[0];
    ferryi_walk w = ferryi_walk_plain(k);
    for (int64_t i = 0; w.more; ferryi_walk_next(&w), i++) {
        int64_t place = 0;
        for (int64_t a = 0; a < k->m; a++) {
            int64_t id = id_at(k->dtype, k->arg[1], w.at[1] + a), size = k->stride[2][a];
            if (id < -size || id >= size) {
                return ferryi_fail(FERRY_BAD_DATA,
                                   "kernel ravel: index %lld at position %lld is out of range: the axis has %lld "
                                   "elements",
                                   (long long)id, (long long)(w.at[1] + a), (long long)size);
            }
            place = place * size + (id < 0 ? id + size : id);
        }
        y[i] = w.at[0] + k->k * place;
    }
    return FERRY_OK;
}

static ferry_status scatter(const ferry_kernel *k)
{
    size_t row_bytes = (size_t)k->n * ferry_dtype_bytes(k->dtype);
    if (row_bytes > 0 && k->k > 0) {
        memcpy(k->arg[0], k->arg[1], (size_t)k->k * row_bytes);
    }
    for (int64_t i = 0; i < k->m; i++) {
        int64_t row;
        ferry_status status = ferryi_host_row(k, k->arg[3], i, k->k, &row);
        if (status != FERRY_OK) {
            return status;
        }
        if (row_bytes > 0) {
            memcpy((char *)k->arg[0] + (size_t)row * row_bytes, (const char *)k->arg[2] + (size_t)i * row_bytes,
                   row_bytes);
        }
    }
    return FERRY_OK;
}

static int64_t whole(ferry_dtype t, const void *p, int64_t i)
{
    switch (t) {
    case FERRY_I64:
        return ((const int64_t *)p)[i];
    case FERRY_I32:
        return ((const int32_t *)p)[i];
    case FERRY_I16:
        return ((const int16_t *)p)[i];
    case FERRY_I8:
        return ((const int8_t *)p)[i];
    case FERRY_U32:
        return ((const uint32_t *)p)[i];
    case FERRY_U16:
        return ((const uint16_t *)p)[i];
    default:
        return ((const uint8_t *)p)[i];
    }
}

/* a comes before b: greater (smaller), or NaN, which is above all numbers. Equal elements stay in their order. */
static bool before(const ferry_kernel *k, int64_t a, int64_t b)
{
    if (ferryi_is_float(k->dtype)) {
        double x = ferryi_float_at(k->arg[1], k->dtype, a), y = ferryi_float_at(k->arg[1], k->dtype, b);
        if (isnan(x) || isnan(y)) {
            return k->reverse ? isnan(y) && !isnan(x) : isnan(x) && !isnan(y);
        }
        return k->reverse ? x < y : x > y;
    }
    if (k->dtype == FERRY_U64) {
        const uint64_t *p = k->arg[1];
        return k->reverse ? p[a] < p[b] : p[a] > p[b];
    }
    int64_t x = whole(k->dtype, k->arg[1], a), y = whole(k->dtype, k->arg[1], b);
    return k->reverse ? x < y : x > y;
}

/* The best k so far stay sorted; most elements of a long row fail the comparison with the last of them. */
static ferry_status topk(const ferry_kernel *k)
{
    for (int64_t row = 0; row < k->m; row++) {
        int64_t *best = (int64_t *)k->arg[0] + row * k->k, first = row * k->n, count = 0;
        for (int64_t i = 0; i < k->n && k->k > 0; i++) {
            if (count == k->k && !before(k, first + i, first + best[count - 1])) {
                continue;
            }
            int64_t at = count < k->k ? count++ : k->k - 1;
            for (; at > 0 && before(k, first + i, first + best[at - 1]); at--) {
                best[at] = best[at - 1];
            }
            best[at] = i;
        }
    }
    return FERRY_OK;
}

ferry_status ferryi_ref_index(const ferry_kernel *k)
{
    switch (k->op) {
    case FERRY_OP_RAVEL:
        return ravel(k);
    case FERRY_OP_SCATTER:
        return scatter(k);
    default:
        return topk(k);
    }
}
