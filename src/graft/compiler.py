"""The whole pipeline, top to bottom: file -> graph -> optimised graph -> a module that runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import onnx

from graft.backends.host.backend import HostBackend
from graft.backends.host.executable import HostExecutable, specialized
from graft.backends.host.options import Accuracy, HostOptions
from graft.backends.reference.backend import ReferenceBackend
from graft.base.cache_folder import default_folder
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError, UnsupportedError, UserError
from graft.base.progress import Progress, Stage, quietly
from graft.byoc.annotate import Pins
from graft.byoc.choose import TIME_LIMIT
from graft.byoc.contract import HOME, Backend, Cost
from graft.byoc.discover import backend_named, find_backends
from graft.byoc.isolate import Isolation, isolated
from graft.byoc.link import Linked, link
from graft.byoc.measure import DEADLINE, race, samples
from graft.byoc.partition import Partition, PartitionOptions, partition, plan_of
from graft.byoc.plan import Plan, parse_plan, regions_of
from graft.byoc.price import Pricing
from graft.byoc.store import PRICES, PriceStore
from graft.byoc.trust import CompiledRegion, Demotion
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.ir.sizes import check_sizes
from graft.ir.types import TensorType
from graft.module import REFERENCE, Module, Placement
from graft.passes.bind_sizes import bind_sizes
from graft.passes.duplicate_dequantize import duplicate_dequantize
from graft.passes.pipeline import PASSES, optimize
from graft.passes.variant_sizes import VariantSizes, variant_sizes
from graft.program.variants import Key, variant_name
from graft.runtime.placement import BLOB
from graft.runtime.regions import Policy, Region
from graft.runtime.session import count_threads
from graft.target.target import HOST

DEFAULT_TARGET = (HOME,)

Model = str | os.PathLike[str] | bytes | onnx.ModelProto | Graph


@dataclass(frozen=True)
class Grafting:
    """What may be asked about other backends than the host, as `compile` says."""

    pins: Sequence[str]
    plan: Plan | str | os.PathLike[str] | None
    measure: bool
    policy: Policy
    check: bool
    time_limit: float
    report: Progress
    releases: bool = False  # the host may run what is pinned elsewhere and cannot run there

    def __post_init__(self) -> None:
        if self.plan is not None and self.pins:
            raise UserError("plan= replays a plan, and pins= are for choosing one")


def compile(
    model: Model,
    target: str | Sequence[str] = DEFAULT_TARGET,
    strict: bool = False,
    threads: int | None = None,
    machine: str = HOST,
    accuracy: str = Accuracy.DEFAULT.value,
    pins: Sequence[str] = (),
    plan: Plan | str | os.PathLike[str] | None = None,
    measure: bool = False,
    check: bool = True,
    fallback: str | None = None,
    deadline: float | None = None,
    verify: str = "sample",
    isolation: Isolation = None,
    time_limit: float = TIME_LIMIT,
    shapes: Mapping[str, Sequence[int]] | None = None,
    strict_import: bool = False,
    report: Progress = quietly,
) -> Module:
    """Compile a model: a path, bytes, a `ModelProto` or a graph.

    `target` names the backends to use; the host is always one of them. `strict` refuses to run any
    operator on the reference evaluator. `threads` is how many threads native code and backends that
    can be told use, by default one per core. `machine` names the machine that native code is for;
    a module for another one can be saved, but not run here. `accuracy="strict"` rules out
    algorithms that trade accuracy for speed within a stated bound, as Winograd's. `shapes` gives
    sizes of symbolic dims ({"batch": [1, 8]}) that get variants of their own. `strict_import`
    refuses what ONNX Runtime puts up with, and else gives a `ModelWarning`.

    The rest is about other backends than the host. `pins` fix nodes to a backend ("layer4/*=host")
    or keep them off it ("conv1=!onednn"); `plan` replays a plan instead of choosing one within
    `time_limit` seconds. The chosen plan is run against the host alone and against everything
    offloaded, with `measure` against all plans that were priced, and the fastest is kept. `check`
    compares every region with the host; what fails goes back to the host, unless it is pinned
    elsewhere, which is an error. `fallback` says what happens when a region fails later: "host"
    (the default; asked for, it also covers failing pins) or "error". `deadline` is how many seconds
    a backend has for an answer, by default 60, once a region has run 100 times what that took.
    `verify="sample"` compares first runs and some later ones with the host's, "always" all, "off"
    none. `isolation="process"` runs backends in processes of their own, all or by name
    ({"mynpu": "process"}). `report` is told of each stage (`report=print` shows them)."""
    names = _names_of(target)
    options = _options(threads, machine, accuracy)
    policy = Policy(fallback or "host", deadline, verify)
    asked = Grafting(pins, plan, measure, policy, check, time_limit, report, fallback == "host")
    accelerators = _accelerators(names, isolation, deadline)
    graph = _optimized(model, strict_import, report)
    wanted = variant_sizes(graph, shapes or {})
    if REFERENCE in names:
        return _on_reference(graph, names, options, strict, wanted)
    host = HostBackend(options, report)
    _refuse_contradictions(accelerators, machine, plan is not None, wanted)
    general = _built(graph, accelerators, host, asked)
    if not wanted.symbols:
        return _module(general, host, asked.policy, strict)
    variants = {
        sizes: _built(_variant(graph, wanted, sizes, report), accelerators, host, asked)
        for sizes in wanted.sizes
    }
    return _specialized(general, wanted.symbols, variants, host, asked.policy, strict)


def _refuse_contradictions(
    accelerators: Sequence[Backend], machine: str, replays: bool, wanted: VariantSizes
) -> None:
    if accelerators and machine != HOST:
        raise UserError(
            f"'{accelerators[0].name}' is for this machine, and machine='{machine}' is another",
            hint="compile for the host alone",
        )
    if replays and wanted.symbols:
        raise UserError("plan= is for one graph, and shapes= makes variants, each with its own")


def _optimized(model: Model, strict_import: bool, report: Progress) -> Graph:
    """The model's graph after the passes; warnings on the model name the caller of the caller."""
    if not isinstance(model, Graph):
        report(Stage("importing"))
        model = import_model(model, strict_import, stacklevel=3)
    return _with_passes(check_sizes(model), report)


