/* adam_avx2.c - the arithmetic of adam.h, 32 bytes at a time, and squares 64 bytes at a time.
 *
 * The functions are compiled for AVX2 or AVX-512 while the rest of the library is not, and are called only where the
 * processor has it. FMA is left out on purpose: it would round once where the scalar version rounds twice. The elements after the
 * last whole vector go through the scalar version. */
#include "runtime/adam.h"
#include "runtime/convert.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

/* bf16: the upper half of a float. */
AVX2 static inline __m256 widen(const uint16_t *x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)x)), 16));
}

/* As ferryi_bf16_from_f32, in the lower half of each element. */
AVX2 static inline __m256i narrow(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet =
        _mm256_or_si256(_mm256_and_si256(high, _mm256_set1_epi32(0x8000)), _mm256_set1_epi32(0x7fc0));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, nan);
}

/* The copy is written past the caches: the CPU does not read it again, and this saves reading its lines first. */
AVX2 static inline void put_rounded(uint16_t *to, __m256i low, __m256i high)
{
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    if ((uintptr_t)to % sizeof both == 0) {
        _mm256_stream_si256((__m256i *)(void *)to, both);
    } else {
        _mm256_storeu_si256((__m256i *)(void *)to, both);
    }
}

/* Ahead of what the processor fetches by itself, which stops at the end of each page. Beyond the end of an array it is
 * harmless. */
enum { PREFETCH_BYTES = 2048, LINE_BYTES = 64 };

AVX2 static inline void fetch_ahead(const void *at)
{
    _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T0);
}

/* rounded: NULL for gradients of f32. */
AVX2 static inline __attribute__((always_inline)) int64_t adamw_single(float *p, float *m, float *v, const void *g,
                                                                       uint16_t *rounded, int64_t n,
                                                                       const ferryi_adamw_numbers *a)
{
    const float weight = (float)a->weight;
    const __m256 scale = _mm256_set1_ps((float)a->scale), decay = _mm256_set1_ps((float)a->decay);
    const __m256 beta2 = _mm256_set1_ps((float)a->beta2), fresh = _mm256_set1_ps((float)a->fresh);
    const __m256 root2 = _mm256_set1_ps((float)a->root2), eps = _mm256_set1_ps((float)a->eps);
    const __m256 size = _mm256_set1_ps((float)a->size), wide = _mm256_set1_ps(weight);
    const __m256 rest = _mm256_set1_ps(1 - weight);
    __m256i before = _mm256_setzero_si256(); /* the eight that wait for eight more */
    int64_t i = 0;
    if (rounded != NULL) {
        n -= n % 16;
    }
    for (; i + 8 <= n; i += 8) {
        if (i % (LINE_BYTES / 4) == 0) {
            fetch_ahead(p + i);
            fetch_ahead(m + i);
            fetch_ahead(v + i);
            fetch_ahead((const char *)g + i * (rounded != NULL ? 2 : 4));
        }
        __m256 gi = rounded != NULL ? widen((const uint16_t *)g + i) : _mm256_loadu_ps((const float *)g + i);
        __m256 mi = _mm256_loadu_ps(m + i);
        gi = _mm256_mul_ps(gi, scale);
        __m256 pi = _mm256_mul_ps(_mm256_loadu_ps(p + i), decay), difference = _mm256_sub_ps(gi, mi);
        mi = weight < 0.5F ? _mm256_add_ps(mi, _mm256_mul_ps(wide, difference))
                           : _mm256_sub_ps(gi, _mm256_mul_ps(difference, rest));
        __m256 vi =
            _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(v + i), beta2), _mm256_mul_ps(_mm256_mul_ps(fresh, gi), gi));
        __m256 below = _mm256_add_ps(_mm256_div_ps(_mm256_sqrt_ps(vi), root2), eps);
        _mm256_storeu_ps(m + i, mi);
        _mm256_storeu_ps(v + i, vi);
        pi = _mm256_sub_ps(pi, _mm256_div_ps(_mm256_mul_ps(size, mi), below));
        _mm256_storeu_ps(p + i, pi);
        if (rounded != NULL && i % 16 == 0) {
            before = narrow(pi);
        } else if (rounded != NULL) {
            put_rounded(rounded + i - 8, before, narrow(pi));
        }
    }
    if (rounded != NULL) {
        _mm_sfence(); /* what was streamed comes before whatever tells that the update is done */
    }
    return i;
}

