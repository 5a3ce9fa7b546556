/* yaml_get.c - typed access to YAML trees.
 *
 * YAML leaves the type of a plain scalar to the reader. Here the key decides: the caller asks for a number, a truth
 * value or a text, and what is not written as one, in the plainest way, is an error. So there are no octal numbers, no
 * yes and no, and a quoted "12" is a text. */
#include "base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Status yaml_error(Diag *d, const YamlNode *at, const char *format, ...)
{
    char text[sizeof d->message];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0)
        text[0] = '\0';
    if (!at)
        return diag_fail(d, ST_MODEL, "%s", text);
    return diag_fail(d, ST_MODEL, "%s:%d: %s", at->file, at->line, text);
}

static bool is_null(const YamlNode *n)
{
    return n->kind == YAML_SCALAR && !n->quoted &&
           (n->text[0] == '\0' || strcmp(n->text, "~") == 0 || strcmp(n->text, "null") == 0 ||
            strcmp(n->text, "Null") == 0 || strcmp(n->text, "NULL") == 0);
}

/* What a node is, for messages. */
static const char *kind_text(const YamlNode *n)
{
    return n->kind == YAML_LIST ? "a list" : n->kind == YAML_MAP ? "a map" : is_null(n) ? "empty" : "a single value";
}

static int find_index(const YamlNode *map, const char *key)
{
    if (map && map->kind == YAML_MAP)
        for (int i = 0; i < map->count; i++)
            if (strcmp(map->key[i], key) == 0)
                return i;
    return -1;
}

YamlNode *yaml_find(const YamlNode *map, const char *key)
{
    int i = find_index(map, key);
    return i < 0 ? NULL : map->item[i];
}

Status yaml_get(Diag *d, const YamlNode *map, const char *key, YamlKind kind, YamlNode **out)
{
    static const char *const wanted[] = {[YAML_SCALAR] = "single value", [YAML_LIST] = "list", [YAML_MAP] = "map"};
    *out = NULL;
    if (!map || map->kind != YAML_MAP)
        return yaml_error(d, map, "is %s where a map with the key '%s' is needed", map ? kind_text(map) : "nothing",
                          key);
    int i = find_index(map, key);
    if (i < 0)
        return yaml_error(d, map, "the key '%s' is missing", key);
    YamlNode *n = map->item[i];
    if (n->kind != kind)
        return diag_fail(d, ST_MODEL, "%s:%d: '%s' is %s; a %s is needed", map->file, map->key_line[i], key,
                         kind_text(n), wanted[kind]);
    *out = n;
    return ST_OK;
}

/* A scalar that has a value. */
static Status get_value(Diag *d, const YamlNode *map, const char *key, const YamlNode **out)
{
    YamlNode *n;
    *out = NULL;
    TRY(yaml_get(d, map, key, YAML_SCALAR, &n));
    if (is_null(n))
        return diag_fail(d, ST_MODEL, "%s:%d: '%s' has no value", n->file, map->key_line[find_index(map, key)], key);
    *out = n;
    return ST_OK;
}

Status yaml_get_text(Diag *d, const YamlNode *map, const char *key, const char **out)
{
    const YamlNode *n;
    *out = NULL;
    TRY(get_value(d, map, key, &n));
    *out = n->text;
    return ST_OK;
}

/* "'KEY' is" or, where there is no key, "". */
static Status wrong(Diag *d, const YamlNode *n, const char *key, const char *why)
{
    if (key)
        return yaml_error(d, n, "'%s' is %s%.80s%s, %s", key, n->quoted ? "\"" : "", n->text, n->quoted ? "\"" : "",
                          why);
    return yaml_error(d, n, "%s%.80s%s, %s", n->quoted ? "\"" : "", n->text, n->quoted ? "\"" : "", why);
}

/* A decimal number without sign: at least one digit, no zero in front of others. Returns its length, 0 when it is none.
 */
static size_t whole_digits(const char *s)
{
    size_t n = strspn(s, "0123456789");
    return n > 1 && s[0] == '0' ? 0 : n;
}

