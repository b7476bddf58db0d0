# SPDX-License-Identifier: Apache-2.0
"""Finds the norms of an ONNX model (LayerNormalization of opset 17, RMSNormalization of opset 23, and what an optimiser puts
in their place), subgraphs included."""
import collections
import math
import struct

from model_layers import BadModel, Findings, Layer, NotTaken

ELEMENTS = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}
DOMAINS = ("", "ai.onnx", "com.microsoft")
OTHER_OPERATORS = ("EmbedLayerNormalization", "QOrderedLayerNormalization")

# Where an operator has its Scale, its B, the skip that is added and the bias that is added, among its inputs, or None; the sum
# among its outputs; its norm; whether the normalized value is rounded before Scale; the epsilon that it has by default.
Operator = collections.namedtuple("Operator", "scale bias skip in_bias sum norm rounds epsilon")
OPERATORS = {
    "LayerNormalization": Operator(1, 2, None, None, None, "layernorm", False, 1e-5),
    "RMSNormalization": Operator(1, None, None, None, None, "rmsnorm", True, 1e-5),
    "SimplifiedLayerNormalization": Operator(1, None, None, None, None, "rmsnorm", False, 1e-5),
    "SkipLayerNormalization": Operator(2, 3, 1, 4, 3, "layernorm", False, 1e-12),
    "SkipSimplifiedLayerNormalization": Operator(2, None, 1, 3, 3, "rmsnorm", False, 1e-12),
}
SHAPE_INFERENCE = "; run onnx.shape_inference.infer_shapes on the model first"

# dtype is None for one that normjit does not have; shape is None if it is not told, and so is each of its dimensions.
Tensor = collections.namedtuple("Tensor", "dtype shape")


def tensor_of(tensor):
    """Of a TensorProto."""
    return Tensor(ELEMENTS.get(tensor.data_type), tuple(tensor.dims))


def value_of(value):
    """Of a ValueInfoProto."""
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return Tensor(ELEMENTS.get(tensor.elem_type), shape if tensor.HasField("shape") else None)


def from_f32(value, dtype):
    """An f32 as the decimal that was meant: 1e-5, not 9.99999974e-6. In f64 the difference counts, so there it stays."""
    if not 0 <= value < 1:
        raise NotTaken("its epsilon is not a number from 0 to 1")
    if dtype == "f64":
        return value
    return next(short for short in (float("%.*g" % (digits, value)) for digits in range(1, 10))
                if struct.pack("<f", short) == struct.pack("<f", value))


class Node:
    def __init__(self, node):
        self.operator, self.domain = node.op_type, node.domain
        self.inputs, self.outputs = node.input, node.output
        self.attributes = {each.name: each for each in node.attribute}
        self.name = node.name or "the one that makes " + self.output(0)

    def input(self, index):
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index):
        return self.outputs[index] if index < len(self.outputs) else ""

    def subgraphs(self):
        for each in self.attributes.values():
            yield from [each.g, *each.graphs] if each.HasField("g") else each.graphs


def columns_of(x, scale, bias, axis):
    """The columns of the layer: Scale and B must have just the shape that is normalized."""
    if scale.shape is None or None in scale.shape:
        raise NotTaken("the shape of its Scale is not in the file" + SHAPE_INFERENCE)
    if x.shape is not None and not -len(x.shape) <= axis < len(x.shape):
        raise NotTaken("its axis is not one of its input's")
    if axis >= 0 and x.shape is None:
        raise NotTaken("its axis counts from the front, and the rank of its input is not in the file" + SHAPE_INFERENCE)
    rank = -axis if axis < 0 else len(x.shape) - axis
    normalized = x.shape[-rank:] if x.shape is not None else scale.shape
    fits = len(scale.shape) == rank and all(a in (None, b) for a, b in zip(normalized, scale.shape))
    if not fits or (bias and bias.shape not in (None, scale.shape)):
        raise NotTaken("its Scale or B is broadcast over the normalized shape, which normjit does not do")
    return math.prod(scale.shape)


