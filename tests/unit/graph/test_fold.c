/* Every evaluator and shape rule against ONNX's own operator tests and onnxruntime (tests/data/onnx/make_cases.py). */
#include "model_test.h"

#include <math.h>

static double real_at(const Value *v, int64_t i)
{
    double out;
    float f;
    if (v->dtype == FERRY_F64)
        return ((const double *)v->data)[i];
    if (v->dtype == FERRY_F32)
        return (double)((const float *)v->data)[i];
    assert_int_equal(ferry_convert(&f, FERRY_F32, (const char *)v->data + i * 2, v->dtype, 1), FERRY_OK);
    out = (double)f;
    return out;
}

static bool is_float(ferry_dtype t)
{
    return t == FERRY_F32 || t == FERRY_F64 || t == FERRY_F16 || t == FERRY_BF16;
}

static void compare(const char *name, const Value *got, const Value *want, bool has_fold)
{
    if (got->dtype != want->dtype || got->rank != want->rank)
        fail_msg("%s: type or rank differ", name);
    for (int k = 0; k < got->rank; k++)
        if (got->dim[k] != want->dim[k])
            fail_msg("%s: axis %d is %lld instead of %lld", name, k, (long long)got->dim[k], (long long)want->dim[k]);
    if (!has_fold)
        return;
    if (!got->data)
        fail_msg("%s was not folded", name);
    int64_t count = value_count(want);
    size_t each = ferry_dtype_bytes(want->dtype);
    for (int64_t i = 0; i < count; i++) {
        if (memcmp((const char *)got->data + (size_t)i * each, (const char *)want->data + (size_t)i * each, each) == 0)
            continue;
        if (!is_float(want->dtype))
            fail_msg("%s: element %lld differs", name, (long long)i);
        double a = real_at(got, i), b = real_at(want, i), unit = want->dtype == FERRY_F16 ? 1e-3 : 4e-6;
        if (!(fabs(a - b) <= unit * fabs(b) + 1e-7) && !(isnan(a) && isnan(b)))
            fail_msg("%s: element %lld is %.9g instead of %.9g", name, (long long)i, a, b);
    }
}

static void check_cases(const char *path, int least)
{
    Opened o = open_tiny(path, 0);
    int compared = 0;
    for (int i = 0; i < o.m->node.count; i++) {
        const ModelNode *n = &o.m->node.at[i];
        if (strcmp(n->op, "Constant") == 0)
            continue;
        for (int k = 0; k < n->n_out; k++) {
            char name[300];
            snprintf(name, sizeof name, "%s/expect%d", n->name, k);
            const Value *want = value_named(o.m, name);
            if (n->out[k] < 0 || !want)
                continue;
            compare(name, &o.m->value.at[n->out[k]], want, n->row->fold != NULL);
            compared++;
        }
    }
    if (compared < least)
        fail_msg("%d outputs were compared, %d are in the file", compared, least);
    close_opened(&o);
}

static void cases_23(void **state)
{
    (void)state;
    check_cases(ROOT "data/onnx/cases23.onnx", 396);
}

static void cases_12(void **state)
{
    (void)state;
    check_cases(ROOT "data/onnx/cases12.onnx", 56);
}

static void cases_9(void **state)
{
    (void)state;
    check_cases(ROOT "data/onnx/cases9.onnx", 43);
}

/* ScatterElements of constants: the ONNX text's example, along both axes, and sums at equal places. */
static void scattered(void **state)
{
    (void)state;
    static const int64_t d33[] = {3, 3}, d23[] = {2, 3}, zero[9] = {0}, index[] = {1, 0, 2, 0, 2, 1}, update[] = {10, 11, 12, 20, 21, 22};
    static const int64_t d15[] = {1, 5}, d12[] = {1, 2}, row[] = {1, 2, 3, 4, 5}, at[] = {1, -2}, by[] = {11, 21}, twice[] = {1, 1};
    static const int64_t want[] = {20, 11, 0, 10, 0, 22, 0, 21, 12}, want_row[] = {1, 11, 3, 21, 5}, want_sum[] = {1, 34, 3, 4, 5},
                         want_product[] = {1, 462, 3, 4, 5};
    const struct {
        const int64_t *dim, *data, *index_dim, *index, *update;
        int64_t axis;
        const char *reduction;
        const int64_t *want;
    } cases[] = {
        {d33, zero, d23, index, update, 0, NULL, want},       {d15, row, d12, at, by, 1, NULL, want_row},
        {d15, row, d12, twice, by, -1, "add", want_sum},      {d15, row, d12, twice, by, 1, "mul", want_product},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = (size_t)(cases[i].dim[0] * cases[i].dim[1]), m = (size_t)(cases[i].index_dim[0] * cases[i].index_dim[1]);
        Bytes g = {0}, op = node("n", "ScatterElements", "x,i,u", "y");
        put_message(&op, 5, attr_int("axis", cases[i].axis));
        if (cases[i].reduction) {
            Bytes text = {0};
            put_text(&text, 1, "reduction");
            put_text(&text, 4, cases[i].reduction);
            put_int(&text, 20, 3);
            put_message(&op, 5, text);
        }
        put_message(&g, 1, op);
        put_message(&g, 5, tensor("x", 7, 2, cases[i].dim, cases[i].data, n * 8));
        put_message(&g, 5, tensor("i", 7, 2, cases[i].index_dim, cases[i].index, m * 8));
        put_message(&g, 5, tensor("u", 7, 2, cases[i].index_dim, cases[i].update, m * 8));
        put_message(&g, 12, output("y"));
        Opened o = open_bytes(model_bytes(g, 16));
        if (o.status != ST_OK)
            fail_msg("%s", o.d.message);
        const Value *y = value_named(o.m, "y");
        assert_non_null(y->data);
        assert_memory_equal(y->data, cases[i].want, n * 8);
        close_opened(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases_23), cmocka_unit_test(cases_12),
                                       cmocka_unit_test(scattered),
        cmocka_unit_test(cases_9)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
