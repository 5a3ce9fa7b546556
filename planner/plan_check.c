/* plan_check.c - proves a schedule: what the streams may do at once does what the steps do one after the other.
 *
 * needs: a list of steps, a layout   keeps: everything
 *
 * The proof has three parts that share nothing with how the list and the layout were made:
 *  1. the program is right when run one step after the other (plan_check_program.c);
 *  2. running it on streams changes nothing: whenever two steps of three consecutive iterations touch the same copy of
 * a buffer and one of them writes, the earlier one in the program happens before the later one, by the list's waits
 * alone. It is enough to look at a read and the write before it, and at a write and the write before it and all reads
 * in between: the other pairs follow through these. So no read sees an older value, nor a newer one;
 *  3. giving bytes to several buffers changes nothing either (plan_check_layout.c). */
#include <string.h>

#include "planner/plan_check.h"

/* Last write and the reads since, of one copy of a buffer; steps numbered through iterations, -1 for none. */
typedef struct Uses {
    int write;
    VEC(int) reads;
} Uses;

static Status conflict(Diag *d, const StepList *s, int earlier, int later, const char *what, int buffer)
{
    char a[STEP_LABEL_BYTES], b[STEP_LABEL_BYTES];
    diag_fail(d, ST_FAILED, "buffer %s: %s of iteration %d may %s before %s of iteration %d is over",
              s->buffer[buffer].name, step_label(s, later % s->n_step, b), later / s->n_step, what,
              step_label(s, earlier % s->n_step, a), earlier / s->n_step);
    return diag_hint(d, "a wait is missing from the list of steps");
}

static bool ordered(const StepList *s, const Order *o, int earlier, int later)
{
    return order_before(o, s, earlier % s->n_step, earlier / s->n_step, later % s->n_step, later / s->n_step);
}

static Status check_access(Diag *d, const StepList *s, const Order *o, Uses *uses, int u, const Access *c)
{
    Uses *x = &uses[2 * (size_t)c->buffer];
    if (s->buffer[c->buffer].copies == 2)
        x += (u / s->n_step + c->lag) % 2;
    if (c->read && x->write >= 0 && !ordered(s, o, x->write, u))
        return conflict(d, s, x->write, u, "read it", c->buffer);
    if (!c->write) {
        int *read = VEC_PUSH(&x->reads);
        if (!read)
            return diag_oom(d);
        *read = u;
        return ST_OK;
    }
    if (x->write >= 0 && !ordered(s, o, x->write, u))
        return conflict(d, s, x->write, u, "write it", c->buffer);
    for (int i = 0; i < x->reads.count; i++)
        if (!ordered(s, o, x->reads.at[i], u))
            return conflict(d, s, x->reads.at[i], u, "write it", c->buffer);
    x->write = u;
    x->reads.count = 0;
    return ST_OK;
}

static Status check_orderings(Diag *d, const StepList *s, const Order *o)
{
    Uses *uses = base_alloc(2 * (size_t)s->n_buffer * sizeof *uses);
    if (!uses)
        return diag_oom(d);
    for (int i = 0; i < 2 * s->n_buffer; i++)
        uses[i].write = -1;
    Status status = ST_OK;
    for (int u = 0; u < PROOF_ITERATIONS * s->n_step && status == ST_OK; u++) {
        const Step *step = &s->step[u % s->n_step];
        for (int k = 0; k < step->n_access && status == ST_OK; k++)
            status = check_access(d, s, o, uses, u, &step->access[k]);
    }
    for (int i = 0; i < 2 * s->n_buffer; i++)
        VEC_FREE(&uses[i].reads);
    base_free(uses);
    return status;
}

/* ---- what the plan promises beyond correct results
 * ------------------------------------------------------------------------ */

