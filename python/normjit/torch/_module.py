# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and RMSNorm, in the place of those of torch.nn."""
# TorchScript evaluates the annotations of a module, so they are no strings here.
from typing import Any, Optional, Union

import torch
from torch import nn

from normjit.torch._functional import CODES, code_of, run
from normjit.torch._fused import rms_norm


def _more(activation: Optional[str], scale: float) -> str:
    """Of the text of a module, where they are not the defaults."""
    text = "" if activation is None else ", activation={!r}".format(activation)
    return text if scale == 1.0 else "{}, scale={}".format(text, scale)


class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm, and what may follow it, in one kernel: y = scale * activation(LayerNorm(x)).

    Constructor, parameters, state_dict and behaviour are its own; `activation` (None, "relu", "gelu", "gelu_tanh",
    "silu") and `scale` come after them, and no state_dict has them. See normjit.torch.layer_norm.
    """

    # Of those that replace_norms made.
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
        return super().extra_repr() + _more(self.activation, self.scale)


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm, and what may follow it, in one kernel. As LayerNorm; see normjit.torch.rms_norm."""

    # Of those that replace_norms made.
    activation: Optional[str] = None
    scale: float = 1.0

    def __init__(self, normalized_shape: Union[int, list[int], torch.Size], eps: Optional[float] = None,
                 elementwise_affine: bool = True, device: Any = None, dtype: Optional[torch.dtype] = None, *,
                 activation: Optional[str] = None, scale: float = 1.0) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device=device, dtype=dtype)
        code_of(activation)
        self.activation = activation
        self.scale = float(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.normalized_shape, self.weight, self.eps, activation=self.activation, scale=self.scale)

    def extra_repr(self) -> str:
        return super().extra_repr() + _more(self.activation, self.scale)


_jit: Any = torch.jit  # which has no types
_jit.ignore(LayerNorm.forward)  # a script calls back
_jit.ignore(RMSNorm.forward)
