# SPDX-License-Identifier: Apache-2.0
"""LayerNorm for JAX on NVIDIA GPUs, by kernels that normjit generates for the very shape, dtypes and epsilon.

    import normjit.jax
    y = normjit.jax.layer_norm(x, weight, bias)                     # over the last axis
    y = normjit.jax.layer_norm(x, w, b, normalized_ndim=2, activation="gelu")

It is a call of the XLA FFI, whose C++ part is compiled once per user and jaxlib, at the first use. It works in
jit, scan, vmap, shard_map, command buffers, and under differentiation in both modes and of any order. JAX 0.6 or newer.
"""
from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, Optional, Union

from normjit._require import require as _require

_require("jax", "JAX 0.6 or newer")

import jax
import jax.numpy as jnp

from normjit.jax._operator import ACTIVATIONS, Problem, normalize

__all__ = ["layer_norm"]

_DTYPES = ("float16", "bfloat16", "float32", "float64")


def layer_norm(x: jax.Array, weight: Optional[jax.Array] = None, bias: Optional[jax.Array] = None, *,
               normalized_shape: Union[int, Sequence[int], None] = None, normalized_ndim: Optional[int] = None,
               eps: float = 1e-5, activation: Optional[str] = None, scale: float = 1.0) -> jax.Array:
    """activation((x - mean) / sqrt(variance + eps) * weight + bias) * scale, of x's shape and dtype.

    x: f16, bf16, f32 or f64, on an NVIDIA GPU. Mean and variance are those of its last axes, computed in f32,
      or in f64 if a dtype is f64.
    weight, bias: of these last axes' shape, of any of the four dtypes, or None.
    normalized_shape: the last axes, as an int or a sequence; or
    normalized_ndim: how many they are. Without either it is 1.
    eps: added to the variance; not negative. Python numbers, as is scale: each value is a kernel of its own.
    activation: None, "relu", "gelu" (exact), "gelu_tanh" or "silu".

    Derivatives come from the formula in jax.numpy, out of x and the mean and rstd that the kernel saved. Under vmap the
    batch becomes rows; where weight or bias have a batch, too, the formula takes the kernel's place. In an
    array that jit shards on its own the call is not split: use shard_map.

    Raises TypeError and ValueError for what does not fit; RuntimeError where there is no GPU, no C++ compiler or no
    libnormjit. On a CPU beside a GPU the program fails when it runs, with an error of XLA that says so.
    """
    if isinstance(normalized_shape, list):
        normalized_shape = tuple(normalized_shape)
    y: jax.Array = _layer_norm(x, weight, bias, normalized_shape=normalized_shape, normalized_ndim=normalized_ndim,
                               eps=float(eps), activation=activation, scale=float(scale))
    return y


@functools.partial(jax.jit, static_argnames=("normalized_shape", "normalized_ndim", "eps", "activation", "scale"))
def _layer_norm(x: Any, weight: Any, bias: Any, *, normalized_shape: Union[int, Sequence[int], None],
                normalized_ndim: Optional[int], eps: float, activation: Optional[str], scale: float) -> Any:
    if activation not in ACTIVATIONS:
        raise ValueError("activation is {!r}; use one of {}".format(
            activation, ", ".join(repr(name) for name in ACTIVATIONS)))
    if not eps >= 0:
        raise ValueError("eps is {}; it must not be negative".format(eps))
    for name, array in (("x", x), ("weight", weight), ("bias", bias)):
        if array is not None and _dtype_name(array) not in _DTYPES:
            raise TypeError("{} is {}; layer_norm takes arrays of {}".format(
                name, _dtype_name(array), ", ".join(_DTYPES)))
    shape = _normalized(x, normalized_shape, normalized_ndim)
    for name, array in (("weight", weight), ("bias", bias)):
        if array is not None and array.shape != shape:
            raise ValueError("{} has shape {}; the last axes of x, which are normalized, have shape {}".format(
                name, array.shape, shape))
    if x.size == 0:
        return x

    weight, bias = _like_each_other(weight, bias)
    columns = functools.reduce(int.__mul__, shape, 1)
    problem = Problem(columns, eps, activation, scale)
    flat = [None if array is None else array.reshape(columns) for array in (weight, bias)]
    y, = normalize(problem, statistics=False)(x.reshape(-1, columns), *flat)
    return y.reshape(x.shape)


def _dtype_name(array: Any) -> str:
    return array.dtype.name if hasattr(array, "dtype") else "a " + type(array).__name__


def _normalized(x: Any, shape: Union[int, Sequence[int], None], ndim: Optional[int]) -> tuple[int, ...]:
    """The shape of the last axes of x, which are normalized."""
    if shape is not None and ndim is not None:
        raise ValueError("layer_norm takes normalized_shape or normalized_ndim, not both")
    if shape is None:
        ndim = 1 if ndim is None else ndim
        if not 1 <= ndim <= x.ndim:
            raise ValueError("normalized_ndim is {}; x of shape {} allows 1 to {}".format(ndim, x.shape, x.ndim))
        return tuple(x.shape[x.ndim - ndim:])
    shape = tuple(shape) if isinstance(shape, Sequence) else (operator.index(shape),)
    if not shape or x.shape[max(0, x.ndim - len(shape)):] != shape:
        raise ValueError("normalized_shape is {}; it must be the last axes of x, which has shape {}".format(
            shape, x.shape))
    return shape


def _like_each_other(weight: Any, bias: Any) -> tuple[Any, Any]:
    """The kernel has one dtype for both, and no bias without a weight."""
    if bias is None:
        return weight, None
    if weight is None:
        return jnp.ones_like(bias), bias
    dtype = jnp.promote_types(weight.dtype, bias.dtype)
    return weight.astype(dtype), bias.astype(dtype)
