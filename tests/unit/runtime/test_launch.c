/* test_launch.c - launching on streams: what is checked at the call, what fails later, extents, and the named calls. */
#include "kernel_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OK(call) assert_int_equal(call, FERRY_OK)

static ferry_device *device;
static ferry_stream *stream;

static int open_stream(void **state)
{
    (void)state;
    if (ferry_device_open("host", &device) != FERRY_OK) {
        return -1;
    }
    return ferry_stream_open(device, FERRY_STREAM_COMPUTE, &stream) == FERRY_OK ? 0 : -1;
}

static int close_stream(void **state)
{
    (void)state;
    ferry_stream_close(stream);
    ferry_device_close(device);
    return 0;
}

static void test_tables(void **state)
{
    (void)state;
    assert_string_equal(ferry_op_get(FERRY_OP_LINEAR_DX)->name, "linear_dx");
    assert_int_equal(ferry_op_get(FERRY_OP_LAYERNORM)->n_out, 3);
    assert_int_equal(ferry_op_get(FERRY_OP_LAYERNORM)->n_in, 3);
    assert_null(ferry_op_get(FERRY_OP_COUNT));
    assert_null(ferry_op_get((ferry_op)-1));
    assert_string_equal(ferry_fn_name(FERRY_FN_NONE), "FERRY_FN_NONE");
    assert_string_equal(ferry_fn_name(FERRY_TANH), "FERRY_TANH");
    assert_string_equal(ferry_fn_name(FERRY_NOT), "FERRY_NOT");
    assert_string_equal(ferry_fn_name(FERRY_MIN), "FERRY_MIN");
    assert_string_equal(ferry_fn_name(FERRY_GREATER_EQUAL), "FERRY_GREATER_EQUAL");
    assert_string_equal(ferry_fn_name(FERRY_MEAN), "FERRY_MEAN");
    for (ferry_fn f = 0; f < FERRY_FN_COUNT; f++) {
        assert_non_null(ferry_fn_name(f));
    }
    assert_int_equal(ferry_dtype_bytes(FERRY_BF16), 2);
    assert_int_equal(ferry_dtype_bytes(FERRY_BOOL), 1);
    assert_int_equal(ferry_dtype_bytes(FERRY_DTYPE_COUNT), 0);
    assert_string_equal(ferry_dtype_name(FERRY_I64), "i64");
    assert_non_null(ferry_dtype_name((ferry_dtype)99));
}

/* ---- extents ---------------------------------------------------------------------------------------------------- */

static void extents(ferry_kernel k, const int64_t *bytes)
{
    const ferry_op_info *info = ferry_op_get(k.op);
    for (int a = 0; a < FERRY_MAX_ARGS; a++) {
        assert_int_equal(ferry_kernel_extent_bytes(&k, a), 0); /* absent */
        k.arg[a] = &k;
        assert_int_equal(ferry_kernel_extent_bytes(&k, a), a < info->n_out + info->n_in ? bytes[a] : 0);
        k.arg[a] = NULL;
    }
    assert_int_equal(ferry_kernel_extent_bytes(&k, -1), 0);
}