/* The unit whose gradient output k of a kernel is, or -1. */
static int written_unit(const StepList *s, const Step *step, int k)
{
    if (step->kind != STEP_KERNEL)
        return -1;
    const Node *n = &s->graph->node.at[step->node];
    const Tensor *t =
        k >= node_n_out(n) || n->arg[k] < 0 ? NULL : &s->graph->tensor.at[s->graph->tensor.at[n->arg[k]].root];
    return t && t->kind == TENSOR_GRADIENT ? s->graph->param[t->param].unit : -1;
}

/* With update_after_bp, all CPU work on gradients comes after the last gradient's arrival. */
static Status check_updates(Diag *d, const StepList *s, const Order *o)
{
    char a[STEP_LABEL_BYTES], b[STEP_LABEL_BYTES];
    int first = 0;
    while (first < s->n_step && s->step[first].stream != STREAM_UPDATE)
        first++;
    for (int i = 0; i < s->n_step && first < s->n_step; i++) {
        bool gradient = s->step[i].kind == STEP_STORE;
        for (int k = 0; k < FERRY_MAX_ARGS; k++)
            gradient = gradient || written_unit(s, &s->step[i], k) >= 0;
        if (gradient && !order_before(o, s, i, 1, first, 1))
            return diag_fail(d, ST_FAILED,
                             "%s may start before %s is over, but the plan updates after the backward pass",
                             step_label(s, first, b), step_label(s, i, a));
    }
    return ST_OK;
}

/* At the first write of a unit's GPU gradients: the bytes of all units whose first write was enqueued and whose store
 * is not known to be over fit the window, but for units that the program itself cannot have stored by then. */
static Status check_window(Diag *d, const StepList *s, const Order *o)
{
    const Graph *g = s->graph;
    size_t units = (size_t)g->n_unit;
    int *first = base_alloc(2 * (units + 1) * sizeof *first);
    if (!first)
        return diag_oom(d);
    int *store = first + units;
    for (size_t i = 0; i < 2 * units; i++)
        first[i] = -1;
    for (int i = 0; i < s->n_step; i++) {
        if (s->step[i].kind == STEP_STORE)
            store[s->step[i].unit] = i;
        for (int k = 0; k < FERRY_MAX_ARGS; k++) {
            int unit = written_unit(s, &s->step[i], k);
            if (unit >= 0 && s->plan->unit[unit].grad == ON_GPU && s->plan->unit[unit].hold != HOLD_RESIDENT &&
                first[unit] < 0)
                first[unit] = i;
        }
    }
    Status status = ST_OK;
    for (int u = 0; u < g->n_unit && status == ST_OK; u++) {
        if (first[u] < 0)
            continue;
        int64_t bytes = g->unit[u].grad_bytes;
        int spare = -1; /* an open unit whose store could have been awaited */
        for (int v = 0; v < g->n_unit; v++)
            for (int back = 0; v != u && store[v] >= 0 && first[v] >= 0 && back < 2; back++) {
                bool begun = back == 1 || first[v] < first[u];
                if (!begun || order_before(o, s, store[v], 2 - back, first[u], 2))
                    continue;
                bytes += g->unit[v].grad_bytes;
                if (back == 1 || store[v] < first[u])
                    spare = v;
                break;
            }
        char label[STEP_LABEL_BYTES];
        if (spare >= 0 && bytes > s->plan->gradient_window_bytes)
            status = diag_fail(
                d, ST_FAILED, "%s may start before the gradients of %s are stored: %lld bytes, but the window has %lld",
                step_label(s, first[u], label), g->unit[spare].name, (long long)bytes,
                (long long)s->plan->gradient_window_bytes);
    }
    base_free(first);
    return status;
}

/* The unit that a kernel reads from this copy, -1. */
static bool reads_copy(const StepList *s, const Step *step, int unit, int copy)
{
    for (int k = 0; step->kind == STEP_KERNEL && k < step->n_access; k++) {
        const Buffer *b = &s->buffer[step->access[k].buffer];
        if (b->kind == (copy == 2 ? BUFFER_PARAM_BP : BUFFER_PARAM) && s->graph->param[b->param].unit == unit)
            return true;
    }
    return false;
}

