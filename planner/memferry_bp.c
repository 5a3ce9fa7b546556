/* memferry_bp.c - Algorithm 2 of MemFerry: which of the units that FP reads by DHA are loaded for BP (DFGB).
 *
 * When the last load of FP is over the link stands idle until gradients come back. The window is the slack that FP
 * left, T_res, and the backward time of the layers behind the tag. Candidates are DHA layers whose backward gets faster
 * by a load; the best go first, each takes its load time from the window, and one that does not fit is skipped.
 *
 * Two readings of the test in line 4 and of the gain in line 5:
 *   literal   T_trans + T_BP < T_BP^H; the gain counts the load as if compute waited for all of it
 *   hidden    T_BP < T_BP^H; a load inside the window costs nothing
 *
 * In both a load is accepted only if it and all others still end before the backward that they serve starts: the window
 * bounds their sum, but a layer near the end of the network starts its backward long before the window is over.
 *
 *        link     FP loads |== load of DFGB j ==|== load of DFGB i ==|
 *        compute  ... FP          | BP(L) | A | BP(j) | A | ... | BP(i)
 *                  <--- T_res --->|
 */
#include "planner/problem.h"

#include <stdlib.h>

const char *bp_reading_name(BpReading r)
{
    return r == BP_LITERAL ? "literal" : "hidden";
}

typedef struct Candidate {
    int item;
    int64_t gain_ns;
} Candidate;

/* Largest gain first; among equals the layer whose backward comes first, in which order line 3 finds them. */
static int by_gain(const void *x, const void *y)
{
    const Candidate *a = x, *b = y;
    if (a->gain_ns != b->gain_ns)
        return a->gain_ns > b->gain_ns ? -1 : 1;
    return b->item - a->item;
}

/* Do all loads of DFGB items, in order of their backward, end before it? Time 0 is the start of BP; the link is free
 * from -free_ns on. */
static bool loads_in_time(const Problem *p, const Mode *mode, int64_t free_ns)
{
    int64_t compute = p->a_bp_ns[p->n_item], link = -free_ns;
    for (int i = p->n_item - 1; i >= 0; i--) {
        if (mode[i] == MODE_DFGB) {
            link += p->item[i].trans_ns;
            if (link > compute)
                return false;
        }
        compute += (mode[i] == MODE_DHA ? p->item[i].bp_h_ns : p->item[i].bp_ns) + p->a_bp_ns[i];
    }
    return true;
}

/* needs: state after Alg. 1   changes: mode, res_ns */
Status memferry_bp(Diag *d, Arena *a, const Problem *p, BpReading reading, MemferryState *s)
{
    Candidate *list = ARENA_NEW(a, Candidate, p->n_item);
    if (!list)
        return diag_oom(d);
    int64_t slack = s->res_ns;
    for (int i = s->tag + 1; i < p->n_item; i++) /* line 1; tag -1: all */
        s->res_ns += p->item[i].bp_ns + p->a_bp_ns[i + 1];
    int n = 0;
    for (int i = p->n_item - 1; i >= 0; i--) {
        const Item *it = &p->item[i];
        int64_t cost = reading == BP_LITERAL ? it->trans_ns + it->bp_ns : it->bp_ns;
        if (s->mode[i] == MODE_DHA && cost < it->bp_h_ns)
            list[n++] = (Candidate){i, it->bp_h_ns - cost};
    }
    qsort(list, (size_t)n, sizeof *list, by_gain);
    for (int k = 0; k < n; k++) {
        int i = list[k].item;
        if (s->res_ns <= p->item[i].trans_ns)
            continue;
        s->mode[i] = MODE_DFGB;
        if (loads_in_time(p, s->mode, slack))
            s->res_ns -= p->item[i].trans_ns;
        else
            s->mode[i] = MODE_DHA;
    }
    return ST_OK;
}
