#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of normjit.onnx and of libnormjit_onnxruntime.so, in the real ONNX Runtime.

    NORMJIT_LIBRARY=build/libnormjit.so python3 tests/python/onnx_test.py           # on the GPU
    NORMJIT_LIBRARY=build/libnormjit.so python3 tests/python/onnx_test.py --fake    # on the CPU

The operator is the built one; on the CPU above a libnormjit that computes there. Models are small, and what they compute once
they are rewritten is compared with what ONNX Runtime's own operators do, or with a formula. Without onnx, onnxruntime, a GPU, or
a compiler for the fake, it says so in one line and exits with 77.
"""
import contextlib
import ctypes
import glob
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

from support import COMPILER, FAKE, ROOT, skip, use_fake_library

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as missing:
    skip("no ONNX here ({})".format(missing))
if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 18):
    skip("ONNX Runtime {} is older than 1.18".format(onnxruntime.__version__))
if FAKE and not COMPILER:
    skip("no C++ compiler for the fake libnormjit")
if not FAKE and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
    skip("this ONNX Runtime has no CUDAExecutionProvider")

import normjit.onnx  # noqa: E402

try:
    PLUGIN = normjit.onnx.library()
except ImportError as missing:
    skip(str(missing).splitlines()[0])

from normjit import _library  # noqa: E402
from normjit.onnx import __main__ as command  # noqa: E402

if FAKE:
    use_fake_library()
    os.environ["NORMJIT_ONNXRUNTIME_CPU"] = "1"
PROVIDERS = ["CPUExecutionProvider"] if FAKE else [("CUDAExecutionProvider", {"use_tf32": "0"}), "CPUExecutionProvider"]
seed = int(os.environ.get("NORMJIT_TEST_SEED", random.randrange(1 << 30)))
print("NORMJIT_TEST_SEED={} (onnx {}, ONNX Runtime {})".format(seed, onnx.__version__, onnxruntime.__version__))

FLOAT, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
COLUMNS = 32
# ONNX Runtime's own LayerNormalization of f64 computes in f32 on a GPU.
TOLERANCE = {FLOAT: 2e-5, HALF: 4e-3, BFLOAT: 3e-2, TensorProto.DOUBLE: 1e-12 if FAKE else 1e-5}
rng = np.random.default_rng(seed)


def fake(name, kind=ctypes.c_int64):
    """A variable of the fake libnormjit."""
    return kind.in_dll(_library.load(), "fake_" + name)


def launches():
    """By normjit so far; on a GPU nobody counts them."""
    return fake("launches").value if FAKE else 0


def values(*shape):
    return rng.standard_normal(shape)


def weight(name="w", element=FLOAT, shape=(COLUMNS,)):
    """An initializer."""
    return numpy_helper.from_array((1 + 0.25 * values(*shape)).astype(helper.tensor_dtype_to_np_dtype(element)), name)


def matrix(name):
    return numpy_helper.from_array((0.25 * values(COLUMNS, COLUMNS)).astype("f4"), name)


def scalar(name, value, element=FLOAT, shape=()):
    return helper.make_tensor(name, element, shape, [value])


def node(operator, inputs, outputs, domain="", **attributes):
    return helper.make_node(operator, inputs.split(), outputs.split(), domain=domain, name=outputs.split()[0] + "_node",
                            **attributes)


def value(name, element=FLOAT, shape=("batch", "steps", COLUMNS)):
    return helper.make_tensor_value_info(name, element, shape)


def model(nodes, inputs, outputs, initializers=(), opset=20, infos=(), ir_version=10):
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers), value_info=list(infos))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("normjit", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def session(made, level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(PLUGIN)
    made = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=PROVIDERS)
    if not FAKE and made.get_providers()[0] != "CUDAExecutionProvider":
        skip("ONNX Runtime finds no NVIDIA GPU here")
    return made


def run(made, feeds, **options):
    return session(made, **options).run(None, feeds)


def rewritten(made):
    """(a rewritten copy, the findings). It is checked."""
    copy = onnx.ModelProto.FromString(made.SerializeToString())
    findings = normjit.onnx.rewrite(copy)
    onnx.checker.check_model(copy)
    return copy, findings


def operators(made):
    return [each.op_type for each in made.graph.node]


on_cpu = unittest.skipUnless(FAKE, "of the fake libnormjit")


class TestCase(unittest.TestCase):
    def assert_close(self, found, wanted, within):
        self.assertEqual([each.shape for each in found], [each.shape for each in wanted])
        for ours, theirs in zip(found, wanted):
            self.assertEqual(ours.dtype, theirs.dtype)
            np.testing.assert_allclose(ours.astype("f8"), theirs.astype("f8"), rtol=within, atol=within)

    def check(self, made, spec, feeds, within=2e-5, left=()):
        """Rewritten, the model has just one norm, of this spec, besides the operators that are left; and ONNX Runtime computes
        with it what it computed before."""
        copy, findings = rewritten(made)
        self.assertEqual([finding.spec for finding in findings], [spec], findings)
        self.assertEqual(sorted(operators(copy)), sorted(("Norm", *left)))
        before = launches()
        found = run(copy, feeds)
        self.assertEqual(launches(), before + FAKE)
        self.assert_close(found, run(made, feeds), within)
        return copy


class Operators(TestCase):
    """One node for one node."""

    def test_layer_normalization_of_every_type(self):
        for element, name in ((FLOAT, "f32"), (HALF, "f16"), (TensorProto.DOUBLE, "f64")):
            with self.subTest(name):
                made = model([node("LayerNormalization", "x w b", "y", epsilon=1e-6)], [value("x", element)],
                             [value("y", element)], [weight("w", element), weight("b", element)])
                x = values(2, 3, COLUMNS).astype(helper.tensor_dtype_to_np_dtype(element))
                epsilon = float(np.float32(1e-6)) if name == "f64" else 1e-6
                self.check(made, "layernorm/cols=32/{}/eps={!r}/wb".format(name, epsilon), {"x": x}, TOLERANCE[element])

    def test_bfloat16_between_casts(self):
        """ONNX Runtime has no such norm on the CPU, so the formula is numpy's."""
        w, b = (np.rint(8 * values(COLUMNS)) / 8 for _ in "wb")  # exact in 16 bits
        made = model([node("Cast", "x", "narrow", to=BFLOAT), node("LayerNormalization", "narrow w b", "z"),
                      node("Cast", "z", "y", to=FLOAT)], [value("x")], [value("y")],
                     [helper.make_tensor("w", BFLOAT, [COLUMNS], w), helper.make_tensor("b", BFLOAT, [COLUMNS], b)])
        copy, findings = rewritten(made)
        self.assertEqual([finding.spec for finding in findings], ["layernorm/cols=32/bf16/eps=1e-05/wb"])
        x = values(2, 3, COLUMNS).astype("f4")
        wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b
        self.assert_close(run(copy, {"x": x}), [wanted.astype("f4")], TOLERANCE[BFLOAT])

    def test_without_a_bias_over_several_axes_and_with_statistics(self):
        made = model([node("LayerNormalization", "x w", "y mean rstd", axis=-2)], [value("x", shape=["batch", 4, 8])],
                     [value("y", shape=["batch", 4, 8]), value("mean", shape=["batch", 1, 1]),
                      value("rstd", shape=["batch", 1, 1])], [weight(shape=(4, 8))])
        self.check(made, "layernorm/cols=32/f32/eps=1e-05/w/stats", {"x": values(5, 4, 8).astype("f4")})

    def test_one_statistic_alone(self):
        for outputs in ("y mean", "y  rstd"):
            with self.subTest(outputs):
                names = outputs.split(" ")
                made = model([helper.make_node("LayerNormalization", ["x", "w"], names)], [value("x")],
                             [value("y"), value(names[-1], shape=["batch", "steps", 1])], [weight()])
                self.check(made, "layernorm/cols=32/f32/eps=1e-05/w/stats", {"x": values(2, 3, COLUMNS).astype("f4")})

    def test_an_axis_from_the_front_and_other_ranks(self):
        for shape, axis in (((3, COLUMNS), 1), ((COLUMNS,), 0), ((2, 3, 1, COLUMNS), 3), ((2, 2, 4, 8), 2)):
            with self.subTest(shape):
                vector = shape[axis:]
                made = model([node("LayerNormalization", "x w b", "y", axis=axis)], [value("x", shape=shape)],
                             [value("y", shape=shape)], [weight("w", shape=vector), weight("b", shape=vector)])
                self.check(made, "layernorm/cols=32/f32/eps=1e-05/wb", {"x": values(*shape).astype("f4")})

    def rms_model(self, element=FLOAT, **attributes):
        if onnx.defs.onnx_opset_version() < 23:
            self.skipTest("onnx {} has no RMSNormalization".format(onnx.__version__))
        made = model([node("RMSNormalization", "x w", "y", **attributes)], [value("x", element)], [value("y", element)],
                     [weight("w", element)], opset=23, ir_version=11)
        try:
            session(made)
        except Exception as why:
            self.skipTest("ONNX Runtime {} has no RMSNormalization: {}".format(onnxruntime.__version__, str(why)[:80]))
        return made

    def test_rms_normalization(self):
        made = self.rms_model(epsilon=1e-6)
        self.check(made, "rmsnorm/cols=32/f32/eps=1e-06/w", {"x": values(2, 3, COLUMNS).astype("f4")})

    def test_rms_normalization_rounds_in_half(self):
        made = self.rms_model(HALF)
        copy, findings = rewritten(made)
        self.assertEqual(findings[0].spec, "rmsnorm/cols=32/f16/eps=1e-05/round=norm/w")
        x = values(2, 3, COLUMNS).astype("f2")
        w = numpy_helper.to_array(made.graph.initializer[0]).astype("f4")
        wide = x.astype("f4")
        wanted = (wide / np.sqrt((wide ** 2).mean(-1, keepdims=True) + 1e-5)).astype("f2") * w.astype("f2")
        self.assert_close(run(copy, {"x": x}), [wanted], 2e-3)

    def test_simplified_layer_normalization(self):
        made = model([node("SimplifiedLayerNormalization", "x w", "y", epsilon=1e-6)], [value("x")], [value("y")], [weight()],
                     opset=17)
        self.check(made, "rmsnorm/cols=32/f32/eps=1e-06/w", {"x": values(2, 3, COLUMNS).astype("f4")})

    def test_skip_layer_normalization(self):
        for inputs, outputs, spec in (("x r w b c", "y", "inb/add/wb"), ("x r w b", "y", "add/wb"), ("x r w", "y", "add/w"),
                                      ("x r w b c", "y   s", "inb/add/sum/wb")):
            with self.subTest(inputs + outputs):
                names = outputs.split(" ")
                made = model([helper.make_node("SkipLayerNormalization", inputs.split(), names, domain="com.microsoft",
                                               epsilon=1e-6)],
                             [value("x"), value("r")], [value(name) for name in names if name],
                             [weight(name) for name in inputs.split()[2:]])
                self.check(made, "layernorm/cols=32/f32/eps=1e-06/" + spec,
                           {"x": values(2, 3, COLUMNS).astype("f4"), "r": values(2, 3, COLUMNS).astype("f4")})

    def test_shapes_are_known_behind_operators_that_onnx_does_not_know(self):
        made = model([helper.make_node("SkipLayerNormalization", ["x", "r", "w", "b"], ["n", "", "", "s"], domain="com.microsoft"),
                      node("FastGelu", "n c", "g", domain="com.microsoft"), node("Add", "g s", "t"),
                      node("LayerNormalization", "t w", "y", axis=2)], [value("x"), value("r")], [value("y")],
                     [weight("w"), weight("b"), weight("c")])
        copy, findings = rewritten(made)
        self.assertEqual([finding.spec for finding in findings], ["layernorm/cols=32/f32/eps=1e-12/add/sum/wb",
                                                                  "layernorm/cols=32/f32/eps=1e-05/add/w"])
        feeds = {name: values(2, 3, COLUMNS).astype("f4") for name in "xr"}
        self.assert_close(run(copy, feeds), run(made, feeds), 5e-5)

    def test_skip_simplified_layer_normalization(self):
        made = model([helper.make_node("SkipSimplifiedLayerNormalization", ["x", "r", "w"], ["y", "", "", "s"],
                                       domain="com.microsoft", epsilon=1e-5)], [value("x"), value("r")],
                     [value("y"), value("s")], [weight()])
        self.check(made, "rmsnorm/cols=32/f32/eps=1e-05/add/sum/w",
                   {"x": values(2, 3, COLUMNS).astype("f4"), "r": values(2, 3, COLUMNS).astype("f4")})

    def test_what_the_optimizer_of_onnx_runtime_writes(self):
        """Sums that it fuses by itself are ours after it, too, though it declares other types and names."""
        made = model([node("Add", "x r", "s"), node("LayerNormalization", "s w b", "n"), node("MatMul", "n m", "p"),
                      node("Add", "p s", "t"), node("LayerNormalization", "t w b", "y")],
                     [value("x"), value("r")], [value("y")], [weight("w"), weight("b"), matrix("m")])
        with tempfile.TemporaryDirectory() as folder:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
            onnxruntime.InferenceSession(made.SerializeToString(), options, providers=PROVIDERS)
            optimized = onnx.load(options.optimized_model_filepath)
        self.assertIn("SkipLayerNormalization", operators(optimized))
        copy, findings = rewritten(optimized)
        self.assertEqual([finding.spec for finding in findings],
                         ["layernorm/cols=32/f32/eps=1e-05/add/sum/wb", "layernorm/cols=32/f32/eps=1e-05/add/wb"])
        feeds = {name: values(2, 3, COLUMNS).astype("f4") for name in "xr"}
        self.assert_close(run(copy, feeds), run(made, feeds), 5e-5)


