# SPDX-License-Identifier: Apache-2.0
"""norm: every spec. Plain calls are one launch (normjit::_launch); gradients, programs and what looks at operators have
normjit::norm and normjit::norm_out."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from normjit._gradients import NO_GATE, is_apart, read_bias
from normjit.torch import _gradients, _operator
from normjit.torch._formula import formula
from normjit.torch._operator import DEVICE, HERE, INPUT_ARGUMENTS, OUTPUT_ARGUMENTS, library
from normjit.torch._problem import INPUTS, OUTPUTS, Problem, has_gradient_kernel, outline_of, problem_of, with_columns_last

# No argument has a default: PyTorch leaves those that are equal to it out of graphs and of what autograd sees.
_ARGUMENTS = "(str spec, " + INPUT_ARGUMENTS + ", bool batch_invariant"
# norm returns the outputs of the spec, in the order of OUTPUTS; norm_out writes them. norm_outputs makes memory for those
# of OUTPUTS that are asked for and that the spec has: an operator that writes its arguments returns no list.
library.define("norm" + _ARGUMENTS + ") -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
library.define("norm_out" + _ARGUMENTS + ", " + OUTPUT_ARGUMENTS + ") -> ()", tags=(torch.Tag.pt2_compliant_tag,))
library.define("norm_outputs(str spec, Tensor x, bool[] asked) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
_operators: Any = torch.ops.normjit
apply, apply_out, make_outputs = (_operators.norm.default, _operators.norm_out.default,
                                  _operators.norm_outputs.default)
_launch: Any = _operators._launch.default._op  # without the overload's __call__: 0.4 us

Maybe = Optional[Tensor]
_KNOWN = (Tensor, torch.nn.Parameter, type(None))


class NormOutputs(NamedTuple):
    """The outputs of norm(); None for those that the spec does not have."""
    out: Tensor
    sum: Optional[Tensor]
    mean: Optional[Tensor]
    rstd: Optional[Tensor]
    row_scale: Optional[Tensor] = None
    also: Optional[Tensor] = None
    block_scale: Optional[Tensor] = None
    amax: Optional[Tensor] = None


def norm(spec: str, x: Tensor, *, in_bias: Maybe = None, gate: Maybe = None, gate_table: Maybe = None,
         residual: Maybe = None, weight: Maybe = None, bias: Maybe = None, mod_scale: Maybe = None,
         mod_scale_table: Maybe = None, mod_shift: Maybe = None, mod_shift_table: Maybe = None,
         tensor_scale: Maybe = None, upper_bound: Maybe = None, global_scale: Maybe = None, out: Maybe = None,
         sum: Maybe = None, mean: Maybe = None, rstd: Maybe = None, row_scale: Maybe = None, also: Maybe = None,
         block_scale: Maybe = None, amax: Maybe = None,
         batch_invariant: bool = False) -> Union[Tensor, NormOutputs]:
    """The norm of a spec text, in one kernel: norm("rmsnorm/cols=4096/bf16/add/sum/w", x, residual=r, weight=w).

    Returns the result, or NormOutputs where the spec has more outputs than that (`/sum`, `/stats`, `/q=row`, `/q=128`,
    `/also=bf16`, `/amax`). The last dimensions of x that have `cols` elements are a row. residual, gate, mod_scale and
    mod_shift, and weight and bias with `:rows`, may have any shape that expands to x's; other vectors have the shape of a row,
    or [cols]. tensor_scale (`/q=tensor`), upper_bound (`/q=row:ub`) and global_scale (`/q=16:e4m3`) are one f32. Types are
    those of the spec, whatever autocast says.

    Rows are read where they are as long as all leading dimensions make at most two strides: heads in a projection, a
    residual that is the same for a batch, a scale [samples, 1, cols]. Other inputs are copied first. An output that is
    given (out, sum, mean, rstd, row_scale, also, block_scale, amax) is written; out may be x itself, and sum may be residual
    itself. What is given has no gradient.

    block_scale has the shape of x, with the blocks of a row in the place of its columns. Of R rows of K blocks it is with
    the layout `:cols` [K, R4], with `:cols4` [K4 / 4, R4] in int32, each of four scales, and with `:sw` [R128 / 128, K4 / 4,
    512]; R4, K4 and R128 are multiples of 4 and 128, and what is beyond R and K is 0. It is in f32, torch.float8_e8m0fnu or
    torch.float8_e4m3fn. amax is one f32.

    A result in e2m1 is in torch.float4_e2m1fn_x2, of pairs of columns, and has the shape of x, with the cols / 2 pairs of a row
    in the place of its columns.

    With `/cf`, x is [N, C, ...], with at least one dimension of positions, and each position's C channels are a row; mean
    and rstd are [N, 1, ...]. Samples may be any distance apart; other gaps are copied. Where channels are neighbours in
    memory (torch.channels_last, and samples of one position), in out or else in x, results are so, too, and the kernel is
    that of the spec without `/cf`.

    batch_invariant: the same plan for any number of rows, so that the bits of a row do not depend on the batch. The
    variable NORMJIT_BATCH_INVARIANT=1 asks for that in all calls.

    Tensors that are not on an NVIDIA GPU, wrappers of tensors, transforms of torch.func and forward-mode derivatives are
    computed by PyTorch's operators. Gradients of any order, those of most norms by one kernel; none of results of 8 and 4 bits,
    nor of amax. Launches on the current stream of x's device. Raises RuntimeError for operands that do not fit the spec.
    """
    inputs = (x, in_bias, gate, gate_table, residual, weight, bias, mod_scale, mod_scale_table, mod_shift, mod_shift_table,
              tensor_scale, upper_bound, global_scale)
    given = (out, sum, mean, rstd, row_scale, also, block_scale, amax)
    makes_all = (out is None and sum is None and mean is None and rstd is None and row_scale is None and also is None
                 and block_scale is None and amax is None)
    compiling = torch.compiler.is_compiling()
    if compiling:
        spec.isascii()  # where a text is made of symbols, and so is no constant yet, the graph ends here
    writes, columns, channels_last = outline_of(spec)
    results: Any
    if channels_last is not None and _has_channels_last(x if out is None else out, x, columns):
        move = functools.partial(_with_columns_last, dims=x.dim())
        results = norm(channels_last, with_columns_last(x, x.dim()), in_bias=in_bias, gate=gate, gate_table=gate_table,
                       residual=move(residual), weight=weight, bias=bias, mod_scale=mod_scale,
                       mod_scale_table=mod_scale_table, mod_shift=mod_shift, mod_shift_table=mod_shift_table,
                       tensor_scale=tensor_scale, upper_bound=upper_bound, global_scale=global_scale, out=move(out),
                       sum=move(sum), mean=move(mean), rstd=move(rstd), row_scale=row_scale, also=also,
                       block_scale=block_scale, amax=amax, batch_invariant=batch_invariant)
        results = results if isinstance(results, NormOutputs) else (results,)
        results = [made.movedim(-1, 1) if part is None and made is not None else part for part, made in zip(given, results)]
        return NormOutputs(*results) if len(results) > 1 else results[0]
    if not compiling and _is_plain(inputs + given):
        results = _run(spec, inputs + given, batch_invariant)
        if not makes_all:
            results = [part if part is not None else made for part, made in zip(given, results)]
    elif makes_all:
        if not compiling and _is_for_pytorch(inputs):
            results = formula(problem_of(spec), *inputs)
        else:
            results = apply(spec, *inputs, batch_invariant)
        results = _in_places(given, writes, results)
    else:
        if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in inputs + given):
            raise RuntimeError("normjit::norm: outputs that are given have no gradient, but an argument requires one")
        results = _in_places(given, writes, make_outputs(spec, x, [part is None for part in given]))
        apply_out(spec, *inputs, batch_invariant, *results)
    if True not in writes[1:]:
        y: Tensor = results[0]
        return y
    return NormOutputs(*results)


def _has_channels_last(part: Tensor, x: Tensor, columns: int) -> bool:
    return part.dim() == x.dim() > 2 and part.shape[1] == columns > 1 and part.stride(1) == 1


def _with_columns_last(part: Maybe, dims: int) -> Maybe:
    return None if part is None or part.dim() > dims else with_columns_last(part, dims)


def _in_places(given: tuple[Maybe, ...], writes: tuple[bool, ...], made: list[Tensor]) -> list[Maybe]:
    """All outputs: what is given, else what was made, else None."""
    rest = iter(made)
    return [part if part is not None else next(rest) if written else None for part, written in zip(given, writes)]


def _is_plain(tensors: Sequence[Maybe]) -> bool:
    """Whether a call is one launch and nothing else: no gradient, graph, mode, transform or wrapper, and on a GPU."""
    if (forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
            or torch._C._len_torch_dispatch_stack() or torch._C._is_tracing()):
        return False
    gradients = torch.is_grad_enabled()
    for part in tensors:
        if part is not None and (type(part) not in _KNOWN or gradients and part.requires_grad):
            return False
    here: bool = getattr(tensors[0], HERE, False)
    return here


def _is_for_pytorch(inputs: tuple[Maybe, ...]) -> bool:
    for part in inputs:
        if type(part) not in _KNOWN and is_traceable_wrapper_subclass(part):
            return True
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


# ---- The kernel

@functools.lru_cache(maxsize=None)
def _number(spec: str, batch_invariant: bool) -> int:
    return _operator.add(problem_of(spec), batch_invariant)


def _run(spec: str, operands: Sequence[Maybe], batch_invariant: bool) -> Sequence[Maybe]:
    """Those of OUTPUTS that are not given."""
    try:
        made: Sequence[Maybe] = _launch(_number(spec, batch_invariant), *operands)
        return made
    except RuntimeError as error:
        failed = error
    problem = problem_of(spec)
    problem.check_memory(operands, problem.check(operands))  # says what does not fit, if that is why
    raise failed


# The arguments of norm are a spec, inputs, and batch_invariant; those of norm_out also outputs.

def _norm(spec: str, *arguments: Any) -> list[Tensor]:
    *inputs, batch_invariant = arguments
    made = _run(spec, [*inputs, *[None] * len(OUTPUTS)], batch_invariant)
    return [part for part in made if part is not None]


def _norm_out(spec: str, *arguments: Any) -> None:
    inputs, batch_invariant, outputs = _parts(arguments)
    problem_of(spec).require_outputs(outputs)
    _run(spec, [*inputs, *outputs], batch_invariant)


def _parts(arguments: Sequence[Any]) -> tuple[Sequence[Any], bool, Sequence[Any]]:
    """Inputs, batch_invariant and outputs of norm_out."""
    return arguments[:1 + len(INPUTS)], arguments[1 + len(INPUTS)], arguments[2 + len(INPUTS):]


def _norm_outputs(spec: str, x: Tensor, asked: list[bool]) -> list[Tensor]:
    problem = problem_of(spec)
    dims = problem.row_dims(x)
    return [problem.empty(name, x, dims) for name, wanted in zip(OUTPUTS, asked) if wanted and name in problem.outputs]


# ---- On other devices

def _by_pytorch(spec: str, *arguments: Any) -> list[Tensor]:
    with torch._C._AutoDispatchBelowAutograd():  # a kernel, which has no gradient of its own
        return [part.contiguous() for part in formula(problem_of(spec), *arguments[:-1])]


def _by_pytorch_out(spec: str, *arguments: Any) -> None:
    inputs, batch_invariant, outputs = _parts(arguments)
    _fake_out(spec, *arguments)
    for place, made in zip([part for part in outputs if part is not None], _by_pytorch(spec, *inputs, batch_invariant)):
        if made.dtype == torch.float4_e2m1fn_x2:  # which PyTorch 2.9 cannot copy
            place, made = place.view(torch.uint8), made.view(torch.uint8)
        place.copy_(made)


# ---- Fake tensors

def _fake(spec: str, *arguments: Any) -> list[Tensor]:
    problem_of(spec).check(arguments[:-1])
    return _norm_outputs(spec, arguments[0], [True] * len(OUTPUTS))


def _fake_out(spec: str, *arguments: Any) -> None:
    inputs, _, outputs = _parts(arguments)
    problem_of(spec).require_outputs(outputs)
    problem_of(spec).check([*inputs, *outputs])


for _name, _kernel, _other, _function in (("norm", _norm, _by_pytorch, _fake),
                                          ("norm_out", _norm_out, _by_pytorch_out, _fake_out)):
    library.impl(_name, _kernel, DEVICE)
    library.impl(_name, _other, "CompositeExplicitAutograd")
    torch.library.register_fake("normjit::" + _name, _function, lib=library)
library.impl("norm_outputs", _norm_outputs, "CompositeExplicitAutograd")
torch.library.register_fake("normjit::norm_outputs", _norm_outputs, lib=library)


# ---- Gradients: in one kernel where there is one, from what was normalized; else those of the formula, computed again

_PLACES = {name: at for at, name in enumerate(("x", *INPUTS))}


_IN_FRONT = "x", "in_bias", "gate", "gate_table", "residual"
_MODULATION = "mod_scale", "mod_scale_table", "mod_shift", "mod_shift_table"


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.spec = inputs[0]
    problem = problem_of(ctx.spec)
    problem.require_gradients()
    if "amax" in problem.outputs:
        ctx.mark_non_differentiable(output[problem.outputs.index("amax")])
    ctx.set_materialize_grads(False)
    given = dict(zip(("x", *INPUTS), inputs[1:-1]))
    ctx.batch_invariant = inputs[-1]
    x, residual, gate, before = given["x"], given["residual"], given["gate"], problem.gates == "gate"
    expanded = [part is not None and part.shape != x.shape for part in (residual, gate)]
    ctx.apart = is_apart(problem.spec) or "sum" in problem.outputs and (expanded[0] or before and expanded[1])
    ctx.has_kernel = has_gradient_kernel(problem) and (ctx.apart and before or not expanded[1])
    if ctx.has_kernel:
        normalized = output[problem.outputs.index("sum")] if ctx.apart or residual is not None else x
        in_front = [given[name] if ctx.apart and before else None for name in ("x", "in_bias", "gate_table")]  # of the gate
        ctx.save_for_backward(normalized, given["weight"], given["bias"] if read_bias(problem.spec) else None, gate,
                              *[given[name] for name in _MODULATION], *in_front)
        ctx.shapes = {name: None if part is None else part.shape for name, part in given.items()}
    else:
        ctx.save_for_backward(*inputs[1:-1])


def _backward(ctx: Any, grads: list[Maybe]) -> tuple[Any, ...]:
    asked = ctx.needs_input_grad[1:-1]
    found = _backward_by_kernel(ctx, grads, asked) if ctx.has_kernel else _backward_by_formula(ctx, grads, asked)
    return (None, *found, None)


def _backward_by_kernel(ctx: Any, grads: list[Maybe], asked: tuple[bool, ...]) -> list[Maybe]:
    problem = problem_of(ctx.spec)
    of, wanted = dict(zip(problem.outputs, grads)), dict(zip(("x", *INPUTS), asked))
    dy, dsum = of["out"], of.get("sum")
    normalized, weight, bias, gate, *rest = ctx.saved_tensors
    of_scale, of_shift, in_front = rest[:2], rest[2:4], [None, *rest[4:]]
    if in_front[1] is not None:
        in_front[0], gate = gate, None
    found: dict[str, Maybe] = {}
    dims = problem.row_dims(normalized)
    row = normalized.shape[-dims:]
    if dy is None and gate is not None and problem.gates == "gate":  # dsum arrives at the product
        dy = torch.zeros(normalized.shape, dtype=problem.output, device=normalized.device)
    if dy is None:
        dx = dsum
    else:
        of_x = any(wanted[name] for name in (*_IN_FRONT, *_MODULATION))
        dx, dweight, dbias, dgate, *dmodulation = _gradients.gradients(
            normalized, dims, weight, bias, dy, dsum, problem.epsilon, problem.activation, problem.scale,
            layer=problem.layer, of_x=of_x, of_weight=wanted["weight"], of_bias=wanted["bias"], gate=gate,
            mod_scale=_with_table(of_scale, row), mod_shift=_with_table(of_shift, row),
            gate_place=NO_GATE if gate is None else problem.spec.gate,
            gate_function=problem.gate_function, plain_modulation=problem.plain_modulation,
            weight_offset=problem.weight_offset, batch_invariant=ctx.batch_invariant)
        found["gate"] = dgate
        if of_x:
            for names, pair, gradient in zip((_MODULATION[:2], _MODULATION[2:]), (of_scale, of_shift), dmodulation):
                found.update(zip(names, _without_table(pair, gradient, row)))
        if wanted["weight"]:
            found["weight"] = dweight.reshape(weight.shape)
        if wanted["bias"]:
            found["bias"] = dbias.reshape(ctx.shapes["bias"])
    if dx is not None and ctx.apart and any(wanted[name] for name in _IN_FRONT):
        for name, part in _apart(problem, dx, row, *in_front).items():
            if wanted[name]:
                part = part.sum_to_size(ctx.shapes[name] if problem.has_rows(name) else row)
                found[name] = part.reshape(ctx.shapes[name]).to(problem.dtype_of(name))
    elif dx is not None and (wanted["x"] or wanted["residual"]):
        found["x"], found["residual"] = dx.to(problem.input), dx.to(problem.residual)
    return [found.get(name) if asked else None for name, asked in wanted.items()]


def _apart(problem: Problem, ds: Tensor, row: torch.Size, gate: Maybe, x: Maybe, in_bias: Maybe,
           gate_table: Maybe) -> dict[str, Tensor]:
    """From the gradient of (x + in_bias) * function(gate + gate_table) + residual those of its parts, each for each element.
    x and the rest are None without a gate."""
    ds = ds.to(problem.compute)
    if gate is None or x is None:
        return {"x": ds, "in_bias": ds, "residual": ds}
    gate, x = gate.to(problem.compute), x.to(problem.compute)
    factor, slope = _gradients.factor_of(gate if gate_table is None else gate + gate_table.reshape(row), problem.gate_function)
    dgate = ds * (x if in_bias is None else x + in_bias.reshape(row)) * slope
    return {"x": ds * factor, "in_bias": ds * factor, "gate": dgate, "gate_table": dgate, "residual": ds}


def _with_table(pair: Sequence[Maybe], row: torch.Size) -> Maybe:
    """The scale or shift of a modulation, with its table added in the type of the arithmetic."""
    part, table = pair
    if part is None or table is None:
        return part
    wide = torch.promote_types(torch.promote_types(part.dtype, table.dtype), torch.float32)
    return part.to(wide) + table.to(wide).reshape(row)


def _without_table(pair: Sequence[Maybe], gradient: Tensor, row: torch.Size) -> tuple[Maybe, Maybe]:
    """The gradients of both, from that of what _with_table made of them."""
    part, table = pair
    return (None if part is None else gradient.sum_to_size(part.shape).to(part.dtype),
            None if table is None else gradient.sum_to_size(row).reshape(table.shape).to(table.dtype))


def _backward_by_formula(ctx: Any, grads: list[Maybe], asked: tuple[bool, ...]) -> list[Maybe]:
    again = torch.is_grad_enabled()  # for gradients of gradients
    with torch.enable_grad():
        inputs = [_leaf(tensor, wanted, again) for tensor, wanted in zip(ctx.saved_tensors, asked)]
        outputs = formula(problem_of(ctx.spec), *inputs)
        pairs = [(y, grad) for y, grad in zip(outputs, grads) if grad is not None and y.requires_grad]
        found = iter(torch.autograd.grad([y for y, _ in pairs], [t for t, wanted in zip(inputs, asked) if wanted],
                                         [grad for _, grad in pairs], create_graph=again, allow_unused=True))
    return [next(found) if wanted else None for wanted in asked]


def _leaf(tensor: Any, wanted: bool, again: bool) -> Any:
    """What a gradient is asked of: for gradients of gradients with the history of the tensor itself."""
    if tensor is None or not wanted:
        return tensor
    return tensor.view_as(tensor) if again else tensor.detach().requires_grad_()


torch.library.register_autograd("normjit::norm", _backward, setup_context=_setup_context, lib=library)
