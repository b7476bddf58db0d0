# SPDX-License-Identifier: Apache-2.0
"""The operator as JAX sees it: the kernel, its batching and its derivatives.

All here is of rows, x [rows, columns], with weight and bias [columns] or None.
"""
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp

from normjit.jax import _ffi

Array = jax.Array

ACTIVATIONS: dict[Optional[str], Callable[[Any], Any]] = {
    None: lambda z: z,
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """What XLA knows when it compiles, besides shapes and dtypes."""
    columns: int
    epsilon: float
    activation: Optional[str]
    scale: float


@functools.lru_cache(maxsize=1024)
def normalize(problem: Problem, statistics: bool) -> Callable[..., Any]:
    """The function of (x, weight, bias) that gives (y,), with statistics (y, mean, rstd)."""

    @jax.custom_jvp
    def operator(x: Any, weight: Any, bias: Any) -> Any:
        return _kernel(problem, statistics)(x, weight, bias)

    def derivative(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        y, mean, rstd = normalize(problem, statistics=True)(*primals)
        tangents = [None if isinstance(dt, jax.custom_derivatives.SymbolicZero) else dt for dt in tangents]
        # Between forward and backward pass only the arguments are kept, not what is computed from them.
        linear = jax.checkpoint(functools.partial(_tangents, problem), prevent_cse=False)
        dy, dmean, drstd = linear(*primals, mean, rstd, *tangents)
        return ((y, mean, rstd), (dy, dmean, drstd)) if statistics else ((y,), (dy,))

    operator.defjvp(derivative, symbolic_zeros=True)
    return operator


@functools.lru_cache(maxsize=1024)
def _kernel(problem: Problem, statistics: bool) -> Callable[..., Any]:
    """The FFI call, whose batch is more rows."""

    @jax.custom_batching.custom_vmap
    def kernel(x: Any, weight: Any, bias: Any) -> Any:
        return _ffi.call(problem, statistics, x, weight, bias)

    @kernel.def_vmap
    def batched(batch: int, is_batched: Sequence[bool], x: Any, weight: Any, bias: Any) -> Any:
        if any(is_batched[1:]):
            axes = [0 if has_batch else None for has_batch in is_batched]
            results = jax.vmap(functools.partial(formula, problem, statistics), in_axes=axes)(x, weight, bias)
        else:
            rows = x.shape[1]
            results = kernel(x.reshape(batch * rows, problem.columns), weight, bias)
            results = tuple(result.reshape(batch, rows, *result.shape[1:]) for result in results)
        return results, tuple(True for _ in results)

    return kernel


def compute_dtype(*arrays: Array | None) -> Any:
    """f64 as soon as an array is f64, else f32; as libnormjit's compute_type."""
    wide = any(array is not None and array.dtype == jnp.float64 for array in arrays)
    return jnp.float64 if wide else jnp.float32


def formula(problem: Problem, statistics: bool, x: Any, weight: Any, bias: Any) -> tuple[Array, ...]:
    """What the kernel computes."""
    wide = _widened(x, weight, bias)
    mean = jnp.mean(wide[0], axis=-1)
    centred = wide[0] - mean[:, None]
    rstd = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1) + problem.epsilon)
    y = _epilogue(problem, centred * rstd[:, None], *wide[1:]).astype(x.dtype)
    return (y, mean, rstd) if statistics else (y,)


def _widened(*arrays: Any) -> list[Any]:
    """None stays None."""
    dtype = compute_dtype(*arrays)
    return [None if array is None else array.astype(dtype) for array in arrays]


def _epilogue(problem: Problem, normalized: Any, weight: Any, bias: Any) -> Any:
    z = normalized if weight is None else normalized * weight
    z = z if bias is None else z + bias
    return ACTIVATIONS[problem.activation](z) * jnp.asarray(problem.scale, z.dtype)


def _tangents(problem: Problem, x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, dx: Any, dweight: Any,
              dbias: Any) -> tuple[Array, Array, Array]:
    """Those of y, mean and rstd. Linear in dx, dweight and dbias, of which each may be None, for 0."""
    dtype = x.dtype
    x, weight, bias = _widened(x, weight, bias)
    dx, dweight, dbias = [None if dt is None else dt.astype(x.dtype) for dt in (dx, dweight, dbias)]
    normalized = (x - mean[:, None]) * rstd[:, None]
    dmean = drstd = jnp.zeros_like(mean)
    dnormalized = jnp.zeros_like(x)
    if dx is not None:
        dmean = jnp.mean(dx, axis=-1)
        along = jnp.mean(dx * normalized, axis=-1)
        drstd = -rstd * rstd * along
        dnormalized = rstd[:, None] * (dx - dmean[:, None] - normalized * along[:, None])
    moving = [(weight, dweight), (bias, dbias)]
    fixed = [None if dt is not None else value for value, dt in moving]
    given = [value for value, dt in moving if dt is not None]

    def of_given(normalized: Any, *given: Any) -> Any:
        others: Iterator[Any] = iter(given)
        return _epilogue(problem, normalized, *(
            next(others) if dt is not None else value for value, (_, dt) in zip(fixed, moving)))

    _, dy = jax.jvp(of_given, (normalized, *given), (dnormalized, *(dt for _, dt in moving if dt is not None)))
    return dy.astype(dtype), dmean, drstd
