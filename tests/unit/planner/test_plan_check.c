/* plan_verify accepts what the planner makes, and refuses it after any change that breaks it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/planner/plans.h"

typedef struct Case {
    Arena *a;
    Graph *g;
    Profile *p;
    Plan *plan;
    StepList *s;
    Layout l;
} Case;

static void make(Case *c, uint64_t *rng)
{
    *c = (Case){.a = arena_open()};
    Diag d = {0};
    int64_t live;
    small_graph(c->a, rng, &c->g, &c->p);
    c->plan = random_plan(c->a, rng, c->g);
    assert_int_equal(steps_build(&d, c->a, c->g, c->plan, &c->s), ST_OK);
    assert_int_equal(memory_plan(&d, c->a, c->s, &c->p->device, &c->l, &live), ST_OK);
}

static Status verify(const Case *c, Diag *d)
{
    Arena *a = arena_open();
    memset(d, 0, sizeof *d);
    Status status = plan_verify(d, a, c->s, &c->l);
    arena_close(a);
    return status;
}

static void test_accepts(void **state)
{
    (void)state;
    uint64_t rng = 1;
    for (int round = 0; round < 100; round++) {
        Case c;
        Diag d;
        make(&c, &rng);
        if (verify(&c, &d) != ST_OK)
            fail_msg("round %d: %s", round, d.message);
        arena_close(c.a);
    }
}

static void test_every_wait_is_needed(void **state)
{
    (void)state;
    uint64_t rng = 2;
    int dropped = 0;
    for (int round = 0; round < 12; round++) {
        Case c;
        Diag d;
        make(&c, &rng);
        for (int i = 0; i < c.s->n_step; i++)
            for (int k = 0; k < c.s->step[i].n_wait; k++) {
                Step *x = &c.s->step[i], kept = *x;
                Wait less[STREAM_COUNT];
                x->n_wait = 0;
                for (int j = 0; j < kept.n_wait; j++)
                    if (j != k)
                        less[x->n_wait++] = kept.wait[j];
                x->wait = less;
                assert_int_equal(verify(&c, &d), ST_FAILED);
                assert_true(d.message[0]);
                *x = kept;
                dropped++;
            }
        assert_int_equal(verify(&c, &d), ST_OK);
        arena_close(c.a);
    }
    assert_true(dropped > 300);
}

static void test_message_names_steps_and_buffer(void **state)
{
    (void)state;
    uint64_t rng = 6;
    Case c;
    Diag d;
    make(&c, &rng);
    for (int u = 0; u < c.g->n_unit; u++)
        c.plan->unit[u] = (UnitPlan){.grad = ON_GPU};
    c.plan->gradient_window_bytes = 0;
    int64_t live;
    memset(&d, 0, sizeof d);
    assert_int_equal(steps_build(&d, c.a, c.g, c.plan, &c.s), ST_OK);
    assert_int_equal(memory_plan(&d, c.a, c.s, &c.p->device, &c.l, &live), ST_OK);
    for (int i = 0; i < c.s->n_step; i++)
        if (c.s->step[i].kind == STEP_KERNEL) { /* the gather of the table, which waits for its load */
            assert_int_equal(c.s->step[i].n_wait, 1);
            c.s->step[i].n_wait = 0;
            assert_int_equal(verify(&c, &d), ST_FAILED);
            assert_non_null(strstr(d.message, "param:wte.weight"));
            assert_non_null(strstr(d.message, "wte (embedding)"));
            assert_non_null(strstr(d.message, "load 2 wte"));
            assert_true(d.hint[0]);
            break;
        }
    arena_close(c.a);
}

