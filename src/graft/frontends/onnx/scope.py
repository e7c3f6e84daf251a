"""Names and what they stand for while an ONNX graph, body or function is imported.

A `Scope` lowers nodes one after the other into its builder. A body's scope has a parent: a name
that is found there becomes an input of the body (or a copy, for a constant), so that the nested
graph is closed; the values captured on the way are what the body's caller has to pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import onnx

from graft.base.dtypes import Array
from graft.base.errors import GraftError, ModelError, Place, UnsupportedError
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.functions import function_body, instantiate
from graft.frontends.onnx.legacy import MODERN, modernize
from graft.frontends.onnx.reader import Source
from graft.frontends.onnx.registry import LOWERINGS, key
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.literal import Literal
from graft.ir.types import Type

MAX_DEPTH = 48


@dataclass(frozen=True)
class Body:
    """An imported nested graph and the outer values that its last inputs stand for."""

    graph: Graph
    captures: tuple[Value, ...]


@dataclass
class Scope:
    """What names mean in one graph or function body."""

    source: Source
    builder: Builder
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], onnx.FunctionProto]
    parent: Scope | None = None
    path: str = ""
    depth: int = 0
    values: dict[str, Value] = field(default_factory=dict)
    initializers: dict[str, Literal | Array] = field(default_factory=dict)
    captured: dict[Value, Value] = field(default_factory=dict)  # outer value -> body input

    def lookup(self, name: str) -> Value | None:
        """The value of a name, captured from an outer scope where need be."""
        value = self.values.get(name)
        if value is None:
            literal = self._initializer(name)
            if literal is not None:
                value = self.builder.constant(literal, out=name)
            elif self.parent is not None:
                value = self._capture(self.parent.lookup(name))
            if value is not None:
                self.values[name] = value
        return value

    def _initializer(self, name: str) -> Literal | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.initializers:
                found = scope.initializers[name]
                literal = found if isinstance(found, Literal) else Literal(found)
                scope.initializers[name] = literal
                return literal
            if scope is not self and name in scope.values:
                return None
            scope = scope.parent
        return None

    def _capture(self, outer: Value | None) -> Value | None:
        if outer is None or self.parent is None:
            return None
        literal = self.parent.builder.literal(outer)
        if literal is not None:
            return self.builder.constant(literal, out=outer.name)
        if outer not in self.captured:
            inner = self.builder.input(outer.name, outer.type)
            known = self.parent.builder.known(outer)
            if known is not None:
                self.builder.learn(inner, known)
            self.captured[outer] = inner
        return self.captured[outer]

    def lower_all(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Lower nodes in order."""
        for index, node in enumerate(nodes):
            label = node.name or f"{node.op_type}_{index}"
            place = Place(self.source.name, f"{self.path}{label}", node.op_type)
            operands = tuple(self._operand(name, place) for name in node.input)
            since = len(self.builder)
            results = self.lower_call(node, operands, place)
            for name, value in zip(node.output, results, strict=False):
                if name:
                    self._define(name, value, since, place)

    def _operand(self, name: str, place: Place) -> Value | None:
        if not name:
            return None
        value = self.lookup(name)
        if value is None:
            raise ModelError(
                f"'{name}' is neither an input, an initialiser nor any node's result",
                place,
                "the file may have lost its weights, or its nodes form a cycle",
            )
        return value

    def _define(self, name: str, value: Value | None, since: int, place: Place) -> None:
        if name in self.values:
            raise ModelError(f"'{name}' is defined twice", place)
        if value is None:
            raise UnsupportedError(f"the result '{name}' is not available", place)
        self.values[name] = self.builder.rename(value, name, since)

    def lower_call(
        self, node: onnx.NodeProto, operands: tuple[Value | None, ...], place: Place
    ) -> tuple[Value, ...]:
        """Lower one node on given operands."""
        self.builder.place = place
        domain = "" if node.domain == "ai.onnx" else node.domain
        opset = self.opsets.get(domain)
        try:
            function = self.functions.get((domain, node.op_type))
            if function is not None:
                return self._inline(function, node, operands, place)
            if opset is None:
                raise ModelError(f"the model imports no opset of domain '{domain}'", place)
            lowering = key(domain, node.op_type)
            if lowering not in LOWERINGS:
                return self._by_schema(node, operands, opset, place)
            check_against_schema(node, domain, opset)
            if domain == "" and opset < MODERN:
                node, operands = modernize(node, operands, opset, self.builder)
            results = LOWERINGS.get(lowering)(Call(node, operands, self, opset, place))
        except GraftError as error:
            raise error.at(place) from error.__cause__
        return results if isinstance(results, tuple) else (results,)  # type: ignore[return-value]

    def _by_schema(
        self, node: onnx.NodeProto, operands: tuple[Value | None, ...], opset: int, place: Place
    ) -> tuple[Value, ...]:
        """Lower through the function body that ONNX itself defines the operator by."""
        body = function_body(node, operands, opset)
        if body is None:
            raise unknown_operator(node, opset, place)
        return self._inline(body, node, operands, place)

    def _inline(
        self,
        function: onnx.FunctionProto,
        node: onnx.NodeProto,
        operands: tuple[Value | None, ...],
        place: Place,
    ) -> tuple[Value, ...]:
        if self.depth >= MAX_DEPTH:
            raise ModelError(f"functions or graphs are nested more than {MAX_DEPTH} deep", place)
        opsets = {**self.opsets, **opset_versions(function.opset_import)}
        path = f"{place.node}/"
        functions, depth = self.functions, self.depth + 1
        inner = Scope(self.source, self.builder, opsets, functions, None, path, depth)
        for name, value in zip(function.input, operands, strict=False):
            if value is not None:
                inner.values[name] = value
        inner.lower_all(instantiate(function, node))
        self.builder.place = place
        results = (inner.lookup(name) for name in function.output)
        return tuple(results)  # type: ignore[arg-type]

    def body(self, proto: onnx.GraphProto, inputs: Sequence[tuple[str, Type]], name: str) -> Body:
        """Import a nested graph whose formal inputs have the given types."""
        if self.depth >= MAX_DEPTH:
            raise ModelError(f"graphs are nested more than {MAX_DEPTH} deep", self.builder.place)
        place = self.builder.place
        path = f"{place.node}/{name}/" if place else f"{name}/"
        builder = Builder(proto.name or name, self.builder.symbols)
        functions, depth = self.functions, self.depth + 1
        inner = Scope(self.source, builder, self.opsets, functions, self, path, depth)
        for formal, type_ in inputs:
            inner.values[formal] = builder.input(formal, type_)
        for tensor in proto.initializer:
            inner.initializers[tensor.name] = self.source.weights.array(tensor)
        inner.lower_all(sorted_nodes(proto, self.source.name))
        outputs = [inner.output(info.name) for info in proto.output]
        graph = builder.build(*outputs, names=[info.name for info in proto.output])
        self.builder.place = place
        return Body(graph, tuple(inner.captured))

    def output(self, name: str) -> Value:
        """The value of a graph output."""
        value = self.lookup(name)
        if value is None:
            raise ModelError(f"the output '{name}' is defined nowhere", Place(self.source.name))
        return value


