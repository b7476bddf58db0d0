# SPDX-License-Identifier: Apache-2.0
"""The operator as JAX sees it: the kernel, its batching and its derivatives, most of them by _gradients.

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
from normjit._gradients import have_kernel, is_apart, read_bias, read_shift
from normjit.jax import _ffi, _gradients
from normjit.jax._formula import LARGEST, PAIRS, SAMPLES, formula, tangents

INPUTS = ("x", "in_bias", "gate", "gate_table", "residual", "weight", "bias", "mod_scale", "mod_scale_table", "mod_shift",
          "mod_shift_table", "tensor_scale", "upper_bound", "global_scale")
OUTPUTS = ("y", "sum", "mean", "rstd", "also", "row_scale", "block_scale", "amax")
NUMBERS = frozenset(["tensor_scale", "upper_bound", "global_scale"])
ACTIVATIONS: dict[Optional[str], Callable[[Any], Any]] = {
    None: lambda z: z,
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
}
_DTYPES = {_library.DTYPES[name]: dtype for name, dtype in (
    ("f16", "float16"), ("bf16", "bfloat16"), ("f32", "float32"), ("f64", "float64"),
    ("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2"), ("s8", "int8"), ("e2m1", PAIRS))}
_SCALE_DTYPES = {"f32": "float32", "p2": "float32", "e8m0": "float8_e8m0fnu", "e4m3": "float8_e4m3fn"}
_ACTIVATIONS = {_library.ACTIVATIONS[name]: function for name, function in ACTIVATIONS.items()}
GATE_FUNCTIONS: dict[Optional[str], Callable[[Any], Any]] = {
    None: lambda z: z, "silu": jax.nn.silu, "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}
_GATE_FUNCTIONS = {_library.GATE_FUNCTIONS[name]: function for name, function in GATE_FUNCTIONS.items()}


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
    has_gradient_kernel: bool = dataclasses.field(compare=False)  # if the shapes are right; see _gradients.core_of
    is_apart: bool = dataclasses.field(compare=False)  # the sum from what is in front of it; see normjit._gradients
    gradients_read_bias: bool = dataclasses.field(compare=False)
    gradients_read_shift: bool = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        return self.text

    def with_statistics(self) -> Problem:
        return self if "rstd" in self.outputs else problem_of(self.text + "/stats")

    @property
    def has_pairs(self) -> bool:
        """Whether an element of y has two columns."""
        return self.dtypes["y"] == PAIRS

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
        has_gradient_kernel=have_kernel(spec), is_apart=is_apart(spec), gradients_read_bias=read_bias(spec),
        gradients_read_shift=read_shift(spec))


@functools.lru_cache(maxsize=1024)
def normalize(problem: Problem) -> Callable[..., Any]:
    """The function of problem.inputs that gives a tuple of problem.outputs."""

    @jax.custom_jvp
    def operator(*arrays: Any) -> Any:
        return _kernel(problem)(*arrays)

    def derivative(primals: Sequence[Any], changes: Sequence[Any]) -> Any:
        if problem.dtypes["y"] in LARGEST:
            raise TypeError("results of 8 and 4 bits have no derivatives; {} writes {}".format(problem.text, problem.dtypes["y"]))
        changes = [None if isinstance(dt, jax.custom_derivatives.SymbolicZero) else dt for dt in changes]
        given = dict(zip(problem.inputs, primals))
        core = _gradients.core_of(problem, {name: array.shape for name, array in given.items()})
        full = problem.with_statistics() if core is None else problem
        results = dict(zip(full.outputs, normalize(full)(*primals)))
        if core is not None:
            moving = {name: dt for name, dt in zip(problem.inputs, changes) if dt is not None}
            moved = _gradients.tangents(core, given, results, moving)
        else:
            # Between forward and backward pass only the arguments are kept, not what is computed from them.
            linear = jax.checkpoint(functools.partial(tangents, full), prevent_cse=False)
            moved = linear(primals, results.get("mean"), results["rstd"], changes)
        return (tuple(results[name] for name in problem.outputs),
                tuple(moved[name] if name in moved else jnp.zeros_like(results[name]) for name in problem.outputs))

    operator.defjvp(derivative, symbolic_zeros=True)
    return operator


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
