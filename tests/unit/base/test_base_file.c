/* Files: what is read, what is refused, never half a file; generated files; paths. */
#include "base_test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static Status read_status(const char *path, int64_t max, Diag *d)
{
    uint8_t *data = (uint8_t *)1;
    int64_t size = -1;
    *d = (Diag){0};
    Status s = file_read(d, path, max, &data, &size);
    if (s != ST_OK) {
        assert_null(data);
        assert_int_equal(size, 0);
        WITHIN(d->message, path);
    }
    base_free(data);
    return s;
}

static void whole_files(void **state)
{
    (void)state;
    static char big[300000];
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 2654435761u >> 13);
    static const size_t sizes[] = {0, 1, 4095, 4096, sizeof big};
    for (int i = 0; i < 5; i++) {
        Diag d = {0};
        uint8_t *data;
        int64_t size;
        put_file("f", big, sizes[i]);
        assert_int_equal(file_read(&d, "f", (int64_t)sizes[i], &data, &size), ST_OK);
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(data, big, sizes[i]);
        assert_int_equal(data[size], 0);
        base_free(data);
        if (sizes[i])
            assert_int_equal(read_status("f", (int64_t)sizes[i] - 1, &d), ST_MODEL);
    }
    /* Files of /proc tell size 0. */
    Diag d = {0};
    uint8_t *data;
    int64_t size;
    assert_int_equal(file_read(&d, "/proc/self/maps", 1 << 24, &data, &size), ST_OK);
    assert_true(size > 100 && strlen((char *)data) == (size_t)size);
    base_free(data);
    assert_int_equal(read_status("/proc/self/maps", 10, &d), ST_MODEL);
}

static void no_files(void **state)
{
    (void)state;
    Diag d;
    alarm(20); /* a read that waits ends the test */
    assert_int_equal(read_status("missing", 100, &d), ST_USAGE);
    put_file("f", "x", 1);
    assert_int_equal(read_status("f/below", 100, &d), ST_USAGE);
    assert_int_equal(mkdir("folder", 0777), 0);
    assert_int_equal(read_status("folder", 100, &d), ST_MODEL);
    WITHIN(d.message, "folder");
    assert_int_equal(mkfifo("fifo", 0666), 0);
    assert_int_equal(read_status("fifo", 100, &d), ST_MODEL);
    WITHIN(d.message, "fifo");
    assert_int_equal(read_status("/dev/zero", 100, &d), ST_MODEL);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
    assert_int_equal(bind(s, (struct sockaddr *)&name, sizeof name), 0);
    assert_int_equal(read_status("socket", 100, &d), ST_MODEL);
    close(s);
    assert_int_equal(symlink("loop", "loop"), 0);
    assert_int_equal(read_status("loop", 100, &d), ST_USAGE);
    char hex[33] = "x";
    d = (Diag){0};
    assert_int_equal(hash_file(&d, "missing", hex), ST_USAGE);
    assert_string_equal(hex, "");
    d = (Diag){0};
    assert_int_equal(hash_file(&d, "fifo", hex), ST_MODEL);
    alarm(0);
    assert_true(file_exists("f") && file_exists("folder"));
    assert_false(file_exists("missing"));
}

static void hash_of_a_file_is_hash_of_its_bytes(void **state)
{
    (void)state;
    size_t size = (1 << 20) + 77;
    char *bytes = malloc(size), file[33], memory[33];
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 2654435761u >> 11);
    put_file("f", bytes, size);
    Diag d = {0};
    assert_int_equal(hash_file(&d, "f", file), ST_OK);
    hash_hex(bytes, size, memory);
    assert_string_equal(file, memory);
    put_file("f", "", 0);
    assert_int_equal(hash_file(&d, "f", file), ST_OK);
    assert_string_equal(file, "99aa06d3014798d86001c324468d497f");
    free(bytes);
}

