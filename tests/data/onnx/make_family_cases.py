"""Writes family23.onnx, family18.onnx and family11.onnx beside this file: what transformers are made of, with values from ONNX's
reference evaluator in double precision. A case NAME has initializers NAME/in0, .. (parameters, never folded) and constants
NAME/c0, .., one node, outputs NAME/out0, .. and initializers NAME/expect0, ... An input "g0" is the constant's or parameter's
comparison with 0: a mask that is known at run time only. Needs numpy and onnx.
"""
import math
import os

import numpy as np
import onnx
from onnx import helper as H, numpy_helper as N
from onnx.reference import ReferenceEvaluator

HERE = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(23)


def f(*shape):
    return np.round(rng.normal(size=shape), 3)


class File:
    def __init__(self, opset):
        self.opset, self.nodes, self.initializers, self.outputs = opset, [], [], []

    def add(self, name, op, inputs, outputs=(1,), expected=None, **attrs):
        """inputs: float arrays are parameters, others constants, ("mask", array): array > 0 at run time, None: left out."""
        names, feeds, nodes, made = [], {}, [], []
        for i, x in enumerate(inputs):
            mask = isinstance(x, tuple)
            x = x[1] if mask else x
            if x is None:
                names.append("")
                continue
            constant = x.dtype != np.float64 or not np.isfinite(x).all()
            key = f"c{i}" if constant else f"in{i}"
            feeds[key] = x
            names.append(f"g{i}" if mask else key)
            if mask:
                feeds[f"zero{i}"] = np.array(0.0)
                made.append(("Greater", [key, f"zero{i}"], [f"g{i}"], {}))
        outs = [f"out{i}" if wanted else "" for i, wanted in enumerate(outputs)]
        made.append((op, names, outs, attrs))
        nodes = [H.make_node(o, i, r, **a) for o, i, r, a in made]
        graph = H.make_graph(
            nodes, name, [H.make_tensor_value_info(k, H.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in feeds.items()],
            [onnx.ValueInfoProto(name=o) for o in outs if o])
        model = H.make_model(graph, opset_imports=[H.make_opsetid("", self.opset)], ir_version=10)
        expected = expected or ReferenceEvaluator(model).run(None, feeds)
        for k, a in feeds.items():
            if k.startswith("in"):
                self.initializers.append(N.from_array(a, f"{name}/{k}"))
            else:
                self.nodes.append(H.make_node("Constant", [], [f"{name}/{k}"], value=N.from_array(a), name=f"{name}/{k}"))
        for i, (o, ins, res, a) in enumerate(made):
            full = [[f"{name}/{k}" if k else "" for k in list_] for list_ in (ins, res)]
            self.nodes.append(H.make_node(o, *full, name=f"{name}/{i}", **a))
        for o, e in zip([o for o in outs if o], expected):
            self.initializers.append(N.from_array(np.ascontiguousarray(e), f"{name}/expect{o[3:]}"))
            self.outputs.append(onnx.ValueInfoProto(name=f"{name}/{o}"))

    def save(self):
        model = H.make_model(H.make_graph(self.nodes, "cases", [], self.outputs, self.initializers),
                             opset_imports=[H.make_opsetid("", self.opset)], ir_version=10)
        path = os.path.join(HERE, f"family{self.opset}.onnx")
        onnx.save(model, path)
        print(path, len(self.outputs), "outputs", os.path.getsize(path), "bytes")


def attention(file):
    b, s, t, d = 2, 3, 4, 2
    q, k, v = (lambda h=2: f(b, h, s, d)), (lambda h=2, n=t: f(b, h, n, d)), (lambda h=2, n=t: f(b, h, n, 3))
    for causal in (0, 1):
        file.add(f"plain{causal}", "Attention", [q(), k(), v()], is_causal=causal)
        file.add(f"past{causal}", "Attention", [q(4), k(), v(), f(s, t + 2), k(n=2), v(n=2)], (1, 1, 1), is_causal=causal)
    file.add("groups", "Attention", [q(6), k(), v()])
    file.add("flat", "Attention", [f(b, s, 4), f(b, t, 4), f(b, t, 6)], q_num_heads=2, kv_num_heads=2)
    file.add("flat_groups", "Attention", [f(b, s, 8), f(b, t, 4), f(b, t, 6)], q_num_heads=4, kv_num_heads=2, is_causal=1,
             scale=0.25)
    file.add("flat_past", "Attention", [f(b, s, 4), f(b, t, 4), f(b, t, 6), None, k(n=2), v(n=2)], (1, 1, 1, 1),
             q_num_heads=2, kv_num_heads=2, is_causal=1, qk_matmul_output_mode=3)
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]])
    signs = np.where(mask, 1.0, -1.0)
    file.add("mask_shown", "Attention", [q(), k(), v(), np.maximum(mask, [[1], [1], [0]]) != 0])
    for mode in range(4):
        cap = {} if mode == 0 else {"softcap": 1.5}
        outs = (1, 0, 0, 1) if mode != 2 else (1,)  # mode 2 shows infinities, which no loss can take
        file.add(f"mask{mode}", "Attention", [q(), k(), v(), mask != 0], outs, qk_matmul_output_mode=mode, **cap)
        file.add(f"run_time{mode}", "Attention", [q(), k(), v(), ("mask", signs)], outs, qk_matmul_output_mode=mode, **cap)
    file.add("run_time_causal", "Attention", [q(), k(), v(), ("mask", f(b, 1, s, t))], is_causal=1)
    file.add("mask_by_head", "Attention", [q(), k(), v(), f(2, s, t) > -0.7], is_causal=1)
    file.add("mask_short", "Attention", [q(), k(), v(), mask[:, :3] != 0])
    file.add("added", "Attention", [q(), k(), v(), f(b, 2, s, t)])
    hidden = f(b, 1, s, t)
    hidden[0, 0, 1] = -np.inf
    hidden[1, 0, 0, :3] = -np.inf
    for causal in (0, 1):
        file.add(f"hidden{causal}", "Attention", [q(), k(), v(), hidden], is_causal=causal)
        file.add(f"hidden_run_time{causal}", "Attention", [q(), k(), v(), f(b, 2, s, t)], is_causal=causal)


