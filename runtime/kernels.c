/* kernels.c - launching, and the named calls that fill a ferry_kernel. */
#include "runtime/backend.h"

#include <string.h>

ferry_status ferry_launch(ferry_stream *s, const ferry_kernel *call)
{
    if (s == NULL || call == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_launch: the %s is NULL", s == NULL ? "stream" : "call");
    }
    ferry_status status = ferryi_kernel_check(call);
    return status != FERRY_OK ? status : s->device->backend->launch(s, call);
}

/* ---- filling in ------------------------------------------------------------------------------------------------- */

/* The kernel's arguments are not const: one field holds outputs and inputs. Inputs are never written. */
static void *in(const void *p)
{
    return (void *)(uintptr_t)p;
}

static ferry_kernel start(ferry_op op, ferry_dtype t, unsigned flags)
{
    ferry_kernel c = {.op = op, .dtype = t, .alpha = 1};
    c.trans_a = (flags & FERRY_TRANS_A) != 0;
    c.trans_b = (flags & FERRY_TRANS_B) != 0;
    c.accumulate = (flags & FERRY_ACCUMULATE) != 0;
    c.reverse = (flags & FERRY_REVERSE) != 0;
    return c;
}

static ferry_kernel start_mkn(ferry_op op, ferry_dtype t, unsigned flags, int64_t m, int64_t k, int64_t n)
{
    ferry_kernel c = start(op, t, flags);
    c.m = m;
    c.k = k;
    c.n = n;
    return c;
}

/* Copies rank dimensions and the strides that are not NULL. A wrong rank is kept for the check to name. */
static void set_dims(ferry_kernel *c, int rank, const int64_t *dim, const int64_t *s0, const int64_t *s1,
                     const int64_t *s2)
{
    const int64_t *strides[3] = {s0, s1, s2};
    c->rank = rank;
    for (int i = 0; i < rank && i < FERRY_MAX_RANK; i++) {
        c->dim[i] = dim[i];
        for (int a = 0; a < 3; a++) {
            c->stride[a][i] = strides[a] != NULL ? strides[a][i] : 0;
        }
    }
}

/* ---- products --------------------------------------------------------------------------------------------------- */

ferry_status ferry_linear(ferry_stream *s, ferry_dtype t, void *y, const void *x, const void *w, const void *b,
                          int64_t m, int64_t k, int64_t n, unsigned flags)
{
    ferry_kernel c = start_mkn(FERRY_OP_LINEAR, t, flags, m, k, n);
    c.arg[0] = y;
    c.arg[1] = in(x);
    c.arg[2] = in(w);
    c.arg[3] = in(b);
    return ferry_launch(s, &c);
}

ferry_status ferry_linear_dx(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *w, int64_t m,
                             int64_t k, int64_t n, unsigned flags)
{
    ferry_kernel c = start_mkn(FERRY_OP_LINEAR_DX, t, flags, m, k, n);
    c.arg[0] = dx;
    c.arg[1] = in(dy);
    c.arg[2] = in(w);
    return ferry_launch(s, &c);
}

ferry_status ferry_linear_dw(ferry_stream *s, ferry_dtype t, void *dw, const void *x, const void *dy, int64_t m,
                             int64_t k, int64_t n, unsigned flags)
{
    ferry_kernel c = start_mkn(FERRY_OP_LINEAR_DW, t, flags, m, k, n);
    c.arg[0] = dw;
    c.arg[1] = in(x);
    c.arg[2] = in(dy);
    return ferry_launch(s, &c);
}

ferry_status ferry_matmul(ferry_stream *s, ferry_dtype t, void *y, const void *a, const void *b, int64_t m, int64_t k,
                          int64_t n, int rank, const int64_t *dim, const int64_t *y_stride, const int64_t *a_stride,
                          const int64_t *b_stride, double alpha, unsigned flags)
{
    ferry_kernel c = start_mkn(FERRY_OP_MATMUL, t, flags, m, k, n);
    set_dims(&c, rank, dim, y_stride, a_stride, b_stride);
    c.alpha = alpha;
    c.arg[0] = y;
    c.arg[1] = in(a);
    c.arg[2] = in(b);
    return ferry_launch(s, &c);
}

