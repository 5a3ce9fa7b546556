// ferryc 0.1.0 adfde0abdc9375ca3e1e0f8a60730fed schedule
/* The training schedule of m.onnx. Change the plan, not this file.
 * go-memferry, budget 1.00 GiB, peak 4.00 KiB of device memory, 3.15 KiB pinned on the host.
 * One step: 25.4 us predicted (compute 17.4 us, H2D 12.4 us, D2H 12.4 us, update 11.1 us), 10.29% above the proven bound.
 *
 * Streams: compute (kernels), load (host to device), store (device to host), update (AdamW on the CPU).
 * An ordering between streams is an event; the waits here are all there are, and none is implied by others.
 */
#include "schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define T FERRY_F32
typedef float scalar;

#define TRY(call)                        \
    do {                                 \
        ferry_status status_ = (call);   \
        if (status_ != FERRY_OK)         \
            return status_;              \
    } while (0)
#define D(...) ((const int64_t[]){__VA_ARGS__})
/* Every event exists twice, for even and odd steps: this step's and that of the step before. */
#define NOW(e) (s->event[s->parity][e])
#define LAST(e) (s->event[!s->parity][e])
/* Start and end of a part's work, for a recorder; nothing without one. */
#define BEGIN(stream, part) TRY(ferry_recorder_begin(s->recorder, s->stream, PART_##part))
#define END(stream, part) TRY(ferry_recorder_end(s->recorder, s->stream, PART_##part))

enum {
    INPUTS_LOADED,
    FWD_LOSS,
    BWD_OUT,
    STORED_OUT,
    LOADED_OUT,
    BWD_FC,
    STORED_FC,
    LOADED_FC,
    BWD_E,
    STORED_WTE,
    NORM_DONE,
    UPDATED_WTE,
    UPDATED_FC,
    UPDATED_OUT,
    EVENT_COUNT,
};

enum {
    PART_load_inputs,
    PART_fwd_wte,
    PART_fwd_fc,
    PART_fwd_out,
    PART_fwd_loss,
    PART_store_loss,
    PART_bwd_loss,
    PART_bwd_out,
    PART_store_out,
    PART_load_out,
    PART_square_out,
    PART_bwd_fc,
    PART_store_fc,
    PART_load_fc,
    PART_square_fc,
    PART_bwd_wte,
    PART_store_wte,
    PART_square_wte,
    PART_grad_norm,
    PART_update_wte,
    PART_update_fc,
    PART_update_out,
    PART_COUNT,
};

/* What a recorder calls the parts of a step. */
static const ferry_part PARTS[PART_COUNT] = {
    {"load", "load_input", ""},
    {"compute", "forward", "m.wte"},
    {"compute", "forward", "m.fc"},
    {"compute", "forward", "m.out"},
    {"compute", "forward", ""},
    {"store", "store_loss", ""},
    {"compute", "backward", ""},
    {"compute", "backward", "m.out"},
    {"store", "store", "m.out"},
    {"load", "load", "m.out"},
    {"update", "sqnorm", "m.out"},
    {"compute", "backward", "m.fc"},
    {"store", "store", "m.fc"},
    {"load", "load", "m.fc"},
    {"update", "sqnorm", "m.fc"},
    {"compute", "backward", "m.wte"},
    {"store", "store", "m.wte"},
    {"update", "sqnorm", "m.wte"},
    {"update", "norm", ""},
    {"update", "adamw", "m.wte"},
    {"update", "adamw", "m.fc"},
    {"update", "adamw", "m.out"},
};

