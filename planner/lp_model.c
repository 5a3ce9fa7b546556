/* lp_model.c - builds the events and orderings that lp_model.h describes.
 *
 * needs: a checked graph, a profile that matches it   fills: LpModel   keeps: graph and profile
 *
 * Events are numbered in program order, so that every ordering within an iteration leads from a lower to a higher
 * number. The rules are those of steps.h, stated once more for all plans at a time. */
#include "planner/lp_model.h"

#include <string.h>

#include "planner/steps.h"

enum { ALL_PAIRS = 30 }; /* units: up to here all runs of updates have a row, beyond the longest of each start */

/* What the orderings depend on. Kernels are nodes of the graph: -1 is none. */
typedef struct Scan {
    int *first_read, *last_grad; /* by unit */
    int *use_first, *use_last;   /* by unit and use, from use_at[unit]: kernels of that use */
    int *use_at;
    int input_first, input_last;
    int loss_first, loss_last;
    int n_arrived, *arrived; /* trainable units in the order in which their gradients are complete */
    int n_late, *late;       /* in order of first use */
    int n_place, *place_unit, *place_use;
} Scan;

typedef struct Build {
    Diag *d;
    Arena *a;
    const Graph *g;
    const Profile *p;
    LpModel *m;
    Scan scan;
    int64_t *least;           /* prefix sums of kernels' least times */
    int *kernel_event, *gate; /* by kernel: its event or -1; the last kernel with an event that is not after it */
    int *load_event, *again_event, *store_event, *sqnorm_event, *early_event, *late_event; /* loads by use_at + use */
    int *whole_event, *enter_event, *first_event;
    int n_run, *run_event, *run_from, *run_to; /* runs of updates: from a square sum to a first use */
    int host, input, loss, norm;
} Build;

/* ---- what the graph says
 * ------------------------------------------------------------------------------------------------------ */

static int use_of_node(const Graph *g, const Node *n, int unit)
{
    const Unit *u = &g->unit[unit];
    for (int i = 0; i < u->n_use; i++)
        if (2 * u->use[i].layer + 1 == n->segment && u->use[i].phase == n->phase)
            return i;
    return -1;
}

static Status scan_arrays(Build *b)
{
    Scan *s = &b->scan;
    const Graph *g = b->g;
    int uses = 0;
    s->use_at = ARENA_NEW(b->a, int, g->n_unit + 1);
    if (!s->use_at)
        return diag_oom(b->d);
    for (int u = 0; u < g->n_unit; u++) {
        s->use_at[u] = uses;
        uses += g->unit[u].n_use;
    }
    s->use_at[g->n_unit] = uses;
    s->first_read = ARENA_NEW(b->a, int, g->n_unit);
    s->last_grad = ARENA_NEW(b->a, int, g->n_unit);
    s->use_first = ARENA_NEW(b->a, int, uses);
    s->use_last = ARENA_NEW(b->a, int, uses);
    s->arrived = ARENA_NEW(b->a, int, g->n_unit);
    s->late = ARENA_NEW(b->a, int, g->n_unit);
    s->place_unit = ARENA_NEW(b->a, int, uses);
    s->place_use = ARENA_NEW(b->a, int, uses);
    if (!s->first_read || !s->last_grad || !s->use_first || !s->use_last || !s->arrived || !s->late || !s->place_unit ||
        !s->place_use)
        return diag_oom(b->d);
    for (int u = 0; u < g->n_unit; u++)
        s->first_read[u] = s->last_grad[u] = -1;
    for (int i = 0; i < uses; i++)
        s->use_first[i] = s->use_last[i] = -1;
    s->input_first = s->input_last = s->loss_first = s->loss_last = -1;
    return ST_OK;
}

static const Tensor *root_tensor(const Graph *g, int tensor)
{
    return &g->tensor.at[g->tensor.at[tensor].root];
}

