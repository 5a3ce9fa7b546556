/* The list of steps of GPT-2-like graphs under random plans: program order, places of arguments, reduced waits, times,
 * text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/planner/plans.h"

enum { ROUNDS = 60 };

static int find_step(const StepList *s, StepKind kind, int unit)
{
    for (int i = 0; i < s->n_step; i++)
        if (s->step[i].kind == kind && s->step[i].unit == unit)
            return i;
    return -1;
}

static int count_steps(const StepList *s, StepKind kind, int unit)
{
    int n = 0;
    for (int i = 0; i < s->n_step; i++)
        n += s->step[i].kind == kind && s->step[i].unit == unit;
    return n;
}

static int unit_of_arg(const Graph *g, const Node *n, int arg, TensorKind kind)
{
    const Tensor *t = n->arg[arg] < 0 ? NULL : &g->tensor.at[g->tensor.at[n->arg[arg]].root];
    return t && t->kind == kind ? g->param[t->param].unit : -1;
}

/* The index of the use, told from the node alone. */
static int use_index(const Graph *g, const Node *n, int unit)
{
    for (int i = 0; i < g->unit[unit].n_use; i++)
        if (2 * g->unit[unit].use[i].layer + 1 == n->segment && g->unit[unit].use[i].phase == n->phase)
            return i;
    return -1;
}

