#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""enable_fusion: which graphs Inductor gets, and that they compute what they did."""
import unittest.mock
import warnings

from torch_support import FAKE, TestCase, device, fake, functional, loose, main, torch

from normjit.torch import _fusion, _fusion_table, enable_fusion, layer_norm, replace_norms, rms_norm

COLUMNS = 64
EVERYWHERE = {(head, dtype): ((COLUMNS, COLUMNS),) for head in ("layernorm", "rmsnorm") for dtype in ("f32", "f16", "bf16")}


class FusionTest(TestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        self.assertTrue(enable_fusion())
        table = unittest.mock.patch.dict(_fusion_table.FASTER, EVERYWHERE)
        table.start()
        self.addCleanup(table.stop)
        # Graphs of the table of another test are not taken from a cache.
        caches = torch._inductor.config.patch(force_disable_caches=True)
        caches.__enter__()
        self.addCleanup(caches.__exit__, None, None, None)

    def operands(self, dtype=torch.bfloat16, residual=torch.bfloat16, rows=5):
        return (torch.randn(rows, COLUMNS, device=device).to(dtype), torch.randn(rows, COLUMNS, device=device).to(residual),
                torch.randn(COLUMNS, device=device).to(dtype))

    def check(self, function, inputs, fields, launches=1):
        """The compiled function launches a norm with these fields, and has the results of the eager one."""
        with self.assert_launches(launches):
            found = torch.compile(function, fullgraph=True, dynamic=False)(*inputs)
        if FAKE and launches:
            spec = fake.spec.split("/")
            self.assertEqual([field for field in spec[2:] if not field.startswith("eps=")], fields)
        right = function(*inputs)
        for ours, theirs in zip(*((part,) if torch.is_tensor(part) else part for part in (found, right))):
            self.assertEqual((ours.dtype, ours.shape), (theirs.dtype, theirs.shape))
            self.assert_close(ours, theirs, **loose(torch.bfloat16))
        return found

    def test_a_sum_that_is_a_result(self):
        def function(x, residual, w):
            s = x + residual
            return s * 2, rms_norm(s, (COLUMNS,), w, 1e-6)
        inputs = self.operands()
        found = self.check(function, inputs, ["bf16", "add", "sum", "round=sum", "w"])
        self.assertTrue(torch.equal(found[0], (inputs[0] + inputs[1]) * 2))

    def test_a_sum_that_is_none(self):
        self.check(lambda x, r, w: rms_norm(x + r, (COLUMNS,), w, 1e-6), self.operands(),
                   ["bf16", "add", "round=sum", "w"])

    def test_layer_norm(self):
        def function(x, residual, w):
            return layer_norm(x + residual, (COLUMNS,), w, w)
        self.check(function, self.operands(), ["bf16", "add", "round=sum", "wb"])
        self.check(function, self.operands(torch.float32, torch.float32), ["f32", "add", "wb"])

    def test_a_residual_of_a_wider_type(self):
        def function(x, residual, w):
            s = x + residual
            return s, rms_norm(s, (COLUMNS,), w, 1e-6)
        for swap in (False, True):
            x, residual, w = self.operands(residual=torch.float32)
            inputs = (residual, x, w.float()) if swap else (x, residual, w.float())
            self.check(function, inputs, ["bf16", "out=f32", "w=f32", "res=f32", "add", "sum", "w"])

    def test_a_residual_that_rows_share(self):
        x, residual, w = self.operands()
        self.check(lambda x, r, w: rms_norm(x + r, (COLUMNS,), w, 1e-6), (x, residual[0], w),
                   ["bf16", "add", "round=sum", "w"])

    def test_what_follows(self):
        def cast(x, residual, w):
            return functional.relu(rms_norm(x + residual, (COLUMNS,), w, 1e-6).bfloat16())
        self.check(cast, self.operands(torch.float32, torch.float32), ["f32", "out=bf16", "add", "w", "relu"])

        for name, activation in (("gelu", functional.gelu), ("silu", functional.silu),
                                 ("gelu_tanh", lambda y: functional.gelu(y, approximate="tanh"))):
            for dtype, fields in ((torch.bfloat16, ["bf16", "add", "round=sum", "w"]), (torch.float32, ["f32", "add", "w"])):
                torch._dynamo.reset()
                self.check(lambda x, r, w: activation(rms_norm(x + r, (COLUMNS,), w, 1e-6)), self.operands(dtype, dtype),
                           [*fields, name])

        def widened(x, residual, w):  # rounded first, so this cast is no other output
            return rms_norm(x + residual, (COLUMNS,), w, 1e-6).float()
        self.check(widened, self.operands(), ["bf16", "add", "round=sum", "w"])

        def used_twice(x, residual, w):
            y = rms_norm(x + residual, (COLUMNS,), w, 1e-6)
            return y, functional.relu(y)
        self.check(used_twice, self.operands(), ["bf16", "add", "round=sum", "w"])

    def test_sums_that_are_not_fused(self):
        x, residual, w = self.operands()
        self.check(lambda x, r, w: rms_norm(torch.add(x, r, alpha=2), (COLUMNS,), w, 1e-6), (x, residual, w), ["bf16", "w"])
        self.check(lambda x, r, w: rms_norm(x + 1, (COLUMNS,), w, 1e-6), (x, residual, w), ["bf16", "w"])
        self.check(lambda x, r, w: rms_norm(x + r, (COLUMNS,), (w + x[0]) / 2, 1e-6), (x, residual, w), None
                   if not FAKE else ["bf16", "w"])

    def test_two_norms_of_one_sum(self):
        def function(x, residual, w):
            s = x + residual
            return rms_norm(s, (COLUMNS,), w, 1e-6), layer_norm(s, (COLUMNS,), w), s
        self.check(function, self.operands(), ["bf16", "w"], launches=2)

    def test_other_widths_stay_inductors(self):
        _fusion_table.FASTER.clear()
        self.check(lambda x, r, w: rms_norm(x + r, (COLUMNS,), w, 1e-6), self.operands(), None, launches=0)

    def test_gradients(self):
        def function(x, residual, w):
            s = x + residual
            return (rms_norm(s, (COLUMNS,), w, 1e-6).sin() + s).sum()
        inputs = [part.requires_grad_() for part in self.operands(torch.float32, torch.float32)]
        found = self.check(function, inputs, ["f32", "add", "sum", "w"])
        for ours, theirs in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(function(*inputs), inputs)):
            self.assert_close(ours, theirs, **loose(torch.float32))

    def test_a_model(self):
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = torch.nn.RMSNorm(COLUMNS, 1e-6), torch.nn.LayerNorm(COLUMNS)
                self.linear = torch.nn.Linear(COLUMNS, COLUMNS)

            def forward(self, x):
                x = x + self.linear(self.first(x))
                return x + self.linear(self.second(x))
        model = Block().to(device)
        x = torch.randn(5, COLUMNS, device=device)
        with torch.no_grad():
            right = model(x)
            with self.assert_launches(2):
                found = torch.compile(replace_norms(model, fuse=True), fullgraph=True)(x)
            if FAKE:
                self.assertIn("add/sum/wb", fake.spec)
        self.assert_close(found, right, **loose(torch.float32))

    def test_a_pass_of_somebody_else_still_runs(self):
        config, seen = torch._inductor.config, []
        with config.patch(post_grad_custom_pre_pass=seen.append), unittest.mock.patch.object(_fusion, "_enabled", False):
            self.assertTrue(enable_fusion())
            self.check(lambda x, r, w: rms_norm(x + r, (COLUMNS,), w, 1e-6), self.operands(),
                       ["bf16", "add", "round=sum", "w"])
        self.assertEqual(len(seen), 1)

    def test_other_versions_are_left_alone(self):
        with unittest.mock.patch.object(_fusion, "_enabled", False), \
                unittest.mock.patch.dict("sys.modules", {"torch._inductor.custom_graph_pass": None}):
            with self.assertWarnsRegex(RuntimeWarning, "Inductor takes no pass"):
                self.assertFalse(enable_fusion())
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.assertFalse(enable_fusion())


if __name__ == "__main__":
    main()