static void expect_content(const char *path, const char *want, size_t size)
{
    Diag d = {0};
    uint8_t *data;
    int64_t got;
    assert_int_equal(file_read(&d, path, 1 << 24, &data, &got), ST_OK);
    assert_int_equal(got, size);
    assert_memory_equal(data, want, size);
    base_free(data);
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 0777;
}

static void written_files(void **state)
{
    (void)state;
    Diag d = {0};
    mode_t old = umask(027);
    assert_int_equal(file_write(&d, "out", "one", 3), ST_OK);
    assert_int_equal(mode_of("out"), 0640);
    umask(old);
    expect_content("out", "one", 3);
    assert_int_equal(chmod("out", 0751), 0);
    assert_int_equal(file_write(&d, "out", "second", 6), ST_OK);
    expect_content("out", "second", 6);
    assert_int_equal(mode_of("out"), 0751);
    assert_int_equal(file_write(&d, "out", "", 0), ST_OK);
    expect_content("out", "", 0);

    assert_int_equal(mkdir("deep", 0777), 0);
    assert_int_equal(symlink("../out", "deep/link"), 0);
    assert_int_equal(file_write(&d, "deep/link", "through", 7), ST_OK);
    expect_content("out", "through", 7);
    struct stat st;
    assert_true(lstat("deep/link", &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(count_names("deep"), 1);

    char longest[256], path[512];
    memset(longest, 'n', 255);
    longest[255] = '\0';
    snprintf(path, sizeof path, "%s/deep/%s", scratch_path, longest);
    assert_int_equal(file_write(&d, path, "x", 1), ST_OK);
    assert_int_equal(count_names("deep"), 2);
    assert_int_equal(count_names("."), 2);
}

static void write_status(const char *path, Status want)
{
    Diag d = {0};
    assert_int_equal(file_write(&d, path, "new content", 11), want);
    WITHIN(d.message, path);
}

static void writes_that_fail_leave_nothing(void **state)
{
    (void)state;
    put_file("out", "old", 3);
    write_status("missing/out", ST_USAGE);
    write_status("out/below", ST_USAGE);
    write_status("", ST_USAGE);
    assert_int_equal(mkdir("folder", 0777), 0);
    write_status("folder", ST_USAGE);
    write_status("none/", ST_USAGE);
    assert_int_equal(mkfifo("fifo", 0666), 0);
    write_status("fifo", ST_USAGE);
    write_status("/dev/null", ST_USAGE);
    struct stat st;
    assert_true(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));
    assert_int_equal(symlink("nowhere", "dangling"), 0);
    write_status("dangling", ST_USAGE);

    /* A disk that is full after 5 bytes. */
    struct rlimit kept, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &kept), 0);
    small = kept;
    small.rlim_cur = 5;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    Diag d = {0};
    Status s = file_write(&d, "out", "new content", 11);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &kept), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(s, ST_FAILED);
    expect_content("out", "old", 3);
    assert_int_equal(count_names("."), 4); /* out, folder, fifo, dangling */
    assert_int_equal(count_names("folder"), 0);
}

/* ---- generated files
 * ------------------------------------------------------------------------------------------------- */

static Status own(const char *body, bool force, Diag *d)
{
    *d = (Diag){0};
    return owned_write(d, "plan.yaml", "#", "plan of gpt2", body, strlen(body), force);
}

