"""The first elements of rows in their order, with positions: `topk`, whatever the sizes.

Each row is read once, in order, into a heap of the best elements so far with the last of them on
top; taken apart, the heap gives them sorted. The threads share the rows.
"""

from __future__ import annotations

from functools import partial

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.heap import Heap, Order
from graft.backends.host.kernels.writing import (
    Writer,
    block,
    let,
    loop,
    parallel,
    store,
    when,
    with_memory,
)
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.loop.build import Term, load
from graft.loop.ir import Stmt
from graft.target.target import Target


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
        self._data = writer.given(0)
        self._values, self._indices = writer.result(0), writer.result(1)
        self._heap = Heap.of(Order(node.attrs.largest), self._data.dtype, self._count, False)

    def kernel(self) -> Kernel:
        def row(job: Term) -> Stmt:
            return let("line", job // self._inner, lambda line: in_line(line, job % self._inner))

        def in_line(line: Term, index: Term) -> Stmt:
            return let("column", index, lambda column: self._row(line, column))

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
            loop("rank", count, partial(self._taken, line, column)),
        )

    def _offer(self, at: Term, value: Term) -> Stmt:
        """An element in the place of the last one so far, if it comes before that.

        Among equals it does not: all that is there stands at lower positions."""
        better = self._heap.order.precedes(value, self._heap.value(0))
        return when(better, self._heap.sink("offer", value, at, self._count))

    def _taken(self, line: Term, column: Term, rank: Term) -> Stmt:
        """The last element of the heap into the last free place of the result."""

        def written(last: Term) -> Stmt:
            place = (line * self._count + last) * self._inner + column
            return block(
                store(self._values, place, self._heap.value(0)),
                store(self._indices, place, self._heap.position(0)),
                self._heap.taken("shrink", last, last),
            )

        return let("last", self._count - 1 - rank, written)