def _with_passes(graph: Graph, report: Progress) -> Graph:
    steps = count(1)
    return optimize(
        graph, lambda one, _graph: report(Stage("optimizing", next(steps), len(PASSES), one.name))
    )


def _options(threads: int | None, machine: str, accuracy: str) -> HostOptions:
    if threads is not None and machine == HOST:
        count_threads(None, threads)
    return HostOptions(threads, machine, Accuracy.named(accuracy))


def _variant(graph: Graph, wanted: VariantSizes, sizes: Key, report: Progress) -> Graph:
    """The graph for these sizes, with what was computed from them folded."""
    number, name = wanted.sizes.index(sizes) + 1, variant_name(wanted.symbols, sizes)
    report(Stage("compiling variants", number, len(wanted.sizes), name))
    return optimize(check_sizes(bind_sizes(graph, dict(zip(wanted.symbols, sizes, strict=True)))))


@dataclass(frozen=True)
class _Built:
    """A graph, compiled, and the plan that it was compiled by, where other backends had a say."""

    graph: Graph
    built: HostExecutable
    linked: Linked | None = None
    plan: Plan | None = None

    @property
    def regions(self) -> tuple[CompiledRegion, ...]:
        return self.linked.compiled if self.linked else ()


def _built(
    graph: Graph, accelerators: Sequence[Backend], host: HostBackend, asked: Grafting
) -> _Built:
    """Compile an optimised graph."""
    if not accelerators:
        return _Built(graph, host.build(graph))
    graph = duplicate_dequantize(graph)
    winner = _fastest(graph, _contenders(graph, accelerators, host, asked), asked)
    return _Built(graph, winner.built, winner.linked, winner.plan)


@dataclass(frozen=True)
class Study:
    """Who would run what of a model, and what came of trying it out, where that was wanted."""

    graph: Graph  # optimised
    found: Partition
    measured: Mapping[str, float]  # end to end, by scheme
    demotions: tuple[Demotion, ...]


def study(
    model: Model,
    target: str | Sequence[str],
    pins: Sequence[str] = (),
    measure: bool = False,
    threads: int | None = None,
    report: Progress = quietly,
) -> Study:
    """Partition a model as `compile` would, without making a module of it: `graft explain`.

    Nothing is compiled for it and it is not run, but for what is timed to price it; with `measure`,
    the plans are put to work and run end to end."""
    accelerators = _accelerators(_names_of(target))
    graph = _optimized(model, False, report)
    if accelerators:
        graph = duplicate_dequantize(graph)
    host = HostBackend(HostOptions(threads), report)
    asked = Grafting(pins, None, measure, Policy(), True, TIME_LIMIT, report)
    found = partition_graph(graph, accelerators, host, asked)
    if not measure:
        return Study(graph, found, {}, ())
    plans = _plans(found, accelerators, asked)
    contenders = [_contender(graph, plan, accelerators, host, asked) for plan in plans]
    measured = _fastest(graph, contenders, asked).plan.measured
    return Study(graph, found, measured, contenders[0].linked.demotions)


def _names_of(target: str | Sequence[str]) -> list[str]:
    if isinstance(target, str):
        return [target]
    if not isinstance(target, Sequence) or not all(isinstance(name, str) for name in target):
        raise UserError(f"target={target!r}: it is the name of a backend, or a list of names")
    return list(target)