/* Moves one buffer onto another, byte for byte at its beginning; refused exactly when the two may be live at once. */
static void test_overlaps(void **state)
{
    (void)state;
    uint64_t rng = 3;
    int refused = 0, accepted = 0;
    for (int round = 0; round < 20; round++) {
        Arena *a = arena_open();
        Diag d = {0};
        Case c = {.a = a};
        SyntheticShape shape = {.blocks = 1, .hidden = 32, .heads = 4, .vocab = 64, .batch = 1, .seq = 8, .seed = 1};
        synthetic_make_shape(a, shape, &c.g, &c.p);
        c.plan = random_plan(a, &rng, c.g);
        assert_int_equal(steps_build(&d, a, c.g, c.plan, &c.s), ST_OK);
        Closure closure = closure_of_waits(a, c.s, 3, -1, 0);
        /* nothing shares but the two, whose places begin together */
        c.l = (Layout){.chunk_bytes = 4096, .n_place = c.s->n_device, .place = ARENA_NEW(a, Place, c.s->n_device)};
        for (int i = 0; i < c.s->n_device; i++) {
            c.l.place[i] = (Place){c.s->buffer[i].name, 1, ARENA_NEW(a, Piece, 1)};
            c.l.place[i].piece[0] = (Piece){c.l.reserved_bytes, c.s->buffer[i].bytes};
            c.l.reserved_bytes += (c.s->buffer[i].bytes + 4095) / 4096 * 4096;
        }
        assert_int_equal(verify(&c, &d), ST_OK);
        for (int tries = 0; tries < 30; tries++) {
            int x = random_below(&rng, c.s->n_device), y = random_below(&rng, c.s->n_device);
            if (x == y)
                continue;
            int64_t kept = c.l.place[x].piece[0].offset_bytes,
                    end = c.l.place[y].piece[0].offset_bytes + c.s->buffer[x].bytes;
            int64_t pool = c.l.reserved_bytes;
            if (c.s->buffer[x].bytes > c.s->buffer[y].bytes) /* it would reach into others */
                continue;
            c.l.place[x].piece[0].offset_bytes = c.l.place[y].piece[0].offset_bytes;
            c.l.reserved_bytes = end > pool ? (end + 4095) / 4096 * 4096 : pool;
            bool ok = !c.s->buffer[x].preset && !c.s->buffer[y].preset &&
                      ((buffers_before(c.s, &closure, x, 1, y, 1) && buffers_before(c.s, &closure, y, 1, x, 2)) ||
                       (buffers_before(c.s, &closure, y, 1, x, 1) && buffers_before(c.s, &closure, x, 1, y, 2)));
            assert_int_equal(verify(&c, &d), ok ? ST_OK : ST_FAILED);
            if (!ok) {
                assert_non_null(strstr(d.message, c.s->buffer[x].name));
                assert_non_null(strstr(d.message, c.s->buffer[y].name));
            }
            refused += !ok;
            accepted += ok;
            c.l.place[x].piece[0].offset_bytes = kept;
            c.l.reserved_bytes = pool;
        }
        arena_close(a);
    }
    assert_true(refused > 50 && accepted > 20);
}

static void expect_layout_error(const Case *c, const char *name)
{
    Diag d;
    assert_int_equal(verify(c, &d), ST_FAILED);
    if (!strstr(d.message, name))
        fail_msg("'%s' is not named by: %s", name, d.message);
}

static void test_malformed_layouts(void **state)
{
    (void)state;
    uint64_t rng = 4;
    Case c;
    make(&c, &rng);
    int n = c.l.n_place, x = n / 2;
    Place *places = c.l.place, kept = places[x], *more = ARENA_NEW(c.a, Place, n + 1);
    const char *name = kept.buffer;
    /* outside */
    Piece piece[2] = {{c.l.reserved_bytes, kept.piece[0].bytes}, {0, 0}};
    places[x].piece = piece;
    places[x].n_piece = 1;
    expect_layout_error(&c, name);
    piece[0].offset_bytes = -4096;
    expect_layout_error(&c, name);
    piece[0] = (Piece){INT64_MAX - 10, 100};
    expect_layout_error(&c, name);
    piece[0] = (Piece){0, INT64_MAX};
    expect_layout_error(&c, name);
    /* too short, empty, none */
    piece[0] = (Piece){kept.piece[0].offset_bytes, c.s->buffer[x].bytes - 1};
    expect_layout_error(&c, name);
    piece[0].bytes = 0;
    expect_layout_error(&c, name);
    places[x].n_piece = 0;
    expect_layout_error(&c, name);
    /* stitched pieces off the chunk, or a short one that is not the last; one piece twice */
    places[x].n_piece = 2;
    int64_t pool = c.l.reserved_bytes;
    c.l.reserved_bytes += 1 << 20;
    piece[0] = (Piece){pool, 4096};
    piece[1] = (Piece){pool + 8192 + 256, 1 << 18};
    expect_layout_error(&c, name);
    piece[0] = (Piece){pool, 4000};
    piece[1] = (Piece){pool + 8192, 1 << 18};
    expect_layout_error(&c, name);
    piece[0] = (Piece){pool + 8192, 4096};
    expect_layout_error(&c, name);
    piece[0] = (Piece){pool, 4096};
    Diag d;
    assert_int_equal(verify(&c, &d), ST_OK);
    c.l.reserved_bytes = pool;
    places[x] = kept;
    /* missing, twice, unknown, another order */
    memcpy(more, places, (size_t)n * sizeof *more);
    c.l.place = more;
    c.l.n_place = n - 1;
    expect_layout_error(&c, c.s->buffer[n - 1].name);
    c.l.n_place = n + 1;
    more[n] = more[x];
    expect_layout_error(&c, name);
    c.l.n_place = n;
    more[x].buffer = "act:nothing";
    expect_layout_error(&c, "act:nothing");
    more[x] = more[0];
    expect_layout_error(&c, more[0].buffer);
    more[x] = places[0];
    more[0] = places[x];
    expect_layout_error(&c, places[0].buffer);
    c.l.place = places;
    /* chunks */
    c.l.reserved_bytes++;
    expect_layout_error(&c, "chunks");
    c.l.reserved_bytes--;
    c.l.chunk_bytes = 0;
    expect_layout_error(&c, "chunks");
    c.l.chunk_bytes = 4096;
    assert_int_equal(verify(&c, &d), ST_OK);
    arena_close(c.a);
}

