# SPDX-License-Identifier: Apache-2.0
"""LayerNorm, in the place of torch.nn.LayerNorm, and what puts it there."""
# TorchScript evaluates the annotations of a module, so they are no strings here.
import functools
from typing import Any, Optional, TypeVar, Union

import torch
from torch import nn

from normjit.torch._functional import CODES, code_of, run


_Model = TypeVar("_Model", bound=nn.Module)


class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm, and what may follow it, in one kernel: y = scale * activation(LayerNorm(x)).

    Constructor, parameters, state_dict and behaviour are its own; `activation` (None, "relu", "gelu", "gelu_tanh",
    "silu") and `scale` come after them, and no state_dict has them. See normjit.torch.layer_norm.
    """

    # Of those that replace_layer_norm made.
    activation: Optional[str] = None
    scale: float = 1.0

    def __init__(self, normalized_shape: Union[int, list[int], torch.Size], eps: float = 1e-5,
                 elementwise_affine: bool = True, bias: bool = True, device: Any = None,
                 dtype: Optional[torch.dtype] = None, *, activation: Optional[str] = None, scale: float = 1.0) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device=device, dtype=dtype)
        code_of(activation)
        self.activation = activation
        self.scale = float(scale)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return run(input, self.normalized_shape, self.weight, self.bias, self.eps, CODES[self.activation], self.scale)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        if self.activation is not None:
            text += ", activation={!r}".format(self.activation)
        if self.scale != 1.0:
            text += ", scale={}".format(self.scale)
        return text


_jit: Any = torch.jit  # which has no types
_jit.ignore(LayerNorm.forward)  # a script calls back


def replace_layer_norm(model: _Model) -> _Model:
    """Makes every torch.nn.LayerNorm of a model, the model itself included, a normjit.torch.LayerNorm; returns the
    model.

    Each one stays the object that it is: its parameters, hooks, training flag and whoever holds it stay what they are.
    A subclass stays one, and with a forward of its own it is left alone, as it computes something else. Call this
    before torch.compile.
    """
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and type(module).forward is nn.LayerNorm.forward:
            kind: Any = type(module)
            module.__class__ = _replacement(kind)
    return model


@functools.lru_cache(maxsize=None)
def _replacement(original: Any) -> Any:
    if original is nn.LayerNorm:
        return LayerNorm
    return type(original.__name__, (LayerNorm, original), {"__module__": original.__module__, "__reduce_ex__": _reduce})


def _reduce(module: Any, protocol: Any) -> tuple[Any, ...]:
    """A class that was made here has no name to be found by; that of which it was made has."""
    return _make_empty, (type(module).__mro__[2],), module.__getstate__()


def _make_empty(original: Any) -> Any:
    made = _replacement(original)
    return made.__new__(made)
