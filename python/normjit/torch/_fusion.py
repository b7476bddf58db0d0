# SPDX-License-Identifier: Apache-2.0
"""A pass over Inductor's graphs that fuses what stands around normjit::norm into it: the sum in front of it, and an
activation and a cast behind it."""
from __future__ import annotations

import functools
import operator
import warnings
from typing import Any, Optional

import torch
from torch.nn import functional as F

from normjit import _library
from normjit.torch import _fusion_table
from normjit.torch._check import TEXTS
from normjit.torch._problem import INPUTS, problem_of

_enabled = _told = False
_aten: Any = torch.ops.aten
_prims: Any = torch.ops.prims
_X, _RESIDUAL = 1, 2 + INPUTS.index("residual")  # arguments of normjit::norm, behind the spec


def enable_fusion() -> bool:
    """Under torch.compile, has normjit compute those norms, with the sum with a residual in front of them, that
    _fusion_table.py has as faster so; all others stay Inductor's. For programs that are compiled after this call. False
    where this PyTorch's Inductor takes no such pass: then a warning says so, once, and nothing changes.

    The sum is rounded to its type in front of the norm, as it is without a compiler. What an activation takes is not
    rounded first, as in Inductor's own kernels.
    """
    global _enabled, _told
    if not _enabled:
        try:
            _install()
        except (ImportError, AttributeError) as why:
            if not _told:
                warnings.warn("normjit.torch cannot fuse norms: this PyTorch's Inductor takes no pass ({})".format(why),
                              RuntimeWarning, stacklevel=2)
            _told = True
            return False
        _enabled = True
    return True


def is_wanted(head: str, columns: int, dtype: torch.dtype) -> bool:
    """Whether a norm that is being compiled is for normjit, to be fused."""
    if not _enabled or dtype not in TEXTS:
        return False
    ranges = _fusion_table.FASTER.get((head, TEXTS[dtype]), ())
    return any(first <= columns <= last for first, last in ranges)


def _install() -> None:
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
    before: Any = config.post_grad_custom_pre_pass
    _activations(torch.float32)  # fails here if it is to fail

    class Pass(CustomGraphPass):
        """Behind the pass that was there before, if any."""

        def __call__(self, graph: Any) -> None:
            if before is not None:
                before(graph)
            fuse(graph)

        def uuid(self) -> Any:
            mine = get_hash_for_files((__file__, _fusion_table.__file__))
            if before is None:
                return mine
            theirs = before.uuid() if isinstance(before, CustomGraphPass) else None
            return theirs and (mine, theirs)  # None: nothing is cached
    config.post_grad_custom_pre_pass = Pass()


# ---- The pass

def fuse(graph: Any) -> int:
    """Fuses what it can; how many nodes went into a norm."""
    target, count = torch.ops.normjit.norm.default, 0
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is target:
            node, added = _with_sum(graph, node)
            count += added + _with_what_follows(graph, node)
    if count:
        graph.eliminate_dead_code()
        graph.lint()
    return count


def _value(node: Any) -> Any:
    """The fake tensor of a node, or None."""
    value = getattr(node, "meta", {}).get("val")
    return value if isinstance(value, torch.Tensor) else None


def _copy_of(spec: Any) -> Any:
    return type(spec).from_buffer_copy(spec)


def _results(node: Any) -> dict[int, list[Any]]:
    """The nodes that take an output, by its number."""
    found: dict[int, list[Any]] = {}
    for user in node.users:
        found.setdefault(user.args[1], []).append(user)
    return found


def _with_sum(graph: Any, node: Any) -> tuple[Any, int]:
    """The norm of x + residual instead of a norm behind a sum."""
    arguments = list(node.args)
    add, problem = arguments[_X], problem_of(arguments[0])
    if (problem.adds != "none" or "in_bias" in problem.inputs or len(problem.outputs) != 1 or node.kwargs
            or getattr(add, "target", None) is not _aten.add.Tensor or add.kwargs or len(add.args) != 2):
        return node, 0
    terms = _terms(add)
    rest = [part for part in arguments if part is not add and isinstance(part, torch.fx.Node)]
    if terms is None:
        return node, 0
    x, residual = terms
    spec = _spec_with_sum(problem, add, x)
    order = {each: at for at, each in enumerate(graph.nodes)}
    if spec is None or any(order[part] > order[add] for part in rest):
        return node, 0
    arguments[0], arguments[_X], arguments[_RESIDUAL] = spec, x, residual
    with graph.inserting_after(add):
        fused = graph.call_function(node.target, tuple(arguments))
    with graph.inserting_after(fused):
        result = graph.call_function(operator.getitem, (fused, 0))
    y, = (part for parts in _results(node).values() for part in parts[:1])
    result.meta, fused.meta = dict(y.meta), dict(node.meta)
    if "eager_input_vals" in fused.meta:  # whose strides Inductor keeps
        given = tuple(_value(part) if isinstance(part, torch.fx.Node) else part for part in arguments)
        fused.meta["eager_input_vals"] = given, {}
    for user in list(node.users):
        user.replace_all_uses_with(result)
        graph.erase_node(user)
    graph.erase_node(node)
    if "sum" in problem_of(spec).outputs:
        with graph.inserting_after(result):
            total = graph.call_function(operator.getitem, (fused, 1))
        total.meta = dict(add.meta)
        fused.meta["val"] = [result.meta["val"], add.meta["val"]]
        add.replace_all_uses_with(total)
    graph.erase_node(add)
    return fused, 1