static void test_extents(void **state)
{
    (void)state;
    ferry_kernel k = {.op = FERRY_OP_LINEAR, .dtype = FERRY_F32, .m = 2, .k = 3, .n = 5};
    extents(k, (int64_t[]){40, 24, 60, 20});
    k.op = FERRY_OP_LINEAR_DW;
    extents(k, (int64_t[]){60, 24, 40});
    k.op = FERRY_OP_LINEAR_DX;
    extents(k, (int64_t[]){24, 40, 60});
    k.op = FERRY_OP_XENT;
    k.dtype2 = FERRY_I64;
    extents(k, (int64_t[]){4, 24, 4, 120, 48});
    k.op = FERRY_OP_XENT_GRAD;
    extents(k, (int64_t[]){120, 120, 24, 4, 48, 4});
    k.op = FERRY_OP_EMBEDDING;
    extents(k, (int64_t[]){40, 60, 16});
    k.op = FERRY_OP_EMBEDDING_GRAD;
    extents(k, (int64_t[]){60, 40, 16});
    k.op = FERRY_OP_LAYERNORM;
    extents(k, (int64_t[]){40, 8, 8, 40, 20, 20});
    k.op = FERRY_OP_LAYERNORM_DX;
    extents(k, (int64_t[]){40, 40, 40, 8, 8, 20});
    k.op = FERRY_OP_LAYERNORM_DP;
    extents(k, (int64_t[]){20, 20, 40, 40, 8, 8});
    ferry_kernel mm = {.op = FERRY_OP_MATMUL,
                       .dtype = FERRY_F64,
                       .m = 2,
                       .k = 3,
                       .n = 4,
                       .rank = 2,
                       .dim = {2, 3},
                       .stride = {{24, 8}, {0, 6}, {100, 0}}};
    extents(mm, (int64_t[]){8 * (24 + 16 + 8), 8 * (12 + 6), 8 * (100 + 12)});
    mm.dim[1] = 0;
    extents(mm, (int64_t[]){0, 0, 0});
    ferry_kernel cp = {.op = FERRY_OP_COPY,
                       .dtype = FERRY_F32,
                       .rank = 2,
                       .dim = {3, 4},
                       .stride = {{4, 1}, {10, -2}},
                       .offset = {5, 6},
                       .alpha = 1};
    extents(cp, (int64_t[]){4 * (5 + 12), 4 * (6 + 20 + 1)});
    cp.offset[1] = 5; /* the last element would be at -1 */
    cp.arg[0] = cp.arg[1] = &cp;
    assert_int_equal(ferry_kernel_extent_bytes(&cp, 1), -1);
    ferry_kernel bin = {.op = FERRY_OP_BINARY,
                        .fn = FERRY_LESS,
                        .dtype = FERRY_I64,
                        .rank = 2,
                        .dim = {3, 4},
                        .stride = {{0, 1}, {1, 0}}};
    extents(bin, (int64_t[]){12, 32, 24});
    ferry_kernel where = {.op = FERRY_OP_WHERE, .dtype = FERRY_F64, .rank = 1, .dim = {6}, .stride = {{1}, {0}, {2}}};
    extents(where, (int64_t[]){48, 6, 8, 88});
    ferry_kernel red = {
        .op = FERRY_OP_REDUCE, .fn = FERRY_SUM, .dtype = FERRY_F32, .rank = 3, .dim = {2, 3, 4}, .axes = 5};
    extents(red, (int64_t[]){12, 96});
    red.dim[0] = 0;
    extents(red, (int64_t[]){12, 0});
    ferry_kernel cast = {.op = FERRY_OP_CAST, .dtype = FERRY_I64, .dtype2 = FERRY_BOOL, .n = 7};
    extents(cast, (int64_t[]){7, 56});
}

/* ---- what is refused -------------------------------------------------------------------------------------------- */

static double memory[64];

static void refused(ferry_kernel k, const char *text)
{
    assert_int_equal(ferry_launch(stream, &k), FERRY_USAGE);
    if (strstr(ferry_error(), text) == NULL) {
        fail_msg("'%s' does not say '%s'", ferry_error(), text);
    }
}

