/* lower_resize.c - Resize, Upsample, Pad, DepthToSpace, SpaceToDepth: products with constants and strided copies. */
#include <string.h>

#include "graph/lower.h"
#include "graph/ops_lower.h"
#include "graph/window.h"

/* ---- Resize ------------------------------------------------------------------------------------------------------ */

/* Most elements of one axis' matrix. */
#define RESIZE_MOST (INT64_C(1) << 26)

static Status make_matrix(Diag *d, Lowering *l, const ModelNode *n, const ResizeSpec *s, int axis, double **out)
{
    int64_t count;
    if (mul_overflows_i64(s->in[axis], s->out[axis], &count) || count > RESIZE_MOST)
        return node_fail(d, l->model, n, "resizing %lld to %lld along axis %d is unsupported: its matrix is too large",
                         (long long)s->in[axis], (long long)s->out[axis], axis);
    *out = ARENA_NEW(l->graph->arena, double, count + 1);
    if (*out == NULL)
        return diag_oom(d);
    resize_matrix(s, axis, *out);
    return ST_OK;
}

/* y = W x along one axis of x, whose shape so far is `dim`. */
static Status emit_axis(Diag *d, Lowering *l, const ModelNode *n, const ResizeSpec *s, int axis, const double *w,
                        const int64_t *dim, int x, int y)
{
    Graph *g = l->graph;
    int matrix;
    int64_t in = s->in[axis], out = s->out[axis];
    int64_t outer = dims_count(axis, dim), inner = dims_count(s->rank - axis - 1, dim + axis + 1);
    TRY(graph_add_tensor(d, g, graph_made_up_name(g, "resize"), TENSOR_CONST, g->precision, 2, (int64_t[]){out, in},
                         &matrix));
    void *data = arena_alloc(g->arena, (size_t)g->tensor.at[matrix].bytes + 1, 1);
    if (data == NULL)
        return diag_oom(d);
    if (graph_convert(data, g->precision, w, FERRY_F64, in * out) != FERRY_OK)
        return node_fail(d, l->model, n, "%s", ferry_error());
    g->tensor.at[matrix].data = data;
    ferry_kernel call = call_new(FERRY_OP_MATMUL, g->precision);
    call.k = in;
    if (inner == 1) { /* rows of x times the transpose */
        call.m = outer;
        call.n = out;
        call.trans_b = true;
        return lower_emit(d, l, n, &call, (int[]){y, x, matrix});
    }
    call.m = out;
    call.n = inner;
    if (outer != 1) {
        call.rank = 1;
        call.dim[0] = outer;
        call.stride[0][0] = out * inner;
        call.stride[2][0] = in * inner;
    }
    return lower_emit(d, l, n, &call, (int[]){y, matrix, x});
}

/* All axes that repeat whole positions in one copy: each of them is read as [positions, times] with stride 0 for times.
 */
static Status emit_repeats(Diag *d, Lowering *l, const ModelNode *n, int rank, const int64_t *dim, const int64_t *times,
                           int x, int y)
{
    int wide = 0;
    int64_t own[MAX_RANK], space[2 * MAX_RANK], from[2 * MAX_RANK], to[2 * MAX_RANK], step = 1;
    strides_dense(rank, dim, own);
    for (int i = 0; i < rank; i++) {
        space[wide] = dim[i];
        from[wide++] = own[i];
        if (times[i] > 1) {
            space[wide] = times[i];
            from[wide++] = 0;
        }
    }
    for (int i = wide - 1; i >= 0; i--) {
        to[i] = step;
        step *= space[i];
    }
    ferry_kernel call = call_copy(l->graph->precision, wide, space, 0, to, 0, from, 1);
    return lower_emit(d, l, n, &call, (int[]){y, x});
}

