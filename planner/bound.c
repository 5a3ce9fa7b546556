/* bound.c - a time that no plan of this profile can beat, without contention. Four arguments; the bound is the
 * largest.
 *
 * 1. A resource. In one period the compute stream runs every kernel once, the load engine every load, the store engine
 * every store, so the period is at least each sum, hence at least any weighted mean of them. For weights w (>= 0,
 * sum 1) period >= sum over units of min over its choices of (w_c compute + w_h load + w_d store + w_u update) because choices of
 * different units can only raise the sum of minima. Weights run over a grid; each gives a valid bound. A unit is free
 * to choose here when it is alone in all of its layers; the other layers count with their fastest placement and their
 * units with no load and no store.
 *
 * The CPU is the fourth such resource: square sums and updates of the units that do not live on the GPU. One that does
 * has no load, no store and nothing for the CPU, and its update takes its time on compute.
 *
 * 2. The updates. The update stream runs the square sum and the update of every unit that cannot live on the GPU, and
 * the norm, once a period, whatever the plan.
 *
 * 3. A cycle through compute and updates, of units that cannot live on the GPU. Take two units a and b, and the set S of units whose last gradient write does
 *    not precede a's and whose first use does not follow b's. Kernels run in one order on one stream, and a unit's
 * square sum comes before its update. So both, for all of S, start after a's last gradient write and end before b's
 * first use in the next step, one after another: start of b's first use, next step >= end of a's last write + sum of
 * square sums and updates in S end of a's last write             >= start of b's first use + compute from there to a's
 * last write The period is therefore at least that compute time, each kernel with its fastest placement, plus the
 * square sums and updates of S. When the norm is clipped every update waits for every gradient and for the norm: a is
 * then the last of all, S holds every unit up to b, and of the square sums only that of a comes surely in between, then
 * the norm. *
 * 4. The units that can live on the GPU. One that does not closes a cycle of its own, as in 3 with S = {u}: the period is at
 * least c(u). One that does adds g(u), its square sum and update, to the compute stream, whose period is otherwise at least C, each
 * kernel with its fastest placement. So all units with c(u) > period live on the GPU, and period >= C + sum of their g(u). With
 * the units in descending order of c(u), the period lies between c(j) and c(j - 1) for some j, and is then at least
 * max(C + sum of g(i) for i < j, c(j)): the bound is the least of these over j. With clipping a cycle starts at the last of all
 * gradients, and has the norm in it.
 *
 * Recomputation: a plan that computes values again runs the same kernels and more on compute, in which the forward and
 * backward ones keep their order, and loads a unit as often or once more. Every sum above is at least that of the plan that
 * makes the same choices without the copies, and no argument asks in which order loads run: the bound holds. */
#include "planner/plan_search.h"

#include <stdlib.h>

__extension__ typedef __int128 Wide;

enum { PARTS = 24 }; /* grid of weights */

typedef struct Option {
    int64_t compute_ns, load_ns, store_ns, update_ns;
} Option;

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What the arguments need to know. A segment without a kernel takes no time, whatever the profile says. */
typedef struct Facts {
    const Graph *g;
    const Profile *p;
    bool *runs; /* by 2 * segment + phase: some kernel runs */
} Facts;

static int64_t layer_fp_least(const LayerProfile *l)
{
    return min64(l->fp[ON_GPU].median_ns, l->fp[ON_HOST].median_ns);
}

static int64_t layer_bp_least(const LayerProfile *l)
{
    return min64(min64(l->bp[0][0].median_ns, l->bp[0][1].median_ns),
                 min64(l->bp[1][0].median_ns, l->bp[1][1].median_ns));
}

/* The fastest that a segment's phase can be. A layer with several units in different places lies between the four
 * corners. */
static int64_t least(const Facts *f, int segment, Phase phase)
{
    if (!f->runs[2 * segment + (int)phase])
        return 0;
    if (segment % 2 == 0)
        return phase == PHASE_FP ? f->p->between[segment / 2].fp.median_ns : f->p->between[segment / 2].bp.median_ns;
    const LayerProfile *l = &f->p->layer[segment / 2];
    return phase == PHASE_FP ? layer_fp_least(l) : layer_bp_least(l);
}

