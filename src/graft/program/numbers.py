"""Sizes as code: dims in, instructions that compute their numbers out.

A number that is known is an `int` as long as possible; one that is not is where the code has left
it. What several dims have in common is computed once, up to the next label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graft.base.dims import AnyDim, IndexExpr, bare_symbol
from graft.base.errors import InternalError
from graft.base.polynomials import Atom
from graft.program.layout import Opcode
from graft.program.words import Address, Words

Number = int | Address

_OPCODES = {
    "floordiv": Opcode.DIVIDE,
    "mod": Opcode.MODULO,
    "min": Opcode.LEAST,
    "max": Opcode.MOST,
    "broadcast": Opcode.BROADCAST,
}


class Numbers:
    """Writes such code. Symbols have registers."""

    def __init__(self, words: Words) -> None:
        self.registers: dict[str, Address] = {}
        self._words = words
        self._constants: dict[int, Address] = {}
        self._computed: dict[AnyDim, Number] = {}

    def forget(self) -> None:
        """What has been computed may not have been, or for other symbols."""
        self._computed = {}

    def of(self, dim: AnyDim) -> Number:
        """The number of a dim."""
        if isinstance(dim, int):
            return dim
        name = bare_symbol(dim)
        if name is not None:
            return self.registers[name]
        computed = self._computed.get(dim)
        if computed is None:
            if not isinstance(dim, IndexExpr):
                raise InternalError("the size of something native is unknown")
            computed = self._computed[dim] = self._sum(dim)
        return computed

    def address(self, number: Number) -> Address:
        """Where a number is."""
        if isinstance(number, Address):
            return number
        if number not in self._constants:
            self._constants[number] = self._words.put(number)
        return self._constants[number]

    def cells(self, numbers: Sequence[Number]) -> Address:
        """Numbers one behind the other, written when the code runs."""
        start = self._words.put(*(one if isinstance(one, int) else 0 for one in numbers))
        for offset, number in enumerate(numbers):
            if isinstance(number, Address):
                self._words.emit(Opcode.COPY, start + offset, number)
        return start

    def plus(self, left: Number, right: Number) -> Number:
        """A sum."""
        if isinstance(left, int) and isinstance(right, int):
            return left + right
        return self._operation(Opcode.PLUS, left, right)

    def times(self, left: Number, right: Number) -> Number:
        """A product."""
        if isinstance(left, int) and isinstance(right, int):
            return left * right
        return self._operation(Opcode.TIMES, left, right)

    def largest(self, numbers: Iterable[Number]) -> Number:
        """The largest of some; 0 if there are none."""
        largest: Number = 0
        for number in numbers:
            if isinstance(largest, int) and isinstance(number, int):
                largest = max(largest, number)
            elif largest == 0:
                largest = number
            else:
                largest = self._operation(Opcode.MOST, largest, number)
        return largest

    def rounded(self, number: Number, unit: int) -> Number:
        """The least multiple of a unit that is not smaller."""
        if isinstance(number, int):
            return -(-number // unit) * unit
        units = self._operation(Opcode.DIVIDE, self.plus(number, unit - 1), unit)
        return self.times(units, unit)

    def _sum(self, dim: IndexExpr) -> Number:
        total: Number = 0
        for monomial, factor in dim.terms:
            term: Number = factor
            for atom in monomial:
                number = self._atom(atom)
                term = number if term == 1 else self.times(term, number)
            total = term if total == 0 else self.plus(total, term)
        return total

    def _atom(self, atom: Atom) -> Number:
        if not atom.is_call:
            return self.registers[atom.name]
        key = IndexExpr((((atom,), 1),))
        computed = self._computed.get(key)
        if computed is None:
            computed, *others = (self.of(argument) for argument in atom.arguments)
            for other in others:
                computed = self._operation(_OPCODES[atom.name], computed, other)
            self._computed[key] = computed
        return computed

    def _operation(self, opcode: Opcode, left: Number, right: Number) -> Address:
        result = self._words.put(0)
        self._words.emit(opcode, result, self.address(left), self.address(right))
        return result
