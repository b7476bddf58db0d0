# SPDX-License-Identifier: Apache-2.0
"""A spec in PyTorch's own operators: what tensors off the GPU compute, and what gradients are made of."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from normjit import _library
from normjit.torch._problem import INPUTS, Problem, problem_of, with_columns_last
from normjit.torch._rules import NONE, activate


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


_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


def _scales_of(problem: Problem, y: Tensor, dims: tuple[int, ...]) -> Tensor:
    """What each row of y is divided by. A quotient of tensors, since PyTorch multiplies by the inverse of a number."""
    largest = _LARGEST[problem.output]
    most = y.abs().amax(dims, keepdim=True)
    floor = 2.0 ** -23 if problem.output == torch.int8 else 1 / (512 * largest)
    return (most / torch.full_like(most, largest)).clamp(min=floor)


def _in_8_bits(problem: Problem, y: Tensor) -> Tensor:
    """To the nearest, and to the largest number where y is beyond it; NaN is 0 in whole numbers."""
    largest = _LARGEST[problem.output]
    if problem.output == torch.int8:
        return y.round().clamp(-largest - 1, largest).nan_to_num(0.0).to(torch.int8)
    return y.clamp(-largest, largest).to(problem.output)


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
    if given["tensor_scale"] is not None:
        scale = given["tensor_scale"].reshape(())
        y = y * (scale if problem.inverse_scale else scale.reciprocal())
    if "row_scale" in problem.outputs:
        found["row_scale"] = _scales_of(problem, y, tuple(range(-dims, 0)))
        y = y * found["row_scale"].reciprocal() if problem.output == torch.int8 else y / found["row_scale"]
    found["out"] = _in_8_bits(problem, y) if problem.has_8_bits else y.to(problem.output)
    if found["sum"] is x:  # an output never is an input
        found["sum"] = x.clone()
    if "rstd" in problem.outputs:
        found.update(_statistics(problem, s, tuple(range(-dims, 0))))
    return [found[name] for name in problem.outputs]
