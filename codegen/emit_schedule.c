/* emit_schedule.c - schedule.h and schedule.c: one function a layer and direction, in the order of the steps. */
#include "codegen/codegen.h"

#include <inttypes.h>
#include <string.h>

static const char *c_type(ferry_dtype t)
{
    switch (t) {
    case FERRY_F32:
        return "float";
    case FERRY_F64:
        return "double";
    case FERRY_I64:
        return "int64_t";
    case FERRY_I32:
        return "int32_t";
    case FERRY_I16:
        return "int16_t";
    case FERRY_I8:
        return "int8_t";
    case FERRY_U64:
        return "uint64_t";
    case FERRY_U32:
        return "uint32_t";
    case FERRY_U16:
    case FERRY_F16:
    case FERRY_BF16:
        return "uint16_t";
    case FERRY_U8:
    case FERRY_BOOL:
        return "uint8_t";
    case FERRY_DTYPE_COUNT:
        break;
    }
    return "void";
}

static const char *dtype_constant(ferry_dtype t)
{
    static const char *const name[FERRY_DTYPE_COUNT] = {
        [FERRY_F32] = "FERRY_F32", [FERRY_F64] = "FERRY_F64", [FERRY_F16] = "FERRY_F16", [FERRY_BF16] = "FERRY_BF16",
        [FERRY_I64] = "FERRY_I64", [FERRY_I32] = "FERRY_I32", [FERRY_I16] = "FERRY_I16", [FERRY_I8] = "FERRY_I8",
        [FERRY_U64] = "FERRY_U64", [FERRY_U32] = "FERRY_U32", [FERRY_U16] = "FERRY_U16", [FERRY_U8] = "FERRY_U8",
        [FERRY_BOOL] = "FERRY_BOOL",
    };
    return t < FERRY_DTYPE_COUNT ? name[t] : "FERRY_DTYPE_COUNT";
}

static void add_dims(Text *t, const Tensor *x, const char *open, const char *close)
{
    text_add(t, "%s", open);
    for (int i = 0; i < x->rank; i++)
        text_add(t, "%s%" PRId64, i ? ", " : "", x->dim[i]);
    text_add(t, "%s", close);
}

static void add_summary(Emitter *e)
{
    const Plan *p = e->plan;
    char a[32], b[32], c[32];
    Text *t = &e->text;
    text_add(t, " * %s", p->algorithm);
    if (p->budget_bytes > 0)
        text_add(t, ", budget %s", size_print(a, p->budget_bytes));
    text_add(t, ", peak %s of device memory, %s pinned on the host.\n", size_print(b, p->peak_bytes),
             size_print(c, p->host_bytes));
    text_add(t, " * One step: %s predicted (compute %s, ", time_print(a, p->iteration_ns), time_print(b, p->compute_ns));
    text_add(t, "H2D %s, D2H %s, ", time_print(a, p->h2d_ns), time_print(b, p->d2h_ns));
    text_add(t, "update %s), %.2f%% above the proven bound.\n", time_print(a, p->update_ns), plan_gap_percent(p));
}

