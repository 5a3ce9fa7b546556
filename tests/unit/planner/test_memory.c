/* Static stitching and live bytes, against lifetimes worked out from an explicit graph of happens-before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/planner/random_steps.h"

static DeviceFacts facts(int64_t chunk, int64_t alignment)
{
    return (DeviceFacts){.name = "test", .chunk_bytes = chunk, .alignment_bytes = alignment};
}

static bool begins_with_read(const StepList *s, int buffer)
{
    for (int i = 0; i < s->n_step; i++)
        for (int k = 0; k < s->step[i].n_access; k++)
            if (s->step[i].access[k].buffer == buffer)
                return s->step[i].access[k].read;
    return true; /* never accessed: nothing is known */
}

static bool may_share(const StepList *s, const Closure *c, int a, int b)
{
    if (s->buffer[a].preset || s->buffer[b].preset || begins_with_read(s, a) || begins_with_read(s, b))
        return false;
    return (buffers_before(s, c, a, 1, b, 1) && buffers_before(s, c, b, 1, a, 2)) ||
           (buffers_before(s, c, b, 1, a, 1) && buffers_before(s, c, a, 1, b, 2));
}

static bool share_bytes(const Place *a, const Place *b)
{
    for (int i = 0; i < a->n_piece; i++)
        for (int k = 0; k < b->n_piece; k++)
            if (a->piece[i].offset_bytes < b->piece[k].offset_bytes + b->piece[k].bytes &&
                b->piece[k].offset_bytes < a->piece[i].offset_bytes + a->piece[i].bytes)
                return true;
    return false;
}

static void check_well_formed(const StepList *s, const DeviceFacts *f, const Layout *l)
{
    assert_int_equal(l->n_place, s->n_device);
    assert_int_equal(l->chunk_bytes, f->chunk_bytes);
    assert_int_equal(l->reserved_bytes % f->chunk_bytes, 0);
    for (int i = 0; i < l->n_place; i++) {
        int64_t sum = 0;
        const Place *p = &l->place[i];
        assert_string_equal(p->buffer, s->buffer[i].name);
        assert_true(p->n_piece >= 1);
        for (int k = 0; k < p->n_piece; k++) {
            assert_true(p->piece[k].bytes > 0 && p->piece[k].offset_bytes >= 0);
            assert_true(p->piece[k].offset_bytes + p->piece[k].bytes <= l->reserved_bytes);
            assert_int_equal(p->piece[k].offset_bytes % f->alignment_bytes, 0);
            if (p->n_piece > 1) {
                assert_int_equal(p->piece[k].offset_bytes % f->chunk_bytes, 0);
                assert_true(k + 1 == p->n_piece || p->piece[k].bytes % f->chunk_bytes == 0);
            }
            sum += p->piece[k].bytes;
        }
        assert_true(sum >= s->buffer[i].bytes && sum < s->buffer[i].bytes + f->alignment_bytes);
    }
}

/* True when the buffer may hold data while step x (of iteration 1) runs: unless one life is over before it, and it
 * before the next life. */
static bool may_be_live(const StepList *s, const Closure *c, int buffer, int x)
{
    if (s->buffer[buffer].preset || begins_with_read(s, buffer))
        return true;
    for (int life = 0; life < 3; life++) {
        bool dead = true;
        for (int i = 0; i < s->n_step && dead; i++)
            for (int k = 0; k < s->step[i].n_access; k++)
                if (s->step[i].access[k].buffer == buffer)
                    dead = dead && closure_has(c, life * s->n_step + i, 2 * s->n_step + x) &&
                           closure_has(c, 2 * s->n_step + x, (life + 1) * s->n_step + i);
        if (dead)
            return false;
    }
    return true;
}

/* Surely holding data at step x: first written before (or by) it, still to be used (or used by it). */
static bool is_live(const StepList *s, const Closure *c, int buffer, int x)
{
    bool begun = s->buffer[buffer].preset, needed = s->buffer[buffer].preset;
    int me = s->n_step + x;
    for (int i = 0; i < s->n_step; i++)
        for (int k = 0; k < s->step[i].n_access; k++)
            if (s->step[i].access[k].buffer == buffer) {
                int at = s->n_step + i;
                begun = begun || at == me || closure_has(c, at, me);
                needed = needed || at == me || closure_has(c, me, at);
            }
    return begun && needed;
}

