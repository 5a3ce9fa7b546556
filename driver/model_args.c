/* model_args.c - options about the model, shared by the commands that import one. */
#include "driver/driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_DIM = 0x100, OPT_SHAPE, OPT_LOSS, OPT_TRAIN, OPT_FREEZE, OPT_TIE, OPT_PRECISION, OPT_DUMP };

static const struct argp_option OPTIONS[] = {
    {"dim", OPT_DIM, "NAME=SIZE", 0, "size of a symbolic dimension", 1},
    {"shape", OPT_SHAPE, "INPUT=AxBx..", 0, "whole shape of an input", 1},
    {"loss", OPT_LOSS, "KIND", 0, "cross_entropy[:OUTPUT[,axis=K]], mse[:OUTPUT] or output:NAME", 1},
    {"train", OPT_TRAIN, "GLOB", 0, "train only parameters that match (may be repeated)", 1},
    {"freeze", OPT_FREEZE, "GLOB", 0, "do not train parameters that match (may be repeated)", 1},
    {"tie", OPT_TIE, "A=B", 0, "train B as the same parameter as A; A=B^T when it is the transpose", 1},
    {"precision", OPT_PRECISION, "TYPE", 0, "fp32 (default), bf16 (with fp32 master parameters on the CPU), or fp64 (host, tests)", 1},
    {"dump", OPT_DUMP, "after:PASS", 0, "print what a pass made to standard error", 1},
    {0},
};

static const char *after(struct argp_state *state, const char *option, char *arg, char **left)
{
    char *equals = strchr(arg, '=');
    if (!equals || equals == arg || !equals[1])
        argp_error(state, "--%s: '%s' is not of the form NAME=VALUE", option, arg);
    *left = equals ? arg : NULL;
    if (!equals)
        return "";
    *equals = 0;
    return equals + 1;
}

static int64_t size(struct argp_state *state, const char *option, const char *text, char **end)
{
    errno = 0;
    long long n = strtoll(text, end, 10);
    if (*end == text || errno || n < 1)
        argp_error(state, "--%s: '%s' is not a positive size", option, text);
    return n;
}

static void out_of_memory(struct argp_state *state)
{
    argp_failure(state, ST_FAILED, 0, "out of memory");
}

static void add_text(struct argp_state *state, void *list, const char *arg)
{
    VEC(const char *) *v = list;
    const char **slot = VEC_PUSH(v);
    if (!slot)
        out_of_memory(state);
    else
        *slot = arg;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    ModelArgs *m = state->input;
    char *end = NULL, *name = NULL;
    const char *value = NULL;
    switch (key) {
    case OPT_DIM: {
        value = after(state, "dim", arg, &name);
        DimBinding *b = VEC_PUSH(&m->dim);
        if (!b) {
            out_of_memory(state);
            break;
        }
        *b = (DimBinding){name, size(state, "dim", value, &end)};
        if (*end)
            argp_error(state, "--dim: '%s' is not a positive size", value);
        break;
    }
    case OPT_SHAPE: {
        value = after(state, "shape", arg, &name);
        ShapeBinding *b = VEC_PUSH(&m->shape);
        if (!b) {
            out_of_memory(state);
            break;
        }
        *b = (ShapeBinding){.input = name};
        for (const char *s = value; *s;) {
            if (b->rank == MAX_RANK)
                argp_error(state, "--shape: more than %d dimensions", MAX_RANK);
            b->dim[b->rank++] = size(state, "shape", s, &end);
            if (*end && *end != 'x')
                argp_error(state, "--shape: '%s' is not of the form 8x512", value);
            s = *end ? end + 1 : end;
        }
        break;
    }
    case OPT_LOSS:
        m->options.loss = arg;
        break;
    case OPT_TRAIN:
        add_text(state, &m->train, arg);
        break;
    case OPT_FREEZE:
        add_text(state, &m->freeze, arg);
        break;
    case OPT_TIE:
        add_text(state, &m->tie, arg);
        break;
    case OPT_PRECISION:
        if (strcmp(arg, "fp32") == 0)
            m->options.precision = FERRY_F32;
        else if (strcmp(arg, "fp64") == 0)
            m->options.precision = FERRY_F64;
        else if (strcmp(arg, "bf16") == 0)
            m->options.precision = FERRY_BF16;
        else
            argp_error(state, "--precision: '%s' is not one of fp32, bf16, fp64", arg);
        break;
    case OPT_DUMP:
        if (strncmp(arg, "after:", 6) != 0 || !arg[6])
            argp_error(state, "--dump: '%s' is not of the form after:PASS", arg);
        m->options.dump_after = arg + 6;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

const struct argp model_argp = {OPTIONS, parse, NULL, NULL, NULL, NULL, NULL};

void model_args_finish(ModelArgs *m)
{
    ModelOptions *o = &m->options;
    o->n_dim = m->dim.count;
    o->dim = m->dim.at;
    o->n_shape = m->shape.count;
    o->shape = m->shape.at;
    o->n_train = m->train.count;
    o->train = m->train.at;
    o->n_freeze = m->freeze.count;
    o->freeze = m->freeze.at;
    o->n_tie = m->tie.count;
    o->tie = m->tie.at;
}

void model_args_free(ModelArgs *m)
{
    VEC_FREE(&m->dim);
    VEC_FREE(&m->shape);
    VEC_FREE(&m->train);
    VEC_FREE(&m->freeze);
    VEC_FREE(&m->tie);
}