/* Changes of steps, accesses and buffers: the program no longer is a training step. */
static void test_broken_programs(void **state)
{
    (void)state;
    uint64_t rng = 5;
    int changes = 0;
    for (int round = 0; round < 12; round++) {
        Case c;
        Diag d;
        make(&c, &rng);
        StepList *s = c.s;
        for (int i = 0; i < s->n_step; i++) {
            Step *x = &s->step[i], kept = *x;
            if (random_below(&rng, 4) > 0)
                continue;
            /* an access forgotten, turned into another kind, moved to another buffer */
            int k = random_below(&rng, x->n_access);
            Access access = x->access[k], last = x->access[x->n_access - 1];
            x->access[k] = last;
            x->n_access--;
            assert_int_equal(verify(&c, &d), ST_FAILED);
            *x = kept;
            x->access[x->n_access - 1] = last;
            x->access[k] = access;
            if (access.lag == 0) {
                x->access[k].read = !access.read;
                x->access[k].write = true;
                if (x->access[k].read != access.read || !access.write)
                    if (x->kind != STEP_KERNEL) {
                        assert_int_equal(verify(&c, &d), ST_FAILED);
                        changes++;
                    }
                x->access[k] = access;
            }
            x->access[k].buffer = (access.buffer + 1) % s->n_buffer;
            assert_int_equal(verify(&c, &d), ST_FAILED);
            x->access[k] = access;
            /* another stream, unit, node */
            x->stream = (StepStream)((x->stream + 1) % STREAM_COUNT);
            assert_int_equal(verify(&c, &d), ST_FAILED);
            *x = kept;
            if (x->unit >= 0) {
                x->unit = (x->unit + 1) % c.g->n_unit;
                assert_int_equal(verify(&c, &d), ST_FAILED);
                *x = kept;
            }
            if (x->node >= 0) {
                x->node++;
                assert_int_equal(verify(&c, &d), ST_FAILED);
                *x = kept;
            }
            /* left out: all later steps move up, waits on them no longer fit or the program lacks it */
            Step *less = ARENA_NEW(c.a, Step, s->n_step), *all = s->step;
            memcpy(less, all, (size_t)i * sizeof *less);
            memcpy(less + i, all + i + 1, (size_t)(s->n_step - i - 1) * sizeof *less);
            for (int j = 0; j < s->n_step - 1; j++)
                less[j].n_wait = 0;
            s->step = less;
            s->n_step--;
            assert_int_equal(verify(&c, &d), ST_FAILED);
            s->step = all;
            s->n_step++;
            changes += 4;
        }
        /* the plan changes under the list */
        int u = random_below(&rng, c.g->n_unit);
        UnitPlan kept = c.plan->unit[u];
        if (kept.hold == HOLD_RESIDENT)
            c.plan->unit[u].hold = HOLD_STEP;
        else
            c.plan->unit[u].first_gpu_use = kept.first_gpu_use == 0 ? c.g->unit[u].n_use : 0;
        assert_int_equal(verify(&c, &d), ST_FAILED);
        c.plan->unit[u] = kept;
        if (c.g->unit[u].grad_bytes > 0) {
            c.plan->unit[u].grad = kept.grad == ON_GPU ? ON_HOST : ON_GPU;
            assert_int_equal(verify(&c, &d), ST_FAILED);
            c.plan->unit[u] = kept;
        }
        c.plan->clip = !c.plan->clip;
        assert_int_equal(verify(&c, &d), ST_FAILED);
        c.plan->clip = !c.plan->clip;
        assert_int_equal(verify(&c, &d), ST_OK);
        arena_close(c.a);
    }
    assert_true(changes > 300);
}

