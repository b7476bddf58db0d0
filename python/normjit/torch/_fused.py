# SPDX-License-Identifier: Apache-2.0
"""RMSNorm, and norms of sums: thin names over norm()."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from normjit import _library
from normjit.torch import _fusion
from normjit.torch._activation import NONE, activate
from normjit.torch._check import NARROW_TEXTS, TEXTS
from normjit.torch._functional import _KNOWN, _is_foreign, _is_left_to_compiler, code_of
from normjit.torch._norm import norm
from normjit.torch._operator import DEVICE, HERE
from normjit.torch._texts import columns_of, remembered, text_for, text_of, types_of

_DEVICE = DEVICE.lower()


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
    text = _rms_norm_text(shape, x.dtype, eps, None if weight is None else weight.dtype, activation, scale)
    y = norm(to_fuse("rmsnorm", text, x, shape, code), x, weight=weight)
    assert isinstance(y, Tensor)
    return y


@remembered
def _rms_norm_text(shape: tuple[int, ...], dtype: torch.dtype, eps: float | None, weight: torch.dtype | None,
                   activation: str | None, scale: float) -> str:
    if eps is None:
        eps = 2.0 ** -52 if dtype == torch.float64 else 2.0 ** -23
    return text_of("rmsnorm", shape, dtype, eps, "" if weight is None else "/w={}/w".format(TEXTS[weight]), activation,
                   scale)


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


def to_fuse(head: str, text: str, x: Tensor, shape: tuple[int, ...], code: int = NONE) -> str:
    """The text of a layer for which is_for_norm is true."""
    if torch.compiler.is_compiling() and _is_left_to_compiler(x, shape, code):
        return _fusion.to_fuse(head, text, columns_of(shape), x.dtype)
    return text


def _add_norm(head: str, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
              in_bias: Tensor | None, weight_offset: bool, rounding: str | None, activation: str | None, scale: float,
              batch_invariant: bool) -> tuple[Tensor, Tensor]:
    if activation is not None:
        code_of(activation)
    row = (x.shape[-1],) if weight is None else tuple(weight.shape)
    types = types_of(x, in_bias=in_bias, residual=residual, weight=weight, bias=bias)
    text = text_for("add_rms_norm" if head == "rmsnorm" else "add_layer_norm", head, row, types, eps,
                    "/add/sum" + _rounding(rounding), weight_offset, activation, scale)
    outputs: Any = norm(text, x, in_bias=in_bias, residual=residual, weight=weight, bias=bias,
                        batch_invariant=batch_invariant)
    return outputs.out, outputs.sum


def _rounding(rounding: str | None) -> str:
    return "" if rounding is None else "/round=" + rounding


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


# ---- Results of 8 and 4 bits

class _Quantization(NamedTuple):
    """How a result is rounded to 8 or 4 bits, as the names below take it."""
    dtype: torch.dtype
    scale: Optional[Tensor]
    inverse_scale: bool
    upper_bound: Optional[Tensor]
    block: Optional[int]
    scale_format: Optional[str]
    scale_layout: Optional[str]
    global_scale: Optional[Tensor]
    also: Optional[torch.dtype]


def _norm_quant(what: str, x: Tensor, residual: Tensor | None, row: tuple[int, ...], weight: Tensor | None, eps: float,
                how: _Quantization, in_bias: Tensor | None, weight_offset: bool, rounding: str | None,
                batch_invariant: bool) -> Any:
    """y; with a residual the sum; without a scale those of the rows or blocks; the result in front of all that."""
    def fail(why: str, *parts: Any) -> RuntimeError:
        return RuntimeError("normjit.torch.{}: {}".format(what, why.format(*parts)))
    if how.dtype not in NARROW_TEXTS:
        raise fail("dtype is {}; it must be one of {}", how.dtype, ", ".join(map(str, NARROW_TEXTS)))
    if not row or x.shape[-len(row):] != row:
        raise fail("the last dimensions of x, of shape {}, are no row of shape {}", list(x.shape), list(row))
    if how.inverse_scale and how.scale is None:
        raise fail("inverse_scale needs a scale")
    if how.upper_bound is not None and not (how.scale is None and how.block is None):
        raise fail("upper_bound is of scales for each row: leave it out, or scale and block")
    if how.block is None:
        for name in ("scale_format", "scale_layout", "global_scale"):
            if getattr(how, name) is not None:
                raise fail("{} needs blocks: give block, too", name)
        quantization = "row" if how.scale is None else "tensor"
        quantization += ":inv" if how.inverse_scale else ":ub" if how.upper_bound is not None else ""
    else:
        quantization = _blocks(how, fail)
    if how.also is not None and TEXTS.get(how.also) not in _library.ALSOS:
        raise fail("also is {}; it must be torch.float16, torch.bfloat16 or torch.float32", how.also)
    fields = "/out={}/q={}".format(NARROW_TEXTS[how.dtype], quantization)
    fields += "" if how.also is None else "/also=" + TEXTS[how.also]
    fields += ("" if residual is None else "/add/sum") + _rounding(rounding)
    types = types_of(x, in_bias=in_bias, residual=residual, weight=weight)
    made: Any = norm(text_for(what, "rmsnorm", row, types, eps, fields, weight_offset), x, in_bias=in_bias,
                     residual=residual, weight=weight, tensor_scale=how.scale, upper_bound=how.upper_bound,
                     global_scale=how.global_scale, batch_invariant=batch_invariant)
    if isinstance(made, Tensor):
        return made
    scales = made.block_scale if made.row_scale is None else made.row_scale.reshape(x.shape[:-len(row)])
    return tuple(part for part in (made.out, made.sum, scales, made.also) if part is not None)


def _blocks(how: _Quantization, fail: Callable[..., RuntimeError]) -> str:
    """Of a spec's text."""
    texts = [how.scale_format or {16: "e4m3", 32: "e8m0"}.get(how.block or 0, "f32"), how.scale_layout or "rows"]
    if how.scale is not None:
        raise fail("blocks have scales that the kernel finds: leave out scale, or block")
    if how.block not in (16, 32, 64, 128):
        raise fail("block is {}; it must be one of 16, 32, 64, 128", how.block)
    for name, text, known in zip(("scale_format", "scale_layout"), texts, (_library.SCALE_FORMATS, _library.SCALE_LAYOUTS)):
        if text not in known:
            raise fail("{} is {!r}; it must be one of {}", name, text, ", ".join(map(repr, known)))
    return str(how.block) + "".join(":" + text for text in texts if text not in ("f32", "rows"))


