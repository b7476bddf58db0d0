# SPDX-License-Identifier: Apache-2.0
"""An ONNX model with all its floating-point tensors in double precision: what results are compared with."""
import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def widened(tensor):
    if tensor.data_type not in FLOATS:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)


class Steps:
    """The nodes in place of one: those that runtimes have in f32 alone, in single steps."""

    def __init__(self, node):
        self.node, self.made = node, []

    def __call__(self, operator, *inputs, to=None, to_type=None, **attributes):
        to = to or "{}/{}/{}".format(self.node.output[0], self.node.op_type, len(self.made))
        if to_type is not None:
            attributes["to"] = to_type
        self.made.append(helper.make_node(operator, list(inputs), [to], **attributes))
        return to

    def constant(self, value):
        return self("Constant", value=numpy_helper.from_array(np.asarray(value)))


def layer_norm(node):
    """LayerNormalization over the last axis."""
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if attributes.get("axis", -1) != -1 or len(node.output) != 1:
        raise ValueError("{}: a LayerNormalization of the last axis, with one result, is needed".format(node.name))
    step = Steps(node)
    axes = step.constant(np.array([-1], np.int64))
    centered = step("Sub", node.input[0], step("ReduceMean", node.input[0], axes))
    variance = step("ReduceMean", step("Mul", centered, centered), axes)
    deviation = step("Sqrt", step("Add", variance, step.constant(float(attributes.get("epsilon", 1e-5)))))
    result = step("Mul", step("Div", centered, deviation), node.input[1])
    step(*(("Add", result, node.input[2]) if len(node.input) > 2 and node.input[2] else ("Identity", result)), to=node.output[0])
    return step.made


def gelu(node):
    if any(each.name == "approximate" and each.s != b"none" for each in node.attribute):
        raise ValueError("{}: an exact Gelu is needed".format(node.name))
    step = Steps(node)
    inner = step("Erf", step("Mul", node.input[0], step.constant(math.sqrt(0.5))))
    step("Mul", step("Mul", node.input[0], step.constant(0.5)), step("Add", inner, step.constant(1.0)), to=node.output[0])
    return step.made


def convolution(node):
    """Conv of one dimension, as a sum of matrix products; others stay."""
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if len(attributes.get("kernel_shape", ())) != 1:
        return [node]
    if attributes.get("group", 1) != 1 or list(attributes.get("dilations", [1])) != [1] or \
            attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise ValueError("{}: a Conv of one group, without dilation, with pads in numbers, is needed".format(node.name))
    step, (taps,) = Steps(node), attributes["kernel_shape"]
    stride, pads = list(attributes.get("strides", [1])), attributes.get("pads", [0, 0])

    def integers(*values):
        return step.constant(np.array(values, np.int64))

    padded = step("Pad", node.input[0], integers(0, 0, pads[0], 0, 0, pads[1]), step.constant(0.0))
    total = None
    for tap in range(taps):
        end = tap + 1 - taps or np.iinfo(np.int64).max
        inputs = step("Slice", padded, integers(tap), integers(end), integers(2), integers(*stride))
        product = step("MatMul", step("Gather", node.input[1], step.constant(np.int64(tap)), axis=2), inputs)
        total = step("Add", total, product) if total else product
    bias = node.input[2] if len(node.input) > 2 else ""
    step(*(("Add", total, step("Unsqueeze", bias, integers(1))) if bias else ("Identity", total)), to=node.output[0])
    return step.made


IN_STEPS = {"LayerNormalization": layer_norm, "Gelu": gelu, "Conv": convolution}


def changed(node):
    if node.op_type in IN_STEPS:
        return IN_STEPS[node.op_type](node)
    for each in node.attribute:
        if node.op_type == "Cast" and each.name == "to" and each.i in FLOATS:
            each.i = TensorProto.DOUBLE
        elif each.type == onnx.AttributeProto.TENSOR:
            each.t.CopyFrom(widened(each.t))
        elif node.op_type == "Constant" and each.name in ("value_float", "value_floats"):
            value = np.array(helper.get_attribute_value(each), np.float64)
            each.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
    return [node]


def narrowed(node):
    """A node that computes in f32, between casts."""
    step = Steps(node)
    inputs = [step("Cast", name, to_type=TensorProto.FLOAT) if name else "" for name in node.input]
    result = step(node.op_type, *inputs)
    step.made[-1].attribute.extend(node.attribute)
    step("Cast", result, to=node.output[0], to_type=TensorProto.DOUBLE)
    return step.made


def in_double(model, narrow=()):
    """Changes the model, whose weights are loaded. Operators of `narrow` compute in f32."""
    graph = model.graph
    for i, tensor in enumerate(graph.initializer):
        graph.initializer[i].CopyFrom(widened(tensor))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    nodes = [after for node in graph.node for after in changed(node)]
    nodes = [after for node in nodes for after in (narrowed(node) if node.op_type in narrow else [node])]
    del graph.node[:]
    graph.node.extend(nodes)
