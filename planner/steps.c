/* steps.c - from a graph and a plan to the list of steps: buffers, steps and their accesses, in program order.
 *
 * needs: a checked graph, a plan whose choices are made   fills: the StepList but for duration_ns and link
 * keeps: graph and plan
 *
 * Which memory an argument of a kernel means is decided in one place, steps_arg_buffer. The orderings follow from the
 * accesses alone (steps_deps.c); here is only what is done and in which order one after the other would do it. */
#include <string.h>

#include "planner/steps.h"

enum { PARAM_MAPS = 8 }; /* arrays by parameter of a StepList */

typedef struct Builder {
    Diag *d;
    Arena *a;
    const Graph *g;
    const Plan *plan;
    StepList *s;
    int *staging; /* by input: buffer */
    int partials, partials_gpu, norm, loss;
    int *loaded;                           /* by unit: its loads in the list so far */
    bool *updated;                         /* by unit: on the GPU, its update is in the list */
    int *last_read;                        /* by unit and copy - 1: last kernel that the copy serves, a step; -1 */
    int *first_read_node, *last_read_node; /* by unit: nodes that read it */
    int *first_grad_node, *last_grad_node; /* by unit: nodes that write its gradients, -1 */
    int *first_grad_step, *store_step;     /* by unit, -1 */
    int last_grad_step;                    /* last kernel that writes a gradient, -1 */
    int n_arrived, *arrived; /* trainable units in the order in which their gradients are complete on the host */
    int n_taken;             /* of them, those whose CPU steps that need not wait for the norm are in the list */
    int loss_node;           /* last node that writes the loss */
} Builder;

/* ---- where things lie
 * --------------------------------------------------------------------------------------------------- */

static const Tensor *root_of(const Graph *g, int tensor)
{
    return &g->tensor.at[g->tensor.at[tensor].root];
}

int steps_arg_buffer(const StepList *s, const Node *n, int arg)
{
    const Graph *g = s->graph;
    if (arg < 0 || arg >= FERRY_MAX_ARGS || n->arg[arg] < 0)
        return -1;
    int root = g->tensor.at[n->arg[arg]].root;
    const Tensor *t = &g->tensor.at[root];
    if (t->kind == TENSOR_GRADIENT) {
        bool gpu = s->plan->unit[g->param[t->param].unit].grad == ON_GPU;
        return gpu ? s->grad_buffer[t->param] : s->host_grad_buffer[t->param];
    }
    if (t->kind == TENSOR_STATE)
        return s->master_buffer[t->param];
    if (t->kind != TENSOR_PARAM)
        return s->buffer_of_tensor[root];
    int unit = g->param[t->param].unit, use = graph_use_of_node(g, n, unit);
    if (use < 0)
        return -1;
    const int *const copy[] = {s->source_buffer, s->param_buffer, s->param_bp_buffer};
    return copy[plan_copy(&g->unit[unit], &s->plan->unit[unit], use)][t->param];
}

bool steps_is_dha(const StepList *s, const Step *step, bool *read, bool *write)
{
    bool r = false, w = false;
    if (step->kind == STEP_KERNEL)
        for (int i = 0; i < step->n_access; i++)
            if (s->buffer[step->access[i].buffer].pool == POOL_HOST) {
                r = r || step->access[i].read;
                w = w || step->access[i].write;
            }
    if (read)
        *read = r;
    if (write)
        *write = w;
    return r || w;
}

/* "act:NAME", the key of plan.yaml's layout. YAML reads keys of less than 1024 characters, which escapes may take six a
 * byte of; of a longer name there is a beginning, cut between two characters, and a hash. */
static const char *buffer_name(Arena *a, const char *prefix, const char *name)
{
    enum { LONGEST = 150, KEPT = 100 };
    if (!name)
        return prefix;
    if (strlen(name) <= LONGEST)
        return arena_printf(a, "%s:%s", prefix, name);
    int kept = KEPT;
    while (kept > 0 && ((unsigned char)name[kept] & 0xc0) == 0x80)
        kept--;
    char hash[33];
    hash_hex(name, strlen(name), hash);
    return arena_printf(a, "%s:%.*s~%s", prefix, kept, name, hash);
}

