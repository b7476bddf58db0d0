# SPDX-License-Identifier: Apache-2.0
"""Every spec on arrays that speak DLPack: those of CuPy, PyTorch, Numba and others, without a framework of its own.

    normjit.dlpack.norm("rmsnorm/cols=4096/f16/w", x=x, weight=weight, out=y, stream=cupy.cuda.get_current_stream().ptr)

Nothing is allocated or copied: the caller gives every operand that the spec has, outputs included.
"""
from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from normjit import _library
from normjit._operands import AFFINE, BLOCKS, COLUMNS, GRADIENT_OPERANDS, MATRIX, ONE, OPERANDS, ROWS, Operand, rows_of

_CPU, _CUDA, _CUDA_MANAGED = 1, 2, 13  # DLDeviceType
_DEVICES = {_CUDA, _CUDA_MANAGED}  # tests add the CPU, above a library that computes there

# (code, bits, lanes) of DLDataType for each type of a spec. Types that a framework lacks may be given as unsigned
# integers of their size.
_TYPES = {"f16": {(2, 16, 1)}, "bf16": {(4, 16, 1), (1, 16, 1)}, "f32": {(2, 32, 1)}, "f64": {(2, 64, 1)},
          "e4m3": {(10, 8, 1), (1, 8, 1)}, "e5m2": {(12, 8, 1), (1, 8, 1)}, "s8": {(0, 8, 1)},
          "e2m1": {(17, 4, 2), (1, 8, 1)}, "e8m0": {(14, 8, 1), (1, 8, 1)}}
_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "e4m3": 1, "e5m2": 1, "s8": 1, "e2m1": 1, "e8m0": 1}


_NO_TENSORS = bytes(_library.Tensors())
_put_address = struct.Struct("@P").pack_into


class _Tensor(ctypes.Structure):
    """DLTensor."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Versioned(ctypes.Structure):
    """The beginning of DLManagedTensorVersioned."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


