#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the wheel: pip builds it, installs it into an empty environment, and there it compiles a kernel.

    NORMJIT_TEST_WHEEL=1 python3 tests/python/wheel_test.py

It compiles the library once more, which takes some minutes of CPU time, so it must be asked for. Without pip, venv or a
network it says so in one line and exits with 77.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIPPED = 77

# In the new environment, in an empty folder: nothing of the source tree may be found.
PROGRAM = """
import json, normjit, signal
from normjit import _build, _library
assert normjit.__file__.startswith({site!r}), normjit.__file__
assert _library.candidates()[0].startswith({site!r}), _library.candidates()
assert _build.header_directory().startswith({site!r})
kernels = _library.KernelSet(["layernorm/cols=96/f32/wb"], ["sm_90"])
ended = []
signal.signal(signal.SIGCHLD, lambda *_: ended.append(True))
report = json.loads(_library.text_of("normjit_prebuild", _library.service(), kernels, 6, 0, None, None))
assert report["compiled"] > 0 and report["failed"] == 0, report
assert ended, "normjit-compile does not help"
print(_library.load().normjit_version().decode())
"""


def skip(why):
    print("Skipped: {}".format(why))
    sys.exit(SKIPPED)


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError("{} failed:\n{}{}".format(" ".join(command), done.stdout, done.stderr))
    return done.stdout


def has_network():
    return subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", SCRATCH.name,
                           "scikit-build-core"], capture_output=True, check=False).returncode == 0


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", SCRATCH.name + "/wheel", ROOT)
        name, = os.listdir(SCRATCH.name + "/wheel")
        cls.path = os.path.join(SCRATCH.name, "wheel", name)

    def test_name_and_version(self):
        with open(os.path.join(ROOT, "CMakeLists.txt")) as file:
            version = re.search(r"project\(normjit VERSION ([0-9.]+)", file.read()).group(1)
        self.assertRegex(os.path.basename(self.path), r"^normjit-{}-py3-none-linux_\w+\.whl$".format(re.escape(version)))

    def test_contents(self):
        with zipfile.ZipFile(self.path) as wheel:
            names = set(wheel.namelist())
        for name in ("__init__.py", "py.typed", "lib/libnormjit.so.1", "lib/normjit-compile", "lib/libnormjit_onnxruntime.so", "onnx/__main__.py", "include/normjit/c_api.h", "jax/norm.cc"):
            self.assertIn("normjit/" + name, names)
        self.assertTrue([name for name in names if re.match(r"normjit/torch/.*\.cc$", name)])
        for name in ("LICENSE", "NOTICE"):
            self.assertTrue([path for path in names if path.endswith(".dist-info/licenses/" + name)], name)
        self.assertFalse([name for name in names if "__pycache__" in name or "test" in name])

    def test_needs_nothing_but_the_c_and_cpp_runtimes(self):
        with zipfile.ZipFile(self.path) as wheel:
            binaries = [wheel.extract("normjit/lib/" + name, SCRATCH.name) for name in ("libnormjit.so.1", "normjit-compile", "libnormjit_onnxruntime.so")]
        for binary in binaries:
            needed = re.findall(r"NEEDED.*\[([\w+-]+)\.so", run("readelf", "-d", binary))
            self.assertLessEqual(set(needed), {"libc", "libm", "libstdc++", "libgcc_s", "libpthread", "libdl", "ld-linux-x86-64"})

    def test_installed_it_compiles(self):
        environment = os.path.join(SCRATCH.name, "environment")
        python = os.path.join(environment, "bin", "python")
        run(sys.executable, "-m", "venv", environment)
        run(python, "-m", "pip", "install", "-q", "--no-index", self.path)
        site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip()
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NORMJIT_LIBRARY")}
        variables["NORMJIT_CACHE_DIR"] = os.path.join(SCRATCH.name, "cache")
        said = run(python, "-c", PROGRAM.format(site=site), cwd=SCRATCH.name, env=variables)
        self.assertIn(said.strip(), self.path)


if __name__ == "__main__":
    if not os.environ.get("NORMJIT_TEST_WHEEL"):
        skip("the wheel is built where NORMJIT_TEST_WHEEL=1 asks for it")
    SCRATCH = tempfile.TemporaryDirectory()
    os.umask(0o022)  # what others can write is not started
    if subprocess.run([sys.executable, "-c", "import venv, ensurepip, pip"], capture_output=True, check=False).returncode:
        skip("no pip and venv here")
    if not has_network():
        skip("pip reaches no package index")
    unittest.main()