static Status scan_node(Build *b, int index)
{
    Scan *s = &b->scan;
    const Graph *g = b->g;
    const Node *n = &g->node.at[index];
    int outs = node_n_out(n);
    for (int k = 0; k < node_n_arg(n); k++) {
        if (n->arg[k] < 0)
            continue;
        const Tensor *t = root_tensor(g, n->arg[k]);
        if (k < outs && t == root_tensor(g, g->loss)) {
            s->loss_first = s->loss_first < 0 ? index : s->loss_first;
            s->loss_last = index;
        }
        if (t->kind == TENSOR_INPUT && k >= outs) {
            s->input_first = s->input_first < 0 ? index : s->input_first;
            s->input_last = index;
        }
        if (t->kind == TENSOR_GRADIENT && k < outs)
            s->last_grad[g->param[t->param].unit] = index;
        if (t->kind != TENSOR_PARAM || k < outs)
            continue;
        int unit = g->param[t->param].unit, use = use_of_node(g, n, unit);
        if (use < 0)
            return diag_fail(b->d, ST_FAILED, "node %s: reads unit %s outside its uses", n->name, g->unit[unit].name);
        if (s->first_read[unit] < 0)
            s->first_read[unit] = index;
        int at = s->use_at[unit] + use;
        s->use_last[at] = index;
        if (s->use_first[at] >= 0)
            continue;
        s->use_first[at] = index;
        if (use > 0 && s->use_first[at - 1] < 0)
            return diag_fail(b->d, ST_FAILED, "unit %s: its uses are not in the order of its kernels",
                             g->unit[unit].name);
        s->place_unit[s->n_place] = unit;
        s->place_use[s->n_place++] = use;
    }
    return ST_OK;
}

static Status scan_graph(Build *b)
{
    Scan *s = &b->scan;
    const Graph *g = b->g;
    TRY(scan_arrays(b));
    for (int i = 0; i < g->node.count; i++)
        TRY(scan_node(b, i));
    bool *listed = ARENA_NEW(b->a, bool, g->n_unit);
    if (!listed)
        return diag_oom(b->d);
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        for (int k = 0; k < node_n_out(n); k++) {
            const Tensor *t = n->arg[k] < 0 ? NULL : root_tensor(g, n->arg[k]);
            int unit = t && t->kind == TENSOR_GRADIENT ? g->param[t->param].unit : -1;
            if (unit < 0 || s->last_grad[unit] != i || listed[unit])
                continue;
            listed[unit] = true;
            s->arrived[s->n_arrived++] = unit;
        }
    }
    for (int i = 0; i < g->node.count; i++)
        for (int u = 0; u < g->n_unit; u++)
            if (g->unit[u].grad_bytes > 0 && s->first_read[u] == i)
                s->late[s->n_late++] = u;
    for (int u = 0; u < g->n_unit; u++) {
        if (g->unit[u].grad_bytes == 0)
            continue;
        if (s->first_read[u] < 0 || s->last_grad[u] < s->first_read[u] || s->last_grad[u] < s->loss_last)
            return diag_fail(b->d, ST_FAILED, "unit %s: its gradient does not come after its use and the loss",
                             g->unit[u].name);
        if (!listed[u])
            return diag_fail(b->d, ST_FAILED, "unit %s: nothing writes its gradient", g->unit[u].name);
    }
    if (s->loss_last < 0 || s->n_arrived == 0)
        return diag_fail(b->d, ST_FAILED, "the graph has no loss or nothing to train");
    return ST_OK;
}

/* ---- events and orderings
 * ------------------------------------------------------------------------------------------------------ */

static const LpWhen ALWAYS = {.unit = -1};

static int add_event(Build *b, LpEvent e)
{
    b->m->event[b->m->n_event] = e;
    return b->m->n_event++;
}

static LpWhen when_stored(const Build *b, int u)
{
    return (LpWhen){u, 0, b->g->unit[u].n_use, ON_GPU, -1, 0};
}

static LpWhen when_late(const Build *b, int u, bool late)
{
    return (LpWhen){u, 0, b->g->unit[u].n_use, -1, late, 0};
}

