"""Writes ops11.onnx, ops14.onnx and ops18.onnx beside this file: activations, reductions and what is composed of them, in the form
of make_lower_cases.py, with what onnxruntime computes. Random values stay away from kinks by more than a difference
quotient steps.
"""
import os

import numpy as np
import onnx
from onnx import helper

from make_lower_cases import HERE, Cases

rng = np.random.default_rng(11)
FLOAT = onnx.TensorProto.FLOAT


def real(*shape, low=-2.0, high=2.0):
    x = rng.uniform(low, high, shape)
    return np.where(np.abs(x * 4 - np.round(x * 4)) < 0.02, x + 0.01, x).astype(np.float32)


class Ops(Cases):
    def save(self):
        graph = helper.make_graph(self.nodes, "cases", [], self.outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        path = os.path.join(HERE, f"ops{self.opset}.onnx")
        onnx.save(model, path)
        print(path, len(self.outputs), "outputs", os.path.getsize(path), "bytes")

    def as_float(self, name, op, params, consts=None, **attrs):
        """An operator whose result is no float: cast behind it."""
        ins = [f"in{i}" for i in range(len(params))] + [f"c{i}" for i in range(len(consts or []))]
        self.add(name, [(op, ins, ["t"], attrs), ("Cast", ["t"], ["out0"], {"to": FLOAT})], params, consts)


def ops14():
    c = Ops(14)
    for op in "Tan Atan Sinh Cosh Asinh Softplus Softsign Floor Ceil Round Sign Selu Elu LeakyRelu HardSigmoid HardSwish".split():
        c.one(op, op, [real(3, 4, low=-1.4, high=1.4) * (3 if op.startswith("Hard") else 1)])
    for op in "Asin Acos Atanh".split():
        c.one(op, op, [real(3, 4, low=-0.9, high=0.9)])
    c.one("Acosh", "Acosh", [real(3, 4, low=1.2, high=4)])
    c.one("Softplus_large", "Softplus", [np.float32([-120, -30, 30, 120])])
    c.one("Round_half", "Round", [np.float32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49, 1e6])])
    c.one("Elu_alpha", "Elu", [real(2, 5)], alpha=0.3)
    c.one("Elu_large", "Elu", [np.float32([-200, 200, 100])])
    c.one("Celu", "Celu", [real(2, 5)], alpha=2.0)
    c.one("Celu_default", "Celu", [real(2, 5)])
    c.one("Selu_given", "Selu", [real(2, 5)], alpha=1.5, gamma=0.5)
    c.one("LeakyRelu_alpha", "LeakyRelu", [real(2, 5)], alpha=0.2)
    c.one("ThresholdedRelu", "ThresholdedRelu", [real(2, 5)], alpha=0.7)
    c.one("HardSigmoid_given", "HardSigmoid", [real(2, 5)], alpha=0.6, beta=0.3)
    c.one("Shrink_hard", "Shrink", [real(2, 5)], lambd=1.1)
    c.one("Shrink_soft", "Shrink", [real(2, 5)], lambd=0.6, bias=0.6)
    c.one("PRelu_scalar", "PRelu", [real(2, 3, 4), real(1)])
    c.one("PRelu_channel", "PRelu", [real(2, 3, 4), real(3, 1)])
    c.one("PRelu_full", "PRelu", [real(2, 3, 4), real(2, 3, 4)])
    c.one("Clip_both", "Clip", [real(3, 4)], [np.float32(-0.6), np.float32(0.9)])
    c.one("Clip_low", "Clip", [real(3, 4)], [np.float32(-0.6)])
    c.one("Clip_high", "Clip", [real(3, 4)], [np.float32(0.3)], order=["in0", "", "c0"])
    c.one("Clip_none", "Clip", [real(3, 4)])
    c.one("Mod", "Mod", [real(3, 4, low=0.3, high=5), real(4, low=0.6, high=1.4)], fmod=1)
    c.one("Sum_3", "Sum", [real(3, 4), real(4), real(3, 1)])
    c.one("Mean_3", "Mean", [real(3, 4), real(4), real(3, 1)])
    c.one("Mean_1", "Mean", [real(3, 4)])
    for op in "ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp".split():
        x = real(2, 3, 5, low=0.3) if op == "ReduceLogSum" else real(2, 3, 5)
        c.one(f"{op}_all", op, [x])
        c.one(f"{op}_axis", op, [x], axes=[1], keepdims=0)
        c.one(f"{op}_outer", op, [x], axes=[0, -1])
        c.one(f"{op}_last", op, [x], axes=[-1], keepdims=0)
    zero = real(3, 4)
    zero[0, 1] = zero[1, 0] = zero[1, 3] = 0
    c.one("ReduceProd_zeros", "ReduceProd", [zero], axes=[1])
    c.one("ReduceLogSumExp_large", "ReduceLogSumExp", [np.float32([[1000, 1001, 999], [-1000, -1001, -1002]])], axes=[1])
    for axis in (0, 1, -1):
        c.one(f"LogSoftmax_{axis}", "LogSoftmax", [real(2, 3, 4)], axis=axis)
        c.one(f"Hardmax_{axis}", "Hardmax", [real(2, 3, 4)], axis=axis)
    c.one("LogSoftmax_large", "LogSoftmax", [np.float32([[1e4, 1e4 + 1, 1e4 - 2], [0, 1, -1e4]])])
    c.one("Hardmax_ties", "Hardmax", [np.float32([[1, 3, 3], [2, 2, 2]])])
    for exclusive in (0, 1):
        for reverse in (0, 1):
            c.one(f"CumSum_{exclusive}{reverse}", "CumSum", [real(2, 7, 3)], [np.int64(1)], exclusive=exclusive, reverse=reverse)
    c.one("CumSum_last", "CumSum", [real(2, 5)], [np.int64(-1)])
    c.one("CumSum_size1", "CumSum", [real(2, 1)], [np.int64(1)], exclusive=1)
    c.one("Trilu_upper", "Trilu", [real(2, 4, 3)])
    c.one("Trilu_lower", "Trilu", [real(4, 5)], [np.int64(1)], upper=0)
    c.one("Trilu_far", "Trilu", [real(3, 3)], [np.int64(-7)], upper=0)
    c.add("OneHot", [("OneHot", ["c0", "c1", "in0"], ["out0"], {})], [real(2)], [np.int64([1, 0, -1, 3]), np.int64(4)])
    c.add("OneHot_axis", [("OneHot", ["c0", "c1", "in0"], ["out0"], {"axis": 1})], [real(2)],
          [np.int64([[1, 0], [-1, 3]]), np.int64(4)])
    for op in ("ArgMax", "ArgMin"):
        c.as_float(f"{op}_0", op, [real(4, 3)], axis=0)
        c.as_float(f"{op}_last", op, [np.float32([[1, 3, 3, 0], [0, 2, 0, 2]])], axis=-1, keepdims=0, select_last_index=1)
        c.as_float(f"{op}_first", op, [np.float32([[1, 3, 3, 0], [0, 2, 0, 2]])], axis=1, keepdims=0)
    special = np.float32([1, np.inf, -np.inf, np.nan, 0])
    c.as_float("IsNaN", "IsNaN", [special])
    c.as_float("IsInf", "IsInf", [special])
    c.as_float("IsInf_up", "IsInf", [special], detect_negative=0)
    c.as_float("IsInf_down", "IsInf", [special], detect_positive=0)
    c.add("Xor", [("Greater", ["in0", "c0"], ["a"], {}), ("Less", ["in1", "c0"], ["b"], {}), ("Xor", ["a", "b"], ["x"], {}),
                  ("Cast", ["x"], ["out0"], {"to": FLOAT})], [real(3, 4), real(4)], [np.float32(0.2)])
    for name, equation, shapes in (
            ("matmul", "ij,jk->ik", [(2, 3), (3, 4)]), ("batch", "bij,bjk->bik", [(2, 3, 4), (2, 4, 3)]),
            ("attention", "bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]), ("outer", "i,j->ij", [(3,), (4,)]),
            ("trace", "ii->", [(3, 3)]), ("diagonal", "bii->bi", [(2, 3, 3)]), ("transpose", "ijk->kij", [(2, 3, 4)]),
            ("implicit", "ba,bc", [(2, 3), (2, 4)]), ("dots", "...ij,...jk->...ik", [(2, 1, 3, 4), (2, 5, 4, 2)]),
            ("dots_implicit", "...ij,jk", [(2, 3, 4), (4, 2)]), ("hadamard", "ij,ij->ij", [(2, 3), (2, 3)]),
            ("drop", "ij,kl->i", [(2, 3), (2, 4)]), ("three", "ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
            ("dot", "i,i->", [(4,), (4,)])):
        c.one(f"Einsum_{name}", "Einsum", [real(*s) for s in shapes], equation=equation)
    labels = np.int64([2, 0, 4, 4])
    labels3 = np.int64([[2, 0, 1], [3, 3, 2]])
    for reduction in ("none", "sum", "mean"):
        c.one(f"SCE_{reduction}", "SoftmaxCrossEntropyLoss", [real(4, 5)], [labels], reduction=reduction)
        c.add(f"SCE_{reduction}_weight", [("SoftmaxCrossEntropyLoss", ["in0", "c0", "c1"], ["out0"],
                                           {"reduction": reduction, "ignore_index": 4})], [real(4, 5)],
              [labels, np.float32([0.5, 1, 2, 0.1, 3])])
        c.one(f"NLL_{reduction}", "NegativeLogLikelihoodLoss", [real(2, 4, 3)], [labels3], reduction=reduction)
        c.add(f"NLL_{reduction}_weight", [("NegativeLogLikelihoodLoss", ["in0", "c0", "c1"], ["out0"],
                                           {"reduction": reduction, "ignore_index": 3})], [real(2, 4, 3)],
              [labels3, np.float32([0.5, 1, 2, 0.1])])
    c.one("SCE_log_prob", "SoftmaxCrossEntropyLoss", [real(2, 4, 3)], [labels3], n_out=2)
    c.save()


def ops11():
    c = Ops(11)
    for axis in (0, 1, 2, -1):
        c.one(f"LogSoftmax_{axis}", "LogSoftmax", [real(2, 3, 4)], axis=axis)
        c.one(f"Hardmax_{axis}", "Hardmax", [real(2, 3, 4)], axis=axis)
    c.one("LogSoftmax_default", "LogSoftmax", [real(2, 3, 4)])
    c.save()


def ops18():
    c = Ops(18)
    c.one("Mish", "Mish", [real(3, 4)])
    for op in "ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp ReduceMean".split():
        x = real(2, 3, 5, low=0.3) if op == "ReduceLogSum" else real(2, 3, 5)
        c.one(f"{op}_axes", op, [x], [np.int64([0, -1])], keepdims=0)
        c.one(f"{op}_all", op, [x])
    for op in "BitwiseAnd BitwiseOr BitwiseXor".split():
        ids = [("Cast", [f"in{i}"], [f"i{i}"], {"to": onnx.TensorProto.INT32}) for i in range(2)]
        c.add(op, ids + [(op, ["i0", "i1"], ["b"], {}), ("Cast", ["b"], ["out0"], {"to": FLOAT})],
              [np.float32([5, -3, 100, 7]), np.float32([3, 6, -9, 7])])
    for name, to in (("i8", onnx.TensorProto.INT8), ("u8", onnx.TensorProto.UINT8), ("u32", onnx.TensorProto.UINT32)):
        c.add(f"BitwiseNot_{name}", [("Cast", ["in0"], ["i"], {"to": to}), ("BitwiseNot", ["i"], ["b"], {}),
                                     ("BitwiseAnd", ["b", "c0"], ["m"], {}), ("Cast", ["m"], ["out0"], {"to": FLOAT})],
              [np.float32([0, 1, 100, 7])], [np.array(127, helper.tensor_dtype_to_np_dtype(to))])
    c.save()


if __name__ == "__main__":
    ops11()
    ops14()
    ops18()
