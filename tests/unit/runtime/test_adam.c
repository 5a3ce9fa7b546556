/* AdamW and gradient norms: runs of torch.optim.AdamW with clip_grad_norm_ (PyTorch, foreach and fused off), the two
 * versions against each other bit for bit, and the tasks on a stream. */
#include "scratch.h"

#include <float.h>
#include <math.h>

#include "runtime/adam.h"
#include "runtime/convert.h"

enum { N = 11 };

/* Four steps from `start` with these gradients; then what PyTorch's p, exp_avg and exp_avg_sq hold, and the norm before
 * the clip in each step. */
static const double start[N] = {-0.8019, -1.3244, -0.2484, 0.4204, 1.136, 0.1097,
                                -0.5526, -0.7848, 0.7487,  1.6348, 0.2728};
static const double gradients[4][N] = {
    {-1.23333, -0.95827, 1.60002, 0.20288, -1.73213, -0.0837, -1.16323, 0.0, -0.48801, -0.71331, 0.55338},
    {-0.00063, -0.00589, 0.0041, 0.0, -0.01643, -0.00257, -0.00981, 0.0, -0.01289, 0.00021, -0.00038},
    {-0.91301, 1e-20, -1.18857, -3.27399, -4.06563, 0.67436, -3.32805, 0.0, 2.14976, -5.99345, 0.81639},
    {-1.10172, 0.03306, 0.04363, -1.98843, -0.23342, -0.25579, 0.962, 0.0, 0.73804, -1.09897, -0.33129}};

