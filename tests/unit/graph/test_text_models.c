/* The tiny BERT and Llama in their exports, forward and backward in fp64, against PyTorch's loss, norm and gradients.
 * The gradients are named as the initializers of loss-ts.onnx; a parameter of another export is found by its values. */
#include <math.h>

#include <jansson.h>

#include "tests/unit/graph/graph_exec.h"

#define MODELS FERRY_SOURCE_DIR "/tests/models/"

static double reference(const char *family, const char *key)
{
    char path[512];
    json_error_t error;
    snprintf(path, sizeof(path), MODELS "%s/reference.json", family);
    json_t *root = json_load_file(path, 0, &error);
    assert_non_null(root);
    double value = json_real_value(json_array_get(json_object_get(json_object_get(root, "float64"), key), 0));
    json_decref(root);
    return value;
}

static void feed(Exec *e, const char *family, const char *input)
{
    char path[512];
    snprintf(path, sizeof(path), MODELS "%s/data/%s.npy", family, input);
    ferry_npy *file;
    assert_int_equal(ferry_npy_open(path, &file), FERRY_OK);
    int t = exec_tensor(e, input);
    memcpy(e->at[t], ferry_npy_tensor(file)->data, (size_t)e->g->tensor.at[t].bytes);
    ferry_npy_close(file);
}

/* The initializer of this name in loss-ts.onnx, as the file has it. */
static const Value *named_value(const Model *m, const char *name)
{
    for (int i = 0; i < m->value.count; i++)
        if (strcmp(m->value.at[i].name, name) == 0)
            return &m->value.at[i];
    fail_msg("no initializer %s", name);
    return NULL;
}

/* True when p has the values of v, or of v transposed. */
static bool same_values(const Param *p, const Tensor *t, const Value *v, bool transposed)
{
    const float *a = p->data, *b = v->data;
    int64_t rows = v->dim[0], columns = v->rank == 2 ? v->dim[1] : 1;
    if (p->count != rows * columns || (transposed && (v->rank != 2 || t->dim[0] != columns)))
        return false;
    for (int64_t i = 0; i < p->count; i++)
        if (a[i] != (transposed ? b[i % rows * columns + i / rows] : b[i]))
            return false;
    return true;
}

static const Param *find_param(const Graph *g, const Value *v, bool *transposed)
{
    for (int pass = 0; pass < 2; pass++)
        for (int p = 0; p < g->n_param; p++)
            if (same_values(&g->param[p], &g->tensor.at[g->param[p].tensor], v, pass == 1)) {
                *transposed = pass == 1;
                return &g->param[p];
            }
    fail_msg("no parameter has the values of %s", v->name);
    return NULL;
}

/* Every line of grads.txt: sampled elements and the sum, within 1e-5 of the tensor's largest plus 1e-7 of the norm. */
static void check_gradients(const Exec *e, const char *family, double norm, const Model *named)
{
    char path[512], line[4096], name[256];
    snprintf(path, sizeof(path), MODELS "%s/grads.txt", family);
    FILE *f = fopen(path, "r");
    int lines = 0;
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        long long count, index;
        double largest, sum, expected, total = 0;
        int used;
        bool transposed;
        if (line[0] == '#' || sscanf(line, "%255s %lld %lf %lf%n", name, &count, &largest, &sum, &used) != 4)
            continue;
        const Param *p = find_param(e->g, named_value(named, name), &transposed);
        const Tensor *t = &e->g->tensor.at[p->grad];
        const double *grad = e->at[p->grad];
        double tolerance = 1e-5 * largest + 1e-7 * norm;
        assert_int_equal(count, p->count);
        for (int64_t i = 0; i < p->count; i++)
            total += grad[i];
        assert_true(fabs(total - sum) <= tolerance * sqrt((double)count) + 1e-12);
        for (const char *at = line + used; sscanf(at, " %lld %lf%n", &index, &expected, &used) == 2; at += used) {
            int64_t i = transposed ? index % t->dim[0] * t->dim[1] + index / t->dim[0] : index;
            if (!(fabs(grad[i] - expected) <= tolerance))
                fail_msg("%s[%lld]: %.17g, expected %.17g", name, index, grad[i], expected);
        }
        lines++;
    }
    fclose(f);
    assert_true(lines > 20);
}

static Graph *open_graph(Diag *d, Arena *arena, const char *family, const char *file, const char *loss, Model **model)
{
    DimBinding dims[] = {{"batch", 4}, {"seq", 32}};
    char path[512];
    snprintf(path, sizeof(path), MODELS "%s/%s.onnx", family, file);
    ModelOptions options = {.path = path, .n_dim = 2, .dim = dims, .loss = loss, .precision = FERRY_F64};
    Graph *g;
    if (graph_from_options(d, arena, &options, model, &g) != ST_OK) {
        diag_print(d, stderr);
        fail();
    }
    return g;
}

/* tolerance: constants such as the square root of 2 are rounded to single precision in the older exports. */
static void run_case(const char *family, const char *file, const char *loss, double tolerance)
{
    Diag d = {.quiet = true};
    Arena *arena = arena_open();
    Model *model, *named;
    Graph *names = open_graph(&d, arena, family, "loss-ts", NULL, &named);
    Graph *g = open_graph(&d, arena, family, file, loss, &model);
    Exec e;
    exec_open(&e, g);
    feed(&e, family, "input_ids");
    feed(&e, family, "labels");
    exec_run(&e, g->node.count);
    double expected = reference(family, "loss"), norm = reference(family, "grad_norm"), squares = 0;
    for (int p = 0; p < g->n_param; p++) {
        assert_true(g->param[p].trainable);
        for (int64_t i = 0; i < g->param[p].count; i++) {
            double v = ((double *)e.at[g->param[p].grad])[i];
            squares += v * v;
        }
    }
    print_message("%s %s: loss %.2g, norm %.2g; %d parameters\n", family, file, exec_loss(&e) / expected - 1,
                  sqrt(squares) / norm - 1, g->n_param);
    assert_true(fabs(exec_loss(&e) - expected) <= tolerance * expected);
    assert_true(fabs(sqrt(squares) - norm) <= tolerance * norm);
    check_gradients(&e, family, norm, named);
    exec_close(&e);
    graph_close(g);
    graph_close(names);
    model_close(model);
    model_close(named);
    arena_close(arena);
}

static void test_bert(void **state)
{
    (void)state;
    run_case("bert", "loss-ts", NULL, 1e-8);
    run_case("bert", "ts", "cross_entropy", 1e-8);
    run_case("bert", "dynamo", "cross_entropy", 1e-8);
    run_case("bert", "dynamo23", "cross_entropy", 1e-12);
}

static void test_llama(void **state)
{
    (void)state;
    run_case("llama", "loss-ts", NULL, 1e-6);
    run_case("llama", "ts", "cross_entropy", 1e-6);
    run_case("llama", "dynamo", "cross_entropy", 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bert),
        cmocka_unit_test(test_llama),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
