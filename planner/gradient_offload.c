/* gradient_offload.c - which gradients stay on the GPU (GO-MemFerry, section IV-D), exactly.
 *
 * Every gradient starts in host memory, written by DHA. Keeping gradient i on the GPU gains T_GBP(i) - T_CBP(i) of
 * backward time and costs its bytes: a knapsack. The paper fills a table over (layer, bytes), which has to quantise
 * bytes. Here the table's row is a list of only those states that matter: pairs (bytes, gain) of which none is both at
 * least as large and at most as good as another. Going from thing i - 1 to thing i merges the list with itself shifted
 * by (bytes_i, gain_i):
 *
 *     gain |           .---             o  states without thing i
 *          |      o----                 x  the same, with it
 *          |   x--'                     the staircase of both is the next list
 *          | o-'
 *          +------------------ bytes
 *
 * The list may still grow long. Things go by falling gain per byte, so a greedy filling of what is left of the limit,
 * the last thing cut to fit, bounds from above what a state can still become; a state whose bound is below the best
 * whole filling seen so far is dropped. That keeps the result exact and leaves few states. With sums over the things in
 * this order a bound takes a binary search. */
#include "planner/problem.h"

#include <stdlib.h>

enum { MAX_LINKS = 8 * 1000 * 1000 };

__extension__ typedef __int128 Wide;

typedef struct Thing {
    int index;
    int64_t bytes, gain; /* both positive */
} Thing;

/* How a state came about: the thing added last, and the link of the state that it was added to. */
typedef struct Link {
    int thing, before; /* -1: the empty set */
} Link;

typedef struct State {
    int64_t bytes, gain;
    int link;
} State;

typedef struct Search {
    const Thing *thing;
    int n;
    int64_t limit, best; /* gain of the best whole filling seen */
    int64_t *bytes_before, *gain_before; /* sums over things [0, i) */
    VEC(Link) link;
    VEC(State) now, next;
} Search;

/* Falling gain per byte, compared without rounding. */
static int by_rate(const void *x, const void *y)
{
    const Thing *a = x, *b = y;
    Wide left = (Wide)a->gain * b->bytes, right = (Wide)b->gain * a->bytes;
    if (left != right)
        return left > right ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->index - b->index;
}

/* Gain of filling the room from thing `from` on in order, each that fits. */
static int64_t fill(const Search *s, int from, int64_t room)
{
    int64_t gain = 0;
    for (int i = from; i < s->n && room > 0; i++)
        if (s->thing[i].bytes <= room) {
            room -= s->thing[i].bytes;
            gain += s->thing[i].gain;
        }
    return gain;
}

/* False when nothing that can still follow brings this state to the best gain: the things from `from` on in order, the
 * first that does not fit cut to fit. Raises `best` to what the state becomes without that part. */
static bool hopeful(Search *s, int from, int64_t bytes, int64_t gain)
{
    int64_t room = s->limit - bytes;
    int low = from, high = s->n; /* the first thing that does not fit */
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (s->bytes_before[middle + 1] - s->bytes_before[from] <= room)
            low = middle + 1;
        else
            high = middle;
    }
    int64_t whole = gain + s->gain_before[low] - s->gain_before[from];
    room -= s->bytes_before[low] - s->bytes_before[from];
    s->best = whole > s->best ? whole : s->best;
    return low == s->n || whole + (int64_t)((Wide)s->thing[low].gain * room / s->thing[low].bytes) >= s->best;
}

