/* lp_exchange.c - better plans near a given one: change one group's choice, or two groups' at a time.
 *
 * needs: choices, their period   fills: better ones   keeps: what is proven
 *
 * A changed plan is faster only if each row known so far allows it: (constant + the sum of its coefficients) / span
 * below the best period. With the sums of the present plan that takes one addition for each row, and hardly any change
 * passes. One that does is timed exactly; when it is no better, its longest cycle becomes a row, and changes that fail
 * for the same reason do not pass again. */
#include <string.h>

#include "planner/optimal.h"

enum {
    ROWS = 512, /* kept; then the oldest is replaced */
    PAIRS = 2 * 1000 * 1000 /* asked in one exchange: their number grows with the square of the choices */
};

typedef struct Pool {
    LpMaster *x;
    Arena *a;
    int n, next, pairs;
    int64_t limit_ns; /* rows hold for plans up to this period */
    LpCut cut[ROWS];
    int64_t sum[ROWS]; /* of the present plan */
} Pool;

static void sum_up(Pool *p, int i, const int *choice)
{
    const LpModel *m = p->x->m;
    p->sum[i] = p->cut[i].constant_ns;
    for (int g = 0; g < m->n_group; g++)
        p->sum[i] += p->cut[i].at[m->first_column[g] + choice[g]];
}

static Status add_row(Pool *p, int i, const int *edge, int n, const int *choice)
{
    LpMaster *x = p->x;
    TRY(lp_cut_make(x->d, p->a, x->m, edge, n, x->allowed, x->bound_ns, p->limit_ns, &p->cut[i]));
    sum_up(p, i, choice);
    return ST_OK;
}

/* The cycle found last becomes a row, the first to be asked from now on among equals. */
static Status add_last_cycle(Pool *p, const int *choice)
{
    LpMaster *x = p->x;
    int i = p->n < ROWS ? p->n++ : (p->next = (p->next + 1) % ROWS);
    return add_row(p, i, x->timer.cycle, x->timer.n_cycle, choice);
}

/* Could the plan be faster than `limit` with these changes of two columns each? (2 time + span) / (2 span) is its
 * rounded time. */
static bool passes(const Pool *p, int from1, int to1, int from2, int to2, int64_t limit_ns)
{
    for (int i = p->n; i-- > 0;) {
        const LpCut *c = &p->cut[i];
        int64_t time = p->sum[i] + c->at[to1] - c->at[from1] + (from2 >= 0 ? c->at[to2] - c->at[from2] : 0);
        if (2 * time + c->span >= 2 * (int64_t)c->span * limit_ns)
            return false;
    }
    return true;
}

/* Times the changed choices. *better: they are taken. */
static Status attempt(Pool *p, const int *changed, int *choice, int64_t *period_ns, bool *better)
{
    LpMaster *x = p->x;
    LpRatio limit = {2 * *period_ns - 1, 2};
    LpRatio r = lp_period(&x->timer, changed, limit);
    *better = r.span > 0 && lp_period_ns(r) < *period_ns;
    if (*better) {
        memcpy(choice, changed, (size_t)x->m->n_group * sizeof *choice);
        *period_ns = lp_period_ns(r);
        master_improve(x, choice, *period_ns);
        for (int i = 0; i < p->n; i++)
            sum_up(p, i, choice);
    }
    return add_last_cycle(p, choice);
}

/* One pass over single changes, or over pairs; stops at the first that is better. */
static Status pass(Pool *p, bool pairs, int *choice, int *changed, int64_t *period_ns, int *evaluations, bool *better)
{
    const LpMaster *x = p->x;
    const LpModel *m = x->m;
    *better = false;
    for (int g = 0; g < m->n_group; g++) {
        for (int c = 0; c < m->group[g].n_choice; c++) {
            int to = m->first_column[g] + c, from = m->first_column[g] + choice[g];
            if (to == from || !x->allowed[to])
                continue;
            changed[g] = c;
            if (!pairs && passes(p, from, to, -1, -1, *period_ns)) {
                if ((*evaluations)-- <= 0)
                    return ST_OK;
                TRY(attempt(p, changed, choice, period_ns, better));
                if (*better)
                    return ST_OK;
            }
            for (int h = g + 1; pairs && h < m->n_group; h++) {
                for (int e = 0; e < m->group[h].n_choice; e++) {
                    int to2 = m->first_column[h] + e, from2 = m->first_column[h] + choice[h];
                    if (to2 == from2 || !x->allowed[to2])
                        continue;
                    if (p->pairs++ >= PAIRS)
                        return ST_OK;
                    if (!passes(p, from, to, from2, to2, *period_ns))
                        continue;
                    if ((*evaluations)-- <= 0)
                        return ST_OK;
                    changed[h] = e;
                    TRY(attempt(p, changed, choice, period_ns, better));
                    if (*better)
                        return ST_OK;
                    changed[h] = choice[h];
                }
            }
            changed[g] = choice[g];
        }
    }
    return ST_OK;
}

