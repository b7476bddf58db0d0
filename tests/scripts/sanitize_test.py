#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/sanitize.sh, with a compute-sanitizer that only runs its program, and of its patch of the templates.

    NORMJIT_TOOL=build/normjit python3 tests/scripts/sanitize_test.py
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SCRIPT = os.path.join(ROOT, "scripts", "sanitize.sh")
PATCH = os.path.join(ROOT, "scripts", "every_lane_arrives.patch")

SANITIZER = """#!/bin/bash
while [ "$1" != --tool ]; do shift; done
tool=$2
shift 2
TOOL=$tool exec "$@"
"""
# Says which templates it was given; fails where it is told to.
PROGRAM = """#!/bin/bash
patched=no
[ -z "${NORMJIT_TEMPLATE_DIR:-}" ] || ! grep -q "kWarp : 1" "$NORMJIT_TEMPLATE_DIR/schedule/persistent_row.cu" || patched=yes
echo "$TOOL $patched" >>"$SEEN"
[ "$TOOL $2" != "${FAILS:-}" ] || { echo "========= Error: something is wrong"; exit 1; }
"""


class SanitizeTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name
        self.write("bin/compute-sanitizer", SANITIZER)
        for program in ("normjit", "normjit_gpu_tests"):
            self.write("build/" + program, PROGRAM)

    def write(self, name, text):
        path = os.path.join(self.scratch, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def run_script(self, path=None, **environment):
        self.seen = os.path.join(self.scratch, "seen")
        path = path or os.path.join(self.scratch, "bin") + ":" + os.environ["PATH"]
        return subprocess.run(["/bin/bash", SCRIPT, os.path.join(self.scratch, "build")], text=True,
                              env={**os.environ, "PATH": path, "SEEN": self.seen, **environment},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)

    def test_each_tool_sees_every_program_and_racecheck_its_own_templates(self):
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(self.seen) as file:
            seen = file.read().splitlines()
        self.assertEqual(sorted(set(seen)), ["memcheck no", "racecheck yes", "synccheck no"])
        self.assertEqual(len(seen), 3 * seen.count("memcheck no"))
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()], len(seen) * ["ok"])

    def test_what_is_found_is_shown_and_the_others_go_on(self):
        done = self.run_script(FAILS="memcheck layernorm/cols=4096/bf16/wb")
        self.assertEqual(done.returncode, 1)
        self.assertIn("Error: something is wrong\nFAILED  memcheck: run layernorm/cols=4096/bf16/wb", done.stdout)
        self.assertEqual(done.stdout.count("FAILED"), 1)
        self.assertIn("ok      racecheck", done.stdout)

    def test_without_a_sanitizer(self):
        done = self.run_script(path="/nowhere:" + self.tools_only())
        self.assertEqual(done.returncode, 3)
        self.assertIn("compute-sanitizer was not found", done.stdout)

    def tools_only(self):
        """A directory with what the script calls, and no compute-sanitizer."""
        directory = os.path.join(self.scratch, "tools")
        os.makedirs(directory)
        for tool in ("dirname", "mktemp", "rm", "cp", "nproc", "patch", "tail"):
            os.symlink(shutil.which(tool), os.path.join(directory, tool))
        return directory


class PatchTest(unittest.TestCase):
    @unittest.skipUnless("NORMJIT_TOOL" in os.environ, "needs NORMJIT_TOOL")
    def test_its_kernels_are_right_and_free_of_races(self):
        with tempfile.TemporaryDirectory() as scratch:
            templates = os.path.join(scratch, "templates")
            shutil.copytree(os.path.join(ROOT, "templates"), templates)
            with open(PATCH) as patch:
                subprocess.run(["patch", "--quiet", "-d", os.path.join(templates, "schedule")], stdin=patch, check=True)
            for spec, rows, plan in (("32768/bf16/wb", "140", "stages=28"),
                                     ("50257/bf16/wb", "8", "blocks_per_row=4 stages=20 exchange=grid unaligned=1")):
                plan = ("persistent_row threads=512 threads_per_row=256 vector=8 per_thread=2 group_rows=1 blocks_per_sm=1 " + plan)
                done = subprocess.run([os.environ["NORMJIT_TOOL"], "run", "layernorm/cols=" + spec, "--rows", rows, "--plan", plan,
                                       "--check", "--device", "host", "--arch", "sm_90", "--checks", "on"],
                                      text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      env={**os.environ, "NORMJIT_TEMPLATE_DIR": templates,
                                           "NORMJIT_CACHE_DIR": os.path.join(scratch, "cache")})
                self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    if shutil.which("patch") is None:
        print("Skipped: no patch(1) here, which scripts/sanitize.sh needs")
        sys.exit(77)
    unittest.main()
