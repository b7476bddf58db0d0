# SPDX-License-Identifier: Apache-2.0
"""The derivatives of norms of which normjit._gradients.have_kernel: all gradients come from one kernel.

The kernel is that of a core: of what was normalized, or of x and the gate in front of the norm, and of all that comes behind.
With n, what was normalized, centred and divided by its deviation, y is
scale * activation((n * (weight + offset) + bias) * (1 + mod_scale) + mod_shift) * function(gate), with what there is of that. The
tangents of y and of the written sum are a primitive of JAX, linear in the tangents of the core's operands. Forward mode evaluates
its formula; reverse mode transposes it, and the transpose is the kernel. jax.custom_vjp would have reverse mode alone. Derivatives
of the primitive and of its transpose, which are those of second and higher order, are the formula's. From the norm's operands to
the core's, as from x and residual to their sum, JAX finds the way.

As in _operator, all here is of rows.
"""
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from normjit import _gradients, _library
from normjit.jax import _ffi
from normjit.jax._formula import (
    SHORT, early, epilogue, gated, moved, prologue, standardized, tangents_of_standardized, widened, with_table)

if TYPE_CHECKING:
    from normjit.jax._operator import Problem

_VECTORS = ("weight", "bias")  # each is the same for all rows
_FACTORS = ("gate", "mod_scale", "mod_shift")  # whose gradients come with that of x


@dataclasses.dataclass(frozen=True)
class Core:
    """What the kernel knows of a norm."""
    problem: Problem
    gated: bool   # by the kernel, in front of the norm or behind
    of_sum: bool  # the written sum is its x

    @property
    def fixed(self) -> tuple[str, ...]:
        """The operands on which tangents and gradients depend."""
        given, problem = self.problem.inputs, self.problem
        return ("x", *["gate"] * self.gated, *["weight"] * ("weight" in given), *["bias"] * problem.gradients_read_bias,
                *["mod_scale"] * ("mod_scale" in given), *["mod_shift"] * problem.gradients_read_shift)

    @property
    def early(self) -> tuple[str, ...]:
        """The operands from which is made what is normalized."""
        return ("x", "gate") if self.gated and self.problem.gate == "before" else ("x",)

    @property
    def factors(self) -> tuple[str, ...]:
        return tuple(name for name in _FACTORS if name in self.problem.inputs and (name != "gate" or self.gated))

    def dtype_of(self, name: str) -> str:
        """Of an operand."""
        if name == "x" and self.of_sum:
            return self.problem.dtypes["sum"]
        return self.problem.wide if name + "_table" in self.problem.inputs else self.problem.dtypes[name]

    def dtype_of_tangent(self, name: str) -> str:
        return self.problem.wide if (name,) == self.early else self.dtype_of(name)


def core_of(problem: Problem, shapes: dict[str, tuple[int, ...]]) -> Optional[Core]:
    """That of a norm of operands of these shapes. None where its gradients have no kernel."""
    if not problem.has_gradient_kernel:
        return None
    before, has_own = problem.gate == "before", shapes.get("gate", shapes["x"]) == shapes["x"]
    apart = problem.is_apart or (before and not has_own and "sum" in problem.outputs)
    by_kernel = problem.gate is not None and not (before and apart)
    shift = shapes.get("mod_shift", shapes.get("mod_scale"))
    if (by_kernel and not has_own) or shift != shapes.get("mod_scale"):
        return None
    return Core(problem, by_kernel, apart or "residual" in shapes)


# ---- Tangents

def tangents(core: Core, given: dict[str, Any], results: dict[str, Any], moving: dict[str, Any]) -> dict[str, Any]:
    """Those of y and, where what is in front of the norm moves, of the sum; from those of the norm's operands that move."""
    problem, rows = core.problem, given["x"].shape[0]
    operands = {name: _table_added(problem, name, given) for name in core.fixed}
    if core.of_sum:
        operands["x"] = results["sum"]
    own: dict[str, Any] = {}
    first = [name for name in early(problem) if name in moving]
    if core.early != ("x",):
        own = {name: moving[name] for name in first}
    elif first:
        def summed(primals: dict[str, Any], changes: dict[str, Any]) -> Any:
            value, change = widened(problem, primals, rows), widened(problem, changes, rows)
            return moved(functools.partial(prologue, problem), value, change)

        # Between forward and backward pass only the arguments are kept, not what is computed from them.
        own = {"x": jax.checkpoint(summed, prevent_cse=False)({name: given[name] for name in early(problem)},
                                                             {name: moving[name] for name in first})}
    own.update({name: moving[name] for name in _VECTORS if name in moving})
    for name in core.factors:
        if (name in moving or name + "_table" in moving) and name not in own:
            own[name] = _table_added(problem, name, moving, given)
    made = tuple(name for name in ("y", "sum") if name in problem.outputs)
    if not set(core.early) & set(own):
        made = ("y",)
    # Where shard_map has the same weight on all devices, the cast in front of the primitive makes its gradient their sum.
    found = _tangents_p.bind(*_ffi.alike([*operands.values(), *own.values()]), core=core, moving=tuple(own), made=made)
    return dict(zip(made, found))


