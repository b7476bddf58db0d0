#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libnormjit_torch.so and examples/torch/aoti: a program of AOTInductor that runs in C++ without libpython.

    NORMJIT_TEST_AOTI=1 python3 torch_aoti_test.py --fake    # on the CPU, above a libnormjit that computes there
    NORMJIT_TEST_AOTI=1 python3 torch_aoti_test.py           # on the GPU
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

if not os.environ.get("NORMJIT_TEST_AOTI"):
    print("Skipped: programs are compiled by AOTInductor where NORMJIT_TEST_AOTI=1 asks for it")
    sys.exit(77)

from torch_support import FAKE, ROOT, skip, torch

COMPILER = os.environ.get("CXX", "c++")
INSTALLED = os.path.dirname(torch.__file__)
INCLUDE, LIBRARIES = os.path.join(INSTALLED, "include"), os.path.join(INSTALLED, "lib")


def run(*command, status=0, **environment):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode != status:
        raise AssertionError("{} exits with {}:\n{}{}".format(" ".join(command), done.returncode, done.stdout, done.stderr))
    return done.stdout + done.stderr


def documented_build():
    """The command of docs/pytorch.md that builds libnormjit_torch.so."""
    with open(os.path.join(ROOT, "docs", "pytorch.md")) as file:
        page = file.read()
    return re.search(r"^    (c\+\+ .*NORMJIT_TORCH_STANDALONE.*(?:\n      .*)*)", page, re.M).group(1)


class Aoti(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        at = cls.folder.name
        example = os.path.join(ROOT, "examples", "torch", "aoti")
        command = documented_build().replace("$(pkg-config --cflags normjit)", "-I" + os.path.join(ROOT, "src"))
        command = command.replace("c++ ", COMPILER + (" -DNORMJIT_TORCH_ON_CPU " if FAKE else " "), 1)
        run("sh", "-ec", "cd '{}'\n{}".format(ROOT, command.replace("-o libnormjit_torch.so", "-o '{}/libnormjit_torch.so'".format(at))),
            LIBTORCH=INSTALLED)
        cls.build_main(COMPILER)
        if not cls.shares_libstdcxx() and COMPILER != "c++":
            cls.build_main("c++")
        if not cls.shares_libstdcxx():
            raise unittest.SkipTest("the compiler links libstdc++ statically, and a host must share that of libtorch")
        cls.exported = run(sys.executable, os.path.join(example, "export.py"), at + "/model.pt2",
                           TORCHINDUCTOR_CACHE_DIR=at + "/inductor")

    @classmethod
    def shares_libstdcxx(cls):
        return "libstdc++.so.6" in run("readelf", "-d", os.path.join(cls.folder.name, "main"))

    @classmethod
    def build_main(cls, compiler):
        at, example = cls.folder.name, os.path.join(ROOT, "examples", "torch", "aoti")
        run(compiler, "-std=c++20", "-O1", "-isystem" + INCLUDE, "-isystem" + os.path.join(INCLUDE, "torch", "csrc", "api", "include"),
            os.path.join(example, "main.cc"), "-o", at + "/main", "-L" + LIBRARIES, "-Wl,-rpath," + LIBRARIES,
            "-Wl,--unresolved-symbols=ignore-in-shared-libs",  # libraries of CUDA are the loader's to find
            *(["-Wl,--no-as-needed", "-ltorch_cuda", "-lc10_cuda"] if not FAKE else []), "-ltorch", "-ltorch_cpu", "-lc10", "-ldl", "-lpthread")

    def main(self, status=0, **environment):
        at = self.folder.name
        return run(at + "/main", at + "/libnormjit_torch.so", at + "/model.pt2", status=status,
                   **{"LD_LIBRARY_PATH": LIBRARIES + os.pathsep + os.environ.get("LD_LIBRARY_PATH", ""), **environment})

    def test_two_threads_compute_what_pytorch_does(self):
        said = self.main()
        self.assertEqual((said.count(": right"), said.count("WRONG")), (21, 0), said)

    def test_the_norms_are_operators_of_normjit(self):
        for operator in ("normjit.layer_norm.default", "normjit.norm.default"):
            self.assertIn(operator, self.exported)

    def test_nothing_needs_libpython(self):
        for name in ("main", "libnormjit_torch.so"):
            self.assertNotIn("libpython", run("ldd", os.path.join(self.folder.name, name)))

    def test_a_missing_libnormjit_is_named(self):
        self.assertIn("normjit: /nonexistent.so cannot be opened", self.main(status=1, NORMJIT_LIBRARY="/nonexistent.so"))
        self.assertIn("libc.so.6 is no libnormjit", self.main(status=1, NORMJIT_LIBRARY="libc.so.6"))


if __name__ == "__main__":
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        skip("PyTorch {} is older than 2.10".format(torch.__version__))
    unittest.main(argv=[argument for argument in sys.argv if argument != "--fake"])
