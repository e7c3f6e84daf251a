"""What a file holds beside the host's program: the code of regions, and the host's for each of them
to fall back on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graft.byoc.contract import Backend
from graft.byoc.trust import CompiledRegion
from graft.runtime.grafted import StoredRegion, region_blobs
from graft.runtime.regions import Policy


@dataclass(frozen=True, eq=False)
class Attachments:
    """The regions of a compiled model by variant, of which the general program has no name; `host`
    compiles what is fallen back on."""

    regions: Mapping[str, Sequence[CompiledRegion]]
    host: Backend
    policy: Policy

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the backends whose regions these are."""
        backends = (region.backend for own in self.regions.values() for region in own)
        return {backend.name: backend.version for backend in backends}

    def blobs(self) -> dict[str, bytes]:
        """What a file has to hold of them; equal regions share code."""
        codes: dict[str, bytes] = {}
        numbers: dict[str, int] = {}

        def stored(region: CompiledRegion) -> StoredRegion:
            number = numbers.setdefault(region.key, len(numbers))
            code, fallback = f"region {number}", f"region {number} on the host"
            codes.setdefault(code, region.blob)
            # to fall back on, and to compare with
            has_host = self.policy.fallback == "host" or self.policy.verify != "off"
            if has_host and fallback not in codes:
                codes[fallback] = self.host.compile(region.body)
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

        found = {name: [stored(one) for one in own] for name, own in self.regions.items() if own}
        return region_blobs(found, codes, self.policy)
