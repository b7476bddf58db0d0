# SPDX-License-Identifier: Apache-2.0
"""Puts normjit's norms in the place of a model's."""
from __future__ import annotations

import copy
import functools
from typing import Any, Optional, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normjit.torch._activation import NONE
from normjit.torch._check import TEXTS
from normjit.torch._formula import formula
from normjit.torch._functional import run
from normjit.torch._fused import is_for_norm, layer_norm_2d, to_fuse
from normjit.torch._fusion import enable_fusion
from normjit.torch._module import LayerNorm, RMSNorm
from normjit.torch._norm import norm
from normjit.torch._problem import in_order, problem_of
from normjit.torch._texts import remembered, text_of

_Model = TypeVar("_Model", bound=nn.Module)


def replace_norms(model: _Model, fuse: bool = False) -> _Model:
    """Makes the norms of a model, the model itself included, normjit's; returns the model. Call it before
    torch.compile.

    Replaced are torch.nn.LayerNorm, torch.nn.RMSNorm, and modules named ...RMSNorm like those of transformers: with one
    parameter, `weight`, and `variance_epsilon` or `eps`. What such a class computes is found by a trial on the CPU, bit
    by bit: whether the normalized value is rounded in front of the weight (Llama, Qwen, Mistral), or not, and whether
    the weight is added to 1 (Gemma). A class that computes anything else is left alone.

    So are the LayerNorms of images, modules named ...LayerNorm2d, or ...LayerNorm with a `data_format` or over the channels of
    [N, C, H, W]: those of transformers (ConvNeXt, SAM), torchvision, timm, detectron2 and ConvNeXt itself. Of one that rounds
    between its steps only tensors of f32 and f64 are computed by normjit.

    Each module stays the object that it is: its parameters, hooks, training flag and whoever holds it stay what they are.
    A subclass stays one, and with a forward of its own it is left alone, as it computes something else.

    fuse: also calls enable_fusion().
    """
    for module in model.modules():
        kind: Any = type(module)
        base = _base_of(module)
        if base is not None:
            module.__class__ = _replacement(base, kind)
    if fuse:
        enable_fusion()
    return model


replace_layer_norm = replace_norms  # the name of 0.1


class _Tried:
    """Comes in front of a class whose forward was tried."""
    _made: Any  # the function of this file, and its arguments, that made the class
    # The class that was tried. Its forward is called by name, since torch.compile traces super().forward with Python 3.12
    # and newer, but no super() by itself.
    _original: Any


class _LikeTransformers(_Tried):
    """The forward of a class whose `_tail` was found by a trial."""
    weight: Tensor
    _tail = ""  # the last fields of its spec
    _promotes = False  # its result has the wider type of x and weight, not x's

    def forward(self, x: Tensor) -> Tensor:
        weight, eps = self.weight, _epsilon_of(self)
        shape = tuple(weight.shape)
        if is_for_norm("rmsnorm", x, shape, weight, eps):
            text = _text_like_transformers(shape, x.dtype, weight.dtype, eps, self._tail, self._promotes)
            y = norm(to_fuse("rmsnorm", text, x, shape), x, weight=weight)
            assert isinstance(y, Tensor)
            return y
        found: Tensor = self._original.forward(self, x)
        return found


class _OfImages(_Tried):
    """The forward of a LayerNorm whose order of dimensions was found by a trial."""
    weight: Optional[Tensor]
    bias: Optional[Tensor]
    eps: float
    _first = False  # the channels of [N, C, H, W], not the last dimension
    _narrow = False  # without other roundings than the spec's, also in 16 bits
    _permuted = False  # its result is a permuted view, with channels last in memory, which convolutions behind it keep

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, shape = self.weight, self.bias, _normalized_shape_of(self)
        if not self._first:
            return run(x, shape, weight, bias, self.eps, NONE, 1.0)
        if (x.dim() == 4 and (self._narrow or x.dtype.itemsize > 2)
                and all(part is None or part.dtype == x.dtype for part in (weight, bias))
                and is_for_norm("layernorm/cf", x.movedim(1, -1), shape, weight, self.eps)):  # no norm to be fused
            if self._permuted:
                return run(x.movedim(1, -1), shape, weight, bias, self.eps, NONE, 1.0).movedim(-1, 1)
            return layer_norm_2d(x, weight, bias, self.eps)
        found: Tensor = self._original.forward(self, x)
        return found


