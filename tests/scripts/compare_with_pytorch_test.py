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
        self.assertEqual(spec, expected)
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

    def test_random_specs_are_read_back(self):
        dice = random.Random(1)
        for project, norm, rest, _ in compare.PROJECTS:
            for _ in range(20):
                text, rows = compare.random_use(norm, rest, dice)
                self.assertGreaterEqual(compare.fields(text)["cols"], 16, project)
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
                spec = compare.fields(f"{norm}/cols=96/{dtype}/eps=1e-05/{rest}")
                t = compare.make(spec, 9, 3, "cpu", torch.randn)
                want, found = formula(t, 1e-5), compare.reference(spec, t, torch.float32)
                self.assertEqual(set(want), set(found), project)
                off, _ = compare.ulps(found["y"].to(want["y"].dtype), want["y"])
                self.assertLessEqual(off, compare.allowed_ulps(spec), f"{project} {dtype}")
                if "sum" in want:
                    self.assertTrue(torch.equal(want["sum"], found["sum"]), project)

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
            for name, option in (("y", "--out"), ("sum", "--sum-out")):
                self.assertEqual(option in options, name in found)
                if name in found:
                    dtype = compare.TYPES[spec["out" if name == "y" else "res"]]
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

    def test_a_wrong_sum_or_result_is_found(self):
        def one_off(wrong):
            def spoil(name, tensor):
                return tensor * 1.05 if name == wrong else tensor
            return spoil
        self.assertEqual(self.check(self.tool(one_off("y")))[0], 2 * len(compare.PROJECTS))
        sums = sum("sum" in rest.split("/") for _, _, rest, _ in compare.PROJECTS)
        self.assertEqual(self.check(self.tool(one_off("sum")))[0], 2 * sums)

    def test_a_tool_that_fails_is_reported(self):
        failures, text = self.check(lambda *_, **__: types.SimpleNamespace(returncode=2, stderr="no such spec"))
        self.assertEqual(failures, 2 * len(compare.PROJECTS))
        self.assertIn("exited with 2: no such spec", text)


if __name__ == "__main__":
    unittest.main()
