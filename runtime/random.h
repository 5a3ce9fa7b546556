/* random.h - the bits that random.c and dropout draw, and the parts of random.c that its test looks at. */
#ifndef FERRY_RUNTIME_RANDOM_H
#define FERRY_RUNTIME_RANDOM_H

#include "runtime/both.h"
#include "runtime/internal.h"

/* One block of Philox-4x32 with ten rounds: out = f(counter, key). */
FERRYI_BOTH void ferryi_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)x0 * 0xD2511F53U, b = (uint64_t)x2 * 0xCD9E8D57U;
        x0 = (uint32_t)(b >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)b;
        x2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)a;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

/* Natural logarithm of u in (0, 1]. */
double ferryi_random_log(double u);
/* Cosine and sine of u turns, u in [0, 1). */
void ferryi_random_turn(double u, double *cosine, double *sine);

#endif
