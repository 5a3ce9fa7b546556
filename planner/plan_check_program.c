/* plan_check_program.c - the steps, run one after the other, compute a training step.
 *
 * needs: a list of steps   keeps: everything
 *
 * The program is run on tags instead of data: a tag says what a copy of a buffer holds. With iterations counted from 0,
 * in iteration i
 *  - inputs and everything computed from them carry i + 1: written in this iteration; 0 is what was there at the start;
 *  - a parameter, its rounded copy as well, carries the number of its updates, i before this iteration's and i + 1 after;
 *  - a gradient carries the number of its writes so far, counted over all iterations: complete when all nodes that
 * write it have run i + 1 times;
 *  - running statistics carry the number of times they were brought up to date, i before this iteration's and i + 1 after;
 *  - the partial sums are counted one by one.
 * Each step is given the buffers that the plan says it must touch, found from the graph and the plan and not from the
 * maps of the list, and its accesses must be exactly these. */
#include <string.h>

#include "planner/plan_check.h"

typedef struct Machine {
    Diag *d;
    const StepList *s;
    const Graph *g;
    int iteration;
    int64_t *tag;                  /* by buffer and copy */
    int *by_tensor;                /* by tensor: device buffer, found by kind and name of the thing */
    int *by_param;                 /* by parameter and buffer kind */
    int *staging;                  /* by tensor */
    int single[BUFFER_KIND_COUNT]; /* partials, norm, loss */
    int *writes;                   /* by parameter: nodes that write its gradient */
    int *use, *use_of;             /* by unit: number of uses so far, segment and phase of the last one */
    int *summed;                   /* by unit: iterations in which its squares were summed */
    int touched;                   /* accesses of the present step that were accounted for */
    int next_node, sums;
    const Step *step;
    int index;
} Machine;

static Status wrong(Machine *m, const char *format, const char *name)
{
    char label[STEP_LABEL_BYTES], text[256];
    snprintf(text, sizeof text, format, name);
    return diag_fail(m->d, ST_FAILED, "%s of iteration %d: %s", step_label(m->s, m->index, label), m->iteration, text);
}

/* The present step must have exactly this access. Accesses of one buffer by several arguments come merged. */
static Status touch(Machine *m, int buffer, bool read, bool write, int lag, bool merged)
{
    if (buffer < 0)
        return wrong(m, "%s is missing from the buffers", "what it needs");
    for (int k = 0; k < m->step->n_access; k++) {
        const Access *c = &m->step->access[k];
        if (c->buffer != buffer || c->lag != lag)
            continue;
        if (merged ? (read && !c->read) || (write && !c->write) : c->read != read || c->write != write)
            return wrong(m, "its access of %s is not the one that it makes", m->s->buffer[buffer].name);
        m->touched++;
        return ST_OK;
    }
    return wrong(m, "it touches %s, which is not among its accesses", m->s->buffer[buffer].name);
}

static int64_t *tag_of(Machine *m, int buffer, int lag)
{
    int copy = m->s->buffer[buffer].copies == 2 ? (m->iteration + lag) % 2 : 0;
    return &m->tag[2 * (size_t)buffer + (size_t)copy];
}

static Status expect(Machine *m, int buffer, int lag, int64_t tag)
{
    if (*tag_of(m, buffer, lag) != tag)
        return wrong(m, "what it reads from %s is not what the training step means", m->s->buffer[buffer].name);
    return ST_OK;
}

static int of_param(const Machine *m, int param, BufferKind kind)
{
    return m->by_param[(size_t)param * BUFFER_KIND_COUNT + kind];
}

/* What loads and DHA read. */
static BufferKind source_kind(const Machine *m, int param)
{
    return m->g->precision == FERRY_BF16 && m->g->param[param].trainable ? BUFFER_ROUNDED : BUFFER_MASTER;
}

static bool is_resident(const Machine *m, int unit)
{
    return m->s->plan->unit[unit].hold == HOLD_RESIDENT;
}

static bool grad_on_gpu(const Machine *m, int param)
{
    return m->s->plan->unit[m->g->param[param].unit].grad == ON_GPU;
}

