# SPDX-License-Identifier: Apache-2.0
"""A spec in PyTorch's own operators: what tensors off the GPU compute, and what gradients are made of."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from normjit import _library
from normjit.torch._activation import NONE, activate
from normjit.torch._problem import INPUTS, Problem, problem_of, with_columns_last


def _normalized(problem: Problem, s: Tensor, shape: tuple[int, ...], weight: Optional[Tensor] = None,
                bias: Optional[Tensor] = None) -> Tensor:
    if weight is not None:
        weight = weight.reshape(shape)
    if problem.layer:
        return F.layer_norm(s, shape, weight, None if bias is None else bias.reshape(shape), problem.epsilon)
    y = F.rms_norm(s, shape, weight, problem.epsilon)
    return y if bias is None else y + bias.reshape(shape)


def _sum_in_storage(problem: Problem, x: Tensor, residual: Optional[Tensor]) -> Optional[Tensor]:
    """What is normalized, in a type of storage; None where the spec has it in the compute type."""
    if "in_bias" in problem.inputs or problem.gates == "gate":
        return None
    if problem.adds != "add":
        return x
    assert residual is not None
    same = x.dtype == residual.dtype
    return x + residual if same and (problem.rounds_sum or x.dtype == problem.compute) else None


def _by_fused_operator(problem: Problem, s: Tensor, weight: Optional[Tensor], bias: Optional[Tensor],
                       shape: tuple[int, ...]) -> Optional[Tensor]:
    """The result with PyTorch's own fused kernels, forward and backward, on tensors of storage types; None where they
    round elsewhere than the spec."""
    if (problem.activation != NONE or problem.scale != 1.0 or problem.adds == "addafter" or problem.affine_rows
            or problem.weight_offset or problem.gates == "gateafter" or "mod_scale" in problem.inputs):
        return None
    if problem.rounds_norm:
        assert weight is not None
        fits = s.dtype == problem.input and bias is None and torch.promote_types(s.dtype, weight.dtype) == problem.output
        return _normalized(problem, s, shape) * weight.reshape(shape) if fits else None
    fits = s.dtype == problem.output and all(part is None or part.dtype == s.dtype for part in (weight, bias))
    if not problem.layer and bias is not None and s.dtype != problem.compute:
        fits = False  # F.rms_norm has no bias, and rounds in front of one
    return _normalized(problem, s, shape, weight, bias) if fits else None


def _statistics(problem: Problem, s: Tensor, dims: tuple[int, ...]) -> dict[str, Tensor]:
    mean = s.mean(dims, keepdim=True)
    square = (s - mean if problem.layer else s).square().mean(dims, keepdim=True)
    return {"mean": mean, "rstd": torch.rsqrt(square + problem.epsilon)}


_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0, torch.float4_e2m1fn_x2: 6.0}


def _scales_of(problem: Problem, y: Tensor, dims: tuple[int, ...], upper_bound: Optional[Tensor]) -> Tensor:
    """What each row of y is divided by. A quotient of tensors, since PyTorch multiplies by the inverse of a number."""
    largest = _LARGEST[problem.output]
    most = y.abs().amax(dims, keepdim=True)
    if upper_bound is not None:
        bound = upper_bound.reshape(())
        most = torch.where(most > bound, bound, most)
    floor = 2.0 ** -23 if problem.output == torch.int8 else 1 / (512 * largest)
    return (most / torch.full_like(most, largest)).clamp(min=floor)


def _in_blocks(problem: Problem, y: Tensor, dims: int, global_scale: Optional[Tensor]) -> tuple[Tensor, Tensor]:
    """y in front of its rounding, and the scales of its blocks."""
    blocks = y.reshape(*y.shape[:-dims], problem.columns // problem.block, problem.block)
    most = blocks.abs().amax(-1)
    largest = torch.full_like(most, _LARGEST[problem.output])
    if problem.scale_format == "e4m3":
        assert global_scale is not None
        by = global_scale.reshape(())
        stored = (by * (most * largest.reciprocal())).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        scale = stored.to(torch.float32)
        blocks = blocks * torch.where(scale == 0, 0.0, by / scale)[..., None]
        return blocks.reshape(y.shape), _laid_out(problem, stored)
    stored = scale = most.clamp(min=1e-10) / largest
    if problem.scale_format != "f32":  # up to a power of two; what is not finite stays
        bits = scale.view(torch.int32)
        scale = torch.where(scale.isfinite(), (bits + 0x7fffff & 0x7f800000).view(torch.float32), scale)
        if problem.scale_format == "e8m0":
            scale = scale.clamp(max=2.0 ** 127)
            exponents = torch.where(scale.isnan(), 255, scale.view(torch.int32) >> 23)
            stored = exponents.to(torch.uint8).view(torch.float8_e8m0fnu)
        else:
            stored = scale
    divides = problem.scale_format == "f32" and problem.output != torch.int8
    blocks = blocks / scale[..., None] if divides else blocks * scale.reciprocal()[..., None]
    return blocks.reshape(y.shape), _laid_out(problem, stored)


def _laid_out(problem: Problem, scales: Tensor) -> Tensor:
    """The scales of blocks, [..., K], as the spec lays them out; see ScaleLayout in normjit/spec.h."""
    if problem.scale_layout == "rows":
        return scales
    dtype, (rows, columns) = scales.dtype, {"cols": (4, 1), "cols4": (4, 4), "sw": (128, 4)}[problem.scale_layout]
    scales = scales.reshape(-1, scales.shape[-1]).view(torch.int32 if dtype == torch.float32 else torch.uint8)
    scales = F.pad(scales, (0, -scales.shape[1] % columns, 0, -scales.shape[0] % rows))
    if problem.scale_layout == "cols":
        return scales.t().contiguous().view(dtype)
    if problem.scale_layout == "cols4":
        words = scales.reshape(len(scales), scales.shape[1] // 4, 4).transpose(0, 1).contiguous()
        return words.view(torch.int32).squeeze(-1)
    tiles = scales.reshape(len(scales) // 128, 4, 32, scales.shape[1] // 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(*tiles.shape[:2], 512).view(dtype)


def _amax_of(y: Tensor) -> Tensor:
    """The largest magnitude, which has no gradient. 0 of nothing."""
    y = y.detach().to(torch.float32).abs()
    return y.amax() if y.numel() != 0 else y.new_zeros(())


def _narrowed(problem: Problem, y: Tensor, dims: int) -> Tensor:
    """To the nearest, and to the largest number where y is beyond it; NaN is 0 in whole numbers, and 6 in e2m1."""
    largest = _LARGEST[problem.output]
    if problem.output == torch.float4_e2m1fn_x2:
        return _in_pairs(y.flatten(-dims))
    if problem.output == torch.int8:
        return y.round().clamp(-largest - 1, largest).nan_to_num(0.0).to(torch.int8)
    return y.clamp(-largest, largest).to(problem.output)


def _in_pairs(y: Tensor) -> Tensor:
    """e2m1, the even column in the lower half of a byte. Its magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 have the codes 0 .. 7."""
    most = y.abs().clamp(max=6.0)
    codes = torch.where(most < 2, (most * 2).round(), torch.where(most < 4, most.round() + 2, (most / 2).round() + 4))
    codes = torch.where(y.isnan(), 7.0, codes + 8 * y.signbit()).to(torch.uint8)
    return (codes[..., ::2] | codes[..., 1::2] << 4).view(torch.float4_e2m1fn_x2)


_GATE_FUNCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    _library.GATE_FUNCTIONS[name]: function for name, function in (
        (None, lambda gate: gate), ("silu", F.silu), ("sigmoid", torch.sigmoid), ("tanh", torch.tanh))}


def formula(problem: Problem, x: Tensor, *inputs: Optional[Tensor]) -> list[Tensor]:
    """The outputs of a spec, in the order of Problem.outputs, of all INPUTS. Differentiable; a rounding passes gradients
    on as they are."""
    dims = problem.check((x, *inputs))
    if problem.channels_last is not None:
        moved = [with_columns_last(part, x.dim()) if part is not None and problem.has_rows(name) else part
                 for name, part in zip(INPUTS, inputs)]
        return [y.movedim(-1, 1) for y in formula(problem_of(problem.channels_last), x.movedim(1, -1), *moved)]
    shape, wide = tuple(x.shape[-dims:]), problem.compute
    given: dict[str, Any] = dict(zip(INPUTS, inputs))

    def of(name: str) -> Tensor:
        """An operand in the compute type."""
        wider: Tensor = given[name].to(wide)
        return wider if problem.has_rows(name) else wider.reshape(shape)

    def with_table(name: str, table: str) -> Tensor:
        return of(name) if given[table] is None else of(name) + of(table)

    def gated(value: Tensor) -> Tensor:
        return value * _GATE_FUNCTIONS[problem.gate_function](with_table("gate", "gate_table"))
    stored = _sum_in_storage(problem, x, given["residual"])
    if stored is not None:
        s = stored.to(wide)
    else:
        s = x.to(wide)
        if given["in_bias"] is not None:
            s = s + of("in_bias")
        if problem.gates == "gate":
            s = gated(s)
        if problem.adds == "add":
            s = s + of("residual")
        if problem.rounds_sum:
            s = s.to(problem.residual).to(wide)
    y = None if stored is None else _by_fused_operator(problem, stored, given["weight"], given["bias"], shape)
    if y is None:
        y = _normalized(problem, s, shape)
        if problem.rounds_norm:
            y = y.to(problem.input).to(wide)
        if given["weight"] is not None:
            y = y * (1 + of("weight") if problem.weight_offset else of("weight"))
        if given["bias"] is not None:
            y = y + of("bias")
        if given["mod_scale"] is not None:
            scale = with_table("mod_scale", "mod_scale_table")
            y = y * (scale if problem.plain_modulation else 1 + scale)
        if given["mod_shift"] is not None:
            y = y + with_table("mod_shift", "mod_shift_table")
        y = activate(y, problem.activation, problem.scale)
        if problem.gates == "gateafter":
            y = gated(y)
        if problem.adds == "addafter":
            y = y + of("residual")
    found = {"sum": s.to(problem.residual)}
    if problem.rounds_y:
        y = y.to(problem.input).to(wide)
    if problem.also is not None:
        found["also"] = y.to(problem.also)
    if problem.is_narrow and problem.spec.amax:
        found["amax"] = _amax_of(y)
    if given["tensor_scale"] is not None:
        scale = given["tensor_scale"].reshape(())
        y = y * (scale if problem.inverse_scale else scale.reciprocal())
    if "row_scale" in problem.outputs:
        found["row_scale"] = _scales_of(problem, y, tuple(range(-dims, 0)), given["upper_bound"])
        y = y * found["row_scale"].reciprocal() if problem.output == torch.int8 else y / found["row_scale"]
    if problem.block:
        y, found["block_scale"] = _in_blocks(problem, y, dims, given["global_scale"])
    found["out"] = _narrowed(problem, y, dims) if problem.is_narrow else y.to(problem.output)
    if not problem.is_narrow and problem.spec.amax:
        found["amax"] = _amax_of(found["out"])
    if found["sum"] is x:  # an output never is an input
        found["sum"] = x.clone()
    if "rstd" in problem.outputs:
        found.update(_statistics(problem, s, tuple(range(-dims, 0))))
    return [found[name] for name in problem.outputs]