@overload
def rms_norm_quant(x: Tensor, normalized_shape: Sequence[int], weight: Optional[Tensor] = None,
                   eps: Optional[float] = None, *, dtype: torch.dtype = torch.float8_e4m3fn, scale: None = None,
                   upper_bound: Optional[Tensor] = None, block: Optional[int] = None,
                   scale_format: Optional[str] = None, scale_layout: Optional[str] = None,
                   global_scale: Optional[Tensor] = None, also: None = None, weight_offset: bool = False,
                   rounding: Optional[str] = None, batch_invariant: bool = False) -> tuple[Tensor, Tensor]: ...


@overload
def rms_norm_quant(x: Tensor, normalized_shape: Sequence[int], weight: Optional[Tensor] = None,
                   eps: Optional[float] = None, *, dtype: torch.dtype = torch.float8_e4m3fn, scale: None = None,
                   upper_bound: Optional[Tensor] = None, block: Optional[int] = None,
                   scale_format: Optional[str] = None, scale_layout: Optional[str] = None,
                   global_scale: Optional[Tensor] = None, also: torch.dtype, weight_offset: bool = False,
                   rounding: Optional[str] = None, batch_invariant: bool = False) -> tuple[Tensor, Tensor, Tensor]: ...


@overload
def rms_norm_quant(x: Tensor, normalized_shape: Sequence[int], weight: Optional[Tensor] = None,
                   eps: Optional[float] = None, *, dtype: torch.dtype = torch.float8_e4m3fn, scale: Tensor,
                   inverse_scale: bool = False, also: None = None, weight_offset: bool = False,
                   rounding: Optional[str] = None, batch_invariant: bool = False) -> Tensor: ...


