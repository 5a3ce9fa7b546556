"""Writes window9.onnx, window10.onnx, window18.onnx and window21.onnx beside this file: convolutions, poolings,
normalizations over channels, resizing and padding, as make_lower_cases.py describes.

onnxruntime computes what is expected, and numpy where onnxruntime does not know the operator at that opset.
"""
import os
import sys

import numpy as np
import onnx
from onnx import helper

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from make_lower_cases import Cases, numpy_helper  # noqa: E402

rng = np.random.default_rng(11)


def r(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def positive(*shape):
    return rng.uniform(0.5, 2, shape).astype(np.float32)


def distinct(*shape):
    """No two elements are so near that a difference quotient would move a maximum."""
    return (rng.permutation(int(np.prod(shape))).reshape(shape) / 8 - 3).astype(np.float32)


def i64(*values):
    return np.array(values, np.int64)


def f32(*values):
    return np.array(values, np.float32)


class Window(Cases):
    def save(self):
        graph = helper.make_graph(self.nodes, "cases", [], self.outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        path = os.path.join(HERE, f"window{self.opset}.onnx")
        onnx.save(model, path)
        print(path, len(self.outputs), "outputs", os.path.getsize(path), "bytes")

    def computed(self, name, op, params, expected, **attrs):
        """A node whose result is given."""
        ins = [f"{name}/in{i}" for i in range(len(params))]
        self.initializers += [numpy_helper.from_array(a, n) for a, n in zip(params, ins)]
        self.nodes.append(helper.make_node(op, ins, [f"{name}/out0"], name=name, **attrs))
        self.initializers.append(numpy_helper.from_array(expected.astype(np.float32), f"{name}/expect0"))
        self.outputs.append(onnx.ValueInfoProto(name=f"{name}/out0"))


def convolutions(c):
    c.one("Conv", "Conv", [r(2, 2, 5, 4), r(3, 2, 3, 2), r(3)])
    c.one("Conv_no_bias", "Conv", [r(1, 2, 4, 4), r(3, 2, 1, 1)])
    c.one("Conv_1d", "Conv", [r(2, 2, 7), r(2, 2, 3), r(2)], pads=[1, 2], strides=[2], dilations=[2])
    c.one("Conv_3d", "Conv", [r(1, 2, 3, 4, 3), r(2, 2, 2, 2, 2), r(2)], pads=[1, 0, 1, 0, 1, 0], strides=[1, 2, 1])
    c.one("Conv_groups", "Conv", [r(2, 4, 5, 5), r(6, 2, 3, 3), r(6)], group=2, pads=[1, 1, 1, 1], strides=[2, 2])
    c.one("Conv_depthwise", "Conv", [r(1, 3, 4, 5), r(3, 1, 3, 3), r(3)], group=3, pads=[1, 1, 1, 1])
    for how in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        c.one(f"Conv_{how}", "Conv", [r(1, 1, 5, 6), r(2, 1, 2, 3), r(2)], auto_pad=how, strides=[2, 3])
    c.one("ConvT", "ConvTranspose", [r(2, 2, 3, 4), r(2, 3, 3, 2), r(3)])
    c.one("ConvT_1d", "ConvTranspose", [r(1, 2, 4), r(2, 2, 3)], strides=[3], output_padding=[2], pads=[1, 0])
    c.one("ConvT_3d", "ConvTranspose", [r(1, 1, 2, 3, 2), r(1, 2, 2, 1, 2), r(2)], strides=[2, 1, 2])
    c.one("ConvT_groups", "ConvTranspose", [r(1, 4, 3, 3), r(4, 2, 3, 3), r(4)], group=2, strides=[2, 2],
          pads=[1, 1, 1, 1], output_padding=[1, 1], dilations=[1, 2])
    c.one("ConvT_shape", "ConvTranspose", [r(1, 1, 3, 3), r(1, 2, 3, 3)], strides=[3, 2], output_shape=[10, 8])
    c.one("ConvT_shape_upper", "ConvTranspose", [r(1, 1, 3, 3), r(1, 2, 3, 3)], strides=[3, 2], output_shape=[8, 6],
          auto_pad="SAME_UPPER")
    c.one("ConvT_same", "ConvTranspose", [r(1, 1, 3, 3), r(1, 2, 3, 4)], strides=[2, 2], auto_pad="SAME_UPPER")


def poolings(c):
    c.one("MaxPool", "MaxPool", [distinct(2, 2, 5, 5)], kernel_shape=[2, 3], strides=[2, 1], pads=[1, 1, 0, 1])
    c.one("MaxPool_1d", "MaxPool", [distinct(1, 2, 9)], kernel_shape=[3], strides=[2], dilations=[2])
    c.one("MaxPool_3d", "MaxPool", [distinct(1, 1, 3, 4, 3)], kernel_shape=[2, 2, 2], strides=[1, 2, 1])
    c.one("MaxPool_ceil", "MaxPool", [distinct(1, 1, 4, 6)], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    c.one("MaxPool_same", "MaxPool", [distinct(1, 1, 5, 4)], kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER")
    for pad in (0, 1):
        c.one(f"AveragePool_{pad}", "AveragePool", [r(2, 1, 5, 4)], kernel_shape=[3, 2], pads=[1, 1, 1, 0],
              strides=[2, 1], count_include_pad=pad)
        c.one(f"AveragePool_ceil_{pad}", "AveragePool", [r(1, 1, 6, 6)], kernel_shape=[3, 3], pads=[1, 1, 1, 1],
              strides=[2, 2], ceil_mode=1, count_include_pad=pad)
        c.one(f"AveragePool_dilated_{pad}", "AveragePool", [r(1, 1, 7, 7)], kernel_shape=[2, 3], dilations=[3, 2],
              pads=[1, 2, 1, 2], count_include_pad=pad)
    c.one("AveragePool_same", "AveragePool", [r(1, 1, 5, 5)], kernel_shape=[2, 2], auto_pad="SAME_UPPER")
    c.one("AveragePool_3d", "AveragePool", [r(1, 2, 3, 3, 3)], kernel_shape=[2, 2, 2])
    for p in (1, 2, 3):
        c.one(f"LpPool_{p}", "LpPool", [r(1, 2, 5, 4)], kernel_shape=[2, 2], p=p, strides=[2, 1])
        c.one(f"GlobalLpPool_{p}", "GlobalLpPool", [r(2, 2, 3, 2)], p=p)
    c.one("GlobalAveragePool", "GlobalAveragePool", [r(2, 3, 3, 2)])
    c.one("GlobalAveragePool_1d", "GlobalAveragePool", [r(2, 3, 4)])
    c.one("GlobalMaxPool", "GlobalMaxPool", [distinct(2, 2, 3, 2)])
    c.one("LRN", "LRN", [r(1, 5, 2, 2)], size=3, alpha=0.3, beta=0.6, bias=1.5)
    x = r(1, 4, 3, 1)
    squares = np.concatenate([x, np.zeros_like(x[:, :1])], axis=1)**2  # size 2: a channel and the next one
    c.computed("LRN_even", "LRN", [x], x / (1 + 0.5 / 2 * (squares[:, :-1] + squares[:, 1:]))**0.75, size=2, alpha=0.5)


def normalizations(c):
    c.one("BatchNorm", "BatchNormalization", [r(2, 3, 2, 2), r(3), r(3), r(3), positive(3)], epsilon=1e-3)
    c.one("BatchNorm_2d", "BatchNormalization", [r(4, 3), r(3), r(3), r(3), positive(3)])
    c.one("InstanceNorm", "InstanceNormalization", [r(2, 3, 3, 2), r(3), r(3)], epsilon=1e-3)


def group_norm(x, scale, bias, groups, epsilon):
    y = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + epsilon)
    if scale.size == groups:
        y = y * scale[None, :, None] + bias[None, :, None]
        return y.reshape(x.shape)
    y = y.reshape(x.shape[0], x.shape[1], -1) * scale[None, :, None] + bias[None, :, None]
    return y.reshape(x.shape)


def resizing(c):
    def resize(name, x, scales=None, sizes=None, roi=None, **attrs):
        consts, order = [], ["in0", "", "", ""]
        for k, v in ((1, roi), (2, scales), (3, sizes)):
            if v is not None:
                order[k] = f"c{len(consts)}"
                consts.append(v)
        while order[-1] == "":
            order.pop()
        c.one(name, "Resize", [x], consts, order=order, **attrs)

    modes = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    for mode in ("nearest", "linear", "cubic"):
        for how in modes + ["half_pixel_symmetric"]:
            if how == "half_pixel_symmetric" and c.opset < 19:
                continue
            down = i64(1, 2, 2, 3) if how == "align_corners" else None
            resize(f"Resize_{mode}_{how}_down", r(1, 2, 4, 5), None if down is not None else f32(1, 1, .6, .6), down,
                   mode=mode, coordinate_transformation_mode=how)
            resize(f"Resize_{mode}_{how}_up", r(1, 1, 3, 2), None, i64(1, 1, 7, 4), mode=mode,
                   coordinate_transformation_mode=how)
    for how in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        for where in ("half_pixel", "asymmetric"):
            resize(f"Resize_{how}_{where}", r(1, 1, 4, 4), None, i64(1, 1, 8, 6), mode="nearest", nearest_mode=how,
                   coordinate_transformation_mode=where)
    resize("Resize_repeat", r(2, 2, 3, 2), f32(1, 1, 2, 3), mode="nearest", coordinate_transformation_mode="asymmetric",
           nearest_mode="floor")
    resize("Resize_pick", r(1, 2, 4, 6), f32(1, 1, .5, .5), mode="nearest", coordinate_transformation_mode="asymmetric",
           nearest_mode="floor")
    resize("Resize_outside", r(1, 1, 4, 4), f32(1, 1, .6, 2), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5)
    for value in (0.0, 2.5):
        resize(f"Resize_crop_{value:g}", r(1, 1, 4, 4), None, i64(1, 1, 3, 5), f32(0, 0, .4, -.5, 1, 1, .9, 1.2),
               mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=value)
    resize("Resize_3d", r(1, 1, 2, 3, 2), f32(1, 1, 2, 1.5, 2), mode="linear")
    resize("Resize_same", r(1, 1, 3, 3), f32(1, 1, 1, 1), mode="linear")
    if c.opset < 18:
        return
    for mode in ("linear", "cubic"):
        for outside in (0, 1):
            resize(f"Resize_antialias_{mode}_{outside}", r(1, 1, 7, 5), f32(1, 1, .4, .7), mode=mode, antialias=1,
                   exclude_outside=outside)
    resize("Resize_axes", r(1, 2, 3, 4), None, i64(6, 5), mode="linear", axes=[3, 2])
    resize("Resize_not_larger", r(1, 1, 3, 4), None, i64(1, 1, 7, 8), mode="linear", keep_aspect_ratio_policy="not_larger")
    resize("Resize_not_smaller", r(1, 1, 3, 4), None, i64(7, 8), mode="nearest", axes=[2, 3],
           keep_aspect_ratio_policy="not_smaller")


def padding(c):
    for mode in ("constant", "reflect", "edge", "wrap"):
        if mode == "wrap" and c.opset < 19:
            continue
        c.one(f"Pad_{mode}", "Pad", [r(2, 3, 4)], [i64(1, 0, 2, 0, 2, 1)], mode=mode)
        c.one(f"Pad_{mode}_cut", "Pad", [r(3, 5)], [i64(1, -2, -1, 2)], mode=mode)
    c.one("Pad_value", "Pad", [r(2, 2)], [i64(0, 1, 1, 0), np.float32(1.5)])
    c.one("Pad_gone", "Pad", [r(2, 3)], [i64(0, -3, 0, 2)])
    if c.opset >= 18:
        c.one("Pad_axes", "Pad", [r(2, 3, 2)], [i64(1, 0, 1, 2), i64(2, -2)], mode="edge", order=["in0", "c0", "", "c1"])


def blocks(c):
    c.one("DepthToSpace_DCR", "DepthToSpace", [r(1, 8, 2, 3)], blocksize=2)
    c.one("DepthToSpace_CRD", "DepthToSpace", [r(2, 8, 2, 3)], blocksize=2, mode="CRD")
    c.one("SpaceToDepth", "SpaceToDepth", [r(2, 2, 4, 6)], blocksize=2)


def main():
    c = Window(21)
    convolutions(c)
    poolings(c)
    normalizations(c)
    resizing(c)
    padding(c)
    blocks(c)
    x, scale, bias = r(2, 4, 3, 2), r(4), r(4)
    c.computed("GroupNorm_channels", "GroupNormalization", [x, scale, bias], group_norm(x, scale, bias, 2, 1e-3),
               num_groups=2, epsilon=1e-3)
    c.save()

    c = Window(18)
    x, scale, bias = r(2, 4, 3, 2), r(2), r(2)
    c.computed("GroupNorm_groups", "GroupNormalization", [x, scale, bias], group_norm(x, scale, bias, 2, 1e-3),
               num_groups=2, epsilon=1e-3)
    resizing(c)
    c.save()

    c = Window(10)
    c.one("Resize10_nearest_down", "Resize", [r(1, 1, 4, 5)], [f32(1, 1, .6, .6)], mode="nearest")
    c.one("Resize10_nearest_up", "Resize", [r(1, 1, 4, 3)], [f32(1, 1, 1.5, 2)], mode="nearest")
    c.one("Resize10_linear", "Resize", [r(1, 1, 4, 3)], [f32(1, 1, .6, 1.5)], mode="linear")
    c.one("Pad2_reflect", "Pad", [r(3, 4)], mode="reflect", pads=[1, 2, 0, 1])
    c.one("Pad2_value", "Pad", [r(3, 4)], pads=[1, 0, 0, -1], value=2.0)
    c.save()

    c = Window(9)
    c.one("Upsample_nearest", "Upsample", [r(1, 2, 2, 3)], [f32(1, 1, 2, 3)], mode="nearest")
    c.one("Upsample_fraction", "Upsample", [r(1, 1, 4, 3)], [f32(1, 1, 1.5, 2.5)], mode="nearest")
    c.one("Upsample_linear", "Upsample", [r(1, 1, 3, 3)], [f32(1, 1, 2, 1.5)], mode="linear")
    c.one("BatchNorm9", "BatchNormalization", [r(2, 2, 3), r(2), r(2), r(2), positive(2)])
    c.save()


main()
