/* fold_math.c - evaluators of reductions, running sums, softmax and products of constants: small tables, computed
 * plainly. */
#include <math.h>
#include <string.h>

#include "graph/fold.h"

typedef enum Reduction { R_SUM, R_MEAN, R_MAX, R_MIN, R_PROD } Reduction;

static double reduce_real(Reduction r, double acc, double x)
{
    switch (r) {
    case R_MAX:
        return isnan(acc) || acc > x ? acc : x;
    case R_MIN:
        return isnan(acc) || acc < x ? acc : x;
    case R_PROD:
        return acc * x;
    default:
        return acc + x;
    }
}

static int64_t reduce_int(Reduction r, bool is_unsigned, int64_t acc, int64_t x)
{
    bool less = is_unsigned ? (uint64_t)acc < (uint64_t)x : acc < x;
    switch (r) {
    case R_MAX:
        return less ? x : acc;
    case R_MIN:
        return less ? acc : x;
    case R_PROD:
        return (int64_t)((uint64_t)acc * (uint64_t)x);
    default:
        return (int64_t)((uint64_t)acc + (uint64_t)x);
    }
}

/* The largest or smallest of no elements: what any element replaces. */
static void put_neutral(ferry_dtype t, void *out, int64_t i, bool largest)
{
    unsigned bits = 8 * (unsigned)ferry_dtype_bytes(t) - 1;
    bool is_signed = t == FERRY_I64 || t == FERRY_I32 || t == FERRY_I16 || t == FERRY_I8;
    if (dtype_is_float(t))
        num_put_real(t, out, i, largest ? (double)INFINITY : -(double)INFINITY);
    else if (is_signed)
        num_put_int(t, out, i, (int64_t)(((uint64_t)1 << bits) - largest)); /* 0x80.., or 0x7f.. */
    else
        num_put_int(t, out, i, largest ? -1 : 0);
}

