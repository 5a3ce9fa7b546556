/* onnx_export.c - trained weights back into a copy of their ONNX file.
 *
 * needs: a model file, tensors by initializer   fills: a new file   keeps: every byte that does not have to change
 *
 * The file is walked on the wire and the copy described as a list of pieces: ranges of the mapped file, a few bytes
 * made up here (lengths, external data entries), and tensors, which are converted only while they are written. A
 * message in which nothing changes is one piece, whatever it contains. The length of a message stands before it on the
 * wire, so the list is made first, lengths are filled in from the inside out, and then everything is written in one go.
 */
#include "graph/onnx_export.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "graph/onnx_wire.h"

enum { MODEL_METADATA = 14, TENSOR_RAW = 9, TENSOR_EXTERNAL = 13, TENSOR_LOCATION = 14, GRAPH_INITIALIZER = 5 };
enum { KEEP_INLINE_BYTES = 1024, DATA_ALIGN = 4096, BLOCK_BYTES = 1 << 20, HASH_DIGITS = 32 };
static const char EXPORT_KEY[] = "ferryc.export";

/* Values of one initializer: `from`, converted to `to`, transposed when it says so. */
typedef struct Fill {
    const char *name;
    const ferry_tensor *from;
    ferry_dtype to;
    bool transposed;
    int64_t count;
} Fill;

typedef struct Piece {
    const void *at; /* NULL: the fill */
    int64_t size;
    Fill fill;
} Piece;

typedef struct Export {
    Diag *d;
    Arena *a;
    const ExportOptions *o;
    Model *m;     /* only its arena, path and mapped files are used */
    bool outside; /* weights go to the data file */
    const char *data_name;
    VEC(Piece) piece, data;
    int64_t data_bytes;
    int changes; /* tensors that are not copied as they are */
    bool *found; /* by weight */
    const uint8_t *file;
    Model *imported; /* NULL until a weight is not found in the main graph: knows where those of branches are */
    ExportReport report;
} Export;

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static Status add_bytes(Export *x, const void *at, size_t size)
{
    Piece *last = x->piece.count ? &x->piece.at[x->piece.count - 1] : NULL;
    if (last && last->at && (const char *)last->at + last->size == (const char *)at) {
        last->size += (int64_t)size;
        return ST_OK;
    }
    Piece *p = VEC_PUSH(&x->piece);
    if (!p)
        return diag_oom(x->d);
    *p = (Piece){.at = at, .size = (int64_t)size};
    return ST_OK;
}

static size_t put_varint(uint8_t *to, uint64_t v)
{
    size_t n = 0;
    for (; v >= 0x80; v >>= 7)
        to[n++] = (uint8_t)(v | 0x80);
    to[n++] = (uint8_t)v;
    return n;
}

/* Begins a message or byte string; close_field fills in its length. */
static Status open_field(Export *x, uint32_t number, int *out)
{
    uint8_t *head = arena_alloc(x->a, 20, 1);
    Piece *p = head ? VEC_PUSH(&x->piece) : NULL;
    if (!p)
        return diag_oom(x->d);
    *p = (Piece){.at = head, .size = (int64_t)put_varint(head, (uint64_t)number << 3 | WIRE_BYTES)};
    *out = x->piece.count - 1;
    /* the next piece must not be taken for a continuation of this one */
    p = VEC_PUSH(&x->piece);
    if (!p)
        return diag_oom(x->d);
    *p = (Piece){.at = "", .size = 0};
    return ST_OK;
}

static void close_field(Export *x, int opened)
{
    int64_t size = 0;
    for (int i = opened + 1; i < x->piece.count; i++)
        size += x->piece.at[i].size;
    Piece *p = &x->piece.at[opened];
    p->size += (int64_t)put_varint((uint8_t *)(uintptr_t)p->at + p->size, (uint64_t)size);
}

