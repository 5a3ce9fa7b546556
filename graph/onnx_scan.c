/* onnx_scan.c - bounds on an ONNX file before anything of it is unpacked.
 *
 * A protobuf message is a row of fields: a varint tag (field number * 8 + wire type), then a varint, 4 or 8 bytes, or a
 * length and that many bytes; a sub-message is a field of the last kind. protobuf-c unpacks sub-messages by recursion
 * and allocates a structure for each, whatever the input says: 30 KB of nested sub-graphs overflow the stack, 8 MB of
 * empty nodes take 600 MB. So the file is walked first, with the descriptors that protobuf-c itself uses, and nothing
 * is allocated.
 *
 * needs: mapped bytes   fills: nothing   keeps: everything   spoils: nothing */
#include <string.h>

#include "graph/onnx_wire.h"

enum {
    MAX_DEPTH = 48, /* messages inside messages; a sub-graph takes three: node, attribute, graph */
    MAX_MESSAGES = 4 << 20,
    UNKNOWN_FIELD_BYTES = 48, /* protobuf-c keeps unknown fields, each with a record */
    ALLOCATION_BYTES = 16,    /* malloc's own share */
};
static const int64_t MAX_UNPACKED_BYTES = (int64_t)1 << 30;

static bool wire_varint(Wire *w, uint64_t *out)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (w->at == w->end) {
            w->error = "the file is cut off inside a number";
            return false;
        }
        uint8_t byte = *w->at++;
        if (shift == 63 && byte > 1)
            break;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *out = value;
            return true;
        }
    }
    w->error = "a number is longer than 64 bits";
    return false;
}

bool wire_next(Wire *w, WireField *out)
{
    uint64_t tag, length;
    if (w->error || w->at == w->end)
        return false;
    out->from = w->at;
    if (!wire_varint(w, &tag))
        return false;
    out->type = (int)(tag & 7);
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) {
        w->error = "no field has this number";
        return false;
    }
    out->number = (uint32_t)(tag >> 3);
    out->value = 0;
    out->at = w->at;
    switch (out->type) {
    case WIRE_VARINT:
        if (!wire_varint(w, &out->value))
            return false;
        out->size = (size_t)(w->at - out->at);
        return true;
    case WIRE_64:
    case WIRE_32:
        length = out->type == WIRE_64 ? 8 : 4;
        break;
    case WIRE_BYTES:
        if (!wire_varint(w, &length))
            return false;
        out->at = w->at;
        break;
    default:
        w->error = "no field has this wire type";
        return false;
    }
    if (length > (uint64_t)(w->end - w->at)) {
        w->error = "a field reaches beyond the end of its message (is the file complete?)";
        return false;
    }
    out->size = (size_t)length;
    w->at += length;
    return true;
}

typedef struct Scan {
    Diag *d;
    const char *path;
    const uint8_t *start;
    int64_t messages, unpacked_bytes;
} Scan;

static Status scan_fail(Scan *s, const uint8_t *at, const char *what)
{
    diag_fail(s->d, ST_MODEL, "%s: not a valid ONNX model: byte %lld: %s", s->path, (long long)(at - s->start), what);
    return diag_hint(s->d, "export the model again, or copy it again if it was cut off");
}

/* Bytes of one element in memory and its wire type; 0 for strings, bytes and messages. */
static int64_t element_bytes(ProtobufCType type, int *wire)
{
    switch (type) {
    case PROTOBUF_C_TYPE_FLOAT:
        *wire = WIRE_32;
        return 4;
    case PROTOBUF_C_TYPE_DOUBLE:
        *wire = WIRE_64;
        return 8;
    case PROTOBUF_C_TYPE_INT32:
        *wire = WIRE_VARINT;
        return 4;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
        *wire = WIRE_VARINT;
        return 8;
    default:
        *wire = WIRE_BYTES;
        return 0;
    }
}