AVX2 static int64_t adamw_f32(float *p, float *m, float *v, const float *g, int64_t n, const ferryi_adamw_numbers *a)
{
    return adamw_single(p, m, v, g, NULL, n, a);
}

AVX2 static int64_t adamw_bf16(float *p, float *m, float *v, const uint16_t *g, uint16_t *rounded, int64_t n,
                               const ferryi_adamw_numbers *a)
{
    return adamw_single(p, m, v, g, rounded, n, a);
}

AVX2 static int64_t adamw_f64(double *p, double *m, double *v, const double *g, int64_t n,
                              const ferryi_adamw_numbers *a)
{
    const __m256d scale = _mm256_set1_pd(a->scale), decay = _mm256_set1_pd(a->decay);
    const __m256d beta2 = _mm256_set1_pd(a->beta2), fresh = _mm256_set1_pd(a->fresh);
    const __m256d root2 = _mm256_set1_pd(a->root2), eps = _mm256_set1_pd(a->eps);
    const __m256d size = _mm256_set1_pd(a->size), wide = _mm256_set1_pd(a->weight);
    const __m256d rest = _mm256_set1_pd(1 - a->weight);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        __m256d gi = _mm256_mul_pd(_mm256_loadu_pd(g + i), scale), mi = _mm256_loadu_pd(m + i);
        __m256d pi = _mm256_mul_pd(_mm256_loadu_pd(p + i), decay), difference = _mm256_sub_pd(gi, mi);
        mi = a->weight < 0.5 ? _mm256_add_pd(mi, _mm256_mul_pd(wide, difference))
                             : _mm256_sub_pd(gi, _mm256_mul_pd(difference, rest));
        __m256d vi =
            _mm256_add_pd(_mm256_mul_pd(_mm256_loadu_pd(v + i), beta2), _mm256_mul_pd(_mm256_mul_pd(fresh, gi), gi));
        __m256d below = _mm256_add_pd(_mm256_div_pd(_mm256_sqrt_pd(vi), root2), eps);
        _mm256_storeu_pd(m + i, mi);
        _mm256_storeu_pd(v + i, vi);
        _mm256_storeu_pd(p + i, _mm256_sub_pd(pi, _mm256_div_pd(_mm256_mul_pd(size, mi), below)));
    }
    return i;
}

void ferryi_adamw_avx2(ferry_dtype t, void *p, void *m, void *v, const void *g, void *rounded, int64_t n,
                       const ferryi_adamw_numbers *numbers)
{
    int64_t done = t == FERRY_F32   ? adamw_f32(p, m, v, g, n, numbers)
                   : t == FERRY_F64 ? adamw_f64(p, m, v, g, n, numbers)
                                    : adamw_bf16(p, m, v, g, rounded, n, numbers);
    size_t narrow_skip = (size_t)done * ferry_dtype_bytes(t), skip = t == FERRY_BF16 ? 2 * narrow_skip : narrow_skip;
    if (done < n) {
        ferryi_adamw_scalar(t, (char *)p + skip, (char *)m + skip, (char *)v + skip, (const char *)g + narrow_skip,
                            rounded != NULL ? (char *)rounded + narrow_skip : NULL, n - done, numbers);
    }
}

/* The elements from `first` on, which fill no whole set of sums. */
static double finish_squares(double sums[FERRYI_SQUARE_SUMS], ferry_dtype t, const void *g, int64_t first, int64_t n)
{
    for (int64_t i = first; i < n; i++) {
        double x = ferryi_float_at(g, t, i);
        sums[i % FERRYI_SQUARE_SUMS] += x * x;
    }
    return ferryi_sqnorm_join(sums);
}

