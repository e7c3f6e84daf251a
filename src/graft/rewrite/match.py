"""Matches a pattern against a value of a graph, and says why where it does not match."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from graft.base.errors import InternalError
from graft.ir.attrs import Attrs
from graft.ir.graph import Node, Value
from graft.ir.literal import Literal
from graft.ir.types import TensorType
from graft.rewrite.pattern import (
    AttrsAre,
    ConstantIs,
    Constrained,
    Constraint,
    Dominated,
    DTypeIn,
    Either,
    OpIs,
    Passes,
    Pattern,
    ResultOf,
    ShapeIs,
    TypeIs,
    Wildcard,
)

# Relative tolerance for numbers in formulas: models store them in float16 to float64.
NUMBER_TOLERANCE = 1e-3

Producer = Callable[[Value], "Node | None"]


@dataclass(frozen=True, slots=True)
class Match:
    """A successful match: the value, what each wildcard stands for, and the nodes covered."""

    root: Value
    bound: dict[Pattern, Value]
    nodes: tuple[Node, ...]

    def __getitem__(self, pattern: Pattern) -> Value:
        return self.bound[pattern]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a pattern does not match: the reason and the value at which it failed."""

    reason: str
    value: Value

    def __str__(self) -> str:
        return f"%{self.value.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _State:
    """What has been matched so far; never changed, so that alternatives can be tried."""

    bound: dict[Pattern, Value]
    nodes: tuple[Node, ...] = ()
    passed: int = 0  # values on the way to a dominator, which are covered only behind it

    def bind(self, pattern: Pattern, value: Value) -> _State:
        return _State({**self.bound, pattern: value}, self.nodes, self.passed)

    def cover(self, node: Node) -> _State:
        nodes = self.nodes if node in self.nodes else (*self.nodes, node)
        return _State(self.bound, nodes, self.passed)


def match(pattern: Pattern, root: Value, producer: Producer) -> Match | Mismatch:
    """Match at one value; `producer` returns the node that defines a value."""
    matcher = _Matcher(producer)
    for state in matcher.match(pattern, root, _State({})):
        return Match(root, state.bound, state.nodes)
    return matcher.failure or Mismatch("does not match", root)


def matches(pattern: Pattern, root: Value, producer: Producer) -> Iterator[Match]:
    """All matches at one value, those of earlier alternatives first."""
    for state in _Matcher(producer).match(pattern, root, _State({})):
        yield Match(root, state.bound, state.nodes)


