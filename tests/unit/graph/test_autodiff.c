/* Gradient rules against central differences in fp64: each kernel on random shapes, then random graphs in which values
 * are shared, viewed, sliced and added up. */
#include "tests/unit/graph/graph_make.h"

enum { ROUNDS = 6 };

static void random_shape(Make *m, int max_rank, int *rank, int64_t *dim)
{
    *rank = (int)make_int(m, 0, max_rank);
    for (int i = 0; i < *rank; i++)
        dim[i] = make_int(m, 0, 2) == 0 ? 1 : make_int(m, 2, 4);
}

static void test_unary(void **state)
{
    (void)state;
    const ferry_fn fns[] = {FERRY_NEG,     FERRY_ABS,  FERRY_SQRT,       FERRY_EXP, FERRY_LOG, FERRY_TANH,  FERRY_ERF,
                            FERRY_SIGMOID, FERRY_RELU, FERRY_RECIPROCAL, FERRY_SIN, FERRY_COS, FERRY_SQUARE};
    for (size_t f = 0; f < sizeof(fns) / sizeof(*fns); f++)
        for (int twice = 0; twice < 2; twice++) {
            Make made, *m = &made;
            make_open(m, f * 2 + (size_t)twice);
            int64_t n = make_int(m, 1, 9);
            bool positive = fns[f] == FERRY_SQRT || fns[f] == FERRY_LOG || fns[f] == FERRY_RECIPROCAL;
            int x = make_param(m, 1, &n, positive ? 0.5 : -1, 2), y = make_unary(m, FERRY_EXP, x);
            make_loss(m, make_unary(m, fns[f], positive ? y : x));
            if (twice) /* the second contribution is added */
                make_loss(m, make_unary(m, fns[f], positive ? y : x));
            make_check_gradients(m);
            make_close(m);
        }
}

static void test_binary(void **state)
{
    (void)state;
    const ferry_fn fns[] = {FERRY_ADD, FERRY_SUB, FERRY_MUL, FERRY_DIV, FERRY_POW, FERRY_MAX, FERRY_MIN};
    for (size_t f = 0; f < sizeof(fns) / sizeof(*fns); f++)
        for (uint64_t round = 0; round < 3 * ROUNDS; round++) {
            Make made, *m = &made;
            make_open(m, f * 1000 + round);
            int rank, ra, rb;
            int64_t dim[MAX_RANK], da[MAX_RANK], db[MAX_RANK];
            random_shape(m, 4, &rank, dim);
            ra = (int)make_int(m, 0, rank);
            rb = (int)make_int(m, 0, rank);
            for (int i = 0; i < ra; i++)
                da[i] = make_int(m, 0, 2) == 0 ? 1 : dim[rank - ra + i];
            for (int i = 0; i < rb; i++)
                db[i] = make_int(m, 0, 2) == 0 ? 1 : dim[rank - rb + i];
            int a = make_param(m, ra, da, 0.5, 2), b = make_param(m, rb, db, 0.5, 2);
            int va = round % 2 ? make_unary(m, FERRY_TANH, a) : a, vb = round % 3 ? make_unary(m, FERRY_TANH, b) : b;
            make_loss(m, make_binary(m, fns[f], va, round % 5 == 4 ? va : vb)); /* both operands the same, too */
            if (round % 5 == 4)
                make_loss(m, vb);
            make_check_gradients(m);
            make_close(m);
        }
}

/* A product or quotient by a constant, and a difference whose operand is used again. */
static void test_scalars(void **state)
{
    (void)state;
    Make made, *m = &made;
    make_open(m, 7);
    int64_t dim[] = {3, 2}, one = 1;
    double *half = make_data(m, 1, 0.5, 0.6);
    int x = make_param(m, 2, dim, 1, 2), c = make_const(m, FERRY_F64, 1, &one, half);
    int y = make_unary(m, FERRY_SQUARE, x);
    int by = make_binary(m, FERRY_MUL, y, c), div = make_binary(m, FERRY_DIV, y, c),
        inv = make_binary(m, FERRY_DIV, c, y);
    int left = make_binary(m, FERRY_SUB, by, div), right = make_binary(m, FERRY_SUB, inv, by);
    make_loss(m, make_binary(m, FERRY_MUL, left, right));
    make_loss(m, by);
    make_check_gradients(m);
    make_close(m);
}

