#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The norms of diffusers and transformers, with random weights, beside the specs that docs/algebra.md names for them.

A module's result and normjit's are compared with the spec in f64, with the roundings that the spec declares. Units: eps of the
type times the sum of the terms' magnitudes, so that one rounding to the type is 0.5. A module rounds its scale, products and sums
of 16 bits, too, which no spec declares; normjit is nearer.
"""
import re
import sys
import unittest

from torch_support import FAKE, ROOT, TestCase, device, fake, functional, skip, torch

from normjit import _library
from normjit.torch import gate_residual_modulate, gated_rms_norm, modulated_layer_norm, norm
from normjit.torch._problem import problem_of

try:
    from diffusers.models import normalization
    from diffusers.models.attention import BasicTransformerBlock
    from diffusers.models.transformers.transformer_flux import FluxTransformerBlock
    from diffusers.models.transformers.transformer_ltx import LTXVideoTransformerBlock
    from diffusers.models.transformers.transformer_lumina2 import Lumina2TransformerBlock
    from diffusers.models.transformers.transformer_mochi import MochiTransformerBlock
    from diffusers.models.transformers.transformer_wan import WanTransformerBlock
    from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated
    from transformers.models.zamba2.modeling_zamba2 import Zamba2RMSNormGated
except Exception as missing:  # what a package raises that does not fit another one
    skip("no diffusers and transformers with these modules here ({}: {})".format(type(missing).__name__, missing))

COLUMNS, SAMPLES, TOKENS = 256, 3, 37
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
DOCUMENT = ROOT + "/docs/algebra.md"
table = {}


class Seen(torch.nn.Module):
    """Stands in the place of a part of a block: has a result, and keeps what it was given."""

    def __init__(self, *results):
        super().__init__()
        self.results = results

    def forward(self, x=None, *_, hidden_states=None, **__):
        self.x = hidden_states if x is None else x
        return self.results if len(self.results) > 1 else self.results[0]


def spec_in_f64(text, **given):
    """Result and sum of a spec, and the sums of the magnitudes of the result's terms."""
    problem, t = problem_of(text), {name: part.double() for name, part in given.items() if part is not None}

    def of(name):
        return t[name] + t[name + "_table"] if name + "_table" in t else t[name]

    def gate():
        function = {code: name for name, code in _library.GATE_FUNCTIONS.items()}[problem.gate_function]
        return {None: lambda v: v, "silu": functional.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}[function](of("gate"))
    s, size = t["x"], t["x"].abs()
    if problem.gates == "gate":
        s, size = s * gate(), size * gate().abs()
    if problem.adds == "add":
        s, size = s + t["residual"], size + t["residual"].abs()
    s = s.to(problem.residual).double() if problem.rounds_sum else s
    mean = s.mean(-1, keepdim=True) if problem.layer else torch.zeros_like(s[..., :1])
    rstd = torch.rsqrt((s - mean).square().mean(-1, keepdim=True) + problem.epsilon)
    y, size = (s - mean) * rstd, (size + (size.mean(-1, keepdim=True) if problem.layer else 0)) * rstd
    y = y.to(problem.input).double() if problem.rounds_norm else y
    if "weight" in t:
        y, size = y * t["weight"], size * t["weight"].abs()
    if "bias" in t:
        y, size = y + t["bias"], size + t["bias"].abs()
    if "mod_scale" in t:
        y, size = y * (1 + of("mod_scale")), size * (1 + of("mod_scale").abs())
    if "mod_shift" in t:
        y, size = y + of("mod_shift"), size + of("mod_shift").abs()
    if problem.gates == "gateafter":
        y, size = y * gate(), size * gate().abs()
    if problem.adds == "addafter":
        y, size = y + t["residual"], size + t["residual"].abs()
    return y, s, size


def some(dtype, *shape):
    return torch.randn(*shape, device=device).to(dtype)


def made(module, dtype):
    """With random parameters, of which those that a model keeps in f32 are."""
    module = module.to(device=device, dtype=dtype)
    for name, parameter in module.named_parameters():
        with torch.no_grad():
            parameter.normal_(1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0,
                              0.25 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5)
    return module