/* ---- element by element ----------------------------------------------------------------------------------------- */

ferry_status ferry_unary(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *y, const void *x, int64_t n)
{
    ferry_kernel c = start(FERRY_OP_UNARY, t, 0);
    c.fn = fn;
    c.n = n;
    c.arg[0] = y;
    c.arg[1] = in(x);
    return ferry_launch(s, &c);
}

ferry_status ferry_unary_grad(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *dx, const void *dy, const void *x,
                              const void *y, int64_t n, unsigned flags)
{
    ferry_kernel c = start(FERRY_OP_UNARY_GRAD, t, flags);
    c.fn = fn;
    c.n = n;
    c.arg[0] = dx;
    c.arg[1] = in(dy);
    c.arg[2] = in(x);
    c.arg[3] = in(y);
    return ferry_launch(s, &c);
}

ferry_status ferry_binary(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *y, const void *a, const void *b, int rank,
                          const int64_t *dim, const int64_t *a_stride, const int64_t *b_stride)
{
    ferry_kernel c = start(FERRY_OP_BINARY, t, 0);
    c.fn = fn;
    set_dims(&c, rank, dim, a_stride, b_stride, NULL);
    c.arg[0] = y;
    c.arg[1] = in(a);
    c.arg[2] = in(b);
    return ferry_launch(s, &c);
}

static ferry_status binary_grad(ferry_op op, ferry_stream *s, ferry_dtype t, ferry_fn fn, void *g, const void *dy,
                                const void *a, const void *b, int rank, const int64_t *dim, const int64_t *a_stride,
                                const int64_t *b_stride)
{
    ferry_kernel c = start(op, t, 0);
    c.fn = fn;
    set_dims(&c, rank, dim, a_stride, b_stride, NULL);
    c.arg[0] = g;
    c.arg[1] = in(dy);
    c.arg[2] = in(a);
    c.arg[3] = in(b);
    return ferry_launch(s, &c);
}

ferry_status ferry_binary_grad_a(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *g, const void *dy, const void *a,
                                 const void *b, int rank, const int64_t *dim, const int64_t *a_stride,
                                 const int64_t *b_stride)
{
    return binary_grad(FERRY_OP_BINARY_GRAD_A, s, t, fn, g, dy, a, b, rank, dim, a_stride, b_stride);
}

ferry_status ferry_binary_grad_b(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *g, const void *dy, const void *a,
                                 const void *b, int rank, const int64_t *dim, const int64_t *a_stride,
                                 const int64_t *b_stride)
{
    return binary_grad(FERRY_OP_BINARY_GRAD_B, s, t, fn, g, dy, a, b, rank, dim, a_stride, b_stride);
}

ferry_status ferry_where(ferry_stream *s, ferry_dtype t, void *y, const void *cond, const void *a, const void *b,
                         int rank, const int64_t *dim, const int64_t *cond_stride, const int64_t *a_stride,
                         const int64_t *b_stride)
{
    ferry_kernel c = start(FERRY_OP_WHERE, t, 0);
    set_dims(&c, rank, dim, cond_stride, a_stride, b_stride);
    c.arg[0] = y;
    c.arg[1] = in(cond);
    c.arg[2] = in(a);
    c.arg[3] = in(b);
    return ferry_launch(s, &c);
}

ferry_status ferry_reduce(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *y, const void *x, int rank,
                          const int64_t *dim, uint32_t axes, unsigned flags)
{
    ferry_kernel c = start(FERRY_OP_REDUCE, t, flags);
    c.fn = fn;
    c.axes = axes;
    set_dims(&c, rank, dim, NULL, NULL, NULL);
    c.arg[0] = y;
    c.arg[1] = in(x);
    return ferry_launch(s, &c);
}