/* At each load of a unit that is loaded twice: the bytes of all such copies whose load was enqueued before and whose
 * last use is not known to be over fit the window, but for copies that the program itself needs longer. */
static Status check_load_window(Diag *d, const StepList *s, const Order *o)
{
    const Graph *g = s->graph;
    int *last = base_alloc(((size_t)s->n_step + 1) * sizeof *last); /* by load: the last kernel that it serves */
    if (!last)
        return diag_oom(d);
    for (int i = 0; i < s->n_step; i++) {
        const Step *load = &s->step[i];
        last[i] = -1;
        if (load->kind != STEP_LOAD || s->plan->unit[load->unit].hold != HOLD_RELOAD)
            continue;
        for (int k = i + 1; k < s->n_step; k++)
            last[i] = reads_copy(s, &s->step[k], load->unit, load->copy) ? k : last[i];
    }
    Status status = ST_OK;
    for (int i = 0; i < s->n_step && status == ST_OK; i++) {
        if (last[i] < 0)
            continue;
        int64_t bytes = g->unit[s->step[i].unit].bytes;
        int spare = -1; /* a copy whose last use could have been awaited */
        for (int k = 0; k < s->n_step; k++)
            for (int back = 0; k != i && last[k] >= 0 && back < 2; back++) {
                bool begun = back == 1 || k < i;
                if (!begun || order_before(o, s, last[k], 2 - back, i, 2))
                    continue;
                bytes += g->unit[s->step[k].unit].bytes;
                if (back == 1 || last[k] < i)
                    spare = k;
                break;
            }
        char a[STEP_LABEL_BYTES], b[STEP_LABEL_BYTES];
        if (spare >= 0 && bytes > s->plan->load_window_bytes)
            status = diag_fail(d, ST_FAILED,
                               "%s may start before the last use of %s is over: %lld bytes, but the window has %lld",
                               step_label(s, i, a), step_label(s, spare, b), (long long)bytes,
                               (long long)s->plan->load_window_bytes);
    }
    base_free(last);
    return status;
}

static Status check_list(Diag *d, const StepList *s)
{
    if (s->n_device < 0 || s->n_device > s->n_buffer)
        return diag_fail(d, ST_FAILED, "%d of %d buffers cannot be the device's", s->n_device, s->n_buffer);
    for (int i = 0; i < s->n_buffer; i++)
        if ((s->buffer[i].pool == POOL_DEVICE) != (i < s->n_device))
            return diag_fail(d, ST_FAILED, "buffer %s: not in its place among device and host buffers",
                             s->buffer[i].name);
    char label[STEP_LABEL_BYTES];
    for (int i = 0; i < s->n_step; i++)
        for (int k = 0; k < s->step[i].n_access; k++) {
            const Access *c = &s->step[i].access[k];
            if (c->buffer < 0 || c->buffer >= s->n_buffer || (!c->read && !c->write) || c->lag < 0 || c->lag > 1 ||
                (c->lag == 1 && (c->write || s->buffer[c->buffer].copies != 2)))
                return diag_fail(d, ST_FAILED, "%s: access %d is malformed", step_label(s, i, label), k);
        }
    return ST_OK;
}

Status plan_verify(Diag *d, Arena *a, const StepList *s, const Layout *layout)
{
    Order order;
    TRY(check_list(d, s));
    TRY(plan_check_program(d, s));
    TRY(order_build(d, a, s, PROOF_ITERATIONS, &order));
    TRY(check_orderings(d, s, &order));
    if (s->plan->update_after_bp)
        TRY(check_updates(d, s, &order));
    if (s->plan->gradient_window_bytes > 0)
        TRY(check_window(d, s, &order));
    if (s->plan->load_window_bytes > 0)
        TRY(check_load_window(d, s, &order));
    return plan_check_layout(d, s, &order, layout);
}
