"""Contents of an ONNX model without importing it: operators, parameters, and all nodes that prevent
its import, of which the importer only reports the first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from graft.base.errors import GraftError, Location, ModelError
from graft.frontends.onnx.functions import (
    Functions,
    called,
    check_against_schema,
    check_call,
    local_functions,
    opset_of,
    opset_versions,
    plain_domain,
    unknown_operator,
)
from graft.frontends.onnx.reader import Source
from graft.frontends.onnx.registry import LOWERINGS, key
from graft.frontends.onnx.scope import in_order
from graft.frontends.onnx.types import dtype_from_onnx
from graft.frontends.onnx.wire import nested_messages
from graft.ir.graph import Graph
from graft.ops.indexed import index_limits


@dataclass(frozen=True, slots=True)
class Parameters:
    """The tensors that a model brings along."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A node that cannot be imported."""

    domain: str
    operator: str
    location: Location
    reason: str


def operators(model: onnx.ModelProto) -> Counter[str]:
    """How often each operator occurs, in nested graphs and local functions too."""
    nodes = (
        message for message, _ in nested_messages(model) if isinstance(message, onnx.NodeProto)
    )
    return Counter(key(node.domain, node.op_type) for node in nodes)


def parameters(source: Source) -> Parameters:
    """Initialisers, constants and weights drawn from seeds, taken together."""
    count = bits = 0
    for tensor in _tensors(source.model):
        elements = math.prod(tensor.dims)
        count += elements
        bits += elements * _bits(tensor.data_type)
    for weight in source.seeded.values():
        count += weight.nbytes // 4
        bits += weight.nbytes * 8
    return Parameters(count, bits // 8)


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for message, _ in nested_messages(model):
        if isinstance(message, onnx.GraphProto):
            yield from message.initializer
            yield from (sparse.values for sparse in message.sparse_initializer)
        elif isinstance(message, onnx.NodeProto) and message.op_type == "Constant":
            yield from (a.t for a in message.attribute if a.name == "value")


def _bits(code: int) -> int:
    try:
        return dtype_from_onnx(code).bits
    except GraftError:
        return 0  # the importer reports it


def obstacles(source: Source) -> list[Obstacle]:
    """Every node that the importer would stop at, in order."""
    model = source.model
    try:
        look = _Look(source, local_functions(model, source.name))
        opsets = opset_versions(model.opset_import, Location(source.name), source.leniency)
    except GraftError:
        return []  # no single node is the cause; the importer reports it
    look.at_nodes(model.graph.node, "", opsets)
    source.leniency.locations.clear()  # the importer has reported them
    return look.obstacles


@dataclass
class _Look:
    source: Source
    functions: Functions
    obstacles: list[Obstacle] = field(default_factory=list)
    seen: set[tuple[str, str, str]] = field(default_factory=set)  # functions looked into

    def at_nodes(
        self, nodes: Sequence[onnx.NodeProto], path: str, opsets: Mapping[str, int]
    ) -> None:
        for index, node in enumerate(_in_import_order(nodes, self.source.name)):
            label = f"{path}{node.name or f'{node.op_type}_{index}'}"
            self._at_node(node, Location(self.source.name, label, node.op_type), opsets)

    def _at_node(self, node: onnx.NodeProto, location: Location, opsets: Mapping[str, int]) -> None:
        domain = plain_domain(node.domain)
        try:
            self._check(node, domain, location, opsets)
        except GraftError as error:
            self.obstacles.append(Obstacle(domain, node.op_type, location, error.message))
        for attribute in node.attribute:
            for graph in _graphs(attribute):
                self.at_nodes(graph.node, f"{location.node}/{attribute.name}/", opsets)

    def _check(
        self, node: onnx.NodeProto, domain: str, location: Location, opsets: Mapping[str, int]
    ) -> None:
        function = self.functions.get(called(node))
        if function is not None:
            check_call(function, node, self.source.leniency, location)
            self._into(function, called(node), location, opsets)
            return
        opset = opset_of(domain, opsets, self.source.leniency, location)
        if key(domain, node.op_type) in LOWERINGS:
            check_against_schema(node, domain, opset, self.source.leniency, location)
            return
        try:
            schema: Any = onnx.defs.get_schema(node.op_type, opset, domain)
        except onnx.defs.SchemaError:
            raise unknown_operator(node, opset, location) from None
        if schema.has_function:
            body = schema.function_body
            self._into(body, (domain, node.op_type, "(schema)"), location, {"": opset, **opsets})
        elif not schema.has_context_dependent_function:
            raise unknown_operator(node, opset, location)

    def _into(
        self,
        function: onnx.FunctionProto,
        identity: tuple[str, str, str],
        location: Location,
        opsets: Mapping[str, int],
    ) -> None:
        """Look at a function's nodes, at its first call only."""
        if identity not in self.seen:
            self.seen.add(identity)
            own = opset_versions(function.opset_import, location, self.source.leniency)
            self.at_nodes(function.node, f"{location.node}/", {**opsets, **own})


def _graphs(attribute: onnx.AttributeProto) -> Sequence[onnx.GraphProto]:
    return [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs


def _in_import_order(nodes: Sequence[onnx.NodeProto], source: str) -> Sequence[onnx.NodeProto]:
    """The order in which the importer numbers nodes without a name."""
    try:
        return in_order(nodes, source)
    except ModelError:
        return nodes  # they form a cycle, which the importer reports


def index_bounds(graph: Graph) -> dict[str, int]:
    """By input that is an index, the least of the static extents that it indexes."""
    result: dict[str, int] = {}
    for value, extents in index_limits(graph).items():
        numbers = [extent for extent in extents if isinstance(extent, int)]
        if numbers:
            result[value.name] = min(numbers)
    return result
