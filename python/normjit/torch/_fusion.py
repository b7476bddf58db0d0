# SPDX-License-Identifier: Apache-2.0
"""A pass over Inductor's graphs that fuses what stands around normjit::norm into it: a gate and the sum in front of it,
and a modulation, an activation and a cast behind it."""
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
from normjit.torch._formula import formula
from normjit.torch._problem import INPUTS, Problem, problem_of, rows_at

_enabled = _told = False
_aten: Any = torch.ops.aten
_CAST: Any = torch.ops.prims.convert_element_type.default
_OPERANDS = ("x", *INPUTS)  # arguments of normjit::norm, behind the spec
# What is fused, behind the norm's name in _fusion_table.py: x + residual in front; * (1 + scale) + shift behind; and that
# with x * gate + residual in front. An activation and a cast behind come with each.
GATED, MODULATED, PLAIN = FORMS = (" gated", " modulated", "")


def enable_fusion() -> bool:
    """Under torch.compile, has normjit compute those norms, with a gate and a sum in front of them and a modulation behind,
    that _fusion_table.py has as faster so; all others stay Inductor's. For programs that are compiled after this call.
    False where this PyTorch's Inductor takes no such pass: then a warning says so, once, and nothing changes.

    The sum is rounded to its type in front of the norm, as it is without a compiler. The product with a gate, 1 + scale
    and what a modulation or an activation takes are not rounded first, as in Inductor's own kernels.
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
    forms = (PLAIN,) if torch.is_grad_enabled() else FORMS  # a backward reads what the others leave out
    return _enabled and any(_is_faster(head, form, columns, dtype) for form in forms)


def to_fuse(head: str, text: str, columns: int, dtype: torch.dtype) -> str:
    """The text of a norm that is wanted, and which otherwise were Inductor's: `shape` in the place of `cols`, which means the
    same, tells the pass to give it back where nothing is around it that makes it faster."""
    return text if _is_faster(head, PLAIN, columns, dtype) else text.replace("/cols=", "/shape=", 1)


def _is_faster(head: str, form: str, columns: int, dtype: torch.dtype) -> bool:
    ranges = _fusion_table.FASTER.get((head + form, TEXTS.get(dtype, "")), ())
    return any(first <= columns <= last for first, last in ranges)


def _install() -> None:
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
    before: Any = config.post_grad_custom_pre_pass
    _tools()  # fails here if it is to fail
    _activations(torch.float32)

    class Pass(CustomGraphPass):
        """Behind the pass that was there before, if any."""

        def __call__(self, graph: Any) -> None:
            if before is not None:
                before(graph)
            fuse(graph)

        def uuid(self) -> Any:
            mine = get_hash_for_files((__file__,)), repr(sorted(_fusion_table.FASTER.items()))
            if before is None:
                return mine
            theirs = before.uuid() if isinstance(before, CustomGraphPass) else None
            return theirs and (mine, theirs)  # None: nothing is cached
    config.post_grad_custom_pre_pass = Pass()


# ---- The pass

@functools.lru_cache(maxsize=None)
def _tools() -> tuple[Any, Any, Any]:
    """Of PyTorch: sorts a graph, compares sizes, makes a graph of Inductor's operators."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.pattern_matcher import stable_topological_sort
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import statically_known_true
    return stable_topological_sort, statically_known_true, lambda function: make_fx(
        function, decomposition_table=select_decomp_table())


def fuse(graph: Any) -> int:
    """Fuses what it can; how many nodes went into a norm."""
    sort, *_ = _tools()
    target, count, changed = torch.ops.normjit.norm.default, 0, False
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not target or node.kwargs:
            continue
        plan = _plan_for(node)
        if plan is None:
            _give_back(graph, node)
        elif plan.count:
            if not plan.write(graph):
                sort(graph)
            count += plan.count
        changed = changed or plan is None or plan.count > 0
    if changed:
        graph.eliminate_dead_code()
        graph.lint()
    return count


def _plan_for(node: Any) -> Optional[_Plan]:
    """What is to be fused with a norm; None where it is to be given back to Inductor."""
    for form in FORMS:
        plan = _Plan(node)
        plan.take_widening()
        if not plan.is_faster(form):
            continue
        if form == PLAIN or plan.take_modulation():
            if plan.take_sum(form == GATED) or form != GATED:
                plan.take_what_follows()
                return plan
    if "/shape=" in node.args[0]:  # see to_fuse
        return None
    plan = _Plan(node)
    plan.take_sum()
    plan.take_what_follows()
    return plan


