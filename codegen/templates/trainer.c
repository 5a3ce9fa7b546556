/* A trainer on top of schedule.h: reads batches, takes AdamW steps, writes a log and checkpoints. Edit it freely: ferryc emit
 * does not overwrite a changed trainer.c. */
#include "schedule.h"

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct options {
    const char *data, *device, *log, *record, *save, *resume, *weights;
    int64_t steps;
    schedule_hyper hyper;
} options;

enum { OPT_LR = 256, OPT_DECAY, OPT_CLIP, OPT_BETA1, OPT_BETA2, OPT_EPS, OPT_DEVICE, OPT_LOG, OPT_SAVE, OPT_RESUME, OPT_WEIGHTS, OPT_SEED, OPT_RECORD };

static const struct argp_option OPTIONS[] = {
    {"data", 'd', "DIR", 0, "folder with INPUT.npy for each input, or tokens.bin", 0},
    {"steps", 'n', "N", 0, "steps in total, those before --resume included (default 100)", 0},
    {"lr", OPT_LR, "RATE", 0, "learning rate (default 1e-3)", 0},
    {"weight-decay", OPT_DECAY, "RATE", 0, "decoupled weight decay (default 0.01)", 0},
    {"beta1", OPT_BETA1, "B", 0, "AdamW's first decay (default 0.9)", 0},
    {"beta2", OPT_BETA2, "B", 0, "AdamW's second decay (default 0.999)", 0},
    {"eps", OPT_EPS, "E", 0, "AdamW's epsilon (default 1e-8)", 0},
    {"clip", OPT_CLIP, "NORM", 0, "clip the global gradient norm; needs a plan made with --clip", 0},
    {"device", OPT_DEVICE, "NAME", 0, "device to train on (default host)", 0},
    {"log", OPT_LOG, "FILE", 0, "write one JSON object a step (appended on --resume)", 0},
    {"record", OPT_RECORD, "FILE", 0, "time every part of some steps, for ferryc report --measured", 0},
    {"save", OPT_SAVE, "DIR", 0, "write a checkpoint at the end", 0},
    {"resume", OPT_RESUME, "DIR", 0, "continue from a checkpoint", 0},
    {"seed", OPT_SEED, "N", 0, "seed of dropout (default 0)", 0},
    {"weights", OPT_WEIGHTS, "FILE", 0, "start from these safetensors instead of the model's weights", 0},
    {0},
};

