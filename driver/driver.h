/* driver.h - the commands of ferryc. Each reads as its list of passes; only main exits. */
#ifndef FERRY_DRIVER_DRIVER_H
#define FERRY_DRIVER_DRIVER_H

#include <argp.h>

#include "base/base.h"
#include "graph/graph.h"

typedef struct Command {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is "ferryc NAME"; returns the exit code */
    const char *summary;
} Command;

int cmd_inspect(int argc, char **argv);
int cmd_profile(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_emit(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_diff(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_run(int argc, char **argv);

/* Options about the model (--dim, --shape, --loss, --train, --freeze, --tie, --precision, --dump) as an argp child whose input
 * is a ModelArgs. */
typedef struct ModelArgs {
    Diag *diag;
    Arena *arena;
    ModelOptions options;
    VEC(DimBinding) dim;
    VEC(ShapeBinding) shape;
    VEC(const char *) train, freeze, tie;
} ModelArgs;
extern const struct argp model_argp;
void model_args_finish(ModelArgs *m); /* points options at the lists */
void model_args_free(ModelArgs *m);

/* Runs argp with our exit code for usage errors. */
void parse_args(const struct argp *parser, int argc, char **argv, void *input);
/* Prints the error if there is one and gives the exit code. */
int finish(const Diag *d, Status status);

/* The folder above bin/ where this program lies: include/ and lib/ are there. NULL when it cannot be found out. */
char *install_prefix(Arena *a);

#endif
