/* Gradients of values that are used more than once - by one node, by several, through views and ties - and of nodes
 * some of whose outputs nobody uses. */
#include "tests/unit/graph/onnx_make.h"

enum { ROUNDS = 20 };

static void rounds(int count, uint64_t salt, void (*one)(Onnx *o))
{
    for (int i = 0; i < count; i++) {
        Onnx o;
        onnx_open(&o, salt * 1000 + (uint64_t)i);
        one(&o);
        onnx_check(&o);
    }
}

/* A value of the shape: a parameter, a value computed from one, or a view of either. */
static const char *value_in(Onnx *o, Shape s, double from, double to)
{
    const char *x = param_in(o, s, from, to);
    if (chance(o, 2))
        x = unary(o, from > 0 ? "Sqrt" : "Atan", x);
    const int64_t flat = -1;
    return chance(o, 3) ? reshape(o, binary(o, "Reshape", x, list(o, 1, &flat)), s) : x;
}

static const char *value(Onnx *o, Shape s)
{
    return value_in(o, s, -1.5, 1.5);
}

/* One of the names, or a view of it: another name for the same bytes. */
static const char *again(Onnx *o, const char *x, Shape s)
{
    return chance(o, 2) ? x : reshape(o, x, s);
}

/* ---- a value twice in one node
 * --------------------------------------------------------------------------------------- */

static void twice_elementwise(Onnx *o)
{
    static const char *const op[] = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"};
    Shape s = pick_shape(o, 1, 3);
    const char *x = value_in(o, s, 0.4, 1.8), *name = op[pick(o, 0, 6)];
    /* Max and Min of equal operands: whichever of the two gets the gradient, x does */
    out_(o, binary(o, name, x, again(o, x, s)));
    if (chance(o, 2))
        out_(o, x);
}

static void twice_variadic(Onnx *o)
{
    static const char *const op[] = {"Sum", "Mean", "Max", "Min"};
    Shape s = pick_shape(o, 1, 3);
    const char *x = value(o, s), *y = value(o, s);
    out_(o, APPLY(o, op[pick(o, 0, 3)], 0, NULL, "%s,%s,%s,%s", x, y, x, again(o, x, s)));
}

static void twice_product(Onnx *o)
{
    int64_t n = pick(o, 1, 4);
    Shape s = chance(o, 2) ? shape2(n, n) : shape3(pick(o, 1, 3), n, n);
    const char *x = value(o, s);
    if (s.rank == 2 && chance(o, 2)) {
        Bytes attr[] = {attr_int("transA", pick(o, 0, 1)), attr_int("transB", pick(o, 0, 1))};
        out_(o, APPLY(o, "Gemm", 2, attr, "%s,%s,%s", x, again(o, x, s), x));
        return;
    }
    out_(o, binary(o, "MatMul", x, again(o, x, s)));
}

static void twice_einsum(Onnx *o)
{
    static const char *const equation[] = {"ij,jk->ik", "ij,kj->ik", "ij,ij->i", "ij,ij->", "ij,ji->ij", "ij,kl->ijkl"};
    int64_t n = pick(o, 1, 3);
    const char *x = value(o, shape2(n, n));
    Bytes attr = attr_text("equation", equation[pick(o, 0, 5)]);
    out_(o, APPLY(o, "Einsum", 1, &attr, "%s,%s", x, x));
}

static void twice_moved(Onnx *o)
{
    Shape s = pick_shape(o, 1, 3);
    const char *x = value(o, s);
    Bytes attr = attr_int("axis", pick_axis(o, s.rank));
    out_(o, APPLY(o, "Concat", 1, &attr, "%s,%s,%s", x, again(o, x, s), x));
    out_(o, APPLY(o, "Where", 0, NULL, "%s,%s,%s", flags(o, s), x, again(o, x, s)));
    if (chance(o, 2))
        out_(o, binary(o, "PRelu", x, x));
}

/* Values and what replaces them, or is added to them, are the same. */
static void twice_scattered(Onnx *o)
{
    static const char *const how[] = {"none", "add", "mul"};
    int64_t rows = pick(o, 1, 4), inner = pick(o, 1, 3), at[4], first = pick(o, 0, rows - 1);
    for (int64_t k = 0; k < rows; k++)
        at[k] = (first + k) % rows;
    o->opset = 18;
    Shape s = shape2(rows, inner);
    const char *x = value(o, s), *ids = whole(o, shape2(rows, 1), at);
    Bytes attr = attr_text("reduction", how[pick(o, 0, 2)]);
    out_(o, APPLY(o, "ScatterND", 1, &attr, "%s,%s,%s", x, ids, again(o, x, s)));
}

