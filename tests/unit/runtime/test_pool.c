/* test_pool.c - pinned memory, pools, stitching and copies. */
#include "runtime/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define OK(call) assert_int_equal(call, FERRY_OK)

enum { CHUNK = 4096 };

static ferry_device *device;

static int open_device(void **state)
{
    (void)state;
    return ferry_device_open("host", &device) == FERRY_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    ferry_device_close(device);
    return 0;
}

static void test_pinned(void **state)
{
    (void)state;
    const int64_t sizes[] = {0, 1, 63, 4096, 100000};
    for (size_t i = 0; i < 5; i++) {
        unsigned char *p;
        OK(ferry_host_alloc(device, sizes[i], (void **)&p));
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 4096, 0);
        for (int64_t j = 0; j < sizes[i]; j++) {
            assert_int_equal(p[j], 0);
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
    assert_int_equal(ferry_pool_bytes(a), CHUNK);
    OK(ferry_pool_open(device, 2 * CHUNK + 1, &b));
    assert_int_equal(ferry_pool_bytes(b), 3 * CHUNK);
    assert_int_equal(ferry_device_peak_bytes(device), 4 * CHUNK);
    ferry_pool_close(a);
    OK(ferry_pool_open(device, CHUNK, &a));
    assert_int_equal(ferry_device_peak_bytes(device), 4 * CHUNK);
    ferry_pool_close(b);
    ferry_pool_close(a);
    ferry_pool_close(NULL);
    assert_int_equal(ferry_device_peak_bytes(device), 4 * CHUNK);
    const int64_t wrong[] = {0, -1, INT64_MIN, INT64_MAX};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ferry_pool_open(device, wrong[i], &none), FERRY_USAGE);
        assert_null(none);
    }
    assert_int_equal(ferry_pool_open(device, (int64_t)1 << 50, &none), FERRY_FAILED);
    assert_null(none);
    assert_int_equal(ferry_pool_open(NULL, 1, &none), FERRY_USAGE);
    assert_int_equal(ferry_device_peak_bytes(device), 4 * CHUNK); /* a failed pool held nothing */
}

/* Memory that nobody wrote is NaN in every floating type. */
static void test_fresh_memory(void **state)
{
    (void)state;
    ferry_pool *p;
    OK(ferry_pool_open(device, 5 * CHUNK, &p));
    float *f = ferry_pool_at(p, 0);
    double *d = ferry_pool_at(p, 2 * CHUNK);
    assert_true(f[0] != f[0] && f[5 * CHUNK / 4 - 1] != f[5 * CHUNK / 4 - 1]);
    assert_true(d[17] != d[17]);
    ferry_pool_close(p);
}

static void test_stitch(void **state)
{
    (void)state;
    ferry_pool *p;
    OK(ferry_pool_open(device, 16 * CHUNK, &p));
    for (int i = 0; i < 16; i++) {
        memset(ferry_pool_at(p, i * CHUNK), i, CHUNK);
    }
    const ferry_piece pieces[] = {{8 * CHUNK, 2 * CHUNK}, {10 * CHUNK, CHUNK}, {3 * CHUNK, CHUNK}, {0, 100}};
    const int expected[] = {8, 9, 10, 3, 0};
    unsigned char *v, *w;
    OK(ferry_pool_stitch(p, pieces, 4, (void **)&v));
    for (int i = 0; i < 4 * CHUNK + 100; i++) {
        assert_int_equal(v[i], expected[i / CHUNK]);
    }
    /* a second range over some of the same chunks: writes are seen through all three mappings */
    const ferry_piece again[] = {{3 * CHUNK, CHUNK}, {8 * CHUNK, CHUNK}};
    OK(ferry_pool_stitch(p, again, 2, (void **)&w));
    memset(w, 77, 2 * CHUNK);
    assert_int_equal(v[0], 77);
    assert_int_equal(v[3 * CHUNK + 5], 77);
    assert_int_equal(v[CHUNK], 9);
    assert_int_equal(*(unsigned char *)ferry_pool_at(p, 8 * CHUNK + 9), 77);
    assert_int_equal(ferry_device_peak_bytes(device), 16 * CHUNK); /* addresses are not memory */
    ferry_pool_close(p);
}

