/* ferryc plan - profile.yaml -> plan.yaml */
#include "driver/driver.h"
#include "planner/steps.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_MEM = 0x200,
    OPT_HOST,
    OPT_ALGORITHM,
    OPT_MODE,
    OPT_RESERVE,
    OPT_CLIP,
    OPT_DRY_RUN,
    OPT_JSON,
    OPT_FORCE,
    OPT_DUMP,
    OPT_CROSS,
    OPT_RECOMPUTE,
};

static const struct argp_option OPTIONS[] = {
    {"mem-budget", OPT_MEM, "SIZE", 0, "device memory that the plan may use, 24G or 24GB (default: the device's memory)", 0},
    {"host-budget", OPT_HOST, "SIZE", 0, "pinned host memory that the plan may use (default: the host's memory)", 0},
    {"algorithm", OPT_ALGORITHM, "NAME", 0,
     "native-offload, dha, deepspeed-like, memferry, go-memferry, optimal or auto (default: the best that fits)", 0},
    {"mode", OPT_MODE, "GLOB=MODE", 0, "gfgb, dha, dfgb, reload or resident for units whose name matches (may be repeated)", 0},
    {"recompute", OPT_RECOMPUTE, "none|auto|N", 0,
     "activations that the backward pass computes again instead of finding them kept: those of N segments of the forward "
     "pass, or as the budget asks for (default auto, with --algorithm auto and optimal)", 0},
    {"reserve-factor", OPT_RESERVE, "F", 0, "go-memferry: share of the gradient bytes kept on the device, 0 to 1", 0},
    {"clip", OPT_CLIP, 0, 0, "order updates after the gradient norm, so that the trainer can clip it", 0},
    {"cross-check", OPT_CROSS, 0, 0,
     "solve the planning problem once more with GLPK's branch and bound and compare", 0},
    {"output", 'o', "FILE", 0, "where to write (default plan.yaml)", 0},
    {"overwrite", 'f', 0, 0, "overwrite a file that ferryc did not write", 0},
    {"dry-run", OPT_DRY_RUN, 0, 0, "print the result, write nothing", 0},
    {"json", OPT_JSON, 0, 0, "print JSON", 0},
    {"force", OPT_FORCE, 0, 0, "accept a profile whose model file changed", 0},
    {"dump", OPT_DUMP, "after:PASS", 0, "print what a pass made to standard error", 0},
    {0},
};

typedef struct Args {
    PlanOptions options;
    VEC(ModeRule) rule;
    Diag *diag;
    const char *profile, *output;
    bool overwrite, dry_run, json, force, cross;
} Args;

static void parse_size(Args *a, struct argp_state *state, const char *option, const char *arg, int64_t *out)
{
    if (size_parse(a->diag, option, arg, out) != ST_OK) {
        diag_print(a->diag, stderr);
        exit(a->diag->status);
    }
    if (*out <= 0)
        argp_error(state, "%s: '%s' is not a positive size", option, arg);
}

static void parse_rule(Args *a, struct argp_state *state, char *arg)
{
    char *equals = strrchr(arg, '=');
    if (!equals || equals == arg)
        argp_error(state, "--mode: '%s' is not of the form GLOB=MODE", arg);
    *equals = 0;
    for (int m = 0; m < MODE_COUNT; m++)
        if (strcmp(equals + 1, mode_name((Mode)m)) == 0) {
            ModeRule *rule = VEC_PUSH(&a->rule);
            if (!rule)
                argp_failure(state, ST_FAILED, 0, "out of memory");
            else
                *rule = (ModeRule){arg, (Mode)m};
            return;
        }
    argp_error(state, "--mode: '%s' is not one of gfgb, dha, dfgb, reload, resident", equals + 1);
}

