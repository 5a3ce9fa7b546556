/* dha.c - what reading weights and writing gradients by DHA costs, beside a load, a store and products in device memory, in
 * f32 and bf16; and AdamW on the CPU. Usage: bench_dha [cuda:N]. Times are medians of 15; the work is enqueued behind other
 * work, so that they are the GPU's and not the caller's.
 *
 * The goal for linear layers: a forward pass by DHA takes at most 1.25 times the longer of load and forward pass in device
 * memory, a gradient written by DHA at most 1.25 times the longer of store and gradient in device memory; 1.5 times for
 * weights below 4 MiB. */
#include "runtime/ferry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 15, MOST_ROWS = 8192, MOST_SIDE = 4096, VOCABULARY = 50257, WIDTH = 768, TOKENS = 4096, PARAMETERS = 64 << 20 };

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != FERRY_OK) {                                                                                      \
            fprintf(stderr, "bench_dha: %s\n", ferry_error());                                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct buffers {
    ferry_device *device;
    ferry_stream *compute, *update;
    ferry_event *begin, *end;
    void *x, *y, *w, *dw, *table, *rows; /* device memory */
    void *host_w, *host_dw, *host_table; /* pinned */
    int64_t *ids;                        /* device memory */
    void *state[5];                      /* pinned: f32 parameters, moments, gradient; the copy in bf16 */
    ferry_dtype t;
    int64_t m, k, n;
    unsigned flags;
} buffers;

static int64_t weight_bytes(const buffers *b)
{
    return b->k * b->n * (int64_t)ferry_dtype_bytes(b->t);
}

static void load_weight(const buffers *b)
{
    OK(ferry_copy_h2d(b->compute, b->w, b->host_w, weight_bytes(b)));
}

static void store_gradient(const buffers *b)
{
    OK(ferry_copy_d2h(b->compute, b->host_dw, b->dw, weight_bytes(b)));
}

static void product(const buffers *b)
{
    OK(ferry_linear(b->compute, b->t, b->y, b->x, b->w, NULL, b->m, b->k, b->n, b->flags));
}

static void product_dha(const buffers *b)
{
    OK(ferry_linear(b->compute, b->t, b->y, b->x, b->host_w, NULL, b->m, b->k, b->n, b->flags));
}

static void product_dx(const buffers *b)
{
    OK(ferry_linear_dx(b->compute, b->t, b->x, b->y, b->w, b->m, b->k, b->n, b->flags));
}

static void product_dx_dha(const buffers *b)
{
    OK(ferry_linear_dx(b->compute, b->t, b->x, b->y, b->host_w, b->m, b->k, b->n, b->flags));
}

static void gradient(const buffers *b)
{
    OK(ferry_linear_dw(b->compute, b->t, b->dw, b->x, b->y, b->m, b->k, b->n, b->flags));
}

static void gradient_dha(const buffers *b)
{
    OK(ferry_linear_dw(b->compute, b->t, b->host_dw, b->x, b->y, b->m, b->k, b->n, b->flags));
}

static int64_t table_bytes(const buffers *b)
{
    return VOCABULARY * (int64_t)WIDTH * (int64_t)ferry_dtype_bytes(b->t);
}

static void load_table(const buffers *b)
{
    OK(ferry_copy_h2d(b->compute, b->table, b->host_table, table_bytes(b)));
}

static void gather(const buffers *b)
{
    OK(ferry_embedding(b->compute, b->t, b->rows, b->table, FERRY_I64, b->ids, TOKENS, VOCABULARY, WIDTH));
}

static void gather_dha(const buffers *b)
{
    OK(ferry_embedding(b->compute, b->t, b->rows, b->host_table, FERRY_I64, b->ids, TOKENS, VOCABULARY, WIDTH));
}

static void table_gradient(const buffers *b)
{
    OK(ferry_embedding_grad(b->compute, b->t, b->table, b->rows, FERRY_I64, b->ids, TOKENS, VOCABULARY, WIDTH, 0));
}

static void table_gradient_dha(const buffers *b)
{
    OK(ferry_embedding_grad(b->compute, b->t, b->host_table, b->rows, FERRY_I64, b->ids, TOKENS, VOCABULARY, WIDTH, 0));
}

static const ferry_adamw_args update = {1e-3, 0.9, 0.999, 1e-8, 0.01, 1};

static void adamw(const buffers *b)
{
    OK(ferry_adamw(b->update, FERRY_F32, b->state[0], b->state[1], b->state[2], b->state[3], NULL, PARAMETERS, update));
}

static void adamw_bf16(const buffers *b)
{
    OK(ferry_adamw_bf16(b->update, b->state[0], b->state[1], b->state[2], b->state[4], b->state[3], NULL, PARAMETERS,
                        update));
}

static void squares_bf16(const buffers *b)
{
    static double sum;
    OK(ferry_sqnorm(b->update, FERRY_BF16, &sum, b->state[3], PARAMETERS));
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Nanoseconds. */
static double measure(const buffers *b, ferry_stream *s, void (*work)(const buffers *))
{
    int64_t ns[ROUNDS];
    for (int i = -2; i < ROUNDS; i++) { /* two to warm up */
        int64_t from, to;
        for (int k = 0; k < 4 && s == b->compute; k++) {
            OK(ferry_linear(s, FERRY_BF16, b->table, b->table, b->table, NULL, 4096, 1024, 4096, 0));
        }
        OK(ferry_event_record(s, b->begin));
        work(b);
        OK(ferry_event_record(s, b->end));
        OK(ferry_event_sync(b->end));
        OK(ferry_event_time_ns(b->begin, &from));
        OK(ferry_event_time_ns(b->end, &to));
        ns[i < 0 ? 0 : i] = to - from;
    }
    qsort(ns, ROUNDS, sizeof(*ns), by_size);
    return (double)ns[ROUNDS / 2];
}

static void show(const buffers *b, const char *name, ferry_stream *s, void (*work)(const buffers *), double amount,
                 const char *unit)
{
    double ns = measure(b, s, work);
    printf("%-44s %8.3f ms  %8.1f %s\n", name, ns * 1e-6, amount / ns, unit);
}

/* One line: microseconds apart and by DHA, and by how much DHA is above the longer of the two. Adds what is not met. */
static void line(const char *name, double link, double alone, double dha, double goal, int *missed)
{
    const double ratio = dha / fmax(link, alone);
    *missed += ratio > goal;
    printf("  %-18s link %7.1f  GPU %7.1f  DHA %7.1f us  ratio %.2f  %s\n", name, link * 1e-3, alone * 1e-3, dha * 1e-3,
           ratio, ratio <= goal ? "met" : "MISSED");
}

static void linear_layers(buffers *b, ferry_dtype t)
{
    static const int64_t sizes[][2] = {{512, 512}, {768, 768}, {1024, 1024}, {768, 3072}, {2048, 2048}};
    int missed = 0, count = 0;
    b->t = t;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        b->k = sizes[i][0];
        b->n = t == FERRY_BF16 ? 2 * sizes[i][1] : sizes[i][1];
        const double goal = weight_bytes(b) >= 4 << 20 ? 1.25 : 1.5;
        double load = measure(b, b->compute, load_weight), store = measure(b, b->compute, store_gradient);
        for (b->m = 512; b->m <= MOST_ROWS; b->m *= 2) {
            printf("%s, %lld rows, weight %lld x %lld, %.2f MiB, goal %.2f\n", ferry_dtype_name(t), (long long)b->m,
                   (long long)b->k, (long long)b->n, (double)weight_bytes(b) / (1 << 20), goal);
            for (b->flags = 0; b->flags <= FERRY_TRANS_B; b->flags += FERRY_TRANS_B) {
                line(b->flags != 0 ? "forward, [n, k]" : "forward, [k, n]", load, measure(b, b->compute, product),
                     measure(b, b->compute, product_dha), goal, &missed);
            }
            b->flags = 0;
            line("dx", load, measure(b, b->compute, product_dx), measure(b, b->compute, product_dx_dha), goal, &missed);
            line("dw", store, measure(b, b->compute, gradient), measure(b, b->compute, gradient_dha), goal, &missed);
            count += 4;
        }
    }
    printf("%s: %d of %d met\n", ferry_dtype_name(t), count - missed, count);
}

static void embeddings(buffers *b, ferry_dtype t)
{
    b->t = t;
    const double table = (double)table_bytes(b), row = WIDTH * (double)ferry_dtype_bytes(t);
    printf("%s embedding, %d tokens of %d x %d\n", ferry_dtype_name(t), TOKENS, VOCABULARY, WIDTH);
    show(b, "load of the table", b->compute, load_table, table, "GB/s");
    show(b, "gather in device memory", b->compute, gather, 2 * TOKENS * row, "GB/s");
    show(b, "gather by DHA", b->compute, gather_dha, TOKENS * row, "GB/s");
    show(b, "gradient of the table in device memory", b->compute, table_gradient, table, "GB/s");
    show(b, "gradient of the table by DHA", b->compute, table_gradient_dha, table, "GB/s");
}

int main(int argc, char **argv)
{
    buffers b = {0};
    ferry_pool *pool;
    const int64_t weight = (int64_t)MOST_SIDE * MOST_SIDE * 4, matrix = (int64_t)MOST_ROWS * 2 * MOST_SIDE * 4;
    const int64_t table = (int64_t)VOCABULARY * WIDTH * 4, rows = (int64_t)TOKENS * WIDTH * 4;
    OK(ferry_device_open(argc > 1 ? argv[1] : "cuda:0", &b.device));
    OK(ferry_stream_open(b.device, FERRY_STREAM_COMPUTE, &b.compute));
    OK(ferry_stream_open(b.device, FERRY_STREAM_UPDATE, &b.update));
    OK(ferry_event_open(b.device, &b.begin));
    OK(ferry_event_open(b.device, &b.end));
    OK(ferry_pool_open(b.device, 2 * matrix + 2 * weight + table + rows + TOKENS * 8, &pool));
    b.x = ferry_pool_at(pool, 0);
    b.y = ferry_pool_at(pool, matrix);
    b.w = ferry_pool_at(pool, 2 * matrix);
    b.dw = ferry_pool_at(pool, 2 * matrix + weight);
    b.table = ferry_pool_at(pool, 2 * matrix + 2 * weight);
    b.rows = ferry_pool_at(pool, 2 * matrix + 2 * weight + table);
    b.ids = ferry_pool_at(pool, 2 * matrix + 2 * weight + table + rows);
    OK(ferry_host_alloc(b.device, weight, &b.host_w));
    OK(ferry_host_alloc(b.device, weight, &b.host_dw));
    OK(ferry_host_alloc(b.device, matrix > table ? matrix : table, &b.host_table));
    for (int i = 0; i < 5; i++) {
        OK(ferry_host_alloc(b.device, (int64_t)PARAMETERS * (i == 4 ? 2 : 4), &b.state[i]));
    }
    /* read as f32 and as bf16: finite numbers in both, whose bits vary */
    OK(ferry_random_normal(b.host_w, FERRY_BF16, weight / 2, 1, "w", 0, 1));
    OK(ferry_random_normal(b.host_table, FERRY_BF16, 1 << 24, 1, "x", 0, 1));
    for (int64_t done = 1 << 25; done < matrix; done += 1 << 25) {
        OK(ferry_copy_h2d(b.compute, (char *)b.x + done, b.host_table, 1 << 25));
        OK(ferry_copy_h2d(b.compute, (char *)b.y + done, b.host_table, 1 << 25));
    }
    OK(ferry_copy_h2d(b.compute, b.x, b.host_table, 1 << 25));
    OK(ferry_copy_h2d(b.compute, b.y, b.host_table, 1 << 25));
    int64_t *ids;
    OK(ferry_host_alloc(b.device, TOKENS * 8, (void **)&ids));
    for (int64_t i = 0; i < TOKENS; i++) {
        ids[i] = i * i * 7919 % VOCABULARY;
    }
    OK(ferry_copy_h2d(b.compute, b.ids, ids, TOKENS * 8));
    OK(ferry_stream_sync(b.compute));

    linear_layers(&b, FERRY_F32);
    linear_layers(&b, FERRY_BF16);
    embeddings(&b, FERRY_F32);
    embeddings(&b, FERRY_BF16);
    printf("on the CPU, 64 Mi parameters\n");
    show(&b, "AdamW, f32", b.update, adamw, (double)PARAMETERS, "Gparam/s");
    show(&b, "AdamW, bf16 with f32 masters", b.update, adamw_bf16, (double)PARAMETERS, "Gparam/s");
    show(&b, "squares of a bf16 gradient", b.update, squares_bf16, (double)PARAMETERS, "Gparam/s");
    printf("scratch beside the pools: %.0f MiB\n", (double)ferry_device_scratch_bytes(b.device) / (1 << 20));
    ferry_event_close(b.begin);
    ferry_event_close(b.end);
    ferry_stream_close(b.compute);
    ferry_stream_close(b.update);
    ferry_host_free(b.device, ids);
    ferry_host_free(b.device, b.host_w);
    ferry_host_free(b.device, b.host_dw);
    ferry_host_free(b.device, b.host_table);
    for (int i = 0; i < 5; i++) {
        ferry_host_free(b.device, b.state[i]);
    }
    ferry_pool_close(pool);
    ferry_device_close(b.device);
    return 0;
}
