/* emit_steps.c - the functions of schedule.c: one a layer and direction, one a copy and update, and their calls, in the order of
 * the steps. */
#include "codegen/emit_schedule.h"

#include <inttypes.h>
#include <string.h>

static const char *stream_field(StepStream stream)
{
    switch (stream) {
    case STREAM_COMPUTE:
        return "s->compute";
    case STREAM_LOAD:
        return "s->load";
    case STREAM_STORE:
        return "s->store";
    case STREAM_UPDATE:
        return "s->update";
    default:
        return "NULL";
    }
}

static void add_waits(Emitter *e, const Step *step)
{
    for (int i = 0; i < step->n_wait; i++) {
        const Wait *w = &step->wait[i];
        const char *event = e->names.event[w->step];
        const char *when = w->distance ? "LAST" : "NOW";
        if (step->stream == STREAM_HOST)
            text_add(&e->text, "    TRY(ferry_event_sync(%s(%s)));\n", when, event);
        else
            text_add(&e->text, "    TRY(ferry_stream_wait(%s, %s(%s)));\n", stream_field(step->stream), when, event);
    }
}

static void add_record(Emitter *e, const Step *step)
{
    const char *event = e->names.event[step - e->steps->step];
    if (event && step->stream != STREAM_HOST)
        text_add(&e->text, "    TRY(ferry_event_record(%s, NOW(%s)));\n", stream_field(step->stream), event);
}

static void use_part(Emitter *e, Text *part)
{
    Text swap = e->text;
    e->text = *part;
    *part = swap;
}

static void open_function(Emitter *e, const char *name, const char *more)
{
    text_add(&e->text, "static ferry_status %s(schedule *s%s)\n{\n", name, more);
}

static void close_function(Emitter *e)
{
    text_add(&e->text, "    return FERRY_OK;\n}\n\n");
}

/* The recorder's stamps around a part's work: after its waits, before its event. */
static void add_begin(Emitter *e, const Step *step, const char *name)
{
    e->part_name[e->parts.of_step[step - e->steps->step]] = name;
    text_add(&e->text, "    BEGIN(%s, %s);\n", step_stream_name(step->stream), name);
}

static void add_end(Emitter *e, const Step *step)
{
    text_add(&e->text, "    END(%s, %s);\n", step_stream_name(step->stream),
             e->part_name[e->parts.of_step[step - e->steps->step]]);
}

/* The function of a step that is a part of its own. */
static void open_step(Emitter *e, const Step *step, const char *name, const char *more)
{
    open_function(e, name, more);
    add_waits(e, step);
    add_begin(e, step, name);
}

static void close_step(Emitter *e, const Step *step)
{
    add_end(e, step);
    add_record(e, step);
    close_function(e);
}

static void unit_story(Emitter *e, int unit)
{
    Text *t = &e->text;
    const Unit *u = &e->graph->unit[unit];
    const UnitPlan *p = &e->plan->unit[unit];
    switch (plan_mode(u, p)) {
    case MODE_GFGB:
        text_add(t, "GFGB");
        if (p->first_gpu_use == 0)
            return;
        text_add(t, ": read by DHA, then loaded for ");
        c_text_comment(t, e->graph->layer[u->use[p->first_gpu_use].layer].name);
        return;
    case MODE_DHA:
        text_add(t, "DHA");
        return;
    case MODE_RESIDENT:
        text_add(t, "resident");
        return;
    case MODE_RELOAD:
        text_add(t, "reload: loaded for each pass, ");
        if (p->first_gpu_use > 0)
            text_add(t, "after uses by DHA, ");
        text_add(t, "dropped in between");
        return;
    case MODE_DFGB:
        text_add(t, "DFGB: read by DHA forward, loaded for backward");
        return;
    default:
        return;
    }
}