/* The tensor of the next step: the node's output when it is the last one. */
static Status next_tensor(Diag *d, Lowering *l, const ModelNode *n, int rank, const int64_t *dim, bool last, int *out)
{
    return last ? lower_output(d, l, n, 0, out) : lower_temp(d, l, n, l->graph->precision, rank, dim, out);
}

/* x + number */
static Status emit_shift(Diag *d, Lowering *l, const ModelNode *n, int x, double number, bool last, int *y)
{
    const Tensor t = l->graph->tensor.at[x];
    const int64_t one = 1, zero = 0;
    int s;
    TRY(graph_add_scalar(d, l->graph, number, &s));
    TRY(next_tensor(d, l, n, t.rank, t.dim, last, y));
    ferry_kernel call = call_binary(FERRY_OP_BINARY, t.dtype, FERRY_ADD, 1, &t.count, &one, &zero);
    return lower_emit(d, l, n, &call, (int[]){*y, x, s});
}

/* Axes that shrink come first, so that the others have less to do. */
static Status emit_resize(Diag *d, Lowering *l, const ModelNode *n, const ResizeSpec *s, int x)
{
    double *w[MAX_RANK] = {NULL};
    int64_t times[MAX_RANK], dim[MAX_RANK];
    int products = 0, repeated = 0, wide = s->rank, y;
    for (int k = 0; k < s->rank; k++) {
        times[k] = resize_repeats(s, k);
        if (times[k] > 1 && wide == MAX_RANK)
            times[k] = 0;
        if (times[k] == 0)
            TRY(make_matrix(d, l, n, s, k, &w[k]));
        wide += times[k] > 1;
        repeated += times[k] > 1;
        products += times[k] == 0;
        dim[k] = s->in[k];
    }
    /* with a value for what lies outside: rows of zeros give 0, so everything is moved down and up again by the value
     */
    bool shifts = s->coordinate == COORDINATE_TF_CROP_AND_RESIZE && s->extrapolation != 0;
    if (products + repeated == 0)
        return lower_view(d, l, n, 0, x);
    if (shifts)
        TRY(emit_shift(d, l, n, x, -s->extrapolation, false, &x));
    for (int growing = 0; growing < 2; growing++)
        for (int k = 0; k < s->rank; k++) {
            if (times[k] != 0 || (s->out[k] > s->in[k]) != growing)
                continue;
            int64_t before[MAX_RANK];
            memcpy(before, dim, sizeof(before));
            dim[k] = s->out[k];
            TRY(next_tensor(d, l, n, s->rank, dim, --products == 0 && repeated == 0 && !shifts, &y));
            TRY(emit_axis(d, l, n, s, k, w[k], before, x, y));
            x = y;
        }
    if (repeated > 0) {
        TRY(next_tensor(d, l, n, s->rank, s->out, !shifts, &y));
        TRY(emit_repeats(d, l, n, s->rank, dim, times, x, y));
        x = y;
    }
    return shifts ? emit_shift(d, l, n, x, s->extrapolation, true, &y) : ST_OK;
}

Status lower_resize(Diag *d, Lowering *l, ModelNode *n)
{
    ResizeSpec s;
    int x;
    TRY(resize_read(d, l->model, n, &s));
    TRY(lower_input(d, l, n, 0, &x));
    if (!dtype_is_float(l->graph->tensor.at[x].dtype))
        return node_fail(d, l->model, n, "resizing %s values is unsupported",
                         ferry_dtype_name(l->graph->tensor.at[x].dtype));
    return emit_resize(d, l, n, &s, x);
}

/* ---- Pad --------------------------------------------------------------------------------------------------------- */

/* A part [at, at + count) of the output along an axis, read from the input at from, from + step, ... */
typedef struct Run {
    int64_t at, count, from, step;
} Run;

/* Position in an axis of `size` that position j (any number) shows, PAD_CONSTANT excepted. */
static int64_t shown(PadMode mode, int64_t j, int64_t size)
{
    if (mode == PAD_EDGE)
        return j < 0 ? 0 : j >= size ? size - 1 : j;
    int64_t period = mode == PAD_WRAP ? size : size > 1 ? 2 * size - 2 : 1;
    int64_t at = (j % period + period) % period;
    return at < size ? at : period - at;
}