def unknown_operator(node: onnx.NodeProto, opset: int, place: Place) -> UnsupportedError:
    """The error for an operator that nothing lowers."""
    if node.domain in ("", "ai.onnx", "ai.onnx.ml"):
        return UnsupportedError(
            f"operator {node.op_type} of opset {opset} is not known",
            place,
            "check the spelling, or convert the model to a newer opset",
        )
    return UnsupportedError(
        f"operator {node.op_type} belongs to the foreign domain '{node.domain}'",
        place,
        "export the model without it, or give it a body as a local function of the model",
    )


def opset_versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Opset versions by domain; `ai.onnx` is the empty domain."""
    return {("" if o.domain == "ai.onnx" else o.domain): o.version for o in imports}


def check_against_schema(node: onnx.NodeProto, domain: str, opset: int) -> None:
    """Refuse wrong operand counts and attributes that the operator does not have."""
    schema = _schema(node.op_type, domain, opset)
    if schema is None:
        raise ModelError(f"{node.op_type} does not exist in opset {opset}")
    if not schema.min_input <= len(node.input) <= schema.max_input and node.input:
        wanted = f"{schema.min_input} to {schema.max_input}"
        raise ModelError(f"{node.op_type} takes {wanted} operands, has {len(node.input)}")
    for attribute in node.attribute:
        known = schema.attributes.get(attribute.name)
        if known is None:
            raise ModelError(f"{node.op_type} of opset {opset} has no '{attribute.name}'")
        if attribute.type and int(known.type.value) != attribute.type:
            raise ModelError(f"attribute '{attribute.name}' of {node.op_type} has a wrong type")


@lru_cache(maxsize=4096)
def _schema(op_type: str, domain: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def sorted_nodes(proto: onnx.GraphProto, source: str) -> Sequence[onnx.NodeProto]:
    """The nodes in an order in which each follows those it reads; a cycle is an error."""
    producer = {name: i for i, node in enumerate(proto.node) for name in node.output if name}
    before = [
        sorted({producer[name] for name in _reads(node) if name in producer} - {i})
        for i, node in enumerate(proto.node)
    ]
    if all(not earlier or earlier[-1] < i for i, earlier in enumerate(before)):
        return proto.node
    waiting = [len(earlier) for earlier in before]
    followers: list[list[int]] = [[] for _ in before]
    for i, earlier in enumerate(before):
        for j in earlier:
            followers[j].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        i = ready.pop()
        order.append(i)
        for j in followers[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    if len(order) < len(before):
        stuck = next(node for i, node in enumerate(proto.node) if waiting[i])
        place = Place(source, stuck.name or stuck.output[0], stuck.op_type)
        raise ModelError("the nodes form a cycle", place)
    return [proto.node[i] for i in order]


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    """Names that a node reads, those that its nested graphs capture included."""
    yield from node.input
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
        for graph in graphs:
            own = {name for inner in graph.node for name in inner.output}
            own.update(info.name for info in graph.input)
            yield from (n for inner in graph.node for n in _reads(inner) if n not in own)
            yield from (info.name for info in graph.output if info.name not in own)
