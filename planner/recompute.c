/* recompute.c - which segments of the forward pass are computed again (graph/recompute.c), without looking at any budget.
 *
 * A segment ends at a cut, a place over which few bytes are carried. The sizes of segments are bytes of what the backward
 * pass reads of their values. What a choice of segments is worth can be told from the graph: the time of its copies, and
 * the most bytes of values that are live at once. So all choices of two kinds of number are looked at in that way:
 *
 *   depth   the part of the forward pass, from its beginning, that is computed again. The values of early layers are kept
 *           longest, and where memory is most often short, between the passes, it does not matter whose are dropped; time
 *           grows with depth.
 *   count   segments of about equal size in it. Few keep little in between but have much at once when they are computed
 *           again; many keep more. The optimum is near the square root of the number of cuts, but the last operators of a
 *           segment are never computed again, so many small segments take less time.
 *
 * Of the choices that no other beats in both, a few at even distances in bytes are the graphs in which plans are searched:
 * the enumeration outside of the search for modes. */
#include <math.h>
#include <stdlib.h>

#include "planner/plan_search.h"

enum {
    DEPTHS = 8, /* in parts of all */
    MOST = 6    /* graphs in which plans are searched */
};

typedef struct Choice {
    int n, *end; /* cuts */
    int64_t extra_ns, live_bytes;
} Choice;

/* Segments of about equal size up to the first cut at which `total` bytes are reached; less than asked for when there are
 * not so many cuts. */
static int spread(const Cut *cut, int n, double total, int segments, int *end)
{
    int count = 0;
    for (int i = 0, at = 0; i < segments && at < n; i++, at++) {
        double upto = total * (i + 1) / segments;
        while (at < n - 1 && (double)cut[at].saved_bytes < upto)
            at++;
        end[count++] = at;
    }
    return count;
}

static Status make_graph(Search *s, Arena *a, const Cut *cut, const int *end, int n, const Graph **out)
{
    const char **name = ARENA_NEW(a, const char *, n);
    if (!name)
        return diag_oom(s->d);
    for (int i = 0; i < n; i++)
        name[i] = cut[end[i]].name;
    return graph_recompute(s->d, a, s->plain, n, name, out);
}

/* So many segments, and the last part of the forward pass, which keeps everything, of about equal size. */
Status recompute_evenly(Search *s, int segments, const Graph **out)
{
    Cut *cut;
    int n;
    int64_t total;
    TRY(graph_cuts(s->d, s->a, s->plain, &cut, &n, &total));
    if (segments > n) {
        diag_fail(s->d, ST_USAGE, "--recompute %d: the forward pass can be cut into at most %d segments", segments, n);
        return diag_hint(s->d, n > 0 ? "use --recompute %d" : "use --recompute none", n);
    }
    int *end = ARENA_NEW(s->a, int, segments);
    if (!end)
        return diag_oom(s->d);
    for (int i = 0, at = 0; i < segments; i++, at++) {
        double upto = (double)total * (i + 1) / (segments + 1);
        while (at < n - (segments - i) && (double)cut[at].saved_bytes < upto)
            at++;
        end[i] = at;
    }
    return make_graph(s, s->a, cut, end, segments, out);
}

/* ---- what a choice is worth -------------------------------------------------------------------------------------- */

/* The most bytes of values that are live at once, by the order of the nodes. */
static Status live_bytes(Diag *d, Arena *a, const Graph *g, int64_t *out)
{
    int64_t *change = ARENA_NEW(a, int64_t, g->node.count + 1), now = 0;
    *out = 0;
    if (!change)
        return diag_oom(d);
    for (int t = 0; t < g->tensor.count; t++) {
        const Tensor *x = &g->tensor.at[t];
        if (x->root != t || x->kind != TENSOR_VALUE || x->first_write < 0)
            continue;
        change[x->first_write] += x->bytes;
        change[x->last_use + 1] -= x->bytes;
    }
    for (int i = 0; i < g->node.count; i++) {
        now += change[i];
        *out = now > *out ? now : *out;
    }
    return ST_OK;
}

/* Copies by the profile's forward times, parameters in GPU memory. */
static Status extra_ns(Diag *d, Arena *a, const Graph *g, const Profile *p, int64_t *out)
{
    double *cost = ARENA_NEW(a, double, 2 * (size_t)g->n_segment), sum = 0;
    if (!cost)
        return diag_oom(d);
    for (int i = 0; i < g->node.count; i++) {
        const Node *n = &g->node.at[i];
        if (n->phase != PHASE_BP)
            cost[2 * n->segment + (n->phase == PHASE_RP)] += (double)node_cost(g, n);
    }
    for (int i = 0; i < g->n_segment; i++) {
        const Timing *t = i % 2 == 0 ? &p->between[i / 2].fp : &p->layer[i / 2].fp[ON_GPU];
        sum += cost[2 * i] > 0 ? (double)t->median_ns * cost[2 * i + 1] / cost[2 * i] : 0;
    }
    *out = (int64_t)sum;
    return ST_OK;
}

