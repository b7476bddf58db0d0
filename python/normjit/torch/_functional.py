"""layer_norm, in the place of torch.nn.functional.layer_norm."""
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

from normjit import _library
from normjit.torch import _operator
from normjit.torch._rules import activate, apply, apply_with_statistics

CODES = _library.ACTIVATIONS
_everywhere = _operator.DEVICE == "CPU"  # in tests
_has_cuda = torch.version.cuda is not None


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5, *, activation=None, scale=1.0):
    """scale * activation(F.layer_norm(x, normalized_shape, weight, bias, eps)), in one kernel.

    activation: None, "relu", "gelu", "gelu_tanh" or "silu".

    Tensors, dtypes, errors and autocast are as of torch.nn.functional.layer_norm; y is contiguous. Tensors that are
    not on an NVIDIA GPU, a bias without a weight, and forward-mode derivatives are PyTorch's own to compute.
    Gradients of any order: the backward is PyTorch's kernel on the saved mean and rstd, and computes the argument of an
    activation again. Thread-safe; launches on the current stream of x's device.
    """
    if activation is not None or scale != 1.0:
        code = code_of(activation)
        scale = float(scale)
    else:
        code = 1
    return run(x, tuple(normalized_shape), weight, bias, eps, code, scale)


def code_of(activation):
    try:
        return CODES[activation]
    except (KeyError, TypeError):
        raise ValueError("activation must be None, 'relu', 'gelu', 'gelu_tanh' or 'silu', not {!r}".format(
            activation)) from None


def run(x, shape, weight, bias, eps, code, scale):
    """layer_norm, for a tuple and an activation's number."""
    dims = len(shape)
    if (not (x.is_cuda and _has_cuda or _everywhere) or x.shape[-dims:] != shape or forward_ad._current_level >= 0
            or weight is None and bias is not None):
        return activate(F.layer_norm(x, shape, weight, bias, eps), code, scale)
    if torch.is_grad_enabled() and (x.requires_grad or weight is not None and weight.requires_grad
                                    or bias is not None and bias.requires_grad):
        return apply_with_statistics(x, dims, weight, bias, eps, code, scale)[0]
    return apply(x, dims, weight, bias, eps, code, scale)
