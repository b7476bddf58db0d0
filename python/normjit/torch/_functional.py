# SPDX-License-Identifier: Apache-2.0
"""layer_norm, in the place of torch.nn.functional.layer_norm."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from normjit import _library
from normjit.torch import _fusion, _operator
from normjit.torch._activation import NONE, activate
from normjit.torch._norm import norm
from normjit.torch._rules import apply, differentiable
from normjit.torch._texts import text_of

CODES = _library.ACTIVATIONS
_ON_CPU = _operator.DEVICE == "CPU"  # in tests
_LARGEST_EPSILON = _library.LARGEST_EPSILON


def fused_bytes() -> int:
    """Under torch.compile, rows of up to so many bytes are left to it: Inductor fuses them with what stands before and
    behind, such as the sum with a residual, and is mostly faster so than with an operator, into which nothing can be
    fused. python/README.md has the figures. 0 with NORMJIT_TORCH_COMPILE=kernel: all rows are normjit's."""
    return 0 if os.environ.get("NORMJIT_TORCH_COMPILE") == "kernel" else 64 << 10


FUSED_BYTES = fused_bytes()


def layer_norm(x: torch.Tensor, normalized_shape: Sequence[int], weight: Optional[torch.Tensor] = None,
               bias: Optional[torch.Tensor] = None, eps: float = 1e-5, *, activation: Optional[str] = None,
               scale: float = 1.0) -> torch.Tensor:
    """scale * activation(F.layer_norm(x, normalized_shape, weight, bias, eps)), in one kernel.

    activation: None, "relu", "gelu", "gelu_tanh" or "silu".

    Tensors, dtypes, errors and autocast are as of torch.nn.functional.layer_norm; y is contiguous. Tensors that are
    not on an NVIDIA GPU, nested and sparse ones, a DTensor and other wrappers of tensors, a bias without a weight, a
    negative eps, forward-mode derivatives, and short rows under torch.compile are PyTorch's own to compute.
    Gradients of any order: the first by one kernel, which computes the statistics again, as the backward does the argument
    of an activation. Thread-safe; launches on the current stream of x's device.
    """
    code = NONE if activation is None else code_of(activation)
    return run(x, tuple(normalized_shape), weight, bias, eps, code, scale)


def code_of(activation: str | None) -> int:
    """An activation's number. Raises ValueError."""
    try:
        return CODES[activation]
    except (KeyError, TypeError):
        raise ValueError("activation must be None, 'relu', 'gelu', 'gelu_tanh' or 'silu', not {!r}".format(
            activation)) from None


Tensor = torch.Tensor  # a look into torch: 20 ns
_STRIDED, _is_compiling = torch.strided, torch.compiler.is_compiling
_KNOWN = (torch.nn.Parameter, Tensor, type(None))  # not foreign; the usual one first


def _is_foreign(x: Any) -> bool:
    """Whether this is something that PyTorch's operators unwrap, such as a DTensor, or no tensor at all."""
    return not isinstance(x, Tensor) or is_traceable_wrapper_subclass(x)


def _is_left_to_compiler(x: Tensor, shape: tuple[int, ...], code: int) -> bool:
    """It is slow on rows that do not consist of whole 16 bytes, and finds little to fuse behind an activation. What
    torch.export makes is for others to run; is_exporting() of torch.compiler is always true here."""
    row = x.shape[-len(shape):].numel() * x.element_size()
    exporting = getattr(torch.compiler, "_is_exporting_flag", False)
    return code == NONE and row <= FUSED_BYTES and row % 16 == 0 and not exporting


def _is_for_fusion(x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether a layer that is otherwise left to the compiler is one that enable_fusion() is for."""
    plain = weight is None or (type(weight) in _KNOWN and weight.shape == shape and weight.dtype == x.dtype)
    plain = plain and (bias is None or weight is not None and bias.shape == shape and bias.dtype == x.dtype)
    return (_fusion._enabled and plain and type(x) is Tensor and x.device.type == _operator.DEVICE.lower()
            and len(shape) == 1 and x.shape[-1] == shape[0] and not torch.is_autocast_enabled(x.device.type)
            and _fusion.is_wanted("layernorm", shape[0], x.dtype))


def _norm(x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The same as normjit::norm, which the pass of _fusion.py knows."""
    affine = "" if weight is None else "/w" if bias is None else "/wb"
    text = _fusion.to_fuse("layernorm", text_of("layernorm", shape, x.dtype, float(eps), affine), shape[0], x.dtype)
    y = norm(text, x, weight=weight, bias=bias)
    assert isinstance(y, Tensor)
    return y


def run(x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float, code: int,
        scale: float) -> Tensor:
    """layer_norm, for a tuple and an activation's number."""
    compiling = _is_compiling()
    if not compiling and _operator.function is not None and code == NONE and scale == 1.0:
        y = _operator.function(x, shape, weight, bias, eps)
        if y is not None:
            return y
    if (type(x) is not Tensor and _is_foreign(x) or type(weight) not in _KNOWN and _is_foreign(weight)
            or not x.is_cuda and not _ON_CPU or x.layout is not _STRIDED or x.is_nested
            or not shape or x.shape[-len(shape):] != shape
            or forward_ad._current_level >= 0 or weight is None and bias is not None or not 0 <= eps <= _LARGEST_EPSILON
            or compiling and _is_left_to_compiler(x, shape, code)):
        if compiling and _is_for_fusion(x, shape, weight, bias):
            return _norm(x, shape, weight, bias, eps)
        return reference(x, shape, weight, bias, eps, code, scale)
    if torch.is_grad_enabled() and (x.requires_grad or weight is not None and weight.requires_grad
                                    or bias is not None and bias.requires_grad):
        return differentiable(x, len(shape), weight, bias, eps, code, scale, None)
    if code == NONE and scale == 1.0:
        return apply(x, len(shape), weight, bias, eps)  # each argument more costs 0.15 us
    return apply(x, len(shape), weight, bias, eps, code, scale)


def reference(x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float, code: int,
              scale: float) -> Tensor:
    """By PyTorch's own operators, with its errors."""
    return activate(F.layer_norm(x, shape, weight, bias, eps), code, scale)


if torch.version.hip is not None:
    run = reference
