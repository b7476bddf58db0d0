#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""normjit.dlpack, on arrays of NumPy and PyTorch above a libnormjit that computes on the CPU, and on those of CuPy and PyTorch
on a GPU.

    python3 dlpack_test.py          # on the GPU
    python3 dlpack_test.py --fake   # on the CPU
"""
import functools
import gc
import importlib.util
import os
import sys
import unittest
import unittest.mock

from support import FAKE, skip, use_fake_library

try:
    import numpy as np
except ImportError as missing:
    skip("no NumPy here ({})".format(missing))

if FAKE:
    use_fake_library()

from normjit import _library, dlpack  # noqa: E402


class NumpyArrays:
    """To the arrays of a framework, and back to NumPy's."""
    name = "numpy"

    @staticmethod
    def of(array):
        return array

    @staticmethod
    def numpy(array):
        return array


class TorchTensors:
    name = "torch"

    def __init__(self, torch, device):
        self.torch, self.device = torch, device

    def of(self, array):
        return self.torch.from_numpy(array).to(self.device)

    def numpy(self, tensor):
        return tensor.cpu().numpy()


class CupyArrays:
    name = "cupy"

    def __init__(self, cupy):
        self.of, self.numpy = cupy.asarray, cupy.asnumpy


def frameworks():
    found = [NumpyArrays()] if FAKE else []
    if importlib.util.find_spec("torch"):
        import torch
        if FAKE or torch.cuda.is_available():
            found.append(TorchTensors(torch, "cpu" if FAKE else "cuda"))
    if not FAKE and importlib.util.find_spec("cupy"):
        import cupy
        if cupy.cuda.is_available():
            found.append(CupyArrays(cupy))
    return found


def normalized(x, eps=1e-5, rms=False):
    x = x.astype(np.float64)
    if not rms:
        x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def each(test):
    """The test, of each framework."""
    @functools.wraps(test)
    def run(self):
        for framework in FRAMEWORKS:
            with self.subTest(framework.name):
                test(self, framework)
    return run


def workspace_of(spec, framework):
    """What a spec needs on this GPU."""
    return framework.of(np.zeros(dlpack.workspace_bytes(spec), np.uint8))