Status emit_schedule_h(Emitter *e)
{
    const Graph *g = e->graph;
    Text *t = &e->text;
    text_add(t, "/* A training schedule; see schedule.c for what it does. Change the plan, not this file.\n");
    add_summary(e);
    text_add(t, " */\n#ifndef SCHEDULE_H\n#define SCHEDULE_H\n\n#include <ferry/ferry.h>\n\n"
                "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n"
                "enum {\n    SCHEDULE_INPUTS = %d,\n    SCHEDULE_PARAMS = %d,\n"
                "    SCHEDULE_CLIP = %d,        /* 1: the plan orders the updates after the norm, so that it can be clipped */\n"
                "    SCHEDULE_RANDOM_INIT = %d, /* 1: schedule_init draws the weights from SCHEDULE_SEED */\n};\n",
             g->n_input, g->n_param, e->plan->clip ? 1 : 0, e->options->random_init ? 1 : 0);
    text_add(t, "#define SCHEDULE_SEED UINT64_C(%" PRIu64 ")\n", e->options->seed);
    text_add(t, "#define SCHEDULE_PLAN_HASH \"%s\" /* of plan.yaml */\n", e->plan->hash);
    text_add(t, "#define SCHEDULE_POOL_BYTES INT64_C(%" PRId64 ") /* of the device pool */\n", e->plan->layout.reserved_bytes);
    text_add(t, "#define SCHEDULE_PEAK_BYTES INT64_C(%" PRId64 ") /* with the kernels' scratch */\n\n", e->plan->peak_bytes);
    text_add(t, "typedef struct schedule schedule;\n\n/* One batch, copied by schedule_step before it returns. */\n"
                "typedef struct schedule_inputs {\n");
    for (int i = 0; i < g->n_input; i++) {
        const Tensor *x = &g->tensor.at[g->input[i]];
        text_add(t, "    const %s *%s; ", c_type(x->dtype), e->names.input[i]);
        add_dims(t, x, "/* [", "] */\n");
    }
    text_add(t,
             "} schedule_inputs;\n\n"
             "/* AdamW, as torch.optim.AdamW. clip: largest gradient norm, 0 for none; needs SCHEDULE_CLIP. */\n"
             "typedef struct schedule_hyper {\n    double lr, beta1, beta2, eps, weight_decay, clip;\n"
             "    uint64_t seed; /* of dropout: the same seed and step give the same masks, whatever the plan */\n} schedule_hyper;\n\n"
             "typedef struct schedule_result {\n    int64_t step; /* 1, 2, ...; 0 before the first result */\n"
             "    double loss, grad_norm;\n} schedule_result;\n\n"
             "/* Opens the device and takes all memory; DIR is the folder of this file (constants, weights). */\n"
             "ferry_status schedule_open(const char *device, const char *dir, schedule **out);\n"
             "void schedule_close(schedule *s);\n"
             "/* First weights: DIR/weights.safetensors, or drawn at random. path: another safetensors file, NULL for these. */\n"
             "ferry_status schedule_init(schedule *s, const char *path);\n"
             "/* Enqueues one training step and returns; the result of the step before is then in schedule_last. */\n"
             "ferry_status schedule_step(schedule *s, const schedule_inputs *in, const schedule_hyper *h);\n"
             "/* Waits for everything that was enqueued; schedule_last then is the result of the last step. */\n"
             "ferry_status schedule_sync(schedule *s);\n"
             "schedule_result schedule_last(const schedule *s);\n"
             "/* Parameters, running statistics and optimizer state, as DIR/checkpoint.safetensors; both wait for enqueued steps first. */\n"
             "ferry_status schedule_save(schedule *s, const char *dir);\n"
             "ferry_status schedule_load(schedule *s, const char *dir);\n"
             "int64_t schedule_steps(const schedule *s);        /* steps enqueued so far, those before a load included */\n"
             "int64_t schedule_device_bytes(const schedule *s); /* device memory held at most: pool and scratch */\n"
             "/* Records when each part of the steps first .. first + count - 1 runs (count at least 2); call it before them. */\n"
             "ferry_status schedule_record(schedule *s, int64_t first, int count);\n"
             "/* Waits, then writes the record as run.yaml, which ferryc report --measured shows beside the plan. */\n"
             "ferry_status schedule_record_write(schedule *s, const char *path);\n"
             "/* Waits, and brings parameters and state that live on the device to where schedule_params shows them. */\n"
             "ferry_status schedule_fetch(schedule *s);\n"
             "/* The parameters and running statistics in host memory (SCHEDULE_PARAMS of them), named as in the model; read them\n"
             " * after a fetch. */\n"
             "const ferry_tensor *schedule_params(const schedule *s);\n"
             "/* Name, type and shape of each input, in the order of schedule_inputs. */\n"
             "extern const ferry_tensor schedule_input_specs[SCHEDULE_INPUTS];\n\n"
             "#ifdef __cplusplus\n}\n#endif\n#endif\n");
    return t->failed ? diag_oom(e->diag) : ST_OK;
}

