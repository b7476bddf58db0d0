#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the program that main.cc runs: a LayerNorm with GELU, then an RMSNorm of the sum with a residual, for any number of
rows.

    python3 export.py model.pt2
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "python"))
# Each norm by its kernel: nothing of it is left to Inductor.
os.environ["NORMJIT_TORCH_COMPILE"] = "kernel"

import torch  # noqa: E402
import normjit.torch  # noqa: E402

COLUMNS = 256


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = normjit.torch.LayerNorm(COLUMNS, activation="gelu", scale=0.5)

    def forward(self, x):
        y, total = normjit.torch.add_rms_norm(self.first(x), x)
        return y, total


device = "cuda" if torch.cuda.is_available() else "cpu"
model = Model().eval().to(device)
with torch.no_grad():
    x = torch.randn(10, COLUMNS, device=device)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows", min=2)}})
    print("\n".join(str(node.target) for node in program.graph.nodes if "normjit" in str(node.target)))
    torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
