"""Writes cases23.onnx, cases12.onnx and cases9.onnx beside this file: many small graphs in one model each. A case NAME
has its inputs as Constant nodes, one operator, outputs NAME/out0, .. and initializers NAME/expect0, .. with what they
are.

opset 23: the cases of ONNX's own operator tests (package onnx), kept when onnxruntime agrees at that opset.
opsets 12 and 9: written here for the older forms of operators; onnxruntime computes what is expected.
"""
import os

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "../../../graph/ops.def")) as table:
    OPS = [line[4:line.index(",")] for line in table if line.startswith("ROW(")]
MOST_BYTES = 700
SKIP = {"Dropout", "Constant"}
TYPES = "bool float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()


def run_case(op_node, inputs, opset):
    names = [n for n in op_node.input if n]
    graph = helper.make_graph(
        [op_node], "case",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
         for n, a in zip(names, inputs)],
        [onnx.ValueInfoProto(name=n) for n in op_node.output if n])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    return session.run(None, dict(zip(names, inputs)))


class Cases:
    def __init__(self, opset):
        self.opset, self.nodes, self.initializers, self.count = opset, [], [], 0

    def add(self, name, op_node, inputs, outputs):
        present = [n for n in op_node.input if n]
        rename = {n: f"{name}/in{i}" for i, n in enumerate(present)}
        for n, a in zip(present, inputs):
            self.nodes.append(helper.make_node("Constant", [], [rename[n]], value=numpy_helper.from_array(a)))
        node = onnx.NodeProto()
        node.CopyFrom(op_node)
        node.name = name
        del node.input[:], node.output[:]
        node.input.extend(rename.get(n, "") for n in op_node.input)
        node.output.extend(f"{name}/out{i}" if n else "" for i, n in enumerate(op_node.output))
        self.nodes.append(node)
        for i, a in enumerate(outputs):
            self.initializers.append(numpy_helper.from_array(np.asarray(a), f"{name}/expect{i}"))
        self.count += 1

    def save(self):
        graph = helper.make_graph(self.nodes, "cases", [], [onnx.ValueInfoProto(name=self.nodes[-1].output[0])],
                                  self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        path = os.path.join(HERE, f"cases{self.opset}.onnx")
        onnx.save(model, path)
        print(path, self.count, "cases", os.path.getsize(path), "bytes")


def official():
    from onnx.backend.test.loader import load_model_tests
    cases = Cases(23)
    for test in load_model_tests(kind="node"):
        if not test.model or len(test.model.graph.node) != 1 or test.model.graph.node[0].op_type not in OPS:
            continue
        node = test.model.graph.node[0]
        if node.op_type == "ScatterND" and any(a.name == "reduction" and a.s != b"none" for a in node.attribute):
            continue  # unsupported
        try:
            inputs, outputs = ([np.asarray(a) for a in part] for part in test.data_sets[0])
            if node.op_type in SKIP or sum(a.nbytes for a in inputs + outputs) > MOST_BYTES:
                continue
            if any(a.dtype.name not in TYPES for a in inputs + outputs):
                continue
            got = run_case(node, inputs, 23)
        except Exception:
            continue
        same = all(a.dtype == b.dtype and a.shape == b.shape for a, b in zip(got, outputs))
        if same and all(np.allclose(a.astype(np.float64), b.astype(np.float64), 1e-3, 1e-6, equal_nan=True)
                        for a, b in zip(got, outputs)):
            cases.add(test.name.replace("test_", "", 1), node, inputs, outputs)
    cases.save()


def older():
    rng = np.random.default_rng(7)
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    small = rng.integers(-9, 9, (3, 2)).astype(np.int64)
    i64 = lambda *v: np.array(v, dtype=np.int64)
    f32 = lambda v: np.array(v, dtype=np.float32)
    labels = i64(0, 2, 1, 0, 1, 1, 0, 2).reshape(2, 4)
    ignored = np.where(labels == 2, -100, labels)
    both = [
        ("softmax_flat", "Softmax", [x], 1, dict(axis=1)),
        ("softmax_default", "Softmax", [x], 1, {}),
        ("softmax_last", "Softmax", [x], 1, dict(axis=2)),
        ("log_softmax_flat", "LogSoftmax", [x], 1, dict(axis=1)),
        ("squeeze_attr", "Squeeze", [x.reshape(2, 1, 12, 1)], 1, dict(axes=[1, 3])),
        ("squeeze_all", "Squeeze", [x.reshape(2, 1, 12, 1)], 1, {}),
        ("unsqueeze_attr", "Unsqueeze", [x], 1, dict(axes=[0, 3])),
        ("reduce_sum_attr", "ReduceSum", [x], 1, dict(axes=[1], keepdims=0)),
        ("reduce_sum_all", "ReduceSum", [x], 1, {}),
        ("reduce_mean_attr", "ReduceMean", [x], 1, dict(axes=[0, 2])),
        ("reduce_max_attr", "ReduceMax", [x], 1, dict(axes=[2], keepdims=0)),
        ("reduce_min_attr", "ReduceMin", [x], 1, dict(axes=[0])),
        ("reduce_prod_attr", "ReduceProd", [x], 1, dict(axes=[1])),
        ("split_attr", "Split", [x], 2, dict(axis=2, split=[1, 3])),
        ("split_equal", "Split", [x], 2, dict(axis=2)),
        ("flatten", "Flatten", [x], 1, dict(axis=2)),
        ("gather_2d", "Gather", [x, i64(1, 0, 2, 2).reshape(2, 2)], 1, dict(axis=1)),
        ("tile", "Tile", [small, i64(2, 3)], 1, {}),
        ("expand", "Expand", [small.reshape(3, 1, 2), i64(4, 1)], 1, {}),
        ("expand_scalar", "Expand", [f32(3), i64(2, 2)], 1, {}),
        ("where", "Where", [small > 0, small, i64(7)], 1, {}),
        ("constant_of_shape", "ConstantOfShape", [i64(2, 0, 3)], 1, {}),
        ("transpose_reverse", "Transpose", [x], 1, {}),
        ("matmul_vector", "MatMul", [x, f32([1, 2, 3, 4])], 1, {}),
        ("matmul_batch", "MatMul", [x[:, :2], x[0].T.copy()], 1, {}),
        ("gemm_bias", "Gemm", [x[0], x[1].T.copy(), f32([1, 2, 3])], 1, dict(alpha=0.5)),
        ("div_ints", "Div", [small * 7, i64(3, -2)], 1, {}),
        ("pow", "Pow", [f32([1, 2, 3]), f32([2])], 1, {}),
        ("max3", "Max", [x, f32([0]), f32([[1], [0.5], [-1]])], 1, {}),
        ("shape", "Shape", [x], 1, {}),
        ("reshape_copy", "Reshape", [x, i64(0, -1)], 1, {}),
        ("concat", "Concat", [small, small[:1]], 1, dict(axis=0)),
        ("cast_bool", "Cast", [small], 1, dict(to=TensorProto.BOOL)),
        ("cast_f16", "Cast", [x * 1000], 1, dict(to=TensorProto.FLOAT16)),
        ("cast_down", "Cast", [x * 3], 1, dict(to=TensorProto.INT32)),
        ("sign", "Sign", [x], 1, {}),
        ("is_nan", "IsNaN", [f32([1, np.nan])], 1, {}),
        ("dropout_eval", "Dropout", [x], 1, {}),
        ("not", "Not", [small > 1], 1, {}),
    ]
    nine = [
        ("slice_attr", "Slice", [x], 1, dict(starts=[-2, 0], ends=[2 ** 62, -1], axes=[1, 2])),
        ("slice_no_axes", "Slice", [x], 1, dict(starts=[1], ends=[2])),
        ("clip_attr", "Clip", [x], 1, dict(min=-0.5, max=0.25)),
        ("clip_max", "Clip", [x], 1, dict(max=0.25)),
    ]
    twelve = [
        ("slice_steps", "Slice", [x, i64(-1, 10), i64(-9, -9), i64(1, 2), i64(-1, -2)], 1, {}),
        ("slice_empty", "Slice", [x, i64(2), i64(1), i64(2)], 1, {}),
        ("clip_inputs", "Clip", [small, i64(-2).reshape(()), i64(3).reshape(())], 1, {}),
        ("range_down", "Range", [np.int64(7), np.int64(-3), np.int64(-4)], 1, {}),
        ("range_float", "Range", [np.float32(0), np.float32(1), np.float32(0.3)], 1, {}),
        ("mod", "Mod", [small, i64(3, -4)], 1, {}),
        ("mod_c", "Mod", [small, i64(3, -4)], 1, dict(fmod=1)),
        ("cumsum", "CumSum", [small, np.int32(0)], 1, dict(exclusive=1, reverse=1)),
        ("gather_elements", "GatherElements", [small, i64(0, -1, 2, 1).reshape(2, 2)], 1, dict(axis=0)),
        ("gather_nd", "GatherND", [x, i64(0, 1, 1, -1).reshape(2, 2)], 1, {}),
        ("gather_nd_batch", "GatherND", [x, i64(1, 0).reshape(2, 1)], 1, dict(batch_dims=1)),
        ("scatter_nd", "ScatterND", [small, i64(2, 0).reshape(2, 1), i64(1, 2, 3, 4).reshape(2, 2)], 1, {}),
        ("less_equal", "LessOrEqual", [small, i64(0, 1)], 1, {}),
        ("pow_mixed", "Pow", [small, f32([2, 3])], 1, {}),
        ("sce", "SoftmaxCrossEntropyLoss", [x, ignored], 1, dict(ignore_index=-100)),
        ("sce_none", "SoftmaxCrossEntropyLoss", [x, labels], 2, dict(reduction="none")),
        ("erf", "Erf", [x], 1, {}),
    ]
    for opset, specs in ((9, both + nine), (12, both + twelve)):
        cases = Cases(opset)
        for name, op, inputs, outputs, attrs in specs:
            inputs = [np.asarray(a) for a in inputs]
            names_in, names_out = [f"i{k}" for k in range(len(inputs))], [f"o{k}" for k in range(outputs)]
            node = helper.make_node(op, names_in, names_out, **attrs)
            try:
                cases.add(name, node, inputs, run_case(node, inputs, opset))
            except Exception as e:  # onnxruntime has not every old type
                print("without", opset, name, str(e)[:150])
        cases.save()


official()
older()