static void test_random_lists(void **state)
{
    (void)state;
    uint64_t rng = 99;
    int shared = 0;
    for (int round = 0; round < 250; round++) {
        Arena *a = arena_open();
        Diag d = {0};
        StepList *s = random_list(a, &rng,
                                  (RandomShape){.steps = 3 + random_below(&rng, 20),
                                                .device = 1 + random_below(&rng, 14),
                                                .host = 1 + random_below(&rng, 3),
                                                .hosts = random_below(&rng, 2) == 0});
        assert_int_equal(steps_derive_waits(&d, a, s, NULL, 0), ST_OK);
        DeviceFacts f = facts(round % 2 ? 256 : 1024, 64);
        Layout l;
        int64_t live;
        assert_int_equal(memory_plan(&d, a, s, &f, &l, &live), ST_OK);
        check_well_formed(s, &f, &l);
        Closure c = closure_of_waits(a, s, 4, -1, 0);
        for (int i = 0; i < s->n_device; i++) {
            for (int k = i + 1; k < s->n_device; k++)
                if (share_bytes(&l.place[i], &l.place[k])) {
                    shared++;
                    assert_true(may_share(s, &c, i, k));
                }
        }
        int64_t peak = 0, least = 0, *profile;
        assert_int_equal(memory_profile(&d, a, s, &profile), ST_OK);
        for (int x = 0; x < s->n_step; x++) {
            int64_t maybe = 0, surely = 0, exact = 0;
            for (int i = 0; i < s->n_device; i++) {
                int64_t bytes = (s->buffer[i].bytes + 63) / 64 * 64;
                maybe += may_be_live(s, &c, i, x) ? bytes : 0;
                exact += may_be_live(s, &c, i, x) ? s->buffer[i].bytes : 0;
                surely += is_live(s, &c, i, x) ? bytes : 0;
            }
            if (s->step[x].stream == STREAM_COMPUTE)
                peak = maybe > peak ? maybe : peak;
            least = surely > least ? surely : least;
            assert_int_equal(profile[BUFFER_VALUE * s->n_step + x], exact);
            assert_int_equal(profile[BUFFER_CONST * s->n_step + x], 0);
        }
        assert_int_equal(live, peak);
        assert_true(l.reserved_bytes >= least);
        int64_t host = 0;
        for (int i = s->n_device; i < s->n_buffer; i++)
            host += s->buffer[i].bytes * s->buffer[i].copies;
        assert_int_equal(memory_host_bytes(s), host);
        arena_close(a);
    }
    assert_true(shared > 200);
}

typedef struct Line {
    int64_t bytes;
    int from, to; /* steps that write first and read last */
} Line;

/* One compute stream; buffer i lives from one step to another. */
static StepList *line_list(Arena *a, int steps, const Line *line, int n)
{
    StepList *s = ARENA_NEW(a, StepList, 1);
    s->n_step = steps;
    s->n_device = s->n_buffer = n;
    s->step = ARENA_NEW(a, Step, steps);
    s->buffer = ARENA_NEW(a, Buffer, n);
    for (int i = 0; i < steps; i++) {
        s->step[i] = (Step){.kind = STEP_KERNEL, .stream = STREAM_COMPUTE, .node = -1, .unit = -1, .segment = -1};
        s->step[i].access = ARENA_NEW(a, Access, n);
        for (int k = 0; k < n; k++) {
            if (line[k].from == i)
                s->step[i].access[s->step[i].n_access++] = (Access){k, false, true, 0};
            else if (line[k].to == i)
                s->step[i].access[s->step[i].n_access++] = (Access){k, true, false, 0};
        }
    }
    for (int k = 0; k < n; k++)
        s->buffer[k] = (Buffer){arena_printf(a, "b%d", k), BUFFER_VALUE, POOL_DEVICE, line[k].bytes, -1, -1, 1, false};
    return s;
}

