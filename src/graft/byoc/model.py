"""The placement problem as a mixed-integer programme, with or without the order of regions.

With `rounds`, every node gets a *stage*; a region is all nodes of a stage, and stage k is on site k
modulo the number of sites. A stage is encoded in unary: one variable per threshold between the
stages open to a node, "at this stage or a later one", so that "never decreases along an edge" is a
difference of variables.

Without rounds (0), every node gets a site, and what depends on the order is relaxed: launches on a
site are at least the regions there on any path through the graph. Where memory is limited, an edge
between two nodes of a site may be *split*, which puts them into different regions.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from graft.byoc.memory import Space, spaces_of
from graft.byoc.milp import CONSTANT, Linear, Programme, evaluate, minus, plus, scaled
from graft.byoc.problem import HOST, Problem


class Model:
    """Variables and rows of a problem; no `positions` if there are too few rounds."""

    def __init__(self, problem: Problem, rounds: int) -> None:
        self.problem, self.rounds = problem, rounds
        self.count = len(problem.sites)
        self.stages = range(max(rounds, 1) * self.count)
        # in units of a thousandth of the total, prices are well above the solver's tolerances
        self.unit = sum(option.seconds for option in problem.options) / 1e3 or 1.0
        self.programme = Programme()
        ordered = problem if rounds else replace(problem, flows=())
        self.positions = place_nodes(self.programme, ordered, max(rounds, 1))
        self.used: dict[tuple[int, int], Linear] = {}  # (option, stage) -> whether it is chosen
        self.at: dict[tuple[int, int], list[int]] = {}  # (node, stage) -> options
        self.launches: dict[int, int] = {}  # site -> variable: how often it is launched
        self.here: dict[int, list[Linear]] = {}  # site -> per node, whether it runs there
        self.splits: dict[tuple[int, int, int], int] = {}  # site, edge -> variable: apart there
        self.held: dict[Space, int] = {}  # memory -> variable: the share of it that constants take
        if self.positions:
            self.cover()
            self.stay_accurate()
            self.carry()
            self.count_launches()
            self.begin_stages()
            self.fit_nodes()

    def cover(self) -> None:
        """Cover each node by exactly one option, at the node's stage."""
        options = self.problem.options
        for number, option in enumerate(options):
            stages = set(self.stages[option.site :: self.count])
            for node in option.nodes:
                stages &= set(self.positions[node].stages)
            for stage in sorted(stages):
                for node in option.nodes:
                    self.at.setdefault((node, stage), []).append(number)
        for (node, stage), numbers in self.at.items():
            if len(numbers) == 1 and options[numbers[0]].nodes == (node,):
                self.use(numbers[0], stage, self.positions[node].at(stage))
        for (_, stage), numbers in self.at.items():
            for number in numbers:
                if (number, stage) not in self.used:
                    self.use(number, stage, {self.programme.variable(integer=True): 1.0})
        for node, position in enumerate(self.positions):
            for stage in position.stages:
                is_chosen = plus([self.used[o, stage] for o in self.at.get((node, stage), ())])
                self.programme.zero(minus(position.at(stage), is_chosen))

    def use(self, number: int, stage: int, is_chosen: Linear) -> None:
        """Define the expression that is 1 if an option is chosen at a stage."""
        self.used[number, stage] = is_chosen
        self.programme.add_cost(is_chosen, self.problem.options[number].seconds / self.unit)

    def chosen(self, option: int) -> Linear:
        """1 if an option is chosen at any stage."""
        stages = self.stages[self.problem.options[option].site :: self.count]
        return plus([self.used[option, k] for k in stages if (option, k) in self.used])

    def stay_accurate(self) -> None:
        """Limit the sum of errors of the chosen options, in units of the limit."""
        limit, errors = self.problem.error_limit, self.problem.options
        parts: list[Linear] = []
        for (number, _), variable in self.used.items():
            error = errors[number].error
            if error > limit:
                self.programme.zero(variable)
            elif error > 0.0 and math.isfinite(limit):
                parts.append(scaled(variable, error / limit))
        if parts:
            self.programme.at_least_zero(minus({CONSTANT: 1.0}, plus(parts)))

    def in_form(self, position: Position, form: int) -> Linear:
        """1 if the node runs where values have that form."""
        sites = [number for number, site in enumerate(self.problem.sites) if site.form == form]
        return plus([position.at(k) for k in position.stages if k % self.count in sites])

    def carry(self) -> None:
        """Pay for transfers of values into the forms in which they are read."""
        for flow in self.problem.flows:
            for form in range(1, len(flow.bring)):
                producer_form: Linear = {}
                if flow.producer is not None:
                    producer_form = self.in_form(self.positions[flow.producer], form)
                readers = [self.in_form(self.positions[node], form) for node in flow.consumers]
                self.pay_once(
                    [minus(reader, producer_form) for reader in readers], flow.bring[form]
                )
                outside: list[Linear] = [{}] if flow.leaves else []
                elsewhere = [minus(producer_form, reader) for reader in (*readers, *outside)]
                self.pay_once(elsewhere, flow.fetch[form])

    def pay_once(self, needs: Sequence[Linear], price: float) -> None:
        """Pay the price if any of the expressions is 1."""
        needs = [need for need in needs if any(factor > 0 for factor in need.values())]
        if not needs or price <= 0.0:
            return
        paid = self.programme.variable(price / self.unit)
        for need in needs:
            self.programme.at_least_zero(minus({paid: 1.0}, need))

    def count_launches(self) -> None:
        """Count as many launches per site as regions on any path."""
        spaces = spaces_of(self.problem)
        limited = {s for space in spaces if space.capacity is not None for s in space.sites}
        for number, site in enumerate(self.problem.sites):
            here: list[Linear] = [
                plus([p.at(k) for k in p.stages if k % self.count == number])
                for p in self.positions
            ]
            most = float(sum(1 for expression in here if expression))
            is_free = site.launch <= 0.0 and number not in limited
            if number == HOST or not most or is_free:
                continue
            self.launches[number] = self.programme.variable(site.launch / self.unit, upper=most)
            self.here[number] = here
            if number in limited:
                self.split_regions(number)
            self.deepen(number, most)

    def split_regions(self, site: int) -> None:
        """Allow neighbours on a site to be in different regions, unless one option covers both."""
        here = self.here[site]
        for before, after in self.problem.edges:
            if not here[before] or not here[after]:
                continue
            split = self.programme.variable(integer=True)
            self.splits[site, before, after] = split
            covering = self.problem.covering
            both = [o for o in covering[before] if o in covering[after]]
            joined = [self.chosen(o) for o in both if self.problem.options[o].site == site]
            if joined:
                self.programme.at_least_zero(minus({CONSTANT: 1.0}, plus([{split: 1.0}, *joined])))
            for stage in self.stages[site :: self.count] if self.rounds else ():
                ends = [self.positions[node].at(stage) for node in (before, after)]
                off = minus({CONSTANT: 1.0}, here[after])
                self.programme.at_least_zero(minus(plus([{split: 1.0}, off]), minus(*ends)))
                self.programme.at_least_zero(minus({CONSTANT: 2.0}, plus([{split: 1.0}, *ends])))

    def deepen(self, site: int, most: float) -> None:
        """The largest number of regions on a site on any path to each node."""
        here, total = self.here[site], self.launches[site]
        depths = {
            node: self.programme.variable(upper=most)
            for node in sorted(_between(self.problem, here))
        }
        for node, depth in depths.items():
            self.programme.at_least_zero(minus({depth: 1.0}, here[node]))
            self.programme.at_least_zero({total: 1.0, depth: -1.0})
        for before, after in self.problem.edges:
            if before not in depths or after not in depths:
                continue
            further = {depths[after]: 1.0, depths[before]: -1.0}
            self.programme.at_least_zero(further)
            if here[after]:
                entered = minus(here[after], here[before])
                split = self.splits.get((site, before, after))
                entered = entered if split is None else {**entered, split: 1.0}
                self.programme.at_least_zero(minus(further, entered))
                if split is not None:  # as deep, unless they are apart or not both here
                    both = plus([here[before], here[after], {CONSTANT: -2.0}])
                    apart = minus({split: most}, scaled(both, most))
                    self.programme.at_least_zero(minus(apart, further))

    def begin_stages(self) -> None:
        """Pay a launch for every stage with nodes; a round without accelerators is not followed by
        another."""
        if not self.rounds:
            return
        started: dict[int, int] = {}
        for stage in self.stages:
            inside = [p.at(stage) for p in self.positions if stage in p.stages]
            if inside and stage % self.count != HOST:
                started[stage] = self.programme.variable()
                for expression in inside:
                    self.programme.at_least_zero(minus({started[stage]: 1.0}, expression))
        for stage, variable in started.items():
            first = (stage // self.count - 1) * self.count
            before = {started[k]: 1.0 for k in range(first, first + self.count) if k in started}
            if first >= 0:
                self.programme.at_least_zero(minus(before, {variable: 1.0}))
        for site, total in self.launches.items():
            starts = {variable: 1.0 for k, variable in started.items() if k % self.count == site}
            self.programme.at_least_zero(minus({total: 1.0}, starts))

    def fit_nodes(self) -> None:
        """Rows that hold in any order: the constants of all regions, and what any node reads, makes
        and needs as workspace, fit each memory. Cuts (`within`) are added as needed."""
        for space in spaces_of(self.problem):
            if space.capacity is None:
                continue
            self.held[space] = self.programme.variable()  # share of the memory
            sizes = self.problem.held or (0,) * len(self.positions)
            constants = [
                scaled(p.at(k), sizes[node] / max(space.capacity, 1))
                for node, p in enumerate(self.positions)
                for k in p.stages
                if sizes[node] and k % self.count in space.sites
            ]
            self.programme.at_least_zero(minus({self.held[space]: 1.0}, plus(constants)))
            most = sum(sizes)  # redundant rows would only cost time
            for terms in self.at_nodes(space).values():
                if most + sum(terms.values()) > space.capacity:
                    self.within(space, terms)

    def at_nodes(self, space: Space) -> dict[int, Linear]:
        """Bytes in a memory when a node runs there, by node."""
        terms: dict[int, list[Linear]] = {}
        for (number, _), variable in self.used.items():
            option = self.problem.options[number]
            if option.site in space.sites:
                form = self.problem.sites[option.site].form
                for node in option.nodes:
                    flows = (self.problem.flows[flow] for flow in self.problem.touching[node])
                    size = option.workspace + sum(flow.bytes_in(form) for flow in flows)
                    terms.setdefault(node, []).append(scaled(variable, size))
        return {node: plus(own) for node, own in terms.items()}

    def limit_constants(self, space: Space, size: int) -> None:
        """Limit the bytes of constants in a memory."""
        share = size / max(space.capacity or 0, 1)
        self.programme.at_least_zero({CONSTANT: share, self.held[space]: -1.0})

    def within(self, space: Space, amount: Linear) -> None:
        """Limit constants and an additional amount to the capacity of a memory."""
        share = scaled(amount, 1.0 / max(space.capacity or 0, 1))
        room = {CONSTANT: 1.0 if space.capacity else 0.0, self.held[space]: -1.0}
        self.programme.at_least_zero(minus(room, share))

    def is_in(self, stage: int, space: Space, form: int) -> bool:
        """Whether nodes at a stage have their values in a memory and form."""
        site = stage % self.count
        return site in space.sites and self.problem.sites[site].form == form

    def forbid(self, circle: Sequence[int]) -> None:
        """Exclude a set of options that would wait for each other."""
        total = plus([self.used[key] for key in self.used if key[0] in circle])
        self.programme.at_least_zero(minus({CONSTANT: len(circle) - 1.0}, total))

    def read(self, values: Sequence[float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The chosen options and the stages of the nodes in a solution."""
        stages = tuple(
            max(
                (p.stages[j + 1] for j, t in enumerate(p.thresholds) if values[t] > 0.5),
                default=p.stages[0],
            )
            for p in self.positions
        )
        chosen = {
            number for (number, stage), term in self.used.items() if evaluate(term, values) > 0.5
        }
        return tuple(sorted(chosen)), stages

    def read_splits(self, values: Sequence[float]) -> dict[tuple[int, int], bool]:
        """Whether a solution splits each edge between nodes of one site with limited memory."""
        splits = {}
        for (site, before, after), split in self.splits.items():
            here = (evaluate(self.here[site][node], values) for node in (before, after))
            if min(here) > 0.5:
                splits[before, after] = values[split] > 0.5
        return splits


def _between(problem: Problem, here: Sequence[Linear]) -> set[int]:
    """Nodes that may run on a site, or lie on a path from one of them to another."""
    below = {node for node, expression in enumerate(here) if expression}
    above = set(below)
    for before, after in sorted(problem.edges):
        if before in below:
            below.add(after)
    for before, after in sorted(problem.edges, key=lambda edge: -edge[1]):
        if after in above:
            above.add(before)
    return above & below


def open_stages(problem: Problem, rounds: int) -> list[list[int]]:
    """Per node the stages that its predecessors and successors allow; empty if there are too few
    rounds."""
    count = len(problem.sites)
    sites = [sorted({problem.options[o].site for o in result}) for result in problem.covering]
    stages = [[r * count + s for r in range(rounds) for s in own] for own in sites]
    for before, after in sorted(problem.edges):
        rest = stages[after][bisect_left(stages[after], stages[before][0]) :]
        if not rest:
            return []
        stages[after] = rest
    for before, after in sorted(problem.edges, key=lambda edge: -edge[1]):
        rest = stages[before][: bisect_right(stages[before], stages[after][-1])]
        if not rest:
            return []
        stages[before] = rest
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


def place_nodes(programme: Programme, problem: Problem, rounds: int) -> list[Position]:
    """Variables for every node's stage, ordered along the edges; empty if there are too few
    rounds."""
    positions: list[Position] = []
    for own in open_stages(problem, rounds):
        thresholds = [programme.variable(integer=True) for _ in own[1:]]
        for earlier, later in pairwise(thresholds):
            programme.at_least_zero({earlier: 1.0, later: -1.0})
        positions.append(Position(own, thresholds))
    for before, after in problem.edges if positions else ():
        for stage in positions[before].stages:
            gap = minus(positions[after].reached(stage), positions[before].reached(stage))
            programme.at_least_zero(gap)
    return positions
