/* text.c - text that grows, quoted strings, UTF-8. */
#include "base/base.h"
#include "base/utf8.h"

#include <string.h>

int base_utf8_decode(const char *p, size_t left, uint32_t *code)
{
    const unsigned char *s = (const unsigned char *)p;
    if (left == 0) {
        *code = 0;
        return 0;
    }
    *code = s[0];
    if (s[0] < 0x80)
        return 1;
    int bytes = s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : 0;
    if (bytes == 0 || left < (size_t)bytes)
        return 0;
    uint32_t value = s[0] & (0x7fu >> bytes);
    for (int i = 1; i < bytes; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (s[i] & 0x3fu);
    }
    if ((bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000) || value > 0x10ffff ||
        (value >= 0xd800 && value < 0xe000))
        return 0;
    *code = value;
    return bytes;
}

/* Room for `more` bytes and the NUL after them. */
static bool reserve(Text *t, size_t more)
{
    if (t->failed)
        return false;
    if (more >= SIZE_MAX / 4 - t->size) {
        t->failed = true;
        return false;
    }
    size_t needed = t->size + more + 1;
    if (needed <= t->capacity)
        return true;
    size_t larger = t->capacity < 128 ? 256 : t->capacity * 2;
    if (larger < needed)
        larger = needed;
    char *grown = base_realloc(t->at, larger);
    if (!grown) {
        t->failed = true;
        return false;
    }
    t->at = grown;
    t->capacity = larger;
    return true;
}

void text_add_bytes(Text *t, const char *bytes, size_t size)
{
    if (!reserve(t, size))
        return;
    if (size)
        memcpy(t->at + t->size, bytes, size);
    t->size += size;
    t->at[t->size] = '\0';
}

void text_add(Text *t, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        t->failed = true;
    } else if (reserve(t, (size_t)length)) {
        vsnprintf(t->at + t->size, (size_t)length + 1, format, again);
        t->size += (size_t)length;
    }
    va_end(again);
}

void text_free(Text *t)
{
    base_free(t->at);
    *t = (Text){0};
}

void text_add_quoted(Text *t, const char *s)
{
    size_t left = strlen(s);
    text_add_bytes(t, "\"", 1);
    while (left > 0) {
        uint32_t code;
        int bytes = base_utf8_decode(s, left, &code);
        if (bytes == 0) {
            text_add(t, "\\ufffd");
            bytes = 1;
        } else if (code == '"' || code == '\\') {
            text_add(t, "\\%c", (char)code);
        } else if (code == '\n') {
            text_add(t, "\\n");
        } else if (code == '\t') {
            text_add(t, "\\t");
        } else if (code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 || code == 0xfeff ||
                   code == 0xfffe || code == 0xffff) {
            /* Control characters, and those that are a line break, a mark of byte order or nothing to YAML. */
            text_add(t, "\\u%04x", (unsigned)code);
        } else {
            text_add_bytes(t, s, (size_t)bytes);
        }
        s += bytes;
        left -= (size_t)bytes;
    }
    text_add_bytes(t, "\"", 1);
}
