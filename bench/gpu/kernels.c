/* kernels.c - how fast single kernels are on a GPU, in bf16 and f32, at the sizes of a GPT-2 medium step (batch 8 x 512):
 * each with what it moves in GB/s or computes in TFLOP/s.
 * Usage: bench_kernels [cuda:N]. Times are medians of 10 batches of 10 launches. */
#include "runtime/ferry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCHES = 10, LAUNCHES = 10, TOKENS = 4096, WIDTH = 1024, WIDE = 4 * WIDTH, VOCABULARY = 50257, HEADS = 16, ROWS = 512 };

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != FERRY_OK) {                                                                                      \
            fprintf(stderr, "bench_kernels: %s\n", ferry_error());                                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static ferry_device *device;
static ferry_stream *stream;
static ferry_event *begin, *end;
static ferry_dtype type;
static char *memory; /* arguments lie side by side, filled with small numbers */
static int64_t memory_bytes;

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Runs a call of which `ids` is an argument of ids (-1: none), `absent` arguments left out; flops 0: by memory traffic. */
static void measure(const char *name, ferry_kernel k, int ids, unsigned absent, double flops)
{
    const ferry_op_info *info = ferry_op_get(k.op);
    static int64_t *tokens; /* device memory, at the start */
    int64_t used = (int64_t)TOKENS * 8, traffic = 0, ns[BATCHES];
    tokens = (int64_t *)(void *)memory;
    k.dtype = type;
    for (int i = 0; i < info->n_out + info->n_in; i++) {
        if ((absent >> i & 1) != 0) {
            continue;
        }
        k.arg[i] = i == ids ? (char *)tokens : memory + used;
        int64_t bytes = ferry_kernel_extent_bytes(&k, i);
        used += i == ids ? 0 : (bytes + 255) / 256 * 256;
        traffic += bytes;
        if (used > memory_bytes) {
            fprintf(stderr, "bench_kernels: %s does not fit\n", name);
            exit(1);
        }
    }
    for (int b = -1; b < BATCHES; b++) { /* one to warm up */
        int64_t from, to;
        OK(ferry_event_record(stream, begin));
        for (int i = 0; i < LAUNCHES; i++) {
            OK(ferry_launch(stream, &k));
        }
        OK(ferry_event_record(stream, end));
        OK(ferry_event_sync(end));
        OK(ferry_event_time_ns(begin, &from));
        OK(ferry_event_time_ns(end, &to));
        ns[b < 0 ? 0 : b] = (to - from) / LAUNCHES;
    }
    qsort(ns, BATCHES, sizeof(*ns), by_size);
    double time = (double)ns[BATCHES / 2];
    if (flops > 0) {
        printf("  %-34s %8.1f us  %7.1f TFLOP/s\n", name, time * 1e-3, flops / time * 1e-3);
    } else {
        printf("  %-34s %8.1f us  %7.0f GB/s\n", name, time * 1e-3, (double)traffic / time);
    }
}

static ferry_kernel call(ferry_op op, ferry_fn fn, int64_t m, int64_t k, int64_t n)
{
    return (ferry_kernel){.op = op, .fn = fn, .dtype = type, .dtype2 = FERRY_I64, .m = m, .k = k, .n = n, .alpha = 1, .eps = 1e-5, .ignore_index = -100};
}

static ferry_kernel over(ferry_op op, ferry_fn fn, int rank, int64_t d0, int64_t d1)
{
    ferry_kernel k = call(op, fn, 0, 0, 0);
    k.rank = rank;
    k.dim[0] = rank == 1 ? d0 * d1 : d0;
    k.dim[1] = d1;
    for (int a = 0; a < 3; a++) {
        k.stride[a][rank - 1] = 1;
        k.stride[a][0] = rank == 1 ? 1 : d1;
    }
    return k;
}

static void rows(void)
{
    const int64_t wide = (int64_t)TOKENS * WIDE;
    measure("copy", over(FERRY_OP_COPY, 0, 1, TOKENS, WIDTH), -1, 0, 0);
    measure("add", over(FERRY_OP_BINARY, FERRY_ADD, 1, TOKENS, WIDTH), -1, 0, 0);
    ferry_kernel k = over(FERRY_OP_BINARY, FERRY_ADD, 2, TOKENS, WIDTH);
    k.stride[1][0] = 0;
    measure("add a row", k, -1, 0, 0);
    measure("gelu_tanh", call(FERRY_OP_UNARY, FERRY_GELU_TANH, 0, 0, wide), -1, 0, 0);
    measure("gelu_tanh gradient", call(FERRY_OP_UNARY_GRAD, FERRY_GELU_TANH, 0, 0, wide), -1, 8, 0);
    measure("gelu", call(FERRY_OP_UNARY, FERRY_GELU, 0, 0, wide), -1, 0, 0);
    measure("silu gradient", call(FERRY_OP_UNARY_GRAD, FERRY_SILU, 0, 0, wide), -1, 8, 0);
    k = over(FERRY_OP_REDUCE, FERRY_SUM, 2, TOKENS, WIDE);
    k.axes = 1;
    measure("sum of rows (bias gradient)", k, -1, 0, 0);
    measure("layernorm", call(FERRY_OP_LAYERNORM, 0, TOKENS, 0, WIDTH), -1, 0, 0);
    measure("layernorm_dx", call(FERRY_OP_LAYERNORM_DX, 0, TOKENS, 0, WIDTH), -1, 0, 0);
    measure("layernorm_dp", call(FERRY_OP_LAYERNORM_DP, 0, TOKENS, 0, WIDTH), -1, 0, 0);
    measure("embedding", call(FERRY_OP_EMBEDDING, 0, TOKENS, VOCABULARY, WIDTH), 2, 0, 0);
    measure("embedding_grad", call(FERRY_OP_EMBEDDING_GRAD, 0, TOKENS, VOCABULARY, WIDTH), 2, 0, 0);
    measure("xent", call(FERRY_OP_XENT, 0, TOKENS, 1, VOCABULARY), 4, 0, 0);
    measure("xent_grad", call(FERRY_OP_XENT_GRAD, 0, TOKENS, 1, VOCABULARY), 4, 1u << 5, 0);
    measure("softmax of scores", call(FERRY_OP_SOFTMAX, 0, (int64_t)8 * HEADS * ROWS, 0, ROWS), -1, 0, 0);
    k = over(FERRY_OP_COPY, 0, 4, 8, 0); /* heads beside each other to one after the other */
    const int64_t dim[4] = {8, HEADS, ROWS, 64}, to[4] = {HEADS * ROWS * 64, ROWS * 64, 64, 1},
                  from[4] = {ROWS * HEADS * 64, 64, HEADS * 64, 1};
    for (int i = 0; i < 4; i++) {
        k.dim[i] = dim[i];
        k.stride[0][i] = to[i];
        k.stride[1][i] = from[i];
    }
    measure("transpose of heads", k, -1, 0, 0);
}

static ferry_kernel program(int64_t n, int steps, const ferry_program_step *step, int out0, int out1, int inputs)
{
    ferry_kernel k = call(FERRY_OP_FUSED, 0, 0, 0, 0);
    k.rank = 1;
    k.dim[0] = n;
    k.program = (ferry_program){.steps = steps, .out = {out0, out1, -1}};
    for (int i = 0; i < steps; i++) {
        k.program.step[i] = step[i];
    }
    for (int i = 0; i < FERRY_PROGRAM_OUTPUTS + FERRY_PROGRAM_INPUTS; i++) {
        k.program.type[i] = type;
    }
    for (int i = 0; i < inputs; i++) {
        k.program.stride[i][0] = 1;
    }
    return k;
}

/* Chains as one kernel; the kernels that they replace are measured above or here, one by one. */
static void chains(void)
{
    const int64_t wide = (int64_t)TOKENS * 8192;
    const ferry_program_step gate[] = {{FERRY_OP_UNARY, FERRY_SILU, 0, -1, -1, 0}, {FERRY_OP_BINARY, FERRY_MUL, 7, 1, -1, 0}};
    const ferry_program_step slopes[] = {{FERRY_OP_UNARY, FERRY_SILU, 0, -1, -1, 0},
                                         {FERRY_OP_BINARY_GRAD_B, FERRY_MUL, 1, 7, -1, 0},
                                         {FERRY_OP_BINARY_GRAD_A, FERRY_MUL, 1, -1, 2, 0},
                                         {FERRY_OP_UNARY_GRAD, FERRY_SILU, 9, 0, -1, 0}};
    const ferry_program_step sums[] = {{FERRY_OP_BINARY, FERRY_ADD, 0, 1, -1, 0}, {FERRY_OP_BINARY, FERRY_ADD, 7, 2, -1, 0}};
    measure("silu, 4096 x 8192", call(FERRY_OP_UNARY, FERRY_SILU, 0, 0, wide), -1, 0, 0);
    measure("product of two", over(FERRY_OP_BINARY, FERRY_MUL, 1, TOKENS, 8192), -1, 0, 0);
    measure("silu gradient, 4096 x 8192", call(FERRY_OP_UNARY_GRAD, FERRY_SILU, 0, 0, wide), -1, 8, 0);
    measure("gradient of a product", over(FERRY_OP_BINARY_GRAD_A, FERRY_MUL, 1, TOKENS, 8192), -1, 4, 0);
    measure("fused: gate", program(wide, 2, gate, 8, -1, 2), -1, 0x3e6, 0);
    measure("fused: gradients of the gate", program(wide, 4, slopes, 8, 10, 3), -1, 0x3c4, 0);
    measure("fused: sum of three", program((int64_t)TOKENS * WIDTH, 2, sums, 8, -1, 3), -1, 0x3c6, 0);
    ferry_kernel k = call(FERRY_OP_ROTARY, 0, 0, 0, 64);
    k.rank = 3;
    const int64_t dim[3] = {8, 32, ROWS}, from[3] = {ROWS * 32 * 64, 64, 32 * 64};
    for (int i = 0; i < 3; i++) {
        k.dim[i] = dim[i];
        k.stride[1][i] = from[i];
    }
    k.stride[2][2] = 64;
    measure("rotary, 32 heads", k, -1, 0, 0);
    k.reverse = true;
    measure("rotary gradient, 32 heads", k, -1, 0, 0);
}

/* Attention as products and a softmax of all scores, heads one after the other: what its kernel has to be faster than. */
static void composed(const char *name, int64_t heads, int64_t length, int64_t size)
{
    const int64_t batch = 4096 / length, count = batch * heads, scores = count * length * length * (int64_t)ferry_dtype_bytes(type);
    const int64_t values = count * length * size * (int64_t)ferry_dtype_bytes(type);
    char *at = memory + (int64_t)TOKENS * 8;
    void *q = at, *k = at + values, *v = at + 2 * values, *y = at + 3 * values, *dy = at + 4 * values, *s = at + 5 * values;
    void *p = at + 5 * values + scores, *ds = at + 5 * values + 2 * scores;
    const int64_t of_scores = length * length, of_values = length * size;
    int64_t ns[2][BATCHES];
    if ((int64_t)TOKENS * 8 + 5 * values + 3 * scores > memory_bytes) {
        return;
    }
    for (int way = 0; way < 2; way++) {
        for (int b = -1; b < BATCHES; b++) {
            int64_t from, to;
            OK(ferry_event_record(stream, begin));
            OK(ferry_matmul(stream, type, s, q, k, length, size, length, 1, &count, &of_scores, &of_values, &of_values, 0.125,
                            FERRY_TRANS_B));
            OK(ferry_softmax(stream, type, p, s, count * length, length));
            if (way == 0) {
                OK(ferry_matmul(stream, type, y, p, v, length, length, size, 1, &count, &of_values, &of_scores, &of_values, 1, 0));
            } else { /* as a gradient that computes the weights again */
                OK(ferry_matmul(stream, type, s, dy, v, length, size, length, 1, &count, &of_scores, &of_values, &of_values, 1,
                                FERRY_TRANS_B));
                OK(ferry_softmax_grad(stream, type, ds, s, p, count * length, length));
                OK(ferry_matmul(stream, type, v, p, dy, length, length, size, 1, &count, &of_values, &of_scores, &of_values, 1,
                                FERRY_TRANS_A));
                OK(ferry_matmul(stream, type, k, ds, q, length, length, size, 1, &count, &of_values, &of_scores, &of_values, 0.125,
                                FERRY_TRANS_A));
                OK(ferry_matmul(stream, type, q, ds, y, length, length, size, 1, &count, &of_values, &of_scores, &of_values, 0.125,
                                0));
            }
            OK(ferry_event_record(stream, end));
            OK(ferry_event_sync(end));
            OK(ferry_event_time_ns(begin, &from));
            OK(ferry_event_time_ns(end, &to));
            ns[way][b < 0 ? 0 : b] = to - from;
        }
        qsort(ns[way], BATCHES, sizeof(**ns), by_size);
    }
    printf("  %-34s %8.1f us, gradient %8.1f us\n", name, (double)ns[0][BATCHES / 2] * 1e-3, (double)ns[1][BATCHES / 2] * 1e-3);
}

/* Heads of one product that makes q, k and v. */
static void attention(const char *name, int64_t heads, int64_t length, int64_t size, bool causal)
{
    const int64_t width = heads * size, pitch = 3 * width;
    ferry_kernel k = call(FERRY_OP_ATTENTION, 0, 0, 0, 0);
    k.attention = (ferry_attention_shape){.batch = 4096 / length, .heads = heads, .kv_heads = heads, .rows = length,
                                          .columns = length, .size = size, .value_size = size, .scale = 1 / sqrt((double)size),
                                          .causal = causal, .mask_type = type};
    for (int p = 0; p < 4; p++) {
        k.attention.offset[p] = p < 3 ? p * width : 0;
        k.attention.stride[p][2] = p < 3 ? pitch : width;
        k.attention.stride[p][1] = size;
        k.attention.stride[p][0] = length * k.attention.stride[p][2];
    }
    double flops = 4.0 * 4096 * (double)heads * (double)length * (double)size * (causal ? 0.5 : 1);
    char text[64];
    snprintf(text, sizeof(text), "attention %s", name);
    measure(text, k, -1, 1u << 5, flops);
    snprintf(text, sizeof(text), "attention_grad %s", name);
    k.op = FERRY_OP_ATTENTION_GRAD;
    measure(text, k, -1, 1u << 9, 2.5 * flops);
}

int main(int argc, char **argv)
{
    ferry_pool *pool;
    void *pinned;
    const int64_t filled = 1 << 26;
    OK(ferry_device_open(argc > 1 ? argv[1] : "cuda:0", &device));
    OK(ferry_stream_open(device, FERRY_STREAM_COMPUTE, &stream));
    OK(ferry_event_open(device, &begin));
    OK(ferry_event_open(device, &end));
    memory_bytes = (int64_t)3 << 30;
    OK(ferry_pool_open(device, memory_bytes, &pool));
    memory = ferry_pool_at(pool, 0);
    OK(ferry_host_alloc(device, filled, &pinned));
    const ferry_dtype types[] = {FERRY_BF16, FERRY_F32};
    for (int t = 0; t < 2; t++) {
        type = types[t];
        OK(ferry_random_normal(pinned, type, filled / (int64_t)ferry_dtype_bytes(type), 1, "x", 0, 0.1));
        for (int64_t at = 0; at < memory_bytes; at += filled) {
            OK(ferry_copy_h2d(stream, memory + at, pinned, filled));
        }
        OK(ferry_stream_sync(stream));
        for (int64_t i = 0; i < TOKENS; i++) {
            ((int64_t *)pinned)[i] = i * i * 7919 % VOCABULARY;
        }
        OK(ferry_copy_h2d(stream, memory, pinned, (int64_t)TOKENS * 8));
        OK(ferry_stream_sync(stream));
        printf("%s\n", ferry_dtype_name(type));
        rows();
        chains();
        attention("12 x 64, 512", 12, 512, 64, false);
        attention("16 x 64, 512, causal", 16, 512, 64, true);
        attention("16 x 64, 2048, causal", 16, 2048, 64, true);
        attention("16 x 128, 2048, causal", 16, 2048, 128, true);
        composed("composed 12 x 64, 512", 12, 512, 64);
        composed("composed 16 x 64, 512", 16, 512, 64);
        composed("composed 16 x 64, 2048", 16, 2048, 64);
        composed("composed 16 x 128, 2048", 16, 2048, 128);
    }
    ferry_event_close(begin);
    ferry_event_close(end);
    ferry_stream_close(stream);
    ferry_host_free(device, pinned);
    ferry_pool_close(pool);
    ferry_device_close(device);
    return 0;
}
