"""Control flow: If, Loop and Scan.

Their graphs are imported as bodies that get everything through inputs. A value that a loop carries
may change its shape between iterations; the body is then imported again with a more general type,
until the types that go in cover those that come out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import onnx

from graft.base.dims import UNKNOWN, AnyDim
from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.sequence import elements_of
from graft.frontends.onnx.registry import lowers
from graft.frontends.onnx.scope import Body
from graft.ir.attrs import Ints
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.names import FreshSymbols
from graft.ir.types import OptionalType, TensorType, Type, join
from graft.ops.bodies import common_type, iteration_bindings, seen_outside, sliced_type

# After so many imports of a body whose types still change, all carried extents are let go at once.
_PATIENCE = 8


def _graph(call: Call, name: str) -> onnx.GraphProto:
    proto = call.attribute(name)
    if not isinstance(proto, onnx.GraphProto):
        call.fail(f"attribute '{name}' is not a graph")
    return proto


@lowers("If")
def _if(call: Call) -> tuple[Value, ...]:
    protos = {name: _graph(call, name) for name in ("then_branch", "else_branch")}
    for name, proto in protos.items():
        if proto.input:
            call.fail(f"the {name} of an If has inputs of its own")
    condition = call.concrete(call.input(0))
    if condition is not None and condition.size == 1:
        # The branch that is never taken may not even fit its operands.
        branch = "then_branch" if condition.reshape(-1)[0] else "else_branch"
        return call.scope.inline(protos[branch], branch)
    graphs, captures = call.scope.bodies(protos)
    return call.ops("if", call.input(0), *captures, then_branch=graphs[0], else_branch=graphs[1])


class _Widening:
    """Widens types until they hold in every iteration; an extent that changes gets a symbol."""

    def __init__(self, symbols: FreshSymbols) -> None:
        self._symbols = symbols
        self._varying: set[AnyDim] = set()

    def cover(self, before: Type, after: Type, everything: bool) -> Type | None:
        """A type for both, with as much of `before` as stays the same; None where there is none."""
        joined = common_type(before, after)
        if isinstance(joined, OptionalType) and isinstance(joined.element, TensorType):
            old = before.element if isinstance(before, OptionalType) else before
            return OptionalType(self._named(old, joined.element, everything))
        return self._named(before, joined, everything) if isinstance(joined, TensorType) else joined

    def _named(self, before: Type, joined: TensorType, everything: bool) -> TensorType:
        if joined.shape is None or not isinstance(before, TensorType) or before.shape is None:
            return joined
        dims: list[AnyDim] = []
        for old, new in zip(before.shape, joined.shape, strict=True):
            if old not in self._varying and (new is UNKNOWN or everything):
                old = self._symbols()
                self._varying.add(old)
            dims.append(old)
        return TensorType(joined.dtype, tuple(dims))


def _steady_body(
    call: Call, types: Sequence[Type], carried: int, first_in: int, first_out: int
) -> Body:
    """Import the body so that the types of its carried inputs hold in every iteration.

    Carried values come in from position `first_in` and go out from position `first_out` on.
    """
    proto = _graph(call, "body")
    if len(proto.input) != len(types):
        call.fail(f"the body takes {len(proto.input)} inputs, not {len(types)}")
    if len(proto.output) < first_out + carried:
        call.fail(f"the body gives {len(proto.output)} results, not {first_out + carried} or more")
    names = [info.name for info in proto.input]
    widening = _Widening(call.scope.builder.symbols)
    current = list(types)
    for attempt in count():
        body = call.scope.body(proto, list(zip(names, current, strict=True)), "body")
        wider = list(current)
        for position in range(carried):
            old, new = current[first_in + position], body.graph.outputs[first_out + position].type
            covering = widening.cover(old, new, attempt >= _PATIENCE)
            if covering is None:
                call.fail(f"the carried value '{names[first_in + position]}' is {old}, then {new}")
            wider[first_in + position] = covering
        if wider == current:
            break
        current = wider
    return body


def _single_type(info: onnx.ValueInfoProto, dtype: DType) -> TensorType:
    """The type of a body's flag or counter: some models declare it with one axis."""
    return TensorType(dtype, (1,) if len(info.type.tensor_type.shape.dim) == 1 else ())


def _with_element_types(
    call: Call, proto: onnx.GraphProto, flags: Sequence[Type], initial: list[Value]
) -> list[Value]:
    """The initial values; empty sequences get the element type that the body inserts.

    Without that, appending to an empty sequence would give elements of which nothing is known.
    """
    types = (*flags, *(value.type for value in initial))
    empty = [i for i, value in enumerate(initial) if elements_of(call, value) == []]
    if not empty or len(proto.input) != len(types) or len(proto.output) <= len(initial):
        return initial
    names = [info.name for info in proto.input]
    body = call.scope.body(proto, list(zip(names, types, strict=True)), "body")
    actual = (*types, *(value.type for value in body.captures))
    bindings = iteration_bindings(body.graph, actual, len(initial), 2, 1)
    for position in empty:
        element = _inserted_type(body.graph, body.graph.inputs[2 + position], 1 + position)
        if element is not None:
            outside = seen_outside(element, bindings)
            initial[position] = call.op("sequence.empty", element=outside)
    return initial


def _inserted_type(body: Graph, sequence: Value, position: int) -> Type | None:
    """The type of what a body inserts into a sequence that it takes and gives back."""
    value: Value | None = body.outputs[position]
    result: Type | None = None
    while value is not sequence:
        node = None if value is None else body.producers.get(value)
        if node is None or node.op.name != "sequence.insert":
            return None
        inserted = node.args[1].type
        result = inserted if result is None else join(result, inserted)
        value = node.inputs[0]
    return result