def _value(node: Any) -> Any:
    """The fake tensor of a node, or None."""
    value = getattr(node, "meta", {}).get("val")
    return value if isinstance(value, torch.Tensor) else None


def _is_call(node: Any, target: Any) -> bool:
    """Of two arguments."""
    return getattr(node, "target", None) is target and len(node.args) == 2 and not node.kwargs


def _with_places(node: Any) -> Any:
    """The arguments of a sum or a product, in both orders."""
    first, second = node.args
    return ((first, second), (second, first))


def _narrow(node: Any) -> Any:
    """What a cast to a wider type casts; else the node itself."""
    if not _is_call(node, _CAST) or _value(node.args[0]) is None:
        return node
    source = _value(node.args[0]).dtype
    return node.args[0] if source in TEXTS and source.itemsize < node.args[1].itemsize else node


def _expands(node: Any, whole: Any) -> bool:
    """Whether a tensor has a row for each one of another, as a kernel addresses them."""
    _, is_true, _ = _tools()
    part = _value(node)
    if part is None or part.dim() == 0 or part.dim() > whole.dim() or part.dtype not in TEXTS:
        return False
    sizes = list(zip(reversed(part.shape), reversed(whole.shape)))
    if not all(is_true(size == there) or at and is_true(size == 1)
               for at, (size, there) in enumerate(sizes)):
        return False
    if any(isinstance(size, torch.SymInt) for size in (*whole.shape, *part.stride())):
        return True  # the operator copies what it cannot address
    return rows_at(part.expand(whole.shape), 1) is not None


def _depends(nodes: Any, on: Any) -> bool:
    """Whether one of these is computed with another one."""
    waiting, seen = [node for node in nodes if isinstance(node, torch.fx.Node)], set()
    while waiting:
        node = waiting.pop()
        if node is on:
            return True
        if node not in seen and on < node:  # in the order of the graph
            seen.add(node)
            waiting.extend(node.all_input_nodes)
    return False


