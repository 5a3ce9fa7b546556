/* test_onnx_data.c - the operator test data of the ONNX project (Debian package libonnx-testdata) run on the host
 * backend; onnx_cases.h says how it is called and what a list is.
 *
 * A case passes when every output has the type and shape of its file and its values: floating ones within rtol 1e-3 and
 * atol 1e-7, as the data's own runner compares them, all others exactly. */
#include <math.h>
#include <string.h>

#include "graph/exec.h"
#include "graph/fold.h"
#include "tests/onnx/onnx_cases.h"

/* numpy's allclose: |got - want| <= atol + rtol * |want|, equal infinities, NaN where NaN. */
static bool close_enough(double got, double want)
{
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= 1e-7 + 1e-3 * fabs(want);
}

static int compare(const ferry_tensor *got, const Value *want, int k, char *why)
{
    if (got->dtype != want->dtype)
        return case_say(why, "output %d is %s, expected %s", k, ferry_dtype_name(got->dtype),
                        ferry_dtype_name(want->dtype));
    bool same = got->rank == want->rank;
    for (int i = 0; i < want->rank && same; i++)
        same = got->dim[i] == want->dim[i];
    if (!same)
        return case_say(why, "output %d has another shape", k);
    for (int64_t i = 0, n = value_count(want); i < n; i++) {
        if (dtype_is_float(want->dtype)) {
            double a = num_real(got->dtype, got->data, i), b = num_real(want->dtype, want->data, i);
            if (!close_enough(a, b))
                return case_say(why, "output %d, element %lld is %.9g, expected %.9g", k, (long long)i, a, b);
        } else {
            int64_t a = num_int(got->dtype, got->data, i), b = num_int(want->dtype, want->data, i);
            if (a != b)
                return case_say(why, "output %d, element %lld is %lld, expected %lld", k, (long long)i, (long long)a,
                                (long long)b);
        }
    }
    return CASE_PASSED;
}

static int run_outputs(Diag *d, Arena *a, const Graph *g, const char *set, char *why)
{
    Model names = {.arena = a, .path = set};
    ferry_tensor *out = ARENA_NEW(a, ferry_tensor, g->n_output);
    if (out == NULL || graph_execute(d, a, g, out) != ST_OK)
        return case_say(why, "%s", d->message);
    for (int i = 0; i < g->n_output; i++) {
        Value want = {0};
        if (case_tensor(d, &names, arena_printf(a, "%s/output_%d.pb", set, i), &want) != ST_OK)
            return case_say(why, "%s", d->message);
        want.dtype = case_bits_type(&want, out[i].dtype);
        if (compare(&out[i], &want, i, why) != CASE_PASSED)
            return CASE_FAILED;
    }
    return CASE_PASSED;
}

static int run_set(Arena *a, const char *model_path, const char *set, char *why)
{
    Diag d = {.quiet = true};
    ModelOptions options = {.path = model_path, .precision = FERRY_DTYPE_COUNT};
    Model *m;
    Graph *g;
    int n_feed;
    /* a first import tells the names of the inputs */
    if (model_import(&d, a, &options, &m) != ST_OK)
        return case_say(why, "%s", d.message);
    ferry_tensor *feed = ARENA_NEW(a, ferry_tensor, m->n_input);
    int result = feed != NULL ? case_inputs(a, m, set, feed, &n_feed, why) : case_say(why, "out of memory");
    model_close(m);
    if (result != CASE_PASSED)
        return result;
    if (forward_from_options(&d, a, &options, n_feed, feed, &m, &g) != ST_OK)
        return case_say(why, "%s", d.message);
    result = run_outputs(&d, a, g, set, why);
    graph_close(g);
    model_close(m);
    return result;
}

int main(int argc, char **argv)
{
    return cases_main(argc, argv, run_set);
}