@lowers("Loop")
def _loop(call: Call) -> tuple[Value, ...]:
    initial = [call.input(position) for position in range(2, len(call.inputs))]
    proto = _graph(call, "body")
    if len(proto.input) < 2:
        call.fail("the body of a Loop takes the iteration number and the condition")
    flags = [
        _single_type(info, dtype)
        for info, dtype in zip(proto.input, (DType.INT64, DType.BOOL), strict=False)
    ]
    initial = _with_element_types(call, proto, flags, initial)
    types = (*flags, *(value.type for value in initial))
    body = _steady_body(call, types, len(initial), 2, 1)
    values = (call.optional(0), call.optional(1), *initial, *body.captures)
    return call.ops("loop", *values, body=body.graph, carried=len(initial))


def _scan_list(call: Call, name: str, length: int) -> Ints:
    """An attribute with a number for each scanned tensor or stacked result, 0 if left out."""
    listed: Ints = call.ints(name, (0,) * length)
    if len(listed) != length:
        call.fail(f"attribute '{name}' has {len(listed)} elements, not {length}")
    if name.endswith("directions") and not set(listed) <= {0, 1}:
        call.fail(f"attribute '{name}' is {list(listed)}; a direction is 0 or 1")
    return listed


def _scanned_count(call: Call, operands: int) -> int:
    scanned = call.int("num_scan_inputs")
    if not 0 < scanned <= operands:
        call.fail(f"num_scan_inputs is {scanned}, with {operands} operands")
    return scanned


@lowers("Scan")
def _scan(call: Call) -> tuple[Value, ...]:
    if call.opset < 9:
        return _scan_of_batches(call)
    values = [call.input(position) for position in range(len(call.inputs))]
    scanned = _scanned_count(call, len(values))
    carried = len(values) - scanned
    axes = _scan_list(call, "scan_input_axes", scanned)
    types = [value.type for value in values[:carried]]
    types += [sliced_type(v.type, a)[0] for v, a in zip(values[carried:], axes, strict=True)]
    body = _steady_body(call, types, carried, 0, 0)
    stacked = len(body.graph.outputs) - carried
    return call.ops(
        "scan",
        *values,
        *body.captures,
        body=body.graph,
        carried=carried,
        num_scan_inputs=scanned,
        input_axes=axes,
        input_directions=_scan_list(call, "scan_input_directions", scanned),
        output_axes=_scan_list(call, "scan_output_axes", stacked),
        output_directions=_scan_list(call, "scan_output_directions", stacked),
    )


def _scan_of_batches(call: Call) -> tuple[Value, ...]:
    """Opset 8: all operands have a batch axis in front, and each sequence a length of its own.

    A scan over the batch, whose body scans one sequence.
    """
    lengths = call.optional(0)
    operands = [call.input(position) for position in range(1, len(call.inputs))]
    scanned = _scanned_count(call, len(operands))
    carried = len(operands) - scanned
    builder = Builder("sequence", call.scope.builder.symbols)
    builder.location = call.location
    rows = [builder.input(value.name, sliced_type(value.type, 0)[0]) for value in operands]
    length = None if lengths is None else builder.input(lengths.name, TensorType(DType.INT64, ()))
    types = [row.type for row in rows[:carried]]
    types += [sliced_type(row.type, 0)[0] for row in rows[carried:]]
    body = _steady_body(call, types, carried, 0, 0)
    captures = [builder.input(value.name, value.type) for value in body.captures]
    directions = _scan_list(call, "directions", scanned)
    graph = _sequence_scan(builder, rows, carried, length, captures, body.graph, directions)
    outside = operands if lengths is None else [*operands, lengths]
    zeros, results = (0,) * len(outside), (0,) * len(graph.outputs)
    return call.ops(
        "scan",
        *outside,
        *body.captures,
        body=graph,
        carried=0,
        num_scan_inputs=len(outside),
        input_axes=zeros,
        input_directions=zeros,
        output_axes=results,
        output_directions=results,
    )


def _sequence_scan(
    builder: Builder,
    rows: Sequence[Value],
    carried: int,
    length: Value | None,
    captures: Sequence[Value],
    body: Graph,
    directions: Ints,
) -> Graph:
    """Scan one sequence up to its length, and fill the results up to the longest one's."""
    scanned = list(rows[carried:])
    stacked = (0,) * (len(body.outputs) - carried)
    if length is not None:
        end = builder("reshape", length, shape=(1,))
        extents = builder("shape_of", scanned[0])
        longest = builder("strided_slice", extents, begin=(0,), end=(1,), axes=(0,))
        missing = builder("subtract", longest, end)
        pads = builder("concatenate", builder.constant([0]), missing, axis=0)
        scanned = [
            builder("strided_slice", row, None, end, begin=(0,), axes=(0,)) for row in scanned
        ]
    results = builder.call(
        "scan",
        *rows[:carried],
        *scanned,
        *captures,
        body=body,
        carried=carried,
        num_scan_inputs=len(scanned),
        input_axes=(0,) * len(scanned),
        input_directions=directions,
        output_axes=stacked,
        output_directions=stacked,
    )
    outputs = list(results)
    if length is not None:
        for position in range(carried, len(outputs)):
            outputs[position] = builder("nn.pad", outputs[position], None, pads, axes=(0,))
    return builder.build(*outputs)