class _Matcher:
    """Depth-first matching with backtracking over alternatives and operand orders."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.failure: Mismatch | None = None
        self._deepest = -1

    def fail(self, reason: str, value: Value, state: _State) -> Iterator[_State]:
        """Remember the failure that got furthest."""
        depth = len(state.nodes) + state.passed
        if depth > self._deepest:
            self._deepest = depth
            self.failure = Mismatch(reason, value)
        return iter(())

    def match(self, pattern: Pattern, value: Value, state: _State) -> Iterator[_State]:
        bound = state.bound.get(pattern)
        if bound is not None:
            if bound is value:
                return iter((state,))
            return self.fail(f"is not %{bound.name} again", value, state)
        if isinstance(pattern, Wildcard):
            return iter((state.bind(pattern, value),))
        if isinstance(pattern, OpIs):
            return self.op(pattern, value, 0, state)
        if isinstance(pattern, ResultOf):
            return self.op(pattern.node, value, pattern.index, state)
        if isinstance(pattern, ConstantIs):
            return self.constant(pattern, value, state)
        if isinstance(pattern, Either):
            return self.either(pattern, value, state)
        if isinstance(pattern, Constrained):
            return self.constrained(pattern, value, state)
        if isinstance(pattern, Dominated):
            return self.dominated(pattern, value, state)
        raise InternalError(f"{type(pattern).__name__} is not a pattern of one value")

    def op(self, pattern: OpIs, value: Value, index: int, state: _State) -> Iterator[_State]:
        node = self.producer(value)
        if node is None:
            return self.fail(f"is an input, not {_names(pattern)}", value, state)
        if node.op.name not in pattern.names:
            return self.fail(f"is {node.op.name}, not {_names(pattern)}", value, state)
        if index >= len(node.outputs) or node.outputs[index] is not value:
            return self.fail(f"is not result {index} of {node.op.name}", value, state)
        reason = attrs_differ(node.attrs, pattern.attrs)
        if reason:
            return self.fail(reason, value, state)
        covered = state.bind(pattern, value).cover(node)
        if pattern.every is not None:
            return self.every(pattern.every, node.args, covered)
        if pattern.args is None:
            return iter((covered,))
        if len(pattern.args) != len(node.inputs) or None in node.inputs:
            reason = f"has {len(node.args)} operands, not {len(pattern.args)}"
            return self.fail(reason, value, state)
        return self.operand_orders(pattern.args, node, covered)

    def operand_orders(
        self, args: tuple[Pattern, ...], node: Node, state: _State
    ) -> Iterator[_State]:
        orders = permutations(args) if node.op.commutative and len(args) == 2 else iter((args,))
        for order in orders:
            yield from self.operands(order, node.args, state)

    def operands(
        self, args: tuple[Pattern, ...], values: tuple[Value, ...], state: _State
    ) -> Iterator[_State]:
        if not args:
            yield state
            return
        for next_state in self.match(args[0], values[0], state):
            yield from self.operands(args[1:], values[1:], next_state)

    def every(self, pattern: Pattern, values: tuple[Value, ...], state: _State) -> Iterator[_State]:
        """The same pattern anew on each operand: what it binds in one means nothing in the next."""
        if not values:
            yield state
            return
        for state_ in self.match(pattern, values[0], state):
            yield from self.every(pattern, values[1:], _State(state.bound, state_.nodes))

    def constant(self, pattern: ConstantIs, value: Value, state: _State) -> Iterator[_State]:
        literal = literal_of(value, self.producer)
        if literal is None:
            return self.fail("is not a constant", value, state)
        if pattern.number is not None and not all_are(literal, pattern.number):
            return self.fail(f"is not the constant {pattern.number:g}", value, state)
        return iter((state.bind(pattern, value),))

    def either(self, pattern: Either, value: Value, state: _State) -> Iterator[_State]:
        for alternative in pattern.alternatives:
            for matched in self.match(alternative, value, state):
                yield matched.bind(pattern, value)

    def constrained(self, pattern: Constrained, value: Value, state: _State) -> Iterator[_State]:
        for matched in self.match(pattern.inner, value, state):
            reason = self.violation(pattern.constraint, value)
            if reason:
                yield from self.fail(reason, value, matched)
            else:
                yield matched.bind(pattern, value)

    def dominated(self, pattern: Dominated, value: Value, state: _State) -> Iterator[_State]:
        for child in self.match(pattern.child, value, state):
            for reached, passed in self.upwards(pattern.path, value, child):
                state = _State(child.bound, child.nodes, passed)
                for parent in self.match(pattern.parent, reached, state):
                    path_values = between(reached, value, self.producer)
                    for led in self.led(pattern.path, path_values, child, parent):
                        yield led.bind(pattern, value)

    def upwards(self, path: Pattern, root: Value, child: _State) -> Iterator[tuple[Value, int]]:
        """The values that reach the root through nodes that match the path, nearest first, each
        with the number of values between."""
        queue, visited = deque([(root, -1)]), {root}
        while queue:
            value, passed = queue.popleft()
            node = self.producer(value)
            if value is not root:
                yield value, passed
                state = _State(child.bound, child.nodes, passed)
                if node is None or next(self.passed(path, value, state, child), None) is None:
                    continue
            for operand in node.args if node is not None else ():
                if operand not in visited:
                    visited.add(operand)
                    queue.append((operand, passed + 1))

    def passed(self, path: Pattern, value: Value, state: _State, child: _State) -> Iterator[_State]:
        """The states after a value on a path, one for each way in which it matches."""
        node = self.producer(value)
        if node in child.nodes:
            yield state
            return
        for matched in self.match(path, value, _State(child.bound, state.nodes, state.passed)):
            covered = _State(state.bound, matched.nodes)
            yield covered if node is None else covered.cover(node)

    def led(
        self, path: Pattern, path_values: list[Value], child: _State, state: _State
    ) -> Iterator[_State]:
        """The states after all values on the paths; none if one of them does not match."""
        stack = [iter((state,))]  # not recursive: ways may be as long as the graph
        while stack:
            reached = next(stack[-1], None)
            if reached is None:
                stack.pop()
            elif len(stack) > len(path_values):
                yield reached
            else:
                stack.append(self.passed(path, path_values[len(stack) - 1], reached, child))

    def violation(self, constraint: Constraint, value: Value) -> str:
        if isinstance(constraint, AttrsAre):
            node = self.producer(value)
            return attrs_differ(node.attrs, constraint.wanted) if node else "is an input"
        if isinstance(constraint, Passes):
            return "" if constraint.test(value) else constraint.reason
        if isinstance(constraint, TypeIs):
            fits = value.type == constraint.type
            return "" if fits else f"is {value.type}, not {constraint.type}"
        if not isinstance(value.type, TensorType):
            return "is not a tensor"
        if isinstance(constraint, DTypeIn):
            expected = " or ".join(constraint.dtypes)
            return "" if value.dtype in constraint.dtypes else f"is {value.dtype}, not {expected}"
        return _shape_violation(constraint, value.type)


def between(first: Value, last: Value, producer: Producer) -> list[Value]:
    """The values on all paths from one value to another, without the two."""
    readers: dict[Value, list[Value]] = {}
    visited, stack = {last}, [last]
    while stack:
        value = stack.pop()
        node = producer(value)
        for operand in node.args if node is not None else ():
            readers.setdefault(operand, []).append(value)
            if operand not in visited and operand is not first:
                visited.add(operand)
                stack.append(operand)
    inside: dict[Value, None] = {}
    stack = [first]
    while stack:
        for reader in readers.get(stack.pop(), ()):
            if reader is not last and reader not in inside:
                inside[reader] = None
                stack.append(reader)
    return list(inside)


def _shape_violation(constraint: ShapeIs, type_: TensorType) -> str:
    expected, shape = constraint.shape, type_.shape
    if shape is None or len(shape) != len(expected):
        return f"is {type_}, not of rank {len(expected)}"
    pairs = zip(expected, shape, strict=True)
    fits = all(extent is None or extent == dim for extent, dim in pairs)
    return "" if fits else f"is {type_}, not of shape {list(expected)}"


def _names(pattern: OpIs) -> str:
    return " or ".join(pattern.names)


def attrs_differ(attrs: Attrs, expected: tuple[tuple[str, Any], ...]) -> str:
    """The first attribute that is not the expected one, in words; empty where all are."""
    for name, value in expected:
        actual = getattr(attrs, name, None)
        value = tuple(value) if isinstance(value, list) else value
        if actual != value:
            return f"{name} is {actual}, not {value}"
    return ""


def literal_of(value: Value, producer: Producer) -> Literal | None:
    """The constant that a value is, or None."""
    node = producer(value)
    if node is None or node.op.name != "constant":
        return None
    literal: Literal = node.attrs.value
    return literal


def all_are(literal: Literal, number: float) -> bool:
    """Whether every element is about the number; exactly, for 0 and integers."""
    array = literal.array
    if array.size == 0 or array.dtype.kind in "Oc":
        return False
    if array.size > 1 and array.reshape(-1)[0] != array.reshape(-1)[-1]:
        return False
    values = array.astype(np.float64)
    tolerance = 0.0 if float(number).is_integer() else NUMBER_TOLERANCE * abs(number)
    return bool(np.all(np.abs(values - number) <= tolerance))
