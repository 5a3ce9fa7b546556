/* c_text.c - names from a model inside C strings and comments.
 *
 * A name may be any text: it may end a comment or a string, hold line breaks or trigraphs, or characters that reorder
 * what a reader sees (compilers refuse those). Readable UTF-8 stays as it is. */
#include "codegen/codegen.h"

#include <string.h>

#include "base/utf8.h"

/* Bytes of the character at s when it is readable, 0 when it has to be replaced byte by byte. */
static int readable(const char *s)
{
    uint32_t code;
    int bytes = base_utf8_decode(s, strnlen(s, 4), &code);
    bool control = code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 || code == 0xfeff;
    bool reorders = code == 0x61c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
                    (code >= 0x2066 && code <= 0x2069);
    return control || reorders ? 0 : bytes;
}

void c_text_string(Text *t, const char *s)
{
    text_add(t, "\"");
    for (char last = 0; *s;) {
        int bytes = readable(s);
        if (bytes == 0)
            text_add(t, "\\%03o", (unsigned)(unsigned char)*s); /* three digits: a digit may follow */
        else if (*s == '"' || *s == '\\' || (*s == '?' && last == '?'))
            text_add(t, "\\%c", *s);
        else
            text_add_bytes(t, s, (size_t)bytes);
        last = *s;
        s += bytes ? bytes : 1;
    }
    text_add(t, "\"");
}

void c_text_comment(Text *t, const char *s)
{
    while (*s) {
        int bytes = readable(s);
        if (bytes == 0 || (*s == '*' && s[1] == '/') || (*s == '/' && s[1] == '*') || *s == '\\')
            text_add(t, ".");
        else
            text_add_bytes(t, s, (size_t)bytes);
        s += bytes ? bytes : 1;
    }
}
