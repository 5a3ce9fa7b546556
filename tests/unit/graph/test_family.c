/* What transformers are made of - attention, rotary positions, normalizations, gathering and scattering by indices,
 * branches, functions, dropout - against ONNX's reference evaluator, and every gradient against central differences.
 * The cases are in tests/data/onnx/family*.onnx (make_family_cases.py). */
#include "tests/unit/graph/graph_make.h"
#include "tests/unit/graph/model_test.h"

static Graph *lower_file(Opened *o, Make *m, const char *file)
{
    char path[512];
    snprintf(path, sizeof(path), ROOT "data/onnx/%s", file);
    ModelOptions options = {.path = path, .precision = FERRY_F64};
    *o = open_options(&options);
    if (o->status != ST_OK)
        fail_msg("%s", o->d.message);
    *m = (Make){.d = {.quiet = true}, .arena = o->arena, .random = 99};
    OK(graph_lower(&m->d, o->arena, o->m, &options, &m->g));
    OK(graph_check(&m->d, m->g));
    return m->g;
}

/* "NAME/expectK" of "NAME/outK" */
static const Value *expected_of(const Model *m, const char *out)
{
    char name[256];
    const char *slash = strrchr(out, '/');
    snprintf(name, sizeof(name), "%.*s/expect%s", (int)(slash - out), out, slash + 4);
    return value_named(m, name);
}

static void compare_output(const Exec *e, const Model *m, const char *name)
{
    const Value *expected = expected_of(m, name);
    int t = exec_tensor(e, name);
    const Tensor *is = &e->g->tensor.at[t];
    assert_non_null(expected);
    assert_int_equal(expected->rank, is->rank);
    for (int k = 0; k < is->rank; k++)
        assert_int_equal(expected->dim[k], is->dim[k]);
    assert_int_equal(expected->dtype, is->dtype);
    for (int64_t k = 0; k < is->count; k++) {
        double a = is->dtype == FERRY_F64 ? ((const double *)e->at[t])[k] : (double)((const int64_t *)e->at[t])[k];
        double b =
            is->dtype == FERRY_F64 ? ((const double *)expected->data)[k] : (double)((const int64_t *)expected->data)[k];
        if (!(a == b || fabs(a - b) <= 1e-9 * (1 + fabs(b))))
            fail_msg("%s[%lld]: %.17g, expected %.17g", name, (long long)k, a, b);
    }
}

static void check_gradients(Make *m, Exec *e)
{
    const Graph *g = m->g;
    for (int p = 0; p < g->n_param; p++) {
        if (!g->param[p].trainable)
            continue;
        for (int64_t i = 0; i < g->param[p].count; i += 1 + g->param[p].count / 3) {
            double *at = (double *)e->at[g->param[p].tensor] + i, kept = *at, up, down;
            double grad = ((double *)e->at[g->param[p].grad])[i];
            *at = kept + 1e-5;
            exec_run(e, g->n_forward);
            up = exec_loss(e);
            *at = kept - 1e-5;
            exec_run(e, g->n_forward);
            down = exec_loss(e);
            *at = kept;
            double numeric = (up - down) / 2e-5;
            if (!(fabs(numeric - grad) <= 1e-6 * (1 + fabs(numeric))))
                fail_msg("%s[%lld]: %.9g, by differences %.9g", g->param[p].name, (long long)i, grad, numeric);
        }
    }
}

static void check_file(const char *file, int outputs)
{
    Opened o;
    Make made, *m = &made;
    Graph *g = lower_file(&o, m, file);
    Exec e;
    int outputs_at[128];
    assert_true(o.m->n_output >= outputs && o.m->n_output <= 128);
    exec_open(&e, g);
    exec_run(&e, g->n_forward);
    for (int i = 0; i < o.m->n_output; i++)
        compare_output(&e, o.m, o.m->value.at[o.m->output[i]].name);
    for (int i = 0; i < o.m->n_output; i++)
        outputs_at[i] = exec_tensor(&e, o.m->value.at[o.m->output[i]].name);
    exec_close(&e);
    for (int i = 0; i < o.m->n_output; i++)
        if (g->tensor.at[outputs_at[i]].dtype == FERRY_F64)
            make_loss(m, outputs_at[i]);
    OK(graph_autodiff(&m->d, g));
    OK(graph_check(&m->d, g));
    exec_open(&e, g);
    exec_run(&e, g->node.count);
    check_gradients(m, &e);
    exec_close(&e);
    graph_close(g);
    close_opened(&o);
}

static void test_opset_23(void **state)
{
    (void)state;
    check_file("family23.onnx", 68);
}

static void test_indices(void **state)
{
    (void)state;
    check_file("family18.onnx", 30);
    check_file("family11.onnx", 4);
}

/* The bodies stand in the graph; the first result of nobody's interest and the branches that are not taken do not. */
static void test_functions_and_branches(void **state)
{
    (void)state;
    check_file("family17.onnx", 6);
    Opened o;
    Make made;
    Graph *g = lower_file(&o, &made, "family17.onnx");
    int subtractions = 0;
    for (int i = 0; i < g->n_forward; i++)
        subtractions += g->node.at[i].call.fn == FERRY_SUB;
    assert_int_equal(subtractions, 1); /* of three nests of branches only one takes it */
    graph_close(g);
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opset_23),
        cmocka_unit_test(test_indices),
        cmocka_unit_test(test_functions_and_branches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
