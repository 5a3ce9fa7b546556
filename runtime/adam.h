/* adam.h - the arithmetic of the optimizer, in two versions of equal result.
 *
 * A step is what torch.optim.AdamW does to one tensor when it is neither fused nor amsgrad, operation for operation:
 *
 *     g = g * scale                                   the clip of the gradient's norm
 *     p = p * (1 - lr * weight_decay)
 *     m = m + (1 - beta1) * (g - m)                   or g - (g - m) * beta1 when 1 - beta1 >= 0.5 (its lerp does so)
 *     v = v * beta2 + ((1 - beta2) * g) * g
 *     p = p - (lr / (1 - beta1^step)) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
 *
 * The numbers that are the same for all elements are computed in double. For f32 tensors each is then rounded to float,
 * where PyTorch does so too, and the elements are computed in float. A bf16 gradient is widened, and the rest is as with
 * f32; a copy of p, rounded to bf16, is written beside it.
 *
 * Both versions perform the same IEEE operations on each element, none of them fused: the same bits, subnormal numbers
 * included (neither flushes them). */
#ifndef FERRY_RUNTIME_ADAM_H
#define FERRY_RUNTIME_ADAM_H

#include "runtime/internal.h"

typedef struct ferryi_adamw_numbers {
    double scale;  /* of the gradient */
    double decay;  /* 1 - lr * weight_decay */
    double weight; /* 1 - beta1, of the lerp */
    double beta2;
    double fresh; /* 1 - beta2 */
    double root2; /* sqrt(1 - beta2^step) */
    double eps;
    double size; /* lr / (1 - beta1^step) */
} ferryi_adamw_numbers;

ferryi_adamw_numbers ferryi_adamw_prepare(const ferry_adamw_args *args, double scale);

/* t: FERRY_F32, FERRY_F64, or FERRY_BF16: g is bf16 then, p, m and v are f32, and rounded gets p in bf16 (else it is
 * NULL). n elements each, not overlapping; the address suits an element, no more is asked. */
void ferryi_adamw_scalar(ferry_dtype t, void *p, void *m, void *v, const void *g, void *rounded, int64_t n,
                         const ferryi_adamw_numbers *numbers);
void ferryi_adamw_avx2(ferry_dtype t, void *p, void *m, void *v, const void *g, void *rounded, int64_t n,
                       const ferryi_adamw_numbers *numbers);

/* Large tensors are shared out in blocks of this many elements: the team that works on them (workers.h) does not show in
 * the result. So small that its threads are done at nearly the same time. */
enum { FERRYI_UPDATE_BLOCK = 1 << 14 };

/* The sum of squares of at most FERRYI_SQUARE_BLOCK elements of a floating tensor, in double, in an order that vectors and
 * warps can keep: partial sums, element i goes into number i mod FERRYI_SQUARE_SUMS; then the upper half of them is added to
 * the lower half until one is left. ferry_sqnorm adds the sums of all blocks in the same way. The avx2 and avx512 versions
 * take F32, F64 and BF16. */
enum { FERRYI_SQUARE_BLOCK = 1 << 12, FERRYI_SQUARE_SUMS = 64 };
double ferryi_sqnorm_scalar(ferry_dtype t, const void *g, int64_t n);
double ferryi_sqnorm_avx2(ferry_dtype t, const void *g, int64_t n);
double ferryi_sqnorm_avx512(ferry_dtype t, const void *g, int64_t n);
double ferryi_sqnorm_join(double sums[FERRYI_SQUARE_SUMS]); /* spoils them */

/* A call of ferry_sqnorm or ferry_adamw on a COMPUTE stream, for a backend that runs them as kernels. `out` of a sum of
 * squares; p, m, v, rounded (NULL but for bf16) and scale (NULL: 1) of an update. */
typedef struct ferryi_update {
    ferry_dtype t; /* of g */
    double *out;
    void *p, *m, *v, *rounded;
    const void *g;
    const double *scale;
    int64_t n;
    ferryi_adamw_numbers numbers; /* with scale 1 */
} ferryi_update;

/* Can this machine run the avx2 and the avx512 versions? Where it cannot they must not be called. */
bool ferryi_have_avx2(void);
bool ferryi_have_avx512(void);

#endif