struct schedule {
    ferry_device *device;
    ferry_stream *compute, *load, *store, *update;
    ferry_event *event[2][EVENT_COUNT];
    ferry_pool *pool;
    ferry_recorder *recorder; /* NULL: nothing is recorded */
    char *dir;
    void *pinned[28];
    int n_pinned;
    int parity;       /* of the step that is being enqueued */
    int64_t enqueued; /* steps since schedule_open */
    int64_t before;   /* steps of the checkpoint that was loaded */
    int64_t step;     /* number of the step that is being enqueued */
    uint64_t seed;    /* of dropout in that step */
    ferry_adamw_args args; /* of that step */
    schedule_result last;
    ferry_tensor param[SCHEDULE_PARAMS];
    ferry_tensor moment[2][SCHEDULE_PARAMS]; /* AdamW's state; data is NULL for a frozen parameter */
    struct { /* parameters in pinned host memory: what the optimizer updates and DHA reads */
        void *wte_weight;
        void *fc_weight;
        void *fc_bias;
        void *out_weight;
        void *out_bias;
    } host;
    struct { /* copies of parameters in device memory, filled by loads */
        void *out_weight;
        void *out_bias;
        void *fc_weight;
        void *fc_bias;
    } gpu;
    struct { /* gradients in device memory, copied to host_grad by stores */
        void *out_weight;
        void *out_bias;
        void *fc_weight;
        void *fc_bias;
        void *wte_weight;
    } gpu_grad;
    struct { /* gradients in pinned host memory: what the optimizer reads and DHA writes */
        void *wte_weight;
        void *fc_weight;
        void *fc_bias;
        void *out_weight;
        void *out_bias;
    } host_grad;
    struct { /* AdamW's first moments, host memory */
        void *wte_weight;
        void *fc_weight;
        void *fc_bias;
        void *out_weight;
        void *out_bias;
    } moment1;
    struct { /* AdamW's second moments, host memory */
        void *wte_weight;
        void *fc_weight;
        void *fc_bias;
        void *out_weight;
        void *out_bias;
    } moment2;
    struct { /* the caller's inputs in pinned memory */
        void *ids;
        void *target;
    } staging;
    struct { /* the inputs in device memory */
        void *ids;
        void *target;
    } input;
    struct { /* constants of the model in device memory */
        void *scale;
    } constant;
    struct { /* activations and their gradients in device memory */
        void *e;
        void *s;
        void *fc;
        void *fc_tanh;
        void *out;
        void *out_tanh;
        void *difference_14;
        void *square_15;
        void *loss_16;
        void *d_out;
        void *d_fc_tanh;
        void *d_fc;
        void *d_s;
        void *d_e;
    } act;
    double *partials[2]; /* sums of squares of each gradient, in parameter order, of even and odd steps */
    double *norm[2];  /* {gradient norm, clip scale} of even and odd steps */
    scalar *loss[2];
};

const ferry_tensor schedule_input_specs[SCHEDULE_INPUTS] = {
    {"ids", FERRY_I64, 1, {4}, NULL},
    {"target", FERRY_F32, 2, {4, 8}, NULL},
};

static ferry_status pinned(schedule *s, int64_t bytes, void **out)
{
    TRY(ferry_host_alloc(s->device, bytes, out));
    s->pinned[s->n_pinned++] = *out;
    return FERRY_OK;
}

static ferry_status constant(schedule *s, ferry_weights *file, const char *name, void *to, int64_t bytes)
{
    const ferry_tensor *t = ferry_weights_find(file, name);
    if (!t || ferry_tensor_bytes(t) != bytes) {
        fprintf(stderr, "schedule: constants.safetensors: '%s' is missing or has another size; run ferryc emit again\n", name);
        return FERRY_BAD_DATA;
    }
    void *p = NULL;
    TRY(ferry_host_alloc(s->device, bytes, &p));
    memcpy(p, t->data, (size_t)bytes);
    ferry_status status = ferry_copy_h2d(s->load, to, p, bytes);
    if (status == FERRY_OK)
        status = ferry_stream_sync(s->load);
    ferry_host_free(s->device, p);
    return status;
}

/* Device memory: one pool of 4.00 KiB; buffers whose lives do not meet share its bytes. A buffer that found no
 * single free range is stitched from several into one virtual range. */
static ferry_status map_device(schedule *s)
{
    TRY(ferry_pool_open(s->device, SCHEDULE_POOL_BYTES, &s->pool));
    s->input.ids = ferry_pool_at(s->pool, 1408); /* 32 B */
    s->input.target = ferry_pool_at(s->pool, 1024); /* 128 B */
    s->act.e = ferry_pool_at(s->pool, 896); /* 128 B */
    s->act.s = ferry_pool_at(s->pool, 768); /* 128 B */
    s->constant.scale = ferry_pool_at(s->pool, 1472); /* 32 B */
    s->act.fc = ferry_pool_at(s->pool, 512); /* 128 B */
    s->act.fc_tanh = ferry_pool_at(s->pool, 896); /* 128 B */
    s->act.out = ferry_pool_at(s->pool, 1152); /* 128 B */
    s->act.out_tanh = ferry_pool_at(s->pool, 512); /* 128 B */
    s->act.difference_14 = ferry_pool_at(s->pool, 640); /* 128 B */
    s->act.square_15 = ferry_pool_at(s->pool, 1280); /* 128 B */
    s->act.loss_16 = ferry_pool_at(s->pool, 1600); /* 4 B */
    s->act.d_out = ferry_pool_at(s->pool, 1024); /* 128 B */
    s->gpu_grad.out_weight = ferry_pool_at(s->pool, 512); /* 256 B */
    s->gpu_grad.out_bias = ferry_pool_at(s->pool, 1280); /* 32 B */
    s->gpu.out_weight = ferry_pool_at(s->pool, 256); /* 256 B */
    s->gpu.out_bias = ferry_pool_at(s->pool, 0); /* 32 B */
    s->act.d_fc_tanh = ferry_pool_at(s->pool, 1152); /* 128 B */
    s->act.d_fc = ferry_pool_at(s->pool, 1024); /* 128 B */
    s->gpu_grad.fc_weight = ferry_pool_at(s->pool, 256); /* 256 B */
    s->gpu_grad.fc_bias = ferry_pool_at(s->pool, 1344); /* 32 B */
    s->gpu.fc_weight = ferry_pool_at(s->pool, 0); /* 256 B */
    s->gpu.fc_bias = ferry_pool_at(s->pool, 1536); /* 32 B */
    s->act.d_s = ferry_pool_at(s->pool, 768); /* 128 B */
    s->act.d_e = ferry_pool_at(s->pool, 896); /* 128 B */
    s->gpu_grad.wte_weight = ferry_pool_at(s->pool, 0); /* 160 B */
    return FERRY_OK;
}

