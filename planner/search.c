/* search.c - the pool of candidates and the searches that every algorithm may use. All are bounded by counts of
 * evaluations, so the same profile gives the same plan on every machine. */
#include "planner/plan_search.h"

#include <stdlib.h>
#include <string.h>

int64_t all_grad_bytes(const Graph *g)
{
    int64_t sum = 0;
    for (int i = 0; i < g->n_unit; i++)
        sum += g->unit[i].grad_bytes;
    return sum;
}

int64_t largest_grad_bytes(const Graph *g)
{
    int64_t most = 0;
    for (int i = 0; i < g->n_unit; i++)
        if (g->unit[i].grad_bytes > most)
            most = g->unit[i].grad_bytes;
    return most;
}

Status search_open(Search *s)
{
    s->n_slot = 1 << 10;
    s->slot = base_alloc((size_t)s->n_slot * sizeof *s->slot);
    if (!s->slot)
        return diag_oom(s->d);
    TRY(search_enter(s, s->plain));
    s->plain_pinned = s->pinned;
    return ST_OK;
}

Status search_enter(Search *s, const Graph *g)
{
    s->g = g;
    s->pinned = ARENA_NEW(s->a, Pin, g->n_unit);
    if (!s->pinned)
        return diag_oom(s->d);
    TRY(problem_make(s->d, s->a, g, s->p, &s->problem));
    return search_pin(s);
}

void search_close(Search *s)
{
    base_free(s->slot);
    s->slot = NULL;
    VEC_FREE(&s->found);
}

Status search_blank(Search *s, Plan *out)
{
    *out = (Plan){.algorithm = s->o->algorithm,
                  .graph = s->g,
                  .n_recompute = s->g->n_again,
                  .recompute = s->g->again,
                  .n_unit = s->g->n_unit,
                  .clip = s->o->clip,
                  .reserve_factor = -1};
    out->unit = ARENA_NEW(s->a, UnitPlan, s->g->n_unit);
    return out->unit ? ST_OK : diag_oom(s->d);
}

Status search_copy(Search *s, const Plan *from, Plan *out)
{
    *out = *from;
    out->unit = ARENA_NEW(s->a, UnitPlan, from->n_unit);
    if (!out->unit)
        return diag_oom(s->d);
    memcpy(out->unit, from->unit, (size_t)from->n_unit * sizeof *out->unit);
    return ST_OK;
}

Status search_adopt(Search *s, const Plan *from, Plan *out)
{
    TRY(search_copy(s, from, out));
    out->graph = s->g;
    out->n_recompute = s->g->n_again;
    out->recompute = s->g->again;
    for (int i = 0; i < out->n_unit; i++)
        out->unit[i] = plan_adopt(&from->graph->unit[i], &s->g->unit[i], from->unit[i]);
    return ST_OK;
}

/* FNV-1a over 64 bits, twice with other seeds: 128 bits of key for a few thousand candidates. */
static uint64_t mix(uint64_t h, uint64_t v)
{
    for (int i = 0; i < 8; i++) {
        h ^= (v >> (8 * i)) & 0xff;
        h *= 0x100000001b3u;
    }
    return h;
}

static void key_of(const Plan *p, uint64_t key[2])
{
    key[0] = 0xcbf29ce484222325u;
    key[1] = 0x9e3779b97f4a7c15u;
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < p->n_unit; i++)
            key[side] = mix(key[side], (uint64_t)p->unit[i].first_gpu_use * 16 + (uint64_t)p->unit[i].hold * 4 +
                                           (p->unit[i].grad == ON_HOST ? 2 : 0) + (p->unit[i].late ? 1 : 0));
        key[side] = mix(key[side], (uint64_t)p->gradient_window_bytes);
        key[side] = mix(key[side], (uint64_t)p->load_window_bytes);
        key[side] = mix(key[side], (uint64_t)p->n_alloc * 2 + (p->update_after_bp ? 1 : 0));
        key[side] = mix(key[side], (uint64_t)p->n_recompute);
        for (int i = 0; i < p->n_recompute; i++)
            for (const char *c = p->recompute[i]; *c || c == p->recompute[i]; c++)
                key[side] = mix(key[side], (uint64_t)(unsigned char)*c);
    }
}

