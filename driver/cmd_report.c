/* cmd_report.c - ferryc report: a plan as a page and as a trace. */
#include "driver/driver.h"
#include "report/report.h"

#include <string.h>

enum { OPT_FORCE = 0x200, OPT_MEASURED };

typedef struct Args {
    const char *plan, *output, *measured;
    bool overwrite, force;
} Args;

static const struct argp_option OPTIONS[] = {
    {"output", 'o', "FILE", 0, "where to write (default report.html); trace.json is written beside it", 0},
    {"measured", OPT_MEASURED, "RUN", 0, "show a run that the trainer recorded (--record) beside what was predicted", 0},
    {"overwrite", 'f', 0, 0, "overwrite files that ferryc did not write", 0},
    {"force", OPT_FORCE, 0, 0, "accept a plan whose profile or model file changed, or a run of another plan", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Args *a = state->input;
    switch (key) {
    case 'o':
        a->output = arg;
        break;
    case OPT_MEASURED:
        a->measured = arg;
        break;
    case 'f':
        a->overwrite = true;
        break;
    case OPT_FORCE:
        a->force = true;
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

/* Both first lines are part of the format: a comment that a browser skips, and the first member of a JSON object. */
static const char HTML_PREFIX[] = "<!--", HTML_TITLE[] = "report of a plan -->";
static const char JSON_PREFIX[] = "{\"written_by\": \"", JSON_TITLE[] = "timeline of a plan\",";

/* Both may be written, or none is. */
static Status check_both(Diag *d, const Args *args, const char *trace)
{
    bool edited;
    if (args->overwrite)
        return ST_OK;
    TRY(owned_check(d, args->output, HTML_PREFIX, &edited));
    return owned_check(d, trace, JSON_PREFIX, &edited);
}

static Status write_both(Diag *d, const Args *args, const char *trace, const Text *html, const Text *json)
{
    TRY(check_both(d, args, trace)); /* once more: the algorithms took a while */
    TRY(owned_write(d, trace, JSON_PREFIX, JSON_TITLE, json->at, json->size, args->overwrite));
    return owned_write(d, args->output, HTML_PREFIX, HTML_TITLE, html->at, html->size, args->overwrite);
}

static void print_measured(const Report *r)
{
    char a[32], b[32];
    if (r->run)
        printf("one step: predicted %s, measured %s (%.3f)\n", time_print(a, r->time.period_ns),
               time_print(b, r->run->iteration.median_ns),
               (double)r->run->iteration.median_ns / (double)(r->time.period_ns > 0 ? r->time.period_ns : 1));
}

static Status report(Diag *d, Arena *arena, const Args *args, const Graph *g, const Profile *p, Plan *plan)
{
    StepList *steps;
    Report *r;
    TRY(steps_build(d, arena, g, plan, &steps));
    TRY(steps_time(d, steps, p));
    TRY(plan_verify(d, arena, steps, &plan->layout));
    TRY(plan_restate(d, steps, p, plan));
    TRY(report_make(d, arena, g, p, plan, steps, &r));
    if (args->measured) {
        Run *run;
        TRY(run_read(d, arena, args->measured, plan, &r->parts, args->force, &run));
        r->run = run;
    }
    const char *dir = path_dir(arena, args->output);
    const char *trace = dir && strcmp(dir, ".") != 0 ? path_join(arena, dir, "trace.json") : "trace.json";
    if (!trace)
        return diag_oom(d);
    if (strcmp(trace, args->output) == 0)
        return diag_fail(d, ST_USAGE, "-o %s: the trace is written to this name", args->output);
    TRY(check_both(d, args, trace));
    TRY(report_algorithms(d, arena, r));
    Text html = {0}, json = {0};
    Status st = report_html(d, r, &html);
    if (st == ST_OK)
        st = report_trace(d, r, &json);
    if (st == ST_OK)
        st = write_both(d, args, trace, &html, &json);
    if (st == ST_OK)
        print_measured(r);
    if (st == ST_OK)
        printf("%s and %s: two steps of %s; open the first in a browser, the second in Perfetto\n", args->output, trace,
               plan->algorithm);
    text_free(&html);
    text_free(&json);
    return st;
}

int cmd_report(int argc, char **argv)
{
    Diag diag = {0};
    Args args = {.output = "report.html"};
    const struct argp parser = {OPTIONS, parse, "[plan.yaml]", "Shows a plan: timeline, memory, algorithms, layers.",
                                NULL,    NULL,  NULL};
    parse_args(&parser, argc, argv, &args);
    if (!args.plan)
        args.plan = "plan.yaml";
    Arena *arena = arena_open();
    if (!arena)
        return finish(&diag, diag_oom(&diag));
    Plan *plan;
    Profile *profile;
    Model *model = NULL;
    Graph *graph = NULL;
    Status status = plan_read(&diag, arena, args.plan, args.force, NULL, &plan, &profile, &model, &graph);
    if (status == ST_OK)
        status = report(&diag, arena, &args, graph, profile, plan);
    graph_close(graph);
    model_close(model);
    arena_close(arena);
    return finish(&diag, status);
}
