/* Items of a layer that several units share: what DHA adds to the layer's time falls on each by the bytes that it reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "planner/problem.h"

/* BERT's head: a weight that is tied to the embedding and so a unit of two layers, and a bias that is one of its own. */
static void shared_layer(void **state)
{
    (void)state;
    Diag d = {0};
    Arena *a = arena_open();
    DimBinding dim[] = {{"batch", 4}, {"seq", 32}};
    ModelOptions options = {.path = FERRY_SOURCE_DIR "/tests/models/bert/loss-ts.onnx", .n_dim = 2, .dim = dim, .precision = FERRY_F32};
    ProfileOptions device = {.device = "model:" FERRY_SOURCE_DIR "/tests/data/mixed-device.yaml"};
    Model *m;
    Graph *g;
    Profile *p;
    Problem *problem;
    if (graph_from_options(&d, a, &options, &m, &g) != ST_OK || profile_make(&d, a, g, &options, &device, &p) != ST_OK ||
        problem_make(&d, a, g, p, &problem) != ST_OK)
        fail_msg("%s", d.message);
    int shared = 0;
    for (int l = 0; l < g->n_layer; l++) {
        if (g->layer[l].n_unit < 2)
            continue;
        shared++;
        /* whatever the bytes of the layer's parameters are: the parts make up the whole */
        int64_t added_ns = 0, all = 0, whole_ns = p->layer[l].fp[ON_HOST].median_ns - p->layer[l].fp[ON_GPU].median_ns;
        for (int i = 0; i < g->layer[l].n_unit; i++)
            all += problem_read_bytes(g, l, PHASE_FP, g->layer[l].unit[i]);
        assert_true(all > 0);
        for (int i = 0; i < g->layer[l].n_unit; i++) {
            int u = g->layer[l].unit[i], item = problem->item_of_unit[u];
            int64_t bytes = problem_read_bytes(g, l, PHASE_FP, u);
            if (item < 0 || problem->item[item].layer != l) {
                added_ns += whole_ns * bytes / all; /* counted where it is first used */
                continue;
            }
            int64_t part_ns = problem->item[item].fp_h_ns - problem->item[item].fp_ns;
            assert_in_range(part_ns, whole_ns * bytes / all, whole_ns * bytes / all + 1);
            added_ns += part_ns;
        }
        assert_true(whole_ns - added_ns >= 0 && whole_ns - added_ns <= g->layer[l].n_unit);
    }
    assert_true(shared > 0);

    /* what --dump=after:problem prints: a row for each item with its bytes and times */
    Text t = {0};
    problem_print(problem, &t);
    for (int i = 0; i < problem->n_item; i++) {
        const Item *it = &problem->item[i];
        char row[400];
        snprintf(row, sizeof row, "%4d %-40s %12lld %12lld %12lld", i, g->unit[it->unit].name, (long long)it->bytes,
                 (long long)it->trans_ns, (long long)it->fp_ns);
        assert_non_null(strstr(t.at, row));
    }
    text_free(&t);
    graph_close(g);
    model_close(m);
    arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
