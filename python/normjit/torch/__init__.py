# SPDX-License-Identifier: Apache-2.0
"""Drop-ins for PyTorch's normalizations.

    from normjit.torch import LayerNorm, add_rms_norm, layer_norm, norm, replace_norms, rms_norm_quant

    layer = LayerNorm(4096)                         # in the place of torch.nn.LayerNorm(4096); RMSNorm likewise
    layer = LayerNorm(4096, activation="gelu")      # gelu(layer(x)) in one kernel
    y = layer_norm(x, (4096,), weight, bias)        # in the place of torch.nn.functional.layer_norm
    y, s = add_rms_norm(x, residual, weight)        # RMSNorm(x + residual), and the sum
    y, scales = rms_norm_quant(x, (4096,), weight)  # in float8_e4m3fn, with a scale for each row; or block=128
    y = norm("rmsnorm/cols=4096/bf16/round=norm/w", x, weight=weight)    # any spec
    replace_norms(model)                            # every LayerNorm and RMSNorm of a model, in place

What is not a plain tensor on an NVIDIA GPU goes to PyTorch's own operators, so swapping a name is always safe; so do
short rows under torch.compile, which Inductor fuses with their neighbours.
The first import compiles a small operator for the installed PyTorch (2.9 or newer) with the C++ compiler at hand;
without one it goes through ctypes, which costs more per call. The first call that needs gradients compiles another.
"""
from normjit._require import require as _require

_require("torch", "PyTorch 2.9 or newer")

from normjit.torch._functional import layer_norm
from normjit.torch._fused import (add_layer_norm, add_rms_norm, add_rms_norm_quant, gate_residual_modulate,
                                  gated_rms_norm, layer_norm_2d, modulated_layer_norm, rms_norm, rms_norm_quant)
from normjit.torch._fusion import enable_fusion
from normjit.torch._module import LayerNorm, RMSNorm
from normjit.torch._norm import NormOutputs, norm
from normjit.torch._replace import replace_layer_norm, replace_norms

__all__ = ["LayerNorm", "NormOutputs", "RMSNorm", "add_layer_norm", "add_rms_norm", "add_rms_norm_quant",
           "enable_fusion", "gate_residual_modulate", "gated_rms_norm", "layer_norm", "layer_norm_2d",
           "modulated_layer_norm", "norm", "replace_layer_norm", "replace_norms", "rms_norm", "rms_norm_quant"]