static const struct {
    ferry_adamw_args args;
    double clip;
    ferry_dtype t;
    double p[N], m[N], v[N], norm[4];
} runs[] = {
    {{1e-2, 0.9, 0.999, 1e-8, 0.1, 0},
     0.0,
     FERRY_F64,
     {-0.7653858399327625, -1.2931294800904565, -0.2648593983592543, 0.415368605700906, 1.1629014323636355,
      0.11816283871205978, -0.521329491748584, -0.7816655056615849, 0.7517463016153106, 1.6585196530453488,
      0.24236665411220304},
     {-0.2823036869999999, -0.06702897299999999, 0.014365258000000027, -0.4787121479999999, -0.5168518069999999,
      0.028803499999999982, -0.28891857699999995, 0.0, 0.23066238099999997, -0.7012907889999999, 0.08065672199999997},
     {0.003563085169367364, 0.0009166568889976901, 0.003965597785582651, 0.014703182311436434, 0.019558854762995296,
      0.0005267264579272696, 0.013339429708181843, 0.0, 0.005399155464147184, 0.037600542813065733,
      0.0010808910021880892},
     {3.2332935185349316, 0.02431101602154875, 9.068336425513777, 2.8422149726753605}},
    {{1e-2, 0.9, 0.999, 1e-8, 0.1, 0},
     0.0,
     FERRY_F32,
     {-0.7653858661651611, -1.293129563331604, -0.2648593783378601, 0.41536861658096313, 1.1629014015197754,
      0.1181628480553627, -0.5213295817375183, -0.781665563583374, 0.7517462968826294, 1.6585195064544678,
      0.24236665666103363},
     {-0.28230369091033936, -0.06702897697687149, 0.01436525583267212, -0.47871214151382446, -0.5168518424034119,
      0.028803501278162003, -0.2889185845851898, 0.0, 0.23066239058971405, -0.7012907862663269, 0.08065672963857651},
     {0.003563085338100791, 0.0009166569216176867, 0.003965598531067371, 0.014703182503581047, 0.019558854401111603,
      0.0005267264787107706, 0.013339429162442684, 0.0, 0.005399155896157026, 0.037600547075271606,
      0.0010808910010382533},
     {3.2332935333251953, 0.024311015382409096, 9.068336486816406, 2.842215061187744}},
    {{1e-2, 0.9, 0.999, 1e-8, 0.1, 0},
     1.0,
     FERRY_F64,
     {-0.7674277357916472, -1.2929151275513997, -0.2705094183786172, 0.414669243329721, 1.1638968826108809,
      0.12462142147365804, -0.522771545927638, -0.7816655056615849, 0.7552793218321169, 1.6609430361694177,
      0.24523851184414533},
     {-0.07568251458433657, -0.020919703280524202, 0.026146149215474864, -0.09787946347404981, -0.0889471075286176,
      -0.00440221220106799, -0.02620443831773989, 0.0, 0.03525557364172892, -0.1142145505157727, 0.008892424348439421},
     {0.00030544735400319403, 8.774523759741464e-05, 0.00026156411035484136, 0.0006235894436204566,
      0.0004939473944412828, 1.429862748704778e-05, 0.0003782525237289846, 0.0, 0.0001464493590909207,
      0.0006344094078798655, 5.0887844122622586e-05},
     {3.2332935185349316, 0.02431101602154875, 9.068336425513777, 2.8422149726753605}},
    {{1e-2, 0.9, 0.999, 1e-8, 0.1, 0},
     1.0,
     FERRY_F32,
     {-0.7674278616905212, -1.2929151058197021, -0.27050939202308655, 0.4146692752838135, 1.1638970375061035,
      0.1246214359998703, -0.5227715969085693, -0.781665563583374, 0.7552793622016907, 1.6609429121017456,
      0.2452385127544403},
     {-0.07568251341581345, -0.02091970480978489, 0.026146147400140762, -0.09787946194410324, -0.0889471098780632,
      -0.004402212332934141, -0.026204431429505348, 0.0, 0.03525556996464729, -0.11421455442905426,
      0.008892424404621124},
     {0.0003054473199881613, 8.774524758337066e-05, 0.00026156415697187185, 0.0006235894397832453,
      0.0004939474165439606, 1.42986255013966e-05, 0.00037825253093615174, 0.0, 0.00014644936891272664,
      0.0006344094290398061, 5.088784746476449e-05},
     {3.2332935333251953, 0.024311015382409096, 9.068336486816406, 2.842215061187744}},
    {{0.3, 0.4, 0.8, 1e-3, 0.0, 0},
     0.0,
     FERRY_F64,
     {0.17488643123934156, -0.8200243578476235, -0.4508507114733039, 0.5853240108750882, 2.034025607672272,
      0.2462861994004595, 0.22755837392231687, -0.7848, 0.6632314850386568, 2.571724585891567, -0.4576756672831748},
     {-0.927574752, -0.017527008000000014, -0.19724443199999994, -1.971025008, -1.1838942719999999,
      0.004911599999999975, -0.26714179200000016, 0.0, 0.938789376, -2.1251809440000002, 0.018372912000000016},
     {0.5318923399225599, 0.09425504794175998, 0.48856520388495994, 2.5100272703425595, 2.962855191829759,
      0.08656575843919999, 2.09580565958976, 0.0, 0.8727837100390399, 6.041080144609439, 0.15994734549775996},
     {3.2332935185349316, 0.02431101602154875, 9.068336425513777, 2.8422149726753605}},
    {{0.3, 0.4, 0.8, 1e-3, 0.0, 0},
     0.0,
     FERRY_F32,
     {0.17488642036914825, -0.820024311542511, -0.4508507549762726, 0.5853240489959717, 2.0340256690979004,
      0.24628619849681854, 0.22755831480026245, -0.7847999930381775, 0.6632314920425415, 2.5717248916625977,
      -0.4576757252216339},
     {-0.9275747537612915, -0.017527002841234207, -0.19724443554878235, -1.971024990081787, -1.1838942766189575,
      0.004911597818136215, -0.267141729593277, 0.0, 0.9387893676757812, -2.125180959701538, 0.018372897058725357},
     {0.5318922996520996, 0.09425505995750427, 0.48856526613235474, 2.5100271701812744, 2.962855339050293,
      0.086565762758255, 2.0958056449890137, 0.0, 0.8727837204933167, 6.041080474853516, 0.15994735062122345},
     {3.2332935333251953, 0.024311015382409096, 9.068336486816406, 2.842215061187744}},
    {{0.3, 0.4, 0.8, 1e-3, 0.0, 0},
     1.0,
     FERRY_F64,
     {0.07309568207668315, -0.8162571368868218, -0.6385466123147605, 0.6322121864475672, 2.002819762907712,
      0.457295169780713, 0.059890982697894696, -0.7848, 0.6602662085774129, 2.65680438386995, -0.24814219900113965},
     {-0.271447771685528, -0.004967206280523936, -0.0028498039439864417, -0.5040022991515749, -0.1790242286427251,
      -0.037391367950102464, 0.10024498671233302, 0.0, 0.20566404567416452, -0.39906807513787285,
      -0.041794234209587965},
     {0.04657225062849938, 0.009026169672502967, 0.027874011764429947, 0.11914818709399792, 0.06293183404591204,
      0.002574153789154474, 0.05772813556948105, 0.0, 0.02483153478769401, 0.10477553512616403, 0.00701359942236035},
     {3.2332935185349316, 0.02431101602154875, 9.068336425513777, 2.8422149726753605}},
    {{0.3, 0.4, 0.8, 1e-3, 0.0, 0},
     1.0,
     FERRY_F32,
     {0.07309557497501373, -0.816257119178772, -0.6385466456413269, 0.6322122812271118, 2.002819776535034,
      0.4572952091693878, 0.05989097058773041, -0.7847999930381775, 0.6602662801742554, 2.656804323196411,
      -0.24814219772815704},
     {-0.2714477479457855, -0.004967203829437494, -0.002849800745025277, -0.5040023326873779, -0.17902423441410065,
      -0.03739136829972267, 0.10024498403072357, 0.0, 0.2056640386581421, -0.39906808733940125, -0.04179424047470093},
     {0.0465722493827343, 0.009026170708239079, 0.027874017134308815, 0.11914818733930588, 0.0629318356513977,
      0.002574153244495392, 0.057728130370378494, 0.0, 0.024831533432006836, 0.10477554798126221,
      0.0070135993883013725},
     {3.2332935333251953, 0.024311015382409096, 9.068336486816406, 2.842215061187744}},
};
static void put(void *array, ferry_dtype t, int i, double x)
{
    ferryi_float_put(array, t, i, x);
}