static Status judge(Search *s, const Cut *cut, Choice *c)
{
    Arena *scratch = arena_open();
    const Graph *g;
    if (!scratch)
        return diag_oom(s->d);
    Status st = make_graph(s, scratch, cut, c->end, c->n, &g);
    if (st == ST_OK)
        st = live_bytes(s->d, scratch, g, &c->live_bytes);
    if (st == ST_OK)
        st = extra_ns(s->d, scratch, g, s->p, &c->extra_ns);
    arena_close(scratch);
    return st;
}

static int by_time(const void *x, const void *y)
{
    const Choice *a = x, *b = y;
    if (a->extra_ns != b->extra_ns)
        return a->extra_ns < b->extra_ns ? -1 : 1;
    if (a->live_bytes != b->live_bytes)
        return a->live_bytes < b->live_bytes ? -1 : 1;
    return a->n - b->n;
}

/* 1, 2, 3, 4, 6, 8, 12, 16, ...: each half as much again as the one before, or a third */
static int next_count(int n)
{
    return n < 4 ? n + 1 : (n & (n - 1)) == 0 ? n + n / 2 : n + n / 3;
}

static Status list_choices(Search *s, const Cut *cut, int n, Choice **out, int *count)
{
    int most = 0;
    for (int k = 1; k <= n; k = next_count(k))
        most++;
    Choice *c = *out = ARENA_NEW(s->a, Choice, DEPTHS * (most + 1));
    *count = 0;
    if (!c)
        return diag_oom(s->d);
    for (int depth = 1; depth <= DEPTHS; depth++) {
        double total = (double)cut[n - 1].saved_bytes * depth / DEPTHS;
        for (int k = 1, before = 0; before < n; k = next_count(k)) {
            c->end = ARENA_NEW(s->a, int, n);
            if (!c->end)
                return diag_oom(s->d);
            c->n = spread(cut, n, total, k <= n ? k : n, c->end);
            if (c->n <= before) /* no more cuts in this depth */
                break;
            before = c->n;
            TRY(judge(s, cut, c));
            c++;
            if (k > n)
                break;
        }
    }
    *count = (int)(c - *out);
    return ST_OK;
}

/* Sorts by time and leaves those that save bytes over all faster ones, starting below the graph that keeps everything. */
static int best_choices(Choice *c, int count, int64_t plain_bytes)
{
    int n = 0;
    int64_t least = plain_bytes;
    qsort(c, (size_t)count, sizeof *c, by_time);
    for (int i = 0; i < count; i++)
        if (c[i].live_bytes < least) {
            least = c[i].live_bytes;
            c[n++] = c[i];
        }
    return n;
}

Status recompute_graphs(Search *s, const Graph ***out, int *n_out)
{
    Cut *cut;
    Choice *c;
    int n, count;
    int64_t total, plain;
    *n_out = 0;
    *out = ARENA_NEW(s->a, const Graph *, MOST);
    if (!*out)
        return diag_oom(s->d);
    TRY(graph_cuts(s->d, s->a, s->plain, &cut, &n, &total));
    if (n == 0)
        return ST_OK;
    TRY(live_bytes(s->d, s->a, s->plain, &plain));
    TRY(list_choices(s, cut, n, &c, &count));
    count = best_choices(c, count, plain);
    /* The one that is nearest from below to each of even steps, in ratio, from all bytes down to the least. */
    for (int i = 0, last = -1; i < MOST && count > 0; i++) {
        double upto = (double)plain * pow((double)c[count - 1].live_bytes / (double)plain, (i + 1) / (double)MOST);
        int at = 0;
        while (at < count - 1 && (double)c[at].live_bytes > upto)
            at++;
        if (at == last)
            continue;
        TRY(make_graph(s, s->a, cut, c[at].end, c[at].n, &(*out)[(*n_out)++]));
        last = at;
    }
    return ST_OK;
}

Status search_recompute(Search *s, const Candidate *plain, Status (*explore)(Search *s, Candidate *from))
{
    const Graph **g;
    int n;
    if (s->o->recompute != RECOMPUTE_AUTO)
        return ST_OK;
    TRY(recompute_graphs(s, &g, &n));
    for (int i = 0; i < n; i++) {
        Plan p;
        Candidate *c;
        TRY(search_enter(s, g[i]));
        TRY(search_adopt(s, &plain->plan, &p));
        TRY(search_add(s, &p, "computed again", &c));
        TRY(explore(s, c));
        Candidate *best = search_fastest(s);
        TRY(search_enter(s, s->plain)); /* what is good there may be good here */
        TRY(search_adopt(s, &best->plan, &p));
        TRY(search_add(s, &p, "as where values are computed again", &c));
    }
    return ST_OK;
}