AVX2 double ferryi_sqnorm_avx2(ferry_dtype t, const void *g, int64_t n)
{
    _Alignas(32) double sums[FERRYI_SQUARE_SUMS] = {0};
    int64_t i = 0;
    for (; i + FERRYI_SQUARE_SUMS <= n; i += FERRYI_SQUARE_SUMS) {
        for (int k = 0; k < FERRYI_SQUARE_SUMS; k += 8) {
            __m256d a, b;
            if (t == FERRY_F32) {
                a = _mm256_cvtps_pd(_mm_loadu_ps((const float *)g + i + k));
                b = _mm256_cvtps_pd(_mm_loadu_ps((const float *)g + i + k + 4));
            } else if (t == FERRY_BF16) {
                __m256 both = widen((const uint16_t *)g + i + k);
                a = _mm256_cvtps_pd(_mm256_castps256_ps128(both));
                b = _mm256_cvtps_pd(_mm256_extractf128_ps(both, 1));
            } else {
                a = _mm256_loadu_pd((const double *)g + i + k);
                b = _mm256_loadu_pd((const double *)g + i + k + 4);
            }
            _mm256_store_pd(sums + k, _mm256_add_pd(_mm256_load_pd(sums + k), _mm256_mul_pd(a, a)));
            _mm256_store_pd(sums + k + 4, _mm256_add_pd(_mm256_load_pd(sums + k + 4), _mm256_mul_pd(b, b)));
        }
    }
    return finish_squares(sums, t, g, i, n);
}

#define AVX512 __attribute__((target("avx512f,avx2")))

/* Sixteen elements, as doubles. */
AVX512 static inline __attribute__((always_inline)) void widen_16(ferry_dtype t, const void *g, int64_t i, __m512d *a,
                                                                  __m512d *b)
{
    if (t == FERRY_F32) {
        *a = _mm512_cvtps_pd(_mm256_loadu_ps((const float *)g + i));
        *b = _mm512_cvtps_pd(_mm256_loadu_ps((const float *)g + i + 8));
    } else if (t == FERRY_BF16) {
        *a = _mm512_cvtps_pd(widen((const uint16_t *)g + i));
        *b = _mm512_cvtps_pd(widen((const uint16_t *)g + i + 8));
    } else {
        *a = _mm512_loadu_pd((const double *)g + i);
        *b = _mm512_loadu_pd((const double *)g + i + 8);
    }
}

/* All sums stay in registers. */
AVX512 static inline __attribute__((always_inline)) int64_t squares_512(ferry_dtype t, const void *g, int64_t n,
                                                                        double sums[FERRYI_SQUARE_SUMS])
{
    enum { VECTORS = FERRYI_SQUARE_SUMS / 8 };
    __m512d sum[VECTORS];
    int64_t i = 0;
    for (int k = 0; k < VECTORS; k++) {
        sum[k] = _mm512_setzero_pd();
    }
    for (; i + FERRYI_SQUARE_SUMS <= n; i += FERRYI_SQUARE_SUMS) {
#pragma GCC unroll 8
        for (int k = 0; k < VECTORS; k += 2) {
            __m512d a, b;
            widen_16(t, g, i + 8 * k, &a, &b);
            sum[k] = _mm512_add_pd(sum[k], _mm512_mul_pd(a, a));
            sum[k + 1] = _mm512_add_pd(sum[k + 1], _mm512_mul_pd(b, b));
        }
    }
    for (int k = 0; k < VECTORS; k++) {
        _mm512_storeu_pd(sums + 8 * k, sum[k]);
    }
    return i;
}

AVX512 double ferryi_sqnorm_avx512(ferry_dtype t, const void *g, int64_t n)
{
    double sums[FERRYI_SQUARE_SUMS];
    int64_t done = t == FERRY_F32    ? squares_512(FERRY_F32, g, n, sums)
                   : t == FERRY_BF16 ? squares_512(FERRY_BF16, g, n, sums)
                                     : squares_512(FERRY_F64, g, n, sums);
    return finish_squares(sums, t, g, done, n);
}

#else /* another processor: ferryi_have_avx2 says no, and these forward so that a stray call is right all the same */

void ferryi_adamw_avx2(ferry_dtype t, void *p, void *m, void *v, const void *g, void *rounded, int64_t n,
                       const ferryi_adamw_numbers *numbers)
{
    ferryi_adamw_scalar(t, p, m, v, g, rounded, n, numbers);
}

double ferryi_sqnorm_avx2(ferry_dtype t, const void *g, int64_t n)
{
    return ferryi_sqnorm_scalar(t, g, n);
}

double ferryi_sqnorm_avx512(ferry_dtype t, const void *g, int64_t n)
{
    return ferryi_sqnorm_scalar(t, g, n);
}

#endif