/* Input and kernel of a convolution, scale and bias of a normalization, all three of an attention. */
static void twice_nn(Onnx *o)
{
    int kind = (int)pick(o, 0, 3);
    if (kind == 0) {
        int64_t n = pick(o, 1, 3);
        Shape s = shape3(n, n, pick(o, 2, 3));
        const int64_t pads[] = {1, 1};
        Bytes attr = attr_ints("pads", 2, pads);
        const char *x = value(o, s);
        out_(o, APPLY(o, chance(o, 2) ? "Conv" : "ConvTranspose", 1, &attr, "%s,%s", x, again(o, x, s)));
    } else if (kind == 1) {
        Shape s = pick_shape(o, 2, 3), c = {1, {s.dim[s.rank - 1]}};
        const char *x = value(o, s), *scale = value(o, c);
        out_(o, APPLY(o, "LayerNormalization", 0, NULL, "%s,%s,%s", x, scale, again(o, scale, c)));
    } else if (kind == 2) {
        int64_t n = pick(o, 1, 3);
        Shape s = {1, {n}};
        const char *x = value(o, s); /* the value normalized scales itself */
        out_(o, APPLY(o, "LayerNormalization", 0, NULL, "%s,%s,%s", x, x, x));
    } else {
        o->opset = 23;
        Shape s = shape4(pick(o, 1, 2), pick(o, 1, 2), pick(o, 1, 3), 2);
        const char *x = value(o, s);
        out_(o, APPLY(o, "Attention", 0, NULL, "%s,%s,%s", x, again(o, x, s), x));
    }
}

/* ---- second uses
 * ----------------------------------------------------------------------------------------------------- */

/* A value that several nodes of different kinds read, in parts, in views and whole; sums share the bytes of gradients.
 */
static void many_readers(Onnx *o)
{
    int64_t n = pick(o, 1, 4), k = pick(o, 2, 4);
    Shape s = shape2(n, k);
    const char *x = value(o, s), *sum = x;
    for (int i = 0, count = (int)pick(o, 2, 6); i < count; i++) {
        const char *y = again(o, x, s);
        int64_t start = pick(o, 0, k - 1), end = pick(o, start + 1, k), axis = 1, perm[] = {1, 0};
        Bytes attr;
        switch (pick(o, 0, 7)) {
        case 0:
            sum = binary(o, "Add", sum, y);
            break;
        case 1:
            sum = binary(o, "Sub", y, sum);
            break;
        case 2:
            sum = binary(o, "Mul", sum, y);
            break;
        case 3: {
            const char *from = list(o, 1, &start), *to = list(o, 1, &end);
            out_(o, APPLY(o, "Slice", 0, NULL, "%s,%s,%s,%s", y, from, to, list(o, 1, &axis)));
            break;
        }
        case 4:
            attr = attr_ints("perm", 2, perm);
            out_(o, apply_(o, "Transpose", 1, &attr, y));
            break;
        case 5:
            sum = binary(o, "Add", unary(o, "Tanh", y), sum);
            break;
        case 6:
            out_(o, y);
            break;
        default:
            attr = attr_int("axis", 1);
            sum = binary(o, "Add", sum, apply_(o, "Softmax", 1, &attr, y));
        }
    }
    out_(o, sum);
}

/* The parts of a Split: used twice, once or not at all. */
static void split_parts(Onnx *o)
{
    Shape s = pick_shape(o, 1, 3);
    int64_t axis = pick_axis(o, s.rank), part[4], total = 0;
    int count = (int)pick(o, 1, 4), used = (int)pick(o, 0, count - 1);
    char in[64], out[128] = "", names[4][16];
    for (int i = 0; i < count; i++)
        total += part[i] = pick(o, 1, 2);
    s.dim[whole_axis(axis, s.rank)] = total;
    const char *x = value(o, s);
    snprintf(in, sizeof(in), "%s,%s", x, list(o, count, part));
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof(names[i]), "%s", fresh(o, "v"));
        snprintf(out + strlen(out), sizeof(out) - strlen(out), "%s%s", i ? "," : "", names[i]);
    }
    Bytes attr = attr_int("axis", axis);
    add_node(o, "Split", in, out, 1, &attr);
    for (int i = 0; i < count; i++) {
        int how = i == used ? 1 : (int)pick(o, 0, 3);
        if (how == 1 || how == 2)
            out_(o, unary(o, how == 1 ? "Erf" : "Identity", names[i]));
        if (how == 2 || how == 3)
            out_(o, binary(o, "Mul", names[i], names[i]));
    }
    if (chance(o, 3))
        out_(o, unary(o, "Sinh", x));
}