static Status make_events(Build *b)
{
    const Scan *s = &b->scan;
    const Graph *g = b->g;
    const Profile *p = b->p;
    size_t units = (size_t)g->n_unit, kernels = (size_t)g->node.count;
    b->m->event =
        ARENA_NEW(b->a, LpEvent, kernels + (size_t)s->n_place + 9 * units + 8 + ALL_PAIRS * (ALL_PAIRS + 1) / 2);
    b->kernel_event = ARENA_NEW(b->a, int, kernels);
    b->gate = ARENA_NEW(b->a, int, kernels);
    int *at = ARENA_NEW(b->a, int, (size_t)s->use_at[units] + 8 * units);
    if (!b->m->event || !b->kernel_event || !b->gate || !at)
        return diag_oom(b->d);
    b->load_event = at;
    b->store_event = at + s->use_at[units];
    b->sqnorm_event = b->store_event + units;
    b->early_event = b->sqnorm_event + units;
    b->late_event = b->early_event + units;
    b->whole_event = b->late_event + units;
    b->enter_event = b->whole_event + units;
    b->first_event = b->enter_event + units;
    b->again_event = b->first_event + units;
    for (size_t u = 0; u < units; u++)
        b->again_event[u] = -1;
    b->host = add_event(b, (LpEvent){LP_HOST, -1, -1, -1, 0, ALWAYS});
    b->input = add_event(b, (LpEvent){LP_INPUT, -1, -1, -1, p->input_load.median_ns, ALWAYS});
    int place = 0, stored = 0;
    for (int i = 0; i < g->node.count; i++) {
        bool gate = i == 0 || i == s->input_first || i == s->loss_first;
        for (; place < s->n_place && s->use_first[s->use_at[s->place_unit[place]] + s->place_use[place]] == i;
             place++) {
            int u = s->place_unit[place], k = s->place_use[place];
            gate = true;
            b->load_event[s->use_at[u] + k] =
                add_event(b, (LpEvent){LP_LOAD, u, k, -1, p->unit[u].load.median_ns, {u, k, k, -1, -1, 0}});
            if (k > 0 && k == plan_first_backward_use(&g->unit[u]))
                b->again_event[u] = add_event(b, (LpEvent){LP_LOAD,
                                                           u,
                                                           k,
                                                           -1,
                                                           p->unit[u].load.median_ns,
                                                           {u, 0, k - 1, -1, -1, 1u << HOLD_RELOAD}});
            if (k == 0 && g->unit[u].grad_bytes > 0)
                b->enter_event[u] =
                    add_event(b, (LpEvent){LP_ENTER, u, 0, -1, p->unit[u].load.median_ns, {u, 0, 0, -1, -1, 0}});
        }
        b->kernel_event[i] = gate ? add_event(b, (LpEvent){LP_KERNEL, -1, -1, i, 0, ALWAYS}) : -1;
        b->gate[i] = gate ? i : b->gate[i - 1];
        for (; stored < s->n_arrived && s->last_grad[s->arrived[stored]] == i; stored++) {
            int u = s->arrived[stored];
            b->store_event[u] =
                add_event(b, (LpEvent){LP_STORE, u, -1, -1, p->unit[u].store.median_ns, when_stored(b, u)});
        }
        if (i == s->loss_last)
            b->loss = add_event(b, (LpEvent){LP_LOSS, -1, -1, -1, p->loss_store.median_ns, ALWAYS});
    }
    for (int i = 0; i < s->n_arrived; i++) {
        int u = s->arrived[i];
        b->sqnorm_event[u] = add_event(b, (LpEvent){LP_SQNORM, u, -1, -1, p->unit[u].norm.median_ns, ALWAYS});
        if (!b->m->domain.clip)
            b->early_event[u] =
                add_event(b, (LpEvent){LP_EARLY, u, -1, -1, p->unit[u].update.median_ns, when_late(b, u, false)});
    }
    b->norm = add_event(b, (LpEvent){LP_NORM, -1, -1, -1, p->clip.median_ns, ALWAYS});
    for (int i = 0; i < s->n_arrived && b->m->domain.clip; i++) {
        int u = s->arrived[i];
        b->early_event[u] =
            add_event(b, (LpEvent){LP_EARLY, u, -1, -1, p->unit[u].update.median_ns, when_late(b, u, false)});
    }
    for (int i = 0; i < s->n_late; i++) {
        int u = s->late[i];
        b->late_event[u] =
            add_event(b, (LpEvent){LP_LATE, u, -1, -1, p->unit[u].update.median_ns, when_late(b, u, true)});
    }
    for (int i = 0; i < s->n_late; i++) {
        int u = s->late[i];
        b->whole_event[u] = add_event(b, (LpEvent){LP_WHOLE, u, -1, -1, p->unit[u].update.median_ns, ALWAYS});
        if (b->m->domain.clip)
            b->first_event[u] = add_event(b, (LpEvent){LP_FIRST, u, -1, -1, p->unit[u].update.median_ns, ALWAYS});
    }
    return ST_OK;
}

