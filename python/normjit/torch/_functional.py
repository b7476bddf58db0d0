"""layer_norm, in the place of torch.nn.functional.layer_norm."""
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from normjit import _library
from normjit.torch import _operator
from normjit.torch._rules import NONE, activate, apply, differentiable

CODES = _library.ACTIVATIONS
_ON_CPU = _operator.DEVICE == "CPU"  # in tests


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5, *, activation=None, scale=1.0):
    """scale * activation(F.layer_norm(x, normalized_shape, weight, bias, eps)), in one kernel.

    activation: None, "relu", "gelu", "gelu_tanh" or "silu".

    Tensors, dtypes, errors and autocast are as of torch.nn.functional.layer_norm; y is contiguous. Tensors that are
    not on an NVIDIA GPU, nested and sparse ones, a DTensor and other wrappers of tensors, a bias without a weight, and
    forward-mode derivatives are PyTorch's own to compute.
    Gradients of any order: the backward is PyTorch's kernel on the saved mean and rstd, and computes the argument of an
    activation again. Thread-safe; launches on the current stream of x's device.
    """
    code = NONE if activation is None else code_of(activation)
    return run(x, tuple(normalized_shape), weight, bias, eps, code, scale)


def code_of(activation):
    """An activation's number. Raises ValueError."""
    try:
        return CODES[activation]
    except (KeyError, TypeError):
        raise ValueError("activation must be None, 'relu', 'gelu', 'gelu_tanh' or 'silu', not {!r}".format(
            activation)) from None


Tensor, _STRIDED = torch.Tensor, torch.strided  # a look into torch takes 20 ns
_KNOWN = (torch.nn.Parameter, Tensor, type(None))  # not foreign; the usual one first


def _is_foreign(x):
    """Whether this is something that PyTorch's operators unwrap, such as a DTensor, or no tensor at all."""
    return not isinstance(x, Tensor) or is_traceable_wrapper_subclass(x)


def run(x, shape, weight, bias, eps, code, scale):
    """layer_norm, for a tuple and an activation's number."""
    if (type(x) is not Tensor and _is_foreign(x) or type(weight) not in _KNOWN and _is_foreign(weight)
            or not x.is_cuda and not _ON_CPU or x.layout is not _STRIDED or x.is_nested
            or not shape or x.shape[-len(shape):] != shape
            or forward_ad._current_level >= 0 or weight is None and bias is not None):
        return reference(x, shape, weight, bias, eps, code, scale)
    if torch.is_grad_enabled() and (x.requires_grad or weight is not None and weight.requires_grad
                                    or bias is not None and bias.requires_grad):
        return differentiable(x, len(shape), weight, bias, eps, code, scale, None)
    if code == NONE and scale == 1.0:
        return apply(x, len(shape), weight, bias, eps)  # each argument more costs 0.15 us
    return apply(x, len(shape), weight, bias, eps, code, scale)


def reference(x, shape, weight, bias, eps, code, scale):
    """By PyTorch's own operators, with its errors."""
    return activate(F.layer_norm(x, shape, weight, bias, eps), code, scale)


if torch.version.hip is not None:
    run = reference
