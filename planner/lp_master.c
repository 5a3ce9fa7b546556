/* lp_master.c - the relaxation of lp_model.h over the rows that matter, solved by GLPK, and bounds proven from it.
 *
 * needs: a model, the choices of some plan   fills: x, bounds   keeps: the model
 *
 * GLPK sees numbers near one: times are divided by a thousandth of the best period, and of each group's coefficients in
 * a row the least is moved to the constant, which leaves the differences that choices make. It stops the process when
 * something is wrong with its input; nothing here can be (whole numbers over a positive one, each column once a row),
 * but should it happen, its error hook leads back here, and the bound stays what was proven before. Iterations are
 * limited by number. */
#include <glpk.h>
#include <math.h>
#include <setjmp.h>
#include <string.h>

#include "planner/optimal.h"

__extension__ typedef __int128 Wide;

enum {
    ITERATIONS = 2000, /* simplex iterations of one solution */
    STILL = 6,         /* rounds in a row that raise the bound by little: */
    LITTLE = 500,      /* less than this part of what is missing */
    IDLE = 12,          /* a row that did not matter in so many solutions goes */
    KEEP = 60           /* unless there are at most so many */
};
static const double INWARD = 0.5;
static const double WEIGHT = 1073741824; /* dual values become whole numbers of this part */

static glp_prob *problem_of(const LpMaster *x)
{
    return x->lp;
}

/* ---- calls into GLPK, guarded
 * ------------------------------------------------------------------------------------------- */

typedef void Guarded(LpMaster *x, void *context);

static void escape(void *info)
{
    longjmp(*(jmp_buf *)info, 1);
}

/* It announces its errors on standard output, which is ours. */
static int swallow(void *info, const char *text)
{
    (void)info;
    (void)text;
    return 1;
}

static bool guard(LpMaster *x, Guarded *call, void *context)
{
    if (x->dead)
        return false;
    jmp_buf back;
    if (setjmp(back)) {
        glp_error_hook(NULL, NULL);
        glp_free_env(); /* with all of its problems */
        x->lp = NULL;
        x->dead = true;
        diag_warn(x->d, "the linear solver gave up: the bound is what was proven before");
        return false;
    }
    glp_error_hook(escape, &back);
    glp_term_out(GLP_OFF);
    glp_term_hook(swallow, NULL);
    call(x, context);
    glp_error_hook(NULL, NULL);
    return true;
}

static void create(LpMaster *x, void *context)
{
    (void)context;
    const LpModel *m = x->m;
    if (x->lp)
        glp_delete_prob(problem_of(x));
    x->lp = glp_create_prob();
    glp_prob *lp = problem_of(x);
    glp_set_obj_dir(lp, GLP_MIN);
    glp_add_cols(lp, x->n_column + 1);
    glp_set_obj_coef(lp, 1, 1);
    glp_set_col_bnds(lp, 1, GLP_LO, 0, 0);
    for (int c = 0; c < x->n_column; c++)
        glp_set_col_bnds(lp, c + 2, GLP_LO, 0, 0);
    glp_add_rows(lp, m->n_group);
    for (int g = 0; g < m->n_group; g++) {
        int n = m->first_column[g + 1] - m->first_column[g];
        for (int c = 0; c < n; c++) {
            x->index[c + 1] = m->first_column[g] + c + 2;
            x->value[c + 1] = 1;
        }
        glp_set_mat_row(lp, g + 1, n, x->index, x->value);
        glp_set_row_bnds(lp, g + 1, GLP_FX, 1, 1);
    }
}

static void append(LpMaster *x, void *context)
{
    const LpCut *cut = context;
    const LpModel *m = x->m;
    glp_prob *lp = problem_of(x);
    int *at = x->index, n = 1;
    double *value = x->value;
    at[1] = 1;
    value[1] = cut->span;
    int64_t constant = cut->constant_ns;
    for (int g = 0; g < m->n_group; g++) {
        int64_t least = INT64_MAX;
        for (int c = m->first_column[g]; c < m->first_column[g + 1]; c++)
            if (x->allowed[c] && cut->at[c] < least)
                least = cut->at[c];
        constant += least < INT64_MAX ? least : 0;
        for (int c = m->first_column[g]; c < m->first_column[g + 1]; c++) {
            if (!x->allowed[c] || cut->at[c] == least)
                continue;
            n++;
            at[n] = c + 2;
            value[n] = -(double)(cut->at[c] - least) / x->unit_ns;
        }
    }
    int row = glp_add_rows(lp, 1);
    glp_set_mat_row(lp, row, n, at, value);
    glp_set_row_bnds(lp, row, GLP_LO, (double)constant / x->unit_ns, 0);
}

