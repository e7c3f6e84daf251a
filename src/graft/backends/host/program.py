"""Assembly -> program: offsets for the slots, object code for the functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graft.backends.host.assemble import (
    Assembly,
    NativeStep,
    ReferenceStep,
    RegionStep,
)
from graft.backends.host.homes import Home, Part, Slot
from graft.backends.host.storage import Storage, static_shape
from graft.base.dims import AnyDim
from graft.base.errors import InternalError, Place
from graft.ir.graph import Graph, Value
from graft.llvm.cache import default_cache
from graft.llvm.load import scratch_bytes
from graft.llvm.pool import compile_all
from graft.llvm.target import Target
from graft.loop.ir import For, Function, LoopKind
from graft.loop.traverse import walk_stmt
from graft.passes.plan_memory import ALIGNMENT, Interval, lower_bound, place
from graft.runtime import program as rt
from graft.runtime.driver import driver_key, driver_object
from graft.runtime.regions import Runner


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
) -> HostProgram:
    """The finished program; `regions` are what runs the regions of other backends, by label.

    `label` goes before the names of its functions, which several programs may share a table of."""
    offsets, bound = _offsets(assembly)
    cache, triple = default_cache(), target.triple
    codes = compile_all(list(assembly.functions.values()), target, cache)
    driver = cache.remembered(driver_key(triple), lambda: driver_object(triple))
    steps: list[rt.Step] = []
    functions: dict[str, Runner] = dict(regions or {})
    reasons: dict[str, str] = {}
    for number, step in enumerate(assembly.steps):
        if isinstance(step, NativeStep):
            steps.append(_call(step, assembly, offsets, graph))
        elif isinstance(step, RegionStep):
            steps.append(_python(step.node.attrs.label, step, offsets))
        else:
            name = f"{label} {step.node.op.name}_{number}".strip()
            functions[name] = step.function()
            reasons[step.node.output.name] = step.reason
            steps.append(_python(name, step, offsets))
    scratch = max((scratch_bytes(f, {}) for f in assembly.functions.values()), default=0)
    arena = max((offset + _rounded(_bytes(slot)) for slot, offset in offsets.items()), default=0)
    program = rt.Program(
        rt.Target(target.triple, target.features),
        tuple(_spec(value.name, value) for value in graph.inputs),
        tuple(_spec(n, v) for n, v in zip(graph.output_names, graph.outputs, strict=True)),
        tuple(steps),
        tuple(assembly.constants),
        (*codes, driver),
        arena,
        scratch,
    )
    makes = tuple(step.node.output.name if step.node else "" for step in assembly.steps)
    return HostProgram(program, functions, reasons, bound, makes)


def _offsets(assembly: Assembly) -> tuple[dict[Slot, int], int]:
    spans = lifetimes(assembly)
    intervals = {slot: Interval(_rounded(_bytes(slot)), *span) for slot, span in spans.items()}
    offsets = place(list(intervals.values()))
    return dict(zip(intervals, offsets, strict=True)), lower_bound(intervals.values())


def lifetimes(assembly: Assembly) -> dict[Slot, tuple[int, int]]:
    """The first and the last step that touches each slot."""
    found: dict[Slot, tuple[int, int]] = {}
    for number, step in enumerate(assembly.steps):
        for home in _homes(step):
            slot = home.slot if isinstance(home, Part) else home
            if isinstance(slot, Slot):
                found[slot] = found.get(slot, (number, number))[0], number
    return found


def _homes(step: NativeStep | ReferenceStep) -> tuple[Home, ...]:
    if isinstance(step, NativeStep):
        return step.homes
    return tuple(home for home, _ in (*step.inputs, *step.outputs))


def _bytes(slot: Slot) -> int:
    """How large a slot of a program with static shapes is."""
    if not isinstance(slot.nbytes, int):
        raise InternalError(f"a slot of a static program has the size {slot.nbytes}")
    return slot.nbytes


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _reference(home: Home, offsets: Mapping[Slot, int]) -> rt.BufferRef:
    match home:
        case Slot():
            return rt.Arena(offsets[home], _bytes(home))
        case Part(slot, offset, nbytes):
            return rt.Arena(offsets[slot] + offset, nbytes)
    return home


def _call(
    step: NativeStep, assembly: Assembly, offsets: Mapping[Slot, int], graph: Graph
) -> rt.KernelCall:
    references = tuple(_reference(home, offsets) for home in step.homes)
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
            return _bytes(home)
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


def _python(name: str, step: ReferenceStep, offsets: Mapping[Slot, int]) -> rt.PythonStep:
    def operand(home: Home, storage: Storage) -> rt.Operand:
        return rt.Operand(_reference(home, offsets), storage.dtype, storage.sizes)

    return rt.PythonStep(
        name,
        tuple(operand(*pair) for pair in step.inputs),
        tuple(operand(*pair) for pair in step.outputs),
        label=_label(step),
        place=step.node.place or Place(),
    )


def _label(step: ReferenceStep) -> str:
    """What the profile calls a step outside of native code."""
    attrs = step.node.attrs
    if isinstance(step, RegionStep):
        return f"{attrs.backend}: {len(attrs.body.nodes)} nodes"
    return f"{getattr(attrs, 'label', '') or step.node.op.name} (reference)"


def _plain(amount: AnyDim) -> int:
    return amount if isinstance(amount, int) else 0


def _spec(name: str, value: Value) -> rt.TensorSpec:
    return rt.TensorSpec(name, value.dtype, static_shape(value), value.dtype.numpy.itemsize)