/* ---- outputs that nobody uses
 * ---------------------------------------------------------------------------------------- */

/* Each with its further outputs named, left out, or an output of the graph. */
static void further_outputs(Onnx *o)
{
    int kind = (int)pick(o, 0, 4);
    const char *y = fresh(o, "v"), *second = chance(o, 3) ? "" : fresh(o, "v"), *third = "";
    Shape s = kind == 1 ? shape4(pick(o, 1, 2), pick(o, 1, 2), 4, 4) : pick_shape(o, 2, 3);
    const char *x = value(o, s);
    char in[80], out[80];
    Bytes attr[2];
    int n_attr = 0;
    snprintf(in, sizeof(in), "%s", x);
    if (kind == 0) { /* mask */
        add_node(o, "Dropout", in, second[0] ? (snprintf(out, sizeof(out), "%s,%s", y, second), out) : y, 0, NULL);
        out_(o, y);
        return;
    }
    if (kind == 1) { /* places of the maxima */
        const int64_t size[] = {2, 2};
        attr[n_attr++] = attr_ints("kernel_shape", 2, size);
    } else if (kind == 2) { /* mean and reciprocal deviation */
        Shape c = {1, {s.dim[s.rank - 1]}};
        const char *scale = value(o, c);
        snprintf(in, sizeof(in), "%s,%s,%s", x, scale, value(o, c));
        third = chance(o, 2) ? "" : fresh(o, "v");
    } else if (kind == 3) { /* places of the largest */
        const int64_t one = 1;
        snprintf(in, sizeof(in), "%s,%s", x, list(o, 1, &one));
    } else { /* logarithms of the probabilities */
        int64_t classes = pick(o, 2, 4), rows = pick(o, 1, 3), label[3];
        for (int i = 0; i < rows; i++)
            label[i] = pick(o, 0, classes - 1);
        o->n_param = 0;
        free(o->graph.at);
        o->graph = (Bytes){0};
        x = value(o, shape2(rows, classes));
        snprintf(in, sizeof(in), "%s,%s", x, whole(o, (Shape){1, {rows}}, label));
        attr[n_attr++] = attr_text("reduction", chance(o, 2) ? "mean" : "sum");
        if (second[0] && chance(o, 2))
            out_(o, second);
    }
    static const char *const op[] = {"", "MaxPool", "LayerNormalization", "TopK", "SoftmaxCrossEntropyLoss"};
    snprintf(out, sizeof(out), "%s%s%s%s%s", y, second[0] || third[0] ? "," : "", second, third[0] ? "," : "", third);
    add_node(o, op[kind], in, out, n_attr, attr);
    out_(o, y);
}

/* Rows that are masked as a whole are NaN after the softmax; a Where puts a 0 in their place. */
static void masked_rows(Onnx *o)
{
    Shape s = shape2(pick(o, 2, 4), pick(o, 1, 4)), row = shape2(s.dim[0], 1);
    const double minus_infinity = -INFINITY, nothing = 0;
    const char *sees = flags(o, row), *x = value(o, s), *none = fresh(o, "c"), *zero = fresh(o, "c");
    put_message(&o->graph, 5, tensor(none, 11, 0, NULL, &minus_infinity, sizeof(double)));
    put_message(&o->graph, 5, tensor(zero, 11, 0, NULL, &nothing, sizeof(double)));
    Bytes attr = attr_int("axis", -1);
    const char *scores = APPLY(o, "Where", 0, NULL, "%s,%s,%s", sees, x, none);
    const char *y = apply_(o, "Softmax", 1, &attr, scores);
    if (chance(o, 2))
        out_(o, APPLY(o, "Where", 0, NULL, "%s,%s,%s", unary(o, "IsNaN", y), zero, y));
    else
        out_(o, APPLY(o, "Where", 0, NULL, "%s,%s,%s", sees, y, zero));
    out_(o, x);
}

/* ---- views and ties of parameters
 * ------------------------------------------------------------------------------------ */

