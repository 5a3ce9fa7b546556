/* diag.c - the one error of a run, its hint, warnings and notes.
 *
 * Messages quote names and values out of files nobody has checked. What is recorded or printed is therefore one line of
 * valid UTF-8 without control characters: no file can write escape sequences to the terminal or forge a second line. */
#include "base/base.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { WARNED_MAX = sizeof(((Diag *)0)->warned) / sizeof(((Diag *)0)->warned[0]) };

static void clean_line(char *text)
{
    size_t left = strlen(text);
    for (char *p = text; *p;) {
        uint32_t code;
        int bytes = base_utf8_decode(p, left, &code);
        bool bad = bytes == 0 || code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 ||
                   (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069); /* turns of direction */
        if (bytes == 0)
            bytes = 1;
        if (bad)
            memset(p, code == '\n' || code == '\t' ? ' ' : '?', (size_t)bytes);
        p += bytes;
        left -= (size_t)bytes;
    }
}

static void format_line(char *out, size_t size, const char *format, va_list args)
{
    int length = vsnprintf(out, size, format, args);
    if (length < 0)
        snprintf(out, size, "(a message that cannot be formatted)");
    if (length >= (int)size) {
        /* Cut between characters and say so. */
        size_t end = size - 4;
        while (end > 0 && ((unsigned char)out[end] & 0xc0) == 0x80)
            end--;
        memcpy(out + end, "...", 4);
    }
    clean_line(out);
}

Status diag_fail(Diag *d, Status status, const char *format, ...)
{
    if (d->status != ST_OK)
        return d->status;
    d->status = status != ST_OK ? status : ST_FAILED;
    d->hint[0] = '\0';
    va_list args;
    va_start(args, format);
    format_line(d->message, sizeof d->message, format, args);
    va_end(args);
    return d->status;
}

Status diag_hint(Diag *d, const char *format, ...)
{
    if (d->status == ST_OK || d->hint[0])
        return d->status;
    va_list args;
    va_start(args, format);
    format_line(d->hint, sizeof d->hint, format, args);
    va_end(args);
    return d->status;
}

Status diag_oom(Diag *d)
{
    return diag_fail(d, ST_FAILED, "out of memory");
}

/* Colour only where a person reads it and has not refused it. */
static bool in_colour(FILE *to)
{
    const char *refused = getenv("NO_COLOR");
    const char *terminal = getenv("TERM");
    if ((refused && refused[0]) || (terminal && strcmp(terminal, "dumb") == 0))
        return false;
    int fd = fileno(to);
    return fd >= 0 && isatty(fd);
}

static void print_line(FILE *to, const char *colour, const char *kind, const char *text)
{
    if (in_colour(to))
        fprintf(to, "ferryc: \033[%sm%s:\033[0m %s\n", colour, kind, text);
    else
        fprintf(to, "ferryc: %s: %s\n", kind, text);
}

void diag_warn(Diag *d, const char *format, ...)
{
    char text[sizeof d->message];
    va_list args;
    va_start(args, format);
    format_line(text, sizeof text, format, args);
    va_end(args);
    uint64_t hash = XXH3_64bits(text, strlen(text));
    for (int i = 0; i < d->warned_count; i++)
        if (d->warned[i] == hash)
            return;
    if (d->warned_count < WARNED_MAX)
        d->warned[d->warned_count++] = hash;
    d->warnings++;
    if (!d->quiet)
        print_line(stderr, "1;35", "warning", text);
}

void diag_note(Diag *d, const char *format, ...)
{
    if (d->quiet)
        return;
    char text[sizeof d->message];
    va_list args;
    va_start(args, format);
    format_line(text, sizeof text, format, args);
    va_end(args);
    print_line(stderr, "1;36", "note", text);
}

void diag_print(const Diag *d, FILE *to)
{
    if (d->status == ST_OK)
        return;
    print_line(to, "1;31", "error", d->message);
    if (d->hint[0])
        print_line(to, "1;32", "hint", d->hint);
}
