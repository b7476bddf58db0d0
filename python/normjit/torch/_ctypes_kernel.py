# SPDX-License-Identifier: Apache-2.0
"""The operators' kernels where no C++ compiler is found: the same as operator.cc, by ctypes."""
from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch
from torch import Tensor

from normjit import _library
from normjit.torch import _check

_CODES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
_local = threading.local()  # workspaces of this thread's streams
_kept: list[Any] = []


def _code(dtype: torch.dtype) -> int:
    return _library.DTYPES[_CODES[dtype]]


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


def _on_stream(device: torch.device) -> tuple[int | None, bool]:
    """The stream, and whether its launches may run at once."""
    if device.type != "cuda":
        return None, False
    return torch.cuda.current_stream(device).cuda_stream or None, torch.cuda.is_current_stream_capturing()


def _workspace(needed: int, device: torch.device, stream: int | None) -> int:
    """The address of a workspace for this thread's launches on a stream."""
    held: dict[tuple[torch.device, int | None], tuple[int, int]] = _local.__dict__.setdefault("workspaces", {})
    size, memory = held.get((device, stream), (0, 0))
    if size < needed:
        size = max(needed, 256 << 10)
        memory = _lasting_zeros(size, stream) if device.type == "cuda" else _on_host(size)
        held[device, stream] = size, memory
    return memory


def _on_host(size: int) -> int:
    """For tests."""
    memory = ctypes.create_string_buffer(size)
    _kept.append(memory)
    return ctypes.addressof(memory)


def _lasting_zeros(size: int, stream: int | None) -> int:
    """Not out of PyTorch's pools, which may be those of a graph at this moment, where nothing may stay."""
    driver, memory, mode = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), ctypes.c_int(2)  # relaxed
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    failed = (driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size))
              or driver.cuMemsetD8Async(memory, ctypes.c_ubyte(0), ctypes.c_size_t(size), ctypes.c_void_p(stream)))
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if failed:
        raise RuntimeError("CUDA out of memory. normjit::layer_norm got none for a workspace.")
    return memory.value


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


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
    tensors = _library.Tensors(rows=x.numel() // columns, x=_library.Rows(_pointer(x), stride),
                               y=_library.Rows(_pointer(y)), weight=_pointer(weight), bias=_pointer(bias), mean=_pointer(mean), rstd=_pointer(rstd))
    with torch.cuda.device(x.device if x.is_cuda else -1):
        _launch(spec, tensors, x.device)
    return y, mean, rstd


def _launch(spec: _library.Spec, tensors: _library.Tensors, device: torch.device) -> None:
    service, (stream, shared) = _library.service(), _on_stream(device)
    needed = ctypes.c_size_t()
    _call(device, "normjit_workspace_bytes", service, ctypes.byref(spec), ctypes.byref(needed))
    if needed.value:
        own = torch.zeros(needed.value, dtype=torch.uint8, device=device) if shared else None
        tensors.workspace = _workspace(needed.value, device, stream) if own is None else own.data_ptr()
    _call(device, "normjit_layer_norm", service, ctypes.byref(spec), ctypes.byref(tensors), stream, None)


def _call(device: torch.device, *call: Any) -> None:
    try:
        _library.call(*call)
    except _library.Error as error:
        if error.status == _library.NOT_READY:
            raise RuntimeError("{} {}".format(error, _check.WARM_UP)) from error
        if error.status != _library.NO_CONTEXT or device.type != "cuda":
            raise
        torch.cuda.current_stream(device).query()  # a call of CUDA's runtime makes a context current
        _library.call(*call)


def layer_norm(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: int = 1,
               scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    return _run(False, x, dims, weight, bias, eps, activation, scale, dtype)[0]


def layer_norm_with_statistics(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float,
                               activation: int = 1, scale: float = 1.0,
                               dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
    return _run(True, x, dims, weight, bias, eps, activation, scale, dtype)


KERNELS = {"layer_norm": layer_norm, "layer_norm_with_statistics": layer_norm_with_statistics}
