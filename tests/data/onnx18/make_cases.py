"""Writes cases.tar.xz: cases of opsets 18 to 23 for the runners of tests/onnx, in the layout of the ONNX project's test data.

Two kinds of cases, restricted to operators that graph/ops.def has:
- those of the onnx package (onnx.backend.test.case) whose opset is 18 or later. A case of a later opset than 23 is rewritten to 23
  and kept when the checker accepts that and onnxruntime, or else the reference evaluator, finds the expected values.
- test_empty_*: operators on tensors without elements. The expected values are those of onnxruntime.

usage: make_cases.py [FOLDER]    with FOLDER the unpacked cases stay there
"""
import io
import os
import re
import sys
import tarfile
import warnings

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

warnings.filterwarnings("ignore")
onnxruntime.set_default_logger_severity(4)
HERE = os.path.dirname(os.path.abspath(__file__))
OPS = set(re.findall(r"^ROW\((\w+)", open(f"{HERE}/../../../graph/ops.def").read(), re.M))
DEBIAN = "/usr/share/libonnx-testdata/data/node"
KINDS = {"f", "i", "u", "b"}
MODEL_LIMIT = 100_000  # bytes of a case; what is larger proves nothing more


def opset(model):
    return [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")][0]


def plain(values):
    """Only arrays of plain numbers (and bf16)."""
    for v in values:
        if isinstance(v, TensorProto):
            if v.data_type != TensorProto.BFLOAT16:
                return False
        elif not hasattr(v, "dtype") or (v.dtype.kind not in KINDS and v.dtype.name != "bfloat16"):
            return False
        elif v.dtype.name in ("int4", "uint4", "int2", "uint2") or v.dtype.name.startswith("float4") or "float8" in v.dtype.name:
            return False
    return True


def same(got, want):
    return len(got) == len(want) and all(
        np.shape(g) == np.shape(w) and np.allclose(np.asarray(g, np.float64), np.asarray(w, np.float64), 1e-3, 1e-6, True)
        for g, w in zip(got, want)
    )


def run_ort(model, inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: v for i, v in zip(session.get_inputs(), inputs)})


def holds_at_23(model, inputs, outputs):
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    names = [i.name for i in model.graph.input]
    for run in (run_ort, lambda m, x: ReferenceEvaluator(m).run(None, dict(zip(names, x)))):
        try:
            return same(run(model, inputs), outputs)
        except Exception:
            continue
    return False


def from_package():
    for case in collect_testcases(None):
        model, (inputs, outputs) = case.model, case.data_sets[0]
        if any(o.domain not in ("", "ai.onnx") for o in model.opset_import):
            continue
        if opset(model) < 18 or not {n.op_type for n in model.graph.node} <= OPS:
            continue
        if not plain(inputs) or not plain(outputs):
            continue
        if case.name.startswith("test_mod_float") and "fmod_0" in case.name:  # defined from opset 28 on
            continue
        if opset(model) > 23:
            new = onnx.ModelProto()
            new.CopyFrom(model)
            for o in new.opset_import:
                o.version = 23
            new.ir_version = 11
            if not holds_at_23(new, inputs, outputs):
                continue
            model = new
        old = f"{DEBIAN}/{case.name}/model.onnx"
        if os.path.exists(old) and opset(onnx.load(old)) == opset(model):
            continue
        yield case.name, model, inputs, outputs


