/* cmd_compare.c - ferryc diff and check: two plans side by side. */
#include "driver/driver.h"
#include "report/report.h"

#include <stdlib.h>
#include <string.h>

enum { OPT_JSON = 0x200, OPT_BASELINE, OPT_TOLERANCE, OPT_FORCE };

typedef struct Args {
    Diag *diag;
    const char *a, *b;
    Tolerance tolerance;
    bool check, json, force;
} Args;

static void fail_now(const Diag *d)
{
    diag_print(d, stderr);
    exit((int)d->status);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Args *a = state->input;
    switch (key) {
    case OPT_JSON:
        a->json = true;
        break;
    case OPT_BASELINE:
        a->a = arg;
        break;
    case OPT_FORCE:
        a->force = true;
        break;
    case OPT_TOLERANCE:
        if (tolerance_parse(a->diag, arg, &a->tolerance) != ST_OK)
            fail_now(a->diag);
        break;
    case ARGP_KEY_ARG:
        if (!a->check && !a->a)
            a->a = arg;
        else if (!a->b)
            a->b = arg;
        else
            argp_error(state, "%s: '%s' is one too many", a->check ? "one plan at a time" : "two plans at a time", arg);
        break;
    case ARGP_KEY_END:
        if (a->check && !a->a)
            argp_error(state, "which plan is the baseline? ferryc check plan.yaml --baseline BASELINE.yaml");
        if (!a->check && !a->b)
            argp_error(state, "which plans? ferryc diff a.yaml b.yaml");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static Status print(Diag *d, const PlanDiff *x, const Args *args)
{
    Text text = {0};
    if (args->json && args->check)
        plan_gate_json(x, &args->tolerance, &text);
    else if (args->json)
        plan_diff_json(x, &text);
    else
        plan_diff_print(x, &text);
    Status st = text.failed ? diag_oom(d) : ST_OK;
    if (st == ST_OK)
        fputs(text.at, stdout);
    text_free(&text);
    return st;
}

static Status diff(Diag *d, Arena *arena, const Args *args)
{
    PlanView *a, *b;
    PlanDiff *x;
    TRY(plan_view_read(d, arena, args->a, &a));
    TRY(plan_view_read(d, arena, args->b, &b));
    TRY(plan_diff(d, arena, a, b, &x));
    return print(d, x, args);
}

/* The plan's own numbers are made again from its choices: an edited plan.yaml keeps the results that it had. */
static Status gate(Diag *d, Arena *arena, const Args *args, const Graph *g, const Profile *p, Plan *plan)
{
    StepList *steps;
    PlanView *a, *b;
    PlanDiff *x;
    TRY(plan_view_read(d, arena, args->a, &a));
    TRY(steps_build(d, arena, g, plan, &steps));
    TRY(steps_time(d, steps, p));
    TRY(plan_verify(d, arena, steps, &plan->layout));
    TRY(plan_restate(d, steps, p, plan));
    TRY(plan_view_of(d, arena, g, plan, &b));
    TRY(plan_diff(d, arena, a, b, &x));
    TRY(print(d, x, args));
    return plan_gate(d, x, &args->tolerance);
}

static Status check(Diag *d, Arena *arena, const Args *args)
{
    Plan *plan;
    Profile *profile;
    Model *model;
    Graph *graph;
    TRY(plan_read(d, arena, args->b, args->force, NULL, &plan, &profile, &model, &graph));
    Status st = gate(d, arena, args, graph, profile, plan);
    graph_close(graph);
    model_close(model);
    return st;
}

int cmd_diff(int argc, char **argv)
{
    static const struct argp_option options[] = {{"json", OPT_JSON, 0, 0, "print JSON", 0}, {0}};
    Diag diag = {0};
    Args args = {.diag = &diag};
    const struct argp parser = {options, parse, "a.yaml b.yaml", "Prints what changed from one plan to another.", NULL,
                                NULL,    NULL};
    parse_args(&parser, argc, argv, &args);
    Arena *arena = arena_open();
    if (!arena)
        return finish(&diag, diag_oom(&diag));
    Status status = diff(&diag, arena, &args);
    arena_close(arena);
    return finish(&diag, status);
}

int cmd_check(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"baseline", OPT_BASELINE, "FILE", 0, "the plan to compare with; its profile and model need not be there", 0},
        {"tolerance", OPT_TOLERANCE, "LIST", 0,
         "how much slower and larger, and how many units may change (default time=1%,peak=1%,modes=0)", 0},
        {"force", OPT_FORCE, 0, 0, "accept a plan whose profile or model file changed", 0},
        {"json", OPT_JSON, 0, 0, "print JSON", 0},
        {0}};
    Diag diag = {0};
    Args args = {.diag = &diag, .check = true, .tolerance = TOLERANCE_DEFAULT};
    const struct argp parser = {
        options,
        parse,
        "[plan.yaml]",
        "Proves a plan and fails (exit 5) when it is slower, larger or more changed than a baseline allows.",
        NULL,
        NULL,
        NULL};
    parse_args(&parser, argc, argv, &args);
    if (!args.b)
        args.b = "plan.yaml";
    Arena *arena = arena_open();
    if (!arena)
        return finish(&diag, diag_oom(&diag));
    Status status = check(&diag, arena, &args);
    arena_close(arena);
    return finish(&diag, status);
}
