/* ferryc run - a model forward once, on the host: INPUT.npy -> OUTPUT.npy */
#include "driver/driver.h"
#include "graph/exec.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { OPT_INPUT = 0x200 };

static const struct argp_option OPTIONS[] = {
    {"input", OPT_INPUT, "NAME=FILE.npy", 0, "contents of an input; its shape binds symbolic dimensions", 0},
    {"output", 'o', "DIR", 0, "folder for NAME.npy of each output (default outputs)", 0},
    {0},
};

typedef struct InputFile {
    const char *name, *path;
} InputFile;

typedef struct Args {
    ModelArgs model;
    VEC(InputFile) input;
    const char *output;
} Args;

static void add_input(Args *a, struct argp_state *state, char *arg)
{
    char *equals = strrchr(arg, '='); /* a name may hold one, a path hardly does */
    if (!equals || equals == arg || !equals[1])
        argp_error(state, "--input: '%s' is not of the form NAME=FILE.npy", arg);
    InputFile *slot = equals ? VEC_PUSH(&a->input) : NULL;
    if (!slot) {
        argp_failure(state, ST_FAILED, 0, "out of memory");
        return;
    }
    *equals = 0;
    *slot = (InputFile){arg, equals + 1};
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->model;
        break;
    case OPT_INPUT:
        add_input(a, state, arg);
        break;
    case 'o':
        a->output = arg;
        break;
    case ARGP_KEY_ARG:
        if (a->model.options.path)
            argp_error(state, "one model at a time: '%s' is one too many", arg);
        a->model.options.path = arg;
        break;
    case ARGP_KEY_END:
        if (!a->model.options.path)
            argp_error(state, "which model? ferryc run MODEL.onnx --input NAME=FILE.npy -o DIR");
        if (a->model.options.loss || a->model.train.count || a->model.freeze.count || a->model.tie.count)
            argp_error(state, "--loss, --train, --freeze and --tie are about training; nothing is trained here");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static Status read_inputs(Diag *d, const Args *a, ferry_npy **npy, ferry_tensor *feed)
{
    for (int i = 0; i < a->input.count; i++) {
        ferry_status s = ferry_npy_open(a->input.at[i].path, &npy[i]);
        if (s != FERRY_OK)
            return diag_fail(d, (Status)s, "--input %s: %s", a->input.at[i].name, ferry_error());
        feed[i] = *ferry_npy_tensor(npy[i]);
        feed[i].name = a->input.at[i].name;
    }
    return ST_OK;
}

/* A name as a file's: what is no letter, digit, '.', '-' or '_' becomes '_', and no hidden file. */
static const char *file_name(Arena *arena, const char *dir, const char *name)
{
    char *safe = arena_strdup(arena, name);
    if (!safe)
        return NULL;
    for (char *c = safe; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (!letter && *c != '-' && (*c != '.' || c == safe))
            *c = '_';
    }
    return arena_printf(arena, "%s/%s.npy", dir, safe);
}

static Status write_outputs(Diag *d, Arena *arena, const char *dir, const ferry_tensor *out, int count)
{
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return diag_fail(d, ST_FAILED, "%s: cannot make the folder: %s", dir, strerror(errno));
    const char **path = ARENA_NEW(arena, const char *, count);
    for (int i = 0; path && i < count; i++) {
        path[i] = file_name(arena, dir, out[i].name);
        if (!path[i])
            return diag_oom(d);
        for (int k = 0; k < i; k++)
            if (strcmp(path[k], path[i]) == 0)
                return diag_fail(d, ST_MODEL, "outputs '%s' and '%s' would both be %s", out[k].name, out[i].name,
                                 path[i]);
    }
    for (int i = 0; path && i < count; i++) {
        ferry_status s = ferry_npy_write(path[i], &out[i]);
        if (s != FERRY_OK)
            return diag_fail(d, (Status)s, "%s", ferry_error());
        printf("%s: %s [", path[i], ferry_dtype_name(out[i].dtype));
        for (int k = 0; k < out[i].rank; k++)
            printf("%s%lld", k ? ", " : "", (long long)out[i].dim[k]);
        printf("]\n");
    }
    return path ? ST_OK : diag_oom(d);
}

static Status run(Diag *d, Arena *arena, const Args *args)
{
    Model *model = NULL;
    Graph *graph = NULL;
    ferry_npy **npy = ARENA_NEW(arena, ferry_npy *, args->input.count);
    ferry_tensor *feed = ARENA_NEW(arena, ferry_tensor, args->input.count), *out = NULL;
    Status status = npy && feed ? read_inputs(d, args, npy, feed) : diag_oom(d);
    if (status == ST_OK)
        status = forward_from_options(d, arena, &args->model.options, args->input.count, feed, &model, &graph);
    if (status == ST_OK && !(out = ARENA_NEW(arena, ferry_tensor, graph->n_output)))
        status = diag_oom(d);
    if (status == ST_OK)
        status = graph_execute(d, arena, graph, out);
    if (status == ST_OK)
        status = write_outputs(d, arena, args->output, out, graph->n_output);
    for (int i = 0; npy && i < args->input.count; i++)
        ferry_npy_close(npy[i]);
    graph_close(graph);
    model_close(model);
    return status;
}

int cmd_run(int argc, char **argv)
{
    Diag diag = {0};
    Arena *arena = arena_open();
    if (!arena)
        return finish(&diag, diag_oom(&diag));
    Args args = {.output = "outputs"};
    args.model.diag = &diag;
    args.model.arena = arena;
    args.model.options.precision = FERRY_DTYPE_COUNT; /* by the model */
    const struct argp_child children[] = {{&model_argp, 0, "Model:", 1}, {0}};
    const struct argp parser = {OPTIONS,  parse, "MODEL.onnx", "Runs a model forward once on the host backend.",
                                children, NULL,  NULL};
    parse_args(&parser, argc, argv, &args);
    model_args_finish(&args.model);
    Status status = args.model.options.precision == FERRY_BF16
                        ? diag_fail(&diag, ST_USAGE, "--precision bf16 is for training; a forward run takes fp32 or fp64")
                        : run(&diag, arena, &args);
    VEC_FREE(&args.input);
    model_args_free(&args.model);
    arena_close(arena);
    return finish(&diag, status);
}
