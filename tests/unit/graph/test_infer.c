/* Shapes and folded values of whole models against onnxruntime's values of every intermediate tensor
 * (tests/data/onnx/make_oracle.py), and what folding must leave alone. */
#include "model_test.h"

/* Sum over the bytes of v broadcast to the oracle's shape; constants may have 1 where they repeat. */
static uint64_t checksum(const Value *v, const int64_t *dim)
{
    uint64_t sum = 0, place = 0;
    int64_t count = 1, each = (int64_t)ferry_dtype_bytes(v->dtype);
    for (int k = 0; k < v->rank; k++)
        count *= dim[k];
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, offset = 0, step = 1;
        for (int k = v->rank - 1; k >= 0; k--) {
            offset += v->dim[k] == 1 ? 0 : rest % dim[k] * step;
            rest /= dim[k];
            step *= v->dim[k];
        }
        for (int64_t b = 0; b < each; b++, place++)
            sum += ((const uint8_t *)v->data)[offset * each + b] * (place % 65521 + 1);
    }
    return sum;
}

static void check_line(const Model *m, char *line)
{
    char *name = strtok(line, " \n"), *type = strtok(NULL, " \n"), *shape = strtok(NULL, " \n"),
         *sum = strtok(NULL, " \n");
    const Value *v = value_named(m, name);
    int64_t dim[MAX_RANK];
    int rank = 0;
    if (!v)
        fail_msg("%s is missing", name);
    for (char *p = shape; strcmp(shape, "scalar") != 0 && *p; p += *p == 'x')
        dim[rank++] = strtoll(p, &p, 10);
    if (strcmp(ferry_dtype_name(v->dtype), type) != 0 || v->rank != rank)
        fail_msg("%s: %s of %d axes instead of %s %s", name, ferry_dtype_name(v->dtype), v->rank, type, shape);
    for (int k = 0; k < rank; k++)
        if (v->dim[k] != dim[k] && !(v->kind == VALUE_CONSTANT && v->dim[k] == 1))
            fail_msg("%s: axis %d is %lld instead of %s", name, k, (long long)v->dim[k], shape);
    if (sum && (v->kind != VALUE_CONSTANT || !v->data))
        fail_msg("%s is a constant, but was not folded", name);
    if (sum && checksum(v, dim) != strtoull(sum, NULL, 10))
        fail_msg("%s has other contents than onnxruntime's", name);
    if (!sum && (v->kind != VALUE_COMPUTED || v->data))
        fail_msg("%s depends on inputs or weights, but was folded", name);
}

static void check_model(const char *model, const char *expect, int lines)
{
    Opened o = open_tiny(model, 2);
    FILE *f = fopen(expect, "r");
    char line[1024];
    int count = 0;
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); count++)
        check_line(o.m, line);
    fclose(f);
    assert_int_equal(count, lines);
    for (int i = 0; i < o.m->node.count; i++) {
        const ModelNode *n = &o.m->node.at[i];
        assert_non_null(n->row);
        /* nodes are in order: what they read was computed before */
        for (int k = 0; k < n->n_in; k++)
            assert_true(n->in[k] < 0 || o.m->value.at[n->in[k]].producer < i);
        for (int k = 0; k < n->n_out; k++)
            assert_true(n->out[k] < 0 || o.m->value.at[n->out[k]].producer == i);
    }
    close_opened(&o);
}

static void gpt2(void **state)
{
    (void)state;
    check_model(ROOT "models/gpt2/ts.onnx", ROOT "data/onnx/gpt2-ts.expect", 487);
    check_model(ROOT "models/gpt2/ts13.onnx", ROOT "data/onnx/gpt2-ts13.expect", 537);
    check_model(ROOT "models/gpt2/loss-ts.onnx", ROOT "data/onnx/gpt2-loss-ts.expect", 498);
    check_model(ROOT "models/gpt2/dynamo.onnx", ROOT "data/onnx/gpt2-dynamo.expect", 121);
}

static void gpt2_live_nodes_only_compute(void **state)
{
    (void)state;
    static const char *const gone[] = {"Shape",    "Constant", "Range", "ConstantOfShape", "Expand",
                                       "GatherND", "And",      "Where", "Squeeze",         "LessOrEqual"};
    static const char *const models[] = {"ts", "ts13", "loss-ts", "dynamo"};
    for (size_t i = 0; i < 4; i++) {
        char path[400];
        snprintf(path, sizeof path, ROOT "models/gpt2/%s.onnx", models[i]);
        Opened o = open_tiny(path, 2);
        for (int k = 0; k < o.m->node.count; k++)
            for (size_t j = 0; j < sizeof gone / sizeof gone[0]; j++)
                if (!o.m->node.at[k].dead && strcmp(o.m->node.at[k].op, gone[j]) == 0)
                    fail_msg("%s: %s is left", path, o.m->node.at[k].name);
        close_opened(&o);
    }
}

/* The mask of the dynamo export is [batch, 1, seq, seq], the same for each sequence of the batch: it is kept once, and
 * at a size at which its index tensors would take gigabytes it still folds, quickly. */
