/* Gradients of ONNX operators on random shapes: broadcasts, negative axes, strides, dimensions of size 1, rank 0. */
#include "tests/unit/graph/onnx_make.h"

enum { ROUNDS = 30 };

/* Runs one case for seeds 0 to rounds - 1. */
static void rounds(int count, uint64_t salt, void (*one)(Onnx *o))
{
    for (int i = 0; i < count; i++) {
        Onnx o;
        onnx_open(&o, salt * 1000 + (uint64_t)i);
        one(&o);
        onnx_check(&o);
    }
}

/* A parameter that broadcasts to s; of rank 0 it is a view of one with a single element. */
static const char *narrower(Onnx *o, Shape s, double from, double to)
{
    Shape t = {.rank = (int)pick(o, 0, s.rank)};
    for (int i = 0; i < t.rank; i++)
        t.dim[i] = chance(o, 3) ? 1 : s.dim[s.rank - t.rank + i];
    if (t.rank > 0)
        return param_in(o, t, from, to);
    return reshape(o, param_in(o, (Shape){1, {1}}, from, to), t);
}

static void broadcast(Onnx *o)
{
    static const char *const op[] = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu"};
    const char *name = op[pick(o, 0, 9)];
    Shape s = pick_shape(o, 0, 4);
    if (strcmp(name, "PRelu") == 0) {
        const char *slope = narrower(o, s, -1, 1);
        out_(o, binary(o, name, reshape(o, param(o, (Shape){1, {dims_count(s.rank, s.dim)}}), s), slope));
        return;
    }
    const char *x = narrower(o, s, 0.4, 1.8), *y = narrower(o, s, 0.4, 1.8);
    x = chance(o, 2) ? unary(o, "Exp", x) : x;
    if ((strcmp(name, "Max") == 0 || strcmp(name, "Sum") == 0 || strcmp(name, "Mean") == 0) && chance(o, 2))
        out_(o, APPLY(o, name, 0, NULL, "%s,%s,%s", x, y, narrower(o, s, 0.4, 1.8)));
    else
        out_(o, binary(o, name, x, y));
}

static void fmod_broadcast(Onnx *o)
{
    Shape s = pick_shape(o, 1, 3);
    Bytes fmod = attr_int("fmod", 1);
    const char *x = narrower(o, s, 3.1, 3.9);
    out_(o, APPLY(o, "Mod", 1, &fmod, "%s,%s", x, narrower(o, s, 1.1, 1.4)));
}

static void where(Onnx *o)
{
    Shape s = pick_shape(o, 0, 4), c = s;
    c.rank = (int)pick(o, 0, s.rank);
    for (int i = 0; i < c.rank; i++)
        c.dim[i] = chance(o, 3) ? 1 : s.dim[s.rank - c.rank + i];
    const char *x = narrower(o, s, -1, 1), *y = narrower(o, s, -1, 1);
    out_(o, APPLY(o, "Where", 0, NULL, "%s,%s,%s", flags(o, c), x, y));
}

static void expand_tile(Onnx *o)
{
    Shape s = pick_shape(o, 1, 4);
    const char *x = binary(o, "Expand", narrower(o, s, -1, 1), list(o, s.rank, s.dim));
    x = pass(o, x, s);
    int64_t times[MAX_RANK];
    for (int i = 0; i < s.rank; i++)
        times[i] = pick(o, 1, 3);
    out_(o, binary(o, "Tile", x, list(o, s.rank, times)));
}

