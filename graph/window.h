/* window.h - the geometry of convolutions and poolings as ONNX nodes give it, read once for shapes and for kernels. */
#ifndef FERRY_GRAPH_WINDOW_H
#define FERRY_GRAPH_WINDOW_H

#include "graph/ops.h"

/* Conv: x [N, C, in...], w [M, C/group, size...]. All of *out; ST_MODEL when something does not fit. */
Status window_of_conv(Diag *d, const Model *m, const ModelNode *n, ferry_window *out);
/* ConvTranspose as the convolution whose transpose it is: out->in is the shape of Y, out->out that of X. */
Status window_of_conv_transpose(Diag *d, const Model *m, const ModelNode *n, ferry_window *out);
/* MaxPool, AveragePool, LpPool. */
Status window_of_pool(Diag *d, const Model *m, const ModelNode *n, ferry_window *out);

/* graph/resize.c: what a Resize or Upsample does along each axis of its input. */
typedef enum ResizeMode { RESIZE_NEAREST, RESIZE_LINEAR, RESIZE_CUBIC } ResizeMode;
typedef enum ResizeCoordinate {
    COORDINATE_HALF_PIXEL,
    COORDINATE_HALF_PIXEL_SYMMETRIC,
    COORDINATE_PYTORCH_HALF_PIXEL,
    COORDINATE_ALIGN_CORNERS,
    COORDINATE_ASYMMETRIC,
    COORDINATE_TF_HALF_PIXEL_FOR_NN,
    COORDINATE_TF_CROP_AND_RESIZE
} ResizeCoordinate;
typedef enum ResizeNearest {
    NEAREST_ROUND_PREFER_FLOOR,
    NEAREST_ROUND_PREFER_CEIL,
    NEAREST_FLOOR,
    NEAREST_CEIL,
    NEAREST_SIMPLE /* before opset 11: floor, and ceil where the axis shrinks */
} ResizeNearest;
typedef struct ResizeSpec {
    ResizeMode mode;
    ResizeCoordinate coordinate;
    ResizeNearest nearest;
    bool antialias, exclude_outside;
    double cubic_a, extrapolation;
    int rank;
    int64_t in[MAX_RANK], out[MAX_RANK];
    double scale[MAX_RANK], start[MAX_RANK], end[MAX_RANK]; /* start, end: of the region, as shares of the axis */
} ResizeSpec;
Status resize_read(Diag *d, const Model *m, const ModelNode *n, ResizeSpec *out);
/* 1: the axis stays as it is; t > 1: each position is repeated t times; 0: it takes a matrix. */
int64_t resize_repeats(const ResizeSpec *s, int axis);
/* The matrix of one axis: y = w x with w [out, in], row by row. A row of zeros is extrapolated. w has room for it. */
void resize_matrix(const ResizeSpec *s, int axis, double *w);

/* graph/pad.c: a Pad. Position j of the output along an axis is position j - begin of the input, or outside of it. */
typedef enum PadMode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP } PadMode;
typedef struct PadSpec {
    PadMode mode;
    double value;
    int rank;
    int64_t begin[MAX_RANK], end[MAX_RANK]; /* negative: cut off */
} PadSpec;
Status pad_read(Diag *d, const Model *m, const ModelNode *n, PadSpec *out);

#endif
