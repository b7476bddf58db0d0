"""The operators normjit::layer_norm and normjit::layer_norm_with_statistics: their schemas, and their kernels, of
native/ on PyTorch's stable ABI, or of _ctypes_kernel.py where it cannot be built."""
import ctypes
import os
import warnings

import torch

from normjit import _build, _library

# dims: over how many of the last dimensions of x; weight and bias have their shape. activation: one of
# _library.ACTIVATIONS. dtype: of y, None: x's; with it, weight and bias may have another dtype than x.
# y is contiguous; mean and rstd have ones in the place of those dimensions, in f32 (f64 where anything is f64).
_ARGUMENTS = ("(Tensor x, int dims, Tensor? weight, Tensor? bias, float eps, int activation=1, float scale=1.0, "
              "ScalarType? dtype=None)")
SCHEMAS = {"layer_norm": _ARGUMENTS + " -> Tensor y",
           "layer_norm_with_statistics": _ARGUMENTS + " -> (Tensor y, Tensor mean, Tensor rstd)"}

# "CPU" in tests, whose libnormjit computes there.
DEVICE = os.environ.get("NORMJIT_TORCH_TEST_DEVICE", "CUDA")

library = torch.library.Library("normjit", "DEF")


def _define():
    for name, schema in SCHEMAS.items():
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))


def _build_operator():
    """The path of the operator's shared library, compiled where that has not been done. Raises _build.BuildError."""
    native = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")
    sources = [os.path.join(native, name) for name in sorted(os.listdir(native)) if name.endswith((".cc", ".h"))]
    flags = ["-DTORCH_TARGET_VERSION=0x0209000000000000"]
    if DEVICE == "CPU":
        flags.append("-DNORMJIT_TORCH_ON_CPU")
    sources.append(os.path.join(_build.header_directory(), "normjit", "c_api.h"))
    installed = os.path.dirname(torch.__file__)
    return _build.build("normjit_torch", sources, flags=flags,
                        include_dirs=[os.path.join(installed, "include"), _build.header_directory()],
                        libraries=[os.path.join(installed, "lib", "libtorch_cpu.so")],
                        version="torch {} {}".format(torch.__version__, torch.version.git_version))


def _connect(path):
    functions = ("normjit_layer_norm", "normjit_workspace_bytes", "normjit_status_message", "normjit_free")
    table = (ctypes.c_void_p * len(functions))(*map(_library.address_of, functions))
    connect = ctypes.CDLL(path).normjit_torch_connect
    connect.restype, connect.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
    connect(table, _library.service())


def _use_compiled():
    path = _build_operator()
    _connect(path)  # its kernels are registered as it is opened
    return "compiled"


def _use_ctypes():
    from normjit.torch import _ctypes_kernel
    for name, kernel in _ctypes_kernel.KERNELS.items():
        library.impl(name, kernel, DEVICE)
    return "ctypes"


def _use():
    """Which kernels serve: "compiled", or "ctypes". NORMJIT_TORCH_OPERATOR=ctypes asks for these."""
    if os.environ.get("NORMJIT_TORCH_OPERATOR") == "ctypes":
        return _use_ctypes()
    try:
        return _use_compiled()
    except (_build.BuildError, OSError) as why:
        warnings.warn("normjit.torch goes through ctypes, which costs more time per call, since its operator could "
                      "not be built: {}".format(why), RuntimeWarning, stacklevel=2)
        return _use_ctypes()


_library.load()
_define()
kind = _use()
