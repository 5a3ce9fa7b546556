/* cross_check.h - the least period without contention once more, by other means: a mixed integer program over the start
 * times of all steps, solved by GLPK's branch and bound in a child process. */
#ifndef FERRY_PLANNER_CROSS_CHECK_H
#define FERRY_PLANNER_CROSS_CHECK_H

#include "planner/plan.h"

enum { CROSS_MAX_UNITS = 40 }; /* rows grow with the square of the units */

typedef struct CrossOptions {
    bool clip;
    bool modes_only;   /* gradients ON_GPU, updates early */
    const Pin *pinned; /* by unit; NULL: all free */
    int64_t most_ns;   /* a period that some plan has: only plans up to it are looked for */
    int nodes;         /* of branch and bound; 0: 200000 */
} CrossOptions;

typedef struct CrossResult {
    bool closed;     /* branch and bound ended: nothing is better */
    UnitPlan *unit;  /* arena; NULL when no plan up to most_ns was found */
    int64_t milp_ns; /* its period by the timeline without contention, -1 */
    const char *why; /* what happened when it is not closed */
} CrossResult;

/* ST_MODEL: more than CROSS_MAX_UNITS units. ST_FAILED: a time that is not finite; the plan found does not verify. When
 * the child ends without an answer (its memory and time are limited) *out says so. */
Status cross_check(Diag *d, Arena *a, const Graph *g, const Profile *p, const CrossOptions *options, CrossResult *out);

#endif