static void test_wrong_pieces(void **state)
{
    (void)state;
    ferry_pool *p;
    OK(ferry_pool_open(device, 8 * CHUNK, &p));
    const struct {
        ferry_piece piece[2];
        int count;
        const char *text;
    } wrong[] = {
        {{{0, CHUNK}}, 0, "at least one piece"},
        {{{0, CHUNK}}, -1, "at least one piece"},
        {{{0, 0}}, 1, "is empty"},
        {{{0, -CHUNK}}, 1, "is empty"},
        {{{64, CHUNK}}, 1, "multiple of the chunk"},
        {{{-CHUNK, CHUNK}}, 1, "multiple of the chunk"},
        {{{0, 100}, {CHUNK, CHUNK}}, 2, "only the last piece"},
        {{{8 * CHUNK, CHUNK}}, 1, "ends behind the pool"},
        {{{7 * CHUNK, CHUNK + 1}}, 1, "ends behind the pool"},
        {{{CHUNK, INT64_MAX}}, 1, "ends behind the pool"},
        {{{0, 2 * CHUNK}, {CHUNK, CHUNK}}, 2, "overlap"},
        {{{CHUNK, CHUNK}, {CHUNK, 10}}, 2, "overlap"},
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

static ferry_status fail_now(void)
{
    return fault.left-- == 0 ? ferryi_fail(FERRY_FAILED, "made to fail") : FERRY_OK;
}

static ferry_status count_create(ferry_device *d, int64_t bytes, void **out)
{
    ferry_status status = fail_now();
    fault.physical += status == FERRY_OK ? bytes : 0;
    return status != FERRY_OK ? status : ferryi_host_backend.physical_create(d, bytes, out);
}

static void count_release(ferry_device *d, void *physical)
{
    fault.physical = 0;
    ferryi_host_backend.physical_release(d, physical);
}

static ferry_status count_reserve(ferry_device *d, int64_t bytes, void **out)
{
    ferry_status status = fail_now();
    fault.reserved += status == FERRY_OK ? bytes : 0;
    return status != FERRY_OK ? status : ferryi_host_backend.range_reserve(d, bytes, out);
}

static void count_free(ferry_device *d, void *range, int64_t bytes)
{
    fault.reserved -= bytes;
    ferryi_host_backend.range_free(d, range, bytes);
}

static ferry_status count_map(ferry_device *d, void *at, int64_t bytes, void *physical, int64_t offset)
{
    ferry_status status = fail_now();
    fault.mapped += status == FERRY_OK ? bytes : 0;
    return status != FERRY_OK ? status : ferryi_host_backend.range_map(d, at, bytes, physical, offset);
}

static void count_unmap(ferry_device *d, void *at, int64_t bytes)
{
    fault.mapped -= bytes;
    ferryi_host_backend.range_unmap(d, at, bytes);
}

static void test_roll_back(void **state)
{
    (void)state;
    ferryi_backend counting = ferryi_host_backend;
    counting.physical_create = count_create;
    counting.physical_release = count_release;
    counting.range_reserve = count_reserve;
    counting.range_free = count_free;
    counting.range_map = count_map;
    counting.range_unmap = count_unmap;
    device->backend = &counting;
    const ferry_piece pieces[] = {{8 * CHUNK, 2 * CHUNK}, {2 * CHUNK, CHUNK}, {4 * CHUNK, CHUNK}, {6 * CHUNK, CHUNK}};
    int failures = 0;
    for (int n = 0;; n++) {
        memset(&fault, 0, sizeof(fault));
        fault.left = n;
        ferry_pool *p;
        void *range;
        if (ferry_pool_open(device, 10 * CHUNK, &p) != FERRY_OK) {
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
            assert_int_equal(fault.mapped, 10 * CHUNK);
            assert_int_equal(fault.reserved, 10 * CHUNK);
            assert_int_equal(device->regions, regions);
            failures++;
        } else {
            assert_int_equal(fault.mapped, 15 * CHUNK);
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
    device->backend = &ferryi_host_backend;
}

/* ---- copies ----------------------------------------------------------------------------------------------------- */

static void test_copies(void **state)
{
    (void)state;
    ferry_stream *load, *store, *update;
    ferry_event *loaded;
    ferry_pool *p;
    unsigned char *host, *back, *v;
    enum { BYTES = 2 * CHUNK + 100 };
    OK(ferry_stream_open(device, FERRY_STREAM_LOAD, &load));
    OK(ferry_stream_open(device, FERRY_STREAM_STORE, &store));
    OK(ferry_stream_open(device, FERRY_STREAM_UPDATE, &update));
    OK(ferry_event_open(device, &loaded));
    OK(ferry_pool_open(device, 8 * CHUNK, &p));
    OK(ferry_host_alloc(device, BYTES, (void **)&host));
    OK(ferry_host_alloc(device, BYTES, (void **)&back));
    const ferry_piece pieces[] = {{5 * CHUNK, CHUNK}, {CHUNK, CHUNK}, {3 * CHUNK, 100}};
    OK(ferry_pool_stitch(p, pieces, 3, (void **)&v));
    for (int i = 0; i < BYTES; i++) {
        host[i] = (unsigned char)(i * 7 + i / 256);
    }
    OK(ferry_copy_h2d(load, v, host, BYTES));
    OK(ferry_event_record(load, loaded));
    OK(ferry_stream_wait(store, loaded));
    OK(ferry_copy_d2h(store, back, v, BYTES));
    OK(ferry_stream_sync(store));
    assert_memory_equal(back, host, BYTES);
    assert_memory_equal(ferry_pool_at(p, CHUNK), host + CHUNK, CHUNK);

    char local[16] = {0};
    assert_int_equal(ferry_copy_h2d(load, v, local, 16), FERRY_USAGE); /* not pinned */
    assert_int_equal(ferry_copy_h2d(load, local, host, 16), FERRY_USAGE);
    assert_int_equal(ferry_copy_h2d(load, host, v, 16), FERRY_USAGE); /* the wrong way round */
    assert_int_equal(ferry_copy_h2d(load, v, host, BYTES + 1), FERRY_USAGE);
    assert_int_equal(ferry_copy_d2h(store, back + 1, v, BYTES), FERRY_USAGE);
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
