# SPDX-License-Identifier: Apache-2.0
"""RMSNorm, and norms of sums: thin names over norm()."""
from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from normjit import _library
from normjit.torch import _fusion
from normjit.torch._check import TEXTS
from normjit.torch._functional import _KNOWN, _is_foreign, _is_left_to_compiler, code_of
from normjit.torch._norm import norm
from normjit.torch._operator import DEVICE, HERE
from normjit.torch._rules import NONE, activate

_DEVICE = DEVICE.lower()


def remembered(make: Callable[..., str]) -> Callable[..., str]:
    """A function whose results are kept, but not while torch.compile traces it."""
    kept = functools.lru_cache(maxsize=1024)(make)
    return lambda *key: make(*key) if torch.compiler.is_compiling() else kept(*key)


def rms_norm(x: Tensor, normalized_shape: Sequence[int], weight: Optional[Tensor] = None, eps: Optional[float] = None, *,
             activation: Optional[str] = None, scale: float = 1.0) -> Tensor:
    """scale * activation(F.rms_norm(x, normalized_shape, weight, eps)), in one kernel.

    eps None is the machine epsilon of the type that PyTorch computes in: f32, or f64 for f64. Tensors that are not on an
    NVIDIA GPU, wrappers of tensors, integers, errors, autocast and short rows under torch.compile are PyTorch's own to
    compute, as with layer_norm. A weight may be of another type than x; y is of x's.
    """
    code = NONE if activation is None else code_of(activation)
    shape = tuple(normalized_shape)
    if not is_for_norm("rmsnorm", x, shape, weight, eps, code):
        return activate(F.rms_norm(x, shape, weight, eps), code, scale)
    y = norm(_rms_norm_text(shape, x.dtype, eps, None if weight is None else weight.dtype, activation, scale), x,
             weight=weight)
    assert isinstance(y, Tensor)
    return y


@remembered
def _rms_norm_text(shape: tuple[int, ...], dtype: torch.dtype, eps: float | None, weight: torch.dtype | None,
                   activation: str | None, scale: float) -> str:
    if eps is None:
        eps = 2.0 ** -52 if dtype == torch.float64 else 2.0 ** -23
    return text_of("rmsnorm", shape, dtype, eps, "" if weight is None else "/w={}/w".format(TEXTS[weight]), activation,
                   scale)


def columns_of(shape: tuple[int, ...]) -> int:
    columns = 1
    for size in shape:
        columns *= size
    return columns


def text_of(head: str, shape: tuple[int, ...], dtype: torch.dtype, eps: float, tail: str, activation: str | None = None,
            scale: float = 1.0) -> str:
    """The text of a spec whose last fields are `tail`. ldexp and index give plain numbers for torch.compile's symbols."""
    columns = operator.index(columns_of(shape))
    text = "{}/cols={}/{}/eps={!r}{}".format(head, columns, TEXTS[dtype], math.ldexp(eps, 0), tail)
    if activation is not None:
        text += "/" + activation
    return text if scale == 1.0 else "{}/scale={!r}".format(text, math.ldexp(scale, 0))


def is_for_norm(head: str, x: Tensor, shape: tuple[int, ...], weight: Tensor | None, eps: float | None,
                code: int = NONE) -> bool:
    """Whether norm() computes a layer like this; else PyTorch does, with its errors."""
    if (type(x) is not Tensor and _is_foreign(x) or type(weight) not in _KNOWN and _is_foreign(weight)
            or x.dtype not in TEXTS or not getattr(x, HERE) or x.layout is not torch.strided or x.is_nested
            or not shape or x.shape[-len(shape):] != shape or 0 in shape
            or weight is not None and (weight.shape != shape or weight.dtype not in TEXTS or weight.device != x.device)
            or eps is not None and not 0 <= eps <= _library.LARGEST_EPSILON
            or torch.version.hip is not None):
        return False
    if torch.is_autocast_enabled(_DEVICE):
        return False
    if torch.compiler.is_compiling():
        return not _is_left_to_compiler(x, shape, code) or _fusion.is_wanted(head, columns_of(shape), x.dtype)
    return forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active()


