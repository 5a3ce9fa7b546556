/* test_pool.c - conformance: pinned memory, pools, stitching and copies. */
#include "runtime/backend.h"
#include "test_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define OK(call) assert_int_equal(call, FERRY_OK)

static ferry_device *device;
static int64_t chunk; /* of the device */

static int open_device(void **state)
{
    (void)state;
    if (ferry_device_open(test_device_name(), &device) != FERRY_OK) {
        return -1;
    }
    chunk = ferry_device_chunk_bytes(device);
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    ferry_device_close(device);
    return 0;
}

/* ---- device memory from outside --------------------------------------------------------------------------------- */

/* The bytes of device memory at p in memory of malloc. */
static unsigned char *get(const void *p, int64_t bytes)
{
    ferry_stream *s;
    void *host;
    unsigned char *out = malloc((size_t)bytes);
    OK(ferry_stream_open(device, FERRY_STREAM_STORE, &s));
    OK(ferry_host_alloc(device, bytes, &host));
    OK(ferry_copy_d2h(s, host, p, bytes));
    OK(ferry_stream_sync(s));
    memcpy(out, host, (size_t)bytes);
    ferry_host_free(device, host);
    ferry_stream_close(s);
    return out;
}

static int get_byte(const void *p)
{
    unsigned char *one = get(p, 1);
    int value = one[0];
    free(one);
    return value;
}

static void set(void *p, int value, int64_t bytes)
{
    ferry_stream *s;
    void *host;
    OK(ferry_stream_open(device, FERRY_STREAM_LOAD, &s));
    OK(ferry_host_alloc(device, bytes, &host));
    memset(host, value, (size_t)bytes);
    OK(ferry_copy_h2d(s, p, host, bytes));
    OK(ferry_stream_sync(s));
    ferry_host_free(device, host);
    ferry_stream_close(s);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static void test_pinned(void **state)
{
    (void)state;
    const int64_t sizes[] = {0, 1, 63, 4096, 100000, 9000001};
    for (size_t i = 0; i < 6; i++) {
        unsigned char *p;
        OK(ferry_host_alloc(device, sizes[i], (void **)&p));
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 4096, 0);
        for (int64_t j = 0; j < sizes[i]; j++) {
            if (p[j] != 0) {
                fail_msg("byte %lld is %d", (long long)j, p[j]);
            }
        }
        memset(p, 7, (size_t)sizes[i]);
        ferry_host_free(device, p);
    }
    void *none = &none;
    assert_int_equal(ferry_host_alloc(device, -1, &none), FERRY_USAGE);
    assert_null(none);
    assert_int_equal(ferry_host_alloc(device, INT64_MAX, &none), FERRY_FAILED);
    assert_null(none);
    assert_int_equal(ferry_host_alloc(NULL, 1, &none), FERRY_USAGE);
    ferry_host_free(device, NULL);
    assert_int_equal(ferry_device_peak_bytes(device), 0); /* pools only */
}

static void test_pool_sizes(void **state)
{
    (void)state;
    ferry_pool *a, *b, *none = (ferry_pool *)&none;
    OK(ferry_pool_open(device, 1, &a));
    assert_int_equal(ferry_pool_bytes(a), chunk);
    OK(ferry_pool_open(device, 2 * chunk + 1, &b));
    assert_int_equal(ferry_pool_bytes(b), 3 * chunk);
    assert_int_equal(ferry_device_peak_bytes(device), 4 * chunk);
    ferry_pool_close(a);
    OK(ferry_pool_open(device, chunk, &a));
    assert_int_equal(ferry_device_peak_bytes(device), 4 * chunk);
    ferry_pool_close(b);
    ferry_pool_close(a);
    ferry_pool_close(NULL);
    assert_int_equal(ferry_device_peak_bytes(device), 4 * chunk);
    const int64_t wrong[] = {0, -1, INT64_MIN, INT64_MAX};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ferry_pool_open(device, wrong[i], &none), FERRY_USAGE);
        assert_null(none);
    }
    assert_int_equal(ferry_pool_open(device, (int64_t)1 << 50, &none), FERRY_FAILED);
    assert_null(none);
    assert_int_equal(ferry_pool_open(NULL, 1, &none), FERRY_USAGE);
    assert_int_equal(ferry_device_peak_bytes(device), 4 * chunk); /* a failed pool held nothing */
}

/* Memory that nobody wrote is NaN in every floating type. */
static void test_fresh_memory(void **state)
{
    (void)state;
    ferry_pool *p;
    OK(ferry_pool_open(device, 5 * chunk, &p));
    unsigned char *bytes = get(ferry_pool_at(p, 0), 5 * chunk);
    float *f = (float *)(void *)bytes;
    double *d = (double *)(void *)(bytes + 2 * chunk);
    assert_true(f[0] != f[0] && f[5 * chunk / 4 - 1] != f[5 * chunk / 4 - 1]);
    assert_true(d[17] != d[17]);
    free(bytes);
    ferry_pool_close(p);
}