/* What a function's kernels take, with the updates that run between them. */
static int64_t function_ns(const Emitter *e, int first)
{
    const Step *from = &e->steps->step[first];
    int64_t ns = 0;
    for (int i = first; i < e->steps->n_step; i++) {
        const Step *s = &e->steps->step[i];
        if (s->kind == STEP_KERNEL && (step_group(s) != step_group(from) || s->phase != from->phase))
            break;
        if (s->stream == STREAM_COMPUTE && s->segment >= 0)
            ns += s->duration_ns;
    }
    return ns;
}

/* Above the first function of each segment that is computed again. */
static void segment_comment(Emitter *e, int first)
{
    const Graph *g = e->graph;
    const Step *s = &e->steps->step[first];
    int node = g->node.at[s->node].origin, segment = 0;
    while (segment < g->n_again - 1 && graph_end_node(g, g->again[segment]) < node)
        segment++;
    bool begins = true;
    for (int i = first - 1; i >= 0 && begins; i--)
        if (e->steps->step[i].kind == STEP_KERNEL) {
            begins = e->steps->step[i].phase != PHASE_RP;
            break;
        }
    if (s->phase != PHASE_RP || !begins)
        return;
    text_add(&e->text, "/* Segment %d of %d, which ends with ", segment + 1, g->n_again);
    c_text_comment(&e->text, g->again[segment]);
    text_add(&e->text, ", is computed again for its backward pass. */\n\n");
}

/* A step function's comment: what the layer is, how its parameters are served, how long it should take. */
static void layer_comment(Emitter *e, int first)
{
    const Graph *g = e->graph;
    const int group = step_group(&e->steps->step[first]);
    const Phase phase = e->steps->step[first].phase;
    static const char *const what[PHASE_COUNT] = {"forward", "backward", "computed again"};
    char time[32];
    time_print(time, function_ns(e, first));
    if (group == g->n_layer) {
        text_add(&e->text, "/* After the last layer, %s; %s predicted. */\n", phase == PHASE_FP ? "with the loss" : what[phase],
                 time);
        return;
    }
    const Layer *l = &g->layer[group];
    const Tensor *weight = NULL;
    for (int i = 0; i < l->n_unit && !weight; i++)
        weight = &g->tensor.at[g->param[g->unit[l->unit[i]].param[0]].tensor];
    text_add(&e->text, "/* ");
    c_text_comment(&e->text, l->name);
    text_add(&e->text, ", ");
    c_text_comment(&e->text, l->op);
    if (weight)
        emit_dims(&e->text, weight, " [", "]");
    for (int i = 0; i < l->n_unit; i++) {
        text_add(&e->text, "%s", i ? " and " : ", ");
        unit_story(e, l->unit[i]);
        if (phase == PHASE_BP && g->unit[l->unit[i]].grad_bytes)
            text_add(&e->text, ", gradient %s",
                     e->plan->unit[l->unit[i]].hold == HOLD_RESIDENT ? "on the GPU"
                     : e->plan->unit[l->unit[i]].grad == ON_GPU      ? "on the GPU, then stored"
                                                                     : "written to the host");
    }
    text_add(&e->text, "; %s, %s predicted. */\n", what[phase], time);
}

static void emit_load(Emitter *e, const Step *step, const char *name)
{
    const StepList *s = e->steps;
    const Unit *u = &e->graph->unit[step->unit];
    char size[32], time[32];
    text_add(&e->text, "/* ");
    c_text_comment(&e->text, u->name);
    text_add(&e->text, " to the device%s, %s, %s predicted. */\n", step->copy == 2 ? " again" : "",
             size_print(size, u->bytes), time_print(time, step->duration_ns));
    open_step(e, step, name, "");
    for (int i = 0; i < u->n_param; i++) {
        int p = u->param[i];
        const char *to = emit_buffer(e, (step->copy == 2 ? s->param_bp_buffer : s->param_buffer)[p]);
        text_add(&e->text, "    TRY(ferry_copy_h2d(s->load, %s, %s, %" PRId64 "));\n", to,
                 emit_buffer(e, s->source_buffer[p]), e->graph->param[p].bytes);
    }
    close_step(e, step);
}

