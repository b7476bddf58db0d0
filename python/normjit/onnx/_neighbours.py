# SPDX-License-Identifier: Apache-2.0
"""What stands before and behind a norm, and becomes a part of it: sums, activations, quantization."""
from __future__ import annotations

import math
from typing import Optional

import onnx

from normjit.onnx._graph import ELEMENTS, HALVES, Graph, Shape
from normjit.onnx._norms import Norm, attribute

NARROW: dict[int, str] = {onnx.TensorProto.INT8: "s8", onnx.TensorProto.FLOAT8E4M3FN: "e4m3", onnx.TensorProto.FLOAT8E5M2: "e5m2"}
_AS_GELU = {"none": "gelu", "tanh": "gelu_tanh"}


def is_broadcast_along_rows(part: Optional[Shape], whole: Optional[Shape], last: int) -> bool:
    """Whether a tensor is broadcast to another along the first dimensions alone, of which `last` at the end are a row."""
    if part is None or whole is None or len(part) > len(whole) or len(part) < last:
        return False
    part = (1,) * (len(whole) - len(part)) + tuple(part)
    equal = [a is not None and a == b for a, b in zip(part, whole)]
    first = equal.index(True) if True in equal else len(equal)
    return all(equal[first:]) and all(size == 1 for size in part[:first]) and first <= len(whole) - last


def fuse_sum(graph: Graph, norm: Norm, claimed: set[int]) -> None:
    """Takes an Add that makes x: a residual, a bias of the matrix product in front, or both."""
    x = norm.inputs["x"]
    add = graph.maker(x, "Add")
    if add is None or "residual" in norm.inputs or "in_bias" in norm.inputs or id(add) in claimed:
        return
    if add.input[0] == add.input[1] or any(graph.element(name) not in (0, graph.element(x)) for name in add.input):
        return
    inputs, nodes = _summands(graph, norm, add, claimed)
    if not inputs:
        norm.notes.append("the Add before it, since it is not known that its inputs have one shape")
        return
    group = nodes + norm.nodes
    others = [name for name in norm.inputs.values() if name != x] + list(inputs.values())
    if graph.depends_on(others, group):
        return
    norm.inputs.update(inputs)
    norm.nodes = group
    inside = {id(node) for node in group}
    if x in graph.fixed or any(id(user) not in inside for user in graph.users[x]):
        norm.outputs["sum"] = x
    if "residual" in inputs and norm.dtypes["x"] in HALVES:
        norm.rounding.add("sum")  # which the Add does


def _summands(graph: Graph, norm: Norm, add: onnx.NodeProto,
              claimed: set[int]) -> tuple[dict[str, str], list[onnx.NodeProto]]:
    """The operands that an Add becomes, and the nodes; none where it is not known how its inputs are broadcast."""
    whole, last = graph.shape(add.output[0]), _row_rank(graph, norm)
    for x, other in (tuple(add.input), tuple(add.input)[::-1]):
        if _is_row(graph, other, norm) and not _is_row(graph, x, norm):
            return {"x": x, "in_bias": other}, [add]
    for x, other in (tuple(add.input), tuple(add.input)[::-1]):
        if whole is None or None in whole or graph.shape(x) != whole:
            continue
        if not is_broadcast_along_rows(graph.shape(other), whole, last):
            continue
        for first, second in ((x, other), (other, x)):
            inner = graph.maker(first, "Add")
            if inner is None or id(inner) in claimed or not graph.is_used_once(first) or graph.shape(first) != whole:
                continue
            for begin, bias in (tuple(inner.input), tuple(inner.input)[::-1]):
                if _is_row(graph, bias, norm) and not _is_row(graph, begin, norm) and \
                        is_broadcast_along_rows(graph.shape(second), whole, last):
                    return {"x": begin, "in_bias": bias, "residual": second}, [inner, add]
        return {"x": x, "residual": other}, [add]
    return {}, []


def _row_rank(graph: Graph, norm: Norm) -> int:
    """How many dimensions a row has."""
    weight = graph.shape(norm.inputs.get("weight", ""))
    return len([size for size in weight if size != 1]) or 1 if weight else 1


def _is_row(graph: Graph, name: str, norm: Norm) -> bool:
    """Whether a value is a vector for each row, of the weight's type."""
    shape = graph.shape(name)
    dtype = norm.dtypes.get("weight", norm.dtypes["x"])
    return shape is not None and len(shape) == 1 and shape[0] == norm.columns and graph.is_constant(name) and \
        graph.dtype(name) == dtype and norm.columns > 1


def fuse_activation(graph: Graph, norm: Norm, claimed: set[int]) -> None:
    """Takes a Relu, Gelu or SiLU that alone uses y, as one operator or in single steps."""
    y = norm.outputs["y"]
    if y in graph.fixed:
        return
    users = graph.users.get(y, [])
    found: Optional[tuple[str, list[onnx.NodeProto]]] = None
    if len(users) == 1:
        found = _activation_of(users[0])
    elif len(users) == 2:
        found = _erf_gelu(graph, y, users) or _silu(graph, y, users)
    if found is None or any(id(node) in claimed for node in found[1]):
        return
    norm.activation, nodes = found
    norm.nodes = norm.nodes + nodes
    norm.outputs["y"] = nodes[-1].output[0]


