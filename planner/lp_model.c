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

typedef struct Build {
    Diag *d;
    Arena *a;
    const Graph *g;
    const Profile *p;
    LpModel *m;
    const LpScan *scan;
    bool *resides;          /* by unit: some plan of the domain has it live on the GPU */
    int64_t *least;         /* prefix sums of the least times of slots */
    int *slot_event, *gate; /* by slot of compute: its event or -1; the last slot with an event that is not after it */
    int *load_event, *again_event, *store_event, *sqnorm_event, *early_event, *late_event; /* loads by use_at + use */
    int *whole_event, *enter_event, *first_event;
    int *own_store_event, *own_event; /* alone: a store, and where all that a unit asks of the CPU starts */
    int n_run;
    LpEdge *run; /* runs of updates */
    int host, input, loss, norm;
} Build;

/* ---- events and orderings
 * ------------------------------------------------------------------------------------------------------ */

static const LpWhen ALWAYS = {.unit = -1};

static int add_event(Build *b, LpEvent e)
{
    b->m->event[b->m->n_event] = e;
    return b->m->n_event++;
}

enum {
    NOT_RESIDENT = 1u << HOLD_STEP | 1u << HOLD_RELOAD,
    RANGES = 4 /* of slots, in the run of one unit */
};

static LpWhen when_stored(const Build *b, int u)
{
    return (LpWhen){u, 0, b->g->unit[u].n_use, ON_GPU, -1, NOT_RESIDENT};
}

static LpWhen when_late(const Build *b, int u, bool late)
{
    return (LpWhen){u, 0, b->g->unit[u].n_use, -1, late, NOT_RESIDENT};
}

/* The CPU updates it. */
static LpWhen when_updated(const Build *b, int u)
{
    return b->resides[u] ? (LpWhen){u, 0, b->g->unit[u].n_use, -1, -1, NOT_RESIDENT} : ALWAYS;
}

static int kernel_slot(const Build *b, int kernel)
{
    return b->scan->kernel_slot[kernel];
}

static int kernel_event(const Build *b, int kernel)
{
    return b->slot_event[kernel_slot(b, kernel)];
}

static void add_compute_event(Build *b, int slot, int kernel)
{
    b->slot_event[slot] = add_event(b, (LpEvent){LP_KERNEL, -1, -1, kernel, 0, ALWAYS});
}

/* With clip, the first of the updates on the GPU; -1: there is none. */
static int gated_slot(const Build *b)
{
    bool any = false;
    for (int u = 0; u < b->g->n_unit; u++)
        any = any || (b->resides[u] && b->g->unit[u].grad_bytes > 0);
    return any && b->m->domain.clip ? b->scan->n_compute - b->scan->n_late : -1;
}

static Status make_arrays(Build *b)
{
    const LpScan *s = b->scan;
    size_t units = (size_t)b->g->n_unit, runs = s->n_arrived <= ALL_PAIRS ? ALL_PAIRS : RANGES + 1;
    b->m->event = ARENA_NEW(b->a, LpEvent,
                            (size_t)b->g->node.count + (size_t)s->n_place + 11 * units + 8 + 2 * runs * units);
    b->run = ARENA_NEW(b->a, LpEdge, 3 * runs * units);
    b->slot_event = ARENA_NEW(b->a, int, s->n_compute);
    b->gate = ARENA_NEW(b->a, int, s->n_compute);
    b->load_event = ARENA_NEW(b->a, int, (size_t)s->use_at[units] + 10 * units);
    b->resides = ARENA_NEW(b->a, bool, units);
    if (!b->m->event || !b->run || !b->slot_event || !b->gate || !b->load_event || !b->resides)
        return diag_oom(b->d);
    int *at = b->load_event + s->use_at[units];
    int **const by_unit[] = {&b->again_event, &b->store_event, &b->sqnorm_event, &b->early_event,     &b->late_event,
                             &b->whole_event, &b->enter_event, &b->first_event,  &b->own_store_event, &b->own_event};
    for (size_t i = 0; i < sizeof by_unit / sizeof *by_unit; i++, at += units)
        *by_unit[i] = at;
    for (size_t u = 0; u < units; u++) {
        const LpGroup *group = &b->m->group[b->m->group_of_unit[u]];
        b->again_event[u] = -1;
        for (int c = 0; c < group->n_choice; c++)
            b->resides[u] = b->resides[u] || group->choice[(size_t)c * (size_t)group->n_unit +
                                                           (size_t)b->m->place_in_group[u]].hold == HOLD_RESIDENT;
    }
    for (int i = 0; i < s->n_compute; i++)
        b->slot_event[i] = -1;
    return ST_OK;
}

