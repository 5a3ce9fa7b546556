/* dha.c - what reading weights and writing gradients by DHA costs, beside a load and a product in device memory.
 * Usage: bench_dha [cuda:N]. Times are medians of 20. */
#include "runtime/ferry.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 20, M = 4096, K = 1024, N = 4096, VOCABULARY = 50257, WIDTH = 768, PARAMETERS = 64 << 20 };

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != FERRY_OK) {                                                                                      \
            fprintf(stderr, "bench_dha: %s\n", ferry_error());                                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct buffers {
    ferry_stream *compute, *load, *store, *update;
    float *x, *y, *w, *dw, *table, *rows; /* device memory */
    float *host_w, *host_dw, *host_table; /* pinned */
    int64_t *ids;                         /* device memory */
    float *state[4];                      /* pinned */
} buffers;

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void load_weight(const buffers *b)
{
    OK(ferry_copy_h2d(b->compute, b->w, b->host_w, (int64_t)K * N * 4));
}

static void store_gradient(const buffers *b)
{
    OK(ferry_copy_d2h(b->compute, b->host_dw, b->dw, (int64_t)K * N * 4));
}

static void product(const buffers *b)
{
    OK(ferry_linear(b->compute, FERRY_F32, b->y, b->x, b->w, NULL, M, K, N, 0));
}

static void product_dha(const buffers *b)
{
    OK(ferry_linear(b->compute, FERRY_F32, b->y, b->x, b->host_w, NULL, M, K, N, 0));
}

static void product_dha_turned(const buffers *b)
{
    OK(ferry_linear(b->compute, FERRY_F32, b->y, b->x, b->host_w, NULL, M, K, N, FERRY_TRANS_B));
}

static void product_dx_dha(const buffers *b)
{
    OK(ferry_linear_dx(b->compute, FERRY_F32, b->x, b->y, b->host_w, M, K, N, 0));
}

static void gradient(const buffers *b)
{
    OK(ferry_linear_dw(b->compute, FERRY_F32, b->dw, b->x, b->y, M, K, N, 0));
}

static void gradient_dha(const buffers *b)
{
    OK(ferry_linear_dw(b->compute, FERRY_F32, b->host_dw, b->x, b->y, M, K, N, 0));
}

static void load_table(const buffers *b)
{
    OK(ferry_copy_h2d(b->compute, b->table, b->host_table, (int64_t)VOCABULARY * WIDTH * 4));
}

static void gather(const buffers *b)
{
    OK(ferry_embedding(b->compute, FERRY_F32, b->rows, b->table, FERRY_I64, b->ids, M, VOCABULARY, WIDTH));
}

static void gather_dha(const buffers *b)
{
    OK(ferry_embedding(b->compute, FERRY_F32, b->rows, b->host_table, FERRY_I64, b->ids, M, VOCABULARY, WIDTH));
}

static void table_gradient(const buffers *b)
{
    OK(ferry_embedding_grad(b->compute, FERRY_F32, b->table, b->rows, FERRY_I64, b->ids, M, VOCABULARY, WIDTH, 0));
}

static void table_gradient_dha(const buffers *b)
{
    OK(ferry_embedding_grad(b->compute, FERRY_F32, b->host_table, b->rows, FERRY_I64, b->ids, M, VOCABULARY, WIDTH, 0));
}

static void adamw(const buffers *b)
{
    const ferry_adamw_args args = {1e-3, 0.9, 0.999, 1e-8, 0.01, 1};
    OK(ferry_adamw(b->update, FERRY_F32, b->state[0], b->state[1], b->state[2], b->state[3], NULL, PARAMETERS, args));
}

static void measure(ferry_device *d, const buffers *b, const char *name, ferry_stream *s, void (*work)(const buffers *),
                    double amount, const char *unit)
{
    ferry_event *begin, *end;
    int64_t ns[ROUNDS];
    OK(ferry_event_open(d, &begin));
    OK(ferry_event_open(d, &end));
    for (int i = -2; i < ROUNDS; i++) { /* two to warm up */
        int64_t from, to;
        OK(ferry_event_record(s, begin));
        work(b);
        OK(ferry_event_record(s, end));
        OK(ferry_event_sync(end));
        OK(ferry_event_time_ns(begin, &from));
        OK(ferry_event_time_ns(end, &to));
        ns[i < 0 ? 0 : i] = to - from;
    }
    qsort(ns, ROUNDS, sizeof(*ns), by_size);
    printf("%-44s %8.3f ms  %8.1f %s\n", name, (double)ns[ROUNDS / 2] * 1e-6, amount / (double)ns[ROUNDS / 2], unit);
    ferry_event_close(begin);
    ferry_event_close(end);
}

int main(int argc, char **argv)
{
    ferry_device *d;
    ferry_pool *pool;
    buffers b;
    const int64_t weight = (int64_t)K * N * 4, table = (int64_t)VOCABULARY * WIDTH * 4, mn = (int64_t)M * N * 4;
    OK(ferry_device_open(argc > 1 ? argv[1] : "cuda:0", &d));
    OK(ferry_stream_open(d, FERRY_STREAM_COMPUTE, &b.compute));
    OK(ferry_stream_open(d, FERRY_STREAM_UPDATE, &b.update));
    OK(ferry_pool_open(d, 2 * mn + 2 * weight + 2 * table, &pool));
    b.x = ferry_pool_at(pool, 0);
    b.y = ferry_pool_at(pool, mn);
    b.w = ferry_pool_at(pool, 2 * mn);
    b.dw = ferry_pool_at(pool, 2 * mn + weight);
    b.table = ferry_pool_at(pool, 2 * mn + 2 * weight);
    b.rows = ferry_pool_at(pool, 2 * mn + 2 * weight + table);
    b.ids = ferry_pool_at(pool, 2 * mn + 2 * weight + table + (int64_t)M * WIDTH * 4);
    OK(ferry_host_alloc(d, weight, (void **)&b.host_w));
    OK(ferry_host_alloc(d, weight, (void **)&b.host_dw));
    OK(ferry_host_alloc(d, table, (void **)&b.host_table));
    for (int i = 0; i < 4; i++) {
        OK(ferry_host_alloc(d, (int64_t)PARAMETERS * 4, (void **)&b.state[i]));
    }
    OK(ferry_random_normal(b.host_w, FERRY_F32, K * N, 1, "w", 0, 1));
    OK(ferry_random_normal(b.host_table, FERRY_F32, (int64_t)M * N, 1, "x", 0, 1));
    OK(ferry_copy_h2d(b.compute, b.x, b.host_table, (int64_t)M * K * 4));
    OK(ferry_copy_h2d(b.compute, b.y, b.host_table, mn));
    int64_t *ids;
    OK(ferry_host_alloc(d, M * 8, (void **)&ids));
    for (int64_t i = 0; i < M; i++) {
        ids[i] = i * i * 7919 % VOCABULARY;
    }
    OK(ferry_copy_h2d(b.compute, b.ids, ids, M * 8));
    OK(ferry_stream_sync(b.compute));

    const double flop = 2.0 * M * K * N;
    printf("f32, M %d, K %d, N %d\n", M, K, N);
    measure(d, &b, "load of the weight", b.compute, load_weight, (double)weight, "GB/s");
    measure(d, &b, "product, weight in device memory", b.compute, product, flop * 1e-3, "TFLOP/s");
    measure(d, &b, "product, weight by DHA", b.compute, product_dha, (double)weight, "GB/s");
    measure(d, &b, "product, weight [n, k] by DHA", b.compute, product_dha_turned, (double)weight, "GB/s");
    measure(d, &b, "gradient of x, weight by DHA", b.compute, product_dx_dha, (double)weight, "GB/s");
    measure(d, &b, "gradient of w in device memory", b.compute, gradient, flop * 1e-3, "TFLOP/s");
    measure(d, &b, "store of the gradient", b.compute, store_gradient, (double)weight, "GB/s");
    measure(d, &b, "gradient of w by DHA", b.compute, gradient_dha, (double)weight, "GB/s");
    printf("embedding, %d tokens of %d x %d\n", M, VOCABULARY, WIDTH);
    measure(d, &b, "load of the table", b.compute, load_table, (double)table, "GB/s");
    measure(d, &b, "gather in device memory", b.compute, gather, 2.0 * M * WIDTH * 4, "GB/s");
    measure(d, &b, "gather by DHA", b.compute, gather_dha, 1.0 * M * WIDTH * 4, "GB/s");
    measure(d, &b, "gradient of the table in device memory", b.compute, table_gradient, (double)table, "GB/s");
    measure(d, &b, "gradient of the table by DHA", b.compute, table_gradient_dha, (double)table, "GB/s");
    printf("AdamW on the CPU\n");
    measure(d, &b, "64 Mi parameters", b.update, adamw, (double)PARAMETERS, "Gparam/s");
    printf("scratch beside the pools: %.0f MiB\n", (double)ferry_device_scratch_bytes(d) / (1 << 20));
    ferry_stream_close(b.compute);
    ferry_stream_close(b.update);
    ferry_host_free(d, ids);
    ferry_host_free(d, b.host_w);
    ferry_host_free(d, b.host_dw);
    ferry_host_free(d, b.host_table);
    for (int i = 0; i < 4; i++) {
        ferry_host_free(d, b.state[i]);
    }
    ferry_pool_close(pool);
    ferry_device_close(d);
    return 0;
}
