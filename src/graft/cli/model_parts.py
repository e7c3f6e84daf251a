"""Parts of ONNX models: nodes and values by name, operands of nodes, and models of some nodes
alone.

Only the main graph is split; bodies and functions stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx

from graft.frontends.onnx.reader import Source
from graft.frontends.onnx.scope import in_order, reads

_INITIALIZERS_ALONE = 4  # the version of ONNX's IR since which they need not be inputs, too


@dataclass(frozen=True, slots=True)
class NamedNode:
    """A node of the main graph, and its name in messages."""

    name: str
    proto: onnx.NodeProto

    @property
    def results(self) -> list[str]:
        return [name for name in self.proto.output if name]


def named_nodes(source: Source) -> list[NamedNode]:
    """The nodes of the main graph in an executable order."""
    nodes = in_order(source.model.graph.node, source.name)
    return [NamedNode(label(node, at), node) for at, node in enumerate(nodes)]


def label(node: onnx.NodeProto, position: int) -> str:
    """The importer's name of a node."""
    return node.name or f"{node.op_type}_{position}"


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def with_outputs(source: Source, names: Iterable[str]) -> Source:
    """The model with more outputs, whose types are left open."""
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    present = {info.name for info in model.graph.output}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in names if name not in present
    )
    return replace(source, model=model)


def sub_model(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """A model of some of the nodes, with the initialisers that they need and nothing else."""
    part = onnx.ModelProto()
    part.ir_version = max(model.ir_version, _INITIALIZERS_ALONE)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(_called(model, nodes))
    part.graph.name = model.graph.name
    part.graph.node.extend(nodes)
    part.graph.input.extend(inputs)
    part.graph.output.extend(outputs)
    names = {info.name for info in part.graph.output}.union(*map(reads, nodes))
    part.graph.initializer.extend(
        tensor for tensor in model.graph.initializer if tensor.name in names
    )
    part.graph.sparse_initializer.extend(
        sparse for sparse in model.graph.sparse_initializer if sparse.values.name in names
    )
    return part


def _called(
    model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]
) -> Iterator[onnx.FunctionProto]:
    """The functions that nodes call, and those that these call."""
    left = {(one.domain, one.name): one for one in model.functions}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        for body in bodies(node):
            waiting.extend(body.node)
        function = left.pop((node.domain, node.op_type), None)
        if function is not None:
            yield function
            waiting.extend(function.node)
