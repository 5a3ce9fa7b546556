/* npy.c - NumPy's .npy files.
 *
 * A file is: 6 bytes "\x93NUMPY", two bytes of version, the length of the header (2 bytes in version 1, 4 in versions 2
 * and 3), the header, the elements. The header is a literal of a Python dict with exactly the keys descr (type),
 * fortran_order and shape. We read just that literal and nothing else of Python: an array of records or of objects has
 * a descr that is no plain string, and is refused. */
#include "runtime/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER_BYTES = 1 << 16 };

struct ferry_npy {
    ferryi_map map;
    void *copy; /* the elements, when the header puts them at an address that does not suit their type; owned */
    char *path; /* owned */
    ferry_tensor tensor;
};

/* What .npy calls our types. NumPy has no bf16: the usual extension type (ml_dtypes) stores it as two bytes of void. */
static const char *const descrs[FERRY_DTYPE_COUNT] = {
    [FERRY_F32] = "<f4", [FERRY_F64] = "<f8", [FERRY_F16] = "<f2",  [FERRY_BF16] = "<V2", [FERRY_I64] = "<i8",
    [FERRY_I32] = "<i4", [FERRY_I16] = "<i2", [FERRY_I8] = "|i1",   [FERRY_U64] = "<u8",  [FERRY_U32] = "<u4",
    [FERRY_U16] = "<u2", [FERRY_U8] = "|u1",  [FERRY_BOOL] = "|b1",
};

/* ---- the header's literal -------------------------------------------------------------------------------------- */

typedef struct cursor {
    const char *path;
    const char *at, *end;
} cursor;

static ferry_status header_error(const cursor *c, const char *what)
{
    return ferryi_fail(FERRY_BAD_DATA, "%s: the .npy header is wrong: %s", c->path, what);
}

static void skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r')) {
        c->at++;
    }
}

/* Takes the character `want` after white space, if it is there. */
static bool take(cursor *c, char want)
{
    skip_space(c);
    if (c->at < c->end && *c->at == want) {
        c->at++;
        return true;
    }
    return false;
}

static bool take_word(cursor *c, const char *word)
{
    size_t n = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) >= n && memcmp(c->at, word, n) == 0) {
        c->at += n;
        return true;
    }
    return false;
}

/* A quoted string without escapes of fewer than `size` characters. */
static bool take_string(cursor *c, char *out, size_t size)
{
    char quote = take(c, '\'') ? '\'' : take(c, '"') ? '"' : 0;
    if (quote == 0) {
        return false;
    }
    size_t n = 0;
    while (c->at < c->end && *c->at != quote) {
        if (*c->at == '\\' || *c->at < ' ' || *c->at > '~' || n + 1 >= size) {
            return false;
        }
        out[n++] = *c->at++;
    }
    out[n] = 0;
    return take(c, quote);
}

/* "(3, 4)", "(3,)", "()"; Python 2 wrote long numbers as 3L. */
static ferry_status take_shape(cursor *c, ferry_tensor *t)
{
    if (!take(c, '(')) {
        return header_error(c, "shape is not a tuple");
    }
    t->rank = 0;
    while (!take(c, ')')) {
        int64_t n = 0;
        const char *start;
        skip_space(c);
        for (start = c->at; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
            if (!ferryi_mul(n, 10, &n) || !ferryi_add(n, *c->at - '0', &n)) {
                return header_error(c, "a dimension is too large");
            }
        }
        if (c->at == start) {
            return header_error(c, "a dimension is not a non-negative whole number");
        }
        if (c->at < c->end && *c->at == 'L') {
            c->at++;
        }
        if (t->rank == FERRY_MAX_RANK) {
            return ferryi_fail(FERRY_BAD_DATA, "%s: the array has more than %d dimensions", c->path, FERRY_MAX_RANK);
        }
        t->dim[t->rank++] = n;
        if (!take(c, ',')) {
            if (!take(c, ')')) {
                return header_error(c, "shape has no closing parenthesis");
            }
            if (t->rank == 1) {
                return header_error(c, "shape is a number, not a tuple");
            }
            break;
        }
    }
    return FERRY_OK;
}

