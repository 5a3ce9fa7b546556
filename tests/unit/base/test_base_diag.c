/* The first error wins; warnings come once; colour only on a terminal. */
#include "base_test.h"

#include <fcntl.h>

static void the_first_error_wins(void **state)
{
    (void)state;
    Diag d = {0};
    assert_int_equal(diag_hint(&d, "too early"), ST_OK);
    assert_string_equal(d.hint, "");
    assert_int_equal(diag_fail(&d, ST_MODEL, "%s:%d: %s", "plan.yaml", 3, "bad mode"), ST_MODEL);
    assert_int_equal(diag_fail(&d, ST_USAGE, "later"), ST_MODEL);
    assert_int_equal(diag_oom(&d), ST_MODEL);
    assert_int_equal(diag_hint(&d, "say %s", "dha"), ST_MODEL);
    assert_int_equal(diag_hint(&d, "other"), ST_MODEL);
    assert_string_equal(d.message, "plan.yaml:3: bad mode");
    assert_string_equal(d.hint, "say dha");

    Diag memory = {0};
    assert_int_equal(diag_oom(&memory), ST_FAILED);
    WITHIN(memory.message, "out of memory");
}

static void messages_are_one_clean_line(void **state)
{
    (void)state;
    Diag d = {0};
    diag_fail(&d, ST_MODEL, "%s", "a\nb\033[31mc\xff \xc3\xa4 \xe2\x80\xa8 \xc2\x9b \xe2\x80\xae\tz");
    assert_string_equal(d.message, "a b?[31mc? \xc3\xa4 ??? ?? ??? z");

    char text[4001];
    for (int i = 0; i < 4000; i += 2)
        memcpy(text + i, "\xc3\xa4", 2);
    text[4000] = '\0';
    Diag e = {0};
    diag_fail(&e, ST_MODEL, "%s", text); /* cut between two characters, and said so */
    size_t length = strlen(e.message);
    assert_true(length >= sizeof e.message - 8 && length < sizeof e.message);
    assert_string_equal(e.message + length - 5, "\xc3\xa4...");
    Diag f = {0};
    diag_fail(&f, ST_MODEL, "x%s", text);
    assert_string_equal(f.message + strlen(f.message) - 5, "\xc3\xa4...");
}

static void output_of(const Diag *d, char *buffer, size_t size)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    diag_print(d, f);
    rewind(f);
    size_t n = fread(buffer, 1, size - 1, f);
    buffer[n] = '\0';
    fclose(f);
}

static void printing(void **state)
{
    (void)state;
    char text[512];
    Diag d = {0};
    output_of(&d, text, sizeof text);
    assert_string_equal(text, "");
    diag_fail(&d, ST_USAGE, "no budget");
    output_of(&d, text, sizeof text);
    assert_string_equal(text, "ferryc: error: no budget\n");
    diag_hint(&d, "--mem-budget 24G");
    output_of(&d, text, sizeof text);
    assert_string_equal(text, "ferryc: error: no budget\nferryc: hint: --mem-budget 24G\n");
}

/* What a terminal receives. */
static void terminal_output(const Diag *d, char *buffer, size_t size)
{
    int control = posix_openpt(O_RDWR | O_NOCTTY);
    if (control < 0 || grantpt(control) != 0 || unlockpt(control) != 0) {
        print_message("skipped: no pseudo-terminals on this machine (/dev/pts)\n");
        skip();
    }
    FILE *f = fopen(ptsname(control), "w");
    assert_non_null(f);
    diag_print(d, f);
    fflush(f);
    ssize_t n = read(control, buffer, size - 1);
    buffer[n > 0 ? n : 0] = '\0';
    fclose(f);
    close(control);
}

static void colour_on_terminals_only(void **state)
{
    (void)state;
    char text[512];
    Diag d = {0};
    diag_fail(&d, ST_USAGE, "no budget");
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    terminal_output(&d, text, sizeof text);
    WITHIN(text, "\033[");
    setenv("NO_COLOR", "", 1); /* empty is not set */
    terminal_output(&d, text, sizeof text);
    WITHIN(text, "\033[");
    setenv("NO_COLOR", "1", 1);
    terminal_output(&d, text, sizeof text);
    assert_null(strchr(text, '\033'));
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    terminal_output(&d, text, sizeof text);
    assert_null(strchr(text, '\033'));
    setenv("TERM", "xterm", 1);
    output_of(&d, text, sizeof text);
    assert_null(strchr(text, '\033'));
}

static int count_in(const char *text, const char *part)
{
    int count = 0;
    for (const char *p = text; (p = strstr(p, part)); p++)
        count++;
    return count;
}

static void warnings_come_once(void **state)
{
    (void)state;
    static char text[1 << 16];
    FILE *f = tmpfile();
    fflush(stderr);
    int kept = dup(2);
    dup2(fileno(f), 2);
    Diag d = {0}, quiet = {.quiet = true};
    for (int i = 0; i < 3; i++) {
        diag_warn(&d, "layer %s is frozen", "wte");
        diag_warn(&d, "layer %s is frozen", "wpe");
        diag_note(&d, "a note");
        diag_warn(&quiet, "silent");
        diag_note(&quiet, "silent");
    }
    for (int i = 0; i < 200; i++) /* more texts than are remembered: none is lost */
        diag_warn(&d, "number %d.", i);
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    assert_int_equal(count_in(text, "ferryc: warning: layer wte is frozen\n"), 1);
    assert_int_equal(count_in(text, "ferryc: warning: layer wpe is frozen\n"), 1);
    assert_int_equal(count_in(text, "ferryc: note: a note\n"), 3);
    assert_int_equal(count_in(text, "silent"), 0);
    assert_int_equal(count_in(text, "warning: number "), 200);
    assert_int_equal(d.warnings, 202);
    assert_int_equal(quiet.warnings, 1);
    assert_int_equal(d.status, ST_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_error_wins),
        cmocka_unit_test(messages_are_one_clean_line),
        cmocka_unit_test(printing),
        cmocka_unit_test(colour_on_terminals_only),
        cmocka_unit_test(warnings_come_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
