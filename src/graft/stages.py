"""The stages of compilation as values: Imported -> Optimized -> Placed -> Lowered -> Linked.

Each stage is immutable, printable, and computed from the one before by one function. `compiler.py`
runs them all; commands and tools stop at the one that they need.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path

import onnx

from graft.base.cache_folder import default_folder
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError, InternalError, UserError
from graft.base.progress import Progress, Stage, quietly
from graft.byoc.annotate import Pins
from graft.byoc.boundary import with_wishes
from graft.byoc.choose import TIME_LIMIT
from graft.byoc.contract import HOST_BACKEND, Backend, Cost
from graft.byoc.executable import Accuracy, Executable, Lowering, Settings
from graft.byoc.measure import DEADLINE
from graft.byoc.offload import OffloadedGraph, Planned, offload
from graft.byoc.outline import outline, region_label
from graft.byoc.partition import Partition, PartitionOptions, partition, plan_of
from graft.byoc.plan import Plan, parse_plan, regions_of, rows_of
from graft.byoc.price import Pricing
from graft.byoc.probe import samples
from graft.byoc.store import PRICES, PriceStore
from graft.byoc.trust import CompiledRegion, Demotion
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph, Node
from graft.ir.printer import to_text
from graft.ir.types import TensorType
from graft.ir.verify import check_sizes
from graft.passes import pipeline
from graft.passes.bind_sizes import bind_sizes
from graft.passes.duplicate_dequantize import duplicate_dequantize
from graft.passes.name_apart import name_apart
from graft.passes.pipeline import PassReport
from graft.program import print as program_text
from graft.runtime.regions import Policy, Region

Source = str | os.PathLike[str] | bytes | onnx.ModelProto | Graph


@dataclass(frozen=True)
class CompileOptions:
    """How an optimised graph becomes a program. `host` builds it, configured by `settings`; the
    other options are about accelerators, as in `graft.compile`."""

    host: Backend
    settings: Settings = field(default_factory=Settings)
    accelerators: tuple[Backend, ...] = ()
    pins: Sequence[str] = ()
    plan: Plan | str | os.PathLike[str] | None = None  # to be replayed
    measure: bool = False
    policy: Policy = field(default_factory=Policy)
    check: bool = True
    time_limit: float = TIME_LIMIT
    releases: bool = False  # the host may run what is pinned elsewhere and cannot run there

    def __post_init__(self) -> None:
        if self.plan is not None and self.pins:
            raise UserError("plan= replays a plan, and pins= are for choosing one")

    @property
    def report(self) -> Progress:
        """The callback for progress."""
        return self.settings.report


@dataclass(frozen=True, eq=False)
class Imported:
    """A model as a graph with the names of its file."""

    graph: Graph

    def __str__(self) -> str:
        return to_text(self.graph).text


def import_graph(model: Source, strict: bool = False, report: Progress = quietly) -> Imported:
    """Import a path, bytes or a `ModelProto`; a graph is taken as it is."""
    if isinstance(model, Graph):
        return Imported(model)
    report(Stage("importing"))
    return Imported(import_model(model, strict))


@dataclass(frozen=True, eq=False)
class Optimized:
    """A graph after the frontend's passes, with their reports."""

    graph: Graph
    passes: tuple[PassReport, ...] = ()

    def __str__(self) -> str:
        return to_text(self.graph).text

    def bind(self, sizes: Mapping[str, int]) -> Optimized:
        """The graph specialised for some sizes of its symbols."""
        return optimize(Imported(bind_sizes(self.graph, sizes)))


def optimize(imported: Imported, report: Progress = quietly) -> Optimized:
    """Run the frontend's passes; an error if a tensor is too large for memory."""
    numbers, total = count(1), len(pipeline.PASSES)
    reports: list[PassReport] = []

    def watch(one: PassReport, _graph: Graph) -> None:
        report(Stage("optimizing", next(numbers), total, one.name))
        reports.append(one)

    graph = pipeline.optimize(check_sizes(imported.graph), watch)
    return Optimized(graph, tuple(reports))


@dataclass(frozen=True, eq=False)
class Placed:
    """A graph with a plan; without one the host runs all of it.

    `partition` explains the plan, unless it was read from a file; `rivals` are other plans to time
    it against."""

    graph: Graph
    backends: Mapping[str, Backend]
    plan: Plan | None = None
    partition: Partition | None = None
    rivals: tuple[Plan, ...] = ()

    def __str__(self) -> str:
        return to_text(self.graph).text if self.plan is None else self.plan.to_text()

    @property
    def contenders(self) -> tuple[Placed, ...]:
        """The graph with each of the plans, the chosen one first."""
        return (self, *(replace(self, plan=plan, rivals=()) for plan in self.rivals))

    @cached_property
    def regions(self) -> Planned:
        """The regions of other backends than the host, in order."""
        if self.plan is None:
            return []
        versions = {name: backend.version for name, backend in self.backends.items()}
        planned = regions_of(self.plan, self.graph, versions)
        others = [(name, nodes) for name, nodes in planned if name != HOST_BACKEND]
        missing = [name for name, _ in others if name not in self.backends]
        if missing:
            raise UserError(f"the plan wants '{missing[0]}', which is not among the targets")
        return others

    @cached_property
    def rows(self) -> Mapping[Node, int]:
        """The rows of a block, by node, for regions that run in blocks."""
        return {} if self.plan is None else rows_of(self.plan, self.graph)

    @property
    def outlined(self) -> Graph:
        """The graph with a node for each region of the plan."""
        limits = {name: backend.limits for name, backend in self.backends.items()}
        return with_wishes(outline(self.graph, self.regions, self.rows), limits)


