/* YAML trees, typed access, and what is refused with its line. */
#include "base_test.h"

#include <math.h>

static Arena *arena;

static YamlNode *parse(const char *text)
{
    Diag d = {0};
    YamlNode *root;
    if (yaml_parse(&d, arena, "t.yaml", text, strlen(text), &root) != ST_OK)
        fail_msg("'%s': %s", text, d.message);
    return root;
}

static void refuse_bytes(const char *text, size_t size, int line, const char *part)
{
    Diag d = {0};
    YamlNode *root = (YamlNode *)1;
    char place[40];
    if (yaml_parse(&d, arena, "t.yaml", text, size, &root) != ST_MODEL)
        fail_msg("'%s' is accepted", text);
    assert_null(root);
    snprintf(place, sizeof place, "t.yaml:%d: ", line);
    WITHIN(d.message, place);
    WITHIN(d.message, part);
}

static void refuse(const char *text, int line, const char *part)
{
    refuse_bytes(text, strlen(text), line, part);
}

static int arena_setup(void **state)
{
    (void)state;
    arena = arena_open();
    return arena ? 0 : -1;
}

static int arena_teardown(void **state)
{
    (void)state;
    arena_close(arena);
    return 0;
}

static void trees_with_lines(void **state)
{
    (void)state;
    YamlNode *root = parse("\xef\xbb\xbf# a plan\n"
                           "schema: ferryc/plan/1\n"
                           "layers:\n"
                           "  - name: 'h.0'\n"
                           "    modes: [dha, \"gf\\u0067b\"]\n"
                           "  - {name: wte, empty: [], none: }\n"
                           "text: |\n"
                           "  two\n"
                           "  lines\n"
                           "\"\": x\n");
    assert_int_equal(root->kind, YAML_MAP);
    assert_int_equal(root->count, 4);
    assert_int_equal(root->line, 2);
    assert_string_equal(root->file, "t.yaml");
    assert_string_equal(root->key[0], "schema");
    assert_string_equal(root->item[0]->text, "ferryc/plan/1");
    assert_false(root->item[0]->quoted);
    YamlNode *layers = yaml_find(root, "layers");
    assert_int_equal(layers->kind, YAML_LIST);
    assert_int_equal(layers->line, 4);
    assert_int_equal(root->key_line[1], 3);
    assert_int_equal(layers->count, 2);
    assert_int_equal(layers->item[1]->line, 6);
    YamlNode *name = yaml_find(layers->item[0], "name");
    assert_string_equal(name->text, "h.0");
    assert_true(name->quoted);
    YamlNode *modes = yaml_find(layers->item[0], "modes");
    assert_int_equal(modes->line, 5);
    assert_string_equal(modes->item[1]->text, "gfgb");
    assert_int_equal(yaml_find(layers->item[1], "empty")->count, 0);
    assert_string_equal(yaml_find(layers->item[1], "none")->text, "");
    assert_string_equal(yaml_find(root, "text")->text, "two\nlines\n");
    assert_true(yaml_find(root, "text")->quoted);
    assert_string_equal(yaml_find(root, "")->text, "x");
    assert_null(yaml_find(root, "name"));
    assert_null(yaml_find(layers, "name"));
    assert_null(yaml_find(NULL, "name"));
    assert_string_equal(parse("--- a\n...\n")->text, "a");
    assert_int_equal(parse("a:\r\n  - 1\r\n  - 2\r\n")->item[0]->item[1]->line, 3);
}

