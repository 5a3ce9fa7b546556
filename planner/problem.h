/* problem.h - the papers' view of a profile: one row a unit in order of first use, and what stands between them.
 *
 * The algorithms of MemFerry know layers l = 1..L with a load time and two forward and backward times, and the time of
 * the parameter-free operators A(l, l+1) between them. Our graph has units, which may be read in several layers. An
 * *item* is a unit standing at its first use; whatever else computes - parameter-free segments, the other uses of a
 * tied unit, layers that own no unit - is time in A. Items count from 0 here, the papers' layer l is item l - 1, and
 * a[i] is what comes before item i: a[0] is A(0,1), a[n_item] is A(L,L+1) with the loss. */
#ifndef FERRY_PLANNER_PROBLEM_H
#define FERRY_PLANNER_PROBLEM_H

#include "planner/plan.h"

typedef struct Item {
    int unit, layer;
    int64_t bytes;          /* S_l, all parameters */
    int64_t trans_ns;       /* T_trans */
    int64_t fp_ns, fp_h_ns; /* T_FP, T_FP^H */
    int64_t bp_ns, bp_h_ns; /* T_BP, T_BP^H: gradients on the GPU */
} Item;

typedef struct Problem {
    const Graph *graph;
    const Profile *profile;
    int n_item; /* units that a kernel reads */
    Item *item;
    int64_t *a_fp_ns, *a_bp_ns; /* n_item + 1 each */
    int *item_of_unit;          /* -1: no kernel reads the unit */
} Problem;

/* needs: a graph and the profile that matches it   fills: everything above. Memory in the arena.
 * A layer in which several units stand gives its time with everything on the GPU to the first of them, and what DHA
 * adds is divided by the bytes that each reads. */
Status problem_make(Diag *d, Arena *a, const Graph *g, const Profile *p, Problem **out);
void problem_print(const Problem *p, Text *to); /* --dump=after:problem */

/* What the kernels of a layer's phase read of a unit's parameters / write of its gradients, in bytes: the key by which
 * the cost of DHA is divided among the units of a layer. 0: it does not touch them. */
int64_t problem_read_bytes(const Graph *g, int layer, Phase phase, int unit);
int64_t problem_grad_bytes(const Graph *g, int layer, int unit);

/* T_GBP - T_CBP summed over all layers that write the unit's gradients, with its parameters where `plan` puts them in
 * each. */
int64_t problem_grad_gain_ns(const Problem *p, int unit, const UnitPlan *plan);
/* What reading by DHA before use `first_gpu_use` adds to the compute stream, gradients on the GPU. */
int64_t problem_dha_cost_ns(const Problem *p, int unit, int first_gpu_use);

/* The two ways to read an ambiguous line; memferry_fp.c and memferry_bp.c say which line that is. */
typedef enum FpReading { FP_LITERAL, FP_SLACK, FP_READING_COUNT } FpReading;
typedef enum BpReading { BP_LITERAL, BP_HIDDEN, BP_READING_COUNT } BpReading;
const char *fp_reading_name(FpReading r);
const char *bp_reading_name(BpReading r);

typedef struct MemferryState {
    Mode *mode;     /* P, by item */
    int64_t all_ns; /* T_all: compute is done so far */
    int64_t res_ns; /* T_res: load time that can still be hidden */
    int tag;        /* item, -1: none */
} MemferryState;

/* Alg. 1. fills: mode (GFGB or DHA), all_ns, res_ns, tag. */
Status memferry_fp(Diag *d, Arena *a, const Problem *p, FpReading reading, MemferryState *out);
/* Alg. 2. needs: the state after memferry_fp   changes: DHA items become DFGB; res_ns is what is left of the window. */
Status memferry_bp(Diag *d, Arena *a, const Problem *p, BpReading reading, MemferryState *state);
void memferry_print(const Problem *p, const MemferryState *s, const char *title,
                    Text *to); /* --dump=after:fp, after:bp */

/* The gradient offload of GO-MemFerry, exactly: of n things with bytes[i] >= 0 and gain[i], the set with the largest
 * sum of gains whose bytes do not exceed limit_bytes; among equal gains the fewest bytes. keep[i] says whether i is in
 * it; a gain of 0 or less is never worth a byte. ST_FAILED when the instance needs more states than memory allows. */
Status gradient_offload(Diag *d, int n, const int64_t *bytes, const int64_t *gain, int64_t limit_bytes, bool *keep);

#endif
