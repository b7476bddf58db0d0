# SPDX-License-Identifier: Apache-2.0
"""Drop-ins for PyTorch's layer normalization.

    from normjit.torch import LayerNorm, layer_norm, replace_layer_norm

    norm = LayerNorm(4096)                          # in the place of torch.nn.LayerNorm(4096)
    norm = LayerNorm(4096, activation="gelu")       # gelu(norm(x)) in one kernel
    y = layer_norm(x, (4096,), weight, bias)        # in the place of torch.nn.functional.layer_norm
    replace_layer_norm(model)                       # every nn.LayerNorm of a model, in place

What is not a plain tensor on an NVIDIA GPU goes to PyTorch's own layer_norm, so swapping a name is always safe; so do
short rows under torch.compile, which Inductor fuses with their neighbours.
The first import compiles a small operator for the installed PyTorch (2.9 or newer) with the C++ compiler at hand;
without one it goes through ctypes, which costs more per call. The first call that needs gradients compiles another.
"""
from normjit._require import require as _require

_require("torch", "PyTorch 2.9 or newer")

from normjit.torch._functional import layer_norm
from normjit.torch._module import LayerNorm, replace_layer_norm

__all__ = ["LayerNorm", "layer_norm", "replace_layer_norm"]
