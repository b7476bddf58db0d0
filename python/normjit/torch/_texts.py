# SPDX-License-Identifier: Apache-2.0
"""The texts of the specs that the named norms stand for."""
from __future__ import annotations

import functools
import math
import operator
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

from normjit.torch._check import TEXTS

Maybe = Optional[torch.dtype]


def remembered(make: Callable[..., str]) -> Callable[..., str]:
    """A function whose results are kept, but not while torch.compile traces it."""
    kept = functools.lru_cache(maxsize=1024)(make)
    return lambda *key: make(*key) if torch.compiler.is_compiling() else kept(*key)


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


class Types(NamedTuple):
    """Of the tensors of a call; None for those that it does not have."""
    x: torch.dtype
    in_bias: Maybe = None
    residual: Maybe = None
    weight: Maybe = None
    bias: Maybe = None
    gate: Maybe = None
    scale: Maybe = None
    shift: Maybe = None


def types_of(x: Tensor, **parts: Optional[Tensor]) -> Types:
    return Types(x.dtype, **{name: None if part is None else part.dtype for name, part in parts.items()})


@remembered
def text_for(what: str, head: str, shape: tuple[int, ...], types: Types, eps: float, fields: str, offset: bool = False,
             activation: str | None = None, scale: float = 1.0) -> str:
    """The text of a spec with operands of these types. fields: those that do not follow from them. RuntimeErrors name
    the function `what`."""
    def fail(why: str) -> RuntimeError:
        return RuntimeError("normjit.torch.{}: {}".format(what, why))
    for dtype in types:
        if dtype is not None and dtype not in TEXTS:
            raise fail("not implemented for {}".format(dtype))
    modulations = {name: dtype for name, dtype in zip(types._fields, types)
                   if name in ("gate", "scale", "shift") and dtype is not None}
    if len(set(modulations.values())) > 1:
        raise fail("{} are of several types".format(", ".join(modulations)))
    if types.bias is not None and types.bias != types.weight:
        raise fail("a bias needs a weight of its type")
    vector = types.in_bias if types.weight is None else types.weight
    tail = "" if vector is None else "/w=" + TEXTS[vector]
    tail += "" if types.residual is None else "/res=" + TEXTS[types.residual]
    for dtype in list(modulations.values())[:1]:
        tail += "/mod=" + TEXTS[dtype]
    tail += fields
    if types.in_bias is not None:
        tail += "/inb"
    if types.weight is not None:
        tail += "/w" + ("" if types.bias is None else "b") + ("1" if offset else "")
    if types.scale is not None:
        tail += "/mods" if types.shift is None else "/mod"
    return text_of(head, shape, types.x, eps, tail, activation, scale)