/* One matrix, read as it is and transposed, by products, by a lookup and through views. */
static void tied_matrix(Onnx *o)
{
    int64_t n = pick(o, 2, 4), k = pick(o, 2, 3), at[3];
    const int64_t perm[] = {1, 0};
    const char *w = param(o, shape2(n, k));
    for (int i = 0; i < 3; i++)
        at[i] = pick(o, 0, n - 1);
    const char *rows = binary(o, "Gather", w, whole(o, (Shape){1, {3}}, at)); /* [3, k] */
    Bytes attr = attr_ints("perm", 2, perm);
    if (chance(o, 2))
        rows = binary(o, "MatMul", rows, apply_(o, "Transpose", 1, &attr, w)); /* [3, n] */
    else {
        free(attr.at);
        attr = attr_int("transB", 1);
        rows = APPLY(o, "Gemm", 1, &attr, "%s,%s", rows, w);
    }
    out_(o, chance(o, 2) ? rows : binary(o, "MatMul", rows, w));
    if (chance(o, 2))
        out_(o, binary(o, "MatMul", param(o, shape2(2, n)), reshape(o, w, shape2(n, k))));
    if (chance(o, 2))
        out_(o, reshape(o, w, shape3(n, 1, k)));
    if (chance(o, 2))
        out_(o, binary(o, "MatMul", param(o, shape2(2, k)), reshape(o, w, shape2(k, n)))); /* not its transpose */
}

/* Two initializers of the same values, the second one perhaps stored transposed: one parameter after tying. */
static void test_tied_initializers(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        Onnx onnx, *o = &onnx;
        onnx_open(o, 9000 + seed);
        int64_t n = 4, k = 3, at[] = {3, 0, 3};
        bool transposed = seed % 2 == 1;
        double w[12], wt[12];
        for (int i = 0; i < 12; i++)
            w[i] = make_real(&o->make, -1.5, 1.5);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < k; j++)
                wt[j * n + i] = w[i * k + j];
        const int64_t dim[] = {n, k}, dim_t[] = {k, n};
        put_message(&o->graph, 5, tensor("first", 11, 2, dim, w, sizeof(w)));
        put_message(&o->graph, 5, tensor("second", 11, 2, transposed ? dim_t : dim, transposed ? wt : w, sizeof(w)));
        const char *rows = binary(o, "Gather", "first", whole(o, (Shape){1, {3}}, at));
        if (seed % 4 < 2)
            rows = unary(o, "Tanh", rows);
        Bytes attr = attr_int("transB", !transposed);
        if (transposed && seed % 8 < 4) {
            free(attr.at);
            out_(o, binary(o, "MatMul", rows, "second"));
        } else {
            out_(o, APPLY(o, "Gemm", 1, &attr, "%s,second", rows));
        }
        Opened opened = onnx_lower(o);
        Make *m = &o->make;
        ModelOptions options = {.precision = FERRY_F64};
        OK(graph_tie(&m->d, m->g, &options));
        assert_int_equal(m->g->n_param, 1);
        make_check_gradients(m);
        graph_close(m->g);
        close_opened(&opened);
    }
}

#define TEST(name, count, salt)                                                                                        \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        rounds((count)*ROUNDS, salt, name);                                                                            \
    }

TEST(twice_elementwise, 3, 1)
TEST(twice_variadic, 1, 2)
TEST(twice_product, 2, 3)
TEST(twice_einsum, 1, 4)
TEST(twice_moved, 1, 5)
TEST(twice_scattered, 1, 6)
TEST(twice_nn, 3, 7)
TEST(many_readers, 6, 8)
TEST(split_parts, 4, 9)
TEST(further_outputs, 4, 10)
TEST(tied_matrix, 3, 11)
TEST(masked_rows, 1, 12)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twice_elementwise), cmocka_unit_test(test_twice_variadic),
        cmocka_unit_test(test_twice_product),     cmocka_unit_test(test_twice_einsum),
        cmocka_unit_test(test_twice_moved),       cmocka_unit_test(test_twice_scattered),
        cmocka_unit_test(test_twice_nn),          cmocka_unit_test(test_many_readers),
        cmocka_unit_test(test_split_parts),       cmocka_unit_test(test_further_outputs),
        cmocka_unit_test(test_masked_rows),       cmocka_unit_test(test_tied_matrix),
        cmocka_unit_test(test_tied_initializers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
