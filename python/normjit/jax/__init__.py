# SPDX-License-Identifier: Apache-2.0
"""Norms for JAX on NVIDIA GPUs, by kernels that normjit generates for the very shape, dtypes and epsilon.

    import normjit.jax
    y = normjit.jax.layer_norm(x, weight, bias)                     # over the last axis
    y = normjit.jax.layer_norm(x, w, b, normalized_ndim=2, activation="gelu")
    y = normjit.jax.rms_norm(x, weight, eps=1e-6)
    y, total = normjit.jax.add_rms_norm(x, residual, weight)        # total = x + residual
    y = normjit.jax.norm("rmsnorm/cols=4096/bf16/w1", x, weight=w)  # any spec, by its text

It is a call of the XLA FFI, whose C++ part is compiled once per user and jaxlib, at the first use. It works in
jit, scan, vmap, shard_map, command buffers, and under differentiation in both modes and of any order. JAX 0.6 or newer.
"""
from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

from normjit._require import require as _require

_require("jax", "JAX 0.6 or newer")

import jax
import jax.numpy as jnp

from normjit import _library
from normjit.jax import _ffi
from normjit.jax._formula import SAMPLES, SHORT
from normjit.jax._operator import ACTIVATIONS, NUMBERS, Problem, normalize, problem_of

__all__ = ["NormOutputs", "add_layer_norm", "add_rms_norm", "layer_norm", "norm", "rms_norm"]

class NormOutputs(NamedTuple):
    """The outputs of norm(); None for those that the spec does not have."""
    out: jax.Array
    sum: Optional[jax.Array] = None   # what was normalized, as x
    mean: Optional[jax.Array] = None  # of each row, in f32 or f64
    rstd: Optional[jax.Array] = None
    row_scale: Optional[jax.Array] = None  # by which each row was divided, in f32
    also: Optional[jax.Array] = None       # the result in front of its quantization
    block_scale: Optional[jax.Array] = None  # by which each block was divided
    amax: Optional[jax.Array] = None       # the largest magnitude of the result, in f32


def norm(spec: str, x: jax.Array, *, in_bias: Optional[jax.Array] = None, gate: Optional[jax.Array] = None,
         gate_table: Optional[jax.Array] = None, residual: Optional[jax.Array] = None,
         weight: Optional[jax.Array] = None, bias: Optional[jax.Array] = None, mod_scale: Optional[jax.Array] = None,
         mod_scale_table: Optional[jax.Array] = None, mod_shift: Optional[jax.Array] = None,
         mod_shift_table: Optional[jax.Array] = None,
         tensor_scale: Optional[jax.Array] = None, upper_bound: Optional[jax.Array] = None,
         global_scale: Optional[jax.Array] = None) -> Union[jax.Array, NormOutputs]:
    """The norm of a spec text, such as "rmsnorm/cols=4096/bf16/add/sum/w": y, or NormOutputs where the spec
    has more outputs than that (`/sum`, `/stats`, `/q=row`, `/q=128`, `/also=`, `/amax`).

    x: of the input's dtype; its last axes have as many elements as the spec has columns.
    in_bias, weight, bias, tables: of these axes' shape, or flat, in the weights' dtype. With `:rows`, weight and bias have x's
      shape, or that of its last axes from any axis on: weights for each head of x [tokens, heads, columns] are
      [heads, columns].
    residual: of x's shape, or of its last axes from any axis on, in the residual's dtype.
    gate, mod_scale, mod_shift: of a shape that broadcasts to x's, in the modulation's dtype. [samples, 1, columns] for x of
      [samples, tokens, columns] is read where it is; what has a size of 1 in front of another size is copied.
    tensor_scale: one f32, by which the result is divided (`/q=tensor`).
    upper_bound: one f32, more than which the largest magnitude of a row does not count (`/q=row:ub`).
    global_scale: one f32, by which the scales of blocks are multiplied in e4m3 (`/q=16:e4m3`).

    block_scale has the shape of x, with the blocks of a row in the place of the last axes. Of R rows of K blocks it is with the
    layout `:cols` [K, R4], with `:cols4` [K4 / 4, R4] in int32, each of four scales, and with `:sw` [R128 / 128, K4 / 4, 512];
    R4, K4 and R128 are multiples of 4 and 128, and what is beyond R and K is 0. It is in float32, float8_e8m0fnu or
    float8_e4m3fn. amax is one number.

    A result in e2m1 is in uint8, of pairs of columns, the even one in the lower half of a byte; it has the shape of x, with the
    columns / 2 bytes of a row in the place of the last axes.

    With `/cf`, x is [N, C, ...], with at least one axis of positions, and the C channels of each position are normalized;
    in_bias, weight and bias are [C], residual has x's shape or that of a sample, and mean and rstd are [N, ...].

    Just those that the spec has are given. Derivatives, vmap and errors are as in layer_norm; a rounding counts as the
    identity, results of 8 and 4 bits have no derivatives, and that of amax is 0. Gradients come from one kernel, also those of a
    gate and a modulation. They are the formula's where x is added to in_bias or a residual and the sum is not written; with
    `/addafter`, `/stats`, `/cf` and weights `:rows`; of a gate behind the norm with a table, a modulation, or fewer rows than x;
    and where scale and shift have other numbers of rows. Gradients at a sum are those at the sum as it was written. Raises
    ValueError also for a text that is no spec.
    """
    given = {"in_bias": in_bias, "gate": gate, "gate_table": gate_table, "residual": residual, "weight": weight,
             "bias": bias, "mod_scale": mod_scale, "mod_scale_table": mod_scale_table, "mod_shift": mod_shift,
             "mod_shift_table": mod_shift_table, "tensor_scale": tensor_scale, "upper_bound": upper_bound,
             "global_scale": global_scale}
    results: NormOutputs = _norm(spec, x, {name: array for name, array in given.items() if array is not None})
    return results.out if all(part is None for part in results[1:]) else results


