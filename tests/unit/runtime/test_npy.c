/* .npy files: one that NumPy wrote, one that we write, and wrong ones. */
#include "scratch.h"

#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>

static void reads_a_file_of_numpy(void **state)
{
    (void)state;
    ferry_npy *f;
    expect_ok(ferry_npy_open(FERRY_SOURCE_DIR "/tests/data/reference_f32.npy", &f));
    const ferry_tensor *t = ferry_npy_tensor(f);
    const float want[6] = {1.5F, -2.25F, 3.0F, 0.1F, 1e-40F, INFINITY};
    assert_int_equal(t->dtype, FERRY_F32);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->dim[0], 2);
    assert_int_equal(t->dim[1], 3);
    assert_memory_equal(t->data, want, sizeof want);
    assert_string_equal(t->name, FERRY_SOURCE_DIR "/tests/data/reference_f32.npy");
    ferry_npy_close(f);
}

/* numpy.save of the same array gives exactly these bytes. */
static void writes_what_numpy_writes(void **state)
{
    (void)state;
    float data[6] = {1.5F, -2.25F, 3.0F, 0.1F, 1e-40F, INFINITY};
    ferry_tensor t = {"x", FERRY_F32, 2, {2, 3}, data};
    const char *path = scratch_path("w.npy");
    expect_ok(ferry_npy_write(path, &t));
    size_t n, m;
    char *have = scratch_read(path, &n);
    char *want = scratch_read(FERRY_SOURCE_DIR "/tests/data/reference_f32.npy", &m);
    assert_int_equal(n, m);
    assert_memory_equal(have, want, n);
    free(have);
    free(want);
    unlink(path);
    assert_int_equal(scratch_count(), 0);
}

static void round_trips_every_type(void **state)
{
    (void)state;
    for (int type = 0; type < FERRY_DTYPE_COUNT; type++) {
        unsigned char data[8 * 4] = {1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1};
        for (int rank = 0; rank <= FERRY_MAX_RANK; rank++) {
            ferry_tensor t = {"x", (ferry_dtype)type, rank, {2, 1, 2, 1, 1, 1, 1, 1}, data};
            const char *path = scratch_path("r.npy");
            expect_ok(ferry_npy_write(path, &t));
            ferry_npy *f;
            expect_ok(ferry_npy_open(path, &f));
            const ferry_tensor *b = ferry_npy_tensor(f);
            assert_int_equal(b->dtype, type);
            assert_int_equal(b->rank, rank);
            assert_memory_equal(b->dim, t.dim, sizeof t.dim[0] * (size_t)rank);
            assert_memory_equal(b->data, data, (size_t)ferry_tensor_bytes(&t));
            ferry_npy_close(f);
            unlink(path);
        }
    }
}

/* A file with this header and `bytes` zero bytes behind it. */
static const char *made(const char *header, size_t bytes)
{
    char text[4096] = "\x93NUMPY\x01\x00";
    size_t n = strlen(header);
    assert_true(n + bytes + 10 <= sizeof text);
    text[8] = (char)(n & 255);
    text[9] = (char)(n >> 8);
    memcpy(text + 10, header, n);
    return scratch_file("made.npy", text, 10 + n + bytes);
}

static void takes_other_spellings(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t bytes;
        ferry_dtype dtype;
        int rank;
    } cases[] = {
        {"{\"shape\": (2L,), \"descr\": \"<i8\", \"fortran_order\": False}\n", 16, FERRY_I64, 1},
        {"{'fortran_order':True,'shape':(3,),'descr':'<f4'}", 12, FERRY_F32, 1},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (), }      \n", 8, FERRY_F64, 0},
        {"{'descr': '|V2', 'fortran_order': False, 'shape': (1, 0, 7), }", 0, FERRY_BF16, 3},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }   ", 0, FERRY_F32, 2},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }", 0, FERRY_F64, 1},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (5,), }", 5, FERRY_BOOL, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ferry_npy *f;
        expect_ok(ferry_npy_open(made(cases[i].header, cases[i].bytes), &f));
        assert_int_equal(ferry_npy_tensor(f)->dtype, cases[i].dtype);
        assert_int_equal(ferry_npy_tensor(f)->rank, cases[i].rank);
        assert_int_equal((uintptr_t)ferry_npy_tensor(f)->data % ferry_dtype_bytes(cases[i].dtype), 0);
        ferry_npy_close(f);
    }
}

