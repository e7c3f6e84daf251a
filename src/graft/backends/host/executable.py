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
from graft.byoc.contract import Backend, Cost
from graft.byoc.trust import CompiledRegion
from graft.program.program import Program
from graft.program.variants import Key, variant_name, with_variants
from graft.runtime.grafted import StoredRegion, region_blobs
from graft.runtime.profile import Profile
from graft.runtime.regions import Policy
from graft.runtime.session import Session
from graft.runtime.supplied import Supplied
from graft.target.target import HOST


@dataclass(frozen=True, eq=False)
class HostExecutable:
    """A compiled graph. `regions` are those of other backends that it calls, by variant, the
    general program's under an empty name."""

    program: Program
    supplied: Supplied
    options: HostOptions
    kernels: Mapping[str, str]  # labels by the values that they make; fused values are not here
    reference_nodes: Mapping[str, str]  # values that the evaluator makes, with the reason
    python_nodes: Mapping[str, str]  # values that Python makes, with what it does
    arena_bound: int | None  # no plan can do with a smaller arena; None: that depends on inputs
    makes: Mapping[int, str] = field(default_factory=dict)  # by kernel call or instruction
    regions: Mapping[str, Sequence[CompiledRegion]] = field(default_factory=dict)

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

    def save_whole(
        self,
        path: str | os.PathLike[str],
        blobs: Mapping[str, bytes],
        host: Backend,
        policy: Policy,
    ) -> list[str]:
        """The same with the regions' code, and the host's code for each to fall back on."""
        own = stored_regions(self.regions, host, policy) if any(self.regions.values()) else {}
        versions = versions_of(region for own in self.regions.values() for region in own)
        return self.save(path, {**own, **blobs}, versions)

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
        regions={name: one.regions.get("", ()) for name, one in parts.items()},
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


def versions_of(regions: Iterable[CompiledRegion]) -> dict[str, str]:
    """The versions of the backends whose regions these are."""
    return {region.backend.name: region.backend.version for region in regions}


def stored_regions(
    regions: Mapping[str, Sequence[CompiledRegion]], host: Backend, policy: Policy
) -> dict[str, bytes]:
    """What a file has to hold of regions, which are given by variant; equal ones share code."""
    codes: dict[str, bytes] = {}
    numbers: dict[str, int] = {}

    def stored(region: CompiledRegion) -> StoredRegion:
        number = numbers.setdefault(region.key, len(numbers))
        code, fallback = f"region {number}", f"region {number} on the host"
        codes.setdefault(code, region.blob)
        # to fall back on, and to compare with
        has_host = policy.fallback == "host" or policy.verify != "off"
        if has_host and fallback not in codes:
            codes[fallback] = host.compile(region.body)
        backend = region.backend
        return StoredRegion(
            region.label,
            backend.name,
            backend.version,
            backend.device,
            dict(backend.options),
            code,
            fallback if fallback in codes else "",
            backend.isolation,
        )

    found = {name: [stored(region) for region in own] for name, own in regions.items() if own}
    return region_blobs(found, codes, policy)