/* The whole gradient of this iteration. */
static int64_t complete(const Machine *m, int param)
{
    return (int64_t)m->writes[param] * (m->iteration + 1);
}

static Status run_kernel(Machine *m)
{
    const Graph *g = m->g;
    if (m->step->node != m->next_node || m->step->node >= g->node.count)
        return wrong(m, "%s", "kernels are not in the order of the graph");
    const Node *n = &g->node.at[m->next_node++];
    int outs = node_n_out(n), expected[FERRY_MAX_ARGS] = {0}, distinct = 0;
    for (int k = 0; k < FERRY_MAX_ARGS; k++)
        expected[k] = -1;
    for (int k = node_n_arg(n) - 1; k >= 0; k--) { /* inputs are read before outputs are written */
        if (n->arg[k] < 0)
            continue;
        int root = g->tensor.at[n->arg[k]].root, buffer;
        const Tensor *t = &g->tensor.at[root];
        bool out = k < outs, read = !out || n->call.accumulate;
        int64_t tag = m->iteration + 1;
        if (t->kind == TENSOR_PARAM) {
            int unit = g->param[t->param].unit, group = PHASE_COUNT * n->segment + (int)n->phase;
            if (m->use_of[unit] != group) {
                m->use_of[unit] = group;
                m->use[unit]++;
            }
            const BufferKind copy[] = {source_kind(m, t->param), BUFFER_PARAM, BUFFER_PARAM_BP};
            int which = plan_copy(&g->unit[unit], &m->s->plan->unit[unit], m->use[unit] - 1);
            buffer = of_param(m, t->param, copy[which]);
            tag = g->param[t->param].trainable ? m->iteration : 0; /* a frozen one stays as it began */
        } else if (t->kind == TENSOR_GRADIENT) {
            buffer = of_param(m, t->param, grad_on_gpu(m, t->param) ? BUFFER_GRAD : BUFFER_HOST_GRAD);
        } else if (t->kind == TENSOR_STATE) { /* what is there before: read and written at once */
            buffer = of_param(m, t->param, BUFFER_STATISTIC);
            tag = m->iteration;
        } else {
            buffer = m->by_tensor[root];
            tag = t->kind == TENSOR_CONST ? 0 : tag;
        }
        TRY(touch(m, buffer, read, out, 0, true));
        if (steps_arg_buffer(m->s, n, k) != buffer)
            return wrong(m, "an argument does not lie where the plan says: %s", t->name);
        bool known = false;
        for (int j = 0; j < FERRY_MAX_ARGS; j++)
            known = known || expected[j] == buffer;
        expected[k] = buffer;
        distinct += known ? 0 : 1;
        if (out && read && (t->kind == TENSOR_VALUE || t->kind == TENSOR_STATE))
            TRY(expect(m, buffer, 0, tag));
        if (out && (t->kind == TENSOR_GRADIENT || t->kind == TENSOR_STATE))
            ++*tag_of(m, buffer, 0);
        else if (out)
            *tag_of(m, buffer, 0) = tag;
        else if (t->kind != TENSOR_GRADIENT)
            TRY(expect(m, buffer, 0, tag));
    }
    m->touched = distinct;
    return ST_OK;
}

