/* profile.h - what one machine takes for each part of one model: the input of the planner.
 *
 * Times are integer nanoseconds, medians of repeated runs. "GPU" is the device's memory, "host" pinned host memory that a
 * kernel reads or writes directly (DHA). Layers and segments are those of graph.h. */
#ifndef FERRY_PROFILER_PROFILE_H
#define FERRY_PROFILER_PROFILE_H

#include "graph/graph.h"

typedef enum Where { ON_GPU, ON_HOST } Where;

typedef struct Timing {
    int64_t median_ns;
    int64_t spread_ns; /* half the distance between the 25th and 75th percentile; 0 from a device model */
} Timing;

typedef struct LayerProfile {
    const char *name;   /* as Graph.layer */
    Timing fp[2];       /* T_FP, T_FP^H: by where the parameters are */
    Timing bp[2][2];    /* [parameters][gradients]: T_BP = T_CBP, T_GBP, T_BP^H, and both by DHA */
    int64_t fp_dha_bytes;   /* read over the link by a forward with the parameters on the host */
    int64_t bp_dha_bytes;   /* the same for a backward; 0 when it reads no parameter */
    int64_t grad_dha_bytes; /* written over the link with the gradients on the host */
} LayerProfile;

/* A(l, l+1): the parameter-free operators of segment 2l, l = 0..L. */
typedef struct BetweenProfile {
    Timing fp, bp;
} BetweenProfile;

typedef struct UnitProfile {
    const char *name;   /* as Graph.unit */
    Timing load;        /* T_trans: all parameters, host to device */
    Timing store;       /* all gradients, device to host */
    Timing norm;        /* CPU: sum of squares of the gradients */
    Timing update;      /* CPU: AdamW of all parameters */
    /* The same two by kernels in GPU memory, for HOLD_RESIDENT. The update's median is -1 where nobody knows it. */
    Timing resident_norm, resident_update;
} UnitProfile;

/* Classes of work that share the link or the host's memory. A compute step that touches host memory is in DHA_READ or
 * DHA_WRITE (or both: then the slower of the two rates holds). */
typedef enum LinkClass { LINK_DHA_READ, LINK_DHA_WRITE, LINK_H2D, LINK_D2H, LINK_UPDATE, LINK_CLASS_COUNT } LinkClass;

typedef struct DeviceFacts {
    const char *name;           /* "host", the GPU's, or the name in a device file */
    int64_t memory_bytes;       /* the default of --mem-budget */
    int64_t host_memory_bytes;  /* the default of --host-budget */
    int64_t chunk_bytes;        /* unit of physical memory and of stitching */
    int64_t alignment_bytes;    /* of buffers inside chunks */
    int64_t scratch_bytes;      /* device memory that kernels work in, beside the pool; a plan's peak holds it. 0 on the host */
    int64_t alloc_ns;           /* one allocation by a caching allocator, for deepspeed-like */
    /* What a GPU's stream needs to record an event, to wait for one that another stream of the GPU has recorded, and for one of
     * the CPU's; and how long a stream that waits takes to know of the end of a step, between streams of the GPU, and between
     * one of them and the CPU. Only the timeline with contention has them. 0 on the host and where nobody knows. */
    int64_t record_ns, wait_ns, wait_update_ns, signal_ns, signal_update_ns;
    /* rate_permille[a][b]: speed of class a, in thousandths of its speed alone, while class b runs as well. */
    int rate_permille[LINK_CLASS_COUNT][LINK_CLASS_COUNT];
    /* rate_together[set][a]: the same while all classes of the set (bits 1 << LinkClass, three and more) run, a among them; 0
     * where it was not measured: then the least of its rates beside each of them holds. */
    int rate_together[1 << LINK_CLASS_COUNT][LINK_CLASS_COUNT];
} DeviceFacts;

typedef struct Profile {
    Arena *arena;
    const char *path;        /* of the YAML file, NULL before writing */
    char hash[33];           /* of the YAML file's content */
    char model_hash[33];
    ModelOptions options;    /* path relative to the profile's folder, dims, loss, train/freeze/tie, precision */
    DeviceFacts device;
    int n_layer, n_unit;
    LayerProfile *layer;
    BetweenProfile *between; /* n_layer + 1 */
    UnitProfile *unit;
    Timing input_load;       /* all inputs of a step, host to device */
    Timing loss_store;       /* the loss, device to host */
    Timing clip;             /* CPU: the norm from its parts */
} Profile;

/* A device described by numbers, read from YAML (schema ferryc/device/1, schemas/device.md): peak rates by precision,
 * efficiency, memory and link rates and latencies, contention, CPU rates. */
typedef struct DeviceModel DeviceModel;
Status device_model_read(Diag *d, Arena *a, const char *path, DeviceModel **out);
Status device_model_write(Diag *d, const DeviceModel *m, const char *path, bool force);

typedef struct ProfileOptions {
    const char *device; /* "host", "cuda:N" or "model:FILE.yaml" */
    int warmup, repeats; /* measured devices: 2 and 7 by default */
    bool progress;       /* a bar on a terminal, lines otherwise, to stderr */
    DeviceModel **model; /* not NULL: the measured device as numbers, in the arena, for device_model_write; in the rates of
                            the graph's precision alone. ST_USAGE for a device that is not measured */
} ProfileOptions;

/* Measures (host, GPU) or computes (model) every quantity. Device memory for measuring stays within what one segment needs,
 * but for a whole step of a model that fits into the GPU. ST_FAILED where the GPU, its driver or CUPTI is missing. */
Status profile_make(Diag *d, Arena *a, const Graph *g, const ModelOptions *model, const ProfileOptions *options,
                    Profile **out);

/* profile.yaml, schema ferryc/profile/1: same profile, same bytes. The model's path is written relative to `path`. */
Status profile_write(Diag *d, const Profile *p, const char *path, bool force);
/* Reads and checks: schema, unknown keys, ranges, counts. Relative paths are resolved: options.path is usable from here. */
Status profile_read(Diag *d, Arena *a, const char *path, Profile **out);
/* ST_MODEL unless the profile was made from this graph: model hash, names and order of layers and units. With force only
 * names and order are checked. */
Status profile_match(Diag *d, const Profile *p, const Graph *g, bool force);
/* profile_read, then the graph of the model that it names, matched. */
Status profile_load(Diag *d, Arena *a, const char *path, bool force, const char *dump_after, Profile **profile, Model **model,
                    Graph **graph);

/* A table for people, with times and sizes, one line a layer. */
void profile_print(const Profile *p, Text *to);

#endif
