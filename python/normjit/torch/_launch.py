# SPDX-License-Identifier: Apache-2.0
"""Launches through ctypes: the stream, its workspace, and the call of libnormjit."""
from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any

import torch

from normjit import _library
from normjit.torch._check import WARM_UP

_local = threading.local()  # workspaces of this thread's streams
_kept: list[Any] = []


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
        raise RuntimeError("CUDA out of memory. normjit got none for a workspace.")
    return memory.value


def _current(device: torch.device) -> Any:
    """Makes a device the current one for as long as the context lasts."""
    there = device.type != "cuda" or device.index == torch.cuda.current_device()
    return contextlib.nullcontext() if there else torch.cuda.device(device)


def launch(spec: _library.Spec, tensors: _library.Tensors, device: torch.device, batch_invariant: bool) -> None:
    """On the current stream of a device."""
    with _current(device):
        return _launch(spec, tensors, device, batch_invariant)


def _launch(spec: _library.Spec, tensors: _library.Tensors, device: torch.device, batch_invariant: bool) -> None:
    service, stream = _library.service(batch_invariant), None
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device).cuda_stream or None
    needed, own = _workspace_bytes(spec, device, service), None
    if needed:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():  # replays may run at once
            own = torch.empty(needed, dtype=torch.uint8, device=device)
            own[:_library.WORKSPACE_ZEROED].zero_()
        tensors.workspace = _workspace(needed, device, stream) if own is None else own.data_ptr()
    _call(device, "normjit_norm", service, ctypes.byref(spec), ctypes.byref(tensors), stream, None)


def _workspace_bytes(spec: _library.Spec, device: torch.device, service: int) -> int:
    needed = ctypes.c_size_t()
    _call(device, "normjit_workspace_bytes", service, ctypes.byref(spec), ctypes.byref(needed))
    return needed.value


def _call(device: torch.device, *call: Any) -> None:
    try:
        _library.call(*call)
    except _library.Error as error:
        if error.status == _library.NOT_READY:
            raise RuntimeError("{} {}".format(error, WARM_UP)) from error
        if error.status != _library.NO_CONTEXT or device.type != "cuda":
            raise
        torch.cuda.current_stream(device).query()  # a call of CUDA's runtime makes a context current
        _library.call(*call)
