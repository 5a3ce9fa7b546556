/* parts.c - the parts of a step: what a recorder times and a timeline for people shows as one piece.
 *
 * needs: steps   fills: PartList   keeps: the list */
#include "planner/steps.h"

int step_group(const Step *x)
{
    return x->segment / 2;
}

const char *kernel_part_name(Phase p)
{
    static const char *const name[PHASE_COUNT] = {"forward", "backward", "recompute"};
    return name[p];
}

static bool goes_on(const Step *last, const Step *x)
{
    return last && last->phase == x->phase && step_group(last) == step_group(x);
}

static Part part_of(const StepList *s, int i)
{
    const Graph *g = s->graph;
    const Step *x = &s->step[i];
    Part p = {.stream = x->stream, .what = step_kind_name(x->kind), .of = "", .first = i, .last = i};
    if (x->kind == STEP_KERNEL) {
        p.what = kernel_part_name(x->phase);
        p.of = step_group(x) < g->n_layer ? g->layer[step_group(x)].name : "";
    } else if (x->unit >= 0) {
        p.of = g->unit[x->unit].name;
    }
    return p;
}

Status parts_build(Diag *d, Arena *a, const StepList *s, PartList *out)
{
    *out = (PartList){0};
    out->part = ARENA_NEW(a, Part, s->n_step);
    out->of_step = ARENA_NEW(a, int, s->n_step);
    if (!out->part || !out->of_step)
        return diag_oom(d);
    const Step *last = NULL; /* kernel */
    int kernels = -1;        /* the part that it belongs to */
    for (int i = 0; i < s->n_step; i++) {
        const Step *x = &s->step[i];
        out->of_step[i] = -1;
        if (x->stream == STREAM_HOST)
            continue;
        if (x->kind == STEP_KERNEL && goes_on(last, x)) {
            out->part[kernels].last = i;
            out->of_step[i] = kernels;
        } else {
            out->of_step[i] = out->n;
            out->part[out->n++] = part_of(s, i);
        }
        if (x->kind == STEP_KERNEL) {
            last = x;
            kernels = out->of_step[i];
        }
    }
    return ST_OK;
}
