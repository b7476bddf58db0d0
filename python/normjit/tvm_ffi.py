# SPDX-License-Identifier: Apache-2.0
"""normjit as functions of tvm-ffi, for programs that speak it: TVM, MLC, and C++ beside FlashInfer or SGLang.

    import normjit.tvm_ffi      # registers the functions

    norm = tvm_ffi.get_global_func("normjit.norm")
    norm("rmsnorm/cols=4096/f16/w", {"x": x, "weight": weight, "out": y})

    // in C++ of the same process
    auto norm = tvm::ffi::Function::GetGlobalRequired("normjit.norm");
    norm("rmsnorm/cols=4096/f16/w", tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Tensor>{{"x", x}, {"weight", weight}, {"out", y}});

normjit.norm(spec, operands[, workspace]) launches the kernel of a spec on the stream of tvm-ffi's environment
(TVMFFIEnvSetStream) for the GPU of x; normjit.workspace_bytes(spec) has the size of the workspace, mostly 0. Everything
else is as in normjit.dlpack. Errors come back as ValueError, TypeError or RuntimeError.
"""
from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from normjit import _library, dlpack

try:
    _ffi: Any = importlib.import_module("tvm_ffi")  # which normjit's types do not depend on
except ModuleNotFoundError as missing:
    if missing.name != "tvm_ffi":
        raise
    raise ModuleNotFoundError("normjit.tvm_ffi needs tvm-ffi: pip install apache-tvm-ffi", name="tvm_ffi") from None


def _norm(spec: str, operands: Mapping[str, Any], workspace: Any = None) -> None:
    x = operands["x"] if "x" in operands else None
    stream = None if x is None else _ffi.get_raw_stream(x.device)
    try:
        dlpack.norm(spec, stream=stream, workspace=workspace, **dict(operands.items()))
    except _library.Error as error:  # of a kind that the other side knows
        raise RuntimeError(str(error)) from None


def _workspace_bytes(spec: str) -> int:
    try:
        return dlpack.workspace_bytes(spec)
    except _library.Error as error:
        raise RuntimeError(str(error)) from None


for _name, _function in {"norm": _norm, "workspace_bytes": _workspace_bytes}.items():
    _ffi.register_global_func("normjit." + _name, _function, override=True)  # the module may be loaded again
