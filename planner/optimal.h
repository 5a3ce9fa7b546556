/* optimal.h - the least period without contention: a plan and a proof of how far it can be from the best.
 *
 * lp_master.c solves the relaxation over rows found so far and proves bounds from it, lp_exchange.c improves plans by
 * the exact period, optimal.c puts both together and branches. Everything is bounded by counts, never by time: the same
 * profile gives the same plan on every machine. */
#ifndef FERRY_PLANNER_OPTIMAL_H
#define FERRY_PLANNER_OPTIMAL_H

#include "planner/lp_model.h"

typedef struct Optimum {
    UnitPlan *unit;   /* arena */
    int64_t model_ns; /* its period without contention */
    int64_t bound_ns; /* no plan of the domain has a smaller one */
    int rows, nodes;  /* cycles that the bound was proven from; nodes of branch and bound, 0: the root was enough */
    bool exact; /* false: the graph is beyond the model (lp_model.h): model_ns is simulate's, and only the bound is
                   useful */
} Optimum;

/* start: plans to begin with, choices of every unit each; those outside of the domain are left out. */
Status optimal_solve(Diag *d, Arena *a, const Graph *g, const Profile *p, const LpDomain *domain, int n_start,
                     const UnitPlan *const *start, Optimum *out);

/* Plans that trade time for GPU memory: for each of a grid of prices, what is best when bytes of parameters (with the state of
 * those that live there), of gradients or of both cost time. Found without looking at any budget. *plan: arena, *n of them, choices of every unit
 * each. */
Status optimal_frontier(Diag *d, Arena *a, const Graph *g, const Profile *p, const LpDomain *domain,
                        const Optimum *optimum, UnitPlan ***plan, int *n);

/* ---- inside
 * ------------------------------------------------------------------------------------------------------------- */

typedef struct LpRow {
    LpCut cut;
    int n_edge, *edge;
    int idle; /* solutions in a row in which it did not matter */
} LpRow;

typedef struct LpMaster {
    Diag *d;
    Arena *a; /* rows */
    const LpModel *m;
    LpTimer timer;
    void *lp;       /* glp_prob; rows: one a group, then one a row here */
    bool dead;      /* GLPK gave up: what is proven stays proven */
    double unit_ns; /* one unit of the scaled problem */
    VEC(LpRow) row;
    int *index; /* room for one row of the problem */
    double *value;
    int n_column;
    bool *allowed; /* by column: not known to be in worse plans only */
    double *x;     /* by column, of the last solution */
    double *price; /* by column: what it takes in the weighted rows of the last proof */
    double period_ns;
    int64_t best_ns, bound_ns;
    int *best; /* choices */
    int n_solved, n_made, iterations;
    int iterations_left; /* no more than these; master_open: no end */
    bool solved;         /* the last solution is one: else x is an older one, and only price is new */
} LpMaster;

Status master_open(Diag *d, Arena *a, const LpModel *m, const int *best, int64_t best_ns, LpMaster *out);
void master_close(LpMaster *x);
/* A new best plan. */
void master_improve(LpMaster *x, const int *choice, int64_t period_ns);
Status master_add(LpMaster *x, const int *edge, int n);
/* From now on minimises the period and these costs, by column. */
void master_charge(LpMaster *x, double *cost_ns);
/* Solves over the columns in `allowed` until no cycle is violated, `rounds` are used up or the bound reaches best_ns.
 * *bound_ns: proven for these columns, at least `known_ns`, at most best_ns. */
Status master_solve(LpMaster *x, const bool *allowed, int rounds, int64_t known_ns, int64_t *bound_ns);
/* Forbids columns that are only in plans that are not better than the best one, by the last solution. False: that is
 * all of some group's. changed (may be NULL): how many were. */
bool master_forbid(LpMaster *x, bool *allowed, int *changed);
/* Builds all rows again from what is known now. */
Status master_rebuild(LpMaster *x);

/* lp_exchange.c: improves choices by changing one or two groups at a time; `evaluations` exact periods at most. */
Status exchange(LpMaster *x, int *choice, int64_t *period_ns, int evaluations);
/* The same by the number of units, in order of first use, whose updates are late. */
Status split_updates(LpMaster *x, int *choice, int64_t *period_ns);

#endif