/* Pinned host memory: 3.15 KiB. */
static ferry_status map_host(schedule *s)
{
    void *p = NULL;
    TRY(pinned(s, 32, &s->staging.ids));
    TRY(pinned(s, 128, &s->staging.target));
    TRY(pinned(s, 160, &s->host.wte_weight));
    TRY(pinned(s, 160, &s->host_grad.wte_weight));
    TRY(pinned(s, 160, &s->moment1.wte_weight));
    TRY(pinned(s, 160, &s->moment2.wte_weight));
    TRY(pinned(s, 256, &s->host.fc_weight));
    TRY(pinned(s, 256, &s->host_grad.fc_weight));
    TRY(pinned(s, 256, &s->moment1.fc_weight));
    TRY(pinned(s, 256, &s->moment2.fc_weight));
    TRY(pinned(s, 32, &s->host.fc_bias));
    TRY(pinned(s, 32, &s->host_grad.fc_bias));
    TRY(pinned(s, 32, &s->moment1.fc_bias));
    TRY(pinned(s, 32, &s->moment2.fc_bias));
    TRY(pinned(s, 256, &s->host.out_weight));
    TRY(pinned(s, 256, &s->host_grad.out_weight));
    TRY(pinned(s, 256, &s->moment1.out_weight));
    TRY(pinned(s, 256, &s->moment2.out_weight));
    TRY(pinned(s, 32, &s->host.out_bias));
    TRY(pinned(s, 32, &s->host_grad.out_bias));
    TRY(pinned(s, 32, &s->moment1.out_bias));
    TRY(pinned(s, 32, &s->moment2.out_bias));
    TRY(pinned(s, 40, &p));
    s->partials[0] = p;
    TRY(pinned(s, 40, &p));
    s->partials[1] = p;
    TRY(pinned(s, 16, &p));
    s->norm[0] = p;
    TRY(pinned(s, 16, &p));
    s->norm[1] = p;
    TRY(pinned(s, 4, &p));
    s->loss[0] = p;
    TRY(pinned(s, 4, &p));
    s->loss[1] = p;
    (void)p;
    return FERRY_OK;
}

/* Constants of the model, from DIR/constants.safetensors. */
static ferry_status load_constants(schedule *s, const char *dir)
{
    ferry_weights *file = NULL;
    char path[4096];
    snprintf(path, sizeof path, "%s/constants.safetensors", dir);
    TRY(ferry_weights_open(path, &file));
    ferry_status status = FERRY_OK;
    const struct {
        const char *name;
        void *to;
        int64_t bytes;
    } list[] = {
        {"scale", s->constant.scale, 32},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list && status == FERRY_OK; i++)
        status = constant(s, file, list[i].name, list[i].to, list[i].bytes);
    ferry_weights_close(file);
    return status;
}

static void take_result(schedule *s, int parity, int64_t step)
{
    s->last = (schedule_result){step, (double)*s->loss[parity], s->norm[parity][0]};
}

/* ---- copies ----------------------------------------------------------------- */

static ferry_status load_inputs(schedule *s)
{
    TRY(ferry_stream_wait(s->load, LAST(BWD_E)));
    BEGIN(load, load_inputs);
    TRY(ferry_copy_h2d(s->load, s->input.ids, s->staging.ids, 32));
    TRY(ferry_copy_h2d(s->load, s->input.target, s->staging.target, 128));
    END(load, load_inputs);
    TRY(ferry_event_record(s->load, NOW(INPUTS_LOADED)));
    return FERRY_OK;
}

static ferry_status store_loss(schedule *s)
{
    TRY(ferry_stream_wait(s->store, NOW(FWD_LOSS)));
    BEGIN(store, store_loss);
    TRY(ferry_copy_d2h(s->store, s->loss[s->parity], s->act.loss_16, sizeof(scalar)));
    END(store, store_loss);
    return FERRY_OK;
}