static double get(const void *array, ferry_dtype t, int i)
{
    return ferryi_float_at(array, t, i);
}

/* In single precision PyTorch computes the norm in float and fuses some products and sums: a few units in the last
 * place of what was added up (numbers near 1 here). */
static void expect_near(const char *what, ferry_dtype t, int i, double have, double want, double size)
{
    double unit = t == FERRY_F32 ? FLT_EPSILON : DBL_EPSILON;
    if (!(fabs(have - want) <= 4 * unit * (fabs(want) + size))) {
        fail_msg("%s[%d] of type %s is %.17g, expected %.17g", what, i, ferry_dtype_name(t), have, want);
    }
}

typedef struct bench {
    ferry_device *device;
    ferry_stream *stream;
} bench;

static int bench_open(void **state)
{
    static bench b;
    *state = &b;
    return ferry_device_open("host", &b.device) != FERRY_OK ||
           ferry_stream_open(b.device, FERRY_STREAM_UPDATE, &b.stream) != FERRY_OK;
}

static int bench_close(void **state)
{
    bench *b = *state;
    ferry_stream_close(b->stream);
    ferry_device_close(b->device);
    return 0;
}

static void follows_pytorch(void **state)
{
    bench *b = *state;
    for (size_t r = 0; r < sizeof runs / sizeof runs[0]; r++) {
        ferry_dtype t = runs[r].t;
        double p[N], m[N], v[N], g[4][N], parts[4], norm[4], scale[4];
        for (int i = 0; i < N; i++) {
            put(p, t, i, start[i]);
            put(m, t, i, 0);
            put(v, t, i, 0);
            for (int k = 0; k < 4; k++) {
                put(g[k], t, i, gradients[k][i]);
            }
        }
        for (int k = 0; k < 4; k++) { /* all enqueued, nothing waits in between */
            ferry_adamw_args args = runs[r].args;
            args.step = k + 1;
            expect_ok(ferry_sqnorm(b->stream, t, &parts[k], g[k], N));
            expect_ok(ferry_grad_norm(b->stream, &norm[k], &scale[k], &parts[k], 1, runs[r].clip));
            expect_ok(ferry_adamw(b->stream, t, p, m, v, g[k], runs[r].clip > 0 ? &scale[k] : NULL, N, args));
        }
        expect_ok(ferry_stream_sync(b->stream));
        for (int k = 0; k < 4; k++) {
            expect_near("norm", t, k, norm[k], runs[r].norm[k], 0);
        }
        for (int i = 0; i < N; i++) {
            expect_near("p", t, i, get(p, t, i), runs[r].p[i], 0.5);
            expect_near("m", t, i, get(m, t, i), runs[r].m[i], 0.1);
            expect_near("v", t, i, get(v, t, i), runs[r].v[i], 0);
        }
    }
}