static int add_buffer(Builder *b, const char *prefix, const char *name, BufferKind kind, BufferPool pool, int64_t bytes)
{
    Buffer *buffer = &b->s->buffer[b->s->n_buffer];
    buffer->name = buffer_name(b->a, prefix, name);
    buffer->kind = kind;
    buffer->pool = pool;
    buffer->bytes = bytes;
    buffer->tensor = buffer->param = -1;
    buffer->copies = kind == BUFFER_NORM || kind == BUFFER_LOSS || kind == BUFFER_PARTIALS || kind == BUFFER_PARTIALS_GPU ? 2 : 1;
    buffer->preset = kind == BUFFER_CONST || kind == BUFFER_MASTER || kind == BUFFER_ROUNDED || kind == BUFFER_STATE_M ||
                     kind == BUFFER_STATE_V || kind == BUFFER_STATISTIC;
    return b->s->n_buffer++;
}

int64_t param_buffer_bytes(const Graph *g, int param, BufferKind kind)
{
    const Param *p = &g->param[param];
    bool wide = p->trainable && (kind == BUFFER_MASTER || kind == BUFFER_STATE_M || kind == BUFFER_STATE_V);
    return wide ? p->count * (int64_t)ferry_dtype_bytes(graph_wide_dtype(g)) : p->bytes;
}

static int add_param_buffer(Builder *b, int param, const char *prefix, BufferKind kind, BufferPool pool)
{
    int index = add_buffer(b, prefix, b->g->param[param].name, kind, pool, param_buffer_bytes(b->g, param, kind));
    b->s->buffer[index].param = param;
    return index;
}

static int add_tensor_buffer(Builder *b, int tensor, const char *prefix, BufferKind kind, BufferPool pool)
{
    const Tensor *t = &b->g->tensor.at[tensor];
    int index = add_buffer(b, prefix, t->name, kind, pool, t->bytes);
    b->s->buffer[index].tensor = tensor;
    return index;
}

