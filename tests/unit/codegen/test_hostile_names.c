/* test_hostile_names.c - a schedule compiles without a warning whatever the model's names are. */
#include "tiny.h"

/* Every name once; the model needs TINY_FIRST + TINY_LAYER * layers of them. */
static void check(const char *const *name, int count)
{
    Arena *a = arena_open();
    char *dir = tiny_dir(a);
    int layers = (count - TINY_FIRST) / TINY_LAYER;
    assert_int_equal(count, TINY_FIRST + TINY_LAYER * layers);
    tiny_write(path_join(a, dir, "m.onnx"), name, layers);
    Diag d = {.quiet = true};
    Tiny t;
    /* random_init: the parameters' names then stand in the code once more */
    Status status = tiny_road(&d, a, dir, "mse", "memferry", &(EmitOptions){.random_init = true, .seed = 7}, &t);
    if (status != ST_OK)
        fail_msg("%s", d.message);
    tiny_close(&t);
    tiny_compile(dir);
    tiny_remove(dir);
    arena_close(a);
}

static void test_keywords(void **state)
{
    (void)state;
    check((const char *[]){"int", "while", "struct", "_Bool", "class", "typeof", "union", "void", "static", "new",
                           "true", "for", "if"},
          13);
    /* macros of headers and compilers, names of the emitted code itself */
    check(
        (const char *[]){"errno", "linux", "unix", "stdin", "NULL", "s", "T", "TRY", "NOW", "LAST", "in", "h", "args"},
        13);
    check((const char *[]){"schedule", "schedule_step", "memcpy", "main", "status", "D", "EVENT_COUNT", "p", "file",
                           "dir", "ferry_step", "float", "INT64_C"},
          13);
    check((const char *[]){"and", "not", "export", "try", "assert", "xor", "or", "this", "using", "throw", "catch",
                           "co_await", "requires"},
          13);
}

/* Layers, units and parameters called like the functions that every schedule has. */
static void test_functions(void **state)
{
    (void)state;
    check((const char *[]){"inputs", "loss.weight", "loss_out", "constants", "partials", "inputs.weight", "inputs.bias",
                           "norm", "a", "constants.weight", "constants.bias", "act", "collect", "grad_norm.weight",
                           "grad_norm.bias", "step", "init"},
          17);
}

static void test_same_after_cleaning(void **state)
{
    (void)state;
    check(
        (const char *[]){"a.b", "a/b", "a_b", "A.B", "a b", "a::b", "a__b", "a-b", "a.b_2", "a:b", "a+b", "a=b", "A_B"},
        13);
    check((const char *[]){"", "0", "1", "12", ".", "..", "/", "___", "-", "%", "!", "9a", "9.a"} + 1, 9 + 3 - 3);
}

static void test_comments_and_strings(void **state)
{
    (void)state;
    check((const char *[]){"*/ int x; /*", "/* /* */", "// \\", "a\\", "a\"b\\c", "\"; exit(1); \"", "line\nbreak",
                           "?\?/", "?\?)?\?'", "%s%n%d", "\t\r\x01\x7f", "\\u0041\\", "*"},
          13);
    check((const char *[]){"*/", "**/", "*//", "/",
                           "\x01"
                           "1",
                           "\x02"
                           "7",
                           "'", "\"", "\\", "$", "#define x", "@", "`"},
          13);
}

static void test_unicode(void **state)
{
    (void)state;
    check((const char *[]){"重み", "偏り", "ü.weight", "é", "e\xcc\x81", "😀",
                           "\xe2\x80\xae"
                           "evil",
                           "\xe2\x81\xa6"
                           "x",
                           "\xd8\x9c", "\xe2\x80\xa8",
                           "\xef\xbb\xbf"
                           "bom",
                           "Ω", "ω"},
          13);
}

/* YAML keys end at 1024 bytes; exporters write call paths that are longer. */
static void test_long(void **state)
{
    (void)state;
    static char text[13][5001];
    const char *name[13];
    for (int i = 0; i < 13; i++) {
        memset(text[i], 'a' + i % 3, 5000);
        text[i][i == 12 ? 4999 : 200 * i] = (char)('d' + i);
        name[i] = text[i];
    }
    check(name, 13);
    for (int i = 0; i < 13; i++) { /* equal but for one character in the middle, which the identifiers drop */
        memset(text[i], 'a', 5000);
        text[i][2000] = (char)('d' + i);
    }
    check(name, 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keywords),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_same_after_cleaning),
        cmocka_unit_test(test_comments_and_strings),
        cmocka_unit_test(test_unicode),
        cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
