# SPDX-License-Identifier: Apache-2.0
"""The operator as JAX sees it: the kernel, its batching and its derivatives, those of plain norms by _gradients.

All here is of rows: x is [rows, columns]. Operands come in the order of INPUTS, those that the spec has, and results in the
order of OUTPUTS. in_bias, weight, bias and tables are [columns]; residual, and with `:rows` weight and bias, are [n, columns],
where n divides the rows and row r takes row r % n. So are the operands of SAMPLES, of which each of n samples has one row: row r
takes row r // (rows / n). tensor_scale, upper_bound and global_scale are [1], amax is [], block_scale has the dimensions of
_library.scale_sizes, and y in e2m1 is [rows, columns / 2]. With channels first x is [samples, columns, plane], residual is that
or of one sample for all, and mean and rstd are [samples, plane].
"""
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp

from normjit import _library
from normjit._gradients import have_kernel, read_bias
from normjit.jax import _ffi, _gradients

Array = jax.Array

INPUTS = ("x", "in_bias", "gate", "gate_table", "residual", "weight", "bias", "mod_scale", "mod_scale_table", "mod_shift",
          "mod_shift_table", "tensor_scale", "upper_bound", "global_scale")
SAMPLES = frozenset(["gate", "mod_scale", "mod_shift"])
OUTPUTS = ("y", "sum", "mean", "rstd", "also", "row_scale", "block_scale", "amax")
NUMBERS = frozenset(["tensor_scale", "upper_bound", "global_scale"])
ACTIVATIONS: dict[Optional[str], Callable[[Any], Any]] = {
    None: lambda z: z,
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
}
_PAIRS = "uint8"  # of columns in e2m1; JAX's own type of 4 bits has a byte for each of them on the host
_DTYPES = {_library.DTYPES[name]: dtype for name, dtype in (
    ("f16", "float16"), ("bf16", "bfloat16"), ("f32", "float32"), ("f64", "float64"),
    ("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2"), ("s8", "int8"), ("e2m1", _PAIRS))}
