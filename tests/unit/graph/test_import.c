/* Import and binding: what a file may contain, what is refused and with which words, and hostile files. */
#include "model_test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

static const int64_t two[] = {2, 2};
static const float four[4] = {1, 2, 3, 4};

/* x [2,2] -> op -> y, at opset 17 */
static Bytes one_node(Bytes n)
{
    Bytes g = {0};
    put_message(&g, 1, n);
    put_message(&g, 11, info("x", 1, 2, two));
    put_message(&g, 12, output("y"));
    return model_bytes(g, 17);
}

static void accepts(Bytes model)
{
    Opened o = open_bytes(model);
    if (o.status != ST_OK)
        fail_msg("%s", o.d.message);
    close_opened(&o);
}

static void valid_forms(void **state)
{
    (void)state;
    accepts(one_node(node("n", "Neg", "x", "y")));
    accepts(one_node(node("n", "Clip", "x,,", "y")));   /* omitted inputs */
    accepts(one_node(node("n", "Dropout", "x", "y,"))); /* omitted output */
    Bytes n = node("n", "Neg", "x", "y");
    put_text(&n, 7, "ai.onnx"); /* the standard domain by name */
    accepts(one_node(n));

    /* nodes in any order, an initializer that is listed as an input, unknown fields */
    Bytes g = {0};
    put_message(&g, 1, node("late", "Neg", "b", "y"));
    put_message(&g, 1, node("", "Add", "x,w", "b"));
    put_message(&g, 5, tensor("w", 1, 2, two, four, 16));
    put_message(&g, 11, info("w", 1, 2, two));
    put_message(&g, 11, info("x", 1, 2, two));
    put_message(&g, 12, output("y"));
    put_text(&g, 10, "documentation");
    put_int(&g, 999, 7);
    Opened o = open_bytes(model_bytes(g, 17));
    assert_int_equal(o.status, ST_OK);
    assert_int_equal(o.m->n_input, 1);
    assert_string_equal(o.m->value.at[o.m->input[0]].name, "x");
    assert_string_equal(o.m->node.at[0].name, "Add_1");
    assert_string_equal(o.m->node.at[1].name, "late");
    assert_int_equal(value_named(o.m, "w")->kind, VALUE_INITIALIZER);
    assert_int_equal(value_named(o.m, "y")->producer, 1);
    assert_memory_equal(value_named(o.m, "w")->data, four, 16);
    close_opened(&o);
}