/* Gradients of m.out to the host, 288 B, 4.14 us predicted. */
static ferry_status store_out(schedule *s)
{
    TRY(ferry_stream_wait(s->store, NOW(BWD_OUT)));
    BEGIN(store, store_out);
    TRY(ferry_copy_d2h(s->store, s->host_grad.out_weight, s->gpu_grad.out_weight, 256));
    TRY(ferry_copy_d2h(s->store, s->host_grad.out_bias, s->gpu_grad.out_bias, 32));
    END(store, store_out);
    TRY(ferry_event_record(s->store, NOW(STORED_OUT)));
    return FERRY_OK;
}

/* m.out to the device, 288 B, 4.14 us predicted. */
static ferry_status load_out(schedule *s)
{
    TRY(ferry_stream_wait(s->load, LAST(UPDATED_OUT)));
    BEGIN(load, load_out);
    TRY(ferry_copy_h2d(s->load, s->gpu.out_weight, s->host.out_weight, 256));
    TRY(ferry_copy_h2d(s->load, s->gpu.out_bias, s->host.out_bias, 32));
    END(load, load_out);
    TRY(ferry_event_record(s->load, NOW(LOADED_OUT)));
    return FERRY_OK;
}

/* Gradients of m.fc to the host, 288 B, 4.14 us predicted. */
static ferry_status store_fc(schedule *s)
{
    TRY(ferry_stream_wait(s->store, NOW(BWD_FC)));
    BEGIN(store, store_fc);
    TRY(ferry_copy_d2h(s->store, s->host_grad.fc_weight, s->gpu_grad.fc_weight, 256));
    TRY(ferry_copy_d2h(s->store, s->host_grad.fc_bias, s->gpu_grad.fc_bias, 32));
    END(store, store_fc);
    TRY(ferry_event_record(s->store, NOW(STORED_FC)));
    return FERRY_OK;
}

/* m.fc to the device, 288 B, 4.14 us predicted. */
static ferry_status load_fc(schedule *s)
{
    BEGIN(load, load_fc);
    TRY(ferry_copy_h2d(s->load, s->gpu.fc_weight, s->host.fc_weight, 256));
    TRY(ferry_copy_h2d(s->load, s->gpu.fc_bias, s->host.fc_bias, 32));
    END(load, load_fc);
    TRY(ferry_event_record(s->load, NOW(LOADED_FC)));
    return FERRY_OK;
}

/* Gradients of m.wte to the host, 160 B, 2.08 us predicted. */
static ferry_status store_wte(schedule *s)
{
    TRY(ferry_stream_wait(s->store, NOW(BWD_E)));
    BEGIN(store, store_wte);
    TRY(ferry_copy_d2h(s->store, s->host_grad.wte_weight, s->gpu_grad.wte_weight, 160));
    END(store, store_wte);
    TRY(ferry_event_record(s->store, NOW(STORED_WTE)));
    return FERRY_OK;
}

/* ---- forward and backward --------------------------------------------------- */

/* m.wte, Embedding [5, 8], DHA; forward, 1.07 us predicted. */
static ferry_status fwd_wte(schedule *s)
{
    TRY(ferry_stream_wait(s->compute, NOW(INPUTS_LOADED)));
    TRY(ferry_stream_wait(s->compute, LAST(UPDATED_WTE)));
    BEGIN(compute, fwd_wte);
    /* embedding [4, 8] of [5, 8], [4]; e */
    TRY(ferry_embedding(s->compute, T, s->act.e, s->host.wte_weight, FERRY_I64, s->input.ids, 4, 5, 8));
    END(compute, fwd_wte);
    return FERRY_OK;
}

/* m.fc, Linear [8, 8], DFGB: read by DHA forward, loaded for backward; forward, 2.15 us predicted. */
static ferry_status fwd_fc(schedule *s)
{
    BEGIN(compute, fwd_fc);
    /* binary MUL [4, 8] of [4, 8], [8]; s */
    TRY(ferry_binary(s->compute, T, FERRY_MUL, s->act.s, s->act.e, s->constant.scale, 2, D(4, 8), D(8, 1), D(0, 1)));
    TRY(ferry_stream_wait(s->compute, LAST(UPDATED_FC)));
    /* y[4, 8] = x[4, 8] * w + b; fc */
    TRY(ferry_linear(s->compute, T, s->act.fc, s->act.s, s->host.fc_weight, s->host.fc_bias, 4, 8, 8, 0));
    END(compute, fwd_fc);
    return FERRY_OK;
}

