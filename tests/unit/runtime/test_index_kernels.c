/* DROPOUT, RAVEL, SCATTER and TOPK on the host: what they promise beside their values, which graph tests compare with
 * ONNX's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "runtime/backend.h"

#define OK(call) assert_int_equal(call, FERRY_OK)

static ferry_device *device;
static ferry_stream *stream;

static int open_all(void **state)
{
    (void)state;
    return ferry_device_open("host", &device) || ferry_stream_open(device, FERRY_STREAM_COMPUTE, &stream);
}

static int close_all(void **state)
{
    (void)state;
    ferry_stream_close(stream);
    ferry_device_close(device);
    return 0;
}

/* ---- DROPOUT ---------------------------------------------------------------------------------------------------- */

enum { MANY = 100003 };

static void drop(double *y, double ratio, uint64_t seed, int64_t step, int64_t salt, unsigned flags)
{
    static double ones[MANY];
    for (int i = 0; i < MANY; i++) {
        ones[i] = 1;
    }
    OK(ferry_dropout(stream, FERRY_F64, y, ones, MANY, ratio, seed, step, salt, flags));
    OK(ferry_stream_sync(stream));
}

static void test_dropout(void **state)
{
    (void)state;
    static double a[MANY], b[MANY];
    const double ratios[] = {0.1, 0.5, 0.75};
    for (int r = 0; r < 3; r++) {
        double p = ratios[r], kept = 0;
        drop(a, p, 3, 5, 1, 0);
        for (int i = 0; i < MANY; i++) {
            assert_true(a[i] == 0 || fabs(a[i] - 1 / (1 - p)) < 1e-15);
            kept += a[i] != 0;
        }
        /* a binomial number: five standard deviations */
        assert_true(fabs(kept - MANY * (1 - p)) < 5 * sqrt(MANY * p * (1 - p)));
        drop(b, p, 3, 5, 1, 0);
        assert_memory_equal(a, b, sizeof(a));
        drop(b, p, 3, 5, 1, FERRY_ACCUMULATE);
        for (int i = 0; i < MANY; i++) {
            assert_true(b[i] == 2 * a[i]);
        }
    }
}

/* Masks of another seed, step or node agree no more often than chance has it. */
static void test_dropout_differs(void **state)
{
    (void)state;
    static double a[MANY], b[MANY];
    const int64_t other[4][3] = {{4, 5, 1}, {3, 6, 1}, {3, 5, 2}, {(int64_t)1 << 40, 5, 1}};
    drop(a, 0.5, 3, 5, 1, 0);
    for (int k = 0; k < 4; k++) {
        double same = 0;
        drop(b, 0.5, (uint64_t)other[k][0], other[k][1], other[k][2], 0);
        for (int i = 0; i < MANY; i++) {
            same += a[i] == b[i];
        }
        assert_true(fabs(same - MANY / 2.0) < 5 * sqrt(MANY / 4.0));
    }
}

static void test_dropout_edges(void **state)
{
    (void)state;
    static double a[MANY];
    drop(a, 0, 1, 1, 1, 0);
    for (int i = 0; i < MANY; i++) {
        assert_true(a[i] == 1);
    }
    drop(a, 1, 1, 1, 1, 0);
    for (int i = 0; i < MANY; i++) {
        assert_true(a[i] == 0);
    }
    assert_int_equal(ferry_dropout(stream, FERRY_F64, a, a, 1, 1.5, 1, 1, 1, 0), FERRY_USAGE);
    assert_int_equal(ferry_dropout(stream, FERRY_I64, a, a, 1, 0.5, 1, 1, 1, 0), FERRY_USAGE);
}

/* ---- TOPK ------------------------------------------------------------------------------------------------------- */

