# SPDX-License-Identifier: Apache-2.0
"""An index of a graph: who makes a value, who uses it, and what is known of it."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

import numpy as np
import onnx
from onnx import helper, numpy_helper

# A dimension is a number, a name, or None where nothing is known of it.
Dimension = Union[int, str, None]
Shape = tuple[Dimension, ...]

ELEMENTS: dict[int, str] = {onnx.TensorProto.FLOAT: "f32", onnx.TensorProto.FLOAT16: "f16",
                            onnx.TensorProto.BFLOAT16: "bf16", onnx.TensorProto.DOUBLE: "f64"}
HALVES = ("f16", "bf16")
_SMALL = 16  # elements of a constant that is looked at


class Graph:
    """Of a model's main graph, in which nodes stand in topological order. Shapes and types are those of the model's
    value_info and of what shape inference adds."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self.opset = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=1)
        self.nodes: list[onnx.NodeProto] = list(model.graph.node)
        self.place = {id(node): place for place, node in enumerate(self.nodes)}
        # Of IR 4 and later, those that are inputs as well may be replaced in a run; before, all of them had to be inputs.
        replaceable = {value.name for value in model.graph.input} if model.ir_version >= 4 else set()
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name not in replaceable}
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self.users: dict[str, list[onnx.NodeProto]] = {}
        self.fixed = {value.name for value in model.graph.output}  # that must stay: outputs, and what subgraphs use
        for node in self.nodes:
            for name in node.input:
                if name:
                    self.users.setdefault(name, []).append(node)
            for inner in subgraphs(node):
                self.fixed.update(names_in(inner))
        self._types: dict[str, tuple[int, Optional[Shape]]] = {}
        self._read_types()
        self._constant: dict[str, bool] = {}
        self.added: dict[str, onnx.TensorProto] = {}  # initializers that rewriting needs, by what they are made of

    def _read_types(self) -> None:
        for graph in (self.graph, inferred(self.model).graph):
            for values in (graph.input, graph.output, graph.value_info):
                for value in values:
                    tensor = value.type.tensor_type
                    shape = None
                    if tensor.HasField("shape"):
                        shape = tuple(_dimension(dim) for dim in tensor.shape.dim)
                    if tensor.elem_type and (shape is not None or value.name not in self._types):
                        self._types[value.name] = tensor.elem_type, shape
        for tensor in self.graph.initializer:
            self._types[tensor.name] = tensor.data_type, tuple(tensor.dims)

    def element(self, name: str) -> int:
        """onnx.TensorProto.DataType; 0 where it is not known."""
        return self._types.get(name, (0, None))[0]

    def dtype(self, name: str) -> Optional[str]:
        """In specs; None for what is not known or none of f16, bf16, f32 and f64."""
        return ELEMENTS.get(self.element(name))

    def shape(self, name: str) -> Optional[Shape]:
        if name in self._types:
            return self._types[name][1]
        value = self.constant(name)
        return None if value is None else tuple(value.shape)

    def maker(self, name: str, *operators: str) -> Optional[onnx.NodeProto]:
        """The node that makes a value, if it is one of these operators of ONNX."""
        node = self.makers.get(name)
        return node if node and node.domain in ("", "ai.onnx") and node.op_type in operators else None

    def only_user(self, name: str, *operators: str) -> Optional[onnx.NodeProto]:
        """The one node that uses a value that nothing else needs, if it is one of these operators of ONNX."""
        if not self.is_used_once(name):
            return None
        node = self.users[name][0]
        return node if node.domain in ("", "ai.onnx") and node.op_type in operators else None

    def is_used_once(self, name: str) -> bool:
        return name not in self.fixed and len(self.users.get(name, ())) == 1

    def constant(self, name: str) -> Optional[np.ndarray[Any, Any]]:
        """A small tensor that the file has, as numpy; None for all else."""
        tensor = self.initializers.get(name)
        if tensor is None:
            node = self.maker(name, "Constant")
            if node is None or len(node.attribute) != 1:
                return None
            attribute = node.attribute[0]
            if attribute.name != "value":
                value = helper.get_attribute_value(attribute)
                return np.asarray(value) if attribute.name in ("value_float", "value_floats", "value_int",
                                                               "value_ints") else None
            tensor = attribute.t
        if tensor.data_location == onnx.TensorProto.EXTERNAL or int(np.prod(tensor.dims)) > _SMALL:
            return None
        return numpy_helper.to_array(tensor)

    def number(self, name: str) -> Optional[float]:
        """The value of a constant of one element."""
        value = self.constant(name)
        if value is None or value.size != 1:
            return None
        return float(value.reshape(()).astype(np.float64))

    def new_name(self, name: str) -> str:
        """A name like this one that no value has."""
        taken = {tensor.name for tensor in self.added.values()}
        while name in self.makers or name in self.users or name in self.fixed or name in self.initializers or name in taken:
            name += "_"
        return name

    def as_f32(self, name: str) -> str:
        """The same number as an initializer of f32, for a constant of one element."""
        if name not in self.added:
            self.added[name] = helper.make_tensor(self.new_name(name + "_f32"), onnx.TensorProto.FLOAT, [1],
                                                  [self.number(name) or 0.0])
        return self.added[name].name

    def is_constant(self, name: str) -> bool:
        """Whether ONNX Runtime can compute a value as it loads the model."""
        if name in self.initializers:
            return True
        if name not in self._constant:
            self._constant[name] = False  # of a graph that is no graph
            node = self.makers.get(name)
            self._constant[name] = node is not None and not any(subgraphs(node)) and all(
                self.is_constant(each) for each in node.input if each)
        return self._constant[name]

    def depends_on(self, names: Sequence[str], nodes: Sequence[onnx.NodeProto]) -> bool:
        """Whether some of these values are made of what some of these nodes make."""
        wanted, first = {id(node) for node in nodes}, min(self.place[id(node)] for node in nodes)
        seen: set[int] = set()
        open_names = list(names)
        while open_names:
            node = self.makers.get(open_names.pop())
            if node is None or id(node) in seen or self.place[id(node)] < first:
                continue
            if id(node) in wanted:
                return True
            seen.add(id(node))
            open_names.extend(_all_inputs(node))
        return False


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> Dimension:
    if dim.HasField("dim_value"):
        return dim.dim_value
    return dim.dim_param or None


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, with the shapes and types that onnx infers. Weights are left out of the copy that it works on: it needs
    their shapes alone, and a protobuf holds at most 2 GiB."""
    light = onnx.ModelProto()
    light.CopyFrom(_without_weights(model))
    try:
        return onnx.shape_inference.infer_shapes(light, data_prop=True)
    except Exception:  # onnx raises several types for what it does not understand; then the file's own types count
        return light


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    for node in model.graph.node:
        graph.node.extend(_for_inference(node))
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    named = {value.name for value in graph.input}
    for tensor in model.graph.initializer:
        if int(np.prod(tensor.dims)) <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in named:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return light


# Operators of ONNX Runtime whose results, but for mean and deviation, have the type and shape of their first input. onnx knows
# none of them.
_LIKE_FIRST = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization", "Gelu", "FastGelu",
               "BiasGelu", "QuickGelu")


def _for_inference(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """A node, or what has the same types and shapes for onnx."""
    if node.op_type not in _LIKE_FIRST or (node.domain != "com.microsoft" and node.op_type == "Gelu"):
        yield node
        return
    for place, name in enumerate(node.output):
        if name and place in (0, 3):
            yield helper.make_node("Identity", [node.input[0]], [name])


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _all_inputs(node: onnx.NodeProto) -> Iterator[str]:
    yield from filter(None, node.input)
    for inner in subgraphs(node):
        yield from names_in(inner)


def names_in(graph: onnx.GraphProto) -> Iterator[str]:
    """The values that a subgraph uses, its own ones too."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from _all_inputs(node)


def sorted_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes in topological order, and else in the order in which they are given."""
    maker = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    done: list[onnx.NodeProto] = []
    state = [0] * len(nodes)  # 1: what it needs is being placed; 2: placed
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            place = stack[-1]
            if state[place] == 0:
                state[place] = 1
                needed = [maker[name] for name in _all_inputs(nodes[place]) if name in maker]
                stack.extend(each for each in reversed(needed) if state[each] == 0)
                continue
            stack.pop()
            if state[place] == 1:
                state[place] = 2
                done.append(nodes[place])
    return done