/* Buffers of everything that a node or a transfer touches. Their final order is made by sort_buffers. */
static Status make_buffers(Builder *b)
{
    const Graph *g = b->g;
    StepList *s = b->s;
    int tensors = g->tensor.count;
    s->buffer = ARENA_NEW(b->a, Buffer, tensors + g->n_input + 8 * g->n_param + 4);
    s->buffer_of_tensor = ARENA_NEW(b->a, int, tensors);
    int *by_param = ARENA_NEW(b->a, int, PARAM_MAPS * (size_t)g->n_param);
    bool *used = ARENA_NEW(b->a, bool, tensors);
    b->staging = ARENA_NEW(b->a, int, g->n_input);
    if (!s->buffer || !s->buffer_of_tensor || !by_param || !used || !b->staging)
        return diag_oom(b->d);
    s->param_buffer = by_param;
    s->master_buffer = by_param + g->n_param;
    s->grad_buffer = by_param + 2 * (size_t)g->n_param;
    s->host_grad_buffer = by_param + 3 * (size_t)g->n_param;
    s->source_buffer = by_param + 4 * (size_t)g->n_param;
    s->param_bp_buffer = by_param + 5 * (size_t)g->n_param;
    s->state_m_buffer = by_param + 6 * (size_t)g->n_param;
    s->state_v_buffer = by_param + 7 * (size_t)g->n_param;
    for (int i = 0; i < PARAM_MAPS * g->n_param; i++)
        by_param[i] = -1;
    for (int i = 0; i < tensors; i++)
        s->buffer_of_tensor[i] = -1;

    for (int i = 0; i < g->n_input; i++) {
        s->buffer_of_tensor[g->input[i]] = add_tensor_buffer(b, g->input[i], "input", BUFFER_INPUT, POOL_DEVICE);
        b->staging[i] = add_tensor_buffer(b, g->input[i], "staging", BUFFER_STAGING, POOL_HOST);
    }
    for (int i = 0; i < g->node.count; i++)
        for (int k = 0; k < node_n_arg(&g->node.at[i]); k++)
            if (g->node.at[i].arg[k] >= 0)
                used[g->tensor.at[g->node.at[i].arg[k]].root] = true;
    for (int t = 0; t < tensors; t++) {
        if (!used[t])
            continue;
        if (g->tensor.at[t].kind == TENSOR_VALUE)
            s->buffer_of_tensor[t] = add_tensor_buffer(b, t, "act", BUFFER_VALUE, POOL_DEVICE);
        else if (g->tensor.at[t].kind == TENSOR_CONST)
            s->buffer_of_tensor[t] = add_tensor_buffer(b, t, "const", BUFFER_CONST, POOL_DEVICE);
    }
    int trainable = 0, on_gpu = 0;
    for (int p = 0; p < g->n_param; p++) {
        if (g->param[p].state) {
            s->source_buffer[p] = s->master_buffer[p] =
                add_param_buffer(b, p, "statistic", BUFFER_STATISTIC, POOL_HOST);
            continue;
        }
        const UnitPlan *u = &b->plan->unit[g->param[p].unit];
        bool resident = u->hold == HOLD_RESIDENT;
        BufferPool pool = resident ? POOL_DEVICE : POOL_HOST;
        if (u->first_gpu_use < g->unit[g->param[p].unit].n_use && !resident)
            s->param_buffer[p] = add_param_buffer(b, p, "param", BUFFER_PARAM, POOL_DEVICE);
        if (u->hold == HOLD_RELOAD)
            s->param_bp_buffer[p] = add_param_buffer(b, p, "param_bp", BUFFER_PARAM_BP, POOL_DEVICE);
        s->source_buffer[p] = s->master_buffer[p] = add_param_buffer(b, p, "master", BUFFER_MASTER, pool);
        if (g->param[p].trainable && graph_wide_dtype(g) != g->precision)
            s->source_buffer[p] = add_param_buffer(b, p, "rounded", BUFFER_ROUNDED, pool);
        if (!g->param[p].trainable)
            continue;
        trainable++;
        on_gpu += resident;
        if (u->grad == ON_GPU)
            s->grad_buffer[p] = add_param_buffer(b, p, "grad", BUFFER_GRAD, POOL_DEVICE);
        if (!resident)
            s->host_grad_buffer[p] = add_param_buffer(b, p, "host_grad", BUFFER_HOST_GRAD, POOL_HOST);
        s->state_m_buffer[p] = add_param_buffer(b, p, "m", BUFFER_STATE_M, pool);
        s->state_v_buffer[p] = add_param_buffer(b, p, "v", BUFFER_STATE_V, pool);
    }
    b->partials = add_buffer(b, "partials", NULL, BUFFER_PARTIALS, POOL_HOST, 8 * (int64_t)(trainable - on_gpu));
    b->partials_gpu =
        on_gpu ? add_buffer(b, "partials_gpu", NULL, BUFFER_PARTIALS_GPU, POOL_HOST, 8 * (int64_t)on_gpu) : -1;
    b->norm = add_buffer(b, "norm", NULL, BUFFER_NORM, POOL_HOST, 16);
    b->loss = add_buffer(b, "loss", NULL, BUFFER_LOSS, POOL_HOST, root_of(g, g->loss)->bytes);
    for (int i = 0; i < s->n_buffer; i++)
        if (!s->buffer[i].name)
            return diag_oom(b->d);
    if (trainable == 0)
        return diag_fail(b->d, ST_MODEL, "the graph has no trainable parameter: there is no training step to schedule");
    return ST_OK;
}

/* ---- steps
 * ---------------------------------------------------------------------------------------------------------------- */

/* The next step with room for `accesses`; NULL when out of memory. */
static Step *add_step(Builder *b, StepKind kind, StepStream stream, int accesses)
{
    Step *step = &b->s->step[b->s->n_step];
    *step = (Step){.kind = kind, .stream = stream, .node = -1, .unit = -1, .segment = -1};
    step->phase = kind == STEP_STAGE || kind == STEP_LOAD_INPUT || kind == STEP_STORE_LOSS ? PHASE_FP : PHASE_BP;
    step->access = ARENA_NEW(b->a, Access, accesses);
    if (!step->access)
        return NULL;
    b->s->n_step++;
    return step;
}

static void touch(Step *step, int buffer, bool read, bool write, int lag)
{
    for (int i = 0; i < step->n_access; i++)
        if (step->access[i].buffer == buffer && step->access[i].lag == lag) {
            step->access[i].read |= read;
            step->access[i].write |= write;
            return;
        }
    step->access[step->n_access++] = (Access){buffer, read, write, lag};
}

