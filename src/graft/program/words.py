"""Words of an image as they are written, and code with labels.

Numbers, addresses of other words and labels come in; a list of words leaves, with notes of what is
to be written into it when it is loaded: addresses of its own words, of functions, of constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graft.base.errors import Location
from graft.program.layout import Opcode


@dataclass(frozen=True, slots=True)
class Address:
    """That of the word at a position."""

    position: int

    def __add__(self, words: int) -> Address:
        return Address(self.position + words)


@dataclass(frozen=True, slots=True)
class Note:
    """Where the instructions behind it come from."""

    location: Location | None


class Label:
    """A place in the code, which jumps may lead to before it is known."""

    def __init__(self) -> None:
        self.address: Address | None = None


Operand = int | Address | Label


class Words:
    """Data, and behind them code."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.addresses: list[int] = []  # positions of words that hold positions
        self.functions: list[tuple[int, str]] = []  # positions, and names of functions
        self.constants: list[tuple[int, int]] = []  # positions, and numbers of values
        self.locations: list[tuple[int, Location | None]] = []  # positions from which on they hold
        self._code: list[tuple[Opcode, tuple[Operand, ...]] | Label | Note] = []

    def put(self, *words: int | Address) -> Address:
        """Data behind the last word; gives where they begin."""
        start = Address(len(self.words))
        for word in words:
            if isinstance(word, Address):
                self.addresses.append(len(self.words))
                word = word.position
            self.words.append(word)
        return start

    def change(self, address: Address, word: int | Address) -> None:
        """Other data in a place that held a number."""
        if isinstance(word, Address):
            self.addresses.append(address.position)
            word = word.position
        self.words[address.position] = word

    def emit(self, opcode: Opcode, *operands: Operand) -> None:
        """An instruction behind the last."""
        assert len(operands) == opcode.operands, opcode.name
        self._code.append((opcode, operands))

    def mark(self, label: Label) -> None:
        """Let a label be the place of the next instruction."""
        self._code.append(label)

    def note(self, location: Location | None) -> None:
        """Say where the next instructions come from."""
        self._code.append(Note(location))

    def finish(self) -> Address:
        """Write the code behind the data; gives where it begins."""
        position = len(self.words)
        for item in self._code:
            if isinstance(item, Label):
                item.address = Address(position)
            elif isinstance(item, Note):
                self.locations.append((position, item.location))
            else:
                position += 1 + len(item[1])
        start = Address(len(self.words))
        for item in self._code:
            if isinstance(item, tuple):
                opcode, operands = item
                self.put(int(opcode), *_resolve(operands))
        return start


def _resolve(operands: Sequence[Operand]) -> list[int | Address]:
    resolved: list[int | Address] = []
    for operand in operands:
        if isinstance(operand, Label):
            assert operand.address is not None
            operand = operand.address
        resolved.append(operand)
    return resolved
