# SPDX-License-Identifier: Apache-2.0
"""A spec in PyTorch's own operators: what tensors off the GPU compute, and what gradients are made of."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from normjit.torch._problem import Problem
from normjit.torch._rules import NONE, activate


def _normalized(problem: Problem, s: Tensor, shape: tuple[int, ...], weight: Optional[Tensor] = None,
                bias: Optional[Tensor] = None) -> Tensor:
    if weight is not None:
        weight = weight.reshape(shape)
    if problem.layer:
        return F.layer_norm(s, shape, weight, None if bias is None else bias.reshape(shape), problem.epsilon)
    y = F.rms_norm(s, shape, weight, problem.epsilon)
    return y if bias is None else y + bias.reshape(shape)


def _sum_in_storage(problem: Problem, x: Tensor, in_bias: Optional[Tensor],
                    residual: Optional[Tensor]) -> Optional[Tensor]:
    """What is normalized, in a type of storage; None where the spec has it in the compute type."""
    if in_bias is not None:
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
            or problem.weight_offset):
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


def formula(problem: Problem, x: Tensor, in_bias: Optional[Tensor], residual: Optional[Tensor],
            weight: Optional[Tensor], bias: Optional[Tensor]) -> list[Tensor]:
    """The outputs of a spec, in the order of Problem.outputs. Differentiable; a rounding passes gradients on as they
    are."""
    dims = problem.check((x, in_bias, residual, weight, bias))
    shape, wide = tuple(x.shape[-dims:]), problem.compute

    def of(name: str, tensor: Any) -> Tensor:
        """An operand in the compute type."""
        wider: Tensor = tensor.to(wide)
        return wider if problem.has_rows(name) else wider.reshape(shape)
    stored = _sum_in_storage(problem, x, in_bias, residual)
    if stored is not None:
        s = stored.to(wide)
    else:
        s = of("x", x)
        if in_bias is not None:
            s = s + of("in_bias", in_bias)
        if problem.adds == "add":
            s = s + of("residual", residual)
        if problem.rounds_sum:
            s = s.to(problem.residual).to(wide)
    y = None if stored is None else _by_fused_operator(problem, stored, weight, bias, shape)
    if y is None:
        y = _normalized(problem, s, shape)
        if problem.rounds_norm:
            y = y.to(problem.input).to(wide)
        if weight is not None:
            y = y * (1 + of("weight", weight) if problem.weight_offset else of("weight", weight))
        if bias is not None:
            y = y + of("bias", bias)
        y = activate(y, problem.activation, problem.scale)
        if problem.adds == "addafter":
            y = y + of("residual", residual)
    found = {"out": y.to(problem.output), "sum": s.to(problem.residual)}
    if found["sum"] is x:  # an output never is an input
        found["sum"] = x.clone()
    if "rstd" in problem.outputs:
        found.update(_statistics(problem, s, tuple(range(-dims, 0))))
    return [found[name] for name in problem.outputs]
