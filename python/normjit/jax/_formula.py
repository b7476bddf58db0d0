# SPDX-License-Identifier: Apache-2.0
"""What a kernel computes, in jax.numpy, and the tangents of that: for operands that the kernel does not take, and for derivatives.

As in _operator, all here is of rows, but for formula() and tangents() with channels first.
"""
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from normjit.jax._operator import Problem

Array = jax.Array

SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}  # in the text of a spec
SAMPLES = frozenset(["gate", "mod_scale", "mod_shift"])
PAIRS = "uint8"  # of columns in e2m1; JAX's own type of 4 bits has a byte for each of them on the host
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0, PAIRS: 6.0}
_ROUNDED_BITS = {"float16": (5, 10), "bfloat16": (8, 7)}  # of exponent and mantissa


def formula(problem: Problem, *arrays: Any) -> tuple[Array, ...]:
    """What the kernel computes."""
    if problem.channels_first:
        results = dict(zip(problem.outputs, formula(_by_rows(problem), *_rows_of(problem, arrays))))
        return tuple(_samples_of(results, arrays[0]).values())
    value = widened(problem, dict(zip(problem.inputs, arrays)), arrays[0].shape[0])
    s = _summed(problem, value)
    mean, rstd, exact = standardized(problem, s)
    y = epilogue(problem, _rounded(exact, problem.rounds_norm, problem.dtypes["x"]), value)
    results = {"y": y, "sum": s, "mean": mean, "rstd": rstd}
    if problem.dtypes["y"] in LARGEST:
        results.update(_narrowed(problem, y, value))
    elif "amax" in problem.outputs:
        results["amax"] = jnp.max(jnp.abs(_rounded(y, problem.dtypes["y"] in _ROUNDED_BITS, problem.dtypes["y"])))
    return tuple(results[name].astype(problem.dtypes[name]) for name in problem.outputs)


def _by_rows(problem: Problem) -> Problem:
    """For the formulas only: it has the text of channels first."""
    return dataclasses.replace(problem, channels_first=False)


def _rows_of(problem: Problem, arrays: Sequence[Any]) -> list[Any]:
    """Rows for samples. Those of one sample for all are as many as positions, so that row r takes the right one."""
    return [jnp.swapaxes(array, 1, 2).reshape(-1, problem.columns) if array is not None and array.ndim == 3 else array
            for array in arrays]


def _samples_of(results: dict[str, Any], x: Any) -> dict[str, Any]:
    """Samples for rows."""
    samples, columns, plane = x.shape
    return {name: result.reshape(samples, plane) if result.ndim == 1
            else jnp.swapaxes(result.reshape(samples, plane, columns), 1, 2) for name, result in results.items()}


def widened(problem: Problem, operands: dict[str, Any], rows: int) -> dict[str, Any]:
    """In the compute type, with a row for each row of x; without those that are None."""
    def of(name: str, array: Any) -> Any:
        wide = array.astype(problem.wide)
        if name not in problem.has_rows or array.shape[0] == rows:
            return wide
        times = rows // array.shape[0]
        return jnp.repeat(wide, times, axis=0) if name in SAMPLES else jnp.tile(wide, (times, 1))

    return {name: of(name, array) for name, array in operands.items() if array is not None}


def _rounded(value: Any, rounds: bool, dtype: str) -> Any:
    """As a value of this dtype, which XLA may not leave out as it may casts."""
    return jax.lax.reduce_precision(value, *_ROUNDED_BITS[dtype]) if rounds else value


def early(problem: Problem) -> list[str]:
    """The inputs from which the sum in front of the norm is made; all others come behind it."""
    gate = ["gate", "gate_table"] * (problem.gate == "before")
    names = ["x", "in_bias", *gate, *["residual"] * (problem.residual == "before")]
    return [name for name in names if name in problem.inputs]


def with_table(name: str, value: dict[str, Any]) -> Any:
    table = value.get(name + "_table")
    return value[name] if table is None else value[name] + table


def gated(problem: Problem, z: Any, value: dict[str, Any]) -> Any:
    return z * problem.gate_function(with_table("gate", value))


def prologue(problem: Problem, value: dict[str, Any]) -> Any:
    """What is normalized, before it is rounded."""
    s = value["x"] + value["in_bias"] if "in_bias" in value else value["x"]
    if problem.gate == "before":
        s = gated(problem, s, value)
    return s + value["residual"] if problem.residual == "before" else s


def _summed(problem: Problem, value: dict[str, Any]) -> Any:
    return _rounded(prologue(problem, value), problem.rounds_sum, problem.dtypes.get("residual", problem.dtypes.get(
        "sum", problem.dtypes["x"])))


