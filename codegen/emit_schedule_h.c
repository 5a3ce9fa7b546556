/* emit_schedule_h.c - schedule.h: the interface of a schedule. */
#include "codegen/emit_schedule.h"

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

const char *emit_dtype(ferry_dtype t)
{
    static const char *const name[FERRY_DTYPE_COUNT] = {
        [FERRY_F32] = "FERRY_F32", [FERRY_F64] = "FERRY_F64", [FERRY_F16] = "FERRY_F16", [FERRY_BF16] = "FERRY_BF16",
        [FERRY_I64] = "FERRY_I64", [FERRY_I32] = "FERRY_I32", [FERRY_I16] = "FERRY_I16", [FERRY_I8] = "FERRY_I8",
        [FERRY_U64] = "FERRY_U64", [FERRY_U32] = "FERRY_U32", [FERRY_U16] = "FERRY_U16", [FERRY_U8] = "FERRY_U8",
        [FERRY_BOOL] = "FERRY_BOOL",
    };
    return t < FERRY_DTYPE_COUNT ? name[t] : "FERRY_DTYPE_COUNT";
}

void emit_dims(Text *t, const Tensor *x, const char *open, const char *close)
{
    text_add(t, "%s", open);
    for (int i = 0; i < x->rank; i++)
        text_add(t, "%s%" PRId64, i ? ", " : "", x->dim[i]);
    text_add(t, "%s", close);
}

void emit_summary(Emitter *e)
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
    emit_summary(e);
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
        emit_dims(t, x, "/* [", "] */\n");
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
