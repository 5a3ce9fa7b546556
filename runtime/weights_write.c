/* weights_write.c - writing safetensors files; the format is described in weights.c.
 *
 * The tensors are laid down by the size of their elements, the largest first, and otherwise in the order given. With a
 * header padded to a multiple of 8 every tensor then starts at an address that suits its type, and a reader that maps
 * the file needs no copy. */
#include "runtime/files.h"
#include "runtime/weights_format.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* needs: nothing   fills: order[0..count) with indices of t, largest elements first   keeps: t   spoils: nothing */
static void lay_order(const ferry_tensor *t, int count, int *order)
{
    int n = 0;
    for (size_t bytes = 8; bytes > 0; bytes /= 2) {
        for (int i = 0; i < count; i++) {
            if (ferry_dtype_bytes(t[i].dtype) == bytes) {
                order[n++] = i;
            }
        }
    }
}

static ferry_status check_arguments(const char *path, const ferry_tensor *t, int count, const ferry_meta *meta,
                                    int meta_count)
{
    if (path == NULL || count < 0 || meta_count < 0 || (count > 0 && t == NULL) || (meta_count > 0 && meta == NULL)) {
        return ferryi_fail(FERRY_USAGE, "no path, tensors or metadata were given to write");
    }
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        char text[FERRYI_NAME_TEXT];
        if (t[i].name == NULL || strcmp(t[i].name, FERRYI_WEIGHTS_META) == 0) {
            return ferryi_fail(FERRY_USAGE, "%s: tensor %d to write has no name, or the reserved name %s", path, i,
                               FERRYI_WEIGHTS_META);
        }
        int64_t bytes = ferry_tensor_bytes(&t[i]);
        if (bytes < 0 || (bytes > 0 && t[i].data == NULL) || !ferryi_add(total, bytes, &total)) {
            return ferryi_fail(FERRY_USAGE, "%s: tensor '%s' to write has an impossible shape or no data", path,
                               ferryi_name_text(text, t[i].name));
        }
    }
    return FERRY_OK;
}

/* Adds key: value (the reference is taken over), which fails for a key that is there already or is not UTF-8. */
static ferry_status add(const char *path, json_t *object, const char *key, json_t *value, const char *what)
{
    char text[FERRYI_NAME_TEXT];
    ferryi_name_text(text, key != NULL ? key : "(no key)");
    if (key != NULL && json_object_get(object, key) != NULL) {
        json_decref(value);
        return ferryi_fail(FERRY_USAGE, "%s: %s '%s' stands twice", path, what, text);
    }
    if (json_object_set_new(object, key, value) != 0) {
        return ferryi_fail(FERRY_USAGE, "%s: %s '%s' or its value is not valid UTF-8", path, what, text);
    }
    return FERRY_OK;
}

static ferry_status build_header(const char *path, json_t *header, const ferry_tensor *t, int count, const int *order,
                                 const ferry_meta *meta, int meta_count)
{
    if (meta_count > 0) {
        json_t *object = json_object();
        ferry_status status = add(path, header, FERRYI_WEIGHTS_META, object, "metadata");
        for (int i = 0; i < meta_count && status == FERRY_OK; i++) {
            /* json_string(NULL) and text that is not UTF-8 give NULL, which is then refused */
            status = add(path, object, meta[i].key, json_string(meta[i].value), "metadata");
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
    int64_t begin = 0;
    for (int i = 0; i < count; i++) {
        const ferry_tensor *one = &t[order[i]];
        json_t *shape = json_array();
        for (int d = 0; d < one->rank; d++) {
            json_array_append_new(shape, json_integer(one->dim[d]));
        }
        int64_t end = begin + ferry_tensor_bytes(one);
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", ferryi_weights_dtype[one->dtype], "shape", shape,
                                  "data_offsets", (json_int_t)begin, (json_int_t)end);
        if (entry == NULL || json_array_size(shape) != (size_t)one->rank) {
            json_decref(entry);
            return ferryi_fail(FERRY_FAILED, "%s: out of memory", path);
        }
        ferry_status status = add(path, header, one->name, entry, "tensor");
        if (status != FERRY_OK) {
            return status;
        }
        begin = end;
    }
    return FERRY_OK;
}

static ferry_status write_all(const char *path, const char *header, const ferry_tensor *t, int count, const int *order)
{
    static const char blanks[8] = "        ";
    uint64_t length = strlen(header);
    uint64_t padded = (length + 7) / 8 * 8;
    if (padded > FERRYI_WEIGHTS_MAX_HEADER) {
        return ferryi_fail(FERRY_USAGE, "%s: a header of %llu bytes is longer than safetensors allows", path,
                           (unsigned long long)padded);
    }
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) {
        prefix[i] = (uint8_t)(padded >> (8 * i));
    }
    ferryi_writer w;
    ferry_status status = ferryi_writer_open(path, &w);
    if (status != FERRY_OK) {
        return status;
    }
    status = ferryi_writer_put(&w, prefix, 8);
    if (status == FERRY_OK) {
        status = ferryi_writer_put(&w, header, (int64_t)length);
    }
    if (status == FERRY_OK) {
        status = ferryi_writer_put(&w, blanks, (int64_t)(padded - length));
    }
    for (int i = 0; i < count && status == FERRY_OK; i++) {
        status = ferryi_writer_put(&w, t[order[i]].data, ferry_tensor_bytes(&t[order[i]]));
    }
    if (status != FERRY_OK) {
        ferryi_writer_abandon(&w);
        return status;
    }
    return ferryi_writer_commit(&w);
}

ferry_status ferry_weights_write(const char *path, const ferry_tensor *t, int count, const ferry_meta *meta,
                                 int meta_count)
{
    ferry_status status = check_arguments(path, t, count, meta, meta_count);
    if (status != FERRY_OK) {
        return status;
    }
    json_t *header = json_object();
    int *order = calloc((size_t)count + 1, sizeof *order);
    char *text = NULL;
    if (header == NULL || order == NULL) {
        status = ferryi_fail(FERRY_FAILED, "%s: out of memory", path);
    } else {
        lay_order(t, count, order);
        status = build_header(path, header, t, count, order, meta, meta_count);
    }
    if (status == FERRY_OK) {
        text = json_dumps(header, JSON_COMPACT);
        status = text == NULL ? ferryi_fail(FERRY_FAILED, "%s: out of memory", path)
                              : write_all(path, text, t, count, order);
    }
    free(text);
    free(order);
    json_decref(header);
    return status;
}
