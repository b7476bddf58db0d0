#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ConvTranspose3d, LayerNorm, GELU and a scale: in ModelNew the last three are one kernel.

    python3 examples/torch/conv_transpose_model.py

LayerNorm(64) normalizes the last dimension of the convolution's output, its width. A channel's bias adds the same number to
all of a row, and what all of a row has in common is subtracted with its mean: for inference nobody needs to add it. Checks
that both agree within 1e-5, and times them beside torch.compile. Exits with 77 without PyTorch or a GPU.
"""
import sys

from side_by_side import needs_gpu

torch = needs_gpu()
import normjit.torch  # noqa: E402
from side_by_side import Example, show  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, bias=True, eps=1e-5, scaling_factor=1.0):
        super().__init__()
        self.conv_transpose = torch.nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride=stride,
                                                       padding=padding, bias=bias)
        self.layer_norm = torch.nn.LayerNorm(out_channels, eps=eps)
        self.scaling_factor = scaling_factor

    def forward(self, x):
        return torch.nn.functional.gelu(self.layer_norm(self.conv_transpose(x))) * self.scaling_factor


class ModelNew(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, bias=True, eps=1e-5, scaling_factor=1.0):
        super().__init__()
        self.conv_transpose = torch.nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride=stride,
                                                       padding=padding, bias=bias)
        self.layer_norm = normjit.torch.LayerNorm(out_channels, eps=eps, activation="gelu", scale=scaling_factor)

    def forward(self, x):
        return self.layer_norm(self.conv_transpose(x) if torch.is_grad_enabled() else self.without_bias(x))

    def without_bias(self, x):
        conv = self.conv_transpose
        return torch.nn.functional.conv_transpose3d(x, conv.weight, None, conv.stride, conv.padding, conv.output_padding,
                                                    conv.groups, conv.dilation)


EXAMPLE = Example("ConvTranspose3d, LayerNorm(64), GELU, scale of (32, 32, 16, 32, 32)", Model, ModelNew, (32, 64, 4, 2, 1),
                  lambda: torch.randn(32, 32, 16, 32, 32, device="cuda"))

if __name__ == "__main__":
    sys.exit(show(EXAMPLE))
