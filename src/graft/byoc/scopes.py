"""Scopes: a graph and the bodies of its `if`, `loop` and `scan` nodes, in which nodes are placed.

A region lies within one scope. The price of nodes in a body is that of one execution, times the
expected executions per inference:

- *known*: the trip count is a constant, or the scanned axis has a static extent;
- *measured*: counted in the run on generated inputs that times the host's kernels. A body that this
  run never entered counts as `SELDOM`, so that choices within it still matter;
- *assumed*: half of the executions for each branch, and `ASSUMED_EXTENT` iterations, if nothing was
  run, or if an input of the model decides: generated inputs say nothing about it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from graft.byoc.contract import Cost
from graft.byoc.sizes import ASSUMED_EXTENT, node_work, number
from graft.ir.graph import Graph, Node, Value
from graft.ops.control import IfAttrs, LoopAttrs, ScanAttrs

# Executions per execution of the scope around it of a body that a measured run never entered.
SELDOM = 0.01
_BRANCH = 0.5  # executions of a branch that nothing is known of

Timings = Mapping[str, Cost]  # by the value that a kernel makes


class Counted(Enum):
    """The source of a number of executions, the best first."""

    KNOWN = "known"
    MEASURED = "measured"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Executions:
    """The executions of a scope per inference."""

    count: float = 1.0
    source: Counted = Counted.KNOWN

    def __str__(self) -> str:
        return f"{self.count:.3g} ({self.source.value})"


@dataclass(frozen=True, eq=False)
class Scope:
    """A graph whose nodes are placed: the model's, or a body of a node in another scope."""

    graph: Graph
    name: str = ""  # of a body, as ONNX names of nodes in it begin
    parent: Scope | None = None
    owner: Node | None = None
    executions: Executions = Executions()
    _timed: float | None = 1.0  # executions in the measured run; None: nothing tells

    def __str__(self) -> str:
        return self.name or self.graph.name

    @property
    def chain(self) -> Iterator[Scope]:
        """This scope, the one around it, and so on up to the model's."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


def bodies_of(node: Node) -> tuple[tuple[str, Graph], ...]:
    """The bodies of a control-flow node, with the attributes that hold them; none for other
    nodes."""
    if isinstance(node.attrs, IfAttrs | LoopAttrs | ScanAttrs):
        return tuple(node.graphs())
    return ()


def operands_of(node: Node, body: Graph) -> tuple[tuple[Value, Value], ...]:
    """The inputs of a body, with the operands of its node that they stand for: captures, initial
    values, and scanned values."""
    match node.attrs:
        case IfAttrs():
            pairs = zip(body.inputs, node.inputs[1:], strict=True)
        case LoopAttrs():
            pairs = zip(body.inputs[2:], node.inputs[2:], strict=True)
        case _:
            pairs = zip(body.inputs, node.inputs, strict=True)
    return tuple((inner, outer) for inner, outer in pairs if outer is not None)


def captures_of(node: Node, body: Graph) -> tuple[tuple[Value, Value], ...]:
    """The inputs of a loop's or scan's body that are equal in every iteration, with their operands;
    none for branches, which may not be executed at all."""
    match node.attrs:
        case LoopAttrs() as attrs:
            own = 2 + attrs.carried
        case ScanAttrs() as attrs:
            own = attrs.carried + attrs.num_scan_inputs
        case _:
            return ()
    pairs = dict(operands_of(node, body))
    return tuple((value, pairs[value]) for value in body.inputs[own:] if value in pairs)


def scopes_of(
    graph: Graph, timings: Timings | None = None, closed: Collection[Node] = ()
) -> Iterator[Scope]:
    """The graph and its bodies as scopes, outer ones first. Bodies of nodes that are in `closed`
    when their scope has been visited are skipped."""
    return _open_body(Scope(graph), timings or {}, closed)


def _open_body(scope: Scope, timings: Timings, closed: Collection[Node]) -> Iterator[Scope]:
    yield scope
    for node in scope.graph.nodes:
        bodies = () if node in closed else bodies_of(node)
        timings_of = _timed_bodies(scope, node, [body for _, body in bodies], timings)
        for (role, body), timed in zip(bodies, timings_of, strict=True):
            executions = _expected(scope, node, timed)
            name = f"{_name_of(node)}/{role}"
            inner = Scope(body, name, scope, node, executions, timed)
            yield from _open_body(inner, timings, closed)


def nodes_in_order(scopes: Iterable[Scope]) -> tuple[tuple[Node, Scope], ...]:
    """The nodes to place with their scopes, without constants: those of bodies before their owner,
    after its operands."""
    by_owner: dict[Node | None, list[Scope]] = {}
    for scope in scopes:
        by_owner.setdefault(scope.owner, []).append(scope)

    def walk(scope: Scope) -> Iterator[tuple[Node, Scope]]:
        for node in scope.graph.nodes:
            if node.op.name != "constant":
                for inner in by_owner.get(node, ()):
                    yield from walk(inner)
                yield node, scope

    return tuple(pair for root in by_owner[None] for pair in walk(root))


def all_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes of a graph and of all bodies in it, constants apart."""
    return tuple(node for node, _ in nodes_in_order(scopes_of(graph)))


