/* cross_check.c - builds the mixed integer program of cross_check.h and checks its answer.
 *
 * needs: a graph and a profile that matches it   fills: CrossResult   keeps: both
 *
 * Nothing here comes from lp_model.c. Each step that some plan has is a column, its start in the iteration; a step that
 * the plan lacks is switched off in every row by a big-M. The order of steps in the program is read from lists that
 * steps_build makes, kernels' times from lists that steps_time has timed, one layer and placement at a time; which
 * steps depend on each other is stated here from the arguments of kernels. Between any two steps of a stream there is a
 * row, so that none relies on a step in between being there. The compute stream is the exception: what the GPU does for a
 * unit that lives there is always a step, which takes no time for one that does not.
 *
 * Big-M: start times count from the staging of the iteration. In steady state the norm of an iteration is known before
 * the staging of the one after the next, so all its steps but late updates end within two periods, and those within
 * three. A step that takes longer than one and a half of the longest period looked for is in no such plan, and counts
 * as that long: six times that period is enough. */
#include "planner/cross_check.h"

#include <math.h>
#include <string.h>

#include "planner/cross_places.h"
#include "planner/cross_solve.h"
#include "planner/steps.h"

/* Plans may be slower than the longest period by this part: what is feasible must not hang on the last bit. */
static const double SLACK = 1e-3;

enum {
    MAX_USES = 64, /* of a unit */
    NODES = 200000,
    SECONDS = 300,
    GIBIBYTES = 4
};

/* A condition: constant + sum of columns is 1 when it holds, 0 when not (for whole columns). */
typedef struct Literal {
    int n, column[MAX_USES];
    double value[MAX_USES], constant;
} Literal;

typedef struct Event {
    StepStream stream;
    int order;  /* in its stream */
    int start;  /* column */
    int kernel; /* node, or -1: takes ns */
    double ns;
    int part; /* column: it takes that part of ns; -1: all */
    int n_literal;
    Literal literal[2];
} Event;

typedef struct Cross {
    Diag *d;
    Arena *a;
    const Graph *g;
    const Profile *p;
    const CrossOptions *o;
    CrossProblem mip;
    Kernels kernels;
    int *place_column, *place_at;   /* x(unit, k) = place_column[place_at[unit] + k] */
    int *grad_column, *late_column; /* 1: on the host; 1: late */
    int *reload_column;             /* 1: loaded twice */
    int *stay_column;               /* 1: lives on the GPU */
    int n_event, n_compute;
    Event *event;
    int *kernel_event, *load_event, *again_event, *store_event, *sqnorm_event, *early_event, *late_event;
    int *stay_norm_event, *stay_update_event; /* on the compute stream, always there: they take no time for a unit that lives elsewhere */
    int input_event, loss_event, norm_event;
    double scale, big;
    double *row; /* dense, by column */
} Cross;

/* ---- columns
 * -------------------------------------------------------------------------------------------------------------------
 */

