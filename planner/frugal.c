/* frugal.c - from a fast candidate down to the one that needs least memory, without looking at any budget.
 *
 * Each move saves bytes and costs time: a loaded unit is loaded twice, within a window, or read by DHA instead, whichever
 * costs less; a gradient is written to host memory instead; at the end what is loaded twice is read by DHA after all.
 * Ordered by cost per byte saved and applied one after another, the moves are a path from the start to
 * everything on the host. The places on this path, each judged by the timeline and laid out, are the frontier from
 * which plan_make takes the fastest that fits. What a move costs depends on what is the bottleneck at that place, so
 * there are three kinds of path:
 *
 *   priced   units first, gradients after them (at the end of the forward pass, where memory is most often short, there
 * are no gradients yet). In a few stages the timeline prices every move from where the path stands, and the cheapest
 * part of what is left is made. around   the priced path once more for each large unit, which is moved before all
 * others, and after them: such a unit (an embedding) may alone be what a budget needs, or what it must not touch. mixed
 * units and gradients together by what the profile says that they add to compute.
 *
 * Places are tried on a grid first and then in the middle of the widest gap in bytes; some are worked on further. */
#include "planner/plan_search.h"

#include <stdlib.h>
#include <string.h>

enum {
    STAGES = 4, /* of a priced path */
    PRICED =
        128, /* moves that the timeline prices in a stage: those that save most; the others keep the profile's price */
    GRID = 12,       /* places of a path tried first */
    REFINE = 10,     /* places tried in gaps */
    POINTS = 5,      /* parts of a priced path whose ends are worked on further */
    SIDE_POINTS = 2, /* the same for a path around a large unit */
    LARGE = 8,       /* a unit is large with this part of all bytes that moves of units save */
    IMPROVE = 50,    /* single changes tried at each of them */
    AGAIN_POINTS = 1, /* the two for the path in a graph with recomputation, of which there are several */
    AGAIN_IMPROVE = 20,
    INHERIT = 6,     /* places after each that start from its work */
    WINDOWS = 4      /* gradient windows: 1, 2, 4, 8 times the largest gradient; load windows likewise */
};

typedef enum MoveKind { MOVE_RELOAD, MOVE_HOST, MOVE_GRAD } MoveKind;

typedef struct Move {
    int unit;
    MoveKind kind;
    int64_t saves_bytes, cost_ns;
} Move;

__extension__ typedef __int128 Wide;

static int by_price(const void *x, const void *y)
{
    const Move *a = x, *b = y;
    Wide left = (Wide)a->cost_ns * b->saves_bytes, right = (Wide)b->cost_ns * a->saves_bytes;
    if (left != right)
        return left < right ? -1 : 1;
    if (a->unit != b->unit)
        return a->unit - b->unit;
    return (int)a->kind - (int)b->kind;
}

static int by_saving(const void *x, const void *y)
{
    const Move *a = x, *b = y;
    if (a->saves_bytes != b->saves_bytes)
        return a->saves_bytes > b->saves_bytes ? -1 : 1;
    return a->unit - b->unit;
}

static void make_move(const Search *s, Plan *p, const Move *m)
{
    if (m->kind == MOVE_GRAD)
        p->unit[m->unit].grad = ON_HOST;
    else
        plan_set_mode(&s->g->unit[m->unit], m->kind == MOVE_RELOAD ? MODE_RELOAD : MODE_DHA, &p->unit[m->unit]);
}

/* All moves of units, or of gradients, from these choices, with what the profile says that they add to compute. */
static int list_moves(const Search *s, const Plan *from, bool grads, Move *out)
{
    int n = 0;
    for (int i = 0; i < from->n_unit; i++) {
        const Unit *u = &s->g->unit[i];
        const UnitPlan *c = &from->unit[i];
        if (!grads && !s->pinned[i].set && c->first_gpu_use < u->n_use && u->bytes > 0) {
            int64_t before = problem_dha_cost_ns(s->problem, i, c->first_gpu_use);
            out[n++] = (Move){i, MOVE_HOST, u->bytes, problem_dha_cost_ns(s->problem, i, u->n_use) - before};
        }
        if (grads && c->grad == ON_GPU && u->grad_bytes > 0)
            out[n++] = (Move){i, MOVE_GRAD, u->grad_bytes, problem_grad_gain_ns(s->problem, i, c)};
    }
    return n;
}