def empty_cases():
    """(operator, attributes, arrays); arrays of int64 with 1 dimension are axes, shapes and the like: initializers."""
    f = lambda *s: np.arange(int(np.prod(s)), dtype=np.float32).reshape(s) / 7 - 0.5
    i = lambda *v: np.array(v, np.int64)
    e, big = f(2, 0), f(2, 3)
    for op in ("Neg Abs Sqrt Exp Tanh Erf Sigmoid Relu Floor Softplus LeakyRelu Elu Selu HardSigmoid Softsign Identity Sign "
               "Gelu Mish HardSwish IsNaN Flatten Shape Size").split():
        yield op, {}, [e]
    for op in "Add Sub Mul Div Pow Max Min Sum Mean PRelu Less Equal".split():
        yield op, {}, [e, f(2, 1)]
        yield op, {}, [f(0, 3), f(1)]
    yield "Where", {}, [np.zeros((0, 3), bool), f(1, 3), f(1)]
    for op in "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp".split():
        yield op, {"keepdims": 0}, [f(0, 3), i(1)]
        yield op, {"keepdims": 1}, [f(0, 3, 2), i(-1, 1)]
        if op != "ReduceMean":  # 0 / 0
            yield op, {"keepdims": 1}, [e, i(1)]
    for axis in (0, 1, -1):
        for op in "Softmax LogSoftmax Hardmax".split():
            yield op, {"axis": axis}, [e]
            yield op, {"axis": axis}, [f(0, 3)]
    yield "LayerNormalization", {"axis": -1}, [f(0, 3), f(3), f(3)]
    yield "MatMul", {}, [e, f(0, 3)]
    yield "MatMul", {}, [f(0, 3), f(3, 2)]
    yield "MatMul", {}, [big, f(3, 0)]
    yield "MatMul", {}, [f(0, 2, 3), f(3, 2)]
    yield "MatMul", {}, [f(2, 2, 0), f(2, 0, 2)]
    yield "MatMul", {}, [f(0), f(0)]
    yield "Gemm", {}, [e, f(0, 3), f(3)]
    yield "Gemm", {"transB": 1}, [f(0, 3), f(2, 3)]
    for equation, a, b in (("ij,jk->ik", e, f(0, 3)), ("ij,jk->ik", f(0, 3), f(3, 2)), ("bij,bjk->bik", f(0, 2, 3), f(0, 3, 2))):
        yield "Einsum", {"equation": equation}, [a, b]
    yield "Concat", {"axis": 1}, [e, big]
    yield "Concat", {"axis": 0}, [f(0, 3), big, f(0, 3)]
    yield "Concat", {"axis": 0}, [f(0, 3), f(0, 3)]
    yield "Split", {"axis": 1}, [big, i(0, 3)]
    yield "Split", {"axis": 1}, [e, i(0, 0)]
    yield "Slice", {}, [big, i(0), i(0), i(1)]
    yield "Slice", {}, [big, i(3), i(3), i(1)]
    yield "Slice", {}, [e, i(0), i(5), i(1)]
    yield "Slice", {}, [big, i(-1), i(1), i(1)]
    yield "Transpose", {"perm": [1, 0]}, [e]
    yield "Reshape", {"allowzero": 1}, [e, i(0, 5)]
    yield "Reshape", {}, [f(0, 3), i(0, 3, 1)]
    yield "Squeeze", {}, [f(1, 0), i(0)]
    yield "Unsqueeze", {}, [e, i(0, -1)]
    yield "Expand", {}, [f(1, 3), i(0, 3)]
    yield "Expand", {}, [e, i(4, 2, 0)]
    yield "Tile", {}, [e, i(2, 2)]
    yield "Tile", {}, [big, i(0, 2)]
    yield "Gather", {"axis": 0}, [big, np.zeros((0,), np.int64)]
    yield "Gather", {"axis": 1}, [f(0, 3), np.array([[1, -1]])]
    yield "GatherElements", {"axis": 1}, [f(2, 3), np.zeros((2, 0), np.int64)]
    yield "GatherND", {}, [f(2, 3), np.zeros((0, 2), np.int64)]
    yield "ScatterElements", {"axis": 0}, [big, np.zeros((0, 3), np.int64), f(0, 3)]
    yield "ScatterND", {}, [big, np.zeros((0, 1), np.int64), f(0, 3)]
    yield "Pad", {}, [e, i(0, 1, 0, 2)]
    yield "CumSum", {}, [e, np.array(1, np.int64)]
    yield "Trilu", {}, [e]
    yield "TopK", {"axis": 0}, [e, i(1)]
    yield "ArgMax", {"axis": 0}, [e]
    yield "OneHot", {}, [np.zeros((0,), np.int64), i(3), f(2)]
    x, w = f(0, 2, 4, 4), f(3, 2, 2, 2)
    yield "Conv", {}, [x, w, f(3)]
    yield "ConvTranspose", {}, [f(0, 3, 4, 4), w]
    for op in "MaxPool AveragePool LpPool".split():
        yield op, {"kernel_shape": [2, 2]}, [x]
    for op in "GlobalAveragePool GlobalMaxPool".split():
        yield op, {}, [x]
    yield "BatchNormalization", {}, [x, f(2), f(2), f(2), f(2) + 2]
    yield "InstanceNormalization", {}, [x, f(2), f(2)]
    yield "GroupNormalization", {"num_groups": 2}, [x, f(2), f(2)]
    yield "LRN", {"size": 3}, [x]
    yield "DepthToSpace", {"blocksize": 2}, [f(0, 4, 2, 2)]
    yield "SpaceToDepth", {"blocksize": 2}, [x]
    yield "Dropout", {}, [e]
    yield "Clip", {}, [e, np.float32(0), np.float32(1)]
    yield "Cast", {"to": TensorProto.INT64}, [e]
    yield "NonZero", {}, [e]


