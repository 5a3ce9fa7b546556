/* html_text.c - names of users on a page. */
#include "base/utf8.h"
#include "report/report.h"

#include <string.h>

static const char *entity(uint32_t code)
{
    switch (code) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return NULL;
    }
}

/* Controls are not allowed on a page at all; the marks that turn the direction of text would reorder what stands
 * around. */
static bool shown(uint32_t code)
{
    return code >= 0x20 && !(code >= 0x7f && code < 0xa0) && !(code >= 0x200e && code <= 0x200f) &&
           !(code >= 0x2028 && code <= 0x202e) && !(code >= 0x2066 && code <= 0x2069);
}

void text_add_html(Text *to, const char *s)
{
    static const char bad[] = "\xef\xbf\xbd";
    size_t left = strlen(s);
    while (left > 0) {
        uint32_t code;
        int n = base_utf8_decode(s, left, &code);
        const char *instead = n == 0 || !shown(code) ? bad : entity(code);
        size_t size = n > 0 ? (size_t)n : 1;
        if (instead)
            text_add_bytes(to, instead, strlen(instead));
        else
            text_add_bytes(to, s, size);
        s += size;
        left -= size;
    }
}
