# SPDX-License-Identifier: Apache-2.0
"""norm: every spec, as the operators normjit::norm and normjit::norm_out."""
from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from normjit import _library
from normjit.torch._formula import formula
from normjit.torch._launch import launch
from normjit.torch._operator import DEVICE, library
from normjit.torch._problem import INPUTS, OUTPUTS, Problem, problem_of, rows_at

# No argument has a default: PyTorch leaves those that are equal to it out of graphs and of what autograd sees.
_INPUTS = ("(str spec, Tensor x, Tensor? in_bias, Tensor? residual, Tensor? weight, Tensor? bias, "
           "bool batch_invariant")
# norm returns the outputs of the spec, in the order of OUTPUTS; norm_out writes them. norm_outputs makes memory for those
# of OUTPUTS that are asked for and that the spec has: an operator that writes its arguments returns no list.
library.define("norm" + _INPUTS + ") -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
library.define("norm_out" + _INPUTS + ", Tensor(a!)? out, Tensor(b!)? sum, Tensor(c!)? mean, Tensor(d!)? rstd) -> ()",
               tags=(torch.Tag.pt2_compliant_tag,))
library.define("norm_outputs(str spec, Tensor x, bool[] asked) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
_operators: Any = torch.ops.normjit
apply, apply_out, make_outputs = (_operators.norm.default, _operators.norm_out.default,
                                  _operators.norm_outputs.default)

Maybe = Optional[Tensor]
_KNOWN = (Tensor, torch.nn.Parameter, type(None))


class NormOutputs(NamedTuple):
    """The outputs of norm(); None for those that the spec does not have."""
    out: Tensor
    sum: Optional[Tensor]
    mean: Optional[Tensor]
    rstd: Optional[Tensor]


def norm(spec: str, x: Tensor, *, in_bias: Maybe = None, residual: Maybe = None, weight: Maybe = None,
         bias: Maybe = None, out: Maybe = None, sum: Maybe = None, mean: Maybe = None, rstd: Maybe = None,
         batch_invariant: bool = False) -> Union[Tensor, NormOutputs]:
    """The norm of a spec text, in one kernel: norm("rmsnorm/cols=4096/bf16/add/sum/w", x, residual=r, weight=w).

    Returns the result, or NormOutputs where the spec has more outputs than that (`/sum`, `/stats`). The last dimensions
    of x that have `cols` elements are a row. residual, and weight and bias with `:rows`, may have any shape that expands
    to x's; other vectors have the shape of a row, or [cols]. Types are those of the spec, whatever autocast says.

    Rows are read where they are as long as all leading dimensions make at most two strides: heads in a projection, a
    residual that is the same for a batch. Other inputs are copied first. An output that is given (out, sum, mean, rstd)
    is written; out may be x itself, and sum may be residual itself. What is given has no gradient.

    batch_invariant: the same plan for any number of rows, so that the bits of a row do not depend on the batch. The
    variable NORMJIT_BATCH_INVARIANT=1 asks for that in all calls.

    Tensors that are not on an NVIDIA GPU, wrappers of tensors, transforms of torch.func and forward-mode derivatives are
    computed by PyTorch's operators. Gradients of any order. Launches on the current stream of x's device. Raises
    RuntimeError for operands that do not fit the spec.
    """
    fields = spec.split("/")
    stats = "stats" in fields
    writes = (True, "sum" in fields, stats and fields[0] == "layernorm", stats)
    given = (out, sum, mean, rstd)
    inputs = (x, in_bias, residual, weight, bias)
    if out is None and sum is None and mean is None and rstd is None:
        if not torch.compiler.is_compiling() and _is_for_pytorch(inputs):
            made = formula(problem_of(spec), *inputs)
        else:
            made = apply(spec, *inputs, batch_invariant)
        results = _in_places(given, writes, made)
    else:
        if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in inputs + given):
            raise RuntimeError("normjit::norm: outputs that are given have no gradient, but an argument requires one")
        results = _in_places(given, writes, make_outputs(spec, x, [part is None for part in given]))
        apply_out(spec, *inputs, batch_invariant, *results)
    if not writes[1] and not stats:
        y: Tensor = results[0]
        return y
    return NormOutputs(*results)


def _in_places(given: tuple[Maybe, ...], writes: tuple[bool, ...], made: list[Tensor]) -> list[Any]:
    """All outputs: what is given, else what was made, else None."""
    rest = iter(made)
    return [part if part is not None else next(rest) if written else None for part, written in zip(given, writes)]


def _is_for_pytorch(inputs: tuple[Maybe, ...]) -> bool:
    for part in inputs:
        if type(part) not in _KNOWN and is_traceable_wrapper_subclass(part):
            return True
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


# ---- The kernel

_POINTER = struct.Struct("P")
_MEMBERS = ("x", *INPUTS, "y", "sum", "mean", "rstd")  # of normjit_tensors: x, INPUTS, OUTPUTS
_MOST_PLANS = 4096


class _Plan:
    """A launch but for its pointers, for tensors of certain layouts. All checks are made here, and none per call."""

    def __init__(self, spec: str, tensors: Sequence[Maybe], makes_outputs: bool) -> None:
        x: Any = tensors[0]
        self.problem = problem = problem_of(spec)
        dims = problem.check(x, dict(zip(INPUTS, tensors[1:5])))
        # Shapes and types of the outputs that a call makes, and where their pointers stand.
        self.made = [(problem.shape_of(name, x, dims), problem.dtype_of(name)) for name in problem.outputs
                     if makes_outputs]
        if not makes_outputs:
            _check_outputs(problem, x, dims, _outputs(*tensors[5:]))
        self.is_empty = x.numel() == 0
        arguments = _library.Tensors(rows=x.numel() // problem.columns)
        self.given: list[tuple[int, int]] = []  # offsets of pointers in the arguments, and numbers of tensors
        self.copied: list[tuple[int, int, Optional[torch.Size]]] = []  # likewise, and the shape to expand to
        for at, tensor in enumerate(tensors):
            if tensor is not None:
                self._place(arguments, at, tensor, x.shape, dims)
        self.places = [_offset("y" if name == "out" else name) for name in problem.outputs] if makes_outputs else []
        self.arguments = bytes(arguments)
        self.workspace: dict[bool, int] = {}  # bytes, with batch invariance or without

    def _place(self, arguments: Any, at: int, tensor: Tensor, shape: torch.Size, dims: int) -> None:
        problem, member = self.problem, _MEMBERS[at]
        name = "out" if member == "y" else member
        if name in ("in_bias", "mean", "rstd"):
            if tensor.is_contiguous():
                self.given.append((_offset(member), at))
            elif name == "in_bias":
                self.copied.append((_offset(member), at, None))
            else:
                raise problem.fail("{} is not contiguous".format(name))
            return
        expanded = problem.has_rows(name) and tensor.shape != shape
        found = rows_at(tensor.expand(shape) if expanded else tensor, min(dims, tensor.dim()))
        if found is None and name in OUTPUTS:
            raise problem.fail("the rows of {}, with strides {}, cannot be addressed".format(
                name, list(tensor.stride())))
        if found is None:
            self.copied.append((_offset(member), at, shape if expanded else None))
            return
        self.given.append((_offset(member), at))
        if problem.has_rows(name) or name in OUTPUTS:  # of others, and of copies, the rows are contiguous
            setattr(arguments, member, _library.Rows(None, *found))

    def run(self, tensors: Sequence[Maybe], batch_invariant: bool) -> list[Tensor]:
        """The outputs that it makes."""
        x: Any = tensors[0]
        device = x.device
        made = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.made]
        if self.is_empty:
            return made
        arguments, put = _library.Tensors.from_buffer_copy(self.arguments), _POINTER.pack_into
        for offset, at in self.given:
            tensor: Any = tensors[at]
            put(arguments, offset, tensor.data_ptr())
        for offset, tensor in zip(self.places, made):
            put(arguments, offset, tensor.data_ptr())
        keep = []
        for offset, at, shape in self.copied:
            tensor = tensors[at]
            keep.append((tensor if shape is None else tensor.expand(shape)).contiguous())
            put(arguments, offset, keep[-1].data_ptr())
        needed = self.workspace.get(batch_invariant)
        self.workspace[batch_invariant] = launch(self.problem.spec, arguments, device, batch_invariant, needed)
        return made


def _offset(member: str) -> int:
    """Of a pointer in normjit_tensors."""
    offset: int = getattr(_library.Tensors, member).offset
    return offset


_plans: dict[Any, _Plan] = {}


def _run(spec: str, tensors: Sequence[Maybe], batch_invariant: bool, makes_outputs: bool) -> list[Tensor]:
    key = (spec, makes_outputs, *[None if part is None else (part.shape, part.stride(), part.dtype, part.device)
                                  for part in tensors])
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        plan = _plans[key] = _Plan(spec, tensors, makes_outputs)
    return plan.run(tensors, batch_invariant)


def _inputs(in_bias: Maybe, residual: Maybe, weight: Maybe, bias: Maybe) -> dict[str, Maybe]:
    return dict(zip(INPUTS, (in_bias, residual, weight, bias)))


def _outputs(out: Maybe, sum: Maybe, mean: Maybe, rstd: Maybe) -> dict[str, Maybe]:
    return dict(zip(OUTPUTS, (out, sum, mean, rstd)))


def _check_outputs(problem: Problem, x: Tensor, dims: int, outputs: dict[str, Maybe]) -> None:
    """Whether these are the outputs of the spec. Raises RuntimeError."""
    for name, tensor in outputs.items():
        if tensor is None and name in problem.outputs:
            raise problem.fail("the spec writes {}".format(name))
        if tensor is not None:
            problem.check_output(name, tensor, x, dims)


def _norm_outputs(spec: str, x: Tensor, asked: list[bool]) -> list[Tensor]:
    problem = problem_of(spec)
    dims = problem.row_dims(x)
    return [problem.empty(name, x, dims) for name, wanted in zip(OUTPUTS, asked) if wanted and name in problem.outputs]


def _norm(spec: str, x: Tensor, in_bias: Maybe, residual: Maybe, weight: Maybe, bias: Maybe,
          batch_invariant: bool) -> list[Tensor]:
    return _run(spec, (x, in_bias, residual, weight, bias), batch_invariant, True)


def _norm_out(spec: str, x: Tensor, in_bias: Maybe, residual: Maybe, weight: Maybe, bias: Maybe, batch_invariant: bool,
              *outputs: Maybe) -> None:
    _run(spec, (x, in_bias, residual, weight, bias, *outputs), batch_invariant, False)


# ---- On other devices

def _by_pytorch(spec: str, x: Tensor, in_bias: Maybe, residual: Maybe, weight: Maybe, bias: Maybe,
                batch_invariant: bool) -> list[Tensor]:
    with torch._C._AutoDispatchBelowAutograd():  # a kernel, which has no gradient of its own
        return [part.contiguous() for part in formula(problem_of(spec), x, in_bias, residual, weight, bias)]


def _by_pytorch_out(spec: str, x: Tensor, in_bias: Maybe, residual: Maybe, weight: Maybe, bias: Maybe,
                    batch_invariant: bool, *outputs: Maybe) -> None:
    problem, places = problem_of(spec), _outputs(*outputs)
    _check_outputs(problem, x, problem.row_dims(x), places)
    found = _by_pytorch(spec, x, in_bias, residual, weight, bias, batch_invariant)
    for name, tensor in zip(problem.outputs, found):
        place: Any = places[name]
        place.copy_(tensor)


for _name, _kernel, _other in (("norm", _norm, _by_pytorch), ("norm_out", _norm_out, _by_pytorch_out)):
    library.impl(_name, _kernel, DEVICE)
    library.impl(_name, _other, "CompositeExplicitAutograd")
library.impl("norm_outputs", _norm_outputs, "CompositeExplicitAutograd")


# ---- Fake tensors

def _fake(spec: str, x: Tensor, in_bias: Maybe, residual: Maybe, weight: Maybe, bias: Maybe,
          batch_invariant: bool) -> list[Tensor]:
    problem_of(spec).check(x, _inputs(in_bias, residual, weight, bias))
    return _norm_outputs(spec, x, [True] * len(OUTPUTS))


def _fake_out(spec: str, x: Tensor, in_bias: Maybe, residual: Maybe, weight: Maybe, bias: Maybe,
              batch_invariant: bool, *outputs: Maybe) -> None:
    problem = problem_of(spec)
    dims = problem.check(x, _inputs(in_bias, residual, weight, bias))
    _check_outputs(problem, x, dims, _outputs(*outputs))


for _name, _function in (("norm", _fake), ("norm_out", _fake_out), ("norm_outputs", _norm_outputs)):
    torch.library.register_fake("normjit::" + _name, _function, lib=library)


# ---- Gradients: those of the formula, which is computed again

def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.spec = inputs[0]
    ctx.save_for_backward(*inputs[1:6])


def _backward(ctx: Any, grads: list[Maybe]) -> tuple[Any, ...]:
    asked = ctx.needs_input_grad[1:6]
    again = torch.is_grad_enabled()  # for gradients of gradients
    with torch.enable_grad():
        inputs = [_leaf(tensor, wanted, again) for tensor, wanted in zip(ctx.saved_tensors, asked)]
        outputs = formula(problem_of(ctx.spec), *inputs)
        pairs = [(y, grad) for y, grad in zip(outputs, grads) if grad is not None]
        found = iter(torch.autograd.grad([y for y, _ in pairs], [t for t, wanted in zip(inputs, asked) if wanted],
                                         [grad for _, grad in pairs], create_graph=again, allow_unused=True))
    return (None, *(next(found) if wanted else None for wanted in asked), None)


def _leaf(tensor: Any, wanted: bool, again: bool) -> Any:
    """What a gradient is asked of: for gradients of gradients with the history of the tensor itself."""
    if tensor is None or not wanted:
        return tensor
    return tensor.view_as(tensor) if again else tensor.detach().requires_grad_()


torch.library.register_autograd("normjit::norm", _backward, setup_context=_setup_context, lib=library)
