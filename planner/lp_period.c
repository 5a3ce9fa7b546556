/* lp_period.c - the longest cycle of the orderings, for one set of choices or for a mixture.
 *
 * A cycle of orderings that spans n iterations and takes w forbids any period below w / n; the largest such ratio is
 * the period. It is found by Newton's method: with period T each ordering weighs (its duration - span T); as long as
 * longest paths (Bellman and Ford) run into a cycle of positive weight, that cycle's ratio is the next T. Each step is
 * strictly larger and every ratio is one of finitely many. The orderings within an iteration are swept in topological
 * order, so that a sweep settles everything but what comes around from the iteration before. */
#include <string.h>

#include "planner/lp_model.h"

enum {
    FINE = 64,      /* a limit is reached when a ratio is more than limit - 1 / (FINE * span) */
    PARTS = 1024,   /* of a nanosecond, in the weights of a mixture */
    MAX_FOUND = 64, /* cycles of one mixture */
    KEEP = 3,       /* of them */
    JUMPS = 4
};

/* The condition by choice, from *room on, which is moved on; NULL: it always holds. */
static const bool *tabulate(const LpModel *m, const LpWhen *w, bool **room)
{
    if (w->unit < 0)
        return NULL;
    int n = m->group[m->group_of_unit[w->unit]].n_choice;
    bool *out = *room;
    for (int c = 0; c < n; c++)
        out[c] = lp_holds(m, w, c);
    *room += n;
    return out;
}

static size_t table_size(const LpModel *m, const LpWhen *w)
{
    return w->unit < 0 ? 0 : (size_t)m->group[m->group_of_unit[w->unit]].n_choice;
}

static bool tabulate_conditions(LpTimer *t)
{
    const LpModel *m = t->m;
    size_t n = 0;
    for (int i = 0; i < m->n_event; i++)
        n += table_size(m, &m->event[i].there);
    for (int i = 0; i < m->n_edge; i++)
        n += table_size(m, &m->edge[i].when);
    bool *room = t->condition = base_alloc(n + 1);
    if (!room)
        return false;
    for (int i = 0; i < m->n_event; i++)
        t->there[i] = tabulate(m, &m->event[i].there, &room);
    for (int i = 0; i < m->n_edge; i++)
        t->holds[i] = tabulate(m, &m->edge[i].when, &room);
    return true;
}

Status lp_timer_open(Diag *d, const LpModel *m, LpTimer *t)
{
    size_t events = (size_t)m->n_event, slots = (size_t)m->scan.n_slot + 1, edges = (size_t)m->n_edge;
    *t = (LpTimer){.m = m};
    t->event_ns = base_alloc((2 * events + slots + edges) * sizeof *t->event_ns);
    t->event_part = base_alloc((events + slots) * sizeof *t->event_part);
    t->on = base_alloc(edges + 1);
    t->before = base_alloc(3 * events * sizeof *t->before);
    t->there = base_alloc((events + edges + 1) * sizeof *t->there);
    t->holds = t->there ? t->there + events : NULL;
    if (!t->event_ns || !t->event_part || !t->on || !t->before || !t->there || !tabulate_conditions(t)) {
        lp_timer_close(t);
        return diag_oom(d);
    }
    t->sum_ns = t->event_ns + events;
    t->at = t->sum_ns + slots;
    t->weight = t->at + events;
    t->sum_part = t->event_part + events;
    t->mark = t->before + events;
    t->cycle = t->mark + events;
    return ST_OK;
}

void lp_timer_close(LpTimer *t)
{
    base_free(t->event_ns);
    base_free(t->event_part);
    base_free(t->on);
    base_free(t->before);
    base_free(t->there);
    base_free(t->condition);
    *t = (LpTimer){0};
}

/* A cycle among the edges by which events are reached last: it has positive weight. */
static bool close_cycle(LpTimer *t)
{
    const LpModel *m = t->m;
    memset(t->mark, 0, (size_t)m->n_event * sizeof *t->mark);
    for (int i = 0; i < m->n_event; i++) {
        int e = i;
        while (t->before[e] >= 0 && t->mark[e] == 0) {
            t->mark[e] = i + 1;
            e = m->edge[t->before[e]].from;
        }
        if (t->before[e] < 0 || t->mark[e] != i + 1)
            continue;
        t->n_cycle = 0;
        int end = e;
        do {
            t->cycle[t->n_cycle++] = t->before[e];
            e = m->edge[t->before[e]].from;
        } while (e != end);
        return true;
    }
    return false;
}