/* Transfers and updates of a unit: for each of its parameters. */
static Status run_unit(Machine *m)
{
    const Graph *g = m->g;
    const Step *step = m->step;
    if (step->unit < 0 || step->unit >= g->n_unit)
        return wrong(m, "%s", "it has no unit");
    const Unit *u = &g->unit[step->unit];
    for (int i = 0; i < u->n_param; i++) {
        int p = u->param[i], master = of_param(m, p, BUFFER_MASTER), host = of_param(m, p, BUFFER_HOST_GRAD);
        if (step->kind == STEP_LOAD) {
            int param = of_param(m, p, step->copy == 2 ? BUFFER_PARAM_BP : BUFFER_PARAM);
            int source = of_param(m, p, source_kind(m, p));
            TRY(touch(m, source, true, false, 0, false));
            TRY(touch(m, param, false, true, 0, false));
            *tag_of(m, param, 0) = *tag_of(m, source, 0);
            continue;
        }
        if (!g->param[p].trainable)
            continue;
        if (step->kind == STEP_STORE) {
            int grad = of_param(m, p, BUFFER_GRAD);
            TRY(touch(m, grad, true, false, 0, false));
            TRY(touch(m, host, false, true, 0, false));
            TRY(expect(m, grad, 0, complete(m, p)));
            *tag_of(m, host, 0) = *tag_of(m, grad, 0);
            continue;
        }
        int summed = is_resident(m, step->unit) ? of_param(m, p, BUFFER_GRAD) : host;
        TRY(touch(m, summed, true, false, 0, false));
        TRY(expect(m, summed, 0, complete(m, p)));
        if (step->kind != STEP_ADAMW)
            continue;
        TRY(touch(m, master, true, true, 0, false));
        TRY(touch(m, of_param(m, p, BUFFER_STATE_M), true, true, 0, false));
        TRY(touch(m, of_param(m, p, BUFFER_STATE_V), true, true, 0, false));
        TRY(expect(m, master, 0, m->iteration));
        *tag_of(m, master, 0) = m->iteration + 1;
        if (source_kind(m, p) == BUFFER_ROUNDED) {
            int rounded = of_param(m, p, BUFFER_ROUNDED);
            TRY(touch(m, rounded, false, true, 0, false));
            *tag_of(m, rounded, 0) = m->iteration + 1;
        }
    }
    if (step->kind == STEP_SQNORM) {
        int partials = m->single[is_resident(m, step->unit) ? BUFFER_PARTIALS_GPU : BUFFER_PARTIALS];
        TRY(touch(m, partials, false, true, 0, false));
        if (m->summed[step->unit]++ != m->iteration)
            return wrong(m, "%s", "its squares are summed twice in an iteration, or left out in one");
        m->sums++;
    }
    if (step->kind == STEP_ADAMW && m->s->plan->clip) {
        TRY(touch(m, m->single[BUFFER_NORM], true, false, 0, false));
        TRY(expect(m, m->single[BUFFER_NORM], 0, m->iteration + 1));
    }
    return ST_OK;
}

static Status run_step(Machine *m, int index)
{
    const Graph *g = m->g;
    static const StepStream stream[] = {STREAM_HOST,  STREAM_LOAD,   STREAM_LOAD,   STREAM_COMPUTE, STREAM_STORE,
                                        STREAM_STORE, STREAM_UPDATE, STREAM_UPDATE, STREAM_UPDATE,  STREAM_HOST};
    int64_t now = m->iteration + 1;
    m->index = index;
    m->step = &m->s->step[index];
    m->touched = 0;
    bool resident = (m->step->kind == STEP_SQNORM || m->step->kind == STEP_ADAMW) && m->step->unit >= 0 &&
                    m->step->unit < g->n_unit && is_resident(m, m->step->unit);
    if (m->step->kind > STEP_COLLECT || m->step->stream != (resident ? STREAM_COMPUTE : stream[m->step->kind]))
        return wrong(m, "it runs on the stream %s",
                     m->step->stream < STREAM_COUNT ? step_stream_name(m->step->stream) : "?");
    switch (m->step->kind) {
    case STEP_STAGE:
    case STEP_LOAD_INPUT:
        for (int i = 0; i < g->n_input; i++) {
            int staging = m->staging[g->input[i]], input = m->by_tensor[g->input[i]];
            bool load = m->step->kind == STEP_LOAD_INPUT;
            TRY(touch(m, staging, load, !load, 0, false));
            if (load) {
                TRY(touch(m, input, false, true, 0, false));
                *tag_of(m, input, 0) = *tag_of(m, staging, 0);
            } else {
                *tag_of(m, staging, 0) = now;
            }
        }
        break;
    case STEP_KERNEL:
        TRY(run_kernel(m));
        break;
    case STEP_STORE_LOSS: {
        int value = m->by_tensor[g->tensor.at[g->loss].root], loss = m->single[BUFFER_LOSS];
        TRY(touch(m, value, true, false, 0, false));
        TRY(touch(m, loss, false, true, 0, false));
        TRY(expect(m, value, 0, now));
        *tag_of(m, loss, 0) = now;
        break;
    }
    case STEP_NORM:
        TRY(touch(m, m->single[BUFFER_PARTIALS], true, false, 0, false));
        if (m->single[BUFFER_PARTIALS_GPU] >= 0)
            TRY(touch(m, m->single[BUFFER_PARTIALS_GPU], true, false, 0, false));
        TRY(touch(m, m->single[BUFFER_NORM], false, true, 0, false));
        for (int u = 0; u < g->n_unit; u++)
            if (g->unit[u].grad_bytes > 0 && m->summed[u] != m->iteration + 1)
                return wrong(m, "the squares of %s are not summed", g->unit[u].name);
        *tag_of(m, m->single[BUFFER_NORM], 0) = now;
        break;
    case STEP_COLLECT:
        TRY(touch(m, m->single[BUFFER_LOSS], true, false, 1, false));
        TRY(touch(m, m->single[BUFFER_NORM], true, false, 1, false));
        TRY(expect(m, m->single[BUFFER_LOSS], 1, m->iteration));
        TRY(expect(m, m->single[BUFFER_NORM], 1, m->iteration));
        break;
    default:
        TRY(run_unit(m));
    }
    if (m->touched != m->step->n_access)
        return wrong(m, "%s", "it has accesses that it does not make");
    return ST_OK;
}

