"""What all code of one model shares in a process: linked kernels, the threads that run them, and
the memory that they work in."""

from __future__ import annotations

from graft.program.layout import ALLOCATE, DISCARD, EXECUTE
from graft.program.program import Program
from graft.runtime.memory import ResultPool, address_of
from graft.runtime.native import Library
from graft.runtime.thread_pool import STOP, WORK, ThreadPool


class RuntimeContext:
    """The kernels of a program, and threads to call them."""

    def __init__(self, program: Program, threads: int) -> None:
        symbols = {WORK, STOP, EXECUTE, ALLOCATE, DISCARD, *(call.symbol for call in program.calls)}
        # The library has to live as long as the addresses that are taken from it.
        self.library = Library(program.objects, symbols)
        self.thread_pool = ThreadPool(self.library, threads)
        self.results = ResultPool()
        self._constants = dict(program.constants)

    def constant(self, number: int) -> int:
        """The address of a constant, by the number of its value."""
        return address_of(self._constants[number])