/* The loads that kernel i may be the first to need. True: there is one. */
static bool make_loads(Build *b, int kernel, int *place)
{
    const LpScan *s = b->scan;
    const Graph *g = b->g;
    bool any = false;
    for (; *place < s->n_place && s->use_first[s->use_at[s->place_unit[*place]] + s->place_use[*place]] == kernel;
         (*place)++) {
        int u = s->place_unit[*place], k = s->place_use[*place];
        int64_t ns = b->p->unit[u].load.median_ns;
        LpWhen here = {u, k, k, -1, -1, NOT_RESIDENT}, before = {u, 0, k - 1, -1, -1, 1u << HOLD_RELOAD};
        any = true;
        b->load_event[s->use_at[u] + k] = add_event(b, (LpEvent){LP_LOAD, u, k, -1, ns, here});
        if (k > 0 && k == plan_first_backward_use(&g->unit[u]))
            b->again_event[u] = add_event(b, (LpEvent){LP_LOAD, u, k, -1, ns, before});
        if (k == 0 && g->unit[u].grad_bytes > 0)
            b->enter_event[u] = add_event(b, (LpEvent){LP_ENTER, u, 0, -1, ns, here});
    }
    return any;
}

static void make_early(Build *b, int u)
{
    b->early_event[u] =
        add_event(b, (LpEvent){LP_EARLY, u, -1, -1, b->p->unit[u].update.median_ns, when_late(b, u, false)});
}

static Status make_events(Build *b)
{
    const LpScan *s = b->scan;
    const Graph *g = b->g;
    const Profile *p = b->p;
    bool clip = b->m->domain.clip;
    b->host = add_event(b, (LpEvent){LP_HOST, -1, -1, -1, 0, ALWAYS});
    b->input = add_event(b, (LpEvent){LP_INPUT, -1, -1, -1, p->input_load.median_ns, ALWAYS});
    int place = 0, stored = 0;
    for (int i = 0; i < g->node.count; i++) {
        if (make_loads(b, i, &place) || i == 0 || i == s->input_first || i == s->loss_first)
            add_compute_event(b, kernel_slot(b, i), i);
        for (; stored < s->n_arrived && s->last_grad[s->arrived[stored]] == i; stored++) {
            int u = s->arrived[stored];
            LpEvent store = {LP_STORE, u, -1, -1, p->unit[u].store.median_ns, when_stored(b, u)};
            b->store_event[u] = add_event(b, store);
            store.kind = LP_OWN;
            b->own_store_event[u] = add_event(b, store);
        }
        if (i == s->loss_last)
            b->loss = add_event(b, (LpEvent){LP_LOSS, -1, -1, -1, p->loss_store.median_ns, ALWAYS});
    }
    for (int i = 0; i < s->n_arrived; i++) {
        int u = s->arrived[i];
        b->own_event[u] = add_event(b, (LpEvent){LP_OWN, u, -1, -1, 0, ALWAYS});
        b->sqnorm_event[u] = add_event(b, (LpEvent){LP_SQNORM, u, -1, -1, p->unit[u].norm.median_ns, when_updated(b, u)});
        if (!clip)
            make_early(b, u);
    }
    b->norm = add_event(b, (LpEvent){LP_NORM, -1, -1, -1, p->clip.median_ns, ALWAYS});
    for (int i = 0; i < s->n_arrived && clip; i++)
        make_early(b, s->arrived[i]);
    for (int i = 0; i < s->n_late; i++) {
        int u = s->late[i];
        b->late_event[u] =
            add_event(b, (LpEvent){LP_LATE, u, -1, -1, p->unit[u].update.median_ns, when_late(b, u, true)});
    }
    for (int i = 0; i < s->n_late; i++) {
        int u = s->late[i];
        LpEvent whole = {LP_WHOLE, u, -1, -1, p->unit[u].update.median_ns, when_updated(b, u)};
        LpEvent first = {LP_FIRST, u, -1, -1, clip ? whole.duration_ns : p->clip.median_ns,
                         clip ? whole.there : when_late(b, u, true)};
        whole.duration_ns += clip ? 0 : p->unit[u].norm.median_ns;
        b->whole_event[u] = add_event(b, whole);
        if (clip)
            b->first_event[u] = add_event(b, first);
    }
    if (gated_slot(b) >= 0)
        add_compute_event(b, gated_slot(b), -1);
    for (int i = 0, last = 0; i < s->n_compute; i++)
        last = b->gate[i] = b->slot_event[i] >= 0 ? i : last;
    return ST_OK;
}

