# SPDX-License-Identifier: Apache-2.0
"""The call of the XLA FFI: its handlers, built and registered at the first use, and its operands and results."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np

from normjit import _build, _library
from normjit._gradients import UNAVAILABLE

if TYPE_CHECKING:
    from normjit.jax._gradients import GradientProblem
    from normjit.jax._operator import Problem

_jax: Any = jax  # parts of which have no types, or others in each version
TARGET = "normjit_norm"
# As NormjitTable in norm.cc has them; its last member is the service.
_TABLE = ("normjit_norm", "normjit_prepare", "normjit_kernel_release", "normjit_block_scale_shape", "normjit_status_message",
          "normjit_free")


def call(problem: Problem | GradientProblem, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """problem.outputs of problem.inputs, by the kernel."""
    register()
    operands = alike(arrays)
    x = operands[0]
    shapes: list[tuple[tuple[int, ...], Any]] = [
        (problem.shape_of(name, x.shape), jnp.dtype(problem.dtypes[name])) for name in problem.outputs]
    workspace = workspace_bytes(problem.words)
    if workspace:
        shapes.append(((workspace,), jnp.uint8))
    results = jax.ffi.ffi_call(TARGET, [_like(x, *shape) for shape in shapes])(
        *operands, spec=np.frombuffer(problem.words, np.int64))
    return tuple(results[:len(problem.outputs)])


_registering = threading.RLock()
# A fork waits for a build that is under way, so that the child finds no lock taken.
os.register_at_fork(before=_registering.acquire, after_in_parent=_registering.release,
                    after_in_child=_registering.release)


def register() -> None:
    """Makes the target known to XLA, once. Raises RuntimeError."""
    with _registering:
        _register()


@functools.lru_cache(maxsize=None)
def _register() -> None:
    gpus()
    library = open_handlers(os.path.join(os.path.dirname(os.path.abspath(__file__)), "norm.cc"))
    handlers = {"initialize": library.normjit_jax_initialize, "execute": library.normjit_jax_execute}
    jax.ffi.register_ffi_target(
        TARGET, {stage: _jax.ffi.pycapsule(handler) for stage, handler in handlers.items()}, platform="CUDA")
    jax.ffi.register_ffi_target(TARGET, _jax.ffi.pycapsule(library.normjit_jax_refuse), platform="cpu")


def gpus() -> Any:
    """The NVIDIA GPUs of this process."""
    try:
        return jax.local_devices(backend="cuda")
    except RuntimeError as why:
        raise RuntimeError("normjit.jax needs an NVIDIA GPU; got platform {}. Install jax with CUDA (jax[cuda13]), or "
                           "use the formula in jax.numpy here. JAX says: {}".format(
                               jax.default_backend(), why)) from None


def open_handlers(source: str) -> ctypes.CDLL:
    """The shared library of norm.cc, connected with libnormjit."""
    table = (ctypes.c_void_p * (len(_TABLE) + 1))(*map(_library.address_of, _TABLE), _library.service())
    headers = _build.header_directory()
    library = ctypes.CDLL(_build.build(
        "jax_norm", [source, os.path.join(headers, "normjit", "c_api.h")], [headers, jax.ffi.include_dir()],
        version="jaxlib " + jaxlib.version.__version__))
    library.normjit_jax_bind.restype = None
    library.normjit_jax_bind(table)
    return library


@functools.lru_cache(maxsize=1024)
def workspace_bytes(spec: bytes) -> int:
    """What suffices for this normjit_spec, as bytes, on each GPU of this process."""
    asked, most = _library.Spec.from_buffer_copy(spec), 0
    for gpu in gpus():
        here = ctypes.c_size_t()
        with context_of(gpu):
            _library.call("normjit_workspace_bytes", _library.service(), ctypes.byref(asked), ctypes.byref(here))
        most = max(most, here.value)
    return most


def is_available(spec: bytes, rows: int, *, grouped: bool = False) -> bool:
    """Whether each kind of GPU of this process has the kernel of this normjit_spec for so many rows, which is made where that
    is possible: the call compiles no more then. grouped: some operand has a row for several of them. Raises _library.Error for
    other failures than that there is none."""
    asked, options = _library.Spec.from_buffer_copy(spec), _library.PrepareOptions(rows_hint=rows, grouped_rows=int(grouped))
    for gpu in {gpu.device_kind: gpu for gpu in gpus()}.values():
        kernel = ctypes.c_void_p()
        try:
            with context_of(gpu):
                _library.call("normjit_prepare", _library.service(), ctypes.byref(asked), ctypes.byref(options),
                              ctypes.byref(kernel))
        except _library.Error as why:
            if why.status not in UNAVAILABLE:
                raise
            return False
        _library.load().normjit_kernel_release(kernel)
    return True


@contextlib.contextmanager
def context_of(gpu: Any) -> Iterator[None]:
    """The primary context, in which XLA works, as the current one, for which libnormjit answers."""
    cuda, ordinal = ctypes.CDLL("libcuda.so.1"), gpu.local_hardware_id
    context, popped = ctypes.c_void_p(), ctypes.c_void_p()
    for status in (cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal), cuda.cuCtxPushCurrent_v2(context)):
        if status != 0:
            raise RuntimeError("normjit.jax: the context of GPU {} gave CUDA error {}".format(ordinal, status))
    try:
        yield
    finally:
        cuda.cuCtxPopCurrent_v2(ctypes.byref(popped))
        cuda.cuDevicePrimaryCtxRelease_v2(ordinal)


def _varying(array: Any) -> frozenset[Any]:
    """The axes of shard_map along which an array differs from device to device."""
    kind = jax.typeof(array)
    manual = getattr(kind, "manual_axis_type", None)
    return frozenset(getattr(kind, "vma", ()) if manual is None else manual.varying)


def alike(operands: Sequence[Any]) -> list[Any]:
    """The operands, all of them varying along the same axes of shard_map, as XLA's calls need them."""
    axes: frozenset[Any] = frozenset().union(*map(_varying, operands))
    missing = [tuple(axes - _varying(operand)) for operand in operands]
    if hasattr(jax.lax, "pcast"):
        return [_jax.lax.pcast(operand, some, to="varying") if some else operand
                for operand, some in zip(operands, missing)]
    return [_jax.lax.pvary(operand, some) if some else operand for operand, some in zip(operands, missing)]


def _like(operand: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """The type of a result that varies as the operand does."""
    kind: Any = jax.typeof(operand)
    if not _varying(operand):
        return _jax.ShapeDtypeStruct(shape, dtype)
    if hasattr(kind, "manual_axis_type"):
        everywhere = _jax.sharding.NamedSharding(kind.sharding.mesh, _jax.sharding.PartitionSpec())
        return _jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere, manual_axis_type=kind.manual_axis_type)
    return _jax.ShapeDtypeStruct(shape, dtype, vma=kind.vma)
