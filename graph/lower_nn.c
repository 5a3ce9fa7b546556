/* lower_nn.c - products, normalizations and losses. */
#include <string.h>

#include "graph/lower.h"
#include "graph/ops_lower.h"

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* The matrix that tensor b really is when it is a parameter: itself, a view, or what a transposing copy of a parameter
 * reads; *trans then says that the parameter is stored transposed. The copy is left without a reader and pruned later.
 * -1 when b is no parameter. rows x cols is the shape in which b is used. */
static int find_param_matrix(const Graph *g, int b, int64_t rows, int64_t cols, bool *trans)
{
    *trans = false;
    if (graph_is_param(g, b))
        return b;
    int producer = g->tensor.at[graph_root(g, b)].producer;
    if (producer < 0)
        return -1;
    const Node *copy = &g->node.at[producer];
    int64_t r, c;
    if (!call_is_transpose_2d(&copy->call, &r, &c) || r != cols || c != rows || !graph_is_param(g, copy->arg[1]))
        return -1;
    *trans = true;
    return copy->arg[1];
}

/* The Add of a bias [n] that is the only reader of the node's output, as transformers are exported; NULL when there is
 * none. */
static const ModelNode *find_bias_add(const Lowering *l, const ModelNode *n, int64_t cols, int *bias)
{
    int v = n->out[0];
    if (l->n_use[v] != 1 || l->user[v] < 0)
        return NULL;
    const ModelNode *add = &l->model->node.at[l->user[v]];
    if (strcmp(add->op, "Add") != 0 || add->n_in != 2)
        return NULL;
    int other = add->in[0] == v ? add->in[1] : add->in[0];
    *bias = other < 0 ? -1 : l->tensor_of[other];
    if (*bias < 0 || !graph_is_param(l->graph, *bias))
        return NULL;
    const Tensor *t = &l->graph->tensor.at[*bias];
    return t->rank == 1 && t->dim[0] == cols ? add : NULL;
}

static Status emit_linear(Diag *d, Lowering *l, const ModelNode *n, const ModelNode *result_of, int x, int w, int bias,
                          int64_t m, int64_t k, int64_t cols, bool trans)
{
    int y;
    TRY(lower_output(d, l, result_of, 0, &y));
    ferry_kernel call = call_linear(l->graph->precision, m, k, cols, trans);
    return lower_emit(d, l, n, &call, (int[]){y, x, w, bias});
}

Status lower_matmul(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int a, b, y, bias = -1;
    TRY(lower_input(d, l, n, 0, &a));
    TRY(lower_input(d, l, n, 1, &b));
    Tensor ta = g->tensor.at[a], tb = g->tensor.at[b];
    if (!dtype_is_float(ta.dtype) || !dtype_is_float(tb.dtype))
        return node_fail(d, l->model, n, "products of integers are unsupported");
    if (ta.rank < 1 || tb.rank < 1)
        return node_fail(d, l->model, n, "an input is a scalar");
    if (ta.rank == 1) { /* [k] is a row */
        ta.dim[1] = ta.dim[0];
        ta.dim[0] = 1;
        ta.rank = 2;
    }
    if (tb.rank == 1) { /* [k] is a column */
        tb.dim[1] = 1;
        tb.rank = 2;
    }
    int64_t m = ta.dim[ta.rank - 2], k = ta.dim[ta.rank - 1], cols = tb.dim[tb.rank - 1];
    if (tb.dim[tb.rank - 2] != k)
        return node_fail(d, l->model, n, "inner dimensions %lld and %lld differ", (long long)k,
                         (long long)tb.dim[tb.rank - 2]);
    if (tb.rank == 2) {
        bool trans;
        int w = find_param_matrix(g, b, k, cols, &trans);
        m = dims_count(ta.rank - 1, ta.dim);
        if (w >= 0) {
            const ModelNode *add = find_bias_add(l, n, cols, &bias);
            return emit_linear(d, l, n, add != NULL ? add : n, a, w, add != NULL ? bias : -1, m, k, cols, trans);
        }
        ta.rank = 2; /* one product of all rows */
    }
    TRY(lower_output(d, l, n, 0, &y));
    ferry_kernel call = call_new(FERRY_OP_MATMUL, g->precision);
    call.m = m;
    call.k = k;
    call.n = cols;
    int batch = (ta.rank > tb.rank ? ta.rank : tb.rank) - 2;
    strides_broadcast(batch, ta.rank - 2, ta.dim, call.stride[1]);
    strides_broadcast(batch, tb.rank - 2, tb.dim, call.stride[2]);
    for (int i = 0; i < batch; i++) {
        call.dim[i] = g->tensor.at[y].dim[i];
        call.stride[1][i] *= m * k;
        call.stride[2][i] *= k * cols;
    }
    strides_dense(batch, call.dim, call.stride[0]);
    for (int i = 0; i < batch; i++)
        call.stride[0][i] *= m * cols;
    call.rank = batch;
    if (dims_count(batch, call.dim) == 1)
        call.rank = 0;
    else
        space_simplify(&call.rank, call.dim, call.stride, 3);
    return lower_emit(d, l, n, &call, (int[]){y, a, b});
}

