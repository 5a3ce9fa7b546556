/* host_move.c - kernels that move or convert elements of any type: COPY, WHERE, FILL, CAST, EMBEDDING; and the ids and
 * labels that other kernels read. */
#include "runtime/convert.h"
#include "runtime/host.h"
#include "runtime/whole.h"

#include <math.h>
#include <string.h>

/* ---- ids and labels --------------------------------------------------------------------------------------------- */

static int64_t id_at(const ferry_kernel *k, const void *ids, int64_t i)
{
    return k->dtype2 == FERRY_I64 ? ((const int64_t *)ids)[i] : ((const int32_t *)ids)[i];
}

ferry_status ferryi_host_row(const ferry_kernel *k, const void *ids, int64_t i, int64_t rows, int64_t *out)
{
    int64_t id = id_at(k, ids, i);
    if (id < -rows || id >= rows) {
        return ferryi_fail(FERRY_BAD_DATA,
                           "kernel %s: id %lld at position %lld is out of range: the table has %lld rows",
                           ferry_op_get(k->op)->name, (long long)id, (long long)i, (long long)rows);
    }
    *out = id < 0 ? id + rows : id;
    return FERRY_OK;
}

ferry_status ferryi_host_label(const ferry_kernel *k, const void *labels, int64_t i, int64_t *out, bool *ignored)
{
    *out = id_at(k, labels, i);
    *ignored = *out == k->ignore_index;
    if (!*ignored && (*out < 0 || *out >= k->n)) {
        return ferryi_fail(
            FERRY_BAD_DATA,
            "kernel %s: label %lld at position %lld is out of range: there are %lld classes, and %lld is "
            "ignored",
            ferry_op_get(k->op)->name, (long long)*out, (long long)i, (long long)k->n, (long long)k->ignore_index);
    }
    return FERRY_OK;
}

static ferry_status embedding(const ferry_kernel *k)
{
    size_t row_bytes = (size_t)k->n * ferry_dtype_bytes(k->dtype);
    for (int64_t i = 0; i < k->m; i++) {
        int64_t row;
        ferry_status status = ferryi_host_row(k, k->arg[2], i, k->k, &row);
        if (status != FERRY_OK) {
            return status;
        }
        if (row_bytes > 0) {
            memcpy((char *)k->arg[0] + (size_t)i * row_bytes, (const char *)k->arg[1] + (size_t)row * row_bytes,
                   row_bytes);
        }
    }
    return FERRY_OK;
}

/* ---- CAST and FILL ---------------------------------------------------------------------------------------------- */

static uint64_t load_whole(const void *p, ferry_dtype t, int64_t i)
{
    size_t bytes = ferry_dtype_bytes(t);
    uint64_t bits = 0;
    memcpy(&bits, (const char *)p + (size_t)i * bytes, bytes);
    if (ferryi_whole_signed(t) && bytes < 8 && bits >> (8 * bytes - 1) != 0) {
        bits |= UINT64_MAX << (8 * bytes);
    }
    return t == FERRY_BOOL ? bits != 0 : bits;
}

static void store_whole(void *p, ferry_dtype t, int64_t i, uint64_t bits)
{
    size_t bytes = ferry_dtype_bytes(t);
    memcpy((char *)p + (size_t)i * bytes, &bits, bytes);
}

static void store_float(void *p, ferry_dtype t, int64_t i, double x)
{
    if (ferryi_is_float(t)) {
        ferryi_float_put(p, t, i, x);
    } else if (t == FERRY_BOOL) {
        store_whole(p, t, i, x != 0);
    } else {
        store_whole(p, t, i, ferryi_whole_from_float(x, t));
    }
}

/* Whole numbers to narrower ones are cut, as in C; to f32 they are rounded once. */
static void cast_one(void *y, ferry_dtype to, const void *x, ferry_dtype from, int64_t i)
{
    if (ferryi_is_float(from)) {
        store_float(y, to, i, ferryi_float_at(x, from, i));
        return;
    }
    uint64_t bits = load_whole(x, from, i);
    if (to == FERRY_F32) {
        ((float *)y)[i] = ferryi_whole_signed(from) ? (float)(int64_t)bits : (float)bits;
    } else if (ferryi_is_float(to)) {
        ferryi_float_put(y, to, i, ferryi_whole_signed(from) ? (double)(int64_t)bits : (double)bits);
    } else {
        store_whole(y, to, i, to == FERRY_BOOL ? bits != 0 : bits);
    }
}

static ferry_status cast(const ferry_kernel *k)
{
    for (int64_t i = 0; i < k->n; i++) {
        cast_one(k->arg[0], k->dtype2, k->arg[1], k->dtype, i);
    }
    return FERRY_OK;
}

static ferry_status fill(const ferry_kernel *k)
{
    for (int64_t i = 0; i < k->n; i++) {
        store_float(k->arg[0], k->dtype, i, k->alpha);
    }
    return FERRY_OK;
}

/* ---- COPY and WHERE by the reference ---------------------------------------------------------------------------- */

static ferry_status copy(const ferry_kernel *k)
{
    int64_t size = (int64_t)ferry_dtype_bytes(k->dtype);
    ferryi_walk w = ferryi_walk_plain(k);
    for (; w.more; ferryi_walk_next(&w)) {
        memmove((char *)k->arg[0] + (k->offset[0] + w.at[0]) * size,
                (const char *)k->arg[1] + (k->offset[1] + w.at[1]) * size, (size_t)size);
    }
    return FERRY_OK;
}