def _add_norm(head: str, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
              in_bias: Tensor | None, weight_offset: bool, rounding: str | None, activation: str | None, scale: float,
              batch_invariant: bool) -> tuple[Tensor, Tensor]:
    if activation is not None:
        code_of(activation)
    row = (x.shape[-1],) if weight is None else tuple(weight.shape)
    dtypes = [None if part is None else part.dtype for part in (residual, weight, bias, in_bias)]
    text = _add_norm_text(head, row, x.dtype, *dtypes, eps, weight_offset, rounding, activation, scale)
    outputs: Any = norm(text, x, in_bias=in_bias, residual=residual, weight=weight, bias=bias,
                        batch_invariant=batch_invariant)
    return outputs.out, outputs.sum


@remembered
def _add_norm_text(head: str, shape: tuple[int, ...], x: torch.dtype, residual: torch.dtype, weight: torch.dtype | None,
                   bias: torch.dtype | None, in_bias: torch.dtype | None, eps: float, weight_offset: bool,
                   rounding: str | None, activation: str | None, scale: float) -> str:
    for dtype in (x, residual, weight, bias, in_bias):
        if dtype is not None and dtype not in TEXTS:
            raise RuntimeError("normjit.torch.add_{}: not implemented for {}".format(
                "rms_norm" if head == "rmsnorm" else "layer_norm", dtype))
    vector = in_bias if weight is None else weight
    tail = "/res={}/add/sum".format(TEXTS[residual])
    if vector is not None:
        tail += "/w=" + TEXTS[vector]
    if in_bias is not None:
        tail += "/inb"
    if rounding is not None:
        tail += "/round=" + rounding
    if weight is not None:
        tail += "/w" + ("" if bias is None else "b") + ("1" if weight_offset else "")
    return text_of(head, shape, x, eps, tail, activation, scale)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-5, *,
                 in_bias: Optional[Tensor] = None, weight_offset: bool = False, rounding: Optional[str] = None,
                 activation: Optional[str] = None, scale: float = 1.0,
                 batch_invariant: bool = False) -> tuple[Tensor, Tensor]:
    """(RMSNorm(s), s) of s = x + in_bias + residual, in one kernel.

    Rows have weight's shape, or are the last dimension. s is stored in residual's type, which may be wider than x's;
    the norm is that of the unrounded sum, unless `rounding` is "sum" or "sum+norm". With "norm" or "sum+norm" the
    normalized value is rounded to x's type in front of the weight, as in Llama. weight_offset: the weight is added to 1,
    as in Gemma. in_bias and weight are of one type. See norm().
    """
    return _add_norm("rmsnorm", x, residual, weight, None, eps, in_bias, weight_offset, rounding, activation, scale,
                     batch_invariant)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None,
                   eps: float = 1e-5, *, in_bias: Optional[Tensor] = None, rounding: Optional[str] = None,
                   activation: Optional[str] = None, scale: float = 1.0,
                   batch_invariant: bool = False) -> tuple[Tensor, Tensor]:
    """(LayerNorm(s), s) of s = x + in_bias + residual, in one kernel. As add_rms_norm."""
    return _add_norm("layernorm", x, residual, weight, bias, eps, in_bias, False, rounding, activation, scale,
                     batch_invariant)


# ---- Gates and modulations

