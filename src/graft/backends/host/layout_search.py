"""The cheapest way to make every tensor of a graph, when how each is stored has its price.

In go steps, each with the ways in which it can be done: which blocks its results are in (0 is
row-major), what that costs, and in which blocks it takes its operands. Out comes a way for each
step. A tensor that a step does not take as it is has to be copied, once for all its readers.

The steps are gone through in order. What earlier choices mean for later ones is which blocks each
tensor that is still to be read exists in: of all choices that lead to the same, the cheapest is
kept. So the result is the best there is, at a price that grows with how many tensors wait to be
read at a time, not with how many there are: few in networks with branches and residuals. Where more
than `MOST_STATES` situations arise, the cheapest are kept, and the result may not be the best:
`Plan.exact` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graft.ir.graph import Value

MOST_STATES = 1024


@dataclass(frozen=True, slots=True)
class Want:
    """An operand, the blocks that will do, and what a copy costs, into the first of them, where
    it exists in none."""

    value: Value
    blocks: tuple[int, ...]
    copy: float


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do a step."""

    block: int
    cost: float
    wants: tuple[Want, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A step's results, and the ways in which it can be done."""

    outputs: tuple[Value, ...]
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A way for each step."""

    ways: tuple[Way, ...]
    cost: float
    exact: bool


# Per tensor that is still to be read, by its number: the blocks that it exists in.
_State = frozenset[tuple[int, frozenset[int]]]


@dataclass(frozen=True, slots=True)
class _Chain:
    """The ways that led somewhere, the last one first."""

    way: Way
    before: _Chain | None


def cheapest(
    given: Sequence[Value], steps: Sequence[Step], pinned: Mapping[Value, int] | None = None
) -> Plan:
    """The cheapest plan; `given` tensors are row-major, `pinned` ones have to be as they are."""
    numbers: dict[Value, int] = {value: number for number, value in enumerate(given)}
    for step in steps:
        for value in step.outputs:
            numbers.setdefault(value, len(numbers))
    last_reads = {
        numbers[want.value]: number
        for number, step in enumerate(steps)
        for way in step.ways
        for want in way.wants
    }
    rows = frozenset((0,))
    start = frozenset((numbers[v], rows) for v in given if numbers[v] in last_reads)
    states: dict[_State, tuple[float, _Chain | None]] = {start: (0.0, None)}
    exact = True
    for number, step in enumerate(steps):
        found: dict[_State, tuple[float, _Chain | None]] = {}
        for way in _allowed(step, pinned or {}):
            for state, (cost, chain) in states.items():
                there, price = _done(state, step, way, numbers)
                after = frozenset(one for one in there if last_reads.get(one[0], -1) > number)
                total = cost + price
                if after not in found or total < found[after][0]:
                    found[after] = (total, _Chain(way, chain))
        states = found
        if len(states) > MOST_STATES:
            exact = False
            states = dict(sorted(found.items(), key=lambda item: item[1][0])[:MOST_STATES])
    cost, chain = min(states.values(), key=lambda pair: pair[0])
    return Plan(_ways(chain), cost, exact)


def _allowed(step: Step, pinned: Mapping[Value, int]) -> list[Way]:
    fixed = {pinned[value] for value in step.outputs if value in pinned}
    return [way for way in step.ways if not fixed or fixed == {way.block}]


def _done(
    state: _State, step: Step, way: Way, numbers: Mapping[Value, int]
) -> tuple[Iterable[tuple[int, frozenset[int]]], float]:
    """Which tensors exist in which blocks after a step that was done in some way, and its cost."""
    there = dict(state)
    cost = way.cost
    for want in way.wants:
        number = numbers[want.value]
        if there[number].isdisjoint(want.blocks):
            there[number] |= {want.blocks[0]}
            cost += want.copy
    made = frozenset((way.block,))
    there.update((numbers[value], made) for value in step.outputs)
    return there.items(), cost


def _ways(chain: _Chain | None) -> tuple[Way, ...]:
    found: list[Way] = []
    while chain is not None:
        found.append(chain.way)
        chain = chain.before
    return tuple(reversed(found))
