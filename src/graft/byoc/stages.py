"""Which stages each node may be in, and the variables that say in which one it is.

Stage `rounds * number of sites` is never reached; stage k is on site k modulo the number of sites.
A node's stage is written in unary: one variable per threshold between stages that are open to it,
"at this stage or a later one", so that "never falls along a flow" is a difference of variables.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from graft.byoc.milp import CONSTANT, Linear, Programme
from graft.byoc.problem import Problem


def open_stages(problem: Problem, rounds: int) -> list[list[int]] | None:
    """Per node the stages it may be in, given what comes before and after; None: too few rounds."""
    count = len(problem.sites)
    sites = [sorted({problem.options[o].site for o in found}) for found in problem.covering]
    stages = [[r * count + s for r in range(rounds) for s in own] for own in sites]
    for before, after in sorted(problem.edges):
        kept = stages[after][bisect_left(stages[after], stages[before][0]) :]
        if not kept:
            return None
        stages[after] = kept
    for before, after in sorted(problem.edges, key=lambda edge: -edge[1]):
        kept = stages[before][: bisect_right(stages[before], stages[after][-1])]
        if not kept:
            return None
        stages[before] = kept
    return stages


@dataclass(frozen=True)
class Position:
    """A node's stage in unary: `thresholds[j]` is 1 if the node is at `stages[j + 1]` or later."""

    stages: Sequence[int]
    thresholds: Sequence[int]

    def reached(self, stage: int) -> Linear:
        """1 if the node is at the stage or a later one."""
        index = bisect_left(self.stages, stage)
        if index == 0:
            return {CONSTANT: 1.0}
        return {} if index == len(self.stages) else {self.thresholds[index - 1]: 1.0}

    def at(self, stage: int) -> Linear:
        """1 if the node is at the stage."""
        return minus(self.reached(stage), self.reached(stage + 1))


def place_nodes(programme: Programme, problem: Problem, rounds: int) -> list[Position] | None:
    """Variables for every node's stage, ordered along the flows; None where rounds are too few."""
    stages = open_stages(problem, rounds)
    if stages is None:
        return None
    positions = []
    for own in stages:
        thresholds = [programme.variable(integer=True) for _ in own[1:]]
        for earlier, later in pairwise(thresholds):
            programme.at_least_zero({earlier: 1.0, later: -1.0})
        positions.append(Position(own, thresholds))
    for before, after in problem.edges:
        for stage in positions[before].stages:
            gap = minus(positions[after].reached(stage), positions[before].reached(stage))
            programme.at_least_zero(gap)
    return positions


def minus(left: Linear, right: Linear) -> dict[int, float]:
    """A difference of expressions."""
    result = dict(left)
    for variable, factor in right.items():
        result[variable] = result.get(variable, 0.0) - factor
        if not result[variable]:
            del result[variable]
    return result


def plus(parts: Sequence[Linear]) -> dict[int, float]:
    """A sum of expressions."""
    result: dict[int, float] = {}
    for part in parts:
        for variable, factor in part.items():
            result[variable] = result.get(variable, 0.0) + factor
    return {variable: factor for variable, factor in result.items() if factor}


def scaled(expression: Linear, factor: float) -> dict[int, float]:
    """An expression times a number."""
    return {variable: part * factor for variable, part in expression.items() if factor}