static void test_stitch(void **state)
{
    (void)state;
    ferry_pool *p;
    OK(ferry_pool_open(device, 16 * chunk, &p));
    for (int i = 0; i < 16; i++) {
        set(ferry_pool_at(p, i * chunk), i, chunk);
    }
    const ferry_piece pieces[] = {{8 * chunk, 2 * chunk}, {10 * chunk, chunk}, {3 * chunk, chunk}, {0, 100}};
    const int expected[] = {8, 9, 10, 3, 0};
    unsigned char *v, *w;
    OK(ferry_pool_stitch(p, pieces, 4, (void **)&v));
    unsigned char *seen = get(v, 4 * chunk + 100);
    for (int64_t i = 0; i < 4 * chunk + 100; i++) {
        if (seen[i] != expected[i / chunk]) {
            fail_msg("byte %lld is %d, expected %d", (long long)i, seen[i], expected[i / chunk]);
        }
    }
    free(seen);
    /* a second range over some of the same chunks: writes are seen through all three mappings */
    const ferry_piece again[] = {{3 * chunk, chunk}, {8 * chunk, chunk}};
    OK(ferry_pool_stitch(p, again, 2, (void **)&w));
    set(w, 77, 2 * chunk);
    assert_int_equal(get_byte(v), 77);
    assert_int_equal(get_byte(v + 3 * chunk + 5), 77);
    assert_int_equal(get_byte(v + chunk), 9);
    assert_int_equal(get_byte((unsigned char *)ferry_pool_at(p, 8 * chunk) + 9), 77);
    assert_int_equal(ferry_device_peak_bytes(device), 16 * chunk); /* addresses are not memory */
    ferry_pool_close(p);
}