static Status add_choices(Cross *x)
{
    const Graph *g = x->g;
    int uses = 0;
    x->place_at = ARENA_NEW(x->a, int, g->n_unit);
    x->grad_column = ARENA_NEW(x->a, int, g->n_unit);
    x->late_column = ARENA_NEW(x->a, int, g->n_unit);
    x->reload_column = ARENA_NEW(x->a, int, g->n_unit);
    x->stay_column = ARENA_NEW(x->a, int, g->n_unit);
    for (int u = 0; u < g->n_unit; u++) {
        if (g->unit[u].n_use > MAX_USES)
            return diag_fail(x->d, ST_MODEL, "--cross-check: unit %s is used %d times, at most %d are possible",
                             g->unit[u].name, g->unit[u].n_use, MAX_USES);
        uses += g->unit[u].n_use + 1;
    }
    x->place_column = ARENA_NEW(x->a, int, uses);
    if (!x->place_at || !x->grad_column || !x->late_column || !x->reload_column || !x->stay_column ||
        !x->place_column)
        return diag_oom(x->d);
    uses = 0;
    for (int u = 0; u < g->n_unit; u++) {
        const Pin *pin = x->o->pinned && x->o->pinned[u].set ? &x->o->pinned[u] : NULL;
        const UnitPlan reload = {.hold = HOLD_RELOAD};
        x->place_at[u] = uses;
        for (int k = 0; k <= g->unit[u].n_use; k++)
            x->place_column[uses++] = cross_column(&x->mip, !pin                      ? CROSS_BINARY
                                                            : pin->first_gpu_use == k ? CROSS_ONE
                                                                                      : CROSS_ZERO);
        bool twice = !plan_unit_fault(&g->unit[u], &reload);
        x->reload_column[u] = cross_column(&x->mip, !twice                        ? CROSS_ZERO
                                                    : !pin                        ? CROSS_BINARY
                                                    : pin->hold == HOLD_RELOAD ? CROSS_ONE
                                                                                  : CROSS_ZERO);
        x->stay_column[u] = cross_column(&x->mip, !plan_can_reside(g, x->p, u)    ? CROSS_ZERO
                                                  : !pin                          ? CROSS_BINARY
                                                  : pin->hold == HOLD_RESIDENT ? CROSS_ONE
                                                                                  : CROSS_ZERO);
        bool free = g->unit[u].grad_bytes > 0 && !x->o->modes_only;
        x->grad_column[u] = cross_column(&x->mip, free ? CROSS_BINARY : CROSS_ZERO);
        x->late_column[u] = cross_column(&x->mip, free ? CROSS_BINARY : CROSS_ZERO);
    }
    for (int at = 0; at < 2 * g->n_segment; at++) {
        Places *p = &x->kernels.places[at];
        for (int c = 0; c < 1 << p->n_bit; c++) {
            int column = cross_column(&x->mip, CROSS_PART);
            p->column = c == 0 ? column : p->column;
        }
    }
    return ST_OK;
}

static void put(Cross *x, int column, double value)
{
    x->row[column] += value;
}

/* The row: what was put >= at_least (== when equal). Clears it. */
static Status end_row(Cross *x, double at_least, bool equal)
{
    return cross_row(x->d, &x->mip, x->row, at_least, equal);
}

/* value times (place of a parameter at a use is the host), or of the gradient. */
static void put_on_host(Cross *x, int unit, int use, double value)
{
    if (use < 0)
        put(x, x->grad_column[unit], value);
    for (int k = use + 1; use >= 0 && k <= x->g->unit[unit].n_use; k++)
        put(x, x->place_column[x->place_at[unit] + k], value);
}

static Status link_choices(Cross *x)
{
    for (int u = 0; u < x->g->n_unit; u++) {
        for (int k = 0; k <= x->g->unit[u].n_use; k++)
            put(x, x->place_column[x->place_at[u] + k], 1);
        TRY(end_row(x, 1, true));
        /* only what is loaded in the forward pass is loaded once more */
        for (int k = 0; k < plan_first_backward_use(&x->g->unit[u]); k++)
            put(x, x->place_column[x->place_at[u] + k], 1);
        put(x, x->reload_column[u], -1);
        TRY(end_row(x, 0, false));
        /* what lives on the GPU is read and gets its gradients there, and none of the other choices is left to it */
        const int none[] = {x->grad_column[u], x->late_column[u], x->reload_column[u]};
        put(x, x->place_column[x->place_at[u]], 1);
        put(x, x->stay_column[u], -1);
        TRY(end_row(x, 0, false));
        for (int i = 0; i < 3; i++) {
            put(x, none[i], -1);
            put(x, x->stay_column[u], -1);
            TRY(end_row(x, -1, false));
        }
    }
    for (int at = 0; at < 2 * x->g->n_segment; at++) {
        const Places *p = &x->kernels.places[at];
        for (int c = 0; c < 1 << p->n_bit; c++)
            put(x, p->column + c, 1);
        TRY(end_row(x, 1, true));
        for (int b = 0; b < p->n_bit; b++) {
            for (int c = 0; c < 1 << p->n_bit; c++)
                if (c >> b & 1)
                    put(x, p->column + c, 1);
            put_on_host(x, p->unit[b], p->use[b], -1);
            TRY(end_row(x, 0, true));
        }
    }
    return ST_OK;
}

