"""The host backend: an optimised graph in, machine code that runs it out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from graft.backends.host.assemble import ReferenceStep, RegionStep
from graft.backends.host.flow import CompiledStretch, Made, build_flow
from graft.backends.host.flow_program import FlowExecutable
from graft.backends.host.kernel_text import kernel_texts
from graft.backends.host.options import HostOptions
from graft.backends.host.patterns import host_patterns
from graft.backends.host.prepare import prepare
from graft.backends.host.program import HostProgram
from graft.backends.host.saving import HOST_VERSION, save_as
from graft.backends.host.specialized import SpecializedExecutable
from graft.backends.host.step_times import by_value, labels_by_value, median_costs
from graft.backends.host.stretches import Stretches, why_not_native
from graft.base.dtypes import Array
from graft.byoc.contract import HOME, Backend, Cost, Limits, Match, PatternTable, Runner
from graft.byoc.executable import Executable, Footprint, Settings
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.loop.ir import Function
from graft.ops.index_ranges import IndexRanges
from graft.passes.pipeline import PassReport
from graft.rewrite.rule import Refusal
from graft.runtime import program as rt
from graft.runtime.cores import available_processors
from graft.runtime.flow_executor import Supplied
from graft.runtime.grafted import artifact_runner, session_runner
from graft.runtime.memory import give_back
from graft.runtime.regions import Region
from graft.runtime.session import Session
from graft.target.target import Target, named_target


class HostBackend(Backend):
    """Compiles graphs for the CPU of this machine, or of another one."""

    name = HOME
    version = HOST_VERSION

    def __init__(self, options: HostOptions | None = None) -> None:
        self._options = options or HostOptions()

    def configured(self, settings: Settings) -> HostBackend:
        return HostBackend(HostOptions.of(settings))

    @cached_property
    def _target(self) -> Target:
        """What code is for. Found out when it is needed: this machine is calibrated then."""
        return named_target(self._options.machine)

    @cached_property
    def limits(self) -> Limits:  # type: ignore[override]  # an attribute, once somebody asks
        """The roofline of the machine: what all threads compute, and read from memory."""
        machine, threads = self._target.machine, self._threads
        return Limits(
            peak_flops=machine.peak_flops * threads,
            peak_bytes_per_second=machine.memory_bytes_per_second * threads,
        )

    @property
    def _threads(self) -> int:
        return self._options.threads or available_processors()

    @property
    def options(self) -> Mapping[str, str]:
        return {"accuracy": self._options.accuracy.value, "machine": self._options.machine}

    @property
    def machine_key(self) -> str:
        """What prices depend on besides backend and region: processor and threads."""
        return f"{self._target.key} {self._threads}"

    def patterns(self) -> PatternTable:
        return host_patterns()

    def supports(self, match: Match) -> Refusal | None:
        """Why a node would run on the evaluator."""
        reasons = (self._compiler.why_not(node) for node in match.nodes)
        return next((Refusal(reason) for reason in reasons if reason), None)

    @cached_property
    def _compiler(self) -> Stretches:
        """What knows of single nodes; it remembers those that it has been asked about."""
        return Stretches(self._target, self._options.accuracy, {})

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
        if isinstance(built, FlowExecutable):
            return lambda inputs, _outputs: [np.asarray(item) for item in built(inputs)]
        return session_runner(built.session)

    def time_groups(self, graph: Graph, inputs: Sequence[Array]) -> dict[str, Cost]:
        """What each kernel takes within a run of the whole graph, by the value that it makes."""
        return self.build(graph).time_steps(inputs)

    def lower(
        self, graph: Graph, regions: Mapping[str, Runner] | None = None
    ) -> StaticLowering | FlowLowering:
        """The kernels of a graph; what native code does not reach runs on the evaluator."""
        own, accuracy, report = regions or {}, self._options.accuracy, self._options.report
        if why_not_native(graph):
            compiler = Stretches(self._target, accuracy, own, report=report)
            return FlowLowering(graph, compiler, self._options)
        compiler = Stretches(self._target, accuracy, own, _spaces(own), report)
        return StaticLowering(graph, compiler, self._options)

    def build(
        self, graph: Graph, regions: Mapping[str, Runner] | None = None
    ) -> HostExecutable | FlowExecutable:
        """Machine code for a graph."""
        return self.lower(graph, regions).build()

    def specialize(
        self,
        general: Executable,
        symbols: Sequence[str],
        variants: Mapping[tuple[int, ...], Executable],
    ) -> SpecializedExecutable:
        assert isinstance(general, FlowExecutable), "its inputs have symbolic dims"
        parts = {sizes: _built(one) for sizes, one in variants.items()}
        return SpecializedExecutable(general, tuple(symbols), parts, self._options)


def _built(executable: Executable) -> HostExecutable | FlowExecutable:
    assert isinstance(executable, HostExecutable | FlowExecutable), "the host has built it"
    return executable


def _spaces(regions: Mapping[str, Runner]) -> dict[str, str]:
    """The memory spaces of regions that have a device."""
    found = {name: one for name, one in regions.items() if isinstance(one, Region)}
    return {name: one.space for name, one in found.items() if one.device is not None}


class StaticLowering:
    """A graph of fusion groups with the kernel of each, in the order in which they run."""

    def __init__(self, graph: Graph, compiler: Stretches, options: HostOptions) -> None:
        reports: list[PassReport] = []
        self._compiler, self._options = compiler, options
        self.graph, self._assembly, self._guards = compiler.assembled(
            graph, IndexRanges(graph), compiler.spaces, lambda report, _: reports.append(report)
        )
        self.passes = tuple(reports)

    @property
    def reference_nodes(self) -> dict[str, str]:
        """Nodes that no template has a kernel for, with the reason."""
        return {
            step.node.output.name: step.reason
            for step in self._assembly.steps
            if isinstance(step, ReferenceStep) and not isinstance(step, RegionStep)
        }

    def kernels(self, form: str) -> list[str]:
        """The text of each kernel."""
        compiler = self._compiler
        return kernel_texts(self._assembly.functions, form, compiler.target, compiler.report)

    def build(self) -> HostExecutable:
        """Object code, and offsets in the arena."""
        built = self._compiler.program(self.graph, self._assembly, self._guards)
        return HostExecutable(built, self._options)


class FlowLowering:
    """A graph whose sizes or steps depend on data. Its native parts are lowered one by one while
    the flow between them is built, so that nothing is done before somebody asks."""

    def __init__(self, graph: Graph, compiler: Stretches, options: HostOptions) -> None:
        self._source, self._compiler, self._options = graph, compiler, options

    @property
    def graph(self) -> Graph:
        """The whole graph after the passes."""
        return self._fused[0]

    @property
    def passes(self) -> tuple[PassReport, ...]:
        """What they did to the whole graph."""
        return self._fused[1]

    @cached_property
    def _fused(self) -> tuple[Graph, tuple[PassReport, ...]]:
        reports: list[PassReport] = []
        compiler = self._compiler
        fused = prepare(
            self._source,
            compiler.target,
            compiler.accuracy,
            lambda report, _: reports.append(report),
        )
        return fused, tuple(reports)

    @cached_property
    def _assembled(self) -> tuple[_WithoutCode, Made]:
        compiler, made = self._compiler, Made()
        kept = _WithoutCode(compiler.target, compiler.accuracy, compiler.regions)
        build_flow(self._source, kept, made)
        return kept, made

    @property
    def reference_nodes(self) -> dict[str, str]:
        """Nodes that have no native code, with the reason."""
        return dict(self._assembled[1].reasons)

    def kernels(self, form: str) -> list[str]:
        """The text of each kernel of each native part."""
        functions, compiler = self._assembled[0].functions, self._compiler
        return kernel_texts(functions, form, compiler.target, compiler.report)

    def build(self) -> FlowExecutable:
        """The flow, with object code for its native parts."""
        compiler = self._compiler
        return FlowExecutable.of(self._source, compiler, compiler.target, self._options)


@dataclass(frozen=True)
class _WithoutCode(Stretches):
    """Stops at the kernels of each native part, and keeps them."""

    functions: dict[str, Function] = field(default_factory=dict)

    def compile(self, stretch: Graph, label: str, ranges: IndexRanges) -> CompiledStretch:
        _, made, _ = self.assembled(stretch, ranges, {})
        self.functions.update(made.functions)
        empty = rt.Program(rt.Target(self.target.triple, self.target.features), (), (), ())
        return CompiledStretch(empty, {}, {}, ())


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
    def program(self) -> rt.Program:
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

    @property
    def footprint(self) -> Footprint:
        """How large it is."""
        program = self.built.program
        symbols = (step.symbol for step in program.steps if isinstance(step, rt.KernelCall))
        return Footprint.of(symbols, program.arena_bytes, self.built.arena_bound)

    def variant(self, inputs: Sequence[Data]) -> str:
        """There are none."""
        return ""

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
