# SPDX-License-Identifier: Apache-2.0
"""Which norms have their gradients from one kernel, and its spec: for PyTorch and JAX alike."""
from __future__ import annotations

from normjit import _library

# Why a launch or a prepare is refused where there is no kernel: the formula serves instead.
UNAVAILABLE = (_library.NO_COMPILER, _library.NOT_CACHED, _library.NOT_READY)
_TYPES = frozenset(_library.DTYPES[name] for name in ("f16", "bf16", "f32", "f64"))


def have_kernel(spec: _library.Spec) -> bool:
    """Whether the gradients of a norm are those of a backward spec, of what was normalized: x, or the sum if it is written."""
    added = spec.residual == _library.RESIDUALS["add"]
    return ((bool(spec.sum) if added else spec.residual == _library.RESIDUALS["none"]) and spec.output in _TYPES
            and spec.gate == _library.GATES["none"] and spec.modulation == _library.MODULATIONS["none"]
            and spec.activation == _library.ACTIVATIONS[None] and spec.scale == 1.0
            and not (spec.in_bias or spec.affine_rows or spec.statistics or spec.channels_first))


def text_of(spec: _library.Spec, affine: str, dsum: bool) -> str:
    """The backward spec of a norm for which have_kernel() is true; affine: whose gradients are asked for besides that of what
    was normalized, one of _library.AFFINES."""
    added = spec.residual != _library.RESIDUALS["none"]
    return _library.spec_text(_library.Spec(
        spec.columns, spec.epsilon, backward=1, norm=spec.norm, input=spec.residual_type if added else spec.input,
        output=spec.output, weight=spec.weight, gradient_type=spec.weight, residual_type=spec.residual_type,
        affine=_library.AFFINES[affine], weight_offset=spec.weight_offset, dsum=int(dsum)))
