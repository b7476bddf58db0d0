# SPDX-License-Identifier: Apache-2.0
"""What follows a norm, and its gradient, by PyTorch's own operators."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normjit import _library

NONE, RELU, GELU, GELU_TANH, SILU = (_library.ACTIVATIONS[name] for name in (None, "relu", "gelu", "gelu_tanh", "silu"))
_aten: Any = torch.ops.aten


def activate(z: Tensor, activation: int, scale: float) -> Tensor:
    if activation == RELU:
        z = F.relu(z)
    elif activation in (GELU, GELU_TANH):
        z = F.gelu(z, approximate="none" if activation == GELU else "tanh")
    elif activation == SILU:
        z = F.silu(z)
    return z if scale == 1.0 else z * scale


def gradient_of_argument(grad: Tensor, z: Tensor, activation: int, scale: float) -> Tensor:
    """That of z, from the gradient of activate(z, activation, scale). Differentiable."""
    if scale != 1.0:
        grad = grad * scale
    if activation == RELU:
        grad = _aten.threshold_backward(grad, z, 0)
    elif activation in (GELU, GELU_TANH):
        grad = _aten.gelu_backward(grad, z, approximate="none" if activation == GELU else "tanh")
    elif activation == SILU:
        if not torch.is_grad_enabled():
            grad = _aten.silu_backward(grad, z)
        else:
            sigmoid = torch.sigmoid(z)  # what silu_backward computes, with derivatives
            grad = grad * sigmoid * (1 + z * (1 - sigmoid))
    return grad