class _Plan:
    """A norm of a graph, and what around it is to be computed with it. take_...() add to the plan what is there."""

    def __init__(self, node: Any) -> None:
        self.node, self.text, self.count = node, node.args[0], 0
        self.operands = dict(zip(_OPERANDS, node.args[1:]))
        results = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
        self.result: Any = results[0] if len(results) == 1 else None
        self.behind: list[Any] = []  # each one's value is of the one before, the last one's what the norm computes
        self.before: list[Any] = []  # which may lose all users
        self.sum: Any = None  # the node that is the sum

    @property
    def problem(self) -> Problem:
        return problem_of(self.text)

    @property
    def last(self) -> Any:
        return self.behind[-1] if self.behind else self.result

    def is_faster(self, form: str) -> bool:
        head = "layernorm" if self.problem.layer else "rmsnorm"
        return _is_faster(head, form, self.problem.columns, self.problem.input)

    def _change(self, **members: int) -> bool:
        """Changes the spec, if that is one, and computed in the same type."""
        spec = type(self.problem.spec).from_buffer_copy(self.problem.spec)
        for name, value in members.items():
            setattr(spec, name, value)
        try:
            text = _library.spec_text(spec)
        except _library.Error:
            return False
        if problem_of(text).compute != self.problem.compute:
            return False
        self.text = text
        return True

    def take_widening(self) -> None:
        """x in the type that it has in front of a cast to a wider one."""
        x = self.operands["x"]
        source = _narrow(x)
        if source is not x and not self.problem.rounds_norm and self._change(input=_code(source)):
            self.operands["x"] = source
            self.before.append(x)
            self.count += 1

    def take_sum(self, gated: bool = False) -> bool:
        """The sum in front, of x and a residual; gated: of x * gate and a residual."""
        problem, total = self.problem, self.operands["x"]
        if (problem.adds != "none" or "in_bias" in problem.inputs or problem.gates == "gate"
                or len(problem.outputs) != 1 or self.result is None):
            return False
        narrows = _is_call(total, _CAST) and _narrow(total) is total and len(total.args[0].users) == 1
        add = total.args[0] if narrows else total
        if not _is_call(add, _aten.add.Tensor):
            return False
        others = [node for name, node in self.operands.items() if name != "x"]
        for x, residual in _with_places(add):
            terms = self._terms(total, x, residual, gated)
            if terms is None or _depends(others, add) or not self._change_for_sum(total, terms):
                continue
            self.operands.update(terms)
            self.sum = total
            self.before += [total, add, x, residual]
            self.count += 1
            return True
        return False

    def _terms(self, total: Any, x: Any, residual: Any, gated: bool) -> Optional[dict[str, Any]]:
        """The operands of a sum: x has its shape, and the residual may be wider."""
        whole, gate = _value(total), None
        if whole is None or _value(x) is None or _value(residual) is None or _value(x).shape != whole.shape:
            return None
        if _value(residual).dtype != whole.dtype:
            residual = _narrow(residual)
        if gated:
            if not _is_call(x, _aten.mul.Tensor) or len(x.users) != 1:
                return None
            for product, gate in _with_places(x):
                if (_value(product) is not None and _value(product).shape == whole.shape and _expands(gate, whole)
                        and _value(gate).dtype == self.problem.modulated):
                    return {"x": _narrow(product), "gate": gate, "residual": residual}
            return None
        return {"x": _narrow(x), "residual": residual}

    def _change_for_sum(self, total: Any, terms: dict[str, Any]) -> bool:
        problem, x = self.problem, terms["x"]
        if (_value(terms["residual"]).dtype != problem.input or _value(x).dtype not in TEXTS
                or problem.rounds_norm and _value(x).dtype != problem.input):
            return False
        rounds = ["sum"] * (problem.input != problem.compute) + ["norm"] * problem.rounds_norm
        inside = {self.node, *self.before}
        return self._change(residual=_library.RESIDUALS["add"], residual_type=problem.spec.input, input=_code(x),
                            sum=int(any(user not in inside for user in total.users)),
                            gate=_library.GATES["gate" if "gate" in terms else problem.gates],
                            rounding=_library.ROUNDINGS["+".join(rounds) or "none"])

    def take_modulation(self) -> bool:
        """* (1 + scale) and + shift behind."""
        problem, whole = self.problem, _value(self.last)
        if (whole is None or problem.activation != _library.ACTIVATIONS[None] or problem.scale != 1.0
                or problem.gates == "gateafter" or problem.adds == "addafter" or "mod_scale" in problem.inputs
                or whole.shape[-1] != problem.columns):
            return False
        behind, parts = [], {}
        last = _only_user(self.last)
        if last is not None and _narrow(last) is self.last:
            behind, last = [last], _only_user(last)
        before = behind[-1] if behind else self.last
        factor = _other_argument(last, _aten.mul.Tensor, before)
        scale = None if factor is None else _minus_one(factor)
        if scale is None or not _expands(scale, whole):
            return False
        parts["mod_scale"] = scale
        behind.append(last)
        shift = _other_argument(_only_user(last), _aten.add.Tensor, last)
        if shift is not None and _expands(shift, whole) and _value(shift).dtype == _value(scale).dtype:
            parts["mod_shift"] = shift
            behind.append(_only_user(last))
        if not self._change(modulation=_library.MODULATIONS["mod" if "mod_shift" in parts else "mods"],
                            modulation_type=_code(scale), output=_code(behind[-1])):
            return False
        self.operands.update(parts)
        self.behind += behind
        self.before.append(factor)
        self.count += len(behind)
        return True

    def take_what_follows(self) -> None:
        """An activation, and a cast to a narrower type."""
        while self.result is not None:
            found = _following(self.last, self.problem)
            if found is None or not self._change(**found[0]):
                return
            self.behind += found[1]
            self.count += 1

    def write(self, graph: Any) -> bool:
        """Changes the graph; whether its nodes are still in order: operands may stand behind the norm, and users of the sum
        in front of it."""
        node, last = self.node, self.last
        arguments = (self.text, *self.operands.values())
        node.args = (*arguments, *node.args[len(arguments):])
        node.meta = dict(node.meta)
        if "eager_input_vals" in node.meta:  # whose strides Inductor keeps
            given = tuple(_value(part) if isinstance(part, torch.fx.Node) else part for part in node.args)
            node.meta["eager_input_vals"] = given, {}
        if self.behind:
            node.meta["val"] = [last.meta["val"], *node.meta["val"][1:]]
            self.result.meta = dict(last.meta)
            last.replace_all_uses_with(self.result)
        if self.sum is not None and "sum" in self.problem.outputs:
            with graph.inserting_after(node):
                total = graph.call_function(operator.getitem, (node, 1))
            total.meta = dict(self.sum.meta)
            node.meta["val"] = [node.meta["val"][0], total.meta["val"]]
            self.sum.replace_all_uses_with(total)
        for each in (*reversed(self.behind), *self.before):
            if isinstance(each, torch.fx.Node) and each.op == "call_function" and not each.users and not each._erased:
                graph.erase_node(each)
        return not any(node < part for part in node.all_input_nodes) and not any(
            user < result for result in node.users for user in result.users)


