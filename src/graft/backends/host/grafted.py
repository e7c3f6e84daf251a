"""The host's program with regions of other backends in it: runs, and goes into a file whole."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from graft.backends.host.backend import HostBackend, HostExecutable
from graft.backends.host.flow_program import FlowExecutable
from graft.base.dtypes import Array
from graft.byoc.trust import CompiledRegion
from graft.ir.evaluate import Data
from graft.runtime.grafted import StoredRegion, region_blobs
from graft.runtime.regions import Policy


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
    def reference_nodes(self) -> dict[str, str]:
        """Values that the reference evaluator computes, each with the reason."""
        return self.built.reference_nodes

    def __call__(
        self, inputs: Sequence[Data], homes: Mapping[str, Array] | None = None
    ) -> list[Data]:
        return self.built(inputs, homes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program, the regions' code, and the host's code for each to fall back on."""
        codes: dict[str, bytes] = {}
        stored = []
        names: dict[str, int] = {}
        for region in self._regions:
            number = names.setdefault(region.key, len(names))
            code, host = f"region {number}", f"region {number} on the host"
            codes.setdefault(code, region.blob)
            if self._policy.fallback == "host" and host not in codes:
                codes[host] = self._host.compile(region.body)
            backend = region.backend
            stored.append(
                StoredRegion(
                    region.label,
                    backend.name,
                    backend.version,
                    backend.device,
                    dict(backend.options),
                    code,
                    host if host in codes else "",
                )
            )
        versions = {region.backend.name: region.backend.version for region in self._regions}
        self.built.save(path, versions, region_blobs(stored, codes, self._policy))
