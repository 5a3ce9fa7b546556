/* What PyTorch's exporter says of initializers: parameters, also scalars, are trained, buffers and computed constants are not. */
#include "onnx_make.h"

static const char KIND[] = "pkg.torch.export.graph_signature.InputSpec.kind";

static Bytes entry(const char *key, const char *value)
{
    Bytes b = {0};
    put_text(&b, 1, key);
    put_text(&b, 2, value);
    return b;
}

/* What the exporter writes beside an initializer. */
static void say(Bytes *graph, const char *name, const char *kind)
{
    Bytes b = {0};
    put_text(&b, 1, name);
    put_message(&b, 4, entry("some.other.key", "x"));
    put_message(&b, 4, entry(KIND, kind));
    put_message(graph, 13, b);
}

/* float initializer whose elements are from, from + step, ... */
static void put_tensor(Bytes *graph, const char *name, int rank, const int64_t *dim, float from, float step)
{
    float x[256];
    int64_t n = dims_count(rank, dim);
    assert_true(n <= 256);
    for (int64_t i = 0; i < n; i++)
        x[i] = from + step * (float)i;
    put_message(graph, 5, tensor(name, 1, rank, dim, x, (size_t)n * sizeof *x));
}

static const int64_t d4[] = {4}, d44[] = {4, 4}, d1[] = {1}, d243[] = {2, 4, 4}, d144[] = {1, 4, 4}, d14[] = {1, 4};

/* y = mean over everything of x [2,4,4] with: w, b, gain (parameters), stats (a buffer), and what an exporter computes */
static Bytes module(bool says, float mask, bool whole)
{
    Bytes g = {0};
    put_tensor(&g, "w", 2, d44, 0.1f, 0.01f);
    put_tensor(&g, "b", 1, d4, 0.1f, 0);
    put_tensor(&g, "gain", 0, NULL, 1.5f, 0);
    put_tensor(&g, "stats", 1, d4, 0.2f, 0.1f);
    put_tensor(&g, "val_1", 2, d44, 0.3f, 0.01f);         /* a transposed weight */
    put_tensor(&g, "val_2", 2, d14, 0.4f, 0.1f);          /* a reshaped bias */
    put_tensor(&g, "val_3", 1, d1, 2.0f, 0);              /* a factor */
    put_tensor(&g, "val_4", 3, d144, mask, 0.5f);         /* a mask or a table */
    put_tensor(&g, "embedding_1", 3, d144, 0.1f, 0.01f);  /* looked-up positions */
    put_tensor(&g, "embedding_2", 3, d243, 0.5f, 0);      /* the same for each sequence */
    put_tensor(&g, "ones", 1, d4, 1.0f, 0);               /* inner scale of a group's normalization */
    put_message(&g, 1, node("", "MatMul", "x,w", "a0"));
    put_message(&g, 1, node("", "Add", "a0,b", "a1"));
    put_message(&g, 1, node("", "Mul", "a1,gain", "a2"));
    put_message(&g, 1, node("", "Mul", "a2,stats", "a3"));
    put_message(&g, 1, node("", "MatMul", "a3,val_1", "a4"));
    put_message(&g, 1, node("", "Add", "a4,val_2", "a5"));
    put_message(&g, 1, node("", "Mul", "a5,val_3", "a6"));
    put_message(&g, 1, node("", "Add", "a6,val_4", "a7"));
    put_message(&g, 1, node("", "Add", "a7,embedding_1", "a8"));
    put_message(&g, 1, node("", "Add", "a8,embedding_2", "a9"));
    put_message(&g, 1, node("", "InstanceNormalization", "a9,ones,ones", "a10"));
    put_message(&g, 1, node("", "Mul", "a10,a9", "a11"));
    put_message(&g, 1, node("", "ReduceMean", "a11", "y"));
    put_message(&g, 11, info("x", 1, 3, d243));
    put_message(&g, 12, output("y"));
    if (says) {
        say(&g, "w", "PARAMETER");
        say(&g, "b", "PARAMETER");
        say(&g, "gain", "PARAMETER");
        say(&g, "stats", "BUFFER");
        say(&g, "nothing of that name", "PARAMETER");
        const char *signature = whole ? "p_w: PARAMETER target='w'\np_f: PARAMETER target='fc.weight'\nx: USER_INPUT\n"
                                      : "p_w: PARAMETER target='w'\np_1: PARAMETER target='l.1'\np_2: PARAMETER target='l.2'\n"
                                        "p_3: PARAMETER target='l.3'\np_4: PARAMETER target='l.4'\nbroken: PARAMETER target='";
        put_message(&g, 16, entry("pkg.torch.export.ExportedProgram.graph_signature", signature));
    }
    return model_bytes(g, 17);
}

