"""A window that slides along one axis of an image, cut to the part of it that counts.

Attributes and extents enter; which of a window's elements lie within bounds leaves, as numbers
where the position is known when a kernel is written, and as index expressions elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graft.backends.host.point import over, plus, times
from graft.loop.ir import Binary, BinaryKind, Const, Expr


@dataclass(frozen=True, slots=True)
class Window:
    """One axis: `size` elements `dilation` apart, at `count` positions `stride` apart."""

    size: int
    stride: int
    dilation: int
    begin: int  # padding before the data
    end: int  # padding behind the data
    extent: Expr  # of the data
    count: Expr

    @staticmethod
    def of(attrs: Any, axis: int, extent: Expr, count: Expr) -> Window:
        """The window of a pooling along one of its spatial axes."""
        size, stride, dilation = (
            given[axis] for given in (attrs.pool_size, attrs.strides, attrs.dilation)
        )
        rank = len(attrs.strides)
        begin, end = attrs.padding[axis], attrs.padding[rank + axis]
        return Window(size, stride, dilation, begin, end, extent, count)

    def offsets(self, positions: int) -> list[int]:
        """The elements under some windows side by side, counted from the first window's start."""
        steps = range(self.size)
        return sorted(
            {p * self.stride + k * self.dilation for p in range(positions) for k in steps}
        )

    def start(self, position: Expr | int) -> Expr:
        """Where the window at a position starts."""
        return plus(times(position, self.stride), -self.begin)

    def places(self, position: int, padding: bool = False) -> list[int]:
        """Where a window's elements lie, of those that are data (or padding)."""
        low, high = self._low(padding), self._known_high(padding)
        start = position * self.stride - self.begin
        places = (start + step * self.dilation for step in range(self.size))
        return [place for place in places if low <= place < high]

    def inside(self, first: int, positions: int) -> bool:
        """Whether all elements under some windows side by side are data."""
        both = (first, first + positions - 1)
        return all(len(self.places(position)) == self.size for position in both)

    def clipped(self, position: Expr, padding: bool = False) -> tuple[Expr, Expr]:
        """The first element of a window that is data (or padding), and how many there are."""
        low, high = self._low(padding), self._high(padding)
        start, first, last = self.start(position), Const(0), Const(self.size)
        lower: Expr = first
        upper: Expr = last
        if -self.begin < low:
            lower = _largest(first, self._steps(Const(low), start))
        if not self._ends_within(padding):
            upper = _largest(lower, _least(last, self._steps(high, start)))
        if lower == first:
            return first, upper
        return lower, Binary(BinaryKind.SUBTRACT, _largest(lower, upper), lower)

    def whole(self) -> tuple[Expr, Expr]:
        """The first position with all its elements on the data, and how many such there are."""
        reach = (self.size - 1) * self.dilation
        first = _least(Const(-(-self.begin // self.stride)), self.count)
        room = plus(self.extent, self.begin - reach - 1)
        behind = _least(plus(over(room, self.stride), 1), self.count)
        return first, _largest(Const(0), Binary(BinaryKind.SUBTRACT, behind, first))

    @property
    def is_known(self) -> bool:
        """Whether the extents are numbers."""
        return isinstance(self.extent, Const) and isinstance(self.count, Const)

    def _low(self, padding: bool) -> int:
        return -self.begin if padding else 0

    def _high(self, padding: bool) -> Expr:
        return plus(self.extent, self.end) if padding else self.extent

    def _known_high(self, padding: bool) -> int:
        high = self._high(padding)
        assert isinstance(high, Const)
        return int(high.value)

    def _ends_within(self, padding: bool) -> bool:
        """Whether it is known that no window reaches beyond the limit."""
        if not isinstance(self.extent, Const) or not isinstance(self.count, Const):
            return False
        last = (int(self.count.value) - 1) * self.stride - self.begin
        return last + (self.size - 1) * self.dilation < self._known_high(padding)

    def _steps(self, limit: Expr, start: Expr) -> Expr:
        """How many elements of a window that starts there lie below a limit."""
        room = Binary(BinaryKind.SUBTRACT, plus(limit, self.dilation - 1), start)
        if self.dilation == 1:
            return room
        return Binary(BinaryKind.FLOOR_DIVIDE, room, Const(self.dilation))


def _largest(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryKind.MAXIMUM, left, right)


def _least(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryKind.MINIMUM, left, right)
