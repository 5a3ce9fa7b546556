/* lp_model.h - the timeline without contention as linear inequalities over the plan's choices.
 *
 * Events. Without contention a step's start in iteration i is the largest, over everything that must come before it, of
 * that step's end. In the steady state of period T each event e has one start t(e), and the step lies at t(e) + i T. So
 * every ordering "b of iteration i comes after the end of a of iteration i - n" is one row t(b) >= t(a) + duration(a) -
 * n T                                                                               (1) and T is the least number for
 * which all rows have a solution. Rows (1) are linear in the choices as soon as durations are, and they are: each is a
 * sum of profiled times that depend on the choices of one unit (or of a few units that share a layer, which then choose
 * together: a *group*). Let x(g, c) be 1 when group g takes its choice c, sum over c = 1.
 *
 * Every place where a step *might* stand is an event: the load of a unit before each of its uses, its store, its update
 * early and late. Where the plan puts no step, the event takes no time and only passes on its stream's progress.
 *
 * Rows without a big-M, although their step may be absent. What an absent event passes on must be no news to whoever
 * waits for it. Loads stand in the order of the kernels that they serve, so what is loaded before an absent load was
 * already waited for by an earlier kernel. Stores and square sums both stand in the order in which gradients are
 * complete, so a square sum behind an absent store waits for stores whose square sums come before it anyway. A unit's
 * first use waits for its update whether a load or the kernel itself reads the parameters: (update) -> (first kernel)
 * always holds, and with it everything that would keep a gradient's buffer busy. An update event that is absent because
 * the unit is updated at its other place stands, in the order of first uses, after updates that earlier kernels wait
 * for.
 *
 * Rows that say nothing new about whole choices, but about mixtures. A mixture may update a unit half early and half
 * late and so seem to be done in half the time. But the update, wherever it is, comes after the unit's square sum (and
 * with clip after the norm) and takes its time; then, when the unit is loaded before its first use, comes the load;
 * then that use. With clip the updates of the first j units in order of first use all lie between the norm and the
 * first use of the j-th, one after another. Without clip, so do the square sums and updates of those units that are
 * used no later than b and complete no earlier than a, between the square sum of a and the first use of b.
 *
 * Units that live on the GPU. Their square sums and updates stand on the compute stream: slots between the kernels, which
 * take no time for a unit that lives elsewhere, so that the stream stays one row of slots. Such a unit has no store, load and
 * step of the CPU; its absent events pass on what the CPU did before, which is news to its first use: the orderings from
 * updates to first uses are conditional for units that may live there, and so is that from the norm to the updates on the GPU.
 * What stays unconditional, and makes the relaxation strong, are the sums over several units: a run of updates counts those
 * that the CPU makes, and a first use behind it that does not wait for the CPU comes after one of the run that does.
 *
 * Rows that must not bind when their step is absent (*conditional*):
 *   update -> load (u, k)           only when u is loaded before its use k
 *   last read of a device copy -> the next load into it; left out when the last read of the inputs comes later, since
 * all loads come after the load of the inputs, which waits for that store of the loss -> store u    only when u is
 * stored: else a square sum would wait for the loss last step before the late updates -> late update u: only when u is
 * late: else a first use would wait for the norm and the odd graph in which a kernel still reads a unit after its
 * gradient is complete, or a load serves a kernel that comes before the first that reads an input. As a row with a
 * big-M such an ordering carries (1 - x) M, where x is the sum of the choices that make it hold. M is proven from rows
 * that always hold: they form a path from a to b with one more period, so (1) with n + 1 instead of n is always true,
 * and M = T - (what that path takes at least) <= (time of the best plan so far) - (the same) is enough for every plan
 * that is better than that one.
 *
 * Cycles instead of event times. Eliminating t from rows (1) leaves one inequality for each cycle of orderings:
 *       (iterations that the cycle spans) T >= sum of the durations on it (2) That is the same polyhedron: T is
 * feasible iff no cycle is positive. It has only the columns x and T, and few of its rows matter, so they are
 * generated: solve over the rows so far, look for violated cycles with the durations that x implies, add them, repeat.
 * At whole x the violated cycles are those of that plan's timeline, so the model and simulate() agree exactly. Every
 * row (2) has whole coefficients, in nanoseconds. With any weights y >= 0 of rows, T >= (sum of y constant + sum over
 * groups of min over c of (sum of y coefficient(g, c))) / (sum of y span)        (3) because each group takes one
 * choice. The solver's dual values only suggest y; they are rounded to whole numbers and (3) is evaluated in whole
 * numbers, so that no rounding of the solver can make the bound wrong, only weaker. A row with conditions gets its
 * constant here too, choice by choice: see lp_cut.c. */
