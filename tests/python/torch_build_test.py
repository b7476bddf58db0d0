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
print(operator.kind)
"""


class BuildTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, **environment):
        return subprocess.Popen([sys.executable, "-c", USE], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
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
