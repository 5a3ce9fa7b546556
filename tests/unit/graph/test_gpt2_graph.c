/* The tiny GPT-2 in four exports, forward and backward in fp64, against PyTorch's loss, norm and gradients. */
#include <math.h>

#include <jansson.h>

#include "tests/unit/graph/graph_exec.h"

#define MODELS FERRY_SOURCE_DIR "/tests/models/gpt2/"

static double reference(const char *key)
{
    json_error_t error;
    json_t *root = json_load_file(MODELS "reference.json", 0, &error);
    assert_non_null(root);
    double value = json_real_value(json_array_get(json_object_get(json_object_get(root, "float64"), key), 0));
    json_decref(root);
    return value;
}

static void feed(Exec *e, const char *input)
{
    char path[512];
    snprintf(path, sizeof(path), MODELS "data/%s.npy", input);
    ferry_npy *file;
    assert_int_equal(ferry_npy_open(path, &file), FERRY_OK);
    int t = exec_tensor(e, input);
    memcpy(e->at[t], ferry_npy_tensor(file)->data, (size_t)e->g->tensor.at[t].bytes);
    ferry_npy_close(file);
}

/* The parameter that an initializer of the file became, by name or alias; dynamo's head is called m.lm_head.weight. */
static const Param *find_param(const Graph *g, const char *name, bool *transposed)
{
    if (strcmp(name, "m.transformer.wte.weight") == 0) {
        const Param *tied = find_param(g, "m.lm_head.weight", transposed);
        if (tied != NULL)
            return tied;
    }
    for (int p = 0; p < g->n_param; p++) {
        *transposed = false;
        if (strcmp(g->param[p].name, name) == 0)
            return &g->param[p];
        for (int i = 0; i < g->param[p].n_alias; i++)
            if (strcmp(g->param[p].alias[i].name, name) == 0) {
                *transposed = g->param[p].alias[i].transposed;
                return &g->param[p];
            }
    }
    return NULL;
}

/* Every line of grads.txt: sampled elements and the sum, within 1e-5 of the tensor's largest plus 1e-7 of the norm. */
static void check_gradients(const Exec *e, double norm)
{
    FILE *f = fopen(MODELS "grads.txt", "r");
    char line[4096], name[256];
    int checked = 0;
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        long long count, index;
        double largest, sum, expected, total = 0;
        int used;
        if (line[0] == '#' || sscanf(line, "%255s %lld %lf %lf%n", name, &count, &largest, &sum, &used) != 4)
            continue;
        bool transposed;
        const Param *p = find_param(e->g, name, &transposed);
        if (p == NULL) {
            assert_non_null(strstr(name, "onnx::")); /* the head's second copy has another name in each file */
            continue;
        }
        const Tensor *t = &e->g->tensor.at[p->grad];
        const double *grad = e->at[p->grad];
        double tolerance = 1e-5 * largest + 1e-7 * norm;
        assert_int_equal(count, t->count);
        for (int64_t i = 0; i < t->count; i++)
            total += grad[i];
        assert_true(fabs(total - sum) <= tolerance * sqrt((double)count) + 1e-12);
        for (const char *at = line + used; sscanf(at, " %lld %lf%n", &index, &expected, &used) == 2; at += used) {
            /* the line is in the shape of the initializer; a transposed alias has rows and columns exchanged */
            int64_t i = transposed ? index % t->dim[0] * t->dim[1] + index / t->dim[0] : index;
            if (!(fabs(grad[i] - expected) <= tolerance))
                print_error("%s[%lld]: %.17g, expected %.17g\n", name, index, grad[i], expected);
            assert_true(fabs(grad[i] - expected) <= tolerance);
            checked++;
        }
    }
    fclose(f);
    assert_true(checked > 250);
}

static void run_model(const char *file, const char *loss, int *layers, int *units)
{
    DimBinding dims[] = {{"batch", 4}, {"seq", 32}};
    char path[512];
    snprintf(path, sizeof(path), MODELS "%s.onnx", file);
    ModelOptions options = {.path = path, .n_dim = 2, .dim = dims, .loss = loss, .precision = FERRY_F64};
    options.dump_after = getenv("FERRY_TEST_DUMP");
    Diag d = {.quiet = true};
    Arena *arena = arena_open();
    Model *model;
    Graph *g;
    if (graph_from_options(&d, arena, &options, &model, &g) != ST_OK) {
        diag_print(&d, stderr);
        fail();
    }
    Exec e;
    exec_open(&e, g);
    feed(&e, "input_ids");
    feed(&e, "labels");
    exec_run(&e, g->node.count);
    double expected = reference("loss"), expected_norm = reference("grad_norm"), squares = 0;
    for (int p = 0; p < g->n_param; p++) {
        assert_true(g->param[p].trainable);
        for (int64_t i = 0; i < g->param[p].count; i++) {
            double v = ((double *)e.at[g->param[p].grad])[i];
            squares += v * v;
        }
    }
    print_message("%s: loss %.15g (%.2g), norm %.15g (%.2g)\n", file, exec_loss(&e), exec_loss(&e) / expected - 1,
                  sqrt(squares), sqrt(squares) / expected_norm - 1);
    assert_true(fabs(exec_loss(&e) - expected) <= 1e-9 * expected);
    assert_true(fabs(sqrt(squares) - expected_norm) <= 1e-9 * expected_norm);
    check_gradients(&e, expected_norm);
    *layers = g->n_layer;
    *units = g->n_unit;
    exec_close(&e);
    graph_close(g);
    model_close(model);
    arena_close(arena);
}

static void test_loss_ts(void **state)
{
    (void)state;
    int layers, units;
    run_model("loss-ts", NULL, &layers, &units);
    /* two embeddings, 2 x (2 norms + 4 products), last norm, head; the head shares the token embedding's unit */
    assert_int_equal(layers, 16);
    assert_int_equal(units, 15);
}

static void test_ts(void **state)
{
    (void)state;
    int layers, units;
    run_model("ts", "cross_entropy", &layers, &units);
    assert_int_equal(layers, 16);
    assert_int_equal(units, 15);
}

static void test_ts13(void **state)
{
    (void)state;
    int layers, units;
    run_model("ts13", "cross_entropy:out,axis=-1", &layers, &units);
    assert_int_equal(layers, 16); /* a norm is spelled out and found again */
    assert_int_equal(units, 15);
}

static void test_dynamo(void **state)
{
    (void)state;
    int layers, units;
    run_model("dynamo", "cross_entropy:out", &layers, &units);
    assert_int_equal(layers, 16);
    assert_int_equal(units, 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_ts),
        cmocka_unit_test(test_ts),
        cmocka_unit_test(test_ts13),
        cmocka_unit_test(test_dynamo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
