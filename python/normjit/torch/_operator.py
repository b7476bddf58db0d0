# SPDX-License-Identifier: Apache-2.0
"""The operators that launch: their schemas, and their kernels, of native/ on PyTorch's stable ABI, or of
_ctypes_kernel.py where it cannot be built.

normjit::_launch is for every spec; _norm.py calls it. normjit::layer_norm has the arguments and errors of PyTorch's own;
layer_norm_by_pytorch computes the same by PyTorch's operators, and its kernel calls it for an epsilon that libnormjit
refuses. layer_norm_with_gradients is layer_norm for programs that need gradients, and layer_norm_differentiable of
native/autograd.cc is for plain calls that do, without activation, scale or dtype. normjit::norm_backward computes all
gradients of a norm, and calls norm_backward_by_pytorch where libnormjit has no kernel; see _gradients.py."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import sysconfig
import warnings
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

from normjit import _build, _library
from normjit._operands import BLOCKS, COLUMNS, MATRIX, ONE, OPERANDS, PAIRS, ROWS
from normjit.torch._problem import CODES, INPUTS, OUTPUTS, Problem

# dims: over how many of the last dimensions of x; weight and bias have their shape. activation: one of
# _library.ACTIVATIONS. dtype: of y, None: x's; with it, weight and bias may have another dtype than x.
# y is contiguous.
_ARGUMENTS = ("(Tensor x, int dims, Tensor? weight, Tensor? bias, float eps, int activation=1, float scale=1.0, "
              "ScalarType? dtype=None)")
SCHEMAS = {"layer_norm": _ARGUMENTS + " -> Tensor y",
           "layer_norm_with_gradients": _ARGUMENTS + " -> Tensor y",
           "layer_norm_by_pytorch": _ARGUMENTS + " -> Tensor y",
           "layer_norm_differentiable": "(Tensor x, int dims, Tensor? weight, Tensor? bias, float eps) -> Tensor y"}

# Of the operators of every spec, which take all operands, and None for those that a spec does not have.
INPUT_ARGUMENTS = ", ".join(["Tensor x", *map("Tensor? {}".format, INPUTS)])
OUTPUT_ARGUMENTS = ", ".join("Tensor({}!)? {}".format(chr(ord("a") + at), name) for at, name in enumerate(OUTPUTS))
# problem: a number that add() gave, so this is no operator for graphs. Makes outputs that are not given, and returns
# them; None for the others. Its errors do not say which operand does not fit: Problem.check does.
_LAUNCH = "_launch(int problem, {}, {}) -> ({})".format(
    INPUT_ARGUMENTS, OUTPUT_ARGUMENTS, ", ".join(["Tensor?"] * len(OUTPUTS)))

# x: what was normalized, or with a gate in front what it multiplies, over the last `dims` dimensions. bias has the type of
# weight; with an activation, a modulation or a gate behind it is read, without nothing depends on it. dy and dsum, the gradients
# that arrive at the result and at a sum behind which the norm is, and the gate have the shape of x. mod_scale and mod_shift, of
# one type, expand to that, and exclude a gate; without plain_modulation 1 is added to mod_scale. of_x, of_weight, of_bias: which
# gradients are asked for; dgate, dmod_scale and dmod_shift come with dx. Each of these has the type and shape of its input, for
# modulations summed over what shares an element; dweight and dbias have the type of weight and the shape of a row. What is not
# asked for, or has nothing that it is the gradient of, has no elements.
_GRADIENTS = ("(Tensor x, int dims, Tensor? weight, Tensor? bias, Tensor dy, Tensor? dsum, Tensor? gate, Tensor? mod_scale, "
              "Tensor? mod_shift, float eps, int activation, float scale, int gate_place, int gate_function, "
              "bool plain_modulation, bool layer, bool weight_offset, bool of_x, bool of_weight, bool of_bias, "
              "bool batch_invariant) -> (Tensor dx, Tensor dweight, Tensor dbias, Tensor dgate, Tensor dmod_scale, "
              "Tensor dmod_shift)")
GRADIENT_SCHEMAS = {"norm_backward": _GRADIENTS, "norm_backward_by_pytorch": _GRADIENTS}

# "CPU" in tests, whose libnormjit computes there.
DEVICE = os.environ.get("NORMJIT_TORCH_TEST_DEVICE", "CUDA")
HERE = "is_" + DEVICE.lower()  # the attribute of tensors that are there

_torch_library: Any = torch.library  # which has no types
library = _torch_library.Library("normjit", "DEF")

_log = logging.getLogger("normjit")
_NATIVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")


def _define() -> None:
    for name, schema in {**SCHEMAS, **GRADIENT_SCHEMAS}.items():
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.define(_LAUNCH)


def _build_for_torch(name: str, sources: Sequence[str], flags: Sequence[str], include_dirs: Sequence[str],
                     libraries: Sequence[str]) -> str:
    """_build.build for the installed PyTorch."""
    installed = os.path.dirname(torch.__file__)
    return _build.build(name, sources, flags=flags, include_dirs=[os.path.join(installed, "include"), *include_dirs],
                        libraries=[os.path.join(installed, "lib", library) for library in libraries],
                        version="torch {} {}".format(torch.__version__, torch.version.git_version))


def _build_operator() -> str:
    """The path of the operator's shared library, compiled where that has not been done. Raises _build.BuildError."""
    headers = [name for name in sorted(os.listdir(_NATIVE)) if name.endswith(".h")]
    sources = [os.path.join(_NATIVE, name) for name in (*headers, "operator.cc")]
    sources.append(os.path.join(_build.header_directory(), "normjit", "c_api.h"))
    flags = ["-DTORCH_TARGET_VERSION=0x0209000000000000"]
    if DEVICE == "CPU":
        flags.append("-DNORMJIT_TORCH_ON_CPU")
    return _build_for_torch("normjit_torch", sources, flags, [_build.header_directory()], ["libtorch_cpu.so"])


