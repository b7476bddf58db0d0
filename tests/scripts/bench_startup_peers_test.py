#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/bench_startup_peers.py: with stand-ins for normjit, CuPy and Triton, which need no GPU.

    python3 tests/scripts/bench_startup_peers_test.py
"""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_startup_peers.py"

TOOL = """#!/bin/sh
case $1 in
  show) echo '{"columns": 64, "regime": "many", "choice": {"plan": "warp_rows threads=128"},
               "uses": [{"plan": "warp_rows threads=128", "regime": "many", "blocks": 2}]}' ;;
  render) echo '#define NJ_ENTRY normjit_norm' ;;
  startup) echo '{"results": [{"cold_ms": 100.5, "disk_ms": 0.5, "later_us": 2.5}]}' ;;
esac
"""

CUPY = """
import time
__version__ = "0"
float32 = "float32"
uint64 = int64 = int
class Pointer: ptr = 0
class Array:
    data = Pointer
    def __getitem__(self, index): return self
    def get(self): return [0.841345]
def ones(shape, dtype): return Array()
def empty_like(array): return Array()
class cuda:
    class Device:
        def synchronize(self): pass
class RawModule:
    def __init__(self, code, options, backend): assert code == "#define NJ_ENTRY normjit_norm\\n"
    def get_function(self, name):
        assert name == "normjit_norm"
        return lambda blocks, threads, arguments: None
"""

NUMPY = """
int64 = int
def array(values, dtype): return values
"""

# Goes on for ever, as does a process that it has started and that holds its output.
HANGS = """
import pathlib, subprocess, time
process = subprocess.Popen(["sleep", "1000"])
pathlib.Path({path!r}).open("a").write(str(process.pid) + "\\n")
time.sleep(1000)
"""


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class BenchStartupPeers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name in ("normjit", "normjit-bench"):
            tool = self.folder / name
            tool.write_text(TOOL)
            tool.chmod(0o755)
        self.module("numpy", NUMPY)

    def module(self, name, text):
        (self.folder / f"{name}.py").write_text(text)

    def run_script(self, *arguments):
        self.began = time.monotonic()
        run = subprocess.run([sys.executable, str(SCRIPT), "--build", str(self.folder), *arguments],
                             env=dict(os.environ, PYTHONPATH=str(self.folder)), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, universal_newlines=True)
        self.seconds = time.monotonic() - self.began
        return run

    def test_what_is_there_is_measured(self):
        self.module("cupy", CUPY)
        output = self.folder / "results.json"
        run = self.run_script("--peers", "cupy", "--repeat", "1", "--output", str(output))
        self.assertEqual(run.returncode, 0, run.stderr)
        results = json.loads(output.read_text())["results"]
        self.assertEqual(results["normjit"]["cold_ms"], 100.5)
        self.assertEqual(results["cupy"]["processes"], 1)
        self.assertEqual([line.split()[0] for line in run.stdout.splitlines()[2:]], ["normjit", "CuPy"])

    def test_a_peer_that_hangs_leaves_the_others_their_time(self):
        children = self.folder / "children"
        self.module("torch", "")
        self.module("triton", HANGS.format(path=str(children)))
        self.module("cupy", CUPY)
        run = self.run_script("--peers", "triton,cupy", "--repeat", "1", "--budget", "8")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("triton              cannot be measured: timed out", run.stdout)
        self.assertIn("CuPy 0", run.stdout)
        self.assertLess(self.seconds, 8)
        pids = children.read_text().split()
        self.assertEqual(len(pids), 1)
        deadline = time.monotonic() + 10
        while runs(pids[0]) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(runs(pids[0]), "what it had started goes on")

    def test_what_was_measured_in_time_counts(self):
        marker = self.folder / "twice"
        self.module("cupy", CUPY + f"""
import pathlib
marker = pathlib.Path({str(marker)!r})
count = len(marker.read_text()) if marker.exists() else 0
marker.write_text("." * (count + 1))
if count == 2: time.sleep(1000)
""")
        run = self.run_script("--peers", "cupy", "--repeat", "3", "--budget", "6")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue(run.stdout.rstrip().endswith("1 of 3"), run.stdout)

    def test_a_peer_that_is_not_there_says_so(self):
        self.module("cupy", "raise ImportError('no cupy here')")
        run = self.run_script("--peers", "cupy")
        self.assertEqual(run.returncode, 1)
        self.assertIn("cupy                cannot be measured: ImportError: no cupy here", run.stdout)

    def test_a_tool_that_fails_exits_with_3(self):
        (self.folder / "normjit").write_text("#!/bin/sh\necho 'normjit: no GPU' >&2\nexit 3\n")
        run = self.run_script("--peers", "cupy")
        self.assertEqual((run.returncode, run.stderr), (3, "normjit: no GPU\n"))


if __name__ == "__main__":
    unittest.main()