/* m.out, Linear [8, 8], DFGB: read by DHA forward, loaded for backward; forward, 2.16 us predicted. */
static ferry_status fwd_out(schedule *s)
{
    BEGIN(compute, fwd_out);
    /* unary TANH [4, 8] of [4, 8]; fc_tanh */
    TRY(ferry_unary(s->compute, T, FERRY_TANH, s->act.fc_tanh, s->act.fc, 32));
    TRY(ferry_stream_wait(s->compute, LAST(UPDATED_OUT)));
    /* y[4, 8] = x[4, 8] * w + b; out */
    TRY(ferry_linear(s->compute, T, s->act.out, s->act.fc_tanh, s->host.out_weight, s->host.out_bias, 4, 8, 8, 0));
    END(compute, fwd_out);
    return FERRY_OK;
}

/* After the last layer, with the loss; 2.01 us predicted. */
static ferry_status fwd_loss(schedule *s)
{
    BEGIN(compute, fwd_loss);
    /* fused [4, 8]: v0 = tanh(x0); v1 = (v0 - x1); y0 = v0; y1 = v1; y2 = square(v1); loss */
    TRY(ferry_fused(s->compute, T, s->act.out_tanh, s->act.difference_14, s->act.square_15, s->act.out, s->input.target,
        NULL, NULL, NULL, NULL, NULL, 1, D(32), &(ferry_program){.steps = 3,
        .step = {{FERRY_OP_UNARY, FERRY_TANH, 0, -1, -1, 0}, {FERRY_OP_BINARY, FERRY_SUB, 7, 1, -1, 0},
        {FERRY_OP_UNARY, FERRY_SQUARE, 8, -1, -1, 0}}, .out = {7, 8, 9},
        .type = {[0] = T, [1] = T, [2] = T, [3] = T, [4] = T}, .stride[0] = {1}, .stride[1] = {1}}, 0));
    /* reduce MEAN [] of [4, 8]; loss */
    TRY(ferry_reduce(s->compute, T, FERRY_MEAN, s->act.loss_16, s->act.square_15, 1, D(32), 0x1u, 0));
    END(compute, fwd_loss);
    TRY(ferry_event_record(s->compute, NOW(FWD_LOSS)));
    TRY(store_loss(s));
    return FERRY_OK;
}

/* After the last layer, backward; 1.01 us predicted. */
static ferry_status bwd_loss(schedule *s)
{
    BEGIN(compute, bwd_loss);
    /* fused [4, 8]: y0 = tanh'(square'(0.03125 * 1, x0), x1); out_tanh */
    TRY(ferry_fused(s->compute, T, s->act.d_out, NULL, NULL, s->act.difference_14, s->act.out_tanh, NULL, NULL, NULL,
        NULL, NULL, 1, D(32), &(ferry_program){.steps = 4, .step = {{FERRY_OP_FILL, FERRY_FN_NONE, -1, -1, -1, 1},
        {FERRY_OP_COPY, FERRY_FN_NONE, 7, -1, -1, 0.03125}, {FERRY_OP_UNARY_GRAD, FERRY_SQUARE, 8, 0, -1, 0},
        {FERRY_OP_UNARY_GRAD, FERRY_TANH, 9, -1, 1, 0}}, .out = {10, -1, -1}, .type = {[0] = T, [3] = T, [4] = T},
        .stride[0] = {1}, .stride[1] = {1}}, 0));
    END(compute, bwd_loss);
    return FERRY_OK;
}

/* m.out, Linear [8, 8], DFGB: read by DHA forward, loaded for backward, gradient on the GPU, then stored; backward, 4.01 us predicted. */
static ferry_status bwd_out(schedule *s)
{
    BEGIN(compute, bwd_out);
    /* dw[8, 8] = x^T * dy; out */
    TRY(ferry_linear_dw(s->compute, T, s->gpu_grad.out_weight, s->act.fc_tanh, s->act.d_out, 4, 8, 8, 0));
    /* reduce SUM [8] of [4, 8]; out */
    TRY(ferry_reduce(s->compute, T, FERRY_SUM, s->gpu_grad.out_bias, s->act.d_out, 2, D(4, 8), 0x1u, 0));
    TRY(ferry_event_record(s->compute, NOW(BWD_OUT)));
    TRY(store_out(s));
    TRY(load_out(s));
    TRY(ferry_stream_wait(s->compute, NOW(LOADED_OUT)));
    /* dx[4, 8] = dy[4, 8] * w^T; out */
    TRY(ferry_linear_dx(s->compute, T, s->act.d_fc_tanh, s->act.d_out, s->gpu.out_weight, 4, 8, 8, 0));
    /* unary_grad TANH [4, 8] of [4, 8], [4, 8]; fc_tanh */
    TRY(ferry_unary_grad(s->compute, T, FERRY_TANH, s->act.d_fc, s->act.d_fc_tanh, NULL, s->act.fc_tanh, 32, 0));
    END(compute, bwd_out);
    return FERRY_OK;
}

