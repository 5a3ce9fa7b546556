/* resident.c - which units live on the GPU when there is room for some of them, without looking at any budget.
 *
 * A unit that lives there saves its load, its store and its CPU update, for the memory of its parameters, gradients and
 * optimizer state; per byte that is much the same for all. What differs is when: the units that are used first get
 * their gradients last and their updates are waited for first. So units move to the GPU in the order of first use, or
 * in the opposite one (what is used last gets its load latest), and the rest does what it does in the given plan, or,
 * to leave more room, is loaded twice within a window. An update on the GPU takes time of the compute stream, which may
 * be what bounds the step: so few units at either end are tried as well, and what gains nothing there moves back. */
#include "planner/plan_search.h"

enum {
    GRID = 16,
    FEW = 4,         /* each number of units up to here is tried */
    MOVE_BACK = 160, /* evaluations to move units back */
};

static bool can_move(const Search *s, int unit)
{
    return !s->pinned[unit].set && plan_can_reside(s->g, s->p, unit);
}

/* The first k units that can, in one of the two orders. *best: the fastest so far. */
static Status try_first(Search *s, const Plan *base, bool backwards, int k, int window, Candidate **best)
{
    Plan p;
    Candidate *c;
    TRY(search_copy(s, base, &p));
    int n = s->problem->n_item;
    for (int i = 0; i < n && k > 0; i++) {
        int u = s->problem->item[backwards ? n - 1 - i : i].unit;
        if (!can_move(s, u))
            continue;
        plan_set_mode(&s->g->unit[u], MODE_RESIDENT, &p.unit[u]);
        k--;
    }
    search_load_window(s, &p, window);
    TRY(search_add(s, &p, "resident", &c));
    if (!*best || c->iteration_ns < (*best)->iteration_ns)
        *best = c;
    return ST_OK;
}

/* Units go back to what they do in the given plan, as long as that is no slower: it takes less memory. */
static Status move_back(Search *s, const Plan *base, Candidate *best)
{
    int left = MOVE_BACK;
    for (int i = 0; i < s->problem->n_item && left > 0; i++) {
        int u = s->problem->item[i].unit;
        if (!can_move(s, u) || best->plan.unit[u].hold != HOLD_RESIDENT)
            continue;
        Plan p;
        Candidate *c;
        TRY(search_copy(s, &best->plan, &p));
        p.unit[u] = base->unit[u];
        TRY(search_add(s, &p, "resident, some moved back", &c));
        left--;
        if (c->iteration_ns <= best->iteration_ns)
            best = c;
    }
    return ST_OK;
}

Status search_resident(Search *s, const Plan *from)
{
    int n = 0;
    for (int i = 0; i < s->problem->n_item; i++)
        n += can_move(s, s->problem->item[i].unit);
    Plan twice;
    TRY(search_copy(s, from, &twice));
    for (int u = 0; u < twice.n_unit; u++)
        if (!s->pinned[u].set && twice.unit[u].hold == HOLD_STEP &&
            twice.unit[u].first_gpu_use < plan_first_backward_use(&s->g->unit[u]))
            plan_set_mode(&s->g->unit[u], MODE_RELOAD, &twice.unit[u]);
    Candidate *best = NULL, *best_twice = NULL;
    for (int backwards = 0; backwards < 2; backwards++)
        for (int k = 1; k <= n; k++) {
            bool on_grid = k * GRID / n != (k - 1) * GRID / n;
            if (k > FEW && !on_grid)
                continue;
            TRY(try_first(s, from, backwards, k, 2, &best));
            TRY(try_first(s, &twice, backwards, k, 2, &best_twice));
        }
    return best ? move_back(s, from, best) : ST_OK;
}
