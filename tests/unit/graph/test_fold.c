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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases_23), cmocka_unit_test(cases_12),
                                       cmocka_unit_test(cases_9)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
