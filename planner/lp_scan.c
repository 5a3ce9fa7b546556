/* lp_scan.c - what the orderings of the linear model depend on, read from the graph; and the compute stream's slots.
 *
 * needs: a checked graph   fills: LpScan   keeps: the graph */
#include "planner/lp_model.h"

typedef struct Scanner {
    Diag *d;
    Arena *a;
    const Graph *g;
    LpScan *s;
} Scanner;

static Status make_arrays(Scanner *x)
{
    LpScan *s = x->s;
    const Graph *g = x->g;
    size_t uses = 0, units = (size_t)g->n_unit, slots = (size_t)g->node.count + 3 * units;
    s->use_at = ARENA_NEW(x->a, int, units + 1);
    if (!s->use_at)
        return diag_oom(x->d);
    for (size_t u = 0; u < units; u++) {
        s->use_at[u] = (int)uses;
        uses += (size_t)g->unit[u].n_use;
    }
    s->use_at[units] = (int)uses;
    int *at = ARENA_NEW(x->a, int, 8 * units + 4 * uses + (size_t)g->node.count);
    s->slot = ARENA_NEW(x->a, LpSlot, slots);
    if (!at || !s->slot)
        return diag_oom(x->d);
    int **const by_unit[] = {&s->first_read, &s->last_read, &s->last_grad, &s->arrived,
                             &s->late,       &s->norm_slot, &s->update_slot, &s->cpu_slot};
    int **const by_use[] = {&s->use_first, &s->use_last, &s->place_unit, &s->place_use};
    for (size_t i = 0; i < sizeof by_unit / sizeof *by_unit; i++, at += units)
        *by_unit[i] = at;
    for (size_t i = 0; i < sizeof by_use / sizeof *by_use; i++, at += uses)
        *by_use[i] = at;
    s->kernel_slot = at;
    for (size_t u = 0; u < units; u++)
        s->first_read[u] = s->last_read[u] = s->last_grad[u] = s->norm_slot[u] = s->update_slot[u] = s->cpu_slot[u] = -1;
    for (size_t i = 0; i < uses; i++)
        s->use_first[i] = s->use_last[i] = -1;
    s->input_first = s->input_last = s->loss_first = s->loss_last = -1;
    return ST_OK;
}

static const Tensor *root_tensor(const Graph *g, int tensor)
{
    return &g->tensor.at[g->tensor.at[tensor].root];
}

static Status scan_node(Scanner *x, int index)
{
    LpScan *s = x->s;
    const Graph *g = x->g;
    const Node *n = &g->node.at[index];
    int outs = node_n_out(n);
    for (int k = 0; k < node_n_arg(n); k++) {
        if (n->arg[k] < 0)
            continue;
        const Tensor *t = root_tensor(g, n->arg[k]);
        if (k < outs && t == root_tensor(g, g->loss)) {
            s->loss_first = s->loss_first < 0 ? index : s->loss_first;
            s->loss_last = index;
        }
        if (t->kind == TENSOR_INPUT && k >= outs) {
            s->input_first = s->input_first < 0 ? index : s->input_first;
            s->input_last = index;
        }
        if (t->kind == TENSOR_GRADIENT && k < outs)
            s->last_grad[g->param[t->param].unit] = index;
        if (t->kind != TENSOR_PARAM || k < outs)
            continue;
        int unit = g->param[t->param].unit, use = graph_use_of_node(g, n, unit);
        if (use < 0)
            return diag_fail(x->d, ST_FAILED, "node %s: reads unit %s outside its uses", n->name, g->unit[unit].name);
        if (s->first_read[unit] < 0)
            s->first_read[unit] = index;
        s->last_read[unit] = index;
        int at = s->use_at[unit] + use;
        s->use_last[at] = index;
        if (s->use_first[at] >= 0)
            continue;
        s->use_first[at] = index;
        if (use > 0 && s->use_first[at - 1] < 0)
            return diag_fail(x->d, ST_FAILED, "unit %s: its uses are not in the order of its kernels",
                             g->unit[unit].name);
        s->place_unit[s->n_place] = unit;
        s->place_use[s->n_place++] = use;
    }
    return ST_OK;
}