static void norms_are_exact(void **state)
{
    bench *b = *state;
    double out = 0, parts[3] = {9, 16, 0}, norm = 0, scale = 0;
    const uint16_t f16[3] = {0x4200, 0xc400, 0x0001}, bf16[3] = {0x4040, 0xc080, 0x0001}; /* 3, -4, the smallest */
    const float f32[3] = {3, -4, 1e-45F};
    expect_ok(ferry_sqnorm(b->stream, FERRY_F16, &out, f16, 3));
    expect_ok(ferry_stream_sync(b->stream));
    assert_true(out == 25 + 0x1p-48);
    expect_ok(ferry_sqnorm(b->stream, FERRY_BF16, &out, bf16, 3));
    expect_ok(ferry_stream_sync(b->stream));
    assert_true(out == 25);
    expect_ok(ferry_sqnorm(b->stream, FERRY_F32, &out, f32 + 2, 1)); /* a square far below the range of f32 */
    expect_ok(ferry_stream_sync(b->stream));
    assert_true(out == 0x1p-298);
    expect_ok(ferry_sqnorm(b->stream, FERRY_F64, &out, NULL, 0));
    expect_ok(ferry_stream_sync(b->stream));
    assert_true(out == 0);
    static const struct {
        double clip, scale;
    } cases[] = {{0, 1}, {-1, 1}, {5, 1}, {5.5, 1}, {2, 2 / (5 + 1e-6)}};
    for (int i = 0; i < 5; i++) {
        expect_ok(ferry_grad_norm(b->stream, &norm, &scale, parts, 3, cases[i].clip));
        expect_ok(ferry_stream_sync(b->stream));
        assert_true(norm == 5 && scale == cases[i].scale);
    }
    expect_ok(ferry_grad_norm(b->stream, &norm, &scale, NULL, 0, 1));
    expect_ok(ferry_stream_sync(b->stream));
    assert_true(norm == 0 && scale == 1);
}

/* ---- the two versions ------------------------------------------------------------------------------------------ */

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return *state >> 16;
}

/* Any number of the type but NaN, over its whole range with its subnormal numbers; some zeros. */
static double any_number(ferry_dtype t, uint64_t *state)
{
    double fraction = 1 + (double)(draw(state) % 1048576) / 1048576;
    int low = t == FERRY_F32 ? -149 : -1074, high = t == FERRY_F32 ? 60 : 500;
    int exponent = low + (int)(draw(state) % (uint64_t)(high - low));
    if (draw(state) % 3 != 0) {
        exponent = (int)(draw(state) % 12) - 8; /* most near 1 */
    }
    double x = draw(state) % 16 == 0 ? 0 : ldexp(fraction, exponent);
    return draw(state) % 2 == 0 ? x : -x;
}

