/* cross_places.h - what kernels' times depend on, for the cross-check: the places of what a layer reads and writes. */
#ifndef FERRY_PLANNER_CROSS_PLACES_H
#define FERRY_PLANNER_CROSS_PLACES_H

#include "planner/steps.h"

enum { MAX_BITS = 8 }; /* units that read or get a gradient in one layer, together */

/* One layer's kernels of one phase: what their times depend on. */
typedef struct Places {
    int n_bit;
    int unit[MAX_BITS], use[MAX_BITS]; /* use -1: the gradient */
    int column;                        /* of 2^n_bit columns, one a combination */
} Places;

typedef struct Kernels {
    Diag *d;
    Arena *a;
    const Graph *g;
    const Profile *p;
    bool clip;
    int64_t most_ns; /* the longest period looked for */
    Places *places;  /* by 2 * segment + phase */
    double **ns;     /* by node: a time for each combination */
} Kernels;

/* fills: places but for their columns, ns. ST_MODEL: more than MAX_BITS places in a layer. */
Status cross_time_kernels(Kernels *x);
/* The steps of these choices, timed. */
Status cross_list(Kernels *x, Arena *scratch, UnitPlan *unit, StepList **out);
/* What takes longer than any plan looked for takes one and a half times as long as these. */
double cross_capped(const Kernels *x, int64_t ns);

const Tensor *cross_root(const Graph *g, int tensor);
int cross_use(const Graph *g, int unit, int segment, Phase phase); /* -1: none */
bool cross_reads(const Graph *g, const Node *n, int unit);
bool cross_writes(const Graph *g, const Node *n, int unit); /* its gradient */

#endif