static void add_run_edge(Build *b, int *from, int first, int last)
{
    int to = add_event(b, (LpEvent){LP_FIRST, -1, -1, -1, 0, ALWAYS});
    b->run[b->n_run++] = (LpEdge){.from = *from, .to = to, .first = first, .last = last, .when = ALWAYS};
    *from = to;
}

/* Without clip. Of the units whose gradients are complete no earlier than that of a, those that are used no later than
 * b (and a is among them) have their square sums and updates all between where a's may start and the first use of b,
 * wherever the updates are. In order of first use they are a few ranges of slots. */
static Status make_runs(Build *b)
{
    const LpScan *s = b->scan;
    int n = s->n_arrived;
    bool all = n <= ALL_PAIRS;
    bool *after = ARENA_NEW(b->a, bool, b->g->n_unit);
    if (!after)
        return diag_oom(b->d);
    for (int i = n - 1; i >= 0; i--) {
        int a = s->arrived[i], at = b->own_event[a], first = -1, ranges = 0, left = n - i;
        bool met = false;
        after[a] = true;
        for (int k = 0; k < n && left > 0 && (all || ranges < RANGES); k++) {
            int u = s->late[k], slot = s->cpu_slot[u];
            if (!after[u]) {
                if (first >= 0)
                    add_run_edge(b, &at, first, slot);
                first = -1;
                continue;
            }
            ranges += first < 0;
            first = first < 0 ? slot : first;
            met = met || u == a;
            left--;
            if (!met || (left > 0 && !all && ranges < RANGES))
                continue;
            add_run_edge(b, &at, first, slot + 1);
            first = -1;
            b->run[b->n_run++] = (LpEdge){.from = at, .to = -1 - u, .when = ALWAYS};
        }
    }
    /* and the norm, when b is late */
    for (int k = 0; k < s->n_late; k++) {
        int u = s->late[k];
        b->first_event[u] = add_event(b, (LpEvent){LP_FIRST, u, -1, -1, b->p->clip.median_ns, when_late(b, u, true)});
    }
    for (int i = 0; i < b->n_run; i++)
        b->run[i].to = b->run[i].to < 0 ? b->first_event[-1 - b->run[i].to] : b->run[i].to;
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

/* From the end of a slot of the compute stream. */
static LpEdge *after_slot(Build *b, int slot, int to, int span)
{
    LpEdge *e = add_edge(b, b->slot_event[b->gate[slot]], to, span);
    e->first = b->gate[slot];
    e->last = slot + 1;
    return e;
}

static LpEdge *after_kernel(Build *b, int kernel, int to, int span)
{
    return after_slot(b, kernel_slot(b, kernel), to, span);
}

/* At least what slots [first, last) take. */
static int64_t least(const Build *b, int first, int last)
{
    return first < last ? b->least[last] - b->least[first] : 0;
}

/* The same from the start of the step to the start, or to the end, of a kernel; and from one to the end of the step. */
static int64_t least_before(const Build *b, int kernel)
{
    return least(b, 0, kernel_slot(b, kernel));
}

static int64_t least_through(const Build *b, int kernel)
{
    return least(b, 0, kernel_slot(b, kernel) + 1);
}

static int64_t least_from(const Build *b, int slot)
{
    return least(b, slot, b->scan->n_compute);
}

static void add_compute(Build *b)
{
    const LpScan *s = b->scan;
    for (int i = 1; i < s->n_compute; i++)
        if (b->slot_event[i] >= 0)
            after_slot(b, i - 1, b->slot_event[i], 0);
    after_slot(b, s->n_compute - 1, b->slot_event[0], 1);
    add_edge(b, b->host, b->slot_event[0], 0);
    add_edge(b, b->host, b->input, 0);
    add_edge(b, b->input, b->host, 1);
    add_edge(b, b->loss, b->host, 2);
    add_edge(b, b->norm, b->host, 2);
    if (s->input_first >= 0) {
        add_edge(b, b->input, kernel_event(b, s->input_first), 0);
        after_kernel(b, s->input_last, b->input, 1);
    }
    after_kernel(b, s->loss_last, b->loss, 0);
    add_edge(b, b->loss, kernel_event(b, s->loss_first), 1);
    /* with clip, updates on the GPU wait for the norm: for unit u, if it lives there. Else its update comes after the norm
     * and before its first use */
    int gated = gated_slot(b);
    for (int i = 0; gated >= 0 && i < s->n_late; i++) {
        int u = s->late[i];
        if (b->resides[u])
            add_conditional(b, b->norm, b->slot_event[gated], 0, (LpWhen){u, 0, 0, -1, -1, 1u << HOLD_RESIDENT}, 1,
                            b->p->unit[u].update.median_ns + least(b, kernel_slot(b, s->first_read[u]), gated));
    }
}

/* From the update of a unit to its next load: without that, the first use comes after the update, then the last kernel
 * that reads the inputs, their next load and so all loads. Unless it lives on the GPU: then loads come after the host,
 * which waits for the norm. *periods more periods than one, and *slack at least for that path. */
static void update_to_load(const Build *b, int u, bool after_norm, int *periods, int64_t *slack)
{
    const LpScan *s = b->scan;
    int first = s->first_read[u];
    int64_t load = b->p->input_load.median_ns;
    *periods = 2;
    *slack = 0; /* without inputs: by the norm of the next step and the host */
    if (s->input_last >= first) {
        *periods = 1;
        *slack = least(b, kernel_slot(b, first), kernel_slot(b, s->input_last) + 1) + load;
    } else if (s->input_last >= 0) {
        *slack = least_from(b, kernel_slot(b, first)) + least_through(b, s->input_last) + load;
    }
    if (!b->resides[u])
        return;
    *periods = after_norm ? 2 : *periods;
    *slack = *slack < load ? *slack : load;
}

/* A load comes after the one before, and the first kernel that it serves waits for it. */
static void add_load(Build *b, int before, int load, int kernel)
{
    const LpScan *s = b->scan;
    add_edge(b, before, load, 0);
    if (s->input_first >= 0 && kernel >= s->input_first)
        add_edge(b, load, kernel_event(b, kernel), 0);
    else
        add_conditional(b, load, kernel_event(b, kernel), 0, b->m->event[load].there, 2, 0);
}

/* When the copy is held until this kernel, it reads the buffer before the next load into it. */
static void add_last_read(Build *b, int kernel, int load, LpWhen held)
{
    const LpScan *s = b->scan;
    if (kernel <= s->input_last)
        return;
    LpEdge *e = after_kernel(b, kernel, load, 1);
    e->when = held;
    e->periods = s->input_last >= 0 ? 1 : 2;
    if (s->input_last >= 0)
        e->slack_ns = least_from(b, kernel_slot(b, kernel) + 1) + least_through(b, s->input_last) +
                      b->p->input_load.median_ns;
}

static void add_loads(Build *b)
{
    const LpScan *s = b->scan;
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
        update_to_load(b, u, b->m->domain.clip, &periods, &slack);
        add_conditional(b, b->early_event[u], load, 1, here, periods, slack);
        update_to_load(b, u, true, &periods, &slack);
        here.late = 1;
        add_conditional(b, b->late_event[u], load, 1, here, periods, slack);
    }
    add_edge(b, before, b->input, 1);
}