static void set_allowed(LpMaster *x, void *context)
{
    const bool *allowed = context;
    for (int c = 0; c < x->n_column; c++)
        glp_set_col_bnds(problem_of(x), c + 2, allowed[c] ? GLP_LO : GLP_FX, 0, 0);
}

/* fills: solved; x when it is */
static void solve(LpMaster *x, void *context)
{
    (void)context;
    x->solved = false;
    glp_prob *lp = problem_of(x);
    glp_smcp o;
    glp_init_smcp(&o);
    o.msg_lev = GLP_MSG_OFF;
    o.meth = GLP_DUALP;
    o.it_lim = x->iterations_left < ITERATIONS ? x->iterations_left : ITERATIONS;
    int before = glp_get_it_cnt(lp);
    int code = glp_simplex(lp, &o);
    if (code == GLP_EBADB || code == GLP_ESING || code == GLP_ECOND) {
        glp_std_basis(lp);
        code = glp_simplex(lp, &o);
    }
    int done = glp_get_it_cnt(lp) - before;
    x->iterations += done;
    x->iterations_left -= done < x->iterations_left ? done : x->iterations_left;
    x->n_solved++;
    x->solved = code == 0 && glp_get_status(lp) == GLP_OPT;
    if (!x->solved)
        return;
    x->period_ns = glp_get_col_prim(lp, 1) * x->unit_ns;
    for (int g = 0; g < x->m->n_group; g++) {
        double sum = 0;
        for (int c = x->m->first_column[g]; c < x->m->first_column[g + 1]; c++) {
            double v = glp_get_col_prim(lp, c + 2);
            x->x[c] = v > 1e-9 ? v : 0;
            sum += x->x[c];
        }
        for (int c = x->m->first_column[g]; c < x->m->first_column[g + 1] && sum > 0; c++)
            x->x[c] /= sum;
    }
}

/* Rows that have not mattered for long; context: room for their numbers. */
static void drop_idle(LpMaster *x, void *context)
{
    glp_prob *lp = problem_of(x);
    int groups = x->m->n_group, kept = 0, n = 0, *out = context;
    for (int i = 0; i < x->row.count; i++)
        x->row.at[i].idle = glp_get_row_stat(lp, groups + 1 + i) == GLP_BS ? x->row.at[i].idle + 1 : 0;
    for (int i = 0; i < x->row.count; i++) {
        if (x->row.count - n > KEEP && x->row.at[i].idle > IDLE)
            out[++n] = groups + 1 + i;
        else
            x->row.at[kept++] = x->row.at[i];
    }
    if (n > 0)
        glp_del_rows(lp, n, out);
    x->row.count = kept;
}

/* context: by column, what a choice costs beside the period, in nanoseconds. */
static void set_costs(LpMaster *x, void *context)
{
    const double *cost = context;
    for (int c = 0; c < x->n_column; c++)
        glp_set_obj_coef(problem_of(x), c + 2, cost[c] / x->unit_ns);
}

static void close_problem(LpMaster *x, void *context)
{
    (void)context;
    if (x->lp)
        glp_delete_prob(problem_of(x));
    x->lp = NULL;
}

/* ---- the problem
 * ------------------------------------------------------------------------------------------------------------ */

Status master_open(Diag *d, Arena *a, const LpModel *m, const int *best, int64_t best_ns, LpMaster *x)
{
    *x = (LpMaster){
        .d = d, .a = a, .m = m, .n_column = m->first_column[m->n_group], .best_ns = best_ns, .iterations_left = INT32_MAX};
    x->unit_ns = best_ns > 0 ? (double)best_ns / 1000 : 1;
    x->allowed = ARENA_NEW(a, bool, x->n_column);
    x->x = ARENA_NEW(a, double, x->n_column);
    x->price = ARENA_NEW(a, double, x->n_column);
    x->best = ARENA_NEW(a, int, m->n_group);
    x->index = ARENA_NEW(a, int, x->n_column + 2);
    x->value = ARENA_NEW(a, double, x->n_column + 2);
    if (!x->allowed || !x->x || !x->price || !x->best || !x->index || !x->value)
        return diag_oom(d);
    for (int c = 0; c < x->n_column; c++)
        x->allowed[c] = true;
    memcpy(x->best, best, (size_t)m->n_group * sizeof *best);
    TRY(lp_timer_open(d, m, &x->timer));
    guard(x, create, NULL);
    return ST_OK;
}