/* What is loaded twice after these moves is read by DHA at last, the largest first: they ask for the largest windows. */
static int list_last_moves(const Search *s, const Move *move, int units, Move *out)
{
    int n = 0;
    for (int i = 0; i < units; i++)
        if (move[i].kind == MOVE_RELOAD)
            out[n++] = (Move){move[i].unit, MOVE_HOST, s->g->unit[move[i].unit].bytes, 0};
    qsort(out, (size_t)n, sizeof *out, by_saving);
    return n;
}

/* Orders move[0, n) stage by stage; each becomes the cheaper one of loading twice and DHA. */
static Status price_moves(Search *s, const Plan *from, Move *move, int n)
{
    Plan p;
    TRY(search_copy(s, from, &p));
    int64_t left = 0;
    for (int i = 0; i < n; i++)
        left += move[i].saves_bytes;
    for (int stage = 0, at = 0; stage < STAGES && at < n; stage++) {
        Candidate *now, *with;
        TRY(search_try(s, &p, "frugal", &now));
        qsort(move + at, (size_t)(n - at), sizeof *move, by_saving);
        for (int i = at; i < n && i < at + PRICED; i++) {
            UnitPlan *unit = &p.unit[move[i].unit], was = *unit, again = was;
            make_move(s, &p, &move[i]);
            TRY(search_try(s, &p, "frugal", &with));
            move[i].cost_ns = with->iteration_ns - now->iteration_ns;
            *unit = was;
            if (was.hold != HOLD_STEP || !plan_set_mode(&s->g->unit[move[i].unit], MODE_RELOAD, &again))
                continue;
            *unit = again;
            TRY(search_try(s, &p, "frugal", &with));
            *unit = was;
            if (with->iteration_ns - now->iteration_ns < move[i].cost_ns)
                move[i] = (Move){move[i].unit, MOVE_RELOAD, move[i].saves_bytes, with->iteration_ns - now->iteration_ns};
        }
        qsort(move + at, (size_t)(n - at), sizeof *move, by_price);
        for (int64_t part = left / (STAGES - stage); at < n && part > 0; at++) {
            make_move(s, &p, &move[at]);
            part -= move[at].saves_bytes;
            left -= move[at].saves_bytes;
        }
    }
    return ST_OK;
}

typedef struct Path {
    const Candidate *from;
    const Move *move;
    int n;
    Candidate **at; /* by number of moves made, n + 1; NULL where not tried */
} Path;

static Status try_at(Search *s, Path *path, int k)
{
    if (path->at[k])
        return ST_OK;
    Plan p;
    TRY(search_copy(s, &path->from->plan, &p));
    for (int i = 0; i < k; i++)
        make_move(s, &p, &path->move[i]);
    search_load_window(s, &p, 2);
    TRY(search_add(s, &p, "frugal", &path->at[k]));
    return search_size(s, path->at[k]);
}

/* The middle of the two neighbours that lie furthest apart in bytes; -1 when every place has been tried. */
static int widest_gap(const Path *path)
{
    int best = -1, before = 0;
    int64_t most = -1;
    for (int k = 1; k <= path->n; k++) {
        if (!path->at[k])
            continue;
        int64_t gap = llabs(path->at[before]->peak_bytes - path->at[k]->peak_bytes);
        if (k - before > 1 && gap > most) {
            most = gap;
            best = before + (k - before) / 2;
        }
        before = k;
    }
    return best;
}

/* The update placement and single changes at a place that do not need more memory; gradient windows. */
static Status work_on(Search *s, Candidate *c, int improve, Candidate **out)
{
    Candidate *best;
    TRY(search_late(s, &c->plan, "frugal, updates moved", &best));
    TRY(search_size(s, best));
    if (best->peak_bytes > c->peak_bytes)
        best = c;
    TRY(search_improve(s, best, improve, c->peak_bytes, &best));
    int64_t window = largest_grad_bytes(s->g);
    for (int i = 0; i < WINDOWS && window < all_grad_bytes(s->g); i++, window *= 2) {
        Plan p;
        Candidate *with;
        TRY(search_copy(s, &best->plan, &p));
        p.gradient_window_bytes = window;
        TRY(search_add(s, &p, "frugal, gradient window", &with));
    }
    for (int times = 1; times <= 1 << (WINDOWS - 1) && best->plan.load_window_bytes > 0; times *= 2) {
        Plan p;
        Candidate *with;
        TRY(search_copy(s, &best->plan, &p));
        search_load_window(s, &p, times);
        p.gradient_window_bytes = times == 1 ? largest_grad_bytes(s->g) : best->plan.gradient_window_bytes;
        TRY(search_add(s, &p, "frugal, load window", &with));
    }
    *out = best;
    return ST_OK;
}

