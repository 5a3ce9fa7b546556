/* utf8.h - one UTF-8 character at a time. */
#ifndef FERRY_BASE_UTF8_H
#define FERRY_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed character at `p` (1-4) with its code in *code, of `left` bytes at most; 0, with *code = the
 * byte, when there is none: overlong forms, surrogates and codes past U+10FFFF are not characters. */
int base_utf8_decode(const char *p, size_t left, uint32_t *code);

#endif