static Status add_unit_step(Builder *b, StepKind kind, StepStream stream, int unit, const Node *n)
{
    const Unit *u = &b->g->unit[unit];
    const StepList *s = b->s;
    bool resident = b->plan->unit[unit].hold == HOLD_RESIDENT;
    Step *step = add_step(b, kind, stream, 5 * u->n_param + 2);
    if (!step)
        return diag_oom(b->d);
    step->unit = unit;
    if (kind == STEP_LOAD)
        step->copy = ++b->loaded[unit];
    int copy = step->copy;
    if (n) {
        step->segment = n->segment;
        step->phase = n->phase;
    }
    for (int i = 0; i < u->n_param; i++) {
        int p = u->param[i];
        if (kind == STEP_LOAD) {
            touch(step, s->source_buffer[p], true, false, 0);
            touch(step, copy == 1 ? s->param_buffer[p] : s->param_bp_buffer[p], false, true, 0);
        }
        if (kind == STEP_LOAD || !b->g->param[p].trainable)
            continue;
        if (kind == STEP_STORE) {
            touch(step, s->grad_buffer[p], true, false, 0);
            touch(step, s->host_grad_buffer[p], false, true, 0);
        } else {
            touch(step, resident ? s->grad_buffer[p] : s->host_grad_buffer[p], true, false, 0);
        }
        if (kind == STEP_ADAMW) {
            touch(step, s->master_buffer[p], true, true, 0);
            if (s->source_buffer[p] != s->master_buffer[p])
                touch(step, s->source_buffer[p], false, true, 0);
            touch(step, s->state_m_buffer[p], true, true, 0);
            touch(step, s->state_v_buffer[p], true, true, 0);
        }
    }
    if (kind == STEP_SQNORM)
        touch(step, resident ? b->partials_gpu : b->partials, false, true, 0);
    if (kind == STEP_ADAMW && b->plan->clip)
        touch(step, b->norm, true, false, 0);
    return ST_OK;
}

/* Facts about units that the order of the program depends on. */
static Status scan_nodes(Builder *b)
{
    const Graph *g = b->g;
    size_t units = (size_t)g->n_unit;
    int *at = ARENA_NEW(b->a, int, 9 * units);
    b->loaded = ARENA_NEW(b->a, int, units);
    b->updated = ARENA_NEW(b->a, bool, units);
    if (!at || !b->loaded || !b->updated)
        return diag_oom(b->d);
    for (size_t i = 0; i < 9 * units; i++)
        at[i] = -1;
    b->first_read_node = at;
    b->first_grad_node = at + units;
    b->last_grad_node = at + 2 * units;
    b->first_grad_step = at + 3 * units;
    b->store_step = at + 4 * units;
    b->arrived = at + 5 * units;
    b->last_read = at + 6 * units;
    b->last_read_node = at + 8 * units;
    b->last_grad_step = b->loss_node = -1;
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        int outs = node_n_out(n);
        for (int k = 0; k < node_n_arg(n); k++) {
            if (n->arg[k] < 0)
                continue;
            const Tensor *t = root_of(g, n->arg[k]);
            if (k < outs && t == root_of(g, g->loss))
                b->loss_node = i;
            if (t->kind == TENSOR_PARAM && k >= outs) {
                int unit = g->param[t->param].unit;
                if (b->first_read_node[unit] < 0)
                    b->first_read_node[unit] = i;
                b->last_read_node[unit] = i;
                if (graph_use_of_node(g, n, unit) < 0)
                    return diag_fail(b->d, ST_FAILED, "node %s: reads unit %s in segment %d, which is none of its uses",
                                     n->name, g->unit[unit].name, n->segment);
            }
            if (t->kind == TENSOR_GRADIENT && k < outs) {
                int unit = g->param[t->param].unit;
                if (b->first_grad_node[unit] < 0)
                    b->first_grad_node[unit] = i;
                b->last_grad_node[unit] = i;
            }
        }
    }
    if (b->loss_node < 0)
        return diag_fail(b->d, ST_FAILED, "no node writes the loss %s", g->tensor.at[g->loss].name);
    for (int u = 0; u < g->n_unit; u++)
        if (g->unit[u].grad_bytes > 0 && b->last_grad_node[u] < 0)
            return diag_fail(b->d, ST_FAILED, "no node writes a gradient of the trainable unit %s", g->unit[u].name);
    return ST_OK;
}