static bool layer_has(const Graph *g, int l, int unit)
{
    for (int i = 0; i < g->layer[l].n_unit; i++)
        if (g->layer[l].unit[i] == unit)
            return true;
    return false;
}

/* Alone in all of its layers? */
static bool is_alone(const Graph *g, int unit)
{
    for (int l = 0; l < g->n_layer; l++)
        if (layer_has(g, l, unit) && g->layer[l].n_unit > 1)
            return false;
    return true;
}

static int use_of(const Unit *u, int layer, Phase phase)
{
    for (int k = 0; k < u->n_use; k++)
        if (u->use[k].layer == layer && u->use[k].phase == phase)
            return k;
    return -1;
}

/* The compute time of a lone unit's layers when uses from `first` on read GPU memory. What the profile says of a place
 * that no kernel uses is taken from the better one. */
static int64_t lone_compute(const Facts *facts, int unit, int first, Where grad)
{
    const Graph *g = facts->g;
    const Unit *u = &g->unit[unit];
    int64_t sum = 0;
    for (int l = 0; l < g->n_layer; l++) {
        if (!layer_has(g, l, unit))
            continue;
        const LayerProfile *t = &facts->p->layer[l];
        int f = use_of(u, l, PHASE_FP), b = use_of(u, l, PHASE_BP);
        bool writes = u->grad_bytes > 0 && problem_grad_bytes(g, l, unit) > 0;
        sum += f < 0 ? least(facts, 2 * l + 1, PHASE_FP) : t->fp[f < first ? ON_HOST : ON_GPU].median_ns;
        if (!facts->runs[2 * (2 * l + 1) + PHASE_BP])
            continue;
        int64_t best = INT64_MAX;
        for (int w = ON_GPU; w <= ON_HOST; w++)
            for (int h = ON_GPU; h <= ON_HOST; h++)
                if ((b < 0 || w == (b < first ? ON_HOST : ON_GPU)) && (!writes || h == (int)grad))
                    best = min64(best, t->bp[w][h].median_ns);
        sum += best;
    }
    return sum;
}

/* What a unit's square sum and update take on the CPU, or on the GPU. */
static int64_t cpu_ns(const Graph *g, const Profile *p, int unit)
{
    return g->unit[unit].grad_bytes > 0 ? p->unit[unit].norm.median_ns + p->unit[unit].update.median_ns : 0;
}

static int64_t gpu_ns(const Graph *g, const Profile *p, int unit)
{
    return g->unit[unit].grad_bytes > 0 ? p->unit[unit].resident_norm.median_ns + p->unit[unit].resident_update.median_ns
                                        : 0;
}

static Status resource_bound(Diag *d, Arena *a, const Facts *f, int64_t *out)
{
    const Graph *g = f->g;
    const Profile *p = f->p;
    int64_t fixed = 0, fixed_cpu = p->clip.median_ns;
    for (int s = 0; s < g->n_segment; s++)
        if (s % 2 == 0 || g->layer[s / 2].n_unit != 1 || !is_alone(g, g->layer[s / 2].unit[0]))
            fixed += least(f, s, PHASE_FP) + least(f, s, PHASE_BP);
    int *start = ARENA_NEW(a, int, g->n_unit + 1), total = 0;
    if (!start)
        return diag_oom(d);
    for (int u = 0; u < g->n_unit; u++) {
        start[u] = total;
        total += is_alone(g, u) ? 2 * (g->unit[u].n_use + 1) + plan_can_reside(g, p, u) : 0;
    }
    start[g->n_unit] = total;
    Option *option = ARENA_NEW(a, Option, total);
    if (!option)
        return diag_oom(d);
    for (int u = 0; u < g->n_unit; u++) {
        Option *o = &option[start[u]];
        for (int k = 0; start[u] < start[u + 1] && k <= g->unit[u].n_use; k++)
            for (int w = ON_GPU; w <= ON_HOST; w++)
                *o++ = (Option){lone_compute(f, u, k, (Where)w), k < g->unit[u].n_use ? p->unit[u].load.median_ns : 0,
                                w == ON_GPU && g->unit[u].grad_bytes > 0 ? p->unit[u].store.median_ns : 0,
                                cpu_ns(g, p, u)};
        if (o < &option[start[u + 1]])
            *o = (Option){lone_compute(f, u, 0, ON_GPU) + gpu_ns(g, p, u), 0, 0, 0};
        fixed_cpu += start[u] == start[u + 1] && !plan_can_reside(g, p, u) ? cpu_ns(g, p, u) : 0;
    }
    for (int at = 0; at < (PARTS + 1) * (PARTS + 1) * (PARTS + 1); at++) {
        int wc = at % (PARTS + 1), wh = at / (PARTS + 1) % (PARTS + 1), wu = at / (PARTS + 1) / (PARTS + 1);
        int wd = PARTS - wc - wh - wu;
        if (wd >= 0) {
            Wide sum = (Wide)wc * fixed + (Wide)wu * fixed_cpu;
            for (int u = 0; u < g->n_unit; u++) {
                Wide best = -1;
                for (int k = start[u]; k < start[u + 1]; k++) {
                    const Option *o = &option[k];
                    Wide cost = (Wide)wc * o->compute_ns + (Wide)wh * o->load_ns + (Wide)wd * o->store_ns +
                                (Wide)wu * o->update_ns;
                    if (best < 0 || cost < best)
                        best = cost;
                }
                sum += best > 0 ? best : 0;
            }
            int64_t bound = (int64_t)((sum + PARTS - 1) / PARTS); /* periods are whole */
            if (bound > *out)
                *out = bound;
        }
    }
    return ST_OK;
}

