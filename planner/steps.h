/* steps.h - the list of steps: one training step as a sequential program whose steps are spread over streams.
 *
 * The program is the specification. Each step says which buffers it reads and writes; its meaning is that of running all
 * steps of iteration 1 in order, then those of iteration 2, and so on. Streams run in parallel, so orderings are needed where
 * a step of another stream must come first: read after write, write after read, write after write. steps_build derives them
 * from the accesses, over unrolled iterations, and keeps only those that stream order and the others do not imply: the transitive
 * reduction. These are the waits that codegen emits, the timeline respects and verify re-proves from nothing but the list.
 *
 * Happens-before: a step comes after all earlier steps of its stream (in this and earlier iterations), after the steps that it
 * waits for, and so on transitively. With S streams a vector clock of S entries a step holds the whole relation: the latest
 * step of each stream that is known to be over.
 *
 * The HOST stream is the thread that enqueues everything, in program order, and its steps run between the calls. So every step
 * is after all HOST steps that precede it in the program (the staging of its own iteration, the hand-over of earlier ones)
 * without any wait: *enqueue order*, which steps_build, order_build and simulate all take for granted. The reverse does not
 * hold: a HOST step is after the enqueueing of earlier steps, not after their end, so that it needs waits like any other. */
#ifndef FERRY_PLANNER_STEPS_H
#define FERRY_PLANNER_STEPS_H

#include "planner/plan.h"

typedef enum StepStream { STREAM_HOST, STREAM_COMPUTE, STREAM_LOAD, STREAM_STORE, STREAM_UPDATE, STREAM_COUNT } StepStream;

typedef enum StepKind {
    STEP_STAGE,      /* HOST: the caller's inputs are copied into pinned staging buffers */
    STEP_LOAD_INPUT, /* LOAD: staging to device, all inputs */
    STEP_LOAD,       /* LOAD: all parameters of a unit; twice with HOLD_RELOAD */
    STEP_KERNEL,     /* COMPUTE: one node */
    STEP_STORE_LOSS, /* STORE: the loss to the host */
    STEP_STORE,      /* STORE: all GPU gradients of a unit */
    STEP_SQNORM,     /* UPDATE, COMPUTE with HOLD_RESIDENT: squares of a unit's gradients, one partial sum a parameter */
    STEP_NORM,       /* UPDATE: the norm from all partial sums, in parameter order, and the clip scale */
    STEP_ADAMW,      /* UPDATE, COMPUTE with HOLD_RESIDENT: all trainable parameters of a unit */
    STEP_COLLECT,    /* HOST: the previous iteration's loss and norm are handed to the caller; last in the program */
} StepKind;

typedef enum BufferPool { POOL_DEVICE, POOL_HOST } BufferPool;

typedef enum BufferKind {
    BUFFER_VALUE,    /* root tensor `tensor` of kind VALUE: activations and their gradients */
    BUFFER_CONST,    /* constants: device, written before the first step, never after */
    BUFFER_INPUT,    /* device copy of an input */
    BUFFER_STAGING,  /* pinned copy of an input */
    BUFFER_PARAM,    /* device copy of a parameter (only when its unit is loaded) */
    BUFFER_PARAM_BP, /* the second one, for the backward pass (only with HOLD_RELOAD) */
    BUFFER_MASTER,   /* pinned, this and ROUNDED and STATE on the device with HOLD_RESIDENT: the parameter itself; of a trainable one in bf16, in f32 */
    BUFFER_ROUNDED,  /* pinned: in bf16, the copy of a trainable parameter that loads and DHA read and that AdamW writes */
    BUFFER_GRAD,     /* device gradient (grad ON_GPU) */
    BUFFER_HOST_GRAD, /* pinned gradient */
    BUFFER_STATE_M, BUFFER_STATE_V, /* pinned: optimizer state of a parameter */
    BUFFER_STATISTIC, /* pinned: running statistics, which a kernel brings up to date by DHA once a step */
    BUFFER_PARTIALS, /* pinned: doubles, one a parameter that the CPU updates; two copies */
    BUFFER_PARTIALS_GPU, /* the same of those that the GPU updates, when there are any */
    BUFFER_NORM,     /* pinned: norm and clip scale, two doubles; two copies */
    BUFFER_LOSS,     /* pinned: the loss; two copies */
    BUFFER_KIND_COUNT,
} BufferKind;

typedef struct Buffer {
    const char *name; /* unique, readable, stable: "act:NAME", "param:NAME", "grad:NAME", ... */
    BufferKind kind;
    BufferPool pool;
    int64_t bytes;
    int tensor;       /* root tensor, -1 */
    int param;        /* parameter, -1 */
    int copies;       /* 1, or 2: iteration i uses copy i mod 2 */
    bool preset;      /* written before the first iteration: constants, masters and their copies, states, statistics */
} Buffer;

typedef struct Access {
    int buffer;
    bool read, write;
    int lag; /* of a buffer with two copies: 1 for the copy of the previous iteration, which STEP_COLLECT hands over */
} Access;

