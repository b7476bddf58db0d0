# SPDX-License-Identifier: Apache-2.0
"""The derivatives of plain norms, those of _gradients.have_kernel: all gradients come from one kernel.

With n, what was normalized, centred and divided by its deviation, y is scale * activation(n * (weight + offset) + bias). The
tangents of y and of the written sum are a primitive of JAX, linear in the tangents of the operands. Forward mode evaluates its
formula; reverse mode transposes it, and the transpose is the kernel. jax.custom_vjp would have reverse mode alone. Derivatives of
the primitive and of its transpose, which are those of second and higher order, are the formula's.

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

if TYPE_CHECKING:
    from normjit.jax._operator import Problem

_VECTORS = ("weight", "bias")  # each is the same for all rows


def apply_to_plain(problem: Problem, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Whether the gradients of a norm of operands of these shapes are here."""
    return problem.has_gradient_kernel and shapes.get("residual", shapes["x"]) == shapes["x"]


# ---- Tangents

def tangents(problem: Problem, normalized: Any, vectors: dict[str, Any], moving: dict[str, Any]) -> dict[str, Any]:
    """Those of y and, where x or the residual move, of the sum; from those of the operands that move. normalized: x, or the sum
    that was written; vectors: at least those of the norm that _fixed names."""
    made = tuple(name for name in ("y", "sum") if name in problem.outputs)
    if not {"x", "residual"} & set(moving):
        made = ("y",)
    fixed = [normalized, *[vectors[name] for name in _fixed(problem)]]
    # Where shard_map has the same weight on all devices, the cast in front of the primitive makes its gradient their sum.
    results = _tangents_p.bind(*_ffi.alike([*fixed, *moving.values()]), problem=problem, moving=tuple(moving), made=made)
    return dict(zip(made, results))


def _fixed(problem: Problem) -> tuple[str, ...]:
    """The vectors on which tangents and gradients depend."""
    return ("weight",) * ("weight" in problem.inputs) + ("bias",) * problem.gradients_read_bias


def _formula(*arrays: Any, problem: Problem, moving: tuple[str, ...], made: tuple[str, ...]) -> tuple[Any, ...]:
    """The tangents `made`, from what was normalized, the vectors that are _fixed, and the tangents of what is moving."""
    wide = [array.astype(problem.wide) for array in arrays]
    normalized, names = wide[0], _fixed(problem)
    vectors, tangent = dict(zip(names, wide[1:])), dict(zip(moving, wide[1 + len(names):]))
    weight = vectors["weight"] + problem.weight_offset if "weight" in vectors else 1
    if not problem.is_rms:
        normalized = normalized - jnp.mean(normalized, axis=-1, keepdims=True)
    rstd = jax.lax.rsqrt(jnp.mean(normalized * normalized, axis=-1, keepdims=True) + problem.epsilon)
    n = normalized * rstd
    ds = sum(tangent[name] for name in ("x", "residual") if name in tangent)
    dy = jnp.zeros_like(n)
    if {"x", "residual"} & set(moving):
        dn = ds - n * jnp.mean(ds * n, axis=-1, keepdims=True)
        if not problem.is_rms:
            dn = dn - jnp.mean(ds, axis=-1, keepdims=True)
        dy = rstd * dn * weight
    if "weight" in tangent:
        dy = dy + n * tangent["weight"]
    if "bias" in tangent:
        dy = dy + tangent["bias"]
    argument = n * weight + vectors.get("bias", 0)
    dy = jax.jvp(lambda z: problem.activation(z) * jnp.asarray(problem.scale, z.dtype), (argument,), (dy,))[1]
    moved = {"y": dy, "sum": ds}
    return tuple(moved[name].astype(problem.dtypes[name]) for name in made)


def _types(normalized: Any, *_: Any, problem: Problem, moving: tuple[str, ...], made: tuple[str, ...]) -> list[Any]:
    return [normalized.update(dtype=jnp.dtype(problem.dtypes[name]), weak_type=False) for name in made]


def _jvp(arrays: Sequence[Any], moved: Sequence[Any], **call: Any) -> Any:
    return _tangents_p.bind(*arrays, **call), _moved(
        functools.partial(_formula, **call), arrays, [None if type(one) is ad.Zero else one for one in moved])


