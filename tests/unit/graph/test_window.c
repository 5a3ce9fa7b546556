/* Convolutions, poolings, normalizations over channels, resizing and padding: lowered and run, against onnxruntime's
 * values; their gradients against differences; what becomes a layer; and what is refused. The cases are in
 * tests/data/onnx/window*.onnx (make_window_cases.py). */
#include "tests/unit/graph/graph_make.h"
#include "tests/unit/graph/model_test.h"

static const char *const files[] = {"window21.onnx", "window18.onnx", "window10.onnx", "window9.onnx"};
static const int outputs[] = {110, 47, 5, 4};

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

/* NAME/out0 -> NAME/expect0 */
static const Value *expected_of(const Model *m, const char *name)
{
    char text[256];
    snprintf(text, sizeof(text), "%.*s/expect%s", (int)(strstr(name, "/out") - name), name, strstr(name, "/out") + 4);
    return value_named(m, text);
}

static void test_values(void **state)
{
    (void)state;
    for (int f = 0; f < 4; f++) {
        Opened o;
        Make made, *m = &made;
        Graph *g = lower_file(&o, m, files[f]);
        Exec e;
        exec_open(&e, g);
        exec_run(&e, g->n_forward);
        assert_int_equal(o.m->n_output, outputs[f]);
        for (int i = 0; i < o.m->n_output; i++) {
            const Value *out = &o.m->value.at[o.m->output[i]], *expected = expected_of(o.m, out->name);
            int t = exec_tensor(&e, out->name);
            assert_non_null(expected);
            assert_int_equal(expected->rank, g->tensor.at[t].rank);
            for (int k = 0; k < expected->rank; k++)
                if (expected->dim[k] != g->tensor.at[t].dim[k])
                    fail_msg("%s: dimension %d is %lld, onnxruntime %lld", out->name, k,
                             (long long)g->tensor.at[t].dim[k], (long long)expected->dim[k]);
            for (int64_t k = 0; k < g->tensor.at[t].count; k++) {
                double is = ((const double *)e.at[t])[k], should = (double)((const float *)expected->data)[k];
                if (!(fabs(is - should) <= 5e-6 * (1 + fabs(should))))
                    fail_msg("%s[%lld]: %.9g, onnxruntime %.9g", out->name, (long long)k, is, should);
            }
        }
        exec_close(&e);
        graph_close(g);
        close_opened(&o);
    }
}

/* All elements of a parameter are moved at once, in random directions: their derivative is the gradient times the
 * direction. */
static void check_directions(Make *m, Exec *e)
{
    const Graph *g = m->g;
    for (int p = 0; p < g->n_param; p++) {
        double *at = e->at[g->param[p].tensor], h = 1e-5;
        int64_t n = g->param[p].count;
        if (!g->param[p].trainable)
            continue;
        const double *grad = e->at[g->param[p].grad];
        double *kept = malloc((size_t)n * sizeof(double)), *direction = malloc((size_t)n * sizeof(double));
        memcpy(kept, at, (size_t)n * sizeof(double));
        for (int round = 0; round < 2; round++) {
            double dot = 0, side[2];
            for (int64_t i = 0; i < n; i++) {
                direction[i] = make_real(m, -1, 1);
                dot += direction[i] * grad[i];
            }
            for (int s = 0; s < 2; s++) {
                for (int64_t i = 0; i < n; i++)
                    at[i] = kept[i] + (s == 0 ? h : -h) * direction[i];
                exec_run(e, g->n_forward);
                side[s] = exec_loss(e);
            }
            memcpy(at, kept, (size_t)n * sizeof(double));
            double numeric = (side[0] - side[1]) / (2 * h);
            if (!(fabs(numeric - dot) <= 1e-6 * (1 + fabs(numeric))))
                fail_msg("%s: %.9g along a direction, by differences %.9g", g->param[p].name, dot, numeric);
        }
        free(kept);
        free(direction);
    }
}

