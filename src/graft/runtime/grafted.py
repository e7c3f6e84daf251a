"""Regions in artifacts: the code of each, whose it is, and the host's code to fall back on.

Everything lies in blobs of the file, which are checked against their SHA-256 on every load. Regions
that mean the same share one blob. A region's code is loaded by the run time that its backend
announces in the entry-point group `graft.runtimes`; the compiler need not be there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from graft.base.errors import UserError
from graft.runtime.breaker import Breaker
from graft.runtime.guard import FIRST_DEADLINE, CaughtError, Policy
from graft.runtime.incidents import Fault
from graft.runtime.isolation import IsolatedRunner
from graft.runtime.loaders import Loader, announced, check_loader, load_for
from graft.runtime.regions import Region
from graft.runtime.row_blocks import Blocks, in_blocks
from graft.runtime.spaces import Runner
from graft.runtime.supervise import within
from graft.runtime.worker import Message, Worker, keep_runner

_INDEX = "regions"

# Makes a runner of a blob that is an artifact, on so many threads.
ArtifactRunner = Callable[[memoryview, int | None], Runner]


@dataclass(frozen=True, slots=True)
class StoredRegion:
    """A region as a file describes it; `code` and `host` name blobs, `host` may be empty. Code for
    blocks of `rows` (0: it is not) reads the inputs `whole` in each block."""

    label: str
    backend: str
    version: str
    device: str
    options: Mapping[str, str]
    code: str
    host: str = ""
    isolation: str = "none"
    rows: int = 0
    whole: Sequence[int] = ()

    @property
    def blocks(self) -> Blocks | None:
        """The blocks in which the code runs, if it does."""
        return Blocks(self.rows, tuple(self.whole)) if self.rows else None


def region_blobs(
    regions: Mapping[str, Sequence[StoredRegion]], codes: Mapping[str, bytes], policy: Policy
) -> dict[str, bytes]:
    """What a file has to hold besides its program; `regions` are by variant."""
    result = dict(codes)
    for variant, own in regions.items():
        index = {"policy": asdict(policy), "regions": [asdict(region) for region in own]}
        result[f"{_INDEX} {variant}".strip()] = json.dumps(index).encode()
    return result


def load_regions(
    blobs: Mapping[str, memoryview],
    threads: int | None,
    artifact_runner: ArtifactRunner,
    verify: str | None = None,
    deadline: float | None = None,
) -> dict[str, Region]:
    """The regions of a file by variant and label, ready to run; none for a file without any.

    `artifact_runner` loads the host's code of a region, which is an artifact itself; `verify` and
    `deadline` stand in for what the file says."""
    loader = _Loader(blobs, threads, artifact_runner)
    result: dict[str, Region] = {}
    for variant, (policy, stored) in stored_regions(blobs).items():
        policy = replace(
            policy,
            verify=verify or policy.verify,
            deadline=policy.deadline if deadline is None else deadline,
        )
        if verify not in (None, "off") and not all(item.host for item in stored):
            raise UserError(
                f"verify='{verify}' wants the host's code, which this file does not hold",
                hint="compile the model with fallback='host'",
            )
        for item in stored:
            result[f"{variant} {item.label}".strip()] = loader.region(item, policy)
    return result


def stored_regions(
    blobs: Mapping[str, memoryview],
) -> dict[str, tuple[Policy, list[StoredRegion]]]:
    """What a file says of its regions, by variant."""
    result: dict[str, tuple[Policy, list[StoredRegion]]] = {}
    for name in blobs:
        kind, _, variant = name.partition(" ")
        if kind == _INDEX:
            index = json.loads(bytes(blobs[name]))
            regions = [StoredRegion(**item) for item in index["regions"]]
            result[variant] = Policy(**index["policy"]), regions
    return result


@dataclass(frozen=True, slots=True)
class MissingRuntime:
    """A backend whose code in a file cannot be loaded here; `fallback` is what then becomes of its
    regions: `host` or `error`."""

    backend: str
    version: str
    reason: str
    regions: int
    fallback: str


def missing_runtimes(blobs: Mapping[str, memoryview]) -> list[MissingRuntime]:
    """The backends that a file needs and that are not installed, or in another version.

    Their run times are looked up, but load nothing of the file."""
    stored: dict[tuple[str, str], list[str]] = {}
    for policy, own in stored_regions(blobs).values():
        for one in own:
            fallback = policy.fallback if one.host else "error"
            stored.setdefault((one.backend, one.version), []).append(fallback)
    result = []
    for (backend, version), fallbacks in stored.items():
        try:
            check_loader(announced(backend).load(), version)
        except Exception as error:  # noqa: BLE001  (whatever a backend's package raises)
            reason = error.message if isinstance(error, UserError) else str(error)
            fallback = "error" if "error" in fallbacks else "host"
            result.append(MissingRuntime(backend, version, reason, len(fallbacks), fallback))
    return result


class _Loader:
    """Makes regions of what a file holds; equal ones share their code, and a backend's regions the
    breaker of its device."""

    def __init__(
        self,
        blobs: Mapping[str, memoryview],
        threads: int | None,
        artifact_runner: ArtifactRunner,
    ) -> None:
        self._blobs, self._threads, self._artifact_runner = blobs, threads, artifact_runner
        self._runners: dict[str, Runner] = {}
        self._breakers: dict[str, Breaker] = {}
        self._silent: dict[str, Exception] = {}  # backends that did not answer once
        self._workers: dict[str, Worker] = {}

    def region(self, stored: StoredRegion, policy: Policy) -> Region:
        """A region, loaded; where that fails, one that the host stands in for, and that is loaded
        when it is tried again."""
        host = stored.host and partial(
            self._artifact_runner, self._blobs[stored.host], self._threads
        )
        breaker = self._breakers.setdefault(stored.backend, Breaker())
        make_region = partial(
            Region, stored.label, stored.backend, on_host=host or None, policy=policy
        )
        try:
            return make_region(self._runner(stored, policy), device_breaker=breaker)
        except Exception as error:
            reason = _why_not_loaded(stored, error)
            if policy.fallback == "error" or not stored.host:
                raise UserError(
                    f"the region '{stored.label}' cannot be loaded: {reason}",
                    hint=f"install the backend '{stored.backend}', or compile with fallback='host'",
                ) from error
            region = make_region(
                None, device_breaker=breaker, loader=partial(self._load_again, stored)
            )
            fault = Fault.LATE if isinstance(error, TimeoutError) else Fault.NOT_LOADED
            region.failed(CaughtError(fault, reason))
            return region

    def _load_again(self, stored: StoredRegion) -> Runner:
        try:
            return self._load(stored, FIRST_DEADLINE)
        except TimeoutError:
            raise
        except Exception as error:
            raise CaughtError(Fault.NOT_LOADED, _why_not_loaded(stored, error)) from error

    def _runner(self, stored: StoredRegion, policy: Policy) -> Runner:
        if stored.code not in self._runners:
            if stored.backend in self._silent:
                raise self._silent[stored.backend]
            try:
                seconds = FIRST_DEADLINE if policy.deadline is None else policy.deadline
                if stored.isolation == "none":
                    runner = within(seconds, partial(self._load, stored, seconds))
                else:
                    runner = self._load(stored, seconds)
                self._runners[stored.code] = runner
            except TimeoutError as error:
                self._silent[stored.backend] = error
                raise
        return self._runners[stored.code]

    def _load(self, stored: StoredRegion, seconds: float) -> Runner:
        return in_blocks(self._code(stored, seconds), stored.blocks)

    def _code(self, stored: StoredRegion, seconds: float) -> Runner:
        code = bytes(self._blobs[stored.code])
        if stored.isolation == "none":
            return load_code(stored.backend, stored.version, code, self._threads)
        if stored.backend not in self._workers:
            self._workers[stored.backend] = Worker()
        worker = self._workers[stored.backend]
        facts = [stored.backend, stored.version, self._threads]
        runner = IsolatedRunner(worker, load_isolated, facts, code, seconds)
        runner.prepare()
        return runner


def _why_not_loaded(stored: StoredRegion, error: Exception) -> str:
    """What a region's backend lacks here, in words."""
    what = str(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        what = f"the Python package '{error.name.partition('.')[0]}' is not installed"
    return f"{stored.backend} {stored.version} cannot run here: {what}"


def load_isolated(message: Message) -> Message:
    """The same in a worker."""
    backend, version, threads = message.facts
    return keep_runner(load_code(backend, version, message.blobs[0], threads))


def load_code(backend: str, version: str, code: bytes, threads: int | None) -> Runner:
    """What runs code that some version of a backend made, by the run time that it announces."""
    loader: Loader = announced(backend).load()
    check_loader(loader, version)
    return load_for(loader, code, threads)