static void add_stores(Build *b)
{
    const LpScan *s = b->scan;
    for (int i = 0; i < s->n_arrived; i++) {
        int u = s->arrived[i], store = b->store_event[u];
        after_kernel(b, s->last_grad[u], store, 0);
        add_edge(b, store, b->sqnorm_event[u], 0);
        if (i > 0)
            add_edge(b, b->store_event[s->arrived[i - 1]], store, 0);
        /* else the loss is stored before the next one is computed, and u's gradient comes after that */
        add_conditional(b, b->loss, store, 0, when_stored(b, u), 1,
                        least(b, kernel_slot(b, s->loss_first), kernel_slot(b, s->last_grad[u]) + 1));
    }
    add_edge(b, b->store_event[s->arrived[s->n_arrived - 1]], b->loss, 1);
    add_edge(b, b->loss, b->loss, 1);
}

/* A kernel that reads the unit from host memory, or a load of it, after its last gradient: the update waits. */
static void add_stragglers(Build *b, int u)
{
    const LpScan *s = b->scan;
    int grad = s->last_grad[u], all = s->last_grad[s->arrived[s->n_arrived - 1]];
    for (int k = 0; k < b->g->unit[u].n_use; k++) {
        int first = s->use_first[s->use_at[u] + k], last = s->use_last[s->use_at[u] + k];
        for (int late = 0; late <= 1; late++) {
            int update = late ? b->late_event[u] : b->early_event[u];
            if (last > (late ? all : grad)) {
                LpEdge *e = after_kernel(b, last, update, 0);
                e->when = (LpWhen){u, k + 1, b->g->unit[u].n_use, -1, late, NOT_RESIDENT};
                e->periods = 1;
                e->slack_ns = least_from(b, kernel_slot(b, last) + 1) + least_through(b, grad);
            }
            if (first > (late ? all : grad))
                add_conditional(b, b->load_event[s->use_at[u] + k], update, 0,
                                (LpWhen){u, k, k, -1, late, NOT_RESIDENT}, 2, 0);
            if (first > (late ? all : grad) && b->again_event[u] >= 0 && k == plan_first_backward_use(&b->g->unit[u]))
                add_conditional(b, b->again_event[u], update, 0, (LpWhen){u, 0, k - 1, -1, late, 1u << HOLD_RELOAD}, 2,
                                0);
        }
    }
}

