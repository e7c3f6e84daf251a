"""Control flow: if, loop and scan, whose branches and bodies are nested graphs; and demands.

Nested graphs are closed: what they read of the graph around them (their captures) are operands
like any other and come last. Result types are those of a body's outputs, expressed in the symbols
of the operands; an extent that only the body determines is unknown outside. The meaning evaluates
the nested graph, once per iteration. A `demand` is an assertion: what is left of an `if` of which
one branch certainly fails. A `composite` is several nodes as one, a fusion group, with its meaning
as its body; a `region` is one that a backend other than the host compiles and runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graft.base.dims import UNKNOWN, AnyDim, dim_max
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs, Ints
from graft.ir.evaluate import Data, run_graph
from graft.ir.graph import Graph, Node
from graft.ir.op import Work, define, no_work, traffic
from graft.ir.types import TensorType, Type, compatible
from graft.ops.bodies import (
    Bindings,
    actual_types,
    bind_symbols,
    body_work,
    carried_type,
    check_inputs,
    check_present,
    check_single,
    common_type,
    empty_stack,
    iteration_bindings,
    seen_outside,
    sliced_type,
    stacked_type,
    untaken_iteration,
    work_times,
)
from graft.ops.rules import operator, require, require_same_dim
from graft.runtime.loops import (
    order_scan_inputs,
    require_condition,
    run_loop,
    run_scan,
    single,
    slice_prototypes,
    sole_item,
)


@dataclass(frozen=True, slots=True)
class IfAttrs(Attrs):
    then_branch: Graph
    else_branch: Graph


def _branch_bindings(graph: Graph, captures: Sequence[Type]) -> Bindings:
    return bind_symbols(zip((value.type for value in graph.inputs), captures, strict=True))


def _if_types(attrs: IfAttrs, condition: TensorType, *captures: Type) -> tuple[Type, ...]:
    check_single(condition, DType.BOOL, "the condition")
    branch_types: list[list[Type]] = []
    for graph in (attrs.then_branch, attrs.else_branch):
        check_inputs(graph, captures)
        bindings = _branch_bindings(graph, captures)
        branch_types.append([seen_outside(value.type, bindings) for value in graph.outputs])
    counts = [len(types) for types in branch_types]
    require(counts[0] == counts[1], f"the branches give {counts[0]} and {counts[1]} results")
    results: list[Type] = []
    for position, (one, other) in enumerate(zip(*branch_types, strict=True)):
        joined = common_type(one, other)
        require(joined is not None, f"result {position} is {one} or {other}")
        results.append(joined)  # type: ignore[arg-type]
    return tuple(results)


def _if_work(attrs: IfAttrs, ins: Sequence[Type], _outs: Sequence[Type]) -> Work:
    one, other = (
        body_work(graph, _branch_bindings(graph, ins[1:]))
        for graph in (attrs.then_branch, attrs.else_branch)
    )
    return Work(
        dim_max(one.macs, other.macs),
        dim_max(one.flops, other.flops),
        dim_max(one.bytes, other.bytes),
    )


@operator("if", "condition *captures", _if_types, outputs=None, work=_if_work, tensors_only=False)
def _if(attrs: IfAttrs, condition: Array, *captures: Any) -> tuple[Any, ...]:
    """The results of one of two graphs, selected by a condition."""
    branch = attrs.then_branch if sole_item(condition) else attrs.else_branch
    return tuple(run_graph(branch, captures))


@dataclass(frozen=True, slots=True)
class DemandAttrs(Attrs):
    """The required value of the condition, and the error message if it has the other."""

    wanted: bool
    message: str


def _demand_type(_attrs: DemandAttrs, data: Type, condition: TensorType) -> Type:
    check_single(condition, DType.BOOL, "the condition")
    return data


@operator("demand", "data condition", _demand_type, work=no_work, tensors_only=False)
def _demand(attrs: DemandAttrs, data: Any, condition: Array) -> Any:
    """Its operand; fails where the condition does not have the required value."""
    require_condition(condition, attrs.wanted, attrs.message)
    return data


@dataclass(frozen=True, slots=True)
class LoopAttrs(Attrs):
    """Operands are the trip count, the condition, `carried` initial values, and captures.

    The body takes the iteration's number, the condition, the carried values and the captures; it
    gives the condition, the carried values and what is to be stacked.
    """

    body: Graph
    carried: int


def _loop_bindings(attrs: LoopAttrs, values: Sequence[Type]) -> Bindings:
    flags = [value.type for value in attrs.body.inputs[:2]]
    return iteration_bindings(attrs.body, (*flags, *values), attrs.carried, 2, 1)


def _loop_types(
    attrs: LoopAttrs, trip_count: Type | None, condition: Type | None, *values: Type
) -> tuple[Type, ...]:
    body, carried = attrs.body, attrs.carried
    require(len(body.inputs) >= 2 + carried, f"'{body.name}' takes {len(body.inputs)} inputs only")
    require(len(body.outputs) > carried, f"'{body.name}' gives {len(body.outputs)} results only")
    for type_, dtype, what in (
        (trip_count, DType.INT64, "the trip count"),
        (condition, DType.BOOL, "the condition"),
        (body.inputs[0].type, DType.INT64, "the iteration number"),
        (body.inputs[1].type, DType.BOOL, "the condition that the body takes"),
        (body.outputs[0].type, DType.BOOL, "the condition that the body gives"),
    ):
        if type_ is not None:
            check_single(type_, dtype, what)
    check_inputs(body, [*(value.type for value in body.inputs[:2]), *values])
    bindings = _loop_bindings(attrs, values)
    states = zip(values, body.outputs[1 : 1 + carried], strict=False)
    stacked = body.outputs[1 + carried :]
    return (
        *(carried_type(first, value.type, bindings, value.name) for first, value in states),
        *(stacked_type(value.type, bindings, UNKNOWN, 0) for value in stacked),
    )


def _single(data: Any, type_: Type) -> Array:
    assert isinstance(type_, TensorType)
    return single(data, type_.dtype.numpy, len(type_.shape or ()))


def _loop_work(attrs: LoopAttrs, ins: Sequence[Type], _outs: Sequence[Type]) -> Work:
    return work_times(body_work(attrs.body, _loop_bindings(attrs, ins[2:])), UNKNOWN)


@operator(
    "loop",
    "trip_count? condition? *values",
    _loop_types,
    outputs=None,
    work=_loop_work,
    tensors_only=False,
)
def _loop(
    attrs: LoopAttrs, trip_count: Array | None, condition: Array | None, *values: Any
) -> tuple[Any, ...]:
    """A graph run again and again: carried values, and stacked ones of every iteration."""
    body, carried = attrs.body, attrs.carried
    captures, outputs = values[carried:], body.outputs[1 + carried :]

    def iterate(number: int, proceed: bool, state: Sequence[Any]) -> Sequence[Any]:
        flags = _single(number, body.inputs[0].type), _single(proceed, body.inputs[1].type)
        return run_graph(body, [*flags, *state, *captures])

    state, stacks = run_loop(iterate, trip_count, condition, values[:carried], len(outputs))
    if stacks.iterations:
        return (*state, *stacks.stack_in_front())
    check_present(state, body.outputs[1 : 1 + carried])
    own = (value.type for value in body.inputs[:2])
    each = untaken_iteration(body, [*own, *actual_types(values, body.inputs[2:])], carried, 2, 1)
    return (*state, *(empty_stack(type_, 0) for type_ in each[1 + carried :]))


@dataclass(frozen=True, slots=True)
class ScanAttrs(Attrs):
    """Operands are `carried` initial values, `num_scan_inputs` tensors to scan, and captures.

    The body takes the carried values, one slice of each scanned tensor and the captures; it gives
    the carried values and what is to be stacked. A direction of 1 goes from the end to the front.
    """

    body: Graph
    carried: int
    num_scan_inputs: int
    input_axes: Ints
    input_directions: Ints
    output_axes: Ints
    output_directions: Ints


def _iteration_types(attrs: ScanAttrs, values: Sequence[Type]) -> tuple[list[Type], AnyDim]:
    """What the body gets in each iteration, and the number of iterations."""
    first, last = attrs.carried, attrs.carried + attrs.num_scan_inputs
    slices: list[Type] = []
    extents: list[AnyDim] = []
    for type_, axis in zip(values[first:last], attrs.input_axes, strict=True):
        slice_type, extent = sliced_type(type_, axis)
        slices.append(slice_type)
        extents.append(extent)
        require_same_dim(extents[0], extent, "lengths of scanned tensors")
    # Those that cannot be told apart are equal, so a plain integer is as good as any.
    count = min(extents, key=lambda dim: (dim is UNKNOWN, not isinstance(dim, int)))
    return [*values[:first], *slices, *values[last:]], count


def _check_scan(attrs: ScanAttrs, operands: int) -> None:
    body, inputs = attrs.body, attrs.carried + attrs.num_scan_inputs
    require(attrs.num_scan_inputs > 0, "nothing is scanned")
    require(operands >= inputs, f"{inputs} values are wanted, {operands} given")
    stacked = len(body.outputs) - attrs.carried
    require(stacked >= 0, f"'{body.name}' gives {len(body.outputs)} results only")
    for name, count in (("input", attrs.num_scan_inputs), ("output", stacked)):
        for kind in ("axes", "directions"):
            given = len(getattr(attrs, f"{name}_{kind}"))
            require(given == count, f"{given} {name} {kind} given, {count} wanted")


def _scan_types(attrs: ScanAttrs, *values: Type) -> tuple[Type, ...]:
    body, carried = attrs.body, attrs.carried
    _check_scan(attrs, len(values))
    actual, count = _iteration_types(attrs, values)
    check_inputs(body, actual)
    bindings = iteration_bindings(body, actual, carried, 0, 0)
    states = zip(values, body.outputs[:carried], strict=False)
    stacked = zip(body.outputs[carried:], attrs.output_axes, strict=True)
    return (
        *(carried_type(first, value.type, bindings, value.name) for first, value in states),
        *(stacked_type(value.type, bindings, count, axis) for value, axis in stacked),
    )


def _scan_work(attrs: ScanAttrs, ins: Sequence[Type], _outs: Sequence[Type]) -> Work:
    actual, count = _iteration_types(attrs, ins)
    bindings = iteration_bindings(attrs.body, actual, attrs.carried, 0, 0)
    return work_times(body_work(attrs.body, bindings), count)


@operator("scan", "*values", _scan_types, outputs=None, work=_scan_work, tensors_only=False)
def _scan(attrs: ScanAttrs, *values: Any) -> tuple[Any, ...]:
    """A graph run per slice along an axis: carried values, and slices that are stacked."""
    body, carried = attrs.body, attrs.carried
    last = carried + attrs.num_scan_inputs
    captures, outputs = values[last:], body.outputs[carried:]
    backwards = [bool(back) for back in attrs.input_directions]
    scanned = order_scan_inputs(values[carried:last], attrs.input_axes, backwards)

    def iterate(state: Sequence[Any], slices: Sequence[Array]) -> Sequence[Any]:
        return run_graph(body, [*state, *slices, *captures])

    state, stacks = run_scan(iterate, values[:carried], scanned, len(outputs))
    if stacks.iterations:
        directions = [bool(back) for back in attrs.output_directions]
        return (*state, *stacks.stack(attrs.output_axes, directions))
    check_present(state, body.outputs[:carried])
    actual = actual_types([*state, *slice_prototypes(scanned), *captures], body.inputs)
    each = untaken_iteration(body, actual, carried, 0, 0)[carried:]
    return (*state, *map(empty_stack, each, attrs.output_axes))


def nested_bindings(node: Node, graph: Graph) -> Bindings:
    """What symbols of a graph nested in the node are outside of it, in every iteration."""
    types = [value.type for value in node.args]
    match node.attrs:
        case IfAttrs():
            return _branch_bindings(graph, types[1:])
        case LoopAttrs():
            flags = sum(value is not None for value in node.inputs[:2])
            return _loop_bindings(node.attrs, types[flags:])
        case ScanAttrs():
            actual, _ = _iteration_types(node.attrs, types)
            return iteration_bindings(graph, actual, node.attrs.carried, 0, 0)
    return _branch_bindings(graph, types)


@dataclass(frozen=True, slots=True)
class CompositeAttrs(Attrs):
    body: Graph
    label: str = ""


@dataclass(frozen=True, slots=True)
class RegionAttrs(CompositeAttrs):
    """`rows`: run by code for blocks of so many rows, along the symbol of its body (0: it is
    not)."""

    backend: str = ""
    rows: int = 0


def _composite_type(attrs: CompositeAttrs, *types: Type) -> tuple[Type, ...]:
    formals = attrs.body.inputs
    require(len(types) == len(formals), f"the body takes {len(formals)} operands")
    for formal, actual in zip(formals, types, strict=True):
        require(compatible(formal.type, actual), f"the body's %{formal.name} is {formal.type}")
    return tuple(value.type for value in attrs.body.outputs)


def _composite(attrs: CompositeAttrs, *operands: Data) -> tuple[Data, ...]:
    return tuple(run_graph(attrs.body, operands))


def _composite_work(
    attrs: CompositeAttrs, ins: Sequence[Type | None], outs: Sequence[Type]
) -> Work:
    """The arithmetic of the body; only what crosses its border counts as moved."""
    return arithmetic(attrs.body).with_bytes(traffic(ins, outs))


def arithmetic(graph: Graph) -> Work:
    """Multiply-accumulates, other operations and bytes of all nodes of a graph."""
    total = Work()
    for node in graph.nodes:
        types = [None if value is None else value.type for value in node.inputs]
        total = total + node.op.work(node.attrs, types, [value.type for value in node.outputs])
    return total


for _name, _attrs, _summary in (
    ("composite", CompositeAttrs, "several nodes as one, which means what its body means"),
    ("region", RegionAttrs, "what one backend runs in one piece, with its meaning as the body"),
):
    define(
        _name,
        "*operands",
        _composite_type,
        _composite,
        attrs=_attrs,
        work=_composite_work,
        outputs=None,
        tensors_only=False,
        summary=_summary,
    )