static void test_where(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        Make made, *m = &made;
        make_open(m, round);
        int64_t dim[] = {2, 3, 4}, da[] = {3, 4}, db[] = {2, 1, 4}, dc[] = {3, 1}, sc[3], sa[3], sb[3];
        uint8_t *bits = ARENA_NEW(m->arena, uint8_t, 3);
        for (int i = 0; i < 3; i++)
            bits[i] = (uint8_t)make_int(m, 0, 1);
        bool broadcast = round % 2 == 0;
        int c = make_const(m, FERRY_BOOL, 2, dc, bits);
        int a = make_param(m, broadcast ? 2 : 3, broadcast ? da : dim, -1, 1);
        int b = make_param(m, 3, broadcast ? db : dim, -1, 1), y = make_value(m, FERRY_F64, 3, dim);
        strides_broadcast(3, 2, dc, sc);
        strides_broadcast(3, m->g->tensor.at[a].rank, m->g->tensor.at[a].dim, sa);
        strides_broadcast(3, 3, m->g->tensor.at[b].dim, sb);
        ferry_kernel call = call_where(FERRY_F64, 3, dim, sc, sa, sb);
        make_node(m, &call, (int[]){y, c, a, b});
        make_loss(m, y);
        make_check_gradients(m);
        make_close(m);
    }
}

static void test_reduce(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 4 * ROUNDS; round++) {
        Make made, *m = &made;
        make_open(m, round);
        int rank, kept = 0;
        int64_t dim[MAX_RANK], out[MAX_RANK];
        random_shape(m, 4, &rank, dim);
        uint32_t axes = (uint32_t)make_int(m, 0, (1 << rank) - 1);
        for (int i = 0; i < rank; i++)
            if (!(axes >> i & 1))
                out[kept++] = dim[i];
        int x = make_param(m, rank, dim, -1, 1), v = round % 3 ? make_unary(m, FERRY_TANH, x) : x;
        int y = make_value(m, FERRY_F64, kept, out);
        ferry_kernel call = call_reduce(FERRY_F64, round % 2 ? FERRY_SUM : FERRY_MEAN, rank, dim, axes);
        make_node(m, &call, (int[]){y, v});
        make_loss(m, y);
        if (round % 4 == 0)
            make_loss(m, v);
        make_check_gradients(m);
        make_close(m);
    }
}

/* y of shape dim gathered from x by these strides. */
static int copy_from(Make *m, int x, int rank, const int64_t *dim, int64_t offset, const int64_t *stride)
{
    int64_t dense[MAX_RANK];
    int y = make_value(m, FERRY_F64, rank, dim);
    strides_dense(rank, dim, dense);
    ferry_kernel call = call_copy(FERRY_F64, rank, dim, 0, dense, offset, stride, 1);
    make_node(m, &call, (int[]){y, x});
    return y;
}

/* Permutations, slices with steps in both directions and repetitions, mixed. */
static void test_copy(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 10 * ROUNDS; round++) {
        Make made, *m = &made;
        make_open(m, round);
        int rank = (int)make_int(m, 1, 4), out = 0, perm[4] = {0, 1, 2, 3};
        int64_t dim[MAX_RANK], stride[MAX_RANK], y_dim[MAX_RANK], y_stride[MAX_RANK], offset = 0;
        for (int i = 0; i < rank; i++)
            dim[i] = make_int(m, 1, 4);
        for (int i = rank - 1; i > 0; i--) {
            int j = (int)make_int(m, 0, i), t = perm[i];
            perm[i] = perm[j];
            perm[j] = t;
        }
        strides_dense(rank, dim, stride);
        for (int i = 0; i < rank; i++) {
            int64_t size = dim[perm[i]], s = stride[perm[i]], kind = make_int(m, 0, 5);
            int64_t step = kind == 1 ? 2 : 1, begin = kind <= 1 ? make_int(m, 0, size - 1) : 0;
            if (kind == 2) { /* reversed */
                offset += (size - 1) * s;
                y_dim[out] = size;
                y_stride[out++] = -s;
                continue;
            }
            if (kind == 3) { /* repeated */
                y_dim[out] = 2;
                y_stride[out++] = 0;
            }
            offset += begin * s;
            y_dim[out] = (size - begin + step - 1) / step;
            y_stride[out++] = step * s;
        }
        int x = make_param(m, rank, dim, -1, 1), v = round % 3 ? make_unary(m, FERRY_TANH, x) : x;
        make_loss(m, copy_from(m, v, out, y_dim, offset, y_stride));
        if (round % 2 == 0)
            make_loss(m, v);
        if (round % 5 == 0)
            make_loss(m, copy_from(m, v, out, y_dim, offset, y_stride));
        make_check_gradients(m);
        make_close(m);
    }
}