static Status as_int(Diag *d, const YamlNode *n, const char *key, int64_t min, int64_t max, int64_t *out)
{
    *out = 0;
    if (n->quoted)
        return wrong(d, n, key, "a text where a whole number is needed");
    const char *s = n->text;
    bool negative = s[0] == '-';
    if (negative)
        s++;
    size_t digits = whole_digits(s);
    if (digits == 0 || s[digits] != '\0')
        return wrong(d, n, key, "not a whole number in decimal digits");
    int64_t value = 0;
    bool outside = negative && min >= 0;
    for (size_t i = 0; i < digits && !outside; i++)
        outside = mul_overflows_i64(value, 10, &value) ||
                  add_overflows_i64(value, negative ? -(s[i] - '0') : s[i] - '0', &value);
    if (outside || value < min || value > max) {
        char range[96];
        snprintf(range, sizeof range, "outside %lld to %lld", (long long)min, (long long)max);
        return wrong(d, n, key, range);
    }
    *out = value;
    return ST_OK;
}

Status yaml_as_int(Diag *d, const YamlNode *scalar, int64_t min, int64_t max, int64_t *out)
{
    *out = 0;
    if (!scalar || scalar->kind != YAML_SCALAR || is_null(scalar))
        return yaml_error(d, scalar, "is %s where a whole number is needed", scalar ? kind_text(scalar) : "nothing");
    return as_int(d, scalar, NULL, min, max, out);
}

Status yaml_get_int(Diag *d, const YamlNode *map, const char *key, int64_t min, int64_t max, int64_t *out)
{
    const YamlNode *n;
    *out = 0;
    TRY(get_value(d, map, key, &n));
    return as_int(d, n, key, min, max, out);
}

/* [-]digits[.digits][e[+-]digits] and nothing else: strtod alone would also take inf, nan, hexadecimal and blanks. */
static bool real_syntax(const char *s)
{
    s += s[0] == '-';
    size_t n = whole_digits(s);
    if (n == 0)
        return false;
    s += n;
    if (*s == '.') {
        n = strspn(++s, "0123456789");
        if (n == 0)
            return false;
        s += n;
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '-' || *s == '+';
        n = strspn(s, "0123456789");
        if (n == 0)
            return false;
        s += n;
    }
    return *s == '\0';
}

Status yaml_get_real(Diag *d, const YamlNode *map, const char *key, double min, double max, double *out)
{
    const YamlNode *n;
    *out = 0;
    TRY(get_value(d, map, key, &n));
    if (n->quoted)
        return wrong(d, n, key, "a text where a number is needed");
    if (!real_syntax(n->text))
        return wrong(d, n, key, "not a finite decimal number");
    double value = strtod(n->text, NULL);
    if (!isfinite(value))
        return wrong(d, n, key, "too large for a number");
    if ((n->text[0] == '-' && min >= 0) || !(value >= min && value <= max)) {
        char range[96];
        snprintf(range, sizeof range, "outside %.17g to %.17g", min, max);
        return wrong(d, n, key, range);
    }
    *out = value;
    return ST_OK;
}

Status yaml_get_bool(Diag *d, const YamlNode *map, const char *key, bool *out)
{
    const YamlNode *n;
    *out = false;
    TRY(get_value(d, map, key, &n));
    bool yes = strcmp(n->text, "true") == 0;
    if (n->quoted || (!yes && strcmp(n->text, "false") != 0))
        return wrong(d, n, key, "neither true nor false");
    *out = yes;
    return ST_OK;
}

Status yaml_only_keys(Diag *d, const YamlNode *map, const char *const *allowed)
{
    if (!map || map->kind != YAML_MAP)
        return yaml_error(d, map, "is %s where a map is needed", map ? kind_text(map) : "nothing");
    for (int i = 0; i < map->count; i++) {
        bool known = false;
        for (const char *const *k = allowed; *k && !known; k++)
            known = strcmp(map->key[i], *k) == 0;
        if (known)
            continue;
        diag_fail(d, ST_MODEL, "%s:%d: unknown key '%.200s'", map->file, map->key_line[i], map->key[i]);
        Text list = {0};
        for (const char *const *k = allowed; *k; k++)
            text_add(&list, "%s%s", k == allowed ? "" : ", ", *k);
        if (list.at && !list.failed)
            diag_hint(d, "the keys here are: %s", list.at);
        text_free(&list);
        return d->status;
    }
    return ST_OK;
}