#ifndef FERRY_PLANNER_LP_MODEL_H
#define FERRY_PLANNER_LP_MODEL_H

#include "planner/plan.h"

/* Which plans are compared. */
typedef struct LpDomain {
    bool clip;
    bool modes_only;   /* gradients ON_GPU, updates early */
    bool leave_gpu;    /* nothing lives on the GPU, but for what is pinned there */
    const Pin *pinned; /* by unit; NULL: all free */
} LpDomain;

/* A condition on one unit's choice: low <= first_gpu_use <= high, grad and late where these are not -1, and hold where
 * its set (bits 1 << Hold) is not empty. */
typedef struct LpWhen {
    int unit; /* -1: always true */
    int low, high, grad, late;
    unsigned holds;
} LpWhen;

typedef enum LpKind {
    LP_HOST,   /* staging: everything of an iteration is enqueued after it */
    LP_INPUT,  /* load of the inputs */
    LP_LOAD,   /* of `unit` before its use `use`; the second one of a unit that is loaded twice is another event */
    LP_KERNEL, /* kernel `kernel`, which waits for more than the kernel before it */
    LP_LOSS,   /* store of the loss */
    LP_STORE,  /* of `unit`, and so on */
    LP_SQNORM,
    LP_EARLY,
    LP_NORM,
    LP_LATE,
    LP_WHOLE, /* the update of `unit`, at whichever place */
    LP_ENTER, /* its load before its first use, after its update */
    LP_OWN,   /* its store, or the start of all that it asks of the CPU, whatever the store and the CPU do before */
    LP_FIRST, /* the updates (without clip: some of them) of units whose first use is not after that of `unit` */
} LpKind;

typedef struct LpEvent {
    LpKind kind;
    int unit, use, kernel;
    int64_t duration_ns; /* of the step when it is there; kernels: 0, see LpEdge */
    LpWhen there;
} LpEvent;

/* `to` starts after the end of `from`, `span` iterations earlier. The time is that of `from` and of slots [first, last). */
typedef struct LpEdge {
    int from, to, span;
    int first, last;
    LpWhen when;
    int periods; /* of a conditional edge: M = periods * (best known period) - slack_ns is enough */
    int64_t slack_ns;
} LpEdge;

typedef struct LpGroup {
    int n_unit, *unit;
    int n_choice;
    UnitPlan *choice; /* n_choice * n_unit */
} LpGroup;

/* A piece of work in a row of others. The compute stream is such a row: kernels, and between them what the GPU has to do
 * for a unit that lives there. What units ask of the CPU, in order of first use, is another. */
typedef enum LpWork { LP_WORK_KERNEL, LP_WORK_GPU_NORM, LP_WORK_GPU_UPDATE, LP_WORK_CPU } LpWork;
typedef struct LpSlot {
    int node; /* LP_WORK_KERNEL */
    int unit; /* the others */
    LpWork work;
} LpSlot;

/* What the orderings depend on. Kernels are nodes of the graph: -1 is none. */
typedef struct LpScan {
    int *first_read, *last_read, *last_grad; /* by unit */
    int *use_first, *use_last;               /* by unit and use, from use_at[unit]: kernels of that use */
    int *use_at;
    int input_first, input_last;
    int loss_first, loss_last;
    int n_arrived, *arrived; /* trainable units in the order in which their gradients are complete */
    int n_late, *late;       /* in order of first use */
    int n_place, *place_unit, *place_use;
    int n_slot, n_compute; /* slots [0, n_compute) are the compute stream's, in program order */
    LpSlot *slot;
    int *kernel_slot;                        /* by node */
    int *norm_slot, *update_slot, *cpu_slot; /* by unit, -1 */
} LpScan;

