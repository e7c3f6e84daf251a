"""Searching and sorting, whatever the sizes: the non-zero, the distinct elements.

`bounded_unique` pops the
elements from a heap in ascending order, the lower position first among equals: where one differs
from its predecessor, a new group begins. Rows are sorted column by column, the last one first; each
time, the groups so far decide among equals, before positions do. All NaN count as equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.loop.build import Operand, Term, call, cast, equal, load, minimum, select, term
from graft.loop.ir import INDEX, Buffer
from graft.loop.statements import Cell, StatementBuilder, scratch
from graft.target.target import Target


@dataclass(frozen=True, slots=True)
class Order:
    """Ascending or descending; a NaN is larger than every number, or else always the last."""

    descending: bool
    nan_last: bool = False

    def precedes(self, one: Term, other: Term) -> Term:
        """Whether a value comes before another wherever they are."""
        is_before = one > other if self.descending else one < other
        if not one.dtype.is_float:
            return is_before
        first, second = call("isnan", one), call("isnan", other)
        if self.descending and not self.nan_last:
            first, second = second, first
        return is_before | ((first ^ True) & second)

    def same(self, one: Term, other: Term) -> Term:
        """Whether neither value comes before the other."""
        same = equal(one, other)
        if one.dtype.is_float:
            same = same | (call("isnan", one) & call("isnan", other))
        return same

    def before(self, one: Term, at: Term, other: Term, other_at: Term) -> Term:
        """Whether an element comes before another; among equals the lower position does."""
        return self.precedes(one, other) | (self.same(one, other) & (at < other_at))


@dataclass(frozen=True, slots=True)
class Heap:
    """Values and positions in scratch memory, as a binary tree without gaps."""

    code: StatementBuilder
    order: Order
    values: Buffer
    positions: Buffer
    first_on_top: bool

    @classmethod
    def of(
        cls,
        code: StatementBuilder,
        order: Order,
        dtype: DType,
        capacity: Operand,
        first_on_top: bool,
    ) -> Heap:
        values, positions = (
            scratch("values", dtype, capacity),
            scratch("positions", INDEX, capacity),
        )
        return cls(code, order, values, positions, first_on_top)

    @property
    def memory(self) -> tuple[Buffer, Buffer]:
        return self.values, self.positions

    def value(self, at: Operand) -> Term:
        return load(self.values, at)

    def position(self, at: Operand) -> Term:
        return load(self.positions, at)

    def put(self, at: Operand, value: Operand, position: Operand) -> None:
        self.code.store(self.values, at, value)
        self.code.store(self.positions, at, position)

    def _above(self, one: Term, at: Term, other: Term, other_at: Term) -> Term:
        if self.first_on_top:
            return self.order.before(one, at, other, other_at)
        return self.order.before(other, other_at, one, at)

    def build(self, count: Term) -> None:
        """Bring `count` elements, which lie there anyhow, into the order of a heap."""
        half = count // 2
        with self.code.loop("built", half) as iteration:
            root = self.code.let("root", half - 1 - iteration)
            self.reinsert("build", root, count, root)

    def reinsert(self, tag: str, source: Operand, count: Operand, start: Operand = 0) -> None:
        """Sink the element at `source` from `start` on, within `count` elements."""
        with self.code.scope():
            value = self.code.let(f"{tag}_value", self.value(source))
            position = self.code.let(f"{tag}_position", self.position(source))
            self.sink(tag, value, position, count, start)

    def sink(
        self, tag: str, value: Term, position: Term, count: Operand, start: Operand = 0
    ) -> None:
        """Put an element in the place of the one at `start`, or as far below as it belongs."""
        code, hole, child = self.code, Cell(f"{tag}_hole"), Cell(f"{tag}_child")
        size = term(count)
        with code.memory(hole, child):
            code.set(hole, start)
            code.set(child, term(start) * 2 + 1)
            with code.as_long_as(child.value < size):
                left = code.let(f"{tag}_left", child.value)
                # without a right child the left again, which is not above itself
                right = code.let(f"{tag}_right", minimum(left + 1, size - 1))
                values = self.value(right), self.position(right)
                higher = self._above(*values, self.value(left), self.position(left))
                pick = code.let(f"{tag}_pick", select(higher, right, left))
                here, at = self.value(pick), self.position(pick)
                with code.when(self._above(here, at, value, position)):
                    self.put(hole.value, here, at)
                    code.set(hole, pick)
                    code.set(child, pick * 2 + 1)
                with code.otherwise():
                    code.set(child, count)
            self.put(hole.value, value, position)


@node_kernel("nonzero")
def nonzero(group: Group, stores: Stores, _target: Target) -> Plan:
    """The indices of elements that are not zero, in order, by one thread."""
    return node_plan(group, stores, _write_nonzero)


def _write_nonzero(writer: Writer) -> None:
    code, node = writer.code, writer.group.node
    shape = shape_of(node.args[0])
    count = writer.dim(shape_of(node.output)[1])
    data, result = writer.present_operand(0), writer.result(0)
    count_so_far = Cell("found")
    with code.memory(count_so_far):
        code.set(count_so_far, 0)
        with code.loop("at", writer.dim(product(shape))) as at:
            here = code.let("here", count_so_far.value)
            # Should the data have changed since they were counted, there is no room for more.
            with code.when(cast(DType.BOOL, load(data, at)) & (here < count)):
                code.set(count_so_far, here + 1)
                for axis, extent in enumerate(shape):
                    inner = shape[axis + 1 :]
                    position = at // writer.dim(product(inner)) if inner else at
                    position = position % writer.dim(extent) if axis else position
                    code.store(result, count * axis + here, position)


@node_kernel("bounded_unique")
def distinct(group: Group, stores: Stores, _target: Target) -> Plan:
    """The distinct elements of a tensor, by sorting."""
    return node_plan(group, stores, lambda writer: _Distinct(writer).write())


class _Distinct:
    """Writes the sort, and the groups that it finds, in the requested order."""

    def __init__(self, writer: Writer) -> None:
        self._code, node = writer.code, writer.group.node
        shape = shape_of(node.args[0])
        in_rows = node.attrs.axis == 0
        self._count = writer.dim(shape[0] if in_rows else product(shape))
        self._width = writer.dim(shape[1] if in_rows else 1)
        self._in_order = node.attrs.sorted
        self._data = writer.present_operand(0)
        self._values, self._first, self._inverse, self._counts, self._total = (
            writer.result(number) for number in range(5)
        )
        self._heap = Heap.of(
            writer.code, Order(descending=False), self._data.dtype, self._count, True
        )
        self._groups, self._known = Cell("groups"), Cell("known", self._data.dtype)
        self._known_group = Cell("known_group")
        names = ("first_of", "count_of", "rank_of")
        self._first_of, self._count_of, self._rank_of = (
            scratch(name, INDEX, self._count) for name in names
        )

    def write(self) -> None:
        code = self._code
        memory = (*self._heap.memory, self._first_of, self._count_of, self._rank_of)
        with code.memory(*memory, self._groups, self._known, self._known_group):
            self._begin()
            with code.loop("sorted", self._width) as iteration:
                self._sort_by(self._width - 1 - iteration)
            self._rank()
            with code.loop("group", self._groups.value) as group:
                self._write_group(group)
            with code.loop("place", self._count) as offset:
                group = load(self._inverse, offset)
                code.store(self._inverse, offset, load(self._rank_of, group))
            code.store(self._total, 0, self._groups.value)

    def _begin(self) -> None:
        """Before anything is compared, there is one group."""
        code = self._code
        with code.loop("one", self._count) as at:
            code.store(self._inverse, at, 0)
        code.set(self._groups, minimum(self._count, 1))
        with code.when(self._count > 0):
            code.store(self._first_of, 0, 0)
            code.store(self._count_of, 0, self._count)

    def _element(self, row: Term, column: Term) -> Term:
        return load(self._data, row * self._width + column)

    def _sort_by(self, column: Term) -> None:
        code = self._code
        with code.loop("at", self._count) as at:
            group = load(self._inverse, at)
            self._heap.put(at, self._element(at, column), group * self._count + at)
        self._heap.build(self._count)
        code.set(self._groups, 0)
        with code.loop("iteration", self._count) as iteration:
            self._pop(iteration)

    def _pop(self, iteration: Term) -> None:
        """The next element in order, into the group of the one before or a new one."""
        code, heap = self._code, self._heap
        last = code.let("last", self._count - 1 - iteration)
        value, offset = code.let("value", heap.value(0)), code.let("place", heap.position(0))
        group, position = offset // self._count, offset % self._count
        same = heap.order.same(value, self._known.value)
        same = same & equal(group, self._known_group.value)
        heap.reinsert("pop", last, last)
        with code.when(equal(iteration, 0) | (same ^ True)):
            new = code.let("next", self._groups.value)
            code.store(self._first_of, new, position)
            code.store(self._count_of, new, 0)
            code.set(self._known, value)
            code.set(self._known_group, group)
            code.set(self._groups, new + 1)
        here = self._groups.value - 1
        code.store(self._count_of, here, load(self._count_of, here) + 1)
        code.store(self._inverse, position, here)

    def _rank(self) -> None:
        """Where each group belongs: as sorted, or in the order in which they first appear."""
        code = self._code
        if self._in_order:
            with code.loop("rank", self._groups.value) as group:
                code.store(self._rank_of, group, group)
            return
        rank = Cell("seen")
        with code.memory(rank):
            code.set(rank, 0)
            with code.loop("appearing", self._count) as at:
                group, here = code.let("own", load(self._inverse, at)), rank.value
                with code.when(equal(load(self._first_of, group), at)):
                    code.store(self._rank_of, group, here)
                    code.set(rank, here + 1)

    def _write_group(self, group: Term) -> None:
        code = self._code
        rank = code.let("rank_here", load(self._rank_of, group))
        first = code.let("origin", load(self._first_of, group))
        with code.loop("column", self._width) as column:
            offset = rank * self._width + column
            code.store(self._values, offset, self._element(first, column))
        code.store(self._first, rank, first)
        code.store(self._counts, rank, load(self._count_of, group))
