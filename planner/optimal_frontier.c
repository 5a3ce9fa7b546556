/* optimal_frontier.c - plans between the fastest and the one that needs least memory, by a price of memory.
 *
 * needs: the optimum   fills: plans   keeps: the optimum
 *
 * A byte that a choice keeps on the GPU costs time: the relaxation minimises the period plus price times bytes, and its
 * solution is rounded and its updates are split anew. Parameters that are loaded lie on the GPU from the beginning of a
 * step to their last use, gradients from their first write to the end of the step, and memory is short now where
 * activations are most (only parameters count), now at the end (gradients count most): three kinds of price, each over
 * a geometric grid around the mean price of a byte between the two ends. Layers that are alike change their minds at
 * the same price: where two neighbours are far apart in bytes, plans are put between them that follow one in the first
 * half of the groups that differ and the other in the rest. What a plan really reserves is found by laying it out,
 * later. */
#include <string.h>

#include "planner/optimal.h"
#include "planner/steps.h"

enum {
    PRICES = 10, /* of each kind: the mean price times 2^-4 to 2^5 */
    LOWEST = -4,
    ROUNDS = 12,
    WORK = 4 * 1000 * 1000, /* simplex iterations times columns; when they are used up, what rows are worth stays as it is */
    KINDS = 3,
    REFINE = 6 /* plans put between others, for each kind */
};

typedef struct Point {
    int *choice;
    double bytes;
} Point;

typedef struct Frontier {
    Diag *d;
    Arena *a;
    const LpModel *m;
    LpMaster x;
    UnitPlan **plan;
    int n;
    int *choice;
    double *cost;
    Point point[PRICES + REFINE]; /* of one kind, in order of the price */
    int n_point;
} Frontier;

static Status keep(Frontier *f, const int *choice)
{
    UnitPlan *u = ARENA_NEW(f->a, UnitPlan, f->m->graph->n_unit);
    if (!u)
        return diag_oom(f->d);
    lp_plan_of_choices(f->m, choice, u);
    f->plan[f->n++] = u;
    return ST_OK;
}

/* What lies on the GPU beside the parameters that kernels read when a unit lives there. */
static int64_t state_bytes(const Graph *g, const Unit *u)
{
    int64_t bytes = 0;
    for (int i = 0; i < u->n_param; i++)
        if (g->param[u->param[i]].trainable)
            bytes += param_buffer_bytes(g, u->param[i], BUFFER_STATE_M) + param_buffer_bytes(g, u->param[i], BUFFER_STATE_V);
    return bytes;
}

/* Bytes that a choice keeps on the GPU. What is loaded twice is there for a window's time only: a small part of it. */
static double bytes_of(const LpModel *m, int g, int c, bool params, bool grads)
{
    double bytes = 0;
    for (int k = 0; k < m->group[g].n_unit; k++) {
        const Unit *u = &m->graph->unit[m->group[g].unit[k]];
        const UnitPlan *p = &m->group[g].choice[(size_t)c * (size_t)m->group[g].n_unit + (size_t)k];
        double part = p->hold == HOLD_RELOAD ? 0.05 : 1;
        bytes += params && p->first_gpu_use < u->n_use ? part * (double)u->bytes : 0;
        bytes += grads && p->grad == ON_GPU ? (double)u->grad_bytes : 0;
        bytes += params && p->hold == HOLD_RESIDENT ? (double)state_bytes(m->graph, u) : 0;
    }
    return bytes;
}

static void charge(Frontier *f, double price, bool params, bool grads)
{
    const LpModel *m = f->m;
    for (int g = 0; g < m->n_group; g++)
        for (int c = 0; c < m->group[g].n_choice; c++)
            f->cost[m->first_column[g] + c] = price * bytes_of(m, g, c, params, grads);
    master_charge(&f->x, f->cost);
}

/* The choice of each group that weighs most; among equals the one that costs least. Where there is no solution, the one that
 * is cheapest by what the rows are worth. */
static void round_off(Frontier *f)
{
    const LpModel *m = f->m;
    for (int g = 0; g < m->n_group && !f->x.solved; g++) {
        f->choice[g] = 0;
        for (int c = 1; c < m->group[g].n_choice; c++) {
            int best = m->first_column[g] + f->choice[g], column = m->first_column[g] + c;
            if (f->x.price[column] + f->cost[column] < f->x.price[best] + f->cost[best])
                f->choice[g] = c;
        }
    }
    if (!f->x.solved)
        return;
    for (int g = 0; g < m->n_group; g++) {
        f->choice[g] = 0;
        for (int c = 1; c < m->group[g].n_choice; c++) {
            int best = m->first_column[g] + f->choice[g], column = m->first_column[g] + c;
            if (f->x.x[column] > f->x.x[best] || (f->x.x[column] == f->x.x[best] && f->cost[column] < f->cost[best]))
                f->choice[g] = c;
        }
    }
}

