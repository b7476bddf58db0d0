#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The end of a BERT layer in ONNX Runtime: its own norm, and normjit's, which takes the bias and the residual as well.

    python3 examples/onnx/bert_layer.py

It makes a model, rewrites it as `python -m normjit.onnx` does, runs both on the GPU, and compares. Needs onnx, and
onnxruntime-gpu with an NVIDIA GPU; exits with 77 where one of them is missing.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as missing:
    print("Skipped: {}".format(missing))
    sys.exit(77)

import normjit.onnx

COLUMNS, INNER = 768, 3072


def layer():
    """y = LayerNorm(x @ dense + bias + residual), of float16, with dynamic axes."""
    rng = np.random.default_rng(1)
    weights = {"dense": 0.02 * rng.standard_normal((INNER, COLUMNS)), "bias": 0.1 * rng.standard_normal(COLUMNS),
               "scale": 1 + 0.1 * rng.standard_normal(COLUMNS), "shift": 0.1 * rng.standard_normal(COLUMNS)}
    nodes = [helper.make_node("MatMul", ["x", "dense"], ["product"]),
             helper.make_node("Add", ["product", "bias"], ["biased"]),
             helper.make_node("Add", ["biased", "residual"], ["sum"]),
             helper.make_node("LayerNormalization", ["sum", "scale", "shift"], ["y"], name="norm", epsilon=1e-12)]

    def tensor(name, columns):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["batch", "steps", columns])

    graph = helper.make_graph(nodes, "layer", [tensor("x", INNER), tensor("residual", COLUMNS)], [tensor("y", COLUMNS)],
                              [numpy_helper.from_array(value.astype(np.float16), name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(model):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(normjit.onnx.library())
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CUDAExecutionProvider"])


def main():
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        print("Skipped: this ONNX Runtime has no CUDAExecutionProvider (pip install onnxruntime-gpu)")
        return 77
    model = layer()
    before = session(model)
    if before.get_providers()[0] != "CUDAExecutionProvider":
        print("Skipped: ONNX Runtime found no NVIDIA GPU here")
        return 77
    for finding in normjit.onnx.rewrite(model):
        print(finding.name, "is now", finding.spec)
    after = session(model)
    for batch, steps in ((1, 128), (8, 384)):
        rng = np.random.default_rng(batch)
        feeds = {"x": rng.standard_normal((batch, steps, INNER)).astype(np.float16),
                 "residual": rng.standard_normal((batch, steps, COLUMNS)).astype(np.float16)}
        wanted, found = (each.run(None, feeds)[0].astype(np.float32) for each in (before, after))
        print("{} x {}: results differ by at most {:.1e}".format(batch, steps, abs(found - wanted).max()))
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
