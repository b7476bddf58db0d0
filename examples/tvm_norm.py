#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A LayerNorm by tvm-ffi's function "normjit.norm", on tensors of PyTorch and on its current stream.

    python3 tvm_norm.py     # needs an NVIDIA GPU, PyTorch and apache-tvm-ffi
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

try:
    import torch
    import tvm_ffi
    if not torch.cuda.is_available():
        raise ImportError("no GPU")
except ImportError as missing:
    print("tvm_norm needs an NVIDIA GPU, PyTorch and tvm-ffi ({})".format(missing))
    sys.exit(77)

import normjit.tvm_ffi  # noqa: E402,F401

norm = tvm_ffi.get_global_func("normjit.norm")
x = torch.randn(1000, 4096, device="cuda", dtype=torch.bfloat16)
weight, bias = torch.randn(2, 4096, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(x)
operands = {name: tvm_ffi.from_dlpack(tensor) for name, tensor in
            {"x": x, "weight": weight, "bias": bias, "out": out}.items()}

stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with tvm_ffi.use_torch_stream(torch.cuda.stream(stream)):
    norm("layernorm/cols=4096/bf16/wb", operands)
stream.synchronize()

wanted = torch.nn.functional.layer_norm(x.double(), (4096,), weight.double(), bias.double())
right = torch.allclose(out.double(), wanted, rtol=2e-2, atol=2e-2)
print("layernorm/cols=4096/bf16/wb: {}".format("right" if right else "WRONG"))
sys.exit(0 if right else 1)
