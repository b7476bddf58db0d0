# SPDX-License-Identifier: Apache-2.0
"""normjit::norm_backward: all gradients of a norm in one kernel, as the backward of normjit::norm asks for them."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from normjit._gradients import UNAVAILABLE
from normjit.torch import _operator
from normjit.torch._operator import DEVICE, library
from normjit.torch._problem import gradient_problem_of

# spec: a backward one. x is what was normalized. Returns dx of x's shape and, as the spec has them, dweight and dbias of
# the shape of a row.
library.define("norm_backward(str spec, Tensor x, Tensor? weight, Tensor dy, Tensor? dsum, bool batch_invariant) -> Tensor[]",
               tags=(torch.Tag.pt2_compliant_tag,))
_operators: Any = torch.ops.normjit
apply = _operators.norm_backward.default
_launch: Any = _operators._launch_gradients.default._op

Maybe = Optional[Tensor]


@functools.lru_cache(maxsize=None)
def _number(spec: str, batch_invariant: bool) -> int:
    return _operator.add(gradient_problem_of(spec), batch_invariant)


def _norm_backward(spec: str, x: Tensor, weight: Maybe, dy: Tensor, dsum: Maybe, batch_invariant: bool) -> list[Tensor]:
    """The formula serves where the kernel of the norm has a cache or the generic kernel, and this one has none."""
    problem = gradient_problem_of(spec)
    try:
        made: Sequence[Maybe] = _launch(_number(spec, batch_invariant), x, weight, dy, dsum, None, None, None)
        return [part for part in made if part is not None]
    except RuntimeError as error:
        failed = error
    problem.check((x, weight, dy, dsum))  # says what does not fit, if that is why
    if _operator.status_of(failed) not in UNAVAILABLE:
        raise failed
    return formula(spec, x, weight, dy, dsum)


def formula(spec: str, x: Tensor, weight: Maybe, dy: Tensor, dsum: Maybe) -> list[Tensor]:
    """The same in PyTorch's operators, differentiable."""
    problem = gradient_problem_of(spec)
    dims = problem.check((x, weight, dy, dsum))
    wide, shape, over = problem.compute, x.shape[-dims:], tuple(range(-dims, 0))
    s, gradient = x.to(wide), dy.to(wide)
    if problem.layer:
        s = s - s.mean(over, keepdim=True)
    rstd = torch.rsqrt(s.square().mean(over, keepdim=True) + problem.epsilon)
    n, g = s * rstd, gradient
    if weight is not None:
        factors = weight.to(wide).reshape(shape)
        g = g * (1 + factors if problem.weight_offset else factors)
    dx = g - n * (g * n).mean(over, keepdim=True)
    if problem.layer:
        dx = dx - g.mean(over, keepdim=True)
    dx = dx * rstd
    if dsum is not None:
        dx = dx + dsum.to(wide)
    rows = x.shape[:-dims].numel()
    sums = {"dweight": lambda: gradient * n, "dbias": lambda: gradient}
    return [dx.to(problem.input), *(sums[name]().reshape(rows, *shape).sum(0).to(problem.gradient)
                                    for name in problem.outputs if name in sums)]


def _by_pytorch(spec: str, x: Tensor, weight: Maybe, dy: Tensor, dsum: Maybe, batch_invariant: bool) -> list[Tensor]:
    with torch._C._AutoDispatchBelowAutograd():  # a kernel, which has no gradient of its own
        return [part.contiguous() for part in formula(spec, x, weight, dy, dsum)]


def _fake(spec: str, x: Tensor, weight: Maybe, dy: Tensor, dsum: Maybe, batch_invariant: bool) -> list[Tensor]:
    problem = gradient_problem_of(spec)
    dims = problem.check((x, weight, dy, dsum))
    return [problem.empty(name, x, dims) for name in problem.outputs]


library.impl("norm_backward", _norm_backward, DEVICE)
library.impl("norm_backward", _by_pytorch, "CompositeExplicitAutograd")
torch.library.register_fake("normjit::norm_backward", _fake, lib=library)