/* ---- 3: the cycle
 * ------------------------------------------------------------------------------------------------------ */

/* A unit with an update. Positions are node indices: the order of the compute stream. */
typedef struct Loop {
    int unit;
    int first_use;       /* node */
    int last_write;      /* node */
    int64_t from_use_ns; /* compute from the start of the step to the start of its first use, fastest placement */
    int64_t to_write_ns; /* the same to the start of the segment with its last gradient write */
    int64_t enter_ns;    /* what its first use takes after its update beyond its fastest time: the load, or DHA */
    int64_t cycle_ns;    /* argument 4: c(u) */
} Loop;

static int by_first_use(const void *x, const void *y)
{
    return ((const Loop *)x)->first_use - ((const Loop *)y)->first_use;
}

static int by_cycle(const void *x, const void *y)
{
    int64_t a = ((const Loop *)x)->cycle_ns, b = ((const Loop *)y)->cycle_ns;
    return (b > a) - (b < a);
}

/* Argument 4 for loops of units that can live on the GPU. last_ns: compute from the start of the step to the segment with the
 * last of all gradient writes. */
static void home_bound(const Facts *f, Loop *loop, int n, bool clip, int64_t compute_ns, int64_t last_ns, int64_t *out)
{
    for (int i = 0; i < n; i++) {
        const UnitProfile *u = &f->p->unit[loop[i].unit];
        loop[i].cycle_ns = loop[i].enter_ns - loop[i].from_use_ns + u->update.median_ns +
                           (clip ? last_ns + f->p->clip.median_ns : loop[i].to_write_ns + u->norm.median_ns);
    }
    qsort(loop, (size_t)n, sizeof *loop, by_cycle);
    int64_t best = INT64_MAX;
    for (int j = 0; j <= n; j++) {
        int64_t cycle = j < n ? loop[j].cycle_ns : 0;
        best = min64(best, compute_ns > cycle ? compute_ns : cycle);
        compute_ns += j < n ? gpu_ns(f->g, f->p, loop[j].unit) : 0;
    }
    if (best > *out)
        *out = best;
}

