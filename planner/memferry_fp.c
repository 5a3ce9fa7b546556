/* memferry_fp.c - Algorithm 1 of MemFerry: for each unit, load it before its forward (GFGB) or read it in place (DHA).
 *
 * Loads run one after another on the link, from the start of the step on. Two numbers describe where the walk through
 * the layers stands:
 *
 *   T_all   the time at which compute is done with everything so far
 *   T_res   T_all less the load time spent so far: how long the link could have stood idle, which is the load time
 *           that the layers so far can still hide
 *
 *        link     |== load 1 ==|== load 2 ==|........ T_res ........|
 *        compute  |  A  | DHA  |  1  |  2  |  DHA                   |
 *                                                                 T_all
 *
 * A layer read by DHA moves both forward by T_FP^H: it needs no load. A loaded layer moves T_all by T_FP and T_res by
 * T_FP - T_trans. If its load does not fit into T_res, compute stalls for the rest; then it may pay to go back and read
 * an earlier loaded layer i by DHA: the link gets T_trans(i) back and compute grows by what DHA costs more, which hides
 * load time as well.
 *
 * Line 3 of the algorithm decides DHA when T_FP^H(l) <= T_FP(l) + max(T_trans(l), 0). The max has no effect as
 * printed. Two readings:
 *   literal   as printed: DHA pays when it takes no longer than load and compute one after the other
 *   slack     max(T_trans(l) - T_res, 0): only the part of the load that is not hidden counts */
#include "planner/problem.h"

const char *fp_reading_name(FpReading r)
{
    return r == FP_LITERAL ? "literal" : "slack";
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Layer l is loaded and stalls. Loaded layers from the tag on become DHA, first to last, as long as that brings the end
 * of l forward; l itself stays loaded. Layers between i and l may have stalled too, which this estimate does not see:
 * the timeline does. */
static void backtrack(const Problem *p, int l, MemferryState *s)
{
    const Item *at = &p->item[l];
    /* line 19: the end of layer l when nothing is changed, its stall included */
    int64_t base = s->all_ns + at->trans_ns + at->fp_ns - s->res_ns;
    int from = s->tag < 0 ? l : s->tag;
    for (int i = from; i < l; i++) {
        if (s->mode[i] != MODE_GFGB)
            continue;
        const Item *it = &p->item[i];
        int64_t more = it->fp_h_ns - it->fp_ns; /* what compute pays */
        int64_t gain = it->trans_ns + more;     /* line 21: what the overlap gains */
        /* line 22: the stall that is left, then layer l */
        int64_t with = max64(at->trans_ns - s->res_ns - gain, 0) + s->all_ns + more + at->fp_ns;
        if (with >= base)
            continue;
        s->mode[i] = MODE_DHA;
        s->tag = i + 1;
        base = with;
        s->res_ns += gain;
        s->all_ns +=
            more; /* the printed loop leaves this out; without it a second change would be judged from a past T_all */
        if (s->res_ns >= at->trans_ns)
            break;
    }
    /* line 29: both are set, not incremented. A load that was waited for leaves no slack behind it. */
    s->all_ns = base;
    s->res_ns = max64(s->res_ns - at->trans_ns, 0) + at->fp_ns;
}

/* needs: problem   fills: mode, all_ns, res_ns, tag */
Status memferry_fp(Diag *d, Arena *a, const Problem *p, FpReading reading, MemferryState *out)
{
    *out = (MemferryState){.tag = -1};
    out->mode = ARENA_NEW(a, Mode, p->n_item);
    if (!out->mode)
        return diag_oom(d);
    /* What comes before the first layer hides loads like everything else. */
    out->all_ns = out->res_ns = p->a_fp_ns[0];
    for (int l = 0; l < p->n_item; l++) {
        const Item *it = &p->item[l];
        int64_t load = reading == FP_LITERAL ? it->trans_ns : max64(it->trans_ns - out->res_ns, 0);
        if (it->fp_h_ns <= it->fp_ns + load) { /* line 3 */
            out->mode[l] = MODE_DHA;
            out->all_ns += it->fp_h_ns;
            out->res_ns += it->fp_h_ns;
        } else {
            if (it->trans_ns < out->res_ns) { /* line 7: no stall */
                /* The tag is the first loaded layer that a later backtrack may change. */
                if (out->tag < 0)
                    out->tag = l;
                out->all_ns += it->fp_ns;
                out->res_ns += it->fp_ns - it->trans_ns;
            } else {
                backtrack(p, l, out);
            }
            out->mode[l] = MODE_GFGB;
        }
        out->all_ns += p->a_fp_ns[l + 1]; /* line 15 */
        out->res_ns += p->a_fp_ns[l + 1];
    }
    return ST_OK;
}

void memferry_print(const Problem *p, const MemferryState *s, const char *title, Text *to)
{
    text_add(to, "%s: T_all %lld ns, T_res %lld ns, tag %d\n", title, (long long)s->all_ns, (long long)s->res_ns,
             s->tag);
    for (int i = 0; i < p->n_item; i++)
        text_add(to, "  %-40s %s\n", p->graph->unit[p->item[i].unit].name, mode_name(s->mode[i]));
}