/* ---- events
 * -----------------------------------------------------------------------------------------------------------------------
 */

static int new_event(Cross *x, StepStream stream, int order, int kernel, int64_t ns)
{
    x->event[x->n_event] = (Event){.stream = stream, .order = order, .kernel = kernel, .part = -1};
    x->event[x->n_event].ns = cross_capped(&x->kernels, ns);
    x->event[x->n_event].start = cross_column(&x->mip, CROSS_TIME);
    return x->n_event++;
}

static Literal literal_of(int column, double value, double constant)
{
    return (Literal){.n = 1, .column = {column}, .value = {value}, .constant = constant};
}

/* Neither of the two columns is 1. */
static Literal neither(int a, int b)
{
    return (Literal){.n = 2, .column = {a, b}, .value = {-1, -1}, .constant = 1};
}

static Literal read_on_host(const Cross *x, int unit, int use, bool host)
{
    Literal l = {.constant = host ? 0 : 1};
    for (int k = use + 1; k <= x->g->unit[unit].n_use; k++) {
        l.column[l.n] = x->place_column[x->place_at[unit] + k];
        l.value[l.n++] = host ? 1 : -1;
    }
    return l;
}

static void only_when(Cross *x, int event, Literal l)
{
    x->event[event].literal[x->event[event].n_literal++] = l;
}

/* The compute stream in order, from a list in which every unit that can lives on the GPU. */
static Status make_compute_events(Cross *x, Arena *scratch, UnitPlan *unit)
{
    const Graph *g = x->g;
    StepList *s;
    for (int u = 0; u < g->n_unit; u++)
        unit[u] = (UnitPlan){.hold = plan_can_reside(g, x->p, u) ? HOLD_RESIDENT : HOLD_STEP};
    TRY(cross_list(&x->kernels, scratch, unit, &s));
    for (int i = 0; i < s->n_step; i++) {
        const Step *step = &s->step[i];
        if (step->stream != STREAM_COMPUTE)
            continue;
        int e = new_event(x, STREAM_COMPUTE, x->n_compute++, step->node, step->duration_ns);
        if (step->kind == STEP_KERNEL) {
            x->kernel_event[step->node] = e;
            continue;
        }
        x->event[e].part = x->stay_column[step->unit];
        *(step->kind == STEP_SQNORM ? &x->stay_norm_event[step->unit] : &x->stay_update_event[step->unit]) = e;
    }
    for (int u = 0; u < g->n_unit; u++)
        unit[u] = (UnitPlan){0};
    return ST_OK;
}

/* The number of a step in its stream's order is its place in a list: that of all gradients stored and all updates
 * early, or of all updates late (these come last). Loads come in the order of the kernel that follows them, then of its
 * arguments. */
