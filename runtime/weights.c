/* weights.c - safetensors files.
 *
 * A file is: 8 bytes with the length of the header, the header (JSON, padded with blanks), the bytes of the tensors.
 * The header maps each name to {"dtype", "shape", "data_offsets": [begin, end]}, offsets counted from the end of the
 * header; the reserved name __metadata__ maps strings to strings. Sorted by offset the tensors follow each other
 * without a gap or an overlap from 0 to the end of the file: a byte that belongs to no tensor is as wrong as one that
 * belongs to two.
 *
 * The header is written by strangers. Its length is bounded before it is parsed, and so are its depth and the number of
 * its values, since each value costs some 50 bytes in memory and each level a call on the stack. */
#include "runtime/files.h"
#include "runtime/weights_format.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 8, MAX_VALUES = 4 * 1000 * 1000 };

struct ferry_weights {
    ferryi_map map;
    json_t *header; /* owns the names and the metadata */
    json_t *meta;   /* part of header; NULL when absent */
    int count;
    ferry_tensor *tensor; /* by offset */
    void **copy;          /* of each tensor: its bytes when the file puts them at an unsuitable address, else NULL */
    int *by_name;         /* indices of tensors, sorted by name */
};

const char *const ferryi_weights_dtype[FERRY_DTYPE_COUNT] = {
    [FERRY_F32] = "F32", [FERRY_F64] = "F64", [FERRY_F16] = "F16",   [FERRY_BF16] = "BF16", [FERRY_I64] = "I64",
    [FERRY_I32] = "I32", [FERRY_I16] = "I16", [FERRY_I8] = "I8",     [FERRY_U64] = "U64",   [FERRY_U32] = "U32",
    [FERRY_U16] = "U16", [FERRY_U8] = "U8",   [FERRY_BOOL] = "BOOL",
};

/* ---- reading the header ---------------------------------------------------------------------------------------- */

/* needs: the bytes of the header   fills: nothing
 * keeps: the bytes                 spoils: nothing
 * Refuses a header whose tree would be too deep or too large. Counts too much rather than too little. */
static ferry_status check_bounds(const char *path, const char *text, int64_t size)
{
    int depth = 0;
    int64_t values = 0;
    bool quoted = false;
    for (int64_t i = 0; i < size; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                quoted = false;
            }
            continue;
        }
        quoted = c == '"';
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        values += c == '{' || c == '[' || c == ',';
        if (depth > MAX_DEPTH || values > MAX_VALUES) {
            return ferryi_fail(FERRY_BAD_DATA, "%s: the safetensors header is %s", path,
                               depth > MAX_DEPTH ? "nested too deeply" : "too large: more than 4 million values");
        }
    }
    return FERRY_OK;
}

static ferry_status tensor_error(const char *path, const char *name, const char *what)
{
    char text[FERRYI_NAME_TEXT];
    return ferryi_fail(FERRY_BAD_DATA, "%s: tensor '%s': %s", path, ferryi_name_text(text, name), what);
}

/* One entry of the header: fills *t and *begin. The data pointer is the place in the map. */
static ferry_status read_entry(const char *path, const char *name, const json_t *entry, const uint8_t *data,
                               int64_t data_bytes, ferry_tensor *t, int64_t *begin)
{
    const json_t *dtype = json_object_get(entry, "dtype");
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_object(entry) || json_object_size(entry) != 3 || !json_is_string(dtype) || !json_is_array(shape) ||
        !json_is_array(offsets)) {
        return tensor_error(path, name, "the entry is not exactly a dtype, a shape and data_offsets");
    }
    t->name = name;
    int type = 0;
    while (type < FERRY_DTYPE_COUNT && strcmp(ferryi_weights_dtype[type], json_string_value(dtype)) != 0) {
        type++;
    }
    if (type == FERRY_DTYPE_COUNT) {
        char a[FERRYI_NAME_TEXT], b[FERRYI_NAME_TEXT];
        return ferryi_fail(FERRY_BAD_DATA, "%s: tensor '%s': elements of type '%s' are not supported", path,
                           ferryi_name_text(a, name), ferryi_name_text(b, json_string_value(dtype)));
    }
    t->dtype = (ferry_dtype)type;
    if (json_array_size(shape) > FERRY_MAX_RANK) {
        return tensor_error(path, name, "it has more than 8 dimensions");
    }
    t->rank = (int)json_array_size(shape);
    for (int i = 0; i < t->rank; i++) {
        const json_t *n = json_array_get(shape, (size_t)i);
        if (!json_is_integer(n) || json_integer_value(n) < 0) {
            return tensor_error(path, name, "a dimension is not a non-negative whole number");
        }
        t->dim[i] = json_integer_value(n);
    }
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to)) {
        return tensor_error(path, name, "data_offsets are not two whole numbers");
    }
    int64_t b = json_integer_value(from), e = json_integer_value(to);
    char what[FERRYI_SHAPE_TEXT], text[FERRYI_NAME_TEXT];
    ferryi_shape_text(what, t);
    ferryi_name_text(text, name);
    if (b < 0 || e < b || e > data_bytes) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: tensor '%s': bytes [%lld, %lld) are not inside the file's %lld", path,
                           text, (long long)b, (long long)e, (long long)data_bytes);
    }
    int64_t bytes = ferry_tensor_bytes(t);
    if (bytes < 0) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: tensor '%s': the size of %s overflows", path, text, what);
    }
    if (bytes != e - b) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: tensor '%s': %s needs %lld bytes, data_offsets span %lld", path, text,
                           what, (long long)bytes, (long long)(e - b));
    }
    t->data = (void *)(uintptr_t)(data + b);
    *begin = b;
    return FERRY_OK;
}