/* Without clip. Of the units whose gradients are complete no earlier than that of a, those that are used no later than
 * b have their square sums and updates all between the square sum of a and the first use of b, wherever the updates
 * are. */
static Status make_runs(Build *b)
{
    const Scan *s = &b->scan;
    int n = s->n_arrived;
    bool all = n <= ALL_PAIRS;
    bool *after = ARENA_NEW(b->a, bool, b->g->n_unit);
    int room = all ? n * (n + 1) / 2 : n;
    int *at = ARENA_NEW(b->a, int, 3 * (size_t)room);
    if (!after || !at)
        return diag_oom(b->d);
    b->run_event = at;
    b->run_from = at + room;
    b->run_to = at + 2 * (size_t)room;
    for (int i = n - 1; i >= 0; i--) {
        int a = s->arrived[i], left = n - i;
        int64_t ns = -b->p->unit[a].norm.median_ns;
        after[a] = true;
        for (int k = 0; k < s->n_late; k++) {
            int u = s->late[k];
            if (!after[u])
                continue;
            ns += b->p->unit[u].norm.median_ns + b->p->unit[u].update.median_ns;
            if (--left > 0 && (!all || ns < 0))
                continue;
            b->run_event[b->n_run] = add_event(b, (LpEvent){LP_FIRST, u, -1, -1, ns, ALWAYS});
            b->run_from[b->n_run] = a;
            b->run_to[b->n_run++] = u;
        }
    }
    /* and the norm, when b is late */
    for (int k = 0; k < s->n_late; k++) {
        int u = s->late[k];
        b->first_event[u] = add_event(b, (LpEvent){LP_FIRST, u, -1, -1, b->p->clip.median_ns, when_late(b, u, true)});
    }
    return ST_OK;
}

static LpEdge *add_edge(Build *b, int from, int to, int span)
{
    LpEdge *e = &b->m->edge[b->m->n_edge++];
    *e = (LpEdge){.from = from, .to = to, .span = span, .when = ALWAYS};
    return e;
}

static LpEdge *add_conditional(Build *b, int from, int to, int span, LpWhen when, int periods, int64_t slack_ns)
{
    LpEdge *e = add_edge(b, from, to, span);
    e->when = when;
    e->periods = periods;
    e->slack_ns = slack_ns;
    return e;
}

/* From the end of a kernel. */
static LpEdge *after_kernel(Build *b, int kernel, int to, int span)
{
    LpEdge *e = add_edge(b, b->kernel_event[b->gate[kernel]], to, span);
    e->first = b->gate[kernel];
    e->last = kernel + 1;
    return e;
}

static int64_t least(const Build *b, int first, int last)
{
    return first < last ? b->least[last] - b->least[first] : 0;
}

static void add_compute(Build *b)
{
    const Scan *s = &b->scan;
    int n = b->g->node.count;
    for (int i = 1; i < n; i++)
        if (b->kernel_event[i] >= 0)
            after_kernel(b, i - 1, b->kernel_event[i], 0);
    after_kernel(b, n - 1, b->kernel_event[0], 1);
    add_edge(b, b->host, b->kernel_event[0], 0);
    add_edge(b, b->host, b->input, 0);
    add_edge(b, b->input, b->host, 1);
    add_edge(b, b->loss, b->host, 2);
    add_edge(b, b->norm, b->host, 2);
    if (s->input_first >= 0) {
        add_edge(b, b->input, b->kernel_event[s->input_first], 0);
        after_kernel(b, s->input_last, b->input, 1);
    }
    after_kernel(b, s->loss_last, b->loss, 0);
    add_edge(b, b->loss, b->kernel_event[s->loss_first], 1);
}

