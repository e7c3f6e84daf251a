"""A compiled graph: a program and its functions in; something that runs, is timed, and goes into a
file out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from graft.backends.host.builder import Built
from graft.backends.host.options import HostOptions
from graft.backends.host.saving import save_as
from graft.backends.host.step_times import by_value, median_costs
from graft.base.dtypes import Array
from graft.byoc.contract import Cost
from graft.program.program import Program
from graft.program.variants import Key, variant_name, with_variants
from graft.runtime.profile import Profile
from graft.runtime.session import Session
from graft.runtime.supplied import Supplied
from graft.target.target import HOST


@dataclass(frozen=True, eq=False)
class HostExecutable:
    """A compiled graph."""

    program: Program
    supplied: Supplied
    options: HostOptions
    kernels: Mapping[str, str]  # labels by the values that they make; fused values are not here
    reference_nodes: Mapping[str, str]  # values that the evaluator makes, with the reason
    python_nodes: Mapping[str, str]  # values that Python makes, with what it does
    arena_bound: int | None  # no plan can do with a smaller arena; None: that depends on inputs
    makes: Mapping[int, str] = field(default_factory=dict)  # by kernel call or instruction

    @classmethod
    def of(cls, built: Built, options: HostOptions) -> HostExecutable:
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
        """The median time of each kernel over several runs, by the value that it makes; all
        iterations of a loop count together."""
        feeds = dict(zip((one.name for one in self.program.inputs), inputs, strict=True))
        return median_costs(lambda: self._times(self.session.profile(feeds)))

    def _times(self, profile: Profile) -> dict[str, float]:
        steps = [one for one in profile.moments if id(one.step) in self.makes]
        return by_value([(self.makes[id(one.step)], one.seconds) for one in steps])

    def save(
        self,
        path: str | os.PathLike[str],
        blobs: Mapping[str, bytes] | None = None,
        backends: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Write the program to a file, with what the regions of other backends need; tells the
        operators that the evaluator has to know there."""
        return save_as(self.program, path, backends, blobs)

    def without_session(self) -> HostExecutable:
        """The same, with nothing of it linked."""
        return replace(self)

    def __call__(
        self, inputs: Sequence[Any], homes: Mapping[str, Array] | None = None
    ) -> list[Any]:
        """Run on inputs in order; results that have an array are written there."""
        names = (value.name for value in self.program.inputs)
        return self.session.run(None, dict(zip(names, inputs, strict=True)), homes)


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
        kernels=_first(one.kernels for one in parts.values()),
        reference_nodes=_first(one.reference_nodes for one in parts.values()),
        arena_bound=None,
    )


def _first(several: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """All entries; of those with the same name the first."""
    found: dict[str, str] = {}
    for one in several:
        found = {**one, **found}
    return found


def _supplied(parts: Mapping[str, HostExecutable]) -> Supplied:
    """The functions of all programs, with the variants' names before theirs."""
    found = Supplied({}, {}, {})
    for variant, part in parts.items():
        own = part.supplied
        found = Supplied(
            {**found.functions, **_named(variant, own.functions)},
            {**found.evaluators, **_named(variant, own.evaluators)},
            {**found.rules, **own.rules},
        )
    return found


def _named(variant: str, functions: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{variant} {name}" if variant else name: one for name, one in functions.items()}