/* Without clip: the updates on the GPU of the units that this kernel is the last to read or to give a gradient. */
static Status add_resident_updates(Builder *b, int index)
{
    const Graph *g = b->g;
    const Node *n = &g->node.at[index];
    for (int k = 0; k < node_n_arg(n) && !b->plan->clip; k++) {
        const Tensor *t = n->arg[k] < 0 ? NULL : root_of(g, n->arg[k]);
        if (!t || (t->kind != TENSOR_PARAM && t->kind != TENSOR_GRADIENT))
            continue;
        int unit = g->param[t->param].unit;
        bool due = b->plan->unit[unit].hold == HOLD_RESIDENT && g->unit[unit].grad_bytes > 0 && !b->updated[unit] &&
                   b->last_grad_node[unit] <= index && b->last_read_node[unit] <= index;
        if (!due)
            continue;
        b->updated[unit] = true;
        TRY(add_unit_step(b, STEP_ADAMW, STREAM_COMPUTE, unit, n));
    }
    return ST_OK;
}

static Status add_kernel(Builder *b, int index)
{
    const Graph *g = b->g;
    const Node *n = &g->node.at[index];
    int outs = node_n_out(n), args = node_n_arg(n);
    for (int k = outs; k < args; k++) {
        const Tensor *t = n->arg[k] < 0 ? NULL : root_of(g, n->arg[k]);
        if (!t || t->kind != TENSOR_PARAM)
            continue;
        int unit = g->param[t->param].unit;
        if (b->loaded[unit] >= plan_copy(&g->unit[unit], &b->plan->unit[unit], graph_use_of_node(g, n, unit)))
            continue;
        TRY(add_unit_step(b, STEP_LOAD, STREAM_LOAD, unit, n));
    }
    Step *step = add_step(b, STEP_KERNEL, STREAM_COMPUTE, args);
    if (!step)
        return diag_oom(b->d);
    step->node = index;
    step->segment = n->segment;
    step->phase = n->phase;
    int me = b->s->n_step - 1, stored[FERRY_MAX_ARGS], n_stored = 0;
    for (int k = 0; k < args; k++) {
        if (n->arg[k] < 0)
            continue;
        int buffer = steps_arg_buffer(b->s, n, k);
        if (buffer < 0)
            return diag_fail(b->d, ST_FAILED, "node %s: argument %d (%s) has no buffer", n->name, k,
                             g->tensor.at[n->arg[k]].name);
        touch(step, buffer, k >= outs || n->call.accumulate, k < outs, 0);
        const Tensor *t = root_of(g, n->arg[k]);
        if (t->kind == TENSOR_PARAM && b->loaded[g->param[t->param].unit] > 0)
            b->last_read[2 * g->param[t->param].unit + b->loaded[g->param[t->param].unit] - 1] = me;
        if (t->kind != TENSOR_GRADIENT || k >= outs)
            continue;
        int unit = g->param[t->param].unit;
        b->last_grad_step = me;
        if (b->first_grad_step[unit] < 0)
            b->first_grad_step[unit] = me;
        bool known = b->last_grad_node[unit] != index;
        for (int i = 0; i < n_stored; i++)
            known = known || stored[i] == unit;
        if (!known)
            stored[n_stored++] = unit;
    }
    for (int i = 0; i < n_stored; i++) {
        b->arrived[b->n_arrived++] = stored[i];
        if (b->plan->unit[stored[i]].hold == HOLD_RESIDENT)
            TRY(add_unit_step(b, STEP_SQNORM, STREAM_COMPUTE, stored[i], n));
        else if (b->plan->unit[stored[i]].grad == ON_GPU) {
            b->store_step[stored[i]] = b->s->n_step;
            TRY(add_unit_step(b, STEP_STORE, STREAM_STORE, stored[i], n));
        }
    }
    TRY(add_resident_updates(b, index));
    if (index == b->loss_node) {
        Step *store = add_step(b, STEP_STORE_LOSS, STREAM_STORE, 2);
        if (!store)
            return diag_oom(b->d);
        store->segment = n->segment;
        touch(store, b->s->buffer_of_tensor[g->tensor.at[g->loss].root], true, false, 0);
        touch(store, b->loss, false, true, 0);
    }
    return ST_OK;
}

