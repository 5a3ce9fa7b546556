/* make.h - what the files of profiler/ share and the other stages do not see.
 *
 * A profile is made in two parts. The frame (names, sizes, how the model was imported) and the bytes that DHA moves
 * depend on the graph alone; the times come from a source: the host's clock or a device model. Both sources ask the
 * same questions of the graph, which this header answers: which nodes make a segment and phase, and which of their
 * arguments are parameters and gradients. */
#ifndef FERRY_PROFILER_MAKE_H
#define FERRY_PROFILER_MAKE_H

#include "profiler/profile.h"

/* Bounds of what a file may say. Times are summed and multiplied by a thousand in the timeline, which must not
 * overflow. */
#define PROFILE_MAX_NS    INT64_C(1000000000000000) /* 11 days */
#define PROFILE_MAX_BYTES (INT64_C(1) << 50)

/* The nodes of segment s and phase p in execution order: node[start[2 * s + p]] up to node[start[2 * s + p + 1]]. */
typedef struct Work {
    int *start; /* 2 * n_segment + 1 */
    int *node;
} Work;
Status work_build(Diag *d, Arena *a, const Graph *g, Work *out);

/* What an argument of a node is to the planner. */
typedef enum ArgRole { ARG_ABSENT, ARG_PLAIN, ARG_PARAM, ARG_GRADIENT } ArgRole;
ArgRole arg_role(const Graph *g, const Node *n, int arg);
int arg_root(const Graph *g, const Node *n, int arg); /* the tensor that owns the argument's bytes, -1 when absent */

/* Bytes over the link when parameters (or gradients) lie in host memory. A gradient that is accumulated is read first.
 */
typedef struct DhaBytes {
    int64_t param_read, grad_read, grad_write;
} DhaBytes;
/* How often a product reads a matrix that lies in host memory: `passes` times for each `tile_rows` rows of the other
 * one (0: all rows at once). An ideal kernel is {1, 0}: every byte crosses the link once. */
typedef struct DhaTiles {
    int64_t passes, tile_rows;
} DhaTiles;
/* ST_MODEL on overflow. */
Status node_dha_bytes(Diag *d, const Graph *g, const Node *n, DhaTiles tiles, DhaBytes *out);

/* Names, counts, hash and options, with all times 0. */
Status profile_frame(Diag *d, Arena *a, const Graph *g, const ModelOptions *model, Profile **out);

/* The sources of times: fill everything else of the frame. */
Status host_clock(Diag *d, Arena *a, const Graph *g, const ProfileOptions *options, Profile *p);
Status device_model_apply(Diag *d, Arena *a, const DeviceModel *m, const Graph *g, Profile *p);

/* The YAML text below the header line, with the model's path as given; and the reverse, with the path as it stands. */
void profile_text(const Profile *p, const char *model_path, Text *to);
Status profile_parse(Diag *d, Arena *a, const char *name, const char *text, size_t size, Profile **out);
Status device_model_parse(Diag *d, Arena *a, const char *name, const char *text, size_t size, DeviceModel **out);

/* The keys of DeviceFacts with their values, each line behind `indent`. */
void facts_text(const DeviceFacts *f, const char *indent, Text *to);
void device_model_text(const DeviceModel *m, Text *to); /* below the header line; device_model_parse reads it */

/* The keys of the link's classes in YAML, by LinkClass. */
extern const char *const link_class_name[LINK_CLASS_COUNT];
/* A map of maps of thousandths, 1 to 1000, all classes present. */
Status rates_read(Diag *d, const YamlNode *map, const char *key, int out[LINK_CLASS_COUNT][LINK_CLASS_COUNT]);
/* The optional keys record_ns, wait_ns, wait_update_ns, signal_ns and signal_update_ns. */
Status sync_read(Diag *d, const YamlNode *map, DeviceFacts *f);
/* A list of maps from the classes of a set, three and more, to thousandths; absent: none. */
Status together_read(Diag *d, const YamlNode *map, const char *key, int out[1 << LINK_CLASS_COUNT][LINK_CLASS_COUNT]);
/* Chunks are whole alignments and alignments powers of two, or no layout is possible; the map is the place of errors.
 */
Status facts_check(Diag *d, const YamlNode *map, const DeviceFacts *f);

#endif