/* Negative axes in any order, keepdims and none; no axes at all. */
static void reduce(Onnx *o)
{
    static const char *const op[] = {"ReduceSum", "ReduceMean", "ReduceMax",       "ReduceMin",    "ReduceProd",
                                     "ReduceL1",  "ReduceL2",   "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"};
    Shape s = pick_shape(o, 1, 4);
    const char *name = op[pick(o, 0, 9)], *x = pass(o, param_in(o, s, 0.3, 2), s);
    int64_t axes[MAX_RANK];
    int count = 0, first = (int)pick(o, 0, s.rank - 1);
    for (int k = 0; k < s.rank; k++) {
        int axis = (first + k) % s.rank;
        if (chance(o, 2))
            axes[count++] = chance(o, 2) ? axis - s.rank : axis;
    }
    o->opset = chance(o, 2) ? 18 : 17;
    Bytes attr[2] = {attr_int("keepdims", pick(o, 0, 1))};
    if (o->opset == 18 || strcmp(name, "ReduceSum") == 0) {
        out_(o, count > 0 ? APPLY(o, name, 1, attr, "%s,%s", x, list(o, count, axes)) : apply_(o, name, 1, attr, x));
        return;
    }
    attr[1] = attr_ints("axes", count, axes);
    out_(o, apply_(o, name, count > 0 ? 2 : 1, attr, x));
    if (count == 0)
        free(attr[1].at);
}

static void along_an_axis(Onnx *o)
{
    static const char *const op[] = {"Softmax", "LogSoftmax", "CumSum", "LayerNormalization", "Flatten"};
    Shape s = pick_shape(o, 1, 4);
    int kind = (int)pick(o, 0, 4);
    int64_t axis = pick_axis(o, s.rank);
    const char *x = pass(o, param(o, s), s);
    if (kind == 2) {
        Bytes attr[2] = {attr_int("exclusive", pick(o, 0, 1)), attr_int("reverse", pick(o, 0, 1))};
        out_(o, APPLY(o, "CumSum", 2, attr, "%s,%s", x, whole(o, (Shape){0}, &axis)));
        return;
    }
    Bytes attr = attr_int("axis", axis);
    if (kind != 3) {
        out_(o, apply_(o, op[kind], 1, &attr, x));
        return;
    }
    Shape rest = {.rank = s.rank - (int)whole_axis(axis, s.rank)};
    memcpy(rest.dim, s.dim + s.rank - rest.rank, sizeof(int64_t) * (size_t)rest.rank);
    const char *scale = param(o, rest), *bias = chance(o, 2) ? param(o, rest) : "";
    out_(o, APPLY(o, "LayerNormalization", 1, &attr, "%s,%s%s%s", x, scale, bias[0] ? "," : "", bias));
}

static void transpose(Onnx *o)
{
    Shape s = pick_shape(o, 1, 5);
    int64_t perm[MAX_RANK];
    for (int i = 0; i < s.rank; i++)
        perm[i] = i;
    for (int i = s.rank - 1; i > 0; i--) {
        int64_t k = pick(o, 0, i), swap = perm[i];
        perm[i] = perm[k];
        perm[k] = swap;
    }
    Bytes attr = attr_ints("perm", s.rank, perm);
    out_(o, apply_(o, "Transpose", 1, &attr, pass(o, param(o, s), s)));
}

/* Steps of both signs, ends beyond the tensor, several axes in any order. */
static void slice(Onnx *o)
{
    Shape s = pick_shape(o, 1, 4);
    int64_t start[MAX_RANK], end[MAX_RANK], axis[MAX_RANK], step[MAX_RANK];
    int count = 0;
    for (int i = s.rank - 1; i >= 0; i--) {
        if (chance(o, 3))
            continue;
        bool back = chance(o, 2);
        int64_t at = pick(o, 0, s.dim[i] - 1);
        axis[count] = chance(o, 2) ? i - s.rank : i;
        step[count] = back ? -pick(o, 1, 3) : pick(o, 1, 3);
        start[count] = chance(o, 2) ? at - s.dim[i] : at;
        end[count] = back ? -100 : chance(o, 2) ? 100 : at + 1;
        count++;
    }
    const char *x = pass(o, param(o, s), s);
    if (count == 0) {
        out_(o, unary(o, "Identity", x));
        return;
    }
    const char *a = list(o, count, start), *b = list(o, count, end), *c = list(o, count, axis);
    out_(o, APPLY(o, "Slice", 0, NULL, "%s,%s,%s,%s,%s", x, a, b, c, list(o, count, step)));
}

