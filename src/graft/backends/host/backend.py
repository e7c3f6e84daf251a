"""The host backend: a graph with static shapes in, machine code that runs it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from graft.backends.host.builder import build_program
from graft.backends.host.executable import HostExecutable
from graft.backends.host.options import Accuracy, HostOptions
from graft.backends.host.saving import HOST_VERSION
from graft.backends.host.segments import SegmentCompiler
from graft.base.dtypes import Array
from graft.base.progress import Progress, quietly
from graft.byoc.contract import HOME, Backend, Cost, Limits, Runner
from graft.ir.graph import Graph
from graft.runtime.cores import available_processors
from graft.runtime.grafted import artifact_runner, session_runner
from graft.runtime.regions import Region
from graft.target.roofline import memory_roofline
from graft.target.target import Target, named_target


class HostBackend(Backend):
    """Compiles graphs for the CPU of this machine, or of another one."""

    name = HOME
    version = HOST_VERSION

    def __init__(self, options: HostOptions | None = None, report: Progress = quietly) -> None:
        self._options, self._report = options or HostOptions(), report

    @cached_property
    def _target(self) -> Target:
        """What code is for. Found out when it is needed: this machine is calibrated then."""
        return named_target(self._options.machine)

    @cached_property
    def limits(self) -> Limits:  # type: ignore[override]  # an attribute, once somebody asks
        """The roofline of the machine: what all threads compute, and read from memory."""
        rates = memory_roofline(self._target.machine).scaled(self._threads)
        return Limits(peak_flops=rates.flops, peak_bytes_per_second=rates.bytes)

    @property
    def _threads(self) -> int:
        return self._options.threads or available_processors()

    @property
    def options(self) -> Mapping[str, str]:
        return {"accuracy": self._options.accuracy.value, "machine": self._options.machine}

    @property
    def threads(self) -> int | None:
        """How many threads run what it builds; None: one per core."""
        return self._options.threads

    @property
    def machine_key(self) -> str:
        """What prices depend on besides backend and region: processor and threads."""
        return f"{self._target.key} {self._threads}"

    def compile(self, region: Graph) -> bytes:
        """A region as the bytes of an artifact."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "region.graft"
            self.build(region).save(path)
            return path.read_bytes()

    def load(self, blob: bytes) -> Runner:
        return artifact_runner(blob, self._options.threads)

    @property
    def strict(self) -> HostBackend:
        """The host without algorithms that trade accuracy for speed."""
        return HostBackend(replace(self._options, accuracy=Accuracy.STRICT))

    def runner(self, region: Graph) -> Runner:
        """The same without the way through bytes."""
        return session_runner(self.build(region).session)

    def time_groups(self, graph: Graph, inputs: Sequence[Array]) -> dict[str, Cost]:
        """What each kernel takes within a run of the whole graph, by the value that it makes."""
        return self.build(graph).time_steps(inputs)

    def build(self, graph: Graph, regions: Mapping[str, Runner] | None = None) -> HostExecutable:
        """Machine code for a graph; what native code does not reach runs on the evaluator.

        `regions` runs what is left to other backends, by label."""
        own = regions or {}
        compiler = SegmentCompiler(
            self._target, self._options.accuracy, own, _spaces(own), self._report
        )
        built = build_program(graph, compiler, self._options.threads)
        return HostExecutable.of(built, self._options)


def _spaces(regions: Mapping[str, Runner]) -> dict[str, str]:
    """The memory spaces of regions that have a device."""
    found = {name: one for name, one in regions.items() if isinstance(one, Region)}
    return {name: one.space for name, one in found.items() if one.device is not None}
