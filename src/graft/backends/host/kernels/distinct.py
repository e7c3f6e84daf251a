"""The distinct elements of a tensor, or rows of a matrix, where each is first and how often.

One thread takes the elements from a heap in ascending order, the lower position first among equals:
where one differs from that before it, a new group begins. Rows are sorted column by column, the
last one first; each time, the groups that are known so far decide among equals, before positions
do. All NaN count as equal.
"""

from __future__ import annotations

from functools import partial

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.heap import Heap, Order
from graft.backends.host.kernels.writing import (
    Cell,
    Writer,
    block,
    let,
    loop,
    scratch,
    store,
    when,
    with_memory,
)
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.loop.build import Term, equal, load, minimum
from graft.loop.ir import INDEX, Stmt
from graft.target.target import Target


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
        self._data = writer.given(0)
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
            loop("sorted", self._width, lambda turn: self._sorted_by(self._width - 1 - turn)),
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
            loop("turn", self._count, self._popped),
        )

    def _element(self, row: Term, column: Term) -> Term:
        return load(self._data, row * self._width + column)

    def _popped(self, turn: Term) -> Stmt:
        def known(last: Term) -> Stmt:
            return let("value", self._heap.value(0), partial(valued, last))

        def valued(last: Term, value: Term) -> Stmt:
            return let("place", self._heap.position(0), partial(taken, last, value))

        def taken(last: Term, value: Term, place: Term) -> Stmt:
            group, position = place // self._count, place % self._count
            same = self._heap.order.same(value, self._known.value)
            same = same & equal(group, self._known_group.value)
            here = self._groups.value - 1
            return block(
                self._heap.taken("pop", last, last),
                when(equal(turn, 0) | (same ^ True), self._begun(value, group, position)),
                store(self._count_of, here, load(self._count_of, here) + 1),
                store(self._inverse, position, here),
            )

        return let("last", self._count - 1 - turn, known)

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
        seen = Cell("seen")

        def element(at: Term) -> Stmt:
            return let("own", load(self._inverse, at), partial(looked_up, at))

        def looked_up(at: Term, group: Term) -> Stmt:
            here = seen.value
            entered = block(store(self._rank_of, group, here), seen.set(here + 1))
            return when(equal(load(self._first_of, group), at), entered)

        return with_memory(block(seen.set(0), loop("appearing", self._count, element)), seen)

    def _written(self, group: Term) -> Stmt:
        def at(rank: Term) -> Stmt:
            return let("origin", load(self._first_of, group), partial(stored, rank))

        def stored(rank: Term, first: Term) -> Stmt:
            def copied(column: Term) -> Stmt:
                place = rank * self._width + column
                return store(self._values, place, self._element(first, column))

            return block(
                loop("column", self._width, copied),
                store(self._first, rank, first),
                store(self._counts, rank, load(self._count_of, group)),
            )

        return let("rank_here", load(self._rank_of, group), at)

    def _numbered(self, place: Term) -> Stmt:
        group = load(self._inverse, place)
        return store(self._inverse, place, load(self._rank_of, group))