/* The names of the trained parameters, in the file's order. */
static void trained(Opened *o, int n_train, const char **train, char *to, size_t size)
{
    ModelOptions options = {.path = "made.onnx", .loss = "output:y", .precision = FERRY_F64, .n_train = n_train, .train = train};
    Graph *g;
    if (o->status != ST_OK || graph_build(&o->d, o->arena, o->m, &options, &g) != ST_OK)
        fail_msg("%s", o->d.message);
    to[0] = '\0';
    for (int p = 0; p < g->n_param; p++)
        if (g->param[p].trainable)
            snprintf(to + strlen(to), size - strlen(to), "%s ", g->param[p].name);
    graph_close(g);
}

static void expect_trained(Bytes model, const char *names)
{
    char got[300];
    Opened o = open_bytes(model);
    trained(&o, 0, NULL, got, sizeof got);
    assert_string_equal(got, names);
    close_opened(&o);
}

static void which_are_trained(void **state)
{
    (void)state;
    expect_trained(module(true, 0.1f, true), "w b gain val_1 val_2 embedding_1 ");
    /* a file that says nothing: all but the scalar */
    expect_trained(module(false, 0.1f, true), "w b stats val_1 val_2 val_3 val_4 embedding_1 embedding_2 ones ");
}

static void what_is_counted(void **state)
{
    (void)state;
    Opened o = open_bytes(module(true, 0.1f, true));
    assert_true(o.m->origins.known);
    assert_int_equal(o.m->origins.missing, 1);
    assert_string_equal(o.m->origins.missing_name, "fc.weight");
    assert_int_equal(o.m->origins.parameters, 3); /* val_1, val_2, embedding_1 */
    assert_int_equal(o.m->origins.constants, 3);  /* val_4, embedding_2, ones */
    assert_string_equal(o.m->origins.constant_name, "val_4");
    close_opened(&o);
    o = open_bytes(module(true, -3.4e38f, false));
    assert_int_equal(o.m->origins.missing, 4);
    assert_string_equal(o.m->origins.missing_name, "l.1");
    assert_int_equal(o.m->origins.constants, 2); /* nobody asks about a mask */
    close_opened(&o);
    o = open_bytes(module(false, 0.1f, false));
    assert_false(o.m->origins.known);
    close_opened(&o);
}

/* One that is not trained is when it is called by its name, but not by a pattern. */
static void by_name(void **state)
{
    (void)state;
    const char *name[] = {"stats", "w"}, *pattern[] = {"*"};
    for (int k = 0; k < 2; k++) {
        Bytes model = module(true, 0.1f, true);
        char path[64], got[300];
        int fd = memfd_create("model", MFD_CLOEXEC);
        assert_true(fd >= 0 && write(fd, model.at, model.size) == (ssize_t)model.size);
        free(model.at);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ModelOptions options = {.path = path, .n_train = k ? 1 : 2, .train = k ? pattern : name};
        Opened o = open_options(&options);
        trained(&o, options.n_train, options.train, got, sizeof got);
        assert_string_equal(got, k ? "w b gain val_1 val_2 embedding_1 " : "w stats ");
        close_opened(&o);
        close(fd);
    }
}

/* The gradient of a scalar parameter, by central differences. */
static void scalar_gradient(void **state)
{
    (void)state;
    Onnx o;
    onnx_open(&o, 3);
    const char *gain = param(&o, (Shape){0, {0}}), *x = param(&o, shape3(2, 3, 4));
    say(&o.graph, gain, "PARAMETER");
    say(&o.graph, x, "PARAMETER");
    out_(&o, binary(&o, "Mul", unary(&o, "Exp", gain), x));
    onnx_check(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_are_trained),
        cmocka_unit_test(what_is_counted),
        cmocka_unit_test(by_name),
        cmocka_unit_test(scalar_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
