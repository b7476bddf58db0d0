# SPDX-License-Identifier: Apache-2.0
"""What the operators ask of their arguments, where Python runs them: as fake kernels and through ctypes. operator.cc
asks the same."""
from __future__ import annotations

import torch
from torch import Tensor

from normjit import _library

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WARM_UP = ("Call the layer once with tensors like these before the capture begins, as the warm-up of torch.cuda.graph "
           "does.")
TEXTS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
# Of y alone, of 8 and 4 bits. An element of the last type has two columns.
NARROW_TEXTS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "s8", torch.float4_e2m1fn_x2: "e2m1"}
# Of scales alone.
TEXTS_OF_SCALES = {torch.float8_e8m0fnu: "e8m0"}
_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}


def arguments(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype | None) -> None:
    """Raises RuntimeError in PyTorch's manner."""
    if not 1 <= dims <= x.dim():
        raise RuntimeError("normjit::layer_norm: cannot normalize over the last {} dimensions of an input of size{}"
                           .format(dims, list(x.shape)))
    if x.dtype not in DTYPES:
        raise RuntimeError("normjit::layer_norm: not implemented for this dtype of the input")
    if bias is not None and weight is None:
        raise RuntimeError("normjit::layer_norm: a bias needs a weight")
    if dtype is not None and dtype not in DTYPES:
        raise RuntimeError("normjit::layer_norm: dtype must be a floating-point type")
    wanted = weight.dtype if dtype is not None and weight is not None else x.dtype
    for name, part in (("weight", weight), ("bias", bias)):
        if part is not None:
            _parameter(name, part, x, dims, wanted)


def _parameter(name: str, part: Tensor, x: Tensor, dims: int, dtype: torch.dtype) -> None:
    shape = x.shape[-dims:]
    if part.shape != shape:
        raise RuntimeError("Expected {0} to be of same shape as normalized_shape, but got {0} of shape {1} and "
                           "normalized_shape = {2}".format(name, list(part.shape), list(shape)))
    if part.device != x.device:
        raise RuntimeError("Expected all tensors to be on the same device, but {} is not on the device of the input"
                           .format(name))
    if part.dtype != dtype:
        raise RuntimeError("expected scalar type {} but found {} ({})".format(
            _NAMES.get(dtype, dtype), _NAMES.get(part.dtype, part.dtype), name))


def gradients(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, dy: Tensor, dsum: Tensor | None,
              gate: Tensor | None, mod_scale: Tensor | None, mod_shift: Tensor | None, gate_place: int,
              needs_bias: bool) -> None:
    """Raises RuntimeError where these do not fit each other."""
    if not 1 <= dims <= x.dim():
        raise RuntimeError("normjit::norm_backward: dims must be 1 to {}".format(x.dim()))
    if bias is None and needs_bias:
        raise RuntimeError("normjit::norm_backward: bias must be given, since with an activation, a modulation or a "
                           "gate behind it gradients depend on it")
    if gate_place not in _library.GATES.values() or (gate is None) != (gate_place == _library.GATES["none"]):
        raise RuntimeError("normjit::norm_backward: gate_place must be that of a gate, and 1 without one")
    row = x.shape[-dims:]
    rows = row, (row.numel(),)
    for name, part, fits in (("x", x, True), ("dy", dy, dy.shape == x.shape),
                             ("dsum", dsum, dsum is None or dsum.shape == x.shape),
                             ("gate", gate, gate is None or gate.shape == x.shape),
                             ("mod_scale", mod_scale, gate is None and _expands(mod_scale, x)),
                             ("mod_shift", mod_shift, mod_scale is not None and _expands(mod_shift, x)
                              and mod_shift is not None and mod_shift.dtype == mod_scale.dtype),
                             ("weight", weight, weight is None or weight.shape in rows),
                             ("bias", bias, bias is None or bias.shape in rows and weight is not None
                              and bias.dtype == weight.dtype)):
        if part is not None and not (fits and part.dtype in DTYPES and part.device == x.device):
            raise RuntimeError("normjit::norm_backward: {} does not fit".format(name))


def _expands(part: Tensor | None, x: Tensor) -> bool:
    return part is not None and part.dim() <= x.dim() and all(
        size in (1, there) for size, there in zip(reversed(part.shape), reversed(x.shape)))


def compute_dtype(x: Tensor, weight: Tensor | None, dtype: torch.dtype | None) -> torch.dtype:
    """The type of the arithmetic."""
    wide = torch.float64 in (x.dtype, dtype, None if weight is None else weight.dtype)
    return torch.float64 if wide else torch.float32