def standardized(problem: Problem, s: Any) -> tuple[Any, Any, Any]:
    """The mean and the rstd of each row, and the row centred and multiplied by rstd."""
    mean = jnp.zeros(s.shape[:1], s.dtype) if problem.is_rms else jnp.mean(s, axis=-1)
    centred = s - mean[:, None]
    rstd = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1) + problem.epsilon)
    return mean, rstd, centred * rstd[:, None]


def tangents_of_standardized(problem: Problem, ds: Any, rstd: Any, n: Any) -> tuple[Any, Any, Any]:
    """Those of the three results, where the last two are these."""
    along = jnp.mean(ds * n, axis=-1)
    dmean = jnp.zeros_like(along) if problem.is_rms else jnp.mean(ds, axis=-1)
    return dmean, -rstd * rstd * along, rstd[:, None] * (ds - dmean[:, None] - n * along[:, None])


def epilogue(problem: Problem, normalized: Any, value: dict[str, Any]) -> Any:
    z, weight, bias = normalized, value.get("weight"), value.get("bias")
    if weight is not None:
        z = z * (weight + 1 if problem.weight_offset else weight)
    z = z if bias is None else z + bias
    if "mod_scale" in value:
        scale = with_table("mod_scale", value)
        z = z * (scale if problem.plain_modulation else scale + 1)
    if "mod_shift" in value:
        z = z + with_table("mod_shift", value)
    z = problem.activation(z) * jnp.asarray(problem.scale, z.dtype)
    if problem.gate == "after":
        z = gated(problem, z, value)
    return z + value["residual"] if problem.residual == "after" else z


def _narrowed(problem: Problem, y: Any, value: dict[str, Any]) -> dict[str, Any]:
    """y, to the nearest and within the numbers of its type, the scales of its rows or blocks, and what is in front of that. NaN
    is 0 in whole numbers, and 6 in e2m1."""
    dtype = problem.dtypes["y"]
    largest = LARGEST[dtype]
    y = _rounded(y, problem.rounds_y, problem.dtypes["x"])
    made = {"also": y, "amax": jnp.max(jnp.abs(y))}
    if "tensor_scale" in value:
        y = y * (value["tensor_scale"] if problem.inverse_scale else 1 / value["tensor_scale"])
    if "row_scale" in problem.outputs:
        floor = 2.0 ** -23 if dtype == "int8" else 1 / (512 * largest)
        most = jnp.max(jnp.abs(y), axis=-1)
        if "upper_bound" in value:
            most = jnp.where(most > value["upper_bound"], value["upper_bound"], most)
        scale = made["row_scale"] = jnp.maximum(most / largest, floor)
        y = y * (1 / scale)[:, None] if dtype == "int8" else y / scale[:, None]
    if problem.block:
        y, made["block_scale"] = _in_blocks(problem, y, value)
    if problem.has_pairs:
        return {"y": _in_pairs(y), **made}
    if dtype == "int8":
        y = jnp.clip(jnp.nan_to_num(jnp.round(y), nan=0.0), -128.0, 127.0)
    return {"y": jnp.clip(y, -largest - (dtype == "int8"), largest).astype(dtype), **made}


def _in_pairs(y: Any) -> Any:
    """e2m1, the even column in the lower half of a byte. Its magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 have the codes 0 .. 7."""
    most = jnp.minimum(jnp.abs(y), 6.0)
    codes = jnp.where(most < 2, jnp.round(most * 2), jnp.where(most < 4, jnp.round(most) + 2, jnp.round(most / 2) + 4))
    codes = jnp.where(jnp.isnan(y), 7, codes + 8 * jnp.signbit(y)).astype(PAIRS)
    return codes[:, ::2] | codes[:, 1::2] << 4