static void test_topk(void **state)
{
    (void)state;
    const float x[] = {2, NAN, 5, 2, 5, -1, -0.0f, 0.0f};
    const int64_t most[] = {1, 2, 4, 0, 3, 6, 7, 5}, least[] = {5, 6, 7, 0, 3, 2, 4, 1};
    const int32_t whole[] = {7, -3, 7, 9};
    const int64_t whole_most[] = {3, 0, 2};
    int64_t ids[8];
    OK(ferry_topk(stream, FERRY_F32, ids, x, 1, 8, 8, 0));
    OK(ferry_stream_sync(stream));
    assert_memory_equal(ids, most, sizeof(most));
    OK(ferry_topk(stream, FERRY_F32, ids, x, 1, 8, 8, FERRY_REVERSE));
    OK(ferry_stream_sync(stream));
    assert_memory_equal(ids, least, sizeof(least));
    OK(ferry_topk(stream, FERRY_I32, ids, whole, 1, 4, 3, 0));
    OK(ferry_stream_sync(stream));
    assert_memory_equal(ids, whole_most, sizeof(whole_most));
    OK(ferry_topk(stream, FERRY_F32, ids, x, 2, 4, 0, 0));
    assert_int_equal(ferry_topk(stream, FERRY_F32, ids, x, 1, 4, 5, 0), FERRY_USAGE);
}

/* ---- RAVEL and SCATTER ------------------------------------------------------------------------------------------ */

static void test_ravel(void **state)
{
    (void)state;
    const int32_t ids[] = {0, -1, 2, 1, -3, -2};
    const int64_t dim = 3, base = 10, stride = 2, sizes[] = {3, 4}, expected[] = {5 * 3, 10 + 5 * 9, 20 + 5 * 2};
    int64_t y[3];
    OK(ferry_ravel(stream, FERRY_I32, y, ids, 1, &dim, &base, &stride, 2, sizes, 5));
    OK(ferry_stream_sync(stream));
    assert_memory_equal(y, expected, sizeof(y));
    const int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_int_equal(ferry_ravel(stream, FERRY_I32, y, ids, 1, &dim, &base, &stride, 9, nine, 5), FERRY_USAGE);
    assert_int_equal(ferry_ravel(stream, FERRY_F32, y, ids, 1, &dim, &base, &stride, 2, sizes, 5), FERRY_USAGE);
}

/* The last of equal ids stays; types are whatever they are. */
static void test_scatter_replaces(void **state)
{
    (void)state;
    const int16_t data[] = {1, 2, 3, 4, 5, 6}, updates[] = {7, 8, 9, 10, 11, 12}, expected[] = {11, 12, 3, 4, 9, 10};
    const int64_t ids[] = {0, -1, -3};
    int16_t y[6];
    OK(ferry_scatter(stream, FERRY_I16, FERRY_FN_NONE, y, data, updates, FERRY_I64, ids, 3, 3, 2));
    OK(ferry_stream_sync(stream));
    assert_memory_equal(y, expected, sizeof(y));
    assert_int_equal(ferry_scatter(stream, FERRY_I16, FERRY_ADD, y, data, updates, FERRY_I64, ids, 3, 3, 2),
                     FERRY_USAGE);
    assert_int_equal(ferry_scatter(stream, FERRY_F32, FERRY_DIV, y, data, updates, FERRY_I64, ids, 3, 3, 2),
                     FERRY_USAGE);
}

/* Equal largest elements share the gradient; the ids that fail name themselves. Last: the device stays failed. */
static void test_scatter_grad_and_failure(void **state)
{
    (void)state;
    const double data[] = {3, 1}, updates[] = {3, 3, 0}, y[] = {3, 1}, dy[] = {6, 4}, third[] = {2, 2, 0};
    const int64_t ids[] = {0, 0, 1}, bad[] = {0, 0, 2}, dim = 3, one = 1, two = 2, zero = 0;
    double ddata[2], dupdates[3];
    int64_t places[3];
    OK(ferry_scatter_grad(stream, FERRY_F64, FERRY_MAX, ddata, dupdates, dy, data, updates, y, FERRY_I64, ids, 3, 2,
                          1));
    OK(ferry_stream_sync(stream));
    assert_true(ddata[0] == 2 && ddata[1] == 4);
    assert_memory_equal(dupdates, third, sizeof(third));
    OK(ferry_ravel(stream, FERRY_I64, places, bad, 1, &dim, &zero, &one, 1, &two, 1));
    assert_int_equal(ferry_stream_sync(stream), FERRY_BAD_DATA);
    assert_non_null(strstr(ferry_error(), "index 2 at position 2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_dropout_differs),
        cmocka_unit_test(test_dropout_edges),
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_ravel),
        cmocka_unit_test(test_scatter_replaces),
        cmocka_unit_test(test_scatter_grad_and_failure),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
