# SPDX-License-Identifier: Apache-2.0
"""libnormjit for this process: where it is, its C interface for ctypes, and the one service that all drop-ins share.

The library is looked for in NORMJIT_LIBRARY (a file), then in lib/ of this package, which the wheel brings, then
where the system's loader looks. normjit/c_api.h is the manual of what is declared here.
"""
from __future__ import annotations

import ctypes
import functools
import glob
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

ABI_VERSION = 1
_SONAMES = ("libnormjit.so.{}".format(ABI_VERSION), "libnormjit.so")

OK = 0
WORKSPACE_REQUIRED = 206
NO_COMPILER = 400
NO_CONTEXT = 503
BAD_ARGUMENT = 700
NOT_CACHED = 800
NOT_READY = 801

YES = 1  # a switch of Options
WORKSPACE_ZEROED = 225 << 10  # bytes at the beginning of a workspace

DTYPES = {"f16": 1, "bf16": 2, "f32": 3, "f64": 4, "e4m3": 5, "e5m2": 6, "s8": 7, "e2m1": 8, "e8m0": 9}
NORMS = {"layernorm": 1, "rmsnorm": 2}
GATES = {"none": 1, "gate": 2, "gateafter": 3}
GATE_FUNCTIONS: dict[Optional[str], int] = {None: 1, "silu": 2, "sigmoid": 3, "tanh": 4}
MODULATIONS = {"none": 1, "mods": 2, "mod": 3}
RESIDUALS = {"none": 1, "add": 2, "addafter": 3}
ROUNDINGS = {"none": 1, "sum": 2, "norm": 3, "sum+norm": 4, "y": 5, "sum+y": 6, "norm+y": 7, "sum+norm+y": 8}
QUANTIZATIONS = {"none": 1, "tensor": 2, "row": 3, "16": 4, "32": 5, "64": 6, "128": 7}
SCALE_FORMATS = {"f32": 1, "p2": 2, "e8m0": 3, "e4m3": 4}
SCALE_LAYOUTS = {"rows": 1, "cols": 2, "cols4": 3, "sw": 4}
ALSOS = {"none": 1, "f16": 2, "bf16": 3, "f32": 4}
AFFINES = {"none": 1, "w": 2, "wb": 3}
NEEDS = {"all": 1, "dx": 2, "dx+dw": 3, "dx+db": 4, "dw+db": 5, "dw": 6, "db": 7}
ACTIVATIONS: dict[Optional[str], int] = {None: 1, "relu": 2, "gelu": 3, "gelu_tanh": 4, "silu": 5}
LARGEST_EPSILON = 3.4028234663852886e38  # of f32; the smallest is 0. PyTorch computes with any


class Error(RuntimeError):
    """A call of libnormjit failed; `status` is normjit_status, the text says what was asked and what to do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Spec(ctypes.Structure):
    """normjit_spec: what to compute."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("columns", ctypes.c_int64), ("epsilon", ctypes.c_double),
                ("scale", ctypes.c_double), ("norm", ctypes.c_int32), ("input", ctypes.c_int32),
                ("output", ctypes.c_int32), ("weight", ctypes.c_int32), ("residual", ctypes.c_int32),
                ("sum", ctypes.c_int32), ("affine", ctypes.c_int32), ("activation", ctypes.c_int32),
                ("statistics", ctypes.c_int32), ("residual_type", ctypes.c_int32), ("in_bias", ctypes.c_int32),
                ("rounding", ctypes.c_int32), ("weight_offset", ctypes.c_int32), ("affine_rows", ctypes.c_int32),
                ("modulation_type", ctypes.c_int32), ("gate", ctypes.c_int32), ("gate_function", ctypes.c_int32),
                ("gate_table", ctypes.c_int32), ("modulation", ctypes.c_int32), ("plain_modulation", ctypes.c_int32),
                ("modulation_table", ctypes.c_int32), ("channels_first", ctypes.c_int32), ("quantization", ctypes.c_int32),
                ("inverse_scale", ctypes.c_int32), ("upper_bound", ctypes.c_int32), ("scale_format", ctypes.c_int32),
                ("scale_layout", ctypes.c_int32), ("also", ctypes.c_int32), ("amax", ctypes.c_int32),
                ("backward", ctypes.c_int32), ("dsum", ctypes.c_int32), ("gradient_type", ctypes.c_int32),
                ("need", ctypes.c_int32), ("reserved", ctypes.c_int32)]

    def __init__(self, columns: int = 0, epsilon: float = 1e-5, scale: float = 1.0, **members: int) -> None:
        super().__init__(ctypes.sizeof(Spec), columns, epsilon, scale, **members)


