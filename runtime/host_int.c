/* host_int.c - UNARY, BINARY and REDUCE on whole numbers and truth values: what shape computations and masks need.
 *
 * One loop for all types: elements are read into 64 bits, computed there and cut back, which is the wrapped result of
 * the narrow type. Sums, products and bits are the same for signed numbers and U64; what is not has its own rules for
 * it. Only a division can fail. */
#include "runtime/host.h"

#include <string.h>

static int64_t load(const void *p, ferry_dtype t, int64_t i)
{
    switch (t) {
    case FERRY_I64:
    case FERRY_U64:
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
    default: /* U8, BOOL */
        return ((const uint8_t *)p)[i];
    }
}

static void store(void *p, ferry_dtype t, int64_t i, int64_t value)
{
    switch (t) {
    case FERRY_I64:
    case FERRY_U64:
        ((int64_t *)p)[i] = value;
        break;
    case FERRY_I32:
    case FERRY_U32:
        ((uint32_t *)p)[i] = (uint32_t)value;
        break;
    case FERRY_I16:
    case FERRY_U16:
        ((uint16_t *)p)[i] = (uint16_t)value;
        break;
    default:
        ((uint8_t *)p)[i] = (uint8_t)value;
    }
}

static int64_t wrap_add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static int64_t wrap_mul(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* a^b; for b < 0 the whole part of 1 / a^-b. False: 0 to a negative power. */
static bool power(int64_t a, int64_t b, int64_t *out)
{
    if (b < 0) {
        *out = a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;
        return a != 0;
    }
    *out = 1;
    for (; b > 0; b /= 2) {
        *out = b % 2 != 0 ? wrap_mul(*out, a) : *out;
        a = wrap_mul(a, a);
    }
    return true;
}

/* By 64 and more: nothing is left. */
static int64_t shift_left(int64_t a, int64_t b)
{
    return (uint64_t)b > 63 ? 0 : (int64_t)((uint64_t)a << b);
}

static int64_t shift_right(int64_t a, int64_t b)
{
    int64_t sign = a < 0 ? -1 : 0;
    return (uint64_t)b > 63 ? sign : (int64_t)((uint64_t)(a ^ sign) >> b) ^ sign;
}

/* The functions that differ for U64; false when the result does not exist. */
static bool unsigned_binary(ferry_fn fn, uint64_t a, uint64_t b, int64_t *out)
{
    switch (fn) {
    case FERRY_DIV:
        *out = b == 0 ? 0 : (int64_t)(a / b);
        return b != 0;
    case FERRY_MOD:
    case FERRY_FMOD:
        *out = b == 0 ? 0 : (int64_t)(a % b);
        return b != 0;
    case FERRY_MAX:
        *out = (int64_t)(a > b ? a : b);
        return true;
    case FERRY_MIN:
        *out = (int64_t)(a < b ? a : b);
        return true;
    case FERRY_LESS:
        *out = a < b;
        return true;
    case FERRY_LESS_EQUAL:
        *out = a <= b;
        return true;
    case FERRY_GREATER:
        *out = a > b;
        return true;
    case FERRY_GREATER_EQUAL:
        *out = a >= b;
        return true;
    case FERRY_SHIFT_RIGHT:
        *out = b > 63 ? 0 : (int64_t)(a >> b);
        return true;
    case FERRY_POW: /* no exponent is negative */
        *out = 1;
        for (; b > 0; b /= 2) {
            *out = b % 2 != 0 ? wrap_mul(*out, (int64_t)a) : *out;
            a *= a;
        }
        return true;
    default:
        return false;
    }
}

/* False when the result does not exist. */
static bool binary(ferry_fn fn, int64_t a, int64_t b, int64_t *out)
{
    switch (fn) {
    case FERRY_ADD:
        *out = wrap_add(a, b);
        return true;
    case FERRY_SUB:
        *out = (int64_t)((uint64_t)a - (uint64_t)b);
        return true;
    case FERRY_MUL:
        *out = wrap_mul(a, b);
        return true;
    case FERRY_DIV: /* towards zero; -2^63 / -1 wraps */
        *out = b == 0 ? 0 : b == -1 ? wrap_mul(a, -1) : a / b;
        return b != 0;
    case FERRY_MOD: { /* the sign of the divisor */
        int64_t rest = b == 0 || b == -1 ? 0 : a % b;
        *out = rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
        return b != 0;
    }
    case FERRY_FMOD:
        *out = b == 0 || b == -1 ? 0 : a % b;
        return b != 0;
    case FERRY_SHIFT_LEFT:
        *out = shift_left(a, b);
        return true;
    case FERRY_SHIFT_RIGHT:
        *out = shift_right(a, b);
        return true;
    case FERRY_BIT_AND:
        *out = a & b;
        return true;
    case FERRY_BIT_OR:
        *out = a | b;
        return true;
    case FERRY_BIT_XOR:
        *out = a ^ b;
        return true;
    case FERRY_POW:
        return power(a, b, out);
    case FERRY_MAX:
        *out = a > b ? a : b;
        return true;
    case FERRY_MIN:
        *out = a < b ? a : b;
        return true;
    case FERRY_EQUAL:
        *out = a == b;
        return true;
    case FERRY_LESS:
        *out = a < b;
        return true;
    case FERRY_LESS_EQUAL:
        *out = a <= b;
        return true;
    case FERRY_GREATER:
        *out = a > b;
        return true;
    case FERRY_GREATER_EQUAL:
        *out = a >= b;
        return true;
    case FERRY_AND:
        *out = a != 0 && b != 0;
        return true;
    case FERRY_OR:
        *out = a != 0 || b != 0;
        return true;
    default:
        return false;
    }
}

static bool differs_unsigned(ferry_fn fn)
{
    switch (fn) {
    case FERRY_DIV:
    case FERRY_MOD:
    case FERRY_FMOD:
    case FERRY_MAX:
    case FERRY_MIN:
    case FERRY_LESS:
    case FERRY_LESS_EQUAL:
    case FERRY_GREATER:
    case FERRY_GREATER_EQUAL:
    case FERRY_SHIFT_RIGHT:
    case FERRY_POW:
        return true;
    default:
        return false;
    }
}

static ferry_status run_binary(const ferry_kernel *k)
{
    bool is_unsigned = k->dtype == FERRY_U64 && differs_unsigned(k->fn);
    ferry_dtype to = k->fn >= FERRY_EQUAL ? FERRY_BOOL : k->dtype;
    ferryi_walk w = ferryi_walk_plain(k);
    for (int64_t i = 0; w.more; ferryi_walk_next(&w), i++) {
        int64_t a = load(k->arg[1], k->dtype, w.at[0]), b = load(k->arg[2], k->dtype, w.at[1]), value;
        if (is_unsigned ? !unsigned_binary(k->fn, (uint64_t)a, (uint64_t)b, &value) : !binary(k->fn, a, b, &value)) {
            return ferryi_fail(FERRY_BAD_DATA, "kernel binary: %s of %lld and %lld at element %lld has no value in %s",
                               ferry_fn_name(k->fn), (long long)a, (long long)b, (long long)i,
                               ferry_dtype_name(k->dtype));
        }
        store(k->arg[0], to, i, value);
    }
    return FERRY_OK;
}

/* The lowest (or highest) number of a type, in the 64 bits that it is loaded into. */
static int64_t extreme(ferry_dtype t, bool lowest)
{
    int bits = 8 * (int)ferry_dtype_bytes(t);
    if (t == FERRY_I64 || t == FERRY_I32 || t == FERRY_I16 || t == FERRY_I8) {
        int64_t low = (int64_t)(UINT64_MAX << (bits - 1));
        return lowest ? low : ~low;
    }
    return lowest ? 0 : (int64_t)(UINT64_MAX >> (64 - bits));
}

static ferry_status run_extreme(const ferry_kernel *k)
{
    ferryi_walk kept, reduced;
    ferryi_walk_reduce(k, &kept, &reduced);
    for (int64_t i = 0; kept.more; ferryi_walk_next(&kept), i++) {
        int64_t best = extreme(k->dtype, k->fn == FERRY_MAX);
        for (ferryi_walk_start(&reduced); reduced.more; ferryi_walk_next(&reduced)) {
            int64_t x = load(k->arg[1], k->dtype, kept.at[0] + reduced.at[0]);
            if (k->dtype == FERRY_U64) {
                unsigned_binary(k->fn, (uint64_t)best, (uint64_t)x, &best);
            } else {
                binary(k->fn, best, x, &best);
            }
        }
        store(k->arg[0], k->dtype, i, best);
    }
    return FERRY_OK;
}

static ferry_status run_reduce(const ferry_kernel *k)
{
    if (k->fn == FERRY_MAX || k->fn == FERRY_MIN) {
        return run_extreme(k);
    }
    ferryi_walk kept, reduced;
    ferryi_walk_reduce(k, &kept, &reduced);
    for (int64_t i = 0; kept.more; ferryi_walk_next(&kept), i++) {
        int64_t sum = k->accumulate ? load(k->arg[0], k->dtype, i) : 0;
        for (ferryi_walk_start(&reduced); reduced.more; ferryi_walk_next(&reduced)) {
            sum = wrap_add(sum, load(k->arg[1], k->dtype, kept.at[0] + reduced.at[0]));
        }
        store(k->arg[0], k->dtype, i, sum);
    }
    return FERRY_OK;
}

ferry_status ferryi_ref_int(const ferry_kernel *k)
{
    if (k->op == FERRY_OP_BINARY) {
        return run_binary(k);
    }
    if (k->op == FERRY_OP_REDUCE) {
        return run_reduce(k);
    }
    for (int64_t i = 0; i < k->n; i++) {
        int64_t x = load(k->arg[1], k->dtype, i);
        int64_t y = k->fn == FERRY_NOT                 ? x == 0
                    : k->fn == FERRY_SIGN              ? (k->dtype == FERRY_U64 || x >= 0 ? x != 0 : -1)
                    : k->fn == FERRY_NEG || x < 0      ? wrap_mul(x, -1)
                                                       : x;
        store(k->arg[0], k->dtype, i, y);
    }
    return FERRY_OK;
}