/* m.fc, Linear [8, 8], DFGB: read by DHA forward, loaded for backward, gradient on the GPU, then stored; backward, 4.01 us predicted. */
static ferry_status bwd_fc(schedule *s)
{
    BEGIN(compute, bwd_fc);
    /* dw[8, 8] = x^T * dy; fc */
    TRY(ferry_linear_dw(s->compute, T, s->gpu_grad.fc_weight, s->act.s, s->act.d_fc, 4, 8, 8, 0));
    /* reduce SUM [8] of [4, 8]; fc */
    TRY(ferry_reduce(s->compute, T, FERRY_SUM, s->gpu_grad.fc_bias, s->act.d_fc, 2, D(4, 8), 0x1u, 0));
    TRY(ferry_event_record(s->compute, NOW(BWD_FC)));
    TRY(store_fc(s));
    TRY(load_fc(s));
    TRY(ferry_stream_wait(s->compute, NOW(LOADED_FC)));
    /* dx[4, 8] = dy[4, 8] * w^T; fc */
    TRY(ferry_linear_dx(s->compute, T, s->act.d_s, s->act.d_fc, s->gpu.fc_weight, 4, 8, 8, 0));
    /* binary_grad_a MUL [4, 8] of [4, 8], [8]; s */
    TRY(ferry_binary_grad_a(s->compute, T, FERRY_MUL, s->act.d_e, s->act.d_s, NULL, s->constant.scale, 2, D(4, 8),
        D(8, 1), D(0, 1)));
    END(compute, bwd_fc);
    return FERRY_OK;
}

/* m.wte, Embedding [5, 8], DHA, gradient on the GPU, then stored; backward, 1.00 us predicted. */
static ferry_status bwd_wte(schedule *s)
{
    BEGIN(compute, bwd_wte);
    /* embedding_grad [5, 8] of [4, 8], [4]; e */
    TRY(ferry_embedding_grad(s->compute, T, s->gpu_grad.wte_weight, s->act.d_e, FERRY_I64, s->input.ids, 4, 5, 8, 0));
    END(compute, bwd_wte);
    TRY(ferry_event_record(s->compute, NOW(BWD_E)));
    TRY(store_wte(s));
    return FERRY_OK;
}

/* ---- inputs, updates, results ----------------------------------------------- */

/* The caller's batch into pinned memory, once the last one has left it. */
static ferry_status stage_inputs(schedule *s, const schedule_inputs *in)
{
    TRY(ferry_event_sync(LAST(INPUTS_LOADED)));
    memcpy(s->staging.ids, in->ids, 32);
    memcpy(s->staging.target, in->target, 128);
    return FERRY_OK;
}

static ferry_status square_out(schedule *s)
{
    TRY(ferry_stream_wait(s->update, NOW(STORED_OUT)));
    BEGIN(update, square_out);
    TRY(ferry_sqnorm(s->update, T, &s->partials[s->parity][3], s->host_grad.out_weight, 64));
    TRY(ferry_sqnorm(s->update, T, &s->partials[s->parity][4], s->host_grad.out_bias, 8));
    END(update, square_out);
    return FERRY_OK;
}

static ferry_status square_fc(schedule *s)
{
    TRY(ferry_stream_wait(s->update, NOW(STORED_FC)));
    BEGIN(update, square_fc);
    TRY(ferry_sqnorm(s->update, T, &s->partials[s->parity][1], s->host_grad.fc_weight, 64));
    TRY(ferry_sqnorm(s->update, T, &s->partials[s->parity][2], s->host_grad.fc_bias, 8));
    END(update, square_fc);
    return FERRY_OK;
}

static ferry_status square_wte(schedule *s)
{
    TRY(ferry_stream_wait(s->update, NOW(STORED_WTE)));
    BEGIN(update, square_wte);
    TRY(ferry_sqnorm(s->update, T, &s->partials[s->parity][0], s->host_grad.wte_weight, 40));
    END(update, square_wte);
    return FERRY_OK;
}

/* The global gradient norm, summed in parameter order. */
static ferry_status grad_norm(schedule *s, double clip)
{
    BEGIN(update, grad_norm);
    TRY(ferry_grad_norm(s->update, &s->norm[s->parity][0], &s->norm[s->parity][1], s->partials[s->parity],
                        5, clip));
    END(update, grad_norm);
    TRY(ferry_event_record(s->update, NOW(NORM_DONE)));
    return FERRY_OK;
}

