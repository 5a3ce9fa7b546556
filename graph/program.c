/* program.c - the program of a FUSED call as expressions. */
#include <ctype.h>
#include <string.h>

#include "graph/call.h"

static void add_value(const ferry_kernel *c, int value, const int *uses, Text *to);

static const char *sign_of(ferry_fn fn)
{
    switch (fn) {
    case FERRY_ADD:
        return "+";
    case FERRY_SUB:
        return "-";
    case FERRY_MUL:
        return "*";
    case FERRY_DIV:
        return "/";
    case FERRY_EQUAL:
        return "==";
    case FERRY_LESS:
        return "<";
    case FERRY_LESS_EQUAL:
        return "<=";
    case FERRY_GREATER:
        return ">";
    case FERRY_GREATER_EQUAL:
        return ">=";
    default:
        return NULL;
    }
}

/* FERRY_TANH as tanh. */
static void add_function(ferry_fn fn, const char *after, Text *to)
{
    for (const char *s = ferry_fn_name(fn) + strlen("FERRY_"); *s != '\0'; s++)
        text_add(to, "%c", tolower((unsigned char)*s));
    text_add(to, "%s", after);
}

static void add_arguments(const ferry_kernel *c, const ferry_program_step *s, const int *uses, Text *to)
{
    const int value[3] = {s->a, s->b, s->c};
    bool first = true;
    text_add(to, "(");
    for (int i = 0; i < 3; i++) {
        if (value[i] < 0)
            continue;
        text_add(to, first ? "" : ", ");
        add_value(c, value[i], uses, to);
        first = false;
    }
    text_add(to, ")");
}

static void add_step(const ferry_kernel *c, const ferry_program_step *s, const int *uses, Text *to)
{
    const char *sign = s->op == FERRY_OP_BINARY ? sign_of(s->fn) : NULL;
    switch (s->op) {
    case FERRY_OP_FILL:
        text_add(to, "%.9g", s->alpha);
        return;
    case FERRY_OP_COPY:
        text_add(to, s->b >= 0 ? "(" : "");
        if (s->b >= 0) {
            add_value(c, s->b, uses, to);
            text_add(to, " + ");
        }
        if (s->alpha != 1)
            text_add(to, "%.9g * ", s->alpha);
        add_value(c, s->a, uses, to);
        text_add(to, s->b >= 0 ? ")" : "");
        return;
    case FERRY_OP_WHERE:
        text_add(to, "where");
        break;
    case FERRY_OP_UNARY_GRAD:
        add_function(s->fn, "'", to);
        break;
    case FERRY_OP_BINARY_GRAD_A:
        add_function(s->fn, "'a", to);
        break;
    case FERRY_OP_BINARY_GRAD_B:
        add_function(s->fn, "'b", to);
        break;
    default:
        if (sign != NULL) {
            text_add(to, "(");
            add_value(c, s->a, uses, to);
            text_add(to, " %s ", sign);
            add_value(c, s->b, uses, to);
            text_add(to, ")");
            return;
        }
        add_function(s->fn, "", to);
        break;
    }
    add_arguments(c, s, uses, to);
}

static void add_value(const ferry_kernel *c, int value, const int *uses, Text *to)
{
    const int step = value - FERRY_PROGRAM_INPUTS;
    if (step < 0)
        text_add(to, "x%d", value);
    else if (uses[step] > 1 && c->program.step[step].op != FERRY_OP_FILL)
        text_add(to, "v%d", step);
    else
        add_step(c, &c->program.step[step], uses, to);
}

void call_program_text(const ferry_kernel *c, Text *to)
{
    const ferry_program *p = &c->program;
    int uses[FERRY_PROGRAM_STEPS] = {0};
    for (int i = 0; i < p->steps; i++) {
        const int value[3] = {p->step[i].a, p->step[i].b, p->step[i].c};
        for (int k = 0; k < 3; k++)
            if (value[k] >= FERRY_PROGRAM_INPUTS)
                uses[value[k] - FERRY_PROGRAM_INPUTS]++;
    }
    for (int o = 0; o < FERRY_PROGRAM_OUTPUTS; o++)
        if (p->out[o] >= FERRY_PROGRAM_INPUTS)
            uses[p->out[o] - FERRY_PROGRAM_INPUTS]++;
    for (int i = 0; i < p->steps; i++)
        if (uses[i] > 1 && p->step[i].op != FERRY_OP_FILL) {
            text_add(to, "v%d = ", i);
            add_step(c, &p->step[i], uses, to);
            text_add(to, "; ");
        }
    for (int o = 0, first = 1; o < FERRY_PROGRAM_OUTPUTS; o++)
        if (p->out[o] >= 0) {
            text_add(to, "%sy%d %s ", first ? "" : "; ", o, c->accumulate ? "+=" : "=");
            add_value(c, p->out[o], uses, to);
            first = 0;
        }
}
