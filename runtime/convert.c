/* convert.c - conversion between element types.
 *
 * Floating types: each value of each type is exact in f64, and f64 rounds to the target once. Going from f64 to 16 bits
 * by way of f32 would round twice, and a value just beside a tie would end on its wrong side.
 *
 * Whole numbers: a value that the target cannot hold is an error, not a wrapped number: these are token ids, labels and
 * counts. BOOL as a source is 0 or 1; as a target every number but 0 is true.
 *
 * Memory is little-endian, as in the files of this library. */
#include "runtime/convert.h"
#include "runtime/narrow.h"

#include <math.h>
#include <string.h>

bool ferryi_is_float(ferry_dtype t)
{
    return t == FERRY_F32 || t == FERRY_F64 || t == FERRY_F16 || t == FERRY_BF16;
}

/* ---- 16 bits --------------------------------------------------------------------------------------------------- */

double ferryi_f16_to_f64(uint16_t bits)
{
    return ferryi_f16_wide(bits);
}

double ferryi_bf16_to_f64(uint16_t bits)
{
    return ferryi_bf16_wide(bits);
}

uint16_t ferryi_f16_from_f64(double x)
{
    return ferryi_narrow(x, 10);
}

uint16_t ferryi_bf16_from_f64(double x)
{
    return ferryi_narrow(x, 7);
}

float ferryi_bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

uint16_t ferryi_bf16_from_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)((bits >> 16 & 0x8000) | 0x7fc0);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- floating types -------------------------------------------------------------------------------------------- */

/* Arrays may come from anywhere, also at odd addresses: elements are moved by memcpy, which costs nothing. */
double ferryi_float_at(const void *array, ferry_dtype t, int64_t i)
{
    const char *at = (const char *)array + (size_t)i * ferry_dtype_bytes(t);
    float single;
    double x;
    uint16_t half;
    switch (t) {
    case FERRY_F32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    case FERRY_F64:
        memcpy(&x, at, sizeof x);
        return x;
    case FERRY_F16:
        memcpy(&half, at, sizeof half);
        return ferryi_f16_to_f64(half);
    default:
        memcpy(&half, at, sizeof half);
        return ferryi_bf16_to_f64(half);
    }
}

void ferryi_float_put(void *array, ferry_dtype t, int64_t i, double x)
{
    char *at = (char *)array + (size_t)i * ferry_dtype_bytes(t);
    float single = (float)x;
    uint16_t half;
    switch (t) {
    case FERRY_F32:
        memcpy(at, &single, sizeof single);
        break;
    case FERRY_F64:
        memcpy(at, &x, sizeof x);
        break;
    case FERRY_F16:
        half = ferryi_f16_from_f64(x);
        memcpy(at, &half, sizeof half);
        break;
    default:
        half = ferryi_bf16_from_f64(x);
        memcpy(at, &half, sizeof half);
        break;
    }
}

static void convert_floats(char *dst, ferry_dtype to, const char *src, ferry_dtype from, int64_t n)
{
    if (to == FERRY_BF16 && from == FERRY_F32) { /* the parameters of a step: worth a loop that vectorizes */
        for (int64_t i = 0; i < n; i++) {
            float x;
            memcpy(&x, src + 4 * i, sizeof x);
            uint16_t half = ferryi_bf16_from_f32(x);
            memcpy(dst + 2 * i, &half, sizeof half);
        }
        return;
    }
    if (to == FERRY_F32 && from == FERRY_BF16) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t half;
            memcpy(&half, src + 2 * i, sizeof half);
            uint32_t wide = (uint32_t)half << 16;
            memcpy(dst + 4 * i, &wide, sizeof wide);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        ferryi_float_put(dst, to, i, ferryi_float_at(src, from, i));
    }
}

/* ---- whole numbers --------------------------------------------------------------------------------------------- */

static bool is_signed(ferry_dtype t)
{
    return t == FERRY_I64 || t == FERRY_I32 || t == FERRY_I16 || t == FERRY_I8;
}

/* The element with its sign spread over 64 bits. */
static uint64_t whole_at(const char *array, ferry_dtype t, size_t size, int64_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, array + (size_t)i * size, size);
    if (t == FERRY_BOOL) {
        return bits != 0;
    }
    if (is_signed(t) && size < 8 && (bits >> (8 * size - 1) & 1) != 0) {
        bits |= ~0ULL << (8 * size);
    }
    return bits;
}

/* Can `to` hold the number that `bits` are in the type `from`? */
static bool fits(uint64_t bits, ferry_dtype from, ferry_dtype to, size_t to_bytes)
{
    bool negative = is_signed(from) && bits >> 63 != 0;
    int value_bits = (int)(8 * to_bytes) - (is_signed(to) ? 1 : 0);
    if (negative) {
        return is_signed(to) && (~bits >> value_bits) == 0; /* value_bits is at most 63 here */
    }
    return value_bits == 64 || bits >> value_bits == 0;
}

static ferry_status convert_whole(char *dst, ferry_dtype to, const char *src, ferry_dtype from, int64_t n)
{
    size_t to_bytes = ferry_dtype_bytes(to), from_bytes = ferry_dtype_bytes(from);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = whole_at(src, from, from_bytes, i);
        if (to == FERRY_BOOL) {
            bits = bits != 0;
        } else if (!fits(bits, from, to, to_bytes)) {
            if (is_signed(from)) {
                return ferryi_fail(FERRY_BAD_DATA, "element %lld is %lld, which %s cannot hold", (long long)i,
                                   (long long)bits, ferry_dtype_name(to));
            }
            return ferryi_fail(FERRY_BAD_DATA, "element %lld is %llu, which %s cannot hold", (long long)i,
                               (unsigned long long)bits, ferry_dtype_name(to));
        }
        memcpy(dst + (size_t)i * to_bytes, &bits, to_bytes);
    }
    return FERRY_OK;
}

ferry_status ferry_convert(void *dst, ferry_dtype to, const void *src, ferry_dtype from, int64_t n)
{
    size_t to_bytes = ferry_dtype_bytes(to), from_bytes = ferry_dtype_bytes(from);
    if (to_bytes == 0 || from_bytes == 0 || ferryi_is_float(to) != ferryi_is_float(from)) {
        return ferryi_fail(FERRY_USAGE, "elements cannot be converted from %s to %s", ferry_dtype_name(from),
                           ferry_dtype_name(to));
    }
    if (n < 0 || n > INT64_MAX / 8 || (n > 0 && (dst == NULL || src == NULL))) {
        return ferryi_fail(FERRY_USAGE, "%lld elements cannot be converted: no such memory", (long long)n);
    }
    if (n == 0) {
        return FERRY_OK;
    }
    if (to == from) {
        memcpy(dst, src, (size_t)n * to_bytes);
        return FERRY_OK;
    }
    if (ferryi_is_float(to)) {
        convert_floats(dst, to, src, from, n);
        return FERRY_OK;
    }
    return convert_whole(dst, to, src, from, n);
}