static Status end_iteration(Machine *m)
{
    const Graph *g = m->g;
    if (m->next_node != g->node.count)
        return diag_fail(m->d, ST_FAILED, "iteration %d: %d of %d kernels run", m->iteration, m->next_node,
                         g->node.count);
    for (int p = 0; p < g->n_param; p++)
        if (g->param[p].trainable && *tag_of(m, of_param(m, p, BUFFER_MASTER), 0) != m->iteration + 1)
            return diag_fail(m->d, ST_FAILED, "iteration %d: parameter %s is not updated", m->iteration,
                             g->param[p].name);
    for (int p = 0; p < g->n_param; p++)
        if (g->param[p].state && *tag_of(m, of_param(m, p, BUFFER_STATISTIC), 0) != m->iteration + 1)
            return diag_fail(m->d, ST_FAILED, "iteration %d: the running statistics %s are not brought up to date",
                             m->iteration, g->param[p].name);
    if (*tag_of(m, m->single[BUFFER_LOSS], 0) != m->iteration + 1 ||
        *tag_of(m, m->single[BUFFER_NORM], 0) != m->iteration + 1)
        return diag_fail(m->d, ST_FAILED, "iteration %d: the loss or the norm is not stored", m->iteration);
    if (m->s->n_step == 0 || m->s->step[m->s->n_step - 1].kind != STEP_COLLECT)
        return diag_fail(m->d, ST_FAILED, "the program does not end by handing over loss and norm");
    return ST_OK;
}