static Status make_events(Cross *x, Arena *scratch)
{
    const Graph *g = x->g;
    const Profile *p = x->p;
    int n = g->node.count, units = g->n_unit, uses = 0;
    for (int u = 0; u < units; u++)
        uses += g->unit[u].n_use + 1;
    x->event = ARENA_NEW(x->a, Event, n + uses + 8 * units + 4);
    int *at = ARENA_NEW(x->a, int, n + uses + 7 * units);
    UnitPlan *unit = ARENA_NEW(scratch, UnitPlan, units);
    if (!x->event || !at || !unit)
        return diag_oom(x->d);
    x->kernel_event = at;
    x->load_event = at + n; /* by place_at + k */
    x->store_event = x->load_event + uses;
    x->sqnorm_event = x->store_event + units;
    x->early_event = x->sqnorm_event + units;
    x->late_event = x->early_event + units;
    x->again_event = x->late_event + units;
    x->stay_norm_event = x->again_event + units;
    x->stay_update_event = x->stay_norm_event + units;
    for (int u = 0; u < units; u++)
        x->stay_norm_event[u] = x->stay_update_event[u] = -1;
    x->input_event = new_event(x, STREAM_LOAD, -1, -1, p->input_load.median_ns);
    TRY(make_compute_events(x, scratch, unit));
    for (int late = 0; late < 2; late++) {
        StepList *s;
        for (int u = 0; u < units; u++)
            unit[u].late = late && g->unit[u].grad_bytes > 0;
        TRY(cross_list(&x->kernels, scratch, unit, &s));
        for (int i = 0; i < s->n_step; i++) {
            const Step *step = &s->step[i];
            int u = step->unit;
            if (step->kind == STEP_ADAMW) {
                int e = new_event(x, STREAM_UPDATE, i + late * s->n_step, -1, p->unit[u].update.median_ns);
                *(late ? &x->late_event[u] : &x->early_event[u]) = e;
                only_when(x, e, late ? literal_of(x->late_column[u], 1, 0) : neither(x->late_column[u], x->stay_column[u]));
            }
            if (late)
                continue;
            if (step->kind == STEP_STORE) {
                x->store_event[u] = new_event(x, STREAM_STORE, i, -1, p->unit[u].store.median_ns);
                only_when(x, x->store_event[u], neither(x->grad_column[u], x->stay_column[u]));
            }
            if (step->kind == STEP_STORE_LOSS)
                x->loss_event = new_event(x, STREAM_STORE, i, -1, p->loss_store.median_ns);
            if (step->kind == STEP_SQNORM) {
                x->sqnorm_event[u] = new_event(x, STREAM_UPDATE, i, -1, p->unit[u].norm.median_ns);
                only_when(x, x->sqnorm_event[u], literal_of(x->stay_column[u], -1, 1));
            }
            if (step->kind == STEP_NORM)
                x->norm_event = new_event(x, STREAM_UPDATE, i, -1, p->clip.median_ns);
        }
    }
    for (int u = 0; u < units; u++)
        for (int k = 0; k < g->unit[u].n_use; k++) {
            int kernel = 0, arg = 0;
            while (!(cross_reads(g, &g->node.at[kernel], u) &&
                     cross_use(g, u, g->node.at[kernel].segment, g->node.at[kernel].phase) >= k))
                kernel++;
            const Node *node = &g->node.at[kernel];
            while (arg < node_n_out(node) || node->arg[arg] < 0 ||
                   cross_root(g, node->arg[arg])->kind != TENSOR_PARAM ||
                   g->param[cross_root(g, node->arg[arg])->param].unit != u)
                arg++;
            int e = new_event(x, STREAM_LOAD, kernel * FERRY_MAX_ARGS + arg, -1, p->unit[u].load.median_ns);
            x->load_event[x->place_at[u] + k] = e;
            Literal here = literal_of(x->place_column[x->place_at[u] + k], 1, 0);
            if (k == 0) { /* and it does not live on the GPU */
                here.column[here.n] = x->stay_column[u];
                here.value[here.n++] = -1;
            }
            only_when(x, e, here);
            if (k != plan_first_backward_use(&g->unit[u]))
                continue;
            e = new_event(x, STREAM_LOAD, kernel * FERRY_MAX_ARGS + arg, -1, p->unit[u].load.median_ns);
            x->again_event[u] = e;
            only_when(x, e, literal_of(x->reload_column[u], 1, 0));
        }
    return ST_OK;
}

/* ---- rows
 * -----------------------------------------------------------------------------------------------------------------------------
 */

static void put_missing(Cross *x, const Literal *l, double *at_least)
{
    /* + big * (1 - literal) on the left side */
    for (int i = 0; i < l->n; i++)
        put(x, l->column[i], -x->big * l->value[i]);
    *at_least -= x->big * (1 - l->constant);
}

