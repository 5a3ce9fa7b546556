/* ferryc - profile, plan and compile the training of models larger than GPU memory. */
#include "driver/driver.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const Command COMMANDS[] = {
    {"inspect", cmd_inspect, "what a model is made of: layers, parameters, shapes, memory"},
    {"profile", cmd_profile, "measure (or compute) each layer's times            -> profile.yaml"},
    {"plan", cmd_plan, "choose modes, placements and layout for a budget   -> plan.yaml"},
    {"emit", cmd_emit, "write the schedule as C, with trainer and weights  -> schedule/"},
    {"verify", cmd_verify, "prove a plan: order, lifetimes, memory"},
    {"explain", cmd_explain, "each choice of a plan with its reason"},
    {"report", cmd_report, "show a plan: timeline, memory, tables               -> report.html, trace.json"},
    {"diff", cmd_diff, "what changed between two plans"},
    {"check", cmd_check, "gate for CI: slower, larger or changed than a baseline fails"},
    {"export", cmd_export, "put trained weights back into the ONNX model       -> trained.onnx"},
    {"run", cmd_run, "run a model forward once on the host: .npy -> .npy"},
};
enum { N_COMMANDS = sizeof COMMANDS / sizeof *COMMANDS };

static void usage(FILE *to)
{
    fprintf(to, "Usage: ferryc COMMAND [OPTION...]\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-9s %s\n", COMMANDS[i].name, COMMANDS[i].summary);
    fprintf(to, "\n`ferryc COMMAND --help` lists a command's options. `ferryc --version` prints the version.\n");
}

void parse_args(const struct argp *parser, int argc, char **argv, void *input)
{
    argp_err_exit_status = ST_USAGE;
    argp_parse(parser, argc, argv, 0, NULL, input);
}

int finish(const Diag *d, Status status)
{
    if (status != ST_OK)
        diag_print(d, stderr);
    return (int)status;
}

char *install_prefix(Arena *a)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return NULL;
    path[n] = 0;
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path)
            return NULL;
        *slash = 0;
    }
    return arena_strdup(a, path);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return ST_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("ferryc %s\n", FERRY_VERSION);
        return ST_OK;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return ST_OK;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], COMMANDS[i].name) == 0) {
            char name[64];
            snprintf(name, sizeof name, "ferryc %s", COMMANDS[i].name);
            argv[1] = name;
            int code = COMMANDS[i].run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 && code == ST_OK) {
                fprintf(stderr, "ferryc: error: cannot write to standard output\n");
                code = ST_FAILED;
            }
            return code;
        }
    fprintf(stderr, "ferryc: error: '%s' is not a command\n", argv[1]);
    usage(stderr);
    return ST_USAGE;
}