def _terms(add: Any) -> Optional[tuple[Any, Any]]:
    """x and the residual of a sum: x has its shape, and the residual may be wider."""
    first, second = add.args
    total = _value(add)
    if total is None or _value(first) is None or _value(second) is None:
        return None
    for x, residual in ((first, second), (second, first)):
        if _value(x).shape == total.shape and _value(residual).dtype == total.dtype:
            return x, residual
    return None


def _spec_with_sum(problem: Any, add: Any, x: Any) -> Optional[str]:
    spec = _copy_of(problem.spec)
    spec.residual = _library.RESIDUALS["add"]
    spec.input = _library.DTYPES[TEXTS[_value(x).dtype]] if _value(x).dtype in TEXTS else 0
    spec.residual_type = problem.spec.input
    spec.sum = int(len(add.users) > 1)
    rounds = ["sum"] * (problem.input != problem.compute) + ["norm"] * problem.rounds_norm
    spec.rounding = _library.ROUNDINGS["+".join(rounds) or "none"]
    if spec.input == 0 or problem.rounds_norm and spec.input != problem.spec.input:
        return None
    try:
        return _library.spec_text(spec)
    except _library.Error:
        return None


def _with_what_follows(graph: Any, node: Any) -> int:
    """Takes an activation, and a cast to a narrower type, into a norm whose result nothing else uses."""
    count = 0
    while True:
        results = _results(node).get(0, [])
        found = _following(results[0], node.args[0]) if len(results) == 1 else None
        if found is None:
            return count
        spec, nodes = found
        result, last = results[0], nodes[-1]
        node.args = (spec, *node.args[1:])
        result.meta = dict(last.meta)
        node.meta["val"] = [last.meta["val"], *node.meta["val"][1:]]
        last.replace_all_uses_with(result)
        for each in reversed(nodes):
            graph.erase_node(each)
        count += 1


def _following(result: Any, text: str) -> Optional[tuple[str, list[Any]]]:
    """The spec with what follows a norm's result, and the nodes that compute it, the last of which has its value."""
    problem = problem_of(text)
    spec = _copy_of(problem.spec)
    if problem.adds == "addafter" or problem.scale != 1.0:
        return None
    if problem.activation == _library.ACTIVATIONS[None]:
        for name, activation in _activations(problem.output).items():
            nodes = _match(activation, result)
            if nodes is not None:
                spec.activation = _library.ACTIVATIONS[name]
                return _library.spec_text(spec), nodes
    user: Any = next(iter(result.users), None)
    if (len(result.users) == 1 and user.target is _prims.convert_element_type.default
            and problem.output == problem.compute and user.args[1] in TEXTS):
        spec.output = _library.DTYPES[TEXTS[user.args[1]]]
        return _library.spec_text(spec), [user]
    return None


@functools.lru_cache(maxsize=None)
def _activations(dtype: torch.dtype) -> dict[str, Any]:
    """The graphs that Inductor makes of activations of a tensor of this type."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.fx.experimental.proxy_tensor import make_fx
    functions: dict[str, Any] = {"relu": lambda y: F.relu(y), "gelu": lambda y: F.gelu(y), "silu": lambda y: F.silu(y),
                                 "gelu_tanh": lambda y: F.gelu(y, approximate="tanh")}
    with unset_fake_temporarily():
        x = torch.empty(2, 2, dtype=dtype)
        return {name: make_fx(function, decomposition_table=select_decomp_table())(x).graph
                for name, function in functions.items()}


def _match(pattern: Any, result: Any) -> Optional[list[Any]]:
    """The nodes that compute a pattern of `result`, if they are all that uses it and nothing else uses them but the
    last."""
    found: dict[Any, Any] = {}
    for node in pattern.nodes:
        if node.op == "placeholder":
            found[node] = result
        elif node.op == "call_function":
            arguments = torch.fx.node.map_arg(node.args, found.__getitem__)
            before = next(part for part in node.args if isinstance(part, torch.fx.Node))
            alike = [user for user in found[before].users
                     if (user.target, user.args, user.kwargs) == (node.target, arguments, node.kwargs)]
            if len(alike) != 1:
                return None
            found[node] = alike[0]
    nodes = list(found.values())[1:]
    inside = set(nodes)
    if any(user not in inside for node in (result, *nodes[:-1]) for user in node.users):
        return None
    return nodes
