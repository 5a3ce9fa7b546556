/* The tiny ResNet and ViT in three exports, forward and backward in fp64, against PyTorch's loss, norm and gradients.
 */
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

/* The first batch, in the input's type. */
static void feed(Exec *e, const char *family, const char *input)
{
    char path[512];
    snprintf(path, sizeof(path), MODELS "%s/data/%s.npy", family, input);
    ferry_npy *file;
    assert_int_equal(ferry_npy_open(path, &file), FERRY_OK);
    const Tensor *t = &e->g->tensor.at[exec_tensor(e, input)];
    const ferry_tensor *from = ferry_npy_tensor(file);
    assert_int_equal(ferry_convert(e->at[exec_tensor(e, input)], t->dtype, from->data, from->dtype, t->count),
                     FERRY_OK);
    ferry_npy_close(file);
}

/* Every line of grads.txt whose initializer has this name here: sampled elements and the sum, within 1e-5 of the
 * tensor's largest plus 1e-7 of the norm. Names that the exporter numbered ("onnx::Conv_63") mean something else in
 * other files: they count only when `numbered`. Returns how many elements were compared. */
static int check_gradients(const Exec *e, const char *family, bool numbered, double norm)
{
    char path[512], line[4096], name[256];
    snprintf(path, sizeof(path), MODELS "%s/grads.txt", family);
    FILE *f = fopen(path, "r");
    int checked = 0;
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        long long count, index;
        double largest, sum, expected, total = 0;
        int used;
        if (line[0] == '#' || sscanf(line, "%255s %lld %lf %lf%n", name, &count, &largest, &sum, &used) != 4)
            continue;
        const Param *p = NULL;
        for (int i = 0; i < e->g->n_param; i++)
            if (strcmp(e->g->param[i].name, name) == 0)
                p = &e->g->param[i];
        if (p == NULL || (!numbered && strstr(name, "::") != NULL))
            continue;
        const double *grad = e->at[p->grad];
        double tolerance = 1e-5 * largest + 1e-7 * norm;
        assert_int_equal(count, p->count);
        for (int64_t i = 0; i < p->count; i++)
            total += grad[i];
        if (!(fabs(total - sum) <= tolerance * sqrt((double)count)))
            fail_msg("%s: sum %.9g, expected %.9g", name, total, sum);
        for (const char *at = line + used; sscanf(at, " %lld %lf%n", &index, &expected, &used) == 2; at += used) {
            if (!(fabs(grad[index] - expected) <= tolerance))
                fail_msg("%s[%lld]: %.17g, expected %.17g", name, index, grad[index], expected);
            checked++;
        }
    }
    fclose(f);
    return checked;
}

typedef struct Case {
    const char *family, *file, *loss;
    int layers, units, compared;
} Case;

static void run_case(const Case *c)
{
    DimBinding dims[] = {{"batch", 4}};
    char path[512];
    snprintf(path, sizeof(path), MODELS "%s/%s.onnx", c->family, c->file);
    ModelOptions options = {.path = path, .n_dim = 1, .dim = dims, .loss = c->loss, .precision = FERRY_F64};
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
    feed(&e, c->family, "pixel_values");
    feed(&e, c->family, "labels");
    exec_run(&e, g->node.count);
    double expected = reference(c->family, "loss"), norm = reference(c->family, "grad_norm"), squares = 0;
    for (int p = 0; p < g->n_param; p++)
        for (int64_t i = 0; i < g->param[p].count; i++) {
            double v = ((double *)e.at[g->param[p].grad])[i];
            squares += v * v;
        }
    int compared = check_gradients(&e, c->family, strcmp(c->file, "loss-ts") == 0, norm);
    print_message("%s %s: loss %.2g, norm %.2g; %d layers, %d units, %d gradients compared\n", c->family, c->file,
                  exec_loss(&e) / expected - 1, sqrt(squares) / norm - 1, g->n_layer, g->n_unit, compared);
    assert_true(fabs(exec_loss(&e) - expected) <= 1e-8 * expected);
    assert_true(fabs(sqrt(squares) - norm) <= 1e-8 * norm);
    assert_true(compared >= c->compared);
    assert_int_equal(g->n_layer, c->layers);
    assert_int_equal(g->n_unit, c->units);
    exec_close(&e);
    graph_close(g);
    model_close(model);
    arena_close(arena);
}

static void test_resnet(void **state)
{
    (void)state;
    /* six convolutions and the classifier, each a unit of weight and bias */
    const Case cases[] = {{"resnet", "loss-ts", NULL, 7, 7, 130},
                          {"resnet", "ts", "cross_entropy", 7, 7, 18},
                          {"resnet", "dynamo", "cross_entropy", 7, 7, 18}};
    for (int i = 0; i < 3; i++)
        run_case(&cases[i]);
}

static void test_vit(void **state)
{
    (void)state;
    const Case cases[] = {{"vit", "loss-ts", NULL, 21, 21, 400},
                          {"vit", "ts", "cross_entropy", 21, 21, 280},
                          {"vit", "dynamo", "cross_entropy", 21, 21, 200}};
    for (int i = 0; i < 3; i++)
        run_case(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resnet),
        cmocka_unit_test(test_vit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
