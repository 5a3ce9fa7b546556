/* ferryc profile - model.onnx -> profile.yaml */
#include "driver/driver.h"
#include "profiler/profile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPT_DEVICE = 0x200, OPT_WARMUP, OPT_REPEATS, OPT_SAVE_DEVICE };

static const struct argp_option OPTIONS[] = {
    {"device", OPT_DEVICE, "NAME", 0, "host (default), cuda:N, or model:FILE.yaml: a device described by numbers", 0},
    {"output", 'o', "FILE", 0, "where to write (default profile.yaml)", 0},
    {"overwrite", 'f', 0, 0, "overwrite a file that ferryc did not write", 0},
    {"warmup", OPT_WARMUP, "N", 0, "runs that are not counted (default 2)", 0},
    {"repeats", OPT_REPEATS, "N", 0, "runs of which the median is taken (default 7)", 0},
    {"save-device", OPT_SAVE_DEVICE, "FILE", 0,
     "also describe the measured device by numbers, for --device model:FILE on machines without it", 0},
    {"verbose", 'v', 0, 0, "print the table of layers", 0},
    {0},
};

typedef struct Args {
    ModelArgs model;
    ProfileOptions options;
    const char *output, *device_file;
    DeviceModel *device;
    bool force, verbose;
} Args;

static int count(struct argp_state *state, const char *option, const char *arg, int least)
{
    char *end = NULL;
    errno = 0;
    long n = strtol(arg, &end, 10);
    if (end == arg || *end || errno || n < least || n > 10000)
        argp_error(state, "--%s: '%s' is not a number from %d to 10000", option, arg, least);
    return (int)n;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->model;
        break;
    case OPT_DEVICE:
        a->options.device = arg;
        break;
    case OPT_SAVE_DEVICE:
        a->device_file = arg;
        a->options.model = &a->device;
        break;
    case 'o':
        a->output = arg;
        break;
    case 'f':
        a->force = true;
        break;
    case 'v':
        a->verbose = true;
        break;
    case OPT_WARMUP:
        a->options.warmup = count(state, "warmup", arg, 0);
        break;
    case OPT_REPEATS:
        a->options.repeats = count(state, "repeats", arg, 1);
        break;
    case ARGP_KEY_ARG:
        if (a->model.options.path)
            argp_error(state, "one model at a time: '%s' is one too many", arg);
        a->model.options.path = arg;
        break;
    case ARGP_KEY_END:
        if (!a->model.options.path)
            argp_error(state, "which model? ferryc profile MODEL.onnx");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* Before minutes of measuring, not after. */
static Status check_outputs(Diag *d, const Args *args)
{
    bool edited;
    if (args->force)
        return ST_OK;
    TRY(owned_check(d, args->output, "#", &edited));
    return args->device_file ? owned_check(d, args->device_file, "#", &edited) : ST_OK;
}

static Status profile(Diag *d, Arena *arena, const Args *args)
{
    Model *model = NULL;
    Graph *graph = NULL;
    Profile *p = NULL;
    TRY(check_outputs(d, args));
    Status status = graph_from_options(d, arena, &args->model.options, &model, &graph);
    if (status == ST_OK)
        status = graph_warn(d, graph);
    if (status == ST_OK)
        status = profile_make(d, arena, graph, &args->model.options, &args->options, &p);
    if (status == ST_OK)
        status = profile_write(d, p, args->output, args->force);
    if (status == ST_OK && args->device_file)
        status = device_model_write(d, args->device, args->device_file, args->force);
    if (status == ST_OK) {
        Text text = {0};
        if (args->verbose)
            profile_print(p, &text);
        int64_t params = 0;
        for (int i = 0; i < graph->n_param; i++)
            params += graph->param[i].state ? 0 : graph->param[i].count;
        text_add(&text, "%s: %d layers, %d units, %lld parameters on %s\n", args->output, graph->n_layer, graph->n_unit,
                 (long long)params, p->device.name);
        fputs(text.at ? text.at : "", stdout);
        text_free(&text);
    }
    graph_close(graph);
    model_close(model);
    return status;
}

int cmd_profile(int argc, char **argv)
{
    Diag diag = {0};
    Arena *arena = arena_open();
    if (!arena)
        return finish(&diag, diag_oom(&diag));
    Args args = {.output = "profile.yaml", .options = {.device = "host", .warmup = 2, .repeats = 7, .progress = true}};
    args.model.diag = &diag;
    args.model.arena = arena;
    args.model.options.precision = FERRY_F32;
    args.model.options.allow_missing_data = true; /* shapes are enough to profile */
    const struct argp_child children[] = {{&model_argp, 0, "Model:", 1}, {0}};
    const struct argp parser = {OPTIONS, parse, "MODEL.onnx", "Measures each layer of a model on a device.", children, NULL, NULL};
    parse_args(&parser, argc, argv, &args);
    model_args_finish(&args.model);
    Status status = profile(&diag, arena, &args);
    model_args_free(&args.model);
    arena_close(arena);
    return finish(&diag, status);
}
