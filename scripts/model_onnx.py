# SPDX-License-Identifier: Apache-2.0
"""Finds the LayerNormalization nodes of an ONNX model (opset 17, or put there by an optimiser), subgraphs included."""
import collections
import math
import struct

from model_layers import BadModel, Findings, Layer, NotTaken

ELEMENTS = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}
DOMAINS = ("", "ai.onnx", "com.microsoft")
OTHER_OPERATORS = ("SkipLayerNormalization", "EmbedLayerNormalization", "QOrderedLayerNormalization", "RMSNormalization",
                   "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")
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
    """Of a LayerNormalization node: inputs X, Scale and perhaps B; outputs Y and perhaps Mean and InvStdDev."""
    unknown = Tensor(None, None)
    x, scale, y = tensors.get(node.input(0), unknown), tensors.get(node.input(1), unknown), tensors.get(node.output(0), unknown)
    bias = tensors.get(node.input(2), unknown) if node.input(2) else None
    axis = node.attributes["axis"].i if "axis" in node.attributes else -1
    columns = columns_of(x, scale, bias, axis)
    if scale.dtype is None:
        raise NotTaken("the dtype of its Scale is none of f16, bf16, f32 and f64")
    if bias and bias.dtype not in (None, scale.dtype):
        raise NotTaken("its Scale and B differ in dtype")
    dtype = x.dtype or scale.dtype
    epsilon = from_f32(node.attributes["epsilon"].f, dtype) if "epsilon" in node.attributes else 1e-5
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
        if node.operator == "LayerNormalization":
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
