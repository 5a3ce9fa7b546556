/* own_trainer - a trainer of one's own on an emitted schedule: warm-up and cosine decay of the learning rate, one batch made
 * in memory. Build it beside a schedule of GPT-2 with batch 8 x 64 (see scripts/demo.sh):
 *
 *     cc -I schedule own_trainer.c schedule/schedule.c $(pkg-config --cflags --libs ferry)
 */
#include "schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int64_t ids[8 * 64], labels[8 * 64];

/* Rows of a text that counts: each label is the next id. */
static void next_batch(int64_t step)
{
    for (int row = 0; row < 8; row++)
        for (int i = 0; i < 64; i++) {
            ids[row * 64 + i] = (step * 8 + row + i) % 64;
            labels[row * 64 + i] = (step * 8 + row + i + 1) % 64;
        }
}

static double learning_rate(int64_t step, int64_t steps)
{
    const double peak = 3e-3, warmup = 10;
    if (step < warmup)
        return peak * (double)(step + 1) / warmup;
    return 0.5 * peak * (1 + cos(3.14159265358979 * ((double)step - warmup) / ((double)steps - warmup)));
}

static int fail(const char *what)
{
    fprintf(stderr, "own_trainer: %s: %s\n", what, ferry_error());
    return 1;
}

int main(int argc, char **argv)
{
    const int64_t steps = argc > 2 ? atoll(argv[2]) : 100;
    schedule *s = NULL;
    if (schedule_open("host", argc > 1 ? argv[1] : "schedule", &s) != FERRY_OK)
        return fail("open");
    if (schedule_init(s, NULL) != FERRY_OK)
        return fail("weights");
    for (int64_t step = 0; step < steps; step++) {
        next_batch(step);
        const schedule_inputs in = {.input_ids = ids, .labels = labels};
        const schedule_hyper hyper = {learning_rate(step, steps), 0.9, 0.999, 1e-8, 0.01, 0, 0};
        if (schedule_step(s, &in, &hyper) != FERRY_OK)
            return fail("step");
        const schedule_result r = schedule_last(s); /* of the step before: this one is still running */
        if (r.step && r.step % 10 == 0)
            printf("step %lld loss %.4f\n", (long long)r.step, r.loss);
    }
    if (schedule_sync(s) != FERRY_OK)
        return fail("sync");
    printf("step %lld loss %.4f\n", (long long)schedule_last(s).step, schedule_last(s).loss);
    schedule_close(s);
    return 0;
}