/* The first use of a unit waits for its update on the CPU, unless it lives on the GPU. Then the next host but one waits for
 * an event before the norm, the next but two for one after. */
static void add_first_use(Build *b, int update, bool after_norm, int u)
{
    LpWhen when = when_updated(b, u);
    LpEdge *e = add_edge(b, update, kernel_event(b, b->scan->first_read[u]), 1);
    e->when = when;
    e->periods = when.unit < 0 ? 0 : after_norm ? 2 : 1;
    e->slack_ns = when.unit < 0 ? 0 : b->p->clip.median_ns + least_before(b, b->scan->first_read[u]);
}

static void add_updates(Build *b)
{
    const LpScan *s = b->scan;
    int tail = -1; /* of the CPU's steps before the late updates */
    bool clip = b->m->domain.clip;
    int64_t clip_ns = b->p->clip.median_ns;
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
    after_slot(b, s->norm_slot[s->arrived[s->n_arrived - 1]], b->norm, 0);
    tail = b->norm;
    for (int i = 0; clip && i < s->n_arrived; i++) {
        add_edge(b, tail, b->early_event[s->arrived[i]], 0);
        tail = b->early_event[s->arrived[i]];
    }
    int first = b->sqnorm_event[s->arrived[0]];
    add_edge(b, tail, first, 1);
    int64_t norms = 0;
    for (int i = 0; i < s->n_arrived; i++) {
        int u = s->arrived[i], late = b->late_event[u];
        int64_t grad = least_through(b, s->last_grad[u]);
        norms += b->resides[u] ? 0 : b->p->unit[u].norm.median_ns;
        if (b->resides[u]) {
            /* else the next host but one comes after the norm, and then u's gradient; after the tail, with clip, one more */
            after_kernel(b, s->last_grad[u], late, 0);
            add_conditional(b, b->sqnorm_event[u], late, 0, when_updated(b, u), 2, clip_ns + grad);
            add_conditional(b, tail, late, 0, when_late(b, u, true), clip ? 3 : 2, clip ? clip_ns + grad : grad);
        } else {
            add_edge(b, b->sqnorm_event[u], late, 0);
            /* else the square sums of the next step come after the tail, and u's late update after its own */
            add_conditional(b, tail, late, 0, when_late(b, u, true), 1, norms);
        }
        add_stragglers(b, u);
    }
    for (int i = 0; i < s->n_late; i++) {
        int u = s->late[i];
        if (i > 0)
            add_edge(b, b->late_event[s->late[i - 1]], b->late_event[u], 0);
        add_first_use(b, b->early_event[u], clip, u);
        add_first_use(b, b->late_event[u], true, u);
    }
    add_edge(b, b->late_event[s->late[s->n_late - 1]], first, 1);
}

/* Without clip. Where all that a unit asks of the CPU starts: after its gradient, and its store; when it is updated there,
 * also after what the CPU does before. Else the next host but one comes after that and the norm, and then u's gradient. */
