"""Resolves unknown ranks where the branches of an `if` differ in rank.

Readers of a result of unknown rank are moved into both branches, where the rank is known. If the
type rules then prove that one branch fails, the `if` is replaced by the other one and a check of
the condition. Native code needs ranks, and exporters write an `if` wherever a program drops an axis
of extent 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from graft.base.dtypes import DType
from graft.base.errors import TypeRuleError
from graft.ir.attrs import symbols_in_attrs
from graft.ir.graph import Graph, Node, Value, closed_graph, make_node
from graft.ir.names import FreshNames
from graft.ir.nested import change_nested
from graft.ir.types import TensorType, bound_symbols, symbols_in
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.passes.fold_constants import fold_constants
from graft.passes.inline_branches import inline_branches, names_bound, with_branch

# Every `if` whose branches are both possible doubles the nodes that depend on it.
_DEPTH = 4
_ROUNDS = 8
_SIZE_DTYPES = (DType.INT64, DType.BOOL)  # dtypes of ranks and extents, and of comparisons of them


def settle_ranks(graph: Graph) -> Graph:
    """Resolve the unknown ranks of values that depend on an `if`, innermost first."""
    return _resolve_ranks(graph, _DEPTH)


def _resolve_ranks(graph: Graph, depth: int) -> Graph:
    inner = change_nested(graph, lambda nested: _resolve_ranks(nested, depth))
    result = inner if inner is graph else fold_constants(inner)
    names: set[str] = set()
    while depth and (node := _next_if(result, names)) is not None:
        names.add(node.output.name)
        result = _IfRewrite(result, node, depth - 1).rewritten() or result
    return result


def _next_if(graph: Graph, names: set[str]) -> Node | None:
    """The first `if` with a result of unknown rank that is read, or with a branch whose input has
    unknown rank where its operand has not."""
    for node in graph.nodes:
        if node.op.name == "if" and node.output.name not in names:
            read = any(_has_unknown_rank(v) and v in graph.users for v in node.outputs)
            if read or any(map(_loses_rank, _branches(node), [node.args[1:]] * 2)):
                return node
    return None


def _has_unknown_rank(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is None


def _may_hold_sizes(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in _SIZE_DTYPES


def _loses_rank(branch: Graph, operands: Sequence[Value]) -> bool:
    """Whether an input of the branch has unknown rank, and the operand passed for it has not."""
    pairs = zip(branch.inputs, operands, strict=True)
    return any(
        _has_unknown_rank(formal) and not _has_unknown_rank(actual) for formal, actual in pairs
    )


def _branches(node: Node) -> tuple[Graph, Graph]:
    return node.attrs.else_branch, node.attrs.then_branch


@dataclass(frozen=True, eq=False)
class _Spliced:
    """The graph with one branch spliced in for the `if`, and the replacements of values."""

    graph: Graph
    replacements: dict[Value, Value]


class _IfRewrite:
    """The rewrites of one `if` and of the nodes that depend on it."""

    def __init__(self, graph: Graph, node: Node, depth: int) -> None:
        self.graph, self.node, self.depth = graph, node, depth
        self.dependents = _dependents(graph.nodes, node.outputs)

    def rewritten(self) -> Graph | None:
        """The graph without the `if`, or with branches in which ranks are known; None if that is
        not possible."""
        graphs = [with_branch(self.graph, self.node, branch) for branch in _branches(self.node)]
        spliced = [_Spliced(*graph) for graph in graphs if graph is not None]
        if len(spliced) < 2:
            return None
        errors = [_failure(one.graph) for one in spliced]
        match errors:
            case [None, None]:
                return self.with_nodes_moved(spliced)
            case [TypeRuleError() as error, None]:
                return self.with_one_branch(spliced[1], True, error)
            case [None, TypeRuleError() as error]:
                return self.with_one_branch(spliced[0], False, error)
        return None  # both branches fail: running the model reports the error

    def with_one_branch(
        self, spliced: _Spliced, expected: bool, error: TypeRuleError
    ) -> Graph | None:
        """The graph with the branch whose types are valid, and `demand` nodes that fail if the
        condition selects the other one."""
        whole, condition = spliced.graph, self.node.args[0]
        if not names_bound(whole):
            return None
        names = FreshNames(value.name for value in whole.values)
        message = f"the condition of an if is {not expected}, and then {error.message}"
        location = error.location or self.node.location
        dependent = {value for node in (self.node, *self.dependents) for value in node.outputs}
        checked: dict[Value, Node] = {}
        outputs = []
        for old, value in zip(self.graph.outputs, whole.outputs, strict=True):
            if old in dependent and value not in checked:
                result = Value(names(value.name), value.type)
                operands = value, condition
                checked[value] = make_node(
                    "demand", operands, (result,), location, wanted=expected, message=message
                )
            outputs.append(checked[value].output if old in dependent else value)
        nodes = (*whole.nodes, *checked.values())
        return _folded(replace(whole, nodes=nodes, outputs=tuple(outputs)))

    def with_nodes_moved(self, spliced: Sequence[_Spliced]) -> Graph | None:
        """The graph with the nodes that need ranks moved into both branches."""
        inside = {self.node, *self.nodes_to_move()}
        results = self.live_results(inside)
        parts = [self.branch_nodes(one, inside, results) for one in spliced]
        read = dict.fromkeys(value for part in parts for value in part.inputs)
        binding = self.binding_inputs([node for part in parts for node in part.nodes], read)
        if binding is None:
            return None
        captures = (*read, *binding)
        branches = [self.closed_branch(part, captures) for part in parts]
        attrs = replace(self.node.attrs, else_branch=branches[0], then_branch=branches[1])
        outer = {value: Value(value.name, value.type) for value in results}
        outputs_of_if = tuple(outer.values())
        decision = replace(
            self.node, inputs=(self.node.args[0], *captures), attrs=attrs, outputs=outputs_of_if
        )
        before = [n for n in self.graph.nodes if n not in inside and n not in self.dependents]
        after = [n.on(outer) for n in self.graph.nodes if n in self.dependents - inside]
        outputs = tuple(outer.get(value, value) for value in self.graph.outputs)
        return _folded(replace(self.graph, nodes=(*before, decision, *after), outputs=outputs))

    def closed_branch(self, part: Graph, captures: Sequence[Value]) -> Graph:
        """The part as a branch with the captures as inputs, its own ranks resolved."""
        closed = closed_graph(part.name, captures, part.nodes, part.outputs)
        return _resolve_ranks(_folded(closed), self.depth)

    def nodes_to_move(self) -> set[Node]:
        """Nodes that read results of unknown rank, or integers derived from them (a rank may decide
        the next `if`), and all nodes between them."""
        nodes = self.graph.nodes
        moved: set[Node] = set()
        unresolved = {value for value in self.node.outputs if _has_unknown_rank(value)}
        for node in nodes:
            if not unresolved.isdisjoint(node.args):
                moved.add(node)
                unresolved.update(
                    v for v in node.outputs if _has_unknown_rank(v) or _may_hold_sizes(v)
                )
        operands = {value for node in moved for value in node.args}
        for node in reversed(nodes):
            if node in self.dependents and not operands.isdisjoint(node.outputs):
                moved.add(node)
                operands.update(node.args)
        return moved

    def live_results(self, inside: set[Node]) -> list[Value]:
        """The results of the nodes that other nodes or the graph's outputs read."""
        users, returned = self.graph.users, set(self.graph.outputs)
        computed = (value for n in self.graph.nodes if n in inside for value in n.outputs)
        return [v for v in computed if v in returned or not inside.issuperset(users.get(v, ()))]

    def branch_nodes(self, spliced: _Spliced, inside: set[Node], results: Sequence[Value]) -> Graph:
        """The nodes with a branch spliced in; its inputs are values of the outer graph."""
        outside_nodes = set(self.graph.nodes) - inside
        own = [node for node in spliced.graph.nodes if node not in outside_nodes]
        outputs = tuple(spliced.replacements.get(value, value) for value in results)
        computed = {value for node in own for value in node.outputs}
        read = (value for values in (*(n.args for n in own), outputs) for value in values)
        outside = [value for value in dict.fromkeys(read) if value not in computed]
        producers = self.graph.producers
        makers = {value: producers[value] for value in outside if value in producers}
        constants = [node for node in makers.values() if node.op.name == "constant"]
        copied = {value for node in constants for value in node.outputs}
        inputs = tuple(value for value in outside if value not in copied)
        return Graph(self.graph.name, inputs, (*constants, *own), outputs)

    def binding_inputs(self, nodes: Iterable[Node], read: Iterable[Value]) -> list[Value] | None:
        """Graph inputs that bind the symbols in nodes' attributes; None if some are unbound."""
        nodes = list(nodes)
        bound = {name for value in read for name in bound_symbols(value.type)}
        named = {name for node in nodes for name in symbols_in_attrs(node.attrs)}
        typed = {
            name for node in nodes for value in node.outputs for name in symbols_in(value.type)
        }
        values: list[Value] = []
        for value in self.graph.inputs:
            new_symbols = bound_symbols(value.type) - bound
            if not new_symbols.isdisjoint(named | typed):
                values.append(value)
                bound |= new_symbols
        return values if named <= bound else None


def _dependents(nodes: Sequence[Node], values: Iterable[Value]) -> set[Node]:
    """The nodes that depend on some values."""
    dependent = set(values)
    readers: set[Node] = set()
    for node in nodes:
        if not dependent.isdisjoint(node.args):
            readers.add(node)
            dependent.update(node.outputs)
    return readers


def _failure(graph: Graph) -> TypeRuleError | None:
    """The error that the type rules raise for the graph, if any."""
    try:
        _folded(graph)
    except TypeRuleError as error:
        return error
    return None


def _folded(graph: Graph) -> Graph:
    """The graph after folding, inlining and dead-code elimination to a fixpoint."""
    for _ in range(_ROUNDS):
        better = eliminate_dead_code(inline_branches(fold_constants(graph)))
        if better is graph:
            break
        graph = better
    return graph
