#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/compare_with_pytorch.py; they need PyTorch and NumPy, and no GPU.

    python3 tests/scripts/compare_with_pytorch_test.py
"""
import contextlib
import io
import random
import sys
import types
import unittest
from pathlib import Path

try:
    import numpy
    import torch
except ImportError as error:
    print(f"Skipped: no {error.name} for scripts/compare_with_pytorch.py")
    sys.exit(0)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import compare_with_pytorch as compare  # noqa: E402


class Specs(unittest.TestCase):
    def test_every_field_is_read(self):
        spec = compare.fields("rmsnorm/cols=4096/bf16/out=f32/w=f32/res=f32/eps=1e-06/inb/add/sum/round=sum+norm/wb1:rows/silu"
                              "/stats")
        expected = {"norm": "rmsnorm", "cols": 4096, "in": "bf16", "out": "f32", "w": "f32", "res": "f32", "eps": 1e-6,
                    "inb": True, "residual": "add", "sum": True, "round": ("sum", "norm"), "affine": "wb", "offset": 1,
                    "affine_rows": True, "stats": True, "scale": 1.0, "activation": compare.ACTIVATIONS["silu"]}
        expected.update(gate="", gate_function="", gate_table=False, modulation="", plain_modulation=False,
                        modulation_table=False, mod="bf16", cf=False)
        quantization = {"q": "", "block": 0, "scale_format": "f32", "scale_layout": "rows", "inverse": False, "upper_bound": False,
                        "also": "", "amax": False}
        self.assertEqual(spec, {**expected, **quantization})
        for text, changed in (("q=tensor:inv", {"q": "tensor", "inverse": True}), ("q=row:ub", {"q": "row", "upper_bound": True}),
                              ("q=64", {"q": "block", "block": 64}),
                              ("q=128:p2:cols", {"q": "block", "block": 128, "scale_format": "p2", "scale_layout": "cols"}),
                              ("q=32:e8m0:sw/also=bf16/amax", {"q": "block", "block": 32, "scale_format": "e8m0",
                                                               "scale_layout": "sw", "also": "bf16", "amax": True})):
            spec = compare.fields("rmsnorm/cols=128/bf16/out=e4m3/w/" + text)
            self.assertEqual({key: spec[key] for key in quantization}, {**quantization, **changed}, text)
        spec = compare.fields("layernorm/cols=64/bf16/mod=f32/gate:silu:table/add/sum/mods0:table")
        self.assertEqual([spec[key] for key in ("gate", "gate_function", "gate_table", "modulation", "plain_modulation",
                                                "modulation_table", "mod")], ["gate", "silu", True, "mods", True, True, "f32"])
        self.assertEqual(sorted(compare.inputs_of(spec, 6, sample=3).items())[:2],
                         [("gate", ((2, 64), torch.float32)), ("gate_table", ((64,), torch.bfloat16))])

        plain = compare.fields("layernorm/cols=64/f16/w/scale=0.5")
        self.assertEqual([plain[key] for key in ("out", "w", "res", "affine", "offset", "residual", "round", "scale")],
                         ["f16", "f16", "f16", "w", 0, "", (), 0.5])
        with self.assertRaises(ValueError):
            compare.fields("layernorm/cols=64/f16/novel")

    def test_rows_of_samples_and_planes_are_those_of_the_formula(self):
        spec = compare.fields("layernorm/cols=8/f64/gate/add/sum/mod")
        given = {name: torch.randn(*shape, dtype=dtype) for name, (shape, dtype) in compare.inputs_of(spec, 6, sample=3).items()}
        s = given["x"] * given["gate"].repeat_interleave(3, 0) + given["residual"]
        y = torch.nn.functional.layer_norm(s, (8,)) * (1 + given["mod_scale"].repeat_interleave(3, 0))
        found = compare.reference(spec, given, torch.float64)
        torch.testing.assert_close(found["y"], y + given["mod_shift"].repeat_interleave(3, 0))
        torch.testing.assert_close(found["sum"], s)
        spec = compare.fields("layernorm/cols=8/f64/w/cf")
        given = {name: torch.randn(*shape, dtype=dtype) for name, (shape, dtype) in compare.inputs_of(spec, 10, plane=5).items()}
        self.assertEqual(given["x"].shape, (2, 8, 5))
        y = torch.nn.functional.layer_norm(given["x"].transpose(1, 2), (8,), given["weight"]).transpose(1, 2)
        torch.testing.assert_close(compare.reference(spec, given, torch.float64)["y"], y)

    def test_inputs_have_the_shapes_of_their_operands(self):
        shapes = compare.inputs_of(compare.fields("rmsnorm/cols=8/bf16/w=f32/res=f32/inb/addafter/wb:rows"), 3)
        f32 = torch.float32
        self.assertEqual(shapes, {"x": ((3, 8), torch.bfloat16), "in_bias": ((8,), f32), "residual": ((3, 8), f32),
                                  "weight": ((3, 8), f32), "bias": ((3, 8), f32)})

    def test_outputs_have_the_shapes_of_their_operands(self):
        def shapes(text, rows=5):
            return {name: (tuple(shape), dtype) for name, (shape, dtype) in compare.outputs_of(compare.fields(text), rows).items()}
        f32, e4m3, matrix = torch.float32, torch.float8_e4m3fn, (5, 384)
        head = "rmsnorm/cols=384/bf16/"
        self.assertEqual(shapes("layernorm/cols=384/bf16/out=f32/add/sum/stats"),
                         {"y": (matrix, f32), "sum": (matrix, torch.bfloat16), "mean": ((5,), f32), "rstd": ((5,), f32)})
        self.assertEqual(shapes(head + "out=s8/q=row"), {"y": (matrix, torch.int8), "row_scale": ((5,), f32)})
        self.assertEqual(shapes(head + "out=e4m3/q=tensor/also=f16/amax"),
                         {"y": (matrix, e4m3), "also": (matrix, torch.float16), "amax": ((), f32)})
        for text, shape, dtype in (("q=128", (5, 3), f32), ("q=128:cols", (3, 8), f32), ("q=128:e8m0:cols4", (1, 8, 4), torch.uint8),
                                   ("q=32:e8m0:sw", (1, 3, 512), torch.uint8)):
            self.assertEqual(shapes(head + "out=e4m3/" + text), {"y": (matrix, e4m3), "block_scale": (shape, dtype)})
        self.assertEqual(shapes(head + "out=e2m1/q=16:e4m3:sw/also=bf16"), {
            "y": ((5, 192), torch.uint8), "also": (matrix, torch.bfloat16), "block_scale": ((1, 6, 512), torch.uint8)})

    def test_random_specs_are_read_back(self):
        dice = random.Random(1)
        for project, norm, rest, _ in compare.PROJECTS:
            for _ in range(20):
                text, rows = compare.random_use(norm, rest, dice)
                spec = compare.fields(text)
                self.assertGreaterEqual(spec["cols"], 16, project)
                self.assertEqual(spec["cols"] % max(1, spec["block"]), 0, project)
                self.assertGreaterEqual(rows, 1)


class Formulas(unittest.TestCase):
    def inputs(self, text, rows=5):
        return compare.make(compare.fields(text), rows, 7, "cpu", torch.randn)

    def test_the_reference_follows_the_algebra(self):
        text = "rmsnorm/cols=40/f64/eps=1e-05/inb/add/sum/w1"
        t = self.inputs(text)
        found = compare.reference(compare.fields(text), t, torch.float64)
        s = t["x"] + t["in_bias"] + t["residual"]
        self.assertTrue(torch.equal(found["sum"], s))
        want = s / (s.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * (1 + t["weight"])
        self.assertLess((found["y"] - want).abs().max(), 1e-13)
        behind = "layernorm/cols=40/f64/addafter/wb1:rows"
        t = self.inputs(behind)
        centered = t["x"] - t["x"].mean(1, keepdim=True)
        want = t["residual"] + centered / (centered.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * (1 + t["weight"]) + t["bias"]
        self.assertLess((compare.reference(compare.fields(behind), t, torch.float64)["y"] - want).abs().max(), 1e-13)

    def test_each_project_computes_its_spec(self):
        for project, norm, rest, formula in compare.PROJECTS:
            for dtype in ("bf16", "f16", "f32"):
                spec = compare.fields(f"{norm}/cols=384/{dtype}/eps=1e-05/{rest}")
                t = compare.make(spec, 9, 3, "cpu", torch.randn)
                want, found = formula(t, 1e-5), compare.reference(spec, t, torch.float32)
                self.assertEqual(set(want), set(found), project)
                found["y"] = found["y"].to(want["y"].dtype)
                compared, wrong = compare.compare_outputs(spec, found, want, 9)
                self.assertEqual(wrong, [], f"{project} {dtype}")
                self.assertEqual("scale" in compared, spec["q"] in ("row", "block"))

    def test_roundings_make_a_difference(self):
        once, twice = (dict((p[0], p[3]) for p in compare.PROJECTS)[name] for name in ("FlashInfer rmsnorm", "HF Llama"))
        t = self.inputs("rmsnorm/cols=512/bf16/w")
        self.assertFalse(torch.equal(once(t, 1e-5)["y"], twice(t, 1e-5)["y"]))

    def test_ulps_are_steps_of_the_type(self):
        want = torch.tensor([1.0, -1.5, 100.0], dtype=torch.bfloat16)
        self.assertEqual(compare.ulps(want, want), (0.0, 3))
        got = want.clone()
        got[1] = -1.5078125  # the next one
        self.assertEqual(compare.ulps(got, want), (1.0, 2))
        got[0] = float("nan")
        self.assertEqual(compare.ulps(got, want)[0], float("inf"))


class Running(unittest.TestCase):
    """A tool that computes by reference(), or by what `spoil` makes of it."""

    def tool(self, spoil=lambda name, tensor: tensor):
        def run(command, **_):
            options = dict(zip(command[3::2], command[4::2]))
            spec, rows = compare.fields(command[2]), int(options["--rows"])
            t = {name: compare.load(options["--" + name.replace("_", "-")], dtype).reshape(shape)
                 for name, (shape, dtype) in compare.inputs_of(spec, rows).items()}
            found = compare.reference(spec, t, torch.float32)
            outputs = compare.outputs_of(spec, rows)
            self.assertEqual(set(outputs), set(found))
            for name, (_, dtype) in outputs.items():
                option = "--out" if name == "y" else "--" + name.replace("_", "-") + "-out"
                compare.save(options[option], spoil(name, found[name].to(dtype)))
            return types.SimpleNamespace(returncode=0, stderr="")
        return run

    def check(self, run):
        original, compare.run_tool.__defaults__ = compare.run_tool.__defaults__, (run,)
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                return compare.check_projects("normjit", 2, 11, "cpu"), output.getvalue()
        finally:
            compare.run_tool.__defaults__ = original

    def test_the_table_has_every_project(self):
        failures, text = self.check(self.tool())
        self.assertEqual(failures, 0, text)
        for project, *_ in compare.PROJECTS:
            self.assertIn(project, text)

    def test_a_wrong_output_is_found(self):
        def spoiled(wrong):
            def spoil(name, tensor):
                if name != wrong:
                    return tensor
                if tensor.element_size() == 1:  # a step up of every number
                    return (tensor.view(torch.uint8) ^ 1).view(tensor.dtype)
                return tensor * 1.05
            return spoil

        def with_output(name):
            return sum(name in compare.outputs_of(compare.fields(f"{norm}/cols=128/bf16/{rest}"), 1)
                       for _, norm, rest, _ in compare.PROJECTS)
        for name in ("y", "sum", "row_scale", "block_scale", "also", "amax"):
            self.assertGreater(with_output(name), 0)
            self.assertEqual(self.check(self.tool(spoiled(name)))[0], 2 * with_output(name), name)

    def test_bytes_beyond_the_scales_are_found(self):
        def spoil(name, tensor):
            if name == "block_scale" and tensor.shape[-1] == 512:
                tensor[..., -1] = 1  # of row 127 of a tile, and no spec here has as many
            return tensor
        tiled = sum(":sw" in rest for _, _, rest, _ in compare.PROJECTS)
        failures, text = self.check(self.tool(spoil))
        self.assertEqual((failures, text.count("beyond the scales")), (2 * tiled, 2 * tiled), text)

    def test_a_tool_that_fails_is_reported(self):
        failures, text = self.check(lambda *_, **__: types.SimpleNamespace(returncode=2, stderr="no such spec"))
        self.assertEqual(failures, 2 * len(compare.PROJECTS))
        self.assertIn("exited with 2: no such spec", text)


if __name__ == "__main__":
    unittest.main()