class Neighbours(TestCase):
    """What becomes a part of a norm."""

    def feeds(self, *names, element=FLOAT):
        return {name: values(2, 3, COLUMNS).astype(helper.tensor_dtype_to_np_dtype(element)) for name in names}

    def test_a_sum(self):
        for element, spec in ((FLOAT, "f32/eps=1e-05/add"), (HALF, "f16/eps=1e-05/add/round=sum")):
            with self.subTest(spec):
                made = model([node("Add", "x r", "s"), node("LayerNormalization", "s w b", "y")],
                             [value("x", element), value("r", element)], [value("y", element)],
                             [weight("w", element), weight("b", element)])
                self.check(made, "layernorm/cols=32/" + spec + "/wb", self.feeds("x", "r", element=element),
                           TOLERANCE[element])

    def test_a_sum_that_others_use(self):
        made = model([node("Add", "x r", "s"), node("Neg", "s", "z"), node("LayerNormalization", "s w b", "y"),
                      node("Add", "y z", "t")], [value("x"), value("r")], [value("t"), value("s")], [weight("w"), weight("b")])
        copy = self.check(made, "layernorm/cols=32/f32/eps=1e-05/add/sum/wb", self.feeds("x", "r"), left=("Neg", "Add"))
        self.assertEqual(operators(copy), ["Norm", "Neg", "Add"])  # Neg needs what Norm makes

    def test_a_bias_and_a_residual(self):
        for order in ("a r", "r a"):
            for bias in ("p c", "c p"):
                with self.subTest(order + bias):
                    made = model([node("MatMul", "x m", "p"), node("Add", bias, "a"), node("Add", order, "s"),
                                  node("LayerNormalization", "s w b", "y")], [value("x"), value("r")], [value("y")],
                                 [weight("w"), weight("b"), weight("c"), matrix("m")])
                    self.check(made, "layernorm/cols=32/f32/eps=1e-05/inb/add/wb", self.feeds("x", "r"), 1e-4,
                               left=("MatMul",))

    def test_a_bias_alone(self):
        made = model([node("Add", "x c", "s"), node("LayerNormalization", "s w b", "y")], [value("x")], [value("y")],
                     [weight("w"), weight("b"), weight("c")])
        self.check(made, "layernorm/cols=32/f32/eps=1e-05/inb/wb", self.feeds("x"))

    def test_a_residual_that_is_broadcast(self):
        for shape in ((1, 3, COLUMNS), (3, COLUMNS), (1, 1, COLUMNS)):
            with self.subTest(shape):
                made = model([node("Add", "x r", "s"), node("LayerNormalization", "s w b", "y")],
                             [value("x", shape=["batch", 3, COLUMNS]), value("r", shape=shape)],
                             [value("y", shape=["batch", 3, COLUMNS])], [weight("w"), weight("b")])
                self.check(made, "layernorm/cols=32/f32/eps=1e-05/add/wb",
                           {"x": values(2, 3, COLUMNS).astype("f4"), "r": values(*shape).astype("f4")})

    def test_a_sum_of_unknown_shapes_is_left(self):
        for shapes in ((["batch", None, COLUMNS], ["batch", None, COLUMNS]), (["batch", "steps", COLUMNS], ["batch", 1, COLUMNS]),
                       (["batch", "steps", COLUMNS], ["other", "steps", COLUMNS])):
            with self.subTest(shapes):
                made = model([node("Add", "x r", "s"), node("LayerNormalization", "s w b", "y")],
                             [value("x", shape=shapes[0]), value("r", shape=shapes[1])],
                             [value("y", shape=[None, None, COLUMNS])], [weight("w"), weight("b")])
                copy, findings = rewritten(made)
                self.assertEqual(findings[0].spec, "layernorm/cols=32/f32/eps=1e-05/wb")
                self.assertIn("the Add before it", findings[0].notes[0])
                self.assertEqual(operators(copy), ["Add", "Norm"])
                steps = 1 if shapes[1][1] == 1 else 3
                feeds = {"x": values(2, 3, COLUMNS).astype("f4"), "r": values(2, steps, COLUMNS).astype("f4")}
                self.assert_close(run(copy, feeds), run(made, feeds), 2e-5)

    def test_a_weight_that_is_made_of_the_sum_does_not_make_a_circle(self):
        made = model([node("Add", "x r", "s"), node("ReduceMean", "s axes", "w", keepdims=0),
                      node("LayerNormalization", "s w", "y")],
                     [value("x", shape=[2, 3, COLUMNS]), value("r", shape=[2, 3, COLUMNS])],
                     [value("y", shape=[2, 3, COLUMNS])],
                     [numpy_helper.from_array(np.array([0, 1], np.int64), "axes")])
        self.check(made, "layernorm/cols=32/f32/eps=1e-05/w", self.feeds("x", "r"), left=("Add", "ReduceMean"))

    def test_activations(self):
        for nodes, opset, text in (
                ([node("Relu", "n", "y")], 20, "relu"), ([node("Gelu", "n", "y")], 20, "gelu"),
                ([node("Gelu", "n", "y", approximate="tanh")], 20, "gelu_tanh"),
                ([node("Gelu", "n", "y", domain="com.microsoft")], 17, "gelu"),
                ([node("FastGelu", "n", "y", domain="com.microsoft")], 17, "gelu_tanh"),
                ([node("Sigmoid", "n", "g"), node("Mul", "g n", "y")], 17, "silu"),
                (self.erf("Mul n p m", "Mul m half y"), 17, "gelu"), (self.erf("Mul n half m", "Mul m p y"), 17, "gelu"),
                (self.erf("Mul p half m", "Mul m n y"), 17, "gelu"),
                (self.erf("Mul half n m", "Mul p m y", "Mul n root d"), 17, "gelu")):
            with self.subTest([each.op_type for each in nodes]):
                made = model([node("LayerNormalization", "x w b", "n"), *nodes], [value("x")], [value("y")],
                             [weight("w"), weight("b"), scalar("half", 0.5), scalar("one", 1.0), scalar("two", 2 ** 0.5),
                              scalar("root", 0.5 ** 0.5)], opset=opset)
                self.check(made, "layernorm/cols=32/f32/eps=1e-05/wb/" + text, self.feeds("x"), 1e-4)

    def erf(self, *products):
        first = products[2] if len(products) > 2 else "Div n two d"
        return [node(each.split()[0], " ".join(each.split()[1:3]), each.split()[3])
                for each in (first, "Add e one p", *products[:2])] + [node("Erf", "d", "e")]

    def test_what_only_looks_like_gelu_is_left(self):
        nodes = self.erf("Mul n p m", "Mul m half y")
        for change in ("one", "half", "two"):
            numbers = {"half": 0.5, "one": 1.0, "two": 2 ** 0.5, change: 0.75}
            made = model([node("LayerNormalization", "x w b", "n"), nodes[0], nodes[-1], *nodes[1:-1]], [value("x")],
                         [value("y")], [weight("w"), weight("b"), *(scalar(name, number) for name, number in numbers.items())])
            self.check(made, "layernorm/cols=32/f32/eps=1e-05/wb", self.feeds("x"), 1e-4,
                       left=("Div", "Erf", "Add", "Mul", "Mul"))

    def quantizing(self, element=FLOAT, target=TensorProto.INT8, zero=0, scale=0.03, **attributes):
        return model([node("LayerNormalization", "x w b", "n"), node("QuantizeLinear", "n scale zero", "y", **attributes)],
                     [value("x", element)], [value("y", target)],
                     [weight("w", element), weight("b", element), scalar("scale", scale, element),
                      scalar("zero", zero, target)])

    def check_steps(self, made, spec, feeds):
        """At most one step apart, where a quotient lies at a tie."""
        copy, findings = rewritten(made)
        self.assertEqual([finding.spec for finding in findings], [spec])
        found, wanted = run(copy, feeds)[0].astype(int), run(made, feeds)[0].astype(int)
        self.assertLessEqual(abs(found - wanted).max(), 1)
        self.assertLessEqual((found != wanted).mean(), 0.02)
        self.assertGreater(len(np.unique(found)), 20)

    def test_int8(self):
        self.check_steps(self.quantizing(), "layernorm/cols=32/f32/out=s8/eps=1e-05/wb/q=tensor", self.feeds("x"))

    def test_int8_of_half(self):
        """The result of 16 bits is quantized, as by the two operators."""
        made, feeds = self.quantizing(HALF), self.feeds("x", element=HALF)
        copy, findings = rewritten(made)
        self.assertEqual(findings[0].spec, "layernorm/cols=32/f16/out=s8/eps=1e-05/round=y/wb/q=tensor")
        x = feeds["x"].astype("f8")
        w, b, scale, _ = (numpy_helper.to_array(each).astype("f8") for each in made.graph.initializer)
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b
        wanted = np.clip(np.rint(y.astype("f2").astype("f8") / scale), -128, 127)
        found = run(copy, feeds)[0]
        self.assertLessEqual(abs(found - wanted).max(), 1)
        self.assertLessEqual((found != wanted).mean(), 0.02)

    def test_one_scale_of_half_for_two_norms(self):
        made = self.quantizing(HALF)
        made.graph.node.extend([node("LayerNormalization", "n w b", "m"), node("QuantizeLinear", "m scale zero", "z")])
        made.graph.output.append(value("z", TensorProto.INT8))
        made.graph.initializer.append(scalar("scale_f32", 1.0))
        made.graph.node.append(node("Identity", "scale_f32", "t"))
        made.graph.output.append(value("t", shape=[]))
        copy, findings = rewritten(made)
        self.assertEqual([finding.taken for finding in findings], [True, True])
        self.assertEqual([each.name for each in copy.graph.initializer], ["w", "b", "scale_f32", "scale_f32_"])
        feeds = self.feeds("x", element=HALF)
        self.assertLessEqual(abs(run(copy, feeds)[0].astype(int) - run(made, feeds)[0].astype(int)).max(), 1)

    def test_float8(self):
        made = self.quantizing(target=TensorProto.FLOAT8E4M3FN)
        for each in (made, rewritten(made)[0]):  # back to f32, as numpy has no such type
            del each.graph.output[:]
            each.graph.output.append(value("z"))
            each.graph.value_info.append(value("y", TensorProto.FLOAT8E4M3FN))
            each.graph.node.append(node("Cast", "y", "z", to=FLOAT))
        copy, findings = rewritten(made)
        self.assertEqual(findings[0].spec, "layernorm/cols=32/f32/out=e4m3/eps=1e-05/wb/q=tensor")
        feeds = self.feeds("x")
        self.assert_close(run(copy, feeds), run(made, feeds), 0.13)

    def test_int8_beside_others(self):
        made = self.quantizing()
        made.graph.node.append(node("Neg", "n", "z"))
        made.graph.output.append(value("z"))
        copy, findings = rewritten(made)
        self.assertEqual(findings[0].spec, "layernorm/cols=32/f32/out=s8/eps=1e-05/wb/q=tensor/also=f32")
        feeds = self.feeds("x")
        found, wanted = run(copy, feeds), run(made, feeds)
        self.assert_close(found[1:], wanted[1:], 2e-5)
        self.assertLessEqual(abs(found[0].astype(int) - wanted[0].astype(int)).max(), 1)

    def test_quantizations_that_are_left(self):
        per_axis = self.quantizing()
        per_axis.graph.initializer[2].CopyFrom(helper.make_tensor("scale", FLOAT, [COLUMNS], [0.03] * COLUMNS))
        per_axis.graph.initializer[3].CopyFrom(helper.make_tensor("zero", TensorProto.INT8, [COLUMNS], [0] * COLUMNS))
        for made, why in ((self.quantizing(target=TensorProto.UINT8), "int8, float8"), (self.quantizing(zero=3), "zero point"),
                          (per_axis, "several parts"),
                          (self.quantizing(target=TensorProto.FLOAT8E4M3FN, saturate=0), "does not saturate")):
            with self.subTest(why):
                copy, findings = rewritten(made)
                self.assertEqual(findings[0].spec, "layernorm/cols=32/f32/eps=1e-05/wb")
                self.assertIn(why, findings[0].notes[0])
                self.assertEqual(operators(copy), ["Norm", "QuantizeLinear"])

    def test_everything_at_once(self):
        made = model([node("Add", "x c", "a"), node("Add", "a r", "s"), node("LayerNormalization", "s w b", "n"),
                      node("Relu", "n", "g"), node("QuantizeLinear", "g scale zero", "y"), node("Identity", "s", "t")],
                     [value("x"), value("r")], [value("y", TensorProto.INT8), value("t")],
                     [weight("w"), weight("b"), weight("c"), scalar("scale", 0.02), scalar("zero", 0, TensorProto.INT8)])
        copy, findings = rewritten(made)
        self.assertEqual(findings[0].spec, "layernorm/cols=32/f32/out=s8/eps=1e-05/inb/add/sum/wb/relu/q=tensor")
        feeds = self.feeds("x", "r")
        found, wanted = run(copy, feeds), run(made, feeds)
        self.assertLessEqual(abs(found[0].astype(int) - wanted[0].astype(int)).max(), 1)
        self.assert_close(found[1:], wanted[1:], 2e-5)