static double number(struct argp_state *state, const char *name, const char *text, double least)
{
    char *end = NULL;
    errno = 0;
    double x = strtod(text, &end);
    if (end == text || *end || errno || !isfinite(x) || x < least)
        argp_error(state, "--%s: '%s' is not a number of at least %g", name, text, least);
    return x;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *o = state->input;
    char *end = NULL;
    switch (key) {
    case 'd':
        o->data = arg;
        break;
    case 'n':
        errno = 0;
        o->steps = strtoll(arg, &end, 10);
        if (end == arg || *end || errno || o->steps < 1)
            argp_error(state, "--steps: '%s' is not a positive number", arg);
        break;
    case OPT_LR:
        o->hyper.lr = number(state, "lr", arg, 0);
        break;
    case OPT_DECAY:
        o->hyper.weight_decay = number(state, "weight-decay", arg, 0);
        break;
    case OPT_BETA1:
        o->hyper.beta1 = number(state, "beta1", arg, 0);
        break;
    case OPT_BETA2:
        o->hyper.beta2 = number(state, "beta2", arg, 0);
        break;
    case OPT_EPS:
        o->hyper.eps = number(state, "eps", arg, 0);
        break;
    case OPT_CLIP:
        o->hyper.clip = number(state, "clip", arg, 0);
        if (!SCHEDULE_CLIP)
            argp_error(state, "--clip: this schedule updates before the norm is known; make the plan with --clip");
        break;
    case OPT_DEVICE:
        o->device = arg;
        break;
    case OPT_LOG:
        o->log = arg;
        break;
    case OPT_RECORD:
        o->record = arg;
        break;
    case OPT_SAVE:
        o->save = arg;
        break;
    case OPT_RESUME:
        o->resume = arg;
        break;
    case OPT_WEIGHTS:
        o->weights = arg;
        break;
    case OPT_SEED:
        errno = 0;
        o->hyper.seed = strtoull(arg, &end, 10);
        if (end == arg || *end || errno || *arg == '-')
            argp_error(state, "--seed: '%s' is not a number from 0 to 2^64 - 1", arg);
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", arg);
        break;
    case ARGP_KEY_END:
        if (!o->data)
            argp_error(state, "--data DIR is missing");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Folder of this program: the schedule's weights and constants lie beside it. */
static const char *own_folder(void)
{
    static char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    char *slash = NULL;
    if (n > 0) {
        path[n] = 0;
        slash = strrchr(path, '/');
    }
    if (!slash)
        return ".";
    *slash = 0;
    return path;
}

static volatile sig_atomic_t interrupted;

static void interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* One result: a line for people, a line in the log; a loss that is not finite ends the training. */
static ferry_status report(const options *o, ferry_log *log, const schedule *s, double *last_ms)
{
    const schedule_result r = schedule_last(s);
    const double ms = now_ms();
    printf("step %lld/%lld  loss %.6f  grad norm %.4f  %.1f ms\n", (long long)r.step, (long long)o->steps, r.loss, r.grad_norm,
           ms - *last_ms);
    fflush(stdout);
    if (log) {
        const ferry_log_line line = {r.step, r.loss, r.grad_norm, ms - *last_ms, schedule_device_bytes(s)};
        const ferry_status status = ferry_log_write(log, &line);
        if (status != FERRY_OK)
            return status;
    }
    *last_ms = ms;
    if (!isfinite(r.loss)) {
        fprintf(stderr, "trainer: the loss of step %lld is not finite; lower --lr or look at the data\n", (long long)r.step);
        return FERRY_BAD_DATA;
    }
    return FERRY_OK;
}

static ferry_status train(const options *o, schedule *s, ferry_data *data, ferry_log *log)
{
    double last_ms = now_ms();
    int64_t reported = schedule_steps(s);
    for (int64_t step = schedule_steps(s); step < o->steps && !interrupted; step++) {
        const void *batch[SCHEDULE_INPUTS];
        ferry_status status = ferry_data_batch(data, step, batch);
        if (status != FERRY_OK)
            return status;
        schedule_inputs in = {0};
/*@inputs@*/
        status = schedule_step(s, &in, &o->hyper);
        if (status != FERRY_OK)
            return status;
        /* The step just enqueued runs on; the one before it is over. */
        if (schedule_last(s).step > reported) {
            reported = schedule_last(s).step;
            status = report(o, log, s, &last_ms);
            if (status != FERRY_OK)
                return status;
        }
    }
    ferry_status status = schedule_sync(s);
    if (status == FERRY_OK && schedule_last(s).step > reported)
        status = report(o, log, s, &last_ms);
    return status;
}

/* Some steps of the steady state: the first three are left out where there are enough. */
static ferry_status record(const options *o, schedule *s)
{
    enum { WARM_UP = 3, MOST = 32 };
    const int64_t done = schedule_steps(s), left = o->steps - done;
    if (left < 2) {
        fprintf(stderr, "trainer: --record needs 2 steps or more, %lld are left; see --steps\n", (long long)left);
        return FERRY_USAGE;
    }
    const int64_t skip = left - 2 < WARM_UP ? left - 2 : WARM_UP, count = left - skip < MOST ? left - skip : MOST;
    return schedule_record(s, done + skip + 1, (int)count);
}

static ferry_status run(const options *o)
{
    schedule *s = NULL;
    ferry_data *data = NULL;
    ferry_log *log = NULL;
    const char *dir = own_folder();
    ferry_status status = schedule_open(o->device, dir, &s);
    if (status == FERRY_OK)
        status = ferry_data_open(o->data, schedule_input_specs, SCHEDULE_INPUTS, &data);
    if (status == FERRY_OK)
        status = o->resume ? schedule_load(s, o->resume) : schedule_init(s, o->weights);
    if (status == FERRY_OK && o->log)
        status = ferry_log_open(o->log, o->resume != NULL, &log);
    if (status == FERRY_OK && o->record)
        status = record(o, s);
    if (status == FERRY_OK)
        status = train(o, s, data, log);
    if (status == FERRY_OK && o->record)
        status = schedule_record_write(s, o->record);
    if (status == FERRY_OK && o->save)
        status = schedule_save(s, o->save);
    ferry_log_close(log);
    ferry_data_close(data);
    schedule_close(s);
    return status;
}

int main(int argc, char **argv)
{
    options o = {.device = "host", .steps = 100, .hyper = {1e-3, 0.9, 0.999, 1e-8, 0.01, 0, 0}};
    const struct argp parser = {OPTIONS, parse, NULL, "Trains the model of this schedule.", NULL, NULL, NULL};
    argp_err_exit_status = FERRY_USAGE;
    if (argp_parse(&parser, argc, argv, 0, NULL, &o) != 0)
        return FERRY_USAGE;
    signal(SIGINT, interrupt);
    const ferry_status status = run(&o);
    if (status != FERRY_OK && *ferry_error())
        fprintf(stderr, "trainer: error: %s\n", ferry_error());
    return (int)status;
}