/* y = alpha * op(A) * op(B) + beta * C */
Status lower_gemm(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int a, b, c, product, y;
    double alpha = node_attr_float(n, "alpha", 1), beta = node_attr_float(n, "beta", 1);
    bool ta = node_attr_int(n, "transA", 0) != 0, tb = node_attr_int(n, "transB", 0) != 0;
    TRY(lower_input(d, l, n, 0, &a));
    TRY(lower_input(d, l, n, 1, &b));
    TRY(lower_input(d, l, n, 2, &c));
    const Tensor A = g->tensor.at[a], B = g->tensor.at[b];
    if (A.rank != 2 || B.rank != 2 || !dtype_is_float(A.dtype) || !dtype_is_float(B.dtype))
        return node_fail(d, l->model, n, "its inputs are not two floating matrices");
    int64_t m = A.dim[ta], k = A.dim[!ta], cols = B.dim[!tb];
    if (B.dim[tb] != k)
        return node_fail(d, l->model, n, "inner dimensions %lld and %lld differ", (long long)k, (long long)B.dim[tb]);
    if (beta == 0)
        c = -1;
    bool is_bias = c >= 0 && beta == 1 && g->tensor.at[c].count == cols && g->tensor.at[c].rank >= 1 &&
                   g->tensor.at[c].dim[g->tensor.at[c].rank - 1] == cols;
    if (!ta && alpha == 1) {
        bool stored_trans;
        int w = find_param_matrix(g, b, B.dim[0], B.dim[1], &stored_trans);
        if (w < 0)
            w = b;
        if (c < 0 || is_bias)
            return emit_linear(d, l, n, n, a, w, c, m, k, cols, tb != stored_trans);
    }
    if (c < 0)
        TRY(lower_output(d, l, n, 0, &product));
    else
        TRY(lower_temp(d, l, n, g->precision, 2, (int64_t[]){m, cols}, &product));
    ferry_kernel call = call_new(FERRY_OP_MATMUL, g->precision);
    call.m = m;
    call.k = k;
    call.n = cols;
    call.trans_a = ta;
    call.trans_b = tb;
    call.alpha = alpha;
    TRY(lower_emit(d, l, n, &call, (int[]){product, a, b}));
    if (c < 0)
        return ST_OK;
    if (beta != 1) {
        const Tensor C = g->tensor.at[c];
        int scaled;
        TRY(lower_temp(d, l, n, g->precision, C.rank, C.dim, &scaled));
        ferry_kernel scale = call_scale(g->precision, C.count, beta, false);
        TRY(lower_emit(d, l, n, &scale, (int[]){scaled, c}));
        c = scaled;
    }
    TRY(lower_output(d, l, n, 0, &y));
    const Tensor Y = g->tensor.at[y], C = g->tensor.at[c];
    int64_t sp[MAX_RANK], sc[MAX_RANK];
    strides_dense(2, Y.dim, sp);
    strides_broadcast(2, C.rank, C.dim, sc);
    ferry_kernel add = call_binary(FERRY_OP_BINARY, g->precision, FERRY_ADD, 2, Y.dim, sp, sc);
    return lower_emit(d, l, n, &add, (int[]){y, product, c});
}

/* ---- normalizations ---------------------------------------------------------------------------------------------- */

Status lower_layer_normalization(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int x, scale, bias, axis, y, mean, rstd;
    TRY(lower_input(d, l, n, 0, &x));
    TRY(lower_input(d, l, n, 1, &scale));
    TRY(lower_input(d, l, n, 2, &bias));
    const Tensor t = g->tensor.at[x];
    TRY(lower_axis(d, l, n, t.rank, -1, &axis));
    if (lower_is_used(l, n, 1) || lower_is_used(l, n, 2))
        return node_fail(d, l->model, n, "its outputs Mean and InvStdDev are unsupported");
    int64_t m = dims_count(axis, t.dim), cols = dims_count(t.rank - axis, t.dim + axis);
    if (g->tensor.at[scale].count != cols || (bias >= 0 && g->tensor.at[bias].count != cols))
        return node_fail(d, l->model, n, "a scale or bias that is broadcast is unsupported");
    TRY(lower_output(d, l, n, 0, &y));
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "mean"), TENSOR_VALUE, graph_wide_dtype(g), 1, &m, &mean));
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "rstd"), TENSOR_VALUE, graph_wide_dtype(g), 1, &m, &rstd));
    ferry_kernel call = call_new(FERRY_OP_LAYERNORM, g->precision);
    call.m = m;
    call.n = cols;
    call.eps = node_attr_float(n, "epsilon", 1e-5);
    for (int i = 1; i < n->n_out; i++) /* unused outputs need a tensor to be known as done */
        if (n->out[i] >= 0)
            l->tensor_of[n->out[i]] = i == 1 ? mean : rstd;
    return lower_emit(d, l, n, &call, (int[]){y, mean, rstd, x, scale, bias});
}

