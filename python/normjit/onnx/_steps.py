# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and RMSNorm in single steps, as exports before opset 17 (and 23) have them, found from their Sqrt."""
from __future__ import annotations

from typing import Optional

import onnx

from normjit.onnx._graph import HALVES, Graph
from normjit.onnx._norms import Norm, attribute, columns_of, made
from normjit.onnx._report import NotTaken


def looks_like_norm(graph: Graph, sqrt: onnx.NodeProto) -> bool:
    """Whether this Sqrt is of a mean of squares and an epsilon."""
    add = graph.maker(sqrt.input[0], "Add") if sqrt.op_type == "Sqrt" else None
    return add is not None and any(_mean_of_squares(graph, name) for name in add.input)


def of_steps(graph: Graph, sqrt: onnx.NodeProto) -> Norm:
    """The norm around a Sqrt for which looks_like_norm() holds. Raises NotTaken."""
    steps = _Steps(graph, sqrt)
    name = sqrt.name or sqrt.output[0]
    if steps.opened:
        raise NotTaken("a norm in single steps, of which others use a part")
    return made(graph, name, steps.nodes, steps.kind, steps.inputs, {"y": steps.y}, steps.epsilon, steps.axis,
                steps.rounding, steps.dtype)


def _mean_of_squares(graph: Graph, name: str) -> Optional[tuple[onnx.NodeProto, onnx.NodeProto, str]]:
    """(the mean, the square, what is squared) of a value."""
    mean = graph.maker(name, "ReduceMean")
    square = graph.maker(mean.input[0], "Pow", "Mul") if mean else None
    if mean is None or square is None:
        return None
    if square.op_type == "Pow" and graph.number(square.input[1]) != 2:
        return None
    if square.op_type == "Mul" and square.input[0] != square.input[1]:
        return None
    return mean, square, square.input[0]


def _axis(graph: Graph, mean: onnx.NodeProto) -> int:
    """The first axis of those that are reduced, from the end. Raises NotTaken unless they are the last ones, and kept."""
    axes = attribute(mean, "axes", None)
    if axes is None and len(mean.input) > 1:
        given = graph.constant(mean.input[1])
        axes = None if given is None else [int(axis) for axis in given.reshape(-1)]
    if not axes or not attribute(mean, "keepdims", 1):
        raise NotTaken("a norm in single steps, over axes that are not known or not kept")
    if any(axis >= 0 for axis in axes):
        shape = graph.shape(mean.input[0])
        if shape is None:
            raise NotTaken("a norm in single steps, whose axes count from the front, and the rank is not known")
        axes = [axis - len(shape) if axis >= 0 else axis for axis in axes]
    if sorted(axes) != list(range(-len(axes), 0)):
        raise NotTaken("a norm in single steps, over other axes than the last ones")
    return -len(axes)


class _Steps:
    """Collects the nodes of a norm from its Sqrt on, upwards to x and down to y."""

    def __init__(self, graph: Graph, sqrt: onnx.NodeProto) -> None:
        self.graph, self.nodes, self.rounding = graph, [sqrt], set[str]()
        add = self._take(sqrt.input[0], "Add")
        which = 0 if _mean_of_squares(graph, add.input[0]) else 1
        found = _mean_of_squares(graph, add.input[which])
        epsilon = graph.number(add.input[1 - which])
        if found is None or epsilon is None:
            raise NotTaken("a norm in single steps, whose epsilon is not a constant")
        self.epsilon = epsilon
        mean, square, centred = found
        self.nodes += [mean, square]
        self.axis = _axis(graph, mean)
        self.inputs = {"x": centred}
        self.kind = "rmsnorm"
        self._subtract_mean(centred)
        normalized = self._divide(sqrt, centred)
        self.dtype = self._cast_from(self.inputs["x"])
        self.y = self._affine(normalized)
        kept = {id(node) for node in self.nodes}
        self.opened = any(name != self.y and (name in graph.fixed or any(
            id(user) not in kept for user in graph.users.get(name, ()))) for node in self.nodes for name in node.output)

    def _take(self, name: str, *operators: str) -> onnx.NodeProto:
        node = self.graph.maker(name, *operators)
        if node is None:
            raise NotTaken("a norm in single steps that are not those of a LayerNorm or RMSNorm")
        self.nodes.append(node)
        return node

    def _subtract_mean(self, centred: str) -> None:
        sub = self.graph.maker(centred, "Sub")
        mean = self.graph.maker(sub.input[1], "ReduceMean") if sub else None
        if sub is None or mean is None or mean.input[0] != sub.input[0]:
            return
        if _axis(self.graph, mean) != self.axis:
            raise NotTaken("a norm in single steps, whose mean is over other axes than its variance")
        self.kind = "layernorm"
        self.nodes += [sub, mean]
        self.inputs["x"] = sub.input[0]

    def _divide(self, sqrt: onnx.NodeProto, centred: str) -> str:
        """What is normalized, before the affine."""
        div = self.graph.only_user(sqrt.output[0], "Div", "Reciprocal")
        if div is None:
            raise NotTaken("a norm in single steps, of which others use a part")
        self.nodes.append(div)
        if div.op_type == "Div" and div.input[0] == centred:
            return str(div.output[0])
        if div.op_type == "Div" and self.graph.number(div.input[0]) != 1:
            raise NotTaken("a norm in single steps that divides something else")
        mul = self.graph.only_user(div.output[0], "Mul")
        if mul is None or sorted(mul.input) != sorted((centred, div.output[0])):
            raise NotTaken("a norm in single steps that multiplies something else")
        self.nodes.append(mul)
        return str(mul.output[0])

    def _cast_from(self, x: str) -> str:
        """Of an x that was cast from 16 bits to f32, the type of 16 bits; x is then what was cast."""
        cast = self.graph.maker(x, "Cast")
        if cast and self.graph.dtype(cast.input[0]) in HALVES and self.graph.dtype(x) == "f32":
            inside = {id(node) for node in self.nodes}
            if all(id(user) in inside for user in self.graph.users[x]) and x not in self.graph.fixed:
                self.nodes.append(cast)
                self.inputs["x"] = cast.input[0]
                return self.graph.dtype(cast.input[0]) or ""
        return ""

    def _cast_back(self, name: str) -> str:
        """Behind a cast to x's type of 16 bits, if there is one."""
        cast = self.graph.only_user(name, "Cast")
        if not self.dtype or cast is None or self.graph.dtype(cast.output[0]) != self.dtype:
            return name
        self.nodes.append(cast)
        return str(cast.output[0])

    def _affine(self, normalized: str) -> str:
        name = self._cast_back(normalized)
        rounded = name != normalized
        for operand, operator in (("weight", "Mul"), ("bias", "Add")):
            node = self.graph.only_user(name, operator)
            if node is None:
                break
            vector = node.input[1] if node.input[0] == name else node.input[0]
            if not self._is_vector(vector):
                break
            if operand == "weight" and rounded:
                self.rounding.add("norm")
            self.inputs[operand] = vector
            self.nodes.append(node)
            name = node.output[0]
        return name if rounded else self._cast_back(name)

    def _is_vector(self, name: str) -> bool:
        try:
            columns = columns_of(self.graph.shape(self.inputs["x"]), self.graph.shape(name), self.axis)
        except NotTaken:
            return False
        return columns > 1
