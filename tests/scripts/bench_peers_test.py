#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of what scripts/bench_peers.py loads and prints; they need neither PyTorch nor a GPU.

    python3 tests/scripts/bench_peers_test.py
"""
import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import peers  # noqa: E402
import peers_report  # noqa: E402


def spec(norm="rmsnorm", **more):
    return {"norm": norm, "in": "bf16", "out": "bf16", "w": "bf16", "res": "bf16", "offset": 0, "affine_rows": False,
            "inb": False, "round": (), "stats": False, "activation": None, "scale": 1.0, "residual": "", "sum": False,
            "affine": "w", "eps": 1e-5, "cols": 64, "gate": "", "modulation": "", "cf": False, "q": "", "block": 0, "also": "",
            "amax": False, "inverse": False, "upper_bound": False, "scale_format": "f32", "scale_layout": "rows", **more}


class Forms(unittest.TestCase):
    def test_three_norms_have_peers(self):
        self.assertEqual(peers.form_of(spec()), "rms")
        self.assertEqual(peers.form_of(spec(residual="add", sum=True)), "add_rms")
        self.assertEqual(peers.form_of(spec("layernorm", residual="add", sum=True, affine="wb")), "add_layer")

    def test_what_differs_has_none(self):
        for more in ({"offset": 1}, {"round": ("norm",)}, {"res": "f32"}, {"out": "f32"}, {"stats": True}, {"inb": True},
                     {"affine_rows": True}, {"scale": 2.0}, {"affine": ""}, {"residual": "add"},
                     {"residual": "addafter"}, {"activation": abs}, {"gate": "gate"}, {"modulation": "mods"}, {"cf": True}):
            self.assertIsNone(peers.form_of(spec(**more)), more)
        self.assertIsNone(peers.form_of(spec("layernorm", affine="wb")))

    def test_norms_in_8_bits_are_asked_for_apart(self):
        quantized = spec(out="e4m3", q="row")
        self.assertEqual(peers.form_of(quantized), "rms")
        self.assertEqual(peers.form_of(spec("layernorm", affine="wb", out="s8", q="row")), "layer")
        for more in ({"out": "e4m3"}, {"out": "e4m3", "q": "tensor", "also": "bf16"}, {"out": "e4m3", "q": "tensor", "amax": True}):
            self.assertIsNone(peers.form_of(spec(**more)), more)

        class Plain:
            def function(self, form, spec, overlap):
                return form, overlap

        class Both(Plain):
            def quantized(self, form, spec, overlap):
                return form, spec["q"], overlap
        self.assertEqual(peers.function_of(Plain(), spec(), True), ("rms", True))
        self.assertIsNone(peers.function_of(Plain(), quantized, True))
        self.assertIsNone(peers.function_of(Both(), spec(offset=1), True))
        self.assertEqual(peers.function_of(Both(), quantized, False), ("rms", "row", False))


class Loading(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        path, modules = list(sys.path), set(sys.modules)

        def restore():
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                del sys.modules[name]
        self.addCleanup(restore)

    def put(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def load(self, names, **more):
        output = io.StringIO()
        with contextlib.redirect_stderr(output):
            found = peers.load(self.folder, names, **more)
        return found, output.getvalue()

    def test_what_is_missing_is_named_in_one_line(self):
        found, said = self.load(["apex", "quack"])
        self.assertEqual(found, {})
        self.assertEqual(said.count("\n"), 1)
        for word in ("apex (ModuleNotFoundError", "quack (ModuleNotFoundError"):
            self.assertIn(word, said)
        self.assertEqual(self.load(["apex"], quiet=True), ({}, ""))

    def test_a_package_may_lie_in_a_subfolder(self):
        self.put("fa/flash_attn/__init__.py", "")
        self.put("fa/flash_attn/ops/triton/layer_norm.py", "def _layer_norm_fwd(x, w, b, eps, residual, is_rms_norm):\n"
                 "    return ('y', x, w, b, residual, eps, is_rms_norm)\n")
        found, said = self.load(["flash-attn"])
        self.assertEqual(said, "")
        peer = found["flash-attn"]
        self.assertEqual(peer.function("rms", spec(), False)(x=1, weight=2), ("y",))
        self.assertEqual(peer.function("add_rms", spec(), False)(x=1, weight=2, residual=3), ("y", 3))

    def test_forms_that_a_peer_lacks_have_no_function(self):
        self.put("quack/rmsnorm.py", "def rmsnorm_fwd(x, w, residual, eps):\n    return [x, residual, eps]\n")
        self.put("liger_kernel/ops/rms_norm.py", "def rms_norm_forward(x, w, *more):\n    return [x, *more]\n")
        self.put("liger_kernel/ops/fused_add_rms_norm.py", "")
        found, said = self.load(["liger", "quack"])
        self.assertEqual(said, "")
        self.assertIsNone(found["liger"].function("add_layer", spec(), False))
        self.assertEqual(found["liger"].function("rms", spec(), False)(x=5, weight=2), [5])
        self.assertEqual(found["quack"].function("rms", spec(), False)(x=5, weight=2), [5])
        self.assertEqual(found["quack"].function("add_rms", spec(), False)(x=5, weight=2, residual=6), [5, 6])

    def test_a_library_is_looked_for_in_lib(self):
        self.assertIsNone(peers.library(None, "te_norm.so"))
        self.assertIsNone(peers.library(self.folder, "te_norm.so"))
        self.put("lib/te_norm.so", "no library")
        self.assertEqual(peers.library(self.folder, "te_norm.so"), self.folder / "lib" / "te_norm.so")
        self.assertIn("te (OSError", self.load(["te"])[1])


def entry(**more):
    return {"regime": "fused", "spec": "rmsnorm/cols=4096/bf16/eps=1e-05/add/sum/w", "rows": 5120, "overlap": False,
            "copy_us": 38.0, "normjit_us": 40.0, "peers": {"eager": 60.0, "liger": 42.0, "vllm": None}, "best_peer": "liger",
            "best_peer_over_normjit": 1.05, "met": True, **more}


class Report(unittest.TestCase):
    def test_a_row_has_every_peer(self):
        self.assertEqual(peers_report.line_of(entry()), "| fused | `rmsnorm/cols=4096/bf16/eps=1e-05/add/sum/w` | 5120 | 38.00"
                         " | 40.00 | 0.950 | 60.00 | 42.00 | - | 1.050 | yes |")
        failed = entry(normjit_us=None, peers={}, met=None)
        del failed["best_peer"], failed["best_peer_over_normjit"], failed["met"]
        self.assertEqual(peers_report.line_of(failed).split(" | ")[-5:], ["38.00", "-", "-", "-", "- |"])

    def test_a_compact_line_has_the_fastest_peer(self):
        self.assertEqual(peers_report.compact_line(entry(overlap=True)).split(),
                         "5120 x rmsnorm/cols=4096/bf16/add/sum/w overlapped 0.95 of copy 40.00 us liger 42.00 1.05".split())
        without = entry(normjit_us=None)
        del without["best_peer"]
        self.assertTrue(peers_report.compact_line(without).endswith("- us  no peer"))

    def test_fused_norms_are_summed_up_apart(self):
        rms = entry(spec="rmsnorm/cols=64/bf16/eps=1e-05/w", best_peer_over_normjit=0.5, met=False)
        other = entry(regime="ordinary", best_peer_over_normjit=4.0)
        lines = peers_report.summary([entry(), rms, entry(best_peer_over_normjit=2.1), other]).split("\n")
        self.assertEqual(lines, [
            "fused rmsnorm add sum: 2 of 2 met, best peer / normjit: worst 1.050, geometric mean 1.485",
            "fused rmsnorm: 0 of 1 met, best peer / normjit: worst 0.500, geometric mean 0.500",
            "ordinary: 1 of 1 met, best peer / normjit: worst 4.000, geometric mean 4.000"])
        narrow = entry(regime="quantized", spec="rmsnorm/cols=64/bf16/out=e4m3/eps=1e-05/add/sum/w/q=128:cols")
        more = entry(regime="quantized", spec="rmsnorm/cols=64/bf16/out=e4m3/eps=1e-05/w/q=tensor/also=bf16/amax")
        self.assertEqual([line.split(": 1 of")[0] for line in peers_report.summary([narrow, more]).split("\n")],
                         ["quantized rmsnorm out=e4m3 add sum q=128:cols", "quantized rmsnorm out=e4m3 q=tensor also=bf16 amax"])


if __name__ == "__main__":
    unittest.main()