/* From the update of a unit to its next load: without that, the first use comes after the update, then the last kernel
 * that reads the inputs, their next load and so all loads. *periods more periods than one, and *slack at least for that
 * path. */
static void update_to_load(const Build *b, int u, int *periods, int64_t *slack)
{
    const Scan *s = &b->scan;
    int n = b->g->node.count, first = s->first_read[u];
    int64_t load = b->p->input_load.median_ns;
    *periods = 2;
    *slack = 0; /* without inputs: by the norm of the next step and the host */
    if (s->input_last >= first) {
        *periods = 1;
        *slack = least(b, first, s->input_last + 1) + load;
    } else if (s->input_last >= 0) {
        *slack = least(b, first, n) + least(b, 0, s->input_last + 1) + load;
    }
}

/* A load comes after the one before, and the first kernel that it serves waits for it. */
static void add_load(Build *b, int before, int load, int kernel)
{
    const Scan *s = &b->scan;
    add_edge(b, before, load, 0);
    if (s->input_first >= 0 && kernel >= s->input_first)
        add_edge(b, load, b->kernel_event[kernel], 0);
    else
        add_conditional(b, load, b->kernel_event[kernel], 0, b->m->event[load].there, 2, 0);
}

/* When the copy is held until this kernel, it reads the buffer before the next load into it. */
static void add_last_read(Build *b, int kernel, int load, LpWhen held)
{
    const Scan *s = &b->scan;
    if (kernel <= s->input_last)
        return;
    LpEdge *e = after_kernel(b, kernel, load, 1);
    e->when = held;
    e->periods = s->input_last >= 0 ? 1 : 2;
    if (s->input_last >= 0)
        e->slack_ns = least(b, kernel + 1, b->g->node.count) + least(b, 0, s->input_last + 1) +
                      b->p->input_load.median_ns;
}

static void add_loads(Build *b)
{
    const Scan *s = &b->scan;
    int before = b->input;
    for (int i = 0; i < s->n_place; i++) {
        int u = s->place_unit[i], k = s->place_use[i], at = s->use_at[u];
        const Unit *unit = &b->g->unit[u];
        int load = b->load_event[at + k], again = b->again_event[u], backward = plan_first_backward_use(unit);
        int last = s->use_last[at + unit->n_use - 1];
        LpWhen here = b->m->event[load].there, held = here;
        add_load(b, before, load, s->use_first[at + k]);
        before = load;
        held.holds = 1u << HOLD_STEP;
        add_last_read(b, last, load, held);
        held.holds = 1u << HOLD_RELOAD;
        if (again >= 0 && k < backward)
            add_last_read(b, s->use_last[at + backward - 1], load, held);
        if (again >= 0 && k == backward) {
            add_load(b, before, again, s->use_first[at + k]);
            add_last_read(b, last, again, b->m->event[again].there);
            before = again;
        }
        if (unit->grad_bytes == 0)
            continue;
        int periods;
        int64_t slack;
        update_to_load(b, u, &periods, &slack);
        add_conditional(b, b->early_event[u], load, 1, here, periods, slack);
        here.late = 1;
        add_conditional(b, b->late_event[u], load, 1, here, periods, slack);
    }
    add_edge(b, before, b->input, 1);
}

static void add_stores(Build *b)
{
    const Scan *s = &b->scan;
    for (int i = 0; i < s->n_arrived; i++) {
        int u = s->arrived[i], store = b->store_event[u];
        after_kernel(b, s->last_grad[u], store, 0);
        add_edge(b, store, b->sqnorm_event[u], 0);
        if (i > 0)
            add_edge(b, b->store_event[s->arrived[i - 1]], store, 0);
        /* else the loss is stored before the next one is computed, and u's gradient comes after that */
        add_conditional(b, b->loss, store, 0, when_stored(b, u), 1, least(b, s->loss_first, s->last_grad[u] + 1));
    }
    add_edge(b, b->store_event[s->arrived[s->n_arrived - 1]], b->loss, 1);
    add_edge(b, b->loss, b->loss, 1);
}