/* After a kernel: the squares and early updates, in order of arrival, of the units that later kernels do not read. All streams
 * are fed by one thread, in program order, and a GPU's queue holds it up when it is full: at the end of the program the
 * updates would come to their thread late. */
static Status take_arrived(Builder *b, int index)
{
    const Plan *plan = b->plan;
    for (; b->n_taken < b->n_arrived; b->n_taken++) {
        int unit = b->arrived[b->n_taken];
        if (plan->unit[unit].hold == HOLD_RESIDENT)
            continue;
        bool early = !plan->clip && !plan->unit[unit].late;
        if (early && b->last_read_node[unit] > index)
            break;
        TRY(add_unit_step(b, STEP_SQNORM, STREAM_UPDATE, unit, NULL));
        if (early)
            TRY(add_unit_step(b, STEP_ADAMW, STREAM_UPDATE, unit, NULL));
    }
    return ST_OK;
}

/* Late updates run in the next step's order of first use, so that what is needed first is ready first. */
static Status add_updates(Builder *b)
{
    const Graph *g = b->g;
    TRY(take_arrived(b, g->node.count));
    Step *norm = add_step(b, STEP_NORM, STREAM_UPDATE, 3);
    if (!norm)
        return diag_oom(b->d);
    touch(norm, b->partials, true, false, 0);
    if (b->partials_gpu >= 0)
        touch(norm, b->partials_gpu, true, false, 0);
    touch(norm, b->norm, false, true, 0);
    for (int i = 0; i < b->n_arrived; i++)
        if (b->plan->clip && !b->plan->unit[b->arrived[i]].late && b->plan->unit[b->arrived[i]].hold != HOLD_RESIDENT)
            TRY(add_unit_step(b, STEP_ADAMW, STREAM_UPDATE, b->arrived[i], NULL));
    int *late = ARENA_NEW(b->a, int, g->node.count + g->n_unit);
    int *next = ARENA_NEW(b->a, int, g->n_unit);
    if (!late || !next)
        return diag_oom(b->d);
    /* buckets by first reading node: a chain of units each; a unit that no node reads comes last */
    int buckets = g->node.count + 1;
    for (int i = 0; i < buckets; i++)
        late[i] = -1;
    for (int u = g->n_unit - 1; u >= 0; u--)
        if (g->unit[u].grad_bytes > 0 && (b->plan->unit[u].late || (b->plan->clip && b->plan->unit[u].hold == HOLD_RESIDENT))) {
            int at = b->first_read_node[u] < 0 ? buckets - 1 : b->first_read_node[u];
            next[u] = late[at];
            late[at] = u;
        }
    for (int i = 0; i < buckets; i++)
        for (int u = late[i]; u >= 0; u = next[u])
            TRY(add_unit_step(b, STEP_ADAMW, b->plan->unit[u].hold == HOLD_RESIDENT ? STREAM_COMPUTE : STREAM_UPDATE, u,
                              NULL));
    return ST_OK;
}

/* Is this the last kernel, in a row, of a layer and direction? An emitted schedule makes a function of them. */
static bool ends_group(const Graph *g, int index)
{
    const Node *n = &g->node.at[index];
    return index + 1 == g->node.count || n[1].segment / 2 != n->segment / 2 || n[1].phase != n->phase;
}

static Status make_steps(Builder *b)
{
    const Graph *g = b->g;
    b->s->step = ARENA_NEW(b->a, Step, (size_t)g->node.count + 5 * (size_t)g->n_unit + 5);
    if (!b->s->step)
        return diag_oom(b->d);
    Step *stage = add_step(b, STEP_STAGE, STREAM_HOST, g->n_input);
    Step *load = stage ? add_step(b, STEP_LOAD_INPUT, STREAM_LOAD, 2 * g->n_input) : NULL;
    if (!load)
        return diag_oom(b->d);
    for (int i = 0; i < g->n_input; i++) {
        touch(stage, b->staging[i], false, true, 0);
        touch(load, b->staging[i], true, false, 0);
        touch(load, b->s->buffer_of_tensor[g->input[i]], false, true, 0);
    }
    for (int i = 0; i < g->node.count; i++) {
        TRY(add_kernel(b, i));
        if (!b->plan->update_after_bp && ends_group(g, i))
            TRY(take_arrived(b, i));
    }
    for (int u = 0; u < g->n_unit; u++)
        if (b->loaded[u] < plan_copy(&g->unit[u], &b->plan->unit[u], g->unit[u].n_use - 1))
            return diag_fail(b->d, ST_FAILED, "unit %s: no node reads it at its use %d", g->unit[u].name,
                             b->plan->unit[u].first_gpu_use);
    TRY(add_updates(b));
    Step *collect = add_step(b, STEP_COLLECT, STREAM_HOST, 2);
    if (!collect)
        return diag_oom(b->d);
    touch(collect, b->loss, true, false, 1);
    touch(collect, b->norm, true, false, 1);
    return ST_OK;
}