/* now -> next: the staircase of the states with and without thing i. Both inputs rise in bytes and in gain. */
static Status extend(Diag *d, Search *s, int i)
{
    const Thing *t = &s->thing[i];
    s->next.count = 0;
    int without = 0, with = 0;
    int64_t top = -1; /* gain of the last state kept */
    for (;;) {
        bool can_with = with < s->now.count && s->now.at[with].bytes <= s->limit - t->bytes;
        bool can_without = without < s->now.count;
        if (!can_with && !can_without)
            return ST_OK;
        State next;
        bool take;
        if (can_with && can_without) {
            const State *a = &s->now.at[without], *b = &s->now.at[with];
            take = b->bytes + t->bytes < a->bytes || (b->bytes + t->bytes == a->bytes && b->gain + t->gain > a->gain);
        } else {
            take = can_with;
        }
        if (take) {
            next = s->now.at[with++];
            next.bytes += t->bytes;
            next.gain += t->gain;
        } else {
            next = s->now.at[without++];
        }
        if (next.gain <= top || !hopeful(s, i + 1, next.bytes, next.gain))
            continue;
        top = next.gain;
        if (take) {
            if (s->link.count >= MAX_LINKS) {
                diag_fail(d, ST_FAILED, "gradient offload: more than %d states for %d gradients", MAX_LINKS, s->n);
                return diag_hint(d, "choose gradients with --algorithm memferry, or another --reserve-factor");
            }
            Link *link = VEC_PUSH(&s->link);
            if (!link)
                return diag_oom(d);
            *link = (Link){i, next.link};
            next.link = s->link.count - 1;
        }
        State *at = VEC_PUSH(&s->next);
        if (!at)
            return diag_oom(d);
        *at = next;
    }
}

static Status run(Diag *d, Search *s, bool *keep)
{
    State *empty = VEC_PUSH(&s->now);
    if (!empty)
        return diag_oom(d);
    *empty = (State){.link = -1};
    for (int i = 0; i < s->n; i++) {
        /* a good filling early drops many states: that of the state with most gain, for each thing */
        const State *last = &s->now.at[s->now.count - 1];
        int64_t whole = last->gain + fill(s, i, s->limit - last->bytes);
        s->best = whole > s->best ? whole : s->best;
        TRY(extend(d, s, i));
        State *at = s->now.at;
        int capacity = s->now.capacity;
        s->now.at = s->next.at;
        s->now.capacity = s->next.capacity;
        s->now.count = s->next.count;
        s->next.at = at;
        s->next.capacity = capacity;
    }
    /* Gains rise along the list: the last state is the best one, and has the fewest bytes of those with its gain. */
    for (int k = s->now.at[s->now.count - 1].link; k >= 0; k = s->link.at[k].before)
        keep[s->thing[s->link.at[k].thing].index] = true;
    return ST_OK;
}

Status gradient_offload(Diag *d, int n, const int64_t *bytes, const int64_t *gain, int64_t limit_bytes, bool *keep)
{
    Thing *thing = base_alloc((size_t)n * sizeof *thing + 1);
    if (!thing)
        return diag_oom(d);
    int count = 0;
    for (int i = 0; i < n; i++) {
        keep[i] = gain[i] > 0 && bytes[i] == 0;
        if (gain[i] > 0 && bytes[i] > 0 && bytes[i] <= limit_bytes)
            thing[count++] = (Thing){i, bytes[i], gain[i]};
    }
    qsort(thing, (size_t)count, sizeof *thing, by_rate);
    Search s = {.thing = thing, .n = count, .limit = limit_bytes};
    s.bytes_before = base_alloc(2 * ((size_t)count + 1) * sizeof *s.bytes_before);
    Status status = ST_OK;
    if (s.bytes_before) {
        s.gain_before = s.bytes_before + count + 1;
        for (int i = 0; i < count; i++) {
            s.bytes_before[i + 1] = s.bytes_before[i] + thing[i].bytes;
            s.gain_before[i + 1] = s.gain_before[i] + thing[i].gain;
        }
        status = run(d, &s, keep);
    } else {
        status = diag_oom(d);
    }
    base_free(s.bytes_before);
    VEC_FREE(&s.link);
    VEC_FREE(&s.now);
    VEC_FREE(&s.next);
    base_free(thing);
    return status;
}
