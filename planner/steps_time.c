/* steps_time.c - how long each step takes, alone, and what it occupies.
 *
 * needs: steps with accesses, a matching profile   fills: duration_ns, link   keeps: everything else
 *
 * The profile knows layers and the operators between them, the list knows kernels. A segment's time for the place where
 * its parameters and gradients are is split among its kernels so that their sum is exactly that time. What is computed
 * again takes what it took in the forward pass; of a segment only a part of which is, the part by node_cost.
 *  - the time with everything in GPU memory by node_cost;
 *  - what reading parameters by DHA adds to the kernels that read them from the host, by the bytes they read; what
 * writing gradients adds likewise. A kernel that is faster by DHA (noise in the profile) makes the whole segment
 * shorter. When only some of a layer's bytes are on the host, its time is interpolated: with r and w the parts of the
 * bytes that are read and written by DHA, between the four measured corners of (parameters, gradients). */
#include "planner/steps.h"

/* Sums over the kernels of one segment and phase, and the running sums while its time is dealt out. */
typedef struct Share {
    double cost, read, write;   /* of all kernels; bytes only of those on the host */
    double all_read, all_write; /* bytes of parameters and gradients wherever they are */
    double part;                /* of the profiled kernels that these are: less than 1 when only some are computed again */
    double done_cost, done_read, done_write;
    int64_t base_ns, read_ns, write_ns; /* to deal out */
    int64_t dealt_base, dealt_read, dealt_write;
} Share;

/* The next part of `total`, which ends at done/all of it: the parts sum up to exactly total. */
static int64_t deal(int64_t total, double *done, double part, double all, int64_t *dealt)
{
    *done += part;
    if (all <= 0)
        return 0;
    int64_t upto = *done >= all ? total : (int64_t)((double)total * (*done / all));
    int64_t share = upto - *dealt;
    *dealt = upto;
    return share;
}

/* Bytes of parameters that a kernel reads and of gradients that it writes: on the host, and wherever they are. */
static void dha_bytes(const StepList *s, const Step *step, double *read, double *write, double *all_read,
                      double *all_write)
{
    const Graph *g = s->graph;
    const Node *n = &g->node.at[step->node];
    int outs = node_n_out(n);
    *read = *write = *all_read = *all_write = 0;
    for (int k = 0; k < node_n_arg(n); k++) {
        if (n->arg[k] < 0)
            continue;
        TensorKind kind = g->tensor.at[g->tensor.at[n->arg[k]].root].kind;
        if (kind != TENSOR_PARAM && kind != TENSOR_GRADIENT)
            continue;
        double bytes = (double)node_arg_traffic_bytes(g, n, k);
        bytes = bytes < 1 ? 1 : bytes; /* a share of its own, whatever the estimate says */
        int buffer = steps_arg_buffer(s, n, k);
        bool host = buffer >= 0 && s->buffer[buffer].pool == POOL_HOST;
        *(k < outs ? all_write : all_read) += bytes;
        if (host)
            *(k < outs ? write : read) += bytes;
    }
}

/* a + (b - a) * part, exact at both ends. */
static double between(double a, double b, double part)
{
    return part <= 0 ? a : part >= 1 ? b : a + (b - a) * part;
}

static void set_times(Share *x, const Profile *p, int segment, Phase phase)
{
    int l = segment / 2;
    double base, with_read, with_both;
    double r = x->all_read > 0 ? x->read / x->all_read : 0, w = x->all_write > 0 ? x->write / x->all_write : 0;
    if (segment % 2 == 0) {
        base = with_read = with_both =
            x->part * (double)(phase == PHASE_BP ? p->between[l].bp : p->between[l].fp).median_ns;
    } else if (phase != PHASE_BP) {
        base = (double)p->layer[l].fp[ON_GPU].median_ns;
        with_read = with_both = between(base, (double)p->layer[l].fp[ON_HOST].median_ns, r);
    } else {
        const LayerProfile *lp = &p->layer[l];
        base = (double)lp->bp[ON_GPU][ON_GPU].median_ns;
        with_read = between(base, (double)lp->bp[ON_HOST][ON_GPU].median_ns, r);
        with_both = between(
            with_read,
            between((double)lp->bp[ON_GPU][ON_HOST].median_ns, (double)lp->bp[ON_HOST][ON_HOST].median_ns, r), w);
    }
    base = (double)(int64_t)(base + 0.5);
    int64_t total = (int64_t)(with_both + 0.5);
    x->read_ns = (int64_t)(with_read + 0.5) - (int64_t)base;
    x->write_ns = total - (int64_t)(with_read + 0.5);
    if (x->read_ns < 0 || x->read <= 0)
        x->read_ns = 0;
    if (x->write_ns < 0 || x->write <= 0)
        x->write_ns = 0;
    if (x->read_ns + x->write_ns > total) /* one became faster by more than the other slower */
        x->read_ns = x->write_ns = 0;
    x->base_ns = total - x->read_ns - x->write_ns;
}

static Share *share_of(Share *share, int segment, Phase phase)
{
    return &share[PHASE_COUNT * (size_t)segment + (size_t)phase];
}

