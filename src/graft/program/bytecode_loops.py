"""Loops and scans as code: iterations are jumps, and slices are stacked as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from graft.base.dims import AnyDim, Unknown, symbols_of
from graft.base.errors import Location
from graft.program.bytecode_values import ValueCode
from graft.program.bytecode_work import (
    Collect,
    JoinSlices,
    ShapeFailure,
    StackFailure,
)
from graft.program.instructions import (
    Block,
    Loop,
    Scan,
    writes,
)
from graft.program.layout import (
    STACK_WORDS,
    VALUE_WORDS,
    Opcode,
)
from graft.program.words import Address, Label

_MOST = (1 << 63) - 1


class LoopCode(ValueCode, ABC):
    """Code for loops, around that of their bodies."""

    @abstractmethod
    def _block(self, block: Block, bound: set[str]) -> None:
        """The code of a body; its outputs stay."""

    def _loop(self, instruction: Loop, bound: set[str]) -> None:
        body, after, head = instruction.body, Label(), Label()
        index, limit, flag = self._register(), self._register(_MOST), self._register()
        self._copy(index, 0)
        if instruction.limit is not None:
            self._item(limit, instruction.limit)
        inner = {*bound}
        count = len(instruction.carried)
        iteration, condition, *carried = body.inputs
        for value in (iteration, condition):
            if value in self._addresses:
                for axis in range(self._rank(value)):
                    self._words.change(self._addresses[value] + VALUE_WORDS + axis, 1)
        self._copy(flag, 1)
        if instruction.condition is not None:
            self._item(flag, instruction.condition)
        self._assign(carried, instruction.carried)
        own = {*inner}
        self._bind(carried, own)
        self._words.emit(Opcode.DIFFER, flag, self._numbers.address(1), after)
        self._mark(head)
        self._words.emit(Opcode.UPTO, index, limit, after)
        for value, register in ((iteration, index), (condition, flag)):
            if value in self._addresses:
                self._store_number(value, register)
        self._loops += 1
        self._block(body, {*own})
        self._loops -= 1
        rows = body.outputs[1 + count :]
        stacks = self._collect(rows, instruction.outputs[count:], limit, instruction.location)
        self._item(flag, body.outputs[0])
        self._carry(body, carried, body.outputs[1 : 1 + count])
        self._bind(carried, {*inner})
        self._words.emit(Opcode.PLUS, index, index, self._numbers.address(1))
        self._words.emit(Opcode.DIFFER, flag, self._numbers.address(1), after)
        self._words.emit(Opcode.JUMP, head)
        self._mark(after)
        self._assign(instruction.outputs[:count], carried)
        self._free(body.inputs)
        self._join(stacks, rows, instruction.outputs[count:], own)
        self._bind(instruction.outputs, bound)

    def _scan(self, instruction: Scan, bound: set[str]) -> None:
        body, after, head = instruction.body, Label(), Label()
        index, limit = self._register(), self._register()
        count = len(instruction.carried)
        carried, slices = body.inputs[:count], body.inputs[count:]
        self._copy(index, 0)
        sources = self._scan_sources(instruction, limit)
        self._assign(carried, instruction.carried)
        inner = {*bound}
        own = {*inner}
        self._rows(instruction, slices, sources, index)  # also of a scan without iterations: shapes
        self._bind(body.inputs, own)
        self._mark(head)
        self._words.emit(Opcode.UPTO, index, limit, after)
        self._rows(instruction, slices, sources, index)
        self._loops += 1
        self._block(body, {*own})
        self._loops -= 1
        axes = instruction.result_axes, instruction.result_backwards
        rows = body.outputs[count:]
        stacks = self._collect(rows, instruction.outputs[count:], limit, instruction.location)
        self._carry(body, carried, body.outputs[:count])
        self._bind(carried, {*inner})
        self._words.emit(Opcode.PLUS, index, index, self._numbers.address(1))
        self._words.emit(Opcode.JUMP, head)
        self._mark(after)
        self._assign(instruction.outputs[:count], carried)
        self._free(body.inputs)
        for address, _ in sources:
            self._words.emit(Opcode.FREE, address)
        self._join(stacks, rows, instruction.outputs[count:], own, *axes)
        self._bind(instruction.outputs, bound)

    def _carry(self, body: Block, carried: Sequence[int], results: Sequence[int]) -> None:
        """What an iteration gives is what the next one takes.

        Values that change places with each other are held elsewhere meanwhile."""
        unmoved = {*carried}
        moved: list[int | Address] = []
        for target, source in zip(carried, results, strict=True):
            if source in unmoved and source != target and source in self._addresses:
                rank = self._rank(source)
                aside = self._words.put(*[0] * (VALUE_WORDS + rank))
                self._move(aside, self._addresses[source], rank)
                moved.append(aside)
            else:
                moved.append(source)
        for target, copy in zip(carried, moved, strict=True):
            if isinstance(copy, Address):
                self._move(self._addresses[target], copy, self._rank(target))
                self._words.emit(Opcode.FREE, copy)
            else:
                self._assign([target], [copy])
        own = {number for instruction in body.instructions for number in writes(instruction)}
        self._free(number for number in dict.fromkeys(body.outputs) if number in own)

    def _collect(
        self, rows: Sequence[int], outputs: Sequence[int], limit: Address, location: Location
    ) -> list[Address | None]:
        """One more slice of each output that is stacked; gives the stacks that native code has."""
        stacks: list[Address | None] = []
        for row, output in zip(rows, outputs, strict=True):
            if row not in self._addresses or output not in self._addresses:
                self._python(Collect(output, row))
                stacks.append(None)
                continue
            rank = self._rank(row)
            stack = self._words.put(*[0] * (STACK_WORDS + rank))
            failure = self._failure(StackFailure(row, location))
            how = rank, self._itemsize(row), limit, failure
            self._words.emit(Opcode.PUSH, stack, self._addresses[row], *how)
            stacks.append(stack)
        return stacks

    def _join(
        self,
        stacks: Sequence[Address | None],
        rows: Sequence[int],
        outputs: Sequence[int],
        bound: set[str],
        axes: Sequence[int] | None = None,
        backwards: Sequence[bool] | None = None,
    ) -> None:
        """Slices become outputs. Extents that only an iteration would define are zero."""
        axes, backwards = axes or [0] * len(rows), backwards or [False] * len(rows)
        for position, stack in enumerate(stacks):
            row, output, axis = rows[position], outputs[position], axes[position]
            if stack is None:
                self._python(JoinSlices(output, row, axis, backwards[position]))
                continue
            rank = self._rank(row)
            extents = [
                self._numbers.of(dim) if _is_known(dim, bound) else 0
                for dim in self._program.values[row].shape or ()
            ]
            listed = self._words.put(*map(self._numbers.address, extents))
            where = axis % (rank + 1), int(backwards[position]), listed
            size = self._itemsize(row)
            self._words.emit(Opcode.STACK, self._addresses[output], stack, rank, size, *where)

    def _scan_sources(self, instruction: Scan, limit: Address) -> list[tuple[Address, int]]:
        """Tensors with their scanned axes in front, and their ranks; they are of one length."""
        sources: list[tuple[Address, int]] = []
        for position, number in enumerate(instruction.scanned):
            rank = self._rank(number)
            axis, address = instruction.axes[position] % rank, self._addresses[number]
            if position:
                failure = self._failure(ShapeFailure(number, self._location))
                self._words.emit(Opcode.CHECK, address, axis, limit, failure)
            else:
                self._words.emit(Opcode.EXTENT, limit, address, axis)
            slot = self._words.put(*[0] * (VALUE_WORDS + rank))
            if axis:
                self._words.emit(Opcode.AXIS, slot, address, rank, self._itemsize(number), axis)
            else:
                self._words.emit(Opcode.MOVE, slot, address, rank)
            sources.append((slot, rank))
        return sources

    def _rows(
        self,
        instruction: Scan,
        slices: Sequence[int],
        sources: Sequence[tuple[Address, int]],
        index: Address,
    ) -> None:
        """The slices of one iteration."""
        for position, (held, rank) in enumerate(sources):
            row, back = slices[position], int(instruction.backwards[position])
            size = self._itemsize(row)
            self._words.emit(Opcode.ROW, self._addresses[row], held, index, rank - 1, size, back)


def _is_known(dim: AnyDim, bound: set[str]) -> bool:
    return not isinstance(dim, Unknown) and bound.issuperset(symbols_of(dim))