/* start(b) - start(a) - time(a) + span T >= 0 when a, b and `also` are there. */
static Status order(Cross *x, int a, int b, int span, const Literal *also)
{
    const Event *from = &x->event[a], *to = &x->event[b];
    double at_least = 0;
    put(x, to->start, 1);
    put(x, from->start, -1);
    put(x, x->mip.period, span);
    if (from->kernel >= 0) {
        const Node *n = &x->g->node.at[from->kernel];
        const Places *p = &x->kernels.places[2 * n->segment + (int)n->phase];
        for (int c = 0; c < 1 << p->n_bit; c++)
            put(x, p->column + c, -x->kernels.ns[from->kernel][c] / x->scale);
    } else if (from->part >= 0) {
        put(x, from->part, -from->ns / x->scale);
    } else {
        at_least += from->ns / x->scale;
    }
    for (int i = 0; i < from->n_literal; i++)
        put_missing(x, &from->literal[i], &at_least);
    for (int i = 0; i < to->n_literal; i++)
        put_missing(x, &to->literal[i], &at_least);
    if (also)
        put_missing(x, also, &at_least);
    return end_row(x, at_least, false);
}

static Status add_streams(Cross *x)
{
    for (int a = 0; a < x->n_event; a++)
        for (int b = 0; b < x->n_event; b++) {
            const Event *p = &x->event[a], *q = &x->event[b];
            if (p->stream != q->stream)
                continue;
            bool before = a != b && (p->order < q->order);
            if (p->stream == STREAM_COMPUTE && q->order != (p->order + 1) % x->n_compute)
                continue; /* these are always there: neighbours are enough */
            TRY(order(x, a, b, before ? 0 : 1, NULL));
        }
    return ST_OK;
}

/* Within an iteration `a` comes first when its place in the program is earlier; else it is the previous iteration's. */
static Status add_unit_rows(Cross *x, int u)
{
    const Graph *g = x->g;
    int updates[2] = {x->early_event[u], x->late_event[u]}, first_grad = -1;
    bool trains = g->unit[u].grad_bytes > 0;
    Literal on_gpu = literal_of(x->grad_column[u], -1, 1), on_host = literal_of(x->grad_column[u], 1, 0);
    Literal once = literal_of(x->reload_column[u], -1, 1);
    int backward = plan_first_backward_use(&g->unit[u]);
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        int kernel = x->kernel_event[i];
        if (cross_reads(g, n, u)) {
            int use = cross_use(g, u, n->segment, n->phase);
            Literal host = read_on_host(x, u, use, true);
            for (int k = 0; k <= use; k++) {
                bool copy2 = use >= backward && k < backward; /* when it is loaded twice */
                TRY(order(x, x->load_event[x->place_at[u] + k], kernel, 0, NULL));
                TRY(order(x, kernel, x->load_event[x->place_at[u] + k], 1, copy2 ? &once : NULL));
            }
            if (use >= backward) {
                TRY(order(x, x->again_event[u], kernel, 0, NULL));
                TRY(order(x, kernel, x->again_event[u], 1, NULL));
            }
            for (int late = 0; late < 2 && trains; late++) {
                TRY(order(x, updates[late], kernel, 1, &host));
                TRY(order(x, kernel, updates[late], 0, &host));
            }
        }
        if (trains && cross_writes(g, n, u)) {
            TRY(order(x, kernel, x->store_event[u], 0, NULL));
            TRY(order(x, kernel, x->sqnorm_event[u], 0, &on_host));
            TRY(order(x, x->store_event[u], kernel, 1, NULL));
            for (int late = 0; late < 2 && first_grad < 0; late++)
                TRY(order(x, updates[late], kernel, 1, &on_host));
            first_grad = i;
        }
    }
    for (int k = 0; k < g->unit[u].n_use && trains; k++)
        for (int late = 0; late < 2; late++) {
            TRY(order(x, updates[late], x->load_event[x->place_at[u] + k], 1, NULL));
            TRY(order(x, x->load_event[x->place_at[u] + k], updates[late], 0, NULL));
            if (k != backward)
                continue;
            TRY(order(x, updates[late], x->again_event[u], 1, NULL));
            TRY(order(x, x->again_event[u], updates[late], 0, NULL));
        }
    if (!trains)
        return ST_OK;
    if (x->stay_norm_event[u] >= 0) {
        Literal stays = literal_of(x->stay_column[u], 1, 0);
        TRY(order(x, x->stay_norm_event[u], x->norm_event, 0, &stays));
        if (x->o->clip)
            TRY(order(x, x->norm_event, x->stay_update_event[u], 0, &stays));
    }
    TRY(order(x, x->store_event[u], x->sqnorm_event[u], 0, &on_gpu));
    for (int late = 0; late < 2; late++)
        TRY(order(x, updates[late], x->store_event[u], 1, NULL));
    return ST_OK;
}

