"""Runs a rule set on a graph to a fixpoint.

A worklist holds the nodes to look at, first to last; a rewrite puts its neighbours back on it. Each
rewrite costs time proportional to the match and its users. Termination is certain: rewrites are
counted, and a rule set that uses up its allowance is reported by the rules that keep firing.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from graft.base.dtypes import Array
from graft.base.errors import InternalError
from graft.ir.attrs import as_keywords
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value
from graft.ir.nested import change_nested
from graft.ir.types import compatible
from graft.rewrite.match import Match, literal_of, match
from graft.rewrite.pattern import ResultOf
from graft.rewrite.rule import Refusal, Replacement, Rule, RuleSet, call_action

logger = logging.getLogger(__name__)

# Rewrites allowed per node of the graph, and on top of that.
REWRITES_PER_NODE = 32
REWRITES_AT_LEAST = 256


def apply_rules(graph: Graph, rules: RuleSet) -> Graph:
    """The graph after all rules, nested graphs included; the same object where none applied."""
    graph = change_nested(graph, lambda nested: apply_rules(nested, rules))
    return _Workspace(graph, rules).run()


class Site:
    """A match in the graph: what a rule's action may query and emit."""

    def __init__(self, workspace: _Workspace, match_: Match, node: Node) -> None:
        self._workspace = workspace
        self.match = match_
        self.root = match_.root
        self.node = node

    def emit(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        """A new node with one result."""
        return self._workspace.emit(self.node, op, inputs, attrs)[0]

    def emit_all(self, op: str, *inputs: Value | None, **attrs: Any) -> tuple[Value, ...]:
        """A new node with all its results."""
        return self._workspace.emit(self.node, op, inputs, attrs)

    def again(self, node: Node, *inputs: Value | None, **changed: Any) -> Value:
        """A node like an earlier one, on other operands or with some attributes changed."""
        attrs = {**as_keywords(node.attrs), **changed}
        return self._workspace.emit(node, node.op.name, inputs, attrs)[0]

    def constant(self, array: Any) -> Value:
        """A new constant."""
        return self._workspace.constant(self.node, array)

    def array(self, value: Value | None) -> Array | None:
        """The value of a constant; None where it is not one."""
        literal = None if value is None else literal_of(value, self.producer)
        return None if literal is None else literal.array

    def producer(self, value: Value) -> Node | None:
        """The node that defines a value."""
        return self._workspace.producer.get(value)

    def uses(self, value: Value) -> int:
        """How many nodes read the value; being a graph output counts as one more."""
        return self._workspace.uses(value)

    def readers(self, value: Value) -> Iterable[Node]:
        """The nodes that read the value."""
        return self._workspace.users.get(value, ())

    def only_use(self, value: Value) -> bool:
        """Whether nothing else reads the value."""
        return self.uses(value) == 1


class _Workspace:
    """A mutable view of the graph while rules rewrite it."""

    def __init__(self, graph: Graph, rules: RuleSet) -> None:
        self.graph = graph
        self.rules = rules
        self.index = rules.by_root()
        self.producer: dict[Value, Node] = {}
        self.users: dict[Value, dict[Node, None]] = {}
        self.rank: dict[Node, tuple[int, int]] = {}
        self.outputs = list(graph.outputs)
        self.returned = Counter(graph.outputs)
        self.queue: deque[Node] = deque()
        self.queued: set[Node] = set()
        self.factory = Builder.beside(graph, "r")
        for value in graph.constants:
            self.factory.knowledge.follow(graph.producers[value])
        self.emitted: list[Node] = []
        self.fired: Counter[str] = Counter()
        for number, node in enumerate(graph.nodes):
            self.insert(node, (number, 0))

    def run(self) -> Graph:
        allowance = REWRITES_PER_NODE * len(self.graph.nodes) + REWRITES_AT_LEAST
        while self.queue:
            node = self.queue.popleft()
            self.queued.discard(node)
            if node in self.rank and self.rewrite(node):
                allowance -= 1
                if allowance < 0:
                    raise self.endless()
        if not self.fired:
            return self.graph
        nodes = _topological_order(self.outputs, self.producer, self.rank.__getitem__)
        return replace(self.graph, nodes=nodes, outputs=tuple(self.outputs))

    def endless(self) -> InternalError:
        often = ", ".join(f"'{name}' ({n} times)" for name, n in self.fired.most_common(3))
        return InternalError(
            f"the rules '{self.rules.name}' do not come to an end; these keep firing: {often}"
        )

    def rewrite(self, node: Node) -> bool:
        """Apply the first rule that fits the node."""
        for rule in self.index.get(node.op.name, ()):
            result = match(rule.formula.pattern, _root(rule, node), self.producer.get)
            if not isinstance(result, Match):
                continue
            self.emitted = []
            replacement = call_action(rule, Site(self, result, node), result.bound)
            if isinstance(replacement, Refusal):
                place = self.rules.name, rule.name, node.outputs[0].name
                logger.debug("%s: %s refuses %%%s: %s", *place, replacement)
                continue
            self.replace(rule, node, replacement)
            self.fired[rule.name] += 1
            return True
        return False

    def emit(
        self, site: Node, op: str, inputs: Iterable[Value | None], attrs: dict[str, Any]
    ) -> tuple[Value, ...]:
        self.factory.location = site.location
        results = self.factory.call(op, *inputs, **attrs)
        self.emitted.append(self.factory.take_last())
        self.producer.update((value, self.emitted[-1]) for value in results)
        return results

    def constant(self, site: Node, array: Any) -> Value:
        self.factory.location = site.location
        value = self.factory.constant(array)
        self.emitted.append(self.factory.take_last())
        self.producer[value] = self.emitted[-1]
        return value

    def uses(self, value: Value) -> int:
        return len(self.users.get(value, ())) + self.returned[value]

    def insert(self, node: Node, rank: tuple[int, int]) -> None:
        self.rank[node] = rank
        for value in node.outputs:
            self.producer[value] = node
        for value in node.args:
            self.users.setdefault(value, {})[node] = None
        self.enqueue(node)

    def enqueue(self, node: Node) -> None:
        if node not in self.queued and node.op.name in self.index:
            self.queued.add(node)
            self.queue.append(node)

    def remove(self, node: Node) -> None:
        del self.rank[node]
        for value in node.args:
            self.users[value].pop(node, None)
        for value in node.outputs:
            if self.producer.get(value) is node:
                del self.producer[value]

    def replace(self, rule: Rule, node: Node, replacement: Replacement) -> None:
        assert not isinstance(replacement, Refusal)
        news = replacement if isinstance(replacement, tuple) else (replacement,)
        for old, new in zip(node.outputs, news, strict=True):
            if not compatible(old.type, new.type):
                message = f"rule '{rule.name}' replaces {old} by {new}, which has another type"
                raise InternalError(message, node.location)
        base = self.rank[node]
        for offset, fresh in enumerate(self.emitted):
            self.insert(fresh, (base[0], base[1] - len(self.emitted) + offset))
        for old, new in zip(node.outputs, news, strict=True):
            self.substitute(old, new)
        self.bury(node)

    def substitute(self, old: Value, new: Value) -> None:
        """Replace all uses of `old` by `new`."""
        if old is new:
            return
        if self.producer.get(new) in self.emitted:
            new = self.rename(new, old.name)
        for user in list(self.users.get(old, ())):
            inputs = tuple(new if value is old else value for value in user.inputs)
            self.swap(user, replace(user, inputs=inputs))
        if self.returned[old]:
            self.outputs = [new if value is old else value for value in self.outputs]
            self.returned[new] += self.returned.pop(old)

    def rename(self, value: Value, name: str) -> Value:
        """Give a new value the name of the one it replaces."""
        renamed = Value(name, value.type)
        node = self.producer[value]
        outputs = tuple(renamed if v is value else v for v in node.outputs)
        fresh = replace(node, outputs=outputs)
        self.emitted[self.emitted.index(node)] = fresh
        self.swap(node, fresh)
        for user in list(self.users.get(value, ())):
            inputs = tuple(renamed if v is value else v for v in user.inputs)
            changed = replace(user, inputs=inputs)
            if user in self.emitted:
                self.emitted[self.emitted.index(user)] = changed
            self.swap(user, changed)
        self.factory.knowledge.move(value, renamed)
        return renamed

    def swap(self, old: Node, new: Node) -> None:
        rank = self.rank[old]
        self.remove(old)
        self.insert(new, rank)

    def bury(self, node: Node) -> None:
        """Remove a dead node, and the nodes that become dead with it."""
        stack = [node]
        while stack:
            dead = stack.pop()
            if dead not in self.rank or any(self.uses(value) for value in dead.outputs):
                continue
            self.remove(dead)
            for value in dead.args:
                before = self.producer.get(value)
                if before is not None:
                    stack.append(before)
                    self.enqueue(before)
                if self.uses(value) == 1:  # rules may have waited for that
                    for user in self.users.get(value, ()):
                        self.enqueue(user)


def _root(rule: Rule, node: Node) -> Value:
    pattern = rule.formula.pattern
    index = pattern.index if isinstance(pattern, ResultOf) else 0
    return node.outputs[min(index, len(node.outputs) - 1)]


def _topological_order(
    outputs: Iterable[Value], producer: dict[Value, Node], rank: Callable[[Node], Any]
) -> tuple[Node, ...]:
    """The nodes that the outputs need, sorted topologically and otherwise by `rank`."""
    nodes = _reachable(outputs, producer)
    waiting: dict[Node, int] = {}
    followers: dict[Node, list[Node]] = {}
    for node in nodes:
        before = {producer[v] for v in node.args if v in producer}
        waiting[node] = len(before)
        for other in before:
            followers.setdefault(other, []).append(node)
    ready = [(rank(node), number, node) for number, node in enumerate(nodes) if not waiting[node]]
    heapq.heapify(ready)
    ordered: list[Node] = []
    number = len(nodes)
    while ready:
        node = heapq.heappop(ready)[2]
        ordered.append(node)
        for follower in followers.get(node, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                number += 1
                heapq.heappush(ready, (rank(follower), number, follower))
    if len(ordered) < len(nodes):
        raise InternalError("a rewrite has made a cycle")
    return tuple(ordered)


def _reachable(outputs: Iterable[Value], producer: dict[Value, Node]) -> list[Node]:
    result: dict[Node, None] = {}
    stack = [producer[value] for value in outputs if value in producer]
    while stack:
        node = stack.pop()
        if node not in result:
            result[node] = None
            stack.extend(producer[value] for value in node.args if value in producer)
    return list(result)
