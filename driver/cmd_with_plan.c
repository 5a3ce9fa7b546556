/* cmd_with_plan.c - ferryc emit, verify and explain: what is done with a plan.yaml. */
#include "codegen/codegen.h"
#include "driver/driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_RANDOM = 0x200, OPT_FORCE, OPT_DUMP };

typedef struct Args {
    EmitOptions emit;
    const char *plan, *dump_after;
    bool force;
} Args;

/* A plan with everything that it rests on. */
typedef struct Loaded {
    Arena *arena;
    Plan *plan;
    Profile *profile;
    Model *model;
    Graph *graph;
    StepList *steps;
} Loaded;

static const struct argp_option READ_OPTIONS[] = {
    {"force", OPT_FORCE, 0, 0, "accept a plan whose profile or model file changed", 0},
    {"dump", OPT_DUMP, "after:PASS", 0, "print what a pass made to standard error", 0},
    {0},
};

static error_t parse_read(int key, char *arg, struct argp_state *state)
{
    Args *a = state->input;
    switch (key) {
    case OPT_FORCE:
        a->force = true;
        break;
    case OPT_DUMP:
        if (strncmp(arg, "after:", 6) != 0 || !arg[6])
            argp_error(state, "--dump: '%s' is not of the form after:PASS", arg);
        a->dump_after = arg + 6;
        break;
    case ARGP_KEY_ARG:
        if (a->plan)
            argp_error(state, "one plan at a time: '%s' is one too many", arg);
        a->plan = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp read_argp = {READ_OPTIONS, parse_read, NULL, NULL, NULL, NULL, NULL};

static const struct argp_option EMIT_OPTIONS[] = {
    {"output", 'o', "DIR", 0, "folder to write (default schedule)", 0},
    {"overwrite", 'f', 0, 0, "overwrite files that ferryc did not write", 0},
    {"random-init", OPT_RANDOM, "SEED", 0, "the trainer draws the weights; no weights.safetensors", 0},
    {0},
};

static error_t parse_emit(int key, char *arg, struct argp_state *state)
{
    Args *a = state->input;
    char *end = NULL;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a;
        break;
    case 'o':
        a->emit.dir = arg;
        break;
    case 'f':
        a->emit.force = true;
        break;
    case OPT_RANDOM:
        errno = 0;
        a->emit.seed = strtoull(arg, &end, 10);
        if (end == arg || *end || errno || *arg == '-')
            argp_error(state, "--random-init: '%s' is not a seed (a number from 0 on)", arg);
        a->emit.random_init = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static error_t parse_none(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = state->input;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static Status load(Diag *d, const Args *args, Loaded *l)
{
    l->arena = arena_open();
    if (!l->arena)
        return diag_oom(d);
    bool steps = args->dump_after && strcmp(args->dump_after, "steps") == 0;
    TRY(plan_read(d, l->arena, args->plan, args->force, steps ? NULL : args->dump_after, &l->plan, &l->profile, &l->model, &l->graph));
    TRY(steps_build(d, l->arena, l->graph, l->plan, &l->steps));
    TRY(steps_time(d, l->steps, l->profile));
    if (steps) {
        Text text = {0};
        steps_print(l->steps, &text);
        fputs(text.at ? text.at : "", stderr);
        text_free(&text);
    }
    return ST_OK;
}

static void unload(Loaded *l)
{
    graph_close(l->graph);
    model_close(l->model);
    arena_close(l->arena);
}

int cmd_emit(int argc, char **argv)
{
    Diag diag = {0};
    Loaded l = {0};
    Args args = {.plan = NULL, .emit = {.dir = "schedule"}};
    const struct argp_child children[] = {{&read_argp, 0, NULL, 0}, {0}};
    const struct argp parser = {EMIT_OPTIONS, parse_emit, "[plan.yaml]", "Writes a plan as a C schedule with its trainer.",
                                children,     NULL,       NULL};
    parse_args(&parser, argc, argv, &args);
    if (!args.plan)
        args.plan = "plan.yaml";
    Status status = load(&diag, &args, &l);
    if (status == ST_OK)
        status = plan_verify(&diag, l.arena, l.steps, &l.plan->layout);
    if (status == ST_OK) {
        args.emit.prefix = install_prefix(l.arena);
        if (!args.emit.prefix)
            status = diag_fail(&diag, ST_FAILED, "cannot find out where ferryc is installed (/proc/self/exe)");
    }
    if (status == ST_OK)
        status = emit(&diag, l.arena, l.profile, l.steps, &args.emit);
    if (status == ST_OK)
        printf("%s: schedule.c of %d steps, verified; build it with: make -C %s\n", args.emit.dir, l.steps->n_step,
               args.emit.dir);
    unload(&l);
    return finish(&diag, status);
}

int cmd_verify(int argc, char **argv)
{
    Diag diag = {0};
    Loaded l = {0};
    Args args = {0};
    const struct argp_child children[] = {{&read_argp, 0, NULL, 0}, {0}};
    const struct argp parser = {
        NULL,     parse_none, "[plan.yaml]", "Proves that a plan's steps are ordered and that no two live buffers share memory.",
        children, NULL,       NULL};
    parse_args(&parser, argc, argv, &args);
    if (!args.plan)
        args.plan = "plan.yaml";
    Status status = load(&diag, &args, &l);
    if (status == ST_OK)
        status = plan_verify(&diag, l.arena, l.steps, &l.plan->layout);
    if (status == ST_OK) {
        int waits = 0;
        for (int i = 0; i < l.steps->n_step; i++)
            waits += l.steps->step[i].n_wait;
        printf("%s: proved: %d steps, %d waits, %d buffers; every read after its write, every reuse after the last use, no two "
               "live buffers share a byte\n",
               args.plan, l.steps->n_step, waits, l.steps->n_buffer);
    }
    unload(&l);
    return finish(&diag, status);
}

int cmd_explain(int argc, char **argv)
{
    Diag diag = {0};
    Loaded l = {0};
    Args args = {0};
    const struct argp_child children[] = {{&read_argp, 0, NULL, 0}, {0}};
    const struct argp parser = {NULL,     parse_none, "[plan.yaml]", "Prints each choice of a plan with its reason.",
                                children, NULL,       NULL};
    parse_args(&parser, argc, argv, &args);
    if (!args.plan)
        args.plan = "plan.yaml";
    Status status = load(&diag, &args, &l);
    Text text = {0};
    if (status == ST_OK)
        status = plan_explain(&diag, l.arena, l.graph, l.profile, l.plan, &text);
    if (status == ST_OK)
        fputs(text.at ? text.at : "", stdout);
    text_free(&text);
    unload(&l);
    return finish(&diag, status);
}