class Dlpack(unittest.TestCase):
    def setUp(self):
        self.random = np.random.default_rng(1)

    def array(self, *shape, dtype=np.float32):
        return self.random.normal(size=shape).astype(dtype)

    def assert_fails(self, error, text, spec="layernorm/cols=8/f32", **arguments):
        given = {name: value for name, value in arguments.items() if value is not None}
        with self.assertRaisesRegex(error, text):
            dlpack.norm(spec, **given)

    @each
    def test_a_norm_with_weight_and_bias(self, framework):
        x, weight, bias = self.array(5, 3, 64), self.array(64), self.array(64)
        out = framework.of(np.zeros_like(x))
        dlpack.norm("layernorm/cols=64/f32/wb", x=framework.of(x), weight=framework.of(weight), bias=framework.of(bias),
                    out=out)
        np.testing.assert_allclose(framework.numpy(out), normalized(x) * weight + bias, atol=1e-5)

    @each
    def test_a_residual_its_sum_and_statistics_in_16_bits(self, framework):
        x, residual, weight = (self.array(*shape, dtype=np.float16) for shape in ((6, 128), (6, 128), (128,)))
        out, total, rstd = framework.of(0 * x), framework.of(0 * x), framework.of(np.zeros(6, np.float32))
        dlpack.norm("rmsnorm/cols=128/f16/add/sum/w/stats", x=framework.of(x), residual=framework.of(residual),
                    weight=framework.of(weight), out=out, sum=total, rstd=rstd)
        exact = x.astype(np.float64) + residual
        np.testing.assert_allclose(framework.numpy(total), exact, atol=1e-2)
        np.testing.assert_allclose(framework.numpy(out), normalized(exact, rms=True) * weight, atol=2e-2)
        np.testing.assert_allclose(framework.numpy(rstd), 1 / np.sqrt((exact**2).mean(-1) + 1e-5), rtol=1e-3)

    @each
    def test_rows_with_strides_in_place(self, framework):
        """The middle third of each row, as the heads of a projection are."""
        whole = self.array(4, 5, 96)
        array = framework.of(whole.copy())
        part = array[:, 1:4, 32:64]
        dlpack.norm("layernorm/cols=32/f32", x=part, out=part)
        wanted = whole.copy()
        wanted[:, 1:4, 32:64] = normalized(whole[:, 1:4, 32:64])
        np.testing.assert_allclose(framework.numpy(array), wanted, atol=1e-5)

    @each
    def test_an_input_that_broadcasts(self, framework):
        x, residual = self.array(4, 5, 32), self.array(4, 1, 32)
        out = framework.of(np.zeros_like(x))
        dlpack.norm("layernorm/cols=32/f32/add", x=framework.of(x), residual=framework.of(residual), out=out)
        np.testing.assert_allclose(framework.numpy(out), normalized(x + residual), atol=1e-5)

    @each
    def test_channels_first(self, framework):
        x = self.array(2, 16, 3, 8)
        out = framework.of(np.zeros_like(x))
        dlpack.norm("layernorm/cols=16/f32/cf", x=framework.of(x), out=out)
        wanted = np.moveaxis(normalized(np.moveaxis(x, 1, -1)), -1, 1)
        np.testing.assert_allclose(framework.numpy(out), wanted, atol=1e-5)

    @each
    def test_types_that_a_framework_lacks_are_unsigned_integers(self, framework):
        x = self.array(4, 64)
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)  # bf16, rounded towards zero
        out, scales = framework.of(np.zeros((4, 64), np.uint8)), framework.of(np.zeros(4, np.float32))
        dlpack.norm("rmsnorm/cols=64/bf16/out=e4m3/q=row", x=framework.of(bits), out=out, row_scale=scales)
        exact = normalized((bits.astype(np.uint32) << 16).view(np.float32), rms=True)
        np.testing.assert_allclose(framework.numpy(scales), np.abs(exact).max(-1) / 448, rtol=1e-2)
        self.assertEqual(framework.numpy(out).max(-1).max() & 0x7f, 0x7e, "448, the largest of e4m3")

    @each
    def test_other_arrays_of_the_same_layout(self, framework):
        results = []
        for x in (self.array(4, 32), self.array(4, 32)):
            results.append((framework.of(np.zeros_like(x)), normalized(x)))
            dlpack.norm("layernorm/cols=32/f32", x=framework.of(x), out=results[-1][0])
        for out, wanted in results:
            np.testing.assert_allclose(framework.numpy(out), wanted, atol=1e-5)

    @each
    def test_gradients(self, framework):
        x, dy = self.array(4, 32), self.array(4, 32)
        dx, spec = framework.of(np.zeros_like(x)), "rmsnorm_bwd/cols=32/f32"
        dlpack.norm(spec, x=framework.of(x), dy=framework.of(dy), dx=dx, workspace=workspace_of(spec, framework))
        wide = x.astype(np.float64)
        rstd = 1 / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
        wanted = rstd * (dy - wide * rstd**2 * (wide * dy).mean(-1, keepdims=True))
        np.testing.assert_allclose(framework.numpy(dx), wanted, atol=1e-5)

    @each
    def test_gradients_of_given_statistics(self, framework):
        x, dy = self.array(4, 32), self.array(4, 32)
        mean, rstd = self.array(4), np.abs(self.array(4)) + 0.5  # not those of x
        dx, spec = framework.of(np.zeros_like(x)), "layernorm_bwd/cols=32/f32/stats"
        dlpack.norm(spec, x=framework.of(x), dy=framework.of(dy), dx=dx, saved_mean=framework.of(mean), saved_rstd=framework.of(rstd),
                    workspace=workspace_of(spec, framework))
        n, wide = (x.astype(np.float64) - mean[:, None]) * rstd[:, None], dy.astype(np.float64)
        wanted = rstd[:, None] * (wide - wide.mean(-1, keepdims=True) - n * (wide * n).mean(-1, keepdims=True))
        np.testing.assert_allclose(framework.numpy(dx), wanted, atol=1e-5)
        with self.assertRaisesRegex(ValueError, "the spec needs saved_rstd"):
            dlpack.norm(spec, x=framework.of(x), dy=framework.of(dy), dx=dx, saved_mean=framework.of(mean))

    @each
    def test_gradients_behind_an_activation(self, framework):
        x, dy, weight, bias = self.array(4, 32), self.array(4, 32), self.array(32), self.array(32)
        dx, dweight, dbias = (framework.of(np.zeros_like(part)) for part in (x, weight, bias))
        spec = "layernorm_bwd/cols=32/f32/wb/relu/scale=0.5"
        dlpack.norm(spec, x=framework.of(x), dy=framework.of(dy), weight=framework.of(weight), bias=framework.of(bias), dx=dx,
                    dweight=dweight, dbias=dbias, workspace=workspace_of(spec, framework))
        n = normalized(x)
        da = 0.5 * dy * (n * weight + bias > 0)
        np.testing.assert_allclose(framework.numpy(dweight), (da * n).sum(0), atol=1e-5)
        np.testing.assert_allclose(framework.numpy(dbias), da.sum(0), atol=1e-5)
        g, rstd = da * weight, 1 / np.sqrt(x.astype(np.float64).var(-1, keepdims=True) + 1e-5)
        wanted = rstd * (g - g.mean(-1, keepdims=True) - n * (g * n).mean(-1, keepdims=True))
        np.testing.assert_allclose(framework.numpy(dx), wanted, atol=1e-5)

    @each
    def test_gradients_of_a_gate_that_are_needed(self, framework):
        x, dy, gate, weight = self.array(4, 32), self.array(4, 32), self.array(4, 32), self.array(32)
        dx, dgate = (framework.of(np.zeros_like(x)) for _ in range(2))
        given = {"x": framework.of(x), "dy": framework.of(dy), "gate": framework.of(gate), "weight": framework.of(weight)}
        dlpack.norm("rmsnorm_bwd/cols=32/f32/gateafter/w/need=dx", **given, dx=dx, dgate=dgate)
        wide = x.astype(np.float64)
        rstd = 1 / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
        n, g = wide * rstd, dy.astype(np.float64) * gate * weight
        np.testing.assert_allclose(framework.numpy(dx), rstd * (g - n * (g * n).mean(-1, keepdims=True)), atol=1e-5)
        np.testing.assert_allclose(framework.numpy(dgate), dy * n * weight, atol=1e-5)
        with self.assertRaisesRegex(ValueError, "the spec has no dweight"):
            dlpack.norm("rmsnorm_bwd/cols=32/f32/gateafter/w/need=dx", **given, dx=dx, dgate=dgate, dweight=given["weight"])

    @each
    def test_no_rows(self, framework):
        empty = framework.of(np.zeros((0, 8), np.float32))
        dlpack.norm("layernorm/cols=8/f32", x=empty, out=empty)
        dweight = framework.of(np.ones(8, np.float32))
        dlpack.norm("rmsnorm_bwd/cols=8/f32/w", x=empty, dy=empty, dx=empty, weight=framework.of(np.ones(8, np.float32)),
                    dweight=dweight)
        np.testing.assert_array_equal(framework.numpy(dweight), np.zeros(8))

    def test_a_workspace(self):
        if not FAKE:
            self.skipTest("asks the fake for one")
        import ctypes
        needed = ctypes.c_int64.in_dll(_library.load(), "fake_workspace_bytes")
        needed.value = 96
        try:
            self.assertEqual(dlpack.workspace_bytes("layernorm/cols=8/f32"), 96)
            x, out = self.array(2, 8), np.zeros((2, 8), np.float32)
            dlpack.norm("layernorm/cols=8/f32", x=x, out=out, workspace=np.zeros(100, np.uint8))
            np.testing.assert_allclose(out, normalized(x), atol=1e-5)
            self.assert_fails(ValueError, "workspace must be 96 contiguous bytes", x=x, out=out,
                              workspace=np.zeros(95, np.uint8))
            self.assert_fails(ValueError, "workspace must be 96", x=x, out=out, workspace=np.zeros(192, np.uint8)[::2])
        finally:
            needed.value = 0

    def test_mistakes_are_named_before_anything_happens(self):
        framework = FRAMEWORKS[0]
        x, out = framework.of(self.array(4, 8)), framework.of(np.zeros((4, 8), np.float32))
        weight = framework.of(self.array(8))
        with_weight = {"spec": "layernorm/cols=8/f32/w", "x": x, "out": out}
        with unittest.mock.patch.object(_library, "service", side_effect=AssertionError("launched")):
            self.assert_fails(ValueError, "the spec needs out .spec layernorm/cols=8", x=x)
            self.assert_fails(ValueError, "the spec needs x", out=out)
            self.assert_fails(ValueError, "the spec has no weight; it has x, out", x=x, out=out, weight=weight)
            self.assert_fails(ValueError, "the spec needs weight", **with_weight)
            self.assert_fails(TypeError, "weight is a list, which does not speak DLPack", weight=[1.0], **with_weight)
            self.assert_fails(ValueError, "weight has the shape .4.; it must have 8 elements", weight=weight[:4], **with_weight)
            self.assert_fails(ValueError, "weight is not contiguous", weight=framework.of(self.array(16))[::2], **with_weight)
            self.assert_fails(ValueError, "weight is of float64; the spec says f32",
                              weight=framework.of(self.array(8, dtype=np.float64)), **with_weight)
            self.assert_fails(ValueError, "out has the shape .8.; it must be .4, 8.", x=x, out=out[0])
            self.assert_fails(ValueError, "x, of shape .4, 7., are no row of 8", x=x[:, :7], out=out)
            self.assert_fails(ValueError, "the rows of x, of shape .4, 8. with strides .16, 2., cannot",
                              x=framework.of(self.array(4, 16))[:, ::2], out=out)
            self.assert_fails(TypeError, "stream is a str", x=x, out=out, stream="0")
            self.assert_fails(ValueError, "not .samples, 8 channels", spec="layernorm/cols=8/f32/cf", x=x, out=out)
        self.assert_fails(RuntimeError, "dimension of 0", spec="layernorm/cols=0/f32", x=x, out=out)

    def test_an_output_that_is_read_only_is_refused(self):
        if not FAKE:
            self.skipTest("NumPy's arrays are on the CPU")
        x, fixed = self.array(4, 8), np.zeros((4, 8), np.float32)
        fixed.flags.writeable = False
        with self.assertRaises((ValueError, BufferError)):  # BufferError: NumPy before 2.1
            dlpack.norm("layernorm/cols=8/f32", x=x, out=fixed)
        self.assertFalse(fixed.any())

    def test_arrays_of_the_cpu_are_refused(self):
        with unittest.mock.patch.object(dlpack, "_DEVICES", {2, 13}):
            x = self.array(4, 8)
            self.assert_fails(ValueError, r"x is not on an NVIDIA GPU: its DLPack device is \(1, 0\)", x=x, out=x)

    def test_the_memory_is_let_go(self):
        framework = FRAMEWORKS[0]
        x = framework.of(self.array(4, 8))
        before = sys.getrefcount(x)
        for _ in range(100):
            dlpack.norm("layernorm/cols=8/f32", x=x, out=x)
        gc.collect()
        self.assertEqual(sys.getrefcount(x), before)

    def test_a_stream_is_an_address_or_has_one(self):
        class Stream:
            def __cuda_stream__(self):
                return 0, 4660
        handles = []
        x, call = FRAMEWORKS[0].of(self.array(4, 8)), _library.call

        def record(name, *given):
            if name == "normjit_norm":
                handles.append(given[3])
            else:
                call(name, *given)
        with unittest.mock.patch.object(_library, "call", side_effect=record):
            for stream in [None, 0] + ([4660, Stream()] if FAKE else []):
                dlpack.norm("layernorm/cols=8/f32", x=x, out=x, stream=stream)
        self.assertEqual(handles, [None, None] + ([4660, 4660] if FAKE else []))


if __name__ == "__main__":
    FRAMEWORKS = frameworks()
    if not FRAMEWORKS:
        skip("no GPU with CuPy or PyTorch here")
    if FAKE:
        dlpack._DEVICES.add(1)
        sys.argv.remove("--fake")
    unittest.main()