/* Finds each buffer by what it is: kind, tensor, parameter. Two of the same are an error. */
static Status index_buffers(Machine *m)
{
    const StepList *s = m->s;
    const Graph *g = m->g;
    for (int i = 0; i < s->n_buffer; i++) {
        const Buffer *b = &s->buffer[i];
        int *slot = NULL;
        int64_t bytes = b->bytes;
        bool host = true, state = false;
        switch (b->kind) {
        case BUFFER_VALUE:
        case BUFFER_CONST:
        case BUFFER_INPUT:
        case BUFFER_STAGING:
            if (b->tensor >= 0 && b->tensor < g->tensor.count)
                slot = b->kind == BUFFER_STAGING ? &m->staging[b->tensor] : &m->by_tensor[b->tensor];
            bytes = slot ? g->tensor.at[b->tensor].bytes : 0;
            host = b->kind == BUFFER_STAGING;
            state = b->kind == BUFFER_CONST;
            break;
        case BUFFER_PARTIALS:
        case BUFFER_PARTIALS_GPU:
        case BUFFER_NORM:
        case BUFFER_LOSS:
            slot = &m->single[b->kind];
            break;
        default:
            if (b->param >= 0 && b->param < g->n_param && b->kind < BUFFER_KIND_COUNT)
                slot = &m->by_param[(size_t)b->param * BUFFER_KIND_COUNT + b->kind];
            bytes = slot ? param_buffer_bytes(g, b->param, b->kind) : 0;
            host = b->kind != BUFFER_PARAM && b->kind != BUFFER_PARAM_BP && b->kind != BUFFER_GRAD;
            state = b->kind == BUFFER_MASTER || b->kind == BUFFER_ROUNDED || b->kind == BUFFER_STATE_M ||
                    b->kind == BUFFER_STATE_V || b->kind == BUFFER_STATISTIC;
            if (slot && state && b->kind != BUFFER_STATISTIC && is_resident(m, g->param[b->param].unit))
                host = false;
        }
        bool two = b->kind == BUFFER_NORM || b->kind == BUFFER_LOSS || b->kind == BUFFER_PARTIALS ||
                   b->kind == BUFFER_PARTIALS_GPU;
        int copies = two ? 2 : 1;
        if (!slot || *slot >= 0)
            return diag_fail(m->d, ST_FAILED, "buffer %s: %s", b->name,
                             slot ? "there are two of it" : "it stands for nothing");
        if (b->bytes < bytes || (b->pool == POOL_HOST) != host || b->preset != state || b->copies != copies)
            return diag_fail(m->d, ST_FAILED, "buffer %s: wrong size, pool, number of copies or beginning", b->name);
        *slot = i;
    }
    return ST_OK;
}

static Status run_all(Machine *m)
{
    const Graph *g = m->g;
    for (int i = 0; i < g->node.count; i++)
        for (int k = 0; k < node_n_out(&g->node.at[i]); k++) {
            int arg = g->node.at[i].arg[k];
            const Tensor *t = arg < 0 ? NULL : &g->tensor.at[g->tensor.at[arg].root];
            if (t && t->kind == TENSOR_GRADIENT)
                m->writes[t->param]++;
        }
    TRY(index_buffers(m));
    for (m->iteration = 0; m->iteration < PROOF_ITERATIONS; m->iteration++) {
        m->next_node = m->sums = 0;
        for (int u = 0; u < g->n_unit; u++) {
            m->use[u] = 0;
            m->use_of[u] = -1;
        }
        for (int i = 0; i < m->s->n_step; i++)
            TRY(run_step(m, i));
        TRY(end_iteration(m));
    }
    return ST_OK;
}

Status plan_check_program(Diag *d, const StepList *s)
{
    const Graph *g = s->graph;
    if (s->plan->n_unit != g->n_unit)
        return diag_fail(d, ST_FAILED, "the plan has %d units, the graph %d", s->plan->n_unit, g->n_unit);
    Machine m = {.d = d, .s = s, .g = g};
    size_t tensors = (size_t)g->tensor.count, params = (size_t)g->n_param, units = (size_t)g->n_unit;
    size_t maps = 2 * tensors + params * BUFFER_KIND_COUNT, ints = maps + params + 3 * units;
    int *at = base_alloc((ints + 1) * sizeof *at);
    m.tag = base_alloc((2 * (size_t)s->n_buffer + 1) * sizeof *m.tag);
    Status status = ST_OK;
    if (!at || !m.tag) {
        status = diag_oom(d);
    } else {
        for (size_t i = 0; i < maps; i++)
            at[i] = -1;
        for (int k = 0; k < BUFFER_KIND_COUNT; k++)
            m.single[k] = -1;
        m.by_tensor = at;
        m.staging = at + tensors;
        m.by_param = at + 2 * tensors;
        m.writes = at + maps;
        m.use = m.writes + params;
        m.use_of = m.use + units;
        m.summed = m.use_of + units;
        status = run_all(&m);
    }
    base_free(at);
    base_free(m.tag);
    return status;
}