static void versions_agree_to_the_bit(void **state)
{
    (void)state;
    if (!ferryi_have_avx2()) {
        print_message("skipped: this processor has no AVX2\n");
        skip();
    }
    enum { MOST = 167 };
    uint64_t seed = 1;
    int subnormal = 0;
    for (int round = 0; round < 4000; round++) {
        /* bf16: the gradient and the copy, which is the fifth array; the others are f32 */
        const ferry_dtype type = (const ferry_dtype[]){FERRY_F32, FERRY_F64, FERRY_BF16}[round % 3];
        const ferry_dtype t = type == FERRY_BF16 ? FERRY_F32 : type;
        int n = (int)(draw(&seed) % MOST),
            odd = (int)(draw(&seed) % 2); /* also from odd elements on: unaligned vectors */
        double a[5][MOST + 1], b[5][MOST + 1];
        const ferry_dtype of[5] = {t, t, t, type, type};
        for (int k = 0; k < 5; k++) {
            for (int i = 0; i <= MOST; i++) {
                double x = any_number(t, &seed);
                put(a[k], of[k], i, k == 2 ? fabs(x) : x);
            }
            memcpy(b[k], a[k], sizeof a[k]);
        }
        ferry_adamw_args args = {.lr = ldexp(1, -(int)(draw(&seed) % 20)),
                                 .beta1 = (double)(draw(&seed) % 100) / 100,
                                 .beta2 = 1 - ldexp(1, -(int)(draw(&seed) % 12)),
                                 .eps = draw(&seed) % 4 == 0 ? 0x1p-140 : 1e-8,
                                 .weight_decay = (double)(draw(&seed) % 3) / 10,
                                 .step = 1 + (int64_t)(draw(&seed) % 100000)};
        ferryi_adamw_numbers numbers = ferryi_adamw_prepare(&args, draw(&seed) % 2 == 0 ? 1 : 0.37);
#define AT(x, k) ((char *)(x)[k] + (size_t)odd * ferry_dtype_bytes(of[k]))
        ferryi_adamw_scalar(type, AT(a, 0), AT(a, 1), AT(a, 2), AT(a, 3), AT(a, 4), n, &numbers);
        ferryi_adamw_avx2(type, AT(b, 0), AT(b, 1), AT(b, 2), AT(b, 3), AT(b, 4), n, &numbers);
        double x = ferryi_sqnorm_scalar(type, AT(a, 3), n), y = ferryi_sqnorm_avx2(type, AT(b, 3), n);
        assert_memory_equal(&x, &y, sizeof x);
        if (ferryi_have_avx512()) {
            y = ferryi_sqnorm_avx512(type, AT(b, 3), n);
            assert_memory_equal(&x, &y, sizeof x);
        }
        for (int k = 0; k < 5; k++) {
            for (int i = 0; i <= MOST; i++) {
                double have = get(b[k], of[k], i), want = get(a[k], of[k], i);
                if (isnan(have) && isnan(want)) {
                    continue; /* 0/0 and the like: a NaN, its bits say nothing */
                }
                if (memcmp(&have, &want, sizeof have) != 0) {
                    fail_msg("round %d, array %d, element %d of %d: %a, scalar %a", round, k, i, n, have, want);
                }
                subnormal += fpclassify(t == FERRY_F32 ? (float)want : want) == FP_SUBNORMAL ||
                             (t == FERRY_F32 && want != 0 && fabs(want) < (double)FLT_MIN);
            }
        }
    }
    assert_true(subnormal > 1000);
}

/* The order of the sum is fixed: partial sums, joined by halves. */
static void sums_in_the_fixed_order(void **state)
{
    (void)state;
    enum { N = 5 * FERRYI_SQUARE_SUMS + 29 };
    double g[N], s[FERRYI_SQUARE_SUMS] = {0};
    uint64_t seed = 9;
    for (int i = 0; i < N; i++) {
        g[i] = any_number(FERRY_F64, &seed) / 3;
        g[i] = fabs(g[i]) > 1e100 ? 1 : g[i];
        s[i % FERRYI_SQUARE_SUMS] += g[i] * g[i];
    }
    for (int i = 0; i < 32; i++) {
        s[i] += s[i + 32];
    }
    for (int i = 0; i < 16; i++) {
        s[i] += s[i + 16];
    }
    for (int i = 0; i < 8; i++) {
        s[i] += s[i + 8];
    }
    double want = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    assert_true(ferryi_sqnorm_scalar(FERRY_F64, g, N) == want);
}