static void refused_documents(void **state)
{
    (void)state;
    refuse("", 1, "empty");
    refuse("# only a comment\n\n", 3, "empty");
    refuse("a: 1\n---\nb: 2\n", 2, "second document");
    refuse("a: 1\n...\n%TAG ! x\n--- b\n", 3, "second document");
    refuse("--- a\n...\nb\n", 3, "after the end");
    refuse("[1]]\n", 1, "after the end");
    assert_string_equal(parse("--- a\n...\n...\n# end\n")->text, "a");
    refuse("a: 1\nb: &x 2\n", 2, "anchors");
    refuse("a: 1\nb: *x\n", 2, "aliases");
    refuse("a: 1\nb: !!int 2\n", 2, "tags");
    refuse("a: 1\nb: ! 2\n", 2, "tags");
    refuse("a: &x [1]\n", 1, "anchors");
    refuse("a: !m {b: 1}\n", 1, "tags");
    refuse("a: 1\n&k b: 1\n", 2, "anchors");
    refuse("a: 1\n!k b: 1\n", 2, "tags");
    refuse("a: 1\n*k : 1\n", 2, "aliases");
    refuse("a: 1\n[b]: 1\n", 2, "key");
    refuse("? {a: b}\n: 1\n", 1, "key");
    refuse("a: 1\nb: 2\nc: 3\nb: 4\na: 5\n", 4, "'b' is there twice (line 2)");
    refuse("x:\n  - {a: 1,\n     'a': 2}\n", 3, "twice");
    refuse("a: [1, 2\nb: 3\n", 2, "");
    refuse("a: 1\n\tb: 2\n", 2, "");
    refuse("a: \"b\n", 2, "");
    refuse("a: 1\n b: 2\n", 2, "");
    refuse("%YAML 1.1\n--- a\n", 1, "directives");
    refuse("\n# c\n%TAG ! x\n--- a\n", 3, "directives");
    refuse("\xef\xbb\xbf%TAG ! x\n--- a\n", 1, "directives");
    refuse("\xc2\x85%TAG ! x\n--- a\n", 2, "directives");
    refuse("#\xe2\x80\xa9%TAG ! x\n--- a\n", 2, "directives");
    refuse("#\r\n\r%TAG ! x\n--- a\n", 3, "directives");
    refuse_bytes("a: 1\nb: \0\n", 10, 2, "control");
    refuse("a: 1\nb: \"\\0\"\n", 2, "NUL");
    refuse("a: 1\n\"\\0\": 1\n", 2, "NUL");
    refuse("a: 1\nb: \x01\n", 2, "control");
    refuse("a: 1\nb: \xff\n", 2, "UTF-8");
    refuse("a: 1\nb: \xc3", 2, "UTF-8");
    refuse_bytes("\xff\xfe"
                 "a\0:\0",
                 6, 1, "UTF-8"); /* UTF-16 */
}

static void depth_is_16(void **state)
{
    (void)state;
    YamlNode *n = parse("[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]");
    for (int i = 0; i < 16; i++, n = n->item[0])
        assert_int_equal(n->kind, YAML_LIST);
    assert_string_equal(n->text, "a");
    refuse("[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]", 1, "16 deep");
    refuse("- - - - - - - - - - - - - - - - - a", 1, "16 deep");
    char text[1000] = "";
    for (int i = 0; i < 17; i++)
        sprintf(text + strlen(text), "%*sa:\n", i, "");
    strcat(text, "                 b: 1\n");
    refuse(text, 17, "16 deep");
    assert_string_equal(parse("a: x[[[[[[[[[[[[[[[[[[[[[[[[[[[\n")->item[0]->text, "x[[[[[[[[[[[[[[[[[[[[[[[[[[[");
}

static void whole_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t min, max, value;
        bool good;
    } c[] = {
        {"0", 0, 10, 0, true},
        {"10", 0, 10, 10, true},
        {"11", 0, 10, 0, false},
        {"-1", 0, 10, 0, false},
        {"-0", 0, 10, 0, false},
        {"-0", -1, 10, 0, true},
        {"-5", -5, 10, -5, true},
        {"-6", -5, 10, 0, false},
        {"9223372036854775807", 0, INT64_MAX, INT64_MAX, true},
        {"-9223372036854775808", INT64_MIN, INT64_MAX, INT64_MIN, true},
        {"9223372036854775808", INT64_MIN, INT64_MAX, 0, false},
        {"-9223372036854775809", INT64_MIN, INT64_MAX, 0, false},
        {"18446744073709551617", INT64_MIN, INT64_MAX, 0, false},
        {"99999999999999999999999999999999999", INT64_MIN, INT64_MAX, 0, false},
        {"+1", 0, 10, 0, false},
        {"010", 0, 100, 0, false},
        {"00", 0, 100, 0, false},
        {"0x10", 0, 100, 0, false},
        {"0o10", 0, 100, 0, false},
        {"0b1", 0, 100, 0, false},
        {"1_0", 0, 100, 0, false},
        {"1:30", 0, 100, 0, false},
        {"1.0", 0, 100, 0, false},
        {"1.5", 0, 100, 0, false},
        {"1e1", 0, 100, 0, false},
        {"--1", -100, 100, 0, false},
        {"-x", -100, 100, 0, false},
        {"\"1\"", 0, 100, 0, false},
        {"'1'", 0, 100, 0, false},
        {"", 0, 100, 0, false},
        {"null", 0, 100, 0, false},
        {"~", 0, 100, 0, false},
        {"[1]", 0, 100, 0, false},
        {"{1: 1}", 0, 100, 0, false},
        {"x", 0, 100, 0, false},
        {"1 2", 0, 100, 0, false},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        YamlNode *root = parse(arena_printf(arena, "a: 1\nn: %s\n", c[i].text));
        for (int way = 0; way < 2; way++) {
            Diag d = {0};
            int64_t value = 77;
            Status s = way ? yaml_as_int(&d, root->item[1], c[i].min, c[i].max, &value)
                           : yaml_get_int(&d, root, "n", c[i].min, c[i].max, &value);
            if ((s == ST_OK) != c[i].good || value != c[i].value)
                fail_msg("'%s': %lld %s", c[i].text, (long long)value, d.message);
            if (c[i].good)
                continue;
            assert_int_equal(s, ST_MODEL);
            WITHIN(d.message, "t.yaml:2: ");
            if (!way)
                WITHIN(d.message, "'n'");
        }
    }
}