def rotary(file):
    b, h, s, d = 2, 3, 4, 4
    ids = rng.integers(0, 7, (b, s))
    for pairs in (0, 1):
        file.add(f"rotary{pairs}", "RotaryEmbedding", [f(b, h, s, d), f(7, 2), f(7, 2), ids], interleaved=pairs)
        file.add(f"rotary_flat{pairs}", "RotaryEmbedding", [f(b, s, h * d), f(7, 2), f(7, 2), ids], interleaved=pairs,
                 num_heads=h)
        file.add(f"rotary_part{pairs}", "RotaryEmbedding", [f(b, h, s, d), f(7, 1), f(7, 1), ids], interleaved=pairs,
                 rotary_embedding_dim=2)
        file.add(f"rotary_tables{pairs}", "RotaryEmbedding", [f(b, s, h * d), f(b, s, 1), f(b, s, 1)], interleaved=pairs,
                 num_heads=h, rotary_embedding_dim=2)


def norms(file):
    for axis in (-1, 1, -3):
        shape = (2, 3, 2, 4)[axis:]
        file.add(f"rms{axis}", "RMSNormalization", [f(2, 3, 2, 4), f(*shape)], axis=axis)
        file.add(f"norm{axis}", "LayerNormalization", [f(2, 3, 2, 4), f(*shape), f(*shape)], (1, 1, 1), axis=axis)
        file.add(f"norm_mean{axis}", "LayerNormalization", [f(2, 3, 2, 4), f(*shape)], (1, 1, 0), axis=axis)
    file.add("norm_broadcast", "LayerNormalization", [f(2, 3, 2, 4), f(2, 1), f(4)], axis=2)
    file.add("rms_broadcast", "RMSNormalization", [f(2, 3, 2, 4), f(4)], axis=2, epsilon=0.01)
    x = f(3, 4)  # the evaluator computes Gelu in single precision
    half = np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))
    file.add("gelu_none", "Gelu", [x], expected=[x * half(x)], approximate="none")
    file.add("gelu_tanh", "Gelu", [x], expected=[0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))],
             approximate="tanh")


