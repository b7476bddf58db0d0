#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/report.py without a browser: what it reads, what it compares, and what it says about other files."""
import contextlib
import importlib.util
import io
import lzma
import os
import subprocess
import sys
import unittest

import support

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
MEASURED = os.path.join(SCRIPTS, "..", "src", "normjit", "plan", "measured", "h100.txt.xz")
sys.path.insert(0, SCRIPTS)
import report  # noqa: E402

TUNE = """# drawn
gpu NVIDIA X (sm_90, 2 SMs)
seed 7
layer 0 rmsnorm/cols=96/f16/eps=1e-05/add/w/gelu rows=3 sample=1 plane=0 align=8 copy=2.500
block_row 32 32 8 1 1 1 : 5.000 40 0
split_row 256 256 8 4 1 2 4 cluster 1 3 : 4.000 -1 -1
# said : by hand
end
layer 1 layernorm/cols=8/f32/eps=1e-05/wb/cf rows=64 sample=1 plane=16 align=4 copy=1.000
channels_first 64 1 4 2 1 8 : 1.250 20 8
end
seed 8
layer 0 layernorm_bwd/cols=4/f64/eps=1e-05/w rows=1 sample=1 plane=0 align=2 copy=1.000
"""  # the last one has no end: it was being written


def result(spec, rows, us, **more):
    return {"spec": spec, "rows": rows, "device": "NVIDIA Y", "overlap": False, "sample_rows": 1, "plane": 0,
            "plan": "block_row threads=32 threads_per_row=32 vector=8 per_thread=1 group_rows=1 blocks_per_sm=1 stages=2",
            "kernel": {"median_us": us}, "copy": {"median_us": 2}, **more}


