/* Layers, units, uses and names of the tiny GPT-2; losses; dumps; allocation failures. */
#include <math.h>

#include "tests/unit/graph/graph_exec.h"
#include "tests/unit/graph/model_test.h"

typedef struct Built {
    Arena *arena;
    Diag d;
    Model *m;
    Graph *g;
    Status status;
} Built;

static Built build(const char *file, const ModelOptions *more)
{
    static DimBinding dims[] = {{"batch", 4}, {"seq", 32}};
    char path[512];
    snprintf(path, sizeof(path), ROOT "models/gpt2/%s.onnx", file);
    Built b = {.arena = arena_open(), .d = {.quiet = true}};
    ModelOptions options = *more;
    options.path = path;
    options.n_dim = 2;
    options.dim = dims;
    options.precision = FERRY_F64;
    b.status = graph_from_options(&b.d, b.arena, &options, &b.m, &b.g);
    return b;
}

static void finish(Built *b)
{
    graph_close(b->g);
    model_close(b->m);
    arena_close(b->arena);
}

static void ok(const Built *b)
{
    if (b->status != ST_OK)
        fail_msg("%s", b->d.message);
}

static const Unit *unit_named(const Graph *g, const char *name)
{
    for (int u = 0; u < g->n_unit; u++)
        if (strcmp(g->unit[u].name, name) == 0)
            return &g->unit[u];
    fail_msg("no unit '%s'", name);
    return NULL;
}

static void expect_uses(const Unit *u, int n, const Use *use)
{
    assert_int_equal(u->n_use, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(u->use[i].layer, use[i].layer);
        assert_int_equal(u->use[i].phase, use[i].phase);
    }
}

static void expect_layers(const Graph *g, int n, const char *const *expected)
{
    assert_int_equal(g->n_layer, n);
    assert_int_equal(g->n_segment, 2 * n + 1);
    for (int l = 0; l < n; l++) {
        char line[256];
        snprintf(line, sizeof(line), "%s %s", g->layer[l].op, g->layer[l].name);
        assert_string_equal(line, expected[l]);
    }
}

static void test_ts(void **state)
{
    (void)state;
    Built b = build("loss-ts", &(ModelOptions){0});
    ok(&b);
    const char *const layers[] = {
        "Embedding m.transformer.wte",          "Embedding m.transformer.wpe",
        "LayerNorm m.transformer.h.0.ln_1",     "Linear m.transformer.h.0.attn.c_attn",
        "Linear m.transformer.h.0.attn.c_proj", "LayerNorm m.transformer.h.0.ln_2",
        "Linear m.transformer.h.0.mlp.c_fc",    "Linear m.transformer.h.0.mlp.c_proj",
        "LayerNorm m.transformer.h.1.ln_1",     "Linear m.transformer.h.1.attn.c_attn",
        "Linear m.transformer.h.1.attn.c_proj", "LayerNorm m.transformer.h.1.ln_2",
        "Linear m.transformer.h.1.mlp.c_fc",    "Linear m.transformer.h.1.mlp.c_proj",
        "LayerNorm m.transformer.ln_f",         "Linear m.lm_head",
    };
    expect_layers(b.g, 16, layers);
    /* the tied table: read by the embedding and the head, and by the head's backward pass; wpe has no use in BP */
    const Unit *wte = unit_named(b.g, "m.transformer.wte");
    expect_uses(wte, 3, (Use[]){{0, PHASE_FP}, {15, PHASE_FP}, {15, PHASE_BP}});
    assert_int_equal(wte->bytes, 512 * 64 * 8);
    assert_int_equal(wte->grad_bytes, wte->bytes);
    expect_uses(unit_named(b.g, "m.transformer.wpe"), 1, (Use[]){{1, PHASE_FP}});
    const Unit *fc = unit_named(b.g, "m.transformer.h.1.mlp.c_fc"), *ln = unit_named(b.g, "m.transformer.ln_f");
    assert_int_equal(fc->n_param, 2);
    expect_uses(fc, 2, (Use[]){{12, PHASE_FP}, {12, PHASE_BP}});
    expect_uses(ln, 2, (Use[]){{14, PHASE_FP}, {14, PHASE_BP}});
    /* a layer's parameter gradients come before what it passes on */
    for (int i = b.g->n_forward; i < b.g->node.count; i++)
        if (b.g->node.at[i].call.op == FERRY_OP_LINEAR_DX)
            assert_true(b.g->node.at[i - 1].origin == b.g->node.at[i].origin);
    /* traffic: an embedding reads its rows, a product its matrix */
    const Node *embedding = &b.g->node.at[b.g->layer[0].node], *head = &b.g->node.at[b.g->layer[15].node];
    assert_int_equal(node_arg_traffic_bytes(b.g, embedding, 1), 4 * 32 * 64 * 8);
    assert_int_equal(node_arg_traffic_bytes(b.g, head, 2), 512 * 64 * 8);
    assert_int_equal(node_arg_traffic_bytes(b.g, head, 3), 0);
    for (int i = 0; i < b.g->node.count; i++)
        assert_true(node_cost(b.g, &b.g->node.at[i]) > 0);
    assert_true(node_cost(b.g, head) > node_cost(b.g, embedding));
    /* what is kept alive: the loss is written once, an input is never written */
    const Tensor *loss = &b.g->tensor.at[b.g->loss];
    assert_int_equal(loss->first_write, b.g->n_forward - 1);
    assert_int_equal(b.g->tensor.at[b.g->input[0]].first_write, -1);
    assert_int_equal(b.g->tensor.at[b.g->input[0]].last_use, b.g->node.count - 1); /* the last embedding's gradient */
    finish(&b);
}

