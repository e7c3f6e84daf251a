"""The problem of placement as a mixed-integer programme over a number of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graft.byoc.milp import CONSTANT, Linear, Programme
from graft.byoc.problem import HOST, Problem
from graft.byoc.stages import Position, minus, place_nodes, plus, scaled


class Model:
    """Variables and rows of a problem.

    With rounds, each node gets a stage, and regions are stages. Without (0), it gets a site, and
    the launches on a site are at least the stretches there on any path, which is a relaxation.
    """

    def __init__(self, problem: Problem, rounds: int) -> None:
        self.problem = problem
        self.count = len(problem.sites)
        self.stages = range(max(rounds, 1) * self.count)
        # prices in units of a thousandth of the whole keep clear of the solver's tolerances
        self.unit = sum(option.seconds for option in problem.options) / 1e3 or 1.0
        self.programme = Programme()
        ordered = problem if rounds else replace(problem, flows=())
        self.positions = place_nodes(self.programme, ordered, max(rounds, 1))
        if self.positions is None:
            return
        self.used: dict[tuple[int, int], Linear] = {}  # (option, stage) -> whether it is chosen
        self.at: dict[tuple[int, int], list[int]] = {}  # (node, stage) -> options
        self.launches: dict[int, int] = {}  # site -> variable: how often it is launched
        self.cover(self.positions)
        self.carry(self.positions)
        self.count_launches(self.positions)
        if rounds:
            self.begin_stages(self.positions)
            self.fit_stages(self.positions)

    def cover(self, positions: Sequence[Position]) -> None:
        """Each node by exactly one option, at the stage where it is."""
        options = self.problem.options
        for number, option in enumerate(options):
            stages = set(self.stages[option.site :: self.count])
            for node in option.nodes:
                stages &= set(positions[node].stages)
            for stage in sorted(stages):
                for node in option.nodes:
                    self.at.setdefault((node, stage), []).append(number)
        for (node, stage), numbers in self.at.items():
            if len(numbers) == 1 and options[numbers[0]].nodes == (node,):
                self.use(numbers[0], stage, positions[node].at(stage))
        for (_, stage), numbers in self.at.items():
            for number in numbers:
                if (number, stage) not in self.used:
                    self.use(number, stage, {self.programme.variable(integer=True): 1.0})
        for node, position in enumerate(positions):
            for stage in position.stages:
                chosen = plus([self.used[o, stage] for o in self.at.get((node, stage), ())])
                self.programme.zero(minus(position.at(stage), chosen))

    def use(self, number: int, stage: int, chosen: Linear) -> None:
        """Let an expression say whether an option is chosen at a stage."""
        self.used[number, stage] = chosen
        self.programme.add_cost(chosen, self.problem.options[number].seconds / self.unit)

    def in_form(self, position: Position, form: int) -> Linear:
        """1 if the node runs where values have that form."""
        sites = [number for number, site in enumerate(self.problem.sites) if site.form == form]
        return plus([position.at(k) for k in position.stages if k % self.count in sites])

    def carry(self, positions: Sequence[Position]) -> None:
        """Values into the forms in which they are read."""
        for flow in self.problem.flows:
            for form in range(1, len(flow.bring)):
                made: Linear = {}
                if flow.producer is not None:
                    made = self.in_form(positions[flow.producer], form)
                readers = [self.in_form(positions[node], form) for node in flow.consumers]
                self.pay_once([minus(reader, made) for reader in readers], flow.bring[form])
                outside: list[Linear] = [{}] if flow.leaves else []
                elsewhere = [minus(made, reader) for reader in (*readers, *outside)]
                self.pay_once(elsewhere, flow.fetch[form])

    def pay_once(self, needs: Sequence[Linear], price: float) -> None:
        """Pay the price if any of the expressions is 1."""
        needs = [need for need in needs if any(factor > 0 for factor in need.values())]
        if not needs or price <= 0.0:
            return
        paid = self.programme.variable(price / self.unit)
        for need in needs:
            self.programme.at_least_zero(minus({paid: 1.0}, need))

    def count_launches(self, positions: Sequence[Position]) -> None:
        """Per site, as many launches as stretches on any path, and as its memory asks for."""
        for number, site in enumerate(self.problem.sites):
            here = [
                plus([p.at(k) for k in p.stages if k % self.count == number]) for p in positions
            ]
            most = float(sum(1 for expression in here if expression))
            if number == HOST or not most:
                continue
            total = self.programme.variable(site.launch / self.unit, upper=most)
            self.launches[number] = total
            self.deepen(here, total, most)
            if site.capacity is not None:
                # each launch has room for its results beside all constants
                held = self.held(here)
                sizes = self.problem.memory
                made = plus([scaled(term, sizes[node]) for node, term in enumerate(here)])
                whole = {total: float(site.capacity)}
                room = minus({CONSTANT: float(site.capacity)}, held)
                for rest in (minus(whole, plus([made, held])), room):
                    self.programme.at_least_zero(scaled(rest, 1.0 / max(site.capacity, 1)))

    def held(self, here: Sequence[Linear]) -> Linear:
        """Bytes of constants that a site keeps, given whether each node runs there."""
        sizes = self.problem.held or (0,) * len(here)
        return plus([scaled(term, sizes[node]) for node, term in enumerate(here)])

    def deepen(self, here: Sequence[Linear], total: int, most: float) -> None:
        """The stretches on a site that any path to a node has, node by node."""
        depths = [self.programme.variable(upper=most) for _ in here]
        for depth, expression in zip(depths, here, strict=True):
            self.programme.at_least_zero(minus({depth: 1.0}, expression))
            self.programme.at_least_zero({total: 1.0, depth: -1.0})
        for before, after in self.problem.edges:
            further = {depths[after]: 1.0, depths[before]: -1.0}
            self.programme.at_least_zero(further)
            if here[after]:
                entered = minus(here[after], here[before])
                self.programme.at_least_zero(minus(further, entered))

    def begin_stages(self, positions: Sequence[Position]) -> None:
        """Launch every stage that has nodes; a round without accelerators is not begun."""
        started: dict[int, int] = {}
        for stage in self.stages:
            inside = [p.at(stage) for p in positions if stage in p.stages]
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
            begun = {variable: 1.0 for k, variable in started.items() if k % self.count == site}
            self.programme.at_least_zero(minus({total: 1.0}, begun))

    def fit_stages(self, positions: Sequence[Position]) -> None:
        """Regions within what memory the constants of all of them leave."""
        for stage in self.stages:
            capacity = self.problem.sites[stage % self.count].capacity
            if capacity is None:
                continue
            needed = plus(
                [
                    scaled(position.at(stage), self.problem.memory[node])
                    for node, position in enumerate(positions)
                    if stage in position.stages
                ]
            )
            site = stage % self.count
            here = [plus([p.at(k) for k in p.stages if k % self.count == site]) for p in positions]
            rest = minus({CONSTANT: float(capacity)}, plus([needed, self.held(here)]))
            self.programme.at_least_zero(scaled(rest, 1.0 / max(capacity, 1)))

    def forbid(self, circle: Sequence[int]) -> None:
        """Not all of these options, which would wait for each other."""
        chosen = plus([self.used[key] for key in self.used if key[0] in circle])
        self.programme.at_least_zero(minus({CONSTANT: len(circle) - 1.0}, chosen))

    def read(self, values: Sequence[float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The solver's answer: the options chosen, and the stages of the nodes."""
        assert self.positions is not None
        stages = tuple(
            max(
                (p.stages[j + 1] for j, t in enumerate(p.thresholds) if values[t] > 0.5),
                default=p.stages[0],
            )
            for p in self.positions
        )
        chosen = {
            number
            for (number, stage), term in self.used.items()
            if sum(f if v == CONSTANT else values[v] * f for v, f in term.items()) > 0.5
        }
        return tuple(sorted(chosen)), stages
