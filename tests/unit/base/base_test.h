/* base_test.h - what the tests of base/ share: cmocka and a scratch folder. */
#ifndef BASE_TEST_H
#define BASE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

#define WITHIN(message, part)                                                                                          \
    do {                                                                                                               \
        if (!strstr((message), (part)))                                                                                \
            fail_msg("'%s' is not in '%s'", (part), (message));                                                        \
    } while (0)

/* setup and teardown: a new empty folder is the working directory of the test */
static char scratch_path[64];

static inline int scratch_open(void **state)
{
    (void)state;
    strcpy(scratch_path, P_tmpdir "/ferryc-test-XXXXXX");
    return mkdtemp(scratch_path) && chdir(scratch_path) == 0 ? 0 : -1;
}

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *place)
{
    (void)st, (void)type, (void)place;
    return remove(path);
}

static inline int scratch_close(void **state)
{
    (void)state;
    int ok = chdir("/");
    return nftw(scratch_path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) | ok;
}

static inline void put_file(const char *path, const char *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

/* Names in the folder, "." and ".." aside. */
static inline int count_names(const char *path)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    int count = 0;
    while (readdir(dir))
        count++;
    closedir(dir);
    return count - 2;
}

#endif