def _in_blocks(problem: Problem, y: Any, value: dict[str, Any]) -> tuple[Any, Any]:
    """y in front of its rounding, and the scales of its blocks."""
    largest = LARGEST[problem.dtypes["y"]]
    blocks = y.reshape(y.shape[0], -1, problem.block)
    most = jnp.max(jnp.abs(blocks), axis=-1)
    if problem.scale_format == "e4m3":
        by = value["global_scale"]
        stored = jnp.clip(by * (most * jnp.float32(1 / largest)), -448.0, 448.0).astype("float8_e4m3fn")
        # Back by its bits, since XLA leaves out two conversions that meet.
        bits = jax.lax.bitcast_convert_type(stored, jnp.uint8).astype("int32") & 0x7f
        scale = jax.lax.bitcast_convert_type((bits << 20) + (120 << 23), jnp.float32)
        scale = jnp.where(bits < 8, bits * jnp.float32(2.0 ** -9), jnp.where(bits == 0x7f, jnp.nan, scale))
        return (blocks * jnp.where(scale == 0, 0.0, by / scale)[..., None]).reshape(y.shape), _laid_out(problem, stored)
    stored = scale = jnp.maximum(most, 1e-10) / largest
    if problem.scale_format != "f32":  # up to a power of two; what is not finite stays
        bits = jax.lax.bitcast_convert_type(scale, jnp.int32)
        up = jax.lax.bitcast_convert_type((bits + 0x7fffff) & 0x7f800000, jnp.float32)
        stored = scale = jnp.where(jnp.isfinite(scale), up, scale)
    if problem.scale_format == "e8m0":
        scale = jnp.minimum(scale, 2.0 ** 127)
        exponents = jnp.where(jnp.isnan(scale), 255, jax.lax.bitcast_convert_type(scale, jnp.int32) >> 23)
        stored = jax.lax.bitcast_convert_type(exponents.astype("uint8"), jnp.dtype("float8_e8m0fnu"))
    divides = problem.scale_format == "f32" and problem.dtypes["y"] != "int8"
    blocks = blocks / scale[..., None] if divides else blocks * (1 / scale)[..., None]
    return blocks.reshape(y.shape), _laid_out(problem, stored)


def _laid_out(problem: Problem, scales: Any) -> Any:
    """The scales of blocks, [rows, K], as the spec lays them out; see ScaleLayout in normjit/spec.h."""
    if problem.scale_layout == "rows":
        return scales
    dtype, (rows, columns) = scales.dtype, {"cols": (4, 1), "cols4": (4, 4), "sw": (128, 4)}[problem.scale_layout]
    bits = jax.lax.bitcast_convert_type(scales, jnp.uint32 if dtype.itemsize == 4 else jnp.uint8)
    bits = jnp.pad(bits, ((0, -scales.shape[0] % rows), (0, -scales.shape[1] % columns)))
    if problem.scale_layout == "cols":
        bits = bits.T
    elif problem.scale_layout == "cols4":
        return jax.lax.bitcast_convert_type(bits.reshape(len(bits), bits.shape[1] // 4, 4).swapaxes(0, 1), jnp.int32)
    else:
        tiles = bits.reshape(len(bits) // 128, 4, 32, bits.shape[1] // 4, 4).transpose(0, 3, 2, 1, 4)
        bits = tiles.reshape(*tiles.shape[:2], 512)
    return jax.lax.bitcast_convert_type(bits, dtype)


def moved(function: Callable[[dict[Any, Any]], Any], value: dict[Any, Any], changes: dict[Any, Any]) -> Any:
    """The tangent of function(value), whose members with these tangents move."""
    def of_moving(some: dict[Any, Any]) -> Any:
        return function({**value, **some})

    return jax.jvp(of_moving, ({name: value[name] for name in changes},), (changes,))[1]


def tangents(problem: Problem, primals: Sequence[Any], mean: Any, rstd: Any, changes: Sequence[Any]) -> dict[str, Any]:
    """Those of y, sum, mean and rstd. Linear in the changes, the tangents of the operands, of which each may be None, for 0. A
    rounding counts as the identity."""
    if problem.channels_first:
        mean, rstd = (part if part is None else part.reshape(-1) for part in (mean, rstd))
        rows = [_rows_of(problem, arrays) for arrays in (primals, changes)]
        return _samples_of(tangents(_by_rows(problem), rows[0], mean, rstd, rows[1]), primals[0])
    value, moving = [widened(problem, dict(zip(problem.inputs, arrays)), primals[0].shape[0]) for arrays in (primals, changes)]
    s = _summed(problem, value)
    centred = s if problem.is_rms else s - mean[:, None]
    exact = centred * rstd[:, None]
    dmean = drstd = jnp.zeros_like(rstd)
    ds = dn = jnp.zeros_like(s)
    first = {name: moving.pop(name) for name in early(problem) if name in moving}
    if first:
        ds = moved(functools.partial(prologue, problem), value, first)
        dmean, drstd, dn = tangents_of_standardized(problem, ds, rstd, exact)
    n = _rounded(exact, problem.rounds_norm, problem.dtypes["x"])
    dy = moved(lambda some: epilogue(problem, some["n"], some), {**value, "n": n}, {**moving, "n": dn})
    made = {"y": dy, "sum": ds, "mean": dmean, "rstd": drstd, "amax": jnp.zeros((), problem.wide)}
    return {name: made[name].astype(problem.dtypes[name]) for name in problem.outputs}