/* ---- schedule.c ---------------------------------------------------------------------------------------------------------- */

/* The parts of schedule.c that grow side by side while the steps are visited in program order. */
typedef struct Parts {
    Text copies;  /* load_X, store_X */
    Text compute; /* fwd_X, bwd_X */
    Text updates; /* norm_X, update_X */
    Text body;    /* calls in schedule_step */
    Text pending; /* calls for the next compute function */
} Parts;

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
        add_dims(&e->text, weight, " [", "]");
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

static Status emit_steps(Emitter *e, Parts *parts)
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

/* The type of a master as the schedule writes it: T, but for those that are kept wider. */
static const char *master_type(const StepList *s, int param)
{
    return s->source_buffer[param] != s->master_buffer[param] ? "FERRY_F32" : "T";
}

static bool has_rounded(const StepList *s)
{
    for (int i = 0; i < s->n_buffer; i++)
        if (s->buffer[i].kind == BUFFER_ROUNDED)
            return true;
    return false;
}

/* Where weights and checkpoints find a buffer: itself, or the mirror of what lives on the device. */
static const char *host_place(Emitter *e, int buffer)
{
    return e->steps->buffer[buffer].pool == POOL_DEVICE ? emit_mirror(e, buffer) : emit_buffer(e, buffer);
}

/* What follows whenever parameters were drawn or loaded. */
static void emit_rounding(Emitter *e)
{
    Text *t = &e->text;
    const StepList *s = e->steps;
    if (!has_rounded(s))
        return;
    text_add(t, "/* The copies in bf16, after the parameters were drawn or loaded. */\n"
                "static ferry_status round_params(schedule *s)\n{\n");
    for (int i = 0; i < e->graph->n_param; i++)
        if (s->source_buffer[i] != s->master_buffer[i]) {
            const size_t start = t->size;
            text_add(t, "    TRY(ferry_convert(%s, T, ", host_place(e, s->source_buffer[i]));
            text_add(t, "%s, FERRY_F32, %" PRId64 "));\n", host_place(e, s->master_buffer[i]), e->graph->param[i].count);
            emit_wrap(e, start);
        }
    text_add(t, "    return FERRY_OK;\n}\n\n");
}

static void emit_params_table(Emitter *e)
{
    Text *t = &e->text;
    const Graph *g = e->graph;
    const StepList *s = e->steps;
    text_add(t, "/* The parameters and their optimizer state by name, for weights and checkpoints. */\n"
                "static void name_params(schedule *s)\n{\n");
    for (int i = 0; i < g->n_param; i++) {
        const Param *p = &g->param[i];
        const Tensor *x = &g->tensor.at[p->tensor];
        text_add(t, "    s->param[%d] = (ferry_tensor){", i);
        c_text_string(t, p->name);
        text_add(t, ", %s, %d, {", master_type(s, i), x->rank);
        add_dims(t, x, "", "");
        text_add(t, "}, %s};\n", host_place(e, s->master_buffer[i]));
        if (p->grad < 0)
            continue;
        for (int k = 0; k < 2; k++)
            text_add(t, "    s->moment[%d][%d] = s->param[%d];\n    s->moment[%d][%d].data = %s;\n", k, i, i, k, i,
                     host_place(e, (k ? s->state_v_buffer : s->state_m_buffer)[i]));
    }
    text_add(t, "}\n\n");
}

static void emit_random(Emitter *e)
{
    Text *t = &e->text;
    const Graph *g = e->graph;
    if (!e->options->random_init)
        return;
    text_add(t, "/* Weights ~ N(0, 0.02), biases 0, scales of normalisations 1, the same on every machine. */\n"
                "static ferry_status draw_weights(schedule *s)\n{\n");
    for (int i = 0; i < g->n_param; i++) {
        const Param *p = &g->param[i];
        text_add(t, "    TRY(ferry_random_normal(%s, %s, %" PRId64 ", SCHEDULE_SEED, ",
                 host_place(e, e->steps->master_buffer[i]), master_type(e->steps, i), p->count);
        c_text_string(t, p->name);
        text_add(t, ", %s));\n", p->init == INIT_NORMAL ? "0.0, 0.02" : p->init == INIT_ZERO ? "0.0, 0.0" : "1.0, 0.0");
    }
    text_add(t, "    return FERRY_OK;\n}\n\n");
}

