/* sizes.c - sizes, times, checked arithmetic, name patterns. */
#include "base/base.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

bool mul_overflows_i64(int64_t a, int64_t b, int64_t *out)
{
    return __builtin_mul_overflow(a, b, out);
}

bool add_overflows_i64(int64_t a, int64_t b, int64_t *out)
{
    return __builtin_add_overflow(a, b, out);
}

static Status size_wrong(Diag *d, const char *what, const char *text, const char *why)
{
    diag_fail(d, ST_USAGE, "%s: '%.80s' %s", what, text, why);
    return diag_hint(d, "write a size with its unit: 24G or 24GiB (2^30 bytes each), 24GB (10^9), also K, M and T");
}

Status size_parse(Diag *d, const char *what, const char *text, int64_t *out_bytes)
{
    *out_bytes = 0;
    if (strcmp(text, "0") == 0)
        return ST_OK;

    const char *whole = text;
    size_t whole_digits = strspn(whole, "0123456789");
    const char *end = whole + whole_digits;
    const char *fraction = end;
    size_t fraction_digits = 0;
    if (*end == '.') {
        fraction = end + 1;
        fraction_digits = strspn(fraction, "0123456789");
        end = fraction + fraction_digits;
    }
    if (whole_digits == 0 || (fraction != whole + whole_digits && fraction_digits == 0))
        return size_wrong(d, what, text, "is not a size");
    if (*end == '\0')
        return size_wrong(d, what, text, "has no unit");

    static const char letters[] = "KMGT";
    const char *letter = strchr(letters, *end);
    bool decimal = strcmp(end + 1, "B") == 0;
    if (!letter || !(decimal || end[1] == '\0' || strcmp(end + 1, "iB") == 0))
        return size_wrong(d, what, text, "has an unknown unit");
    int64_t unit = 1;
    for (const char *l = letters; l <= letter; l++)
        unit *= decimal ? 1000 : 1024;

    int64_t bytes = 0;
    for (size_t i = 0; i < whole_digits; i++)
        if (mul_overflows_i64(bytes, 10, &bytes) || add_overflows_i64(bytes, whole[i] - '0', &bytes))
            return size_wrong(d, what, text, "is larger than any memory");
    /* The fraction of a unit, rounded down to a byte: exact from the last digit on, since the floor of a floor divided
     * by ten is the floor of the whole. */
    int64_t part = 0;
    for (size_t i = fraction_digits; i > 0; i--)
        part = (part + (fraction[i - 1] - '0') * unit) / 10;
    if (mul_overflows_i64(bytes, unit, &bytes) || add_overflows_i64(bytes, part, &bytes))
        return size_wrong(d, what, text, "is larger than any memory");
    *out_bytes = bytes;
    return ST_OK;
}

const char *size_print(char *buf, int64_t bytes)
{
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes > -1024 && bytes < 1024) {
        snprintf(buf, 32, "%d B", (int)bytes);
        return buf;
    }
    double value = (double)bytes / 1024;
    int u = 0;
    while (fabs(value) >= 1023.995 && u < 5) {
        value /= 1024;
        u++;
    }
    snprintf(buf, 32, "%.2f %s", value, unit[u]);
    return buf;
}

const char *time_print(char *buf, int64_t ns)
{
    static const char *const unit[] = {"us", "ms", "s"};
    if (ns > -1000 && ns < 1000) {
        snprintf(buf, 32, "%d ns", (int)ns);
        return buf;
    }
    double value = (double)ns / 1000;
    int u = 0;
    while (fabs(value) >= 999.5 && u < 2) {
        value /= 1000;
        u++;
    }
    /* Three digits that count. */
    int decimals = fabs(value) < 9.995 ? 2 : fabs(value) < 99.95 ? 1 : 0;
    snprintf(buf, 32, "%.*f %s", decimals, value, unit[u]);
    return buf;
}

bool glob_match(const char *pattern, const char *name)
{
    return strcmp(pattern, name) == 0 || fnmatch(pattern, name, 0) == 0;
}
