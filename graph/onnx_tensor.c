/* onnx_tensor.c - a TensorProto on the wire to a Value with dense data.
 *
 * The same tensor can be stored in four ways: raw_data, a typed list, an external file, or not at all when it has no
 * elements. raw_data is used where it lies in the mapped file when its address is a multiple of the element's size
 * (code that reads a float through a pointer may rely on that); protobuf aligns nothing, so most are copied once. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "graph/onnx_wire.h"

bool dtype_from_onnx(int64_t number, ferry_dtype *out)
{
    static const signed char map[] = {-1,        FERRY_F32, FERRY_U8, FERRY_I8,   FERRY_U16, FERRY_I16,
                                      FERRY_I32, FERRY_I64, -1,       FERRY_BOOL, FERRY_F16, FERRY_F64,
                                      FERRY_U32, FERRY_U64, -1,       -1,         FERRY_BF16};
    if (number < 0 || number >= (int64_t)sizeof map || map[number] < 0)
        return false;
    *out = (ferry_dtype)map[number];
    return true;
}

const char *onnx_dtype_name(int64_t number)
{
    ferry_dtype t;
    if (dtype_from_onnx(number, &t))
        return ferry_dtype_name(t);
    switch (number) {
    case 0:
        return "none";
    case 8:
        return "string";
    case 14:
        return "complex64";
    case 15:
        return "complex128";
    case 17:
    case 18:
    case 19:
    case 20:
        return "8-bit float";
    case 21:
    case 22:
        return "4-bit integer";
    default:
        return "unknown";
    }
}

/* The typed list that belongs to the element type; elements of at most 32 bits share int32_data. */
static size_t typed_count(const Onnx__TensorProto *t, ferry_dtype type)
{
    switch (type) {
    case FERRY_F32:
        return t->n_float_data;
    case FERRY_F64:
        return t->n_double_data;
    case FERRY_I64:
        return t->n_int64_data;
    case FERRY_U64:
    case FERRY_U32:
        return t->n_uint64_data;
    default:
        return t->n_int32_data;
    }
}

static void typed_copy(const Onnx__TensorProto *t, ferry_dtype type, void *out, size_t n)
{
    switch (type) {
    case FERRY_F32:
        memcpy(out, t->float_data, n * 4);
        break;
    case FERRY_F64:
        memcpy(out, t->double_data, n * 8);
        break;
    case FERRY_I64:
        memcpy(out, t->int64_data, n * 8);
        break;
    case FERRY_U64:
        memcpy(out, t->uint64_data, n * 8);
        break;
    case FERRY_U32:
        for (size_t i = 0; i < n; i++)
            ((uint32_t *)out)[i] = (uint32_t)t->uint64_data[i];
        break;
    case FERRY_I32:
        memcpy(out, t->int32_data, n * 4);
        break;
    case FERRY_BOOL:
        for (size_t i = 0; i < n; i++)
            ((uint8_t *)out)[i] = t->int32_data[i] != 0;
        break;
    default:
        if (ferry_dtype_bytes(type) == 1)
            for (size_t i = 0; i < n; i++)
                ((uint8_t *)out)[i] = (uint8_t)t->int32_data[i];
        else
            for (size_t i = 0; i < n; i++)
                ((uint16_t *)out)[i] = (uint16_t)t->int32_data[i];
        break;
    }
}

/* Type and shape; *bytes is the size of dense data. */
static Status tensor_shape(Diag *d, Model *m, const char *where, const Onnx__TensorProto *t, Value *out, int64_t *bytes)
{
    if (!dtype_from_onnx(t->data_type, &out->dtype))
        return diag_fail(d, ST_MODEL, "%s: %s: element type %s (%d) is not supported", m->path, where,
                         onnx_dtype_name(t->data_type), (int)t->data_type);
    if (t->n_dims > MAX_RANK)
        return diag_fail(d, ST_MODEL, "%s: %s has %zu dimensions; at most %d are supported", m->path, where, t->n_dims,
                         MAX_RANK);
    out->rank = (int)t->n_dims;
    *bytes = (int64_t)ferry_dtype_bytes(out->dtype);
    bool empty = false, overflow = false;
    for (size_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] < 0)
            return diag_fail(d, ST_MODEL, "%s: %s: dimension %zu is %lld", m->path, where, i, (long long)t->dims[i]);
        out->dim[i] = out->data_dim[i] = t->dims[i];
        empty = empty || t->dims[i] == 0;
        overflow = overflow || mul_overflows_i64(*bytes, t->dims[i], bytes);
    }
    if (empty)
        *bytes = 0;
    else if (overflow)
        return diag_fail(d, ST_MODEL, "%s: %s: its shape has more elements than 64 bits can count", m->path, where);
    return ST_OK;
}