static void test_gradients(void **state)
{
    (void)state;
    for (int f = 0; f < 4; f++) {
        Opened o;
        Make made, *m = &made;
        Graph *g = lower_file(&o, m, files[f]);
        Exec e;
        for (int i = 0; i < o.m->n_output; i++)
            for (int t = 0; t < g->tensor.count; t++)
                if (strcmp(g->tensor.at[t].name, o.m->value.at[o.m->output[i]].name) == 0 &&
                    strncmp(g->tensor.at[t].name, "Pad_gone", 8) != 0) { /* nothing of its input is left */
                    make_loss(m, t);
                    break;
                }
        OK(graph_autodiff(&m->d, g));
        OK(graph_check(&m->d, g));
        assert_true(g->n_param > outputs[f] - 5);
        exec_open(&e, g);
        exec_run(&e, g->node.count);
        check_directions(m, &e);
        exec_close(&e);
        graph_close(g);
        close_opened(&o);
    }
}

/* Values and weights that several nodes use, and one node twice. */
static void test_shared(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 8; round++) {
        Make made, *m = &made;
        make_open(m, round);
        int64_t dim[] = {2, 2, 5}, wdim[] = {2, 2, 3}, bdim[] = {2};
        ferry_window w = {.rank = 1, .groups = 1, .in = {5}, .out = {5}, .size = {3}};
        w.step[0] = w.dilation[0] = w.pad[0] = 1;
        int x = make_param(m, 3, dim, -1, 1), v = round % 2 ? make_unary(m, FERRY_TANH, x) : x;
        int weight = make_param(m, 3, wdim, -1, 1), bias = make_param(m, 1, bdim, -1, 1);
        for (int use = 0; use < 2; use++) { /* the second one's gradients are added */
            ferry_kernel conv = call_new(use == 0 ? FERRY_OP_CONV : FERRY_OP_CONV_DX, FERRY_F64);
            conv.window = w;
            conv.m = conv.k = conv.n = 2;
            int y = make_value(m, FERRY_F64, 3, dim), z = make_value(m, FERRY_F64, 3, dim), p;
            make_node(m, &conv, (int[]){y, v, weight, bias});
            ferry_kernel average = call_new(FERRY_OP_AVGPOOL, FERRY_F64);
            average.fn = FERRY_MEAN;
            average.window = w;
            average.m = 4;
            make_node(m, &average, (int[]){z, y});
            p = make_value(m, FERRY_F64, 3, dim);
            ferry_kernel most = call_new(FERRY_OP_MAXPOOL, FERRY_F64);
            most.window = w;
            most.m = 4;
            make_node(m, &most, (int[]){p, make_value(m, FERRY_I64, 3, dim), y});
            ferry_kernel norm = call_new(FERRY_OP_BATCHNORM, FERRY_F64);
            norm.m = norm.n = 2;
            norm.k = 5;
            int n = make_value(m, FERRY_F64, 3, dim);
            make_node(m, &norm, (int[]){n, y, bias, bias, -1, -1}); /* one tensor as scale and bias */
            int of_batch = make_value(m, FERRY_F64, 3, dim), mean = make_value(m, FERRY_F64, 1, bdim);
            int var = make_value(m, FERRY_F64, 1, bdim);
            norm.eps = 1e-2;
            ferry_kernel stats = norm;
            stats.op = FERRY_OP_BATCH_STATS;
            make_node(m, &stats, (int[]){mean, var, y});
            make_node(m, &norm, (int[]){of_batch, y, bias, bias, mean, var});
            make_loss(m, of_batch);
            make_loss(m, z);
            make_loss(m, p);
            make_loss(m, n);
        }
        if (round % 3 == 0)
            make_loss(m, v);
        make_check_gradients(m);
        make_close(m);
    }
}

/* ---- layers and parameters
 * ------------------------------------------------------------------------------------------- */

