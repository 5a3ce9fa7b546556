/* resident.c - which units live on the GPU when there is room for some of them, without looking at any budget.
 *
 * A unit that lives there saves its load, its store and its CPU update, for the memory of its parameters, gradients and
 * optimizer state; per byte that is much the same for all. What differs is when: the units that are used first get
 * their gradients last and their updates are waited for first. So units move to the GPU in the order of first use, or
 * in the opposite one (what is used last gets its load latest), and the rest does what it does in the given plan, or,
 * to leave more room, is loaded twice within a window. */
#include "planner/plan_search.h"

enum { GRID = 16 };

static bool can_move(const Search *s, int unit)
{
    return !s->pinned[unit].set && plan_can_reside(s->g, s->p, unit);
}

/* The first k units that can, in one of the two orders. */
static Status try_first(Search *s, const Plan *base, bool backwards, int k, int window)
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
    return search_add(s, &p, "resident", &c);
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
    for (int backwards = 0; backwards < 2; backwards++)
        for (int i = 1, before = 0; i <= GRID; i++) {
            int k = n * i / GRID;
            if (k == before)
                continue;
            before = k;
            TRY(try_first(s, from, backwards, k, 2));
            TRY(try_first(s, &twice, backwards, k, 2));
        }
    return ST_OK;
}
