"""The host backend: an optimised graph in, machine code that runs it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from graft.backends.host.executable import HOST_VERSION, HostExecutable, specialized
from graft.backends.host.lowering.builder import BuiltProgram, build_program
from graft.backends.host.lowering.segments import SegmentCompiler
from graft.backends.host.passes.pipeline import prepare
from graft.backends.host.patterns import host_patterns
from graft.base.cores import available_processors
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.base.names import comment
from graft.base.progress import Stage
from graft.byoc.contract import HOST_BACKEND, Backend, Cost, Limits, Match, PatternTable, Runner
from graft.byoc.executable import Executable, Settings
from graft.ir.graph import Graph
from graft.llvm.compile import assembly
from graft.llvm.emit import llvm_text
from graft.loop.ir import Function
from graft.loop.print import to_text
from graft.passes.pipeline import PassReport
from graft.program.program import Program
from graft.quantize.scheme import BYTES
from graft.rewrite.rule import Refusal
from graft.runtime.regions import Region
from graft.runtime.session import artifact_runner, session_runner
from graft.target.roofline import memory_roofline
from graft.target.target import HOST, Target, named_target


class HostBackend(Backend):
    """Compiles graphs for the CPU of this machine, or of another one."""

    name = HOST_BACKEND
    version = HOST_VERSION

    def __init__(self, options: Settings | None = None) -> None:
        self._options = options or Settings()

    def configured(self, settings: Settings) -> HostBackend:
        return HostBackend(settings)

    @cached_property
    def _target(self) -> Target:
        """What code is for. Found out when it is needed: this machine is calibrated then."""
        target, asked = named_target(self._options.machine), self._options.threads
        is_here = self._options.machine == HOST
        return target.shared_by(self._threads) if is_here or asked else target

    @cached_property
    def limits(self) -> Limits:  # type: ignore[override]  # computed when it is first read
        """The roofline of the machine: what all threads compute, and read from memory. To go on
        after a region, threads are called that may sleep by then."""
        machine = self._target.machine
        rates = memory_roofline(machine).scaled(self._threads)
        return Limits(
            launch_seconds=machine.calling_seconds,
            peak_flops=rates.flops,
            peak_bytes_per_second=rates.bytes,
            quantized=(BYTES,),
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
    def _compiler(self) -> SegmentCompiler:
        """What knows of single nodes; it remembers those that it has been asked about."""
        return SegmentCompiler(self._target, self._options.accuracy, {})

    def compile(self, region: Graph) -> bytes:
        """A region as the bytes of an artifact."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "region.graft"
            self.build(region).save(path)
            return path.read_bytes()

    def load(self, blob: bytes) -> Runner:
        return artifact_runner(blob, self._options.threads)

    def runner(self, region: Graph) -> Runner:
        """A runner of the region, without serialising it."""
        return session_runner(self.build(region).session)

    def time_groups(self, graph: Graph, inputs: Sequence[Array]) -> dict[str, Cost]:
        """What each kernel takes within a run of the whole graph, by the value that it makes."""
        return self.build(graph).time_steps(inputs)

    def lower(self, graph: Graph, regions: Mapping[str, Runner] | None = None) -> HostLowering:
        """The kernels of a graph; what native code does not reach runs on the evaluator."""
        own, settings = regions or {}, self._options
        compiler = SegmentCompiler(
            self._target, settings.accuracy, own, _spaces(own), settings.report
        )
        return HostLowering(graph, compiler, settings)

    def build(self, graph: Graph, regions: Mapping[str, Runner] | None = None) -> HostExecutable:
        """Machine code for a graph."""
        return self.lower(graph, regions).build()

    def specialize(
        self,
        general: Executable,
        symbols: Sequence[str],
        variants: Mapping[tuple[int, ...], Executable],
    ) -> HostExecutable:
        parts = {sizes: _built(one) for sizes, one in variants.items()}
        return specialized(_built(general), tuple(symbols), parts)


def _built(executable: Executable) -> HostExecutable:
    assert isinstance(executable, HostExecutable), "the host has built it"
    return executable


def _spaces(regions: Mapping[str, Runner]) -> dict[str, str]:
    """The memory spaces of regions that have a device."""
    regions_by_name = {name: one for name, one in regions.items() if isinstance(one, Region)}
    return {name: one.space for name, one in regions_by_name.items() if one.device is not None}


class HostLowering:
    """A graph before code generation. Its native parts are lowered one by one while the program
    around them is built, so that nothing is lowered before it is needed."""

    def __init__(self, graph: Graph, compiler: SegmentCompiler, options: Settings) -> None:
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
        fused = prepare(self._source, compiler.target, lambda report, _: reports.append(report))
        return fused, tuple(reports)

    @cached_property
    def _without_code(self) -> tuple[_Collector, BuiltProgram]:
        """The kernels, and a program without code for them."""
        own = self._compiler
        compiler = _Collector(own.target, own.accuracy, own.regions, own.spaces, own.report)
        return compiler, build_program(self._source, compiler)

    @property
    def program(self) -> Program:
        """The program, without object code for its kernels."""
        return self._without_code[1].program

    @property
    def reference_nodes(self) -> Mapping[str, str]:
        """Nodes that have no native code, with the reason."""
        return self._without_code[1].reasons

    def kernels(self, form: str) -> list[str]:
        """The text of each kernel as loops, LLVM or assembly."""
        if form not in _FORMS:
            raise UserError(f"kernels have no form '{form}'", hint=f"there are {', '.join(_FORMS)}")
        functions, texts = self._without_code[0].functions, []
        for number, (name, function) in enumerate(functions.items()):
            self._compiler.report(Stage("kernel", number + 1, len(functions), name))
            texts.append(_FORMS[form](function, self._compiler.target))
        return texts

    def build(self) -> HostExecutable:
        """A program with object code for its native parts."""
        built = build_program(self._source, self._compiler, self._options.threads)
        return HostExecutable.of(built, self._options)


@dataclass(frozen=True)
class _Collector(SegmentCompiler):
    """Collects kernels instead of compiling them: its own compilation, without any code."""

    functions: dict[str, Function] = field(default_factory=dict)

    def compilation(self) -> _Collector:  # type: ignore[override]  # as far as it is used
        return self

    def __enter__(self) -> _Collector:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def add(self, function: Function) -> None:
        self.functions[function.name] = function

    def codes(self) -> list[bytes]:
        return []


def _with_notes(mark: str, function: Function, text: str) -> str:
    return "".join(f"{mark} {comment(note)}\n" for note in function.notes) + text


# The forms in which `--emit` prints kernels.
_FORMS: Mapping[str, Callable[[Function, Target], str]] = {
    "loops": lambda function, _target: to_text(function),
    "llvm": lambda function, target: _with_notes(";", function, llvm_text(function, target)),
    "asm": lambda function, target: _with_notes("#", function, assembly(function, target)),
}
