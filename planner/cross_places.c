/* cross_places.c - places and kernels' times for the cross-check.
 *
 * needs: a graph and a profile that matches it   fills: places, ns   keeps: both
 *
 * One list of steps is timed for each layer, phase and combination of places in it. */
#include "planner/cross_places.h"

#include <math.h>

const Tensor *cross_root(const Graph *g, int tensor)
{
    return &g->tensor.at[g->tensor.at[tensor].root];
}

int cross_use(const Graph *g, int unit, int segment, Phase phase)
{
    for (int k = 0; k < g->unit[unit].n_use; k++)
        if (2 * g->unit[unit].use[k].layer + 1 == segment && g->unit[unit].use[k].phase == phase)
            return k;
    return -1;
}

bool cross_reads(const Graph *g, const Node *n, int unit)
{
    for (int k = node_n_out(n); k < node_n_arg(n); k++)
        if (n->arg[k] >= 0 && cross_root(g, n->arg[k])->kind == TENSOR_PARAM &&
            g->param[cross_root(g, n->arg[k])->param].unit == unit)
            return true;
    return false;
}

bool cross_writes(const Graph *g, const Node *n, int unit)
{
    for (int k = 0; k < node_n_out(n); k++)
        if (n->arg[k] >= 0 && cross_root(g, n->arg[k])->kind == TENSOR_GRADIENT &&
            g->param[cross_root(g, n->arg[k])->param].unit == unit)
            return true;
    return false;
}

static Status find_places(Kernels *x)
{
    const Graph *g = x->g;
    x->places = ARENA_NEW(x->a, Places, 2 * (size_t)g->n_segment);
    if (!x->places)
        return diag_oom(x->d);
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        Places *p = &x->places[2 * n->segment + (int)n->phase];
        for (int u = 0; u < g->n_unit && n->segment % 2 == 1; u++)
            for (int grad = 0; grad < 2; grad++) {
                if (grad ? !cross_writes(g, n, u) : !cross_reads(g, n, u))
                    continue;
                int use = grad ? -1 : cross_use(g, u, n->segment, n->phase);
                bool known = false;
                for (int b = 0; b < p->n_bit; b++)
                    known = known || (p->unit[b] == u && p->use[b] == use);
                if (known)
                    continue;
                if (p->n_bit == MAX_BITS)
                    return diag_fail(x->d, ST_MODEL, "--cross-check: too many parameters share the layer of node %s",
                                     n->name);
                p->unit[p->n_bit] = u;
                p->use[p->n_bit++] = use;
            }
    }
    return ST_OK;
}

Status cross_list(Kernels *x, Arena *scratch, UnitPlan *unit, StepList **out)
{
    Plan *plan = ARENA_NEW(scratch, Plan, 1);
    if (!plan)
        return diag_oom(x->d);
    *plan = (Plan){.n_unit = x->g->n_unit, .unit = unit, .clip = x->clip, .reserve_factor = -1};
    TRY(steps_build(x->d, scratch, x->g, plan, out));
    return steps_time(x->d, *out, x->p);
}

double cross_capped(const Kernels *x, int64_t ns)
{
    return fmin((double)ns, 1.5 * (double)x->most_ns + 2);
}

static Status time_places(Kernels *x, int at, int combination)
{
    const Places *p = &x->places[at];
    Arena *scratch = arena_open();
    UnitPlan *unit = scratch ? ARENA_NEW(scratch, UnitPlan, x->g->n_unit) : NULL;
    if (!unit) {
        arena_close(scratch);
        return diag_oom(x->d);
    }
    for (int b = 0; b < p->n_bit; b++) {
        bool host = combination >> b & 1;
        if (p->use[b] < 0)
            unit[p->unit[b]].grad = host ? ON_HOST : ON_GPU;
        else
            unit[p->unit[b]].first_gpu_use = host ? p->use[b] + 1 : 0;
    }
    StepList *s;
    Status st = cross_list(x, scratch, unit, &s);
    for (int i = 0; st == ST_OK && i < s->n_step; i++) {
        const Step *step = &s->step[i];
        if (step->kind == STEP_KERNEL && 2 * step->segment + (int)step->phase == at)
            x->ns[step->node][combination] = cross_capped(x, step->duration_ns);
    }
    arena_close(scratch);
    return st;
}

Status cross_time_kernels(Kernels *x)
{
    TRY(find_places(x));
    x->ns = ARENA_NEW(x->a, double *, x->g->node.count);
    if (!x->ns)
        return diag_oom(x->d);
    for (int i = 0; i < x->g->node.count; i++) {
        const Node *n = &x->g->node.at[i];
        x->ns[i] = ARENA_NEW(x->a, double, (size_t)1 << x->places[2 * n->segment + (int)n->phase].n_bit);
        if (!x->ns[i])
            return diag_oom(x->d);
    }
    for (int at = 0; at < 2 * x->g->n_segment; at++)
        for (int c = 0; c < 1 << x->places[at].n_bit; c++)
            TRY(time_places(x, at, c));
    return ST_OK;
}