static void real_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double min, max, value;
        bool good;
    } c[] = {
        {"0", 0, 1, 0, true},
        {"0.5", 0, 1, 0.5, true},
        {"1", 0, 1, 1, true},
        {"1.0000001", 0, 1, 0, false},
        {"-0.5", 0, 1, 0, false},
        {"-0.0", 0, 1, 0, false},
        {"-0.5", -1, 1, -0.5, true},
        {"1e-05", 0, 1, 1e-05, true},
        {"2.5E+3", 0, 1e4, 2500, true},
        {"0.10000000000000001", 0, 1, 0.1, true},
        {"1.7976931348623157e308", 0, INFINITY, 1.7976931348623157e308, true},
        {"1e309", 0, INFINITY, 0, false},
        {"-1e309", -INFINITY, INFINITY, 0, false},
        {"4.9406564584124654e-324", 0, 1, 4.9406564584124654e-324, true},
        {"inf", 0, INFINITY, 0, false},
        {".inf", 0, INFINITY, 0, false},
        {"-.inf", -INFINITY, INFINITY, 0, false},
        {"nan", -INFINITY, INFINITY, 0, false},
        {".nan", -INFINITY, INFINITY, 0, false},
        {"0x1p3", 0, 100, 0, false},
        {"+1", 0, 100, 0, false},
        {".5", 0, 100, 0, false},
        {"5.", 0, 100, 0, false},
        {"05.5", 0, 100, 0, false},
        {"1e", 0, 100, 0, false},
        {"1e+", 0, 100, 0, false},
        {"1,5", 0, 100, 0, false},
        {"1.5x", 0, 100, 0, false},
        {"1.5 2", 0, 100, 0, false},
        {"\"1.5\"", 0, 100, 0, false},
        {"", 0, 100, 0, false},
        {"[]", 0, 100, 0, false},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        YamlNode *root = parse(arena_printf(arena, "a: 1\nn: %s\n", c[i].text));
        Diag d = {0};
        double value = 77;
        Status s = yaml_get_real(&d, root, "n", c[i].min, c[i].max, &value);
        if ((s == ST_OK) != c[i].good || value != c[i].value)
            fail_msg("'%s': %.17g %s", c[i].text, value, d.message);
        if (!c[i].good) {
            assert_int_equal(s, ST_MODEL);
            WITHIN(d.message, "t.yaml:2: ");
            WITHIN(d.message, "'n'");
        }
    }
}

static void texts_and_truth_values(void **state)
{
    (void)state;
    YamlNode *root = parse("t: true\nf: false\ny: yes\nq: \"true\"\nT: True\ne:\nn: null\nqn: 'null'\nqe: ''\nl: []\n");
    static const struct {
        const char *key;
        int truth;        /* -1: refused */
        const char *text; /* NULL: refused */
    } c[] = {{"t", 1, "true"},  {"f", 0, "false"}, {"y", -1, "yes"},  {"q", -1, "true"},
             {"T", -1, "True"}, {"e", -1, NULL},   {"n", -1, NULL},   {"qn", -1, "null"},
             {"qe", -1, ""},    {"l", -1, NULL},   {"none", -1, NULL}};
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        Diag d = {0}, e = {0};
        bool truth = true;
        const char *text = "x";
        assert_int_equal(yaml_get_bool(&d, root, c[i].key, &truth), c[i].truth < 0 ? ST_MODEL : ST_OK);
        assert_int_equal(truth, c[i].truth == 1);
        assert_int_equal(yaml_get_text(&e, root, c[i].key, &text), c[i].text ? ST_OK : ST_MODEL);
        if (c[i].text) {
            assert_string_equal(text, c[i].text);
        } else {
            assert_null(text);
            WITHIN(e.message, c[i].key);
        }
    }
}

