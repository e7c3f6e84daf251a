"""Whether the values of an instruction have the types that it works on: an error that says which do
not.

The driver is told addresses, ranks and sizes of elements, and looks at no types: what it does to a
value of another type would be done to memory that is not there. Extents that are no numbers are
checked when a program runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graft.base.dtypes import DType
from graft.program.instructions import (
    LOOKUPS,
    Alias,
    Assert,
    BindSymbol,
    If,
    Instruction,
    ListOp,
    Loop,
    Scan,
    Segment,
    Slice,
    Switch,
    blocks,
)
from graft.program.program import ProgramError, Value

# Operands of list operations that are a number each, by their positions.
_POSITIONS = {"sequence.at": (1,), "sequence.erase": (1,), "sequence.insert": (2,)}


def check_types(instruction: Instruction, values: Sequence[Value]) -> None:
    """Refuse an instruction on values that it is not for."""
    _Types(values).check(instruction)


class _Types:
    def __init__(self, values: Sequence[Value]) -> None:
        self._values = values

    def check(self, instruction: Instruction) -> None:
        match instruction:
            case Segment():
                indices = instruction.guard_indices
                own = (*instruction.outputs, *(() if indices is None else (indices,)))
                self._tensors("a kernel writes", own)
            case BindSymbol():
                self._number("a symbol", instruction.value)
            case Alias():
                self._alias(instruction)
            case Slice():
                self._slice(instruction)
            case Assert():
                self._number("a condition", instruction.condition)
                self._hand_on([instruction.value], [instruction.output])
            case If() | Switch():
                if isinstance(instruction, If):
                    self._number("a condition", instruction.condition)
                for block in blocks(instruction):
                    self._hand_on(block.outputs, instruction.outputs)
            case Loop():
                self._loop(instruction)
            case Scan():
                self._scan(instruction)
            case ListOp():
                self._list_op(instruction)
            case _:
                pass

    def _value(self, number: int) -> Value:
        if not 0 <= number < len(self._values):
            raise ProgramError(f"there is no value {number}")
        return self._values[number]

    def _tensors(self, what: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            value = self._value(number)
            if not value.is_native or value.element is not None:
                raise ProgramError(f"{what} '{value.name}', which is no tensor of the host's")

    def _number(self, what: str, number: int) -> None:
        """A value that is read as one number."""
        value = self._value(number)
        if value.element is not None or not (value.dtype or value.shape is None):
            raise ProgramError(f"{what} is '{value.name}', which is no tensor")
        if any(extent != 1 for extent in value.shape or () if isinstance(extent, int)):
            raise ProgramError(f"{what} is '{value.name}', which is no single number: {value}")

    def _hand_on(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Values become other ones. What Python holds is checked as it is stored."""
        for source, target in zip(sources, targets, strict=True):
            one, other = self._value(source), self._value(target)
            if one.is_native and other.is_native and _type(one) != _type(other):
                raise ProgramError(f"'{other.name}', {other}, is made of '{one.name}', {one}")

    def _alias(self, step: Alias) -> None:
        one, other = self._value(step.value), self._value(step.output)
        if not (one.is_native and other.is_native):
            return
        if (one.dtype, one.element) != (other.dtype, other.element):
            raise ProgramError(f"'{other.name}', {other}, is an alias of '{one.name}', {one}")
        if one.is_static and other.is_static and one.size != other.size:
            raise ProgramError(f"'{other.name}', {other}, has other elements than {one}")

    def _slice(self, step: Slice) -> None:
        self._tensors("rows are taken of", [step.value])
        self._tensors("rows are counted by", [step.counts])
        self._hand_on([step.value], [step.output])
        counts = self._value(step.counts)
        if (counts.dtype, len(counts.shape or ())) != (DType.INT64, 1):
            raise ProgramError(f"'{counts.name}', {counts}, counts no rows")
        if not self._value(step.value).shape:
            raise ProgramError(f"'{self._value(step.value).name}' has no rows")

    def _loop(self, step: Loop) -> None:
        body, count = step.body, len(step.carried)
        flags = (step.limit, step.condition, *body.inputs[:2], body.outputs[0])
        for number in flags:
            if number is not None:
                self._number("the count of a loop", number)
        self._carried(step.carried, body.inputs[2:], body.outputs[1 : 1 + count])
        self._hand_on(body.inputs[2:], step.outputs[:count])
        self._stacked(body.outputs[1 + count :], step.outputs[count:], None)

    def _scan(self, step: Scan) -> None:
        body, count = step.body, len(step.carried)
        slices = body.inputs[count:]
        self._tensors("a scan goes along", (*step.scanned, *slices))
        for number, row, axis in zip(step.scanned, slices, step.axes, strict=True):
            self._check_stack(self._value(row), self._value(number), axis)
        self._carried(step.carried, body.inputs[:count], body.outputs[:count])
        self._hand_on(body.inputs[:count], step.outputs[:count])
        self._stacked(body.outputs[count:], step.outputs[count:], step.result_axes)

    def _carried(
        self, carried: Sequence[int], inner: Sequence[int], results: Sequence[int]
    ) -> None:
        self._hand_on(carried, inner)
        self._hand_on(results, inner)

    def _stacked(
        self, rows: Sequence[int], outputs: Sequence[int], axes: Sequence[int] | None
    ) -> None:
        for row, output, axis in zip(rows, outputs, axes or [0] * len(rows), strict=True):
            one, other = self._value(row), self._value(output)
            if one.is_native and other.is_native:
                self._check_stack(one, other, axis)

    def _check_stack(self, row: Value, stack: Value, axis: int) -> None:
        rank = len(stack.shape or ())
        is_tensor = row.element is None and stack.element is None
        if not is_tensor or row.dtype != stack.dtype or len(row.shape or ()) + 1 != rank:
            raise ProgramError(f"'{stack.name}', {stack}, has no slices like '{row.name}', {row}")
        if not -rank <= axis < rank:
            raise ProgramError(f"'{stack.name}', {stack}, has no axis {axis}")

    def _list_op(self, step: ListOp) -> None:
        operation, operands = step.operation, step.inputs
        if operation in LOOKUPS:
            return
        for position in _POSITIONS.get(operation, ()):
            number = operands[position]
            if number is not None:
                self._number("a position", number)
        if operation == "sequence.split":
            if operands[0] is None:
                raise ProgramError("'sequence.split' has no tensor to split")
            if operands[1] is not None:
                self._number("the size of parts", operands[1])


def _type(value: Value) -> object:
    return value.dtype, value.element, len(value.shape or ())