_SCALE_DTYPES = {"f32": "float32", "p2": "float32", "e8m0": "float8_e8m0fnu", "e4m3": "float8_e4m3fn"}
_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0, _PAIRS: 6.0}
_ACTIVATIONS = {_library.ACTIVATIONS[name]: function for name, function in ACTIVATIONS.items()}
GATE_FUNCTIONS: dict[Optional[str], Callable[[Any], Any]] = {
    None: lambda z: z, "silu": jax.nn.silu, "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}
_GATE_FUNCTIONS = {_library.GATE_FUNCTIONS[name]: function for name, function in GATE_FUNCTIONS.items()}
_ROUNDED_BITS = {"float16": (5, 10), "bfloat16": (8, 7)}  # of exponent and mantissa


@dataclasses.dataclass(frozen=True, repr=False)
class Problem:
    """What XLA knows when it compiles, besides shapes: the text of a spec, and what follows from it."""
    text: str
    words: bytes = dataclasses.field(compare=False)  # normjit_spec
    columns: int = dataclasses.field(compare=False)
    epsilon: float = dataclasses.field(compare=False)
    scale: float = dataclasses.field(compare=False)
    is_rms: bool = dataclasses.field(compare=False)
    residual: Optional[str] = dataclasses.field(compare=False)  # None, "before" or "after"
    gate: Optional[str] = dataclasses.field(compare=False)      # likewise
    gate_function: Callable[[Any], Any] = dataclasses.field(compare=False)
    plain_modulation: bool = dataclasses.field(compare=False)
    rounds_sum: bool = dataclasses.field(compare=False)
    rounds_norm: bool = dataclasses.field(compare=False)
    rounds_y: bool = dataclasses.field(compare=False)
    inverse_scale: bool = dataclasses.field(compare=False)
    block: int = dataclasses.field(compare=False)  # columns; 0: none has a scale
    scale_format: str = dataclasses.field(compare=False)
    scale_layout: str = dataclasses.field(compare=False)
    weight_offset: bool = dataclasses.field(compare=False)
    channels_first: bool = dataclasses.field(compare=False)
    activation: Callable[[Any], Any] = dataclasses.field(compare=False)
    inputs: tuple[str, ...] = dataclasses.field(compare=False)
    outputs: tuple[str, ...] = dataclasses.field(compare=False)
    has_rows: frozenset[str] = dataclasses.field(compare=False)  # inputs but x that are [n, columns]
    dtypes: dict[str, str] = dataclasses.field(compare=False)    # of inputs and outputs
    wide: str = dataclasses.field(compare=False)                 # in which all is computed
    has_gradient_kernel: bool = dataclasses.field(compare=False)  # where residual has x's shape
    gradients_read_bias: bool = dataclasses.field(compare=False)  # of that kernel

    def __repr__(self) -> str:
        return self.text

    def with_statistics(self) -> Problem:
        return self if "rstd" in self.outputs else problem_of(self.text + "/stats")

    @property
    def has_pairs(self) -> bool:
        """Whether an element of y has two columns."""
        return self.dtypes["y"] == _PAIRS

    def shape_of(self, output: str, x: tuple[int, ...]) -> tuple[int, ...]:
        """For x as the operator has it."""
        if output == "y" and self.has_pairs:
            return (x[0], self.columns // 2)
        if output in ("y", "sum", "also"):
            return x
        if output == "block_scale":
            return _library.scale_sizes(_library.Spec.from_buffer_copy(self.words), x[0])
        return () if output == "amax" else x[:1] + x[2:]


@functools.lru_cache(maxsize=1024)
def problem_of(text: str) -> Problem:
    """Raises _library.Error for what is no spec."""
    spec = _library.Spec.from_buffer_copy(_library.parse_spec(text))
    if spec.backward:
        raise _library.Error(_library.BAD_ARGUMENT, "normjit.jax.norm: {} is the spec of gradients, which JAX derives by itself; "
                             "give that of the norm".format(text))
    before, after = _library.RESIDUALS["add"], _library.RESIDUALS["addafter"]
    is_rms, affine = spec.norm == _library.NORMS["rmsnorm"], spec.affine
    gate = {_library.GATES["gate"]: "before", _library.GATES["gateafter"]: "after"}.get(spec.gate)
    modulates, shifts = spec.modulation != _library.MODULATIONS["none"], spec.modulation == _library.MODULATIONS["mod"]
    tables = spec.modulation_table
    present = {"x": True, "in_bias": spec.in_bias, "gate": gate, "gate_table": gate and spec.gate_table,
               "residual": spec.residual in (before, after), "mod_scale": modulates, "mod_shift": shifts,
               "mod_scale_table": modulates and tables, "mod_shift_table": shifts and tables,
               "weight": affine != _library.AFFINES["none"], "bias": affine == _library.AFFINES["wb"],
               "tensor_scale": spec.quantization == _library.QUANTIZATIONS["tensor"],
               "upper_bound": spec.upper_bound, "global_scale": spec.scale_format == _library.SCALE_FORMATS["e4m3"],
               "y": True, "sum": spec.sum, "mean": spec.statistics and not is_rms, "rstd": spec.statistics,
               "also": spec.also != _library.ALSOS["none"], "row_scale": spec.quantization == _library.QUANTIZATIONS["row"],
               "block_scale": _library.block_of(spec), "amax": spec.amax}
    own = {"x": spec.input, "in_bias": spec.weight, "residual": spec.residual_type, "weight": spec.weight,
           "bias": spec.weight, "y": spec.output, "sum": spec.residual_type, "gate_table": spec.weight,
           "mod_scale_table": spec.weight, "mod_shift_table": spec.weight,
           **{name: spec.modulation_type for name in SAMPLES}}
    dtypes = {name: _DTYPES[own[name]] for name in own if present[name]}
    wide = "float64" if "float64" in dtypes.values() else "float32"
    scale_format = _library.name_of(_library.SCALE_FORMATS, spec.scale_format)
    scale_layout = _library.name_of(_library.SCALE_LAYOUTS, spec.scale_layout)
    also = _library.name_of(_library.ALSOS, spec.also)
    rounding = _library.name_of(_library.ROUNDINGS, spec.rounding).split("+")
    return Problem(
        text=_library.spec_text(spec), words=bytes(spec), columns=spec.columns, epsilon=spec.epsilon, scale=spec.scale,
        is_rms=is_rms, residual={before: "before", after: "after"}.get(spec.residual), gate=gate,
        gate_function=_GATE_FUNCTIONS[spec.gate_function], plain_modulation=bool(spec.plain_modulation),
        rounds_sum="sum" in rounding, rounds_norm="norm" in rounding, rounds_y="y" in rounding,
        inverse_scale=bool(spec.inverse_scale), block=_library.block_of(spec), scale_format=scale_format,
        scale_layout=scale_layout, weight_offset=bool(spec.weight_offset), channels_first=bool(spec.channels_first),
        activation=_ACTIVATIONS[spec.activation], inputs=tuple(name for name in INPUTS if present[name]),
        outputs=tuple(name for name in OUTPUTS if present[name]),
        has_rows=SAMPLES | frozenset(["residual"] + ["weight", "bias"] * spec.affine_rows),
        dtypes={**dtypes, "mean": wide, "rstd": wide, "row_scale": "float32", "amax": "float32",
                "also": "" if also == "none" else _DTYPES[_library.DTYPES[also]],
                "block_scale": "int32" if scale_layout == "cols4" else _SCALE_DTYPES[scale_format],
                **{name: "float32" for name in NUMBERS}}, wide=wide,
        has_gradient_kernel=have_kernel(spec), gradients_read_bias=read_bias(spec))


@functools.lru_cache(maxsize=1024)
def normalize(problem: Problem) -> Callable[..., Any]:
    """The function of problem.inputs that gives a tuple of problem.outputs."""

    @jax.custom_jvp
    def operator(*arrays: Any) -> Any:
        return _kernel(problem)(*arrays)

    def derivative(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        if problem.dtypes["y"] in _LARGEST:
            raise TypeError("results of 8 and 4 bits have no derivatives; {} writes {}".format(problem.text, problem.dtypes["y"]))
        tangents = [None if isinstance(dt, jax.custom_derivatives.SymbolicZero) else dt for dt in tangents]
        given = dict(zip(problem.inputs, primals))
        if _gradients.apply_to_plain(problem, {name: array.shape for name, array in given.items()}):
            return _derivative_of_plain(problem, given, dict(zip(problem.inputs, tangents)))
        full = problem.with_statistics()
        results = dict(zip(full.outputs, normalize(full)(*primals)))
        # Between forward and backward pass only the arguments are kept, not what is computed from them.
        linear = jax.checkpoint(functools.partial(_tangents, full), prevent_cse=False)
        moved = linear(primals, results.get("mean"), results["rstd"], tangents)
        return tuple(results[name] for name in problem.outputs), tuple(moved[name] for name in problem.outputs)

    operator.defjvp(derivative, symbolic_zeros=True)
    return operator


def _derivative_of_plain(problem: Problem, given: dict[str, Any], tangents: dict[str, Any]) -> Any:
    """The results and their tangents."""
    results = dict(zip(problem.outputs, normalize(problem)(*given.values())))
    moved = _gradients.tangents(problem, results["sum"] if "residual" in given else given["x"], given,
                                {name: dt for name, dt in tangents.items() if dt is not None})
    return tuple(results.values()), tuple(
        moved[name] if name in moved else jnp.zeros_like(result) for name, result in results.items())


@functools.lru_cache(maxsize=1024)
def _kernel(problem: Problem) -> Callable[..., Any]:
    """The FFI call, whose batch is more rows."""

    @jax.custom_batching.custom_vmap
    def kernel(*arrays: Any) -> Any:
        return _ffi.call(problem, arrays)

    @kernel.def_vmap
    def batched(batch: int, is_batched: Sequence[bool], *arrays: Any) -> Any:
        batched_names = {name for name, has_batch in zip(problem.inputs, is_batched) if has_batch}
        of_all_rows = "amax" in problem.outputs or problem.scale_layout != "rows"  # of which each of the batch has its own
        if of_all_rows or batched_names - problem.has_rows - {"x"}:  # vectors
            axes = [0 if has_batch else None for has_batch in is_batched]
            results = jax.vmap(functools.partial(formula, problem), in_axes=axes)(*arrays)
            return results, tuple(True for _ in results)
        if problem.channels_first:
            sample = arrays[0].shape[-3:]

            def whole(array: Any, has_batch: bool) -> Any:
                array = array if has_batch else array[None]
                return jnp.broadcast_to(array, (batch, *sample)).reshape(-1, *sample[1:])

            results = kernel(*[whole(array, has_batch) if name == "x" or name in problem.has_rows else array
                               for name, array, has_batch in zip(problem.inputs, arrays, is_batched)])
            results = tuple(result.reshape(batch, sample[0], *result.shape[1:]) for result in results)
            return results, tuple(True for _ in results)
        rows = arrays[0].shape[1] if is_batched[0] else arrays[0].shape[0]

        def flat(name: str, array: Any) -> Any:
            if name not in batched_names:
                return jnp.tile(array, (batch, 1)) if name == "x" or name in SAMPLES else array
            if name in SAMPLES:
                return array.reshape(-1, problem.columns)
            return jnp.tile(array, (1, rows // array.shape[1], 1)).reshape(batch * rows, problem.columns)

        results = kernel(*map(flat, problem.inputs, arrays))
        results = tuple(result.reshape(batch, rows, *result.shape[1:]) for result in results)
        return results, tuple(True for _ in results)

    return kernel


def formula(problem: Problem, *arrays: Any) -> tuple[Array, ...]:
    """What the kernel computes."""
    if problem.channels_first:
        results = dict(zip(problem.outputs, formula(_by_rows(problem), *_rows_of(problem, arrays))))
        return tuple(_samples_of(results, arrays[0]).values())
    value = _widened(problem, arrays, arrays[0].shape[0])
    s = _summed(problem, value)
    mean = jnp.zeros(s.shape[:1], s.dtype) if problem.is_rms else jnp.mean(s, axis=-1)
    centred = s - mean[:, None]
    rstd = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1) + problem.epsilon)
    y = _epilogue(problem, _rounded(centred * rstd[:, None], problem.rounds_norm, problem.dtypes["x"]), value)
    results = {"y": y, "sum": s, "mean": mean, "rstd": rstd}
    if problem.dtypes["y"] in _LARGEST:
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


def _widened(problem: Problem, arrays: Sequence[Any], rows: int) -> dict[str, Any]:
    """By name, in the compute type, with a row for each row of x; without those that are None."""
    def widened(name: str, array: Any) -> Any:
        wide = array.astype(problem.wide)
        if name in SAMPLES:
            return jnp.repeat(wide, rows // array.shape[0], axis=0)
        return jnp.tile(wide, (rows // array.shape[0], 1)) if name in problem.has_rows else wide

    return {name: widened(name, array) for name, array in zip(problem.inputs, arrays) if array is not None}


def _rounded(value: Any, rounds: bool, dtype: str) -> Any:
    """As a value of this dtype, which XLA may not leave out as it may casts."""
    return jax.lax.reduce_precision(value, *_ROUNDED_BITS[dtype]) if rounds else value


def _early(problem: Problem) -> list[str]:
    """The inputs from which the sum in front of the norm is made; all others come behind it."""
    gate = ["gate", "gate_table"] * (problem.gate == "before")
    names = ["x", "in_bias", *gate, *["residual"] * (problem.residual == "before")]
    return [name for name in names if name in problem.inputs]


def _with_table(name: str, value: dict[str, Any]) -> Any:
    table = value.get(name + "_table")
    return value[name] if table is None else value[name] + table


def _gated(problem: Problem, z: Any, value: dict[str, Any]) -> Any:
    return z * problem.gate_function(_with_table("gate", value))


def _prologue(problem: Problem, value: dict[str, Any]) -> Any:
    """What is normalized, before it is rounded."""
    s = value["x"] + value["in_bias"] if "in_bias" in value else value["x"]
    if problem.gate == "before":
        s = _gated(problem, s, value)
    return s + value["residual"] if problem.residual == "before" else s


def _summed(problem: Problem, value: dict[str, Any]) -> Any:
    return _rounded(_prologue(problem, value), problem.rounds_sum, problem.dtypes.get("residual", problem.dtypes.get(
        "sum", problem.dtypes["x"])))


def _epilogue(problem: Problem, normalized: Any, value: dict[str, Any]) -> Any:
    z, weight, bias = normalized, value.get("weight"), value.get("bias")
    if weight is not None:
        z = z * (weight + 1 if problem.weight_offset else weight)
    z = z if bias is None else z + bias
    if "mod_scale" in value:
        scale = _with_table("mod_scale", value)
        z = z * (scale if problem.plain_modulation else scale + 1)
    if "mod_shift" in value:
        z = z + _with_table("mod_shift", value)
    z = problem.activation(z) * jnp.asarray(problem.scale, z.dtype)
    if problem.gate == "after":
        z = _gated(problem, z, value)
    return z + value["residual"] if problem.residual == "after" else z


def _narrowed(problem: Problem, y: Any, value: dict[str, Any]) -> dict[str, Any]:
    """y, to the nearest and within the numbers of its type, the scales of its rows or blocks, and what is in front of that. NaN
    is 0 in whole numbers, and 6 in e2m1."""
    dtype = problem.dtypes["y"]
    largest = _LARGEST[dtype]
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
    codes = jnp.where(jnp.isnan(y), 7, codes + 8 * jnp.signbit(y)).astype(_PAIRS)
    return codes[:, ::2] | codes[:, 1::2] << 4


def _in_blocks(problem: Problem, y: Any, value: dict[str, Any]) -> tuple[Any, Any]:
    """y in front of its rounding, and the scales of its blocks."""
    largest = _LARGEST[problem.dtypes["y"]]
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


def _moved(function: Callable[[dict[str, Any]], Any], value: dict[str, Any], moving: dict[str, Any], names: list[str]) -> Any:
    """The tangent of function(value), of which those of these names move."""
    def of_given(*given: Any) -> Any:
        return function({**value, **dict(zip(names, given))})

    return jax.jvp(of_given, tuple(value[name] for name in names), tuple(moving[name] for name in names))[1]


def _tangents(problem: Problem, primals: Sequence[Any], mean: Any, rstd: Any, tangents: Sequence[Any]) -> dict[str, Any]:
    """Those of y, sum, mean and rstd. Linear in the tangents, of which each may be None, for 0. A rounding counts as the
    identity."""
    if problem.channels_first:
        mean, rstd = (part if part is None else part.reshape(-1) for part in (mean, rstd))
        rows = [_rows_of(problem, arrays) for arrays in (primals, tangents)]
        return _samples_of(_tangents(_by_rows(problem), rows[0], mean, rstd, rows[1]), primals[0])
    value, moving = [_widened(problem, arrays, primals[0].shape[0]) for arrays in (primals, tangents)]
    s = _summed(problem, value)
    centred = s if problem.is_rms else s - mean[:, None]
    exact = centred * rstd[:, None]
    dmean = drstd = jnp.zeros_like(rstd)
    ds = dnormalized = jnp.zeros_like(s)
    early = [name for name in _early(problem) if name in moving]
    if early:
        ds = _moved(functools.partial(_prologue, problem), value, moving, early)
        along = jnp.mean(ds * exact, axis=-1)
        drstd = -rstd * rstd * along
        dmean = dmean if problem.is_rms else jnp.mean(ds, axis=-1)
        dnormalized = rstd[:, None] * (ds - dmean[:, None] - exact * along[:, None])
    late = [name for name in moving if name not in _early(problem)]
    normalized = _rounded(exact, problem.rounds_norm, problem.dtypes["x"])
    dy = _moved(lambda given: _epilogue(problem, given["normalized"], given), {**value, "normalized": normalized},
                {**moving, "normalized": dnormalized}, ["normalized", *late])
    moved = {"y": dy, "sum": ds, "mean": dmean, "rstd": drstd, "amax": jnp.zeros((), problem.wide)}
    return {name: moved[name].astype(problem.dtypes[name]) for name in problem.outputs}
