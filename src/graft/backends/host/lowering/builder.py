"""Graphs to programs: native segments, and what runs between them.

A graph enters; a program leaves, with the Python functions that its instructions name. A graph of
static shapes without control flow is compiled as a whole. Any other is cut where sizes have to be
known first (`cut`); branches and bodies of loops become blocks, which read values of the blocks
around them. What has no native code runs on the reference evaluator, node by node, and is listed
with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graft.backends.host.lowering.assemble import Assembly
from graft.backends.host.lowering.cut import GraphPart, cut
from graft.backends.host.lowering.device_values import DeviceValues
from graft.backends.host.lowering.emit import EmittedProgram, emit
from graft.backends.host.lowering.segments import SegmentCompiler, driver_code, why_not_native
from graft.backends.host.lowering.symbols import adopt, inherited_symbols, rename_new
from graft.backends.host.lowering.values import Values
from graft.backends.host.passes import measure
from graft.backends.reference.stored import evaluated_graph, value_of
from graft.base.dims import bare_symbol, symbols_of
from graft.base.dtypes import Array, dtype_of
from graft.base.errors import Location
from graft.byoc.region import borders, region_graph
from graft.ir.evaluate import evaluator_of
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import bound_symbols
from graft.ops import size_rules
from graft.ops.control import nested_bindings
from graft.ops.indexed import IndexRanges
from graft.ops.ml_features import LabelMapAttrs
from graft.program.extents import SizeCheck, Test
from graft.program.guards import Guard
from graft.program.instructions import (
    LIST_OPERATIONS,
    LOOKUPS,
    Alias,
    Assert,
    BindSymbol,
    Block,
    Element,
    Evaluate,
    If,
    Instruction,
    KernelCall,
    ListOp,
    Loop,
    Scan,
    Segment,
    SizeFunction,
    Slice,
    walk,
)
from graft.program.lookup import Table
from graft.program.program import ALIGNMENT, Program, Target
from graft.runtime.evaluated import Evaluator, SuppliedFunctions
from graft.runtime.memory import ready
from graft.runtime.spaces import Runner
from graft.target.roofline import cache_roofline


@dataclass
class BuiltProgram:
    """A program and what goes with it in this process: the functions that it names, the values that
    the evaluator computes (`reasons`) or that Python looks up (`lookups`), and kernel calls and
    instructions in order with the value that each computes (`makes`). `arena_bound` is the least
    arena of any memory plan of the static part."""

    program: Program = field(init=False)
    functions: dict[str, Runner] = field(default_factory=dict)
    evaluators: dict[str, Evaluator] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    lookups: dict[str, str] = field(default_factory=dict)
    makes: list[tuple[KernelCall | Instruction, str]] = field(default_factory=list)
    arena_bound: int | None = None

    @property
    def supplied(self) -> SuppliedFunctions:
        """The Python functions that the program names."""
        return SuppliedFunctions(self.functions, self.evaluators)


def build_program(
    graph: Graph, compiler: SegmentCompiler, threads: int | None = None
) -> BuiltProgram:
    """The program of a graph."""
    builder = _ProgramBuilder(compiler)
    if why_not_native(graph):
        own = adopt(graph, {}, frozenset(), builder.symbols)
        body = _BlockBuilder(builder, own).block(len(graph.inputs))
    else:
        with compiler.compilation() as compilation:
            ranges, begin = IndexRanges(graph), compilation.add
            _, assembly, guards = compiler.assembled(graph, ranges, compiler.spaces, begin)
            codes = compilation.codes()
        body = builder.whole(graph, assembly, guards, codes)
    return builder.built_with(body, graph.output_names, threads)


def build_assembled(
    graph: Graph, assembly: Assembly, compiler: SegmentCompiler, guards: tuple[Guard, ...] = ()
) -> BuiltProgram:
    """The program of a graph of static shapes that has been assembled. With guards, its last output
    is their counts, which is no output of the program."""
    count = len(graph.outputs) - bool(guards)
    outputs, names = graph.outputs[:count], graph.output_names[:count]
    builder = _ProgramBuilder(compiler)
    own = replace(graph, outputs=outputs, output_names=names)
    with compiler.compilation() as compilation:
        for function in assembly.functions.values():
            compilation.add(function)
        codes = compilation.codes()
    body = builder.whole(own, assembly, guards, codes)
    return builder.built_with(body, names, None)


class _ProgramBuilder:
    """What all blocks of a program share."""

    def __init__(self, compiler: SegmentCompiler) -> None:
        self.compiler = compiler
        self.values, self.built = Values(), BuiltProgram()
        self.symbols: set[str] = set()  # names that are used
        self._objects: dict[bytes, None] = {}
        self._parts = 0

    def fresh_symbol(self, hint: str) -> str:
        """A name that no symbol of the program has."""
        names = (hint, *(f"{hint}_{number}" for number in range(len(self.symbols) + 1)))
        name = next(name for name in names if name not in self.symbols)
        self.symbols.add(name)
        return name

    def built_with(
        self, body: Block, output_names: tuple[str, ...], threads: int | None
    ) -> BuiltProgram:
        """The finished program."""
        target, machine = self.compiler.target, self.compiler.target.machine
        core, between = cache_roofline(machine), (machine.calling_seconds, machine.meeting_seconds)
        self._objects[driver_code(target, self.compiler.accuracy)] = None
        self.built.program = Program(
            Target(target.triple, target.features, (core.flops, core.bytes), *between),
            tuple(self.values.values),
            tuple(self._kernel_constants(body)),
            body,
            output_names,
            tuple(self._objects),
            tuple(self.values.pool),
            threads,
        )
        return self.built

    def _kernel_constants(self, body: Block) -> Iterator[tuple[int, Array]]:
        """The constants, contiguous, and aligned where kernels read them: those that blocks capture
        are as the model has them."""
        calls = (call for one in walk(body) if isinstance(one, Segment) for call in one.calls)
        aligned = {buffer for call in calls for buffer in call.buffers if isinstance(buffer, int)}
        for number, array in self.values.constants:
            alignment = ALIGNMENT if number in aligned else 1
            yield number, array if array.dtype.hasobject else ready(array, alignment)

    def whole(
        self,
        graph: Graph,
        assembly: Assembly,
        guards: tuple[Guard, ...],
        codes: Sequence[bytes],
    ) -> Block:
        """An assembled graph of static shapes, whose outputs are all arrays of their own."""
        inputs = tuple(map(self.values.add_graph_value, graph.inputs))
        outputs = tuple(map(self.values.add_graph_value, graph.outputs))
        self.built.functions.update(self.compiler.regions)
        emitted = emit(assembly, self.values, inputs, outputs, (), guards)
        self.built.arena_bound = emitted.bound
        steps = self._take(emitted, tuple(codes))
        return Block(inputs, tuple(steps), outputs)

    def compile(
        self, graph: Graph, inputs: Sequence[int], outputs: Sequence[int], ranges: IndexRanges
    ) -> list[Instruction]:
        """The instructions of a part of a graph all of whose sizes are known when it runs."""
        label = f"part {self._parts}"
        self._parts += 1
        numbers = self.values, inputs, outputs
        return self._take(*self.compiler.compile(graph, *numbers, ranges, label))

    def _take(self, emitted: EmittedProgram, codes: tuple[bytes, ...]) -> list[Instruction]:
        """Add what instructions need to the program; returns the instructions."""
        self._objects |= dict.fromkeys(codes)
        self.built.makes += emitted.makes
        for step, outside in emitted.evaluated:
            self.built.evaluators[step.function] = evaluator_of(outside.node)
            self.built.reasons[outside.node.output.name] = outside.reason
        return emitted.instructions


class _BlockBuilder:
    """Builds the block of a graph. `known` are symbols that are bound in the graph around it,
    `operands` the values there that the last inputs stand for."""

    def __init__(
        self,
        program: _ProgramBuilder,
        graph: Graph,
        known: frozenset[str] = frozenset(),
        operands: Sequence[int] = (),
    ) -> None:
        compiler = program.compiler
        inherited = inherited_symbols(graph) & known
        whole = measure.expose_sizes(compiler.split(graph), compiler.why_not, inherited)
        self._graph = rename_new(whole, graph, program.symbols)
        self._inherited = inherited
        self._program, self._compiler, self._built = program, compiler, program.built
        self._table, self._captured = program.values, operands
        self._ranges = IndexRanges(self._graph)
        self._numbers: dict[Value, int] = {}
        self._steps: list[Instruction] = []
        numbers = self._table, self._number
        self._devices = DeviceValues(self._graph, compiler.spaces, *numbers, self._steps)
        constants = self._graph.constants
        self._constants = {value: literal.array for value, literal in constants.items()}

    def block(self, count: int) -> Block:
        """The block; the first `count` inputs are its own."""
        graph = self._graph
        inputs = self._numbered(graph.inputs[:count])
        for value, operand in zip(graph.inputs[count:], self._captured, strict=True):
            self._capture(value, operand)
        reasons = {node: self._compiler.why_not(node) for node in graph.nodes}
        for part in cut(graph, lambda node: not reasons[node], self._inherited):
            if part.native:
                self._segment(part.nodes)
            else:
                (node,) = part.nodes
                if self._compiler.runner(node) is not None:
                    self._region(node)
                else:
                    self._steps.append(self._instruction(node, part, reasons[node]))
        return Block(inputs, tuple(self._steps), self._numbered(graph.outputs))

    def _capture(self, value: Value, operand: int) -> None:
        """Read a value of a block around this one; an alias where its shape has other symbols
        here."""
        own, operand_value = value_of(value), self._table.values[operand]
        if own.shape is None or own.shape == operand_value.shape:
            self._numbers[value] = operand
        else:
            self._steps.append(Alias(operand, self._number(value)))

    def _number(self, value: Value) -> int:
        if value not in self._numbers:
            if value in self._constants:
                number = self._table.add_constant(self._constants[value], value.name)
            else:
                number = self._table.add_graph_value(value)
            self._numbers[value] = number
        return self._numbers[value]

    def _numbered(self, values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(self._number(value) for value in values)

    def _operands(self, node: Node) -> tuple[int | None, ...]:
        inputs = (*node.inputs, *node.op.absent(len(node.inputs)))
        return tuple(None if value is None else self._number(value) for value in inputs)

    def _segment(self, nodes: Sequence[Node]) -> None:
        inputs, outputs = borders(nodes, self._graph)
        graph = region_graph(nodes, self._graph, "segment")
        numbers = self._numbered(inputs), self._numbered(outputs)
        self._steps += self._program.compile(graph, *numbers, self._ranges)

    def _instruction(self, node: Node, part: GraphPart, reason: str) -> Instruction:
        location = node.location or Location()
        match node.op.name:
            case "if":
                return self._if(node, part.known)
            case "loop":
                return self._loop(node, part.known)
            case "scan":
                return self._scan(node, part.known)
            case "demand":
                (value, condition), (output,) = map(self._numbered, (node.args, node.outputs))
                attrs = node.attrs
                return Assert(value, condition, attrs.wanted, attrs.message, output, location)
            case "sized":
                (symbol,) = bound_symbols(node.output.type)
                return BindSymbol(symbol, self._number(node.args[0]))
            case "trimmed":
                (rows, counts), (output,) = map(self._numbered, (node.args, node.outputs))
                return Slice(rows, counts, output)
            case size_rules.SIZES:
                return self._size_function(node, part.known, location)
            case name if name in LIST_OPERATIONS and (name not in LOOKUPS or self._has_table(node)):
                return self._list_op(node, location)
        unsized = "the extents of its result are data, and there is no size function for them"
        return self._evaluate(node, reason or unsized, location)

    def _region(self, node: Node) -> None:
        runner = self._compiler.runner(node)
        assert runner is not None
        self._built.functions[node.attrs.label] = runner
        self._built.makes.append((self._devices.call(node), node.output.name))

    def _evaluate(self, node: Node, reason: str, location: Location) -> Evaluate:
        name = f"{node.op.name} {len(self._built.evaluators)}"
        self._built.evaluators[name] = evaluator_of(node)
        self._built.reasons[node.output.name] = reason
        operands, outputs = self._numbered(node.args), self._numbered(node.outputs)
        return Evaluate(name, operands, outputs, evaluated_graph(node), node.op.name, location)

    def _size_function(self, node: Node, known: frozenset[str], location: Location) -> SizeFunction:
        """Symbols in the shapes of the results are set to what the rule says of these; extents that
        are known have to agree with it."""
        rule = size_rules.size_rule(node, self._program.fresh_symbol)
        assert rule is not None
        lets, own = rule.lets, {*known}
        for value, shape in zip(node.outputs, rule.shapes, strict=True):
            for axis, (dim, extent) in enumerate(zip(value.shape or (), shape, strict=True)):
                name = bare_symbol(dim)
                if name is not None and name not in own:
                    own.add(name)
                    lets.append((name, extent))
                else:
                    message = f"axis {axis} of %{value.name} is {extent} where {dim} is wanted"
                    rule.require_zero(extent - dim, message)
        checks = (SizeCheck(rule.verdict, location),) if isinstance(rule.verdict, Test) else ()
        numbers = tuple(
            Element(self._number(number.operand), number.index, number.positive, number.negative)
            for number in rule.numbers
        )
        return SizeFunction(numbers, tuple(lets), checks, location)

    def _has_table(self, node: Node) -> bool:
        """Whether a node looks up strings, or packs maps, by a constant table."""
        match node.op.name:
            case "ml.zip_map":
                return True
            case "ml.label_map":
                keys, values = node.attrs.keys.array, node.attrs.values.array
                return object in (keys.dtype, values.dtype) and keys.dtype.kind != "f"
        labels = self._constants.get(node.args[0])
        return labels is not None and labels.dtype == object and labels.ndim == 1

    def _list_op(self, node: Node, location: Location) -> ListOp:
        attrs: Any = node.attrs
        # The first operand are strings, which become the table.
        is_take = node.op.name == "take"
        step = ListOp(
            node.op.name,
            self._numbered(node.args[1:]) if is_take else self._operands(node),
            self._numbered(node.outputs),
            location=location,
        )
        match node.op.name:
            case "sequence.split":
                parts = {"chunk": attrs.chunk or 1, "sizes": attrs.sizes}
                return replace(step, axis=attrs.axis, with_axis=attrs.keepdims, **parts)
            case "sequence.concatenate":
                return replace(step, axis=attrs.axis, with_axis=not attrs.new_axis)
            case "ml.label_map":
                return self._look_up(step, node, _label_table(attrs))
            case "ml.zip_map":
                return self._look_up(step, node, _table(attrs.labels.array))
            case "take":
                return self._look_up(step, node, _table(self._constants[node.args[0]]))
        return step

    def _look_up(self, step: ListOp, node: Node, table: Table) -> ListOp:
        packs = node.op.name == "ml.zip_map"
        what = "rows are packed into maps" if packs else "strings are looked up in a table"
        self._built.lookups[node.output.name] = what
        return replace(step, table=table)

    def _nested(
        self, node: Node, graph: Graph, captures: Sequence[Value], known: frozenset[str]
    ) -> Block:
        """The block of a nested graph, whose last inputs are captures."""
        meaning = nested_bindings(node, graph)
        dims = {name: dim for name, dim in meaning.items() if symbols_of(dim) <= known}
        own = adopt(graph, dims, known, self._program.symbols)
        builder = _BlockBuilder(self._program, own, known, self._numbered(captures))
        count = len(graph.inputs) - len(captures)
        if node.op.name != "if":  # which may not come to it
            inner = builder._graph.inputs[count:]
            captured = dict(zip(inner, captures, strict=True))
            builder._devices.repeat_within(self._devices, captured)
        return builder.block(count)

    def _if(self, node: Node, known: frozenset[str]) -> If:
        condition, *captures = node.args
        return If(
            self._number(condition),
            self._nested(node, node.attrs.else_branch, captures, known),
            self._nested(node, node.attrs.then_branch, captures, known),
            self._numbered(node.outputs),
            node.location or Location(),
        )

    def _loop(self, node: Node, known: frozenset[str]) -> Loop:
        limit, condition, *values = node.inputs
        operands = [value for value in values if value is not None]
        carried = node.attrs.carried
        return Loop(
            None if limit is None else self._number(limit),
            None if condition is None else self._number(condition),
            self._numbered(operands[:carried]),
            self._nested(node, node.attrs.body, operands[carried:], known),
            self._numbered(node.outputs),
            node.location or Location(),
        )

    def _scan(self, node: Node, known: frozenset[str]) -> Scan:
        attrs = node.attrs
        first, last = attrs.carried, attrs.carried + attrs.num_scan_inputs
        return Scan(
            self._numbered(node.args[:first]),
            self._numbered(node.args[first:last]),
            tuple(attrs.input_axes),
            tuple(bool(back) for back in attrs.input_directions),
            tuple(attrs.output_axes),
            tuple(bool(back) for back in attrs.output_directions),
            self._nested(node, attrs.body, node.args[last:], known),
            self._numbered(node.outputs),
            node.location or Location(),
        )


def _table(values: Array, keys: Array | None = None, default: Any = None) -> Table:
    entries = None if keys is None else tuple(keys.tolist())
    return Table(dtype_of(values.dtype), tuple(values.tolist()), entries, default)


def _label_table(attrs: LabelMapAttrs) -> Table:
    default = None if attrs.default is None else attrs.default.array.item()
    return _table(attrs.values.array, attrs.keys.array, default)
