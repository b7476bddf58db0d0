# SPDX-License-Identifier: Apache-2.0
"""The operators' kernels where no C++ compiler is found: the same as operator.cc, by ctypes."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normjit import _library
from normjit.torch import _check
from normjit.torch._launch import launch, pointer_of


def _code(dtype: torch.dtype) -> int:
    return _library.DTYPES[_check.TEXTS[dtype]]


def _rows(x: Tensor, dims: int) -> tuple[Tensor, int]:
    """x, or a contiguous copy, and the elements from one of its rows to the next."""
    columns = x.shape[-dims:].numel()
    if x.numel() == 0 or x.is_contiguous():
        return x, columns
    try:
        rows = x.view(-1, columns)
    except RuntimeError:  # no one stride takes it from row to row
        return x.contiguous(), columns
    if columns > 1 and rows.stride(1) != 1:
        return x.contiguous(), columns
    return x, rows.stride(0)


def _run(statistics: bool, x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: int,
         scale: float, dtype: torch.dtype | None) -> tuple[Tensor, Any, Any]:
    """y, mean and rstd; None in the place of the latter unless they are asked for."""
    _check.arguments(x, dims, weight, bias, dtype)
    if not 0 <= eps <= _library.LARGEST_EPSILON:
        y, mean, rstd = torch.ops.normjit.layer_norm_by_pytorch(x, dims, weight, bias, eps, activation, scale, dtype)
        return y, mean, rstd
    y = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    mean = rstd = None
    if statistics:
        mean, rstd = (_check.empty_statistics(x, dims, weight, dtype) for _ in range(2))
    if x.numel() == 0:
        return y, mean, rstd
    x, stride = _rows(x, dims)
    weight, bias = (part if part is None else part.contiguous() for part in (weight, bias))
    columns = x.shape[-dims:].numel()
    spec = _library.Spec(columns, eps, scale, input=_code(x.dtype), output=_code(y.dtype),
                         weight=_code(x.dtype if weight is None else weight.dtype), activation=activation,
                         affine=_library.AFFINES["none" if weight is None else "w" if bias is None else "wb"],
                         statistics=int(statistics))
    tensors = _library.Tensors(rows=x.numel() // columns, x=_library.Rows(pointer_of(x), stride),
                               y=_library.Rows(pointer_of(y)), weight=_library.Rows(pointer_of(weight)),
                               bias=_library.Rows(pointer_of(bias)), mean=pointer_of(mean), rstd=pointer_of(rstd))
    launch(spec, tensors, x.device)
    return y, mean, rstd


def layer_norm(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: int = 1,
               scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    return _run(False, x, dims, weight, bias, eps, activation, scale, dtype)[0]


def layer_norm_with_statistics(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float,
                               activation: int = 1, scale: float = 1.0,
                               dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
    return _run(True, x, dims, weight, bias, eps, activation, scale, dtype)


KERNELS = {"layer_norm": layer_norm, "layer_norm_with_statistics": layer_norm_with_statistics}
