#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""normjit.tvm_ffi: its functions out of Python, and out of C++ where there is a compiler, above a libnormjit that computes on
the CPU.

    python3 tvm_ffi_test.py --fake
"""
import os
import subprocess
import sys
import tempfile
import unittest

from support import COMPILER, skip, use_fake_library

try:
    import numpy as np
    import tvm_ffi
except ImportError as missing:
    skip("no NumPy or no tvm-ffi here ({})".format(missing))

use_fake_library()

from normjit import dlpack  # noqa: E402
import normjit.tvm_ffi  # noqa: E402,F401

# A function that knows nothing of normjit but the names of its functions.
CALLER = """
#include <tvm/ffi/tvm_ffi.h>
namespace ffi = tvm::ffi;
ffi::String call(ffi::Tensor x, ffi::Tensor weight, ffi::Tensor y) {
  const auto norm = ffi::Function::GetGlobalRequired("normjit.norm");
  ffi::Map<ffi::String, ffi::Tensor> operands{{"x", x}, {"weight", weight}, {"out", y}};
  norm("rmsnorm/cols=64/f32/w", operands);
  operands.erase("weight");
  try {
    norm("rmsnorm/cols=64/f32/w", operands);
  } catch (const ffi::Error& error) {
    return error.kind() + ": " + error.message();
  }
  return "no error";
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(call, call);
"""


class TvmFfi(unittest.TestCase):
    def setUp(self):
        self.norm = tvm_ffi.get_global_func("normjit.norm")
        random = np.random.default_rng(1)
        self.x, self.weight = random.normal(size=(5, 64)).astype(np.float32), random.normal(size=64).astype(np.float32)
        self.y = np.zeros_like(self.x)

    def wanted(self):
        return self.x / np.sqrt((self.x.astype(np.float64)**2).mean(-1, keepdims=True) + 1e-5) * self.weight

    def operands(self):
        return {name: tvm_ffi.from_dlpack(array) for name, array in
                {"x": self.x, "weight": self.weight, "out": self.y}.items()}

    def test_a_norm(self):
        self.norm("rmsnorm/cols=64/f32/w", self.operands())
        np.testing.assert_allclose(self.y, self.wanted(), atol=1e-5)

    def test_the_stream_is_that_of_the_environment(self):
        import unittest.mock
        operands = self.operands()
        with unittest.mock.patch.object(dlpack, "norm") as called, tvm_ffi.use_raw_stream(operands["x"].device, 4660):
            self.norm("rmsnorm/cols=64/f32/w", operands)
        self.assertEqual(called.call_args.kwargs["stream"], 4660)

    def test_a_workspace(self):
        self.assertEqual(tvm_ffi.get_global_func("normjit.workspace_bytes")("rmsnorm/cols=64/f32/w"), 0)
        self.norm("rmsnorm/cols=64/f32/w", self.operands(), tvm_ffi.from_dlpack(np.zeros(8, np.uint8)))
        np.testing.assert_allclose(self.y, self.wanted(), atol=1e-5)

    def test_errors_have_kinds_that_the_other_side_knows(self):
        spec, without_x, too_many = "rmsnorm/cols=64/f32/w", self.operands(), self.operands()
        del without_x["x"]
        too_many["bias"] = too_many["weight"]
        for error, text, arguments in [(ValueError, "the spec needs x", (spec, without_x)),
                                       (ValueError, "no bias; it has x, weight, out", (spec, too_many)),
                                       (RuntimeError, "kols", ("rmsnorm/kols=64/f32/w", self.operands()))]:
            with self.assertRaisesRegex(error, text):
                self.norm(*arguments)
        with self.assertRaisesRegex(RuntimeError, "kols"):
            tvm_ffi.get_global_func("normjit.workspace_bytes")("rmsnorm/kols=64/f32/w")
        self.assertFalse(self.y.any())

    def test_out_of_cpp(self):
        with tempfile.TemporaryDirectory() as folder:
            source, library = os.path.join(folder, "caller.cc"), os.path.join(folder, "caller.so")
            with open(source, "w") as file:
                file.write(CALLER)
            flags = subprocess.run([sys.executable, "-m", "tvm_ffi.config", "--cxxflags", "--ldflags", "--libs"],
                                   capture_output=True, text=True, check=True).stdout.split()
            subprocess.run([COMPILER, "-shared", "-fPIC", "-O0", source, "-o", library, *flags], check=True)
            said = tvm_ffi.load_module(library)["call"](*self.operands().values())
            np.testing.assert_allclose(self.y, self.wanted(), atol=1e-5)
            self.assertEqual(said, "ValueError: the spec needs weight (spec rmsnorm/cols=64/f32/w)")


if __name__ == "__main__":
    dlpack._DEVICES.add(1)
    sys.argv = [argument for argument in sys.argv if argument != "--fake"]
    unittest.main()
