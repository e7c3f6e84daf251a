"""Regions in artifacts: the code of each, whose it is, and the host's code to fall back on.

Everything lies in blobs of the file, which are checked against their SHA-256 on every load. Regions
that mean the same share one blob. A region's code is loaded by the run time that its backend
announces in the entry-point group `graft.runtimes`; the compiler need not be there.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.runtime.artifact import load as load_artifact
from graft.runtime.loaders import Loader, check_version, load_for
from graft.runtime.regions import Policy, Region, RegionWarning
from graft.runtime.spaces import Runner
from graft.runtime.specialized_session import AnySession, session_of

GROUP = "graft.runtimes"
_INDEX = "regions"


@dataclass(frozen=True, slots=True)
class StoredRegion:
    """A region as a file describes it; `code` and `host` name blobs, `host` may be empty."""

    label: str
    backend: str
    version: str
    device: str
    options: Mapping[str, str]
    code: str
    host: str = ""


def region_blobs(
    regions: Mapping[str, Sequence[StoredRegion]], codes: Mapping[str, bytes], policy: Policy
) -> dict[str, bytes]:
    """What a file has to hold besides its program; `regions` are by variant."""
    found = dict(codes)
    for variant, own in regions.items():
        index = {"policy": asdict(policy), "regions": [asdict(region) for region in own]}
        found[f"{_INDEX} {variant}".strip()] = json.dumps(index).encode()
    return found


def load_regions(
    blobs: Mapping[str, memoryview], threads: int | None
) -> dict[str, dict[str, Region]]:
    """The regions of a file by variant and label, ready to run; none for a file without any."""
    runners: dict[str, Runner] = {}
    found: dict[str, dict[str, Region]] = {}
    for name in blobs:
        kind, _, variant = name.partition(" ")
        if kind == _INDEX:
            found[variant] = _indexed(blobs[name], blobs, threads, runners)
    return found


def _indexed(
    described: memoryview,
    blobs: Mapping[str, memoryview],
    threads: int | None,
    runners: dict[str, Runner],
) -> dict[str, Region]:
    """The regions of one program; `runners` are those that have been loaded by now."""
    index = json.loads(bytes(described))
    policy = Policy(**index["policy"])
    found: dict[str, Region] = {}
    for item in index["regions"]:
        stored = StoredRegion(**item)
        if stored.code not in runners:
            runners[stored.code] = _accelerated(stored, blobs, policy, threads)
        host = partial(artifact_runner, blobs[stored.host], threads) if stored.host else None
        found[stored.label] = Region(
            stored.label, stored.backend, runners[stored.code], host, policy
        )
    return found


def _accelerated(
    stored: StoredRegion, blobs: Mapping[str, memoryview], policy: Policy, threads: int | None
) -> Runner:
    """The accelerator's code, or what says at each call that it cannot run here."""
    try:
        loader: Loader = _announced(stored.backend).load()
        check_version(loader, stored.version)
        return load_for(loader, bytes(blobs[stored.code]), threads)
    except Exception as error:
        reason = f"{stored.backend} {stored.version} cannot run here: {error}"
        if policy.fallback == "error" or not stored.host:
            raise UserError(
                f"the region '{stored.label}' needs {reason}",
                hint=f"install the backend '{stored.backend}', or compile with fallback='host'",
            ) from error
        warnings.warn(f"{reason}; the host stands in for it", RegionWarning, stacklevel=5)
        failure = reason

    def refuse(_inputs: Sequence[Array], _outputs: Sequence[Array]) -> None:
        raise UserError(failure)

    return refuse


def _announced(backend: str) -> EntryPoint:
    for point in entry_points(group=GROUP):
        if point.name == backend:
            return point
    raise UserError(f"no installed package announces the run time of '{backend}'")


def artifact_runner(blob: bytes | memoryview, threads: int | None = None) -> Runner:
    """What runs a region whose code is the bytes of an artifact."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "region.graft"
        path.write_bytes(blob)
        return session_runner(session_of(load_artifact(path), threads))


def session_runner(session: AnySession) -> Runner:
    """A session as a runner: arrays in order instead of by name."""
    names = [one.name for one in session.get_inputs()]
    homes = [one.name for one in session.get_outputs()]

    def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        feeds = dict(zip(names, inputs, strict=True))
        session.run(None, feeds, dict(zip(homes, outputs, strict=True)))

    return run