/* The slot of a key: that of its candidate, or the free one where it belongs. */
static int slot_of(const Search *s, const uint64_t key[2])
{
    int at = (int)(key[0] & (uint64_t)(s->n_slot - 1));
    while (s->slot[at] != 0) {
        const Candidate *c = s->found.at[s->slot[at] - 1];
        if (c->key[0] == key[0] && c->key[1] == key[1])
            break;
        at = (at + 1) & (s->n_slot - 1);
    }
    return at;
}

static Status grow(Search *s)
{
    int *bigger = base_alloc((size_t)s->n_slot * 2 * sizeof *bigger);
    if (!bigger)
        return diag_oom(s->d);
    base_free(s->slot);
    s->slot = bigger;
    s->n_slot *= 2;
    for (int i = 0; i < s->found.count; i++)
        s->slot[slot_of(s, s->found.at[i]->key)] = i + 1;
    return ST_OK;
}

/* One sense, one spelling: so that equal plans have equal keys and equal files. */
static void normalise(const Search *s, Plan *p)
{
    int64_t reloaded = 0;
    for (int i = 0; i < p->n_unit; i++) {
        const Unit *u = &s->g->unit[i];
        if (s->pinned[i].set) {
            p->unit[i].first_gpu_use = s->pinned[i].first_gpu_use;
            p->unit[i].hold = s->pinned[i].hold;
        }
        if (p->unit[i].hold == HOLD_RESIDENT) {
            p->unit[i].first_gpu_use = 0;
            p->unit[i].grad = ON_GPU;
            p->unit[i].late = false;
        }
        reloaded += p->unit[i].hold == HOLD_RELOAD ? 2 * u->bytes : 0;
        if (u->grad_bytes == 0) {
            p->unit[i].grad = ON_GPU;
            p->unit[i].late = false;
        }
    }
    if (p->gradient_window_bytes >= all_grad_bytes(s->g))
        p->gradient_window_bytes = 0;
    if (p->load_window_bytes >= reloaded)
        p->load_window_bytes = 0;
}

Status search_try(Search *s, const Plan *choices, const char *from, Candidate **out)
{
    *out = NULL;
    Plan plan;
    TRY(search_copy(s, choices, &plan));
    normalise(s, &plan);
    uint64_t key[2];
    key_of(&plan, key);
    int at = slot_of(s, key);
    if (s->slot[at] != 0) {
        *out = s->found.at[s->slot[at] - 1];
        return ST_OK;
    }
    Candidate *c = ARENA_NEW(s->a, Candidate, 1);
    Candidate **place = VEC_PUSH(&s->found);
    if (!c || !place)
        return diag_oom(s->d);
    *place = c;
    *c = (Candidate){.plan = plan, .from = from, .key = {key[0], key[1]}, .peak_bytes = -1, .host_bytes = -1};
    s->slot[at] = s->found.count;
    s->n_timed++;
    TRY(plan_time(s->d, c->plan.graph, s->p, &c->plan, s->by_model ? NULL : &c->iteration_ns, s->by_model ? &c->iteration_ns : NULL));
    if (s->found.count * 2 > s->n_slot)
        TRY(grow(s));
    *out = c;
    return ST_OK;
}

Status search_size(Search *s, Candidate *c)
{
    c->proposed = true;
    if (c->peak_bytes >= 0)
        return ST_OK;
    s->n_sized++;
    return plan_size(s->d, c->plan.graph, s->p, &c->plan, &c->peak_bytes, &c->host_bytes);
}

Status search_add(Search *s, const Plan *choices, const char *from, Candidate **out)
{
    TRY(search_try(s, choices, from, out));
    (*out)->proposed = true;
    return ST_OK;
}

Candidate *search_fastest(const Search *s)
{
    Candidate *best = NULL;
    for (int i = 0; i < s->found.count; i++)
        if (s->found.at[i]->plan.graph == s->g && (!best || s->found.at[i]->iteration_ns < best->iteration_ns))
            best = s->found.at[i];
    return best;
}

void search_load_window(const Search *s, Plan *p, int times)
{
    int64_t largest = 0;
    for (int i = 0; i < p->n_unit; i++)
        if (p->unit[i].hold == HOLD_RELOAD && s->g->unit[i].bytes > largest)
            largest = s->g->unit[i].bytes;
    p->load_window_bytes = times * largest;
}