static void refuses_wrong_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t bytes;
        const char *text;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 4, "needs 8 bytes of elements, the file has 4"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 12, "needs 8 bytes of elements, the file has 12"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", 8, "big-endian"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }", 16, "'<c8' are not supported"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", 8, "descr is not a plain type"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", 8, "'|O' are not supported"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }", 16, "Fortran"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }", 8, "neither True nor False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", 8, "whole number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2), }", 8, "not a tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 2, }", 8, "not a tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,, 3), }", 8, "whole number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 8, "too large"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 8, "overflows"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4294967296, 4294967296), }", 0, "overflows"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4, "more than 8 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False}", 8, "missing"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, "twice"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", 8, "unknown key"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } x", 8, "follows the dict"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,", 8, ""},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", 8, ""},
        {"{'descr': '<f4", 0, "plain type"},
        {"{'descr", 0, "a key and a colon"},
        {"", 8, "not a dict"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ferry_npy *f = (ferry_npy *)1;
        expect_failure(ferry_npy_open(made(cases[i].header, cases[i].bytes), &f), FERRY_BAD_DATA, cases[i].text);
        assert_null(f);
        assert_non_null(strstr(ferry_error(), "made.npy"));
    }
}

static void refuses_every_cut(void **state)
{
    (void)state;
    size_t n;
    char *whole = scratch_read(FERRY_SOURCE_DIR "/tests/data/reference_f32.npy", &n);
    for (size_t size = 0; size < n; size++) {
        ferry_npy *f;
        expect_failure(ferry_npy_open(scratch_file("cut.npy", whole, size), &f), FERRY_BAD_DATA, "cut.npy");
    }
    memcpy(whole + 6, "\x09", 1);
    ferry_npy *f;
    expect_failure(ferry_npy_open(scratch_file("cut.npy", whole, n), &f), FERRY_BAD_DATA, "version 9.0");
    memcpy(whole + 6, "\x02", 1); /* version 2: a length of 4 bytes, made of the text here */
    expect_failure(ferry_npy_open(scratch_file("cut.npy", whole, n), &f), FERRY_BAD_DATA, "header has");
    free(whole);
}

static void refuses_what_is_no_file(void **state)
{
    (void)state;
    ferry_npy *f;
    expect_failure(ferry_npy_open(scratch_path("absent.npy"), &f), FERRY_USAGE, "absent.npy");
    expect_failure(ferry_npy_open(NULL, &f), FERRY_USAGE, "no path");
    expect_failure(ferry_npy_open(scratch_dir, &f), FERRY_BAD_DATA, "a folder");
    expect_failure(ferry_npy_open("/dev/zero", &f), FERRY_BAD_DATA, "a device");
    const char *fifo = scratch_path("fifo.npy");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    expect_failure(ferry_npy_open(fifo, &f), FERRY_BAD_DATA, "a fifo"); /* and does not wait for a writer */
    assert_null(f);
}

static void a_failed_write_keeps_the_old_file(void **state)
{
    (void)state;
    float *data = calloc(100000, sizeof *data);
    assert_non_null(data);
    ferry_tensor small = {"x", FERRY_F32, 1, {2}, data}, large = {"x", FERRY_F32, 1, {100000}, data};
    const char *path = scratch_path("keep.npy");
    expect_ok(ferry_npy_write(path, &small));
    int before = scratch_count();
    struct rlimit old, limit;
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = 1000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ferry_status status = ferry_npy_write(path, &large);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    expect_failure(status, FERRY_FAILED, "keep.npy");
    assert_int_equal(scratch_count(), before);
    ferry_npy *f;
    expect_ok(ferry_npy_open(path, &f));
    assert_int_equal(ferry_npy_tensor(f)->dim[0], 2);
    ferry_npy_close(f);
    expect_failure(ferry_npy_write(scratch_path("no/such/x.npy"), &small), FERRY_USAGE, "no/such/x.npy");
    small.dim[0] = -1;
    expect_failure(ferry_npy_write(path, &small), FERRY_USAGE, "impossible shape");
    assert_int_equal(mkdir(scratch_path("folder.npy"), 0700), 0);
    small.dim[0] = 1;
    expect_failure(ferry_npy_write(scratch_path("folder.npy"), &small), FERRY_FAILED, "folder.npy");
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_file_of_numpy),   cmocka_unit_test(writes_what_numpy_writes),
        cmocka_unit_test(round_trips_every_type),  cmocka_unit_test(takes_other_spellings),
        cmocka_unit_test(refuses_wrong_headers),   cmocka_unit_test(refuses_every_cut),
        cmocka_unit_test(refuses_what_is_no_file), cmocka_unit_test(a_failed_write_keeps_the_old_file),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
