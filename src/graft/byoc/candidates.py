"""Candidates and refusals: which backend could run which nodes of a graph.

All matches of all patterns of all backends are kept, overlapping ones included; the choice is made
later (`choose.py`). Nodes that are no candidate get refusals with reasons. The number of matches
per pattern is limited; `Candidates.limits_hit` tells where a limit was reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from graft.base.callbacks import author_code
from graft.byoc.annotate import NO_PINS, Entry, Pins, Predicate, ask, predicate_of, tables_of
from graft.byoc.contract import HOST_BACKEND, Backend, Match
from graft.byoc.region import borders, region_graph
from graft.byoc.rows import Rows, with_rows
from graft.byoc.scopes import Scope, Timings, bodies_of, inference_macs, nodes_in_order, scopes_of
from graft.byoc.units import torn_units, units_of
from graft.ir.graph import Graph, Node, Value
from graft.passes.group_fusion import fusion_groups
from graft.rewrite.match import Match as Matched
from graft.rewrite.match import Mismatch, match, matches
from graft.rewrite.pattern import OpIs
from graft.rewrite.rule import Refusal, root_operators

# Matches of one pattern at one node that are looked at. Each commutative operator with two operands
# doubles their number, so this is a pattern with ten of them, all of whose orders match.
MOST_MATCHES = 1024
# Parts of one fusion group that are offered to the host, beside its single nodes.
MOST_PARTS = 64


@dataclass(frozen=True, eq=False)
class Candidate:
    """Nodes that a backend could run as one region, in the order of the graph."""

    backend: str
    pattern: str
    nodes: tuple[Node, ...]
    operands: tuple[Value | None, ...] = ()  # as the pattern's `Match` has them
    rows: Rows | None = None  # it runs in blocks of them

    @property
    def label(self) -> str:
        return "+".join(node.op.name for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why a backend does not run a node, or not by this pattern."""

    backend: str
    pattern: str
    reason: str


@dataclass(frozen=True)
class Candidates:
    """The candidates of a graph and its bodies, and all refusals."""

    graph: Graph
    candidates: tuple[Candidate, ...]
    scopes: tuple[Scope, ...]  # the graph, and the bodies in it whose nodes are placed
    refusals: Mapping[Node, tuple[Refused, ...]]
    # Per node, why matches that hold it were refused, wherever they end.
    refused_matches: Mapping[Node, tuple[Refused, ...]] = field(default_factory=dict)
    limits_hit: tuple[str, ...] = ()  # where there would have been more candidates, in words

    @cached_property
    def scope_of(self) -> Mapping[Node, Scope]:
        """The nodes to place, in order, each with its scope. Constants are none: they follow
        their readers."""
        return dict(nodes_in_order(self.scopes))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes to place."""
        return tuple(self.scope_of)

    @cached_property
    def open_nodes(self) -> frozenset[Node]:
        """The control-flow nodes whose bodies' nodes are placed by themselves."""
        return frozenset(scope.owner for scope in self.scopes if scope.owner is not None)

    @cached_property
    def macs(self) -> Mapping[Node, int]:
        """Multiply-accumulates of each node in an inference, executions counted."""
        return inference_macs(self.scopes)

    def region(self, nodes: Sequence[Node], rows: Rows | None = None) -> Graph:
        """Nodes of one scope as a closed graph, or one block of it."""
        region = region_graph(nodes, self.scope_of[nodes[0]].graph)
        return region if rows is None else with_rows(region, rows.extent, rows.block)

    def executions(self, node: Node, rows: Rows | None = None) -> float:
        """Expected executions per inference of the scope of a node, or of blocks there."""
        return self.scope_of[node].executions.count * (1 if rows is None else rows.calls)

    @cached_property
    def of_node(self) -> Mapping[Node, tuple[Candidate, ...]]:
        """Per node, the candidates that contain it."""
        result: dict[Node, list[Candidate]] = {node: [] for node in self.nodes}
        for candidate in self.candidates:
            for node in candidate.nodes:
                result[node].append(candidate)
        return {node: tuple(own) for node, own in result.items()}