def _named(what: str, head: str, x: Tensor, eps: float, tail: str, **parts: Optional[Tensor]) -> str:
    """The text of a spec with these operands, of which those of gate and modulation have one type."""
    for name, part in parts.items():
        if part is not None and part.dtype not in TEXTS or x.dtype not in TEXTS:
            raise RuntimeError("normjit.torch.{}: not implemented for {}".format(
                what, x.dtype if x.dtype not in TEXTS or part is None else part.dtype))
    modulations = {name: part.dtype for name, part in parts.items() if part is not None and name in (
        "gate", "scale", "shift")}
    if len(set(modulations.values())) > 1:
        raise RuntimeError("normjit.torch.{}: {} are of several types".format(what, ", ".join(modulations)))
    weight, bias, residual = (parts.get(name) for name in ("weight", "bias", "residual"))
    if bias is not None and (weight is None or bias.dtype != weight.dtype):
        raise RuntimeError("normjit.torch.{}: a bias needs a weight of its type".format(what))
    types = "" if weight is None else "/w=" + TEXTS[weight.dtype]
    types += "" if residual is None else "/res=" + TEXTS[residual.dtype]
    types += "/mod=" + TEXTS[next(iter(modulations.values()))]
    affine = "" if weight is None else "/w" + "b" * (bias is not None)
    return text_of(head, (x.shape[-1],), x.dtype, eps, types + tail.replace("{affine}", affine))


def modulated_layer_norm(x: Tensor, scale: Tensor, shift: Optional[Tensor] = None, weight: Optional[Tensor] = None,
                         bias: Optional[Tensor] = None, eps: float = 1e-6, *, batch_invariant: bool = False) -> Tensor:
    """LayerNorm(x) * (1 + scale) + shift over the last dimension, in one kernel: the adaptive norm of diffusion
    transformers.

    scale and shift, of one type, have any shape that expands to x's: [samples, 1, columns] is read where it is, a chunk of
    a projection, too. weight and bias are in front of them. See norm().
    """
    text = _named("modulated_layer_norm", "layernorm", x, eps, "{affine}/mods" if shift is None else "{affine}/mod",
                  scale=scale, shift=shift, weight=weight, bias=bias)
    y = norm(text, x, mod_scale=scale, mod_shift=shift, weight=weight, bias=bias, batch_invariant=batch_invariant)
    assert isinstance(y, Tensor)
    return y


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-5, *,
                   function: Optional[str] = "silu", norm_before_gate: bool = True, round_norm: bool = False,
                   batch_invariant: bool = False) -> Tensor:
    """RMSNorm(x) * function(gate) over the last dimension, in one kernel; RMSNorm(x * function(gate)) without
    norm_before_gate, as in Mamba-2.

    function: "silu", "sigmoid", "tanh" or None. gate has a shape that expands to x's. round_norm: the normalized value is
    rounded to x's type before the weight. See norm().
    """
    tail = "/gateafter" if norm_before_gate else "/gate"
    tail += "" if function is None else ":" + function
    text = _named("gated_rms_norm", "rmsnorm", x, eps, tail + "/round=norm" * round_norm + "{affine}", gate=gate,
                  weight=weight)
    y = norm(text, x, gate=gate, weight=weight, batch_invariant=batch_invariant)
    assert isinstance(y, Tensor)
    return y


def gate_residual_modulate(x: Tensor, gate: Tensor, residual: Tensor, scale: Tensor, shift: Optional[Tensor] = None,
                           weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, eps: float = 1e-6, *,
                           rounding: Optional[str] = None, batch_invariant: bool = False) -> tuple[Tensor, Tensor]:
    """(LayerNorm(s) * (1 + scale) + shift, s) of s = x * gate + residual, in one kernel: what stands between two halves of
    a diffusion transformer's block.

    gate, scale and shift are of one type, and their shapes expand to x's. s is stored in residual's type. rounding: as in
    add_rms_norm. See norm().
    """
    tail = "/gate/add/sum" + ("" if rounding is None else "/round=" + rounding)
    text = _named("gate_residual_modulate", "layernorm", x, eps, tail + "{affine}" + ("/mods" if shift is None else "/mod"),
                  gate=gate, residual=residual, scale=scale, shift=shift, weight=weight, bias=bias)
    outputs: Any = norm(text, x, gate=gate, residual=residual, weight=weight, bias=bias, mod_scale=scale, mod_shift=shift,
                        batch_invariant=batch_invariant)
    return outputs.out, outputs.sum
