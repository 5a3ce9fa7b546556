/* Names of users cannot leave the text or the attribute that they stand in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "report/report.h"

#define BAD "\xef\xbf\xbd"

static void test_table(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"transformer.h.0.attn", "transformer.h.0.attn"},
        {"<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"},
        {"\" onload=\"x", "&quot; onload=&quot;x"},
        {"it's", "it&#39;s"},
        {"a&amp;b", "a&amp;amp;b"},
        {"a\nb\tc\x01\x7f", "a" BAD "b" BAD "c" BAD BAD},
        {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x9a\xa2", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x9a\xa2"},
        {"\xc3", BAD},                         /* cut off */
        {"\xc0\xbc", BAD BAD},                 /* overlong < */
        {"\xed\xa0\x80", BAD BAD BAD},         /* a surrogate */
        {"\xf4\x90\x80\x80", BAD BAD BAD BAD}, /* past the last character */
        {"\xff<", BAD "&lt;"},
        {"\xc2\x85", BAD}, /* a C1 control */
        {"a\xe2\x80\xae"
         "b",
         "a" BAD "b"}, /* right-to-left override */
        {"", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Text t = {0};
        text_add(&t, "[");
        text_add_html(&t, rows[i][0]);
        char want[256];
        snprintf(want, sizeof want, "[%s", rows[i][1]);
        assert_string_equal(t.at, want);
        text_free(&t);
    }
}

static void test_any_bytes(void **state)
{
    (void)state;
    uint32_t rng = 1;
    for (int round = 0; round < 20000; round++) {
        char s[9] = {0};
        for (int i = 0; i < 8; i++) {
            rng = rng * 1664525u + 1013904223u;
            s[i] = (char)(rng >> 24 ? rng >> 24 : 1);
        }
        Text t = {0};
        text_add_html(&t, s);
        for (size_t i = 0; i < t.size; i++) {
            assert_null(strchr("<>\"'", t.at[i]));
            assert_true((unsigned char)t.at[i] >= 0x20);
            if (t.at[i] == '&')
                assert_non_null(strchr(t.at + i, ';'));
        }
        text_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_any_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
