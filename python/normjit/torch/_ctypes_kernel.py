# SPDX-License-Identifier: Apache-2.0
"""The operators' kernels where no C++ compiler is found: the same as operator.cc, by ctypes."""
from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from normjit import _library
from normjit._gradients import UNAVAILABLE, need_of
from normjit._operands import GRADIENT_OPERANDS, ONE, OPERANDS
from normjit.torch import _check, _gradients
from normjit.torch._activation import NONE
from normjit.torch._launch import launch
from normjit.torch._problem import OUTPUTS, Problem, problem_of, rows_at

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


class _Plan:
    """A launch but for its pointers, for operands of certain layouts. All checks are made here, and none per call."""

    def __init__(self, problem: Problem, operands: Sequence[Maybe]) -> None:
        x: Any = operands[0]
        dims = problem.check(operands)
        problem.check_memory(operands, dims)
        arguments = _library.Tensors(rows=x.numel() // problem.columns,
                                     plane=x.shape[2:].numel() if problem.channels_first else 0)
        self.made: list[tuple[int, torch.Size, torch.dtype]] = []  # places in the table, of outputs that are not given
        # Places in the table, offsets of pointers in the arguments, and for inputs to be copied the shape of the copy.
        self.places: list[tuple[int, int, Optional[torch.Size]]] = []
        self.numbers = [at for at, operand in enumerate(problem.table)  # outputs that are 0 of no elements
                        if operand.output and operand.extent == ONE and operand.name in problem.operands]
        for at, (operand, tensor) in enumerate(zip(problem.table, operands)):
            if operand.name not in problem.operands:
                continue
            copied, shape = None, problem.shape_of(operand.name, x, dims)
            if tensor is None:
                self.made.append((at, shape, problem.dtype_of(operand.name)))
            elif not problem.has_rows(operand.name):
                copied = None if tensor.is_contiguous() else tensor.shape
            else:
                found = rows_at(tensor.expand(shape), dims + len(shape) - x.dim())
                copied = shape if found is None else None
                if operand.output and found == (0, 1, 0):  # the sum over all rows
                    found = problem.columns, arguments.rows, 0
                setattr(arguments, operand.member, _library.Rows(None, *found or ()))
            self.places.append((at, getattr(_library.Tensors, operand.member).offset, copied))
        self.arguments = bytes(arguments)

    def run(self, problem: Problem, batch_invariant: bool, operands: Sequence[Maybe]) -> dict[int, Tensor]:
        """The outputs that are not given, by their places."""
        x: Any = operands[0]
        made = {at: torch.empty(shape, dtype=dtype, device=x.device) for at, shape, dtype in self.made}
        if x.numel() == 0:
            for number in (made.get(at, operands[at]) for at in self.numbers):
                assert number is not None
                number.zero_()
            return made
        arguments, kept = _library.Tensors.from_buffer_copy(self.arguments), []
        for at, offset, copied in self.places:
            tensor: Any = made.get(at, operands[at])
            if copied is not None:
                tensor = tensor.expand(copied).contiguous()
                kept.append(tensor)
            _POINTER.pack_into(arguments, offset, tensor.data_ptr())
        launch(problem.spec, arguments, x.device, batch_invariant)
        return made


_POINTER = struct.Struct("P")
_MOST_PLANS = 4096
_plans: dict[Any, _Plan] = {}


def _run(problem: Problem, batch_invariant: bool, operands: Sequence[Maybe]) -> tuple[Maybe, ...]:
    """The outputs of the table that are not given, None for the others."""
    key = (problem.text, *[None if part is None else (part.shape, part.stride(), part.dtype, part.device)
                           for part in operands])
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        plan = _plans[key] = _Plan(problem, operands)
    made = plan.run(problem, batch_invariant, operands)
    return tuple(made.get(at) for at, operand in enumerate(problem.table) if operand.output)


# ---- LayerNorm

def layer_norm(x: Tensor, dims: int, weight: Maybe, bias: Maybe, eps: float, activation: int = 1, scale: float = 1.0,
               dtype: torch.dtype | None = None) -> Any:
    _check.arguments(x, dims, weight, bias, dtype)
    if not _takes_epsilon(eps):
        return torch.ops.normjit.layer_norm_by_pytorch(x, dims, weight, bias, eps, activation, scale, dtype)
    if x.numel() == 0:  # a row may be empty, too, which is no spec
        return x.new_empty(x.shape, dtype=dtype)
    affine = "none" if weight is None else "w" if bias is None else "wb"
    problem = _layer_norm_problem(x.shape[-dims:].numel(), eps, scale, _code(x.dtype), _code(dtype or x.dtype),
                                  _code(x.dtype if weight is None else weight.dtype), affine, activation)
    given = {"x": x, "weight": None if weight is None else weight.reshape(-1),
             "bias": None if bias is None else bias.reshape(-1)}
    made: Any = dict(zip(OUTPUTS, _run(problem, False, [given.get(operand.name) for operand in OPERANDS])))
    return made["out"]


def _takes_epsilon(eps: float) -> bool:
    return 0 <= eps <= _library.LARGEST_EPSILON


@functools.lru_cache(maxsize=1024)
def _layer_norm_problem(columns: int, eps: float, scale: float, input: int, output: int, weight: int, affine: str,
                        activation: int) -> Problem:
    return problem_of(_library.spec_text(_library.Spec(
        columns, eps, scale, input=input, output=output, weight=weight, affine=_library.AFFINES[affine],
        activation=activation)))


def _code(dtype: torch.dtype) -> int:
    return _library.DTYPES[_check.TEXTS[dtype]]


# ---- Gradients

