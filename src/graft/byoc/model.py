"""The problem of placement as a mixed-integer programme over a number of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graft.byoc.memory import Held, Peak, Space, spaces_of
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
        self.held: dict[Space, int] = {}  # memory -> variable: the share of it that constants take
        self.cover(self.positions)
        self.carry(self.positions)
        self.count_launches(self.positions)
        if rounds:
            self.begin_stages(self.positions)
        self.fit_nodes(self.positions)

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
        """Per site, as many launches as stretches on any path."""
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

    def fit_nodes(self, positions: Sequence[Position]) -> None:
        """What holds in any order: the constants of all regions are within each memory, together
        with what any node reads and makes, its workspace included. More is limited as need be
        (`limit`)."""
        for space in spaces_of(self.problem):
            if space.capacity is None:
                continue
            self.held[space] = self.programme.variable()  # share of the memory
            sizes = self.problem.held or (0,) * len(positions)
            held = [
                scaled(p.at(k), sizes[node] / max(space.capacity, 1))
                for node, p in enumerate(positions)
                for k in p.stages
                if sizes[node] and k % self.count in space.sites
            ]
            self.programme.at_least_zero(minus({self.held[space]: 1.0}, plus(held)))
            most = sum(sizes)  # rows that hold anyway would only cost time
            for needed in self.at_nodes(space).values():
                if most + sum(needed.values()) > space.capacity:
                    self.within(space, needed)

    def at_nodes(self, space: Space) -> dict[int, Linear]:
        """Bytes that are in a memory when a node runs there, by node."""
        terms: dict[int, list[Linear]] = {}
        for (number, _), chosen in self.used.items():
            option = self.problem.options[number]
            if option.site in space.sites:
                form = self.problem.sites[option.site].form
                for node in option.nodes:
                    flows = (self.problem.flows[flow] for flow in self.problem.touching[node])
                    size = option.workspace + sum(flow.bytes_in(form) for flow in flows)
                    terms.setdefault(node, []).append(scaled(chosen, size))
        return {node: plus(own) for node, own in terms.items()}

    def within(self, space: Space, needed: Linear) -> None:
        """Constants, and what is needed besides, within a memory."""
        share = scaled(needed, 1.0 / max(space.capacity or 0, 1))
        room = {CONSTANT: 1.0 if space.capacity else 0.0, self.held[space]: -1.0}
        self.programme.at_least_zero(minus(room, share))

    def limit(self, peak: Peak, stages: Sequence[int]) -> None:
        """Not all at once what is at once in a memory that is too small, at these stages or the
        same ones some rounds earlier or later.

        Each value counts where the nodes that put it there, under the choice `stages`, are where
        they are now: any other choice that does the same needs as much."""
        assert self.positions is not None
        moments = {held.stage for held in peak.values}
        moments |= {peak.workspace[1]} if peak.workspace else set()
        if not moments:
            return  # constants are limited anyway
        first, last = min(moments), max(moments)
        for shift in range(-(first // self.count) * self.count, len(self.stages), self.count):
            if last + shift >= len(self.stages):
                break
            terms = [
                scaled(self.present(held, peak, stages, shift), held.size)
                for held in peak.values
                if held.size
            ]
            if peak.workspace:
                option, stage, size = peak.workspace
                terms.append(scaled(self.used.get((option, stage + shift), {}), size))
            self.within(peak.space, plus(terms))

    def present(self, held: Held, peak: Peak, stages: Sequence[int], shift: int) -> Linear:
        """A variable that is 1 where a value is in a memory for the same reason as now."""
        assert self.positions is not None
        positions, flow = self.positions, self.problem.flows[held.flow]
        now, then = held.stage, held.stage + shift
        maker, form = flow.producer, held.form

        def here(node: int, earliest: int, latest: int) -> Linear:
            p = positions[node]
            inside = (k for k in p.stages if earliest <= k <= latest)
            return plus([p.at(k) for k in inside if self.is_in(k, peak.space, form)])

        end = len(self.stages)
        readers = [n for n in flow.consumers if self.is_in(stages[n], peak.space, form)]
        is_made = maker is not None and self.is_in(stages[maker], peak.space, form)
        if held.is_inside:
            assert maker is not None
            around = {maker, max((maker, *flow.consumers))}  # at a border it would count as well
            return self.all_of([positions[node].at(then) for node in around])
        if maker is not None and is_made and stages[maker] == now:
            if flow.leaves:
                return positions[maker].at(then)
            outside = next(node for node in flow.consumers if stages[node] != now)
            return self.all_of([positions[maker].at(then)], [positions[outside].at(then)])
        current = [node for node in readers if stages[node] == now]
        if not peak.space.stays:
            never = [] if maker is None else [positions[maker].at(then)]
            return self.all_of([positions[current[0]].at(then)], never)
        if maker is not None and is_made:
            later = next(node for node in readers if stages[node] >= now)
            return self.all_of([here(maker, 0, then - 1), here(later, then, end)])
        never = [] if maker is None else [here(maker, 0, end)]
        if current:
            return self.all_of([positions[current[0]].at(then)], never)
        before = next(node for node in readers if stages[node] < now)
        after = next(node for node in readers if stages[node] > now)
        return self.all_of([here(before, 0, then - 1), here(after, then + 1, end)], never)

    def is_in(self, stage: int, space: Space, form: int) -> bool:
        """Whether what runs at a stage has values in a memory and form."""
        site = stage % self.count
        return site in space.sites and self.problem.sites[site].form == form

    def all_of(self, needs: Sequence[Linear], never: Sequence[Linear] = ()) -> Linear:
        """A variable that is 1 where all of some expressions are 1 and none of others is."""
        both = self.programme.variable()
        missing = {CONSTANT: len(needs) - 1.0}
        rest = minus(plus([{both: 1.0}, missing]), plus(needs))
        self.programme.at_least_zero(plus([rest, *never]))
        return {both: 1.0}

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