static void test_refused(void **state)
{
    (void)state;
    void *p = memory;
    const ferry_kernel linear = {.op = FERRY_OP_LINEAR, .dtype = FERRY_F32, .m = 1, .k = 1, .n = 1, .arg = {p, p, p}};
    ferry_kernel k = linear;
    OK(ferry_launch(stream, &k));
    k.op = FERRY_OP_COUNT;
    refused(k, "no kernel");
    k = linear;
    k.dtype = FERRY_I32;
    refused(k, "floating");
    k.dtype = FERRY_DTYPE_COUNT;
    refused(k, "unknown");
    k.dtype = FERRY_F16;
    refused(k, "f16");
    k = linear;
    k.m = -1;
    refused(k, "negative");
    k = linear;
    k.m = k.n = (int64_t)1 << 32;
    refused(k, "beyond");
    k.k = k.n = 1;
    refused(k, "2^31 - 1");
    k = linear;
    k.arg[2] = NULL;
    refused(k, "argument 2 is NULL");
    k = linear;
    k.arg[1] = (char *)p + 2;
    refused(k, "aligned");
    k = linear;
    k.accumulate = true;
    refused(k, "accumulate");
    k = linear;
    k.trans_a = true;
    refused(k, "trans_a");
    ferry_kernel s = {.op = FERRY_OP_SOFTMAX, .dtype = FERRY_F32, .m = 1, .n = 1, .trans_b = true, .arg = {p, p}};
    refused(s, "trans_b");
    ferry_kernel u = {.op = FERRY_OP_UNARY, .fn = FERRY_ADD, .dtype = FERRY_F32, .n = 1, .arg = {p, p}};
    refused(u, "not a unary");
    u.fn = FERRY_TANH;
    u.dtype = FERRY_I64;
    refused(u, "does not exist");
    u.fn = FERRY_NOT;
    u.dtype = FERRY_F32;
    refused(u, "does not exist");
    ferry_kernel g = {.op = FERRY_OP_UNARY_GRAD, .fn = FERRY_TANH, .dtype = FERRY_F32, .n = 1, .arg = {p, p, p, NULL}};
    refused(g, "argument 3 is NULL");
    g.fn = FERRY_RELU;
    OK(ferry_launch(stream, &g));
    g.arg[2] = NULL;
    refused(g, "argument 2 is NULL");
    ferry_kernel b = {.op = FERRY_OP_BINARY, .fn = FERRY_ADD, .dtype = FERRY_F32, .rank = 9, .arg = {p, p, p}};
    refused(b, "rank");
    b.rank = 1;
    b.dim[0] = 2;
    b.stride[0][0] = -1;
    refused(b, "below");
    b.stride[0][0] = INT64_MAX;
    refused(b, "beyond");
    b.fn = FERRY_SUM;
    refused(b, "not a binary");
    b.fn = FERRY_AND;
    refused(b, "does not exist");
    b.fn = FERRY_MOD;
    refused(b, "does not exist");
    b.fn = FERRY_EQUAL;
    b.dtype = FERRY_F16;
    b.stride[0][0] = 0;
    refused(b, "f16");
    ferry_kernel r = {
        .op = FERRY_OP_REDUCE, .fn = FERRY_SUM, .dtype = FERRY_F32, .rank = 1, .dim = {1}, .axes = 2, .arg = {p, p}};
    refused(r, "axis");
    r.axes = 1;
    r.fn = FERRY_MUL;
    refused(r, "FERRY_SUM");
    r.fn = FERRY_MAX;
    r.accumulate = true;
    refused(r, "accumulate");
    ferry_kernel e = {
        .op = FERRY_OP_EMBEDDING, .dtype = FERRY_F32, .dtype2 = FERRY_U8, .m = 1, .k = 1, .n = 1, .arg = {p, p, p}};
    refused(e, "i64 or i32");
    ferry_kernel c = {.op = FERRY_OP_COPY, .dtype = FERRY_I64, .alpha = 2, .arg = {p, p}};
    refused(c, "floating");
    assert_int_equal(ferry_launch(NULL, &c), FERRY_USAGE);
    assert_int_equal(ferry_launch(stream, NULL), FERRY_USAGE);
    /* nothing to do is fine, also without memory */
    ferry_kernel empty = {.op = FERRY_OP_UNARY, .fn = FERRY_NEG, .dtype = FERRY_F32};
    OK(ferry_launch(stream, &empty));
    /* a rank that does not fit must not be copied */
    assert_int_equal(ferry_reduce(stream, FERRY_F32, FERRY_SUM, p, p, 100, (int64_t[8]){1, 1, 1, 1, 1, 1, 1, 1}, 0, 0),
                     FERRY_USAGE);
    OK(ferry_stream_sync(stream));
}

/* ---- failures on the stream ------------------------------------------------------------------------------------- */

static void test_bad_id(void **state)
{
    (void)state;
    float y[8], table[10] = {0}, kept = 1;
    int64_t ids[4] = {4, -5, 5, 0};
    OK(ferry_embedding(stream, FERRY_F32, y, table, FERRY_I64, ids, 4, 5, 2)); /* read on the stream, not at the call */
    OK(ferry_fill(stream, FERRY_F32, &kept, 2, 1));
    assert_int_equal(ferry_stream_sync(stream), FERRY_BAD_DATA);
    assert_non_null(strstr(ferry_error(), "id 5 at position 2"));
    assert_non_null(strstr(ferry_error(), "5 rows"));
    assert_true(kept == 1); /* later kernels are skipped */
    assert_int_equal(ferry_device_status(device), FERRY_BAD_DATA);
}