/* Running statistics: each brought up to date once a step, where they are, from what they were. */
static void test_statistics(void **state)
{
    (void)state;
    Case c = {.a = arena_open()};
    Diag d = {.quiet = true};
    Model *m;
    DimBinding dim = {"batch", 8};
    ModelOptions options = {.path = FERRY_SOURCE_DIR "/tests/models/batchnorm/ts.onnx", .loss = "cross_entropy"};
    DeviceFacts device = {.chunk_bytes = 4096, .alignment_bytes = 256};
    int64_t live;
    uint64_t rng = 9;
    options.dim = &dim;
    options.n_dim = 1;
    if (graph_from_options(&d, c.a, &options, &m, &c.g) != ST_OK)
        fail_msg("%s", d.message);
    c.plan = random_plan(c.a, &rng, c.g);
    assert_int_equal(steps_build(&d, c.a, c.g, c.plan, &c.s), ST_OK);
    assert_int_equal(memory_plan(&d, c.a, c.s, &device, &c.l, &live), ST_OK);
    if (verify(&c, &d) != ST_OK)
        fail_msg("%s", d.message);
    int found = 0;
    for (int i = 0; i < c.s->n_step; i++)
        for (int k = 0; k < c.s->step[i].n_access; k++) {
            Step *x = &c.s->step[i], kept = *x;
            Access *a = &x->access[k], access = *a, last = x->access[x->n_access - 1];
            Buffer *b = &c.s->buffer[access.buffer];
            if (b->kind != BUFFER_STATISTIC)
                continue;
            found++;
            assert_true(access.read && access.write && b->pool == POOL_HOST && b->preset);
            a->write = false;
            expect_layout_error(&c, b->name);
            *a = access;
            a->buffer = c.s->master_buffer[c.g->unit[0].param[0]];
            expect_layout_error(&c, b->name);
            *a = last;
            x->n_access--;
            expect_layout_error(&c, b->name);
            *x = kept;
            *a = access;
            b->preset = false;
            expect_layout_error(&c, b->name);
            b->preset = true;
        }
    assert_int_equal(found, 6);
    for (int i = 0; i < c.s->n_step; i++) /* no other step takes part */
        if (c.s->step[i].kind == STEP_ADAMW) {
            Step kept = c.s->step[i];
            c.s->step[i].access = ARENA_NEW(c.a, Access, kept.n_access + 1);
            memcpy(c.s->step[i].access, kept.access, (size_t)kept.n_access * sizeof(Access));
            for (int p = 0; p < c.g->n_param; p++)
                if (c.g->param[p].state)
                    c.s->step[i].access[kept.n_access] = (Access){c.s->master_buffer[p], true, true, 0};
            c.s->step[i].n_access++;
            assert_int_equal(verify(&c, &d), ST_FAILED);
            c.s->step[i] = kept;
        }
    assert_int_equal(verify(&c, &d), ST_OK);
    graph_close(c.g);
    model_close(m);
    arena_close(c.a);
}