static void generated_files_have_a_header(void **state)
{
    (void)state;
    Diag d;
    assert_int_equal(own("a: 1\n", false, &d), ST_OK);
    char hash[33], want[200];
    hash_hex("a: 1\n", 5, hash);
    snprintf(want, sizeof want, "# ferryc %s %s plan of gpt2\na: 1\n", FERRYC_VERSION, hash);
    expect_content("plan.yaml", want, strlen(want));

    d = (Diag){0};
    assert_int_equal(owned_write(&d, "m", "/*", "two\nlines */", "x", 1, false), ST_OK);
    hash_hex("x", 1, hash);
    snprintf(want, sizeof want, "/* ferryc %s %s two lines */\nx", FERRYC_VERSION, hash);
    expect_content("m", want, strlen(want));
    assert_int_equal(owned_write(&d, "m", "/*", "two\nlines */", "y", 1, false), ST_OK);

    char title[5000];
    memset(title, 't', sizeof title - 1);
    title[sizeof title - 1] = '\0';
    assert_int_equal(owned_write(&d, "long", "", title, "x\0y", 3, false), ST_OK);
    assert_int_equal(owned_write(&d, "long", "", "", "x", 1, false), ST_OK);
    assert_int_equal(owned_write(&d, "long", "", "", "", 0, false), ST_OK);
    assert_int_equal(owned_write(&d, "long", "", title, "x", 1, false), ST_OK);
}

static void own_files_are_replaced_others_are_not(void **state)
{
    (void)state;
    Diag d;
    assert_int_equal(own("a: 1\n", false, &d), ST_OK);
    assert_int_equal(own("a: 2\n", false, &d), ST_OK);
    uint8_t *good;
    int64_t size;
    assert_int_equal(file_read(&d, "plan.yaml", 1000, &good, &size), ST_OK);

    /* Any one byte changed in the body or the hash, a byte more, a byte less: foreign. */
    const int64_t hash_at = (int64_t)strlen("# ferryc " FERRYC_VERSION " ");
    const int64_t body_at = size - 5;
    char copy[1000];
    for (int64_t i = 0; i < size; i++) {
        if ((i >= hash_at + 32 && i < body_at) || (i >= 9 && i < hash_at - 1))
            continue; /* the title, the version */
        memcpy(copy, good, (size_t)size);
        copy[i] ^= 1;
        put_file("plan.yaml", copy, (size_t)size);
        if (own("a: 3\n", false, &d) != ST_USAGE)
            fail_msg("a change of byte %d is lost", (int)i);
        WITHIN(d.message, "plan.yaml");
        WITHIN(d.hint, "-f");
        expect_content("plan.yaml", copy, (size_t)size);
    }
    memcpy(copy, good, (size_t)size);
    copy[size] = '\n';
    put_file("plan.yaml", copy, (size_t)size + 1);
    assert_int_equal(own("a: 3\n", false, &d), ST_USAGE);
    WITHIN(d.message, "edited");
    for (int64_t i = 0; i < size; i++) {
        put_file("plan.yaml", copy, (size_t)i);
        assert_int_equal(own("a: 3\n", false, &d), ST_USAGE);
    }
    static const char *const foreign[] = {"",
                                          "\n",
                                          "#",
                                          "# ferryc",
                                          "a: 1\n",
                                          "# ferryc 0.1.0 \n",
                                          "# ferryc 0.1.0 99aa06d3014798d86001c324468d497\n",
                                          "# ferryc 0.1.0 99aa06d3014798d86001c324468d497fx\n",
                                          "# ferryc 99aa06d3014798d86001c324468d497f\n",
                                          "// ferryc 0.1.0 99aa06d3014798d86001c324468d497f\n"};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        put_file("plan.yaml", foreign[i], strlen(foreign[i]));
        assert_int_equal(own("a: 3\n", false, &d), ST_USAGE);
        WITHIN(d.message, "not written by ferryc");
        expect_content("plan.yaml", foreign[i], strlen(foreign[i]));
    }
    /* Another version's file is ours: the body is empty, so the hash is that of nothing. */
    const char *older = "# ferryc 0.0.9 99aa06d3014798d86001c324468d497f\n";
    put_file("plan.yaml", older, strlen(older));
    assert_int_equal(own("a: 3\n", false, &d), ST_OK);

    put_file("plan.yaml", "mine", 4);
    assert_int_equal(own("a: 4\n", true, &d), ST_OK);
    assert_int_equal(own("a: 5\n", false, &d), ST_OK);
    assert_int_equal(count_names("."), 1);

    assert_int_equal(mkdir("folder", 0777), 0);
    d = (Diag){0};
    assert_int_equal(owned_write(&d, "folder", "#", "", "x", 1, true), ST_USAGE);
    base_free(good);
}