static ferry_status read_meta(const char *path, const json_t *meta)
{
    const char *key;
    const json_t *value;
    if (!json_is_object(meta)) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: %s is not an object", path, FERRYI_WEIGHTS_META);
    }
    json_object_foreach((json_t *)(uintptr_t)meta, key, value)
    {
        if (!json_is_string(value)) {
            char text[FERRYI_NAME_TEXT];
            return ferryi_fail(FERRY_BAD_DATA, "%s: the value of '%s' in %s is not a string", path,
                               ferryi_name_text(text, key), FERRYI_WEIGHTS_META);
        }
    }
    return FERRY_OK;
}

/* ---- order of the tensors -------------------------------------------------------------------------------------- */

typedef struct entry {
    ferry_tensor tensor;
    int64_t begin, end;
} entry;

static int by_offset(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) { /* the empty ones first */
        return x->end < y->end ? -1 : 1;
    }
    return strcmp(x->tensor.name, y->tensor.name);
}

static int by_name(const void *a, const void *b, void *arg)
{
    const ferry_tensor *t = arg;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

/* needs: entries sorted by offset   fills: nothing
 * keeps: entries                    spoils: nothing
 * The tensors cover [0, data_bytes) without a gap or an overlap. */
static ferry_status check_cover(const char *path, const entry *e, int count, int64_t data_bytes)
{
    int64_t end = 0;
    char a[FERRYI_NAME_TEXT], b[FERRYI_NAME_TEXT];
    for (int i = 0; i < count; i++) {
        ferryi_name_text(a, e[i].tensor.name);
        if (e[i].begin < end) {
            return ferryi_fail(FERRY_BAD_DATA, "%s: tensors '%s' and '%s' overlap", path,
                               ferryi_name_text(b, e[i - 1].tensor.name), a);
        }
        if (e[i].begin > end) {
            return ferryi_fail(FERRY_BAD_DATA, "%s: %lld bytes before tensor '%s' belong to no tensor", path,
                               (long long)(e[i].begin - end), a);
        }
        end = e[i].end;
    }
    if (end != data_bytes) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: the last %lld bytes belong to no tensor", path,
                           (long long)(data_bytes - end));
    }
    return FERRY_OK;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static ferry_status out_of_memory(const char *path)
{
    return ferryi_fail(FERRY_FAILED, "%s: out of memory", path);
}

/* needs: map   fills: header, *data, *data_bytes   keeps: map   spoils: nothing */
static ferry_status parse_header(ferry_weights *w, const char *path, const uint8_t **data, int64_t *data_bytes)
{
    if (w->map.bytes < 8) {
        return ferryi_fail(FERRY_BAD_DATA, "%s is not a safetensors file: it has %lld bytes", path,
                           (long long)w->map.bytes);
    }
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | w->map.at[i];
    }
    if (length > FERRYI_WEIGHTS_MAX_HEADER || (int64_t)length > w->map.bytes - 8) {
        return ferryi_fail(
            FERRY_BAD_DATA,
            "%s is not a safetensors file or is cut: its header would have %llu bytes (the file has %lld, a "
            "header at most %d)",
            path, (unsigned long long)length, (long long)w->map.bytes, FERRYI_WEIGHTS_MAX_HEADER);
    }
    const char *text = (const char *)w->map.at + 8;
    if (length == 0 || text[0] != '{') {
        return ferryi_fail(FERRY_BAD_DATA, "%s is not a safetensors file: its header does not start with '{'", path);
    }
    ferry_status status = check_bounds(path, text, (int64_t)length);
    if (status != FERRY_OK) {
        return status;
    }
    json_error_t error;
    w->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (w->header == NULL) {
        char what[FERRYI_NAME_TEXT];
        if (json_error_code(&error) == json_error_out_of_memory) {
            return out_of_memory(path);
        }
        return ferryi_fail(FERRY_BAD_DATA, "%s: the safetensors header is not valid JSON at byte %d: %s", path,
                           error.position, ferryi_name_text(what, error.text));
    }
    *data = w->map.at + 8 + length;
    *data_bytes = w->map.bytes - 8 - (int64_t)length;
    return FERRY_OK;
}