class Rows(ctypes.Structure):
    """normjit_input_rows and normjit_output_rows: row r begins (r / n) * outer + (r % n) * inner elements behind the
    pointer. With n = 1 rows are `outer` elements apart; outer -1: contiguous rows."""
    _fields_ = [("pointer", ctypes.c_void_p), ("n", ctypes.c_int64), ("outer", ctypes.c_int64),
                ("inner", ctypes.c_int64)]

    def __init__(self, pointer: int | None = None, outer: int = -1, n: int = 1, inner: int = 0) -> None:
        super().__init__(pointer, n, outer, inner)


class Tensors(ctypes.Structure):
    """normjit_tensors: the device pointers of a launch."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("x", Rows), ("y", Rows), ("weight", Rows), ("bias", Rows),
                ("mean", ctypes.c_void_p), ("rstd", ctypes.c_void_p), ("rows", ctypes.c_int64),
                ("workspace", ctypes.c_void_p), ("residual", Rows), ("sum", Rows), ("in_bias", ctypes.c_void_p),
                ("gate", Rows), ("gate_table", ctypes.c_void_p), ("mod_scale", Rows),
                ("mod_scale_table", ctypes.c_void_p), ("mod_shift", Rows), ("mod_shift_table", ctypes.c_void_p),
                ("plane", ctypes.c_int64), ("tensor_scale", ctypes.c_void_p), ("row_scale", ctypes.c_void_p),
                ("upper_bound", ctypes.c_void_p), ("global_scale", ctypes.c_void_p), ("also", Rows),
                ("block_scale", ctypes.c_void_p), ("amax", ctypes.c_void_p), ("dy", Rows), ("dsum", Rows),
                ("dx", Rows), ("dweight", ctypes.c_void_p), ("dbias", ctypes.c_void_p), ("dgate", Rows),
                ("dmod_scale", Rows), ("dmod_shift", Rows), ("saved_mean", ctypes.c_void_p),
                ("saved_rstd", ctypes.c_void_p)]

    def __init__(self, **members: Any) -> None:
        rows = {field[0]: Rows() for field in self._fields_ if field[1] is Rows}
        super().__init__(ctypes.sizeof(Tensors), **{**rows, **members})


class LaunchOptions(ctypes.Structure):
    """normjit_launch_options."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("overlap_previous", ctypes.c_int32),
                ("miss_in_capture", ctypes.c_int32), ("driver_result", ctypes.POINTER(ctypes.c_int32))]

    def __init__(self, overlap_previous: int = 0, miss_in_capture: int = 0) -> None:
        super().__init__(ctypes.sizeof(LaunchOptions), overlap_previous, miss_in_capture)


class PrepareOptions(ctypes.Structure):
    """normjit_prepare_options."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("device", ctypes.c_int32), ("pointer_alignment", ctypes.c_int32),
                ("rows_hint", ctypes.c_int64), ("x_row_stride", ctypes.c_int64), ("y_row_stride", ctypes.c_int64),
                ("plan", ctypes.c_char_p), ("grouped_rows", ctypes.c_int32), ("batch_invariant", ctypes.c_int32),
                ("plane", ctypes.c_int64)]

    def __init__(self, device: int = -1, pointer_alignment: int = 0, rows_hint: int = 0, x_row_stride: int = -1,
                 y_row_stride: int = -1, plan: bytes | None = None, grouped_rows: int = 0,
                 batch_invariant: int = 0, plane: int = 0) -> None:
        super().__init__(ctypes.sizeof(PrepareOptions), device, pointer_alignment, rows_hint, x_row_stride,
                         y_row_stride, plan, grouped_rows, batch_invariant, plane)


class Options(ctypes.Structure):
    """normjit_options: what is 0 or None is as the environment says."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("ignore_environment", ctypes.c_int32), ("mode", ctypes.c_int32),
                ("shared_cache", ctypes.c_int32), ("exact_toolchain", ctypes.c_int32),
                ("batch_invariant", ctypes.c_int32), ("remote_unsigned", ctypes.c_int32),
                ("cache_directory", ctypes.c_char_p), ("layers", ctypes.c_char_p), ("max_cache_bytes", ctypes.c_int64),
                ("miss_log", ctypes.c_char_p), ("compiler_path", ctypes.c_char_p), ("cuda_home", ctypes.c_char_p),
                ("template_directory", ctypes.c_char_p), ("log", ctypes.c_void_p), ("log_user", ctypes.c_void_p),
                ("on_event", ctypes.c_void_p), ("event_user", ctypes.c_void_p),
                ("remote", ctypes.c_char_p), ("remote_store", ctypes.c_void_p), ("trust", ctypes.c_char_p), ("sign_key", ctypes.c_char_p),
                ("remote_pack", ctypes.c_char_p)]

    def __init__(self, **members: Any) -> None:
        super().__init__(ctypes.sizeof(Options), **members)