/* Device buffers by first access, then the host's in the order in which they were made. */
static Status sort_buffers(Builder *b)
{
    StepList *s = b->s;
    int *to = ARENA_NEW(b->a, int, s->n_buffer);
    Buffer *sorted = ARENA_NEW(b->a, Buffer, s->n_buffer);
    if (!to || !sorted)
        return diag_oom(b->d);
    for (int i = 0; i < s->n_buffer; i++)
        to[i] = -1;
    int count = 0;
    for (int i = 0; i < s->n_step; i++)
        for (int k = 0; k < s->step[i].n_access; k++) {
            int buffer = s->step[i].access[k].buffer;
            if (s->buffer[buffer].pool == POOL_DEVICE && to[buffer] < 0)
                to[buffer] = count++;
        }
    s->n_device = count;
    for (int i = 0; i < s->n_buffer; i++)
        if (to[i] < 0)
            to[i] = count++;
    for (int i = 0; i < s->n_buffer; i++)
        sorted[to[i]] = s->buffer[i];
    s->buffer = sorted;
    for (int i = 0; i < s->n_step; i++)
        for (int k = 0; k < s->step[i].n_access; k++)
            s->step[i].access[k].buffer = to[s->step[i].access[k].buffer];
    for (int i = 0; i < b->g->tensor.count; i++)
        if (s->buffer_of_tensor[i] >= 0)
            s->buffer_of_tensor[i] = to[s->buffer_of_tensor[i]];
    for (int i = 0; i < PARAM_MAPS * b->g->n_param; i++)
        if (s->param_buffer[i] >= 0) /* the maps are one array */
            s->param_buffer[i] = to[s->param_buffer[i]];
    return ST_OK;
}

/* ---- orderings that no access asks for
 * ------------------------------------------------------------------------------------ */

/* Gradient window. At the first write of unit i, a unit is open from its own first write to the end of its store. One
 * whose store comes later in the program (a tied table that gathers to the end) is open whatever is done. Of the
 * others, the latest may stay open as long as all fit; since stores run in order, waiting for the latest one that does
 * not fit closes all before. The stores of the previous iteration come before the first one of this. */
static Status window_orderings(const Builder *b, Ordering *out, int *n_out)
{
    const Graph *g = b->g;
    int64_t window = b->plan->gradient_window_bytes;
    int n = 0, count = 0;
    int *stored = ARENA_NEW(b->a, int, g->n_unit);
    *n_out = 0;
    if (!stored)
        return diag_oom(b->d);
    if (window <= 0)
        return ST_OK;
    for (int i = 0; i < b->n_arrived; i++)
        if (b->store_step[b->arrived[i]] >= 0)
            stored[n++] = b->arrived[i];
    for (int i = 0; i < n; i++) {
        int unit = stored[i], first = b->first_grad_step[unit];
        int64_t bytes = g->unit[unit].grad_bytes;
        int done = 0; /* stored[0, done) are stored before the first write in the program */
        for (int k = 0; k < n; k++) {
            int other = stored[k];
            done += b->store_step[other] < first ? 1 : 0;
            if (other != unit && b->store_step[other] > first && b->first_grad_step[other] < first)
                bytes += g->unit[other].grad_bytes;
        }
        int k = 1, at = -1;
        for (; k <= n; k++) {
            at = (done - k + n) % n;
            bytes += g->unit[stored[at]].grad_bytes;
            if (bytes > window)
                break;
        }
        if (k <= n)
            out[count++] = (Ordering){b->store_step[stored[at]], first, done - k >= 0 ? 0 : 1};
    }
    *n_out = count;
    return ST_OK;
}

