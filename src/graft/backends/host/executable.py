"""A compiled graph: runs a program, profiles its steps, and writes it to an artifact."""

from __future__ import annotations

import os
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np

from graft.backends.host.lowering.builder import BuiltProgram
from graft.base.dtypes import Array
from graft.byoc.contract import HOST_BACKEND, Cost, Source
from graft.byoc.executable import Settings
from graft.byoc.measure import WATCH, calm
from graft.program.program import Program
from graft.program.variants import Key, variant_name, with_variants
from graft.runtime.artifact import Origin, save
from graft.runtime.evaluated import SuppliedFunctions
from graft.runtime.profile import Profile
from graft.runtime.session import Session
from graft.target.target import HOST

HOST_VERSION = "1"
_PROFILES = 9  # least runs that a profile is the median of
_PROFILE_SECONDS = 1.5  # other processes come and go faster than that


@dataclass(frozen=True, eq=False)
class HostExecutable:
    """A compiled graph."""

    program: Program
    supplied: SuppliedFunctions
    options: Settings
    kernels: Mapping[str, str]  # labels by the values that they make; fused values are not here
    reference_nodes: Mapping[str, str]  # values that the evaluator makes, with the reason
    python_nodes: Mapping[str, str]  # values that Python makes, with what it does
    arena_bound: int | None  # no plan can do with a smaller arena; None: that depends on inputs
    makes: Mapping[int, str] = field(default_factory=dict)  # by kernel call or instruction

    @classmethod
    def of(cls, built: BuiltProgram, options: Settings) -> HostExecutable:
        """What was built of a graph."""
        return cls(
            built.program,
            built.supplied,
            options,
            {name: getattr(step, "label", "") for step, name in built.makes if name},
            dict(built.reasons),
            dict(built.lookups),
            built.arena_bound,
            {id(step): name for step, name in built.makes},
        )

    @cached_property
    def session(self) -> Session:
        """The program, linked into this process when it first runs; one for another machine is
        refused then."""
        machine = "" if self.options.machine == HOST else self.options.machine
        session = Session(
            self.program, self.options.threads, self.supplied, at_once=False, machine=machine
        )
        session.kernels, session.arena_bound = self.kernels, self.arena_bound
        return session

    def time_steps(self, inputs: Sequence[Array]) -> dict[str, Cost]:
        """The median time of each kernel over several runs, by the value that it makes, and how
        often it ran; all iterations of a loop count together."""
        feeds = dict(zip((one.name for one in self.program.inputs), inputs, strict=True))
        costs = median_costs(lambda: self._times(self.session.profile(feeds)))
        counts = self._executions(self.session.profile(feeds))
        never = Cost(0.0, Source.MEASURED)
        return {
            name: replace(costs.get(name, never), executions=float(count))
            for name, count in counts.items()
        }

    def _times(self, profile: Profile) -> dict[str, float]:
        steps = [moment for moment in profile.moments if id(moment.step) in self.makes]
        # A thread that was kept off its core sees nothing of what the others did meanwhile.
        return by_value([(self.makes[id(one.step)], max(one.seconds, *one.busy)) for one in steps])

    def _executions(self, profile: Profile) -> dict[str, int]:
        """How often each value is made; by what makes it most often, where several steps do."""
        runs = Counter(id(moment.step) for moment in profile.moments)
        counts: dict[str, int] = {}
        for step, name in self.makes.items():
            if name:
                counts[name] = max(counts.get(name, 0), runs[step])
        return counts

    def save(
        self,
        path: str | os.PathLike[str],
        blobs: Mapping[str, bytes] | None = None,
        backends: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Write the program to a file, with what the regions of other backends need; tells the
        operators that the evaluator has to know there."""
        versions = {HOST_BACKEND: HOST_VERSION, **(backends or {})}
        return save(self.program, path, Origin(version("graft-compiler"), versions), blobs)

    def without_session(self) -> HostExecutable:
        """The same, with nothing of it linked."""
        return replace(self)

    def __call__(
        self, inputs: Sequence[Any], outputs: Mapping[str, Array] | None = None
    ) -> list[Any]:
        """Run on inputs in order; results that have an array are written there."""
        names = (value.name for value in self.program.inputs)
        return self.session.run(None, dict(zip(names, inputs, strict=True)), outputs)


def specialized(
    general: HostExecutable, symbols: tuple[str, ...], variants: Mapping[Key, HostExecutable]
) -> HostExecutable:
    """A model with variants for some sizes, as one program."""
    program = with_variants(
        general.program, symbols, {key: one.program for key, one in variants.items()}
    )
    parts = {"": general, **{variant_name(symbols, key): one for key, one in variants.items()}}
    return replace(
        general,
        program=program,
        supplied=_supplied(parts),
        kernels=dict(ChainMap(*(dict(part.kernels) for part in parts.values()))),
        reference_nodes=dict(ChainMap(*(dict(part.reference_nodes) for part in parts.values()))),
        arena_bound=None,
    )


def _supplied(parts: Mapping[str, HostExecutable]) -> SuppliedFunctions:
    """The functions of all programs, those of variants under names with theirs as a prefix."""
    result = SuppliedFunctions()
    for variant, part in parts.items():
        own = part.supplied
        result = SuppliedFunctions(
            {**result.functions, **_named(variant, own.functions)},
            {**result.evaluators, **_named(variant, own.evaluators)},
        )
    return result


def _named(variant: str, functions: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{variant} {name}" if variant else name: one for name, one in functions.items()}


def by_value(times: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Total time per value of steps that are given with the value they compute.

    Relayouts compute no value of their own (their name is empty): they count for the step after."""
    totals: dict[str, float] = {}
    pending = 0.0
    for name, seconds in times:
        pending += float(seconds)
        if name:
            totals[name] = totals.get(name, 0.0) + pending
            pending = 0.0
    return totals


def median_costs(run: Callable[[], Mapping[str, float]]) -> dict[str, Cost]:
    """Median cost per value over several profiled runs. Steps skipped in a run (an untaken branch)
    count as zero."""
    runs = WATCH.measured(lambda: calm(run, _PROFILES, _PROFILE_SECONDS))
    names = dict.fromkeys(name for one in runs for name in one)
    medians = {name: float(np.median([one.get(name, 0.0) for one in runs])) for name in names}
    return {name: Cost(seconds, Source.MEASURED) for name, seconds in medians.items()}
