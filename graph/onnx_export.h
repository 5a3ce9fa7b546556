/* onnx_export.h - trained weights back into a copy of their ONNX file. */
#ifndef FERRY_GRAPH_ONNX_EXPORT_H
#define FERRY_GRAPH_ONNX_EXPORT_H

#include "graph/model.h"

/* An initializer of the file and where its new values come from. Tied parameters give several of these the same `from`.
 * Those of an If's branches have the name that the import gives them. */
typedef struct ExportWeight {
    const char *name;
    const ferry_tensor *from; /* floating values of any type: the initializer keeps its own type */
    bool transposed;          /* the initializer is the transpose of `from` */
} ExportWeight;

typedef struct ExportOptions {
    const char *model, *out;
    const char *model_hash; /* that the model file must have; NULL: any */
    int n_weight;
    const ExportWeight *weight;
    int64_t inline_bytes; /* weights go to OUT.data when the file would be larger than this */
    bool force;           /* overwrite a file that is not ours */
} ExportOptions;

/* protobuf cannot hold more in one message. */
#define EXPORT_INLINE_BYTES ((int64_t)INT32_MAX)

typedef struct ExportReport {
    int changed, unchanged; /* initializers of the list, by whether their bytes differ from the file's */
    int64_t bytes;          /* of the ONNX file */
    int64_t data_bytes;     /* of OUT.data, 0 when there is none */
} ExportReport;

/* Everything but the values stays as it is, byte for byte: order, unknown fields, documentation. What was stored
 * outside of the model file comes along, into the copy or into OUT.data. The copy ends with one more metadata entry,
 * "ferryc.export", with the hash of all bytes before it: by that a later export knows that it may overwrite the file.
 * Written atomically. ST_USAGE: no such model; OUT exists and is not an export of ours, or is the model itself.
 * ST_MODEL: another model than model_hash says; an initializer is missing, has another shape, is not floating, or
 * cannot hold the new values (which are finite and would become infinite); external data of anything that is not in the
 * list is missing. */
Status onnx_export(Diag *d, Arena *a, const ExportOptions *options, ExportReport *report);

#endif