void master_close(LpMaster *x)
{
    guard(x, close_problem, NULL);
    lp_timer_close(&x->timer);
    VEC_FREE(&x->row);
}

void master_improve(LpMaster *x, const int *choice, int64_t period_ns)
{
    if (period_ns >= x->best_ns)
        return;
    x->best_ns = period_ns;
    memcpy(x->best, choice, (size_t)x->m->n_group * sizeof *choice);
}

Status master_add(LpMaster *x, const int *edge, int n)
{
    LpCut cut;
    TRY(lp_cut_make(x->d, x->a, x->m, edge, n, x->allowed, x->bound_ns, x->best_ns, &cut));
    LpRow *row = VEC_PUSH(&x->row);
    int *copy = ARENA_NEW(x->a, int, n);
    if (!row || !copy)
        return diag_oom(x->d);
    memcpy(copy, edge, (size_t)n * sizeof *copy);
    *row = (LpRow){cut, n, copy, 0};
    x->n_made++;
    guard(x, append, &cut);
    return ST_OK;
}

Status master_rebuild(LpMaster *x)
{
    guard(x, create, NULL);
    for (int i = 0; i < x->row.count; i++) {
        LpRow *r = &x->row.at[i];
        TRY(lp_cut_make(x->d, x->a, x->m, r->edge, r->n_edge, x->allowed, x->bound_ns, x->best_ns, &r->cut));
        guard(x, append, &r->cut);
    }
    return ST_OK;
}

void master_charge(LpMaster *x, double *cost_ns)
{
    guard(x, set_costs, cost_ns);
}

/* ---- proofs
 * ----------------------------------------------------------------------------------------------------------------------
 */

/* Weighted rows: (constant + sum of the groups' least) / span is proven. */
typedef struct Proof {
    Wide constant, span;
    Wide *at; /* by column */
} Proof;

static void take_duals(LpMaster *x, void *context)
{
    Proof *p = context;
    for (int i = 0; i < x->row.count; i++) {
        double dual = glp_get_row_dual(problem_of(x), x->m->n_group + 1 + i) * WEIGHT;
        if (!(dual >= 0.5 && dual < 1e15))
            continue;
        int64_t y = (int64_t)(dual + 0.5);
        const LpCut *cut = &x->row.at[i].cut;
        p->span += (Wide)y * cut->span;
        p->constant += (Wide)y * cut->constant_ns;
        for (int c = 0; c < x->n_column; c++)
            p->at[c] += (Wide)y * cut->at[c];
    }
}

/* What a period of at least time / span is when rounded to whole nanoseconds, halves up. */
static int64_t rounded(Wide time, Wide span)
{
    return time <= 0 ? 0 : (int64_t)((2 * time + span) / (2 * span));
}

static bool least_of(const LpMaster *x, const Proof *p, const bool *allowed, int g, Wide *out)
{
    bool any = false;
    for (int c = x->m->first_column[g]; c < x->m->first_column[g + 1]; c++)
        if (allowed[c] && (!any || p->at[c] < *out)) {
            *out = p->at[c];
            any = true;
        }
    return any;
}

static Status prove(LpMaster *x, const bool *allowed, int64_t *bound_ns)
{
    Proof p = {0, 0, base_alloc((size_t)x->n_column * sizeof(Wide) + 1)};
    if (!p.at)
        return diag_oom(x->d);
    guard(x, take_duals, &p);
    for (int c = 0; c < x->n_column; c++)
        x->price[c] = (double)p.at[c] / WEIGHT;
    bool possible = true;
    Wide sum = p.constant, least = 0;
    for (int g = 0; g < x->m->n_group && possible; g++) {
        possible = least_of(x, &p, allowed, g, &least);
        sum += least;
    }
    int64_t bound = !possible ? x->best_ns : p.span > 0 ? rounded(sum, p.span) : 0;
    bound = bound > x->best_ns ? x->best_ns : bound;
    *bound_ns = bound > *bound_ns ? bound : *bound_ns;
    base_free(p.at);
    return ST_OK;
}