static Status add_text_field(Export *x, uint32_t number, const char *text)
{
    int opened;
    TRY(open_field(x, number, &opened));
    TRY(add_bytes(x, text, strlen(text)));
    close_field(x, opened);
    return ST_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef struct Sink {
    Status (*take)(struct Sink *s, const void *bytes, size_t size);
    const uint8_t *expected; /* for comparing: what is left of the old values */
    bool same;
    Diag *d;
    FileWriter *file;
    XXH3_state_t *hash; /* NULL: not wanted */
} Sink;

static Status take_compare(Sink *s, const void *bytes, size_t size)
{
    s->same = s->same && memcmp(s->expected, bytes, size) == 0;
    s->expected += size;
    return ST_OK;
}

static Status take_write(Sink *s, const void *bytes, size_t size)
{
    if (s->hash)
        XXH3_128bits_update(s->hash, bytes, size);
    return file_writer_put(s->d, s->file, bytes, size);
}

/* Rounding to a smaller type may overflow to infinity, which no training wrote. */
static Status check_range(Export *x, const Fill *f, const void *from, const void *to, int64_t n, double *scratch)
{
    if (f->to == f->from->dtype)
        return ST_OK;
    ferry_convert(scratch, FERRY_F64, from, f->from->dtype, n);
    ferry_convert(scratch + n, FERRY_F64, to, f->to, n);
    for (int64_t i = 0; i < n; i++)
        if (isfinite(scratch[i]) && !isfinite(scratch[n + i]))
            return diag_fail(x->d, ST_MODEL, "%s: initializer \"%.300s\" has elements of type %s, which cannot hold %g",
                             x->m->path, f->name, ferry_dtype_name(f->to), scratch[i]);
    return ST_OK;
}

/* The values in blocks of rows. A transposed block is gathered from runs of its length in every row of the source. */
static Status fill_run(Export *x, const Fill *f, Sink *sink)
{
    size_t in = ferry_dtype_bytes(f->from->dtype), out = ferry_dtype_bytes(f->to);
    const char *from = f->from->data;
    int64_t cols = f->transposed ? f->from->dim[0] : 1, rows = f->count ? f->count / cols : 0;
    if (f->count == 0)
        return ST_OK;
    int64_t step = BLOCK_BYTES / (cols * (int64_t)in);
    if (step < 1)
        step = 1;
    if (step > rows)
        step = rows;
    char *gathered = base_alloc((size_t)(step * cols) * in);
    char *converted = base_alloc((size_t)(step * cols) * out);
    double *scratch = base_alloc((size_t)(step * cols) * 2 * sizeof *scratch);
    Status status = gathered && converted && scratch ? ST_OK : diag_oom(x->d);
    for (int64_t r = 0; r < rows && status == ST_OK; r += step) {
        int64_t n = rows - r < step ? rows - r : step;
        const char *block = from + (size_t)r * in;
        if (f->transposed) {
            for (int64_t c = 0; c < cols; c++)
                for (int64_t i = 0; i < n; i++)
                    memcpy(gathered + (size_t)(i * cols + c) * in, from + (size_t)(c * rows + r + i) * in, in);
            block = gathered;
        }
        if (ferry_convert(converted, f->to, block, f->from->dtype, n * cols) != FERRY_OK)
            status = diag_fail(x->d, ST_MODEL, "%s: initializer \"%.300s\": %s", x->m->path, f->name, ferry_error());
        if (status == ST_OK)
            status = check_range(x, f, block, converted, n * cols, scratch);
        if (status == ST_OK)
            status = sink->take(sink, converted, (size_t)(n * cols) * out);
    }
    base_free(gathered);
    base_free(converted);
    base_free(scratch);
    return status;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static bool is_float(ferry_dtype t)
{
    return t == FERRY_F32 || t == FERRY_F64 || t == FERRY_F16 || t == FERRY_BF16;
}

static void shape_text(char *to, size_t size, int rank, const int64_t *dim)
{
    size_t at = (size_t)snprintf(to, size, "[");
    for (int i = 0; i < rank && at < size; i++)
        at += (size_t)snprintf(to + at, size - at, "%s%lld", i ? ", " : "", (long long)dim[i]);
    if (at < size)
        snprintf(to + at, size - at, "]");
}

static Status fill_make(Export *x, const ExportWeight *w, const Value *v, Fill *out)
{
    const ferry_tensor *t = w->from;
    *out = (Fill){w->name, t, v->dtype, w->transposed, value_count(v)};
    bool same = v->rank == t->rank && (!w->transposed || t->rank == 2);
    for (int i = 0; i < v->rank && same; i++)
        same = v->dim[i] == t->dim[w->transposed ? 1 - i : i];
    if (!same) {
        char have[200], want[200];
        shape_text(have, sizeof have, t->rank, t->dim);
        shape_text(want, sizeof want, v->rank, v->dim);
        return diag_fail(x->d, ST_MODEL, "%s: initializer \"%.300s\" is %s, its new values are %s%s", x->m->path,
                         w->name, want, have, w->transposed ? " (transposed)" : "");
    }
    if (!is_float(v->dtype) || !is_float(t->dtype))
        return diag_fail(x->d, ST_MODEL, "%s: initializer \"%.300s\" is of type %s, its new values of type %s",
                         x->m->path, w->name, ferry_dtype_name(v->dtype), ferry_dtype_name(t->dtype));
    return ST_OK;
}

/* The values go to the data file, whose next tensor begins at a page of its own: that is how others map it. */
static Status add_outside(Export *x, const Piece *values)
{
    static const char zeros[DATA_ALIGN];
    const char *offset = arena_printf(x->a, "%lld", (long long)x->data_bytes);
    const char *length = arena_printf(x->a, "%lld", (long long)values->size);
    if (!offset || !length)
        return diag_oom(x->d);
    const char *entry[][2] = {{"location", x->data_name}, {"offset", offset}, {"length", length}};
    for (int i = 0; i < 3; i++) {
        int opened;
        TRY(open_field(x, TENSOR_EXTERNAL, &opened));
        TRY(add_text_field(x, 1, entry[i][0]));
        TRY(add_text_field(x, 2, entry[i][1]));
        close_field(x, opened);
    }
    static const uint8_t location[] = {TENSOR_LOCATION << 3 | WIRE_VARINT, 1};
    TRY(add_bytes(x, location, sizeof location));
    int64_t gap = (DATA_ALIGN - values->size % DATA_ALIGN) % DATA_ALIGN;
    Piece *p = VEC_PUSH(&x->data), *fill = p ? VEC_PUSH(&x->data) : NULL;
    if (!fill)
        return diag_oom(x->d);
    x->data.at[x->data.count - 2] = *values;
    *fill = (Piece){.at = zeros, .size = gap};
    x->data_bytes += values->size + gap;
    return ST_OK;
}

static bool is_data(const WireField *f)
{
    switch (f->number) {
    case 4: /* float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data */
    case 5:
    case 6:
    case 7:
    case TENSOR_RAW:
    case 10:
    case 11:
    case TENSOR_EXTERNAL:
    case TENSOR_LOCATION:
        return true;
    default:
        return false;
    }
}

/* A TensorProto with other values, its remaining fields in their order. Raw data stays where the values stood. */
static Status add_tensor(Export *x, const WireField *tensor, const Piece *values, bool outside)
{
    WireField f;
    bool placed = false;
    for (Wire w = {tensor->at, tensor->at + tensor->size, NULL}; wire_next(&w, &f);) {
        if (!is_data(&f)) {
            TRY(add_bytes(x, f.from, (size_t)(f.at + f.size - f.from)));
            continue;
        }
        if (placed)
            continue;
        placed = true;
        if (outside) {
            TRY(add_outside(x, values));
            continue;
        }
        int opened;
        TRY(open_field(x, TENSOR_RAW, &opened));
        Piece *p = VEC_PUSH(&x->piece);
        if (!p)
            return diag_oom(x->d);
        *p = *values;
        close_field(x, opened);
    }
    return ST_OK;
}

static bool is_external(const WireField *tensor)
{
    WireField f;
    bool external = false;
    for (Wire w = {tensor->at, tensor->at + tensor->size, NULL}; wire_next(&w, &f);)
        if (f.number == TENSOR_LOCATION)
            external = f.value == 1;
    return external;
}

/* The name of a TensorProto compared with one; the last of several counts. */
static int find_weight(const Export *x, const WireField *tensor)
{
    const WireField none = {0};
    WireField f, name = none;
    for (Wire w = {tensor->at, tensor->at + tensor->size, NULL}; wire_next(&w, &f);)
        if (f.number == 8)
            name = f;
    for (int i = 0; i < x->o->n_weight && name.from; i++)
        if (strlen(x->o->weight[i].name) == name.size && memcmp(x->o->weight[i].name, name.at, name.size) == 0)
            return i;
    return -1;
}

/* The same for an initializer of a branch, whose name in the file may be that of others. */
static int find_inner_weight(const Export *x, const WireField *tensor)
{
    const Model *m = x->imported;
    for (int v = 0; m && v < m->value.count; v++)
        for (int i = 0; m->value.at[v].file_at == (size_t)(tensor->at - x->file) && i < x->o->n_weight; i++)
            if (strcmp(x->o->weight[i].name, m->value.at[v].name) == 0)
                return i;
    return -1;
}

/* Adds the tensor's message unless it is to be copied as it is: *copy. `weight` -1: the old values. */
static Status rewrite_tensor(Export *x, const WireField *tensor, int weight, bool *copy)
{
    bool external = is_external(tensor);
    *copy = weight < 0 && !external;
    if (*copy)
        return ST_OK;
    Value v = {.producer = -1};
    TRY(tensor_decode(x->d, x->m, "tensor", tensor->at, tensor->size, true, &v));
    int64_t bytes = value_count(&v) * (int64_t)ferry_dtype_bytes(v.dtype);
    Piece values = {.at = v.data, .size = bytes};
    if (weight >= 0) {
        if (x->found[weight])
            return diag_fail(x->d, ST_MODEL, "%s: two initializers are named \"%.300s\"", x->m->path, v.name);
        x->found[weight] = true;
        TRY(fill_make(x, &x->o->weight[weight], &v, &values.fill));
        Sink sink = {.take = take_compare, .expected = v.data, .same = true};
        if (v.data)
            TRY(fill_run(x, &values.fill, &sink));
        bool same = v.data && sink.same;
        x->report.unchanged += same;
        x->report.changed += !same;
        *copy = same && !external && !(x->outside && bytes >= KEEP_INLINE_BYTES);
        if (*copy)
            return ST_OK;
        values.at = NULL;
    } else if (v.data_missing) {
        diag_fail(x->d, ST_MODEL, "%s: tensor \"%.300s\" is not a trained parameter, and its external data is missing",
                  x->m->path, v.name);
        return diag_hint(x->d, "put the file beside the model");
    }
    x->changes++;
    return add_tensor(x, tensor, &values, x->outside && bytes >= KEEP_INLINE_BYTES);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static bool is_export_entry(const WireField *entry)
{
    WireField f;
    for (Wire w = {entry->at, entry->at + entry->size, NULL}; wire_next(&w, &f);)
        if (f.number == 1 && f.size == strlen(EXPORT_KEY) && memcmp(f.at, EXPORT_KEY, f.size) == 0)
            return true;
    return false;
}

/* depth 0: the model; 1: its graph, whose initializers are the parameters. Branches may have some as well, and attributes
 * hold tensors whose data lies outside. The scan bounds the depth. */
static Status rewrite_message(Export *x, const ProtobufCMessageDescriptor *type, const uint8_t *at, size_t size,
                              int depth)
{
    WireField f;
    for (Wire w = {at, at + size, NULL}; wire_next(&w, &f);) {
        const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(type, f.number);
        const ProtobufCMessageDescriptor *inner =
            field && field->type == PROTOBUF_C_TYPE_MESSAGE ? field->descriptor : NULL;
        if (depth == 0 && f.number == MODEL_METADATA && f.type == WIRE_BYTES && is_export_entry(&f))
            continue;
        bool copy = true;
        int pieces = x->piece.count, opened = 0;
        if (inner == &onnx__tensor_proto__descriptor || inner == &onnx__graph_proto__descriptor ||
            inner == &onnx__node_proto__descriptor || inner == &onnx__attribute_proto__descriptor) {
            TRY(open_field(x, f.number, &opened));
            if (inner == &onnx__tensor_proto__descriptor) {
                bool initializer = type == &onnx__graph_proto__descriptor && f.number == GRAPH_INITIALIZER;
                int weight = !initializer ? -1 : depth == 1 ? find_weight(x, &f) : find_inner_weight(x, &f);
                TRY(rewrite_tensor(x, &f, weight, &copy));
            } else {
                int before = x->changes;
                TRY(rewrite_message(x, inner, f.at, f.size, depth + 1));
                copy = x->changes == before;
            }
        }
        if (!copy) {
            close_field(x, opened);
            continue;
        }
        x->piece.count = pieces; /* nothing changed in there: a range of the file */
        TRY(add_bytes(x, f.from, (size_t)(f.at + f.size - f.from)));
    }
    return ST_OK;
}

/* A model that cannot be imported has no branches that were trained. */
static bool import_again(Export *x)
{
    Diag quiet = {.quiet = true};
    const ModelOptions options = {.path = x->m->path, .allow_missing_data = true};
    return model_import(&quiet, x->a, &options, &x->imported) == ST_OK;
}

static Status describe(Export *x, const MappedFile *file, bool outside, int64_t *bytes)
{
    x->outside = outside;
    x->piece.count = x->data.count = 0;
    x->data_bytes = 0;
    x->report = (ExportReport){0};
    memset(x->found, 0, (size_t)x->o->n_weight * sizeof *x->found);
    TRY(rewrite_message(x, &onnx__model_proto__descriptor, file->bytes, file->size, 0));
    for (int i = 0; i < x->o->n_weight; i++)
        if (!x->found[i] && !x->imported && import_again(x))
            return describe(x, file, outside, bytes);
    for (int i = 0; i < x->o->n_weight; i++)
        if (!x->found[i])
            return diag_fail(x->d, ST_MODEL, "%s: has no initializer \"%.300s\"", x->m->path, x->o->weight[i].name);
    *bytes = 0;
    for (int i = 0; i < x->piece.count; i++)
        *bytes += x->piece.at[i].size;
    return ST_OK;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The last entry of a file: metadata_props { key: EXPORT_KEY value: HASH }. */
enum { MARK_BYTES = 2 + 2 + sizeof EXPORT_KEY - 1 + 2 + HASH_DIGITS };

static void mark_make(XXH3_state_t *hash, uint8_t mark[MARK_BYTES])
{
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(hash));
    uint8_t *at = mark;
    *at++ = MODEL_METADATA << 3 | WIRE_BYTES;
    *at++ = MARK_BYTES - 2;
    *at++ = 1 << 3 | WIRE_BYTES;
    *at++ = sizeof EXPORT_KEY - 1;
    memcpy(at, EXPORT_KEY, sizeof EXPORT_KEY - 1);
    at += sizeof EXPORT_KEY - 1;
    *at++ = 2 << 3 | WIRE_BYTES;
    *at++ = HASH_DIGITS;
    for (int i = 0; i < HASH_DIGITS; i++)
        *at++ = (uint8_t) "0123456789abcdef"[digest.digest[i / 2] >> (i % 2 ? 0 : 4) & 15];
}

static Status hash_open(Diag *d, XXH3_state_t **out)
{
    *out = XXH3_createState();
    return *out && XXH3_128bits_reset(*out) == XXH_OK ? ST_OK : diag_oom(d);
}

static Status is_ours(Export *x, const char *path, bool *out)
{
    *out = false;
    bool missing = false;
    MappedFile file;
    TRY(model_map(x->d, x->m, path, &missing, &file));
    if (missing || file.size <= MARK_BYTES)
        return ST_OK;
    XXH3_state_t *hash;
    Status status = hash_open(x->d, &hash);
    if (status == ST_OK) {
        uint8_t mark[MARK_BYTES];
        XXH3_128bits_update(hash, file.bytes, file.size - MARK_BYTES);
        mark_make(hash, mark);
        *out = memcmp(mark, file.bytes + file.size - MARK_BYTES, MARK_BYTES) == 0;
    }
    XXH3_freeState(hash);
    return status;
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Everything that was mapped so far is part of the model. */
static Status check_not_read(Export *x, const char *path)
{
    for (int i = 0; i < x->m->map.count; i++)
        if (same_file(path, x->m->map.at[i].path)) {
            diag_fail(x->d, ST_USAGE, "%s: belongs to the model that is exported, which stays as it is", path);
            return diag_hint(x->d, "write elsewhere with -o");
        }
    return ST_OK;
}

static Status check_target(Export *x, const char *path, bool ours)
{
    if (ours || x->o->force || !file_exists(path))
        return ST_OK;
    diag_fail(x->d, ST_USAGE, "%s: exists and was not written by ferryc export", path);
    return diag_hint(x->d, "-f replaces it; -o writes elsewhere");
}

static Status write_pieces(Export *x, FileWriter *file, const Piece *piece, int count, XXH3_state_t *hash)
{
    Sink sink = {.take = take_write, .d = x->d, .file = file, .hash = hash};
    for (int i = 0; i < count; i++)
        TRY(piece[i].at ? take_write(&sink, piece[i].at, (size_t)piece[i].size) : fill_run(x, &piece[i].fill, &sink));
    return ST_OK;
}

/* Both files are on the disk before either gets its name. */
static Status write_files(Export *x, const char *data_path, FileWriter *data, FileWriter *model, XXH3_state_t *hash)
{
    if (x->data_bytes) {
        TRY(file_writer_open(x->d, data_path, data));
        TRY(write_pieces(x, data, x->data.at, x->data.count, NULL));
        TRY(file_writer_sync(x->d, data));
    }
    uint8_t mark[MARK_BYTES];
    TRY(file_writer_open(x->d, x->o->out, model));
    TRY(write_pieces(x, model, x->piece.at, x->piece.count, hash));
    mark_make(hash, mark);
    TRY(file_writer_put(x->d, model, mark, sizeof mark));
    TRY(file_writer_sync(x->d, model));
    if (x->data_bytes)
        TRY(file_writer_commit(x->d, data));
    return file_writer_commit(x->d, model);
}

static Status run(Export *x)
{
    MappedFile file;
    bool ours = false;
    char hash[33];
    TRY(model_map(x->d, x->m, x->m->path, NULL, &file));
    x->file = file.bytes;
    hash_hex(file.bytes, file.size, hash);
    if (x->o->model_hash && strcmp(x->o->model_hash, hash) != 0) {
        diag_fail(x->d, ST_MODEL, "%s: is not the model that was trained: its hash is %s, expected %s", x->m->path,
                  hash, x->o->model_hash);
        return diag_hint(x->d, "emit the schedule again, or use --force when only details changed");
    }
    TRY(onnx_scan(x->d, x->m->path, file.bytes, file.size));

    const char *data_path = arena_printf(x->a, "%s.data", x->o->out);
    if (!data_path)
        return diag_oom(x->d);
    const char *slash = strrchr(data_path, '/');
    x->data_name = slash ? slash + 1 : data_path;
    int64_t bytes;
    TRY(describe(x, &file, false, &bytes));
    if (bytes + MARK_BYTES > x->o->inline_bytes)
        TRY(describe(x, &file, true, &bytes));
    if (bytes + MARK_BYTES > EXPORT_INLINE_BYTES)
        return diag_fail(x->d, ST_MODEL, "%s: takes more than 2 GiB even without its weights", x->o->out);
    x->report.bytes = bytes + MARK_BYTES;
    x->report.data_bytes = x->data_bytes;

    TRY(check_not_read(x, x->o->out));
    TRY(check_not_read(x, data_path));
    if (!x->o->force)
        TRY(is_ours(x, x->o->out, &ours));
    TRY(check_target(x, x->o->out, ours));
    if (x->data_bytes)
        TRY(check_target(x, data_path, ours));

    FileWriter *writer = base_alloc(2 * sizeof *writer);
    XXH3_state_t *state = NULL;
    Status status = writer ? hash_open(x->d, &state) : diag_oom(x->d);
    if (status == ST_OK)
        status = write_files(x, data_path, &writer[0], &writer[1], state);
    if (writer) {
        file_writer_abandon(&writer[0]);
        file_writer_abandon(&writer[1]);
    }
    XXH3_freeState(state);
    base_free(writer);
    return status;
}

Status onnx_export(Diag *d, Arena *a, const ExportOptions *options, ExportReport *report)
{
    *report = (ExportReport){0};
    Export x = {.d = d, .a = a, .o = options, .m = ARENA_NEW(a, Model, 1)};
    x.found = ARENA_NEW(a, bool, options->n_weight);
    if (!x.m || !x.found)
        return diag_oom(d);
    x.m->arena = a;
    x.m->path = arena_strdup(a, options->model);
    Status status = x.m->path ? run(&x) : diag_oom(d);
    if (status == ST_OK)
        *report = x.report;
    VEC_FREE(&x.piece);
    VEC_FREE(&x.data);
    model_close(x.imported);
    model_close(x.m);
    return status;
}
