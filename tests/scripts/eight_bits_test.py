#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/eight_bits.py, and of the peers in 8 bits of scripts/peers.py; they need PyTorch and NumPy, and no GPU.

    python3 tests/scripts/eight_bits_test.py
"""
import sys
import unittest
from pathlib import Path

try:
    import numpy  # noqa: F401
    import torch
except ImportError as error:
    print(f"Skipped: no {error.name} for scripts/eight_bits.py")
    sys.exit(0)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import compare_with_pytorch as compare  # noqa: E402
import eight_bits  # noqa: E402
import peers  # noqa: E402

E4M3 = torch.float8_e4m3fn


def spec_of(rest, columns=256):
    return compare.fields(f"rmsnorm/cols={columns}/bf16/eps=1e-05/{rest}")


class Quantizing(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def test_numbers_beyond_the_largest_become_it(self):
        given = torch.tensor([0.5, 2.5, -1e9, 1e9])
        self.assertEqual(eight_bits.nearest(given, "s8").tolist(), [0, 2, -128, 127])
        self.assertEqual(eight_bits.nearest(given, "e4m3").float().tolist(), [0.5, 2.5, -448, 448])
        self.assertEqual(eight_bits.nearest(given, "e5m2").float().tolist(), [0.5, 2.5, -57344, 57344])
        self.assertEqual(eight_bits.nearest(given, "e2m1").tolist(), [0x41, 0x7f])

    def test_4_bits_are_the_nearest_of_their_numbers(self):
        numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        y = torch.linspace(-7.01, 7.02, 1601)  # none is halfway
        bits = eight_bits.nearest_of_e2m1(y)
        self.assertTrue(torch.equal(bits & 7, (y.abs()[:, None] - numbers).abs().argmin(1)))
        self.assertTrue(torch.equal(bits > 7, y < 0))
        ties = (numbers[1:] + numbers[:-1]) / 2
        self.assertEqual(eight_bits.nearest_of_e2m1(ties).tolist(), [0, 2, 2, 4, 4, 6, 6])
        self.assertEqual(eight_bits.nearest_of_e2m1(-ties).tolist(), [8, 10, 10, 12, 12, 14, 14])
        self.assertEqual(eight_bits.nearest_of_e2m1(torch.tensor([-0.0, float("nan"), float("-inf")])).tolist(), [8, 7, 15])
        pairs = eight_bits.in_pairs(bits[:1600].view(2, 800))
        self.assertEqual(pairs[1, 3].item(), (bits[806] | bits[807] << 4).item())
        self.assertTrue(torch.equal(eight_bits.out_of_pairs(pairs), bits[:1600].view(2, 800)))

    def test_scales_of_e4m3_are_times_the_global_scale(self):
        y = torch.zeros(1, 64)
        y[0, :16], y[0, 16:32], y[0, 48] = 3.0, -1e-3, 500.0
        y[0, 1] = -1.0
        found = eight_bits.quantized(spec_of("out=e2m1/w/q=16:e4m3", 64), y, {"global_scale": torch.tensor([2.0])})
        # 1; 2 * 1e-3 / 6 is less than half of the least number; zeros; 500 / 6 * 2 in 3 bits.
        scales = found["block_scale"]
        self.assertEqual(scales.view(E4M3).float().tolist(), [[1, 0, 0, 160]])
        self.assertEqual(found["y"][0, ::8].tolist(), [0xc7, 0x88, 0, 0x07])
        self.assertEqual(found["y"][0, 1].item(), 0x77)

    def test_a_scale_that_is_given_divides_or_multiplies(self):
        y = torch.randn(3, 256)
        for text, factor in (("q=tensor", 1 / 0.125), ("q=tensor:inv", 0.125)):
            found = eight_bits.quantized(spec_of("out=e4m3/w/" + text), y, {"tensor_scale": torch.tensor([0.125])})
            self.assertTrue(torch.equal(found["y"].float(), (y * factor).to(E4M3).float()))

    def test_rows_have_the_scale_of_their_largest(self):
        y = torch.randn(3, 256)
        y[1] = 0
        y[2, 7] = -50.0
        found = eight_bits.quantized(spec_of("out=e4m3/w/q=row/also=f32/amax"), y, {})
        self.assertEqual(found["row_scale"][1:].tolist(), [torch.tensor(1 / (512 * 448)).item(), torch.tensor(50 / 448).item()])
        self.assertEqual((found["y"][2, 7].item(), found["amax"].item()), (-448, 50))
        self.assertTrue(torch.equal(found["also"], y))
        bounded = eight_bits.quantized(spec_of("out=e4m3/w/q=row:ub"), y, {"upper_bound": torch.tensor([2.0])})
        self.assertEqual(bounded["row_scale"][2].item(), torch.tensor(2 / 448).item())
        other = eight_bits.quantized(spec_of("out=s8/w/q=row"), y, {}, of=2 * y)
        self.assertEqual((other["row_scale"][2].item(), other["y"][2, 7].item()), (torch.tensor(100 / 127).item(), -64))

    def test_powers_of_two_are_rounded_up(self):
        y = torch.zeros(1, 256)
        y[0, 0], y[0, 128] = 448 * 0.25, 448 * 0.26
        found = eight_bits.quantized(spec_of("out=e4m3/w/q=128:p2"), y, {})
        self.assertEqual(found["block_scale"].tolist(), [[0.25, 0.5]])
        self.assertEqual(found["y"][0, ::128].float().tolist(), [448, 240])
        found = eight_bits.quantized(spec_of("out=e4m3/w/q=128:e8m0"), y, {})
        self.assertEqual(found["block_scale"].tolist(), [[125, 126]])

    def test_layouts_of_scales_can_be_read_back(self):
        for layout, at in (("rows", lambda k, r, s: s[r, k]), ("cols", lambda k, r, s: s[k, r]),
                           ("cols4", lambda k, r, s: s[k // 4, r, k % 4]),
                           ("sw", lambda k, r, s: s[r // 128, k // 4, r % 32 * 16 + r % 128 // 32 * 4 + k % 4])):
            for rows, blocks in ((1, 1), (130, 7), (128, 8)):
                spec = {"scale_layout": layout, "cols": 32 * blocks, "block": 32, "q": "block"}
                scales = torch.randint(1, 200, (rows, blocks), dtype=torch.uint8)
                stored = eight_bits.laid_out(spec, scales)
                self.assertEqual(tuple(stored.shape), eight_bits.scale_shape(spec, rows))
                self.assertEqual(stored.sum().item(), scales.sum().item())  # the rest is zero
                self.assertTrue(torch.equal(eight_bits.by_rows(spec, stored, rows), scales))
                for r, k in ((0, 0), (rows - 1, blocks - 1), (rows // 2, blocks // 2)):
                    self.assertEqual(at(k, r, stored), scales[r, k], layout)


class Comparing(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.spec = spec_of("out=e4m3/w/q=row")
        self.want = eight_bits.quantized(self.spec, torch.randn(100, 256), {})

    def differences(self, change, ulps=1):
        got = {name: tensor.clone() for name, tensor in self.want.items()}
        change(got)
        return eight_bits.differences(self.spec, got, self.want, 100, ulps)

    def test_steps_are_those_of_the_type(self):
        bits = torch.tensor([0x00, 0x80, 0x01, 0x81, 0x7e, 0xfe, 0x7f, 0xff], dtype=torch.uint8)
        self.assertEqual(eight_bits.codes(bits.view(E4M3)).tolist(), [0, 0, 1, -1, 126, -126, 10000, -10000])
        self.assertEqual(eight_bits.codes(torch.tensor([-128, 127], dtype=torch.int8)).tolist(), [-128, 127])
        self.assertEqual(eight_bits.codes(torch.tensor([0x10, 0x98, 0xf7], dtype=torch.uint8)).tolist(), [0, 1, -1, -2, 7, -8])

    def test_a_step_of_few_elements_is_allowed(self):
        def flip(step):
            return lambda got: got["y"].view(torch.uint8)[:, ::step].bitwise_xor_(1)
        found = self.differences(flip(128))
        self.assertEqual((found.steps, found.elements - found.same, found.within), (1, 200, True))
        self.assertFalse(self.differences(flip(64)).within)

        def two_steps(got):
            got["y"].view(torch.uint8)[0, 0] ^= 2
        self.assertFalse(self.differences(two_steps).within)

        def nan(got):
            got["y"].view(torch.uint8)[0, 0] = 0x7f
        self.assertFalse(self.differences(nan).within)

    def test_a_scale_may_be_of_a_value_that_was_rounded_the_other_way(self):
        def scaled(rows, factor):
            def change(got):
                got["row_scale"][:rows] *= factor
                got["y"][:rows] = 1.0  # not looked at
            return change
        self.assertTrue(self.differences(scaled(1, 1.004)).within)
        self.assertFalse(self.differences(scaled(2, 1.004)).within)
        self.assertFalse(self.differences(scaled(1, 1.05)).within)
        near = self.differences(lambda got: got["row_scale"].view(torch.int32).add_(1))
        self.assertEqual((near.scale_steps, near.same_scales, near.within), (1, 0, True))
        self.assertFalse(self.differences(lambda got: got["row_scale"].view(torch.int32).add_(2)).within)


class Operators:
    """vLLM's, by the formulas of compare_with_pytorch.py."""

    def fill(self, formula, eps, y, x, weight, residual=None, scales=None, **more):
        given = {"x": x, "weight": weight, **more, **({} if residual is None else {"residual": residual.clone()})}
        found = formula(given, eps)
        y.copy_(found["y"])
        if residual is not None:
            residual.copy_(found["sum"])
        if scales is not None:
            scales.copy_(found.get("block_scale", found.get("row_scale", torch.zeros(0))).view(scales.shape))

    def rms_norm_static_fp8_quant(self, y, x, w, scale, eps):
        self.fill(compare.by_tensor(compare.of_x(compare.once)), eps, y, x, w, tensor_scale=scale)

    def fused_add_rms_norm_static_fp8_quant(self, y, x, r, w, scale, eps):
        self.fill(compare.by_tensor(compare.after_add(compare.once, True)), eps, y, x, w, r, tensor_scale=scale)

    def base(self, r):
        return compare.of_x(compare.twice) if r is None else compare.after_add(compare.twice, False)

    def rms_norm_dynamic_per_token_quant(self, y, x, w, scales, eps, bound, r):
        self.fill(compare.by_token(self.base(r), "s8" if y.dtype == torch.int8 else "e4m3"), eps, y, x, w, r, scales)

    def rms_norm_per_block_quant(self, y, x, w, scales, eps, bound, r, block, transposed):
        assert transposed == (scales.stride(0) == 1)
        self.fill(compare.in_blocks(self.base(r), block, compare.group_of_vllm), eps, y, x, w, r, scales)