@functools.partial(jax.jit, static_argnums=0)
def _norm(spec: str, x: Any, operands: dict[str, Any]) -> NormOutputs:
    problem = _problem_of(spec)
    for name in problem.inputs[1:]:
        if name not in operands:
            raise ValueError("{} has {}; give it to norm()".format(problem.text, name))
    arrays = {"x": x, **operands}
    for name, array in arrays.items():
        if name not in problem.inputs:
            raise ValueError("{} is given, but {} has none".format(name, problem.text))
        if _dtype_name(array) != problem.dtypes[name]:
            raise TypeError("{} is {}; in {} it is {}".format(
                name, _dtype_name(array), problem.text, problem.dtypes[name]))
    axes = _axes_of(x, problem)
    rows = [_rows_of(name, arrays[name], x.shape, axes, problem) for name in problem.inputs]
    return _outputs(problem, rows, x.shape, axes)


def _problem_of(spec: str) -> Problem:
    _ffi.register()  # which says that there is no GPU
    try:
        return problem_of(spec)
    except _library.Error as why:
        raise ValueError(str(why)) from None


def _axes_of(x: Any, problem: Problem) -> int:
    """How many of the last axes of x make the columns; with channels first, a sample."""
    if problem.channels_first:
        if x.ndim < 3 or x.shape[1] != problem.columns:
            raise ValueError("x has shape {}; that of {} is [samples, {} channels, positions...]".format(
                x.shape, problem.text, problem.columns))
        return int(x.ndim) - 1
    columns = 1
    for axes in range(1, x.ndim + 1):
        columns *= x.shape[-axes]
        if columns == problem.columns:
            return axes
    raise ValueError("x has shape {}; no last axes of it have the {} elements of a row of {}".format(
        x.shape, problem.columns, problem.text))