/* f->choice with its updates split anew, as the point at `at`. */
static Status insert(Frontier *f, int at)
{
    const LpModel *m = f->m;
    int64_t period = lp_period_ns(lp_period(&f->x.timer, f->choice, (LpRatio){0, 0}));
    TRY(split_updates(&f->x, f->choice, &period));
    TRY(keep(f, f->choice));
    Point p = {ARENA_NEW(f->a, int, m->n_group), 0};
    if (!p.choice)
        return diag_oom(f->d);
    memcpy(p.choice, f->choice, (size_t)m->n_group * sizeof *p.choice);
    for (int g = 0; g < m->n_group; g++)
        p.bytes += bytes_of(m, g, p.choice[g], true, true);
    for (int i = f->n_point++; i > at; i--)
        f->point[i] = f->point[i - 1];
    f->point[at] = p;
    return ST_OK;
}

static Status at_price(Frontier *f, double price, bool params, bool grads)
{
    int64_t unused;
    charge(f, price, params, grads);
    f->x.solved = false;
    if (f->x.iterations_left > 0)
        TRY(master_solve(&f->x, f->x.allowed, ROUNDS, 0, &unused));
    round_off(f);
    return insert(f, f->n_point);
}

/* Between the neighbours that are furthest apart in bytes. */
static Status refine(Frontier *f)
{
    const LpModel *m = f->m;
    int at = 0, differ = 0, seen = 0;
    double most = 0;
    for (int i = 1; i < f->n_point; i++) {
        double gap = f->point[i].bytes - f->point[i - 1].bytes;
        int n = 0;
        for (int g = 0; g < m->n_group; g++)
            n += f->point[i].choice[g] != f->point[i - 1].choice[g];
        gap = gap < 0 ? -gap : gap;
        if (n > 1 && gap > most) {
            most = gap;
            at = i;
            differ = n;
        }
    }
    if (at == 0)
        return ST_OK;
    for (int g = 0; g < m->n_group; g++) {
        seen += f->point[at].choice[g] != f->point[at - 1].choice[g];
        f->choice[g] = f->point[seen <= differ / 2 ? at - 1 : at].choice[g];
    }
    return insert(f, at);
}

/* Everything that can be on the host is. */
static void frugal(const LpModel *m, int *choice)
{
    for (int g = 0; g < m->n_group; g++) {
        double least = 0;
        for (int c = 0; c < m->group[g].n_choice; c++) {
            double bytes = bytes_of(m, g, c, true, true);
            if (c == 0 || bytes < least) {
                least = bytes;
                choice[g] = c;
            }
        }
    }
}

static Status walk(Frontier *f, int64_t fastest_ns)
{
    const Graph *g = f->m->graph;
    TRY(keep(f, f->x.best));
    double bytes = 1, span = (double)(f->x.best_ns - fastest_ns);
    for (int u = 0; u < g->n_unit; u++)
        bytes += (double)g->unit[u].bytes + (double)g->unit[u].grad_bytes +
                 (f->m->domain.leave_gpu ? 0 : (double)state_bytes(g, &g->unit[u]));
    for (int kind = 0; kind < KINDS && span > 0; kind++) {
        f->n_point = 0;
        for (int i = 0; i < PRICES; i++) {
            double price = span / bytes;
            for (int k = 0; k < i + LOWEST; k++)
                price *= 2;
            for (int k = i + LOWEST; k < 0; k++)
                price /= 2;
            TRY(at_price(f, price, kind != 2, kind != 0));
        }
        for (int i = 0; i < REFINE; i++)
            TRY(refine(f));
    }
    return ST_OK;
}

Status optimal_frontier(Diag *d, Arena *a, const Graph *g, const Profile *p, const LpDomain *domain,
                        const Optimum *optimum, UnitPlan ***plan, int *n)
{
    *n = 0;
    Arena *scratch = arena_open();
    if (!scratch)
        return diag_oom(d);
    Frontier f = {.d = d, .a = a};
    LpModel *m = NULL;
    Status st = lp_model_build(d, scratch, g, p, domain, &m);
    f.m = m;
    *plan = f.plan = ARENA_NEW(a, UnitPlan *, KINDS * (PRICES + REFINE) + 1);
    f.choice = st == ST_OK ? ARENA_NEW(scratch, int, m->n_group) : NULL;
    f.cost = st == ST_OK ? ARENA_NEW(scratch, double, m->first_column[m->n_group]) : NULL;
    if (st == ST_OK && (!f.plan || !f.choice || !f.cost))
        st = diag_oom(d);
    if (st == ST_OK) {
        /* Rows with conditions have to hold for all plans up to the slowest one that matters. */
        frugal(m, f.choice);
        LpTimer t;
        st = lp_timer_open(d, m, &t);
        if (st == ST_OK) {
            int64_t slowest = lp_period_ns(lp_period(&t, f.choice, (LpRatio){0, 0}));
            lp_timer_close(&t);
            st = master_open(d, scratch, m, f.choice, slowest, &f.x);
            f.x.iterations_left = WORK / m->first_column[m->n_group];
            if (st == ST_OK)
                st = walk(&f, optimum->model_ns);
            master_close(&f.x);
        }
    }
    *n = f.n;
    arena_close(scratch);
    return st;
}
