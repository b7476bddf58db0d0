# SPDX-License-Identifier: Apache-2.0
"""Finds the LayerNormalization nodes of an ONNX model (opset 17, or put there by an optimiser), subgraphs included."""
import collections
import math
import mmap
import os
import struct

from model_layers import BadModel, Findings, Layer, NotTaken
from model_protobuf import Message

# The numbers of the fields, from onnx.proto.
MODEL_GRAPH, MODEL_FUNCTIONS = 7, 25
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO = 1, 5, 11, 12, 13
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
ATTRIBUTE_NAME, ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 1, 2, 3, 5, 6, 11
TENSOR_DIMS, TENSOR_TYPE, TENSOR_NAME = 1, 2, 8
VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TENSOR_TYPE_ELEMENT, TENSOR_TYPE_SHAPE, SHAPE_DIM, DIM_VALUE = 1, 2, 1, 1, 2, 1, 1
FUNCTION_NAME, FUNCTION_NODE = 1, 7

ELEMENTS = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}
DOMAINS = ("", "ai.onnx", "com.microsoft")
OTHER_OPERATORS = ("SkipLayerNormalization", "EmbedLayerNormalization", "QOrderedLayerNormalization", "RMSNormalization",
                   "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")
SHAPE_INFERENCE = "; run onnx.shape_inference.infer_shapes on the model first"

# dtype is None for one that normjit does not have; shape is None if it is not told, and so is each of its dimensions.
Tensor = collections.namedtuple("Tensor", "dtype shape")


def tensor_of(tensor):
    """Of a TensorProto."""
    return Tensor(ELEMENTS.get(tensor.integer(TENSOR_TYPE)), tuple(tensor.integers(TENSOR_DIMS)))


def value_of(value):
    """Of a ValueInfoProto."""
    for kind in value.messages(VALUE_TYPE):
        for tensor in kind.messages(TYPE_TENSOR):
            shapes = [tuple(dim.integer(DIM_VALUE, None) for dim in shape.messages(SHAPE_DIM))
                      for shape in tensor.messages(TENSOR_TYPE_SHAPE)]
            return Tensor(ELEMENTS.get(tensor.integer(TENSOR_TYPE_ELEMENT)), shapes[-1] if shapes else None)
    return Tensor(None, None)


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
        self.operator = node.string(NODE_OP)
        self.domain = node.string(NODE_DOMAIN)
        self.inputs = node.strings(NODE_INPUT)
        self.outputs = node.strings(NODE_OUTPUT)
        self.attributes = {each.string(ATTRIBUTE_NAME): each for each in node.messages(NODE_ATTRIBUTE)}
        self.name = node.string(NODE_NAME) or "the one that makes " + self.output(0)

    def input(self, index):
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index):
        return self.outputs[index] if index < len(self.outputs) else ""

    def subgraphs(self):
        return [graph for each in self.attributes.values()
                for graph in each.messages(ATTRIBUTE_GRAPH) + each.messages(ATTRIBUTE_GRAPHS)]


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
    """Of a LayerNormalization node: inputs X, Scale and perhaps B; outputs Y and perhaps Mean and InvStdDev."""
    unknown = Tensor(None, None)
    x, scale, y = tensors.get(node.input(0), unknown), tensors.get(node.input(1), unknown), tensors.get(node.output(0), unknown)
    bias = tensors.get(node.input(2), unknown) if node.input(2) else None
    axis = node.attributes["axis"].integer(ATTRIBUTE_INT) if "axis" in node.attributes else -1
    columns = columns_of(x, scale, bias, axis)
    if scale.dtype is None:
        raise NotTaken("the dtype of its Scale is none of f16, bf16, f32 and f64")
    if bias and bias.dtype not in (None, scale.dtype):
        raise NotTaken("its Scale and B differ in dtype")
    dtype = x.dtype or scale.dtype
    epsilon = from_f32(node.attributes["epsilon"].float(ATTRIBUTE_FLOAT), dtype) if "epsilon" in node.attributes else 1e-5
    return Layer(columns, dtype, y.dtype or dtype, scale.dtype, epsilon, "wb" if bias else "w",
                 statistics=bool(node.output(1) or node.output(2)))


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
    if node.operator == "LayerNormalization" and node.domain in DOMAINS:
        findings.add(node.name, lambda: layer_of(node, tensors))
    elif node.operator in OTHER_OPERATORS:
        findings.skip(node.name, node.operator + " is another operation, which normjit does not have")
    elif node.operator == "Sqrt" and is_decomposed(node, makers):
        findings.skip(node.name, "a LayerNorm in single steps; export with opset 17 or later, or fuse it with ONNX Runtime's optimizer")
    elif node.operator == "Constant" and "value" in node.attributes:
        for tensor in node.attributes["value"].messages(ATTRIBUTE_TENSOR):
            tensors[node.output(0)] = tensor_of(tensor)
    elif node.operator == "Identity" and node.input(0) in tensors:
        tensors[node.output(0)] = tensors[node.input(0)]


def read_graph(graph, outer, findings):
    """Adds what is in the graph. `outer` has the tensors of the graphs around it, by name."""
    tensors = outer.new_child()
    for number in (GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO):
        tensors.update((value.string(VALUE_NAME), value_of(value)) for value in graph.messages(number))
    tensors.update((tensor.string(TENSOR_NAME), tensor_of(tensor)) for tensor in graph.messages(GRAPH_INITIALIZER))
    makers = {}
    for node in map(Node, graph.messages(GRAPH_NODE)):
        makers.update((name, node) for name in node.outputs)
        read_node(node, tensors, makers, findings)
        for inner in node.subgraphs():
            read_graph(inner, tensors, findings)


def read_function(function, findings):
    for node in map(Node, function.messages(FUNCTION_NODE)):
        if node.operator == "LayerNormalization":
            findings.skip(function.string(FUNCTION_NAME),
                          "in a function of the model, which has no shapes; inline it first (onnx.inliner.inline_local_functions)")


def read_onnx(path):
    findings = Findings()
    try:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""
            model = Message(memoryview(data))
        graphs = model.messages(MODEL_GRAPH)
        if not graphs:
            raise BadModel("it has no graph")
        for graph in graphs:
            read_graph(graph, collections.ChainMap(), findings)
        for function in model.messages(MODEL_FUNCTIONS):
            read_function(function, findings)
    except BadModel as error:
        raise BadModel("{} is not an ONNX model, or damaged: {}".format(path, error))
    return findings
