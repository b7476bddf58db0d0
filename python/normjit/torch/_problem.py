# SPDX-License-Identifier: Apache-2.0
"""What a spec asks of its tensors: which operands there are, their types and shapes, and the addresses of their rows."""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from normjit import _gradients, _library
from normjit._operands import AFFINE, BLOCKS, COLUMNS, MATRIX, ONE, OPERANDS, PAIRS, ROWS, Operand, rows_of
from normjit.torch import _check

CODES = {dtype: _library.DTYPES[text] for dtype, text in {
    **_check.TEXTS, **_check.NARROW_TEXTS, **_check.TEXTS_OF_SCALES}.items()}
DTYPES = {code: dtype for dtype, code in CODES.items()}
CODES[torch.int32] = -1  # four scales; known to operator.cc alone
_torch_compiler: Any = torch.compiler  # which has no types

INPUTS = tuple(operand.name for operand in OPERANDS[1:] if not operand.output)  # besides x
OUTPUTS = tuple(operand.name for operand in OPERANDS if operand.output)


def in_order(**inputs: Tensor) -> list[Optional[Tensor]]:
    """These for their places among INPUTS, with None for the others."""
    return [inputs.get(name) for name in INPUTS]


class Problem:
    """A spec, in PyTorch's types. Every operator, formula and check reads it."""

    table: tuple[Operand, ...] = OPERANDS

    def __init__(self, text: str) -> None:
        self.text = text
        self.spec = spec = _library.parse_spec(text)
        self.by_name = {operand.name: operand for operand in self.table}
        if spec.backward and self.table is OPERANDS:
            raise _library.Error(_library.BAD_ARGUMENT, "normjit::norm: {} is the spec of gradients, which autograd asks "
                                 "for by itself; give that of the norm".format(text))
        self.columns: int = spec.columns
        self.epsilon: float = spec.epsilon
        self.scale: float = spec.scale
        self.activation: int = spec.activation
        self.layer = spec.norm == _library.NORMS["layernorm"]
        self.adds = _library.name_of(_library.RESIDUALS, spec.residual)
        self.gates = _library.name_of(_library.GATES, spec.gate)
        self.gate_function: int = spec.gate_function
        self.plain_modulation = bool(spec.plain_modulation)
        rounding = _library.name_of(_library.ROUNDINGS, spec.rounding).split("+")
        self.rounds_sum, self.rounds_norm, self.rounds_y = "sum" in rounding, "norm" in rounding, "y" in rounding
        self.weight_offset = bool(spec.weight_offset)
        self.affine_rows = bool(spec.affine_rows)
        self.channels_first = bool(spec.channels_first)
        # The text of the same norm where channels are the last dimension; None without channels first.
        self.channels_last = _channels_last_of(spec) if self.channels_first else None
        self.input, self.output = DTYPES[spec.input], DTYPES[spec.output]
        self.is_narrow = self.output in _check.NARROW_TEXTS
        self.inverse_scale = bool(spec.inverse_scale)
        self.weight, self.single = DTYPES[spec.weight], torch.float32
        also = _library.name_of(_library.ALSOS, spec.also)
        self.also = None if also == "none" else DTYPES[_library.DTYPES[also]]
        self.block = _library.block_of(spec)  # columns; 0: none has a scale
        self.scale_format = _library.name_of(_library.SCALE_FORMATS, spec.scale_format)
        self.scale_layout = _library.name_of(_library.SCALE_LAYOUTS, spec.scale_layout)
        self.block_scale = torch.int32 if self.scale_layout == "cols4" else {
            "e8m0": torch.float8_e8m0fnu, "e4m3": torch.float8_e4m3fn}.get(self.scale_format, torch.float32)
        # Of residual and sum, to which a sum is rounded.
        has_residual_type = self.adds != "none" or spec.sum or spec.dsum
        self.residual = DTYPES[spec.residual_type] if has_residual_type else self.input
        has_modulation_type = self.gates != "none" or spec.modulation != _library.MODULATIONS["none"]
        self.modulated = DTYPES[spec.modulation_type] if has_modulation_type else self.input
        self.gradient = DTYPES[spec.gradient_type]
        types = [self.input, self.output, self.residual, self.weight, self.modulated, self.gradient]
        self.compute = torch.float64 if torch.float64 in types else torch.float32
        self.operands = [operand.name for operand in self.table if operand.present(spec)]
        self.inputs = [name for name in self.operands if name != "x" and not self.by_name[name].output]
        self.outputs = [name for name in self.operands if self.by_name[name].output]
        self.outline = tuple(name in self.outputs for name in OUTPUTS), self.columns, self.channels_last

    def extent_of(self, name: str) -> str:
        """MATRIX, PAIRS, COLUMNS, ROWS, ONE or BLOCKS."""
        extent = self.by_name[name].extent
        if name == "out" and self.output == torch.float4_e2m1fn_x2:
            return PAIRS
        return extent if extent != AFFINE else MATRIX if self.affine_rows else COLUMNS

    def dtype_of(self, name: str) -> torch.dtype:
        dtype: torch.dtype = getattr(self, self.by_name[name].dtype)
        return dtype

    def has_rows(self, name: str) -> bool:
        """Whether an operand has a row for each of x."""
        return self.extent_of(name) in (MATRIX, PAIRS)

    def fail(self, what: str) -> RuntimeError:
        return RuntimeError("normjit::norm: {} (spec {})".format(what, self.text))

    # ---- Checks, which raise RuntimeError

    def check(self, tensors: Sequence[Optional[Tensor]]) -> int:
        """Whether these, for the first of `table`, fit the spec, but for layouts; row_dims of x. Outputs need not be
        given."""
        for operand, tensor in zip(self.table, tensors):
            present = operand.name in self.operands
            if tensor is not None and not present:
                raise self.fail("the spec has no {}, but one is given".format(operand.name))
            if tensor is None and present and not operand.output:
                raise self.fail("the spec needs {}".format(operand.name))
        x: Any = tensors[0]
        dims = self.row_dims(x)
        for operand, tensor in zip(self.table, tensors):
            if tensor is not None:
                self._check_tensor(operand, tensor, x, dims)
        return dims

    def require_gradients(self) -> None:
        if self.is_narrow:
            raise self.fail("results of 8 and 4 bits have no gradient, but an argument requires one; see torch.no_grad()")

    def require_outputs(self, given: Sequence[Optional[Tensor]]) -> None:
        for name, tensor in zip(OUTPUTS, given):
            if tensor is None and name in self.outputs:
                raise self.fail("the spec writes {}".format(name))

    def check_memory(self, tensors: Sequence[Optional[Tensor]], dims: int) -> None:
        """Whether outputs, of operands that passed check, can be written where they are."""
        x: Any = tensors[0]
        for operand, tensor in zip(self.table, tensors):
            if tensor is None or not operand.output:
                continue
            if self.has_rows(operand.name) and rows_at(tensor, dims + tensor.dim() - x.dim()) is None:
                raise self.fail("the rows of {}, with strides {}, cannot be addressed".format(
                    operand.name, list(tensor.stride())))
            if not self.has_rows(operand.name) and not tensor.is_contiguous():
                raise self.fail("{} is not contiguous".format(operand.name))

    def row_dims(self, x: Tensor) -> int:
        """How many of the last dimensions of x are a row; with channels first, a sample."""
        if self.channels_first:
            if x.dim() < 3 or x.shape[1] != self.columns:
                raise self.fail("x, of shape {}, is not [samples, {} channels, positions...]".format(
                    list(x.shape), self.columns))
            return x.dim() - 1
        elements = 1
        for dims in range(1, x.dim() + 1):
            elements *= x.shape[-dims]
            if elements == self.columns:
                return dims
        raise self.fail("the last dimensions of x, of shape {}, are no row of {} elements".format(
            list(x.shape), self.columns))

    def _check_tensor(self, operand: Operand, tensor: Tensor, x: Tensor, dims: int) -> None:
        name, wanted = operand.name, self.shape_of(operand.name, x, dims)
        if tensor.dtype != self.dtype_of(name):
            raise self.fail("{} is of {}; the spec says {}".format(name, tensor.dtype, self.dtype_of(name)))
        if tensor.device != x.device:
            raise self.fail("{} is on {}, x on {}".format(name, tensor.device, x.device))
        if operand.output and operand.extent != ONE:
            if tensor.shape != wanted:
                raise self.fail("{} has the shape {}; it must be {}".format(name, list(tensor.shape), list(wanted)))
        elif self.has_rows(name):
            missing = len(wanted) - tensor.dim()
            if missing < 0 or any(size not in (1, there) for size, there in zip(tensor.shape, wanted[missing:])):
                raise self.fail("{} of shape {} cannot be expanded to x's {}".format(
                    name, list(tensor.shape), list(wanted)))
        elif self.extent_of(name) == ONE:
            if tensor.numel() != 1:
                raise self.fail("{} has the shape {}; it must be one number".format(name, list(tensor.shape)))
        elif tensor.shape not in (wanted, (self.columns,)):
            raise self.fail("{} has the shape {}; a row of x has {}".format(name, list(tensor.shape), list(wanted)))

    # ---- Memory

    def shape_of(self, name: str, x: Tensor, dims: int) -> torch.Size:
        """Ones stand in the place of the normalized dimensions where there is a number for each row, as in PyTorch. Pairs of
        columns and scales of blocks have them in the last dimension; scales may be laid out for all rows together."""
        extent = self.extent_of(name)
        if extent == MATRIX:
            return x.shape
        if extent == PAIRS:
            return torch.Size((*x.shape[:-dims], self.columns // 2))
        if extent == ONE:
            return torch.Size(())
        if extent == BLOCKS:
            if self.scale_layout == "rows":
                return torch.Size((*x.shape[:-dims], self.columns // self.block))
            return torch.Size(_library.scale_sizes(self.spec, math.prod(x.shape[:-dims])))
        if self.channels_first:
            return torch.Size((x.shape[0], 1, *x.shape[2:]) if extent == ROWS else (self.columns,))
        return torch.Size((*x.shape[:-dims], *(1,) * dims)) if extent == ROWS else x.shape[-dims:]

    def empty(self, output: str, x: Tensor, dims: int) -> Tensor:
        return x.new_empty(self.shape_of(output, x, dims), dtype=self.dtype_of(output))


@functools.lru_cache(maxsize=None)
def problem_of(text: str) -> Problem:
    """Raises _library.Error for a text that is no valid spec of a norm."""
    return Problem(text)


def has_gradient_kernel(problem: Problem) -> bool:
    """Whether the gradients of a norm are those of a backward spec. With "/shape=" it is one that Inductor may have back
    (_fusion.to_fuse), and its gradients with it."""
    return "/shape=" not in problem.text and _gradients.have_kernel(problem.spec)


def _channels_last_of(spec: _library.Spec) -> str:
    plain = _library.Spec.from_buffer_copy(spec)
    plain.channels_first = 0
    return _library.spec_text(plain)


Outline = tuple[tuple[bool, ...], int, Optional[str]]


def _outline_of(text: str) -> Outline:
    return problem_of(text).outline


# Of a spec: which of OUTPUTS it writes, its columns, and Problem.channels_last. torch.compile takes it for a constant.
outline_of: Callable[[str], Outline] = _torch_compiler.assume_constant_result(_outline_of)


def with_columns_last(tensor: Tensor, dims: int) -> Tensor:
    """A view of a tensor that expands to one of so many dimensions, with the second of these behind the others."""
    return tensor[(None,) * (dims - tensor.dim())].movedim(1, -1)


def rows_at(tensor: Tensor, dims: int) -> tuple[int, int, int] | None:
    """rows_of a tensor."""
    return rows_of(tensor.shape, tensor.stride(), dims)
