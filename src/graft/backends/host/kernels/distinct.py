"""The distinct elements of a tensor, where each stands first and how often: by sorting.

One thread takes the elements from a heap in ascending order, the lower position first among equals:
where one differs from that before it, something new begins. All NaN count as equal.
"""

from __future__ import annotations

from functools import partial

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernels.heap import Heap, Order
from graft.backends.host.kernels.writing import (
    Cell,
    Writer,
    block,
    let,
    loop,
    not_plain,
    scratch,
    store,
    when,
    with_memory,
)
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.llvm.target import Target
from graft.loop.build import Term, equal, load
from graft.loop.ir import INDEX, Stmt
from graft.rewrite.rule import Refusal


def distinct(group: Group, stores: Stores, _target: Target) -> Kernel | Refusal:
    """The node for itself."""
    refused = not_plain(group, stores, "bounded_unique")
    return _Distinct(Writer(group, stores)).kernel() if refused is None else refused


class _Distinct:
    """Writes the sort, and what is found in it in the order that is wanted."""

    def __init__(self, writer: Writer) -> None:
        self._writer, node = writer, writer.group.node
        self._size = writer.dim(product(shape_of(node.args[0])))
        self._in_order = node.attrs.sorted
        self._data = writer.given(0)
        self._values, self._first, self._inverse, self._counts, self._total = (
            writer.result(number) for number in range(5)
        )
        self._heap = Heap.of(Order(descending=False), self._data.dtype, self._size, True)
        self._groups, self._known = Cell("groups"), Cell("known", self._data.dtype)
        names = ("first_of", "count_of", "rank_of")
        self._first_of, self._count_of, self._rank_of = (
            scratch(name, INDEX, self._size) for name in names
        )

    def kernel(self) -> Kernel:
        body = block(
            loop("at", self._size, lambda at: self._heap.put(at, load(self._data, at), at)),
            self._heap.build(self._size),
            self._groups.set(0),
            loop("turn", self._size, self._popped),
            self._ranked(),
            loop("group", self._groups.value, self._written),
            loop("place", self._size, self._numbered),
            store(self._total, 0, self._groups.value),
        )
        memory = (*self._heap.memory, self._first_of, self._count_of, self._rank_of)
        return self._writer.kernel(with_memory(body, *memory, self._groups, self._known))

    def _popped(self, turn: Term) -> Stmt:
        def known(last: Term) -> Stmt:
            return let("value", self._heap.value(0), partial(valued, last))

        def valued(last: Term, value: Term) -> Stmt:
            return let("position", self._heap.position(0), partial(taken, last, value))

        def taken(last: Term, value: Term, position: Term) -> Stmt:
            same = self._heap.order.same(value, self._known.value)
            is_new = equal(turn, 0) | (same ^ True)
            here = self._groups.value - 1
            return block(
                self._heap.taken("pop", last, last),
                when(is_new, begun(value, position)),
                store(self._count_of, here, load(self._count_of, here) + 1),
                store(self._inverse, position, here),
            )

        def begun(value: Term, position: Term) -> Stmt:
            return let("next", self._groups.value, partial(entered, value, position))

        def entered(value: Term, position: Term, group: Term) -> Stmt:
            return block(
                store(self._first_of, group, position),
                store(self._count_of, group, 0),
                self._known.set(value),
                self._groups.set(group + 1),
            )

        return let("last", self._size - 1 - turn, known)

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

        return with_memory(block(seen.set(0), loop("appearing", self._size, element)), seen)

    def _written(self, group: Term) -> Stmt:
        def at(rank: Term) -> Stmt:
            return let("origin", load(self._first_of, group), partial(stored, rank))

        def stored(rank: Term, first: Term) -> Stmt:
            return block(
                store(self._values, rank, load(self._data, first)),
                store(self._first, rank, first),
                store(self._counts, rank, load(self._count_of, group)),
            )

        return let("rank_here", load(self._rank_of, group), at)

    def _numbered(self, place: Term) -> Stmt:
        group = load(self._inverse, place)
        return store(self._inverse, place, load(self._rank_of, group))
