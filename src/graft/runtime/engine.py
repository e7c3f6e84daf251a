"""Linked code, the threads that run it and the memory that they work in: what all programs of one
model share."""

from __future__ import annotations

from collections.abc import Iterable

from graft.base.dtypes import Array
from graft.runtime.agreement import ADVANCE, RUN, STOP, WORK
from graft.runtime.lending import Lent, Recycled
from graft.runtime.memory import address_of
from graft.runtime.native import Library
from graft.runtime.program import KernelCall, Program
from graft.runtime.shaped import ShapedCall, ShapedProgram
from graft.runtime.team import Team


class Engine:
    """The kernels of some programs, and a team to call them."""

    def __init__(self, programs: Iterable[Program | ShapedProgram], threads: int) -> None:
        objects: dict[bytes, None] = {}
        symbols = {RUN, WORK, STOP, ADVANCE}
        for program in programs:
            objects.update(dict.fromkeys(program.objects))
            calls = (one for one in program.steps if isinstance(one, KernelCall | ShapedCall))
            symbols |= {call.symbol for call in calls}
        self._addresses: dict[int, tuple[tuple[Array, ...], list[int]]] = {}
        # The library has to live as long as the addresses that are taken from it.
        self.library = Library(tuple(objects), symbols)
        self.team = Team(self.library, threads)
        self.memory, self.results = Lent(), Recycled()

    def addresses(self, constants: tuple[Array, ...]) -> list[int]:
        """Where constants are; asked once for those that a program has at every size."""
        known = self._addresses.get(id(constants))
        if known is None or known[0] is not constants:
            known = constants, [address_of(array) for array in constants]
            self._addresses[id(constants)] = known
        return known[1]