def _accelerators(
    names: Sequence[str], isolation: Isolation = None, deadline: float | None = None
) -> list[Backend]:
    others = [name for name in dict.fromkeys(names) if name not in (HOME, REFERENCE)]
    if not others:  # looking for backends takes longer than compiling a small model
        return []
    found = find_backends()
    chosen = (backend_named(name, found) for name in others)
    return [isolated(backend, isolation, deadline or DEADLINE) for backend in chosen]


def _on_reference(
    graph: Graph,
    names: Sequence[str],
    options: HostOptions,
    strict: bool,
    wanted: VariantSizes,
) -> Module:
    if wanted.symbols:
        raise UserError(
            "shapes= is for native code, and the reference evaluator has none",
            hint=f"compile for the backend '{HOME}'",
        )
    if options.machine != HOST:
        raise UserError(
            f"machine='{options.machine}' is for native code, and the reference evaluator has none",
            hint=f"compile for the backend '{HOME}'",
        )
    if names[0] != REFERENCE:
        raise UserError("the reference backend runs whole models", hint="target='reference'")
    program = ReferenceBackend().build(graph)
    _refuse_reference(program.reference_nodes, strict)
    module, placement = program.session(), Placement.of(graph, program.reference_nodes)
    module.placement = placement
    module.writer = lambda path: program.save(path, {BLOB: placement.stored().to_blob()})
    return module


@dataclass(frozen=True)
class _Contender:
    """A plan put to work."""

    plan: Plan
    linked: Linked
    built: HostExecutable


def _contenders(
    graph: Graph, accelerators: Sequence[Backend], host: HostBackend, asked: Grafting
) -> list[_Contender]:
    """The plan to replay, or the chosen one and those that it is to be measured against."""
    if asked.plan is not None:
        plan = asked.plan if isinstance(asked.plan, Plan) else read_plan(asked.plan)
        return [_contender(graph, plan, accelerators, host, asked)]
    found = partition_graph(graph, accelerators, host, asked)
    plans = _plans(found, accelerators, asked)
    contenders = [_contender(graph, plan, accelerators, host, asked) for plan in plans]
    return contenders if asked.releases else _keeping_pins(contenders, graph, asked)


def _keeping_pins(
    contenders: Sequence[_Contender], graph: Graph, asked: Grafting
) -> list[_Contender]:
    """The contenders that run every pinned node where it is pinned; an error where none does."""
    pins = Pins.parse(asked.pins)
    broken = [_broken_pin(item.linked.demotions, graph, pins) for item in contenders]
    if all(broken):
        raise UserError(
            broken[0], hint="loosen the pin; fallback='host' lets the host run what its pin cannot"
        )
    return [item for item, problem in zip(contenders, broken, strict=True) if not problem]


def _broken_pin(demotions: Sequence[Demotion], graph: Graph, pins: Pins) -> str:
    """A pin that does not hold and why, in words; empty where all hold."""
    nodes = {node.output.name: node for node in graph.nodes}
    for demotion in demotions:
        for name in demotion.nodes:
            pin = pins.broken(nodes[name], demotion.backend)
            if pin is not None:
                return (
                    f"the pin '{pin}' cannot hold for %{name} ({nodes[name].op.name}):"
                    f" {demotion.reason}"
                )
    return ""


def _plans(found: Partition, accelerators: Sequence[Backend], asked: Grafting) -> list[Plan]:
    """The chosen plan, and others to be measured beside it; equal ones once."""
    plans = [found.plan]
    if not any(backend.simulated for backend in accelerators):
        others = found.alternatives if asked.measure else {"host-only", "greedy"}
        plans += [plan_of(found, name) for name in others if name in found.alternatives]
    distinct = {plan.regions: plan for plan in reversed(plans)}
    return [plan for plan in plans if distinct[plan.regions] is plan]


def _contender(
    graph: Graph, plan: Plan, accelerators: Sequence[Backend], host: HostBackend, asked: Grafting
) -> _Contender:
    linked = _linked(graph, plan, accelerators, host, asked)
    return _Contender(plan, linked, host.build(linked.graph, linked.regions))


def _fastest(graph: Graph, contenders: Sequence[_Contender], asked: Grafting) -> _Contender:
    """The contender that is fastest end to end; the first wins by default."""
    inputs = _samples(graph)
    if len(contenders) == 1 or inputs is None:
        return contenders[0]
    asked.report(Stage("running plans end to end", detail=f"{len(contenders)} in turns"))
    runs = {str(n): partial(item.built, inputs) for n, item in enumerate(contenders)}
    try:
        times = race(runs)
    except GraftError as error:
        asked.report(Stage("running plans end to end", detail=f"not measured: {error}"))
        return contenders[0]
    best = contenders[int(min(times, key=lambda name: times[name]))]
    measured = {item.plan.method: times[str(n)] for n, item in enumerate(contenders)}
    return replace(best, plan=replace(best.plan, measured=measured))


