/* recompute.c - which segments of the forward pass are computed again (graph/recompute.c), by size.
 *
 * A segment ends at a cut, a place over which few bytes are carried. Sizes are bytes of what the backward pass reads of the
 * segment's values. */
#include "planner/plan_search.h"

/* The graph whose segments end at these cuts. */
static Status at_cuts(Search *s, const Cut *cut, const int *end, int n, const Graph **out)
{
    const char **name = ARENA_NEW(s->a, const char *, n);
    if (!name)
        return diag_oom(s->d);
    for (int i = 0; i < n; i++)
        name[i] = cut[end[i]].name;
    return graph_recompute(s->d, s->a, s->plain, n, name, out);
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
        return diag_hint(s->d, "use --recompute %d", n);
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
    return at_cuts(s, cut, end, segments, out);
}