static void memory_running_out(void **state)
{
    (void)state;
    Diag d;
    assert_int_equal(own("a: 1\n", false, &d), ST_OK);
    Status s = ST_FAILED;
    int n = 0;
    while (s != ST_OK) {
        base_fail_alloc(++n);
        s = own("a: 2\n", false, &d);
        base_fail_alloc(0);
        assert_true(s == ST_OK || s == ST_FAILED);
        assert_true(n < 20);
    }
    assert_true(n > 2);
    assert_int_equal(count_names("."), 1);
    uint8_t *data;
    int64_t size;
    d = (Diag){0};
    base_fail_alloc(1);
    s = file_read(&d, "plan.yaml", 1000, &data, &size);
    base_fail_alloc(0);
    assert_int_equal(s, ST_FAILED);
    assert_null(data);
}

/* ---- paths
 * ----------------------------------------------------------------------------------------------------------- */

static void paths(void **state)
{
    (void)state;
    Arena *a = arena_open();
    static const char *const dirs[][2] = {{"a/b", "a"},    {"a", "."},     {"", "."},     {"/", "/"},
                                          {"/a", "/"},     {"a/", "."},    {"a//b", "a"}, {"//a", "/"},
                                          {"/a/b/", "/a"}, {"../x", ".."}, {"a/b//", "a"}};
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        assert_string_equal(path_dir(a, dirs[i][0]), dirs[i][1]);
    assert_string_equal(path_join(a, "a", "b"), "a/b");
    assert_string_equal(path_join(a, "a/", "b"), "a/b");
    assert_string_equal(path_join(a, "/", "b"), "/b");
    assert_string_equal(path_join(a, ".", "b"), "b");
    assert_string_equal(path_join(a, "", "b"), "b");
    assert_string_equal(path_join(a, "a", "/b"), "/b");

    assert_int_equal(mkdir("one", 0777) | mkdir("one/two", 0777) | mkdir("oneandmore", 0777), 0);
    put_file("f", "", 0);
    put_file("one/two/g", "", 0);
    put_file("oneandmore/h", "", 0);
    static const char *const relative[][3] = {
        {".", "f", "f"},
        {".", "one/two/g", "one/two/g"},
        {"one", "one/two/g", "two/g"},
        {"one/two", "f", "../../f"},
        {"one", "oneandmore/h", "../oneandmore/h"},
        {"oneandmore", "one/two/g", "../one/two/g"},
        {"one/../one/./two", "one/two/g", "g"},
        {"one", "one", "."},
        {"one/two", "one", ".."},
        {"one/two", ".", "../.."},
        {"/", "/dev/null", "dev/null"},
        {"/dev", "/", ".."},
        {"/", "/", "."},
    };
    for (size_t i = 0; i < sizeof relative / sizeof relative[0]; i++)
        assert_string_equal(path_relative(a, relative[i][0], relative[i][1]), relative[i][2]);
    assert_null(path_relative(a, "missing", "f"));
    assert_null(path_relative(a, ".", "missing"));
    arena_close(a);
}

#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_open, scratch_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(whole_files),
        IN_SCRATCH(no_files),
        IN_SCRATCH(hash_of_a_file_is_hash_of_its_bytes),
        IN_SCRATCH(written_files),
        IN_SCRATCH(writes_that_fail_leave_nothing),
        IN_SCRATCH(generated_files_have_a_header),
        IN_SCRATCH(own_files_are_replaced_others_are_not),
        IN_SCRATCH(memory_running_out),
        IN_SCRATCH(paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