/* Parts of an axis, all used or not, then put together again in another order, along an axis of any place. */
static void test_split_concat(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 4 * ROUNDS; round++) {
        Make made, *m = &made;
        make_open(m, round);
        int64_t dim[] = {make_int(m, 1, 3), 6, make_int(m, 1, 3)}, width[] = {1, 3, 2}, begin[] = {0, 1, 4}, stride[3];
        int parts[3], x = make_param(m, 3, dim, -1, 1), v = round % 2 ? make_unary(m, FERRY_TANH, x) : x;
        strides_dense(3, dim, stride);
        for (int i = 0; i < 3; i++) {
            int64_t part[] = {dim[0], width[i], dim[2]};
            parts[i] = make_unary(m, FERRY_SIN, copy_from(m, v, 3, part, begin[i] * stride[1], stride));
        }
        int y = make_value(m, FERRY_F64, 3, dim);
        int64_t at = 0;
        for (int k = 0; k < 3; k++) {
            int i = (k + (int)(round / 2)) % 3;
            int64_t part[] = {dim[0], width[i], dim[2]}, own[3];
            strides_dense(3, part, own);
            ferry_kernel call = call_copy(FERRY_F64, 3, part, at * stride[1], stride, 0, own, 1);
            make_node(m, &call, (int[]){y, parts[i]});
            at += width[i];
        }
        if (round % 4 < 2)
            make_loss(m, y);
        else
            make_loss(m, parts[round % 3]);
        if (round % 3 == 0)
            make_loss(m, v);
        make_check_gradients(m);
        make_close(m);
    }
}

static void test_linear(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 4 * ROUNDS; round++) {
        Make made, *m = &made;
        make_open(m, round);
        int64_t rows = make_int(m, 1, 4), k = make_int(m, 1, 4), n = make_int(m, 1, 4), dx[] = {rows, k},
                dy[] = {rows, n};
        bool trans = round % 2;
        int64_t dw[] = {trans ? n : k, trans ? k : n};
        int x = make_param(m, 2, dx, -1, 1), w = make_param(m, 2, dw, -1, 1),
            b = round % 3 ? make_param(m, 1, &n, -1, 1) : -1;
        int h = round % 4 ? make_unary(m, FERRY_TANH, x) : x, y = make_value(m, FERRY_F64, 2, dy);
        ferry_kernel call = call_linear(FERRY_F64, rows, k, n, trans);
        make_node(m, &call, (int[]){y, h, w, b});
        make_loss(m, y);
        if (k == n) { /* the same matrix again, the other way round, and its input a second time */
            int z = make_value(m, FERRY_F64, 2, dy);
            call.trans_b = !trans;
            make_node(m, &call, (int[]){z, round % 5 ? y : h, w, b});
            make_loss(m, z);
        }
        make_check_gradients(m);
        make_close(m);
    }
}

static void test_matmul(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 8 * ROUNDS; round++) {
        Make made, *m = &made;
        make_open(m, round);
        int batch = (int)make_int(m, 0, 3);
        int64_t rows = make_int(m, 1, 3), k = make_int(m, 1, 3), n = make_int(m, 1, 3), da[5], db[5], dy[5];
        ferry_kernel call = call_new(FERRY_OP_MATMUL, FERRY_F64);
        call.m = rows;
        call.k = k;
        call.n = n;
        call.trans_a = round & 1;
        call.trans_b = round >> 1 & 1;
        call.alpha = round % 3 ? 1 : 0.3;
        call.rank = batch;
        for (int i = 0; i < batch; i++) {
            call.dim[i] = dy[i] = make_int(m, 1, 3);
            da[i] = make_int(m, 0, 2) == 0 ? 1 : dy[i];
            db[i] = make_int(m, 0, 2) == 0 ? 1 : dy[i];
        }
        strides_broadcast(batch, batch, dy, call.stride[0]);
        strides_broadcast(batch, batch, da, call.stride[1]);
        strides_broadcast(batch, batch, db, call.stride[2]);
        strides_dense(batch, dy, call.stride[0]);
        for (int i = 0; i < batch; i++) {
            call.stride[0][i] *= rows * n;
            call.stride[1][i] *= rows * k;
            call.stride[2][i] *= k * n;
        }
        da[batch] = call.trans_a ? k : rows;
        da[batch + 1] = call.trans_a ? rows : k;
        db[batch] = call.trans_b ? n : k;
        db[batch + 1] = call.trans_b ? k : n;
        dy[batch] = rows;
        dy[batch + 1] = n;
        space_simplify(&call.rank, call.dim, call.stride, 3);
        int a = make_param(m, batch + 2, da, -1, 1), b = make_param(m, batch + 2, db, -1, 1);
        int y = make_value(m, FERRY_F64, batch + 2, dy), va = round % 5 ? make_unary(m, FERRY_TANH, a) : a;
        make_node(m, &call, (int[]){y, va, b});
        make_loss(m, y);
        if (round % 4 == 0)
            make_loss(m, make_unary(m, FERRY_SIN, va));
        make_check_gradients(m);
        make_close(m);
    }
}

