/* narrow.h - floating numbers of 16 bits, widened exactly and rounded once. */
#ifndef FERRY_RUNTIME_NARROW_H
#define FERRY_RUNTIME_NARROW_H

#include "runtime/both.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

FERRYI_BOTH double ferryi_f16_wide(uint16_t bits)
{
    int exponent = bits >> 10 & 0x1f;
    double fraction = bits & 0x3ff;
    double x;
    if (exponent == 0) {
        x = ldexp(fraction, -24);
    } else if (exponent < 31) {
        x = ldexp(fraction + 1024, exponent - 25);
    } else {
        x = fraction == 0 ? INFINITY : NAN;
    }
    return copysign(x, (bits & 0x8000) != 0 ? -1.0 : 1.0);
}

FERRYI_BOTH double ferryi_bf16_wide(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return (double)x;
}

/* Rounds to a format with a sign, an exponent of 15 - fraction_bits bits and the fraction. With the hidden bit in the
 * significand, adding it to the exponent field that is one too small gives the encoding, and a carry out of the
 * fraction moves on into the exponent by itself: to the next power of two, from the largest subnormal to the smallest
 * normal, and from the largest finite number to infinity. */
FERRYI_BOTH uint16_t ferryi_narrow(double x, int fraction_bits)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 48 & 0x8000);
    int exponent_bits = 15 - fraction_bits;
    int bias = (1 << (exponent_bits - 1)) - 1;
    uint16_t infinity = (uint16_t)(((1 << exponent_bits) - 1) << fraction_bits);
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    uint64_t significand = (bits & 0xfffffffffffff) | 1ULL << 52;
    if (exponent == 1024) {
        uint16_t quiet = (uint16_t)(1 << (fraction_bits - 1));
        return (uint16_t)(sign | infinity | (isnan(x) ? quiet : 0));
    }
    if (exponent > bias) {
        return (uint16_t)(sign | infinity);
    }
    int shift = 52 - fraction_bits;
    int field = exponent + bias - 1; /* one less than the exponent field: the hidden bit adds it */
    if (field < 0) {                 /* subnormal: the fraction counts units of the smallest number */
        shift -= field;
        field = 0;
    }
    if (shift > 53) {
        return sign; /* below half of the smallest number, which covers the subnormal numbers of f64 */
    }
    uint64_t kept = significand >> shift;
    uint64_t rest = significand & ((1ULL << shift) - 1);
    uint64_t half = 1ULL << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1) != 0);
    return (uint16_t)(sign | (((uint64_t)field << fraction_bits) + kept));
}

#endif
