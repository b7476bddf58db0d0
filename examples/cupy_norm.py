#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A residual and an RMSNorm of CuPy's arrays in one kernel, on a stream of their own; then the same as a node of a graph.

    python3 cupy_norm.py        # needs an NVIDIA GPU and CuPy
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

try:
    import cupy
    if not cupy.cuda.is_available():
        raise ImportError("no GPU")
except ImportError as missing:
    print("cupy_norm needs CuPy and an NVIDIA GPU ({})".format(missing))
    sys.exit(77)

import normjit.dlpack  # noqa: E402

ROWS, COLUMNS = 1000, 4096
SPEC = "rmsnorm/cols={}/f16/add/sum/w".format(COLUMNS)

x, residual = (cupy.random.standard_normal((ROWS, COLUMNS), cupy.float32).astype(cupy.float16) for _ in range(2))
weight = cupy.linspace(0.5, 1.5, COLUMNS).astype(cupy.float16)
out, total = cupy.empty_like(x), cupy.empty_like(x)
# Few rows are shared among blocks, which meet in a workspace: one for each stream, zeroed once.
workspace = cupy.zeros(normjit.dlpack.workspace_bytes(SPEC), cupy.uint8)


def launch(stream):
    normjit.dlpack.norm(SPEC, x=x, residual=residual, weight=weight, out=out, sum=total, workspace=workspace,
                        stream=stream.ptr)


def is_right():
    s = x.astype(cupy.float64) + residual
    wanted = s / cupy.sqrt((s * s).mean(-1, keepdims=True) + 1e-5) * weight
    return bool(cupy.allclose(out, wanted, atol=2e-2)) and bool(cupy.allclose(total, s, atol=1e-2))


stream = cupy.cuda.Stream(non_blocking=True)
cupy.cuda.Device().synchronize()  # the arrays were filled on the default stream
with stream:
    launch(stream)
stream.synchronize()
right = is_right()

out.fill(0)
cupy.cuda.Device().synchronize()
with stream:
    stream.begin_capture()
    launch(stream)
    graph = stream.end_capture()
    graph.launch()
stream.synchronize()
right = right and is_right()

print("{}: {}".format(SPEC, "right" if right else "WRONG"))
sys.exit(0 if right else 1)