static void test_ts13_and_dynamo(void **state)
{
    (void)state;
    Built b = build("ts13", &(ModelOptions){.loss = "cross_entropy"});
    ok(&b);
    assert_int_equal(b.g->n_layer, 16); /* a norm that is spelled out is found again */
    assert_string_equal(b.g->layer[2].name, "m.transformer.h.0.ln_1");
    assert_string_equal(b.g->layer[2].op, "LayerNorm");
    finish(&b);
    b = build("ts13", &(ModelOptions){.loss = "cross_entropy", .composed = true});
    ok(&b);
    assert_int_equal(b.g->n_layer, 21);
    assert_string_equal(b.g->layer[2].op, "Mul");
    assert_string_equal(b.g->layer[3].name, "m.transformer.h.0.ln_1.bias");
    expect_uses(unit_named(b.g, "m.transformer.h.0.ln_1.bias"), 1, (Use[]){{3, PHASE_FP}});
    finish(&b);
    b = build("dynamo", &(ModelOptions){.loss = "cross_entropy"});
    ok(&b);
    assert_int_equal(b.g->n_layer, 16);
    assert_string_equal(b.g->layer[0].name, "m.lm_head"); /* the table's name in this file */
    assert_string_equal(b.g->layer[15].name, "linear");
    expect_uses(unit_named(b.g, "m.lm_head"), 3, (Use[]){{0, PHASE_FP}, {15, PHASE_FP}, {15, PHASE_BP}});
    finish(&b);
}

/* Frozen parameters are units with uses and without gradients; below the first trained layer nothing flows back. */
static void test_frozen(void **state)
{
    (void)state;
    const char *freeze[] = {"*wte*", "*wpe*", "m.transformer.h.0.*"};
    Built b = build("loss-ts", &(ModelOptions){.n_freeze = 3, .freeze = freeze});
    ok(&b);
    assert_int_equal(b.g->n_layer, 16);
    assert_int_equal(unit_named(b.g, "m.transformer.wte")->grad_bytes, 0); /* tied: frozen as a whole */
    expect_uses(unit_named(b.g, "m.transformer.wte"), 3, (Use[]){{0, PHASE_FP}, {15, PHASE_FP}, {15, PHASE_BP}});
    expect_uses(unit_named(b.g, "m.transformer.h.0.mlp.c_fc"), 1, (Use[]){{6, PHASE_FP}});
    /* the first trained layer is the norm of block 1, and no dx is computed for what comes before it */
    const Node *last = &b.g->node.at[b.g->node.count - 1];
    assert_int_equal(last->segment, 2 * 8 + 1);
    assert_int_equal(last->call.op, FERRY_OP_LAYERNORM_DP);
    finish(&b);
}

static void refused_loss(const char *file, const char *loss, const char *part, const char *hint)
{
    Built b = build(file, &(ModelOptions){.loss = loss});
    assert_int_equal(b.status, ST_USAGE);
    assert_null(b.g);
    assert_null(b.m);
    within(b.d.message, part);
    within(b.d.hint, hint);
    finish(&b);
}