/* A COMPUTE stream takes device memory and gives the bits of the UPDATE stream, also through ordinary memory. */
static void same_on_compute(void **state)
{
    bench *b = *state;
    enum { N = 3 * FERRYI_UPDATE_BLOCK + 1237 };
    const ferry_adamw_args args = {1e-3, 0.9, 0.999, 1e-8, 0.01, 3};
    ferry_stream *compute;
    ferry_pool *pool;
    float *host[4];
    double *sums;
    void *p;
    expect_ok(ferry_stream_open(b->device, FERRY_STREAM_COMPUTE, &compute));
    expect_ok(ferry_pool_open(b->device, 4 * (int64_t)sizeof(float) * N, &pool));
    expect_ok(ferry_host_alloc(b->device, 3 * (int64_t)sizeof(double), &p));
    sums = p;
    sums[2] = 0.37; /* a clip scale */
    float *device = ferry_pool_at(pool, 0), *back = malloc(N * sizeof(float));
    uint64_t random = 12345;
    for (int k = 0; k < 4; k++) {
        expect_ok(ferry_host_alloc(b->device, (int64_t)sizeof(float) * N, &p));
        host[k] = p;
        for (int i = 0; i < N; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            host[k][i] = (float)(random >> 40) / (float)(1 << 24) - (k == 2 ? 0 : 0.5f);
        }
        expect_ok(ferry_device_write(compute, device + (size_t)k * N, host[k], (int64_t)sizeof(float) * N));
    }
    expect_ok(ferry_sqnorm(b->stream, FERRY_F32, &sums[0], host[3], N));
    expect_ok(ferry_adamw(b->stream, FERRY_F32, host[0], host[1], host[2], host[3], &sums[2], N, args));
    expect_ok(ferry_stream_sync(b->stream));
    expect_ok(ferry_sqnorm(compute, FERRY_F32, &sums[1], device + 3 * (size_t)N, N));
    expect_ok(ferry_adamw(compute, FERRY_F32, device, device + N, device + 2 * (size_t)N, device + 3 * (size_t)N, &sums[2],
                          N, args));
    expect_ok(ferry_stream_sync(compute));
    assert_memory_equal(&sums[0], &sums[1], sizeof(double));
    for (int k = 0; k < 3; k++) {
        expect_ok(ferry_device_read(compute, back, device + (size_t)k * N, (int64_t)sizeof(float) * N));
        assert_memory_equal(back, host[k], N * sizeof(float));
    }
    expect_failure(ferry_device_read(NULL, back, device, 4), FERRY_USAGE, "the stream is NULL");
    expect_failure(ferry_device_write(compute, back, device, 4), FERRY_USAGE, "not inside a pool");
    free(back);
    for (int k = 0; k < 4; k++)
        ferry_host_free(b->device, host[k]);
    ferry_host_free(b->device, sums);
    ferry_pool_close(pool);
    ferry_stream_close(compute);
}