static void kinds_and_keys(void **state)
{
    (void)state;
    YamlNode *root = parse("a: 1\nl:\n  - 1\nm:\n  x: 1\n  z:\n    y: 2\n"), *n;
    static const char *const keys[] = {"a", "l", "m", NULL};
    static const YamlKind kinds[] = {YAML_SCALAR, YAML_LIST, YAML_MAP};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            Diag d = {0};
            assert_int_equal(yaml_get(&d, root, keys[i], kinds[k], &n), i == k ? ST_OK : ST_MODEL);
            assert_true((n != NULL) == (i == k));
            if (i != k)
                WITHIN(d.message, keys[i]);
            if (i == 1 && k == 2)
                assert_string_equal(d.message, "t.yaml:2: 'l' is a list; a map is needed");
        }
    Diag d = {0};
    assert_int_equal(yaml_get(&d, root, "gone", YAML_MAP, &n), ST_MODEL);
    assert_string_equal(d.message, "t.yaml:1: the key 'gone' is missing");
    d = (Diag){0};
    assert_int_equal(yaml_get(&d, yaml_find(root, "l"), "k", YAML_MAP, &n), ST_MODEL);
    WITHIN(d.message, "t.yaml:3: ");

    d = (Diag){0};
    assert_int_equal(yaml_only_keys(&d, root, keys), ST_OK);
    static const char *const fewer[] = {"x", "b", NULL};
    assert_int_equal(yaml_only_keys(&d, yaml_find(root, "m"), fewer), ST_MODEL);
    assert_string_equal(d.message, "t.yaml:6: unknown key 'z'");
    WITHIN(d.hint, "x, b");
    d = (Diag){0};
    assert_int_equal(yaml_only_keys(&d, yaml_find(root, "l"), keys), ST_MODEL);
    d = (Diag){0};
    assert_int_equal(yaml_error(&d, yaml_find(root, "l"), "%d is odd", 3), ST_MODEL);
    assert_string_equal(d.message, "t.yaml:3: 3 is odd");
}

static void what_is_quoted_reads_back(void **state)
{
    (void)state;
    uint32_t random = 1;
    static const char *const part[] = {"a",
                                       "\"",
                                       "\\",
                                       "\n",
                                       "\r",
                                       "\t",
                                       " ",
                                       "\x1b",
                                       "\xc2\x85",
                                       "\xe2\x80\xa8",
                                       "\xef\xbb\xbf",
                                       "\xc3\xa4",
                                       ":",
                                       "#",
                                       "'",
                                       "\xef\xbf\xbf",
                                       "\xf0\x9f\x98\x80",
                                       "\x7f",
                                       "%",
                                       "\xed\x9f\xbf"};
    for (int round = 0; round < 2000; round++) {
        char text[200] = "";
        random = random * 1664525 + 1013904223;
        int parts = (int)(random >> 16) % 24;
        for (int i = 0; i < parts; i++) {
            random = random * 1664525 + 1013904223;
            strcat(text, part[(random >> 16) % (sizeof part / sizeof part[0])]);
        }
        Text t = {0};
        text_add_quoted(&t, text);
        text_add(&t, ": ");
        text_add_quoted(&t, text);
        YamlNode *root = parse(t.at);
        assert_null(strchr(t.at, '\n'));
        assert_string_equal(root->key[0], text);
        assert_string_equal(root->item[0]->text, text);
        assert_true(root->item[0]->quoted);
        text_free(&t);
    }
}

static void files(void **state)
{
    (void)state;
    assert_int_equal(scratch_open(NULL), 0);
    put_file("p.yaml", "a: [1,\n  x\n", 11);
    Diag d = {0};
    YamlNode *root;
    assert_int_equal(yaml_read(&d, arena, "p.yaml", &root), ST_MODEL);
    WITHIN(d.message, "p.yaml:");
    d = (Diag){0};
    assert_int_equal(yaml_read(&d, arena, "missing.yaml", &root), ST_USAGE);
    put_file("p.yaml", "a: 7\n", 5);
    d = (Diag){0};
    assert_int_equal(yaml_read(&d, arena, "p.yaml", &root), ST_OK);
    assert_string_equal(yaml_find(root, "a")->text, "7");
    assert_int_equal(scratch_close(NULL), 0);
}

static void memory_running_out(void **state)
{
    (void)state;
    static char text[20000];
    for (int i = 0; i < 200; i++)
        sprintf(text + strlen(text), "key%d: [a, {b: c}]\n", i);
    Status s = ST_FAILED;
    int n = 0;
    while (s != ST_OK) {
        Diag d = {0};
        YamlNode *root = NULL;
        base_fail_alloc(++n);
        Arena *a = arena_open();
        s = a ? yaml_parse(&d, a, "t", text, strlen(text), &root) : ST_FAILED;
        base_fail_alloc(0);
        assert_true(s == ST_OK ? root != NULL : s == ST_FAILED && !root);
        arena_close(a);
        assert_true(n < 100000);
    }
    assert_true(n > 100);
}

#define WITH_ARENA(test) cmocka_unit_test_setup_teardown(test, arena_setup, arena_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ARENA(trees_with_lines),   WITH_ARENA(refused_documents),
        WITH_ARENA(depth_is_16),        WITH_ARENA(whole_numbers),
        WITH_ARENA(real_numbers),       WITH_ARENA(texts_and_truth_values),
        WITH_ARENA(kinds_and_keys),     WITH_ARENA(files),
        WITH_ARENA(memory_running_out), WITH_ARENA(what_is_quoted_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