/* `step` of `distance` iterations earlier (0 or 1) must be over. An event that is recorded once an iteration tells this as long as
 * the latest record is meant: distance 0, or distance 1 and a later place in the program than the waiting step. STEP_COLLECT
 * means the record before the latest: its two events need two copies, used in turn. */
typedef struct Wait {
    int step, distance;
} Wait;

typedef struct Step {
    StepKind kind;
    StepStream stream;
    int node;    /* STEP_KERNEL */
    int unit;    /* STEP_LOAD, STORE, SQNORM, ADAMW; else -1 */
    int copy;    /* STEP_LOAD: 1 or 2, see plan_copy */
    int segment; /* for grouping and reports; -1 outside FP and BP */
    Phase phase;
    int n_access, n_wait;
    Access *access; /* a buffer once */
    Wait *wait;     /* on steps of other streams, reduced, ordered by (distance, step) */
    /* filled by steps_time */
    int64_t duration_ns;
    unsigned link; /* bit set of 1 << LinkClass: what it occupies */
} Step;

typedef struct StepList {
    const Graph *graph;
    const Plan *plan;
    int n_step, n_buffer;
    Step *step;     /* program order; also the order in which the host enqueues */
    int n_device;   /* buffers [0, n_device) are the device's, the rest the host's */
    Buffer *buffer; /* device buffers in order of first access, then host buffers */
    int *buffer_of_tensor; /* by root tensor: the device buffer of values, constants and inputs, else -1 */
    int *param_buffer, *param_bp_buffer, *master_buffer, *grad_buffer, *host_grad_buffer; /* by parameter, -1 where absent;
                                                              the master of running statistics is their only buffer */
    int *state_m_buffer, *state_v_buffer;
    int *source_buffer; /* by parameter: what loads and DHA read, its rounded copy or the master itself */
} StepList;

/* Program order: stage, input load, forward and backward kernels with each load placed just before the first kernel that it
 * serves and each store just after the last write of its unit's gradients; after the kernels of a layer the sqnorms and early
 * updates of the units that are complete and not read any more, in order of arrival, after all kernels with update_after_bp;
 * the norm, late updates in order of first use, collect. With clip all updates come after the norm.
 * The square sums and updates of HOLD_RESIDENT units run on COMPUTE: the former just after the last write of their gradients,
 * the latter just after that and the last read of their parameters; with clip after the norm, in order of first use.
 * Two more kinds of ordering are part of the waits. With a gradient window, the first write of a unit's GPU gradients waits
 * for the store of the latest unit that, together with all units that are not stored then, would not fit the window (a unit
 * larger than that is alone); with a load window, each load of a HOLD_RELOAD unit likewise for the last use of earlier copies.
 * With update_after_bp, the first CPU step of the updates waits for the last gradient. */
Status steps_build(Diag *d, Arena *a, const Graph *g, const Plan *plan, StepList **out);

/* An ordering beyond those that the accesses ask for: `after` waits for `before`, `distance` (0 or 1) iterations earlier. */
typedef struct Ordering {
    int before, after, distance;
} Ordering;

/* needs: steps with accesses, buffers   fills: wait, n_wait of every step (steps_deps.c)
 * All orderings that the accesses ask for and the given ones, reduced. ST_FAILED for a list that one iteration's distance
 * cannot order (a buffer of two copies used by unordered streams). */
Status steps_derive_waits(Diag *d, Arena *a, StepList *s, const Ordering *extra, int n_extra);

/* Bytes of a parameter's buffer of this kind: masters and states of a trainable one are in the graph's wide type. */
int64_t param_buffer_bytes(const Graph *g, int param, BufferKind kind);
/* The buffer that a kernel argument uses under the plan: device or host, by the unit's mode at this use; -1 when absent. */
int steps_arg_buffer(const StepList *s, const Node *n, int arg);
/* True when an access of this kernel step touches host memory (DHA). */
bool steps_is_dha(const StepList *s, const Step *step, bool *read, bool *write);

/* fills: duration_ns, link. A segment's profiled time is split among its kernels by node_cost; what DHA adds goes to the
 * kernels that touch host memory, by their bytes. A layer whose units are placed differently is interpolated by DHA bytes. */
Status steps_time(Diag *d, StepList *s, const Profile *p);

void steps_print(const StepList *s, Text *to); /* --dump=after:steps */
const char *step_kind_name(StepKind k);         /* "load_input" */
const char *step_stream_name(StepStream t);     /* "compute" */
const char *buffer_kind_name(BufferKind k);     /* "host_grad" */
enum { STEP_LABEL_BYTES = 160 };
/* A step for people: "kernel 12 transformer.h.0.ln_1 (layernorm)", "load 3 wte"; the number is its place in the program. */
const char *step_label(const StepList *s, int step, char out[STEP_LABEL_BYTES]);

/* ---- parts (parts.c) ----------------------------------------------------------------------------------------------------- */

/* What one stream does in a row and a reader sees as one piece: the kernels of a layer in one direction (with the operators
 * before it, as codegen makes functions of them), or one step of the load, store or update stream. */