/* needs: entries sorted and checked   fills: tensor, copy, by_name, count   keeps: entries   spoils: nothing */
static ferry_status keep_entries(ferry_weights *w, const char *path, const entry *e, int count)
{
    size_t room = (size_t)count + 1; /* so that no array is empty */
    w->tensor = calloc(room, sizeof *w->tensor);
    w->copy = calloc(room, sizeof *w->copy);
    w->by_name = calloc(room, sizeof *w->by_name);
    if (w->tensor == NULL || w->copy == NULL || w->by_name == NULL) {
        return out_of_memory(path);
    }
    for (int i = 0; i < count; i++) {
        ferry_tensor *t = &w->tensor[i];
        *t = e[i].tensor;
        w->by_name[i] = i;
        w->count = i + 1;
        int64_t bytes = e[i].end - e[i].begin;
        if ((uintptr_t)t->data % ferry_dtype_bytes(t->dtype) != 0) {
            w->copy[i] = malloc((size_t)bytes + 1); /* an aligned address also without elements */
            if (w->copy[i] == NULL) {
                return out_of_memory(path);
            }
            memcpy(w->copy[i], t->data, (size_t)bytes);
            t->data = w->copy[i];
        }
    }
    qsort_r(w->by_name, (size_t)count, sizeof *w->by_name, by_name, w->tensor);
    return FERRY_OK;
}

static ferry_status weights_read(ferry_weights *w, const char *path)
{
    const uint8_t *data = NULL;
    int64_t data_bytes = 0;
    ferry_status status = parse_header(w, path, &data, &data_bytes);
    if (status != FERRY_OK) {
        return status;
    }
    entry *e = calloc(json_object_size(w->header) + 1, sizeof *e);
    if (e == NULL) {
        return out_of_memory(path);
    }
    int count = 0;
    const char *key;
    json_t *value;
    json_object_foreach(w->header, key, value)
    {
        if (strcmp(key, FERRYI_WEIGHTS_META) == 0) {
            w->meta = value;
            status = read_meta(path, value);
        } else {
            status = read_entry(path, key, value, data, data_bytes, &e[count].tensor, &e[count].begin);
            if (status == FERRY_OK) {
                e[count].end = e[count].begin + ferry_tensor_bytes(&e[count].tensor);
                count++;
            }
        }
        if (status != FERRY_OK) {
            break;
        }
    }
    if (status == FERRY_OK) {
        qsort(e, (size_t)count, sizeof *e, by_offset);
        status = check_cover(path, e, count, data_bytes);
    }
    if (status == FERRY_OK) {
        status = keep_entries(w, path, e, count);
    }
    free(e);
    return status;
}

ferry_status ferry_weights_open(const char *path, ferry_weights **out)
{
    *out = NULL;
    ferryi_map map;
    ferry_status status = ferryi_map_open(path, &map);
    if (status != FERRY_OK) {
        return status;
    }
    ferry_weights *w = calloc(1, sizeof *w);
    if (w == NULL) {
        ferryi_map_close(&map);
        return out_of_memory(path);
    }
    w->map = map;
    status = weights_read(w, path);
    if (status != FERRY_OK) {
        ferry_weights_close(w);
        return status;
    }
    *out = w;
    return FERRY_OK;
}

void ferry_weights_close(ferry_weights *w)
{
    if (w == NULL) {
        return;
    }
    for (int i = 0; i < w->count; i++) {
        free(w->copy[i]);
    }
    free(w->copy);
    free(w->by_name);
    free(w->tensor);
    json_decref(w->header);
    ferryi_map_close(&w->map);
    free(w);
}

int ferry_weights_count(const ferry_weights *w)
{
    return w->count;
}

const ferry_tensor *ferry_weights_at(const ferry_weights *w, int i)
{
    return i >= 0 && i < w->count ? &w->tensor[i] : NULL;
}

const ferry_tensor *ferry_weights_find(const ferry_weights *w, const char *name)
{
    int low = 0, high = w->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const ferry_tensor *t = &w->tensor[w->by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0) {
            return t;
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

const char *ferry_weights_meta(const ferry_weights *w, const char *key)
{
    return json_string_value(json_object_get(w->meta, key)); /* NULL passes through both */
}
