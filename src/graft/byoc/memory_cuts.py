"""Cuts on device memory: a choice that exceeds a memory in, rows that exclude it out.

`RegionCuts` hold for any order of regions. Neighbours on one site are in one region unless their
edge is split, and so are the ends of a path of such edges: while a node of the path runs, all that
the region holds for the others is in memory, too. To avoid that, a node of the path has to leave
the site, or an edge of it has to be split, at the price of a launch. So the linear relaxation pays
for a whole launch, however it spreads the split.

`StageCuts` exclude what region cuts cannot express: parts of a region that no path connects, and
values that stay in memory between regions in an undecided order. They hold only at the stages at
which they were found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from graft.byoc.memory import HeldBuffer, Peak
from graft.byoc.milp import CONSTANT, Linear, minus, plus, scaled
from graft.byoc.model import Model
from graft.byoc.problem import Flow

_Key = tuple[int, int]  # a flow and a form, or -1 and an option for its workspace


class RegionCuts:
    """Rows over sites and splits."""

    def __init__(self, model: Model) -> None:
        self.model = model
        # (site, node) -> what may be in memory while the node runs -> whether it is, and its share
        self.present: dict[tuple[int, int], dict[_Key, tuple[int, float]]] = {}

    def add(self, peak: Peak, stages: Sequence[int]) -> bool:
        """Cut off a choice with a region that is too large; False if no region cut does, since
        parts of the region are not connected."""
        region = _Region(self.model, peak, stages)
        # the nearest reasons that exceed memory together: the fewer nodes and edges a row depends
        # on, the fewer ways there are around it
        reasons = sorted(region.reasons(), key=lambda reason: len(reason[2]))
        sizes = accumulate(size for _, size, _ in reasons)
        room = (peak.space.capacity or 0) - peak.constants
        count = next((number for number, size in enumerate(sizes, 1) if size > room), 0)
        if not count:
            return False
        del reasons[count:]
        own = self.present.setdefault((region.site, peak.node), {})
        programme = self.model.programme
        for key, size, absent in reasons:
            if key not in own:
                own[key] = programme.variable(), float(size)
            variable, _ = own[key]
            programme.at_least_zero(plus([{variable: 1.0, CONSTANT: -1.0}, absent]))
        self.model.within(peak.space, dict(own.values()))
        return True


class _Region:
    """A region that is too large, seen from the node at its peak."""

    def __init__(self, model: Model, peak: Peak, stages: Sequence[int]) -> None:
        self.model, self.peak, self.stages = model, peak, stages
        self.problem = model.problem
        self.stage = stages[peak.node]
        self.site = self.stage % model.count

    def reasons(self) -> Iterator[tuple[_Key, int, Linear]]:
        """Values in memory for reasons that rows can express, each with its size and an expression
        that is 0 if the reason holds, else at least 1."""
        for buffer in self.peak.values:
            absent = self.why_held(buffer)
            if buffer.size and absent is not None:
                yield (buffer.flow, buffer.form), buffer.size, absent
        if self.peak.workspace is not None:
            option, _, size = self.peak.workspace
            apart = self.apart(self.problem.options[option].nodes[0])
            if apart is not None:
                unused = minus({CONSTANT: 1.0}, self.model.chosen(option))
                yield (-1, option), size, plus([apart, unused])

    def why_held(self, buffer: HeldBuffer) -> Linear | None:
        flow = self.problem.flows[buffer.flow]
        node, maker = self.peak.node, flow.producer
        inside = [end for end in flow.ends if self.stages[end] == self.stage]
        if not inside:
            return self.why_kept(flow, buffer.form)
        if (maker is None or maker <= node) and node <= max(flow.ends):
            # alive in the order of the region, or else it crosses the region's border
            return self.nearest(inside)
        if maker is None:
            return self.nearest(inside)
        if maker in inside:
            outside = [end for end in flow.consumers if self.stages[end] != self.stage]
            apart = self.nearest([maker])
            if apart is None or flow.leaves:
                return apart
            return plus([apart, self.together(maker, outside[0])])
        for reader in inside:
            apart = self.nearest([reader])
            if apart is not None:
                return plus([apart, self.together(maker, reader)])
        return None

    def why_kept(self, flow: Flow, form: int) -> Linear | None:
        """The reason of a value that the region does not touch: it is made or read there before,
        and read after the region."""
        before = [end for end in flow.ends if end in self.before and self.is_there(end, form)]
        after = [end for end in flow.consumers if end in self.after and self.is_there(end, form)]
        if not before or not after:
            return None
        present = [self.there(before[0], form), self.there(after[0], form)]
        return minus(self.off(self.peak.node), plus([*present, {CONSTANT: -2.0}]))

    def is_there(self, node: int, form: int) -> bool:
        return self.model.is_in(self.stages[node], self.peak.space, form)

    def there(self, node: int, form: int) -> Linear:
        """1 if a node has values of a form in this memory."""
        sites = [s for s in self.peak.space.sites if self.problem.sites[s].form == form]
        return plus([self.model.here[s][node] for s in sites if s in self.model.here])

    def off(self, node: int) -> Linear:
        """1 if a node is not on the site."""
        return minus({CONSTANT: 1.0}, self.model.here[self.site][node])

    def together(self, before: int, after: int) -> Linear:
        """1 if one end of an edge is on the site, and in the same region as the other end."""
        split = self.model.splits.get((self.site, before, after))
        other = before if self.stages[before] != self.stage else after
        here = self.model.here[self.site][other]
        return here if split is None else minus(here, {split: 1.0})

    def nearest(self, nodes: Sequence[int]) -> Linear | None:
        """At least 1 if none of some nodes is in the region, by the shortest path to one of
        them."""
        reached = [node for node in nodes if node in self.paths]
        steps = {node: len(self.path(node)) for node in reached}
        return self.apart(min(reached, key=lambda node: steps[node])) if reached else None

    def apart(self, node: int) -> Linear | None:
        """At least 1 if a node is not in the region of the node at the peak, by the path between
        them; None if there is no path."""
        if node not in self.paths:
            return None
        path = self.path(node)
        terms = [self.off(one) for one in path]
        for pair in pairwise(path):
            before, after = sorted(pair)
            terms.append({self.model.splits[self.site, before, after]: 1.0})
        return plus(terms)

    def path(self, node: int) -> list[int]:
        result = [node]
        while result[-1] != self.peak.node:
            result.append(self.paths[result[-1]])
        return result

    @cached_property
    def paths(self) -> dict[int, int]:
        """The nodes of the region connected to the one at the peak, each with the next node on a
        shortest path there."""
        result, queue = {self.peak.node: self.peak.node}, [self.peak.node]
        for node in queue:
            for other in self.problem.neighbours[node]:
                if other not in result and self.stages[other] == self.stage:
                    result[other] = node
                    queue.append(other)
        return result

    @cached_property
    def before(self) -> frozenset[int]:
        return self._reached(forwards=False)

    @cached_property
    def after(self) -> frozenset[int]:
        return self._reached(forwards=True)

    def _reached(self, forwards: bool) -> frozenset[int]:
        """The nodes that the one at the peak depends on, or that depend on it."""
        result, stack = {self.peak.node}, [self.peak.node]
        while stack:
            node = stack.pop()
            for other in self.problem.neighbours[node]:
                if (other > node) == forwards and other not in result:
                    result.add(other)
                    stack.append(other)
        return frozenset(result - {self.peak.node})


class StageCuts:
    """Rows over the stages of a model with rounds."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def add(self, peak: Peak, stages: Sequence[int]) -> None:
        """Exclude that the peak's values are all in memory at these stages, or at the same ones
        some rounds earlier or later.

        Each value counts if the nodes that put it there under the choice `stages` are where they
        are now: any other choice that does the same needs as much memory."""
        moments = {buffer.stage for buffer in peak.values}
        moments |= {peak.workspace[1]} if peak.workspace else set()
        if not moments:
            return  # constants have rows of their own
        first, last = min(moments), max(moments)
        for shift in range(
            -(first // self.model.count) * self.model.count,
            len(self.model.stages),
            self.model.count,
        ):
            if last + shift >= len(self.model.stages):
                break
            terms = [
                scaled(self.present(buffer, peak, stages, shift), buffer.size)
                for buffer in peak.values
                if buffer.size
            ]
            if peak.workspace:
                option, stage, size = peak.workspace
                terms.append(scaled(self.model.used.get((option, stage + shift), {}), size))
            self.model.within(peak.space, plus(terms))

    def present(self, buffer: HeldBuffer, peak: Peak, stages: Sequence[int], shift: int) -> Linear:
        """A variable that is 1 if a value is in memory for the same reason as now."""
        positions, flow = self.model.positions, self.model.problem.flows[buffer.flow]
        now, then = buffer.stage, buffer.stage + shift
        maker, form = flow.producer, buffer.form

        def here(node: int, earliest: int, latest: int) -> Linear:
            p = positions[node]
            inside = (k for k in p.stages if earliest <= k <= latest)
            return plus([p.at(k) for k in inside if self.model.is_in(k, peak.space, form)])

        end = len(self.model.stages)
        readers = [n for n in flow.consumers if self.model.is_in(stages[n], peak.space, form)]
        is_made = maker is not None and self.model.is_in(stages[maker], peak.space, form)
        if buffer.is_inside:
            assert maker is not None
            around = {maker, max(flow.ends)}  # if it crossed the border, it would be in memory, too
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

    def all_of(self, needs: Sequence[Linear], never: Sequence[Linear] = ()) -> Linear:
        """A variable that is 1 if all of some expressions are 1 and none of others is."""
        both = self.model.programme.variable()
        missing = {CONSTANT: len(needs) - 1.0}
        rest = minus(plus([{both: 1.0}, missing]), plus(needs))
        self.model.programme.at_least_zero(plus([rest, *never]))
        return {both: 1.0}
