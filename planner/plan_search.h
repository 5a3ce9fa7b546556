/* plan_search.h - inside the planner: the pool of candidates that algorithms fill and that plan_make chooses from.
 *
 * An algorithm does not see the budgets. It proposes choices; search_try judges them by the timeline with contention (of
 * `optimal`: without). The plan is the fastest proposed candidate that fits; what a candidate reserves is found when it is
 * asked for. So a larger budget chooses from a larger set and never gives a slower plan, and the least budget is simply
 * the smallest candidate.
 *
 * Recomputation is enumerated outside of the choices for units: candidates are of several graphs (recompute.c), first of the
 * one that keeps everything, and those of the others start from what was found for it. */
#ifndef FERRY_PLANNER_PLAN_SEARCH_H
#define FERRY_PLANNER_PLAN_SEARCH_H

#include "planner/optimal.h"
#include "planner/plan.h"
#include "planner/problem.h"

typedef struct Candidate {
    Plan plan;        /* choices only */
    const char *from; /* how it came about, for --dump and tests */
    uint64_t key[2];
    int64_t iteration_ns; /* of `optimal`: without contention */
    bool proposed;                  /* plan_make may choose it */
    int64_t peak_bytes, host_bytes; /* -1 before search_size */
} Candidate;

typedef struct Search {
    Diag *d;
    Arena *a;
    const Graph *plain; /* without recomputation */
    const Profile *p;
    const PlanOptions *o;
    bool by_model;   /* candidates are timed without contention */
    Optimum optimum; /* of the plain plans that obey --mode, without contention */
    Optimum off_gpu; /* the same of those in which nothing lives on the GPU */
    Pin *plain_pinned;
    /* What candidates are made of now, and what follows from it: see search_enter. */
    const Graph *g;
    Problem *problem;
    Pin *pinned;            /* by unit: by --mode */
    struct Move *path; /* the priced path of search_frugal, of which the first moves are of units */
    int n_path, n_path_units;
    UnitPlan **frontier; /* plain choices by a price of memory */
    int n_frontier;
    VEC(Candidate *) found; /* each set of choices once */
    int n_slot, *slot;      /* hash table over found, by key; heap */
    int n_timed, n_sized;   /* evaluations so far: what bounds every search, since time would not be deterministic */
} Search;

typedef struct Algorithm {
    const char *name;
    const char *what; /* one line for --help */
    Status (*propose)(Search *s);
    bool from_optimum; /* it starts from Search.optimum */
} Algorithm;
const Algorithm *algorithm_find(const char *name); /* NULL: there is none */
const Algorithm *algorithm_table(int *count);

/* Heap parts of a Search, whose fields down to o are set; candidates are of the plain graph. */
Status search_open(Search *s);
void search_close(Search *s);
/* From here on candidates are of this graph: the plain one, or one with recomputation. */
Status search_enter(Search *s, const Graph *g);
/* fills: pinned, which --mode means in the present graph. Notes are printed when there is no recomputation. */
Status search_pin(Search *s);
/* Choices to start from: all GFGB, gradients ON_GPU, early. Fresh arena memory. */
Status search_blank(Search *s, Plan *out);
/* The same choices in the present graph. */
Status search_adopt(Search *s, const Plan *from, Plan *out);
Status search_copy(Search *s, const Plan *from, Plan *out);
/* Applies pinned modes and what has only one sense (a frozen unit has no gradient), then times the choices unless they
 * are known. *out is owned by the pool. */
Status search_try(Search *s, const Plan *choices, const char *from, Candidate **out);
/* Proposes it and finds out what it reserves. */
Status search_size(Search *s, Candidate *c);
/* search_try, and proposes it. */
Status search_add(Search *s, const Plan *choices, const char *from, Candidate **out);
/* The fastest proposed candidate that fits these budgets, NULL when none does. */
Status search_choose(Search *s, int64_t mem_bytes, int64_t host_bytes, Candidate **out);
/* Fastest of the present graph, then the one found first. */
Candidate *search_fastest(const Search *s);
/* Update placement by the timeline: all early, all late, and the first k units in order of use late for a grid of k
 * that is refined around the best. *out = the best. */
Status search_late(Search *s, const Plan *choices, const char *from, Candidate **out);
/* Improves by changing one unit at a time, as long as `evaluations` last and peak_bytes is kept (INT64_MAX: no limit,
 * and no layout is made). *out = the best. */
Status search_improve(Search *s, Candidate *from, int evaluations, int64_t peak_bytes, Candidate **out);
/* The load window of so many times the largest unit that is loaded twice; none when there is no such unit. */
void search_load_window(const Search *s, Plan *p, int times);
/* Units that live on the GPU, the others as in this plan; see resident.c. */
Status search_resident(Search *s, const Plan *from);
/* The plain graph with so many segments of equal size computed again; see recompute.c. ST_USAGE: too many. */
Status recompute_evenly(Search *s, int segments, const Graph **out);
/* A few graphs that compute more and more again, in the order of the time that this takes. */
Status recompute_graphs(Search *s, const Graph ***out, int *n);
/* With --recompute auto: enters each of them and explores from the same choices as those of this plain candidate. */
Status search_recompute(Search *s, const Candidate *plain, Status (*explore)(Search *s, Candidate *from));
/* From a candidate down to the most frugal choices; see frugal.c. */
Status search_frugal(Search *s, const Candidate *from);
/* The same along the priced path of the last search_frugal, in another graph. */
Status search_frugal_again(Search *s, const Candidate *from);

/* fills: optimum, off_gpu. The plans of MemFerry in all readings are what it starts from. *bound_ns: proven for all plans, whatever
 * --mode says. */
Status search_optimum(Search *s, int64_t *bound_ns);

/* The choices of Alg. 1 and 2 in one pair of readings. */
Status memferry_choices(Search *s, FpReading fp, BpReading bp, Plan *out);
/* Gradients of the exact knapsack with this limit stay on the GPU, all others go to the host. */
Status offload_choices(Search *s, int64_t limit_bytes, Plan *inout);
int64_t all_grad_bytes(const Graph *g);
int64_t largest_grad_bytes(const Graph *g);

/* ---- evaluation (plan_evaluate.c)
 * ------------------------------------------------------------------------------------ */

/* iteration_ns: with contention, model_ns: without; either may be NULL. */
Status plan_time(Diag *d, const Graph *g, const Profile *p, const Plan *plan, int64_t *iteration_ns, int64_t *model_ns);
Status plan_size(Diag *d, const Graph *g, const Profile *p, const Plan *plan, int64_t *peak_bytes, int64_t *host_bytes);

/* ---- bound.c
 * ------------------------------------------------------------------------------------------------------------- */

/* g: without recomputation. *out_ns: no plan of this profile with this clip has a smaller model_ns, whatever it computes
 * again; the proof is in bound.c. */
Status bound_make(Diag *d, const Graph *g, const Profile *p, bool clip, int64_t *out_ns);

/* ---- plan.yaml in parts (plan_yaml.c), for a graph and profile that are there already
 * ----------------------------------- */

/* The body of the file without its header line. */
void plan_yaml_text(const Graph *g, const Plan *plan, const char *profile_path, Text *to);
/* Everything that needs no graph. */
Status plan_yaml_head(Diag *d, Arena *a, const char *path, YamlNode **top, Plan **out);
/* g: the model's, without recomputation. Fills plan->graph, units and layout; the profile's hash unless force. */
Status plan_yaml_body(Diag *d, Arena *a, const YamlNode *top, const Graph *g, const Profile *p, bool force, Plan *plan);

#endif
