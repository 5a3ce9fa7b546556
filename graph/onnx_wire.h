/* onnx_wire.h - reading ONNX files: the wire format of protobuf, the check before unpacking, tensors.
 *
 * A file is mapped, scanned once (onnx_scan) and then walked field by field on the wire. Only small messages (a node, a
 * value's type, a tensor without its bytes) are unpacked by protobuf-c, one at a time, so that memory stays near the
 * size of the file: protobuf-c alone would copy every weight. */
#ifndef FERRY_GRAPH_ONNX_WIRE_H
#define FERRY_GRAPH_ONNX_WIRE_H

#include <protobuf-c/protobuf-c.h>

#include "graph/model.h"
#include "onnx.pb-c.h"

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

/* One field of a message as it lies in the file. */
typedef struct WireField {
    uint32_t number;
    int type;            /* WIRE_* */
    uint64_t value;      /* WIRE_VARINT */
    const uint8_t *at;   /* payload: of WIRE_BYTES its content, else the value's bytes */
    size_t size;         /* of the payload */
    const uint8_t *from; /* the field's tag: [from, at + size) is the whole field */
} WireField;

typedef struct Wire {
    const uint8_t *at, *end;
    const char *error; /* NULL, or what is wrong at `at` */
} Wire;

/* Reads the next field; false at the end of the message and on an error. */
bool wire_next(Wire *w, WireField *out);

/* Walks the whole file by the message descriptors, as protobuf-c would, without allocating: every length lies inside
 * its message, nesting and the number of messages are bounded, and so is the memory that unpacking will take. ST_MODEL
 * with the byte offset otherwise. After it, walking and unpacking any part cannot fail but for lack of memory. */
Status onnx_scan(Diag *d, const char *path, const uint8_t *bytes, size_t size);

/* The model file and its external data files, read only; Model owns the list and unmaps them. */
struct MappedFile {
    const char *path; /* real path, in the model's arena */
    const uint8_t *bytes;
    size_t size;
};
/* Maps a regular file; empty ones give bytes != NULL. *missing (may be NULL) is set instead of an error when it is not
 * there; else that is ST_USAGE. */
Status model_map(Diag *d, Model *m, const char *path, bool *missing, MappedFile *out);

/* protobuf-c with a bound: a message unpacked from n bytes may not take more than the scan's limit. The result lives in
 * heap memory until unpack_free; NULL when it does not fit. */
ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size);
void unpack_free(ProtobufCMessage *message);

/* Decodes a TensorProto on the wire into name, dtype, rank, dim and data of *out (kind and producer are left alone).
 * The data is in the model's arena, or in the mapped file where that is aligned. `where` names it in errors. External
 * data: a relative path that stays below the model's folder, a regular file; see onnx_external.c. */
Status tensor_decode(Diag *d, Model *m, const char *where, const uint8_t *bytes, size_t size, bool allow_missing,
                     Value *out);
/* Resolves TensorProto.external_data: data and data_missing of *out, whose type and shape are set. */
Status tensor_external(Diag *d, Model *m, const char *where, const Onnx__TensorProto *t, int64_t bytes,
                       bool allow_missing, Value *out);
/* ONNX's number of an element type; false when ferryc has no such type (strings, complex numbers, 8-bit floats). */
bool dtype_from_onnx(int64_t number, ferry_dtype *out);
const char *onnx_dtype_name(int64_t number); /* for errors: "string", "complex64", "type 40" */

#endif
