/* test_memferry.c - Alg. 1 and 2 on instances whose states were worked out by hand, one a line of the algorithms, and
 * against all modes of a small network judged by the timeline. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "planner/plan_search.h"
#include "synthetic.h"

enum { MOST = 4 };

/* Times of items 0..n-1 and of what stands between them. */
typedef struct Case {
    int n;
    int64_t trans[MOST], fp[MOST], fp_h[MOST], bp[MOST], bp_h[MOST], a_fp[MOST + 1], a_bp[MOST + 1];
} Case;

typedef struct Expected {
    const char *modes; /* g, d, f(DFGB) by item */
    int64_t all, res;
    int tag;
} Expected;

static Problem *problem_of(Arena *a, const Case *c)
{
    Problem *p = ARENA_NEW(a, Problem, 1);
    p->n_item = c->n;
    p->item = ARENA_NEW(a, Item, c->n);
    p->a_fp_ns = ARENA_NEW(a, int64_t, c->n + 1);
    p->a_bp_ns = ARENA_NEW(a, int64_t, c->n + 1);
    for (int i = 0; i <= c->n; i++) {
        p->a_fp_ns[i] = c->a_fp[i];
        p->a_bp_ns[i] = c->a_bp[i];
        if (i < c->n)
            p->item[i] = (Item){.unit = i,
                                .trans_ns = c->trans[i],
                                .fp_ns = c->fp[i],
                                .fp_h_ns = c->fp_h[i],
                                .bp_ns = c->bp[i],
                                .bp_h_ns = c->bp_h[i]};
    }
    return p;
}

static void check_state(const MemferryState *s, int n, Expected e)
{
    for (int i = 0; i < n; i++)
        assert_int_equal("gdf"[s->mode[i]], e.modes[i]);
    assert_int_equal(s->all_ns, e.all);
    assert_int_equal(s->res_ns, e.res);
    assert_int_equal(s->tag, e.tag);
}

static void check_fp(Case c, FpReading reading, Expected e)
{
    Diag d = {0};
    Arena *a = arena_open();
    MemferryState s;
    assert_int_equal(memferry_fp(&d, a, problem_of(a, &c), reading, &s), ST_OK);
    check_state(&s, c.n, e);
    arena_close(a);
}

static void check_bp(Case c, BpReading reading, const char *modes, int64_t res, int tag, Expected e)
{
    Diag d = {0};
    Arena *a = arena_open();
    MemferryState s = {.mode = ARENA_NEW(a, Mode, c.n), .all_ns = e.all, .res_ns = res, .tag = tag};
    for (int i = 0; i < c.n; i++)
        s.mode[i] = modes[i] == 'g' ? MODE_GFGB : MODE_DHA;
    assert_int_equal(memferry_bp(&d, a, problem_of(a, &c), reading, &s), ST_OK);
    check_state(&s, c.n, e);
    arena_close(a);
}

static void fp_line_1_starts_with_what_comes_first(void **state)
{
    (void)state;
    check_fp((Case){.n = 0, .a_fp = {20}}, FP_LITERAL, (Expected){"", 20, 20, -1});
}

static void fp_lines_3_to_5_dha(void **state)
{
    (void)state;
    /* 15 <= 5 + 10: equal is DHA. Both grow by 15, then by A(1,2) = 4. */
    Case c = {.n = 1, .trans = {10}, .fp = {5}, .fp_h = {15}, .a_fp = {0, 4}};
    check_fp(c, FP_LITERAL, (Expected){"d", 19, 19, -1});
    check_fp(c, FP_SLACK, (Expected){"d", 19, 19, -1});
    c.fp_h[0] = 16;
    check_fp(c, FP_LITERAL, (Expected){"g", 19, 9, -1});
}

static void fp_line_3_readings_differ(void **state)
{
    (void)state;
    /* 20 ns of slack hide the load of 10: as printed 12 <= 5 + 10, with slack 12 > 5 + 0. */
    Case c = {.n = 1, .trans = {10}, .fp = {5}, .fp_h = {12}, .a_fp = {20, 0}};
    check_fp(c, FP_LITERAL, (Expected){"d", 32, 32, -1});
    check_fp(c, FP_SLACK, (Expected){"g", 25, 15, 0});
    /* 4 of the load's 10 are not hidden: 9 <= 5 + 4 */
    c.a_fp[0] = 6;
    c.fp_h[0] = 9;
    check_fp(c, FP_SLACK, (Expected){"d", 15, 15, -1});
    c.fp_h[0] = 10;
    check_fp(c, FP_SLACK, (Expected){"g", 15, 5, -1});
}