static void concat(Onnx *o)
{
    Shape s = pick_shape(o, 1, 4);
    int64_t axis = pick_axis(o, s.rank);
    char in[200] = "";
    for (int i = 0, n = (int)pick(o, 1, 4); i < n; i++) {
        s.dim[whole_axis(axis, s.rank)] = pick(o, 1, 3);
        const char *x = pass(o, param(o, s), s);
        snprintf(in + strlen(in), sizeof(in) - strlen(in), "%s%s", i ? "," : "", x);
    }
    Bytes attr = attr_int("axis", axis);
    out_(o, apply_(o, "Concat", 1, &attr, in));
}

/* Indices of any rank, negative ones and repeated ones among them. */
static void gather(Onnx *o)
{
    Shape s = pick_shape(o, 1, 3), ids = pick_shape(o, 0, 3);
    int64_t axis = pick_axis(o, s.rank), at[64], size = s.dim[whole_axis(axis, s.rank)];
    for (int64_t i = 0; i < dims_count(ids.rank, ids.dim); i++)
        at[i] = pick(o, -size, size - 1);
    Bytes attr = attr_int("axis", axis);
    const char *x = pass(o, param(o, s), s);
    out_(o, APPLY(o, "Gather", 1, &attr, "%s,%s", x, whole(o, ids, at)));
}

static void gather_elements(Onnx *o)
{
    Shape s = pick_shape(o, 1, 3), ids = s;
    int64_t axis = pick_axis(o, s.rank), at[256], size = s.dim[whole_axis(axis, s.rank)];
    for (int i = 0; i < s.rank; i++)
        ids.dim[i] = i == whole_axis(axis, s.rank) ? pick(o, 1, 4) : pick(o, 1, s.dim[i]);
    for (int64_t i = 0; i < dims_count(ids.rank, ids.dim); i++)
        at[i] = pick(o, -size, size - 1);
    Bytes attr = attr_int("axis", axis);
    const char *x = pass(o, param(o, s), s);
    out_(o, APPLY(o, "GatherElements", 1, &attr, "%s,%s", x, whole(o, ids, at)));
}

static void gather_nd(Onnx *o)
{
    Shape s = pick_shape(o, 2, 4), ids = {0};
    int batch = (int)pick(o, 0, 1), depth = (int)pick(o, 1, s.rank - batch);
    int64_t at[256];
    for (int i = 0; i < batch; i++)
        ids.dim[ids.rank++] = s.dim[i];
    ids.dim[ids.rank++] = pick(o, 1, 4);
    ids.dim[ids.rank++] = depth;
    for (int64_t i = 0, n = dims_count(ids.rank, ids.dim); i < n; i++) {
        int64_t size = s.dim[batch + i % depth];
        at[i] = pick(o, -size, size - 1);
    }
    Bytes attr = attr_int("batch_dims", batch);
    const char *x = pass(o, param(o, s), s);
    out_(o, APPLY(o, "GatherND", 1, &attr, "%s,%s", x, whole(o, ids, at)));
}

/* Rows in which no place is written twice, since then the result is not defined; adding may meet a place again. */
static void scatter_elements(Onnx *o)
{
    static const char *const how[] = {"none", "add", "mul", "max", "min"};
    int kind = (int)pick(o, 0, 4);
    int64_t rows = pick(o, 1, 3), size = pick(o, 1, 4), count = pick(o, 1, size), at[16];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0, first = pick(o, 0, size - 1); k < count; k++) {
            at[r * count + k] = kind == 1 ? pick(o, 0, size - 1) : (first + k) % size;
            at[r * count + k] -= chance(o, 2) ? size : 0;
        }
    o->opset = 18;
    Shape s = shape2(rows, size), u = shape2(rows, count);
    Bytes attr[] = {attr_int("axis", chance(o, 2) ? 1 : -1), attr_text("reduction", how[kind])};
    const char *x = pass(o, param_in(o, s, 0.3, 1.7), s), *updates = pass(o, param_in(o, u, 0.3, 1.7), u);
    out_(o, APPLY(o, "ScatterElements", 2, attr, "%s,%s,%s", x, whole(o, u, at), updates));
}