/* Position j and those after it, at most `most`, that are read with one step. */
static Run next_run(PadMode mode, int64_t j, int64_t most, int64_t size)
{
    Run r = {.count = 1, .from = shown(mode, j, size)};
    if (most > 1)
        r.step = shown(mode, j + 1, size) - r.from;
    if (r.step < -1 || r.step > 1) { /* a wrap around */
        r.step = 0;
        return r;
    }
    while (r.count < most && shown(mode, j + r.count, size) == r.from + r.step * r.count)
        r.count++;
    return r;
}

static Status emit_run(Diag *d, Lowering *l, const ModelNode *n, int rank, const int64_t *from_dim,
                       const int64_t *to_dim, int axis, Run r, int x, int y)
{
    int64_t dim[MAX_RANK], from[MAX_RANK], to[MAX_RANK];
    memcpy(dim, to_dim, sizeof(dim));
    strides_dense(rank, from_dim, from);
    strides_dense(rank, to_dim, to);
    int64_t y_offset = r.at * to[axis], x_offset = r.from * from[axis];
    dim[axis] = r.count;
    from[axis] *= r.step;
    ferry_kernel call = call_copy(l->graph->tensor.at[x].dtype, rank, dim, y_offset, to, x_offset, from, 1);
    return lower_emit(d, l, n, &call, (int[]){y, x});
}

/* reflect, edge, wrap: axis by axis, each as a few copies of parts. */
static Status pad_axis(Diag *d, Lowering *l, const ModelNode *n, const PadSpec *p, int axis, int64_t *dim, int x, int y)
{
    enum { MOST_RUNS = 64 };
    int64_t from_dim[MAX_RANK], out = dim[axis] + p->begin[axis] + p->end[axis];
    int64_t cut = p->begin[axis] < 0 ? -p->begin[axis] : 0, cut_end = p->end[axis] < 0 ? -p->end[axis] : 0;
    int64_t size = dim[axis] - cut - cut_end, begin = p->begin[axis] + cut; /* what is cut off is not shown again */
    memcpy(from_dim, dim, sizeof(from_dim));
    dim[axis] = out;
    int runs = 0;
    for (int64_t at = 0; at < out; runs++) {
        Run r = next_run(p->mode, at - begin, out - at, size);
        r.at = at;
        r.from += cut;
        if (runs == MOST_RUNS)
            return node_fail(d, l->model, n, "padding that repeats axis %d this often is unsupported", axis);
        TRY(emit_run(d, l, n, p->rank, from_dim, dim, axis, r, x, y));
        at += r.count;
    }
    return ST_OK;
}

/* constant: all of the output is filled, then the input is copied into its middle. */
static Status pad_constant(Diag *d, Lowering *l, const ModelNode *n, const PadSpec *p, int x)
{
    int y;
    const Tensor t = l->graph->tensor.at[x];
    TRY(lower_output(d, l, n, 0, &y));
    const Tensor ty = l->graph->tensor.at[y];
    ferry_kernel fill = call_new(FERRY_OP_FILL, t.dtype);
    fill.n = ty.count;
    fill.alpha = p->value;
    TRY(lower_emit(d, l, n, &fill, (int[]){y}));
    int64_t dim[MAX_RANK], from[MAX_RANK], to[MAX_RANK], x_offset = 0, y_offset = 0;
    strides_dense(t.rank, t.dim, from);
    strides_dense(t.rank, ty.dim, to);
    for (int k = 0; k < t.rank; k++) {
        int64_t cut = p->begin[k] < 0 ? -p->begin[k] : 0, cut_end = p->end[k] < 0 ? -p->end[k] : 0;
        dim[k] = t.dim[k] - cut - cut_end;
        if (dim[k] <= 0)
            return ST_OK; /* nothing of the input is left */
        x_offset += cut * from[k];
        y_offset += (p->begin[k] > 0 ? p->begin[k] : 0) * to[k];
    }
    ferry_kernel call = call_copy(t.dtype, t.rank, dim, y_offset, to, x_offset, from, 1);
    return lower_emit(d, l, n, &call, (int[]){y, x});
}

