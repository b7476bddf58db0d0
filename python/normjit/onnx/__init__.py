# SPDX-License-Identifier: Apache-2.0
"""The norms of ONNX models by normjit's kernels, in ONNX Runtime.

    python -m normjit.onnx model.onnx -o fused.onnx     # or rewrite(model)

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(normjit.onnx.library())
    session = onnxruntime.InferenceSession("fused.onnx", options, providers=["CUDAExecutionProvider"])

Only rewrite() needs the package onnx. docs/onnx.md is the manual.
"""
from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx
    from normjit.onnx._report import Finding

__all__ = ["library", "rewrite"]

_NAME = "libnormjit_onnxruntime.so"


def library() -> str:
    """The path of libnormjit_onnxruntime.so, for SessionOptions.register_custom_ops_library: the one in this package, else
    the one beside NORMJIT_LIBRARY. Raises ImportError, which lists what was tried."""
    folders = [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib")]
    if os.environ.get("NORMJIT_LIBRARY"):
        folders.append(os.path.dirname(os.path.abspath(os.environ["NORMJIT_LIBRARY"])))
    paths = [os.path.join(folder, _NAME) for folder in folders]
    for path in paths:
        if os.path.isfile(path):
            return path
    raise ImportError("{} was not found. Tried:\n  {}\nInstall the package (pip install .), which brings it, or name in "
                      "NORMJIT_LIBRARY a libnormjit.so that lies beside it.".format(_NAME, "\n  ".join(paths)))


def rewrite(model: onnx.ModelProto) -> list[Finding]:
    """Replaces the norms of a model that normjit serves, in place, and returns what it found, in the order of the model: for
    each norm what it became, or why it was left alone. Initializers with external data may be loaded or not. Raises
    ModuleNotFoundError without the package onnx."""
    from normjit._require import require
    require("onnx", "the package onnx, to read and write models")
    from normjit.onnx import _rewrite
    return _rewrite.rewrite(model)
