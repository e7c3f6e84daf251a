"""Scopes: what names refer to while an ONNX graph, body or function is imported.

A `Scope` lowers nodes one after the other into its builder. A body's scope has a parent: a name
defined there becomes an input of the body (or a copy, for a constant), so that the nested
graph is closed; the values captured on the way are what the body's caller has to pass. Functions
are inlined: a function's scope knows the values it was called with, and nothing else of its caller
but what the graphs among its attributes refer to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from typing import Any

import onnx

from graft.base.dtypes import Array
from graft.base.errors import GraftError, Location, ModelError, UnsupportedError
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.functions import (
    Functions,
    called,
    callers_name,
    check_against_schema,
    check_call,
    entered,
    function_body,
    instantiate,
    opset_of,
    opset_versions,
    plain_domain,
    plain_name,
    unknown_operator,
    with_own_names,
)
from graft.frontends.onnx.legacy import MODERN, modernize
from graft.frontends.onnx.leniency import Leniency
from graft.frontends.onnx.reader import Source
from graft.frontends.onnx.registry import LOWERINGS, all_results, key
from graft.frontends.onnx.types import contradiction
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.literal import Literal
from graft.ir.names import FreshNames
from graft.ir.types import Type

MAX_DEPTH = 48


@dataclass(frozen=True)
class Body:
    """An imported nested graph and the outer values that its last inputs capture."""

    graph: Graph
    captures: tuple[Value, ...]


@dataclass
class Budget:
    """How many more nodes may be lowered: a loop's body is imported again until types settle."""

    left: int

    def spend(self, location: Location) -> None:
        self.left -= 1
        if self.left < 0:
            raise ModelError("importing has no end: are loops nested in loops?", location)