_READ_ONLY = 1  # a flag
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _Layout(NamedTuple):
    """What DLPack says of an array, but where it is."""
    name: str
    device: tuple[int, int]
    type: tuple[int, int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    read_only: bool

    @property
    def bytes(self) -> int:
        _, bits, lanes = self.type
        return math.prod(self.shape) * (bits * lanes // 8)

    def is_contiguous(self) -> bool:
        return 0 in self.shape or all(size == 1 or stride == wanted for size, stride, wanted in zip(
            self.shape, self.strides, _contiguous(self.shape)))


class _Array:
    """The layout of an array and its address. Keeps its memory alive."""

    def __init__(self, name: str, array: Any, stream: Optional[int]) -> None:
        if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
            raise TypeError("{} is a {}, which does not speak DLPack".format(name, type(array).__name__))
        kind, ordinal = array.__dlpack_device__()
        device = int(kind), int(ordinal)
        if device[0] not in _DEVICES:
            raise ValueError("{} is not on an NVIDIA GPU: its DLPack device is {}".format(name, device))
        ready_for = None if device[0] == _CPU else stream or 1  # 1: the default stream, in DLPack
        try:
            self._capsule = array.__dlpack__(stream=ready_for, max_version=(1, 0))
        except TypeError:  # a producer from before version 1
            self._capsule = array.__dlpack__(stream=ready_for)
        form = _capsule_name(self._capsule)
        address = _capsule_pointer(self._capsule, form)  # the capsule frees it, since it is not renamed
        read_only = False
        if form == b"dltensor_versioned":
            versioned = _Versioned.from_address(address)
            if versioned.major != 1:
                raise BufferError("{} speaks version {} of DLPack, not 1".format(name, versioned.major))
            read_only = bool(versioned.flags & _READ_ONLY)
            tensor = versioned.tensor
        else:
            tensor = _Tensor.from_address(address)
        rank, strides = tensor.ndim, tensor.strides
        shape: tuple[int, ...] = tuple(tensor.shape[:rank])
        self.pointer: int = (tensor.data or 0) + tensor.byte_offset
        self.layout = _Layout(name, device, (tensor.code, tensor.bits, tensor.lanes), shape,
                              tuple(strides[:rank]) if strides else _contiguous(shape), read_only)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, elements = [], 1
    for size in reversed(shape):
        strides.append(elements)
        elements *= size
    return tuple(reversed(strides))


class _Problem:
    """A spec, and what its operands must be. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spec = spec = _library.parse_spec(text)
        self.columns: int = spec.columns
        table = GRADIENT_OPERANDS if spec.backward else OPERANDS
        self.operands = {operand.name: operand for operand in table if operand.present(spec)}
        names = {code: name for name, code in _library.DTYPES.items()}
        types = {"input": names[spec.input], "output": names[spec.output], "weight": names[spec.weight], "single": "f32"}
        types["residual"] = names.get(spec.residual_type, types["input"])
        types["modulated"] = names.get(spec.modulation_type, types["input"])
        types["gradient"] = names.get(spec.gradient_type, types["input"])
        types["compute"] = "f64" if "f64" in types.values() else "f32"
        types["also"] = _library.name_of(_library.ALSOS, spec.also)
        scales = _library.name_of(_library.SCALE_FORMATS, spec.scale_format)
        types["block_scale"] = scales if scales in ("e8m0", "e4m3") else "f32"
        self.types = {name: types[operand.dtype] for name, operand in self.operands.items()}

    def fail(self, what: str) -> ValueError:
        return ValueError("{} (spec {})".format(what, self.text))

    def check_names(self, given: Sequence[str]) -> None:
        for name in given:
            if name not in self.operands:
                raise self.fail("the spec has no {}; it has {}".format(name, ", ".join(self.operands)))
        for name in self.operands:
            if name not in given:
                raise self.fail("the spec needs {}".format(name))

    def row_dims(self, x: _Layout) -> int:
        """How many of the last dimensions of x are a row; with channels first, a sample."""
        if self.spec.channels_first:
            if len(x.shape) < 3 or x.shape[1] != self.columns:
                raise self.fail("x, of shape {}, is not [samples, {} channels, positions...]".format(
                    list(x.shape), self.columns))
            return len(x.shape) - 1
        for dims in range(1, len(x.shape) + 1):
            if math.prod(x.shape[-dims:]) == self.columns:
                return dims
        raise self.fail("the last dimensions of x, of shape {}, are no row of {} elements".format(
            list(x.shape), self.columns))

    def member(self, array: _Layout, x: _Layout, dims: int, rows: int) -> Any:
        """What the structure of the launch has for an operand, with a null pointer."""
        name, operand, text = array.name, self.operands[array.name], self.types[array.name]
        four_scales = operand.extent == BLOCKS and self.spec.scale_layout == _library.SCALE_LAYOUTS["cols4"]
        if array.type not in _TYPES[text] and not (four_scales and array.type == (0, 32, 1)):
            code, bits, lanes = array.type
            raise self.fail("{} is of {}{}{}; the spec says {}".format(
                name, _NAMES.get(code, "type {} of ".format(code)), bits, "x{}".format(lanes) if lanes > 1 else "", text))
        if array.device != x.device:
            raise self.fail("{} is on DLPack device {}, x on {}".format(name, array.device, x.device))
        if array.read_only and operand.output:
            raise self.fail("{} is an output, and read-only".format(name))
        has_rows = operand.extent == MATRIX or (operand.extent == AFFINE and self.spec.affine_rows)
        return self._rows(operand, array, x, dims) if has_rows else self._number(operand, array, rows)

    def _rows(self, operand: Operand, array: _Layout, x: _Layout, dims: int) -> _library.Rows:
        """Of an operand that has a row for each of x."""
        wanted = x.shape
        if self.types[array.name] == "e2m1":
            wanted, dims = (*x.shape[:-dims], self.columns // 2), 1
        missing = len(wanted) - len(array.shape)
        fits = array.shape == wanted if operand.output else missing >= 0 and all(
            size in (1, there) for size, there in zip(array.shape, wanted[missing:]))
        if not fits:
            raise self.fail("{} has the shape {}; it must be {}".format(array.name, list(array.shape), list(wanted)))
        strides = (0,) * missing + tuple(stride if size == there else 0 for size, stride, there in zip(
            array.shape, array.strides, wanted[missing:]))
        rows = rows_of(wanted, strides, dims) if 0 not in wanted else (-1, 1, 0)
        if rows is None:
            raise self.fail("the rows of {}, of shape {} with strides {}, cannot be addressed".format(
                array.name, list(array.shape), list(array.strides)))
        return _library.Rows(None, *rows)

    def _number(self, operand: Operand, array: _Layout, rows: int) -> Any:
        """Of an operand that is contiguous: one row, or a number for each row, each block or all."""
        if not array.is_contiguous():
            raise self.fail("{} is not contiguous".format(array.name))
        if operand.extent == BLOCKS:
            elements = math.prod(_library.scale_sizes(self.spec, rows))
            if self.spec.scale_layout == _library.SCALE_LAYOUTS["cols4"]:
                elements *= 4  # words of four
        else:
            elements = {ROWS: rows, ONE: 1}.get(operand.extent, self.columns)
        if array.bytes != elements * _BYTES[self.types[array.name]]:
            raise self.fail("{} has the shape {}; it must have {} elements".format(
                array.name, list(array.shape), elements))
        return _library.Rows() if array.name in ("weight", "bias") else None


@functools.lru_cache(maxsize=1024)
def _problem(text: str) -> _Problem:
    return _Problem(text)


@functools.lru_cache(maxsize=1024)
def _template(spec: str, layouts: tuple[_Layout, ...]) -> tuple[bytes, int, tuple[int, ...]]:
    """The structure of a launch without addresses, its rows, and where the address of each array goes. x is the first."""
    problem, x = _problem(spec), layouts[0]
    dims = problem.row_dims(x)
    tensors = _library.Tensors.from_buffer_copy(_NO_TENSORS)
    tensors.rows = math.prod(x.shape) // problem.columns
    if problem.spec.channels_first:
        tensors.plane = math.prod(x.shape[2:])
    places = []
    for layout in layouts:
        member = problem.operands[layout.name].member
        setattr(tensors, member, problem.member(layout, x, dims, tensors.rows))
        places.append(getattr(_library.Tensors, member).offset)
    return bytes(tensors), tensors.rows, tuple(places)


def norm(spec: str, *, stream: Any = None, workspace: Any = None, batch_invariant: bool = False, **operands: Any) -> None:
    """Launches the kernel of a spec (docs/algebra.md) on arrays, and returns at once; the first call of a kernel makes it.

    operands: the operands of the spec by the names of docs/algebra.md, the result as `out`. x is [..., columns], or with
      "/cf" [samples, columns, ...]; the columns may be several dimensions. Others with a row for each of x have x's shape,
      inputs also one that broadcasts to it; a weight has `columns` elements, a statistic one for each row. Types are the
      spec's; bf16, and types of 8 and 4 bits, may also be unsigned integers of 16 and 8 bits. Rows may have strides, and
      lie in one or two levels; columns are neighbours.
    stream: an address (cupy.cuda.Stream.ptr, torch.cuda.Stream.cuda_stream), or an object that has __cuda_stream__; None:
      CUDA's default stream. The inputs are made ready for it as DLPack says; the outputs are ready on it.
    workspace: workspace_bytes(spec) bytes in an array, zeroed once, one for each stream; specs that need none take None.

    The GPU of the arrays must be the current one of the thread, and the arrays must live until the launch has ended; an
    allocator that frees in the order of the stream, as CuPy's and PyTorch's do, sees to that. A first call in a stream
    that is being captured fails: call once with as many rows before.
    Raises ValueError or TypeError for operands that do not fit, and normjit's own RuntimeError for what the library
    refuses; nothing is launched then, nor where x has no rows, of which dweight and dbias are 0."""
    problem = _problem(spec)
    if operands.keys() != problem.operands.keys():
        problem.check_names(list(operands))
    handle = _handle_of(stream)
    x = _Array("x", operands["x"], handle)
    _require_current(x.layout)
    arrays = [x] + [_Array(name, array, handle) for name, array in operands.items() if name != "x"]
    template, rows, places = _template(spec, tuple([array.layout for array in arrays]))
    buffer = bytearray(template)
    for array, place in zip(arrays, places):
        _put_address(buffer, place, array.pointer)
    if workspace is not None:
        memory = _Array("workspace", workspace, handle)
        layout, needed = memory.layout, workspace_bytes(spec, batch_invariant)
        if layout.device != x.layout.device or not layout.is_contiguous() or layout.bytes < needed or layout.read_only:
            raise problem.fail("workspace must be {} contiguous bytes beside x".format(needed))
        _put_address(buffer, _library.Tensors.workspace.offset, memory.pointer if needed else 0)
    if rows == 0 and not problem.spec.backward:
        return
    _library.call("normjit_norm", _library.service(batch_invariant), ctypes.byref(problem.spec),
                  ctypes.byref(_library.Tensors.from_buffer(buffer)), handle, None)


def workspace_bytes(spec: str, batch_invariant: bool = False) -> int:
    """Bytes of workspace that suffice for every launch of a spec on the current GPU; mostly 0."""
    needed = ctypes.c_size_t()
    _library.call("normjit_workspace_bytes", _library.service(batch_invariant), ctypes.byref(_problem(spec).spec),
                  ctypes.byref(needed))
    return needed.value


def _handle_of(stream: Any) -> Optional[int]:
    """The address of a stream; None for the default one."""
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    if stream is not None and not isinstance(stream, int):
        raise TypeError("stream is a {}; it must be an address, an object that has __cuda_stream__, or None".format(
            type(stream).__name__))
    return stream or None


@functools.lru_cache(maxsize=None)
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _require_current(x: _Layout) -> None:
    """Raises ValueError where the GPU of an array is not that of the thread's context. Where it has none, the library says
    so."""
    kind, ordinal = x.device
    current = ctypes.c_int()
    if kind == _CUDA and _driver().cuCtxGetDevice(ctypes.byref(current)) == 0 and current.value != ordinal:
        raise ValueError("x is on GPU {}, and GPU {} is current: make the other one current, as with "
                         "cupy.cuda.Device({})".format(ordinal, current.value, ordinal))
