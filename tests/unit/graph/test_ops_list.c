/* test_ops_list.c - docs/operators.md is what the operator table says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "graph/model.h"
#include "graph/ops_list.h"

static void test_document(void **state)
{
    (void)state;
    const char *path = FERRY_SOURCE_DIR "/docs/operators.md";
    Diag d = {0};
    Text want = {0};
    uint8_t *have = NULL;
    int64_t size = 0;
    ops_list_document(&want);
    assert_false(want.failed);
    if (getenv("FERRY_UPDATE_GOLDEN"))
        assert_int_equal(file_write(&d, path, want.at, want.size), ST_OK);
    assert_int_equal(file_read(&d, path, 1 << 24, &have, &size), ST_OK);
    if ((size_t)size != want.size || memcmp(have, want.at, want.size) != 0)
        fail_msg("docs/operators.md is out of date; FERRY_UPDATE_GOLDEN=1 writes it");
    base_free(have);
    text_free(&want);
}

/* Every note is about a row, and a row that cannot run says nothing about gradients. */
static void test_notes(void **state)
{
    (void)state;
    static const char *const noted[] = {
#define NOTE(op, gradient, remark) #op,
#include "graph/ops_notes.def"
#undef NOTE
    };
    int count;
    const OpRow *row = op_rows(&count);
    for (size_t i = 0; i < sizeof noted / sizeof *noted; i++) {
        bool found = false;
        for (int k = 0; k < count; k++)
            found = found || strcmp(row[k].op, noted[i]) == 0;
        if (!found)
            fail_msg("a note about %s, which is no operator of the table", noted[i]);
        for (size_t k = 0; k < i; k++)
            if (strcmp(noted[i], noted[k]) <= 0)
                fail_msg("the notes are not sorted, or %s is there twice", noted[i]);
    }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(row[i].op, row[k].op) == 0 && row[i].since <= row[k].until && row[k].since <= row[i].until)
                fail_msg("two rows of %s cover the same opset", row[i].op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_document), cmocka_unit_test(test_notes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
