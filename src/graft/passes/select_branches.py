"""Replaces an `if` between two cheap branches by both of them, and a `where` for each result.

Exporters write an `if` for every `and` and `or` in the condition of a loop; without it the body is
one segment of native code. Only cheap nodes that cannot fail, whatever the data, are executed
speculatively. A result that both branches pass through is replaced by what they pass through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from graft.base.dims import UNKNOWN
from graft.base.dtypes import DType
from graft.ir.attrs import symbols_in_attrs
from graft.ir.graph import Graph, Node, Value, make_node
from graft.ir.nested import change_nested
from graft.ir.types import TensorType, Type, bound_symbols
from graft.ops.bodies import bind_symbols, seen_outside
from graft.passes.inline_branches import Splicer

_MOST_NODES, _MOST_ELEMENTS = 16, 4096

_ARITHMETIC = ("add", "subtract", "multiply", "negative", "abs", "sign", "minimum", "maximum")
_ORDER = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
_LOGIC = ("logical_and", "logical_or", "logical_xor", "logical_not")
_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
_OTHERS = ("where", "cast", "isnan", "isinf")
_POINTWISE = frozenset((*_ARITHMETIC, *_ORDER, *_LOGIC, *_BITS, *_OTHERS))
_TOTALS = frozenset(("sum", "max", "min"))
_VIEWS = frozenset(("reshape", "squeeze", "expand_dims"))


def select_branches(graph: Graph) -> Graph:
    """Replace the `if`s whose branches are both cheap, innermost first."""
    graph = change_nested(graph, select_branches)
    if not any(node.op.name == "if" for node in graph.nodes):
        return graph
    splicer = Splicer(graph)
    return splicer.run(
        lambda node, inputs: _If(splicer, node, inputs).decided() if node.op.name == "if" else None
    )


class _If:
    """An `if` on its current operands."""

    def __init__(self, splicer: Splicer, node: Node, inputs: Sequence[Value | None]) -> None:
        self.splicer, self.node = splicer, node
        self.condition, *self.captures = (value for value in inputs if value is not None)
        self.branches: tuple[Graph, Graph] = node.attrs.then_branch, node.attrs.else_branch

    def decided(self) -> list[Value] | None:
        """The replacements of the results; None if the node stays as it is."""
        shared = [self.shared(position) for position in range(len(self.node.outputs))]
        open_ = [position for position, value in enumerate(shared) if value is None]
        if not open_:
            selected = []
        elif self.may_select(open_):
            selected = self.selected(open_)
        elif len(open_) < len(shared):
            selected = self.narrowed(open_)
        else:
            return None
        others = iter(selected)
        return [next(others) if value is None else value for value in shared]

    def shared(self, position: int) -> Value | None:
        """The value that both branches return as one result, if they do."""
        results = [branch.outputs[position] for branch in self.branches]
        pairs = zip(self.branches, results, strict=True)
        captures = {_input_index(branch, one) for branch, one in pairs}
        if captures != {None}:
            capture = captures.pop()
            return None if captures or capture is None else self.handed_on(capture, position)
        makers = [b.producers[one] for b, one in zip(self.branches, results, strict=True)]
        constant = all(maker.op.name == "constant" for maker in makers)
        if not constant or makers[0].attrs.value != makers[1].attrs.value:
            return None
        value = Value(self.splicer.names(results[0].name), results[0].type)
        self.splicer.nodes.append(replace(makers[0], outputs=(value,)))
        return value

    def handed_on(self, capture: int, position: int) -> Value | None:
        """The captured value, unless it only becomes an optional one as a result."""
        value = self.captures[capture]
        return value if type(value.type) is type(self.node.outputs[position].type) else None

    def may_select(self, positions: Iterable[int]) -> bool:
        """Whether both branches may be executed unconditionally and these results selected."""
        condition = self.condition.type
        if not isinstance(condition, TensorType) or not _is_static(condition):
            return False
        if sum(len(branch.nodes) for branch in self.branches) > _MOST_NODES:
            return False
        types = [self.types(branch) for branch in self.branches]
        pairs = zip(self.branches, types, strict=True)
        return all(self.fits(b, t) and _is_harmless(b, t) for b, t in pairs) and all(
            _may_choose(*(t[b.outputs[p]] for b, t in zip(self.branches, types, strict=True)))
            and isinstance(self.node.outputs[p].type, TensorType)
            for p in positions
        )

    def types(self, branch: Graph) -> dict[Value, Type]:
        """The types of a branch's values in terms of the outer graph's symbols."""
        inputs = dict(zip(branch.inputs, (value.type for value in self.captures), strict=True))
        bindings = bind_symbols((value.type, actual) for value, actual in inputs.items())
        computed = (value for node in branch.nodes for value in node.outputs)
        return inputs | {value: seen_outside(value.type, bindings) for value in computed}

    def fits(self, branch: Graph, types: Mapping[Value, Type]) -> bool:
        """Whether the operands certainly have the types of the branch's inputs."""
        bindings = bind_symbols((value.type, types[value]) for value in branch.inputs)
        for value in branch.inputs:
            ranked = isinstance(value.type, TensorType) and value.type.shape is not None
            if ranked and seen_outside(value.type, bindings) != types[value]:
                return False
        return True

    def selected(self, positions: Sequence[int]) -> list[Value]:
        """Splice in both branches and select between their results."""
        condition = self.flag()
        outcomes = [self.splicer.splice(branch, self.captures) for branch in self.branches]
        assert None not in outcomes  # no attribute names an extent
        results = []
        for position in positions:
            operands = (
                condition,
                *(values[position] for values in outcomes if values is not None),
            )
            result = Value(self.node.outputs[position].name, operands[1].type)
            self.add("where", operands, result)
            results.append(result)
        return results

    def flag(self) -> Value:
        """The condition as a scalar, which does not broadcast the results."""
        rank = len(self.condition.shape or ())
        if not rank:
            return self.condition
        name = self.splicer.names(self.condition.name)
        scalar = Value(name, TensorType(DType.BOOL, ()))
        self.add("squeeze", (self.condition,), scalar, axes=range(rank))
        return scalar

    def add(self, name: str, operands: tuple[Value, ...], result: Value, **attrs: object) -> None:
        self.splicer.nodes.append(make_node(name, operands, (result,), self.node.location, **attrs))

    def narrowed(self, positions: Sequence[int]) -> list[Value]:
        """The `if` with a subset of its results, without captures that become unused."""
        then_branch, else_branch = (_only(branch, positions) for branch in self.branches)
        needed = list(range(len(self.captures)))
        for capture in range(len(self.captures)):
            others = [other for other in needed if other != capture]
            if all(_is_idle(branch, capture, others) for branch in (then_branch, else_branch)):
                needed = others
        attrs = replace(
            self.node.attrs,
            then_branch=_taking(then_branch, needed),
            else_branch=_taking(else_branch, needed),
        )
        inputs = (self.condition, *(self.captures[capture] for capture in needed))
        outputs = tuple(self.node.outputs[position] for position in positions)
        self.splicer.nodes.append(replace(self.node, inputs=inputs, attrs=attrs, outputs=outputs))
        return list(outputs)


