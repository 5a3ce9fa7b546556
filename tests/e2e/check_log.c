/* check_log RUN.jsonl REFERENCE.json KEY TOLERANCE - every loss and gradient norm of a run against a reference trajectory:
 * relative error at most TOLERANCE. Prints the largest errors. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double worst(json_t *reference, const char *name, size_t step, double got)
{
    json_t *list = json_object_get(reference, name);
    if (step >= json_array_size(list)) {
        fprintf(stderr, "check_log: the reference has no %s of step %zu\n", name, step + 1);
        exit(1);
    }
    const double want = json_real_value(json_array_get(list, step));
    return fabs(got - want) / fabs(want);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    FILE *run = fopen(argv[1], "r");
    json_t *file = json_load_file(argv[2], 0, NULL);
    json_t *reference = json_object_get(file, argv[3]);
    const double tolerance = strtod(argv[4], NULL);
    if (!run || !reference) {
        fprintf(stderr, "check_log: cannot read %s or %s of %s\n", argv[1], argv[3], argv[2]);
        return 1;
    }
    char line[4096];
    size_t step = 0;
    double loss = 0, norm = 0;
    for (; fgets(line, sizeof line, run); step++) {
        json_t *entry = json_loads(line, 0, NULL);
        const double a = worst(reference, "loss", step, json_number_value(json_object_get(entry, "loss")));
        const double b = worst(reference, "grad_norm", step, json_number_value(json_object_get(entry, "grad_norm")));
        loss = !(a <= loss) ? a : loss;
        norm = !(b <= norm) ? b : norm;
        json_decref(entry);
    }
    const int good = step == json_array_size(json_object_get(reference, "loss")) && loss <= tolerance && norm <= tolerance;
    printf("%s: %zu steps, largest relative error: loss %.2e, gradient norm %.2e (allowed %.0e)%s\n", argv[1], step, loss, norm,
           tolerance, good ? "" : " FAILED");
    json_decref(file);
    fclose(run);
    return good ? 0 : 1;
}
