#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""enable_fusion: which graphs Inductor gets, and that they compute what they did."""
import unittest.mock
import warnings

from torch_support import FAKE, TestCase, device, fake, functional, loose, main, torch

from normjit.torch import (_fusion, _fusion_table, add_rms_norm, enable_fusion, gated_rms_norm, layer_norm,
                           modulated_layer_norm, norm, replace_norms, rms_norm)
from normjit.torch._problem import OPERANDS

COLUMNS = 64
EVERYWHERE = {(head, dtype): ((COLUMNS, COLUMNS),) for head in ("layernorm", "rmsnorm") for dtype in ("f32", "f16", "bf16")}


class FusionCase(TestCase):
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


class FusionTest(FusionCase):
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
        def with_weight_of_the_sum(x, residual, w):
            s = x + residual
            return rms_norm(s, (COLUMNS,), (w + s[0]) / 2, 1e-6)
        self.check(with_weight_of_the_sum, (x, residual, w), ["bf16", "w"])

    def test_a_weight_that_is_computed_behind_the_sum(self):
        self.check(lambda x, r, w: rms_norm(x + r, (COLUMNS,), (w + x[0]) / 2, 1e-6), self.operands(),
                   ["bf16", "add", "round=sum", "w"])

    def test_gates_behind_the_norm_exclude_activations(self):
        self.check(lambda x, gate, w: functional.relu(gated_rms_norm(x, gate, w, 1e-6)), self.operands(),
                   ["bf16", "gateafter:silu", "w"])

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