static void scatter_nd(Onnx *o)
{
    static const char *const how[] = {"none", "add", "mul", "max", "min"};
    int kind = (int)pick(o, 0, 4);
    int64_t rows = pick(o, 1, 4), inner = pick(o, 1, 3), count = pick(o, 1, rows), at[4], first = pick(o, 0, rows - 1);
    for (int64_t k = 0; k < count; k++)
        at[k] = (kind == 1 ? pick(o, 0, rows - 1) : (first + k) % rows) - (chance(o, 2) ? rows : 0);
    o->opset = 18;
    Shape s = shape2(rows, inner), u = shape2(count, inner);
    Bytes attr = attr_text("reduction", how[kind]);
    const char *x = pass(o, param_in(o, s, 0.3, 1.7), s), *updates = pass(o, param_in(o, u, 0.3, 1.7), u);
    out_(o, APPLY(o, "ScatterND", 1, &attr, "%s,%s,%s", x, whole(o, shape2(count, 1), at), updates));
}

/* Borders may be cut off as well as added, in every mode. */
static void pad(Onnx *o)
{
    static const char *const mode[] = {"constant", "edge", "reflect"};
    Shape s = pick_shape(o, 1, 3);
    int kind = (int)pick(o, 0, 2);
    int64_t pads[2 * MAX_RANK];
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = pick(o, 2, 4);
        for (int side = 0; side < 2; side++)
            pads[side * s.rank + i] = kind == 2 ? pick(o, 0, s.dim[i] - 1) : pick(o, side ? 0 : -1, 2);
    }
    Bytes attr = attr_text("mode", mode[kind]);
    const char *x = pass(o, param(o, s), s);
    out_(o, APPLY(o, "Pad", 1, &attr, "%s,%s", x, list(o, 2 * s.rank, pads)));
}

static void matmul(Onnx *o)
{
    Shape batch = pick_shape(o, 0, 2), a = batch, b = batch;
    int64_t m = pick(o, 1, 3), k = pick(o, 1, 4), n = pick(o, 1, 3);
    for (int i = 0; i < batch.rank; i++) {
        a.dim[i] = chance(o, 3) ? 1 : batch.dim[i];
        b.dim[i] = chance(o, 3) ? 1 : batch.dim[i];
    }
    if (chance(o, 3) && b.rank > 0) { /* fewer batch dimensions on the right */
        memmove(b.dim, b.dim + 1, sizeof(int64_t) * (size_t)--b.rank);
    }
    bool vector_a = chance(o, 6), vector_b = chance(o, 6);
    if (!vector_a)
        a.dim[a.rank++] = m;
    else
        a.rank = 0;
    a.dim[a.rank++] = k;
    if (vector_b)
        b.rank = 0;
    b.dim[b.rank++] = k;
    if (!vector_b)
        b.dim[b.rank++] = n;
    const char *x = pass(o, param(o, a), a), *w = pass(o, param(o, b), b);
    out_(o, binary(o, "MatMul", x, w));
}

static void gemm(Onnx *o)
{
    int64_t m = pick(o, 1, 3), k = pick(o, 1, 4), n = pick(o, 1, 3), ta = pick(o, 0, 1), tb = pick(o, 0, 1);
    Shape a = ta ? shape2(k, m) : shape2(m, k), b = tb ? shape2(n, k) : shape2(k, n);
    Bytes attr[] = {attr_int("transA", ta), attr_int("transB", tb), attr_float("alpha", chance(o, 2) ? 1 : 0.75f),
                    attr_float("beta", chance(o, 2) ? 1 : -0.5f)};
    const char *x = pass(o, param(o, a), a), *w = pass(o, param(o, b), b);
    const char *c = chance(o, 4) ? "" : narrower(o, shape2(m, n), -1, 1);
    out_(o, APPLY(o, "Gemm", 4, attr, "%s,%s%s%s", x, w, c[0] ? "," : "", c));
}