static int add_slot(LpScan *s, int node, int unit, LpWork work)
{
    s->slot[s->n_slot] = (LpSlot){node, unit, work};
    return s->n_slot++;
}

/* A kernel, then what may stand between it and the next one: the square sums of the units whose gradients it completes,
 * and without clip the updates of those that it is the last to read or to give a gradient. */
static void add_kernel_slots(Scanner *x, int index, bool clip)
{
    LpScan *s = x->s;
    const Graph *g = x->g;
    const Node *n = &g->node.at[index];
    s->kernel_slot[index] = add_slot(s, index, -1, LP_WORK_KERNEL);
    for (int k = 0; k < node_n_out(n); k++) {
        const Tensor *t = n->arg[k] < 0 ? NULL : root_tensor(g, n->arg[k]);
        int unit = t && t->kind == TENSOR_GRADIENT ? g->param[t->param].unit : -1;
        if (unit < 0 || s->last_grad[unit] != index || s->norm_slot[unit] >= 0)
            continue;
        s->arrived[s->n_arrived++] = unit;
        s->norm_slot[unit] = add_slot(s, -1, unit, LP_WORK_GPU_NORM);
    }
    for (int k = 0; !clip && k < node_n_arg(n); k++) {
        const Tensor *t = n->arg[k] < 0 ? NULL : root_tensor(g, n->arg[k]);
        if (!t || (t->kind != TENSOR_GRADIENT && t->kind != TENSOR_PARAM))
            continue;
        int unit = g->param[t->param].unit;
        if (g->unit[unit].grad_bytes == 0 || s->update_slot[unit] >= 0 || s->last_grad[unit] > index ||
            s->last_read[unit] > index)
            continue;
        s->update_slot[unit] = add_slot(s, -1, unit, LP_WORK_GPU_UPDATE);
    }
}

Status lp_scan_graph(Diag *d, Arena *a, const Graph *g, bool clip, LpScan *s)
{
    *s = (LpScan){0};
    Scanner x = {d, a, g, s};
    TRY(make_arrays(&x));
    for (int i = 0; i < g->node.count; i++)
        TRY(scan_node(&x, i));
    for (int i = 0; i < g->node.count; i++)
        add_kernel_slots(&x, i, clip);
    for (int i = 0; i < g->node.count; i++)
        for (int u = 0; u < g->n_unit; u++)
            if (g->unit[u].grad_bytes > 0 && s->first_read[u] == i)
                s->late[s->n_late++] = u;
    for (int i = 0; clip && i < s->n_late; i++)
        s->update_slot[s->late[i]] = add_slot(s, -1, s->late[i], LP_WORK_GPU_UPDATE);
    s->n_compute = s->n_slot;
    for (int i = 0; i < s->n_late; i++)
        s->cpu_slot[s->late[i]] = add_slot(s, -1, s->late[i], LP_WORK_CPU);
    for (int u = 0; u < g->n_unit; u++) {
        if (g->unit[u].grad_bytes == 0)
            continue;
        if (s->first_read[u] < 0 || s->last_grad[u] < s->first_read[u] || s->last_grad[u] < s->loss_last)
            return diag_fail(d, ST_FAILED, "unit %s: its gradient does not come after its use and the loss",
                             g->unit[u].name);
        if (s->norm_slot[u] < 0)
            return diag_fail(d, ST_FAILED, "unit %s: nothing writes its gradient", g->unit[u].name);
    }
    if (s->loss_last < 0 || s->n_arrived == 0)
        return diag_fail(d, ST_FAILED, "the graph has no loss or nothing to train");
    return ST_OK;
}