class KernelSet(ctypes.Structure):
    """normjit_kernel_set: texts of specs and architectures. Keeps them alive."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("specs", ctypes.POINTER(ctypes.c_char_p)),
                ("spec_count", ctypes.c_size_t), ("archs", ctypes.POINTER(ctypes.c_char_p)),
                ("arch_count", ctypes.c_size_t)]

    def __init__(self, specs: Sequence[str], archs: Sequence[str]) -> None:
        texts = [(ctypes.c_char_p * len(some))(*(text.encode() for text in some)) for some in (specs, archs)]
        super().__init__(ctypes.sizeof(KernelSet), texts[0], len(specs), texts[1], len(archs))


class Label(ctypes.Structure):
    """normjit_label."""
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


# Functions: result, arguments. Those that return a status take `char **error` last.
_status = ctypes.c_int32
_pointer = ctypes.c_void_p
_text = ctypes.POINTER(_pointer)  # char **, to be freed
_spec, _tensors, _launch = ctypes.POINTER(Spec), ctypes.POINTER(Tensors), ctypes.POINTER(LaunchOptions)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "normjit_abi_version": (ctypes.c_uint32, []),
    "normjit_version": (ctypes.c_char_p, []),
    "normjit_status_name": (ctypes.c_char_p, [_status]),
    "normjit_status_message": (ctypes.c_char_p, [_status]),
    "normjit_free": (None, [_pointer]),
    "normjit_spec_text": (_status, [_spec, _text, _text]),
    "normjit_spec_parse": (_status, [ctypes.c_char_p, _spec, _text]),
    "normjit_block_scale_shape": (_status, [_spec, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64),
                                            ctypes.POINTER(ctypes.c_size_t), _text]),
    "normjit_service_create": (_status, [ctypes.POINTER(Options), ctypes.POINTER(_pointer), _text]),
    "normjit_service_destroy": (None, [_pointer]),
    "normjit_norm": (_status, [_pointer, _spec, _tensors, _pointer, _launch, _text]),
    "normjit_layer_norm": (_status, [_pointer, _spec, _tensors, _pointer, _launch, _text]),
    "normjit_workspace_bytes": (_status, [_pointer, _spec, ctypes.POINTER(ctypes.c_size_t), _text]),
    "normjit_prepare": (_status, [_pointer, _spec, ctypes.POINTER(PrepareOptions), ctypes.POINTER(_pointer), _text]),
    "normjit_kernel_workspace_bytes": (ctypes.c_size_t, [_pointer]),
    "normjit_kernel_describe": (_status, [_pointer, _text, _text]),
    "normjit_kernel_release": (None, [_pointer]),
    "normjit_freeze": (_status, [_pointer, ctypes.c_int32, _text]),
    "normjit_wait_for_compiles": (None, [_pointer]),
    "normjit_counters": (_status, [_pointer, _text, _text]),
    "normjit_prometheus": (_status, [_pointer, ctypes.POINTER(Label), ctypes.c_size_t, _text, _text]),
    "normjit_environment": (_status, [_pointer, _text, _text]),
    "normjit_why": (_status, [_pointer, _spec, ctypes.c_char_p, _text, _text]),
    "normjit_add_layer": (_status, [_pointer, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, _text]),
    "normjit_prebuild": (_status, [_pointer, ctypes.POINTER(KernelSet), ctypes.c_int32, ctypes.c_int32, _pointer,
                                   _pointer, _text, _text]),
}


class _Library(ctypes.CDLL):
    """Declares each function as it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        function = super().__getattr__(name)
        if name in _FUNCTIONS:
            function.restype, function.argtypes = _FUNCTIONS[name]
        return function


def candidates() -> list[str]:
    """What find() tries, in its order."""
    named = os.environ.get("NORMJIT_LIBRARY")
    if named:
        return [named]
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
    return sorted(glob.glob(os.path.join(own, "libnormjit.so*")), reverse=True) + list(_SONAMES)


