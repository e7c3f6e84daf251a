"""The host backend: a graph with static shapes in, machine code that runs it out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from graft.backends.host.assemble import assemble
from graft.backends.host.options import HostOptions
from graft.backends.host.prepare import prepare
from graft.backends.host.program import HostProgram, build_program
from graft.backends.reference.backend import ReferenceProgram
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError, UserError
from graft.byoc.contract import HOME, Backend, Cost, Limits, Runner, Source
from graft.byoc.measure import calm
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.llvm.target import HOST, named_target
from graft.runtime.artifact import Origin, save
from graft.runtime.cores import available_processors
from graft.runtime.grafted import artifact_runner, session_runner
from graft.runtime.memory import give_back
from graft.runtime.native import why_not_here
from graft.runtime.session import Session

_PROFILES = 9  # runs that a profile is the median of


class HostBackend(Backend):
    """Compiles graphs for the CPU of this machine, or of another one."""

    name = HOME
    version = "1"
    limits = Limits(peak_flops=1e11, peak_bytes_per_second=1e10)

    def __init__(self, options: HostOptions | None = None) -> None:
        self._options = options or HostOptions()
        self._target = named_target(self._options.machine)

    @property
    def options(self) -> Mapping[str, str]:
        return {"accuracy": self._options.accuracy.value, "machine": self._options.machine}

    @property
    def machine_key(self) -> str:
        """What prices depend on besides backend and region: processor and threads."""
        return f"{self._target.key} {self._options.threads or available_processors()}"

    def compile(self, region: Graph) -> bytes:
        """A region as the bytes of an artifact."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "region.graft"
            self.build(region).save(path)
            return path.read_bytes()

    def load(self, blob: bytes) -> Runner:
        return artifact_runner(blob, self._options.threads)

    def runner(self, region: Graph) -> Runner:
        """The same without the way through bytes."""
        built = self.build(region)
        if isinstance(built, ReferenceProgram):
            return lambda inputs, _outputs: [np.asarray(item) for item in built(inputs)]
        return session_runner(built.session)

    def time_groups(self, graph: Graph, inputs: Sequence[Array]) -> dict[str, Cost]:
        """What each kernel takes within a run of the whole graph, by the value that it makes.

        Empty for graphs that do not run natively."""
        built = self.build(graph)
        return {} if isinstance(built, ReferenceProgram) else built.time_steps(inputs)

    def build(
        self, graph: Graph, regions: Mapping[str, Runner] | None = None
    ) -> HostExecutable | ReferenceProgram:
        """Machine code for a graph; one that native code does not reach runs on the evaluator.

        `regions` runs what is left to other backends, by label."""
        reason = why_not_native(graph)
        if reason and self._options.machine != HOST:
            raise UnsupportedError(
                f"this model has no native code for machine='{self._options.machine}': {reason}"
            )
        if reason:
            return ReferenceProgram(graph, reason)
        fused = prepare(graph, self._target, self._options.accuracy)
        built = build_program(fused, assemble(fused, self._target), self._target, regions)
        return HostExecutable(built, self._options)


def why_not_native(graph: Graph) -> str:
    """Why a whole graph has no native program yet; empty where it has one."""
    values = (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
    for value in values:
        type_ = value.type
        if not isinstance(type_, TensorType) or not type_.is_static:
            return f"native programs want static shapes, and %{value.name} is {type_}"
        if type_.dtype is DType.STRING:
            return f"native programs have no strings, and %{value.name} is {type_}"
    return ""


class HostExecutable:
    """A compiled graph."""

    def __init__(self, built: HostProgram, options: HostOptions) -> None:
        self.built = built
        self._options = options

    @cached_property
    def session(self) -> Session:
        """The program, loaded into this process; one for another machine is refused."""
        reason = why_not_here(self.built.program.target)
        if reason:
            raise UserError(
                f"this model was compiled with machine='{self._options.machine}': it {reason}",
                hint="save it and run the file on such a machine",
            )
        give_back()  # what the compiler worked on
        return Session(self.built.program, self._options.threads, self.built.functions)

    def time_steps(self, inputs: Sequence[Array]) -> dict[str, Cost]:
        """The median time of each step over several runs, by the value that it makes.

        Steps that only bring tensors into another layout count for the step after them."""
        feeds = dict(zip((spec.name for spec in self.built.program.inputs), inputs, strict=True))
        profiles = calm(lambda: self.session.profile(feeds).seconds, _PROFILES)
        found: dict[str, Cost] = {}
        waiting = 0.0
        for seconds, name in zip(np.median(profiles, axis=0), self.built.makes, strict=True):
            waiting += float(seconds)
            if name:
                found[name] = Cost(waiting, Source.MEASURED)
                waiting = 0.0
        return found

    @property
    def reference_nodes(self) -> dict[str, str]:
        """Nodes that still run on the reference evaluator, with the reason."""
        return dict(self.built.reasons)

    def save(
        self,
        path: str | os.PathLike[str],
        backends: Mapping[str, str] | None = None,
        blobs: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write the program to a file, with what the regions of other backends need."""
        if self.built.reasons:
            name, reason = next(iter(self.built.reasons.items()))
            raise UnsupportedError(
                f"{len(self.built.reasons)} nodes run on the reference evaluator, which a file"
                f" cannot hold; the first is %{name}: {reason}"
            )
        versions = {HostBackend.name: HostBackend.version, **(backends or {})}
        origin = Origin(version("graft-compiler"), versions)
        save(replace(self.built.program, threads=self._options.threads), path, origin, blobs)

    def __call__(
        self, inputs: Sequence[Data], homes: Mapping[str, Array] | None = None
    ) -> list[Data]:
        names = [spec.name for spec in self.built.program.inputs]
        return list(self.session.run(None, dict(zip(names, inputs, strict=True)), homes))