@dataclass
class Scope:
    """What names mean in one graph or function body."""

    source: Source
    builder: Builder
    opsets: Mapping[str, int]
    functions: Functions
    budget: Budget
    parent: Scope | None = None  # of a nested graph: the scope around it
    caller: Scope | None = None  # of a function: where it is called
    path: str = ""
    depth: int = 0
    inlined: tuple[str, ...] = ()  # local functions that this scope is within
    # None is an operand that the function's caller has left out.
    values: dict[str, Value | None] = field(default_factory=dict)
    initializers: dict[str, Literal | Array] = field(default_factory=dict)
    captured: dict[Value, Value] = field(default_factory=dict)  # outer value -> body input
    declared: dict[str, onnx.TypeProto] = field(default_factory=dict)  # of a graph's results
    # Constants that no node has made: these keep their names. Shared by all scopes.
    constants: set[Value] = field(default_factory=set)

    def lookup(self, name: str) -> Value | None:
        """The value of a name, captured from an outer scope where need be."""
        if name in self.values:
            return self.values[name]
        value = self._find(name)
        if value is not None:
            self.values[name] = value
        return value

    def _find(self, name: str) -> Value | None:
        around = self.parent
        if around is not None and around.builder is self.builder and name not in self.initializers:
            return around.lookup(name)
        literal = self._initializer(name)
        if literal is not None:
            return self._constant(literal, plain_name(name))
        if around is not None:
            return self._capture(around.lookup(name))
        outside = callers_name(name)
        return self.caller.lookup(outside) if self.caller is not None and outside else None

    def _constant(self, literal: Literal, name: str) -> Value:
        """Add a constant without a source location, since it may serve many nodes."""
        location, self.builder.location = self.builder.location, None
        value = self.builder.constant(literal, out=name)
        self.builder.location = location
        self.constants.add(value)
        return value

    def _is_absent(self, name: str) -> bool:
        """Whether the name is an operand that was left out."""
        if name in self.values:
            return self.values[name] is None
        if self.parent is not None:
            return self.parent._is_absent(name)
        outside = callers_name(name)
        return self.caller is not None and bool(outside) and self.caller._is_absent(outside or "")

    def _initializer(self, name: str) -> Literal | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.initializers:
                result = scope.initializers[name]
                literal = result if isinstance(result, Literal) else Literal(result)
                scope.initializers[name] = literal
                return literal
            if scope is not self and name in scope.values:
                return None
            scope = scope.parent
        return None

    def _capture(self, outer: Value | None) -> Value | None:
        if outer is None or self.parent is None:
            return None
        literal = self.parent.builder.knowledge.literal(outer)
        if literal is not None:
            return self._constant(literal, outer.name)
        if outer not in self.captured:
            inner = self.builder.input(outer.name, outer.type)
            constant = self.parent.builder.knowledge.known(outer)
            if constant is not None:
                self.builder.knowledge.learn(inner, constant)
            self.captured[outer] = inner
        return self.captured[outer]

    def lower_all(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Lower nodes in order."""
        for index, node in enumerate(nodes):
            label = node.name or f"{node.op_type}_{index}"
            location = Location(self.source.name, f"{self.path}{label}", node.op_type)
            self.budget.spend(location)
            if not any(node.output) and not self.source.leniency.strict:
                error = ModelError("a node has no results", location)
                self.source.leniency.allow(error, "it is left out")
                continue
            operands = tuple(self._operand(name, location) for name in node.input)
            since = len(self.builder)
            results = self.lower_call(node, operands, location)
            outputs = zip_longest(node.output, results[: len(node.output)])
            self._define(((name, value) for name, value in outputs if name), since, location)

    def _operand(self, name: str, location: Location) -> Value | None:
        if not name:
            return None
        value = self.lookup(name)
        if value is None and not self._is_absent(name):
            raise ModelError(
                f"'{plain_name(name)}' is neither an input, an initialiser nor any node's result",
                location,
                "the file may have lost its weights, or its nodes form a cycle",
            )
        return value

    def _define(
        self, outputs: Iterable[tuple[str, Value | None]], since: int, location: Location
    ) -> None:
        """Make the results of a node known by their names; one may have several."""
        results: dict[str, Value] = {}
        names: dict[Value, str] = {}
        for name, value in outputs:
            if name in self.values or name in self.initializers or name in results:
                raise ModelError(f"'{plain_name(name)}' is defined twice", location)
            if value is None:
                text = f"the result '{plain_name(name)}' is not available"
                raise UnsupportedError(text, location)
            if name in self.declared:
                declared, leniency = self.declared[name], self.source.leniency
                _check_declared(name, declared, value.type, location, leniency)
            if value not in self.constants:
                names.setdefault(value, plain_name(name))
            results[name] = value
        renamed = self.builder.rename(names, since)
        self.values.update((name, renamed.get(value, value)) for name, value in results.items())

    def lower_call(
        self, node: onnx.NodeProto, operands: tuple[Value | None, ...], location: Location
    ) -> tuple[Value, ...]:
        """Lower one node on these operands."""
        self.builder.location = location
        domain = plain_domain(node.domain)
        leniency = self.source.leniency
        try:
            function = self.functions.get(called(node))
            if function is not None:
                check_call(function, node, leniency, location)
                within = entered(function, self.inlined)
                return self._inline(function, with_own_names(node), operands, location, within)
            opset = opset_of(domain, self.opsets, leniency, location)
            lowering = key(domain, node.op_type)
            if lowering not in LOWERINGS:
                return self._by_schema(node, operands, opset, location)
            node = check_against_schema(node, domain, opset, leniency, location)
            if domain == "" and opset < MODERN:
                node, operands = modernize(node, operands, opset, self.builder)
            results = LOWERINGS.get(lowering)(Call(node, operands, self, opset, location))
        except GraftError as error:
            raise error.at(location) from error.__cause__
        return all_results(results)

    def _by_schema(
        self,
        node: onnx.NodeProto,
        operands: tuple[Value | None, ...],
        opset: int,
        location: Location,
    ) -> tuple[Value, ...]:
        """Lower through the function body that ONNX itself defines the operator by."""
        node = with_own_names(node)
        body = function_body(node, operands, opset)
        if body is None:
            raise unknown_operator(node, opset, location)
        domain = plain_domain(node.domain)
        node = check_against_schema(node, domain, opset, self.source.leniency, location)
        return self._inline(body, node, operands, location, self.inlined)

    def _inline(
        self,
        function: onnx.FunctionProto,
        node: onnx.NodeProto,
        operands: tuple[Value | None, ...],
        location: Location,
        inlined: tuple[str, ...],
    ) -> tuple[Value, ...]:
        if self.depth >= MAX_DEPTH:
            raise ModelError(f"functions or graphs are nested more than {MAX_DEPTH} deep", location)
        if len(operands) > len(function.input):
            count = len(function.input)
            raise ModelError(
                f"{function.name} takes {count} operands, has {len(operands)}", location
            )
        own = opset_versions(function.opset_import, location, self.source.leniency)
        opsets = {**self.opsets, **own}
        inner = self._within(f"{location.node}/", caller=self, opsets=opsets, inlined=inlined)
        inner.values.update(zip_longest(function.input, operands))
        inner.lower_all(in_order(list(instantiate(function, node)), self.source.name))
        self.builder.location = location
        for name, expected in zip(function.output, node.output, strict=False):
            if expected and inner.lookup(name) is None and not inner._is_absent(name):
                message = f"the function '{function.name}' does not define its output '{name}'"
                raise ModelError(message, location)
        return tuple(inner.lookup(name) for name in function.output)  # type: ignore[misc]

    def _within(self, path: str, **changes: Any) -> Scope:
        """An empty scope one level deeper."""
        levels: dict[str, Any] = {"parent": None, "caller": None, "depth": self.depth + 1}
        tables: dict[str, Any] = {"values": {}, "initializers": {}, "captured": {}, "declared": {}}
        return replace(self, path=path, **{**levels, **tables, **changes})

    def body(self, proto: onnx.GraphProto, inputs: Sequence[tuple[str, Type]], name: str) -> Body:
        """Import a nested graph whose formal inputs have these types."""
        builder = Builder(proto.name or name, self.builder.symbols)
        inner = self._nested(proto, name, builder)
        for formal, type_ in inputs:
            if formal in inner.values:
                raise ModelError(f"the input '{plain_name(formal)}' of '{name}' is declared twice")
            inner.values[formal] = builder.input(plain_name(formal), type_)
        outputs = inner._lower_graph(proto)
        names = [plain_name(info.name) for info in proto.output]
        return Body(builder.build(*outputs, names=names), tuple(inner.captured))

    def inline(self, proto: onnx.GraphProto, name: str) -> tuple[Value, ...]:
        """Lower a nested graph without inputs as if its nodes stood in this one."""
        location = self.builder.location
        results = self._nested(proto, name, self.builder)._lower_graph(proto)
        self.builder.location = location
        return tuple(results)

    def _nested(self, proto: onnx.GraphProto, name: str, builder: Builder) -> Scope:
        location = self.builder.location
        if self.depth >= MAX_DEPTH:
            raise ModelError(f"graphs are nested more than {MAX_DEPTH} deep", location)
        path = f"{location.node}/{name}/" if location else f"{name}/"
        inner = self._within(path, parent=self, builder=builder)
        weights = self.source.weights
        for tensor in proto.initializer:
            inner.initializers[tensor.name] = weights.array(tensor)
        for sparse in proto.sparse_initializer:
            inner.initializers[sparse.values.name] = weights.dense(sparse)
        return inner

    def _lower_graph(self, proto: onnx.GraphProto) -> list[Value]:
        self.lower_all(nodes_of(self, proto))
        return [self.output(info.name) for info in proto.output]

    def bodies(self, protos: Mapping[str, onnx.GraphProto]) -> tuple[list[Graph], list[Value]]:
        """Import nested graphs without inputs of their own so that all have the same captures."""
        result = [self.body(proto, (), name) for name, proto in protos.items()]
        captures = list(dict.fromkeys(value for body in result for value in body.captures))
        return [_with_captures(body, captures) for body in result], captures

    def output(self, name: str) -> Value:
        """The value of a graph output."""
        value = self.lookup(name)
        if value is None:
            location = Location(self.source.name, self.path.rstrip("/"))
            raise ModelError(f"the output '{plain_name(name)}' is defined nowhere", location)
        return value


def _with_captures(body: Body, captures: Sequence[Value]) -> Graph:
    """The body's graph with one input for each of the captures, read or not."""
    graph = body.graph
    inner = dict(zip(body.captures, graph.inputs, strict=True))
    names = FreshNames(value.name for value in graph.values)
    inputs = (inner.get(outer) or Value(names(outer.name), outer.type) for outer in captures)
    return replace(graph, inputs=tuple(inputs))


def _check_declared(
    name: str, declared: onnx.TypeProto, type_: Type, location: Location, leniency: Leniency
) -> None:
    """Refuse a result of another kind or dtype than the graph declares it with."""
    otherwise = contradiction(declared, type_)
    if not otherwise:
        return
    error = ModelError(f"'{name}' is declared {otherwise}, but is {type_}", location)
    if not otherwise.startswith("with rank"):
        raise error
    leniency.allow(error, "the computed one counts")


def nodes_of(scope: Scope, proto: onnx.GraphProto) -> Sequence[onnx.NodeProto]:
    """A graph's nodes, each after those it reads.

    Of constants with one name, initialisers among them, the latest counts, as in ONNX Runtime.
    """
    latest: dict[str, int] = {}
    overridden = set()
    for index, node in enumerate(proto.node):
        if node.op_type == "Constant" and len(node.output) == 1:
            name = node.output[0]
            if name in latest or name in scope.initializers:
                location = Location(
                    scope.source.name, f"{scope.path}{node.name or name}", node.op_type
                )
                error = ModelError(f"'{plain_name(name)}' is defined twice", location)
                scope.source.leniency.allow(error, "the latest counts")
                scope.initializers.pop(name, None)
                overridden.add(latest.get(name))
            latest[name] = index
    nodes = [node for index, node in enumerate(proto.node) if index not in overridden]
    return in_order(nodes if overridden else proto.node, scope.source.name)


def in_order(nodes: Sequence[onnx.NodeProto], source: str) -> Sequence[onnx.NodeProto]:
    """The nodes, sorted so that each follows those it reads; a cycle is an error."""
    producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    before = [
        sorted({producer[name] for name in reads(node) if name in producer} - {i})
        for i, node in enumerate(nodes)
    ]
    if all(not earlier or earlier[-1] < i for i, earlier in enumerate(before)):
        return nodes
    try:
        return [nodes[i] for i in TopologicalSorter(dict(enumerate(before))).static_order()]
    except CycleError as error:
        first = nodes[min(error.args[1])]
        location = Location(source, first.name or first.output[0], first.op_type)
        raise ModelError("the nodes form a cycle", location) from None


def reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, those that its nested graphs capture included."""
    names = set(node.input)
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
        for graph in graphs:
            read = {info.name for info in graph.output}
            own = {info.name for info in graph.input}
            own.update(tensor.name for tensor in graph.initializer)
            own.update(sparse.values.name for sparse in graph.sparse_initializer)
            for inner in graph.node:
                read |= reads(inner)
                own.update(inner.output)
            names |= read - own
    return names