static void einsum(Onnx *o)
{
    static const char *const equation[] = {"ij,jk->ik", "bij,bjk->bik", "ij,ij->", "ij,kj->ik", "bij,jk->ibk",
                                           "ij->ji",    "bij->bj",      "i,j->ij", "ii->i",     "bii->b"};
    const char *e = equation[pick(o, 0, 9)];
    int64_t size[128] = {['i'] = pick(o, 1, 3), ['j'] = pick(o, 1, 3), ['k'] = pick(o, 1, 3), ['b'] = pick(o, 1, 3)};
    char in[64] = "";
    for (const char *c = e; *c != '-'; c += *c == ',') {
        Shape s = {0};
        for (; *c != ',' && *c != '-'; c++)
            s.dim[s.rank++] = size[(int)*c];
        snprintf(in + strlen(in), sizeof(in) - strlen(in), "%s%s", in[0] ? "," : "", pass(o, param(o, s), s));
    }
    Bytes attr = attr_text("equation", e);
    out_(o, apply_(o, "Einsum", 1, &attr, in));
}

/* Strides, dilations, groups and pads that differ on the two sides. */
static void conv(Onnx *o)
{
    bool transposed = chance(o, 2);
    int rank = (int)pick(o, 1, 2);
    int64_t group = pick(o, 1, 2), in = group * pick(o, 1, 2), out = group * pick(o, 1, 2);
    int64_t kernel[2], stride[2], dilation[2], pads[4];
    Shape x = {2 + rank, {pick(o, 1, 2), in}}, w = {2 + rank, {transposed ? in : out, (transposed ? out : in) / group}};
    for (int i = 0; i < rank; i++) {
        kernel[i] = pick(o, 1, 3);
        stride[i] = pick(o, 1, 3);
        dilation[i] = pick(o, 1, 2);
        pads[i] = pick(o, 0, kernel[i] - 1);
        pads[rank + i] = pick(o, 0, kernel[i] - 1);
        x.dim[2 + i] = pick(o, 5, 7);
        w.dim[2 + i] = kernel[i];
    }
    Bytes attr[] = {attr_int("group", group), attr_ints("strides", rank, stride),
                    attr_ints("dilations", rank, dilation), attr_ints("pads", 2 * rank, pads)};
    const char *value = pass(o, param(o, x), x), *weight = param(o, w);
    const char *bias = chance(o, 2) ? param(o, (Shape){1, {out}}) : "";
    out_(o, APPLY(o, transposed ? "ConvTranspose" : "Conv", 4, attr, "%s,%s%s%s", value, weight, bias[0] ? "," : "",
                  bias));
}

static void pool(Onnx *o)
{
    static const char *const op[] = {"MaxPool", "AveragePool", "LpPool"};
    int kind = (int)pick(o, 0, 2), rank = (int)pick(o, 1, 2);
    int64_t kernel[2], stride[2], pads[4];
    Shape x = {2 + rank, {pick(o, 1, 2), pick(o, 1, 2)}};
    for (int i = 0; i < rank; i++) {
        kernel[i] = pick(o, 1, 3);
        stride[i] = pick(o, 1, 3);
        pads[i] = pick(o, 0, kernel[i] - 1);
        pads[rank + i] = pick(o, 0, kernel[i] - 1);
        x.dim[2 + i] = pick(o, 4, 6);
    }
    Bytes attr[] = {attr_ints("kernel_shape", rank, kernel), attr_ints("strides", rank, stride),
                    attr_ints("pads", 2 * rank, pads), attr_int("ceil_mode", kind == 2 ? 0 : pick(o, 0, 1))};
    if (kind == 2)
        free(attr[3].at);
    out_(o, apply_(o, op[kind], kind == 2 ? 3 : 4, attr, pass(o, param_in(o, x, 0.2, 2), x)));
}

