/* Sizes, times, checked arithmetic, patterns, growing text, hashes of memory. */
#include "base_test.h"

#include <time.h>

static void sizes_with_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {
        {"0", 0},
        {"0G", 0},
        {"1K", 1024},
        {"24G", 25769803776},
        {"24GiB", 25769803776},
        {"24GB", 24000000000},
        {"1.5M", 1572864},
        {"1.5MB", 1500000},
        {"2T", 2199023255552},
        {"2TB", 2000000000000},
        {"0.1G", 107374182},     /* 107374182.4 */
        {"0.9999999999K", 1023}, /* rounded down */
        {"1.0000000000000000000000000000000001K", 1024},
        {"0.00000000000000000000000000000000001T", 0},
        {"8388607.999999999999999999999999T", INT64_MAX}, /* the largest: 2^63 - 1 */
        {"9223372036854775.807KB", INT64_MAX},
        {"0000000000000000000000000001K", 1024},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        Diag d = {0};
        int64_t bytes = -1;
        if (size_parse(&d, "--mem-budget", good[i].text, &bytes) != ST_OK || bytes != good[i].bytes)
            fail_msg("%s: %lld %s", good[i].text, (long long)bytes, d.message);
    }
    static const char *const bad[] = {"",
                                      "24",
                                      "1.5",
                                      "G",
                                      "-1G",
                                      "+1G",
                                      " 1G",
                                      "1G ",
                                      "1 G",
                                      "24g",
                                      "24Gb",
                                      "24GIB",
                                      "24Gi",
                                      "24GiBs",
                                      "1.G",
                                      ".5G",
                                      "1..5G",
                                      "1e3G",
                                      "0x10G",
                                      "1,5G",
                                      "nanG",
                                      "infG",
                                      "8388608T",
                                      "24P",
                                      "00",
                                      "9999999999T",
                                      "1B",
                                      "1KMG",
                                      "9223372036854775.808KB",
                                      "99999999999999999999999999K"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Diag d = {0};
        int64_t bytes = -1;
        if (size_parse(&d, "--mem-budget", bad[i], &bytes) != ST_USAGE || bytes != 0 || !d.hint[0])
            fail_msg("'%s' is accepted or without a hint", bad[i]);
        WITHIN(d.message, "--mem-budget");
    }
}

static void printed_sizes_and_times(void **state)
{
    (void)state;
    static const struct {
        int64_t value;
        const char *size, *time;
    } want[] = {
        {0, "0 B", "0 ns"},
        {812, "812 B", "812 ns"},
        {999, "999 B", "999 ns"},
        {1000, "1000 B", "1.00 us"},
        {1023, "1023 B", "1.02 us"},
        {1024, "1.00 KiB", "1.02 us"},
        {1048575, "1.00 MiB", "1.05 ms"}, /* not 1024.00 KiB */
        {999949, "976.51 KiB", "1.00 ms"},
        {21812345, "20.80 MiB", "21.8 ms"},
        {218123456, "208.02 MiB", "218 ms"},
        {4198330695, "3.91 GiB", "4.20 s"},
        {100000000000, "93.13 GiB", "100 s"},
        {-812, "-812 B", "-812 ns"},
        {-4198330695, "-3.91 GiB", "-4.20 s"},
        {INT64_MAX, "8.00 EiB", "9223372037 s"},
        {INT64_MIN, "-8.00 EiB", "-9223372037 s"},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        char size[32], time[32];
        assert_string_equal(size_print(size, want[i].value), want[i].size);
        assert_string_equal(time_print(time, want[i].value), want[i].time);
    }
}

static void arithmetic_tells_overflow(void **state)
{
    (void)state;
    int64_t r;
    assert_false(mul_overflows_i64(INT64_C(3037000499), INT64_C(3037000499), &r));
    assert_int_equal(r, INT64_C(9223372030926249001));
    assert_true(mul_overflows_i64(INT64_C(3037000500), INT64_C(3037000500), &r));
    assert_true(mul_overflows_i64(INT64_MIN, -1, &r));
    assert_false(mul_overflows_i64(INT64_MIN, 1, &r));
    assert_true(add_overflows_i64(INT64_MAX, 1, &r));
    assert_true(add_overflows_i64(INT64_MIN, -1, &r));
    assert_false(add_overflows_i64(INT64_MAX, INT64_MIN, &r));
    assert_int_equal(r, -1);
}

