"""The host backend: a graph with static shapes in, machine code that runs it out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from graft.backends.host.flow_program import FlowExecutable
from graft.backends.host.options import Accuracy, HostOptions
from graft.backends.host.program import HostProgram
from graft.backends.host.saving import HOST_VERSION, save_as
from graft.backends.host.step_times import by_value, labels_by_value, median_costs
from graft.backends.host.stretches import Stretches, why_not_native
from graft.base.dtypes import Array
from graft.base.progress import Progress, quietly
from graft.byoc.contract import HOME, Backend, Cost, Limits, Runner
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.runtime.cores import available_processors
from graft.runtime.flow_executor import Supplied
from graft.runtime.grafted import artifact_runner, session_runner
from graft.runtime.memory import give_back
from graft.runtime.program import Program
from graft.runtime.program import Target as CompiledFor
from graft.runtime.regions import Region
from graft.runtime.session import Session
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

    def require_here(self, target: CompiledFor) -> None:
        """Refuse to run code of another machine in this process."""
        self._options.require_here(target)

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
        built = self.build(region)
        if isinstance(built, FlowExecutable):
            return lambda inputs, _outputs: [np.asarray(item) for item in built(inputs)]
        return session_runner(built.session)

    def time_groups(self, graph: Graph, inputs: Sequence[Array]) -> dict[str, Cost]:
        """What each kernel takes within a run of the whole graph, by the value that it makes."""
        return self.build(graph).time_steps(inputs)

    def build(
        self, graph: Graph, regions: Mapping[str, Runner] | None = None
    ) -> HostExecutable | FlowExecutable:
        """Machine code for a graph; what native code does not reach runs on the evaluator.

        `regions` runs what is left to other backends, by label."""
        own, accuracy = regions or {}, self._options.accuracy
        if why_not_native(graph):
            compiler = Stretches(self._target, accuracy, own, report=self._report)
            return FlowExecutable.of(graph, compiler, self._target, self._options)
        compiler = Stretches(self._target, accuracy, own, _spaces(own), self._report)
        return HostExecutable(compiler.static(graph), self._options)


def _spaces(regions: Mapping[str, Runner]) -> dict[str, str]:
    """The memory spaces of regions that have a device."""
    found = {name: one for name, one in regions.items() if isinstance(one, Region)}
    return {name: one.space for name, one in found.items() if one.device is not None}


class HostExecutable:
    """A compiled graph."""

    def __init__(self, built: HostProgram, options: HostOptions) -> None:
        self.built = built
        self._options = options

    @cached_property
    def session(self) -> Session:
        """The program, loaded into this process; one for another machine is refused."""
        self._options.require_here(self.built.program.target)
        give_back()  # what the compiler worked on
        return Session(self.built.program, self._options.threads, self.built.functions)

    @property
    def program(self) -> Program:
        """What native code does."""
        return self.built.program

    @property
    def supplied(self) -> Supplied:
        """The Python functions that the program names."""
        return Supplied(self.built.functions)

    def time_steps(self, inputs: Sequence[Array]) -> dict[str, Cost]:
        """The median time of each step over several runs, by the value that it makes."""
        feeds = dict(zip((spec.name for spec in self.built.program.inputs), inputs, strict=True))
        return median_costs(
            lambda: by_value(self.session.profile(feeds).seconds.tolist(), self.built.makes)
        )

    @property
    def kernels(self) -> dict[str, str]:
        """The step that makes each value, by its label; values inside of a kernel are not here."""
        steps = self.built.program.steps
        return labels_by_value([step.label for step in steps], self.built.makes)

    @property
    def reference_nodes(self) -> dict[str, str]:
        """Nodes that still run on the reference evaluator, with the reason."""
        return dict(self.built.reasons)

    @property
    def python_nodes(self) -> dict[str, str]:
        """None: all else is one native program."""
        return {}

    def save(
        self,
        path: str | os.PathLike[str],
        blobs: Mapping[str, bytes] | None = None,
        backends: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Write the program to a file, with what the regions of other backends need."""
        program = replace(self.built.program, threads=self._options.threads)
        return save_as(program, path, backends, blobs)

    def __call__(
        self, inputs: Sequence[Data], homes: Mapping[str, Array] | None = None
    ) -> list[Data]:
        names = [spec.name for spec in self.built.program.inputs]
        return list(self.session.run(None, dict(zip(names, inputs, strict=True)), homes))