def layer_of(node, tensors):
    """Of a node of OPERATORS. Its first input is X, its outputs are Y and perhaps Mean, InvStdDev and the sum."""
    operator, unknown = OPERATORS[node.operator], Tensor(None, None)

    def given(index):
        return index is not None and node.input(index) != ""

    x, scale, y = [tensors.get(name, unknown) for name in (node.input(0), node.input(operator.scale), node.output(0))]
    bias = tensors.get(node.input(operator.bias), unknown) if given(operator.bias) else None
    added = ["inb"] * given(operator.in_bias) + ["add"] * given(operator.skip)
    added += ["sum"] * (operator.sum is not None and node.output(operator.sum) != "")
    axis = node.attributes["axis"].i if "axis" in node.attributes else -1
    columns = columns_of(x, scale, bias, axis)
    if scale.dtype is None:
        raise NotTaken("the dtype of its Scale is none of f16, bf16, f32 and f64")
    if bias and bias.dtype not in (None, scale.dtype):
        raise NotTaken("its Scale and B differ in dtype")
    dtype = x.dtype or scale.dtype
    epsilon = from_f32(node.attributes["epsilon"].f, dtype) if "epsilon" in node.attributes else operator.epsilon
    statistics = operator.norm == "layernorm" or operator.skip is not None  # which have Mean before InvStdDev
    further = [node.output(index) for index in ((1, 2) if statistics else (1,))]
    return Layer(columns, dtype, y.dtype or dtype, scale.dtype, epsilon, "wb" if bias else "w", statistics=any(further),
                 norm=operator.norm, before="/".join(added), rounds=operator.rounds)


def is_decomposed(node, makers):
    """Whether this is the root of a LayerNorm in single steps: Sub, Pow or Mul, ReduceMean, Add, Sqrt, perhaps with Casts."""
    for operators in (("Sqrt",), ("Add",), ("ReduceMean",), ("Pow", "Mul"), ("Sub",)):
        while node and node.operator == "Cast":
            node = makers.get(node.input(0))
        if not node or node.operator not in operators:
            return False
        node = makers.get(node.input(0))
    return True


def read_node(node, tensors, makers, findings):
    if node.operator in OPERATORS and node.domain in DOMAINS:
        findings.add(node.name, lambda: layer_of(node, tensors))
    elif node.operator in OTHER_OPERATORS:
        findings.skip(node.name, node.operator + " is another operation, which normjit does not have")
    elif node.operator == "Sqrt" and is_decomposed(node, makers):
        findings.skip(node.name, "a LayerNorm in single steps; export with opset 17 or later, or fuse it with ONNX Runtime's optimizer")
    elif node.operator == "Constant" and "value" in node.attributes:
        tensors[node.output(0)] = tensor_of(node.attributes["value"].t)
    elif node.operator == "Identity" and node.input(0) in tensors:
        tensors[node.output(0)] = tensors[node.input(0)]


def read_graph(graph, outer, findings):
    """Adds what is in the graph. `outer` has the tensors of the graphs around it, by name."""
    tensors = outer.new_child()
    for values in (graph.input, graph.output, graph.value_info):
        tensors.update((value.name, value_of(value)) for value in values)
    tensors.update((tensor.name, tensor_of(tensor)) for tensor in graph.initializer)
    makers = {}
    for node in map(Node, graph.node):
        makers.update((name, node) for name in node.outputs)
        read_node(node, tensors, makers, findings)
        for inner in node.subgraphs():
            read_graph(inner, tensors, findings)


def read_function(function, findings):
    for node in map(Node, function.node):
        if node.operator in OPERATORS:
            findings.skip(function.name,
                          "in a function of the model, which has no shapes; inline it first (onnx.inliner.inline_local_functions)")


def read_onnx(path):
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise BadModel("{} is an ONNX model, which is read with the package onnx: pip install onnx ({})".format(path, error))
    findings = Findings()
    try:
        model = onnx.load(path, load_external_data=False)
        if not model.HasField("graph"):
            raise BadModel("it has no graph")
        read_graph(model.graph, collections.ChainMap(), findings)
        for function in model.functions:
            read_function(function, findings)
    except (BadModel, DecodeError, UnicodeDecodeError) as error:
        raise BadModel("{} is not an ONNX model, or damaged: {}".format(path, error))
    return findings