def inference_macs(scopes: Iterable[Scope]) -> dict[Node, int]:
    """Multiply-accumulates of each node in all its executions; nodes with bodies have none of their
    own."""
    pairs = nodes_in_order(scopes := tuple(scopes))
    owners = {scope.owner for scope in scopes}
    return {
        node: 0 if node in owners else round(scope.executions.count * node_work(node).macs)
        for node, scope in pairs
    }


def _name_of(node: Node) -> str:
    named = node.location is not None and node.location.node
    return named or f"%{node.output.name}"


def _timed_bodies(
    scope: Scope, node: Node, bodies: Sequence[Graph], timings: Timings
) -> list[float | None]:
    """The executions of each body of a node in the timed run: the most of its kernels; a branch
    without kernels ran when the other one did not."""
    result: list[float | None] = []
    for body in bodies:
        names = (value.name for inner in body.nodes for value in inner.outputs)
        runs = (timings[name].executions for name in names if name in timings)
        result.append(max(runs, default=None))
    if isinstance(node.attrs, IfAttrs) and scope._timed is not None:
        for own, other in ((0, 1), (1, 0)) if result else ():
            run = result[other]
            if result[own] is None and run is not None:
                result[own] = scope._timed - run
    return result


def _expected(scope: Scope, node: Node, timed: float | None) -> Executions:
    """The executions of a body of a node in a scope."""
    around = scope.executions
    constant = _iterations(scope.graph, node)
    if constant is not None:
        return Executions(around.count * constant, around.source)
    if timed is not None and scope._timed and not _is_drawn(scope, node):
        ratio = max(timed / scope._timed, SELDOM)
        return Executions(around.count * ratio, _weaker(around.source, Counted.MEASURED))
    return Executions(around.count * _assumed(scope.graph, node), Counted.ASSUMED)


def _weaker(one: Counted, other: Counted) -> Counted:
    order = list(Counted)
    return max(one, other, key=order.index)


def _iterations(graph: Graph, node: Node) -> int | None:
    """The iterations of a loop or scan, where they do not depend on data or symbols."""
    match node.attrs:
        case ScanAttrs() as attrs:
            extents = _scanned_extents(node, attrs)
            return next((extent for extent in extents if isinstance(extent, int)), None)
        case LoopAttrs() as attrs:
            limit, condition = node.inputs[:2]
            body = attrs.body
            proceeds = body.outputs[0] is body.inputs[1] or _is_true(body.outputs[0], body)
            starts = condition is None or _is_true(condition, graph)
            if limit in graph.constants and starts and proceeds:
                return max(int(graph.constants[limit].array.item()), 0)
    return None


def _scanned_extents(node: Node, attrs: ScanAttrs) -> Iterator[object]:
    scanned = node.args[attrs.carried : attrs.carried + attrs.num_scan_inputs]
    for value, axis in zip(scanned, attrs.input_axes, strict=True):
        shape = value.tensor.shape
        yield None if shape is None else shape[axis]


def _is_true(value: Value, graph: Graph) -> bool:
    return value in graph.constants and bool(graph.constants[value].array.all())


def _is_drawn(scope: Scope, node: Node) -> bool:
    """Whether an input of the model, which was generated, decides how often a body runs."""
    deciding = node.inputs[: 1 if isinstance(node.attrs, IfAttrs) else 2]
    is_control = not isinstance(node.attrs, ScanAttrs)
    return scope.parent is None and is_control and any(v in scope.graph.inputs for v in deciding)


def _assumed(graph: Graph, node: Node) -> float:
    """Executions of a body per execution of its node, if they are unknown."""
    match node.attrs:
        case IfAttrs():
            return _BRANCH
        case ScanAttrs() as attrs:
            dims = [dim for dim in _scanned_extents(node, attrs) if dim is not None]
            return number(dims[0]) if dims else ASSUMED_EXTENT  # type: ignore[arg-type]
    limit = node.inputs[0]
    if limit in graph.constants:
        return min(int(graph.constants[limit].array.item()), ASSUMED_EXTENT)
    return ASSUMED_EXTENT