static void fp_lines_7_to_9_no_stall(void **state)
{
    (void)state;
    Case c = {.n = 1, .trans = {10}, .fp = {5}, .fp_h = {16}, .a_fp = {20, 3}};
    check_fp(c, FP_LITERAL, (Expected){"g", 28, 18, 0});
    /* 10 < 10 is false: a stall of nothing. The times are those of no stall, but the tag is not set. */
    c.a_fp[0] = 10;
    check_fp(c, FP_LITERAL, (Expected){"g", 18, 8, -1});
}

static void fp_line_8_first_only(void **state)
{
    (void)state;
    Case c = {.n = 3, .trans = {5, 2, 2}, .fp = {1, 1, 1}, .fp_h = {50, 50, 50}, .a_fp = {1, 10, 0, 0}};
    /* item 0 stalls: end 1 + 5 + 1 - 1 = 6, slack 1, then 10 of A. Items 1 and 2 do not stall: the tag is 1. */
    check_fp(c, FP_LITERAL, (Expected){"ggg", 18, 9, 1});
}

static void fp_backtrack_accepts(void **state)
{
    (void)state;
    /* Item 1's load of 40 finds 15 of slack. Item 0 by DHA: compute is at 20 + 17 = 37, the link is free from 0 on, so
     * item 1 starts at 40 and ends at 50 instead of 60. */
    Case c = {.n = 2, .trans = {10, 40}, .fp = {5, 10}, .fp_h = {17, 100}, .a_fp = {20, 0, 0}};
    check_fp(c, FP_LITERAL, (Expected){"dg", 50, 10, 1});
    check_fp(c, FP_SLACK, (Expected){"dg", 50, 10, 1});
}

static void fp_backtrack_rejects(void **state)
{
    (void)state;
    /* DHA of item 0 would cost 35: 70 is not before 60. */
    Case c = {.n = 2, .trans = {10, 40}, .fp = {5, 10}, .fp_h = {40, 100}, .a_fp = {20, 0, 0}};
    check_fp(c, FP_LITERAL, (Expected){"gg", 60, 10, 0});
    /* Equal is no improvement: more = 20, 20 + 25 + 10 + max(40 - 15 - 30, 0) = 55 against 60; more = 25 gives 60. */
    c.fp_h[0] = 30;
    check_fp(c, FP_LITERAL, (Expected){"gg", 60, 10, 0});
    c.fp_h[0] = 29;
    check_fp(c, FP_LITERAL, (Expected){"dg", 59, 19, 1});
}

static void fp_backtrack_twice_adds_the_cost(void **state)
{
    (void)state;
    /* Both become DHA: compute 30 + 16 + 16 = 62, the load of 60 is hidden, end 72. Had T_all kept its value after the
     * first change, the end would come out as 61. */
    Case c = {.n = 3, .trans = {10, 10, 60}, .fp = {5, 5, 10}, .fp_h = {16, 16, 1000}, .a_fp = {30, 0, 0, 0}};
    check_fp(c, FP_LITERAL, (Expected){"ddg", 72, 12, 2});
}

static void fp_backtrack_stops_when_hidden(void **state)
{
    (void)state;
    Case c = {.n = 3, .trans = {10, 10, 35}, .fp = {5, 5, 10}, .fp_h = {16, 16, 1000}, .a_fp = {30, 0, 0, 0}};
    check_fp(c, FP_LITERAL, (Expected){"dgg", 61, 16, 1});
}

static void fp_backtrack_skips_dha(void **state)
{
    (void)state;
    Case c = {.n = 3, .trans = {10, 10, 60}, .fp = {5, 5, 10}, .fp_h = {16, 6, 1000}, .a_fp = {30, 0, 0, 0}};
    check_fp(c, FP_LITERAL, (Expected){"ddg", 70, 10, 1});
}