def _table_added(problem: Problem, name: str, given: dict[str, Any], like: Optional[dict[str, Any]] = None) -> Any:
    """A factor and, in the compute type, its table; with `like`, the tangents of both, of which one may be missing."""
    if name + "_table" not in problem.inputs:
        return given[name]
    wide = {part: given[part].astype(problem.wide) for part in (name, name + "_table") if part in given}
    if like is not None:
        wide.setdefault(name, jnp.zeros(like[name].shape, problem.wide))
    return with_table(name, wide)


def _formula(*arrays: Any, core: Core, moving: tuple[str, ...], made: tuple[str, ...]) -> tuple[Any, ...]:
    """The tangents `made`, from the operands that are fixed, and the tangents of what is moving."""
    problem, rows, names = core.problem, arrays[0].shape[0], core.fixed
    value = widened(problem, dict(zip(names, arrays)), rows)
    change = widened(problem, dict(zip(moving, arrays[len(names):])), rows)

    def summed(some: dict[str, Any]) -> Any:
        return some["x"] if core.early == ("x",) else gated(problem, some["x"], some)

    s = summed(value)
    _, rstd, n = standardized(problem, s)
    ds = dn = jnp.zeros_like(s)
    first = {name: change.pop(name) for name in core.early if name in change}
    if first:
        ds = moved(summed, value, first)
        dn = tangents_of_standardized(problem, ds, rstd, n)[2]
    # What is moving but not fixed is added: its value does not count.
    value = {**{name: jnp.zeros_like(part) for name, part in change.items()}, **value, "n": n}
    dy = moved(lambda some: epilogue(problem, some["n"], some), value, {**change, "n": dn})
    results = {"y": dy, "sum": ds}
    return tuple(results[name].astype(problem.dtypes[name]) for name in made)


def _types(x: Any, *_: Any, core: Core, moving: tuple[str, ...], made: tuple[str, ...]) -> list[Any]:
    return [x.update(dtype=jnp.dtype(core.problem.dtypes[name]), weak_type=False) for name in made]


def _jvp(arrays: Sequence[Any], changes: Sequence[Any], **call: Any) -> Any:
    return _tangents_p.bind(*arrays, **call), _moved(
        functools.partial(_formula, **call), arrays, [None if type(one) is ad.Zero else one for one in changes])


def _moved(function: Callable[..., Any], arrays: Sequence[Any], changes: Sequence[Any]) -> Any:
    """The tangent of function(*arrays); None is one of 0."""
    return moved(lambda given: function(*given.values()), dict(enumerate(arrays)),
                 {place: change for place, change in enumerate(changes) if change is not None})


def _transpose(cotangents: Sequence[Any], *arrays: Any, core: Core, moving: tuple[str, ...], made: tuple[str, ...]) -> list[Any]:
    fixed = arrays[:len(arrays) - len(moving)]
    given = {name: cotangent for name, cotangent in zip(made, cotangents) if type(cotangent) is not ad.Zero}
    found: dict[str, Any] = {"x": given.get("sum")}
    if "y" in given or (given and len(core.early) > 1):  # from the sum to x and its gate is the kernel's way, too
        of_x = bool({"x", *core.factors} & set(moving))
        outputs = ("x",) * of_x + tuple(name for name in _VECTORS if name in moving) + core.factors * of_x
        arriving = {"y": jnp.zeros_like(fixed[0], core.problem.dtypes["y"]), **given}
        found = dict(zip(outputs, _gradients_of(core, outputs, "sum" in given)(*fixed, *arriving.values())))
    return [None] * len(fixed) + [
        None if found.get(name) is None else found[name].astype(core.dtype_of_tangent(name)) for name in moving]


def _batch(arrays: Sequence[Any], axes: Sequence[Optional[int]], **call: Any) -> Any:
    arrays = [array if axis is None else jnp.moveaxis(array, axis, 0) for array, axis in zip(arrays, axes)]
    axes = [None if axis is None else 0 for axis in axes]
    flat = _as_more_rows([*call["core"].fixed, *call["moving"]], arrays, axes)
    results: Sequence[Any]
    if flat is None:
        results = jax.vmap(functools.partial(_formula, **call), axes)(*arrays)
    else:
        results = [result.reshape(arrays[0].shape) for result in _tangents_p.bind(*flat, **call)]
    return results, [0] * len(results)


def _as_more_rows(names: Sequence[str], arrays: Sequence[Any], axes: Sequence[Optional[int]]) -> list[Any] | None:
    """The operands of a batch as those of more rows, of which the first is normalized. None where they are not: a vector has a
    batch, or just the others have one."""
    if axes[0] is None or any(axis == 0 for name, axis in zip(names, axes) if name in _VECTORS):
        return None
    batch = arrays[0].shape[0]
    return [array if name in _VECTORS else jnp.broadcast_to(array, (batch, *array.shape[-2:])).reshape(-1, array.shape[-1])
            for name, array in zip(names, arrays)]


