# SPDX-License-Identifier: Apache-2.0
"""What the tests of normjit.torch share.

    python3 torch_..._test.py            # on the GPU, with the libnormjit in NORMJIT_LIBRARY
    python3 torch_..._test.py --fake     # on the CPU: operators of the CPU above a libnormjit that computes there

Begin a test file with `from torch_support import ...` before anything of normjit. Without torch, a GPU, or a compiler for
the fake, it says so in one line and exits with 77.
"""
import ctypes
import json
import os
import random
import sys
import unittest
import unittest.mock

from support import FAKE, ROOT, skip, use_fake_library  # noqa: F401

try:
    import torch
except ImportError as missing:
    skip("no PyTorch here ({})".format(missing))
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
    skip("PyTorch {} is older than 2.9".format(torch.__version__))


if FAKE:
    use_fake_library()
    os.environ["NORMJIT_TORCH_TEST_DEVICE"] = "CPU"
    device = torch.device("cpu")
else:
    if not torch.cuda.is_available() or torch.version.cuda is None:
        skip("no NVIDIA GPU for PyTorch here")
    device = torch.device("cuda", torch.cuda.current_device())
# Results are compared with PyTorch's, which are of f32 only where convolutions and products are.
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

import normjit.torch  # noqa: E402
from normjit import _library  # noqa: E402
from normjit.torch import _operator, _rules  # noqa: E402

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu")
functional = torch.nn.functional
seed = int(os.environ.get("NORMJIT_TEST_SEED", random.randrange(1 << 30)))
print("NORMJIT_TEST_SEED={} ({} operator, {})".format(seed, _operator.kind, device))


class Fake:
    """What the fake libnormjit has seen, and what it is told to answer."""

    def __getattr__(self, name):
        if name == "operands":
            return list((ctypes.c_void_p * len(_operator.OPERANDS)).in_dll(_library.load(), "fake_operands"))
        if name == "spec":
            return (ctypes.c_char * 512).in_dll(_library.load(), "fake_spec").value.decode()
        return self._variable(name).value

    def __setattr__(self, name, value):
        self._variable(name).value = value

    def _variable(self, name):
        kind = {"next_status": ctypes.c_int32, "idle": ctypes.c_int32, "batch_invariant": ctypes.c_int32, "workspace": ctypes.c_void_p}
        return kind.get(name, ctypes.c_int64).in_dll(_library.load(), "fake_" + name)


fake = Fake()


def launches():
    """How often libnormjit has been asked for a kernel so far."""
    if FAKE:
        return fake.launches
    asked = 0
    for batch_invariant in (False, True):
        counters = json.loads(_library.text_of("normjit_counters", _library.service(batch_invariant)))
        asked += sum(counters[name] for name in ("memory_hits", "disk_hits", "layer_hits", "embedded_hits", "misses"))
    return asked


def reference(x, shape, weight=None, bias=None, eps=1e-5, activation=None, scale=1.0):
    """In f64, by PyTorch."""
    def wide(part):
        return None if part is None else part.double()
    return activated(functional.layer_norm(wide(x), shape, wide(weight), wide(bias), eps), activation) * scale


def activated(z, activation):
    return {None: lambda v: v, "relu": functional.relu, "gelu": functional.gelu, "silu": functional.silu,
            "gelu_tanh": lambda v: functional.gelu(v, approximate="tanh")}[activation](z)


def tolerance(dtype):
    """Of values about 1: the arithmetic's error, and a rounding or two to this type."""
    within = {torch.float64: 1e-11, torch.float32: 2e-5}.get(dtype, 4 * torch.finfo(dtype).eps)
    return {"rtol": within, "atol": within}


def loose(dtype):
    """Where rounded values went through PyTorch's own operators, too."""
    return {torch.float64: {"rtol": 1e-9, "atol": 1e-9}, torch.float32: {"rtol": 1e-4, "atol": 1e-4},
            torch.float16: {"rtol": 1e-2, "atol": 1e-2}, torch.bfloat16: {"rtol": 6e-2, "atol": 6e-2}}[dtype]


class TestCase(unittest.TestCase):
    """Every test begins with the same random numbers, and expects each of its own to come from normjit."""

    def setUp(self):
        torch.manual_seed(seed)
        self.random = random.Random(seed)

    def assert_close(self, found, wanted, dtype=None, **limits):
        dtype = dtype or found.dtype
        torch.testing.assert_close(found.double(), wanted.double(), **(limits or tolerance(dtype)))

    def assert_launches(self, count):
        return _Launches(self, count)

    def assert_same_error(self, ours, theirs):
        """Both raise, the same type and the same text."""
        with self.assertRaises(Exception) as wanted:
            theirs()
        with self.assertRaises(type(wanted.exception)) as found:
            ours()
        self.assertEqual(str(found.exception), str(wanted.exception))


class ThroughPython:
    """A mixin: gradients of layer_norm as where there is no compiler."""

    def setUp(self):
        super().setUp()
        for asked in (unittest.mock.patch.object(_rules, "native_differentiable", return_value=None),
                      unittest.mock.patch.object(_operator, "function", None)):
            asked.start()
            self.addCleanup(asked.stop)


class _Launches:
    def __init__(self, test, count):
        self.test, self.count = test, count

    def __enter__(self):
        self.before = launches()

    def __exit__(self, kind, *rest):
        if kind is not None:
            return
        found = launches() - self.before
        if FAKE or self.count == 0:
            self.test.assertEqual(found, self.count, "launches by normjit")
        else:  # a first launch may look in several places
            self.test.assertGreaterEqual(found, self.count, "launches by normjit")


def parameters(shape, dtype=torch.float32, requires_grad=False):
    """A weight and a bias."""
    weight = (1 + 0.25 * torch.randn(shape, device=device)).to(dtype)
    bias = (0.25 * torch.randn(shape, device=device)).to(dtype)
    return weight.requires_grad_(requires_grad), bias.requires_grad_(requires_grad)


def mixed(dtype, rows, columns):
    """x of 16 bits with a weight and a bias of f32, all with gradients, and a gradient of y."""
    x = torch.randn(rows, columns, device=device).to(dtype).requires_grad_()
    return (x, *parameters((columns,), requires_grad=True), torch.randn(rows, columns, device=device).to(dtype))


def mixed_reference(inputs, grad):
    """The gradients in f64."""
    wide = [part.detach().double().requires_grad_() for part in inputs]
    return torch.autograd.grad(reference(wide[0], wide[1].shape, *wide[1:]), wide, grad.double())


def check_mixed(test, y, inputs, grad):
    """Those of weight and bias are of f32, and as exact."""
    test.assertEqual(y.dtype, inputs[0].dtype)
    found, wanted = torch.autograd.grad(y, inputs, grad), mixed_reference(inputs, grad)
    test.assertEqual([part.dtype for part in found], [inputs[0].dtype, torch.float32, torch.float32])
    test.assert_close(found[0], wanted[0])
    for ours, right in zip(found[1:], wanted[1:]):
        test.assert_close(ours, right, rtol=1e-4, atol=1e-3)  # of sums of about 100; of f16 it would be 0.05


def main():
    if FAKE:
        sys.argv.remove("--fake")
    unittest.main()