static Status cycle_bound(Diag *d, Arena *a, const Facts *f, bool clip, int64_t *out)
{
    const Graph *g = f->g;
    const Profile *p = f->p;
    int n_seg = g->n_segment;
    int64_t *fp_at = ARENA_NEW(a, int64_t, n_seg + 1), *bp_at = ARENA_NEW(a, int64_t, n_seg + 1);
    Loop *loop = ARENA_NEW(a, Loop, g->n_unit), *home = ARENA_NEW(a, Loop, g->n_unit);
    if (!fp_at || !bp_at || !loop || !home)
        return diag_oom(d);
    /* Start of each segment's forward and backward, everything at its fastest. */
    int64_t now = 0;
    for (int s = 0; s < n_seg; s++) {
        fp_at[s] = now;
        now += least(f, s, PHASE_FP);
    }
    for (int s = n_seg - 1; s >= 0; s--) {
        bp_at[s] = now;
        now += least(f, s, PHASE_BP);
    }
    int n = 0, n_home = 0;
    int64_t last_ns = 0;
    for (int u = 0; u < g->n_unit; u++) {
        const Unit *unit = &g->unit[u];
        if (unit->grad_bytes == 0 || unit->n_use == 0 || unit->use[0].phase != PHASE_FP)
            continue;
        int l = unit->use[0].layer;
        Loop it = {.unit = u, .first_use = g->layer[l].node, .last_write = -1, .from_use_ns = fp_at[2 * l + 1]};
        for (int i = g->n_forward; i < g->node.count; i++) {
            const Node *node = &g->node.at[i];
            for (int k = 0; k < node_n_out(node); k++) {
                const Tensor *t = node->arg[k] < 0 ? NULL : &g->tensor.at[g->tensor.at[node->arg[k]].root];
                if (t && t->kind == TENSOR_GRADIENT && g->param[t->param].unit == u)
                    it.last_write = i;
            }
        }
        if (it.last_write < 0)
            continue;
        it.to_write_ns = bp_at[g->node.at[it.last_write].segment];
        /* The first use either waits for a load or reads by DHA. */
        if (g->layer[l].n_unit == 1) {
            const LayerProfile *t = &p->layer[l];
            it.enter_ns = min64(p->unit[u].load.median_ns + t->fp[ON_GPU].median_ns, t->fp[ON_HOST].median_ns) -
                          layer_fp_least(t);
        }
        last_ns = it.to_write_ns > last_ns ? it.to_write_ns : last_ns;
        if (plan_can_reside(g, p, u))
            home[n_home++] = it;
        else
            loop[n++] = it;
    }
    home_bound(f, home, n_home, clip, now, last_ns, out);
    qsort(loop, (size_t)n, sizeof *loop, by_first_use);
    int last = 0;
    for (int i = 1; i < n; i++)
        if (loop[i].last_write > loop[last].last_write)
            last = i;
    for (int i = 0; i < n; i++) {
        const Loop *from = clip ? &loop[last] : &loop[i];
        int64_t sum = clip ? p->clip.median_ns + p->unit[from->unit].norm.median_ns : 0;
        /* Whichever update of S is the last one, its unit enters its first use, and from there compute goes on to b. */
        int64_t enter = INT64_MAX, at = 0;
        for (int k = 0; k < n; k++) {
            if (!clip && loop[k].last_write < from->last_write)
                continue;
            sum += p->unit[loop[k].unit].update.median_ns + (clip ? 0 : p->unit[loop[k].unit].norm.median_ns);
            enter = enter == INT64_MAX ? loop[k].enter_ns : min64(enter + loop[k].from_use_ns - at, loop[k].enter_ns);
            at = loop[k].from_use_ns;
            int64_t bound = from->to_write_ns - loop[k].from_use_ns + enter + sum;
            if (bound > *out)
                *out = bound;
        }
        if (clip)
            break;
    }
    return ST_OK;
}

/* needs: a profile that matches the graph   fills: *out_ns */
Status bound_make(Diag *d, const Graph *g, const Profile *p, bool clip, int64_t *out_ns)
{
    *out_ns = 0;
    Arena *scratch = arena_open();
    if (!scratch)
        return diag_oom(d);
    int64_t update = p->clip.median_ns;
    for (int u = 0; u < g->n_unit; u++)
        if (!plan_can_reside(g, p, u))
            update += cpu_ns(g, p, u);
    *out_ns = update;
    Facts f = {g, p, ARENA_NEW(scratch, bool, 2 * g->n_segment)};
    Status st = f.runs ? ST_OK : diag_oom(d);
    for (int i = 0; st == ST_OK && i < g->node.count; i++)
        f.runs[2 * g->node.at[i].segment + (int)g->node.at[i].phase] = true;
    if (st == ST_OK)
        st = resource_bound(d, scratch, &f, out_ns);
    if (st == ST_OK)
        st = cycle_bound(d, scratch, &f, clip, out_ns);
    arena_close(scratch);
    return st;
}