/* The parts in the order of the enumeration, for the recorder. */
static void emit_parts(Emitter *e)
{
    Text *t = &e->text;
    text_add(t, "/* What a recorder calls the parts of a step. */\nstatic const ferry_part PARTS[PART_COUNT] = {\n");
    for (int i = 0; i < e->parts.n; i++) {
        const Part *p = &e->parts.part[i];
        text_add(t, "    {\"%s\", \"%s\", ", step_stream_name(p->stream), p->what);
        c_text_string(t, p->of);
        text_add(t, "},\n");
    }
    text_add(t, "};\n\n");
}

static const char PREAMBLE[] =
    "#define TRY(call)                        \\\n"
    "    do {                                 \\\n"
    "        ferry_status status_ = (call);   \\\n"
    "        if (status_ != FERRY_OK)         \\\n"
    "            return status_;              \\\n"
    "    } while (0)\n"
    "#define D(...) ((const int64_t[]){__VA_ARGS__})\n"
    "/* Every event exists twice, for even and odd steps: this step's and that of the step before. */\n"
    "#define NOW(e) (s->event[s->parity][e])\n"
    "#define LAST(e) (s->event[!s->parity][e])\n"
    "/* Start and end of a part's work, for a recorder; nothing without one. */\n"
    "#define BEGIN(stream, part) TRY(ferry_recorder_begin(s->recorder, s->stream, PART_##part))\n"
    "#define END(stream, part) TRY(ferry_recorder_end(s->recorder, s->stream, PART_##part))\n\n";

static const char HELPERS[] =
    "static ferry_status pinned(schedule *s, int64_t bytes, void **out)\n"
    "{\n"
    "    TRY(ferry_host_alloc(s->device, bytes, out));\n"
    "    s->pinned[s->n_pinned++] = *out;\n"
    "    return FERRY_OK;\n"
    "}\n\n";

static const char CONSTANT_HELPER[] =
    "static ferry_status constant(schedule *s, ferry_weights *file, const char *name, void *to, int64_t bytes)\n"
    "{\n"
    "    const ferry_tensor *t = ferry_weights_find(file, name);\n"
    "    if (!t || ferry_tensor_bytes(t) != bytes) {\n"
    "        fprintf(stderr, \"schedule: constants.safetensors: '%s' is missing or has another size; run ferryc emit again\\n\", "
    "name);\n"
    "        return FERRY_BAD_DATA;\n"
    "    }\n"
    "    void *p = NULL;\n"
    "    TRY(ferry_host_alloc(s->device, bytes, &p));\n"
    "    memcpy(p, t->data, (size_t)bytes);\n"
    "    ferry_status status = ferry_copy_h2d(s->load, to, p, bytes);\n"
    "    if (status == FERRY_OK)\n"
    "        status = ferry_stream_sync(s->load);\n"
    "    ferry_host_free(s->device, p);\n"
    "    return status;\n"
    "}\n\n";