static void over_channels(Onnx *o)
{
    static const char *const op[] = {"InstanceNormalization", "GroupNormalization", "LRN",         "GlobalAveragePool",
                                     "GlobalMaxPool",         "DepthToSpace",       "SpaceToDepth"};
    int kind = (int)pick(o, 0, 6);
    int64_t channels = kind == 1 || kind == 5 ? 4 : pick(o, 1, 4);
    Shape s = kind == 6 ? shape4(pick(o, 1, 2), channels, 2, 4) : shape4(pick(o, 1, 2), channels, pick(o, 1, 3), 3);
    const char *x = pass(o, param(o, s), s);
    Shape c = {1, {kind == 1 ? 2 : channels}};
    o->opset = 18;
    Bytes group = attr_int("num_groups", 2), size = attr_int("size", 3), block = attr_int("blocksize", 2);
    const Bytes *attr = kind == 1 ? &group : kind == 2 ? &size : &block;
    if (kind < 2) {
        const char *scale = param(o, c);
        out_(o, APPLY(o, op[kind], kind, attr, "%s,%s,%s", x, scale, param(o, c)));
    } else {
        out_(o, apply_(o, op[kind], kind == 2 || kind > 4, attr, x));
    }
    if (kind != 1)
        free(group.at);
    if (kind != 2)
        free(size.at);
    if (kind < 5)
        free(block.at);
}

static void split_topk_trilu(Onnx *o)
{
    Shape s = pick_shape(o, 2, 4);
    const char *x = pass(o, param(o, s), s);
    Bytes upper = attr_int("upper", pick(o, 0, 1));
    int64_t k = pick(o, -2, 2);
    x = APPLY(o, "Trilu", 1, &upper, "%s,%s", x, whole(o, (Shape){0}, &k));
    out_(o, x);
    int64_t axis = pick_axis(o, s.rank), size = s.dim[whole_axis(axis, s.rank)], most = pick(o, 1, size);
    Shape p = s;
    Bytes attr[] = {attr_int("axis", axis), attr_int("largest", pick(o, 0, 1))};
    const char *y = pass(o, param(o, p), p), *values = fresh(o, "v"), *places = chance(o, 2) ? fresh(o, "v") : "";
    char in[64], out[64];
    snprintf(in, sizeof(in), "%s,%s", y, list(o, 1, &most));
    snprintf(out, sizeof(out), "%s,%s", values, places);
    add_node(o, "TopK", in, out, 2, attr);
    out_(o, values);
}

/* [rows, 0] of a value that is computed */
static const char *empty_part(Onnx *o, const char *x, int64_t axis)
{
    int64_t from = pick(o, 0, 2);
    const char *a = list(o, 1, &from), *b = list(o, 1, &from);
    return APPLY(o, "Slice", 0, NULL, "%s,%s,%s,%s", x, a, b, list(o, 1, &axis));
}

