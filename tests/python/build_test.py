#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of normjit._build, which compiles the operators of the drop-ins. They need a C++ compiler only.

    python3 tests/python/build_test.py
"""
import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))
from normjit import _build  # noqa: E402

USE = """
import sys
from normjit import _build
print(_build.build("two", sys.argv[1:]))
"""


class BuildTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = os.path.join(scratch.name, "built")
        self.scratch = scratch.name
        os.environ["NORMJIT_BUILD_DIR"] = self.folder
        self.source = self.put("two.cc", '#include "two.h"\nextern "C" __attribute__((visibility("default"))) int two() '
                                         '{ return TWO; }\n')
        self.header = self.put("two.h", "#define TWO 2\n")

    def put(self, name, text):
        path = os.path.join(self.scratch, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def build(self, **options):
        return _build.build("two", [self.source, self.header], **options)

    def built(self):
        return sorted(name for name in os.listdir(self.folder) if not name.endswith(".lock"))

    def test_compiles_once(self):
        path = self.build()
        self.assertEqual(ctypes.CDLL(path).two(), 2)
        when = os.stat(path).st_mtime_ns
        self.assertEqual(self.build(), path)
        self.assertEqual(os.stat(path).st_mtime_ns, when)
        self.assertEqual(stat.S_IMODE(os.stat(self.folder).st_mode), 0o700)

    def test_whatever_goes_in_makes_another_library(self):
        paths = {self.build(), self.build(flags=["-DOTHER"]), self.build(version="framework 2")}
        self.put("two.h", "#define TWO 22\n")
        paths.add(self.build())
        self.assertEqual(len(paths), 4)
        self.assertEqual(ctypes.CDLL(self.build()).two(), 22)

    def test_processes_share_one_compile(self):
        environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
        processes = [subprocess.Popen([sys.executable, "-c", USE, self.source, self.header], env=environment, text=True,
                                      stdout=subprocess.PIPE) for _ in range(4)]
        paths = {process.communicate()[0].strip() for process in processes}
        self.assertEqual([os.path.join(self.folder, name) for name in self.built()], list(paths))

    def test_a_forked_child_holds_no_lock_of_another_thread(self):
        path, held, done = os.path.join(self.scratch, "lock"), threading.Event(), threading.Event()

        def hold():
            with _build._locked(path):
                held.set()
                done.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # instead of waiting for its own copy
            with _build._locked(path):
                os._exit(0)
        done.set()
        thread.join()
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_failed_compile_says_why_and_leaves_nothing(self):
        self.put("two.cc", "#error not today\n")
        with self.assertRaisesRegex(_build.BuildError, r"failed with status 1:\n(.|\n)*not today"):
            self.build()
        self.assertEqual(self.built(), [])

    def test_a_folder_that_others_can_write_is_not_believed(self):
        os.mkdir(self.folder)
        os.chmod(self.folder, 0o777)
        with self.assertLogs("normjit", "WARNING") as log:
            path = self.build()
        self.assertIn("is not this user's alone to write", log.output[0])
        self.assertFalse(path.startswith(self.folder))
        self.assertEqual(ctypes.CDLL(path).two(), 2)

    def test_without_a_home_nothing_is_left(self):
        homeless = "import os, pwd; pwd.getpwuid = {}.__getitem__; "  # a user that no passwd entry knows
        environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
        for name in ("HOME", "NORMJIT_BUILD_DIR", "XDG_CACHE_HOME"):
            environment.pop(name, None)
        done = subprocess.run([sys.executable, "-c", homeless + USE.strip().replace("\n", "; "), self.source, self.header],
                              env=environment, cwd=self.scratch, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("this user has no home folder", done.stderr)
        self.assertEqual(sorted(os.listdir(self.scratch)), ["two.cc", "two.h"])

    def test_a_library_that_others_can_write_is_made_again(self):
        path = self.build()
        with open(path, "w") as file:
            file.write("anything")
        os.chmod(path, 0o666)
        self.assertEqual(ctypes.CDLL(self.build()).two(), 2)

    def test_without_a_compiler(self):
        done = subprocess.run([sys.executable, "-c", USE, self.source], capture_output=True, text=True, check=False, env={
            **os.environ, "PYTHONPATH": os.path.join(ROOT, "python"), "CXX": "no-such-compiler"})
        self.assertIn("No C++ compiler was found (looked for no-such-compiler). Install one", done.stderr)

    def test_the_header_of_the_source_tree(self):
        self.assertEqual(_build.header_directory(), os.path.join(ROOT, "src"))


if __name__ == "__main__":
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        print("Skipped: no C++ compiler here")
        sys.exit(77)
    unittest.main()
