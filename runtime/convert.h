/* convert.h - numbers of 16 bits, for the files that compute with them. */
#ifndef FERRY_RUNTIME_CONVERT_H
#define FERRY_RUNTIME_CONVERT_H

#include "runtime/internal.h"

double ferryi_f16_to_f64(uint16_t bits);
double ferryi_bf16_to_f64(uint16_t bits);
/* Rounded once, to the nearest, ties to even; too large gives infinity; NaN gives the quiet NaN of its sign. */
uint16_t ferryi_f16_from_f64(double x);
uint16_t ferryi_bf16_from_f64(double x);
uint16_t ferryi_bf16_from_f32(float x);
float ferryi_bf16_to_f32(uint16_t bits);

/* Element i of an array of floating type t, exactly; and the store, rounded. */
double ferryi_float_at(const void *array, ferry_dtype t, int64_t i);
void ferryi_float_put(void *array, ferry_dtype t, int64_t i, double x);
bool ferryi_is_float(ferry_dtype t);

#endif