def layer_norm_steps(x="x", square="Pow", axes="attribute", divide="Div"):
    mean = {"axes": [-1]} if axes == "attribute" else {}
    more = "" if axes == "attribute" else " axes"
    nodes = [node("ReduceMean", x + more, "mean", **mean), node("Sub", x + " mean", "d"),
             node("Pow", "d two", "q") if square == "Pow" else node("Mul", "d d", "q"),
             node("ReduceMean", "q" + more, "v", **mean), node("Add", "v eps", "ve"), node("Sqrt", "ve", "std")]
    if divide == "Div":
        nodes += [node("Div", "d std", "n")]
    else:
        nodes += [node("Reciprocal", "std", "i"), node("Mul", "d i", "n")]
    return nodes + [node("Mul", "n w", "nw"), node("Add", "nw b", "y")]


STEP_CONSTANTS = [scalar("two", 2.0), scalar("eps", 1e-6)]


class SingleSteps(TestCase):
    """Norms of older exports."""

    def test_layer_norm(self):
        x = {"x": values(2, 3, COLUMNS).astype("f4")}
        axes = numpy_helper.from_array(np.array([-1], np.int64), "axes")
        for opset, options in ((13, {}), (13, {"square": "Mul"}), (13, {"divide": "Reciprocal"}), (18, {"axes": "input"})):
            with self.subTest(options):
                made = model(layer_norm_steps(**options), [value("x")], [value("y")], [weight("w"), weight("b")], opset=opset)
                used = {name for each in made.graph.node for name in each.input}
                made.graph.initializer.extend(each for each in (*STEP_CONSTANTS, axes) if each.name in used)
                copy = self.check(made, "layernorm/cols=32/f32/eps=1e-06/wb", x)
                self.assertEqual([each.name for each in copy.graph.initializer], ["w", "b"])  # no constants are left over

    def test_constants_that_are_inputs(self):
        """Of IR 3 all are, and leave together; of later ones an input is no constant."""
        for ir_version, spec in ((3, "layernorm/cols=32/f32/eps=1e-06/wb"), (8, "")):
            initializers = [weight("w"), weight("b"), *STEP_CONSTANTS]
            inputs = [value("x"), *(value(each.name, shape=each.dims) for each in initializers)]
            made = model(layer_norm_steps(), inputs, [value("y")], initializers, opset=9, ir_version=ir_version)
            del made.opset_import[1:]
            copy, findings = rewritten(made)
            self.assertEqual([finding.spec for finding in findings], [spec] if spec else [])
            self.assertEqual([each.name for each in copy.graph.input],
                             ["x", "w", "b"] if spec else [each.name for each in made.graph.input])
            x = {"x": values(2, 3, COLUMNS).astype("f4")}
            self.assert_close(run(copy, x), run(made, x), 2e-5)

    def test_with_a_sum(self):
        made = model([node("Add", "a r", "x"), *layer_norm_steps()], [value("a"), value("r")], [value("y"), value("x")],
                     [weight("w"), weight("b"), *STEP_CONSTANTS], opset=13)
        self.check(made, "layernorm/cols=32/f32/eps=1e-06/add/sum/wb",
                   {"a": values(2, 3, COLUMNS).astype("f4"), "r": values(2, 3, COLUMNS).astype("f4")})

    def test_rms_norm_of_llama(self):
        """x is cast to f32, and the result is rounded before the weight."""
        made = model([node("Cast", "x", "wide", to=FLOAT), node("Pow", "wide two", "q"), node("ReduceMean", "q", "v", axes=[-1]),
                      node("Add", "v eps", "ve"), node("Sqrt", "ve", "std"), node("Div", "one std", "i"),
                      node("Mul", "wide i", "n"), node("Cast", "n", "narrow", to=HALF), node("Mul", "w narrow", "y")],
                     [value("x", HALF)], [value("y", HALF)], [weight("w", HALF), scalar("one", 1.0), *STEP_CONSTANTS], opset=13)
        self.check(made, "rmsnorm/cols=32/f16/eps=1e-06/round=norm/w", {"x": values(2, 3, COLUMNS).astype("f2")}, 2e-3)

    def test_rms_norm_with_a_wide_weight(self):
        made = model([node("Cast", "x", "wide", to=FLOAT), node("Pow", "wide two", "q"), node("ReduceMean", "q", "v", axes=[-1]),
                      node("Add", "v eps", "ve"), node("Sqrt", "ve", "std"), node("Div", "wide std", "n"),
                      node("Mul", "n w", "nw"), node("Cast", "nw", "y", to=HALF)],
                     [value("x", HALF)], [value("y", HALF)], [weight("w"), *STEP_CONSTANTS], opset=13)
        self.check(made, "rmsnorm/cols=32/f16/w=f32/eps=1e-06/w", {"x": values(2, 3, COLUMNS).astype("f2")}, 2e-3)

    def test_steps_that_are_left(self):
        axes = [node("ReduceMean", "x", "mean", axes=[1]), *layer_norm_steps()[1:3], node("ReduceMean", "q", "v", axes=[1]),
                *layer_norm_steps()[4:]]
        for nodes, outputs, why in ((axes, "y", "other axes than the last"), (layer_norm_steps(), "y v", "others use a part")):
            with self.subTest(why):
                made = model(nodes, [value("x", shape=[2, 3, COLUMNS])],
                             [value(name, shape=[2, 3, COLUMNS] if name == "y" else [2, 3, 1]) for name in outputs.split()],
                             [weight("w"), weight("b"), *STEP_CONSTANTS], opset=13)
                copy, findings = rewritten(made)
                self.assertIn(why, findings[0].reason)
                self.assertNotIn("Norm", operators(copy))