/* Update of m.wte on the CPU, after the backward pass, hidden behind the next forward; 1.02 us predicted. */
static ferry_status update_wte(schedule *s)
{
    BEGIN(update, update_wte);
    TRY(ferry_adamw(s->update, T, s->host.wte_weight, s->moment1.wte_weight, s->moment2.wte_weight,
        s->host_grad.wte_weight, NULL, 40, s->args));
    END(update, update_wte);
    TRY(ferry_event_record(s->update, NOW(UPDATED_WTE)));
    return FERRY_OK;
}

/* Update of m.fc on the CPU, after the backward pass, hidden behind the next forward; 2.04 us predicted. */
static ferry_status update_fc(schedule *s)
{
    BEGIN(update, update_fc);
    TRY(ferry_adamw(s->update, T, s->host.fc_weight, s->moment1.fc_weight, s->moment2.fc_weight, s->host_grad.fc_weight,
        NULL, 64, s->args));
    TRY(ferry_adamw(s->update, T, s->host.fc_bias, s->moment1.fc_bias, s->moment2.fc_bias, s->host_grad.fc_bias, NULL,
        8, s->args));
    END(update, update_fc);
    TRY(ferry_event_record(s->update, NOW(UPDATED_FC)));
    return FERRY_OK;
}

/* Update of m.out on the CPU, after the backward pass, hidden behind the next forward; 2.04 us predicted. */
static ferry_status update_out(schedule *s)
{
    BEGIN(update, update_out);
    TRY(ferry_adamw(s->update, T, s->host.out_weight, s->moment1.out_weight, s->moment2.out_weight,
        s->host_grad.out_weight, NULL, 64, s->args));
    TRY(ferry_adamw(s->update, T, s->host.out_bias, s->moment1.out_bias, s->moment2.out_bias, s->host_grad.out_bias,
        NULL, 8, s->args));
    END(update, update_out);
    TRY(ferry_event_record(s->update, NOW(UPDATED_OUT)));
    return FERRY_OK;
}

/* The result of the step before this one, which is over or about to be. */
static ferry_status collect(schedule *s)
{
    if (s->enqueued == 0)
        return FERRY_OK;
    TRY(ferry_event_sync(LAST(NORM_DONE)));
    take_result(s, !s->parity, s->before + s->enqueued);
    return FERRY_OK;
}

/* ---- one step --------------------------------------------------------------- */

ferry_status schedule_step(schedule *s, const schedule_inputs *in, const schedule_hyper *h)
{
    s->step = s->before + s->enqueued + 1;
    s->seed = h->seed;
    ferry_recorder_step(s->recorder, s->step);
    s->args = (ferry_adamw_args){h->lr, h->beta1, h->beta2, h->eps, h->weight_decay, s->step};
    TRY(stage_inputs(s, in));
    TRY(load_inputs(s));
    TRY(fwd_wte(s));
    TRY(fwd_fc(s));
    TRY(fwd_out(s));
    TRY(fwd_loss(s));
    TRY(bwd_loss(s));
    TRY(bwd_out(s));
    TRY(square_out(s));
    TRY(bwd_fc(s));
    TRY(square_fc(s));
    TRY(bwd_wte(s));
    TRY(square_wte(s));
    TRY(grad_norm(s, h->clip));
    TRY(update_wte(s));
    TRY(update_fc(s));
    TRY(update_out(s));
    TRY(collect(s));
    s->parity = !s->parity;
    s->enqueued++;
    return FERRY_OK;
}

/* The parameters and their optimizer state by name, for weights and checkpoints. */
static void name_params(schedule *s)
{
    s->param[0] = (ferry_tensor){"m.wte.weight", T, 2, {5, 8}, s->host.wte_weight};
    s->moment[0][0] = s->param[0];
    s->moment[0][0].data = s->moment1.wte_weight;
    s->moment[1][0] = s->param[0];
    s->moment[1][0].data = s->moment2.wte_weight;
    s->param[1] = (ferry_tensor){"m.fc.weight", T, 2, {8, 8}, s->host.fc_weight};
    s->moment[0][1] = s->param[1];
    s->moment[0][1].data = s->moment1.fc_weight;
    s->moment[1][1] = s->param[1];
    s->moment[1][1].data = s->moment2.fc_weight;
    s->param[2] = (ferry_tensor){"m.fc.bias", T, 1, {8}, s->host.fc_bias};
    s->moment[0][2] = s->param[2];
    s->moment[0][2].data = s->moment1.fc_bias;
    s->moment[1][2] = s->param[2];
    s->moment[1][2].data = s->moment2.fc_bias;
    s->param[3] = (ferry_tensor){"m.out.weight", T, 2, {8, 8}, s->host.out_weight};
    s->moment[0][3] = s->param[3];
    s->moment[0][3].data = s->moment1.out_weight;
    s->moment[1][3] = s->param[3];
    s->moment[1][3].data = s->moment2.out_weight;
    s->param[4] = (ferry_tensor){"m.out.bias", T, 1, {8}, s->host.out_bias};
    s->moment[0][4] = s->param[4];
    s->moment[0][4].data = s->moment1.out_bias;
    s->moment[1][4] = s->param[4];
    s->moment[1][4].data = s->moment2.out_bias;
}

