/* data.c - training batches from a folder of .npy files or from a file of tokens. The rules are in ferry.h.
 *
 * Each input has one source. A .npy source is mapped; step s is a slice of it, handed out as it is when the types agree
 * and converted into a buffer of the input otherwise. A tokens source always fills a buffer: ids are 2 or 4 bytes in
 * the file and 4 or 8 in the model. The file is read as rows of seq + 1 tokens: input_ids is a row without its last
 * token, labels one without its first. */
#include "runtime/convert.h"
#include "runtime/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TOKENS_MAGIC = 20240520, TOKENS_HEADER_BYTES = 256 * 4 };

typedef struct source {
    char *path;          /* owned */
    ferry_tensor input;  /* type and shape of a batch; the name is owned by this source */
    int64_t batch_bytes; /* of the model's batch */
    ferry_npy *npy;      /* NULL: tokens.bin */
    int64_t steps;       /* npy: length of the first axis */
    bool labels;         /* tokens: the row without its first token, else without its last */
    void *buffer;        /* owned; NULL when slices are handed out */
} source;

struct ferry_data {
    source *source;
    int count;
    char *tokens_path;
    ferryi_map tokens;
    bool have_tokens;
    int token_bytes;
    int64_t token_count;
};

/* ---- tokens.bin ------------------------------------------------------------------------------------------------ */

static uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* needs: tokens_path   fills: tokens, have_tokens, token_bytes, token_count   keeps: the rest   spoils: nothing */
static ferry_status tokens_open(ferry_data *d)
{
    const char *path = d->tokens_path;
    ferry_status status = ferryi_map_open(path, &d->tokens);
    if (status != FERRY_OK) {
        return status;
    }
    d->have_tokens = true;
    const uint8_t *head = d->tokens.at;
    if (d->tokens.bytes < TOKENS_HEADER_BYTES) {
        return ferryi_fail(FERRY_BAD_DATA, "%s has %lld bytes, expected a header of %d", path,
                           (long long)d->tokens.bytes, TOKENS_HEADER_BYTES);
    }
    if (read_u32(head) != TOKENS_MAGIC) {
        return ferryi_fail(FERRY_BAD_DATA, "%s is not a file of tokens: it starts with %u, expected %d", path,
                           read_u32(head), TOKENS_MAGIC);
    }
    uint32_t version = read_u32(head + 4);
    if (version != 1 && version != 2) {
        return ferryi_fail(FERRY_BAD_DATA, "%s has version %u, expected 1 (uint16) or 2 (uint32)", path, version);
    }
    int32_t count;
    uint32_t bits = read_u32(head + 8);
    memcpy(&count, &bits, sizeof count);
    d->token_bytes = version == 1 ? 2 : 4;
    d->token_count = count;
    int64_t found = d->tokens.bytes - TOKENS_HEADER_BYTES;
    if (count < 0 || found != (int64_t)count * d->token_bytes) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: %d tokens of %d bytes do not match the %lld bytes after the header",
                           path, count, d->token_bytes, (long long)found);
    }
    return FERRY_OK;
}

/* needs: the input, an open tokens.bin   fills: labels, buffer   keeps: the input   spoils: nothing */
static ferry_status tokens_source(const ferry_data *d, source *s)
{
    const ferry_tensor *t = &s->input;
    char shape[FERRYI_SHAPE_TEXT];
    ferryi_shape_text(shape, t);
    if ((t->dtype != FERRY_I64 && t->dtype != FERRY_I32) || t->rank != 2) {
        return ferryi_fail(FERRY_BAD_DATA, "%s gives i64 or i32 [batch, seq], input '%s' is %s", d->tokens_path,
                           t->name, shape);
    }
    if (t->dim[1] >= d->token_count) {
        return ferryi_fail(FERRY_BAD_DATA, "%s holds %lld tokens, input '%s' %s needs rows of seq + 1", d->tokens_path,
                           (long long)d->token_count, t->name, shape);
    }
    s->labels = strcmp(t->name, "labels") == 0;
    return FERRY_OK;
}

