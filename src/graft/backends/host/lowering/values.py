"""The values of a program while it is built: graph values, constants and memory in, numbers out."""

from __future__ import annotations

from graft.backends.reference.stored import value_of
from graft.base.dims import Dim
from graft.base.dtypes import Array, dtype_of
from graft.ir.graph import Value as GraphValue
from graft.program.program import Value


class Values:
    """Values by number, those of nested blocks included, and which of them are constants."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.constants: list[tuple[int, Array]] = []
        self.pool: dict[Dim, None] = {}  # sizes of what lies in the program's memory pool
        self._known: dict[int, tuple[Array, int]] = {}  # constants by identity

    def add(self, value: Value) -> int:
        """A new value."""
        self.values.append(value)
        return len(self.values) - 1

    def add_graph_value(self, value: GraphValue) -> int:
        """A new value as a graph describes it."""
        return self.add(value_of(value))

    def add_constant(self, array: Array, name: str = "") -> int:
        """The number of a constant; an array gets one number however often it is added."""
        previous = self._known.get(id(array))
        if previous is not None:
            return previous[1]
        if array.dtype.hasobject:
            number = self.add(Value(name, None, array.shape, "tensor(string)"))
        else:
            number = self.add(Value(name, dtype_of(array.dtype), array.shape))
        self.constants.append((number, array))
        self._known[id(array)] = array, number
        return number