_tangents_p: Any = jax.extend.core.Primitive("normjit_tangents")
_tangents_p.multiple_results = True
_tangents_p.def_impl(_formula)
_tangents_p.def_abstract_eval(_types)
ad.primitive_jvps[_tangents_p] = _jvp
ad.primitive_transposes[_tangents_p] = _transpose
batching.primitive_batchers[_tangents_p] = _batch
mlir.register_lowering(_tangents_p, mlir.lower_fun(_formula, multiple_results=True))


# ---- Gradients

@dataclasses.dataclass(frozen=True)
class GradientProblem:
    """A backward spec, for _ffi."""
    words: bytes  # normjit_spec
    columns: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dtypes: dict[str, str]  # of the outputs
    samples: int = 0        # rows of a modulation

    def shape_of(self, output: str, x: tuple[int, ...]) -> tuple[int, ...]:
        if output in _VECTORS:
            return (self.columns,)
        return (self.samples, self.columns) if output in ("mod_scale", "mod_shift") else x


def _gradient_problem_of(core: Core, outputs: tuple[str, ...], dsum: bool) -> GradientProblem:
    problem = core.problem
    factors = [_library.DTYPES[SHORT[core.dtype_of(name)]] for name in core.factors]
    spec = _library.Spec.from_buffer_copy(_library.parse_spec(_gradients.text_of(
        _library.Spec.from_buffer_copy(problem.words), ("x" in outputs, "weight" in outputs, "bias" in outputs), dsum=dsum,
        of_sum=core.of_sum, gated=core.gated, modulation_type=factors[0] if factors else 0)))
    inputs = tuple(name for name in core.fixed if name != "bias" or _gradients.read_bias(spec))
    return GradientProblem(bytes(spec), problem.columns, inputs, outputs, {name: core.dtype_of(name) for name in outputs})


@functools.lru_cache(maxsize=1024)
def _gradients_of(core: Core, outputs: tuple[str, ...], dsum: bool) -> Callable[..., Any]:
    """The function of the operands that are fixed, and of the cotangents of y and, with dsum, of the sum, that gives the
    cotangents of the operands `outputs`: of x and all factors, or of none of these, and of some of _VECTORS."""
    formula = functools.partial(_transposed, core, outputs, dsum)
    kernel = _kernel(core, outputs, dsum, formula)

    @jax.custom_jvp
    def operator(*arrays: Any) -> Any:
        return kernel(*arrays)

    def derivative(primals: Sequence[Any], changes: Sequence[Any]) -> Any:
        changes = [None if isinstance(dt, jax.custom_derivatives.SymbolicZero) else dt for dt in changes]
        return operator(*primals), _moved(formula, primals, changes)

    operator.defjvp(derivative, symbolic_zeros=True)
    return operator


def _kernel(core: Core, outputs: tuple[str, ...], dsum: bool, formula: Callable[..., Any]) -> Callable[..., Any]:
    """The FFI call. Its batch is more rows, unless a sum over the rows of each is asked for."""
    gradients = _gradient_problem_of(core, outputs, dsum)
    names = (*core.fixed, "y", *["sum"] * dsum)

    @jax.custom_batching.custom_vmap
    def kernel(*arrays: Any) -> Any:
        given, rows = dict(zip(names, arrays)), arrays[0].shape[0]
        samples = given["mod_scale"].shape[0] if "mod_scale" in given else rows
        # Of no rows the kernel writes no sums.
        if rows == 0 or not _ffi.is_available(gradients.words, rows, grouped=samples < rows):
            return formula(*arrays)
        operands = [given[name] for name in names if name not in core.fixed or name in gradients.inputs]
        return tuple(_ffi.call(dataclasses.replace(gradients, samples=samples), operands))

    @kernel.def_vmap
    def batched(batch: int, is_batched: Sequence[bool], *arrays: Any) -> Any:
        axes = [0 if has_batch else None for has_batch in is_batched]
        flat = None if set(_VECTORS) & set(outputs) else _as_more_rows(names, arrays, axes)
        results = (jax.vmap(formula, axes)(*arrays) if flat is None else
                   tuple(result.reshape(batch, -1, result.shape[-1]) for result in kernel(*flat)))
        return results, tuple(True for _ in results)

    return kernel


def _transposed(core: Core, outputs: tuple[str, ...], dsum: bool, *arrays: Any) -> tuple[Any, ...]:
    """What the kernel computes: the transpose of the formula of tangents."""
    given = dict(zip(core.fixed, arrays))
    made = ("y", "sum") if dsum else ("y",)

    def like(name: str) -> Any:
        # A bias and a shift that are not fixed have the shapes of the weight and of the scale.
        array = given[name if name in given else {"bias": "weight", "mod_shift": "mod_scale"}[name]]
        return array.astype(core.dtype_of(name))

    def of_moving(*moving: Any) -> Any:
        return _formula(*arrays[:len(core.fixed)], *moving, core=core, moving=outputs, made=made)

    results: tuple[Any, ...] = jax.linear_transpose(of_moving, *map(like, outputs))(arrays[len(core.fixed):])
    return results