/* A copy of a unit that is loaded twice. */
typedef struct Copy {
    int load, last; /* steps */
    int64_t bytes;
} Copy;

/* Load window. The copies in order of load; at the load of one, another is open from its own load to its last use. One
 * whose last use comes after the first use of this one is open whatever is done. Of the others, the latest may stay
 * open as long as all fit; this load waits for the last use of the first that does not and of all before it, which is
 * one kernel, since kernels run in order. */
static Status load_window_orderings(const Builder *b, Ordering *out, int *n_out)
{
    const Graph *g = b->g;
    int64_t window = b->plan->load_window_bytes;
    int n = 0;
    Copy *copy = ARENA_NEW(b->a, Copy, 2 * (size_t)g->n_unit);
    if (!copy)
        return diag_oom(b->d);
    for (int i = 0; i < b->s->n_step && window > 0; i++) {
        const Step *step = &b->s->step[i];
        if (step->kind == STEP_LOAD && b->plan->unit[step->unit].hold == HOLD_RELOAD)
            copy[n++] = (Copy){i, b->last_read[2 * step->unit + step->copy - 1], g->unit[step->unit].bytes};
    }
    for (int i = 0; i < n; i++) {
        int64_t bytes = copy[i].bytes;
        for (int k = 0; k < i; k++)
            bytes += copy[k].last > copy[i].load ? copy[k].bytes : 0;
        int last[2] = {-1, -1}; /* of this iteration and the one before: the kernel to wait for */
        for (int k = 1; k < n; k++) {
            int at = (i - k + n) % n, back = k <= i ? 0 : 1;
            if (back == 0 && copy[at].last > copy[i].load)
                continue;
            bytes += copy[at].bytes;
            if (bytes > window && copy[at].last > last[back])
                last[back] = copy[at].last;
        }
        int back = last[0] >= 0 ? 0 : 1; /* the later of the two */
        if (last[back] >= 0)
            out[(*n_out)++] = (Ordering){last[back], copy[i].load, back};
    }
    return ST_OK;
}

static Status add_waits(Builder *b)
{
    StepList *s = b->s;
    Ordering *extra = ARENA_NEW(b->a, Ordering, 3 * (size_t)b->g->n_unit + 2);
    if (!extra)
        return diag_oom(b->d);
    int n = 0;
    TRY(window_orderings(b, extra, &n));
    TRY(load_window_orderings(b, extra, &n));
    if (b->plan->update_after_bp) {
        int first = 0, last_store = -1;
        while (s->step[first].stream != STREAM_UPDATE)
            first++;
        for (int i = 0; i < first; i++)
            last_store = s->step[i].kind == STEP_STORE ? i : last_store;
        if (last_store >= 0)
            extra[n++] = (Ordering){last_store, first, 0};
        extra[n++] = (Ordering){b->last_grad_step, first, 0};
    }
    return steps_derive_waits(b->d, b->a, s, extra, n);
}

static Status check_plan(Diag *d, const Graph *g, const Plan *plan)
{
    if (plan->n_unit != g->n_unit)
        return diag_fail(d, ST_MODEL, "the plan has %d units, the graph %d", plan->n_unit, g->n_unit);
    for (int u = 0; u < g->n_unit; u++) {
        const char *fault = plan_unit_fault(&g->unit[u], &plan->unit[u]);
        if (fault)
            return diag_fail(d, ST_MODEL, "unit %s: the plan serves it as %s from its use %d of %d on: %s",
                             g->unit[u].name, mode_name(plan_mode(&g->unit[u], &plan->unit[u])),
                             plan->unit[u].first_gpu_use, g->unit[u].n_use, fault);
    }
    return ST_OK;
}

Status steps_build(Diag *d, Arena *a, const Graph *g, const Plan *plan, StepList **out)
{
    *out = NULL;
    TRY(check_plan(d, g, plan));
    StepList *s = ARENA_NEW(a, StepList, 1);
    if (!s)
        return diag_oom(d);
    s->graph = g;
    s->plan = plan;
    Builder b = {.d = d, .a = a, .g = g, .plan = plan, .s = s};
    TRY(make_buffers(&b));
    TRY(scan_nodes(&b));
    TRY(make_steps(&b));
    TRY(sort_buffers(&b));
    TRY(add_waits(&b));
    *out = s;
    return ST_OK;
}
