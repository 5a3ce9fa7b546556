"""Writes lower17.onnx and lower11.onnx beside this file: operators that must run as kernels because what they read is not
known when compiling. A case NAME has float initializers NAME/in0, .. (parameters, which are never folded), one or a few nodes,
outputs NAME/out0, .. and initializers NAME/expect0, .. with what onnxruntime computes.
"""
import os

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(7)


class Cases:
    def __init__(self, opset):
        self.opset, self.nodes, self.initializers, self.outputs = opset, [], [], []

    def add(self, name, nodes, params, consts=None, n_out=1):
        """nodes: (op, inputs, outputs, attributes); inputs named in0.. are params, c0.. consts, out0.. the outputs."""
        params = [np.asarray(p, np.float32) for p in params]
        given = {f"in{i}": p for i, p in enumerate(params)}
        given.update({f"c{i}": np.asarray(c) for i, c in enumerate(consts or [])})
        made = [helper.make_node(op, ins, outs, **attrs) for op, ins, outs, attrs in nodes]
        graph = helper.make_graph(
            made, name,
            [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()],
            [onnx.ValueInfoProto(name=f"out{i}") for i in range(n_out)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        expected = ort.InferenceSession(model.SerializeToString(), options).run(None, given)
        rename = {k: f"{name}/{k}" for n in made for k in (*n.input, *n.output) if k}
        for k, a in given.items():
            if k[0] == "c":
                self.nodes.append(helper.make_node("Constant", [], [rename[k]], value=numpy_helper.from_array(a)))
            else:
                self.initializers.append(numpy_helper.from_array(a, rename[k]))
        for i, n in enumerate(made):
            n.name = f"{name}/{i}"
            ins, outs = [rename.get(k, "") for k in n.input], [rename.get(k, "") for k in n.output]
            del n.input[:], n.output[:]
            n.input.extend(ins)
            n.output.extend(outs)
            self.nodes.append(n)
        for i, e in enumerate(expected):
            self.initializers.append(numpy_helper.from_array(np.asarray(e), f"{name}/expect{i}"))
            self.outputs.append(onnx.ValueInfoProto(name=f"{name}/out{i}"))

    def one(self, name, op, params, consts=None, n_out=1, order=None, **attrs):
        ins = [f"in{i}" for i in range(len(params))] + [f"c{i}" for i in range(len(consts or []))]
        self.add(name, [(op, order or ins, [f"out{i}" for i in range(n_out)], attrs)], params, consts, n_out)

    def save(self):
        graph = helper.make_graph(self.nodes, "cases", [], self.outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        path = os.path.join(HERE, f"lower{self.opset}.onnx")
        onnx.save(model, path)
        print(path, len(self.outputs), "outputs", os.path.getsize(path), "bytes")


def r(*shape, low=-1.0, high=1.0):
    return rng.uniform(low, high, shape)


def i64(*v):
    return np.asarray(v, np.int64)


def main():
    c = Cases(17)
    for op in "Neg Abs Tanh Erf Sigmoid Relu Sin Cos Exp".split():
        c.one(op, op, [r(2, 3)])
    for op in "Sqrt Log Reciprocal".split():
        c.one(op, op, [r(2, 3, low=0.5)])
    for op in "Add Sub Mul Div".split():
        for k, (a, b) in enumerate([((2, 3), (2, 3)), ((2, 1, 4), (3, 1)), ((4,), (2, 3, 4)), ((1,), (1, 1))]):
            c.one(f"{op}_{k}", op, [r(*a), r(*b, low=0.5)])
    c.one("Add_scalar", "Add", [r(2, 3)], [np.float32(0.25)])
    c.one("Div_of_scalar", "Div", [r(2, 3, low=0.5)], [np.float32(2)], order=["c0", "in0"])
    c.one("Pow_2", "Pow", [r(2, 3)], [np.float32(2)])
    c.one("Pow_3", "Pow", [r(2, 3)], [np.float32(3)])
    c.one("Pow_half", "Pow", [r(2, 3, low=0.5)], [np.float32(0.5)])
    c.one("Pow_int", "Pow", [r(2, 3)], [np.int64(2)])
    c.one("Pow_wide", "Pow", [r(3, low=0.5)], [np.float32([[2], [3]])])
    c.one("Pow_ints", "Pow", [r(3, low=0.5)], [i64(1, 2, 3)])
    c.one("Max_3", "Max", [r(2, 3), r(3), r(2, 1)])
    c.one("Min_1", "Min", [r(2, 3)])
    c.add("compare", [("Less", ["in0", "in1"], ["t0"], {}), ("GreaterOrEqual", ["in0", "c0"], ["t1"], {}),
                      ("Or", ["t0", "t1"], ["t2"], {}), ("Not", ["t2"], ["t3"], {}), ("Cast", ["t3"], ["out0"], {"to": 1}),
                      ("Where", ["t0", "in0", "in1"], ["out1"], {}), ("And", ["t0", "t1"], ["t4"], {}),
                      ("Equal", ["t4", "t0"], ["t5"], {}), ("Cast", ["t5"], ["out2"], {"to": 1}),
                      ("LessOrEqual", ["in0", "in1"], ["t6"], {}), ("Greater", ["in0", "in1"], ["t7"], {}),
                      ("Equal", ["t6", "t7"], ["t8"], {}), ("Cast", ["t8"], ["out3"], {"to": 1})],
          [r(2, 3), r(3)], [np.float32(0.1)], 4)
    c.one("Where_const", "Where", [r(2, 1, 3), r(4, 1)], [np.array([[True], [False], [True], [True]])], order=["c0", "in0", "in1"])
    c.add("Cast_ints", [("Cast", ["in0"], ["t0"], {"to": 7}), ("Mul", ["t0", "t0"], ["t1"], {}), ("Cast", ["t1"], ["out0"], {"to": 1})],
          [r(5, low=-9, high=9)])
    for k, axes in enumerate([[0], [-1], [0, 2], [0, 1, 2]]):
        c.one(f"ReduceMean_{k}", "ReduceMean", [r(2, 3, 4)], axes=axes, keepdims=k % 2)
    c.one("ReduceSum_in", "ReduceSum", [r(2, 3, 4)], [i64(1)], keepdims=0)
    c.one("ReduceSum_all", "ReduceSum", [r(2, 3, 4)], keepdims=0)
    c.one("ReduceSum_noop", "ReduceSum", [r(2, 3)], noop_with_empty_axes=1)
    c.one("ReduceMean_one", "ReduceMean", [r(2, 1)], axes=[1])
    # shapes
    c.one("Reshape", "Reshape", [r(2, 6)], [i64(3, -1)])
    c.one("Flatten", "Flatten", [r(2, 3, 2)], axis=2)
    c.one("Squeeze", "Squeeze", [r(1, 3, 1)], [i64(0)])
    c.one("Unsqueeze", "Unsqueeze", [r(3)], [i64(0, 2)])
    c.one("Identity", "Identity", [r(3)])
    for k, perm in enumerate([[1, 0, 2], [2, 0, 1], [0, 2, 1], [2, 1, 0]]):
        c.one(f"Transpose_{k}", "Transpose", [r(2, 3, 4)], perm=perm)
    c.one("Transpose_default", "Transpose", [r(2, 3)])
    c.one("Transpose_ones", "Transpose", [r(1, 3, 1)], perm=[1, 0, 2])
    c.one("Split_equal", "Split", [r(2, 6)], n_out=3, axis=1)
    c.one("Split_parts", "Split", [r(5, 2)], [i64(1, 4)], n_out=2)
    c.one("Split_negative", "Split", [r(2, 4, 3)], [i64(1, 2)], n_out=2, axis=-1)
    c.one("Slice", "Slice", [r(4, 5)], [i64(1, -4), i64(3, 99)])
    c.one("Slice_steps", "Slice", [r(4, 7)], [i64(-1, 1), i64(-99, 6), i64(0, -1), i64(-2, 2)])
    c.one("Slice_all", "Slice", [r(4, 5)], [i64(0), i64(99), i64(1)])
    for axis in (0, 1, -1):
        shapes = [[2, 3, 4] for _ in range(3)]
        for k, s in enumerate(shapes):
            s[axis] = k + 1
        c.one(f"Concat_{axis}", "Concat", [r(*s) for s in shapes], axis=axis)
    c.one("Concat_one", "Concat", [r(2, 3)], axis=0)
    c.one("Expand", "Expand", [r(3, 1)], [i64(2, 1, 4)])
    c.one("Expand_same", "Expand", [r(3, 2)], [i64(1, 2)])
    c.one("Tile", "Tile", [r(2, 3)], [i64(2, 3)])
    c.one("Gather_table", "Gather", [r(5, 3)], [np.array([[1, -1], [0, 4]])], axis=0)
    c.one("Gather_int32", "Gather", [r(5, 2, 2)], [np.array([3, 0], np.int32)])
    c.one("Gather_scalar", "Gather", [r(2, 3, 4)], [np.int64(-1)], axis=1)
    c.one("Gather_range", "Gather", [r(2, 7)], [i64(1, 3, 5)], axis=1)
    c.one("Gather_inner", "Gather", [r(2, 5, 3)], [np.array([[4, 0], [-2, 0]])], axis=1)
    c.one("Gather_last", "Gather", [r(2, 5)], [i64(4, 0, 1)], axis=-1)
    # products
    c.one("MatMul_2d", "MatMul", [r(2, 3), r(3, 4)])
    c.one("MatMul_3d_2d", "MatMul", [r(2, 5, 3), r(3, 4)])
    c.one("MatMul_batched", "MatMul", [r(2, 1, 2, 3), r(3, 3, 4)])
    c.one("MatMul_2d_3d", "MatMul", [r(2, 3), r(4, 3, 2)])
    c.one("MatMul_vectors", "MatMul", [r(3), r(3)])
    c.one("MatMul_vector_left", "MatMul", [r(3), r(2, 3, 4)])
    c.one("MatMul_vector_right", "MatMul", [r(2, 4, 3), r(3)])
    c.add("MatMul_computed", [("Tanh", ["in1"], ["t0"], {}), ("MatMul", ["in0", "t0"], ["out0"], {})], [r(2, 2, 3), r(3, 4)])
    c.add("MatMul_bias", [("MatMul", ["in0", "in1"], ["t0"], {}), ("Add", ["in2", "t0"], ["out0"], {})], [r(2, 5, 3), r(3, 4), r(4)])
    c.add("MatMul_bias_used_twice", [("MatMul", ["in0", "in1"], ["t0"], {}), ("Add", ["in2", "t0"], ["out0"], {}),
                                     ("Neg", ["t0"], ["out1"], {})], [r(2, 5, 3), r(3, 4), r(4)], n_out=2)
    c.add("MatMul_transposed", [("Transpose", ["in1"], ["t0"], {"perm": [1, 0]}), ("MatMul", ["in0", "t0"], ["out0"], {})],
          [r(2, 5, 3), r(4, 3)])
    c.add("MatMul_reshaped", [("Reshape", ["in1", "c0"], ["t0"], {}), ("MatMul", ["in0", "t0"], ["out0"], {})],
          [r(2, 3), r(2, 6)], [i64(3, 4)])
    for k, attrs in enumerate([{}, {"transB": 1}, {"transA": 1}, {"alpha": 0.5, "beta": 2.0}, {"alpha": 2.0, "transA": 1, "transB": 1}]):
        a = r(3, 2) if attrs.get("transA") else r(2, 3)
        b = r(4, 3) if attrs.get("transB") else r(3, 4)
        c.one(f"Gemm_{k}", "Gemm", [a, b, r(4)], **attrs)
        c.one(f"Gemm_no_bias_{k}", "Gemm", [a, b], **attrs)
    c.one("Gemm_full_bias", "Gemm", [r(2, 3), r(3, 4), r(2, 4)])
    c.one("Gemm_column_bias", "Gemm", [r(2, 3), r(3, 4), r(2, 1)])
    c.one("Gemm_row_bias", "Gemm", [r(2, 3), r(3, 4), r(1, 4)])
    # normalizations and losses
    c.one("LayerNorm", "LayerNormalization", [r(2, 3, 4), r(4), r(4)], epsilon=1e-3)
    c.one("LayerNorm_axis", "LayerNormalization", [r(2, 3, 4), r(3, 4)], axis=1)
    c.one("Softmax", "Softmax", [r(2, 3, 4)])
    c.one("Softmax_axis", "Softmax", [r(2, 3, 4)], axis=1)
    c.one("Softmax_first", "Softmax", [r(2, 3, 4)], axis=0)
    c.one("Xent", "SoftmaxCrossEntropyLoss", [r(4, 5)], [i64(1, -100, 4, 0)], ignore_index=-100)
    c.one("Xent_inner", "SoftmaxCrossEntropyLoss", [r(2, 5, 3)], [np.array([[1, 2, 3], [0, 4, 4]], np.int32)])
    c.save()

    c = Cases(11)
    c.one("Softmax_flattens", "Softmax", [r(2, 3, 4)])
    c.one("Softmax_last", "Softmax", [r(2, 3, 4)], axis=-1)
    c.one("ReduceSum_attr", "ReduceSum", [r(2, 3, 4)], axes=[1, 2])
    c.one("Squeeze_attr", "Squeeze", [r(1, 3, 1)], axes=[2])
    c.one("Split_attr", "Split", [r(6, 2)], n_out=2, split=[2, 4])
    c.one("Max", "Max", [r(2, 3), r(3)])
    c.save()


if __name__ == "__main__":
    main()