@overload
def rms_norm_quant(x: Tensor, normalized_shape: Sequence[int], weight: Optional[Tensor] = None,
                   eps: Optional[float] = None, *, dtype: torch.dtype = torch.float8_e4m3fn, scale: Tensor,
                   inverse_scale: bool = False, also: torch.dtype, weight_offset: bool = False,
                   rounding: Optional[str] = None, batch_invariant: bool = False) -> tuple[Tensor, Tensor]: ...


def rms_norm_quant(x: Tensor, normalized_shape: Sequence[int], weight: Optional[Tensor] = None,
                   eps: Optional[float] = None, *, dtype: torch.dtype = torch.float8_e4m3fn,
                   scale: Optional[Tensor] = None, inverse_scale: bool = False, upper_bound: Optional[Tensor] = None,
                   block: Optional[int] = None, scale_format: Optional[str] = None, scale_layout: Optional[str] = None,
                   global_scale: Optional[Tensor] = None, also: Optional[torch.dtype] = None,
                   weight_offset: bool = False, rounding: Optional[str] = None,
                   batch_invariant: bool = False) -> Any:
    """RMSNorm(x) in 8 or 4 bits, in one kernel: y with a scale, else (y, scales) with one for each row, or for each block.

    dtype: torch.float8_e4m3fn, torch.float8_e5m2 or torch.int8; with a block of 16 or 32 also torch.float4_e2m1fn_x2, of pairs
    of columns: y has x's shape with the pairs of a row in the place of the normalized dimensions. scale: one f32, by which
    the result is divided; with inverse_scale it is multiplied. Without it, each row is divided by its largest magnitude over
    the largest number of the type, and scales, in f32, have x's shape without the normalized dimensions. upper_bound: one
    f32, more than which that magnitude does not count. eps None is 2^-23.

    block: 16, 32, 64 or 128 neighbouring columns, each with a scale. scale_format: "f32"; "p2", rounded up to a power of
    two; "e8m0", the same in torch.float8_e8m0fnu; "e4m3", times global_scale (one f32) in torch.float8_e4m3fn. It is "e4m3"
    for blocks of 16, "e8m0" for those of 32 and "f32" for others, if it is not given. scale_layout: "rows", where scales
    have x's shape with the blocks of a row in the place of the normalized dimensions; "cols", "cols4" or "sw", which norm()
    describes.

    also: torch.float16, torch.bfloat16 or torch.float32, for the result in front of the quantization, too, behind all else.

    rounding: "y" rounds the result to x's type in front of that, as separate operations do; "norm" and "norm+y" as in
    add_rms_norm. weight_offset: as there. What is beyond the type's numbers becomes the largest of them. There is no
    gradient. See norm(); docs/algebra.md has the formula.
    """
    how = _Quantization(dtype, scale, inverse_scale, upper_bound, block, scale_format, scale_layout, global_scale, also)
    return _norm_quant("rms_norm_quant", x, None, tuple(normalized_shape), weight, 2.0 ** -23 if eps is None else eps, how,
                       None, weight_offset, rounding, batch_invariant)


@overload
def add_rms_norm_quant(x: Tensor, residual: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-5, *,
                       dtype: torch.dtype = torch.float8_e4m3fn, scale: None = None,
                       upper_bound: Optional[Tensor] = None, block: Optional[int] = None,
                       scale_format: Optional[str] = None, scale_layout: Optional[str] = None,
                       global_scale: Optional[Tensor] = None, also: None = None, in_bias: Optional[Tensor] = None,
                       weight_offset: bool = False, rounding: Optional[str] = None,
                       batch_invariant: bool = False) -> tuple[Tensor, Tensor, Tensor]: ...