/* bf16: every update writes the copy that loads and DHA read, and these read nothing else. */
static void test_rounded(void **state)
{
    (void)state;
    Case c = {.a = arena_open()};
    Diag d = {.quiet = true};
    Model *m;
    DimBinding dim[] = {{"batch", 4}, {"seq", 32}};
    const ModelOptions options = {.path = FERRY_SOURCE_DIR "/tests/models/gpt2/loss-ts.onnx",
                                  .dim = dim,
                                  .n_dim = 2,
                                  .precision = FERRY_BF16};
    DeviceFacts device = {.chunk_bytes = 4096, .alignment_bytes = 256};
    int64_t live;
    uint64_t rng = 5;
    if (graph_from_options(&d, c.a, &options, &m, &c.g) != ST_OK)
        fail_msg("%s", d.message);
    c.plan = random_plan(c.a, &rng, c.g);
    assert_int_equal(steps_build(&d, c.a, c.g, c.plan, &c.s), ST_OK);
    assert_int_equal(memory_plan(&d, c.a, c.s, &device, &c.l, &live), ST_OK);
    if (verify(&c, &d) != ST_OK)
        fail_msg("%s", d.message);
    int written = 0, loaded = 0, by_dha = 0;
    for (int i = 0; i < c.s->n_step; i++)
        for (int k = 0; k < c.s->step[i].n_access; k++) {
            Step *x = &c.s->step[i];
            Access *a = &x->access[k], access = *a, last = x->access[x->n_access - 1];
            Buffer *b = &c.s->buffer[access.buffer];
            if (b->kind != BUFFER_ROUNDED)
                continue;
            const Buffer *master = &c.s->buffer[c.s->master_buffer[b->param]];
            bool resident = c.plan->unit[c.g->param[b->param].unit].hold == HOLD_RESIDENT;
            assert_int_equal(b->pool, resident ? POOL_DEVICE : POOL_HOST);
            assert_true(b->preset && b->bytes == 2 * c.g->param[b->param].count);
            assert_int_equal(master->bytes, 2 * b->bytes);
            written += x->kind == STEP_ADAMW;
            loaded += x->kind == STEP_LOAD;
            by_dha += x->kind == STEP_KERNEL;
            assert_true(x->kind == STEP_ADAMW ? access.write && !access.read : access.read && !access.write);
            *a = last; /* without this access: not updated, or read from nowhere */
            x->n_access--;
            assert_int_equal(verify(&c, &d), ST_FAILED);
            x->n_access++;
            *a = access;
            if (x->kind != STEP_ADAMW) {
                a->buffer = c.s->master_buffer[b->param];
                assert_int_equal(verify(&c, &d), ST_FAILED);
                *a = access;
            }
            b->bytes--;
            assert_int_equal(verify(&c, &d), ST_FAILED);
            b->bytes++;
        }
    assert_int_equal(written, c.g->n_param);
    assert_true(loaded > 0 && by_dha > 0);
    assert_int_equal(verify(&c, &d), ST_OK);
    graph_close(c.g);
    model_close(m);
    arena_close(c.a);
}

/* What the plan promises beyond correct results. */
static void test_promises(void **state)
{
    (void)state;
    uint64_t rng = 14;
    int after = 0, window = 0, reload = 0;
    for (int round = 0; round < 40; round++) {
        Case c;
        Diag d;
        make(&c, &rng);
        bool on_gpu = false;
        for (int u = 0; u < c.g->n_unit; u++)
            on_gpu = on_gpu || (c.g->unit[u].grad_bytes > 0 && c.plan->unit[u].grad == ON_GPU);
        if (!c.plan->update_after_bp) {
            c.plan->update_after_bp = true;
            assert_int_equal(verify(&c, &d), ST_FAILED);
            assert_non_null(strstr(d.message, "after the backward pass"));
            c.plan->update_after_bp = false;
            after++;
        }
        if (c.plan->gradient_window_bytes == 0 && on_gpu) {
            c.plan->gradient_window_bytes = 1;
            if (verify(&c, &d) != ST_OK) {
                assert_non_null(strstr(d.message, "window"));
                window++;
            }
            c.plan->gradient_window_bytes = 0;
        }
        bool twice = false;
        for (int u = 0; u < c.g->n_unit; u++)
            twice = twice || c.plan->unit[u].hold == HOLD_RELOAD;
        if (c.plan->load_window_bytes == 0 && twice) {
            c.plan->load_window_bytes = 1;
            if (verify(&c, &d) != ST_OK) {
                assert_non_null(strstr(d.message, "window"));
                reload++;
            }
            c.plan->load_window_bytes = 0;
        }
        arena_close(c.a);
    }
    assert_true(after > 5 && window > 5 && reload > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_every_wait_is_needed),
        cmocka_unit_test(test_message_names_steps_and_buffer),
        cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_malformed_layouts),
        cmocka_unit_test(test_broken_programs),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_rounded),
        cmocka_unit_test(test_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