static bool relax(LpTimer *t, int from, int to)
{
    bool changed = false;
    for (int i = from; i < to; i++) {
        const LpEdge *e = &t->m->edge[i];
        if (!t->on[i] || t->at[e->from] + t->weight[i] <= t->at[e->to])
            continue;
        t->at[e->to] = t->at[e->from] + t->weight[i];
        t->before[e->to] = i;
        changed = true;
    }
    return changed;
}

/* Is there a cycle of positive weight? Then it is in t->cycle. */
static bool positive(LpTimer *t)
{
    const LpModel *m = t->m;
    for (int i = 0; i < m->n_event; i++) {
        t->at[i] = 0;
        t->before[i] = -1;
    }
    relax(t, 0, m->n_forward);
    while (relax(t, m->n_forward, m->n_edge)) {
        if (close_cycle(t))
            return true;
        if (!relax(t, 0, m->n_forward))
            return false;
    }
    return false;
}

static void set_choices(LpTimer *t, const int *choice)
{
    const LpModel *m = t->m;
    for (int i = 0; i < m->scan.n_slot; i++)
        t->sum_ns[i + 1] = t->sum_ns[i] + m->slot_ns[i][m->slot_group[i] < 0 ? 0 : choice[m->slot_group[i]]];
    for (int i = 0; i < m->n_event; i++) {
        bool there = !t->there[i] || t->there[i][choice[m->group_of_unit[m->event[i].there.unit]]];
        t->event_ns[i] = there ? m->event[i].duration_ns : 0;
    }
    for (int i = 0; i < m->n_edge; i++)
        t->on[i] = !t->holds[i] || t->holds[i][choice[m->group_of_unit[m->edge[i].when.unit]]];
}

static int64_t edge_ns(const LpTimer *t, const LpEdge *e)
{
    return t->event_ns[e->from] + t->sum_ns[e->last] - t->sum_ns[e->first];
}

static LpRatio cycle_ratio(const LpTimer *t)
{
    LpRatio r = {0, 0};
    for (int i = 0; i < t->n_cycle; i++) {
        const LpEdge *e = &t->m->edge[t->cycle[i]];
        r.time_ns += edge_ns(t, e);
        r.span += e->span;
    }
    return r;
}

/* The ratio of the cycle found last when these choices have it too; else its span is 0. Plans that are timed one after
 * the other differ in little: mostly the same cycle is the longest. */
static LpRatio last_cycle(const LpTimer *t)
{
    for (int i = 0; i < t->n_cycle; i++)
        if (!t->on[t->cycle[i]])
            return (LpRatio){0, 0};
    return cycle_ratio(t);
}

static bool above(LpRatio r, int64_t time, int64_t span)
{
    return r.span > 0 && r.time_ns * span > time * r.span;
}

/* A cycle whose ratio is more than time / span, if there is one. */
static bool exceeds(LpTimer *t, int64_t time, int64_t span)
{
    for (int i = 0; i < t->m->n_edge; i++)
        t->weight[i] = edge_ns(t, &t->m->edge[i]) * span - t->m->edge[i].span * time;
    return positive(t);
}

LpRatio lp_period(LpTimer *t, const int *choice, LpRatio limit)
{
    const LpModel *m = t->m;
    set_choices(t, choice);
    LpRatio last = last_cycle(t);
    if (limit.span > 0 && above(last, limit.time_ns * FINE - 1, (int64_t)limit.span * FINE))
        return (LpRatio){0, 0};
    if (limit.span > 0 && exceeds(t, limit.time_ns * FINE - 1, (int64_t)limit.span * FINE))
        return (LpRatio){0, 0};
    /* each stream alone is a cycle of one iteration: start just below the busiest */
    int64_t busy[LP_FIRST + 1] = {0}, most = t->sum_ns[m->scan.n_compute], load = 0, update = 0;
    for (int i = 0; i < m->n_event; i++)
        busy[m->event[i].kind] += t->event_ns[i];
    load = busy[LP_INPUT] + busy[LP_LOAD];
    update = busy[LP_SQNORM] + busy[LP_EARLY] + busy[LP_NORM] + busy[LP_LATE];
    most = load > most ? load : most;
    most = update > most ? update : most;
    LpRatio best = {most - 1, 1};
    if (above(last, best.time_ns, best.span))
        best = last;
    while (exceeds(t, best.time_ns, best.span))
        best = cycle_ratio(t);
    return best;
}