def _rows_of(name: str, array: Any, shape: tuple[int, ...], axes: int, problem: Problem) -> Any:
    """An operand as the operator takes it: rows, or a vector."""
    if name in SAMPLES:
        return _samples_of(name, array, shape, axes, problem)
    if name in NUMBERS:
        if array.size != 1:
            raise ValueError("{} has shape {}; it must be one number".format(name, array.shape))
        return array.reshape(1)
    is_suffix = array.ndim >= axes and shape[len(shape) - array.ndim:] == array.shape
    row, what = shape[len(shape) - axes:], "the last axes"
    flat: tuple[int, ...] = (problem.columns,)
    if problem.channels_first:
        row, what, flat = row[:1], "the channels", (problem.columns, math.prod(row[1:]))
    if name == "x" or name in problem.has_rows:
        if not is_suffix:
            raise ValueError("{} has shape {}; it must be that of x, which is {}, or of its last axes".format(
                name, array.shape, shape))
        return array.reshape(-1, *flat) if array.size else array.reshape(0, *flat)
    if array.shape not in ((problem.columns,), row):
        raise ValueError("{} has shape {}; {} of x, which are normalized, have shape {}".format(name, array.shape, what, row))
    return array.reshape(problem.columns)


def _samples_of(name: str, array: Any, shape: tuple[int, ...], axes: int, problem: Problem) -> Any:
    """A row for each sample: sizes of 1 stand behind all others, in front of the row."""
    sizes = (1,) * (len(shape) - array.ndim) + array.shape
    outer = len(shape) - axes
    if len(sizes) != len(shape) or sizes[outer:] != shape[outer:] or any(
            size not in (1, there) for size, there in zip(sizes, shape)):
        raise ValueError("{} has shape {}; it must broadcast to that of x, which is {}, with whole rows".format(
            name, array.shape, shape))
    same = 0
    while same < outer and sizes[same] == shape[same]:
        same += 1
    if sizes[same:outer] != (1,) * (outer - same):
        array = jnp.broadcast_to(array.reshape(sizes), shape)
    return array.reshape(-1, problem.columns) if array.size else array.reshape(0, problem.columns)