/* A kernel that reads the unit from host memory, or a load of it, after its last gradient: the update waits. */
static void add_stragglers(Build *b, int u)
{
    const Scan *s = &b->scan;
    int n = b->g->node.count, grad = s->last_grad[u], all = s->last_grad[s->arrived[s->n_arrived - 1]];
    for (int k = 0; k < b->g->unit[u].n_use; k++) {
        int first = s->use_first[s->use_at[u] + k], last = s->use_last[s->use_at[u] + k];
        for (int late = 0; late <= 1; late++) {
            int update = late ? b->late_event[u] : b->early_event[u];
            if (last > (late ? all : grad)) {
                LpEdge *e = after_kernel(b, last, update, 0);
                e->when = (LpWhen){u, k + 1, b->g->unit[u].n_use, -1, late, 0};
                e->periods = 1;
                e->slack_ns = least(b, last + 1, n) + least(b, 0, grad + 1);
            }
            if (first > (late ? all : grad))
                add_conditional(b, b->load_event[s->use_at[u] + k], update, 0, (LpWhen){u, k, k, -1, late, 0}, 2, 0);
            if (first > (late ? all : grad) && b->again_event[u] >= 0 && k == plan_first_backward_use(&b->g->unit[u]))
                add_conditional(b, b->again_event[u], update, 0, (LpWhen){u, 0, k - 1, -1, late, 1u << HOLD_RELOAD}, 2,
                                0);
        }
    }
}

static void add_updates(Build *b)
{
    const Scan *s = &b->scan;
    int tail = -1; /* of the CPU's steps before the late updates */
    bool clip = b->m->domain.clip;
    for (int i = 0; i < s->n_arrived; i++) {
        int u = s->arrived[i];
        if (tail >= 0)
            add_edge(b, tail, b->sqnorm_event[u], 0);
        tail = b->sqnorm_event[u];
        if (clip)
            continue;
        add_edge(b, tail, b->early_event[u], 0);
        tail = b->early_event[u];
    }
    add_edge(b, tail, b->norm, 0);
    tail = b->norm;
    for (int i = 0; clip && i < s->n_arrived; i++) {
        add_edge(b, tail, b->early_event[s->arrived[i]], 0);
        tail = b->early_event[s->arrived[i]];
    }
    int first = b->sqnorm_event[s->arrived[0]];
    add_edge(b, tail, first, 1);
    int64_t norms = 0;
    for (int i = 0; i < s->n_arrived; i++) {
        int u = s->arrived[i];
        norms += b->p->unit[u].norm.median_ns;
        add_edge(b, b->sqnorm_event[u], b->late_event[u], 0);
        /* else the square sums of the next step come after the tail, and u's late update after its own */
        add_conditional(b, tail, b->late_event[u], 0, when_late(b, u, true), 1, norms);
        add_stragglers(b, u);
    }
    for (int i = 0; i < s->n_late; i++) {
        int u = s->late[i], kernel = b->kernel_event[s->first_read[u]];
        if (i > 0)
            add_edge(b, b->late_event[s->late[i - 1]], b->late_event[u], 0);
        add_edge(b, b->early_event[u], kernel, 1);
        add_edge(b, b->late_event[u], kernel, 1);
    }
    add_edge(b, b->late_event[s->late[s->n_late - 1]], first, 1);
}

