# SPDX-License-Identifier: Apache-2.0
"""All gradients of a norm at once: normjit::norm_backward by one kernel, normjit::norm_backward_by_pytorch by PyTorch's
operators. Those of normjit::norm (_norm.py) and of layer_norm (_rules.py, native/autograd.cc) are both made of them."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from normjit import _library
from normjit._gradients import GATE_AFTER, GATE_BEFORE, NO_GATE
from normjit.torch import _check
from normjit.torch._activation import NONE, gradient_of_argument
from normjit.torch._operator import DEVICE, library

aten = torch.ops.aten
_operators: Any = torch.ops.normjit
apply = _operators.norm_backward.default

Maybe = Optional[Tensor]
Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def gradients(x: Tensor, dims: int, weight: Maybe, bias: Maybe, dy: Tensor, dsum: Maybe, eps: float, activation: int,
              scale: float, *, layer: bool, of_x: bool, of_weight: bool, of_bias: bool, gate: Maybe = None,
              mod_scale: Maybe = None, mod_shift: Maybe = None, gate_place: int = NO_GATE, gate_function: int = 1,
              plain_modulation: bool = False, weight_offset: bool = False, batch_invariant: bool = False) -> Found:
    """dx, dweight, dbias, and dgate, dmod_scale and dmod_shift, which come with dx; what is not asked for, or is of nothing,
    has no elements."""
    function: Any = apply if _has_kernel(x, dy, dsum) else by_pytorch
    found: Found = function(x, dims, weight, bias, dy, dsum if of_x else None, gate, mod_scale, mod_shift, eps, activation,
                            scale, gate_place, gate_function, plain_modulation, layer, weight_offset, of_x, of_weight,
                            of_bias, batch_invariant)
    return found


def reads_bias(activation: int, gate_place: int, mod_scale: Maybe, of_x: bool) -> bool:
    """Whether a gradient depends on the bias."""
    return activation != NONE or ((gate_place == GATE_AFTER or mod_scale is not None) and of_x)


def _has_kernel(x: Tensor, *grads: Maybe) -> bool:
    """Gradients that have gradients of their own, and those of torch.func and of is_grads_batched, are PyTorch's.
    native/autograd.cc asks the same."""
    return not (x.device.type != DEVICE.lower() or torch.is_grad_enabled()
                or torch._C._are_functorch_transforms_active()
                or any(grad is not None and torch._C._dispatch_keys(grad).has(_BATCHED) for grad in grads))


_BATCHED: Any = torch._C._parse_dispatch_key("Batched")


def by_pytorch(x: Tensor, dims: int, weight: Maybe, bias: Maybe, dy: Tensor, dsum: Maybe, gate: Maybe,
               mod_scale: Maybe, mod_shift: Maybe, eps: float, activation: int, scale: float, gate_place: int,
               gate_function: int, plain_modulation: bool, layer: bool, weight_offset: bool, of_x: bool, of_weight: bool,
               of_bias: bool, batch_invariant: bool) -> Found:
    """Differentiable. In the widest of the types; where more than one operator rounds, in f32 at least."""
    wide = functools.reduce(torch.promote_types,
                            [part.dtype for part in (x, weight, dy, dsum, gate, mod_scale) if part is not None])
    if not layer or dsum is not None or gate is not None or mod_scale is not None or activation != NONE or scale != 1.0:
        wide = torch.promote_types(wide, torch.float32)
    shape = x.shape[-dims:]
    factors, summand = (None if part is None else part.to(wide).reshape(shape) for part in (weight, bias))
    if factors is not None and weight_offset:
        factors = 1 + factors
    of_gate: tuple[Any, Any] = (None, None) if gate is None else factor_of(gate.to(wide), gate_function)
    gate_factor, slope = of_gate
    s, arrives = x.to(wide), dy.to(wide)
    if mod_scale is not None:
        factor = mod_scale.to(wide) if plain_modulation else 1 + mod_scale.to(wide)
    behind: list[Tensor] = []  # what the affine made, and the gradient behind a modulation
    if gate_place == GATE_BEFORE:
        s = s * gate_factor
    elif gate_place == GATE_AFTER:
        arrives = arrives * gate_factor

    def through(z: Tensor) -> Tensor:
        behind.append(z)
        if mod_scale is None:
            return gradient_of_argument(arrives, z, activation=activation, scale=scale)
        z = z * factor
        if mod_shift is not None:
            z = z + mod_shift.to(wide)
        behind.append(gradient_of_argument(arrives, z, activation=activation, scale=scale))
        return behind[1] * factor

    function = _of_layer if layer else _of_rms
    dx, dweight, dbias = function(s, shape, factors, summand, through, eps, of_bias)
    if dsum is not None:
        dx = dx + dsum.to(wide)
    dgate = dmod_scale = dmod_shift = None
    if gate_place == GATE_BEFORE:
        dx, dgate = dx * gate_factor, dx * x.to(wide) * slope
    elif gate_place == GATE_AFTER:
        dgate = dy.to(wide) * scale * behind[0] * slope
    if mod_scale is not None:
        dmod_scale = (behind[0] * behind[1]).sum_to_size(mod_scale.shape)
    if mod_shift is not None:
        dmod_shift = behind[1].sum_to_size(mod_shift.shape)
        if mod_shift.shape == x.shape:
            dmod_shift = dmod_shift.clone()  # it may be dy
    like = weight if weight is not None else x
    of = ((dx, x, of_x), (dweight, like, of_weight and weight is not None), (dbias, like, of_bias and weight is not None),
          (dgate, gate, of_x), (dmod_scale, mod_scale, of_x), (dmod_shift, mod_shift, of_x))
    found = [part.to(theirs.dtype).contiguous() if wanted and part is not None and theirs is not None else x.new_empty(0)
             for part, theirs, wanted in of]
    return found[0], found[1], found[2], found[3], found[4], found[5]


def factor_of(gate: Tensor, function: int) -> tuple[Tensor, Tensor]:
    """What a gate multiplies by, and the derivative of that."""
    if function == _library.GATE_FUNCTIONS["tanh"]:
        tanh = torch.tanh(gate)
        return tanh, 1 - tanh * tanh
    if function == _library.GATE_FUNCTIONS[None]:
        return gate, torch.ones_like(gate)
    sigmoid = torch.sigmoid(gate)
    if function == _library.GATE_FUNCTIONS["sigmoid"]:
        return sigmoid, sigmoid * (1 - sigmoid)
    return gate * sigmoid, sigmoid * (1 + gate * (1 - sigmoid))


# In these, through() of the argument of the activation is its gradient.

def _of_layer(x: Tensor, shape: torch.Size, factors: Maybe, summand: Maybe, through: Callable[[Tensor], Tensor], eps: float,
              of_bias: bool) -> Any:
    z, mean, rstd = aten.native_layer_norm.default(x, shape, factors, summand, eps)
    asked = True, factors is not None, factors is not None and of_bias
    # Of a bias it takes the shape alone. It knows itself how the statistics depend on x.
    return aten.native_layer_norm_backward.default(
        through(z), x, shape, mean.detach(), rstd.detach(), factors, factors, asked)


def _of_rms(x: Tensor, shape: torch.Size, factors: Maybe, summand: Maybe, through: Callable[[Tensor], Tensor], eps: float,
            of_bias: bool) -> Any:
    over = tuple(range(-len(shape), 0))
    rstd = torch.rsqrt(x.square().mean(over, keepdim=True) + eps)
    n = x * rstd
    z = n if factors is None else n * factors
    dz = through(z if summand is None else z + summand)
    g = dz if factors is None else dz * factors
    dx = (g - n * (g * n).mean(over, keepdim=True)) * rstd
    rows = x.shape[:-len(shape)].numel()
    if factors is None:
        return dx, None, None
    return dx, (dz * n).reshape(rows, *shape).sum(0), dz.reshape(rows, *shape).sum(0) if of_bias else None


def _elsewhere(*arguments: Any) -> Found:
    with torch._C._AutoDispatchBelowAutograd():  # a kernel, which has no gradient of its own
        return by_pytorch(*arguments)


def _fake(x: Tensor, dims: int, weight: Maybe, bias: Maybe, dy: Tensor, dsum: Maybe, gate: Maybe,
          mod_scale: Maybe, mod_shift: Maybe, eps: float, activation: int, scale: float, gate_place: int, gate_function: int,
          plain_modulation: bool, layer: bool, weight_offset: bool, of_x: bool, of_weight: bool, of_bias: bool,
          batch_invariant: bool) -> Found:
    _check.gradients(x, dims, weight, bias, dy, dsum, gate, mod_scale, mod_shift, gate_place,
                     of_bias and reads_bias(activation, gate_place, mod_scale, of_x))
    row = x.shape[-dims:]
    sums = [x.new_empty(0) if weight is None or not wanted else x.new_empty(row, dtype=weight.dtype)
            for wanted in (of_weight, of_bias)]
    dx, dgate, dmod_scale, dmod_shift = (
        x.new_empty(0) if part is None or not of_x else x.new_empty(part.shape, dtype=part.dtype)
        for part in (x, gate, mod_scale, mod_shift))
    return dx, sums[0], sums[1], dgate, dmod_scale, dmod_shift


library.impl("norm_backward", _elsewhere, "CompositeExplicitAutograd")
library.impl("norm_backward_by_pytorch", by_pytorch, "CompositeImplicitAutograd")
torch.library.register_fake("normjit::norm_backward", _fake, lib=library)