def _normalized_shape_of(module: Any) -> tuple[int, ...]:
    return tuple(getattr(module, "normalized_shape", ()) if module.weight is None else module.weight.shape)


def _epsilon_of(module: Any) -> Any:
    return module.variance_epsilon if hasattr(module, "variance_epsilon") else getattr(module, "eps", None)


@remembered
def _text_like_transformers(shape: tuple[int, ...], dtype: torch.dtype, weight: torch.dtype, eps: float, tail: str,
                            promotes: bool) -> str:
    output = torch.promote_types(dtype, weight) if promotes else dtype
    return text_of("rmsnorm", shape, dtype, eps, "/out={}/w={}{}".format(TEXTS[output], TEXTS[weight], tail))


def _base_of(module: nn.Module) -> Any:
    """The class of normjit for a module, or None."""
    kind: Any = type(module)
    for ours, theirs in ((LayerNorm, nn.LayerNorm), (RMSNorm, nn.RMSNorm)):
        if kind.forward is theirs.forward and issubclass(kind, theirs):
            return ours
    if (issubclass(kind, (LayerNorm, nn.RMSNorm, _Tried)) or list(module.children()) or "forward" in vars(module)
            or not isinstance(_epsilon_of(module), float)):
        return None
    parameters = dict(module.named_parameters())
    names = tuple(parameters)
    make: Any
    attempt: Any
    if any(part.dim() != 1 for part in parameters.values()):
        return None
    if kind.__name__.endswith("RMSNorm") and names == ("weight",):
        make, attempt = _like_transformers, _try
    elif kind.__name__.endswith(("LayerNorm", "LayerNorm2d")) and names in ((), ("weight",), ("weight", "bias")):
        make, attempt = _of_images, _try_of_images
    else:
        return None
    key = kind, getattr(module, "data_format", None), names
    if key not in _found:
        _found[key] = attempt(module)
    return None if _found[key] is None else make(*_found[key])


# ---- Trials

_found: dict[Any, Any] = {}  # for each class that was tried, and what its modules may differ in


def _try_of_images(module: Any) -> Optional[tuple[bool, bool, bool]]:
    """_first, _narrow and _permuted of modules like this; None where they compute something else."""
    if not hasattr(module, "weight") or len(_normalized_shape_of(module)) != 1:
        return None
    for first in (True, False) if hasattr(module, "data_format") else (True,):
        result = _as_layer_norm(module, first, torch.float32)
        if result is not None:
            narrow = _as_layer_norm(module, first, torch.bfloat16) is not None
            permuted = first and result.stride(1) == 1
            return (first, narrow, permuted) if first or narrow else None
    return None


def _as_layer_norm(module: Any, first: bool, dtype: torch.dtype) -> Optional[Tensor]:
    """The result of a module's forward if it is that of LayerNorm, bit by bit in 16 bits."""
    shape = _normalized_shape_of(module)
    columns, = shape
    x = _pattern(30, columns, torch.float64)
    x[::2] *= module.eps ** 0.5  # which shows how epsilon is added
    x = x.reshape(2, 3, 5, columns).to(dtype)
    trial: Any = copy.copy(module)
    trial._parameters = {name: part if part is None else nn.Parameter(_vector(columns, dtype) - float(name == "bias"))
                         for name, part in module._parameters.items()}
    with torch.no_grad():
        wanted = F.layer_norm(x, shape, trial._parameters.get("weight"), trial._parameters.get("bias"), module.eps)
        given, wanted = (part.movedim(-1, 1).contiguous() if first else part for part in (x, wanted))
        try:
            result = type(module).forward(trial, given)
        except Exception:  # whatever a class that takes other arguments raises
            return None
    agrees = result.shape == wanted.shape and result.dtype == dtype and _agree(result, wanted, 1e-5)
    return result if agrees else None


