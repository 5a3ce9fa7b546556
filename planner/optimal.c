/* optimal.c - the plan with the least period without contention, and how close to that it is proven to be.
 *
 * needs: a graph, a profile that matches it   fills: Optimum   keeps: both
 *
 * 1. The best of the given plans and of a few plain ones, improved by exchanges.
 * 2. The relaxation, whose rounded solution is improved as well. Choices that its bound excludes from every better plan
 * are forbidden, rows with conditions are built again (their constants come from the best period), and this repeats
 * while it helps.
 * 3. Branch and bound, the node with the least bound first. A branch asks for the place of load, the gradient's place,
 * the update's time or the hold of one unit: as it is most in the relaxation, or otherwise. The bound of what is left open is
 * the bound of the whole. */
#include "planner/optimal.h"

#include <string.h>

#include "planner/plan_search.h"

enum {
    REPEAT = 6,         /* of step 2 */
    ROUNDS = 80,        /* of rows, at the root */
    NODE_ROUNDS = 20,   /* and at a node */
    SMALL = 30,             /* groups: up to here branch and bound is meant to end */
    NODES = 40000,          /* for these */
    NODES_LARGE = 60,       /* for others */
    ITERATIONS = 50000,     /* simplex iterations of branch and bound for small ones, */
    WORK = 5 * 1000 * 1000, /* and for others, times columns */
    EVALUATIONS = 1500,     /* exact periods of one exchange, */
    EVALUATED = 150 * 1000  /* and these times groups */
};

static int evaluations(const LpMaster *x)
{
    int n = EVALUATED / (x->m->n_group + 1);
    return n < EVALUATIONS ? n : EVALUATIONS;
}

static const double LIVES_FIRST = 20; /* times the weight of other properties */

/* ---- branch and bound
 * ------------------------------------------------------------------------------------------------- */

typedef struct Branch {
    int64_t bound_ns;
    int depth, number;
    bool *allowed; /* heap, by column */
} Branch;

typedef struct Tree {
    LpMaster *x;
    VEC(Branch) heap; /* the least first */
    int n_made;
    int *choice;
} Tree;

static bool node_less(const Branch *a, const Branch *b)
{
    if (a->bound_ns != b->bound_ns)
        return a->bound_ns < b->bound_ns;
    return a->depth != b->depth ? a->depth > b->depth : a->number < b->number;
}