ferry_status schedule_init(schedule *s, const char *path)
{
    char own[4096];
    snprintf(own, sizeof own, "%s/weights.safetensors", s->dir);
    TRY(ferry_weights_load(path ? path : own, s->param, SCHEDULE_PARAMS));
    return FERRY_OK;
}

static ferry_status open_all(schedule *s, const char *device, const char *dir)
{
    TRY(ferry_device_open(device, &s->device));
    TRY(ferry_stream_open(s->device, FERRY_STREAM_COMPUTE, &s->compute));
    TRY(ferry_stream_open(s->device, FERRY_STREAM_LOAD, &s->load));
    TRY(ferry_stream_open(s->device, FERRY_STREAM_STORE, &s->store));
    TRY(ferry_stream_open(s->device, FERRY_STREAM_UPDATE, &s->update));
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < EVENT_COUNT; k++)
            TRY(ferry_event_open(s->device, &s->event[i][k]));
    TRY(map_device(s));
    TRY(map_host(s));
    name_params(s);
    s->dir = strdup(dir);
    if (!s->dir)
        return FERRY_FAILED;
    return load_constants(s, dir);
}

ferry_status schedule_open(const char *device, const char *dir, schedule **out)
{
    *out = NULL;
    schedule *s = calloc(1, sizeof *s);
    if (!s)
        return FERRY_FAILED;
    ferry_status status = open_all(s, device, dir);
    if (status != FERRY_OK) {
        schedule_close(s);
        return status;
    }
    *out = s;
    return FERRY_OK;
}

void schedule_close(schedule *s)
{
    if (!s)
        return;
    ferry_stream_close(s->compute);
    ferry_stream_close(s->load);
    ferry_stream_close(s->store);
    ferry_stream_close(s->update);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < EVENT_COUNT; k++)
            ferry_event_close(s->event[i][k]);
    ferry_recorder_close(s->recorder);
    for (int i = 0; i < s->n_pinned; i++)
        ferry_host_free(s->device, s->pinned[i]);
    ferry_pool_close(s->pool);
    ferry_device_close(s->device);
    free(s->dir);
    free(s);
}

ferry_status schedule_sync(schedule *s)
{
    TRY(ferry_stream_sync(s->load));
    TRY(ferry_stream_sync(s->compute));
    TRY(ferry_stream_sync(s->store));
    TRY(ferry_stream_sync(s->update));
    TRY(ferry_device_status(s->device));
    if (s->enqueued > 0)
        take_result(s, !s->parity, s->before + s->enqueued);
    return FERRY_OK;
}

schedule_result schedule_last(const schedule *s)
{
    return s->last;
}

int64_t schedule_steps(const schedule *s)
{
    return s->before + s->enqueued;
}

int64_t schedule_device_bytes(const schedule *s)
{
    return ferry_device_peak_bytes(s->device) + ferry_device_scratch_bytes(s->device);
}

ferry_status schedule_record(schedule *s, int64_t first, int count)
{
    TRY(schedule_sync(s));
    ferry_recorder_close(s->recorder);
    return ferry_recorder_open(s->device, PARTS, PART_COUNT, first, count, &s->recorder);
}

ferry_status schedule_record_write(schedule *s, const char *path)
{
    TRY(schedule_sync(s));
    return ferry_recorder_write(s->recorder, path, SCHEDULE_PLAN_HASH);
}

const ferry_tensor *schedule_params(const schedule *s)
{
    return s->param;
}

ferry_status schedule_fetch(schedule *s)
{
    TRY(schedule_sync(s));
    return FERRY_OK;
}

ferry_status schedule_save(schedule *s, const char *dir)
{
    TRY(schedule_fetch(s));
    return ferry_checkpoint_save(dir, s->param, s->moment[0], s->moment[1], SCHEDULE_PARAMS, schedule_steps(s));
}

ferry_status schedule_load(schedule *s, const char *dir)
{
    TRY(schedule_sync(s));
    int64_t step = 0;
    TRY(ferry_checkpoint_load(dir, s->param, s->moment[0], s->moment[1], SCHEDULE_PARAMS, &step));
    s->before = step - s->enqueued;
    return FERRY_OK;
}
