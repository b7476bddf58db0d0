# SPDX-License-Identifier: Apache-2.0
"""How normjit.torch comes to its operator: one compile among processes, and none where there is no compiler."""
import os
import subprocess
import sys
import tempfile
import unittest

from torch_support import FAKE, ROOT, main, skip, torch  # noqa: F401

USE = """
import sys, torch, normjit.torch, normjit.torch._operator as operator
x = torch.randn(3, 8)
assert torch.allclose(normjit.torch.layer_norm(x, (8,)), torch.nn.functional.layer_norm(x, (8,)), atol=1e-5)
assert torch.allclose(normjit.torch.rms_norm(x, (8,)), torch.nn.functional.rms_norm(x, (8,)), atol=1e-5)
print(operator.kind)
"""

GRADIENT = USE + """
norm = normjit.torch.LayerNorm(8)
norm(x).sum().backward()
assert torch.allclose(norm.bias.grad, torch.full((8,), 3.0))
print(type(norm(x).grad_fn).__name__)
"""


class BuildTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, program=USE, **environment):
        return subprocess.Popen([sys.executable, "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"),
                                     "NORMJIT_BUILD_DIR": self.folder, **environment})

    def built(self):
        return [name for name in os.listdir(self.folder) if not name.endswith(".lock")]

    def test_processes_share_one_compile(self):
        processes = [self.start() for _ in range(3)]
        for process in processes:
            out, errors = process.communicate()
            self.assertEqual((out, process.returncode), ("compiled\n", 0), errors)
        self.assertEqual(len(self.built()), 1)
        when = os.stat(os.path.join(self.folder, self.built()[0])).st_mtime_ns
        out, _ = self.start(CXX="no-such-compiler").communicate()
        self.assertEqual(out, "ctypes\n")  # another compiler has a library of its own
        out, _ = self.start().communicate()
        self.assertEqual((out, len(self.built())), ("compiled\n", 1))
        self.assertEqual(os.stat(os.path.join(self.folder, self.built()[0])).st_mtime_ns, when)

    def test_the_first_gradient_compiles_the_rest(self):
        processes = [self.start(GRADIENT) for _ in range(3)]
        for process in processes:
            out, errors = process.communicate()
            self.assertEqual((out, process.returncode), ("compiled\nCppFunction\n", 0), errors)
        self.assertEqual(len(self.built()), 2)
        out, _ = self.start(GRADIENT, NORMJIT_TORCH_AUTOGRAD="python").communicate()
        self.assertEqual(out, "compiled\n_DifferentiableBackward\n")

    def test_a_compiler_that_refuses_the_rest_leaves_gradients_to_python(self):
        compiler = os.path.join(self.folder, "half-a-compiler.lock")  # not what was built
        with open(compiler, "w") as file:
            file.write('#!/bin/sh\ncase "$*" in *autograd.cc*) exit 1;; esac\nexec c++ "$@"\n')
        os.chmod(compiler, 0o755)
        out, errors = self.start("import logging; logging.basicConfig(level=logging.INFO)" + GRADIENT, CXX=compiler).communicate()
        self.assertEqual(out, "compiled\n_DifferentiableBackward\n", errors)
        self.assertIn("INFO:normjit:gradients of normjit.torch go through Python", errors)
        self.assertNotIn("Warning", errors)
        self.assertEqual(len(self.built()), 1)

    def test_without_a_compiler_it_goes_through_ctypes_and_says_why(self):
        for compiler, why in (("no-such-compiler", "No C\\+\\+ compiler was found"), ("false", "No C\\+\\+ compiler")):
            out, errors = self.start(CXX=compiler).communicate()
            self.assertEqual(out, "ctypes\n", errors)
            self.assertRegex(errors, "RuntimeWarning: normjit.torch goes through ctypes.*" + why)
            self.assertEqual(errors.count("RuntimeWarning"), 1)
        self.assertEqual(self.built(), [])

    def test_a_library_that_is_not_there_is_named(self):
        _, errors = self.start(NORMJIT_LIBRARY="/nowhere/libnormjit.so").communicate()
        self.assertRegex(errors, "ImportError: libnormjit.so was not found. Tried:\n  /nowhere/libnormjit.so: ")


if __name__ == "__main__":
    if not FAKE:
        skip("these tests need no GPU; give --fake")
    main()
