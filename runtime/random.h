/* random.h - the parts of random.c that its test looks at. */
#ifndef FERRY_RUNTIME_RANDOM_H
#define FERRY_RUNTIME_RANDOM_H

#include "runtime/internal.h"

/* One block of Philox-4x32 with ten rounds: out = f(counter, key). */
void ferryi_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Natural logarithm of u in (0, 1]. */
double ferryi_random_log(double u);
/* Cosine and sine of u turns, u in [0, 1). */
void ferryi_random_turn(double u, double *cosine, double *sine);

#endif