def _input_index(branch: Graph, value: Value) -> int | None:
    """The index of a branch input; None for other values."""
    return branch.inputs.index(value) if value in branch.inputs else None


def _only(branch: Graph, positions: Sequence[int]) -> Graph:
    outputs = tuple(branch.outputs[position] for position in positions)
    names = tuple(branch.output_names[position] for position in positions)
    return replace(branch, outputs=outputs, output_names=names)


def _taking(branch: Graph, captures: Sequence[int]) -> Graph:
    return replace(branch, inputs=tuple(branch.inputs[capture] for capture in captures))


def _is_idle(branch: Graph, capture: int, others: Iterable[int]) -> bool:
    """Whether an input is unused, and other inputs bind its symbols."""
    value = branch.inputs[capture]
    if value in branch.users or value in branch.outputs:
        return False
    bound = (bound_symbols(branch.inputs[other].type) for other in others)
    return bound_symbols(value.type) <= frozenset().union(*bound)


def _is_harmless(branch: Graph, types: Mapping[Value, Type]) -> bool:
    """Whether the nodes are cheap and cannot fail, whatever the data."""
    for node in branch.nodes:
        ins = [types[value] for value in node.args]
        outs = [types[value] for value in node.outputs]
        if not all(map(_is_small, (*ins, *outs))) or symbols_in_attrs(node.attrs):
            return False
        name, alone = node.op.name, len(ins) == 1
        harmless = (
            name == "constant"
            or (name in _POINTWISE and _broadcast(ins))
            or (name in _TOTALS and alone)
            or (name in _VIEWS and alone and all(map(_is_static, (*ins, *outs))))
        )
        if not harmless:
            return False
    return True


def _is_plain(type_: Type) -> bool:
    """Whether it is a tensor of numbers or truth values, of whole bytes each."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return False
    dtype = type_.dtype
    return dtype is DType.BOOL or ((dtype.is_integer or dtype.is_float) and dtype.bits >= 8)


def _is_static(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.is_static


def _is_small(type_: Type) -> bool:
    if not _is_plain(type_) or not isinstance(type_, TensorType):
        return False
    size = type_.size
    if isinstance(size, int):
        return size <= _MOST_ELEMENTS
    return type_.rank == 1 and size is not UNKNOWN


def _may_choose(first: Type, second: Type) -> bool:
    return first == second and _is_static(first) and _is_small(first)


def _broadcast(types: Iterable[Type]) -> bool:
    """Whether extents certainly broadcast: no two of them can differ, but for those of 1."""
    shapes = [type_.shape or () for type_ in types if isinstance(type_, TensorType)]
    for axis in range(1, max(map(len, shapes), default=0) + 1):
        dims = {shape[-axis] for shape in shapes if len(shape) >= axis}
        if len(dims - {1}) > 1:
            return False
    return True
