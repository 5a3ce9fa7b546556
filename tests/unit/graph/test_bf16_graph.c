/* Graphs in bf16: what is kept wider, and constants that bf16 cannot hold. */
#include "tests/unit/graph/model_test.h"

#include <math.h>

#include "graph/lower.h"

static uint16_t narrowed(const void *x, ferry_dtype from)
{
    uint16_t bits = 0;
    assert_int_equal(graph_convert(&bits, FERRY_BF16, x, from, 1), FERRY_OK);
    return bits;
}

/* A finite number stays finite; what is infinite or no number stays so; others are rounded to nearest even. */
static void constants_saturate(void **state)
{
    (void)state;
    const struct {
        float x;
        uint16_t bits;
    } singles[] = {{-3.4028234e38F, 0xff7f}, {3.4028234e38F, 0x7f7f}, {-INFINITY, 0xff80}, {INFINITY, 0x7f80},
                   {1, 0x3f80},              {0x1.01p0F, 0x3f80},     {0x1.03p0F, 0x3f82}, {-0.0F, 0x8000}};
    for (size_t i = 0; i < sizeof singles / sizeof *singles; i++)
        assert_int_equal(narrowed(&singles[i].x, FERRY_F32), singles[i].bits);
    const double large = -1e300, none = NAN;
    assert_int_equal(narrowed(&large, FERRY_F64), 0xff7f);
    assert_int_equal(narrowed(&none, FERRY_F64) & 0x7fc0, 0x7fc0);
    float wide;
    assert_int_equal(graph_convert(&wide, FERRY_F32, &large, FERRY_F64, 1), FERRY_OK);
    assert_true(wide == -INFINITY); /* only 16 bits are that narrow for what models hold */
}

static void check_types(const Graph *g)
{
    assert_int_equal(graph_wide_dtype(g), FERRY_F32);
    assert_int_equal(g->tensor.at[g->loss].dtype, FERRY_F32);
    for (int p = 0; p < g->n_param; p++) {
        assert_int_equal(g->tensor.at[g->param[p].tensor].dtype, FERRY_BF16);
        assert_int_equal(g->param[p].bytes, 2 * g->param[p].count);
    }
    for (int i = 0; i < g->tensor.count; i++) {
        const Tensor *t = &g->tensor.at[i];
        for (int64_t k = 0; t->kind == TENSOR_CONST && t->dtype == FERRY_BF16 && k < t->count; k++)
            assert_int_not_equal(((const uint16_t *)t->data)[k] & 0x7fff, 0x7f80);
    }
}

static void training(const char *file, const char *loss, ferry_op last)
{
    static DimBinding dim[] = {{"batch", 4}, {"seq", 32}};
    Arena *arena = arena_open();
    Diag d = {.quiet = true};
    Model *m;
    Graph *g;
    const ModelOptions options = {.path = file, .dim = dim, .n_dim = 2, .loss = loss, .precision = FERRY_BF16};
    if (graph_from_options(&d, arena, &options, &m, &g) != ST_OK)
        fail_msg("%s", d.message);
    check_types(g);
    /* the node that gives the loss computes in f32, or sums in it */
    const Node *n = &g->node.at[g->tensor.at[g->tensor.at[g->loss].root].producer];
    assert_int_equal(n->call.op, last);
    assert_int_equal(ferry_kernel_arg_dtype(&n->call, 0), FERRY_F32);
    for (int i = 0; i < g->n_forward; i++) {
        const Node *norm = &g->node.at[i];
        if (norm->call.op == FERRY_OP_LAYERNORM)
            assert_int_equal(g->tensor.at[norm->arg[2]].dtype, FERRY_F32);
    }
    graph_close(g);
    model_close(m);
    arena_close(arena);
}

static void losses_are_wide(void **state)
{
    (void)state;
    training(ROOT "models/gpt2/loss-ts.onnx", NULL, FERRY_OP_XENT);
    training(ROOT "models/gpt2/ts.onnx", "cross_entropy", FERRY_OP_XENT);
    training(ROOT "models/llama/ts.onnx", "mse", FERRY_OP_REDUCE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(constants_saturate), cmocka_unit_test(losses_are_wide)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