/* What is implied by the others at whole choices. */
static void add_implied(Build *b)
{
    const Scan *s = &b->scan;
    bool clip = b->m->domain.clip;
    int64_t norms = clip ? b->p->clip.median_ns : 0;
    for (int i = 0; clip && i < s->n_arrived; i++)
        norms += b->p->unit[s->arrived[i]].norm.median_ns;
    for (int i = 0; i < s->n_late; i++) {
        int u = s->late[i], kernel = b->kernel_event[s->first_read[u]];
        add_edge(b, clip ? b->norm : b->sqnorm_event[u], b->whole_event[u], 0);
        add_edge(b, b->whole_event[u], b->enter_event[u], 1);
        add_edge(b, b->early_event[u], b->enter_event[u], 1);
        /* else the next step's square sums come in between */
        add_conditional(b, b->late_event[u], b->enter_event[u], 1, when_late(b, u, true), 1,
                        norms + b->p->unit[u].update.median_ns);
        add_edge(b, b->enter_event[u], kernel, 0);
        add_edge(b, b->first_event[u], kernel, 1);
        if (!clip)
            continue;
        add_edge(b, i > 0 ? b->first_event[s->late[i - 1]] : b->norm, b->first_event[u], 0);
    }
    for (int i = 0; i < b->n_run; i++) {
        add_edge(b, b->sqnorm_event[b->run_from[i]], b->run_event[i], 0);
        add_edge(b, b->run_event[i], b->first_event[b->run_to[i]], 0);
    }
}

/* Edges of span 0 first, by `from`: events are numbered in program order. */
static Status sort_edges(Build *b)
{
    LpModel *m = b->m;
    int *first = ARENA_NEW(b->a, int, m->n_event + 2);
    LpEdge *sorted = ARENA_NEW(b->a, LpEdge, m->n_edge);
    if (!first || !sorted)
        return diag_oom(b->d);
    for (int i = 0; i < m->n_edge; i++) {
        const LpEdge *e = &m->edge[i];
        if (e->span == 0 && e->from >= e->to)
            return diag_fail(b->d, ST_FAILED, "an ordering of the linear model leads backwards");
        m->n_forward += e->span == 0;
        first[(e->span == 0 ? e->from : m->n_event) + 1]++;
    }
    for (int i = 0; i <= m->n_event; i++)
        first[i + 1] += first[i];
    for (int i = 0; i < m->n_edge; i++)
        sorted[first[m->edge[i].span == 0 ? m->edge[i].from : m->n_event]++] = m->edge[i];
    m->edge = sorted;
    return ST_OK;
}

static Status find_least(Build *b)
{
    const LpModel *m = b->m;
    b->least = ARENA_NEW(b->a, int64_t, m->n_kernel + 1);
    if (!b->least)
        return diag_oom(b->d);
    for (int i = 0; i < m->n_kernel; i++) {
        int64_t least = m->kernel_ns[i][0];
        for (int c = 1; m->kernel_group[i] >= 0 && c < m->group[m->kernel_group[i]].n_choice; c++)
            least = m->kernel_ns[i][c] < least ? m->kernel_ns[i][c] : least;
        b->least[i + 1] = b->least[i] + least;
    }
    return ST_OK;
}

static Status build(Build *b)
{
    TRY(lp_choices_make(b->d, b->a, b->m));
    TRY(find_least(b));
    TRY(scan_graph(b));
    TRY(make_events(b));
    if (!b->m->domain.clip)
        TRY(make_runs(b));
    b->m->edge = ARENA_NEW(b->a, LpEdge,
                           (size_t)b->m->n_event + 7 * (size_t)b->scan.n_place + 30 * (size_t)b->g->n_unit +
                               2 * (size_t)b->n_run + 4 * (size_t)b->scan.use_at[b->g->n_unit] + 16);
    if (!b->m->edge)
        return diag_oom(b->d);
    add_compute(b);
    add_loads(b);
    add_stores(b);
    add_updates(b);
    add_implied(b);
    return sort_edges(b);
}

Status lp_model_build(Diag *d, Arena *a, const Graph *g, const Profile *p, const LpDomain *domain, LpModel **out)
{
    *out = NULL;
    LpModel *m = ARENA_NEW(a, LpModel, 1);
    if (!m)
        return diag_oom(d);
    m->graph = g;
    m->profile = p;
    m->domain = *domain;
    Build b = {.d = d, .a = a, .g = g, .p = p, .m = m};
    TRY(build(&b));
    *out = m;
    return ST_OK;
}