static void fp_backtrack_needs_a_tag(void **state)
{
    (void)state;
    /* Item 0 stalls and so sets no tag; item 1 stalls and finds nobody to turn, though item 0 by DHA would be better.
     */
    Case c = {.n = 2, .trans = {10, 40}, .fp = {5, 10}, .fp_h = {17, 100}, .a_fp = {0, 0, 0}};
    check_fp(c, FP_LITERAL, (Expected){"gg", 60, 10, -1});
}

static void bp_literal_and_hidden(void **state)
{
    (void)state;
    /* Window: 60 of the items and 15 of the loss. Printed test: 30 < 31, not 30 < 30, 30 < 50. */
    Case c = {.n = 3, .trans = {10, 10, 10}, .bp = {20, 20, 20}, .bp_h = {31, 30, 50}, .a_bp = {0, 0, 0, 15}};
    check_bp(c, BP_LITERAL, "ddd", 0, -1, (Expected){"fdf", 0, 55, -1});
    check_bp(c, BP_HIDDEN, "ddd", 0, -1, (Expected){"fff", 0, 45, -1});
}

static void bp_line_1_window_behind_the_tag(void **state)
{
    (void)state;
    /* Only item 2 and A(3,4) lie behind tag 1: 25. The best candidate does not fit and is skipped, the next one does.
     */
    Case c = {.n = 3, .trans = {50, 10, 10}, .bp = {5, 5, 5}, .bp_h = {100, 9, 40}, .a_bp = {7, 7, 7, 20}};
    check_bp(c, BP_HIDDEN, "dgd", 0, 1, (Expected){"dgf", 0, 15, 1});
    /* A(2,3) is behind tag 0 as well, and item 1's time. */
    check_bp(c, BP_HIDDEN, "dgd", 0, 0, (Expected){"dgf", 0, 27, 0});
}

static void bp_line_10_is_strict(void **state)
{
    (void)state;
    Case c = {.n = 1, .trans = {10}, .bp = {5}, .bp_h = {40}, .a_bp = {0, 0}};
    check_bp(c, BP_HIDDEN, "d", 5, -1, (Expected){"d", 0, 10, -1});
    check_bp(c, BP_HIDDEN, "d", 10, -1, (Expected){"f", 0, 5, -1});
}

static void bp_load_must_end_in_time(void **state)
{
    (void)state;
    /* The window of 65 holds both loads, but item 1's backward starts at once and nothing hides its load of 10. */
    Case c = {.n = 2, .trans = {10, 10}, .bp = {20, 45}, .bp_h = {100, 200}, .a_bp = {0, 0, 0}};
    check_bp(c, BP_HIDDEN, "dd", 0, -1, (Expected){"fd", 0, 55, -1});
    /* 10 of slack before BP are just enough. */
    check_bp(c, BP_HIDDEN, "dd", 10, -1, (Expected){"ff", 0, 55, -1});
}

static void bp_equal_gains_later_layer_first(void **state)
{
    (void)state;
    /* One load fits into the window of 16. */
    Case c = {.n = 2, .trans = {10, 10}, .bp = {1, 1}, .bp_h = {20, 20}, .a_bp = {0, 0, 14}};
    check_bp(c, BP_HIDDEN, "dd", 0, -1, (Expected){"df", 0, 6, -1});
}

/* ---- against the timeline
 * -------------------------------------------------------------------------------------------- */

static Graph *small(Arena *a, unsigned seed, Profile **p)
{
    Graph *g;
    synthetic_make_shape(
        a,
        (SyntheticShape){
            .blocks = 1, .hidden = 64, .heads = 2, .vocab = 500, .batch = 1 + seed % 3, .seq = 32, .seed = seed},
        &g, p);
    return g;
}

