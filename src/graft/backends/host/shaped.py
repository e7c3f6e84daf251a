"""Assembly -> a program for every size: values on shelves, kernels with their scalars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graft.backends.host.assemble import Assembly, NativeStep
from graft.backends.host.homes import Home, Part, Slot
from graft.backends.host.places import lifetimes
from graft.backends.host.program import is_parallel, runtime_target
from graft.backends.host.scratch import scratch_dim
from graft.backends.host.storage import shape_of
from graft.base.dims import AnyDim, Dim, Unknown, symbols_of
from graft.base.errors import InternalError, Place
from graft.ir.graph import Graph, Value
from graft.llvm.cache import default_cache
from graft.runtime import program as rt
from graft.runtime.driver import driver_key, driver_object
from graft.runtime.extents import SizeCheck
from graft.runtime.guards import Guard
from graft.runtime.shaped import ShapedCall, ShapedProgram, ShapedRef, ShapedSpec, Shelf
from graft.target.target import Target


def build_shaped(
    graph: Graph,
    assembly: Assembly,
    target: Target,
    checks: tuple[SizeCheck, ...],
    guards: tuple[Guard, ...],
    codes: Sequence[bytes],
) -> ShapedProgram:
    """The finished program of a stretch without steps outside of native code."""
    cache, triple = default_cache(), target.triple
    driver = cache.remembered(driver_key(triple), lambda: driver_object(triple))
    shelves = _Shelves(assembly)
    steps = [_call(step, assembly, shelves) for step in assembly.steps]
    inputs = tuple(_spec(value.name, value) for value in graph.inputs)
    outputs = tuple(
        _spec(name, value) for name, value in zip(graph.output_names, graph.outputs, strict=True)
    )
    scratch = {_scratch(step, assembly) for step in assembly.steps}
    sizes = tuple(tuple(dict.fromkeys(on)) for on in shelves.sizes)
    program = ShapedProgram(
        runtime_target(target),
        (),
        inputs,
        outputs,
        tuple(steps),
        sizes,
        tuple(scratch),
        tuple(assembly.constants),
        (*codes, driver),
        checks,
        guards,
    )
    used = {name for dim in program.dims() for name in symbols_of(dim)}
    return replace(program, symbols=tuple(sorted(used)))


class _Shelves:
    """Which slots share memory: never two that are alive at one step."""

    def __init__(self, assembly: Assembly) -> None:
        self.sizes: list[list[Dim]] = []
        self._number: dict[Slot, int] = {}
        ends: list[int] = []
        spans = {one: span for one, span in lifetimes(assembly).items() if isinstance(one, Slot)}
        for slot, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
            free = [number for number, end in enumerate(ends) if end < first]
            alike = [number for number in free if slot.nbytes in self.sizes[number]]
            number = next(iter((*alike, *reversed(free))), len(ends))
            if number == len(ends):
                ends.append(last)
                self.sizes.append([])
            ends[number] = last
            self.sizes[number].append(known(slot.nbytes))
            self._number[slot] = number

    def reference(self, home: Home) -> ShapedRef:
        match home:
            case Slot():
                return Shelf(self._number[home], 0, known(home.nbytes))
            case Part(slot, offset, nbytes):
                return Shelf(self._number[slot], offset, nbytes)
        return home


def _call(step: object, assembly: Assembly, shelves: _Shelves) -> ShapedCall:
    if not isinstance(step, NativeStep):
        raise InternalError("a stretch of unknown sizes has a step outside of native code")
    references = tuple(shelves.reference(home) for home in step.homes)
    flops = step.work.macs * 2 + step.work.flops
    return ShapedCall(
        step.symbol,
        (*references, rt.Scratch()),
        step.scalars,
        step.label,
        0 if isinstance(flops, Unknown) else flops,
        0 if isinstance(step.work.bytes, Unknown) else step.work.bytes,
        (step.node.place if step.node else None) or Place(),
        not is_parallel(assembly.functions[step.symbol]),
    )


def _scratch(step: object, assembly: Assembly) -> Dim:
    assert isinstance(step, NativeStep)
    return known(scratch_dim(assembly.functions[step.symbol], step.scalars))


def known(dim: AnyDim) -> Dim:
    """A dim that has to be one."""
    if isinstance(dim, Unknown):
        raise InternalError("a size of a native stretch is unknown")
    return dim


def _spec(name: str, value: Value) -> ShapedSpec:
    return ShapedSpec(name, value.dtype, shape_of(value), value.dtype.numpy.itemsize)