static ferry_status take_descr(cursor *c, ferry_tensor *t)
{
    char text[32];
    if (!take_string(c, text, sizeof text)) {
        return header_error(c, "descr is not a plain type; arrays of records are not supported");
    }
    if (text[0] == '>') {
        return ferryi_fail(FERRY_BAD_DATA, "%s: the elements '%s' are big-endian; save the array as little-endian",
                           c->path, text);
    }
    for (int i = 0; i < FERRY_DTYPE_COUNT; i++) {
        /* the byte order of one-byte types and of void means nothing */
        bool any_order = descrs[i][2] == '1' || descrs[i][1] == 'V';
        bool order = text[0] == descrs[i][0] || (any_order && (text[0] == '<' || text[0] == '|'));
        if (order && strcmp(text + 1, descrs[i] + 1) == 0) {
            t->dtype = (ferry_dtype)i;
            return FERRY_OK;
        }
    }
    return ferryi_fail(FERRY_BAD_DATA, "%s: elements of type '%s' are not supported", c->path, text);
}

static ferry_status parse_header(cursor *c, ferry_tensor *t)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    int seen = 0;
    bool fortran = false;
    if (!take(c, '{')) {
        return header_error(c, "it is not a dict");
    }
    while (!take(c, '}')) {
        char key[32];
        if (!take_string(c, key, sizeof key) || !take(c, ':')) {
            return header_error(c, "a key and a colon are expected");
        }
        int bit = strcmp(key, "descr") == 0           ? DESCR
                  : strcmp(key, "fortran_order") == 0 ? ORDER
                  : strcmp(key, "shape") == 0         ? SHAPE
                                                      : 0;
        if (bit == 0 || (seen & bit) != 0) {
            return header_error(c, bit == 0 ? "it has an unknown key" : "a key stands twice");
        }
        seen |= bit;
        ferry_status status = FERRY_OK;
        if (bit == DESCR) {
            status = take_descr(c, t);
        } else if (bit == SHAPE) {
            status = take_shape(c, t);
        } else {
            fortran = take_word(c, "True");
            if (!fortran && !take_word(c, "False")) {
                status = header_error(c, "fortran_order is neither True nor False");
            }
        }
        if (status != FERRY_OK) {
            return status;
        }
        if (!take(c, ',')) {
            if (!take(c, '}')) {
                return header_error(c, "the dict has no closing brace");
            }
            break;
        }
    }
    skip_space(c);
    if (c->at != c->end) {
        return header_error(c, "something follows the dict");
    }
    if (seen != (DESCR | ORDER | SHAPE)) {
        return header_error(c, "descr, fortran_order or shape is missing");
    }
    if (fortran && t->rank > 1) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: the array is in Fortran order; save numpy.ascontiguousarray of it",
                           c->path);
    }
    return FERRY_OK;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* Little-endian number of `bytes` bytes. */
static int64_t read_le(const uint8_t *p, int bytes)
{
    int64_t n = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        n = n * 256 + p[i];
    }
    return n;
}

