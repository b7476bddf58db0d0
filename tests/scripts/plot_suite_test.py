#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/plot_suite.py: which cases are drawn, and what it says about other files."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
sys.path.insert(0, SCRIPTS)
import plot_suite  # noqa: E402

WITHOUT_MATPLOTLIB = importlib.util.find_spec("matplotlib") is None


def case(layer, bytes=100_000_000, **more):
    return {"spec": "layernorm/cols=" + layer, "rows": 1, "bytes": bytes, **more}


class PlotSuite(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def put(self, name, content):
        with open(self.path(name), "w") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return self.path(name)

    def suite(self, cases):
        return self.put("suite.json", {"device": "NVIDIA H200", "driver": "580.1", "date": "2026-01-31", "cases": cases})

    def run_script(self, *arguments):
        done = subprocess.run([sys.executable, os.path.join(SCRIPTS, "plot_suite.py"), *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, check=False)
        self.assertNotIn("Traceback", done.stderr)
        return done

    def cases(self, cases):
        return plot_suite.cases_of(self.suite(cases), "normjit-bench suite")[1]

    def test_a_dtype_has_its_large_plain_cases(self):
        lines = plot_suite.lines_of_dtypes(self.cases([
            case("1024/bf16/eps=1e-05/wb", fraction_of_copy=0.9), case("1023/bf16/eps=1e-05/wb", fraction_of_copy=0.8),
            case("1024/f32/eps=1e-05/wb", fraction_of_copy=0.7), case("2048/f32/eps=1e-05/wb", error="no room"),
            case("1024/f32/eps=1e-05/wb", 64_000_000, fraction_of_copy=0.1), case("1024/f32/eps=1e-05/w", fraction_of_copy=0.1),
            case("1024/f32/eps=1e-05/wb/gelu", fraction_of_copy=0.1), case("1024/f32/out=f16/eps=1e-05/wb", fraction_of_copy=0.1),
            case("1024/f32/eps=1e-06/wb", fraction_of_copy=0.1)]))
        self.assertEqual(lines, {"bf16": [(1024, 0.9), (1023, 0.8)], "f16": [], "f32": [(1024, 0.7)], "f64": []})
        self.assertTrue(plot_suite.is_odd("bf16", 1023))
        self.assertFalse(plot_suite.is_odd("bf16", 1024))

    def test_peers_are_lines_of_bf16(self):
        lines = plot_suite.lines_of_peers(self.cases([
            case("1024/f32/eps=1e-05/wb", copy_us=50, peers={"eager": 60}),
            case("1023/bf16/eps=1e-05/wb", copy_us=50, peers={"eager": 60}),
            case("1024/bf16/eps=1e-05/wb", copy_us=50, peers={"eager": 100, "triton": None}),
            case("2048/bf16/eps=1e-05/wb", copy_us=50, peers={"eager": 200, "triton": 50})]))
        self.assertEqual(lines, {"eager": [(1024, 0.5), (2048, 0.25)], "triton": [(2048, 1.0)]})

    def test_a_line_goes_through_the_lowest_point_of_each_width(self):
        self.assertEqual(plot_suite.lowest([(256, 0.7), (64, 0.5), (64, 0.9)]), ([64, 256], [0.5, 0.7]))

    def test_other_files_are_named(self):
        for content in ("", "no JSON", "{}", "[1]", {"cases": [3]}):
            done = self.run_script(self.put("suite.json", content), "--output", self.path("plot.svg"))
            self.assertEqual(done.returncode, 2)
        self.assertIn("no case of", self.run_script(self.suite([]), "--output", self.path("plot.svg")).stderr)
        self.assertEqual(self.run_script(self.path("absent.json"), "--output", self.path("plot.svg")).returncode, 2)

    @unittest.skipIf(WITHOUT_MATPLOTLIB, "no matplotlib")
    def test_draws_the_same_bytes_each_time(self):
        suite = self.suite([case("1024/bf16/eps=1e-05/wb", fraction_of_copy=0.9), case("1023/bf16/eps=1e-05/wb", fraction_of_copy=0.8)])
        peers = self.put("peers.json", {"cases": [case("1024/bf16/eps=1e-05/wb", copy_us=50, peers={"eager": 100})]})
        pictures = []
        for name in ("a.svg", "b.svg"):
            self.assertEqual(self.run_script(suite, "--peers", peers, "--output", self.path(name)).stderr, "")
            with open(self.path(name)) as file:
                pictures.append(file.read())
        self.assertEqual(*pictures)
        for text in ("NVIDIA H200", "bf16", "eager, bf16", "odd widths"):
            self.assertIn(text, pictures[0])

    @unittest.skipUnless(WITHOUT_MATPLOTLIB, "matplotlib is here")
    def test_says_what_is_missing(self):
        done = self.run_script(self.suite([case("1024/bf16/eps=1e-05/wb", fraction_of_copy=0.9)]), "--output", self.path("plot.svg"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("pip install matplotlib", done.stderr)


if __name__ == "__main__":
    unittest.main()