@unittest.skipIf(tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 22),
                 "the optimizer of ONNX Runtime 1.18 crashes on some of these, also on models that were not rewritten")
class RandomGraphs(TestCase):
    """Norms among sums, activations and quantizations, in any order and with any values used twice or as outputs: the rewritten
    model computes what the model did, within the steps of quantizations."""

    def random_model(self, choose):
        nodes, weights, names, extra = [], [], ["x", "r"], []

        def vector():
            weights.append(weight("w{}".format(len(weights))))
            return weights[-1].name

        def number(content, element=FLOAT):
            weights.append(scalar("k{}".format(len(weights)), content, element))
            return weights[-1].name

        def add(operator, *inputs, **attributes):
            nodes.append(helper.make_node(operator, list(inputs), ["v{}".format(len(nodes))], **attributes))
            return nodes[-1].output[0]

        def any_value():
            return choose.choice(names[-4:])

        def layer_norm():
            return add("LayerNormalization", any_value(), vector(), *([vector()] if choose.random() < 0.7 else []),
                       axis=choose.choice((-1, 2)))

        def steps():
            x = any_value()
            centred = add("Sub", x, add("ReduceMean", x, axes=[-1]))
            square = add("Mul", centred, centred) if choose.random() < 0.5 else add("Pow", centred, number(2.0))
            mean = add("ReduceMean", square, axes=[-1])
            extra.extend([mean] if choose.random() < 0.2 else [])
            y = add("Div", centred, add("Sqrt", add("Add", mean, number(1e-5))))
            y = add("Mul", *choose.sample((y, vector()), 2))
            return add("Add", y, vector()) if choose.random() < 0.5 else y

        def skip():
            y = add("SkipLayerNormalization", any_value(), any_value(), vector(), vector(), domain="com.microsoft", epsilon=1e-5)
            if choose.random() < 0.5:
                nodes[-1].output.extend(["", "", y + "_sum"])
                names.append(y + "_sum")
            return y

        def gelu():
            x = any_value()
            plus = add("Add", *choose.sample((add("Erf", add("Div", x, number(2 ** 0.5))), number(1.0)), 2))
            if choose.random() < 0.5:
                return add("Mul", add("Mul", x, plus), number(0.5))
            return add("Mul", add("Mul", number(0.5), x), plus)

        def quantize():
            parts = number(0.04), number(0, TensorProto.INT8)
            return add("DequantizeLinear", add("QuantizeLinear", any_value(), *parts), *parts)

        kinds = [layer_norm, layer_norm, layer_norm, steps, skip, gelu, quantize, lambda: add("Relu", any_value()),
                 lambda: add("SimplifiedLayerNormalization", any_value(), vector(), epsilon=1e-6),
                 lambda: add("Tanh", any_value())] + 4 * [
                     lambda: add("Add", *choose.sample((any_value(), choose.choice((any_value(), vector()))), 2))]
        for _ in range(choose.randint(3, 10)):
            names.append(choose.choice(kinds)())
        outputs = {names[-1], *choose.sample(names[2:], 1), *extra}
        return model(nodes, [value("x"), value("r")], [value(name, shape=[None, None, None]) for name in sorted(outputs)],
                     weights, opset=17, ir_version=8)

    def test_they_compute_what_they_did(self):
        norms = 0
        for number in range(100):
            made = self.random_model(random.Random(seed + number))
            copy, findings = rewritten(made)
            norms += sum(finding.taken for finding in findings)
            within = 0.35 if "QuantizeLinear" in operators(made) else 2e-4
            feeds = {name: values(2, 3, COLUMNS).astype("f4") for name in "xr"}
            plain = session(made, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
            feeds = {each.name: feeds[each.name] for each in plain.get_inputs()}
            try:
                self.assert_close(run(copy, feeds), plain.run(None, feeds), within)
            except Exception as why:
                raise AssertionError("NORMJIT_TEST_SEED={} here, graph 0 of it: {}\n{}".format(
                    seed + number, why, "\n".join(map(str, findings)))) from why
        self.assertGreater(norms, 100)


class Left(TestCase):
    """Norms that stay, with a reason."""

    def check_left(self, made, why):
        copy, findings = rewritten(made)
        self.assertEqual([finding.taken for finding in findings], [False])
        self.assertIn(why, findings[0].reason)
        self.assertEqual(copy.SerializeToString(deterministic=True), made.SerializeToString(deterministic=True))

    def test_in_a_subgraph(self):
        branch = helper.make_graph([node("LayerNormalization", "x w", "z")], "branch", [], [value("z")])
        made = model([node("If", "c", "y", then_branch=branch, else_branch=helper.make_graph(
            [node("Identity", "x", "u")], "other", [], [value("u")]))],
            [value("x"), value("c", TensorProto.BOOL, [])], [value("y")], [weight()])
        self.check_left(made, "in a subgraph of the node y_node")

    def test_what_a_subgraph_uses_stays(self):
        """The sum is used inside of a branch, so it is written."""
        branch = helper.make_graph([node("Neg", "s", "z")], "branch", [], [value("z")])
        other = helper.make_graph([node("Identity", "s", "u")], "other", [], [value("u")])
        made = model([node("Add", "x r", "s"), node("LayerNormalization", "s w", "y"),
                      node("If", "c", "t", then_branch=branch, else_branch=other)],
                     [value("x"), value("r"), value("c", TensorProto.BOOL, [])], [value("y"), value("t")], [weight()])
        feeds = {name: values(2, 3, COLUMNS).astype("f4") for name in "xr"}
        self.check(made, "layernorm/cols=32/f32/eps=1e-05/add/sum/w", {**feeds, "c": np.array(True)}, left=("If",))

    def test_a_mean_of_another_type(self):
        double = TensorProto.DOUBLE
        made = model([node("LayerNormalization", "x w", "y mean")], [value("x", double)],
                     [value("y", double), value("mean", FLOAT, ["batch", "steps", 1])], [weight("w", double)])
        self.check_left(made, "its mean or deviation is an output of another type")

    def test_other_operators_types_and_shapes(self):
        scale = helper.make_tensor("w", FLOAT, [1], [1.5])
        for made, why in (
                (model([node("LayerNormalization", "x w", "y")], [value("x")], [value("y")], [scale]), "is broadcast over"),
                (model([node("LayerNormalization", "x w", "y")], [value("x"), value("w", shape=["n"])], [value("y")]),
                 "the shape of its Scale is not known"),
                (model([node("InstanceNormalization", "x w w", "y")], [value("x")], [value("y")], [weight(shape=(3,))]),
                 "each channel by itself"),
                (model([node("LayerNormalization", "k w", "y")], [], [value("y", shape=[2, COLUMNS])],
                       [weight(), weight("k", shape=(2, COLUMNS))]), "its input is a constant")):
            with self.subTest(why):
                self.check_left(made, why)


class Everything(TestCase):
    """Each operand of a spec as an input or output of the operator, without the rewriter."""

    def norm(self, spec, inputs, outputs, infos=()):
        """A model of one node, with inputs [name, element, shape] and likewise outputs."""
        made = model([helper.make_node("Norm", [name for name, *_ in inputs], [name for name, *_ in outputs], name="the norm",
                                       domain="normjit", spec=spec)],
                     [value(*each) for each in inputs], [value(*each) for each in outputs])
        onnx.checker.check_model(made)
        return made

    def test_gates_modulation_and_tables(self):
        """Each operand has a shape of its own, and all are of f32."""
        shapes = {"x": (2, 3, COLUMNS), "in_bias": (COLUMNS,), "gate": (2, 1, COLUMNS), "gate_table": (COLUMNS,),
                  "residual": (3, COLUMNS), "weight": (COLUMNS,), "bias": (COLUMNS,), "mod_scale": (2, 1, COLUMNS),
                  "mod_scale_table": (COLUMNS,), "mod_shift": (1, 3, COLUMNS), "mod_shift_table": (1, COLUMNS)}
        made = self.norm("layernorm/cols=32/f32/eps=0.001/inb/gate:silu:table/add/sum/wb1/mod:table/scale=2/stats",
                         [(name, FLOAT, shape) for name, shape in shapes.items()],
                         [("y", FLOAT, (2, 3, COLUMNS)), ("s", FLOAT, (2, 3, COLUMNS)), ("m", FLOAT, (2, 3, 1)),
                          ("r", FLOAT, (2, 3, 1))])
        a = {name: values(*shape).astype("f4") for name, shape in shapes.items()}
        gate = a["gate"] + a["gate_table"]
        s = (a["x"] + a["in_bias"]) * (gate / (1 + np.exp(-gate))) + a["residual"]
        mean, rstd = s.mean(-1, keepdims=True), 1 / np.sqrt(s.var(-1, keepdims=True) + 1e-3)
        y = (s - mean) * rstd * (a["weight"] + 1) + a["bias"]
        y = 2 * (y * (1 + a["mod_scale"] + a["mod_scale_table"]) + a["mod_shift"] + a["mod_shift_table"])
        self.assert_close(run(made, a), [y, s, mean, rstd], 1e-4)

    def test_weights_of_heads(self):
        made = self.norm("rmsnorm/cols=8/f32/eps=1e-06/w:rows", [("x", FLOAT, ("b", "s", 4, 8)), ("w", FLOAT, (4, 8))],
                         [("y", FLOAT, ("b", "s", 4, 8))])
        x, w = values(2, 3, 4, 8).astype("f4"), values(4, 8).astype("f4")
        self.assert_close(run(made, {"x": x, "w": w}), [x / np.sqrt((x ** 2).mean(-1, keepdims=True) + 1e-6) * w], 2e-5)

    def test_channels_first(self):
        made = self.norm("layernorm/cols=8/f32/eps=1e-06/add/wb/cf",
                         [("x", FLOAT, ("n", 8, 5, 3)), ("r", FLOAT, ("k", 8, 5, 3)), ("w", FLOAT, (8,)), ("b", FLOAT, (8,))],
                         [("y", FLOAT, ("n", 8, 5, 3))])
        for samples in (2, 1):
            a = {"x": values(2, 8, 5, 3), "r": values(samples, 8, 5, 3), "w": values(8), "b": values(8)}
            a = {name: each.astype("f4") for name, each in a.items()}
            s = a["x"] + a["r"]
            n = (s - s.mean(1, keepdims=True)) / np.sqrt(s.var(1, keepdims=True) + 1e-6)
            self.assert_close(run(made, a), [n * a["w"][:, None, None] + a["b"][:, None, None]], 2e-5)

    def test_scales_of_rows_and_of_all(self):
        x = values(2, 3, COLUMNS).astype("f4")
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        made = self.norm("layernorm/cols=32/f32/out=s8/q=row", [("x", FLOAT, ("b", 3, COLUMNS))],
                         [("q", TensorProto.INT8, ("b", 3, COLUMNS)), ("d", FLOAT, ("b", 3, 1))])
        q, d = run(made, {"x": x})
        np.testing.assert_allclose(d[..., 0], abs(y).max(-1) / 127, rtol=1e-5)
        np.testing.assert_allclose(q * d, y, atol=d.max() * 0.51)
        made = self.norm("layernorm/cols=32/f32/out=s8/q=tensor:inv/also=f16/amax",
                         [("x", FLOAT, ("b", 3, COLUMNS)), ("t", FLOAT, (1,))],
                         [("q", TensorProto.INT8, ("b", 3, COLUMNS)), ("n", HALF, ("b", 3, COLUMNS)), ("a", FLOAT, (1,))])
        q, n, a = run(made, {"x": x, "t": np.array([20], "f4")})
        np.testing.assert_allclose(q, np.clip(np.rint(y * 20), -128, 127), atol=1)
        np.testing.assert_allclose(n.astype("f4"), y, atol=2e-3)
        np.testing.assert_allclose(a, [abs(y).max()], rtol=1e-5)

    def test_scales_of_blocks(self):
        x = values(5, 128).astype("f4")
        for spec, shape, element in (("q=64", (5, 2), FLOAT), ("q=32:e8m0:sw", (1, 1, 512), TensorProto.UINT8)):
            with self.subTest(spec):
                made = self.norm("layernorm/cols=128/f32/out=s8/" + spec, [("x", FLOAT, ("b", 128))],
                                 [("q", TensorProto.INT8, ("b", 128)), ("d", element, shape)])
                q, d = run(made, {"x": x})
                self.assertEqual((q.shape, d.shape), ((5, 128), shape))
                if element == FLOAT:
                    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
                    np.testing.assert_allclose(q * np.repeat(d, 64, -1), y, atol=d.max() * 0.51)

    def test_no_rows(self):
        made = self.norm("layernorm/cols=32/f32/amax", [("x", FLOAT, ("b", COLUMNS))],
                         [("y", FLOAT, ("b", COLUMNS)), ("a", FLOAT, (1,))])
        before = launches()
        y, a = run(made, {"x": np.zeros((0, COLUMNS), "f4")})
        self.assertEqual((y.shape, a.tolist(), launches()), ((0, COLUMNS), [0.0], before))

    @on_cpu
    def test_a_workspace_is_there_and_zero(self):
        made = self.norm("layernorm/cols=32/f32", [("x", FLOAT, ("b", COLUMNS))], [("y", FLOAT, ("b", COLUMNS))])
        self.addCleanup(setattr, fake("workspace_bytes"), "value", 0)
        fake("workspace_bytes").value = 64
        run(made, {"x": values(2, COLUMNS).astype("f4")})  # the library looks at it
        self.assertTrue(fake("workspace", ctypes.c_void_p).value)

    def test_results_of_four_bits_have_no_tensors(self):
        made = self.norm("rmsnorm/cols=32/f32/out=e2m1/q=32:e8m0", [("x", FLOAT, ("b", COLUMNS))],
                         [("y", TensorProto.UINT8, ("b", 16)), ("d", TensorProto.UINT8, ("b", 1))])
        with self.assertRaisesRegex(Exception, "the output y has no tensor type in ONNX Runtime"):
            session(made)


class Threads(TestCase):
    def test_eight_threads_and_several_sessions(self):
        """Every run has the result of its own inputs, of whatever number of rows."""
        made = model([node("Add", "x r", "s"), node("LayerNormalization", "s w b", "n"),
                      node("SimplifiedLayerNormalization", "n w", "y")],
                     [value("x"), value("r")], [value("y"), value("s")], [weight("w"), weight("b")])
        copy, findings = rewritten(made)
        self.assertEqual(sum(finding.taken for finding in findings), 2)
        sessions, builtin = [session(copy) for _ in range(3)], session(made)
        cases = []
        for steps in (1, 3, 7, 16):
            feeds = {name: values(2, steps, COLUMNS).astype("f4") for name in "xr"}
            cases.append((feeds, builtin.run(None, feeds)))
        wrong, before, runs = [], launches(), 100

        def work(number):
            choose = random.Random(seed + number)
            for _ in range(runs):
                feeds, wanted = choose.choice(cases)
                found = choose.choice(sessions).run(None, feeds)
                if not all(np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, wanted)):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertGreaterEqual(launches(), before + FAKE)  # its count is not atomic

    def test_sessions_come_and_go(self):
        made = model([node("LayerNormalization", "x w", "y")], [value("x")], [value("y")], [weight()])
        copy, _ = rewritten(made)
        x = {"x": values(2, 3, COLUMNS).astype("f4")}
        for _ in range(20):
            run(copy, x)