static ferry_status tokens_fill(const ferry_data *d, const source *s, int64_t step)
{
    int64_t batch = s->input.dim[0], seq = s->input.dim[1];
    int64_t rows = d->token_count / (seq + 1); /* below 2^31, and so are the factors below */
    for (int64_t b = 0; b < batch; b++) {
        int64_t row = ((step % rows) * (batch % rows) + b % rows) % rows;
        int64_t first = row * (seq + 1) + (s->labels ? 1 : 0);
        const uint8_t *from = d->tokens.at + TOKENS_HEADER_BYTES + first * d->token_bytes;
        char *to = (char *)s->buffer + (size_t)(b * seq) * ferry_dtype_bytes(s->input.dtype);
        ferry_status status = ferry_convert(to, s->input.dtype, from, d->token_bytes == 2 ? FERRY_U16 : FERRY_U32, seq);
        if (status != FERRY_OK) {
            return ferryi_fail(status, "%s: row %lld: %s", d->tokens_path, (long long)row, ferry_error());
        }
    }
    return FERRY_OK;
}

/* ---- .npy ------------------------------------------------------------------------------------------------------ */

static bool convertible(ferry_dtype from, ferry_dtype to)
{
    if (ferryi_is_float(from) != ferryi_is_float(to)) {
        return false;
    }
    if (!ferryi_is_float(from) || from == to) {
        return true; /* whole numbers: each value is checked when it is read */
    }
    return ferry_dtype_bytes(to) > ferry_dtype_bytes(from) || (from == FERRY_F32 && ferry_dtype_bytes(to) == 2);
}

/* needs: the input, the path   fills: npy, steps   keeps: the input   spoils: nothing */
static ferry_status npy_source(source *s)
{
    ferry_status status = ferry_npy_open(s->path, &s->npy);
    if (status != FERRY_OK) {
        return status;
    }
    const ferry_tensor *file = ferry_npy_tensor(s->npy), *t = &s->input;
    char have[FERRYI_SHAPE_TEXT], want[FERRYI_SHAPE_TEXT];
    ferryi_shape_text(have, file);
    ferryi_shape_text(want, t);
    bool fits = file->rank == t->rank + 1;
    for (int i = 0; i < t->rank && fits; i++) {
        fits = file->dim[i + 1] == t->dim[i];
    }
    if (!fits || !convertible(file->dtype, t->dtype)) {
        return ferryi_fail(FERRY_BAD_DATA, "%s is %s, expected one more axis in front of %s: [steps, ...]%s", s->path,
                           have, want,
                           fits && file->dtype == FERRY_F64 && ferryi_is_float(t->dtype) ? "; save it as float32" : "");
    }
    if (file->dim[0] == 0) {
        return ferryi_fail(FERRY_BAD_DATA, "%s is %s: it holds no step", s->path, have);
    }
    s->steps = file->dim[0];
    return FERRY_OK;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* The file behind a path: 1 there, 0 not, -1 an error (recorded). A fifo or a folder is there: opening it says what is
 * wrong. */
static int exists(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0) {
        return 1;
    }
    if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG) {
        return 0;
    }
    ferryi_fail(FERRY_FAILED, "%s: %s", path, strerror(errno));
    return -1;
}

/* Names come from the model. One that leads out of the folder is refused. */
static bool leads_out(const char *name)
{
    size_t n = strlen(name);
    return n == 0 || name[0] == '/' || strncmp(name, "../", 3) == 0 || strstr(name, "/../") != NULL;
}

static char *join(const char *dir, const char *name, const char *suffix)
{
    size_t size = strlen(dir) + strlen(name) + strlen(suffix) + 2;
    char *path = malloc(size);
    if (path != NULL) {
        snprintf(path, size, "%s/%s%s", dir, name, suffix);
    }
    return path;
}

static ferry_status source_open(ferry_data *d, const char *dir, const ferry_tensor *input, source *s)
{
    char name[FERRYI_NAME_TEXT];
    int64_t bytes = ferry_tensor_bytes(input);
    if (input->name == NULL || leads_out(input->name) || bytes < 0) {
        return ferryi_fail(FERRY_USAGE, "input '%s' has an impossible name, type or shape",
                           ferryi_name_text(name, input->name != NULL ? input->name : ""));
    }
    s->input = *input;
    s->input.data = NULL;
    s->batch_bytes = bytes;
    s->input.name = strdup(input->name);
    s->path = join(dir, input->name, ".npy");
    if (s->input.name == NULL || s->path == NULL) {
        return ferryi_fail(FERRY_FAILED, "out of memory");
    }
    bool tokens_can = strcmp(input->name, "input_ids") == 0 || strcmp(input->name, "labels") == 0;
    int npy = exists(s->path), tokens = tokens_can ? exists(d->tokens_path) : 0;
    ferry_status status = FERRY_OK;
    if (npy < 0 || tokens < 0) {
        return FERRY_FAILED;
    }
    if (npy > 0 && tokens > 0) {
        return ferryi_fail(FERRY_BAD_DATA, "both %s and %s give input '%s': remove one", s->path, d->tokens_path,
                           ferryi_name_text(name, input->name));
    }
    if (npy == 0 && tokens == 0) {
        return ferryi_fail(FERRY_USAGE, "input '%s' needs %s%s%s: no such file", ferryi_name_text(name, input->name),
                           s->path, tokens_can ? " or " : "", tokens_can ? d->tokens_path : "");
    }
    if (npy > 0) {
        status = npy_source(s);
    } else {
        status = d->have_tokens ? FERRY_OK : tokens_open(d);
        if (status == FERRY_OK) {
            status = tokens_source(d, s);
        }
    }
    bool slices = status == FERRY_OK && s->npy != NULL && ferry_npy_tensor(s->npy)->dtype == input->dtype;
    if (status == FERRY_OK && !slices) {
        s->buffer = calloc(1, bytes > 0 ? (size_t)bytes : 1);
        if (s->buffer == NULL) {
            status = ferryi_fail(FERRY_FAILED, "input '%s': out of memory for %lld bytes",
                                 ferryi_name_text(name, input->name), (long long)bytes);
        }
    }
    return status;
}

