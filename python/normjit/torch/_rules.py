# SPDX-License-Identifier: Apache-2.0
"""How the operators work together with the rest of PyTorch: fake tensors, autograd, autocast, vmap."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from normjit.torch import _check, _gradients
from normjit.torch._activation import NONE, activate
from normjit.torch._operator import DEVICE, library, native_differentiable

apply: Callable[..., Tensor] = torch.ops.normjit.layer_norm.default
apply_with_gradients: Callable[..., Tensor] = torch.ops.normjit.layer_norm_with_gradients.default


# ---- By PyTorch

def _by_pytorch(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: int = NONE,
                scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    _check.arguments(x, dims, weight, bias, dtype)
    wide = _check.compute_dtype(x, weight, dtype)
    with torch._C._AutoDispatchBelowAutograd():  # a kernel, which has no gradient of its own
        y = F.layer_norm(_in(x, wide), x.shape[-dims:], _in(weight, wide), _in(bias, wide), eps)
        return activate(y, activation, scale).to(dtype or x.dtype)


library.impl("layer_norm_by_pytorch", _by_pytorch, DEVICE)


# ---- Fake tensors

def _fake(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: int = NONE,
          scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    _check.arguments(x, dims, weight, bias, dtype)
    return x.new_empty(x.shape, dtype=dtype or x.dtype)


for _name in ("layer_norm", "layer_norm_with_gradients", "layer_norm_by_pytorch"):
    torch.library.register_fake("normjit::" + _name, _fake, lib=library)


# ---- Autograd

def _in(tensor: Any, dtype: torch.dtype) -> Any:
    """A tensor of this type, or None for None."""
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)


def _save(ctx: Any, x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: int,
          scale: float, dtype: torch.dtype | None) -> None:
    ctx.save_for_backward(x, weight, None if activation == NONE else bias)
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.call = dims, eps, activation, scale, dtype


def _backward_of(ctx: Any, grad: Tensor, asked: Sequence[bool]) -> tuple[Any, Any, Any]:
    """Of x, weight and bias, each where it is asked for. native/autograd.cc does the same for plain calls."""
    x, weight, bias = ctx.saved_tensors
    dims, eps, activation, scale, _ = ctx.call
    of_x, of_weight, of_bias = asked
    # Under autocast the types of weight and bias may differ.
    factors = weight if ctx.bias_dtype is None else _in(weight, torch.promote_types(weight.dtype, ctx.bias_dtype))
    dx, dweight, dbias, *_ = _gradients.gradients(
        x, dims, factors, None if bias is None else _in(bias, factors.dtype), grad, None, eps, activation, scale,
        layer=True, of_x=of_x, of_weight=of_weight, of_bias=of_bias)
    return (dx if of_x else None, _in(dweight, weight.dtype) if of_weight else None,
            _in(dbias, ctx.bias_dtype) if of_bias else None)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    of_x, _, of_weight, of_bias = ctx.needs_input_grad[:4]
    of_x, of_weight, of_bias = _backward_of(ctx, grad, (of_x, of_weight, of_bias))
    return of_x, None, of_weight, of_bias, None, None, None, None


def _setup_context(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    _save(ctx, *inputs)


# For programs, and for who calls the operator itself.
torch.library.register_autograd("normjit::layer_norm_with_gradients", _backward, setup_context=_setup_context, lib=library)


class _Transformed(torch.autograd.Function):
    """For torch.func, to which register_autograd's is closed."""
    generate_vmap_rule = True
    setup_context = staticmethod(_setup_context)
    backward = staticmethod(_backward)

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return apply(*inputs)


_apply_transformed: Any = _Transformed.apply


class _Differentiable(torch.autograd.Function):
    """For everything else: takes a third of the time of the others per call. Each argument costs some, so all but the
    tensors are one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Any) -> Any:
        dims, eps, activation, scale, dtype = call
        with torch._C._AutoDispatchBelowAutograd():
            y = apply(x, dims, weight, bias, eps, activation, scale, dtype)
        _save(ctx, x, dims, weight, bias, eps, activation, scale, dtype)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return (*_backward_of(ctx, grad, ctx.needs_input_grad[:3]), None)


# Function.apply first looks for tensors of torch.func, of which there are none here.
_apply_function: Callable[..., Tensor] = super(torch.autograd.Function, _Differentiable).apply


def differentiable(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: int,
                   scale: float, dtype: torch.dtype | None) -> Tensor:
    """apply, with gradients. Takes all of the schema's arguments."""
    if torch.compiler.is_compiling():
        return apply_with_gradients(x, dims, weight, bias, eps, activation, scale, dtype)
    if torch._C._are_functorch_transforms_active():
        y: Tensor = _apply_transformed(x, dims, weight, bias, eps, activation, scale, dtype)
        return y
    if activation == NONE and scale == 1.0 and dtype is None and not torch._C._is_tracing():  # a trace is for all
        plain = native_differentiable()
        if plain is not None:
            return plain(x, dims, weight, bias, eps)
    return _apply_function(x, weight, bias, (dims, eps, activation, scale, dtype))


# ---- Autocast, where F.layer_norm computes and answers in f32. Here no copy of x in f32 is needed.

def _autocast(operator: Callable[..., Any]) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, "Autocast" + DEVICE))

    def rule(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: int = NONE,
             scale: float = 1.0, dtype: torch.dtype | None = None) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            if dtype is None and x.dtype != torch.float64:
                dtype = torch.float32
            if dtype is not None and weight is not None and bias is not None and weight.dtype != bias.dtype:
                weight, bias = weight.to(dtype), bias.to(dtype)
            return operator(x, dims, weight, bias, eps, activation, scale, dtype)
    return rule


# ---- vmap

def _vmap(operator: Callable[..., Any]) -> Callable[..., Any]:
    def rule(info: Any, in_dims: Any, x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float,
             activation: int = NONE, scale: float = 1.0, dtype: torch.dtype | None = None) -> Any:
        x_dim, _, weight_dim, bias_dim = in_dims[:4]
        x = x.movedim(x_dim, 0) if x_dim is not None else x.expand(info.batch_size, *x.shape)
        if weight_dim is None and bias_dim is None:
            return operator(x, dims, weight, bias, eps, activation, scale, dtype), 0
        # A weight a sample: normalize here, and the rest by PyTorch.
        wide = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
        y = operator(x, dims, None, None, eps, NONE, 1.0, wide)
        for part, at, combine in ((weight, weight_dim, torch.mul), (bias, bias_dim, torch.add)):
            if part is not None:
                part = part.to(wide) if at is None else _beside(part.to(wide), at, y.dim())
                y = combine(y, part)
        return activate(y, activation, scale).to(dtype or x.dtype), 0
    return rule


def _beside(part: Tensor, at: int, dims: int) -> Tensor:
    """A parameter with the batch in front, and ones between it and what it belongs to."""
    part = part.movedim(at, 0)
    return part.reshape(part.shape[:1] + (1,) * (dims - part.dim()) + part.shape[1:])


for _name, _operator in (("layer_norm", apply), ("layer_norm_with_gradients", apply_with_gradients)):
    library.impl(_name, _autocast(_operator), "Autocast" + DEVICE)
    torch.library.register_vmap("normjit::" + _name, _vmap(_operator), lib=library)