int64_t lp_period_ns(LpRatio r)
{
    return (2 * r.time_ns + r.span) / (2 * (int64_t)r.span);
}

/* ---- mixtures
 * ---------------------------------------------------------------------------------------------------------------- */

/* How far a condition holds. */
static double part(const LpModel *m, const LpWhen *w, const double *x)
{
    if (w->unit < 0)
        return 1;
    int g = m->group_of_unit[w->unit];
    double sum = 0;
    for (int c = 0; c < m->group[g].n_choice; c++)
        if (x[m->first_column[g] + c] > 0 && lp_holds(m, w, c))
            sum += x[m->first_column[g] + c];
    return sum > 1 ? 1 : sum;
}

static void set_mixture(LpTimer *t, const double *x)
{
    const LpModel *m = t->m;
    for (int i = 0; i < m->scan.n_slot; i++) {
        int g = m->slot_group[i];
        double ns = g < 0 ? (double)m->slot_ns[i][0] : 0;
        for (int c = 0; g >= 0 && c < m->group[g].n_choice; c++)
            ns += x[m->first_column[g] + c] * (double)m->slot_ns[i][c];
        t->sum_part[i + 1] = t->sum_part[i] + ns;
    }
    for (int i = 0; i < m->n_event; i++)
        t->event_part[i] = (double)m->event[i].duration_ns * part(m, &m->event[i].there, x);
}

Status lp_violated(LpTimer *t, const double *x, double from_ns, int64_t best_ns, bool conditions, LpFound *found,
                   void *context)
{
    const LpModel *m = t->m;
    set_mixture(t, x);
    double *edge_part = base_alloc((size_t)m->n_edge * sizeof *edge_part);
    if (!edge_part)
        return ST_FAILED;
    for (int i = 0; i < m->n_edge; i++) {
        const LpEdge *e = &m->edge[i];
        double holds = part(m, &e->when, x);
        edge_part[i] = t->event_part[e->from] + t->sum_part[e->last] - t->sum_part[e->first];
        t->on[i] = holds > 0 && (conditions || e->when.unit < 0);
        if (e->when.unit >= 0)
            edge_part[i] -= (1 - holds) * ((double)e->periods * (double)best_ns - (double)e->slack_ns);
    }
    /* A large first step where there is one, then Newton's; the last cycles are the ones that matter. */
    double period = from_ns, high = (double)best_ns;
    int *kept[KEEP] = {0}, n_kept[KEEP], n = 0;
    Status st = ST_OK;
    for (int tries = 0; n < MAX_FOUND && st == ST_OK; tries++) {
        bool jump = n == 0 && tries < JUMPS && high > from_ns;
        double at = jump ? high - (high - from_ns) * tries / JUMPS : period;
        for (int i = 0; i < m->n_edge; i++)
            t->weight[i] = (int64_t)((edge_part[i] - m->edge[i].span * at) * PARTS);
        if (!positive(t)) {
            if (jump)
                continue;
            break;
        }
        double time = 0;
        int span = 0;
        for (int i = 0; i < t->n_cycle; i++) {
            time += edge_part[t->cycle[i]];
            span += m->edge[t->cycle[i]].span;
        }
        if (!(time / span > at))
            break; /* the rest is rounding */
        period = time / span;
        int *copy = base_alloc((size_t)t->n_cycle * sizeof *copy);
        if (!copy) {
            st = ST_FAILED;
            break;
        }
        memcpy(copy, t->cycle, (size_t)t->n_cycle * sizeof *copy);
        base_free(kept[n % KEEP]);
        kept[n % KEEP] = copy;
        n_kept[n++ % KEEP] = t->n_cycle;
    }
    for (int i = n < KEEP ? 0 : n - KEEP; i < n && st == ST_OK; i++)
        st = found(context, kept[i % KEEP], n_kept[i % KEEP]);
    for (int i = 0; i < KEEP; i++)
        base_free(kept[i]);
    base_free(edge_part);
    return st;
}