static void emit_store(Emitter *e, const Step *step, const char *name)
{
    const StepList *s = e->steps;
    const Unit *u = &e->graph->unit[step->unit];
    char size[32], time[32];
    text_add(&e->text, "/* Gradients of ");
    c_text_comment(&e->text, u->name);
    text_add(&e->text, " to the host, %s, %s predicted. */\n", size_print(size, u->grad_bytes),
             time_print(time, step->duration_ns));
    open_step(e, step, name, "");
    for (int i = 0; i < u->n_param; i++) {
        int p = u->param[i];
        if (e->graph->param[p].grad < 0)
            continue;
        const char *to = emit_buffer(e, s->host_grad_buffer[p]);
        text_add(&e->text, "    TRY(ferry_copy_d2h(s->store, %s, %s, %" PRId64 "));\n", to,
                 emit_buffer(e, s->grad_buffer[p]), e->graph->param[p].bytes);
    }
    close_step(e, step);
}

/* Place of a parameter's partial sum: trained parameters in order. */
static int partial_index(const Graph *g, int param)
{
    int n = 0;
    for (int i = 0; i < param; i++)
        n += g->param[i].grad >= 0;
    return n;
}

/* What a step sums or updates from: the gradient on the GPU where it works on COMPUTE. */
static int gradient_buffer(const StepList *s, const Step *step, int param)
{
    return (step->stream == STREAM_COMPUTE ? s->grad_buffer : s->host_grad_buffer)[param];
}

static void emit_sqnorm(Emitter *e, const Step *step, const char *name)
{
    const StepList *s = e->steps;
    const Unit *u = &e->graph->unit[step->unit];
    open_step(e, step, name, "");
    for (int i = 0; i < u->n_param; i++) {
        int p = u->param[i];
        if (e->graph->param[p].grad >= 0)
            text_add(&e->text, "    TRY(ferry_sqnorm(%s, T, &s->partials[s->parity][%d], %s, %" PRId64 "));\n", stream_field(step->stream),
                     partial_index(e->graph, p), emit_buffer(e, gradient_buffer(s, step, p)), e->graph->param[p].count);
    }
    close_step(e, step);
}

static void emit_adamw(Emitter *e, const Step *step, const char *name)
{
    const StepList *s = e->steps;
    const Unit *u = &e->graph->unit[step->unit];
    char time[32];
    text_add(&e->text, "/* Update of ");
    c_text_comment(&e->text, u->name);
    text_add(&e->text, " on the %s, %s; %s predicted. */\n", step->stream == STREAM_COMPUTE ? "GPU" : "CPU",
             e->plan->unit[step->unit].late ? "after the backward pass, hidden behind the next forward"
                                            : "as soon as its gradients are there",
             time_print(time, step->duration_ns));
    open_step(e, step, name, "");
    for (int i = 0; i < u->n_param; i++) {
        int p = u->param[i];
        if (e->graph->param[p].grad < 0)
            continue;
        const size_t start = e->text.size;
        const bool rounds = s->source_buffer[p] != s->master_buffer[p];
        text_add(&e->text, "    TRY(ferry_adamw%s(%s, %s%s, ", rounds ? "_bf16" : "", stream_field(step->stream),
                 rounds ? "" : "T, ", emit_buffer(e, s->master_buffer[p]));
        text_add(&e->text, "%s, ", emit_buffer(e, s->state_m_buffer[p]));
        text_add(&e->text, "%s, ", emit_buffer(e, s->state_v_buffer[p]));
        if (rounds)
            text_add(&e->text, "%s, ", emit_buffer(e, s->source_buffer[p]));
        text_add(&e->text, "%s, %s, %" PRId64 ", s->args));\n", emit_buffer(e, gradient_buffer(s, step, p)),
                 e->plan->clip ? "&s->norm[s->parity][1]" : "NULL", e->graph->param[p].count);
        emit_wrap(e, start);
    }
    close_step(e, step);
}

