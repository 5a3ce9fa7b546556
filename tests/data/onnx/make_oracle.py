"""Writes <model>.expect for the tests of shape inference and constant folding, with onnxruntime as the oracle:

    python tests/data/onnx/make_oracle.py tests/models/gpt2/ts.onnx OUT.expect batch=4 seq=32

One line a value that a node computes: name, type, shape, and, when it depends neither on the contents of the inputs nor
on the weights (found by changing both), the sum over its bytes b[i] * (i % 65521 + 1) modulo 2^64.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort

TYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "int64": "i64", "int32": "i32", "bool": "bool"}


def run(model, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds)))


def checksum(a):
    b = np.frombuffer(np.ascontiguousarray(a).tobytes(), dtype=np.uint8).astype(np.uint64)
    weights = (np.arange(b.size, dtype=np.uint64) % np.uint64(65521)) + np.uint64(1)
    return int((b * weights).sum(dtype=np.uint64))


def main(path, out, *bindings):
    sizes = {k: int(v) for k, v in (b.split("=") for b in bindings)}
    model = onnx.load(path)
    names = [o for n in model.graph.node for o in n.output if o]
    have = {o.name for o in model.graph.output}
    for name in names:
        if name not in have:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    rng = np.random.default_rng(1)
    runs = []
    for _ in range(2):
        feeds = {}
        for i in model.graph.input:
            shape = [sizes.get(d.dim_param, d.dim_value) for d in i.type.tensor_type.shape.dim]
            if i.type.tensor_type.elem_type == onnx.TensorProto.INT64:
                feeds[i.name] = rng.integers(0, 100, shape)
            else:
                feeds[i.name] = rng.standard_normal(shape).astype(np.float32)
        runs.append(run(model, feeds))
        for t in model.graph.initializer:
            if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) > 0:
                a = onnx.numpy_helper.to_array(t)
                t.CopyFrom(onnx.numpy_helper.from_array(
                    a + rng.standard_normal(a.shape).astype(np.float32), t.name))
    with open(out, "w") as f:
        for name in names:
            a, b = runs[0][name], runs[1][name]
            line = [name, TYPES[str(a.dtype)], "x".join(map(str, a.shape)) or "scalar"]
            if a.tobytes() == b.tobytes():
                line.append(str(checksum(a)))
            print(*line, file=f)


if __name__ == "__main__":
    main(*sys.argv[1:])
