/* whole.h - the arithmetic of whole numbers and truth values, element by element.
 *
 * Elements are read into 64 bits, computed there and cut back, which is the wrapped result of the narrow type. Sums,
 * products and bits are the same for signed numbers and U64; what is not has its own rules for it. Only a division can
 * fail. */
#ifndef FERRY_RUNTIME_WHOLE_H
#define FERRY_RUNTIME_WHOLE_H

#include "runtime/both.h"
#include "runtime/ferry.h"

#include <math.h>

FERRYI_BOTH int64_t ferryi_whole_load(const void *p, ferry_dtype t, int64_t i)
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

FERRYI_BOTH void ferryi_whole_store(void *p, ferry_dtype t, int64_t i, int64_t value)
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

FERRYI_BOTH int64_t ferryi_whole_wrap_add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

FERRYI_BOTH int64_t ferryi_whole_wrap_mul(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* a^b; for b < 0 the whole part of 1 / a^-b. False: 0 to a negative power. */
FERRYI_BOTH bool ferryi_whole_power(int64_t a, int64_t b, int64_t *out)
{
    if (b < 0) {
        *out = a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;
        return a != 0;
    }
    *out = 1;
    for (; b > 0; b /= 2) {
        *out = b % 2 != 0 ? ferryi_whole_wrap_mul(*out, a) : *out;
        a = ferryi_whole_wrap_mul(a, a);
    }
    return true;
}

/* By 64 and more: nothing is left. */
FERRYI_BOTH int64_t ferryi_whole_shift_left(int64_t a, int64_t b)
{
    return (uint64_t)b > 63 ? 0 : (int64_t)((uint64_t)a << b);
}

FERRYI_BOTH int64_t ferryi_whole_shift_right(int64_t a, int64_t b)
{
    int64_t sign = a < 0 ? -1 : 0;
    return (uint64_t)b > 63 ? sign : (int64_t)((uint64_t)(a ^ sign) >> b) ^ sign;
}

/* The functions that differ for U64; false when the result does not exist. */
FERRYI_BOTH bool ferryi_whole_unsigned_binary(ferry_fn fn, uint64_t a, uint64_t b, int64_t *out)
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
            *out = b % 2 != 0 ? ferryi_whole_wrap_mul(*out, (int64_t)a) : *out;
            a *= a;
        }
        return true;
    default:
        return false;
    }
}

/* False when the result does not exist. */
FERRYI_BOTH bool ferryi_whole_binary(ferry_fn fn, int64_t a, int64_t b, int64_t *out)
{
    switch (fn) {
    case FERRY_ADD:
        *out = ferryi_whole_wrap_add(a, b);
        return true;
    case FERRY_SUB:
        *out = (int64_t)((uint64_t)a - (uint64_t)b);
        return true;
    case FERRY_MUL:
        *out = ferryi_whole_wrap_mul(a, b);
        return true;
    case FERRY_DIV: /* towards zero; -2^63 / -1 wraps */
        *out = b == 0 ? 0 : b == -1 ? ferryi_whole_wrap_mul(a, -1) : a / b;
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
        *out = ferryi_whole_shift_left(a, b);
        return true;
    case FERRY_SHIFT_RIGHT:
        *out = ferryi_whole_shift_right(a, b);
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
        return ferryi_whole_power(a, b, out);
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

FERRYI_BOTH bool ferryi_whole_differs_unsigned(ferry_fn fn)
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

FERRYI_BOTH int ferryi_whole_bytes(ferry_dtype t)
{
    switch (t) {
    case FERRY_I64:
    case FERRY_U64:
        return 8;
    case FERRY_I32:
    case FERRY_U32:
        return 4;
    case FERRY_I16:
    case FERRY_U16:
        return 2;
    default:
        return 1;
    }
}

FERRYI_BOTH bool ferryi_whole_signed(ferry_dtype t)
{
    return t == FERRY_I64 || t == FERRY_I32 || t == FERRY_I16 || t == FERRY_I8;
}

/* The lowest (or highest) number of a type, in the 64 bits that it is loaded into. */
FERRYI_BOTH int64_t ferryi_whole_extreme(ferry_dtype t, bool lowest)
{
    int bits = 8 * ferryi_whole_bytes(t);
    if (ferryi_whole_signed(t)) {
        int64_t low = (int64_t)(UINT64_MAX << (bits - 1));
        return lowest ? low : ~low;
    }
    return lowest ? 0 : (int64_t)(UINT64_MAX >> (64 - bits));
}

/* Towards zero; what does not fit becomes the nearest number that does, NaN becomes 0. */
FERRYI_BOTH uint64_t ferryi_whole_from_float(double x, ferry_dtype to)
{
    int bits = 8 * ferryi_whole_bytes(to) - (ferryi_whole_signed(to) ? 1 : 0);
    double limit = ldexp(1.0, bits); /* the first number that is too large */
    if (x >= limit) {
        return UINT64_MAX >> (64 - bits);
    }
    if (ferryi_whole_signed(to)) {
        return x <= -limit ? (uint64_t)1 << bits | ~(UINT64_MAX >> (64 - bits)) : isnan(x) ? 0 : (uint64_t)(int64_t)x;
    }
    return x > 0 ? (uint64_t)x : 0;
}

/* UNARY's functions. */
FERRYI_BOTH int64_t ferryi_whole_unary(ferry_fn fn, ferry_dtype t, int64_t x)
{
    return fn == FERRY_NOT            ? x == 0
           : fn == FERRY_SIGN         ? (t == FERRY_U64 || x >= 0 ? x != 0 : -1)
           : fn == FERRY_NEG || x < 0 ? ferryi_whole_wrap_mul(x, -1)
                                      : x;
}

#endif
