/* problem.c - from Graph and Profile to the papers' arrays. */
#include "planner/problem.h"

#include <string.h>

static int layer_of_node(const Node *n)
{
    return n->segment % 2 == 1 ? n->segment / 2 : -1;
}

/* Arguments are outputs first: reads are counted over the inputs (and accumulated outputs are no parameters). */
int64_t problem_read_bytes(const Graph *g, int layer, Phase phase, int unit)
{
    int64_t sum = 0;
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        if (n->phase != phase || layer_of_node(n) != layer)
            continue;
        for (int k = node_n_out(n); k < node_n_arg(n); k++) {
            if (n->arg[k] < 0)
                continue;
            const Tensor *t = &g->tensor.at[g->tensor.at[n->arg[k]].root];
            if (t->kind == TENSOR_PARAM && g->param[t->param].unit == unit)
                sum += node_arg_traffic_bytes(g, n, k);
        }
    }
    return sum;
}

int64_t problem_grad_bytes(const Graph *g, int layer, int unit)
{
    int64_t sum = 0;
    for (int i = g->n_forward; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        if (layer_of_node(n) != layer)
            continue;
        for (int k = 0; k < node_n_out(n); k++) {
            if (n->arg[k] < 0)
                continue;
            const Tensor *t = &g->tensor.at[g->tensor.at[n->arg[k]].root];
            if (t->kind == TENSOR_GRADIENT && g->param[t->param].unit == unit)
                sum += t->bytes;
        }
    }
    return sum;
}

__extension__ typedef __int128 Wide;

/* part / all of total, rounded towards 0. */
static int64_t share(int64_t total, int64_t part, int64_t all)
{
    if (all <= 0 || part <= 0)
        return 0;
    if (part >= all)
        return total;
    return (int64_t)((Wide)total * part / all);
}

typedef int64_t TouchFn(const Graph *g, int layer, int unit);

static int64_t touch_fp(const Graph *g, int layer, int unit)
{
    return problem_read_bytes(g, layer, PHASE_FP, unit);
}

static int64_t touch_bp(const Graph *g, int layer, int unit)
{
    return problem_read_bytes(g, layer, PHASE_BP, unit);
}

/* The part of `total` that falls on one unit of a layer, by the bytes that each touches. */
static int64_t unit_share(const Graph *g, int layer, int unit, int64_t total, TouchFn *touch)
{
    const Layer *l = &g->layer[layer];
    if (l->n_unit <= 1)
        return total;
    int64_t mine = 0, all = 0;
    for (int i = 0; i < l->n_unit; i++) {
        int64_t bytes = touch(g, layer, l->unit[i]);
        all += bytes;
        if (l->unit[i] == unit)
            mine = bytes;
    }
    return share(total, mine, all);
}

Status problem_make(Diag *d, Arena *a, const Graph *g, const Profile *p, Problem **out)
{
    *out = NULL;
    Problem *pr = ARENA_NEW(a, Problem, 1);
    if (!pr)
        return diag_oom(d);
    pr->graph = g;
    pr->profile = p;
    pr->item = ARENA_NEW(a, Item, g->n_unit);
    pr->a_fp_ns = ARENA_NEW(a, int64_t, g->n_unit + 1);
    pr->a_bp_ns = ARENA_NEW(a, int64_t, g->n_unit + 1);
    pr->item_of_unit = ARENA_NEW(a, int, g->n_unit);
    if (!pr->item || !pr->a_fp_ns || !pr->a_bp_ns || !pr->item_of_unit)
        return diag_oom(d);
    for (int u = 0; u < g->n_unit; u++)
        pr->item_of_unit[u] = -1;

    for (int l = 0; l < g->n_layer; l++) {
        const LayerProfile *t = &p->layer[l];
        pr->a_fp_ns[pr->n_item] += p->between[l].fp.median_ns;
        pr->a_bp_ns[pr->n_item] += p->between[l].bp.median_ns;
        bool stands = false;
        for (int u = 0; u < g->n_unit; u++) {
            const Unit *unit = &g->unit[u];
            if (unit->n_use == 0 || unit->use[0].layer != l || unit->use[0].phase != PHASE_FP)
                continue;
            Item *it = &pr->item[pr->n_item];
            *it = (Item){.unit = u, .layer = l, .bytes = unit->bytes, .trans_ns = p->unit[u].load.median_ns};
            /* Only one item of a layer carries the time that is there wherever the parameters are. */
            it->fp_ns = stands ? 0 : t->fp[ON_GPU].median_ns;
            it->bp_ns = stands ? 0 : t->bp[ON_GPU][ON_GPU].median_ns;
            it->fp_h_ns = it->fp_ns + unit_share(g, l, u, t->fp[ON_HOST].median_ns - t->fp[ON_GPU].median_ns, touch_fp);
            it->bp_h_ns = it->bp_ns;
            for (int k = 1; k < unit->n_use; k++)
                if (unit->use[k].layer == l && unit->use[k].phase == PHASE_BP)
                    it->bp_h_ns += unit_share(
                        g, l, u, t->bp[ON_HOST][ON_GPU].median_ns - t->bp[ON_GPU][ON_GPU].median_ns, touch_bp);
            pr->item_of_unit[u] = pr->n_item++;
            stands = true;
        }
        if (!stands) {
            pr->a_fp_ns[pr->n_item] += t->fp[ON_GPU].median_ns;
            pr->a_bp_ns[pr->n_item] += t->bp[ON_GPU][ON_GPU].median_ns;
        }
    }
    pr->a_fp_ns[pr->n_item] += p->between[g->n_layer].fp.median_ns;
    pr->a_bp_ns[pr->n_item] += p->between[g->n_layer].bp.median_ns;
    *out = pr;
    return ST_OK;
}

