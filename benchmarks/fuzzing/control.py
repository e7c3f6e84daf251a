"""Emitters of control flow: If, Loop and Scan, with bodies drawn like the model itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.fuzzing.emitters import EMITTERS, emits
from benchmarks.fuzzing.movement import integers
from benchmarks.fuzzing.peer import tensor_type
from benchmarks.fuzzing.sketch import FLOATS, INTEGERS, Sketch, Value

_NUMBERS = (*FLOATS, *INTEGERS)
DEEPEST = 2
NESTED = ("If", "Loop", "Scan")
# Drawn more often: what models consist of, and what compilers have the most to do with.
COMMON = (
    *("Conv", "MatMul", "Gemm", "MaxPool", "AveragePool", "ConvTranspose", "Relu", "Add", "Mul"),
    *("Transpose", "Reshape", "Slice", "Concat", "Cast", "Where", "If", "Loop", "Scan"),
    *("Conv", "MatMul", "ReduceSum", "Softmax", "QuantizeLinear", "DequantizeLinear"),
)


def drawn(s: Sketch, count: int) -> None:
    """Add what `count` emitters add, which may be nothing."""
    known = [op for op, (since, _) in EMITTERS.items() if since <= s.opset]
    known += COMMON
    if s.depth >= DEEPEST:
        known = [op for op in known if op not in NESTED]
    for _ in range(count):
        op = s.draw.among(known)
        EMITTERS[op][1](s, op)


def _info(value: Value) -> onnx.ValueInfoProto:
    """A nested graph's input or output, with its rank alone."""
    return helper.make_tensor_value_info(
        value.name, tensor_type(value.arrays[0]), [None] * value.rank
    )


def _inner_input(body: Sketch, arrays: tuple[Any, ...], noisy: tuple[Any, ...]) -> Value:
    """What a body is given; its later numbers are not known, so floats count as rounded."""
    value = Value(body.setting.name("b"), arrays, noisy, exact=arrays[0].dtype.kind != "f")
    body.values.append(value)
    body.own.add(value.name)
    return value


def _graph(body: Sketch, inputs: Sequence[Value], outputs: Sequence[Value]) -> onnx.GraphProto:
    return helper.make_graph(
        body.nodes,
        body.setting.name("body"),
        [_info(v) for v in inputs],
        [_info(v) for v in outputs],
    )


def _result(body: Sketch, test: Callable[[Value], bool]) -> Value | None:
    """A value that the body itself computes and that may leave it."""
    made = {name for node in body.nodes for name in node.output}
    found = [v for v in body.values if v.name in made and not v.constant and test(v)]
    return body.draw.among(found[-3:]) if found else None


def _like(value: Value) -> Callable[[Value], bool]:
    """Tests whether another has the same dtype and, at each size, the same shape."""
    shapes = [array.shape for array in value.arrays]
    return lambda one: one.dtype == value.dtype and [array.shape for array in one.arrays] == shapes


def _like_or_copy(body: Sketch, value: Value) -> Value | None:
    """What becomes of a loop's state: something of its type."""
    found = _result(body, _like(value))
    if found is None:
        op = body.draw.among(("Min", "Max"))
        body.add(op, [value, value], rounds=False)
        found = _result(body, _like(value))
    return found


@emits("If")
def branch(s: Sketch, op: str) -> None:
    condition = s.find(lambda one: one.dtype == "bool" and one.shape == () and one.is_static)
    if condition is None or s.draw.chance(0.5):
        condition = s.input("bool", ())
    then, otherwise = Sketch(s.setting, s), Sketch(s.setting, s)
    drawn(then, s.draw.between(1, 4))
    first = _result(then, lambda one: True)
    if first is None:
        return
    drawn(otherwise, s.draw.between(1, 4))
    second = _result(
        otherwise, lambda one: one.dtype == first.dtype and one.rank == first.rank
    ) or _copied(otherwise, first)
    if second is None:
        return
    branches = {
        "then_branch": _graph(then, (), [first]),
        "else_branch": _graph(otherwise, (), [second]),
    }
    s.add(op, [condition], bodies=[then, otherwise], rounds=first.is_float, **branches)


def _copied(body: Sketch, like: Value) -> Value | None:
    """A new tensor of the same type, computed in the body."""
    made = body.add("Identity", [body.fresh(like.dtype, like.shape)], rounds=False)
    return made[0] if made else None


@emits("Loop")
def loop(s: Sketch, op: str) -> None:
    body = Sketch(s.setting, s)
    state = s.operand(_NUMBERS)
    turns = s.draw.between(0, 4)
    count = (
        integers(s, turns)
        if s.draw.chance(0.5)
        else s.input_of(tuple(np.array(turns, np.int64) for _ in range(s.setting.sizes)), ())
    )
    sizes = s.setting.sizes
    number = _inner_input(body, (np.array(0, np.int64),) * sizes, (np.array(0, np.int64),) * sizes)
    going = _inner_input(body, (np.array(True),) * sizes, (np.array(True),) * sizes)
    carried = _inner_input(body, state.arrays, state.noisy)
    drawn(body, s.draw.between(1, 4))
    after = _like_or_copy(body, carried)
    still = _until(s, body, number)
    if after is None or still is None:
        return
    # Which extents what no turn made would have had is left open.
    extra = _result(body, lambda one: True) if turns and s.draw.chance(0.5) else None
    outputs = [still, after, *([_once_more(body, extra)] if extra else [])]
    if None in outputs:
        return
    graph = _graph(body, [number, going, carried], [v for v in outputs if v is not None])
    s.add(op, [count, None, state], outputs=len(outputs) - 1, bodies=[body], body=graph)


def _until(s: Sketch, body: Sketch, number: Value) -> Value | None:
    """Whether to go on: always, or for so many turns."""
    limit = body.constant(np.array(s.draw.among((2, 100)), np.int64))
    made = body.add("Less", [number, limit])
    return made[0] if made else None


def _once_more(body: Sketch, value: Value) -> Value | None:
    """The value under another name, as graphs want each output to have."""
    made = body.add("Identity", [value], rounds=False)
    return made[0] if made else None


@emits("Scan")
def scan(s: Sketch, op: str) -> None:
    body = Sketch(s.setting, s)
    sequence = s.operand(_NUMBERS, lambda one: one.rank > 0 and min(one.shape) > 0)
    state = s.operand(_NUMBERS)
    if not sequence.rank or any(0 in array.shape for array in sequence.arrays):
        return
    axis = s.draw.between(0, sequence.rank - 1)
    carried = _inner_input(body, state.arrays, state.noisy)
    slices = [
        tuple(np.take(array, 0, axis=axis) for array in arrays)
        for arrays in (sequence.arrays, sequence.noisy)
    ]
    element = _inner_input(body, slices[0], slices[1])
    drawn(body, s.draw.between(1, 4))
    after = _like_or_copy(body, carried)
    extra = _result(body, lambda one: True)
    if after is None or extra is None:
        return
    out = _once_more(body, extra)
    if out is None:
        return
    directions = s.draw.among((None, 1))
    s.add(
        op,
        [state, sequence],
        outputs=2,
        bodies=[body],
        body=_graph(body, [carried, element], [after, out]),
        num_scan_inputs=1,
        scan_input_axes=[axis] if axis or s.draw.chance(0.3) else None,
        scan_input_directions=None if directions is None else [directions],
        scan_output_directions=s.draw.among((None, [1])),
    )
