/* plan.h - the plan: what every unit's parameters and gradients do in a step, and what that costs.
 *
 * The general decision for a unit (planning.md) is which of its uses is the first to be served from GPU memory: uses before
 * it read pinned host memory by DHA, that use and all later ones read the copy that a load brings. GFGB is a load before the
 * first use, DHA no load, DFGB a load before the first backward use; any other place (a tied embedding gathered by DHA and loaded
 * for the head) is a GFGB that starts later. Loads run in the order of the first use that they serve.
 *
 * How long the copy stays is the other half of the decision (Hold).
 *
 * Apart from units, a plan says which segments of the forward pass are computed again in the backward pass instead of being
 * kept (graph/recompute.c). What this reads of parameters are further uses, RP, between those in FP and BP; everywhere here
 * they are backward uses. */
#ifndef FERRY_PLANNER_PLAN_H
#define FERRY_PLANNER_PLAN_H

#include "profiler/profile.h"

typedef enum Mode { MODE_GFGB, MODE_DHA, MODE_DFGB, MODE_RELOAD, MODE_RESIDENT, MODE_COUNT } Mode;
const char *mode_name(Mode m); /* "gfgb", ... */

typedef enum Hold {
    HOLD_STEP,   /* from the load to the last use */
    HOLD_RELOAD, /* dropped after the last FP use and loaded again, into a buffer of its own, before the first BP use */
    HOLD_RESIDENT, /* across steps: parameters and optimizer state live on the GPU, every use reads them there, gradients
                      stay there and a kernel updates them; nothing crosses the link */
    HOLD_COUNT,
} Hold;

typedef struct UnitPlan {
    int first_gpu_use; /* index into Unit.use of the first use served from GPU memory; n_use: never (DHA) */
    Where grad;        /* where its gradients are written; ON_GPU: a store copies them to the host */
    bool late;         /* the update runs after BP, in the next step's order of first use; else as gradients arrive */
    Hold hold;
} UnitPlan;

/* A unit's choice by hand. */
typedef struct Pin {
    bool set;
    int first_gpu_use;
    Hold hold;
} Pin;

/* A physical range of the device pool. */
typedef struct Piece {
    int64_t offset_bytes, bytes;
} Piece;

/* Where a buffer of the device pool lies: one piece at any aligned offset, or several whole chunks stitched into one virtual
 * range (every piece starts at a multiple of the chunk; all but the last have a length that is one). */
typedef struct Place {
    const char *buffer; /* Buffer.name, the key across plan.yaml */
    int n_piece;
    Piece *piece;
} Place;

typedef struct Layout {
    int64_t chunk_bytes;
    int64_t reserved_bytes; /* = peak_bytes of the plan: whole chunks */
    int n_place;
    Place *place;           /* by index of device buffers in StepList order */
} Layout;

typedef struct Plan {
    const char *algorithm;
    const char *path;   /* of plan.yaml when read */
    char hash[33];      /* of plan.yaml when read, "" else */
    char profile_hash[33];
    const char *profile_path; /* relative to the plan's folder in the file; resolved when read */
    const Graph *graph; /* of plan_make and plan_read: the graph that the choices are about, with what is computed again */
    int n_recompute;
    const char **recompute; /* tensors that end the segments of the forward pass that are computed again, in order */
    int n_unit;
    UnitPlan *unit;
    bool clip;                 /* the norm is clipped: updates wait for it */
    bool update_after_bp;      /* updates wait for the last gradient (native-offload) */
    int64_t gradient_window_bytes; /* at most this many bytes of GPU gradients that are stored between their first write and the
                                      end of their store; 0: no limit. Writes wait for stores to keep it. */
    int64_t load_window_bytes; /* at most this many bytes of copies of HOLD_RELOAD between the start of their load and the
                                  end of their last use; 0: no limit. Loads wait for uses to keep it. */
    int64_t n_alloc;           /* allocations that cost DeviceFacts.alloc_ns each on compute (deepspeed-like), else 0 */
    double reserve_factor;     /* go-memferry, -1 when not used */
    int64_t budget_bytes, host_budget_bytes;
    /* results: by the timeline in steady state, contention-aware unless said */
    int64_t iteration_ns;
    int64_t model_ns;          /* without contention */
    int64_t bound_ns;          /* proven: no plan of this profile with this clip that computes nothing again has a smaller
                                  model_ns; one that does is chosen only when it is slower than such a plan */
    int64_t milp_ns;           /* -1 unless cross-checked */
    int64_t resource_bound_ns; /* max of the four below */
    int64_t compute_ns, h2d_ns, d2h_ns, update_ns; /* busy times in a step, without contention */
    int64_t peak_bytes, live_bytes, host_bytes;
    Layout layout;
} Plan;