static void test_softmax_layernorm(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 2 * ROUNDS; round++) {
        Make made, *m = &made;
        make_open(m, round);
        int64_t rows = make_int(m, 1, 4), n = make_int(m, 2, 5), dim[] = {rows, n};
        int x = make_param(m, 2, dim, -2, 2), scale = make_param(m, 1, &n, 0.5, 2);
        int bias = round % 3 ? make_param(m, 1, &n, -1, 1) : -1, y = make_value(m, FERRY_F64, 2, dim);
        int mean = make_value(m, FERRY_F64, 1, &rows), rstd = make_value(m, FERRY_F64, 1, &rows);
        ferry_kernel call = call_new(FERRY_OP_LAYERNORM, FERRY_F64);
        call.m = rows;
        call.n = n;
        call.eps = 1e-3;
        int h = make_unary(m, FERRY_SIN, x);
        make_node(m, &call, (int[]){y, mean, rstd, h, scale, bias});
        if (round % 4 == 1) { /* the same norm twice: its parameters' gradients are added up */
            int z = make_value(m, FERRY_F64, 2, dim), mean2 = make_value(m, FERRY_F64, 1, &rows);
            int rstd2 = make_value(m, FERRY_F64, 1, &rows);
            make_node(m, &call, (int[]){z, mean2, rstd2, make_binary(m, FERRY_ADD, y, h), scale, bias});
            y = z;
        }
        m->g->param[1].trainable = round % 4 != 2; /* a frozen scale with a trained bias */
        int s = make_value(m, FERRY_F64, 2, dim);
        ferry_kernel soft = call_new(FERRY_OP_SOFTMAX, FERRY_F64);
        soft.m = rows;
        soft.n = n;
        make_node(m, &soft, (int[]){s, y});
        make_loss(m, s);
        if (round % 2)
            make_loss(m, make_binary(m, FERRY_ADD, y, h)); /* a residual around the softmax */
        make_check_gradients(m);
        make_close(m);
    }
}

static void test_embedding(void **state)
{
    (void)state;
    Make made, *m = &made;
    make_open(m, 3);
    static const int64_t ids[] = {2, 0, -1, 2, 2};
    static const int32_t ids32[] = {4, -5};
    int64_t table_dim[] = {5, 3}, n_ids = 5, n_ids32 = 2, y_dim[] = {5, 3}, z_dim[] = {2, 3};
    int table = make_param(m, 2, table_dim, -1, 1), y = make_value(m, FERRY_F64, 2, y_dim);
    int z = make_value(m, FERRY_F64, 2, z_dim);
    ferry_kernel call = call_new(FERRY_OP_EMBEDDING, FERRY_F64);
    call.dtype2 = FERRY_I64;
    call.m = 5;
    call.k = 5;
    call.n = 3;
    make_node(m, &call, (int[]){y, table, make_const(m, FERRY_I64, 1, &n_ids, ids)});
    call.dtype2 = FERRY_I32;
    call.m = 2;
    make_node(m, &call, (int[]){z, table, make_const(m, FERRY_I32, 1, &n_ids32, ids32)});
    make_loss(m, make_unary(m, FERRY_TANH, y));
    make_loss(m, z);
    make_check_gradients(m);
    make_close(m);
}