/* The output is walked twice over: kept axes outside, reduced axes inside. */
Status fold_reduce(Diag *d, Model *m, ModelNode *n)
{
    uint32_t axes;
    int count;
    const Value *x = node_in(m, n, 0), *y = node_out(m, n, 0);
    static const char *const name[] = {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"};
    Reduction r = R_SUM;
    while (strcmp(n->op, name[r]) != 0)
        r++;
    TRY(known_axes(d, m, n, 1, x->rank, &axes, &count));
    if (count <= 0 && !node_attr_int(n, "noop_with_empty_axes", 0))
        axes = ~(uint32_t)0;
    void *out = y ? fold_output_dense(d, m, n, 0) : NULL;
    if (!out)
        return d->status;
    Walk outer = {.rank = 0, .arrays = 1}, inner = {.rank = 0, .arrays = 1};
    int64_t stride[MAX_RANK];
    fold_strides(x, x->rank, stride);
    for (int k = 0; k < x->rank; k++) {
        Walk *w = axes >> k & 1 ? &inner : &outer;
        w->dim[w->rank] = x->dim[k];
        w->stride[0][w->rank++] = stride[k];
    }
    int64_t size = dims_count(inner.rank, inner.dim), place = 0;
    bool real = dtype_is_float(x->dtype), is_unsigned = x->dtype == FERRY_U64;
    while (walk_next(&outer))
        for (int64_t i = 0; i < outer.row; i++) {
            double acc = r == R_PROD ? 1 : 0;
            int64_t acc_int = r == R_PROD ? 1 : 0;
            bool first = r == R_MAX || r == R_MIN;
            inner.started = false;
            while (walk_next(&inner))
                for (int64_t k = 0; k < inner.row; k++, first = false) {
                    int64_t at = outer.offset[0] + i * outer.step[0] + inner.offset[0] + k * inner.step[0];
                    if (real) {
                        double v = num_real(x->dtype, x->data, at);
                        acc = first ? v : reduce_real(r, acc, v);
                    } else {
                        int64_t v = num_int(x->dtype, x->data, at);
                        acc_int = first ? v : reduce_int(r, is_unsigned, acc_int, v);
                    }
                }
            if (first)
                put_neutral(y->dtype, out, place++, r == R_MIN);
            else if (real)
                num_put_real(y->dtype, out, place++, r == R_MEAN ? acc / (double)size : acc);
            else if (r == R_MEAN && size == 0)
                return node_fail(d, m, n, "of no elements");
            else
                num_put_int(y->dtype, out, place++, r == R_MEAN ? acc_int / size : acc_int);
        }
    return ST_OK;
}

/* exclusive: without the element itself; reverse: from the end. */
Status fold_cumsum(Diag *d, Model *m, ModelNode *n)
{
    int axis;
    const Value *x = node_in(m, n, 0), *which = node_in(m, n, 1), *y = node_out(m, n, 0);
    if ((which->dtype != FERRY_I64 && which->dtype != FERRY_I32) || value_count(which) != 1)
        return node_fail(d, m, n, "its axis is not one integer");
    TRY(axis_resolve(d, m, n, num_int(which->dtype, which->data, 0), x->rank, &axis));
    bool exclusive = node_attr_int(n, "exclusive", 0) != 0, reverse = node_attr_int(n, "reverse", 0) != 0;
    const void *data = y ? fold_dense(d, m, x) : NULL;
    void *out = data ? fold_output_dense(d, m, n, 0) : NULL;
    if (!out)
        return d->status;
    int64_t size = x->dim[axis], inner = dims_count(x->rank - axis - 1, x->dim + axis + 1), count = value_count(x);
    bool real = dtype_is_float(x->dtype);
    for (int64_t line = 0; size && line < count / size; line++) {
        int64_t base = line / inner * inner * size + line % inner;
        double sum = 0;
        uint64_t sum_int = 0;
        for (int64_t k = 0; k < size; k++) {
            int64_t at = base + (reverse ? size - 1 - k : k) * inner;
            double before = sum;
            uint64_t before_int = sum_int;
            if (real) {
                sum += num_real(x->dtype, data, at);
                num_put_real(y->dtype, out, at, exclusive ? before : sum);
            } else {
                sum_int += (uint64_t)num_int(x->dtype, data, at);
                num_put_int(y->dtype, out, at, (int64_t)(exclusive ? before_int : sum_int));
            }
        }
    }
    return ST_OK;
}

/* Over one axis from opset 13 on, before it over all axes from `axis` on. */
Status fold_softmax(Diag *d, Model *m, ModelNode *n)
{
    int axis = 0;
    const Value *x = node_in(m, n, 0);
    bool flat = m->opset < 13, logarithm = strcmp(n->op, "LogSoftmax") == 0;
    int64_t wanted = node_attr_int(n, "axis", flat ? 1 : -1);
    if (x->rank == 0 || (flat && wanted == x->rank))
        axis = x->rank;
    else
        TRY(axis_resolve(d, m, n, wanted, x->rank, &axis));
    const void *data = node_out(m, n, 0) ? fold_dense(d, m, x) : NULL;
    void *out = data ? fold_output_dense(d, m, n, 0) : NULL;
    if (!out)
        return d->status;
    int64_t inner = flat || axis == x->rank ? 1 : dims_count(x->rank - axis - 1, x->dim + axis + 1);
    int64_t size = flat ? dims_count(x->rank - axis, x->dim + axis) : axis == x->rank ? 1 : x->dim[axis];
    int64_t count = value_count(x);
    for (int64_t line = 0; size && line < count / size; line++) {
        int64_t base = line / inner * inner * size + line % inner;
        double most = -INFINITY, sum = 0;
        for (int64_t k = 0; k < size; k++)
            most = fmax(most, num_real(x->dtype, data, base + k * inner));
        for (int64_t k = 0; k < size; k++)
            sum += exp(num_real(x->dtype, data, base + k * inner) - most);
        for (int64_t k = 0; k < size; k++) {
            double v = num_real(x->dtype, data, base + k * inner) - most;
            num_put_real(x->dtype, out, base + k * inner, logarithm ? v - log(sum) : exp(v) / sum);
        }
    }
    return ST_OK;
}

/* For outer products of positions and frequencies and the like. A large product is not folded: it would take long. */
Status fold_matmul(Diag *d, Model *m, ModelNode *n)
{
    const int64_t most_products = (int64_t)1 << 28;
    const Value *a = node_in(m, n, 0), *b = node_in(m, n, 1), *y = node_out(m, n, 0);
    int64_t inner = a->dim[a->rank - 1], products;
    if (!y || mul_overflows_i64(value_count(y), inner, &products) || products > most_products)
        return ST_OK;
    /* as [batch.., rows, inner] and [batch.., inner, columns]: a vector's missing axis is added and dropped again */
    bool vector_a = a->rank == 1, vector_b = b->rank == 1;
    Walk w = {.rank = y->rank - !vector_a - !vector_b, .arrays = 2};
    int64_t sa[MAX_RANK], sb[MAX_RANK], rows = vector_a ? 1 : a->dim[a->rank - 2],
                                        columns = vector_b ? 1 : b->dim[b->rank - 1];
    fold_strides(a, a->rank, sa);
    fold_strides(b, b->rank, sb);
    for (int k = 0; k < w.rank; k++) {
        int from_a = a->rank - 2 - w.rank + k, from_b = b->rank - 2 - w.rank + k;
        w.dim[k] = y->dim[k];
        w.stride[0][k] = from_a >= 0 ? sa[from_a] : 0;
        w.stride[1][k] = from_b >= 0 ? sb[from_b] : 0;
    }
    int64_t a_row = vector_a ? 0 : sa[a->rank - 2], a_inner = sa[a->rank - 1];
    int64_t b_inner = vector_b ? sb[0] : sb[b->rank - 2], b_column = vector_b ? 0 : sb[b->rank - 1], place = 0;
    void *out = fold_output_dense(d, m, n, 0);
    while (out && walk_next(&w))
        for (int64_t i = 0; i < w.row; i++)
            for (int64_t rc = 0; rc < rows * columns; rc++) {
                int64_t ia = w.offset[0] + i * w.step[0] + rc / columns * a_row;
                int64_t ib = w.offset[1] + i * w.step[1] + rc % columns * b_column;
                double sum = 0;
                uint64_t sum_int = 0;
                for (int64_t k = 0; k < inner; k++, ia += a_inner, ib += b_inner)
                    if (dtype_is_float(a->dtype))
                        sum += num_real(a->dtype, a->data, ia) * num_real(b->dtype, b->data, ib);
                    else
                        sum_int += (uint64_t)num_int(a->dtype, a->data, ia) * (uint64_t)num_int(b->dtype, b->data, ib);
                if (dtype_is_float(a->dtype))
                    num_put_real(y->dtype, out, place++, sum);
                else
                    num_put_int(y->dtype, out, place++, (int64_t)sum_int);
            }
    return d->status;
}
