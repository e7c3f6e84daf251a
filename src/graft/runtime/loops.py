"""Semantics of loops and scans around their bodies, for the reference evaluator and for programs.

Operands enter; carried values and stacked scan outputs leave. The body is a Python function, so
that counting iterations, carrying values, stacking slices and refusing unbounded growth are written
once. The native driver does the same for values that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graft.base.capacity import check_bytes
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError

Data = Any


class ScanOutputs:
    """Slices that the iterations of a loop or scan (`operator`) produce, one list per output."""

    def __init__(self, count: int, operator: str) -> None:
        self.iterations = 0
        self._slices: list[list[Array]] = [[] for _ in range(count)]
        self._bytes, self._operator = 0, operator

    def append(self, slices: Sequence[Array]) -> None:
        """Append the slices produced by one iteration."""
        for column, data in zip(self._slices, slices, strict=True):
            row = np.asarray(data)[np.newaxis]
            column.append(row)
            self._bytes += row.nbytes
        check_bytes(
            self._bytes, f"after {self.iterations} iterations {self._operator} would stack results"
        )
        self.iterations += 1

    def stack(self, axes: Sequence[int], backwards: Sequence[bool]) -> list[Array]:
        """Stack each output's slices along a new axis, in order of iterations or reversed."""
        outputs = []
        for rows, axis, is_reversed in zip(self._slices, axes, backwards, strict=True):
            shapes = sorted({row.shape[1:] for row in rows})
            if len(shapes) > 1:
                raise EvaluationError(f"the results to be stacked differ in shape: {shapes}")
            joined = rows[0] if len(rows) == 1 else np.concatenate(rows)
            ordered = np.moveaxis(joined[:: -1 if is_reversed else 1], 0, axis)
            outputs.append(np.ascontiguousarray(ordered))
        return outputs

    def stack_in_front(self) -> list[Array]:
        """Stack along a first axis in order of iterations, as Loop does."""
        count = len(self._slices)
        return self.stack([0] * count, [False] * count)


def run_loop(
    body: Callable[[int, bool, Sequence[Data]], Sequence[Data]],
    limit: Array | None,
    condition: Array | None,
    state: Sequence[Data],
    scan_outputs: int,
) -> tuple[list[Data], ScanOutputs]:
    """Run at most `limit` iterations, as long as the condition holds.

    The body takes the iteration number, the condition and the carried values; it returns the
    condition, the carried values and `scan_outputs` slices."""
    last = None if limit is None else int(sole_item(limit))
    proceed = True if condition is None else bool(sole_item(condition))
    carried, stacks = list(state), ScanOutputs(scan_outputs, "loop")
    # The body's condition also ends a loop that has no initial one: ONNX's table says that it is
    # ignored then, but ONNX's reference and ONNX Runtime agree that it is not.
    while proceed and (last is None or stacks.iterations < last):
        flag, *results = body(stacks.iterations, proceed, carried)
        proceed = bool(sole_item(flag))
        stacks.append(results[len(carried) :])
        carried = results[: len(carried)]
    return carried, stacks


def order_scan_inputs(
    tensors: Sequence[Array], axes: Sequence[int], backwards: Sequence[bool]
) -> list[Array]:
    """Move the scanned axis of each tensor to the front, in the order of the iterations."""
    columns = zip(tensors, axes, backwards, strict=True)
    ordered = [np.moveaxis(data, axis, 0)[:: -1 if back else 1] for data, axis, back in columns]
    lengths = sorted({len(data) for data in ordered})
    if len(lengths) > 1:
        raise EvaluationError(f"the scanned tensors differ in length: {lengths}")
    return ordered


def run_scan(
    body: Callable[[Sequence[Data], Sequence[Array]], Sequence[Data]],
    state: Sequence[Data],
    scan_inputs: Sequence[Array],
    scan_outputs: int,
) -> tuple[list[Data], ScanOutputs]:
    """Run one iteration per slice of the tensors that `order_scan_inputs` returns.

    The body takes the carried values and the slices; it returns the carried values and slices."""
    carried, stacks = list(state), ScanOutputs(scan_outputs, "scan")
    for iteration in range(len(scan_inputs[0])):
        results = body(carried, [data[iteration, ...] for data in scan_inputs])
        stacks.append(results[len(carried) :])
        carried = list(results[: len(carried)])
    return carried, stacks


def slice_prototypes(scan_inputs: Sequence[Array]) -> list[Array]:
    """Arrays of an iteration's slice types, for a scan without iterations."""
    return [np.empty(data.shape[1:], dtype=data.dtype) for data in scan_inputs]


def empty_stack(extents: Sequence[int], dtype: np.dtype[Any], axis: int) -> Array:
    """Stack no slices of these extents along a new axis."""
    shape = list(extents)
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 0)
    return np.zeros(shape, dtype)


def require_condition(condition: Array, expected: bool, message: str) -> None:
    """Fail with the message unless the condition is the expected one."""
    if bool(sole_item(condition)) != expected:
        raise EvaluationError(message)


def sole_item(array: Array) -> Any:
    """The element of a tensor that has one, as a Python object."""
    elements = np.asarray(array).reshape(-1)
    if elements.dtype.hasobject or not elements.size:
        raise EvaluationError("a number is wanted where there is none")
    return elements[0].item()


def single(data: Any, dtype: np.dtype[Any], rank: int) -> Array:
    """A flag or a counter as a tensor of one element and this rank."""
    return np.full((1,) * rank, data, dtype=dtype)