static void test_bad_label(void **state)
{
    (void)state;
    double logits[6] = {0}, loss, lse[2], count;
    int32_t labels[2] = {-100, 3};
    OK(ferry_xent(stream, FERRY_F64, &loss, lse, &count, logits, FERRY_I32, labels, 2, 3, 1, -100));
    assert_int_equal(ferry_stream_sync(stream), FERRY_BAD_DATA);
    assert_non_null(strstr(ferry_error(), "label 3 at position 1"));
    assert_non_null(strstr(ferry_error(), "3 classes"));
}

/* ---- the named calls -------------------------------------------------------------------------------------------- */

/* The sizes differ and the contents are random, so that exchanged arguments show. */

static unsigned flags_of(const ferry_kernel *k)
{
    return (k->trans_a ? FERRY_TRANS_A : 0u) | (k->trans_b ? FERRY_TRANS_B : 0u) |
           (k->accumulate ? FERRY_ACCUMULATE : 0u);
}

static ferry_status call_by_name(const ferry_kernel *k)
{
    void *const *a = k->arg;
    ferry_dtype t = k->dtype;
    unsigned flags = flags_of(k);
    switch (k->op) {
    case FERRY_OP_LINEAR:
        return ferry_linear(stream, t, a[0], a[1], a[2], a[3], k->m, k->k, k->n, flags);
    case FERRY_OP_LINEAR_DX:
        return ferry_linear_dx(stream, t, a[0], a[1], a[2], k->m, k->k, k->n, flags);
    case FERRY_OP_LINEAR_DW:
        return ferry_linear_dw(stream, t, a[0], a[1], a[2], k->m, k->k, k->n, flags);
    case FERRY_OP_MATMUL:
        return ferry_matmul(stream, t, a[0], a[1], a[2], k->m, k->k, k->n, k->rank, k->dim, k->stride[0], k->stride[1],
                            k->stride[2], k->alpha, flags);
    case FERRY_OP_UNARY:
        return ferry_unary(stream, t, k->fn, a[0], a[1], k->n);
    case FERRY_OP_UNARY_GRAD:
        return ferry_unary_grad(stream, t, k->fn, a[0], a[1], a[2], a[3], k->n, flags);
    case FERRY_OP_BINARY:
        return ferry_binary(stream, t, k->fn, a[0], a[1], a[2], k->rank, k->dim, k->stride[0], k->stride[1]);
    case FERRY_OP_BINARY_GRAD_A:
        return ferry_binary_grad_a(stream, t, k->fn, a[0], a[1], a[2], a[3], k->rank, k->dim, k->stride[0],
                                   k->stride[1]);
    case FERRY_OP_BINARY_GRAD_B:
        return ferry_binary_grad_b(stream, t, k->fn, a[0], a[1], a[2], a[3], k->rank, k->dim, k->stride[0],
                                   k->stride[1]);
    case FERRY_OP_WHERE:
        return ferry_where(stream, t, a[0], a[1], a[2], a[3], k->rank, k->dim, k->stride[0], k->stride[1],
                           k->stride[2]);
    case FERRY_OP_REDUCE:
        return ferry_reduce(stream, t, k->fn, a[0], a[1], k->rank, k->dim, k->axes, flags);
    case FERRY_OP_COPY:
        return ferry_copy(stream, t, a[0], a[1], k->rank, k->dim, k->offset[0], k->stride[0], k->offset[1],
                          k->stride[1], k->alpha, flags);
    case FERRY_OP_FILL:
        return ferry_fill(stream, t, a[0], k->alpha, k->n);
    case FERRY_OP_CAST:
        return ferry_cast(stream, k->dtype2, a[0], t, a[1], k->n);
    case FERRY_OP_SOFTMAX:
        return ferry_softmax(stream, t, a[0], a[1], k->m, k->n);
    case FERRY_OP_SOFTMAX_GRAD:
        return ferry_softmax_grad(stream, t, a[0], a[1], a[2], k->m, k->n);
    case FERRY_OP_LAYERNORM:
        return ferry_layernorm(stream, t, a[0], a[1], a[2], a[3], a[4], a[5], k->m, k->n, k->eps);
    case FERRY_OP_LAYERNORM_DX:
        return ferry_layernorm_dx(stream, t, a[0], a[1], a[2], a[3], a[4], a[5], k->m, k->n, flags);
    case FERRY_OP_LAYERNORM_DP:
        return ferry_layernorm_dp(stream, t, a[0], a[1], a[2], a[3], a[4], a[5], k->m, k->n, flags);
    case FERRY_OP_ATTENTION:
        return ferry_attention(stream, t, a[0], a[1], a[2], a[3], a[4], a[5], &k->attention);
    case FERRY_OP_ATTENTION_GRAD:
        return ferry_attention_grad(stream, t, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], &k->attention);
    case FERRY_OP_FUSED:
        return ferry_fused(stream, t, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], k->rank, k->dim, &k->program,
                           flags);
    case FERRY_OP_ROTARY:
        return ferry_rotary(stream, t, a[0], a[1], a[2], a[3], k->rank, k->dim, k->n, k->stride[1], k->stride[2],
                            k->reverse ? FERRY_REVERSE : 0);
    case FERRY_OP_EMBEDDING:
        return ferry_embedding(stream, t, a[0], a[1], k->dtype2, a[2], k->m, k->k, k->n);
    case FERRY_OP_EMBEDDING_GRAD:
        return ferry_embedding_grad(stream, t, a[0], a[1], k->dtype2, a[2], k->m, k->k, k->n, flags);
    case FERRY_OP_XENT:
        return ferry_xent(stream, t, a[0], a[1], a[2], a[3], k->dtype2, a[4], k->m, k->n, k->k, k->ignore_index);
    case FERRY_OP_XENT_GRAD:
        return ferry_xent_grad(stream, t, a[0], a[1], a[2], a[3], k->dtype2, a[4], a[5], k->m, k->n, k->k,
                               k->ignore_index);
    case FERRY_OP_DROPOUT:
        return ferry_dropout(stream, t, a[0], a[1], k->n, k->alpha, k->seed, k->step, k->salt, flags);
    case FERRY_OP_RAVEL:
        return ferry_ravel(stream, t, a[0], a[1], k->rank, k->dim, k->stride[0], k->stride[1], k->m, k->stride[2], k->k);
    case FERRY_OP_SCATTER:
        return ferry_scatter(stream, t, k->fn, a[0], a[1], a[2], k->dtype2, a[3], k->m, k->k, k->n);
    case FERRY_OP_SCATTER_GRAD:
        return ferry_scatter_grad(stream, t, k->fn, a[0], a[1], a[2], a[3], a[4], a[5], k->dtype2, a[6], k->m, k->k, k->n);
    case FERRY_OP_TOPK:
        return ferry_topk(stream, t, a[0], a[1], k->m, k->n, k->k, k->reverse ? FERRY_REVERSE : 0);
    case FERRY_OP_CONV:
        return ferry_conv(stream, t, a[0], a[1], a[2], a[3], k->m, k->k, k->n, &k->window);
    case FERRY_OP_CONV_DX:
        return ferry_conv_dx(stream, t, a[0], a[1], a[2], a[3], k->m, k->k, k->n, &k->window, flags);
    case FERRY_OP_CONV_DW:
        return ferry_conv_dw(stream, t, a[0], a[1], a[2], k->m, k->k, k->n, &k->window, flags);
    case FERRY_OP_MAXPOOL:
        return ferry_maxpool(stream, t, a[0], a[1], a[2], k->m, &k->window);
    case FERRY_OP_MAXPOOL_GRAD:
        return ferry_maxpool_grad(stream, t, a[0], a[1], a[2], k->m, &k->window, flags);
    case FERRY_OP_AVGPOOL:
        return ferry_avgpool(stream, t, k->fn, a[0], a[1], k->m, &k->window);
    case FERRY_OP_AVGPOOL_GRAD:
        return ferry_avgpool_grad(stream, t, k->fn, a[0], a[1], k->m, &k->window, flags);
    case FERRY_OP_BATCHNORM:
        return ferry_batchnorm(stream, t, a[0], a[1], a[2], a[3], a[4], a[5], k->m, k->n, k->k, k->eps);
    case FERRY_OP_BATCHNORM_DX:
        return ferry_batchnorm_dx(stream, t, a[0], a[1], a[2], a[3], k->m, k->n, k->k, k->eps);
    case FERRY_OP_BATCHNORM_DP:
        return ferry_batchnorm_dp(stream, t, a[0], a[1], a[2], a[3], a[4], a[5], k->m, k->n, k->k, k->eps, flags);
    case FERRY_OP_BATCH_STATS:
        return ferry_batch_stats(stream, t, a[0], a[1], a[2], k->m, k->n, k->k);
    case FERRY_OP_BATCHNORM_TRAIN_DX:
        return ferry_batchnorm_train_dx(stream, t, a[0], a[1], a[2], a[3], a[4], a[5], k->m, k->n, k->k, k->eps);
    case FERRY_OP_MOVING_AVERAGE:
        return ferry_moving_average(stream, t, a[0], a[1], k->n, k->alpha);
    default:
        return FERRY_USAGE;
    }
}