static void test_program_order(void **state)
{
    (void)state;
    uint64_t rng = 1;
    for (int round = 0; round < ROUNDS; round++) {
        Arena *a = arena_open();
        Diag d = {0};
        Graph *g;
        Profile *p;
        small_graph(a, &rng, &g, &p);
        Plan *plan = random_plan(a, &rng, g);
        StepList *s;
        assert_int_equal(steps_build(&d, a, g, plan, &s), ST_OK);
        assert_int_equal(s->step[0].kind, STEP_STAGE);
        assert_int_equal(s->step[1].kind, STEP_LOAD_INPUT);
        assert_int_equal(s->step[s->n_step - 1].kind, STEP_COLLECT);
        int norm = find_step(s, STEP_NORM, -1), node = 0, last_use = -1;
        for (int i = 0; i < s->n_step; i++) {
            const Step *x = &s->step[i];
            if (x->kind == STEP_KERNEL)
                assert_int_equal(x->node, node++);
            if (x->kind == STEP_STORE_LOSS)
                assert_int_equal(g->node.at[s->step[i - 1].node].call.op, FERRY_OP_XENT);
        }
        assert_int_equal(node, g->node.count);
        for (int u = 0; u < g->n_unit; u++) {
            const UnitPlan *up = &plan->unit[u];
            bool resident = up->hold == HOLD_RESIDENT;
            int loads = up->first_gpu_use < g->unit[u].n_use && !resident ? 1 + (up->hold == HOLD_RELOAD) : 0, first[3] = {-1, -1, -1};
            bool trainable = g->unit[u].grad_bytes > 0;
            int store = find_step(s, STEP_STORE, u),
                adamw = find_step(s, STEP_ADAMW, u);
            int sqnorm = find_step(s, STEP_SQNORM, u), last_write = -1, last_read = -1;
            assert_int_equal(count_steps(s, STEP_LOAD, u), loads);
            assert_int_equal(count_steps(s, STEP_STORE, u), trainable && up->grad == ON_GPU && !resident);
            assert_int_equal(count_steps(s, STEP_SQNORM, u), trainable);
            assert_int_equal(count_steps(s, STEP_ADAMW, u), trainable);
            for (int i = 0; i < s->n_step; i++) {
                const Node *n = s->step[i].kind == STEP_KERNEL ? &g->node.at[s->step[i].node] : NULL;
                for (int k = 0; n && k < FERRY_MAX_ARGS; k++) {
                    if (k >= node_n_out(n) && unit_of_arg(g, n, k, TENSOR_PARAM) == u) {
                        static const BufferKind kind[] = {BUFFER_MASTER, BUFFER_PARAM, BUFFER_PARAM_BP};
                        int copy = plan_copy(&g->unit[u], up, use_index(g, n, u));
                        assert_int_equal(copy > 0, use_index(g, n, u) >= up->first_gpu_use && !resident);
                        if (up->hold == HOLD_RELOAD && copy > 0)
                            assert_int_equal(copy == 2, n->phase == PHASE_BP);
                        const Buffer *b = &s->buffer[steps_arg_buffer(s, n, k)];
                        assert_int_equal(b->kind, kind[copy]);
                        assert_int_equal(b->pool == POOL_DEVICE, copy > 0 || resident);
                        last_read = i;
                        assert_int_equal(g->param[b->param].tensor, g->tensor.at[n->arg[k]].root);
                        first[copy] = first[copy] < 0 ? i : first[copy];
                    }
                    if (k < node_n_out(n) && unit_of_arg(g, n, k, TENSOR_GRADIENT) == u) {
                        const Buffer *b = &s->buffer[steps_arg_buffer(s, n, k)];
                        assert_int_equal(b->kind, up->grad == ON_GPU ? BUFFER_GRAD : BUFFER_HOST_GRAD);
                        last_write = i;
                    }
                }
            }
            for (int i = 0; i < s->n_step; i++) /* just before the first kernel that it serves, but for other loads */
                if (s->step[i].kind == STEP_LOAD && s->step[i].unit == u) {
                    assert_true(i < first[s->step[i].copy]);
                    for (int k = i; k < first[s->step[i].copy]; k++)
                        assert_int_equal(s->step[k].kind, STEP_LOAD);
                }
            if (!trainable)
                continue;
            if (resident) { /* squares just after the last write, the update after the last read as well */
                assert_int_equal(s->step[sqnorm].stream, STREAM_COMPUTE);
                assert_int_equal(s->step[adamw].stream, STREAM_COMPUTE);
                assert_true(sqnorm > last_write && sqnorm < norm && adamw > sqnorm && adamw > last_read);
                assert_int_equal(plan->clip, adamw > norm);
                for (int i = last_write + 1; i < sqnorm; i++)
                    assert_true(s->step[i].kind == STEP_STORE || s->step[i].kind == STEP_SQNORM);
                continue;
            }
            if (up->grad == ON_GPU) {
                assert_true(store > last_write);
                for (int i = last_write + 1; i < store; i++)
                    assert_true(s->step[i].kind == STEP_STORE || s->step[i].kind == STEP_SQNORM);
            }
            assert_true(sqnorm < norm && sqnorm > last_write && sqnorm > store && adamw > sqnorm);
            if (plan->clip || up->late)
                assert_true(adamw > norm);
            else
                assert_true(adamw < norm);
        }
        /* sqnorms in order of arrival; late updates in order of first use, after all early ones */
        int last = -1;
        for (int i = 0; i < s->n_step; i++) {
            const Step *x = &s->step[i];
            if (x->stream == STREAM_COMPUTE)
                continue;
            if (x->kind == STEP_SQNORM) {
                int arrival = find_step(s, STEP_STORE, x->unit);
                for (int k = 0; arrival < 0 && k < i; k++) {
                    const Node *n =
                        s->step[i - 1 - k].kind == STEP_KERNEL ? &g->node.at[s->step[i - 1 - k].node] : NULL;
                    for (int j = 0; n && j < node_n_out(n); j++)
                        arrival = unit_of_arg(g, n, j, TENSOR_GRADIENT) == x->unit ? i - 1 - k : arrival;
                }
                assert_true(arrival > last);
                last = arrival;
            }
            if (x->kind == STEP_ADAMW && plan->unit[x->unit].late) {
                int use = g->unit[x->unit].use[0].layer;
                assert_true(use >= last_use);
                last_use = use;
            } else if (x->kind == STEP_ADAMW) {
                assert_int_equal(last_use, -1);
            }
        }
        arena_close(a);
    }
}

