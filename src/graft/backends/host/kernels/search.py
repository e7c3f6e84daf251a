"""Searching and sorting, whatever the sizes: the first, the non-zero, the distinct elements.

`topk` reads each row once, in order, into a heap of the best elements so far with the last of them
on top; emptied, the heap yields them sorted. The threads share the rows. `bounded_unique` pops the
elements from a heap in ascending order, the lower position first among equals: where one differs
from its predecessor, a new group begins. Rows are sorted column by column, the last one first; each
time, the groups so far decide among equals, before positions do. All NaN count as equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.loop.build import Operand, Term, call, cast, equal, load, minimum, select, term
from graft.loop.ir import INDEX, Buffer, Stmt
from graft.loop.statements import (
    Cell,
    as_long_as,
    let,
    lets,
    loop,
    parallel,
    scratch,
    store,
    when,
    with_memory,
)
from graft.loop.traverse import block
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

    order: Order
    values: Buffer
    positions: Buffer
    first_on_top: bool

    @classmethod
    def of(cls, order: Order, dtype: DType, capacity: Operand, first_on_top: bool) -> Heap:
        values, positions = (
            scratch("values", dtype, capacity),
            scratch("positions", INDEX, capacity),
        )
        return cls(order, values, positions, first_on_top)

    @property
    def memory(self) -> tuple[Buffer, Buffer]:
        return self.values, self.positions

    def value(self, at: Operand) -> Term:
        return load(self.values, at)

    def position(self, at: Operand) -> Term:
        return load(self.positions, at)

    def put(self, at: Operand, value: Operand, position: Operand) -> Stmt:
        return block(store(self.values, at, value), store(self.positions, at, position))

    def _above(self, one: Term, at: Term, other: Term, other_at: Term) -> Term:
        if self.first_on_top:
            return self.order.before(one, at, other, other_at)
        return self.order.before(other, other_at, one, at)

    def build(self, count: Term) -> Stmt:
        """Bring `count` elements, which lie there anyhow, into the order of a heap."""
        half = count // 2

        def sunk(iteration: Term) -> Stmt:
            return let(
                "root", half - 1 - iteration, lambda root: self.reinsert("build", root, count, root)
            )

        return loop("built", half, sunk)

    def reinsert(self, tag: str, source: Operand, count: Operand, start: Operand = 0) -> Stmt:
        """Sink the element at `source` from `start` on, within `count` elements."""
        element = {f"{tag}_value": self.value(source), f"{tag}_position": self.position(source)}
        return lets(element, lambda one, at: self.sink(tag, one, at, count, start))

    def sink(
        self, tag: str, value: Term, position: Term, count: Operand, start: Operand = 0
    ) -> Stmt:
        """Put an element in the place of the one at `start`, or as far below as it belongs."""
        hole, child = Cell(f"{tag}_hole"), Cell(f"{tag}_child")
        below, size = child.value, term(count)

        def move_up(pick: Term) -> Stmt:
            here, at = self.value(pick), self.position(pick)
            up = block(self.put(hole.value, here, at), hole.set(pick), child.set(pick * 2 + 1))
            return when(self._above(here, at, value, position), up, child.set(count))

        def descend(left: Term) -> Stmt:
            # The right child where there is one, else the left again, which is not above itself.
            def choose(right: Term) -> Stmt:
                values = self.value(right), self.position(right)
                higher = self._above(*values, self.value(left), self.position(left))
                return let(f"{tag}_pick", select(higher, right, left), move_up)

            return let(f"{tag}_right", minimum(left + 1, size - 1), choose)

        body = block(
            hole.set(start),
            child.set(term(start) * 2 + 1),
            as_long_as(below < size, let(f"{tag}_left", below, descend)),
            self.put(hole.value, value, position),
        )
        return with_memory(body, hole, child)


@node_kernel("topk")
def topk(group: Group, stores: Stores, _target: Target) -> Plan:
    """The first elements along an axis in descending or ascending order."""
    node = group.node
    axis = node.attrs.axis % len(shape_of(node.args[0]))
    # How many is not read: it is what the result's shape says, and the type rule has compared it,
    # when the model was compiled or when the sizes were known.
    return lambda: _Search(Writer(group, stores), axis).kernel()


class _Search:
    """Writes the loops over rows and over the elements of a row."""

    def __init__(self, writer: Writer, axis: int) -> None:
        self._writer, node = writer, writer.group.node
        shape = shape_of(node.args[0])
        self._outer = writer.dim(product(shape[:axis]))
        self._inner = writer.dim(product(shape[axis + 1 :]))
        self._extent, self._count = writer.dim(shape[axis]), writer.dim(shape_of(node.output)[axis])
        self._data = writer.present_operand(0)
        self._values, self._indices = writer.result(0), writer.result(1)
        self._heap = Heap.of(Order(node.attrs.largest), self._data.dtype, self._count, False)

    def kernel(self) -> Kernel:
        def row(job: Term) -> Stmt:
            return lets({"line": job // self._inner, "column": job % self._inner}, self._row)

        rows = parallel("job", self._outer * self._inner, row)
        body = when(self._count > 0, with_memory(rows, *self._heap.memory))
        return self._writer.kernel(body)

    def _row(self, line: Term, column: Term) -> Stmt:
        def element(at: Term) -> Term:
            return load(self._data, (line * self._extent + at) * self._inner + column)

        count, heap = self._count, self._heap
        left = self._extent - count
        return block(
            loop("first", count, lambda at: heap.put(at, element(at), at)),
            heap.build(count),
            loop("next", left, lambda at: let("new", element(at), partial(self._offer, at)), count),
            loop("rank", count, partial(self._pop_last, line, column)),
        )

    def _offer(self, at: Term, value: Term) -> Stmt:
        """An element in the place of the last one so far, if it comes before that.

        Among equals it does not: all that is there stands at lower positions."""
        better = self._heap.order.precedes(value, self._heap.value(0))
        return when(better, self._heap.sink("offer", value, at, self._count))

    def _pop_last(self, line: Term, column: Term, rank: Term) -> Stmt:
        """Move the last element in order, which is on top of the heap, to the end of the result."""

        def written(last: Term) -> Stmt:
            offset = (line * self._count + last) * self._inner + column
            return block(
                store(self._values, offset, self._heap.value(0)),
                store(self._indices, offset, self._heap.position(0)),
                self._heap.reinsert("shrink", last, last),
            )

        return let("last", self._count - 1 - rank, written)


@node_kernel("nonzero")
def nonzero(group: Group, stores: Stores, _target: Target) -> Plan:
    """The indices of elements that are not zero, in order, by one thread."""
    return lambda: _kernel(group, Writer(group, stores))


def _kernel(group: Group, writer: Writer) -> Kernel:
    shape = shape_of(group.node.args[0])
    count = writer.dim(shape_of(group.output)[1])
    data, result = writer.present_operand(0), writer.result(0)
    count_so_far = Cell("found")

    def store_indices(here: Term, at: Term) -> Stmt:
        """The indices of an element, from its number among all."""
        stored: list[Stmt] = [count_so_far.set(here + 1)]
        for axis, extent in enumerate(shape):
            position = at // writer.dim(product(shape[axis + 1 :])) if axis + 1 < len(shape) else at
            position = position % writer.dim(extent) if axis else position
            stored.append(store(result, count * axis + here, position))
        return block(*stored)

    def element(at: Term) -> Stmt:
        # Should the data have changed since they were counted, there is no room for more.
        def visit(here: Term) -> Stmt:
            is_hit = cast(DType.BOOL, load(data, at)) & (here < count)
            return when(is_hit, store_indices(here, at))

        return let("here", count_so_far.value, visit)

    body = block(count_so_far.set(0), loop("at", writer.dim(product(shape)), element))
    return writer.kernel(with_memory(body, count_so_far))


@node_kernel("bounded_unique")
def distinct(group: Group, stores: Stores, _target: Target) -> Plan:
    """The distinct elements of a tensor, by sorting."""
    return lambda: _Distinct(Writer(group, stores)).kernel()


class _Distinct:
    """Writes the sort, and what is found in it in the order that is wanted."""

    def __init__(self, writer: Writer) -> None:
        self._writer, node = writer, writer.group.node
        shape = shape_of(node.args[0])
        in_rows = node.attrs.axis == 0
        self._count = writer.dim(shape[0] if in_rows else product(shape))
        self._width = writer.dim(shape[1] if in_rows else 1)
        self._in_order = node.attrs.sorted
        self._data = writer.present_operand(0)
        self._values, self._first, self._inverse, self._counts, self._total = (
            writer.result(number) for number in range(5)
        )
        self._heap = Heap.of(Order(descending=False), self._data.dtype, self._count, True)
        self._groups, self._known = Cell("groups"), Cell("known", self._data.dtype)
        self._known_group = Cell("known_group")
        names = ("first_of", "count_of", "rank_of")
        self._first_of, self._count_of, self._rank_of = (
            scratch(name, INDEX, self._count) for name in names
        )

    def kernel(self) -> Kernel:
        body = block(
            self._all_are_one(),
            loop(
                "sorted",
                self._width,
                lambda iteration: self._sorted_by(self._width - 1 - iteration),
            ),
            self._ranked(),
            loop("group", self._groups.value, self._written),
            loop("place", self._count, self._numbered),
            store(self._total, 0, self._groups.value),
        )
        memory = (*self._heap.memory, self._first_of, self._count_of, self._rank_of)
        cells = (self._groups, self._known, self._known_group)
        return self._writer.kernel(with_memory(body, *memory, *cells))

    def _all_are_one(self) -> Stmt:
        """Before anything is compared, there is one group."""
        only = block(store(self._first_of, 0, 0), store(self._count_of, 0, self._count))
        return block(
            loop("one", self._count, lambda at: store(self._inverse, at, 0)),
            self._groups.set(minimum(self._count, 1)),
            when(self._count > 0, only),
        )

    def _sorted_by(self, column: Term) -> Stmt:
        def put(at: Term) -> Stmt:
            group = load(self._inverse, at)
            return self._heap.put(at, self._element(at, column), group * self._count + at)

        return block(
            loop("at", self._count, put),
            self._heap.build(self._count),
            self._groups.set(0),
            loop("iteration", self._count, self._popped),
        )

    def _element(self, row: Term, column: Term) -> Term:
        return load(self._data, row * self._width + column)

    def _popped(self, iteration: Term) -> Stmt:
        def popped(last: Term, value: Term, offset: Term) -> Stmt:
            group, position = offset // self._count, offset % self._count
            same = self._heap.order.same(value, self._known.value)
            same = same & equal(group, self._known_group.value)
            here = self._groups.value - 1
            return block(
                self._heap.reinsert("pop", last, last),
                when(equal(iteration, 0) | (same ^ True), self._begun(value, group, position)),
                store(self._count_of, here, load(self._count_of, here) + 1),
                store(self._inverse, position, here),
            )

        last, heap = self._count - 1 - iteration, self._heap
        return lets({"last": last, "value": heap.value(0), "place": heap.position(0)}, popped)

    def _begun(self, value: Term, group: Term, position: Term) -> Stmt:
        def entered(new: Term) -> Stmt:
            return block(
                store(self._first_of, new, position),
                store(self._count_of, new, 0),
                self._known.set(value),
                self._known_group.set(group),
                self._groups.set(new + 1),
            )

        return let("next", self._groups.value, entered)

    def _ranked(self) -> Stmt:
        """Where each group belongs: as sorted, or in the order in which they first appear."""
        if self._in_order:
            return loop("rank", self._groups.value, lambda g: store(self._rank_of, g, g))
        rank = Cell("seen")

        def element(at: Term) -> Stmt:
            return let("own", load(self._inverse, at), partial(looked_up, at))

        def looked_up(at: Term, group: Term) -> Stmt:
            here = rank.value
            entered = block(store(self._rank_of, group, here), rank.set(here + 1))
            return when(equal(load(self._first_of, group), at), entered)

        return with_memory(block(rank.set(0), loop("appearing", self._count, element)), rank)

    def _written(self, group: Term) -> Stmt:
        def at(rank: Term) -> Stmt:
            return let("origin", load(self._first_of, group), partial(stored, rank))

        def stored(rank: Term, first: Term) -> Stmt:
            def copied(column: Term) -> Stmt:
                offset = rank * self._width + column
                return store(self._values, offset, self._element(first, column))

            return block(
                loop("column", self._width, copied),
                store(self._first, rank, first),
                store(self._counts, rank, load(self._count_of, group)),
            )

        return let("rank_here", load(self._rank_of, group), at)

    def _numbered(self, offset: Term) -> Stmt:
        group = load(self._inverse, offset)
        return store(self._inverse, offset, load(self._rank_of, group))