static ferry_status npy_parse(ferry_npy *f)
{
    const ferryi_map *map = &f->map;
    const char *path = f->path;
    if (map->bytes < 10 || memcmp(map->at, "\x93NUMPY", 6) != 0) {
        return ferryi_fail(FERRY_BAD_DATA, "%s is not a .npy file", path);
    }
    int version = map->at[6];
    if (version < 1 || version > 3 || map->at[7] != 0) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: .npy version %d.%d is not supported", path, version, map->at[7]);
    }
    int64_t start = version == 1 ? 10 : 12;
    if (map->bytes < start) {
        return ferryi_fail(FERRY_BAD_DATA, "%s ends inside its .npy header", path);
    }
    int64_t length = read_le(map->at + 8, version == 1 ? 2 : 4);
    if (length > map->bytes - start) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: the .npy header has %lld bytes, the file has %lld", path,
                           (long long)length, (long long)(map->bytes - start));
    }
    if (length > MAX_HEADER_BYTES) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: a .npy header of %lld bytes is too long (at most %d)", path,
                           (long long)length, MAX_HEADER_BYTES);
    }
    cursor c = {path, (const char *)map->at + start, (const char *)map->at + start + length};
    ferry_status status = parse_header(&c, &f->tensor);
    if (status != FERRY_OK) {
        return status;
    }
    char shape[FERRYI_SHAPE_TEXT];
    ferryi_shape_text(shape, &f->tensor);
    int64_t bytes = ferry_tensor_bytes(&f->tensor);
    int64_t found = map->bytes - start - length;
    if (bytes < 0) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: the size of %s overflows", path, shape);
    }
    if (bytes != found) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: %s needs %lld bytes of elements, the file has %lld", path, shape,
                           (long long)bytes, (long long)found);
    }
    const uint8_t *data = bytes > 0 ? map->at + start + length : map->at; /* without elements, any aligned address */
    if ((uintptr_t)data % ferry_dtype_bytes(f->tensor.dtype) != 0) {
        f->copy = malloc((size_t)bytes);
        if (f->copy == NULL) {
            return ferryi_fail(FERRY_FAILED, "%s: out of memory for %lld bytes", path, (long long)bytes);
        }
        memcpy(f->copy, data, (size_t)bytes);
        data = f->copy;
    }
    f->tensor.name = path;
    f->tensor.data = (void *)(uintptr_t)data;
    return FERRY_OK;
}

ferry_status ferry_npy_open(const char *path, ferry_npy **out)
{
    *out = NULL;
    ferryi_map map;
    ferry_status status = ferryi_map_open(path, &map);
    if (status != FERRY_OK) {
        return status;
    }
    ferry_npy *f = calloc(1, sizeof *f);
    char *copy = strdup(path);
    if (f == NULL || copy == NULL) {
        free(f);
        free(copy);
        ferryi_map_close(&map);
        return ferryi_fail(FERRY_FAILED, "out of memory");
    }
    f->map = map;
    f->path = copy;
    status = npy_parse(f);
    if (status != FERRY_OK) {
        ferry_npy_close(f);
        return status;
    }
    *out = f;
    return FERRY_OK;
}

void ferry_npy_close(ferry_npy *f)
{
    if (f == NULL) {
        return;
    }
    ferryi_map_close(&f->map);
    free(f->copy);
    free(f->path);
    free(f);
}

const ferry_tensor *ferry_npy_tensor(const ferry_npy *f)
{
    return &f->tensor;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

ferry_status ferry_npy_write(const char *path, const ferry_tensor *t)
{
    int64_t bytes = ferry_tensor_bytes(t);
    if (bytes < 0 || (bytes > 0 && t->data == NULL)) {
        return ferryi_fail(FERRY_USAGE, "%s: the tensor to write has an impossible shape or no data",
                           path != NULL ? path : "(no path)");
    }
    /* Blanks and a newline end the header, so that the elements start at a multiple of 64. */
    char header[512];
    int used = snprintf(header + 10, sizeof header - 10, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                        descrs[t->dtype]);
    for (int i = 0; i < t->rank; i++) {
        used += snprintf(header + 10 + used, sizeof header - 10 - (size_t)used, "%s%lld%s", i > 0 ? ", " : "",
                         (long long)t->dim[i], t->rank == 1 ? "," : "");
    }
    used += snprintf(header + 10 + used, sizeof header - 10 - (size_t)used, "), }");
    int total = (10 + used + 1 + 63) / 64 * 64;
    memset(header + 10 + used, ' ', (size_t)(total - 10 - used));
    header[total - 1] = '\n';
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)((total - 10) % 256);
    header[9] = (char)((total - 10) / 256);

    ferryi_writer w;
    ferry_status status = ferryi_writer_open(path, &w);
    if (status != FERRY_OK) {
        return status;
    }
    status = ferryi_writer_put(&w, header, total);
    if (status == FERRY_OK) {
        status = ferryi_writer_put(&w, t->data, bytes);
    }
    if (status != FERRY_OK) {
        ferryi_writer_abandon(&w);
        return status;
    }
    return ferryi_writer_commit(&w);
}
