# SPDX-License-Identifier: Apache-2.0
"""Which norms have their gradients from one kernel, and its spec: for PyTorch and JAX alike."""
from __future__ import annotations

from normjit import _library

# Why a launch or a prepare is refused where there is no kernel: the formula serves instead.
UNAVAILABLE = (_library.NO_COMPILER, _library.NOT_CACHED, _library.NOT_READY)
_TYPES = frozenset(_library.DTYPES[name] for name in ("f16", "bf16", "f32", "f64"))
_NO_ACTIVATION, _NO_AFFINE, _WEIGHT_BIAS = _library.ACTIVATIONS[None], _library.AFFINES["none"], _library.AFFINES["wb"]
NO_MODULATION, SCALE_SHIFT = _library.MODULATIONS["none"], _library.MODULATIONS["mod"]
NO_GATE, GATE_BEFORE, GATE_AFTER = (_library.GATES[name] for name in ("none", "gate", "gateafter"))


def have_kernel(spec: _library.Spec) -> bool:
    """Whether the gradients of a norm are those of a backward spec: of what was normalized, which is x, or the sum if it is
    written; of a gate, or of a modulation with its tables added; and of what is_apart."""
    added, apart = spec.residual == _library.RESIDUALS["add"], is_apart(spec)
    gated = spec.gate != NO_GATE and not (apart and spec.gate == GATE_BEFORE)
    modulated = spec.modulation != NO_MODULATION
    return bool((spec.sum if added else spec.residual == _library.RESIDUALS["none"]) and spec.output in _TYPES
                and not (gated and (modulated or spec.gate_table))
                and (apart or not spec.in_bias) and not (spec.affine_rows or spec.statistics or spec.channels_first))


def is_apart(spec: _library.Spec) -> bool:
    """Whether a kernel has the gradient of the written sum alone, from which those of the operands in front of it follow: of
    in_bias, and of a gate with a table, a residual or a modulation."""
    gated = spec.gate == GATE_BEFORE and (
        spec.gate_table or spec.residual != _library.RESIDUALS["none"] or spec.modulation != NO_MODULATION)
    return bool(spec.sum and (spec.in_bias or gated))


# Gradients are of x, and so of a gate and of a modulation, of the weight and of the bias: a bool each.
Needed = tuple[bool, bool, bool]
_NEEDS: dict[Needed, int] = {(True, True, True): _library.NEEDS["all"], **{
    ("dx" in name, "dw" in name, "db" in name): number for name, number in _library.NEEDS.items() if name != "all"}}
_NEEDED = {number: needed for needed, number in _NEEDS.items()}


def need_of(of_x: bool, of_weight: bool, of_bias: bool) -> int:
    """What a spec says of that; at least one is needed."""
    return _NEEDS[of_x, of_weight, of_bias]


def needed_by(spec: _library.Spec) -> Needed:
    """Which gradients a backward spec has; all of them where it is a norm's."""
    of_x, of_weight, of_bias = _NEEDED[spec.need or _library.NEEDS["all"]]
    return of_x, of_weight and spec.affine != _NO_AFFINE, of_bias and spec.affine == _WEIGHT_BIAS


def read_bias(spec: _library.Spec) -> bool:
    """Whether the gradients depend on a bias, of a norm or a backward spec: with an activation, a modulation or a gate
    behind it, which has it in its argument or factor."""
    factor = (spec.gate == GATE_AFTER or spec.modulation != NO_MODULATION) and needed_by(spec)[0]
    return bool(spec.affine == _WEIGHT_BIAS and (spec.activation != _NO_ACTIVATION or factor))


def read_shift(spec: _library.Spec) -> bool:
    """Likewise on the shift of a modulation."""
    return bool(spec.modulation == SCALE_SHIFT and spec.activation != _NO_ACTIVATION)


def text_of(norm: _library.Spec, needed: Needed, *, dsum: bool, of_sum: bool, gated: bool, modulation_type: int) -> str:
    """The backward spec of a norm for which have_kernel() is true. dsum: whether a gradient arrives at the written sum; of_sum:
    whether that is what was normalized; gated: whether the kernel has the gate; modulation_type: that of the gate, or of scale
    and shift as they are given."""
    spec = _library.Spec(
        norm.columns, norm.epsilon, norm.scale, backward=1, norm=norm.norm, input=norm.residual_type if of_sum else norm.input,
        output=norm.output, weight=norm.weight, gradient_type=norm.weight, residual_type=norm.residual_type,
        modulation_type=modulation_type, affine=norm.affine, weight_offset=norm.weight_offset, activation=norm.activation,
        gate=norm.gate if gated else NO_GATE, gate_function=norm.gate_function if gated else _library.GATE_FUNCTIONS[None],
        modulation=norm.modulation, plain_modulation=norm.plain_modulation, dsum=int(dsum), need=need_of(*needed))
    if spec.affine == _WEIGHT_BIAS and not needed[2] and not read_bias(spec):
        spec.affine = _library.AFFINES["w"]
    return _library.spec_text(spec)
