#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of how scripts/bench_onnx.py reports, and of the weights that it makes; they need no GPU, and no ONNX Runtime.

    python3 tests/scripts/bench_onnx_test.py
"""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import bench_onnx  # noqa: E402


class Lines(unittest.TestCase):
    def setUp(self):
        self.line = {"model": "bert", "dtype": "float16", "mode": "plain", "session": "rewritten"}

    def test_a_time(self):
        text = bench_onnx.text_of({**self.line, "ms": 1.5, "of_builtin": 0.9, "difference": 1e-3, "norms_us": 10.0, "adds_us": 2.0,
                                   "kernels_us": 900.0})
        self.assertEqual(" ".join(text.split()), "bert float16 plain rewritten 1.500 ms 0.900 of built-in difference 0.001 "
                         "norms 10.0 us, additions 2.0, all kernels 900.0")

    def test_an_error(self):
        text = bench_onnx.text_of({**self.line, "ms": 1.5, "of_builtin": 0.9, "difference": 1e-3, "error": 2e-4})
        self.assertIn("difference 0.001  error 0.0002", text)

    def test_threads(self):
        text = bench_onnx.text_of({**self.line, "wrong": 1, "runs": 40, "runs_per_second": 99.6})
        self.assertIn("1 of 40 runs wrong, 100 a second", text)

    def test_faults(self):
        for more, fault in (({"difference": 4e-3}, ""), ({"difference": 6e-3}, "results differ by 0.006, allowed is 5e-03"),
                            ({"difference": float("nan")}, "results differ by nan, allowed is 5e-03"),
                            ({"failed": "no memory"}, "no memory"), ({"wrong": 0}, ""), ({"wrong": 2}, "2 runs are wrong")):
            self.assertEqual(bench_onnx.fault_of({**self.line, **more}), fault)

    def test_the_norms_kernels(self):
        for name in ("void onnxruntime::cuda::(anonymous)::cuApplyLayerNorm<__half>", "SkipLayerNormKernelSmall<__half, 768>",
                     "normjit_warp_rows_layernorm_cols_768"):
            self.assertTrue(bench_onnx.NORM_KERNEL.search(name), name)
        self.assertFalse(bench_onnx.NORM_KERNEL.search("ampere_fp16_gemm"))
        self.assertTrue(bench_onnx.ADD_KERNEL.search("_BinaryElementWiseSimple<1, 1, __half, OP_Add>"))
        self.assertFalse(bench_onnx.ADD_KERNEL.search("_BinaryElementWiseSimple<1, 1, __half, OP_Mul>"))


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_it(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = bench_onnx.main(["run", self.folder, *arguments])
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), err.getvalue()

    def test_nothing_is_not_a_success(self):
        status, out, err = self.run_it("--models", "bert", "--dtypes", "float16")
        self.assertEqual((status, err), (1, "nothing was measured\n"))
        self.assertIn("bert float16: not in", out)

    def test_a_model_that_fails_is_told_and_the_others_go_on(self):
        os.mkdir(os.path.join(self.folder, "bert-float16"))
        os.mkdir(os.path.join(self.folder, "vit-float16"))
        right = {"model": "vit", "dtype": "float16", "mode": "plain", "session": "built-in", "difference": 0.0}

        def measure(folder, name, dtype, given):
            if name == "bert":
                raise ValueError("of its own")
            yield right

        path = os.path.join(self.folder, "out.json")
        with unittest.mock.patch.object(bench_onnx, "measure", measure):
            status, _, err = self.run_it("--models", "bert,vit", "--dtypes", "float16", "--json", path)
        self.assertEqual((status, err), (1, "WRONG bert float16: ValueError: of its own\n"))
        with open(path) as file:
            self.assertEqual(json.load(file), {"lines": [right], "faults": ["bert float16: ValueError: of its own"]})

    def test_an_unknown_model(self):
        status, _, err = self.run_it("--models", "bert,t5")
        self.assertEqual(status, 2)
        self.assertIn("t5 is none of bert, bert-dynamic, vit, whisper", err)


class Weights(unittest.TestCase):
    def test_they_are_the_same_each_time(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("no numpy")
        table = {"weights": [{"offset": 0, "elements": 300, "dtype": "float32", "mean": 1.0, "deviation": 0.25},
                             {"offset": 4096, "elements": 300, "dtype": "float16", "mean": 0.0, "deviation": 0.02}]}
        contents = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder:
                bench_onnx.fill(folder, table)
                contents.append(Path(folder, "weights.bin").read_bytes())
        self.assertEqual(contents[0], contents[1])
        self.assertEqual(len(contents[0]), 8192)
        self.assertAlmostEqual(float(np.frombuffer(contents[0], "f4", 300).mean()), 1.0, delta=0.1)
        second = np.frombuffer(contents[0], "f2", 300, 4096).astype("f4")
        self.assertAlmostEqual(float(second.std()), 0.02, delta=0.01)


class InDouble(unittest.TestCase):
    def test_it_computes_the_same(self):
        try:
            import numpy as np
            import onnx
            from onnx import TensorProto, helper, numpy_helper
            from onnx.reference import ReferenceEvaluator
            from onnx_in_double import in_double
        except ImportError:
            self.skipTest("no onnx")
        rng = np.random.default_rng(1)
        weights = [numpy_helper.from_array(rng.standard_normal(8).astype(np.float16), name) for name in ("w", "b")]
        weights.append(numpy_helper.from_array(rng.standard_normal((4, 3, 3)).astype(np.float16), "kernel"))
        weights.append(numpy_helper.from_array(rng.standard_normal(4).astype(np.float16), "added"))
        half = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)
                for name, shape in (("x", [2, 3, 8]), ("y", [2, 4, 4]))]
        nodes = [helper.make_node("LayerNormalization", ["x", "w", "b"], ["n"], epsilon=1e-3),
                 helper.make_node("Gelu", ["n"], ["a"]),
                 helper.make_node("Conv", ["a", "kernel", "added"], ["g"], kernel_shape=[3], strides=[2], pads=[1, 1]),
                 helper.make_node("Cast", ["g"], ["c"], to=TensorProto.FLOAT),
                 helper.make_node("Constant", [], ["two"], value_float=2.0), helper.make_node("Mul", ["c", "two"], ["m"]),
                 helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT16)]
        made = helper.make_model(helper.make_graph(nodes, "graph", half[:1], half[1:], weights), ir_version=10,
                                 opset_imports=[helper.make_opsetid("", 20)])
        x = rng.standard_normal((2, 3, 8)).astype(np.float16)
        wanted = ReferenceEvaluator(made).run(None, {"x": x})[0]
        for narrow, within in (((), 1e-15), (("Erf",), 1e-6)):
            model = onnx.ModelProto.FromString(made.SerializeToString())
            in_double(model, narrow)
            onnx.checker.check_model(model, full_check=True)
            found = ReferenceEvaluator(model).run(None, {"x": x.astype(np.float64)})[0]
            self.assertEqual(found.dtype, np.float64)
            np.testing.assert_allclose(found, wanted, rtol=3e-2, atol=3e-2)
            exact = found if not narrow else exact
            np.testing.assert_allclose(found, exact, rtol=within, atol=within)


if __name__ == "__main__":
    unittest.main()