/* ---- moving ----------------------------------------------------------------------------------------------------- */

ferry_status ferry_copy(ferry_stream *s, ferry_dtype t, void *y, const void *x, int rank, const int64_t *dim,
                        int64_t y_offset, const int64_t *y_stride, int64_t x_offset, const int64_t *x_stride,
                        double alpha, unsigned flags)
{
    ferry_kernel c = start(FERRY_OP_COPY, t, flags);
    set_dims(&c, rank, dim, y_stride, x_stride, NULL);
    c.offset[0] = y_offset;
    c.offset[1] = x_offset;
    c.alpha = alpha;
    c.arg[0] = y;
    c.arg[1] = in(x);
    return ferry_launch(s, &c);
}

ferry_status ferry_fill(ferry_stream *s, ferry_dtype t, void *y, double value, int64_t n)
{
    ferry_kernel c = start(FERRY_OP_FILL, t, 0);
    c.alpha = value;
    c.n = n;
    c.arg[0] = y;
    return ferry_launch(s, &c);
}

ferry_status ferry_cast(ferry_stream *s, ferry_dtype to, void *y, ferry_dtype from, const void *x, int64_t n)
{
    ferry_kernel c = start(FERRY_OP_CAST, from, 0);
    c.dtype2 = to;
    c.n = n;
    c.arg[0] = y;
    c.arg[1] = in(x);
    return ferry_launch(s, &c);
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

ferry_status ferry_softmax(ferry_stream *s, ferry_dtype t, void *y, const void *x, int64_t m, int64_t n)
{
    ferry_kernel c = start_mkn(FERRY_OP_SOFTMAX, t, 0, m, 0, n);
    c.arg[0] = y;
    c.arg[1] = in(x);
    return ferry_launch(s, &c);
}

ferry_status ferry_softmax_grad(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *y, int64_t m,
                                int64_t n)
{
    ferry_kernel c = start_mkn(FERRY_OP_SOFTMAX_GRAD, t, 0, m, 0, n);
    c.arg[0] = dx;
    c.arg[1] = in(dy);
    c.arg[2] = in(y);
    return ferry_launch(s, &c);
}

ferry_status ferry_layernorm(ferry_stream *s, ferry_dtype t, void *y, void *mean, void *rstd, const void *x,
                             const void *scale, const void *bias, int64_t m, int64_t n, double eps)
{
    ferry_kernel c = start_mkn(FERRY_OP_LAYERNORM, t, 0, m, 0, n);
    c.eps = eps;
    c.arg[0] = y;
    c.arg[1] = mean;
    c.arg[2] = rstd;
    c.arg[3] = in(x);
    c.arg[4] = in(scale);
    c.arg[5] = in(bias);
    return ferry_launch(s, &c);
}

ferry_status ferry_layernorm_dx(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *x,
                                const void *mean, const void *rstd, const void *scale, int64_t m, int64_t n,
                                unsigned flags)
{
    ferry_kernel c = start_mkn(FERRY_OP_LAYERNORM_DX, t, flags, m, 0, n);
    c.arg[0] = dx;
    c.arg[1] = in(dy);
    c.arg[2] = in(x);
    c.arg[3] = in(mean);
    c.arg[4] = in(rstd);
    c.arg[5] = in(scale);
    return ferry_launch(s, &c);
}

ferry_status ferry_layernorm_dp(ferry_stream *s, ferry_dtype t, void *dscale, void *dbias, const void *dy,
                                const void *x, const void *mean, const void *rstd, int64_t m, int64_t n, unsigned flags)
{
    ferry_kernel c = start_mkn(FERRY_OP_LAYERNORM_DP, t, flags, m, 0, n);
    c.arg[0] = dscale;
    c.arg[1] = dbias;
    c.arg[2] = in(dy);
    c.arg[3] = in(x);
    c.arg[4] = in(mean);
    c.arg[5] = in(rstd);
    return ferry_launch(s, &c);
}

ferry_status ferry_attention(ferry_stream *s, ferry_dtype t, void *y, void *lse, const void *q, const void *k,
                             const void *v, const void *mask, const ferry_attention_shape *shape)
{
    ferry_kernel c = start(FERRY_OP_ATTENTION, t, 0);
    c.attention = *shape;
    c.arg[0] = y;
    c.arg[1] = lse;
    c.arg[2] = in(q);
    c.arg[3] = in(k);
    c.arg[4] = in(v);
    c.arg[5] = in(mask);
    return ferry_launch(s, &c);
}

ferry_status ferry_attention_grad(ferry_stream *s, ferry_dtype t, void *dq, void *dk, void *dv, const void *dy,
                                  const void *q, const void *k, const void *v, const void *y, const void *lse,
                                  const void *mask, const ferry_attention_shape *shape)
{
    ferry_kernel c = start(FERRY_OP_ATTENTION_GRAD, t, 0);
    c.attention = *shape;
    const void *inputs[] = {dy, q, k, v, y, lse, mask};
    c.arg[0] = dq;
    c.arg[1] = dk;
    c.arg[2] = dv;
    for (int i = 0; i < 7; i++) {
        c.arg[3 + i] = in(inputs[i]);
    }
    return ferry_launch(s, &c);
}

/* ---- ids and labels --------------------------------------------------------------------------------------------- */

ferry_status ferry_embedding(ferry_stream *s, ferry_dtype t, void *y, const void *table, ferry_dtype id_type,
                             const void *ids, int64_t m, int64_t k, int64_t n)
{
    ferry_kernel c = start_mkn(FERRY_OP_EMBEDDING, t, 0, m, k, n);
    c.dtype2 = id_type;
    c.arg[0] = y;
    c.arg[1] = in(table);
    c.arg[2] = in(ids);
    return ferry_launch(s, &c);
}

ferry_status ferry_embedding_grad(ferry_stream *s, ferry_dtype t, void *dtable, const void *dy, ferry_dtype id_type,
                                  const void *ids, int64_t m, int64_t k, int64_t n, unsigned flags)
{
    ferry_kernel c = start_mkn(FERRY_OP_EMBEDDING_GRAD, t, flags, m, k, n);
    c.dtype2 = id_type;
    c.arg[0] = dtable;
    c.arg[1] = in(dy);
    c.arg[2] = in(ids);
    return ferry_launch(s, &c);
}

ferry_status ferry_xent(ferry_stream *s, ferry_dtype t, void *loss, void *lse, void *count, const void *logits,
                        ferry_dtype label_type, const void *labels, int64_t m, int64_t n, int64_t k,
                        int64_t ignore_index)
{
    ferry_kernel c = start_mkn(FERRY_OP_XENT, t, 0, m, k, n);
    c.dtype2 = label_type;
    c.ignore_index = ignore_index;
    c.arg[0] = loss;
    c.arg[1] = lse;
    c.arg[2] = count;
    c.arg[3] = in(logits);
    c.arg[4] = in(labels);
    return ferry_launch(s, &c);
}

ferry_status ferry_xent_grad(ferry_stream *s, ferry_dtype t, void *dlogits, const void *logits, const void *lse,
                             const void *count, ferry_dtype label_type, const void *labels, const void *dloss,
                             int64_t m, int64_t n, int64_t k, int64_t ignore_index)
{
    ferry_kernel c = start_mkn(FERRY_OP_XENT_GRAD, t, 0, m, k, n);
    c.dtype2 = label_type;
    c.ignore_index = ignore_index;
    c.arg[0] = dlogits;
    c.arg[1] = in(logits);
    c.arg[2] = in(lse);
    c.arg[3] = in(count);
    c.arg[4] = in(labels);
    c.arg[5] = in(dloss);
    return ferry_launch(s, &c);
}

/* ---- random masks, indices, order ------------------------------------------------------------------------------- */

ferry_status ferry_dropout(ferry_stream *s, ferry_dtype t, void *y, const void *x, int64_t n, double ratio,
                           uint64_t seed, int64_t step, int64_t salt, unsigned flags)
{
    ferry_kernel c = start(FERRY_OP_DROPOUT, t, flags);
    c.n = n;
    c.alpha = ratio;
    c.seed = seed;
    c.step = step;
    c.salt = salt;
    c.arg[0] = y;
    c.arg[1] = in(x);
    return ferry_launch(s, &c);
}

ferry_status ferry_ravel(ferry_stream *s, ferry_dtype id_type, void *y, const void *ids, int rank, const int64_t *dim,
                         const int64_t *y_base, const int64_t *ids_stride, int64_t count, const int64_t *sizes,
                         int64_t unit)
{
    ferry_kernel c = start(FERRY_OP_RAVEL, id_type, 0);
    set_dims(&c, rank, dim, y_base, ids_stride, NULL);
    for (int64_t i = 0; i < count && i < FERRY_MAX_RANK; i++) {
        c.stride[2][i] = sizes[i];
    }
    c.m = count;
    c.k = unit;
    c.arg[0] = y;
    c.arg[1] = in(ids);
    return ferry_launch(s, &c);
}

ferry_status ferry_scatter(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *y, const void *data, const void *updates,
                           ferry_dtype id_type, const void *ids, int64_t m, int64_t k, int64_t n)
{
    ferry_kernel c = start_mkn(FERRY_OP_SCATTER, t, 0, m, k, n);
    c.fn = fn;
    c.dtype2 = id_type;
    c.arg[0] = y;
    c.arg[1] = in(data);
    c.arg[2] = in(updates);
    c.arg[3] = in(ids);
    return ferry_launch(s, &c);
}

ferry_status ferry_scatter_grad(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *ddata, void *dupdates,
                                const void *dy, const void *data, const void *updates, const void *y,
                                ferry_dtype id_type, const void *ids, int64_t m, int64_t k, int64_t n)
{
    ferry_kernel c = start_mkn(FERRY_OP_SCATTER_GRAD, t, 0, m, k, n);
    c.fn = fn;
    c.dtype2 = id_type;
    c.arg[0] = ddata;
    c.arg[1] = dupdates;
    c.arg[2] = in(dy);
    c.arg[3] = in(data);
    c.arg[4] = in(updates);
    c.arg[5] = in(y);
    c.arg[6] = in(ids);
    return ferry_launch(s, &c);
}

ferry_status ferry_topk(ferry_stream *s, ferry_dtype t, void *ids, const void *x, int64_t m, int64_t n, int64_t k,
                        unsigned flags)
{
    ferry_kernel c = start_mkn(FERRY_OP_TOPK, t, flags, m, k, n);
    c.arg[0] = ids;
    c.arg[1] = in(x);
    return ferry_launch(s, &c);
}

/* ---- chains of element-wise kernels ------------------------------------------------------------------------------ */

ferry_status ferry_fused(ferry_stream *s, ferry_dtype t, void *y0, void *y1, void *y2, const void *x0, const void *x1,
                         const void *x2, const void *x3, const void *x4, const void *x5, const void *x6, int rank,
                         const int64_t *dim, const ferry_program *program, unsigned flags)
{
    ferry_kernel c = start(FERRY_OP_FUSED, t, flags);
    const void *inputs[] = {x0, x1, x2, x3, x4, x5, x6};
    if (program == NULL) {
        return ferryi_fail(FERRY_USAGE, "ferry_fused: the program is NULL");
    }
    set_dims(&c, rank, dim, NULL, NULL, NULL);
    c.program = *program;
    c.arg[0] = y0;
    c.arg[1] = y1;
    c.arg[2] = y2;
    for (int i = 0; i < FERRY_PROGRAM_INPUTS; i++) {
        c.arg[FERRY_PROGRAM_OUTPUTS + i] = in(inputs[i]);
    }
    return ferry_launch(s, &c);
}

ferry_status ferry_rotary(ferry_stream *s, ferry_dtype t, void *y, const void *x, const void *cosine, const void *sine, int rank,
                          const int64_t *dim, int64_t n, const int64_t *x_stride, const int64_t *angle_stride, unsigned flags)
{
    ferry_kernel c = start(FERRY_OP_ROTARY, t, flags);
    set_dims(&c, rank, dim, NULL, x_stride, angle_stride);
    c.n = n;
    c.arg[0] = y;
    c.arg[1] = in(x);
    c.arg[2] = in(cosine);
    c.arg[3] = in(sine);
    return ferry_launch(s, &c);
}

/* ---- convolutions, poolings, batch normalization ------------------------------------------------------------------ */

static ferry_kernel start_window(ferry_op op, ferry_dtype t, unsigned flags, int64_t m, int64_t k, int64_t n,
                                 const ferry_window *window)
{
    ferry_kernel c = start_mkn(op, t, flags, m, k, n);
    if (window != NULL) {
        c.window = *window;
    }
    return c;
}

ferry_status ferry_conv(ferry_stream *s, ferry_dtype t, void *y, const void *x, const void *w, const void *b, int64_t m,
                        int64_t k, int64_t n, const ferry_window *window)
{
    ferry_kernel c = start_window(FERRY_OP_CONV, t, 0, m, k, n, window);
    c.arg[0] = y;
    c.arg[1] = in(x);
    c.arg[2] = in(w);
    c.arg[3] = in(b);
    return ferry_launch(s, &c);
}

ferry_status ferry_conv_dx(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *w, const void *b,
                           int64_t m, int64_t k, int64_t n, const ferry_window *window, unsigned flags)
{
    ferry_kernel c = start_window(FERRY_OP_CONV_DX, t, flags, m, k, n, window);
    c.arg[0] = dx;
    c.arg[1] = in(dy);
    c.arg[2] = in(w);
    c.arg[3] = in(b);
    return ferry_launch(s, &c);
}

ferry_status ferry_conv_dw(ferry_stream *s, ferry_dtype t, void *dw, const void *x, const void *dy, int64_t m, int64_t k,
                           int64_t n, const ferry_window *window, unsigned flags)
{
    ferry_kernel c = start_window(FERRY_OP_CONV_DW, t, flags, m, k, n, window);
    c.arg[0] = dw;
    c.arg[1] = in(x);
    c.arg[2] = in(dy);
    return ferry_launch(s, &c);
}

ferry_status ferry_maxpool(ferry_stream *s, ferry_dtype t, void *y, void *index, const void *x, int64_t m,
                           const ferry_window *window)
{
    ferry_kernel c = start_window(FERRY_OP_MAXPOOL, t, 0, m, 0, 0, window);
    c.arg[0] = y;
    c.arg[1] = index;
    c.arg[2] = in(x);
    return ferry_launch(s, &c);
}

ferry_status ferry_maxpool_grad(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *index, int64_t m,
                                const ferry_window *window, unsigned flags)
{
    ferry_kernel c = start_window(FERRY_OP_MAXPOOL_GRAD, t, flags, m, 0, 0, window);
    c.arg[0] = dx;
    c.arg[1] = in(dy);
    c.arg[2] = in(index);
    return ferry_launch(s, &c);
}

ferry_status ferry_avgpool(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *y, const void *x, int64_t m,
                           const ferry_window *window)
{
    ferry_kernel c = start_window(FERRY_OP_AVGPOOL, t, 0, m, 0, 0, window);
    c.fn = fn;
    c.arg[0] = y;
    c.arg[1] = in(x);
    return ferry_launch(s, &c);
}

ferry_status ferry_avgpool_grad(ferry_stream *s, ferry_dtype t, ferry_fn fn, void *dx, const void *dy, int64_t m,
                                const ferry_window *window, unsigned flags)
{
    ferry_kernel c = start_window(FERRY_OP_AVGPOOL_GRAD, t, flags, m, 0, 0, window);
    c.fn = fn;
    c.arg[0] = dx;
    c.arg[1] = in(dy);
    return ferry_launch(s, &c);
}

ferry_status ferry_batchnorm(ferry_stream *s, ferry_dtype t, void *y, const void *x, const void *scale, const void *bias,
                             const void *mean, const void *var, int64_t m, int64_t n, int64_t k, double eps)
{
    ferry_kernel c = start_mkn(FERRY_OP_BATCHNORM, t, 0, m, k, n);
    c.eps = eps;
    c.arg[0] = y;
    c.arg[1] = in(x);
    c.arg[2] = in(scale);
    c.arg[3] = in(bias);
    c.arg[4] = in(mean);
    c.arg[5] = in(var);
    return ferry_launch(s, &c);
}

ferry_status ferry_batchnorm_dx(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *scale,
                                const void *var, int64_t m, int64_t n, int64_t k, double eps)
{
    ferry_kernel c = start_mkn(FERRY_OP_BATCHNORM_DX, t, 0, m, k, n);
    c.eps = eps;
    c.arg[0] = dx;
    c.arg[1] = in(dy);
    c.arg[2] = in(scale);
    c.arg[3] = in(var);
    return ferry_launch(s, &c);
}

ferry_status ferry_batchnorm_dp(ferry_stream *s, ferry_dtype t, void *dscale, void *dbias, const void *dy, const void *x,
                                const void *mean, const void *var, int64_t m, int64_t n, int64_t k, double eps,
                                unsigned flags)
{
    ferry_kernel c = start_mkn(FERRY_OP_BATCHNORM_DP, t, flags, m, k, n);
    c.eps = eps;
    c.arg[0] = dscale;
    c.arg[1] = dbias;
    c.arg[2] = in(dy);
    c.arg[3] = in(x);
    c.arg[4] = in(mean);
    c.arg[5] = in(var);
    return ferry_launch(s, &c);
}

ferry_status ferry_batch_stats(ferry_stream *s, ferry_dtype t, void *mean, void *var, const void *x, int64_t m, int64_t n,
                               int64_t k)
{
    ferry_kernel c = start_mkn(FERRY_OP_BATCH_STATS, t, 0, m, k, n);
    c.arg[0] = mean;
    c.arg[1] = var;
    c.arg[2] = in(x);
    return ferry_launch(s, &c);
}

ferry_status ferry_batchnorm_train_dx(ferry_stream *s, ferry_dtype t, void *dx, const void *dy, const void *x,
                                      const void *scale, const void *mean, const void *var, int64_t m, int64_t n, int64_t k,
                                      double eps)
{
    ferry_kernel c = start_mkn(FERRY_OP_BATCHNORM_TRAIN_DX, t, 0, m, k, n);
    c.eps = eps;
    c.arg[0] = dx;
    c.arg[1] = in(dy);
    c.arg[2] = in(x);
    c.arg[3] = in(scale);
    c.arg[4] = in(mean);
    c.arg[5] = in(var);
    return ferry_launch(s, &c);
}

ferry_status ferry_moving_average(ferry_stream *s, ferry_dtype t, void *y, const void *x, int64_t n, double momentum)
{
    ferry_kernel c = start_mkn(FERRY_OP_MOVING_AVERAGE, t, FERRY_ACCUMULATE, 0, 0, n);
    c.alpha = momentum;
    c.arg[0] = y;
    c.arg[1] = in(x);
    return ferry_launch(s, &c);
}