static void add_own(Build *b)
{
    const LpScan *s = b->scan;
    for (int i = 0; i < s->n_arrived; i++) {
        int u = s->arrived[i], before = i > 0 ? b->early_event[s->arrived[i - 1]] : -1;
        LpWhen when = when_updated(b, u);
        int64_t slack = b->p->clip.median_ns + least_through(b, s->last_grad[u]);
        after_kernel(b, s->last_grad[u], b->own_store_event[u], 0);
        add_edge(b, b->own_store_event[u], b->own_event[u], 0);
        add_conditional(b, b->store_event[u], b->own_event[u], 0, when, 2, slack);
        if (before >= 0)
            add_conditional(b, before, b->own_event[u], 0, when, 2, slack);
    }
}

/* What is implied by the others at whole choices. */
static void add_implied(Build *b)
{
    const LpScan *s = b->scan;
    bool clip = b->m->domain.clip;
    int64_t clip_ns = b->p->clip.median_ns, norms = clip ? clip_ns : 0;
    for (int i = 0; clip && i < s->n_arrived; i++)
        norms += b->resides[s->arrived[i]] ? 0 : b->p->unit[s->arrived[i]].norm.median_ns;
    for (int i = 0; i < s->n_late; i++) {
        int u = s->late[i], kernel = kernel_event(b, s->first_read[u]), enter = b->enter_event[u];
        add_edge(b, clip ? b->norm : b->own_event[u], b->whole_event[u], 0);
        add_edge(b, b->whole_event[u], enter, 1);
        if (b->resides[u]) {
            /* else the next norm comes in between; without clip, also the host that waits for it */
            if (!clip)
                add_edge(b, b->host, enter, 0);
            add_conditional(b, b->early_event[u], enter, 1, when_updated(b, u), 1, clip_ns);
            add_conditional(b, b->late_event[u], enter, 1, when_late(b, u, true), clip ? 1 : 2, clip_ns);
        } else {
            add_edge(b, b->early_event[u], enter, 1);
            /* else the next step's square sums come in between */
            add_conditional(b, b->late_event[u], enter, 1, when_late(b, u, true), 1,
                            norms + b->p->unit[u].update.median_ns);
        }
        add_edge(b, enter, kernel, 0);
        add_edge(b, b->first_event[u], kernel, 1);
        if (!clip)
            continue;
        add_edge(b, i > 0 ? b->first_event[s->late[i - 1]] : b->norm, b->first_event[u], 0);
    }
    for (int i = 0; i < b->n_run; i++)
        b->m->edge[b->m->n_edge++] = b->run[i];
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
    b->least = ARENA_NEW(b->a, int64_t, m->scan.n_slot + 1);
    if (!b->least)
        return diag_oom(b->d);
    for (int i = 0; i < m->scan.n_slot; i++) {
        int64_t least = m->slot_ns[i][0];
        for (int c = 1; m->slot_group[i] >= 0 && c < m->group[m->slot_group[i]].n_choice; c++)
            least = m->slot_ns[i][c] < least ? m->slot_ns[i][c] : least;
        b->least[i + 1] = b->least[i] + least;
    }
    return ST_OK;
}

static Status build(Build *b)
{
    TRY(lp_scan_graph(b->d, b->a, b->g, b->m->domain.clip, &b->m->scan));
    TRY(lp_choices_make(b->d, b->a, b->m));
    TRY(find_least(b));
    TRY(make_arrays(b));
    TRY(make_events(b));
    if (!b->m->domain.clip)
        TRY(make_runs(b));
    const LpScan *s = b->scan;
    b->m->edge = ARENA_NEW(b->a, LpEdge,
                           (size_t)b->m->n_event + 7 * (size_t)s->n_place + 40 * (size_t)b->g->n_unit +
                               (size_t)b->n_run + 4 * (size_t)s->use_at[b->g->n_unit] + 16);
    if (!b->m->edge)
        return diag_oom(b->d);
    add_compute(b);
    add_loads(b);
    add_stores(b);
    add_updates(b);
    if (!b->m->domain.clip)
        add_own(b);
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
    Build b = {.d = d, .a = a, .g = g, .p = p, .m = m, .scan = &m->scan};
    TRY(build(&b));
    *out = m;
    return ST_OK;
}