static Status add_graph_rows(Cross *x)
{
    const Graph *g = x->g;
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        for (int k = 0; k < node_n_arg(n); k++) {
            const Tensor *t = n->arg[k] < 0 ? NULL : cross_root(g, n->arg[k]);
            if (!t)
                continue;
            if (t->kind == TENSOR_INPUT) {
                TRY(order(x, x->input_event, x->kernel_event[i], 0, NULL));
                TRY(order(x, x->kernel_event[i], x->input_event, 1, NULL));
            }
            if (t == cross_root(g, g->loss) && k < node_n_out(n)) {
                TRY(order(x, x->kernel_event[i], x->loss_event, 0, NULL));
                TRY(order(x, x->loss_event, x->kernel_event[i], 1, NULL));
            }
        }
    }
    /* The host stages an iteration, at time 0, after the inputs of the last one are loaded and the loss and norm of the
     * one before it are known. */
    const int after[] = {x->input_event, x->loss_event, x->norm_event};
    for (int i = 0; i < 3; i++) {
        put(x, x->mip.period, i == 0 ? 1 : 2);
        put(x, x->event[after[i]].start, -1);
        TRY(end_row(x, x->event[after[i]].ns / x->scale, false));
    }
    /* Implied: what each stream has to do. */
    double updates = 0;
    put(x, x->mip.period, 1);
    for (int u = 0; u < g->n_unit; u++) {
        put(x, x->reload_column[u], -(double)x->p->unit[u].load.median_ns / x->scale);
        put(x, x->stay_column[u], (double)x->p->unit[u].load.median_ns / x->scale);
        for (int k = 0; k < g->unit[u].n_use; k++)
            put(x, x->place_column[x->place_at[u] + k], -(double)x->p->unit[u].load.median_ns / x->scale);
    }
    TRY(end_row(x, (double)x->p->input_load.median_ns / x->scale, false));
    put(x, x->mip.period, 1);
    for (int u = 0; u < g->n_unit; u++) {
        double ns =
            g->unit[u].grad_bytes > 0 ? (double)(x->p->unit[u].norm.median_ns + x->p->unit[u].update.median_ns) : 0;
        put(x, x->stay_column[u], ns / x->scale);
        updates += ns;
    }
    TRY(end_row(x, (updates + (double)x->p->clip.median_ns) / x->scale, false));
    return ST_OK;
}

static Status build(Cross *x)
{
    TRY(cross_open(x->d, &x->mip, ((double)x->o->most_ns * (1 + SLACK) + 0.5) / x->scale));
    TRY(cross_time_kernels(&x->kernels));
    TRY(add_choices(x));
    Arena *scratch = arena_open();
    if (!scratch)
        return diag_oom(x->d);
    Status st = make_events(x, scratch);
    arena_close(scratch);
    TRY(st);
    if (x->mip.failed)
        return diag_oom(x->d);
    x->row = ARENA_NEW(x->a, double, x->mip.n_column + 1);
    if (!x->row)
        return diag_oom(x->d);
    TRY(link_choices(x));
    TRY(add_streams(x));
    for (int u = 0; u < x->g->n_unit; u++)
        TRY(add_unit_rows(x, u));
    return add_graph_rows(x);
}

/* ---- the answer
 * ------------------------------------------------------------------------------------------------------------------------
 */