class Report(support.InAFolder):
    def refused(self, text, *arguments):
        page, said = os.path.join(self.folder, "page.html"), io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(report.main([*arguments, "-o", page]), 2)
        self.assertRegex(said.getvalue(), r"\Areport\.py: [^\n]+\n\Z")  # one line
        self.assertIn(text, said.getvalue())
        self.assertFalse(os.path.exists(page))

    def content(self, *paths, curve=()):
        sources = [report.read(path) for path in paths]
        return report.content_of(sources, [{} for _ in sources], list(curve))

    def test_layers_of_tune(self):
        source = report.read(self.put("layers.txt", TUNE))
        self.assertEqual((source.gpu, source.left_out), ("NVIDIA X (sm_90, 2 SMs)", 0))
        first, second = source.layers
        self.assertEqual((first.name, first.rows, first.align, first.copy, second.plane), ("7/0", 3, 8, 2.5, 16))
        self.assertEqual(first.plans[1], report.Timed(("split_row", "256", "256", "8", "4", "1", "2", "4", "cluster", "1", "3", "0"), 4.0))
        self.assertEqual((first.plans[0].registers, first.plans[0].spill_bytes), (40, 0))

    def test_results_of_bench_and_of_the_suite(self):
        cases = [result("rmsnorm/cols=96/f16/eps=1e-05/w", 3, 4.5), result("rmsnorm/cols=64/f16/eps=1e-05/w", 5, 1, overlap=True)]
        source = report.read(self.put("bench.json", {"results": cases}))
        self.assertEqual((source.gpu, len(source.layers), source.left_out), ("NVIDIA Y", 2, 0))
        self.assertEqual(source.layers[0].plans, [report.Timed(("block_row", "32", "32", "8", "1", "1", "1", "1", "none", "0", "2", "0"), 4.5)])
        self.assertTrue(source.layers[1].overlap)
        suite = report.read(self.put("suite.json", {"device": "NVIDIA Z", "cases": [cases[0], {"spec": "x", "error": "no room"}]}))
        self.assertEqual((suite.gpu, len(suite.layers), suite.left_out), ("NVIDIA Z", 1, 1))

    def test_what_filters_know_of_a_layer(self):
        layers = self.content(self.put("layers.txt", TUNE + "block_row 1 1 1 1 1 1 : 1 1 1\nend\n"))["layers"]
        self.assertEqual(layers["family"], ["forward", "channels first", "gradients"])
        self.assertEqual(layers["dtype"], ["f16", "f32", "f64"])
        self.assertEqual(layers["bytes"], [3 * 96 * 2, 64 * 8 * 4, 4 * 8])
        self.assertEqual(layers["operations"], [["rmsnorm", "residual", "weight", "activation"], ["layernorm", "weight and bias"],
                                                ["layernorm", "weight"]])

    def test_data_may_be_compressed_with_xz(self):
        plain = self.content(self.put("a.txt", TUNE))
        path = os.path.join(self.folder, "b.txt.xz")
        for part in (TUNE[:TUNE.index("seed 8")], TUNE[TUNE.index("seed 8"):]):  # parts joined by cat
            with open(path, "ab") as file:
                file.write(lzma.compress(part.encode()))
        self.assertEqual(self.content(path)["layers"], plain["layers"])
        self.refused("c.txt.xz is no file of normjit tune", self.put("c.txt.xz", TUNE))

    def test_every_measured_layer_of_the_repository_is_understood(self):
        content = self.content(MEASURED)
        with lzma.open(MEASURED, "rt") as file:
            lines = [line.split() for line in file]
        self.assertEqual(len(content["layers"]["spec"]), sum(line[0] == "end" for line in lines))
        plans = [line for line in lines if ":" in line]
        self.assertEqual([us for layer in content["layers"]["us"] for us in layer], [float(line[-3]) for line in plans])
        texts = [content["plans"][plan] for layer in content["layers"]["plans"] for plan in layer]
        for text, line in zip(texts, plans):
            self.assertEqual(text.split(), line[:-4])

    def test_a_layer_is_compared_with_itself(self):
        base = self.put("a.txt", TUNE)
        other = TUNE.replace("rows=64", "rows=65").replace("5.000", "6.000")  # one in common, measured twice
        pairs = self.content(base, self.put("b.txt", other + "end\n" + other), self.put("c.json", {"results": [
            result("rmsnorm/cols=8/f16/eps=1e-05/w", 3, 1), result("rmsnorm/cols=96/f16/eps=1e-05/add/w/gelu", 3, 1),
            result("rmsnorm/cols=96/f16/eps=1e-05/add/w/gelu", 3, 1, overlap=True)]}))["pairs"]
        self.assertEqual(pairs, [[(0, 2)], [(0, 7)]])
        self.refused("have no layer in common", base, self.put("d.txt", TUNE.replace("align=8", "align=1").replace("rows=64", "rows=1")))

    def test_names_are_as_long_as_they_must_be(self):
        self.assertEqual(report.names_of(["x/a.txt", "y/b.txt"]), ["a.txt", "b.txt"])
        self.assertEqual(report.names_of(["/x/1/a.txt", "/x/2/a.txt"]), ["1/a.txt", "2/a.txt"])
        self.assertEqual(report.names_of(["x/a.txt", "a.txt"]), ["x/a.txt", "a.txt"])
        path = self.put("a.txt", TUNE)
        self.refused("a.txt is given twice", path, path)

    def test_a_learning_curve(self):
        path = self.put("curve.txt", "forward: 10 layers: mean 4.0 %, median 1.0 %, p95 9.5 %, worst 40 %\n"
                        "channels_first: 20 layers: mean 3.0 %, median 0.5 %, p95 8.0 %, worst 30 %\n")
        points = report.read_curve(path)
        self.assertEqual([(point["family"], point["layers"], point["p95"]) for point in points], [("forward", 10, 9.5), ("channels first", 20, 8.0)])
        self.refused("no line of scripts/fit_plans.py --curve", self.put("a.txt", TUNE), "--curve", self.put("no.txt", "nothing"))

    def test_data_cannot_end_the_script_that_holds_it(self):
        page = report.page_of({"sources": "</script><!--"}, "plotly()")
        self.assertEqual(page.count("</script>"), 3)
        self.assertIn('<script>plotly()</script>', page)
        self.assertIn('{"sources":"\\u003c/script>\\u003c!--"}', page)

    def test_features_are_those_of_the_worse_choices(self):
        program = self.put("bench", "#!/bin/sh\ncat <<END\nmicroseconds,ptxas_spill_bytes,waves,idle\n5,0,1,0.5\n4,0,3,0.5\n1.25,0,1,1\nEND\n")
        os.chmod(program, 0o755)
        self.assertEqual(report.features_of(program, report.read(self.put("a.txt", TUNE))), {0: {"waves": [1.0, 3.0]}})
        self.refused("failed", self.put("a.txt", TUNE), "--bench", os.path.join(self.folder, "absent"))

    def test_other_files_are_named(self):
        for name, content, text in (
                ("empty", "", "has no measured layer"), ("prose", "Dear reader,\n", "line 1 is not understood: 'Dear reader,'"),
                ("comment", "# only\n", "has no measured layer"), ("binary", b"\x7fELF\xff\xfe", "is no file of"),
                ("broken", "{", "is no file of"), ("startup", {"results": [{"name": "x"}]}, "KeyError"), ("list", [1], "is no file of"),
                ("number", {"cases": 3}, "is no file of"), ("none", {"results": []}, "has no measured layer"),
                ("spec", {"results": [result("batchnorm/cols=8/f16", 1, 1)]}, "no layer: 1 rows of batchnorm"),
                ("time", {"results": [result("rmsnorm/cols=8/f16/eps=1e-05", 1, -1)]}, "-1 is no time"),
                ("words", TUNE.replace("-1 -1", "-1"), "line 6 is not understood"), ("copy", TUNE.replace("copy=2.500", "copy=nan"), "line 4 is not understood"),
                ("outside", TUNE.replace("layer 0", "# 0"), "line 5 is not understood")):
            with self.subTest(name):
                self.refused(text, self.put(name, content))
        self.refused("No such file", os.path.join(self.folder, "absent"))

    def test_the_command_line(self):
        def run(*arguments):
            return subprocess.run([sys.executable, os.path.join(SCRIPTS, "report.py"), *arguments], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, universal_newlines=True, check=False)
        self.assertEqual(run().returncode, 2)
        self.assertEqual(run(os.path.join(self.folder, "absent")).returncode, 2)
        self.assertIn("DATA are files of", run("--help").stdout)

    @unittest.skipIf(importlib.util.find_spec("plotly"), "plotly is here")
    def test_says_what_is_missing(self):
        self.refused("pip install plotly", self.put("a.txt", TUNE))


if __name__ == "__main__":
    unittest.main()
