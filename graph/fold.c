/* fold.c - data for constant folding: memory, repeated axes, numbers of every type, walks over index spaces. */
#include "graph/fold.h"

#include <math.h>
#include <string.h>

int64_t dims_count(int rank, const int64_t *dim)
{
    int64_t count = 1;
    for (int k = 0; k < rank; k++)
        count *= dim[k];
    return count;
}

bool fold_uniform(const Value *v)
{
    return v->data && dims_count(v->rank, v->data_dim) == 1;
}

/* Bytes from the arena within the budget, NULL beyond it (d stays ST_OK) and when out of memory. */
static void *fold_bytes(Diag *d, Model *m, int64_t count, ferry_dtype t)
{
    int64_t bytes;
    if (mul_overflows_i64(count, (int64_t)ferry_dtype_bytes(t), &bytes) || bytes > FOLD_VALUE_BYTES ||
        bytes > FOLD_TOTAL_BYTES - m->folded_bytes)
        return NULL;
    void *p = arena_alloc(m->arena, (size_t)bytes, 1);
    if (!p)
        diag_oom(d);
    else
        m->folded_bytes += bytes;
    return p;
}

void *fold_output(Diag *d, Model *m, ModelNode *n, int i, const int64_t *data_dim)
{
    Value *v = node_out(m, n, i);
    void *p = v ? fold_bytes(d, m, dims_count(v->rank, data_dim), v->dtype) : NULL;
    if (!p)
        return NULL;
    for (int k = 0; k < v->rank; k++)
        v->data_dim[k] = data_dim[k];
    v->data = p;
    return p;
}

void *fold_output_dense(Diag *d, Model *m, ModelNode *n, int i)
{
    const Value *v = node_out(m, n, i);
    return v ? fold_output(d, m, n, i, v->dim) : NULL;
}

void fold_share(Model *m, ModelNode *n, int i, const Value *from, const int64_t *data_dim)
{
    Value *v = node_out(m, n, i);
    if (!v)
        return;
    for (int k = 0; k < v->rank; k++)
        v->data_dim[k] = data_dim[k];
    v->data = from->data;
}

Status fold_fill(Diag *d, Model *m, ModelNode *n, int i, const Value *from)
{
    Value *v = node_out(m, n, i);
    int64_t one[MAX_RANK];
    for (int k = 0; v && k < v->rank; k++)
        one[k] = v->dim[k] ? 1 : 0;
    void *out = v ? fold_output(d, m, n, i, one) : NULL;
    if (out && dims_count(v->rank, one))
        memcpy(out, from->data, ferry_dtype_bytes(v->dtype));
    return d->status;
}

void fold_strides(const Value *v, int out_rank, int64_t stride[MAX_RANK])
{
    int64_t step = 1;
    for (int k = 0; k < out_rank; k++)
        stride[k] = 0;
    for (int k = v->rank - 1; k >= 0; k--) {
        stride[out_rank - v->rank + k] = v->data_dim[k] == 1 ? 0 : step;
        step *= v->data_dim[k];
    }
}

const void *fold_dense(Diag *d, Model *m, const Value *v)
{
    bool dense = true;
    for (int k = 0; k < v->rank; k++)
        dense = dense && v->data_dim[k] == v->dim[k];
    if (dense)
        return v->data;
    uint8_t *out = fold_bytes(d, m, value_count(v), v->dtype);
    if (!out)
        return NULL;
    Walk w = {.rank = v->rank, .arrays = 1};
    memcpy(w.dim, v->dim, sizeof w.dim);
    fold_strides(v, v->rank, w.stride[0]);
    size_t each = ferry_dtype_bytes(v->dtype);
    const uint8_t *from = v->data;
    while (walk_next(&w)) {
        const uint8_t *p = from + (size_t)w.offset[0] * each;
        if (w.step[0])
            memcpy(out, p, (size_t)w.row * each);
        else
            for (int64_t i = 0; i < w.row; i++)
                memcpy(out + (size_t)i * each, p, each);
        out += (size_t)w.row * each;
    }
    return out - (size_t)value_count(v) * each;
}

bool walk_next(Walk *w)
{
    int last = w->rank - 1;
    if (!w->started) {
        w->started = true;
        w->row = w->rank ? w->dim[last] : 1;
        for (int a = 0; a < w->arrays; a++) {
            w->offset[a] = 0;
            w->step[a] = w->rank ? w->stride[a][last] : 0;
        }
        memset(w->index, 0, sizeof w->index);
        return dims_count(w->rank, w->dim) > 0;
    }
    for (int k = last - 1; k >= 0; k--) {
        for (int a = 0; a < w->arrays; a++)
            w->offset[a] += w->stride[a][k];
        if (++w->index[k] < w->dim[k])
            return true;
        for (int a = 0; a < w->arrays; a++)
            w->offset[a] -= w->stride[a][k] * w->dim[k];
        w->index[k] = 0;
    }
    return false;
}

