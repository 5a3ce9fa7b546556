/* lp_cut.c - the row of one cycle of orderings, in whole nanoseconds.
 *
 * needs: the edges of a cycle   fills: LpCut   keeps: the model
 *
 * Where all conditions on the cycle hold, its coefficients are durations: for each group and choice, what the slots
 * and steps on the cycle take under that choice. A choice for which a condition fails must not be bound by this row.
 * Two proofs give its coefficient, and the larger one (the stronger row) counts:
 *
 *   by edges   the durations less, for each condition that fails, the M of that edge (lp_model.h)
 *   by groups  what makes the whole right side at most span * (a proven bound), however all other groups choose
 *
 * A set of choices with several failing groups is covered as well: if one of them has its coefficient by the second
 * proof, the right side is small enough whatever the others add, since no coefficient is more than the duration; else
 * all have it by the first. */
#include "planner/lp_model.h"

Status lp_cut_make(Diag *d, Arena *a, const LpModel *m, const int *edge, int n, const bool *allowed, int64_t bound_ns,
                   int64_t best_ns, LpCut *out)
{
    int columns = m->first_column[m->n_group];
    Arena *scratch = arena_open();
    int64_t *at = ARENA_NEW(a, int64_t, columns);
    int64_t *most = scratch ? ARENA_NEW(scratch, int64_t, m->n_group) : NULL;
    int64_t *fails = scratch ? ARENA_NEW(scratch, int64_t, columns) : NULL; /* sum of M; -1: no condition fails */
    int *times = scratch ? ARENA_NEW(scratch, int, m->scan.n_slot + 1) : NULL;
    if (!at || !most || !fails || !times) {
        arena_close(scratch);
        return diag_oom(d);
    }
    *out = (LpCut){.at = at};
    for (int i = 0; i < columns; i++)
        fails[i] = -1;
    for (int i = 0; i < n; i++) {
        const LpEdge *e = &m->edge[edge[i]];
        const LpEvent *from = &m->event[e->from];
        out->span += e->span;
        times[e->first]++;
        times[e->last]--;
        if (from->there.unit < 0)
            out->constant_ns += from->duration_ns;
        for (int side = 0; side < 2; side++) {
            const LpWhen *w = side ? &e->when : &from->there;
            int g = w->unit < 0 ? -1 : m->group_of_unit[w->unit];
            for (int c = 0; g >= 0 && c < m->group[g].n_choice; c++) {
                int column = m->first_column[g] + c;
                if (!side && lp_holds(m, w, c))
                    at[column] += from->duration_ns;
                if (side && !lp_holds(m, w, c))
                    fails[column] =
                        (fails[column] < 0 ? 0 : fails[column]) + (int64_t)e->periods * best_ns - e->slack_ns;
            }
        }
    }
    for (int i = 0, count = 0; i < m->scan.n_slot; i++) {
        count += times[i];
        int g = m->slot_group[i];
        if (count == 0)
            continue;
        if (g < 0)
            out->constant_ns += count * m->slot_ns[i][0];
        for (int c = 0; g >= 0 && c < m->group[g].n_choice; c++)
            at[m->first_column[g] + c] += count * m->slot_ns[i][c];
    }
    int64_t all = out->constant_ns;
    for (int g = 0; g < m->n_group; g++) {
        bool any = false;
        for (int c = m->first_column[g]; c < m->first_column[g + 1]; c++)
            if (allowed[c] && (!any || at[c] > most[g])) {
                most[g] = at[c];
                any = true;
            }
        all += most[g];
    }
    for (int g = 0; g < m->n_group; g++)
        for (int c = m->first_column[g]; c < m->first_column[g + 1]; c++) {
            if (fails[c] < 0)
                continue;
            int64_t by_edges = at[c] - fails[c], by_groups = (int64_t)out->span * (bound_ns - 1) - (all - most[g]);
            int64_t better = by_edges > by_groups ? by_edges : by_groups;
            at[c] = better < at[c] ? better : at[c];
        }
    arena_close(scratch);
    return ST_OK;
}