def _code(node: Any) -> int:
    """The number of a node's type; 0 for one that no spec has."""
    dtype = _value(node).dtype
    return _library.DTYPES[TEXTS[dtype]] if dtype in TEXTS else 0


def _only_user(node: Any) -> Any:
    return next(iter(node.users)) if node is not None and len(node.users) == 1 else None


def _other_argument(node: Any, target: Any, argument: Any) -> Any:
    """Of a sum or a product, if it is one of two different values; else None."""
    if not _is_call(node, target) or _value(node) is None or _value(node).shape != _value(argument).shape:
        return None
    others = [part for part in node.args if part is not argument]
    return others[0] if len(others) == 1 else None


def _minus_one(node: Any) -> Any:
    """The scale of 1 + scale, or of (1 + scale)[:, None], for which a new node is made; else None."""
    if _is_call(node, _aten.add.Tensor):
        return node.args[0] if node.args[1] == 1 and _value(node.args[0]) is not None else None
    inside = _minus_one(node.args[0]) if _is_call(node, _aten.unsqueeze.default) else None
    if inside is None:
        return None
    with node.graph.inserting_before(node):
        scale = node.graph.call_function(node.target, (inside, node.args[1]))
    scale.meta["val"] = _value(inside).unsqueeze(node.args[1])
    return scale


def _give_back(graph: Any, node: Any) -> None:
    """The nodes that Inductor has for a norm, in its place."""
    *_, graph_of = _tools()
    problem = problem_of(node.args[0])
    given = [part for part in node.args[1:-1] if isinstance(part, torch.fx.Node)]

    def function(*values: Any) -> list[Any]:
        found = iter(values)
        return formula(problem, *(next(found) if isinstance(part, torch.fx.Node) else part for part in node.args[1:-1]))
    values = [_value(part) for part in given]
    with values[0].fake_mode, torch.no_grad():
        traced = graph_of(function)(*values).graph
    for part in traced.nodes:
        if part.target is _aten.add_.Scalar:  # PyTorch 2.9's rms_norm adds epsilon in place
            part.target = _aten.add.Scalar
    places = dict(zip((part for part in traced.nodes if part.op == "placeholder"), given))
    with graph.inserting_before(node):
        results: Any = graph.graph_copy(traced, places)
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _following(result: Any, problem: Problem) -> Optional[tuple[dict[str, int], list[Any]]]:
    """What follows a norm's result as members of its spec, and the nodes that compute it."""
    if problem.adds == "addafter" or problem.gates == "gateafter" or problem.scale != 1.0:
        return None
    if problem.activation == _library.ACTIVATIONS[None]:
        for name, activation in _activations(problem.output).items():
            nodes = _match(activation, result)
            if nodes is not None:
                return {"activation": _library.ACTIVATIONS[name]}, nodes
    user = _only_user(result)
    if (_is_call(user, _CAST) and problem.output == problem.compute and user.args[1] in TEXTS
            and user.args[1].itemsize < problem.output.itemsize):
        return {"output": _code(user)}, [user]
    return None


@functools.lru_cache(maxsize=None)
def _activations(dtype: torch.dtype) -> dict[str, Any]:
    """The graphs that Inductor makes of activations of a tensor of this type."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    *_, graph_of = _tools()
    functions: dict[str, Any] = {"relu": lambda y: F.relu(y), "gelu": lambda y: F.gelu(y), "silu": lambda y: F.silu(y),
                                 "gelu_tanh": lambda y: F.gelu(y, approximate="tanh")}
    with unset_fake_temporarily():
        x = torch.empty(2, 2, dtype=dtype)
        return {name: graph_of(function)(x).graph for name, function in functions.items()}


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
