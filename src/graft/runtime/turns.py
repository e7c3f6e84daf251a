"""What loops and scans do around their bodies: operands in; carried values and stacked pieces out.
Conditions that have to hold are checked here, too.

The body is a function, so that the evaluator and programs count turns, carry values, stack
pieces and refuse what grows without bound in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graft.base.capacity import check_bytes
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError

Data = Any


class Pieces:
    """What the turns of a loop or scan (`what`) give to be stacked, result by result."""

    def __init__(self, results: int, what: str) -> None:
        self.turns = 0
        self._stacks: list[list[Array]] = [[] for _ in range(results)]
        self._bytes, self._what = 0, what

    def add(self, pieces: Sequence[Array]) -> None:
        """Another turn's."""
        for known, piece in zip(self._stacks, pieces, strict=True):
            stack = np.asarray(piece)[np.newaxis]
            known.append(stack)
            self._bytes += stack.nbytes
        check_bytes(self._bytes, f"after {self.turns} turns {self._what} would stack results")
        self.turns += 1

    def stacked(self, axes: Sequence[int], backwards: Sequence[bool]) -> list[Array]:
        """The pieces of each result along a new axis, in the order of the turns or against it."""
        found = []
        for stack, axis, back in zip(self._stacks, axes, backwards, strict=True):
            shapes = sorted({pieces.shape[1:] for pieces in stack})
            if len(shapes) > 1:
                raise EvaluationError(f"the results to be stacked differ in shape: {shapes}")
            joined = stack[0] if len(stack) == 1 else np.concatenate(stack)
            ahead = np.moveaxis(joined[:: -1 if back else 1], 0, axis)
            found.append(np.ascontiguousarray(ahead))
        return found

    def in_order(self) -> list[Array]:
        """The pieces along a first axis, as loops stack them."""
        count = len(self._stacks)
        return self.stacked([0] * count, [False] * count)


def repeated(
    body: Callable[[int, bool, Sequence[Data]], Sequence[Data]],
    limit: Array | None,
    condition: Array | None,
    state: Sequence[Data],
    results: int,
) -> tuple[list[Data], Pieces]:
    """A loop of at most `limit` turns, as long as the condition holds.

    The body takes the number of the turn, the condition and the carried values; it gives the
    condition, the carried values and `results` pieces."""
    last, proceed = begins(limit, condition)
    carried, pieces = list(state), Pieces(results, "loop")
    # The body's condition also ends a loop that was given none: ONNX's table says that it is
    # ignored then, but ONNX's reference and ONNX Runtime agree that it is not.
    while proceed and (last is None or pieces.turns < last):
        given, *found = body(pieces.turns, proceed, carried)
        proceed = bool(sole_item(given))
        pieces.add(found[len(carried) :])
        carried = found[: len(carried)]
    return carried, pieces


def begins(limit: Array | None, condition: Array | None) -> tuple[int | None, bool]:
    """How many turns a loop has at most, and whether its condition holds before the first."""
    last = None if limit is None else int(sole_item(limit))
    return last, True if condition is None else bool(sole_item(condition))


def ahead(tensors: Sequence[Array], axes: Sequence[int], backwards: Sequence[bool]) -> list[Array]:
    """Tensors to be scanned, each with its axis in front and in the order of the turns."""
    order = zip(tensors, axes, backwards, strict=True)
    found = [np.moveaxis(data, axis, 0)[:: -1 if back else 1] for data, axis, back in order]
    lengths = sorted({len(data) for data in found})
    if len(lengths) > 1:
        raise EvaluationError(f"the scanned tensors differ in length: {lengths}")
    return found


def swept(
    body: Callable[[Sequence[Data], Sequence[Array]], Sequence[Data]],
    state: Sequence[Data],
    scanned: Sequence[Array],
    results: int,
) -> tuple[list[Data], Pieces]:
    """A scan of what `ahead` gives: a turn for each slice.

    The body takes the carried values and the slices; it gives the carried values and pieces."""
    carried, pieces = list(state), Pieces(results, "scan")
    for turn in range(len(scanned[0])):
        found = body(carried, [data[turn, ...] for data in scanned])
        pieces.add(found[len(carried) :])
        carried = list(found[: len(carried)])
    return carried, pieces


def unscanned(scanned: Sequence[Array]) -> list[Array]:
    """What a turn's slices would have been, had there been a turn."""
    return [np.empty(data.shape[1:], dtype=data.dtype) for data in scanned]


def no_pieces(extents: Sequence[int], dtype: np.dtype[Any], axis: int) -> Array:
    """No pieces of these extents along a new axis."""
    shape = list(extents)
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 0)
    return np.zeros(shape, dtype)


def require_condition(condition: Array, wanted: bool, message: str) -> None:
    """Fail with the message where the condition is not the wanted one."""
    if bool(sole_item(condition)) != wanted:
        raise EvaluationError(message)


def sole_item(array: Array) -> Any:
    """The element of a tensor that has one, as a Python object."""
    return np.asarray(array).reshape(-1)[0].item()


def single(data: Any, dtype: np.dtype[Any], rank: int) -> Array:
    """A flag or a counter in the shape in which a body wants it."""
    return np.full((1,) * rank, data, dtype=dtype)