def indices(file):
    once, often = np.array([[1, 0, 2], [2, 1, 0]]), np.array([[1, 0, -1], [2, 2, 0], [1, -3, 2], [0, 1, 2]])
    nd_once, nd_often = np.array([[0, 1], [2, -1], [0, 0]]), np.array([[0, 1], [2, -1], [0, 1], [-3, 1]])
    for how in ("none", "add", "mul", "max", "min"):
        ids, nd = (once, nd_once) if how == "none" else (often, nd_often)
        file.add(f"elements_{how}", "ScatterElements", [f(3, 3), ids, f(*ids.shape)], axis=0, reduction=how)
        file.add(f"elements1_{how}", "ScatterElements", [f(4, 3), ids.astype(np.int32), f(*ids.shape)], axis=-1, reduction=how)
        file.add(f"tuples_{how}", "ScatterND", [f(3, 2, 4), nd, f(len(nd), 4)], reduction=how)
    zeros = np.array([[0.0, 2.0], [3.0, 0.0], [1.5, -1.0]])
    file.add("tuples_mul_zero", "ScatterND", [zeros, np.array([[0], [1], [1], [2]]), np.array([[2.0, 0.0], [1.5, 0.0], [0.0, 2.0],
                                                                                           [0.0, 4.0]])], reduction="mul")
    file.add("gather_tuples", "GatherND", [f(2, 3, 4), rng.integers(-2, 2, (5, 2))])
    file.add("gather_batch", "GatherND", [f(2, 3, 2, 2), rng.integers(-3, 3, (2, 4, 1))], batch_dims=1)
    file.add("gather_batch2", "GatherND", [f(2, 3, 4), rng.integers(-4, 4, (2, 3, 2, 1)).astype(np.int32)], batch_dims=2)
    file.add("gather_elements", "GatherElements", [f(2, 3, 4), rng.integers(-3, 3, (2, 5, 4)).astype(np.int32)], axis=1)
    file.add("gather_middle", "Gather", [f(2, 3, 4), rng.integers(-3, 3, (2, 2))], axis=1)
    file.add("gather_one", "Gather", [f(2, 3, 4), np.array(-2)], axis=-1)
    file.add("top", "TopK", [f(2, 5, 3), np.array([2])], (1, 1), axis=1)
    file.add("top_least", "TopK", [f(2, 5), np.array([3])], (1, 1), largest=0)
    file.add("top_values", "TopK", [f(4, 3), np.array([4])], (1, 0), axis=-2)
    file.add("slice_back", "Slice", [f(4, 5), np.array([-1, 3]), np.array([-5, -6]), np.array([0, 1]), np.array([-2, -1])])
    file.add("tile", "Tile", [f(2, 1, 3), np.array([2, 3, 1])])
    file.add("expand", "Expand", [f(2, 1, 3), np.array([2, 1, 4, 1])])


def refer(attribute, to, kind):
    return onnx.AttributeProto(name=attribute, type=kind, ref_attr_name=to)


