"""Operations on lists of tensors and on optional tensors: construct, change, read.

Lists, tensors and positions enter; lists and tensors leave. Nothing is computed: elements are
handed on as they are, parts of a tensor are views of it, and joining them is a copy, as of what
loops stack. Strings are looked up in tables (`lookup`). The evaluator and programs share this, as
they share `loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from graft.base.capacity import check_bytes
from graft.base.dims import evaluate_dim
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.program.instructions import ListOp
from graft.program.lookup import Table
from graft.runtime.loops import sole_item

Data = Any

# What an array takes at least, even one without elements.
_BYTES_PER_PART = 100
# What an operation fails with on data that it is not for.
FAILURES = (TypeError, ValueError, IndexError, MemoryError)


def _index_in(position: Array | None, length: int, end: int, default: int) -> int:
    """A position counted from the front, below `end`; `default` where it is left out."""
    arguments = default if position is None else sole_item(position)
    index = int(arguments + length if arguments < 0 else arguments)
    if not 0 <= index < end:
        raise EvaluationError(f"position {arguments} is outside a sequence of {length}")
    return index


def insert(sequence: list[Data], element: Data, position: Array | None = None) -> list[Data]:
    """The list with one more element: at the end where no position is given."""
    index = _index_in(position, len(sequence), len(sequence) + 1, len(sequence))
    return [*sequence[:index], element, *sequence[index:]]


def erase(sequence: list[Data], position: Array | None = None) -> list[Data]:
    """The list without an element: the last where no position is given."""
    index = _index_in(position, len(sequence), len(sequence), -1)
    return [*sequence[:index], *sequence[index + 1 :]]


def at(sequence: list[Data], position: Array) -> Data:
    """An element."""
    return sequence[_index_in(position, len(sequence), len(sequence), -1)]


def length(sequence: list[Data]) -> Array:
    """How many elements there are."""
    return np.array(len(sequence), dtype=np.int64)


def split(data: Array, parts: Sequence[int], axis: int, with_axis: bool) -> list[Array]:
    """Parts of these sizes along an axis; they have it, or it goes."""
    extent = data.shape[axis]
    if any(size < 0 for size in parts) or sum(parts) != extent:
        raise EvaluationError(f"parts of {list(parts)} do not make up an extent of {extent}")
    cut = np.split(data, list(accumulate(parts))[:-1], axis=axis) if parts else []
    return cut if with_axis else [np.squeeze(part, axis=axis) for part in cut]


def chunks(extent: int, step: int) -> list[int]:
    """The sizes of parts of one size, the last of which may be smaller."""
    if step <= 0:
        raise EvaluationError(f"parts of {step} cannot be cut")
    check_bytes(extent // step * _BYTES_PER_PART, "sequence.split would make parts")
    return [min(step, extent - start) for start in range(0, extent, step)]


def concatenate(sequence: list[Array], axis: int, with_axis: bool) -> Array:
    """The elements joined along an axis that they have, or stacked along a new one."""
    if not sequence:
        raise EvaluationError("an empty sequence has no elements to join")
    join = np.concatenate if with_axis else np.stack
    result: Array = join(sequence, axis=axis)
    return result


def element_of(value: Data) -> Data:
    """What an optional value holds."""
    if value is None:
        raise EvaluationError("the optional value is empty")
    return value


def has_element(value: Data) -> Array:
    """Whether an optional value holds anything."""
    return np.array(value is not None)


_Symbols = Mapping[str, int]


def _split(step: ListOp, operands: Sequence[Data], symbols: _Symbols) -> list[Array]:
    data, chunk, sizes = operands
    extent = data.shape[step.axis]
    if sizes is not None:
        parts = [int(size) for size in sizes.reshape(-1).tolist()]
    elif step.sizes is not None:
        parts = [evaluate_dim(dim, symbols) for dim in step.sizes]
    else:
        each = evaluate_dim(step.chunk, symbols) if chunk is None else sole_item(chunk)
        parts = chunks(extent, each)
    return split(data, parts, step.axis, step.with_axis)


def _look_up(step: ListOp, operands: Sequence[Data], _symbols: _Symbols) -> Data:
    if step.table is None:
        raise EvaluationError(f"{step.operation} has no table")
    return LOOKUPS[step.operation](step.table)(operands[0])


_Operation = Callable[[ListOp, Sequence[Data], _Symbols], Data]

# What a table does for one operand, by the name of the operator.
LOOKUPS: Mapping[str, Callable[[Table], Callable[[Data], Data]]] = {
    "ml.label_map": lambda table: table.look_up,
    "ml.zip_map": lambda table: table.zip_with,
    "take": lambda table: table.look_up,
}

# By the name of the operator.
OPERATIONS: Mapping[str, _Operation] = {
    **dict.fromkeys(LOOKUPS, _look_up),
    "optional.construct": lambda _step, arguments, _symbols: arguments[0],
    "optional.get_element": lambda _step, arguments, _symbols: element_of(arguments[0]),
    "optional.has_element": lambda _step, arguments, _symbols: has_element(arguments[0]),
    "sequence.at": lambda _step, arguments, _symbols: at(*arguments),
    "sequence.concatenate": lambda step, arguments, _symbols: concatenate(
        arguments[0], step.axis, step.with_axis
    ),
    "sequence.construct": lambda _step, arguments, _symbols: list(arguments),
    "sequence.empty": lambda _step, _operands, _symbols: [],
    "sequence.erase": lambda _step, arguments, _symbols: erase(*arguments),
    "sequence.insert": lambda _step, arguments, _symbols: insert(*arguments),
    "sequence.length": lambda _step, arguments, _symbols: length(arguments[0]),
    "sequence.split": _split,
}


def run_list_op(step: ListOp, operands: Sequence[Data], symbols: _Symbols) -> Data:
    """What an instruction gives."""
    try:
        return OPERATIONS[step.operation](step, operands, symbols)
    except FAILURES as error:
        raise EvaluationError(f"{step.operation}: {error}") from error