/* Waits of the whole list against the closure of all orderings that its accesses, window and updates ask for. */
static void test_waits_are_the_reduction(void **state)
{
    (void)state;
    uint64_t rng = 40;
    for (int round = 0; round < 8; round++) {
        Arena *a = arena_open();
        Diag d = {0};
        SyntheticShape shape = {.blocks = 1, .hidden = 32, .heads = 4, .vocab = 64, .batch = 1, .seq = 8, .seed = 1};
        Graph *g;
        Profile *p;
        synthetic_make_shape(a, shape, &g, &p);
        Plan *plan = random_plan(a, &rng, g);
        plan->gradient_window_bytes = plan->load_window_bytes = 0;
        plan->update_after_bp = false;
        StepList *s;
        assert_int_equal(steps_build(&d, a, g, plan, &s), ST_OK);
        enum { ITERATIONS = 3 };
        Closure asked = closure_of_accesses(a, s, ITERATIONS, 2), c = closure_of_waits(a, s, ITERATIONS, -1, 0);
        assert_memory_equal(c.at, asked.at, (size_t)c.n * (size_t)c.n);
        /* a wait is implied by the others if a direct predecessor of its step other than it knows: the closure has them
         * all */
        for (int i = 0; i < s->n_step; i++)
            for (int k = 0; k < s->step[i].n_wait; k++) {
                Wait w = s->step[i].wait[k];
                int b = 2 * s->n_step + i, from = (2 - w.distance) * s->n_step + w.step;
                for (int m = from + 1; m < b; m++) {
                    bool direct = s->step[m % s->n_step].stream == s->step[i].stream ||
                                  s->step[m % s->n_step].stream == STREAM_HOST;
                    for (int j = 0; j < s->step[i].n_wait; j++)
                        direct = direct || (2 - s->step[i].wait[j].distance) * s->n_step + s->step[i].wait[j].step == m;
                    assert_false(direct && closure_has(&c, from, m));
                }
            }
        arena_close(a);
    }
}

static bool knows(const Order *o, const StepList *s, int before, int after)
{
    return order_before(o, s, before, 1, after, 1);
}

static void test_updates_after_bp(void **state)
{
    (void)state;
    uint64_t rng = 9;
    for (int round = 0; round < ROUNDS; round++) {
        Arena *a = arena_open();
        Diag d = {0};
        Graph *g;
        Profile *p;
        small_graph(a, &rng, &g, &p);
        Plan *plan = random_plan(a, &rng, g);
        plan->update_after_bp = true;
        StepList *s;
        Order o;
        assert_int_equal(steps_build(&d, a, g, plan, &s), ST_OK);
        assert_int_equal(order_build(&d, a, s, 2, &o), ST_OK);
        for (int i = 0; i < s->n_step; i++)
            for (int k = 0; s->step[i].stream == STREAM_UPDATE && k < s->n_step; k++)
                if (s->step[k].kind == STEP_STORE)
                    assert_true(knows(&o, s, k, i));
        arena_close(a);
    }
}

/* Bytes between a first write and the end of the store never pass the window, but for units that are too large alone or
 * that gather until the end. */
static void test_window(void **state)
{
    (void)state;
    uint64_t rng = 90;
    int held = 0;
    for (int round = 0; round < ROUNDS; round++) {
        Arena *a = arena_open();
        Diag d = {0};
        Graph *g;
        Profile *p;
        small_graph(a, &rng, &g, &p);
        Plan *plan = random_plan(a, &rng, g);
        for (int u = 0; u < g->n_unit; u++)
            plan->unit[u].grad = ON_GPU;
        plans_leave_gpu(g, plan);
        plan->gradient_window_bytes = 20000 + random_below(&rng, 100000);
        StepList *s, *free_list;
        Order o, free_order;
        assert_int_equal(steps_build(&d, a, g, plan, &s), ST_OK);
        Plan free_plan = *plan;
        free_plan.gradient_window_bytes = 0;
        assert_int_equal(steps_build(&d, a, g, &free_plan, &free_list), ST_OK);
        assert_int_equal(order_build(&d, a, s, 2, &o), ST_OK);
        assert_int_equal(order_build(&d, a, free_list, 2, &free_order), ST_OK);
        int *first = ARENA_NEW(a, int, g->n_unit);
        for (int i = s->n_step - 1; i >= 0; i--)
            for (int k = 0; s->step[i].kind == STEP_KERNEL && k < node_n_out(&g->node.at[s->step[i].node]); k++) {
                int u = unit_of_arg(g, &g->node.at[s->step[i].node], k, TENSOR_GRADIENT);
                if (u >= 0)
                    first[u] = i;
            }
        for (int u = 0; u < g->n_unit; u++) {
            int64_t open = g->unit[u].grad_bytes, stuck = open;
            for (int v = 0; v < g->n_unit; v++) {
                int store = find_step(s, STEP_STORE, v);
                if (v == u || store < 0 || first[v] > first[u])
                    continue;
                if (store > first[u])
                    stuck += g->unit[v].grad_bytes;
                if (!knows(&o, s, store, first[u]))
                    open += g->unit[v].grad_bytes;
                else if (!knows(&free_order, s, store, first[u])) /* held back by the window */
                    held++;
            }
            if (g->unit[u].grad_bytes > 0)
                assert_true(open <= plan->gradient_window_bytes || open == stuck);
        }
        arena_close(a);
    }
    assert_true(held > 100);
}