def _outputs(problem: Problem, rows: Sequence[Any], shape: tuple[int, ...], axes: int) -> NormOutputs:
    outer = shape[:1] + shape[2:] if problem.channels_first else shape[:len(shape) - axes]
    y = (*outer, problem.columns // 2) if problem.has_pairs else shape
    shapes = {"y": y, "sum": shape, "also": shape, "mean": outer, "rstd": outer, "row_scale": outer, "amax": ()}
    if problem.block:
        by_rows = (*outer, problem.columns // problem.block)
        shapes["block_scale"] = (by_rows if problem.scale_layout == "rows" else
                                 problem.shape_of("block_scale", (math.prod(outer), problem.columns)))
    if rows[0].size == 0:
        results = {name: jnp.zeros(shapes[name], problem.dtypes[name]) for name in problem.outputs}
    else:
        given = zip(problem.outputs, normalize(problem)(*rows))
        results = {name: result.reshape(shapes[name]) for name, result in given}
    return NormOutputs(results.pop("y"), **results)


def rms_norm(x: jax.Array, weight: Optional[jax.Array] = None, *, eps: float = 1e-5, weight_offset: bool = False,
             round_norm: bool = False, activation: Optional[str] = None, scale: float = 1.0) -> jax.Array:
    """activation(x / sqrt(mean(x * x) + eps) * weight) * scale over the last axis, of x's shape and dtype.

    weight_offset: the weight is added to 1, as in Gemma.
    round_norm: the normalized value is rounded to x's dtype before the weight, as in Llama of Hugging Face.
    The others, derivatives and errors are as in layer_norm.
    """
    y: jax.Array = _fused("rmsnorm", x, None, weight, None, None, eps, weight_offset,
                          "norm" if round_norm else None, activation, scale)[0]
    return y


def add_rms_norm(x: jax.Array, residual: jax.Array, weight: Optional[jax.Array] = None, *,
                 in_bias: Optional[jax.Array] = None, eps: float = 1e-5, weight_offset: bool = False,
                 rounding: Optional[str] = None, activation: Optional[str] = None,
                 scale: float = 1.0) -> tuple[jax.Array, jax.Array]:
    """(rms_norm of the sum, the sum), where the sum is x + in_bias + residual.

    The sum is normalized in f32, and stored in residual's dtype. rounding: "sum" normalizes what is stored, as vLLM
    does; "norm" is round_norm of rms_norm; "sum+norm" is both, with the bits of unfused operations.
    """
    y, total = _fused("rmsnorm", x, residual, weight, None, in_bias, eps, weight_offset, rounding, activation, scale)
    return y, total


def add_layer_norm(x: jax.Array, residual: jax.Array, weight: Optional[jax.Array] = None,
                   bias: Optional[jax.Array] = None, *, in_bias: Optional[jax.Array] = None, eps: float = 1e-5,
                   rounding: Optional[str] = None, activation: Optional[str] = None,
                   scale: float = 1.0) -> tuple[jax.Array, jax.Array]:
    """(layer_norm of the sum, the sum), where the sum is x + in_bias + residual, as in add_rms_norm."""
    y, total = _fused("layernorm", x, residual, weight, bias, in_bias, eps, False, rounding, activation, scale)
    return y, total


def _fused(head: str, x: Any, residual: Any, weight: Any, bias: Any, in_bias: Any, eps: float, weight_offset: bool,
           rounding: Optional[str], activation: Optional[str], scale: float) -> tuple[Any, Any]:
    """y and, with a residual, the sum, of norms over the last axis."""
    if activation not in ACTIVATIONS:
        raise ValueError("activation is {!r}; use one of {}".format(
            activation, ", ".join(repr(name) for name in ACTIVATIONS)))
    operands = {name: array for name, array in (
        ("in_bias", in_bias), ("residual", residual), ("weight", weight), ("bias", bias)) if array is not None}
    for name, array in {"x": x, **operands}.items():
        if _dtype_name(array) not in SHORT:
            raise TypeError("{} is {}; norms take arrays of {}".format(name, _dtype_name(array), ", ".join(SHORT)))
    if x.ndim == 0:
        raise ValueError("x has no axis to normalize")
    if bias is not None and weight is None:
        operands["weight"] = jnp.ones_like(bias)
    vectors = [name for name in ("in_bias", "weight", "bias") if name in operands]
    if vectors:  # for which the kernel has one dtype
        dtype = functools.reduce(jnp.promote_types, [operands[name].dtype for name in vectors])
        operands.update({name: operands[name].astype(dtype) for name in vectors})
    text = "{}/cols={}/{}/eps={!r}".format(head, x.shape[-1], SHORT[x.dtype.name], float(eps))
    if vectors:
        text += "/w=" + SHORT[dtype.name]
    text += "/inb" * ("in_bias" in operands)
    if residual is not None:
        text += "/res={}/add/sum".format(SHORT[residual.dtype.name])
    text += "/round=" + rounding if rounding else ""
    if "weight" in operands:
        text += ("/wb" if bias is not None else "/w") + "1" * weight_offset
    text += "/" + activation if activation else ""
    text += "/scale={!r}".format(float(scale)) if scale != 1 else ""
    results = _norm(text, x, operands)
    return results.out, results.sum


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

    All gradients of the first order come from one kernel, out of x, weight and bias. Other derivatives, of any order, come from
    the formula in jax.numpy, out of the same. Under vmap the batch becomes rows; where weight or bias have a batch, too, the
    formula takes the kernel's place, as it does for gradients of weight and bias that are those of each of the batch. In an
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
        if array is not None and _dtype_name(array) not in SHORT:
            raise TypeError("{} is {}; layer_norm takes arrays of {}".format(
                name, _dtype_name(array), ", ".join(SHORT)))
    shape = _normalized(x, normalized_shape, normalized_ndim)
    for name, array in (("weight", weight), ("bias", bias)):
        if array is not None and array.shape != shape:
            raise ValueError("{} has shape {}; the last axes of x, which are normalized, have shape {}".format(
                name, array.shape, shape))
    if x.size == 0:
        return x

    weight, bias = _like_each_other(weight, bias)
    columns = functools.reduce(int.__mul__, shape, 1)
    text = "layernorm/cols={}/{}/eps={!r}/scale={!r}".format(columns, SHORT[x.dtype.name], eps, scale)
    if weight is not None:
        text += "/w={}/{}".format(SHORT[weight.dtype.name], "w" if bias is None else "wb")
    text += "/" + activation if activation else ""
    flat = [array.reshape(columns) for array in (weight, bias) if array is not None]
    y, = normalize(_problem_of(text))(x.reshape(-1, columns), *flat)
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