def _build_autograd() -> str:
    """As _build_operator, of layer_norm_differentiable."""
    # The headers of newer PyTorch need C++20.
    flags = ["-std=c++20", "-D_GLIBCXX_USE_CXX11_ABI={:d}".format(torch.compiled_with_cxx11_abi())]
    if DEVICE == "CPU":
        flags.append("-DNORMJIT_TORCH_ON_CPU")
    include = sysconfig.get_path("include")
    python = [include] if os.path.isfile(os.path.join(include, "Python.h")) else []
    return _build_for_torch("normjit_torch_autograd", [os.path.join(_NATIVE, "autograd.cc")], flags, python,
                            ["libtorch_python.so", "libtorch_cpu.so", "libc10.so"])


class _Operand(ctypes.Structure):
    """As in native/operator.cc."""
    _fields_ = [("offset", ctypes.c_uint32), ("extent", ctypes.c_int32), ("dtype", ctypes.c_int32),
                ("output", ctypes.c_int32)]


_EXTENTS = {MATRIX: 0, COLUMNS: 1, ROWS: 2, ONE: 3, BLOCKS: 4, PAIRS: 5}


_MakesService = ctypes.CFUNCTYPE(ctypes.c_void_p)
# That of _library, which is made when it is first asked for.
_make_invariant_service = _MakesService(lambda: _library.service(batch_invariant=True))


class _Native:
    """The operator's shared library."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(_build_operator())  # its kernels are registered as it is opened
        functions = ("normjit_norm", "normjit_workspace_bytes", "normjit_block_scale_shape", "normjit_status_message",
                     "normjit_free")
        table = (ctypes.c_void_p * len(functions))(*map(_library.address_of, functions))
        connect = self.library.normjit_torch_connect
        connect.restype, connect.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, _MakesService]
        connect(table, _library.service(), _make_invariant_service)
        self.library.normjit_torch_add.restype = ctypes.c_int64
        self.library.normjit_torch_add.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

    def add(self, problem: Problem, batch_invariant: bool) -> int:
        operands = (_Operand * len(OPERANDS))()
        for place, operand in zip(operands, OPERANDS):
            if operand.name in problem.operands:
                place.offset = getattr(_library.Tensors, operand.member).offset
                place.extent = _EXTENTS[problem.extent_of(operand.name)]
                place.dtype = CODES[problem.dtype_of(operand.name)]
                place.output = operand.output
        number: int = self.library.normjit_torch_add(_library.service(batch_invariant), ctypes.byref(problem.spec),
                                                     operands, len(operands))
        if number < 0:
            raise RuntimeError("normjit::norm: one process cannot have so many specs")
        return number


def _use_compiled() -> str:
    global add
    add = _Native().add
    return "compiled"


def _use_ctypes() -> str:
    global add
    from normjit.torch import _ctypes_kernel
    add = _ctypes_kernel.add
    for name, kernel in _ctypes_kernel.KERNELS.items():
        library.impl(name, kernel, DEVICE)
    return "ctypes"


# The number of a new problem, for normjit::_launch.
add: Callable[[Problem, bool], int]


def _use() -> str:
    """Which kernels serve: "compiled", or "ctypes". NORMJIT_TORCH_OPERATOR=ctypes asks for these."""
    if os.environ.get("NORMJIT_TORCH_OPERATOR") == "ctypes":
        return _use_ctypes()
    try:
        return _use_compiled()
    except (_build.BuildError, OSError) as why:
        warnings.warn("normjit.torch goes through ctypes, which costs more time per call, since its operator could "
                      "not be built: {}".format(why), RuntimeWarning, stacklevel=2)
        return _use_ctypes()


# layer_norm of (x, normalized_shape, weight, bias, eps) in autograd.cc, once that is compiled and if Python's headers
# were there. It returns None for a call that it leaves to Python, such as one under autocast or vmap.
function: Optional[Callable[..., Optional[torch.Tensor]]] = None


@functools.lru_cache(maxsize=None)
def native_differentiable() -> Callable[..., torch.Tensor] | None:
    """The operator layer_norm_differentiable; None where Python is to serve, since there is no compiler, or for
    NORMJIT_TORCH_AUTOGRAD=python.

    The first call compiles it, which takes some 15 s, once per user: more than the rest of normjit.torch together, so
    who only infers should not wait for it. No lock is held meanwhile that a forked child would find taken: threads
    that come here at once wait in _build, and open the same library.
    """
    if kind != "compiled" or os.environ.get("NORMJIT_TORCH_AUTOGRAD") == "python":
        return None
    global function
    try:
        opened = ctypes.PyDLL(_build_autograd())  # its kernel is registered as it is opened
        with contextlib.suppress(AttributeError):
            opened.normjit_torch_function.restype = ctypes.py_object
            function = opened.normjit_torch_function()
    except (_build.BuildError, OSError) as why:
        _log.info("gradients of normjit.torch go through Python, which costs more time per call: %s", why)
        return None
    operator: Any = torch.ops.normjit.layer_norm_differentiable.default
    operator = operator._op  # without the overload's __call__: 0.4 us
    found: Callable[..., torch.Tensor] = operator
    return found


_library.load()
_define()
kind = _use()