/* Lives as a comb of all sizes, so that in every order holes are left over that only stitching can use. */
static void test_combs(void **state)
{
    (void)state;
    enum { CHUNK = 4096, TEETH = 16 };
    uint64_t rng = 1234;
    int stitched = 0;
    double sum = 0;
    for (int round = 0; round < 200; round++) {
        Arena *a = arena_open();
        Diag d = {0};
        Line line[TEETH];
        for (int i = 0; i < TEETH; i++) {
            int from = random_below(&rng, 20), length = 1 + random_below(&rng, 10);
            line[i] = (Line){CHUNK / 2 + random_below(&rng, 12 * CHUNK), from, from + length};
        }
        StepList *s = line_list(a, 31, line, TEETH);
        DeviceFacts f = facts(CHUNK, 256);
        Layout l;
        int64_t live;
        assert_int_equal(memory_plan(&d, a, s, &f, &l, &live), ST_OK);
        check_well_formed(s, &f, &l);
        for (int i = 0; i < TEETH; i++) {
            stitched += l.place[i].n_piece > 1;
            for (int k = i + 1; k < TEETH; k++)
                if (line[i].from <= line[k].to && line[k].from <= line[i].to)
                    assert_false(share_bytes(&l.place[i], &l.place[k]));
        }
        assert_true(l.reserved_bytes >= live);
        assert_true((double)l.reserved_bytes <= 1.1 * (double)live + CHUNK);
        sum += (double)l.reserved_bytes / (double)live;
        arena_close(a);
    }
    assert_true(stitched > 20);
    assert_true(sum / 200 < 1.03); /* in the mean */
}

static void test_gpt2(void **state)
{
    (void)state;
    static const int64_t chunk[] = {4096, 2 << 20};
    for (int mode = 0; mode < 4; mode++)
        for (int c = 0; c < 2; c++) {
            Arena *a = arena_open();
            Diag d = {0};
            Graph *g;
            Profile *p;
            synthetic_make(a, 12, 3, &g, &p);
            Plan plan = {.n_unit = g->n_unit, .unit = ARENA_NEW(a, UnitPlan, g->n_unit)};
            plan.gradient_window_bytes = mode == 3 ? 32 << 20 : 0;
            uint64_t rng = 8;
            for (int u = 0; u < g->n_unit; u++) {
                int uses = g->unit[u].n_use;
                plan.unit[u].first_gpu_use = mode == 1 ? uses : mode == 2 ? random_below(&rng, uses + 1) : 0;
                plan.unit[u].grad = mode == 1 || (mode == 2 && random_below(&rng, 2)) ? ON_HOST : ON_GPU;
            }
            StepList *s;
            assert_int_equal(steps_build(&d, a, g, &plan, &s), ST_OK);
            DeviceFacts f = facts(chunk[c], 256);
            Layout l, again;
            int64_t live;
            assert_int_equal(memory_plan(&d, a, s, &f, &l, &live), ST_OK);
            check_well_formed(s, &f, &l);
            assert_true((double)l.reserved_bytes <= 1.05 * (double)live);
            assert_int_equal(memory_plan(&d, a, s, &f, &again, &live), ST_OK);
            for (int i = 0; i < l.n_place; i++) {
                assert_int_equal(l.place[i].n_piece, again.place[i].n_piece);
                assert_memory_equal(l.place[i].piece, again.place[i].piece, (size_t)l.place[i].n_piece * sizeof(Piece));
            }
            arena_close(a);
        }
}

static void test_errors(void **state)
{
    (void)state;
    Arena *a = arena_open();
    static const Line line[] = {{100, 0, 1}, {100, 1, 2}};
    StepList *s = line_list(a, 3, line, 2);
    Layout l;
    int64_t live;
    DeviceFacts f = facts(1000, 64);
    Diag d = {0};
    assert_int_equal(memory_plan(&d, a, s, &f, &l, &live), ST_MODEL);
    f = facts(4096, 64);
    s->buffer[1].bytes = INT64_MAX - 5;
    memset(&d, 0, sizeof d);
    assert_int_equal(memory_plan(&d, a, s, &f, &l, &live), ST_MODEL);
    assert_non_null(strstr(d.message, "b1"));
    s->n_device = s->n_buffer = 0;
    for (int i = 0; i < 3; i++)
        s->step[i].n_access = 0;
    memset(&d, 0, sizeof d);
    assert_int_equal(memory_plan(&d, a, s, &f, &l, &live), ST_OK);
    assert_int_equal(l.reserved_bytes, 0);
    assert_int_equal(live, 0);
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_lists),
        cmocka_unit_test(test_combs),
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
