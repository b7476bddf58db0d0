# SPDX-License-Identifier: Apache-2.0
"""Finds the norms of a model, and puts nodes normjit::Norm in their places."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import helper

from normjit import _library
from normjit.onnx import _neighbours, _norms, _steps
from normjit.onnx._graph import ELEMENTS, Graph, names_in, sorted_nodes, subgraphs
from normjit.onnx._norms import OPERANDS, RESULTS, Norm
from normjit.onnx._report import Finding, NotTaken

DOMAIN = "normjit"
_OLDEST = 7  # opset, in which Add and the like broadcast as they do today
_ELEMENTS = {name: element for element, name in {**ELEMENTS, **_neighbours.NARROW}.items()}


def rewrite(model: onnx.ModelProto) -> list[Finding]:
    """normjit.onnx.rewrite"""
    graph = Graph(model)
    findings: list[Finding] = []
    norms: list[Norm] = []
    claimed: set[int] = set()  # nodes that become a part of some norm
    for node in graph.nodes:
        if id(node) in claimed:
            continue
        if _norms.is_norm(node) or graph.opset >= _OLDEST and _steps.looks_like_norm(graph, node):
            name = node.name or node.output[0]
            try:
                norm = _norms.of_operator(graph, node) if _norms.is_norm(node) else _steps.of_steps(graph, node)
                if any(id(each) in claimed for each in norm.nodes):
                    raise NotTaken("a norm in single steps, of which another one has a part")
                _fuse(graph, norm, claimed)
                _check(norm.spec())
            except NotTaken as why:
                findings.append(Finding(name, (node.op_type,), reason=str(why)))
                continue
            norms.append(norm)
            claimed.update(map(id, norm.nodes))
            findings.append(Finding(name, tuple(each.op_type for each in norm.nodes), spec=norm.spec(),
                                    notes=tuple(norm.notes)))
        elif node.op_type in _norms.OTHERS:
            findings.append(Finding(node.name or node.output[0], (node.op_type,), reason=_norms.OTHERS[node.op_type]))
        for inner in subgraphs(node):
            findings.extend(_left(inner, "it is in a subgraph of the node {}, and subgraphs are left as they are".format(
                node.name or node.op_type)))
    for function in model.functions:
        findings.extend(_left(function, "it is in the function {} of the model; inline it first "
                              "(onnx.inliner.inline_local_functions)".format(function.name)))
    if norms:
        _put(graph, norms, claimed)
    return findings


def _left(part: onnx.GraphProto | onnx.FunctionProto, reason: str) -> Iterator[Finding]:
    for node in part.node:
        if _norms.is_norm(node):
            yield Finding(node.name or node.output[0], (node.op_type,), reason=reason)
        for inner in subgraphs(node):
            yield from _left(inner, reason)


def _fuse(graph: Graph, norm: Norm, claimed: set[int]) -> None:
    if graph.opset < _OLDEST:
        return
    claimed = claimed | set(map(id, norm.nodes))
    _neighbours.fuse_sum(graph, norm, claimed)
    _neighbours.fuse_activation(graph, norm, claimed)
    _neighbours.fuse_quantization(graph, norm, claimed)


def _check(spec: str) -> None:
    """By the library, where there is one. Raises NotTaken."""
    try:
        _library.parse_spec(spec)
    except _library.Error as why:
        raise NotTaken("normjit does not have {}: {}".format(spec, why)) from why
    except ImportError:
        pass  # found out by the session


def _put(graph: Graph, norms: list[Norm], claimed: set[int]) -> None:
    """Replaces the nodes of each norm by one."""
    proto = graph.graph
    instead = {max(norm.nodes, key=lambda node: graph.place[id(node)]).output[0]: norm for norm in norms}
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        if node.output and node.output[0] in instead and id(node) in claimed:
            nodes.append(_node(instead[node.output[0]]))
        if id(node) not in claimed:
            nodes.append(node)
    nodes = sorted_nodes(proto, nodes)
    used = {value.name for value in proto.output}
    for node in nodes:
        used.update(node.input)
        for inner in subgraphs(node):
            used.update(names_in(inner))
    nodes = [node for node in nodes if node.op_type != "Constant" or node.output[0] in used]
    kept_nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.node[:]
    proto.node.extend(kept_nodes)
    gone = {name for name in graph.initializers if name in graph.users and name not in used}
    _remove(proto.initializer, gone)
    _remove(proto.input, gone)  # of IR 3
    _remove(proto.value_info, gone)
    added = [tensor for tensor in graph.added.values() if tensor.name in used]
    proto.initializer.extend(added)
    if graph.model.ir_version < 4:
        proto.input.extend(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in added)
    _declare(graph, norms)
    if not any(opset.domain == DOMAIN for opset in graph.model.opset_import):
        graph.model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _remove(values: Any, names: set[str]) -> None:
    """Removes those of these names from a repeated field."""
    for place in reversed(range(len(values))):
        if values[place].name in names:
            del values[place]


def _node(norm: Norm) -> onnx.NodeProto:
    return helper.make_node("Norm", [norm.inputs[name] for name in OPERANDS if name in norm.inputs],
                            [norm.outputs[name] for name in RESULTS if name in norm.outputs],
                            name=norm.name, domain=DOMAIN, spec=norm.spec())


def _declare(graph: Graph, norms: list[Norm]) -> None:
    """The types of all results: ONNX Runtime infers none of them."""
    proto = graph.graph
    declared = {value.name for value in proto.output}
    by_name = {value.name: value for value in proto.value_info}
    for norm in norms:
        x = norm.dtypes["x"]
        statistic = "f64" if "f64" in norm.dtypes.values() else "f32"
        dtypes = {"y": norm.dtypes["y"], "sum": x, "mean": statistic, "rstd": statistic, "also": norm.dtypes.get("also", x)}
        for result, name in norm.outputs.items():
            if name in declared:
                continue
            if name in by_name:
                by_name[name].type.tensor_type.elem_type = _ELEMENTS[dtypes[result]]
            else:
                proto.value_info.append(helper.make_tensor_value_info(name, _ELEMENTS[dtypes[result]], graph.shape(name)))