/* The same numbers in each way that a tensor can be stored. */
static void tensor_forms(void **state)
{
    (void)state;
    const int64_t dim[] = {2};
    const uint8_t packed_ints[] = {5, 0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}; /* 5, -5 */
    const struct {
        int type, field;
        ferry_dtype want;
        const void *data;
        size_t size;
        uint8_t bytes[16];
    } forms[] = {
        {6, 5, FERRY_I32, packed_ints, 11, {5, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff}},
        {5, 5, FERRY_I16, packed_ints, 11, {5, 0, 0xfb, 0xff}},
        {3, 5, FERRY_I8, packed_ints, 11, {5, 0xfb}},
        {7, 7, FERRY_I64, packed_ints, 11, {5, 0, 0, 0, 0, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
        {9, 5, FERRY_BOOL, packed_ints, 11, {1, 1}},
        {1, 4, FERRY_F32, "\0\0\x80\x3f\0\0\0\xc0", 8, {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}},
        {10, 5, FERRY_F16, "\x80\x78\x80\x80\x03", 5, {0, 0x3c, 0, 0xc0}}, /* 15360, 49152 as varints */
        {16, 5, FERRY_BF16, "\x80\x7f\x80\x80\x03", 5, {0x80, 0x3f, 0, 0xc0}},
        {12, 11, FERRY_U32, "\x05\xff\xff\xff\xff\x0f", 6, {5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}},
        {9, 9, FERRY_BOOL, "\0\x07", 2, {0, 1}}, /* raw */
        {4, 9, FERRY_U16, "\1\2\3\4", 4, {1, 2, 3, 4}},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        Bytes g = {0}, t = {0};
        put_int(&t, 1, dim[0]);
        put_int(&t, 2, forms[i].type);
        put_text(&t, 8, "w");
        put_field(&t, forms[i].field, forms[i].data, forms[i].size);
        put_message(&g, 5, t);
        put_message(&g, 12, output("w"));
        Opened o = open_bytes(model_bytes(g, 17));
        if (o.status != ST_OK)
            fail_msg("form %zu: %s", i, o.d.message);
        const Value *w = value_named(o.m, "w");
        assert_int_equal(w->dtype, forms[i].want);
        assert_memory_equal(w->data, forms[i].bytes, 2 * ferry_dtype_bytes(w->dtype));
        assert_int_equal((uintptr_t)w->data % ferry_dtype_bytes(w->dtype), 0);
        close_opened(&o);
    }
}

static void graph_errors(void **state)
{
    (void)state;
    refused(one_node(node("n", "Neg", "z", "y")), ST_MODEL, "node \"n\": its input \"z\" is not");
    refused(one_node(node("n", "Neg", "x", "x")), ST_MODEL, "\"x\": a value of this name is defined twice");
    refused(one_node(node("n", "Neg", "y", "y")), ST_MODEL, "cycle");
    refused(one_node(node("n", "Neg", "x", "z")), ST_MODEL, "output \"y\" is not defined");
    refused(one_node(node("n", "Frobnicate", "x", "y")), ST_MODEL,
            "node \"n\": operator Frobnicate (opset 17) is not supported");
    refused(one_node(node("n", "Gelu", "x", "y")), ST_MODEL, "not supported at this opset");
    refused(one_node(node("n", "", "x", "y")), ST_MODEL, "has no operator");
    refused(one_node(node("n", "Add", "x,", "y")), ST_MODEL, "node \"n\": Add (opset 17): input 1 is missing");
    refused(one_node(node("n", "Neg", "x,x", "y")), ST_MODEL, "has 2 inputs");
    Bytes n = node("n", "Neg", "x", "y");
    put_text(&n, 7, "com.example");
    refused(one_node(n), ST_MODEL, "operator com.example.Neg");

    Bytes g = {0};
    put_message(&g, 1, node("a", "Neg", "c", "b"));
    put_message(&g, 1, node("b", "Neg", "b", "c"));
    put_message(&g, 12, output("c"));
    refused(model_bytes(g, 17), ST_MODEL, "cycle");

    g = (Bytes){0};
    put_message(&g, 1, node("a", "Neg", "x", "y"));
    put_message(&g, 11, info("x", 8, 2, two));
    put_message(&g, 12, output("y"));
    refused(model_bytes(g, 17), ST_MODEL, "input \"x\": element type string (8)");

    g = (Bytes){0};
    put_message(&g, 11, info("x", 1, 2, two));
    refused(model_bytes(g, 17), ST_MODEL, "no output");

    Bytes m = {0};
    put_int(&m, 1, 8);
    refused(m, ST_MODEL, "has no graph");
    m = (Bytes){0};
    g = (Bytes){0};
    put_message(&g, 11, info("x", 1, 2, two));
    put_message(&g, 12, output("x"));
    put_message(&m, 7, g);
    refused(m, ST_MODEL, "opset of the standard operators is not given");
    g = (Bytes){0};
    put_message(&g, 12, output("x"));
    refused(model_bytes(g, 99), ST_MODEL, "opset 99 is not supported");
}

/* Operators that are not supported are all listed. */
static void unsupported_list(void **state)
{
    (void)state;
    Bytes g = {0};
    put_message(&g, 1, node("n", "Scan", "x", "a"));
    put_message(&g, 1, node("o", "Loop", "a", "b"));
    put_message(&g, 1, node("p", "Scan", "b", "y"));
    put_message(&g, 11, info("x", 1, 2, two));
    put_message(&g, 12, output("y"));
    Opened o = open_bytes(model_bytes(g, 17));
    assert_int_equal(o.status, ST_MODEL);
    within(o.d.message, "node \"n\": operator Scan (opset 17) is not supported");
    within(o.d.hint, "3 nodes have unsupported operators: Scan, Loop;");
    close_opened(&o);
}

static void tensor_errors(void **state)
{
    (void)state;
    const struct {
        int64_t dim[2];
        int type;
        size_t size;
        const char *part;
    } bad[] = {
        {{2, 2}, 1, 15, "\"w\": raw_data has 15 bytes, the shape needs 16"},
        {{2, -2}, 1, 16, "dimension 1 is -2"},
        {{(int64_t)1 << 40, (int64_t)1 << 40}, 1, 16, "more elements than 64 bits"},
        {{1000000000, 1000000000}, 1, 16, "raw_data has 16 bytes"},
        {{2, 2}, 8, 16, "element type string (8) is not supported"},
        {{2, 2}, 77, 16, "element type unknown (77) is not supported"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Bytes g = {0};
        put_message(&g, 5, tensor("w", bad[i].type, 2, bad[i].dim, four, bad[i].size));
        put_message(&g, 12, output("w"));
        refused(model_bytes(g, 17), ST_MODEL, bad[i].part);
    }
    Bytes g = {0}, t = {0};
    for (int i = 0; i < 9; i++)
        put_int(&t, 1, 1);
    put_int(&t, 2, 1);
    put_message(&g, 5, t);
    refused(model_bytes(g, 17), ST_MODEL, "9 dimensions");
}

/* Every prefix of a good file, and every flip of a bit in it: an error or a model, never a crash. */
static void cut_and_damaged(void **state)
{
    (void)state;
    const int64_t shape[] = {4};
    Bytes g = {0}, n = node("r", "Reshape", "z,shape", "y");
    put_message(&n, 5, attr_int("allowzero", 1));
    put_message(&g, 1, node("m", "MatMul", "x,w", "z"));
    put_message(&g, 1, n);
    put_message(&g, 5, tensor("w", 1, 2, two, four, 16));
    put_message(&g, 5, ints("shape", 1, shape));
    put_message(&g, 11, info("x", 1, 2, two));
    put_message(&g, 12, output("y"));
    Bytes good = model_bytes(g, 17);
    for (size_t cut = 0; cut < good.size; cut++) {
        Bytes b = {0};
        put_bytes(&b, good.at, cut);
        Opened o = open_bytes(b);
        assert_int_equal(o.status, ST_MODEL);
        assert_true(o.d.message[0] != 0);
        close_opened(&o);
    }
    for (size_t bit = 0; bit < 8 * good.size; bit++) {
        Bytes b = {0};
        put_bytes(&b, good.at, good.size);
        b.at[bit / 8] ^= (uint8_t)(1 << bit % 8);
        Opened o = open_bytes(b);
        assert_true(o.status == ST_OK || o.status == ST_MODEL || o.status == ST_USAGE);
        close_opened(&o);
    }
    free(good.at);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void hostile_wire(void **state)
{
    (void)state;
    double start = seconds();
    refused((Bytes){0}, ST_MODEL, "byte 0: the file is empty");
    Bytes b = {0};
    put_bytes(&b, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11);
    refused(b, ST_MODEL, "byte 10: a number is longer than 64 bits");
    b = (Bytes){0};
    put_int(&b, 1, 8);
    put_bytes(&b, "\x3a\x7f\x00", 3); /* graph of 127 bytes, 1 is there */
    refused(b, ST_MODEL, "byte 4: a field reaches beyond the end");
    b = (Bytes){0};
    put_bytes(&b, "\x0b", 1);
    refused(b, ST_MODEL, "no field has this wire type");
    b = (Bytes){0};
    put_bytes(&b, "\x38\x01", 2); /* the graph as a number */
    refused(b, ST_MODEL, "a message is expected here");

    /* 20000 sub-graphs inside each other, built from the inside: graph { node { attribute { graph { .. } } } } */
    size_t depth = 20000, size = 0, capacity = depth * 15;
    uint8_t *nest = malloc(capacity);
    assert_non_null(nest);
    for (size_t i = 0; i < depth; i++) {
        static const uint8_t tags[3] = {0x32, 0x2a, 0x0a}; /* attribute.g, node.attribute, graph.node */
        for (int k = 0; k < 3; k++) {
            uint8_t head[8];
            int n = 0;
            head[n++] = tags[k];
            for (size_t x = size; n == 1 || x; x >>= 7)
                head[n++] = (uint8_t)((x & 0x7f) | (x > 0x7f ? 0x80 : 0));
            if (size + (size_t)n > capacity)
                break;
            size += (size_t)n; /* written backwards, from the end of the buffer */
            memcpy(nest + capacity - size, head, (size_t)n);
        }
    }
    b = (Bytes){0};
    put_field(&b, 7, nest + capacity - size, size);
    refused(b, ST_MODEL, "nested too deeply");
    free(nest);

    /* 8 MB of empty nodes, of empty tensors, of empty attributes */
    for (int kind = 0; kind < 3; kind++) {
        Bytes g = {0};
        size_t count = 8 << 20;
        g.at = malloc(count + 64);
        assert_non_null(g.at);
        g.size = count;
        for (size_t i = 0; i < count; i += 2) {
            g.at[i] = kind == 1 ? 0x2a : kind == 0 ? 0x0a : 0x2a;
            g.at[i + 1] = 0;
        }
        if (kind == 2) {
            Bytes outer = {0};
            put_message(&outer, 1, g);
            g = outer;
        }
        refused(model_bytes(g, 17), ST_MODEL, "too many nodes");
    }
    /* repeated numbers that would expand eightfold */
    Bytes t = {0}, g = {0};
    uint8_t *zeros = calloc(1, 150 << 20);
    assert_non_null(zeros);
    put_field(&t, 7, zeros, 150 << 20);
    free(zeros);
    put_message(&g, 5, t);
    refused(model_bytes(g, 17), ST_MODEL, "more than 1 GiB");
    if (seconds() - start > 20)
        fail_msg("hostile files took %.1f s", seconds() - start);
}

/* Sizes that blow up, in operators that make data from sizes. */
static void hostile_values(void **state)
{
    (void)state;
    double start = seconds();
    const int64_t big[] = {1000000000, 1000000000, 1000000000}, large[] = {1000000000, 1000000}, minus[] = {-1, -5};
    const int64_t scalar_big = INT64_MAX, zero = 0, one = 1, least = INT64_MIN;
    const struct {
        const char *op, *in, *part;
        const int64_t *shape;
        int count;
    } sized[] = {
        {"ConstantOfShape", "s", "more bytes than can be addressed", big, 3},
        {"ConstantOfShape", "s", "dimension 0 is -1", minus, 2},
        {"Expand", "q,s", "more bytes than can be addressed", big, 3},
        {"Reshape", "x,s", "the new shape", big, 2},
        {"Reshape", "x,s", "dimension 1 is -5", minus, 2},
        {"Tile", "x,s", "more bytes than can be addressed", big, 2},
    };
    for (size_t i = 0; i < sizeof sized / sizeof sized[0]; i++) {
        Bytes g = {0};
        put_message(&g, 1, node("n", sized[i].op, sized[i].in, "y"));
        put_message(&g, 5, ints("s", sized[i].count, sized[i].shape));
        put_message(&g, 5, tensor("q", 7, 0, two, &zero, 8));
        put_message(&g, 11, info("x", 1, 2, two));
        put_message(&g, 12, output("y"));
        refused(model_bytes(g, 17), ST_MODEL, sized[i].part);
    }
    /* countable, but no constant: stays computed, or is refused where its data is needed */
    Bytes g = {0};
    put_message(&g, 1, node("n", "ConstantOfShape", "s", "y"));
    put_message(&g, 5, ints("s", 2, large));
    put_message(&g, 12, output("y"));
    refused(model_bytes(g, 17), ST_MODEL, "constants are limited to");

    const int64_t *range[][3] = {{&zero, &scalar_big, &one}, {&zero, &one, &zero}, {&least, &scalar_big, &one}};
    const char *part[] = {"elements", "delta is 0", "elements"};
    for (size_t i = 0; i < 3; i++) {
        g = (Bytes){0};
        put_message(&g, 1, node("n", "Range", "a,b,c", "y"));
        put_message(&g, 5, tensor("a", 7, 0, two, range[i][0], 8));
        put_message(&g, 5, tensor("b", 7, 0, two, range[i][1], 8));
        put_message(&g, 5, tensor("c", 7, 0, two, range[i][2], 8));
        put_message(&g, 12, output("y"));
        refused(model_bytes(g, 17), ST_MODEL, part[i]);
    }
    /* a chain that doubles its data each time: the sum of all is bounded too */
    g = (Bytes){0};
    int64_t begin[] = {1 << 20};
    put_message(&g, 5, ints("s", 1, begin));
    put_message(&g, 5, tensor("zero", 7, 0, two, &zero, 8));
    put_message(&g, 5, tensor("one", 7, 0, two, &one, 8));
    put_message(&g, 5, tensor("limit", 7, 0, two, begin, 8));
    put_message(&g, 1, node("r", "Range", "zero,limit,one", "v0"));
    for (int i = 0; i < 60; i++) {
        char in[64], out[64];
        snprintf(in, sizeof in, "v%d,v%d", i, i);
        snprintf(out, sizeof out, "v%d", i + 1);
        Bytes n = node("c", "Concat", in, out);
        put_message(&n, 5, attr_int("axis", 0));
        put_message(&g, 1, n);
    }
    put_message(&g, 12, output("v60"));
    refused(model_bytes(g, 17), ST_MODEL, "more bytes than can be addressed");

    /* division by zero, an index out of range, a shape that depends on the input's contents */
    g = (Bytes){0};
    put_message(&g, 1, node("n", "Div", "one,zero", "y"));
    put_message(&g, 5, tensor("zero", 7, 0, two, &zero, 8));
    put_message(&g, 5, tensor("one", 7, 0, two, &one, 8));
    put_message(&g, 12, output("y"));
    refused(model_bytes(g, 17), ST_MODEL, "node \"n\": Div (opset 17): divides by zero");
    g = (Bytes){0};
    put_message(&g, 1, node("n", "Gather", "s,i", "y"));
    put_message(&g, 5, ints("s", 2, large));
    put_message(&g, 5, tensor("i", 7, 0, two, &scalar_big, 8));
    put_message(&g, 12, output("y"));
    refused(model_bytes(g, 17), ST_MODEL, "index 9223372036854775807 is outside of 2 elements");
    g = (Bytes){0};
    put_message(&g, 1, node("n", "Reshape", "w,x", "y"));
    put_message(&g, 5, tensor("w", 1, 2, two, four, 16));
    put_message(&g, 11, info("x", 7, 1, two));
    put_message(&g, 12, output("y"));
    refused(model_bytes(g, 17), ST_MODEL, "its shape (input \"x\") is not known when compiling");
    if (seconds() - start > 10)
        fail_msg("took %.1f s", seconds() - start);
}

static void attribute_errors(void **state)
{
    (void)state;
    Bytes n = node("n", "Transpose", "x", "y");
    int64_t perm[] = {0, 0};
    put_message(&n, 5, attr_ints("perm", 2, perm));
    refused(one_node(n), ST_MODEL, "perm is not a permutation");
    n = node("n", "Transpose", "x", "y");
    put_message(&n, 5, attr_int("perm", 1));
    refused(one_node(n), ST_MODEL, "attribute perm has the wrong type");
    n = node("n", "Softmax", "x", "y");
    put_message(&n, 5, attr_int("axis", 2));
    refused(one_node(n), ST_MODEL, "axis 2 is outside of 2 dimensions");
    n = node("n", "Softmax", "x", "y");
    put_message(&n, 5, attr_int("axis", 1));
    put_message(&n, 5, attr_int("axis", 0));
    refused(one_node(n), ST_MODEL, "two attributes axis");
    n = node("n", "Cast", "x", "y");
    put_message(&n, 5, attr_int("to", 8));
    refused(one_node(n), ST_MODEL, "cast to string");
    Bytes g = {0};
    const uint8_t yes = 1;
    const float all = 1;
    put_message(&g, 1, node("drop", "Dropout", "x,all,yes", "y"));
    put_message(&g, 5, tensor("yes", 9, 0, two, &yes, 1));
    put_message(&g, 5, tensor("all", 1, 0, two, &all, 4));
    put_message(&g, 11, info("x", 1, 2, two));
    put_message(&g, 12, output("y"));
    refused(model_bytes(g, 17), ST_MODEL, "node \"drop\": Dropout (opset 17): its ratio is 1, not from 0 to below 1");
}

/* ---- binding ------------------------------------------------------------------------------------ */

static Opened bound(int n_dim, DimBinding *dim, int n_shape, ShapeBinding *shape)
{
    ModelOptions options = {
        .path = ROOT "models/gpt2/loss-ts.onnx", .n_dim = n_dim, .dim = dim, .n_shape = n_shape, .shape = shape};
    return open_options(&options);
}

static void binding(void **state)
{
    (void)state;
    Opened o = bound(0, NULL, 0, NULL);
    assert_int_equal(o.status, ST_USAGE);
    within(o.d.message,
           "unbound dimensions: batch (input_ids axis 0, labels axis 0), seq (input_ids axis 1, labels axis 1)");
    within(o.d.hint, "add --dim batch=8 --dim seq=512");
    close_opened(&o);

    DimBinding dim[] = {{"batch", 4}, {"seq", 16}, {"sequence", 3}};
    o = bound(1, dim, 0, NULL);
    assert_int_equal(o.status, ST_USAGE);
    assert_null(strstr(o.d.message, "batch"));
    close_opened(&o);
    o = bound(3, dim, 0, NULL);
    assert_int_equal(o.status, ST_USAGE);
    within(o.d.message, "--dim sequence: no input of");
    within(o.d.hint, "batch (input_ids axis 0)");
    close_opened(&o);

    /* a shape binds the names of the other inputs too */
    ShapeBinding shape[] = {{"input_ids", 2, {4, 16}}, {"labels", 2, {4, 17}}, {"ids", 1, {4}}};
    o = bound(0, NULL, 1, shape);
    assert_int_equal(o.status, ST_OK);
    assert_int_equal(value_named(o.m, "labels")->dim[1], 16);
    close_opened(&o);
    o = bound(0, NULL, 2, shape);
    assert_int_equal(o.status, ST_USAGE);
    within(o.d.message, "seq is 16 by --shape input_ids but 17 by --shape labels");
    close_opened(&o);
    o = bound(0, NULL, 1, shape + 2);
    assert_int_equal(o.status, ST_USAGE);
    within(o.d.message, "--shape ids: the model");
    within(o.d.hint, "input_ids, labels");
    close_opened(&o);
    ShapeBinding rank = {"labels", 1, {4}};
    o = bound(0, NULL, 1, &rank);
    assert_int_equal(o.status, ST_USAGE);
    within(o.d.message, "1 sizes are given, the input has 2");
    close_opened(&o);
    for (int i = 0; i < 3; i++) {
        DimBinding bad = {"batch", (int64_t[]){0, -1, INT64_MAX}[i]};
        o = bound(1, &bad, 0, NULL);
        assert_int_equal(o.status, ST_USAGE);
        within(o.d.message, "--dim batch");
        close_opened(&o);
    }
}

static void nameless_dimensions(void **state)
{
    (void)state;
    const int64_t open[] = {-2, 3};
    Bytes g = {0};
    put_message(&g, 1, node("n", "Neg", "x", "y"));
    put_message(&g, 11, info("x", 1, 2, open));
    put_message(&g, 12, output("y"));
    Opened o = open_bytes(model_bytes(g, 17));
    assert_int_equal(o.status, ST_USAGE);
    within(o.d.message, "x axis 0");
    within(o.d.hint, "--shape x=8x3");
    close_opened(&o);
}

/* ---- external data ------------------------------------------------------------------------------ */

static char folder[64];

static void put_file(const char *name, const void *data, size_t size)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
}

static Opened external(const char *location, const char *offset, const char *length, bool allow_missing)
{
    Bytes g = {0}, t = {0};
    const char *pair[][2] = {{"location", location}, {"offset", offset}, {"length", length}};
    put_int(&t, 1, 2);
    put_int(&t, 2, 1);
    put_text(&t, 8, "w");
    for (int i = 0; i < 3; i++)
        if (pair[i][1]) {
            Bytes e = {0};
            put_text(&e, 1, pair[i][0]);
            put_text(&e, 2, pair[i][1]);
            put_message(&t, 13, e);
        }
    put_int(&t, 14, 1);
    put_message(&g, 5, t);
    put_message(&g, 12, output("w"));
    Bytes m = model_bytes(g, 17);
    put_file("model.onnx", m.at, m.size);
    free(m.at);
    char path[200];
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    ModelOptions options = {.path = path, .allow_missing_data = allow_missing};
    return open_options(&options);
}

static void external_data(void **state)
{
    (void)state;
    strcpy(folder, P_tmpdir "/ferryc-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    char path[200], other[200];
    snprintf(path, sizeof path, "%s/sub", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    put_file("weights.data", four, 16);
    put_file("sub/weights.data", four, 16);
    snprintf(path, sizeof path, "%s/link.data", folder);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    snprintf(path, sizeof path, "%s/inside.data", folder);
    assert_int_equal(symlink("sub/weights.data", path), 0);
    snprintf(path, sizeof path, "%s/up", folder);
    assert_int_equal(symlink("..", path), 0);
    snprintf(path, sizeof path, "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(other, sizeof other, "up/%s/weights.data", strrchr(folder, '/') + 1);

    static const char *const good[][3] = {{"weights.data", "8", "8"},
                                          {"weights.data", "5", NULL},
                                          {"./sub/weights.data", NULL, NULL},
                                          {"inside.data", NULL, NULL}};
    for (size_t i = 0; i < 4; i++) {
        Opened o = external(good[i][0], good[i][1], good[i][2], false);
        if (o.status != ST_OK)
            fail_msg("%s", o.d.message);
        const Value *w = value_named(o.m, "w");
        assert_memory_equal(w->data, (const uint8_t *)four + (good[i][1] ? atoi(good[i][1]) : 0), 8);
        assert_int_equal((uintptr_t)w->data % 4, 0);
        assert_false(w->data_missing);
        close_opened(&o);
    }
    const char *const bad[][4] = {
        {"/etc/passwd", NULL, NULL, "only files below"},
        {"../weights.data", NULL, NULL, "only files below"},
        {"sub/../weights.data", NULL, NULL, "only files below"},
        {"", NULL, NULL, "only files below"},
        {NULL, NULL, NULL, "no location"},
        {"link.data", NULL, NULL, "leaves the model's folder"},
        {"up/none", NULL, NULL, "missing"},
        {"fifo", NULL, NULL, "not a regular file"},
        {"sub", NULL, NULL, "not a regular file"},
        {"weights.data", "9", NULL, "8 bytes from 9 on are not in"},
        {"weights.data", "9223372036854775807", NULL, "are not in"},
        {"weights.data", "-8", NULL, "offset is \"-8\""},
        {"weights.data", "8x", NULL, "offset is \"8x\""},
        {"weights.data", NULL, "4", "external data has 4 bytes, the shape needs 8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Opened o = external(bad[i][0], bad[i][1], bad[i][2], false);
        if (o.status != ST_MODEL)
            fail_msg("%s: status %d", bad[i][3], o.status);
        within(o.d.message, bad[i][3]);
        close_opened(&o);
    }
    Opened o = external(other, NULL, NULL, false); /* leaves and comes back: the real path is inside */
    assert_int_equal(o.status, ST_OK);
    close_opened(&o);

    o = external("none.data", NULL, NULL, false);
    assert_int_equal(o.status, ST_MODEL);
    within(o.d.message, "external data file \"none.data\" is missing");
    within(o.d.hint, "--random-init SEED");
    close_opened(&o);
    o = external("none.data", NULL, NULL, true);
    assert_int_equal(o.status, ST_OK);
    assert_true(value_named(o.m, "w")->data_missing && !value_named(o.m, "w")->data);
    close_opened(&o);

    const char *const left[] = {"model.onnx", "weights.data", "sub/weights.data", "link.data", "inside.data",
                                "up",         "fifo"};
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, left[i]);
        remove(path);
    }
    snprintf(path, sizeof path, "%s/sub", folder);
    rmdir(path);
    rmdir(folder);
}

static void no_file(void **state)
{
    (void)state;
    ModelOptions options = {.path = ROOT "models/none.onnx"};
    Opened o = open_options(&options);
    assert_int_equal(o.status, ST_USAGE);
    within(o.d.message, "none.onnx");
    close_opened(&o);
    options.path = ROOT "models";
    o = open_options(&options);
    assert_int_equal(o.status, ST_MODEL);
    close_opened(&o);
}

/* The n-th allocation fails, for every n: an error, and nothing is leaked (the address sanitizer looks). */
static void out_of_memory(void **state)
{
    (void)state;
    static DimBinding dim[] = {{"batch", 4}, {"seq", 32}};
    ModelOptions options = {.path = ROOT "models/gpt2/dynamo.onnx", .n_dim = 2, .dim = dim};
    bool done = false;
    for (long n = 1; !done; n++) {
        Arena *a = arena_open();
        Diag d = {.quiet = true};
        Model *m;
        assert_non_null(a);
        base_fail_alloc(n);
        Status status = model_import(&d, a, &options, &m);
        if (status == ST_OK)
            status = model_bind(&d, m, &options);
        if (status == ST_OK)
            status = model_infer(&d, m);
        base_fail_alloc(0);
        done = status == ST_OK;
        if (!done && status != ST_FAILED)
            fail_msg("allocation %ld: status %d, %s", n, status, d.message);
        model_close(m);
        arena_close(a);
        if (n > 200 && !done)
            n += n / 8; /* all early ones, then a sample */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_forms),      cmocka_unit_test(tensor_forms),        cmocka_unit_test(graph_errors),
        cmocka_unit_test(unsupported_list), cmocka_unit_test(tensor_errors),       cmocka_unit_test(attribute_errors),
        cmocka_unit_test(cut_and_damaged),  cmocka_unit_test(hostile_wire),        cmocka_unit_test(hostile_values),
        cmocka_unit_test(binding),          cmocka_unit_test(nameless_dimensions), cmocka_unit_test(external_data),
        cmocka_unit_test(no_file),          cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
