"""Graphs whose sizes or steps depend on data: native stretches and what stands between them.

A graph enters; a flow leaves, with the Python functions that its steps name. Stretches are compiled
as whole graphs are; branches and the bodies of loops are flows of their own. What has no native
code runs on the reference evaluator, node by node, and is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from graft.backends.host import measure
from graft.backends.host.cut import Piece, cut
from graft.backends.reference.stored import evaluated_graph, kind_of
from graft.base.dtypes import Array, dtype_of
from graft.base.errors import Place
from graft.byoc.region import borders, region_graph
from graft.ir.evaluate import evaluator_of
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import bound_symbols, symbols_in
from graft.ops import size_rules
from graft.ops.index_ranges import IndexRanges
from graft.ops.ml_features import LabelMapAttrs
from graft.ops.size_rules import rule_of, rule_text
from graft.runtime.evaluated import Evaluator
from graft.runtime.flow import (
    Choice,
    Demand,
    Evaluation,
    Flow,
    FlowStep,
    Handing,
    Kind,
    Measuring,
    Offload,
    Reading,
    Repetition,
    Stretch,
    Sweep,
    Trimming,
)
from graft.runtime.lists import LOOKUPS, OPERATIONS
from graft.runtime.lookup import Table
from graft.runtime.program import Program
from graft.runtime.shaped import ShapedProgram
from graft.runtime.spaces import Runner


@dataclass(frozen=True, eq=False)
class CompiledStretch:
    """A native program and what goes with it in this process."""

    program: Program | ShapedProgram
    functions: Mapping[str, Runner]
    reasons: Mapping[str, str]
    makes: tuple[str, ...]  # per step the value that it makes; empty for mere relayouts


@dataclass
class Made:
    """What flows need beside themselves, collected while they are built."""

    programs: dict[Program | ShapedProgram, tuple[str, ...]] = field(default_factory=dict)
    functions: dict[str, Runner] = field(default_factory=dict)
    evaluators: dict[str, Evaluator] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # value -> why the evaluator makes it
    rules: dict[str, Evaluator] = field(default_factory=dict)  # what tells sizes
    lookups: dict[str, str] = field(default_factory=dict)  # value -> what Python does for it


class StretchCompiler(Protocol):
    """What the builder asks of whoever compiles."""

    def why_not(self, node: Node) -> str:
        """Why a node has no native code even when its sizes are known; empty where it has."""
        ...

    def taken_apart(self, graph: Graph) -> Graph:
        """The graph with nodes that only their parts have native code for in these."""
        ...

    def runner(self, node: Node) -> Runner | None:
        """Who runs a node that is left to another backend; None for other nodes."""
        ...

    def compile(self, stretch: Graph, label: str, ranges: IndexRanges) -> CompiledStretch:
        """A stretch as a program; `label` keeps the names of its functions apart from others',
        `ranges` are of the whole graph."""
        ...


def build_flow(
    graph: Graph,
    compiler: StretchCompiler,
    made: Made,
    around: frozenset[str] = frozenset(),
) -> Flow:
    """The flow of a graph; `around` are the symbols that the graph around it has numbers for."""
    return _Builder(graph, compiler, made, around).flow()


class _Builder:
    def __init__(
        self, graph: Graph, compiler: StretchCompiler, made: Made, around: frozenset[str]
    ) -> None:
        mentioned = frozenset().union(*(symbols_in(value.type) for value in graph.inputs))
        self._inherited = (mentioned - graph.input_symbols) & around
        whole = compiler.taken_apart(graph)
        graph = measure.measured(whole, compiler.why_not, self._inherited)
        self._graph, self._compiler, self._made = graph, compiler, made
        self._ranges = IndexRanges(graph)
        self._numbers: dict[Value, int] = {}
        self._kinds: list[Kind] = []
        self._constants = {
            node.output: node.attrs.value.array
            for node in graph.nodes
            if node.op.name == "constant"
        }

    def flow(self) -> Flow:
        inputs = tuple(self._number(value) for value in self._graph.inputs)
        reasons = {node: self._compiler.why_not(node) for node in self._graph.nodes}
        pieces = cut(self._graph, lambda node: not reasons[node], self._inherited)
        steps = tuple(self._step(piece, reasons) for piece in pieces)
        outputs = tuple(self._number(value) for value in self._graph.outputs)
        constants = tuple(
            (number, self._constants[value])
            for value, number in self._numbers.items()
            if value in self._constants
        )
        return Flow(
            self._graph.name,
            tuple(self._kinds),
            inputs,
            constants,
            steps,
            outputs,
            tuple(sorted(self._inherited)),
        )

    def _number(self, value: Value) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(self._kinds)
            self._kinds.append(kind_of(value))
        return self._numbers[value]

    def _numbered(self, values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(self._number(value) for value in values)

    def _step(self, piece: Piece, reasons: Mapping[Node, str]) -> FlowStep:
        if piece.native:
            return self._stretch(piece.nodes)
        (node,) = piece.nodes
        match node.op.name:
            case "if":
                return self._choice(node, piece.known)
            case "loop":
                return self._repetition(node, piece.known)
            case "scan":
                return self._sweep(node, piece.known)
            case "demand":
                return self._demand(node)
            case "sized":
                (symbol,) = bound_symbols(node.output.type)
                return Reading(self._number(node.args[0]), symbol)
            case "trimmed":
                rows, counts = self._numbered(node.args)
                return Trimming(rows, counts, self._numbered(node.outputs))
            case size_rules.SIZES:
                return self._measuring(node)
            case name if name in OPERATIONS and (name not in LOOKUPS or self._has_table(node)):
                return self._handing(node)
        runner = self._compiler.runner(node)
        if runner is not None:
            return self._offload(node, runner)
        return self._evaluation(node, reasons[node] or "its size is known only from data")

    def _stretch(self, nodes: Sequence[Node]) -> Stretch:
        inputs, outputs = borders(nodes, self._graph)
        label = f"stretch {len(self._made.programs)}"
        stretch = region_graph(nodes, self._graph, label)
        compiled = self._compiler.compile(stretch, label, self._ranges)
        self._made.programs[compiled.program] = compiled.makes
        self._made.functions.update(compiled.functions)
        self._made.reasons.update(compiled.reasons)
        return Stretch(compiled.program, self._numbered(inputs), self._numbered(outputs))

    def _offload(self, node: Node, runner: Runner) -> Offload:
        attrs = node.attrs
        self._made.functions[attrs.label] = runner
        numbers = self._numbered(node.args), self._numbered(node.outputs)
        return Offload(attrs.label, *numbers, f"{attrs.backend}: region", node.place or Place())

    def _evaluation(self, node: Node, reason: str) -> Evaluation:
        name = f"{node.op.name} {len(self._made.evaluators)}"
        self._made.evaluators[name] = evaluator_of(node)
        self._made.reasons[node.output.name] = reason
        operands, outputs = self._numbered(node.args), self._numbered(node.outputs)
        place = node.place or Place()
        return Evaluation(name, operands, outputs, evaluated_graph(node), node.op.name, place)

    def _operands(self, node: Node) -> tuple[int | None, ...]:
        inputs = (*node.inputs, *node.op.absent(len(node.inputs)))
        return tuple(None if value is None else self._number(value) for value in inputs)

    def _measuring(self, node: Node) -> Measuring:
        rule = rule_text(node)
        self._made.rules[rule] = rule_of(node)
        outputs = self._numbered(node.outputs)
        return Measuring(rule, self._operands(node), outputs, node.place or Place())

    def _has_table(self, node: Node) -> bool:
        """Whether a node looks strings up, or packs maps, by constants."""
        match node.op.name:
            case "ml.zip_map":
                return True
            case "ml.label_map":
                keys, values = node.attrs.keys.array, node.attrs.values.array
                return object in (keys.dtype, values.dtype) and keys.dtype.kind != "f"
        labels = self._constants.get(node.args[0])
        return labels is not None and labels.dtype == object and labels.ndim == 1

    def _handing(self, node: Node) -> Handing:
        attrs: Any = node.attrs
        # What is taken from are strings, and become the table.
        taken = node.op.name == "take"
        step = Handing(
            node.op.name,
            self._numbered(node.args[1:]) if taken else self._operands(node),
            self._numbered(node.outputs),
            place=node.place or Place(),
        )
        match node.op.name:
            case "sequence.split":
                parts = {"chunk": attrs.chunk or 1, "sizes": attrs.sizes}
                return replace(step, axis=attrs.axis, with_axis=attrs.keepdims, **parts)
            case "sequence.concatenate":
                return replace(step, axis=attrs.axis, with_axis=not attrs.new_axis)
            case "ml.label_map":
                return self._looking_up(step, node, _label_table(attrs))
            case "ml.zip_map":
                return self._looking_up(step, node, _table(attrs.labels.array))
            case "take":
                return self._looking_up(step, node, _table(self._constants[node.args[0]]))
        return step

    def _looking_up(self, step: Handing, node: Node, table: Table) -> Handing:
        packs = node.op.name == "ml.zip_map"
        what = "rows are packed into maps" if packs else "strings are looked up in a table"
        self._made.lookups[node.output.name] = what
        return replace(step, table=table)

    def _nested(self, graph: Graph, known: frozenset[str]) -> Flow:
        return build_flow(graph, self._compiler, self._made, known)

    def _choice(self, node: Node, known: frozenset[str]) -> Choice:
        condition, *captures = node.args
        branches = (
            self._nested(node.attrs.else_branch, known),
            self._nested(node.attrs.then_branch, known),
        )
        return Choice(
            self._number(condition),
            self._numbered(captures),
            branches,
            self._numbered(node.outputs),
            node.place or Place(),
        )

    def _demand(self, node: Node) -> Demand:
        value, condition = self._numbered(node.args)
        asked, outputs = node.attrs, self._numbered(node.outputs)
        place = node.place or Place()
        return Demand(value, condition, asked.wanted, asked.message, outputs, place)

    def _repetition(self, node: Node, known: frozenset[str]) -> Repetition:
        limit, condition, *values = node.inputs
        given = [value for value in values if value is not None]
        carried = node.attrs.carried
        return Repetition(
            None if limit is None else self._number(limit),
            None if condition is None else self._number(condition),
            self._numbered(given[:carried]),
            self._numbered(given[carried:]),
            self._nested(node.attrs.body, known),
            self._numbered(node.outputs),
            node.place or Place(),
        )

    def _sweep(self, node: Node, known: frozenset[str]) -> Sweep:
        attrs = node.attrs
        first, last = attrs.carried, attrs.carried + attrs.num_scan_inputs
        return Sweep(
            self._numbered(node.args[:first]),
            self._numbered(node.args[first:last]),
            self._numbered(node.args[last:]),
            tuple(attrs.input_axes),
            tuple(bool(back) for back in attrs.input_directions),
            tuple(attrs.output_axes),
            tuple(bool(back) for back in attrs.output_directions),
            self._nested(attrs.body, known),
            self._numbered(node.outputs),
            node.place or Place(),
        )


def _table(values: Array, keys: Array | None = None, default: Any = None) -> Table:
    known = None if keys is None else tuple(keys.tolist())
    return Table(dtype_of(values.dtype), tuple(values.tolist()), known, default)


def _label_table(attrs: LabelMapAttrs) -> Table:
    default = None if attrs.default is None else attrs.default.array.item()
    return _table(attrs.values.array, attrs.keys.array, default)
