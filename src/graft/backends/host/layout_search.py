"""The cheapest layout of every tensor of a graph, given what each layout of each step costs.

In go steps, each with its candidates: the blocks of its results (0 is row-major), what that costs,
and in which blocks it reads its operands. Out comes a candidate for each step. A tensor that a step
cannot read as it is has to be copied, once for all its readers.

Dynamic programming over the steps in order. A state is which blocks each tensor that is still to be
read exists in; of all choices that lead to the same state, the cheapest is kept. So the result is
optimal, at a price that grows with how many tensors are live at a time, not with how many there
are: few in networks with branches and residuals. Where there are more than `MOST_STATES` states,
the cheapest are kept, and the result may not be optimal: `Plan.exact` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graft.ir.graph import Value

MOST_STATES = 1024


@dataclass(frozen=True, slots=True)
class OperandRequirement:
    """The blocks in which an operand can be read, and what it costs to copy it into the first of
    them where it exists in none."""

    value: Value
    blocks: tuple[int, ...]
    copy_cost: float


@dataclass(frozen=True, slots=True)
class LayoutCandidate:
    """The blocks of a step's results, what the step costs then, and what it requires."""

    block: int
    cost: float
    requirements: tuple[OperandRequirement, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A step's results, and its layout candidates."""

    outputs: tuple[Value, ...]
    candidates: tuple[LayoutCandidate, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The candidate that is chosen for each step."""

    choices: tuple[LayoutCandidate, ...]
    cost: float
    exact: bool


# Per tensor that is still to be read, by its number: the blocks that it exists in.
_State = frozenset[tuple[int, frozenset[int]]]


@dataclass(frozen=True, slots=True)
class _Chain:
    """The choices that led to a state, the last one first."""

    choice: LayoutCandidate
    before: _Chain | None


def cheapest(inputs: Sequence[Value], steps: Sequence[Step]) -> Plan:
    """The cheapest plan; `inputs` are row-major."""
    numbers: dict[Value, int] = {value: number for number, value in enumerate(inputs)}
    for step in steps:
        for value in step.outputs:
            numbers.setdefault(value, len(numbers))
    last_reads = {
        numbers[required.value]: number
        for number, step in enumerate(steps)
        for candidate in step.candidates
        for required in candidate.requirements
    }
    rows = frozenset((0,))
    start = frozenset((numbers[v], rows) for v in inputs if numbers[v] in last_reads)
    states: dict[_State, tuple[float, _Chain | None]] = {start: (0.0, None)}
    exact = True
    for number, step in enumerate(steps):
        following: dict[_State, tuple[float, _Chain | None]] = {}
        for candidate in step.candidates:
            for state, (cost, chain) in states.items():
                layouts, price = _after(state, step, candidate, numbers)
                live = frozenset(one for one in layouts if last_reads.get(one[0], -1) > number)
                total = cost + price
                if live not in following or total < following[live][0]:
                    following[live] = (total, _Chain(candidate, chain))
        states = following
        if len(states) > MOST_STATES:
            exact = False
            states = dict(sorted(states.items(), key=lambda item: item[1][0])[:MOST_STATES])
    cost, chain = min(states.values(), key=lambda pair: pair[0])
    return Plan(_choices(chain), cost, exact)


def _after(
    state: _State, step: Step, candidate: LayoutCandidate, numbers: Mapping[Value, int]
) -> tuple[Iterable[tuple[int, frozenset[int]]], float]:
    """Which tensors exist in which blocks after a step, and what the step costs with its copies."""
    layouts = dict(state)
    cost = candidate.cost
    for required in candidate.requirements:
        number = numbers[required.value]
        if layouts[number].isdisjoint(required.blocks):
            layouts[number] |= {required.blocks[0]}
            cost += required.copy_cost
    blocks = frozenset((candidate.block,))
    layouts.update((numbers[value], blocks) for value in step.outputs)
    return layouts.items(), cost


def _choices(chain: _Chain | None) -> tuple[LayoutCandidate, ...]:
    choices: list[LayoutCandidate] = []
    while chain is not None:
        choices.append(chain.choice)
        chain = chain.before
    return tuple(reversed(choices))
