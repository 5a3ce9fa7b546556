/* cross_solve.h - a mixed integer program in our own memory, and its solution by GLPK in a child process. */
#ifndef FERRY_PLANNER_CROSS_SOLVE_H
#define FERRY_PLANNER_CROSS_SOLVE_H

#include "base/base.h"

typedef enum CrossColumn {
    CROSS_BINARY,
    CROSS_ONE,
    CROSS_ZERO,
    CROSS_PART,
    CROSS_TIME
} CrossColumn; /* PART: 0 to 1; TIME: >= 0 */

typedef struct CrossEntry {
    int column;
    double value;
} CrossEntry;

typedef struct CrossRow {
    int first, n; /* entries */
    double at_least;
    bool equal;
} CrossRow;

typedef struct CrossProblem {
    int n_column, period; /* the column to minimise */
    double most;          /* it is at most this */
    VEC(CrossColumn) column;
    VEC(CrossEntry) entry;
    VEC(CrossRow) row;
    bool failed; /* out of memory in cross_column */
} CrossProblem;

typedef struct CrossAnswer {
    bool closed;
    bool again;      /* not closed, and another way may do better: no limit was reached */
    bool *value;     /* heap, by column: of binary ones; NULL: none found */
    const char *why; /* static text */
} CrossAnswer;

Status cross_open(Diag *d, CrossProblem *p, double most);
void cross_close(CrossProblem *p);
int cross_column(CrossProblem *p, CrossColumn kind);
/* Takes what is not 0 in dense[0, n_column) and clears it: a column cannot be there twice. ST_FAILED for what is not
 * finite. */
Status cross_row(Diag *d, CrossProblem *p, double *dense, double at_least, bool equal);
/* What the child process may use. Nodes are what ends a long search, the same on every machine; time and memory only
 * guard against a solver that has lost its way. */
typedef struct CrossLimits {
    int nodes, seconds; /* of the processor */
    int64_t bytes;
} CrossLimits;

/* Minimises in a child process. `way` 0 to CROSS_WAYS - 1: scaling and preprocessing; what is too ill-conditioned for one
 * may work for another. A child that ends without an answer is none: *out says what happened to it. */
enum { CROSS_WAYS = 3 };
Status cross_solve(Diag *d, const CrossProblem *p, const CrossLimits *limits, int way, CrossAnswer *out);

#endif