static void test_named_calls(void **state)
{
    (void)state;
    for (ferry_op op = 0; op < FERRY_OP_COUNT; op++) {
        ferry_kernel k = {.op = op, .dtype = FERRY_F64, .m = 3, .k = 4, .n = 5, .alpha = 1};
        const ferry_op_info *info = ferry_op_get(op);
        int args = info->n_out + info->n_in, ids = -1;
        k.trans_b = op <= FERRY_OP_MATMUL;
        k.trans_a = op == FERRY_OP_MATMUL;
        k.accumulate = op == FERRY_OP_LINEAR_DW || op == FERRY_OP_MATMUL || op == FERRY_OP_UNARY_GRAD ||
                       op == FERRY_OP_REDUCE || op == FERRY_OP_COPY || op == FERRY_OP_LAYERNORM_DP || op == FERRY_OP_LAYERNORM_DX ||
                       op == FERRY_OP_EMBEDDING_GRAD;
        if (op == FERRY_OP_MATMUL || op == FERRY_OP_COPY || op == FERRY_OP_FILL) {
            k.alpha = 0.5;
        }
        if (op == FERRY_OP_MATMUL || (op >= FERRY_OP_BINARY && op <= FERRY_OP_COPY)) {
            k.rank = 2;
            k.dim[0] = 2;
            k.dim[1] = 3;
            for (int a = 0; a < 3; a++) {
                k.stride[a][0] = 40 + a;
                k.stride[a][1] = op == FERRY_OP_COPY ? 12 - a : 20 - a;
            }
            k.offset[0] = 1;
            k.offset[1] = 2;
            k.axes = 2;
        }
        k.fn = op == FERRY_OP_UNARY || op == FERRY_OP_UNARY_GRAD ? FERRY_TANH
               : op == FERRY_OP_REDUCE                           ? FERRY_MEAN
                                                                 : FERRY_DIV;
        k.eps = 0.1;
        k.ignore_index = 1;
        k.dtype2 = op == FERRY_OP_CAST ? FERRY_F32 : FERRY_I32;
        ids = op == FERRY_OP_EMBEDDING || op == FERRY_OP_EMBEDDING_GRAD ? 2
              : op == FERRY_OP_XENT || op == FERRY_OP_XENT_GRAD         ? 4
                                                                        : -1;
        if (op >= FERRY_OP_CONV && op <= FERRY_OP_AVGPOOL_GRAD) {
            k.window = (ferry_window){.rank = 2, .groups = 1, .in = {6, 5}, .out = {3, 2}, .size = {2, 3}};
            k.window.step[0] = k.window.step[1] = 2;
            k.window.dilation[0] = k.window.dilation[1] = k.window.pad[1] = k.window.pad_end[1] = 1;
            k.window.count_pad = true;
            k.fn = FERRY_MEAN;
            k.dtype2 = FERRY_I64;
            k.accumulate = op == FERRY_OP_CONV_DX || op == FERRY_OP_CONV_DW || op == FERRY_OP_MAXPOOL_GRAD ||
                           op == FERRY_OP_AVGPOOL_GRAD;
            ids = op == FERRY_OP_MAXPOOL_GRAD ? 2 : -1;
        }
        k.accumulate = k.accumulate || op == FERRY_OP_BATCHNORM_DP || op == FERRY_OP_DROPOUT ||
                       op == FERRY_OP_MOVING_AVERAGE;
        if (op == FERRY_OP_MOVING_AVERAGE) {
            k.alpha = 0.7;
        }
        if (op == FERRY_OP_DROPOUT) {
            k.alpha = 0.5;
            k.seed = 7;
            k.step = 8;
            k.salt = 9;
        }
        if (op == FERRY_OP_SCATTER || op == FERRY_OP_SCATTER_GRAD) {
            k.fn = FERRY_MAX;
            ids = op == FERRY_OP_SCATTER ? 3 : 6;
        }
        if (op == FERRY_OP_RAVEL) {
            k.dtype = k.dtype2 = FERRY_I64;
            k.rank = 1;
            k.dim[0] = 4;
            k.stride[0][0] = 100;
            k.stride[1][0] = 2;
            k.m = 2;
            k.stride[2][0] = k.stride[2][1] = 4;
            ids = 1;
        }
        if (op == FERRY_OP_ATTENTION || op == FERRY_OP_ATTENTION_GRAD) {
            k.attention = (ferry_attention_shape){.batch = 1, .heads = 2, .kv_heads = 1, .rows = 3, .columns = 4, .size = 2,
                                                  .value_size = 2, .scale = 0.5, .causal = true, .past = 1,
                                                  .mask_type = FERRY_F64, .mask_stride = {0, 0, 4, 1}};
            for (int i = 0; i < 4; i++) {
                k.attention.offset[i] = i;
                k.attention.stride[i][1] = 2;
                k.attention.stride[i][2] = 4;
            }
        }
        if (op == FERRY_OP_FUSED) {
            k.rank = 2;
            k.dim[0] = 2;
            k.dim[1] = 3;
            k.program = (ferry_program){.steps = 2, .step = {{FERRY_OP_UNARY, FERRY_TANH, 2, -1, -1, 0},
                                        {FERRY_OP_BINARY, FERRY_SUB, 7, 5, -1, 0}}, .out = {8, 7, 2}};
            for (int i = 0; i < args; i++) {
                k.program.type[i] = FERRY_F64;
            }
            for (int i = 0; i < FERRY_PROGRAM_INPUTS; i++) {
                k.program.offset[i] = i;
                k.program.stride[i][0] = 3 + i;
                k.program.stride[i][1] = 1;
            }
        }
        if (op == FERRY_OP_ROTARY) {
            k.rank = 2;
            k.dim[0] = 2;
            k.dim[1] = 3;
            k.n = 4;
            k.stride[1][0] = 20;
            k.stride[1][1] = 5;
            k.stride[2][1] = 4;
        }
        k.reverse = op == FERRY_OP_TOPK || op == FERRY_OP_ROTARY;
        ferry_kernel named = k;
        for (int a = 0; a < args; a++) {
            int64_t bytes = bench_elements(&k, a) * ferryi_kernel_element_bytes(&k, a);
            if (a == ids) {
                bench_ids(&k, a, 0, 3);
            } else if (op == FERRY_OP_WHERE && a == 1) {
                bench_alloc(&k, a);
                for (int64_t i = 0; i < bytes; i++) {
                    ((bool *)k.arg[a])[i] = bench_bits() % 2 != 0;
                }
            } else if (a == 0 && (op == FERRY_OP_CAST || op == FERRY_OP_RAVEL || op == FERRY_OP_TOPK)) {
                bench_alloc(&k, a);
            } else {
                bench_random(&k, a, 0.5, 2);
            }
            named.arg[a] = malloc((size_t)bytes);
            memcpy(named.arg[a], k.arg[a], (size_t)bytes);
        }
        OK(ferryi_kernel_check(&k));
        OK(ferryi_host_kernel(false, &k));
        OK(call_by_name(&named));
        OK(ferry_stream_sync(stream));
        for (int a = 0; a < args; a++) {
            assert_memory_equal(k.arg[a], named.arg[a],
                                (size_t)(bench_elements(&k, a) * ferryi_kernel_element_bytes(&k, a)));
        }
        bench_free(&named);
        bench_free(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tables, open_stream, close_stream),
        cmocka_unit_test_setup_teardown(test_extents, open_stream, close_stream),
        cmocka_unit_test_setup_teardown(test_refused, open_stream, close_stream),
        cmocka_unit_test_setup_teardown(test_bad_id, open_stream, close_stream),
        cmocka_unit_test_setup_teardown(test_bad_label, open_stream, close_stream),
        cmocka_unit_test_setup_teardown(test_named_calls, open_stream, close_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