typedef struct Part {
    StepStream stream;
    const char *what; /* "forward", "backward", "recompute", or the kind of the step: "load", "adamw", ... */
    const char *of;   /* the layer or unit; "" after the last layer, and of what belongs to none */
    int first, last;  /* its first and last step in the program; between them there may be steps of other streams */
} Part;
typedef struct PartList {
    int n;
    Part *part;   /* in program order of their first steps */
    int *of_step; /* by step; -1 for HOST */
} PartList;
Status parts_build(Diag *d, Arena *a, const StepList *s, PartList *out);
const char *kernel_part_name(Phase p); /* "forward", "backward", "recompute" */
int step_group(const Step *x); /* of a kernel: the layer whose function it belongs to, n_layer after the last */

/* ---- happens-before --------------------------------------------------------------------------------------------------- */

/* Vector clocks over `iterations` unrolled copies of the list: clock[(i * n_step + s) * STREAM_COUNT + stream] is the number of
 * steps of that stream, counted over all iterations, known to be over before step s of iteration i starts. */
typedef struct Order {
    int iterations;
    int *position; /* by step: how many earlier steps of its stream in the program */
    int per_stream[STREAM_COUNT];
    int *clock;
} Order;
/* ST_FAILED when a wait is malformed: no such step, a distance other than 0 or 1, or a step that is not enqueued earlier. */
Status order_build(Diag *d, Arena *a, const StepList *s, int iterations, Order *out);
bool order_before(const Order *o, const StepList *s, int step_a, int iteration_a, int step_b, int iteration_b);

/* ---- timeline (simulate.c) ---------------------------------------------------------------------------------------------- */

typedef struct Timeline {
    int64_t period_ns;  /* of the steady state: end to end distance of equal steps of consecutive iterations */
    bool steady;        /* the pattern repeated exactly, after one iteration or after a cycle of up to four, whose mean is the
                           period; else the period is the longest of the last iteration's distance and the busy times */
    int iterations;     /* simulated */
    int64_t *start_ns, *end_ns; /* by step, of one iteration of the steady state, from 0 = start of its first step */
    int64_t *previous_start_ns, *previous_end_ns; /* the same of the iteration before it, on the same clock: it starts below 0 */
    int cycle;                  /* iterations after which the pattern repeats: 1 to 4, 0 when it is not steady */
    int64_t busy_ns[STREAM_COUNT]; /* in one period */
} Timeline;

/* needs: steps_time   Streams run their steps in order; a step starts when it is enqueued (all HOST steps before it are over),
 * its stream is free and its waits are over. Running steps progress at their own speed times the contention rate of their
 * class beside all other running classes, with the device's times of events, waits and signals; at full speed and without them
 * when contention is off. Integer arithmetic in thousandths of a
 * nanosecond; a step ends at the first such tick at which its work is done. No step starts before the iteration four back is
 * over (queues are finite). ST_FAILED: the waits never let some step start. ST_MODEL: a rate outside 1..1000. */
Status simulate(Diag *d, Arena *a, const StepList *s, const DeviceFacts *f, bool contention, Timeline *out);

/* ---- memory (memory.c) ---------------------------------------------------------------------------------------------------- */

/* Lays out the device pool by static stitching: two buffers may share bytes only when every use of one is before every use of
 * the other, in the same iteration and around to the next. Also fills the most bytes that are live at once: over all compute
 * steps, the sum of the buffers that may hold data then by the orderings (its first write may have happened, its last use may
 * not be over), each rounded up to the alignment. */
Status memory_plan(Diag *d, Arena *a, const StepList *s, const DeviceFacts *f, Layout *out, int64_t *live_bytes);
/* Device memory that a plan takes: its pool and the kernels' scratch. Saturates. */
int64_t memory_peak_bytes(const Layout *l, const DeviceFacts *f);
int64_t memory_host_bytes(const StepList *s); /* pinned: all host buffers */
/* Bytes of device buffers, by kind, that may be live at each step, for reports: (*live)[kind * n_step + step] with
 * BUFFER_KIND_COUNT kinds. Arena memory. */
Status memory_profile(Diag *d, Arena *a, const StepList *s, int64_t **live);

/* ---- proof (plan_check.c) --------------------------------------------------------------------------------------------------- */

/* Proves, by happens-before over three consecutive iterations (so that two-copy buffers wrap around), using nothing of what
 * steps_build or memory_plan concluded beyond the list and the layout itself:
 *  - each read of a buffer comes after the write that the sequential program gives it, and no other write can come between;
 *  - each write comes after all reads and writes that precede it in the program;
 *  - buffers that share a physical byte are never live at once; pieces lie inside the pool and are well formed, and every device
 *    buffer has exactly one place of at least its size;
 *  - every kernel argument lies where the plan says, and the program, run one step after the other, computes a training
 *    step: each kernel in the graph's order on this iteration's values and the newest parameters, each gradient complete
 *    before it is stored, summed or used, each parameter updated once, all running statistics brought up to date once;
 *  - the plan's promises about the two windows and updates after BP.
 * ST_FAILED names the two steps and the buffer(s), iteration by iteration. */
Status plan_verify(Diag *d, Arena *a, const StepList *s, const Layout *layout);

#endif