@overload
def add_rms_norm_quant(x: Tensor, residual: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-5, *,
                       dtype: torch.dtype = torch.float8_e4m3fn, scale: None = None,
                       upper_bound: Optional[Tensor] = None, block: Optional[int] = None,
                       scale_format: Optional[str] = None, scale_layout: Optional[str] = None,
                       global_scale: Optional[Tensor] = None, also: torch.dtype, in_bias: Optional[Tensor] = None,
                       weight_offset: bool = False, rounding: Optional[str] = None,
                       batch_invariant: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...


@overload
def add_rms_norm_quant(x: Tensor, residual: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-5, *,
                       dtype: torch.dtype = torch.float8_e4m3fn, scale: Tensor, inverse_scale: bool = False,
                       also: None = None, in_bias: Optional[Tensor] = None, weight_offset: bool = False,
                       rounding: Optional[str] = None, batch_invariant: bool = False) -> tuple[Tensor, Tensor]: ...


@overload
def add_rms_norm_quant(x: Tensor, residual: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-5, *,
                       dtype: torch.dtype = torch.float8_e4m3fn, scale: Tensor, inverse_scale: bool = False,
                       also: torch.dtype, in_bias: Optional[Tensor] = None, weight_offset: bool = False,
                       rounding: Optional[str] = None, batch_invariant: bool = False) -> tuple[Tensor, Tensor, Tensor]: ...


def add_rms_norm_quant(x: Tensor, residual: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-5, *,
                       dtype: torch.dtype = torch.float8_e4m3fn, scale: Optional[Tensor] = None,
                       inverse_scale: bool = False, upper_bound: Optional[Tensor] = None, block: Optional[int] = None,
                       scale_format: Optional[str] = None, scale_layout: Optional[str] = None,
                       global_scale: Optional[Tensor] = None, also: Optional[torch.dtype] = None,
                       in_bias: Optional[Tensor] = None, weight_offset: bool = False, rounding: Optional[str] = None,
                       batch_invariant: bool = False) -> Any:
    """(y, s), without a scale (y, s, scales), in one kernel: y, the scales and `also`, which comes last, are those of
    rms_norm_quant, of s = x + in_bias + residual. Rows, s and rounding ("sum+norm+y", for example) as in add_rms_norm."""
    row = (x.shape[-1],) if weight is None else tuple(weight.shape)
    how = _Quantization(dtype, scale, inverse_scale, upper_bound, block, scale_format, scale_layout, global_scale, also)
    return _norm_quant("add_rms_norm_quant", x, residual, row, weight, eps, how, in_bias, weight_offset, rounding,
                       batch_invariant)


# ---- Gates and modulations

def modulated_layer_norm(x: Tensor, scale: Tensor, shift: Optional[Tensor] = None, weight: Optional[Tensor] = None,
                         bias: Optional[Tensor] = None, eps: float = 1e-6, *, batch_invariant: bool = False) -> Tensor:
    """LayerNorm(x) * (1 + scale) + shift over the last dimension, in one kernel: the adaptive norm of diffusion
    transformers.

    scale and shift, of one type, have any shape that expands to x's: [samples, 1, columns] is read where it is, a chunk of
    a projection, too. weight and bias are in front of them. See norm().
    """
    text = text_for("modulated_layer_norm", "layernorm", (x.shape[-1],),
                    types_of(x, weight=weight, bias=bias, scale=scale, shift=shift), eps, "")
    y = norm(text, x, mod_scale=scale, mod_shift=shift, weight=weight, bias=bias, batch_invariant=batch_invariant)
    assert isinstance(y, Tensor)
    return y


def layer_norm_2d(x: Tensor, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, eps: float = 1e-6, *,
                  batch_invariant: bool = False) -> Tensor:
    """LayerNorm over the channels of x, [N, C, ...], in one kernel and in x's memory format: what ConvNeXt has between
    convolutions. weight and bias are [C]. See norm().
    """
    text = text_for("layer_norm_2d", "layernorm", tuple(x.shape[1:2]), types_of(x, weight=weight, bias=bias), eps, "/cf")
    y = norm(text, x, weight=weight, bias=bias, batch_invariant=batch_invariant)
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
    fields = "/gateafter" if norm_before_gate else "/gate"
    fields += ("" if function is None else ":" + function) + ("/round=norm" if round_norm else "")
    text = text_for("gated_rms_norm", "rmsnorm", (x.shape[-1],), types_of(x, weight=weight, gate=gate), eps, fields)
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
    types = types_of(x, residual=residual, weight=weight, bias=bias, gate=gate, scale=scale, shift=shift)
    text = text_for("gate_residual_modulate", "layernorm", (x.shape[-1],), types, eps,
                    "/gate/add/sum" + _rounding(rounding))
    outputs: Any = norm(text, x, gate=gate, residual=residual, weight=weight, bias=bias, mod_scale=scale, mod_shift=shift,
                        batch_invariant=batch_invariant)
    return outputs.out, outputs.sum
