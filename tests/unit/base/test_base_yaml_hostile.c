/* YAML made to take long: 16 MiB of each kind end within seconds. The time that libyaml takes grows with the square of
 * the flow brackets it holds open and of the %TAG directives; either kind would take hours here without the bounds. */
#include "base_test.h"

#include <time.h>

enum { LARGEST = 16 << 20 };

/* A sanitizer or a loaded machine may take several times the two seconds of a plain build. */
static const double limit_s = 15;

static void takes_long_or_not(const char *head, const char *unit, const char *tail, const char *part)
{
    size_t unit_size = strlen(unit), size = strlen(head);
    char *text = malloc(LARGEST + 1);
    assert_non_null(text);
    memcpy(text, head, size);
    for (long i = 0; size + unit_size + 16 < LARGEST - strlen(tail); i++) {
        const char *number = strchr(unit, '$'); /* $ is the count */
        if (!number) {
            memcpy(text + size, unit, unit_size);
            size += unit_size;
        } else {
            size += (size_t)sprintf(text + size, "%.*s%ld%s", (int)(number - unit), unit, i, number + 1);
        }
    }
    memcpy(text + size, tail, strlen(tail));
    size += strlen(tail);

    Diag d = {0};
    Arena *a = arena_open();
    YamlNode *root;
    struct timespec from, to;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    Status s = yaml_parse(&d, a, "hostile.yaml", text, size, &root);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    if (seconds > limit_s)
        fail_msg("%.1f s for '%s%s'", seconds, head, unit);
    assert_int_equal(s, part ? ST_MODEL : ST_OK);
    if (part)
        WITHIN(d.message, part);
    arena_close(a);
    free(text);
}

static void nesting(void **state)
{
    (void)state;
    takes_long_or_not("", "[", "", "16 deep");
    takes_long_or_not("", "[\n", "", "16 deep");
    takes_long_or_not("", "{a: [", "", "16 deep");
    takes_long_or_not("", "- ", "", "16 deep");
    takes_long_or_not("[[[[[[[[[[[[[[[", "[],", "", "2000000 values");
}

static void directives(void **state)
{
    (void)state;
    takes_long_or_not("", "%TAG !a$! x\n", "--- a\n", "directives");
    takes_long_or_not("# c\n\n \n", "%TAG !a$! x\n", "--- a\n", "directives");
    takes_long_or_not("\xc2\x85", "%TAG !a$! x\n", "--- a\n", "directives");
    takes_long_or_not("\xe2\x80\xa8", "%TAG !a$! x\n", "--- a\n", "directives");
    takes_long_or_not("a\n...\n", "%TAG !a$! x\n", "--- a\n", "second document");
}

static void many_values(void **state)
{
    (void)state;
    takes_long_or_not("", "- a\n", "", "2000000 values");
    takes_long_or_not("[", "a: b, ", "", "2000000 values");
    takes_long_or_not("", "k$: 1\n", "", NULL);
    takes_long_or_not("", "k: 1\n", "", "2000000 values");
    takes_long_or_not("", "longer keys of one map: 1\n", "", "twice");
}

static void long_tokens(void **state)
{
    (void)state;
    takes_long_or_not("", "#\n", "", "empty");
    takes_long_or_not("\"", "\\x41", "\"", NULL);
    takes_long_or_not("\"", " \n", "\"", NULL);
    takes_long_or_not("", "a ", "", NULL);
    takes_long_or_not("|\n", " a\n\n", "", NULL);
    takes_long_or_not("&", "a", "", "anchors");
    takes_long_or_not("!", "%41", "", "tags");
}

static void larger_than_the_limit(void **state)
{
    (void)state;
    char *text = malloc(LARGEST + 1);
    memset(text, 'a', LARGEST + 1);
    Diag d = {0};
    Arena *a = arena_open();
    YamlNode *root;
    assert_int_equal(yaml_parse(&d, a, "t", text, LARGEST, &root), ST_OK);
    assert_int_equal(yaml_parse(&d, a, "t", text, LARGEST + 1, &root), ST_MODEL);
    WITHIN(d.message, "16 MiB");
    arena_close(a);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nesting),
        cmocka_unit_test(directives),
        cmocka_unit_test(many_values),
        cmocka_unit_test(long_tokens),
        cmocka_unit_test(larger_than_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
