"""Makes the files of this folder: an If whose branches have a matrix of their own, under one name, and 20 batches.

    python make.py      (needs onnx, numpy; writes beside itself)"""
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

os.chdir(os.path.dirname(os.path.abspath(__file__)))
random = np.random.default_rng(1)


def matrix(name, rows, columns):
    return numpy_helper.from_array((random.normal(size=(rows, columns)) * 0.5).astype(np.float32), name)


def branch(name):
    product = helper.make_node("MatMul", ["h", "w"], ["p"], name="product")
    return helper.make_graph([product], name, [], [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["batch", 3])],
                             [matrix("w", 4, 3)])


nodes = [helper.make_node("MatMul", ["x", "first"], ["h"], name="first"),
         helper.make_node("If", ["cond"], ["logits"], name="pick", then_branch=branch("then"), else_branch=branch("else"))]
graph = helper.make_graph(nodes, "branches", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
                          [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])],
                          [numpy_helper.from_array(np.array(False), "cond"), matrix("first", 4, 4)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
onnx.save(model, "if.onnx")
os.makedirs("data", exist_ok=True)
np.save("data/x.npy", random.normal(size=(20, 5, 4)).astype(np.float32))
np.save("data/labels.npy", random.integers(0, 3, (20, 5)).astype(np.int64))
