#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of how scripts/bench_torch.py reports; they need neither PyTorch nor a GPU.

    python3 tests/scripts/bench_torch_test.py
"""
import json
import os
import signal
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import bench_report  # noqa: E402
import bench_torch  # noqa: E402


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "out.json")
        self.report = bench_torch.new_report(self.path, torch="0")
        self.check = {"model": "bert", "dtype": "float32", "replaced": 9, "left": 0, "distance": {"eager": 1e-7},
                      "errors": {}}
        self.report["checks"].append(self.check)

    def faults(self):
        return list(bench_torch.faults(self.report))

    def test_what_is_right_is_no_fault(self):
        self.report["examples"].append({"name": "one", "difference": 1e-6})
        self.assertEqual(self.faults(), [])

    def test_each_fault_has_a_sentence(self):
        self.check.update(distance={"eager": float("nan"), "graph": 2e-5}, errors={"compile": "RuntimeError: no"}, left=1)
        self.report["examples"].append({"name": "one", "difference": float("nan")})
        self.report["times"].append({"model": "bert", "dtype": "float32", "mode": "eager", "error": "late"})
        self.assertEqual(self.faults(), [
            "one: outputs differ by nan, allowed is 1e-05", "bert float32 compile: RuntimeError: no",
            "bert float32 eager: outputs differ by nan, allowed is 1e-05",
            "bert float32 graph: outputs differ by 2e-05, allowed is 1e-05",
            "bert float32: 9 norms were replaced and 1 were not", "time of bert float32 eager: late"])

    def test_a_model_without_replacements_is_wrong(self):
        self.check["replaced"] = 0
        self.assertEqual(self.faults(), ["bert float32: 0 norms were replaced and 0 were not"])

    def test_a_failed_step_loses_nothing(self):
        with self.report.step("host"):
            self.report["host_us"]["module"] = [1.0, 2.0]
            raise ValueError("a | bar")
        with open(self.path) as file:
            stored = json.load(file)
        self.assertEqual(stored["host_us"], {"module": [1.0, 2.0]})
        self.assertRegex(stored["failed"][0], r"(?s)^host: Traceback.*ValueError: a \| bar")
        self.assertIn("FAILED host: Traceback", bench_torch.remarks(self.report))

    def test_the_end_of_time_is_no_failure(self):
        self.addCleanup(setattr, bench_report.OutOfTime, "due", False)
        with self.assertRaises(bench_report.OutOfTime), self.report.step("graph"):
            bench_report.OutOfTime.due = True
            raise ValueError("what the end of a capture says in its place")
        self.assertEqual(self.report["failed"], [])

    def test_who_is_told_to_end_stores_what_there_is(self):
        for number in (signal.SIGALRM, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.addCleanup(setattr, bench_report.OutOfTime, "due", False)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        with self.report.time_limit(60, left_out="the rest"), self.report.step("host"):
            self.report["host_us"]["module"] = [1.0, 2.0]
            os.kill(os.getpid(), signal.SIGTERM)
            self.fail("goes on")
        with open(self.path) as file:
            stored = json.load(file)
        self.assertEqual((stored["left_out"], stored["failed"]), (["the rest"], []))
        self.assertEqual(stored["host_us"], {"module": [1.0, 2.0]})

    def test_training_steps_are_compared_run_by_run(self):
        self.report["training"] += [{"rows": 256, "columns": 768, "us": [[99.0, 100.0, 120.0], [100.0, 100.0, 100.0]]},
                                    {"rows": 4096, "columns": 768, "us": [[99.0], []]}]
        table = bench_torch.table(self.report)
        self.assertIn("| 256 x 768 | 100.0 | 100.0 | 1.000 | 0.990 1.000 1.200 |", table)
        self.assertIn("| 4096 x 768 | 99.0 | nan | nan |  |", table)

    def test_a_row_that_ended_early_keeps_what_it_has(self):
        self.report["times"].append({"model": "bert", "dtype": "float32", "mode": "graph", "latency_ms": [1.0, 2.0],
                                     "samples_per_s": [3.0], "error": "a | bar"})
        self.assertIn("| bert | float32 | graph | 1.000 | 2.000 | 3 | error | - |  |", bench_torch.table(self.report))

    def test_the_gain_is_the_median_of_the_runs(self):
        row = {"model": "dit", "dtype": "bfloat16", "mode": "compile", "samples_per_s": [100.0, 120.0], "ratios": [1.3, 1.1, 1.2]}
        self.assertEqual(bench_torch.line_of(row), "| dit | bfloat16 | compile | - | - | 100 | 120 | 1.200 | 1.300 1.100 1.200 |")


if __name__ == "__main__":
    unittest.main()