static const char API[] =
    "static ferry_status open_all(schedule *s, const char *device, const char *dir)\n"
    "{\n"
    "    TRY(ferry_device_open(device, &s->device));\n"
    "    TRY(ferry_stream_open(s->device, FERRY_STREAM_COMPUTE, &s->compute));\n"
    "    TRY(ferry_stream_open(s->device, FERRY_STREAM_LOAD, &s->load));\n"
    "    TRY(ferry_stream_open(s->device, FERRY_STREAM_STORE, &s->store));\n"
    "    TRY(ferry_stream_open(s->device, FERRY_STREAM_UPDATE, &s->update));\n"
    "    for (int i = 0; i < 2; i++)\n"
    "        for (int k = 0; k < EVENT_COUNT; k++)\n"
    "            TRY(ferry_event_open(s->device, &s->event[i][k]));\n"
    "    TRY(map_device(s));\n"
    "    TRY(map_host(s));\n"
    "@    name_params(s);\n"
    "    s->dir = strdup(dir);\n"
    "    if (!s->dir)\n"
    "        return FERRY_FAILED;\n"
    "    return load_constants(s, dir);\n"
    "}\n\n"
    "ferry_status schedule_open(const char *device, const char *dir, schedule **out)\n"
    "{\n"
    "    *out = NULL;\n"
    "    schedule *s = calloc(1, sizeof *s);\n"
    "    if (!s)\n"
    "        return FERRY_FAILED;\n"
    "    ferry_status status = open_all(s, device, dir);\n"
    "    if (status != FERRY_OK) {\n"
    "        schedule_close(s);\n"
    "        return status;\n"
    "    }\n"
    "    *out = s;\n"
    "    return FERRY_OK;\n"
    "}\n\n"
    "void schedule_close(schedule *s)\n"
    "{\n"
    "    if (!s)\n"
    "        return;\n"
    "    ferry_stream_close(s->compute);\n"
    "    ferry_stream_close(s->load);\n"
    "    ferry_stream_close(s->store);\n"
    "    ferry_stream_close(s->update);\n"
    "    for (int i = 0; i < 2; i++)\n"
    "        for (int k = 0; k < EVENT_COUNT; k++)\n"
    "            ferry_event_close(s->event[i][k]);\n"
    "    ferry_recorder_close(s->recorder);\n"
    "    for (int i = 0; i < s->n_pinned; i++)\n"
    "        ferry_host_free(s->device, s->pinned[i]);\n"
    "    ferry_pool_close(s->pool);\n"
    "    ferry_device_close(s->device);\n"
    "@    free(s->dir);\n"
    "    free(s);\n"
    "}\n\n"
    "ferry_status schedule_sync(schedule *s)\n"
    "{\n"
    "    TRY(ferry_stream_sync(s->load));\n"
    "    TRY(ferry_stream_sync(s->compute));\n"
    "    TRY(ferry_stream_sync(s->store));\n"
    "    TRY(ferry_stream_sync(s->update));\n"
    "    TRY(ferry_device_status(s->device));\n"
    "    if (s->enqueued > 0)\n"
    "        take_result(s, !s->parity, s->before + s->enqueued);\n"
    "    return FERRY_OK;\n"
    "}\n\n"
    "schedule_result schedule_last(const schedule *s)\n"
    "{\n"
    "    return s->last;\n"
    "}\n\n"
    "int64_t schedule_steps(const schedule *s)\n"
    "{\n"
    "    return s->before + s->enqueued;\n"
    "}\n\n"
    "int64_t schedule_device_bytes(const schedule *s)\n"
    "{\n"
    "    return ferry_device_peak_bytes(s->device) + ferry_device_scratch_bytes(s->device);\n"
    "}\n\n"
    "ferry_status schedule_record(schedule *s, int64_t first, int count)\n"
    "{\n"
    "    TRY(schedule_sync(s));\n"
    "    ferry_recorder_close(s->recorder);\n"
    "    return ferry_recorder_open(s->device, PARTS, PART_COUNT, first, count, &s->recorder);\n"
    "}\n\n"
    "ferry_status schedule_record_write(schedule *s, const char *path)\n"
    "{\n"
    "    TRY(schedule_sync(s));\n"
    "    return ferry_recorder_write(s->recorder, path, SCHEDULE_PLAN_HASH);\n"
    "}\n\n"
    "const ferry_tensor *schedule_params(const schedule *s)\n"
    "{\n"
    "    return s->param;\n"
    "}\n\n"
    "ferry_status schedule_fetch(schedule *s)\n{\n"
    "    TRY(schedule_sync(s));\n"
    "@    return FERRY_OK;\n}\n\n"
    "ferry_status schedule_save(schedule *s, const char *dir)\n"
    "{\n"
    "    TRY(schedule_fetch(s));\n"
    "    return ferry_checkpoint_save(dir, s->param, s->moment[0], s->moment[1], SCHEDULE_PARAMS, schedule_steps(s));\n"
    "}\n\n"
    "ferry_status schedule_load(schedule *s, const char *dir)\n"
    "{\n"
    "    TRY(schedule_sync(s));\n"
    "    int64_t step = 0;\n"
    "    TRY(ferry_checkpoint_load(dir, s->param, s->moment[0], s->moment[1], SCHEDULE_PARAMS, &step));\n"
    "    s->before = step - s->enqueued;\n";