def _activation_of(node: onnx.NodeProto) -> Optional[tuple[str, list[onnx.NodeProto]]]:
    onnx_own = node.domain in ("", "ai.onnx")
    if onnx_own and node.op_type == "Relu":
        return "relu", [node]
    if onnx_own and node.op_type == "Gelu":
        kind = attribute(node, "approximate", b"none").decode()
        return (_AS_GELU[kind], [node]) if kind in _AS_GELU else None
    if node.domain == "com.microsoft" and node.op_type == "Gelu":
        return "gelu", [node]
    if node.domain == "com.microsoft" and node.op_type == "FastGelu" and len(node.input) == 1:
        return "gelu_tanh", [node]
    if node.domain == "com.microsoft" and node.op_type == "QuickGelu" and attribute(node, "alpha", 1.702) == 1:
        return "silu", [node]
    if onnx_own and node.op_type == "Swish" and attribute(node, "alpha", 1.0) == 1:
        return "silu", [node]
    return None


def _is_near(value: Optional[float], wanted: float) -> bool:
    return value is not None and math.isclose(value, wanted, rel_tol=2e-3)  # as f16 and bf16 round it


def _erf_gelu(graph: Graph, y: str, users: list[onnx.NodeProto]) -> Optional[tuple[str, list[onnx.NodeProto]]]:
    """y, 0.5 and 1 + erf(y / sqrt(2)), multiplied in any order."""
    for scaled in users:
        if not (scaled.op_type == "Div" and scaled.input[0] == y and _is_near(graph.number(scaled.input[1]), math.sqrt(2))
                or scaled.op_type == "Mul" and _is_near(graph.number(_other(scaled, y)), math.sqrt(0.5))):
            continue
        erf = graph.only_user(scaled.output[0], "Erf")
        plus = graph.only_user(erf.output[0], "Add") if erf else None
        if erf is None or plus is None or graph.number(_other(plus, erf.output[0])) != 1:
            continue
        first = next(user for user in users if user is not scaled)
        product = graph.only_user(plus.output[0], "Mul")
        if product is None or first.op_type != "Mul":
            continue
        if first is product:  # y * (1 + erf), then * 0.5
            half = graph.only_user(product.output[0], "Mul")
            if half is not None and graph.number(_other(half, product.output[0])) == 0.5:
                return "gelu", [scaled, erf, plus, product, half]
        elif graph.number(_other(first, y)) == 0.5 and first.output[0] == _other(product, plus.output[0]) \
                and graph.is_used_once(first.output[0]):  # (y * 0.5) * (1 + erf)
            return "gelu", [scaled, erf, plus, first, product]
        elif first.op_type == "Mul" and graph.number(_other(product, plus.output[0])) == 0.5 \
                and _other(first, y) == product.output[0] and graph.is_used_once(product.output[0]):
            return "gelu", [scaled, erf, plus, product, first]  # y * (0.5 * (1 + erf))
    return None


def _silu(graph: Graph, y: str, users: list[onnx.NodeProto]) -> Optional[tuple[str, list[onnx.NodeProto]]]:
    for sigmoid, product in (users, users[::-1]):
        if sigmoid.op_type == "Sigmoid" and product.op_type == "Mul" and graph.is_used_once(sigmoid.output[0]) \
                and _other(product, y) == sigmoid.output[0]:
            return "silu", [sigmoid, product]
    return None


def _other(node: onnx.NodeProto, name: str) -> str:
    """The other input of a node of two."""
    return str(node.input[1] if node.input[0] == name else node.input[0])


def fuse_quantization(graph: Graph, norm: Norm, claimed: set[int]) -> None:
    """Takes a QuantizeLinear of y with one scale."""
    y = norm.outputs["y"]
    nodes = [node for node in graph.users.get(y, ()) if node.op_type == "QuantizeLinear" and node.domain in ("", "ai.onnx")
             and node.input[0] == y and id(node) not in claimed]
    if not nodes:
        return
    node = nodes[0]
    dtype, scale = norm.dtypes["y"], node.input[1]
    zero = node.input[2] if len(node.input) > 2 else ""
    element = graph.element(zero) if zero else attribute(node, "output_dtype", 0) or onnx.TensorProto.UINT8
    others = y in graph.fixed or len(graph.users[y]) > 1
    reason = ""
    if element not in NARROW:
        reason = "its type is none of int8, float8e4m3fn and float8e5m2"
    elif graph.shape(scale) is None or math.prod(
            size if isinstance(size, int) else 0 for size in graph.shape(scale) or ()) != 1:
        reason = "it has a scale for each of several parts, or one of a shape that is not known"
    elif zero and not _is_zero(graph, zero):
        reason = "its zero point is not a constant 0"
    elif attribute(node, "saturate", 1) != 1:
        reason = "it does not saturate"
    elif dtype == "f64" or norm.dtypes.get("weight") == "f64":
        reason = "the norm is computed in f64"
    elif others and dtype not in ELEMENTS.values():
        reason = "others use the result in front of it"
    elif graph.dtype(scale) != "f32" and graph.number(scale) is None:
        reason = "its scale is not a constant, nor f32"
    elif graph.depends_on([scale], norm.nodes):
        reason = "its scale is made of the norm's results"
    if reason:
        norm.notes.append("the QuantizeLinear behind it, since {}".format(reason))
        return
    if graph.dtype(scale) != "f32":
        scale = graph.as_f32(scale)
    norm.nodes = norm.nodes + [node]
    norm.inputs["tensor_scale"], norm.outputs["y"] = scale, node.output[0]
    if others:
        norm.outputs["also"], norm.dtypes["also"] = y, dtype
    norm.dtypes["y"], norm.quantized = NARROW[element], True
    if dtype in HALVES and dtype == norm.dtypes["x"]:
        norm.rounding.add("y")


def _is_zero(graph: Graph, name: str) -> bool:
    return graph.number(name) == 0