/* Bytes of copies between their load and their last use never pass the window, but for those that are too large alone
 * or that the program needs longer. */
static void test_load_window(void **state)
{
    (void)state;
    uint64_t rng = 190;
    int held = 0;
    for (int round = 0; round < ROUNDS / 4; round++) {
        Arena *a = arena_open();
        Diag d = {0};
        Graph *g;
        Profile *p;
        small_graph(a, &rng, &g, &p);
        Plan *plan = random_plan(a, &rng, g);
        for (int u = 0; u < g->n_unit; u++)
            if (round % 2 == 0)
                plan_set_mode(&g->unit[u], MODE_RELOAD, &plan->unit[u]);
        plan->gradient_window_bytes = 0;
        plan->load_window_bytes = 20000 + random_below(&rng, 100000);
        StepList *s;
        assert_int_equal(steps_build(&d, a, g, plan, &s), ST_OK);
        Closure c = closure_of_waits(a, s, 3, -1, 0);
        for (int i = 0; i < s->n_step; i++) {
            const Step *load = &s->step[i];
            if (load->kind != STEP_LOAD || plan->unit[load->unit].hold != HOLD_RELOAD)
                continue;
            int64_t open = 0, stuck = g->unit[load->unit].bytes;
            for (int k = 0; k < 3 * s->n_step && k <= 2 * s->n_step + i; k++) {
                const Step *other = &s->step[k % s->n_step];
                if (other->kind != STEP_LOAD || plan->unit[other->unit].hold != HOLD_RELOAD)
                    continue;
                int last = -1; /* the last kernel that reads what `other` wrote */
                for (int m = 0; m < s->n_step; m++)
                    for (int x = 0; x < s->step[m].n_access; x++)
                        if (s->step[m].kind == STEP_KERNEL && s->step[m].access[x].buffer == other->access[1].buffer)
                            last = m;
                last += k / s->n_step * s->n_step;
                if (last < 2 * s->n_step + i && closure_has(&c, last, 2 * s->n_step + i)) {
                    held++;
                    continue;
                }
                open += g->unit[other->unit].bytes;
                if (k < 2 * s->n_step + i && last > 2 * s->n_step + i)
                    stuck += g->unit[other->unit].bytes;
            }
            assert_true(open <= plan->load_window_bytes || open == stuck);
        }
        arena_close(a);
    }
    assert_true(held > 500);
}

/* Kernel times add up to the profile's, wherever parameters and gradients are. */
static void test_times(void **state)
{
    (void)state;
    uint64_t rng = 17;
    for (int round = 0; round < ROUNDS; round++) {
        Arena *a = arena_open();
        Diag d = {0};
        Graph *g;
        Profile *p;
        small_graph(a, &rng, &g, &p);
        if (round % 4 == 0) /* noise: faster by DHA */
            for (int l = 0; l < g->n_layer; l++)
                p->layer[l].bp[ON_HOST][ON_GPU].median_ns = p->layer[l].bp[ON_GPU][ON_GPU].median_ns / 2;
        Plan *plan = random_plan(a, &rng, g);
        plan->n_alloc = round % 3 == 0 ? 1 + random_below(&rng, 1000) : 0;
        StepList *s;
        assert_int_equal(steps_build(&d, a, g, plan, &s), ST_OK);
        assert_int_equal(steps_time(&d, s, p), ST_OK);
        int64_t *sum = ARENA_NEW(a, int64_t, 2 * g->n_segment), all = 0, want = 0;
        for (int i = 0; i < s->n_step; i++) {
            const Step *x = &s->step[i];
            assert_true(x->duration_ns >= 0);
            if (x->kind == STEP_KERNEL) {
                sum[2 * g->node.at[x->node].segment + (int)g->node.at[x->node].phase] += x->duration_ns;
                all += x->duration_ns;
                bool r, w, dha = steps_is_dha(s, x, &r, &w);
                assert_int_equal(dha, r || w);
                assert_int_equal(x->link, (r ? 1u << LINK_DHA_READ : 0) | (w ? 1u << LINK_DHA_WRITE : 0));
            } else if (x->kind == STEP_LOAD) {
                assert_int_equal(x->duration_ns, p->unit[x->unit].load.median_ns);
                assert_int_equal(x->link, 1u << LINK_H2D);
            } else if (x->kind == STEP_STORE) {
                assert_int_equal(x->duration_ns, p->unit[x->unit].store.median_ns);
                assert_int_equal(x->link, 1u << LINK_D2H);
            } else if (x->stream == STREAM_UPDATE) {
                assert_int_equal(x->link, 1u << LINK_UPDATE);
            }
        }
        for (int l = 0; l <= g->n_layer; l++)
            want += p->between[l].fp.median_ns + p->between[l].bp.median_ns;
        for (int l = 0; l < g->n_layer; l++) { /* every layer of this graph has one unit: a corner of the profile */
            int u = g->layer[l].unit[0];
            bool fp_host = false, bp_host = false;
            for (int i = 0; i < g->unit[u].n_use; i++)
                if (g->unit[u].use[i].layer == l && i < plan->unit[u].first_gpu_use)
                    *(g->unit[u].use[i].phase == PHASE_FP ? &fp_host : &bp_host) = true;
            Where grad = g->unit[u].grad_bytes > 0 ? plan->unit[u].grad : ON_GPU;
            /* the tied table: its gradient's first writer is the head, so both layers write; others write their own */
            int64_t fp = p->layer[l].fp[fp_host].median_ns, bp = p->layer[l].bp[bp_host][grad].median_ns;
            if (g->unit[u].grad_bytes == 0)
                bp = 0; /* no kernel of the backward pass belongs to a frozen table */
            want += fp + bp;
            if (plan->n_alloc == 0) {
                assert_int_equal(sum[2 * (2 * l + 1) + PHASE_FP], fp);
                assert_int_equal(sum[2 * (2 * l + 1) + PHASE_BP], bp);
            }
        }
        assert_int_equal(all, want + plan->n_alloc * p->device.alloc_ns);
        arena_close(a);
    }
}