ferry_status ferry_data_open(const char *dir, const ferry_tensor *inputs, int count, ferry_data **out)
{
    *out = NULL;
    if (dir == NULL || count < 0 || (count > 0 && inputs == NULL)) {
        return ferryi_fail(FERRY_USAGE, "ferry_data_open: no folder or no inputs were given");
    }
    struct stat st;
    if (stat(dir, &st) != 0) {
        return ferryi_fail(FERRY_USAGE, "the data folder %s: %s", dir, strerror(errno));
    }
    if (!S_ISDIR(st.st_mode)) {
        return ferryi_fail(FERRY_USAGE, "%s is not a folder of training data", dir);
    }
    ferry_data *d = calloc(1, sizeof *d);
    if (d != NULL) {
        d->source = calloc((size_t)count + 1, sizeof *d->source);
        d->tokens_path = join(dir, "tokens", ".bin");
    }
    if (d == NULL || d->source == NULL || d->tokens_path == NULL) {
        ferry_data_close(d);
        return ferryi_fail(FERRY_FAILED, "out of memory");
    }
    for (int i = 0; i < count; i++) {
        d->count = i + 1;
        ferry_status status = source_open(d, dir, &inputs[i], &d->source[i]);
        if (status != FERRY_OK) {
            ferry_data_close(d);
            return status;
        }
    }
    *out = d;
    return FERRY_OK;
}

void ferry_data_close(ferry_data *d)
{
    if (d == NULL) {
        return;
    }
    for (int i = 0; i < d->count; i++) {
        source *s = &d->source[i];
        ferry_npy_close(s->npy);
        free((char *)(uintptr_t)s->input.name);
        free(s->path);
        free(s->buffer);
    }
    ferryi_map_close(&d->tokens);
    free(d->tokens_path);
    free(d->source);
    free(d);
}

/* ---- batches --------------------------------------------------------------------------------------------------- */

ferry_status ferry_data_batch(ferry_data *d, int64_t step, const void **out)
{
    if (d == NULL || step < 0 || (d->count > 0 && out == NULL)) {
        return ferryi_fail(FERRY_USAGE, "ferry_data_batch: no data, no output or step %lld", (long long)step);
    }
    for (int i = 0; i < d->count; i++) {
        out[i] = NULL;
    }
    for (int i = 0; i < d->count; i++) {
        source *s = &d->source[i];
        ferry_status status = FERRY_OK;
        if (s->npy == NULL) {
            status = tokens_fill(d, s, step);
        } else {
            const ferry_tensor *file = ferry_npy_tensor(s->npy);
            int64_t elements = s->batch_bytes / (int64_t)ferry_dtype_bytes(s->input.dtype), at = step % s->steps;
            const char *slice = (const char *)file->data + at * elements * (int64_t)ferry_dtype_bytes(file->dtype);
            if (s->buffer == NULL) {
                out[i] = slice;
                continue;
            }
            status = ferry_convert(s->buffer, s->input.dtype, slice, file->dtype, elements);
            if (status != FERRY_OK) {
                status = ferryi_fail(status, "%s: step %lld: %s", s->path, (long long)at, ferry_error());
            }
        }
        if (status != FERRY_OK) {
            for (int j = 0; j < d->count; j++) {
                out[j] = NULL;
            }
            return status;
        }
        out[i] = s->buffer;
    }
    return FERRY_OK;
}
