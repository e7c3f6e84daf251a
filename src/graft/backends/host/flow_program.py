"""A graph that is not one native program, compiled: a flow, ready to run, or to go into a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from graft.backends.host.flow import Made, StretchCompiler, build_flow
from graft.backends.host.options import HostOptions
from graft.backends.host.saving import save_as
from graft.backends.host.step_times import by_value, labels_by_value, median_costs
from graft.base.dtypes import Array
from graft.byoc.contract import Cost
from graft.byoc.executable import Footprint
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.runtime import program as rt
from graft.runtime.flow import Flow, Stretch
from graft.runtime.flow_executor import Supplied
from graft.runtime.flow_profile import Moment, Path
from graft.runtime.flow_program import FlowProgram
from graft.runtime.flow_session import FlowSession
from graft.runtime.memory import give_back
from graft.runtime.shaped import ShapedCall, ShapedProgram
from graft.target.target import Target


class FlowExecutable:
    """A compiled flow."""

    def __init__(self, program: FlowProgram, made: Made, options: HostOptions) -> None:
        self.program, self._made, self._options = program, made, options

    @classmethod
    def of(
        cls, graph: Graph, compiler: StretchCompiler, target: Target, options: HostOptions
    ) -> FlowExecutable:
        """Compile a graph."""
        made = Made()
        flow = build_flow(graph, compiler, made)
        machine = rt.Target(target.triple, target.features)
        return cls(FlowProgram(machine, flow, graph.output_names), made, options)

    @property
    def flow(self) -> Flow:
        """The steps."""
        return self.program.flow

    @cached_property
    def session(self) -> FlowSession:
        """The flow, linked into this process; one for another machine is refused."""
        self._options.require_here(self.program.target)
        give_back()  # what the compiler worked on
        return FlowSession(self.program, self._options.threads, self.supplied)

    @property
    def supplied(self) -> Supplied:
        """The Python functions that the flow names."""
        return Supplied(self._made.functions, self._made.evaluators, self._made.rules)

    def time_steps(self, inputs: Sequence[Array]) -> dict[str, Cost]:
        """The median time of each native step over several runs, by the value that it makes; all
        turns of a loop count together."""
        names = (argument.name for argument in self.session.get_inputs())
        feeds = dict(zip(names, inputs, strict=True))
        return median_costs(lambda: self._times(self.session.profile(feeds).moments))

    def _times(self, moments: Sequence[Moment]) -> dict[str, float]:
        found: dict[str, float] = {}
        inside: dict[Path, list[float]] = {}  # of stretches, whose own moments come after
        for moment in moments:
            if not isinstance(moment.step, Stretch):
                inside.setdefault(moment.path[:-1], []).append(moment.seconds)
                continue
            steps = inside.pop(moment.path, [])
            for name, taken in by_value(steps, self._made.programs[moment.step.program]).items():
                found[name] = found.get(name, 0.0) + taken
        return found

    @property
    def kernels(self) -> dict[str, str]:
        """The step that makes each value, by its label; values inside of a kernel are not here."""
        found: dict[str, str] = {}
        for program, makes in self._made.programs.items():
            found |= labels_by_value([step.label for step in program.steps], makes)
        return found

    @property
    def reference_nodes(self) -> dict[str, str]:
        """Nodes that run on the reference evaluator, with the reason."""
        return dict(self._made.reasons)

    @property
    def python_nodes(self) -> dict[str, str]:
        """Nodes between native programs that Python does, with what it does."""
        return dict(self._made.lookups)

    @property
    def footprint(self) -> Footprint:
        """How large it is; how much memory it takes depends on the inputs."""
        return Footprint.of(kernel_calls(self.program.programs))

    def variant(self, inputs: Sequence[Data]) -> str:
        """There are none."""
        return ""

    def save(
        self,
        path: str | os.PathLike[str],
        blobs: Mapping[str, bytes] | None = None,
        backends: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Write the flow to a file, with what the regions of other backends need."""
        program = replace(self.program, threads=self._options.threads)
        return save_as(program, path, backends, blobs)

    def __call__(
        self, inputs: Sequence[Data], homes: Mapping[str, Array] | None = None
    ) -> list[Data]:
        """Run; the caller copies results to where they are wanted."""
        return self.session.executor(inputs)


def kernel_calls(programs: Iterable[rt.Program | ShapedProgram]) -> Iterator[str]:
    """The kernel of every call in native programs."""
    for program in programs:
        for step in program.steps:
            if isinstance(step, rt.KernelCall | ShapedCall):
                yield step.symbol