static void emit_stage(Emitter *e, const Step *step)
{
    const Graph *g = e->graph;
    text_add(&e->text, "/* The caller's batch into pinned memory, once the last one has left it. */\n");
    open_function(e, "stage_inputs", ", const schedule_inputs *in");
    add_waits(e, step);
    for (int i = 0; i < e->steps->n_buffer; i++) {
        const Buffer *b = &e->steps->buffer[i];
        if (b->kind == BUFFER_STAGING)
            text_add(&e->text, "    memcpy(%s, in->%s, %" PRId64 ");\n", emit_buffer(e, i), e->names.buffer[i],
                     g->tensor.at[b->tensor].bytes);
    }
    close_function(e);
}

static void emit_load_input(Emitter *e, const Step *step)
{
    const Graph *g = e->graph;
    const StepList *s = e->steps;
    open_step(e, step, "load_inputs", "");
    for (int i = 0; i < s->n_buffer; i++) {
        if (s->buffer[i].kind != BUFFER_STAGING)
            continue;
        int tensor = s->buffer[i].tensor;
        int to = s->buffer_of_tensor[tensor];
        if (to < 0)
            continue;
        const char *target = emit_buffer(e, to);
        text_add(&e->text, "    TRY(ferry_copy_h2d(s->load, %s, %s, %" PRId64 "));\n", target, emit_buffer(e, i),
                 g->tensor.at[tensor].bytes);
    }
    close_step(e, step);
}

static void emit_store_loss(Emitter *e, const Step *step)
{
    const Graph *g = e->graph;
    open_step(e, step, "store_loss", "");
    int root = g->tensor.at[g->loss].root;
    text_add(&e->text, "    TRY(ferry_copy_d2h(s->store, s->loss[s->parity], %s, sizeof(scalar)));\n",
             emit_buffer(e, e->steps->buffer_of_tensor[root]));
    close_step(e, step);
}

static void emit_norm(Emitter *e, const Step *step)
{
    text_add(&e->text, "/* The global gradient norm, summed in parameter order. */\n");
    open_step(e, step, "grad_norm", ", double clip");
    text_add(&e->text,
             "    TRY(ferry_grad_norm(s->update, &s->norm[s->parity][0], &s->norm[s->parity][1], s->partials[s->parity],\n                        %d, clip));\n",
             partial_index(e->graph, e->graph->n_param));
    close_step(e, step);
}

static void emit_collect(Emitter *e, const Step *step)
{
    text_add(&e->text, "/* The result of the step before this one, which is over or about to be. */\n");
    open_function(e, "collect", "");
    text_add(&e->text, "    if (s->enqueued == 0)\n        return FERRY_OK;\n");
    add_waits(e, step);
    text_add(&e->text, "    take_result(s, !s->parity, s->before + s->enqueued);\n");
    close_function(e);
}

/* The name of a function; out of memory shows in the text, as everywhere while printing. */
static const char *function_name(Emitter *e, const char *verb, const char *object)
{
    const char *name = arena_printf(e->arena, "%s_%s", verb, object);
    e->text.failed |= !name || !verb[0];
    return name ? name : "";
}

/* A layer's backward function comes in parts when a segment that is computed again ends among its operators: numbered. */
static const char *compute_name(Emitter *e, int step)
{
    static const char *const verb[PHASE_COUNT] = {"fwd", "bwd", "again"};
    const Step *s = &e->steps->step[step];
    const int group = step_group(s), part = e->parts.of_step[step];
    int earlier = 0;
    for (int i = 0; i < part; i++) {
        const Step *other = &e->steps->step[e->parts.part[i].first];
        earlier += other->kind == STEP_KERNEL && step_group(other) == group && other->phase == s->phase;
    }
    const char *begin = earlier == 0 ? verb[s->phase] : arena_printf(e->arena, "%s%d", verb[s->phase], earlier + 1);
    return function_name(e, begin ? begin : "", group == e->graph->n_layer ? "loss" : e->names.layer[group]);
}

static void call(Text *to, const char *name, const char *more)
{
    text_add(to, "    TRY(%s(s%s));\n", name, more);
}