/* A linear layer whose weight is loaded while its bias is read by DHA, as units of their own: the time lies between the
 * corners, by bytes. */
static void test_interpolation(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    Graph *g;
    Profile *p;
    synthetic_make(a, 1, 2, &g, &p);
    int layer = 3, old = g->layer[layer].unit[0], bias = g->unit[old].param[1];
    assert_string_equal(g->layer[layer].name, "transformer.h.0.attn.c_attn");
    Unit *u = &g->unit[g->n_unit];
    *u = g->unit[old];
    u->name = "bias";
    u->param = ARENA_NEW(a, int, 1);
    u->param[0] = bias;
    u->n_param = 1;
    u->bytes = u->grad_bytes = g->param[bias].bytes;
    u->n_use = 1; /* read forward only */
    g->unit[old].n_param = 1;
    g->unit[old].bytes = g->unit[old].grad_bytes -= g->param[bias].bytes;
    g->param[bias].unit = g->n_unit++;
    UnitProfile *units = ARENA_NEW(a, UnitProfile, g->n_unit);
    memcpy(units, p->unit, (size_t)p->n_unit * sizeof *units);
    units[p->n_unit] = units[old];
    p->unit = units;
    p->n_unit++;
    Plan plan = {.n_unit = g->n_unit, .unit = ARENA_NEW(a, UnitPlan, g->n_unit)};
    plan.unit[g->n_unit - 1].first_gpu_use = 1;
    plan.unit[g->n_unit - 1].grad = ON_HOST;
    StepList *s;
    assert_int_equal(steps_build(&d, a, g, &plan, &s), ST_OK);
    assert_int_equal(steps_time(&d, s, p), ST_OK);
    int64_t fp = 0, bp = 0;
    for (int i = 0; i < s->n_step; i++)
        if (s->step[i].kind == STEP_KERNEL && s->step[i].segment == 2 * layer + 1)
            *(s->step[i].phase == PHASE_FP ? &fp : &bp) += s->step[i].duration_ns;
    const LayerProfile *lp = &p->layer[layer];
    /* weight [768, 2304], bias [2304]: one part in 769 */
    double part = 1.0 / 769;
    double fp_want = (double)lp->fp[0].median_ns + (double)(lp->fp[1].median_ns - lp->fp[0].median_ns) * part;
    double bp_want = (double)lp->bp[0][0].median_ns + (double)(lp->bp[0][1].median_ns - lp->bp[0][0].median_ns) * part;
    assert_true(llabs(fp - (int64_t)fp_want) <= 1);
    assert_true(llabs(bp - (int64_t)bp_want) <= 1);
    arena_close(a);
}