/* Lets go of the pages of a mapped file that were copied, or weights would count twice while importing. They can still
 * be read: from the file again. */
static void drop_pages(const uint8_t *at, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)at + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)at + size) / page * page;
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

static Status tensor_raw(Diag *d, Model *m, const char *where, const uint8_t *raw, size_t raw_size, bool mapped,
                         int64_t bytes, Value *out)
{
    if ((int64_t)raw_size != bytes)
        return diag_fail(d, ST_MODEL, "%s: %s: raw_data has %zu bytes, the shape needs %lld", m->path, where, raw_size,
                         (long long)bytes);
    if (mapped && out->dtype != FERRY_BOOL && (uintptr_t)raw % ferry_dtype_bytes(out->dtype) == 0) {
        out->data = raw;
        return ST_OK;
    }
    uint8_t *copy = arena_alloc(m->arena, raw_size, 1);
    if (!copy)
        return diag_oom(d);
    if (raw_size)
        memcpy(copy, raw, raw_size);
    if (mapped)
        drop_pages(raw, raw_size);
    if (out->dtype == FERRY_BOOL) /* any other byte would be no valid bool to C */
        for (size_t i = 0; i < raw_size; i++)
            copy[i] = copy[i] != 0;
    out->data = copy;
    return ST_OK;
}

static Status tensor_fill(Diag *d, Model *m, const char *where, const Onnx__TensorProto *t, const uint8_t *raw,
                          size_t raw_size, bool allow_missing, Value *out)
{
    int64_t bytes;
    char label[400];
    snprintf(label, sizeof label, "%s \"%.300s\"", where, t->name ? t->name : "");
    if (!t->name || !t->name[0])
        snprintf(label, sizeof label, "%s", where);
    TRY(tensor_shape(d, m, label, t, out, &bytes));
    out->name = arena_strdup(m->arena, t->name ? t->name : "");
    if (!out->name)
        return diag_oom(d);
    if (t->data_location == 1)
        return tensor_external(d, m, label, t, bytes, allow_missing, out);
    if (t->data_location != 0)
        return diag_fail(d, ST_MODEL, "%s: %s: data_location %d is unknown", m->path, label, (int)t->data_location);
    if (raw)
        return tensor_raw(d, m, label, raw, raw_size, true, bytes, out);
    if (t->has_raw_data)
        return tensor_raw(d, m, label, t->raw_data.data, t->raw_data.len, false, bytes, out);
    int64_t count = bytes / (int64_t)ferry_dtype_bytes(out->dtype);
    size_t n = typed_count(t, out->dtype);
    if ((int64_t)n != count)
        return diag_fail(d, ST_MODEL, "%s: %s: its data has %zu elements, the shape needs %lld", m->path, label, n,
                         (long long)count);
    void *data = arena_alloc(m->arena, n, ferry_dtype_bytes(out->dtype));
    if (!data)
        return diag_oom(d);
    if (n)
        typed_copy(t, out->dtype, data, n);
    out->data = data;
    return ST_OK;
}

Status tensor_decode(Diag *d, Model *m, const char *where, const uint8_t *bytes, size_t size, bool allow_missing,
                     Value *out)
{
    /* protobuf messages concatenate: the fields before and after raw_data, one behind the other, are the same tensor
     * without its bytes. The last raw_data counts. */
    const uint8_t *raw = NULL;
    size_t raw_size = 0, raw_fields = 0;
    WireField f;
    for (Wire w = {bytes, bytes + size, NULL}; wire_next(&w, &f);)
        if (f.number == 9) {
            raw = f.at;
            raw_size = f.size;
            raw_fields += (size_t)(f.at + f.size - f.from);
        }
    uint8_t *rest = base_alloc(size - raw_fields);
    if (!rest)
        return diag_oom(d);
    size_t n = 0;
    for (Wire w = {bytes, bytes + size, NULL}; wire_next(&w, &f);)
        if (f.number != 9) {
            memcpy(rest + n, f.from, (size_t)(f.at + f.size - f.from));
            n += (size_t)(f.at + f.size - f.from);
        }
    Onnx__TensorProto *t = (Onnx__TensorProto *)unpack(&onnx__tensor_proto__descriptor, rest, n);
    base_free(rest);
    if (!t)
        return diag_oom(d);
    Status status = tensor_fill(d, m, where, t, raw, raw_size, allow_missing, out);
    unpack_free(&t->base);
    return status;
}
