/* random.c - normal random numbers that are the same on every machine.
 *
 * Counter-based: number i of a tensor is a function of (seed, name, i) and of nothing else, so that any part of a
 * tensor can be drawn alone and the order of drawing means nothing. The bits come from Philox-4x32-10 (Salmon et al.,
 * "Parallel Random Numbers: As Easy as 1, 2, 3", 2011): the key is the seed, the counter the pair's index and a hash of
 * the name. Two uniform numbers of 53 bits become two normal ones by the Box-Muller transform.
 *
 * The mathematical library's log, sin and cos differ between machines in the last bit, and a weight that differs in one
 * bit makes another training run. The functions here use +, -, *, / and the square root alone, each of which IEEE 754
 * fixes to the bit. They are good to a few units in the last place, on just the range that is needed. */
#include "runtime/random.h"
#include "runtime/convert.h"
#include "runtime/workers.h"

#include <math.h>

/* log u = e log 2 + log m with m in [sqrt 1/2, sqrt 2), and log m = 2 (s + s^3/3 + s^5/5 + ...) with s = (m-1)/(m+1).
 * |s| < 0.172: the terms after s^21 are below 1e-18 of the sum. */
double ferryi_random_log(double u)
{
    int e;
    double m = frexp(u, &e);
    if (m < 0.70710678118654752) {
        m = 2 * m;
        e--;
    }
    static const double term[10] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                                    1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int k = 9; k >= 0; k--) {
        sum = (sum + term[k]) * square;
    }
    return e * 0.69314718055994531 + 2 * (s + s * sum);
}

/* The nearest quarter turn is taken off exactly, which leaves at most an eighth of a turn: there the Taylor series to
 * the 18th power is exact to below 1e-19. */
void ferryi_random_turn(double u, double *cosine, double *sine)
{
    static const double c_term[10] = {1,
                                      -1.0 / 2,
                                      1.0 / 24,
                                      -1.0 / 720,
                                      1.0 / 40320,
                                      -1.0 / 3628800,
                                      1.0 / 479001600,
                                      -1.0 / 87178291200,
                                      1.0 / 20922789888000,
                                      -1.0 / 6402373705728000};
    static const double s_term[10] = {1,
                                      -1.0 / 6,
                                      1.0 / 120,
                                      -1.0 / 5040,
                                      1.0 / 362880,
                                      -1.0 / 39916800,
                                      1.0 / 6227020800,
                                      -1.0 / 1307674368000,
                                      1.0 / 355687428096000,
                                      -1.0 / 121645100408832000};
    int quarter = (int)(4 * u + 0.5);
    double a = (4 * u - quarter) * 1.57079632679489662, square = a * a, c = 0, s = 0;
    for (int k = 9; k >= 0; k--) {
        c = c * square + c_term[k];
        s = s * square + s_term[k];
    }
    s = a * s;
    switch (quarter % 4) {
    case 0:
        *cosine = c;
        *sine = s;
        break;
    case 1:
        *cosine = -s;
        *sine = c;
        break;
    case 2:
        *cosine = -c;
        *sine = -s;
        break;
    default:
        *cosine = s;
        *sine = -c;
        break;
    }
}

/* FNV-1a: any hash that everybody computes alike would do. */
static uint64_t hash_name(const char *name)
{
    uint64_t h = 0xcbf29ce484222325U;
    for (; *name != 0; name++) {
        h = (h ^ (unsigned char)*name) * 0x100000001b3U;
    }
    return h;
}

/* Each pair of numbers has its own counter: parts can be drawn by anyone. */
typedef struct drawing {
    void *dst;
    ferry_dtype t;
    int64_t n;
    uint64_t hash;
    uint32_t key[2];
    double mean, std;
} drawing;

enum { PART = 1 << 16, LARGE = 1 << 20 };

static void draw_part(void *arg, int64_t part)
{
    const drawing *d = arg;
    const int64_t to = (part + 1) * PART < d->n ? (part + 1) * PART : d->n;
    for (int64_t i = part * PART; i < to; i += 2) {
        uint64_t pair = (uint64_t)i / 2;
        const uint32_t counter[4] = {(uint32_t)pair, (uint32_t)(pair >> 32), (uint32_t)d->hash,
                                     (uint32_t)(d->hash >> 32)};
        uint32_t r[4];
        ferryi_philox(counter, d->key, r);
        /* u in (0, 1] so that its logarithm is finite, v in [0, 1) */
        double u = (double)(((uint64_t)r[1] << 32 | r[0]) >> 11) + 1, v = (double)(((uint64_t)r[3] << 32 | r[2]) >> 11);
        u = u * 0x1p-53;
        v = v * 0x1p-53;
        double radius = sqrt(-2 * ferryi_random_log(u)), cosine, sine;
        ferryi_random_turn(v, &cosine, &sine);
        ferryi_float_put(d->dst, d->t, i, d->mean + d->std * (radius * cosine));
        if (i + 1 < d->n) {
            ferryi_float_put(d->dst, d->t, i + 1, d->mean + d->std * (radius * sine));
        }
    }
}

ferry_status ferry_random_normal(void *dst, ferry_dtype t, int64_t n, uint64_t seed, const char *name, double mean,
                                 double std)
{
    if (!ferryi_is_float(t)) {
        return ferryi_fail(FERRY_USAGE, "random numbers of type %s cannot be drawn", ferry_dtype_name(t));
    }
    if (name == NULL || n < 0 || n > INT64_MAX / 8 || (n > 0 && dst == NULL)) {
        return ferryi_fail(FERRY_USAGE, "random numbers need a name and memory for %lld elements", (long long)n);
    }
    if (!isfinite(mean) || !isfinite(std) || std < 0) {
        return ferryi_fail(FERRY_USAGE,
                           "tensor '%s': the mean %g and the deviation %g of random numbers are impossible", name, mean,
                           std);
    }
    drawing d = {dst, t, n, hash_name(name), {(uint32_t)seed, (uint32_t)(seed >> 32)}, mean, std};
    ferryi_workers *w = NULL;
    if (n >= LARGE) {
        (void)ferryi_workers_open(&w); /* without a team it takes longer */
    }
    ferryi_workers_run(w, (n + PART - 1) / PART, draw_part, &d);
    ferryi_workers_close(w);
    return FERRY_OK;
}