def _samples(graph: Graph) -> list[Array] | None:
    """Inputs to time a graph with; None where their sizes are not known."""
    types = [value.type for value in graph.inputs]
    known = all(isinstance(one, TensorType) and one.is_static for one in types)
    if not known or any(value.dtype is DType.STRING for value in graph.inputs):
        return None
    return samples(graph)


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan from a file."""
    try:
        return parse_plan(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UserError(f"the plan cannot be read: {error}") from None


def partition_graph(
    graph: Graph, accelerators: Sequence[Backend], host: HostBackend, asked: Grafting
) -> Partition:
    """Choose who runs what of an optimised graph."""
    in_place: Mapping[str, Cost] = {}
    inputs = _samples(graph)
    if inputs is not None:
        asked.report(Stage("timing the model on the host"))
        try:
            in_place = host.time_groups(graph, inputs)
        except GraftError as error:  # numbers that nobody chose may be none that it takes
            reason = f"its prices are estimates: {error}"
            asked.report(Stage("timing the model on the host", detail=reason))
    store = PriceStore(default_folder() / PRICES, host.machine_key)
    deadline = asked.policy.deadline or DEADLINE
    pricing = Pricing(host, in_place, store, asked.report, deadline, host.threads)
    options = PartitionOptions(Pins.parse(asked.pins), asked.releases, asked.time_limit)
    return partition(graph, accelerators, pricing, options)


def _linked(
    graph: Graph,
    plan: Plan,
    accelerators: Sequence[Backend],
    host: HostBackend,
    asked: Grafting,
) -> Linked:
    backends = {backend.name: backend for backend in accelerators}
    versions = {name: backend.version for name, backend in backends.items()}
    planned = [item for item in regions_of(plan, graph, versions) if item[0] != HOME]
    missing = [name for name, _ in planned if name not in backends]
    if missing:
        raise UserError(f"the plan wants '{missing[0]}', which is not among the targets")
    judged = asked.check, host.strict
    return link(graph, planned, backends, host, asked.policy, *judged, host.threads, asked.report)


def _module(made: _Built, host: HostBackend, policy: Policy, strict: bool) -> Module:
    regions = made.linked.regions if made.linked else {}
    built = replace(made.built, regions={"": made.regions})
    return _finished(built, _placement_of(made), regions, host, policy, strict)


def _specialized(
    general: _Built,
    symbols: tuple[str, ...],
    variants: Mapping[Key, _Built],
    host: HostBackend,
    policy: Policy,
    strict: bool,
) -> Module:
    def with_regions(made: _Built) -> HostExecutable:
        return replace(made.built, regions={"": made.regions})

    parts = {sizes: with_regions(made) for sizes, made in variants.items()}
    built = specialized(with_regions(general), symbols, parts)
    named = {variant_name(symbols, sizes): made for sizes, made in variants.items()}
    placements = {name: _placement_of(made) for name, made in named.items()}
    regions = {
        f"{name} {label}".strip(): region
        for name, made in {"": general, **named}.items()
        for label, region in (made.linked.regions if made.linked else {}).items()
    }
    placement = replace(_placement_of(general), variants=placements)
    return _finished(built, placement, regions, host, policy, strict)


def _finished(
    built: HostExecutable,
    placement: Placement,
    regions: Mapping[str, Region],
    host: HostBackend,
    policy: Policy,
    strict: bool,
) -> Module:
    _refuse_reference(built.reference_nodes, strict)
    _start_over(regions)
    module = built.session
    module.placement, module.regions = placement, regions
    # Without the session, which would hold on to itself: threads end with the last reference to it.
    files = replace(built)
    stored = placement.stored
    module.writer = lambda path: files.save_whole(path, {BLOB: stored().to_blob()}, host, policy)
    return module


def _start_over(regions: Mapping[str, Region]) -> None:
    """Let the user's first runs be compared with the host, not those that were timed."""
    for region in regions.values():
        region.guard.start_over()


def _refuse_reference(left: Mapping[str, str], strict: bool) -> None:
    if strict and left:
        name, reason = next(iter(left.items()))
        raise UnsupportedError(
            f"strict=True refuses the reference evaluator, which {len(left)} nodes need;"
            f" the first is %{name}: {reason}"
        )


def _placement_of(made: _Built) -> Placement:
    placement = Placement.of(made.graph, made.built.reference_nodes, made.linked, made.plan)
    return replace(placement, python=made.built.python_nodes)
