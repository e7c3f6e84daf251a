"""The few first elements of many short rows, a row in each lane of a vector.

Each lane keeps the first elements of its row so far sorted in registers, and their positions. The
elements come from the last one on, so that one goes before all that are equal to it; those that go
behind all kept ones in every lane cost a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graft.backends.host.cost import typical
from graft.backends.host.group import Group
from graft.backends.host.kernels.sort_keys import SortKeys
from graft.backends.host.kernels.writing import Writer
from graft.backends.host.storage import shape_of
from graft.base.dims import AnyDim, product
from graft.loop.build import Term, call, cast, compare, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Buffer, CompareKind, Const, Ramp, Scope
from graft.loop.statements import ramp, spread, store_vector, vector
from graft.target.target import Target

_SPARE_REGISTERS = 6  # for an element, its position, and what they are compared by
_AT_ONCE = 2  # vector instructions that start in a cycle
# Instructions that make a key, compare it and branch; that let a kept element move on or not.
_OFFERED, _KEPT = 10, 5


@dataclass(frozen=True, slots=True)
class RowShape:
    """`lines` times `side` rows of `extent` elements each, `count` of which are selected.

    The elements of a row are neighbours if it is contiguous; else those of the rows of a line at
    one position are."""

    lines: AnyDim
    side: AnyDim
    extent: AnyDim
    count: AnyDim
    is_contiguous: bool

    @classmethod
    def of(cls, group: Group) -> RowShape:
        node = group.node
        shape = shape_of(node.args[0])
        axis = node.attrs.axis % len(shape)
        extent, count = shape[axis], shape_of(node.output)[axis]
        outer, inner = product(shape[:axis]), product(shape[axis + 1 :])
        if inner == 1:
            return cls(1, outer, extent, count, True)
        return cls(outer, inner, extent, count, False)


def lane_cycles(group: Group, keys: SortKeys, target: Target) -> float:
    """How long a row takes, about; infinite if registers do not hold what is selected."""
    rows, lanes = RowShape.of(group), _lanes(group, keys, target)
    room = (target.vector_registers - _SPARE_REGISTERS) // 2
    if lanes == 1 or not isinstance(rows.extent, int) or not isinstance(rows.count, int):
        return math.inf
    if not 0 < rows.count <= room or rows.extent >= 1 << (keys.dtype.bits - 1):
        return math.inf
    likely = min(rows.extent, lanes * rows.count)
    kept = likely * (1 + math.log(rows.extent / likely))
    loads = lanes * _AT_ONCE if rows.is_contiguous else 0  # else a part of what is offered
    instructions = rows.extent * (_OFFERED + loads) + kept * _KEPT * rows.count
    return instructions / _AT_ONCE / lanes


def _lanes(group: Group, keys: SortKeys, target: Target) -> int:
    """As many as a register holds, or as there are rows side by side."""
    side = typical(RowShape.of(group).side, (group.node.args[0],))
    return min(target.lanes(keys.dtype), 1 << (max(side, 1).bit_length() - 1))


class LaneSelection:
    """Writes the loops over vectors of rows, and over the elements of these rows."""

    def __init__(self, writer: Writer, keys: SortKeys, target: Target) -> None:
        self._code, self._keys, self._rows = writer.code, keys, RowShape.of(writer.group)
        self._data = writer.present_operand(0)
        self._values, self._indices = writer.result(0), writer.result(1)
        self._lines, self._side = writer.dim(self._rows.lines), writer.dim(self._rows.side)
        assert isinstance(self._rows.extent, int)
        assert isinstance(self._rows.count, int)
        self._extent, self._count = self._rows.extent, self._rows.count
        self._lanes = _lanes(writer.group, keys, target)

    def write(self) -> None:
        """Vectors of rows; what is left of a line, row by row."""
        code, lanes = self._code, self._lanes
        vectors = (self._side + (lanes - 1)) // lanes
        with code.parallel("job", self._lines * vectors) as job:
            line, first = code.let("line", job // vectors), code.let("first", job % vectors * lanes)
            with code.when(first + lanes <= self._side):
                self._select("", line, first, lanes)
            with code.otherwise(), code.loop("row", self._side - first, first) as row:
                self._select("single_", line, row, 1)

    def _places(self, line: Term, first: Term, at: Term, extent: int, lanes: int) -> Term:
        """Where elements at some positions of so many rows lie, if rows have that extent."""
        if self._rows.is_contiguous:
            return spaced(first * extent, extent, lanes) + at
        return at * self._side + ramp(line * extent * self._side + first, lanes)

    def _select(self, tag: str, line: Term, first: Term, lanes: int) -> None:
        code, dtype, slots = self._code, self._keys.dtype, range(self._count)
        extents = (Const(lanes),)
        kept, places = (
            [Buffer(f"{tag}{name}{slot}", dtype, extents, Scope.REGISTER) for slot in slots]
            for name in ("key", "position")
        )
        with code.memory(*kept, *places):
            for slot in slots:
                code.emit(store_vector(kept[slot], 0, spread(self._keys.greatest, lanes)))
                code.emit(store_vector(places[slot], 0, spread(Term(Const(0, dtype)), lanes)))
            with code.loop(f"{tag}iteration", self._extent) as iteration:
                at = code.let(f"{tag}at", self._extent - 1 - iteration)
                index = self._places(line, first, at, self._extent, lanes)
                key = code.let(f"{tag}key", self._keys.of(load(self._data, index)))
                is_kept = call("reduce_to_bits", key <= vector(kept[-1], 0, lanes))
                with code.when(compare(CompareKind.NOT_EQUAL, is_kept, 0)):
                    self._insert(tag, key, spread(cast(dtype, at), lanes), kept, places)
            for slot in slots:
                position = code.let(f"{tag}at{slot}", cast(INDEX, vector(places[slot], 0, lanes)))
                index = self._places(line, first, position, self._extent, lanes)
                result = self._places(line, first, term(slot), self._count, lanes)
                code.store(self._values, result, load(self._data, index))
                code.store(self._indices, result, position)

    def _insert(
        self, tag: str, key: Term, at: Term, kept: Sequence[Buffer], places: Sequence[Buffer]
    ) -> None:
        """An element before those that do not come before it, which move on by one."""
        code, lanes = self._code, key.expr.lanes
        for slot, (keys, positions) in enumerate(zip(kept, places, strict=True)):
            old = code.let(f"{tag}old{slot}", vector(keys, 0, lanes))
            old_at = code.let(f"{tag}old_at{slot}", vector(positions, 0, lanes))
            goes_before = code.let(f"{tag}before{slot}", key <= old)
            code.emit(store_vector(keys, 0, minimum(key, old)))
            code.emit(store_vector(positions, 0, select(goes_before, at, old_at)))
            key = code.let(f"{tag}moved{slot}", maximum(key, old))
            at = code.let(f"{tag}moved_at{slot}", select(goes_before, old_at, at))


def spaced(start: Term, stride: int, lanes: int) -> Term:
    """Indices some elements apart, one for each lane."""
    return Term(Ramp(start.expr, stride, lanes)) if lanes > 1 else start