@functools.lru_cache(maxsize=None)
def load() -> _Library:
    """libnormjit, opened and declared. Raises ImportError, which lists what was tried."""
    tried = []
    for candidate in candidates():
        try:
            library = _Library(candidate)
            version = library.normjit_abi_version()
        except (OSError, AttributeError) as why:
            tried.append("{}: {}".format(candidate, why))
            continue
        if version != ABI_VERSION:
            tried.append("{}: its ABI version is {}, not {}".format(candidate, version, ABI_VERSION))
            continue
        return library
    raise ImportError("libnormjit.so was not found. Tried:\n  {}\nInstall the package with its library, or name the "
                      "library in NORMJIT_LIBRARY.".format("\n  ".join(tried)))


def address_of(name: str) -> int:
    """The address of a function, for a table of a C++ operator."""
    return ctypes.cast(getattr(load(), name), ctypes.c_void_p).value or 0


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a status with `char **error` last. Raises Error."""
    error = ctypes.c_void_p()
    status = getattr(load(), name)(*arguments, ctypes.byref(error))
    if status != OK:
        message = take_text(error) or load().normjit_status_message(status).decode()
        raise Error(status, message)


def take_text(text: ctypes.c_void_p) -> str | None:
    """The str of what a call stored through a `char **`, which is released. None where it stored nothing."""
    if not text:
        return None
    try:
        return ctypes.string_at(text).decode()
    finally:
        load().normjit_free(text)


def text_of(name: str, *arguments: Any) -> str | None:
    """Calls a function whose last two arguments are `char **json, char **error`; the text. Raises Error."""
    text = ctypes.c_void_p()
    call(name, *arguments, ctypes.byref(text))
    return take_text(text)


_services: dict[bool, int] = {}  # a dict, whose setdefault needs no lock that a forked child would find taken


def service(batch_invariant: bool = False) -> int:
    """A normjit_service of this process, as an address: made by the first call, never destroyed, since kernels
    may be under way when Python ends. It works as the environment says at that time. The one for batch_invariant takes
    one plan for any number of rows, so that a row's bits do not depend on how many others there are."""
    if batch_invariant not in _services:
        made, options = ctypes.c_void_p(), Options(batch_invariant=YES if batch_invariant else 0)
        call("normjit_service_create", ctypes.byref(options), ctypes.byref(made))
        address = made.value or 0
        if _services.setdefault(batch_invariant, address) != address:  # another thread was first
            load().normjit_service_destroy(made)
    return _services[batch_invariant]


def add_layer(pack: bytes, signature: str | None = None) -> None:
    """Adds the bytes of a pack as a layer of both services, which are made, so that there is none later that lacks it.
    Raises Error."""
    if not isinstance(pack, bytes):
        raise TypeError("pack must be bytes, not {}".format(type(pack).__name__))
    for batch_invariant in (False, True):
        call("normjit_add_layer", service(batch_invariant), pack, len(pack),
             None if signature is None else signature.encode())


def prometheus(labels: Mapping[str, str], batch_invariant: bool = False) -> str:
    """The counters of a service as a page for Prometheus. Raises Error."""
    given = (Label * len(labels))(*(Label(name.encode(), value.encode()) for name, value in labels.items()))
    return text_of("normjit_prometheus", service(batch_invariant), given, len(labels)) or ""


def name_of(choices: Mapping[str, int], code: int) -> str:
    """In texts, of a value of the C interface."""
    return next(name for name, value in choices.items() if value == code)


def block_of(spec: Spec) -> int:
    """The columns of a block that has a scale; 0: none has."""
    first = QUANTIZATIONS["16"]
    return 16 << (spec.quantization - first) if spec.quantization >= first else 0


def scale_sizes(spec: Spec, rows: int) -> tuple[int, ...]:
    """The dimensions of the scales of the blocks of so many rows. With "cols4" they are of words of four scales."""
    shape, rank = (ctypes.c_int64 * 3)(), ctypes.c_size_t()
    call("normjit_block_scale_shape", ctypes.byref(spec), rows, shape, ctypes.byref(rank))
    return tuple(shape[:2 if spec.scale_layout == SCALE_LAYOUTS["cols4"] else rank.value])


@functools.lru_cache(maxsize=None)
def parse_spec(text: str) -> Spec:
    """The canonical spec of a text, which must not be changed. Raises Error."""
    spec = Spec()
    call("normjit_spec_parse", text.encode(), ctypes.byref(spec))
    return spec


def spec_text(spec: Spec) -> str:
    """The canonical text of a spec. Raises Error if it is not valid."""
    return text_of("normjit_spec_text", ctypes.byref(spec)) or ""