static Status emit_softmax(Diag *d, Lowering *l, const ModelNode *n, int y, int x, int64_t m, int64_t cols)
{
    ferry_kernel call = call_new(FERRY_OP_SOFTMAX, l->graph->precision);
    call.m = m;
    call.n = cols;
    return lower_emit(d, l, n, &call, (int[]){y, x});
}

Status lower_softmax(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int x, y, axis, front, soft;
    bool flattens = l->model->opset < 13; /* rows are all dimensions before the axis, columns all from it on */
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = g->tensor.at[x];
    if (t.rank < 1)
        return node_fail(d, l->model, n, "its input is a scalar");
    TRY(lower_axis(d, l, n, t.rank, flattens ? 1 : -1, &axis));
    int64_t outer = dims_count(axis, t.dim), inner = dims_count(t.rank - axis - 1, t.dim + axis + 1);
    int64_t size = t.dim[axis];
    if (flattens || inner == 1) {
        TRY(lower_output(d, l, n, 0, &y));
        return emit_softmax(d, l, n, y, x, outer, dims_count(t.rank - axis, t.dim + axis));
    }
    /* [outer, size, inner] -> [outer, inner, size] and back */
    const int64_t to[] = {outer, inner, size}, from[] = {outer, size, inner};
    const int64_t to_stride[] = {size * inner, 1, inner}, from_stride[] = {size * inner, 1, size};
    int64_t to_dense[3], from_dense[3];
    strides_dense(3, to, to_dense);
    strides_dense(3, from, from_dense);
    TRY(lower_temp(d, l, n, t.dtype, 3, to, &front));
    ferry_kernel call = call_copy(t.dtype, 3, to, 0, to_dense, 0, to_stride, 1);
    TRY(lower_emit(d, l, n, &call, (int[]){front, x}));
    TRY(lower_temp(d, l, n, t.dtype, 3, to, &soft));
    TRY(emit_softmax(d, l, n, soft, front, outer * inner, size));
    TRY(lower_output(d, l, n, 0, &y));
    call = call_copy(t.dtype, 3, from, 0, from_dense, 0, from_stride, 1);
    return lower_emit(d, l, n, &call, (int[]){y, soft});
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */

Status lower_cross_entropy(Diag *d, Lowering *l, ModelNode *n)
{
    Graph *g = l->graph;
    int logits, labels, y, loss, lse, count;
    const Attr *reduction = node_attr(n, "reduction");
    if (reduction != NULL && reduction->s != NULL && strcmp(reduction->s, "mean") != 0)
        return node_fail(d, l->model, n, "the reduction '%s' is unsupported: only 'mean' is", reduction->s);
    if (n->n_in > 2 && n->in[2] >= 0)
        return node_fail(d, l->model, n, "class weights are unsupported");
    if (lower_is_used(l, n, 1))
        return node_fail(d, l->model, n, "its output log_prob is unsupported");
    TRY(lower_input(d, l, n, 0, &logits));
    TRY(lower_input(d, l, n, 1, &labels));
    const Tensor t = g->tensor.at[logits], tl = g->tensor.at[labels];
    if (t.rank < 2 || (tl.dtype != FERRY_I64 && tl.dtype != FERRY_I32))
        return node_fail(d, l->model, n, "scores [N, C, ...] and int32 or int64 labels [N, ...] are needed");
    ferry_kernel call = call_new(FERRY_OP_XENT, g->precision);
    call.dtype2 = tl.dtype;
    call.m = t.dim[0];
    call.n = t.dim[1];
    call.k = dims_count(t.rank - 2, t.dim + 2);
    call.ignore_index = node_attr_int(n, "ignore_index", INT64_MIN); /* a label that no tensor holds by chance */
    if (tl.count != call.m * call.k)
        return node_fail(d, l->model, n, "%lld labels for %lld rows of scores", (long long)tl.count,
                         (long long)(call.m * call.k));
    ferry_dtype wide = graph_wide_dtype(g);
    TRY(lower_output(d, l, n, 0, &y));
    loss = y;
    if (wide != g->precision)
        TRY(lower_temp(d, l, n, wide, 0, NULL, &loss));
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "lse"), TENSOR_VALUE, wide, 2, (int64_t[]){call.m, call.k}, &lse));
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "count"), TENSOR_VALUE, wide, 0, NULL, &count));
    if (n->n_out > 1 && n->out[1] >= 0)
        l->tensor_of[n->out[1]] = logits;
    TRY(lower_emit(d, l, n, &call, (int[]){loss, lse, count, logits, labels}));
    if (loss == y)
        return ST_OK;
    ferry_kernel cast = call_new(FERRY_OP_CAST, wide); /* for a model that goes on with it; graph_loss takes the wide one */
    cast.dtype2 = g->precision;
    cast.n = 1;
    return lower_emit(d, l, n, &cast, (int[]){y, loss});
}