/* The graph's own loss, and one that is scaled and added to something else. */
static void test_xent(void **state)
{
    (void)state;
    for (int scaled = 0; scaled < 2; scaled++) {
        Make made, *m = &made;
        make_open(m, 9);
        static const int64_t labels[] = {2, -100, 0, 1, 3, -100};
        int64_t dim[] = {2, 4, 3}, label_dim[] = {2, 3};
        int x = make_param(m, 3, dim, -2, 2), h = make_unary(m, FERRY_SIN, x), loss = make_value(m, FERRY_F64, 0, NULL);
        int lse = make_value(m, FERRY_F64, 2, label_dim), count = make_value(m, FERRY_F64, 0, NULL);
        ferry_kernel call = call_new(FERRY_OP_XENT, FERRY_F64);
        call.dtype2 = FERRY_I64;
        call.m = 2;
        call.n = 4;
        call.k = 3;
        call.ignore_index = -100;
        make_node(m, &call, (int[]){loss, lse, count, h, make_const(m, FERRY_I64, 2, label_dim, labels)});
        if (scaled) {
            make_loss(m, make_unary(m, FERRY_SQUARE, loss));
            make_loss(m, h);
        } else {
            m->g->loss = loss;
        }
        make_check_gradients(m);
        make_close(m);
    }
}

/* Random graphs of equal-sized values: sums that share gradients, views, slices, products, values used many times. */
static void test_random_graphs(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 60; round++) {
        Make made, *m = &made;
        make_open(m, round + 100);
        int pool[32], count = 0;
        int64_t dim[] = {2, 4}, flat = 8, tall[] = {4, 2}, dense[2];
        for (int i = 0; i < 3; i++)
            pool[count++] = make_param(m, 2, dim, -1, 1);
        strides_dense(2, dim, dense);
        while (count < 18) {
            int a = pool[make_int(m, 0, count - 1)], b = pool[make_int(m, count > 3 ? count - 3 : 0, count - 1)],
                y = -1;
            switch (make_int(m, 0, 8)) {
            case 0:
            case 1:
            case 2:
                y = make_binary(m, FERRY_ADD, make_view(m, a, 2, dim), make_view(m, b, 2, dim));
                break;
            case 3:
                y = make_binary(m, FERRY_SUB, make_view(m, a, 2, dim), make_view(m, b, 2, dim));
                break;
            case 4:
                y = make_binary(m, FERRY_MUL, make_view(m, a, 2, dim), make_view(m, b, 2, dim));
                break;
            case 5:
                y = make_unary(m, FERRY_SIN, make_view(m, a, 1, &flat));
                break;
            case 6:
                y = make_view(m, b, 2, tall);
                break;
            case 7: /* turned: [4, 2] from the transpose of [2, 4] seen as [4, 2] */
                y = copy_from(m, a, 2, (int64_t[]){4, 2}, 0, (int64_t[]){1, 4});
                break;
            default: { /* two halves, exchanged */
                int64_t half[] = {2, 2};
                int l = copy_from(m, a, 2, half, 0, dense), r = copy_from(m, b, 2, half, 2, dense);
                y = make_value(m, FERRY_F64, 2, dim);
                ferry_kernel put = call_copy(FERRY_F64, 2, half, 2, dense, 0, (int64_t[]){2, 1}, 1);
                make_node(m, &put, (int[]){y, l});
                put = call_copy(FERRY_F64, 2, half, 0, dense, 0, (int64_t[]){2, 1}, 1);
                make_node(m, &put, (int[]){y, r});
            }
            }
            pool[count++] = y;
        }
        make_loss(m, pool[count - 1]);
        make_loss(m, pool[count - 2]);
        make_check_gradients(m);
        make_close(m);
    }
}

/* A residual stream keeps one gradient buffer: sums pass their gradient on without copying it. */
static void test_residual_shares_bytes(void **state)
{
    (void)state;
    Make made, *m = &made;
    make_open(m, 1);
    int64_t n = 8;
    int x = make_unary(m, FERRY_TANH, make_param(m, 1, &n, -1, 1)), first = x;
    for (int i = 0; i < 4; i++)
        x = make_binary(m, FERRY_ADD, x, make_unary(m, FERRY_SIN, make_unary(m, FERRY_TANH, x)));
    make_loss(m, x);
    const char *name = m->g->tensor.at[first].name, *last = m->g->tensor.at[x].name;
    OK(graph_autodiff(&m->d, m->g));
    OK(graph_check(&m->d, m->g));
    int root_first = -1, root_last = -1, adds = 0;
    for (int i = 0; i < m->g->tensor.count; i++) {
        const Tensor *t = &m->g->tensor.at[i];
        if (t->grad_of >= 0 && strcmp(m->g->tensor.at[t->grad_of].name, name) == 0)
            root_first = t->root;
        if (t->grad_of >= 0 && strcmp(m->g->tensor.at[t->grad_of].name, last) == 0)
            root_last = t->root;
    }
    for (int i = m->g->n_forward; i < m->g->node.count; i++)
        adds += m->g->node.at[i].call.accumulate;
    assert_true(root_first >= 0);
    assert_int_equal(root_first, root_last);
    assert_int_equal(adds, 4); /* one accumulating tanh gradient a block, nothing else */
    make_close(m);
}

