/* scratch.h - a folder of its own for each test program, and files in it. */
#ifndef FERRY_TEST_SCRATCH_H
#define FERRY_TEST_SCRATCH_H

#include <dirent.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdbool.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/ferry.h"

typedef struct scratch_text {
    struct scratch_text *next;
    char text[];
} scratch_text;

static char scratch_dir[512];
static scratch_text *scratch_texts; /* all paths that were given out */

static inline int scratch_open(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(scratch_dir, sizeof scratch_dir, "%s/ferry-test-XXXXXX", base != NULL ? base : "/tmp");
    return mkdtemp(scratch_dir) == NULL ? -1 : 0;
}

static inline int scratch_remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static inline int scratch_close(void **state)
{
    (void)state;
    while (scratch_texts != NULL) {
        scratch_text *t = scratch_texts;
        scratch_texts = t->next;
        free(t);
    }
    return nftw(scratch_dir, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Path of a file in the folder, valid until scratch_close. */
static inline const char *scratch_path(const char *name)
{
    size_t size = strlen(scratch_dir) + strlen(name) + 2;
    scratch_text *t = malloc(sizeof *t + size);
    assert_non_null(t);
    snprintf(t->text, size, "%s/%s", scratch_dir, name);
    t->next = scratch_texts;
    scratch_texts = t;
    return t->text;
}

static inline const char *scratch_file(const char *name, const void *data, size_t size)
{
    const char *path = scratch_path(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    return path;
}

/* The bytes of a file in memory that the caller frees. */
static inline void *scratch_read(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *data = malloc(1 << 20);
    assert_non_null(data);
    *size = fread(data, 1, 1 << 20, f);
    assert_true(*size < 1 << 20);
    fclose(f);
    return data;
}

/* Number of entries of the folder: nothing may be left behind. */
static inline int scratch_count(void)
{
    DIR *d = opendir(scratch_dir);
    assert_non_null(d);
    int n = -2; /* "." and ".." */
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

/* The call failed with this status, and its message holds this text. */
static inline void expect_failure(ferry_status have, ferry_status want, const char *text)
{
    if (have != want || strstr(ferry_error(), text) == NULL) {
        fail_msg("status %d, expected %d; message \"%s\", expected \"%s\" in it", (int)have, (int)want, ferry_error(),
                 text);
    }
}

static inline void expect_ok(ferry_status have)
{
    if (have != FERRY_OK) {
        fail_msg("status %d: %s", (int)have, ferry_error());
    }
}

#endif
