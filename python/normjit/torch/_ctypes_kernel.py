# SPDX-License-Identifier: Apache-2.0
"""The operators' kernels where no C++ compiler is found: the same as operator.cc, by ctypes."""
from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from normjit import _library
from normjit.torch import _check
from normjit.torch._launch import launch
from normjit.torch._problem import AFFINE, MATRIX, OPERANDS, OUTPUTS, Operand, Problem, problem_of, rows_at

Maybe = Optional[Tensor]


# ---- Every spec

_problems: dict[int, tuple[Problem, bool]] = {}
_numbers = itertools.count()


def add(problem: Problem, batch_invariant: bool) -> int:
    """The number of a new problem."""
    number = next(_numbers)
    _problems[number] = problem, batch_invariant
    return number


def launch_problem(number: int, *operands: Maybe) -> tuple[Maybe, ...]:
    return _run(*_problems[number], operands)


def _run(problem: Problem, batch_invariant: bool, operands: Sequence[Maybe]) -> tuple[Maybe, ...]:
    """The outputs that are not given."""
    x: Any = operands[0]
    dims = problem.check(operands)
    problem.check_memory(operands, dims)
    made = {name: problem.empty(name, x, dims) for name, given in zip(OUTPUTS, operands[-len(OUTPUTS):])
            if name in problem.outputs and given is None}
    if x.numel() != 0:
        arguments = _library.Tensors(rows=x.numel() // problem.columns)
        kept = [_place(problem, arguments, operand, tensor, x.shape, dims)
                for operand, given in zip(OPERANDS, operands)
                for tensor in (made.get(operand.name, given),) if tensor is not None]
        launch(problem.spec, arguments, x.device, batch_invariant)
        del kept
    return tuple(map(made.get, OUTPUTS))


def _place(problem: Problem, arguments: _library.Tensors, operand: Operand, tensor: Tensor, shape: torch.Size,
           dims: int) -> Tensor:
    """Puts an operand into the arguments; the tensor that is read there, which may be a copy."""
    rows = None
    if problem.has_rows(operand.name):
        tensor = tensor.expand(shape)
        rows = rows_at(tensor, dims)
    if rows is None:
        tensor, rows = tensor.contiguous(), (-1, 1, 0)
    pointer = tensor.data_ptr()
    has_rows = operand.extent in (MATRIX, AFFINE)  # whether its member of normjit_tensors does
    setattr(arguments, operand.member, _library.Rows(pointer, *rows) if has_rows else pointer)
    return tensor


# ---- LayerNorm

def _layer_norm(statistics: bool, x: Tensor, dims: int, weight: Maybe, bias: Maybe, eps: float, activation: int,
                scale: float, dtype: torch.dtype | None) -> tuple[Tensor, Any, Any]:
    """y, mean and rstd; None in the place of the latter unless they are asked for."""
    _check.arguments(x, dims, weight, bias, dtype)
    if not 0 <= eps <= _library.LARGEST_EPSILON:
        y, mean, rstd = torch.ops.normjit.layer_norm_by_pytorch(x, dims, weight, bias, eps, activation, scale, dtype)
        return y, mean, rstd
    if x.numel() == 0:  # a row may be empty, too, which is no spec
        mean, rstd = (_check.empty_statistics(x, dims, weight, dtype) if statistics else None for _ in range(2))
        return x.new_empty(x.shape, dtype=dtype), mean, rstd
    spec = _library.Spec(x.shape[-dims:].numel(), eps, scale, input=_code(x.dtype), output=_code(dtype or x.dtype),
                         weight=_code(x.dtype if weight is None else weight.dtype), activation=activation,
                         affine=_library.AFFINES["none" if weight is None else "w" if bias is None else "wb"],
                         statistics=int(statistics))
    given = {"x": x, "weight": None if weight is None else weight.reshape(-1),
             "bias": None if bias is None else bias.reshape(-1)}
    made = dict(zip(OUTPUTS, _run(problem_of(_library.spec_text(spec)), False,
                                  [given.get(operand.name) for operand in OPERANDS])))
    y = made["out"]
    assert y is not None
    return y, made["mean"], made["rstd"]


def _code(dtype: torch.dtype) -> int:
    return _library.DTYPES[_check.TEXTS[dtype]]


def layer_norm(x: Tensor, dims: int, weight: Maybe, bias: Maybe, eps: float, activation: int = 1,
               scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    return _layer_norm(False, x, dims, weight, bias, eps, activation, scale, dtype)[0]


def layer_norm_with_statistics(x: Tensor, dims: int, weight: Maybe, bias: Maybe, eps: float,
                               activation: int = 1, scale: float = 1.0,
                               dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
    return _layer_norm(True, x, dims, weight, bias, eps, activation, scale, dtype)


KERNELS = {"_launch": launch_problem, "layer_norm": layer_norm, "layer_norm_with_statistics": layer_norm_with_statistics}