/* The parts of a split write their gradient side by side: no clearing, no adding. */
static void test_split_is_not_cleared(void **state)
{
    (void)state;
    Make made, *m = &made;
    make_open(m, 1);
    int64_t dim[] = {4, 6}, part[] = {4, 2}, stride[] = {6, 1};
    int x = make_unary(m, FERRY_TANH, make_param(m, 2, dim, -1, 1));
    for (int i = 0; i < 3; i++)
        make_loss(m, copy_from(m, x, 2, part, 2 * i, stride));
    OK(graph_autodiff(&m->d, m->g));
    for (int i = m->g->n_forward; i < m->g->node.count; i++) {
        assert_int_not_equal(m->g->node.at[i].call.op, FERRY_OP_FILL);
        assert_false(m->g->node.at[i].call.accumulate);
    }
    make_close(m);
}

/* The checker finds a gradient that changes under another one's feet. */
static void test_check_finds_aliasing(void **state)
{
    (void)state;
    Make made, *m = &made;
    make_open(m, 1);
    int64_t n = 4;
    int p = make_param(m, 1, &n, -1, 1), q = make_param(m, 1, &n, -1, 1);
    int a = make_unary(m, FERRY_TANH, p), b = make_unary(m, FERRY_TANH, q);
    make_loss(m, make_unary(m, FERRY_SIN, make_binary(m, FERRY_ADD, a, b)));
    OK(graph_autodiff(&m->d, m->g));
    OK(graph_check(&m->d, m->g));
    /* dy of the sum is shared by a and b: adding to a's share, in the rule of the sum's node, spoils b's */
    int i = m->g->n_forward;
    while (m->g->node.at[i].call.op != FERRY_OP_UNARY_GRAD || m->g->node.at[i].call.fn != FERRY_TANH)
        i++;
    Node *n1 = &m->g->node.at[i], bad = *n1;
    int shared = n1->arg[1];
    bad.call = call_scale(FERRY_F64, n, 1, true);
    bad.arg[0] = shared;
    bad.arg[1] = n1->arg[3];
    bad.arg[2] = bad.arg[3] = -1;
    Node *grown = VEC_PUSH(&m->g->node);
    assert_non_null(grown);
    memmove(&m->g->node.at[i + 1], &m->g->node.at[i], (size_t)(m->g->node.count - 1 - i) * sizeof(Node));
    m->g->node.at[i] = bad;
    assert_int_equal(graph_check(&m->d, m->g), ST_FAILED);
    assert_non_null(strstr(m->d.message, "bytes became another one's"));
    make_close(m);
}

static void test_frozen_and_unreached(void **state)
{
    (void)state;
    Make made, *m = &made;
    make_open(m, 1);
    int64_t n = 3;
    int a = make_param(m, 1, &n, -1, 1), b = make_param(m, 1, &n, -1, 1), c = make_param(m, 1, &n, -1, 1);
    m->g->param[1].trainable = false;
    make_unary(m, FERRY_TANH, c); /* leads nowhere */
    make_loss(m, make_binary(m, FERRY_MUL, make_unary(m, FERRY_SIN, a), make_unary(m, FERRY_SIN, b)));
    OK(graph_autodiff(&m->d, m->g));
    assert_int_equal(m->d.warnings, 1);
    assert_int_equal(m->g->n_param, 2);
    assert_string_equal(m->g->param[1].name, "p1");
    assert_true(m->g->param[0].grad >= 0);
    assert_int_equal(m->g->param[1].grad, -1);
    for (int i = m->g->n_forward; i < m->g->node.count; i++) /* nothing is computed for the frozen one */
        assert_int_not_equal(m->g->node.at[i].call.op, FERRY_OP_BINARY_GRAD_B);
    make_close(m);

    make_open(m, 1);
    a = make_param(m, 1, &n, -1, 1);
    m->g->param[0].trainable = false;
    make_loss(m, a);
    assert_int_equal(graph_autodiff(&m->d, m->g), ST_USAGE);
    make_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary),
        cmocka_unit_test(test_binary),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_where),
        cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_split_concat),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_softmax_layernorm),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_xent),
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_residual_shares_bytes),
        cmocka_unit_test(test_split_is_not_cleared),
        cmocka_unit_test(test_check_finds_aliasing),
        cmocka_unit_test(test_frozen_and_unreached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