class Peers(unittest.TestCase):
    def check(self, peer, rest, rounding, norm="rmsnorm"):
        rows, text = 37, f"{norm}/cols=256/bf16/eps=1e-05/{rest}"
        spec = compare.fields(text)
        given = compare.make(spec, rows, 5, "cpu", torch.randn)
        function = peers.function_of(peer, spec, False)
        if function is None:
            return None
        found = function(**function.prepare({name: tensor.clone() for name, tensor in given.items()}))
        want = compare.reference({**spec, "round": rounding}, given, torch.float32)
        got = dict(zip((name for name in ("y", "sum", "row_scale", "block_scale") if name in want), found))
        self.assertEqual(set(got), set(want))
        if "sum" in want:
            self.assertTrue(torch.equal(got["sum"], want["sum"]))
        self.assertTrue(eight_bits.differences(spec, got, want, rows, 1).within, rest)
        return function.in_place

    def test_vllm(self):
        peer = peers.Vllm.__new__(peers.Vllm)
        peer.operators = Operators()
        self.assertIs(self.check(peer, "out=e4m3/w/q=tensor", ("y",)), False)
        self.assertIs(self.check(peer, "out=e4m3/add/sum/w/q=tensor", ("sum", "y")), True)
        for out in ("e4m3", "s8"):
            self.assertIs(self.check(peer, f"out={out}/w/q=row", ("norm", "y")), False)
            self.assertIs(self.check(peer, f"out={out}/add/sum/w/q=row", ("norm", "y")), True)
        for blocks in ("64", "128:cols"):
            self.assertIs(self.check(peer, f"out=e4m3/add/sum/w/q={blocks}", ("norm", "y")), True)
            self.assertIs(self.check(peer, f"out=e4m3/w/q={blocks}", ("norm", "y")), False)
        for other in ("out=e5m2/w/q=tensor", "out=s8/w/q=tensor", "out=e4m3/w/q=tensor:inv", "out=e4m3/w/q=row:ub",
                      "out=e4m3/w/q=32:e8m0:sw", "out=e4m3/w/q=128:p2", "out=e5m2/w/q=row"):
            self.assertIsNone(self.check(peer, other, ()), other)

    def test_flashinfer(self):
        peer = peers.FlashInfer.__new__(peers.FlashInfer)
        peer.c, peer.package, operators = None, self, Operators()

        def by(base):
            return compare.by_tensor(base)
        self.rmsnorm_quant = lambda y, x, w, scale, eps, enable_pdl: operators.fill(
            by(compare.of_x(compare.unrounded)), eps, y, x, w, tensor_scale=scale)
        self.fused_add_rmsnorm_quant = lambda y, x, r, w, scale, eps, enable_pdl: operators.fill(
            by(compare.after_add(compare.unrounded, False)), eps, y, x, w, r, tensor_scale=scale)
        self.assertIs(self.check(peer, "out=e4m3/w/q=tensor", ()), False)
        self.assertIs(self.check(peer, "out=e4m3/add/sum/w/q=tensor", ()), True)
        for other in ("out=e4m3/w/q=row", "out=e4m3/w/q=tensor:inv", "out=e5m2/w/q=tensor"):
            self.assertIsNone(self.check(peer, other, ()), other)
        self.assertIsNone(self.check(peer, "out=s8/wb/q=row", (), norm="layernorm"))

        def launch(name, spec, overlap, y, scales, x, w, b, options):
            self.assertEqual((name, w.dtype, b.dtype, options), ("fi_layernorm_int8_dynamic", torch.float32, torch.float32, False))
            found = compare.by_token_of_trt(compare.rounded_layer_norm)({"x": x, "weight": w, "bias": b}, spec["eps"])
            y.copy_(found["y"])
            scales.copy_(found["row_scale"])
        peer.c, peer.launch = self, launch
        self.assertIs(self.check(peer, "out=s8/wb/q=row", ("y",), norm="layernorm"), False)

    def test_transformer_engine(self):
        peer = peers.TransformerEngine.__new__(peers.TransformerEngine)
        peer.forward = True
        peer.norm = lambda spec: lambda x, w, r, b, factor: (compare.delayed(compare.of_x(compare.unrounded))(
            {"x": x, "weight": w, "tensor_scale": factor}, spec["eps"])["y"],)
        self.assertIs(self.check(peer, "out=e4m3/w/q=tensor", ()), False)
        self.assertIs(self.check(peer, "out=e4m3/w/q=tensor:inv", ()), False)
        for other in ("out=e4m3/add/sum/w/q=tensor", "out=e4m3/w/q=row"):
            self.assertIsNone(self.check(peer, other, ()), other)


if __name__ == "__main__":
    unittest.main()