static void test_wrong_pieces(void **state)
{
    (void)state;
    ferry_pool *p;
    OK(ferry_pool_open(device, 8 * chunk, &p));
    const struct {
        ferry_piece piece[2];
        int count;
        const char *text;
    } wrong[] = {
        {{{0, chunk}}, 0, "at least one piece"},
        {{{0, chunk}}, -1, "at least one piece"},
        {{{0, 0}}, 1, "is empty"},
        {{{0, -chunk}}, 1, "is empty"},
        {{{64, chunk}}, 1, "multiple of the chunk"},
        {{{-chunk, chunk}}, 1, "multiple of the chunk"},
        {{{0, 100}, {chunk, chunk}}, 2, "only the last piece"},
        {{{8 * chunk, chunk}}, 1, "ends behind the pool"},
        {{{7 * chunk, chunk + 1}}, 1, "ends behind the pool"},
        {{{chunk, INT64_MAX}}, 1, "ends behind the pool"},
        {{{0, 2 * chunk}, {chunk, chunk}}, 2, "overlap"},
        {{{chunk, chunk}, {chunk, 10}}, 2, "overlap"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        void *out = &out;
        assert_int_equal(ferry_pool_stitch(p, wrong[i].piece, wrong[i].count, &out), FERRY_USAGE);
        assert_null(out);
        assert_non_null(strstr(ferry_error(), wrong[i].text));
    }
    ferry_pool_close(p);
}

/* ---- failures in the middle ------------------------------------------------------------------------------------- */

/* A backend that counts what is mapped and reserved, and fails at the n-th operation. */
static struct {
    int left; /* operations until the failure */
    int64_t mapped, reserved, physical;
} fault;

static const ferryi_backend *real;

static ferry_status fail_now(void)
{
    return fault.left-- == 0 ? ferryi_fail(FERRY_FAILED, "made to fail") : FERRY_OK;
}

static ferry_status count_create(ferry_device *d, int64_t bytes, void **out)
{
    ferry_status status = fail_now();
    fault.physical += status == FERRY_OK ? bytes : 0;
    return status != FERRY_OK ? status : real->physical_create(d, bytes, out);
}

static void count_release(ferry_device *d, void *physical)
{
    fault.physical = 0;
    real->physical_release(d, physical);
}

static ferry_status count_reserve(ferry_device *d, int64_t bytes, void **out)
{
    ferry_status status = fail_now();
    fault.reserved += status == FERRY_OK ? bytes : 0;
    return status != FERRY_OK ? status : real->range_reserve(d, bytes, out);
}

static void count_free(ferry_device *d, void *range, int64_t bytes)
{
    fault.reserved -= bytes;
    real->range_free(d, range, bytes);
}

static ferry_status count_map(ferry_device *d, void *at, int64_t bytes, void *physical, int64_t offset)
{
    ferry_status status = fail_now();
    fault.mapped += status == FERRY_OK ? bytes : 0;
    return status != FERRY_OK ? status : real->range_map(d, at, bytes, physical, offset);
}

static void count_unmap(ferry_device *d, void *at, int64_t bytes)
{
    fault.mapped -= bytes;
    real->range_unmap(d, at, bytes);
}

static void test_roll_back(void **state)
{
    (void)state;
    real = device->backend;
    ferryi_backend counting = *real;
    counting.physical_create = count_create;
    counting.physical_release = count_release;
    counting.range_reserve = count_reserve;
    counting.range_free = count_free;
    counting.range_map = count_map;
    counting.range_unmap = count_unmap;
    device->backend = &counting;
    const ferry_piece pieces[] = {{8 * chunk, 2 * chunk}, {2 * chunk, chunk}, {4 * chunk, chunk}, {6 * chunk, chunk}};
    int failures = 0;
    for (int n = 0;; n++) {
        memset(&fault, 0, sizeof(fault));
        fault.left = n;
        ferry_pool *p;
        void *range;
        if (ferry_pool_open(device, 10 * chunk, &p) != FERRY_OK) {
            assert_null(p);
            assert_int_equal(fault.physical, 0);
            assert_int_equal(fault.reserved, 0);
            assert_int_equal(fault.mapped, 0);
            assert_int_equal(device->regions, 0);
            assert_int_equal(device->held_bytes, 0);
            failures++;
            continue;
        }
        int regions = device->regions;
        ferry_status status = ferry_pool_stitch(p, pieces, 4, &range);
        if (status != FERRY_OK) {
            assert_null(range);
            assert_string_equal(ferry_error(), "made to fail");
            assert_int_equal(fault.mapped, 10 * chunk);
            assert_int_equal(fault.reserved, 10 * chunk);
            assert_int_equal(device->regions, regions);
            failures++;
        } else {
            assert_int_equal(fault.mapped, 15 * chunk);
        }
        ferry_pool_close(p);
        assert_int_equal(fault.physical, 0);
        assert_int_equal(fault.reserved, 0);
        assert_int_equal(fault.mapped, 0);
        assert_int_equal(device->regions, 0);
        if (status == FERRY_OK) {
            break;
        }
    }
    assert_int_equal(failures, 3 + 5); /* create, reserve, map; then reserve and four maps */
    device->backend = real;
}

/* ---- copies ----------------------------------------------------------------------------------------------------- */

static void test_copies(void **state)
{
    (void)state;
    ferry_stream *load, *store, *update;
    ferry_event *loaded;
    ferry_pool *p;
    unsigned char *host, *back, *v;
    const int64_t bytes = 2 * chunk + 100;
    OK(ferry_stream_open(device, FERRY_STREAM_LOAD, &load));
    OK(ferry_stream_open(device, FERRY_STREAM_STORE, &store));
    OK(ferry_stream_open(device, FERRY_STREAM_UPDATE, &update));
    OK(ferry_event_open(device, &loaded));
    OK(ferry_pool_open(device, 8 * chunk, &p));
    OK(ferry_host_alloc(device, bytes, (void **)&host));
    OK(ferry_host_alloc(device, bytes, (void **)&back));
    const ferry_piece pieces[] = {{5 * chunk, chunk}, {chunk, chunk}, {3 * chunk, 100}};
    OK(ferry_pool_stitch(p, pieces, 3, (void **)&v));
    for (int64_t i = 0; i < bytes; i++) {
        host[i] = (unsigned char)(i * 7 + i / 256);
    }
    OK(ferry_copy_h2d(load, v, host, bytes));
    OK(ferry_event_record(load, loaded));
    OK(ferry_stream_wait(store, loaded));
    OK(ferry_copy_d2h(store, back, v, bytes));
    OK(ferry_stream_sync(store));
    assert_memory_equal(back, host, (size_t)bytes);
    unsigned char *middle = get(ferry_pool_at(p, chunk), chunk);
    assert_memory_equal(middle, host + chunk, (size_t)chunk);
    free(middle);

    char local[16] = {0};
    assert_int_equal(ferry_copy_h2d(load, v, local, 16), FERRY_USAGE); /* not pinned */
    assert_int_equal(ferry_copy_h2d(load, local, host, 16), FERRY_USAGE);
    assert_int_equal(ferry_copy_h2d(load, host, v, 16), FERRY_USAGE); /* the wrong way round */
    assert_int_equal(ferry_copy_h2d(load, v, host, bytes + 1), FERRY_USAGE);
    assert_int_equal(ferry_copy_d2h(store, back + 1, v, bytes), FERRY_USAGE);
    assert_int_equal(ferry_copy_h2d(load, v, host, -1), FERRY_USAGE);
    assert_int_equal(ferry_copy_h2d(store, v, host, 16), FERRY_USAGE); /* the wrong stream */
    assert_int_equal(ferry_copy_d2h(load, back, v, 16), FERRY_USAGE);
    assert_int_equal(ferry_copy_d2h(update, back, v, 16), FERRY_USAGE);
    assert_int_equal(ferry_copy_h2d(NULL, v, host, 16), FERRY_USAGE);
    OK(ferry_copy_h2d(load, v, host, 0));
    OK(ferry_device_status(device));

    ferry_stream_close(load);
    ferry_stream_close(store);
    ferry_stream_close(update);
    ferry_event_close(loaded);
    ferry_host_free(device, host);
    ferry_host_free(device, back);
    ferry_pool_close(p);
}

int main(void)
{
    if (!test_device_exists()) {
        return TEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pinned, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_pool_sizes, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_fresh_memory, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_stitch, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_wrong_pieces, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_roll_back, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_copies, open_device, close_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