class ModelsTest(TestCase):
    def setUp(self):
        super().setUp()
        no_grad = torch.no_grad()
        no_grad.__enter__()
        self.addCleanup(no_grad.__exit__, None, None, None)

    def each_type(self):
        for self.type, dtype in DTYPES.items():
            yield dtype, some(dtype, SAMPLES, TOKENS, COLUMNS)

    def compare(self, name, fields, theirs, ours=None, their_sum=None, **operands):
        """A module's result with a spec's, by norm() unless there is a call for it; and that docs/algebra.md has the spec."""
        columns = operands["x"].shape[-1]
        head, _, fields = fields.partition(" ")
        text = "{}/cols={}/{}{}".format(head, columns, self.type, fields)
        found = norm(text + "/eps=1e-06", **operands) if ours is None else ours
        if FAKE:
            self.assertEqual(_library.spec_text(_library.parse_spec(fake.spec)),
                             _library.spec_text(_library.parse_spec(text + "/eps=1e-06")))
        if self.type == "bf16":
            with open(DOCUMENT) as file:
                documented = set(re.findall(r"`((?:layer|rms)norm/cols=[^`]*)`", file.read()))
            documented = {re.sub("cols=[0-9]*", "cols={}".format(columns), each) for each in documented}
            self.assertTrue(text in documented, "{}: docs/algebra.md has no {}".format(name, text))
        found, found_sum = found[:2] if "/sum" in text else (found, None)
        wanted, sums, size = spec_in_f64(text + "/eps=1e-06", **operands)
        eps = torch.finfo(theirs.dtype).eps
        off = [((part.double() - wanted).abs() / (eps * size + torch.finfo(theirs.dtype).tiny)).max().item()
               for part in (theirs, found)]
        same = (theirs == found).double().mean().item()
        table.setdefault(name, (text, []))[1].append((self.type, *off, same))
        narrow = theirs.dtype != torch.float32
        self.assertEqual(theirs.dtype, found.dtype)
        self.assertLess(off[1], (0.51 if "round=" not in text else 1.6) if narrow else 16, name)
        self.assertLess(off[0], 4 if narrow else 16, name)
        if found_sum is not None:
            self.assert_close(found_sum, sums)
            if their_sum is not None:
                self.assert_close(found_sum, their_sum)

    def test_ada_layer_norm(self):
        for dtype, x in self.each_type():
            module = made(normalization.AdaLayerNorm(64, output_dim=2 * COLUMNS, norm_eps=1e-6, chunk_dim=1), dtype)
            temb = some(dtype, SAMPLES, 64)
            shift, scale = module.linear(functional.silu(temb))[:, None].chunk(2, -1)
            self.compare("AdaLayerNorm", "layernorm /mod", module(x, temb=temb), modulated_layer_norm(x, scale, shift),
                         x=x, mod_scale=scale, mod_shift=shift)

    def test_ada_layer_norm_zero(self):
        for dtype, x in self.each_type():
            emb = some(dtype, SAMPLES, COLUMNS)
            for kind, parts in ((normalization.AdaLayerNormZero, 6), (normalization.AdaLayerNormZeroSingle, 3)):
                module = made(kind(COLUMNS), dtype)
                shift, scale = module.linear(functional.silu(emb))[:, None].chunk(parts, -1)[:2]
                self.compare(kind.__name__, "layernorm /mod", module(x, emb=emb)[0], modulated_layer_norm(x, scale, shift),
                             x=x, mod_scale=scale, mod_shift=shift)

    def test_sd35_is_two_launches(self):
        for dtype, x in self.each_type():
            module, emb = made(normalization.SD35AdaLayerNormZeroX(COLUMNS), dtype), some(dtype, SAMPLES, COLUMNS)
            parts, results = module.linear(functional.silu(emb))[:, None].chunk(9, -1), module(x, emb)
            for result, shift, scale in ((results[0], *parts[:2]), (results[5], *parts[6:8])):
                self.compare("SD35AdaLayerNormZeroX", "layernorm /mod", result, modulated_layer_norm(x, scale, shift),
                             x=x, mod_scale=scale, mod_shift=shift)

    def test_ada_layer_norm_continuous(self):
        for dtype, x in self.each_type():
            emb = some(dtype, SAMPLES, 64)
            module = made(normalization.AdaLayerNormContinuous(COLUMNS, 64, eps=1e-6), dtype)
            scale, shift = module.linear(functional.silu(emb))[:, None].chunk(2, -1)
            weight, bias = module.norm.weight, module.norm.bias
            self.compare("AdaLayerNormContinuous", "layernorm /wb/mod", module(x, emb),
                         modulated_layer_norm(x, scale, shift, weight, bias), x=x, weight=weight, bias=bias, mod_scale=scale,
                         mod_shift=shift)
            module = made(normalization.LuminaLayerNormContinuous(COLUMNS, 64, elementwise_affine=False, eps=1e-6), dtype)
            scale = module.linear_1(functional.silu(emb))[:, None]
            self.compare("LuminaLayerNormContinuous", "layernorm /mods", module(x, emb), modulated_layer_norm(x, scale), x=x,
                         mod_scale=scale)

    def test_pixart(self):
        """AdaLayerNormSingle, whose projection a block adds to its table."""
        for dtype, x in self.each_type():
            block = made(BasicTransformerBlock(COLUMNS, 2, 128, norm_type="ada_norm_single", norm_elementwise_affine=False,
                                               norm_eps=1e-6), dtype)
            a, timestep = some(dtype, SAMPLES, TOKENS, COLUMNS), some(dtype, SAMPLES, 6 * COLUMNS)
            block.attn1, block.ff = Seen(a), Seen(torch.zeros_like(x))
            total = block(x, timestep=timestep)
            shift, scale, gate, *mlp = timestep.view(SAMPLES, 6, COLUMNS)[:, :, None].unbind(1)
            tables = block.scale_shift_table
            self.compare("PixArt, AdaLayerNormSingle", "layernorm /mod:table", block.attn1.x, x=x, mod_scale=scale,
                         mod_scale_table=tables[1], mod_shift=shift, mod_shift_table=tables[0])
            self.compare("PixArt, behind attention", "layernorm /gate:table/add/sum/round=sum/mod:table", block.ff.x,
                         their_sum=total, x=a, gate=gate, gate_table=tables[2], residual=x, mod_scale=mlp[1],
                         mod_scale_table=tables[4], mod_shift=mlp[0], mod_shift_table=tables[3])

    def test_flux(self):
        for dtype, x in self.each_type():
            block, temb = made(FluxTransformerBlock(COLUMNS, 2, 128), dtype), some(dtype, SAMPLES, COLUMNS)
            a = some(dtype, SAMPLES, TOKENS, COLUMNS)
            block.attn, block.ff, block.ff_context = Seen(a, a), Seen(torch.zeros_like(x)), Seen(x)
            total = block(x, x, temb)[1]
            _, _, gate, shift, scale, _ = block.norm1.linear(functional.silu(temb))[:, None].chunk(6, -1)
            self.compare("FLUX, behind attention", "layernorm /gate/add/sum/round=sum/mod", block.ff.x,
                         gate_residual_modulate(a, gate, x, scale, shift, rounding="sum"), their_sum=total,
                         x=a, gate=gate, residual=x, mod_scale=scale, mod_shift=shift)

    def test_wan(self):
        """Norms and tables are in f32; the projection is of the model's type."""
        for dtype, x in self.each_type():
            block = made(WanTransformerBlock(COLUMNS, 64, 2, cross_attn_norm=True), dtype)
            tables = block.scale_shift_table.data = block.scale_shift_table.float()
            block.norm2.float()
            a, b, temb = x.flip(1), x.flip(2), some(dtype, SAMPLES, 6, COLUMNS)
            block.attn1, block.attn2, block.ffn = Seen(a), Seen(b), Seen(torch.zeros_like(x))
            block(x, None, temb, None)
            shift, scale, gate, *mlp = temb[:, :, None].unbind(1)
            behind = (x.float() + a * (tables[:, 2] + temb[:, 2].float())[:, None]).to(dtype)
            self.compare("Wan", "layernorm /w=f32/mod:table", block.attn1.x, x=x, mod_scale=scale,
                         mod_scale_table=tables[0, 1], mod_shift=shift, mod_shift_table=tables[0, 0])
            weight, bias = block.norm2.weight, block.norm2.bias
            self.compare("Wan, behind attention", "layernorm /w=f32/gate:table/add/sum/round=sum/wb", block.attn2.x,
                         their_sum=behind, x=a, gate=gate, gate_table=tables[0, 2], residual=x, weight=weight, bias=bias)
            self.compare("Wan, behind cross-attention", "layernorm /w=f32/add/sum/round=sum/mod:table", block.ffn.x,
                         their_sum=behind + b, x=b, residual=behind, mod_scale=mlp[1], mod_scale_table=tables[0, 4],
                         mod_shift=mlp[0], mod_shift_table=tables[0, 3])

    def test_ltx(self):
        for dtype, x in self.each_type():
            block = made(LTXVideoTransformerBlock(COLUMNS, 2, 128, COLUMNS), dtype)
            temb = some(dtype, SAMPLES, 1, 6 * COLUMNS)
            block.attn1, block.attn2, block.ff = (Seen(torch.zeros_like(x)) for _ in range(3))
            block(x, None, temb)
            shift, scale = temb.view(SAMPLES, 1, 6, COLUMNS).unbind(2)[:2]
            tables = block.scale_shift_table
            self.compare("LTX", "rmsnorm /round=norm/mod:table", block.attn1.x, x=x, mod_scale=scale,
                         mod_scale_table=tables[1], mod_shift=shift, mod_shift_table=tables[0])

    def test_lumina(self):
        for dtype, x in self.each_type():
            block = made(Lumina2TransformerBlock(COLUMNS, 2, 2, 16, 1.0, 1e-6), dtype)
            a, temb, sums = some(dtype, SAMPLES, TOKENS, COLUMNS), some(dtype, SAMPLES, COLUMNS), []
            block.attn, block.feed_forward = Seen(a), Seen(x)
            block.ffn_norm1.register_forward_pre_hook(lambda module, inputs: sums.append(inputs[0]))
            block(x, None, None, temb)
            scale, gate, *_ = block.norm1.linear(functional.silu(temb))[:, None].chunk(4, -1)
            self.compare("LuminaRMSNormZero", "rmsnorm /round=norm/w/mods", block.attn.x, x=x, weight=block.norm1.norm.weight,
                         mod_scale=scale)
            self.compare("Lumina, behind attention", "rmsnorm /gateafter:tanh/addafter/round=norm/w", sums[0], x=a, gate=gate,
                         residual=x, weight=block.norm2.weight)

    def test_mochi(self):
        for dtype, x in self.each_type():
            block = made(MochiTransformerBlock(COLUMNS, 2, 128, COLUMNS), dtype)
            a, temb, sums = some(dtype, SAMPLES, TOKENS, COLUMNS), some(dtype, SAMPLES, COLUMNS), []
            block.attn1, block.ff, block.ff_context = Seen(a, a), Seen(x), Seen(x)
            block.norm3.register_forward_pre_hook(lambda module, inputs: sums.append(inputs[0]))
            block(x, x, temb, None)
            scale, gate, *_ = block.norm1.linear(functional.silu(temb))[:, None].chunk(4, -1)
            self.compare("Mochi", "rmsnorm /mods", block.norm1(x, temb)[0], x=x,
                         mod_scale=scale)
            self.compare("Mochi, behind attention", "rmsnorm /gateafter:tanh/addafter", sums[0], x=a, gate=gate, residual=x)

    def test_gated_rms_norms(self):
        for dtype, x in self.each_type():
            gate = some(dtype, *x.shape)
            module = made(Qwen3NextRMSNormGated(COLUMNS), dtype)
            self.compare("Qwen3-Next", "rmsnorm /gateafter:silu/round=norm/w", module(x, gate),
                         gated_rms_norm(x, gate, module.weight, 1e-6, round_norm=True), x=x, gate=gate, weight=module.weight)
            module = made(MambaRMSNormGated(COLUMNS), dtype)
            self.compare("Mamba-2", "rmsnorm /gate:silu/round=norm/w", module(x, gate),
                         gated_rms_norm(x, gate, module.weight, 1e-6, norm_before_gate=False, round_norm=True), x=x, gate=gate,
                         weight=module.weight)
            module, groups = made(Zamba2RMSNormGated(COLUMNS, 64), dtype), (COLUMNS // 64, 64)
            self.compare("Mamba-2 in groups (Zamba2)", "rmsnorm /gate:silu/round=norm/w:rows",
                         module(x, gate).unflatten(-1, groups), x=x.unflatten(-1, groups), gate=gate.unflatten(-1, groups),
                         weight=module.weight.view(groups))


def show():
    print("\n| module | spec | type | module is off by | normjit by | same bits |\n|---|---|---|---|---|---|")
    for name, (text, rows) in table.items():
        text = text.replace("/bf16", "/T")
        for kind in DTYPES:
            found = [row[1:] for row in rows if row[0] == kind]
            if found:
                print("| {} | `{}` | {} | {:.2f} | {:.2f} | {:.1%} |".format(
                    name, text, kind, *(max(row[at] for row in found) for at in (0, 1)), min(row[2] for row in found)))


if __name__ == "__main__":
    if FAKE:
        sys.argv.remove("--fake")
    done = unittest.main(exit=False)
    show()
    sys.exit(not done.result.wasSuccessful())