/* Values without elements on the way to the loss: only what is beside them has a gradient. */
static void empty(Onnx *o)
{
    static const char *const op[] = {"Add", "Mul", "Div", "Max", "Pow"};
    int64_t rows = pick(o, 1, 3), cols = pick(o, 2, 4);
    Shape s = shape2(rows, cols);
    const char *x = pass(o, param(o, s), s), *kept = param(o, s), *none = empty_part(o, unary(o, "Tanh", x), 1);
    out_(o, x);
    if (chance(o, 2))
        none = binary(o, op[pick(o, 0, 4)], none, param(o, shape2(rows, 1))), o->n_param--;
    if (chance(o, 2))
        none = unary(o, "Softplus", none);
    Bytes attr;
    int64_t axis = 1, ids = 0;
    switch (pick(o, 0, 6)) {
    case 0:
        attr = attr_int("axis", -1);
        kept = APPLY(o, "Concat", 1, &attr, "%s,%s,%s", none, kept, none);
        break;
    case 1: /* a constant among the parts */
        attr = attr_int("axis", 0);
        kept = APPLY(o, "Concat", 1, &attr, "%s,%s", kept, param(o, shape2(0, cols)));
        o->n_param--;
        break;
    case 2: /* the sum of nothing */
        attr = attr_int("keepdims", 1);
        kept = binary(o, "Add", kept, APPLY(o, "ReduceSum", 1, &attr, "%s,%s", none, list(o, 1, &axis)));
        break;
    case 3: /* a product over nothing */
        attr = attr_int("axis", 0);
        kept = binary(o, "Add", kept, binary(o, "MatMul", none, empty_part(o, param(o, shape2(3, cols)), 0)));
        o->n_param--;
        free(attr.at);
        break;
    case 4: { /* parts of a Split */
        const int64_t part[] = {0, cols, 0};
        const char *y = fresh(o, "v"), *z = fresh(o, "v");
        char in[64], out[64];
        snprintf(in, sizeof(in), "%s,%s", kept, list(o, 3, part));
        snprintf(out, sizeof(out), "%s,%s,%s", z, y, fresh(o, "v"));
        attr = attr_int("axis", 1);
        add_node(o, "Split", in, out, 1, &attr);
        kept = y;
        out_(o, z);
        break;
    }
    case 5: { /* rows that nobody asks for, and a border around nothing */
        const int64_t pads[] = {0, 1, 0, cols - 1};
        const char *row = binary(o, "Gather", kept, whole(o, (Shape){1, {0}}, &ids));
        attr = attr_int("axis", 0);
        kept = APPLY(o, "Concat", 1, &attr, "%s,%s", row, binary(o, "Mul", kept, kept));
        kept = binary(o, "Add", kept, binary(o, "Pad", none, list(o, 4, pads)));
        break;
    }
    default:
        out_(o, none);
        attr = attr_int("axis", 1);
        out_(o, apply_(o, "Softmax", 1, &attr, none));
    }
    out_(o, kept);
}

static void test_mean_of_nothing(void **state)
{
    (void)state;
    Onnx onnx, *o = &onnx;
    onnx_open(o, 1);
    int64_t axis = 1;
    const char *x = param(o, shape2(2, 3)), *none = empty_part(o, unary(o, "Tanh", x), 1);
    Bytes attr = attr_ints("axes", 1, &axis);
    out_(o, apply_(o, "ReduceMean", 1, &attr, none));
    Opened opened = onnx_lower(o);
    assert_int_equal(graph_autodiff(&o->make.d, o->make.g), ST_MODEL);
    within(o->make.d.message, "has no elements");
    within(o->make.d.message, "ReduceMean");
    graph_close(o->make.g);
    close_opened(&opened);
}

#define TEST(name, count, salt)                                                                                        \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        rounds((count)*ROUNDS, salt, name);                                                                            \
    }

TEST(broadcast, 5, 1)
TEST(fmod_broadcast, 1, 2)
TEST(where, 2, 3)
TEST(expand_tile, 1, 4)
TEST(reduce, 5, 5)
TEST(along_an_axis, 4, 6)
TEST(transpose, 1, 7)
TEST(slice, 3, 8)
TEST(concat, 1, 9)
TEST(gather, 1, 10)
TEST(gather_elements, 1, 11)
TEST(gather_nd, 1, 12)
TEST(scatter_elements, 2, 13)
TEST(scatter_nd, 2, 14)
TEST(pad, 2, 15)
TEST(matmul, 3, 16)
TEST(gemm, 2, 17)
TEST(einsum, 2, 18)
TEST(conv, 3, 19)
TEST(pool, 2, 20)
TEST(over_channels, 3, 21)
TEST(split_topk_trilu, 1, 22)
TEST(empty, 3, 23)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_fmod_broadcast),
        cmocka_unit_test(test_where),
        cmocka_unit_test(test_expand_tile),
        cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_along_an_axis),
        cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_slice),
        cmocka_unit_test(test_concat),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_gather_elements),
        cmocka_unit_test(test_gather_nd),
        cmocka_unit_test(test_scatter_elements),
        cmocka_unit_test(test_scatter_nd),
        cmocka_unit_test(test_pad),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_einsum),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_over_channels),
        cmocka_unit_test(test_split_topk_trilu),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_mean_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