static void time_kernels(StepList *s, const Profile *p, Share *share)
{
    const Graph *g = s->graph;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < s->n_step; i++) {
            Step *step = &s->step[i];
            if (step->kind != STEP_KERNEL)
                continue;
            const Node *n = &g->node.at[step->node];
            Share *x = share_of(share, n->segment, n->phase);
            double read, write, all_read, all_write, cost = (double)node_cost(g, n);
            dha_bytes(s, step, &read, &write, &all_read, &all_write);
            if (pass == 0) {
                x->cost += cost;
                x->read += read;
                x->write += write;
                x->all_read += all_read;
                x->all_write += all_write;
                continue;
            }
            step->duration_ns = deal(x->base_ns, &x->done_cost, cost, x->cost, &x->dealt_base) +
                                deal(x->read_ns, &x->done_read, read, x->read, &x->dealt_read) +
                                deal(x->write_ns, &x->done_write, write, x->write, &x->dealt_write);
            bool r, w;
            if (steps_is_dha(s, step, &r, &w))
                step->link = (r ? 1u << LINK_DHA_READ : 0) | (w ? 1u << LINK_DHA_WRITE : 0);
        }
        for (int i = 0; pass == 0 && i < g->n_segment; i++) {
            Share *again = share_of(share, i, PHASE_RP), *once = share_of(share, i, PHASE_FP);
            again->part = once->cost > 0 ? again->cost / once->cost : 1;
            once->part = share_of(share, i, PHASE_BP)->part = 1;
            for (int phase = 0; phase < PHASE_COUNT; phase++)
                set_times(share_of(share, i, (Phase)phase), p, i, (Phase)phase);
        }
    }
}

/* The cost of a caching allocator: plan->n_alloc allocations, dealt out evenly to the kernels that write gradients,
 * which are the ones that allocate there; to all kernels when none does. */
static Status add_allocations(Diag *d, StepList *s, const Profile *p)
{
    int64_t total, dealt = 0;
    if (s->plan->n_alloc <= 0 || p->device.alloc_ns <= 0)
        return ST_OK;
    if (mul_overflows_i64(s->plan->n_alloc, p->device.alloc_ns, &total))
        return diag_fail(d, ST_MODEL, "the time of %lld allocations overflows", (long long)s->plan->n_alloc);
    for (int any = 0; any < 2; any++) {
        int64_t count = 0, done = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < s->n_step; i++) {
                Step *step = &s->step[i];
                bool hit = step->kind == STEP_KERNEL && any;
                for (int k = 0; step->kind == STEP_KERNEL && k < step->n_access; k++) {
                    BufferKind kind = s->buffer[step->access[k].buffer].kind;
                    hit = hit || (step->access[k].write && (kind == BUFFER_GRAD || kind == BUFFER_HOST_GRAD));
                }
                if (!hit)
                    continue;
                if (pass == 0) {
                    count++;
                    continue;
                }
                done++;
                int64_t upto = total / count * done + total % count * done / count;
                step->duration_ns += upto - dealt;
                dealt = upto;
            }
        if (count > 0)
            break;
    }
    return ST_OK;
}

Status steps_time(Diag *d, StepList *s, const Profile *p)
{
    const Graph *g = s->graph;
    if (p->n_layer != g->n_layer || p->n_unit != g->n_unit)
        return diag_fail(d, ST_MODEL, "the profile has %d layers and %d units, the graph %d and %d", p->n_layer,
                         p->n_unit, g->n_layer, g->n_unit);
    for (int i = 0; i < s->n_step; i++) {
        Step *step = &s->step[i];
        const UnitProfile *u = step->unit >= 0 ? &p->unit[step->unit] : NULL;
        step->duration_ns = 0;
        step->link = 0;
        switch (step->kind) {
        case STEP_STAGE:
        case STEP_COLLECT:
        case STEP_KERNEL:
            break;
        case STEP_LOAD_INPUT:
            step->duration_ns = p->input_load.median_ns;
            step->link = 1u << LINK_H2D;
            break;
        case STEP_LOAD:
            step->duration_ns = u->load.median_ns;
            step->link = 1u << LINK_H2D;
            break;
        case STEP_STORE_LOSS:
            step->duration_ns = p->loss_store.median_ns;
            step->link = 1u << LINK_D2H;
            break;
        case STEP_STORE:
            step->duration_ns = u->store.median_ns;
            step->link = 1u << LINK_D2H;
            break;
        case STEP_SQNORM:
            step->duration_ns = step->stream == STREAM_COMPUTE ? u->resident_norm.median_ns : u->norm.median_ns;
            step->link = step->stream == STREAM_COMPUTE ? 0 : 1u << LINK_UPDATE;
            break;
        case STEP_NORM:
            step->duration_ns = p->clip.median_ns;
            step->link = 1u << LINK_UPDATE;
            break;
        case STEP_ADAMW:
            step->duration_ns = step->stream == STREAM_COMPUTE ? u->resident_update.median_ns : u->update.median_ns;
            step->link = step->stream == STREAM_COMPUTE ? 0 : 1u << LINK_UPDATE;
            break;
        }
    }
    for (int i = 0; i < s->n_step; i++)
        if (s->step[i].duration_ns < 0)
            return diag_fail(d, ST_MODEL, "unit %s: the profile does not say how long its update takes on the GPU",
                             g->unit[s->step[i].unit].name);
    Share *share = base_alloc(PHASE_COUNT * (size_t)g->n_segment * sizeof *share);
    if (!share)
        return diag_oom(d);
    time_kernels(s, p, share);
    base_free(share);
    return add_allocations(d, s, p);
}