bool master_forbid(LpMaster *x, bool *allowed, int *changed)
{
    Proof p = {0, 0, base_alloc((size_t)x->n_column * sizeof(Wide) + 1)};
    int n = 0;
    bool possible = true;
    if (p.at) {
        guard(x, take_duals, &p);
        Wide sum = p.constant, least = 0;
        for (int g = 0; g < x->m->n_group && possible; g++) {
            possible = least_of(x, &p, allowed, g, &least);
            sum += least;
        }
        for (int g = 0; g < x->m->n_group && possible && p.span > 0; g++) {
            least_of(x, &p, allowed, g, &least);
            bool any = false;
            for (int c = x->m->first_column[g]; c < x->m->first_column[g + 1]; c++) {
                if (allowed[c] && rounded(sum - least + p.at[c], p.span) >= x->best_ns) {
                    allowed[c] = false;
                    n++;
                }
                any = any || allowed[c];
            }
            possible = any;
        }
    }
    base_free(p.at);
    if (changed)
        *changed = n;
    return possible;
}

/* ---- rows as they are needed
 * -------------------------------------------------------------------------------------------------- */

typedef struct Adding {
    LpMaster *x;
    int n;
} Adding;

static Status add_found(void *context, const int *edge, int n)
{
    Adding *a = context;
    a->n++;
    return master_add(a->x, edge, n);
}

/* Rows that are violated at the solution moved towards the best plan by this part. The best plan satisfies all rows, so
 * those that cut off a point between cut off the solution too, and deeper. */
static Status separate(LpMaster *x, double inward, int *added)
{
    const LpModel *m = x->m;
    Adding adding = {x, 0};
    double *mixture = base_alloc((size_t)x->n_column * sizeof *mixture + 1);
    if (!mixture)
        return diag_oom(x->d);
    for (int g = 0; g < m->n_group; g++)
        for (int c = 0; c < m->group[g].n_choice; c++)
            mixture[m->first_column[g] + c] =
                (1 - inward) * x->x[m->first_column[g] + c] + (c == x->best[g] ? inward : 0);
    double period = (1 - inward) * x->period_ns + inward * (double)x->best_ns;
    Status st = lp_violated(&x->timer, mixture, period * (1 + 1e-8), x->best_ns, true, add_found, &adding);
    base_free(mixture);
    *added = adding.n;
    return st == ST_OK || x->d->status != ST_OK ? st : diag_oom(x->d);
}

/* The first rows: the longest cycles without conditions of the best plan, of the mixture of all choices, and of what lies
 * between. Rows with conditions say little as long as nothing is known about the period. */
static Status seed(LpMaster *x)
{
    enum { SEEDS = 3 };
    const LpModel *m = x->m;
    double *mixture = base_alloc((size_t)x->n_column * sizeof *mixture + 1);
    if (!mixture)
        return diag_oom(x->d);
    Status st = ST_OK;
    for (int i = 0; i < SEEDS && st == ST_OK; i++) {
        double part = (double)i / (SEEDS - 1);
        Adding adding = {x, 0};
        for (int g = 0; g < m->n_group; g++)
            for (int c = 0; c < m->group[g].n_choice; c++)
                mixture[m->first_column[g] + c] =
                    part / m->group[g].n_choice + (c == x->best[g] ? 1 - part : 0);
        st = lp_violated(&x->timer, mixture, 0, x->best_ns, false, add_found, &adding);
    }
    base_free(mixture);
    return st == ST_OK || x->d->status != ST_OK ? st : diag_oom(x->d);
}

Status master_solve(LpMaster *x, const bool *allowed, int rounds, int64_t known_ns, int64_t *bound_ns)
{
    *bound_ns = known_ns;
    bool *columns = base_alloc((size_t)x->n_column + 1);
    if (!columns)
        return diag_oom(x->d);
    memcpy(columns, allowed, (size_t)x->n_column * sizeof *columns);
    guard(x, set_allowed, columns);
    base_free(columns);
    if (x->n_made == 0)
        TRY(seed(x));
    int still = 0;
    for (int round = 0; round < rounds && *bound_ns < x->best_ns; round++) {
        int64_t before = *bound_ns;
        if (!guard(x, solve, NULL) || x->dead)
            break;
        TRY(prove(x, allowed, bound_ns));
        still = *bound_ns - before <= (x->best_ns - before) / LITTLE ? still + 1 : 0;
        if (*bound_ns > 0 && still > STILL)
            break;
        if (!x->solved)
            break;
        int *out = base_alloc((size_t)(x->row.count + 1) * sizeof *out);
        if (!out)
            return diag_oom(x->d);
        guard(x, drop_idle, out);
        base_free(out);
        int added;
        TRY(separate(x, INWARD, &added));
        if (added == 0)
            TRY(separate(x, 0, &added));
        if (added == 0)
            break;
    }
    return ST_OK;
}