def functions_and_branches():
    """family17.onnx: what numpy says of functions that call each other and of nested branches on shapes."""
    constant, softmax = H.make_node("Constant", [], ["c"]), H.make_node("Softmax", ["y"], ["z"])
    constant.attribute.append(refer("value_float", "alpha", onnx.AttributeProto.FLOAT))
    softmax.attribute.append(refer("axis", "axis", onnx.AttributeProto.INT))
    cast = H.make_node("Cast", ["c"], ["d"], to=onnx.TensorProto.DOUBLE)
    opsets = [H.make_opsetid("", 17), H.make_opsetid("own", 1)]
    scaled = H.make_function("own", "scaled", ["a", "b"], ["r"],
                             [H.make_node("Mul", ["a", "b"], ["t"]), constant, cast, H.make_node("Mul", ["t", "d"], ["r"])],
                             opsets, ["alpha"])
    twice = H.make_function("own", "twice", ["x", "unused"], ["y", "z", "w", "x"],
                            [H.make_node("scaled", ["x", "x"], ["y"], domain="own", name="inner", alpha=2.0), softmax,
                             H.make_node("scaled", ["z", "x"], ["w"], domain="own", name="inner", alpha=0.5)],
                            opsets, [], [H.make_attribute("axis", 1)])
    x, values, outputs = f(2, 3), [], []
    nodes = [H.make_node("twice", ["fn/in0"], ["p", "q", "", "fn/out2"], domain="own", name="call"),
             H.make_node("twice", ["p"], ["fn/out1", "q2"], domain="own", name="call", axis=0),
             H.make_node("scaled", ["q", "q2"], ["fn/out0"], domain="own", alpha=3.0)]

    def soft(v, axis):
        e = np.exp(v - v.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    p = 2 * x * x
    values += [("fn/in0", x), ("fn/expect0", 3 * soft(p, 1) * soft(2 * p * p, 0)), ("fn/expect1", 2 * p * p), ("fn/expect2", x)]
    outputs += ["fn/out0", "fn/out1", "fn/out2"]
    for name, shape in (("both", (3, 4)), ("first", (3, 2)), ("none", (1, 4))):
        x, w = f(*shape), f(1)
        k = {key: f"{name}/{key}" for key in ("in0", "in1", "shape", "rows", "columns", "many", "wide", "out0")}

        def graph(label, made, result, initializers=()):
            return H.make_graph(made, label, [], [onnx.ValueInfoProto(name=result)], list(initializers))

        inner = [graph("then", [H.make_node("Mul", [k["in0"], k["in1"]], ["u"]), H.make_node("Add", ["u", "ten"], ["v"])], "v",
                       [N.from_array(np.array([10.0]), "ten")]),
                 graph("else", [H.make_node("Sub", [k["in0"], k["in1"]], ["u"]), H.make_node("Identity", ["u"], ["v"])], "v")]
        outer = [graph("then", [H.make_node("Gather", [k["shape"], "one"], [k["columns"]]),
                                H.make_node("Greater", [k["columns"], "two"], [k["wide"]]),
                                H.make_node("If", [k["wide"]], ["v2"], then_branch=inner[0], else_branch=inner[1])], "v2"),
                 graph("else", [H.make_node("Squeeze", [k["in0"], "first_axis"], ["u"])], "u")]
        nodes += [H.make_node("If", [k["many"]], [k["out0"]], name=f"{name}/if", then_branch=outer[0], else_branch=outer[1]),
                  H.make_node("Greater", [k["rows"], "one"], [k["many"]]),  # after the If that needs it
                  H.make_node("Gather", [k["shape"], "zero"], [k["rows"]]), H.make_node("Shape", [k["in0"]], [k["shape"]])]
        values += [(k["in0"], x), (k["in1"], w),
                   (f"{name}/expect0", x[0] if name == "none" else x * w + 10 if name == "both" else x - w)]
        outputs.append(k["out0"])
    values += [("zero", np.array(0)), ("one", np.array(1)), ("two", np.array(2)), ("first_axis", np.array([0]))]
    graph = H.make_graph(nodes, "cases", [], [onnx.ValueInfoProto(name=o) for o in outputs],
                         [N.from_array(np.ascontiguousarray(v), n) for n, v in values])
    path = os.path.join(HERE, "family17.onnx")
    onnx.save(H.make_model(graph, functions=[scaled, twice], opset_imports=opsets, ir_version=8), path)
    print(path, len(outputs), "outputs", os.path.getsize(path), "bytes")


opset23, opset18, opset11 = File(23), File(18), File(11)
attention(opset23)
rotary(opset23)
norms(opset23)
indices(opset18)
opset11.add("elements", "ScatterElements", [f(3, 3), np.array([[1, 0, 2], [2, 1, 0]]), f(2, 3)])
opset11.add("top", "TopK", [f(2, 5), np.array([2])], (1, 1))
opset11.add("gather_nd", "GatherND", [f(2, 3, 4), np.array([[0, -1], [1, 1]])])
for file in (opset23, opset18, opset11):
    file.save()
functions_and_branches()