def place(optimized: Optimized, options: CompileOptions) -> Placed:
    """Choose a plan; without accelerators there is none."""
    backends = {backend.name: backend for backend in options.accelerators}
    if not backends:
        return Placed(optimized.graph, {})
    graph = name_apart(duplicate_dequantize(optimized.graph))
    if options.plan is not None:
        return Placed(graph, backends, read_plan(options.plan))
    result = partition_graph(graph, options)
    return Placed(graph, backends, result.plan, result, _rivals(result, options))


def _rivals(result: Partition, options: CompileOptions) -> tuple[Plan, ...]:
    """The distinct plans to time beside the chosen one; none if a backend is simulated."""
    if any(backend.simulated for backend in options.accelerators):
        return ()
    names = result.alternatives if options.measure else {"host-only", "greedy"}
    others = [plan_of(result, name) for name in names if name in result.alternatives]
    distinct = {plan.regions: plan for plan in reversed(others)}
    distinct.pop(result.plan.regions, None)
    return tuple(plan for plan in others if distinct.get(plan.regions) is plan)


def partition_graph(graph: Graph, options: CompileOptions) -> Partition:
    """Partition an optimised graph among the host and the accelerators."""
    host, report = options.host, options.report
    in_place: Mapping[str, Cost] = {}
    inputs = sample_inputs(graph)
    if inputs is not None:
        report(Stage("timing the model on the host"))
        try:
            in_place = host.time_groups(graph, inputs)
        except GraftError as error:  # the model may reject generated inputs
            reason = f"its prices are estimates: {error}"
            report(Stage("timing the model on the host", detail=reason))
    store = PriceStore(default_folder() / PRICES, host.machine_key)
    deadline = options.policy.deadline or DEADLINE
    pricing = Pricing(host, in_place, store, report, deadline, options.settings.threads)
    request = PartitionOptions(Pins.parse(options.pins), options.releases, options.time_limit)
    return partition(graph, options.accelerators, pricing, request)


def reference_nodes(placed: Placed, options: CompileOptions) -> list[tuple[Node, str]]:
    """Nodes of the host's part that the reference evaluator runs, with the reason; no code is
    generated, and no region compiled."""
    labels = (region_label(name, number) for number, (name, _) in enumerate(placed.regions))
    lowering = options.host.lower(placed.outlined, dict.fromkeys(labels, _not_compiled))
    nodes = {node.output.name: node for node in lowering.graph.walk()}
    return [(nodes[name], reason) for name, reason in lowering.reference_nodes.items()]


def _not_compiled(*_arguments: object) -> list[Array]:
    raise InternalError("this program is not to be run: its regions are not compiled")


def sample_inputs(graph: Graph) -> list[Array] | None:
    """Inputs to time a graph with; None if their sizes are unknown."""
    return samples(graph) if has_samples(graph) else None


def has_samples(graph: Graph) -> bool:
    """Whether there are inputs to time a graph with."""
    types = [value.type for value in graph.inputs]
    return all(
        isinstance(one, TensorType) and one.is_static and one.dtype is not DType.STRING
        for one in types
    )


def read_plan(plan: Plan | str | os.PathLike[str]) -> Plan:
    """A plan, read from a file unless it is one."""
    if isinstance(plan, Plan):
        return plan
    try:
        return parse_plan(Path(plan).read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot read the plan '{plan}': {reason}") from None


@dataclass(frozen=True, eq=False)
class Lowered:
    """A placed graph before code generation: regions are compiled and checked, the host's part is
    lowered to kernels."""

    placed: Placed
    lowering: Lowering
    offloaded: OffloadedGraph | None = None  # None: all of it is the host's

    def __str__(self) -> str:
        return to_text(self.lowering.graph).text


def lower(placed: Placed, options: CompileOptions) -> Lowered:
    """Compile and check the regions of other backends, and lower the rest on the host."""
    if placed.plan is None:
        return Lowered(placed, options.host.lower(placed.graph))
    strict = replace(options.settings, accuracy=Accuracy.STRICT, report=quietly)
    offloaded = offload(
        placed.graph,
        placed.regions,
        placed.backends,
        options.host,
        options.policy,
        options.check,
        options.host.configured(strict),
        options.settings.threads,
        options.report,
        placed.rows,
    )
    lowering = options.host.lower(offloaded.graph, offloaded.regions)
    return Lowered(placed, lowering, offloaded)


@dataclass(frozen=True, eq=False)
class Linked:
    """An executable program, the regions that it calls, and its plan."""

    graph: Graph  # as placed
    executable: Executable
    plan: Plan | None = None
    offloaded: OffloadedGraph | None = None

    def __str__(self) -> str:
        return program_text.to_text(self.executable.session.program)

    @property
    def compiled(self) -> tuple[CompiledRegion, ...]:
        """The compiled regions."""
        return self.offloaded.compiled if self.offloaded else ()

    @property
    def regions(self) -> Mapping[str, Region]:
        """The runners of regions, by label."""
        return self.offloaded.regions if self.offloaded else {}

    @property
    def demotions(self) -> tuple[Demotion, ...]:
        """The regions that were demoted to the host."""
        return self.offloaded.demotions if self.offloaded else ()


def link(lowered: Lowered) -> Linked:
    """Generate the host's code and link the regions to it."""
    placed = lowered.placed
    return Linked(placed.graph, lowered.lowering.build(), placed.plan, lowered.offloaded)
