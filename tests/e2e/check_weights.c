/* check_weights FILE.safetensors REFERENCE.json KEY TOLERANCE - tensors of a file against the lists of numbers under
 * KEY.statistics: of each tensor the largest error is at most TOLERANCE of the largest number. Prints the largest. */
#include "runtime/ferry.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* -1: the tensor is missing or has another size. */
static double worst(const ferry_tensor *t, const json_t *want)
{
    const size_t count = json_array_size(want);
    double error = 0, largest = 0;
    double *got = calloc(count + 1, sizeof *got);
    if (!t || !got || ferry_tensor_bytes(t) != (int64_t)(count * ferry_dtype_bytes(t->dtype)) ||
        ferry_convert(got, FERRY_F64, t->data, t->dtype, (int64_t)count) != FERRY_OK) {
        free(got);
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        const double value = json_number_value(json_array_get(want, i)), off = fabs(got[i] - value);
        error = !(off <= error) ? off : error;
        largest = fabs(value) > largest ? fabs(value) : largest;
    }
    free(got);
    return error / largest;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    json_t *file = json_load_file(argv[2], 0, NULL), *want, *reference;
    reference = json_object_get(json_object_get(file, argv[3]), "statistics");
    ferry_weights *weights = NULL;
    if (ferry_weights_open(argv[1], &weights) != FERRY_OK || json_object_size(reference) == 0) {
        fprintf(stderr, "check_weights: cannot read %s or %s of %s: %s\n", argv[1], argv[3], argv[2], ferry_error());
        return 1;
    }
    const double tolerance = strtod(argv[4], NULL);
    double most = 0;
    int wrong = 0;
    const char *name;
    json_object_foreach(reference, name, want)
    {
        const double error = worst(ferry_weights_find(weights, name), want);
        const int bad = !(error >= 0 && error <= tolerance);
        if (bad)
            fprintf(stderr, "check_weights: %s: %s is off by %.2e of its largest\n", argv[1], name, error);
        wrong += bad;
        most = error > most ? error : most;
    }
    printf("%s: %zu tensors, largest error %.2e of the tensor's largest number (allowed %.0e)%s\n", argv[1],
           json_object_size(reference), most, tolerance, wrong ? " FAILED" : "");
    ferry_weights_close(weights);
    json_decref(file);
    return wrong > 0;
}