class Errors(TestCase):
    """Mistakes are told in a sentence, as the session is made if they can be."""

    def norm(self, spec="layernorm/cols=32/f32/wb", inputs="x w b", outputs="y", element=FLOAT, shape=("b", COLUMNS), **changes):
        attributes = {} if spec is None else {"spec": spec}
        shapes = {"x": shape, "w": (COLUMNS,), "b": (COLUMNS,), **changes}
        return model([helper.make_node("Norm", inputs.split(), outputs.split(), name="the norm", domain="normjit", **attributes)],
                     [value(name, element, shapes.get(name, (COLUMNS,))) for name in inputs.split()],
                     [value(name, element, shape) for name in outputs.split()])

    def test_a_node_that_does_not_fit(self):
        for made, text in (
                (self.norm(spec=None), "it has no attribute spec"),
                (self.norm(spec="layernorm/cols=32/f32/wx"), "wx"),
                (self.norm(spec="rmsnorm_bwd/cols=32/f32/w"), "computes gradients"),
                (self.norm(inputs="x w"), "has the inputs x, weight, bias, and the node has 2 inputs"),
                (self.norm(outputs="y z"), "has the outputs y, and the node has 2 outputs"),
                (self.norm(element=HALF), "the input x must be of float, not of float16")):
            with self.subTest(text):
                with self.assertRaises(Exception) as caught:
                    session(made)
                self.assertIn('normjit::Norm (node "the norm"): ', str(caught.exception))
                self.assertIn(text, str(caught.exception))

    def test_an_output_that_is_left_out(self):
        made = model([helper.make_node("Norm", ["x"], ["y", "", "r"], name="the norm", domain="normjit",
                                       spec="layernorm/cols=32/f32/stats")],
                     [value("x")], [value("y"), value("r", shape=["batch", "steps", 1])])
        with self.assertRaisesRegex(Exception, "the output mean is missing, or has no type"):
            session(made)

    def test_shapes_that_do_not_fit(self):
        for made, feeds, text in (
                (self.norm(shape=("a", "b")), {"x": values(2, 31)}, "x has the shape [2, 31], whose last dimensions are not 32"),
                (self.norm(w=("k",)), {"x": values(2, 32), "w": values(8)},
                 "the input weight has the shape [8], and 32 elements are needed"),
                (self.norm(spec="layernorm/cols=32/f32/add/w", inputs="x r w", r=("k", "l"), shape=("b", "c", COLUMNS)),
                 {"x": values(2, 3, 32), "r": values(2, 32)}, "the input residual has the shape [2, 32]"),
                (self.norm(spec="layernorm/cols=32/f32/w/cf", inputs="x w", shape=("b", "c", "h")),
                 {"x": values(2, 3, 32)}, "whose second dimension is not 32")):
            with self.subTest(text):
                feeds = {each.name: feeds.get(each.name, values(COLUMNS)).astype("f4") for each in made.graph.input}
                with self.assertRaises(Exception) as caught:
                    run(made, feeds)
                self.assertIn('normjit::Norm (node "the norm"): ', str(caught.exception))
                self.assertIn(text, str(caught.exception))

    @on_cpu
    def test_what_the_library_says(self):
        made = session(self.norm())
        fake("next_status", ctypes.c_int32).value = 801
        feeds = {each.name: values(*(2, COLUMNS)[each.name != "x":]).astype("f4") for each in made.get_inputs()}
        with self.assertRaisesRegex(Exception, "The fake was told to refuse. Run the session once with inputs of these shapes"):
            made.run(None, feeds)
        made.run(None, feeds)

    def in_another_process(self, **environment):
        """What making a session says there."""
        program = ("import sys, onnxruntime\noptions = onnxruntime.SessionOptions()\noptions.log_severity_level = 4\n"
                   "options.register_custom_ops_library(sys.argv[1])\n"
                   "onnxruntime.InferenceSession(sys.argv[2], options, providers=['CPUExecutionProvider'])\n")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            onnx.save(self.norm(), path)
            done = subprocess.run([sys.executable, "-c", program, PLUGIN, path], capture_output=True, text=True, check=False,
                                  env={**os.environ, **environment})
        return done.returncode, done.stderr

    @on_cpu
    def test_without_the_library(self):
        status, said = self.in_another_process(NORMJIT_LIBRARY="/nowhere/libnormjit.so")
        self.assertNotEqual(status, 0)
        for text in ("libnormjit was not found. Put libnormjit.so.1 beside libnormjit_onnxruntime.so, or name it in "
                     "NORMJIT_LIBRARY. Tried:", "/nowhere/libnormjit.so: cannot open shared object file"):
            self.assertIn(text, said)

    @on_cpu
    def test_a_library_that_is_another_one(self):
        status, said = self.in_another_process(NORMJIT_LIBRARY=PLUGIN)
        self.assertNotEqual(status, 0)
        self.assertIn("is no libnormjit of this version or a newer one", said)

    @on_cpu
    def test_on_the_cpu(self):
        for asked in ("", "0"):
            status, said = self.in_another_process(NORMJIT_ONNXRUNTIME_CPU=asked)
            self.assertNotEqual(status, 0)
            self.assertIn('normjit::Norm (node "the norm"): it is on the CPU, and normjit\'s kernels are for NVIDIA GPUs. Put '
                          'CUDAExecutionProvider first', said)

    def test_a_runtime_that_is_too_old(self):
        """RegisterCustomOps by itself, with functions of a runtime that has version 1 alone."""
        told = []
        create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(
            lambda code, text: told.append((code, text.decode())) or 1)
        functions = (ctypes.c_void_p * 100)(ctypes.cast(create, ctypes.c_void_p).value)
        get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(
            lambda version: ctypes.addressof(functions) if version == 1 else None)
        name = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.cast(ctypes.c_char_p(b"1.17.3"), ctypes.c_void_p).value)
        base = (ctypes.c_void_p * 2)(ctypes.cast(get_api, ctypes.c_void_p).value, ctypes.cast(name, ctypes.c_void_p).value)
        register = ctypes.CDLL(PLUGIN).RegisterCustomOps
        register.restype = ctypes.c_void_p
        self.assertEqual(register(None, base), 1)
        self.assertEqual(told, [(1, "normjit needs ONNX Runtime 1.18 or newer, and this is 1.17.3")])

    def test_it_shows_one_symbol_and_needs_little(self):
        readelf = shutil.which("readelf")
        if not readelf:
            self.skipTest("no readelf")
        said = subprocess.run([readelf, "-W", "-d", "--dyn-syms", PLUGIN], capture_output=True, text=True, check=True).stdout
        shown = [line.split()[-1] for line in said.splitlines() if re.search(r" (GLOBAL|WEAK) +DEFAULT +\d+ ", line)]
        self.assertEqual(shown, ["RegisterCustomOps"])
        needed = set(re.findall(r"NEEDED.*\[([\w+-]+)\.so", said))
        self.assertLessEqual(needed, {"libc", "libm", "libdl", "libstdc++", "libgcc_s", "ld-linux-x86-64"})


