// ferryc 0.1.0 25c4a369ea6e53e1d4ac3a7702d88bf1 schedule
/* A training schedule; see schedule.c for what it does. Change the plan, not this file.
 * go-memferry, budget 1.00 GiB, peak 4.00 KiB of device memory, 3.15 KiB pinned on the host.
 * One step: 25.4 us predicted (compute 17.4 us, H2D 12.4 us, D2H 12.4 us, update 11.1 us), 10.29% above the proven bound.
 */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <ferry/ferry.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SCHEDULE_INPUTS = 2,
    SCHEDULE_PARAMS = 5,
    SCHEDULE_CLIP = 0,        /* 1: the plan orders the updates after the norm, so that it can be clipped */
    SCHEDULE_RANDOM_INIT = 0, /* 1: schedule_init draws the weights from SCHEDULE_SEED */
};
#define SCHEDULE_SEED UINT64_C(0)
#define SCHEDULE_PLAN_HASH "10f1046db8f3743e925c092d02f91526" /* of plan.yaml */
#define SCHEDULE_POOL_BYTES INT64_C(4096) /* of the device pool */
#define SCHEDULE_PEAK_BYTES INT64_C(4096) /* with the kernels' scratch */

typedef struct schedule schedule;

/* One batch, copied by schedule_step before it returns. */
typedef struct schedule_inputs {
    const int64_t *ids; /* [4] */
    const float *target; /* [4, 8] */
} schedule_inputs;

/* AdamW, as torch.optim.AdamW. clip: largest gradient norm, 0 for none; needs SCHEDULE_CLIP. */
typedef struct schedule_hyper {
    double lr, beta1, beta2, eps, weight_decay, clip;
    uint64_t seed; /* of dropout: the same seed and step give the same masks, whatever the plan */
} schedule_hyper;

typedef struct schedule_result {
    int64_t step; /* 1, 2, ...; 0 before the first result */
    double loss, grad_norm;
} schedule_result;

/* Opens the device and takes all memory; DIR is the folder of this file (constants, weights). */
ferry_status schedule_open(const char *device, const char *dir, schedule **out);
void schedule_close(schedule *s);
/* First weights: DIR/weights.safetensors, or drawn at random. path: another safetensors file, NULL for these. */
ferry_status schedule_init(schedule *s, const char *path);
/* Enqueues one training step and returns; the result of the step before is then in schedule_last. */
ferry_status schedule_step(schedule *s, const schedule_inputs *in, const schedule_hyper *h);
/* Waits for everything that was enqueued; schedule_last then is the result of the last step. */
ferry_status schedule_sync(schedule *s);
schedule_result schedule_last(const schedule *s);
/* Parameters, running statistics and optimizer state, as DIR/checkpoint.safetensors; both wait for enqueued steps first. */
ferry_status schedule_save(schedule *s, const char *dir);
ferry_status schedule_load(schedule *s, const char *dir);
int64_t schedule_steps(const schedule *s);        /* steps enqueued so far, those before a load included */
int64_t schedule_device_bytes(const schedule *s); /* device memory held at most: pool and scratch */
/* Records when each part of the steps first .. first + count - 1 runs (count at least 2); call it before them. */
ferry_status schedule_record(schedule *s, int64_t first, int count);
/* Waits, then writes the record as run.yaml, which ferryc report --measured shows beside the plan. */
ferry_status schedule_record_write(schedule *s, const char *path);
/* Waits, and brings parameters and state that live on the device to where schedule_params shows them. */
ferry_status schedule_fetch(schedule *s);
/* The parameters and running statistics in host memory (SCHEDULE_PARAMS of them), named as in the model; read them
 * after a fetch. */
const ferry_tensor *schedule_params(const schedule *s);
/* Name, type and shape of each input, in the order of schedule_inputs. */
extern const ferry_tensor schedule_input_specs[SCHEDULE_INPUTS];

#ifdef __cplusplus
}
#endif
#endif