def _pattern(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return ((torch.arange(rows * columns) * 7919 % 1013 - 500) / 256).reshape(rows, columns).to(dtype)


def _vector(columns: int, dtype: torch.dtype) -> Tensor:
    return 0.5 + (torch.arange(columns) * 31 % 97 / 128).to(dtype)


def _try(module: nn.Module) -> Optional[tuple[str, bool]]:
    """_tail and _promotes of modules like this; None where they compute something else."""
    try:
        with torch.no_grad():
            mixed = _outcome(module, torch.bfloat16, torch.float32)
            same = _outcome(module, torch.bfloat16, torch.bfloat16)
    except Exception:  # whatever a class that takes other arguments raises
        return None
    return mixed if mixed is not None and same is not None and mixed[0] == same[0] else None


def _outcome(module: nn.Module, dtype: torch.dtype, weight_dtype: torch.dtype) -> Optional[tuple[str, bool]]:
    """The tail of the one spec that has the result of a module's forward, and whether that is of the wider type."""
    columns = module.weight.numel()  # type: ignore[operator]
    x, weight = _pattern(16, columns, dtype), _vector(columns, weight_dtype)
    trial: Any = copy.copy(module)
    trial._parameters = {"weight": nn.Parameter(weight)}
    result = type(module).forward(trial, x)
    promotes = result.dtype == torch.promote_types(dtype, weight_dtype) != dtype
    if result.shape != x.shape or result.dtype != dtype and not promotes:
        return None
    eps = _epsilon_of(module)
    tails = [tail for tail in ("/round=norm/w", "/w", "/round=norm/w1", "/w1")
             if _agree(result, formula(problem_of(_text_like_transformers(
                 tuple(weight.shape), dtype, weight_dtype, eps, tail, promotes)), x, *in_order(weight=weight))[0])]
    return (tails[0], promotes) if len(tails) == 1 else None


def _agree(found: Tensor, wanted: Tensor, within: float = 0.0) -> bool:
    """All but values near the middle of two, for which sums in another order decide. In f32 values of about 1 may be so
    far apart."""
    wide = found.dtype == torch.float32
    close = torch.isclose(found, wanted, rtol=1e-6 if wide else 0.0, atol=within if wide else 0.0)
    return close.double().mean().item() > 0.999


# ---- Classes

@functools.lru_cache(maxsize=None)
def _replacement(base: Any, original: Any) -> Any:
    if original in (nn.LayerNorm, nn.RMSNorm):
        return base
    return type(original.__name__, (base, original), {
        "__module__": original.__module__, "__reduce_ex__": _reduce, "_original": original})


@functools.lru_cache(maxsize=None)
def _like_transformers(tail: str, promotes: bool) -> Any:
    return type("LikeTransformers", (_LikeTransformers,), {
        "_tail": tail, "_promotes": promotes, "_made": (_like_transformers, tail, promotes)})


@functools.lru_cache(maxsize=None)
def _of_images(first: bool, narrow: bool, permuted: bool) -> Any:
    return type("OfImages", (_OfImages,), {
        "_first": first, "_narrow": narrow, "_permuted": permuted, "_made": (_of_images, first, narrow, permuted)})


def _reduce(module: Any, protocol: Any) -> tuple[Any, ...]:
    """A class that was made here has no name to be found by; those of which it was made have, or their arguments."""
    kind: Any = type(module)
    base, original = kind.__bases__
    made = base._made if issubclass(base, _Tried) else (None, base)
    return _make_empty, (*made, original), module.__getstate__()


def _make_empty(make: Any, *arguments: Any) -> Any:
    *found, original = arguments
    made = _replacement(found[0] if make is None else make(*found), original)
    return made.__new__(made)