class ModulationTest(FusionCase):
    """Only the forms with a modulation are in the table."""

    def setUp(self):
        super().setUp()
        _fusion_table.FASTER.clear()
        for head, dtype in EVERYWHERE:
            _fusion_table.FASTER.update({(head + form, dtype): ((COLUMNS, COLUMNS),) for form in (_fusion.MODULATED, _fusion.GATED)})
        no_grad = torch.no_grad()
        no_grad.__enter__()
        self.addCleanup(no_grad.__exit__, None, None, None)

    def samples(self, dtype=torch.bfloat16, modulation=None):
        """x and a residual of two samples, a projection of three rows for each, a weight."""
        x, residual = (torch.randn(2, 5, COLUMNS, device=device).to(dtype) for _ in "xr")
        return (x, residual, torch.randn(2, 3 * COLUMNS, device=device).to(modulation or dtype),
                torch.randn(COLUMNS, device=device).to(dtype))

    def forget_but(self, form):
        """This form alone is in the table."""
        for head, dtype in list(_fusion_table.FASTER):
            if not head.endswith(form):
                del _fusion_table.FASTER[head, dtype]

    def test_scale_and_shift(self):
        def function(x, residual, projection, w):
            scale, shift, _ = projection[:, None].chunk(3, -1)
            return functional.gelu(layer_norm(x, (COLUMNS,), eps=1e-6) * (1 + scale) + shift)
        for dtype, modulation, fields in ((torch.bfloat16, None, ["bf16", "mod", "gelu"]), (torch.float16, None, ["f16", "mod", "gelu"]),
                                          (torch.float32, None, ["f32", "mod", "gelu"]),
                                          (torch.bfloat16, torch.float32, ["bf16", "out=f32", "mod=f32", "mod", "gelu"])):
            torch._dynamo.reset()
            self.check(function, self.samples(dtype, modulation), fields)

    def test_a_scale_alone_behind_a_weight(self):
        def function(x, residual, projection, w):
            return torch.tanh((projection[:, None, :COLUMNS] + 1) * rms_norm(x, (COLUMNS,), w, 1e-6))
        self.check(function, self.samples(), ["bf16", "w", "mods"])

    def test_a_view_of_one_and_scale(self):
        def function(x, residual, projection, w):
            scale, shift, _ = projection.chunk(3, -1)
            return layer_norm(x, (COLUMNS,), w, w) * (1 + scale)[:, None, :] + shift[:, None, :]
        self.check(function, self.samples(), ["bf16", "wb", "mod"])

    def test_a_scale_for_each_row_and_a_vector(self):
        def function(x, residual, projection, w):
            return layer_norm(x, (COLUMNS,)) * (1 + residual) + w
        self.check(function, self.samples(), ["bf16", "mod"])

    def test_a_gate_and_a_sum(self):
        def function(x, residual, projection, w):
            gate, scale, shift = projection[:, None].chunk(3, -1)
            s = residual + gate * x
            return s.sin(), layer_norm(s, (COLUMNS,)) * (1 + scale) + shift
        self.check(function, self.samples(), ["bf16", "gate", "add", "sum", "round=sum", "mod"])

        def without_sum(x, residual, projection, w):
            gate, scale, _ = projection[:, None].chunk(3, -1)
            return layer_norm(x * gate + residual, (COLUMNS,)) * (1 + scale)
        self.check(without_sum, self.samples(torch.float32), ["f32", "gate", "add", "mods"])
        torch._dynamo.reset()
        self.forget_but(" modulated")
        self.check(without_sum, self.samples(torch.float32), ["f32", "add", "mods"])

    def test_f32_between_tensors_of_16_bits(self):
        def function(x, residual, projection, w):
            gate, scale, shift = projection[:, None].chunk(3, -1)
            s = (residual.float() + x * gate).type_as(x)
            y = (layer_norm(s.float(), (COLUMNS,)) * (1 + scale) + shift).type_as(x)
            return y, s.float() * 2
        self.check(function, self.samples(modulation=torch.float32),
                   ["bf16", "mod=f32", "gate", "add", "sum", "round=sum", "mod"])

    def test_what_is_given_back(self):
        inputs = self.samples()
        for function in (lambda x, r, p, w: layer_norm(x + r, (COLUMNS,)), lambda x, r, p, w: rms_norm(x, (COLUMNS,), w, 1e-6),
                         lambda x, r, p, w: rms_norm(x, (COLUMNS,), w, 1e-6).relu() * (1 + p[:, None, :COLUMNS]),
                         lambda x, r, p, w: layer_norm(x, (COLUMNS,)) * (2 + p[:, None, :COLUMNS])):
            torch._dynamo.reset()
            self.check(function, inputs, None, launches=0)
        torch._dynamo.reset()
        self.forget_but(" gated")
        self.check(lambda x, r, p, w: layer_norm(x + r, (COLUMNS,)) * (1 + p[:, None, :COLUMNS]), inputs, None, launches=0)

    def test_what_somebody_asked_for_is_not_given_back(self):
        x, residual, projection, w = self.samples()
        spec, scale = "layernorm/cols={}/bf16/eps=1e-06".format(COLUMNS), projection[:, None, :COLUMNS]
        for function, fields in ((lambda x, r, w, scale: norm(spec, x), ["bf16"]),
                                 (lambda x, r, w, scale: modulated_layer_norm(x, scale), ["bf16", "mods"]),
                                 (lambda x, r, w, scale: add_rms_norm(x, r, w, 1e-6), ["bf16", "add", "sum", "w"]),
                                 (lambda x, r, w, scale: rms_norm(x, (COLUMNS,), w, 1e-6, activation="relu"),
                                  ["bf16", "w", "relu"])):
            torch._dynamo.reset()
            self.check(function, (x, residual, w, scale), fields)

    def test_a_scale_of_the_sum(self):
        def function(x, residual, projection, w):
            s = x + residual
            return layer_norm(s, (COLUMNS,)) * (1 + s.mean(1, keepdim=True))
        self.check(function, self.samples(), ["bf16", "mods"])

    def test_rows_without_an_address(self):
        def function(x, scale):
            return layer_norm(x, (COLUMNS,)) * (1 + scale)
        x = torch.randn(2, 3, 4, COLUMNS, device=device)
        self.check(function, (x, torch.randn(4, 3, 2, COLUMNS, device=device).permute(2, 1, 0, 3)), None, launches=0)

    def test_gradients_are_inductors(self):
        def function(x, residual, projection, w):
            return layer_norm(x, (COLUMNS,)) * (1 + projection[:, None, :COLUMNS])
        x, *rest = self.samples(torch.float32)
        with torch.enable_grad():
            found = self.check(function, [x.requires_grad_(), *rest], None, launches=0)
            ours, = torch.autograd.grad(found.square().sum(), x)
            theirs, = torch.autograd.grad(function(x, *rest).square().sum(), x)
        self.assert_close(ours, theirs, **loose(torch.float32))

    def test_any_number_of_rows(self):
        def function(x, projection):
            gate, scale, shift = projection[:, None].chunk(3, -1)
            s = x * gate + x
            return s, layer_norm(s, (COLUMNS,)) * (1 + scale) + shift, layer_norm(x, (COLUMNS,))
        compiled = torch.compile(function, fullgraph=True, dynamic=True)
        for samples, rows in ((2, 5), (3, 7)):
            x = torch.randn(samples, rows, COLUMNS, device=device)
            projection = torch.randn(samples, 3 * COLUMNS, device=device)
            with self.assert_launches(1):
                found = compiled(x, projection)
            for ours, theirs in zip(found, function(x, projection)):
                self.assert_close(ours, theirs, **loose(torch.float32))

    def test_a_model(self):
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = (torch.nn.LayerNorm(COLUMNS, 1e-6, elementwise_affine=False) for _ in range(2))
                self.attention, self.linear = torch.nn.Linear(COLUMNS, COLUMNS), torch.nn.Linear(COLUMNS, COLUMNS)
                self.projection = torch.nn.Linear(COLUMNS, 6 * COLUMNS)

            def forward(self, x, condition):
                part = self.projection(functional.silu(condition)).unsqueeze(1).chunk(6, -1)
                x = x + part[2] * self.attention(self.first(x) * (1 + part[1]) + part[0])
                return x + part[5] * self.linear(self.second(x) * (1 + part[4]) + part[3])
        model = torch.nn.ModuleList([Block(), Block()]).to(device)
        x, condition = torch.randn(2, 5, COLUMNS, device=device), torch.randn(2, COLUMNS, device=device)

        def run(x, condition):
            for block in model:
                x = block(x, condition)
            return x
        right = run(x, condition)
        replace_norms(model, fuse=True)
        with self.assert_launches(4):
            found = torch.compile(run, fullgraph=True)(x, condition)
        if FAKE:
            self.assertIn("gate/add/sum/mod", fake.spec)
            shift, scale = (fake.operands[[operand.name for operand in OPERANDS].index("mod_" + name)]
                            for name in ("shift", "scale"))
            self.assertEqual(scale - shift, COLUMNS * 4)  # where the projection is
        self.assert_close(found, right, **loose(torch.float32))


if __name__ == "__main__":
    main()
