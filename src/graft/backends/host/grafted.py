"""The host's program with regions of other backends in it: runs, and goes into a file whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from graft.backends.host.backend import HostBackend, HostExecutable
from graft.backends.host.flow_program import FlowExecutable
from graft.base.dtypes import Array
from graft.byoc.trust import CompiledRegion
from graft.ir.evaluate import Data
from graft.runtime.flow_session import FlowSession
from graft.runtime.grafted import StoredRegion, region_blobs
from graft.runtime.regions import Policy
from graft.runtime.session import Session


class GraftedProgram:
    """A program and the regions that it calls."""

    def __init__(
        self,
        built: HostExecutable | FlowExecutable,
        regions: Sequence[CompiledRegion],
        host: HostBackend,
        policy: Policy,
    ) -> None:
        self.built, self._regions, self._host, self._policy = built, regions, host, policy

    @property
    def kernels(self) -> dict[str, str]:
        """The step that makes each value, by its label."""
        return self.built.kernels

    @property
    def reference_nodes(self) -> dict[str, str]:
        """Values that the reference evaluator computes, each with the reason."""
        return self.built.reference_nodes

    @property
    def session(self) -> Session | FlowSession:
        """The host's program, linked into this process."""
        return self.built.session

    def __call__(
        self, inputs: Sequence[Data], homes: Mapping[str, Array] | None = None
    ) -> list[Data]:
        return self.built(inputs, homes)

    def save(
        self, path: str | os.PathLike[str], blobs: Mapping[str, bytes] | None = None
    ) -> list[str]:
        """Write the program, the regions' code, and the host's code for each to fall back on."""
        own = stored_regions({"": self._regions}, self._host, self._policy)
        return self.built.save(path, {**own, **(blobs or {})}, versions_of(self._regions))


def versions_of(regions: Iterable[CompiledRegion]) -> dict[str, str]:
    """The versions of the backends whose regions these are."""
    return {region.backend.name: region.backend.version for region in regions}


def stored_regions(
    regions: Mapping[str, Sequence[CompiledRegion]], host: HostBackend, policy: Policy
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

    found = {name: [stored(region) for region in own] for name, own in regions.items()}
    return region_blobs(found, codes, policy)