/* The choice of a group that differs from c in the time of one unit's update; -1: there is none. */
static int with_late(const LpModel *m, int g, int c, int unit, bool late)
{
    const LpGroup *group = &m->group[g];
    const UnitPlan *now = &group->choice[(size_t)c * (size_t)group->n_unit];
    for (int o = 0; o < group->n_choice; o++) {
        const UnitPlan *other = &group->choice[(size_t)o * (size_t)group->n_unit];
        bool same = true;
        for (int k = 0; k < group->n_unit; k++)
            same = same && other[k].first_gpu_use == now[k].first_gpu_use && other[k].hold == now[k].hold &&
                   other[k].grad == now[k].grad &&
                   other[k].late == (group->unit[k] == unit ? late : now[k].late);
        if (same)
            return o;
    }
    return -1;
}

/* The updates of the first k units in `order` become late, the others early; `changed` gets the choices. */
static void split_at(const LpMaster *x, const int *order, int n, int k, int *changed)
{
    const LpModel *m = x->m;
    for (int i = 0; i < n; i++) {
        int group = m->group_of_unit[order[i]], c = with_late(m, group, changed[group], order[i], i < k);
        if (c >= 0 && x->allowed[m->first_column[group] + c])
            changed[group] = c;
    }
}

Status split_updates(LpMaster *x, int *choice, int64_t *period_ns)
{
    enum { GRID = 16 };
    const LpModel *m = x->m;
    const Graph *g = m->graph;
    int *changed = base_alloc((size_t)m->n_group * sizeof *changed + 1);
    int *order = base_alloc((size_t)g->n_unit * sizeof *order + 1), n = 0, best = 0;
    if (!changed || !order) {
        base_free(changed);
        base_free(order);
        return diag_oom(x->d);
    }
    for (int i = 0; i < m->n_event; i++)
        if (m->event[i].kind == LP_LATE)
            order[n++] = m->event[i].unit;
    memcpy(changed, choice, (size_t)m->n_group * sizeof *changed);
    /* Strides over all units, then ever shorter ones around the best. */
    for (int stride = n / GRID + 1, from = 0, to = n; stride > 0; stride /= 2) {
        for (int k = from; k <= to; k += stride) {
            split_at(x, order, n, k, changed);
            LpRatio r = lp_period(&x->timer, changed, (LpRatio){2 * *period_ns - 1, 2});
            if (r.span == 0 || lp_period_ns(r) >= *period_ns)
                continue;
            best = k;
            *period_ns = lp_period_ns(r);
            memcpy(choice, changed, (size_t)m->n_group * sizeof *changed);
            master_improve(x, choice, *period_ns);
        }
        from = best - stride > 0 ? best - stride : 0;
        to = best + stride < n ? best + stride : n;
    }
    base_free(changed);
    base_free(order);
    return ST_OK;
}

Status exchange(LpMaster *x, int *choice, int64_t *period_ns, int evaluations)
{
    Arena *scratch = arena_open();
    Pool *p = scratch ? ARENA_NEW(scratch, Pool, 1) : NULL;
    int *changed = scratch ? ARENA_NEW(scratch, int, x->m->n_group) : NULL;
    Status st = p && changed ? ST_OK : diag_oom(x->d);
    if (st == ST_OK) {
        p->x = x;
        p->a = scratch;
        p->limit_ns = *period_ns;
        for (int i = 0; i < x->row.count && p->n < ROWS / 2 && st == ST_OK; i++)
            st = add_row(p, p->n++, x->row.at[i].edge, x->row.at[i].n_edge, choice);
    }
    if (st == ST_OK) {
        lp_period(&x->timer, choice, (LpRatio){0, 0});
        st = add_last_cycle(p, choice);
    }
    for (bool better = true; better && st == ST_OK && evaluations > 0;) {
        memcpy(changed, choice, (size_t)x->m->n_group * sizeof *changed);
        st = pass(p, false, choice, changed, period_ns, &evaluations, &better);
        if (better || st != ST_OK || evaluations <= 0)
            continue;
        memcpy(changed, choice, (size_t)x->m->n_group * sizeof *changed);
        st = pass(p, true, choice, changed, period_ns, &evaluations, &better);
    }
    arena_close(scratch);
    return st;
}