static Status judge(Diag *d, Arena *scratch, const Graph *g, const Profile *p, const CrossOptions *o, CrossResult *out)
{
    Plan plan = {.n_unit = g->n_unit, .unit = out->unit, .clip = o->clip, .reserve_factor = -1};
    StepList *s;
    Timeline t;
    Layout layout;
    int64_t live;
    TRY(steps_build(d, scratch, g, &plan, &s));
    TRY(steps_time(d, s, p));
    TRY(simulate(d, scratch, s, &p->device, false, &t));
    TRY(memory_plan(d, scratch, s, &p->device, &layout, &live));
    TRY(plan_verify(d, scratch, s, &layout));
    out->milp_ns = t.period_ns;
    return ST_OK;
}

static Status take_answer(Cross *x, Arena *a, Arena *scratch, const CrossAnswer *answer, CrossResult *out)
{
    *out = (CrossResult){.closed = answer->closed, .milp_ns = -1, .why = answer->why};
    if (!answer->value)
        return ST_OK;
    out->unit = ARENA_NEW(a, UnitPlan, x->g->n_unit);
    if (!out->unit)
        return diag_oom(x->d);
    for (int u = 0; u < x->g->n_unit; u++) {
        for (int k = 0; k <= x->g->unit[u].n_use; k++)
            if (answer->value[x->place_column[x->place_at[u] + k]])
                out->unit[u].first_gpu_use = k;
        out->unit[u].grad = answer->value[x->grad_column[u]] ? ON_HOST : ON_GPU;
        out->unit[u].late = answer->value[x->late_column[u]];
        out->unit[u].hold = answer->value[x->reload_column[u]] ? HOLD_RELOAD
                            : answer->value[x->stay_column[u]] ? HOLD_RESIDENT
                                                               : HOLD_STEP;
    }
    return judge(x->d, scratch, x->g, x->p, x->o, out);
}

/* The solver calculates in floating point. An end at which it has missed a plan that exists is none. */
static Status solve(Cross *x, Arena *a, Arena *scratch, CrossResult *out)
{
    Status st = ST_OK;
    bool again = true;
    CrossLimits limits = {
        .nodes = x->o->nodes > 0 ? x->o->nodes : NODES, .seconds = SECONDS, .bytes = (int64_t)GIBIBYTES << 30};
    for (int way = 0; way < CROSS_WAYS && st == ST_OK && again; way++) {
        CrossAnswer answer;
        st = cross_solve(x->d, &x->mip, &limits, way, &answer);
        if (st == ST_OK)
            st = take_answer(x, a, scratch, &answer, out);
        base_free(answer.value);
        again = !out->closed && answer.again;
        if (out->closed && (!out->unit || out->milp_ns > x->o->most_ns)) {
            out->closed = false;
            out->why = "the solver's arithmetic is not exact enough for these times";
            again = true;
        }
    }
    return st;
}

Status cross_check(Diag *d, Arena *a, const Graph *g, const Profile *p, const CrossOptions *o, CrossResult *out)
{
    *out = (CrossResult){.milp_ns = -1};
    if (g->n_unit > CROSS_MAX_UNITS) {
        diag_fail(
            d, ST_MODEL,
            "--cross-check: the model has %d units, and the program for the solver grows with their square: at most %d",
            g->n_unit, CROSS_MAX_UNITS);
        return diag_hint(d, "plan without it: the bound is proven all the same");
    }
    Arena *scratch = arena_open();
    if (!scratch)
        return diag_oom(d);
    Cross x = {.d = d, .a = scratch, .g = g, .p = p, .o = o};
    x.kernels = (Kernels){.d = d, .a = scratch, .g = g, .p = p, .clip = o->clip, .most_ns = o->most_ns};
    x.scale = o->most_ns > 0 ? (double)o->most_ns / 1000 : 1;
    x.big = 6 * ((double)o->most_ns + 1) / x.scale;
    Status st = build(&x);
    if (st == ST_OK)
        st = solve(&x, a, scratch, out);
    cross_close(&x.mip);
    arena_close(scratch);
    return st;
}