/* Where the unit's parameters are when layer's backward reads them; ON_GPU when it does not. */
static Where bp_place(const Unit *u, const UnitPlan *plan, int layer)
{
    for (int k = 0; k < u->n_use; k++)
        if (u->use[k].layer == layer && u->use[k].phase == PHASE_BP)
            return k < plan->first_gpu_use ? ON_HOST : ON_GPU;
    return ON_GPU;
}

int64_t problem_grad_gain_ns(const Problem *p, int unit, const UnitPlan *plan)
{
    const Graph *g = p->graph;
    int64_t sum = 0;
    for (int l = 0; l < g->n_layer; l++) {
        bool here = false;
        for (int i = 0; i < g->layer[l].n_unit; i++)
            here |= g->layer[l].unit[i] == unit;
        if (!here)
            continue;
        const LayerProfile *t = &p->profile->layer[l];
        Where w = bp_place(&g->unit[unit], plan, l);
        int64_t total = t->bp[w][ON_HOST].median_ns - t->bp[w][ON_GPU].median_ns;
        sum += unit_share(g, l, unit, total, problem_grad_bytes);
    }
    return sum;
}

int64_t problem_dha_cost_ns(const Problem *p, int unit, int first_gpu_use)
{
    const Graph *g = p->graph;
    const Unit *u = &g->unit[unit];
    int64_t sum = 0;
    for (int k = 0; k < first_gpu_use && k < u->n_use; k++) {
        int l = u->use[k].layer;
        const LayerProfile *t = &p->profile->layer[l];
        if (u->use[k].phase != PHASE_BP)
            sum += unit_share(g, l, unit, t->fp[ON_HOST].median_ns - t->fp[ON_GPU].median_ns, touch_fp);
        else
            sum += unit_share(g, l, unit, t->bp[ON_HOST][ON_GPU].median_ns - t->bp[ON_GPU][ON_GPU].median_ns, touch_bp);
    }
    return sum;
}

void problem_print(const Problem *p, Text *to)
{
    text_add(to, "problem: %d items; times in ns\n", p->n_item);
    text_add(to, "%4s %-40s %12s %12s %12s %12s %12s %12s\n", "item", "unit", "bytes", "T_trans", "T_FP", "T_FP^H",
             "T_BP", "T_BP^H");
    for (int i = 0; i <= p->n_item; i++) {
        text_add(to, "%4s %-40s %12s %12s %12lld %12s %12lld\n", "", "A", "", "", (long long)p->a_fp_ns[i], "",
                 (long long)p->a_bp_ns[i]);
        if (i == p->n_item)
            break;
        const Item *it = &p->item[i];
        text_add(to, "%4d %-40s %12lld %12lld %12lld %12lld %12lld %12lld\n", i, p->graph->unit[it->unit].name,
                 (long long)it->bytes, (long long)it->trans_ns, (long long)it->fp_ns, (long long)it->fp_h_ns,
                 (long long)it->bp_ns, (long long)it->bp_h_ns);
    }
}
