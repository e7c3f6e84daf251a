"""Assembly -> program: offsets for the slots, object code for the functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graft.backends.host.assemble import (
    Assembly,
    NativeStep,
    ReferenceStep,
    RegionStep,
    TransferStep,
)
from graft.backends.host.homes import Home, Part, Slot
from graft.backends.host.places import Places, places_of, size_of
from graft.backends.host.storage import static_shape
from graft.backends.reference.stored import evaluated_graph
from graft.base.dims import AnyDim
from graft.base.errors import Place
from graft.base.progress import Progress, quietly
from graft.ir.graph import Graph, Value
from graft.llvm.cache import default_cache
from graft.llvm.load import scratch_bytes
from graft.llvm.pool import compile_all
from graft.loop.ir import For, Function, LoopKind
from graft.loop.traverse import walk_stmt
from graft.runtime import program as rt
from graft.runtime.driver import driver_key, driver_object
from graft.runtime.spaces import Runner
from graft.target.roofline import cache_roofline
from graft.target.target import Target

AnyStep = NativeStep | ReferenceStep | TransferStep


def runtime_target(target: Target) -> rt.Target:
    """What the run time has to know of the machine that code is for."""
    core = cache_roofline(target.machine)
    return rt.Target(target.triple, target.features, core.flops, core.bytes)


@dataclass(frozen=True, eq=False)
class HostProgram:
    """A program and what goes with it in this process."""

    program: rt.Program
    functions: Mapping[str, Runner]  # of the steps outside of native code
    reasons: Mapping[str, str]  # node -> why it runs there
    arena_bound: int  # no plan can do with a smaller arena
    makes: tuple[str, ...] = ()  # per step the value that it makes; empty for mere relayouts


def build_program(
    graph: Graph,
    assembly: Assembly,
    target: Target,
    regions: Mapping[str, Runner] | None = None,
    label: str = "",
    report: Progress = quietly,
) -> HostProgram:
    """The finished program; `regions` are what runs the regions of other backends, by label.

    `label` goes before the names of its functions, which several programs may share a table of."""
    places = places_of(assembly)
    cache, triple = default_cache(), target.triple
    codes = compile_all(list(assembly.functions.values()), target, cache, progress=report)
    driver = cache.remembered(driver_key(triple), lambda: driver_object(triple))
    names = [
        _function(f"{label} {number}".strip(), step) for number, step in enumerate(assembly.steps)
    ]
    own = [
        (name, step)
        for name, step in zip(names, assembly.steps, strict=True)
        if isinstance(step, ReferenceStep) and not isinstance(step, RegionStep)
    ]
    steps = (
        _step(name, step, assembly, places, graph)
        for name, step in zip(names, assembly.steps, strict=True)
    )
    scratch = max((scratch_bytes(f, {}) for f in assembly.functions.values()), default=0)
    program = rt.Program(
        runtime_target(target),
        tuple(_spec(value.name, value) for value in graph.inputs),
        tuple(_spec(n, v) for n, v in zip(graph.output_names, graph.outputs, strict=True)),
        tuple(steps),
        tuple(assembly.constants),
        (*codes, driver),
        places.arena_bytes,
        scratch,
        remotes=places.remotes,
    )
    functions = {**(regions or {}), **{name: step.function() for name, step in own}}
    reasons = {step.node.output.name: step.reason for _, step in own}
    makes = tuple(made_by(step) for step in assembly.steps)
    return HostProgram(program, functions, reasons, places.arena_bound, makes)


def _function(number: str, step: AnyStep) -> str:
    """What a step calls."""
    match step:
        case NativeStep():
            return step.symbol
        case RegionStep():
            return str(step.node.attrs.label)
        case TransferStep():
            return str(step.region.attrs.label)
    return f"{step.node.op.name}_{number}"


def made_by(step: AnyStep) -> str:
    """The value that a step makes; empty where it only moves one."""
    if isinstance(step, TransferStep) or step.node is None:
        return ""
    return step.node.output.name


def _step(name: str, step: AnyStep, assembly: Assembly, places: Places, graph: Graph) -> rt.Step:
    match step:
        case NativeStep():
            return _call(step, assembly, places, graph)
        case TransferStep():
            return _transfer(name, step, places)
    return _python(name, step, places)


def _transfer(name: str, step: TransferStep, places: Places) -> rt.Transfer:
    backend = step.region.attrs.backend
    return rt.Transfer(
        name,
        places.operand(*step.home),
        places.remote(step.abroad),
        step.upload,
        label=f"to {backend}" if step.upload else f"from {backend}",
        bytes=step.home[1].static_bytes,
        place=step.region.place or Place(),
    )


def _call(step: NativeStep, assembly: Assembly, places: Places, graph: Graph) -> rt.KernelCall:
    references = tuple(places.reference(home) for home in step.homes)
    node = step.node
    where = node.place if node is not None and node.place is not None else Place()
    flops = _plain(step.work.macs) * 2 + _plain(step.work.flops)
    return rt.KernelCall(
        step.symbol,
        (*references, rt.Scratch()),
        label=step.label,
        flops=flops,
        bytes=sum(_size(home, assembly, graph) for home in step.homes),
        place=where,
        serial=not is_parallel(assembly.functions[step.symbol]),
    )


def _size(home: Home, assembly: Assembly, graph: Graph) -> int:
    """Bytes that a kernel reads or writes there, each once."""
    match home:
        case Slot():
            return size_of(home)
        case Part():
            return home.nbytes
        case rt.Constant(index):
            return int(assembly.constants[index].nbytes)
        case rt.Input(index):
            return _spec("", graph.inputs[index]).nbytes
        case rt.Output(index):
            return _spec("", graph.outputs[index]).nbytes


def is_parallel(function: Function) -> bool:
    """Whether the function shares its work among threads; otherwise one of them runs it."""
    loops = (stmt for stmt in walk_stmt(function.body) if isinstance(stmt, For))
    return any(loop.kind is LoopKind.PARALLEL for loop in loops)


def _python(name: str, step: ReferenceStep, places: Places) -> rt.PythonStep:
    return rt.PythonStep(
        name,
        tuple(places.operand(*pair) for pair in step.inputs),
        tuple(places.operand(*pair) for pair in step.outputs),
        label=_label(step),
        place=step.node.place or Place(),
        graph=None if isinstance(step, RegionStep) else evaluated_graph(step.node),
    )


def _label(step: ReferenceStep) -> str:
    """What the profile calls a step outside of native code."""
    attrs = step.node.attrs
    if isinstance(step, RegionStep):
        inner = (node.op.name for node in attrs.body.walk())
        count = sum(name not in ("constant", "composite") for name in inner)
        return f"{attrs.backend}: {count} node{'s' if count != 1 else ''}"
    return f"{getattr(attrs, 'label', '') or step.node.op.name} (reference)"


def _plain(amount: AnyDim) -> int:
    return amount if isinstance(amount, int) else 0


def _spec(name: str, value: Value) -> rt.TensorSpec:
    return rt.TensorSpec(name, value.dtype, static_shape(value), value.dtype.numpy.itemsize)
