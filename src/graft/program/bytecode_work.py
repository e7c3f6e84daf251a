"""The rest of an image: work left to Python, messages of failed checks, and the whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graft.base.dtypes import Array
from graft.base.errors import Location
from graft.program.extents import Refused, SizeCheck
from graft.program.instructions import (
    Assert,
    BindSymbol,
    Element,
    Instruction,
    ListOp,
    Segment,
)


@dataclass(frozen=True, slots=True)
class Assign:
    """Values that native code does not hold become what others are."""

    targets: tuple[int, ...]
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadItem:
    """The first element of a value that native code does not hold goes to a register."""

    value: int
    register: int  # its position


@dataclass(frozen=True, slots=True)
class ReadExtents:
    """Extents of a value that native code does not hold go to registers: axes, and positions."""

    value: int
    registers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Release:
    """The last use of tensors of devices."""

    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collect:
    """A value that native code does not hold is one more slice of an output that is stacked."""

    output: int
    value: int


@dataclass(frozen=True, slots=True)
class JoinSlices:
    """What has been collected for an output is stacked along an axis; `row` is what a slice is."""

    output: int
    row: int
    axis: int
    backwards: bool


@dataclass(frozen=True, slots=True)
class SizeFailure:
    """What a type rule has against sizes, and the symbols that they depend on; `numbers` are the
    elements that a size function has read."""

    refused: Refused
    check: SizeCheck
    symbols: tuple[str, ...]
    numbers: tuple[Element, ...] = ()


@dataclass(frozen=True, slots=True)
class ShapeFailure:
    """A value has another shape than the program says."""

    value: int
    location: Location | None


@dataclass(frozen=True, slots=True)
class StackFailure:
    """Slices that are to be stacked differ in shape."""

    value: int
    location: Location


@dataclass(frozen=True, slots=True)
class SymbolFailure:
    """A number is read for a symbol that stands for another."""

    instruction: BindSymbol


PythonWork = Instruction | Assign | ReadItem | ReadExtents | Release | Collect | JoinSlices
Failure = SizeFailure | ShapeFailure | StackFailure | SymbolFailure | Assert | ListOp
# Which instruction: its position in its block, preceded by that of the one around it, and so on.
Path = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Image:
    """A frame before it is loaded. Positions count words."""

    words: Array
    addresses: Array  # positions of words that hold positions, to become addresses
    functions: Sequence[tuple[int, str]]  # positions, and functions whose addresses go there
    constants: Sequence[tuple[int, int]]  # positions, and values whose memory is meant
    values: Mapping[int, int]  # positions of the values that native code holds
    registers: Mapping[str, int]  # positions of symbols
    # What Python does, by number; whether it is within a loop.
    work: Sequence[tuple[PythonWork, Path, bool]]
    failures: Sequence[Failure]  # what checks say, by number
    segments: Sequence[tuple[Segment, Path]]  # by number
    direct: frozenset[int]  # outputs that segments write where the caller wants them
    entry: int  # the position of the first instruction
    locations: Sequence[tuple[int, Location | None]]  # of nodes, from these positions on

    def location(self, position: int) -> Location | None:
        """The node that an instruction comes from."""
        count = bisect_right([first for first, _ in self.locations], position)
        return self.locations[count - 1][1] if count else None