/* ---- update placement
 * --------------------------------------------------------------------------------------------------- */

/* The first k trainable units in order of use are late. */
static Status try_late(Search *s, Plan *p, int k, const char *from, Candidate **out)
{
    int seen = 0;
    for (int i = 0; i < s->problem->n_item; i++) {
        int u = s->problem->item[i].unit;
        if (s->g->unit[u].grad_bytes > 0)
            p->unit[u].late = seen++ < k;
    }
    return search_try(s, p, from, out);
}

Status search_late(Search *s, const Plan *choices, const char *from, Candidate **out)
{
    enum { GRID = 8 };
    Plan p;
    TRY(search_copy(s, choices, &p));
    int n = 0;
    for (int i = 0; i < s->problem->n_item; i++)
        n += s->g->unit[s->problem->item[i].unit].grad_bytes > 0;
    Candidate *best = NULL, *c;
    int best_k = 0;
    for (int i = 0; i <= GRID; i++) {
        int k = n * i / GRID;
        TRY(try_late(s, &p, k, from, &c));
        if (!best || c->iteration_ns < best->iteration_ns) {
            best = c;
            best_k = k;
        }
    }
    for (int step = n / GRID / 2; step >= 1; step /= 2) {
        int middle = best_k;
        for (int side = -1; side <= 1; side += 2) {
            int k = middle + side * step;
            if (k < 0 || k > n)
                continue;
            TRY(try_late(s, &p, k, from, &c));
            if (c->iteration_ns < best->iteration_ns) {
                best = c;
                best_k = k;
            }
        }
    }
    *out = best;
    return ST_OK;
}

/* ---- one unit at a time
 * -------------------------------------------------------------------------------------------------- */

typedef struct Weight {
    int unit;
    int64_t bytes;
} Weight;

static int by_bytes(const void *x, const void *y)
{
    const Weight *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->unit - b->unit;
}

/* The v-th alternative of a unit: first its other places of load, then loading twice, then the gradient's place, then the
 * update's. False:
 * there is none. */
static bool change(const Search *s, UnitPlan *c, int unit, int v)
{
    const Unit *u = &s->g->unit[unit];
    if (v <= u->n_use) {
        if (s->pinned[unit].set || (v == c->first_gpu_use && c->hold == HOLD_STEP))
            return false;
        c->first_gpu_use = v;
        c->hold = HOLD_STEP;
        return true;
    }
    if (v == u->n_use + 1)
        return !s->pinned[unit].set && c->hold != HOLD_RELOAD && plan_set_mode(u, MODE_RELOAD, c);
    if (u->grad_bytes == 0)
        return false;
    if (v == u->n_use + 2)
        c->grad = c->grad == ON_GPU ? ON_HOST : ON_GPU;
    else
        c->late = !c->late;
    return true;
}

Status search_improve(Search *s, Candidate *from, int evaluations, int64_t peak_bytes, Candidate **out)
{
    int n = s->g->n_unit, limit = s->n_timed + evaluations;
    *out = from;
    Weight *order = ARENA_NEW(s->a, Weight, n);
    Plan p;
    if (!order)
        return diag_oom(s->d);
    for (int i = 0; i < n; i++)
        order[i] = (Weight){i, s->g->unit[i].bytes};
    qsort(order, (size_t)n, sizeof *order, by_bytes);
    TRY(search_copy(s, &from->plan, &p));
    for (bool better = true; better;) {
        better = false;
        for (int i = 0; i < n; i++) {
            int u = order[i].unit;
            for (int v = 0; v <= s->g->unit[u].n_use + 3; v++) {
                UnitPlan was = p.unit[u];
                if (!change(s, &p.unit[u], u, v))
                    continue;
                if (s->n_timed >= limit)
                    return ST_OK;
                Candidate *c;
                TRY(search_try(s, &p, "improved", &c));
                bool take = c->iteration_ns < (*out)->iteration_ns;
                if (take && peak_bytes < INT64_MAX) {
                    TRY(search_size(s, c));
                    take = c->peak_bytes <= peak_bytes;
                }
                if (take) {
                    *out = c;
                    better = true;
                } else {
                    p.unit[u] = was;
                }
            }
        }
    }
    return ST_OK;
}