def placeable(graph: Graph) -> tuple[Node, ...]:
    """The nodes of a graph that are placed: all but constants."""
    return tuple(node for node in graph.nodes if node.op.name != "constant")


def find_candidates(
    graph: Graph, backends: Sequence[Backend], pins: Pins = NO_PINS, timings: Timings | None = None
) -> Candidates:
    """Candidates of the accelerators, first to last, then the host's, in the graph and in bodies.

    A control-flow node in a candidate of an accelerator is not opened: the accelerator runs it as a
    whole. `timings` are those of a run of the graph, and tell how often bodies are executed."""
    finders: list[_Finder] = []
    scopes: list[Scope] = []
    closed: set[Node] = set()
    for scope in scopes_of(graph, timings, closed):
        finder = _Finder(scope.graph, pins)
        for backend in backends:
            if scope.executions.count:
                finder.accelerator(backend)
            else:
                refused = Refused(backend.name, "", f"{scope} is never executed")
                for node in finder.nodes:
                    finder.refuse(node, refused)
        covered = {node for one in finder.candidates_by_key.values() for node in one.nodes}
        closed.update(node for node in covered if bodies_of(node))
        finder.host(timings or {})
        finders.append(finder)
        scopes.append(scope)
    return Candidates(
        graph,
        tuple(one for finder in finders for one in finder.candidates_by_key.values()),
        tuple(scopes),
        {n: tuple(sorted(r, key=r.__getitem__)) for f in finders for n, r in f.refusals.items()},
        {node: tuple(r) for finder in finders for node, r in finder.refused_matches.items()},
        tuple(limit for finder in finders for limit in finder.limits_hit),
    )


def _verdict(predicate: Predicate, backend: Backend, node: Node) -> Refusal | None:
    what = f"the predicate of {backend.name} for {node.op.name}"
    return ask(predicate, node, what, node)


def _matching(backend: Backend, entry: Entry, node: Node) -> AbstractContextManager[None]:
    """A context for matching, in which `where` conditions are the author's functions."""
    what = f"the pattern '{entry.name}' of {backend.name}"
    return author_code(what, match, f"%{node.output.name} ({node.op.name})", node.location)