/* A packed list: `size` bytes of numbers one after the other. */
static Status scan_packed(Scan *s, const WireField *f, int wire, int64_t each)
{
    int64_t count = 0;
    if (wire == WIRE_VARINT) {
        Wire w = {f->at, f->at + f->size, NULL};
        for (uint64_t ignored; w.at < w.end; count++)
            if (!wire_varint(&w, &ignored))
                return scan_fail(s, w.at, w.error);
    } else {
        if (f->size % (size_t)each != 0)
            return scan_fail(s, f->at, "a list of numbers ends inside a number");
        count = (int64_t)f->size / each;
    }
    s->unpacked_bytes += count * each;
    return ST_OK;
}

static Status scan_message(Scan *s, const ProtobufCMessageDescriptor *type, const uint8_t *at, size_t size, int depth)
{
    if (depth > MAX_DEPTH)
        return scan_fail(s, at, "sub-graphs are nested too deeply");
    if (++s->messages > MAX_MESSAGES)
        return scan_fail(s, at, "too many nodes, attributes and tensors (4 million of them are read)");
    s->unpacked_bytes += (int64_t)type->sizeof_message + (int64_t)sizeof(void *) + ALLOCATION_BYTES;

    Wire w = {at, at + size, NULL};
    WireField f;
    uint64_t seen = 0;
    while (wire_next(&w, &f)) {
        const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(type, f.number);
        if (!field) {
            s->unpacked_bytes += UNKNOWN_FIELD_BYTES + (int64_t)f.size;
        } else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            uint64_t bit = (uint64_t)1 << (field - type->fields);
            if (f.type != WIRE_BYTES)
                return scan_fail(s, f.from, "a message is expected here");
            /* The format allows it and means "merge them"; no exporter writes it. */
            if (field->label != PROTOBUF_C_LABEL_REPEATED && (seen & bit))
                return scan_fail(s, f.from, "a part that can only occur once occurs twice");
            seen |= bit;
            TRY(scan_message(s, field->descriptor, f.at, f.size, depth + 1));
        } else {
            int wire;
            int64_t each = element_bytes(field->type, &wire);
            if (f.type == wire) {
                /* raw_data is not unpacked where it is large: see tensor_decode */
                bool raw = type == &onnx__tensor_proto__descriptor && f.number == 9;
                s->unpacked_bytes += each ? each : ALLOCATION_BYTES + 16 + (raw ? 0 : (int64_t)f.size);
            } else if (f.type == WIRE_BYTES && each && field->label == PROTOBUF_C_LABEL_REPEATED) {
                TRY(scan_packed(s, &f, wire, each));
            } else {
                return scan_fail(s, f.from, "a field has the wrong wire type");
            }
        }
        if (s->unpacked_bytes > MAX_UNPACKED_BYTES)
            return scan_fail(s, f.from, "the graph would take more than 1 GiB of memory beside its weights");
    }
    return w.error ? scan_fail(s, w.at, w.error) : ST_OK;
}

Status onnx_scan(Diag *d, const char *path, const uint8_t *bytes, size_t size)
{
    Scan s = {.d = d, .path = path, .start = bytes};
    if (size == 0)
        return scan_fail(&s, bytes, "the file is empty");
    return scan_message(&s, &onnx__model_proto__descriptor, bytes, size, 1);
}

/* ---- unpacking, after the scan ------------------------------------------------------------------ */

/* The allocator's budget: what is left of it travels in allocator_data. Frees give nothing back, since every message is
 * freed as a whole. */
static void *bounded_alloc(void *budget, size_t size)
{
    size_t *left = budget;
    if (size > *left)
        return NULL;
    *left -= size;
    return base_alloc(size ? size : 1);
}

static void bounded_free(void *budget, void *p)
{
    (void)budget;
    base_free(p);
}

ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size)
{
    size_t left = (size_t)MAX_UNPACKED_BYTES + 2 * size;
    ProtobufCAllocator allocator = {bounded_alloc, bounded_free, &left};
    return protobuf_c_message_unpack(type, &allocator, size, bytes);
}

void unpack_free(ProtobufCMessage *message)
{
    ProtobufCAllocator allocator = {bounded_alloc, bounded_free, NULL};
    if (message)
        protobuf_c_message_free_unpacked(message, &allocator);
}