class Command(TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def run_command(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = command.main(arguments)
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), err.getvalue()

    def save(self, **options):
        made = model([node("Add", "x r", "s"), node("LayerNormalization", "s w b", "n"), node("Mul", "n g", "m"),
                      node("InstanceNormalization", "m w w", "y")],
                     [value("x", shape=["n", COLUMNS, 64]), value("r", shape=["n", COLUMNS, 64])],
                     [value("y", shape=["n", COLUMNS, 64])],
                     [weight("w", shape=(64,)), weight("b", shape=(64,)), weight("g", shape=(64,))])
        made.graph.node[3].input[1] = made.graph.node[3].input[2] = "c"
        made.graph.initializer.append(weight("c"))
        onnx.save(made, self.path("model.onnx"), **options)
        return made

    def test_it_writes_and_lists(self):
        made = self.save()
        status, out, err = self.run_command(self.path("model.onnx"), "-o", self.path("fused.onnx"), "--list")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(out.splitlines(), [
            "taken  n_node (Add, LayerNormalization): layernorm/cols=64/f32/eps=1e-05/add/wb",
            "left   y_node (InstanceNormalization): it normalizes each channel by itself, which normjit does not do",
            "{}: 1 of 2 norms".format(self.path("fused.onnx"))])
        feeds = {name: values(2, COLUMNS, 64).astype("f4") for name in "xr"}
        self.assert_close(run(onnx.load(self.path("fused.onnx")), feeds), run(made, feeds), 1e-4)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["fused.onnx", "model.onnx"])

    def test_it_prints_specs(self):
        self.save()
        self.assertEqual(self.run_command(self.path("model.onnx"), "--specs"),
                         (0, "layernorm/cols=64/f32/eps=1e-05/add/wb\n", ""))

    def test_external_data_comes_along(self):
        made = self.save(save_as_external_data=True, location="weights.bin", size_threshold=0)
        os.mkdir(self.path("other"))
        for target in (self.path("fused.onnx"), self.path("other", "fused.onnx")):
            status, _, err = self.run_command(self.path("model.onnx"), "-o", target)
            self.assertEqual((status, err), (0, ""))
            self.assertTrue(os.path.exists(os.path.join(os.path.dirname(target), "weights.bin")))
            feeds = {name: values(2, COLUMNS, 64).astype("f4") for name in "xr"}
            self.assert_close(run(onnx.load(target), feeds), run(onnx.load(self.path("model.onnx")), feeds), 1e-4)
        self.assertEqual(len(made.graph.node), 4)

    def test_other_weights_in_the_way(self):
        self.save(save_as_external_data=True, location="weights.bin", size_threshold=0)
        os.mkdir(self.path("other"))
        with open(self.path("other", "weights.bin"), "w") as file:
            file.write("something else")
        status, _, err = self.run_command(self.path("model.onnx"), "-o", self.path("other", "fused.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("is there already", err)
        self.assertEqual(os.listdir(self.path("other")), ["weights.bin"])

    def test_mistakes(self):
        with open(self.path("text.onnx"), "w") as file:
            file.write("no model, but a text")
        for arguments, status, text in (([self.path("text.onnx"), "-o", self.path("y")], 1, "is not an ONNX model"),
                                        ([self.path("missing"), "--list"], 1, "No such file"),
                                        ([self.path("text.onnx")], 2, "name the output")):
            with self.subTest(text):
                found, _, err = self.run_command(*arguments)
                self.assertEqual(found, status)
                self.assertIn(text, err)

    def test_as_a_program(self):
        self.save()
        done = subprocess.run([sys.executable, "-m", "normjit.onnx", self.path("model.onnx"), "-o", self.path("fused.onnx")],
                              capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (0, "{}: 1 of 2 norms\n".format(self.path("fused.onnx")), ""))


class Interface(TestCase):
    def test_the_functions_of_the_interface_are_where_they_should_be(self):
        """Those that stand alone, in the library of the wheel. All others are called by the runs above."""
        found = glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi", "libonnxruntime.so*"))
        if not found:
            self.skipTest("this ONNX Runtime brings no libonnxruntime.so")
        get_base = ctypes.CDLL(found[0]).OrtGetApiBase
        get_base.restype = ctypes.POINTER(ctypes.c_void_p * 2)
        get_api = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p * 300), ctypes.c_uint32)(get_base().contents[0])
        functions = get_api(18).contents
        status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(functions[0])(9, b"a text")
        self.assertEqual(ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(functions[2])(status), b"a text")
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions[93])(status)

    def test_the_library_is_found_or_named(self):
        with unittest.mock.patch.dict(os.environ, {"NORMJIT_LIBRARY": "/nowhere/libnormjit.so"}):
            with self.assertRaisesRegex(ImportError, "/nowhere/libnormjit_onnxruntime.so"):
                normjit.onnx.library()


if __name__ == "__main__":
    if FAKE:
        sys.argv.remove("--fake")
    unittest.main()