static void patterns(void **state)
{
    (void)state;
    assert_true(glob_match("h.*.attn", "h.0.attn"));
    assert_true(glob_match("h.*", "h.0/attn.weight"));
    assert_true(glob_match("h.[0-3].*", "h.2.mlp"));
    assert_false(glob_match("h.[0-3].*", "h.4.mlp"));
    assert_false(glob_match("h.[!0-3].*", "h.2.mlp"));
    assert_true(glob_match("h.?", "h.1"));
    assert_false(glob_match("h.?", "h.11"));
    assert_true(glob_match("*", ""));
    assert_false(glob_match("", "x"));
    assert_false(glob_match("wte", "wte.weight"));
    assert_true(glob_match("w[0]", "w[0]")); /* an exact name */
    assert_true(glob_match("a\\*b", "a*b"));

    /* Many stars do not take exponential time. */
    char name[2001], pattern[201];
    memset(name, 'a', 2000);
    name[2000] = '\0';
    for (int i = 0; i < 100; i++)
        memcpy(pattern + 2 * i, "*a", 2);
    pattern[199] = 'b';
    pattern[200] = '\0';
    clock_t start = clock();
    assert_false(glob_match(pattern, name));
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 5);
}

static void text_grows(void **state)
{
    (void)state;
    Text t = {0};
    for (int i = 0; i < 5000; i++)
        text_add(&t, "%d,", i % 10);
    text_add_bytes(&t, "x\0y", 3);
    assert_false(t.failed);
    assert_int_equal(t.size, 10003);
    assert_int_equal(t.at[t.size], '\0');
    for (int i = 0; i < 5000; i++)
        assert_int_equal(t.at[2 * i], '0' + i % 10);
    assert_memory_equal(t.at + 10000, "x\0y", 4);
    text_free(&t);
    assert_null(t.at);

    text_add(&t, "%s", ""); /* NUL-terminated even then */
    assert_string_equal(t.at, "");
    text_free(&t);

    text_add(&t, "kept");
    base_fail_alloc(1);
    text_add(&t, "%0300d", 1);
    base_fail_alloc(0);
    assert_true(t.failed);
    text_add(&t, "ignored");
    assert_string_equal(t.at, "kept");
    text_free(&t);
    assert_false(t.failed);
}

static void quoted_text(void **state)
{
    (void)state;
    static const char *const pair[][2] = {
        {"", "\"\""},
        {"h.0.attn", "\"h.0.attn\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\""},
        {"\n\t\r\x01\x7f", "\"\\n\\t\\u000d\\u0001\\u007f\""},
        {"\xc3\xa4 \xf0\x9f\x98\x80", "\"\xc3\xa4 \xf0\x9f\x98\x80\""},
        {"\xc2\x85 \xe2\x80\xa8 \xef\xbb\xbf \xef\xbf\xbf", "\"\\u0085 \\u2028 \\ufeff \\uffff\""},
        /* a stray byte, one cut short, an overlong slash, a surrogate, a code past the last */
        {"\xff|\xc3", "\"\\ufffd|\\ufffd\""},
        {"\xc0\xaf", "\"\\ufffd\\ufffd\""},
        {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""},
        {"\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""},
        {"\xe0\x80\xaf", "\"\\ufffd\\ufffd\\ufffd\""},
    };
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        Text t = {0};
        text_add_quoted(&t, pair[i][0]);
        assert_string_equal(t.at, pair[i][1]);
        text_free(&t);
    }
}

/* Values published with xxHash. */
static void hashes(void **state)
{
    (void)state;
    char hex[33];
    hash_hex("", 0, hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    hash_hex("a", 1, hex);
    assert_string_equal(hex, "a96faf705af16834e6c632b61e964e1f");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_with_units), cmocka_unit_test(printed_sizes_and_times),
        cmocka_unit_test(patterns),         cmocka_unit_test(arithmetic_tells_overflow),
        cmocka_unit_test(text_grows),       cmocka_unit_test(quoted_text),
        cmocka_unit_test(hashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
