/* resize.c - Resize and Upsample as one matrix an axis.
 *
 * All modes are linear in the data and separable: along an axis, an output position has a coordinate in the input, and
 * the output is a weighted sum of input positions near it (one for nearest, two for linear, four for cubic, more when
 * antialiasing widens the filter). So y = W0 x along the first axis, then W1 along the second, and the gradient is that
 * of a product with a constant. */
#include "graph/window.h"

#include <math.h>
#include <string.h>

#include "graph/fold.h"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The place of the attribute's text among `names`, or `otherwise` when it is absent. */
static Status read_choice(Diag *d, const Model *m, const ModelNode *n, const char *attr, const char *const *names,
                          int count, int otherwise, int *out)
{
    const Attr *a;
    *out = otherwise;
    TRY(attr_get(d, m, n, attr, ATTR_STRING, &a));
    if (a == NULL)
        return ST_OK;
    for (int i = 0; i < count; i++)
        if (strcmp(a->s, names[i]) == 0) {
            *out = i;
            return ST_OK;
        }
    return node_fail(d, m, n, "%s \"%.40s\" is not supported", attr, a->s);
}

static Status read_modes(Diag *d, const Model *m, const ModelNode *n, ResizeSpec *s)
{
    static const char *const modes[] = {"nearest", "linear", "cubic", "bilinear"};
    static const char *const coordinates[] = {
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
        "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize",
    };
    static const char *const nearests[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
    int mode, coordinate, nearest;
    bool old = m->opset < 11;
    TRY(read_choice(d, m, n, "mode", modes, 4, RESIZE_NEAREST, &mode));
    TRY(read_choice(d, m, n, "coordinate_transformation_mode", coordinates, 7,
                    old ? COORDINATE_ASYMMETRIC : COORDINATE_HALF_PIXEL, &coordinate));
    TRY(read_choice(d, m, n, "nearest_mode", nearests, 4, old ? NEAREST_SIMPLE : NEAREST_ROUND_PREFER_FLOOR, &nearest));
    s->mode = mode == 3 ? RESIZE_LINEAR : (ResizeMode)mode;
    s->coordinate = (ResizeCoordinate)coordinate;
    s->nearest = (ResizeNearest)nearest;
    s->antialias = node_attr_int(n, "antialias", 0) != 0 && s->mode != RESIZE_NEAREST;
    s->exclude_outside = node_attr_int(n, "exclude_outside", 0) != 0;
    s->cubic_a = node_attr_float(n, "cubic_coeff_a", -0.75);
    s->extrapolation = node_attr_float(n, "extrapolation_value", 0);
    return ST_OK;
}

/* Input i as numbers: *count of them, 0 when it is omitted or empty. NULL data: not known. */
static Status read_numbers(Diag *d, const Model *m, const ModelNode *n, int i, const char *what, const Value **out,
                           int64_t *count)
{
    const Value *v = node_in(m, n, i);
    *out = v;
    *count = 0;
    if (v == NULL || value_count(v) == 0)
        return ST_OK;
    if (v->rank != 1 || v->dtype == FERRY_BOOL)
        return node_fail(d, m, n, "its %s (input \"%s\") are not a list of numbers", what, v->name);
    if (v->data == NULL) {
        node_fail(d, m, n,
                  "its %s (input \"%s\") are not known when compiling: they depend on the contents of the inputs", what,
                  v->name);
        return diag_hint(d, "only sizes that follow from the inputs' shapes are supported");
    }
    *count = value_count(v);
    return ST_OK;
}

static double number_at(const Value *v, int64_t i)
{
    return num_real(v->dtype, v->data, fold_uniform(v) ? 0 : i);
}

/* axis[i]: the axis that entry i of scales, sizes and roi is about. */
static Status read_axes(Diag *d, const Model *m, const ModelNode *n, int rank, int *axis, int *count)
{
    const Attr *a;
    uint32_t seen = 0;
    TRY(attr_get(d, m, n, "axes", ATTR_INTS, &a));
    *count = a != NULL ? a->count : rank;
    if (*count > rank)
        return node_fail(d, m, n, "axes has %d entries for %d dimensions", *count, rank);
    for (int i = 0; i < *count; i++) {
        axis[i] = i;
        if (a != NULL)
            TRY(axis_resolve(d, m, n, a->ints[i], rank, &axis[i]));
        if (seen >> axis[i] & 1)
            return node_fail(d, m, n, "axis %d is given twice", axis[i]);
        seen |= 1u << axis[i];
    }
    return ST_OK;
}

static Status read_region(Diag *d, const Model *m, const ModelNode *n, const int *axis, int count, ResizeSpec *s)
{
    const Value *roi;
    int64_t given;
    if (s->coordinate != COORDINATE_TF_CROP_AND_RESIZE)
        return ST_OK;
    TRY(read_numbers(d, m, n, 1, "region", &roi, &given));
    if (given != 2 * count)
        return node_fail(d, m, n, "its region has %lld entries, expected %d", (long long)given, 2 * count);
    for (int i = 0; i < count; i++) {
        s->start[axis[i]] = number_at(roi, i);
        s->end[axis[i]] = number_at(roi, count + i);
    }
    return ST_OK;
}

/* One scale for all axes that keeps the proportions, and the sizes that it gives. */
static Status keep_proportions(Diag *d, const Model *m, const ModelNode *n, const int *axis, int count, ResizeSpec *s)
{
    static const char *const policies[] = {"stretch", "not_larger", "not_smaller"};
    int policy;
    TRY(read_choice(d, m, n, "keep_aspect_ratio_policy", policies, 3, 0, &policy));
    if (policy == 0 || count == 0)
        return ST_OK;
    double best = s->scale[axis[0]];
    for (int i = 1; i < count; i++)
        if (policy == 1 ? s->scale[axis[i]] < best : s->scale[axis[i]] > best)
            best = s->scale[axis[i]];
    for (int i = 0; i < count; i++) {
        s->scale[axis[i]] = best;
        s->out[axis[i]] = (int64_t)floor(best * (double)s->in[axis[i]] + 0.5);
    }
    return ST_OK;
}

/* The sizes of the output, from `sizes`, or from the input's, the scales and the region. */
static Status read_sizes(Diag *d, const Model *m, const ModelNode *n, const int *axis, int count, ResizeSpec *s)
{
    const double most = 1e12;
    const Attr *attr;
    const Value *scales, *sizes;
    int64_t n_scale, n_size;
    bool upsample = strcmp(n->op, "Upsample") == 0, old = upsample || m->opset < 11;
    TRY(attr_get(d, m, n, "scales", ATTR_FLOATS, &attr));
    TRY(read_numbers(d, m, n, old ? 1 : 2, "scales", &scales, &n_scale));
    TRY(read_numbers(d, m, n, old ? 9 : 3, "sizes", &sizes, &n_size));
    if (attr != NULL)
        n_scale = attr->count;
    if (n_size > 0 ? n_size != count : n_scale != count)
        return node_fail(d, m, n, "it has %lld scales and %lld sizes for %d axes", (long long)n_scale,
                         (long long)n_size, count);
    for (int i = 0; i < count; i++) {
        int k = axis[i];
        if (n_size > 0) {
            double size = number_at(sizes, i);
            if (!(size >= 0 && size < most) || s->in[k] == 0)
                return node_fail(d, m, n, "it cannot resize %lld to %.17g along axis %d", (long long)s->in[k], size, k);
            s->out[k] = (int64_t)size;
            s->scale[k] = size / (double)s->in[k];
            continue;
        }
        double scale = attr != NULL ? attr->floats[i] : number_at(scales, i);
        double size = floor((double)s->in[k] * (s->end[k] - s->start[k]) * scale);
        if (!(scale > 0) || !(size >= 0 && size < most))
            return node_fail(d, m, n, "its scale along axis %d is %.17g", k, scale);
        s->out[k] = (int64_t)size;
        s->scale[k] = scale;
    }
    return n_size > 0 ? keep_proportions(d, m, n, axis, count, s) : ST_OK;
}

Status resize_read(Diag *d, const Model *m, const ModelNode *n, ResizeSpec *out)
{
    const Value *x = node_in(m, n, 0);
    int axis[MAX_RANK], count;
    *out = (ResizeSpec){.rank = x->rank};
    for (int k = 0; k < x->rank; k++) {
        out->in[k] = out->out[k] = x->dim[k];
        out->scale[k] = out->end[k] = 1;
    }
    TRY(read_modes(d, m, n, out));
    TRY(read_axes(d, m, n, x->rank, axis, &count));
    TRY(read_region(d, m, n, axis, count, out));
    return read_sizes(d, m, n, axis, count, out);
}

/* ---- the matrix -------------------------------------------------------------------------------------------------- */

/* The coordinate in the input of output position i. */
static double coordinate_of(const ResizeSpec *s, int axis, int64_t i)
{
    double x = (double)i, in = (double)s->in[axis], out = (double)s->out[axis], scale = s->scale[axis];
    switch (s->coordinate) {
    case COORDINATE_HALF_PIXEL:
        return (x + 0.5) / scale - 0.5;
    case COORDINATE_HALF_PIXEL_SYMMETRIC: /* what rounding the size down cut off is taken from both ends */
        return in / 2 * (1 - out / (scale * in)) + (x + 0.5) / scale - 0.5;
    case COORDINATE_PYTORCH_HALF_PIXEL:
        return out > 1 ? (x + 0.5) / scale - 0.5 : 0;
    case COORDINATE_ALIGN_CORNERS:
        return out > 1 ? x * (in - 1) / (out - 1) : 0;
    case COORDINATE_ASYMMETRIC:
        return x / scale;
    case COORDINATE_TF_HALF_PIXEL_FOR_NN:
        return (x + 0.5) / scale;
    case COORDINATE_TF_CROP_AND_RESIZE:
        if (out <= 1)
            return 0.5 * (s->start[axis] + s->end[axis]) * (in - 1);
        return s->start[axis] * (in - 1) + x * (s->end[axis] - s->start[axis]) * (in - 1) / (out - 1);
    }
    return x;
}

/* The filter at a distance from the coordinate. */
static double filter(const ResizeSpec *s, double distance)
{
    double x = fabs(distance), a = s->cubic_a;
    if (s->mode == RESIZE_LINEAR)
        return x < 1 ? 1 - x : 0;
    if (x <= 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static double nearest_of(const ResizeSpec *s, int axis, double x)
{
    switch (s->nearest) {
    case NEAREST_ROUND_PREFER_FLOOR:
        return ceil(x - 0.5);
    case NEAREST_ROUND_PREFER_CEIL:
        return floor(x + 0.5);
    case NEAREST_FLOOR:
        return floor(x);
    case NEAREST_CEIL:
        return ceil(x);
    case NEAREST_SIMPLE:
        return s->scale[axis] < 1 ? ceil(x) : floor(x);
    }
    return x;
}

static int64_t clamped(double at, int64_t in)
{
    return at < 0 ? 0 : at > (double)(in - 1) ? in - 1 : (int64_t)at;
}

/* Positions outside of the axis count for the one at its end, or not at all: then the others share what is left. */
static void filter_row(const ResizeSpec *s, int axis, double x, double *w)
{
    int64_t in = s->in[axis];
    double narrow = s->antialias && s->scale[axis] < 1 ? s->scale[axis] : 1;
    double reach = (s->mode == RESIZE_LINEAR ? 1 : 2) / narrow, total = 0;
    /* beyond the ends all positions are the same one or none: no need to visit them one by one when x is far outside */
    double from = fmax(floor(x - reach), -reach - 2), to = fmin(ceil(x + reach), (double)in + reach + 2);
    for (double at = from; at <= to; at++) {
        double weight = filter(s, (at - x) * narrow);
        if (s->exclude_outside && (at < 0 || at > (double)(in - 1)))
            continue;
        w[clamped(at, in)] += weight;
        total += weight;
    }
    if (total == 0) { /* far outside of the axis */
        w[clamped(x, in)] = 1;
        return;
    }
    for (int64_t k = 0; k < in && (s->antialias || s->exclude_outside); k++)
        w[k] /= total;
}

/* A tf_crop_and_resize coordinate beyond the axis: what is there is extrapolated. */
static bool is_outside(const ResizeSpec *s, int axis, double x)
{
    return s->coordinate == COORDINATE_TF_CROP_AND_RESIZE && (x < 0 || x > (double)(s->in[axis] - 1));
}

int64_t resize_repeats(const ResizeSpec *s, int axis)
{
    int64_t in = s->in[axis], out = s->out[axis];
    bool whole = s->coordinate != COORDINATE_TF_CROP_AND_RESIZE || (s->start[axis] == 0 && s->end[axis] == 1);
    if (in == out && s->scale[axis] == 1 && whole && s->coordinate != COORDINATE_TF_HALF_PIXEL_FOR_NN)
        return 1;
    if (s->mode != RESIZE_NEAREST || in == 0 || out % in != 0)
        return 0;
    int64_t times = out / in;
    for (int64_t i = 0; i < out; i++) {
        double x = coordinate_of(s, axis, i);
        if (is_outside(s, axis, x) || clamped(nearest_of(s, axis, x), in) != i / times)
            return 0;
    }
    return times;
}

void resize_matrix(const ResizeSpec *s, int axis, double *w)
{
    int64_t in = s->in[axis], out = s->out[axis];
    memset(w, 0, (size_t)(in * out) * sizeof(*w));
    for (int64_t i = 0; i < out; i++, w += in) {
        double x = coordinate_of(s, axis, i);
        if (is_outside(s, axis, x))
            continue;
        if (s->mode == RESIZE_NEAREST)
            w[clamped(nearest_of(s, axis, x), in)] = 1;
        else
            filter_row(s, axis, x, w);
    }
}