/* ---- numbers ------------------------------------------------------------------------------------ */

static double f16_to_double(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double x = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return h & 0x8000 ? -x : x;
}

/* Rounds to the nearest, ties to even, from double: once, so that no double rounding occurs. */
static uint16_t f16_from_double(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    int exponent;
    x = fabs(x);
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00);
    if (x >= 65520)
        return (uint16_t)(sign | 0x7c00);
    if (x == 0)
        return sign;
    frexp(x, &exponent); /* x = f * 2^exponent, f in [1/2, 1) */
    exponent = exponent < -13 ? -13 : exponent;
    /* in units of the last place there are at most 2048 of them; nearbyint rounds to even */
    int units = (int)nearbyint(ldexp(x, 11 - exponent));
    /* a carry into 2048, or into 1024 from the subnormals, moves into the exponent's bits by itself */
    return (uint16_t)(sign | (((exponent + 13) << 10) + units));
}

static double bf16_to_double(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static uint16_t bf16_from_double(double x)
{
    float f = (float)x;
    uint32_t bits;
    if (isnan(x))
        return signbit(x) ? 0xffc0 : 0x7fc0;
    /* double to float to bf16 would round twice: a float that was rounded onto a tie is moved off it again */
    if ((double)f != x) {
        memcpy(&bits, &f, sizeof bits);
        if ((bits & 0xffff) == 0x8000)
            bits = fabs((double)f) > fabs(x) ? bits - 1 : bits + 1;
        memcpy(&f, &bits, sizeof f);
    }
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7f800000) != 0x7f800000)
        bits += 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

double num_real(ferry_dtype t, const void *p, int64_t i)
{
    switch (t) {
    case FERRY_F32:
        return (double)((const float *)p)[i];
    case FERRY_F64:
        return ((const double *)p)[i];
    case FERRY_F16:
        return f16_to_double(((const uint16_t *)p)[i]);
    case FERRY_BF16:
        return bf16_to_double(((const uint16_t *)p)[i]);
    case FERRY_U64:
        return (double)((const uint64_t *)p)[i];
    default:
        return (double)num_int(t, p, i);
    }
}

int64_t num_int(ferry_dtype t, const void *p, int64_t i)
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
    case FERRY_U64:
        return (int64_t)((const uint64_t *)p)[i];
    case FERRY_U32:
        return ((const uint32_t *)p)[i];
    case FERRY_U16:
        return ((const uint16_t *)p)[i];
    default:
        return ((const uint8_t *)p)[i];
    }
}

void num_put_int(ferry_dtype t, void *p, int64_t i, int64_t x)
{
    switch (t) {
    case FERRY_I64:
    case FERRY_U64:
        ((uint64_t *)p)[i] = (uint64_t)x;
        break;
    case FERRY_I32:
    case FERRY_U32:
        ((uint32_t *)p)[i] = (uint32_t)x;
        break;
    case FERRY_I16:
    case FERRY_U16:
        ((uint16_t *)p)[i] = (uint16_t)x;
        break;
    case FERRY_I8:
    case FERRY_U8:
        ((uint8_t *)p)[i] = (uint8_t)x;
        break;
    case FERRY_BOOL:
        ((uint8_t *)p)[i] = x != 0;
        break;
    default:
        num_put_real(t, p, i, (double)x);
        break;
    }
}

/* Towards zero; what does not fit becomes the nearest number that does (C leaves it undefined). */
static int64_t real_to_int(ferry_dtype t, double x)
{
    if (isnan(x))
        return 0;
    if (t == FERRY_U64)
        return x <= 0 ? 0 : x >= 18446744073709551616.0 ? -1 : (int64_t)(uint64_t)x;
    return x >= 9223372036854775808.0 ? INT64_MAX : x <= -9223372036854775808.0 ? INT64_MIN : (int64_t)x;
}

void num_put_real(ferry_dtype t, void *p, int64_t i, double x)
{
    switch (t) {
    case FERRY_F32:
        ((float *)p)[i] = (float)x;
        break;
    case FERRY_F64:
        ((double *)p)[i] = x;
        break;
    case FERRY_F16:
        ((uint16_t *)p)[i] = f16_from_double(x);
        break;
    case FERRY_BF16:
        ((uint16_t *)p)[i] = bf16_from_double(x);
        break;
    case FERRY_BOOL:
        ((uint8_t *)p)[i] = x != 0;
        break;
    default:
        num_put_int(t, p, i, real_to_int(t, x));
        break;
    }
}