static ferry_status where(const ferry_kernel *k)
{
    int64_t size = (int64_t)ferry_dtype_bytes(k->dtype);
    const uint8_t *cond = k->arg[1];
    char *y = k->arg[0];
    ferryi_walk w = ferryi_walk_plain(k);
    for (; w.more; ferryi_walk_next(&w), y += size) {
        const char *from =
            cond[w.at[0]] != 0 ? (const char *)k->arg[2] + w.at[1] * size : (const char *)k->arg[3] + w.at[2] * size;
        memmove(y, from, (size_t)size);
    }
    return FERRY_OK;
}

ferry_status ferryi_ref_move(const ferry_kernel *k)
{
    switch (k->op) {
    case FERRY_OP_COPY:
        return copy(k);
    case FERRY_OP_WHERE:
        return where(k);
    case FERRY_OP_FILL:
        return fill(k);
    case FERRY_OP_CAST:
        return cast(k);
    case FERRY_OP_EMBEDDING:
        return embedding(k);
    default:
        return ferryi_fail(FERRY_USAGE, "kernel %s does not move elements", ferry_op_get(k->op)->name);
    }
}

/* ---- fast rows -------------------------------------------------------------------------------------------------- */

/* With a constant size the memcpy of an element is one load or store. */
static inline void copy_row_of(char *y, int64_t sy, const char *x, int64_t sx, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++) {
        memcpy(y + i * sy * (int64_t)size, x + i * sx * (int64_t)size, size);
    }
}

static void copy_row(char *y, int64_t sy, const char *x, int64_t sx, int64_t n, size_t size)
{
    if (sy == 1 && sx == 1) {
        memmove(y, x, (size_t)n * size);
        return;
    }
    switch (size) {
    case 1:
        copy_row_of(y, sy, x, sx, n, 1);
        break;
    case 2:
        copy_row_of(y, sy, x, sx, n, 2);
        break;
    case 4:
        copy_row_of(y, sy, x, sx, n, 4);
        break;
    default:
        copy_row_of(y, sy, x, sx, n, 8);
        break;
    }
}

static void fast_copy(const ferry_kernel *k)
{
    size_t size = ferry_dtype_bytes(k->dtype);
    ferryi_walk w = ferryi_walk_plain(k);
    if (!w.more) {
        return;
    }
    memset(w.stride[2], 0, sizeof(w.stride[2]));
    ferryi_walk_join(&w);
    int last = --w.rank;
    for (ferryi_walk_start(&w); w.more; ferryi_walk_next(&w)) {
        copy_row((char *)k->arg[0] + (k->offset[0] + w.at[0]) * (int64_t)size, w.stride[0][last],
                 (const char *)k->arg[1] + (k->offset[1] + w.at[1]) * (int64_t)size, w.stride[1][last], w.dim[last],
                 size);
    }
}

static inline void where_row_of(char *y, const uint8_t *c, const char *a, const char *b, const int64_t *stride,
                                int64_t n, size_t size)
{
    int64_t sa = stride[1] * (int64_t)size, sb = stride[2] * (int64_t)size;
    for (int64_t i = 0; i < n; i++) {
        memcpy(y + i * (int64_t)size, c[i * stride[0]] != 0 ? a + i * sa : b + i * sb, size);
    }
}

static void fast_where(const ferry_kernel *k)
{
    size_t size = ferry_dtype_bytes(k->dtype);
    ferryi_walk w = ferryi_walk_plain(k);
    if (!w.more) {
        return;
    }
    ferryi_walk_join(&w);
    int last = --w.rank;
    int64_t n = w.dim[last], stride[3] = {w.stride[0][last], w.stride[1][last], w.stride[2][last]};
    char *y = k->arg[0];
    for (ferryi_walk_start(&w); w.more; ferryi_walk_next(&w), y += n * (int64_t)size) {
        const uint8_t *c = (const uint8_t *)k->arg[1] + w.at[0];
        const char *a = (const char *)k->arg[2] + w.at[1] * (int64_t)size;
        const char *b = (const char *)k->arg[3] + w.at[2] * (int64_t)size;
        if (size == 4) {
            where_row_of(y, c, a, b, stride, n, 4);
        } else if (size == 8) {
            where_row_of(y, c, a, b, stride, n, 8);
        } else {
            where_row_of(y, c, a, b, stride, n, size);
        }
    }
}

/* One element by the reference, then copies of it. */
static void fast_fill(const ferry_kernel *k)
{
    if (k->n == 0) {
        return;
    }
    size_t size = ferry_dtype_bytes(k->dtype);
    char *y = k->arg[0];
    store_float(y, k->dtype, 0, k->alpha);
    copy_row(y + size, 1, y, 0, k->n - 1, size);
}

ferry_status ferryi_fast_move(const ferry_kernel *k, bool *done)
{
    *done = true;
    switch (k->op) {
    case FERRY_OP_COPY:
        fast_copy(k);
        break;
    case FERRY_OP_WHERE:
        fast_where(k);
        break;
    case FERRY_OP_FILL:
        fast_fill(k);
        break;
    default:
        *done = false;
        break;
    }
    return FERRY_OK;
}
