/* window.c - strides, pads and dilations of ONNX's convolutions and poolings, and the shapes that follow. */
#include "graph/window.h"

#include <string.h>

/* Sizes beyond this are no windows; below it no sum or product of a few overflows. */
#define WINDOW_MOST (INT64_C(1) << 40)

typedef enum AutoPad { AUTO_NOTSET, AUTO_VALID, AUTO_SAME_UPPER, AUTO_SAME_LOWER } AutoPad;

static Status read_auto_pad(Diag *d, const Model *m, const ModelNode *n, AutoPad *out)
{
    static const char *const names[] = {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"};
    const Attr *a;
    *out = AUTO_NOTSET;
    TRY(attr_get(d, m, n, "auto_pad", ATTR_STRING, &a));
    if (a == NULL || a->s[0] == '\0')
        return ST_OK;
    for (int i = 0; i < 4; i++)
        if (strcmp(a->s, names[i]) == 0) {
            *out = (AutoPad)i;
            return ST_OK;
        }
    return node_fail(d, m, n, "auto_pad \"%.40s\" is unknown", a->s);
}

/* Attribute of `count` numbers in [least, WINDOW_MOST], or all `otherwise`. */
static Status read_sizes(Diag *d, const Model *m, const ModelNode *n, const char *name, int count, int64_t least,
                         int64_t otherwise, int64_t *out)
{
    const Attr *a;
    TRY(attr_get(d, m, n, name, ATTR_INTS, &a));
    for (int i = 0; i < count; i++)
        out[i] = otherwise;
    if (a == NULL || a->count == 0)
        return ST_OK;
    if (a->count != count)
        return node_fail(d, m, n, "%s has %d entries, expected %d", name, a->count, count);
    for (int i = 0; i < count; i++) {
        if (a->ints[i] < least || a->ints[i] > WINDOW_MOST)
            return node_fail(d, m, n, "%s has the entry %lld", name, (long long)a->ints[i]);
        out[i] = a->ints[i];
    }
    return ST_OK;
}

/* Spatial shape of x, and the attributes that all have. pads[2 * rank]: begins, then ends. */
static Status read_common(Diag *d, const Model *m, const ModelNode *n, const Value *x, ferry_window *w, AutoPad *how,
                          int64_t *pads)
{
    *w = (ferry_window){.rank = x->rank - 2, .groups = 1};
    if (x->rank < 3 || x->rank > 5)
        return node_fail(d, m, n, "its input has %d dimensions; [N, C] and 1 to 3 more are supported", x->rank);
    for (int i = 0; i < w->rank; i++) {
        w->in[i] = x->dim[2 + i];
        if (w->in[i] > WINDOW_MOST)
            return node_fail(d, m, n, "dimension %d of its input is too large", 2 + i);
    }
    TRY(read_sizes(d, m, n, "strides", w->rank, 1, 1, w->step));
    TRY(read_sizes(d, m, n, "dilations", w->rank, 1, 1, w->dilation));
    TRY(read_sizes(d, m, n, "pads", 2 * w->rank, 0, 0, pads));
    return read_auto_pad(d, m, n, how);
}

static Status extent(Diag *d, const Model *m, const ModelNode *n, const ferry_window *w, int i, int64_t *out)
{
    if (mul_overflows_i64(w->size[i] - 1, w->dilation[i], out) || *out > WINDOW_MOST)
        return node_fail(d, m, n, "its window is too large along axis %d", 2 + i);
    *out += 1;
    return ST_OK;
}

/* Output positions of an axis. round_up: one more when the last window only begins inside. */
static Status place(Diag *d, const Model *m, const ModelNode *n, ferry_window *w, int i, AutoPad how,
                    const int64_t *pads, bool round_up)
{
    int64_t reach, begin = pads[i], end = pads[w->rank + i];
    TRY(extent(d, m, n, w, i, &reach));
    if (how == AUTO_SAME_UPPER || how == AUTO_SAME_LOWER) {
        w->out[i] = (w->in[i] + w->step[i] - 1) / w->step[i];
        int64_t total = w->in[i] > 0 ? (w->out[i] - 1) * w->step[i] + reach - w->in[i] : 0;
        total = total > 0 ? total : 0;
        begin = how == AUTO_SAME_UPPER ? total / 2 : total - total / 2;
        end = total - begin;
    } else {
        if (how == AUTO_VALID)
            begin = end = 0;
        int64_t room = w->in[i] + begin + end - reach;
        if (room < 0)
            return node_fail(d, m, n, "its window takes %lld positions along axis %d, the padded input has %lld",
                             (long long)reach, 2 + i, (long long)(room + reach));
        w->out[i] = (round_up ? room + w->step[i] - 1 : room) / w->step[i] + 1;
        if (round_up && (w->out[i] - 1) * w->step[i] >= w->in[i] + begin) /* it would see nothing but padding */
            w->out[i]--;
    }
    w->pad[i] = begin;
    w->pad_end[i] = end;
    return ST_OK;
}

/* x, w and the kernel's shape: [M, C/group, ...] for Conv, [C, M/group, ...] for ConvTranspose; b has `*channels`
 * entries. */
static Status read_weights(Diag *d, const Model *m, const ModelNode *n, const Value *x, ferry_window *w,
                           bool transposed)
{
    const Value *weight = node_in(m, n, 1), *bias = node_in(m, n, 2);
    w->groups = node_attr_int(n, "group", 1);
    if (!dtype_is_float(x->dtype) || weight->dtype != x->dtype || (bias != NULL && bias->dtype != x->dtype))
        return node_fail(d, m, n, "its inputs are not of one floating type");
    if (weight->rank != x->rank)
        return node_fail(d, m, n, "its input has %d dimensions, its weights have %d", x->rank, weight->rank);
    int64_t channels = x->dim[1], given = weight->dim[transposed ? 0 : 1];
    if (w->groups < 1 || w->groups > WINDOW_MOST || channels % w->groups != 0 ||
        given != (transposed ? channels : channels / w->groups) || weight->dim[0] % w->groups != 0)
        return node_fail(d, m, n, "%lld channels do not fit weights of %lld x %lld in %lld groups", (long long)channels,
                         (long long)weight->dim[0], (long long)weight->dim[1], (long long)w->groups);
    int64_t made = transposed ? weight->dim[1] * w->groups : weight->dim[0];
    if (bias != NULL && (bias->rank != 1 || bias->dim[0] != made))
        return node_fail(d, m, n, "its bias does not have one entry for each of %lld channels", (long long)made);
    int64_t shape[3];
    for (int i = 0; i < w->rank; i++)
        w->size[i] = weight->dim[2 + i];
    TRY(read_sizes(d, m, n, "kernel_shape", w->rank, 1, -1, shape));
    for (int i = 0; i < w->rank; i++)
        if (w->size[i] < 1 || w->size[i] > WINDOW_MOST || (shape[i] != -1 && shape[i] != w->size[i]))
            return node_fail(d, m, n, "kernel_shape is not the shape of the weights");
    return ST_OK;
}

Status window_of_conv(Diag *d, const Model *m, const ModelNode *n, ferry_window *out)
{
    const Value *x = node_in(m, n, 0);
    AutoPad how;
    int64_t pads[6];
    TRY(read_common(d, m, n, x, out, &how, pads));
    TRY(read_weights(d, m, n, x, out, false));
    for (int i = 0; i < out->rank; i++)
        TRY(place(d, m, n, out, i, how, pads, false));
    return ST_OK;
}

Status window_of_conv_transpose(Diag *d, const Model *m, const ModelNode *n, ferry_window *out)
{
    const Value *x = node_in(m, n, 0);
    AutoPad how;
    int64_t pads[6], more[3], shape[3];
    TRY(read_common(d, m, n, x, out, &how, pads));
    TRY(read_weights(d, m, n, x, out, true));
    TRY(read_sizes(d, m, n, "output_padding", out->rank, 0, 0, more));
    TRY(read_sizes(d, m, n, "output_shape", out->rank, 1, -1, shape));
    for (int i = 0; i < out->rank; i++) {
        int64_t reach, whole, begin = pads[i], end = pads[out->rank + i], from = out->in[i];
        TRY(extent(d, m, n, out, i, &reach));
        if (mul_overflows_i64(out->step[i], from > 0 ? from - 1 : 0, &whole) || whole > WINDOW_MOST)
            return node_fail(d, m, n, "its output is too large along axis %d", 2 + i);
        whole += reach + more[i];
        bool same = how == AUTO_SAME_UPPER || how == AUTO_SAME_LOWER;
        if (how == AUTO_VALID)
            begin = end = 0;
        if (shape[i] != -1 || same) {
            int64_t wanted = shape[i] != -1 ? shape[i] : from * out->step[i], total = whole - wanted;
            total = total > 0 ? total : 0;
            begin = how == AUTO_SAME_UPPER ? total / 2 : total - total / 2;
            out->in[i] = wanted;
        } else {
            out->in[i] = whole - begin - end;
        }
        if (out->in[i] < 0)
            return node_fail(d, m, n, "its pads are larger than its output along axis %d", 2 + i);
        out->out[i] = from;
        out->pad[i] = begin;
    }
    return ST_OK;
}

Status window_of_pool(Diag *d, const Model *m, const ModelNode *n, ferry_window *out)
{
    const Value *x = node_in(m, n, 0);
    AutoPad how;
    int64_t pads[6];
    TRY(read_common(d, m, n, x, out, &how, pads));
    TRY(read_sizes(d, m, n, "kernel_shape", out->rank, 1, -1, out->size));
    out->count_pad = node_attr_int(n, "count_include_pad", 0) != 0;
    for (int i = 0; i < out->rank; i++) {
        int64_t reach;
        if (out->size[i] < 1)
            return node_fail(d, m, n, "attribute kernel_shape is missing");
        TRY(extent(d, m, n, out, i, &reach));
        if (how == AUTO_NOTSET && (pads[i] >= reach || pads[out->rank + i] >= reach))
            return node_fail(d, m, n, "a pad along axis %d is not smaller than the window", 2 + i);
        TRY(place(d, m, n, out, i, how, pads, node_attr_int(n, "ceil_mode", 0) != 0));
    }
    return ST_OK;
}