def outputs_of(op):
    return {"Split": 2, "TopK": 2}.get(op, 1)


def from_empty():
    seen = {}
    for op, attributes, arrays in empty_cases():
        names = [f"x{k}" for k in range(len(arrays))]
        outs = [f"y{k}" for k in range(outputs_of(op))]
        known = {"ReduceSum": [1], "Expand": [1], "Tile": [1], "Reshape": [1], "Squeeze": [1], "Unsqueeze": [1], "Pad": [1],
                 "CumSum": [1], "TopK": [1], "Split": [1], "Slice": [1, 2, 3], "OneHot": [1]}
        constant = [1] if op.startswith("Reduce") else known.get(op, [])
        info = lambda n, a: helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        graph = helper.make_graph(
            [helper.make_node(op, names, outs, **attributes)], op,
            [info(n, np.asarray(a)) for k, (n, a) in enumerate(zip(names, arrays)) if k not in constant],
            [onnx.ValueInfoProto(name=n) for n in outs],
            [numpy_helper.from_array(a, n) for k, (n, a) in enumerate(zip(names, arrays)) if k in constant])
        version = 20 if op in ("Gelu",) else 18
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)
        fed = [np.asarray(a) for k, a in enumerate(arrays) if k not in constant]
        try:
            values = run_ort(model, fed)
        except Exception:
            continue
        for k, v in enumerate(values):
            graph.output[k].CopyFrom(info(outs[k], v))
        model.graph.CopyFrom(graph)
        seen[op] = seen.get(op, -1) + 1
        yield f"test_empty_{op.lower()}_{seen[op]}", model, fed, values


def proto(value, name):
    if isinstance(value, TensorProto):
        return value
    return numpy_helper.from_array(np.asarray(value), name)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    files, count = {}, 0
    for source in (from_package, from_empty):
        for name, model, inputs, outputs in source():
            model.producer_name = ""
            case = {f"node/{name}/model.onnx": model.SerializeToString()}
            for what, values, infos in (("input", inputs, model.graph.input), ("output", outputs, model.graph.output)):
                for k, (value, i) in enumerate(zip(values, infos)):
                    case[f"node/{name}/test_data_set_0/{what}_{k}.pb"] = proto(value, i.name).SerializeToString()
            if sum(map(len, case.values())) <= MODEL_LIMIT:
                files.update(case)
                count += 1
    for path in sorted(files) if folder else []:
        os.makedirs(os.path.dirname(f"{folder}/{path}"), exist_ok=True)
        open(f"{folder}/{path}", "wb").write(files[path])
    with tarfile.open(f"{HERE}/cases.tar.xz", "w:xz", format=tarfile.USTAR_FORMAT, preset=9) as tar:
        for path in sorted(files):
            entry = tarfile.TarInfo(path)
            entry.size = len(files[path])
            tar.addfile(entry, io.BytesIO(files[path]))
    print(f"{count} cases, {os.path.getsize(f'{HERE}/cases.tar.xz')} bytes")


main()