static void masks_do_not_grow_with_the_batch(void **state)
{
    (void)state;
    static DimBinding dim[] = {{"batch", 4096}, {"seq", 64}};
    ModelOptions options = {.path = ROOT "models/gpt2/dynamo.onnx", .n_dim = 2, .dim = dim};
    Opened o = open_options(&options);
    if (o.status != ST_OK)
        fail_msg("%s", o.d.message);
    const Value *mask = value_named(o.m, "where");
    assert_int_equal(mask->kind, VALUE_CONSTANT);
    assert_int_equal(mask->rank, 4);
    assert_int_equal(mask->dim[0], 1);
    assert_int_equal(mask->dim[1], 1);
    assert_int_equal(mask->dim[2], 64);
    assert_int_equal(mask->dim[3], 64);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 64; j++)
            assert_true((((const float *)mask->data)[i * 64 + j] == 0) == (j <= i));
    assert_int_equal(value_named(o.m, "softmax")->dim[0], 4096);
    close_opened(&o);
}

/* z = -s * cos(-f) * (x w^T): w is a parameter, f a table of frequencies, s a scalar */
static void parameters_are_not_folded(void **state)
{
    (void)state;
    const int64_t two[] = {2, 2};
    const float w[4] = {1, 2, 3, 4};
    int64_t perm[] = {1, 0};
    Bytes g = {0};
    Bytes t = node("a", "Transpose", "w", "wt");
    put_message(&t, 5, attr_ints("perm", 2, perm));
    put_message(&g, 1, t);
    put_message(&g, 1, node("b", "MatMul", "x,wt", "xw"));
    put_message(&g, 1, node("c", "Neg", "f", "nf"));
    put_message(&g, 1, node("d", "Cos", "nf", "table"));
    put_message(&g, 1, node("e", "Mul", "xw,table", "y"));
    put_message(&g, 1, node("f", "Neg", "s", "ns"));
    put_message(&g, 1, node("g", "Mul", "y,ns", "z"));
    put_message(&g, 5, tensor("w", 1, 2, two, w, 16));
    put_message(&g, 5, tensor("f", 1, 2, two, w, 16));
    put_message(&g, 5, tensor("s", 1, 0, two, w, 4));
    put_message(&g, 11, info("x", 1, 2, two));
    put_message(&g, 12, output("z"));
    Opened o = open_bytes(model_bytes(g, 17));
    assert_int_equal(o.status, ST_OK);
    assert_null(value_named(o.m, "wt")->data);                         /* a parameter, transposed */
    assert_int_equal(value_named(o.m, "table")->kind, VALUE_CONSTANT); /* only Cos reads it: a table */
    assert_int_equal(value_named(o.m, "ns")->kind, VALUE_CONSTANT);    /* a scalar is no parameter */
    assert_true(*(const float *)value_named(o.m, "ns")->data == -1.0f);
    close_opened(&o);
}

/* A constant shrinks only where another operand has the full extent. */
static void constants_keep_what_readers_need(void **state)
{
    (void)state;
    const int64_t x_dim[] = {3, 1, 2}, shape[] = {3, 4, 2};
    const float one = 1;
    Bytes g = {0};
    put_message(&g, 1, node("a", "Expand", "one,shape", "c"));
    put_message(&g, 1, node("b", "Add", "x,c", "y"));
    put_message(&g, 5, tensor("one", 1, 0, x_dim, &one, 4));
    put_message(&g, 5, ints("shape", 3, shape));
    put_message(&g, 11, info("x", 1, 3, x_dim));
    put_message(&g, 12, output("y"));
    Opened o = open_bytes(model_bytes(g, 17));
    assert_int_equal(o.status, ST_OK);
    const Value *c = value_named(o.m, "c"), *y = value_named(o.m, "y");
    assert_int_equal(c->dim[0], 1); /* x has 3 */
    assert_int_equal(c->dim[1], 4); /* x has 1 */
    assert_int_equal(c->dim[2], 1);
    assert_int_equal(y->dim[1], 4);
    for (int i = 0; i < 4; i++)
        assert_true(((const float *)c->data)[i] == 1.0f);
    close_opened(&o);
}

static void printed(void **state)
{
    (void)state;
    const int64_t x_dim[] = {-1, 2}, shape[] = {-1, 1};
    Bytes g = {0};
    put_message(&g, 1, node("", "Reshape", "x,shape", "y"));
    put_message(&g, 5, ints("shape", 2, shape));
    put_message(&g, 11, info("x", 1, 2, x_dim));
    put_message(&g, 12, output("y"));
    Opened o = open_bytes(model_bytes(g, 17));
    assert_int_equal(o.status, ST_OK);
    Text t = {0};
    model_print(o.m, &t);
    within(t.at, "input \"x\" f32[4,2]\n");
    within(t.at, "initializer \"shape\" i64[2] = -1 1\n");
    within(t.at, "computed \"y\" f32[8,1]\n");
    within(t.at, "node \"Reshape_0\" Reshape(\"x\", \"shape\") -> \"y\"\n");
    within(t.at, "outputs \"y\"\n");
    text_free(&t);
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2),
        cmocka_unit_test(gpt2_live_nodes_only_compute),
        cmocka_unit_test(masks_do_not_grow_with_the_batch),
        cmocka_unit_test(parameters_are_not_folded),
        cmocka_unit_test(constants_keep_what_readers_need),
        cmocka_unit_test(printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