Mode plan_mode(const Unit *u, const UnitPlan *p);
/* first_gpu_use of a mode for this unit: GFGB 0; DHA n_use; DFGB the first BP use (n_use when there is none). */
int plan_first_use_of_mode(const Unit *u, Mode m);
/* The first use in the backward pass, n_use when there is none. */
int plan_first_backward_use(const Unit *u);
/* Which copy serves a use: 0 the parameter itself (by DHA, or on the GPU with HOLD_RESIDENT), 1 what the first load brings,
 * 2 the second (HOLD_RELOAD). */
int plan_copy(const Unit *u, const UnitPlan *p, int use);
/* The choices that a mode means; grad and late are left alone, but for MODE_RESIDENT. False: this unit cannot have it. */
bool plan_set_mode(const Unit *u, Mode m, UnitPlan *p);
/* Can it live on the GPU: is it read, and does the profile say how long its update takes there? */
bool plan_can_reside(const Graph *g, const Profile *p, int unit);
/* NULL, or what makes the choices impossible for this unit. */
const char *plan_unit_fault(const Unit *u, const UnitPlan *p);
/* The same choices for the unit of another graph of the model, with more or less that is computed again. */
UnitPlan plan_adopt(const Unit *from, const Unit *to, UnitPlan c);
double plan_gap_percent(const Plan *p); /* 100 (model - bound) / bound */

typedef struct ModeRule {
    const char *glob; /* of unit names */
    Mode mode;
} ModeRule;

enum { RECOMPUTE_AUTO = -1 }; /* what the budget asks for: auto and optimal; the others compute nothing again */

typedef struct PlanOptions {
    int recompute;         /* RECOMPUTE_AUTO, or so many segments of equal size: 0 none. More than the model has places to cut:
                              ST_USAGE */
    const char *algorithm; /* native-offload dha deepspeed-like memferry go-memferry optimal auto; another is
                              ST_USAGE, and they are named */
    int64_t mem_budget_bytes;  /* 0: the device's memory */
    int64_t host_budget_bytes; /* 0: the device's host memory */
    double reserve_factor;     /* -1: what the budget leaves */
    bool clip;
    int n_rule;
    ModeRule *rule;            /* --mode, applied after the algorithm, in order; a glob that matches nothing is ST_USAGE */
    int64_t bound_ns; /* 0, or what was proven before for this graph, profile and clip: not proven again by the papers' algorithms */
    const char *dump_after; /* a pass of plan_is_pass: what it made goes to stderr; NULL and other names: nothing */
} PlanOptions;

/* The names of --dump that are the planner's: problem, fp, bp, go, steps. */
bool plan_is_pass(const char *name);

/* Chooses, evaluates and lays out. g: the model's graph, or one with recomputation, which means the same; the plan's graph
 * lies in the arena when it has recomputation, and needs g. ST_NO_FIT: no candidate of this algorithm (and rules) fits; the
 * message names the least budget that works, which does when asked for. Candidates are judged by the timeline with contention, those of `optimal`
 * without; ties by the other one, then peak. bound_ns is proven by optimal.c and bound.c; model_ns of `auto` is that of the
 * plan that is best without contention, from which its search starts. */
Status plan_make(Diag *d, Arena *a, const Graph *g, const Profile *p, const PlanOptions *options, Plan **out);

/* Fills the results and the layout of a plan for this graph whose choices are made: steps, timeline twice, memory. */
Status plan_evaluate(Diag *d, Arena *a, const Graph *g, const Profile *p, Plan *plan);

/* fills: milp_ns, and a table of all algorithms, the bound and the solver's optimum. The optimum is over all plans with this
 * clip, without budgets and rules. milp_ns stays -1 when there are too many units or the solver finds no end: the table says so.
 * ST_FAILED: the solver contradicts the bound. */
Status plan_cross_check(Diag *d, Arena *a, const Graph *g, const Profile *p, const PlanOptions *options, Plan *plan,
                        Text *table);

/* plan.yaml, schema ferryc/plan/1. */
Status plan_write(Diag *d, const Graph *g, const Profile *p, const Plan *plan, const char *path, bool force);
/* Reads the file: unknown keys, ranges, names against the graph; the profile's hash unless force. The layout is taken as it
 * stands: plan_verify judges it. *graph has what the plan computes again; it needs the arena until graph_close. */
Status plan_read(Diag *d, Arena *a, const char *path, bool force, const char *dump_after, Plan **plan, Profile **profile,
                 Model **model, Graph **graph);

void plan_print_table(const Graph *g, const Plan *plan, Text *to);  /* the summary that `ferryc plan` prints */
void plan_print_json(const Graph *g, const Plan *plan, Text *to);   /* `plan --json` */
/* Each unit's choice with its reason: what its alternatives would cost, by the timeline (model_ns and peak of the plan with
 * only this choice changed). */
Status plan_explain(Diag *d, Arena *a, const Graph *g, const Profile *p, const Plan *plan, Text *to);

/* ---- the papers' algorithms (memferry_fp.c, memferry_bp.c, gradient_offload.c); see problem.h ------------------------- */

#endif