/* Tries the places of a path; works on the ends of `points` parts of the first `units` moves, with so many single changes. */
static Status walk(Search *s, const Candidate *from, const Move *move, int n, int units, int points, int improve)
{
    Path path = {.from = from, .move = move, .n = n, .at = ARENA_NEW(s->a, Candidate *, n + 1)};
    if (!path.at)
        return diag_oom(s->d);
    for (int i = 0; i <= GRID; i++)
        TRY(try_at(s, &path, (int)((int64_t)n * i / GRID)));
    for (int i = 0; i < REFINE; i++) {
        int k = widest_gap(&path);
        if (k < 0)
            break;
        TRY(try_at(s, &path, k));
    }
    for (int i = 0; i <= points && points > 0; i++) {
        int k = (int)((int64_t)units * i / points), next = (int)((int64_t)units * (i + 1) / points);
        Candidate *worked, *c;
        TRY(try_at(s, &path, k));
        TRY(work_on(s, path.at[k], improve, &worked));
        /* The moves up to the next such place, made from the better choices. */
        Plan p;
        TRY(search_copy(s, &worked->plan, &p));
        for (int at = k; i < points && at < next; at++) {
            make_move(s, &p, &move[at]);
            search_load_window(s, &p, 2);
            if ((at - k + 1) * INHERIT / (next - k) > (at - k) * INHERIT / (next - k))
                TRY(search_add(s, &p, "frugal, inherited", &c));
        }
    }
    Candidate *last;
    return points > 0 ? work_on(s, path.at[n], improve, &last) : ST_OK;
}

/* The path of `units` moves with one of them brought to the front or to the end. */
static void move_one(const Move *from, int units, int n, int which, bool front, Move *to)
{
    int at = 0;
    if (front)
        to[at++] = from[which];
    for (int i = 0; i < units; i++)
        if (i != which)
            to[at++] = from[i];
    if (!front)
        to[at++] = from[which];
    memcpy(to + units, from + units, (size_t)(n - units) * sizeof *to);
}

Status search_frugal(Search *s, const Candidate *from)
{
    Move *move = ARENA_NEW(s->a, Move, 3 * s->g->n_unit);
    if (!move)
        return diag_oom(s->d);
    int units = list_moves(s, &from->plan, false, move), n = units + list_moves(s, &from->plan, true, move + units);
    TRY(price_moves(s, &from->plan, move, units));
    qsort(move + units, (size_t)(n - units), sizeof *move, by_price);
    n += list_last_moves(s, move, units, move + n);
    TRY(walk(s, from, move, n, units, POINTS, IMPROVE));
    s->path = move;
    s->n_path = n;
    s->n_path_units = units;

    Move *around = ARENA_NEW(s->a, Move, n);
    int64_t all = 0;
    if (!around)
        return diag_oom(s->d);
    for (int i = 0; i < units; i++)
        all += move[i].saves_bytes;
    for (int i = 0; i < units; i++) {
        if (move[i].saves_bytes < all / LARGE)
            continue;
        for (int front = 0; front < 2; front++) {
            move_one(move, units, n, i, front, around);
            TRY(walk(s, from, around, n, units, SIDE_POINTS, IMPROVE));
        }
    }

    Move *mixed = ARENA_NEW(s->a, Move, 2 * s->g->n_unit);
    if (!mixed)
        return diag_oom(s->d);
    units = list_moves(s, &from->plan, false, mixed);
    n = units + list_moves(s, &from->plan, true, mixed + units);
    qsort(mixed, (size_t)n, sizeof *mixed, by_price);
    return walk(s, from, mixed, n, 0, 0, 0);
}

Status search_frugal_again(Search *s, const Candidate *from)
{
    return walk(s, from, s->path, s->n_path, s->n_path_units, AGAIN_POINTS, AGAIN_IMPROVE);
}