static void refuses_wrong_calls(void **state)
{
    bench *b = *state;
    double x[2] = {1, 2}, out;
    const ferry_adamw_args good = {1e-3, 0.9, 0.999, 1e-8, 0.01, 1};
    ferry_stream *s = b->stream, *compute, *load;
    expect_ok(ferry_stream_open(b->device, FERRY_STREAM_COMPUTE, &compute));
    expect_ok(ferry_stream_open(b->device, FERRY_STREAM_LOAD, &load));
    expect_failure(ferry_adamw(load, FERRY_F64, x, x, x, x, NULL, 2, good), FERRY_USAGE,
                   "neither an UPDATE nor a COMPUTE stream");
    expect_failure(ferry_sqnorm(load, FERRY_F64, &out, x, 2), FERRY_USAGE, "neither an UPDATE nor a COMPUTE stream");
    ferry_stream_close(load);
    expect_failure(ferry_grad_norm(compute, &out, &out, x, 2, 1), FERRY_USAGE, "not an UPDATE stream");
    ferry_stream_close(compute);
    expect_failure(ferry_adamw(NULL, FERRY_F64, x, x, x, x, NULL, 2, good), FERRY_USAGE, "NULL");
    expect_failure(ferry_adamw(s, FERRY_BF16, x, x, x, x, NULL, 2, good), FERRY_USAGE, "type bf16");
    expect_failure(ferry_adamw(s, FERRY_F64, x, NULL, x, x, NULL, 2, good), FERRY_USAGE, "pointer");
    float single[2] = {1, 2};
    expect_failure(ferry_adamw_bf16(s, single, single, single, NULL, x, NULL, 2, good), FERRY_USAGE, "pointer");
    expect_failure(ferry_adamw(s, FERRY_F64, x, x, x, x, NULL, -2, good), FERRY_USAGE, "-2");
    const ferry_adamw_args bad[] = {{-1e-3, 0.9, 0.999, 1e-8, 0.01, 1}, {1e-3, 1.0, 0.999, 1e-8, 0.01, 1},
                                    {1e-3, 0.9, -0.1, 1e-8, 0.01, 1},   {1e-3, 0.9, 0.999, -1e-8, 0.01, 1},
                                    {1e-3, 0.9, 0.999, 1e-8, NAN, 1},   {1e-3, 0.9, 0.999, 1e-8, 0.01, 0},
                                    {INFINITY, 0.9, 0.999, 1e-8, 0, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        expect_failure(ferry_adamw(s, FERRY_F64, x, x, x, x, NULL, 2, bad[i]), FERRY_USAGE, "rates are finite");
    }
    expect_failure(ferry_sqnorm(s, FERRY_I64, &out, x, 2), FERRY_USAGE, "i64");
    expect_failure(ferry_sqnorm(s, FERRY_F64, NULL, x, 2), FERRY_USAGE, "pointer");
    expect_failure(ferry_grad_norm(s, NULL, &out, x, 2, 1), FERRY_USAGE, "pointer");
    expect_failure(ferry_grad_norm(s, &out, &out, x, 2, NAN), FERRY_USAGE, "clip");
    ferry_pool *pool;
    expect_ok(ferry_pool_open(b->device, 1, &pool));
    expect_failure(ferry_sqnorm(s, FERRY_F64, &out, ferry_pool_at(pool, 0), 2), FERRY_USAGE, "device memory");
    ferry_pool_close(pool);
    assert_true(x[0] == 1 && x[1] == 2);
}

/* Pinned memory, two streams in the order of an event: under the thread sanitizer this also says that the tasks tell it
 * what they touch. */
static void works_on_pinned_memory(void **state)
{
    bench *b = *state;
    void *p, *m, *v, *g, *numbers;
    enum { MANY = 5000 };
    expect_ok(ferry_host_alloc(b->device, MANY * 4, &p));
    expect_ok(ferry_host_alloc(b->device, MANY * 4, &m));
    expect_ok(ferry_host_alloc(b->device, MANY * 4, &v));
    expect_ok(ferry_host_alloc(b->device, MANY * 4, &g));
    expect_ok(ferry_host_alloc(b->device, 4 * sizeof(double), &numbers));
    for (int i = 0; i < MANY; i++) {
        ((float *)g)[i] = 2;
    }
    double *part = numbers, *norm = part + 1, *scale = part + 2;
    ferry_stream *other;
    ferry_event *ready;
    expect_ok(ferry_stream_open(b->device, FERRY_STREAM_UPDATE, &other));
    expect_ok(ferry_event_open(b->device, &ready));
    expect_ok(ferry_sqnorm(b->stream, FERRY_F32, part, g, MANY));
    expect_ok(ferry_grad_norm(b->stream, norm, scale, part, 1, 0));
    expect_ok(ferry_event_record(b->stream, ready));
    expect_ok(ferry_stream_wait(other, ready));
    expect_ok(ferry_adamw(other, FERRY_F32, p, m, v, g, scale, MANY, (ferry_adamw_args){0.5, 0.9, 0.999, 0, 0, 1}));
    expect_ok(ferry_stream_sync(other));
    assert_true(*norm == sqrt(4.0 * MANY) && *scale == 1);
    for (int i = 0; i < MANY; i++) { /* the first step of Adam moves by the learning rate */
        assert_true(fabsf(((float *)p)[i] + 0.5F) < 1e-6F);
    }
    ferry_event_close(ready);
    ferry_stream_close(other);
    ferry_host_free(b->device, p);
    ferry_host_free(b->device, m);
    ferry_host_free(b->device, v);
    ferry_host_free(b->device, g);
    ferry_host_free(b->device, numbers);
}

/* A tensor of many blocks and a part of one: shared out over threads, it gets the bits that one call of the arithmetic
 * gives, and the sum of squares is exact where all its parts are. */
static void large_tensors_keep_their_bits(void **state)
{
    bench *b = *state;
    enum { MANY = 9 * FERRYI_UPDATE_BLOCK + 77 };
    float *x[4], *y[4];
    double exact = 0, sum;
    for (int a = 0; a < 4; a++) {
        x[a] = malloc(MANY * sizeof(float));
        y[a] = malloc(MANY * sizeof(float));
        for (int i = 0; i < MANY; i++) {
            x[a][i] = (float)((i % 1024 * 919 + a * 13) % 1024) / 64 + (float)(a == 2);
        }
        memcpy(y[a], x[a], MANY * sizeof(float));
    }
    for (int i = 0; i < MANY; i++) {
        exact += (double)x[3][i] * (double)x[3][i];
    }
    ferry_adamw_args args = {1e-2, 0.9, 0.999, 1e-8, 0.1, 3};
    ferryi_adamw_numbers numbers = ferryi_adamw_prepare(&args, 1);
    expect_ok(ferry_sqnorm(b->stream, FERRY_F32, &sum, x[3], MANY));
    expect_ok(ferry_adamw(b->stream, FERRY_F32, x[0], x[1], x[2], x[3], NULL, MANY, args));
    expect_ok(ferry_stream_sync(b->stream));
    ferryi_adamw_scalar(FERRY_F32, y[0], y[1], y[2], y[3], NULL, MANY, &numbers);
    assert_true(sum == exact);
    for (int a = 0; a < 4; a++) {
        assert_memory_equal(x[a], y[a], MANY * sizeof(float));
        free(x[a]);
        free(y[a]);
    }
}

/* bf16: the bits of the f32 update with the widened gradient, and a rounded copy of its result; also in many blocks. The
 * sum of squares is that of the widened gradient. */
static void bf16_is_f32_rounded(void **state)
{
    bench *b = *state;
    enum { MANY = 5 * FERRYI_UPDATE_BLOCK + 21 };
    float *x[4], *y[4];
    uint16_t *g = malloc(MANY * sizeof(*g)), *rounded = malloc(MANY * sizeof(*g)), *want = malloc(MANY * sizeof(*g));
    uint64_t seed = 7;
    for (int a = 0; a < 4; a++) {
        x[a] = malloc(MANY * sizeof(float));
        y[a] = malloc(MANY * sizeof(float));
        for (int i = 0; i < MANY; i++) {
            float value = (float)any_number(FERRY_F32, &seed);
            x[a][i] = a == 2 ? fabsf(value) : value;
        }
    }
    expect_ok(ferry_convert(g, FERRY_BF16, x[3], FERRY_F32, MANY));
    expect_ok(ferry_convert(x[3], FERRY_F32, g, FERRY_BF16, MANY));
    for (int a = 0; a < 4; a++) {
        memcpy(y[a], x[a], MANY * sizeof(float));
    }
    const ferry_adamw_args args = {1e-2, 0.9, 0.999, 1e-8, 0.1, 3};
    const double scale = 0.4;
    double sum[2];
    expect_ok(ferry_sqnorm(b->stream, FERRY_BF16, &sum[0], g, MANY));
    expect_ok(ferry_sqnorm(b->stream, FERRY_F32, &sum[1], x[3], MANY));
    expect_ok(ferry_adamw_bf16(b->stream, x[0], x[1], x[2], rounded, g, &scale, MANY, args));
    expect_ok(ferry_adamw(b->stream, FERRY_F32, y[0], y[1], y[2], y[3], &scale, MANY, args));
    expect_ok(ferry_stream_sync(b->stream));
    expect_ok(ferry_convert(want, FERRY_BF16, y[0], FERRY_F32, MANY));
    assert_true(sum[0] == sum[1] && sum[0] > 0);
    for (int a = 0; a < 3; a++) {
        assert_memory_equal(x[a], y[a], MANY * sizeof(float));
    }
    assert_memory_equal(rounded, want, MANY * sizeof(*g));
    for (int a = 0; a < 4; a++) {
        free(x[a]);
        free(y[a]);
    }
    free(g);
    free(rounded);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_pytorch),           cmocka_unit_test(norms_are_exact),
        cmocka_unit_test(versions_agree_to_the_bit), cmocka_unit_test(sums_in_the_fixed_order),
        cmocka_unit_test(same_on_compute),           cmocka_unit_test(works_on_pinned_memory),
        cmocka_unit_test(refuses_wrong_calls),
        cmocka_unit_test(large_tensors_keep_their_bits), cmocka_unit_test(bf16_is_f32_rounded),
    };
    return cmocka_run_group_tests(tests, bench_open, bench_close);
}
