"""Placement hints from outside of backends: pattern tables, predicates and pins.

Tables and predicates are registered for a backend by its name, in addition to its own; pins are the
user's constraints on where nodes run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from graft.base.callbacks import author_code
from graft.base.errors import UserError
from graft.byoc.contract import HOST_BACKEND, Backend, Match
from graft.ir.graph import Node
from graft.ops import OPS
from graft.rewrite.pattern import Formula, Pattern, formula, leaves
from graft.rewrite.rule import Refusal

Verdict = bool | Refusal | None
Predicate = Callable[[Node], Verdict]
Check = Callable[[Match], Verdict]

A = TypeVar("A", Node, Match)

_PREFIX = "codegen."


@dataclass(frozen=True)
class Entry:
    """One entry of a pattern table; `check` is the predicate that came with it."""

    name: str
    formula: Formula
    check: Check | None = None

    @cached_property
    def leaves(self) -> tuple[Pattern, ...]:
        """The leaves of the pattern, in order, which match the operands of a match."""
        return tuple(self.formula.wildcards.values()) or leaves(self.formula.pattern)


_PREDICATES: dict[tuple[str, str], Predicate] = {}  # (backend, operator)
_TABLES: dict[str, list[Entry]] = {}


def register_op_attr(op_name: str, attr: str) -> Callable[[Predicate], Predicate]:
    """Decorate a predicate that tells which nodes of an operator a backend runs:
    `"codegen.<backend>"`."""
    backend = attr.removeprefix(_PREFIX)
    if not attr.startswith(_PREFIX) or not backend:
        raise UserError(f"'{attr}' names no backend", hint=f"write '{_PREFIX}<backend>'")
    OPS.get(op_name)  # so that a misspelt operator is an error

    def register(predicate: Predicate) -> Predicate:
        _PREDICATES[backend, op_name] = predicate
        return predicate

    return register


def register_pattern_table(backend: str, table: Iterable[Sequence[Any]]) -> None:
    """Register patterns for a backend: (name, pattern) or (pattern, name), optionally with a
    predicate."""
    _TABLES.setdefault(backend, []).extend(entry(item) for item in table)


def unregister(backend: str) -> None:
    """Remove the patterns and predicates that were registered for a backend."""
    _TABLES.pop(backend, None)
    for key in [key for key in _PREDICATES if key[0] == backend]:
        del _PREDICATES[key]


def entry(item: Sequence[Any]) -> Entry:
    """An entry of a table, with name and pattern in either order."""
    names = [part for part in item[:2] if isinstance(part, str)]
    others = [part for part in item[:2] if not isinstance(part, str)]
    if len(item) not in (2, 3) or len(names) != 1:
        raise UserError(f"{item!r} is no line of a pattern table", hint="write (name, pattern)")
    return Entry(names[0], _traced(others[0]), item[2] if len(item) == 3 else None)


def _traced(pattern: Any) -> Formula:
    """The formula of a pattern, or of a function whose parameters become wildcards."""
    if isinstance(pattern, Formula):
        return pattern
    if isinstance(pattern, Pattern):
        return Formula(pattern)
    if callable(pattern):
        required = [
            p for p in inspect.signature(pattern).parameters.values() if p.default is p.empty
        ]
        return formula(pattern) if required else _traced(pattern())
    raise UserError(f"{pattern!r} is no pattern", hint="write is_op(...)(...), or a function")


def tables_of(backend: Backend) -> tuple[Entry, ...]:
    """The backend's own patterns and those registered for it."""
    with author_code(f"{backend.name}.patterns", backend.patterns):
        own = tuple(entry(item) for item in backend.patterns())
        entries = (*own, *_TABLES.get(backend.name, ()))
        backend.check_patterns([one.name for one in entries])
    return entries


def predicate_of(backend: str, op_name: str) -> Predicate | None:
    """The predicate for single nodes of an operator on a backend."""
    return _PREDICATES.get((backend, op_name))


def ask(predicate: Callable[[A], Verdict], about: A, what: str, node: Node) -> Refusal | None:
    """A predicate's answer as a refusal; a bare False gets a generic reason."""
    with author_code(what, predicate, f"%{node.output.name} ({node.op.name})", node.location):
        verdict = predicate(about)
        if isinstance(verdict, np.bool_):
            verdict = bool(verdict)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"it answers {verdict!r}, which is neither None nor a Refusal")
    if isinstance(verdict, Refusal):
        return verdict
    return Refusal(f"{what} says no") if verdict is False else None


@dataclass(frozen=True, slots=True)
class Pin:
    """Nodes whose name matches the glob must run on the backend, or (`forbidden`) must not."""

    glob: str
    backend: str
    forbidden: bool = False

    def __str__(self) -> str:
        return f"{self.glob}={'!' if self.forbidden else ''}{self.backend}"


@dataclass(frozen=True, slots=True)
class Pins:
    """The user's pins, all of which hold; `released` nodes may run on the host all the same."""

    pins: tuple[Pin, ...] = ()
    released: frozenset[Node] = frozenset()

    @staticmethod
    def parse(texts: Iterable[str]) -> Pins:
        """`"layer4/*=host"` pins nodes to a backend, `"conv1=!onednn"` excludes one."""
        return Pins(tuple(_parsed(text) for text in texts))

    def verdict(self, node: Node, backend: str) -> Refusal | None:
        """The pin that keeps the node off the backend, as a refusal."""
        if node in self.released and backend == HOST_BACKEND:
            return None
        for pin in self.pins:
            if (pin.backend == backend) == pin.forbidden and fits(node, pin.glob):
                return Refusal(f"the pin '{pin}' keeps it off {backend}", node)
        return None

    def of(self, node: Node) -> tuple[Pin, ...]:
        """The pins that match a node."""
        return tuple(pin for pin in self.pins if fits(node, pin.glob))

    def broken(self, node: Node, backend: str) -> Pin | None:
        """The pin by which the node must run on the backend."""
        matching = (pin for pin in self.of(node) if not pin.forbidden and pin.backend == backend)
        return next(matching, None)

    def unused(self, nodes: Iterable[Node]) -> tuple[Pin, ...]:
        """Pins that match no node: probably misspelt."""
        graph_nodes = list(nodes)
        return tuple(
            pin for pin in self.pins if not any(fits(node, pin.glob) for node in graph_nodes)
        )


NO_PINS = Pins()


def _parsed(text: str) -> Pin:
    glob, equals, backend = text.rpartition("=")
    name = backend.removeprefix("!")
    if not equals or not glob or not name:
        raise UserError(f"the pin '{text}' cannot be read", hint="write 'layer4/*=host'")
    return Pin(glob, name, backend.startswith("!"))


def fits(node: Node, glob: str) -> bool:
    """Whether a glob matches a node's ONNX name or the name of one of its results."""
    names = [value.name for value in node.outputs]
    if node.location is not None and node.location.node:
        names.append(node.location.node)
    return any(fnmatchcase(name, glob) for name in names)
