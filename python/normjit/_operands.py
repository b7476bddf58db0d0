# SPDX-License-Identifier: Apache-2.0
"""The operands of a spec: their names, sizes and types, and the addresses of their rows. normjit/spec/operands.h has the
same table."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from normjit import _gradients, _library
from normjit._gradients import NO_GATE, NO_MODULATION, SCALE_SHIFT

# How many elements an operand has.
MATRIX, PAIRS, COLUMNS, AFFINE, ROWS, ONE, BLOCKS = ("a row for each of x", "likewise, of pairs of columns", "one row", "either",
                                                     "a number for each row", "a number", "a number for each block of a row")


class Operand(NamedTuple):
    """A row of the table. Outputs are in the order of NormOutputs."""
    name: str
    extent: str
    dtype: str  # which of the types of a spec it has
    present: Callable[[_library.Spec], Any]
    output: bool = False

    @property
    def member(self) -> str:
        """Of normjit_tensors."""
        return "y" if self.name == "out" else self.name


_LAYER, _NO_AFFINE, _WEIGHT_BIAS = _library.NORMS["layernorm"], _library.AFFINES["none"], _library.AFFINES["wb"]
_NO_RESIDUAL = _library.RESIDUALS["none"]
_BY_TENSOR, _BY_ROW = _library.QUANTIZATIONS["tensor"], _library.QUANTIZATIONS["row"]
_SCALES_IN_E4M3, _NO_ALSO = _library.SCALE_FORMATS["e4m3"], _library.ALSOS["none"]
OPERANDS = (  # x, inputs, outputs
    Operand("x", MATRIX, "input", lambda spec: True),
    Operand("in_bias", COLUMNS, "weight", lambda spec: spec.in_bias),
    Operand("gate", MATRIX, "modulated", lambda spec: spec.gate != NO_GATE),
    Operand("gate_table", COLUMNS, "weight", lambda spec: spec.gate != NO_GATE and spec.gate_table),
    Operand("residual", MATRIX, "residual", lambda spec: spec.residual != _NO_RESIDUAL),
    Operand("weight", AFFINE, "weight", lambda spec: spec.affine != _NO_AFFINE),
    Operand("bias", AFFINE, "weight", lambda spec: spec.affine == _WEIGHT_BIAS),
    Operand("mod_scale", MATRIX, "modulated", lambda spec: spec.modulation != NO_MODULATION),
    Operand("mod_scale_table", COLUMNS, "weight", lambda spec: spec.modulation != NO_MODULATION and spec.modulation_table),
    Operand("mod_shift", MATRIX, "modulated", lambda spec: spec.modulation == SCALE_SHIFT),
    Operand("mod_shift_table", COLUMNS, "weight", lambda spec: spec.modulation == SCALE_SHIFT and spec.modulation_table),
    Operand("tensor_scale", ONE, "single", lambda spec: spec.quantization == _BY_TENSOR),
    Operand("upper_bound", ONE, "single", lambda spec: spec.upper_bound),
    Operand("global_scale", ONE, "single", lambda spec: spec.scale_format == _SCALES_IN_E4M3),
    Operand("out", MATRIX, "output", lambda spec: True, output=True),
    Operand("sum", MATRIX, "residual", lambda spec: spec.sum, output=True),
    Operand("mean", ROWS, "compute", lambda spec: spec.statistics and spec.norm == _LAYER, output=True),
    Operand("rstd", ROWS, "compute", lambda spec: spec.statistics, output=True),
    Operand("row_scale", ROWS, "single", lambda spec: spec.quantization == _BY_ROW, output=True),
    Operand("also", MATRIX, "also", lambda spec: spec.also != _NO_ALSO, output=True),
    Operand("block_scale", BLOCKS, "block_scale", lambda spec: _library.block_of(spec), output=True),
    Operand("amax", ONE, "single", lambda spec: spec.amax, output=True),
)
GRADIENT_OPERANDS = (  # of a backward spec
    Operand("x", MATRIX, "input", lambda spec: True),
    Operand("gate", MATRIX, "modulated", lambda spec: spec.gate != NO_GATE),
    Operand("weight", COLUMNS, "weight", lambda spec: spec.affine != _NO_AFFINE),
    Operand("bias", COLUMNS, "weight", _gradients.read_bias),
    Operand("mod_scale", MATRIX, "modulated", lambda spec: spec.modulation != NO_MODULATION),
    Operand("mod_scale_table", COLUMNS, "weight", lambda spec: spec.modulation != NO_MODULATION and spec.modulation_table),
    Operand("mod_shift", MATRIX, "modulated", _gradients.read_shift),
    Operand("mod_shift_table", COLUMNS, "weight", lambda spec: _gradients.read_shift(spec) and spec.modulation_table),
    Operand("dy", MATRIX, "output", lambda spec: True),
    Operand("dsum", MATRIX, "residual", lambda spec: spec.dsum),
    Operand("dx", MATRIX, "input", lambda spec: _gradients.needed_by(spec)[0], output=True),
    Operand("dweight", COLUMNS, "gradient", lambda spec: _gradients.needed_by(spec)[1], output=True),
    Operand("dbias", COLUMNS, "gradient", lambda spec: _gradients.needed_by(spec)[2], output=True),
    Operand("dgate", MATRIX, "modulated", lambda spec: spec.gate != NO_GATE and _gradients.needed_by(spec)[0], output=True),
    # Of rows that share a row of scale and shift: a row that these rows share.
    Operand("dmod_scale", MATRIX, "modulated", lambda spec: spec.modulation != NO_MODULATION and _gradients.needed_by(spec)[0],
            output=True),
    Operand("dmod_shift", MATRIX, "modulated", lambda spec: spec.modulation == SCALE_SHIFT and _gradients.needed_by(spec)[0],
            output=True),
    Operand("saved_mean", ROWS, "compute", lambda spec: spec.statistics and spec.norm == _LAYER),
    Operand("saved_rstd", ROWS, "compute", lambda spec: spec.statistics),
)


def rows_of(shape: Sequence[int], strides: Sequence[int], dims: int) -> tuple[int, int, int] | None:
    """(outer, n, inner) of an array's rows (of samples with channels first), each of its last `dims` dimensions: row r begins
    (r / n) * outer + (r % n) * inner elements behind the first. None where no such numbers exist, as for columns that
    are not neighbours, or for leading dimensions that make three or more strides."""
    leading = len(shape) - dims
    columns = 1
    for size, stride in zip(reversed(shape[leading:]), reversed(strides[leading:])):
        if size != 1 and stride != columns:
            return None
        columns *= size
    levels: list[tuple[int, int]] = []  # sizes and strides of leading dimensions, the last one first
    for size, stride in zip(reversed(shape[:leading]), reversed(strides[:leading])):
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
