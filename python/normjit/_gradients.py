# SPDX-License-Identifier: Apache-2.0
"""Which norms have their gradients from one kernel, and its spec: for PyTorch and JAX alike."""
from __future__ import annotations

from normjit import _library

# Why a launch or a prepare is refused where there is no kernel: the formula serves instead.
UNAVAILABLE = (_library.NO_COMPILER, _library.NOT_CACHED, _library.NOT_READY)
_TYPES = frozenset(_library.DTYPES[name] for name in ("f16", "bf16", "f32", "f64"))
_NO_ACTIVATION, _WEIGHT_BIAS = _library.ACTIVATIONS[None], _library.AFFINES["wb"]


def have_kernel(spec: _library.Spec) -> bool:
    """Whether the gradients of a norm are those of a backward spec, of what was normalized: x, or the sum if it is written."""
    added = spec.residual == _library.RESIDUALS["add"]
    return ((bool(spec.sum) if added else spec.residual == _library.RESIDUALS["none"]) and spec.output in _TYPES
            and spec.gate == _library.GATES["none"] and spec.modulation == _library.MODULATIONS["none"]
            and not (spec.in_bias or spec.affine_rows or spec.statistics or spec.channels_first))


def read_bias(spec: _library.Spec) -> bool:
    """Whether the gradients depend on a bias, of a norm or a backward spec: with an activation, whose argument has it. The
    kernel then writes dbias, whether it is asked for or not."""
    return bool(spec.affine == _WEIGHT_BIAS and spec.activation != _NO_ACTIVATION)


def text_of(spec: _library.Spec, of_bias: bool, dsum: bool) -> str:
    """The backward spec of a norm for which have_kernel() is true; of_bias: whether the gradient of a bias is asked for, dsum:
    whether one arrives at the written sum."""
    affine = spec.affine if spec.affine != _WEIGHT_BIAS or of_bias or read_bias(spec) else _library.AFFINES["w"]
    added = spec.residual != _library.RESIDUALS["none"]
    return _library.spec_text(_library.Spec(
        spec.columns, spec.epsilon, spec.scale, backward=1, norm=spec.norm, input=spec.residual_type if added else spec.input,
        output=spec.output, weight=spec.weight, gradient_type=spec.weight, residual_type=spec.residual_type,
        affine=affine, weight_offset=spec.weight_offset, activation=spec.activation, dsum=int(dsum)))
