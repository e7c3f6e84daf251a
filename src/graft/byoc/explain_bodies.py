"""Facts on the bodies of branches, loops and scans: candidates in; per body how often it is
expected to run, how that is known, and how it hangs together with the graph around it, out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graft.byoc.candidates import Candidates
from graft.byoc.scopes import operands_of
from graft.ir.graph import Node


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """A body whose nodes are placed by themselves."""

    name: str
    node: str  # that has it
    nodes: int
    executions: float  # in an inference
    source: str  # how they are known: known, measured or assumed
    operands: tuple[tuple[str, str], ...]  # values of the body, and those around it they stand for
    results: tuple[str, ...]  # values that it gives


def body_facts(candidates: Candidates, names: Mapping[Node, str]) -> Iterator[BodyFacts]:
    """The bodies, outer ones first."""
    for scope in candidates.scopes:
        if scope.owner is not None:
            own = sum(one is scope for one in candidates.scope_of.values())
            pairs = operands_of(scope.owner, scope.graph)
            yield BodyFacts(
                scope.name,
                names[scope.owner],
                own,
                scope.executions.count,
                scope.executions.source.value,
                tuple((inner.name, outer.name) for inner, outer in pairs),
                tuple(value.name for value in scope.graph.outputs),
            )


def edges_between(
    inputs: Mapping[int, tuple[str, ...]],
    makers: Mapping[str, int],
    bodies: tuple[BodyFacts, ...],
    numbers: Mapping[str, int],
) -> list[tuple[int, int]]:
    """Who reads from whom, by number: bodies read what their node reads, and it reads what they
    give."""
    stands_for = dict(pair for body in bodies for pair in body.operands)

    def maker(value: str) -> int | None:
        while value in stands_for:
            value = stands_for[value]
        return makers.get(value)

    reads = [(value, number) for number, own in inputs.items() for value in own]
    reads += [(value, numbers[body.node]) for body in bodies for value in body.results]
    pairs = ((maker(value), number) for value, number in reads)
    return list(dict.fromkeys((one, number) for one, number in pairs if one is not None))