/* Items are all units in order of first use; the sums of times are those of the profile. */
static void problem_keeps_all_time(void **state)
{
    (void)state;
    Diag d = {0};
    Arena *a = arena_open();
    Profile *p;
    Graph *g = small(a, 1, &p);
    Problem *pr;
    assert_int_equal(problem_make(&d, a, g, p, &pr), ST_OK);
    assert_int_equal(pr->n_item, g->n_unit);
    int64_t fp = 0, bp = 0, want_fp = 0, want_bp = 0;
    for (int l = 0; l < g->n_layer; l++) {
        want_fp += p->layer[l].fp[0].median_ns;
        want_bp += p->layer[l].bp[0][0].median_ns;
    }
    for (int l = 0; l <= g->n_layer; l++) {
        want_fp += p->between[l].fp.median_ns;
        want_bp += p->between[l].bp.median_ns;
    }
    for (int i = 0; i <= pr->n_item; i++) {
        fp += pr->a_fp_ns[i] + (i < pr->n_item ? pr->item[i].fp_ns : 0);
        bp += pr->a_bp_ns[i] + (i < pr->n_item ? pr->item[i].bp_ns : 0);
    }
    assert_int_equal(fp, want_fp);
    assert_int_equal(bp, want_bp);
    /* The head is a layer with only the tied unit: its time is in A(L,L+1). */
    int head = g->n_layer - 1;
    assert_int_equal(pr->item[0].layer, 0);
    assert_true(pr->a_fp_ns[pr->n_item] >= p->layer[head].fp[0].median_ns);
    /* The embedding has no parameter to read in BP. */
    assert_int_equal(pr->item[0].bp_h_ns, pr->item[0].bp_ns);
    arena_close(a);
}

/* All modes of the linear layers and embeddings, the norms as the algorithm has them: no reading beats the best of
 * them. */
static void never_better_than_all_modes(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 2; seed++) {
        Diag d = {0};
        Arena *a = arena_open();
        Profile *p;
        Graph *g = small(a, seed, &p);
        PlanOptions o = {.algorithm = "memferry", .reserve_factor = -1};
        Search s = {.d = &d, .a = a, .plain = g, .p = p, .o = &o};
        assert_int_equal(search_open(&s), ST_OK);
        for (int r = 0; r < 4; r++) {
            Plan plan;
            int64_t mine, best = INT64_MAX, worst = 0;
            assert_int_equal(memferry_choices(&s, (FpReading)(r / 2), (BpReading)(r % 2), &plan), ST_OK);
            assert_int_equal(plan_time(&d, g, p, &plan, NULL, &mine), ST_OK);
            if (r == 0 || r == 3) {
                int unit[16], n = 0;
                for (int u = 0; u < g->n_unit; u++)
                    if (!strstr(g->unit[u].name, "ln_"))
                        unit[n++] = u;
                int at[16] = {0}, k;
                do {
                    for (int i = 0; i < n; i++)
                        plan.unit[unit[i]].first_gpu_use = plan_first_use_of_mode(&g->unit[unit[i]], (Mode)at[i]);
                    int64_t t;
                    assert_int_equal(plan_time(&d, g, p, &plan, NULL, &t), ST_OK);
                    best = t < best ? t : best;
                    worst = t > worst ? t : worst;
                    for (k = 0; k < n && ++at[k] == MODE_DFGB + 1; k++)
                        at[k] = 0;
                } while (k < n);
                assert_true(best <= mine);
                assert_true(mine <= worst);
                assert_true(best < worst);
            }
        }
        search_close(&s);
        arena_close(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp_line_1_starts_with_what_comes_first),
        cmocka_unit_test(fp_lines_3_to_5_dha),
        cmocka_unit_test(fp_line_3_readings_differ),
        cmocka_unit_test(fp_lines_7_to_9_no_stall),
        cmocka_unit_test(fp_line_8_first_only),
        cmocka_unit_test(fp_backtrack_accepts),
        cmocka_unit_test(fp_backtrack_rejects),
        cmocka_unit_test(fp_backtrack_twice_adds_the_cost),
        cmocka_unit_test(fp_backtrack_stops_when_hidden),
        cmocka_unit_test(fp_backtrack_skips_dha),
        cmocka_unit_test(fp_backtrack_needs_a_tag),
        cmocka_unit_test(bp_literal_and_hidden),
        cmocka_unit_test(bp_line_1_window_behind_the_tag),
        cmocka_unit_test(bp_line_10_is_strict),
        cmocka_unit_test(bp_load_must_end_in_time),
        cmocka_unit_test(bp_equal_gains_later_layer_first),
        cmocka_unit_test(problem_keeps_all_time),
        cmocka_unit_test(never_better_than_all_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
