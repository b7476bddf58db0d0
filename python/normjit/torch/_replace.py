# SPDX-License-Identifier: Apache-2.0
"""Puts normjit's norms in the place of a model's."""
from __future__ import annotations

import copy
import functools
from typing import Any, Optional, TypeVar

import torch
from torch import Tensor, nn

from normjit.torch._check import TEXTS
from normjit.torch._formula import formula
from normjit.torch._fused import is_for_norm, remembered, text_of
from normjit.torch._fusion import enable_fusion
from normjit.torch._module import LayerNorm, RMSNorm
from normjit.torch._norm import norm
from normjit.torch._problem import in_order, problem_of

_Model = TypeVar("_Model", bound=nn.Module)


def replace_norms(model: _Model, fuse: bool = False) -> _Model:
    """Makes the norms of a model, the model itself included, normjit's; returns the model. Call it before
    torch.compile.

    Replaced are torch.nn.LayerNorm, torch.nn.RMSNorm, and modules named ...RMSNorm like those of transformers: with one
    parameter, `weight`, and `variance_epsilon` or `eps`. What such a class computes is found by a trial on the CPU, bit
    by bit: whether the normalized value is rounded in front of the weight (Llama, Qwen, Mistral), or not, and whether
    the weight is added to 1 (Gemma). A class that computes anything else is left alone.

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


class _LikeTransformers:
    """The forward of a class whose `_tail` was found by a trial."""
    weight: Tensor
    _tail = ""  # the last fields of its spec
    _promotes = False  # its result has the wider type of x and weight, not x's

    def forward(self, x: Tensor) -> Tensor:
        weight, eps = self.weight, _epsilon_of(self)
        shape = tuple(weight.shape)
        if is_for_norm("rmsnorm", x, shape, weight, eps):
            text = _text_like_transformers(shape, x.dtype, weight.dtype, eps, self._tail, self._promotes)
            y = norm(text, x, weight=weight)
            assert isinstance(y, Tensor)
            return y
        theirs: Any = super()
        found: Tensor = theirs.forward(x)
        return found


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
    if isinstance(module, nn.LayerNorm):
        return LayerNorm if kind.forward is nn.LayerNorm.forward else None
    if isinstance(module, nn.RMSNorm):
        return RMSNorm if kind.forward is nn.RMSNorm.forward else None
    if not kind.__name__.endswith("RMSNorm") or issubclass(kind, _LikeTransformers):
        return None
    parameters = dict(module.named_parameters())
    if (list(parameters) != ["weight"] or parameters["weight"].dim() != 1 or list(module.children())
            or not isinstance(_epsilon_of(module), float) or "forward" in vars(module)):
        return None
    if kind not in _found:
        _found[kind] = _try(module)
    found = _found[kind]
    return None if found is None else _like_transformers(*found)


# ---- Trials

_found: dict[Any, Optional[tuple[str, bool]]] = {}  # for each class that was tried


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
    count = torch.arange(16 * columns)
    x = ((count * 7919 % 1013 - 500) / 256).reshape(16, columns).to(dtype)
    weight = 0.5 + (torch.arange(columns) * 31 % 97 / 128).to(weight_dtype)
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


def _agree(found: Tensor, wanted: Tensor) -> bool:
    """All but values near the middle of two, for which sums in another order decide."""
    close = torch.isclose(found, wanted, rtol=1e-6 if found.dtype == torch.float32 else 0.0, atol=0.0)
    return close.double().mean().item() > 0.999


# ---- Classes

@functools.lru_cache(maxsize=None)
def _replacement(base: Any, original: Any) -> Any:
    if original in (nn.LayerNorm, nn.RMSNorm):
        return base
    return type(original.__name__, (base, original), {"__module__": original.__module__, "__reduce_ex__": _reduce})


@functools.lru_cache(maxsize=None)
def _like_transformers(tail: str, promotes: bool) -> Any:
    return type("LikeTransformers", (_LikeTransformers,), {"_tail": tail, "_promotes": promotes})


def _reduce(module: Any, protocol: Any) -> tuple[Any, ...]:
    """A class that was made here has no name to be found by; those of which it was made have, or their arguments."""
    kind: Any = type(module)
    base, original = kind.__bases__
    found = (base._tail, base._promotes) if issubclass(base, _LikeTransformers) else None
    return _make_empty, (base if found is None else None, found, original), module.__getstate__()


def _make_empty(base: Any, found: Any, original: Any) -> Any:
    made = _replacement(base if found is None else _like_transformers(*found), original)
    return made.__new__(made)