class _Finder:
    def __init__(self, graph: Graph, pins: Pins) -> None:
        self.graph, self.pins = graph, pins
        self.nodes = placeable(graph)
        self.units = units_of(graph)
        self.order = {node: number for number, node in enumerate(graph.nodes)}
        self.candidates_by_key: dict[tuple[str, frozenset[Node]], Candidate] = {}
        self.refusals: dict[Node, dict[Refused, bool]] = {}
        self.refused_matches: dict[Node, dict[Refused, None]] = {}
        self.limits_hit: list[str] = []

    def accelerator(self, backend: Backend) -> None:
        entries = [(entry, root_operators(entry.formula.pattern)) for entry in tables_of(backend)]
        for node in self.nodes:
            offered = [entry for entry, roots in entries if node.op.name in roots]
            for entry in offered:
                self.try_entry(backend, entry, node)
            predicate = predicate_of(backend.name, node.op.name)
            if predicate is not None:
                self.try_node(backend, predicate, node)
            elif not offered:
                reason = f"no pattern of {backend.name} ends in {node.op.name}"
                self.refuse(node, Refused(backend.name, "", reason))

    def try_node(self, backend: Backend, predicate: Predicate, node: Node) -> None:
        """Add a single node that a predicate accepts."""
        refusal = _verdict(predicate, backend, node) or torn_units((node,), self.units)
        refusal = refusal or self.pinned(backend.name, (node,))
        if refusal is None:
            self.add(backend.name, node.op.name, (node,), node.inputs)
            return
        refused = Refused(backend.name, node.op.name, refusal.reason)
        self.refuse(node, refused)
        self.refuse_match((node,), refused)

    def try_entry(self, backend: Backend, entry: Entry, node: Node) -> None:
        """Add every match of a pattern at a node that the backend accepts. If it accepts none, the
        last refusal is the reason for all nodes of the matches that it was asked about."""
        refusal: Refusal | None = None
        accepted: set[frozenset[Node]] = set()
        answers: list[tuple[Node, Refused]] = []
        for matched in self.all_matches(backend, entry, node):
            nodes = self.in_order(matched.nodes)
            if frozenset(nodes) in accepted:  # the same operands in another order
                continue
            asked = self.as_match(entry, nodes, matched)
            broken = self.escape(nodes) or torn_units(nodes, self.units)
            broken = broken or self.pinned(backend.name, nodes)
            refusal = broken or self.why_not(backend, entry, asked)
            if refusal is None:
                accepted.add(frozenset(nodes))
                self.add(backend.name, entry.name, nodes, asked.operands)
                continue
            refused = Refused(backend.name, entry.name, refusal.reason)
            self.refuse_match(nodes, refused)
            answers += [(one, refused) for one in nodes if broken is None]
        if accepted:
            return
        for one, refused in answers:
            self.refuse(one, refused, is_answer=True)
        if refusal is None:
            with _matching(backend, entry, node):
                failed = match(entry.formula.pattern, node.output, self.graph.producers.get)
            reason = str(failed) if isinstance(failed, Mismatch) else "does not match"
            refusal = Refusal(reason)
        self.refuse(node, Refused(backend.name, entry.name, refusal.reason))

    def all_matches(self, backend: Backend, entry: Entry, node: Node) -> Iterator[Matched]:
        """The matches of one pattern at one node, up to the limit."""
        for value in node.outputs:
            result = matches(entry.formula.pattern, value, self.graph.producers.get)
            with _matching(backend, entry, node):
                yield from islice(result, MOST_MATCHES)
                more = next(result, None) is not None
            if more:
                self.limits_hit.append(
                    f"'{entry.name}' of {backend.name} matches at %{value.name} in more than"
                    f" {MOST_MATCHES} ways"
                )

    def why_not(self, backend: Backend, entry: Entry, asked: Match) -> Refusal | None:
        """The first refusal of a match by the pattern's check, predicates or the backend."""
        refusal = None
        if entry.check is not None:
            what = f"the check of '{entry.name}' for {backend.name}"
            refusal = ask(entry.check, asked, what, asked.root)
        for node in asked.nodes:
            predicate = predicate_of(backend.name, node.op.name)
            if predicate is not None:
                refusal = refusal or _verdict(predicate, backend, node)
        return refusal or ask(backend.supports, asked, f"{backend.name}.supports", asked.root)

    def as_match(self, entry: Entry, nodes: tuple[Node, ...], matched: Matched) -> Match:
        inputs, outputs = borders(nodes, self.graph)
        read = dict.fromkeys(value for node in nodes for value in node.args)
        literals = self.graph.constants
        constants = {value: literals[value].array for value in read if value in literals}
        named = entry.formula.wildcards.items()
        bound = {name: matched.bound[card] for name, card in named if card in matched.bound}
        operands = self.operands(entry, nodes, matched)
        return Match(entry.name, nodes, inputs, outputs, constants, bound, operands)

    def operands(
        self, entry: Entry, nodes: tuple[Node, ...], matched: Matched
    ) -> tuple[Value | None, ...]:
        """See `Match.operands`. An operator with open operands contributes all values that it reads
        from outside of the match."""
        inside = {value for node in nodes for value in node.outputs}
        result: list[Value | None] = []
        for leaf in entry.leaves:
            value = matched.bound.get(leaf)
            if not isinstance(leaf, OpIs):
                result.append(value)
            elif value is not None:
                read = self.graph.producers[value].inputs
                result += [operand for operand in read if operand not in inside]
        return tuple(result)

    def add(
        self,
        backend: str,
        pattern: str,
        nodes: tuple[Node, ...],
        operands: tuple[Value | None, ...] = (),
    ) -> None:
        """Add a candidate, unless the backend has one of the same nodes."""
        candidate = Candidate(backend, pattern, nodes, operands)
        self.candidates_by_key.setdefault((backend, frozenset(nodes)), candidate)

    def refuse(self, node: Node, refused: Refused, is_answer: bool = False) -> None:
        """Add a refusal; a backend's answers about matches come before reasons why nothing
        matched."""
        self.refusals.setdefault(node, {}).setdefault(refused, not is_answer)

    def refuse_match(self, nodes: Sequence[Node], refused: Refused) -> None:
        for node in nodes:
            self.refused_matches.setdefault(node, {})[refused] = None

    def pinned(self, backend: str, nodes: Sequence[Node]) -> Refusal | None:
        verdicts = (self.pins.verdict(node, backend) for node in nodes)
        return next((verdict for verdict in verdicts if verdict is not None), None)

    def in_order(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Nodes in the order of the graph, without constants."""
        placeable_nodes = (node for node in nodes if node.op.name != "constant")
        return tuple(sorted(placeable_nodes, key=lambda node: self.order[node]))

    def escape(self, nodes: tuple[Node, ...]) -> Refusal | None:
        """Refuse nodes with a value that is also read outside, unless it is a result of the last
        node.

        If only the last node's results leave, no path leaves the nodes and comes back, so they are
        convex."""
        _, outputs = borders(nodes, self.graph)
        for value in outputs:
            if self.graph.producers[value] is not nodes[-1]:
                users = [user for user in self.graph.users.get(value, ()) if user not in nodes]
                who = f"%{users[0].output.name} reads it, too" if users else "it is an output, too"
                return Refusal(f"%{value.name} inside the match is wanted outside: {who}")
        return None

    def host(self, timings: Timings) -> None:
        """Add candidates of the host: all fusion groups, all single nodes, the parts of groups that
        accelerators leave, and the nodes that were timed as one kernel."""
        for nodes in (*self.host_pieces(), *self.kernels(timings)):
            if self.pinned(HOST_BACKEND, nodes) is None:
                self.add(HOST_BACKEND, "fusion", nodes)

    def host_pieces(self) -> Iterator[tuple[Node, ...]]:
        covered = [frozenset(candidate.nodes) for candidate in self.candidates_by_key.values()]
        for group in fusion_groups(self.graph):
            nodes = self.in_order(group)
            if not nodes:
                continue
            yield from self.parts(nodes, covered)
            if len(nodes) > 1:
                yield from ((node,) for node in nodes)

    def kernels(self, timings: Timings) -> Iterator[tuple[Node, ...]]:
        """The nodes computed by each kernel of a timed run: those between its result and the
        results of other kernels. Fusion groups do not tell of kernels that compute whole quantised
        units, or several layers."""
        timed = {node for node in self.nodes if any(v.name in timings for v in node.outputs)}
        for last in (node for node in self.nodes if node in timed):
            inside = {last: None}
            for node in (queue := [last]):
                for value in node.args:
                    source = self.graph.producers.get(value)
                    if source and source not in timed and source not in inside:
                        inside[source] = None
                        queue.append(source)
            nodes = self.in_order(list(inside))
            if self.escape(nodes) is None:
                yield nodes

    def parts(
        self, group: tuple[Node, ...], covered: Sequence[frozenset[Node]]
    ) -> list[tuple[Node, ...]]:
        """A fusion group, and what remains of it when accelerators take any of their candidates, up
        to a limit; larger parts come first."""
        whole = frozenset(group)
        cuts = dict.fromkeys(nodes & whole for nodes in covered)
        parts = {whole: group}
        for part in (queue := [group]):
            for cut in cuts:
                remaining = [node for node in part if node not in cut]
                for rest in self.connected(remaining) if len(remaining) < len(part) else ():
                    if frozenset(rest) in parts:
                        continue
                    if len(parts) == MOST_PARTS:
                        last = group[-1].output.name
                        self.limits_hit.append(
                            f"the host's fusion group %{last} has more than {MOST_PARTS} parts"
                        )
                        return list(parts.values())
                    parts[frozenset(rest)] = rest
                    queue.append(rest)
        return list(parts.values())

    def connected(self, nodes: Sequence[Node]) -> Iterator[tuple[Node, ...]]:
        """The connected components of some nodes."""
        left = list(nodes)
        while left:
            piece, stack = set[Node](), [left[0]]
            while stack:
                node = stack.pop()
                piece.add(node)
                near = [self.graph.producers.get(value) for value in node.args]
                for value in node.outputs:
                    near += self.graph.users.get(value, ())
                stack += [n for n in near if n is not None and n in left and n not in piece]
            yield self.in_order(list(piece))
            left = [node for node in left if node not in piece]