Status emit_steps(Emitter *e, ScheduleText *parts)
{
    const StepList *s = e->steps;
    int group = -1;
    Phase phase = PHASE_FP;
    const Step *last_kernel = NULL;
    int *next_compute = ARENA_NEW(e->arena, int, s->n_step + 1);
    if (!next_compute)
        return diag_oom(e->diag);
    next_compute[s->n_step] = -1;
    for (int i = s->n_step - 1; i >= 0; i--)
        next_compute[i] = s->step[i].kind == STEP_KERNEL ? i : next_compute[i + 1];

    for (int i = 0; i < s->n_step; i++) {
        const Step *step = &s->step[i];
        const char *unit = step->unit >= 0 ? e->names.unit[step->unit] : "";
        const char *name = NULL;
        if (step->kind == STEP_KERNEL) {
            if (step_group(step) != group || step->phase != phase) {
                use_part(e, &parts->compute);
                if (group >= 0)
                    close_function(e);
                last_kernel = NULL;
                group = step_group(step);
                phase = step->phase;
                segment_comment(e, i);
                layer_comment(e, i);
                name = compute_name(e, i);
                open_function(e, name, "");
                text_add_bytes(&e->text, parts->pending.at ? parts->pending.at : "", parts->pending.size);
                parts->pending.size = 0;
                use_part(e, &parts->compute);
                call(&parts->body, name, "");
            }
            use_part(e, &parts->compute);
            add_waits(e, step);
            if (!last_kernel)
                add_begin(e, step, compute_name(e, i));
            last_kernel = step;
            Status status = emit_kernel(e, step);
            if (e->parts.part[e->parts.of_step[i]].last == i)
                add_end(e, step);
            add_record(e, step);
            use_part(e, &parts->compute);
            TRY(status);
            continue;
        }
        /* A call sits where the program has it: inside the running function, or at the head of the next one. */
        int next = next_compute[i];
        bool inside = group >= 0 && next >= 0 && step_group(&s->step[next]) == group && s->step[next].phase == phase;
        Text *where = inside ? &parts->compute : next >= 0 && group >= 0 ? &parts->pending : &parts->body;
        if ((step->kind == STEP_STORE || step->kind == STEP_STORE_LOSS) && group >= 0)
            where = &parts->compute;
        bool resident = step->stream == STREAM_COMPUTE; /* square sums and updates in the order of the kernels */
        if (resident)
            where = step->segment >= 0 ? &parts->compute : &parts->body;
        Text *part = step->stream == STREAM_UPDATE || step->stream == STREAM_HOST ? &parts->updates : &parts->copies;
        use_part(e, part);
        switch (step->kind) {
        case STEP_STAGE:
            emit_stage(e, step);
            call(&parts->body, "stage_inputs", ", in");
            break;
        case STEP_LOAD_INPUT:
            emit_load_input(e, step);
            call(where, "load_inputs", "");
            break;
        case STEP_LOAD:
            name = function_name(e, step->copy == 2 ? "reload" : "load", unit);
            emit_load(e, step, name);
            call(where, name, "");
            break;
        case STEP_STORE:
            name = function_name(e, "store", unit);
            emit_store(e, step, name);
            call(where, name, "");
            break;
        case STEP_STORE_LOSS:
            emit_store_loss(e, step);
            call(where, "store_loss", "");
            break;
        case STEP_SQNORM:
            name = function_name(e, "square", unit);
            emit_sqnorm(e, step, name);
            call(resident ? where : &parts->body, name, "");
            break;
        case STEP_NORM:
            emit_norm(e, step);
            call(&parts->body, "grad_norm", ", h->clip");
            break;
        case STEP_ADAMW:
            name = function_name(e, "update", unit);
            emit_adamw(e, step, name);
            call(resident ? where : &parts->body, name, "");
            break;
        case STEP_COLLECT:
            emit_collect(e, step);
            call(&parts->body, "collect", "");
            break;
        case STEP_KERNEL:
            break;
        }
        use_part(e, part);
    }
    use_part(e, &parts->compute);
    if (group >= 0)
        close_function(e);
    use_part(e, &parts->compute);
    return ST_OK;
}