Status lower_pad(Diag *d, Lowering *l, ModelNode *n)
{
    PadSpec p;
    int x, y, left = 0;
    int64_t dim[MAX_RANK];
    TRY(pad_read(d, l->model, n, &p));
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = l->graph->tensor.at[x];
    memcpy(dim, t.dim, sizeof(dim));
    for (int k = 0; k < p.rank; k++)
        left += p.begin[k] != 0 || p.end[k] != 0;
    if (left == 0)
        return lower_view(d, l, n, 0, x);
    if (p.mode == PAD_CONSTANT)
        return pad_constant(d, l, n, &p, x);
    for (int k = 0; k < p.rank; k++) {
        if (p.begin[k] == 0 && p.end[k] == 0)
            continue;
        int64_t to[MAX_RANK];
        memcpy(to, dim, sizeof(to));
        to[k] += p.begin[k] + p.end[k];
        if (--left == 0)
            TRY(lower_output(d, l, n, 0, &y));
        else
            TRY(lower_temp(d, l, n, t.dtype, t.rank, to, &y));
        TRY(pad_axis(d, l, n, &p, k, dim, x, y));
        x = y;
    }
    return ST_OK;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Both operators move the axes of a space of six: channels in two parts or three, and the blocks of H and W. */
Status lower_depth_space(Diag *d, Lowering *l, ModelNode *n)
{
    int x, y;
    int64_t b = node_attr_int(n, "blocksize", 1), own[6], dense[6];
    const Attr *mode = node_attr(n, "mode");
    bool columns_first = mode != NULL && mode->s != NULL && strcmp(mode->s, "CRD") == 0;
    TRY(lower_input(d, l, n, 0, &x));
    const Tensor t = l->graph->tensor.at[x];
    int64_t dim[6], stride[6];
    if (strcmp(n->op, "DepthToSpace") == 0) {
        int64_t channels = t.dim[1] / (b * b), H = t.dim[2], W = t.dim[3];
        /* x [N, C, b, b, H, W] or [N, b, b, C, H, W] -> y [N, C, H, b, W, b] */
        const int64_t crd[] = {t.dim[0], channels, b, b, H, W}, dcr[] = {t.dim[0], b, b, channels, H, W};
        strides_dense(6, columns_first ? crd : dcr, own);
        const int from[2][6] = {{0, 3, 4, 1, 5, 2}, {0, 1, 4, 2, 5, 3}};
        for (int i = 0; i < 6; i++) {
            dim[i] = (columns_first ? crd : dcr)[from[columns_first][i]];
            stride[i] = own[from[columns_first][i]];
        }
    } else {
        /* x [N, C, H, b, W, b] -> y [N, b, b, C, H, W] */
        const int64_t split[] = {t.dim[0], t.dim[1], t.dim[2] / b, b, t.dim[3] / b, b};
        const int from[6] = {0, 3, 5, 1, 2, 4};
        strides_dense(6, split, own);
        for (int i = 0; i < 6; i++) {
            dim[i] = split[from[i]];
            stride[i] = own[from[i]];
        }
    }
    strides_dense(6, dim, dense);
    ferry_kernel call = call_copy(t.dtype, 6, dim, 0, dense, 0, stride, 1);
    if (call_is_identity_copy(&call))
        return lower_view(d, l, n, 0, x);
    TRY(lower_output(d, l, n, 0, &y));
    return lower_emit(d, l, n, &call, (int[]){y, x});
}
