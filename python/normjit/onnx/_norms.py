# SPDX-License-Identifier: Apache-2.0
"""Norms in a graph, as one node or in single steps, and the spec that computes each."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import numpy as np
import onnx
from onnx import helper

from normjit.onnx._graph import HALVES, Graph, Shape
from normjit.onnx._report import NotTaken

# Those of a spec, in the order in which normjit::Norm has them.
OPERANDS = ("x", "in_bias", "residual", "weight", "bias", "tensor_scale")
RESULTS = ("y", "sum", "mean", "rstd", "also")


@dataclass
class Norm:
    """What one node normjit::Norm will compute."""
    name: str                          # of the node that it is known by
    nodes: list[onnx.NodeProto]        # that it replaces
    kind: str                          # "layernorm" or "rmsnorm"
    columns: int
    epsilon: float
    dtypes: dict[str, str]             # of x, weight and y; of also, where there is one
    inputs: dict[str, str]             # operand: value
    outputs: dict[str, str]            # likewise
    rounding: set[str] = field(default_factory=set)
    activation: str = ""
    quantized: bool = False
    notes: list[str] = field(default_factory=list)

    def spec(self) -> str:
        x, parts = self.dtypes["x"], [self.kind, "cols={}".format(self.columns)]
        parts.append(x)
        if self.dtypes["y"] != x:
            parts.append("out=" + self.dtypes["y"])
        if self.dtypes.get("weight", x) != x:
            parts.append("w=" + self.dtypes["weight"])
        parts.append("eps={!r}".format(self.epsilon))
        parts += ["inb"] * ("in_bias" in self.inputs) + ["add"] * ("residual" in self.inputs)
        parts += ["sum"] * ("sum" in self.outputs)
        rounding = [name for name in ("sum", "norm", "y") if name in self.rounding]
        if rounding:
            parts.append("round=" + "+".join(rounding))
        if "weight" in self.inputs:
            parts.append("wb" if "bias" in self.inputs else "w")
        parts += [self.activation] * bool(self.activation) + ["q=tensor"] * self.quantized
        if "also" in self.outputs:
            parts.append("also=" + self.dtypes["also"])
        parts += ["stats"] * ("rstd" in self.outputs)
        return "/".join(parts)


class Operator(NamedTuple):
    """Where an operator has its operands among its inputs, and its results among its outputs; None: nowhere."""
    kind: str
    weight: int
    bias: Optional[int]
    residual: Optional[int]
    in_bias: Optional[int]
    mean: Optional[int]
    rstd: Optional[int]
    sum: Optional[int]
    rounds: bool  # the normalized value, before it is multiplied by the weight
    epsilon: float


OPERATORS = {
    "LayerNormalization": Operator("layernorm", 1, 2, None, None, 1, 2, None, False, 1e-5),
    "RMSNormalization": Operator("rmsnorm", 1, None, None, None, None, None, None, True, 1e-5),
    "SimplifiedLayerNormalization": Operator("rmsnorm", 1, None, None, None, None, 1, None, False, 1e-5),
    "SkipLayerNormalization": Operator("layernorm", 2, 3, 1, 4, 1, 2, 3, False, 1e-12),
    "SkipSimplifiedLayerNormalization": Operator("rmsnorm", 2, None, 1, 3, 1, 2, 3, False, 1e-12),
}
DOMAINS = ("", "ai.onnx", "com.microsoft")
OTHERS = {
    "EmbedLayerNormalization": "it looks embeddings up as well, which normjit does not do",
    "QOrderedLayerNormalization": "its layout is one of cuBLASLt's, which normjit does not have",
    "GroupNormalization": "it normalizes groups of channels, which normjit does not do",
    "InstanceNormalization": "it normalizes each channel by itself, which normjit does not do",
}
_INFER = "; save the model with its shapes (onnx.shape_inference.infer_shapes, or by ONNX Runtime's optimizer)"


def is_norm(node: onnx.NodeProto) -> bool:
    return node.op_type in OPERATORS and node.domain in DOMAINS


def attribute(node: onnx.NodeProto, name: str, otherwise: Any) -> Any:
    for each in node.attribute:
        if each.name == name:
            return helper.get_attribute_value(each)
    return otherwise


def decimal(epsilon: float, dtype: str) -> float:
    """An epsilon that the file has as f32, as the decimal that was meant: 1e-5, not 9.99999974e-06."""
    if not 0 <= epsilon < math.inf:
        raise NotTaken("its epsilon is not a number from 0 on")
    return epsilon if dtype == "f64" else float(str(np.float32(epsilon)))


def of_operator(graph: Graph, node: onnx.NodeProto) -> Norm:
    """Of a node of OPERATORS. Raises NotTaken."""
    operator = OPERATORS[node.op_type]

    def at(names: Any, index: Optional[int]) -> str:
        return names[index] if index is not None and index < len(names) else ""

    inputs = {"x": node.input[0], "weight": at(node.input, operator.weight)}
    for name, index in (("bias", operator.bias), ("residual", operator.residual), ("in_bias", operator.in_bias)):
        if at(node.input, index):
            inputs[name] = at(node.input, index)
    outputs = {"y": node.output[0]}
    for name, index in (("sum", operator.sum), ("mean", operator.mean), ("rstd", operator.rstd)):
        value = at(node.output, index)
        if value and (value in graph.fixed or value in graph.users):
            outputs[name] = value
    return made(graph, node.name or node.output[0], [node], operator.kind, inputs, outputs,
                attribute(node, "epsilon", operator.epsilon), attribute(node, "axis", -1),
                {"norm"} if operator.rounds else set())


def made(graph: Graph, name: str, nodes: list[onnx.NodeProto], kind: str, inputs: dict[str, str],
         outputs: dict[str, str], epsilon: float, axis: int, rounding: set[str], x_dtype: str = "") -> Norm:
    """A norm of these operands, if its types and shapes are such as normjit has. Raises NotTaken."""
    x, weight, bias = inputs["x"], inputs.get("weight", ""), inputs.get("bias", "")
    if graph.is_constant(x):
        raise NotTaken("its input is a constant, and ONNX Runtime computes it as it loads the model")
    element = graph.element(x) or graph.element(weight)
    dtype = x_dtype or graph.dtype(x) or (graph.dtype(weight) if not graph.element(x) else None)
    if dtype is None:
        raise NotTaken("its type is not known" + _INFER if not element else
                       "its type is none of f16, bf16, f32 and f64")
    dtypes = {"x": dtype, "y": graph.dtype(outputs["y"]) or dtype}
    shape = graph.shape(x)
    if weight:
        dtypes["weight"] = graph.dtype(weight) or dtype
        columns = columns_of(shape, graph.shape(weight), axis)
        if bias and graph.element(bias) not in (0, graph.element(weight)):
            raise NotTaken("its Scale and B differ in type")
        for vector in (bias, inputs.get("in_bias", "")):
            if vector and graph.shape(vector) is not None and _size(graph.shape(vector)) != columns:
                raise NotTaken("a bias is broadcast over the normalized shape, which normjit does not do")
        if inputs.get("in_bias") and graph.element(inputs["in_bias"]) not in (0, graph.element(weight)):
            raise NotTaken("its Scale and its bias differ in type")
    else:
        columns = _size(shape[axis:]) if shape is not None and axis < 0 else 0
    if columns <= 0:
        raise NotTaken("how many columns it has is not known" + _INFER)
    if "rstd" in outputs and kind == "layernorm" and "mean" not in outputs:
        outputs["mean"] = graph.new_name(outputs["rstd"] + "_mean")
    if "mean" in outputs and "rstd" not in outputs:
        outputs["rstd"] = graph.new_name(outputs["mean"] + "_rstd")
    if kind == "rmsnorm" and "mean" in outputs:
        raise NotTaken("its mean is an output, which is not computed here")
    wide = onnx.TensorProto.DOUBLE if "f64" in dtypes.values() else onnx.TensorProto.FLOAT
    if any(graph.element(outputs[name]) not in (0, wide) for name in ("mean", "rstd") if name in outputs):
        raise NotTaken("its mean or deviation is an output of another type than that in which it is computed here")
    if dtype not in HALVES or "weight" not in inputs or dtypes["weight"] == "f64":
        rounding = rounding - {"norm"}
    return Norm(name, nodes, kind, columns, decimal(epsilon, dtype), dtypes, inputs, outputs, rounding)


def _size(shape: Optional[Shape]) -> int:
    """Elements; 0 where they are not known."""
    if shape is None or not all(isinstance(size, int) for size in shape):
        return 0
    return math.prod(size for size in shape if isinstance(size, int))


def columns_of(x: Optional[Shape], weight: Optional[Shape], axis: int) -> int:
    """The columns of a norm whose Scale has just the shape that is normalized."""
    if weight is None or not _size(weight):
        raise NotTaken("the shape of its Scale is not known" + _INFER)
    while len(weight) > 1 and weight[0] == 1:  # [1, 1, C] in single steps
        weight = weight[1:]
    if axis >= 0 and x is None:
        raise NotTaken("its axis counts from the front, and the rank of its input is not known" + _INFER)
    if x is not None and not -len(x) <= axis < len(x):
        raise NotTaken("its axis is not one of its input's")
    normalized = (None,) * -axis if x is None else x[axis:]
    fits = _fits(normalized, weight)
    if not fits:
        raise NotTaken("its Scale is broadcast over the normalized shape, which normjit does not do")
    return _size(weight)


def _fits(normalized: Shape, weight: Shape) -> bool:
    while len(normalized) > 1 and normalized[0] == 1 and len(normalized) > len(weight):
        normalized = normalized[1:]
    return len(normalized) == len(weight) and all(not isinstance(a, int) or a == b
                                                  for a, b in zip(normalized, weight))
