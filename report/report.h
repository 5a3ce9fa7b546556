/* report.h - plans for people and for CI: comparing two of them, gating one by another, and showing one as a page.
 *
 * Everything here reads plans and changes none. A comparison needs only what plan.yaml itself says, so that a baseline
 * whose profile or model is long gone still serves; a report needs all that the plan rests on. */
#ifndef FERRY_REPORT_REPORT_H
#define FERRY_REPORT_REPORT_H

#include "planner/plan.h"
#include "planner/steps.h"

/* ---- a plan without its model (plan_view.c)
 * ------------------------------------------------------------------------------ */

/* The choices of a unit as plan.yaml spells them. */
typedef enum Choice { CHOICE_MODE, CHOICE_SERVED_FROM, CHOICE_GRADIENT, CHOICE_UPDATE, CHOICE_COUNT } Choice;
const char *choice_name(Choice c); /* the key: "mode", "served_from", ... */

typedef struct UnitView {
    const char *name;
    const char *choice[CHOICE_COUNT];
} UnitView;

typedef struct PlanView {
    const char *path;
    const Plan *plan; /* what the head of the file says; without units and layout */
    int n_unit;
    UnitView *unit;
} PlanView;

/* Reads plan.yaml alone. Checks the schema, keys, ranges and words, a unit's name once; not the layout, nor names
 * against a model. Arena memory. */
Status plan_view_read(Diag *d, Arena *a, const char *path, PlanView **out);
/* The same of a plan that was read with its model; keeps pointers to both. */
Status plan_view_of(Diag *d, Arena *a, const Graph *g, const Plan *plan, PlanView **out);

/* A file's results may be older than its choices: somebody edited it. Sets iteration_ns, the busy times, peak_bytes,
 * live_bytes and host_bytes from the steps and the layout, and warns when the file said another time or peak. What the
 * search found without contention (model_ns, bound_ns, milp_ns) stays. needs: steps_time */
Status plan_restate(Diag *d, const StepList *s, const Profile *p, Plan *plan);

/* ---- differences (plan_diff.c)
 * ------------------------------------------------------------------------------------------ */

typedef struct UnitDiff {
    const UnitView *a, *b; /* one is NULL when only the other plan has the unit */
} UnitDiff;

typedef struct PlanDiff {
    const PlanView *a, *b;
    int n_unit; /* names in either plan */
    int changed, only_a, only_b;
    int n_diff;     /* = changed + only_a + only_b */
    UnitDiff *diff; /* in b's order, then what only a has */
} PlanDiff;

/* A unit is changed when any of its choices is. */
Status plan_diff(Diag *d, Arena *a, const PlanView *from, const PlanView *to, PlanDiff **out);
void plan_diff_print(const PlanDiff *x, Text *to);
void plan_diff_json(const PlanDiff *x, Text *to);
/* (b - a) / a in percent; 0 for 0 -> 0, infinite from 0. */
double change_percent(int64_t a, int64_t b);

/* ---- the gate (plan_gate.c)
 * --------------------------------------------------------------------------------------------- */

typedef struct Tolerance {
    double time_percent, peak_percent; /* by which iteration_ns and peak_bytes may grow */
    int64_t modes;                     /* units that may be changed, new or gone */
} Tolerance;
#define TOLERANCE_DEFAULT ((Tolerance){1, 1, 0})

/* "time=1%,peak=0.5%,modes=3": changes what it names. ST_USAGE. */
Status tolerance_parse(Diag *d, const char *text, Tolerance *inout);
/* ST_REGRESSION names everything that is beyond the tolerance, and by how much. */
Status plan_gate(Diag *d, const PlanDiff *x, const Tolerance *t);
void plan_gate_json(const PlanDiff *x, const Tolerance *t, Text *to);

/* ---- the page and the trace
 * --------------------------------------------------------------------------------------------- */

/* What an algorithm makes of the same profile, budgets and clip. */
typedef struct ReportAlgorithm {
    const char *name, *what;
    const char *why_not; /* NULL: it fits; else what it would need */
    const Plan *plan;
} ReportAlgorithm;

/* ---- a recorded run (run_yaml.c)
 * ------------------------------------------------------------------------------------ */

typedef struct RunTiming {
    int64_t median_ns, mean_ns, min_ns, max_ns;
} RunTiming;

typedef struct RunPart {
    int64_t start_ns; /* median, from the start of the step's first compute part; negative before it */
    int64_t median_ns, min_ns, max_ns; /* length */
} RunPart;

typedef struct Run {
    const char *device;
    int steps;           /* recorded */
    RunTiming iteration; /* distance of the starts of consecutive steps */
    int64_t pool_bytes, scratch_bytes;
    RunPart *part; /* by part of the plan */
} Run;

/* run.yaml, schema ferryc/run/1. ST_MODEL names file and line: another schema, unknown keys, impossible values, a run of
 * another plan (unless force), other parts than the plan's (always). Arena memory. */
Status run_read(Diag *d, Arena *a, const char *path, const Plan *plan, const PartList *parts, bool force, Run **out);

typedef struct Report {
    const Graph *graph;
    const Profile *profile;
    const Plan *plan;
    const StepList *steps;
    Timeline time;       /* with contention */
    const int64_t *live; /* memory_profile */
    int n_algorithm;
    ReportAlgorithm *algorithm;
    PartList parts;
    const Run *run; /* NULL: none was recorded */
} Report;

/* needs: a plan that was restated, its timed steps   fills: all but the algorithms and the run; arena memory. */
Status report_make(Diag *d, Arena *a, const Graph *g, const Profile *p, const Plan *plan, const StepList *s,
                   Report **out);
/* Every algorithm on the same profile, within the same budgets, which takes seconds. One that does not fit says what it would
 * need. */
Status report_algorithms(Diag *d, Arena *a, Report *r);
/* One HTML file without its first line: no network, no date; a picture without scripts. Reads well from 390 pixels on.
 */
Status report_html(Diag *d, const Report *r, Text *to);
/* Chrome's trace format (Perfetto reads it), without the opening line: two consecutive iterations of the steady state,
 * one thread a stream, a flow arrow from each step to each that waits for it, counters of live memory. */
Status report_trace(Diag *d, const Report *r, Text *to);

/* Text between tags or in quotes: & < > " ' become entities; control characters and bytes that are no UTF-8 become
 * U+FFFD. */
void text_add_html(Text *to, const char *s);

#endif
