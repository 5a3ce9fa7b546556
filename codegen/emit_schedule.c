/* emit_schedule.c - schedule.c around the functions of its steps: types, tables, opening, weights, closing. */
#include "codegen/emit_schedule.h"

#include <inttypes.h>
#include <string.h>

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
        emit_dims(t, x, "", "");
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
    ScheduleText parts = {0};
    Status status = emit_steps(e, &parts);
    Text *t = &e->text;
    if (status == ST_OK) {
        const char *model = e->profile->options.path ? e->profile->options.path : "a model";
        text_add(t, "/* The training schedule of ");
        c_text_comment(t, strrchr(model, '/') ? strrchr(model, '/') + 1 : model);
        text_add(t, ". Change the plan, not this file.\n");
        emit_summary(e);
        text_add(t, " *\n * Streams: compute (kernels), load (host to device), store (device to host), update (AdamW on the CPU).\n"
                    " * An ordering between streams is an event; the waits here are all there are, and none is implied by others.\n"
                    " */\n#include \"schedule.h\"\n\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n");
        text_add(t, "#define T %s\ntypedef %s scalar;\n\n", emit_dtype(g->precision),
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
            text_add(t, ", %s, %d, {", emit_dtype(x->dtype), x->rank);
            emit_dims(t, x, "", "");
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