typedef struct LpModel {
    const Graph *graph;
    const Profile *profile;
    LpDomain domain;
    bool exact; /* false: some layer is shared by so many units that its time counts as 0: a bound, no timeline */
    int n_group, n_event, n_edge;
    LpScan scan;
    LpGroup *group;
    int *group_of_unit, *place_in_group;
    int *first_column; /* by group, n_group + 1: choices of all groups numbered through */
    LpEvent *event;
    LpEdge *edge;        /* edges of span 0 in topological order of `from`, then the others */
    int n_forward;       /* edges of span 0 */
    int *slot_group;     /* by slot, -1: its time does not depend on choices */
    int64_t **slot_ns;   /* by slot and choice of its group */
} LpModel;

/* needs: a profile that matches the graph   fills: *out, in the arena
 * Kernel times are those of steps_time, asked for once for each choice. */
Status lp_model_build(Diag *d, Arena *a, const Graph *g, const Profile *p, const LpDomain *domain, LpModel **out);

/* lp_scan.c */
Status lp_scan_graph(Diag *d, Arena *a, const Graph *g, bool clip, LpScan *out);
/* lp_choices.c: fills groups, columns and the times of slots of a model whose first fields and scan are set. */
Status lp_choices_make(Diag *d, Arena *a, LpModel *m);
/* choice[g] of each group for a plan's units; ST_FAILED when the plan is not of this domain. */
Status lp_choices_of_plan(Diag *d, const LpModel *m, const UnitPlan *unit, int *choice);
void lp_plan_of_choices(const LpModel *m, const int *choice, UnitPlan *unit);
bool lp_holds(const LpModel *m, const LpWhen *when, int group_choice);

/* ---- lp_period.c: the period of one set of choices, and the cycles of a mixture
 * ---------------------------------------- */

/* A ratio time / span of a cycle; span > 0. */
typedef struct LpRatio {
    int64_t time_ns;
    int span;
} LpRatio;

/* Work space for one model; heap. */
typedef struct LpTimer {
    const LpModel *m;
    int64_t *event_ns, *sum_ns;    /* of one set of choices: durations; prefix sums over slots */
    double *event_part, *sum_part; /* the same of a mixture */
    int64_t *weight, *at;          /* by edge; by event */
    bool *on;                      /* by edge: its condition holds */
    const bool **there, **holds;   /* by event, by edge: its condition, by choice of the unit's group; NULL: always */
    bool *condition;               /* what these point to */
    int *before, *mark;            /* by event: the edge by which it is reached last */
    int *cycle, n_cycle;           /* edges of the cycle found last */
} LpTimer;
Status lp_timer_open(Diag *d, const LpModel *m, LpTimer *out);
void lp_timer_close(LpTimer *t);
/* The largest ratio of all cycles; t->cycle is one that has it. With a limit (span > 0): the same when it is less than
 * that, else a ratio of span 0, and t->cycle is one that reaches the limit. */
LpRatio lp_period(LpTimer *t, const int *choice, LpRatio limit);
/* As simulate() reports it: rounded to whole nanoseconds, halves up. */
int64_t lp_period_ns(LpRatio r);
/* Finds cycles that violate (2) at the mixture x (by column) and the period from_ns, each more than the one before; without
 * `conditions`, of orderings that always hold. `found` gets their edges. */
typedef Status LpFound(void *context, const int *edge, int n);
Status lp_violated(LpTimer *t, const double *x, double from_ns, int64_t best_ns, bool conditions, LpFound *found,
                   void *context);

/* ---- lp_cut.c: rows (2) with whole coefficients
 * ------------------------------------------------------------------------- */

typedef struct LpCut {
    int span;
    int64_t constant_ns;
    int64_t *at; /* by column */
} LpCut;
/* The row of a cycle: span T >= constant + sum of at * x, true for every plan of allowed choices (by column) whose T is
 * at most best_ns, given that T > bound_ns - 1 for all of them. Arena memory. */
Status lp_cut_make(Diag *d, Arena *a, const LpModel *m, const int *edge, int n, const bool *allowed, int64_t bound_ns,
                   int64_t best_ns, LpCut *out);

#endif