/* API, whose marks @ stand where what lives on the device is opened, closed and fetched. */
static void emit_api(Emitter *e, const char *last)
{
    static const char *const at[] = {"    TRY(open_residents(s));\n", "    close_residents(s);\n",
                                     "    TRY(get_residents(s));\n"};
    int n = 0;
    for (const char *c = API; *c;) {
        size_t length = strcspn(c, "@");
        text_add_bytes(&e->text, c, length);
        c += length;
        if (*c != '@')
            break;
        if (emit_has_residents(e->steps))
            text_add(&e->text, "%s", at[n]);
        n++;
        c++;
    }
    text_add(&e->text, "    return %s;\n}\n", last);
}

Status emit_schedule_c(Emitter *e)
{
    const Graph *g = e->graph;
    const StepList *s = e->steps;
    Parts parts = {0};
    Status status = emit_steps(e, &parts);
    Text *t = &e->text;
    if (status == ST_OK) {
        const char *model = e->profile->options.path ? e->profile->options.path : "a model";
        text_add(t, "/* The training schedule of ");
        c_text_comment(t, strrchr(model, '/') ? strrchr(model, '/') + 1 : model);
        text_add(t, ". Change the plan, not this file.\n");
        add_summary(e);
        text_add(t, " *\n * Streams: compute (kernels), load (host to device), store (device to host), update (AdamW on the CPU).\n"
                    " * An ordering between streams is an event; the waits here are all there are, and none is implied by others.\n"
                    " */\n#include \"schedule.h\"\n\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n");
        text_add(t, "#define T %s\ntypedef %s scalar;\n\n", dtype_constant(g->precision),
                 graph_wide_dtype(g) == FERRY_F64 ? "double" : "float");
        text_add(t, "%s", PREAMBLE);
        text_add(t, "enum {\n");
        for (int i = 0; i < s->n_step; i++)
            if (e->names.event[i])
                text_add(t, "    %s,\n", e->names.event[i]);
        int n_pinned = 0;
        for (int i = 0; i < s->n_buffer; i++)
            if (s->buffer[i].pool == POOL_HOST)
                n_pinned += s->buffer[i].copies;
        text_add(t, "    EVENT_COUNT,\n};\n\nenum {\n");
        for (int i = 0; i < e->parts.n; i++)
            text_add(t, "    PART_%s,\n", e->part_name[i]);
        text_add(t, "    PART_COUNT,\n};\n\n");
        emit_parts(e);
        text_add(t, "struct schedule {\n    ferry_device *device;\n"
                    "    ferry_stream *compute, *load, *store, *update;\n    ferry_event *event[2][EVENT_COUNT];\n"
                    "    ferry_pool *pool;\n    ferry_recorder *recorder; /* NULL: nothing is recorded */\n    char *dir;\n    void *pinned[%d];\n    int n_pinned;\n"
                    "    int parity;       /* of the step that is being enqueued */\n"
                    "    int64_t enqueued; /* steps since schedule_open */\n"
                    "    int64_t before;   /* steps of the checkpoint that was loaded */\n"
                    "    int64_t step;     /* number of the step that is being enqueued */\n"
                    "    uint64_t seed;    /* of dropout in that step */\n"
                    "    ferry_adamw_args args; /* of that step */\n"
                    "    schedule_result last;\n    ferry_tensor param[SCHEDULE_PARAMS];\n"
                    "    ferry_tensor moment[2][SCHEDULE_PARAMS]; /* AdamW's state; data is NULL for a frozen parameter */\n",
                 n_pinned);
        emit_fields(e);
        emit_resident_fields(e);
        text_add(t, "};\n\nconst ferry_tensor schedule_input_specs[SCHEDULE_INPUTS] = {\n");
        for (int i = 0; i < g->n_input; i++) {
            const Tensor *x = &g->tensor.at[g->input[i]];
            text_add(t, "    {");
            c_text_string(t, x->name);
            text_add(t, ", %s, %d, {", dtype_constant(x->dtype), x->rank);
            add_dims(t, x, "", "");
            text_add(t, "}, NULL},\n");
        }
        text_add(t, "};\n\n%s", HELPERS);
        for (int i = 0; i < s->n_buffer; i++)
            if (s->buffer[i].kind == BUFFER_CONST) {
                text_add(t, "%s", CONSTANT_HELPER);
                break;
            }
        status = emit_map(e);
        text_add(t, "static void take_result(schedule *s, int parity, int64_t step)\n{\n"
                    "    s->last = (schedule_result){step, (double)*s->loss[parity], s->norm[parity][0]};\n}\n\n");
        text_add(t, "/* ---- copies %s */\n\n", "-----------------------------------------------------------------");
        text_add_bytes(t, parts.copies.at ? parts.copies.at : "", parts.copies.size);
        text_add(t, "/* ---- forward and backward %s */\n\n", "---------------------------------------------------");
        text_add_bytes(t, parts.compute.at ? parts.compute.at : "", parts.compute.size);
        text_add(t, "/* ---- inputs, updates, results %s */\n\n", "-----------------------------------------------");
        text_add_bytes(t, parts.updates.at ? parts.updates.at : "", parts.updates.size);
        text_add(t, "/* ---- one step %s */\n\n", "---------------------------------------------------------------");
        text_add(t, "ferry_status schedule_step(schedule *s, const schedule_inputs *in, const schedule_hyper *h)\n{\n"
                    "    s->step = s->before + s->enqueued + 1;\n    s->seed = h->seed;\n"
                    "    ferry_recorder_step(s->recorder, s->step);\n"
                    "    s->args = (ferry_adamw_args){h->lr, h->beta1, h->beta2, h->eps, h->weight_decay, s->step};\n");
        text_add_bytes(t, parts.body.at ? parts.body.at : "", parts.body.size);
        text_add(t, "    s->parity = !s->parity;\n    s->enqueued++;\n    return FERRY_OK;\n}\n\n");
        emit_params_table(e);
        emit_random(e);
        emit_rounding(e);
        emit_residents(e);
        if (emit_has_residents(s) && has_rounded(s))
            text_add(t, "static ferry_status put_rounded(schedule *s)\n{\n    TRY(round_params(s));\n    return put_residents(s);\n}\n\n");
        text_add(t, "ferry_status schedule_init(schedule *s, const char *path)\n{\n");
        const char *last = has_rounded(s) ? "round_params(s)" : "FERRY_OK";
        if (emit_has_residents(s))
            last = has_rounded(s) ? "put_rounded(s)" : "put_residents(s)";
        if (e->options->random_init)
            text_add(t, "    if (path)\n        TRY(ferry_weights_load(path, s->param, SCHEDULE_PARAMS));\n    else\n"
                        "        TRY(draw_weights(s));\n    return %s;\n}\n\n", last);
        else
            text_add(t, "    char own[4096];\n    snprintf(own, sizeof own, \"%%s/weights.safetensors\", s->dir);\n"
                        "    TRY(ferry_weights_load(path ? path : own, s->param, SCHEDULE_PARAMS));\n    return %s;\n}\n\n",
                     last);
        emit_api(e, last);
    }
    t->failed |= parts.copies.failed || parts.compute.failed || parts.updates.failed || parts.body.failed ||
                 parts.pending.failed;
    text_free(&parts.copies);
    text_free(&parts.compute);
    text_free(&parts.updates);
    text_free(&parts.body);
    text_free(&parts.pending);
    if (status == ST_OK && t->failed)
        status = diag_oom(e->diag);
    return status;
}