static Bytes floats(const char *name, int rank, const int64_t *dim)
{
    static const float ones[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= dim[i];
    assert_true(count <= 64);
    return tensor(name, 1, rank, dim, ones, (size_t)count * 4);
}

/* x [2, 2, 4] -> Conv -> BatchNormalization -> y, with more attributes for either. */
static Bytes small_model(Bytes conv, Bytes norm, int64_t opset)
{
    const int64_t x[] = {2, 2, 4}, w[] = {2, 2, 3}, c[] = {2};
    Bytes g = {0};
    put_message(&g, 1, conv);
    put_message(&g, 1, norm);
    put_message(&g, 5, floats("c.weight", 3, w));
    const char *const vectors[] = {"c.bias", "n.weight", "n.bias", "n.running_mean", "n.running_var"};
    for (int i = 0; i < 5; i++)
        put_message(&g, 5, floats(vectors[i], 1, c));
    put_message(&g, 11, info("x", 1, 3, x));
    put_message(&g, 12, output("y"));
    return model_bytes(g, opset);
}

static Bytes conv_node(void)
{
    return node("conv", "Conv", "x,c.weight,c.bias", "h");
}

static Bytes norm_node(const char *out)
{
    return node("norm", "BatchNormalization", "h,n.weight,n.bias,n.running_mean,n.running_var", out);
}

static Status lower_bytes(Bytes model, Opened *o, Graph **g)
{
    ModelOptions options = {.path = "small.onnx", .precision = FERRY_F64, .loss = "mse"};
    *g = NULL;
    *o = open_bytes(model);
    if (o->status != ST_OK)
        fail_msg("%s", o->d.message);
    return graph_build(&o->d, o->arena, o->m, &options, g);
}

static void test_layers(void **state)
{
    (void)state;
    Opened o;
    Graph *g;
    if (lower_bytes(small_model(conv_node(), norm_node("y"), 17), &o, &g) != ST_OK)
        fail_msg("%s", o.d.message);
    assert_int_equal(g->n_layer, 2);
    assert_string_equal(g->layer[0].op, "Conv");
    assert_string_equal(g->layer[1].op, "BatchNormalization");
    assert_int_equal(g->layer[0].n_unit, 1);
    assert_int_equal(g->unit[g->layer[0].unit[0]].n_param, 2);
    int frozen = 0, before = o.d.warnings;
    assert_int_equal(graph_warn(&o.d, g), ST_OK); /* of statistics that are fixed */
    assert_int_equal(o.d.warnings, before + 1);
    for (int p = 0; p < g->n_param; p++) {
        bool running = strstr(g->param[p].name, "running") != NULL;
        assert_int_equal(g->param[p].trainable, !running);
        frozen += running;
        if (strcmp(g->param[p].name, "n.running_var") == 0 || strcmp(g->param[p].name, "n.weight") == 0)
            assert_int_equal(g->param[p].init, INIT_ONE);
        if (strstr(g->param[p].name, "bias") != NULL)
            assert_int_equal(g->param[p].init, INIT_ZERO);
    }
    assert_int_equal(frozen, 2);
    graph_close(g);
    close_opened(&o);
}

/* Running statistics: in no unit, brought up to date once each, and not by a graph that only runs forward. */
static void check_statistics(Bytes model)
{
    Opened o;
    Graph *g;
    if (lower_bytes(model, &o, &g) != ST_OK)
        fail_msg("%s", o.d.message);
    int states = 0, averages = 0, before = o.d.warnings;
    assert_int_equal(graph_warn(&o.d, g), ST_OK);
    assert_int_equal(o.d.warnings, before);
    for (int p = 0; p < g->n_param; p++) {
        const Param *param = &g->param[p];
        if (!param->state)
            continue;
        states++;
        assert_int_equal(param->unit, -1);
        assert_false(param->trainable);
        assert_int_equal(g->tensor.at[param->tensor].kind, TENSOR_STATE);
        assert_int_equal(param->init, strcmp(param->name, "n.running_var") == 0 ? INIT_ONE : INIT_ZERO);
    }
    int average = -1;
    for (int i = 0; i < g->node.count; i++)
        if (g->node.at[i].call.op == FERRY_OP_MOVING_AVERAGE) {
            averages++;
            average = i;
            assert_int_equal(g->node.at[i].phase, PHASE_FP);
            assert_true(fabs(g->node.at[i].call.alpha - 0.75) < 1e-9);
        }
    assert_int_equal(states, 2);
    assert_int_equal(averages, 2);
    assert_int_equal(g->n_layer, 2);
    /* the checker sees an average too many, and one that is left out */
    int kept = g->node.at[average].arg[0], other = g->node.at[average - 1].arg[0];
    g->node.at[average].arg[0] = other;
    assert_int_equal(graph_check(&o.d, g), ST_FAILED);
    within(o.d.message, "running statistics are brought up to date twice");
    o.d = (Diag){.quiet = true};
    g->node.at[average].arg[0] = kept;
    g->node.at[average].call.op = FERRY_OP_COPY;
    assert_int_equal(graph_check(&o.d, g), ST_FAILED);
    within(o.d.message, "running statistics are used by another kernel");
    graph_close(g);
    close_opened(&o);
}

/* Refused with a message that has this part; NULL: not refused. */
static void lower_refused(Bytes model, const char *part)
{
    Opened o;
    Graph *g;
    Status status = lower_bytes(model, &o, &g);
    if (part == NULL) {
        if (status != ST_OK)
            fail_msg("%s", o.d.message);
        graph_close(g);
        close_opened(&o);
        return;
    }
    assert_int_equal(status, ST_MODEL);
    assert_null(g);
    within(o.d.message, part);
    close_opened(&o);
}

static Bytes with(Bytes n, Bytes attr)
{
    put_message(&n, 5, attr);
    return n;
}

static Bytes momentum(void)
{
    const float value = 0.75f;
    Bytes a = {0};
    put_field(&a, 1, "momentum", 8);
    put_number(&a, 2 << 3 | 5);
    put_bytes(&a, &value, sizeof value);
    put_int(&a, 20, 1);
    return a;
}

static void test_training(void **state)
{
    (void)state;
    Bytes trains = with(norm_node("y"), attr_int("training_mode", 1));
    check_statistics(small_model(conv_node(), with(trains, momentum()), 15));
    trains = with(norm_node("y,m,v"), attr_int("training_mode", 1));
    check_statistics(small_model(conv_node(), with(trains, momentum()), 23));
    check_statistics(small_model(conv_node(), with(norm_node("y,m,v,sm,sv"), momentum()), 13));
    check_statistics(small_model(conv_node(), with(norm_node("y,m,v,sm,sv"), momentum()), 7));
}

/* Before opset 9, spatial = 0: scale, bias and statistics of each activation of [2, 4]. */
static void test_each_activation(void **state)
{
    (void)state;
    const int64_t x[] = {3, 2, 4}, each[] = {2, 4};
    for (int out = 0; out < 2; out++) {
        Bytes g = {0};
        put_message(&g, 1, with(node("n", "BatchNormalization", "x,s,b,m,v", out ? "y,a,c,d,e" : "y"), attr_int("spatial", 0)));
        for (int i = 0; i < 4; i++)
            put_message(&g, 5, floats((const char *[]){"s", "b", "m", "v"}[i], 2, each));
        put_message(&g, 11, info("x", 1, 3, x));
        put_message(&g, 12, output("y"));
        Opened o;
        Graph *graph;
        if (lower_bytes(model_bytes(g, 8), &o, &graph) != ST_OK)
            fail_msg("%s", o.d.message);
        int norms = 0;
        for (int i = 0; i < graph->node.count; i++) {
            const ferry_kernel *k = &graph->node.at[i].call;
            if (k->op == FERRY_OP_BATCHNORM || k->op == FERRY_OP_BATCH_STATS)
                assert_true(k->m == 3 && k->n == 8 && k->k == 1);
            norms += k->op == FERRY_OP_BATCHNORM || k->op == FERRY_OP_BATCH_STATS;
        }
        assert_int_equal(norms, 1 + out);
        graph_close(graph);
        close_opened(&o);
    }
    refused(small_model(conv_node(), with(norm_node("y"), attr_int("spatial", 0)), 7), ST_MODEL, "one element of the batch");
}

/* small_model with one node more, which makes y. */
static Bytes three_nodes(Bytes norm, Bytes last)
{
    const int64_t x[] = {2, 2, 2}, w[] = {2, 2, 1}, c[] = {2};
    Bytes g = {0};
    put_message(&g, 1, conv_node());
    put_message(&g, 1, norm);
    put_message(&g, 1, last);
    put_message(&g, 5, floats("c.weight", 3, w));
    const char *const vectors[] = {"c.bias", "n.weight", "n.bias", "n.running_mean", "n.running_var"};
    for (int i = 0; i < 5; i++)
        put_message(&g, 5, floats(vectors[i], 1, c));
    put_message(&g, 11, info("x", 1, 3, x));
    put_message(&g, 12, output("y"));
    return model_bytes(g, 15);
}

static void test_refused(void **state)
{
    (void)state;
    lower_refused(small_model(conv_node(), norm_node("y,m"), 15), NULL); /* is fine: nothing reads m */
    const char *const twice = "h,n.weight,n.bias,n.running_mean,n.running_mean";
    lower_refused(small_model(conv_node(), with(node("norm", "BatchNormalization", twice, "y"), attr_int("training_mode", 1)), 15),
                  "used 2 times; each needs its own");
    Bytes reads = node("again", "Add", "h,m", "y");
    lower_refused(three_nodes(with(norm_node("unused,m"), attr_int("training_mode", 1)), reads), "its output 'm' is read by 'again'");
    lower_refused(
        small_model(conv_node(), node("norm", "BatchNormalization", "h,n.weight,n.bias,n.bias,n.running_var", "y"), 15),
        "trained elsewhere");
    const int64_t numbers[] = {INT64_MAX, -1, 0, INT64_C(1) << 40};
    const char *const names[] = {"strides", "dilations", "pads", "kernel_shape"};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            int64_t two[] = {numbers[i], numbers[i]};
            if ((k == 2 && numbers[i] == 0) || (k == 0 && i == 3) || (k == 2 && i == 3))
                continue;
            refused(small_model(with(conv_node(), attr_ints(names[k], k == 2 ? 2 : 1, two)), norm_node("y"), 17),
                    ST_MODEL, k == 1 && i == 3 ? "too large" : names[k]);
        }
    refused(small_model(with(conv_node(), attr_int("group", 3)), norm_node("y"), 17), ST_MODEL, "groups");
    refused(small_model(with(conv_node(), attr_int("group", 0)), norm_node("y"), 17), ST_MODEL, "groups");
    refused(small_model(node("conv", "Conv", "x,c.weight,n.bias,c.bias", "h"), norm_node("y"), 17), ST_MODEL, "inputs");
    refused(small_model(node("conv", "Conv", "x,c.bias", "h"), norm_node("y"), 17), ST_MODEL, "dimensions");
    refused(small_model(node("conv", "MaxPool", "x", "h"), norm_node("y"), 17), ST_MODEL, "kernel_shape");
    int64_t window[] = {5}, pads[] = {3, 0}, three[] = {3};
    refused(
        small_model(with(node("conv", "MaxPool", "x", "h"), attr_ints("kernel_shape", 1, window)), norm_node("y"), 17),
        ST_MODEL, "padded input has 4");
    refused(small_model(with(with(node("conv", "AveragePool", "x", "h"), attr_ints("kernel_shape", 1, three)),
                             attr_ints("pads", 2, pads)),
                        norm_node("y"), 17),
            ST_MODEL, "not smaller than the window");
    refused(small_model(node("conv", "Resize", "x,,c.bias", "h"), norm_node("y"), 17), ST_MODEL, "scales");
    refused(small_model(node("conv", "Pad", "x,c.bias", "h"), norm_node("y"), 17), ST_MODEL, "integers");
    refused(small_model(with(node("conv", "GroupNormalization", "x,c.bias,c.bias", "h"), attr_int("num_groups", 0)),
                        norm_node("y"), 18),
            ST_MODEL, "groups");
    refused(small_model(with(node("conv", "DepthToSpace", "x", "h"), attr_int("blocksize", 2)), norm_node("y"), 17),
            ST_MODEL, "dimensions");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values), cmocka_unit_test(test_gradients), cmocka_unit_test(test_shared),
        cmocka_unit_test(test_layers), cmocka_unit_test(test_refused), cmocka_unit_test(test_training),
        cmocka_unit_test(test_each_activation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