static Status push(Tree *t, Branch n)
{
    Branch *room = VEC_PUSH(&t->heap);
    if (!room) {
        base_free(n.allowed);
        return diag_oom(t->x->d);
    }
    n.number = t->n_made++;
    int i = t->heap.count - 1;
    for (; i > 0 && node_less(&n, &t->heap.at[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap.at[i] = t->heap.at[(i - 1) / 2];
    t->heap.at[i] = n;
    return ST_OK;
}

static Branch pop(Tree *t)
{
    Branch top = t->heap.at[0], last = t->heap.at[--t->heap.count];
    int i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= t->heap.count)
            break;
        if (child + 1 < t->heap.count && node_less(&t->heap.at[child + 1], &t->heap.at[child]))
            child++;
        if (!node_less(&t->heap.at[child], &last))
            break;
        t->heap.at[i] = t->heap.at[child];
        i = child;
    }
    if (t->heap.count > 0)
        t->heap.at[i] = last;
    return top;
}

/* The choice of each group that weighs most, of those allowed. */
static void round_off(const LpMaster *x, const bool *allowed, int *choice)
{
    const LpModel *m = x->m;
    for (int g = 0; g < m->n_group; g++) {
        double most = -1;
        for (int c = 0; c < m->group[g].n_choice; c++)
            if (allowed[m->first_column[g] + c] && x->x[m->first_column[g] + c] > most) {
                most = x->x[m->first_column[g] + c];
                choice[g] = c;
            }
    }
}

/* How much of an allowed group has this property, and whether some choices have it and others do not. *matters: how far
 * the prices of the group's choices are apart. */
static double weight_of(const LpMaster *x, const bool *allowed, const LpWhen *w, bool *splits, double *matters)
{
    const LpModel *m = x->m;
    int g = m->group_of_unit[w->unit], with = 0, without = 0;
    double sum = 0, low = 0, high = 0;
    for (int c = 0; c < m->group[g].n_choice; c++) {
        int column = m->first_column[g] + c;
        if (!allowed[column])
            continue;
        low = with + without == 0 || x->price[column] < low ? x->price[column] : low;
        high = with + without == 0 || x->price[column] > high ? x->price[column] : high;
        bool holds = lp_holds(m, w, c);
        with += holds;
        without += !holds;
        sum += holds ? x->x[column] : 0;
    }
    *splits = with > 0 && without > 0;
    *matters = high - low;
    return sum;
}

/* The property that the relaxation is least decided about; where a unit lives comes before the rest, since the rows with
 * conditions hang on it. False: one choice is left in each group. */
static bool choose_branch(const LpMaster *x, const bool *allowed, LpWhen *out)
{
    const LpModel *m = x->m;
    double best = -1;
    for (int u = 0; u < m->graph->n_unit; u++) {
        int n = m->graph->unit[u].n_use;
        for (int v = 0; v < n + 3 + HOLD_COUNT; v++) {
            LpWhen w = v <= n ? (LpWhen){u, v, v, -1, -1, 0}
                              : (LpWhen){u, 0, n, v == n + 1 ? ON_GPU : -1, v == n + 2 ? 1 : -1,
                                         v > n + 2 ? 1u << (v - n - 3) : 0};
            bool splits;
            double matters, weight = weight_of(x, allowed, &w, &splits, &matters);
            weight = (weight > 0.5 ? 1 - weight : weight) * (1 + matters);
            if (w.holds == 1u << HOLD_RESIDENT)
                weight *= LIVES_FIRST;
            if (splits && weight > best + 1e-9) {
                best = weight;
                *out = w;
            }
        }
    }
    return best >= 0;
}

/* Its two parts. */
static Status branch(Tree *t, const Branch *n, const LpWhen *w, int64_t bound_ns)
{
    const LpModel *m = t->x->m;
    int g = m->group_of_unit[w->unit];
    for (int side = 0; side < 2; side++) {
        Branch child = {.bound_ns = bound_ns, .depth = n->depth + 1, .allowed = base_alloc((size_t)t->x->n_column)};
        if (!child.allowed)
            return diag_oom(t->x->d);
        memcpy(child.allowed, n->allowed, (size_t)t->x->n_column);
        for (int c = 0; c < m->group[g].n_choice; c++)
            if (lp_holds(m, w, c) == (side == 1))
                child.allowed[m->first_column[g] + c] = false;
        TRY(push(t, child));
    }
    return ST_OK;
}

static Status visit(Tree *t, Branch *n)
{
    LpMaster *x = t->x;
    int64_t bound = n->bound_ns;
    for (;;) {
        TRY(master_solve(x, n->allowed, NODE_ROUNDS, bound, &bound));
        if (bound >= x->best_ns)
            return ST_OK;
        round_off(x, n->allowed, t->choice);
        LpRatio r = lp_period(&x->timer, t->choice, (LpRatio){0, 0});
        int64_t period = lp_period_ns(r);
        master_improve(x, t->choice, period);
        if (x->m->n_group > SMALL && n->depth % 4 == 1) { /* where bounds will not meet, plans are looked for */
            TRY(split_updates(x, t->choice, &period));
            TRY(exchange(x, t->choice, &period, evaluations(x) / 4));
        }
        if (bound >= x->best_ns)
            return ST_OK;
        LpWhen w;
        if (!choose_branch(x, n->allowed, &w))
            return ST_OK; /* the one plan that is left has been timed */
        int forbidden;
        if (!x->dead && !master_forbid(x, n->allowed, &forbidden))
            return ST_OK;
        if (!choose_branch(x, n->allowed, &w)) {
            round_off(x, n->allowed, t->choice);
            master_improve(x, t->choice, lp_period_ns(lp_period(&x->timer, t->choice, (LpRatio){0, 0})));
            return ST_OK;
        }
        return branch(t, n, &w, bound);
    }
}

/* *bound_ns: that of the root before, of everything after. */
static Status branch_and_bound(LpMaster *x, int *choice, int64_t *bound_ns, int *n_node)
{
    bool small = x->m->n_group <= SMALL;
    int limit = small ? NODES : NODES_LARGE, iterations = x->iterations + (small ? ITERATIONS : WORK / x->n_column);
    Tree t = {.x = x, .choice = choice};
    Branch root = {.bound_ns = *bound_ns, .allowed = base_alloc((size_t)x->n_column + 1)};
    if (!root.allowed)
        return diag_oom(x->d);
    memcpy(root.allowed, x->allowed, (size_t)x->n_column);
    Status st = push(&t, root);
    while (st == ST_OK && t.heap.count > 0 && t.heap.at[0].bound_ns < x->best_ns && *n_node < limit &&
           x->iterations < iterations && !x->dead) {
        Branch n = pop(&t);
        (*n_node)++;
        x->bound_ns = n.bound_ns > x->bound_ns ? n.bound_ns : x->bound_ns; /* of all that is left: rows get stronger */
        st = visit(&t, &n);
        base_free(n.allowed);
    }
    *bound_ns = t.heap.count > 0 && t.heap.at[0].bound_ns < x->best_ns ? t.heap.at[0].bound_ns : x->best_ns;
    for (int i = 0; i < t.heap.count; i++)
        base_free(t.heap.at[i].allowed);
    VEC_FREE(&t.heap);
    return st;
}

/* ---- the root
 * --------------------------------------------------------------------------------------------------------------- */

static Status root(LpMaster *x, int *choice, int64_t *bound_ns)
{
    *bound_ns = 0;
    for (int i = 0; i < REPEAT; i++) {
        int64_t best = x->best_ns;
        int forbidden = 0;
        TRY(master_solve(x, x->allowed, ROUNDS, *bound_ns, bound_ns));
        x->bound_ns = *bound_ns;
        if (*bound_ns >= x->best_ns || x->dead)
            break;
        round_off(x, x->allowed, choice);
        int64_t period = lp_period_ns(lp_period(&x->timer, choice, (LpRatio){0, 0}));
        master_improve(x, choice, period);
        TRY(split_updates(x, choice, &period));
        TRY(exchange(x, choice, &period, evaluations(x)));
        if (!master_forbid(x, x->allowed, &forbidden)) {
            *bound_ns = x->best_ns;
            break;
        }
        if (x->best_ns == best && forbidden == 0 && i > 0)
            break;
        TRY(master_rebuild(x));
    }
    return ST_OK;
}

static Status first_plan(Diag *d, Arena *a, const LpModel *m, int n_start, const UnitPlan *const *start, int *best,
                         int64_t *best_ns)
{
    enum { PLAIN = 4 };
    const Graph *g = m->graph;
    LpTimer t;
    int *choice = ARENA_NEW(a, int, m->n_group);
    UnitPlan *unit = ARENA_NEW(a, UnitPlan, g->n_unit);
    if (!choice || !unit)
        return diag_oom(d);
    TRY(lp_timer_open(d, m, &t));
    *best_ns = INT64_MAX;
    for (int i = -PLAIN; i < n_start; i++) {
        for (int u = 0; u < g->n_unit; u++) {
            const Pin *pin = m->domain.pinned ? &m->domain.pinned[u] : NULL;
            bool trains = g->unit[u].grad_bytes > 0 && !m->domain.modes_only;
            unit[u] = i >= 0 ? start[i][u]
                             : (UnitPlan){i < -2 ? 0 : g->unit[u].n_use, trains && i >= -2 ? ON_HOST : ON_GPU,
                                          trains && i % 2 == 0, HOLD_STEP};
            if (pin && pin->set) {
                unit[u].first_gpu_use = pin->first_gpu_use;
                unit[u].hold = pin->hold;
                unit[u].grad = pin->hold == HOLD_RESIDENT ? ON_GPU : unit[u].grad;
                unit[u].late = pin->hold != HOLD_RESIDENT && unit[u].late;
            }
        }
        Diag outside = {.quiet = true};
        if (lp_choices_of_plan(&outside, m, unit, choice) != ST_OK)
            continue;
        int64_t period = lp_period_ns(lp_period(&t, choice, (LpRatio){0, 0}));
        Plan plan = {.n_unit = g->n_unit, .unit = unit, .clip = m->domain.clip, .reserve_factor = -1};
        Status st = m->exact ? ST_OK : plan_time(d, g, m->profile, &plan, NULL, &period);
        if (st != ST_OK) {
            lp_timer_close(&t);
            return st;
        }
        if (period < *best_ns) {
            *best_ns = period;
            memcpy(best, choice, (size_t)m->n_group * sizeof *best);
        }
    }
    lp_timer_close(&t);
    return *best_ns < INT64_MAX ? ST_OK : diag_fail(d, ST_FAILED, "no plan is in the domain of the linear model");
}

static Status work(LpMaster *x, int *choice, Optimum *out)
{
    if (!x->m->exact)
        return master_solve(x, x->allowed, ROUNDS, 0, &out->bound_ns);
    memcpy(choice, x->best, (size_t)x->m->n_group * sizeof *choice);
    int64_t period = x->best_ns;
    TRY(split_updates(x, choice, &period));
    if (x->m->n_group <= SMALL)
        TRY(exchange(x, choice, &period, evaluations(x)));
    TRY(root(x, choice, &out->bound_ns));
    if (out->bound_ns < x->best_ns)
        TRY(branch_and_bound(x, choice, &out->bound_ns, &out->nodes));
    return ST_OK;
}

/* Among equals, nothing is loaded twice. */
static void plain(LpMaster *x, int *choice)
{
    const LpModel *m = x->m;
    memcpy(choice, x->best, (size_t)m->n_group * sizeof *choice);
    for (int g = 0; g < m->n_group; g++) {
        const LpGroup *group = &m->group[g];
        const UnitPlan *now = &group->choice[(size_t)choice[g] * (size_t)group->n_unit];
        int kept = choice[g];
        for (int c = 0; c < group->n_choice && choice[g] == kept; c++) {
            const UnitPlan *to = &group->choice[(size_t)c * (size_t)group->n_unit];
            bool plainer = false, same = true;
            for (int k = 0; k < group->n_unit; k++) {
                plainer = plainer || (now[k].hold == HOLD_RELOAD && to[k].hold == HOLD_STEP);
                same = same && to[k].first_gpu_use == now[k].first_gpu_use && to[k].grad == now[k].grad &&
                       to[k].late == now[k].late && (to[k].hold == now[k].hold || to[k].hold == HOLD_STEP);
            }
            if (!plainer || !same)
                continue;
            choice[g] = c;
            if (lp_period_ns(lp_period(&x->timer, choice, (LpRatio){0, 0})) > x->best_ns)
                choice[g] = kept;
        }
    }
    memcpy(x->best, choice, (size_t)m->n_group * sizeof *choice);
}

Status optimal_solve(Diag *d, Arena *a, const Graph *g, const Profile *p, const LpDomain *domain, int n_start,
                     const UnitPlan *const *start, Optimum *out)
{
    *out = (Optimum){0};
    Arena *scratch = arena_open();
    out->unit = ARENA_NEW(a, UnitPlan, g->n_unit);
    if (!scratch || !out->unit) {
        arena_close(scratch);
        return diag_oom(d);
    }
    LpModel *m = NULL;
    LpMaster x;
    int64_t best_ns = 0;
    Status st = lp_model_build(d, scratch, g, p, domain, &m);
    int *best = st == ST_OK ? ARENA_NEW(scratch, int, m->n_group) : NULL;
    int *choice = st == ST_OK ? ARENA_NEW(scratch, int, m->n_group) : NULL;
    if (st == ST_OK && (!best || !choice))
        st = diag_oom(d);
    if (st == ST_OK)
        st = first_plan(d, scratch, m, n_start, start, best, &best_ns);
    if (st == ST_OK) {
        st = master_open(d, scratch, m, best, best_ns, &x);
        if (st == ST_OK)
            st = work(&x, choice, out);
        if (st == ST_OK && m->exact)
            plain(&x, choice);
        if (st == ST_OK)
            lp_plan_of_choices(m, x.best, out->unit);
        out->model_ns = x.best_ns;
        out->rows = x.n_made;
        out->exact = m->exact;
        master_close(&x);
    }
    arena_close(scratch);
    return st;
}
