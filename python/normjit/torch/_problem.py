# SPDX-License-Identifier: Apache-2.0
"""What a spec asks of its tensors: which operands there are, their types and shapes, and the addresses of their rows."""
from __future__ import annotations

import functools
from typing import Optional

import torch
from torch import Tensor

from normjit import _library
from normjit.torch import _check

DTYPES = {_library.DTYPES[text]: dtype for dtype, text in _check.TEXTS.items()}
INPUTS = ("in_bias", "residual", "weight", "bias")  # besides x
OUTPUTS = ("out", "sum", "mean", "rstd")


class Problem:
    """A spec, in PyTorch's types. Every operator, formula and check reads it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spec = spec = _library.parse_spec(text)
        self.columns: int = spec.columns
        self.epsilon: float = spec.epsilon
        self.scale: float = spec.scale
        self.activation: int = spec.activation
        self.layer = spec.norm == _library.NORMS["layernorm"]
        self.adds = {code: name for name, code in _library.RESIDUALS.items()}[spec.residual]
        rounding = {code: name for name, code in _library.ROUNDINGS.items()}[spec.rounding]
        self.rounds_sum, self.rounds_norm = "sum" in rounding, "norm" in rounding
        self.weight_offset = bool(spec.weight_offset)
        self.affine_rows = bool(spec.affine_rows)
        self.input, self.output = DTYPES[spec.input], DTYPES[spec.output]
        self.weight = DTYPES[spec.weight]
        # Of residual and sum, to which a sum is rounded.
        has_residual_type = self.adds != "none" or spec.sum
        self.residual = DTYPES[spec.residual_type] if has_residual_type else self.input
        types = [self.input, self.output, self.residual, self.weight]
        self.compute = torch.float64 if torch.float64 in types else torch.float32
        present = {"in_bias": spec.in_bias, "residual": self.adds != "none",
                   "weight": spec.affine != _library.AFFINES["none"], "bias": spec.affine == _library.AFFINES["wb"]}
        self.inputs = [name for name in INPUTS if present[name]]
        written = {"out": True, "sum": spec.sum, "mean": spec.statistics and self.layer, "rstd": spec.statistics}
        self.outputs = [name for name in OUTPUTS if written[name]]

    def dtype_of(self, name: str) -> torch.dtype:
        if name in ("mean", "rstd"):
            return self.compute
        return {"x": self.input, "residual": self.residual, "sum": self.residual, "out": self.output}.get(
            name, self.weight)

    def has_rows(self, name: str) -> bool:
        """Whether an input has a row for each of x."""
        return name in ("x", "residual") or name in ("weight", "bias") and self.affine_rows

    def fail(self, what: str) -> RuntimeError:
        return RuntimeError("normjit::norm: {} (spec {})".format(what, self.text))

    # ---- Checks, which raise RuntimeError

    def check(self, x: Tensor, given: dict[str, Optional[Tensor]]) -> int:
        """Whether these are the inputs of the spec; over how many of the last dimensions of x it normalizes."""
        for name in INPUTS:
            if (given[name] is not None) != (name in self.inputs):
                raise self.fail("the spec needs {}".format(name) if name in self.inputs else
                                "the spec has no {}, but one is given".format(name))
        dims = self.row_dims(x)
        for name, tensor in (("x", x), *given.items()):
            if tensor is not None:
                self._check_input(name, tensor, x, dims)
        return dims

    def row_dims(self, x: Tensor) -> int:
        elements = 1
        for dims in range(1, x.dim() + 1):
            elements *= x.shape[-dims]
            if elements == self.columns:
                return dims
        raise self.fail("the last dimensions of x, of shape {}, are no row of {} elements".format(
            list(x.shape), self.columns))

    def _check_input(self, name: str, tensor: Tensor, x: Tensor, dims: int) -> None:
        self._check_tensor(name, tensor, x)
        row = tuple(x.shape[-dims:])
        if self.has_rows(name):
            wanted = tuple(x.shape)
            missing = len(wanted) - tensor.dim()
            if missing < 0 or any(size not in (1, there) for size, there in zip(tensor.shape, wanted[missing:])):
                raise self.fail("{} of shape {} cannot be expanded to x's {}".format(
                    name, list(tensor.shape), list(wanted)))
        elif tuple(tensor.shape) not in (row, (self.columns,)):
            raise self.fail("{} has the shape {}; a row of x has {}".format(name, list(tensor.shape), list(row)))

    def _check_tensor(self, name: str, tensor: Tensor, x: Tensor) -> None:
        if tensor.dtype != self.dtype_of(name):
            raise self.fail("{} is of {}; the spec says {}".format(name, tensor.dtype, self.dtype_of(name)))
        if tensor.device != x.device:
            raise self.fail("{} is on {}, x on {}".format(name, tensor.device, x.device))

    def check_output(self, name: str, tensor: Tensor, x: Tensor, dims: int) -> None:
        if name not in self.outputs:
            raise self.fail("the spec has no {}, but one is given".format(name))
        self._check_tensor(name, tensor, x)
        wanted = self.shape_of(name, x, dims)
        if tensor.shape != wanted:
            raise self.fail("{} has the shape {}; it must be {}".format(name, list(tensor.shape), list(wanted)))

    # ---- Memory

    def shape_of(self, output: str, x: Tensor, dims: int) -> torch.Size:
        """mean and rstd have ones in the place of the normalized dimensions, as PyTorch's have."""
        return torch.Size((*x.shape[:-dims], *(1,) * dims)) if output in ("mean", "rstd") else x.shape

    def empty(self, output: str, x: Tensor, dims: int) -> Tensor:
        return x.new_empty(self.shape_of(output, x, dims), dtype=self.dtype_of(output))


@functools.lru_cache(maxsize=None)
def problem_of(text: str) -> Problem:
    """Raises _library.Error for a text that is no valid spec."""
    return Problem(text)


def rows_at(tensor: Tensor, dims: int) -> tuple[int, int, int] | None:
    """(outer, n, inner) of a tensor's rows, each of its last `dims` dimensions: row r begins
    (r / n) * outer + (r % n) * inner elements behind the first. None where no such numbers exist, as for columns that
    are not neighbours, or for leading dimensions that make three or more strides."""
    columns = 1
    for size, stride in zip(reversed(tensor.shape[-dims:]), reversed(tensor.stride()[-dims:])):
        if size != 1 and stride != columns:
            return None
        columns *= size
    levels: list[tuple[int, int]] = []  # sizes and strides of leading dimensions, the last one first
    for size, stride in zip(reversed(tensor.shape[:-dims]), reversed(tensor.stride()[:-dims])):
        if size == 1:
            continue
        if levels and stride == levels[-1][0] * levels[-1][1]:
            levels[-1] = levels[-1][0] * size, levels[-1][1]
        else:
            levels.append((size, stride))
    if len(levels) > 2:
        return None
    if len(levels) == 2:
        (n, inner), (_, outer) = levels
        return outer, n, inner
    return (levels[0][1] if levels else columns), 1, 0