class _GradientProblem(Problem):
    """A backward spec. dweight and dbias are over all rows, and 0 of none."""

    table = GRADIENT_OPERANDS


@functools.lru_cache(maxsize=1024)
def _gradient_problem(columns: int, eps: float, activation: int, scale: float, gate_place: int, gate_function: int,
                      modulation: str, plain_modulation: bool, layer: bool, affine: str, weight_offset: bool, dsum: bool,
                      need: int, input: int, output: int, weight: int, residual: int, modulated: int) -> _GradientProblem:
    return _GradientProblem(_library.spec_text(_library.Spec(
        columns, eps, scale, backward=1, norm=_library.NORMS["layernorm" if layer else "rmsnorm"],
        affine=_library.AFFINES[affine], weight_offset=int(weight_offset), activation=activation, dsum=int(dsum),
        gate=gate_place, gate_function=gate_function, modulation=_library.MODULATIONS[modulation],
        plain_modulation=int(plain_modulation), need=need, input=input, output=output, weight=weight, gradient_type=weight,
        residual_type=residual, modulation_type=modulated)))


def norm_backward(x: Tensor, dims: int, weight: Maybe, bias: Maybe, dy: Tensor, dsum: Maybe, gate: Maybe,
                  mod_scale: Maybe, mod_shift: Maybe, eps: float, activation: int, scale: float, gate_place: int,
                  gate_function: int, plain_modulation: bool, layer: bool, weight_offset: bool, of_x: bool, of_weight: bool,
                  of_bias: bool, batch_invariant: bool) -> Any:
    """By PyTorch where the norm has a kernel and its gradients have none."""
    reads_bias = _gradients.reads_bias(activation, gate_place, mod_scale, of_x)
    _check.gradients(x, dims, weight, bias, dy, dsum, gate, mod_scale, mod_shift, gate_place, of_bias and reads_bias)
    arguments = (x, dims, weight, bias if reads_bias else None, dy, dsum if of_x else None, gate, mod_scale, mod_shift, eps,
                 activation, scale, gate_place, gate_function, plain_modulation, layer, weight_offset, of_x,
                 of_weight and weight is not None, of_bias and weight is not None, batch_invariant)
    made = None
    if _takes_epsilon(eps):
        try:
            made = _gradients_of(*arguments)
        except RuntimeError as error:
            if not any(isinstance(why, _library.Error) and why.status in UNAVAILABLE for why in (error, error.__cause__)):
                raise
    if made is None:
        return torch.ops.normjit.norm_backward_by_pytorch(*arguments)
    return tuple(x.new_empty(0) if part is None else part for part in made)


def _gradients_of(x: Tensor, dims: int, weight: Maybe, bias: Maybe, dy: Tensor, dsum: Maybe, gate: Maybe,
                  mod_scale: Maybe, mod_shift: Maybe, eps: float, activation: int, scale: float, gate_place: int,
                  gate_function: int, plain_modulation: bool, layer: bool, weight_offset: bool, of_x: bool, of_weight: bool,
                  of_bias: bool, batch_invariant: bool) -> Optional[Sequence[Maybe]]:
    """dx, dweight, dbias, dgate, dmod_scale and dmod_shift, and None in the place of what is not made. None where there is no
    kernel."""
    row = x.shape[-dims:]
    made = [part.new_empty(shape or part.shape) if part is not None and wanted else None
            for part, shape, wanted in ((x, None, of_x), (weight, row, of_weight), (weight, row, of_bias), (gate, x.shape, of_x),
                                        (mod_scale, None, of_x), (mod_shift, None, of_x))]
    if x.numel() == 0:  # a row may be empty, too
        return [None if part is None else part.zero_() for part in made]
    if not (of_x or of_weight or of_bias):
        return made
    if not _are_of_groups(x, dims, mod_scale, mod_shift):
        return None
    affine = "none" if weight is None else "wb" if of_bias or bias is not None else "w"
    modulation = "none" if mod_scale is None else "mods" if mod_shift is None else "mod"
    problem = _gradient_problem(
        row.numel(), eps, activation, scale, gate_place, gate_function, modulation, plain_modulation and mod_scale is not None,
        layer, affine, weight_offset and weight is not None, dsum is not None, need_of(of_x, of_weight, of_bias),
        *[_code(x.dtype if part is None else part.dtype)
          for part in (x, dy, weight, dsum, mod_scale if gate is None else gate)])
    vectors = [None if part is None else part.reshape(-1) for part in (weight, bias)]
    factors = [None if part is None or name not in problem.operands else part.contiguous()
               for name, part in (("mod_scale", mod_scale), ("mod_shift", mod_shift))]
    as_row = x.shape[-problem.row_dims(x):]
    of_vectors = [None if part is None else part.view(as_row) for part in made[1:3]]
    of_factors = [None if part is None else part.expand(x.shape) for part in made[4:]]
    _run(problem, batch_invariant, (x, gate, *vectors, factors[0], None, factors[1], None, dy, dsum,
                                    made[0], *of_vectors, made[3], *of_factors))
    return made


def _are_of_groups(x: Tensor, dims: int, *modulation: Maybe) -> bool:
    """Whether the same rows of x share these, and are neighbours: those of the last of its leading dimensions."""
    shapes = {(*(1,) * (x.dim() - part.dim()), *part.shape) for part in modulation if part is not None}
    leading = x.shape[:-dims]
    for shape in shapes:
        shared = [size == 1 for size, there in zip(shape, leading) if there != 1]
        if shape[-dims:] != x.shape[-dims:] or shared != sorted(shared):
            return False
    return len(shapes) < 2


KERNELS = {"_launch": launch_problem, "layer_norm": layer_norm, "layer_norm_with_gradients": layer_norm,
           "norm_backward": norm_backward}