def _moved(function: Callable[..., Any], arrays: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The tangent of function(*arrays); None is one of 0."""
    places = [place for place, tangent in enumerate(tangents) if tangent is not None]

    def of_moving(*some: Any) -> Any:
        given = dict(zip(places, some))
        return function(*(given.get(place, array) for place, array in enumerate(arrays)))

    return jax.jvp(of_moving, [arrays[place] for place in places], [tangents[place] for place in places])[1]


def _transpose(cotangents: Sequence[Any], *arrays: Any, problem: Problem, moving: tuple[str, ...],
               made: tuple[str, ...]) -> list[Any]:
    fixed = arrays[:len(arrays) - len(moving)]
    given = {name: cotangent for name, cotangent in zip(made, cotangents) if type(cotangent) is not ad.Zero}
    found: dict[str, Any] = {}
    if "y" in given:
        names = tuple(name for name in _VECTORS if name in moving)
        of_x = bool({"x", "residual"} & set(moving))
        found = dict(zip(("",) * of_x + names, _gradients_of(problem, of_x, names, "sum" in given)(*fixed, *given.values())))
        dx = found.pop("", None)
    else:
        dx = given.get("sum")
    if dx is not None:
        found.update({name: dx.astype(problem.dtypes[name]) for name in ("x", "residual") if name in moving})
    return [None] * len(fixed) + [found.get(name) for name in moving]


def _batch(arrays: Sequence[Any], axes: Sequence[Optional[int]], **call: Any) -> Any:
    problem, moving = call["problem"], call["moving"]
    arrays = [array if axis is None else jnp.moveaxis(array, axis, 0) for array, axis in zip(arrays, axes)]
    axes = [None if axis is None else 0 for axis in axes]
    names = ["x", *_fixed(problem), *moving]
    flat = _as_more_rows(names, arrays, axes)
    results: Sequence[Any]
    if flat is None:
        results = jax.vmap(functools.partial(_formula, **call), axes)(*arrays)
    else:
        results = [result.reshape(arrays[0].shape) for result in _tangents_p.bind(*flat, **call)]
    return results, [0] * len(results)


def _as_more_rows(names: Sequence[str], arrays: Sequence[Any], axes: Sequence[Optional[int]]) -> list[Any] | None:
    """The operands of a batch as those of more rows, of which the first is normalized. None where they are not: a vector has a
    batch, or just the tangents have one."""
    if axes[0] is None or any(axis == 0 for name, axis in zip(names, axes) if name in _VECTORS):
        return None
    shape = arrays[0].shape
    return [array if name in _VECTORS else jnp.broadcast_to(array, shape).reshape(-1, shape[-1])
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
    outputs: tuple[str, ...]
    dtypes: dict[str, str]

    def shape_of(self, output: str, x: tuple[int, ...]) -> tuple[int, ...]:
        return x if output == "dx" else (self.columns,)


def _gradient_problem_of(problem: Problem, outputs: tuple[str, ...], dsum: bool) -> GradientProblem:
    norm = _library.Spec.from_buffer_copy(problem.words)
    spec = _library.parse_spec(_gradients.text_of(norm, *(name in outputs for name in ("dx", "dweight", "dbias")), dsum))
    vector = problem.dtypes.get("weight", "")
    return GradientProblem(bytes(spec), problem.columns, outputs,
                           {"dx": problem.dtypes[_normalized(problem)], "dweight": vector, "dbias": vector})


def _normalized(problem: Problem) -> str:
    """Whose dtype is that of what was normalized."""
    return "residual" if "residual" in problem.inputs else "x"


@functools.lru_cache(maxsize=1024)
def _gradients_of(problem: Problem, of_x: bool, names: tuple[str, ...], dsum: bool) -> Callable[..., Any]:
    """The function of what was normalized, of the vectors that are _fixed, and of the cotangents of y and, with dsum, of the
    sum, that gives the cotangents, with of_x, of what was normalized and of `names`, which are among _VECTORS."""
    formula = functools.partial(_transposed, problem, of_x, names, dsum)
    kernel = _kernel(problem, of_x, names, dsum, formula)

    @jax.custom_jvp
    def operator(*arrays: Any) -> Any:
        return kernel(*arrays)

    def derivative(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        tangents = [None if isinstance(dt, jax.custom_derivatives.SymbolicZero) else dt for dt in tangents]
        return operator(*primals), _moved(formula, primals, tangents)

    operator.defjvp(derivative, symbolic_zeros=True)
    return operator


def _kernel(problem: Problem, of_x: bool, names: tuple[str, ...], dsum: bool,
            formula: Callable[..., Any]) -> Callable[..., Any]:
    """The FFI call. Its batch is more rows, unless a sum over the rows of each is asked for."""
    gradients = _gradient_problem_of(problem, ("dx",) * of_x + tuple("d" + name for name in names), dsum)

    @jax.custom_batching.custom_vmap
    def kernel(*arrays: Any) -> Any:
        rows = arrays[0].shape[0]
        if rows == 0 or not _ffi.is_available(gradients.words, rows):  # of no rows the kernel writes no sums
            return formula(*arrays)
        return tuple(_ffi.call(gradients, arrays))

    @kernel.def_vmap
    def batched(batch: int, is_batched: Sequence[bool], *arrays: Any) -> Any:
        axes = [0 if has_batch else None for has_batch in is_batched]
        operands = ["x", *_fixed(problem), "y", "sum"]
        flat = None if names else _as_more_rows(operands, arrays, axes)
        results = (jax.vmap(formula, axes)(*arrays) if flat is None else
                   tuple(result.reshape(arrays[0].shape) for result in kernel(*flat)))
        return results, tuple(True for _ in results)

    return kernel


def _transposed(problem: Problem, of_x: bool, names: tuple[str, ...], dsum: bool, *arrays: Any) -> tuple[Any, ...]:
    """What the kernel computes: the transpose of the formula of tangents."""
    fixed = arrays[:1 + len(_fixed(problem))]
    made = ("y", "sum") if dsum else ("y",)

    def of_moving(*moving: Any) -> Any:
        return _formula(*fixed, *moving, problem=problem, moving=(_normalized(problem),) * of_x + names, made=made)

    # Each result has the type of what it belongs to; a bias has the weight's.
    transposed = jax.linear_transpose(of_moving, *fixed[:of_x], *[fixed[-1] for _ in names])
    results: tuple[Any, ...] = transposed(arrays[len(fixed):])
    return results