static void test_text_and_buffers(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Diag d = {0};
    Graph *g;
    Profile *p;
    uint64_t rng = 2;
    small_graph(a, &rng, &g, &p);
    Plan *plan = random_plan(a, &rng, g);
    for (int u = 0; u < g->n_unit; u++)
        plan->unit[u] = (UnitPlan){.first_gpu_use = u == 0 ? 1 : 0, .grad = ON_GPU};
    StepList *s;
    assert_int_equal(steps_build(&d, a, g, plan, &s), ST_OK);
    Text text = {0};
    steps_print(s, &text);
    assert_false(text.failed);
    assert_non_null(strstr(text.at, "wte (embedding), fp segment 1"));
    assert_non_null(strstr(text.at, "reads loss (last iteration's)"));
    assert_non_null(strstr(text.at, "buffer master:wte.weight host master"));
    text_free(&text);
    int seen = -1;
    for (int i = 0; i < s->n_step; i++) /* device buffers by first access */
        for (int k = 0; k < s->step[i].n_access; k++) {
            int b = s->step[i].access[k].buffer;
            assert_int_equal(s->buffer[b].pool == POOL_DEVICE, b < s->n_device);
            if (b < s->n_device && b > seen) {
                assert_int_equal(b, seen + 1);
                seen = b;
            }
        }
    assert_int_equal(seen, s->n_device - 1);
    for (int i = 0; i < s->n_buffer; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(s->buffer[i].name, s->buffer[k].name);
    arena_close(a);
}

static void test_errors(void **state)
{
    (void)state;
    Arena *a = arena_open();
    Graph *g;
    Profile *p;
    uint64_t rng = 2;
    small_graph(a, &rng, &g, &p);
    Plan *plan = random_plan(a, &rng, g);
    StepList *s = (StepList *)a;
    Diag d = {0};
    plan->unit[1].first_gpu_use = 77;
    assert_int_equal(steps_build(&d, a, g, plan, &s), ST_MODEL);
    assert_non_null(strstr(d.message, "wpe"));
    assert_null(s);
    plan->unit[1].first_gpu_use = 0;
    plan->n_unit--;
    memset(&d, 0, sizeof d);
    assert_int_equal(steps_build(&d, a, g, plan, &s), ST_MODEL);
    plan->n_unit++;
    memset(&d, 0, sizeof d);
    assert_int_equal(steps_build(&d, a, g, plan, &s), ST_OK);
    p->n_layer--;
    assert_int_equal(steps_time(&d, s, p), ST_MODEL);
    arena_close(a);
}

/* Every allocation fails once: an error, never a crash or a leak. */
static void test_out_of_memory(void **state)
{
    (void)state;
    int failed = 0;
    for (long n = 1;; n++) {
        Arena *a = arena_open(), *b = arena_open();
        Graph *g;
        Profile *p;
        SyntheticShape shape = {.blocks = 1, .hidden = 32, .heads = 4, .vocab = 64, .batch = 1, .seq = 8, .seed = 1};
        synthetic_make_shape(a, shape, &g, &p);
        Plan plan = {.n_unit = g->n_unit, .unit = ARENA_NEW(a, UnitPlan, g->n_unit)};
        Diag d = {0};
        StepList *s;
        Timeline t;
        Layout l;
        int64_t live, *profile;
        base_fail_alloc(n);
        Status status = steps_build(&d, b, g, &plan, &s);
        if (status == ST_OK)
            status = steps_time(&d, s, p);
        if (status == ST_OK)
            status = simulate(&d, b, s, &p->device, true, &t);
        if (status == ST_OK)
            status = memory_plan(&d, b, s, &p->device, &l, &live);
        if (status == ST_OK)
            status = memory_profile(&d, b, s, &profile);
        if (status == ST_OK)
            status = plan_verify(&d, b, s, &l);
        base_fail_alloc(0);
        arena_close(a);
        arena_close(b);
        if (status == ST_OK)
            break;
        assert_int_equal(status, ST_FAILED);
        assert_non_null(strstr(d.message, "memory"));
        failed++;
    }
    assert_true(failed > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program_order),
        cmocka_unit_test(test_waits_are_the_reduction),
        cmocka_unit_test(test_updates_after_bp),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_load_window),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_interpolation),
        cmocka_unit_test(test_text_and_buffers),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