static int parse_segments(struct argp_state *state, const char *arg)
{
    char *end = NULL;
    errno = 0;
    long n = strtol(arg, &end, 10);
    if (strcmp(arg, "none") == 0)
        return 0;
    if (strcmp(arg, "auto") == 0)
        return RECOMPUTE_AUTO;
    if (end == arg || *end || errno || n < 1 || n > 1000000)
        argp_error(state, "--recompute: '%s' is not none, auto or a number of segments", arg);
    return (int)n;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Args *a = state->input;
    char *end = NULL;
    switch (key) {
    case OPT_MEM:
        parse_size(a, state, "--mem-budget", arg, &a->options.mem_budget_bytes);
        break;
    case OPT_HOST:
        parse_size(a, state, "--host-budget", arg, &a->options.host_budget_bytes);
        break;
    case OPT_ALGORITHM:
        a->options.algorithm = arg;
        break;
    case OPT_MODE:
        parse_rule(a, state, arg);
        break;
    case OPT_RESERVE:
        errno = 0;
        a->options.reserve_factor = strtod(arg, &end);
        if (end == arg || *end || errno || !(a->options.reserve_factor >= 0 && a->options.reserve_factor <= 1))
            argp_error(state, "--reserve-factor: '%s' is not a number from 0 to 1", arg);
        break;
    case OPT_RECOMPUTE:
        a->options.recompute = parse_segments(state, arg);
        break;
    case OPT_CLIP:
        a->options.clip = true;
        break;
    case 'o':
        a->output = arg;
        break;
    case 'f':
        a->overwrite = true;
        break;
    case OPT_DRY_RUN:
        a->dry_run = true;
        break;
    case OPT_JSON:
        a->json = true;
        break;
    case OPT_CROSS:
        a->cross = true;
        break;
    case OPT_FORCE:
        a->force = true;
        break;
    case OPT_DUMP:
        if (strncmp(arg, "after:", 6) != 0 || !arg[6])
            argp_error(state, "--dump: '%s' is not of the form after:PASS", arg);
        a->options.dump_after = arg + 6;
        break;
    case ARGP_KEY_ARG:
        if (a->profile)
            argp_error(state, "one profile at a time: '%s' is one too many", arg);
        a->profile = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static Status plan(Diag *d, Arena *arena, const Args *args)
{
    Profile *profile = NULL;
    Model *model = NULL;
    Graph *graph = NULL;
    Plan *plan = NULL;
    const char *dump = args->options.dump_after;
    Status status = profile_load(d, arena, args->profile, args->force, dump && plan_is_pass(dump) ? NULL : dump, &profile, &model,
                                 &graph);
    if (status == ST_OK)
        status = plan_make(d, arena, graph, profile, &args->options, &plan);
    if (status == ST_OK && args->cross) {
        Text table = {0};
        status = plan_cross_check(d, arena, graph, profile, &args->options, plan, &table);
        if (table.at)
            fputs(table.at, args->json ? stderr : stdout);
        text_free(&table);
    }
    if (status == ST_OK && !args->dry_run)
        status = plan_write(d, plan->graph, profile, plan, args->output, args->overwrite);
    if (status == ST_OK) {
        Text text = {0};
        if (args->json)
            plan_print_json(plan->graph, plan, &text);
        else
            plan_print_table(plan->graph, plan, &text);
        if (text.failed)
            status = diag_oom(d);
        else
            fputs(text.at, stdout);
        text_free(&text);
    }
    graph_close(graph);
    model_close(model);
    return status;
}

int cmd_plan(int argc, char **argv)
{
    Diag diag = {0};
    Arena *arena = arena_open();
    if (!arena)
        return finish(&diag, diag_oom(&diag));
    Args args = {.output = "plan.yaml", .diag = &diag, .options = {.algorithm = "auto", .reserve_factor = -1, .recompute = RECOMPUTE_AUTO}};
    const struct argp parser = {OPTIONS, parse, "[profile.yaml]", "Plans one training step for a memory budget.", NULL, NULL, NULL};
    parse_args(&parser, argc, argv, &args);
    args.options.n_rule = args.rule.count;
    args.options.rule = args.rule.at;
    if (!args.profile)
        args.profile = "profile.yaml";
    Status status = plan(&diag, arena, &args);
    VEC_FREE(&args.rule);
    arena_close(arena);
    return finish(&diag, status);
}