static void test_refused_losses(void **state)
{
    (void)state;
    refused_loss("ts", NULL, "does not end in a loss", "--loss cross_entropy:out");
    refused_loss("ts", "cross_entropy:nope", "no floating output 'nope'", "out f32[4,32,512]");
    refused_loss("ts", "cross_entropy:out,axis=3", "axis 3", "");
    refused_loss("ts", "cross_entropy:out,axis=x", "'x' is not a number", "");
    refused_loss("ts", "hinge", "not a loss", "mse[:OUTPUT]");
    refused_loss("ts", "mse,axis=1", "not a loss", "");
    refused_loss("ts", "output", "not a loss", "");
    refused_loss("ts", "output:out", "65536 elements", "");
    refused_loss("loss-ts", "cross_entropy", "outside of output 'out' of rank 0", "");
}

/* mean((out - target)^2) against the same sum written here, and cross entropy along another axis: uniform over 32 */
static void test_other_losses(void **state)
{
    (void)state;
    Built b = build("ts", &(ModelOptions){.loss = "mse:out"});
    ok(&b);
    Exec e;
    exec_open(&e, b.g);
    assert_int_equal(b.g->n_input, 2);
    assert_string_equal(b.g->tensor.at[b.g->input[1]].name, "target");
    memset(e.at[b.g->input[0]], 0, (size_t)b.g->tensor.at[b.g->input[0]].bytes);
    double *target = e.at[b.g->input[1]], sum = 0;
    for (int64_t i = 0; i < b.g->tensor.at[b.g->input[1]].count; i++)
        target[i] = (double)(i % 7) - 3;
    exec_run(&e, b.g->node.count);
    const double *out = e.at[exec_tensor(&e, "out")];
    for (int64_t i = 0; i < 4 * 32 * 512; i++)
        sum += (out[i] - target[i]) * (out[i] - target[i]);
    assert_true(fabs(sum / (4 * 32 * 512) - exec_loss(&e)) <= 1e-12 * sum);
    exec_close(&e);
    finish(&b);

    b = build("ts", &(ModelOptions){.loss = "cross_entropy:out,axis=1"});
    ok(&b);
    const Tensor *labels = &b.g->tensor.at[b.g->input[1]];
    assert_int_equal(labels->rank, 2);
    assert_int_equal(labels->dim[0], 4);
    assert_int_equal(labels->dim[1], 512);
    const Node *xent = &b.g->node.at[b.g->n_forward - 1];
    assert_int_equal(xent->call.m, 4);
    assert_int_equal(xent->call.n, 32);
    assert_int_equal(xent->call.k, 512);
    finish(&b);

    b = build("loss-ts", &(ModelOptions){.loss = "output:out"});
    ok(&b);
    finish(&b);
}

static void test_dump(void **state)
{
    (void)state;
    Built b = build("loss-ts", &(ModelOptions){.dump_after = "nowhere"});
    assert_int_equal(b.status, ST_USAGE);
    within(b.d.hint, "autodiff");
    finish(&b);
    b = build("loss-ts", &(ModelOptions){0});
    ok(&b);
    Text t = {0};
    graph_print(b.g, &t);
    assert_false(t.failed);
    within(t.at,
           "param m.transformer.wte.weight f64[512,64] from f32 unit m.transformer.wte alias onnx::MatMul_605^T\n");
    within(t.at, "layer 15 m.lm_head Linear node ");
    within(t.at, "unit m.transformer.wte 262144 bytes, gradients 262144: fp(0) fp(15) bp(15)\n");
    within(t.at, " bp seg 31 linear_dx m128 k64 n512 trans_b: ");
    text_free(&t);
    finish(&b);
}

/* Wherever memory runs out, building fails with that message and leaks nothing (the sanitizer build tells). */
static void test_no_memory(void **state)
{
    (void)state;
    int failures = 0;
    for (long n = 1;; n += 1 + n / 40) {
        base_fail_alloc(n);
        Built b = {.arena = arena_open(), .d = {.quiet = true}};
        if (b.arena != NULL) {
            static DimBinding dims[] = {{"batch", 4}, {"seq", 32}};
            ModelOptions options = {
                .path = ROOT "models/gpt2/loss-ts.onnx", .n_dim = 2, .dim = dims, .precision = FERRY_F32};
            b.status = graph_from_options(&b.d, b.arena, &options, &b.m, &b.g);
            base_fail_alloc(0);
            if (b.status == ST_OK) {
                finish(&b);
                break;
            }
            assert_int_equal(b.status, ST_FAILED);
            assert_null(b.g);
            within(b.d.message, "out of memory");
            arena_close(b.arena);
            failures++;
        }
        base_fail_alloc(0);
    }
    assert_true(failures > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ts),           cmocka_unit_test(test_ts13_and_dynamo),
        cmocka_unit_test(test_frozen),       cmocka_unit_test(test_refused_losses),
        cmocka_unit_test(test_other_losses), cmocka_unit_test(test_dump),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
