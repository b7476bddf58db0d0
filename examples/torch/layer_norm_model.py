#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model that is one LayerNorm over (64, 256, 256), and the same with normjit: only the class's name changes.

    python3 examples/torch/layer_norm_model.py

Checks that both agree within 1e-5, and times them beside torch.compile. Exits with 77 without PyTorch or a GPU.
"""
import sys

from side_by_side import needs_gpu

torch = needs_gpu()
import normjit.torch  # noqa: E402
from side_by_side import Example, show  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = torch.nn.LayerNorm(normalized_shape)

    def forward(self, x):
        return self.ln(x)


class ModelNew(torch.nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = normjit.torch.LayerNorm(normalized_shape)

    def forward(self, x):
        return self.ln(x)


EXAMPLE = Example("LayerNorm over (64, 256, 256) of (16, 64, 256, 256)", Model, ModelNew, ((64, 256, 256),),
                  lambda: torch.randn(16, 64, 256, 256, device="cuda"))

if __name__ == "__main__":
    sys.exit(show(EXAMPLE))
