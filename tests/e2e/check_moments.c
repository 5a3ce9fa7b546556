/* check_moments A B TOLERANCE - the first moments of two checkpoints: after one step they are the gradients times 1 - beta1.
 * The norm of the difference of each parameter's is at most TOLERANCE times the norm of B's, or of the mean of all of B's
 * where that is larger: a gradient that is 0 in exact arithmetic is nothing but rounding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/ferry.h"

static const float *moment(const ferry_tensor *t)
{
    if (!t || t->dtype != FERRY_F32) {
        fprintf(stderr, "check_moments: a moment is missing or not f32\n");
        exit(1);
    }
    return t->data;
}

int main(int argc, char **argv)
{
    ferry_weights *a, *b;
    if (argc != 4 || ferry_weights_open(argv[1], &a) != FERRY_OK || ferry_weights_open(argv[2], &b) != FERRY_OK) {
        fprintf(stderr, "check_moments: %s\n", argc == 4 ? ferry_error() : "usage: check_moments A B TOLERANCE");
        return 2;
    }
    const double tolerance = strtod(argv[3], NULL);
    double all = 0, worst = 0;
    int count = 0;
    const char *name = "";
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < ferry_weights_count(b); i++) {
            const ferry_tensor *t = ferry_weights_at(b, i);
            if (strncmp(t->name, "optimizer.m.", 12) != 0)
                continue;
            const float *y = moment(t), *x = moment(ferry_weights_find(a, t->name));
            double difference = 0, norm = 0;
            for (int64_t k = 0; k < ferry_tensor_bytes(t) / 4; k++) {
                difference += ((double)x[k] - (double)y[k]) * ((double)x[k] - (double)y[k]);
                norm += (double)y[k] * (double)y[k];
            }
            if (pass == 0) {
                all += sqrt(norm);
                count++;
                continue;
            }
            const double error = sqrt(difference) / fmax(sqrt(norm), all / count);
            if (!(error <= worst)) {
                worst = error;
                name = t->name;
            }
        }
    const int good = count > 0 && worst <= tolerance;
    printf("%d gradients, largest difference by norm %.2e of %s (allowed %.0e)%s\n", count, worst, name, tolerance,
           good ? "" : " FAILED");
    ferry_weights_close(a);
    ferry_weights_close(b);
    return good ? 0 : 1;
}
