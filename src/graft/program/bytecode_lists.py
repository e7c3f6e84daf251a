"""Code for operations on lists of tensors that native code holds.

A list is a value of rank 1 whose extent is its length and whose memory is a table: per element the
words of a value, namely address, owner and extents. Elements are shared with the tensors that were
put in. An operation that reads a list for the last time may change it in place.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.program.bytecode_values import ValueCode
from graft.program.instructions import ListOp
from graft.program.layout import VALUE_WORDS, Opcode
from graft.program.words import Address

_COUNT_BYTES = 8


class ListCode(ValueCode):
    """Code for list operations; those on values that native code does not hold are Python's."""

    def _list_op(self, instruction: ListOp) -> None:
        """Emit an operation natively if its operands and its result fit together."""
        numbers = [n for n in (*instruction.inputs, *instruction.outputs) if n is not None]
        write = self._native_operations.get(instruction.operation)
        is_native = write is not None and all(number in self._addresses for number in numbers)
        if write is None or not is_native or not write(self, instruction):
            self._python(instruction)

    def _element(self, number: int | None) -> tuple[object, int] | None:
        """The dtype and rank of a list's elements; None of what is no list."""
        return None if number is None else self._program.values[number].element

    def _tensor(self, number: int | None) -> tuple[object, int] | None:
        """The dtype and rank of a tensor."""
        if number is None or self._program.values[number].dtype is None:
            return None
        return self._program.values[number].dtype, self._rank(number)

    def _position(self, number: int | None, default: Address) -> Address:
        """Where the position that an operand holds is, or the default for one left out."""
        if number is None:
            return default
        register = self._register()
        self._item(register, number)
        return register

    def _clear(self, number: int) -> None:
        """Let a list be empty."""
        address = self._addresses[number]
        self._words.emit(Opcode.FREE, address)
        self._copy(address + VALUE_WORDS, 0)

    def _empty(self, instruction: ListOp) -> bool:
        self._clear(instruction.outputs[0])
        return True

    def _construct(self, instruction: ListOp) -> bool:
        (output,) = instruction.outputs
        elements = [number for number in instruction.inputs if number is not None]
        if any(self._tensor(number) != self._element(output) for number in elements):
            return False
        self._clear(output)
        for number in elements:
            self._emit_insert(instruction, output, output, number, None, True)
        return True

    def _insert(self, instruction: ListOp) -> bool:
        source, element, position = instruction.inputs
        (output,) = instruction.outputs
        kinds = self._element(source), self._tensor(element), self._element(output)
        if source is None or element is None or None in kinds or len({*kinds}) > 1:
            return False
        ends_here = source in self._dying
        self._emit_insert(instruction, output, source, element, position, ends_here)
        return True

    def _emit_insert(
        self,
        instruction: ListOp,
        output: int,
        source: int,
        element: int,
        position: int | None,
        in_place: bool,
    ) -> None:
        lists = self._addresses[output], self._addresses[source]
        where = self._position(position, self._addresses[source] + VALUE_WORDS)
        how = self._rank(element), self._itemsize(element), int(in_place)
        check = self._failure(instruction)
        self._words.emit(Opcode.INSERT, *lists, self._addresses[element], where, *how, check)

    def _erase(self, instruction: ListOp) -> bool:
        source, position = instruction.inputs
        (output,) = instruction.outputs
        element = self._element(source)
        if source is None or element is None or element != self._element(output):
            return False
        where = self._position(position, self._numbers.address(-1))
        how = element[1], int(source in self._dying), self._failure(instruction)
        self._words.emit(
            Opcode.ERASE, self._addresses[output], self._addresses[source], where, *how
        )
        return True

    def _at(self, instruction: ListOp) -> bool:
        source, position = instruction.inputs
        (output,) = instruction.outputs
        element = self._element(source)
        if source is None or element is None or element != self._tensor(output):
            return False
        where = self._position(position, self._numbers.address(-1))
        addresses = self._addresses[output], self._addresses[source]
        self._words.emit(Opcode.AT, *addresses, where, element[1], self._failure(instruction))
        return True

    def _length(self, instruction: ListOp) -> bool:
        (source,), (output,) = instruction.inputs, instruction.outputs
        if source is None or self._element(source) is None or self._itemsize(output) != 8:
            return False
        self._store_number(output, self._addresses[source] + VALUE_WORDS)
        return True

    def _split(self, instruction: ListOp) -> bool:
        source, chunk, sizes = instruction.inputs
        (output,) = instruction.outputs
        tensor, element = self._tensor(source), self._element(output)
        if source is None or tensor is None or element is None or tensor[1] == 0:
            return False
        rank, keeps = tensor[1], instruction.with_axis
        if element != (tensor[0], rank if keeps else rank - 1):
            return False
        step: int | Address = 0
        parts: int | Address = 0
        width = _COUNT_BYTES
        if sizes is not None:
            if self._rank(sizes) != 1 or self._itemsize(sizes) not in (4, 8):
                return False
            parts, width = self._addresses[sizes], self._itemsize(sizes)
        elif instruction.sizes is not None:
            cells = self._numbers.cells([self._numbers.of(dim) for dim in instruction.sizes])
            parts = self._words.put(cells, 0, len(instruction.sizes))
        elif chunk is not None:
            step = self._position(chunk, self._numbers.address(1))
        else:
            step = self._numbers.address(self._numbers.of(instruction.chunk))
        addresses = self._addresses[output], self._addresses[source]
        how = rank, self._itemsize(source), instruction.axis % rank, int(keeps)
        check = self._failure(instruction)
        self._words.emit(Opcode.SPLIT, *addresses, *how, step, parts, width, check)
        return True

    def _concatenate(self, instruction: ListOp) -> bool:
        (source,), (output,) = instruction.inputs, instruction.outputs
        element, tensor = self._element(source), self._tensor(output)
        if source is None or element is None:
            return False
        rank, stacks = element[1], not instruction.with_axis
        if tensor != (element[0], rank + stacks) or rank + stacks == 0:
            return False
        axis = instruction.axis % (rank + stacks)
        how = rank, self._itemsize(output), axis, int(stacks), self._failure(instruction)
        self._words.emit(Opcode.JOIN, self._addresses[output], self._addresses[source], *how)
        return True

    _native_operations: dict[str, Callable[[ListCode, ListOp], bool]] = {  # noqa: RUF012
        "sequence.at": _at,
        "sequence.concatenate": _concatenate,
        "sequence.construct": _construct,
        "sequence.empty": _empty,
        "sequence.erase": _erase,
        "sequence.insert": _insert,
        "sequence.length": _length,
        "sequence.split": _split,
    }
